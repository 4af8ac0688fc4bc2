//! `[[tenant]]` tables: a tenant with its values, and the exports that belong to it.
//!
//! ```toml
//! [[tenant]]
//! name = "acme"
//! weight = 400
//! ioprio-max = "be:2"
//! bps-total = "200M"               # limits: LIMIT_KEYS
//! exports = ["db", "web-*"]        # names, with * and ?; `tenant` of an export wins over them
//! certificates = ["*.acme.example"]  # names in certificates of the clients of its exports
//! ```

use std::ops::Range;

use headworks_core::ConfigError;
use toml::de::DeTable;

use super::listen::read_patterns;
use super::problem::{Origin, Problem};
use super::read::{Reader, Setting, Value, disabled, entries, merge_settings};
use crate::exports::assemble::ExportSource;
use crate::exports::assemble::TenantSpec;
use crate::spec::name_pattern::fits_any;
use crate::spec::option_table::OptionTable;
use crate::spec::tenant::{TenantName, TenantOption, TenantOptions};
use crate::spec::units::parse_switch;

/// A tenant as it is written in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantSection {
    /// Name of the tenant.
    pub name: String,
    /// Values by key, and `enabled`.
    pub settings: Vec<Setting>,
    /// Names and patterns of its exports.
    pub exports: Vec<String>,
    /// Names and patterns of its clients' certificates.
    pub certificates: Vec<String>,
    /// Origin of the section.
    pub origin: Origin,
}

impl TenantSection {
    /// Makes the section for `NAME,key=value,...` of a command line.
    ///
    /// # Errors
    /// The text is invalid.
    pub fn from_words(text: &str, origin: &Origin) -> Result<Self, ConfigError> {
        let spec = TenantSpec::parse(text, ExportSource::CommandLine)?;
        let given = text.split(',').skip(1).filter_map(|word| word.split_once('='));
        let setting = |(name, word): (&str, &str)| Setting {
            name: name.into(),
            value: Value::Word(word.into()),
            origin: origin.clone(),
        };
        let mut settings: Vec<Setting> = given.map(setting).collect();
        settings.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(Self::without_lists(spec.name.as_str(), settings, origin))
    }

    /// Makes the section of a tenant with the values that it has now.
    #[must_use]
    pub fn of(spec: &TenantSpec, origin: &Origin) -> Self {
        let setting = |(name, word): (&str, String)| Setting {
            name: name.into(),
            value: Value::Word(word),
            origin: origin.clone(),
        };
        let settings = spec.options.words().into_iter().map(setting).collect();
        Self::without_lists(spec.name.as_str(), settings, origin)
    }

    fn without_lists(name: &str, settings: Vec<Setting>, origin: &Origin) -> Self {
        let (exports, certificates) = (Vec::new(), Vec::new());
        Self { name: name.to_owned(), settings, exports, certificates, origin: origin.clone() }
    }

    /// Makes a section that takes a tenant of an earlier file away.
    #[must_use]
    pub fn disabled(name: &str, origin: &Origin) -> Self {
        Self::without_lists(name, disabled(origin), origin)
    }

    /// The same values with one origin.
    #[must_use]
    pub fn with_origin(mut self, origin: &Origin) -> Self {
        self.settings.iter_mut().for_each(|setting| setting.origin = origin.clone());
        self.origin = origin.clone();
        self
    }

    /// The section over what was configured before.
    pub(crate) fn over(&self, before: Option<&TenantSpec>) -> Self {
        let Some(before) = before else { return self.clone() };
        let mut whole = Self::of(before, &self.origin);
        whole.merge(self.clone());
        whole
    }

    /// Replaces what `later` says; a list is kept if it has none.
    pub(super) fn merge(&mut self, later: Self) {
        if later.is_enabled() == Ok(false) {
            *self = later;
            return;
        }
        merge_settings(&mut self.settings, later.settings, |old, new| old.name == new.name);
        if !later.exports.is_empty() {
            self.exports = later.exports;
        }
        if !later.certificates.is_empty() {
            self.certificates = later.certificates;
        }
        self.origin = later.origin;
    }

    /// Whether the tenant exists.
    ///
    /// # Errors
    /// The value of `enabled` is no switch.
    pub fn is_enabled(&self) -> Result<bool, Problem> {
        let found = self.settings.iter().find(|setting| setting.name == "enabled");
        let Some(setting) = found else { return Ok(true) };
        let wrong = |error| Problem::new(&setting.origin, format!("enabled: {error}"));
        parse_switch(setting.word()).map_err(wrong)
    }

    /// The tenant that the section defines.
    ///
    /// # Errors
    /// The first mistake, with its position.
    pub fn plan(&self) -> Result<TenantSpec, Problem> {
        let wrong = |origin: &Origin, what: &dyn std::fmt::Display| {
            Problem::new(origin, format!("tenant {}: {what}", self.name))
        };
        let name = TenantName::parse(&self.name).map_err(|error| wrong(&self.origin, &error))?;
        let mut options = TenantOptions::default();
        for setting in self.settings.iter().filter(|setting| setting.name != "enabled") {
            let set = options.set(&setting.name, setting.word());
            set.map_err(|error| wrong(&setting.origin, &error))?;
        }
        options.limits.validate().map_err(|error| wrong(&self.origin, &error))?;
        let source = self.origin.source();
        Ok(TenantSpec { name, options, source })
    }

    /// Whether a name or pattern of the section fits an export.
    #[must_use]
    pub fn owns(&self, export: &str) -> bool {
        fits_any(export, &self.exports)
    }
}

/// Reads a `[[tenant]]` table.
pub fn read(
    reader: &mut Reader<'_>,
    table: &DeTable<'_>,
    span: &Range<usize>,
) -> Option<TenantSection> {
    let (mut name, mut settings) = (None, Vec::new());
    let (mut exports, mut certificates) = (Vec::new(), Vec::new());
    for (key, key_span, value) in entries(table) {
        match key {
            "name" => name = reader.word(key, value).map(|word| (word, value.span())),
            "exports" => exports = read_patterns(reader, key, value),
            "certificates" => certificates = read_patterns(reader, key, value),
            _ if key == "enabled" || TenantOption::of_key(key).is_some() => {
                settings.extend(reader.setting((key, key_span, value)));
            }
            _ => {
                let mut known = vec!["name", "exports", "certificates", "enabled"];
                known.extend(TenantOption::keys().map(|(_, key)| key));
                reader.unknown((key, &key_span), "a [[tenant]]", &known);
            }
        }
    }
    let Some((name, name_span)) = name else {
        if !table.contains_key("name") {
            reader.wrong(span, "a [[tenant]] needs a name, which exports refer to");
        }
        return None;
    };
    if let Err(error) = TenantName::parse(&name).and_then(|name| name.check()) {
        reader.wrong(&name_span, error);
        return None;
    }
    settings.sort_by(|one: &Setting, other| one.name.cmp(&other.name));
    let origin = reader.origin(&name_span);
    Some(TenantSection { name, settings, exports, certificates, origin })
}
