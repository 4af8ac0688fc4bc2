//! The old tag policies allocate nothing after start-up.
//!
//! A counting allocator watches this thread while bios of eight pieces wait for tags, tag by tag, on one shard and on two.

use crate::baseline::{TagPolicy, WakeOptions};
use crate::cli::allocations;
use headworks_core::time::MS;
use headworks_core::{
    Action, Bio, BioId, CacheOptions, Completion, DeviceConfig, DeviceId, Input, Instant, Op,
    QueueOptions, Shard, ShardConfig, ShardId, SpareSlots, Submit, VolumeConfig, VolumeOptions,
};

/// Shards of one device, with one volume at the last shard.
struct Shards {
    shards: Vec<Shard>,
    inputs: Vec<Vec<Input>>,
    in_flight: Vec<Submit>,
    now: u64,
    timer: Option<u64>,
    submitted: u64,
    answered: u64,
}

impl Shards {
    fn new(count: u16, policy: TagPolicy, queue: QueueOptions) -> Self {
        let options = VolumeOptions { size: 1 << 40, block_size: 512, ..VolumeOptions::default() };
        let config = |id| ShardConfig {
            id: ShardId(id),
            shards: count,
            bios_max: 64,
            devices: vec![DeviceConfig { owner: ShardId(0), queue }],
            volumes: vec![VolumeConfig { home: ShardId(count - 1), device: DeviceId(0), options }],
            exports: Vec::new(),
            tenants: Vec::new(),
            cache: CacheOptions::default(),
            dirty: Default::default(),
            spare: SpareSlots::default(),
        };
        let mut shards: Vec<Shard> =
            (0..count).map(|id| Shard::new(config(id)).expect("a valid configuration")).collect();
        policy.install(&mut shards[0], DeviceId(0), WakeOptions::default());
        Self {
            inputs: shards.iter().map(|_| Vec::with_capacity(10_000)).collect(),
            shards,
            in_flight: Vec::with_capacity(10_000),
            now: MS,
            timer: None,
            submitted: 0,
            answered: 0,
        }
    }

    fn write(&mut self, offset: u64, len: u32) {
        self.submitted += 1;
        let connection = (self.submitted % 41) as u32;
        let id = BioId { sequence: self.submitted, connection, ..BioId::default() };
        let bio = Bio { id, offset, len, op: Op::Write, ..Bio::default() };
        self.inputs.last_mut().expect("there is a shard").push(Input::Bio(bio));
    }

    /// Runs all shards until no input is left.
    fn turn(&mut self) {
        while self.inputs.iter().any(|batch| !batch.is_empty()) {
            for shard in 0..self.shards.len() {
                self.shards[shard].handle(Instant(self.now), &self.inputs[shard]);
                self.inputs[shard].clear();
                for action in &self.shards[shard].actions().list {
                    match *action {
                        Action::Submit(submit) => self.in_flight.push(submit),
                        Action::Reply { .. } => self.answered += 1,
                        Action::Timer { at } => self.timer = Some(at.0),
                        Action::Send { to, message } => {
                            let from = ShardId(shard as u16);
                            self.inputs[usize::from(to.0)].push(Input::Message { from, message });
                        }
                        _ => {}
                    }
                }
                self.shards[shard].clear_actions();
            }
        }
    }

    /// Completes commands and fires timers until neither is left.
    fn run_out(&mut self) {
        loop {
            while !self.in_flight.is_empty() {
                for Submit { id, device, len, .. } in self.in_flight.drain(..) {
                    let completion =
                        Completion { id, transferred: len, status: Ok(()), hole: false };
                    self.inputs[0].push(Input::Complete { device, completion });
                }
                self.turn();
            }
            let Some(at) = self.timer.take() else {
                return;
            };
            self.now = self.now.max(at);
            self.inputs.iter_mut().for_each(|batch| batch.push(Input::Timer));
            self.turn();
        }
    }
}

#[test]
fn sleeping_and_waking_tasks_allocate_nothing() {
    for (policy, nr_requests) in [
        (TagPolicy::Legacy518, 64),
        (TagPolicy::Legacy518, 4),
        (TagPolicy::KuaiV3, 62),
        (TagPolicy::KuaiV3, 1),
    ] {
        for (count, bios) in [(1, 64), (2, 32)] {
            let queue =
                QueueOptions { nr_requests, max_sectors_kb: 128, ..QueueOptions::default() };
            let mut shards = Shards::new(count, policy, queue);
            let before = allocations::count();
            for round in 0..10 {
                (0..bios).for_each(|n| shards.write((n * 8) << 20, 1 << 20));
                shards.turn();
                shards.run_out();
                let made = allocations::count() - before;
                assert_eq!(made, 0, "allocations up to round {round}");
                assert!(shards.shards.iter().all(Shard::is_quiet));
            }
            assert_eq!(shards.answered, shards.submitted, "every bio was answered");
        }
    }
}
