//! Keys of a specification: `key=value,key=value` after the colon.
//!
//! Unknown keys, repeated keys and words without `=` are errors that list the known keys. A comma in a value is
//! doubled; `of` takes the whole rest and is the last key.

use headworks_core::ConfigError;

use super::export_options::ExportOption;
use crate::spec::option_table::OptionTable;

/// Whether a key belongs to the export, limits included.
pub fn is_of_export(key: &str) -> bool {
    ExportOption::of_key(key).is_some()
}

/// Keys and values of one device, which are keys of its type.
#[derive(Clone, Copy)]
pub struct Keys<'a>(pub &'a [(String, String)]);

/// Parses `key=value,key=value` with doubled commas into keys and values; `of` is the last one.
pub fn read_keys(
    device: &'static str,
    valid: &[&'static str],
    text: &str,
) -> Result<Vec<(String, String)>, ConfigError> {
    let mut values: Vec<(String, String)> = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let word = rest.split(',').next().unwrap_or_default();
        let Some((key, _)) = word.split_once('=') else {
            let message = format!("`{word}` is not key=value; keys are {}", list(valid));
            return Err(ConfigError::new(device, message));
        };
        let Some(&key) = valid.iter().find(|&&name| name == key) else {
            let (valid, of_export) = (list(valid), list(&ExportOption::own_keys()));
            let message = match is_of_export(key) {
                true => format!("`{key}` is a key of the export; set it on the outermost type"),
                false => format!(
                    "has no key `{key}`; its keys are {valid}, and of an export {of_export} and limits such as bps-total"
                ),
            };
            return Err(ConfigError::new(device, message));
        };
        if values.iter().any(|(name, _)| name == key) {
            return Err(ConfigError::new(key, "is given twice"));
        }
        let after = &rest[key.len() + 1..];
        let (value, next) = match key {
            "of" => (after.to_owned(), ""),
            _ => split_value(after),
        };
        values.push((key.to_owned(), value));
        rest = next;
    }
    Ok(values)
}

impl<'a> Keys<'a> {
    /// Value of a key, as it was written.
    pub fn get(&self, key: &str) -> Option<&'a str> {
        let found = self.0.iter().find(|(name, _)| *name == key);
        found.map(|(_, value)| value.as_str())
    }

    /// Value of a key, parsed.
    pub fn parse<T>(
        &self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, ConfigError> {
        let parsed = self.get(key).map(parse).transpose();
        parsed.map_err(|message| ConfigError::new(key, message))
    }
}

/// Splits a value at the next single comma.
pub fn split_value(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut rest = text;
    loop {
        let Some((before, after)) = rest.split_once(',') else {
            value.push_str(rest);
            return (value, "");
        };
        value.push_str(before);
        match after.strip_prefix(',') {
            Some(more) => {
                value.push(',');
                rest = more;
            }
            None => return (value, after),
        }
    }
}

/// Joins words for an error message.
pub fn list(words: &[&str]) -> String {
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_end_values_unless_doubled() {
        for (text, value, rest) in [
            ("", "", ""),
            ("a", "a", ""),
            ("a,b=c", "a", "b=c"),
            ("a,,b,c=d", "a,b", "c=d"),
            (",,,x", ",", "x"),
            ("a,", "a", ""),
            ("a,,", "a,", ""),
        ] {
            assert_eq!(split_value(text), (value.to_owned(), rest), "{text}");
        }
    }

    #[test]
    fn of_takes_the_whole_rest() {
        let words = read_keys("delay", &["read", "of"], "read=1,of=x,read=2,,").unwrap();
        let keys = Keys(&words);
        assert_eq!((keys.get("read"), keys.get("of")), (Some("1"), Some("x,read=2,,")));
        assert_eq!(keys.get("write"), None);
    }
}
