//! The cache allocates nothing after start-up: not on a hit, a miss, an eviction, nor where writers wait.
//!
//! A counting allocator counts on this thread once a shard is made. The pool is small, the working set is not, and every test
//! proves by the counters that its path was taken.

#[path = "support/counting.rs"]
mod counting;

use std::cell::Cell;

use counting::ALLOCATIONS;
use headworks_core::cache::folio::BLOCK;
use headworks_core::time::{MS, SEC};
use headworks_core::writeback::{DirtyPosition, ForegroundWriteback, ThrottlePolicy};
use headworks_core::{
    Action, Bio, BioFlags, BioId, CacheOptions, Completion, Input, Instant, IoError, Op,
    QueueOptions, Shard, ShardConfig, Status, Submit, VolumeOptions,
};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Units of the pool: 8 MiB.
const UNITS: u32 = 2048;
const NONE: BioFlags = BioFlags::NONE;

/// A shard with a cache, and its device.
struct Harness {
    shard: Shard,
    inputs: Vec<Input>,
    in_flight: Vec<Submit>,
    timer: Option<u64>,
    now: u64,
    asked: u64,
    answered: u64,
    failed: u64,
    submits: u64,
    copies: u64,
    from_frames: u64,
    timers: u64,
}

impl Harness {
    fn new(change: impl Fn(&mut ShardConfig)) -> Self {
        let volume = VolumeOptions { size: 1 << 40, block_size: 512, ..VolumeOptions::default() };
        let mut config = ShardConfig::single(QueueOptions::default(), volume, 512);
        config.cache =
            CacheOptions { units: UNITS, writers_max: 64, dirty_table: true, ..config.cache };
        change(&mut config);
        Self {
            shard: Shard::new(config).expect("a valid configuration"),
            inputs: Vec::with_capacity(20_000),
            in_flight: Vec::with_capacity(20_000),
            timer: None,
            now: MS,
            asked: 0,
            answered: 0,
            failed: 0,
            submits: 0,
            copies: 0,
            from_frames: 0,
            timers: 0,
        }
    }

    /// A bio of one of 32 connections.
    fn bio(&mut self, op: Op, flags: BioFlags, offset: u64, len: u64) {
        self.asked += 1;
        let id = BioId {
            sequence: self.asked,
            connection: (self.asked % 32) as u32,
            ..BioId::default()
        };
        let len = len as u32;
        self.inputs.push(Input::Bio(Bio { id, offset, len, op, flags, ..Bio::default() }));
    }

    fn turn(&mut self) {
        let Self { shard, inputs, in_flight, .. } = self;
        shard.handle(Instant(self.now), inputs);
        inputs.clear();
        for action in &shard.actions().list {
            match *action {
                Action::Submit(submit) => {
                    self.submits += 1;
                    in_flight.push(submit);
                }
                Action::Copy { .. } => self.copies += 1,
                Action::ReplyFrames { .. } => {
                    self.answered += 1;
                    self.from_frames += 1;
                }
                Action::Reply { status, .. } => {
                    self.answered += 1;
                    self.failed += u64::from(status.is_err());
                }
                Action::Timer { at } => self.timer = Some(at.0),
                _ => {}
            }
        }
        shard.clear_actions();
    }

    /// Completes every outstanding command.
    fn answer(&mut self, status: Status) {
        for submit in self.in_flight.drain(..) {
            let transferred = if status.is_ok() { submit.len } else { 0 };
            let completion = Completion { id: submit.id, transferred, status, hole: false };
            self.inputs.push(Input::Complete { device: submit.device, completion });
        }
        self.turn();
    }

    /// Completes commands until none is outstanding.
    fn finish(&mut self, status: Status) {
        while !self.in_flight.is_empty() {
            self.now += 50_000;
            self.answer(status);
        }
    }

    /// Runs device and timers until every bio has completed.
    fn run_out(&mut self, status: Status) {
        for _ in 0..1_000_000 {
            self.finish(status);
            if self.answered == self.asked {
                return;
            }
            self.tick();
        }
        panic!("{} of {} were answered", self.answered, self.asked);
    }

    /// Advances to the next timer.
    fn tick(&mut self) {
        let at = self.timer.take().expect("who waits without a device waits for a timer");
        self.now = self.now.max(at);
        self.timers += 1;
        self.inputs.push(Input::Timer);
        self.turn();
    }

    /// Submits `count` bios, `stride` apart, in one batch.
    fn batch(&mut self, op: Op, flags: BioFlags, count: u64, stride: u64, len: u64) {
        for n in 0..count {
            self.bio(op, flags, n * stride, len);
        }
        self.turn();
    }
}

/// Runs `path` ten times on one shard and counts allocations from the first time on.
fn none(change: impl Fn(&mut ShardConfig), path: impl Fn(&mut Harness, u64)) -> Harness {
    none_on(Harness::new(change), path)
}

fn none_on(mut harness: Harness, path: impl Fn(&mut Harness, u64)) -> Harness {
    let before = ALLOCATIONS.with(Cell::get);
    for round in 0..10 {
        path(&mut harness, round);
        let made = ALLOCATIONS.with(Cell::get) - before;
        assert_eq!(made, 0, "allocations up to round {round}");
        assert_eq!(harness.answered, harness.asked, "everybody was answered in round {round}");
    }
    harness
}

#[test]
fn allocations_are_counted() {
    let before = ALLOCATIONS.with(Cell::get);
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(ALLOCATIONS.with(Cell::get), before + 1);
}

#[test]
fn hits_do_not_allocate() {
    let harness = none(
        |_| (),
        |harness, round| {
            harness.batch(Op::Read, NONE, 4, MIB, MIB);
            harness.run_out(Ok(()));
            let (submits, copies) = (harness.submits, harness.copies);
            harness.batch(Op::Read, NONE, 64, 64 * KIB, 4 * KIB);
            harness.batch(Op::Read, NONE, 64, 64 * KIB, 64 * KIB);
            harness.batch(Op::Read, NONE, 64, 64 * KIB, 512);
            assert_eq!(harness.answered, harness.asked, "hits are answered at once");
            assert_eq!(harness.submits, submits, "round {round}");
            assert!(harness.copies >= copies + 192);
        },
    );
    assert_eq!(harness.failed, 0);
}

#[test]
fn replies_from_frames_do_not_allocate() {
    let harness = none(
        |_| (),
        |harness, round| {
            harness.batch(Op::Read, NONE, 4, MIB, MIB);
            harness.run_out(Ok(()));
            let before = harness.from_frames;
            harness.batch(Op::Read, BioFlags::NO_BUFFER, 300, 4 * KIB, 4 * KIB);
            harness.batch(Op::Read, BioFlags::NO_BUFFER, 60, 64 * KIB, 64 * KIB);
            harness.batch(Op::Read, BioFlags::NO_BUFFER, 4, MIB, MIB);
            assert_eq!(harness.answered, harness.asked, "hits are answered at once");
            assert_eq!(harness.from_frames, before + 364, "round {round}");
        },
    );
    assert_eq!((harness.failed, harness.submits > 0), (0, true));
}

#[test]
fn misses_evictions_and_read_ahead_do_not_allocate() {
    let harness = none(
        |_| (),
        |harness, round| {
            // Forty times the pool, sequentially, by many connections.
            for n in 0..80 {
                harness.bio(Op::Read, NONE, (round * 80 + n) * 4 * MIB, 4 * KIB);
                harness.bio(Op::Read, NONE, (1 << 35) + (round * 80 + n) * 64 * KIB, 64 * KIB);
                harness.bio(Op::Prefetch, NONE, (1 << 36) + (round * 80 + n) * MIB, 512 * KIB);
                harness.turn();
            }
            harness.run_out(Ok(()));
            harness.batch(Op::Read, NONE, 300, 3 * MIB, 20 * KIB);
            harness.run_out(Ok(()));
        },
    );
    assert!(harness.submits > 3000 && harness.failed == 0);
}

#[test]
fn failed_fills_do_not_allocate() {
    let harness = none(
        |_| (),
        |harness, _| {
            harness.batch(Op::Read, NONE, 100, MIB, 256 * KIB);
            harness.run_out(Err(IoError::Medium));
        },
    );
    assert!(harness.failed >= 1000);
}

#[test]
fn partial_and_shadow_writes_do_not_allocate() {
    let harness = none(
        |_| (),
        |harness, _| {
            harness.batch(Op::Write, NONE, 64, 16 * KIB, 4 * KIB);
            harness.batch(Op::Write, NONE, 4, 128 * KIB, 128 * KIB);
            // The rest of these blocks is read first.
            harness.batch(Op::Write, NONE, 64, 32 * KIB + 4096, 512);
            harness.batch(Op::Flush, NONE, 1, 0, 0);
            // Everything is under write-out, and is written again.
            harness.batch(Op::Write, NONE, 64, 16 * KIB, 4 * KIB);
            harness.run_out(Ok(()));
            harness.batch(Op::Write, BioFlags::FUA, 16, MIB, 12 * KIB);
            harness.batch(Op::Flush, NONE, 3, 0, 0);
            harness.run_out(Ok(()));
        },
    );
    assert!(harness.copies > 2000 && harness.failed == 0);
}

/// Writes twenty times what may be dirty, by 32 connections.
fn too_much(harness: &mut Harness, round: u64) {
    for n in 0..100 {
        for writer in 0..4 {
            let at = (n * 4 + writer) * 64 * KIB + round * 4 * KIB;
            harness.bio(Op::Write, NONE, at, 64 * KIB);
        }
        harness.turn();
        harness.now += MS;
        if n % 8 == 0 {
            harness.answer(Ok(()));
        }
    }
    harness.run_out(Ok(()));
}

#[test]
fn waiting_writers_do_not_allocate() {
    for policy in [ThrottlePolicy::Ioless, ThrottlePolicy::None] {
        let harness = none(
            |config| config.dirty.policy = policy,
            |harness, round| {
                too_much(harness, round);
                let connection = (round % 32) as u32;
                harness.inputs.push(Input::Close { connection });
                harness.turn();
            },
        );
        assert!(harness.submits > 0 && harness.failed == 0, "{policy:?}");
        if policy == ThrottlePolicy::Ioless {
            assert!(harness.timers > 10, "a writer paused: {} timers", harness.timers);
        }
    }
}

/// Twelve blocks after each eight.
#[derive(Debug)]
struct EveryEighth;

impl ForegroundWriteback for EveryEighth {
    fn quota(&self, _: &DirtyPosition, nr_dirtied: u32) -> Option<u32> {
        (nr_dirtied >= 8).then_some(12)
    }
}

#[test]
fn foreground_write_out_does_not_allocate() {
    let mut harness = Harness::new(|_| ());
    harness.shard.set_foreground(Box::new(EveryEighth));
    let harness = none_on(harness, too_much);
    assert!(harness.submits > 0 && harness.failed == 0);
}

#[test]
fn periodic_write_out_does_not_allocate() {
    let harness = none(
        |_| (),
        |harness, round| {
            harness.batch(Op::Write, NONE, 32, (round + 1) * 8 * KIB, 4 * KIB);
            let (until, submits) = (harness.now + 40 * SEC, harness.submits);
            while harness.now < until && harness.timer.is_some() {
                harness.tick();
                harness.finish(Ok(()));
            }
            assert!(harness.submits > submits, "nothing was written in 40 s");
        },
    );
    assert_eq!(harness.failed, 0);
}

#[test]
fn discard_zeroes_and_direct_io_do_not_allocate() {
    let harness = none(
        |_| (),
        |harness, _| {
            for op in [Op::Discard, Op::WriteZeroes] {
                harness.batch(Op::Write, NONE, 32, 64 * KIB, 32 * KIB);
                harness.batch(op, NONE, 16, 64 * KIB, 60 * KIB);
                // Some wait for a range, some are answered by the cache, some by the device.
                harness.batch(Op::BlockStatus, NONE, 32, 64 * KIB, 64 * KIB);
                harness.batch(Op::Read, NONE, 32, 64 * KIB, 8 * KIB);
                harness.run_out(Ok(()));
            }
            harness.batch(Op::Write, NONE, 32, 64 * KIB, 32 * KIB);
            harness.batch(Op::Read, BioFlags::DIRECT, 32, 64 * KIB, 64 * KIB);
            harness.batch(Op::Write, BioFlags::DIRECT, 32, 64 * KIB, 4 * KIB);
            harness.run_out(Ok(()));
        },
    );
    assert_eq!(harness.failed, 0);
}

#[test]
fn failed_write_outs_do_not_allocate() {
    let harness = none(
        |_| (),
        |harness, _| {
            harness.batch(Op::Write, NONE, 64, 64 * KIB, u64::from(BLOCK));
            harness.batch(Op::Flush, NONE, 1, 0, 0);
            harness.run_out(Err(IoError::Medium));
            harness.batch(Op::Flush, NONE, 1, 0, 0);
            harness.run_out(Ok(()));
        },
    );
    assert!(harness.failed > 0);
}
