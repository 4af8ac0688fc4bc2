//! Handlers of the reactor's connections: receive, send, close.
//!
//! A connection is *hot* (tried every turn), watched by the engine, or stopped by a request that waits ([`WaitsFor`]): then nothing
//! is read from its client. What the request waits for ends in [`Reactor::wake`]. A connection whose socket is full is watched for
//! write readiness in any case.
//!
//! ```text
//!            no data for a while                     readiness
//!   hot ------------------------------> watched ------------------> hot
//!    `--a request waits--> stopped --wake--> hot      the turn counts as work: no sleep before the retry
//!
//!   waits for      woken by
//!   Window         `send`: one of its replies was sent
//!   Buffer, Room   `send`: it would be given one (`Memory::wake`)
//!   Limit          `limits`: its limits agree, by a timer
//!   Freeze         `freezes`: thaw, or its time is over
//!   Turn           the next turn: it stays hot
//! ```

use headworks_core::options::DEVICES_MAX;
use headworks_core::{DeviceId, DeviceState, ExportId, Input, Instant};
use tracing::{debug, warn};

use super::shard_io::SMALL_REPLIES;
use super::{Reactor, ShutdownPhase};
use crate::messages::ControlMessage;
use crate::nbd::connection::{Connection, ConnectionEnd, ReceiveOutcome, Shares, TurnShare};
use headworks::driver::Interest;
use headworks_front::WaitsFor;
use headworks_front::memory::{Held, Supply, WINDOW_MAX};
use headworks_front::outgoing::SendOutcome;
use headworks_front::turn::TurnBytes;
use headworks_nbd::Negotiated;

/// Receives in one turn of a connection with large payloads; with payloads of 64 KiB, as many bytes as other
/// connections may copy.
const LARGE_RECEIVES: usize = 4;
/// Bytes of large payloads that one connection receives in a turn beside others; with the bound below, a small request of
/// another connection waits for 450 KiB at most, which take about 0.1 ms.
pub(super) const LARGE_SHARE: usize = 256 << 10;
/// Bytes of large payloads after which no other connection receives one in this turn of the shard: the connections that
/// are left are the first of the next turn.
pub(super) const LARGE_PAYLOADS: usize = 128 << 10;
/// The same for each hot connection more. 8 KiB: their copying takes longer than to find that a socket is empty, so many
/// idle connections cost a bulk writer less than half of the time.
pub(super) const LARGE_PAYLOADS_EACH: usize = 8 << 10;
/// Bytes of any kind that are received in one turn of the shard beside others, and one receive more: a millisecond or two.
pub(super) const RECEIVED: usize = 4 << 20;
/// Received bytes that cost as much of a turn as one byte of a large payload: most of them are small requests, which are bounded otherwise.
const SMALL_PART: usize = 4;
/// Bytes of large reads that are admitted in one turn of the shard, and one read more. Their data are copied from the cache
/// in the turn.
const LARGE_READS: usize = 1 << 20;
/// Bytes of large replies that are sent in one turn of the shard, and one send more.
const LARGE_SENDS: usize = 512 << 10;
/// Time between two looks for payloads that keep more than their window.
const SHORTEN_NS: u64 = 1_000_000;
pub(super) const TOO_MANY: &str = "too many connections; closed";

/// Which requests are submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Received {
    /// Reads that the cache returned.
    Before,
    /// These, and what is received now.
    Now,
}

/// What all hot connections may have in a turn beside each other.
fn turn_bytes(hot: usize) -> TurnBytes {
    let payloads = LARGE_PAYLOADS + hot * LARGE_PAYLOADS_EACH;
    TurnBytes { received: RECEIVED, payloads, reads: LARGE_READS }
}

/// What a connection may have of a turn of which its export has `left`: as much as it likes if it is the only one that is hot.
fn turn_share(left: Option<TurnBytes>, room: u32) -> TurnShare {
    let (large_reads, large_payloads) = match left {
        None => (LARGE_READS, usize::MAX),
        Some(left) => (left.reads, if left.payloads > 0 { LARGE_SHARE } else { 0 }),
    };
    TurnShare { room, large_reads, large_payloads, received: 0 }
}

/// Receives once, or several times from a connection with large payloads: each takes a receive of its own, and a reply for
/// each would wake the client each time.
fn receive_some(connection: &mut Connection, shares: &mut Shares<'_>) -> ReceiveOutcome {
    let mut received = connection.receive(shares);
    for _ in 1..LARGE_RECEIVES {
        let goes_on = connection.brings_large_payloads() && shares.turn.large_payloads > 0;
        if received != ReceiveOutcome::Worked || !goes_on {
            return received;
        }
        match connection.receive(shares) {
            ReceiveOutcome::Idle => return ReceiveOutcome::Worked,
            next => received = next,
        }
    }
    received
}

impl Reactor {
    /// Receives once from every hot connection.
    pub(super) fn receive(&mut self, now: Instant) -> bool {
        if self.is_paused() {
            return self.receive_returned(now);
        }
        let mut room = self.free_slots();
        let (mut index, mut worked, mut signed) = (0, false, false);
        let (alone, mut deferred) = (self.connections.len() <= 1, None);
        if !alone {
            let budget = turn_bytes(self.connections.len());
            self.turn.begin(budget, self.connections.hot_exports());
        }
        while let Some(slot) = self.connections.get(index) {
            let export = self.connections.state(slot).export.filter(|_| !alone);
            let left = export.map(|export| self.turn.left(export));
            if left.is_some_and(|left| left.received == 0) {
                deferred.get_or_insert(index);
                (index, worked) = (index + 1, true);
                continue;
            }
            let given = turn_share(left, room);
            let mut turn = given;
            // A connection that was closed elsewhere may still be in the list.
            let received = self.receive_from(now, slot, &mut turn, &mut signed, Received::Now);
            room = turn.room;
            let had = TurnBytes {
                received: turn.received,
                payloads: given.large_payloads - turn.large_payloads,
                reads: given.large_reads - turn.large_reads,
            };
            self.payloads += had.payloads + (had.received - had.payloads) / SMALL_PART;
            if let Some(export) = export {
                self.turn.spend(export, had);
            }
            worked |= matches!(
                received,
                Some(
                    ReceiveOutcome::Worked
                        | ReceiveOutcome::Waits(WaitsFor::Turn)
                        | ReceiveOutcome::Chosen { .. }
                        | ReceiveOutcome::End(_)
                )
            );
            if received == Some(ReceiveOutcome::Waits(WaitsFor::Turn)) {
                deferred.get_or_insert(index);
            }
            self.note(now, slot);
            if received.is_some_and(|received| self.settle(now, slot, received)) {
                index += 1;
            } else {
                self.connections.cool(index);
            }
        }
        // The first one that was deferred is the first of the next turn.
        if let Some(deferred) = deferred {
            self.connections.rotate(deferred);
        }
        worked
    }

    /// Submits reads again that the cache returned in this turn; returns whether there are any. A connection without a buffer or bio
    /// slot for them waits as it does for those of new requests.
    pub(super) fn resubmit_returned(&mut self, now: Instant) -> bool {
        if self.parts.io.returned.is_empty() {
            return false;
        }
        let mut room = self.free_slots();
        while let Some(slot) = self.parts.io.returned.pop() {
            // They are not in flight any more.
            self.note(now, slot);
            if matches!(
                self.resubmit_reads_of(now, slot, &mut room),
                Some(ReceiveOutcome::Waits(_))
            ) {
                self.connections.heat(slot);
            }
            self.note(now, slot);
        }
        true
    }

    /// Submits the returned reads of a connection again, as far as there are buffers and bio slots.
    fn resubmit_reads_of(
        &mut self,
        now: Instant,
        slot: u32,
        room: &mut u32,
    ) -> Option<ReceiveOutcome> {
        let mut turn = turn_share(None, *room);
        let received = self.receive_from(now, slot, &mut turn, &mut true, Received::Before);
        *room = turn.room;
        received
    }

    /// Bio slots of the shard that are not reserved for other shards, nor wanted by the inputs of its next step.
    pub(super) fn free_slots(&self) -> u32 {
        let kept = self.parts.reserve.saturating_sub(self.parts.io.foreign() as u32);
        let wanted = u32::try_from(self.parts.driver.waiting_inputs()).unwrap_or(u32::MAX);
        self.parts.driver.shard().room().saturating_sub(kept.saturating_add(wanted))
    }

    /// Submits returned reads again while nothing is received; returns whether it did.
    fn receive_returned(&mut self, now: Instant) -> bool {
        let (mut worked, mut room) = (false, self.free_slots());
        for slot in self.parts.io.slots() {
            let returned = |reactor: &mut Self| {
                let connection = reactor.parts.io.connection(slot);
                connection.is_some_and(|(connection, _)| connection.has_returned())
            };
            if !returned(self) {
                continue;
            }
            let received = self.resubmit_reads_of(now, slot, &mut room);
            self.note(now, slot);
            if let Some(received) = received {
                self.settle(now, slot, received);
            }
            worked |= !returned(self);
        }
        worked
    }

    fn receive_from(
        &mut self,
        now: Instant,
        slot: u32,
        turn: &mut TurnShare,
        signed: &mut bool,
        what: Received,
    ) -> Option<ReceiveOutcome> {
        let (connection, _) = self.parts.io.connection(slot)?;
        let device = connection.binding().map(|binding| binding.device);
        let refuses = device.is_some_and(|device| self.stuck >> device.0 & 1 != 0);
        connection.set_refuses(refuses);
        // What is sent to a device that does not answer fails at once: it holds nothing.
        let device = device.filter(|_| !refuses);
        let (room, allowed) = (turn.room, self.memory.slots(device, turn.room));
        turn.room = allowed;
        let received = self.receive_up_to(now, slot, turn, signed, what);
        turn.room += room - allowed;
        received
    }

    /// Receives requests that take at most a share of the turn, and leaves there what they did not take.
    fn receive_up_to(
        &mut self,
        now: Instant,
        slot: u32,
        turn: &mut TurnShare,
        signed: &mut bool,
        what: Received,
    ) -> Option<ReceiveOutcome> {
        let may_lend = self.parts.io.may_lend(slot);
        let (connection, pool) = self.parts.io.connection(slot)?;
        let binding = connection.binding();
        let shard = self.parts.driver.shard();
        let is_cached = || binding.is_some_and(|binding| shard.is_cached(binding.volume));
        let from_cache = may_lend && is_cached();
        let agrees = connection.agrees_on_keys();
        if agrees && *signed {
            return Some(ReceiveOutcome::Worked);
        }
        let had_answer = agrees && connection.has_outgoing();
        let export = connection.binding().map(|binding| binding.export);
        let mut shares = Shares {
            now,
            scratch: &mut self.scratch,
            pool,
            memory: self.memory.share(slot),
            from_cache,
            frozen: binding.is_some_and(|binding| self.freezes.holds(binding.volume)),
            limits: export.and_then(|export| self.limits.gate(slot, export)),
            window: export.map_or(WINDOW_MAX, |export| self.memory.window(export)),
            exports: &self.exports,
            turn: *turn,
            inputs: self.parts.driver.inputs(),
        };
        if what == Received::Before {
            let submitted = connection.resubmit(&mut shares);
            *turn = shares.turn;
            let waits = ReceiveOutcome::Waits(WaitsFor::Buffer);
            return Some(if submitted { ReceiveOutcome::Idle } else { waits });
        }
        let received = receive_some(connection, &mut shares);
        *turn = shares.turn;
        // One signature a turn: it costs as much as a thousand requests. A connection with output has had its
        // signature, so each one of a burst gets its turn.
        *signed |= agrees && !had_answer && connection.has_outgoing();
        Some(received)
    }

    /// Acts on the outcome of a receive; returns whether the connection stays hot.
    fn settle(&mut self, now: Instant, slot: u32, received: ReceiveOutcome) -> bool {
        // A waiter that was woken and has its turn later keeps its place.
        let keeps = matches!(
            received,
            ReceiveOutcome::Waits(WaitsFor::Buffer | WaitsFor::Room | WaitsFor::Turn)
        );
        if !keeps {
            self.memory.leave(slot);
        }
        if received == ReceiveOutcome::Idle {
            return true;
        }
        self.parts.io.list(slot);
        match received {
            ReceiveOutcome::Idle
            | ReceiveOutcome::Worked
            | ReceiveOutcome::Waits(WaitsFor::Turn) => return true,
            ReceiveOutcome::Waits(WaitsFor::Buffer | WaitsFor::Room) => {
                if let Some((connection, _)) = self.parts.io.connection(slot) {
                    let wanted = connection.wanted(&self.memory.limits());
                    self.buffer_stats.waits += u64::from(self.memory.wait(slot, wanted));
                }
            }
            ReceiveOutcome::Waits(_) => {}
            ReceiveOutcome::Chosen { export, terms } => {
                return self.place(now, slot, export, terms);
            }
            ReceiveOutcome::End(end) => self.end(slot, &end),
        }
        false
    }

    /// Binds a connection to the export that the client chose, or moves it to the export's shard; returns whether it
    /// stays here.
    fn place(&mut self, now: Instant, slot: u32, export: usize, terms: Negotiated) -> bool {
        let Some((connection, pool)) = self.parts.io.connection(slot) else {
            return false;
        };
        let chosen = self.exports.chosen(export);
        let Some((export, home, (binding, info))) =
            chosen.and_then(|(export, home)| Some((export, home, self.exports.open(export)?)))
        else {
            self.end(slot, &ConnectionEnd::Fault("its export was removed".into()));
            return false;
        };
        debug!(
            peer = connection.peer(),
            export = info.name,
            tls = connection.tls(),
            "client opened its export"
        );
        if home == self.parts.id {
            connection.begin(now, binding, info, terms);
            self.connections.state_mut(slot).export = Some(export);
            self.note(now, slot);
            return true;
        }
        // Sends the last reply of the handshake before the move. It is short; a client whose socket does not take it
        // does not read.
        if !matches!(connection.send(now, pool, &mut self.spans), Ok(SendOutcome::All)) {
            self.end(
                slot,
                &ConnectionEnd::Fault("the client does not read the handshake replies".into()),
            );
            return false;
        }
        if let Some(fd) = connection.socket() {
            self.parts.engine.forget(slot, fd);
        }
        if let Some(connection) = self.parts.io.remove(slot) {
            let message = ControlMessage::Connection { connection, export, terms };
            self.parts.shared.send(home, message);
        }
        false
    }

    /// Takes over a connection from the shard that accepted it.
    pub(super) fn take_over(
        &mut self,
        now: Instant,
        connection: Box<Connection>,
        export: ExportId,
        terms: Negotiated,
    ) {
        if self.phase != ShutdownPhase::Running {
            // Arrived after the stop: its writes would not be flushed.
            return;
        }
        if self.exports.open(export).is_none() {
            self.log_limited(&connection, "closed: its export was removed");
            return;
        }
        match self.parts.io.insert(connection) {
            Ok(slot) => self.begin_client(now, slot, export, terms),
            Err(connection) => self.log_limited(&connection, TOO_MANY),
        }
    }

    /// Begins the transmission of a connection that came from another shard or process.
    pub(super) fn begin_client(
        &mut self,
        now: Instant,
        slot: u32,
        export: ExportId,
        terms: Negotiated,
    ) {
        let (opened, connection) = (self.exports.open(export), self.parts.io.connection(slot));
        let (Some((binding, info)), Some((connection, _))) = (opened, connection) else {
            return self.close(slot);
        };
        connection.begin(now, binding, info, terms);
        self.connections.reset(slot);
        self.connections.state_mut(slot).export = Some(export);
        self.note(now, slot);
        self.connections.heat(slot);
        self.parts.io.list(slot);
    }

    pub(super) fn log_limited(&mut self, connection: &Connection, sentence: &str) {
        if self.log_limiter.admits() {
            warn!(peer = connection.peer(), "{sentence}");
        }
    }

    pub(super) fn end(&mut self, slot: u32, end: &ConnectionEnd) {
        self.submit_close(slot);
        let Some((connection, pool)) = self.parts.io.connection(slot) else {
            return;
        };
        match end {
            ConnectionEnd::Goodbye => connection.leave(pool),
            ConnectionEnd::HungUp => {
                debug!(peer = connection.peer(), "client hung up");
                self.close(slot);
                return;
            }
            ConnectionEnd::Fault(sentence) => {
                if self.log_limiter.admits() {
                    warn!(peer = connection.peer(), "connection ended: {sentence}");
                }
                // Tries to send the last reply of the handshake before closing.
                let _ = connection.send(Instant(0), pool, &mut self.spans);
                self.close(slot);
                return;
            }
        }
        self.parts.io.list(slot);
    }

    /// Tells the shard, once, that a connection submits nothing more: its waits end.
    pub(super) fn submit_close(&mut self, slot: u32) {
        if let Some((connection, _)) = self.parts.io.connection(slot)
            && connection.binding().is_some()
        {
            if let Some(sentence) = connection.take_torn_write()
                && self.log_limiter.admits()
            {
                warn!(peer = connection.peer(), "{sentence}");
            }
            self.parts.driver.push(Input::Close { connection: connection.id() });
            self.limits.forget(self.parts.io.now, slot);
        }
    }

    pub(super) fn close(&mut self, slot: u32) {
        self.submit_close(slot);
        let Some((connection, pool)) = self.parts.io.connection(slot) else {
            return;
        };
        if let Some(fd) = connection.socket() {
            self.parts.engine.forget(slot, fd);
            connection.close(pool);
            self.parts.io.note_lent(slot);
        }
        self.memory.leave(slot);
        self.note(self.parts.io.now, slot);
        self.free_if_finished(slot);
    }

    /// Frees the slot of a connection that is finished.
    pub(super) fn free_if_finished(&mut self, slot: u32) {
        let finished =
            self.parts.io.connection(slot).is_some_and(|(connection, _)| connection.is_finished());
        if !finished {
            return;
        }
        self.memory.forget(slot);
        self.limits.forget(self.parts.io.now, slot);
        if let Some(connection) = self.parts.io.remove(slot) {
            if let Some(fd) = connection.socket() {
                self.parts.engine.forget(slot, fd);
            }
            debug!(peer = connection.peer(), "connection closed");
        }
        self.connections.state_mut(slot).export = None;
    }

    /// Sends once on every connection with output. Returns whether a paused connection can continue: then a turn must
    /// follow before any sleep, since paused connections are not watched.
    pub(super) fn send(&mut self, now: Instant) -> bool {
        let (mut goes_on, mut again, mut left) = (false, Vec::new(), LARGE_SENDS);
        while let Some(slot) = self.parts.io.next_listed(left > 0) {
            let Some((connection, pool)) = self.parts.io.connection(slot) else {
                continue;
            };
            if let Some(fault) = connection.take_fault() {
                self.buffer_stats.closed += 1;
                self.end(slot, &ConnectionEnd::Fault(fault));
                self.note(now, slot);
                continue;
            }
            let (is_large, before) = (connection.unsent() > SMALL_REPLIES, connection.sent_bytes());
            let sent = connection.send(now, pool, &mut self.spans);
            if is_large {
                let count = connection.sent_bytes() - before;
                left = left.saturating_sub(usize::try_from(count).unwrap_or(usize::MAX));
            }
            let (goes_on_now, stopped) = (connection.goes_on(), connection.stopped_by());
            let state = self.connections.state_mut(slot);
            match sent {
                // A socket that was full and is not writable yet: no data are read for it.
                Ok(SendOutcome::Dropped) if state.blocked => {}
                Ok(SendOutcome::Dropped) => {
                    if connection.note_dropped_next() {
                        self.connections.heat(slot);
                        goes_on = true;
                    }
                }
                Ok(SendOutcome::All) => state.blocked = false,
                Ok(SendOutcome::Budget) => {
                    state.blocked = false;
                    again.push(slot);
                }
                Ok(SendOutcome::Full) => {
                    state.blocked = true;
                    // Even a hot connection: while another client keeps the shard busy the engine is seldom entered,
                    // and a client that waits for the rest of a reply sends nothing.
                    self.watch(slot);
                }
                Err(error) => {
                    debug!(%error, "sending failed");
                    self.close(slot);
                    self.note(now, slot);
                    continue;
                }
            }
            self.note(now, slot);
            self.free_if_finished(slot);
            goes_on |= goes_on_now && self.wake(slot, stopped);
        }
        goes_on |= !again.is_empty() || self.parts.io.has_large_to_send();
        again.into_iter().for_each(|slot| self.parts.io.list(slot));
        goes_on |= self.wake_waiters();
        goes_on |= self.make_room(now);
        goes_on |= self.shorten_payloads(now);
        // Payloads were cut.
        goes_on | self.wake_waiters()
    }

    /// While others wait for buffers: lets payloads that keep more than their window be written as far as they have come. Returns whether
    /// there is one.
    fn shorten_payloads(&mut self, now: Instant) -> bool {
        if !self.memory.needs_payloads() || self.next_shortening > now {
            return false;
        }
        self.next_shortening = now.after(SHORTEN_NS);
        let mut any = false;
        let incomplete: Vec<_> = self.memory.incomplete().collect();
        for slot in incomplete {
            let Some((connection, pool)) = self.parts.io.connection(slot) else { continue };
            let window = self.memory.window(connection.export_of_requests());
            connection.cut_payload(pool);
            if connection.is_beyond(window) && connection.stopped_by() == WaitsFor::Nothing {
                self.connections.heat(slot);
                any = true;
            }
            self.note(now, slot);
        }
        any
    }

    /// Lets the waiters continue that would be given what they wait for; returns whether there are any.
    pub(super) fn wake_waiters(&mut self) -> bool {
        let supply = Supply { taken: self.parts.io.pool.taken(), room: self.free_slots() };
        let Self { memory, connections, parts, .. } = self;
        let pool = &mut parts.io.pool;
        let has_block = |len| pool.try_take(len).map(|buffer| pool.put(buffer)).is_some();
        memory.wake(supply, has_block, |slot| connections.heat(slot))
    }

    /// Lets the connections of devices that ceased to answer, or answer again, continue: they may have waited for room.
    pub(super) fn on_device_states(&mut self) {
        let shard = self.parts.driver.shard();
        self.device_news = shard.device_news();
        let is_stuck =
            |device: &u16| shard.device_state(DeviceId(*device)) == Some(DeviceState::Stuck);
        let before = self.stuck;
        self.stuck =
            (0..DEVICES_MAX as u16).filter(is_stuck).fold(0, |all, device| all | 1 << device);
        for slot in self.parts.io.slots() {
            let Some((connection, _)) = self.parts.io.connection(slot) else { continue };
            let device = connection.binding().map(|binding| binding.device);
            if device.is_some_and(|device| (before ^ self.stuck) >> device.0 & 1 != 0) {
                // Requests for a stuck device fail at once, those that wait for a limit, too.
                self.pass_parked(self.parts.io.now, slot);
                self.memory.leave(slot);
                self.connections.heat(slot);
            }
        }
    }

    /// Lets a connection go on for which `what` has come, if a request of it waits for that; returns whether one does.
    pub(super) fn wake(&mut self, slot: u32, what: WaitsFor) -> bool {
        let connection = self.parts.io.connection(slot);
        let waits = connection.is_some_and(|(connection, _)| connection.waits_for(what));
        if waits {
            self.connections.heat(slot);
        }
        waits
    }

    /// Updates the records of what a connection holds.
    pub(super) fn note(&mut self, now: Instant, slot: u32) {
        if let Some((connection, _)) = self.parts.io.connection(slot) {
            let owner = connection.binding().map(|binding| (binding.export, binding.device));
            let (requests, request_bytes) = (connection.in_flight(), connection.request_bytes());
            let held = Held { bytes: connection.held(), request_bytes, requests };
            self.memory.note_payload(slot, connection.kept_payload());
            self.memory.note(slot, owner, held, connection.is_stalled(now));
            self.parts.io.note_lent(slot);
        }
    }

    /// Watches a connection for what it waits for.
    pub(super) fn watch(&mut self, slot: u32) {
        let now = self.parts.io.now;
        if let Some((connection, pool)) = self.parts.io.connection(slot)
            && connection.has_incomplete_payload()
        {
            connection.cut_payload(pool);
            self.note(now, slot);
        }
        let state = *self.connections.state(slot);
        let is_paused = self.is_paused();
        let Some((connection, _)) = self.parts.io.connection(slot) else {
            return;
        };
        let Some(fd) = connection.socket() else {
            return;
        };
        // A hot connection is read from every turn anyway.
        let stopped = is_paused || connection.stopped_by() != WaitsFor::Nothing;
        let reads = !stopped && connection.reads() && !state.is_hot();
        let interest = match (reads, state.blocked) {
            (true, false) => Interest::Read,
            (true, true) => Interest::ReadWrite,
            (false, true) => Interest::Write,
            // A sent reply, or `Memory::wake`, resumes it.
            (false, false) => return,
        };
        self.parts.engine.watch(slot, fd, interest);
    }
}
