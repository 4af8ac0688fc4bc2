//! Speed of the simulation: one shard and a null device.
//!
//! With checking off, data are not touched and the rest is the path, the executor, the event loop
//! and the hash of every input and action. With the oracle every sector of every bio is filled,
//! copied and checked. The goals are 1M and 200k simulated I/Os per real second.

use headworks_core::{
    DeviceConfig, DeviceId, QueueOptions, ShardId, VolumeConfig, VolumeId, VolumeOptions,
};

use crate::check::Failure;
use crate::disk::{DiskDefect, Faults, LatencyModel};
use crate::scenario::{DeviceScenario, Scenario};
use crate::workload::{AccessPattern, JobOptions};
use crate::world::{self, Outcome};

/// Checks made during a throughput run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checking {
    /// None: the null device holds no bytes.
    Off,
    /// The oracle, over real bytes.
    Oracle,
}

/// Runs `bios` random 4 KiB reads and writes, half each, with 4 jobs of depth 32.
///
/// # Errors
/// The violated rule.
pub fn run_null(seed: u64, bios: u32, watch: Checking) -> Result<Outcome, Box<Failure>> {
    const SIZE: u64 = 16 << 20;
    let volume = VolumeConfig {
        home: ShardId(0),
        device: DeviceId(0),
        options: VolumeOptions { size: SIZE, block_size: 4096, ..VolumeOptions::default() },
    };
    let device = DeviceScenario {
        config: DeviceConfig { owner: ShardId(0), queue: QueueOptions::default() },
        model: LatencyModel::Immediate,
        faults: Faults::default(),
        defect: DiskDefect::None,
    };
    let job = JobOptions {
        volume: VolumeId(0),
        start: 0,
        end: SIZE,
        block_size: 4096,
        depth: 32,
        batch: 32,
        bios: bios / 4,
        // A few flushes, as a database issues them; they also let the oracle drop old versions.
        weights: [1_000, 1_000, 2, 0, 0, 0, 0],
        sizes: [4096; 4],
        pattern: AccessPattern::Random,
        fua: 0,
        flags: 0,
        malformed: 0,
        think_ns: 0,
        ..JobOptions::default()
    };
    let scenario = Scenario::plain(seed, vec![device], vec![volume], vec![job; 4]);
    world::run(Scenario { checked: watch == Checking::Oracle, ..scenario })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bios_are_answered_with_and_without_oracle() {
        for watch in [Checking::Off, Checking::Oracle] {
            let outcome = run_null(1, 4_000, watch).unwrap();
            assert!(outcome.bios >= 4_000);
        }
    }
}
