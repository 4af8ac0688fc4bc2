//! Options of an export in its specification: weight, class, cache mode, error policy and limits.
//!
//! ```text
//!   file:path=disk.img,weight=400,ioprio=rt:0,cache=writethrough        delay:read=5ms,weight=50,of=disk.img
//! ```
//!
//! Every type takes these keys, but only as the outermost one, since they belong to the export. They are removed before
//! the device parses the rest.

use headworks_core::limits::Limits;
use headworks_core::{ConfigError, ErrorPolicy, ExportConfig, Ioprio, WriteMode};

use super::keys::{EXPORT_KEYS, list, split_value};
use super::split_type;
use crate::cache_part::parse_part;
use crate::latency_target::parse_latency_target;
use crate::limit_words::{LIMIT_KEYS, set_limit};
use crate::tenant::TenantName;
use crate::units::{parse_ioprio, parse_switch, parse_weight};

/// Weight, class and cache options of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportOptions {
    /// Weight beside other exports, 1..=10000.
    pub weight: u16,
    /// Class of its clients' requests.
    pub ioprio: Ioprio,
    /// Cache mode; none leaves it to the server and to other exports of the image.
    pub mode: Option<WriteMode>,
    /// Policy for failed write-back; none leaves it open, too.
    pub on_error: Option<ErrorPolicy>,
    /// What clients are told after an unclean end; none is [`UncleanPolicy::Auto`].
    pub on_unclean: Option<UncleanPolicy>,
    /// The tenant whose share it uses.
    pub tenant: Option<TenantName>,
    /// Latency target in microseconds, 0 for none.
    pub latency_target_us: u32,
    /// Most dirty data of it in the page cache, in bytes; 0 for no cap.
    pub dirty: u64,
    /// Clients are told what the export is made of: paths, bases and URIs.
    pub describe: bool,
    /// Limits of bytes and I/Os a second of all its clients together.
    pub limits: Limits,
}

/// What an export does after its server died and acknowledged writes may be lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UncleanPolicy {
    /// As `RefuseFlush` if the host has not been started since: clients may have survived. As `Serve` after a power failure.
    #[default]
    Auto,
    /// It is served as it is, with a warning at the start.
    Serve,
    /// Its flushes and FUA writes fail until the operator acknowledges it: a client that survived learns of the loss.
    RefuseFlush,
}

impl UncleanPolicy {
    /// Every policy, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Serve, Self::RefuseFlush];

    /// The word that users give.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Serve => "serve",
            Self::RefuseFlush => "refuse-flush",
        }
    }

    /// Whether flushes fail after a server that ended uncleanly and whose memory is gone; `same_boot` if the host has not been started
    /// since.
    #[must_use]
    pub const fn refuses(self, same_boot: bool) -> bool {
        match self {
            Self::Auto => same_boot,
            Self::Serve => false,
            Self::RefuseFlush => true,
        }
    }
}

impl Default for ExportOptions {
    fn default() -> Self {
        let weight = ExportConfig::default().weight;
        Self {
            weight,
            ioprio: Ioprio::default(),
            mode: None,
            on_error: None,
            on_unclean: None,
            tenant: None,
            latency_target_us: 0,
            dirty: 0,
            describe: false,
            limits: Limits::default(),
        }
    }
}

impl ExportOptions {
    /// Takes the options out of `text`; returns them and the rest.
    pub fn take(text: &str) -> Result<(Self, String), ConfigError> {
        let Some((_, keys)) = split_type(text)? else {
            return Ok((Self::default(), text.to_owned()));
        };
        let mut left = text[..text.len() - keys.len()].to_owned();
        let mut given = [const { None }; EXPORT_KEYS.len()];
        let mut limits = Vec::new();
        let mut rest = keys;
        // `of` takes the whole rest; an unknown key is reported by the device.
        while let Some((key, after)) = rest.split_once('=').filter(|(key, _)| *key != "of") {
            let (value, next) = split_value(after);
            match EXPORT_KEYS.iter().position(|known| *known == key) {
                None if let Some(name) = LIMIT_KEYS.iter().find(|name| **name == key) => {
                    if limits.iter().any(|(other, _)| other == name) {
                        return Err(ConfigError::new(name, "is given twice"));
                    }
                    limits.push((*name, value));
                }
                None => left.push_str(&rest[..rest.len() - next.len()]),
                Some(index) if given[index].is_some() => {
                    return Err(ConfigError::new(EXPORT_KEYS[index], "is given twice"));
                }
                Some(index) => given[index] = Some(value),
            }
            rest = next;
        }
        left.push_str(rest);
        let [weight, ioprio, mode, on_error, on_unclean, tenant, target, dirty, describe] = given;
        let wrong = |key| move |message: String| ConfigError::new(key, message);
        let mut share = Self::default();
        if let Some(word) = weight {
            share.weight = parse_weight(&word).map_err(wrong("weight"))?;
        }
        if let Some(word) = ioprio {
            share.ioprio = parse_ioprio(&word).map_err(wrong("ioprio"))?;
        }
        for (name, word) in limits {
            set_limit(&mut share.limits, name, &word).map_err(wrong(name))?;
        }
        share.limits.validate()?;
        share.mode = choice("cache", mode, &WriteMode::ALL.map(|mode| (mode.name(), mode)))?;
        let policies = ErrorPolicy::ALL.map(|policy| (policy.name(), policy));
        share.on_error = choice("on-error", on_error, &policies)?;
        let policies = UncleanPolicy::ALL.map(|policy| (policy.name(), policy));
        share.on_unclean = choice("on-unclean", on_unclean, &policies)?;
        let tenant = tenant.as_deref().map(TenantName::parse).transpose();
        share.tenant = tenant.map_err(wrong("tenant"))?;
        let target = target.as_deref().map(parse_latency_target).transpose();
        share.latency_target_us = target.map_err(wrong("latency-target"))?.unwrap_or(0);
        let dirty = dirty.as_deref().map(parse_part).transpose();
        share.dirty = dirty.map_err(wrong("dirty"))?.unwrap_or(0);
        let describe = describe.as_deref().map(parse_switch).transpose();
        share.describe = describe.map_err(wrong("describe"))?.unwrap_or(false);
        Ok((share, left))
    }
}

/// Parses one of several words.
fn choice<T: Copy>(
    key: &'static str,
    word: Option<String>,
    known: &[(&str, T)],
) -> Result<Option<T>, ConfigError> {
    let Some(word) = word else { return Ok(None) };
    let found = known.iter().find(|(name, _)| *name == word);
    found.map(|(_, value)| Some(*value)).ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        ConfigError::new(key, format!("`{word}` is none of {}", list(&names)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::IoClass;
    use headworks_core::limits::LimitKind;

    fn taken(text: &str) -> (u16, String, String) {
        let (share, left) = ExportOptions::take(text).unwrap();
        (share.weight, share.ioprio.to_string(), left)
    }

    #[test]
    fn export_options_are_taken_from_any_position() {
        let rt = || Ioprio::new(IoClass::RealTime, 4).to_string();
        let be = || Ioprio::default().to_string();
        for (text, weight, ioprio, left) in [
            ("mem:size=1M,weight=400,ioprio=rt", 400, rt(), "mem:size=1M,"),
            ("mem:weight=1,size=1M", 1, be(), "mem:size=1M"),
            ("mem:weight=10000", 10_000, be(), "mem:"),
            ("file:path=a,,weight=b,,,weight=7", 7, be(), "file:path=a,,weight=b,,,"),
            ("file:ioprio=be:0,path=x", 100, "be,0".into(), "file:path=x"),
            ("file:ioprio=idle,,7,path=x", 100, "idle,7".into(), "file:path=x"),
            ("delay:weight=5,read=1ms,of=mem:size=1", 5, be(), "delay:read=1ms,of=mem:size=1"),
            ("delay:of=mem:weight=5,size=1", 100, be(), "delay:of=mem:weight=5,size=1"),
            ("/a,weight=5", 100, be(), "/a,weight=5"),
            ("mem:nonsense,weight=5", 100, be(), "mem:nonsense,weight=5"),
        ] {
            assert_eq!(taken(text), (weight, ioprio, left.to_owned()), "{text}");
        }
    }

    #[test]
    fn cache_options_are_taken_and_optional() {
        let taken =
            |text: &str| ExportOptions::take(text).map(|(share, _)| (share.mode, share.on_error));
        assert_eq!(taken("mem:size=1M"), Ok((None, None)));
        for mode in WriteMode::ALL {
            let text = format!("delay:cache={},on-error=retry,of=mem:size=1M", mode.name());
            assert_eq!(taken(&text), Ok((Some(mode), Some(ErrorPolicy::Retry))));
        }
        assert_eq!(taken("/a,cache=unsafe"), Ok((None, None)));
    }

    #[test]
    fn limits_are_taken_whatever_their_order() {
        let (share, left) =
            ExportOptions::take("mem:bps-write-max=100M,size=1M,bps-write=50M,iops-size=4k")
                .unwrap();
        let rate = share.limits.rate(LimitKind::BpsWrite);
        assert_eq!((rate.average, rate.max, rate.max_length_ns), (50 << 20, 100 << 20, 0));
        assert_eq!((share.limits.iops_size, &*left), (4096, "mem:size=1M,"));
    }

    #[test]
    fn errors_name_the_key_and_what_it_takes() {
        for (text, words) in [
            ("mem:bps-read=1k", "bps-read: 1024 is too low; the least is 4096"),
            ("mem:iops-total=5,iops-total=6", "iops-total: is given twice"),
            ("mem:iops-read-max=5", "iops-read: is 0"),
            ("mem:bps-total=x", "bps-total: `x` is not a size"),
            ("mem:weight=0", "weight: `0` is not a weight; 1 to 10000 are"),
            ("mem:weight=10001", "1 to 10000"),
            ("mem:weight=-1", "1 to 10000"),
            ("mem:weight=", "1 to 10000"),
            ("mem:weight=1,weight=1", "weight: is given twice"),
            ("mem:ioprio=best", "ioprio: `best` is not a class; rt, be and idle are"),
            ("mem:ioprio=rt:8", "0 to 7"),
            ("mem:cache=wb", "cache: `wb` is none of writeback, writethrough, none, unsafe"),
            ("mem:on-error=stop", "on-error: `stop` is none of hold, retry"),
            ("mem:dirty=1K", "dirty: `1K` is too little; 64K and more, or none, are accepted"),
            ("mem:describe=1x", "describe: "),
            ("mem:on-unclean=no", "on-unclean: `no` is none of auto, serve, refuse-flush"),
        ] {
            let message = ExportOptions::take(text).unwrap_err().to_string();
            assert!(message.contains(words), "{text}: {message}");
        }
    }
}
