//! What stands for the reactor in the world: the shared state that connections receive with, and whose turn it is.
//!
//! As in the reactor a connection is tried while it is hot. One that waits is heated by what ends its wait, one whose client is to send more by
//! its bytes; waiters for buffers and bio slots are woken by [`Memory::wake`], and unread replies give way to the first of them. At rest the
//! world tries every connection once (`rest`): nothing must move.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

use headworks::driver::Span;
use headworks_core::limits::{LimitTree, NodeId};
use headworks_core::time::MS;
use headworks_core::{DeviceId, ExportId, Input, Instant, VolumeId};
use headworks_house::Pool;
use headworks_nbd::{ExportInfo, Negotiated};

use super::client::Client;
use super::rings::RingLine;
use crate::clients::nbd::connection::{
    Connection, ConnectionLimits, ExportBinding, LimitGate, ReceiveOutcome, Shares, TurnShare,
};
use crate::clients::nbd::receive_path::set_send_buffer;
use headworks_front::WaitsFor;
use headworks_front::memory::{Held, Memory, Supply, Wanted};
use headworks_front::outgoing::{SendOutcome, TAKEN_WITHIN_NS};

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
    pub submitted: BTreeSet<u64>,
    /// Number of the last write whose bio was made.
    pub last_write: u64,
    /// How long requests waited for limits, thaws, buffers and slots in virtual time, by cookie.
    pub waits: BTreeMap<u64, u64>,
    /// For how long a request waits for a buffer now.
    pub buffer_ns: u64,
    /// Dropped data of a reply are to be read again.
    is_due: bool,
    /// It is tried in each turn.
    pub hot: bool,
    /// Number of its export.
    pub export: u16,
    /// The largest window that its payload had since it began.
    pub window: u32,
    /// How long each answered request took, in the world of a quiet export.
    pub took: Vec<u64>,
    /// Time for which the server did not take what the client could send, for want of a buffer or a slot.
    pub blocked_ns: u64,
}

impl Line {
    pub fn new(client: Client, export: u16) -> Self {
        let submitted = BTreeSet::new();
        Self {
            client,
            connection: None,
            end: None,
            leaf: None,
            submitted,
            last_write: 0,
            waits: BTreeMap::new(),
            buffer_ns: 0,
            is_due: false,
            hot: true,
            export,
            window: 0,
            took: Vec::new(),
            blocked_ns: 0,
        }
    }

    /// The export as its connection knows it: each has a volume and a device of its own.
    pub fn binding(&self) -> ExportBinding {
        let Self { export, .. } = *self;
        let (volume, device) = (VolumeId(export), DeviceId(export));
        ExportBinding { volume, export: ExportId(export), device, ..ExportBinding::default() }
    }

    /// The process of the server has died: its end of the socket is closed.
    pub fn die(&mut self) {
        (self.connection, self.leaf) = (None, None);
    }

    /// Whether the engine would tell that its socket can be read from.
    pub fn is_readable(&self) -> bool {
        let waits = |connection: &Connection| connection.stopped_by() != WaitsFor::Nothing;
        self.connection.as_ref().is_some_and(|connection| !waits(connection))
            && (self.unread() > 0 || self.end.is_none())
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
    pub memory: Memory,
    pub tree: LimitTree,
    /// Nodes of the exports.
    pub groups: Vec<NodeId>,
    pub limited: bool,
    /// The export that is frozen at times, and whose device does not answer at times.
    pub troubled: u16,
    /// When to look for unread replies next.
    pub look_at: Option<Instant>,
    /// Bio slots of the shard.
    pub slots: u32,
    pub in_flight: u32,
    pub frozen: bool,
    /// Its device does not answer.
    pub silent: bool,
    /// The same is known: what is sent to it fails at once.
    pub stuck: bool,
    /// Nothing is received: connections are about to be handed over.
    pub paused: bool,
    pub bounds: ConnectionLimits,
    pub inputs: Vec<Input>,
    pub scratch: Vec<u8>,
    spans: Vec<Span>,
    pub exports: Vec<ExportInfo>,
    next_id: u32,
    /// Bytes that sockets hold of unread replies; 0: as many as they do by default.
    send_buffer: usize,
    /// Devices of machines, whose slots follow those of connections.
    pub rings: Vec<RingLine>,
}

impl Front {
    pub fn new(
        pool_bytes: usize,
        clients: usize,
        exports: u16,
        slots: u32,
        bounds: ConnectionLimits,
    ) -> Result<Self, String> {
        let pool = Pool::new(pool_bytes).map_err(|error| format!("no pool: {error}"))?;
        let mut memory = Memory::new(pool_bytes, clients);
        memory.set_devices((0..exports).map(DeviceId));
        let mut tree = LimitTree::new(clients + 8);
        let groups = (0..exports)
            .map(|export| tree.add_group(LimitTree::ROOT, WEIGHT, u32::from(export)))
            .collect();
        Ok(Self {
            pool,
            memory,
            tree,
            groups,
            limited: false,
            troubled: exports - 1,
            look_at: None,
            slots,
            in_flight: 0,
            frozen: false,
            silent: false,
            stuck: false,
            paused: false,
            bounds,
            inputs: Vec::new(),
            scratch: vec![0; 256 << 10],
            spans: Vec::new(),
            exports: Vec::new(),
            next_id: 0,
            send_buffer: 0,
            rings: Vec::new(),
        })
    }

    /// Sockets hold so many bytes of unread replies from now on; 0: as many as they do by default.
    pub fn set_send_buffer(&mut self, bytes: usize) {
        self.send_buffer = bytes;
    }

    /// Whether the shared part of the pool has a block of so many bytes.
    pub fn has_block(&mut self, bytes: usize) -> bool {
        let Self { pool, memory, .. } = self;
        let shared = memory.limits().shared();
        let fits = Pool::block_bytes(bytes).is_some_and(|block| pool.taken() + block <= shared);
        fits && pool.try_take(bytes).map(|block| pool.put(block)).is_some()
    }

    /// The export has so many bytes.
    pub fn set_size(&mut self, size: u64) {
        self.exports = vec![ExportInfo { size, ..ExportInfo::default() }; self.groups.len()];
    }

    /// The id of a new client.
    pub fn id(&mut self) -> u32 {
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
        if self.send_buffer > 0 {
            set_send_buffer(&ours, self.send_buffer);
        }
        let mut connection = Connection::new(ours.into(), "client".into(), self.bounds, now);
        connection.set_id(self.id());
        connection.begin(now, line.binding(), export, terms(line));
        connection.send(now, &mut self.pool, &mut self.spans).map_err(failed)?;
        let mut greeting = [0; 18];
        std::io::Read::read_exact(&mut &theirs, &mut greeting).map_err(failed)?;
        (line.connection, line.end) = (Some(Box::new(connection)), Some(theirs));
        line.submitted.clear();
        line.waits.clear();
        (line.last_write, line.hot, line.is_due) = (0, true, false);
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
        adopted.begin(now, line.binding(), export, terms(line));
        line.connection = Some(Box::new(adopted));
        (line.hot, line.is_due) = (true, false);
        true
    }

    /// Another process begins: pool, shares and limits are new.
    pub fn restart(&mut self, pool_bytes: usize, connections: usize) -> Result<(), String> {
        let (clients, exports) = (connections + self.rings.len(), self.groups.len() as u16);
        let new = Self::new(pool_bytes, clients, exports, self.slots, self.bounds)?;
        let old = std::mem::replace(self, new);
        (self.rings, self.exports, self.next_id) = (old.rings, old.exports, old.next_id);
        (self.limited, self.send_buffer) = (old.limited, old.send_buffer);
        Ok(())
    }

    /// Shares of a turn.
    pub fn begin_turn(&self, connections: usize) -> TurnShares {
        TurnShares { reads: LARGE_READS, payloads: LARGE_PAYLOADS.0 + connections * (8 << 10) }
    }

    /// Receives once from a connection, and does with it what the outcome says.
    pub fn receive(
        &mut self,
        now: Instant,
        (index, line): (usize, &mut Line),
        shares: &mut TurnShares,
    ) -> ReceiveOutcome {
        let received = self.receive_only(now, (index, &mut *line), shares);
        self.note(now, index, line);
        let keeps = matches!(
            received,
            ReceiveOutcome::Waits(WaitsFor::Buffer | WaitsFor::Room | WaitsFor::Turn)
        );
        if !keeps {
            self.memory.leave(index as u32);
        }
        line.hot =
            matches!(received, ReceiveOutcome::Worked | ReceiveOutcome::Waits(WaitsFor::Turn));
        if let (ReceiveOutcome::Waits(WaitsFor::Buffer | WaitsFor::Room), Some(connection)) =
            (&received, &line.connection)
        {
            let wants = connection.wants(&self.memory.limits());
            self.memory.wait(index as u32, wants);
        }
        received
    }

    /// Receives once from a connection.
    pub fn receive_only(
        &mut self,
        now: Instant,
        (index, line): (usize, &mut Line),
        shares: &mut TurnShares,
    ) -> ReceiveOutcome {
        let (export, is_troubled) = (line.export, line.export == self.troubled);
        let Some(connection) = &mut line.connection else { return ReceiveOutcome::Idle };
        let refuses = self.stuck && is_troubled;
        connection.set_refuses(refuses);
        let limits = if self.limited {
            let (tree, group) = (&mut self.tree, self.groups[usize::from(export)]);
            let owner = index as u32;
            let leaf = *line.leaf.get_or_insert_with(|| tree.add_leaf(group, WEIGHT, owner));
            Some(LimitGate { tree, leaf })
        } else {
            None
        };
        let device = (!refuses).then_some(DeviceId(export));
        let room = self.memory.slots(device, self.slots - self.in_flight);
        let given = if shares.payloads > 0 { LARGE_PAYLOADS.1 } else { 0 };
        let turn =
            TurnShare { room, large_reads: shares.reads, large_payloads: given, received: 0 };
        let mut lent = Shares {
            now,
            scratch: &mut self.scratch,
            pool: &mut self.pool,
            memory: self.memory.share(index as u32),
            from_cache: false,
            frozen: self.frozen && is_troubled,
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
        received
    }

    /// Records what a connection holds.
    pub fn note(&mut self, now: Instant, index: usize, line: &Line) {
        let Some(connection) = &line.connection else { return };
        let held = Held {
            bytes: connection.held(),
            request_bytes: connection.request_bytes(),
            requests: connection.in_flight(),
        };
        let ExportBinding { export, device, .. } = line.binding();
        self.memory.note_payload(index as u32, connection.kept_payload());
        let stalled = connection.is_stalled(now);
        self.memory.note(index as u32, Some((export, device)), held, stalled);
    }

    /// Wakes the waiters that would be given what they wait for; returns whether there are any.
    pub fn wake_waiters(&mut self, lines: &mut [Line]) -> bool {
        let supply = Supply { taken: self.pool.taken(), room: self.slots - self.in_flight };
        let Self { memory, pool, rings, .. } = self;
        let has_block = |len| pool.try_take(len).map(|buffer| pool.put(buffer)).is_some();
        memory.wake(supply, has_block, |slot| heat(lines, rings, slot))
    }

    /// Heats the connections of an export for which `what` has come.
    pub fn wake(&mut self, lines: &mut [Line], export: u16, what: WaitsFor) {
        for ring in self.rings.iter_mut().filter(|ring| ring.export == export) {
            ring.hot |= ring.client.as_ref().is_some_and(|one| one.waits_for(what));
        }
        for line in lines.iter_mut().filter(|line| line.export == export) {
            line.hot |= line.connection.as_ref().is_some_and(|one| one.waits_for(what));
        }
    }

    /// The device of the troubled export ceased to answer, or answers again.
    pub fn on_device_state(&mut self, now: Instant, lines: &mut [Line]) {
        for (index, line) in lines.iter_mut().enumerate() {
            if line.export == self.troubled {
                self.pass_all(now, line);
                self.memory.leave(index as u32);
                line.hot = true;
            }
        }
        for index in 0..self.rings.len() {
            if self.rings[index].export == self.troubled {
                self.pass_ring(now, index);
                self.memory.leave((lines.len() + index) as u32);
                self.rings[index].hot = true;
            }
        }
    }

    /// Sends once; returns the bytes that were sent, and whether the connection goes on for it.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn send(
        &mut self,
        now: Instant,
        (index, line): (usize, &mut Line),
    ) -> Result<(u64, bool), String> {
        let Some(connection) = &mut line.connection else { return Ok((0, false)) };
        if let Some(fault) = connection.take_fault() {
            return Err(fault);
        }
        let before = connection.sent_bytes();
        let sent = connection.send(now, &mut self.pool, &mut self.spans);
        let sent = sent.map_err(|error| format!("sending failed: {error}"))?;
        let begins = sent == SendOutcome::Dropped && connection.note_dropped_next();
        let goes_on =
            begins || connection.goes_on() && connection.waits_for(connection.stopped_by());
        let bytes = connection.sent_bytes() - before;
        let wakes = goes_on && !line.hot;
        line.hot |= goes_on;
        self.note(now, index, line);
        Ok((bytes, wakes))
    }

    /// Lets requests pass that the limits agree to; returns their number.
    pub fn pass(&mut self, now: Instant, lines: &mut [Line]) -> u64 {
        let mut passed = 0;
        while let Some(one) = self.tree.pop(now) {
            passed += 1;
            heat(lines, &mut self.rings, one.owner);
            let next = match lines.get_mut(one.owner as usize) {
                Some(line) => match (&mut line.connection, line.leaf) {
                    (Some(connection), Some(leaf)) => {
                        connection.pass(one.direction).zip(Some(leaf))
                    }
                    _ => None,
                },
                None => {
                    let ring = &mut self.rings[one.owner as usize - lines.len()];
                    match (&mut ring.client, ring.leaf) {
                        (Some(client), Some(leaf)) => client.pass(one.direction).zip(Some(leaf)),
                        _ => None,
                    }
                }
            };
            if let Some((next, leaf)) = next {
                self.tree.wait(now, leaf, next);
            }
        }
        passed
    }

    /// Returns what incomplete payloads keep and have not received, as where a connection is watched.
    pub fn cut_payloads(&mut self, now: Instant, lines: &mut [Line]) {
        for (index, line) in lines.iter_mut().enumerate().filter(|(_, line)| !line.hot) {
            if let Some(connection) = &mut line.connection {
                connection.cut_payload(&mut self.pool);
                self.note(now, index, line);
            }
        }
    }

    /// While others wait for buffers: lets payloads that keep more than their window be written as far as they have come. Returns whether
    /// there is one.
    pub fn shorten_payloads(&mut self, now: Instant, lines: &mut [Line]) -> bool {
        if !self.memory.needs_payloads() {
            return false;
        }
        let mut any = false;
        let incomplete: Vec<_> = self.memory.incomplete().collect();
        for slot in incomplete {
            let line = &mut lines[slot as usize];
            let Some(connection) = &mut line.connection else { continue };
            let window = self.memory.window(connection.export_of_requests());
            connection.cut_payload(&mut self.pool);
            if connection.is_beyond(window) && connection.stopped_by() == WaitsFor::Nothing {
                any |= !std::mem::replace(&mut line.hot, true);
            }
            self.note(now, slot as usize, line);
        }
        any
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
        self.memory.forget(index as u32);
        let mut connection = line.connection.take()?;
        connection.close(&mut self.pool);
        (!connection.is_finished()).then_some(connection)
    }

    /// Drops unread replies until the first waiter's block would be given; returns how many.
    pub fn give_way(&mut self, now: Instant, lines: &mut [Line]) -> u64 {
        let Some((first, wanted)) = self.memory.first() else {
            self.look_at = None;
            return 0;
        };
        let stalled = |line: &Line| line.connection.as_ref().is_some_and(|it| it.is_stalled(now));
        if self.look_at.is_some_and(|at| now < at) {
            return 0;
        }
        if lines.get(first as usize).is_some_and(stalled)
            && matches!(wanted, Wanted::Block { reads: true, .. })
        {
            self.memory.set_stalled(first, true);
            self.wake_waiters(lines);
            return 0;
        }
        let (mut victims, mut next) = (Vec::new(), now.after(TAKEN_WITHIN_NS));
        for (index, line) in lines.iter().enumerate() {
            let Some(connection) = &line.connection else { continue };
            self.memory.set_stalled(index as u32, connection.is_stalled(now));
            if index as u32 != first && connection.droppable(now) > 0 {
                victims.push(index as u32);
            } else if let Some(since) = connection.oldest_data() {
                next = next.min(since.after(TAKEN_WITHIN_NS));
            }
        }
        let dropped = self.drop_until_woken(now, first, victims, lines);
        self.look_at = Some(next.max(now.after(MS)));
        dropped
    }

    fn drop_until_woken(
        &mut self,
        now: Instant,
        first: u32,
        mut victims: Vec<u32>,
        lines: &mut [Line],
    ) -> u64 {
        let mut dropped = 0;
        while self.memory.first().is_some_and(|(slot, _)| slot == first) {
            let Some(victim) = self.memory.largest_holder(&victims, first) else { break };
            let line = &mut lines[victim as usize];
            let Some(connection) = &mut line.connection else { break };
            let (freed, replies) = connection.drop_data(now, 1, &mut self.pool);
            if freed == 0 {
                victims.retain(|&slot| slot != victim);
                continue;
            }
            dropped += replies as u64;
            self.note(now, victim as usize, line);
            self.wake_waiters(lines);
        }
        dropped
    }
}

/// The client of a slot is tried in the next turn.
fn heat(lines: &mut [Line], rings: &mut [RingLine], slot: u32) {
    match lines.get_mut(slot as usize) {
        Some(line) => line.hot = true,
        None => rings[slot as usize - lines.len()].hot = true,
    }
}

fn terms(line: &Line) -> Negotiated {
    Negotiated { structured: line.client.structured, base_allocation: false }
}
