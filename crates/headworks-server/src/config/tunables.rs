//! `[server.queue]`, `[device.queue]` and `[server.vm]`: tunables under their names in sysfs.
//!
//! A slash in a name is a table: `iosched/fifo_batch` is `fifo_batch` in `[device.queue.iosched]`. As in Linux, bytes
//! and ratio of a dirty limit exclude each other: a file gives one of them, and a later source replaces both.

use headworks_core::options::Tunable;
use headworks_core::writeback::{DirtyOptions, DirtyTunable};
use headworks_core::{ConfigError, QueueOptions};
use toml::de::{DeTable, DeValue};

use super::problem::{Origin, Problem, Problems};
use super::read::{Reader, TomlEntry, entries, unknown};
use crate::spec::units::parse_size;

/// A tunable with its value and origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tuned<T> {
    /// The tunable that is set.
    pub tunable: T,
    /// Value in the unit of the tunable.
    pub value: u64,
    /// Origin of the value.
    pub origin: Origin,
}

/// Tunables of a queue.
pub type QueueSettings = Vec<Tuned<Tunable>>;
/// Tunables of write-back with values.
pub type DirtySettings = Vec<Tuned<DirtyTunable>>;

/// Whether users may set a tunable of a queue; others are facts of the device.
#[must_use]
pub fn is_settable(tunable: Tunable) -> bool {
    tunable.is_live() || matches!(tunable, Tunable::QueueDepth | Tunable::MaxSegments)
}

/// Whether a device begins with a value that was found by asking the kernel, unless the configuration sets one.
#[must_use]
pub fn is_probed(tunable: Tunable) -> bool {
    tunable == Tunable::Rotational
}

/// Sets a tunable, replacing an earlier value.
pub fn tune_queue(settings: &mut QueueSettings, new: Tuned<Tunable>) {
    settings.retain(|old| old.tunable != new.tunable);
    settings.push(new);
}

/// Sets a tunable, replacing earlier values of it and of its counterpart.
pub fn tune_dirty(settings: &mut DirtySettings, new: Tuned<DirtyTunable>) {
    settings
        .retain(|old| old.tunable != new.tunable && Some(old.tunable) != other_way(new.tunable));
    settings.push(new);
}

/// The tunable for the same limit in the other unit.
pub fn other_way(tunable: DirtyTunable) -> Option<DirtyTunable> {
    use DirtyTunable as T;
    match tunable {
        T::Ratio => Some(T::Bytes),
        T::Bytes => Some(T::Ratio),
        T::BackgroundRatio => Some(T::BackgroundBytes),
        T::BackgroundBytes => Some(T::BackgroundRatio),
        _ => None,
    }
}

/// Applies settings to a queue's options.
///
/// # Errors
/// A value is out of range.
pub fn apply_queue(settings: &[Tuned<Tunable>], to: &mut QueueOptions) -> Result<(), ConfigError> {
    settings.iter().try_for_each(|tuned| tuned.tunable.set(to, tuned.value))?;
    to.validate()
}

/// Applies settings to the default options.
///
/// # Errors
/// A value is out of range, with its origin.
pub fn dirty_options(settings: &[Tuned<DirtyTunable>]) -> Result<DirtyOptions, Problem> {
    let mut options = DirtyOptions::default();
    for Tuned { tunable, value, origin } in settings {
        let wrong = |error: ConfigError| Problem::new(origin, error.to_string());
        tunable.set(&mut options, *value).map_err(wrong)?;
    }
    let last = settings.last().map_or(Origin::Default, |tuned| tuned.origin.clone());
    let wrong = |error: ConfigError| Problem::new(&last, error.to_string());
    options.validate().map_err(wrong).map(|()| options)
}

/// Parses the value of a tunable of write-back.
///
/// # Errors
/// The accepted values.
pub fn parse_dirty(tunable: DirtyTunable, word: &str) -> Result<u64, ConfigError> {
    let value = match tunable.is_bytes() {
        true => parse_size(word).map_err(|error| ConfigError::new(tunable.name(), error))?,
        false => tunable.parse(word)?,
    };
    tunable.check(value).map(|()| value)
}

/// Reads the tables of a queue.
pub fn read_queue(reader: &mut Reader<'_>, place: &str, table: &DeTable<'_>) -> QueueSettings {
    let mut settings = Vec::new();
    for (key, span, value) in entries(table) {
        match value.get_ref() {
            DeValue::Table(inner) => {
                let prefix = format!("{key}/");
                if Tunable::ALL.iter().any(|tunable| tunable.name().starts_with(&prefix)) {
                    for (inner_key, span, value) in entries(inner) {
                        let place = format!("{place}.{key}");
                        let entry = (inner_key, span, value);
                        settings.extend(read_tunable(reader, &place, &prefix, entry));
                    }
                } else {
                    reader.unknown((key, &span), place, &["iosched"]);
                }
            }
            _ => settings.extend(read_tunable(reader, place, "", (key, span, value))),
        }
    }
    settings
}

fn read_tunable(
    reader: &mut Reader<'_>,
    place: &str,
    prefix: &str,
    (key, span, value): TomlEntry<'_, '_>,
) -> Option<Tuned<Tunable>> {
    let found = Tunable::from_name(&format!("{prefix}{key}")).filter(|_| !key.contains('/'));
    let Some(tunable) = found else {
        reader.wrong(&span, unknown_tunable(place, prefix, key));
        return None;
    };
    if !is_settable(tunable) {
        reader.wrong(&span, format!("{key} describes the device and cannot be set"));
        return None;
    }
    let word = reader.word(key, value)?;
    match tunable.parse(&word) {
        Ok(value) => Some(Tuned { tunable, value, origin: reader.origin(&span) }),
        Err(error) => {
            reader.wrong(&value.span(), error.to_string());
            None
        }
    }
}

fn unknown_tunable(place: &str, prefix: &str, key: &str) -> String {
    if let Some((table, key)) = key.split_once('/') {
        return format!("{place} has no names with a slash: write {key} in [{place}.{table}]");
    }
    let settable = Tunable::ALL.into_iter().filter(|tunable| is_settable(*tunable));
    let names = settable.filter_map(|tunable| tunable.name().strip_prefix(prefix));
    let known: Vec<&str> = names.filter(|name| !name.contains('/')).collect();
    let elsewhere = Tunable::ALL.iter().find_map(|tunable| {
        let (table, name) = tunable.name().split_once('/')?;
        (prefix.is_empty() && name == key).then_some(table)
    });
    match elsewhere {
        Some(table) => format!("{key} stands in [{place}.{table}]"),
        None => unknown(key, place, &known),
    }
}

/// Reads the table `[server.vm]`.
pub fn read_dirty(reader: &mut Reader<'_>, table: &DeTable<'_>) -> DirtySettings {
    let mut settings: DirtySettings = Vec::new();
    for (key, span, value) in entries(table) {
        let Some(tunable) = DirtyTunable::from_name(key) else {
            let known = DirtyTunable::ALL.map(DirtyTunable::name);
            reader.unknown((key, &span), "server.vm", &known);
            continue;
        };
        let other = other_way(tunable).filter(|other| settings.iter().any(|o| o.tunable == *other));
        if let Some(other) = other {
            let name = other.name();
            reader.wrong(&span, format!("{key} and {name} set the same limit; keep one of them"));
            continue;
        }
        let Some(word) = reader.word(key, value) else { continue };
        match parse_dirty(tunable, &word) {
            Ok(value) => settings.push(Tuned { tunable, value, origin: reader.origin(&span) }),
            Err(error) => reader.wrong(&value.span(), error.to_string()),
        }
    }
    settings
}

/// Checks settings that depend on each other.
pub fn check(settings: &[Tuned<Tunable>], problems: &mut Problems) {
    let mut options = QueueOptions::default();
    for tuned in settings {
        if let Err(error) = apply_queue(std::slice::from_ref(tuned), &mut options) {
            problems.0.push(Problem::new(&tuned.origin, error.to_string()));
        }
    }
}
