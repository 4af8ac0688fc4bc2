//! A directory of PEM files, under the names that libnbd, nbdkit and qemu give them.
//!
//! | file | whose | what |
//! |---|---|---|
//! | `ca-cert.pem` | both | who may sign the other side's certificate |
//! | `server-cert.pem`, `server-key.pem` | the server | what it shows, with all certificates between it and the CA, and its key |
//! | `client-cert.pem`, `client-key.pem` | a client | the same, for servers that verify clients |
//!
//! What is missing or bad is told in one sentence with the file's name.

use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// What one side shows of itself.
pub struct Identity {
    /// Its certificate first, then those between it and the CA.
    pub chain: Vec<CertificateDer<'static>>,
    /// The certificate's key.
    pub key: PrivateKeyDer<'static>,
}

/// The certificate and the key of `who`: `server` or `client`.
///
/// # Errors
/// Which file is missing or bad.
pub fn identity(directory: &Path, who: &str) -> Result<Identity, String> {
    let chain = certificates(&directory.join(format!("{who}-cert.pem")))?;
    let path = directory.join(format!("{who}-key.pem"));
    let key = PrivateKeyDer::from_pem_file(&path).map_err(|error| match error {
        pem::Error::NoItemsFound => {
            format!("{} has no private key in PEM without a password", path.display())
        }
        other => bad(&path, &other),
    })?;
    Ok(Identity { chain, key })
}

/// Whether the directory has a certificate of `who`.
#[must_use]
pub fn has_identity(directory: &Path, who: &str) -> bool {
    directory.join(format!("{who}-cert.pem")).exists()
}

/// The certificates of `ca-cert.pem`.
///
/// # Errors
/// It is missing or bad.
pub fn authorities(directory: &Path) -> Result<RootCertStore, String> {
    let path = authorities_path(directory);
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&path)? {
        roots.add(certificate).map_err(|error| {
            format!("{} has a certificate that is not usable: {error}", path.display())
        })?;
    }
    Ok(roots)
}

/// Where [`authorities`] looks.
#[must_use]
pub fn authorities_path(directory: &Path) -> PathBuf {
    directory.join("ca-cert.pem")
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).and_then(|certificates| certificates.collect());
    match found {
        Ok(found) if found.is_empty() => {
            Err(format!("{} has no certificate in PEM", path.display()))
        }
        Ok(found) => Ok(found),
        Err(error) => Err(bad(path, &error)),
    }
}

fn bad(path: &Path, error: &pem::Error) -> String {
    match error {
        pem::Error::Io(error) => format!("cannot read {}: {error}", path.display()),
        other => format!("{} is not in PEM: {other}", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::testing::Certificates;

    fn complaint(directory: &Path) -> String {
        identity(directory, "server").err().expect("it is bad")
    }

    #[test]
    fn a_missing_or_bad_file_is_named() {
        let certificates = Certificates::new("files");
        let directory = certificates.directory();
        assert!(identity(directory, "server").is_ok() && authorities(directory).is_ok());
        let key = directory.join("server-key.pem");
        std::fs::write(
            &key,
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
        )
        .unwrap();
        assert!(complaint(directory).contains("server-key.pem has no private key in PEM without"));
        std::fs::write(&key, "-----BEGIN PRIVATE KEY-----\n!\n-----END PRIVATE KEY-----\n")
            .unwrap();
        assert!(complaint(directory).contains("server-key.pem is not in PEM"));
        let certificate = directory.join("server-cert.pem");
        std::fs::write(&certificate, "nothing").unwrap();
        assert!(complaint(directory).contains("server-cert.pem has no certificate in PEM"));
        std::fs::remove_file(&certificate).unwrap();
        assert!(complaint(directory).starts_with("cannot read "), "{}", complaint(directory));
        std::fs::remove_file(authorities_path(directory)).unwrap();
        assert!(authorities(directory).err().unwrap().contains("ca-cert.pem: No such file"));
    }
}
