//! Requests in the order of their places: a treap through the slots.
//!
//! A place is (volume, offset). One queue serves several files of one filesystem; where each lies on the disk is not known
//! here, but neighbours within a file mostly are neighbours on the disk, and two files never are. So the file comes first: a
//! sweep finishes one file before it goes on to the next, where sorting by offset alone would jump between files at every
//! request.
//!
//! ```text
//!            v0:40 (91)            links: before, after, up
//!           /          \           in order from left to right by place, those of one place as they came
//!      v0:8 (57)     v1:0 (80)     ranks (in brackets) fall from the root down
//!           \
//!          v0:16 (12)
//! ```
//!
//! A rank is a mix of the slot's number: no state, the same in every replay, and nothing that a client chooses, so the tree
//! is as deep as a random one whatever order the places come in. A red-black tree is less deep by a few steps and takes
//! more of them to stay so. Links go up as well, so that leaving needs no search, and does not mind that a front merge has
//! already changed the place.

use crate::request::{Request, SlotId, Slots};
use crate::slab::NIL;

/// Where a request starts, comparable across the files of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SortKey(u128);

impl SortKey {
    /// One number, so that comparing takes no branch.
    #[inline]
    pub fn of(request: &Request) -> Self {
        Self(u128::from(request.volume.0) << 64 | u128::from(request.offset))
    }
}

const BEFORE: usize = 0;
const AFTER: usize = 1;
const UP: usize = 2;

/// The requests of one direction of one level.
#[derive(Debug)]
pub(super) struct SortIndex {
    root: SlotId,
}

impl SortIndex {
    pub const fn new() -> Self {
        Self { root: NIL }
    }

    /// Puts a request behind all of its place.
    pub fn insert(&mut self, slots: &mut Slots, id: SlotId) {
        let (place, rank) = (SortKey::of(&slots[id]), rank(id));
        let (mut up, mut side, mut at) = (NIL, BEFORE, self.root);
        while at != NIL && self::rank(at) > rank {
            side = usize::from(SortKey::of(&slots[at]) <= place);
            (up, at) = (at, slots[at].tree[side]);
        }
        self.hang(slots, up, side, id);
        split(slots, at, place, id);
    }

    /// Takes a request out.
    pub fn remove(&mut self, slots: &mut Slots, id: SlotId) {
        let [mut before, mut after, mut up] = slots[id].tree;
        let mut side = if up == NIL { BEFORE } else { usize::from(slots[up].tree[AFTER] == id) };
        while before != NIL && after != NIL {
            if rank(before) > rank(after) {
                self.hang(slots, up, side, before);
                (up, side, before) = (before, AFTER, slots[before].tree[AFTER]);
            } else {
                self.hang(slots, up, side, after);
                (up, side, after) = (after, BEFORE, slots[after].tree[BEFORE]);
            }
        }
        self.hang(slots, up, side, if before == NIL { after } else { before });
    }

    /// The first at `place` or behind it.
    pub fn at_or_after(&self, slots: &Slots, place: SortKey) -> SlotId {
        let (mut found, mut at) = (NIL, self.root);
        while at != NIL {
            let fits = SortKey::of(&slots[at]) >= place;
            found = if fits { at } else { found };
            at = slots[at].tree[if fits { BEFORE } else { AFTER }];
        }
        found
    }

    /// The next in order.
    pub fn after(&self, slots: &Slots, id: SlotId) -> SlotId {
        let [_, mut at, mut up] = slots[id].tree;
        if at != NIL {
            while slots[at].tree[BEFORE] != NIL {
                at = slots[at].tree[BEFORE];
            }
            return at;
        }
        let mut from = id;
        while up != NIL && slots[up].tree[AFTER] == from {
            (from, up) = (up, slots[up].tree[UP]);
        }
        up
    }

    /// Hangs `id` (or nothing) below `up`, or at the root.
    #[inline]
    fn hang(&mut self, slots: &mut Slots, up: SlotId, side: usize, id: SlotId) {
        match up {
            NIL => self.root = id,
            _ => slots[up].tree[side] = id,
        }
        if id != NIL {
            slots[id].tree[UP] = up;
        }
    }
}

/// Hangs the tree of `at` below `id`: what is at `place` or before it on one side, the rest on the other.
fn split(slots: &mut Slots, mut at: SlotId, place: SortKey, id: SlotId) {
    // Where the next part of each side goes: the first right below `id`, then always on the inner side of the last one.
    let mut ends = [(id, BEFORE), (id, AFTER)];
    while at != NIL {
        let side = usize::from(SortKey::of(&slots[at]) > place);
        let (up, end) = ends[side];
        slots[up].tree[end] = at;
        slots[at].tree[UP] = up;
        ends[side] = (at, 1 - side);
        at = slots[at].tree[1 - side];
    }
    for (up, end) in ends {
        slots[up].tree[end] = NIL;
    }
}

/// A permutation of the slots' numbers that looks random (the finaliser of a 32-bit hash): no two are alike.
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

    /// Links agree in both directions and ranks fall; how deep it is.
    fn check(slots: &Slots, at: SlotId, up: SlotId) -> usize {
        if at == NIL {
            return 0;
        }
        assert_eq!(slots[at].tree[UP], up);
        assert!(up == NIL || rank(up) > rank(at));
        let [before, after, _] = slots[at].tree;
        1 + check(slots, before, at).max(check(slots, after, at))
    }

    #[test]
    fn agrees_with_an_ordered_map_through_random_operations() {
        let mut prng = Prng::new(1);
        let mut slots = Slots::touched(64);
        let (mut index, mut model, mut arrivals) = (SortIndex::new(), BTreeMap::new(), 0u64);
        let mut keys = [None; 64];
        for _ in 0..50_000 {
            let id = prng.below(64) as u32;
            match keys[id as usize].take() {
                Some(key) => {
                    // As after a front merge: the place is another one already.
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
            assert_eq!(all(&index, &slots), model.values().copied().collect::<Vec<_>>());
            let from = SortKey(u128::from(prng.below(2)) << 64 | u128::from(prng.below(22)));
            let found = model.range((from, 0)..).next().map_or(NIL, |(_, &id)| id);
            assert_eq!(index.at_or_after(&slots, from), found);
        }
    }

    #[test]
    fn no_order_of_places_makes_it_deep() {
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
            // A random tree of so many has 25 to 35.
            assert!(depth <= 40, "{name}: {depth}");
        }
    }
}
