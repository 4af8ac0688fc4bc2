//! The server's certificate and key: read from files at the start and at a reload.
//!
//! Invariant: a reload replaces everything or nothing. Open connections keep their configuration.

use std::path::PathBuf;
use std::sync::{Arc, RwLock};

use headworks_core::ConfigError;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, ServerConfig, ServerConnection,
    SignatureScheme,
};

use super::files;
use super::{Session, TlsError, TlsMode, TlsOptions, provider};

/// The server's side of TLS: creates a session per connection.
#[derive(Debug)]
pub struct TlsAcceptor {
    directory: PathBuf,
    verify_peer: bool,
    is_required: bool,
    /// Locked once per connection, at STARTTLS.
    config: RwLock<Arc<ServerConfig>>,
}

impl TlsAcceptor {
    /// Reads the files; returns none when TLS is off.
    ///
    /// # Errors
    /// A file is missing or invalid, in one sentence.
    pub fn new(options: &TlsOptions) -> Result<Option<Self>, ConfigError> {
        if options.mode == TlsMode::Off {
            return Ok(None);
        }
        let Some(directory) = options.certificates.clone() else {
            let message = "TLS needs the directory of server-cert.pem and server-key.pem";
            return Err(ConfigError::new("tls-certificates", message));
        };
        let config = read(&directory, options.verify_peer)
            .map_err(|message| ConfigError::new("tls-certificates", message))?;
        Ok(Some(Self {
            directory,
            verify_peer: options.verify_peer,
            is_required: options.mode == TlsMode::Require,
            config: RwLock::new(Arc::new(config)),
        }))
    }

    /// Returns true when clients must use TLS.
    #[must_use]
    pub fn is_required(&self) -> bool {
        self.is_required
    }

    /// Returns true when clients must present a certificate of the CA.
    #[must_use]
    pub fn verifies_peers(&self) -> bool {
        self.verify_peer
    }

    /// Reads the files again for later connections.
    ///
    /// # Errors
    /// A file is missing or invalid, or clients would refuse the certificate because of its dates; the old configuration stays in use.
    pub fn reload(&self) -> Result<(), String> {
        if let Some(why) = files::outside_validity(&self.directory) {
            return Err(why);
        }
        let config = Arc::new(read(&self.directory, self.verify_peer)?);
        *self.config.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = config;
        Ok(())
    }

    /// Creates the session of a connection after STARTTLS.
    ///
    /// # Errors
    /// rustls rejects the configuration.
    pub fn session(&self) -> Result<Session, TlsError> {
        let config = self.config.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        Ok(Session::new(ServerConnection::new(Arc::clone(&config))?))
    }
}

fn read(directory: &std::path::Path, verify_peer: bool) -> Result<ServerConfig, String> {
    let files::Identity { chain, key } = files::identity(directory, "server")?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = if verify_peer {
        let roots = Arc::new(files::authorities(directory)?);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build();
        let verifier = verifier.map_err(|error| error.to_string())?;
        builder.with_client_cert_verifier(Arc::new(ShortChains(verifier)))
    } else {
        builder.with_no_client_auth()
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|error| files::unusable_identity(directory, "server", &error))?;
    // Connections of a block device are long-lived: resumption saves nothing, and its secrets would have to be kept.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(config)
}

/// Most intermediate certificates of a client. Each may have a signature that is checked before the client has proved anything, and the
/// library tries a hundred: 30 ms of the thread for each attempt.
const INTERMEDIATES_MAX: usize = 6;

/// Verifies clients' certificates as rustls does, but refuses long chains before anything of them is checked.
#[derive(Debug)]
struct ShortChains(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for ShortChains {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if intermediates.len() > INTERMEDIATES_MAX {
            return Err(Error::General(format!(
                "the client sent {} intermediate certificates, more than {INTERMEDIATES_MAX}",
                intermediates.len()
            )));
        }
        self.0.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
