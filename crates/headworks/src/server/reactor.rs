//! One shard's thread: waits, gathers what came, lets the shard decide, carries it out, sends.
//!
//! ```text
//!      .-> engine turn: disk, sockets, other threads, time      (skipped while a client keeps the shard busy)
//!      |   rings and mail from other shards
//!      |   one receive per busy connection  --> bios
//!      |   shard.handle(inputs); executor.run(actions)           until no input is left
//!      |   one send per connection that has something
//!      '-- nothing came? look again for a little (`polling`), then sleep
//! ```
//!
//! Invariants: every action list is carried out before the next input; before a sleep every connection that may bring
//! something is watched, and no ring has anything; a connection is in `hot` at most once.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use headworks_core::{
    Bio, BioFlags, BioId, Control, Input, Instant, Notice, Op, Shard, ShardId, VolumeId,
};
use tracing::{debug, error, info, warn};

use super::board::{Board, Mail};
use super::desk::{Desk, Envelope, OWN_FLUSHES};
use super::listener::Listener;
use super::polling::Polling;
use super::recorder::Recorder;
use super::{Clock, ServedExport, WatchedFile, statistics};
use crate::engine::{DiskQueue, Engine, Event, Interest, Wait, Waker};
use crate::executor::Executor;
use crate::frontend::nbd::connection::{Connection, ConnectionLimits, End, Intake, Received};
use crate::frontend::nbd::handshake::ExportInfo;
use crate::frontend::nbd::outgoing::Sent;
use crate::memory::Span;
use crate::ring::Sleeper;

/// Tokens of listeners start here; below are connections' slots.
const LISTENERS: u32 = 1 << 12;
/// Bytes of one receive: large enough for 64 requests of 4 KiB, small enough to stay in the second-level cache.
const SCRATCH: usize = 256 << 10;
/// Turns that a busy connection may have before the engine is asked about the others.
const SKIPS_MAX: u32 = 8;
/// How often patience and file sizes are looked at, while anything happens at all.
const TICK_NS: u64 = 1_000_000_000;
/// How long replies may take to leave when the server stops.
const DRAIN_NS: u64 = 5_000_000_000;
/// Messages taken from one ring in a turn.
const MESSAGES_MAX: usize = 1024;

/// Why a connection is not read from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Hold {
    #[default]
    No,
    /// Its own requests and replies are at their bound.
    Full,
    /// It stands in the line for a buffer.
    NoBuffer,
}

#[derive(Clone, Copy, Debug, Default)]
struct Standing {
    hot: bool,
    hold: Hold,
    /// The last send filled the socket.
    blocked: bool,
}

/// The way to the end.
///
/// ```text
///  Running --stop--> Draining --nothing in flight--> Flushing --all answered--> Waiting --every shard waits--> ended
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Running,
    /// Reads no more; answers what is in flight.
    Draining {
        since: Instant,
    },
    /// Own flushes are under way.
    Flushing {
        left: usize,
    },
    /// Done, but other shards may still need our devices.
    Waiting,
}

/// What a reactor is made of; see the fields of [`Reactor`].
pub struct Parts {
    pub id: ShardId,
    pub clock: Clock,
    pub shard: Shard,
    pub executor: Executor,
    pub engine: Box<dyn Engine>,
    pub desk: Desk,
    pub sleeper: Arc<Sleeper>,
    pub wakers: Vec<Waker>,
    pub mail: Receiver<Mail>,
    pub board: Arc<Board>,
    pub exports: Arc<[ServedExport]>,
    pub listeners: Vec<Listener>,
    pub files: Vec<WatchedFile>,
    pub volumes: Vec<VolumeId>,
    pub limits: ConnectionLimits,
    pub poll_ns: u64,
    /// Room in the shard that is kept for bios of other shards.
    pub reserve: u32,
    pub recorder: Option<Recorder>,
}

/// One shard's thread.
pub struct Reactor {
    parts: Parts,
    /// What clients are told of the exports.
    infos: Vec<ExportInfo>,
    standings: Vec<Standing>,
    /// Connections that are tried every turn.
    hot: Vec<u32>,
    /// Connections that wait for a buffer, in the order in which they asked.
    line: VecDeque<u32>,
    polling: Polling,
    life: Life,
    skips: u32,
    next_tick: Instant,
    /// Something happened since the last tick, or somebody's patience runs. An idle server does not tick.
    ticking: bool,
    /// The process had no file descriptor for a client: listeners rest until the next tick.
    resting: bool,
    scratch: Vec<u8>,
    inputs: Vec<Input>,
    batch: Vec<Input>,
    events: Vec<Event>,
    envelopes: Vec<Envelope>,
    spans: Vec<Span>,
}

impl Reactor {
    /// A reactor at rest.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let places = parts.desk.slots().count();
        Self {
            infos: parts.exports.iter().map(|export| export.info.clone()).collect(),
            standings: vec![Standing::default(); places],
            hot: Vec::with_capacity(places),
            line: VecDeque::with_capacity(places),
            polling: Polling::new(parts.poll_ns),
            life: Life::Running,
            skips: 0,
            next_tick: Instant(0),
            ticking: false,
            resting: false,
            scratch: vec![0; SCRATCH],
            inputs: Vec::with_capacity(4096),
            batch: Vec::with_capacity(4096),
            events: Vec::with_capacity(1024),
            envelopes: Vec::with_capacity(MESSAGES_MAX),
            spans: Vec::with_capacity(1024),
            parts,
        }
    }

    /// Turns until the server stops.
    ///
    /// # Errors
    /// The engine is broken beyond use.
    pub fn run(mut self) -> io::Result<()> {
        for index in 0..self.parts.listeners.len() {
            self.watch_listener(index);
        }
        let mut wait = Wait::Poll;
        loop {
            if self.must_enter(wait) {
                self.enter(wait)?;
            }
            let now = self.parts.clock.now();
            let worked = self.turn(now);
            if self.life == Life::Waiting && self.parts.board.all_waiting() {
                return Ok(());
            }
            wait = self.next_wait(now, worked);
        }
    }

    /// Everything between two waits; true if anything happened.
    fn turn(&mut self, now: Instant) -> bool {
        let mut worked = self.take_events(now);
        worked |= self.take_messages();
        worked |= self.take_mail(now);
        worked |= self.receive(now);
        self.take_timers(now);
        worked |= !self.inputs.is_empty();
        self.step(now);
        self.send(now);
        self.push_messages();
        self.tell_notices();
        self.ticking |= worked;
        if self.ticking && now >= self.next_tick {
            self.tick(now);
        }
        self.advance_life(now);
        worked
    }

    /// A busy connection is served several times before the engine is entered, if the engine has nothing to do for us.
    fn must_enter(&mut self, wait: Wait) -> bool {
        let idle_disks = self.parts.shard.is_idle();
        let skip =
            wait == Wait::Poll && !self.hot.is_empty() && idle_disks && self.skips < SKIPS_MAX;
        self.skips = if skip { self.skips + 1 } else { 0 };
        !skip
    }

    fn enter(&mut self, wait: Wait) -> io::Result<()> {
        let Parts { engine, sleeper, desk, .. } = &mut self.parts;
        let wait = match wait {
            Wait::Poll => Wait::Poll,
            sleep => {
                let empty = || desk.peers.iter_mut().flatten().all(|peer| peer.consumer.is_empty());
                if sleeper.may_sleep(empty) { sleep } else { Wait::Poll }
            }
        };
        let result = engine.turn(wait, &mut self.events);
        sleeper.woken();
        result
    }

    fn next_wait(&mut self, now: Instant, worked: bool) -> Wait {
        if worked {
            self.polling.on_work();
            return Wait::Poll;
        }
        if self.polling.look_again(now) {
            std::thread::yield_now();
            self.polling.on_yield(self.parts.clock.now().since(now));
            return Wait::Poll;
        }
        if self.parts.desk.peers.iter().flatten().any(|peer| !peer.outbox.is_empty()) {
            // A ring was full. By design it never is; if it is, its reader makes room without telling.
            return Wait::Poll;
        }
        while let Some(slot) = self.hot.pop() {
            self.standings[slot as usize].hot = false;
            self.watch(slot);
        }
        let tick = self.ticking.then_some(self.next_tick);
        let times = [self.parts.desk.timer, self.parts.executor.next_timeout(), tick];
        match times.into_iter().flatten().min() {
            Some(at) if at <= now => Wait::Poll,
            Some(at) => Wait::For(at.since(now)),
            None => Wait::Forever,
        }
    }

    fn take_events(&mut self, now: Instant) -> bool {
        let mut events = std::mem::take(&mut self.events);
        let worked = !events.is_empty();
        for event in events.drain(..) {
            match event {
                Event::Ready { token } if token >= LISTENERS => self.accept(now, token - LISTENERS),
                Event::Ready { token } => {
                    self.standings[token as usize].blocked = false;
                    self.parts.desk.list(token);
                    self.heat(token);
                }
                Event::Disk(done) => {
                    let disk: &mut dyn DiskQueue = &mut *self.parts.engine;
                    self.parts.executor.on_disk(now, done, disk, &mut self.inputs);
                }
                Event::Woken => {}
            }
        }
        self.events = events;
        worked
    }

    fn take_messages(&mut self) -> bool {
        let desk = &mut self.parts.desk;
        let mut worked = false;
        for shard in 0..desk.peers.len() {
            let Some(peer) = &mut desk.peers[shard] else {
                continue;
            };
            peer.consumer.pop(MESSAGES_MAX, &mut self.envelopes);
            for envelope in self.envelopes.drain(..) {
                desk.keep_foreign(&envelope);
                let from = ShardId(shard as u16);
                self.inputs.push(Input::Message { from, message: envelope.message });
                worked = true;
            }
        }
        worked
    }

    fn take_mail(&mut self, now: Instant) -> bool {
        let mut worked = false;
        while let Ok(mail) = self.parts.mail.try_recv() {
            worked = true;
            match mail {
                Mail::Connection { connection, export, structured } => {
                    self.adopt(now, connection, export, structured);
                }
                Mail::Control(control) => self.inputs.push(Input::Control(control)),
                Mail::Statistics => self.tell_statistics(),
                Mail::Stop => self.stop(now),
                Mail::Look => {}
            }
        }
        worked
    }

    fn take_timers(&mut self, now: Instant) {
        if self.parts.desk.timer.is_some_and(|at| at <= now) {
            self.parts.desk.timer = None;
            self.inputs.push(Input::Timer);
        }
        let Parts { executor, engine, .. } = &mut self.parts;
        if executor.next_timeout().is_some_and(|at| at <= now) {
            executor.on_timeout(now, &mut **engine, &mut self.inputs);
        }
    }

    /// Lets the shard decide and carries it out, until devices that answer at once have nothing more to say.
    fn step(&mut self, now: Instant) {
        let Parts { shard, executor, engine, desk, recorder, .. } = &mut self.parts;
        while !self.inputs.is_empty() {
            std::mem::swap(&mut self.inputs, &mut self.batch);
            shard.handle(now, &self.batch);
            if let Some(recorder) = recorder {
                recorder.note(now, &self.batch, shard.actions());
            }
            self.batch.clear();
            executor.run(now, shard.actions(), desk, &mut **engine, &mut self.inputs);
            shard.clear_actions();
        }
    }

    /// One receive for every hot connection.
    fn receive(&mut self, now: Instant) -> bool {
        let kept = self.parts.reserve.saturating_sub(self.parts.desk.foreign() as u32);
        let mut room = self.parts.shard.room().saturating_sub(kept);
        let (mut index, mut worked) = (0, false);
        while index < self.hot.len() {
            let slot = self.hot[index];
            // A connection that was closed elsewhere may still be on the list.
            let received = self.receive_from(now, slot, &mut room);
            worked |= matches!(
                received,
                Some(Received::Some | Received::Chosen { .. } | Received::End(_))
            );
            if received.is_some_and(|received| self.settle(now, slot, received)) {
                index += 1;
            } else {
                self.hot.swap_remove(index);
                self.standings[slot as usize].hot = false;
            }
        }
        worked
    }

    fn receive_from(&mut self, now: Instant, slot: u32, room: &mut u32) -> Option<Received> {
        let line = self.line.front().is_some_and(|&first| first != slot);
        let (connection, pool) = self.parts.desk.connection(slot)?;
        Some(connection.receive(&mut Intake {
            now,
            scratch: &mut self.scratch,
            pool,
            line,
            exports: &self.infos,
            room,
            inputs: &mut self.inputs,
        }))
    }

    /// Acts on what a receive came to; true if the connection stays hot.
    fn settle(&mut self, now: Instant, slot: u32, received: Received) -> bool {
        if received != Received::NoBuffer && self.line.front() == Some(&slot) {
            self.line.pop_front();
        }
        self.standings[slot as usize].hold = Hold::No;
        if received == Received::Nothing {
            return true;
        }
        self.parts.desk.list(slot);
        match received {
            Received::Nothing | Received::Some => return true,
            Received::Full => self.standings[slot as usize].hold = Hold::Full,
            Received::NoBuffer => {
                self.standings[slot as usize].hold = Hold::NoBuffer;
                if !self.line.contains(&slot) {
                    self.line.push_back(slot);
                }
            }
            Received::Chosen { export, structured } => {
                return self.place(now, slot, export, structured);
            }
            Received::End(end) => self.end(slot, &end),
        }
        false
    }

    /// A client chose its export: the connection goes to the export's shard; true if that is this one.
    fn place(&mut self, now: Instant, slot: u32, export: usize, structured: bool) -> bool {
        let home = self.parts.exports[export].shard;
        let Some((connection, pool)) = self.parts.desk.connection(slot) else {
            return false;
        };
        debug!(
            peer = connection.peer(),
            export = self.infos[export].name,
            "client chose its export"
        );
        if home == self.parts.id {
            connection.begin(
                now,
                self.parts.exports[export].volume,
                &self.infos[export],
                structured,
            );
            return true;
        }
        // The handshake's last answer goes first, so that nothing of it is left behind. It is short: a socket that does not
        // take it belongs to a client that reads nothing.
        if !matches!(connection.send(now, pool, &mut self.spans), Ok(Sent::All)) {
            self.end(slot, &End::Fault("the client does not read the handshake".into()));
            return false;
        }
        if let Some(fd) = connection.socket() {
            self.parts.engine.forget(slot, fd);
        }
        if let Some(connection) = self.parts.desk.remove(slot) {
            let mail = Mail::Connection { connection, export, structured };
            self.parts.board.send(home, mail);
        }
        false
    }

    /// Takes over a connection whose export is ours.
    fn adopt(
        &mut self,
        now: Instant,
        connection: Box<Connection>,
        export: usize,
        structured: bool,
    ) {
        match self.parts.desk.insert(connection) {
            Ok(slot) => {
                if let Some((connection, _)) = self.parts.desk.connection(slot) {
                    let volume = self.parts.exports[export].volume;
                    connection.begin(now, volume, &self.infos[export], structured);
                }
                self.standings[slot as usize] = Standing::default();
                self.heat(slot);
            }
            Err(connection) => warn!(peer = connection.peer(), "too many connections; closed"),
        }
    }

    fn end(&mut self, slot: u32, end: &End) {
        let Some((connection, pool)) = self.parts.desk.connection(slot) else {
            return;
        };
        match end {
            End::Goodbye => connection.leave(pool),
            End::HungUp => {
                debug!(peer = connection.peer(), "client hung up");
                self.close(slot);
                return;
            }
            End::Fault(sentence) => {
                warn!(peer = connection.peer(), "connection ended: {sentence}");
                // A last word of the handshake may be on its way; then close.
                let _ = connection.send(Instant(0), pool, &mut self.spans);
                self.close(slot);
                return;
            }
        }
        self.parts.desk.list(slot);
    }

    fn close(&mut self, slot: u32) {
        self.line.retain(|&other| other != slot);
        let Some((connection, pool)) = self.parts.desk.connection(slot) else {
            return;
        };
        if let Some(fd) = connection.socket() {
            self.parts.engine.forget(slot, fd);
            connection.close(pool);
        }
        self.standings[slot as usize].hold = Hold::No;
        self.bury(slot);
    }

    /// Frees the place of a connection that has nothing left.
    fn bury(&mut self, slot: u32) {
        let finished = self
            .parts
            .desk
            .connection(slot)
            .is_some_and(|(connection, _)| connection.is_finished());
        if !finished {
            return;
        }
        if let Some(connection) = self.parts.desk.remove(slot) {
            if let Some(fd) = connection.socket() {
                self.parts.engine.forget(slot, fd);
            }
            debug!(peer = connection.peer(), "connection closed");
        }
        self.standings[slot as usize].hold = Hold::No;
    }

    /// One send for every connection that has something; replies may end a hold.
    fn send(&mut self, now: Instant) {
        while let Some(slot) = self.parts.desk.next_listed() {
            let Some((connection, pool)) = self.parts.desk.connection(slot) else {
                continue;
            };
            let was_hot = self.standings[slot as usize].hot;
            match connection.send(now, pool, &mut self.spans) {
                Ok(Sent::All) => self.standings[slot as usize].blocked = false,
                Ok(Sent::Full) => {
                    self.standings[slot as usize].blocked = true;
                    if !was_hot {
                        self.watch(slot);
                    }
                }
                Err(error) => {
                    debug!(%error, "sending failed");
                    self.close(slot);
                    continue;
                }
            }
            self.bury(slot);
            if self.standings[slot as usize].hold == Hold::Full {
                self.heat(slot);
            }
        }
        if let Some(&first) = self.line.front() {
            self.heat(first);
        }
    }

    /// Tries the connection every turn from now on.
    fn heat(&mut self, slot: u32) {
        let standing = &mut self.standings[slot as usize];
        if !std::mem::replace(&mut standing.hot, true) {
            self.hot.push(slot);
        }
    }

    /// Has the engine say when the connection can go on.
    fn watch(&mut self, slot: u32) {
        let standing = self.standings[slot as usize];
        let Some((connection, _)) = self.parts.desk.connection(slot) else {
            return;
        };
        let Some(fd) = connection.socket() else {
            return;
        };
        let reads = standing.hold == Hold::No && connection.reads();
        let interest = match (reads, standing.blocked) {
            (true, false) => Interest::Read,
            (true, true) => Interest::ReadWrite,
            (false, true) => Interest::Write,
            // Its own replies or the line will bring it back.
            (false, false) => return,
        };
        self.parts.engine.watch(slot, fd, interest);
    }

    fn watch_listener(&mut self, index: usize) {
        let Some(listener) = self.parts.listeners.get(index) else {
            return;
        };
        let fd = listener.fd();
        self.parts.engine.watch(LISTENERS + index as u32, fd, Interest::Read);
    }

    fn accept(&mut self, now: Instant, index: u32) {
        while let Some(accepted) = self.parts.listeners.get(index as usize).map(Listener::accept) {
            match accepted {
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

    fn welcome(&mut self, now: Instant, socket: OwnedFd, peer: String) {
        debug!(peer, "client connected");
        let connection = Connection::new(socket, peer, self.parts.limits, now);
        match self.parts.desk.insert(Box::new(connection)) {
            Ok(slot) => {
                self.standings[slot as usize] = Standing::default();
                self.parts.desk.list(slot);
                self.heat(slot);
            }
            Err(connection) => {
                warn!(peer = connection.peer(), "too many connections; closed");
            }
        }
    }

    fn push_messages(&mut self) {
        for (shard, peer) in self.parts.desk.peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            if !peer.outbox.is_empty() && peer.producer.push(&mut peer.outbox) {
                self.parts.wakers[shard].wake();
            }
        }
    }

    fn tell_notices(&mut self) {
        let desk = &mut self.parts.desk;
        for notice in desk.notices.drain(..) {
            match notice {
                Notice::Suspect { volume, status } => error!(
                    volume = volume.0,
                    "a device flush failed ({}): flushes and FUA of this volume fail from now on",
                    status.err().map_or_else(String::new, |error| error.to_string())
                ),
                Notice::TimedOut { volume, op, offset, len } => warn!(
                    volume = volume.0,
                    offset,
                    len,
                    "a {} passed its time-out; its memory stays out until the device answers",
                    op.name()
                ),
                Notice::UnknownCompletion { device, .. } => {
                    error!(
                        device = device.0,
                        "the device answered for a command that is not in flight"
                    );
                }
                Notice::ShortRead { volume, offset } => {
                    error!(
                        volume = volume.0,
                        offset, "the image ended here: it is shorter than it was"
                    );
                }
            }
        }
        let lost = std::mem::take(&mut desk.notices_lost);
        if lost > 0 {
            warn!("{lost} more messages like these were left out");
        }
    }

    /// Once a second while anything happens: patience, and the sizes of files.
    fn tick(&mut self, now: Instant) {
        self.next_tick = now.after(TICK_NS);
        self.ticking = self.life != Life::Running;
        for slot in self.parts.desk.slots() {
            let Some((connection, _)) = self.parts.desk.connection(slot) else {
                continue;
            };
            let Some(deadline) = connection.deadline() else {
                continue;
            };
            self.ticking = true;
            if deadline <= now {
                let complaint = connection.complaint();
                self.end(slot, &End::Fault(complaint));
            }
        }
        if std::mem::take(&mut self.resting) {
            (0..self.parts.listeners.len()).for_each(|index| self.watch_listener(index));
        }
        for file in &mut self.parts.files {
            if let Some(size) = file.changed_size() {
                warn!(
                    volume = file.volume.0,
                    "the image changed its size to {size} bytes while it is served"
                );
                let (volume, size) = (file.volume, size);
                self.inputs.push(Input::Control(Control::Resize { volume, size }));
            }
        }
    }

    fn tell_statistics(&self) {
        for volume in 0..self.parts.board.volumes() as u16 {
            let Some(stats) = self.parts.shard.stats(VolumeId(volume)) else {
                continue;
            };
            for line in statistics::lines(stats) {
                info!(volume, "{line}");
            }
        }
    }

    fn stop(&mut self, now: Instant) {
        if self.life != Life::Running {
            return;
        }
        self.life = Life::Draining { since: now };
        for listener in std::mem::take(&mut self.parts.listeners).into_iter().enumerate() {
            self.parts.engine.forget(LISTENERS + listener.0 as u32, listener.1.fd());
        }
        for slot in self.parts.desk.slots() {
            if let Some((connection, pool)) = self.parts.desk.connection(slot) {
                connection.leave(pool);
                self.parts.desk.list(slot);
            }
        }
        self.line.clear();
        self.send(now);
    }

    fn advance_life(&mut self, now: Instant) {
        if self.life == Life::Running {
            return;
        }
        self.publish_unflushed();
        match self.life {
            Life::Draining { since } => {
                if now.since(since) > DRAIN_NS {
                    self.parts.desk.slots().for_each(|slot| self.close_if_only_sending(slot));
                }
                if self.parts.desk.connections() == 0 {
                    self.flush_all(now);
                }
            }
            Life::Flushing { left } => {
                let answered = self.parts.desk.own_flushes.len();
                for (volume, status) in self.parts.desk.own_flushes.drain(..) {
                    if let Err(error) = status {
                        error!(volume = volume.0, "the last flush failed: {error}");
                        self.parts.board.note_failure();
                    }
                }
                match left - answered {
                    0 => self.wait_for_others(),
                    left => self.life = Life::Flushing { left },
                }
            }
            Life::Running | Life::Waiting => {}
        }
    }

    /// A client that does not read holds up nobody's shutdown; buffers in the device do.
    fn close_if_only_sending(&mut self, slot: u32) {
        if self.parts.desk.connection(slot).is_some_and(|(connection, _)| connection.has_outgoing())
        {
            self.close(slot);
        }
    }

    fn flush_all(&mut self, now: Instant) {
        let volumes = self.parts.volumes.clone();
        self.life = Life::Flushing { left: volumes.len() };
        for (sequence, volume) in volumes.into_iter().enumerate() {
            let id = BioId { connection: OWN_FLUSHES, volume, sequence: sequence as u64 };
            let flags = BioFlags::SYNC;
            self.inputs.push(Input::Bio(Bio { id, offset: 0, len: 0, op: Op::Flush, flags }));
        }
        self.step(now);
        self.push_messages();
        self.advance_life(now);
    }

    fn wait_for_others(&mut self) {
        self.publish_unflushed();
        self.life = Life::Waiting;
        if let Some(recorder) = &mut self.parts.recorder {
            match recorder.finish() {
                Ok(hash) => info!("recorded; action hash {hash:016x}"),
                Err(error) => error!("the record is incomplete: {error}"),
            }
        }
        self.parts.board.wait();
    }

    fn publish_unflushed(&self) {
        for volume in 0..self.parts.board.volumes() {
            let id = VolumeId(volume as u16);
            if let Some((writes, suspect)) = self.parts.shard.unflushed(id) {
                self.parts.board.publish(volume, writes + u64::from(suspect));
            }
        }
    }
}
