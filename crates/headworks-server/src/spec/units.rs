//! Parsers of sizes, times, probabilities and switches as users write them.
//!
//! The syntax follows nbdkit, qemu and fio where those agree. Sizes are powers of 1024 with or without `iB`; `kB` and
//! `MB` are refused, since programs differ on them. A time without a unit is in seconds. Errors are one sentence with
//! examples.

use headworks_core::{ExportConfig, Ioprio};
use headworks_images::Probability;

/// Units of a [`Probability`] in one.
const BILLION: u32 = 1_000_000_000;

/// Parses a size in bytes: `4096`, `64k`, `10M`, `1.5G`, `1GiB`, `8s` (sectors of 512 bytes).
///
/// # Errors
/// A sentence with valid examples.
pub fn parse_size(word: &str) -> Result<u64, String> {
    let (number, unit) = split(word);
    let bytes: u128 = match unit {
        "" => 1,
        "s" => 512,
        _ => binary_unit(word, number, unit)?,
    };
    let value = scale(number, bytes).ok_or_else(|| {
        format!("`{word}` is not a size; 4096, 64k, 10M, 1.5G or 8s (sectors) are")
    })?;
    u64::try_from(value)
        .ok()
        .filter(|&bytes| bytes <= i64::MAX as u64)
        .ok_or_else(|| format!("`{word}` is more than the largest size, 8 EiB less one byte"))
}

fn binary_unit(word: &str, number: &str, unit: &str) -> Result<u128, String> {
    let (letter, rest) = unit.split_at(unit.chars().next().map_or(0, char::len_utf8));
    let power = "KMGTPE".find(&letter.to_ascii_uppercase());
    match (power, rest) {
        (Some(power), "" | "iB") => Ok(1 << (10 * (power + 1))),
        (Some(_), "B" | "b") => {
            let letter = letter.to_ascii_uppercase();
            Err(format!(
                "`{word}` may mean powers of 1000 or of 1024; write {number}{letter}, which is {number} {letter}iB"
            ))
        }
        _ => Err(format!(
            "`{word}` is not a size; its unit `{unit}` is none of K, M, G, T, P, E (powers of 1024) and s (sectors of 512 bytes)"
        )),
    }
}

/// Parses a time in nanoseconds: `10` and `10s` are seconds, then `10ms`, `10us`, `10ns`, `1.5ms`, and `5min`, `2h`, `1d`. `5m` is none:
/// some mean milliseconds.
///
/// # Errors
/// A sentence with valid examples.
pub fn parse_time(word: &str) -> Result<u64, String> {
    let (number, unit) = split(word);
    let ns: Option<u128> = match unit {
        "d" => Some(86_400_000_000_000),
        "h" => Some(3_600_000_000_000),
        "min" => Some(60_000_000_000),
        "" | "s" => Some(1_000_000_000),
        "ms" => Some(1_000_000),
        "us" | "\u{b5}s" => Some(1_000),
        "ns" => Some(1),
        _ => None,
    };
    let value = ns.and_then(|ns| scale(number, ns));
    value
        .and_then(|value| u64::try_from(value).ok())
        .filter(|&ns| ns <= i64::MAX as u64)
        .ok_or_else(|| {
            format!("`{word}` is not a time; 10 (seconds), 5min, 10s, 1.5ms, 10us or 10ns are")
        })
}

/// Parses a probability: `1%`, `1:100` and `0.01` are the same.
///
/// # Errors
/// A sentence with valid examples.
pub fn parse_probability(word: &str) -> Result<Probability, String> {
    let billionths = if let Some(percent) = word.strip_suffix('%') {
        scale(percent, u128::from(BILLION) / 100)
    } else if let Some((part, whole)) = word.split_once(':') {
        let whole = scale(whole, 1).filter(|&whole| whole > 0);
        let part = scale(part, 1);
        part.zip(whole)
            .and_then(|(part, whole)| Some(part.checked_mul(u128::from(BILLION))? / whole))
    } else {
        scale(word, u128::from(BILLION))
    };
    billionths
        .and_then(|billionths| u32::try_from(billionths).ok())
        .and_then(Probability::from_billionths)
        .ok_or_else(|| {
            format!(
                "`{word}` is not a probability; 1%, 1:100 and 0.01 are, in steps of a billionth"
            )
        })
}

/// Parses a switch: `on`, `yes`, `true`, `1`, or `off`, `no`, `false`, `0`.
///
/// # Errors
/// A sentence with valid examples.
pub fn parse_switch(word: &str) -> Result<bool, String> {
    match word.to_ascii_lowercase().as_str() {
        "1" | "on" | "true" | "yes" => Ok(true),
        "0" | "off" | "false" | "no" => Ok(false),
        _ => Err(format!("`{word}` is neither on nor off")),
    }
}

/// Accepted weights, for errors.
pub const WEIGHTS: &str = "1..=10000";

/// Accepted forms of a class, for errors.
pub const CLASSES: &str = "rt, be or idle, with a level of 0 to 7: be:0";

/// Parses a weight from `1` to `10000`.
///
/// # Errors
/// A sentence with valid examples.
pub fn parse_weight(word: &str) -> Result<u16, String> {
    let (low, high) = ExportConfig::WEIGHTS.into_inner();
    let digits = word.bytes().all(|byte| byte.is_ascii_digit());
    let weight = digits.then(|| word.parse().ok()).flatten();
    weight
        .filter(|weight| ExportConfig::WEIGHTS.contains(weight))
        .ok_or_else(|| format!("`{word}` is not a weight; {low} to {high} are"))
}

/// Parses a class with or without a level: `rt`, `be:0`, `idle`; a comma may replace the colon.
///
/// # Errors
/// A sentence with valid examples.
pub fn parse_ioprio(word: &str) -> Result<Ioprio, String> {
    Ioprio::parse(&word.replacen(':', ",", 1)).ok_or_else(|| {
        format!(
            "`{word}` is not a class; rt, be and idle are, and with a level of 0 to 7, the best first, be:0"
        )
    })
}

/// Splits the number at the start of a word from the rest.
fn split(word: &str) -> (&str, &str) {
    let end = word.find(|c: char| !c.is_ascii_digit() && c != '.');
    word.split_at(end.unwrap_or(word.len()))
}

/// `number` times `unit`, exactly; `None` if it is invalid, not whole or too large.
fn scale(number: &str, unit: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| -> Option<u128> {
        let all_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        all_digits.then(|| text.parse().ok()).flatten()
    };
    let parts = 10u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let fraction = digits(fraction)?.checked_mul(unit)?;
    if !fraction.is_multiple_of(parts) {
        return None;
    }
    digits(whole)?.checked_mul(unit)?.checked_add(fraction / parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_with_all_units() {
        for (word, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("8s", 4096),
            ("64k", 64 << 10),
            ("64K", 64 << 10),
            ("64KiB", 64 << 10),
            ("10m", 10 << 20),
            ("1.5G", 3 << 29),
            ("2T", 2 << 40),
            ("1P", 1 << 50),
            ("7E", 7 << 60),
            ("9223372036854775807", i64::MAX as u64),
        ] {
            assert_eq!(parse_size(word), Ok(bytes), "{word}");
        }
        for word in [
            "",
            "G",
            "-1",
            "1.",
            ".5G",
            "1..5G",
            "0.3",
            "1.0001K",
            "8E",
            "1 G",
            "1e3",
            "0x10",
            "5z",
            "5Gi",
            "5GiBx",
            "5\u{e9}",
            "99999999999999999999999999999999999999999E",
        ] {
            assert!(parse_size(word).is_err(), "{word}");
        }
        let hint = parse_size("10MB").unwrap_err();
        assert!(hint.contains("1000") && hint.contains("write 10M"), "{hint}");
        assert!(parse_size("10kB").unwrap_err().contains("write 10K"));
    }

    #[test]
    fn times_parse_with_all_units() {
        for (word, ns) in [
            ("10", 10_000_000_000),
            ("10s", 10_000_000_000),
            ("0.5", 500_000_000),
            ("1.5ms", 1_500_000),
            ("10us", 10_000),
            ("3ns", 3),
            ("0", 0),
            ("1.5min", 90_000_000_000),
            ("1h", 3_600_000_000_000),
            ("1d", 86_400_000_000_000),
        ] {
            assert_eq!(parse_time(word), Ok(ns), "{word}");
        }
        for word in
            ["", "ms", "min", "5m", "1w", "-1s", "0.5ns", "1 s", "9999999999999", "9999999d"]
        {
            assert!(parse_time(word).is_err(), "{word}");
        }
    }

    #[test]
    fn probabilities_parse_with_all_units() {
        let parts = |parts| Probability::from_billionths(parts).unwrap();
        let hundredth = parts(BILLION / 100);
        for word in ["1%", "1:100", "0.01", "10:1000", "1.0%"] {
            assert_eq!(parse_probability(word), Ok(hundredth), "{word}");
        }
        assert_eq!(parse_probability("1:3"), Ok(parts(333_333_333)));
        for (word, probability) in [("0", Probability::NEVER), ("100%", Probability::ALWAYS)] {
            assert_eq!(parse_probability(word), Ok(probability));
        }
        for word in ["", "%", "101%", "1.1", "2:1", "1:0", "-1", "1:", "0.0000000001", "1/2"] {
            assert!(parse_probability(word).is_err(), "{word}");
        }
    }

    #[test]
    fn switches_parse_all_words() {
        assert_eq!(parse_switch("On"), Ok(true));
        assert_eq!(parse_switch("0"), Ok(false));
        assert!(parse_switch("maybe").is_err());
    }
}
