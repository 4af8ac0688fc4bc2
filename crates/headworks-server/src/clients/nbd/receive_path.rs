//! The receive path of one connection alone, for counting its instructions.
//!
//! ```text
//!   64 requests of 4 KiB in the socket --receive--> 64 bios --reply--> 64 replies in the send queue --send--> socket
//! ```
//!
//! The client's end is on the same thread: it writes prepared bytes and drops what it reads, a few calls for 64 requests. No shard, no
//! reactor and no clock take part, and callgrind counts no instruction of the kernel, so a count is that of [`Connection`] and of what it
//! calls. Each round is checked: 64 bios of the right operation, and as many bytes of replies as the protocol demands.

use std::fmt;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use headworks::driver::Span;
use headworks_core::{Input, Instant, Op, ReplyStage};
use headworks_front::memory::Memory;
use headworks_front::memory::WINDOW_MAX;
use headworks_house::Pool;
use headworks_nbd::wire::{RequestHeader, SIMPLE_REPLY_BYTES};
use headworks_nbd::{Command, ExportInfo, Negotiated, TransmissionFlags};

use super::connection::{
    Connection, ConnectionLimits, ExportBinding, ReceiveOutcome, Shares, TurnShare,
};

/// Requests of a round: as many as a connection submits in a turn.
pub const ROUND: usize = 64;
/// Bytes of a request's data.
const LEN: usize = 4 << 10;
const VOLUME_BYTES: u64 = 1 << 30;
const POOL_BYTES: usize = 16 << 20;
/// Holds all requests of a round, so that one receive takes them.
const SCRATCH_BYTES: usize = 512 << 10;
/// The largest buffer that a program may ask for without a privilege (net.core.wmem_max by default); the kernel doubles it.
const SOCKET_BYTES: usize = 212_992;
/// Sends that one round may need: more mean that the socket is too small for the count to be one of a round.
const SENDS_MAX: usize = 8;

/// What the requests of a round do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceivePathOp {
    /// Reads of 4 KiB.
    Read,
    /// Writes of 4 KiB.
    Write,
}

/// One connection in transmission, with its client.
pub struct ReceivePath {
    connection: Connection,
    client: UnixStream,
    op: Op,
    requests: Vec<u8>,
    /// Bytes of the replies to all of them.
    reply_bytes: usize,
    pool: Pool,
    memory: Memory,
    scratch: Vec<u8>,
    sink: Vec<u8>,
    inputs: Vec<Input>,
    spans: Vec<Span>,
}

impl ReceivePath {
    /// Creates the connection and its client.
    ///
    /// # Errors
    /// No sockets, or no memory.
    pub fn new(op: ReceivePathOp) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("no connection: {error}");
        let (ours, client) = UnixStream::pair().map_err(failed)?;
        for socket in [&ours, &client] {
            socket.set_nonblocking(true).map_err(failed)?;
            set_send_buffer(socket, SOCKET_BYTES);
        }
        let op = match op {
            ReceivePathOp::Read => Op::Read,
            ReceivePathOp::Write => Op::Write,
        };
        let second = 1_000_000_000;
        let limits = ConnectionLimits {
            requests: 2 * ROUND,
            buffer_bytes: POOL_BYTES,
            handshake_ns: 10 * second,
            stall_ns: 60 * second,
        };
        let mut connection = Connection::new(ours.into(), "count".into(), limits, Instant(0));
        let flags = TransmissionFlags::HAS_FLAGS;
        let export = ExportInfo { size: VOLUME_BYTES, flags, ..ExportInfo::default() };
        connection.begin(Instant(0), ExportBinding::default(), &export, Negotiated::default());
        let data = if op == Op::Read { LEN } else { 0 };
        let mut path = Self {
            connection,
            client,
            op,
            requests: requests(op),
            reply_bytes: ROUND * (SIMPLE_REPLY_BYTES + data),
            pool: Pool::new(POOL_BYTES).map_err(failed)?,
            memory: Memory::new(POOL_BYTES, 1),
            scratch: vec![0; SCRATCH_BYTES],
            sink: vec![0; SCRATCH_BYTES],
            inputs: Vec::with_capacity(ROUND),
            spans: Vec::new(),
        };
        path.drop_greeting()?;
        Ok(path)
    }

    fn drop_greeting(&mut self) -> Result<(), String> {
        let sent = self.connection.send(Instant(0), &mut self.pool, &mut self.spans);
        sent.map_err(|error| format!("no greeting: {error}"))?;
        self.client.read(&mut self.sink).map_err(|error| format!("no greeting: {error}"))?;
        Ok(())
    }

    /// Passes the requests once through the connection, and their replies back.
    ///
    /// # Errors
    /// The connection did something else than that.
    #[inline(never)]
    pub fn round(&mut self) -> Result<(), String> {
        self.client
            .write_all(&self.requests)
            .map_err(|error| format!("the socket does not hold {ROUND} requests: {error}"))?;
        let mut received = self.receive();
        // A turn may end in between.
        while received == ReceiveOutcome::Worked && self.inputs.len() < ROUND {
            received = self.receive();
        }
        if self.inputs.len() != ROUND {
            return Err(format!("{} of {ROUND} bios, then {received:?}", self.inputs.len()));
        }
        self.answer()?;
        self.drop_replies()
    }

    #[inline(never)]
    fn receive(&mut self) -> ReceiveOutcome {
        self.connection.receive(&mut Shares {
            now: Instant(0),
            scratch: &mut self.scratch,
            pool: &mut self.pool,
            memory: self.memory.share(0),
            from_cache: false,
            frozen: false,
            limits: None,
            exports: &Vec::<ExportInfo>::new(),
            window: WINDOW_MAX,
            turn: TurnShare {
                room: 1024,
                large_reads: 1 << 20,
                large_payloads: 1 << 20,
                received: 0,
            },
            inputs: &mut self.inputs,
        })
    }

    #[inline(never)]
    fn answer(&mut self) -> Result<(), String> {
        for input in self.inputs.drain(..) {
            let Input::Bio(bio) = input else {
                return Err(format!("{input:?} is no bio"));
            };
            if bio.op != self.op || bio.len as usize != LEN {
                return Err(format!("a bio that was not asked for: {bio:?}"));
            }
            let result = (Ok(()), false, ReplyStage::Final);
            let (now, sequence) = (Instant(0), bio.id.sequence);
            let answered = self.connection.reply(now, sequence, result, &mut self.pool);
            answered.ok_or_else(|| format!("no request has the number {sequence}"))?;
        }
        Ok(())
    }

    #[inline(never)]
    fn drop_replies(&mut self) -> Result<(), String> {
        let mut got = 0;
        for _ in 0..SENDS_MAX {
            let sent = self.connection.send(Instant(0), &mut self.pool, &mut self.spans);
            sent.map_err(|error| format!("sending failed: {error}"))?;
            got +=
                self.client.read(&mut self.sink).map_err(|error| format!("no reply: {error}"))?;
            if got == self.reply_bytes {
                return Ok(());
            }
        }
        Err(format!("{got} bytes of replies, {} expected", self.reply_bytes))
    }
}

impl fmt::Debug for ReceivePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceivePath").field("op", &self.op).finish_non_exhaustive()
    }
}

/// The bytes of a round, as a client sends them.
fn requests(op: Op) -> Vec<u8> {
    let mut bytes = Vec::new();
    for index in 0..ROUND as u64 {
        let command = if op == Op::Read { Command::Read } else { Command::Write };
        let header = RequestHeader {
            flags: 0,
            command: command as u16,
            cookie: index,
            offset: index * LEN as u64,
            len: LEN as u32,
        };
        bytes.extend_from_slice(&header.encode());
        if op == Op::Write {
            bytes.extend_from_slice(&[index as u8; LEN]);
        }
    }
    bytes
}

/// Sets how many bytes a socket holds that its peer has not read, as far as the kernel permits it.
pub(super) fn set_send_buffer(socket: &UnixStream, bytes: usize) {
    let bytes = bytes as libc::c_int;
    let value: *const libc::c_int = &raw const bytes;
    // SAFETY: an open socket, and a value of the size that is said. A refusal shows as a round that does not fit.
    unsafe {
        let len = size_of::<libc::c_int>() as libc::socklen_t;
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, value.cast(), len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_of_reads_and_writes_pass() {
        for op in [ReceivePathOp::Read, ReceivePathOp::Write] {
            let mut path = ReceivePath::new(op).unwrap();
            for _ in 0..3 {
                path.round().unwrap();
            }
            assert_eq!(path.pool.taken(), 0);
        }
    }
}
