//! One side of a TLS connection as a state machine over bytes: no socket, no clock.
//!
//! ```text
//!    from the socket --open--> plaintext           plaintext --seal--> [ unsent ] --flush--> to the socket
//!           |                                                              ^
//!           '--> the beginning of a record, kept     handshake, alerts ----'
//! ```
//!
//! Invariants: no plaintext stays in the session between calls, so readiness of the socket is the only thing to wait for. Unsent
//! ciphertext is at most [`SEALED_RECORDS`] of sealed plaintext plus a handshake flight or an alert of rustls. Of the peer's bytes at
//! most a record or a handshake message of 64 KiB is kept. rustls enforces both bounds and ends a session whose peer requests
//! new keys repeatedly.

use std::fmt;
use std::io::{self, BufRead, Write};

use super::names::certificate_names;
use rustls::Connection;

/// Upper bound of what a record has beside its plaintext: 22 bytes with TLS 1.3, 29 with TLS 1.2, and a change of keys in four.
pub const RECORD_EXTRA: usize = 64;
/// Plaintext bytes of one full record; sealed, it has at most 16 KiB.
pub const RECORD_BYTES: usize = (16 << 10) - RECORD_EXTRA;
/// Records that are sealed before they are sent: 64 KiB.
pub const SEALED_RECORDS: usize = 4;
/// Most unsent bytes of a session beside them: a handshake flight or an alert.
const SEALED_EXTRA: usize = 4 << 10;

/// The error that ended a session: one sentence for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsError(String);

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TLS failed: {}", self.0)
    }
}

impl std::error::Error for TlsError {}

impl From<rustls::Error> for TlsError {
    fn from(error: rustls::Error) -> Self {
        Self(match error {
            rustls::Error::AlertReceived(alert) => format!("the other side refused ({alert:?})"),
            rustls::Error::NoCertificatesPresented => "the client sent no certificate".into(),
            other => other.to_string(),
        })
    }
}

impl From<io::Error> for TlsError {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

/// One side of an encrypted connection.
pub struct Session {
    connection: Connection,
    /// The peer closed its sending side.
    is_ended: bool,
    said_goodbye: bool,
}

impl Session {
    /// Creates a session before its handshake.
    #[must_use]
    pub fn new(connection: impl Into<Connection>) -> Self {
        let mut connection = connection.into();
        connection.set_buffer_limit(Some(SEALED_RECORDS * RECORD_BYTES + SEALED_EXTRA));
        Self { connection, is_ended: false, said_goodbye: false }
    }

    /// Returns true while the TLS handshake is incomplete.
    #[must_use]
    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Returns true when the peer closed its sending side.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Returns version and cipher for display; none before the handshake is complete.
    #[must_use]
    pub fn terms(&self) -> Option<String> {
        let version = self.connection.protocol_version()?;
        let suite = self.connection.negotiated_cipher_suite()?.suite();
        let version = version.as_str().unwrap_or("TLS").replace("TLSv1_", "TLS 1.");
        Some(format!("{version}, {}", suite.as_str().unwrap_or("an unnamed cipher")))
    }

    /// Returns the names in the peer's certificate; none if it presented none, or before the handshake is complete.
    #[must_use]
    pub fn peer_names(&self) -> Vec<String> {
        if self.is_handshaking() {
            return Vec::new();
        }
        let chain = self.connection.peer_certificates();
        chain.and_then(<[_]>::first).map(|own| certificate_names(own)).unwrap_or_default()
    }

    /// Decrypts received bytes and passes plaintext on piece by piece.
    ///
    /// # Errors
    /// The session has ended; an alert for the peer is unsent.
    pub fn open(
        &mut self,
        mut bytes: &[u8],
        mut plaintext: impl FnMut(&[u8]),
    ) -> Result<(), TlsError> {
        while !bytes.is_empty() && !self.is_ended {
            self.connection.read_tls(&mut bytes)?;
            let state = self.connection.process_new_packets()?;
            let mut left = state.plaintext_bytes_to_read();
            let mut reader = self.connection.reader();
            while left > 0 {
                let piece = reader.fill_buf()?;
                let count = piece.len();
                plaintext(piece);
                reader.consume(count);
                left -= count;
            }
            self.is_ended = state.peer_has_closed();
        }
        Ok(())
    }

    /// Encrypts plaintext; at most [`SEALED_RECORDS`] full records before the next flush.
    ///
    /// # Errors
    /// The handshake is incomplete, or too much is unsent.
    pub fn seal(&mut self, plaintext: &[u8]) -> Result<(), TlsError> {
        if self.is_handshaking() {
            return Err(TlsError("the keys are not negotiated yet".into()));
        }
        match self.connection.writer().write(plaintext)? {
            count if count == plaintext.len() => Ok(()),
            _ => Err(TlsError("too much encrypted data is buffered".into())),
        }
    }

    /// Queues the closing alert, once, if the handshake is complete.
    pub fn goodbye(&mut self) {
        if !std::mem::replace(&mut self.said_goodbye, true) && !self.is_handshaking() {
            self.connection.send_close_notify();
        }
    }

    /// Returns true when the closing alert was queued or cannot be.
    #[must_use]
    pub fn said_goodbye(&self) -> bool {
        self.said_goodbye
    }

    /// Returns true when ciphertext waits for the socket.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        self.connection.wants_write()
    }

    /// Writes ciphertext to the socket; returns true when none is left, false when the socket is full.
    ///
    /// # Errors
    /// An error of the socket.
    pub fn flush(&mut self, socket: &mut impl Write) -> io::Result<bool> {
        while self.connection.wants_write() {
            match self.connection.write_tls(socket) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("is_ended", &self.is_ended).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::testing::Certificates;
    use crate::tls::{TlsMode, Trust};

    /// Moves unsent ciphertext to the other side; returns the plaintext there.
    fn carry(from: &mut Session, to: &mut Session) -> Result<Vec<u8>, TlsError> {
        let (bytes, mut plain) = (unsent(from), Vec::new());
        to.open(&bytes, |piece| plain.extend_from_slice(piece)).map(|()| plain)
    }

    fn unsent(from: &mut Session) -> Vec<u8> {
        let mut bytes = Vec::new();
        assert!(from.flush(&mut bytes).unwrap());
        bytes
    }

    fn shake(client: &mut Session, server: &mut Session) -> Result<(), TlsError> {
        while client.is_handshaking() || server.is_handshaking() {
            carry(client, server)?;
            carry(server, client)?;
        }
        Ok(())
    }

    fn pair(certificates: &Certificates) -> (Session, Session) {
        let mut client = certificates.client();
        let mut server = certificates.offer(TlsMode::On, false).session().unwrap();
        shake(&mut client, &mut server).unwrap();
        (client, server)
    }

    #[test]
    fn sealed_bytes_open_on_the_other_side() {
        let (mut client, mut server) = pair(&Certificates::new("sealed"));
        assert!(server.terms().unwrap().starts_with("TLS 1.3, "), "{:?}", server.terms());
        for len in [1, 28, RECORD_BYTES - 1, RECORD_BYTES, RECORD_BYTES + 1, 4 * RECORD_BYTES] {
            let data: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
            client.seal(&data).unwrap();
            assert!(carry(&mut client, &mut server).unwrap() == data, "{len}");
            server.seal(&data).unwrap();
            assert!(carry(&mut server, &mut client).unwrap() == data, "{len}");
        }
        client.goodbye();
        client.goodbye();
        assert!(carry(&mut client, &mut server).unwrap().is_empty());
        assert!(server.is_ended() && !client.is_ended() && client.said_goodbye());
    }

    #[test]
    fn seal_before_handshake_fails() {
        let certificates = Certificates::new("early");
        let mut server = certificates.offer(TlsMode::On, false).session().unwrap();
        assert!(server.seal(b"x").is_err());
        server.goodbye();
        assert!(!server.has_unsent() && server.said_goodbye());
    }

    #[test]
    fn changed_byte_ends_session_and_alerts_peer() {
        let (mut client, mut server) = pair(&Certificates::new("changed"));
        client.seal(b"secret").unwrap();
        let mut bytes = unsent(&mut client);
        *bytes.last_mut().unwrap() ^= 1;
        let error = server.open(&bytes, |_| panic!("nothing comes out")).unwrap_err();
        assert!(error.to_string().starts_with("TLS failed: "), "{error}");
        let error = carry(&mut server, &mut client).unwrap_err();
        assert!(error.to_string().contains("refused (BadRecordMac)"), "{error}");
    }

    #[test]
    fn key_updates_are_limited() {
        let (mut client, mut server) = pair(&Certificates::new("keys"));
        let renew = |client: &mut Session| client.connection.refresh_traffic_keys().unwrap();
        renew(&mut client);
        carry(&mut client, &mut server).unwrap();
        server.seal(b"with new keys").unwrap();
        assert_eq!(carry(&mut server, &mut client).unwrap(), b"with new keys");
        let mut turns = 0;
        let error = loop {
            renew(&mut client);
            turns += 1;
            if let Err(error) = carry(&mut client, &mut server) {
                break error;
            }
            assert!(turns < 100, "somebody who does nothing else is cut off");
            assert!(unsent(&mut server).len() < 100);
        };
        assert!(error.to_string().contains("TooManyKeyUpdateRequests"), "{error}");
    }

    #[test]
    fn unread_ciphertext_stays_bounded() {
        let (_, mut server) = pair(&Certificates::new("grow"));
        let sealed = (0..1000).take_while(|_| server.seal(&[0; RECORD_BYTES]).is_ok()).count();
        assert_eq!(sealed, 4, "and the fifth is refused, not kept");
        assert!(unsent(&mut server).len() <= (64 << 10) + SEALED_EXTRA);
    }

    /// Each row: (the client's trust, its host, whether clients are verified) and the expected error.
    #[test]
    fn each_side_verifies_as_configured() {
        let (ours, others) = (Certificates::new("ours"), Certificates::new("others"));
        let nobody = Certificates::new("nobody");
        std::fs::remove_file(nobody.directory().join("client-cert.pem")).unwrap();
        std::fs::copy(ours.directory().join("ca-cert.pem"), nobody.directory().join("ca-cert.pem"))
            .unwrap();
        let named = |name: &str| Trust { hostname: Some(name.into()), ..ours.trust() };
        let anybody = Trust { verify_peer: false, ..others.trust() };
        let cases = [
            (ours.trust(), Some("localhost"), true, None),
            (ours.trust(), None, true, None),
            (named("localhost"), Some("10.0.0.1"), false, None),
            (named("elsewhere"), Some("localhost"), false, Some("not valid for name")),
            (ours.trust(), Some("127.0.0.1"), false, Some("not valid for name")),
            (others.trust(), Some("localhost"), false, Some("invalid peer certificate")),
            (others.trust(), None, false, Some("invalid peer certificate")),
            (anybody.clone(), Some("localhost"), false, None),
            (anybody, Some("localhost"), true, Some("invalid peer certificate")),
            (nobody.trust(), None, false, None),
            (nobody.trust(), None, true, Some("the client sent no certificate")),
        ];
        for (index, (trust, host, verify_peer, complaint)) in cases.into_iter().enumerate() {
            let mut client = trust.session(host).unwrap();
            let mut server = ours.offer(TlsMode::On, verify_peer).session().unwrap();
            let outcome = shake(&mut client, &mut server).err().map(|error| error.to_string());
            match complaint {
                None => assert_eq!(outcome, None, "case {index}"),
                Some(part) => {
                    let said = outcome.expect("it is refused");
                    assert!(said.contains(part), "case {index}: {said}");
                }
            }
        }
    }

    /// Each of a client's intermediate certificates may cost the check of a signature, before the client has proved anything.
    #[test]
    fn long_chain_of_client_is_refused_before_it_is_checked() {
        let certificates = Certificates::new("chain");
        let own = certificates.directory().join("client-cert.pem");
        let (first, other) = (
            std::fs::read_to_string(&own).unwrap(),
            std::fs::read_to_string(certificates.directory().join("ca-cert.pem")).unwrap(),
        );
        for (intermediates, complaint) in
            [(6, None), (7, Some("7 intermediate certificates")), (90, Some("90 intermediate"))]
        {
            std::fs::write(&own, first.clone() + &other.repeat(intermediates)).unwrap();
            let mut server = certificates.offer(TlsMode::On, true).session().unwrap();
            let said = shake(&mut certificates.client(), &mut server).err();
            let said = said.map(|error| error.to_string());
            match complaint {
                None => assert_eq!(said, None),
                Some(part) => assert!(said.as_ref().unwrap().contains(part), "{said:?}"),
            }
        }
    }
}
