//! Latency targets as users write them: `5ms`, or `none`.

use serde_json::Value;

use crate::spec::units::parse_time;

/// Accepted latency targets, for errors.
pub const TARGETS: &str = "20us..=60s, or none; target=5000 or target=max for io.latency";

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

/// Returns a target in microseconds as a word that `parse_latency_target` takes.
#[must_use]
pub fn latency_target_word(us: u32) -> String {
    match us {
        0 => "none".into(),
        us if us.is_multiple_of(1_000_000) => format!("{}s", us / 1_000_000),
        us if us.is_multiple_of(1_000) => format!("{}ms", us / 1_000),
        us => format!("{us}us"),
    }
}

/// Returns a target in microseconds as `ctl` shows it.
pub fn target_value(us: u32) -> Value {
    latency_target_word(us).into()
}

/// Returns a target as text: `5 ms`.
#[must_use]
pub fn shown_target(us: u32) -> String {
    let word = latency_target_word(us);
    let unit = word.find(|letter: char| letter.is_ascii_alphabetic()).unwrap_or(word.len());
    format!("{} {}", &word[..unit], &word[unit..])
}

/// Returns the least target in microseconds that can be kept on a device with this smallest latency, in nanoseconds: twice of it.
#[must_use]
pub fn least_target(smallest_ns: u64) -> u64 {
    (2 * smallest_ns).div_ceil(1000).max(TARGET_MIN_US)
}

/// Parses the line of cgroup's `io.latency`: `target=5000` in microseconds, `target=max` for none.
///
/// # Errors
/// A sentence with what would be right.
pub fn parse_cgroup_latency(text: &str) -> Result<u32, String> {
    let wrong = || format!("`{text}` is not target=MICROSECONDS or target=max");
    let value = text.trim().strip_prefix("target=").ok_or_else(wrong)?;
    match value {
        "max" => Ok(0),
        number if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) => {
            let word = if number == "0" { "0".to_owned() } else { format!("{number}us") };
            parse_latency_target(&word)
        }
        _ => Err(wrong()),
    }
}

/// Returns a target in microseconds as cgroup's `io.latency` shows it.
#[must_use]
pub fn cgroup_latency(us: u32) -> String {
    if us == 0 { "target=max".into() } else { format!("target={us}") }
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
        assert_eq!(
            ["2s", "5ms", "250us"].map(|word| shown_target(parse_latency_target(word).unwrap())),
            ["2 s", "5 ms", "250 us"]
        );
        assert_eq!([0, 9_999, 10_000, 10_001, 450_400].map(least_target), [20, 20, 20, 21, 901]);
        assert_eq!((target_in_force(5, 9), target_in_force(0, 9)), (5, 9));
    }

    #[test]
    fn cgroup_line_is_the_same_target() {
        for (line, us) in [("target=max", 0), ("target=5000", 5_000), ("target=250", 250)] {
            assert_eq!((parse_cgroup_latency(line), cgroup_latency(us)), (Ok(us), line.into()));
        }
        assert_eq!(parse_cgroup_latency("target=0"), Ok(0));
        for wrong in ["5000", "target=", "target=5ms", "8:0 target=5", "target=1", "target=-5"] {
            assert!(parse_cgroup_latency(wrong).is_err(), "{wrong}");
        }
    }
}
