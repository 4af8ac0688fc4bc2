//! Whether the exports that compete for a device have equal shares of it: tenants and exports with the same weight and the same number of
//! queues as their siblings, at both levels. Then every queue has the same share.
//!
//! Everything is counted, so a question costs no loop. bfq counts its queues here, and the gate in front of a sorting elevator counts
//! each export with requests as one queue.
//!
//! Invariants: siblings without queues do not count; a tenant's queues are those of its exports.

use crate::gauge::Gauge32;

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
pub(crate) struct ShareLoad {
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

    /// Returns the number of its queues that count.
    pub fn queues(&self) -> u32 {
        self.queues
    }

    fn key(&self) -> u64 {
        u64::from(self.weight) << 24 | u64::from(self.queues)
    }
}

/// A tenant's load, and those of its exports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TenantLoad {
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

/// Counts of queues by export and tenant.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShareBalance {
    /// Weight and number of queues of the tenants, and exports without one, that have any.
    roots: Equality,
    /// Tenants whose exports differ in weight or number of queues.
    uneven: Gauge32,
}

impl ShareBalance {
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

    /// Takes the queues of an export out of its tenant; returns their number for [`ShareBalance::join`].
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

    /// Sets the number of queues of an export that count.
    pub fn set_queues(
        &mut self,
        export: &mut ShareLoad,
        tenant: Option<&mut TenantLoad>,
        queues: u32,
    ) {
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

    /// Returns true if every queue that counts has the same share.
    pub fn is_even(&self) -> bool {
        self.roots.holds() && self.uneven.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;

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
        let mut balance = ShareBalance::default();
        let mut exports: Vec<ShareLoad> = (0..5).map(|_| ShareLoad::new(100)).collect();
        let mut tenants: Vec<TenantLoad> = (0..2).map(|_| TenantLoad::new(100)).collect();
        let mut of = [2; 5];
        let (mut equal, mut unequal) = (0, 0);
        for _ in 0..50_000 {
            let n = prng.below(5) as usize;
            let weight = [100, 100, 200][prng.below(3) as usize];
            let (export, tenant) = (&mut exports[n], tenants.get_mut(of[n]));
            match prng.below(8) {
                0 => balance.set_weight(export, tenant, weight),
                1 => balance.set_tenant_weight(&mut tenants[n % 2], weight),
                2 => {
                    let queues = balance.quit(export, tenant);
                    of[n] = prng.below(3) as usize;
                    balance.join(&mut exports[n], tenants.get_mut(of[n]), queues);
                }
                3 | 4 if export.queues < 2 => {
                    let queues = export.queues + 1;
                    balance.set_queues(export, tenant, queues);
                }
                _ if export.queues > 0 => {
                    let queues = export.queues - 1;
                    balance.set_queues(export, tenant, queues);
                }
                _ => {}
            }
            let same = are_equal(&exports, &tenants, &of);
            assert_eq!(balance.is_even(), same);
            if same { equal += 1 } else { unequal += 1 }
        }
        assert!(equal > 1000 && unequal > 1000, "both were drawn: {equal} {unequal}");
    }
}
