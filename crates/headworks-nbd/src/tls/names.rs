//! The names of a client in its certificate: the common names of the subject, and alternative names of the kinds DNS, URI and e-mail.
//!
//! Only a certificate that was verified counts, so a name is what the CA has signed. All kinds count alike: the CA has to check each
//! kind that it signs. At most [`NAMES_MAX`] names of [`NAME_BYTES_MAX`] bytes are taken; a longer name is left out and not cut, because
//! a part of it could be another client's name.

use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Most names of one certificate.
pub const NAMES_MAX: usize = 32;
/// Longest name in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// Returns the names in a certificate in DER; none if it cannot be read.
#[must_use]
pub fn certificate_names(der: &[u8]) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(der) else { return Vec::new() };
    let common = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    // A second extension of the kind is an error, after which none counts.
    let alternative = certificate.subject_alternative_name().ok().flatten();
    let alternative = alternative.iter().flat_map(|found| &found.value.general_names);
    let alternative = alternative.filter_map(|name| match name {
        GeneralName::DNSName(name) | GeneralName::URI(name) | GeneralName::RFC822Name(name) => {
            Some(*name)
        }
        _ => None,
    });
    let fits = |name: &&str| !name.is_empty() && name.len() <= NAME_BYTES_MAX;
    let mut names: Vec<String> = Vec::new();
    for name in common.chain(alternative).filter(fits).take(NAMES_MAX) {
        if !names.iter().any(|other| other == name) {
            names.push(name.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    fn names(common: &str, alternative: Vec<SanType>) -> Vec<String> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, common);
        params.subject_alt_names = alternative;
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        certificate_names(certificate.der())
    }

    fn dns(name: &str) -> SanType {
        SanType::DnsName(name.try_into().unwrap())
    }

    #[test]
    fn common_and_alternative_names_are_taken_once() {
        let alternative = vec![
            dns("host1.acme.example"),
            SanType::URI("spiffe://acme/db".try_into().unwrap()),
            SanType::Rfc822Name("db@acme.example".try_into().unwrap()),
            SanType::IpAddress("127.0.0.1".parse().unwrap()),
            dns("acme db"),
        ];
        let expected = ["acme db", "host1.acme.example", "spiffe://acme/db", "db@acme.example"];
        assert_eq!(names("acme db", alternative), expected);
        assert_eq!(names("only", Vec::new()), ["only"]);
    }

    #[test]
    fn names_are_bounded_in_number_and_length() {
        let many = (0..100).map(|number| dns(&format!("n{number}"))).collect();
        let taken = names("first", many);
        assert_eq!((taken.len(), taken[0].as_str(), taken[31].as_str()), (32, "first", "n30"));
        let (long, longest) = ("x".repeat(NAME_BYTES_MAX + 1), "y".repeat(NAME_BYTES_MAX));
        assert_eq!(names("a", vec![dns(&long), dns(&longest)]), ["a".to_owned(), longest]);
    }

    #[test]
    fn bytes_that_are_no_certificate_have_no_names() {
        let certificate = CertificateParams::new(vec!["a".to_owned()]).unwrap();
        let whole = certificate.self_signed(&KeyPair::generate().unwrap()).unwrap();
        for len in 0..whole.der().len() {
            assert_eq!(certificate_names(&whole.der()[..len]), Vec::<String>::new(), "{len}");
        }
        let mut prng = headworks_core::prng::Prng::new(5);
        for _ in 0..2000 {
            let mut bytes = whole.der().to_vec();
            for _ in 0..1 + prng.below(4) {
                let at = prng.below(bytes.len() as u64) as usize;
                bytes[at] = prng.next() as u8;
            }
            assert!(certificate_names(&bytes).len() <= NAMES_MAX);
        }
    }
}
