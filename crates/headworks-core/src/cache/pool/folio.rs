//! Folios: runs of 4 KiB blocks of one volume that lie together in the pool, and what is known of each block.
//!
//! A folio of order n is 2^n units of the pool, aligned, and as many blocks of its volume, aligned as well. Its header lies
//! at the place of its first unit and never moves; so a unit's number names a folio, and the tables are as large as the pool
//! is, once and for all. What is true of a block is one byte at the place of its unit, so that partial reads and writes of a
//! large folio touch only what they need and dirty data is counted exactly, in blocks.
//!
//! ```text
//!   header[u]:  key (volume, first block), order, links (eviction, dirty), waiters, counts of blocks
//!   state[u + i]:  UPTODATE | DIRTY | WRITEBACK | FILLING | SHADOW | FAILED | NEWER | USED     of block i
//! ```
//!
//! Invariants (checked by `Cache::check`): a dirty block is up to date; a filling block is neither; `dirty`, `writeback` and
//! `filling` are the numbers of blocks with that bit; a folio with any of them, or pinned, is never evicted. A block under
//! write-out that is not up to date is one that its volume's end has passed: whoever wants it waits for the device's answer.

use std::ops::Range;

use crate::bio::VolumeId;
use crate::options::topology::VOLUME_BYTES_MAX;
use crate::slab::NIL;

/// Bytes of a block, and of a unit of the pool.
pub const BLOCK: u32 = 4096;
/// log2 of [`BLOCK`].
pub const BLOCK_SHIFT: u32 = 12;
/// The largest folio: 2 MiB.
pub const ORDER_MAX: u8 = 9;

/// Bits of a key that say which block. Beyond them is the volume: a block that does not fit would be another volume's.
const BLOCK_BITS: u32 = 48;
const _: () = assert!(VOLUME_BYTES_MAX == 1 << (BLOCK_BITS + BLOCK_SHIFT));

/// Where a folio stands in the volume: its volume and its first block, in 64 bits (16 + 48: volumes of up to 1 EiB).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FolioKey(u64);

impl FolioKey {
    /// The key of the folio of `order` that holds `block` of `volume`.
    #[inline]
    #[must_use]
    pub const fn new(volume: VolumeId, block: u64, order: u8) -> Self {
        Self((volume.0 as u64) << BLOCK_BITS | (block >> order << order))
    }

    /// The volume.
    #[inline]
    #[must_use]
    pub const fn volume(self) -> VolumeId {
        VolumeId((self.0 >> BLOCK_BITS) as u16)
    }

    /// The first block.
    #[inline]
    #[must_use]
    pub const fn block(self) -> u64 {
        self.0 & ((1 << BLOCK_BITS) - 1)
    }

    /// All of it as a number, in the order of (volume, block).
    #[inline]
    #[must_use]
    pub const fn word(self) -> u64 {
        self.0
    }
}

/// What is known of a block: bits of one byte.
pub mod block {
    /// The frame holds the block's newest bytes (unless `SHADOW`: then the shadow does).
    pub const UPTODATE: u8 = 1;
    /// Newer than the device.
    pub const DIRTY: u8 = 2;
    /// On its way to the device: the frame's bytes must not change.
    pub const WRITEBACK: u8 = 4;
    /// On its way from the device.
    pub const FILLING: u8 = 8;
    /// Written while `WRITEBACK`: the newest bytes are in a shadow frame.
    pub const SHADOW: u8 = 16;
    /// Its write-out failed: held, not written again but by a flush.
    pub const FAILED: u8 = 32;
    /// Dirtied after its folio's generation had ended: a flush that waits for that generation does not wait for it.
    pub const NEWER: u8 = 64;
    /// It was read or written since it came: the next time is a second one.
    pub const USED: u8 = 128;
    /// With `FILLING`, where nothing is `NEWER`: its volume ended before or within it meanwhile, so what comes is not used.
    pub const VOID: u8 = NEWER;
}

/// Which queue of the eviction policy a folio is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum EvictionList {
    /// None: no folio, or one that is not to be evicted.
    #[default]
    None = 0,
    /// The small queue: came lately.
    Small = 1,
    /// The main queue: was asked for again.
    Main = 2,
}

/// A folio's header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Folio {
    /// Whose blocks.
    pub key: FolioKey,
    /// Neighbours in its eviction queue: towards the older one.
    pub older: u32,
    /// Towards the younger one.
    pub younger: u32,
    /// Neighbours in the list of dirty folios of its group.
    pub dirty_prev: u32,
    /// See `dirty_prev`.
    pub dirty_next: u32,
    /// Operations parked on it.
    pub waiters: u32,
    /// Its extent group, while it is on that group's list.
    pub group: u32,
    /// Blocks that are dirty.
    pub dirty: u16,
    /// Blocks on their way to the device.
    pub writeback: u16,
    /// Blocks on their way from the device.
    pub filling: u16,
    /// Bios for some of it that passed their time-out and are still out: whoever needs what is on its way fails meanwhile.
    pub late: u16,
    /// Log2 of its blocks.
    pub order: u8,
    /// Facts, see the constants.
    pub marks: u8,
    /// How often it was asked for since it was looked at, saturating (eviction).
    pub freq: u8,
    /// Its eviction queue.
    pub list: EvictionList,
    /// The generation of its oldest dirty blocks, modulo 16.
    pub generation: u8,
}

const _: () = assert!(size_of::<Folio>() == 48);

impl Folio {
    /// There is a folio here.
    pub const PRESENT: u8 = 1;
    /// A read of it starts the next window of its stream.
    pub const MARKER: u8 = 2;
    /// Read ahead, and none of it was asked for yet.
    pub const UNUSED: u8 = 4;

    /// Whether `mark` is set.
    #[inline]
    #[must_use]
    pub const fn is(&self, mark: u8) -> bool {
        self.marks & mark != 0
    }

    /// Blocks (and units).
    #[inline]
    #[must_use]
    pub const fn blocks(&self) -> u32 {
        1 << self.order
    }

    /// Whether nobody knows when the device will answer for some of it.
    #[inline]
    #[must_use]
    pub const fn is_late(&self) -> bool {
        self.late > 0
    }

    /// Nothing of it is dirty or on its way.
    #[inline]
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.dirty | self.writeback | self.filling == 0
    }
}

/// Every header and every block's state.
#[derive(Debug)]
pub struct Folios {
    headers: Vec<Folio>,
    state: Vec<u8>,
}

impl Folios {
    /// Tables for a pool of `units`.
    #[must_use]
    pub fn new(units: u32) -> Self {
        Self { headers: vec![Folio::default(); units as usize], state: vec![0; units as usize] }
    }

    /// Makes a folio of `order` at `unit`; nothing of it is up to date.
    pub fn begin(&mut self, unit: u32, key: FolioKey, order: u8) {
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

    /// The folio at `unit` is no more.
    ///
    /// # Panics
    /// If something of it is dirty, on its way or waited for: that would lose data.
    pub fn end(&mut self, unit: u32) {
        let folio = &mut self.headers[unit as usize];
        assert!(folio.is(Folio::PRESENT) && folio.is_idle(), "a folio in use is never dropped");
        assert!(folio.waiters == NIL, "nobody waits for a folio that is dropped");
        folio.marks = 0;
    }

    /// The states of `count` blocks from `unit` on.
    #[inline]
    #[must_use]
    pub fn states(&self, unit: u32, count: u32) -> &[u8] {
        &self.state[unit as usize..(unit + count) as usize]
    }

    /// See [`Folios::states`].
    #[inline]
    pub fn states_mut(&mut self, unit: u32, count: u32) -> &mut [u8] {
        &mut self.state[unit as usize..(unit + count) as usize]
    }

    /// Where its tables lie.
    #[must_use]
    pub fn tables(&self) -> [Range<*const u8>; 2] {
        let headers = self.headers.as_ptr_range();
        [headers.start.cast()..headers.end.cast(), self.state.as_ptr_range()]
    }

    /// Units of the pool.
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
