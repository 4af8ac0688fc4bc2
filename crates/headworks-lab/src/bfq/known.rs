//! Goals that are known to be missed: why, and the bound that each still meets.
//!
//! docs/VALIDATION.md explains the reasons. A bound leaves about a fifth to the present value; beyond it a miss is a new one.

use super::cases::Measure;
use crate::report::{Goal, Verdict};

const LONG_ROUND: &str =
    "a round of 100 slots takes many seconds, so a client has few of them in the run";
const BUDGETS: &str = "a slot is a large part of the smallest share in a minute";
const PAIRS: &str =
    "a share of the disk's time, of which each change between the two costs two positionings";
const SLOW_DISK: &str = "hold and limits are those of the disk of 7200/min; positionings take longer here, or transfers are faster";
const SHORT_SLOTS: &str =
    "slots of 100 us keep the queue too short for the link to be busy throughout";
const LARGE: &str = "a request is a large part of a slot";
const RAISED: &str = "a fresh client is raised for 3 s, longer than the run, and the link idles for it; without low_latency 0.85 to 0.9 of the bytes";
const RAISED_LIGHT: &str = "a fresh client is raised for 3 s, longer than the run, and the link idles for it; without low_latency the light client's p99 is 1.2 to 1.5 times alone";

/// A goal of a case on a disk that is missed.
struct Miss {
    /// Disk, experiment and case, as in the verdict.
    case: &'static str,
    measure: Measure,
    reason: &'static str,
    still: Goal,
}

const fn miss(case: &'static str, measure: Measure, reason: &'static str, still: Goal) -> Miss {
    Miss { case, measure, reason, still }
}

const MISSES: [Miss; 39] = {
    use Goal::{AtLeast, AtMost};
    use Measure::*;
    [
        miss("hdd-32, E1 shares-d4", ShareOff, BUDGETS, AtMost(0.025)),
        miss("hdd-5400, E1 shares-d4", ShareOff, BUDGETS, AtMost(0.028)),
        miss("hdd-32, E1 shares-random", ShareOff, BUDGETS, AtMost(0.088)),
        miss("hdd-5400, E1 shares-random", ShareOff, BUDGETS, AtMost(0.096)),
        miss("hdd-10k, E1 shares-random", ShareOff, BUDGETS, AtMost(0.056)),
        miss("hdd-5400, E2 writers-1m", ShareOff, BUDGETS, AtMost(0.047)),
        miss("hdd-5400, E3 10-random-writers", Bytes, SLOW_DISK, AtLeast(0.82)),
        miss("hdd-32, E4 random-beside-d1", RestOfAlone, PAIRS, AtLeast(0.25)),
        miss("hdd-5400, E4 random-beside-d1", RestOfAlone, PAIRS, AtLeast(0.25)),
        miss("hdd-5400, E4 random-beside-d4", FirstOfAlone, PAIRS, AtLeast(0.36)),
        miss("hdd-5400, E4 random-beside-d32", FirstOfAlone, PAIRS, AtLeast(0.33)),
        miss("hdd-5400, E5 gnome-terminal", RestOfMedia, SLOW_DISK, AtLeast(0.33)),
        miss("hdd-5400, E5 lowriter", RestOfMedia, SLOW_DISK, AtLeast(0.33)),
        miss("hdd-5400, E8 soft-readers-d4", FirstP99, SLOW_DISK, AtMost(143.0)),
        miss("hdd-5400, E8 soft-readers-1m", FirstP99, SLOW_DISK, AtMost(126.0)),
        miss("hdd-10k, E8 soft-readers-1m", FirstP99, SLOW_DISK, AtMost(123.0)),
        miss("hdd-5400, E8 soft-writers-1m", RestBytes, SLOW_DISK, AtLeast(0.44)),
        miss("hdd-5400, E8 soft-writers-1m", RestBytesHold100, SLOW_DISK, AtLeast(0.56)),
        miss("hdd-32, E10 100-exports", ClassOff, LONG_ROUND, AtMost(0.091)),
        miss("hdd-32, E10 100-exports", ShareOff, LONG_ROUND, AtMost(0.19)),
        miss("hdd-5400, E10 100-exports", ClassOff, LONG_ROUND, AtMost(0.23)),
        miss("hdd-5400, E10 100-exports", ShareOff, LONG_ROUND, AtMost(0.42)),
        miss("hdd-32, E10 100-exports-random", ClassOff, LONG_ROUND, AtMost(0.046)),
        miss("hdd-32, E10 100-exports-random", ShareOff, LONG_ROUND, AtMost(0.22)),
        miss("hdd-5400, E10 100-exports-random", ClassOff, LONG_ROUND, AtMost(0.039)),
        miss("hdd-5400, E10 100-exports-random", ShareOff, LONG_ROUND, AtMost(0.31)),
        miss("hdd-10k, E10 100-exports-random", ClassOff, LONG_ROUND, AtMost(0.051)),
        miss("hdd-10k, E10 100-exports-random", ShareOff, LONG_ROUND, AtMost(0.25)),
        miss("nvme, E9 flash-start-1m", BytesOfMost, SHORT_SLOTS, AtLeast(0.72)),
        miss("nvme, E10 1000-exports-64k", ShareOff, LARGE, AtMost(0.044)),
        miss("sata, E11 noisy-7", P99OfAlone, RAISED, AtMost(4.19)),
        miss("sata, E11 noisy-7", BytesOfMost, RAISED, AtLeast(0.045)),
        miss("sata-half, E11 noisy-7", P99OfAlone, RAISED, AtMost(4.19)),
        miss("sata-half, E11 noisy-7", BytesOfMost, RAISED, AtLeast(0.045)),
        miss("nvme, E11 noisy-7", BytesOfMost, RAISED, AtLeast(0.15)),
        miss("nvme, E11 light-beside-10", BytesOfMost, SHORT_SLOTS, AtLeast(0.73)),
        miss("nvme, E11 light-beside-999", P99OfAlone, RAISED_LIGHT, AtMost(7.0)),
        miss("nvme, E11 light-beside-999", BytesOfMost, SHORT_SLOTS, AtLeast(0.73)),
        miss("nvme, E11 light-beside-999-4k", P99OfAlone, RAISED_LIGHT, AtMost(14.6)),
    ]
};

impl Miss {
    /// The words of the verdict.
    fn text(&self) -> String {
        format!("{}: {}", self.case, self.measure.text())
    }
}

/// Adds reason and bound to a verdict that may miss its goal.
pub(super) fn explain(verdict: Verdict) -> Verdict {
    match MISSES.iter().find(|miss| miss.text() == verdict.what) {
        Some(Miss { reason, still, .. }) => verdict.known(reason, *still),
        None => verdict,
    }
}

#[cfg(test)]
pub(super) fn each_names_one_of(verdicts: &[String]) {
    for (index, miss) in MISSES.iter().enumerate() {
        let text = miss.text();
        assert!(verdicts.contains(&text), "nothing is judged as {text}");
        assert!(!MISSES[..index].iter().any(|other| other.text() == text), "{text} is there twice");
    }
}
