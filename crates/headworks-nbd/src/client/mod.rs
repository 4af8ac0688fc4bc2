//! A lean NBD client: for measuring servers, for tests, and for asking a server what it serves.
//!
//! [`Client`] does one thing at a time and waits for it. [`bench`] keeps many requests in flight on each connection and
//! costs little itself, so that what it measures is the server. Both stand on the same pieces: a [`Uri`] says where, the
//! haggling in `handshake` gives an [`Export`], `replies` takes the server's stream apart.
//!
//! What a server does wrong is an error with one sentence, never a panic: a client that measures strange servers meets
//! strange bytes.

use std::fmt;
use std::io::{self, Read, Write};
use std::time::Duration;

use crate::wire::{Command, CommandFlags, NbdError, RequestHeader, SIMPLE_REPLY_BYTES};

pub mod bench;
mod handshake;
mod histogram;
mod pipeline;
mod replies;
mod socket;
mod stamp;
mod status;
mod tls;
mod uri;
mod worker;

pub use handshake::{Export, Haggle, Listed};
pub use histogram::Histogram;
pub use socket::Socket;
pub use uri::{Target, Uri};

pub use status::Map;

use replies::{Next, Reply};

/// Why the client could not do what it was asked.
#[derive(Debug)]
pub enum ClientError {
    /// The URI or an option is not usable: what is wrong and what would be right.
    Usage(String),
    /// Nobody answers at the other end.
    Connect(String, io::Error),
    /// The connection broke.
    Io(io::Error),
    /// The server has closed the connection.
    Closed,
    /// The server does not answer.
    TimedOut,
    /// The server said something that the protocol does not allow.
    Protocol(String),
    /// The server refused an option.
    Refused(String),
    /// A request failed.
    Request(NbdError),
    /// No encrypted connection came to be, or it broke: one sentence.
    Tls(String),
    /// The server returned other bytes than were written.
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
            // Which of the three it is depends only on what was on its way at that moment.
            BrokenPipe | ConnectionReset | UnexpectedEof => ClientError::Closed,
            // What a socket says after its SO_RCVTIMEO or SO_SNDTIMEO.
            WouldBlock | TimedOut => ClientError::TimedOut,
            // What sockets never say, but what is encrypted does.
            InvalidData => ClientError::Tls(error.to_string()),
            _ => ClientError::Io(error),
        }
    }
}

fn protocol(message: impl Into<String>) -> ClientError {
    ClientError::Protocol(message.into())
}

/// How to open a connection.
#[derive(Clone, Copy, Debug)]
pub struct ClientOptions {
    /// Ask for structured replies; a server that does not know them is used without.
    pub structured: bool,
    /// Choose the context `base:allocation`, for [`Client::block_status`]; needs structured replies. A server that does not
    /// know it is used without.
    pub allocation: bool,
    /// How long the server may be silent before the client gives up.
    pub timeout: Duration,
}

impl Default for ClientOptions {
    /// Simple replies, as Linux's own client; a minute, more than any disk's own time-out.
    fn default() -> Self {
        Self { structured: false, allocation: false, timeout: Duration::from_secs(60) }
    }
}

/// A connection to one export that does one request at a time.
#[derive(Debug)]
pub struct Client {
    socket: Socket,
    export: Export,
    cookie: u64,
}

impl Client {
    /// Connects and chooses the export that `uri` names.
    pub fn connect(uri: &Uri, options: ClientOptions) -> Result<Self, ClientError> {
        let mut haggle = Haggle::open(uri, options.timeout)?;
        if options.structured {
            haggle.ask_structured()?;
        }
        if options.allocation {
            haggle.ask_allocation(&uri.export)?;
        }
        let (socket, export) = haggle.go(&uri.export)?;
        Ok(Self::from_parts(socket, export))
    }

    /// A connection that is between two requests already.
    #[must_use]
    pub fn from_parts(socket: Socket, export: Export) -> Self {
        Self { socket, export, cookie: 0 }
    }

    /// What the server said of the export.
    #[must_use]
    pub fn export(&self) -> &Export {
        &self.export
    }

    /// The connection as it is between two requests.
    #[must_use]
    pub fn into_parts(self) -> (Socket, Export) {
        (self.socket, self.export)
    }

    /// Fills `buffer` from `offset`.
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

    /// Says that a range is not needed any more.
    pub fn trim(&mut self, offset: u64, len: u32, flags: CommandFlags) -> Result<(), ClientError> {
        self.call(Command::Trim, flags, (offset, len), &[], &mut [])
    }

    /// Makes a range read as zeros.
    pub fn write_zeroes(
        &mut self,
        offset: u64,
        len: u32,
        flags: CommandFlags,
    ) -> Result<(), ClientError> {
        self.call(Command::WriteZeroes, flags, (offset, len), &[], &mut [])
    }

    /// Says goodbye, so that the server need not wonder.
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

    /// Sends one request and takes its reply apart, which may come in several chunks.
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
        let (mut outcome, mut got) = (Ok(()), 0);
        loop {
            let reply = self.next_reply()?;
            if reply.cookie() != self.cookie {
                return Err(protocol("a reply to nobody's request"));
            }
            match reply {
                Reply::Simple { error: Some(error), .. } => {
                    return Err(ClientError::Request(error));
                }
                Reply::Simple { error: None, .. } => {
                    self.socket.read_exact(buffer)?;
                    return Ok(());
                }
                Reply::Data { offset, len, .. } => {
                    self.socket.read_exact(piece(buffer, range.0, offset, len)?)?;
                    got += u64::from(len);
                }
                Reply::Hole { offset, len, .. } => {
                    piece(buffer, range.0, offset, len)?.fill(0);
                    got += u64::from(len);
                }
                Reply::Failed { error, .. } => outcome = Err(ClientError::Request(error)),
                Reply::Nothing { .. } => {}
                Reply::Status { .. } => return Err(protocol("a status that nobody asked for")),
            }
            if reply.is_last() {
                if outcome.is_ok() && got != buffer.len() as u64 {
                    return Err(protocol("a read was answered in part"));
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
    u32::try_from(len).map_err(|_| ClientError::Usage(format!("{len} bytes are no single request")))
}

/// The part of a read's buffer that a chunk is about.
fn piece(buffer: &mut [u8], base: u64, offset: u64, len: u32) -> Result<&mut [u8], ClientError> {
    let start = offset.checked_sub(base).and_then(|start| usize::try_from(start).ok());
    start
        .and_then(|start| buffer.get_mut(start..start.checked_add(len as usize)?))
        .ok_or_else(|| protocol("a chunk lies outside what was asked for"))
}
