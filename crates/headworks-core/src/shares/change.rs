//! A change of the configured shares, as every place that divides something by weight takes it.

use crate::bio::{ExportId, TenantId};

/// A change of the configured shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareChange {
    /// An export gets a weight among its siblings.
    ExportWeight(ExportId, u16),
    /// An export moves to a tenant.
    ExportTenant(ExportId, TenantId),
    /// An export gets a latency target in microseconds, 0 for none.
    ExportTarget(ExportId, u32),
    /// A tenant gets a weight among tenants and exports without one.
    TenantWeight(TenantId, u16),
}
