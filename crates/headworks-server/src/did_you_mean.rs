//! What a user may have meant by a name that is not there.

/// What is longer is no slip of the finger, and would take long to compare.
pub const SLIP_MAX: usize = 200;

/// The name of `known` that differs least from `word`, if it differs little.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > SLIP_MAX {
        return None;
    }
    let near = known.into_iter().map(|name| (distance(name, word), name));
    near.filter(|(distance, name)| *distance <= 1 + name.len() / 4).min().map(|(_, name)| name)
}

/// How many letters one must change, add or leave out to make `a` of `b`.
#[must_use]
pub fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (index, from) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for (column, to) in b.iter().enumerate() {
            let change = diagonal + usize::from(from != *to);
            diagonal = row[column + 1];
            row[column + 1] = change.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_name_and_another_word_finds_none() {
        let known = ["cache", "control", "connections"];
        assert_eq!(nearest("cahce", known), Some("cache"));
        assert_eq!(nearest("conection", known), Some("connections"));
        assert_eq!(nearest("port", known), None);
        assert_eq!(nearest(&"cache".repeat(50), known), None);
        assert_eq!((distance("", "ab"), distance("abc", "axc"), distance("a", "")), (2, 1, 1));
    }
}
