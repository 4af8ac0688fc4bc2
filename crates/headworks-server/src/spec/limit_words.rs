//! Limits as users write them: the keys of SPECs, of configuration files and of `ctl`, and cgroup's `io.max`.
//!
//! ```text
//!   bps-total=50M  iops-write=5000  iops-write-max=20K  iops-write-max-length=30s  iops-size=16K
//!   rbps=max wbps=52428800 riops=max wiops=max
//! ```
//!
//! Bytes a second are sizes, in powers of 1024. I/Os a second are counts: K, M and G are powers of 1000. `0`, `none` and `max` are
//! no limit.

use headworks_core::limits::{LimitKind, Limits, Rate};

use crate::spec::cache_part::part_word;
use crate::spec::did_you_mean::nearest_name;
use crate::spec::units::{parse_size, parse_time};

/// Every key of limits, by kind; `iops-size` is the last.
pub const LIMIT_KEYS: [&str; 3 * LimitKind::COUNT + 1] = [
    "bps-total",
    "bps-total-max",
    "bps-total-max-length",
    "bps-read",
    "bps-read-max",
    "bps-read-max-length",
    "bps-write",
    "bps-write-max",
    "bps-write-max-length",
    "iops-total",
    "iops-total-max",
    "iops-total-max-length",
    "iops-read",
    "iops-read-max",
    "iops-read-max-length",
    "iops-write",
    "iops-write-max",
    "iops-write-max-length",
    "iops-size",
];

/// Keys of cgroup's `io.max`, in its order.
const CGROUP: [(&str, LimitKind); 4] = [
    ("rbps", LimitKind::BpsRead),
    ("wbps", LimitKind::BpsWrite),
    ("riops", LimitKind::IopsRead),
    ("wiops", LimitKind::IopsWrite),
];

/// Time limit of a command of the kernel's clients, in seconds.
const CLIENT_S: u64 = 30;

/// What a key sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Average(LimitKind),
    Max(LimitKind),
    Length(LimitKind),
    Size,
}

fn part(key: &str) -> Option<Part> {
    let index = LIMIT_KEYS.iter().position(|known| *known == key)?;
    let Some(kind) = LimitKind::ALL.get(index / 3) else { return Some(Part::Size) };
    Some([Part::Average(*kind), Part::Max(*kind), Part::Length(*kind)][index % 3])
}

/// Sets a key of limits; they are not checked together ([`Limits::validate`]).
///
/// # Errors
/// A sentence with valid examples.
pub fn set_limit(limits: &mut Limits, key: &str, word: &str) -> Result<(), String> {
    let part = part(key).ok_or_else(|| {
        // `iops` is nearer to iops-total than a typing error would be.
        let longer = |known: &&str| known.split_once('-').is_some_and(|(kind, _)| kind == key);
        match nearest_name(key, LIMIT_KEYS).or_else(|| LIMIT_KEYS.into_iter().find(longer)) {
            Some(near) => format!("`{key}` is no limit; did you mean {near}?"),
            None => format!(
                "`{key}` is no limit; bps and iops of total, read and write are, as in iops-total, each with -max and -max-length, and \
                 iops-size"
            ),
        }
    })?;
    let amount = |kind: LimitKind| match word {
        "none" | "max" => Ok(0),
        _ if kind.is_bytes() => parse_size(word),
        _ => parse_count(word),
    };
    match part {
        Part::Average(kind) => {
            let rate = &mut limits.rates[kind as usize];
            rate.average = amount(kind)?;
            if rate.average == 0 {
                *rate = Rate::default();
            }
        }
        Part::Max(kind) => {
            let rate = &mut limits.rates[kind as usize];
            rate.max = amount(kind)?;
            if rate.max == 0 {
                rate.max_length_ns = 0;
            }
        }
        Part::Length(kind) => {
            let length = if word == "none" { 0 } else { parse_time(word)? };
            limits.rates[kind as usize].max_length_ns = length;
        }
        Part::Size => limits.iops_size = if word == "none" { 0 } else { parse_size(word)? },
    }
    Ok(())
}

/// The word for what is not limited.
pub const NO_LIMIT: &str = "none";

/// The word of a key's value, bytes as a size. It parses to the same value.
#[must_use]
pub fn limit_word(limits: &Limits, key: &str) -> String {
    let amount = |kind: LimitKind, value: u64| match (value, kind.is_bytes()) {
        (0, _) => NO_LIMIT.to_owned(),
        (bytes, true) => part_word(bytes),
        (count, false) => count.to_string(),
    };
    match part(key) {
        Some(Part::Average(kind)) => amount(kind, limits.rate(kind).average),
        Some(Part::Max(kind)) => amount(kind, limits.rate(kind).max),
        Some(Part::Length(kind)) => match limits.rate(kind).max_length_ns {
            0 => NO_LIMIT.to_owned(),
            length => time_word(length),
        },
        Some(Part::Size) => part_word(limits.iops_size),
        None => String::new(),
    }
}

/// Keys that are set, with their words.
pub fn limit_words(limits: &Limits) -> impl Iterator<Item = (&'static str, String)> + '_ {
    let words = LIMIT_KEYS.into_iter().map(|key| (key, limit_word(limits, key)));
    words.filter(|(_, word)| word != NO_LIMIT)
}

/// A warning if the last of `requests` at once would wait so long that clients with a time limit for each command give up.
#[must_use]
pub fn slow_limit(limits: &Limits, requests: usize) -> Option<String> {
    let ios = LimitKind::ALL.into_iter().filter(|kind| !kind.is_bytes());
    let rates = ios.map(|kind| (kind, limits.rate(kind).average)).filter(|(_, rate)| *rate > 0);
    let (kind, rate) = rates.min_by_key(|(_, rate)| *rate)?;
    let wait_s = requests as u64 / rate;
    (wait_s >= CLIENT_S).then(|| {
        format!(
            "{} {rate} lets the last of {requests} requests wait for {wait_s} s; the kernel's clients give up after 30 s",
            kind.name()
        )
    })
}

/// Limits for a message: those that are set, or `no limits`.
pub(crate) fn shown_limits(limits: &Limits) -> String {
    let words: Vec<String> =
        limit_words(limits).map(|(key, word)| format!("{key} {word}")).collect();
    if words.is_empty() { "no limits".to_owned() } else { words.join(", ") }
}

/// Checks one `key=value` by itself.
///
/// # Errors
/// What is wrong, with what would be right.
pub fn check_limit(text: &str) -> Result<(), String> {
    let (key, value) = text
        .split_once('=')
        .ok_or_else(|| format!("`{text}` is not key=value, as in iops-total=100K,bps-write=50M"))?;
    set_limit(&mut Limits::default(), key.trim(), value.trim())
}

/// Reads `key=value,key=value`, as `--limit` takes it, into limits.
///
/// # Errors
/// The first mistake, with what would be right.
pub fn parse_limits(limits: &mut Limits, text: &str) -> Result<(), String> {
    for word in text.split(',').filter(|word| !word.is_empty()) {
        let (key, value) = word.split_once('=').ok_or_else(|| {
            format!("`{word}` is not key=value, as in iops-total=100K,bps-write=50M")
        })?;
        set_limit(limits, key.trim(), value.trim()).map_err(|error| format!("{key}: {error}"))?;
    }
    limits.validate().map_err(|error| error.to_string())
}

/// The four limits that cgroup knows, as its `io.max` shows them.
#[must_use]
pub fn cgroup_max(limits: &Limits) -> String {
    let word = |(name, kind): (&str, LimitKind)| match limits.rate(kind).average {
        0 => format!("{name}=max"),
        rate => format!("{name}={rate}"),
    };
    CGROUP.map(word).join(" ")
}

/// Sets the limits that a line of cgroup's `io.max` names; others stay.
///
/// # Errors
/// A sentence with what would be right.
pub fn set_cgroup_max(limits: &mut Limits, text: &str) -> Result<(), String> {
    for word in text.split_whitespace() {
        let named = word.split_once('=').and_then(|(name, value)| {
            let known = CGROUP.into_iter().find(|(known, _)| *known == name)?;
            Some((known.1, value))
        });
        let (kind, value) = named.ok_or_else(|| {
            format!("`{word}` is none of rbps=, wbps=, riops= and wiops=, with a number or max")
        })?;
        set_limit(limits, kind.name(), value).map_err(|error| format!("{word}: {error}"))?;
    }
    Ok(())
}

fn parse_count(word: &str) -> Result<u64, String> {
    let letter = word.chars().last().map(|letter| letter.to_ascii_uppercase());
    let power = letter.and_then(|letter| "KMG".find(letter));
    let number = if power.is_some() { &word[..word.len() - 1] } else { word };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()) && text.len() <= 12;
    let scale = 1000_u64.pow(power.map_or(0, |power| power as u32 + 1));
    let value = || -> Option<u64> {
        let parts = 10_u64.pow(fraction.len() as u32);
        let below = match fraction {
            "" => 0,
            _ => fraction.parse::<u64>().ok()?.checked_mul(scale)?,
        };
        let below = below.is_multiple_of(parts).then_some(below / parts)?;
        whole.parse::<u64>().ok()?.checked_mul(scale)?.checked_add(below)
    };
    let valid = digits(whole) && digits(fraction);
    let value = valid.then(value).flatten();
    value.ok_or_else(|| format!("`{word}` is not a count; 500, 20K and 1.5M (powers of 1000) are"))
}

pub(crate) fn time_word(ns: u64) -> String {
    let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns")];
    let unit = units.into_iter().find(|(unit, _)| ns > 0 && ns.is_multiple_of(*unit));
    unit.map_or_else(|| "0".to_owned(), |(unit, name)| format!("{}{name}", ns / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_the_order_of_kinds() {
        for (index, kind) in LimitKind::ALL.into_iter().enumerate() {
            assert_eq!(LIMIT_KEYS[3 * index], kind.name());
            assert_eq!(part(&format!("{}-max", kind.name())), Some(Part::Max(kind)));
            assert_eq!(part(&format!("{}-max-length", kind.name())), Some(Part::Length(kind)));
        }
        assert_eq!((part("iops-size"), part("iops")), (Some(Part::Size), None));
    }

    #[test]
    fn words_round_trip() {
        let mut limits = Limits::default();
        let text = "bps-total=50M,iops-write=5K,iops-write-max=20000,iops-write-max-length=1.5s,iops-size=16K";
        parse_limits(&mut limits, text).unwrap();
        let words: Vec<String> =
            limit_words(&limits).map(|(key, word)| format!("{key}={word}")).collect();
        let expected = [
            "bps-total=50M",
            "iops-write=5000",
            "iops-write-max=20000",
            "iops-write-max-length=1500ms",
            "iops-size=16K",
        ];
        assert_eq!(words, expected);
        let mut again = Limits::default();
        parse_limits(&mut again, &words.join(",")).unwrap();
        assert_eq!(again, limits);
        set_limit(&mut again, "iops-write", "0").unwrap();
        assert_eq!(again.rate(LimitKind::IopsWrite), Rate::default(), "its burst goes, too");
    }

    #[test]
    fn cgroup_line_names_some_limits_and_leaves_others() {
        let mut limits = Limits::default();
        set_cgroup_max(&mut limits, "wbps=52428800 riops=120").unwrap();
        assert_eq!(cgroup_max(&limits), "rbps=max wbps=52428800 riops=120 wiops=max");
        set_cgroup_max(&mut limits, "riops=max").unwrap();
        assert_eq!(cgroup_max(&limits), "rbps=max wbps=52428800 riops=max wiops=max");
        assert!(set_cgroup_max(&mut limits, "xbps=1").unwrap_err().contains("wbps="));
        assert!(set_cgroup_max(&mut limits, "8:0").is_err());
    }

    #[test]
    fn counts_are_powers_of_1000() {
        for (word, count) in [("5", 5), ("100K", 100_000), ("1.5M", 1_500_000), ("0", 0)] {
            assert_eq!(parse_count(word), Ok(count), "{word}");
        }
        for word in ["", "K", "-1", "1.5", "1.5.5K", "x", "1KB", "99999999999G", "0.0001K"] {
            assert!(parse_count(word).is_err(), "{word}");
        }
    }

    #[test]
    fn limit_below_128_ios_in_30_seconds_is_a_warning() {
        let mut limits = Limits::default();
        parse_limits(&mut limits, "iops-read=4,bps-total=1M").unwrap();
        assert!(slow_limit(&limits, 128).unwrap().contains("iops-read 4"));
        parse_limits(&mut limits, "iops-read=5").unwrap();
        assert_eq!(slow_limit(&limits, 128), None);
    }

    #[test]
    fn mistakes_name_what_is_right() {
        let error = |text: &str| parse_limits(&mut Limits::default(), text).unwrap_err();
        assert!(error("iops=5").contains("did you mean"), "{}", error("iops=5"));
        assert!(error("iops-total").contains("not key=value"));
        assert!(error("iops-total=many").contains("20K"));
        assert!(error("bps-read=1k").contains("4096"));
        assert!(error("bps-read-max=1G").contains("bps-read"));
    }
}
