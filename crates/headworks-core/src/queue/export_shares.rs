//! The shares that exports and tenants are configured with: which tenant an export belongs to, and the weights of both.
//!
//! A place for every tenant exists from the start, so tenants are added and removed without a change here: a tenant that is not
//! configured has the default weight.
//!
//! Every request asks for its share, so only what shares need is copied from the configuration: 8 bytes an export, 2 a tenant.
//!
//! Invariants: every weight is at least 1; an export's tenant is [`TenantId::NONE`] or below [`TENANTS_MAX`]; there are
//! [`TENANTS_MAX`] weights of tenants.

use crate::bio::{ExportId, TenantId};
use crate::options::{ExportConfig, ShardConfig, TENANTS_MAX, TenantConfig};
use crate::shares::ShareChange;
use crate::tags::TagRequest;

/// The share of one export.
#[derive(Clone, Copy, Debug)]
struct ExportShare {
    weight: u16,
    tenant: TenantId,
    /// 0 for none.
    latency_target_us: u32,
}

impl From<&ExportConfig> for ExportShare {
    fn from(config: &ExportConfig) -> Self {
        Self {
            weight: config.weight,
            tenant: config.tenant,
            latency_target_us: config.latency_target_us,
        }
    }
}

/// The shares of a shard's exports and tenants.
#[derive(Debug)]
pub(crate) struct ExportShares {
    exports: Vec<ExportShare>,
    /// Weights by tenant.
    tenants: Vec<u16>,
    /// Of an export that is not configured.
    usual: ExportShare,
    /// Of a tenant that is not configured, and of no tenant.
    usual_tenant: u16,
}

impl ExportShares {
    /// Takes the shares from the configuration.
    pub fn new(config: &ShardConfig) -> Self {
        assert!(config.tenants.len() <= TENANTS_MAX, "the configuration was validated");
        let usual_tenant = TenantConfig::default().weight;
        let mut tenants: Vec<u16> = config.tenants.iter().map(|tenant| tenant.weight).collect();
        tenants.resize(TENANTS_MAX, usual_tenant);
        let exports = config.exports.iter().map(ExportShare::from).collect();
        Self { exports, tenants, usual: ExportShare::from(&ExportConfig::default()), usual_tenant }
    }

    /// Returns an export's share; the default for one that is not configured.
    #[inline]
    fn of(&self, export: ExportId) -> &ExportShare {
        self.exports.get(usize::from(export.0)).unwrap_or(&self.usual)
    }

    /// Returns the changes that give default shares these weights and tenants.
    pub fn as_changes(&self) -> impl Iterator<Item = ShareChange> + '_ {
        let tenants =
            (0u16..).zip(&self.tenants).filter(|(_, weight)| **weight != self.usual_tenant);
        let tenants = tenants.map(|(id, weight)| ShareChange::TenantWeight(TenantId(id), *weight));
        let exports = (0u16..).zip(&self.exports).flat_map(|(id, of)| {
            let id = ExportId(id);
            [ShareChange::ExportWeight(id, of.weight), ShareChange::ExportTenant(id, of.tenant)]
        });
        tenants.chain(exports)
    }

    /// Returns the latency target of an export in microseconds, 0 for none.
    pub fn target_us(&self, export: ExportId) -> u32 {
        self.of(export).latency_target_us
    }

    /// Returns the latency targets of all exports, in microseconds.
    pub fn targets_us(&self) -> impl Iterator<Item = u32> + '_ {
        self.exports.iter().map(|export| export.latency_target_us)
    }

    /// Returns the exports with a latency target, and the target in microseconds.
    pub fn export_targets(&self) -> impl Iterator<Item = (ExportId, u32)> + '_ {
        let all = (0..).map(ExportId).zip(self.targets_us());
        all.filter(|(_, target_us)| *target_us > 0)
    }

    /// Returns the tenant of an export.
    pub fn tenant(&self, export: ExportId) -> TenantId {
        self.of(export).tenant
    }

    /// Returns a tenant's weight; the default for [`TenantId::NONE`], which has no place in a tree of shares.
    pub fn tenant_weight(&self, tenant: TenantId) -> u16 {
        self.tenants.get(usize::from(tenant.0)).copied().unwrap_or(self.usual_tenant)
    }

    /// Writes the share of a request's export into the request.
    #[inline]
    pub fn fill(&self, request: &mut TagRequest) {
        let &ExportShare { weight, tenant, latency_target_us } = self.of(request.export);
        request.target_us = latency_target_us;
        (request.weight, request.tenant) = (weight, tenant);
        request.tenant_weight = self.tenant_weight(tenant);
        debug_assert!(request.weight > 0 && request.tenant_weight > 0, "a weight is at least 1");
    }

    /// Returns the weight of an export that is not configured.
    pub fn usual_weight(&self) -> u16 {
        self.usual.weight
    }

    /// Returns the weight and the tenant of every export that is configured.
    pub fn exports(&self) -> impl Iterator<Item = (u16, TenantId)> + '_ {
        self.exports.iter().map(|export| (export.weight, export.tenant))
    }

    /// Returns true if exports may have unequal shares: their weights differ, or one has a tenant.
    pub fn may_differ(&self) -> bool {
        let usual = self.exports.first().map_or(self.usual.weight, |first| first.weight);
        self.exports().any(|(weight, tenant)| weight != usual || !tenant.is_none())
    }

    /// Changes a share. An export that is not configured has none to change.
    pub fn change(&mut self, change: ShareChange) {
        match change {
            ShareChange::ExportWeight(export, weight) => {
                assert!(weight > 0, "a weight of 0 would starve the export");
                if let Some(known) = self.exports.get_mut(usize::from(export.0)) {
                    known.weight = weight;
                }
            }
            ShareChange::ExportTenant(export, tenant) => {
                let is_valid = tenant.is_none() || usize::from(tenant.0) < TENANTS_MAX;
                if let Some(known) = self.exports.get_mut(usize::from(export.0)) {
                    known.tenant = if is_valid { tenant } else { TenantId::NONE };
                }
            }
            ShareChange::ExportTarget(export, target_us) => {
                if let Some(known) = self.exports.get_mut(usize::from(export.0)) {
                    known.latency_target_us = target_us;
                }
            }
            ShareChange::TenantWeight(tenant, weight) => {
                assert!(weight > 0, "a weight of 0 would starve the tenant");
                if let Some(known) = self.tenants.get_mut(usize::from(tenant.0)) {
                    *known = weight;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{QueueOptions, VolumeOptions};

    #[test]
    fn changes_show_in_later_requests_only_of_what_they_name() {
        let mut config = ShardConfig::single(QueueOptions::default(), VolumeOptions::default(), 4);
        config.exports = vec![ExportConfig::default(); 3];
        config.tenants = vec![TenantConfig { weight: 400, ..TenantConfig::default() }];
        let mut shares = ExportShares::new(&config);
        let seen = |shares: &ExportShares, export: u16| {
            let &ExportShare { weight, tenant, .. } = shares.of(ExportId(export));
            (weight, tenant, shares.tenant_weight(tenant))
        };
        assert_eq!(seen(&shares, 0), (100, TenantId::NONE, 100));
        shares.change(ShareChange::ExportTenant(ExportId(0), TenantId(0)));
        shares.change(ShareChange::ExportTenant(ExportId(1), TenantId(1023)));
        shares.change(ShareChange::ExportWeight(ExportId(1), 7));
        shares.change(ShareChange::TenantWeight(TenantId(1023), 900));
        assert_eq!(seen(&shares, 0), (100, TenantId(0), 400));
        assert_eq!(seen(&shares, 1), (7, TenantId(1023), 900));
        assert_eq!(seen(&shares, 2), (100, TenantId::NONE, 100));
        shares.change(ShareChange::ExportTenant(ExportId(1), TenantId::NONE));
        assert_eq!(seen(&shares, 1), (7, TenantId::NONE, 100));
        // Of an export that is not configured nothing is kept.
        shares.change(ShareChange::ExportWeight(ExportId(3), 9));
        assert_eq!(seen(&shares, 3), (100, TenantId::NONE, 100));
    }
}
