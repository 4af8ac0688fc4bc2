//! The range of its volume that an export serves: all of it, or `start..start + length`.
//!
//! ```text
//!   request of a client, export's offsets --on_volume--> bio, volume's offsets
//!   size of the volume -----------------------size-----> size of the export
//! ```
//!
//! Rule: requests of clients, and what is said of them (slow requests, errors, requests in flight), have the export's offsets and sizes. What is
//! below a bio has the volume's: cache and failed blocks, queues, devices, images, records. Nothing but these two functions goes from one to
//! the other.
//!
//! Invariant: no bio of an export leaves its range. One that would is given an offset beyond every volume, so the check of bounds that
//! each bio passes anyway answers it as one beyond the volume's end.

/// The range of its volume that an export serves. The default is all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportRange {
    start: u64,
    /// Bytes at most; `u64::MAX - start` goes to the end of the volume, wherever that is.
    len: u64,
}

impl Default for ExportRange {
    fn default() -> Self {
        Self::new(0, None)
    }
}

impl ExportRange {
    /// The bytes from `start` on, `len` of them or all to the end of the volume.
    #[must_use]
    pub fn new(start: u64, len: Option<u64>) -> Self {
        let most = u64::MAX - start;
        Self { start, len: len.map_or(most, |len| len.min(most)) }
    }

    /// Offset of its first byte on the volume.
    #[must_use]
    pub fn start(self) -> u64 {
        self.start
    }

    /// Whether its length is fixed: it does not grow with its volume.
    #[must_use]
    pub fn has_length(self) -> bool {
        self.len < u64::MAX - self.start
    }

    /// Where a request of the export lies on the volume; beyond any volume if it does not lie within the range.
    #[inline]
    #[must_use]
    pub fn on_volume(self, offset: u64, len: u32) -> u64 {
        match offset.saturating_add(u64::from(len)) > self.len {
            true => u64::MAX,
            false => self.start + offset,
        }
    }

    /// Size of the export of a volume of `volume` bytes.
    #[must_use]
    pub fn size(self, volume: u64) -> u64 {
        volume.saturating_sub(self.start).min(self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EDGES: [u64; 9] =
        [0, 1, 511, 512, 4096, 1 << 40, i64::MAX as u64, u64::MAX - 1, u64::MAX];

    fn ranges() -> impl Iterator<Item = ExportRange> {
        let lens = || EDGES.map(Some).into_iter().chain([None]);
        EDGES.into_iter().flat_map(move |start| lens().map(move |len| ExportRange::new(start, len)))
    }

    #[test]
    fn request_lies_in_the_range_or_beyond_every_volume() {
        for range in ranges() {
            for offset in EDGES {
                for len in [0, 1, 512, u32::MAX] {
                    let end = u128::from(offset) + u128::from(len);
                    let at = range.on_volume(offset, len);
                    if end <= u128::from(range.len) {
                        assert_eq!(u128::from(at), u128::from(range.start) + u128::from(offset));
                    } else {
                        assert!(at > i64::MAX as u64, "no volume is so large");
                    }
                }
            }
        }
    }

    #[test]
    fn whole_volume_is_its_own_range() {
        let whole = ExportRange::default();
        assert!(!whole.has_length() && whole.start() == 0);
        for at in EDGES {
            assert_eq!((whole.size(at), whole.on_volume(at, 0)), (at, at));
        }
    }

    #[test]
    fn size_follows_the_volume_up_to_the_length() {
        let (open, fixed) = (ExportRange::new(1000, None), ExportRange::new(1000, Some(500)));
        assert!(!open.has_length() && fixed.has_length());
        let sizes = |volume| (open.size(volume), fixed.size(volume));
        assert_eq!(sizes(1 << 20), ((1 << 20) - 1000, 500));
        assert_eq!(sizes(1200), (200, 200));
        assert_eq!(sizes(999), (0, 0));
    }
}
