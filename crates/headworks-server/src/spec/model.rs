//! `model:`: the keys of a disk that takes the time of a real one, and files that describe such disks.
//!
//! ```toml
//! base = "hdd-7200"                      # a disk with a name, whose parameters hold where this file has none
//! kind = "hdd"                           # needed without `base`; then every parameter of the model is
//! turn = "11.1ms"
//! source = "measured here"               # where the figures are from
//! not-modelled = ["zones"]               # what the disk does and the model does not
//! ```
//!
//! A parameter has one key in a SPEC, in a file and in what is shown. A file is read when its SPEC is: what it says is part of the
//! SPEC from then on.

use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use headworks::Device;
use headworks_control::answers;
use headworks_core::{ConfigError, QueueOptions};
use headworks_disks::{Disk, Field, NAMED, NamedDisk, Unit};
use headworks_images::{ModelDevice, ModelEvent, ModelStatus, ModelTimes};
use toml::de::DeTable;

use super::keys::{Keys, list, split_value};
use super::{Wrapper, parse_count};
use crate::config::{Reader, entries};
use crate::spec::did_you_mean::nearest_name;
use crate::spec::limit_words::time_word;
use crate::spec::units::{parse_size, parse_switch, parse_time};

/// Keys of the type: those of all models, since a disk is known only when the values are read.
pub(super) static KEYS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let mut keys = vec!["profile", "seed", "age"];
    for key in Disk::keys().chain(["of"]) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
});

/// Most bytes of a file that describes a disk.
const FILE_MAX: usize = 64 << 10;

/// A `model:` wrapper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// The profile as the user named it.
    pub name: String,
    /// The disk with all its parameters.
    pub disk: Disk,
    /// Seed of what varies by chance.
    pub seed: u64,
}

/// A disk as a file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskDescription {
    /// The parameters of its model.
    pub disk: Disk,
    /// Where they are from.
    pub source: String,
    /// What the disk does and the model does not.
    pub not_modelled: Vec<String>,
}

impl Model {
    /// Reads a disk that stands for itself, without a device inside: `model:profile=hdd-7200,seed=3`, or its profile alone.
    ///
    /// # Errors
    /// The first mistake, with what would be right.
    pub fn alone(text: &str) -> Result<Self, ConfigError> {
        let Some(keys) = text.strip_prefix("model:") else {
            return Self::read(Keys(&[("profile".to_owned(), text.to_owned())]));
        };
        Self::check_form(keys)?;
        let (mut read, mut rest) = (Vec::<(String, String)>::new(), keys);
        while !rest.is_empty() {
            let Some((key, after)) = rest.split_once('=') else {
                return Err(ConfigError::new("model", format!("`{rest}` is not key=value")));
            };
            if key == "of" {
                return Err(ConfigError::new("of", "there is no device inside here: leave it out"));
            }
            if read.iter().any(|(known, _)| known == key) {
                return Err(ConfigError::new("model", format!("`{key}` is given twice")));
            }
            let (value, next) = split_value(after);
            read.push((key.to_owned(), value));
            rest = next;
        }
        Self::read(Keys(&read))
    }

    pub(super) fn parse(keys: Keys<'_>) -> Result<Wrapper, ConfigError> {
        Self::read(keys).map(|model| Wrapper::Model(Box::new(model)))
    }

    fn read(keys: Keys<'_>) -> Result<Self, ConfigError> {
        let name = keys.get("profile").unwrap_or_default();
        let mut disk = DiskDescription::find(name)?.disk;
        let kind = disk.kind();
        for (key, _) in keys.0 {
            if !matches!(key.as_str(), "profile" | "seed" | "age" | "of")
                && disk.field(key).is_none()
            {
                let message = format!("no key of {name}: {}", has(key, &disk));
                return Err(ConfigError::new("model", format!("`{key}` is {message}")));
            }
        }
        // In the order of the table: some parameters follow from those before them.
        for field in disk.fields() {
            if let Some(number) = keys.parse(field.key, |word| parse_number(field.unit, word))? {
                field.set(&mut disk, number).map_err(|wrong| ConfigError::new(field.key, wrong))?;
            }
        }
        if let Some(word) = keys.get("age") {
            set_age(&mut disk, word).map_err(|wrong| ConfigError::new("age", wrong))?;
        }
        disk.check().map_err(|wrong| ConfigError::new(kind, wrong))?;
        let seed = keys.parse("seed", parse_count)?.unwrap_or(1);
        Ok(Self { name: name.to_owned(), disk, seed })
    }

    /// Refuses `model:hdd-7200,of=disk.img`, with how a profile is written.
    pub(super) fn check_form(keys: &str) -> Result<(), ConfigError> {
        let first = keys.split(',').next().unwrap_or_default();
        if first.is_empty() || first.contains('=') {
            return Ok(());
        }
        let message = format!("a profile is written model:profile={keys}");
        Err(ConfigError::new("model", message))
    }

    /// What others are to know of the disk.
    pub(super) fn link(&self) -> ModelLink {
        ModelLink { name: self.name.clone(), status: Arc::default() }
    }

    /// The disk in front of a device, which counts its times in `link`.
    pub(super) fn device(&self, below: Box<dyn Device>, link: Option<&ModelLink>) -> ModelDevice {
        let name = self.name.clone();
        let events = move |event: ModelEvent<'_>| match event {
            ModelEvent::TooSlow(times) => tracing::warn!(
                "model {name}: this machine is too slow for the disk, whose figures are too high: {}",
                said(times)
            ),
            ModelEvent::Ended(times) => tracing::info!("model {name}: {}", said(times)),
        };
        let device = ModelDevice::new(&self.disk, self.seed, below, Box::new(events));
        match link {
            Some(link) => device.with_status(Arc::clone(&link.status)),
            None => device,
        }
    }

    /// Options of the queue of the disk in front of a device.
    pub(super) fn queue_options(&self, below: QueueOptions) -> QueueOptions {
        ModelDevice::queue_options(&self.disk, below)
    }
}

/// Reads a regular file, one byte more than a profile may have at most: a FIFO has no end that comes by itself, nor has `/dev/zero`.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    // Not to wait for the other end of a FIFO.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut text = Vec::new();
    file.take(FILE_MAX as u64 + 1).read_to_end(&mut text)?;
    Ok(text)
}

/// How long the commands of a disk took, in a sentence.
fn said(times: &ModelTimes) -> String {
    let us = |ns: u64| format!("{:.1} us", ns as f64 / 1e3);
    let ModelTimes { modelled, late, modelled_ns, late_ns } = times;
    format!(
        "{} commands took {} (median) by the model; half of the answers came at most {} later, 99 of 100 at most {}, all together {} of {}",
        late.count(),
        us(modelled.percentile(500)),
        us(late.percentile(500)),
        us(late.percentile(990)),
        seconds_word(*late_ns),
        seconds_word(*modelled_ns),
    )
}

fn seconds_word(ns: u64) -> String {
    format!("{:.3} s", ns as f64 / 1e9)
}

/// What threads other than the device's know of a modelled disk.
#[derive(Clone, Debug)]
pub struct ModelLink {
    /// The profile as the user named it.
    pub name: String,
    /// How late it is answered.
    pub status: Arc<ModelStatus>,
}

impl ModelLink {
    /// How late the answers are, in a sentence; none unless figures are wrong for it.
    pub fn told(&self, times: &ModelTimes) -> Option<String> {
        let sentence = || {
            format!(
                "the machine was late by {} in {} of the modelled disk {}, so figures are of the machine and not of the model",
                seconds_word(times.late_ns),
                seconds_word(times.modelled_ns),
                self.name
            )
        };
        times.are_wrong().then(sentence)
    }

    /// The times for clients of the control socket.
    pub fn answer(&self) -> answers::Model {
        let times = self.status.times();
        let micros = |ns: u64| ns as f64 / 1e3;
        answers::Model {
            name: self.name.clone(),
            commands: times.late.count(),
            modelled_s: times.modelled_ns as f64 / 1e9,
            late_s: times.late_ns as f64 / 1e9,
            late_p50_us: micros(times.late.percentile(500)),
            late_p99_us: micros(times.late.percentile(990)),
            too_slow: times.are_wrong(),
            told: self.told(&times),
        }
    }
}

impl DiskDescription {
    /// Finds the disk of a profile: a name, or the path of a file.
    ///
    /// # Errors
    /// There is none of this name, or what is wrong in the file.
    pub fn find(profile: &str) -> Result<Self, ConfigError> {
        let wrong = |message| ConfigError::new("profile", message);
        if let Some(named) = NamedDisk::find(profile) {
            return Ok(Self::of(named));
        }
        if profile.contains('/') || profile.ends_with(".toml") {
            return Self::read(Path::new(profile)).map_err(wrong);
        }
        let nearest = match nearest_name(profile, NAMED.map(|named| named.name)) {
            Some(near) => format!("; the nearest is `{near}`"),
            None => String::new(),
        };
        let message = match profile {
            "" => format!("a model needs one: {}, or FILE.toml", names()),
            _ => format!("`{profile}` is none of {}, and no FILE.toml{nearest}", names()),
        };
        Err(wrong(message))
    }

    fn of(named: &NamedDisk) -> Self {
        Self {
            disk: named.disk,
            source: named.source.to_owned(),
            not_modelled: named.not_modelled.iter().map(|&what| what.to_owned()).collect(),
        }
    }

    fn read(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let text = read_file(path).map_err(|error| format!("{shown} cannot be read: {error}"))?;
        if text.len() > FILE_MAX {
            return Err(format!(
                "{shown} has more than {FILE_MAX} bytes; a profile has some lines"
            ));
        }
        let text = String::from_utf8(text).map_err(|_| format!("{shown} is not text"))?;
        Self::from_text(&shown.to_string(), &text)
    }

    /// Reads the text of a file; `name` appears in errors.
    ///
    /// # Errors
    /// The first problem, with its position.
    pub fn from_text(name: &str, text: &str) -> Result<Self, String> {
        let mut reader = Reader::new(name, text);
        let read = match DeTable::parse(text) {
            Ok(table) => Self::from_table(&mut reader, table.get_ref()),
            Err(error) => {
                let span = error.span().unwrap_or(0..0);
                reader.wrong(&span, format!("this is not TOML: {}", error.message().trim()));
                None
            }
        };
        match (reader.problems.0.first(), read) {
            (None, Some(read)) => Ok(read),
            (Some(problem), _) => Err(problem.to_string()),
            (None, None) => Err(format!("{name} describes no disk")),
        }
    }

    fn from_table(reader: &mut Reader<'_>, table: &DeTable<'_>) -> Option<Self> {
        let mut described = Self::base_of(reader, table)?;
        described.read_words(reader, table);
        described.read_fields(reader, table);
        if reader.problems.0.is_empty()
            && let Err(wrong) = described.disk.check()
        {
            reader.wrong(&(0..0), wrong);
        }
        Some(described)
    }

    /// The disk on which a file builds; without a base all of its parameters are to be given.
    fn base_of(reader: &mut Reader<'_>, table: &DeTable<'_>) -> Option<Self> {
        let base = word_of(reader, table, "base");
        let kind = word_of(reader, table, "kind");
        let (word, span) = base.as_ref().or(kind.as_ref()).or_else(|| {
            reader.wrong(&(0..0), "a disk needs a base, as in base = \"hdd-7200\", or a kind");
            None
        })?;
        let found = match &base {
            Some(_) => NamedDisk::find(word),
            None => NAMED.iter().find(|named| named.disk.kind() == word),
        };
        let Some(found) = found else {
            let message = match &base {
                Some(_) => format!("base: `{word}` is none of {}", names()),
                None => format!("kind: `{word}` is none of hdd, ssd, virtual"),
            };
            reader.wrong(span, message);
            return None;
        };
        if let Some((kind, span)) = &kind
            && *kind != found.disk.kind()
        {
            reader.wrong(span, format!("kind: the base is of kind {}", found.disk.kind()));
        }
        if base.is_some() {
            return Some(Self::of(found));
        }
        let given = |field: &&Field| entries(table).any(|(key, ..)| key == field.key);
        if let Some(field) = found.disk.fields().iter().find(|field| !given(field)) {
            let message = "without a base every parameter is given";
            reader.wrong(&(0..0), format!("`{}` is missing; {message}", field.key));
        }
        Some(Self { disk: found.disk, source: String::new(), not_modelled: Vec::new() })
    }

    /// Reads what is no parameter, and finds keys that are nothing.
    fn read_words(&mut self, reader: &mut Reader<'_>, table: &DeTable<'_>) {
        for (key, span, value) in entries(table) {
            match key {
                "base" | "kind" => {}
                "source" => self.source = reader.word(key, value).unwrap_or_default(),
                "not-modelled" => {
                    let words = reader.words(key, value);
                    self.not_modelled = words.map_or_else(Vec::new, |words| words.words().to_vec());
                }
                "age" => {
                    let word = reader.word(key, value).unwrap_or_default();
                    if let Err(wrong) = set_age(&mut self.disk, &word) {
                        reader.wrong(&span, format!("age: {wrong}"));
                    }
                }
                _ if self.disk.field(key).is_none() => {
                    let message = format!("no key of a disk: {}", has(key, &self.disk));
                    reader.wrong(&span, format!("`{key}` is {message}"));
                }
                _ => {}
            }
        }
    }

    fn read_fields(&mut self, reader: &mut Reader<'_>, table: &DeTable<'_>) {
        for field in self.disk.fields() {
            let Some((word, span)) = word_of(reader, table, field.key) else { continue };
            let number = parse_number(field.unit, &word);
            if let Err(wrong) = number.and_then(|number| field.set(&mut self.disk, number)) {
                reader.wrong(&span, format!("{}: {wrong}", field.key));
            }
        }
    }

    /// The text of a file that describes the disk.
    #[must_use]
    pub fn to_text(&self) -> String {
        let quoted = |word: &str| serde_json::Value::from(word).to_string();
        let mut text = format!("kind = {}\n", quoted(self.disk.kind()));
        if self.disk.is_full() {
            text += "age = \"full\"\n";
        }
        for field in self.disk.fields() {
            text += &format!("{} = {}\n", field.key, shown(field, &self.disk));
        }
        text += &format!("source = {}\n", quoted(&self.source));
        let what: Vec<String> = self.not_modelled.iter().map(|what| quoted(what)).collect();
        text + &format!("not-modelled = [{}]\n", what.join(", "))
    }
}

/// The names of disks, for an error message.
fn names() -> String {
    list(&NAMED.map(|named| named.name))
}

/// The value of a key, and its place.
fn word_of(
    reader: &mut Reader<'_>,
    table: &DeTable<'_>,
    wanted: &str,
) -> Option<(String, Range<usize>)> {
    let (key, _, value) = entries(table).find(|&(key, ..)| key == wanted)?;
    Some((reader.word(key, value)?, value.span()))
}

/// Makes a disk as old as a word says.
fn set_age(disk: &mut Disk, word: &str) -> Result<(), String> {
    match word {
        "new" => Ok(()),
        "full" => disk.fill(),
        _ => Err(format!("`{word}` is none of new and full")),
    }
}

/// What a disk has instead of a key.
fn has(key: &str, disk: &Disk) -> String {
    let keys: Vec<&str> = disk.fields().iter().map(|field| field.key).collect();
    match nearest_name(key, keys.iter().copied()) {
        Some(near) => format!("the nearest is `{near}`"),
        None => format!("its keys are {}", list(&keys)),
    }
}

fn parse_number(unit: Unit, word: &str) -> Result<u64, String> {
    match unit {
        Unit::Bytes | Unit::BytesPerSecond => parse_size(word),
        Unit::Time => parse_time(word),
        Unit::Count | Unit::Thousandths => parse_count(word),
        Unit::Switch => parse_switch(word).map(u64::from),
    }
}

/// A parameter's value as TOML; read again it is the same.
fn shown(field: &Field, disk: &Disk) -> String {
    let number = field.get(disk);
    match field.unit {
        Unit::Time => format!("\"{}\"", time_word(number)),
        Unit::Bytes | Unit::BytesPerSecond => match number.trailing_zeros() / 10 {
            _ if number == 0 => "0".into(),
            0 => number.to_string(),
            power => {
                let power = power.min(4);
                let unit = &"KMGT"[power as usize - 1..power as usize];
                format!("\"{}{unit}\"", number >> (10 * power))
            }
        },
        Unit::Count | Unit::Thousandths => number.to_string(),
        Unit::Switch => (number != 0).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Spec;
    use crate::spec::keys::is_of_export;

    #[test]
    fn disk_alone_has_a_model_of_its_own() {
        let alone = |text: &str| Model::alone(text).map_err(|error| error.to_string());
        let slow = alone("model:profile=hdd-7200,turn=11.1ms,seed=3").unwrap();
        assert_eq!((slow.name.as_str(), slow.seed), ("hdd-7200", 3));
        assert_eq!(alone("hdd-7200").unwrap(), alone("model:profile=hdd-7200").unwrap());
        assert_ne!(slow.disk, alone("hdd-7200").unwrap().disk);
        for (wrong, said) in [
            ("model:profile=hdd-7200,of=mem:size=1G", "leave it out"),
            ("model:hdd-7200", "model:profile=hdd-7200"),
            ("model:profile=hdd-7200,tur=1ms", "the nearest is `turn`"),
            ("model:profile=sata,seed=1,seed=2", "given twice"),
            ("model:profile=sata,seed", "not key=value"),
            ("model:", "a model needs one"),
            ("hdd-720", "the nearest is `hdd-7200`"),
            ("delay:read=1ms,of=mem:size=1G", "is none of"),
        ] {
            let error = alone(wrong).unwrap_err();
            assert!(error.contains(said), "{wrong}: {error}");
        }
    }

    fn model(text: &str) -> Model {
        match Spec::parse(text).unwrap().wrappers.remove(0) {
            Wrapper::Model(model) => *model,
            other => panic!("{other:?}"),
        }
    }

    fn error(text: &str) -> String {
        Spec::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn no_parameter_is_a_key_of_the_export() {
        assert!(KEYS.len() > 40 && KEYS.iter().all(|key| !is_of_export(key)));
    }

    #[test]
    fn parameters_override_the_profile() {
        let slow = model("model:profile=hdd-7200,turn=11.1ms,seed=3,media-rate=80M,of=mem:size=1M");
        let get = |key| slow.disk.field(key).unwrap().get(&slow.disk);
        assert_eq!((get("turn"), get("media-rate"), slow.seed), (11_100_000, 80 << 20, 3));
        assert_eq!(get("stroke"), 12_330_000, "as the profile has it");
        let cloud = model("model:profile=cloud-gp2,iops=150,size=100G,credits=0,of=mem:size=1M");
        let get = |key| cloud.disk.field(key).unwrap().get(&cloud.disk);
        assert_eq!((get("size"), get("iops"), get("burst-iops")), (100 << 30, 150, 3_000));
        assert!(model("model:profile=sata-qlc,age=full,of=mem:size=1M").disk.is_full());
    }

    #[test]
    fn errors_say_what_would_be_right() {
        for (text, words) in [
            ("model:of=mem:size=1M", &["profile: a model needs one: hdd-7200"] as &[_]),
            (
                "model:profile=hdd-720,of=mem:size=1M",
                &["`hdd-720` is none of", "nearest is `hdd-7200`"],
            ),
            ("model:hdd-7200,of=x", &["model:profile=hdd-7200,of=x"]),
            (
                "model:profile=nvme,turn=1ms,of=x",
                &["model: `turn` is no key of nvme", "its keys are size"],
            ),
            ("model:profile=nvme,chanels=1,of=x", &["model: has no key `chanels`"]),
            ("model:profile=hdd-7200,turn=1,of=x,", &[]),
            ("model:profile=hdd-7200,turn=2s,of=x", &["turn: it is from 100000 ns to 1 s"]),
            ("model:profile=hdd-7200,turn=7,of=x", &["turn: it is from"]),
            ("model:profile=hdd-7200,age=full,of=x", &["age: `full` is of flash"]),
            ("model:profile=sata,age=old,of=x", &["age: `old` is none of new and full"]),
            ("model:profile=cloud-gp3,iops=9000,of=x", &["burst-iops is at least iops"]),
            ("model:profile=/none/such.toml,of=x", &["/none/such.toml cannot be read"]),
            ("model:profile=/dev/zero,of=x", &["/dev/zero cannot be read: it is not a regular"]),
            (
                "model:profile=hdd-7200",
                &["of: a wrapper needs a device", "model:profile=hdd-7200,of="],
            ),
        ] {
            if words.is_empty() {
                assert!(Spec::parse(text).is_ok(), "{text}");
                continue;
            }
            let message = error(text);
            for words in words {
                assert!(message.contains(words), "{text}: {message}");
            }
        }
    }

    #[test]
    fn described_disk_is_read_again_as_it_was() {
        for named in &NAMED {
            let described = DiskDescription::of(named);
            let text = described.to_text();
            let again = DiskDescription::from_text("disk.toml", &text).unwrap();
            assert_eq!(again, described, "{text}");
            assert_eq!(again.to_text(), text);
        }
        let mut full = DiskDescription::find("sata-qlc").unwrap();
        full.disk.fill().unwrap();
        assert_eq!(DiskDescription::from_text("a", &full.to_text()), Ok(full));
    }

    #[test]
    fn file_changes_its_base_and_names_mistakes_with_their_place() {
        let read = |text: &str| DiskDescription::from_text("d.toml", text);
        let read_ok = read("base = 'hdd-7200'\nturn = '11.1ms'\nsource = 'here'\n").unwrap();
        assert_eq!(read_ok.disk.field("turn").unwrap().get(&read_ok.disk), 11_100_000);
        assert_eq!(read_ok.source, "here");
        for (text, words) in [
            ("turn = 1", "d.toml:1:1: a disk needs a base"),
            ("kind = 'hdd'", "d.toml:1:1: `size` is missing"),
            ("kind = 'tape'", "d.toml:1:8: kind: `tape` is none of hdd, ssd, virtual"),
            ("base = 'hdd'", "d.toml:1:8: base: `hdd` is none of hdd-7200"),
            ("base = 'nvme'\nkind = 'hdd'", "d.toml:2:8: kind: the base is of kind ssd"),
            (
                "base = 'nvme'\nchanels = 3",
                "d.toml:2:1: `chanels` is no key of a disk: the nearest is `channels`",
            ),
            ("base = 'nvme'\nchannels = 0", "d.toml:2:12: channels: it is from 1 to 4096"),
            ("base = 'nvme'\nread = '5'\nread = 6", "this is not TOML"),
            ("base = 'cloud-gp3'\niops = 4000", "burst-iops is at least iops"),
        ] {
            let message = read(text).unwrap_err();
            assert!(message.contains(words), "{text}: {message}");
        }
    }
}
