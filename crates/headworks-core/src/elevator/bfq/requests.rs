//! The waiting requests of one queue: by position and by age, and the one that goes next.
//!
//! On a rotating device the oldest one goes first once in each slot if it has expired; otherwise the nearest to the last one, see
//! `position`. A queue of one request keeps no index: most requests of clients with one request at a time never enter it.
//!
//! On other devices distance costs nothing: requests go in order of arrival, and there is no index. The next piece of a bio that was
//! begun goes first: behind all that wait, the bios of a queue would be served in turns and all be answered at its end.
//!
//! Invariants: `count` is the number of requests in the FIFO; with `indexed` all of them are in the index, without it there is at
//! most one, or the device does not rotate; `next` is one of them, or `NIL` if there is none; it is the first of the FIFO if the
//! device does not rotate.

use super::position::Position;
use super::settings::Settings;
use crate::elevator::sort_index::{SortIndex, SortKey};
use crate::list::List;
use crate::request::{QueueLink, Request, SlotId, Slots};
use crate::slab::NIL;
use crate::time::Instant;

/// The waiting requests of a queue.
#[derive(Debug)]
pub(super) struct QueueRequests {
    index: SortIndex,
    indexed: bool,
    fifo: List<QueueLink>,
    next: SlotId,
    count: u32,
}

impl QueueRequests {
    pub fn new() -> Self {
        Self { index: SortIndex::new(), indexed: false, fifo: List::new(), next: NIL, count: 0 }
    }

    pub fn count(&self) -> u32 {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the request that goes next; `NIL` if there is none.
    pub fn next(&self) -> SlotId {
        self.next
    }

    /// Begins a slot: its first request is the oldest if that has expired.
    pub fn begin_slot(&mut self, now: Instant, slots: &Slots) {
        if let Some(oldest) = self.fifo.front()
            && oldest != self.next
            && now >= slots[oldest].deadline
        {
            self.next = oldest;
        }
    }

    /// Adds a request that expires at `deadline`; `head` is where the device was sent last. Returns whether the next one changed.
    pub fn insert(
        &mut self,
        settings: &Settings,
        slots: &mut Slots,
        id: SlotId,
        deadline: Instant,
        head: Position,
    ) -> bool {
        slots[id].deadline = deadline;
        if settings.rotational && self.count > 0 {
            self.make_index(slots);
            self.index.insert(slots, id);
        }
        self.count += 1;
        if !settings.rotational && slots[id].is(Request::CONTINUES) {
            self.fifo.push_front(slots, id);
            self.next = id;
            return true;
        }
        self.fifo.push_back(slots, id);
        self.prefer(settings, slots, id, head)
    }

    /// Puts the only request into the index: another one comes.
    fn make_index(&mut self, slots: &mut Slots) {
        if !std::mem::replace(&mut self.indexed, true) {
            debug_assert!(self.count == 1, "without an index there is one request");
            let only = self.fifo.front().expect("it is in the FIFO");
            self.index.insert(slots, only);
        }
    }

    /// Makes a request the next one if it is nearer to `head`; returns whether it became that.
    fn prefer(&mut self, settings: &Settings, slots: &Slots, id: SlotId, head: Position) -> bool {
        let place = |id: SlotId| Position::of(&slots[id]);
        let nearer = || settings.rotational && head.prefers(settings, place(id), place(self.next));
        let better = self.next == NIL || nearer();
        if better {
            self.next = id;
        }
        better
    }

    /// Removes a request and finds the next one; returns whether that changed.
    pub fn remove(&mut self, settings: &Settings, slots: &mut Slots, id: SlotId) -> bool {
        assert!(self.count > 0, "a request of this queue is removed");
        let was_next = self.next == id;
        if was_next && settings.rotational {
            self.next = self.nearest(settings, slots, id);
        }
        self.unlink(slots, id);
        if !settings.rotational {
            self.next = self.fifo.front().unwrap_or(NIL);
        }
        debug_assert!((self.next == NIL) == (self.count == 0), "one of those left goes next");
        was_next
    }

    fn unlink(&mut self, slots: &mut Slots, id: SlotId) {
        self.fifo.remove(slots, id);
        self.count -= 1;
        if self.indexed {
            self.index.remove(slots, id);
            self.indexed = self.count > 0;
        }
    }

    /// Returns the request nearest to `id`, which is served; `NIL` if there is no other.
    fn nearest(&self, settings: &Settings, slots: &Slots, id: SlotId) -> SlotId {
        if self.count < 2 {
            return NIL;
        }
        let after = match self.index.after(slots, id) {
            // Past the last one the sweep begins anew.
            NIL => self.index.at_or_after(slots, SortKey::default()),
            after => after,
        };
        let before = self.index.before(slots, id);
        let place = |id: SlotId| Position::of(&slots[id]);
        match (after, before) {
            (after, NIL) => after,
            (after, before) if after == id || after == before => before,
            (after, before) => {
                let head = Position::after(&slots[id]);
                if head.prefers(settings, place(after), place(before)) { after } else { before }
            }
        }
    }

    /// Takes a request whose start has moved (front merge).
    pub fn resort(&mut self, settings: &Settings, slots: &mut Slots, id: SlotId, head: Position) {
        if self.indexed {
            self.index.remove(slots, id);
            self.index.insert(slots, id);
        }
        self.prefer(settings, slots, id, head);
    }

    /// Removes `gone`, which was merged into `kept` of this queue; `kept` takes the earlier deadline and place in the FIFO.
    pub fn join(&mut self, settings: &Settings, slots: &mut Slots, kept: SlotId, gone: SlotId) {
        assert!(kept != gone, "a request is not merged into itself");
        if slots[gone].deadline < slots[kept].deadline {
            self.fifo.remove(slots, kept);
            slots[kept].deadline = slots[gone].deadline;
            self.fifo.insert_before(slots, kept, gone);
        }
        let was_next = self.next == gone;
        self.remove(settings, slots, gone);
        if was_next && settings.rotational {
            self.next = kept;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::QueueOptions;
    use crate::prng::Prng;
    use crate::time::MS;

    fn settings() -> Settings {
        Settings::new(&QueueOptions { rotational: true, ..QueueOptions::default() })
    }

    fn add(requests: &mut QueueRequests, slots: &mut Slots, id: u32, sector: u64, deadline: u64) {
        slots[id].offset = sector * 512;
        slots[id].len = 512;
        requests.insert(&settings(), slots, id, Instant(deadline), Position::default());
    }

    /// P17: what has expired is the first of the next slot, once.
    #[test]
    fn expired_request_is_first_of_the_slot() {
        let mut slots = Slots::touched(4);
        let mut requests = QueueRequests::new();
        add(&mut requests, &mut slots, 0, 900, MS);
        add(&mut requests, &mut slots, 1, 10, 2 * MS);
        add(&mut requests, &mut slots, 2, 20, 3 * MS);
        assert_eq!(requests.next(), 1);
        requests.begin_slot(Instant(MS - 1), &slots);
        assert_eq!(requests.next(), 1);
        requests.begin_slot(Instant(4 * MS), &slots);
        assert_eq!(requests.next(), 0);
        requests.remove(&settings(), &mut slots, 0);
        assert_eq!(requests.next(), 2, "then the nearest, though the other one has expired, too");
    }

    #[test]
    fn next_piece_of_a_bio_goes_first_without_rotation() {
        let settings = Settings::new(&QueueOptions::default());
        let mut slots = Slots::touched(4);
        let mut requests = QueueRequests::new();
        let add = |slots: &mut Slots, requests: &mut QueueRequests, id: u32, marks: u16| {
            (slots[id].len, slots[id].marks) = (512, marks);
            requests.insert(&settings, slots, id, Instant(MS), Position::default())
        };
        assert!(add(&mut slots, &mut requests, 0, 0));
        assert!(!add(&mut slots, &mut requests, 1, 0));
        assert!(add(&mut slots, &mut requests, 2, Request::CONTINUES));
        for id in [2, 0, 1] {
            assert_eq!(requests.next(), id);
            requests.remove(&settings, &mut slots, id);
        }
    }

    #[test]
    fn every_request_leaves_once_in_any_order_of_calls() {
        run_any_order(&settings());
    }

    #[test]
    fn requests_go_in_order_of_arrival_without_rotation() {
        run_any_order(&Settings::new(&QueueOptions::default()));
    }

    fn run_any_order(settings: &Settings) {
        let mut prng = Prng::new(1);
        let mut slots = Slots::touched(32);
        let mut requests = QueueRequests::new();
        let mut held = std::collections::BTreeSet::new();
        for now in 0..50_000 {
            let id = prng.below(32) as u32;
            if prng.below(4) == 0 {
                requests.begin_slot(Instant(now), &slots);
            }
            if !held.contains(&id) && prng.below(3) > 0 {
                (slots[id].offset, slots[id].len) = (prng.below(1 << 20) * 512, 512);
                slots[id].marks = [0, 0, Request::CONTINUES][prng.below(3) as usize];
                let (deadline, head) = (Instant(now + prng.below(50)), Position::default());
                requests.insert(settings, &mut slots, id, deadline, head);
                held.insert(id);
            } else if prng.below(3) == 0 && held.len() > 1 && held.contains(&id) {
                let other = *held.iter().find(|&&other| other != id).unwrap();
                requests.join(settings, &mut slots, other, id);
                held.remove(&id);
            } else if prng.below(3) == 0 && held.contains(&id) {
                slots[id].offset = slots[id].offset.saturating_sub(512);
                requests.resort(settings, &mut slots, id, Position::default());
            } else {
                let id =
                    if prng.below(2) == 0 && held.contains(&id) { id } else { requests.next() };
                if id != NIL {
                    requests.remove(settings, &mut slots, id);
                    assert!(held.remove(&id));
                }
            }
            assert_eq!(requests.count() as usize, held.len());
            assert!(requests.next() == NIL && held.is_empty() || held.contains(&requests.next()));
            let oldest = requests.fifo.front().unwrap_or(NIL);
            assert!(settings.rotational || requests.next() == oldest);
        }
    }
}
