//! Reload of certificates and exports while the server runs.
//!
//! Removing an export writes it back and waits for its device, so a reload needs a thread of its own. A stop of the
//! server ends it.

use std::sync::Arc;

use headworks_core::ConfigError;

use super::assemble::ExportSpec;
use super::assemble::TenantSpec;
use super::control::service::ControlService;
use super::control::{ReloadReport, RetuneReport, TenantReport};
use super::loaded::ConfiguredTunables;
use headworks_nbd::tls::TlsAcceptor;

/// Reloads certificates and exports of a running server, from any thread.
#[derive(Clone)]
pub struct Reloader {
    service: Arc<ControlService>,
    acceptor: Option<Arc<TlsAcceptor>>,
}

impl Reloader {
    pub(super) fn new(service: Arc<ControlService>, acceptor: Option<Arc<TlsAcceptor>>) -> Self {
        Self { service, acceptor }
    }

    /// Reads the certificates again, for new connections; false without TLS.
    ///
    /// # Errors
    /// A certificate is missing or invalid; the old ones stay in use.
    pub fn certificates(&self) -> Result<bool, String> {
        self.acceptor.as_ref().map_or(Ok(false), |acceptor| acceptor.reload().map(|()| true))
    }

    /// Sets the tunables that differ between the configuration that was loaded last and `wanted`, as `ctl set` would.
    #[must_use]
    pub fn retune(&self, wanted: ConfiguredTunables) -> RetuneReport {
        self.service.changes().retune(wanted)
    }

    /// Adds the tenants of a configuration and sets what it says anew; call it before [`Reloader::reconcile`].
    #[must_use]
    pub fn tenants(&self, wanted: &[TenantSpec]) -> TenantReport {
        self.service.changes().load_tenants(wanted)
    }

    /// Removes the tenants that the configuration has no more; call it after [`Reloader::reconcile`].
    #[must_use]
    pub fn forget_tenants(&self) -> TenantReport {
        self.service.changes().forget_tenants()
    }

    /// Makes the exports match `wanted`, by name: removes exports that are missing (except those with clients), adds
    /// new ones, and applies changed weights and classes. Waits for write-back, unless the server stops.
    ///
    /// # Errors
    /// `wanted` is invalid; nothing was changed.
    pub fn reconcile(&self, wanted: Vec<ExportSpec>) -> Result<ReloadReport, ConfigError> {
        self.service.changes().reconcile(wanted)
    }
}
