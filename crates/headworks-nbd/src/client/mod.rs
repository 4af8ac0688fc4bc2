//! A lean NBD client for measurements, tests, and queries of a server's exports.
//!
//! [`Client`] has one request in flight. [`mod@bench`] keeps many in flight on each connection and uses little CPU itself, so that it
//! measures the server. Both share the parts: [`Uri`], option negotiation in `handshake`, and the parser in `replies`.
//!
//! A server's violation of the protocol is an error of one sentence, never a panic.

use std::fmt;
use std::io::{self, Read, Write};
use std::time::Duration;

use crate::wire::{Command, CommandFlags, NbdError, RequestHeader, SIMPLE_REPLY_BYTES};

mod arrivals;
pub mod bench;
pub mod blocks;
mod contents;
pub(crate) mod coverage;
mod crowd;
mod handshake;
mod histogram;
mod pipeline;
pub(crate) mod replies;
mod socket;
pub mod stamp;
mod status;
mod tls;
mod uri;
mod worker;

pub use contents::Contents;
pub use handshake::{Export, Listed, OptionNegotiation};
pub use histogram::Histogram;
pub use socket::{Socket, connect_unix};
pub use uri::{Target, Uri};
pub use worker::cpu_time;

pub use status::Map;

use coverage::Coverage;
use replies::{Next, Reply};

/// An error of the client.
#[derive(Debug)]
pub enum ClientError {
    /// A URI or an option is invalid: what is wrong and what would be right.
    Usage(String),
    /// The connection could not be opened.
    Connect(String, io::Error),
    /// The connection broke.
    Io(io::Error),
    /// The server has closed the connection.
    Closed,
    /// The server did not answer in time.
    TimedOut,
    /// The server violated the protocol.
    Protocol(String),
    /// The server refused an option.
    Refused(String),
    /// A request failed.
    Request(NbdError),
    /// TLS could not be set up, or failed: one sentence.
    Tls(String),
    /// A read returned other bytes than were written.
    Verify(String),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientError::Usage(message) => f.write_str(message),
            ClientError::Connect(target, error) => write!(f, "cannot connect to {target}: {error}"),
            ClientError::Io(error) => write!(f, "the connection broke: {error}"),
            ClientError::Closed => f.write_str("the server closed the connection"),
            ClientError::TimedOut => f.write_str("the server did not answer in time"),
            ClientError::Protocol(message) => {
                write!(f, "the server breaks the protocol: {message}")
            }
            ClientError::Refused(message) => write!(f, "the server refused: {message}"),
            ClientError::Request(error) => write!(f, "the request failed: {error}"),
            ClientError::Tls(message) => f.write_str(message),
            ClientError::Verify(message) => write!(f, "verify failed: {message}"),
        }
    }
}

impl std::error::Error for ClientError {}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::*;
        match error.kind() {
            // Which of the three occurs depends only on timing.
            BrokenPipe | ConnectionReset | UnexpectedEof => ClientError::Closed,
            // The errors of SO_RCVTIMEO and SO_SNDTIMEO.
            WouldBlock | TimedOut => ClientError::TimedOut,
            // Only encrypted streams return these.
            InvalidData => ClientError::Tls(error.to_string()),
            _ => ClientError::Io(error),
        }
    }
}

fn protocol(message: impl Into<String>) -> ClientError {
    ClientError::Protocol(message.into())
}

/// Options of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ClientOptions {
    /// Negotiate structured replies if the server knows them.
    pub structured: bool,
    /// Choose the context `base:allocation` for [`Client::block_status`] if the server knows it; needs structured replies.
    pub allocation: bool,
    /// Time without an answer after which a request fails.
    pub timeout: Duration,
}

impl Default for ClientOptions {
    /// Simple replies, as Linux's client; one minute, longer than the time-out of a disk.
    fn default() -> Self {
        Self { structured: false, allocation: false, timeout: Duration::from_secs(60) }
    }
}

/// A connection to one export with one request in flight.
#[derive(Debug)]
pub struct Client {
    socket: Socket,
    export: Export,
    cookie: u64,
}

impl Client {
    /// Connects and opens the export that `uri` names.
    pub fn connect(uri: &Uri, options: ClientOptions) -> Result<Self, ClientError> {
        let mut negotiation = OptionNegotiation::open(uri, options.timeout)?;
        if options.structured {
            negotiation.ask_structured()?;
        }
        if options.allocation {
            negotiation.ask_allocation(&uri.export)?;
        }
        let (socket, export) = negotiation.go(&uri.export)?;
        Ok(Self::from_parts(socket, export))
    }

    /// Creates a client from an idle connection in the transmission phase.
    #[must_use]
    pub fn from_parts(socket: Socket, export: Export) -> Self {
        Self { socket, export, cookie: 0 }
    }

    /// Returns the server's description of the export.
    #[must_use]
    pub fn export(&self) -> &Export {
        &self.export
    }

    /// Returns the idle connection and the description of its export.
    #[must_use]
    pub fn into_parts(self) -> (Socket, Export) {
        (self.socket, self.export)
    }

    /// Reads from `offset` into `buffer`.
    pub fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), ClientError> {
        let len = request_len(buffer.len())?;
        self.call(Command::Read, CommandFlags::NONE, (offset, len), &[], buffer)
    }

    /// Writes `data` at `offset`.
    pub fn write(
        &mut self,
        offset: u64,
        data: &[u8],
        flags: CommandFlags,
    ) -> Result<(), ClientError> {
        let len = request_len(data.len())?;
        self.call(Command::Write, flags, (offset, len), data, &mut [])
    }

    /// Makes all acknowledged writes durable.
    pub fn flush(&mut self) -> Result<(), ClientError> {
        self.call(Command::Flush, CommandFlags::NONE, (0, 0), &[], &mut [])
    }

    /// Discards the contents of a range.
    pub fn trim(&mut self, offset: u64, len: u32, flags: CommandFlags) -> Result<(), ClientError> {
        self.call(Command::Trim, flags, (offset, len), &[], &mut [])
    }

    /// Writes zeros to a range.
    pub fn write_zeroes(
        &mut self,
        offset: u64,
        len: u32,
        flags: CommandFlags,
    ) -> Result<(), ClientError> {
        self.call(Command::WriteZeroes, flags, (offset, len), &[], &mut [])
    }

    /// Disconnects in an orderly way.
    pub fn disconnect(mut self) -> Result<(), ClientError> {
        let header = self.header(Command::Disconnect, CommandFlags::NONE, (0, 0));
        Ok(self.socket.write_all(&header.encode())?)
    }

    fn header(
        &mut self,
        command: Command,
        flags: CommandFlags,
        range: (u64, u32),
    ) -> RequestHeader {
        self.cookie += 1;
        RequestHeader {
            flags: flags.0,
            command: command as u16,
            cookie: self.cookie,
            offset: range.0,
            len: range.1,
        }
    }

    /// Sends one request and parses its reply, which may have several chunks.
    fn call(
        &mut self,
        command: Command,
        flags: CommandFlags,
        range: (u64, u32),
        data: &[u8],
        buffer: &mut [u8],
    ) -> Result<(), ClientError> {
        let header = self.header(command, flags, range);
        self.socket.write_all(&header.encode())?;
        self.socket.write_all(data)?;
        let (mut outcome, mut covered) = (Ok(()), Coverage::default());
        loop {
            let reply = self.next_reply()?;
            if reply.cookie() != self.cookie {
                return Err(protocol("a reply that matches no request"));
            }
            covered.count(range.1).map_err(protocol)?;
            match reply {
                Reply::Simple { error: Some(error), .. } => {
                    return Err(ClientError::Request(error));
                }
                Reply::Simple { error: None, .. } => {
                    self.socket.read_exact(buffer)?;
                    return Ok(());
                }
                Reply::Data { offset, len, .. } => {
                    let piece = piece(buffer, range.0, offset, len)?;
                    covered.add((offset - range.0) as u32, len).map_err(protocol)?;
                    self.socket.read_exact(piece)?;
                }
                Reply::Hole { offset, len, .. } => {
                    piece(buffer, range.0, offset, len)?.fill(0);
                    covered.add((offset - range.0) as u32, len).map_err(protocol)?;
                }
                Reply::Failed { error, .. } => outcome = Err(ClientError::Request(error)),
                Reply::Nothing { .. } => {}
                Reply::Status { .. } => return Err(protocol("an unrequested block status")),
            }
            if reply.is_last() {
                if outcome.is_ok() && !covered.is_whole(buffer.len() as u32) {
                    return Err(protocol("a read was answered only in part"));
                }
                return outcome;
            }
        }
    }

    fn next_reply(&mut self) -> Result<Reply, ClientError> {
        let mut bytes = vec![0; SIMPLE_REPLY_BYTES];
        let mut have = 0;
        loop {
            self.socket.read_exact(&mut bytes[have..])?;
            match replies::parse(&bytes)? {
                Next::Reply(_, reply) => return Ok(reply),
                Next::Needs(wanted) => {
                    have = bytes.len();
                    bytes.resize(wanted, 0);
                }
            }
        }
    }
}

fn request_len(len: usize) -> Result<u32, ClientError> {
    u32::try_from(len)
        .map_err(|_| ClientError::Usage(format!("{len} bytes do not fit in one request")))
}

/// Returns the part of a read's buffer that a chunk covers.
fn piece(buffer: &mut [u8], base: u64, offset: u64, len: u32) -> Result<&mut [u8], ClientError> {
    let start = offset.checked_sub(base).and_then(|start| usize::try_from(start).ok());
    start
        .and_then(|start| buffer.get_mut(start..start.checked_add(len as usize)?))
        .ok_or_else(|| protocol("a chunk outside the requested range"))
}
