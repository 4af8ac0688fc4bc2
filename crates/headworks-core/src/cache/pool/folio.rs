//! Folios: runs of 4 KiB blocks of one volume that lie together in the pool, and the state of each block.
//!
//! A folio of order n is 2^n units of the pool, aligned, and as many blocks of its volume, aligned as well. Its header lies at the
//! index of its first unit and never moves; so a unit's number names a folio. The tables have room for the whole pool from the
//! start, and grow as it is used. The state of a block is one byte at the index of its unit, so that partial reads and writes of a
//! large folio touch only what they need, and dirty data is counted exactly, in blocks.
//!
//! ```text
//!   header[u]:  key (volume, first block), order, links (eviction, dirty), waiters, counts of blocks
//!   state[u + i]:  UPTODATE | DIRTY | WRITEBACK | FILLING | SHADOW | FAILED | NEWER | USED     of block i
//! ```
//!
//! Invariants (checked by `Cache::check`): a dirty block is up to date; a filling block is neither; `dirty`, `writeback` and
//! `filling` are the numbers of blocks with that bit; a folio with any of them, or with waiters, is not evicted. A block under
//! write-out that is not up to date is past the end of a truncated volume: an access to it waits for the completion.

use std::ops::Range;

use crate::bio::{ExportId, VolumeId};
use crate::options::topology::VOLUME_BYTES_MAX;
use crate::slab::NIL;

/// Bytes of a block, and of a unit of the pool.
pub const BLOCK: u32 = 4096;
/// The base-2 logarithm of [`BLOCK`].
pub const BLOCK_SHIFT: u32 = 12;
/// The largest folio: 2 MiB.
pub const ORDER_MAX: u8 = 9;

/// Bits of a key that name the block; the bits above name the volume.
const BLOCK_BITS: u32 = 48;
const _: () = assert!(VOLUME_BYTES_MAX == 1 << (BLOCK_BITS + BLOCK_SHIFT));

/// The identity of a folio: its volume and its first block, in 64 bits (16 + 48: volumes of up to 1 EiB).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FolioKey(u64);

impl FolioKey {
    /// The key of no folio: no shard has that many volumes.
    pub const NONE: Self = Self(u64::MAX);

    /// Returns the key of the folio of `order` that holds `block` of `volume`.
    #[inline]
    #[must_use]
    pub const fn new(volume: VolumeId, block: u64, order: u8) -> Self {
        debug_assert!(order <= ORDER_MAX);
        Self((volume.0 as u64) << BLOCK_BITS | (block >> order << order))
    }

    /// Returns the volume of the folio.
    #[inline]
    #[must_use]
    pub const fn volume(self) -> VolumeId {
        VolumeId((self.0 >> BLOCK_BITS) as u16)
    }

    /// Returns the first block of the folio.
    #[inline]
    #[must_use]
    pub const fn block(self) -> u64 {
        self.0 & ((1 << BLOCK_BITS) - 1)
    }

    /// Returns the key as a number that sorts by (volume, block).
    #[inline]
    #[must_use]
    pub const fn word(self) -> u64 {
        self.0
    }
}

/// The state of a block: bits of one byte.
pub mod block {
    /// The frame holds the block's newest bytes; with `SHADOW` the shadow does.
    pub const UPTODATE: u8 = 1;
    /// The block is newer than the device.
    pub const DIRTY: u8 = 2;
    /// The block is under write-out: the frame's bytes must not change.
    pub const WRITEBACK: u8 = 4;
    /// The device fills the block's frame.
    pub const FILLING: u8 = 8;
    /// The block was written during `WRITEBACK`: its newest bytes are in a shadow frame.
    pub const SHADOW: u8 = 16;
    /// The write-out of the block failed: it is held, and written again only by a flush or a retry.
    pub const FAILED: u8 = 32;
    /// The block was dirtied after its folio's generation ended: a flush of that generation does not wait for it.
    pub const NEWER: u8 = 64;
    /// The block was accessed since it was filled: the next access is a repeated one.
    pub const USED: u8 = 128;
    /// With `FILLING`, which excludes `NEWER`: the volume was truncated before or within the block, so the fill is not used.
    pub const VOID: u8 = NEWER;
}

/// The eviction list that a folio is on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum EvictionList {
    /// No list: there is no folio, or it is not to be evicted.
    #[default]
    None = 0,
    /// The small list, for folios that are new.
    Small = 1,
    /// The main list, for folios that were accessed again.
    Main = 2,
}

/// A folio's eviction list and its access count, which fit one byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvictionState(u8);

impl EvictionState {
    /// The bits of the list; those above count accesses.
    const LIST: u8 = 3;

    /// Returns the list that the folio is on.
    #[inline]
    #[must_use]
    pub const fn list(self) -> EvictionList {
        match self.0 & Self::LIST {
            0 => EvictionList::None,
            1 => EvictionList::Small,
            _ => EvictionList::Main,
        }
    }

    /// Sets the list that the folio is on.
    #[inline]
    pub fn set_list(&mut self, list: EvictionList) {
        self.0 = self.0 & !Self::LIST | list as u8;
    }

    /// Returns how often the folio was accessed since eviction examined it, saturating.
    #[inline]
    #[must_use]
    pub const fn freq(self) -> u8 {
        self.0 >> 2
    }

    /// Sets the access count, at most 63.
    #[inline]
    pub fn set_freq(&mut self, freq: u8) {
        debug_assert!(freq < 64, "an access count has six bits");
        self.0 = self.0 & Self::LIST | freq << 2;
    }
}

/// The header of a folio.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Folio {
    /// The volume and the first block.
    pub key: FolioKey,
    /// The next older folio on its eviction list.
    pub older: u32,
    /// The next younger folio on its eviction list.
    pub younger: u32,
    /// The previous folio in the list of its extent group.
    pub dirty_prev: u32,
    /// The next folio in the list of its extent group.
    pub dirty_next: u32,
    /// The newest of the operations that wait for it; `NIL` for none.
    pub waiters: u32,
    /// The extent group on whose list it is; `NIL` for none.
    pub group: u32,
    /// The number of dirty blocks.
    pub dirty: u16,
    /// The number of blocks under write-out.
    pub writeback: u16,
    /// The number of blocks that are being filled.
    pub filling: u16,
    /// Outstanding bios for some of it that passed their time-out; an access to an outstanding block fails meanwhile.
    pub late: u16,
    /// The order: log2 of its blocks.
    pub order: u8,
    /// The marks, a set of the constants below.
    pub marks: u8,
    /// Its eviction list, and how often it was accessed.
    pub eviction: EvictionState,
    /// The flush generation of its oldest dirty blocks, modulo 16.
    pub generation: u8,
    /// The export that it counts for: the one that made it, then the one that dirtied it while nothing of it was dirty.
    pub export: ExportId,
    /// The part of the cache on whose eviction lists it is.
    pub part: u16,
}

const _: () = assert!(size_of::<Folio>() == 48);

impl Folio {
    /// The header is that of a folio.
    pub const PRESENT: u8 = 1;
    /// A read of the folio starts the next window of its stream.
    pub const MARKER: u8 = 2;
    /// The folio was read ahead and not accessed yet.
    pub const UNUSED: u8 = 4;
    /// A stream brought the folio: it leaves the cache once it is clean and all of it was used, unless it is used again before.
    pub const DROP_BEHIND: u8 = 8;

    /// Returns true if `mark` is set.
    #[inline]
    #[must_use]
    pub const fn is(&self, mark: u8) -> bool {
        self.marks & mark != 0
    }

    /// Returns the number of blocks, which is that of units.
    #[inline]
    #[must_use]
    pub const fn blocks(&self) -> u32 {
        1 << self.order
    }

    /// Returns true if a bio for some of the folio passed its time-out and is still outstanding.
    #[inline]
    #[must_use]
    pub const fn is_late(&self) -> bool {
        self.late > 0
    }

    /// Returns true if no block is dirty or outstanding.
    #[inline]
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.dirty | self.writeback | self.filling == 0
    }
}

/// The headers of all folios and the states of all blocks.
#[derive(Debug)]
pub struct Folios {
    headers: Vec<Folio>,
    state: Vec<u8>,
}

impl Folios {
    /// Creates the tables for a pool of `units`.
    #[cfg(test)]
    #[must_use]
    pub fn new(units: u32) -> Self {
        let mut folios = Self::with_room(units);
        folios.grow(units);
        folios
    }

    /// Creates tables without a unit, and reserves memory for those of `room` units.
    #[must_use]
    pub fn with_room(room: u32) -> Self {
        let room = room as usize;
        Self { headers: Vec::with_capacity(room), state: Vec::with_capacity(room) }
    }

    /// Adds `more` units without a folio; within the room this allocates nothing.
    pub fn grow(&mut self, more: u32) {
        let units = self.headers.len() + more as usize;
        self.headers.resize(units, Folio::default());
        self.state.resize(units, 0);
    }

    /// Makes a folio of `order` at `unit`; no block of it is up to date.
    pub fn begin(&mut self, unit: u32, key: FolioKey, order: u8) {
        assert!(order <= ORDER_MAX && unit.is_multiple_of(1 << order), "a folio is aligned");
        debug_assert!(key.block().is_multiple_of(1 << order), "its blocks are aligned");
        self.headers[unit as usize] = Folio {
            key,
            older: NIL,
            younger: NIL,
            dirty_prev: NIL,
            dirty_next: NIL,
            waiters: NIL,
            group: NIL,
            order,
            marks: Folio::PRESENT,
            ..Folio::default()
        };
        self.states_mut(unit, 1 << order).fill(0);
    }

    /// Ends the folio at `unit`.
    ///
    /// # Panics
    /// If a block is dirty or outstanding, or an operation waits for it: data would be lost.
    pub fn end(&mut self, unit: u32) {
        let folio = &mut self.headers[unit as usize];
        assert!(folio.is(Folio::PRESENT) && folio.is_idle(), "a busy folio is not dropped");
        assert!(folio.waiters == NIL, "no operation waits for a folio that is dropped");
        debug_assert!(folio.eviction.list() == EvictionList::None && folio.group == NIL);
        folio.marks = 0;
    }

    /// Returns the states of `count` blocks from `unit` on.
    #[inline]
    #[must_use]
    pub fn states(&self, unit: u32, count: u32) -> &[u8] {
        &self.state[unit as usize..(unit + count) as usize]
    }

    /// Returns the states of `count` blocks from `unit` on, to change them.
    #[inline]
    pub fn states_mut(&mut self, unit: u32, count: u32) -> &mut [u8] {
        &mut self.state[unit as usize..(unit + count) as usize]
    }

    /// Returns the memory of the tables, with the room in which they grow.
    #[must_use]
    pub fn tables(&self) -> [Range<*const u8>; 2] {
        let (headers, state) = (self.headers.as_ptr(), self.state.as_ptr());
        let end = headers.wrapping_add(self.headers.capacity());
        [headers.cast()..end.cast(), state..state.wrapping_add(self.state.capacity())]
    }

    /// Returns the units of the tables.
    #[must_use]
    pub fn units(&self) -> u32 {
        self.headers.len() as u32
    }
}

impl std::ops::Index<u32> for Folios {
    type Output = Folio;

    #[inline]
    fn index(&self, unit: u32) -> &Folio {
        &self.headers[unit as usize]
    }
}

impl std::ops::IndexMut<u32> for Folios {
    #[inline]
    fn index_mut(&mut self, unit: u32) -> &mut Folio {
        &mut self.headers[unit as usize]
    }
}
