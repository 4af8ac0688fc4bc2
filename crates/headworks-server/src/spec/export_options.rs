//! Options of an export in its specification: range, weight, class, cache mode, error policy and limits.
//!
//! ```text
//!   file:path=disk.img,weight=400,ioprio=rt:0,cache=writethrough        delay:read=5ms,weight=50,of=disk.img
//! ```
//!
//! Every type takes these keys, but only as the outermost one, since they belong to the export. They are removed before
//! the device parses the rest. [`ExportOption`] is the table of all of them; a new option is a field and a row.

use headworks_core::limits::Limits;
use headworks_core::{ConfigError, ErrorPolicy, ExportConfig, Ioprio, TenantId, WriteMode};
use serde_json::Value;

use super::keys::split_value;
use super::split_type;
use crate::exports::partition_table::PARTITIONS_MAX;
use crate::spec::cache_part::{PARTS, dirty_blocks, parse_part, part_value};
use crate::spec::latency_target::{TARGETS, parse_latency_target, target_in_force, target_value};
use crate::spec::option_table::{OptionTable, choice, options};
use crate::spec::tenant::{TenantName, TenantOptions};
use crate::spec::units::{CLASSES, WEIGHTS, parse_ioprio, parse_size, parse_switch, parse_weight};

options! {
    /// An option of an export.
    pub(crate) enum ExportOption of ExportOptions {
        Weight        = "weight" [weight] (IO_WEIGHT) parse_weight, Value::from; AtOnce, Always, WEIGHTS,
            ", its share of the device relative to other exports (1 to 10000, default 100)";
        Ioprio        = "ioprio" [ioprio] parse_ioprio, |ioprio: Ioprio| ioprio.to_string().into(); AtOnce, Always, CLASSES,
            ", the I/O priority of its clients (rt, be or idle, with a level of 0 to 7: be:0; default be:4)";
        Mode          = "cache" [mode] parse_mode, |mode: Option<WriteMode>| mode.map(WriteMode::name).into(); Restart, Always, "",
            ", when a write is acknowledged: writeback (from the page cache; durable after a flush or with FUA), writethrough (by the device), none (no cache), unsafe (flushes do nothing), stream (as writeback, for data that are used once: they leave the cache soon); default writeback, for mem and null none";
        OnError       = "on-error" [on_error] parse_policy, |policy: Option<ErrorPolicy>| policy.map(ErrorPolicy::name).into(); Restart, Always, "",
            ", for blocks whose write-back failed: hold (kept; flushes fail until they are written or discarded) or retry (also retried without a flush), default hold";
        OnUnclean     = "on-unclean" [on_unclean] parse_unclean, |policy: Option<UncleanPolicy>| policy.map(UncleanPolicy::name).into(); NextStart, Never, "",
            ", where memory of a server that died is gone: auto (refuse-flush, but serve after a reboot), serve or refuse-flush (flushes fail until acknowledged), default auto";
        Tenant        = "tenant" [tenant] parse_tenant, |name: Option<TenantName>| name.map(|name| name.to_string()).into(); AtOnce, Always, "",
            ", the tenant (--tenant) whose share of the device it uses together with the tenant's other exports";
        LatencyTarget = "latency-target" [latency_target_us] (IO_LATENCY) parse_latency_target, target_value; AtOnce, Always, TARGETS,
            " (5ms), for 99 of 100 small reads and synchronous writes in the device: while it is missed, other exports have less there";
        Dirty         = "dirty" [dirty] parse_part, part_value; AtOnce, WithCache, PARTS,
            " (64M), the most of its data in the page cache that is not written yet";
        Describe      = "describe" [describe] parse_switch, |on: bool| if on { "on" } else { "off" }.into(); Restart, Never, "",
            "=on, to tell clients what the export is made of: paths, bases and URIs (default off: nothing)";
        StrictBlocks  = "strict-blocks" [strict_blocks] parse_strict, |strict: Option<bool>| strict.map(|on| if on { "on" } else { "off" }).into(); Restart, Never, "",
            "=on, to refuse requests that are no whole blocks of a device without a cache; default off: the server reads such blocks, changes and writes them";
        Offset        = "offset" [offset] parse_size, Value::from; Restart, Never, "",
            " (1M), the byte of the image with which the export begins (default 0)";
        Length        = "length" [length] parse_length, Value::from; Restart, Never, "",
            " (512M), its bytes from there on; without it all to the end of the image, and it grows with that";
        Partition     = "partition" [partition] parse_partition, Value::from; Restart, Never, "",
            " (1 to 128), the number of a partition in the image's table (GPT or MBR) that the export serves, in place of offset and length";
        Limits        = limits [limits]; AtOnce, Never, "",
            "limits of bytes and I/Os per second: bps-total, bps-read, bps-write, iops-total, iops-read, iops-write, each with -max and -max-length for a burst, and iops-size";
    }
}

fn parse_mode(word: &str) -> Result<Option<WriteMode>, String> {
    choice(word, WriteMode::ALL.map(|mode| (mode.name(), mode))).map(Some)
}

fn parse_policy(word: &str) -> Result<Option<ErrorPolicy>, String> {
    choice(word, ErrorPolicy::ALL.map(|policy| (policy.name(), policy))).map(Some)
}

fn parse_unclean(word: &str) -> Result<Option<UncleanPolicy>, String> {
    choice(word, UncleanPolicy::ALL.map(|policy| (policy.name(), policy))).map(Some)
}

/// Bytes of an export; 0 stands for all to the end.
fn parse_length(word: &str) -> Result<u64, String> {
    match parse_size(word)? {
        0 => Err("a length of 0 cannot be served; without one it is all to the end".to_owned()),
        length => Ok(length),
    }
}

/// The number of a partition.
fn parse_partition(word: &str) -> Result<u8, String> {
    let number = word.parse().ok().filter(|number| (1..=PARTITIONS_MAX).contains(number));
    number.ok_or_else(|| format!("`{word}` is no partition; 1 to {PARTITIONS_MAX} are"))
}

fn parse_strict(word: &str) -> Result<Option<bool>, String> {
    parse_switch(word).map(Some)
}

fn parse_tenant(word: &str) -> Result<Option<TenantName>, String> {
    TenantName::parse(word).map(Some)
}

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
    /// Requests that are no whole blocks are refused where no cache takes them; none leaves it to other exports of the image.
    pub strict_blocks: Option<bool>,
    /// Offset of its first byte on the image.
    pub offset: u64,
    /// Bytes of it; 0 for all to the end of the image.
    pub length: u64,
    /// Number of the partition that it serves; 0 for none.
    pub partition: u8,
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
            strict_blocks: None,
            offset: 0,
            length: 0,
            partition: 0,
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
        let mut given: Vec<(&str, String)> = Vec::new();
        let mut rest = keys;
        // `of` takes the whole rest; an unknown key is reported by the device.
        while let Some((key, after)) = rest.split_once('=').filter(|(key, _)| *key != "of") {
            let (value, next) = split_value(after);
            match ExportOption::of_key(key) {
                None => left.push_str(&rest[..rest.len() - next.len()]),
                Some((_, key)) if given.iter().any(|(other, _)| *other == key) => {
                    return Err(ConfigError::new(key, "is given twice"));
                }
                Some((_, key)) => given.push((key, value)),
            }
            rest = next;
        }
        left.push_str(rest);
        let words = given.iter().map(|(key, word)| (*key, word.as_str()));
        Ok((Self::of_words(words)?, left))
    }

    /// Makes options of their words by key; other keys are left to others.
    ///
    /// # Errors
    /// The first mistake in the order of the table, with what would be right.
    pub fn of_words<'a>(
        words: impl Iterator<Item = (&'a str, &'a str)> + Clone,
    ) -> Result<Self, ConfigError> {
        let mut options = Self::default();
        for (option, key) in ExportOption::keys() {
            for (_, word) in words.clone().filter(|(given, _)| *given == key) {
                let set = (option.row().set)(&mut options, key, word);
                set.map_err(|message| ConfigError::new(key, message))?;
            }
        }
        if options.partition > 0 && (options.offset, options.length) != (0, 0) {
            let message = "a partition has its own offset and length; leave those keys away";
            return Err(ConfigError::new("partition", message));
        }
        options.limits.validate()?;
        Ok(options)
    }

    /// What the core has of them, for an export of this tenant.
    pub(crate) fn config(&self, tenant: TenantId, of_tenant: &TenantOptions) -> ExportConfig {
        ExportConfig {
            weight: self.weight,
            tenant,
            latency_target_us: target_in_force(self.latency_target_us, of_tenant.latency_target_us),
            dirty_max: dirty_blocks(self.dirty),
        }
    }

    /// Every key with a line about it, as a sentence of a manual.
    #[must_use]
    pub fn help() -> String {
        ExportOption::help()
    }

    /// Every key, in the order of the manual.
    pub fn keys() -> impl Iterator<Item = &'static str> {
        ExportOption::keys().map(|(_, key)| key)
    }

    /// Whether a change of a key takes effect while the server runs; such a key says nothing about the image.
    #[must_use]
    pub fn is_live(key: &str) -> bool {
        ExportOption::of_key(key).is_some_and(|(option, _)| option.is_live())
    }
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
            (
                "mem:cache=wb",
                "cache: `wb` is none of writeback, writethrough, none, unsafe, stream",
            ),
            ("mem:on-error=stop", "on-error: `stop` is none of hold, retry"),
            ("mem:dirty=1K", "dirty: `1K` is too little; 64K and more, or none, are accepted"),
            ("mem:describe=1x", "describe: "),
            ("mem:strict-blocks=maybe", "strict-blocks: "),
            ("mem:offset=-1", "offset: `-1` is not a size"),
            ("mem:partition=0", "partition: `0` is no partition; 1 to 128 are"),
            ("mem:partition=129", "1 to 128"),
            ("mem:partition=1,offset=1M", "partition: a partition has its own offset and length"),
            ("mem:length=0", "length: a length of 0 cannot be served"),
            ("mem:on-unclean=no", "on-unclean: `no` is none of auto, serve, refuse-flush"),
        ] {
            let message = ExportOptions::take(text).unwrap_err().to_string();
            assert!(message.contains(words), "{text}: {message}");
        }
    }
}
