//! `[[listen]]` and `--listen`: what the server's options mean for them, and what the start message says of them.

use std::path::PathBuf;

use headworks_core::ConfigError;
use headworks_nbd::tls::TlsMode;
use headworks_server::config::{ConfigFile, ListenDefaults, Problems};
use headworks_server::{
    AccessSpec, Address, ExportSpec, ListenerKind, ListenerSpec, Server, ServerOptions, TenantName,
    access_warnings, file_of,
};

use super::ListenArgs;
use super::address::{absolute, unix_mode, uri};
use super::announced_export::shown_export;
use super::layers::blame;
use super::tls::encrypted;
use super::user;
use crate::shown::Lines;

/// The listeners and lists of certificates of a configuration, with the server's values where they have none.
pub(super) fn plan_access(
    options: &ListenArgs,
    config: &ConfigFile,
) -> Result<AccessSpec, Problems> {
    let one = |error: ConfigError| Problems(vec![blame(config, &error)]);
    let owner = |word: &str| user::look_up_owner(word).map_err(|error| error.message);
    let defaults = ListenDefaults {
        mode: unix_mode(options).map_err(one)?,
        tls: options.tls.parse::<TlsMode>().map_err(one)?,
        certificates: options.tls_certificates.as_ref().map(absolute),
        verify_peer: options.tls_verify_peer,
        owner: &owner,
    };
    config.plan_access(&defaults)
}

/// Whether a listener uses TLS, so that certificates have an effect though the server itself has none.
pub(super) fn uses_tls(access: &AccessSpec) -> bool {
    access.listeners.iter().any(|spec| spec.tls.mode != TlsMode::Off)
}

/// The tenant of an export as it is configured.
fn tenant_of(spec: &ExportSpec) -> Option<TenantName> {
    spec.share.tenant.filter(|name| !name.is_none())
}

/// Warnings about what listeners offer, one sentence each.
pub(super) fn warnings(specs: &[ExportSpec], options: &ServerOptions) -> Vec<String> {
    let exports: Vec<_> = specs.iter().map(|spec| (spec.name.as_str(), tenant_of(spec))).collect();
    let nothing = exports.is_empty().then(|| NOTHING_SERVED.to_owned());
    nothing.into_iter().chain(access_warnings(options, &exports)).collect()
}

/// The warning of a server without exports.
const NOTHING_SERVED: &str = "nothing is served: no [[export]] is enabled; `ctl add`, or one in the file and a reload, adds an export";

/// Notes about addresses that clients of other hosts reach without TLS.
pub(super) fn exposed(options: &ServerOptions) -> Vec<String> {
    let main = options.listen.iter().map(|address| (address, &options.tls));
    let sections = options.access.listeners.iter().map(|spec| (&spec.address, &spec.tls));
    let open = main.chain(sections).filter(|(_, tls)| tls.mode != TlsMode::Require);
    open.filter_map(|(address, _)| match address {
        Address::Tcp(address) if !address.ip().is_loopback() => Some(format!(
            "port {} of {} is open to other hosts, unencrypted and for everyone; `--tls require --tls-verify-peer` restricts it",
            address.port(),
            address.ip()
        )),
        _ => None,
    })
    .collect()
}

/// Path of a listener's socket, if it has one.
pub(super) fn path_of(spec: &ListenerSpec) -> Option<PathBuf> {
    match &spec.address {
        Address::Unix { path, .. } => Some(path.clone()),
        Address::Tcp(_) | Address::InheritedSocket(_) | Address::Directory(_) => None,
    }
}

/// A listener in the start message.
pub(super) struct AnnouncedListener {
    pub name: String,
    pub address: String,
    pub offers_all: bool,
    /// Names of the exports that it offers at the start, and their URIs.
    pub exports: Vec<(String, String)>,
}

/// The listeners of the configuration, with the ports that they got.
pub(super) fn announced(
    access: &AccessSpec,
    specs: &[ExportSpec],
    server: &Server,
) -> Vec<AnnouncedListener> {
    let ports = server.ports_of_sections();
    let all = access.listeners.iter().zip(ports);
    all.map(|(spec, port)| {
        let place = Place::of(spec, port);
        let served = server.exports();
        let is_served =
            |spec: &&ExportSpec| served.iter().any(|one| one.name == shown_export(&spec.name));
        let offered = specs.iter().filter(is_served);
        let offered = offered.filter(|export| spec.offers(&export.name, tenant_of(export)));
        AnnouncedListener {
            name: spec.name.clone(),
            address: place.shown(),
            offers_all: spec.offers_all(),
            exports: offered.map(|one| (one.name.clone(), place.uri(&one.name, spec))).collect(),
        }
    })
    .collect()
}

/// Where a listener is, with its port.
struct Place {
    path: Option<PathBuf>,
    tcp: Option<std::net::SocketAddr>,
}

impl Place {
    fn of(spec: &ListenerSpec, port: Option<u16>) -> Self {
        let tcp = match spec.address {
            Address::Tcp(mut address) => {
                address.set_port(port.unwrap_or(address.port()));
                Some(address)
            }
            Address::Unix { .. } | Address::InheritedSocket(_) | Address::Directory(_) => None,
        };
        let directory = match &spec.address {
            Address::Directory(path) => Some(path.clone()),
            _ => None,
        };
        Self { path: path_of(spec).or(directory), tcp }
    }

    fn shown(&self) -> String {
        match (&self.path, self.tcp) {
            (Some(path), _) => path.display().to_string(),
            (None, Some(address)) => address.to_string(),
            (None, None) => String::new(),
        }
    }

    fn uri(&self, export: &str, spec: &ListenerSpec) -> String {
        if let Address::Directory(path) = &spec.address {
            return file_of(path, export).display().to_string();
        }
        if spec.kind == ListenerKind::VhostUser {
            // Which export it is, is the socket's alone.
            let of_nbd = uri("", self.path.as_deref(), std::net::Ipv4Addr::LOCALHOST.into(), None);
            return of_nbd.replacen("nbd+unix", "vhost-user+unix", 1);
        }
        let address = self.tcp.map_or(std::net::Ipv4Addr::LOCALHOST.into(), |tcp| tcp.ip());
        let port = self.tcp.map(|tcp| tcp.port());
        encrypted(uri(export, self.path.as_deref(), address, port), &spec.tls)
    }
}

impl AnnouncedListener {
    /// Adds its lines to the start message.
    pub fn tell(&self, text: &mut Lines) {
        let Self { name, address, exports, .. } = self;
        let at = if name == address { String::new() } else { format!(" at {address}") };
        let offers = match (self.offers_all, exports.len()) {
            (true, _) => "every export".to_owned(),
            (false, 0) => "no export at present".to_owned(),
            (false, _) => {
                let names: Vec<&str> = exports.iter().map(|(name, _)| shown_export(name)).collect();
                names.join(", ")
            }
        };
        text.push(format!("listener: {name}{at}: offers {offers}"));
        for (_, uri) in exports {
            let what = if uri.starts_with('/') { "file" } else { "uri" };
            text.push(format!("{what}: {uri}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use headworks_nbd::tls::TlsOptions;

    use super::*;

    fn spec(address: Address) -> ListenerSpec {
        ListenerSpec {
            name: "acme".into(),
            kind: ListenerKind::Nbd,
            address,
            owner: None,
            exports: Vec::new(),
            tenant: None,
            tls: TlsOptions::default(),
        }
    }

    #[test]
    fn uri_names_socket_or_port_of_the_listener() {
        let unix = spec(Address::Unix { path: "/run/a b".into(), mode: 0o600 });
        let place = Place::of(&unix, None);
        assert_eq!(place.uri("db", &unix), "nbd+unix:///db?socket=/run/a%20b");
        let disk = ListenerSpec { kind: ListenerKind::VhostUser, ..unix };
        assert_eq!(place.uri("db", &disk), "vhost-user+unix:///?socket=/run/a%20b");
        let files = spec(Address::Directory("/mnt/exports".into()));
        let place = Place::of(&files, None);
        assert_eq!(
            (place.uri("a/b", &files), place.shown()),
            ("/mnt/exports/a%2Fb".into(), "/mnt/exports".into())
        );
        let tcp = spec(Address::Tcp("127.0.0.1:0".parse().unwrap()));
        let place = Place::of(&tcp, Some(4711));
        assert_eq!(place.uri("db", &tcp), "nbd://127.0.0.1:4711/db");
        assert_eq!(place.shown(), "127.0.0.1:4711");
    }

    #[test]
    fn start_message_names_what_a_listener_offers() {
        let listener = |offers_all, exports: &[&str]| AnnouncedListener {
            name: "acme".into(),
            address: "/run/a".into(),
            offers_all,
            exports: exports.iter().map(|name| ((*name).to_owned(), format!("u:{name}"))).collect(),
        };
        let lines = |listener: &AnnouncedListener| {
            let mut text = Lines::default();
            listener.tell(&mut text);
            text.into_text()
        };
        assert_eq!(
            lines(&listener(false, &["a", ""])),
            "listener: acme at /run/a: offers a, default\nuri: u:a\nuri: u:\n"
        );
        assert_eq!(lines(&listener(true, &[])), "listener: acme at /run/a: offers every export\n");
        assert!(lines(&listener(false, &[])).contains("no export at present"));
    }
}
