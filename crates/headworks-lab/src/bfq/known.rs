//! Goals that are missed for reasons that no row shows: open misses, with today's figures.
//!
//! docs/VALIDATION.md explains what is known of them. A bound that explains a miss is computed in `judge`.

use super::cases::Measure;
use super::run::Bounds;
use crate::report::{Figure, Verdict};

const FAR: &str = "shares are of the disk's time, and each change of client costs a long seek";
const PAIRS: &str = "each change between the two costs two positionings";
const SLOW_DISK: &str = "hold and limits are those of the disk of 7200/min; positionings take longer here, or transfers are faster";

/// A goal of a case on a disk that is missed.
struct Open {
    /// Disk, experiment and case, as in the verdict.
    case: &'static str,
    measure: Measure,
    remark: &'static str,
    today: Figure,
}

const fn open(case: &'static str, measure: Measure, remark: &'static str, today: f64) -> Open {
    Open { case, measure, remark, today: Figure::new(today) }
}

const OPEN: &[Open] = {
    use Measure::*;
    &[
        open("hdd-32, E1 shares-random", ShareOff, FAR, 0.0497),
        open("hdd-5400, E1 shares-random", ShareOff, FAR, 0.0775),
        open("hdd-5400, E3 10-random-writers", Bytes, SLOW_DISK, 0.9587),
        open("hdd-10k, E3 10-random-writers", Bytes, SLOW_DISK, 0.979),
        open("hdd-32, E4 random-beside-d1", RestOfAlone, PAIRS, 0.2968),
        open("hdd-5400, E4 random-beside-d1", RestOfAlone, PAIRS, 0.2958),
        open("hdd-5400, E4 random-beside-d4", FirstOfAlone, PAIRS, 0.4259),
        open("hdd-5400, E4 random-beside-d32", FirstOfAlone, PAIRS, 0.3911),
        open("hdd-5400, E5 gnome-terminal", RestOfMedia, SLOW_DISK, 0.3857),
        open("hdd-5400, E5 lowriter", RestOfMedia, SLOW_DISK, 0.3905),
        open("hdd-5400, E8 soft-readers-d4", FirstP99, SLOW_DISK, 119.5),
        open("hdd-5400, E8 soft-readers-1m", FirstP99, SLOW_DISK, 104.9),
        open("hdd-5400, E8 soft-writers-1m", RestBytes, SLOW_DISK, 0.4872),
        open("hdd-5400, E8 soft-writers-1m", RestBytesHold100, SLOW_DISK, 0.6251),
        open("hdd-32, E10 100-exports-random", ShareOff, FAR, 0.1302),
        open("hdd-5400, E10 100-exports-random", ShareOff, FAR, 0.1835),
    ]
};

impl Open {
    /// The words of the verdict.
    fn text(&self) -> String {
        format!("{}: {}", self.case, self.measure.text())
    }
}

/// Marks a verdict of the default options that may miss its goal as open.
pub(super) fn explain(verdict: Verdict, bounds: Bounds) -> Verdict {
    let is = |miss: &&Open| bounds == Bounds::Default && miss.text() == verdict.what;
    match OPEN.iter().find(is) {
        Some(Open { remark, today, .. }) => verdict.open(remark, *today),
        None => verdict,
    }
}

#[cfg(test)]
pub(super) fn each_names_one_of(verdicts: &[String]) {
    assert!(OPEN.len() <= 16, "a new miss needs a bound or a run without its cause");
    for (index, miss) in OPEN.iter().enumerate() {
        let text = miss.text();
        assert!(verdicts.contains(&text), "nothing is judged as {text}");
        assert!(!OPEN[..index].iter().any(|other| other.text() == text), "{text} is there twice");
    }
}
