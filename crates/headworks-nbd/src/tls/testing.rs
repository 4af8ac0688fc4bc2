//! Certificates for tests, made anew each time: a CA, a server called `localhost`, a client.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use super::{Session, TlsAcceptor, TlsMode, TlsOptions, Trust};

/// A directory with all files; it goes with this.
pub struct Certificates(PathBuf);

impl Certificates {
    /// Makes them. `name` is the test's.
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

    /// Where they are.
    pub fn directory(&self) -> &Path {
        &self.0
    }

    /// A server's side.
    pub fn offer(&self, mode: TlsMode, verify_peer: bool) -> Arc<TlsAcceptor> {
        let certificates = Some(self.0.clone());
        let options = TlsOptions { mode, certificates, verify_peer };
        Arc::new(TlsAcceptor::new(&options).unwrap().unwrap())
    }

    /// How a client meets that server.
    pub fn trust(&self) -> Trust {
        Trust { certificates: Some(self.0.clone()), ..Trust::default() }
    }

    /// A client's side.
    pub fn client(&self) -> Session {
        self.trust().session(Some("localhost")).unwrap()
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
