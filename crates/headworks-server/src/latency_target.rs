//! Latency targets as users write them: `5ms`, or `none`.

use crate::units::parse_time;

/// The shortest target in microseconds: below it the cost of a request in the server itself counts.
const TARGET_MIN_US: u64 = 20;
/// The longest target in microseconds.
const TARGET_MAX_US: u64 = 60_000_000;

/// Parses a target in microseconds; `none` and `0` are 0, no target.
///
/// # Errors
/// A sentence with the accepted range.
pub fn parse_latency_target(word: &str) -> Result<u32, String> {
    if matches!(word, "none" | "0") {
        return Ok(0);
    }
    let us = parse_time(word)? / 1000;
    match (TARGET_MIN_US..=TARGET_MAX_US).contains(&us) {
        true => Ok(us as u32),
        false => Err(format!("`{word}` is not a latency target; 20us to 60s, or none, are")),
    }
}

/// Returns a target in microseconds as a word that [`parse_latency_target`] takes.
#[must_use]
pub fn latency_target_word(us: u32) -> String {
    match us {
        0 => "none".into(),
        us if us.is_multiple_of(1_000_000) => format!("{}s", us / 1_000_000),
        us if us.is_multiple_of(1_000) => format!("{}ms", us / 1_000),
        us => format!("{us}us"),
    }
}

/// Returns the target of an export: its own, or that of its tenant.
#[must_use]
pub fn target_in_force(own_us: u32, of_tenant_us: u32) -> u32 {
    if own_us > 0 { own_us } else { of_tenant_us }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_targets_are_the_same() {
        for (word, us) in [("none", 0), ("250us", 250), ("5ms", 5_000), ("2s", 2_000_000)] {
            assert_eq!(parse_latency_target(word), Ok(us));
            assert_eq!(latency_target_word(us), word);
        }
        assert_eq!(parse_latency_target("0.5ms"), Ok(500));
        for wrong in ["19us", "61s", "fast", "-1ms"] {
            assert!(parse_latency_target(wrong).is_err(), "{wrong}");
        }
        assert_eq!((target_in_force(5, 9), target_in_force(0, 9)), (5, 9));
    }
}
