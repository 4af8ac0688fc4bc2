//! TLS options: mode, certificates, and the URIs that clients need.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use headworks_core::ConfigError;
use headworks_nbd::tls::{TlsMode, TlsOptions, files};

use super::ListenArgs;
use super::address::{absolute, encode};

/// Derives the TLS mode of the server; `is_used` by listeners, its certificates may be given without TLS of its own. Files are opened
/// when the server starts.
pub(super) fn tls_options(options: &ListenArgs, is_used: bool) -> Result<TlsOptions, ConfigError> {
    let mode: TlsMode = options.tls.parse()?;
    let certificates = options.tls_certificates.as_ref().map(absolute);
    let without = |option, what| {
        let message = format!("{what} has no effect without --tls on or --tls require");
        Err(ConfigError::new(option, message))
    };
    match mode {
        TlsMode::Off if is_used => Ok(TlsOptions::default()),
        TlsMode::Off if certificates.is_some() => without("tls-certificates", "a directory"),
        TlsMode::Off if options.tls_verify_peer => without("tls-verify-peer", "verifying clients"),
        TlsMode::On | TlsMode::Require if certificates.is_none() => {
            let message = "TLS needs the directory of server-cert.pem and server-key.pem";
            Err(ConfigError::new("tls-certificates", message))
        }
        _ => Ok(TlsOptions { mode, certificates, verify_peer: options.tls_verify_peer }),
    }
}

/// A URI with TLS: where it is required the scheme says so, and names the directory of the CA.
pub(super) fn encrypted(uri: String, tls: &TlsOptions) -> String {
    if tls.mode != TlsMode::Require || uri.is_empty() {
        return uri;
    }
    let uri = uri.replacen("nbd", "nbds", 1);
    match tls.certificates.as_deref().filter(|at| files::authorities_path(at).exists()) {
        Some(directory) => with_certificates(&uri, directory),
        None => uri,
    }
}

fn with_certificates(uri: &str, directory: &Path) -> String {
    let mark = if uri.contains('?') { '&' } else { '?' };
    format!("{uri}{mark}tls-certificates={}", encode(directory.as_os_str().as_bytes()))
}

/// Line of the start message.
pub(super) fn note(tls: &TlsOptions) -> Option<String> {
    let peers = if tls.verify_peer { ", with a client certificate" } else { "" };
    match tls.mode {
        TlsMode::Off => None,
        TlsMode::On => {
            Some(format!("TLS is available to clients that ask for it (nbds://){peers}"))
        }
        TlsMode::Require => Some(format!("TLS is required{peers}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uri_names_tls_scheme_and_ca_directory() {
        let directory = std::env::temp_dir().join(format!("headworks uri {}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let mode = TlsMode::Require;
        let tls = TlsOptions { mode, certificates: Some(directory.clone()), verify_peer: false };
        let uri = |uri: &str| encrypted(uri.to_owned(), &tls);
        assert_eq!(uri("nbd://127.0.0.1:10809/nbd"), "nbds://127.0.0.1:10809/nbd");
        std::fs::write(directory.join("ca-cert.pem"), "").unwrap();
        let encoded = encode(directory.as_os_str().as_bytes());
        assert!(encoded.contains("headworks%20uri"));
        assert_eq!(
            uri("nbd+unix:///?socket=/s"),
            format!("nbds+unix:///?socket=/s&tls-certificates={encoded}")
        );
        assert_eq!(uri("nbd://h:1/"), format!("nbds://h:1/?tls-certificates={encoded}"));
        let on = TlsOptions { mode: TlsMode::On, ..tls.clone() };
        assert_eq!(encrypted("nbd://h:1/".into(), &on), "nbd://h:1/");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
