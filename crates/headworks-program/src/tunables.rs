//! Queue and write-back options on the command line of `serve` and `bench`.

use clap::Args;
use headworks_core::time::MS;
use headworks_core::writeback::{DirtyOptions, DirtyTunable};
use headworks_core::{ConfigError, QueueOptions, Tunable};
use headworks_server::config::{
    DirtySettings, Origin, QueueSettings, Tuned, parse_dirty, tune_dirty, tune_queue,
};
use headworks_server::{nearest_name, parse_time};

use crate::known_words::SCHEDULERS;

/// Queue and write-back options, named as in /sys/block/DISK/queue
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Queue (names as in /sys/block/*/queue)")]
pub struct QueueArgs {
    /// Number of tags: requests admitted to a device queue at once
    #[arg(long, value_name = "N")]
    nr_requests: Option<u32>,
    /// Commands outstanding in a device at once
    #[arg(long, value_name = "N")]
    queue_depth: Option<u32>,
    /// Largest request, in KiB
    #[arg(long, value_name = "KIB")]
    max_sectors_kb: Option<u32>,
    /// Most segments of one request
    #[arg(long, value_name = "N")]
    max_segments: Option<u16>,
    /// Merging: 0 full, 1 only with the last request, 2 off
    #[arg(long, value_name = "N")]
    nomerges: Option<u64>,
    /// Command time-out: a command that takes longer fails with an I/O error
    #[arg(long, value_parser = time, value_name = "TIME")]
    io_timeout: Option<u64>,
    /// I/O scheduler: none, mq-deadline or bfq
    #[arg(long, value_name = "NAME", value_parser = SCHEDULERS, hide_possible_values = true)]
    scheduler: Option<String>,
    /// Any tunable by its path in `headworks ctl get`: iosched/fifo_batch=32, hw_inflight_kb=320 for queues,
    /// vm/dirty_bytes=64M for write-back (of all threads together)
    #[arg(long = "set", value_name = "NAME=VALUE")]
    set: Vec<String>,
}

impl QueueArgs {
    /// Returns the given queue and write-back settings, in order.
    ///
    /// # Errors
    /// A value is out of range.
    pub fn settings(&self, origin: &Origin) -> Result<(QueueSettings, DirtySettings), ConfigError> {
        let Self { nr_requests, queue_depth, max_sectors_kb, max_segments, nomerges, .. } = self;
        let Self { io_timeout, scheduler, set, .. } = self;
        let (mut queue, mut dirty) = (QueueSettings::new(), DirtySettings::new());
        let mut put = |tunable: Tunable, value| {
            tunable.check(value)?;
            tune_queue(&mut queue, Tuned { tunable, value, origin: origin.clone() });
            Ok(())
        };
        let numbers = [
            (Tunable::NrRequests, nr_requests.map(u64::from)),
            (Tunable::QueueDepth, queue_depth.map(u64::from)),
            (Tunable::MaxSectorsKb, max_sectors_kb.map(u64::from)),
            (Tunable::MaxSegments, max_segments.map(u64::from)),
            (Tunable::NoMerges, *nomerges),
            // Whole milliseconds, the resolution in which it is recorded and shown.
            (Tunable::IoTimeout, io_timeout.map(|ns| ns.div_ceil(MS))),
        ];
        for (tunable, number) in numbers {
            number.map_or(Ok(()), |number| put(tunable, number))?;
        }
        if let Some(word) = scheduler {
            put(Tunable::Scheduler, Tunable::Scheduler.parse(word)?)?;
        }
        for word in set {
            match setting(word)? {
                ParsedSetting::Queue(tunable, value) => put(tunable, value)?,
                ParsedSetting::Dirty(tunable, value) => {
                    tune_dirty(&mut dirty, Tuned { tunable, value, origin: origin.clone() });
                }
            }
        }
        Ok((queue, dirty))
    }

    /// Applies the given queue settings to `options`.
    ///
    /// # Errors
    /// A value is out of range.
    pub fn apply(&self, options: &mut QueueOptions) -> Result<(), ConfigError> {
        let (queue, _) = self.settings(&Origin::CommandLine)?;
        queue.iter().try_for_each(|tuned| tuned.tunable.set(options, tuned.value))?;
        options.validate()
    }

    /// Returns the write-back options: the defaults with the given settings.
    ///
    /// # Errors
    /// A value is out of range.
    pub fn dirty(&self) -> Result<DirtyOptions, ConfigError> {
        let (_, dirty) = self.settings(&Origin::CommandLine)?;
        let mut options = DirtyOptions::default();
        dirty.iter().try_for_each(|tuned| tuned.tunable.set(&mut options, tuned.value))?;
        options.validate().map(|()| options)
    }
}

/// One setting of `--set`.
enum ParsedSetting {
    Queue(Tunable, u64),
    Dirty(DirtyTunable, u64),
}

/// Parses one setting of `--set`; properties of the device cannot be set.
fn setting(word: &str) -> Result<ParsedSetting, ConfigError> {
    if let Some(of_dirty) = word.strip_prefix("vm/") {
        return dirty_setting(word, of_dirty);
    }
    let found = word.split_once('=').and_then(|(name, value)| {
        Tunable::from_name(name).filter(|tunable| tunable.is_live()).map(|tunable| (tunable, value))
    });
    let Some((tunable, value)) = found else {
        let live = Tunable::ALL.into_iter().filter(|tunable| tunable.is_live());
        let mut names: Vec<String> = live.map(|tunable| tunable.name().to_owned()).collect();
        names.extend(DirtyTunable::ALL.map(|tunable| format!("vm/{}", tunable.name())));
        return Err(no_setting(word, &names));
    };
    Ok(ParsedSetting::Queue(tunable, tunable.parse(value)?))
}

fn dirty_setting(word: &str, text: &str) -> Result<ParsedSetting, ConfigError> {
    let found = text
        .split_once('=')
        .and_then(|(name, value)| DirtyTunable::from_name(name).map(|tunable| (tunable, value)));
    let Some((tunable, value)) = found else {
        return Err(no_setting(
            word,
            &DirtyTunable::ALL.map(|tunable| format!("vm/{}", tunable.name())),
        ));
    };
    parse_dirty(tunable, value).map(|value| ParsedSetting::Dirty(tunable, value))
}

/// The error for a setting that is not NAME=VALUE, or whose name is none of the known `names`.
fn no_setting(word: &str, names: &[String]) -> ConfigError {
    let known = format!("known names: {}", names.join(", "));
    let Some((name, _)) = word.split_once('=') else {
        return ConfigError::new("set", format!("`{word}` is not NAME=VALUE; {known}"));
    };
    let last = |path: &str| path.rsplit('/').next() == Some(name);
    let near = names.iter().find(|path| last(path)).map(String::as_str);
    let near = near.or_else(|| nearest_name(name, names.iter().map(String::as_str)));
    let right = near.map_or(known, |near| format!("the nearest is `{near}`"));
    ConfigError::new("set", format!("there is no tunable `{name}`; {right}"))
}

fn time(word: &str) -> Result<u64, String> {
    parse_time(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(set: &[&str]) -> QueueArgs {
        let set = set.iter().map(|word| (*word).to_owned()).collect();
        QueueArgs {
            nr_requests: None,
            queue_depth: None,
            max_sectors_kb: None,
            max_segments: None,
            nomerges: None,
            io_timeout: None,
            scheduler: None,
            set,
        }
    }

    #[test]
    fn vm_settings_are_write_back_all_others_queue() {
        let both = queue(&["vm/dirty_bytes=64M", "nr_requests=7", "vm/hw_throttle=none"]);
        let mut options = QueueOptions::default();
        both.apply(&mut options).unwrap();
        assert_eq!(options, QueueOptions { nr_requests: 7, ..QueueOptions::default() });
        let dirty = both.dirty().unwrap();
        assert_eq!((dirty.dirty_bytes, DirtyTunable::Throttle.get(&dirty)), (64 << 20, 2));
        let last = queue(&["vm/dirty_bytes=64M", "vm/dirty_ratio=5"]).dirty().unwrap();
        assert_eq!((last.dirty_bytes, last.dirty_ratio), (0, 5));
    }

    #[test]
    fn unknown_setting_lists_the_known_ones() {
        let error = |word: &str| queue(&[word]).dirty().unwrap_err().to_string();
        assert!(error("vm/dirt=1").contains("vm/dirty_background_bytes"));
        assert!(error("nr_request=1").contains("the nearest is `nr_requests`"));
        assert!(error("vm/dirty_bytes").contains("NAME=VALUE"));
        assert!(error("vm/dirty_bytes=1GB").contains("dirty_bytes"));
        assert!(error("vm/dirty_bytes=1").contains("8192.."));
        assert!(error("vm/dirty_ratio=91").contains("1..=90"));
        let error = queue(&["dirty_bytes=1"]).dirty().unwrap_err().to_string();
        assert_eq!(
            error,
            "set: there is no tunable `dirty_bytes`; the nearest is `vm/dirty_bytes`"
        );
    }
}
