//! Domains: the parties that share a device's write bandwidth by weight. A tenant is one, and so is an export without a tenant.
//!
//! ```text
//!   part of D  = bandwidth * w_D / sum of w over the domains, each counted by the part of its share that it takes
//!   pace in D  = part of D / writers in D
//! ```
//!
//! Parts follow from the weights, from the top down, and not from what was written: a domain that returns has its part at once. A
//! domain whose writers take less than its share counts only as what it takes, so the others divide the rest by weight. The flusher
//! writes the oldest data first, so what is written has the parts of what was dirtied.
//!
//! What a writer owes outlives its connection, at its domain: the next new writer of the domain begins with its clock. Else one that connects
//! anew whenever it is to pause, or has used its credit, would take what others leave (Linux: `dirty_throttle_leaks`). Those that left pay at the
//! same time, as they did while they paused: a domain keeps the latest clock and the number of writers that left one.
//!
//! Invariants: a device's `weighted` is the sum of weight times load, at most [`WEIGHT_ONE`], over its domains; the loads of a
//! device add up to the weights of its writers.

use crate::bio::{ExportId, TenantId};
use crate::options::{ExportConfig, TENANTS_MAX, TenantConfig};
use crate::time::{Instant, SEC};

use super::writers::WEIGHT_ONE;

/// A domain's index: the number of its tenant, or that of its export after all tenants.
pub type DomainId = u16;

/// The domains of a shard, with their weights.
#[derive(Clone, Debug, Default)]
pub struct Domains {
    /// By export.
    tenants: Vec<TenantId>,
    /// By domain; the last is that of exports that are not configured.
    weights: Vec<u16>,
}

impl Domains {
    /// Takes tenants and weights from the configuration.
    #[must_use]
    pub fn new(exports: &[ExportConfig], tenants: &[TenantConfig]) -> Self {
        assert!(TENANTS_MAX + exports.len() < usize::from(u16::MAX), "a domain has a number");
        let mut weights: Vec<u16> = tenants.iter().map(|tenant| tenant.weight).collect();
        weights.resize(TENANTS_MAX, TenantConfig::default().weight);
        weights.extend(exports.iter().map(|export| export.weight));
        weights.push(ExportConfig::default().weight);
        Self { tenants: exports.iter().map(|export| export.tenant).collect(), weights }
    }

    /// Returns the number of domains; 0 where writers are not told apart.
    #[must_use]
    pub fn len(&self) -> usize {
        self.weights.len()
    }

    /// Returns the domain of an export.
    #[must_use]
    pub fn of(&self, export: ExportId) -> DomainId {
        let index = usize::from(export.0).min(self.tenants.len());
        match self.tenants.get(index) {
            Some(tenant) if usize::from(tenant.0) < TENANTS_MAX => tenant.0,
            _ => (TENANTS_MAX + index) as DomainId,
        }
    }

    /// Returns a domain's weight.
    #[must_use]
    pub fn weight(&self, domain: DomainId) -> u64 {
        self.weights.get(usize::from(domain)).copied().unwrap_or(1).into()
    }

    /// Moves an export to a tenant; writers follow with their next block.
    pub fn set_tenant(&mut self, export: ExportId, tenant: TenantId) {
        if let Some(known) = self.tenants.get_mut(usize::from(export.0)) {
            *known = tenant;
        }
    }

    /// Sets the weight of a domain.
    fn set_weight(&mut self, domain: DomainId, weight: u16) {
        assert!(weight > 0, "a weight of 0 would stop the writers");
        if let Some(known) = self.weights.get_mut(usize::from(domain)) {
            *known = weight.max(1);
        }
    }

    /// Sets the weight of an export, which counts while it has no tenant.
    pub fn set_export_weight(&mut self, export: ExportId, weight: u16) -> Option<DomainId> {
        let is_known = usize::from(export.0) < self.tenants.len();
        let domain = (TENANTS_MAX + usize::from(export.0)) as DomainId;
        is_known.then(|| self.set_weight(domain, weight)).map(|()| domain)
    }

    /// Sets the weight of a tenant.
    pub fn set_tenant_weight(&mut self, tenant: TenantId, weight: u16) -> Option<DomainId> {
        let is_known = usize::from(tenant.0) < TENANTS_MAX && !self.weights.is_empty();
        is_known.then(|| self.set_weight(tenant.0, weight)).map(|()| tenant.0)
    }
}

/// Time after which no writer begins with the clock of one that left: it has no debt, and more credit than counts.
const OLD_NS: u64 = SEC;

/// The virtual time up to which writers of a domain had paid when their connections ended: see `Writer::clock`.
#[derive(Clone, Copy, Debug, Default)]
struct Debt {
    /// That of the writer that owed most.
    clock: u64,
    /// The pace by which `clock` was computed.
    pace: u64,
    /// Writers that left it.
    writers: u32,
}

impl Debt {
    /// The clock, if what is owed now is to be paid at another pace.
    fn at(&self, now: Instant, pace: u64) -> u64 {
        clock_at(self.clock, now, self.pace, pace)
    }
}

/// What the domains of one device take.
#[derive(Clone, Debug)]
pub struct DomainLoads {
    /// By domain: the sum of its writers' weights. Empty where writers are not told apart.
    loads: Vec<u64>,
    /// By domain: what those that left owe; one for all where they are not told apart.
    debts: Vec<Debt>,
    /// Sum of weight times load over all domains, a load counted as at most [`WEIGHT_ONE`].
    weighted: u64,
}

impl Default for DomainLoads {
    fn default() -> Self {
        Self::new(0)
    }
}

impl DomainLoads {
    /// Creates the loads of `domains` idle domains.
    #[must_use]
    pub fn new(domains: usize) -> Self {
        Self { loads: vec![0; domains], debts: vec![Debt::default(); domains.max(1)], weighted: 0 }
    }

    /// Keeps the clock of a writer of a domain that leaves, at `pace`.
    pub fn keep_debt(&mut self, now: Instant, domain: DomainId, clock: u64, pace: u64) {
        let debt = self.debt_mut(domain);
        let is_old = debt.clock.saturating_add(OLD_NS) < now.0;
        let (before, writers) = if is_old { (0, 0) } else { (debt.at(now, pace), debt.writers) };
        *debt = Debt { clock: clock.max(before), pace, writers: writers.saturating_add(1) };
        debug_assert!(debt.clock >= clock, "a debt is forgotten");
    }

    /// Takes the clock that one writer of a domain left, at `pace`; 0 if none did.
    pub fn take_debt(&mut self, now: Instant, domain: DomainId, pace: u64) -> u64 {
        let debt = self.debt_mut(domain);
        let Some(writers) = debt.writers.checked_sub(1) else { return 0 };
        let clock = debt.at(now, pace);
        *debt = if writers == 0 { Debt::default() } else { Debt { writers, ..*debt } };
        debug_assert!(debt.writers > 0 || debt.clock == 0, "a clock without a writer that left it");
        clock
    }

    fn debt_mut(&mut self, domain: DomainId) -> &mut Debt {
        let index = usize::from(domain).min(self.debts.len() - 1);
        &mut self.debts[index]
    }

    /// Replaces a writer's weight in a domain.
    pub fn count(&mut self, domains: &Domains, domain: DomainId, was: u32, is: u32) {
        let Some(load) = self.loads.get_mut(usize::from(domain)) else { return };
        let before = counted(*load);
        assert!(*load >= u64::from(was), "a writer counts in its domain");
        *load = *load - u64::from(was) + u64::from(is);
        let weight = domains.weight(domain);
        assert!(self.weighted >= weight * before, "a domain's load is in the sum");
        self.weighted = self.weighted + weight * counted(*load) - weight * before;
    }

    /// Computes the sum anew after a weight was changed.
    pub fn reweigh(&mut self, domains: &Domains) {
        let weighted =
            |(domain, load): (usize, &u64)| domains.weight(domain as DomainId) * counted(*load);
        self.weighted = self.loads.iter().enumerate().map(weighted).sum();
    }

    /// Scales the pace of a writer, at which `writers` in all would share the bandwidth equally, to that of a writer in `domain`.
    /// Alone a domain has all of it.
    #[must_use]
    pub fn scale(&self, domains: &Domains, domain: DomainId, writers: u64, pace: u64) -> u64 {
        let load = self.loads.get(usize::from(domain)).copied().unwrap_or(writers);
        if load == writers {
            return pace;
        }
        debug_assert!(load <= writers, "a domain's writers are writers");
        let one = u64::from(WEIGHT_ONE);
        let weight = domains.weight(domain) * one;
        let part = u128::from(weight) * u128::from(writers.max(one));
        debug_assert!(weight > 0, "a domain without a weight has no pace");
        let whole = u128::from(self.weighted.max(weight)) * u128::from(load.max(one));
        let scaled = u128::from(pace) * part / whole;
        scaled.clamp(1, u128::from(u64::MAX / 4)) as u64
    }
}

/// A writer's clock, if what it owes now is to be paid at another pace.
pub fn clock_at(clock: u64, now: Instant, from: u64, to: u64) -> u64 {
    clock.min(now.0).saturating_add(scaled_ns(clock.saturating_sub(now.0), from, to))
}

/// The time that what costs `ns` at a pace costs at another.
pub fn scaled_ns(ns: u64, from: u64, to: u64) -> u64 {
    let scaled = u128::from(ns) * u128::from(from) / u128::from(to.max(1));
    scaled.min(u128::from(u64::MAX / 4)) as u64
}

/// A domain's load as far as it counts: one whole share.
fn counted(load: u64) -> u64 {
    load.min(WEIGHT_ONE.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: u32 = WEIGHT_ONE;

    fn domains() -> Domains {
        let export = |weight, tenant| ExportConfig { weight, tenant, ..ExportConfig::default() };
        let exports =
            [export(100, TenantId::NONE), export(7, TenantId(3)), export(300, TenantId::NONE)];
        Domains::new(&exports, &[TenantConfig { weight: 50, ..TenantConfig::default() }])
    }

    #[test]
    fn export_without_tenant_is_a_domain_of_its_own() {
        let mut domains = domains();
        let of = |domains: &Domains, export| domains.of(ExportId(export));
        let first = TENANTS_MAX as DomainId;
        assert_eq!([of(&domains, 0), of(&domains, 1), of(&domains, 2)], [first, 3, first + 2]);
        assert_eq!([of(&domains, 3), of(&domains, 4095)], [first + 3; 2]);
        assert_eq!(
            (domains.weight(first + 2), domains.weight(3), domains.weight(0)),
            (300, 100, 50)
        );
        domains.set_tenant(ExportId(0), TenantId(3));
        domains.set_tenant(ExportId(1), TenantId::NONE);
        assert_eq!([of(&domains, 0), of(&domains, 1)], [3, first + 1]);
        assert_eq!(domains.weight(first + 1), 7);
        assert_eq!(Domains::default().of(ExportId(5)), first);
    }

    #[test]
    fn paces_add_up_to_the_bandwidth_in_parts_of_the_weights() {
        let domains = domains();
        let first = TENANTS_MAX as DomainId;
        let mut loads = DomainLoads::new(domains.len());
        // Ten busy writers in the domain of weight 100, one in that of 300, one that takes a tenth of its share in that of 100.
        for (domain, writers, weight) in [(first, 10, ONE), (first + 2, 1, ONE), (3, 1, ONE / 10)] {
            (0..writers).for_each(|_| loads.count(&domains, domain, 0, weight));
        }
        let writers = u64::from(ONE) * 11 + u64::from(ONE / 10);
        let bandwidth = 1_000_000_000_u64;
        let equal = bandwidth * u64::from(ONE) / writers;
        let pace = |domain| loads.scale(&domains, domain, writers, equal) as f64 / 1e9;
        let (ten, one, light) = (10.0 * pace(first), pace(first + 2), pace(3));
        assert!((one / ten - 3.0).abs() < 0.001 && (ten / light - 1.0).abs() < 0.001);
        assert!((ten + one + 0.1 * light - 1.0).abs() < 0.001, "{ten} {one} {light}");
    }

    #[test]
    fn lone_domain_has_the_pace_of_a_device_without_domains() {
        let (domains, mut loads) = (domains(), DomainLoads::new(domains().len()));
        loads.count(&domains, 3, 0, ONE / 7);
        assert_eq!(loads.scale(&domains, 3, u64::from(ONE / 7), 12_345), 12_345);
        assert_eq!(DomainLoads::default().scale(&domains, 3, 9, 12_345), 12_345);
        // The sum is the same in both ways.
        loads.count(&domains, 0, 0, 5 * ONE);
        let weighted = loads.weighted;
        loads.reweigh(&domains);
        assert_eq!(loads.weighted, weighted);
        loads.count(&domains, 0, 5 * ONE, 0);
        loads.count(&domains, 3, ONE / 7, 0);
        assert_eq!(loads.weighted, 0);
    }
}
