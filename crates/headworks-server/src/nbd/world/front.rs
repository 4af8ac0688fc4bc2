//! What stands for the reactor in the world: the shared state that connections receive with, and whose turn it is.
//!
//! It knows no hot list: every connection is tried each turn, so what the world finds is the connection's. Waiters for buffers come in the
//! order of arrival, those whose clients take their replies first.

use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

use headworks::driver::{Pool, Span};
use headworks_core::limits::{LimitTree, NodeId};
use headworks_core::{Input, Instant};
use headworks_nbd::{ExportInfo, Negotiated};

use super::client::Client;
use crate::nbd::connection::{
    Connection, ConnectionLimits, ExportBinding, LimitGate, ReceiveOutcome, Shares, TurnShare,
};
use headworks_front::WaitsFor;
use headworks_front::memory::{Held, Memory};
use headworks_front::outgoing::SendOutcome;

/// Weight of a connection's limits.
const WEIGHT: u32 = 100;
/// Bytes of large reads in a turn.
const LARGE_READS: usize = 1 << 20;
/// Bytes of large payloads in a turn, of all and of one connection.
const LARGE_PAYLOADS: (usize, usize) = (128 << 10, 256 << 10);

/// A client, its connection, and the socket between them.
pub struct Line {
    pub client: Client,
    /// None between a close and the next connect.
    pub connection: Option<Box<Connection>>,
    /// The client's end; none when it has vanished.
    pub end: Option<UnixStream>,
    leaf: Option<NodeId>,
    /// Cookies of reads whose bios were made.
    pub submitted: std::collections::BTreeSet<u64>,
    /// Number of the last write whose bio was made.
    pub last_write: u64,
    /// Dropped data of a reply are to be read again.
    is_due: bool,
}

impl Line {
    pub fn new(client: Client) -> Self {
        let submitted = std::collections::BTreeSet::new();
        Self {
            client,
            connection: None,
            end: None,
            leaf: None,
            submitted,
            last_write: 0,
            is_due: false,
        }
    }

    /// Bytes that the server's socket has, and it has not received.
    pub fn unread(&self) -> usize {
        let socket = self.connection.as_ref().and_then(|connection| connection.socket());
        socket.map_or(0, readable)
    }

    /// Bytes that the client's socket has, and it has not received.
    pub fn unread_replies(&self) -> usize {
        self.end.as_ref().map_or(0, |end| readable(end.as_raw_fd()))
    }
}

/// Bytes that can be read from a socket.
fn readable(fd: RawFd) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: an open socket, and a place for the number.
    unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut bytes) };
    usize::try_from(bytes).unwrap_or(0)
}

/// What large requests may still take of a turn.
pub struct TurnShares {
    reads: usize,
    payloads: usize,
}

/// The state of a shard in front of its policy.
pub struct Front {
    pub pool: Pool,
    memory: Memory,
    pub tree: LimitTree,
    pub limited: bool,
    /// Connections that wait for a buffer or a bio slot, in the order of arrival.
    pub waiters: Vec<usize>,
    /// Bio slots of the shard.
    pub slots: u32,
    pub in_flight: u32,
    pub frozen: bool,
    pub stuck: bool,
    /// Nothing is received: connections are about to be handed over.
    pub paused: bool,
    pub bounds: ConnectionLimits,
    pub inputs: Vec<Input>,
    scratch: Vec<u8>,
    spans: Vec<Span>,
    exports: Vec<ExportInfo>,
    next_id: u32,
}

impl Front {
    pub fn new(
        pool_bytes: usize,
        clients: usize,
        slots: u32,
        bounds: ConnectionLimits,
    ) -> Result<Self, String> {
        let pool = Pool::new(pool_bytes).map_err(|error| format!("no pool: {error}"))?;
        Ok(Self {
            pool,
            memory: Memory::new(pool_bytes, clients),
            tree: LimitTree::new(clients + 2),
            limited: false,
            waiters: Vec::new(),
            slots,
            in_flight: 0,
            frozen: false,
            stuck: false,
            paused: false,
            bounds,
            inputs: Vec::new(),
            scratch: vec![0; 256 << 10],
            spans: Vec::new(),
            exports: Vec::new(),
            next_id: 0,
        })
    }

    /// The export has so many bytes.
    pub fn set_size(&mut self, size: u64) {
        self.exports = vec![ExportInfo { size, ..ExportInfo::default() }];
    }

    fn id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id
    }

    /// Connects a client, in transmission.
    pub fn connect(
        &mut self,
        now: Instant,
        line: &mut Line,
        export: &ExportInfo,
    ) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("no socket: {error}");
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        theirs.set_nonblocking(true).map_err(failed)?;
        let mut connection = Connection::new(ours.into(), "client".into(), self.bounds, now);
        connection.set_id(self.id());
        connection.begin(now, ExportBinding::default(), export, terms(line));
        connection.send(now, &mut self.pool, &mut self.spans).map_err(failed)?;
        let mut greeting = [0; 18];
        std::io::Read::read_exact(&mut &theirs, &mut greeting).map_err(failed)?;
        (line.connection, line.end) = (Some(Box::new(connection)), Some(theirs));
        line.submitted.clear();
        line.last_write = 0;
        Ok(())
    }

    /// Moves a connection as to another process and back; false if it cannot move now.
    pub fn hand_over(&mut self, now: Instant, line: &mut Line, export: &ExportInfo) -> bool {
        let Some(connection) = &mut line.connection else { return true };
        let Some(handed) = connection.hand_over() else { return false };
        connection.close(&mut self.pool);
        if let Some(leaf) = line.leaf.take() {
            self.tree.remove(now, leaf);
        }
        let mut adopted = Connection::adopt(handed, self.bounds, now);
        adopted.set_id(self.id());
        adopted.begin(now, ExportBinding::default(), export, terms(line));
        line.connection = Some(Box::new(adopted));
        true
    }

    /// Shares of a turn.
    pub fn begin_turn(&self, connections: usize) -> TurnShares {
        TurnShares { reads: LARGE_READS, payloads: LARGE_PAYLOADS.0 + connections * (8 << 10) }
    }

    /// Receives once from a connection.
    pub fn receive(
        &mut self,
        now: Instant,
        (index, line): (usize, &mut Line),
        shares: &mut TurnShares,
    ) -> ReceiveOutcome {
        let Some(connection) = &mut line.connection else { return ReceiveOutcome::Idle };
        connection.set_refuses(self.stuck);
        let limits = if self.limited {
            let tree = &mut self.tree;
            let owner = index as u32;
            let leaf =
                *line.leaf.get_or_insert_with(|| tree.add_leaf(LimitTree::ROOT, WEIGHT, owner));
            Some(LimitGate { tree, leaf })
        } else {
            None
        };
        let room = self.slots - self.in_flight;
        let given = if shares.payloads > 0 { LARGE_PAYLOADS.1 } else { 0 };
        let large_payloads = given;
        let turn = TurnShare { room, large_reads: shares.reads, large_payloads, received: 0 };
        let mut lent = Shares {
            now,
            scratch: &mut self.scratch,
            pool: &mut self.pool,
            memory: self.memory.share(index as u32),
            from_cache: false,
            frozen: self.frozen,
            limits,
            exports: &self.exports,
            window: self.memory.window(connection.export_of_requests()),
            turn,
            inputs: &mut self.inputs,
        };
        let received = connection.receive(&mut lent);
        let TurnShare { room: left, large_reads, large_payloads, .. } = lent.turn;
        shares.reads = large_reads;
        shares.payloads = shares.payloads.saturating_sub(given - large_payloads);
        self.in_flight += room - left;
        self.memory.note_payload(index as u32, connection.kept_payload());
        self.note_waiter(
            index,
            matches!(received, ReceiveOutcome::Waits(WaitsFor::Buffer | WaitsFor::Room)),
        );
        received
    }

    fn note_waiter(&mut self, index: usize, waits: bool) {
        match (waits, self.waiters.contains(&index)) {
            (true, false) => self.waiters.push(index),
            (false, true) => self.waiters.retain(|&other| other != index),
            _ => {}
        }
    }

    /// Records what each connection holds, and brings waiters whose clients take their replies to the front.
    pub fn note_held(&mut self, now: Instant, lines: &[Line]) {
        let ExportBinding { export, device, .. } = ExportBinding::default();
        for (slot, line) in lines.iter().enumerate() {
            let Some(connection) = &line.connection else { continue };
            let held = Held {
                bytes: connection.held(),
                request_bytes: connection.request_bytes(),
                requests: connection.in_flight(),
            };
            let stalled = connection.is_stalled(now);
            self.memory.note(slot as u32, Some((export, device)), held, stalled);
        }
        let is_stalled = |index: usize| {
            let connection = lines[index].connection.as_ref();
            connection.is_none_or(|connection| connection.is_stalled(now))
        };
        self.waiters.sort_by_key(|&index| is_stalled(index));
    }

    /// Sends once; returns the bytes that were sent, and whether dropped data are to be read again from now on.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn send(&mut self, now: Instant, line: &mut Line) -> Result<(u64, bool), String> {
        let Some(connection) = &mut line.connection else { return Ok((0, false)) };
        if let Some(fault) = connection.take_fault() {
            return Err(fault);
        }
        let before = connection.sent_bytes();
        let sent = connection.send(now, &mut self.pool, &mut self.spans);
        let sent = sent.map_err(|error| format!("sending failed: {error}"))?;
        let was_due = line.is_due;
        line.is_due = sent == SendOutcome::Dropped && connection.note_dropped_next();
        Ok((connection.sent_bytes() - before, line.is_due && !was_due))
    }

    /// Lets requests pass that the limits agree to; returns their number.
    pub fn pass(&mut self, now: Instant, lines: &mut [Line]) -> u64 {
        let mut passed = 0;
        while let Some(one) = self.tree.pop(now) {
            passed += 1;
            let line = &mut lines[one.owner as usize];
            if let (Some(connection), Some(leaf)) = (&mut line.connection, line.leaf)
                && let Some(next) = connection.pass(one.direction)
            {
                self.tree.wait(now, leaf, next);
            }
        }
        passed
    }

    /// Returns what incomplete payloads keep and have not received, as where a connection is watched.
    pub fn cut_payloads(&mut self, lines: &mut [Line]) {
        for connection in lines.iter_mut().filter_map(|line| line.connection.as_mut()) {
            connection.cut_payload(&mut self.pool);
        }
    }

    /// Lets everything pass that a connection has waiting for limits.
    pub fn pass_all(&mut self, now: Instant, line: &mut Line) {
        if let Some(connection) = &mut line.connection
            && connection.parked() > 0
        {
            connection.pass_all();
            self.forget_limits(now, line);
        }
    }

    fn forget_limits(&mut self, now: Instant, line: &mut Line) {
        if let Some(leaf) = line.leaf.take() {
            self.tree.remove(now, leaf);
        }
    }

    /// Closes a connection; it is returned if requests of it are in the shard.
    pub fn close(
        &mut self,
        now: Instant,
        index: usize,
        line: &mut Line,
    ) -> Option<Box<Connection>> {
        self.forget_limits(now, line);
        self.note_waiter(index, false);
        self.memory.forget(index as u32);
        let mut connection = line.connection.take()?;
        connection.close(&mut self.pool);
        (!connection.is_finished()).then_some(connection)
    }

    /// Drops unread replies while a connection waits for a buffer; returns how many.
    pub fn give_way(&mut self, now: Instant, lines: &mut [Line]) -> u64 {
        let mut dropped = 0;
        let Some(&first) = self.waiters.first() else { return 0 };
        for (index, line) in lines.iter_mut().enumerate() {
            let Some(connection) = &mut line.connection else { continue };
            if index != first && connection.droppable(now) > 0 {
                dropped += connection.drop_data(now, 1, &mut self.pool).1 as u64;
            }
        }
        dropped
    }
}

fn terms(line: &Line) -> Negotiated {
    Negotiated { structured: line.client.structured, base_allocation: false }
}
