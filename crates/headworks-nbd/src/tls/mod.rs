//! TLS below NBD: certificates from files, and sessions over bytes.
//!
//! ```text
//!   files --> Offer (server) --session()--> Session <--session()-- Trust (client) <-- files
//!                                             |
//!              ciphertext in: open --> plaintext     plaintext: seal --> ciphertext out
//! ```
//!
//! `session` is sans-IO: the owner of the socket moves the bytes (the server's transport, and `client::tls`). The protocol is
//! rustls's, versions 1.2 and 1.3, with X.509 certificates only: it has no external pre-shared keys.
//!
//! A verified client has the names in its certificate (`names`).
//!
//! Sessions are not resumed and early data are refused, so no state outlives its connection.

pub mod acceptor;
pub mod files;
pub mod names;
pub mod pieces;
pub mod session;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
pub mod trust;

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use headworks_core::ConfigError;
use rustls::crypto::CryptoProvider;

pub use acceptor::TlsAcceptor;
pub use session::{Session, TlsError};
pub use trust::Trust;

/// TLS policy of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// TLS is not offered.
    #[default]
    Off,
    /// TLS is offered and optional.
    On,
    /// Clients without TLS are refused.
    Require,
}

impl FromStr for TlsMode {
    type Err = ConfigError;

    fn from_str(word: &str) -> Result<Self, ConfigError> {
        match word {
            "off" => Ok(Self::Off),
            "on" => Ok(Self::On),
            "require" => Ok(Self::Require),
            _ => Err(ConfigError::new("tls", format!("`{word}` is none of off, on, require"))),
        }
    }
}

/// TLS options of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// Policy for clients without TLS.
    pub mode: TlsMode,
    /// Directory of `server-cert.pem`, `server-key.pem` and, to verify clients, `ca-cert.pem`.
    pub certificates: Option<PathBuf>,
    /// Clients must present a certificate signed by a CA of `ca-cert.pem`.
    pub verify_peer: bool,
}

impl TlsOptions {
    /// Whether clients that use TLS must present a certificate.
    #[must_use]
    pub fn verifies(&self) -> bool {
        self.mode != TlsMode::Off && self.verify_peer
    }
}

/// The implementation of the ciphers.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
