//! A pairing heap inside a pool of nodes: no allocation, and any node can be removed.
//!
//! Links are in the nodes, so a node is in one heap at a time. Keys are virtual times, which wrap and are compared by signed
//! difference; equal ones go in order of arrival. Push and top are O(1), pop and remove O(log n) amortised.
//!
//! Invariants: a node's key is not before its parent's; `back` of a first child is its parent, of another its left neighbour.

use crate::slab::NIL;

/// A node's links in a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeapLink {
    child: u32,
    next: u32,
    back: u32,
    /// The virtual time that orders it, and a number that wraps for equal times.
    key: HeapKey,
}

/// The place of a node in its heap: a virtual time, and for equal times the number of its arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeapKey {
    pub time: u64,
    pub arrival: u64,
}

impl HeapKey {
    /// Returns true if this key goes before `other`.
    pub fn precedes(self, other: Self) -> bool {
        match self.time.wrapping_sub(other.time) as i64 {
            0 => is_before(self.arrival, other.arrival),
            difference => difference < 0,
        }
    }
}

impl HeapLink {
    /// Links of a node that is in no heap.
    pub const UNLINKED: Self = {
        let key = HeapKey { time: 0, arrival: 0 };
        Self { child: NIL, next: NIL, back: NIL, key }
    };
}

/// A node that can be in a heap.
pub(crate) trait HeapNode {
    /// Returns the links of the node.
    fn heap_link(&self) -> &HeapLink;
    /// Returns the links of the node, to change them.
    fn heap_link_mut(&mut self) -> &mut HeapLink;
}

impl HeapNode for HeapLink {
    fn heap_link(&self) -> &HeapLink {
        self
    }

    fn heap_link_mut(&mut self) -> &mut HeapLink {
        self
    }
}

/// Returns true if virtual time `a` is before `b`.
#[inline]
pub(crate) const fn is_before(a: u64, b: u64) -> bool {
    (a.wrapping_sub(b) as i64) < 0
}

/// A heap of nodes, least key first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heap {
    root: u32,
}

impl Heap {
    /// Creates an empty heap.
    pub const fn new() -> Self {
        Self { root: NIL }
    }

    /// Returns true when no node is in the heap.
    pub const fn is_empty(&self) -> bool {
        self.root == NIL
    }

    /// Returns the node with the least key.
    pub fn top(&self) -> Option<u32> {
        (self.root != NIL).then_some(self.root)
    }

    /// Returns the least virtual time.
    pub fn top_time<T: HeapNode>(&self, nodes: &[T]) -> Option<u64> {
        self.top().map(|id| nodes[id as usize].heap_link().key.time)
    }

    /// Adds a node that is in no heap.
    pub fn push<T: HeapNode>(&mut self, nodes: &mut [T], id: u32, key: HeapKey) {
        let link = nodes[id as usize].heap_link_mut();
        debug_assert!(link.child == NIL && link.next == NIL && link.back == NIL, "it is unlinked");
        link.key = key;
        self.root = if self.root == NIL { id } else { meld(nodes, self.root, id) };
    }

    /// Removes the node with the least key.
    pub fn pop<T: HeapNode>(&mut self, nodes: &mut [T]) -> Option<u32> {
        let id = self.top()?;
        self.remove(nodes, id);
        Some(id)
    }

    /// Removes a node of this heap.
    pub fn remove<T: HeapNode>(&mut self, nodes: &mut [T], id: u32) {
        assert!(self.root != NIL, "a node of this heap is removed");
        let link = nodes[id as usize].heap_link_mut();
        let HeapLink { child, next, back, .. } = *link;
        (link.child, link.next, link.back) = (NIL, NIL, NIL);
        let rest = combine(nodes, child);
        if back == NIL {
            debug_assert!(self.root == id, "the root alone has nothing before it");
            self.root = rest;
            return;
        }
        let before = nodes[back as usize].heap_link_mut();
        if before.child == id {
            before.child = next
        } else {
            before.next = next
        }
        if next != NIL {
            nodes[next as usize].heap_link_mut().back = back;
        }
        if rest != NIL {
            self.root = meld(nodes, self.root, rest);
        }
    }
}

/// Joins two heaps by their roots; returns the root of both, whose `next` and `back` stay as they are.
fn meld<T: HeapNode>(nodes: &mut [T], a: u32, b: u32) -> u32 {
    let key = |id: u32| nodes[id as usize].heap_link().key;
    let (top, below) = if key(b).precedes(key(a)) { (b, a) } else { (a, b) };
    let first = std::mem::replace(&mut nodes[top as usize].heap_link_mut().child, below);
    let link = nodes[below as usize].heap_link_mut();
    (link.next, link.back) = (first, top);
    if first != NIL {
        nodes[first as usize].heap_link_mut().back = below;
    }
    top
}

/// Joins the heaps of a list of siblings, pairs first and then from the last pair on; returns the root.
fn combine<T: HeapNode>(nodes: &mut [T], first: u32) -> u32 {
    if first == NIL {
        return NIL;
    }
    // The pairs are linked by `next`, the last one first. Only the links of the root are set right in the end.
    let (mut left, mut pairs) = (first, NIL);
    while left != NIL {
        let right = nodes[left as usize].heap_link().next;
        let (pair, rest) = match right {
            NIL => (left, NIL),
            _ => {
                let rest = nodes[right as usize].heap_link().next;
                (meld(nodes, left, right), rest)
            }
        };
        nodes[pair as usize].heap_link_mut().next = pairs;
        (pairs, left) = (pair, rest);
    }
    let (mut root, mut pair) = (pairs, nodes[pairs as usize].heap_link().next);
    while pair != NIL {
        let next = nodes[pair as usize].heap_link().next;
        root = meld(nodes, root, pair);
        pair = next;
    }
    let link = nodes[root as usize].heap_link_mut();
    (link.next, link.back) = (NIL, NIL);
    root
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;
    use std::collections::BTreeSet;

    #[test]
    fn heap_matches_ordered_set_across_wrap() {
        let mut prng = Prng::new(1);
        let mut nodes = vec![HeapLink::UNLINKED; 300];
        let (mut heap, mut model, mut arrival) = (Heap::new(), BTreeSet::new(), 0);
        for _ in 0..50_000 {
            let id = prng.below(300) as u32;
            // Times lie around the wrap; the model has them without it.
            let time = prng.below(1 << 10);
            arrival += 1;
            let key = (time, arrival);
            let held = model.iter().find(|&&(_, held)| held == id).copied();
            match held {
                Some(entry) => {
                    heap.remove(&mut nodes, id);
                    model.remove(&entry);
                }
                None => {
                    let time = time.wrapping_sub(1 << 9);
                    heap.push(&mut nodes, id, HeapKey { time, arrival });
                    model.insert((key, id));
                }
            }
            assert_eq!(heap.top(), model.first().map(|&(_, id)| id));
            assert_eq!(heap.is_empty(), model.is_empty());
        }
        while let Some((_, id)) = model.pop_first() {
            assert_eq!(heap.pop(&mut nodes), Some(id));
        }
        assert!(heap.is_empty());
    }
}
