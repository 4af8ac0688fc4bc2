//! What a simulated world is made of: shards with their executors, disks, and the jobs that read every byte back.
//!
//! Invariant: all of it follows from the scenario, so new shards after a cut, a death or an upgrade are as the first ones.

use headworks::Device;
use headworks::driver::Executor;
use headworks_cache_memory::DirtyLog;
use headworks_core::prng::Prng;
use headworks_core::{Control, DeviceId, Input, Op, Shard, ShardId, VolumeId};
use headworks_testing::LateDevice;

use crate::disk::{DiskFile, DiskOptions, OverlaidDisk, OverlaidVolume, SharedDisk, keep_top};
use crate::scenario::{DeviceScenario, Scenario};
use crate::sector_pattern::SECTOR;
use crate::workload::{AccessPattern, JobOptions};

/// Operations of a reader job that flushes its volume.
pub(super) const FLUSHES: [u32; Op::COUNT] = [0, 0, 1, 0, 0, 0, 0];

/// A shard with its executor and its pending inputs.
pub(super) struct SimShard {
    pub core: Shard,
    pub executor: Executor<DirtyLog>,
    pub inbox: Vec<Input>,
    pub turn: Vec<Input>,
}

impl SimShard {
    /// Number of the first `size` inputs that make a turn: an acknowledgement of failed data has a
    /// turn of its own, so that the discarded ranges are known.
    pub fn until_acknowledge(&self, size: usize) -> usize {
        let is_one = |input: &Input| matches!(input, Input::Control(Control::Acknowledge { .. }));
        match self.inbox.iter().take(size).position(is_one) {
            None => size,
            Some(0) => 1,
            Some(before) => before,
        }
    }
}

/// Changes a shard before the simulation starts; tests install defective policies with it.
pub type Prepare = fn(&mut Shard, &Scenario, ShardId);

pub(super) fn make_disks(scenario: &Scenario) -> Vec<SharedDisk> {
    let root = Prng::new(scenario.seed);
    let devices = scenario.devices.iter().enumerate();
    let disks = devices.map(|(index, device)| {
        let volumes = scenario.volumes.iter().enumerate();
        let files = volumes.filter(|(_, volume)| usize::from(volume.device.0) == index);
        let files = files.map(|(number, volume)| DiskFile {
            volume: VolumeId(number as u16),
            size: volume.options.size,
            block_size: volume.options.block_size.max(SECTOR as u32),
            read_only: volume.options.read_only,
        });
        let overlaid = scenario.overlays_of(DeviceId(index as u16));
        let files: Vec<_> = match overlaid.is_empty() {
            true => files.collect(),
            false => overlaid.iter().map(OverlaidVolume::base).collect(),
        };
        let disk = SharedDisk::new(DiskOptions {
            queue: device.config.queue,
            files,
            model: device.model,
            faults: device.faults,
            defect: device.defect,
            overlaid: !overlaid.is_empty(),
            seed: root.split("disk").next() ^ index as u64,
        });
        for volume in scenario.layered() {
            disk.lock().preset(volume, |sector| scenario.initial(volume, sector));
        }
        for overlay in &scenario.overlays {
            let is_here = overlaid.contains(&overlay.volume);
            (0..overlay.layers).filter(|_| is_here).for_each(|_| keep_top(&disk, overlay.volume));
        }
        disk
    });
    disks.collect()
}

pub(super) fn make_shards(
    scenario: &Scenario,
    disks: &[SharedDisk],
    prepare: Prepare,
) -> Vec<SimShard> {
    let shards = (0..scenario.shards).map(|number| {
        let id = ShardId(number);
        let core = make_core(scenario, prepare, id);
        let device = |(index, device): (usize, &DeviceScenario)| {
            if device.config.owner != id {
                return None;
            }
            let made: Box<dyn Device> = match disks.get(index) {
                Some(disk) => open_device(scenario, disk, DeviceId(index as u16)),
                None => Box::new(LateDevice::new(10_000)),
            };
            Some(made)
        };
        let devices = scenario.devices.iter().enumerate().map(device).collect();
        let log = || DirtyLog::anonymous(scenario.cache.units);
        let executor = Executor::with_log(devices, scenario.cache.dirty_table.then(log));
        SimShard { core, executor, inbox: Vec::with_capacity(1024), turn: Vec::with_capacity(1024) }
    });
    shards.collect()
}

/// The device over a disk: the disk itself, or the overlays whose files it has.
fn open_device(scenario: &Scenario, disk: &SharedDisk, device: DeviceId) -> Box<dyn Device> {
    let overlaid = scenario.overlays_of(device);
    match overlaid.is_empty() {
        true => Box::new(disk.clone()),
        false => Box::new(OverlaidDisk::open(disk, &overlaid)),
    }
}

pub(super) fn make_core(scenario: &Scenario, prepare: Prepare, id: ShardId) -> Shard {
    let mut core = Shard::new(scenario.shard_config(id))
        .expect("scenarios are drawn within the options' ranges");
    prepare(&mut core, scenario, id);
    core
}

/// Bytes of each bio of a reader job.
pub(super) const STEP: u32 = 8192;

/// Number of bios of a reader job.
pub(super) fn bios_of_reader(size: u64) -> u32 {
    size.div_ceil(u64::from(STEP)) as u32
}

/// The job that reads a whole volume once.
pub(super) fn reader(scenario: &Scenario, volume: usize) -> JobOptions {
    let size = scenario.volumes[volume].options.size;
    JobOptions {
        volume: VolumeId(volume as u16),
        start: 0,
        end: size,
        block_size: STEP,
        depth: scenario.bios_max.min(8) as u16,
        batch: 8,
        bios: bios_of_reader(size),
        weights: [1, 0, 0, 0, 0, 0, 0],
        sizes: [STEP; 4],
        pattern: AccessPattern::Once,
        ..JobOptions::default()
    }
}
