//! Dispatching from the elevator to the device: by one owner, or by several contexts and a lock.
//!
//! ```text
//!   baseline, each context:  wait for the lock | take up to `batch` (holding it) | delay | issue them one after the other
//!   ours:                    the owner takes as many as the device has room for, and issues them in that order
//! ```
//!
//! Between the lock and the device a context may be delayed (an interrupt, another lock, a
//! doorbell): a random delay for each lock acquisition. Meanwhile others take and issue requests,
//! so the device gets them in another order. Requests that are not taken stay in the elevator and
//! can be merged. Both modes are counted by the same code: an *inversion* is a request that reaches
//! the device after one that left the elevator later; a *break* is one that does not follow its
//! predecessor.
//!
//! Invariants: one context holds the lock at a time; a context takes nothing before it has issued
//! what it took.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_core::elevator::{Batch, Elevator, EndedRequest, MergeEdge};
use headworks_core::prng::Prng;
use headworks_core::request::{SlotId, Slots};
use headworks_core::shares::ShareChange;
use headworks_core::{Instant, RequestId};

use crate::harness::Dispatcher;

/// The method of dispatching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DispatchMode {
    /// The owner of the queue dispatches.
    Owner,
    /// Several contexts dispatch and share a lock.
    Contexts {
        /// Number of dispatching contexts.
        contexts: usize,
        /// Maximum requests taken under one lock acquisition.
        batch: usize,
        /// Time to take a request, with the lock held.
        hold_ns: u64,
        /// Mean delay between the lock and the first request at the device.
        delay_ns: u64,
        /// Time between two requests of a batch.
        issue_ns: u64,
    },
}

/// State shared by the elevator and the dispatcher: departures and arrival times.
#[derive(Debug)]
struct DispatchState {
    way: DispatchMode,
    prng: Prng,
    /// When each context is free again.
    free_at: Vec<Instant>,
    lock_free: Instant,
    /// By slot: departure number, and delay until the device.
    taken: Vec<(u64, u64)>,
    order: u64,
    /// One more than the latest departure number that the device has.
    furthest: u64,
    /// The departure number expected next at the device.
    next: u64,
    found: DispatchCounts,
}

/// Counts of departures and arrivals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DispatchCounts {
    /// Number of times the elevator was entered to dispatch.
    pub holds: u64,
    /// Number of requests dispatched.
    pub taken: u64,
    /// Requests that arrived after one with a later departure.
    pub inversions: u64,
    /// Requests that arrived without their predecessor directly before them.
    pub breaks: u64,
    /// Maximum number of positions that a request arrived late.
    pub late_max: u64,
}

/// State shared by the elevator and the way to the device.
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

    /// Never contended, because the harness has one thread.
    fn lock(&self) -> MutexGuard<'_, DispatchState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DispatchState {
    /// Records a departure that reaches the device after `late_ns`.
    fn take(&mut self, id: SlotId, late_ns: u64) {
        let slot = id as usize;
        if self.taken.len() <= slot {
            self.taken.resize(slot + 1, (0, 0));
        }
        self.taken[slot] = (self.order, late_ns);
        self.order += 1;
        self.found.taken += 1;
    }

    /// A free context; otherwise the time when the next one is free.
    fn ready_context(&self, now: Instant) -> Result<usize, Instant> {
        let (context, &free_at) = self
            .free_at
            .iter()
            .enumerate()
            .min_by_key(|(_, at)| **at)
            .expect("there is at least one context");
        let at = free_at.max(self.lock_free);
        if at <= now { Ok(context) } else { Err(at) }
    }

    /// An exponential delay, so that some are long.
    fn draw(&mut self, mean_ns: u64) -> u64 {
        // 1 to 2^53, out of 2^53.
        let above = (1 << 53) - (self.prng.next() >> 11);
        (minus_ln(above) * mean_ns as f64) as u64
    }
}

/// `-ln(n / 2^53)` for `n` of 1 to 2^53, from additions, multiplications and divisions alone: a C
/// library's logarithm may differ in the last digit from machine to machine, and hashes with it.
fn minus_ln(n: u64) -> f64 {
    assert!((1..=1 << 53).contains(&n), "a part of 2^53");
    let exponent = n.ilog2();
    let mantissa = n as f64 / (1u64 << exponent) as f64;
    // ln(m) = 2 atanh(z) with z = (m - 1) / (m + 1), which is at most 1/3.
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let (mut power, mut sum) = (z, 0.0);
    for odd in (1..36).step_by(2) {
        sum += power / f64::from(odd);
        power *= z * z;
    }
    f64::from(53 - exponent) * std::f64::consts::LN_2 - 2.0 * sum
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

/// An elevator that counts departures in one of the two modes.
pub(super) struct CountedElevator {
    inner: Box<dyn Elevator>,
    shared: SharedState,
    /// Requests taken under one lock acquisition.
    hold: Batch,
    /// Number of requests in the elevator.
    inside: usize,
    again_at: Option<Instant>,
}

impl CountedElevator {
    pub fn new(inner: Box<dyn Elevator>, shared: SharedState) -> Self {
        Self { inner, shared, hold: Batch::with_capacity(64), inside: 0, again_at: None }
    }

    /// The owner takes all that the device has room for.
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
    fn owns_shares(&self) -> bool {
        self.inner.owns_shares()
    }

    fn limits_device(&self) -> bool {
        self.inner.limits_device()
    }

    fn limit_device(&mut self, limit: u64, command_cost: u32) {
        self.inner.limit_device(limit, command_cost);
    }

    fn take_device_load(&mut self) -> (u64, bool) {
        self.inner.take_device_load()
    }

    fn change_shares(&mut self, change: ShareChange) {
        self.inner.change_shares(change);
    }

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

    fn on_complete(&mut self, now: Instant, slots: &Slots, done: &[EndedRequest]) {
        self.inner.on_complete(now, slots, done);
    }

    fn remove(&mut self, slots: &mut Slots, id: SlotId) {
        self.inside -= 1;
        self.inner.remove(slots, id);
    }

    fn on_merge(&mut self, slots: &mut Slots, kept: SlotId, gone: Option<SlotId>, edge: MergeEdge) {
        self.inside -= usize::from(gone.is_some());
        self.inner.on_merge(slots, kept, gone, edge);
    }

    fn next_timeout(&self) -> Option<Instant> {
        // An empty elevator is not dispatched from, so a past time would be returned forever.
        let again_at = self.again_at.filter(|_| self.inside > 0);
        [self.inner.next_timeout(), again_at].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithm_equals_that_of_the_library() {
        let mut prng = Prng::new(1);
        let edges = [1, 2, 3, (1 << 53) - 1, 1 << 53, 1 << 52, (1 << 52) - 1];
        let drawn = std::iter::repeat_with(|| 1 + prng.below(1 << 53)).take(10_000);
        for n in edges.into_iter().chain(drawn) {
            let expected = -(n as f64 / (1u64 << 53) as f64).ln();
            assert!((minus_ln(n) - expected).abs() <= 1e-12 * expected.max(1.0), "{n}");
        }
    }

    #[test]
    fn drawn_delays_have_their_mean() {
        let mode =
            DispatchMode::Contexts { contexts: 1, batch: 1, hold_ns: 0, delay_ns: 0, issue_ns: 0 };
        let shared = SharedState::new(mode, 1);
        let sum: u64 = (0..100_000).map(|_| shared.lock().draw(2000)).sum();
        assert!((195_000_000..205_000_000).contains(&sum), "{sum}");
    }
}
