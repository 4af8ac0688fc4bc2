//! Which folios may hold blocks that could not be written: a bit for each unit of the pool, at the place of a folio's header.
//!
//! A flush of a volume that holds something tries all of it again, and who looks at the server asks for it every second. Looking
//! for it in the headers would take as long as the pool is large (200 MB of them for 16 GiB), and everybody else would wait.
//!
//! Invariant: a folio with a held block has its bit. Others may have theirs still: whoever comes by takes it away.

/// See the head of this file.
#[derive(Debug)]
pub(in crate::cache) struct HeldFolios {
    words: Box<[u64]>,
}

impl HeldFolios {
    /// None, in a pool of `units`.
    pub fn new(units: u32) -> Self {
        Self { words: vec![0; units.div_ceil(64) as usize].into() }
    }

    /// The folio at `unit` holds something from now on.
    pub fn mark(&mut self, unit: u32) {
        self.words[unit as usize / 64] |= 1 << (unit % 64);
    }

    /// It holds nothing any longer.
    pub fn clear(&mut self, unit: u32) {
        self.words[unit as usize / 64] &= !(1 << (unit % 64));
    }

    /// The first one at `unit` or behind it.
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

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = u32> + use<'_> {
        std::iter::successors(self.next(0), |&unit| self.next(unit + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_are_marked_are_found_in_order_and_no_others() {
        for units in [1, 63, 64, 65, 1000] {
            let mut held = HeldFolios::new(units);
            assert_eq!(held.next(0), None);
            let all = [0, 1, 62, 63, 64, 65, 127, 128, 640, 998, 999];
            let there: Vec<u32> = all.into_iter().filter(|&unit| unit < units).collect();
            there.iter().for_each(|&unit| held.mark(unit));
            assert_eq!(held.iter().collect::<Vec<_>>(), there);
            for (index, &unit) in there.iter().enumerate() {
                held.clear(unit);
                assert_eq!(held.iter().collect::<Vec<_>>(), there[index + 1..]);
                assert_eq!(held.next(unit + 1), there.get(index + 1).copied());
            }
            assert_eq!((held.next(units), held.next(units + 64)), (None, None));
        }
    }
}
