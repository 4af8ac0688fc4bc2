//! What a connection borrows of a shard, and a connection with its client's end, for tests.

use std::os::unix::net::UnixStream;

use headworks_core::{Input, Instant};
use headworks_house::Pool;
use headworks_nbd::{ExportInfo, Negotiated};

use super::{
    Connection, ConnectionLimits, ExportBinding, LimitGate, ReceiveOutcome, Shares, TurnShare,
};
use headworks_front::memory::Memory;

/// A shard's part, without a shard.
pub struct Bench {
    pub pool: Pool,
    pub inputs: Vec<Input>,
    /// Bio slots that are free.
    pub room: u32,
    /// The volume is frozen.
    pub frozen: bool,
    pub exports: Vec<ExportInfo>,
    /// Window of incomplete payloads.
    pub window: u32,
    /// Shares of the pool; the connection has slot 0.
    pub memory: Memory,
    scratch: Vec<u8>,
}

impl Bench {
    /// A shard with a pool of `bytes`.
    pub fn new(bytes: usize, room: u32) -> Self {
        let (pool, scratch) = (Pool::new(bytes).unwrap(), vec![0; 256 << 10]);
        Self {
            pool,
            inputs: Vec::new(),
            room,
            frozen: false,
            exports: Vec::new(),
            window: 1 << 20,
            memory: Memory::new(bytes, 1),
            scratch,
        }
    }

    /// Lets a connection receive once.
    pub fn receive(
        &mut self,
        connection: &mut Connection,
        now: u64,
        limits: Option<LimitGate<'_>>,
    ) -> ReceiveOutcome {
        self.lend(now, limits, |shares| connection.receive(shares))
    }

    /// Lends a client what a shard lends it in a turn.
    pub fn lend<T>(
        &mut self,
        now: u64,
        limits: Option<LimitGate<'_>>,
        turn: impl FnOnce(&mut Shares<'_>) -> T,
    ) -> T {
        let mut shares = Shares {
            now: Instant(now),
            scratch: &mut self.scratch,
            pool: &mut self.pool,
            memory: self.memory.share(0),
            from_cache: false,
            frozen: self.frozen,
            limits,
            exports: &self.exports,
            window: self.window,
            turn: TurnShare {
                room: self.room,
                large_reads: 1 << 20,
                large_payloads: 1 << 20,
                received: 0,
            },
            inputs: &mut self.inputs,
        };
        let outcome = turn(&mut shares);
        self.room = shares.turn.room;
        outcome
    }
}

/// A connection in transmission, its client's end, and its part of a shard.
pub struct Rig {
    pub connection: Connection,
    pub theirs: UnixStream,
    pub bench: Bench,
}

impl Rig {
    /// A client of an export.
    pub fn new(limits: ConnectionLimits, export: &ExportInfo, mut bench: Bench) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut connection = Connection::new(ours.into(), "test".into(), limits, Instant(0));
        connection.begin(Instant(0), ExportBinding::default(), export, Negotiated::default());
        connection.send(Instant(0), &mut bench.pool, &mut Vec::new()).unwrap();
        Self { connection, theirs, bench }
    }

    /// Receives once, without limits.
    pub fn receive(&mut self, now: u64) -> ReceiveOutcome {
        self.bench.receive(&mut self.connection, now, None)
    }
}

/// The header of a request.
pub fn header(command: u16, cookie: u64, offset: u64, len: u32) -> [u8; 28] {
    let mut header = [0; 28];
    header[..4].copy_from_slice(&0x2560_9513_u32.to_be_bytes());
    header[6..8].copy_from_slice(&command.to_be_bytes());
    header[8..16].copy_from_slice(&cookie.to_be_bytes());
    header[16..24].copy_from_slice(&offset.to_be_bytes());
    header[24..].copy_from_slice(&len.to_be_bytes());
    header
}
