//! A device behind an NBD server: commands become requests on one or several connections, which are opened anew when they are lost.
//!
//! ```text
//!   Down --timer--> Dialing --connected, same export--> Up --EOF, error, bad bytes, silence--> every connection closed, Down
//!     ^                |  |
//!     '---- failed ----'  '-- another size, access or offer --> Barred: everything fails, an operator must look
//! ```
//!
//! `dial` opens connections on its thread, `connection` moves bytes, `slots` has the commands, `options` what the export offers.
//!
//! **A lost connection.** All connections are closed, since a server that still works on one could apply an old write after a newer one of
//! the same block. Commands in flight wait and are sent again on the new ones: reads and flushes as they are, writes too, unless
//! [`RemoteOptions::fail_writes`]. After [`RemoteOptions::reconnect_ns`] what waits and what comes fails with `TimedOut`; attempts go on, one
//! at a time, after 0.1 to 5 s that double, with jitter, until the first reply on a new connection.
//!
//! **Lost acknowledgements.** If the remote has a volatile cache and acknowledged a write that no successful flush covers, that write may be
//! gone with it. The device says so at the loss ([`DeviceIo::lose`]), and a flush in flight fails. If nothing is uncovered, or with
//! [`RemoteOptions::stable`], nothing is lost. A barred remote counts as a loss in any case.
//!
//! Invariants: each command is answered once; a closed connection is never read again; memory of a command is used only until its
//! answer; a turn handles 64 replies or 256 KiB.

mod acknowledged;
mod connection;
mod defect;
mod dial;
#[cfg(test)]
mod hostile_tests;
mod kept;
mod newest;
mod options;
mod outage;
mod repeat;
mod slots;
mod status;
#[cfg(test)]
mod tests;
#[doc(hidden)]
pub mod world;

use std::collections::VecDeque;
use std::sync::Arc;

use headworks::driver::{Interest, Span};
use headworks::{CommandBatch, Device, DeviceIo};
use headworks_core::extent::ExtentWriter;
use headworks_core::{Completion, ExtentState, Instant, IoError, Op, Status, VolumeId};
use tracing::{error, info, warn};

pub use self::dial::{Attempt, Dial, Dialer, Opened};
pub use self::options::{RemoteOptions, queue_options, volume_options};
pub use self::status::{RemoteReport, RemoteState, RemoteStatus};

use self::acknowledged::Acknowledged;
use self::connection::{Budget, Connection};
use self::defect::Defects;
use self::kept::Kept;
use self::outage::Outage;
use self::repeat::{Repeat, Settled};
use self::slots::{Place, Purpose, Slots};
use crate::TransmissionFlags;
use crate::client::{ClientError, Export, Uri};
use crate::wire::{self, CommandFlags, NbdError, RequestHeader};

/// The place of the dialer's descriptor; those of connections are their indices.
const DIAL_PLACE: u16 = DeviceIo::PLACES - 1;

/// What a device does about its connections.
#[derive(Debug)]
enum State {
    Up,
    /// The next attempt begins at this time.
    Down(Instant),
    Dialing,
    Barred,
}

/// A device whose bytes are behind an NBD server.
pub struct NbdDevice<D = Dialer> {
    /// The remote's name in the log.
    name: String,
    options: RemoteOptions,
    dial: D,
    /// The export as it was served first.
    export: Export,
    /// What the present server offers.
    flags: TransmissionFlags,
    state: State,
    connections: Vec<Connection>,
    slots: Slots,
    /// Commands without a connection, in order.
    waiting: VecDeque<u32>,
    /// Writes that wait for a flush, which makes room for their copies.
    crowded: VecDeque<u32>,
    /// Acknowledged writes that no flush covers.
    kept: Kept,
    /// The device flushes by itself.
    is_releasing: bool,
    /// What was kept is written again.
    repeat: Option<Repeat>,
    /// Whether what a told loss has left is durable.
    settled: Settled,
    outage: Outage,
    acknowledged: Acknowledged,
    /// The volume of the last command.
    volume: Option<VolumeId>,
    /// Descriptors are watched.
    started: bool,
    /// Connections with received bytes that no turn has handled, a bit each.
    unread: u16,
    ended: Vec<u32>,
    gather: Vec<Span>,
    status: Arc<RemoteStatus>,
    defects: Defects,
}

impl NbdDevice {
    /// Connects to the server of `uri`, within [`RemoteOptions::connect_ns`]. The attempts of the device are spread by `seed`.
    ///
    /// # Errors
    /// The server cannot be reached, refuses, or breaks the protocol.
    pub fn open(
        uri: &Uri,
        options: RemoteOptions,
        seed: u64,
    ) -> Result<(Self, Export), ClientError> {
        let mut dial = Dialer::new(uri.clone(), &options).map_err(ClientError::Io)?;
        let opened = dial.open()?;
        let export = opened[0].1.clone();
        Ok((Self::new(&uri.to_string(), options, seed, (dial, opened)), export))
    }

    /// A device that takes over from one in another process, which served `export` and flushed it last: it connects as after a loss.
    ///
    /// # Errors
    /// The system has no thread or descriptor left.
    pub fn take_over(
        uri: &Uri,
        options: RemoteOptions,
        seed: u64,
        export: Export,
    ) -> Result<Self, ClientError> {
        let dial = Dialer::new(uri.clone(), &options).map_err(ClientError::Io)?;
        let mut device = Self::new(&uri.to_string(), options, seed, (dial, Vec::new()));
        (device.flags, device.export) = (export.flags, export);
        device.acknowledged.cover(0);
        device.set_state(Instant(0), State::Down(Instant(0)), "it was just taken over");
        Ok(device)
    }
}

impl<D: Dial> NbdDevice<D> {
    /// A device over connections that were just opened, at least one, to one export.
    #[must_use]
    pub fn new(
        name: &str,
        options: RemoteOptions,
        seed: u64,
        (dial, opened): (D, Vec<Opened>),
    ) -> Self {
        let export = opened.first().map(|(_, export)| export.clone()).unwrap_or_default();
        let mut device = Self {
            name: name.to_owned(),
            options,
            dial,
            flags: export.flags,
            export,
            state: State::Up,
            connections: Vec::new(),
            slots: Slots::default(),
            waiting: VecDeque::new(),
            crowded: VecDeque::new(),
            kept: Kept::new(options.keep as usize),
            is_releasing: false,
            repeat: None,
            settled: Settled::Yes,
            outage: Outage::none(seed),
            acknowledged: Acknowledged::default(),
            volume: None,
            started: false,
            unread: 0,
            ended: Vec::with_capacity(128),
            gather: Vec::with_capacity(1024),
            status: Arc::default(),
            defects: Defects::default(),
        };
        device.connect(Instant(0), opened);
        device
    }

    /// Uses new connections.
    fn connect(&mut self, now: Instant, opened: Vec<Opened>) {
        let most = usize::from(RemoteOptions::CONNECTIONS_MAX);
        for (index, (socket, export)) in (0..).zip(opened.into_iter().take(most)) {
            self.flags = export.flags;
            self.connections.push(Connection::new(now, index, socket, &export));
        }
        self.set_state(now, State::Up, "");
    }

    /// What the device tells of its remote, for other threads.
    #[must_use]
    pub fn status(&self) -> Arc<RemoteStatus> {
        Arc::clone(&self.status)
    }

    /// Enters a state that is told, for `reason`.
    fn set_state(&mut self, now: Instant, state: State, reason: &str) {
        self.state = state;
        let (connections, attempts) = (self.connections.len() as u32, self.outage.attempts());
        let state = match self.state {
            State::Up => RemoteState::Up,
            State::Down(_) | State::Dialing => RemoteState::Down,
            State::Barred => RemoteState::Barred,
        };
        self.status.change(|report| {
            if report.state != state {
                (report.state, report.since) = (state, now);
            }
            (report.connections, report.attempts) = (connections, attempts);
            reason.clone_into(&mut report.reason);
        });
    }

    /// Waits for the next attempt, after one that failed for `reason`.
    fn stay_down(&mut self, now: Instant, reason: &str) {
        let next = now.after(self.outage.pause());
        self.set_state(now, State::Down(next), reason);
    }

    /// Watches every descriptor.
    fn watch(&mut self, io: &mut DeviceIo<'_>) {
        for (place, connection) in (0..).zip(&self.connections) {
            io.watch(place, connection.fd(), connection.interest());
        }
    }

    /// Answers a command and frees its slot.
    fn answer(&mut self, slot: u32, status: Status, io: &mut DeviceIo<'_>) {
        self.give_room_back(slot);
        let it = self.slots.slot(slot);
        match it.purpose {
            Purpose::Asked => {}
            Purpose::Release => {
                self.slots.free(slot);
                return self.on_released(status, io);
            }
            Purpose::Repeat => {
                self.slots.free(slot);
                return self.on_repeated(slot, status, io);
            }
        }
        let it = self.slots.slot(slot);
        let transferred = if status.is_ok() { it.command.len } else { 0 };
        let (id, hole) = (it.command.id, it.is_hole && status.is_ok());
        self.slots.free(slot);
        io.completions.push(Completion { id, transferred, status, hole });
    }

    /// Why commands fail at once, if they do.
    fn refusal(&self, now: Instant) -> Option<IoError> {
        match self.state {
            State::Up => None,
            State::Barred => Some(IoError::Medium),
            State::Down(_) | State::Dialing => {
                self.give_up_at().is_some_and(|at| at <= now).then_some(IoError::TimedOut)
            }
        }
    }

    /// When commands that wait for a connection fail.
    fn give_up_at(&self) -> Option<Instant> {
        self.outage.give_up_at(self.options.reconnect_ns)
    }

    /// Gives every waiting command to a connection, and sends. What was kept goes first, alone.
    fn send_waiting(&mut self, now: Instant, io: &mut DeviceIo<'_>) {
        self.release_if_due();
        if self.repeat.is_some() {
            self.send_kept(now);
        }
        while (self.repeat.is_none() || self.defects.others_before_kept())
            && let Some(slot) = self.waiting.pop_front()
        {
            if !self.finds_room(slot) {
                self.crowded.push_back(slot);
                continue;
            }
            let op = self.slots.slot(slot).command.op;
            let Some(index) = self.connection_for(op) else {
                self.tell_all_data(slot, io);
                continue;
            };
            self.assign(slot, index);
            if op == Op::Flush {
                self.slots.slot_mut(slot).covers = self.acknowledged.writes();
            }
            self.connections[index].push(now, &self.slots, slot);
        }
        for index in 0..self.connections.len() {
            let connection = &mut self.connections[index];
            if connection.interest() == Interest::Read {
                continue;
            }
            if let Err(reason) = connection.send(&mut self.slots, &mut self.gather) {
                return self.lose(now, &reason, io);
            }
            if self.started && connection.interest() == Interest::ReadWrite {
                io.watch(index as u16, connection.fd(), Interest::ReadWrite);
            }
        }
    }

    /// Makes the request of a command for a connection.
    fn assign(&mut self, slot: u32, index: usize) {
        let kept = self.defects.partial_read_kept();
        let covered = kept.then(|| self.slots.slot(slot).covered.clone());
        let mut flags = self.flags;
        if self.defects.fua_dropped() {
            flags.0 &= !TransmissionFlags::SEND_FUA.0;
        }
        self.slots.assign(slot, index as u8, flags);
        if let Some(covered) = covered {
            self.slots.slot_mut(slot).covered = covered;
        }
    }

    /// The connection for a command; none for a block status that the remote cannot tell. The first that is not full, so that small
    /// commands share system calls; else the one with the fewest bytes in flight.
    fn connection_for(&self, op: Op) -> Option<usize> {
        let indices = 0..self.connections.len();
        let first = indices.clone().find(|&index| !self.connections[index].is_full());
        let index = first.or_else(|| indices.min_by_key(|&index| self.connections[index].bytes))?;
        let tells = op != Op::BlockStatus || self.connections[index].tells_extents();
        tells.then_some(index)
    }

    /// Answers a block status for a remote that does not know: all of it may be data.
    fn tell_all_data(&mut self, slot: u32, io: &mut DeviceIo<'_>) {
        let it = self.slots.slot(slot);
        let Some(span) = it.spans.first() else {
            return self.answer(slot, Err(IoError::Invalid), io);
        };
        // SAFETY: the memory of a command that was not answered.
        let mut list = ExtentWriter::new(unsafe { span.bytes_mut() }, it.command.len, 1);
        list.push(it.command.len.into(), ExtentState::DATA);
        let status = if list.finish() == 0 { Err(IoError::Invalid) } else { Ok(()) };
        self.answer(slot, status, io);
    }

    /// Handles what a connection received, within the budget, and watches it again.
    fn receive(&mut self, now: Instant, index: usize, io: &mut DeviceIo<'_>) {
        let Self { connections, slots, ended, gather, .. } = self;
        let Some(connection) = connections.get_mut(index) else { return };
        let (mut budget, mut follow) = (Budget::of_turn(), false);
        let received = connection.receive(now, slots, &mut budget, (ended, gather));
        if !self.ended.is_empty() {
            self.outage.end();
            self.answer_ended(io);
            // A flush made room, the next of what was kept has its turn, or a flush is due.
            follow = self.repeat.is_some() || !self.waiting.is_empty() || self.release_is_due();
        }
        let bit = 1 << index;
        self.unread &= !bit;
        match received {
            Err(reason) => self.lose(now, &reason, io),
            Ok(more) => {
                self.unread |= if more { bit } else { 0 };
                let connection = &self.connections[index];
                io.watch(index as u16, connection.fd(), connection.interest());
                if follow {
                    self.send_waiting(now, io);
                }
            }
        }
    }

    /// Answers the commands whose replies are complete.
    fn answer_ended(&mut self, io: &mut DeviceIo<'_>) {
        for index in 0..self.ended.len() {
            let slot = self.ended[index];
            let it = self.slots.slot(slot);
            let (command, purpose, mut status) =
                (it.command, it.purpose, it.error.map_or(Ok(()), |error| Err(error_of(error))));
            let counts =
                status.is_ok() || command.op == Op::Flush && self.defects.refused_flush_covers();
            if counts && purpose != Purpose::Repeat {
                match command.op {
                    Op::Flush => {
                        let later = self.defects.flush_covers_later();
                        let covers = if later { self.acknowledged.writes() } else { it.covers };
                        self.on_flushed(slot, covers);
                        if purpose == Purpose::Asked && self.is_before_loss(slot) {
                            status = Err(IoError::Medium);
                        }
                    }
                    op if op.is_write() => self.on_acknowledged(slot),
                    _ => {}
                }
            }
            self.answer(slot, status, io);
        }
        self.ended.clear();
    }

    /// Closes every connection. What was in flight waits for new ones, or fails.
    fn lose(&mut self, now: Instant, reason: &str, io: &mut DeviceIo<'_>) {
        // Replies that came whole before the end count.
        self.answer_ended(io);
        let is_missing = self.has_uncovered() && !self.kept.is_complete();
        if self.is_volatile() && (is_missing || self.settled != Settled::Yes) {
            self.tell_loss(io);
        }
        self.repeat = None;
        for slot in self.slots.in_flight() {
            self.give_room_back(slot);
            let it = self.slots.slot(slot);
            let Place::InFlight { connection, sent } = it.place else { continue };
            let begun = sent || self.connections[usize::from(connection)].has_begun(slot);
            if it.purpose != Purpose::Asked {
                self.slots.free(slot);
                continue;
            }
            match it.command.op {
                Op::Flush if self.is_before_loss(slot) => {
                    self.answer(slot, Err(IoError::Medium), io)
                }
                op if op.is_write() && self.defects.write_forgotten() => {
                    self.answer(slot, Ok(()), io);
                }
                op if op.is_write() && begun && self.options.fail_writes => {
                    self.answer(slot, Err(IoError::Medium), io);
                }
                _ => {
                    self.slots.slot_mut(slot).place = Place::Waiting;
                    self.waiting.push_back(slot);
                }
            }
        }
        self.is_releasing = false;
        self.waiting.extend(self.crowded.drain(..));
        for (place, connection) in (0..).zip(self.connections.drain(..)) {
            io.forget(place);
            if self.defects.old_connections_kept() {
                std::mem::forget(connection);
            }
        }
        self.unread = 0;
        self.outage.begin(now);
        self.stay_down(now, reason);
        let wait = self.options.reconnect_ns / 1_000_000_000;
        warn!(
            waiting = self.slots.count(),
            "{}: connection lost: {reason}; requests wait up to {wait} s for a new one", self.name
        );
        self.fail_waiting(now, io);
    }

    /// Whether a loss was told since a flush was submitted: it fails, also where the remote has flushed what is left.
    fn is_before_loss(&self, flush: u32) -> bool {
        self.slots.slot(flush).losses != self.acknowledged.losses()
            && !self.defects.flush_forgets_loss()
    }

    /// Whether the remote may have acknowledged writes only in a volatile cache.
    fn has_uncovered(&self) -> bool {
        let may_cache = self.flags.contains(TransmissionFlags::SEND_FLUSH);
        may_cache && self.acknowledged.has_uncovered()
    }

    /// The answer to a command that fails with `error` because there is no connection. A flush that covers nothing succeeds, so that an
    /// export whose remote is gone can be removed.
    fn answer_without_remote(&self, op: Op, error: IoError) -> Status {
        let covers_nothing = self.acknowledged.was_flushed()
            && (!self.has_uncovered() || self.settled != Settled::Yes);
        if op == Op::Flush && covers_nothing { Ok(()) } else { Err(error) }
    }

    /// Fails the waiting commands if no connection can come in time.
    fn fail_waiting(&mut self, now: Instant, io: &mut DeviceIo<'_>) {
        let Some(refusal) = self.refusal(now) else { return };
        if self.outage.give_up() && !matches!(self.state, State::Barred) {
            error!("{}: no new connection in time: requests fail until there is one", self.name);
        }
        while let Some(slot) = self.waiting.pop_front() {
            let op = self.slots.slot(slot).command.op;
            self.answer(slot, self.answer_without_remote(op, refusal), io);
        }
    }

    /// Takes the result of an attempt.
    fn on_dialed(&mut self, now: Instant, io: &mut DeviceIo<'_>) {
        let Some(attempt) = self.dial.take() else { return };
        if !matches!(self.state, State::Dialing) {
            return;
        }
        match attempt {
            Ok(opened) if !opened.is_empty() => {
                let differing = |(_, export): &Opened| options::difference(&self.export, export);
                match opened.iter().find_map(differing) {
                    Some(difference) => self.bar(now, &difference, io),
                    None => self.reconnect(now, opened, io),
                }
            }
            Ok(_) => self.stay_down(now, "no connection was opened"),
            Err(reason) => {
                tracing::debug!("{}: no connection: {reason}", self.name);
                self.stay_down(now, &reason.to_string());
            }
        }
    }

    fn reconnect(&mut self, now: Instant, opened: Vec<Opened>, io: &mut DeviceIo<'_>) {
        let since = self.outage.reconnect(now, !self.waiting.is_empty());
        self.connect(now, opened);
        self.status.change(|report| report.reconnects += 1);
        let (resent, repeated) = (self.waiting.len(), self.kept.len());
        info!(resent, repeated, "{}: connected again after {since} ms", self.name);
        self.begin_repeat();
        if self.settled == Settled::Refused {
            self.settled = Settled::No;
        }
        self.watch(io);
        self.send_waiting(now, io);
    }

    /// Fails everything from now on: the remote has another export under the name.
    fn bar(&mut self, now: Instant, difference: &str, io: &mut DeviceIo<'_>) {
        self.set_state(now, State::Barred, difference);
        // Whatever it was, it is not there; after that there is nothing to flush.
        self.tell_loss(io);
        self.acknowledged.cover(self.acknowledged.writes());
        self.settled = Settled::Yes;
        error!(
            "{}: the export is another one than before ({difference}): its requests fail until it is removed and added again",
            self.name
        );
        self.fail_waiting(now, io);
    }

    /// When a connection with requests has been silent for too long.
    fn silent_at(&self) -> Option<Instant> {
        let busy = self.connections.iter().filter(|connection| connection.in_flight > 0);
        busy.map(|connection| connection.heard.after(self.options.timeout_ns)).min()
    }
}

/// What the path makes of a remote's error.
fn error_of(error: NbdError) -> IoError {
    match error {
        NbdError::NotPermitted => IoError::ReadOnly,
        NbdError::Io | NbdError::Overflow => IoError::Medium,
        NbdError::NoMemory => IoError::NoMemory,
        NbdError::Invalid => IoError::Invalid,
        NbdError::NoSpace => IoError::NoSpace,
        NbdError::NotSupported => IoError::Unsupported,
        NbdError::ShutDown => IoError::ShutDown,
    }
}

impl<D: Dial> Device for NbdDevice<D> {
    unsafe fn submit(&mut self, now: Instant, batch: CommandBatch<'_>, io: &mut DeviceIo<'_>) {
        let refusal = self.refusal(now);
        for command in batch.commands {
            self.volume = Some(command.volume);
            if let Some(error) = refusal {
                let status = self.answer_without_remote(command.op, error);
                io.completions.push(command.ended(status));
                continue;
            }
            match self.slots.take(command, batch) {
                Some(slot) => {
                    self.slots.slot_mut(slot).losses = self.acknowledged.losses();
                    self.waiting.push_back(slot);
                }
                None => io.completions.push(command.failed(IoError::Busy)),
            }
        }
        if matches!(self.state, State::Up) {
            self.send_waiting(now, io);
        }
    }

    fn on_ready(&mut self, now: Instant, place: u16, io: &mut DeviceIo<'_>) {
        if place == DIAL_PLACE {
            self.on_dialed(now, io);
            return io.watch(DIAL_PLACE, self.dial.fd(), Interest::Read);
        }
        let index = usize::from(place);
        let Some(connection) = self.connections.get_mut(index) else { return };
        if connection.interest() == Interest::ReadWrite
            && let Err(reason) = connection.send(&mut self.slots, &mut self.gather)
        {
            return self.lose(now, &reason, io);
        }
        self.receive(now, index, io);
    }

    fn on_timeout(&mut self, now: Instant, io: &mut DeviceIo<'_>) {
        if !std::mem::replace(&mut self.started, true) {
            self.watch(io);
            io.watch(DIAL_PLACE, self.dial.fd(), Interest::Read);
            if !matches!(self.state, State::Up) {
                self.outage.begin(now);
            }
        }
        for index in 0..self.connections.len() {
            if self.unread & 1 << index != 0 {
                self.receive(now, index, io);
            }
        }
        if self.silent_at().is_some_and(|at| at <= now) {
            let seconds = self.options.timeout_ns / 1_000_000_000;
            self.lose(now, &format!("the server did not answer for {seconds} s"), io);
        }
        if let State::Down(at) = self.state
            && at <= now
        {
            self.state = State::Dialing;
            self.dial.start();
        }
        self.fail_waiting(now, io);
    }

    fn next_timeout(&self) -> Option<Instant> {
        if !self.started || self.unread != 0 {
            return Some(Instant(0));
        }
        let attempt = match self.state {
            State::Up => return self.silent_at(),
            State::Down(at) => Some(at),
            State::Dialing | State::Barred => None,
        };
        let give_up = self.give_up_at().filter(|_| !self.waiting.is_empty());
        attempt.into_iter().chain(give_up).min()
    }
}

impl<D> Drop for NbdDevice<D> {
    /// Ends the sessions of idle connections; others are just closed.
    fn drop(&mut self) {
        let command = wire::Command::Disconnect as u16;
        let flags = CommandFlags::NONE.0;
        let request = RequestHeader { flags, command, ..RequestHeader::default() }.encode();
        for connection in self.connections.iter_mut().filter(|it| it.in_flight == 0) {
            connection.disconnect(request);
        }
    }
}
