//! The reactor's clients: who is tried, who waits for what, who comes and goes.
//!
//! A connection is *hot* (tried every turn), or watched by the engine, or held: by its own bound until one of its replies is
//! sent, or in the line for a buffer. Whoever is neither hot nor watched is brought back by `send`. A socket that is full is
//! watched for room in any case.
//!
//! ```text
//!            nothing for a while                     readiness
//!   hot ------------------------------> watched ------------------> hot
//!    | at its bound        reply sent, and so room
//!    |-----------> Full -----------------> hot      the turn counts as work: no sleep before the retry
//!    | no buffer           buffers came back, first in line (`line`)
//!    `-----------> NoBuffer -------------> hot      likewise
//! ```

use std::os::fd::OwnedFd;

use headworks_core::{ExportId, Input, Instant};
use tracing::{debug, error, warn};

use super::{ConnectionState, LISTENERS, Reactor, ReadPause, ShutdownPhase};
use crate::messages::ControlMessage;
use crate::nbd::connection::{Connection, ConnectionEnd, ReceiveContext, ReceiveOutcome};
use crate::nbd::outgoing::SendOutcome;
use headworks::driver::Interest;
use headworks_nbd::Negotiated;

/// Clients that are accepted in a turn: who comes and goes without end holds up nobody. The rest makes the listener ready again.
const ACCEPTS_MAX: usize = 16;
/// Receives of a connection that brings large payloads in a turn: with the payloads of 64 KiB that are common, as many
/// bytes as others may have copied.
const LARGE_RECEIVES: usize = 4;
const TOO_MANY: &str = "too many connections; closed";

impl Reactor {
    /// One receive for every hot connection.
    pub(super) fn receive(&mut self, now: Instant) -> bool {
        let kept = self.parts.reserve.saturating_sub(self.parts.io.foreign() as u32);
        let mut room = self.parts.shard.room().saturating_sub(kept);
        let (mut index, mut worked, mut signed) = (0, false, false);
        while index < self.hot.len() {
            let slot = self.hot[index];
            // A connection that was closed elsewhere may still be on the list.
            let received = self.receive_from(now, slot, &mut room, &mut signed);
            worked |= matches!(
                received,
                Some(ReceiveOutcome::Some | ReceiveOutcome::Chosen { .. } | ReceiveOutcome::End(_))
            );
            self.note(slot);
            if received.is_some_and(|received| self.settle(now, slot, received)) {
                index += 1;
            } else {
                self.hot.swap_remove(index);
                self.connection_states[slot as usize].hot = false;
            }
            // Somebody else's turn: still in this one, for there may be more than one buffer.
            if let Some(first) = self.buffer_queue.call() {
                self.heat(first);
            }
        }
        worked
    }

    fn receive_from(
        &mut self,
        now: Instant,
        slot: u32,
        room: &mut u32,
        signed: &mut bool,
    ) -> Option<ReceiveOutcome> {
        let turn = self.buffer_queue.turn(slot);
        let (connection, pool) = self.parts.io.connection(slot)?;
        let agrees = connection.agrees_on_keys();
        if agrees && *signed {
            return Some(ReceiveOutcome::Some);
        }
        let had_answer = agrees && connection.has_outgoing();
        let mut context = ReceiveContext {
            now,
            scratch: &mut self.scratch,
            pool,
            turn,
            exports: self.exports.infos(),
            room,
            inputs: &mut self.inputs,
        };
        let mut received = connection.receive(&mut context);
        // A signature costs as much as a thousand requests: one a turn, or a crowd that comes at once would hold up everybody
        // for as long as all of theirs take. Who has an answer has had its signature, so each of a crowd has its turn.
        *signed |= agrees && !had_answer && connection.has_outgoing();
        // Each large payload takes a receive of its own; replies one by one would wake the client for each.
        for _ in 1..LARGE_RECEIVES {
            if received != ReceiveOutcome::Some || !connection.brings_large_payloads() {
                return Some(received);
            }
            match connection.receive(&mut context) {
                ReceiveOutcome::Nothing => return Some(ReceiveOutcome::Some),
                next => received = next,
            }
        }
        Some(received)
    }

    /// Acts on what a receive came to; true if the connection stays hot.
    fn settle(&mut self, now: Instant, slot: u32, received: ReceiveOutcome) -> bool {
        if received != ReceiveOutcome::NoBuffer {
            self.buffer_queue.leave(slot);
        }
        self.connection_states[slot as usize].pause = ReadPause::No;
        if received == ReceiveOutcome::Nothing {
            return true;
        }
        self.parts.io.list(slot);
        match received {
            ReceiveOutcome::Nothing | ReceiveOutcome::Some => return true,
            ReceiveOutcome::Full => self.connection_states[slot as usize].pause = ReadPause::Full,
            ReceiveOutcome::NoBuffer => {
                self.connection_states[slot as usize].pause = ReadPause::NoBuffer;
                self.buffer_queue.join(slot);
            }
            ReceiveOutcome::Chosen { export, terms } => {
                return self.place(now, slot, export, terms);
            }
            ReceiveOutcome::End(end) => self.end(slot, &end),
        }
        false
    }

    /// A client chose its export: the connection goes to the export's shard; true if that is this one.
    fn place(&mut self, now: Instant, slot: u32, export: usize, terms: Negotiated) -> bool {
        let Some((connection, pool)) = self.parts.io.connection(slot) else {
            return false;
        };
        let chosen = self.exports.chosen(export);
        let Some((export, home, (binding, info))) =
            chosen.and_then(|(export, home)| Some((export, home, self.exports.open(export)?)))
        else {
            self.end(slot, &ConnectionEnd::Fault("the export was removed meanwhile".into()));
            return false;
        };
        debug!(
            peer = connection.peer(),
            export = info.name,
            tls = connection.tls(),
            "client chose its export"
        );
        if home == self.parts.id {
            connection.begin(now, binding, info, terms);
            self.connection_states[slot as usize].export = Some(export);
            return true;
        }
        // The handshake's last answer goes first, so that nothing of it is left behind. It is short: a socket that does not
        // take it belongs to a client that reads nothing.
        if !matches!(connection.send(now, pool, &mut self.spans), Ok(SendOutcome::All)) {
            self.end(slot, &ConnectionEnd::Fault("the client does not read the handshake".into()));
            return false;
        }
        if let Some(fd) = connection.socket() {
            self.parts.engine.forget(slot, fd);
        }
        if let Some(connection) = self.parts.io.remove(slot) {
            let mail = ControlMessage::Connection { connection, export, terms };
            self.parts.shared.send(home, mail);
        }
        false
    }

    /// Takes over a connection whose export is ours.
    pub(super) fn adopt(
        &mut self,
        now: Instant,
        connection: Box<Connection>,
        export: ExportId,
        terms: Negotiated,
    ) {
        if self.phase != ShutdownPhase::Running {
            // It came after the stop: nobody would flush what it writes.
            return;
        }
        let Some((binding, info)) = self.exports.open(export) else {
            self.complain(&connection, "the export was removed meanwhile; closed");
            return;
        };
        match self.parts.io.insert(connection) {
            Ok(slot) => {
                if let Some((connection, _)) = self.parts.io.connection(slot) {
                    connection.begin(now, binding, info, terms);
                }
                self.newcomer(slot);
                self.connection_states[slot as usize].export = Some(export);
                self.heat(slot);
            }
            Err(connection) => self.complain(&connection, TOO_MANY),
        }
    }

    fn complain(&mut self, connection: &Connection, sentence: &str) {
        if self.log_limiter.admits() {
            warn!(peer = connection.peer(), "{sentence}");
        }
    }

    pub(super) fn end(&mut self, slot: u32, end: &ConnectionEnd) {
        self.tell_close(slot);
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
                // A last word of the handshake may be on its way; then close.
                let _ = connection.send(Instant(0), pool, &mut self.spans);
                self.close(slot);
                return;
            }
        }
        self.parts.io.list(slot);
    }

    /// A connection that had chosen brings nothing more: whatever makes it wait makes it wait for nothing. Told once, before
    /// the connection leaves.
    pub(super) fn tell_close(&mut self, slot: u32) {
        if let Some((connection, _)) = self.parts.io.connection(slot)
            && connection.binding().is_some()
        {
            self.inputs.push(Input::Close { connection: connection.id() });
        }
    }

    pub(super) fn close(&mut self, slot: u32) {
        self.tell_close(slot);
        let Some((connection, pool)) = self.parts.io.connection(slot) else {
            return;
        };
        if let Some(fd) = connection.socket() {
            self.parts.engine.forget(slot, fd);
            connection.close(pool);
        }
        self.buffer_queue.leave(slot);
        self.connection_states[slot as usize].pause = ReadPause::No;
        self.bury(slot);
    }

    /// Frees the place of a connection that has nothing left.
    pub(super) fn bury(&mut self, slot: u32) {
        let finished =
            self.parts.io.connection(slot).is_some_and(|(connection, _)| connection.is_finished());
        if !finished {
            return;
        }
        self.buffer_queue.forget(slot);
        if let Some(connection) = self.parts.io.remove(slot) {
            if let Some(fd) = connection.socket() {
                self.parts.engine.forget(slot, fd);
            }
            debug!(peer = connection.peer(), "connection closed");
        }
        let state = &mut self.connection_states[slot as usize];
        (state.pause, state.export) = (ReadPause::No, None);
    }

    /// One send for every connection that has something. True if that, or buffers that came back, lets somebody go on who
    /// was held: another turn must follow before any sleep, because the held are not watched.
    pub(super) fn send(&mut self, now: Instant) -> bool {
        let (mut goes_on, mut again) = (false, Vec::new());
        while let Some(slot) = self.parts.io.next_listed() {
            let Some((connection, pool)) = self.parts.io.connection(slot) else {
                continue;
            };
            let sent = connection.send(now, pool, &mut self.spans);
            let has_room = connection.has_room();
            let state = &mut self.connection_states[slot as usize];
            match sent {
                Ok(SendOutcome::All) => state.blocked = false,
                Ok(SendOutcome::Budget) => {
                    state.blocked = false;
                    again.push(slot);
                }
                Ok(SendOutcome::Full) => {
                    state.blocked = true;
                    // Hot or not: beside a client that keeps the shard busy a hot connection is not watched for long, and
                    // whoever waits for the rest of a reply says nothing that would bring it back.
                    self.watch(slot);
                }
                Err(error) => {
                    debug!(%error, "sending failed");
                    self.close(slot);
                    self.note(slot);
                    continue;
                }
            }
            self.note(slot);
            self.bury(slot);
            if self.connection_states[slot as usize].pause == ReadPause::Full && has_room {
                self.heat(slot);
                goes_on = true;
            }
        }
        goes_on |= !again.is_empty();
        again.into_iter().for_each(|slot| self.parts.io.list(slot));
        let taken = self.parts.io.pool.taken();
        self.buffer_queue.call();
        if let Some(first) = self.buffer_queue.first() {
            self.heat(first);
            goes_on |= taken < self.taken_before;
        }
        self.taken_before = taken;
        goes_on
    }

    /// A place has a new connection. (Its number may still be on the hot list from the one before.)
    fn newcomer(&mut self, slot: u32) {
        let state = &mut self.connection_states[slot as usize];
        *state = ConnectionState { hot: state.hot, ..ConnectionState::default() };
    }

    /// The line knows what everybody holds.
    fn note(&mut self, slot: u32) {
        if let Some((connection, _)) = self.parts.io.connection(slot) {
            let export = connection.binding().map(|binding| binding.export);
            self.buffer_queue.note(slot, export, connection.held());
        }
    }

    /// Tries the connection every turn from now on.
    pub(super) fn heat(&mut self, slot: u32) {
        let state = &mut self.connection_states[slot as usize];
        if !std::mem::replace(&mut state.hot, true) {
            self.hot.push(slot);
        }
    }

    /// Has the engine say when the connection can go on.
    pub(super) fn watch(&mut self, slot: u32) {
        let state = self.connection_states[slot as usize];
        let Some((connection, _)) = self.parts.io.connection(slot) else {
            return;
        };
        let Some(fd) = connection.socket() else {
            return;
        };
        // Who is hot is read from every turn anyway.
        let reads = state.pause == ReadPause::No && connection.reads() && !state.hot;
        let interest = match (reads, state.blocked) {
            (true, false) => Interest::Read,
            (true, true) => Interest::ReadWrite,
            (false, true) => Interest::Write,
            // Its own replies or the line will bring it back.
            (false, false) => return,
        };
        self.parts.engine.watch(slot, fd, interest);
    }

    pub(super) fn watch_listener(&mut self, index: usize) {
        let Some(listener) = self.parts.listeners.get(index) else {
            return;
        };
        let fd = listener.fd();
        self.parts.engine.watch(LISTENERS + index as u32, fd, Interest::Read);
    }

    pub(super) fn accept(&mut self, now: Instant, index: u32) {
        for _ in 0..ACCEPTS_MAX {
            let Some(listener) = self.parts.listeners.get(index as usize) else { return };
            match listener.accept() {
                Ok(Some((socket, peer))) => self.welcome(now, socket, peer),
                Ok(None) => break,
                Err(error) => {
                    error!("cannot accept a client: {error}; trying again in a second");
                    (self.resting, self.ticking) = (true, true);
                    return;
                }
            }
        }
        self.watch_listener(index as usize);
    }

    pub(super) fn welcome(&mut self, now: Instant, socket: OwnedFd, peer: String) {
        debug!(peer, "client connected");
        let mut connection = Connection::new(socket, peer, self.parts.limits, now);
        if let Some(acceptor) = &self.parts.acceptor {
            connection.set_tls_acceptor(acceptor);
        }
        match self.parts.io.insert(Box::new(connection)) {
            Ok(slot) => {
                self.newcomer(slot);
                self.parts.io.list(slot);
                self.heat(slot);
            }
            Err(connection) => self.complain(&connection, TOO_MANY),
        }
    }
}
