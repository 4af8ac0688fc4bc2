//! Connections that wait for a block of the pool or for a bio slot, and the order in which they are woken.
//!
//! Ranks: a connection whose client leaves replies unread goes behind all others; then the export that holds the fewest bytes for
//! its weight goes first (its tenant, if it has another one), in it the connection that holds the fewest, then the longest waiter.
//! When unread replies have to give way, the rank is the reverse ([`Memory::largest_holder`]).
//!
//! A connection waits for one thing or for two, its payload's and that of a request before it: either lets it go on ([`Wants`]).
//!
//! One wake: `wake` searches the waiters when something has changed for the better since it last did, or a waiter is new. What a
//! woken waiter will take counts as taken for those behind it, so no more are woken than can be given.
//!
//! The *first* waiter is the best of those that were not woken, unless its device holds as much as it may: its block counts as taken
//! for all others until it has it. Otherwise small blocks might always be given before a large one can be. It does not count for an
//! export that holds less for its weight than the first waiter's, and with the block no more than its part of half of what is
//! shared: all of those together leave the other half. So an export whose clients hold much, of which one waits for a large block,
//! does not delay requests of others that hold little.

use std::cmp::Ordering;

use super::{Client, Held, Memory};

/// What one request of a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A bio slot alone.
    Slot,
    /// A block, and a bio slot.
    Block {
        /// Bytes of the block.
        bytes: usize,
        /// It is for data of a read.
        reads: bool,
    },
    /// A larger block for a payload. A bio slot it needs when that has come.
    Growth {
        /// Bytes of its block.
        from: usize,
        /// Bytes of the larger one.
        to: usize,
        /// The window in bytes with which it needs no share: 0 for a write within its window, `u32::MAX` for one of which a part is given.
        window: u32,
        /// It waits for other payloads of its export, which keep more than their windows, and not for a block: it is written as far as it
        /// has come if there is none.
        for_others: bool,
    },
    /// A block for a reply that is continued, which is admitted by its size alone, and a bio slot.
    Chunk {
        /// Bytes of the block.
        bytes: usize,
    },
}

/// What a connection waits for: one thing, or two of which either lets it go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wants {
    /// Its payload's, if that waits: it keeps memory that others wait for.
    pub first: Wanted,
    /// That of a request before the payload.
    pub other: Option<Wanted>,
}

impl Wants {
    /// Each of these things, the payload's first.
    pub fn all(self) -> impl Iterator<Item = Wanted> {
        std::iter::once(self.first).chain(self.other)
    }
}

impl From<Wanted> for Wants {
    fn from(first: Wanted) -> Self {
        Self { first, other: None }
    }
}

impl Wanted {
    /// Bytes that it takes of the pool.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Slot => 0,
            Self::Growth { from, to, .. } => to.saturating_sub(from),
            Self::Block { bytes, .. } | Self::Chunk { bytes } => bytes,
        }
    }

    fn needs_slot(self) -> bool {
        !matches!(self, Self::Growth { .. })
    }
}

/// What can be given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Supply {
    /// Bytes of the pool in use.
    pub taken: usize,
    /// Bio slots that are free.
    pub room: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    slot: u32,
    wants: Wants,
    /// Bytes that count as taken by it during a search.
    promised: usize,
}

/// The first waiter, and for what it is that.
#[derive(Clone, Copy, Debug)]
struct First {
    slot: u32,
    wanted: Wanted,
}

/// Waiters in the order of arrival.
#[derive(Debug)]
pub(super) struct Waiters {
    pub(super) list: Vec<Waiter>,
    first: Option<First>,
    /// A waiter may be given what it was refused before, or is new.
    news: bool,
    /// Supply at the last search.
    seen: Supply,
    /// Indexes into the list, during a search.
    order: Vec<u32>,
}

impl Waiters {
    pub fn new(places: usize) -> Self {
        let (list, order) = (Vec::with_capacity(places), Vec::with_capacity(places));
        Self { list, first: None, news: false, seen: Supply::default(), order }
    }

    /// Notes that shares have changed.
    pub fn note_news(&mut self) {
        self.news = true;
    }

    /// A connection holds something else than before.
    pub fn note_held(&mut self, slot: u32, before: Held, now: Held) {
        // Exports that hold less than the first waiter's pass it, and that may hold more now.
        self.news |= now.bytes > before.bytes && self.first.is_some();
        if now.bytes > before.bytes && self.first.is_some_and(|first| first.slot == slot) {
            self.first = None;
        }
        self.news |= now.bytes < before.bytes
            || now.request_bytes < before.request_bytes
            || now.requests < before.requests;
    }
}

impl Memory {
    /// The first waiter and its block, which count for a connection that is to hold `more` bytes than were noted: for all connections but
    /// its own, those that were woken, and those whose exports hold little.
    pub(super) fn kept_from(&self, slot: u32, more: usize) -> (Option<u32>, usize) {
        let woken = self.clients[slot as usize].woken;
        let counts =
            |first: &First| first.slot != slot && !woken && !self.passes(slot, first.slot, more);
        match self.waiters.first.filter(counts) {
            Some(first) => (Some(first.slot), first.wanted.bytes()),
            None => (None, 0),
        }
    }

    /// Whether an export passes the first waiter with `more` bytes: it holds less for its weight, and then at most its part of half of
    /// what is shared.
    fn passes(&self, slot: u32, first: u32, more: usize) -> bool {
        let Some((export, _)) = self.clients[slot as usize].owner else { return false };
        let part = || self.bytes.quantum(export, self.limits.shared() / 2);
        self.cmp_exports(slot, first) == Ordering::Less && self.held_by(export) + more <= part()
    }

    /// Adds a waiter, or keeps it in its place; returns whether it is new.
    pub fn wait(&mut self, slot: u32, wants: impl Into<Wants>) -> bool {
        let waiter = Waiter { slot, wants: wants.into(), promised: 0 };
        self.waiters.news = true;
        self.clients[slot as usize].woken = false;
        if std::mem::replace(&mut self.clients[slot as usize].waits, true) {
            let mut list = self.waiters.list.iter_mut();
            let place = list.find(|other| other.slot == slot).expect("it is in the list");
            *place = waiter;
            self.waiters.first = self.waiters.first.filter(|first| first.slot != slot);
            return false;
        }
        self.waiters.list.push(waiter);
        assert!(self.waiters.list.len() <= self.clients.len(), "a connection waits once");
        true
    }

    /// Removes a connection from the waiters.
    #[inline]
    pub fn leave(&mut self, slot: u32) {
        let client = &mut self.clients[slot as usize];
        if std::mem::take(&mut client.waits) {
            client.woken = false;
            self.waiters.list.retain(|other| other.slot != slot);
            self.waiters.first = self.waiters.first.filter(|first| first.slot != slot);
            self.waiters.news = true;
        }
    }

    /// Removes all waiters at once.
    pub fn clear_waiters(&mut self) {
        self.waiters.list.clear();
        self.waiters.first = None;
        for client in &mut self.clients {
            (client.waits, client.woken) = (false, false);
        }
    }

    /// Whether a connection waits.
    #[must_use]
    pub fn is_waiting(&self, slot: u32) -> bool {
        self.clients[slot as usize].waits
    }

    /// Number of connections that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiters.list.len()
    }

    /// Whether payloads that are beyond their windows are to be written as far as they have come: a connection waits for a block, or for them.
    #[must_use]
    pub fn needs_payloads(&self) -> bool {
        let for_others = |wanted| matches!(wanted, Wanted::Growth { for_others: true, .. });
        self.waiters.first.is_some()
            || self.waiters.list.iter().any(|waiter| waiter.wants.all().any(for_others))
    }

    /// The first waiter: unread replies give way to it.
    #[must_use]
    pub fn first(&self) -> Option<(u32, Wanted)> {
        self.waiters.first.map(|first| (first.slot, first.wanted))
    }

    /// Passes each waiter to `wake` that would be given what it waits for, in the order of their ranks; returns whether there are any.
    /// `has_block` tells whether the pool has a block of so many bytes.
    pub fn wake(
        &mut self,
        supply: Supply,
        mut has_block: impl FnMut(usize) -> bool,
        mut wake: impl FnMut(u32),
    ) -> bool {
        if self.waiters.list.is_empty() {
            return false;
        }
        let seen = std::mem::replace(&mut self.waiters.seen, supply);
        let better = supply.taken < seen.taken || supply.room > seen.room;
        if !std::mem::take(&mut self.waiters.news) && !better {
            return false;
        }
        // Its block is kept from no other while it could not take it.
        self.waiters.first = self.waiters.first.filter(|first| self.can_be_first(first));
        let mut order = std::mem::take(&mut self.waiters.order);
        self.list_candidates(supply, &mut order);
        let (mut left, mut woken) = (supply, 0);
        for at in 0..order.len() {
            let index = order[at] as usize;
            let Waiter { slot, wants, .. } = self.waiters.list[index];
            let gets = |wanted: &Wanted| {
                let block = self.block_of(slot, *wanted);
                self.gets(slot, *wanted, left) && (block == 0 || has_block(block))
            };
            let Some(wanted) = wants.all().find(gets) else { continue };
            let bytes = wanted.bytes();
            self.promise(slot, bytes);
            self.waiters.list[index].promised = bytes;
            let slots = u32::from(wanted.needs_slot());
            assert!(left.room >= slots, "no more slots are given than are free");
            let room = left.room - slots;
            left = Supply { taken: left.taken + bytes, room };
            self.clients[slot as usize].woken = true;
            self.waiters.first = self.waiters.first.filter(|first| first.slot != slot);
            order[woken] = index as u32;
            woken += 1;
            wake(slot);
        }
        for &index in &order[..woken] {
            let Waiter { slot, promised, .. } = self.waiters.list[index as usize];
            self.take_back(slot, promised);
        }
        self.waiters.order = order;
        self.choose_first();
        woken > 0
    }

    /// Lists the waiters that would each be given what it waits for, in the order of their ranks.
    fn list_candidates(&self, supply: Supply, order: &mut Vec<u32>) {
        order.clear();
        let count = self.waiters.list.len();
        order.extend((0..count).filter(|&at| self.would_get(at, supply)).map(|at| at as u32));
        let slot = |index: u32| self.waiters.list[index as usize].slot;
        order.sort_unstable_by(|&a, &b| self.rank(slot(a), slot(b)).then(a.cmp(&b)));
    }

    /// Whether a waiter that was not woken would be given something that it waits for, if the pool has such a block.
    pub(super) fn would_get(&self, index: usize, supply: Supply) -> bool {
        let Waiter { slot, wants, .. } = self.waiters.list[index];
        wants.all().any(|wanted| self.gets(slot, wanted, supply))
    }

    /// Whether a waiter that was not woken would be given this.
    fn gets(&self, slot: u32, wanted: Wanted, supply: Supply) -> bool {
        let Client { owner, held, stalled, woken, .. } = self.clients[slot as usize];
        let slots = || self.slots(owner.map(|(_, device)| device), supply.room);
        if woken || wanted.needs_slot() && slots() == 0 {
            return false;
        }
        match wanted {
            Wanted::Slot | Wanted::Chunk { .. } => true,
            Wanted::Growth { to, for_others: true, .. } if self.share(slot).fits_windows(to) => {
                true
            }
            Wanted::Growth { from, to, window, .. } => {
                let (share, more) = (self.share(slot), to.saturating_sub(from));
                // Windows grow when other payloads end.
                let within =
                    || window == 0 || owner.is_some_and(|(of, _)| window <= self.window(of));
                share.may_take(held.bytes, more, supply.taken, false)
                    || within() && share.may_keep((from, to), supply.taken)
            }
            Wanted::Block { bytes, reads } => {
                self.share(slot).may_take(held.bytes, bytes, supply.taken, reads && stalled)
            }
        }
    }

    /// Bytes of the block that the pool must have. A payload that waits for others needs none when they have gone, and may have its share before.
    fn block_of(&self, slot: u32, wanted: Wanted) -> usize {
        match wanted {
            Wanted::Growth { to, for_others: true, .. } if self.share(slot).fits_windows(to) => 0,
            Wanted::Growth { to, .. } => to,
            _ => wanted.bytes(),
        }
    }

    /// Counts what a woken waiter will take.
    fn promise(&mut self, slot: u32, block: usize) {
        let Held { bytes, request_bytes, requests } = self.clients[slot as usize].held;
        let (bytes, request_bytes) = (bytes + block, request_bytes + block);
        self.charge(slot, Held { bytes, request_bytes, requests: requests + 1 });
    }

    fn take_back(&mut self, slot: u32, block: usize) {
        let Held { bytes, request_bytes, requests } = self.clients[slot as usize].held;
        let is_counted = bytes >= block && request_bytes >= block && requests > 0;
        assert!(is_counted, "what is taken back was promised");
        let (bytes, request_bytes) = (bytes - block, request_bytes - block);
        self.charge(slot, Held { bytes, request_bytes, requests: requests - 1 });
    }

    /// Chooses the first waiter, unless there is one that could take a block.
    fn choose_first(&mut self) {
        if self.waiters.first.is_some_and(|first| self.can_be_first(&first)) {
            return;
        }
        // `min_by` returns the first of equal elements, which waited longest.
        let first = |waiter: &Waiter| {
            let slot = waiter.slot;
            let able = waiter.wants.all().map(|wanted| First { slot, wanted });
            able.into_iter().find(|first| self.can_be_first(first))
        };
        let able = self.waiters.list.iter().filter_map(first);
        self.waiters.first = able.min_by(|a, b| self.rank(a.slot, b.slot));
    }

    /// Whether room for a waiter's block would help it: it does not wait for another payload, its client takes its replies, and its device has less than it may.
    fn can_be_first(&self, waiter: &First) -> bool {
        let Client { owner, stalled, woken, .. } = self.clients[waiter.slot as usize];
        let bytes = waiter.wanted.bytes();
        if matches!(waiter.wanted, Wanted::Growth { for_others: true, .. }) {
            return false;
        }
        let takes = !stalled || !matches!(waiter.wanted, Wanted::Block { reads: true, .. });
        takes && !woken && bytes > 0 && !self.fills_device(owner, bytes)
    }

    /// `Less`: `a` is woken before `b`.
    fn rank(&self, a: u32, b: u32) -> Ordering {
        let stalled = |slot: u32| self.clients[slot as usize].stalled;
        stalled(a).cmp(&stalled(b)).then_with(|| self.cmp_share(a, b))
    }

    /// Orders connections by what their exports hold for their weights, then by what they hold.
    fn cmp_share(&self, a: u32, b: u32) -> Ordering {
        let held = |slot: u32| self.clients[slot as usize].held.bytes;
        self.cmp_exports(a, b).then_with(|| held(a).cmp(&held(b)))
    }

    fn cmp_exports(&self, a: u32, b: u32) -> Ordering {
        match [a, b].map(|slot| self.clients[slot as usize].owner) {
            [Some((a, _)), Some((b, _))] if a != b => self.bytes.cmp_share(a, b),
            _ => Ordering::Equal,
        }
    }

    /// The connection among `slots` whose unread replies give way to a waiter first; none if the waiter's export holds more for its
    /// weight than theirs.
    #[must_use]
    pub fn largest_holder(&self, slots: &[u32], waiter: u32) -> Option<u32> {
        let largest = slots.iter().copied().max_by(|&a, &b| self.cmp_share(a, b));
        largest.filter(|&largest| self.cmp_exports(largest, waiter) != Ordering::Less)
    }
}
