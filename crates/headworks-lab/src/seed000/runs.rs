//! The rows of seed 000: a policy, a disk and a number of jobs each.

use headworks_core::time::SEC;
use headworks_core::{ConfigError, DeadlineOptions, DeviceId, Op, QueueOptions, Scheduler};
use headworks_disks::{Hdd, HddProfile};

use super::published::JOBS;
use super::{CACHES, JITTERS_US, SHOWN, TAGS, THINK_NS};
use crate::baseline::{TagPolicy, WakeOptions};
use crate::harness::{BlockHarness, BlockHarnessOptions, JobOptions, RunCounts};
use crate::report::{Row, SETTINGS, jain};
use crate::row_filter::{GATED, RowFilter};

/// Bytes of a write: eight pieces.
const BS: u32 = 1 << 20;
/// fio's `offset_increment`, in bytes.
const INCREMENT: u64 = 1 << 30;
/// Tags of the stretch goal: every waiting write is in the elevator and sorted.
const DEEP_TAGS: u32 = 4096;
/// Twice the longest wait in the elevator, so that deadlines do not undo the sorting.
const DEEP_EXPIRE_MS: u32 = 15_000;

/// Virtual seconds of ramp and measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Length {
    pub ramp: u64,
    pub seconds: u64,
}

/// The configuration of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct TagPoint {
    pub table: &'static str,
    pub policy: TagPolicy,
    pub scheduler: Scheduler,
    pub tags: u32,
    pub cache_mib: u64,
    pub jitter_us: u32,
    pub jobs: u32,
    pub max_sectors_kb: u32,
}

/// Names of the tables in rows.
pub(super) const BASELINES: &str = "baselines";
pub(super) const OURS: &str = "ours";
pub(super) const DEEP: &str = "ours, all that waits sorted";
/// The options that a server has, beside the seed's.
pub(super) const DEFAULTS: &str = "ours, default options";
/// Pieces of 256 KiB, as in the report that the series began with.
pub(super) const PIECES_256: &str = "pieces of 256 KiB";

/// All rows of the experiment.
pub(super) fn all() -> Vec<TagPoint> {
    let jobs = || JOBS.iter().map(|row| row.0);
    let (_, _, jitter_us) = SHOWN;
    let mut points = Vec::new();
    let fair = TagPoint {
        table: OURS,
        policy: TagPolicy::Fair,
        scheduler: Scheduler::MqDeadline,
        tags: 64,
        cache_mib: 32,
        jitter_us,
        jobs: 1,
        max_sectors_kb: 128,
    };
    for policy in [TagPolicy::Legacy518, TagPolicy::KuaiV3] {
        for (cache_mib, tags) in product(CACHES, TAGS) {
            for jitter_us in JITTERS_US {
                let point =
                    TagPoint { table: BASELINES, policy, tags, cache_mib, jitter_us, ..fair };
                points.extend(jobs().map(|jobs| TagPoint { jobs, ..point }));
            }
        }
    }
    for scheduler in GATED {
        for (cache_mib, tags) in product(CACHES, TAGS) {
            let point = TagPoint { scheduler, tags, cache_mib, ..fair };
            points.extend(jobs().map(|jobs| TagPoint { jobs, ..point }));
        }
    }
    for cache_mib in CACHES {
        let point = TagPoint { table: DEEP, tags: DEEP_TAGS, cache_mib, ..fair };
        points.extend(jobs().map(|jobs| TagPoint { jobs, ..point }));
    }
    let usual = QueueOptions::default();
    let defaults = TagPoint {
        table: DEFAULTS,
        scheduler: usual.scheduler,
        tags: usual.nr_requests,
        max_sectors_kb: usual.max_sectors_kb,
        ..fair
    };
    points.extend(jobs().map(|jobs| TagPoint { jobs, ..defaults }));
    for policy in TagPolicy::ALL {
        let point = TagPoint { table: PIECES_256, policy, max_sectors_kb: 256, ..fair };
        points.extend(jobs().map(|jobs| TagPoint { jobs, ..point }));
    }
    points
}

fn product<A: Copy, B: Copy>(
    a: impl IntoIterator<Item = A>,
    b: impl IntoIterator<Item = B> + Clone,
) -> Vec<(A, B)> {
    a.into_iter().flat_map(|a| b.clone().into_iter().map(move |b| (a, b))).collect()
}

impl TagPoint {
    pub fn is_in(&self, filter: &RowFilter) -> bool {
        filter.has_policy(self.policy)
            && filter.has_tags(self.tags)
            && filter.has_jobs(self.jobs)
            && filter.has_device(&self.device())
    }

    fn device(&self) -> String {
        format!("hdd-{}", self.cache_mib)
    }

    /// Two requests per device slot, as in Linux: 64 tags for a depth of 32, 62 for 31.
    fn queue_depth(&self) -> u32 {
        (self.tags / 2).min(32)
    }

    fn wake(&self, seed: u64) -> WakeOptions {
        let jitter_ns = self.jitter_us * 1_000;
        WakeOptions { jitter_ns, seed: seed as u32, ..WakeOptions::default() }
    }

    fn queue(&self) -> QueueOptions {
        let write_expire_ms = if self.table == DEEP { DEEP_EXPIRE_MS } else { 5_000 };
        QueueOptions {
            nr_requests: self.tags,
            queue_depth: self.queue_depth(),
            max_sectors_kb: self.max_sectors_kb,
            scheduler: self.scheduler,
            deadline: DeadlineOptions { write_expire_ms, ..DeadlineOptions::default() },
            // Up to 512 MiB wait for the head: time-outs are not the subject here.
            io_timeout_ns: 600 * SEC,
            ..QueueOptions::default()
        }
    }

    pub fn run(&self, seed: u64, length: Length) -> Result<Row, ConfigError> {
        let counts = self.count(seed, self.wake(seed), length)?;
        Ok(self.row(&counts, length))
    }

    fn count(
        &self,
        seed: u64,
        wake: WakeOptions,
        length: Length,
    ) -> Result<RunCounts, ConfigError> {
        let profile = HddProfile::seed_000(self.cache_mib);
        let job = |number: u32| JobOptions {
            op: Op::Write,
            bs: BS,
            start: u64::from(number) * INCREMENT,
            end: profile.capacity,
            think_ns: THINK_NS,
            ..JobOptions::default()
        };
        let mut harness = BlockHarness::new(BlockHarnessOptions {
            seed,
            queue: self.queue(),
            size: profile.capacity / 4096 * 4096,
            device: Box::new(Hdd::new(profile)),
            jobs: (0..self.jobs).map(job).collect(),
            exports: Vec::new(),
            tenants: Vec::new(),
            cache: Default::default(),
            ramp_ns: length.ramp * SEC,
            runtime_ns: length.seconds * SEC,
        })?;
        self.policy.install(harness.shard(), DeviceId(0), wake);
        Ok(harness.run())
    }

    fn row(&self, counts: &RunCounts, length: Length) -> Row {
        let squares: u64 = counts.jobs.iter().map(|job| job.bios * job.bios).sum();
        let mib = counts.bytes as f64 / f64::from(1 << 20);
        Row::new(self.table)
            .with("policy", self.policy.name())
            .with("scheduler", self.scheduler.name())
            .with("device", self.device())
            .with("tags", self.tags)
            .with("depth", self.queue_depth())
            .with("jitter_us", self.jitter_us)
            .with("jobs", self.jobs)
            .with("seconds", length.seconds)
            .with("bios", counts.bios)
            .with("bytes", counts.bytes)
            .with("issued", counts.issued)
            .with("sequential", counts.sequential)
            .with("positionings", counts.device.positionings)
            .with("media_bytes", counts.device.media_bytes)
            .with("bios_squared", squares)
            .with("p50_us", counts.latency.percentile(500) / 1_000)
            .with("p99_us", counts.latency.percentile(990) / 1_000)
            .with("failed", counts.errors + counts.notices)
            .with("hung", u64::from(counts.stuck))
            .with("starved", counts.starved)
            .with(SETTINGS, counts.settings.clone())
            .with("hash", format!("{:016x}", counts.hash))
            .with_real("mib_s", mib / length.seconds as f64, 1)
            .with_real("in_sequence", counts.sequential as f64 / counts.issued.max(1) as f64, 3)
            .with_real("positionings_mib", counts.device.positionings as f64 / mib.max(1.0), 2)
            .with_real("jain", jain(counts.jobs.iter().map(|job| job.bios as f64)), 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hang of "no preemption alone": newcomers wait while sleepers are woken in whole batches,
    /// until too few tags are returned to complete a batch. Then all jobs sleep, all tags are free,
    /// and no event is pending.
    #[test]
    fn watchdog_detects_the_hang_of_no_preemption_alone() {
        let point = TagPoint {
            table: BASELINES,
            policy: TagPolicy::KuaiV3,
            scheduler: Scheduler::MqDeadline,
            tags: 62,
            cache_mib: 32,
            jitter_us: 20,
            jobs: 16,
            max_sectors_kb: 128,
        };
        let stuck = |patches, safety_net| {
            let wake = WakeOptions { patches, safety_net, ..point.wake(1) };
            point.count(1, wake, Length { ramp: 0, seconds: 60 }).unwrap().stuck
        };
        let alone = 1 << 3;
        assert!(stuck(alone, false), "the hang was not detected");
        assert!(!stuck(alone, true), "the series' own safety net ends it");
        assert!(!stuck(0xff, false), "all patches together do not hang");
        let fair = TagPoint { policy: TagPolicy::Fair, ..point };
        assert!(!fair.count(1, fair.wake(1), Length { ramp: 0, seconds: 60 }).unwrap().stuck);
    }
}
