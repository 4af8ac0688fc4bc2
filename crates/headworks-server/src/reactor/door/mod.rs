//! The door of a shard: its connections, and what they share: which are tried each turn, what each may have of a turn, of the buffers and
//! of its limits, and which volumes are frozen.
//!
//! A connection is *hot* (tried every turn), watched by the engine, or stopped by a request that waits ([`WaitsFor`]): then nothing
//! is read from its client. What the request waits for ends in [`Door::wake`]. A connection whose socket is full is watched for
//! write readiness in any case, and leaves the hot list if nothing of what it received is left to be tried.
//!
//! ```text
//!            no data for a while                     readiness
//!   hot ------------------------------> watched ------------------> hot
//!    `--a request waits--> stopped --wake--> hot      the turn counts as work: no sleep before the retry
//!
//!   waits for      woken by
//!   Window, Pieces `send`: one of its replies was sent, or one of its pieces answered
//!   Buffer, Room   `send`: it would be given one (`Memory::wake`); `waits`: a freeze, in which readers pass what changes the volume
//!   Limit          `waits`: its limits agree, by a timer
//!   Freeze         `waits`: thaw, or its time is over
//!   Turn           the next turn: it stays hot
//! ```
//!
//! Here connections come, are bound to their exports and go. `receive` and `send` are the two halves of a turn, `room` takes buffers from
//! unread replies for those that wait, `waits` lets requests pass that wait for a limit, a freeze or a device. The sockets and the pool are
//! the shard's ([`ReactorParts`]), which each call borrows.
//!
//! Invariants: a slot is in the hot list at most once; what `memory` knows of a connection is noted after each receive and send.

pub(super) mod attached;
pub(super) mod receive;
mod room;
mod send;
mod waits;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use headworks_core::limits::Limits;
use headworks_core::{ExportConfig, ExportId, Input, Instant, TenantId};
use tracing::{debug, warn};

use super::ReactorParts;
use super::exports::ExportTable;
use super::freezes::Freezes;
use super::log_limiter::LogLimiter;
use crate::clients::client::ShardClient;
use crate::clients::connection_id::slot_of;
use crate::clients::files::WRITE_MAX;
use crate::clients::nbd::connection::{Connection, ConnectionEnd};
use crate::exports::assemble::export_info::ServedExport;
use crate::listen::ClientListener;
use crate::reactor::messages::ControlMessage;
use crate::reactor::messages::query::BufferStats;
use headworks::driver::{Interest, Span};
use headworks_core::limits::{LimitTarget, ShardLimits};
use headworks_front::WaitsFor;
use headworks_front::hot_list::{ConnectionState, HotList};
use headworks_front::intake::PayloadCounts;
use headworks_front::memory::{Held, Memory};
use headworks_front::outgoing::SendOutcome;
use headworks_front::turn::FairTurn;
use headworks_nbd::Negotiated;
use room::GiveWay;

/// Receive buffer in bytes: holds 64 requests of 4 KiB and stays in the second-level cache.
pub(super) const SCRATCH: usize = 256 << 10;
const _: () = assert!(WRITE_MAX as usize + 4096 <= SCRATCH, "a write of a file comes whole");
/// Bytes of large payloads after which the engine is entered; they take a quarter of a millisecond.
const SKIPPED_PAYLOADS: usize = 1 << 20;
const TOO_MANY: &str = "too many connections; closed";
const GAVE_PLACE: &str = "too many connections; closed in its handshake for a new one";

/// Whether a client has requests that wait.
fn connection_waits(parts: &mut ReactorParts, slot: u32) -> bool {
    parts.io.connection(slot).is_some_and(|(it, _)| it.has_waiting())
}

/// The connections of a shard, and what they share.
pub(super) struct Door {
    /// Exports, and which client sees which.
    pub exports: ExportTable,
    /// Limits of bytes and I/Os a second.
    pub limits: ShardLimits,
    /// Volumes whose images do not change now.
    pub freezes: Freezes,
    /// Bounds the lines of the log that clients cause.
    pub log: LogLimiter,
    hot: HotList,
    /// Devices whose rings have requests, while all are watched.
    busy: Vec<u32>,
    /// What connections hold of the pool, and which of them wait for it.
    memory: Memory,
    /// What each export may have of a turn.
    turn: FairTurn,
    /// Devices that do not answer, a bit each, as of `device_news`.
    stuck: u64,
    device_news: u32,
    stats: BufferStats,
    give_way: GiveWay,
    /// Bytes of large payloads that were received since the engine was entered last.
    payloads: usize,
    /// Nothing is accepted and read.
    paused: bool,
    scratch: Vec<u8>,
    spans: Vec<Span>,
}

impl Door {
    /// A door without connections.
    pub fn new(parts: &ReactorParts) -> Self {
        let places = parts.io.slots().count();
        let rules = parts.access.clone();
        let exports = ExportTable::new(parts.exports.iter().cloned(), rules);
        let mut memory = Memory::new(parts.io.pool.size(), places);
        memory.set_devices(exports.devices_of(parts.id));
        let limits = ShardLimits::new(places, parts.id, parts.shared.shards() as u16);
        let mut door = Self {
            exports,
            limits,
            freezes: Freezes::default(),
            log: LogLimiter::new(),
            hot: HotList::new(places),
            busy: Vec::new(),
            memory,
            turn: FairTurn::default(),
            stuck: 0,
            device_news: 0,
            stats: BufferStats::default(),
            give_way: GiveWay::new(places),
            payloads: 0,
            paused: false,
            scratch: vec![0; SCRATCH],
            spans: Vec::with_capacity(1024),
        };
        door.set_limits(parts);
        door
    }

    /// Adds an export with its limits, or changes the one of its id.
    pub fn put_limits(&mut self, now: Instant, served: &ServedExport) {
        let export = served.binding.export;
        self.limits.put(export, served.shard, served.config.weight);
        self.limits.set(now, LimitTarget::Export(export), &served.limits);
        self.limits.set_tenant(now, export, served.config.tenant);
    }

    /// Sets the weights and limits that the server starts with.
    fn set_limits(&mut self, parts: &ReactorParts) {
        let limits = &mut self.limits;
        limits.set(Instant(0), LimitTarget::Server, &parts.server_limits);
        for (tenant, (weight, of_tenant)) in (0..).map(TenantId).zip(&parts.tenant_limits) {
            let of_tenant: &Limits = of_tenant;
            self.set_tenant_weight(tenant, *weight);
            self.limits.set(Instant(0), LimitTarget::Tenant(tenant), of_tenant);
        }
        for export in &parts.exports {
            self.put_limits(Instant(0), export);
            let ExportConfig { weight, tenant, .. } = export.config;
            let id = export.binding.export;
            self.memory.set_weight(id, weight);
            self.memory.set_tenant(id, tenant);
            self.turn.set_weight(id, weight);
            self.turn.set_tenant(id, tenant);
        }
        self.limits.settle_homes(Instant(0));
    }

    /// Sets the weight of an export among those of its tenant.
    pub fn set_weight(&mut self, export: ExportId, weight: u16) {
        self.memory.set_weight(export, weight);
        self.turn.set_weight(export, weight);
        self.limits.set_weight(export, weight);
    }

    /// Sets the weight of a tenant.
    pub fn set_tenant_weight(&mut self, tenant: TenantId, weight: u16) {
        self.limits.set_tenant_weight(tenant, weight);
        self.memory.set_tenant_weight(tenant, weight);
        self.turn.set_tenant_weight(tenant, weight);
    }

    /// Moves an export to a tenant, or to none.
    pub fn set_tenant(&mut self, now: Instant, export: ExportId, tenant: TenantId) {
        self.memory.set_tenant(export, tenant);
        self.turn.set_tenant(export, tenant);
        self.limits.set_tenant(now, export, tenant);
        self.limits.settle_homes(now);
    }

    /// Takes over the devices of this shard's exports, after exports were added or removed.
    pub fn note_devices(&mut self, parts: &ReactorParts) {
        self.memory.set_devices(self.exports.devices_of(parts.id));
    }

    /// From now on nothing is accepted and read. What devices and files have read does not wait for limits any more.
    pub fn pause(&mut self, parts: &mut ReactorParts) {
        self.paused = true;
        for slot in parts.io.slots() {
            let client = parts.io.connection(slot);
            if client.is_some_and(|(client, _)| client.ends_what_it_read()) {
                self.pass_parked(parts, parts.io.now, slot);
            }
        }
    }

    /// Clients are accepted and read from again.
    pub fn end_pause(&mut self) {
        self.paused = false;
    }

    /// Whether nothing is accepted and read.
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Bytes that the connections of an export hold of the pool.
    pub fn held_by(&self, export: ExportId) -> usize {
        self.memory.held_by(export)
    }

    /// The export of a slot's client, until the slot is freed.
    pub fn export_of(&self, slot: u32) -> Option<ExportId> {
        self.hot.state(slot).export
    }

    /// States of all slots.
    pub fn states(&self) -> impl Iterator<Item = &ConnectionState> {
        self.hot.states()
    }

    /// Whether a connection is tried every turn, so that the engine need not be entered before the next one. Turns with large payloads are
    /// long, so fewer pass before other connections are noticed.
    pub fn may_skip_engine(&self) -> bool {
        !self.hot.is_empty() && self.payloads < SKIPPED_PAYLOADS
    }

    /// The engine is entered: others are noticed.
    pub fn note_entered(&mut self) {
        self.payloads = 0;
    }

    /// Before a sleep: watches all clients that were tried every turn. Returns whether a ring has requests, so that there is no sleep.
    pub fn watch_all(&mut self, parts: &mut ReactorParts) -> bool {
        let mut busy = std::mem::take(&mut self.busy);
        while let Some(slot) = self.hot.pop() {
            if let Some((ShardClient::Rings(client), _)) = parts.io.connection(slot)
                && client.arm()
            {
                busy.push(slot);
                continue;
            }
            self.watch(parts, slot);
        }
        let is_busy = !busy.is_empty();
        busy.drain(..).for_each(|slot| self.hot.heat(slot));
        self.busy = busy;
        is_busy
    }

    /// A socket is ready, or a ring was kicked.
    pub fn on_ready(&mut self, parts: &mut ReactorParts, slot: u32) {
        if let Some((ShardClient::Rings(client), _)) = parts.io.connection(slot) {
            client.on_kick();
        }
        self.hot.state_mut(slot).blocked = false;
        parts.io.list(slot);
        self.hot.heat(slot);
    }

    /// Tries all connections, and sends what they have: a pause is over.
    pub fn resume_all(&mut self, parts: &mut ReactorParts) {
        for slot in parts.io.slots() {
            if parts.io.connection(slot).is_some() {
                parts.io.list(slot);
                self.hot.heat(slot);
            }
        }
    }

    /// Stops reading from all connections. What waits for limits is submitted, and no connection waits for a buffer any more.
    pub fn leave_all(&mut self, parts: &mut ReactorParts, now: Instant) {
        for slot in parts.io.slots() {
            self.submit_parked(parts, now, slot);
            self.submit_close(parts, slot);
            if let Some((connection, pool)) = parts.io.connection(slot) {
                connection.leave(pool);
                parts.io.list(slot);
            }
        }
        self.memory.clear_waiters();
        for slot in parts.io.slots() {
            if connection_waits(parts, slot) {
                self.hot.heat(slot);
            }
        }
    }

    /// Begins the handshake of a client of the listener with this number.
    pub fn add_client(
        &mut self,
        parts: &mut ReactorParts,
        now: Instant,
        (socket, peer): (OwnedFd, String),
        (number, listener): (u16, Option<&ClientListener>),
    ) {
        debug!(peer, "client connected");
        let mut connection = Connection::new(socket, peer, parts.limits, now);
        if let Some(ClientListener { name, acceptor, .. }) = listener {
            connection.set_listener(number, name);
            if let Some(acceptor) = acceptor {
                connection.set_tls_acceptor(acceptor);
            }
        }
        if !parts.io.has_place() {
            self.give_place(parts);
        }
        match parts.io.insert(ShardClient::Nbd(Box::new(connection))) {
            Ok(slot) => {
                self.hot.reset(slot);
                parts.io.list(slot);
                self.hot.heat(slot);
            }
            Err(client) => self.log_limited(&client, TOO_MANY),
        }
    }

    /// All places are taken: ends the oldest handshake of the listener and address that have most of them, so that connections which
    /// choose no export cannot exclude clients of other listeners and addresses.
    fn give_place(&mut self, parts: &mut ReactorParts) {
        let mut groups: BTreeMap<(u16, &str), (usize, Instant, u32)> = BTreeMap::new();
        for client in parts.io.clients() {
            let Some(number) = client.negotiates_through() else { continue };
            let Some(until) = client.deadline() else { continue };
            let host = client.peer().rsplit_once(':').map_or(client.peer(), |(host, _)| host);
            let slot = slot_of(client.id());
            let (count, oldest, at) = groups.entry((number, host)).or_insert((0, until, slot));
            *count += 1;
            if until < *oldest {
                (*oldest, *at) = (until, slot);
            }
        }
        let busiest = groups.into_values().max_by_key(|&(count, until, _)| (count, Reverse(until)));
        if let Some((_, _, slot)) = busiest {
            self.end(parts, slot, &ConnectionEnd::Fault(GAVE_PLACE.to_owned()));
        }
    }

    /// Takes in a client of another process, which begins later; none if there are too many, which closes a connection.
    ///
    /// # Errors
    /// There are too many for a file, whose programs cannot connect again.
    pub fn adopt(
        &mut self,
        parts: &mut ReactorParts,
        client: ShardClient,
    ) -> Result<Option<u32>, String> {
        match parts.io.insert(client) {
            Ok(slot) => Ok(Some(slot)),
            Err(ShardClient::Fuse(file)) => {
                Err(format!("there is no place for the file {} (--connections)", file.peer()))
            }
            Err(client) => {
                self.log_limited(&client, TOO_MANY);
                Ok(None)
            }
        }
    }

    /// Binds a connection to the export that the client chose, or moves it to the export's shard; returns whether it
    /// stays here.
    fn place(
        &mut self,
        parts: &mut ReactorParts,
        now: Instant,
        slot: u32,
        export: usize,
        terms: Negotiated,
    ) -> bool {
        let Some((ShardClient::Nbd(connection), pool)) = parts.io.connection(slot) else {
            return false;
        };
        let chosen = self.exports.chosen(export);
        let Some((export, home, (binding, info))) =
            chosen.and_then(|(export, home)| Some((export, home, self.exports.open(export)?)))
        else {
            self.end(parts, slot, &ConnectionEnd::Fault("its export was removed".into()));
            return false;
        };
        debug!(
            peer = connection.peer(),
            export = info.name,
            tls = connection.tls(),
            "client opened its export"
        );
        if home == parts.id {
            connection.begin(now, binding, info, terms);
            self.hot.state_mut(slot).export = Some(export);
            self.note(parts, now, slot);
            return true;
        }
        // Sends the last reply of the handshake before the move. It is short; a client whose socket does not take it
        // does not read.
        if !matches!(connection.send(now, pool, &mut self.spans), Ok(SendOutcome::All)) {
            self.end(
                parts,
                slot,
                &ConnectionEnd::Fault("the client does not read the handshake replies".into()),
            );
            return false;
        }
        if connection.socket().is_some() {
            parts.engine.forget(slot);
        }
        self.hot.note_stash(slot, 0);
        if let Some(ShardClient::Nbd(connection)) = parts.io.remove(slot) {
            let message = ControlMessage::Connection { connection, export, terms };
            parts.shared.send(home, message);
        }
        false
    }

    /// Takes over a connection from the shard that accepted it.
    pub fn take_over(
        &mut self,
        parts: &mut ReactorParts,
        now: Instant,
        connection: Box<Connection>,
        export: ExportId,
        terms: Negotiated,
    ) {
        let client = ShardClient::Nbd(connection);
        if self.exports.open(export).is_none() {
            self.log_limited(&client, "closed: its export was removed");
            return;
        }
        match parts.io.insert(client) {
            Ok(slot) => self.begin_client(parts, now, slot, export, terms),
            Err(client) => self.log_limited(&client, TOO_MANY),
        }
    }

    /// Begins the transmission of a connection that came from another shard or process.
    pub fn begin_client(
        &mut self,
        parts: &mut ReactorParts,
        now: Instant,
        slot: u32,
        export: ExportId,
        terms: Negotiated,
    ) {
        let (opened, client) = (self.exports.open(export), parts.io.connection(slot));
        match (opened, client) {
            (Some((binding, info)), Some((ShardClient::Nbd(connection), _))) => {
                connection.begin(now, binding, info, terms);
            }
            (Some((binding, info)), Some((ShardClient::Fuse(file), _))) => {
                file.begin(binding, info);
            }
            _ => return self.close(parts, slot),
        }
        self.hot.reset(slot);
        self.hot.state_mut(slot).export = Some(export);
        self.note(parts, now, slot);
        self.hot.heat(slot);
        parts.io.list(slot);
    }

    pub fn log_limited(&mut self, client: &ShardClient, sentence: &str) {
        if self.log.admits() {
            warn!(peer = client.peer(), "{sentence}");
        }
    }

    pub fn end(&mut self, parts: &mut ReactorParts, slot: u32, end: &ConnectionEnd) {
        self.submit_close(parts, slot);
        let Some((connection, pool)) = parts.io.connection(slot) else {
            return;
        };
        match end {
            ConnectionEnd::Goodbye => connection.leave(pool),
            ConnectionEnd::HungUp => {
                debug!(peer = connection.peer(), "client hung up");
                self.close(parts, slot);
                return;
            }
            ConnectionEnd::Fault(sentence) => {
                if self.log.admits() {
                    warn!(peer = connection.peer(), "connection ended: {sentence}");
                }
                // Tries to send the last reply of the handshake before closing.
                let _ = connection.send(Instant(0), pool, &mut self.spans);
                self.close(parts, slot);
                return;
            }
        }
        parts.io.list(slot);
    }

    /// Disconnects the clients of an export: nothing more is read, requests in flight complete. With `unread`,
    /// connections that only have unread replies are closed.
    pub fn evict(
        &mut self,
        parts: &mut ReactorParts,
        now: Instant,
        export: ExportId,
        unread: bool,
    ) {
        let clients: Vec<u32> =
            parts.io.slots().filter(|&slot| self.export_of(slot) == Some(export)).collect();
        for slot in clients {
            self.submit_parked(parts, now, slot);
            self.submit_close(parts, slot);
            self.memory.leave(slot);
            if let Some((connection, pool)) = parts.io.connection(slot) {
                connection.leave(pool);
                parts.io.list(slot);
                if connection_waits(parts, slot) {
                    self.hot.heat(slot);
                }
            }
            if unread {
                self.close_if_only_sending(parts, slot);
            }
        }
    }

    /// Closes the connections of an export that is given up; each keeps its slot and its buffers until its requests have ended.
    pub fn abandon(&mut self, parts: &mut ReactorParts, export: ExportId) {
        self.exports.abandon(export);
        for slot in parts.io.slots() {
            if self.export_of(slot) == Some(export) {
                self.close(parts, slot);
            }
        }
    }

    /// Closes a connection that only has unread replies. Buffers in a device still delay the shutdown.
    pub fn close_if_only_sending(&mut self, parts: &mut ReactorParts, slot: u32) {
        if parts.io.connection(slot).is_some_and(|(connection, _)| connection.has_outgoing()) {
            self.close(parts, slot);
        }
    }

    /// Ends the clients of a listener that have chosen no export.
    pub fn end_handshakes(&mut self, parts: &mut ReactorParts, number: u16, why: &str) {
        for slot in parts.io.slots() {
            let connection = parts.io.connection(slot);
            if connection.and_then(|(it, _)| it.negotiates_through()) == Some(number) {
                self.end(parts, slot, &ConnectionEnd::Fault(why.to_owned()));
            }
        }
    }

    /// Ends the connections whose clients have made no progress for too long; returns whether one has a deadline.
    pub fn end_late(&mut self, parts: &mut ReactorParts, now: Instant) -> bool {
        let mut any = false;
        for slot in parts.io.slots() {
            let Some((connection, _)) = parts.io.connection(slot) else { continue };
            connection.release_idle_memory();
            let Some(deadline) = connection.deadline() else { continue };
            any = true;
            if deadline <= now {
                let message = connection.timeout_message();
                self.stats.closed += u64::from(connection.binding().is_some());
                self.end(parts, slot, &ConnectionEnd::Fault(message));
            }
        }
        any
    }

    /// Tells the shard, once, that a connection submits nothing more: its waits end.
    pub fn submit_close(&mut self, parts: &mut ReactorParts, slot: u32) {
        if let Some((connection, _)) = parts.io.connection(slot)
            && connection.binding().is_some()
        {
            if let Some(sentence) = connection.take_torn_write()
                && self.log.admits()
            {
                warn!(peer = connection.peer(), "{sentence}");
            }
            parts.driver.push(Input::Close { connection: connection.id() });
            self.limits.forget(parts.io.now, slot);
        }
    }

    pub fn close(&mut self, parts: &mut ReactorParts, slot: u32) {
        self.submit_close(parts, slot);
        let Some((connection, pool)) = parts.io.connection(slot) else {
            return;
        };
        if connection.socket().is_some() {
            parts.engine.forget(slot);
            connection.close(pool);
            parts.io.note_lent(slot);
        }
        self.memory.leave(slot);
        self.note(parts, parts.io.now, slot);
        self.free_if_finished(parts, slot);
    }

    /// Frees the slot of a connection that is finished.
    pub fn free_if_finished(&mut self, parts: &mut ReactorParts, slot: u32) {
        let finished =
            parts.io.connection(slot).is_some_and(|(connection, _)| connection.is_finished());
        if !finished {
            return;
        }
        self.memory.forget(slot);
        self.limits.forget(parts.io.now, slot);
        if let Some(connection) = parts.io.remove(slot) {
            if connection.socket().is_some() {
                parts.engine.forget(slot);
            }
            debug!(peer = connection.peer(), "connection closed");
            connection.retire();
        }
        self.hot.state_mut(slot).export = None;
    }

    /// Lets a connection go on for which `what` has come, if a request of it waits for that; returns whether one does.
    pub fn wake(&mut self, parts: &mut ReactorParts, slot: u32, what: WaitsFor) -> bool {
        let connection = parts.io.connection(slot);
        let waits = connection.is_some_and(|(connection, _)| connection.waits_for(what));
        if waits {
            self.hot.heat(slot);
        }
        waits
    }

    /// Updates the records of what a connection holds.
    pub fn note(&mut self, parts: &mut ReactorParts, now: Instant, slot: u32) {
        if let Some((connection, _)) = parts.io.connection(slot) {
            let owner = connection.binding().map(|binding| (binding.export, binding.device));
            let (requests, request_bytes) = (connection.in_flight(), connection.request_bytes());
            let held = Held { bytes: connection.held(), request_bytes, requests };
            self.memory.note_payload(slot, connection.kept_payload());
            self.hot.note_stash(slot, connection.stashed());
            let PayloadCounts { written_early, cut } = connection.take_payload_counts();
            self.stats.payloads_written_early += u64::from(written_early);
            self.stats.blocks_cut += u64::from(cut);
            self.memory.note(slot, owner, held, connection.is_stalled(now));
            parts.io.note_lent(slot);
        }
    }

    /// Watches a connection for what it waits for.
    pub fn watch(&mut self, parts: &mut ReactorParts, slot: u32) {
        let now = parts.io.now;
        if let Some((connection, pool)) = parts.io.connection(slot)
            && connection.has_incomplete_payload()
        {
            connection.cut_payload(pool);
            self.note(parts, now, slot);
        }
        let state = *self.hot.state(slot);
        let is_paused = self.paused;
        let Some((connection, _)) = parts.io.connection(slot) else {
            return;
        };
        let Some(fd) = connection.socket() else {
            return;
        };
        // A hot connection is read from every turn anyway, unless it rests.
        let stopped = is_paused || connection.stopped_by() != WaitsFor::Nothing;
        let is_tried = state.is_hot() && !(state.blocked && connection.rests());
        let reads = !stopped && connection.reads() && !is_tried;
        let interest = match (reads, state.blocked) {
            (true, false) => Interest::Read,
            (true, true) => Interest::ReadWrite,
            (false, true) => Interest::Write,
            // A sent reply, or `Memory::wake`, resumes it.
            (false, false) => return,
        };
        parts.engine.watch(slot, fd, interest);
    }
}
