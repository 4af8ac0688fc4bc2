//! `[[tenant]]` tables: a tenant with its values, and the exports that belong to it.
//!
//! ```toml
//! [[tenant]]
//! name = "acme"
//! weight = 400
//! ioprio-max = "be:2"
//! bps-total = "200M"               # limits: LIMIT_KEYS
//! exports = ["db", "web-*"]        # names, with * and ?; `tenant` of an export wins over them
//! ```

use std::ops::Range;

use headworks_core::ConfigError;
use toml::de::DeTable;

use super::problem::{Origin, Problem};
use super::read::{Reader, Setting, Value, entries};
use crate::assemble::ExportSource;
use crate::assemble::TenantSpec;
use crate::limit_words::LIMIT_KEYS;
use crate::tenant::{TENANT_KEYS, TenantName, TenantOptions};
use crate::units::parse_switch;

/// Most names and patterns of one tenant: as many as a server has exports.
const PATTERNS_MAX: usize = 1024;

/// A tenant as it is written in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantSection {
    /// Name of the tenant.
    pub name: String,
    /// Values by key, and `enabled`.
    pub settings: Vec<Setting>,
    /// Names and patterns of its exports.
    pub exports: Vec<String>,
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
        let (name, exports) = (spec.name.as_str().to_owned(), Vec::new());
        Ok(Self { name, settings, exports, origin: origin.clone() })
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
        let (name, exports) = (spec.name.as_str().to_owned(), Vec::new());
        Self { name, settings, exports, origin: origin.clone() }
    }

    /// Makes a section that takes a tenant of an earlier file away.
    #[must_use]
    pub fn disabled(name: &str, origin: &Origin) -> Self {
        let value = Value::Word("false".into());
        let settings = vec![Setting { name: "enabled".into(), value, origin: origin.clone() }];
        Self { name: name.to_owned(), settings, exports: Vec::new(), origin: origin.clone() }
    }

    /// The same values with one origin.
    #[must_use]
    pub fn with_origin(mut self, origin: &Origin) -> Self {
        self.settings.iter_mut().for_each(|setting| setting.origin = origin.clone());
        self.origin = origin.clone();
        self
    }

    /// Replaces what `later` says; names of exports are kept if it names none.
    pub(super) fn merge(&mut self, later: Self) {
        if later.is_enabled() == Ok(false) {
            *self = later;
            return;
        }
        self.settings.retain(|setting| setting.name != "enabled");
        for setting in later.settings {
            self.settings.retain(|old| old.name != setting.name);
            self.settings.push(setting);
        }
        self.settings.sort_by(|one, other| one.name.cmp(&other.name));
        if !later.exports.is_empty() {
            self.exports = later.exports;
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
        let source = match self.origin {
            Origin::CommandLine => ExportSource::CommandLine,
            Origin::Control => ExportSource::Control,
            _ => ExportSource::File,
        };
        Ok(TenantSpec { name, options, source })
    }

    /// Whether a name or pattern of the section fits an export.
    #[must_use]
    pub fn owns(&self, export: &str) -> bool {
        self.exports.iter().any(|pattern| is_like(export.as_bytes(), pattern.as_bytes()))
    }
}

/// Whether a name fits a pattern, in which `*` stands for any bytes and `?` for one.
fn is_like(name: &[u8], pattern: &[u8]) -> bool {
    let (mut at, mut of) = (0, 0);
    // Where the last star was, and how much of the name it has taken: more of it is tried when the rest does not fit.
    let mut star: Option<(usize, usize)> = None;
    while at < name.len() {
        match pattern.get(of) {
            Some(b'*') => {
                star = Some((of, at));
                of += 1;
            }
            Some(&byte) if byte == b'?' || byte == name[at] => (at, of) = (at + 1, of + 1),
            _ => match &mut star {
                Some((begin, taken)) => {
                    *taken += 1;
                    (at, of) = (*taken, *begin + 1);
                }
                None => return false,
            },
        }
    }
    pattern[of..].iter().all(|byte| *byte == b'*')
}

/// Reads a `[[tenant]]` table.
pub fn read(
    reader: &mut Reader<'_>,
    table: &DeTable<'_>,
    span: &Range<usize>,
) -> Option<TenantSection> {
    let (mut name, mut settings, mut exports) = (None, Vec::new(), Vec::new());
    for (key, key_span, value) in entries(table) {
        match key {
            "name" => name = reader.word(key, value).map(|word| (word, value.span())),
            "exports" => {
                let words = reader.words(key, value);
                exports = words.map(|value| value.words().to_vec()).unwrap_or_default();
                if exports.len() > PATTERNS_MAX {
                    let message = format!("exports: more than {PATTERNS_MAX} names");
                    reader.wrong(&value.span(), message);
                    exports.clear();
                }
            }
            _ if key == "enabled" || TENANT_KEYS.contains(&key) || LIMIT_KEYS.contains(&key) => {
                settings.extend(reader.setting((key, key_span, value)));
            }
            _ => {
                let mut known = vec!["name", "exports", "enabled"];
                known.extend(TENANT_KEYS);
                known.extend(LIMIT_KEYS);
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
    Some(TenantSection { name, settings, exports, origin: reader.origin(&name_span) })
}

#[cfg(test)]
mod tests {
    use super::is_like;

    #[test]
    fn patterns_fit_whole_names() {
        for (pattern, fits, misses) in [
            ("db", &["db"][..], &["db2", "d", ""][..]),
            ("web-*", &["web-", "web-1", "web-a-b"], &["web", "xweb-1"]),
            ("*-log", &["-log", "a-log", "a-log-log"], &["log", "a-logs"]),
            ("d?", &["db", "d1"], &["d", "dbb"]),
            ("*a*b*", &["ab", "xaybz", "aab"], &["ba", "a", "b"]),
            ("*", &["", "anything"], &[]),
            ("", &[""], &["x"]),
        ] {
            for name in fits {
                assert!(is_like(name.as_bytes(), pattern.as_bytes()), "{pattern} {name}");
            }
            for name in misses {
                assert!(!is_like(name.as_bytes(), pattern.as_bytes()), "{pattern} {name}");
            }
        }
    }
}
