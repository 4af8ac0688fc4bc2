//! Who has which units of a region: a buddy allocator's tables, without the memory.
//!
//! Hard bound: the tables are made once and nothing is allocated after that; full is an ordinary answer. A block of order n
//! is 2^n units, aligned. Its *buddy* is the other half of the block they were cut from; when both are free they become that
//! block again, so what is given back is whole again in the end.
//!
//! ```text
//!   unit     0   1   2   3   4   5   6   7
//!   order 3  [------------- free -----------]
//!   take 1:  [tk][ 0 ][  order 1 ][- order 2 free-]  three splits; each upper half goes on the free list of its order
//! ```
//!
//! Splitting and joining for every single unit would cost up to twice the number of orders in steps, so the last few blocks
//! of each small order that came back wait, uncut and unjoined, in a `recent` stack: a take and a put of the usual sizes are a
//! pop and a push, and the same hot memory is used again. When a take finds nothing, the stacks are emptied into the free
//! lists and it looks again.
//!
//! The free lists are links in tables beside the region (9 bytes a unit: 0.22 % of 4 KiB), never in the region itself: memory
//! that nobody used stays untouched, so that an idle server is small.

use crate::list::{Links, List, OnlyLink};
use crate::slab::NIL;

/// Orders there can be: the largest block has 2^15 units (128 MiB of 4 KiB).
const ORDERS_MAX: usize = 16;
/// Orders 0 (4 KiB) to 5 (128 KiB) have a `recent` stack.
const RECENT_ORDERS: usize = 6;
/// 32: the queue depth at which most clients run.
const RECENT_MAX: usize = 32;

/// What a unit is. The first unit of a block speaks for all of it; the others are `INSIDE`. The low bits are the order.
const INSIDE: u8 = 0;
const FREE: u8 = 0x40;
const TAKEN: u8 = 0x80;
const RECENT: u8 = 0xc0;

/// A bounded stack of blocks that came back lately.
#[derive(Clone, Copy, Debug)]
struct Recent {
    units: [u32; RECENT_MAX],
    len: usize,
}

/// The tables of a buddy allocator.
#[derive(Debug)]
pub struct Buddy {
    /// Per unit: what it is.
    state: Vec<u8>,
    /// Per first unit of a free block: its neighbours on the free list of its order.
    links: Links,
    /// The free list of each order.
    lists: [List<OnlyLink>; ORDERS_MAX],
    /// Orders in use.
    orders: usize,
    /// Bit `order` is set while that free list has a block.
    orders_free: u32,
    recent: [Recent; RECENT_ORDERS],
    units_taken: u32,
}

impl Buddy {
    /// `units`, all free, in blocks of `orders` sizes: 1 unit to 2^(orders - 1).
    ///
    /// # Panics
    /// If `orders` is not 1 to 16, or `units` has no number left for "none".
    #[must_use]
    pub fn new(units: u32, orders: usize) -> Self {
        assert!((1..=ORDERS_MAX).contains(&orders), "1 to 16 orders");
        assert!(units < NIL, "fewer than 2^32 - 1 units");
        let mut buddy = Self {
            state: vec![INSIDE; units as usize],
            links: Links::new(units as usize),
            lists: [const { List::new() }; ORDERS_MAX],
            orders,
            orders_free: 0,
            recent: [Recent { units: [0; RECENT_MAX], len: 0 }; RECENT_ORDERS],
            units_taken: 0,
        };
        buddy.cut_region(units);
        buddy
    }

    /// Cuts the region into the largest aligned blocks, the last first, so that takes start at its beginning.
    fn cut_region(&mut self, units: u32) {
        let mut end = units;
        while end > 0 {
            let order = (end.trailing_zeros() as usize).min(self.orders - 1);
            end -= 1 << order;
            self.push_free(end, order);
        }
    }

    /// The first unit of a block of `order`; `None` when there is none now, or ever.
    #[inline]
    pub fn take(&mut self, order: u8) -> Option<u32> {
        let unit = match self.recent.get_mut(usize::from(order)) {
            Some(recent) if recent.len > 0 => {
                recent.len -= 1;
                recent.units[recent.len]
            }
            _ => self.cut(usize::from(order))?,
        };
        self.state[unit as usize] = TAKEN | order;
        self.units_taken += 1 << order;
        Some(unit)
    }

    /// Takes the block of `order` at `unit` back.
    ///
    /// # Panics
    /// If no such block is out: a double free is our bug.
    #[inline]
    pub fn put(&mut self, unit: u32, order: u8) {
        assert!(
            self.state.get(unit as usize) == Some(&(TAKEN | order)),
            "a block comes back once, to its own pool"
        );
        self.units_taken -= 1 << order;
        match self.recent.get_mut(usize::from(order)) {
            Some(recent) if recent.len < RECENT_MAX => {
                recent.units[recent.len] = unit;
                recent.len += 1;
                self.state[unit as usize] = RECENT | order;
            }
            _ => self.join(unit, usize::from(order)),
        }
    }

    /// Bytes of its tables.
    #[must_use]
    pub fn table_bytes(&self) -> usize {
        size_of_val(&*self.state) + self.links.table_bytes()
    }

    /// Units that are out.
    #[inline]
    #[must_use]
    pub fn taken(&self) -> u32 {
        self.units_taken
    }

    /// Units that are not out.
    #[inline]
    #[must_use]
    pub fn free(&self) -> u32 {
        self.units() - self.units_taken
    }

    /// Units there are.
    #[inline]
    #[must_use]
    pub fn units(&self) -> u32 {
        self.state.len() as u32
    }

    /// The largest order of which a block is at hand; `None` when nothing is. Exact after a [`Buddy::take`] that found nothing;
    /// at other times what came back lately might join to something larger.
    #[must_use]
    pub fn largest_free_order(&self) -> Option<u8> {
        let lately = self.recent.iter().rposition(|recent| recent.len > 0);
        let listed = self.orders_free.checked_ilog2().map(|order| order as usize);
        listed.max(lately).map(|order| order as u8)
    }

    /// The free blocks of `order_min` and larger as (first unit, order). Those that came back lately and were not joined yet
    /// are not among them: see [`Buddy::join_recent`].
    pub fn free_blocks(&self, order_min: u8) -> impl Iterator<Item = (u32, u8)> {
        (usize::from(order_min)..self.orders).flat_map(move |order| {
            self.lists[order].iter(&self.links).map(move |unit| (unit, order as u8))
        })
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
        let unit = self.lists[have].front().expect("an order with a free block has a list");
        self.remove_free(unit, have);
        while have > order {
            have -= 1;
            self.push_free(unit + (1 << have), have);
        }
        Some(unit)
    }

    /// Empties the stacks of what came back lately into the free lists; whether there was anything.
    pub fn join_recent(&mut self) -> bool {
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
        while order < self.orders - 1 {
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
        self.state[unit as usize] = FREE | order as u8;
        self.lists[order].push_front(&mut self.links, unit);
        self.orders_free |= 1 << order;
    }

    fn remove_free(&mut self, unit: u32, order: usize) {
        let at = unit as usize;
        assert!(self.state[at] == FREE | order as u8, "a free list holds free blocks of its order");
        self.lists[order].remove(&mut self.links, unit);
        if self.lists[order].is_empty() {
            self.orders_free &= !(1 << order);
        }
        self.state[at] = INSIDE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;
    use std::collections::BTreeMap;

    /// The free blocks, after everything recent was joined.
    fn whole(buddy: &mut Buddy) -> Vec<(u32, u8)> {
        buddy.join_recent();
        let mut blocks: Vec<_> = buddy.free_blocks(0).collect();
        blocks.sort_unstable();
        let free: u32 = blocks.iter().map(|&(_, order)| 1 << order).sum();
        assert_eq!(free, buddy.free());
        blocks
    }

    #[test]
    fn full_is_an_answer_and_what_is_recent_is_found() {
        let mut buddy = Buddy::new(64, 14);
        let small: Vec<_> = (0..64).map(|_| buddy.take(0).unwrap()).collect();
        assert_eq!((buddy.take(0), buddy.largest_free_order(), buddy.free()), (None, None, 0));
        for unit in small {
            buddy.put(unit, 0);
            assert!(buddy.largest_free_order().is_some(), "the first 32 are only in the stack");
        }
        // 32 of the units wait in the stack of order 0; the whole must be found all the same.
        assert_eq!(buddy.free_blocks(0).map(|(_, order)| 1 << order).sum::<u32>(), 32);
        let whole = buddy.take(6).unwrap();
        assert_eq!((buddy.take(0), buddy.taken()), (None, 64));
        buddy.put(whole, 6);
    }

    #[test]
    fn orders_end_where_they_were_told_to() {
        let mut buddy = Buddy::new(40, 4);
        assert_eq!(whole(&mut buddy), [0, 8, 16, 24, 32].map(|unit| (unit, 3)));
        assert_eq!((buddy.take(4), buddy.largest_free_order()), (None, Some(3)));
        let units: Vec<_> = (0..5).map(|_| buddy.take(3).unwrap()).collect();
        assert_eq!(units, [0, 8, 16, 24, 32]);
        for unit in units {
            buddy.put(unit, 3);
        }
        assert_eq!(whole(&mut buddy).len(), 5, "buddies of the largest order stay apart");
    }

    #[test]
    fn the_largest_free_order_is_what_can_be_taken() {
        let mut buddy = Buddy::new(500, 10);
        let mut prng = Prng::new(9);
        let mut out = Vec::new();
        for _ in 0..20_000 {
            if prng.below(2) == 0 {
                let order = prng.below(7) as u8;
                out.extend(buddy.take(order).map(|unit| (unit, order)));
            } else if !out.is_empty() {
                let (unit, order) = out.swap_remove(prng.below(out.len() as u64) as usize);
                buddy.put(unit, order);
            }
            if let Some(order) = buddy.largest_free_order() {
                let unit = buddy.take(order).unwrap();
                buddy.put(unit, order);
            }
            assert_eq!(buddy.take(9), None, "the pool has fewer units");
            let largest = buddy.largest_free_order();
            assert_eq!(largest.is_some(), buddy.free() > 0);
            assert_eq!(buddy.take(largest.map_or(0, |order| order + 1)), None);
            if let Some(order) = largest {
                let unit = buddy.take(order).unwrap();
                buddy.put(unit, order);
            }
        }
    }

    #[test]
    fn agrees_with_a_naive_allocator_and_is_whole_again() {
        for (seed, units) in [(1, 16_384), (2, 8_192), (3, 9_001), (4, 37)] {
            let mut buddy = Buddy::new(units, 14);
            let start = whole(&mut buddy);
            let mut prng = Prng::new(seed);
            // First unit -> order: the naive allocator knows what is out and looks for a free aligned place from the start.
            let mut out: BTreeMap<u32, u8> = BTreeMap::new();
            for _ in 0..20_000 {
                if prng.below(100) < 55 {
                    let most = 1 + prng.below(12);
                    let order = prng.below(most) as u8;
                    take_beside_model(&mut buddy, &mut out, order);
                } else if let Some((&unit, &order)) = out.iter().nth(prng.below(64) as usize) {
                    buddy.put(unit, order);
                    out.remove(&unit);
                }
                assert_eq!(buddy.taken(), out.values().map(|order| 1 << order).sum::<u32>());
            }
            for (unit, order) in std::mem::take(&mut out) {
                buddy.put(unit, order);
            }
            assert_eq!(whole(&mut buddy), start, "seed {seed}");
            assert_eq!(buddy.taken(), 0);
        }
    }

    fn take_beside_model(buddy: &mut Buddy, out: &mut BTreeMap<u32, u8>, order: u8) {
        let overlaps = |at: u32| {
            let below = out.range(..at + (1 << order)).next_back();
            below.is_some_and(|(&first, &other)| first + (1 << other) > at)
        };
        let Some(unit) = buddy.take(order) else {
            // No aligned place of that size may be free.
            let last = buddy.units() >> order;
            let free = (0..last).map(|place| place << order).find(|&at| !overlaps(at));
            assert_eq!(free, None, "order {order} is free but was refused");
            return;
        };
        assert!(unit.is_multiple_of(1 << order) && unit + (1 << order) <= buddy.units());
        assert!(!overlaps(unit));
        out.insert(unit, order);
    }

    #[test]
    #[should_panic(expected = "comes back once")]
    fn a_double_put_is_our_bug() {
        let mut buddy = Buddy::new(256, 14);
        let unit = buddy.take(0).unwrap();
        buddy.put(unit, 0);
        buddy.put(unit, 0);
    }

    #[test]
    #[should_panic(expected = "comes back once")]
    fn a_block_comes_back_with_its_order() {
        let mut buddy = Buddy::new(256, 14);
        let unit = buddy.take(3).unwrap();
        buddy.put(unit, 2);
    }

    #[test]
    fn tables_are_small() {
        assert!(Buddy::new(1000, 14).table_bytes() <= 9 * 1000);
    }
}
