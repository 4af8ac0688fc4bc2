//! The runs of seed 002: the seed's table, other devices and pools, and load changes.

use headworks_core::time::{MS, SEC};
use headworks_core::writeback::DirtyOptions;
use headworks_core::{DepthMode, Instant, QueueOptions, Scheduler};
use headworks_disks::StreamProfile;

use super::Seed002Options;
use super::cache_harness::CacheHarnessOptions;
use super::writer::{WritePattern, WriterOptions};
use crate::baseline::TagPolicy;
use crate::baseline::foreground::Throttling;

/// Cost of a stream change in the seed's table. **A calibration**: chosen so that writers that
/// write back themselves lose a tenth with 1000 of them. It is about the cost of an unexpected
/// offset on a striped array with a write cache.
pub const CALIBRATED_NS: u64 = 185_000;
/// Cache of the seed's table in MiB. A visit to a stream finds at most `2 * dirty / writers` bytes
/// (dirty data are half a round old), so the flusher changes streams `rate * writers / (2 * dirty)`
/// times a second in any order: 510 times with 4 GiB, which costs ours a tenth, too, and 47 times
/// with 48. The goals are for 256 MiB and 4 GiB; these rows show the policy without that bound.
const CALIBRATED_MIB: u64 = 48 << 10;
/// Pool of the seed's table in which the baseline is compared: the calibration was made for it.
const COMPARED_POOL: u64 = 4 * GIB;
/// Cache in MiB in which pauses hold at least as much dirty as the limit alone does in 1024.
pub const EVEN_POOL_MIB: u64 = 1216;
/// Cost of a stream change in other cases: an SSD's.
pub const SWITCH_NS: u64 = 20_000;
/// Cost of a command in other cases.
const PER_COMMAND_NS: u64 = 10_000;
/// Cost of a stream change on a disk: a short seek and half a turn at 7200 rpm.
const DISK_SWITCH_NS: u64 = 8_000_000;
/// Files that a writer makes before it flushes: some GB in all, so the dirty limit is reached
/// repeatedly.
const FILES: u32 = 20_000;
/// Bytes per second from which a run is short.
const FAST_RATE: u64 = 700 * MB;
/// Most writers of a row with a goal.
pub const WRITERS_MAX: u32 = 1000;
/// Light writers beside the heavy one of `uneven`, and bytes a second of each.
const LIGHT: u32 = 36;
const LIGHT_RATE: u64 = 100_000;
/// Bytes per second at and below which a device is a disk.
const DISK_RATE: u64 = 60 * MB;
/// Bytes of a write of `overwrites`.
const OVERWRITE: u32 = 4096;
/// Bytes that the writes of `overwrites` go to: twice the dirty limit.
pub const OVERWRITTEN: u64 = 400 << 20;
/// Writers of `reconnect` that keep their connections.
pub const STEADY: u32 = 5;
const MB: u64 = 1_000_000;
const GIB: u64 = 1 << 30;
/// Minimum size of each writer's part of a volume.
const PART: u64 = GIB;

/// A workload or disturbance to be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThrottleCase {
    /// The table published for the seed.
    Scaling,
    /// Other bandwidths and pools, on a device with bandwidth only.
    Grid,
    /// A disk of the 60 MB/s class.
    Disk,
    /// One writer without pauses of its own and 36 light ones, on the disk.
    Uneven,
    /// Small files on the disk and on the fast device.
    Files,
    /// A device and another with a tenth of its bandwidth.
    Two,
    /// Bandwidth steps 700 -> 200 -> 700 MB/s.
    Bandwidth,
    /// Ten times the writers for a while.
    Writers,
    /// The same with writes of 4 KiB: what the first writes of so many writers add is little.
    SmallWrites,
    /// Cold start, counted from the beginning.
    Cold,
    /// Writers end one after another.
    Exit,
    /// Completions in bursts of 32 MB.
    Bursts,
    /// The device stalls for 0.4 s in every 2 s.
    Stalls,
    /// One writer that connects anew after so many milliseconds, beside five that do not.
    Reconnect(u16),
    /// Random writes of 4 KiB to 400 MiB, twice the dirty limit: what is dirty already takes half of them.
    Overwrites,
    /// Drop-behind streams, which have rows of their own (`super::streams`).
    Streams,
}

impl ThrottleCase {
    /// All cases, in the order in which they run.
    pub const ALL: [Self; 18] = [
        Self::Scaling,
        Self::Grid,
        Self::Disk,
        Self::Uneven,
        Self::Files,
        Self::Two,
        Self::Bandwidth,
        Self::Writers,
        Self::SmallWrites,
        Self::Cold,
        Self::Exit,
        Self::Bursts,
        Self::Stalls,
        Self::Reconnect(50),
        Self::Reconnect(100),
        Self::Reconnect(1000),
        Self::Overwrites,
        Self::Streams,
    ];

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scaling => "scaling",
            Self::Grid => "grid",
            Self::Disk => "disk",
            Self::Uneven => "uneven",
            Self::Files => "files",
            Self::Two => "two",
            Self::Bandwidth => "bandwidth",
            Self::Writers => "writers",
            Self::SmallWrites => "small-writes",
            Self::Cold => "cold",
            Self::Exit => "exit",
            Self::Bursts => "bursts",
            Self::Stalls => "stalls",
            Self::Reconnect(50) => "reconnect-50ms",
            Self::Reconnect(100) => "reconnect-100ms",
            Self::Reconnect(_) => "reconnect-1s",
            Self::Overwrites => "overwrites",
            Self::Streams => "streams",
        }
    }

    /// The case of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|case| case.name() == name)
    }

    /// Default numbers of writers, bandwidths in MB/s, and pools in MiB.
    fn usual(self) -> (&'static [u32], &'static [u64], &'static [u64]) {
        match self {
            Self::Scaling => (&[1, 10, 100, 1000, 10_000], &[700], &[256, 4096, CALIBRATED_MIB]),
            Self::Grid => (&[1, 10, 100, 1000], &[10, 700, 3000], &[256, 4096]),
            Self::Disk => (&[1, 10, 100], &[60], &[4096]),
            Self::Uneven => (&[1 + LIGHT], &[60], &[256, 4096]),
            Self::Files => (&[12], &[60, 700], &[4096]),
            Self::Two => (&[20], &[100], &[4096]),
            Self::Bandwidth => (&[10, 100, 1000], &[10, 700, 3000], &[256, 4096]),
            Self::Writers => (&[10, 100], &[10, 700, 3000], &[256, 4096]),
            Self::SmallWrites => (&[100], &[10], &[4096]),
            Self::Cold => (&[1000], &[10, 700, 3000], &[256, 4096]),
            Self::Exit => (&[100], &[700], &[4096]),
            Self::Bursts => (&[10, 100], &[100, 700], &[4096]),
            Self::Stalls => (&[10, 100, 1000], &[700], &[4096]),
            Self::Reconnect(_) => (&[STEADY + 1], &[200], &[4096, 16_384]),
            Self::Overwrites => (&[1], &[60, 500], &[1024, EVEN_POOL_MIB]),
            Self::Streams => (&[], &[], &[]),
        }
    }

    /// Whether the baseline is run as well.
    const fn has_baseline(self) -> bool {
        matches!(self, Self::Scaling | Self::Disk | Self::Uneven | Self::Files | Self::Overwrites)
    }
}

/// The elevator and the tag policy under a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BelowCache {
    /// The elevator of the device.
    pub scheduler: Scheduler,
    /// The policy that admits requests.
    pub tags: TagPolicy,
}

impl BelowCache {
    /// The default options of a device, which ours runs with.
    pub const DEFAULT: Self = Self { scheduler: Scheduler::None, tags: TagPolicy::Fair };

    /// The queue's options. Under the baseline the depth is fixed, as it was in Linux.
    fn queue(self, throttle: Throttling) -> QueueOptions {
        let options = QueueOptions { scheduler: self.scheduler, ..QueueOptions::default() };
        match throttle {
            Throttling::Foreground => QueueOptions { hw_depth: DepthMode::Fixed, ..options },
            Throttling::Ioless | Throttling::None => options,
        }
    }

    /// What a throttle policy runs with. The baseline runs with every elevator and tag policy, so
    /// that its best can be compared.
    fn of(case: ThrottleCase, throttle: Throttling, writers: u32, pool: u64) -> Vec<Self> {
        // Few writers of whole chunks get equal rates from all of them, and where no goal compares, one is enough beside ours.
        let compared = (11..=WRITERS_MAX).contains(&writers) && pool == COMPARED_POOL;
        if throttle != Throttling::Foreground || case == ThrottleCase::Scaling && !compared {
            return vec![Self::DEFAULT];
        }
        let schedulers = [Scheduler::None, Scheduler::MqDeadline];
        let all = schedulers.into_iter().flat_map(|scheduler| {
            TagPolicy::ALL.into_iter().map(move |tags| Self { scheduler, tags })
        });
        all.collect()
    }
}

/// The configuration of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CasePoint {
    /// The case that the run belongs to.
    pub case: ThrottleCase,
    /// The throttle policy of the run.
    pub throttle: Throttling,
    /// The elevator and the tag policy of the run.
    pub below: BelowCache,
    /// Number of writers, before any increase.
    pub writers: u32,
    /// Bytes per second of the faster device.
    pub bandwidth: u64,
    /// Bytes of the cache.
    pub pool: u64,
    /// Bytes of a write.
    pub write_bytes: u32,
    /// Cost of a stream change in nanoseconds.
    pub switch_ns: u64,
    /// Virtual time before counting starts.
    pub ramp_ns: u64,
    /// Virtual time during which is counted.
    pub runtime_ns: u64,
    /// Time between two changes of the load, if there are any.
    pub phase_ns: u64,
    /// Seed of offsets and wake-ups.
    pub seed: u64,
}

/// All runs that are selected.
#[must_use]
pub fn points(options: &Seed002Options) -> Vec<CasePoint> {
    let mut points = Vec::new();
    let wanted = |case: &ThrottleCase| options.cases.is_empty() || options.cases.contains(case);
    for case in
        ThrottleCase::ALL.into_iter().filter(wanted).filter(|&case| case != ThrottleCase::Streams)
    {
        let (writers, bandwidths, pools) = case.usual();
        let old: &[_] = match case.has_baseline() {
            true if case == ThrottleCase::Overwrites => &Throttling::ALL,
            true => &[Throttling::Ioless, Throttling::Foreground],
            false => &[Throttling::Ioless],
        };
        let pools: Vec<u64> = pools.iter().map(|mib| mib << 20).collect();
        let bandwidths: Vec<u64> = bandwidths.iter().map(|rate| rate * MB).collect();
        for &throttle in or(&options.throttles, old) {
            for &bandwidth in or(&options.bandwidths, &bandwidths) {
                // Pauses alone are looked at with more memory.
                let is_ours = case != ThrottleCase::Overwrites || throttle == Throttling::Ioless;
                let pools = if is_ours { &pools[..] } else { &pools[..1] };
                for &pool in or(&options.pools, pools) {
                    for &writers in or(&options.writers, writers) {
                        let run = (case, throttle, writers, bandwidth, pool);
                        for below in BelowCache::of(case, throttle, writers, pool) {
                            points.push(CasePoint { below, ..CasePoint::new(options, run) });
                        }
                    }
                }
            }
        }
    }
    points
}

fn or<'a, T>(asked: &'a [T], usual: &'a [T]) -> &'a [T] {
    if asked.is_empty() { usual } else { asked }
}

impl CasePoint {
    fn new(
        options: &Seed002Options,
        (case, throttle, writers, bandwidth, pool): (ThrottleCase, Throttling, u32, u64, u64),
    ) -> Self {
        let seconds = options.seconds;
        let write_bytes = match case {
            ThrottleCase::SmallWrites => 4096,
            ThrottleCase::Overwrites => OVERWRITE,
            _ => options.write_bytes,
        };
        // Forty writes of each writer, so that one write more or less hardly changes the shares.
        let shares = 40 * u64::from(writers) * u64::from(write_bytes);
        // And about five hundred requests, so that one more or less hardly changes the rate.
        let enough = shares.max(600 * MB).div_ceil(bandwidth);
        // A slow device gets as many bytes in a phase as one of 60 MB/s, so that the row shows when
        // it settles.
        // A fast one makes thousands of writes a second and has settled in one.
        let is_fast = bandwidth >= FAST_RATE;
        let parts = if is_fast { 4 } else { 2 };
        let phase_ns = seconds.div_ceil(parts).max(5).max(600 * MB / bandwidth) * SEC;
        let (ramp, runtime) = match case {
            // Ten writes of each, so that one more or less hardly changes the shares.
            ThrottleCase::Cold if is_fast => (0, seconds.div_ceil(2)),
            ThrottleCase::Cold => (0, seconds.max(shares.div_ceil(4 * bandwidth))),
            ThrottleCase::Grid if is_fast => (2, seconds.div_ceil(2).max(enough)),
            ThrottleCase::Bandwidth | ThrottleCase::Writers | ThrottleCase::SmallWrites => {
                (0, 3 * phase_ns / SEC)
            }
            // Shares that follow the bandwidth need time to settle.
            ThrottleCase::Two => (20, seconds),
            // What is dirty is written out once in the ramp, and again in the run.
            ThrottleCase::Overwrites if bandwidth <= DISK_RATE => (600, 30 * seconds),
            ThrottleCase::Overwrites => (5, seconds.div_ceil(2)),
            _ => (5, seconds.max(enough)),
        };
        let switch_ns = match case {
            ThrottleCase::Grid => 0,
            ThrottleCase::Scaling => options.switch_ns.unwrap_or(CALIBRATED_NS),
            ThrottleCase::Disk | ThrottleCase::Uneven => {
                options.switch_ns.unwrap_or(DISK_SWITCH_NS)
            }
            ThrottleCase::Files | ThrottleCase::Overwrites if bandwidth <= DISK_RATE => {
                options.switch_ns.unwrap_or(DISK_SWITCH_NS)
            }
            _ => options.switch_ns.unwrap_or(SWITCH_NS),
        };
        let (ramp_ns, runtime_ns, seed) = (ramp * SEC, runtime * SEC, options.seed);
        Self {
            case,
            throttle,
            below: BelowCache::DEFAULT,
            writers,
            bandwidth,
            pool,
            write_bytes,
            switch_ns,
            ramp_ns,
            runtime_ns,
            phase_ns,
            seed,
        }
    }

    /// Times of the load changes; the last is the end.
    #[must_use]
    pub fn phases(&self) -> Vec<Instant> {
        match self.case {
            ThrottleCase::Bandwidth | ThrottleCase::Writers | ThrottleCase::SmallWrites => {
                (0..=3).map(|phase| Instant(phase * self.phase_ns)).collect()
            }
            ThrottleCase::Cold => vec![Instant(0), Instant(self.runtime_ns)],
            _ => Vec::new(),
        }
    }

    fn devices(&self) -> Vec<StreamProfile> {
        let mut device = StreamProfile::new(self.bandwidth, self.switch_ns);
        device.per_command_ns = if self.case == ThrottleCase::Grid { 0 } else { PER_COMMAND_NS };
        match self.case {
            ThrottleCase::Bandwidth => {
                let [_, down, up, _] = self.phases()[..] else { unreachable!("three phases") };
                device.steps = vec![(down, self.bandwidth * 2 / 7), (up, self.bandwidth)];
            }
            ThrottleCase::Bursts => device.burst_bytes = 32 * MB,
            ThrottleCase::Stalls => device.stall = (2 * SEC, 2 * SEC / 5),
            ThrottleCase::Two => {
                let slow =
                    StreamProfile { bytes_per_second: self.bandwidth / 10, ..device.clone() };
                return vec![device, slow];
            }
            _ => {}
        }
        vec![device]
    }

    fn all_writers(&self) -> Vec<WriterOptions> {
        let (most, part) = (self.connections(), self.part());
        let dd = |number: u32| {
            let start = u64::from(number) * part;
            WriterOptions::dd(0, self.write_bytes, start, start + part)
        };
        let end = Instant(self.ramp_ns + self.runtime_ns);
        let as_told = |number| {
            let dd = dd(number);
            match self.case {
                ThrottleCase::Files => WriterOptions { manner: WritePattern::Files(FILES), ..dd },
                ThrottleCase::Overwrites => {
                    WriterOptions { manner: WritePattern::RandomWrites(self.write_bytes), ..dd }
                }
                ThrottleCase::Uneven if number > 0 => {
                    WriterOptions { bytes_per_second: LIGHT_RATE, ..dd }
                }
                ThrottleCase::Two => WriterOptions { volume: (number % 2) as u16, ..dd },
                ThrottleCase::Writers | ThrottleCase::SmallWrites if number >= self.writers => {
                    let [_, more, fewer, _] = self.phases()[..] else { unreachable!("phases") };
                    WriterOptions { starts_at: more, exits_at: fewer, ..dd }
                }
                // From a third of the time on, evenly; the last writer is alone for the last tenth.
                ThrottleCase::Exit => {
                    let (first, last) = (end.0 / 3, end.0 / 10 * 9);
                    let exits = first + (last - first) * u64::from(number) / u64::from(most);
                    let is_last = number + 1 == most;
                    WriterOptions { exits_at: if is_last { end } else { Instant(exits) }, ..dd }
                }
                ThrottleCase::Reconnect(ms) if number >= STEADY => {
                    let at = |of: u32| Instant(u64::from(of - STEADY) * u64::from(ms) * MS);
                    WriterOptions { starts_at: at(number), exits_at: at(number + 1), ..dd }
                }
                _ => dd,
            }
        };
        (0..most).map(as_told).collect()
    }

    /// Connections of all writers during the run.
    fn connections(&self) -> u32 {
        match self.case {
            ThrottleCase::Writers | ThrottleCase::SmallWrites => 10 * self.writers,
            ThrottleCase::Reconnect(ms) => {
                let lives = (self.ramp_ns + self.runtime_ns).div_ceil(u64::from(ms) * MS);
                STEADY + lives as u32
            }
            _ => self.writers,
        }
    }

    /// A tebibyte for all, so that no writer wraps around; at least a gibibyte for each. What is overwritten is little.
    fn part(&self) -> u64 {
        let most = u64::from(self.connections());
        if self.case == ThrottleCase::Overwrites {
            return OVERWRITTEN / most / 4096 * 4096;
        }
        (1024 * GIB / most / PART * PART).max(PART)
    }

    /// The harness options of the run.
    #[must_use]
    pub fn harness(&self, trace: bool) -> CacheHarnessOptions {
        let writers = self.all_writers();
        CacheHarnessOptions {
            seed: self.seed,
            pool: self.pool,
            dirty: DirtyOptions {
                policy: self.throttle.policy(),
                seed: self.seed,
                ..DirtyOptions::default()
            },
            queue: self.below.queue(self.throttle),
            tags: self.below.tags,
            devices: self.devices(),
            modes: Vec::new(),
            size: writers.iter().map(|writer| writer.end).max().unwrap_or(PART),
            writers,
            tenants: Vec::new(),
            window_ns: u64::MAX,
            ramp_ns: self.ramp_ns,
            runtime_ns: self.runtime_ns,
            throttle: self.throttle,
            trace,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(case: ThrottleCase, writers: u32) -> CasePoint {
        let run = (case, Throttling::Ioless, writers, 700 * MB, 4 * GIB);
        CasePoint::new(&Seed002Options::default(), run)
    }

    #[test]
    fn writers_have_disjoint_regions() {
        for case in ThrottleCase::ALL {
            let writers = point(case, 100).all_writers();
            let apart = |pair: &[WriterOptions]| pair[0].end <= pair[1].start;
            assert!(writers.windows(2).all(apart), "{}", case.name());
            let least = if case == ThrottleCase::Overwrites { OVERWRITTEN / 100 } else { PART };
            assert!(writers.iter().all(|writer| writer.end - writer.start >= least));
            assert_eq!(ThrottleCase::parse(case.name()), Some(case));
        }
    }

    #[test]
    fn writers_start_and_exit_at_the_times_of_their_case() {
        let point = point(ThrottleCase::Writers, 10);
        let at = |second: u64| {
            let now = Instant(second * SEC);
            let writers = point.all_writers();
            writers.iter().filter(|w| w.starts_at <= now && now < w.exits_at).count()
        };
        assert_eq!([at(1), at(7), at(12)], [10, 100, 10]);
        let exits = self::point(ThrottleCase::Exit, 100).all_writers();
        assert!(exits.windows(2).all(|pair| pair[0].exits_at < pair[1].exits_at));
    }

    #[test]
    fn options_override_the_defaults_of_a_case() {
        let options = Seed002Options {
            cases: vec![ThrottleCase::Scaling],
            writers: vec![7],
            throttles: vec![Throttling::None],
            ..Seed002Options::default()
        };
        let points = points(&options);
        assert_eq!(points.len(), 3);
        assert_eq!((points[0].writers, points[0].throttle), (7, Throttling::None));
        assert_eq!(points[0].bandwidth, 700 * MB);
    }

    #[test]
    fn baseline_runs_with_every_elevator_and_tag_policy() {
        let options = Seed002Options {
            cases: vec![ThrottleCase::Disk],
            writers: vec![100],
            ..Seed002Options::default()
        };
        let of = |throttle| {
            let points = points(&options).into_iter().filter(|point| point.throttle == throttle);
            points.map(|point| point.below).collect::<Vec<_>>()
        };
        assert_eq!(of(Throttling::Ioless), [BelowCache::DEFAULT]);
        let old = of(Throttling::Foreground);
        assert_eq!(old.len(), 6);
        assert!(old.iter().enumerate().all(|(at, below)| !old[..at].contains(below)));
    }

    #[test]
    fn light_writers_are_paced_and_the_heavy_one_is_not() {
        let rates: Vec<u64> = point(ThrottleCase::Uneven, 37)
            .all_writers()
            .iter()
            .map(|w| w.bytes_per_second)
            .collect();
        assert_eq!((rates[0], rates.len()), (0, 37));
        assert!(rates[1..].iter().all(|&rate| rate == LIGHT_RATE));
    }
}
