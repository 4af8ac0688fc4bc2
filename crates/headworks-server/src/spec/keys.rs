//! Keys of a specification: `key=value,key=value` after the colon.
//!
//! Unknown keys, repeated keys and words without `=` are errors that list the known keys. A comma in a value is
//! doubled; `of` takes the whole rest and is the last key.

use headworks_core::ConfigError;

use crate::limit_words::LIMIT_KEYS;

/// Keys of every export, which [`super::ExportOptions`] removes before the device parses the others.
pub const EXPORT_KEYS: [&str; 9] = [
    "weight",
    "ioprio",
    "cache",
    "on-error",
    "on-unclean",
    "tenant",
    "latency-target",
    "dirty",
    "describe",
];

/// Whether a key belongs to the export, limits included.
pub fn is_of_export(key: &str) -> bool {
    EXPORT_KEYS.contains(&key) || LIMIT_KEYS.contains(&key)
}

/// Keys and values of one device.
pub struct Keys {
    values: Vec<(&'static str, String)>,
}

impl Keys {
    /// Parses `key=value,key=value`, with doubled commas and `of`.
    pub fn read(
        device: &'static str,
        valid: &[&'static str],
        text: &str,
    ) -> Result<Self, ConfigError> {
        let mut values: Vec<(&'static str, String)> = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let word = rest.split(',').next().unwrap_or_default();
            let Some((key, _)) = word.split_once('=') else {
                let message = format!("`{word}` is not key=value; keys are {}", list(valid));
                return Err(ConfigError::new(device, message));
            };
            let Some(&key) = valid.iter().find(|&&name| name == key) else {
                let (valid, of_export) = (list(valid), list(&EXPORT_KEYS));
                let message = match is_of_export(key) {
                    true => format!("`{key}` is a key of the export; set it on the outermost type"),
                    false => format!(
                        "has no key `{key}`; its keys are {valid}, and of an export {of_export} and limits such as bps-total"
                    ),
                };
                return Err(ConfigError::new(device, message));
            };
            if values.iter().any(|(name, _)| *name == key) {
                return Err(ConfigError::new(key, "is given twice"));
            }
            let after = &rest[key.len() + 1..];
            let (value, next) = match key {
                "of" => (after.to_owned(), ""),
                _ => split_value(after),
            };
            values.push((key, value));
            rest = next;
        }
        Ok(Self { values })
    }

    /// All keys and values in the given order.
    pub fn into_words(self) -> Vec<(&'static str, String)> {
        self.values
    }

    /// Value of a key, as it was written.
    pub fn get(&self, key: &str) -> Option<&str> {
        let found = self.values.iter().find(|(name, _)| *name == key);
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

    /// Specification of the device that a wrapper wraps.
    pub fn of(&self, example: &str) -> Result<String, ConfigError> {
        let missing = || {
            let message = format!("a wrapper needs a device as its last key: {example}");
            ConfigError::new("of", message)
        };
        let of = self.get("of").filter(|of| !of.is_empty());
        of.map(str::to_owned).ok_or_else(missing)
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
        let keys = Keys::read("delay", &["read", "of"], "read=1,of=x,read=2,,").unwrap();
        assert_eq!((keys.get("read"), keys.get("of")), (Some("1"), Some("x,read=2,,")));
        assert_eq!(keys.get("write"), None);
    }
}
