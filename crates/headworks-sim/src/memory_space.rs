//! The memory of the caches on a modelled filesystem of limited size (tmpfs), which others fill and empty at any step.
//!
//! What reserves is the server's own code (`headworks-cache-memory`): head, buffers and first frames at the start, more frames when a shard names them.
//!
//! ```text
//!   shard --Prepare--> asked --a piece at a time--> FrameSpace::reserve --> CacheMemory { had } --> shard
//!                                   refused: answered once, tried again every second
//! ```
//!
//! Rule: no frame and no entry of a dirty table is touched whose page the filesystem has not given. In a server such a touch is a SIGBUS.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_cache_memory::{CacheMemory, FrameSpace, LimitedFilesystem, ShardGeometry};
use headworks_core::cache::folio::BLOCK;
use headworks_core::prng::Prng;
use headworks_core::time::{MS, SEC};
use headworks_core::{Action, CacheOptions, Control, Instant, Segment, ShardId};

use crate::coverage::{Coverage, Point};
use crate::scenario::{Scenario, WorldDefect};

/// The rule that a touch of memory which was not given breaks.
pub const MEMORY_RULE: &str = "memory is used only after its filesystem has given it";

const PAGE: u64 = 4096;
/// Frames of a piece, as the server's thread asks for them.
const PIECE: u32 = 512;
/// Bytes of the request buffers, which have space from the start.
const BUFFERS: usize = 2 << 20;
/// Time after which a refused piece is asked for again.
const RETRY_NS: u64 = SEC;

/// The pages of a filesystem, and the one file on it that is not of others.
#[derive(Debug, Default)]
struct Pages {
    all: u64,
    others: u64,
    given: Vec<bool>,
    given_count: u64,
}

impl Pages {
    fn free(&self) -> u64 {
        self.all - self.others - self.given_count
    }

    fn set(&mut self, pages: Range<u64>, given: bool) {
        let (start, end) = (pages.start as usize, pages.end as usize);
        if end > self.given.len() {
            self.given.resize(end, false);
        }
        for page in &mut self.given[start..end] {
            self.given_count -= u64::from(std::mem::replace(page, given));
            self.given_count += u64::from(given);
        }
    }

    /// Takes the space of a file that was removed.
    fn clear(&mut self) {
        (self.given, self.given_count) = (Vec::new(), 0);
    }

    fn has(&self, bytes: &Range<usize>) -> bool {
        let pages = bytes.start / PAGE as usize..bytes.end.div_ceil(PAGE as usize);
        pages.into_iter().all(|page| self.given.get(page).is_some_and(|given| *given))
    }
}

/// The modelled filesystem.
#[derive(Debug, Default)]
struct ModelFilesystem(Mutex<Pages>);

impl ModelFilesystem {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LimitedFilesystem for ModelFilesystem {
    fn free(&self) -> io::Result<Option<(u64, u64)>> {
        let pages = self.pages();
        Ok(Some((pages.free() * PAGE, pages.all * PAGE)))
    }

    fn allocate(&self, bytes: Range<u64>) -> io::Result<()> {
        let mut pages = self.pages();
        let range = bytes.start / PAGE..bytes.end / PAGE;
        let given = |page: &u64| pages.given.get(*page as usize).is_some_and(|given| *given);
        let missing = range.clone().filter(|page| !given(page)).count() as u64;
        if missing > pages.free() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        pages.set(range, true);
        Ok(())
    }

    fn had(&self) -> io::Result<u64> {
        Ok(self.pages().given_count * PAGE)
    }
}

/// Frames of a shard that were asked for.
#[derive(Debug)]
struct ShardSpace {
    frames: FrameSpace,
    /// First frame and number.
    asked: VecDeque<(u32, u32)>,
    next_at: Option<Instant>,
    refused: bool,
}

/// The memory of all shards.
#[derive(Debug)]
pub struct MemorySpace {
    filesystem: Arc<ModelFilesystem>,
    geometry: Vec<ShardGeometry>,
    memory: CacheMemory,
    shards: Vec<ShardSpace>,
    prng: Prng,
    others_at: Instant,
    /// Frames are answered for that were refused: a defect, for tests.
    answers_refused: bool,
}

impl MemorySpace {
    /// The memory of a world's caches, if their filesystem is limited.
    #[must_use]
    pub fn of(scenario: &Scenario) -> Option<Self> {
        let refused = scenario.defect == WorldDefect::AnswersRefusedMemory;
        let caches = (scenario.shards, scenario.cache.units);
        scenario.memory.map(|more| Self::new(scenario.seed, caches, more, refused))
    }

    /// The memory of `shards` caches of `units` frames, on a filesystem that has so many pages more than a start needs.
    fn new(seed: u64, (shards, units): (u16, u32), more: u64, answers_refused: bool) -> Self {
        let filesystem = Arc::new(ModelFilesystem::default());
        let geometry = vec![ShardGeometry { units, buffers: BUFFERS }; shards.into()];
        filesystem.pages().all = u64::MAX / PAGE;
        drop(start(&filesystem, &geometry).expect("there is room for it"));
        let mut pages = filesystem.pages();
        // A part is left to others.
        pages.all = (pages.given_count + more) * 17 / 16;
        pages.clear();
        drop(pages);
        let (memory, shards) = start(&filesystem, &geometry).expect("there is room for it");
        let (prng, others_at) = (Prng::new(seed).split("memory of others"), Instant(0));
        Self { filesystem, geometry, memory, shards, prng, others_at, answers_refused }
    }

    /// Starts a new process: with a new file, when the one of the old process is gone.
    pub fn restart(&mut self, now: Instant, coverage: &mut Coverage) {
        self.filesystem.pages().clear();
        self.change_others(now);
        let mut started = start(&self.filesystem, &self.geometry);
        if started.is_err() {
            coverage.hit(Point::MemoryStartRefused);
            let mut pages = self.filesystem.pages();
            pages.others = 0;
            pages.clear();
            drop(pages);
            started = start(&self.filesystem, &self.geometry);
        }
        (self.memory, self.shards) = started.expect("there is room for it without others");
    }

    /// The time of the next change or answer.
    #[must_use]
    pub fn next_at(&self) -> Instant {
        let shards = self.shards.iter().filter_map(|shard| shard.next_at);
        shards.chain([self.others_at]).min().expect("others always change")
    }

    /// Takes what a shard asks for.
    pub fn ask(&mut self, now: Instant, shard: ShardId, first: u32, units: u32) {
        let delay = self.prng.below(MS);
        let shard = &mut self.shards[usize::from(shard.0)];
        shard.asked.push_back((first, units));
        shard.next_at.get_or_insert(now.after(delay));
    }

    /// Takes the memory of frames that hold nothing.
    pub fn give_back(&mut self, shard: ShardId, first: u32, units: u32) {
        let [_, frames] = self.shards[usize::from(shard.0)].frames.places(first, units);
        self.filesystem.pages().set(frames.start as u64 / PAGE..frames.end as u64 / PAGE, false);
    }

    /// Does what is due; the answers, in order.
    pub fn run_due(&mut self, now: Instant, coverage: &mut Coverage) -> Vec<(ShardId, Control)> {
        if self.others_at <= now {
            self.change_others(now);
        }
        let mut answers = Vec::new();
        for index in 0..self.shards.len() {
            if self.shards[index].next_at.is_some_and(|at| at <= now) {
                let answer = self.answer(now, index, coverage);
                answers.extend(answer.map(|answer| (ShardId(index as u16), answer)));
            }
        }
        answers
    }

    /// Tries the next piece of what a shard has asked for.
    fn answer(&mut self, now: Instant, index: usize, coverage: &mut Coverage) -> Option<Control> {
        let delay = self.prng.below(MS);
        let shard = &mut self.shards[index];
        let (first, units) = *shard.asked.front()?;
        let piece = units.min(PIECE);
        let had = shard.frames.reserve(first as usize * PAGE as usize, (piece * BLOCK) as usize);
        let had = had.is_ok() || self.answers_refused;
        let again = std::mem::replace(&mut shard.refused, !had);
        if !had {
            shard.next_at = Some(now.after(RETRY_NS));
            coverage.add(Point::MemoryRefused, (!again).into());
            return (!again).then_some(Control::CacheMemory { first, units: piece, had });
        }
        coverage.hit(if again { Point::MemoryHadAgain } else { Point::MemoryHad });
        shard.asked.pop_front();
        if units > piece {
            shard.asked.push_front((first + piece, units - piece));
        }
        shard.next_at = (!shard.asked.is_empty()).then(|| now.after(delay));
        Some(Control::CacheMemory { first, units: piece, had })
    }

    /// Others fill the filesystem, leave it, or have a part of it.
    fn change_others(&mut self, now: Instant) {
        let mut pages = self.filesystem.pages();
        let most = pages.all - pages.given_count;
        pages.others = match self.prng.below(4) {
            0 => most,
            1 => 0,
            2 => most - self.prng.below(256.min(most + 1)),
            _ => self.prng.below(most + 1),
        };
        let wait = [MS, 20 * MS, 300 * MS, 3 * SEC][self.prng.below(4) as usize];
        self.others_at = now.after(wait);
    }

    /// Checks that what an action touches has space; `pool_of` maps a segment to the shard whose frames it names.
    ///
    /// # Errors
    /// The frames without space.
    pub fn check(
        &self,
        shard: ShardId,
        action: &Action,
        segments: &[Segment],
        pool_of: impl Fn(&Segment) -> u16,
    ) -> Result<(), String> {
        let frames = |at: u64, len: u32| {
            let first = (at / u64::from(BLOCK)) as u32;
            (first, ((at + u64::from(len)).div_ceil(BLOCK.into()) as u32) - first)
        };
        let checked = match *action {
            Action::Copy { at, len, .. } | Action::Zero { at, len } => {
                self.has_frames(shard.0, frames(at, len))
            }
            Action::Move { from, to, len } => {
                self.has_frames(shard.0, frames(from, len))
                    && self.has_frames(shard.0, frames(to, len))
            }
            Action::SetDirty { unit, count, .. } => self.has_entries(shard.0, unit, count),
            Action::Submit(_) => segments.iter().all(|segment| {
                let at = |unit: u32| u64::from(unit * BLOCK) + u64::from(segment.offset);
                let unit = segment.bio.unit();
                unit.is_none_or(|unit| {
                    self.has_frames(pool_of(segment), frames(at(unit), segment.len))
                })
            }),
            _ => true,
        };
        checked.then_some(()).ok_or_else(|| format!("shard {}, {action:?}", shard.0))
    }

    /// Checks what the next process looks at: the entries of all frames that were had once, and the frames of dirty ones.
    ///
    /// # Errors
    /// What has no space.
    pub fn check_left(
        &self,
        shard: ShardId,
        dirty: impl Iterator<Item = u32>,
    ) -> Result<(), String> {
        let backed = self.memory.backed(shard.0.into()).unwrap_or(0);
        if !self.has_entries(shard.0, 0, backed) {
            return Err(format!("shard {}: entries below frame {backed}", shard.0));
        }
        for unit in dirty {
            if unit >= backed || !self.has_frames(shard.0, (unit, 1)) {
                return Err(format!("shard {}: dirty frame {unit} of {backed}", shard.0));
            }
        }
        Ok(())
    }

    fn has_frames(&self, shard: u16, (first, units): (u32, u32)) -> bool {
        let [_, frames] = self.shards[usize::from(shard)].frames.places(first, units);
        self.filesystem.pages().has(&frames)
    }

    fn has_entries(&self, shard: u16, first: u32, units: u32) -> bool {
        let [entries, _] = self.shards[usize::from(shard)].frames.places(first, units);
        self.filesystem.pages().has(&entries)
    }
}

/// The file of a process that starts.
fn start(
    filesystem: &Arc<ModelFilesystem>,
    geometry: &[ShardGeometry],
) -> io::Result<(CacheMemory, Vec<ShardSpace>)> {
    let first = u64::from(CacheOptions::BACKED_MIN) * PAGE * geometry.len() as u64;
    let memory = CacheMemory::on(Arc::clone(filesystem) as _, 1, geometry.to_vec(), first)?;
    let shards = (0..geometry.len()).map(|index| {
        let (frames, _) = memory.shard(index)?.space.expect("the filesystem is limited");
        assert_eq!(memory.backed(index), Some(CacheOptions::BACKED_MIN), "as the shards are told");
        Ok(ShardSpace { frames, asked: VecDeque::new(), next_at: None, refused: false })
    });
    let shards = shards.collect::<io::Result<_>>()?;
    Ok((memory, shards))
}
