//! What a connection borrows of a shard, for tests.

use headworks::driver::Pool;
use headworks_core::{Input, Instant};
use headworks_nbd::ExportInfo;

use super::{Connection, LimitGate, ReceiveOutcome, Shares, TurnShare};
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
        let received = connection.receive(&mut shares);
        self.room = shares.turn.room;
        received
    }
}
