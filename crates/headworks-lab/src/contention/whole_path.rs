//! The baseline with the complete path: the same shard as the product's, entered by every job under
//! one lock.
//!
//! ```text
//!   a job:   --lock: bios in, commands out--   issue them to the device   --lock: completions in, answers out--
//!            for each of the 8 bios, or for the 8 together
//! ```
//!
//! The bare elevator of `locked` has no gate, time-outs, statistics or errors; here they are the
//! product's code. So the difference to the rings is the lock and the batches only. Devices are
//! called without the lock. The shard's timer is not driven: no command is outstanding for longer
//! than a list.

use headworks::{Command, NullDevice};
use headworks_core::{
    Action, Bio, BioFlags, BioId, Completion, DeviceId, Input, Instant, Op, Shard, ShardConfig,
    VolumeId, VolumeOptions,
};

use super::job::BLOCK;
use super::lock::{Lock, LockCounts, Purpose};
use super::locked::issue;
use super::window::{Path, Window};
use super::{CellLoad, Dispatch};

/// A shard with the latest time of any call: jobs read the clock before they take the lock, and a
/// shard's time does not go back.
pub(super) struct TimedShard {
    shard: Shard,
    latest: Instant,
}

/// Runs the jobs until they stop, and `meanwhile` on this thread.
///
/// # Errors
/// The shard rejects its configuration.
pub(super) fn run<L: Lock<TimedShard> + Send>(
    load: &CellLoad<'_>,
    dispatch: Dispatch,
    meanwhile: impl FnOnce(),
) -> Result<(u64, LockCounts), String> {
    let volume = VolumeOptions { size: load.size, block_size: 1, ..VolumeOptions::default() };
    let config = ShardConfig::single(load.queue, volume, load.jobs * load.iodepth);
    let shard = Shard::new(config).map_err(|error| error.to_string())?;
    let lock = L::new(TimedShard { shard, latest: Instant(0) });
    Ok(load.run_jobs(|| ShardPath::new(load, &lock, dispatch), meanwhile))
}

struct ShardPath<'a, L> {
    lock: &'a L,
    /// Number of bios that enter together.
    step: usize,
    /// Slots of a job, which is a connection.
    depth: u32,
    inputs: Vec<Input>,
    commands: Vec<Command>,
    completions: Vec<Completion>,
    device: NullDevice,
}

impl<'a, L: Lock<TimedShard>> ShardPath<'a, L> {
    fn new(load: &CellLoad<'_>, lock: &'a L, dispatch: Dispatch) -> Self {
        // A call may dispatch other jobs' requests: as many as the device takes.
        let most = load.queue.queue_depth as usize;
        Self {
            lock,
            depth: load.iodepth,
            step: match dispatch {
                Dispatch::OneByOne => 1,
                Dispatch::Batch => load.batch as usize,
            },
            inputs: Vec::with_capacity(most),
            commands: Vec::with_capacity(most),
            completions: Vec::with_capacity(most),
            device: NullDevice,
        }
    }

    /// Calls the shard once under the lock.
    fn call(
        &mut self,
        now: Instant,
        purpose: Purpose,
        window: &mut Window<'_>,
        locks: &mut LockCounts,
    ) {
        let (inputs, commands) = (&mut self.inputs, &mut self.commands);
        self.lock.hold(purpose, locks, |TimedShard { shard, latest }| {
            *latest = now.max(*latest);
            shard.handle(*latest, inputs);
            for action in &shard.actions().list {
                match *action {
                    Action::Submit(submit) => commands.push(Command {
                        id: submit.id,
                        volume: submit.volume,
                        op: submit.op,
                        flags: submit.flags,
                        offset: submit.offset,
                        len: submit.len,
                        first_span: 0,
                        spans: 0,
                    }),
                    Action::Reply { id, status, .. } => {
                        assert!(status.is_ok(), "a null device does not fail");
                        window.answer(id.sequence as u32);
                    }
                    _ => {}
                }
            }
            shard.clear_actions();
        });
        inputs.clear();
        window.deliver();
    }
}

fn bio(connection: u32, slot: u32, offset: u64) -> Bio {
    Bio {
        id: BioId { connection, sequence: slot.into(), volume: VolumeId(0), ..BioId::default() },
        offset,
        len: BLOCK,
        op: Op::Write,
        flags: BioFlags::SYNC,
        ..Bio::default()
    }
}

impl<L: Lock<TimedShard>> Path for ShardPath<'_, L> {
    fn submit(
        &mut self,
        now: Instant,
        batch: &[(u32, u64)],
        window: &mut Window<'_>,
        locks: &mut LockCounts,
    ) {
        let depth = self.depth;
        for bios in batch.chunks(self.step) {
            self.inputs.extend(
                bios.iter().map(|&(slot, offset)| Input::Bio(bio(slot / depth, slot, offset))),
            );
            self.call(now, Purpose::Insert, window, locks);
            // Completions free tags and device slots, so they may dispatch more.
            while !self.commands.is_empty() {
                issue(&mut self.device, now, &mut self.commands, &mut self.completions);
                let device = DeviceId(0);
                let completed = |completion| Input::Complete { device, completion };
                self.inputs.extend(self.completions.drain(..).map(completed));
                self.call(now, Purpose::Dispatch, window, locks);
            }
        }
    }
}
