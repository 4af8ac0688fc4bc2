//! Whether the queues that compete are equals: then the device is divided well without waiting for any of them.
//!
//! Tenants and exports are equals if siblings have the same weight and the same number of queues, at both levels: then every
//! queue has the same share.
//!
//! Everything is counted, so a question costs no loop over queues. A queue counts while it has requests waiting or in the device.
//! Weights of queues are those of their levels, because raised ones are left out.
//!
//! Invariants: each count is the number of queues of that kind that count; sums over levels and over kinds agree for unraised
//! synchronous queues; a tenant's queues are those of its exports.

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

/// The queues below an export or a tenant that count, and its weight among its siblings.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ShareLoad {
    weight: u32,
    queues: u32,
}

impl ShareLoad {
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

/// A tenant's load, and those of its exports.
#[derive(Clone, Copy, Debug)]
pub(super) struct TenantLoad {
    own: ShareLoad,
    exports: Equality,
}

impl TenantLoad {
    pub fn new(weight: u32) -> Self {
        Self { own: ShareLoad::new(weight), exports: Equality::default() }
    }

    pub fn weight(&self) -> u32 {
        self.own.weight
    }
}

impl Equality {
    /// Changes the load of one of the siblings that are compared; those without queues do not compete.
    fn change(&mut self, load: &mut ShareLoad, change: impl FnOnce(&mut ShareLoad)) {
        if load.queues > 0 {
            self.remove(load.key());
        }
        change(load);
        if load.queues > 0 {
            self.add(load.key());
        }
    }
}

/// Counts of the queues that compete.
#[derive(Clone, Debug, Default)]
pub(super) struct Symmetry {
    /// Unraised queues by level.
    levels: [Gauge32; LEVELS],
    /// Unraised synchronous queues: sequential, seeky.
    kinds: [Gauge32; 2],
    /// Weight and number of queues of the tenants, and exports without one, that have any.
    roots: Equality,
    /// Tenants whose exports differ in weight or number of queues.
    uneven: Gauge32,
    /// Queues with requests waiting, or in service, by class.
    busy: [Gauge32; 3],
    raised_busy: Gauge32,
}

impl Symmetry {
    /// Counts a queue, which was not counted, of an export and its tenant.
    pub fn add(
        &mut self,
        counted: Counted,
        export: &mut ShareLoad,
        tenant: Option<&mut TenantLoad>,
    ) {
        self.add_kind(counted);
        let queues = export.queues + 1;
        self.set_queues(export, tenant, queues);
    }

    /// Counts a queue no more.
    pub fn remove(
        &mut self,
        counted: Counted,
        export: &mut ShareLoad,
        tenant: Option<&mut TenantLoad>,
    ) {
        assert!(export.queues > 0, "a queue that counts is removed");
        self.remove_kind(counted);
        let queues = export.queues - 1;
        self.set_queues(export, tenant, queues);
    }

    /// Counts a queue anew that has changed.
    pub fn recount(&mut self, from: Counted, to: Counted) {
        if from != to {
            self.remove_kind(from);
            self.add_kind(to);
        }
    }

    /// Sets an export's weight.
    pub fn set_weight(
        &mut self,
        export: &mut ShareLoad,
        tenant: Option<&mut TenantLoad>,
        weight: u32,
    ) {
        let change = |export: &mut ShareLoad| export.weight = weight;
        match tenant {
            None => self.roots.change(export, change),
            Some(tenant) => self.change_among(tenant, export, change),
        }
    }

    /// Sets a tenant's weight.
    pub fn set_tenant_weight(&mut self, tenant: &mut TenantLoad, weight: u32) {
        self.roots.change(&mut tenant.own, |own| own.weight = weight);
    }

    /// Takes the queues of an export out of its tenant; returns their number for [`Symmetry::join`].
    pub fn quit(&mut self, export: &mut ShareLoad, tenant: Option<&mut TenantLoad>) -> u32 {
        let queues = export.queues;
        self.set_queues(export, tenant, 0);
        queues
    }

    /// Takes the queues of an export, which has none, into a tenant.
    pub fn join(&mut self, export: &mut ShareLoad, tenant: Option<&mut TenantLoad>, queues: u32) {
        debug_assert!(export.queues == 0, "an export is in one tenant");
        self.set_queues(export, tenant, queues);
    }

    fn set_queues(&mut self, export: &mut ShareLoad, tenant: Option<&mut TenantLoad>, queues: u32) {
        let set = |export: &mut ShareLoad| export.queues = queues;
        let Some(tenant) = tenant else {
            return self.roots.change(export, set);
        };
        debug_assert!(tenant.own.queues >= export.queues, "a tenant has the queues of its exports");
        let all = tenant.own.queues - export.queues + queues;
        self.change_among(tenant, export, set);
        self.roots.change(&mut tenant.own, |own| own.queues = all);
    }

    /// Changes the load of an export of a tenant.
    fn change_among(
        &mut self,
        tenant: &mut TenantLoad,
        export: &mut ShareLoad,
        change: impl FnOnce(&mut ShareLoad),
    ) {
        let before = tenant.exports.holds();
        tenant.exports.change(export, change);
        match (before, tenant.exports.holds()) {
            (true, false) => self.uneven.add(1),
            (false, true) => self.uneven.sub(1),
            _ => {}
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
        weights || classes || mixed || !self.roots.holds() || !self.uneven.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;

    const EQUAL: Counted = Counted { level: Some(4), seeky: Some(false) };

    /// Tenants with the numbers of their exports; all that are not in one are in the last.
    fn are_equal(exports: &[ShareLoad], tenants: &[TenantLoad], of: &[usize]) -> bool {
        let same = |keys: Vec<u64>| keys.windows(2).all(|pair| pair[0] == pair[1]);
        let active = |n: &usize| exports[*n].queues > 0;
        let members = |tenant: usize| (0..of.len()).filter(move |&n| of[n] == tenant);
        let mut roots: Vec<u64> =
            members(tenants.len()).filter(active).map(|n| exports[n].key()).collect();
        let mut even = true;
        for (number, tenant) in tenants.iter().enumerate() {
            let queues: u32 = members(number).map(|n| exports[n].queues).sum();
            assert_eq!(tenant.own.queues, queues, "a tenant has the queues of its exports");
            if queues > 0 {
                roots.push(tenant.own.key());
            }
            even &= same(members(number).filter(active).map(|n| exports[n].key()).collect());
        }
        even && same(roots)
    }

    #[test]
    fn equality_of_tenants_and_exports_matches_comparison() {
        let mut prng = Prng::new(1);
        let mut symmetry = Symmetry::default();
        let mut exports: Vec<ShareLoad> = (0..5).map(|_| ShareLoad::new(100)).collect();
        let mut tenants: Vec<TenantLoad> = (0..2).map(|_| TenantLoad::new(100)).collect();
        let mut of = [2; 5];
        let (mut equal, mut unequal) = (0, 0);
        for _ in 0..50_000 {
            let n = prng.below(5) as usize;
            let weight = [100, 100, 200][prng.below(3) as usize];
            let (export, tenant) = (&mut exports[n], tenants.get_mut(of[n]));
            match prng.below(8) {
                0 => symmetry.set_weight(export, tenant, weight),
                1 => symmetry.set_tenant_weight(&mut tenants[n % 2], weight),
                2 => {
                    let queues = symmetry.quit(export, tenant);
                    of[n] = prng.below(3) as usize;
                    symmetry.join(&mut exports[n], tenants.get_mut(of[n]), queues);
                }
                3 | 4 if export.queues < 2 => symmetry.add(EQUAL, export, tenant),
                _ if export.queues > 0 => symmetry.remove(EQUAL, export, tenant),
                _ => {}
            }
            let same = are_equal(&exports, &tenants, &of);
            assert_eq!(symmetry.differs(EQUAL, false), !same);
            if same { equal += 1 } else { unequal += 1 }
        }
        assert!(equal > 1000 && unequal > 1000, "both were drawn: {equal} {unequal}");
    }

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
