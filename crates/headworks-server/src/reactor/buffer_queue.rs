//! The line for buffers: who goes next when the pool is used up.
//!
//! The requests that have a buffer are all that a queue can choose from. So whoever fills the pool decides who is served, and
//! weights would be words: buffers are given by weight, too. Next is the export that *holds* the least for its weight, of it
//! the connection that holds the least, then who has waited longer. What is held counts, not what was given: a slow device's
//! clients hold their share and no more, and a fast one's need not wait for them to give it back as often.
//!
//! ```text
//!   no buffer --join--> waiting --call: holds least--> first --grows: one buffer--> waiting
//!                          `------ leave (nothing more to ask for, or gone) --------'
//! ```
//!
//! The first one stays the first until it has its buffer, or a large request would never see enough of the pool free.
//! Invariants: the first one waits; an account is what its connections hold; so the first gets its buffer when all has come
//! back, and whoever holds nothing becomes the first after those that hold nothing and came before it.

use std::cmp::Ordering;

use headworks_core::ExportId;

use crate::nbd::connection::BufferPolicy;

/// What an export holds.
#[derive(Clone, Copy, Debug)]
struct ExportUse {
    weight: u16,
    held: usize,
}

/// What a connection holds, and for which export.
#[derive(Clone, Copy, Debug, Default)]
struct BufferUse {
    export: Option<ExportId>,
    held: usize,
}

/// Those who wait for a buffer.
#[derive(Debug)]
pub struct BufferQueue {
    /// In the order in which they came.
    waiting: Vec<u32>,
    first: Option<u32>,
    /// By slot.
    uses: Vec<BufferUse>,
    exports: Vec<ExportUse>,
}

impl BufferQueue {
    /// Nobody waits, nobody holds anything.
    pub fn new(places: usize, weights: impl Iterator<Item = u16>) -> Self {
        Self {
            waiting: Vec::with_capacity(places),
            first: None,
            uses: vec![BufferUse::default(); places],
            exports: weights.map(|weight| ExportUse { weight, held: 0 }).collect(),
        }
    }

    /// An export has this weight from now on, also one that was not there before.
    pub fn set_weight(&mut self, export: ExportId, weight: u16) {
        let places = self.exports.len().max(usize::from(export.0) + 1);
        self.exports.resize(places, ExportUse { weight, held: 0 });
        self.exports[usize::from(export.0)].weight = weight;
    }

    /// What a connection holds from now on. The first one that holds more has had its turn.
    pub fn note(&mut self, slot: u32, export: Option<ExportId>, held: usize) {
        let usage = &mut self.uses[slot as usize];
        let before = std::mem::replace(&mut usage.held, held);
        // A connection that leaves forgets its export before it has given everything back.
        usage.export = export.or(usage.export);
        if let Some(export) = usage.export {
            let usage_of = &mut self.exports[usize::from(export.0)];
            usage_of.held = usage_of.held + held - before;
        }
        if held > before && self.first == Some(slot) {
            self.first = None;
        }
    }

    /// The place is empty.
    pub fn forget(&mut self, slot: u32) {
        self.leave(slot);
        self.note(slot, None, 0);
        self.uses[slot as usize] = BufferUse::default();
    }

    pub fn join(&mut self, slot: u32) {
        if !self.waiting.contains(&slot) {
            self.waiting.push(slot);
        }
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

    /// Who goes next.
    pub fn first(&self) -> Option<u32> {
        self.first
    }

    /// Makes somebody the first if nobody is; that one, then.
    pub fn call(&mut self) -> Option<u32> {
        if self.first.is_some() {
            return None;
        }
        // The earlier of equals, for `min_by` keeps the first that it saw.
        self.first = self.waiting.iter().copied().min_by(|&a, &b| self.rank(a, b));
        self.first
    }

    pub fn turn(&self, slot: u32) -> BufferPolicy {
        match self.waiting[..] {
            [] => BufferPolicy::Free,
            [only] if only == slot => BufferPolicy::Free,
            _ if self.first == Some(slot) => BufferPolicy::Once,
            _ => BufferPolicy::Wait,
        }
    }

    /// Less: `a` before `b`.
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

    /// Connections by export; each slot's number is its place in the list.
    fn line(weights: &[u16], exports: &[u16]) -> BufferQueue {
        let mut line = BufferQueue::new(exports.len(), weights.iter().copied());
        for (slot, &export) in (0..).zip(exports) {
            line.note(slot, Some(ExportId(export)), 0);
            line.join(slot);
        }
        line
    }

    /// Gives out `count` buffers; everybody always wants more.
    fn fill(line: &mut BufferQueue, count: usize) {
        for _ in 0..count {
            line.call();
            let first = line.first().unwrap();
            let BufferUse { export, held } = line.uses[first as usize];
            line.note(first, export, held + UNIT);
        }
    }

    fn held(line: &BufferQueue) -> Vec<usize> {
        line.uses.iter().map(|usage| usage.held / UNIT).collect()
    }

    #[test]
    fn buffers_go_by_weight_and_evenly_within_an_export() {
        let mut line = line(&[100, 200, 400], &[0, 0, 1, 1, 2, 2]);
        fill(&mut line, 70);
        assert_eq!(held(&line), [5, 5, 10, 10, 20, 20]);
    }

    #[test]
    fn what_comes_back_goes_to_those_who_hold_least_now() {
        let mut line = line(&[100, 100], &[0, 1]);
        fill(&mut line, 20);
        // The second one's device is quick; the first one's share stays its share.
        line.note(1, Some(ExportId(1)), 4 * UNIT);
        fill(&mut line, 6);
        assert_eq!(held(&line), [10, 10]);
        line.set_weight(ExportId(1), 300);
        fill(&mut line, 20);
        assert_eq!(held(&line), [10, 30]);
    }

    #[test]
    fn the_first_stays_the_first_until_it_has_its_buffer() {
        let mut line = line(&[100, 100], &[0, 1]);
        fill(&mut line, 4);
        assert_eq!(line.call(), Some(0));
        line.note(1, Some(ExportId(1)), 0);
        assert_eq!(
            (line.call(), line.turn(0), line.turn(1)),
            (None, BufferPolicy::Once, BufferPolicy::Wait)
        );
        line.note(0, Some(ExportId(0)), 3 * UNIT);
        assert_eq!((line.first(), line.call(), line.turn(0)), (None, Some(1), BufferPolicy::Wait));
    }

    #[test]
    fn who_leaves_is_not_waited_for_and_what_it_holds_counts_until_it_is_back() {
        let mut line = line(&[100], &[0, 0, 0]);
        fill(&mut line, 3);
        assert_eq!(line.call(), Some(0));
        line.leave(0);
        assert_eq!(line.call(), Some(1));
        line.note(1, None, 0);
        assert_eq!(line.exports[0].held, 2 * UNIT, "a closed connection has still an account");
        line.forget(1);
        line.forget(0);
        assert_eq!(
            (line.exports[0].held, line.call(), line.turn(2)),
            (UNIT, Some(2), BufferPolicy::Free)
        );
        line.forget(2);
        assert_eq!((line.exports[0].held, line.call()), (0, None));
        assert_eq!(line.turn(1), BufferPolicy::Free);
    }
}
