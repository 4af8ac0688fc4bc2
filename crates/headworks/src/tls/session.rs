//! One side of one TLS connection, as a machine over bytes: no socket, no clock.
//!
//! ```text
//!    from the socket                                     to the socket
//!   [ partial | new ] --open--> plaintext    plaintext --seal--> [ unsent ]
//!       ^         |                                                 ^
//!       '- the beginning of a record, kept      handshake, alerts --'
//! ```
//!
//! Invariants: between calls no plaintext stays in here, so whoever has handled what `open` gave and sees an idle socket may
//! sleep; what is unsent is at most [`UNSENT_MAX`] bytes, for a peer that makes us answer and reads nothing is cut off; what is
//! partial is one record, or one message of the handshake; how long that may be is up to whoever owns the socket.

use std::fmt;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};

/// Plaintext of one full record.
pub const RECORD_BYTES: usize = 16 << 10;
/// More than a record's header, its tag and what else a cipher adds.
pub const RECORD_EXTRA: usize = 256;
/// Ciphertext that is gathered before it is sent: four full records, what a unix socket takes at once without being grown.
pub const SEALED_BYTES: usize = 4 * (RECORD_BYTES + RECORD_EXTRA);
/// More unsent ciphertext than this no connection has: a full buffer, and the longest answer of a handshake.
pub const UNSENT_MAX: usize = SEALED_BYTES + (128 << 10);

/// Why a session is over: one sentence for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsError(String);

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TLS failed: {}", self.0)
    }
}

impl std::error::Error for TlsError {}

impl TlsError {
    /// What has come and is no whole message is longer than whoever owns the socket takes.
    #[must_use]
    pub fn too_long() -> Self {
        Self("the other side sent a message that does not end".into())
    }
}

impl From<rustls::Error> for TlsError {
    fn from(error: rustls::Error) -> Self {
        Self(match error {
            rustls::Error::AlertReceived(alert) => format!("the other side refused ({alert:?})"),
            rustls::Error::NoCertificatesPresented => "the client showed no certificate".into(),
            other => other.to_string(),
        })
    }
}

/// The two sides of rustls.
pub trait Machine {
    /// Which of them.
    type Data;

    /// Goes one step; see rustls.
    fn step<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;

    /// What both sides have.
    fn common(&self) -> &rustls::CommonState;
}

impl Machine for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn step<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(bytes)
    }

    fn common(&self) -> &rustls::CommonState {
        self
    }
}

impl Machine for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn step<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(bytes)
    }

    fn common(&self) -> &rustls::CommonState {
        self
    }
}

/// The server's side.
pub type ServerSession = Session<UnbufferedServerConnection>;
/// The client's side.
pub type ClientSession = Session<UnbufferedClientConnection>;

/// One side of a connection.
pub struct Session<M> {
    machine: M,
    unsent: Unsent,
    partial: Vec<u8>,
    /// The other side has said that nothing more comes.
    is_ended: bool,
    said_goodbye: bool,
}

/// Ciphertext on its way to the socket: `bytes[sent..filled]`.
#[derive(Default)]
struct Unsent {
    bytes: Vec<u8>,
    sent: usize,
    filled: usize,
}

impl<M: Machine> Session<M> {
    /// A session that has yet to begin.
    #[must_use]
    pub fn new(machine: M) -> Self {
        Self {
            machine,
            unsent: Unsent::default(),
            partial: Vec::new(),
            is_ended: false,
            said_goodbye: false,
        }
    }

    /// Whether keys have still to be agreed on.
    #[must_use]
    pub fn is_handshaking(&self) -> bool {
        self.machine.common().is_handshaking()
    }

    /// The other side has said goodbye: nothing more comes.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Version and cipher, for people; none before they are agreed on.
    #[must_use]
    pub fn terms(&self) -> Option<String> {
        let common = self.machine.common();
        let (version, suite) = (common.protocol_version()?, common.negotiated_cipher_suite()?);
        let version = version.as_str().unwrap_or("TLS").replace("TLSv1_", "TLS 1.");
        Some(format!("{version}, {}", suite.suite().as_str().unwrap_or("an unnamed cipher")))
    }

    /// What was received before and is no whole record yet: the next bytes belong behind it.
    #[must_use]
    pub fn partial(&self) -> &[u8] {
        &self.partial
    }

    /// Takes apart what was received: [`Session::partial`] and the new bytes behind it. Plaintext is told piece by piece.
    ///
    /// # Errors
    /// The session is over; what the other side should hear of it is unsent.
    pub fn open(
        &mut self,
        bytes: &mut [u8],
        mut plaintext: impl FnMut(&[u8]),
    ) -> Result<(), TlsError> {
        let mut start = 0;
        loop {
            let UnbufferedStatus { discard, state } = self.machine.step(&mut bytes[start..]);
            let goes_on = match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        plaintext(record?.payload);
                    }
                    true
                }
                Ok(ConnectionState::PeerClosed) => {
                    self.is_ended = true;
                    true
                }
                Ok(state) => self.unsent.take(state)?,
                Err(error) => {
                    self.take_alerts();
                    return Err(error.into());
                }
            };
            start += discard;
            if !goes_on {
                break;
            }
        }
        self.partial.clear();
        if !self.is_ended {
            self.partial.extend_from_slice(&bytes[start..]);
        }
        Ok(())
    }

    /// Encrypts; the ciphertext is unsent.
    ///
    /// # Errors
    /// There are no keys (yet, or any more), or too much is unsent.
    pub fn seal(&mut self, plaintext: &[u8]) -> Result<(), TlsError> {
        let records = plaintext.len().div_ceil(RECORD_BYTES).max(1);
        loop {
            match self.machine.step(&mut []).state? {
                ConnectionState::WriteTraffic(mut traffic) => {
                    let room = self.unsent.room(plaintext.len() + records * RECORD_EXTRA)?;
                    let sealed = traffic.encrypt(plaintext, room);
                    self.unsent.filled += sealed.map_err(|error| TlsError(error.to_string()))?;
                    return Ok(());
                }
                other => {
                    if !self.unsent.take(other)? {
                        return Err(TlsError("there are no keys".into()));
                    }
                }
            }
        }
    }

    /// Begins: a client has something to say first.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub fn begin(&mut self) -> Result<(), TlsError> {
        self.open(&mut [], |_| {})
    }

    /// Says that nothing more comes from us, once, if there are keys to say it with.
    pub fn goodbye(&mut self) {
        if std::mem::replace(&mut self.said_goodbye, true) {
            return;
        }
        // A connection that is broken needs no goodbye.
        while let Ok(state) = self.machine.step(&mut []).state {
            if let ConnectionState::WriteTraffic(mut traffic) = state {
                if let Ok(room) = self.unsent.room(RECORD_EXTRA) {
                    self.unsent.filled += traffic.queue_close_notify(room).unwrap_or(0);
                }
                return;
            }
            if !matches!(self.unsent.take(state), Ok(true)) {
                return;
            }
        }
    }

    /// Whether goodbye was said, or could not be.
    #[must_use]
    pub fn said_goodbye(&self) -> bool {
        self.said_goodbye
    }

    /// Ciphertext for the socket.
    #[must_use]
    pub fn unsent(&self) -> &[u8] {
        &self.unsent.bytes[self.unsent.sent..self.unsent.filled]
    }

    /// The socket took so much of it.
    pub fn advance(&mut self, count: usize) {
        self.unsent.sent += count;
        assert!(self.unsent.sent <= self.unsent.filled, "no more than there was");
        if self.unsent.sent == self.unsent.filled {
            (self.unsent.sent, self.unsent.filled) = (0, 0);
        }
    }

    /// What the other side should hear of an error.
    fn take_alerts(&mut self) {
        while let Ok(state) = self.machine.step(&mut []).state {
            if !matches!(self.unsent.take(state), Ok(true)) {
                return;
            }
        }
    }
}

impl Unsent {
    /// Takes what rustls wants to say by itself; false if that is nothing.
    fn take<Data>(&mut self, state: ConnectionState<'_, '_, Data>) -> Result<bool, TlsError> {
        match state {
            ConnectionState::EncodeTlsData(mut data) => {
                let mut wanted = RECORD_EXTRA;
                loop {
                    match data.encode(self.room(wanted)?) {
                        Ok(count) => {
                            self.filled += count;
                            return Ok(true);
                        }
                        Err(EncodeError::InsufficientSize(size)) => wanted = size.required_size,
                        Err(error) => return Err(TlsError(error.to_string())),
                    }
                }
            }
            // It is as good as sent: nothing overtakes it.
            ConnectionState::TransmitTlsData(data) => {
                data.done();
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// At least `wanted` bytes behind what is filled.
    fn room(&mut self, wanted: usize) -> Result<&mut [u8], TlsError> {
        if self.sent > 0 && self.filled + wanted > self.bytes.len() {
            self.bytes.copy_within(self.sent..self.filled, 0);
            (self.sent, self.filled) = (0, self.filled - self.sent);
        }
        let needed = self.filled + wanted;
        if needed > UNSENT_MAX {
            return Err(TlsError("the other side asks for answers and reads none".into()));
        }
        if needed > self.bytes.len() {
            self.bytes.resize(needed.max(SEALED_BYTES), 0);
        }
        Ok(&mut self.bytes[self.filled..])
    }
}

impl<M> fmt::Debug for Session<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("is_ended", &self.is_ended).finish_non_exhaustive()
    }
}
