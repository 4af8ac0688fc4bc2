//! What is read again while the server runs: certificates, and what is to be served.
//!
//! An export that leaves is written out before it is gone, and that takes as long as its device does. So this is made for a
//! thread of its own, which nobody waits for: a stop ends it.

use std::sync::Arc;

use headworks_core::ConfigError;

use super::assemble::ExportSpec;
use super::control::ReloadReport;
use super::control::service::ControlService;
use headworks_nbd::tls::TlsAcceptor;

/// Changes a server while it runs, from any thread.
#[derive(Clone)]
pub struct Reloader {
    service: Arc<ControlService>,
    acceptor: Option<Arc<TlsAcceptor>>,
}

impl Reloader {
    pub(super) fn new(service: Arc<ControlService>, acceptor: Option<Arc<TlsAcceptor>>) -> Self {
        Self { service, acceptor }
    }

    /// Reads the certificates again, for connections to come; false if there is no TLS.
    ///
    /// # Errors
    /// What is missing or bad; then all stays as it was.
    pub fn certificates(&self) -> Result<bool, String> {
        self.acceptor.as_ref().map_or(Ok(false), |acceptor| acceptor.reload().map(|()| true))
    }

    /// Makes what is served what a configuration says that was read again: by name, exports that are missing in `wanted` are
    /// removed (those that have clients are kept), new ones are added, another weight or class is set. Waits for what is
    /// written out meanwhile, unless the server stops.
    ///
    /// # Errors
    /// What is wrong with `wanted`; nothing was changed.
    pub fn reconcile(&self, wanted: Vec<ExportSpec>) -> Result<ReloadReport, ConfigError> {
        self.service.changes().reconcile(wanted)
    }
}
