//! Comparison of the elevator with a naive model: the same operations must give the same order.
//!
//! The model is written from the rules. It searches one list in deadline order and caches nothing: no index, no `next`, no
//! lanes.

use super::*;
use crate::bio::{IoClass, Ioprio, Op, VolumeId};
use crate::prng::Prng;
use crate::slab::NIL;
use crate::time::{MS, SEC};

#[derive(Clone, Debug)]
struct WaitingRequest {
    id: SlotId,
    level: usize,
    write: bool,
    position: (u16, u64),
    /// Order of insertion among equal positions.
    sorted: u64,
    inserted: u64,
}

struct Naive {
    options: DeadlineOptions,
    /// Waiting requests; of each level and direction in deadline order.
    waiting: Vec<WaitingRequest>,
    queued: [i64; 3],
    latest: [[(u16, u64); 2]; 3],
    batching: u32,
    starved: u32,
    write: bool,
    sorted: u64,
}

impl Naive {
    fn new(options: DeadlineOptions) -> Self {
        Self {
            options,
            waiting: Vec::new(),
            queued: [0; 3],
            latest: [[(0, 0); 2]; 3],
            batching: u32::MAX,
            starved: 0,
            write: true,
            sorted: 0,
        }
    }

    fn count(&mut self) -> u64 {
        self.sorted += 1;
        self.sorted
    }

    fn insert(&mut self, now: Instant, slots: &Slots, id: SlotId) {
        let request = &slots[id];
        let level = request.ioprio.class().rank();
        let (write, position) = (request.op != Op::Read, (request.volume.0, request.offset));
        self.queued[level] += 1;
        let sorted = self.count();
        self.waiting.push(WaitingRequest { id, level, write, position, sorted, inserted: now.0 });
    }

    fn at(&self, id: SlotId) -> usize {
        self.waiting.iter().position(|entry| entry.id == id).expect("the request waits")
    }

    /// The start of `kept` has moved.
    fn resort(&mut self, slots: &Slots, kept: SlotId) {
        let (at, sorted) = (self.at(kept), self.count());
        (self.waiting[at].position, self.waiting[at].sorted) =
            ((slots[kept].volume.0, slots[kept].offset), sorted);
    }

    /// `gone` was merged into `kept`.
    fn join(&mut self, kept: SlotId, gone: SlotId) {
        let (at, other) = (self.at(kept), self.at(gone));
        let older = self.waiting[other].inserted < self.waiting[at].inserted;
        let gone = self.waiting[other].clone();
        if older {
            let kept = WaitingRequest { inserted: gone.inserted, ..self.waiting[at].clone() };
            self.waiting[other] = kept;
            self.waiting.remove(at);
        } else {
            self.waiting.remove(other);
        }
    }

    fn expire(&self, write: bool) -> u64 {
        let options = &self.options;
        MS * u64::from(if write { options.write_expire_ms } else { options.read_expire_ms })
    }

    fn oldest(&self, level: usize, write: bool) -> Option<&WaitingRequest> {
        self.waiting.iter().find(|entry| entry.level == level && entry.write == write)
    }

    fn next(&self, level: usize, write: bool) -> Option<&WaitingRequest> {
        let lane = self.waiting.iter().filter(|entry| entry.level == level && entry.write == write);
        let ahead = lane.filter(|entry| entry.position >= self.latest[level][usize::from(write)]);
        ahead.min_by_key(|entry| (entry.position, entry.sorted))
    }

    fn first(&self, level: usize, write: bool) -> Option<&WaitingRequest> {
        let lane = self.waiting.iter().filter(|entry| entry.level == level && entry.write == write);
        lane.min_by_key(|entry| (entry.position, entry.sorted))
    }

    /// Returns the request, the size of the batch with it, and the batches that passed writes.
    fn pick_in(&self, now: u64, level: usize) -> Option<(WaitingRequest, u32, u32)> {
        if let Some(next) = self.next(level, self.write)
            && self.batching < self.options.fifo_batch
        {
            return Some((next.clone(), self.batching + 1, self.starved));
        }
        let (reads, writes) = (self.oldest(level, false), self.oldest(level, true));
        let may_starve = self.starved < self.options.writes_starved;
        // With `writes_starved` 0 an expired read goes after a batch of writes.
        let due = |read: &WaitingRequest| self.write && read.inserted + self.expire(false) <= now;
        let turn = self.options.writes_starved == 0 && reads.is_some_and(due);
        let write = reads.is_none() || writes.is_some() && !may_starve && !turn;
        let oldest = if write { writes? } else { reads? };
        let starved = match (write, writes) {
            (true, _) => 0,
            (false, None) => self.starved,
            (false, Some(_)) => self.starved + 1,
        };
        let expired = oldest.inserted + self.expire(write) <= now;
        let sweep = || self.next(level, write).or_else(|| self.first(level, write));
        let first = if expired { Some(oldest) } else { sweep() };
        Some((first?.clone(), 1, starved))
    }

    fn pick_aged(&self, now: u64, level: usize) -> Option<(WaitingRequest, u32, u32)> {
        let aging = MS * u64::from(self.options.prio_aging_expire_ms);
        let heads = [self.oldest(level, false), self.oldest(level, true)];
        let oldest = heads.into_iter().flatten().min_by_key(|entry| entry.inserted)?;
        if oldest.inserted + aging > now {
            return None;
        }
        let picked = self.pick_in(now, level)?;
        if picked.0.inserted + aging <= now {
            return Some(picked);
        }
        Some((oldest.clone(), 1, if oldest.write { 0 } else { self.starved }))
    }

    fn pick(&self, now: u64) -> Option<(WaitingRequest, u32, u32)> {
        let levels: Vec<usize> = (0..3).filter(|&level| self.queued[level] > 0).collect();
        if levels.len() > 1
            && let Some(aged) = (1..3).find_map(|level| self.pick_aged(now, level))
        {
            return Some(aged);
        }
        self.pick_in(now, *levels.first()?)
    }

    fn dispatch(&mut self, now: Instant, room: usize) -> Vec<SlotId> {
        let mut order = Vec::new();
        while order.len() < room
            && let Some((entry, batching, starved)) = self.pick(now.0)
        {
            self.waiting.remove(self.at(entry.id));
            (self.write, self.batching, self.starved) = (entry.write, batching, starved);
            self.latest[entry.level][usize::from(entry.write)] = entry.position;
            order.push(entry.id);
        }
        order
    }
}

struct Comparison {
    prng: Prng,
    now: Instant,
    slots: Slots,
    real: DeadlineElevator,
    naive: Naive,
    free: Vec<SlotId>,
    /// Dispatched requests.
    out: Vec<SlotId>,
    batch: Batch,
    /// Number of operations of each kind, to show what the test covers.
    seen: [u32; 6],
}

const PLACES: u64 = 30;

impl Comparison {
    fn new(seed: u64) -> Self {
        let mut prng = Prng::new(seed);
        let mut pick = |of: [u32; 4]| of[prng.below(4) as usize];
        let options = DeadlineOptions {
            read_expire_ms: pick([0, 3, 10, 500]),
            write_expire_ms: pick([0, 5, 30, 5000]),
            writes_starved: pick([0, 1, 2, 5]),
            fifo_batch: pick([1, 2, 4, 16]),
            prio_aging_expire_ms: pick([0, 10, 40, 10_000]),
            ..DeadlineOptions::default()
        };
        Self {
            prng,
            now: Instant(SEC),
            slots: Slots::touched(48),
            real: DeadlineElevator::new(&options),
            naive: Naive::new(options),
            free: (0..48).rev().collect(),
            out: Vec::new(),
            batch: Batch::with_capacity(64),
            seen: [0; 6],
        }
    }

    fn any(&mut self, of: usize) -> usize {
        self.prng.below(of as u64) as usize
    }

    fn insert(&mut self) {
        let mut ids = Vec::new();
        for _ in 0..self.prng.between(1, 8) {
            let Some(id) = self.free.pop() else { break };
            let class = IoClass::ALL[[0, 1, 1, 2][self.any(4)]];
            let op = [Op::Read, Op::Read, Op::Write, Op::Discard, Op::WriteZeroes][self.any(5)];
            self.slots[id] = Request {
                offset: self.prng.below(PLACES),
                len: 1,
                volume: VolumeId(self.prng.below(2) as u16),
                ioprio: Ioprio::new(class, 4),
                op,
                state: RequestState::Queued,
                ..Request::default()
            };
            self.naive.insert(self.now, &self.slots, id);
            ids.push(id);
        }
        self.real.insert(self.now, &mut self.slots, &ids);
        self.seen[0] += 1;
    }

    fn dispatch(&mut self) {
        let room = self.any(10);
        self.batch.reset(room);
        let count = self.real.dispatch(self.now, &mut self.slots, &mut self.batch);
        let order = self.naive.dispatch(self.now, room);
        assert_eq!(self.batch.ids(), order);
        assert_eq!(count, order.len());
        if count < room {
            self.check_timeout();
        }
        for &id in &order {
            self.slots[id].state = RequestState::InFlight;
        }
        self.out.extend(order);
    }

    /// Checks that the timer is set to the time when the first request has aged.
    fn check_timeout(&mut self) {
        let Some(at) = self.real.next_timeout() else {
            return assert!(self.naive.waiting.is_empty(), "a request waits and no timer is set");
        };
        assert!(at > self.now && !self.naive.waiting.is_empty());
        assert!(self.naive.pick(at.0 - 1).is_none() && self.naive.pick(at.0).is_some());
        self.seen[1] += 1;
    }

    fn complete(&mut self) {
        let mut done = Vec::new();
        for _ in 0..self.any(6) {
            if self.out.is_empty() {
                break;
            }
            let at = self.any(self.out.len());
            let id = self.out.swap_remove(at);
            done.push(self.end(id));
        }
        self.real.on_complete(self.now, &self.slots, &done);
    }

    fn end(&mut self, id: SlotId) -> EndedRequest {
        let Request { ioprio, op, .. } = self.slots[id];
        self.naive.queued[ioprio.class().rank()] -= 1;
        self.free.push(id);
        EndedRequest::of(&Request { ioprio, op, ..Request::default() })
    }

    /// Merges a bio into a waiting request.
    fn grow(&mut self) {
        if self.naive.waiting.is_empty() {
            return;
        }
        let at = self.any(self.naive.waiting.len());
        let id = self.naive.waiting[at].id;
        let edge = if self.any(2) == 0 { MergeEdge::Front } else { MergeEdge::Back };
        self.slots[id].len += 1;
        if edge == MergeEdge::Front && self.slots[id].offset > 0 {
            self.slots[id].offset -= 1;
        }
        self.real.on_merge(&mut self.slots, id, None, edge);
        if edge == MergeEdge::Front {
            self.naive.resort(&self.slots, id);
        }
        self.seen[2] += 1;
    }

    /// Merges a waiting request into another one, or into one that a busy device refused.
    fn join(&mut self) {
        if self.naive.waiting.is_empty() {
            return;
        }
        let at = self.any(self.naive.waiting.len());
        let gone = self.naive.waiting[at].clone();
        let mergeable = |other: &&WaitingRequest| {
            let same = (other.level, other.write, other.position.0)
                == (gone.level, gone.write, gone.position.0);
            same && other.id != gone.id
        };
        let others: Vec<WaitingRequest> =
            self.naive.waiting.iter().filter(mergeable).cloned().collect();
        if self.any(4) == 0 {
            let Some(&kept) = self.out.first() else { return };
            (self.slots[kept].state, self.slots[kept].marks) =
                (RequestState::Queued, Request::REQUEUED);
            self.real.on_merge(&mut self.slots, kept, Some(gone.id), MergeEdge::Back);
            self.naive.waiting.remove(at);
            self.seen[3] += 1;
        } else if !others.is_empty() {
            let kept = others[self.any(others.len())].clone();
            let front = gone.position < kept.position;
            let edge = if front { MergeEdge::Front } else { MergeEdge::Back };
            self.slots[kept.id].offset = if front { gone.position.1 } else { kept.position.1 };
            self.real.on_merge(&mut self.slots, kept.id, Some(gone.id), edge);
            self.naive.join(kept.id, gone.id);
            if front {
                self.naive.resort(&self.slots, kept.id);
            }
            self.seen[4 + usize::from(front)] += 1;
        } else {
            return;
        }
        let done = self.end(gone.id);
        self.real.on_complete(self.now, &self.slots, &[done]);
    }

    fn check(&self) {
        assert_eq!(self.real.waiting.get() as usize, self.naive.waiting.len());
        for (level, &queued) in self.real.picker.levels.iter().zip(&self.naive.queued) {
            assert_eq!(i64::from(level.queued.get()), queued);
        }
        for (at, entry) in self.naive.waiting.iter().enumerate() {
            let lane = &self.real.picker.levels[entry.level].lanes[usize::from(entry.write)];
            let earlier =
                |other: &&WaitingRequest| (other.level, other.write) == (entry.level, entry.write);
            let before = self.naive.waiting[..at].iter().rev().find(earlier);
            assert_eq!(lane.older(&self.slots, entry.id), before.map(|entry| entry.id));
            assert_eq!(lane.oldest() == entry.id, before.is_none());
            let next = self.naive.next(entry.level, entry.write);
            assert_eq!(lane.next(), next.map_or(NIL, |entry| entry.id));
        }
    }

    fn drain(&mut self) {
        while !self.naive.waiting.is_empty() || !self.out.is_empty() {
            self.dispatch();
            let out = std::mem::take(&mut self.out);
            let done: Vec<EndedRequest> = out.into_iter().map(|id| self.end(id)).collect();
            self.real.on_complete(self.now, &self.slots, &done);
            self.check();
        }
        assert!(self.real.picker.levels.iter().all(|level| level.queued.is_zero()));
    }
}

#[test]
fn elevator_matches_naive_model() {
    let mut seen = [0; 6];
    for seed in 0..200 {
        let mut both = Comparison::new(seed);
        for _ in 0..300 {
            both.now = both.now.after(both.prng.below(2 * MS));
            match both.any(10) {
                0..=3 => both.insert(),
                4..=5 => both.dispatch(),
                6 => both.complete(),
                7 => both.grow(),
                _ => both.join(),
            }
            both.check();
        }
        both.complete();
        both.drain();
        seen.iter_mut().zip(both.seen).for_each(|(all, one)| *all += one);
    }
    assert!(seen.iter().all(|&count| count > 500), "inserts, timeouts, merges: {seen:?}");
}
