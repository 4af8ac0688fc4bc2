//! The tables of a buddy allocator over the units of a region, without the region's memory.
//!
//! The tables are allocated once; a full region is an ordinary condition, not an error. A block of order n is 2^n units, aligned
//! to its size. Its *buddy* is the other half of the block that they were split from; when both are free they join to that block
//! again.
//!
//! ```text
//!   unit     0   1   2   3   4   5   6   7
//!   order 3  [------------- free -----------]
//!   take 1:  [tk][ 0 ][  order 1 ][- order 2 free-]  three splits; each upper half goes on the free list of its order
//! ```
//!
//! To split and join for every unit would cost up to twice the number of orders in steps. So the blocks of small orders that
//! were freed last stay whole in a `recent` stack: a take and a put of the usual sizes are a pop and a push, and hot memory is
//! used again. When a take finds no block, the stacks are flushed into the free lists and it tries again.
//!
//! The links of the free lists are in tables beside the region (9 bytes a unit: 0.22 % of 4 KiB), never in the region itself:
//! unused memory stays untouched, so that an idle server is small. The tables themselves can begin with a part of the region and
//! grow within the room that was reserved for them.
//!
//! Free blocks can be *withheld*: they are neither free nor taken until they are restored, and their memory can be given back. A
//! withheld block can be *asked for*, in no list, until its memory is there again or is refused; it counts as withheld.
//!
//! Invariants: taken + withheld + recent + listed == units; a bit of `orders_free` is set exactly while that free list has a
//! block; no two buddies of one order are both in a free list.

use crate::gauge::Gauge32;
use crate::list::{Links, List, OnlyLink};
use crate::slab::NIL;

/// The most orders: the largest block has 2^15 units (128 MiB of 4 KiB).
const ORDERS_MAX: usize = 16;
/// Orders 0 (4 KiB) to 5 (128 KiB) have a `recent` stack.
const RECENT_ORDERS: usize = 6;
/// Blocks in a `recent` stack: the queue depth at which most clients run.
const RECENT_MAX: usize = 32;

/// The states of a unit. The first unit of a block has the state of the block and its order in the low bits; the others are
/// `INSIDE`.
const INSIDE: u8 = 0;
const FREE: u8 = 0x40;
const TAKEN: u8 = 0x80;
const RECENT: u8 = 0xc0;
const WITHHELD: u8 = 0x20;
const ASKED: u8 = 0x60;

/// A bounded stack of blocks that were freed last.
#[derive(Clone, Copy, Debug)]
struct Recent {
    units: [u32; RECENT_MAX],
    len: usize,
}

/// The tables of a buddy allocator.
#[derive(Debug)]
pub struct Buddy {
    /// By unit: its state.
    state: Vec<u8>,
    /// By first unit of a free block: its neighbours in the free list.
    links: Links,
    /// The free list of each order.
    lists: [List<OnlyLink>; ORDERS_MAX],
    /// The withheld blocks of each order.
    withheld: [List<OnlyLink>; ORDERS_MAX],
    /// Number of orders in use.
    orders: usize,
    /// Bit `order` is set while that free list has a block.
    orders_free: u32,
    recent: [Recent; RECENT_ORDERS],
    units_taken: Gauge32,
    units_withheld: Gauge32,
}

impl Buddy {
    /// Creates tables for `units` free units, in blocks of `orders` sizes: 1 unit to 2^(orders - 1).
    ///
    /// # Panics
    /// If `orders` is not 1 to 16, or `units` is `u32::MAX`.
    #[must_use]
    pub fn new(units: u32, orders: usize) -> Self {
        let mut buddy = Self::with_room(units, orders);
        buddy.grow(units);
        buddy
    }

    /// Creates tables without a unit, and reserves memory for those of `room` units: [`Buddy::grow`] adds them.
    ///
    /// # Panics
    /// If `orders` is not 1 to 16, or `room` is `u32::MAX`.
    #[must_use]
    pub fn with_room(room: u32, orders: usize) -> Self {
        assert!((1..=ORDERS_MAX).contains(&orders), "1 to 16 orders");
        assert!(room < NIL, "fewer than 2^32 - 1 units");
        Self {
            state: Vec::with_capacity(room as usize),
            links: Links::with_room(room as usize),
            lists: [const { List::new() }; ORDERS_MAX],
            withheld: [const { List::new() }; ORDERS_MAX],
            orders,
            orders_free: 0,
            recent: [Recent { units: [0; RECENT_MAX], len: 0 }; RECENT_ORDERS],
            units_taken: Gauge32::default(),
            units_withheld: Gauge32::default(),
        }
    }

    /// Adds `more` free units at the end of the region: the largest aligned blocks, the last first, so that takes start at
    /// their beginning. Within the room this allocates nothing.
    pub fn grow(&mut self, more: u32) {
        let first = self.units();
        let mut end = first + more;
        self.state.resize(end as usize, INSIDE);
        self.links.grow(end as usize);
        while end > first {
            let most = (end - first).ilog2() as usize;
            let order = (end.trailing_zeros() as usize).min(self.orders - 1).min(most);
            end -= 1 << order;
            self.join(end, order);
        }
    }

    /// Takes a block of `order` and returns its first unit; `None` when no such block is free.
    #[inline]
    pub fn take(&mut self, order: u8) -> Option<u32> {
        let unit = match self.recent.get_mut(usize::from(order)) {
            Some(recent) if recent.len > 0 => {
                recent.len -= 1;
                recent.units[recent.len]
            }
            _ => self.split(usize::from(order))?,
        };
        debug_assert!([INSIDE, RECENT | order].contains(&self.state[unit as usize]), "it is free");
        debug_assert!(unit.trailing_zeros() >= order.into(), "a block is aligned to its size");
        self.state[unit as usize] = TAKEN | order;
        self.units_taken.add(1 << order);
        Some(unit)
    }

    /// Takes the block of `order` at `unit`; false, without a change, if it is not free or no block of that order lies there.
    pub fn take_at(&mut self, unit: u32, order: u8) -> bool {
        let (order, aligned) = (usize::from(order), unit.trailing_zeros() >= order.into());
        if !aligned || order >= self.orders {
            return false;
        }
        self.join_recent();
        let free = (order..self.orders).find_map(|have| {
            let first = unit >> have << have;
            (self.state.get(first as usize) == Some(&(FREE | have as u8))).then_some((first, have))
        });
        let Some((mut first, mut have)) = free else {
            return false;
        };
        self.remove_free(first, have);
        while have > order {
            have -= 1;
            let upper = first + (1 << have);
            let other = if unit >= upper { std::mem::replace(&mut first, upper) } else { upper };
            self.push_free(other, have);
        }
        debug_assert!(first == unit, "the halves that are left do not hold the block");
        self.state[unit as usize] = TAKEN | order as u8;
        self.units_taken.add(1 << order);
        true
    }

    /// Frees the block of `order` at `unit`.
    ///
    /// # Panics
    /// If no such block is taken.
    #[inline]
    pub fn put(&mut self, unit: u32, order: u8) {
        assert!(
            self.state.get(unit as usize) == Some(&(TAKEN | order)),
            "a block is freed once, to its own pool"
        );
        self.units_taken.sub(1 << order);
        match self.recent.get_mut(usize::from(order)) {
            Some(recent) if recent.len < RECENT_MAX => {
                recent.units[recent.len] = unit;
                recent.len += 1;
                self.state[unit as usize] = RECENT | order;
            }
            _ => self.join(unit, usize::from(order)),
        }
    }

    /// Cuts the taken block of order `from` at `unit` to its first 2^`to` units: its upper halves are free, and none of them joins,
    /// because what is below each is taken.
    ///
    /// # Panics
    /// If no such block is taken, or `to` is above `from`.
    pub fn trim(&mut self, unit: u32, from: u8, to: u8) {
        assert!(
            self.state.get(unit as usize) == Some(&(TAKEN | from)) && to <= from,
            "a taken block is cut to a part of it"
        );
        self.state[unit as usize] = TAKEN | to;
        self.units_taken.sub((1 << from) - (1 << to));
        for order in (to..from).rev() {
            self.push_free(unit + (1 << order), order.into());
        }
    }

    /// Grows the taken block of order `from` at `unit` in place towards order `to`, by upper halves that are free; returns the
    /// order that it has then.
    ///
    /// # Panics
    /// If no such block is taken.
    pub fn extend(&mut self, unit: u32, from: u8, to: u8) -> u8 {
        assert!(
            self.state.get(unit as usize) == Some(&(TAKEN | from)),
            "a taken block grows in place"
        );
        let mut order = from;
        while order < to
            && unit.trailing_zeros() > order.into()
            && usize::from(order) + 1 < self.orders
            && self.take_at(unit + (1 << order), order)
        {
            self.state[unit as usize + (1 << order)] = INSIDE;
            order += 1;
            self.state[unit as usize] = TAKEN | order;
        }
        order
    }

    /// Returns the size of the tables in bytes.
    #[must_use]
    pub fn table_bytes(&self) -> usize {
        size_of_val(&*self.state) + self.links.table_bytes()
    }

    /// Returns the number of taken units.
    #[inline]
    #[must_use]
    pub fn taken(&self) -> u32 {
        self.units_taken.get()
    }

    /// Returns the number of units that are neither taken nor withheld.
    #[inline]
    #[must_use]
    pub fn free(&self) -> u32 {
        let used = self.units_taken.get() + self.units_withheld.get();
        debug_assert!(used <= self.units(), "taken + withheld + free == units");
        self.units() - used
    }

    /// Returns the number of withheld units.
    #[inline]
    #[must_use]
    pub fn withheld(&self) -> u32 {
        self.units_withheld.get()
    }

    /// Withholds a free block of at most `units` units, the largest there is, or the first part of a larger one; returns its first
    /// unit and its order, or `None` when no block is free.
    pub fn withhold(&mut self, units: u32) -> Option<(u32, u8)> {
        let most = (units.checked_ilog2()? as usize).min(self.orders - 1);
        self.join_recent();
        let smaller = (0..=most).rev().find(|&order| self.orders_free >> order & 1 != 0);
        let order = if self.orders_free >> most != 0 { most } else { smaller? };
        let unit = self.split(order)?;
        debug_assert!(self.state[unit as usize] == INSIDE, "the block is in no list");
        self.push_withheld(unit, order);
        self.units_withheld.add(1 << order);
        Some((unit, order as u8))
    }

    /// Makes up to `units` withheld units free again; returns how many.
    pub fn restore(&mut self, units: u32) -> u32 {
        let (mut left, before) = (units, self.units_withheld.get());
        while let Some((unit, order)) = self.pop_withheld(left) {
            left -= 1 << order;
            self.units_withheld.sub(1 << order);
            self.join(unit, order);
        }
        before - self.units_withheld.get()
    }

    /// Withholds the free block of `order` at `unit`; false, without a change, if it is not free.
    pub fn withhold_at(&mut self, unit: u32, order: u8) -> bool {
        if !self.take_at(unit, order) {
            return false;
        }
        self.units_taken.sub(1 << order);
        self.units_withheld.add(1 << order);
        self.push_withheld(unit, order.into());
        true
    }

    /// Asks for a withheld block of at most `units` units; [`Buddy::answer`] must follow. `None` when none is withheld.
    pub fn ask(&mut self, units: u32) -> Option<(u32, u8)> {
        let (unit, order) = self.pop_withheld(units)?;
        self.state[unit as usize] = ASKED | order as u8;
        Some((unit, order as u8))
    }

    /// Makes a block that was asked for free, or withholds it again; false, without a change, if it was not asked for.
    pub fn answer(&mut self, unit: u32, order: u8, free: bool) -> bool {
        if self.state.get(unit as usize) != Some(&(ASKED | order)) {
            return false;
        }
        if free {
            self.units_withheld.sub(1 << order);
            self.join(unit, order.into());
        } else {
            self.push_withheld(unit, order.into());
        }
        true
    }

    /// Takes a block of at most `units` units off the withheld ones, the largest there is, or the first part of a larger one.
    fn pop_withheld(&mut self, units: u32) -> Option<(u32, usize)> {
        let most = (units.checked_ilog2()? as usize).min(self.orders - 1);
        let has_one = |order: &usize| !self.withheld[*order].is_empty();
        let mut order = (0..=most).rev().find(has_one).or_else(|| {
            let mut larger = most + 1..self.orders;
            larger.find(has_one)
        })?;
        let unit = self.withheld[order].front().expect("the list has a block");
        self.withheld[order].remove(&mut self.links, unit);
        self.state[unit as usize] = INSIDE;
        while order > most {
            order -= 1;
            self.push_withheld(unit + (1 << order), order);
        }
        Some((unit, order))
    }

    fn push_withheld(&mut self, unit: u32, order: usize) {
        self.state[unit as usize] = WITHHELD | order as u8;
        self.withheld[order].push_front(&mut self.links, unit);
    }

    /// Returns the number of units.
    #[inline]
    #[must_use]
    pub fn units(&self) -> u32 {
        self.state.len() as u32
    }

    /// Returns the largest order of which a block is free. Exact after a [`Buddy::take`] that found none; at other times recently
    /// freed blocks might join to a larger one.
    #[must_use]
    pub fn largest_free_order(&self) -> Option<u8> {
        let lately = self.recent.iter().rposition(|recent| recent.len > 0);
        let listed = self.orders_free.checked_ilog2().map(|order| order as usize);
        listed.max(lately).map(|order| order as u8)
    }

    /// Iterates over the free blocks of `order_min` and larger as (first unit, order), without recently freed blocks that
    /// were not joined yet: see [`Buddy::join_recent`].
    pub fn free_blocks(&self, order_min: u8) -> impl Iterator<Item = (u32, u8)> {
        (usize::from(order_min)..self.orders).flat_map(move |order| {
            self.lists[order].iter(&self.links).map(move |unit| (unit, order as u8))
        })
    }

    /// Splits a block of `order` off the smallest free block that is large enough.
    fn split(&mut self, order: usize) -> Option<u32> {
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

    /// Flushes recently freed blocks to the free lists; returns true if there were any.
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

    /// Frees a block and joins it with its buddy, repeatedly while the buddy is free.
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

    /// Adds a block to the free list of its order.
    fn push_free(&mut self, unit: u32, order: usize) {
        debug_assert!(self.state[unit as usize] == INSIDE, "a block is listed once");
        self.state[unit as usize] = FREE | order as u8;
        self.lists[order].push_front(&mut self.links, unit);
        self.orders_free |= 1 << order;
    }

    /// Removes a block from the free list of its order.
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

    /// Returns the free blocks after recently freed ones were joined.
    fn whole(buddy: &mut Buddy) -> Vec<(u32, u8)> {
        buddy.join_recent();
        let mut blocks: Vec<_> = buddy.free_blocks(0).collect();
        blocks.sort_unstable();
        let free: u32 = blocks.iter().map(|&(_, order)| 1 << order).sum();
        assert_eq!(free, buddy.free());
        blocks
    }

    #[test]
    fn full_region_returns_none_and_recent_blocks_are_found() {
        let mut buddy = Buddy::new(64, 14);
        let small: Vec<_> = (0..64).map(|_| buddy.take(0).unwrap()).collect();
        assert_eq!((buddy.take(0), buddy.largest_free_order(), buddy.free()), (None, None, 0));
        for unit in small {
            buddy.put(unit, 0);
            assert!(buddy.largest_free_order().is_some(), "the first 32 are only in the stack");
        }
        // 32 of the units are in the stack of order 0; the whole region must be found nevertheless.
        assert_eq!(buddy.free_blocks(0).map(|(_, order)| 1 << order).sum::<u32>(), 32);
        let whole = buddy.take(6).unwrap();
        assert_eq!((buddy.take(0), buddy.taken()), (None, 64));
        buddy.put(whole, 6);
    }

    #[test]
    fn withheld_block_that_is_asked_for_is_free_only_after_the_answer() {
        let mut buddy = Buddy::new(64, 7);
        assert!(buddy.withhold_at(16, 4) && !buddy.withhold_at(16, 4), "it is free once");
        assert_eq!((buddy.withheld(), buddy.free(), buddy.taken()), (16, 48, 0));
        let (unit, order) = buddy.ask(8).unwrap();
        assert_eq!((unit.is_multiple_of(8), order, buddy.withheld()), (true, 3, 16));
        assert_eq!(buddy.restore(64), 8, "what is asked for is not restored");
        assert!(buddy.answer(unit, order, false) && !buddy.answer(unit, order, true));
        assert_eq!((buddy.withheld(), buddy.free()), (8, 56));
        assert_eq!(buddy.ask(64), Some((unit, order)));
        assert!(buddy.answer(unit, order, true));
        assert_eq!((buddy.withheld(), buddy.take(6)), (0, Some(0)), "the blocks join again");
    }

    #[test]
    fn withheld_blocks_are_not_taken_and_all_come_back() {
        let mut buddy = Buddy::with_room(3000, 10);
        buddy.grow(1001);
        let mut prng = Prng::new(11);
        let (mut out, mut held) = (Vec::new(), 0);
        for round in 0..20_000 {
            match prng.below(5) {
                0 => {
                    let most = prng.below(700) as u32;
                    if let Some((unit, order)) = buddy.withhold(most) {
                        assert!(1 << order <= most && unit.is_multiple_of(1 << order));
                        held += 1 << order;
                    }
                }
                1 => {
                    let most = prng.below(700) as u32;
                    let restored = buddy.restore(most);
                    assert_eq!(restored, most.min(held), "as much as there is");
                    held -= restored;
                }
                2 if !out.is_empty() => {
                    let (unit, order) = out.swap_remove(prng.below(out.len() as u64) as usize);
                    buddy.put(unit, order);
                }
                _ => {
                    let order = prng.below(6) as u8;
                    out.extend(buddy.take(order).map(|unit| (unit, order)));
                }
            }
            if round % 5000 == 0 {
                buddy.grow(499);
            }
            let taken: u32 = out.iter().map(|&(_, order)| 1 << order).sum();
            assert_eq!((buddy.taken(), buddy.withheld()), (taken, held));
        }
        out.into_iter().for_each(|(unit, order)| buddy.put(unit, order));
        assert_eq!(buddy.restore(u32::MAX), held);
        let mut fresh = Buddy::new(buddy.units(), 10);
        assert_eq!(whole(&mut buddy), whole(&mut fresh), "everything is joined again");
    }

    #[test]
    fn blocks_never_exceed_the_largest_order() {
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
    fn largest_free_order_can_be_taken() {
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
    fn allocator_matches_a_naive_one_and_joins_all_blocks() {
        for (seed, units) in [(1, 16_384), (2, 8_192), (3, 9_001), (4, 37)] {
            let mut buddy = Buddy::new(units, 14);
            let start = whole(&mut buddy);
            let mut prng = Prng::new(seed);
            // First unit -> order of taken blocks: the naive allocator searches for a free aligned block from the start.
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

    #[test]
    fn block_at_given_place_is_taken_if_it_is_free() {
        for (seed, units) in [(5, 4096), (6, 9001), (7, 37)] {
            let mut buddy = Buddy::new(units, 10);
            let start = whole(&mut buddy);
            let mut prng = Prng::new(seed);
            let mut out: BTreeMap<u32, u8> = BTreeMap::new();
            for _ in 0..10_000 {
                let (unit, order) = (prng.below(units.into()) as u32, prng.below(11) as u8);
                let unit = if prng.below(4) > 0 { unit >> order << order } else { unit };
                let size = 1_u32 << order;
                let below = out.range(..unit.saturating_add(size)).next_back();
                let free = below.is_none_or(|(&first, &other)| first + (1 << other) <= unit);
                let lies = unit.is_multiple_of(size) && unit + size <= units && order < 10;
                assert_eq!(buddy.take_at(unit, order), free && lies, "{unit} of order {order}");
                if free && lies {
                    out.insert(unit, order);
                }
                if prng.below(2) == 0
                    && let Some((&unit, &order)) = out.iter().nth(prng.below(32) as usize)
                {
                    buddy.put(unit, order);
                    out.remove(&unit);
                }
                assert_eq!(buddy.taken(), out.values().map(|order| 1 << order).sum::<u32>());
            }
            for (unit, order) in std::mem::take(&mut out) {
                buddy.put(unit, order);
            }
            assert_eq!(whole(&mut buddy), start);
        }
    }

    /// Blocks are cut and grow in place beside takes and puts; a naive model knows which units are free.
    #[test]
    fn blocks_are_cut_and_grow_in_place_as_in_a_naive_model() {
        for (seed, units) in [(8, 4096), (9, 9001), (10, 37)] {
            let mut buddy = Buddy::new(units, 10);
            let start = whole(&mut buddy);
            let mut prng = Prng::new(seed);
            let mut out: BTreeMap<u32, u8> = BTreeMap::new();
            for _ in 0..10_000 {
                let chosen = out.iter().nth(prng.below(48) as usize);
                match (prng.below(5), chosen.map(|(&unit, &order)| (unit, order))) {
                    (0, Some((unit, order))) => {
                        let to = prng.below(u64::from(order) + 1) as u8;
                        buddy.trim(unit, order, to);
                        out.insert(unit, to);
                    }
                    (1, Some((unit, order))) => {
                        let to = order + prng.below(4) as u8;
                        let fits = |to: u8| {
                            let end = unit + (1 << to);
                            let is_block = unit.is_multiple_of(1 << to) && end <= units && to < 10;
                            is_block && out.range(unit + 1..end).next().is_none()
                        };
                        let most = (order..=to).take_while(|&to| fits(to)).last().unwrap();
                        assert_eq!(buddy.extend(unit, order, to), most, "{unit} of order {order}");
                        out.insert(unit, most);
                    }
                    (2, Some((unit, order))) => {
                        buddy.put(unit, order);
                        out.remove(&unit);
                    }
                    _ => take_beside_model(&mut buddy, &mut out, prng.below(8) as u8),
                }
                assert_eq!(buddy.taken(), out.values().map(|order| 1 << order).sum::<u32>());
            }
            for (unit, order) in std::mem::take(&mut out) {
                buddy.put(unit, order);
            }
            assert_eq!((whole(&mut buddy), buddy.taken()), (start, 0), "seed {seed}");
        }
    }

    #[test]
    fn cut_block_leaves_its_upper_halves_free() {
        let mut buddy = Buddy::new(16, 5);
        let unit = buddy.take(4).unwrap();
        buddy.trim(unit, 4, 1);
        assert_eq!((buddy.taken(), whole(&mut buddy)), (2, vec![(2, 1), (4, 2), (8, 3)]));
        assert_eq!(buddy.take(2), Some(4));
        assert_eq!(buddy.extend(unit, 1, 4), 2, "up to what is taken");
        buddy.put(4, 2);
        assert_eq!((buddy.extend(unit, 2, 4), buddy.taken()), (4, 16));
        buddy.put(unit, 4);
    }

    #[test]
    #[should_panic(expected = "cut to a part of it")]
    fn trim_of_another_order_panics() {
        let mut buddy = Buddy::new(16, 5);
        let unit = buddy.take(2).unwrap();
        buddy.trim(unit, 3, 1);
    }

    fn take_beside_model(buddy: &mut Buddy, out: &mut BTreeMap<u32, u8>, order: u8) {
        let overlaps = |at: u32| {
            let below = out.range(..at + (1 << order)).next_back();
            below.is_some_and(|(&first, &other)| first + (1 << other) > at)
        };
        let Some(unit) = buddy.take(order) else {
            // No aligned block of that size may be free.
            let last = buddy.units() >> order;
            let free = (0..last).map(|block| block << order).find(|&at| !overlaps(at));
            assert_eq!(free, None, "order {order} is free but was refused");
            return;
        };
        assert!(unit.is_multiple_of(1 << order) && unit + (1 << order) <= buddy.units());
        assert!(!overlaps(unit));
        out.insert(unit, order);
    }

    #[test]
    #[should_panic(expected = "freed once")]
    fn double_free_panics() {
        let mut buddy = Buddy::new(256, 14);
        let unit = buddy.take(0).unwrap();
        buddy.put(unit, 0);
        buddy.put(unit, 0);
    }

    #[test]
    #[should_panic(expected = "freed once")]
    fn free_with_another_order_panics() {
        let mut buddy = Buddy::new(256, 14);
        let unit = buddy.take(3).unwrap();
        buddy.put(unit, 2);
    }

    #[test]
    fn tables_are_small() {
        assert!(Buddy::new(1000, 14).table_bytes() <= 9 * 1000);
    }
}
