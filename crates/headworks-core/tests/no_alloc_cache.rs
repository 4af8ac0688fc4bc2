//! Nothing is allocated in the cache after start-up: not on a hit, a miss, an eviction, nor where writers wait.
//!
//! A counting allocator watches this thread from the moment a shard is made. The pool is small, the set is not, and every test
//! says by what was counted that its path was gone.

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
struct Desk {
    shard: Shard,
    inputs: Vec<Input>,
    flying: Vec<Submit>,
    timer: Option<u64>,
    now: u64,
    asked: u64,
    answered: u64,
    failed: u64,
    submits: u64,
    copies: u64,
    timers: u64,
}

impl Desk {
    fn new(change: impl Fn(&mut ShardConfig)) -> Self {
        let volume = VolumeOptions { size: 1 << 40, block_size: 512, ..VolumeOptions::default() };
        let mut config = ShardConfig::single(QueueOptions::default(), volume, 512);
        config.cache = CacheOptions { units: UNITS, writers_max: 64, ..config.cache };
        change(&mut config);
        Self {
            shard: Shard::new(config).expect("a valid configuration"),
            inputs: Vec::with_capacity(20_000),
            flying: Vec::with_capacity(20_000),
            timer: None,
            now: MS,
            asked: 0,
            answered: 0,
            failed: 0,
            submits: 0,
            copies: 0,
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
        let Self { shard, inputs, flying, .. } = self;
        shard.handle(Instant(self.now), inputs);
        inputs.clear();
        for action in &shard.actions().list {
            match *action {
                Action::Submit(submit) => {
                    self.submits += 1;
                    flying.push(submit);
                }
                Action::Copy { .. } => self.copies += 1,
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

    /// The device answers everything it has.
    fn answer(&mut self, status: Status) {
        for submit in self.flying.drain(..) {
            let transferred = if status.is_ok() { submit.len } else { 0 };
            let completion = Completion { id: submit.id, transferred, status, hole: false };
            self.inputs.push(Input::Complete { device: submit.device, completion });
        }
        self.turn();
    }

    /// The device answers until it has nothing left.
    fn finish(&mut self, status: Status) {
        while !self.flying.is_empty() {
            self.now += 50_000;
            self.answer(status);
        }
    }

    /// Device and timers go on until everybody was answered.
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

    /// The next timer comes.
    fn tick(&mut self) {
        let at = self.timer.take().expect("who waits without a device waits for a timer");
        self.now = self.now.max(at);
        self.timers += 1;
        self.inputs.push(Input::Timer);
        self.turn();
    }

    /// `count` bios `stride` apart in one batch.
    fn batch(&mut self, op: Op, flags: BioFlags, count: u64, stride: u64, len: u64) {
        for n in 0..count {
            self.bio(op, flags, n * stride, len);
        }
        self.turn();
    }
}

/// Runs `path` ten times on one shard and counts from the first time on.
fn none(change: impl Fn(&mut ShardConfig), path: impl Fn(&mut Desk, u64)) -> Desk {
    none_on(Desk::new(change), path)
}

fn none_on(mut desk: Desk, path: impl Fn(&mut Desk, u64)) -> Desk {
    let before = ALLOCATIONS.with(Cell::get);
    for round in 0..10 {
        path(&mut desk, round);
        let made = ALLOCATIONS.with(Cell::get) - before;
        assert_eq!(made, 0, "allocations up to round {round}");
        assert_eq!(desk.answered, desk.asked, "everybody was answered in round {round}");
    }
    desk
}

#[test]
fn the_allocator_is_watched() {
    let before = ALLOCATIONS.with(Cell::get);
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(ALLOCATIONS.with(Cell::get), before + 1);
}

#[test]
fn hits() {
    let desk = none(
        |_| (),
        |desk, round| {
            desk.batch(Op::Read, NONE, 4, MIB, MIB);
            desk.run_out(Ok(()));
            let (submits, copies) = (desk.submits, desk.copies);
            desk.batch(Op::Read, NONE, 64, 64 * KIB, 4 * KIB);
            desk.batch(Op::Read, NONE, 64, 64 * KIB, 64 * KIB);
            desk.batch(Op::Read, NONE, 64, 64 * KIB, 512);
            assert_eq!(desk.answered, desk.asked, "hits are answered at once");
            assert_eq!(desk.submits, submits, "round {round}");
            assert!(desk.copies >= copies + 192);
        },
    );
    assert_eq!(desk.failed, 0);
}

#[test]
fn misses_evictions_and_read_ahead() {
    let desk = none(
        |_| (),
        |desk, round| {
            // Forty times the pool, in pieces and in order, by many at once.
            for n in 0..80 {
                desk.bio(Op::Read, NONE, (round * 80 + n) * 4 * MIB, 4 * KIB);
                desk.bio(Op::Read, NONE, (1 << 35) + (round * 80 + n) * 64 * KIB, 64 * KIB);
                desk.bio(Op::Prefetch, NONE, (1 << 36) + (round * 80 + n) * MIB, 512 * KIB);
                desk.turn();
            }
            desk.run_out(Ok(()));
            desk.batch(Op::Read, NONE, 300, 3 * MIB, 20 * KIB);
            desk.run_out(Ok(()));
        },
    );
    assert!(desk.submits > 3000 && desk.failed == 0);
}

#[test]
fn failed_fills() {
    let desk = none(
        |_| (),
        |desk, _| {
            desk.batch(Op::Read, NONE, 100, MIB, 256 * KIB);
            desk.run_out(Err(IoError::Medium));
        },
    );
    assert!(desk.failed >= 1000);
}

#[test]
fn writes_parts_of_blocks_and_blocks_that_are_on_their_way() {
    let desk = none(
        |_| (),
        |desk, _| {
            desk.batch(Op::Write, NONE, 64, 16 * KIB, 4 * KIB);
            desk.batch(Op::Write, NONE, 4, 128 * KIB, 128 * KIB);
            // The rest of these blocks must be read first.
            desk.batch(Op::Write, NONE, 64, 32 * KIB + 4096, 512);
            desk.batch(Op::Flush, NONE, 1, 0, 0);
            // Now everything is on its way, and changes again.
            desk.batch(Op::Write, NONE, 64, 16 * KIB, 4 * KIB);
            desk.run_out(Ok(()));
            desk.batch(Op::Write, BioFlags::FUA, 16, MIB, 12 * KIB);
            desk.batch(Op::Flush, NONE, 3, 0, 0);
            desk.run_out(Ok(()));
        },
    );
    assert!(desk.copies > 2000 && desk.failed == 0);
}

/// Writes twenty times what may be dirty, by 32 connections.
fn too_much(desk: &mut Desk, round: u64) {
    for n in 0..100 {
        for writer in 0..4 {
            let at = (n * 4 + writer) * 64 * KIB + round * 4 * KIB;
            desk.bio(Op::Write, NONE, at, 64 * KIB);
        }
        desk.turn();
        desk.now += MS;
        if n % 8 == 0 {
            desk.answer(Ok(()));
        }
    }
    desk.run_out(Ok(()));
}

#[test]
fn writers_that_wait() {
    for policy in [ThrottlePolicy::Ioless, ThrottlePolicy::None] {
        let desk = none(
            |config| config.dirty.policy = policy,
            |desk, round| {
                too_much(desk, round);
                let connection = (round % 32) as u32;
                desk.inputs.push(Input::Close { connection });
                desk.turn();
            },
        );
        assert!(desk.submits > 0 && desk.failed == 0, "{policy:?}");
        if policy == ThrottlePolicy::Ioless {
            assert!(desk.timers > 10, "somebody paused: {} timers", desk.timers);
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
fn writers_that_write_out_themselves() {
    let mut desk = Desk::new(|_| ());
    desk.shard.set_foreground(Box::new(EveryEighth));
    let desk = none_on(desk, too_much);
    assert!(desk.submits > 0 && desk.failed == 0);
}

#[test]
fn old_data_is_written_by_and_by() {
    let desk = none(
        |_| (),
        |desk, round| {
            desk.batch(Op::Write, NONE, 32, (round + 1) * 8 * KIB, 4 * KIB);
            let (until, submits) = (desk.now + 40 * SEC, desk.submits);
            while desk.now < until && desk.timer.is_some() {
                desk.tick();
                desk.finish(Ok(()));
            }
            assert!(desk.submits > submits, "nothing was written in 40 s");
        },
    );
    assert_eq!(desk.failed, 0);
}

#[test]
fn discards_zeroes_and_what_goes_past_the_cache() {
    let desk = none(
        |_| (),
        |desk, _| {
            for op in [Op::Discard, Op::WriteZeroes] {
                desk.batch(Op::Write, NONE, 32, 64 * KIB, 32 * KIB);
                desk.batch(op, NONE, 16, 64 * KIB, 60 * KIB);
                // Some wait for a range, some are told here, some by the device.
                desk.batch(Op::BlockStatus, NONE, 32, 64 * KIB, 64 * KIB);
                desk.batch(Op::Read, NONE, 32, 64 * KIB, 8 * KIB);
                desk.run_out(Ok(()));
            }
            desk.batch(Op::Write, NONE, 32, 64 * KIB, 32 * KIB);
            desk.batch(Op::Read, BioFlags::DIRECT, 32, 64 * KIB, 64 * KIB);
            desk.batch(Op::Write, BioFlags::DIRECT, 32, 64 * KIB, 4 * KIB);
            desk.run_out(Ok(()));
        },
    );
    assert_eq!(desk.failed, 0);
}

#[test]
fn write_outs_that_fail() {
    let desk = none(
        |_| (),
        |desk, _| {
            desk.batch(Op::Write, NONE, 64, 64 * KIB, u64::from(BLOCK));
            desk.batch(Op::Flush, NONE, 1, 0, 0);
            desk.run_out(Err(IoError::Medium));
            desk.batch(Op::Flush, NONE, 1, 0, 0);
            desk.run_out(Ok(()));
        },
    );
    assert!(desk.failed > 0);
}
