//! `[server.queue]`, `[device.queue]` and `[server.vm]`: tunables by the names that they have in sysfs.
//!
//! A slash in a name is a table: `iosched/fifo_batch` is `fifo_batch` in `[device.queue.iosched]`. As in Linux, bytes and ratio of
//! what may be dirty are two ways to say one thing, so a file says one of them, and a later layer's word replaces both.

use headworks_core::options::Tunable;
use headworks_core::writeback::{DirtyOptions, DirtyTunable};
use headworks_core::{ConfigError, QueueOptions};
use toml::de::{DeTable, DeValue};

use super::problem::{Origin, Problem, Problems};
use super::read::{Reader, TomlEntry, entries, unknown};
use crate::units::parse_size;

/// A tunable with a value, and who gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tuned<T> {
    /// Which.
    pub tunable: T,
    /// Its value, in the unit of its table.
    pub value: u64,
    /// Who gave it.
    pub origin: Origin,
}

/// Tunables of a queue.
pub type QueueSettings = Vec<Tuned<Tunable>>;
/// Tunables of write-back.
pub type DirtySettings = Vec<Tuned<DirtyTunable>>;

/// Whether a user may say it of a queue; the others are facts of the device.
#[must_use]
pub fn is_settable(tunable: Tunable) -> bool {
    tunable.is_live() || matches!(tunable, Tunable::QueueDepth | Tunable::MaxSegments)
}

/// Puts `new` in the place of what there was of the same tunable.
pub fn tune_queue(settings: &mut QueueSettings, new: Tuned<Tunable>) {
    settings.retain(|old| old.tunable != new.tunable);
    settings.push(new);
}

/// Puts `new` in the place of what there was of the same tunable or of the other way to say it.
pub fn tune_dirty(settings: &mut DirtySettings, new: Tuned<DirtyTunable>) {
    settings
        .retain(|old| old.tunable != new.tunable && Some(old.tunable) != other_way(new.tunable));
    settings.push(new);
}

/// The tunable that says the same in another unit.
fn other_way(tunable: DirtyTunable) -> Option<DirtyTunable> {
    use DirtyTunable as T;
    match tunable {
        T::Ratio => Some(T::Bytes),
        T::Bytes => Some(T::Ratio),
        T::BackgroundRatio => Some(T::BackgroundBytes),
        T::BackgroundBytes => Some(T::BackgroundRatio),
        _ => None,
    }
}

/// Overrides what `settings` name.
///
/// # Errors
/// What is out of range.
pub fn apply_queue(settings: &[Tuned<Tunable>], to: &mut QueueOptions) -> Result<(), ConfigError> {
    settings.iter().try_for_each(|tuned| tuned.tunable.set(to, tuned.value))?;
    to.validate()
}

/// What `settings` name, over the defaults.
///
/// # Errors
/// What is out of range, and by whom.
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

/// The value of a tunable of write-back as a user writes it.
///
/// # Errors
/// What it takes.
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

/// Reads `[server.vm]`.
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

/// What is wrong with settings together.
pub fn check(settings: &[Tuned<Tunable>], problems: &mut Problems) {
    let mut options = QueueOptions::default();
    for tuned in settings {
        if let Err(error) = apply_queue(std::slice::from_ref(tuned), &mut options) {
            problems.0.push(Problem::new(&tuned.origin, error.to_string()));
        }
    }
}
