//! No path allocates after start-up: not the first batch, not waits, failures and time-outs.
//!
//! A counting allocator counts on this thread from the creation of a shard or the hot-add of its device.

#[path = "support/counting.rs"]
mod counting;

use std::cell::Cell;

use counting::ALLOCATIONS;
use headworks_core::time::{MS, SEC};
use headworks_core::writeback::DirtyOptions;
use headworks_core::{
    Action, Bio, BioFlags, BioId, CacheOptions, Change, Completion, DeviceConfig, DeviceId,
    ExportId, Input, Instant, IoClass, IoError, Ioprio, Op, QueueOptions, Scheduler, Shard,
    ShardConfig, ShardId, SpareSlots, Status, Submit, VolumeConfig, VolumeId, VolumeOptions,
};

/// Shards and a scripted device. All buffers are allocated before counting starts.
struct Harness {
    shards: Vec<Shard>,
    inputs: Vec<Vec<Input>>,
    in_flight: Vec<Submit>,
    now: u64,
    sequence: u64,
    answers: u64,
    timer: Option<u64>,
}

impl Harness {
    /// Creates shards with one device and one volume, configured at the start or hot-added (`joined`).
    fn new(shards: u16, bios_max: u32, queue: QueueOptions, joined: bool) -> Self {
        let options = VolumeOptions { size: 1 << 40, block_size: 512, ..VolumeOptions::default() };
        let device = DeviceConfig { owner: ShardId(0), queue };
        let volume = VolumeConfig { home: ShardId(shards - 1), device: DeviceId(0), options };
        let spare = SpareSlots { devices: 1, volumes: 1, exports: 0, tags: queue.nr_requests };
        let config = |id| ShardConfig {
            id: ShardId(id),
            shards,
            bios_max,
            devices: if joined { Vec::new() } else { vec![device] },
            volumes: if joined { Vec::new() } else { vec![volume] },
            exports: Vec::new(),
            tenants: Vec::new(),
            cache: CacheOptions::default(),
            dirty: DirtyOptions::default(),
            spare: if joined { spare } else { SpareSlots::default() },
        };
        let made = (0..shards).map(|id| Shard::new(config(id)).expect("a valid configuration"));
        let mut shards: Vec<Shard> = made.collect();
        for shard in shards.iter_mut().filter(|_| joined) {
            let device = Change::AddDevice { device: DeviceId(0), config: device };
            let volume = Change::AddVolume { volume: VolumeId(0), config: volume };
            for change in [device, volume] {
                shard.change(Instant(0), &change).expect("there are places");
            }
            shard.clear_actions();
        }
        Self {
            inputs: shards.iter().map(|_| Vec::with_capacity(10_000)).collect(),
            shards,
            in_flight: Vec::with_capacity(10_000),
            now: MS,
            sequence: 0,
            answers: 0,
            timer: None,
        }
    }

    /// A bio for the next batch of its shard.
    fn bio(&mut self, op: Op, flags: BioFlags, offset: u64, len: u32) {
        self.sequence += 1;
        // Many connections and some exports, so that waits involve shares.
        let id = BioId {
            sequence: self.sequence,
            connection: (self.sequence % 41) as u32,
            export: ExportId((self.sequence % 3) as u16),
            ..BioId::default()
        };
        let home = self.inputs.len() - 1;
        self.inputs[home].push(Input::Bio(Bio { id, offset, len, op, flags, ..Bio::default() }));
    }

    /// Runs the batches of all shards and their messages until none has input.
    fn turn(&mut self) {
        while self.inputs.iter().any(|batch| !batch.is_empty()) {
            for shard in 0..self.shards.len() {
                self.shards[shard].handle(Instant(self.now), &self.inputs[shard]);
                self.inputs[shard].clear();
                for action in &self.shards[shard].actions().list {
                    match *action {
                        Action::Submit(submit) => self.in_flight.push(submit),
                        Action::Reply { .. } => self.answers += 1,
                        Action::Timer { at } => self.timer = Some(at.0),
                        Action::Notice(_) => {}
                        // Nothing is cached here.
                        Action::Data { .. }
                        | Action::Copy { .. }
                        | Action::Zero { .. }
                        | Action::Move { .. }
                        | Action::ReplyFrames { .. }
                        | Action::NeedsBuffer { .. }
                        | Action::SetDirty { .. }
                        | Action::Prepare { .. }
                        | Action::Release { .. } => {}
                        Action::Send { to, message } => {
                            let from = ShardId(shard as u16);
                            self.inputs[usize::from(to.0)].push(Input::Message { from, message });
                        }
                    }
                }
                self.shards[shard].clear_actions();
            }
        }
    }

    /// Completes all commands in flight in one batch.
    fn answer(&mut self, status: Status, moved: impl Fn(&Submit) -> u32) {
        for submit in self.in_flight.drain(..) {
            self.inputs[0].push(Input::Complete {
                device: submit.device,
                completion: Completion {
                    id: submit.id,
                    transferred: moved(&submit),
                    status,
                    hole: false,
                },
            });
        }
        self.turn();
    }

    fn finish(&mut self) {
        loop {
            while !self.in_flight.is_empty() {
                self.answer(Ok(()), |submit| submit.len);
            }
            // An elevator may wait for a client before it dispatches the rest.
            let Some(at) = self.timer.filter(|_| !self.shards.iter().all(Shard::is_quiet)) else {
                return;
            };
            self.tick(at.saturating_sub(self.now));
        }
    }

    fn tick(&mut self, ns: u64) {
        self.now += ns;
        self.timer = None;
        self.inputs.iter_mut().for_each(|batch| batch.push(Input::Timer));
        self.turn();
    }
}

/// Asserts that ten runs of `path` on new shards allocate nothing.
fn none(
    shards: u16,
    bios_max: u32,
    change: impl Fn(&mut QueueOptions),
    path: impl Fn(&mut Harness),
) {
    let mut queue = QueueOptions::default();
    change(&mut queue);
    for joined in [false, true] {
        count(&mut Harness::new(shards, bios_max, queue, joined), &path);
    }
    // The same with slots by weight, on both kinds of disks.
    for rotational in [false, true] {
        let queue = QueueOptions { scheduler: Scheduler::Bfq, rotational, ..queue };
        count(&mut Harness::new(shards, bios_max, queue, rotational), &path);
    }
}

fn count(harness: &mut Harness, path: &impl Fn(&mut Harness)) {
    let before = ALLOCATIONS.with(Cell::get);
    for round in 0..10 {
        path(harness);
        harness.finish();
        let made = ALLOCATIONS.with(Cell::get) - before;
        assert_eq!(made, 0, "allocations up to round {round}");
        assert!(harness.shards.iter().all(Shard::is_quiet));
    }
    assert!(harness.answers >= harness.sequence, "every bio was answered");
}

/// Sends `count` bios of 4 KiB, `stride` bytes apart.
fn batch(harness: &mut Harness, op: Op, flags: BioFlags, count: u64, stride: u64) {
    for n in 0..count {
        harness.bio(op, flags, n * stride, 4096);
    }
    harness.turn();
}

const NONE: BioFlags = BioFlags::NONE;
const MIB: u64 = 1 << 20;

#[test]
fn allocations_are_counted() {
    let before = ALLOCATIONS.with(Cell::get);
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(ALLOCATIONS.with(Cell::get), before + 1);
}

#[test]
fn reads_and_writes_do_not_allocate() {
    none(
        1,
        32,
        |_| (),
        |harness| {
            batch(harness, Op::Read, NONE, 32, MIB);
            harness.finish();
            batch(harness, Op::Write, NONE, 32, MIB);
        },
    );
}

#[test]
fn waits_for_tags_and_device_do_not_allocate() {
    for (tags, depth) in [(4, 128), (256, 4), (4, 2), (1, 1)] {
        let change = |q: &mut QueueOptions| (q.nr_requests, q.queue_depth) = (tags, depth);
        none(1, 64, change, |harness| batch(harness, Op::Read, NONE, 64, MIB));
    }
}

#[test]
fn plug_and_queue_merges_do_not_allocate() {
    let change = |q: &mut QueueOptions| q.queue_depth = 1;
    none(1, 256, change, |harness| {
        batch(harness, Op::Read, NONE, 64, 4096);
        // First the even blocks one by one, then the odd ones between them.
        for n in 0..128 {
            harness.bio(Op::Write, NONE, MIB + (2 * n % 128 + 2 * n / 128) * 4096, 4096);
            harness.turn();
        }
    });
}

#[test]
fn splitting_does_not_allocate() {
    none(
        1,
        64,
        |_| (),
        |harness| {
            (0..64).for_each(|n| harness.bio(Op::Write, NONE, n * 32 * MIB, 32 << 20));
            harness.turn();
        },
    );
    let tiny = |q: &mut QueueOptions| (q.max_segment_size, q.max_sectors_kb) = (4096, 512);
    none(1, 64, tiny, |harness| {
        (0..64).for_each(|n| harness.bio(Op::Write, NONE, n * 32 * MIB, 32 << 20));
        harness.turn();
    });
}

#[test]
fn few_bios_on_deep_device_do_not_allocate() {
    let deep = |q: &mut QueueOptions| {
        (q.nr_requests, q.queue_depth, q.max_sectors_kb) = (4096, 4096, 4);
    };
    none(1, 16, deep, |harness| {
        (0..16).for_each(|n| harness.bio(Op::Write, NONE, n * 32 * MIB, 32 << 20));
        harness.turn();
    });
}

#[test]
fn retries_and_short_transfers_do_not_allocate() {
    none(
        1,
        128,
        |_| (),
        |harness| {
            batch(harness, Op::Write, NONE, 128, 4096);
            harness.answer(Err(IoError::Medium), |_| 0);
            harness.answer(Ok(()), |_| 512);
            harness.answer(Err(IoError::NoSpace), |_| 0);
        },
    );
}

#[test]
fn refusals() {
    none(
        1,
        64,
        |_| (),
        |harness| {
            batch(harness, Op::Write, NONE, 64, MIB);
            harness.answer(Err(IoError::Busy), |_| 0);
            harness.tick(3 * MS);
        },
    );
}

#[test]
fn timed_out_and_overlapping_writes_do_not_allocate() {
    none(
        1,
        128,
        |_| (),
        |harness| {
            batch(harness, Op::Write, NONE, 64, MIB);
            harness.tick(30 * SEC);
            batch(harness, Op::Write, NONE, 64, MIB);
        },
    );
}

#[test]
fn flush_and_fua_do_not_allocate() {
    none(
        1,
        128,
        |_| (),
        |harness| {
            batch(harness, Op::Write, BioFlags::FUA, 64, MIB);
            (0..32).for_each(|_| harness.bio(Op::Flush, NONE, 0, 0));
            harness.turn();
            harness.finish();
            harness.bio(Op::Flush, NONE, 0, 0);
            harness.turn();
            harness.tick(30 * SEC);
        },
    );
}

#[test]
fn discards_and_zeroing_do_not_allocate() {
    let change = |q: &mut QueueOptions| q.discard_max_bytes = 1 << 20;
    none(1, 64, change, |harness| {
        (0..32).for_each(|n| harness.bio(Op::Discard, NONE, n * 8 * MIB, 4 << 20));
        (0..32).for_each(|n| harness.bio(Op::WriteZeroes, NONE, n * 8 * MIB, 4 << 20));
        harness.turn();
        harness.answer(Err(IoError::Unsupported), |_| 0);
    });
}

/// Every other bio has another class, so that lower levels are held back, age and set timers.
#[test]
fn deadline_sorting_with_aging_does_not_allocate() {
    for (depth, aging) in [(128, 10_000), (4, 10_000), (1, 5)] {
        let change = |q: &mut QueueOptions| {
            (q.scheduler, q.queue_depth) = (Scheduler::MqDeadline, depth);
            q.deadline.prio_aging_expire_ms = aging;
        };
        none(1, 256, change, |harness| {
            for n in 0..192 {
                let op = [Op::Read, Op::Write, Op::Discard][n as usize % 3];
                harness.bio(op, NONE, n * 7919 % 192 * MIB, 4096);
                if let Some(Input::Bio(bio)) = harness.inputs[0].last_mut() {
                    bio.ioprio = Ioprio::new(IoClass::ALL[n as usize % 2], 4);
                }
            }
            harness.turn();
            // Neighbours on both sides of the waiting requests, and refusals.
            (0..32).for_each(|n| harness.bio(Op::Write, NONE, n * MIB + 4096, 4096));
            (1..32).for_each(|n| harness.bio(Op::Write, NONE, n * MIB - 4096, 4096));
            harness.turn();
            harness.answer(Err(IoError::Busy), |_| 0);
            harness.tick(6 * MS);
            harness.tick(10 * SEC);
        });
    }
}

#[test]
fn remote_device_io_does_not_allocate() {
    for tags in [256, 4, 1] {
        let change = |q: &mut QueueOptions| q.nr_requests = tags;
        none(2, 128, change, |harness| {
            batch(harness, Op::Write, BioFlags::FUA, 64, MIB);
            batch(harness, Op::Read, NONE, 32, 4096);
            harness.answer(Err(IoError::Medium), |_| 0);
            harness.finish();
            harness.bio(Op::Write, NONE, 0, 32 << 20);
            harness.bio(Op::Read, NONE, MIB, 4096);
            harness.turn();
            harness.tick(30 * SEC);
            harness.finish();
            harness.tick(20 * MS);
        });
    }
}
