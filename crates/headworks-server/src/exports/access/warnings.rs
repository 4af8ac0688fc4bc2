//! Warnings about access that is probably not what a configuration means.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::{AccessSpec, ListenerSpec};
use crate::exports::assemble::shown_name;
use crate::listen::Address;
use crate::options::ServerOptions;
use crate::spec::did_you_mean::nearest_name;
use crate::spec::name_pattern::fits_any;
use crate::spec::tenant::{TenantName, no_tenant};
use headworks_nbd::tls::{TlsMode, TlsOptions, files};

/// Most names in one warning.
const NAMES_MAX: usize = 8;

/// Names of things in a warning; beyond the first ones their number.
fn names(all: &[&str]) -> String {
    let first = all[..all.len().min(NAMES_MAX)].join(", ");
    match all.len() - all.len().min(NAMES_MAX) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// What listeners with names of no export may mean: the nearest name, or those that there are.
fn right_names(idle: &[&str], exports: &[(&str, Option<TenantName>)]) -> String {
    let known: Vec<&str> = exports.iter().map(|(name, _)| shown_name(name)).collect();
    let near = idle.iter().find_map(|name| nearest_name(name, known.iter().copied()));
    match (near, known.as_slice()) {
        (Some(near), _) => format!("; the nearest is `{near}`"),
        (None, []) => String::new(),
        (None, [only]) => format!("; the only one is {only}"),
        (None, all) => format!("; there are {}", names(all)),
    }
}

/// Warnings about listeners that offer nothing, about certificates that no listener asks for, and about those that clients refuse. `exports` are all exports with their
/// tenants, absent ones included.
#[must_use]
pub fn access_warnings(
    options: &ServerOptions,
    exports: &[(&str, Option<TenantName>)],
) -> Vec<String> {
    let access = &options.access;
    let mut warnings = Vec::new();
    for spec in &access.listeners {
        let defined = options.tenants.iter().map(|tenant| tenant.name.as_str());
        if let Some(name) =
            spec.tenant.filter(|name| defined.clone().all(|one| one != name.as_str()))
        {
            let unknown = no_tenant(name.as_str(), defined);
            warnings.push(format!("listener {}: {unknown}", spec.name));
        }
        let is_idle = |pattern: &&String| {
            let pattern = std::slice::from_ref(*pattern);
            !exports.iter().any(|(name, _)| fits_any(shown_name(name), pattern))
        };
        let mut idle: Vec<&str> = spec.exports.iter().filter(is_idle).map(String::as_str).collect();
        if idle.len() < spec.exports.len() {
            // A pattern may be for later exports.
            idle.retain(|pattern| !pattern.contains(['*', '?']));
        }
        if !idle.is_empty() {
            warnings.push(format!(
                "listener {}: no export is named {}{}",
                spec.name,
                names(&idle),
                right_names(&idle, exports)
            ));
        }
    }
    warnings.extend(unasked_certificates(options, access, exports));
    warnings.extend(refused_certificates(options));
    warnings
}

/// Warnings about certificates that clients refuse because of their dates, a directory each.
fn refused_certificates(options: &ServerOptions) -> Vec<String> {
    let sections = options.access.listeners.iter().map(|spec| &spec.tls);
    let all = std::iter::once(&options.tls).chain(sections);
    let used =
        all.filter(|tls| tls.mode != TlsMode::Off).filter_map(|tls| tls.certificates.as_ref());
    let directories: BTreeSet<&PathBuf> = used.collect();
    directories.into_iter().filter_map(|directory| files::outside_validity(directory)).collect()
}

/// A warning about TCP listeners that offer exports with lists of certificates to clients without any.
fn unasked_certificates(
    options: &ServerOptions,
    access: &AccessSpec,
    exports: &[(&str, Option<TenantName>)],
) -> Option<String> {
    let is_open = |address: &Address, tls: &TlsOptions| address.is_tcp() && !tls.verifies();
    let all = options.listen.iter().any(|address| is_open(address, &options.tls));
    let sections: Vec<&ListenerSpec> =
        access.listeners.iter().filter(|spec| is_open(&spec.address, &spec.tls)).collect();
    let is_offered = |(name, tenant): &&(&str, Option<TenantName>)| {
        let offered = all || sections.iter().any(|spec| spec.offers(name, *tenant));
        offered && access.certificates(name, *tenant).is_some()
    };
    let offered: Vec<&str> =
        exports.iter().filter(is_offered).map(|(name, _)| shown_name(name)).collect();
    (!offered.is_empty()).then(|| {
        format!(
            "certificates of {} have no effect on TCP without tls-verify-peer: a listener offers them to every client",
            names(&offered)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exports::assemble::{ExportSource, TenantSpec};
    use headworks_nbd::tls::testing::Certificates;

    fn warned(spec: ListenerSpec, certificates: &[&str]) -> String {
        let acme = TenantSpec::parse("acme", ExportSource::File).unwrap();
        let list = certificates.iter().map(|name| (*name).to_owned()).collect();
        let access = AccessSpec {
            listeners: vec![spec],
            tenants: vec![(acme.name, list)],
            ..AccessSpec::default()
        };
        let options = ServerOptions { access, tenants: vec![acme], ..ServerOptions::default() };
        access_warnings(&options, &[("a-1", Some(acme.name)), ("", None)]).join("\n")
    }

    #[test]
    fn listener_that_offers_nothing_is_named() {
        let tcp = || Address::Tcp("127.0.0.1:0".parse().unwrap());
        let tenant = |name: &str| Some(TenantName::parse(name).unwrap());
        let said =
            warned(ListenerSpec { tenant: tenant("acmee"), ..ListenerSpec::open(tcp()) }, &[]);
        assert!(said.contains("listener l: there is no tenant `acmee`; the nearest is `acme`"));
        let exports = ["a-*", "default", "b", "c?"].map(str::to_owned).to_vec();
        let said = warned(ListenerSpec { exports, ..ListenerSpec::open(tcp()) }, &[]);
        assert_eq!(said, "listener l: no export is named b; there are a-1, default");
        let exports = ["b-*", "c?"].map(str::to_owned).to_vec();
        let said = warned(ListenerSpec { exports, ..ListenerSpec::open(tcp()) }, &[]);
        assert_eq!(said, "listener l: no export is named b-*, c?; there are a-1, default");
        let said = warned(
            ListenerSpec { exports: vec!["defualt".into()], ..ListenerSpec::open(tcp()) },
            &[],
        );
        assert_eq!(said, "listener l: no export is named defualt; the nearest is `default`");
        assert_eq!(
            warned(ListenerSpec { tenant: tenant("acme"), ..ListenerSpec::open(tcp()) }, &[]),
            ""
        );
    }

    #[test]
    fn certificates_without_effect_are_named() {
        let tcp = Address::Tcp("127.0.0.1:0".parse().unwrap());
        let said = warned(ListenerSpec::open(tcp.clone()), &["host"]);
        assert!(said.starts_with("certificates of a-1 have no effect on TCP"), "{said}");
        let tls = TlsOptions { mode: TlsMode::Require, certificates: None, verify_peer: true };
        assert_eq!(warned(ListenerSpec { tls, ..ListenerSpec::open(tcp.clone()) }, &["host"]), "");
        let other = ListenerSpec { exports: vec!["default".into()], ..ListenerSpec::open(tcp) };
        assert_eq!(warned(other, &["host"]), "", "it offers none that needs one");
        let unix = Address::Unix { path: "/s".into(), mode: 0o600 };
        assert_eq!(warned(ListenerSpec::open(unix), &["host"]), "");
    }

    #[test]
    fn expired_certificate_is_named_once() {
        let certificates = Certificates::new("warnings");
        certificates.renew_server((2001, 2002));
        let tls = |mode| TlsOptions {
            mode,
            certificates: Some(certificates.directory().into()),
            verify_peer: false,
        };
        let tcp = ListenerSpec::open(Address::Tcp("127.0.0.1:0".parse().unwrap()));
        let listener = ListenerSpec { tls: tls(TlsMode::Require), ..tcp };
        let access = AccessSpec { listeners: vec![listener], ..AccessSpec::default() };
        let options = |mode| ServerOptions { tls: tls(mode), ..ServerOptions::default() };
        let both = ServerOptions { access, ..options(TlsMode::On) };
        let said = access_warnings(&both, &[("a", None)]);
        assert!(said.len() == 1 && said[0].contains("server-cert.pem expired at "), "{said:?}");
        assert_eq!(access_warnings(&options(TlsMode::Off), &[]), Vec::<String>::new());
    }
}
