//! A directory of PEM files, under the names that libnbd, nbdkit and qemu give them.
//!
//! | file | side | contents |
//! |---|---|---|
//! | `ca-cert.pem` | both | CAs that may sign the peer's certificate |
//! | `server-cert.pem`, `server-key.pem` | server | its certificate with all intermediates, and its key |
//! | `client-cert.pem`, `client-key.pem` | client | the same, for servers that verify clients |
//!
//! An error is one sentence with the name of the file. A file is a regular one, perhaps behind a symbolic link, of at most 1 MiB.

use std::path::{Path, PathBuf};

use headworks::house::safe_open::read_named;
use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Most bytes of a file.
const BYTES_MAX: u64 = 1 << 20;

/// The certificate chain and key of one side.
pub struct Identity {
    /// Its certificate first, then the intermediates.
    pub chain: Vec<CertificateDer<'static>>,
    /// Private key of the certificate.
    pub key: PrivateKeyDer<'static>,
}

/// Reads the certificate and the key of a `side`: `server` or `client`.
///
/// # Errors
/// A file is missing or invalid.
pub fn identity(directory: &Path, side: &str) -> Result<Identity, String> {
    let chain = certificates(&directory.join(format!("{side}-cert.pem")))?;
    let path = directory.join(format!("{side}-key.pem"));
    let key = PrivateKeyDer::from_pem_slice(&read(&path)?).map_err(|error| match error {
        pem::Error::NoItemsFound => {
            format!("{} has no private key in PEM without a password", path.display())
        }
        other => bad(&path, &other),
    })?;
    Ok(Identity { chain, key })
}

/// The sentence about a certificate and a key of a `side` that rustls refuses.
///
/// The library does not say that the length of an RSA key is what it dislikes.
pub fn unusable_identity(directory: &Path, side: &str, error: &rustls::Error) -> String {
    let said = error.to_string();
    let advice = if said.contains("parse private key") {
        "; an RSA key needs 2048, 3072 or 4096 bits: certtool --generate-privkey --bits 3072"
    } else {
        ""
    };
    format!(
        "{side}-cert.pem and {side}-key.pem in {} do not work: {said}{advice}",
        directory.display()
    )
}

/// The sentence about a server's certificate that clients refuse now because of its dates; none if they take it, or it cannot be read.
#[must_use]
pub fn outside_validity(directory: &Path) -> Option<String> {
    let path = directory.join("server-cert.pem");
    let chain = certificates(&path).ok()?;
    let (_, own) = X509Certificate::from_der(chain.first()?).ok()?;
    let (validity, now) = (own.validity(), UnixTime::now().as_secs() as i64);
    let what = match (validity.not_before, validity.not_after) {
        (from, _) if now < from.timestamp() => format!("is not valid before {from}"),
        (_, until) if now > until.timestamp() => format!("expired at {until}"),
        _ => return None,
    };
    Some(format!("{} {what}: clients refuse it", path.display()))
}

/// Returns true when the directory has a certificate of the `side`.
#[must_use]
pub fn has_identity(directory: &Path, side: &str) -> bool {
    directory.join(format!("{side}-cert.pem")).exists()
}

/// Reads the CAs of `ca-cert.pem`.
///
/// # Errors
/// The file is missing or invalid.
pub fn authorities(directory: &Path) -> Result<RootCertStore, String> {
    let path = authorities_path(directory);
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&path)? {
        roots.add(certificate).map_err(|error| {
            format!("{} contains an unusable certificate: {error}", path.display())
        })?;
    }
    Ok(roots)
}

/// Returns the path that [`authorities`] reads.
#[must_use]
pub fn authorities_path(directory: &Path) -> PathBuf {
    directory.join("ca-cert.pem")
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    match CertificateDer::pem_slice_iter(&read(path)?).collect::<Result<Vec<_>, _>>() {
        Ok(found) if found.is_empty() => {
            Err(format!("{} has no certificate in PEM", path.display()))
        }
        Ok(found) => Ok(found),
        Err(error) => Err(bad(path, &error)),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    read_named(path, BYTES_MAX).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

fn bad(path: &Path, error: &pem::Error) -> String {
    format!("{} is not in PEM: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::testing::Certificates;

    fn complaint(directory: &Path) -> String {
        identity(directory, "server").err().expect("it is bad")
    }

    #[test]
    fn error_names_missing_or_invalid_file() {
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
        let made = std::process::Command::new("mkfifo").arg(&certificate).status().unwrap();
        assert!(made.success());
        assert!(
            complaint(directory).ends_with("server-cert.pem: it is a FIFO, not a regular file")
        );
        std::fs::remove_file(authorities_path(directory)).unwrap();
        assert!(authorities(directory).err().unwrap().contains("ca-cert.pem: No such file"));
    }

    #[test]
    fn certificate_is_named_outside_its_validity() {
        let certificates = Certificates::new("dates");
        let directory = certificates.directory();
        assert_eq!(outside_validity(directory), None);
        for (years, part) in
            [((2001, 2002), "expired at Jan"), ((2901, 2902), "is not valid before")]
        {
            certificates.renew_server(years);
            let said = outside_validity(directory).unwrap();
            assert!(said.contains("server-cert.pem ") && said.contains(part), "{said}");
        }
        std::fs::write(directory.join("server-cert.pem"), "nothing").unwrap();
        assert_eq!(outside_validity(directory), None);
    }
}
