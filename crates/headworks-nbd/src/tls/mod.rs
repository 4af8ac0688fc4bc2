//! TLS below NBD: certificates from files, and a session that turns bytes into other bytes.
//!
//! ```text
//!   files --> Offer (server) --session()--> Session <--session()-- Trust (client) <-- files
//!                                             |
//!              ciphertext in: open --> plaintext     plaintext: seal --> ciphertext out
//! ```
//!
//! `session` is sans-IO: who owns the socket moves the bytes. `frontend::nbd::transport` does that for the server,
//! `client::tls` for our own client. The protocol itself is rustls's, versions 1.2 and 1.3, and X.509 only: it has no external
//! pre-shared keys.
//!
//! Sessions are not resumed and no early data are taken, so nothing of one connection is kept for another.

pub mod acceptor;
pub mod files;
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

/// Whether clients may or must encrypt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// Nobody can.
    #[default]
    Off,
    /// Who wants can.
    On,
    /// Nobody gets anything without.
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

/// How a server encrypts.
#[derive(Clone, Debug, Default)]
pub struct TlsOptions {
    /// Whether clients may or must.
    pub mode: TlsMode,
    /// Where `server-cert.pem`, `server-key.pem` and, to verify clients, `ca-cert.pem` are.
    pub certificates: Option<PathBuf>,
    /// Clients must show a certificate that one of `ca-cert.pem` has signed.
    pub verify_peer: bool,
}

/// The one implementation of the ciphers.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
