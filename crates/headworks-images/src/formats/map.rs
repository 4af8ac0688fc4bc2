//! Where the bytes of a disk are: runs in a sorted array, each as long as its bytes are neighbours in one file.
//!
//! Invariants: the first run starts at 0, starts increase, no run is empty, the last one ends at the disk's size, and neighbours
//! that could be one run are one. A look-up is a binary search. A run takes [`RUN_BYTES`] bytes, and a map at most
//! [`MAP_BYTES_MAX`].

/// Memory of a run in bytes.
pub(crate) const RUN_BYTES: usize = size_of::<Entry>();
/// Most memory of a map in bytes: some 44 million runs, a disk of 2.7 TiB whose clusters of 64 KiB lie in random order.
pub(crate) const MAP_BYTES_MAX: usize = 1 << 30;

/// What a run of bytes is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Nothing is stored; it reads as zeros.
    Zeros,
    /// Bytes of a file, by number, from an offset on.
    File(u16, u64),
    /// Compressed clusters: the format's code reads them.
    Compressed,
}

/// A run of bytes with one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// First byte on the disk.
    pub start: u64,
    /// Length of the run in bytes.
    pub len: u64,
    /// Source of the first byte.
    pub source: Source,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u64,
    offset: u64,
    /// Number of the file, or one of the two values below.
    file: u32,
}

const ZEROS: u32 = u32::MAX;
const COMPRESSED: u32 = u32::MAX - 1;

/// The runs of a disk.
#[derive(Debug, Default)]
pub(crate) struct RunMap {
    entries: Vec<Entry>,
    size: u64,
}

/// A map would be larger than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapFull;

impl RunMap {
    /// Appends `len` bytes at the end of the disk.
    pub fn push(&mut self, len: u64, source: Source) -> Result<(), MapFull> {
        self.push_limited(len, source, MAP_BYTES_MAX / RUN_BYTES)
    }

    fn push_limited(&mut self, len: u64, source: Source, most: usize) -> Result<(), MapFull> {
        let start = self.size;
        let (file, offset) = match source {
            Source::Zeros => (ZEROS, 0),
            Source::Compressed => (COMPRESSED, 0),
            Source::File(file, offset) => (file.into(), offset),
        };
        self.size += len;
        let joins = self.entries.last().is_some_and(|last| {
            let in_file = file != ZEROS && file != COMPRESSED;
            last.file == file && (!in_file || last.offset + (start - last.start) == offset)
        });
        if len == 0 || joins {
            return Ok(());
        }
        if self.entries.len() == most {
            return Err(MapFull);
        }
        self.entries.push(Entry { start, offset, file });
        Ok(())
    }

    /// Ends the map: gives back memory that it does not need.
    pub fn finish(mut self) -> Self {
        self.entries.shrink_to_fit();
        self
    }

    /// Size of the disk in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Number of runs of the disk.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Memory of the runs in bytes.
    pub fn memory(&self) -> usize {
        self.entries.capacity() * RUN_BYTES
    }

    /// All runs in order.
    pub fn runs(&self) -> impl Iterator<Item = Run> {
        self.runs_from(0, u64::MAX)
    }

    /// The runs of `len` bytes from `offset` on, the first and the last one cut; none beyond the disk's end.
    pub fn runs_from(&self, offset: u64, len: u64) -> impl Iterator<Item = Run> {
        let end = offset.saturating_add(len).min(self.size);
        let after = self.entries.partition_point(|entry| entry.start <= offset);
        let first = after.saturating_sub(1);
        (first..self.entries.len()).map_while(move |index| {
            let entry = self.entries[index];
            let start = entry.start.max(offset);
            let until = self.entries.get(index + 1).map_or(self.size, |next| next.start).min(end);
            (start < until).then(|| Run {
                start,
                len: until - start,
                source: match entry.file {
                    ZEROS => Source::Zeros,
                    COMPRESSED => Source::Compressed,
                    file => Source::File(file as u16, entry.offset + (start - entry.start)),
                },
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::prng::Prng;

    fn map(parts: &[(u64, Source)]) -> RunMap {
        let mut map = RunMap::default();
        for &(len, source) in parts {
            map.push(len, source).unwrap();
        }
        map.finish()
    }

    #[test]
    fn neighbours_of_one_source_are_one_run() {
        use Source::{Compressed, File, Zeros};
        let map = map(&[
            (10, Zeros),
            (5, Zeros),
            (10, File(0, 100)),
            (10, File(0, 110)),
            (10, File(0, 100)),
            (10, File(1, 110)),
            (0, Zeros),
            (10, Compressed),
            (10, Compressed),
        ]);
        let runs: Vec<_> = map.runs().map(|run| (run.start, run.len, run.source)).collect();
        assert_eq!(
            runs,
            [
                (0, 15, Zeros),
                (15, 20, File(0, 100)),
                (35, 10, File(0, 100)),
                (45, 10, File(1, 110)),
                (55, 20, Compressed)
            ]
        );
        assert_eq!((map.size(), map.len()), (75, 5));
        assert!(map.memory() >= 5 * RUN_BYTES && RUN_BYTES <= 24);
    }

    #[test]
    fn look_up_equals_search_through_all_bytes() {
        let mut prng = Prng::new(7);
        for _ in 0..50 {
            let mut parts = Vec::new();
            let mut bytes = Vec::new();
            for _ in 0..1 + prng.below(12) {
                let len = 1 + prng.below(9);
                let source = match prng.below(4) {
                    0 => Source::Zeros,
                    1 => Source::Compressed,
                    file => Source::File(file as u16, prng.below(50)),
                };
                parts.push((len, source));
                bytes.extend((0..len).map(|at| match source {
                    Source::File(file, offset) => Source::File(file, offset + at),
                    same => same,
                }));
            }
            let map = map(&parts);
            for offset in 0..bytes.len() + 2 {
                for len in 0..bytes.len() + 2 {
                    let found = map.runs_from(offset as u64, len as u64).flat_map(|run| {
                        (0..run.len).map(move |at| match run.source {
                            Source::File(file, offset) => Source::File(file, offset + at),
                            same => same,
                        })
                    });
                    let end = bytes.len().min(offset + len);
                    let expected = bytes.get(offset..end).unwrap_or_default();
                    assert_eq!(found.collect::<Vec<_>>(), expected, "{offset} + {len}");
                }
            }
        }
    }

    #[test]
    fn full_map_refuses_one_more_run() {
        let mut map = RunMap::default();
        assert_eq!(map.push_limited(10, Source::Zeros, 2), Ok(()));
        assert_eq!(map.push_limited(10, Source::Compressed, 2), Ok(()));
        assert_eq!(map.push_limited(10, Source::Compressed, 2), Ok(()));
        assert_eq!(map.push_limited(10, Source::Zeros, 2), Err(MapFull));
    }
}
