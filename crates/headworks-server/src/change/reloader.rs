//! Reload of certificates, listeners and exports while the server runs.
//!
//! Removing an export writes it back and waits for its device, so a reload needs a thread of its own. A stop of the
//! server ends it.

use std::sync::Arc;

use headworks_core::ConfigError;

use crate::change;
use crate::change::configured::ConfiguredTunables;
use crate::change::{AccessReport, ReloadReport, RetuneReport, TenantReport};
use crate::control::service::ControlService;
use crate::exports::access::AccessSpec;
use crate::exports::assemble::ExportSpec;
use crate::exports::assemble::TenantSpec;
use crate::listen::listener_set::ListenerSet;

/// Reloads certificates, listeners and exports of a running server, from any thread.
#[derive(Clone)]
pub struct Reloader {
    service: Arc<ControlService>,
    listeners: Arc<ListenerSet>,
}

impl Reloader {
    pub(crate) fn new(service: Arc<ControlService>, listeners: Arc<ListenerSet>) -> Self {
        Self { service, listeners }
    }

    /// Reads the certificates again, for new connections; false without TLS.
    ///
    /// # Errors
    /// A certificate is missing or invalid; the old ones stay in use.
    pub fn certificates(&self) -> Result<bool, String> {
        self.listeners.reload_certificates()
    }

    /// Shows clients in their handshake, from now on, only what both the present configuration and `wanted` show them; call it
    /// before tenants and exports change.
    ///
    /// # Errors
    /// The server stops.
    pub fn narrow_access(&self, wanted: &AccessSpec) -> Result<(), String> {
        change::listeners::narrow_access(self.service.changes(), wanted)
    }

    /// Adds and removes listeners, and puts what `wanted` says about access in force; call it when tenants and exports have
    /// changed.
    #[must_use]
    pub fn access(&self, wanted: &AccessSpec) -> AccessReport {
        change::listeners::load_access(self.service.changes(), wanted)
    }

    /// Goes back to the access of before [`Reloader::narrow_access`].
    pub fn keep_access(&self) {
        change::listeners::keep_access(self.service.changes());
    }

    /// Sets the tunables that differ between the configuration that was loaded last and `wanted`, as `ctl set` would.
    #[must_use]
    pub fn retune(&self, wanted: ConfiguredTunables) -> RetuneReport {
        change::retune::retune(self.service.changes(), wanted)
    }

    /// Adds the tenants of a configuration and sets what it says anew; call it before [`Reloader::reconcile`].
    #[must_use]
    pub fn tenants(&self, wanted: &[TenantSpec]) -> TenantReport {
        change::tenants::load_tenants(self.service.changes(), wanted)
    }

    /// Removes the tenants that the configuration has no more; call it after [`Reloader::reconcile`].
    #[must_use]
    pub fn forget_tenants(&self) -> TenantReport {
        change::tenants::forget_tenants(self.service.changes())
    }

    /// Makes the exports match `wanted`, by name: removes exports that are missing (except those with clients), adds
    /// new ones, and applies changed weights and classes. Waits for write-back, unless the server stops.
    ///
    /// # Errors
    /// `wanted` is invalid; nothing was changed.
    pub fn reconcile(&self, wanted: Vec<ExportSpec>) -> Result<ReloadReport, ConfigError> {
        change::reconcile::reconcile(self.service.changes(), wanted)
    }
}
