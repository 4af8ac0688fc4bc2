//! Nothing is allocated after start-up: not in the first batch, not on the paths of waiting, failing and giving up.
//!
//! A counting allocator watches this thread from the moment a shard is made, or its device has joined; every test then runs a path by hand with arrays.

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

/// Room for more than any test has in flight; made before counting starts.
struct Desk {
    shards: Vec<Shard>,
    inputs: Vec<Vec<Input>>,
    flying: Vec<Submit>,
    now: u64,
    sequence: u64,
    answers: u64,
    timer: Option<u64>,
}

impl Desk {
    /// Shards of one device with one volume, which are there from the start or have `joined` later.
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
            flying: Vec::with_capacity(10_000),
            now: MS,
            sequence: 0,
            answers: 0,
            timer: None,
        }
    }

    /// A bio for the next batch of its shard.
    fn bio(&mut self, op: Op, flags: BioFlags, offset: u64, len: u32) {
        self.sequence += 1;
        // Of many connections and some exports, so that shares are counted wherever somebody waits.
        let id = BioId {
            sequence: self.sequence,
            connection: (self.sequence % 41) as u32,
            export: ExportId((self.sequence % 3) as u16),
            ..BioId::default()
        };
        let home = self.inputs.len() - 1;
        self.inputs[home].push(Input::Bio(Bio { id, offset, len, op, flags, ..Bio::default() }));
    }

    /// Runs every shard's batch, and the messages that come of it, until nobody has anything to do.
    fn turn(&mut self) {
        while self.inputs.iter().any(|batch| !batch.is_empty()) {
            for shard in 0..self.shards.len() {
                self.shards[shard].handle(Instant(self.now), &self.inputs[shard]);
                self.inputs[shard].clear();
                for action in &self.shards[shard].actions().list {
                    match *action {
                        Action::Submit(submit) => self.flying.push(submit),
                        Action::Reply { .. } => self.answers += 1,
                        Action::Timer { at } => self.timer = Some(at.0),
                        Action::Notice(_) => {}
                        // Nothing is cached here.
                        Action::Data { .. }
                        | Action::Copy { .. }
                        | Action::Zero { .. }
                        | Action::Move { .. } => {}
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

    /// Everything in flight is answered in one batch.
    fn answer(&mut self, status: Status, moved: impl Fn(&Submit) -> u32) {
        for submit in self.flying.drain(..) {
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
        while !self.flying.is_empty() {
            self.answer(Ok(()), |submit| submit.len);
        }
    }

    fn tick(&mut self, ns: u64) {
        self.now += ns;
        self.timer = None;
        self.inputs.iter_mut().for_each(|batch| batch.push(Input::Timer));
        self.turn();
    }
}

/// Runs `path` ten times on new shards and counts from the first time on.
fn none(shards: u16, bios_max: u32, change: impl Fn(&mut QueueOptions), path: impl Fn(&mut Desk)) {
    let mut queue = QueueOptions::default();
    change(&mut queue);
    for joined in [false, true] {
        count(&mut Desk::new(shards, bios_max, queue, joined), &path);
    }
}

fn count(desk: &mut Desk, path: &impl Fn(&mut Desk)) {
    let before = ALLOCATIONS.with(Cell::get);
    for round in 0..10 {
        path(desk);
        desk.finish();
        let made = ALLOCATIONS.with(Cell::get) - before;
        assert_eq!(made, 0, "allocations up to round {round}");
        assert!(desk.shards.iter().all(Shard::is_quiet));
    }
    assert!(desk.answers >= desk.sequence, "everybody was answered");
}

/// `count` bios of 4 KiB, `stride` apart.
fn batch(desk: &mut Desk, op: Op, flags: BioFlags, count: u64, stride: u64) {
    for n in 0..count {
        desk.bio(op, flags, n * stride, 4096);
    }
    desk.turn();
}

const NONE: BioFlags = BioFlags::NONE;
const MIB: u64 = 1 << 20;

#[test]
fn the_allocator_is_watched() {
    let before = ALLOCATIONS.with(Cell::get);
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(ALLOCATIONS.with(Cell::get), before + 1);
}

#[test]
fn plain_reads_and_writes() {
    none(
        1,
        32,
        |_| (),
        |desk| {
            batch(desk, Op::Read, NONE, 32, MIB);
            desk.finish();
            batch(desk, Op::Write, NONE, 32, MIB);
        },
    );
}

#[test]
fn waiting_for_tags_and_for_the_device() {
    for (tags, depth) in [(4, 128), (256, 4), (4, 2), (1, 1)] {
        let change = |q: &mut QueueOptions| (q.nr_requests, q.queue_depth) = (tags, depth);
        none(1, 64, change, |desk| batch(desk, Op::Read, NONE, 64, MIB));
    }
}

#[test]
fn merging_in_the_plug_and_in_the_queue() {
    let change = |q: &mut QueueOptions| q.queue_depth = 1;
    none(1, 256, change, |desk| {
        batch(desk, Op::Read, NONE, 64, 4096);
        // The even blocks first, one by one, then the odd ones between them.
        for n in 0..128 {
            desk.bio(Op::Write, NONE, MIB + (2 * n % 128 + 2 * n / 128) * 4096, 4096);
            desk.turn();
        }
    });
}

#[test]
fn splitting_into_pieces_and_segments() {
    none(
        1,
        64,
        |_| (),
        |desk| {
            (0..64).for_each(|n| desk.bio(Op::Write, NONE, n * 32 * MIB, 32 << 20));
            desk.turn();
        },
    );
    let tiny = |q: &mut QueueOptions| (q.max_segment_size, q.max_sectors_kb) = (4096, 512);
    none(1, 64, tiny, |desk| {
        (0..64).for_each(|n| desk.bio(Op::Write, NONE, n * 32 * MIB, 32 << 20));
        desk.turn();
    });
}

#[test]
fn few_bios_on_a_deep_device() {
    let deep = |q: &mut QueueOptions| {
        (q.nr_requests, q.queue_depth, q.max_sectors_kb) = (4096, 4096, 4);
    };
    none(1, 16, deep, |desk| {
        (0..16).for_each(|n| desk.bio(Op::Write, NONE, n * 32 * MIB, 32 << 20));
        desk.turn();
    });
}

#[test]
fn errors_with_one_by_one_retry_and_short_transfers() {
    none(
        1,
        128,
        |_| (),
        |desk| {
            batch(desk, Op::Write, NONE, 128, 4096);
            desk.answer(Err(IoError::Medium), |_| 0);
            desk.answer(Ok(()), |_| 512);
            desk.answer(Err(IoError::NoSpace), |_| 0);
        },
    );
}

#[test]
fn refusals() {
    none(
        1,
        64,
        |_| (),
        |desk| {
            batch(desk, Op::Write, NONE, 64, MIB);
            desk.answer(Err(IoError::Busy), |_| 0);
            desk.tick(3 * MS);
        },
    );
}

#[test]
fn time_outs_and_writes_that_come_too_near() {
    none(
        1,
        128,
        |_| (),
        |desk| {
            batch(desk, Op::Write, NONE, 64, MIB);
            desk.tick(30 * SEC);
            batch(desk, Op::Write, NONE, 64, MIB);
        },
    );
}

#[test]
fn flush_and_fua() {
    none(
        1,
        128,
        |_| (),
        |desk| {
            batch(desk, Op::Write, BioFlags::FUA, 64, MIB);
            (0..32).for_each(|_| desk.bio(Op::Flush, NONE, 0, 0));
            desk.turn();
            desk.finish();
            desk.bio(Op::Flush, NONE, 0, 0);
            desk.turn();
            desk.tick(30 * SEC);
        },
    );
}

#[test]
fn discards_and_zeroes() {
    let change = |q: &mut QueueOptions| q.discard_max_bytes = 1 << 20;
    none(1, 64, change, |desk| {
        (0..32).for_each(|n| desk.bio(Op::Discard, NONE, n * 8 * MIB, 4 << 20));
        (0..32).for_each(|n| desk.bio(Op::WriteZeroes, NONE, n * 8 * MIB, 4 << 20));
        desk.turn();
        desk.answer(Err(IoError::Unsupported), |_| 0);
    });
}

/// Every other bio is of another class, so that lower ones are held back, age and are woken for.
#[test]
fn sorting_with_levels_and_deadlines() {
    for (depth, aging) in [(128, 10_000), (4, 10_000), (1, 5)] {
        let change = |q: &mut QueueOptions| {
            (q.scheduler, q.queue_depth) = (Scheduler::MqDeadline, depth);
            q.deadline.prio_aging_expire_ms = aging;
        };
        none(1, 256, change, |desk| {
            for n in 0..192 {
                let op = [Op::Read, Op::Write, Op::Discard][n as usize % 3];
                desk.bio(op, NONE, n * 7919 % 192 * MIB, 4096);
                if let Some(Input::Bio(bio)) = desk.inputs[0].last_mut() {
                    bio.ioprio = Ioprio::new(IoClass::ALL[n as usize % 2], 4);
                }
            }
            desk.turn();
            // Neighbours on both sides of what waits, and refusals.
            (0..32).for_each(|n| desk.bio(Op::Write, NONE, n * MIB + 4096, 4096));
            (1..32).for_each(|n| desk.bio(Op::Write, NONE, n * MIB - 4096, 4096));
            desk.turn();
            desk.answer(Err(IoError::Busy), |_| 0);
            desk.tick(6 * MS);
            desk.tick(10 * SEC);
        });
    }
}

#[test]
fn another_shards_device() {
    for tags in [256, 4, 1] {
        let change = |q: &mut QueueOptions| q.nr_requests = tags;
        none(2, 128, change, |desk| {
            batch(desk, Op::Write, BioFlags::FUA, 64, MIB);
            batch(desk, Op::Read, NONE, 32, 4096);
            desk.answer(Err(IoError::Medium), |_| 0);
            desk.finish();
            desk.bio(Op::Write, NONE, 0, 32 << 20);
            desk.bio(Op::Read, NONE, MIB, 4096);
            desk.turn();
            desk.tick(30 * SEC);
            desk.finish();
            desk.tick(20 * MS);
        });
    }
}
