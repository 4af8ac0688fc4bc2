//! A set of small numbers.

/// A set of numbers, a bit each; as long as its largest number needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BitSet(Vec<u64>);

impl BitSet {
    /// Adds a number to the set.
    pub fn insert(&mut self, number: u16) {
        let word = usize::from(number / 64);
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (number % 64);
    }

    /// Adds all numbers of another set.
    pub fn extend(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(word, more)| *word |= more);
    }

    /// Whether a number is in the set.
    #[must_use]
    pub fn has(&self, number: u16) -> bool {
        let word = self.0.get(usize::from(number / 64));
        word.is_some_and(|word| word >> (number % 64) & 1 != 0)
    }
}

impl FromIterator<u16> for BitSet {
    fn from_iter<I: IntoIterator<Item = u16>>(numbers: I) -> Self {
        let mut set = Self::default();
        numbers.into_iter().for_each(|number| set.insert(number));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_has_what_was_inserted_and_nothing_else() {
        let mut set: BitSet = [0, 63, 64].into_iter().collect();
        set.extend(&[5, 1023].into_iter().collect());
        let found: Vec<u16> = (0..2000).filter(|number| set.has(*number)).collect();
        assert_eq!(found, [0, 5, 63, 64, 1023]);
        set.extend(&BitSet::default());
        assert!(set.has(1023) && !BitSet::default().has(0) && !set.has(u16::MAX));
    }
}
