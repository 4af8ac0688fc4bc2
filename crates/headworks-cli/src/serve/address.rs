//! Listening addresses of the server and the URIs of its exports.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use headworks_core::ConfigError;
use headworks_server::config::{ConfigFile, Origin};
use headworks_server::{Address, InheritedAddress, SOCKET_PATH_MAX};

use super::ListenArgs;
use super::systemd::{InheritedSockets, unix_path};

/// Names that are tried for a private directory.
const ATTEMPTS: u32 = 100;

/// The mode of unix sockets.
pub(super) fn unix_mode(options: &ListenArgs) -> Result<u32, ConfigError> {
    let mode = u32::from_str_radix(&options.unix_mode, 8).ok();
    mode.filter(|mode| *mode <= 0o777).ok_or_else(|| {
        let message = format!("`{}` is not an octal mode such as 660", options.unix_mode);
        ConfigError::new("unix-mode", message)
    })
}

/// A directory for the private socket, removed on drop if it belongs to this process.
pub(super) struct PrivateDirectory {
    path: PathBuf,
    is_own: bool,
}

impl PrivateDirectory {
    /// The directory of the process that is to be replaced.
    pub(super) fn of_predecessor(path: PathBuf) -> Self {
        Self { path, is_own: false }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether this process has made it, or owns it since the other one has ended.
    pub(super) fn is_own(&self) -> bool {
        self.is_own
    }

    /// Makes this process the owner.
    pub(super) fn take_over(&mut self) {
        self.is_own = true;
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        if self.is_own {
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

/// Note about an address that is given, and not used.
pub(super) fn unused(config: &ConfigFile, options: &ListenArgs) -> Option<String> {
    let is_given = config
        .server
        .iter()
        .any(|setting| setting.name == "ip-addr" && setting.origin != Origin::Default);
    (is_given && options.port.is_none()).then(|| "ip-addr has no effect without port".to_owned())
}

/// The addresses at which every export is offered. Without any that is given there is a private one, unless the server `has_others`.
pub(super) fn addresses(
    options: &ListenArgs,
    sockets: &InheritedSockets,
    mut private: Option<PrivateDirectory>,
    has_others: bool,
) -> Result<(Vec<Address>, Option<PrivateDirectory>), ConfigError> {
    let mut listen: Vec<Address> =
        sockets.listen.iter().cloned().map(Address::InheritedSocket).collect();
    if let Some(port) = options.port {
        listen.push(Address::Tcp(SocketAddr::new(options.ip_addr, port)));
    }
    let path = match &options.unix {
        Some(path) if path.as_os_str() != "-" => Some(path.clone()),
        None if !listen.is_empty() || has_others => None,
        _ => {
            let directory = private.take().map_or_else(private_directory, Ok)?;
            let path = directory.path.join(PRIVATE_SOCKET);
            private = Some(directory);
            Some(path)
        }
    };
    if let Some(path) = path {
        let path = absolute(&path);
        // A service manager may have passed this socket already.
        if !sockets.has(&path) {
            listen.push(Address::Unix { path, mode: unix_mode(options)? });
        }
    }
    Ok((listen, private))
}

/// The addresses that options name at which every export is offered.
pub(super) fn named_addresses(options: &ListenArgs) -> Vec<Address> {
    let path = options.unix.iter().filter(|path| path.as_os_str() != "-").map(absolute);
    let unix = path.map(|path| Address::Unix { path, mode: 0o600 });
    let tcp = options.port.map(|port| Address::Tcp(SocketAddr::new(options.ip_addr, port)));
    unix.chain(tcp).collect()
}

/// Path of the first unix socket and address of the first TCP socket.
pub(super) fn socket_addresses(listen: &[Address]) -> (Option<PathBuf>, Option<IpAddr>) {
    let unix = listen.iter().find_map(|address| match address {
        Address::Unix { path, .. } => Some(path.clone()),
        Address::Tcp(_) | Address::Directory(_) => None,
        Address::InheritedSocket(given) => unix_path(given),
    });
    let tcp = listen.iter().find_map(|address| match address {
        Address::Unix { .. } | Address::Directory(_) => None,
        Address::Tcp(address) => Some(address.ip()),
        Address::InheritedSocket(given) => match given.place() {
            Ok(InheritedAddress::Tcp(address)) => Some(address.ip()),
            _ => None,
        },
    });
    (unix, tcp)
}

/// The addresses that the URIs of the start message do not name: these have the first unix socket, else the first port.
pub(super) fn further(listen: &[Address], ports: &[Option<u16>]) -> Vec<String> {
    let path = |address: &Address| match address {
        Address::Unix { path, .. } => Some(path.clone()),
        Address::Tcp(_) | Address::Directory(_) => None,
        Address::InheritedSocket(given) => unix_path(given),
    };
    let paths = listen.iter().filter_map(path).map(|path| format!("unix: {}", path.display()));
    let ports = ports.iter().flatten().map(|port| format!("tcp: port {port}"));
    paths.chain(ports).skip(1).collect()
}

pub(super) fn absolute(path: &PathBuf) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.clone())
}

/// Name of the socket in a private directory.
const PRIVATE_SOCKET: &str = "headworks.sock";

/// Creates a new directory with mode 0700, whose path leaves room for that of its socket.
fn private_directory() -> Result<PrivateDirectory, ConfigError> {
    use std::os::unix::fs::DirBuilderExt;
    let base = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let name = |attempt: u32| format!("headworks-{}-{attempt}", std::process::id());
    let longest = base.join(name(ATTEMPTS)).join(PRIVATE_SOCKET);
    let base =
        if longest.as_os_str().len() > SOCKET_PATH_MAX { PathBuf::from("/tmp") } else { base };
    for attempt in 0..ATTEMPTS {
        let path = base.join(name(attempt));
        match std::fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(PrivateDirectory { path, is_own: true }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                let message =
                    format!("cannot create {}: {error}; name a socket with -U", path.display());
                return Err(ConfigError::new("unix", message));
            }
        }
    }
    Err(ConfigError::new(
        "unix",
        "cannot create a private directory: all names are taken; name a socket with -U",
    ))
}
pub(super) fn uri(
    name: &str,
    unix: Option<&std::path::Path>,
    address: IpAddr,
    port: Option<u16>,
) -> String {
    match (unix, port) {
        (Some(path), _) => {
            format!("nbd+unix:///{}?socket={}", encode(name), encode(path.as_os_str().as_bytes()))
        }
        (None, Some(port)) => format!("nbd://{}/{}", SocketAddr::new(address, port), encode(name)),
        (None, None) => String::new(),
    }
}

/// Percent-encodes a name or path for a URI, byte by byte: a path need not be UTF-8.
pub(super) fn encode(text: impl AsRef<[u8]>) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let encoded = text.as_ref().iter().map(|&byte| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    encoded.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path has any bytes, and a URI has them all.
    #[test]
    fn uri_has_the_bytes_of_a_path() {
        let path = Path::new(std::ffi::OsStr::from_bytes(b"/run/a\xff b'\n"));
        let uri = uri("\u{fc}/x", Some(path), IpAddr::from([127, 0, 0, 1]), None);
        assert_eq!(uri, "nbd+unix:///%C3%BC/x?socket=/run/a%FF%20b%27%0A");
    }

    #[test]
    fn every_address_but_that_of_the_uris_is_named() {
        let unix = |path: &str| Address::Unix { path: path.into(), mode: 0o600 };
        let tcp = || Address::Tcp("127.0.0.1:0".parse().unwrap());
        assert_eq!(further(&[unix("/a")], &[None]), [""; 0]);
        let both = further(&[tcp(), unix("/a"), unix("/b")], &[Some(7), None, None]);
        assert_eq!(both, ["unix: /b", "tcp: port 7"]);
        assert_eq!(further(&[tcp(), tcp()], &[Some(7), Some(8)]), ["tcp: port 8"]);
    }
}
