//! Intrusive lists: the entries of a table carry the links, a list is only a handle.
//!
//! [`List`] is doubly linked: an entry is inserted and removed anywhere in constant time. Its handle is the index of the first
//! entry; the links form a ring, so the last entry is the predecessor of the first. [`Fifo`] is singly linked, for entries
//! that have no space for two links.
//!
//! ```text
//!   handle -> [a] <-> [b] <-> [c] <-.
//!              ^--------------------'
//! ```
//!
//! The table is anything that is indexed by `u32` ([`Slab`], a pool, [`Links`]). An entry can be in several lists at once if it
//! has a [`Link`] for each; the parameter `K` says which one a list uses. Nothing is allocated.
//!
//! Invariants: both halves of a `Link` are `NIL` exactly while the entry is in no list of that kind; `next(prev(x)) == x`.

use std::marker::PhantomData;
use std::mem;
use std::ops::{Index, IndexMut};

use crate::slab::{NIL, Slab};

/// The neighbours of an entry in one list; both are `NIL` while it is in none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    prev: u32,
    next: u32,
}

impl Link {
    /// The link of an entry that is in no list.
    pub const UNLINKED: Self = Self { prev: NIL, next: NIL };

    /// Returns true while the entry is in a list.
    #[inline]
    #[must_use]
    pub const fn is_linked(&self) -> bool {
        self.next != NIL
    }
}

impl Default for Link {
    fn default() -> Self {
        Self::UNLINKED
    }
}

/// An entry that has a link for lists of kind `K`.
pub trait Linked<K> {
    /// Returns the entry's link for lists of kind `K`.
    fn link(&self) -> &Link;
    /// Returns the entry's link for lists of kind `K`, to change it.
    fn link_mut(&mut self) -> &mut Link;
}

/// The kind of lists in tables whose entries are nothing but a link.
#[derive(Debug)]
pub enum OnlyLink {}

impl Linked<OnlyLink> for Link {
    #[inline]
    fn link(&self) -> &Link {
        self
    }

    #[inline]
    fn link_mut(&mut self) -> &mut Link {
        self
    }
}

/// A table of links beside the entries that they belong to.
#[derive(Debug)]
pub struct Links(Vec<Link>);

impl Links {
    /// Creates `count` links, all unlinked.
    #[must_use]
    pub fn new(count: usize) -> Self {
        let mut links = Self::with_room(count);
        links.grow(count);
        links
    }

    /// Creates no link, and reserves memory for `room`.
    #[must_use]
    pub fn with_room(room: usize) -> Self {
        Self(Vec::with_capacity(room))
    }

    /// Adds unlinked links up to `count` in all; within the room this allocates nothing.
    pub fn grow(&mut self, count: usize) {
        self.0.resize(count, Link::UNLINKED);
    }

    /// Returns the size of the table in bytes.
    #[must_use]
    pub fn table_bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}

impl Index<u32> for Links {
    type Output = Link;

    #[inline]
    fn index(&self, id: u32) -> &Link {
        &self.0[id as usize]
    }
}

impl IndexMut<u32> for Links {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut Link {
        &mut self.0[id as usize]
    }
}

/// A doubly linked list through links of kind `K`.
///
/// Every method is given the table that holds the entries; it must be the same one each time.
#[derive(Debug)]
pub struct List<K> {
    head: u32,
    kind: PhantomData<fn() -> K>,
}

impl<K> List<K> {
    /// Creates an empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self { head: NIL, kind: PhantomData }
    }

    /// Returns true when no entry is in the list.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.head == NIL
    }

    /// Returns the first entry.
    #[inline]
    #[must_use]
    pub fn front(&self) -> Option<u32> {
        some(self.head)
    }

    /// Returns the last entry.
    #[inline]
    #[must_use]
    pub fn back<T>(&self, table: &T) -> Option<u32>
    where
        T: Index<u32, Output: Linked<K>> + ?Sized,
    {
        if self.head == NIL { None } else { Some(table[self.head].link().prev) }
    }

    /// Returns the entry after `id`, which is in the list.
    #[inline]
    #[must_use]
    pub fn next<T>(&self, table: &T, id: u32) -> Option<u32>
    where
        T: Index<u32, Output: Linked<K>> + ?Sized,
    {
        let next = table[id].link().next;
        debug_assert!(next != NIL, "entry {id} is in no list");
        (next != self.head).then_some(next)
    }

    /// Returns the entry before `id`, which is in the list.
    #[inline]
    #[must_use]
    pub fn prev<T>(&self, table: &T, id: u32) -> Option<u32>
    where
        T: Index<u32, Output: Linked<K>> + ?Sized,
    {
        debug_assert!(table[id].link().is_linked(), "entry {id} is in no list");
        (id != self.head).then(|| table[id].link().prev)
    }

    /// Iterates over the entries from first to last.
    pub fn iter<T>(&self, table: &T) -> impl Iterator<Item = u32>
    where
        T: Index<u32, Output: Linked<K>> + ?Sized,
    {
        std::iter::successors(self.front(), |&id| self.next(table, id))
    }

    /// Adds an entry at the end.
    #[inline]
    pub fn push_back<T>(&mut self, table: &mut T, id: u32)
    where
        T: IndexMut<u32, Output: Linked<K>> + ?Sized,
    {
        let head = self.head;
        if head == NIL {
            return self.begin(table, id);
        }
        Self::link_before(table, id, head);
    }

    /// Adds an entry at the start.
    #[inline]
    pub fn push_front<T>(&mut self, table: &mut T, id: u32)
    where
        T: IndexMut<u32, Output: Linked<K>> + ?Sized,
    {
        self.push_back(table, id);
        self.head = id;
    }

    /// Adds an entry before `at`, which is in the list.
    pub fn insert_before<T>(&mut self, table: &mut T, id: u32, at: u32)
    where
        T: IndexMut<u32, Output: Linked<K>> + ?Sized,
    {
        debug_assert!(self.head != NIL, "an empty list has no entry {at}");
        Self::link_before(table, id, at);
        if self.head == at {
            self.head = id;
        }
    }

    /// Adds an entry after `at`, which is in the list.
    pub fn insert_after<T>(&mut self, table: &mut T, id: u32, at: u32)
    where
        T: IndexMut<u32, Output: Linked<K>> + ?Sized,
    {
        let next = table[at].link().next;
        debug_assert!(self.head != NIL && next != NIL, "entry {at} is not in this list");
        Self::link_before(table, id, next);
    }

    /// Removes an entry from the list that it is in.
    #[inline]
    pub fn remove<T>(&mut self, table: &mut T, id: u32)
    where
        T: IndexMut<u32, Output: Linked<K>> + ?Sized,
    {
        let Link { prev, next } = mem::take(table[id].link_mut());
        debug_assert!(self.head != NIL && next != NIL, "entry {id} is not in this list");
        if next == id {
            debug_assert!(self.head == id, "entry {id} is in another list");
            self.head = NIL;
            return;
        }
        table[prev].link_mut().next = next;
        table[next].link_mut().prev = prev;
        if self.head == id {
            self.head = next;
        }
    }

    /// Removes and returns the first entry.
    #[inline]
    pub fn pop_front<T>(&mut self, table: &mut T) -> Option<u32>
    where
        T: IndexMut<u32, Output: Linked<K>> + ?Sized,
    {
        let id = self.front()?;
        self.remove(table, id);
        Some(id)
    }

    /// Adds entries at the end, in order; the ends of the ring are joined once.
    #[inline]
    pub fn extend_back<T>(&mut self, table: &mut T, ids: &[u32])
    where
        T: IndexMut<u32, Output: Linked<K>> + ?Sized,
    {
        let (Some(&first), Some(&last)) = (ids.first(), ids.last()) else {
            return;
        };
        let was_empty = self.head == NIL;
        let head = if was_empty { first } else { self.head };
        let back =
            if was_empty { last } else { mem::replace(&mut table[head].link_mut().prev, last) };
        let mut prev = back;
        for (at, &id) in ids.iter().enumerate() {
            let next = ids.get(at + 1).copied().unwrap_or(head);
            let link = table[id].link_mut();
            debug_assert!(!link.is_linked(), "entry {id} is in a list already");
            *link = Link { prev, next };
            prev = id;
        }
        if !was_empty {
            table[back].link_mut().next = first;
        }
        self.head = head;
    }

    /// Removes up to `count` entries from the start and passes each to `take`, in order; the ends of the ring are joined once.
    #[inline]
    pub fn drain_front<T>(&mut self, table: &mut T, count: usize, mut take: impl FnMut(u32))
    where
        T: IndexMut<u32, Output: Linked<K>> + ?Sized,
    {
        if count == 0 || self.head == NIL {
            return;
        }
        let (first, back) = (self.head, table[self.head].link().prev);
        let mut id = first;
        for _ in 0..count {
            let next = mem::take(table[id].link_mut()).next;
            debug_assert!(next != NIL, "entry {id} is not in this list");
            take(id);
            if next == first {
                debug_assert!(id == back, "the last entry is before the first in the ring");
                self.head = NIL;
                return;
            }
            id = next;
        }
        self.head = id;
        table[id].link_mut().prev = back;
        table[back].link_mut().next = id;
    }

    /// Makes `id` the only entry.
    #[inline]
    fn begin<T>(&mut self, table: &mut T, id: u32)
    where
        T: IndexMut<u32, Output: Linked<K>> + ?Sized,
    {
        let link = table[id].link_mut();
        debug_assert!(!link.is_linked(), "entry {id} is in a list already");
        *link = Link { prev: id, next: id };
        self.head = id;
    }

    /// Links an entry between `at` and its predecessor in the ring.
    #[inline]
    fn link_before<T>(table: &mut T, id: u32, at: u32)
    where
        T: IndexMut<u32, Output: Linked<K>> + ?Sized,
    {
        debug_assert!(!table[id].link().is_linked(), "entry {id} is in a list already");
        let prev = mem::replace(&mut table[at].link_mut().prev, id);
        debug_assert!(prev != NIL, "entry {at} is in no list");
        table[prev].link_mut().next = id;
        *table[id].link_mut() = Link { prev, next: at };
    }
}

impl<K> Default for List<K> {
    fn default() -> Self {
        Self::new()
    }
}

/// An entry that has one link.
pub trait Chained {
    /// Returns the entry's link, to change it.
    fn next(&mut self) -> &mut u32;
}

/// A singly linked queue: first in, first out.
#[derive(Debug)]
pub struct Fifo {
    head: u32,
    tail: u32,
}

impl Fifo {
    /// Creates an empty queue.
    #[must_use]
    pub const fn new() -> Self {
        Self { head: NIL, tail: NIL }
    }

    /// Returns the first entry.
    #[must_use]
    pub fn head(&self) -> Option<u32> {
        some(self.head)
    }

    /// Adds an entry at the end.
    pub fn push<T: Chained>(&mut self, slab: &mut Slab<T>, id: u32) {
        debug_assert!(self.tail != id, "entry {id} is in the queue already");
        *slab[id].next() = NIL;
        match self.tail {
            NIL => self.head = id,
            tail => *slab[tail].next() = id,
        }
        self.tail = id;
    }

    /// Inserts an entry before the first one that it `precedes`; at the end in one step.
    pub fn insert<T: Chained>(
        &mut self,
        slab: &mut Slab<T>,
        id: u32,
        precedes: impl Fn(&T, &T) -> bool,
    ) {
        if self.head == NIL || !precedes(&slab[id], &slab[self.tail]) {
            return self.push(slab, id);
        }
        let (mut prev, mut next) = (NIL, self.head);
        while !precedes(&slab[id], &slab[next]) {
            (prev, next) = (next, *slab[next].next());
        }
        *slab[id].next() = next;
        match prev {
            NIL => self.head = id,
            prev => *slab[prev].next() = id,
        }
    }

    /// Removes and returns the first entry.
    pub fn pop<T: Chained>(&mut self, slab: &mut Slab<T>) -> Option<u32> {
        let id = self.head()?;
        self.head = mem::replace(slab[id].next(), NIL);
        if self.head == NIL {
            debug_assert!(self.tail == id, "only the last entry has no next one");
            self.tail = NIL;
        }
        Some(id)
    }

    /// Moves all entries of `other` to the end.
    pub fn append<T: Chained>(&mut self, slab: &mut Slab<T>, other: &mut Fifo) {
        let other = mem::take(other);
        if other.head == NIL {
            return;
        }
        debug_assert!(self.head != other.head, "a queue is not appended to itself");
        match self.tail {
            NIL => self.head = other.head,
            tail => *slab[tail].next() = other.head,
        }
        self.tail = other.tail;
    }
}

impl Default for Fifo {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the index unless it is `NIL`.
const fn some(id: u32) -> Option<u32> {
    if id == NIL { None } else { Some(id) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;

    /// Checks contents, ends and neighbours of a list against a vector.
    fn check(list: &List<OnlyLink>, links: &Links, model: &[u32]) {
        assert_eq!(list.iter(links).collect::<Vec<_>>(), model);
        assert_eq!(list.is_empty(), model.is_empty());
        assert_eq!(list.front(), model.first().copied());
        assert_eq!(list.back(links), model.last().copied());
        for (at, &id) in model.iter().enumerate() {
            assert_eq!(list.prev(links, id), at.checked_sub(1).map(|at| model[at]));
            assert_eq!(list.next(links, id), model.get(at + 1).copied());
        }
    }

    #[test]
    fn two_lists_in_one_table_match_vectors() {
        let mut prng = Prng::new(3);
        let mut links = Links::new(16);
        let mut lists = [List::<OnlyLink>::new(), List::new()];
        let mut models = [Vec::new(), Vec::new()];
        for _ in 0..20_000 {
            let id = prng.below(16) as u32;
            let which = prng.below(2) as usize;
            let place = |model: &Vec<u32>| model.iter().position(|&other| other == id);
            if let Some(which) = models.iter().position(|model| place(model).is_some()) {
                assert!(links[id].is_linked());
                models[which].remove(place(&models[which]).unwrap());
                lists[which].remove(&mut links, id);
            } else {
                let (list, model) = (&mut lists[which], &mut models[which]);
                assert!(!links[id].is_linked());
                match (prng.below(7), model.is_empty()) {
                    (0, _) => {
                        list.push_front(&mut links, id);
                        model.insert(0, id);
                    }
                    (1, false) => {
                        let at = prng.below(model.len() as u64) as usize;
                        list.insert_before(&mut links, id, model[at]);
                        model.insert(at, id);
                    }
                    (2, false) => {
                        let at = prng.below(model.len() as u64) as usize;
                        list.insert_after(&mut links, id, model[at]);
                        model.insert(at + 1, id);
                    }
                    (3, false) => {
                        assert_eq!(list.pop_front(&mut links), Some(model.remove(0)));
                    }
                    (4, _) => {
                        let more: Vec<u32> =
                            (id..16).filter(|&id| !links[id].is_linked()).collect();
                        list.extend_back(&mut links, &more[..more.len().min(3)]);
                        model.extend(more.iter().take(3));
                    }
                    (5, _) => {
                        let (count, mut taken) = (prng.below(5) as usize, Vec::new());
                        list.drain_front(&mut links, count, |id| taken.push(id));
                        assert_eq!(
                            taken,
                            model.drain(..count.min(model.len())).collect::<Vec<_>>()
                        );
                        assert!(taken.iter().all(|&id| !links[id].is_linked()));
                    }
                    _ => {
                        list.push_back(&mut links, id);
                        model.push(id);
                    }
                }
            }
            for (list, model) in lists.iter().zip(&models) {
                check(list, &links, model);
            }
        }
    }

    /// Links that count how often an entry is looked up.
    struct Counted(Links, std::cell::Cell<u32>);

    impl Index<u32> for Counted {
        type Output = Link;

        fn index(&self, id: u32) -> &Link {
            self.1.set(self.1.get() + 1);
            &self.0[id]
        }
    }

    impl IndexMut<u32> for Counted {
        fn index_mut(&mut self, id: u32) -> &mut Link {
            self.1.set(self.1.get() + 1);
            &mut self.0[id]
        }
    }

    #[test]
    fn operations_look_up_a_bounded_number_of_entries() {
        let mut links = Counted(Links::new(10_000), Default::default());
        let mut list: List<OnlyLink> = List::new();
        let steps = |links: &Counted| {
            let steps = links.1.take();
            assert!(steps <= 6, "{steps} entries looked up");
        };
        for id in 0..10_000 {
            match id % 2 {
                0 => list.push_back(&mut links, id),
                _ => list.push_front(&mut links, id),
            }
            steps(&links);
        }
        // Oldest first: from the middle outward.
        for id in 0..10_000 {
            list.remove(&mut links, id);
            steps(&links);
        }
        assert!(list.is_empty());
    }

    #[test]
    fn batches_look_up_each_entry_once() {
        let mut links = Counted(Links::new(64), Default::default());
        let mut list: List<OnlyLink> = List::new();
        let ids: Vec<u32> = (0..64).collect();
        list.extend_back(&mut links, &ids[..32]);
        list.extend_back(&mut links, &ids[32..]);
        assert!(links.1.take() <= 64 + 2);
        let mut taken = Vec::new();
        list.drain_front(&mut links, 40, |id| taken.push(id));
        list.drain_front(&mut links, 40, |id| taken.push(id));
        assert!(links.1.take() <= 64 + 4 && taken == ids && list.is_empty());
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "is in a list already")]
    fn inserting_twice_panics() {
        let mut links = Links::new(2);
        let mut list = List::new();
        list.push_back(&mut links, 1);
        list.push_back(&mut links, 1);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "is not in this list")]
    fn removing_an_unlinked_entry_panics() {
        let mut links = Links::new(2);
        let mut list: List<OnlyLink> = List::new();
        list.push_back(&mut links, 1);
        list.remove(&mut links, 0);
    }

    impl Chained for u32 {
        fn next(&mut self) -> &mut u32 {
            self
        }
    }

    #[test]
    fn append_keeps_order_and_empties_the_other() {
        let drain = |fifo: &mut Fifo, slab: &mut Slab<u32>| {
            std::iter::from_fn(|| fifo.pop(slab)).collect::<Vec<_>>()
        };
        for (left, right) in [(0, 0), (0, 2), (2, 0), (3, 2), (1, 1)] {
            let mut slab: Slab<u32> = Slab::touched(8);
            let (mut a, mut b) = (Fifo::new(), Fifo::new());
            (0..left).for_each(|id| a.push(&mut slab, id));
            (left..left + right).for_each(|id| b.push(&mut slab, id));
            a.append(&mut slab, &mut b);
            assert_eq!(b.head(), None);
            // Both accept entries again.
            a.push(&mut slab, 7);
            b.push(&mut slab, 6);
            let all: Vec<u32> = (0..left + right).chain([7]).collect();
            assert_eq!(drain(&mut a, &mut slab), all);
            assert_eq!(drain(&mut b, &mut slab), [6]);
            assert_eq!((a.pop(&mut slab), a.head()), (None, None));
        }
    }
}
