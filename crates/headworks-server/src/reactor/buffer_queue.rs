//! The queue of connections that wait for a buffer when the pool is used up.
//!
//! A device queue can only choose among requests that have a buffer, so shares of the pool bound shares of the device:
//! buffers are granted by weight. The next one goes to the export that holds the fewest bytes for its weight, within it
//! to the connection that holds the fewest, then to the longest waiter. Bytes held count, not bytes granted: clients of
//! a slow device keep their share, and clients of a fast device do not wait for it.
//!
//! ```text
//!   no buffer --join--> waiting --call: holds least--> first --gets one buffer--> waiting
//!                          `------ leave (needs none any more, or closed) ------'
//! ```
//!
//! The first waiter stays first until it has its buffer; otherwise a large request might never find enough of the pool
//! free. A connection whose client leaves its replies unread is called after all others, and loses the first place to
//! them; so is, before these, a connection whose device has as much as it may (`device_use`). When unread replies have to give way,
//! the rank is the reverse: the export that holds most for its weight comes first, in it the connection that holds most.
//!
//! Invariants: `first` is in `waiting`; an export's `held` is the sum over its connections. So the first waiter gets
//! its buffer at the latest when all buffers have been returned.

use std::cmp::Ordering;

use headworks_core::ExportId;

use crate::nbd::connection::BufferPolicy;

/// Bytes that an export's connections hold.
#[derive(Clone, Copy, Debug)]
struct ExportUse {
    weight: u16,
    held: usize,
}

/// Bytes that one connection holds, and its export.
#[derive(Clone, Copy, Debug, Default)]
struct BufferUse {
    export: Option<ExportId>,
    held: usize,
    /// The client leaves its replies unread.
    stalled: bool,
}

/// Connections that wait for a buffer.
#[derive(Debug)]
pub struct BufferQueue {
    /// Slots in the order of arrival.
    waiting: Vec<u32>,
    first: Option<u32>,
    /// Bytes held by each slot.
    uses: Vec<BufferUse>,
    exports: Vec<ExportUse>,
}

impl BufferQueue {
    /// An empty queue for slots below `places`.
    pub fn new(places: usize, weights: impl Iterator<Item = u16>) -> Self {
        Self {
            waiting: Vec::with_capacity(places),
            first: None,
            uses: vec![BufferUse::default(); places],
            exports: weights.map(|weight| ExportUse { weight, held: 0 }).collect(),
        }
    }

    /// Sets the weight of an export, which may be new.
    pub fn set_weight(&mut self, export: ExportId, weight: u16) {
        let places = self.exports.len().max(usize::from(export.0) + 1);
        self.exports.resize(places, ExportUse { weight, held: 0 });
        self.exports[usize::from(export.0)].weight = weight;
    }

    /// Records how many bytes a connection holds. The first waiter loses its place when it holds more than before.
    pub fn note(&mut self, slot: u32, export: Option<ExportId>, held: usize) {
        let usage = &mut self.uses[slot as usize];
        let before = std::mem::replace(&mut usage.held, held);
        // A closing connection forgets its export before it has returned all buffers.
        usage.export = export.or(usage.export);
        if let Some(export) = usage.export {
            let usage_of = &mut self.exports[usize::from(export.0)];
            assert!(usage_of.held >= before, "an export holds what its connections hold");
            usage_of.held = usage_of.held - before + held;
        }
        if held > before && self.first == Some(slot) {
            self.first = None;
        }
    }

    /// Forgets the connection of a slot that is freed.
    pub fn forget(&mut self, slot: u32) {
        self.leave(slot);
        self.note(slot, None, 0);
        self.uses[slot as usize] = BufferUse::default();
    }

    /// Records whether a connection's client leaves its replies unread.
    pub fn set_stalled(&mut self, slot: u32, stalled: bool) {
        self.uses[slot as usize].stalled = stalled;
    }

    /// Adds a waiter; returns whether it is new.
    pub fn join(&mut self, slot: u32) -> bool {
        let is_new = !self.waiting.contains(&slot);
        if is_new {
            self.waiting.push(slot);
        }
        is_new
    }

    /// Bytes that the connections of an export hold.
    pub fn held_by(&self, export: ExportId) -> usize {
        self.exports.get(usize::from(export.0)).map_or(0, |usage| usage.held)
    }

    /// Whether a connection waits.
    pub fn contains(&self, slot: u32) -> bool {
        self.waiting.contains(&slot)
    }

    /// Number of connections that wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn leave(&mut self, slot: u32) {
        if !self.waiting.is_empty() {
            self.waiting.retain(|&other| other != slot);
            self.first = self.first.filter(|&first| first != slot);
        }
    }

    pub fn clear(&mut self) {
        self.waiting.clear();
        self.first = None;
    }

    /// The waiter that gets the next buffer.
    pub fn first(&self) -> Option<u32> {
        self.first
    }

    /// Whether the client of the first waiter leaves its replies unread.
    pub fn is_first_stalled(&self) -> bool {
        self.first.is_some_and(|first| self.uses[first as usize].stalled)
    }

    /// Chooses the first waiter if there is none; returns it if it is new. A waiter that is `at_limit` (its device has as much as it
    /// may) is called after others and loses the first place to them; so is one whose client leaves replies unread, after those.
    pub fn call(&mut self, at_limit: impl Fn(u32) -> bool) -> Option<u32> {
        if self.waiting.is_empty() {
            return None;
        }
        let hindered = |slot: u32| (self.uses[slot as usize].stalled, at_limit(slot));
        let of_first = self.first.map(hindered);
        if of_first == Some((false, false)) {
            return None;
        }
        // `min_by` returns the first of equal elements, which waited longest.
        let best = self
            .waiting
            .iter()
            .copied()
            .min_by(|&a, &b| hindered(a).cmp(&hindered(b)).then_with(|| self.rank(a, b)));
        if of_first.is_some_and(|first| best.is_none_or(|best| hindered(best) >= first)) {
            return None;
        }
        self.first = best;
        best
    }

    /// The connection among `slots` that gives way first.
    pub fn largest_holder(&self, slots: &[u32]) -> Option<u32> {
        slots.iter().copied().max_by(|&a, &b| self.rank(a, b))
    }

    pub fn policy(&self, slot: u32) -> BufferPolicy {
        match self.waiting[..] {
            [] => BufferPolicy::Free,
            [only] if only == slot => BufferPolicy::Free,
            _ if self.first == Some(slot) => BufferPolicy::Once,
            _ => BufferPolicy::Wait,
        }
    }

    /// `Less`: `a` goes before `b`.
    fn rank(&self, a: u32, b: u32) -> Ordering {
        let [a, b] = [a, b].map(|slot| self.uses[slot as usize]);
        let usage_of = |usage: BufferUse| match usage.export {
            Some(export) => self.exports[usize::from(export.0)],
            None => ExportUse { weight: 1, held: 0 },
        };
        let (ours, theirs) = (usage_of(a), usage_of(b));
        let scaled = |held: usize, weight: u16| held as u128 * u128::from(weight);
        scaled(ours.held, theirs.weight)
            .cmp(&scaled(theirs.held, ours.weight))
            .then(a.held.cmp(&b.held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: usize = 1 << 20;

    /// Connections by export; the slot is the index.
    fn line(weights: &[u16], exports: &[u16]) -> BufferQueue {
        let mut line = BufferQueue::new(exports.len(), weights.iter().copied());
        for (slot, &export) in (0..).zip(exports) {
            line.note(slot, Some(ExportId(export)), 0);
            line.join(slot);
        }
        line
    }

    /// Grants `count` buffers while every connection waits for more.
    fn fill(line: &mut BufferQueue, count: usize) {
        for _ in 0..count {
            line.call(|_| false);
            let first = line.first().unwrap();
            let BufferUse { export, held, .. } = line.uses[first as usize];
            line.note(first, export, held + UNIT);
        }
    }

    fn held(line: &BufferQueue) -> Vec<usize> {
        line.uses.iter().map(|usage| usage.held / UNIT).collect()
    }

    #[test]
    fn buffers_are_shared_by_weight_and_evenly_within_export() {
        let mut line = line(&[100, 200, 400], &[0, 0, 1, 1, 2, 2]);
        fill(&mut line, 70);
        assert_eq!(held(&line), [5, 5, 10, 10, 20, 20]);
    }

    #[test]
    fn returned_buffer_goes_to_smallest_holder() {
        let mut line = line(&[100, 100], &[0, 1]);
        fill(&mut line, 20);
        // The second device is fast; the first export keeps its share.
        line.note(1, Some(ExportId(1)), 4 * UNIT);
        fill(&mut line, 6);
        assert_eq!(held(&line), [10, 10]);
        line.set_weight(ExportId(1), 300);
        fill(&mut line, 20);
        assert_eq!(held(&line), [10, 30]);
    }

    #[test]
    fn first_waiter_stays_first_until_served() {
        let mut line = line(&[100, 100], &[0, 1]);
        fill(&mut line, 4);
        assert_eq!(line.call(|_| false), Some(0));
        line.note(1, Some(ExportId(1)), 0);
        assert_eq!(
            (line.call(|_| false), line.policy(0), line.policy(1)),
            (None, BufferPolicy::Once, BufferPolicy::Wait)
        );
        line.note(0, Some(ExportId(0)), 3 * UNIT);
        assert_eq!(
            (line.first(), line.call(|_| false), line.policy(0)),
            (None, Some(1), BufferPolicy::Wait)
        );
    }

    #[test]
    fn stalled_waiter_loses_first_place() {
        let mut line = line(&[100], &[0, 0, 0]);
        line.set_stalled(0, true);
        assert_eq!(line.call(|_| false), Some(1), "the first that is not stalled");
        line.set_stalled(1, true);
        assert_eq!((line.call(|_| false), line.first()), (Some(2), Some(2)));
        line.set_stalled(2, true);
        assert_eq!((line.call(|_| false), line.first()), (None, Some(2)), "all are stalled");
        line.set_stalled(0, false);
        assert_eq!((line.call(|_| false), line.policy(2)), (Some(0), BufferPolicy::Wait));
    }

    #[test]
    fn waiter_of_a_device_at_its_limit_loses_first_place() {
        let mut line = line(&[100], &[0, 0, 0]);
        assert_eq!(line.call(|_| false), Some(0));
        assert_eq!(line.call(|slot| slot < 2), Some(2));
        assert_eq!((line.call(|slot| slot < 2), line.first()), (None, Some(2)));
        line.leave(2);
        assert_eq!(line.call(|slot| slot < 2), Some(0), "only such ones wait");
        assert_eq!(line.call(|slot| slot == 0), Some(1));
        line.leave(1);
        line.join(2);
        line.set_stalled(2, true);
        assert_eq!(
            line.call(|_| true),
            Some(0),
            "one that takes its replies goes before one that does not"
        );
    }

    #[test]
    fn largest_holder_for_its_weight_gives_way_first() {
        let mut line = line(&[100, 400], &[0, 0, 1, 1]);
        for (slot, held) in [(0, 3), (1, 4), (2, 10), (3, 9)] {
            line.note(slot, Some(ExportId((slot / 2) as u16)), held * UNIT);
        }
        assert_eq!(line.largest_holder(&[0, 1, 2, 3]), Some(1));
        assert_eq!(line.largest_holder(&[0, 2, 3]), Some(0), "7 for 100 is more than 19 for 400");
        assert_eq!((line.largest_holder(&[2, 3]), line.largest_holder(&[])), (Some(2), None));
    }

    #[test]
    fn closed_connection_counts_until_buffers_return() {
        let mut line = line(&[100], &[0, 0, 0]);
        fill(&mut line, 3);
        assert_eq!(line.call(|_| false), Some(0));
        line.leave(0);
        assert_eq!(line.call(|_| false), Some(1));
        line.note(1, None, 0);
        assert_eq!(line.exports[0].held, 2 * UNIT, "a closed connection has still an account");
        line.forget(1);
        line.forget(0);
        assert_eq!(
            (line.exports[0].held, line.call(|_| false), line.policy(2)),
            (UNIT, Some(2), BufferPolicy::Free)
        );
        line.forget(2);
        assert_eq!((line.exports[0].held, line.call(|_| false)), (0, None));
        assert_eq!(line.policy(1), BufferPolicy::Free);
    }
}
