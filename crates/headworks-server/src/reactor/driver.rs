//! The shard of a thread with what carries its actions out.
//!
//! Inputs are collected with [`ShardDriver::push`] and handled in order by [`ShardDriver::step`]. Invariant: every list of
//! actions is carried out before the shard sees the next input. What devices that complete at once add is handled for a bounded number of rounds:
//! clients are looked at in between, however many steps a command has.

use std::collections::BTreeMap;

use headworks::driver::{ActionSink as _, DiskDone, DiskQueue, Executor};
use headworks::house::fetch_ahead;
use headworks_cache_memory::DirtyLog;
use headworks_core::cache::CacheContents;
use headworks_core::{Change, ChangeError, DeviceId, ExportId, Input, Instant, Shard, VolumeId};

use super::shard_io::ShardIo;
use crate::observe::recorder::Recorder;

/// Rounds of a step. 8: a cached request that misses takes 4, and 8 MiB of zeroing in memory some 0.8 ms.
const ROUNDS_MAX: usize = 8;

/// A shard, its executor, its record and the inputs that it has not seen yet.
pub struct ShardDriver {
    shard: Shard,
    executor: Executor<DirtyLog>,
    recorder: Option<Recorder>,
    inputs: Vec<Input>,
    /// The batch that is being handled; its memory is kept.
    batch: Vec<Input>,
    /// A device, volume or export changed: the shard must run even without an input.
    changed: bool,
    /// Inputs that the shard has seen since the start.
    handled: u64,
}

impl ShardDriver {
    /// A driver without inputs.
    #[must_use]
    pub fn new(shard: Shard, executor: Executor<DirtyLog>, recorder: Option<Recorder>) -> Self {
        let (inputs, batch) = (Vec::with_capacity(4096), Vec::with_capacity(4096));
        Self { shard, executor, recorder, inputs, batch, changed: false, handled: 0 }
    }

    /// The shard, to be read.
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Measures the smallest latency of a device for a minute; returns what is known of it. It changes no decision of the shard.
    pub fn watch_smallest_latency(&mut self, now: Instant, device: DeviceId) -> Option<u64> {
        self.shard.watch_smallest_latency(now, device)
    }

    /// The executor with the shard's devices.
    pub fn executor(&mut self) -> &mut Executor<DirtyLog> {
        &mut self.executor
    }

    /// Appends an input for the next step.
    pub fn push(&mut self, input: Input) {
        self.inputs.push(input);
    }

    /// The inputs of the next step, for connections that append theirs.
    pub fn inputs(&mut self) -> &mut Vec<Input> {
        &mut self.inputs
    }

    /// Number of inputs that wait for the next step.
    pub fn waiting_inputs(&self) -> usize {
        self.inputs.len()
    }

    /// Inputs that the shard has seen since the start: requests, and the ends of commands.
    pub fn handled(&self) -> u64 {
        self.handled
    }

    /// Whether inputs or changes wait for the next step.
    pub fn has_inputs(&self) -> bool {
        !self.inputs.is_empty() || self.changed
    }

    /// Earliest time at which a device wants to be called; none if no device does.
    pub fn next_timeout(&mut self) -> Option<Instant> {
        self.executor.next_timeout()
    }

    /// Passes a completed operation of the engine to its device.
    pub fn on_disk(&mut self, now: Instant, done: DiskDone, disk: &mut dyn DiskQueue) {
        self.executor.on_disk(now, done, disk, &mut self.inputs);
    }

    /// Calls a device, one of whose descriptors may be ready.
    pub fn on_ready(&mut self, now: Instant, place: (DeviceId, u16), disk: &mut dyn DiskQueue) {
        self.executor.on_ready(now, place, disk, &mut self.inputs);
    }

    /// Calls the devices whose time has come.
    pub fn on_timeout(&mut self, now: Instant, disk: &mut dyn DiskQueue) {
        if self.executor.next_timeout().is_some_and(|at| at <= now) {
            self.executor.on_timeout(now, disk, &mut self.inputs);
        }
    }

    /// Continues with the contents of another process's cache. What must be stored of it follows with the next step.
    ///
    /// # Errors
    /// A sentence: they do not fit this shard, which is of no use then.
    pub fn adopt_cache(
        &mut self,
        now: Instant,
        contents: &[u64],
        (volumes, exports): (&[Option<VolumeId>], &dyn Fn(VolumeId) -> ExportId),
        connections: &BTreeMap<u32, u32>,
    ) -> Result<(), String> {
        self.changed = true;
        let contents = CacheContents::decode(contents).map_err(|error| error.to_string())?;
        let volume = |old: VolumeId| volumes.get(usize::from(old.0)).copied().flatten();
        let connection = |old| connections.get(&old).copied();
        let adopted = self.shard.adopt_cache(now, &contents, volume, exports, connection);
        adopted.map_err(|error| error.to_string())
    }

    /// Changes devices, volumes or exports between two batches.
    ///
    /// # Errors
    /// The shard refuses the change.
    pub fn change(&mut self, now: Instant, change: &Change) -> Result<(), ChangeError> {
        let result = self.shard.change(now, change);
        if let Some(recorder) = &mut self.recorder {
            recorder.note_change(now, change);
        }
        self.changed = true;
        result
    }

    /// Handles inputs and carries out actions until devices that complete at once add no further input, or for [`ROUNDS_MAX`] rounds: inputs
    /// that are left then are those of the next step, before which nothing is waited for.
    pub fn step(&mut self, now: Instant, io: &mut ShardIo, disk: &mut dyn DiskQueue) {
        for _ in 0..ROUNDS_MAX {
            if self.inputs.is_empty() && !std::mem::take(&mut self.changed) {
                return;
            }
            std::mem::swap(&mut self.inputs, &mut self.batch);
            fetch_ahead(&self.shard, &self.batch, io.frames());
            self.shard.handle(now, &self.batch);
            self.handled += self.batch.len() as u64;
            if let Some(recorder) = &mut self.recorder {
                recorder.note(now, &self.batch, self.shard.actions());
            }
            self.batch.clear();
            io.now = now;
            self.executor.run(now, self.shard.actions(), io, disk, &mut self.inputs);
            self.shard.clear_actions();
        }
    }

    /// Ends the record, if one is written; returns the hash of all actions.
    ///
    /// # Errors
    /// A part of the record could not be written.
    pub fn finish_record(&mut self) -> Option<std::io::Result<u64>> {
        self.recorder.as_mut().map(Recorder::finish)
    }
}

#[cfg(test)]
mod tests {
    use headworks::{Device, MemDevice};
    use headworks_core::{Bio, BioId, ExportConfig, Op, ShardConfig, VolumeOptions};

    use super::super::fairness_tests::cached_parts;
    use super::*;
    use crate::clients::connection_id::RESTORES;

    #[test]
    fn long_discard_of_memory_lets_clients_in_between() {
        let size = 32 << 20;
        let device = || -> Box<dyn Device> { Box::new(MemDevice::new(size).unwrap()) };
        let mut parts = cached_parts(None, device(), size, 64 << 20, 0);
        let volume = VolumeOptions { size, block_size: 512, ..VolumeOptions::default() };
        let config = ShardConfig {
            exports: vec![ExportConfig::default()],
            ..ShardConfig::single(MemDevice::queue_options(), volume, 64)
        };
        let executor = Executor::with_log(vec![Some(device())], None);
        parts.driver = ShardDriver::new(Shard::new(config).unwrap(), executor, None);
        let id = BioId { connection: RESTORES, ..BioId::default() };
        let bio = Bio { id, op: Op::Discard, len: size as u32, ..Bio::default() };
        parts.driver.push(Input::Bio(bio));
        let mut steps = 0;
        while parts.driver.has_inputs() {
            parts.driver.step(Instant(0), &mut parts.io, &mut *parts.engine);
            steps += 1;
        }
        assert_eq!(parts.io.take_restored(), [(id, Ok(()))]);
        assert!(steps >= 4, "{steps} steps for 32 MiB");
    }
}
