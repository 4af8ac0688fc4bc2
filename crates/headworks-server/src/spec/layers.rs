//! A specification as a list of layers: `delay:read=5ms,of=mem:size=1M` is a layer `delay` around a layer `mem`.
//!
//! Tables of a configuration file become layers, too: a text is split into layers first, and what they mean is read in one place.

use headworks_core::ConfigError;

use super::keys::read_keys;
use super::{KINDS, Kind, Spec, no_type, split_type};

/// A device or wrapper with its keys as words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Type of the device or wrapper.
    pub kind: &'static str,
    /// Keys and values in the user's order.
    pub words: Vec<(String, String)>,
}

impl Layer {
    /// Known types, and whether each one is a wrapper.
    pub fn kinds() -> impl Iterator<Item = (&'static str, bool)> {
        KINDS.into_iter().map(|(kind, name)| (name, kind.keys().contains(&"of")))
    }

    /// Keys of a type, without `of`.
    pub fn keys(kind: &str) -> impl Iterator<Item = &'static str> {
        let known = KINDS.into_iter().find(|(_, name)| *name == kind);
        let keys: &[&str] = known.map_or(&[], |(kind, _)| kind.keys());
        keys.iter().copied().filter(|key| *key != "of")
    }

    /// Its type.
    pub(super) fn typed(&self) -> Result<Kind, ConfigError> {
        let known = KINDS.iter().find(|(_, name)| *name == self.kind);
        known.map(|(kind, _)| *kind).ok_or_else(|| no_type(self.kind))
    }

    /// Text of layers from the outside in, as [`Spec::parse`] reads it.
    #[must_use]
    pub fn text(layers: &[Self]) -> String {
        let each = layers.iter().enumerate().map(|(index, layer)| {
            let words = layer.words.iter();
            let mut words: Vec<String> =
                words.map(|(key, value)| format!("{key}={}", value.replace(',', ",,"))).collect();
            if index + 1 < layers.len() {
                words.push("of=".to_owned());
            }
            format!("{}:{}", layer.kind, words.join(","))
        });
        each.collect()
    }
}

impl Spec {
    /// Layers of a specification without keys of an export, from the outside in.
    ///
    /// # Errors
    /// A word is not a key of its type. Values are not checked.
    pub fn layers(text: &str) -> Result<Vec<Layer>, ConfigError> {
        let mut layers = Vec::new();
        let mut rest = text.to_owned();
        loop {
            let Some((kind, keys)) = split_type(&rest)? else {
                let words = vec![("path".to_owned(), rest)];
                layers.push(Layer { kind: "file", words });
                return Ok(layers);
            };
            let (_, name) = KINDS[kind as usize];
            kind.check_form(keys)?;
            let mut words = read_keys(name, kind.keys(), keys)?;
            let of = words.pop_if(|(key, _)| key == "of");
            layers.push(Layer { kind: name, words });
            match of.filter(|(_, of)| !of.is_empty()) {
                Some((_, of)) => rest = of,
                None => return Ok(layers),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_round_trip_to_specification() {
        for (text, again) in [
            ("disk.img", "file:path=disk.img"),
            ("/a,b=c", "file:path=/a,,b=c"),
            ("file:size=1G,path=x,,", "file:size=1G,path=x,,"),
            ("mem:size=64M", "mem:size=64M"),
            ("null:", "null:"),
            ("delay:read=5ms,of=/a,b", "delay:read=5ms,of=file:path=/a,,b"),
            ("error:of=delay:all=1ms,of=mem:size=1", "error:of=delay:all=1ms,of=mem:size=1"),
        ] {
            let layers = Spec::layers(text).unwrap();
            assert_eq!(Layer::text(&layers), again);
            assert_eq!(Spec::parse(again), Spec::parse(text), "{text}");
            assert_eq!(Spec::layers(again), Ok(layers), "{text}");
        }
        assert!(Spec::layers("mem:sise=1").is_err());
    }

    #[test]
    fn every_type_is_in_the_table() {
        for (index, (kind, _)) in KINDS.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
        }
        let wrappers = Layer::kinds().filter(|(_, wraps)| *wraps).map(|(name, _)| name);
        assert_eq!(wrappers.collect::<Vec<_>>(), ["delay", "error", "powercut", "model"]);
        assert!(Layer::keys("delay").all(|key| key != "of") && Layer::keys("nul").count() == 0);
    }
}
