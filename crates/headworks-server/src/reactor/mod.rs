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

mod buffer_queue;
mod commands;
mod connections;
mod exports;
#[cfg(test)]
mod fairness_tests;
mod held_log;
mod latency;
mod log_limiter;
mod queries;
pub(crate) mod shard_io;
mod shutdown;
mod statistics;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use headworks_core::{Control, ExportId, Input, Instant, Notice, Shard, ShardId, VolumeId};
use tracing::{error, info, warn};

use crate::assemble::WatchedFile;
use crate::assemble::export_info::ServedExport;
use crate::listen::Listener;
use crate::messages::ControlMessage;
use crate::nbd::connection::{ConnectionEnd, ConnectionLimits};
use crate::recorder::Recorder;
use crate::shared::ServerShared;
use buffer_queue::BufferQueue;
use exports::ExportTable;
use headworks::driver::{
    Clock, DiskQueue, Engine, Event, Executor, Polling, Sleeper, Span, Wait, Waker,
};
use headworks_nbd::tls::TlsAcceptor;
use held_log::HeldLog;
use log_limiter::LogLimiter;
use shard_io::{Envelope, ShardIo};

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
enum ReadPause {
    #[default]
    No,
    /// Its own requests and replies are at their bound.
    Full,
    /// It stands in the line for a buffer.
    NoBuffer,
}

#[derive(Clone, Copy, Debug, Default)]
struct ConnectionState {
    hot: bool,
    pause: ReadPause,
    /// The last send filled the socket.
    blocked: bool,
    /// The export that it is a client of, until it is gone.
    export: Option<ExportId>,
}

/// The way to the end.
///
/// ```text
///  Running --stop--> Draining --nothing in flight--> Flushing --all answered--> Waiting --every shard waits--> ended
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShutdownPhase {
    Running,
    /// Reads no more; answers what is in flight.
    Draining {
        /// When the stop began.
        since: Instant,
    },
    /// Own flushes are under way, the first of them with this number: who asked for those before it has gone.
    Flushing {
        left: usize,
        first: u64,
        since: Instant,
    },
    /// Done, but other shards may still need our devices.
    Waiting,
}

/// What a reactor is made of; see the fields of [`Reactor`].
pub struct ReactorParts {
    pub id: ShardId,
    pub clock: Clock,
    pub shard: Shard,
    pub executor: Executor,
    pub engine: Box<dyn Engine>,
    pub io: ShardIo,
    pub sleeper: Arc<Sleeper>,
    pub wakers: Vec<Waker>,
    pub mail: Receiver<ControlMessage>,
    pub shared: Arc<ServerShared>,
    pub exports: Vec<ServedExport>,
    pub listeners: Vec<Listener>,
    pub files: Vec<WatchedFile>,
    pub volumes: Vec<VolumeId>,
    pub limits: ConnectionLimits,
    /// What clients that ask for TLS get.
    pub acceptor: Option<Arc<TlsAcceptor>>,
    pub poll_ns: u64,
    /// Room in the shard that is kept for bios of other shards.
    pub reserve: u32,
    /// How long a stop may take; 0: however long.
    pub stop_ns: u64,
    pub recorder: Option<Recorder>,
}

/// One shard's thread.
pub struct Reactor {
    parts: ReactorParts,
    exports: ExportTable,
    sets: queries::Sets,
    drains: commands::Drains,
    /// Something joined or left: the shard has something to do though nothing else happened.
    changed: bool,
    connection_states: Vec<ConnectionState>,
    /// Connections that are tried every turn.
    hot: Vec<u32>,
    /// Connections that wait for a buffer.
    buffer_queue: BufferQueue,
    held: HeldLog,
    log_limiter: LogLimiter,
    polling: Polling,
    phase: ShutdownPhase,
    /// Flushes of our own so far: their names.
    own_flushes: u64,
    /// Volumes whose last flush gave up, and goes on at the next tick.
    late: shutdown::Late,
    skips: u32,
    next_tick: Instant,
    /// Something happened since the last tick, or somebody's patience runs. An idle server does not tick.
    ticking: bool,
    /// Bytes of the pool that were out after the last turn.
    taken_before: usize,
    /// The last turn did something.
    worked_before: bool,
    /// After work the CPU is given away before the next look.
    yields_first: bool,
    /// The pool gave its idle memory back.
    trimmed: bool,
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
    pub fn new(parts: ReactorParts) -> Self {
        let places = parts.io.slots().count();
        Self {
            exports: ExportTable::new(parts.exports.iter().cloned()),
            sets: queries::Sets::default(),
            drains: commands::Drains::default(),
            changed: false,
            connection_states: vec![ConnectionState::default(); places],
            hot: Vec::with_capacity(places),
            buffer_queue: BufferQueue::new(
                places,
                parts.exports.iter().map(|export| export.weight),
            ),
            held: HeldLog::default(),
            log_limiter: LogLimiter::new(),
            polling: Polling::new(parts.poll_ns),
            phase: ShutdownPhase::Running,
            own_flushes: 0,
            late: shutdown::Late::default(),
            skips: 0,
            next_tick: Instant(0),
            ticking: false,
            taken_before: 0,
            worked_before: false,
            yields_first: false,
            trimmed: true,
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
    pub fn run(&mut self) -> io::Result<()> {
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
            if self.phase == ShutdownPhase::Waiting
                && self.parts.shared.all_waiting()
                && self.frames_are_home()
            {
                return Ok(());
            }
            wait = self.next_wait(now, worked);
        }
    }

    /// It cannot go on: whoever waits for an answer, or will, hears that there is none. What devices may still use stays for ever.
    pub fn abandon(mut self) {
        self.parts.mail = std::sync::mpsc::channel().1;
        self.sets = queries::Sets::default();
        self.abandon_drains();
        std::mem::forget(self);
    }

    /// Everything between two waits; true if anything happened.
    fn turn(&mut self, now: Instant) -> bool {
        let mut worked = self.take_events(now);
        worked |= self.take_messages();
        worked |= self.take_mail(now);
        worked |= self.receive(now);
        self.take_timers(now);
        self.ticking |= worked;
        if self.ticking && now >= self.next_tick {
            self.tick(now);
        }
        worked |= !self.inputs.is_empty();
        self.step(now);
        worked |= self.send(now);
        self.push_messages();
        self.answer_sets();
        self.answer_drains();
        self.tell_notices();
        self.tell_held(false);
        self.advance_shutdown(now);
        // A client that left while it was sent to left something to say.
        worked || !self.inputs.is_empty()
    }

    /// A busy connection is served several times before the engine is entered, if the engine has nothing to do for us.
    fn must_enter(&mut self, wait: Wait) -> bool {
        // Also the cache's own reads and writes start and end in the engine.
        let idle_disks = self.parts.shard.is_idle() && self.frames_are_home();
        let skip =
            wait == Wait::Poll && !self.hot.is_empty() && idle_disks && self.skips < SKIPS_MAX;
        self.skips = if skip { self.skips + 1 } else { 0 };
        !skip
    }

    fn enter(&mut self, wait: Wait) -> io::Result<()> {
        let ReactorParts { engine, sleeper, io, .. } = &mut self.parts;
        let wait = match wait {
            Wait::Poll => Wait::Poll,
            sleep => {
                let empty = || io.peers.iter_mut().flatten().all(|peer| peer.consumer.is_empty());
                if sleeper.may_sleep(empty) { sleep } else { Wait::Poll }
            }
        };
        let result = engine.turn(wait, &mut self.events);
        sleeper.woken();
        result
    }

    fn next_wait(&mut self, now: Instant, worked: bool) -> Wait {
        // A client with few requests in flight answers only after it ran: looking for its next one before it could run
        // costs a system call in vain. Whether that is so the turn after work told last time.
        if self.worked_before {
            self.yields_first = !worked;
        }
        self.worked_before = worked;
        if worked {
            self.polling.on_work(now);
            if self.yields_first && self.polling.is_on() {
                self.polling.on_give(self.parts.clock.now());
                std::thread::yield_now();
            }
            return Wait::Poll;
        }
        if self.polling.look_again(now) {
            let before = self.parts.clock.now();
            std::thread::yield_now();
            self.polling.on_yield(self.parts.clock.now().since(before));
            return Wait::Poll;
        }
        if self.parts.io.peers.iter().flatten().any(|peer| !peer.outbox.is_empty()) {
            // A ring was full. By design it never is; if it is, its reader makes room without telling.
            return Wait::Poll;
        }
        while let Some(slot) = self.hot.pop() {
            self.connection_states[slot as usize].hot = false;
            self.watch(slot);
        }
        let tick = self.ticking.then_some(self.next_tick);
        let times = [self.parts.io.timer, self.parts.executor.next_timeout(), tick];
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
                    self.connection_states[token as usize].blocked = false;
                    self.parts.io.list(token);
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
        let io = &mut self.parts.io;
        let mut worked = false;
        for shard in 0..io.peers.len() {
            let Some(peer) = &mut io.peers[shard] else {
                continue;
            };
            peer.consumer.pop(MESSAGES_MAX, &mut self.envelopes);
            for envelope in self.envelopes.drain(..) {
                io.keep_foreign(&envelope);
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
                ControlMessage::Connection { connection, export, terms } => {
                    self.adopt(now, connection, export, terms);
                }
                ControlMessage::Control(control) => self.on_control(control),
                ControlMessage::Statistics => self.tell_statistics(),
                ControlMessage::Query(question) => self.on_question(now, question),
                ControlMessage::Command(order, answer) => self.on_order(now, *order, &answer),
                ControlMessage::Resized { volume, size } => self.exports.resize(volume, size),
                ControlMessage::Stop => self.stop(now),
                ControlMessage::Barrier(sender) => drop(sender),
                ControlMessage::Wake => {}
            }
        }
        worked
    }

    /// A change is the shard's; of weights the line for buffers hears, too.
    fn on_control(&mut self, control: Control) {
        if let Control::Weight { export, weight } = control {
            self.buffer_queue.set_weight(export, weight);
        }
        self.inputs.push(Input::Control(control));
    }

    fn take_timers(&mut self, now: Instant) {
        if self.parts.io.timer.is_some_and(|at| at <= now) {
            self.parts.io.timer = None;
            self.inputs.push(Input::Timer);
        }
        let ReactorParts { executor, engine, .. } = &mut self.parts;
        if executor.next_timeout().is_some_and(|at| at <= now) {
            executor.on_timeout(now, &mut **engine, &mut self.inputs);
        }
    }

    /// Lets the shard decide and carries it out, until devices that answer at once have nothing more to say.
    fn step(&mut self, now: Instant) {
        let ReactorParts { shard, executor, engine, io, recorder, .. } = &mut self.parts;
        while !self.inputs.is_empty() || std::mem::take(&mut self.changed) {
            std::mem::swap(&mut self.inputs, &mut self.batch);
            shard.handle(now, &self.batch);
            if let Some(recorder) = recorder {
                recorder.note(now, &self.batch, shard.actions());
            }
            self.batch.clear();
            io.now = now;
            executor.run(now, shard.actions(), io, &mut **engine, &mut self.inputs);
            shard.clear_actions();
        }
    }

    fn push_messages(&mut self) {
        for (shard, peer) in self.parts.io.peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            if !peer.outbox.is_empty() && peer.producer.push(&mut peer.outbox) {
                self.parts.wakers[shard].wake();
            }
        }
    }

    fn tell_notices(&mut self) {
        let io = &mut self.parts.io;
        for notice in io.notices.drain(..) {
            match notice {
                Notice::Suspect { volume, status } => error!(
                    volume = volume.0,
                    "a device flush failed ({}): flushes and FUA of this volume fail until the server restarts or the \
                     error is cleared (headworks ctl SOCKET discard-failed EXPORT)",
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
                // The desk keeps these apart.
                Notice::Set { .. } => {}
                Notice::ShortRead { volume, offset } => {
                    error!(
                        volume = volume.0,
                        offset, "the image ended here: it is shorter than it was"
                    );
                }
            }
        }
        let lost = std::mem::take(&mut io.notices_lost);
        if lost > 0 {
            warn!("{lost} more messages like these were left out");
        }
    }

    /// Once a second while anything happens: patience, and the sizes of files.
    fn tick(&mut self, now: Instant) {
        self.next_tick = now.after(TICK_NS);
        self.ticking = self.phase != ShutdownPhase::Running;
        for slot in self.parts.io.slots() {
            let Some((connection, _)) = self.parts.io.connection(slot) else {
                continue;
            };
            let Some(deadline) = connection.deadline() else {
                continue;
            };
            self.ticking = true;
            if deadline <= now {
                let complaint = connection.complaint();
                self.end(slot, &ConnectionEnd::Fault(complaint));
            }
        }
        let left_out = self.log_limiter.tick(now);
        if left_out > 0 {
            warn!("{left_out} more messages about clients were left out");
        }
        self.tell_held(true);
        self.flush_late();
        self.trim_when_idle();
        if std::mem::take(&mut self.resting) {
            (0..self.parts.listeners.len()).for_each(|index| self.watch_listener(index));
        }
        for index in 0..self.parts.files.len() {
            let file = &mut self.parts.files[index];
            let volume = file.volume;
            if let Some(size) = file.changed_size() {
                warn!(
                    volume = volume.0,
                    "the image changed its size to {size} bytes while it is served"
                );
                self.exports.resize(volume, size);
                self.tell_size(volume, size);
                self.inputs.push(Input::Control(Control::Resize { volume, size }));
            }
        }
    }

    fn tell_held(&mut self, at_tick: bool) {
        let ReactorParts { shard, volumes, .. } = &self.parts;
        self.held.look(shard, volumes, at_tick, |volume| self.exports.name_of(volume));
    }

    /// An idle server is small: memory of buffers that nobody holds goes back to the kernel, once.
    fn trim_when_idle(&mut self) {
        let pool = &mut self.parts.io.pool;
        let idle = pool.taken() == 0;
        if idle && !self.trimmed {
            pool.trim();
        }
        self.trimmed = idle;
    }

    fn tell_statistics(&self) {
        for volume in 0..self.parts.shared.volumes() as u16 {
            let Some(stats) = self.parts.shard.stats(VolumeId(volume)) else {
                continue;
            };
            let name = self.exports.name_of(VolumeId(volume));
            let lines = statistics::lines(stats);
            if lines.is_empty() {
                info!(volume, "{name}: nothing has been asked of its device yet");
            }
            for line in lines {
                info!(volume, "{name}: {line}");
            }
        }
    }
}
