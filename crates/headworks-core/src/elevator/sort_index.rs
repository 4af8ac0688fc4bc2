//! Requests in position order: a treap through the slots.
//!
//! A position is (volume, offset). One queue serves several files of one filesystem whose places on the disk are not known here;
//! neighbours within a file mostly are neighbours on the disk, and two files never are. So the volume is compared first: a
//! sweep finishes one file before the next, where sorting by offset alone would jump between files at every request.
//!
//! ```text
//!            v0:40 (91)            links: before, after, up
//!           /          \           in order from left to right by position, equal positions in order of insertion
//!      v0:8 (57)     v1:0 (80)     ranks (in brackets) fall from the root down
//!           \
//!          v0:16 (12)
//! ```
//!
//! A rank is a hash of the slot number: no state, identical in every replay, and not chosen by a client. So the tree is as deep
//! as a random one, whatever the order of positions. A red-black tree is a few levels less deep and takes more steps to stay
//! so. Links go up as well: a removal needs no search and works after a front merge has changed the position.
//!
//! Invariants: `rank(parent) > rank(child)`; a child's `UP` link is its parent; an in-order walk is sorted by position.

use crate::request::{Request, SlotId, Slots};
use crate::slab::NIL;

/// Position of a request's first byte, comparable across the volumes of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SortKey(u128);

impl SortKey {
    /// Returns the key of a request: one number, so that a comparison takes no branch.
    #[inline]
    pub fn of(request: &Request) -> Self {
        Self(u128::from(request.volume.0) << 64 | u128::from(request.offset))
    }
}

const BEFORE: usize = 0;
const AFTER: usize = 1;
const UP: usize = 2;
/// Its rank, which is computed once: a walk meets several.
const RANK: usize = 3;

/// Waiting requests in position order.
#[derive(Debug)]
pub(super) struct SortIndex {
    root: SlotId,
}

impl SortIndex {
    /// Creates an empty index.
    pub const fn new() -> Self {
        Self { root: NIL }
    }

    /// Returns true when it holds no request.
    pub const fn is_empty(&self) -> bool {
        self.root == NIL
    }

    /// Adds a request after all requests of the same position.
    pub fn insert(&mut self, slots: &mut Slots, id: SlotId) {
        let request = &mut slots[id];
        let (key, rank) = (SortKey::of(request), rank(id));
        request.links.tree[RANK] = rank;
        let (mut up, mut side, mut at) = (NIL, BEFORE, self.root);
        while at != NIL {
            let other = &slots[at];
            if other.links.tree[RANK] < rank {
                break;
            }
            side = usize::from(SortKey::of(other) <= key);
            (up, at) = (at, other.links.tree[side]);
        }
        debug_assert!(at != id, "request {id} is in the index already");
        self.attach(slots, up, side, id);
        split(slots, at, key, id);
    }

    /// Removes a request; its position may have changed since the insertion.
    pub fn remove(&mut self, slots: &mut Slots, id: SlotId) {
        let [mut before, mut after, mut up, _] = slots[id].links.tree;
        let mut side =
            if up == NIL { BEFORE } else { usize::from(slots[up].links.tree[AFTER] == id) };
        let link = if up == NIL { self.root } else { slots[up].links.tree[side] };
        debug_assert!(link == id, "request {id} is in this index");
        while before != NIL && after != NIL {
            if slots[before].links.tree[RANK] > slots[after].links.tree[RANK] {
                self.attach(slots, up, side, before);
                (up, side, before) = (before, AFTER, slots[before].links.tree[AFTER]);
            } else {
                self.attach(slots, up, side, after);
                (up, side, after) = (after, BEFORE, slots[after].links.tree[BEFORE]);
            }
        }
        self.attach(slots, up, side, if before == NIL { after } else { before });
    }

    /// Returns the first request at `key` or after it; `NIL` if there is none.
    pub fn at_or_after(&self, slots: &Slots, key: SortKey) -> SlotId {
        let (mut found, mut at) = (NIL, self.root);
        while at != NIL {
            let fits = SortKey::of(&slots[at]) >= key;
            found = if fits { at } else { found };
            at = slots[at].links.tree[if fits { BEFORE } else { AFTER }];
        }
        found
    }

    /// Returns the request after `id` in position order; `NIL` after the last.
    pub fn after(&self, slots: &Slots, id: SlotId) -> SlotId {
        let [_, mut at, mut up, _] = slots[id].links.tree;
        if at != NIL {
            while slots[at].links.tree[BEFORE] != NIL {
                at = slots[at].links.tree[BEFORE];
            }
            return at;
        }
        let mut from = id;
        while up != NIL && slots[up].links.tree[AFTER] == from {
            (from, up) = (up, slots[up].links.tree[UP]);
        }
        up
    }

    /// Returns the request before `id` in position order; `NIL` before the first.
    pub fn before(&self, slots: &Slots, id: SlotId) -> SlotId {
        let [mut at, _, mut up, _] = slots[id].links.tree;
        if at != NIL {
            while slots[at].links.tree[AFTER] != NIL {
                at = slots[at].links.tree[AFTER];
            }
            return at;
        }
        let mut from = id;
        while up != NIL && slots[up].links.tree[BEFORE] == from {
            (from, up) = (up, slots[up].links.tree[UP]);
        }
        up
    }

    /// Makes `id` (or nothing, if `NIL`) the child of `up` on `side`; the root if `up` is `NIL`.
    #[inline]
    fn attach(&mut self, slots: &mut Slots, up: SlotId, side: usize, id: SlotId) {
        match up {
            NIL => self.root = id,
            _ => slots[up].links.tree[side] = id,
        }
        if id != NIL {
            debug_assert!(up == NIL || rank(up) > rank(id), "ranks fall from the root down");
            slots[id].links.tree[UP] = up;
        }
    }
}

/// Splits the tree of `at` into the children of `id`: requests at or before `key` on one side, the rest on the other.
fn split(slots: &mut Slots, mut at: SlotId, key: SortKey, id: SlotId) {
    // Where the next part of each side goes: first directly below `id`, then always on the inner side of the last part.
    let mut ends = [(id, BEFORE), (id, AFTER)];
    while at != NIL {
        let part = &mut slots[at];
        let side = usize::from(SortKey::of(part) > key);
        let (up, end) = ends[side];
        part.links.tree[UP] = up;
        ends[side] = (at, 1 - side);
        let next = part.links.tree[1 - side];
        slots[up].links.tree[end] = at;
        at = next;
    }
    for (up, end) in ends {
        slots[up].links.tree[end] = NIL;
    }
}

/// Returns the rank of a slot: a permutation of slot numbers that looks random (the finalizer of a 32-bit hash).
#[inline]
const fn rank(id: SlotId) -> u32 {
    let mut x = id;
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::bio::VolumeId;
    use crate::prng::Prng;

    fn all(index: &SortIndex, slots: &Slots) -> Vec<SlotId> {
        let first = index.at_or_after(slots, SortKey::default());
        std::iter::successors((first != NIL).then_some(first), |&id| {
            let next = index.after(slots, id);
            (next != NIL).then_some(next)
        })
        .collect()
    }

    /// Checks links and ranks below `at` and returns the depth.
    fn check(slots: &Slots, at: SlotId, up: SlotId) -> usize {
        if at == NIL {
            return 0;
        }
        assert_eq!(slots[at].links.tree[UP], up);
        assert!(up == NIL || rank(up) > rank(at));
        let [before, after, ..] = slots[at].links.tree;
        1 + check(slots, before, at).max(check(slots, after, at))
    }

    #[test]
    fn index_matches_ordered_map() {
        let mut prng = Prng::new(1);
        let mut slots = Slots::touched(64);
        let (mut index, mut model, mut arrivals) = (SortIndex::new(), BTreeMap::new(), 0u64);
        let mut keys = [None; 64];
        for _ in 0..50_000 {
            let id = prng.below(64) as u32;
            match keys[id as usize].take() {
                Some(key) => {
                    // As after a front merge: the position has changed already.
                    slots[id].offset = prng.below(20);
                    index.remove(&mut slots, id);
                    assert_eq!(model.remove(&key), Some(id));
                }
                None => {
                    (slots[id].volume, slots[id].offset) =
                        (VolumeId(prng.below(2) as u16), prng.below(20));
                    arrivals += 1;
                    let key = (SortKey::of(&slots[id]), arrivals);
                    index.insert(&mut slots, id);
                    model.insert(key, id);
                    keys[id as usize] = Some(key);
                }
            }
            check(&slots, index.root, NIL);
            let sorted = all(&index, &slots);
            assert_eq!(sorted, model.values().copied().collect::<Vec<_>>());
            for pair in sorted.windows(2) {
                assert_eq!(index.before(&slots, pair[1]), pair[0]);
            }
            assert!(sorted.first().is_none_or(|&first| index.before(&slots, first) == NIL));
            let from = SortKey(u128::from(prng.below(2)) << 64 | u128::from(prng.below(22)));
            let found = model.range((from, 0)..).next().map_or(NIL, |(_, &id)| id);
            assert_eq!(index.at_or_after(&slots, from), found);
        }
    }

    #[test]
    fn depth_is_that_of_a_random_tree_for_any_order() {
        let count = 4096;
        let mut prng = Prng::new(2);
        let shuffled: Vec<u64> = (0..count).map(|_| prng.below(1 << 40)).collect();
        type Offset<'a> = &'a dyn Fn(u64) -> u64;
        let orders: [(&str, Offset<'_>); 5] = [
            ("ascending", &|n| n),
            ("descending", &|n| count - n),
            ("64 streams", &|n| n % 64 * count + n / 64),
            ("from both ends", &|n| if n % 2 == 0 { n } else { 2 * count - n }),
            ("random", &|n| shuffled[n as usize]),
        ];
        for (name, offset) in orders {
            let mut slots = Slots::touched(count as u32);
            let mut index = SortIndex::new();
            for id in 0..count as u32 {
                slots[id].offset = offset(id.into());
                index.insert(&mut slots, id);
            }
            let depth = check(&slots, index.root, NIL);
            // A random tree of 4096 nodes has 25 to 35 levels.
            assert!(depth <= 40, "{name}: {depth}");
        }
    }
}
