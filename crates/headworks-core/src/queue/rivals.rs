//! The exports that compete for the window of a sorting elevator: those that have requests now, and how many of them have one waiting.
//!
//! What is in a sorted window is served in the order of the disk, so shares there follow what each export has in it. While all
//! have equal shares that is as good as any order. Otherwise the window may only grow while every export still has a request
//! waiting at the gate: then the gate alone decides how many requests of each are in it.
//!
//! Counting costs every request of a sorting elevator, so it is done only while the configured shares may differ: a request that was
//! counted has the mark [`Request::COUNTED`], and that alone decides whether its end counts. After a change some requests are not
//! counted until they have ended.
//!
//! Invariants: `requests` of an export is the number of its requests with the mark, of which `waiting` wait for tags; an export counts
//! in `balance` while it has one; `present` is the number of those exports, and `waiting` of those that have a request waiting.

use super::export_shares::ExportShares;
use crate::bio::{ExportId, TenantId};
use crate::gauge::Gauge32;
use crate::options::TENANTS_MAX;
use crate::request::Request;
use crate::shares::ShareChange;
use crate::shares::balance::{ShareBalance, ShareLoad, TenantLoad};

/// An export's requests.
#[derive(Clone, Debug)]
struct Rival {
    requests: Gauge32,
    waiting: Gauge32,
    tenant: TenantId,
    load: ShareLoad,
}

/// The exports that have requests now.
#[derive(Debug, Default)]
pub(super) struct Rivals {
    /// Requests that come are counted.
    on: bool,
    /// By export; the last is for all that are not configured. Empty until requests were to be counted.
    exports: Vec<Rival>,
    tenants: Vec<TenantLoad>,
    balance: ShareBalance,
    present: Gauge32,
    waiting: Gauge32,
}

impl Rivals {
    /// Sets whether the elevator sorts. With shares that may differ requests are counted from now on.
    pub fn set(&mut self, sorts: bool, shares: &ExportShares) {
        self.on = sorts && shares.may_differ();
        if self.on && self.exports.is_empty() {
            let rival = |(weight, tenant): (u16, TenantId)| Rival {
                requests: Gauge32::default(),
                waiting: Gauge32::default(),
                tenant,
                load: ShareLoad::new(weight.into()),
            };
            self.exports.extend(shares.exports().map(rival));
            self.exports.push(rival((shares.usual_weight(), TenantId::NONE)));
            let weight = |number| shares.tenant_weight(TenantId(number)).into();
            let tenants = (0..TENANTS_MAX as u16).map(|number| TenantLoad::new(weight(number)));
            self.tenants.extend(tenants);
        }
    }

    /// Takes over a change of a share.
    pub fn change(&mut self, change: ShareChange, shares: &ExportShares) {
        let Self { exports, tenants, balance, .. } = self;
        match change {
            ShareChange::ExportWeight(export, weight) => {
                let Some(rival) = exports.get_mut(usize::from(export.0)) else { return };
                let tenant = tenants.get_mut(usize::from(rival.tenant.0));
                balance.set_weight(&mut rival.load, tenant, weight.into());
            }
            ShareChange::ExportTenant(export, _) => {
                let Some(rival) = exports.get_mut(usize::from(export.0)) else { return };
                let from = tenants.get_mut(usize::from(rival.tenant.0));
                let queues = balance.quit(&mut rival.load, from);
                rival.tenant = shares.tenant(export);
                let to = tenants.get_mut(usize::from(rival.tenant.0));
                balance.join(&mut rival.load, to, queues);
            }
            ShareChange::TenantWeight(tenant, weight) => {
                let Some(tenant) = tenants.get_mut(usize::from(tenant.0)) else { return };
                balance.set_tenant_weight(tenant, weight.into());
            }
            ShareChange::ExportTarget(..) => {}
        }
    }

    /// Returns true while requests that come are counted: shares may differ.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Counts a request that comes.
    pub fn enter(&mut self, request: &mut Request) {
        debug_assert!(!request.is(Request::COUNTED), "a request is counted once");
        request.marks |= Request::COUNTED;
        let index = self.index(request.export);
        self.exports[index].requests.add(1);
        if self.exports[index].requests.get() == 1 {
            self.set_present(index, 1);
        }
    }

    /// Counts a request no more that has ended.
    pub fn leave(&mut self, request: &Request) {
        debug_assert!(request.is(Request::COUNTED), "one that was counted ends");
        let index = self.index(request.export);
        self.exports[index].requests.sub(1);
        if self.exports[index].requests.is_zero() {
            self.set_present(index, 0);
        }
    }

    /// Counts a request that begins to wait for tags.
    pub fn begin_wait(&mut self, request: &Request) {
        debug_assert!(request.is(Request::COUNTED), "a request enters before it waits");
        let index = self.index(request.export);
        let waiting = &mut self.exports[index].waiting;
        self.waiting.add(u32::from(waiting.is_zero()));
        waiting.add(1);
    }

    /// Counts a request that waits for tags no more.
    pub fn end_wait(&mut self, request: &Request) {
        debug_assert!(request.is(Request::COUNTED), "one that began to wait ends");
        let index = self.index(request.export);
        let waiting = &mut self.exports[index].waiting;
        waiting.sub(1);
        self.waiting.sub(u32::from(waiting.is_zero()));
    }

    /// Returns true if no request is counted.
    pub fn is_empty(&self) -> bool {
        self.present.is_zero()
    }

    /// Returns true if all that compete have the same share.
    pub fn are_equal(&self) -> bool {
        self.balance.is_even()
    }

    /// Returns true if every export with requests has one that waits for tags.
    pub fn all_wait(&self) -> bool {
        debug_assert!(self.waiting <= self.present, "an export that waits is present");
        self.waiting == self.present
    }

    fn index(&self, export: ExportId) -> usize {
        debug_assert!(!self.exports.is_empty(), "requests are counted where there is room");
        usize::from(export.0).min(self.exports.len() - 1)
    }

    fn set_present(&mut self, index: usize, queues: u32) {
        let rival = &mut self.exports[index];
        let tenant = self.tenants.get_mut(usize::from(rival.tenant.0));
        self.balance.set_queues(&mut rival.load, tenant, queues);
        if queues > 0 { self.present.add(1) } else { self.present.sub(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{ExportConfig, QueueOptions, ShardConfig, TenantConfig, VolumeOptions};
    use crate::prng::Prng;

    /// Exports 0 and 1 of no tenant, 2 and 3 of tenant 0.
    fn shares() -> ExportShares {
        let mut config = ShardConfig::single(QueueOptions::default(), VolumeOptions::default(), 4);
        let of = |tenant| ExportConfig { tenant, ..ExportConfig::default() };
        config.exports = [TenantId::NONE, TenantId::NONE, TenantId(0), TenantId(0)].map(of).into();
        config.tenants = vec![TenantConfig::default(); 2];
        ExportShares::new(&config)
    }

    fn request(export: u16) -> Request {
        Request { export: ExportId(export), ..Request::default() }
    }

    #[test]
    fn equal_weights_without_tenants_count_nothing() {
        let config = ShardConfig::single(QueueOptions::default(), VolumeOptions::default(), 4);
        let mut rivals = Rivals::default();
        rivals.set(true, &ExportShares::new(&config));
        assert!(!rivals.is_on() && rivals.exports.is_empty());
        rivals.set(true, &shares());
        assert!(rivals.is_on());
        rivals.set(false, &shares());
        assert!(!rivals.is_on());
    }

    #[test]
    fn tenant_with_two_exports_and_an_export_without_one_differ() {
        let (shares, mut rivals) = (shares(), Rivals::default());
        rivals.set(true, &shares);
        let mut of: Vec<Request> = (0..4).map(request).collect();
        rivals.enter(&mut of[0]);
        rivals.enter(&mut of[2]);
        assert!(rivals.are_equal(), "an export and a tenant of equal weight, one queue each");
        rivals.enter(&mut of[3]);
        assert!(!rivals.are_equal(), "two exports share the tenant's part");
        rivals.leave(&of[0]);
        assert!(rivals.are_equal());
        rivals.change(ShareChange::ExportWeight(ExportId(3), 200), &shares);
        assert!(!rivals.are_equal());
    }

    /// Counts agree with those by brute force, whatever comes, waits, ends and changes.
    #[test]
    fn counts_match_brute_force() {
        let (mut prng, mut shares, mut rivals) = (Prng::new(7), shares(), Rivals::default());
        let mut all: Vec<(Request, bool)> = Vec::new();
        let (mut waited, mut differed) = (0, 0);
        for _ in 0..20_000 {
            rivals.set(prng.below(20) > 0, &shares);
            match prng.below(10) {
                0 => {
                    let weight = [100, 200][prng.below(2) as usize];
                    let change = match prng.below(3) {
                        0 => ShareChange::ExportWeight(ExportId(prng.below(4) as u16), weight),
                        1 => ShareChange::TenantWeight(TenantId(0), weight),
                        _ => ShareChange::ExportTenant(
                            ExportId(prng.below(4) as u16),
                            [TenantId::NONE, TenantId(0), TenantId(1)][prng.below(3) as usize],
                        ),
                    };
                    shares.change(change);
                    rivals.change(change, &shares);
                }
                1..=4 if rivals.is_on() && all.len() < 6 => {
                    let mut new = request(prng.below(5) as u16);
                    rivals.enter(&mut new);
                    rivals.begin_wait(&new);
                    all.push((new, true));
                }
                5 | 6 if !all.is_empty() => {
                    let at = prng.below(all.len() as u64) as usize;
                    if std::mem::take(&mut all[at].1) {
                        rivals.end_wait(&all[at].0);
                    }
                }
                _ if !all.is_empty() => {
                    let (gone, waits) = all.swap_remove(prng.below(all.len() as u64) as usize);
                    if waits {
                        rivals.end_wait(&gone);
                    }
                    rivals.leave(&gone);
                }
                _ => {}
            }
            let of =
                |export: u16| all.iter().filter(move |(request, _)| request.export.0 == export);
            let present = (0..5).filter(|&export| of(export).count() > 0);
            let wait = present.clone().all(|export| of(export).any(|(_, waits)| *waits));
            if !rivals.exports.is_empty() {
                assert_eq!(rivals.present.get() as usize, present.clone().count());
                assert_eq!(rivals.all_wait(), wait);
            }
            // The share of each export: of its tenant's part, divided by weight among those present.
            let weight = |export: u16| {
                let all: Vec<(u16, TenantId)> = shares.exports().collect();
                all.get(usize::from(export)).copied().unwrap_or((100, TenantId::NONE))
            };
            let share = |export: u16| {
                let (own, tenant) = weight(export);
                if tenant.is_none() {
                    return f64::from(own);
                }
                let sum = present.clone().filter(|&other| weight(other).1 == tenant);
                let sum: u32 = sum.map(|other| u32::from(weight(other).0)).sum();
                f64::from(shares.tenant_weight(tenant)) * f64::from(own) / f64::from(sum)
            };
            let shares: Vec<f64> = present.clone().map(share).collect();
            let equal = shares.windows(2).all(|pair| pair[0] == pair[1]);
            // Equal weights at both levels are enough, not necessary.
            assert!(!rivals.are_equal() || equal, "{shares:?} are not equal");
            waited += u32::from(!wait);
            differed += u32::from(!rivals.are_equal());
        }
        assert!(waited > 1000 && differed > 1000, "both were drawn: {waited} {differed}");
    }
}
