//! The page cache of a shard: folios of 4 KiB to 2 MiB between the volumes and the queues.
//!
//! Decides what is kept, what is read and written when, and who waits for it. A bio that hits is answered in the same call. Any
//! other becomes an [`operation::Operation`]: a cursor, parked on one thing at a time.
//!
//! ```text
//!   bio --> read, write: block by block                    --> copies, answer
//!             | missing: fill.rs asks (read-ahead with it)       ^
//!             v                                                  |
//!   down ---- bios of the cache's own ----> plug, queue, device -+ arrive.rs
//!             ^
//!             | flusher.rs: background, periodic, sync, for frames
//!   flush --> sync.rs: generations; discard, zeroes, direct --> range.rs
//! ```
//!
//! Its parts: `operation` and `lines` (who waits for what), `read`, `fill`, `write`, `shadow`, `newer`, `writeout`, `clean` (write-out on a
//! writer's behalf), `bios` (how many may be on their way), `range`, `walk` (over the folios of one), `resize`, `sync`, `status` (what a
//! range is made of), `flusher`, `arrive` (answers of devices), `frames` (who gets memory), `held` (what could not be written), `volume`
//! (what is known of a volume), `change` (devices and volumes that join and leave), over the tables `folio`, `index`,
//! `reclaim`, `ghost`, `readahead`.
//!
//! Invariants: every wait is ended by an answer of a device, a timer or what one of these frees; a frame that a device has is
//! not written (a write goes to a shadow), and not read while it is filled; a dirty, busy or waited-for folio is not evicted;
//! `dirty + writeback + credit` never exceeds the limit; nothing here grows.

mod change;
mod check;
mod completion;
mod defect;
mod device_io;
mod dirty;
mod pool;
pub mod readahead;
mod stats;
mod steps;
mod volumes;
mod waiters;

pub use pool::{folio, ghost, index, reclaim};

#[cfg(feature = "defects")]
pub use defect::CacheDefect;
pub use stats::CacheStats;

use std::ops::Range;

use crate::action::{Action, Actions};
use crate::bio::{Bio, BioFlags, Op, VolumeId};
use crate::buddy::Buddy;
use crate::cache::dirty::groups::Groups;
use crate::device_bio::DeviceBio;
use crate::error::{IoError, Status};
use crate::input::ReplyStage;
use crate::options::{CacheOptions, QueueOptions, ShardConfig, WriteMode};
use crate::slab::{NIL, Slab};
use crate::time::Instant;
use crate::timer::TimerWheel;
use crate::wait_times::{WaitRecorder, WaitTimes};
use crate::writeback::credit::Credit;
use crate::writeback::{DirtyOptions, Throttle};
use defect::Defects;
use dirty::dirty_regions::DirtyRegions;
use dirty::flusher::Flusher;
use dirty::held::HeldFolios;
use pool::folio::{Folios, ORDER_MAX};
use pool::index::Index;
use pool::reclaim::Reclaim;
use pool::shadow::Shadows;
use readahead::ReadAhead;
use steps::range::Ranges;
use volumes::volume::CachedVolume;
use waiters::operation::{OpStep, Operation, WaitFor};
use waiters::wait_lists::WaitLists;

/// What the shard lends the cache for a call.
pub(crate) struct Turn<'a> {
    pub now: Instant,
    pub actions: &'a mut Actions,
    pub timers: &'a mut TimerWheel,
}

/// Bytes that an operation copies in one turn: what 1 MiB takes (0.1 ms) others may wait.
const COPY_MAX: u32 = 1 << 20;

/// The cache's timers on the shard's wheel, from its base on; a writer's pause is `Writer` and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum TimerKind {
    /// The throttle looks at its estimates.
    Throttle = 0,
    /// The flusher looks for old data.
    Periodic = 1,
    /// A flush has waited long enough.
    Sync = 2,
    /// Blocks whose write-out failed are tried again.
    Retry = 3,
    /// Operations that had their turn have another.
    Turn = 4,
    /// The first writer's pause.
    Writer = 5,
}

/// How a device's volumes are cached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceCaching {
    pub read_ahead_kb: u32,
    pub max_folio_order: u8,
}

impl DeviceCaching {
    pub fn of(queue: &QueueOptions) -> Self {
        Self { read_ahead_kb: queue.read_ahead_kb, max_folio_order: queue.max_folio_order }
    }
}

/// See the head of this file.
pub(crate) struct Cache {
    options: CacheOptions,
    dirty: DirtyOptions,
    folios: Folios,
    frames: Buddy,
    index: Index,
    reclaim: Reclaim,
    ahead: ReadAhead,
    throttle: Throttle,
    groups: Groups,
    shadows: Shadows,
    dirty_regions: DirtyRegions,
    held: HeldFolios,
    /// Where the next look for folios of a volume that leaves begins.
    leaving: u32,
    /// Volumes of which something beyond the end is still to be forgotten.
    truncations: u32,
    volumes: Vec<CachedVolume>,
    devices: Vec<DeviceCaching>,
    flushers: Vec<Flusher>,
    ops: Slab<Operation>,
    /// What they waited for, by slot.
    waits: Vec<WaitRecorder>,
    lines: WaitLists,
    ranges: Ranges,
    /// For the queues; the shard takes them at the end of a batch.
    pub down: Vec<DeviceBio>,
    /// Bios of the cache's own that are on their way, by account.
    bios: Credit,
    /// Blocks on their way from each device.
    filling: Credit,
    /// Bios of clients that were passed down.
    passed: u32,
    /// Tells bios over the same frames apart.
    count: u32,
    timer_base: u32,
    /// When old data are looked for next.
    periodic_at: Option<Instant>,
    /// For a pass that a writer makes for itself, and for writers that are looked for.
    scratch: Vec<u32>,
    /// What each connection has heard of its volume's errors, by writer: who of which volume, errors heard of. (A server's own
    /// flushes are one connection for all volumes.)
    heard: Vec<(Option<(u32, VolumeId)>, u32)>,
    /// Something may follow from what happened since the last [`Cache::run`]: not so while bios only hit.
    stirred: bool,
    stats: CacheStats,
    /// How often a volume began or ceased to have something held.
    held_news: u32,
    defects: Defects,
}

impl Cache {
    /// The cache of a shard; everything it will ever need is allocated. `timer_base`: its first timer.
    pub fn new(config: &ShardConfig, timer_base: u32) -> Self {
        let options = config.cache;
        let mut frames = Buddy::new(options.units, usize::from(ORDER_MAX) + 1);
        let shadows = Shadows::new(&mut frames);
        let devices = config.devices.len();
        let caching = |index: usize| DeviceCaching::of(&config.devices[index].queue);
        let account = options.account;
        Self {
            folios: Folios::new(options.units),
            index: Index::new(options.units),
            reclaim: Reclaim::new(options.units),
            ahead: ReadAhead::new(options.writers_max),
            throttle: Throttle::new(&config.dirty, frames.free(), devices, options.writers_max),
            groups: Groups::new(options.units, config.volumes_max()),
            shadows,
            dirty_regions: DirtyRegions::new(options.units),
            held: HeldFolios::new(options.units),
            leaving: 0,
            truncations: 0,
            frames,
            volumes: config.volumes.iter().map(CachedVolume::new).collect(),
            devices: (0..devices).map(caching).collect(),
            flushers: (0..devices).map(|_| Flusher::new(options.units, account)).collect(),
            ops: Slab::new(config.bios_max),
            waits: vec![WaitRecorder::default(); config.bios_max as usize],
            lines: WaitLists::new(devices, options.writers_max),
            ranges: Ranges::new(config.bios_max),
            down: Vec::with_capacity((options.bios() + config.bios_max) as usize),
            bios: Credit::new(2 * devices, options.bios()),
            filling: Credit::new(devices, device_io::filling_most(options.units, devices)),
            passed: 0,
            count: 0,
            timer_base,
            periodic_at: None,
            scratch: Vec::with_capacity(options.units.min(1 << 14) as usize),
            heard: vec![(None, 0); options.writers_max as usize + 1],
            stirred: true,
            stats: CacheStats::default(),
            held_news: 0,
            defects: Defects::default(),
            dirty: config.dirty,
            options,
        }
    }

    /// Timers that a cache needs.
    pub fn timers(options: &CacheOptions) -> usize {
        if options.is_on() {
            TimerKind::Writer as usize + options.writers_max as usize + 1
        } else {
            0
        }
    }

    /// Where the tables lie that every bio looks at.
    pub fn tables(&self) -> impl Iterator<Item = Range<*const u8>> {
        self.folios.tables().into_iter().chain([self.index.table()])
    }

    /// Whether bios of `volume` are the cache's.
    pub fn caches(&self, volume: VolumeId) -> bool {
        self.volumes[usize::from(volume.0)].mode != WriteMode::None
    }

    /// Client bios that wait here.
    pub fn waiting(&self) -> u32 {
        self.ops.taken()
    }

    /// Bios below the cache: its own that are on their way, and clients' that were passed down.
    pub fn below(&self) -> u32 {
        self.in_flight() + self.passed
    }

    /// What is to go down now.
    pub fn take_device_bios(&mut self) -> Vec<DeviceBio> {
        let down = std::mem::take(&mut self.down);
        self.passed += down.iter().filter(|down| down.bio.id.unit().is_none()).count() as u32;
        down
    }

    /// Bios that the cache may still send down: its own, and those of clients that wait.
    pub fn kept(&self) -> u32 {
        (self.options.bios() + self.waiting()).saturating_sub(self.below())
    }

    /// A bio that passed its volume.
    pub fn on_bio(&mut self, turn: &mut Turn, bio: Bio) {
        let volume = &self.volumes[usize::from(bio.id.volume.0)];
        let unsafe_mode = volume.mode == WriteMode::Unsafe;
        let aligned = (bio.offset | u64::from(bio.len)) & u64::from(volume.block_size - 1) == 0;
        // A flush by FUA is the driver's own, at its end: even what nobody was promised is written then.
        let ignored = unsafe_mode && !bio.flags.contains(BioFlags::FUA);
        let mut bio = bio;
        if unsafe_mode || bio.op == Op::Flush {
            bio.flags = bio.flags.without(BioFlags::FUA);
        }
        let direct = bio.flags.contains(BioFlags::DIRECT);
        self.stirred |= direct || !matches!(bio.op, Op::Read | Op::Write);
        match bio.op {
            Op::Flush if ignored => reply(turn, &bio, Ok(()), ReplyStage::Final),
            Op::Flush => self.begin_sync(turn, bio),
            Op::Prefetch => self.prefetch(turn, bio),
            Op::BlockStatus => self.begin(turn, Operation::new(bio, OpStep::Status)),
            Op::Discard => self.begin(turn, Operation::new(bio, OpStep::Range)),
            Op::WriteZeroes => self.begin_zeroes(turn, bio),
            Op::Read | Op::Write if direct && aligned => {
                let op = Operation { direct: true, ..Operation::new(bio, OpStep::Range) };
                self.begin(turn, op);
            }
            Op::Read => self.begin(turn, Operation::new(bio, OpStep::Read)),
            Op::Write => self.begin_write(turn, bio),
        }
    }

    /// Steps an operation that has no slot yet; most end here and never need one.
    fn begin(&mut self, turn: &mut Turn, mut op: Operation) {
        match self.step(turn, &mut op, NIL) {
            WaitFor::Nothing => self.stirred |= op.asked > 0,
            park => {
                self.stirred = true;
                let Some(slot) = self.ops.try_take() else {
                    // The shard asks `room` before it takes a bio in.
                    self.drop_credit(&mut op);
                    return reply(turn, &op.bio, Err(IoError::NoMemory), ReplyStage::Final);
                };
                self.ops[slot] = op;
                if park == WaitFor::Slot {
                    self.resume(turn, slot);
                } else {
                    self.park(turn, slot, park);
                }
            }
        }
    }

    /// Steps an operation that something happened to.
    fn resume(&mut self, turn: &mut Turn, slot: u32) {
        let mut op = std::mem::take(&mut self.ops[slot]);
        self.end_wait(turn.now, &mut op);
        let park = self.step(turn, &mut op, slot);
        self.ops[slot] = op;
        match park {
            WaitFor::Nothing => self.ops.put(slot),
            park => self.park(turn, slot, park),
        }
    }

    /// Goes on with an operation until it ends (`Nothing`) or must wait.
    fn step(&mut self, turn: &mut Turn, op: &mut Operation, slot: u32) -> WaitFor {
        if !op.locked
            && matches!(op.step, OpStep::Read | OpStep::Write | OpStep::Range)
            && let Some(other) = self.ranges.conflict(&op.bio)
        {
            if self.ops[other].answered {
                return self.finish(turn, op, Err(IoError::TimedOut));
            }
            return WaitFor::Range(other);
        }
        if slot != NIL && self.is_cut_off(op) {
            return self.finish(turn, op, Err(crate::volume::beyond(op.bio.op)));
        }
        match op.step {
            OpStep::Read => self.step_read(turn, op),
            OpStep::Write => self.step_write(turn, op, slot),
            OpStep::Clean => self.step_clean(turn, op, slot),
            OpStep::Range => self.step_range(turn, op, slot),
            OpStep::Sync => self.step_sync(turn, op, slot),
            OpStep::Status => self.step_status(turn, op, slot),
            OpStep::Below => self.step_below(turn, op),
        }
    }

    /// The volume became smaller while it waited.
    fn is_cut_off(&self, op: &Operation) -> bool {
        let begun =
            matches!(op.step, OpStep::Read | OpStep::Write | OpStep::Range | OpStep::Status);
        begun && !op.locked && op.bio.end() > self.volumes[usize::from(op.bio.id.volume.0)].size
    }

    /// The client gets its answer, and whatever the operation held is free.
    fn finish(&mut self, turn: &mut Turn, op: &mut Operation, status: Status) -> WaitFor {
        self.give_back(op);
        self.end_wait(turn.now, op);
        let (id, wait_times) = (op.bio.id, self.wait_times(op));
        let stage = if op.answered { ReplyStage::Released } else { ReplyStage::Final };
        turn.actions.list.push(Action::Reply { id, status, hole: false, stage, wait_times });
        WaitFor::Nothing
    }

    /// What an operation holds is free.
    fn give_back(&mut self, op: &mut Operation) {
        self.drop_credit(op);
        self.drop_frame(op);
    }

    fn drop_credit(&mut self, op: &mut Operation) {
        let credit = std::mem::take(&mut op.credit);
        if credit > 0 {
            let device = self.volumes[usize::from(op.bio.id.volume.0)].device;
            self.throttle.unreserve(device, credit);
        }
    }

    /// A connection is gone: nobody of it pauses any longer.
    pub fn on_close(&mut self, turn: &mut Turn, connection: u32) {
        self.ahead.forget(connection);
        self.release_writer(turn, connection);
    }

    /// One of the cache's timers.
    pub fn on_timer(&mut self, turn: &mut Turn, timer: u32) {
        const THROTTLE: u32 = TimerKind::Throttle as u32;
        const PERIODIC: u32 = TimerKind::Periodic as u32;
        const SYNC: u32 = TimerKind::Sync as u32;
        const RETRY: u32 = TimerKind::Retry as u32;
        const TURN: u32 = TimerKind::Turn as u32;
        match timer - self.timer_base {
            THROTTLE => self.throttle.on_timer(turn.now),
            PERIODIC => self.on_periodic(turn),
            SYNC => self.on_sync_timeout(turn),
            RETRY => self.retry_failed(turn),
            TURN => {
                self.lines.ready.append(&mut self.ops, &mut self.lines.later);
            }
            writer => self.resume_writer(turn, writer - TimerKind::Writer as u32),
        }
    }

    /// Something happened beside bios, or to one that is no hit.
    pub fn stir(&mut self) {
        self.stirred = true;
    }

    /// Whether [`Cache::run`] has anything to do.
    pub fn is_stirred(&self) -> bool {
        self.stirred || !self.down.is_empty()
    }

    /// Ends a batch: hands on what fell free, steps who can go on, lets the flushers write.
    pub fn run(&mut self, turn: &mut Turn) {
        self.stirred = false;
        self.go_on_with_cuts(turn);
        loop {
            // First those whose block has just come: a frame for somebody else would be had by evicting it unseen, and in a
            // small pool nobody would get on.
            while let Some(slot) = self.lines.next_ready(&mut self.ops) {
                self.resume(turn, slot);
            }
            self.serve_credit();
            self.serve_frames(turn);
            self.serve_bios();
            if self.lines.ready.head().is_none() {
                break;
            }
        }
        self.run_flushers(turn);
        self.arm_timers(turn);
    }

    fn arm_timers(&mut self, turn: &mut Turn) {
        let at = self.throttle.next_timeout();
        self.set_timer(turn, TimerKind::Throttle, at);
        let at = self.next_periodic(turn.now);
        self.set_timer(turn, TimerKind::Periodic, at);
    }

    fn set_timer(&self, turn: &mut Turn, kind: TimerKind, at: Option<Instant>) {
        let id = self.timer_base + kind as u32;
        match at {
            Some(at) if turn.timers.at(id) != Some(at) => turn.timers.set(id, at),
            Some(_) => {}
            None => turn.timers.clear(id),
        }
    }

    /// A device's volumes are cached in another way from now on.
    pub fn set_caching(&mut self, device: usize, caching: DeviceCaching) {
        if let Some(known) = self.devices.get_mut(device) {
            *known = caching;
        }
    }

    /// Other limits from now on.
    pub fn set_dirty(&mut self, now: Instant, dirty: DirtyOptions) {
        self.dirty = dirty;
        self.throttle.set_options(now, &dirty);
        self.ask_again();
    }

    /// Whoever waits asks again: what it waited for under the old limits may never come under the new ones.
    fn ask_again(&mut self) {
        for device in 0..self.devices.len() {
            self.judge_again(device);
            self.free_writers(device);
        }
        self.stirred = true;
    }

    /// Bytes of a volume that are dirty or under write-out, in whole blocks.
    pub fn dirty_bytes(&self, volume: VolumeId) -> u64 {
        u64::from(self.volumes[usize::from(volume.0)].unclean) << folio::BLOCK_SHIFT
    }

    /// Activates a deliberate violation of the rules, for negative tests.
    #[cfg(feature = "defects")]
    pub fn set_defect(&mut self, defect: CacheDefect) {
        self.defects.set(defect);
    }

    /// What was counted.
    pub fn stats(&self) -> CacheStats {
        let index = self.index.stats();
        let reclaim = self.reclaim.stats();
        let mut folios = [0; 10];
        for order in 0..=ORDER_MAX {
            folios[usize::from(order)] = u64::from(self.index.count(order));
        }
        CacheStats {
            units: self.folios.units().into(),
            free: self.frames.free().into(),
            resident: (0..10).map(|order| folios[order] << order).sum(),
            folios,
            held: self.volumes.iter().map(|volume| u64::from(volume.held)).sum(),
            // Every block that a read copies counts there; one that it had to wait for is none that it found.
            hits: self.stats.hits.saturating_sub(self.stats.misses),
            ghost_hits: reclaim.ghost_hits,
            shadows: self.shadows.used().into(),
            index_operations: index.operations(),
            index_probes: index.probes,
            ..self.stats
        }
    }

    /// Who decides on pauses.
    pub fn throttle(&self) -> &Throttle {
        &self.throttle
    }

    /// See [`Cache::throttle`].
    pub fn throttle_mut(&mut self) -> &mut Throttle {
        &mut self.throttle
    }

    /// The tunables that hold now.
    pub fn dirty_options(&self) -> DirtyOptions {
        self.dirty
    }

    fn caching(&self, volume: VolumeId) -> DeviceCaching {
        self.devices[usize::from(self.volumes[usize::from(volume.0)].device.0)]
    }

    fn volume(&mut self, volume: VolumeId) -> &mut CachedVolume {
        &mut self.volumes[usize::from(volume.0)]
    }

    /// Nothing waits and nothing is on its way; there may be dirty data.
    pub fn is_quiet(&self) -> bool {
        self.ops.taken() == 0 && self.in_flight() == 0 && self.down.is_empty()
    }
}

/// Answers a client that has waited for nothing.
fn reply(turn: &mut Turn, bio: &Bio, status: Status, stage: ReplyStage) {
    let (id, wait_times) = (bio.id, WaitTimes::NONE);
    turn.actions.list.push(Action::Reply { id, status, hole: false, stage, wait_times });
}
