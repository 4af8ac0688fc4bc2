//! `--fs`: a second opinion by file systems of the running kernel.
//!
//! ```text
//!   record --> repeated on a mounted file system, whose disk is recorded (replayed)
//!   a cut: a place of the program, and a step of the disk behind it; some of the disk's unflushed writes are lost
//!       --> the disk is mounted: the kernel recovers the file system --> --check
//!             broken --> the cause that says the same and whose losses the state has: confirmed
//!             which state of the file system's model is it? --> none: the model is too narrow, and the report says so
//! ```
//!
//! A pass in four repeats the record as the program made it; the others are disturbed. Half of the cuts are at the places of causes.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use headworks_core::prng::Prng;
use headworks_crash::{
    Content, Disk, Draws, Explainer, Membership, Model, Record, Tree, Walk, Way, read_tree,
    write_tree,
};

use super::DRAW_TIME;
use super::causes::{Causes, Seen};
use super::explore::Explorer;
use super::file_system::{self, FileSystem};
use super::judge::{Judge, Verdict};
use super::replayed::{MountedDisks, Pass, Stand};
use super::workplace::Workplace;
use crate::crashtest::arguments::CrashtestArgs;
use crate::shown::error_line;

/// Times that the record is repeated: the first time as the program did it, then disturbed.
const PASSES: u64 = 4;
/// States that no model has, which are described.
const STRANGERS_SHOWN: usize = 3;
/// Files of such a state that are described.
const FILES_SHOWN: usize = 8;
/// Bytes of a file that are described as runs, and runs of one, at most.
const RUNS_BYTES: u64 = 1 << 16;
const RUNS_MAX: usize = 12;
/// Time between lines of progress.
const TOLD: Duration = Duration::from_secs(1);
/// What helps where they cannot be mounted.
const WAYS: &str = "--fs needs root and loop devices, here or in a virtual machine: sudo, or `vng --rw -- headworks crashtest ...`";

/// What a file system of this kernel left after cuts.
pub struct Opinion {
    pub kind: FileSystem,
    /// Release of the kernel.
    pub kernel: String,
    /// Cuts that were made and checked.
    pub cuts: u64,
    /// Different states among them, by place and directory.
    pub states: u64,
    /// States that the model of the file system has.
    pub members: u64,
    /// States of which that cannot be told, because the place has too many.
    pub unknown: u64,
    /// States that it has not.
    pub strangers: u64,
    /// Cuts whose check failed.
    pub broken: u64,
    /// Those of them whose state the model has not, so that their cause is not known.
    pub unexplained: u64,
    /// The first states that the model has not, or that cannot be mounted, each in a sentence.
    pub described: Vec<String>,
    /// Whether time ran out.
    pub timed_out: bool,
}

/// A cut: a place of the program, and what reached the disk.
struct Cut {
    place: usize,
    /// Steps of the disk.
    position: usize,
    /// Number of the draw, which decides what is lost.
    number: u64,
}

/// Tries whether a file system can be asked, on an empty disk. The error says what is missing.
pub fn try_out(place: &Workplace, kind: FileSystem) -> Result<(), String> {
    let way = place.access()?.way();
    if way != Way::Root {
        return Err(format!("{kind} cannot be mounted by {way}: {WAYS}"));
    }
    let disk = Disk { name: "dir".into(), keeps_all: false };
    let nothing = Record::new(vec![disk], vec![Tree::new(0, 0)]);
    let stand = Stand::new(kind, place, &nothing)?;
    let mounted = stand.mount_base();
    mounted.map(drop).map_err(|error| format!("{kind} cannot be mounted: {error}; {WAYS}"))
}

/// Asks a file system about the causes that were found; adds those that it shows and that were not.
pub fn ask(
    options: &CrashtestArgs,
    place: &Workplace,
    explorer: &Explorer<'_>,
    kind: FileSystem,
    causes: &mut Causes,
) -> Result<Opinion, String> {
    let time = options.files.time.map_or(DRAW_TIME, Duration::from_nanos);
    let until = Instant::now() + time;
    let record = explorer.record();
    let stand = Stand::new(kind, place, record)?;
    let opinion = Opinion {
        kind,
        kernel: file_system::kernel(),
        cuts: 0,
        states: 0,
        members: 0,
        unknown: 0,
        strangers: 0,
        broken: 0,
        unexplained: 0,
        described: Vec::new(),
        timed_out: false,
    };
    let judge = Judge::new(place, "job-0", explorer.check(), options.timeout);
    let told = Instant::now();
    let explainer = Explainer::new(record);
    let (met, judged) = (HashSet::new(), HashMap::new());
    let mut questioning = Questioning {
        options,
        explorer,
        stand,
        judge,
        causes,
        opinion,
        explainer,
        met,
        judged,
        until,
        told,
    };
    for pass in 0..PASSES {
        questioning.pass(pass)?;
    }
    Ok(questioning.opinion)
}

/// What questions to a file system share.
struct Questioning<'a> {
    options: &'a CrashtestArgs,
    explorer: &'a Explorer<'a>,
    stand: Stand<'a>,
    judge: Judge<'a>,
    causes: &'a mut Causes,
    opinion: Opinion,
    explainer: Explainer<'a>,
    /// States that were compared with the model.
    met: HashSet<(usize, u64)>,
    /// Verdicts by directories and promises.
    judged: HashMap<u64, Verdict>,
    until: Instant,
    told: Instant,
}

/// Where a state is among those of a model.
struct Found<'w, 'r> {
    walk: &'w Walk<'r>,
    choices: Vec<u32>,
}

impl Questioning<'_> {
    /// Repeats the record once, and cuts there.
    fn pass(&mut self, pass: u64) -> Result<(), String> {
        let cuts = self.options.files.fs_cuts;
        let own = cuts * (pass + 1) / PASSES - cuts * pass / PASSES;
        if own == 0 || Instant::now() >= self.until {
            self.opinion.timed_out |= own > 0;
            return Ok(());
        }
        let seed = self.options.seed.wrapping_mul(PASSES).wrapping_add(pass);
        let done = self.stand.pass((pass > 0).then_some(seed), self.until)?;
        let block = self.options.block(self.explorer.record());
        // What a disk may lose is what POSIX allows of one file: each block by itself.
        let mut disk = Walk::new(&done.disks, Model::Any, block);
        let record = self.stand.record;
        let model = self.stand.kind.model();
        let mut before = Walk::new(record, model, block);
        let mut behind = before.clone();
        for cut in self.draw(seed, own, &done) {
            if Instant::now() >= self.until {
                self.opinion.timed_out = true;
                break;
            }
            disk.go(cut.position);
            before.go(cut.place);
            behind.go(cut.place + 1);
            let draws = Draws { seed, count: own, places: 1 };
            let losses = draws.choices(cut.number, disk.axes());
            self.cut(disk.trees(&losses), &before, &behind, done.disturbed)?;
            self.opinion.cuts += 1;
            if self.told.elapsed() >= TOLD {
                self.told = Instant::now();
                error_line!(
                    "{}: {} of {cuts} cuts, {} broken",
                    self.stand.kind,
                    self.opinion.cuts,
                    self.opinion.broken
                );
            }
        }
        Ok(())
    }

    /// The cuts of a pass, in the order of the disk's steps: every second is at the place of a cause.
    fn draw(&self, seed: u64, count: u64, pass: &Pass) -> Vec<Cut> {
        let places: Vec<usize> = self
            .causes
            .list
            .iter()
            .filter(|cause| cause.within.is_none())
            .map(|cause| cause.first.place)
            .collect();
        let mut prng = Prng::new(!seed);
        let last = pass.positions.len() - 1;
        let draw = |number: u64| {
            let anywhere = prng.below(last as u64 + 1) as usize;
            let place = match number % 2 {
                1 if !places.is_empty() => places[(number / 2) as usize % places.len()],
                _ => anywhere,
            };
            let from = pass.positions[place];
            let to = pass.positions.get(place + 1).copied().unwrap_or(from);
            let position = from + prng.below((to - from) as u64 + 1) as usize;
            Cut { place, position, number }
        };
        let mut cuts: Vec<Cut> = (0..count).map(draw).collect();
        cuts.sort_by_key(|cut| (cut.place, cut.position, cut.number));
        cuts
    }

    /// Lets the kernel recover disks, compares what it gives back with the model, and checks it. `before`: the last step of the program that
    /// had ended; `behind`: the one that was under way.
    fn cut(
        &mut self,
        disks: Vec<Tree>,
        before: &Walk<'_>,
        behind: &Walk<'_>,
        disturbed: bool,
    ) -> Result<(), String> {
        let mounted = match self.stand.mount(disks) {
            Ok(mounted) => mounted,
            Err(error) => {
                let said = format!("after step {}: it cannot be mounted: {error}", before.place());
                self.describe(said);
                self.opinion.strangers += 1;
                return Ok(());
            }
        };
        let seen = self.seen(&mounted, before)?;
        let key = before.hash(&seen);
        if self.met.insert((before.place(), key)) {
            self.opinion.states += 1;
            match (before.find(&seen), behind.find(&seen)) {
                (Membership::Member(_), _) | (_, Membership::Member(_)) => {
                    self.opinion.members += 1
                }
                (Membership::Stranger, Membership::Stranger) => {
                    self.opinion.strangers += 1;
                    self.describe(described(self.stand.record, before.place(), &seen));
                }
                _ => self.opinion.unknown += 1,
            }
        }
        let verdict = match self.judged.get(&key) {
            Some(verdict) => verdict.clone(),
            None => self.check(&mounted, before, &seen)?,
        };
        drop(mounted);
        self.judged.insert(key, verdict.clone());
        if let Verdict::Broken(said) = verdict {
            self.opinion.broken += 1;
            self.confirm(&said, before, behind, &seen, disturbed)?;
        }
        Ok(())
    }

    /// Reads what the kernel gave back, and what disks that lose nothing had.
    fn seen(&self, mounted: &MountedDisks, before: &Walk<'_>) -> Result<Vec<Tree>, String> {
        let mut real = mounted.paths.iter();
        let disks = &self.stand.record.disks;
        let kept = disks.iter().any(|disk| disk.keeps_all).then(|| before.whole());
        disks
            .iter()
            .enumerate()
            .map(|(at, disk)| match (disk.keeps_all, kept) {
                (true, Some(kept)) => Ok(kept[at].clone()),
                _ => {
                    let (_, path) = real.next().ok_or("a disk is missing")?;
                    read_tree(path)
                        .map_err(|error| format!("{} cannot be read: {error}", path.display()))
                }
            })
            .collect()
    }

    fn check(
        &mut self,
        mounted: &MountedDisks,
        before: &Walk<'_>,
        seen: &[Tree],
    ) -> Result<Verdict, String> {
        let mut paths = mounted.paths.clone();
        let record = self.stand.record;
        let folder = self.stand.place.scratch("kept");
        let _ = std::fs::remove_dir_all(&folder);
        for (disk, tree) in record.disks.iter().zip(seen).filter(|(disk, _)| disk.keeps_all) {
            let path = folder.join(&disk.name);
            let made = std::fs::create_dir_all(&folder).and_then(|()| write_tree(tree, &path));
            made.map_err(|error| format!("{} cannot be made: {error}", path.display()))?;
            paths.push((disk.name.clone(), path));
        }
        self.judge.check_there(record, before.place(), &paths)
    }

    /// Counts a broken state to its cause; one that no model found becomes a cause.
    fn confirm(
        &mut self,
        said: &str,
        before: &Walk<'_>,
        behind: &Walk<'_>,
        seen: &[Tree],
        disturbed: bool,
    ) -> Result<(), String> {
        let kind = self.stand.kind;
        let found = [before, behind].into_iter().find_map(|walk| match walk.find(seen) {
            Membership::Member(choices) => Some(Found { walk, choices }),
            _ => None,
        });
        let Some(Found { walk, choices }) = found else {
            self.opinion.unexplained += 1;
            return Ok(());
        };
        let lost = self.explainer.lost_in_general(walk.axes(), &choices, walk.place());
        if self.causes.confirm(said, &lost, &Seen::once(kind.name(), disturbed)) {
            return Ok(());
        }
        if self.causes.may_shrink() {
            let mut cause = self.explorer.shrunk(kind.model(), walk.place(), &choices)?;
            cause.seen.push(Seen::once(kind.name(), disturbed));
            self.causes.add(cause);
        }
        Ok(())
    }

    fn describe(&mut self, text: String) {
        if self.opinion.described.len() < STRANGERS_SHOWN {
            self.opinion.described.push(text);
        }
    }
}

/// A state that the model has not: the step before it, and its files.
fn described(record: &Record, place: usize, seen: &[Tree]) -> String {
    let mut files = Vec::new();
    for (disk, tree) in record.disks.iter().zip(seen).filter(|(disk, _)| !disk.keeps_all) {
        let mut first_names = HashMap::new();
        tree.walk(&mut |node, path| {
            let path = format!("${}{}", disk.name, String::from_utf8_lossy(path));
            let first = first_names.entry(node).or_insert_with(|| path.clone());
            files.push(match (tree.content(node), *first == path) {
                (Ok(_), false) => format!("{path} is {first}"),
                (Ok(content), true) => format!("{path} {}", runs(content)),
                (Err(_), _) => path,
            });
        });
    }
    let more = files.len().saturating_sub(FILES_SHOWN);
    files.truncate(FILES_SHOWN);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    format!("after step {place} of {}: {}{more}", record.changes.len(), files.join(", "))
}

/// The bytes of a short file as runs of equal ones, `a*4096 0*10`; of others the length and a hash.
fn runs(content: &Content) -> String {
    let hashed = format!("{} bytes {:08x}", content.size(), content.hash() as u32);
    if content.size() > RUNS_BYTES {
        return hashed;
    }
    let mut bytes = vec![0; content.size() as usize];
    content.read(0, &mut bytes);
    let runs: Vec<String> = bytes
        .chunk_by(|one, other| one == other)
        .take(RUNS_MAX + 1)
        .map(|run| match run[0] {
            0 => format!("0*{}", run.len()),
            byte => format!("{}*{}", byte.escape_ascii(), run.len()),
        })
        .collect();
    match runs.len() {
        0 => "empty".to_owned(),
        count if count <= RUNS_MAX => runs.join(" "),
        _ => hashed,
    }
}
