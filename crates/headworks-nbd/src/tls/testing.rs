//! Certificates for tests, generated each time: a CA, a server named `localhost`, a client.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use super::{Session, TlsAcceptor, TlsMode, TlsOptions, Trust};

/// A directory of certificates, removed on drop.
pub struct Certificates(PathBuf);

impl Certificates {
    /// Generates the files; `name` is that of the test.
    pub fn new(name: &str) -> Self {
        let directory =
            std::env::temp_dir().join(format!("headworks-tls-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let write = |file: &str, text: String| std::fs::write(directory.join(file), text).unwrap();
        write("ca-cert.pem", authority.pem());
        for (who, host) in [("server", "localhost"), ("client", "somebody")] {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
            let certificate = params.signed_by(&key, &authority).unwrap();
            write(&format!("{who}-cert.pem"), certificate.pem());
            write(&format!("{who}-key.pem"), key.serialize_pem());
        }
        Self(directory)
    }

    /// Replaces the server's certificate by one of its own, which is valid from one year to another.
    pub fn renew_server(&self, (from, until): (i32, i32)) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(from, 1, 1);
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(self.0.join("server-cert.pem"), certificate.pem()).unwrap();
        std::fs::write(self.0.join("server-key.pem"), key.serialize_pem()).unwrap();
    }

    /// Returns the directory of the files.
    pub fn directory(&self) -> &Path {
        &self.0
    }

    /// Returns the server's side of TLS.
    pub fn offer(&self, mode: TlsMode, verify_peer: bool) -> Arc<TlsAcceptor> {
        let certificates = Some(self.0.clone());
        let options = TlsOptions { mode, certificates, verify_peer };
        Arc::new(TlsAcceptor::new(&options).unwrap().unwrap())
    }

    /// Returns the options of a client that trusts the server.
    pub fn trust(&self) -> Trust {
        Trust { certificates: Some(self.0.clone()), ..Trust::default() }
    }

    /// Returns a client's session before its handshake.
    pub fn client(&self) -> Session {
        self.trust().session(Some("localhost")).unwrap()
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
