//! Goals that are known to be missed: why, and the bound that each still meets.

use crate::report::{Goal, Verdict};

/// A goal of a case on a disk that is missed.
struct Miss {
    /// Disk, experiment and case, as in the verdict.
    case: &'static str,
    /// What is judged, in the words of the verdict.
    what: &'static str,
    reason: &'static str,
    still: Goal,
}

const MISSES: &[Miss] = &[];

/// Adds reason and bound to a verdict that may miss its goal.
pub(super) fn explain(verdict: Verdict) -> Verdict {
    let is =
        |miss: &&Miss| verdict.what.strip_prefix(miss.case) == Some(&format!(": {}", miss.what));
    match MISSES.iter().find(is) {
        Some(Miss { reason, still, .. }) => verdict.known(reason, *still),
        None => verdict,
    }
}

#[cfg(test)]
pub(super) fn each_names_one_of(verdicts: &[String]) {
    for (index, Miss { case, what, .. }) in MISSES.iter().enumerate() {
        assert!(
            verdicts.contains(&format!("{case}: {what}")),
            "nothing is judged as {case}: {what}"
        );
        let same = |other: &Miss| (other.case, other.what) == (*case, *what);
        assert!(!MISSES[..index].iter().any(same), "{case}: {what} is there twice");
    }
}
