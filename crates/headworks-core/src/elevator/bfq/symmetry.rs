//! Whether the queues that compete are equals: then the device is divided well without waiting for any of them.
//!
//! Everything is counted, so a question costs no loop over queues. A queue counts while it has requests waiting or in the device.
//! Weights of queues are those of their levels, because raised ones are left out.
//!
//! Invariants: each count is the number of queues of that kind that count; sums over levels and over kinds agree for unraised
//! synchronous queues.

use crate::gauge::Gauge32;

/// The levels of an I/O priority.
const LEVELS: usize = 8;

/// What a queue was counted as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    /// Its level, unless it is raised.
    pub level: Option<u8>,
    /// Whether it is seeky, for a synchronous queue that is not raised.
    pub seeky: Option<bool>,
}

/// Whether all of a set of numbers are equal, without the numbers: by Cauchy's inequality, count * squares == sum * sum.
#[derive(Clone, Copy, Debug, Default)]
struct Equality {
    count: u64,
    sum: u64,
    squares: u128,
}

impl Equality {
    fn add(&mut self, number: u64) {
        debug_assert!(number < 1 << 40, "the squares of 2^24 numbers fit");
        self.count += 1;
        self.sum += number;
        self.squares += u128::from(number).pow(2);
    }

    fn remove(&mut self, number: u64) {
        assert!(self.count > 0 && self.sum >= number, "a number that was added is removed");
        self.count -= 1;
        self.sum -= number;
        self.squares -= u128::from(number).pow(2);
    }

    fn holds(&self) -> bool {
        self.count < 2 || u128::from(self.count) * self.squares == u128::from(self.sum).pow(2)
    }
}

/// An export's queues that count.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExportLoad {
    weight: u32,
    queues: u32,
}

impl ExportLoad {
    pub fn new(weight: u32) -> Self {
        Self { weight, queues: 0 }
    }

    pub fn weight(&self) -> u32 {
        self.weight
    }

    fn key(&self) -> u64 {
        u64::from(self.weight) << 24 | u64::from(self.queues)
    }
}

/// Counts of the queues that compete.
#[derive(Clone, Debug, Default)]
pub(super) struct Symmetry {
    /// Unraised queues by level.
    levels: [Gauge32; LEVELS],
    /// Unraised synchronous queues: sequential, seeky.
    kinds: [Gauge32; 2],
    /// Weight and number of queues of the exports that have any.
    exports: Equality,
    /// Queues with requests waiting, or in service, by class.
    busy: [Gauge32; 3],
    raised_busy: Gauge32,
}

impl Symmetry {
    /// Counts a queue, which was not counted, of an export.
    pub fn add(&mut self, counted: Counted, export: &mut ExportLoad) {
        self.add_kind(counted);
        self.change(export, |export| export.queues += 1);
    }

    /// Counts a queue no more.
    pub fn remove(&mut self, counted: Counted, export: &mut ExportLoad) {
        assert!(export.queues > 0, "a queue that counts is removed");
        self.remove_kind(counted);
        self.change(export, |export| export.queues -= 1);
    }

    /// Counts a queue anew that has changed.
    pub fn recount(&mut self, from: Counted, to: Counted) {
        if from != to {
            self.remove_kind(from);
            self.add_kind(to);
        }
    }

    /// Sets an export's weight.
    pub fn set_weight(&mut self, export: &mut ExportLoad, weight: u32) {
        self.change(export, |export| export.weight = weight);
    }

    fn change(&mut self, export: &mut ExportLoad, change: impl FnOnce(&mut ExportLoad)) {
        if export.queues > 0 {
            self.exports.remove(export.key());
        }
        change(export);
        if export.queues > 0 {
            self.exports.add(export.key());
        }
    }

    fn add_kind(&mut self, counted: Counted) {
        if let Some(level) = counted.level {
            self.levels[usize::from(level)].add(1);
        }
        if let Some(seeky) = counted.seeky {
            self.kinds[usize::from(seeky)].add(1);
        }
    }

    fn remove_kind(&mut self, counted: Counted) {
        if let Some(level) = counted.level {
            self.levels[usize::from(level)].sub(1);
        }
        if let Some(seeky) = counted.seeky {
            self.kinds[usize::from(seeky)].sub(1);
        }
    }

    /// Counts a queue of a class that becomes busy.
    pub fn begin_busy(&mut self, class: u8, raised: bool) {
        self.busy[usize::from(class)].add(1);
        self.raised_busy.add(raised.into());
    }

    /// Counts a queue of a class that is busy no more.
    pub fn end_busy(&mut self, class: u8, raised: bool) {
        self.busy[usize::from(class)].sub(1);
        self.raised_busy.sub(raised.into());
    }

    /// Takes the fact that a busy queue was raised, or is raised no more.
    pub fn set_raised(&mut self, raised: bool) {
        if raised {
            self.raised_busy.add(1);
        } else {
            self.raised_busy.sub(1);
        }
        debug_assert!(self.raised_busy.get() <= self.busy(), "a raised busy queue is busy");
    }

    /// Returns the number of busy queues.
    pub fn busy(&self) -> u32 {
        self.busy.iter().map(|class| class.get()).sum()
    }

    /// Returns the number of busy queues that are raised.
    pub fn raised_busy(&self) -> u32 {
        self.raised_busy.get()
    }

    /// Returns whether a queue counted so has to be waited for to keep its share, because others differ from it. Among several
    /// weights the smallest needs no waiting. `rotational`: seeks make sequential and seeky queues differ.
    pub fn differs(&self, counted: Counted, rotational: bool) -> bool {
        let mut present = (0..LEVELS).filter(|&level| !self.levels[level].is_zero());
        let (first, last) = (present.next(), present.next_back());
        // A higher level has a smaller weight.
        let smallest = last.or(first).map(|level| level as u8);
        let weights = last.is_some() && (counted.level.is_none() || counted.level != smallest);
        let classes = self.busy.iter().filter(|class| !class.is_zero()).count() > 1;
        let mixed = rotational && self.kinds.iter().all(|kind| !kind.is_zero());
        weights || classes || mixed || !self.exports.holds()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;

    const EQUAL: Counted = Counted { level: Some(4), seeky: Some(false) };

    #[test]
    fn equality_of_exports_matches_comparison() {
        let mut prng = Prng::new(1);
        let mut symmetry = Symmetry::default();
        let mut exports: Vec<ExportLoad> = (0..5).map(|_| ExportLoad::new(100)).collect();
        let (mut equal, mut unequal) = (0, 0);
        for _ in 0..20_000 {
            let export = &mut exports[prng.below(5) as usize];
            match prng.below(5) {
                0 => symmetry.set_weight(export, [100, 100, 200][prng.below(3) as usize]),
                1 | 2 if export.queues < 3 => symmetry.add(EQUAL, export),
                _ if export.queues > 0 => symmetry.remove(EQUAL, export),
                _ => {}
            }
            let mut keys = exports.iter().filter(|e| e.queues > 0).map(|e| (e.weight, e.queues));
            let first = keys.next();
            let same = keys.all(|key| Some(key) == first);
            assert_eq!(symmetry.differs(EQUAL, false), !same);
            if same { equal += 1 } else { unequal += 1 }
        }
        assert!(equal > 1000 && unequal > 1000, "both were drawn: {equal} {unequal}");
    }

    #[test]
    fn only_the_smallest_weight_needs_no_waiting() {
        let (mut symmetry, mut export) = (Symmetry::default(), ExportLoad::new(100));
        let of = |level| Counted { level: Some(level), seeky: None };
        symmetry.add(of(4), &mut export);
        assert!(!symmetry.differs(of(4), true));
        symmetry.add(of(7), &mut export);
        assert!(symmetry.differs(of(4), true) && !symmetry.differs(of(7), true));
        let raised = Counted { level: None, seeky: None };
        assert!(symmetry.differs(raised, true));
        symmetry.remove(of(7), &mut export);
        assert!(!symmetry.differs(raised, true));
    }

    #[test]
    fn classes_and_on_a_disk_patterns_differ() {
        let (mut symmetry, mut export) = (Symmetry::default(), ExportLoad::new(100));
        symmetry.add(EQUAL, &mut export);
        symmetry.add(Counted { seeky: Some(true), ..EQUAL }, &mut export);
        assert!(symmetry.differs(EQUAL, true) && !symmetry.differs(EQUAL, false));
        symmetry.recount(Counted { seeky: Some(true), ..EQUAL }, EQUAL);
        assert!(!symmetry.differs(EQUAL, true));
        symmetry.begin_busy(1, false);
        symmetry.begin_busy(1, true);
        assert!(!symmetry.differs(EQUAL, true));
        symmetry.begin_busy(0, false);
        assert!(symmetry.differs(EQUAL, true));
        assert_eq!((symmetry.busy(), symmetry.raised_busy()), (3, 1));
    }
}
