//! Which clients see which exports: by the listener that they connect to, and by their certificate.
//!
//! ```text
//!   configuration --> AccessSpec --AccessRules::new, in a control thread--> AccessRules --to the shard that accepts clients-->
//!      listeners: exports, tenant                                              RulesInForce --Sight of each export--> its list of exports
//!      certificates of tenants, of exports                                     Admission of each client in its handshake --^
//! ```
//!
//! A listener offers the exports that its patterns fit and those of its tenant, or all. An export whose list of certificates is not
//! empty (its own, or else that of its tenant) is seen through a listener that verifies its clients only with a certificate that has a
//! matching name.
//!
//! Exports and tenants are known by their names here, because numbers are given again. The rules are data that a shard is sent as a
//! whole: an export that is added or moved while they are replaced is judged by those that are in force on the shard, so no thread
//! can bring an outdated judgement. While a configuration is being loaded the old rules and the new ones hold both
//! ([`RulesInForce`]), because exports move between tenants one after the other; and after it for a listener that could not be changed.

mod admission;
mod bits;
mod listener;
mod rules;
mod warnings;

use crate::spec::tenant::TenantName;

pub use admission::{Admission, ClientOffer, ExportDirectory};
pub use listener::{ListenerKind, ListenerSpec};
pub use rules::{AccessRules, RuleListener, RulesInForce, Sight};
pub use warnings::access_warnings;

/// Most listeners of a server.
pub const LISTENERS_MAX: usize = 1024;
/// Most names and patterns of all listeners together, and of all lists of certificates together: a new export, or a new client's
/// certificate, is compared with all of them in one turn of a shard.
pub const PATTERNS_MAX: usize = 16_384;

/// What a configuration says about access.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessSpec {
    /// Listeners that offer exports of their own, beside [`ServerOptions::listen`](crate::ServerOptions::listen).
    pub listeners: Vec<ListenerSpec>,
    /// Certificates of the clients of tenants' exports: names and patterns.
    pub tenants: Vec<(TenantName, Vec<String>)>,
    /// Certificates of the clients of exports, which count instead of those of their tenants.
    pub exports: Vec<(String, Vec<String>)>,
}

impl AccessSpec {
    /// Checks that the lists are not too long together: a configuration, and what `ctl` adds to it, pass it.
    ///
    /// # Errors
    /// A sentence about the lists that are.
    pub fn check(&self) -> Result<(), String> {
        let patterns = self.listeners.iter().map(|spec| spec.exports.len()).sum::<usize>();
        let of_tenants = self.tenants.iter().map(|(_, list)| list.len());
        let of_exports = self.exports.iter().map(|(_, list)| list.len());
        let certificates = of_tenants.chain(of_exports).sum::<usize>();
        for (what, count) in [("exports of listeners", patterns), ("certificates", certificates)] {
            if count > PATTERNS_MAX {
                return Err(format!(
                    "all lists of {what} together have {count} names; at most {PATTERNS_MAX} are possible, so use patterns"
                ));
            }
        }
        Ok(())
    }

    /// The names of the certificates with which clients see an export; none if it needs no certificate.
    #[must_use]
    pub fn certificates(&self, export: &str, tenant: Option<TenantName>) -> Option<&[String]> {
        let own = self.exports.iter().find(|(name, _)| name == export).map(|(_, list)| list);
        let of_tenant = || self.tenants.iter().find(|(name, _)| Some(*name) == tenant);
        let list = own.filter(|list| !list.is_empty());
        let list = list.or_else(|| of_tenant().map(|(_, list)| list));
        list.filter(|list| !list.is_empty()).map(Vec::as_slice)
    }
}
