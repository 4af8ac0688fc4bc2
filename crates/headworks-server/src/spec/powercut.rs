//! `powercut:`: the keys of a disk whose power can be cut, and what happens then.
//!
//! A power cut ends the machine, not a disk: once what survived is on the device below, this process kills itself. Nothing is written
//! out, and the memory of the cache goes with it.

use std::path::PathBuf;

use headworks::Device;
use headworks_core::ConfigError;
use headworks_images::{
    DiskLog, Fates, PowercutDevice, PowercutEnd, PowercutLog, PowercutOptions, PowercutReport,
};

use super::keys::Keys;
use super::{Wrapper, parse_count};
use crate::spec::units::{parse_probability, parse_size};

/// Keys of the type.
pub(super) const KEYS: [&str; 9] =
    ["seed", "at", "at-flush", "rate", "flush", "cache", "report", "log", "of"];

/// A `powercut:` wrapper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Powercut {
    /// When the power is cut, and what the disk does until then.
    pub options: PowercutOptions,
    /// File that gets the counts at the end, as JSON.
    pub report: Option<PathBuf>,
    /// File, or unix socket, that gets every write and flush.
    pub log: Option<PathBuf>,
}

impl Powercut {
    pub(super) fn parse(keys: Keys<'_>) -> Result<Wrapper, ConfigError> {
        let defaults = PowercutOptions::default();
        let options = PowercutOptions {
            seed: keys.parse("seed", parse_count)?.unwrap_or(defaults.seed),
            at: keys.parse("at", parse_place)?,
            at_flush: keys.parse("at-flush", parse_place)?,
            rate: keys.parse("rate", parse_probability)?.unwrap_or(defaults.rate),
            lies: keys.parse("flush", parse_flush)?.unwrap_or(defaults.lies),
            cache: keys.parse("cache", parse_size)?.unwrap_or(defaults.cache),
        };
        let [report, log] = ["report", "log"].map(|key| keys.get(key).map(PathBuf::from));
        Ok(Wrapper::Powercut(Self { options, report, log }))
    }

    /// The disk in front of a device whose smallest block is `block` bytes.
    pub(super) fn device(&self, block: u32, below: Box<dyn Device>) -> PowercutDevice {
        let end = end(self.report.clone());
        let device = PowercutDevice::new(self.options.clone(), block, below, end);
        match &self.log {
            Some(path) => device.logged(log_to(path.clone())),
            None => device,
        }
    }
}

/// Tells the counts, and ends the process if the power was cut.
fn end(path: Option<PathBuf>) -> PowercutEnd {
    Box::new(move |report| {
        if let Some(path) = &path
            && let Err(error) = std::fs::write(path, as_json(report))
        {
            tracing::error!("powercut: the report {} cannot be written: {error}", path.display());
        }
        let Some(Fates { lost, kept, torn }) = report.cut else { return };
        let PowercutReport { commands, flushes, .. } = *report;
        tracing::warn!(
            "power cut at write or flush {commands}, flush {flushes}: {lost} writes lost, {kept} kept, {torn} torn"
        );
        end_process();
    })
}

/// Writes a log. One that cannot be written ends the process: a test that misses a write is worse than none.
fn log_to(path: PathBuf) -> PowercutLog {
    // Made by the first change: a disk that is only looked at leaves the log of another run alone.
    let mut log = None;
    Box::new(move |change| {
        let noted = match &mut log {
            Some(log) => DiskLog::note(log, change),
            None => DiskLog::new(&path).and_then(|new| log.insert(new).note(change)),
        };
        if let Err(error) = noted {
            tracing::error!(
                "powercut: the log {} cannot be written: {error}; the server ends",
                path.display()
            );
            end_process();
        }
    })
}

/// Ends the process as a power cut does.
fn end_process() {
    // SAFETY: a signal to this process, which ends it.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

fn as_json(report: &PowercutReport) -> String {
    let cut = report.cut.map(|Fates { lost, kept, torn }| {
        serde_json::json!({ "lost": lost, "kept": kept, "torn": torn })
    });
    let PowercutReport { commands, writes, flushes, .. } = *report;
    serde_json::json!({ "commands": commands, "writes": writes, "flushes": flushes, "cut": cut })
        .to_string()
        + "\n"
}

fn parse_place(word: &str) -> Result<u64, String> {
    match parse_count(word)? {
        0 => Err("commands are counted from 1".into()),
        place => Ok(place),
    }
}

fn parse_flush(word: &str) -> Result<bool, String> {
    match word {
        "honest" => Ok(false),
        "lie" => Ok(true),
        _ => Err(format!("`{word}` is none of honest and lie")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Spec;

    fn options(text: &str) -> Powercut {
        match Spec::parse(text).unwrap().wrappers.remove(0) {
            Wrapper::Powercut(powercut) => powercut,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn keys_are_read() {
        let none = options("powercut:of=mem:size=1M");
        assert_eq!(none, Powercut { options: PowercutOptions::default(), report: None, log: None });
        let all = options(
            "powercut:seed=7,at=9,at-flush=3,rate=1%,flush=lie,cache=1M,report=/r,log=/l,of=mem:size=1M",
        );
        let PowercutOptions { seed, at, at_flush, lies, cache, .. } = all.options;
        assert_eq!((seed, at, at_flush, lies, cache), (7, Some(9), Some(3), true, 1 << 20));
        assert_eq!(all.report.as_deref(), Some(std::path::Path::new("/r")));
        assert_eq!(all.log.as_deref(), Some(std::path::Path::new("/l")));
        for wrong in ["at=0", "flush=maybe", "seed=x", "when=3"] {
            assert!(Spec::parse(&format!("powercut:{wrong},of=mem:size=1M")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn report_is_json() {
        let cut = Some(Fates { lost: 1, kept: 2, torn: 3 });
        let text = as_json(&PowercutReport { commands: 9, writes: 6, flushes: 4, cut });
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&value["commands"], &value["cut"]["torn"]), (&9.into(), &3.into()));
    }
}
