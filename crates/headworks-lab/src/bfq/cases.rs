//! The cases: clients, weights, lengths and goals, all as data.
//!
//! The first client of a case is the one that is judged by itself where a goal says so; the others are the rest.

use headworks_core::Op;

use super::client::{Export, Group, Pace, Pattern};
use super::disks::{Disk, FLASH, NVME, ROTATING, SATA};
use super::programs::{GNOME_TERMINAL, LOWRITER, XTERM};
use crate::report::Goal::{self, AtLeast, AtMost};

/// What is judged of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    /// Error of the worst client's share, relative to its fair share.
    ShareOff,
    /// Error of the worst weight's clients together.
    ClassOff,
    /// Bytes of all clients, as a multiple of the most with mq-deadline.
    Bytes,
    /// Bytes of all clients, as a multiple of the most that an elevator without bounds moves.
    BytesOfMost,
    /// Jain's index of the clients' bytes.
    Jain,
    /// Bytes of the first client, as a multiple of those alone.
    FirstOfAlone,
    /// Bytes of the rest, as a multiple of those alone.
    RestOfAlone,
    /// Bytes of the first client, as a part of all bytes.
    FirstPart,
    /// Bytes of all clients, as a multiple of those of one client.
    BytesOfOne,
    /// Mean time of a program's start, as a multiple of that alone.
    StartMean,
    /// Longest time of a program's start, as a multiple of that alone.
    StartLongest,
    /// Bytes of the rest, as a part of what the medium can read.
    RestOfMedia,
    /// p99 of the first client in milliseconds.
    FirstP99,
    /// Longest wait of the first client in milliseconds.
    FirstLongest,
    /// Bytes of the rest, as a multiple of the most with mq-deadline.
    RestBytes,
    /// The same with a hold of 100 ms.
    RestBytesHold100,
    /// p99 of the first client, as a multiple of that alone.
    P99OfAlone,
}

impl Measure {
    /// The words of the verdict.
    pub const fn text(self) -> &'static str {
        match self {
            Self::ShareOff => "worst share off by",
            Self::ClassOff => "worst weight's share off by",
            Self::Bytes => "bytes, times mq-deadline",
            Self::BytesOfMost => "bytes, part of the best without bounds",
            Self::Jain => "Jain's index of all",
            Self::FirstOfAlone => "first's rate, part of alone",
            Self::RestOfAlone => "rest's rate, part of alone",
            Self::FirstPart => "first's part of the bytes",
            Self::BytesOfOne => "bytes, times one connection",
            Self::StartMean => "mean start, times alone",
            Self::StartLongest => "longest start, times alone",
            Self::RestOfMedia => "rest's bytes, part of the medium's rate",
            Self::FirstP99 => "first's p99, ms",
            Self::FirstLongest => "first's longest, ms",
            Self::RestBytes => "rest's bytes, times mq-deadline",
            Self::RestBytesHold100 => "rest's bytes with hw_hold_us 100000, times mq-deadline",
            Self::P99OfAlone => "first's p99, times alone",
        }
    }

    /// Whether the first client is also measured alone, and the rest.
    pub const fn needs(self) -> (bool, bool) {
        match self {
            Self::FirstOfAlone
            | Self::BytesOfOne
            | Self::StartMean
            | Self::StartLongest
            | Self::P99OfAlone => (true, false),
            Self::RestOfAlone => (false, true),
            _ => (false, false),
        }
    }
}

/// A case of the experiment.
#[derive(Clone, Copy, Debug)]
pub(super) struct BfqCase {
    /// The experiment's number, E1 to E11.
    pub experiment: &'static str,
    /// The name in rows.
    pub name: &'static str,
    /// The disks that it runs on.
    pub disks: &'static [Disk],
    /// Weights of the exports, or of the tenants if there are any, repeated.
    pub weights: &'static [u16],
    /// Number of tenants; the exports are in them in turn.
    pub tenants: u16,
    /// The clients, in groups.
    pub groups: &'static [Group],
    /// Distance of the clients' regions: far ones make every change of client a long seek.
    pub step: u64,
    /// Virtual milliseconds of ramp, measured, and measured in a long run.
    pub length_ms: [u64; 3],
    /// Whether the device's queue is bounded by hand; rows of the baselines without bounds stand beside it.
    pub bounded: bool,
    /// The measures that are judged, with their goals.
    pub goals: &'static [(Measure, Goal)],
}

/// Weights 1:2:4:10.
const UNEQUAL: &[u16] = &[50, 100, 200, 500];
const EQUAL: &[u16] = &[100];
/// A minute on a disk, after the raising of all clients has ended.
const MINUTE: [u64; 3] = [12_000, 60_000, 60_000];
/// Twenty-eight slots of the lightest of four clients: one more or less is a fraction of the goal.
const SHARES: [u64; 3] = [12_000, 240_000, 600_000];
/// As many slots for each of eight clients.
const EIGHT_SHARES: [u64; 3] = [12_000, 480_000, 1_200_000];
/// Long enough for 20 starts.
const STARTS: [u64; 3] = [12_000, 130_000, 130_000];
const FLASH_STARTS: [u64; 3] = [4_000, 20_000, 60_000];
/// A fresh client is raised for 3 s.
const MANY: [u64; 3] = [4_000, 2_000, 10_000];
/// A round of 100 slots takes 10 s and more.
const MANY_DISK: [u64; 3] = [12_000, 3_600_000, 3_600_000];

const fn disk(
    experiment: &'static str,
    name: &'static str,
    groups: &'static [Group],
    goals: &'static [(Measure, Goal)],
) -> BfqCase {
    BfqCase {
        experiment,
        name,
        disks: ROTATING,
        weights: EQUAL,
        tenants: 0,
        groups,
        step: 1,
        length_ms: MINUTE,
        bounded: false,
        goals,
    }
}

const fn shares(
    experiment: &'static str,
    name: &'static str,
    groups: &'static [Group],
    goals: &'static [(Measure, Goal)],
) -> BfqCase {
    let shares = disk(experiment, name, groups, goals);
    BfqCase { weights: UNEQUAL, step: 9, length_ms: SHARES, ..shares }
}

/// Four tenants of unequal weight.
const fn tenants(name: &'static str, groups: &'static [Group]) -> BfqCase {
    const GOALS: &[(Measure, Goal)] =
        &[(Measure::ClassOff, AtMost(0.02)), (Measure::ShareOff, AtMost(0.03))];
    BfqCase { tenants: 4, length_ms: EIGHT_SHARES, ..shares("E1", name, groups, GOALS) }
}

const fn starts(
    experiment: &'static str,
    name: &'static str,
    groups: &'static [Group],
    goals: &'static [(Measure, Goal)],
) -> BfqCase {
    BfqCase { length_ms: STARTS, step: 5, ..disk(experiment, name, groups, goals) }
}

const fn pairs(
    experiment: &'static str,
    name: &'static str,
    groups: &'static [Group],
    goals: &'static [(Measure, Goal)],
) -> BfqCase {
    BfqCase { step: 29, ..disk(experiment, name, groups, goals) }
}

const fn soft(
    experiment: &'static str,
    name: &'static str,
    groups: &'static [Group],
    goals: &'static [(Measure, Goal)],
) -> BfqCase {
    BfqCase { step: 5, ..disk(experiment, name, groups, goals) }
}

const fn flash(
    experiment: &'static str,
    name: &'static str,
    groups: &'static [Group],
    goals: &'static [(Measure, Goal)],
) -> BfqCase {
    BfqCase {
        disks: FLASH,
        length_ms: FLASH_STARTS,
        bounded: true,
        ..disk(experiment, name, groups, goals)
    }
}

/// Clients that each have an export.
const fn exports(count: u32, kib: u32, depth: u32) -> Group {
    Group { pace: Pace::Greedy(1), ..Group::readers(count, kib, depth).each_from(0) }
}

/// Greedy clients beside a light one, each in its own export.
const fn heavy(count: u32, kib: u32, depth: u32) -> Group {
    Group { pace: Pace::Greedy(1), ..Group::readers(count, kib, depth).each_from(1).random() }
}

const THREE: &[(Measure, Goal)] = &[(Measure::ShareOff, AtMost(0.03))];
const TWO: &[(Measure, Goal)] = &[(Measure::ShareOff, AtMost(0.02))];
const NO_WORSE: &[(Measure, Goal)] = &[(Measure::Bytes, AtLeast(0.95))];
const MUCH_BETTER: &[(Measure, Goal)] = &[(Measure::Bytes, AtLeast(1.5))];
const AS_GOOD: &[(Measure, Goal)] = &[(Measure::Bytes, AtLeast(0.98))];
const START: &[(Measure, Goal)] = &[
    (Measure::StartMean, AtMost(1.35)),
    // E7: 20 starts in a row of one client that stays connected.
    (Measure::StartLongest, AtMost(1.6)),
    // 50 of 106 MB/s.
    (Measure::RestOfMedia, AtLeast(0.47)),
];
const ONE: &[(Measure, Goal)] = &[(Measure::BytesOfOne, AtLeast(0.85))];
const PAIR: &[(Measure, Goal)] =
    &[(Measure::FirstOfAlone, AtLeast(0.45)), (Measure::RestOfAlone, AtLeast(0.3))];
const SOFT_READ: &[(Measure, Goal)] = &[
    (Measure::FirstP99, AtMost(100.0)),
    (Measure::FirstLongest, AtMost(200.0)),
    (Measure::RestBytes, AtLeast(0.6)),
    (Measure::RestBytesHold100, AtLeast(0.75)),
];
const SOFT_WRITE: &[(Measure, Goal)] = &[
    (Measure::FirstP99, AtMost(140.0)),
    (Measure::FirstLongest, AtMost(200.0)),
    (Measure::RestBytes, AtLeast(0.6)),
    (Measure::RestBytesHold100, AtLeast(0.75)),
];
const LIGHT: &[(Measure, Goal)] =
    &[(Measure::P99OfAlone, AtMost(2.0)), (Measure::BytesOfMost, AtLeast(0.97))];

/// A random reader of depth 1 beside a sequential one of another export.
const fn pair(depth: u32) -> [Group; 2] {
    [
        Group::readers(1, 4, 1).random(),
        Group { export: Export::Same(1), ..Group::readers(1, 128, depth) },
    ]
}

/// One stream that several connections read in turn.
const fn stream(count: u32, kib: u32, depth: u32) -> [Group; 1] {
    [Group { pattern: Pattern::OneStream, ..Group::readers(count, kib, depth) }]
}

const PAIR_1: &[Group] = &pair(1);
const PAIR_4: &[Group] = &pair(4);
const PAIR_32: &[Group] = &pair(32);
const STREAM_4: &[Group] = &stream(4, 128, 4);
const STREAM_8: &[Group] = &stream(8, 1024, 2);
const SOFT: Group = Group::every(40_000, 64);
const READERS: Group = Group::readers(10, 128, 4);
const BULK: Group = Group::readers(10, 1024, 32);
const HALF: Group = Group::readers(5, 128, 4);
const BUFFERED: Group = Group { sync: false, op: Op::Write, ..Group::readers(1, 128, 16) };

/// Every case, in the order of the experiments.
pub(super) const CASES: &[BfqCase] = &[
    shares("E1", "shares-d1", &[Group::readers(4, 128, 1).each_from(0)], TWO),
    shares("E1", "shares-d4", &[Group::readers(4, 128, 4).each_from(0)], TWO),
    shares("E1", "shares-d32", &[Group::readers(4, 128, 32).each_from(0)], TWO),
    shares("E1", "shares-1m", &[Group::readers(4, 1024, 8).each_from(0)], THREE),
    shares("E1", "shares-random", &[Group::readers(4, 4, 4).random().each_from(0)], THREE),
    // Two exports of equal weight in each tenant.
    tenants("tenants-d1", &[Group::readers(8, 128, 1).each_from(0)]),
    tenants("tenants-d4", &[Group::readers(8, 128, 4).each_from(0)]),
    tenants("tenants-1m", &[Group::readers(8, 1024, 8).each_from(0)]),
    shares("E2", "writers-d4", &[Group::readers(4, 128, 4).writing().each_from(0)], THREE),
    shares("E2", "writers-d32", &[Group::readers(4, 128, 32).writing().each_from(0)], THREE),
    shares("E2", "writers-1m", &[Group::readers(4, 1024, 8).writing().each_from(0)], THREE),
    disk("E3", "4-readers-d1", &[Group::readers(4, 128, 1)], MUCH_BETTER),
    disk("E3", "10-readers-d1", &[Group::readers(10, 128, 1)], MUCH_BETTER),
    disk("E3", "4-readers-d4", &[Group::readers(4, 128, 4)], MUCH_BETTER),
    disk("E3", "10-readers-d4", &[READERS], MUCH_BETTER),
    disk("E3", "10-readers-d32", &[Group::readers(10, 128, 32)], NO_WORSE),
    disk("E3", "10-readers-1m", &[BULK], NO_WORSE),
    disk("E3", "10-writers-d4", &[READERS.writing()], AS_GOOD),
    disk("E3", "10-random-d1", &[Group::readers(10, 4, 1).random()], NO_WORSE),
    disk("E3", "10-random-d4", &[Group::readers(10, 4, 4).random()], NO_WORSE),
    disk("E3", "10-random-d32", &[Group::readers(10, 4, 32).random()], NO_WORSE),
    disk("E3", "10-random-writers", &[Group::readers(10, 4, 4).random().writing()], AS_GOOD),
    pairs("E4", "random-beside-d1", PAIR_1, PAIR),
    pairs("E4", "random-beside-d4", PAIR_4, PAIR),
    pairs("E4", "random-beside-d32", PAIR_32, PAIR),
    disk(
        "E4",
        "readers-and-writers",
        &[HALF, HALF.writing()],
        &[(Measure::Jain, AtLeast(0.75)), (Measure::Bytes, AtLeast(0.65))],
    ),
    pairs(
        "E4",
        "buffered-writer",
        &[Group::readers(1, 128, 4), BUFFERED],
        &[(Measure::FirstPart, AtLeast(0.333))],
    ),
    disk("E4", "one-stream-of-4", STREAM_4, ONE),
    disk("E4", "one-stream-of-8", STREAM_8, ONE),
    starts("E5", "xterm", &[Group::starting(XTERM), READERS], START),
    starts("E5", "gnome-terminal", &[Group::starting(GNOME_TERMINAL), READERS], START),
    starts("E5", "lowriter", &[Group::starting(LOWRITER), READERS], START),
    starts(
        "E6",
        "start-mixed",
        &[Group::starting(GNOME_TERMINAL), HALF, HALF.writing()],
        &[(Measure::StartMean, AtMost(1.6))],
    ),
    starts(
        "E6",
        "start-writers",
        &[Group::starting(GNOME_TERMINAL), READERS.writing()],
        &[(Measure::StartMean, AtMost(1.7))],
    ),
    starts(
        "E6",
        "start-1m",
        &[Group::starting(GNOME_TERMINAL), BULK],
        &[(Measure::StartMean, AtMost(1.3))],
    ),
    BfqCase {
        tenants: 11,
        ..starts(
            "E6",
            "start-as-tenant",
            &[Group::starting(GNOME_TERMINAL), READERS.each_from(1)],
            &[(Measure::StartMean, AtMost(2.5))],
        )
    },
    soft("E8", "soft-readers-d4", &[SOFT, READERS], SOFT_READ),
    soft("E8", "soft-readers-1m", &[SOFT, BULK], SOFT_READ),
    soft("E8", "soft-writers-d4", &[SOFT, READERS.writing()], SOFT_WRITE),
    soft("E8", "soft-writers-1m", &[SOFT, BULK.writing()], SOFT_WRITE),
    flash(
        "E9",
        "flash-start",
        &[Group::starting(GNOME_TERMINAL), READERS],
        &[(Measure::StartMean, AtMost(1.2)), (Measure::BytesOfMost, AtLeast(0.97))],
    ),
    flash(
        "E9",
        "flash-start-1m",
        &[Group::starting(GNOME_TERMINAL), BULK],
        &[(Measure::StartMean, AtMost(3.0)), (Measure::BytesOfMost, AtLeast(0.97))],
    ),
    BfqCase {
        weights: UNEQUAL,
        disks: NVME,
        length_ms: MANY,
        ..flash("E10", "1000-exports-d1", &[exports(1000, 4, 1).random()], TWO)
    },
    BfqCase {
        weights: UNEQUAL,
        disks: NVME,
        length_ms: MANY,
        ..flash("E10", "1000-exports-d4", &[exports(1000, 4, 4).random()], TWO)
    },
    BfqCase {
        weights: UNEQUAL,
        disks: NVME,
        // Fifty requests of the lightest.
        length_ms: [4_000, 5_000, 10_000],
        ..flash("E10", "1000-exports-64k", &[exports(1000, 64, 2)], TWO)
    },
    BfqCase {
        weights: UNEQUAL,
        disks: SATA,
        length_ms: [4_000, 10_000, 30_000],
        ..flash("E10", "1000-readers-d4", &[exports(1000, 4, 4).random()], TWO)
    },
    BfqCase {
        weights: UNEQUAL,
        disks: SATA,
        length_ms: [4_000, 10_000, 30_000],
        ..flash("E10", "1000-writers-d4", &[exports(1000, 4, 4).random().writing()], TWO)
    },
    BfqCase {
        length_ms: MANY_DISK,
        step: 1,
        ..shares(
            "E10",
            "100-exports",
            &[exports(100, 128, 4)],
            &[(Measure::ClassOff, AtMost(0.02)), (Measure::ShareOff, AtMost(0.08))],
        )
    },
    BfqCase {
        length_ms: MANY_DISK,
        step: 1,
        ..shares(
            "E10",
            "100-exports-random",
            &[exports(100, 4, 4).random()],
            &[(Measure::ClassOff, AtMost(0.02)), (Measure::ShareOff, AtMost(0.08))],
        )
    },
    BfqCase {
        length_ms: MANY,
        ..flash(
            "E11",
            "noisy-7",
            &[
                Group { pace: Pace::Greedy(1), ..Group::readers(1, 4, 1).random() },
                heavy(7, 1024, 128),
            ],
            LIGHT,
        )
    },
    BfqCase {
        disks: NVME,
        length_ms: MANY,
        ..flash(
            "E11",
            "light-beside-10",
            &[Group::every(1_000, 4).random(), heavy(10, 64, 32)],
            LIGHT,
        )
    },
    BfqCase {
        disks: NVME,
        length_ms: MANY,
        ..flash(
            "E11",
            "light-beside-999",
            &[Group::every(5_000, 4).random(), heavy(999, 64, 2)],
            LIGHT,
        )
    },
    BfqCase {
        disks: NVME,
        length_ms: MANY,
        ..flash(
            "E11",
            "light-beside-999-4k",
            &[Group::every(5_000, 4).random(), heavy(999, 4, 4)],
            LIGHT,
        )
    },
];
