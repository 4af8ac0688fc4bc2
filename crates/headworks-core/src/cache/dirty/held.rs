//! The folios that may hold blocks whose write-out failed: a bit for each unit of the pool, at the unit of the folio's header.
//!
//! A flush of a volume with held blocks writes all of them again, and the server reports them every second. A search through the
//! headers would take time in proportion to the pool (200 MB of headers for 16 GiB) and delay every other client.
//!
//! Invariant: a folio with a held block has its bit set. Other bits may be set; a search that finds such a bit clears it.

/// The set of folios that may hold blocks.
#[derive(Debug)]
pub(super) struct HeldFolios {
    words: Box<[u64]>,
}

impl HeldFolios {
    /// Creates an empty set for a pool of `units`.
    pub fn new(units: u32) -> Self {
        Self { words: vec![0; units.div_ceil(64) as usize].into() }
    }

    /// Adds the folio at `unit`.
    pub fn mark(&mut self, unit: u32) {
        debug_assert!((unit as usize) < self.words.len() * 64, "a unit of the pool");
        self.words[unit as usize / 64] |= 1 << (unit % 64);
    }

    /// Removes the folio at `unit`.
    pub fn clear(&mut self, unit: u32) {
        self.words[unit as usize / 64] &= !(1 << (unit % 64));
    }

    /// Returns the first folio at `unit` or after it.
    pub fn next(&self, unit: u32) -> Option<u32> {
        let first = unit as usize / 64;
        let rest = *self.words.get(first)? & u64::MAX << (unit % 64);
        if rest != 0 {
            return Some(first as u32 * 64 + rest.trailing_zeros());
        }
        let skip = self.words[first + 1..].iter().position(|&word| word != 0)?;
        let at = first + 1 + skip;
        Some(at as u32 * 64 + self.words[at].trailing_zeros())
    }

    /// Iterates over all folios of the set.
    pub fn iter(&self) -> impl Iterator<Item = u32> + use<'_> {
        std::iter::successors(self.next(0), |&unit| self.next(unit + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marked_folios_are_found_in_order() {
        for units in [1, 63, 64, 65, 1000] {
            let mut held = HeldFolios::new(units);
            assert_eq!(held.next(0), None);
            let all = [0, 1, 62, 63, 64, 65, 127, 128, 640, 998, 999];
            let present: Vec<u32> = all.into_iter().filter(|&unit| unit < units).collect();
            present.iter().for_each(|&unit| held.mark(unit));
            assert_eq!(held.iter().collect::<Vec<_>>(), present);
            for (index, &unit) in present.iter().enumerate() {
                held.clear(unit);
                assert_eq!(held.iter().collect::<Vec<_>>(), present[index + 1..]);
                assert_eq!(held.next(unit + 1), present.get(index + 1).copied());
            }
            assert_eq!((held.next(units), held.next(units + 64)), (None, None));
        }
    }
}
