//! Bounds of the buffer pool that do not depend on what its connections hold.
//!
//! ```text
//!   0          size/4                                size*7/8    size
//!   |- stalled --|--------------- shared --------------|--- last ---|
//! ```
//!
//! - *stalled*: reads of a connection that does not take the replies it has. More data for it would only wait.
//! - *shared*: any connection, by its share (`memory`).
//! - *last*: a connection that then holds at most [`MemoryLimits::guaranteed`], and one chunk of as many bytes with
//!   which a dropped reply continues.
//!
//! Invariant: with at most `size / 64 KiB` connections, a connection that holds nothing can always take 4 KiB. Proof:
//! the last take by a connection that then holds more than `guaranteed` leaves `last` bytes free; later takes add at
//! most `guaranteed` and one chunk for each connection, and `2 * guaranteed * connections <= last`.

use headworks_house::{Buffer, Pool};

/// The last part of the pool is this fraction: an eighth.
const LAST_PART: usize = 8;
/// Smallest and largest guaranteed bytes of a connection.
const GUARANTEED: (usize, usize) = (4 << 10, 64 << 10);
/// Bytes of a dropped reply that are read again at a time while the pool is not short.
const CHUNK_BYTES: usize = 256 << 10;

/// Bounds of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    size: usize,
    guaranteed: usize,
}

impl MemoryLimits {
    /// Creates the bounds of a pool of `size` bytes for `connections` connections.
    #[must_use]
    pub fn new(size: usize, connections: usize) -> Self {
        let part = size / LAST_PART / (2 * connections.max(1));
        let power = part.checked_ilog2().map_or(0, |log| 1 << log);
        Self { size, guaranteed: power.clamp(GUARANTEED.0, GUARANTEED.1) }
    }

    /// Bytes of the pool.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Bytes that each connection can always hold.
    #[inline]
    #[must_use]
    pub fn guaranteed(&self) -> usize {
        self.guaranteed
    }

    /// Bytes that are shared: all but the last part.
    #[must_use]
    pub fn shared(&self) -> usize {
        Self::shared_of(self.size)
    }

    fn shared_of(size: usize) -> usize {
        size - size / LAST_PART
    }

    /// A block of at least `len` bytes for what a transport keeps of one connection, which has no other: of what is shared and free, for
    /// `last` is what clients that hold little get on with. None if there is none.
    #[inline]
    #[must_use]
    pub fn try_keep(pool: &mut Pool, len: usize) -> Option<Buffer> {
        let block = Pool::block_bytes(len)?;
        let fits = pool.taken() + block <= Self::shared_of(pool.size());
        fits.then(|| pool.try_take(len)).flatten()
    }

    /// Most bytes in use after a read of a connection that does not take the replies it has.
    pub(super) fn stalled(&self) -> usize {
        self.size / 4
    }

    /// Bytes with which a dropped reply continues, while `taken` bytes of the pool are in use.
    #[must_use]
    pub fn chunk(&self, taken: usize) -> usize {
        let short = taken + CHUNK_BYTES > self.shared();
        if short { self.guaranteed } else { CHUNK_BYTES }
    }

    /// Whether a connection that holds `held` bytes may take a block for a copy of data that are lent to it, while `taken` bytes are
    /// in use: it has at most as much as is free. What may be lent bounds it, too.
    #[must_use]
    pub fn may_copy(&self, held: usize, block: usize, taken: usize) -> bool {
        let free = self.shared().saturating_sub(taken);
        held + block <= self.guaranteed || block <= free && held + block <= free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1 << 10;
    const MIB: usize = 1 << 20;

    #[test]
    fn guaranteed_bytes_depend_on_connections() {
        let of = |size, connections| MemoryLimits::new(size, connections).guaranteed();
        assert_eq!(of(128 * MIB, 1024), 8 * KIB);
        assert_eq!(of(64 * MIB, 1024), 4 * KIB);
        assert_eq!(of(128 * MIB, 100), 64 * KIB);
        assert_eq!(of(64 * MIB, 4094), 4 * KIB);
        assert_eq!(of(1 << 40, 1), 64 * KIB);
    }

    #[test]
    fn copy_of_lent_data_leaves_as_much_as_its_connection_holds() {
        let limits = MemoryLimits::new(128 * MIB, 1024);
        assert!(limits.may_copy(4 * KIB, 4 * KIB, 128 * MIB - 4 * KIB), "what is guaranteed");
        assert!(limits.may_copy(0, MIB, 111 * MIB) && !limits.may_copy(MIB, MIB, 111 * MIB));
        assert_eq!((limits.chunk(0), limits.chunk(112 * MIB)), (256 * KIB, 8 * KIB));
    }
}
