//! A listener as it is configured: where it listens, what it offers, and how it encrypts.

use crate::exports::assemble::shown_name;
use crate::listen::{Address, FileOwner};
use crate::spec::name_pattern::fits_any;
use crate::spec::tenant::TenantName;
use headworks_nbd::tls::TlsOptions;

/// What the clients of a listener speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListenerKind {
    /// NBD.
    #[default]
    Nbd,
    /// vhost-user: virtual machines, whose front end has one export as its disk.
    VhostUser,
    /// FUSE: programs, which have each export as a file of a directory.
    Fuse,
}

impl ListenerKind {
    /// All, in the order of [`ListenerKind::word`]s in messages.
    pub const ALL: [Self; 3] = [Self::Nbd, Self::VhostUser, Self::Fuse];

    /// The word of a configuration.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Nbd => "nbd",
            Self::VhostUser => "vhost-user",
            Self::Fuse => "fuse",
        }
    }

    /// The kind of a word of a configuration.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }
}

/// A listener of clients that offers exports of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerSpec {
    /// Name in messages and tables.
    pub name: String,
    /// What its clients speak.
    pub kind: ListenerKind,
    /// Address on which it listens.
    pub address: Address,
    /// Owner of a unix socket's file; none is that of the server.
    pub owner: Option<FileOwner>,
    /// Names and patterns of the exports that it offers.
    pub exports: Vec<String>,
    /// The tenant whose exports it offers, too.
    pub tenant: Option<TenantName>,
    /// Its mode and certificates of TLS.
    pub tls: TlsOptions,
}

impl ListenerSpec {
    /// Whether it offers every export.
    #[must_use]
    pub fn offers_all(&self) -> bool {
        self.exports.is_empty() && self.tenant.is_none()
    }

    /// Whether it offers an export with this name and tenant.
    #[must_use]
    pub fn offers(&self, export: &str, tenant: Option<TenantName>) -> bool {
        self.offers_all()
            || self.tenant.is_some() && self.tenant == tenant
            || fits_any(shown_name(export), &self.exports)
    }

    /// The export of a vhost-user listener, by its name.
    #[must_use]
    pub fn disk(&self) -> Option<&str> {
        self.exports.first().filter(|_| self.kind == ListenerKind::VhostUser).map(String::as_str)
    }

    /// Whether it can become `other` while it listens: both speak the same, vhost-user for the same export and FUSE for the same ones.
    #[must_use]
    pub fn can_become(&self, other: &Self) -> bool {
        let is_same = self.kind != ListenerKind::Fuse || self.exports == other.exports;
        self.kind == other.kind && self.disk() == other.disk() && is_same
    }

    /// Whether its clients must present a certificate.
    #[must_use]
    pub fn verifies(&self) -> bool {
        self.tls.verifies()
    }
}

#[cfg(test)]
impl ListenerSpec {
    /// A listener that offers every export, without TLS.
    pub fn open(address: Address) -> Self {
        let (exports, tls) = (Vec::new(), TlsOptions::default());
        let kind = ListenerKind::Nbd;
        Self { name: "l".into(), kind, address, owner: None, exports, tenant: None, tls }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_and_tenant_are_a_union_and_neither_is_everything() {
        let address = Address::Tcp("127.0.0.1:0".parse().unwrap());
        let all = ListenerSpec::open(address);
        let tenant = |name: &str| Some(TenantName::parse(name).unwrap());
        assert!(all.offers("", None) && all.offers("x", tenant("acme")));
        let some = ListenerSpec { exports: vec!["a-*".into(), "default".into()], ..all.clone() };
        assert!(some.offers("a-1", None) && some.offers("", None) && !some.offers("b", None));
        let own = ListenerSpec { tenant: tenant("acme"), ..all };
        assert!(own.offers("b", tenant("acme")) && !own.offers("b", tenant("globex")));
        assert!(!own.offers("b", None));
        let both = ListenerSpec { tenant: tenant("acme"), ..some };
        assert!(both.offers("b", tenant("acme")) && both.offers("a-1", None));
        assert!(!both.offers("b", None));
    }
}
