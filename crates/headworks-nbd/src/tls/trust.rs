//! The client's trust: CAs from files, and how strictly the server's certificate is verified.
//!
//! | `verify_peer` | name | check |
//! |---|---|---|
//! | yes | known | chain up to a CA, validity period, name |
//! | yes | none (unix socket) | chain and validity period |
//! | no | any | possession of the key only |

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use super::files;
use super::{Session, provider};

/// The TLS options of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    /// Directory of `ca-cert.pem`, and of `client-cert.pem` with `client-key.pem` for servers that verify clients.
    pub certificates: Option<PathBuf>,
    /// Expected name in the server's certificate; the host of the address by default.
    pub hostname: Option<String>,
    /// Verify the server's certificate.
    pub verify_peer: bool,
}

impl Default for Trust {
    fn default() -> Self {
        Self { certificates: None, hostname: None, verify_peer: true }
    }
}

/// Placeholder name of a connection without one: it is neither sent nor compared.
const NO_NAME: &str = "localhost";

impl Trust {
    /// Creates a session with the server at `host`, if it has a name.
    ///
    /// # Errors
    /// A file is missing or invalid, in one sentence.
    pub fn session(&self, host: Option<&str>) -> Result<Session, String> {
        let name = self.hostname.as_deref().or(host);
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = match self.roots()? {
            Some(roots) if name.is_some() => {
                let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider());
                builder.with_webpki_verifier(verifier.build().map_err(|error| error.to_string())?)
            }
            roots => {
                let lenient = UncheckedNames { roots, provider: provider() };
                builder.dangerous().with_custom_certificate_verifier(Arc::new(lenient))
            }
        };
        let own = self.certificates.as_deref().filter(|at| files::has_identity(at, "client"));
        let mut config = match own {
            Some(directory) => {
                let files::Identity { chain, key } = files::identity(directory, "client")?;
                builder
                    .with_client_auth_cert(chain, key)
                    .map_err(|error| files::unusable_identity(directory, "client", &error))?
            }
            None => builder.with_no_client_auth(),
        };
        config.resumption = rustls::client::Resumption::disabled();
        config.enable_sni = name.is_some();
        let name = name.unwrap_or(NO_NAME);
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| format!("{name:?} is neither a host name nor an address"))?;
        let connection =
            ClientConnection::new(Arc::new(config), name).map_err(|error| error.to_string())?;
        Ok(Session::new(connection))
    }

    fn roots(&self) -> Result<Option<Arc<RootCertStore>>, String> {
        match (&self.certificates, self.verify_peer) {
            (_, false) => Ok(None),
            (Some(directory), true) => Ok(Some(Arc::new(files::authorities(directory)?))),
            (None, true) => Err("name the directory of the server's ca-cert.pem by \
                                 tls-certificates=DIR, or trust anybody by tls-verify-peer=0"
                .into()),
        }
    }
}

/// Verifies the chain without the name, or nothing.
#[derive(Debug)]
struct UncheckedNames {
    roots: Option<Arc<RootCertStore>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for UncheckedNames {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some(roots) = &self.roots {
            let certificate = ParsedCertificate::try_from(end_entity)?;
            let algorithms = self.provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(
                &certificate,
                roots,
                intermediates,
                now,
                algorithms,
            )?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
