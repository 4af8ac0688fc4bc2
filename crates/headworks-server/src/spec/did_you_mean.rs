//! Suggestions for misspelled names in error messages.

pub(crate) use strsim::levenshtein as distance;

/// Longest word in bytes that is compared. A longer one is no typing error, and would take long.
pub(crate) const WORD_BYTES_MAX: usize = 200;

/// Returns the name of `known` with the smallest edit distance to `word`, if it is at most a quarter of the name plus one.
pub fn nearest_name<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > WORD_BYTES_MAX {
        return None;
    }
    let near = known.into_iter().map(|name| (distance(name, word), name));
    near.filter(|(distance, name)| *distance <= 1 + name.len() / 4).min().map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelled_word_finds_its_name() {
        let known = ["cache", "control", "connections"];
        assert_eq!(nearest_name("cahce", known), Some("cache"));
        assert_eq!(nearest_name("conection", known), Some("connections"));
    }

    #[test]
    fn unrelated_or_long_word_finds_no_name() {
        let known = ["cache", "control", "connections"];
        assert_eq!(nearest_name("port", known), None);
        assert_eq!(nearest_name(&"cache".repeat(50), known), None);
    }
}
