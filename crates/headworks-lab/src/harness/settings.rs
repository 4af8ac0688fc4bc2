//! The settings of a queue that differ from the defaults, for rows.
//!
//! A row names each of them, so that a figure which was reached by hand is not taken for one of the defaults. Left out are the
//! elevator, which has a cell of its own in every row, and what a device announces about itself and nobody sets.

use headworks_core::{QueueOptions, Tunable};

/// What a kernel driver announces.
const ANNOUNCED: [&str; 9] = [
    "queue_depth",
    "max_segments",
    "max_segment_size",
    "write_cache",
    "fua",
    "hw_discard",
    "discard_granularity",
    "discard_max_bytes",
    "hw_write_zeroes",
];
/// Settings that are no policy: cells of their own, and the time-out of runs in which no command is lost.
const ELSEWHERE: [&str; 3] = ["scheduler", "rotational", "io_timeout"];

/// The settings that differ, as `name=value`, in the order of the tunables.
#[must_use]
pub fn settings(queue: &QueueOptions) -> String {
    let usual = QueueOptions::default();
    let is_policy = |tunable: &Tunable| {
        let name = tunable.name();
        // Microseconds say the same exactly.
        !ANNOUNCED.contains(&name) && !ELSEWHERE.contains(&name) && name != "iosched/slice_idle"
    };
    let differs = |tunable: &Tunable| tunable.get(queue) != tunable.get(&usual);
    let shown = |tunable: Tunable| {
        let value = tunable.get(queue);
        let word = tunable.words().map(|words| words[value as usize].to_owned());
        format!("{}={}", tunable.name(), word.unwrap_or_else(|| value.to_string()))
    };
    let all = Tunable::ALL.into_iter().filter(is_policy).filter(differs);
    all.map(shown).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::{DepthMode, Scheduler};

    #[test]
    fn settings_name_what_was_set_and_not_what_was_announced() {
        let usual = QueueOptions::default();
        let announced = QueueOptions { queue_depth: 32, rotational: true, ..usual };
        assert_eq!(settings(&QueueOptions { scheduler: Scheduler::Bfq, ..announced }), "");
        let by_hand = QueueOptions { hw_inflight_kb: 56, hw_depth: DepthMode::Fixed, ..usual };
        assert_eq!(settings(&by_hand), "hw_inflight_kb=56 hw_depth=fixed");
    }

    #[test]
    fn names_that_are_left_out_are_tunables() {
        for name in ANNOUNCED.iter().chain(&ELSEWHERE) {
            assert!(Tunable::from_name(name).is_some(), "{name}");
        }
    }
}
