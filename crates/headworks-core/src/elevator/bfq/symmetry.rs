//! Whether the queues that compete are equals: then the device is divided well without waiting for any of them.
//!
//! Tenants and exports are equals if siblings have the same weight and the same number of queues, at both levels: then every
//! queue has the same share.
//!
//! Weights and numbers of queues by level are counted in [`ShareBalance`], and the rest here, so a question costs no loop over queues. A queue counts while it has requests waiting or in the device.
//! Weights of queues are those of their levels, because raised ones are left out.
//!
//! Invariants: each count is the number of queues of that kind that count; sums over levels and over kinds agree for unraised
//! synchronous queues; a tenant's queues are those of its exports.

use crate::gauge::Gauge32;
use crate::shares::balance::{ShareBalance, ShareLoad, TenantLoad};

/// The levels of an I/O priority.
const LEVELS: usize = 8;

/// What a queue was counted as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    /// Its level, unless it is raised.
    pub level: Option<u8>,
    /// Whether it is seeky, for a synchronous queue that is not raised and has had two requests.
    pub seeky: Option<bool>,
}

/// Counts of the queues that compete.
#[derive(Clone, Debug, Default)]
pub(super) struct Symmetry {
    /// Unraised queues by level.
    levels: [Gauge32; LEVELS],
    /// Unraised synchronous queues: sequential, seeky.
    kinds: [Gauge32; 2],
    balance: ShareBalance,
    /// Queues with requests waiting, or in service, by class.
    busy: [Gauge32; 3],
    raised_busy: Gauge32,
}

impl Symmetry {
    /// The counts of queues by export and tenant, to change their weights and places.
    pub fn balance(&mut self) -> &mut ShareBalance {
        &mut self.balance
    }

    /// Counts a queue, which was not counted, of an export and its tenant.
    pub fn add(
        &mut self,
        counted: Counted,
        export: &mut ShareLoad,
        tenant: Option<&mut TenantLoad>,
    ) {
        self.add_kind(counted);
        let queues = export.queues() + 1;
        self.balance.set_queues(export, tenant, queues);
    }

    /// Counts a queue no more.
    pub fn remove(
        &mut self,
        counted: Counted,
        export: &mut ShareLoad,
        tenant: Option<&mut TenantLoad>,
    ) {
        assert!(export.queues() > 0, "a queue that counts is removed");
        self.remove_kind(counted);
        let queues = export.queues() - 1;
        self.balance.set_queues(export, tenant, queues);
    }

    /// Counts a queue anew that has changed.
    pub fn recount(&mut self, from: Counted, to: Counted) {
        if from != to {
            self.remove_kind(from);
            self.add_kind(to);
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
        weights || classes || mixed || !self.balance.is_even()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EQUAL: Counted = Counted { level: Some(4), seeky: Some(false) };

    #[test]
    fn only_the_smallest_weight_needs_no_waiting() {
        let (mut symmetry, mut export) = (Symmetry::default(), ShareLoad::new(100));
        let of = |level| Counted { level: Some(level), seeky: None };
        symmetry.add(of(4), &mut export, None);
        assert!(!symmetry.differs(of(4), true));
        symmetry.add(of(7), &mut export, None);
        assert!(symmetry.differs(of(4), true) && !symmetry.differs(of(7), true));
        let raised = Counted { level: None, seeky: None };
        assert!(symmetry.differs(raised, true));
        symmetry.remove(of(7), &mut export, None);
        assert!(!symmetry.differs(raised, true));
    }

    #[test]
    fn classes_and_on_a_disk_patterns_differ() {
        let (mut symmetry, mut export) = (Symmetry::default(), ShareLoad::new(100));
        symmetry.add(EQUAL, &mut export, None);
        symmetry.add(Counted { seeky: Some(true), ..EQUAL }, &mut export, None);
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
