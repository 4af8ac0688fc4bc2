//! Tables of options, of an export and of a tenant: one row names an option, its parser and printer, its field, when a change of it takes
//! effect, and whether `ctl` shows it.
//!
//! ```text
//!   SPEC, --tenant, [[export]], [[tenant]] --set--> options --differences--> ctl diff, save, reload, upgrade
//!                         ctl set --set--'             `--value--> ctl get
//! ```
//!
//! [`options!`] makes an enum of a list of rows, as `tunables!` of the core does for queues. Rule: what all options have in common is done
//! by a loop over [`OptionTable::ALL`]. An option that has a meaning of its own while the server runs has an arm where that is put in
//! force (`control::settings`).

use serde_json::Value;

use crate::spec::latency_target::{
    cgroup_latency, latency_target_word, parse_cgroup_latency, parse_latency_target,
};

/// When a changed value takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// At once, by `ctl set` and by a reload.
    AtOnce,
    /// After a restart, or when the export is removed and added; a reload says so.
    Restart,
    /// At the next start, which is all that it is about.
    NextStart,
}

/// Whether `ctl get` lists the option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    Always,
    /// If the server has a page cache.
    WithCache,
    Never,
}

/// The name of an option in a cgroup, under which `ctl` has it, too.
pub(crate) struct Cgroup {
    pub name: &'static str,
    /// The form of its values, if it is another one.
    form: Option<Form>,
}

/// Turns values of a form into words of the option, and back.
struct Form {
    read: fn(&str) -> Result<String, String>,
    show: fn(&Value) -> Value,
}

/// The weight, in a cgroup.
pub(crate) const IO_WEIGHT: Cgroup = Cgroup { name: "io.weight", form: None };

/// The latency target, in a cgroup.
pub(crate) const IO_LATENCY: Cgroup = Cgroup {
    name: "io.latency",
    form: Some(Form {
        read: |line| parse_cgroup_latency(line).map(latency_target_word),
        show: |value| {
            let word = value.as_str().unwrap_or_default();
            cgroup_latency(parse_latency_target(word).unwrap_or(0)).into()
        },
    }),
};

/// One option of the options `O`.
pub(crate) struct Row<O: 'static> {
    /// Its key in files, in specifications and in `ctl`. Limits are one option with many keys.
    pub keys: &'static [&'static str],
    pub cgroup: Option<Cgroup>,
    pub effect: Effect,
    pub shown: Shown,
    /// The values that it accepts, for errors of `ctl`.
    pub accepted: &'static str,
    /// One line about it, which goes on behind the key.
    pub help: &'static str,
    /// Stores the value of a key.
    pub set: fn(&mut O, &'static str, &str) -> Result<(), String>,
    /// The value of a key; null if the option is not set.
    pub get: fn(&O, &'static str) -> Value,
    pub copy: fn(&mut O, &O),
    pub is_same: fn(&O, &O) -> bool,
}

/// An enum that names the rows of a table.
pub(crate) trait OptionTable: Copy + PartialEq + 'static {
    /// The options that the rows are fields of.
    type Options: Copy + Default + 'static;

    /// Every option, in the order of the table.
    const ALL: &'static [Self];

    /// The row of an option.
    fn row(self) -> &'static Row<Self::Options>;

    /// Every option with each of its keys, in the order of the table.
    fn keys() -> impl Iterator<Item = (Self, &'static str)> {
        Self::ALL.iter().flat_map(|option| option.row().keys.iter().map(|key| (*option, *key)))
    }

    /// The option of a key.
    fn of_key(key: &str) -> Option<(Self, &'static str)> {
        Self::keys().find(|(_, known)| *known == key)
    }

    /// Keys that are the only one of their option: all but those of limits.
    fn own_keys() -> Vec<&'static str> {
        let own = Self::ALL.iter().map(|option| option.row().keys);
        own.filter_map(|keys| <[&'static str; 1]>::try_from(keys).ok()).flatten().collect()
    }

    /// Whether the option is a key in files and in `ctl`, and not limits, which have names of their own.
    fn own_key(self) -> Option<&'static str> {
        match self.row().keys {
            [key] => Some(key),
            _ => None,
        }
    }

    /// Every key with the line about it, as a sentence of a manual.
    fn help() -> String {
        let line =
            |option: &Self| format!("{}{}", option.own_key().unwrap_or(""), option.row().help);
        Self::ALL.iter().map(line).collect::<Vec<_>>().join("; ")
    }

    /// Whether `ctl get` lists it in a server with or without a page cache.
    fn is_shown(self, has_cache: bool) -> bool {
        match self.row().shown {
            Shown::Always => true,
            Shown::WithCache => has_cache,
            Shown::Never => false,
        }
    }

    /// Whether a change takes effect while the server runs.
    fn is_live(self) -> bool {
        self.row().effect == Effect::AtOnce
    }

    /// Whether two sets of options have the same value.
    fn is_same(self, one: &Self::Options, other: &Self::Options) -> bool {
        (self.row().is_same)(one, other)
    }

    /// Takes the value over from other options.
    fn copy(self, to: &mut Self::Options, from: &Self::Options) {
        (self.row().copy)(to, from);
    }

    /// The value of an option with one key, in its own form or that of a cgroup; null if it is not set.
    fn value(self, options: &Self::Options, in_cgroup: bool) -> Value {
        let row = self.row();
        let value = (row.get)(options, row.keys[0]);
        let form = row.cgroup.as_ref().and_then(|cgroup| cgroup.form.as_ref());
        match form.filter(|_| in_cgroup) {
            Some(form) => (form.show)(&value),
            None => value,
        }
    }

    /// Whether the cgroup has a form of its own for the values.
    fn has_cgroup_form(self) -> bool {
        self.row().cgroup.as_ref().is_some_and(|cgroup| cgroup.form.is_some())
    }

    /// Stores the word of an option with one key, in its own form or that of a cgroup.
    ///
    /// # Errors
    /// A sentence with what would be right.
    fn set(self, options: &mut Self::Options, word: &str, in_cgroup: bool) -> Result<(), String> {
        let row = self.row();
        let form = row.cgroup.as_ref().and_then(|cgroup| cgroup.form.as_ref());
        match form.filter(|_| in_cgroup) {
            Some(form) => (row.set)(options, row.keys[0], &(form.read)(word)?),
            None => (row.set)(options, row.keys[0], word),
        }
    }

    /// Keys whose values differ, with both values.
    fn differences(
        self,
        one: &Self::Options,
        other: &Self::Options,
    ) -> Vec<(&'static str, Value, Value)> {
        let row = self.row();
        let values = |&key: &&'static str| (key, (row.get)(one, key), (row.get)(other, key));
        row.keys.iter().map(values).filter(|(_, one, other)| one != other).collect()
    }

    /// What differs from the defaults: keys and words as a file has them.
    fn words(options: &Self::Options) -> Vec<(&'static str, String)> {
        let usual = Self::Options::default();
        let all = Self::ALL.iter().flat_map(|option| option.differences(options, &usual));
        all.filter_map(|(key, value, _)| Some((key, word(&value)?))).collect()
    }

    /// The value for a message: `weight 400`, or all limits that are set.
    fn said(self, options: &Self::Options) -> String {
        let said = |(key, value): (&str, &Value)| {
            format!("{key} {}", word(value).unwrap_or_else(|| NONE.to_owned()))
        };
        if let Some(key) = self.own_key() {
            return said((key, &self.value(options, false)));
        }
        let set = self.differences(options, &Self::Options::default());
        let set: Vec<String> = set.iter().map(|(key, value, _)| said((key, value))).collect();
        if set.is_empty() { "no limits".to_owned() } else { set.join(", ") }
    }
}

/// The word for an option that is not set.
const NONE: &str = "none";

/// A value as a file has it; none for null.
pub(crate) fn word(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(word) => Some(word.clone()),
        other => Some(other.to_string()),
    }
}

/// Finds one of several words.
///
/// # Errors
/// A sentence with all of them.
pub(crate) fn choice<T>(
    word: &str,
    known: impl IntoIterator<Item = (&'static str, T)>,
) -> Result<T, String> {
    let mut names = Vec::new();
    for (name, value) in known {
        if name == word {
            return Ok(value);
        }
        names.push(name);
    }
    Err(format!("`{word}` is none of {}", names.join(", ")))
}

/// Defines an enum of options and its table.
///
/// A row is `Name = "key" [field] parser, printer; effect, shown, "accepted", "help";`, with `(CGROUP)` behind the field where a
/// cgroup has a name for it. The parser turns a word into the field's value, the printer the field's value into one of JSON. In place of
/// `"key" [field] parser, printer` stands `limits [field]` for all limits.
macro_rules! options {
    (
        $(#[$meta:meta])*
        $vis:vis enum $option:ident of $options:ty {
            $($name:ident = $form:tt [$($field:ident).+] $(($cgroup:ident))? $($parse:path, $print:expr)?; $effect:ident, $shown:ident, $accepted:expr, $help:expr;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $option {
            $($name,)*
        }

        impl $option {
            const TABLE: &[$crate::spec::option_table::Row<$options>] = &[$(
                $crate::spec::option_table::Row {
                    keys: $crate::spec::option_table::options!(@keys $form),
                    cgroup: $crate::spec::option_table::options!(@cgroup $($cgroup)?),
                    effect: $crate::spec::option_table::Effect::$effect,
                    shown: $crate::spec::option_table::Shown::$shown,
                    accepted: $accepted,
                    help: $help,
                    set: $crate::spec::option_table::options!(@set $options, [$($field).+] $($parse)?),
                    get: $crate::spec::option_table::options!(@get $options, [$($field).+] $($print)?),
                    copy: |to, from| to.$($field).+ = from.$($field).+,
                    is_same: |one, other| one.$($field).+ == other.$($field).+,
                },
            )*];
        }

        impl $crate::spec::option_table::OptionTable for $option {
            type Options = $options;

            const ALL: &'static [Self] = &[$(Self::$name),*];

            fn row(self) -> &'static $crate::spec::option_table::Row<$options> {
                &Self::TABLE[self as usize]
            }
        }
    };
    (@keys limits) => { &$crate::spec::limit_words::LIMIT_KEYS };
    (@keys $key:literal) => { &[$key] };
    (@cgroup) => { None };
    (@cgroup $cgroup:ident) => { Some($crate::spec::option_table::$cgroup) };
    (@set $options:ty, [$($field:ident).+]) => {
        |options: &mut $options, key, word| $crate::spec::limit_words::set_limit(&mut options.$($field).+, key, word)
    };
    (@set $options:ty, [$($field:ident).+] $parse:path) => {
        |options: &mut $options, _, word| {
            options.$($field).+ = $parse(word)?;
            Ok(())
        }
    };
    (@get $options:ty, [$($field:ident).+]) => {
        |options: &$options, key| $crate::spec::limit_words::limit_word(&options.$($field).+, key).into()
    };
    (@get $options:ty, [$($field:ident).+] $print:expr) => {
        |options: &$options, _| ($print)(options.$($field).+)
    };
}

pub(crate) use options;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::ExportOption;
    use crate::spec::tenant::TenantOption;

    /// A word for every kind of value.
    const WORDS: [&str; 11] =
        ["400", "idle", "unsafe", "retry", "serve", "acme", "5ms", "64M", "on", "10s", "7"];

    /// Options with another value for one key, and its word.
    fn changed<T: OptionTable>(option: T, key: &'static str) -> (T::Options, Value) {
        let usual = T::Options::default();
        let with = |word: &&str| {
            let mut options = usual;
            (option.row().set)(&mut options, key, word).ok()?;
            (!option.is_same(&options, &usual))
                .then(|| (options, (option.row().get)(&options, key)))
        };
        WORDS.iter().find_map(with).unwrap_or_else(|| panic!("no word for {key}"))
    }

    fn check<T: OptionTable + std::fmt::Debug>() {
        let usual = T::Options::default();
        assert!(T::words(&usual).is_empty());
        for (option, key) in T::keys() {
            assert!(T::of_key(key) == Some((option, key)), "{key} is a key of two options");
            let (options, value) = changed(option, key);
            let others = T::ALL.iter().filter(|other| **other != option);
            others.for_each(|other| {
                assert!(other.is_same(&options, &usual), "{option:?}, {other:?}")
            });
            assert_eq!(option.differences(&options, &usual).len(), 1, "{option:?}");
            // The printed word is parsed to the same value, and is what a file has.
            let printed = word(&value).unwrap();
            let mut again = usual;
            (option.row().set)(&mut again, key, &printed).unwrap();
            assert!(option.is_same(&again, &options), "{key} {printed}");
            assert_eq!(T::words(&options), [(key, printed.clone())]);
            assert_eq!(option.said(&options), format!("{key} {printed}"));
            option.copy(&mut again, &usual);
            assert!(option.is_same(&again, &usual), "{option:?}");
        }
    }

    #[test]
    fn every_option_is_parsed_printed_compared_and_copied_alone() {
        check::<ExportOption>();
        check::<TenantOption>();
    }

    #[test]
    fn value_has_two_forms_with_one_meaning() {
        let mut options = crate::spec::ExportOptions::default();
        ExportOption::LatencyTarget.set(&mut options, "target=5000", true).unwrap();
        let shown = |in_cgroup| ExportOption::LatencyTarget.value(&options, in_cgroup);
        assert_eq!((shown(false), shown(true)), ("5ms".into(), "target=5000".into()));
        assert!(ExportOption::LatencyTarget.set(&mut options, "5ms", true).is_err());
        assert!(!ExportOption::Weight.has_cgroup_form());
    }

    fn packaged(file: &str) -> String {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/");
        std::fs::read_to_string(folder.to_owned() + file).unwrap()
    }

    #[test]
    fn example_of_a_configuration_has_every_option() {
        let text = packaged("headworks.toml");
        let has = |section: &str, key: &str| {
            let mut sections = text.split("\n[[").filter(|part| part.starts_with(section));
            let is_line = |line: &str| {
                line.trim_start_matches("#:").split(" = ").next().is_some_and(|name| name == key)
            };
            sections.any(|part| part.lines().any(is_line))
        };
        let missing = |section: &'static str, keys: Vec<&'static str>| {
            keys.into_iter().filter(|key| !has(section, key)).collect::<Vec<_>>()
        };
        assert!(missing("export", ExportOption::own_keys()).is_empty());
        assert!(missing("tenant", TenantOption::own_keys()).is_empty());
        assert_eq!(missing("export", vec!["wieght"]), ["wieght"]);
    }

    #[test]
    fn manual_page_of_the_configuration_has_every_option() {
        let page = packaged("man/headworks.toml.5").replace("\\-", "-");
        let (_, exports) = page.split_once("enabled@true").unwrap();
        let tenants =
            page.lines().find(|line| line.starts_with("a share of every device")).unwrap();
        for key in ExportOption::own_keys() {
            assert!(exports.contains(&format!("\n{key}@")), "{key}");
        }
        for key in TenantOption::own_keys() {
            assert!(tenants.contains(&format!(" {key} (")), "{key}");
        }
    }
}
