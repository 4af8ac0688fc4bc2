//! Clients as data: what a group of them does, and the jobs that it becomes on a disk.

use headworks_core::time::{MS, SEC};
use headworks_core::{ExportConfig, ExportId, Op, TenantConfig, TenantId};

use super::disks::Disk;
use crate::harness::{JobOptions, Program};

/// Where the bios of a client are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// One after the other in a region of its own.
    Sequential,
    /// At random in a region of its own.
    Random,
    /// The clients of the group take the blocks of one stream in turn.
    OneStream,
    /// The reads of a program's start.
    Start(Program),
}

/// When a client submits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// As soon as there is room in its depth, this many microseconds after an answer.
    Greedy(u64),
    /// A bio in each of so many microseconds, whatever is answered.
    Every(u64),
}

/// The export of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Export {
    /// All clients have this one.
    Same(u16),
    /// Each client has its own, the first this one.
    Each(u16),
}

/// Equal clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// Number of equal clients.
    pub count: u32,
    /// Operation of their bios.
    pub op: Op,
    /// Where their bios are.
    pub pattern: Pattern,
    /// KiB of a bio.
    pub kib: u32,
    /// Bios in flight of each.
    pub depth: u32,
    /// When the clients submit.
    pub pace: Pace,
    /// The exports of the clients.
    pub export: Export,
    /// Whether their bios are synchronous.
    pub sync: bool,
}

/// Rest between two starts of a program, on a disk and on flash: more than the 2 s after which a client is interactive again.
const REST_NS: [u64; 2] = [4 * SEC, 5 * SEC / 2];
/// Region of a program's files.
const PROGRAM_BYTES: u64 = 20_000_000_000;
/// Least number of equal regions of a disk.
const REGIONS: u64 = 64;
/// Bios of an open loop that may be outstanding.
const OPEN_DEPTH: u32 = 1024;

impl Group {
    /// Sequential readers of one export, 20 us after an answer.
    pub const fn readers(count: u32, kib: u32, depth: u32) -> Self {
        Self {
            count,
            op: Op::Read,
            pattern: Pattern::Sequential,
            kib,
            depth,
            pace: Pace::Greedy(20),
            export: Export::Same(0),
            sync: true,
        }
    }

    /// The same clients as writers.
    pub const fn writing(self) -> Self {
        Self { op: Op::Write, ..self }
    }

    /// The same clients at random offsets.
    pub const fn random(self) -> Self {
        Self { pattern: Pattern::Random, ..self }
    }

    /// The same clients, each in an export of its own.
    pub const fn each_from(self, first: u16) -> Self {
        Self { export: Export::Each(first), ..self }
    }

    /// A program that starts again and again.
    pub const fn starting(program: Program) -> Self {
        Self { pattern: Pattern::Start(program), ..Self::readers(1, 4, 1) }
    }

    /// One client that submits a bio in each period.
    pub const fn every(period_us: u64, kib: u32) -> Self {
        Self { pace: Pace::Every(period_us), ..Self::readers(1, kib, 1) }
    }
}

/// The exports that groups of clients need. With `tenants` they are in so many of them, in turn, and the weights are those of the
/// tenants; otherwise those of the exports.
pub(super) fn exports(groups: &[Group], weights: &[u16], tenants: u16) -> Vec<ExportConfig> {
    let last = |group: &Group| match group.export {
        Export::Same(number) => number,
        Export::Each(first) => first + group.count as u16 - 1,
    };
    let count = groups.iter().map(last).max().map_or(1, |last| last + 1);
    let export = |number: u16| match tenants {
        0 => ExportConfig { weight: weight(weights, number), ..ExportConfig::default() },
        _ => ExportConfig { tenant: TenantId(number % tenants), ..ExportConfig::default() },
    };
    (0..count).map(export).collect()
}

/// So many tenants.
pub(super) fn tenants(weights: &[u16], count: u16) -> Vec<TenantConfig> {
    (0..count)
        .map(|number| TenantConfig { weight: weight(weights, number), ..TenantConfig::default() })
        .collect()
}

fn weight(weights: &[u16], number: u16) -> u16 {
    weights[usize::from(number) % weights.len()]
}

/// The jobs of groups of clients on a disk, `step` regions apart; a program first starts at `start_ns`.
pub(super) fn jobs(groups: &[Group], step: u64, disk: Disk, start_ns: u64) -> Vec<JobOptions> {
    let total: u64 = groups.iter().map(|group| u64::from(group.count)).sum();
    let mut jobs: Vec<JobOptions> = Vec::new();
    for group in groups {
        let first = jobs.len() as u64;
        jobs.extend((0..group.count).map(|number| {
            let place = match group.pattern {
                Pattern::OneStream => first,
                _ => first + u64::from(number),
            };
            job(group, number, region(disk.size(), step, place, total), disk, start_ns)
        }));
    }
    jobs
}

/// The region of client `place` of `total`: a part of the disk, `step` parts after that of the client before.
fn region(size: u64, step: u64, place: u64, total: u64) -> (u64, u64) {
    let block = 1 << 20;
    let part = size / (total * step + 1).max(REGIONS) / block * block;
    let start = place * step * part;
    (start, start + part)
}

fn job(
    group: &Group,
    number: u32,
    (start, end): (u64, u64),
    disk: Disk,
    start_ns: u64,
) -> JobOptions {
    let export = ExportId(match group.export {
        Export::Same(export) => export,
        Export::Each(first) => first + number as u16,
    });
    if let Pattern::Start(program) = group.pattern {
        let rest_ns = if disk.rotates() { REST_NS[0] } else { REST_NS[1] };
        let end = end.min(start + PROGRAM_BYTES / 4096 * 4096);
        let job = JobOptions::starting(program, start, end, rest_ns);
        return JobOptions { export, start_ns, ..job };
    }
    let (think_ns, period_ns, iodepth) = match group.pace {
        Pace::Greedy(us) => (us * MS / 1000, 0, group.depth),
        Pace::Every(us) => (0, us * MS / 1000, OPEN_DEPTH),
    };
    JobOptions {
        op: group.op,
        random: group.pattern == Pattern::Random,
        bs: group.kib << 10,
        iodepth,
        batch_submit: iodepth,
        start,
        end,
        export,
        think_ns,
        sync: group.sync,
        period_ns,
        stream: u32::from(group.pattern == Pattern::OneStream),
        ..JobOptions::default()
    }
}
