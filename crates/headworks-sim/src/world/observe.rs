//! What the checkers learn of shards and disks: completions before a turn, failures after it, counters at the end.

use headworks_core::{Control, Input, Shard, ShardId, VolumeId};

use super::make::SimShard;
use crate::coverage::{Coverage, Point};
use crate::disk::{Disk, Fault};
use crate::environment::Environment;

/// Processes completions and acknowledgements before the shard sees them.
pub(super) fn observe_inputs(env: &mut Environment, shard: &SimShard) {
    for input in &shard.turn {
        match *input {
            Input::Complete { device, completion } => {
                env.complete(device, completion.id, completion.status);
            }
            Input::Control(Control::Acknowledge { volume }) => {
                discard_failed(env, &shard.core, volume)
            }
            _ => {}
        }
    }
}

/// Records the write-out failures that a shard's cache knows after a turn.
pub(super) fn observe_failures(env: &mut Environment, shard: &SimShard, id: ShardId) {
    for index in 0..env.scenario.volumes.len() {
        let volume = VolumeId(index as u16);
        if env.scenario.volumes[index].home == id && env.owed_errors.has_unreported(volume) {
            let mut held = Vec::new();
            shard.core.failed_ranges(volume, &mut held);
            env.record_failures(volume, &held);
        }
    }
}

/// Marks the failed ranges of `volume` as discarded.
fn discard_failed(env: &mut Environment, shard: &Shard, volume: VolumeId) {
    let mut ranges = Vec::new();
    shard.failed_ranges(volume, &mut ranges);
    for (offset, len, _) in ranges {
        env.discard_failed(volume, offset, len);
    }
}

/// Counts what a disk did.
pub(super) fn count_disk(coverage: &mut Coverage, disk: &Disk) {
    let counters = disk.counters();
    let faults = [
        (Fault::Busy, Point::FaultBusy),
        (Fault::Late, Point::FaultLate),
        (Fault::Medium, Point::FaultMedium),
        (Fault::NoSpace, Point::FaultNoSpace),
        (Fault::Short, Point::FaultShort),
        (Fault::Nothing, Point::FaultNothing),
        (Fault::Flush, Point::FaultFlush),
        (Fault::Zeroes, Point::FaultZeroes),
        (Fault::BadRange, Point::FaultBadRange),
    ];
    for (fault, point) in faults {
        coverage.add(point, counters.faults[fault as usize]);
    }
    coverage.add(Point::PowerCutTorn, counters.torn);
    coverage.add(Point::RequestRequeued, counters.requeued);
    coverage.add(Point::RequestContinued, counters.continued);
    coverage.add(Point::DeviceFlush, counters.commands[2]);
    coverage.add(Point::DeviceDiscard, counters.commands[3]);
    coverage.add(Point::DeviceWriteZeroes, counters.commands[4]);
    coverage.add(Point::DeviceBlockStatus, counters.commands[6]);
    coverage.add(Point::DeviceFua, counters.fua);
    coverage.add(Point::DeviceZerosAsData, counters.zeros_as_data);
}
