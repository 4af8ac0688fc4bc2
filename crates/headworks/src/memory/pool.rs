//! The buffers of requests: one region, cut by a buddy allocator into blocks of 4 KiB to 32 MiB.
//!
//! Hard bound: the region is mapped once and nothing is allocated after that; full is an ordinary answer. A request for `len`
//! bytes gets the smallest block of 4 KiB * 2^order that holds it. A block's *buddy* is the other half of the block they were
//! cut from; when both are free they become that block again, so what is given back is whole again in the end.
//!
//! ```text
//!   unit     0   1   2   3   4   5   6   7          order = log2(units)
//!   order 3  [------------- free -----------]
//!   take 1:  [tk][ 0 ][  order 1 ][- order 2 free-]  three splits; each upper half goes on the free list of its order
//! ```
//!
//! Splitting and joining for every 4 KiB request would cost up to 26 steps, so the last few blocks of each small order that
//! came back wait, uncut and unjoined, in a `recent` stack: a take and a put of the usual sizes are a pop and a push, and the
//! same hot memory is used again. When a take finds nothing, the stacks are emptied into the free lists and it looks again.
//!
//! The free lists are links in tables beside the region (9 bytes per 4 KiB: 0.22 %), never in the region itself: memory that
//! no request used stays untouched, so that an idle server is small.

use std::io;

use super::Span;
use super::mapping::{Mapping, PAGE};

/// Orders 0 (4 KiB) to 13 (32 MiB: NBD's largest request).
const ORDERS: usize = 14;
/// Orders 0 (4 KiB) to 5 (128 KiB) have a `recent` stack.
const RECENT_ORDERS: usize = 6;
/// 32: the queue depth at which most clients run.
const RECENT_MAX: usize = 32;
/// [`Pool::trim`] leaves blocks below 64 KiB alone: a call for each would cost more than they hold.
const TRIM_ORDER_MIN: usize = 4;

const NIL: u32 = u32::MAX;

/// What a unit is. The first unit of a block speaks for all of it; the others are `INSIDE`. The low bits are the order.
const INSIDE: u8 = 0;
const FREE: u8 = 0x40;
const TAKEN: u8 = 0x80;
const RECENT: u8 = 0xc0;

/// A block on loan from a [`Pool`]; give it back with [`Pool::put`]. Dropping it loses the block, not memory safety.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a buffer that is not put back is lost to the pool"]
pub struct Buffer {
    base: *mut u8,
    order: u8,
}

// SAFETY: a buffer is a name for memory that its holder alone uses; nothing in it belongs to a thread.
unsafe impl Send for Buffer {}

impl Buffer {
    /// First byte, aligned to a page at least.
    #[inline]
    #[must_use]
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Bytes: at least what was asked for.
    #[inline]
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // There is no empty buffer.
    pub fn len(&self) -> usize {
        PAGE << self.order
    }

    /// All of it.
    #[inline]
    #[must_use]
    pub fn span(&self) -> Span {
        Span { base: self.base, len: self.len() }
    }
}

/// A bounded stack of blocks that came back lately.
#[derive(Clone, Copy, Debug)]
struct Recent {
    units: [u32; RECENT_MAX],
    len: usize,
}

/// The buffers of a shard.
#[derive(Debug)]
pub struct Pool {
    region: Mapping,
    /// Per unit: what it is.
    state: Vec<u8>,
    /// Per first unit of a free block: its neighbours on the free list of its order.
    next: Vec<u32>,
    prev: Vec<u32>,
    /// First block of each order's free list.
    heads: [u32; ORDERS],
    /// Bit `order` is set while that free list has a block.
    orders_free: u32,
    recent: [Recent; RECENT_ORDERS],
    units_taken: u32,
}

impl Pool {
    /// The largest buffer there is.
    pub const LARGEST: usize = PAGE << (ORDERS - 1);

    /// A pool of `bytes`, rounded up to whole 4 KiB. For requests of [`Pool::LARGEST`] it must have at least that much.
    ///
    /// # Errors
    /// When `bytes` is 0 or more than the address space has.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let units = bytes.div_ceil(PAGE);
        if units == 0 || units >= NIL as usize {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mut pool = Self {
            region: Mapping::new(units * PAGE)?,
            state: vec![INSIDE; units],
            next: vec![NIL; units],
            prev: vec![NIL; units],
            heads: [NIL; ORDERS],
            orders_free: 0,
            recent: [Recent { units: [0; RECENT_MAX], len: 0 }; RECENT_ORDERS],
            units_taken: 0,
        };
        pool.cut_region(units as u32);
        Ok(pool)
    }

    /// Cuts the region into the largest aligned blocks, the last first, so that takes start at its beginning.
    fn cut_region(&mut self, units: u32) {
        let mut end = units;
        while end > 0 {
            let order = (end.trailing_zeros() as usize).min(ORDERS - 1);
            end -= 1 << order;
            self.push_free(end, order);
        }
    }

    /// A buffer of at least `len` bytes; `None` when no block is large enough now, or ever.
    #[inline]
    pub fn try_take(&mut self, len: usize) -> Option<Buffer> {
        let order = order_of(len)?;
        let unit = match self.recent.get_mut(order) {
            Some(recent) if recent.len > 0 => {
                recent.len -= 1;
                recent.units[recent.len]
            }
            _ => self.cut(order)?,
        };
        self.state[unit as usize] = TAKEN | order as u8;
        self.units_taken += 1 << order;
        let base = self.region.at(unit as usize * PAGE, PAGE << order);
        Some(Buffer { base, order: order as u8 })
    }

    /// Takes a buffer back.
    ///
    /// # Panics
    /// If it is not one of this pool's that is out: a double free is our bug.
    #[inline]
    pub fn put(&mut self, buffer: Buffer) {
        let order = usize::from(buffer.order);
        let offset = (buffer.base as usize).wrapping_sub(self.region.base() as usize);
        let unit = offset / PAGE;
        assert!(
            self.state.get(unit) == Some(&(TAKEN | buffer.order)),
            "a buffer comes back once, to its own pool"
        );
        self.units_taken -= 1 << order;
        match self.recent.get_mut(order) {
            Some(recent) if recent.len < RECENT_MAX => {
                recent.units[recent.len] = unit as u32;
                recent.len += 1;
                self.state[unit] = RECENT | buffer.order;
            }
            _ => self.join(unit as u32, order),
        }
    }

    /// Bytes on loan, rounded up to blocks.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.units_taken as usize * PAGE
    }

    /// Bytes of the whole pool.
    #[must_use]
    pub fn size(&self) -> usize {
        self.region.len()
    }

    /// Gives the memory of free blocks back to the kernel; for a server that has become idle. Some system calls.
    pub fn trim(&mut self) {
        self.join_recent();
        for order in TRIM_ORDER_MIN..ORDERS {
            let mut unit = self.heads[order];
            while unit != NIL {
                // SAFETY: a free block is nobody's.
                unsafe { self.region.forget(unit as usize * PAGE, PAGE << order) };
                unit = self.next[unit as usize];
            }
        }
    }

    /// Cuts a block of `order` out of the smallest free block that has one.
    fn cut(&mut self, order: usize) -> Option<u32> {
        if self.orders_free >> order == 0 && !self.join_recent() {
            return None;
        }
        let enough = self.orders_free >> order;
        if enough == 0 {
            return None;
        }
        let mut have = order + enough.trailing_zeros() as usize;
        let unit = self.heads[have];
        self.remove_free(unit, have);
        while have > order {
            have -= 1;
            self.push_free(unit + (1 << have), have);
        }
        Some(unit)
    }

    /// Empties the `recent` stacks into the free lists; whether there was anything.
    fn join_recent(&mut self) -> bool {
        let mut any = false;
        for order in 0..RECENT_ORDERS {
            while self.recent[order].len > 0 {
                let recent = &mut self.recent[order];
                recent.len -= 1;
                let unit = recent.units[recent.len];
                self.join(unit, order);
                any = true;
            }
        }
        any
    }

    /// Frees a block, together with its buddy, and theirs, as far as they are free.
    fn join(&mut self, mut unit: u32, mut order: usize) {
        self.state[unit as usize] = INSIDE;
        while order < ORDERS - 1 {
            let buddy = unit ^ (1 << order);
            if self.state.get(buddy as usize) != Some(&(FREE | order as u8)) {
                break;
            }
            self.remove_free(buddy, order);
            unit &= !(1 << order);
            order += 1;
        }
        self.push_free(unit, order);
    }

    fn push_free(&mut self, unit: u32, order: usize) {
        let at = unit as usize;
        let head = self.heads[order];
        self.state[at] = FREE | order as u8;
        self.prev[at] = NIL;
        self.next[at] = head;
        if head != NIL {
            self.prev[head as usize] = unit;
        }
        self.heads[order] = unit;
        self.orders_free |= 1 << order;
    }

    fn remove_free(&mut self, unit: u32, order: usize) {
        let at = unit as usize;
        assert!(self.state[at] == FREE | order as u8, "a free list holds free blocks of its order");
        let (prev, next) = (self.prev[at], self.next[at]);
        match prev {
            NIL => self.heads[order] = next,
            _ => self.next[prev as usize] = next,
        }
        if next != NIL {
            self.prev[next as usize] = prev;
        }
        if self.heads[order] == NIL {
            self.orders_free &= !(1 << order);
        }
        self.state[at] = INSIDE;
    }
}

/// The smallest order whose blocks hold `len` bytes.
#[inline]
fn order_of(len: usize) -> Option<usize> {
    if len > Pool::LARGEST {
        return None;
    }
    let units = len.div_ceil(PAGE).max(1);
    Some(units.next_power_of_two().trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::prng::Prng;
    use std::collections::BTreeMap;

    const MIB: usize = 1 << 20;

    /// The free blocks as (first unit, order), after everything recent was joined.
    fn free_blocks(pool: &mut Pool) -> Vec<(usize, u8)> {
        pool.join_recent();
        let free = |&(_, &state): &(usize, &u8)| state & 0xc0 == FREE;
        let blocks = pool.state.iter().enumerate().filter(free);
        blocks.map(|(unit, &state)| (unit, state & 0x3f)).collect()
    }

    #[test]
    fn sizes_round_up_to_blocks() {
        let mut pool = Pool::new(64 * MIB).unwrap();
        for (len, block) in [
            (0, PAGE),
            (1, PAGE),
            (PAGE, PAGE),
            (PAGE + 1, 2 * PAGE),
            (3 * MIB, 4 * MIB),
            (32 * MIB, 32 * MIB),
        ] {
            let buffer = pool.try_take(len).unwrap();
            assert_eq!((buffer.len(), pool.taken()), (block, block));
            pool.put(buffer);
        }
        assert_eq!(pool.try_take(32 * MIB + 1), None);
        assert_eq!(pool.try_take(usize::MAX), None);
    }

    #[test]
    fn full_is_an_answer_and_what_is_recent_is_found() {
        let mut pool = Pool::new(64 * PAGE).unwrap();
        let small: Vec<_> = (0..64).map(|_| pool.try_take(1).unwrap()).collect();
        assert_eq!(pool.try_take(1), None);
        for buffer in small {
            pool.put(buffer);
        }
        // 32 of the pages wait in the stack of order 0; the whole must be found all the same.
        let whole = pool.try_take(64 * PAGE).unwrap();
        assert_eq!((pool.try_take(1), pool.taken()), (None, 64 * PAGE));
        pool.put(whole);
    }

    #[test]
    fn odd_sizes_are_used_to_the_last_page() {
        assert!(Pool::new(0).is_err());
        let mut pool = Pool::new(35 * MIB + 3 * PAGE).unwrap();
        let mut taken = 0;
        while pool.try_take(PAGE).is_some() {
            taken += PAGE;
        }
        assert_eq!((taken, taken), (pool.size(), 35 * MIB + 3 * PAGE));
    }

    #[test]
    fn agrees_with_a_naive_allocator_and_is_whole_again() {
        for (seed, units) in [(1, 16_384), (2, 8_192), (3, 9_001), (4, 37)] {
            let mut pool = Pool::new(units * PAGE).unwrap();
            let start = free_blocks(&mut pool);
            let base = pool.region.base() as usize;
            let mut prng = Prng::new(seed);
            // First byte -> buffer: the naive allocator knows what is out and looks for a free aligned place from the start.
            let mut out: BTreeMap<usize, Buffer> = BTreeMap::new();
            for _ in 0..20_000 {
                if prng.below(100) < 55 {
                    let most = (PAGE as u64) << prng.below(12);
                    let len = 1 + prng.below(most) as usize;
                    take_beside_model(&mut pool, &mut out, base, len);
                } else if let Some(&at) = out.keys().nth(prng.below(64) as usize) {
                    pool.put(out.remove(&at).unwrap());
                }
                assert_eq!(pool.taken(), out.values().map(Buffer::len).sum::<usize>());
            }
            for buffer in std::mem::take(&mut out).into_values() {
                pool.put(buffer);
            }
            assert_eq!(free_blocks(&mut pool), start, "seed {seed}");
            assert_eq!(pool.taken(), 0);
        }
    }

    fn take_beside_model(
        pool: &mut Pool,
        out: &mut BTreeMap<usize, Buffer>,
        base: usize,
        len: usize,
    ) {
        let block = len.next_power_of_two().max(PAGE);
        let taken = pool.try_take(len);
        let Some(buffer) = taken else {
            // No aligned place of that size may be free.
            let mut at = 0;
            while at + block <= pool.size() {
                let end = at + block;
                let below = out.range(..end).next_back();
                assert!(
                    below.is_some_and(|(&first, other)| first + other.len() > at),
                    "{block} bytes at {at} are free but were refused"
                );
                at = end;
            }
            return;
        };
        let at = buffer.base() as usize - base;
        assert!(buffer.len() == block && at.is_multiple_of(block) && at + block <= pool.size());
        let below = out.range(..at + block).next_back();
        assert!(below.is_none_or(|(&first, other)| first + other.len() <= at));
        out.insert(at, buffer);
    }

    #[test]
    #[should_panic(expected = "comes back once")]
    fn a_double_put_is_our_bug() {
        let mut pool = Pool::new(MIB).unwrap();
        let buffer = pool.try_take(PAGE).unwrap();
        let again = Buffer { base: buffer.base, order: buffer.order };
        pool.put(buffer);
        pool.put(again);
    }

    #[test]
    #[should_panic(expected = "to its own pool")]
    fn a_strange_buffer_is_our_bug() {
        let (mut pool, mut other) = (Pool::new(MIB).unwrap(), Pool::new(MIB).unwrap());
        let _own = pool.try_take(PAGE);
        pool.put(other.try_take(PAGE).unwrap());
    }

    #[test]
    fn trim_returns_memory_and_keeps_what_is_out() {
        let mut pool = Pool::new(8 * MIB).unwrap();
        let (kept, gone) = (pool.try_take(MIB).unwrap(), pool.try_take(4 * MIB).unwrap());
        // SAFETY: both buffers are ours.
        unsafe {
            kept.base().write_bytes(7, MIB);
            gone.base().write_bytes(7, 4 * MIB);
        }
        let gone_at = gone.base();
        pool.put(gone);
        pool.trim();
        // SAFETY: `kept` is ours; `gone_at` is in the pool's mapping and used by nobody.
        unsafe { assert_eq!((kept.base().read(), gone_at.read()), (7, 0)) };
        pool.put(kept);
    }

    #[test]
    fn tables_are_small() {
        let per_unit = size_of::<u8>() + 2 * size_of::<u32>();
        assert!(per_unit * 50 <= PAGE, "at most 2 % of the pool");
    }
}
