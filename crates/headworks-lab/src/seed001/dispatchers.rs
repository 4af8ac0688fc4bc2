//! Who takes requests out of the elevator and carries them to the device: one owner, or several contexts and a lock.
//!
//! ```text
//!   old way, each context:   wait for the lock | take up to `batch` (holding it) | held up | issue them one after the other
//!   ours:                    the owner takes as many as the device has room for, and issues them in that order
//! ```
//!
//! Between the lock and the device a context may be held up (an interrupt, another lock, a doorbell): a drawn delay for each
//! time that it held the lock. Meanwhile others take and issue, so the device sees another order than the elevator decided.
//! What has not been taken stays in the elevator and can be merged with. Both ways are counted by the same code: an
//! *inversion* is a request that reaches the device after one that left the elevator later; a *break* is one that does not
//! follow the one before it.
//!
//! Invariants: the lock is held by one context at a time; a context takes nothing before it has issued what it took.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_core::elevator::{Batch, Elevator, EndedRequest, MergeEdge};
use headworks_core::prng::Prng;
use headworks_core::request::{SlotId, Slots};
use headworks_core::{Instant, RequestId};

use crate::harness::Dispatcher;

/// Who dispatches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DispatchMode {
    /// The queue's owner.
    Owner,
    /// Several contexts that share a lock.
    Contexts {
        /// How many.
        contexts: usize,
        /// The most that one takes while it holds the lock.
        batch: usize,
        /// What taking one costs, while it holds the lock.
        hold_ns: u64,
        /// The mean of what lies between the lock and the first request at the device.
        delay_ns: u64,
        /// From each request to the next.
        issue_ns: u64,
    },
}

/// What both sides know: who was taken when, and when it reaches the device.
#[derive(Debug)]
struct DispatchState {
    way: DispatchMode,
    prng: Prng,
    /// When each context is back.
    free_at: Vec<Instant>,
    lock_free: Instant,
    /// By slot: which place in the order of leaving, and how late at the device.
    taken: Vec<(u64, u64)>,
    order: u64,
    /// One more than the latest in that order that the device has.
    furthest: u64,
    /// The place that follows the last one that the device got.
    next: u64,
    found: DispatchCounts,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DispatchCounts {
    /// Times that the elevator was entered to take something.
    pub holds: u64,
    /// Requests taken.
    pub taken: u64,
    /// Requests that the device got after one that left the elevator later.
    pub inversions: u64,
    /// Requests that the device got after another one than the one that left the elevator before them.
    pub breaks: u64,
    /// The most places that one came too late.
    pub late_max: u64,
}

/// A board that the elevator and the road to the device share.
#[derive(Clone, Debug)]
pub(super) struct SharedState(Arc<Mutex<DispatchState>>);

impl SharedState {
    pub fn new(way: DispatchMode, seed: u64) -> Self {
        let contexts = match way {
            DispatchMode::Owner => 0,
            DispatchMode::Contexts { contexts, .. } => contexts,
        };
        Self(Arc::new(Mutex::new(DispatchState {
            way,
            prng: Prng::new(seed).split("dispatchers"),
            free_at: vec![Instant(0); contexts],
            lock_free: Instant(0),
            taken: Vec::new(),
            order: 0,
            furthest: 0,
            next: 0,
            found: DispatchCounts::default(),
        })))
    }

    pub fn found(&self) -> DispatchCounts {
        self.lock().found
    }

    /// One thread runs the harness, so nobody waits here.
    fn lock(&self) -> MutexGuard<'_, DispatchState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DispatchState {
    /// A request leaves the elevator and reaches the device so much later.
    fn take(&mut self, id: SlotId, late_ns: u64) {
        let slot = id as usize;
        if self.taken.len() <= slot {
            self.taken.resize(slot + 1, (0, 0));
        }
        self.taken[slot] = (self.order, late_ns);
        self.order += 1;
        self.found.taken += 1;
    }

    /// A context that may take requests now; else when to look again.
    fn ready_context(&self, now: Instant) -> Result<usize, Instant> {
        let (context, &free_at) =
            self.free_at.iter().enumerate().min_by_key(|(_, at)| **at).expect("there are contexts");
        let at = free_at.max(self.lock_free);
        if at <= now { Ok(context) } else { Err(at) }
    }

    /// Exponential, so that now and then one is held up for long.
    fn draw(&mut self, mean_ns: u64) -> u64 {
        let part = (self.prng.next() >> 11) as f64 / (1u64 << 53) as f64;
        (-(1.0 - part).ln() * mean_ns as f64) as u64
    }
}

impl Dispatcher for SharedState {
    fn dispatched(&mut self, id: RequestId) -> u64 {
        self.lock().taken[id.slot as usize].1
    }

    fn issued(&mut self, id: RequestId) {
        let mut board = self.lock();
        let (place, _) = board.taken[id.slot as usize];
        board.found.breaks += u64::from(place != board.next);
        board.next = place + 1;
        if place < board.furthest {
            board.found.inversions += 1;
            board.found.late_max = board.found.late_max.max(board.furthest - place);
        }
        board.furthest = board.furthest.max(place + 1);
    }
}

/// An elevator that is entered in one of the two ways.
pub(super) struct CountedElevator {
    inner: Box<dyn Elevator>,
    shared: SharedState,
    /// The requests of one hold.
    hold: Batch,
    /// Requests in it.
    inside: usize,
    again_at: Option<Instant>,
}

impl CountedElevator {
    pub fn new(inner: Box<dyn Elevator>, shared: SharedState) -> Self {
        Self { inner, shared, hold: Batch::with_capacity(64), inside: 0, again_at: None }
    }

    /// The owner takes all that there is room for.
    fn take_all(&mut self, now: Instant, slots: &mut Slots, batch: &mut Batch) -> usize {
        let before = batch.ids().len();
        let count = self.inner.dispatch(now, slots, batch);
        self.inside -= count;
        let mut board = self.shared.lock();
        board.found.holds += u64::from(count > 0);
        batch.ids()[before..].iter().for_each(|&id| board.take(id, 0));
        count
    }
}

impl Elevator for CountedElevator {
    fn insert(&mut self, now: Instant, slots: &mut Slots, ids: &[SlotId]) {
        self.inside += ids.len();
        self.inner.insert(now, slots, ids);
    }

    fn dispatch(&mut self, now: Instant, slots: &mut Slots, batch: &mut Batch) -> usize {
        let way = self.shared.lock().way;
        let DispatchMode::Contexts { batch: most, hold_ns, delay_ns, issue_ns, .. } = way else {
            return self.take_all(now, slots, batch);
        };
        self.again_at = None;
        let mut count = 0;
        while batch.room() > 0 {
            let ready = self.shared.lock().ready_context(now);
            let context = match ready {
                Ok(context) => context,
                Err(at) => {
                    self.again_at = Some(at);
                    break;
                }
            };
            self.hold.reset(most.min(batch.room()));
            let taken = self.inner.dispatch(now, slots, &mut self.hold);
            if taken == 0 {
                break;
            }
            let mut board = self.shared.lock();
            board.found.holds += 1;
            board.lock_free = now.after(hold_ns * taken as u64);
            let late = board.draw(delay_ns);
            let mut at = board.lock_free.after(late);
            for &id in self.hold.ids() {
                at = at.after(issue_ns);
                board.take(id, at.since(now));
                batch.push(id);
            }
            board.free_at[context] = at;
            self.inside -= taken;
            count += taken;
        }
        count
    }

    fn needs_completions(&self) -> bool {
        self.inner.needs_completions()
    }

    fn on_complete(&mut self, now: Instant, done: &[EndedRequest]) {
        self.inner.on_complete(now, done);
    }

    fn on_merge(&mut self, slots: &mut Slots, kept: SlotId, gone: Option<SlotId>, edge: MergeEdge) {
        self.inside -= usize::from(gone.is_some());
        self.inner.on_merge(slots, kept, gone, edge);
    }

    fn next_timeout(&self) -> Option<Instant> {
        // An empty one is not dispatched from, so it would be told the same past time for ever.
        let again_at = self.again_at.filter(|_| self.inside > 0);
        [self.inner.next_timeout(), again_at].into_iter().flatten().min()
    }
}
