//! Batch dispatch must not cost merges when the device is full (Ming Lei's objection of 2025).
//!
//! A dispatched request is no longer sorted, and in other designs not merged either; a full device that returns busy makes that
//! worse. Here a batch is never larger than the room in the device, and a request that a busy device refused may merge until
//! its retry. So batches must merge as well as the same elevator that dispatches one request at a time:
//!
//! ```text
//!   64 writers, each one bio at a time ---> queue, mq-deadline ---> device: depth 4, busy for one in ten
//!   (each takes the next 4 KiB of one of several files)
//! ```

use headworks_core::elevator::{self, Batch, Elevator, EndedRequest, MergeEdge};
use headworks_core::prng::Prng;
use headworks_core::request::{SlotId, Slots};
use headworks_core::time::{MS, US};
use headworks_core::{
    Action, Bio, BioId, Completion, DeviceId, Input, Instant, IoError, Op, QueueOptions, RequestId,
    Scheduler, Shard, ShardConfig, VolumeId, VolumeOptions,
};

const DEPTH: u32 = 4;
const WRITERS: u32 = 64;
const BIOS: u64 = 20_000;
const BLOCK: u64 = 4096;

/// An elevator that dispatches one request each time.
struct OneByOne {
    inner: Box<dyn Elevator>,
    one: Batch,
}

impl Elevator for OneByOne {
    fn insert(&mut self, now: Instant, slots: &mut Slots, ids: &[SlotId]) {
        self.inner.insert(now, slots, ids);
    }

    fn dispatch(&mut self, now: Instant, slots: &mut Slots, batch: &mut Batch) -> usize {
        self.one.reset(1);
        let count = self.inner.dispatch(now, slots, &mut self.one);
        self.one.ids().iter().for_each(|&id| batch.push(id));
        count
    }

    fn on_complete(&mut self, now: Instant, slots: &Slots, done: &[EndedRequest]) {
        self.inner.on_complete(now, slots, done);
    }

    fn remove(&mut self, slots: &mut Slots, id: SlotId) {
        self.inner.remove(slots, id);
    }

    fn on_merge(&mut self, slots: &mut Slots, kept: SlotId, gone: Option<SlotId>, edge: MergeEdge) {
        self.inner.on_merge(slots, kept, gone, edge);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.inner.next_timeout()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dispatch {
    Batches,
    OneByOne,
}

/// The number of files that the writers share, and the behavior of the device.
#[derive(Clone, Copy, Debug)]
struct Load {
    files: u64,
    /// Most commands that complete together.
    together: u64,
    /// One in this many commands fails with busy.
    busy_one_in: u64,
}

struct World {
    shard: Shard,
    prng: Prng,
    load: Load,
    now: u64,
    timer: Option<u64>,
    in_flight: Vec<(RequestId, u32)>,
    /// Dispatched requests that failed with busy and wait for a retry.
    refused: u32,
    /// The next block of each file.
    next: Vec<u64>,
    bios: u64,
    requests: u64,
}

impl World {
    fn new(load: Load, dispatch: Dispatch, seed: u64) -> Self {
        let queue = QueueOptions {
            queue_depth: DEPTH,
            scheduler: Scheduler::MqDeadline,
            ..QueueOptions::default()
        };
        let volume = VolumeOptions { size: 1 << 40, block_size: 512, ..VolumeOptions::default() };
        let mut config = ShardConfig::single(queue, volume, WRITERS);
        config.volumes = vec![config.volumes[0]; load.files as usize];
        let mut shard = Shard::new(config).expect("a valid configuration");
        if dispatch == Dispatch::OneByOne {
            let inner = elevator::make(&queue, WRITERS);
            let one = Batch::with_capacity(1);
            shard.set_elevator(DeviceId(0), Box::new(OneByOne { inner, one }));
        }
        Self {
            shard,
            prng: Prng::new(seed),
            load,
            now: MS,
            timer: None,
            in_flight: Vec::new(),
            refused: 0,
            next: vec![0; load.files as usize],
            bios: 0,
            requests: 0,
        }
    }

    /// Submits a writer's next bio, the next block of its file, in a batch of its own, so that nothing merges in the plug.
    fn write(&mut self, writer: u64) {
        let file = writer % self.load.files;
        let offset = self.next[file as usize] * BLOCK;
        self.next[file as usize] += 1;
        self.bios += 1;
        let id = BioId {
            connection: writer as u32,
            volume: VolumeId(file as u16),
            sequence: writer,
            ..BioId::default()
        };
        let bio = Bio { id, offset, len: BLOCK as u32, op: Op::Write, ..Bio::default() };
        self.turn(&[Input::Bio(bio)]);
    }

    fn turn(&mut self, inputs: &[Input]) {
        self.shard.handle(Instant(self.now), inputs);
        let list = self.shard.actions().list.clone();
        self.shard.clear_actions();
        let mut again = Vec::new();
        for action in list {
            match action {
                Action::Submit(submit) => {
                    // Retries go before all other requests.
                    match self.refused {
                        0 => self.requests += 1,
                        _ => self.refused -= 1,
                    }
                    self.in_flight.push((submit.id, submit.len));
                    // E6: at most `DEPTH` requests are outside the elevator.
                    assert!(self.in_flight.len() as u32 + self.refused <= DEPTH);
                }
                Action::Reply { id, status, .. } => {
                    assert_eq!(status, Ok(()));
                    again.push(id.sequence);
                }
                Action::Timer { at } => self.timer = Some(at.0),
                other => panic!("{other:?}"),
            }
        }
        for writer in again {
            if self.bios < BIOS {
                // A writer thinks before its next write.
                self.now += self.prng.below(2 * US);
                self.write(writer);
            }
        }
    }

    /// Completes some of the commands in flight.
    fn answer(&mut self) {
        let count = self.prng.between(1, self.load.together).min(self.in_flight.len() as u64);
        let mut inputs = Vec::new();
        for _ in 0..count {
            let at = self.prng.below(self.in_flight.len() as u64) as usize;
            let (id, len) = self.in_flight.remove(at);
            let busy = self.prng.below(self.load.busy_one_in) == 0;
            let (status, transferred) = if busy { (Err(IoError::Busy), 0) } else { (Ok(()), len) };
            self.refused += u32::from(busy);
            inputs.push(Input::Complete {
                device: DeviceId(0),
                completion: Completion { id, transferred, status, hole: false },
            });
        }
        self.turn(&inputs);
    }

    /// Runs all writers; returns the number of requests per bio.
    fn run(mut self) -> f64 {
        (0..WRITERS.into()).for_each(|writer| self.write(writer));
        while !self.shard.is_idle() {
            self.now += 50 * US;
            match self.timer.filter(|&at| at <= self.now || self.in_flight.is_empty()) {
                Some(at) => {
                    self.now = self.now.max(at);
                    self.timer = None;
                    self.turn(&[Input::Timer]);
                }
                None => self.answer(),
            }
        }
        assert!(self.shard.is_quiet() && self.bios == BIOS && self.refused == 0);
        self.requests as f64 / self.bios as f64
    }
}

/// E5 and E6.
#[test]
fn batches_merge_as_well_as_single_dispatch_when_device_is_full() {
    for (files, together, busy_one_in) in
        [(1, 1, 10), (1, 4, 10), (4, 1, 10), (4, 4, 10), (16, 4, 10), (4, 4, 3), (64, 4, 10)]
    {
        let load = Load { files, together, busy_one_in };
        let ratio =
            |dispatch| (0..3).map(|seed| World::new(load, dispatch, seed).run()).sum::<f64>() / 3.0;
        let (batches, one_by_one) = (ratio(Dispatch::Batches), ratio(Dispatch::OneByOne));
        assert!(batches <= one_by_one * 1.02, "{load:?}: {batches} against {one_by_one}");
        assert!(files == 64 || batches < 0.9, "{load:?}: too little was merged");
    }
}
