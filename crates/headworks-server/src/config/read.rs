//! Reads tables and values of TOML with their positions, and collects problems.
//!
//! A scalar becomes the word that a user would write on the command line. So a size is `"10G"` or `4096`, a switch
//! `true` or `"on"`, and every option has one parser.

use std::ops::Range;

use toml::de::{DeTable, DeValue};
use toml::{Spanned, de::DeInteger};

use super::problem::{Lines, Origin, Problem, Problems};
use crate::spec::did_you_mean::nearest_name;

/// Value of an option, as words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// No value, and no default.
    Unset,
    /// A single word.
    Word(String),
    /// A list of words.
    List(Vec<String>),
}

impl Value {
    /// All words of the value.
    #[must_use]
    pub fn words(&self) -> &[String] {
        match self {
            Self::Unset => &[],
            Self::Word(word) => std::slice::from_ref(word),
            Self::List(words) => words,
        }
    }
}

/// An option with its value and origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Name of the option.
    pub name: String,
    /// Value of the option.
    pub value: Value,
    /// Origin of the value.
    pub origin: Origin,
}

impl Setting {
    /// First word of the value.
    #[must_use]
    pub fn word(&self) -> &str {
        self.value.words().first().map_or("", String::as_str)
    }
}

/// The settings of a section that takes one of an earlier file away.
pub fn disabled(origin: &Origin) -> Vec<Setting> {
    let (name, value) = ("enabled".to_owned(), Value::Word("false".to_owned()));
    vec![Setting { name, value, origin: origin.clone() }]
}

/// Puts the settings of a later section in the place of those that they replace, by `replaces(old, new)`. It exists if it was disabled.
pub fn merge_settings(
    settings: &mut Vec<Setting>,
    later: Vec<Setting>,
    replaces: impl Fn(&Setting, &Setting) -> bool,
) {
    settings.retain(|setting| setting.name != "enabled");
    for setting in later {
        settings.retain(|old| !replaces(old, &setting));
        settings.push(setting);
    }
    settings.sort_by(|one, other| one.name.cmp(&other.name));
}

/// A key, its position and its value.
pub type TomlEntry<'t, 'i> = (&'t str, Range<usize>, &'t Spanned<DeValue<'i>>);

/// Entries of a table with their positions.
pub fn entries<'t, 'i>(table: &'t DeTable<'i>) -> impl Iterator<Item = TomlEntry<'t, 'i>> {
    table.iter().map(|(key, value)| (key.get_ref().as_ref(), key.span(), value))
}

/// Reads values and collects problems.
pub struct Reader<'a> {
    lines: Lines<'a>,
    pub problems: Problems,
}

impl<'a> Reader<'a> {
    pub fn new(file: &str, text: &'a str) -> Self {
        Self { lines: Lines::new(file, text), problems: Problems::default() }
    }

    pub fn origin(&self, span: &Range<usize>) -> Origin {
        self.lines.origin(span)
    }

    pub fn wrong(&mut self, span: &Range<usize>, what: impl Into<String>) {
        let origin = self.origin(span);
        self.problems.0.push(Problem::new(&origin, what));
    }

    /// Reports a key that is not among `known`.
    pub fn unknown(&mut self, (key, span): (&str, &Range<usize>), place: &str, known: &[&str]) {
        self.wrong(span, unknown(key, place, known));
    }

    /// Reads a value that must be a table.
    pub fn table<'t, 'i>(
        &mut self,
        value: &'t Spanned<DeValue<'i>>,
        what: &str,
    ) -> Option<&'t DeTable<'i>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            let found = kind(value.get_ref());
            self.wrong(&value.span(), format!("{what} is a table, not {found}"));
        }
        table
    }

    /// Reads a value that must be `[[name]]` tables.
    pub fn tables<'t, 'i>(
        &mut self,
        value: &'t Spanned<DeValue<'i>>,
        name: &str,
    ) -> Vec<(&'t DeTable<'i>, Range<usize>)> {
        let Some(array) = value.get_ref().as_array() else {
            let found = kind(value.get_ref());
            self.wrong(&value.span(), format!("write [[{name}]] once for each; this is {found}"));
            return Vec::new();
        };
        let mut tables = Vec::new();
        for item in array.iter() {
            if let Some(table) = self.table(item, name) {
                tables.push((table, item.span()));
            }
        }
        tables
    }

    /// Reads a value that must be one word.
    pub fn word(&mut self, key: &str, value: &Spanned<DeValue<'_>>) -> Option<String> {
        let word = match value.get_ref() {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) if !is_decimal(number) => {
                let message =
                    "numbers are decimal here, and the octal mode of a socket is a string";
                self.wrong(&value.span(), format!("{key}: {message}"));
                return None;
            }
            DeValue::Integer(number) => number.as_str().to_owned(),
            DeValue::Float(number) => number.as_str().to_owned(),
            DeValue::Boolean(switch) => switch.to_string(),
            other => {
                let found = kind(other);
                self.wrong(&value.span(), format!("{key} is one value, not {found}"));
                return None;
            }
        };
        if word.contains('\0') {
            self.wrong(&value.span(), format!("{key} has a zero byte"));
            return None;
        }
        Some(word)
    }

    /// Reads a value that is one word or a list of them.
    pub fn words(&mut self, key: &str, value: &Spanned<DeValue<'_>>) -> Option<Value> {
        let DeValue::Array(items) = value.get_ref() else {
            return self.word(key, value).map(Value::Word);
        };
        let words: Vec<Option<String>> = items.iter().map(|item| self.word(key, item)).collect();
        words.into_iter().collect::<Option<Vec<_>>>().map(Value::List)
    }

    /// Reads an entry that must be one word.
    pub fn setting(&mut self, (key, span, value): TomlEntry<'_, '_>) -> Option<Setting> {
        let word = self.word(key, value)?;
        Some(Setting { name: key.into(), value: Value::Word(word), origin: self.origin(&span) })
    }
}

/// Message for a name that is not among `known`.
pub fn unknown(key: &str, place: &str, known: &[&str]) -> String {
    match nearest_name(key, known.iter().copied()) {
        Some(near) => format!("{place} has no `{key}`; the nearest is `{near}`"),
        None => format!("{place} has no `{key}`; it has {}", known.join(", ")),
    }
}

fn is_decimal(number: &DeInteger<'_>) -> bool {
    number.radix() == 10
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
