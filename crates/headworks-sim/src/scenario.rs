//! The options of a simulated world, drawn from one seed (swarm testing): every scenario enables
//! other features, so that rare combinations occur.
//!
//! Each part draws from a stream of its own, split from the seed by name: a new draw in one part
//! does not shift the others.

use headworks_core::prng::Prng;
use headworks_core::time::{MS, SEC, US};
use headworks_core::writeback::{DirtyOptions, ThrottlePolicy};
use headworks_core::{
    BfqOptions, CacheOptions, DeadlineOptions, DeviceConfig, DeviceId, ErrorPolicy, IoClass,
    Ioprio, NoMerges, Op, QueueOptions, Scheduler, ShardConfig, ShardId, SpareSlots, VolumeConfig,
    VolumeId, VolumeOptions, WriteMode,
};

use crate::disk::{BadRange, DiskDefect, Faults, LatencyModel};
use crate::limits::LimitScenario;
use crate::oracle::{self, Contract};
use crate::sector_pattern::SECTOR;
use crate::tenants::TenantScenario;
use crate::workload::{AccessPattern, JobOptions, SectorCuts};

mod layers;
mod many_tenants;
mod memory;
mod overlays;

pub use layers::LayerScenario;
pub use overlays::OverlayScenario;

/// Bios of a hot-plugged volume's job after each addition.
const HOTPLUGGED_BIOS: u32 = 100;

/// Whether scenarios with caches are drawn.
pub const CACHED: bool = true;

/// A device of the simulated world.
#[derive(Clone, Copy, Debug)]
pub struct DeviceScenario {
    /// Owner and queue options, as the shards see them.
    pub config: DeviceConfig,
    /// How long commands take.
    pub model: LatencyModel,
    /// Faults injected by rate and range.
    pub faults: Faults,
    /// A lie of the device; set by tests only.
    pub defect: DiskDefect,
}

/// A defect of the simulated environment, for tests of the checkers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorldDefect {
    /// No defect is injected.
    #[default]
    None,
    /// A write's buffer is reused as soon as the write was submitted.
    ReusesBuffers,
    /// Some tag grants between shards are dropped.
    LosesGrants,
    /// Entries of the dirty table are stored after the replies of their turn.
    EntriesLate,
    /// Copies have no redo record.
    TornCopies,
    /// Frames of answered reads are still taken for unchanged when their change was announced.
    KeepsLentFrames,
    /// A stop flushes a volume only when all clients have left.
    StopsTogether,
    /// Memory that was refused is answered for as if it were there.
    AnswersRefusedMemory,
    /// Caches and dirty tables are not examined after an upgrade: only lost data or errors tell of a defect.
    UncheckedUpgrades,
}

/// Number of devices and volumes that are absent at the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HotplugScenario {
    /// Devices absent at the start.
    pub devices: usize,
    /// Volumes absent at the start.
    pub volumes: usize,
    /// Number of topology changes in a round: a volume is replaced (mostly with its device), added,
    /// removed permanently, or resized.
    pub changes: u32,
}

/// How the rounds of a world end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundEnds {
    /// Number of turns until the power cut, if there is one.
    pub cut_after: Option<u64>,
    /// The process dies, with its memory kept, where other worlds have power cuts.
    pub deaths: bool,
    /// With deaths: some ends are power cuts, and what a dead process left in the kernel is not durable.
    pub cuts: bool,
    /// The server stops while a device does not answer, where other worlds have power cuts.
    pub stops: bool,
}

/// Everything that a simulated world is made from.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed of the scenario.
    pub seed: u64,
    /// Number of shards, 1..=4.
    pub shards: u16,
    /// Bio slots of each shard.
    pub bios_max: u32,
    /// Whether some shard may reject a bio because its slots are exhausted.
    pub tight: bool,
    /// Devices by device id.
    pub devices: Vec<DeviceScenario>,
    /// Volumes by volume id, with their current sizes.
    pub volumes: Vec<VolumeConfig>,
    /// Maximum size of each volume in bytes, by volume id.
    pub sizes_max: Vec<u64>,
    /// The last devices and volumes are hot-plugged: their slots are free at the start, and they
    /// are added and removed repeatedly.
    pub hotplug: HotplugScenario,
    /// Cache options of each shard.
    pub cache: CacheOptions,
    /// Dirty limits and writer throttling.
    pub dirty: DirtyOptions,
    /// The jobs, one connection each.
    pub jobs: Vec<JobOptions>,
    /// Maximum inputs of a turn.
    pub turn_max: usize,
    /// Maximum delay of a message in nanoseconds.
    pub message_delay_ns: u64,
    /// How a round ends.
    pub ends: RoundEnds,
    /// Number of live upgrades in a round: new shards take over the frames, dirty tables and connections of the old ones.
    pub upgrades: u32,
    /// Number of tunable changes in a round.
    pub option_changes: u32,
    /// Exports, tenants and their changes.
    pub tenants: TenantScenario,
    /// Limits in front of the shards.
    pub limits: LimitScenario,
    /// The volumes on a base; one that is a base, too, comes first.
    pub layers: Vec<LayerScenario>,
    /// The volumes that are overlays, with their files on the modelled disk.
    pub overlays: Vec<OverlayScenario>,
    /// The memory of the caches is on a filesystem that others fill, too; so many pages more than a start needs.
    pub memory: Option<u64>,
    /// Number of rounds; each runs the jobs, and may end with a power cut.
    pub rounds: u32,
    /// A defect injected by a test.
    pub defect: WorldDefect,
    /// Whether bytes, versions and buffers are checked; off for speed measurements.
    pub checked: bool,
}

impl Scenario {
    /// A scenario of one shard without a cache to which nothing happens; the oracle watches it.
    #[must_use]
    pub fn plain(
        seed: u64,
        devices: Vec<DeviceScenario>,
        volumes: Vec<VolumeConfig>,
        jobs: Vec<JobOptions>,
    ) -> Self {
        let sizes_max = volumes.iter().map(|volume| volume.options.size).collect();
        Self {
            seed,
            shards: 1,
            bios_max: 256,
            tight: false,
            devices,
            volumes,
            sizes_max,
            hotplug: HotplugScenario::default(),
            cache: CacheOptions::default(),
            dirty: DirtyOptions::default(),
            jobs,
            turn_max: 256,
            message_delay_ns: 100,
            ends: RoundEnds::default(),
            upgrades: 0,
            option_changes: 0,
            tenants: TenantScenario::default(),
            limits: LimitScenario::default(),
            layers: Vec::new(),
            overlays: Vec::new(),
            memory: None,
            rounds: 1,
            defect: WorldDefect::None,
            checked: true,
        }
    }

    /// Draws the scenario of `seed`, with the given number of shards if any.
    #[must_use]
    pub fn draw(seed: u64, shards: Option<u16>) -> Self {
        let cached = CACHED && Prng::new(seed).split("cached").below(3) > 0;
        let changes = draw_hotplug_changes(&mut Prng::new(seed).split("moves"));
        let mut scenario = Self::draw_with(seed, shards, cached, changes);
        scenario.draw_upgrades();
        scenario
    }

    /// Draws the scenario of `seed` with caches and power cuts; with `lies` its first device skips
    /// flushes.
    #[must_use]
    pub fn draw_crash(seed: u64, shards: Option<u16>, lies: bool) -> Self {
        // These runs check what earlier writes leave behind, so there is no hot-plug.
        let mut scenario = Self::draw_with(seed, shards, true, 0);
        let mut prng = Prng::new(seed).split("crash");
        scenario.rounds = prng.between(3, 8) as u32;
        scenario.ends.cut_after = Some(prng.between(1 << 6, 1 << 15));
        if lies {
            scenario.devices[0].defect = DiskDefect::SkipsFlush;
            scenario.devices[0].config.queue.write_cache = true;
        }
        scenario.draw_upgrades();
        scenario
    }

    /// Draws the scenario of `seed` with caches and process deaths; in some of them volumes come, go and are resized.
    #[must_use]
    pub fn draw_death(seed: u64, shards: Option<u16>) -> Self {
        let mut prng = Prng::new(seed).split("death");
        let changes = draw_hotplug_changes(&mut prng);
        let mut scenario = Self::draw_with(seed, shards, true, changes);
        scenario.rounds = prng.between(3, 8) as u32;
        scenario.ends.cut_after = Some(prng.between(1 << 6, 1 << 14));
        scenario.cache.dirty_table = true;
        scenario.ends.deaths = true;
        scenario.draw_upgrades();
        scenario
    }

    /// Draws live upgrades, in one of four worlds with caches.
    fn draw_upgrades(&mut self) {
        let mut prng = Prng::new(self.seed).split("upgrades");
        if self.cache.is_on() && prng.below(4) == 0 {
            self.upgrades = prng.between(1, 4) as u32;
            self.cache.dirty_table = true;
        }
    }

    fn draw_with(seed: u64, shards: Option<u16>, cached: bool, hotplug_changes: u32) -> Self {
        let root = Prng::new(seed);
        let mut world = root.split("world");
        let drawn = [1, 2, 4][world.below(3) as usize];
        let shards = shards.unwrap_or(drawn);
        let immediate_only = world.below(12) == 0;
        let count = world.between(1, 3);
        let mut prng = root.split("devices");
        let mut devices: Vec<_> =
            (0..count).map(|_| draw_device(&mut prng, shards, immediate_only)).collect();
        let mut volumes = draw_volumes(&mut root.split("volumes"), shards, &devices);
        let there = volumes.len();
        let hotplugged = match hotplug_changes {
            0 => HotplugScenario::default(),
            _ => draw_hotplugged(&mut root.split("guests"), shards, &mut devices, &mut volumes),
        };
        let (cache, dirty) = match cached {
            true => draw_cache(&mut root.split("cache")),
            false => (CacheOptions::default(), DirtyOptions::default()),
        };
        if cached {
            let mut prng = root.split("caching");
            devices.iter_mut().for_each(|device| draw_caching(&mut prng, &mut device.config.queue));
            volumes.iter_mut().for_each(|volume| draw_cached_volume(&mut prng, volume));
        }
        draw_bad_ranges(&mut root.split("bad"), &mut devices, &volumes);
        let mut prng = root.split("jobs");
        let mut jobs: Vec<_> =
            (0..world.between(1, 6)).map(|_| draw_job(&mut prng, &volumes[..there])).collect();
        let mut prng = root.split("guests' jobs");
        jobs.extend((there..volumes.len()).map(|guest| {
            let job = draw_job_of(&mut prng, &volumes, guest);
            JobOptions { bios: job.bios.min(HOTPLUGGED_BIOS), ..job }
        }));
        if hotplug_changes > 0 {
            jobs.iter_mut().for_each(|job| job.bios = job.bios.div_ceil(2));
        }
        let mut prng = root.split("sizes");
        let sizes_max = volumes.iter().map(|volume| match hotplug_changes {
            0 => volume.options.size,
            _ => volume.options.size + prng.below(3) * prng.below(64) * 4096,
        });
        let sizes_max = sizes_max.collect();
        let mut prng = root.split("cached jobs");
        for job in jobs.iter_mut().filter(|_| cached) {
            draw_cached_job(&mut prng, seed, &volumes, job);
        }
        let depth: u32 = jobs.iter().map(|job| u32::from(job.depth)).sum();
        let tight = world.below(8) == 0;
        let rounds = world.between(1, 3) as u32;
        let tenants = TenantScenario::draw(&mut root.split("tenants"));
        Self {
            seed,
            shards,
            bios_max: if tight { (depth / 3).max(2) } else { depth.max(32) + 8 },
            tight,
            devices,
            volumes,
            sizes_max,
            hotplug: HotplugScenario { changes: hotplug_changes, ..hotplugged },
            cache,
            dirty,
            jobs,
            turn_max: [1, 4, 16, 64, 256][world.below(5) as usize],
            message_delay_ns: [100, 5 * US, 50 * US][world.below(3) as usize],
            ends: RoundEnds {
                cut_after: (world.below(2) == 0).then(|| world.between(1, 1_500)),
                ..RoundEnds::default()
            },
            upgrades: 0,
            option_changes: root.split("switches").below(12) as u32,
            tenants,
            limits: LimitScenario::draw(&mut root.split("limits"), &tenants),
            layers: Vec::new(),
            overlays: Vec::new(),
            memory: None,
            rounds,
            defect: WorldDefect::None,
            checked: true,
        }
    }

    /// Whether a volume's data may be cached.
    #[must_use]
    pub fn is_cached(&self, volume: VolumeId) -> bool {
        self.mode(volume) != WriteMode::None
    }

    /// Whether flushes of a volume promise no durability.
    #[must_use]
    pub fn is_unsafe(&self, volume: VolumeId) -> bool {
        self.mode(volume) == WriteMode::Unsafe
    }

    /// The write mode of a volume; `None` without a cache.
    #[must_use]
    pub fn mode(&self, volume: VolumeId) -> WriteMode {
        match self.cache.is_on() {
            true => self.volumes[usize::from(volume.0)].options.mode,
            false => WriteMode::None,
        }
    }

    /// The contracts that the oracle checks, by volume.
    #[must_use]
    pub fn contracts(&self) -> Vec<Contract> {
        let volumes = self.volumes.iter().enumerate();
        let contracts = volumes.map(|(index, volume)| {
            let id = VolumeId(index as u16);
            let cuts = cuts_of(self.seed, id, self.mode(id));
            let cuts = if cuts[1] == 0 { oracle::whole_sectors() } else { cuts.to_vec() };
            let device = &self.devices[usize::from(volume.device.0)];
            let lasting = !device.config.queue.write_cache;
            Contract { size: self.sizes_max[index], cuts, mode: self.mode(id), lasting }
        });
        contracts.collect()
    }

    /// Number of devices and volumes that are present from the start.
    #[must_use]
    pub fn permanent(&self) -> (usize, usize) {
        (self.devices.len() - self.hotplug.devices, self.volumes.len() - self.hotplug.volumes)
    }

    /// The configuration of one shard, with free slots for the hot-plugged devices and volumes.
    #[must_use]
    pub fn shard_config(&self, shard: ShardId) -> ShardConfig {
        let (devices, volumes) = self.permanent();
        let (devices, hotplugged) = self.devices.split_at(devices);
        let spare = SpareSlots {
            devices: self.hotplug.devices as u16,
            volumes: self.hotplug.volumes as u16,
            exports: 0,
            tags: hotplugged.iter().map(|device| device.config.queue.nr_requests).sum(),
        };
        ShardConfig {
            id: shard,
            shards: self.shards,
            bios_max: self.bios_max,
            devices: devices.iter().map(|device| device.config).collect(),
            volumes: self.volumes[..volumes].to_vec(),
            exports: self.tenants.exports(),
            tenants: self.tenants.weights(),
            cache: CacheOptions { account: u32::MAX - u32::from(shard.0), ..self.cache },
            dirty: self.dirty,
            spare,
        }
    }
}

/// Draws the number of topology changes; not 0 in three of ten scenarios.
fn draw_hotplug_changes(prng: &mut Prng) -> u32 {
    match prng.below(10) {
        0..3 => prng.between(1, 8) as u32,
        _ => 0,
    }
}

fn draw_device(prng: &mut Prng, shards: u16, immediate: bool) -> DeviceScenario {
    let model = draw_model(prng, immediate);
    let queue = draw_queue(prng, model);
    let config = DeviceConfig { owner: ShardId(prng.below(shards.into()) as u16), queue };
    let faults = draw_faults(prng);
    let mut device = DeviceScenario { config, model, faults, defect: DiskDefect::None };
    draw_scheduler(&mut prng.split("scheduler"), &mut device.config.queue);
    device
}

fn draw_model(prng: &mut Prng, immediate: bool) -> LatencyModel {
    match prng.below(4) {
        _ if immediate => LatencyModel::Immediate,
        0 => LatencyModel::Seek {
            settle_ns: prng.between(100 * US, 2 * MS),
            stroke_ns: prng.between(1_000, 20_000),
            turn_ns: 8_333_333,
            track_sectors: prng.between(500, 3_000),
        },
        1 => LatencyModel::Immediate,
        _ => LatencyModel::Constant {
            latency_ns: prng.between(US, 200 * US),
            jitter_ns: prng.between(0, 300 * US),
            channels: prng.between(1, 64) as u8,
        },
    }
}

fn draw_queue(prng: &mut Prng, model: LatencyModel) -> QueueOptions {
    let mut pick = |values: &[u32]| values[prng.below(values.len() as u64) as usize];
    // Longer than the slowest modelled disk takes for a full queue of the largest commands, so only
    // faults are late.
    let io_timeout_ns = match model {
        LatencyModel::Seek { .. } => 60 * SEC,
        _ => u64::from(pick(&[1, 5, 30])) * SEC,
    };
    QueueOptions {
        nr_requests: pick(&[1, 2, 3, 7, 16, 62, 64, 256]),
        queue_depth: pick(&[1, 2, 5, 16, 32, 128]),
        max_sectors_kb: pick(&[4, 5, 12, 64, 128, 1280]),
        max_segments: pick(&[1, 2, 5, 16, 128]) as u16,
        max_segment_size: pick(&[4096, 12288, 65536, 32 << 20]),
        nomerges: [NoMerges::MergeAll, NoMerges::OneHit, NoMerges::Never]
            [pick(&[0, 0, 0, 1, 2]) as usize],
        io_timeout_ns,
        write_cache: pick(&[0, 1, 1, 1]) == 1,
        fua: pick(&[0, 1]) == 1,
        discard: pick(&[0, 1, 1]) == 1,
        discard_granularity: pick(&[512, 4096, 65536]),
        discard_max_bytes: pick(&[1 << 16, 100_000, 1 << 30]),
        write_zeroes: pick(&[0, 1, 1]) == 1,
        ..QueueOptions::default()
    }
}

/// Draws the elevator: a third of the devices use deadline, with expiry times short enough to
/// matter in a run, and a third bfq.
fn draw_scheduler(prng: &mut Prng, queue: &mut QueueOptions) {
    let mut pick = |values: &[u32]| values[prng.below(values.len() as u64) as usize];
    queue.scheduler = Scheduler::ALL[pick(&[0, 1, 2]) as usize];
    queue.deadline = DeadlineOptions {
        read_expire_ms: pick(&[0, 1, 10, 500]),
        write_expire_ms: pick(&[0, 5, 50, 5_000]),
        writes_starved: pick(&[0, 1, 2, 8]),
        fifo_batch: pick(&[1, 2, 5, 16]),
        front_merges: pick(&[0, 1, 1]) == 1,
        async_depth: pick(&[0, 0, 1, 8]),
        prio_aging_expire_ms: pick(&[0, 2, 20, 10_000]),
    };
    queue.rotational = pick(&[0, 1]) == 1;
    queue.bfq = BfqOptions {
        slice_idle_us: pick(&[0, 100, 8_000, 8_000]),
        low_latency: pick(&[0, 1, 1]) == 1,
        timeout_sync_ms: pick(&[1, 10, 125]),
        max_budget: pick(&[0, 0, 1, 64]),
        strict_guarantees: pick(&[0, 0, 0, 1]) == 1,
        fifo_expire_sync_ms: pick(&[1, 20, 125]),
        fifo_expire_async_ms: pick(&[1, 20, 250]),
        hold_us: pick(&[0, 1_000, 60_000]),
        inflight_us: pick(&[0, 2_000, 20_000]),
        slot_us: pick(&[0, 100]),
        ..BfqOptions::default()
    };
}

fn draw_faults(prng: &mut Prng) -> Faults {
    let mut faults = Faults::default();
    // A third of the devices has no faults: every answer must be a success.
    if prng.below(3) == 0 {
        return faults;
    }
    let mut rate = |odds: u64, most: u64| match prng.below(odds) {
        0 => prng.between(1_000, most) as u32,
        _ => 0,
    };
    faults.busy = rate(3, 300_000);
    faults.late = rate(5, 10_000);
    faults.medium = rate(4, 30_000);
    faults.no_space = rate(6, 30_000);
    faults.short = rate(3, 100_000);
    faults.nothing = rate(8, 10_000);
    faults.flush = rate(6, 60_000);
    faults.zeroes = rate(4, 300_000);
    faults
}

fn draw_volumes(prng: &mut Prng, shards: u16, devices: &[DeviceScenario]) -> Vec<VolumeConfig> {
    let volumes = (0..prng.between(1, 4)).map(|_| {
        let device = DeviceId(prng.below(devices.len() as u64) as u16);
        draw_volume(prng, shards, devices, device)
    });
    volumes.collect()
}

fn draw_volume(
    prng: &mut Prng,
    shards: u16,
    devices: &[DeviceScenario],
    device: DeviceId,
) -> VolumeConfig {
    let owner = devices[usize::from(device.0)].config.owner;
    let home = match prng.below(2) {
        0 => owner,
        _ => ShardId(prng.below(shards.into()) as u16),
    };
    VolumeConfig {
        home,
        device,
        options: VolumeOptions {
            size: prng.between(4, 128) * 8192,
            read_only: prng.below(12) == 0,
            block_size: [512, 512, 1024, 4096][prng.below(4) as usize],
            ..VolumeOptions::default()
        },
    }
}

/// Draws hot-plugged devices (0 or 1) and volumes (1 or 2, mostly on the hot-plugged device).
fn draw_hotplugged(
    prng: &mut Prng,
    shards: u16,
    devices: &mut Vec<DeviceScenario>,
    volumes: &mut Vec<VolumeConfig>,
) -> HotplugScenario {
    let hotplugged = HotplugScenario {
        devices: prng.below(2) as usize,
        volumes: prng.between(1, 2) as usize,
        changes: 0,
    };
    devices.extend((0..hotplugged.devices).map(|_| draw_device(prng, shards, false)));
    for _ in 0..hotplugged.volumes {
        let device = match prng.below(4) {
            0 => prng.below(devices.len() as u64),
            _ => devices.len() as u64 - 1,
        };
        let volume = draw_volume(prng, shards, devices, DeviceId(device as u16));
        volumes.push(volume);
    }
    hotplugged
}

/// Draws small pools, so that all of them fill, and dirty limits that are reached.
fn draw_cache(prng: &mut Prng) -> (CacheOptions, DirtyOptions) {
    let mut pick = |values: &[u64]| values[prng.below(values.len() as u64) as usize];
    let units = pick(&[256, 256, 300, 512, 1024, 2048]) as u32;
    let cache = CacheOptions {
        units,
        writers_max: pick(&[1, 4, 1024]) as u32,
        flush_timeout_ns: pick(&[2 * MS, 50 * MS, 60 * SEC, 60 * SEC, 60 * SEC]),
        ..CacheOptions::default()
    };
    let dirty_bytes = pick(&[0, 0, 16, 40, 128, 1000]) * 4096;
    let dirty = DirtyOptions {
        dirty_ratio: pick(&[5, 20, 50, 90]) as u32,
        dirty_bytes,
        dirty_background_ratio: pick(&[0, 5, 10, 50]) as u32,
        dirty_background_bytes: pick(&[0, 0, 1, 2]) * dirty_bytes / 4,
        dirty_expire_centisecs: pick(&[1, 2, 10, 50]) as u32,
        dirty_writeback_centisecs: pick(&[0, 0, 1, 5, 50]) as u32,
        max_pause_ms: pick(&[10, 50, 200]) as u32,
        policy: ThrottlePolicy::ALL[pick(&[0, 0, 0, 0, 1]) as usize],
        seed: pick(&[1, 2, 3]),
    };
    if pick(&[0, 0, 0, 0, 0, 1]) == 0 {
        return (cache, dirty);
    }
    // Nearly the whole pool may be dirty, so that frames are the scarce resource.
    let full = DirtyOptions {
        dirty_ratio: 90,
        dirty_bytes: 0,
        dirty_background_ratio: 90,
        dirty_background_bytes: 0,
        policy: ThrottlePolicy::None,
        ..dirty
    };
    (CacheOptions { units: 256, ..cache }, full)
}

fn draw_caching(prng: &mut Prng, queue: &mut QueueOptions) {
    let mut pick = |values: &[u32]| values[prng.below(values.len() as u64) as usize];
    queue.read_ahead_kb = pick(&[0, 4, 16, 128, 1024, 4096]);
    queue.max_folio_order = pick(&[0, 1, 2, 4, 9, 9]) as u8;
}

/// Changes a volume for use with a cache: some are larger than the smallest pool; half take bios at
/// any byte.
fn draw_cached_volume(prng: &mut Prng, volume: &mut VolumeConfig) {
    let mut pick = |values: &[u64]| values[prng.below(values.len() as u64) as usize];
    let options = &mut volume.options;
    options.mode = [
        WriteMode::Writeback,
        WriteMode::Writeback,
        WriteMode::Stream,
        WriteMode::Writethrough,
        WriteMode::Unsafe,
        WriteMode::None,
    ][pick(&[0, 1, 2, 3, 4, 5]) as usize];
    options.on_error = ErrorPolicy::ALL[pick(&[0, 1]) as usize];
    options.size = pick(&[16, 64, 300, 600, 1200]) * 4096 + pick(&[0, 8192, 40_960]);
    if options.block_size <= SECTOR as u32 && pick(&[0, 1]) == 0 {
        options.size += pick(&[512, 1024, 3584]);
    }
}

/// Offsets within sectors at which bios begin and end: in half of the volumes for which the oracle
/// can tell, the same for all jobs of a volume.
fn cuts_of(seed: u64, volume: VolumeId, mode: WriteMode) -> SectorCuts {
    let mut prng = Prng::new(seed ^ u64::from(volume.0) << 32).split("cuts");
    match mode {
        WriteMode::Writeback | WriteMode::Stream | WriteMode::Writethrough
            if prng.below(2) == 0 =>
        {
            oracle::draw_cuts(&mut prng)
        }
        _ => [0; 4],
    }
}

fn draw_cached_job(prng: &mut Prng, seed: u64, volumes: &[VolumeConfig], job: &mut JobOptions) {
    let mut pick = |values: &[u32]| values[prng.below(values.len() as u64) as usize];
    let options = &volumes[usize::from(job.volume.0)].options;
    job.weights[Op::Prefetch as usize] = pick(&[0, 0, 1, 5]);
    job.direct = pick(&[0, 0, 0, 20_000, 300_000]);
    job.close_after = pick(&[0, 0, 0, 1, 10, 100]);
    job.cuts = cuts_of(seed, job.volume, options.mode);
    job.any_byte = options.mode != WriteMode::None;
    if job.any_byte && pick(&[0, 1]) == 0 {
        job.block_size = SECTOR as u32;
    }
}

fn draw_bad_ranges(prng: &mut Prng, devices: &mut [DeviceScenario], volumes: &[VolumeConfig]) {
    for (index, volume) in volumes.iter().enumerate() {
        let faults = &mut devices[usize::from(volume.device.0)].faults;
        // Mostly on devices without other faults, where a bio fails exactly if it touches the
        // range.
        let odds = if faults.medium > 0 { 16 } else { 5 };
        if prng.below(odds) == 0 {
            let blocks = volume.options.size / 4096;
            let start = prng.below(blocks) * 4096;
            faults.bad =
                Some(BadRange { volume: VolumeId(index as u16), start, end: start + 4096 });
        }
    }
}

fn draw_job(prng: &mut Prng, volumes: &[VolumeConfig]) -> JobOptions {
    let volume = prng.below(volumes.len() as u64) as usize;
    draw_job_of(prng, volumes, volume)
}

fn draw_job_of(prng: &mut Prng, volumes: &[VolumeConfig], volume: usize) -> JobOptions {
    let options = &volumes[volume].options;
    let block = u64::from(options.block_size.max(SECTOR as u32));
    let (start, end) = match prng.below(3) {
        // A region of its own, or the whole volume.
        0 => {
            let start = prng.below(options.size / block / 2) * block;
            (start, options.size)
        }
        1 => (0, (options.size / 4).next_multiple_of(block)),
        _ => (0, options.size),
    };
    let largest = [block, 4096, 16_384, 65_536, 262_144][prng.below(5) as usize].max(block);
    let mut size = || (prng.between(1, largest / block) * block) as u32;
    let mut sizes = [size(), size(), size(), size()];
    if largest <= 4096 || prng.below(2) == 0 {
        sizes = [sizes[0]; 4];
    }
    let mut weights = [0; Op::COUNT];
    if CACHED {
        weights[Op::Prefetch as usize] = prng.split("prefetch").below(3) as u32;
    }
    weights[Op::BlockStatus as usize] = prng.split("block status").below(4) as u32;
    for (op, most) in
        [(Op::Read, 60), (Op::Write, 60), (Op::Flush, 8), (Op::Discard, 10), (Op::WriteZeroes, 10)]
    {
        if prng.below(4) > 0 || op == Op::Write {
            weights[op as usize] = prng.between(1, most) as u32;
        }
    }
    let depth = [1, 2, 8, 32, 64, 128][prng.below(6) as usize];
    JobOptions {
        volume: VolumeId(volume as u16),
        start,
        end,
        block_size: options.block_size.max(512),
        // At most 4 MiB of buffers a job, so that a scenario stays cheap.
        depth: depth.min(((4u64 << 20) / largest) as u16).max(1),
        batch: [1, 4, 32][prng.below(3) as usize],
        bios: prng.between(20, 600) as u32,
        weights,
        sizes,
        pattern: [AccessPattern::Sequential, AccessPattern::Random, AccessPattern::Hot]
            [prng.below(3) as usize],
        fua: [0, 50_000, 400_000][prng.below(3) as usize],
        flags: [0, 250_000, 500_000][prng.below(3) as usize],
        malformed: [0, 0, 20_000][prng.below(3) as usize],
        think_ns: [0, 0, 20 * US, 2 * MS][prng.below(4) as usize],
        ioprio: draw_ioprio(&mut prng.split("ioprio")),
        ..JobOptions::default()
    }
}

/// Mostly one priority level, so that jobs compete in it.
fn draw_ioprio(prng: &mut Prng) -> Ioprio {
    let class = IoClass::ALL[[1, 1, 1, 0, 2][prng.below(5) as usize]];
    Ioprio::new(class, [4, 4, 0][prng.below(3) as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_draws_a_valid_topology() {
        for seed in 0..2_000 {
            let scenario = Scenario::draw(seed, None);
            for shard in 0..scenario.shards {
                let config = scenario.shard_config(ShardId(shard));
                assert_eq!(config.validate(), Ok(()), "seed {seed}");
            }
            for job in &scenario.jobs {
                assert!(job.start < job.end && job.depth >= 1 && job.sizes.iter().all(|&s| s > 0));
            }
        }
    }
}
