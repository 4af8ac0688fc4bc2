//! `[[export]]` tables: an export with everything that a specification can say.
//!
//! ```toml
//! [[export]]
//! name = "db"
//! device = "fast"                                  # a [[device]]; without one, images of a filesystem share a queue
//! weight = 400                                     # also ioprio, cache, on-error, read-only, enabled
//! bps-write = "50M"                                # limits: LIMIT_KEYS
//! file = { path = "/srv/db.img", size = "10G" }    # one of file, null and mem, with the keys of a SPEC
//! certificates = ["host1"]                         # names in its clients' certificates, with * and ?
//! wrap = [{ delay = { read = "5ms" } }]            # wrappers, the outermost first
//! ```

use std::ops::Range;

use headworks_core::ConfigError;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::listen::read_patterns;
use super::problem::{Origin, Problem};
use super::read::{Reader, Setting, TomlEntry, Value, disabled, entries, unknown};
use super::write::size_word;
use crate::exports::assemble::ExportSpec;
use crate::spec::option_table::OptionTable;
use crate::spec::units::{parse_size, parse_switch};
use crate::spec::{ExportOption, ExportOptions, Layer, Part, Spec};

/// Longest name that fits an NBD message.
pub const NAME_MAX: usize = 4096;
/// Most wrappers, as in a specification.
const WRAPPERS_MAX: usize = 8;

/// Keys of an export that no specification has.
const KEYS: [&str; 3] = ["enabled", "device", "read-only"];

fn is_key(key: &str) -> bool {
    KEYS.contains(&key) || ExportOption::of_key(key).is_some()
}

/// A device or wrapper of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerSection {
    /// Type of the device or wrapper.
    pub kind: &'static str,
    /// Keys with their values.
    pub settings: Vec<Setting>,
    /// Origin of the section.
    pub origin: Origin,
}

impl LayerSection {
    /// The layer that it describes.
    fn layer(&self) -> Layer {
        Layer { kind: self.kind, words: words(&self.settings).collect() }
    }
}

/// Names and words of settings.
fn words<'a>(
    settings: impl IntoIterator<Item = &'a Setting>,
) -> impl Iterator<Item = (String, String)> {
    settings.into_iter().map(|setting| (setting.name.clone(), setting.word().to_owned()))
}

/// An export as it is written in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportSection {
    /// Name of the export; may be empty.
    pub name: String,
    /// Values of `device`, `read-only`, `weight`, `ioprio`, `cache` and `on-error`, and limits.
    pub settings: Vec<Setting>,
    /// Wrappers and the device, from the outside in.
    pub parts: Vec<LayerSection>,
    /// Names and patterns of its clients' certificates.
    pub certificates: Vec<String>,
    /// Origin of the section.
    pub origin: Origin,
}

impl ExportSection {
    /// Makes the section for `SPEC` or `NAME=SPEC` of a command line; the `only` export may have the empty name.
    ///
    /// # Errors
    /// The specification is invalid.
    pub fn from_words(text: &str, only: bool, origin: &Origin) -> Result<Self, ConfigError> {
        let ExportSpec { name, share, layers, .. } = ExportSpec::parse(text, only)?;
        Ok(Self::build(name, &share, layers.to_vec(), origin))
    }

    fn build(name: String, share: &ExportOptions, layers: Vec<Layer>, origin: &Origin) -> Self {
        let setting = |name: &str, word: String| Setting {
            name: name.into(),
            value: Value::Word(word),
            origin: origin.clone(),
        };
        let part = |layer: Layer| {
            let words = layer.words.into_iter();
            let mut settings: Vec<_> = words.map(|(key, word)| setting(&key, word)).collect();
            settings.sort_by(|one, other| one.name.cmp(&other.name));
            LayerSection { kind: layer.kind, settings, origin: origin.clone() }
        };
        let said = ExportOption::words(share).into_iter();
        let mut settings: Vec<_> = said.map(|(name, word)| setting(name, word)).collect();
        settings.sort_by(|one, other| one.name.cmp(&other.name));
        let parts = layers.into_iter().map(part).collect();
        let certificates = Vec::new();
        Self { name, settings, parts, certificates, origin: origin.clone() }
    }

    /// Makes a section that takes an export of an earlier file away.
    #[must_use]
    pub fn disabled(name: &str, origin: &Origin) -> Self {
        let (name, parts, certificates) = (name.to_owned(), Vec::new(), Vec::new());
        Self { name, settings: disabled(origin), parts, certificates, origin: origin.clone() }
    }

    /// Whether the export is served.
    ///
    /// # Errors
    /// The value of `enabled` is no switch.
    pub fn is_enabled(&self) -> Result<bool, Problem> {
        let Some(setting) = self.get("enabled") else { return Ok(true) };
        let wrong = |error| Problem::new(&setting.origin, format!("enabled: {error}"));
        parse_switch(setting.word()).map_err(wrong)
    }

    /// Makes the section of an export with the options that it has now; none if its words are not known.
    #[must_use]
    pub fn of(spec: &ExportSpec, now: &ExportOptions, origin: &Origin) -> Option<Self> {
        if spec.layers.is_empty() {
            return None;
        }
        let mut section = Self::build(spec.name.clone(), now, spec.layers.to_vec(), origin);
        section.certificates = spec.certificates.to_vec();
        let mut set = |name: &str, word: String| {
            let (value, origin) = (Value::Word(word), origin.clone());
            section.settings.push(Setting { name: name.into(), value, origin });
        };
        if spec.read_only {
            set("read-only", "true".into());
        }
        if let Some(device) = &spec.device {
            set("device", device.name.clone());
        }
        section.settings.sort_by(|one, other| one.name.cmp(&other.name));
        Some(section)
    }

    /// Sets the size of its device, which may be said in other words.
    pub(crate) fn set_size(&mut self, size: u64) {
        let Some(base) = self.parts.last_mut() else { return };
        let is_said =
            |setting: &Setting| setting.name == "size" && parse_size(setting.word()) == Ok(size);
        if base.settings.iter().any(is_said) {
            return;
        }
        let (name, value) = ("size".to_owned(), Value::Word(size_word(size)));
        base.settings.retain(|setting| setting.name != name);
        base.settings.push(Setting { name, value, origin: base.origin.clone() });
        base.settings.sort_by(|one, other| one.name.cmp(&other.name));
    }

    /// The same values with one origin.
    #[must_use]
    pub fn with_origin(mut self, origin: &Origin) -> Self {
        let parts = self.parts.iter_mut().flat_map(|part| {
            part.origin = origin.clone();
            &mut part.settings
        });
        let all = parts.chain(&mut self.settings);
        all.for_each(|setting| setting.origin = origin.clone());
        self.origin = origin.clone();
        self
    }

    /// The export as a command line says it, without its name.
    #[must_use]
    pub fn words(&self) -> String {
        let mut layers = self.layers();
        if let Some(outermost) = layers.first_mut() {
            let of_export =
                self.settings.iter().filter(|one| ExportOption::of_key(&one.name).is_some());
            outermost.words.extend(words(of_export));
        }
        Layer::text(&layers)
    }

    /// Value of a key in [`ExportSection::settings`].
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Setting> {
        self.settings.iter().find(|setting| setting.name == name)
    }

    /// Name of the export's device.
    #[must_use]
    pub fn device(&self) -> Option<&str> {
        self.get("device").map(Setting::word)
    }

    /// Makes the specification to open as [`ExportSection::plan`] does, without values that are wrong; none if what it opens is not known
    /// without them. Adds all mistakes to `problems`.
    pub fn plan_rest(
        &self,
        size: Option<u64>,
        read_only: bool,
        problems: &mut Vec<Problem>,
    ) -> Option<ExportSpec> {
        let (mut kept, mut is_whole) = (self.clone(), true);
        loop {
            let problem = match kept.plan(size, read_only) {
                Ok(spec) => return Some(spec),
                Err(problem) => problem,
            };
            let is_left = kept.leave_out(&problem.origin);
            // What is missing now was there.
            if is_left || is_whole {
                problems.push(problem);
            }
            if !is_left {
                return None;
            }
            is_whole = false;
        }
    }

    /// Leaves out the one value of this origin: a size becomes the smallest there is, because without one a missing image is another
    /// mistake. False if there is not one, or if it was left out before.
    fn leave_out(&mut self, origin: &Origin) -> bool {
        let has = |settings: &[Setting]| {
            settings.iter().filter(|setting| setting.origin == *origin).count()
        };
        let lists = self.parts.iter_mut().map(|part| &mut part.settings);
        let mut lists: Vec<_> = lists.chain([&mut self.settings]).collect();
        if lists.iter().map(|list| has(list)).sum::<usize>() != 1 {
            return false;
        }
        let Some(list) = lists.iter_mut().find(|list| has(list) == 1) else { return false };
        let smallest = Value::Word("512".into());
        match list.iter_mut().find(|setting| setting.origin == *origin) {
            Some(setting) if setting.name == "size" && setting.value == smallest => return false,
            Some(setting) if setting.name == "size" => setting.value = smallest,
            _ => list.retain(|setting| setting.origin != *origin),
        }
        true
    }

    /// Its options.
    fn options(&self) -> Result<ExportOptions, Problem> {
        let words = self.settings.iter().map(|setting| (&*setting.name, setting.word()));
        ExportOptions::of_words(words).map_err(|error| self.locate(0, &error))
    }

    /// Makes the specification to open, without a named device: with `size` where none is given, and read-only if
    /// `read_only`.
    ///
    /// # Errors
    /// The first mistake, with its position.
    pub fn plan(&self, size: Option<u64>, read_only: bool) -> Result<ExportSpec, Problem> {
        let share = self.options()?;
        let (mut base, mut wrappers) = (None, Vec::new());
        // From the inside out, as a user finds the mistakes of a section.
        for (index, part) in self.parts.iter().enumerate().rev() {
            let wrong = |error| self.locate(index, &error);
            match part.layer().read().map_err(wrong)? {
                Part::Base(device) => base = Some(device),
                Part::Wrapper(wrapper) => wrappers.insert(0, wrapper),
            }
        }
        let nothing = || Problem::new(&self.origin, nothing_to_serve(&self.name));
        let mut spec = Spec { base: base.ok_or_else(nothing)?, wrappers };
        if let Some(size) = size {
            spec.set_default_size(size);
        }
        let own = self.get("read-only").map(|setting| {
            let wrong = |error| Problem::new(&setting.origin, format!("read-only: {error}"));
            parse_switch(setting.word()).map_err(wrong)
        });
        let read_only = own.transpose()?.unwrap_or(false) || read_only;
        let source = self.origin.source();
        let layers = self.layers().into();
        let export = ExportSpec::new(self.name.clone(), spec, read_only);
        let certificates = self.certificates.as_slice().into();
        let export = ExportSpec { share, source, layers, certificates, ..export };
        export.check().map_err(|error| self.locate(0, &error))?;
        Ok(export)
    }

    /// Whether its image may share a queue.
    pub(super) fn may_share(&self) -> bool {
        self.parts.len() == 1 && self.parts[0].kind == "file"
    }

    /// Its layers, without the export's keys.
    fn layers(&self) -> Vec<Layer> {
        self.parts.iter().map(LayerSection::layer).collect()
    }

    /// Position of the key that an error names.
    fn locate(&self, part: usize, error: &ConfigError) -> Problem {
        let part = self.parts.get(part);
        let mut all = part.into_iter().flat_map(|part| &part.settings).chain(&self.settings);
        let said = all.find(|setting| setting.name == error.option);
        let section = part.map_or(&self.origin, |part| &part.origin);
        let origin = said.map_or(section, |setting| &setting.origin);
        let name = if self.name.is_empty() { "default" } else { &self.name };
        Problem::new(origin, format!("export {name}: {error}"))
    }
}

fn nothing_to_serve(name: &str) -> String {
    let bases: Vec<&str> = Layer::kinds().filter(|kind| !kind.1).map(|kind| kind.0).collect();
    let bases = bases.join(", ");
    format!("export `{name}` needs one of {bases}, as in file = {{ path = \"/srv/disk.img\" }}")
}

/// Reads an `[[export]]` table.
pub fn read(
    reader: &mut Reader<'_>,
    table: &DeTable<'_>,
    span: &Range<usize>,
) -> Option<ExportSection> {
    let mut name = None;
    let (mut settings, mut certificates) = (Vec::new(), Vec::new());
    let (mut bases, mut parts): (Vec<LayerSection>, Vec<LayerSection>) = Default::default();
    for (key, key_span, value) in entries(table) {
        let kind = Layer::kinds().find(|(kind, _)| *kind == key);
        match (key, kind) {
            ("name", _) => name = reader.word(key, value).map(|word| (word, value.span())),
            ("wrap", _) => parts = read_wrappers(reader, value),
            ("certificates", _) => certificates = read_patterns(reader, key, value),
            (_, Some((kind, false))) => bases.extend(read_part(reader, kind, &key_span, value)),
            (_, Some((kind, true))) => {
                let message =
                    format!("{kind} is a wrapper: write wrap = [{{ {kind} = {{ ... }} }}]");
                reader.wrong(&key_span, message);
            }
            _ if is_key(key) => settings.extend(reader.setting((key, key_span, value))),
            _ => reader.wrong(&key_span, unknown_key(key)),
        }
    }
    let Some((name, name_span)) = name else {
        if !table.contains_key("name") {
            reader.wrong(span, "an [[export]] needs a name; the default export has name = \"\"");
        }
        return None;
    };
    if name.len() > NAME_MAX {
        reader.wrong(&name_span, format!("a name has at most {NAME_MAX} bytes"));
        return None;
    }
    let origin = reader.origin(&name_span);
    if let Some(second) = bases.get(1) {
        let message = format!("export `{name}` has a {} and a {}", bases[0].kind, second.kind);
        reader.problems.0.push(Problem::new(&second.origin, message + ": keep one"));
        return None;
    }
    let given = Layer::kinds().any(|(kind, wraps)| !wraps && table.contains_key(kind));
    let is_off = settings.iter().any(|setting: &Setting| {
        setting.name == "enabled" && parse_switch(setting.word()) == Ok(false)
    });
    let Some(base) = bases.pop() else {
        if is_off {
            return Some(ExportSection { name, settings, parts: Vec::new(), certificates, origin });
        }
        if !given {
            reader.wrong(&name_span, nothing_to_serve(&name));
        }
        return None;
    };
    parts.push(base);
    Some(ExportSection { name, settings, parts, certificates, origin })
}

fn unknown_key(key: &str) -> String {
    let bases = Layer::kinds().filter(|kind| !kind.1).map(|kind| kind.0);
    let known: Vec<&str> = ["name", "wrap", "certificates"]
        .into_iter()
        .chain(KEYS)
        .chain(ExportOption::keys().map(|(_, key)| key))
        .chain(bases)
        .collect();
    unknown(key, "an [[export]]", &known)
}

fn read_wrappers(reader: &mut Reader<'_>, value: &Spanned<DeValue<'_>>) -> Vec<LayerSection> {
    let Some(array) = value.get_ref().as_array() else {
        reader.wrong(&value.span(), "wrap is a list: wrap = [{ delay = { read = \"5ms\" } }]");
        return Vec::new();
    };
    if array.len() > WRAPPERS_MAX {
        let message = format!("more than {WRAPPERS_MAX} wrappers around one device");
        reader.wrong(&value.span(), message);
        return Vec::new();
    }
    let wrappers: Vec<&str> = Layer::kinds().filter(|kind| kind.1).map(|kind| kind.0).collect();
    let mut parts = Vec::new();
    for item in array.iter() {
        let Some(table) = reader.table(item, "a wrapper") else { continue };
        if table.len() != 1 {
            reader.wrong(&item.span(), format!("one of {} in each {{ }}", wrappers.join(", ")));
        }
        for (key, span, value) in entries(table) {
            match wrappers.iter().find(|kind| **kind == key) {
                Some(kind) => parts.extend(read_part(reader, kind, &span, value)),
                None => reader.unknown((key, &span), "wrap", &wrappers),
            }
        }
    }
    parts
}

fn read_part(
    reader: &mut Reader<'_>,
    kind: &'static str,
    span: &Range<usize>,
    value: &Spanned<DeValue<'_>>,
) -> Option<LayerSection> {
    if let Some(text) = value.get_ref().as_str() {
        let key = Layer::keys(kind).next().unwrap_or_default();
        let message =
            format!("{kind} is a table: write {kind} = {{ {key} = \"{}\" }}", text.escape_debug());
        reader.wrong(&value.span(), message);
        return None;
    }
    let table = reader.table(value, kind)?;
    let keys: Vec<&str> = Layer::keys(kind).collect();
    let mut settings = Vec::new();
    for (key, span, value) in entries(table) {
        let entry: TomlEntry<'_, '_> = (key, span.clone(), value);
        match keys.contains(&key) {
            true => settings.extend(reader.setting(entry)),
            false if is_key(key) => {
                reader.wrong(&span, format!("{key} belongs to the [[export]], beside {kind}"));
            }
            false => reader.unknown((key, &span), kind, &keys),
        }
    }
    settings.sort_by(|one, other| one.name.cmp(&other.name));
    Some(LayerSection { kind, settings, origin: reader.origin(span) })
}

/// Whether two exports have the same image in the same words.
pub(super) fn same_image(one: &ExportSpec, other: &ExportSpec) -> bool {
    one.spec.base.is_lasting() && one.spec == other.spec
}
