//! NBD URIs: address of a server and name of an export.
//!
//! ```text
//!   nbd://HOST[:PORT]/EXPORT               TCP; the port is 10809 unless given; HOST may be [an IPv6 address]
//!   nbd+unix:///EXPORT?socket=PATH         a unix socket; %00NAME is an abstract one
//!   nbds://..., nbds+unix://...            the same through TLS, never without; with the parameters
//!      tls-certificates=DIR                ca-cert.pem, and client-cert.pem and client-key.pem if the server wants them
//!      tls-hostname=NAME                   expected name in the server's certificate, if it is not HOST
//!      tls-verify-peer=0                   accept any certificate
//! ```
//!
//! Names and paths are percent-encoded. An unknown parameter is an error, because it may concern security.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::str::FromStr;

use super::ClientError;
use crate::tls::Trust;

/// The port of NBD registered with IANA.
pub const PORT: u16 = 10809;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A unix socket. A path that begins with NUL is an abstract address.
    Unix(PathBuf),
    /// A host name or address, and a port.
    Tcp(String, u16),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Unix(path) => write!(f, "unix socket {path:?}"),
            Target::Tcp(host, port) => write!(f, "{host} port {port}"),
        }
    }
}

/// The URI of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    /// Address of the server.
    pub target: Target,
    /// Name of the export; empty for the default.
    pub export: String,
    /// TLS options; none for the clear.
    pub tls: Option<Trust>,
}

impl Uri {
    /// Returns the host; none for a unix socket.
    pub(super) fn host(&self) -> Option<&str> {
        match &self.target {
            Target::Tcp(host, _) => Some(host),
            Target::Unix(_) => None,
        }
    }
}

impl FromStr for Uri {
    type Err = ClientError;

    fn from_str(text: &str) -> Result<Self, ClientError> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| no(text, HOW))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let export = String::from_utf8(decode(text, path)?)
            .map_err(|_| no(text, "the export's name is not UTF-8"))?;
        let (is_unix, is_encrypted) = match scheme {
            "nbd" => (false, false),
            "nbds" => (false, true),
            "nbd+unix" => (true, false),
            "nbds+unix" => (true, true),
            _ => return Err(no(text, HOW)),
        };
        let (tls, rest) = trust(text, query, is_encrypted)?;
        let target = match is_unix {
            true => unix(text, authority, &rest)?,
            false => tcp(text, authority, &rest)?,
        };
        Ok(Self { target, export, tls })
    }
}

const HOW: &str = "write nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=PATH";

fn no(text: &str, why: &str) -> ClientError {
    ClientError::Usage(format!("cannot use URI {text:?}: {why}"))
}

fn tcp(text: &str, authority: &str, query: &[(&str, &str)]) -> Result<Target, ClientError> {
    if let Some((key, _)) = query.first() {
        return Err(no(text, &format!("the parameter {key:?} is not known")));
    }
    if authority.contains('@') {
        return Err(no(text, "users belong to pre-shared keys, which are not supported"));
    }
    // A colon inside brackets belongs to an IPv6 address.
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port),
        _ => (authority, ""),
    };
    let port = match port {
        "" => PORT,
        digits => digits.parse().map_err(|_| no(text, "the port must be 1 to 65535"))?,
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = String::from_utf8(decode(text, host)?).unwrap_or_default();
    if host.is_empty() {
        return Err(no(text, "the host is missing"));
    }
    Ok(Target::Tcp(host, port))
}

fn unix(text: &str, authority: &str, query: &[(&str, &str)]) -> Result<Target, ClientError> {
    if !authority.is_empty() {
        return Err(no(text, "a unix socket has no host; write three slashes"));
    }
    let mut socket = None;
    for &(key, value) in query {
        if key != "socket" {
            return Err(no(text, &format!("the parameter {key:?} is not known")));
        }
        socket = Some(decode(text, value)?);
    }
    match socket {
        Some(path) if !path.is_empty() => Ok(Target::Unix(OsString::from_vec(path).into())),
        _ => Err(no(text, "the parameter socket=PATH is missing")),
    }
}

/// Splits the parameters of TLS from the other ones.
#[allow(clippy::type_complexity)] // Said once, here.
fn trust<'a>(
    text: &str,
    query: &'a str,
    is_encrypted: bool,
) -> Result<(Option<Trust>, Vec<(&'a str, &'a str)>), ClientError> {
    let (ours, rest): (Vec<_>, Vec<_>) =
        parameters(query).partition(|(key, _)| key.starts_with("tls-"));
    let mut trust = Trust::default();
    for (key, value) in ours {
        if !is_encrypted {
            return Err(no(text, &format!("the parameter {key:?} needs nbds or nbds+unix")));
        }
        let value = decode(text, value)?;
        match (key, value.as_slice()) {
            ("tls-certificates", _) => trust.certificates = Some(OsString::from_vec(value).into()),
            ("tls-hostname", _) => {
                let name = String::from_utf8(value);
                trust.hostname = Some(name.map_err(|_| no(text, "tls-hostname is not UTF-8"))?);
            }
            ("tls-verify-peer", b"0" | b"false") => trust.verify_peer = false,
            ("tls-verify-peer", b"1" | b"true") => trust.verify_peer = true,
            ("tls-verify-peer", _) => return Err(no(text, "tls-verify-peer must be 0 or 1")),
            ("tls-type", b"x509") => {}
            ("tls-type", _) => return Err(no(text, "of TLS only tls-type=x509 is supported")),
            ("tls-psk-file", _) => {
                return Err(no(text, "pre-shared keys are not supported; use tls-certificates"));
            }
            _ => return Err(no(text, &format!("the parameter {key:?} is not known"))),
        }
    }
    Ok((is_encrypted.then_some(trust), rest))
}

/// Iterates over the parameters of a query, without private ones (x-...), which are ignored by convention.
fn parameters(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .filter(|(key, _)| !key.starts_with("x-"))
}

fn decode(text: &str, encoded: &str) -> Result<Vec<u8>, ClientError> {
    let mut bytes = encoded.bytes();
    let mut decoded = Vec::with_capacity(encoded.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err(no(text, "% must be followed by two hexadecimal digits"));
        };
        decoded.push((high * 16 + low) as u8);
    }
    Ok(decoded)
}

/// Bytes with percent-encoding for a path or a parameter.
struct Encoded<'a>(&'a [u8]);

impl fmt::Display for Encoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &byte in self.0 {
            if byte.is_ascii_alphanumeric() || b"-._~/:".contains(&byte) {
                write!(f, "{}", char::from(byte))?;
            } else {
                write!(f, "%{byte:02X}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let export = Encoded(self.export.as_bytes());
        let scheme = if self.tls.is_some() { "nbds" } else { "nbd" };
        let mut mark = '?';
        match &self.target {
            Target::Unix(path) => {
                let socket = Encoded(path.as_os_str().as_bytes());
                write!(f, "{scheme}+unix:///{export}?socket={socket}")?;
                mark = '&';
            }
            Target::Tcp(host, port) if host.contains(':') => {
                write!(f, "{scheme}://[{host}]:{port}/{export}")?;
            }
            Target::Tcp(host, port) => write!(f, "{scheme}://{host}:{port}/{export}")?,
        }
        let Some(trust) = &self.tls else {
            return Ok(());
        };
        let certificates = trust.certificates.as_ref().map(|path| path.as_os_str().as_bytes());
        let parameters = [
            ("tls-certificates", certificates),
            ("tls-hostname", trust.hostname.as_ref().map(String::as_bytes)),
            ("tls-verify-peer", (!trust.verify_peer).then_some(b"0")),
        ];
        for (key, value) in parameters {
            if let Some(value) = value {
                write!(f, "{}{key}={}", std::mem::replace(&mut mark, '&'), Encoded(value))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Uri {
        text.parse().expect("a good URI")
    }

    fn uri(target: Target, export: &str) -> Uri {
        Uri { target, export: export.into(), tls: None }
    }

    #[test]
    fn valid_uris_parse() {
        let tcp = |host: &str, port| Target::Tcp(host.into(), port);
        let unix = |path: &str| Target::Unix(path.into());
        assert_eq!(parsed("nbd://localhost"), uri(tcp("localhost", 10809), ""));
        assert_eq!(parsed("nbd://a.b:99/"), uri(tcp("a.b", 99), ""));
        assert_eq!(parsed("nbd://[::1]/x%20y"), uri(tcp("::1", 10809), "x y"));
        assert_eq!(parsed("nbd://[::1]:7/a/b"), uri(tcp("::1", 7), "a/b"));
        assert_eq!(parsed("nbd+unix:///?socket=/s"), uri(unix("/s"), ""));
        assert_eq!(
            parsed("nbd+unix:///%C3%A4?x-mine=1&socket=/a%26b%25"),
            uri(unix("/a&b%"), "\u{e4}")
        );
        assert_eq!(parsed("nbd+unix://?socket=%00hidden"), uri(unix("\0hidden"), ""));
    }

    #[test]
    fn nbds_parses_tls_parameters() {
        let text = "nbds://[::1]/x?tls-certificates=/pki&tls-hostname=h&tls-verify-peer=1";
        let trust = Trust {
            certificates: Some("/pki".into()),
            hostname: Some("h".into()),
            verify_peer: true,
        };
        assert_eq!(parsed(text).tls, Some(trust));
        assert_eq!(parsed("nbds+unix:///?socket=/s").tls, Some(Trust::default()));
        assert!(!parsed("nbds://h/?tls-verify-peer=0&x-y=1").tls.unwrap().verify_peer);
    }

    #[test]
    fn displayed_uri_parses_back() {
        for text in [
            "nbd://localhost:10809/",
            "nbd://[fe80::1]:1/a%20b",
            "nbd+unix:///dir/%3F%25?socket=/tmp/%26x.sock",
            "nbds://h:10809/x?tls-certificates=/etc/my%20pki&tls-hostname=other&tls-verify-peer=0",
            "nbds+unix:///?socket=/s&tls-certificates=/pki",
        ] {
            assert_eq!(parsed(text).to_string(), text);
        }
    }

    #[test]
    fn invalid_uris_name_the_remedy() {
        for (text, part) in [
            ("/dev/sda", "nbd+unix:///EXPORT?socket=PATH"),
            ("http://host/", "nbd://HOST:PORT/EXPORT"),
            ("nbds://host/?tls-verify-peer=maybe", "must be 0 or 1"),
            ("nbds://host/?tls-psk-file=/x", "pre-shared keys are not supported"),
            ("nbds://host/?tls-type=psk", "only tls-type=x509"),
            ("nbds://host/?tls-speed=9", "\"tls-speed\" is not known"),
            ("nbd+unix:///x", "socket=PATH is missing"),
            ("nbd+unix:///x?socket=", "socket=PATH is missing"),
            ("nbd+unix://tmp/x?socket=/s", "three slashes"),
            ("nbd+unix:///?socket=/s&tls-type=x509", "\"tls-type\" needs nbds or nbds+unix"),
            ("nbd://h?socket=/s", "\"socket\" is not known"),
            ("nbd:///x", "host is missing"),
            ("nbd://h:70000/", "port must be"),
            ("nbd://me@h/", "pre-shared keys"),
            ("nbd://h/%4", "two hexadecimal digits"),
            ("nbd://h/%ff", "not UTF-8"),
        ] {
            let error = text.parse::<Uri>().expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
