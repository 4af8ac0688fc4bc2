//! The event loop of one shard's thread: waits for events, lets the shard handle inputs, carries out actions, sends
//! replies.
//!
//! ```text
//!      .-> engine turn: disk, sockets, other threads, time      (skipped while a client keeps the shard busy)
//!      |   rings and mail from other shards
//!      |   one receive per busy connection  --> bios
//!      |   shard.handle(inputs); executor.run(actions)           until no input is left
//!      |   one send per connection with output
//!      '-- no work? poll for a short time (`idle`), then sleep
//! ```
//!
//! Invariants: every list of actions is carried out before the next input; before a sleep every connection that may
//! become ready is watched and every ring is empty; a slot is in the hot list at most once.
//!
//! `driver` owns the shard, `shard_io` its connections and rings, `give_way` takes buffers from unread replies, which waiters get, `own_flushes` the shard's own flushes, `idle` the polling policy, `freezes` which images do not change. `connections`, `listeners`,
//! `commands`, `queries`, `pause` and `shutdown` are the event handlers.

#[cfg(test)]
mod cached_tests;
mod commands;
mod connections;
pub(crate) mod driver;
mod exports;
#[cfg(test)]
mod fairness_tests;
mod foreign_spans;
mod freezes;
mod give_way;
mod held_log;
mod idle;
mod latency;
pub(crate) mod limits;
mod listeners;
mod log_limiter;
mod own_flushes;
pub(crate) mod pause;
mod queries;
pub(crate) mod restores;
pub(crate) mod shard_io;
mod shutdown;
mod statistics;
mod targets;
#[cfg(test)]
mod unread_tests;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use headworks_core::limits::Limits;
use headworks_core::{Control, DeviceState, Input, Instant, Notice, ShardId, TenantId, VolumeId};
use tracing::{error, info, warn};

use crate::access::AccessRules;
use crate::assemble::export_info::ServedExport;
use crate::assemble::{ImageWatcher, WatchedFile};
use crate::latency::usage::UsageLog;
use crate::listen::ClientListener;
use crate::messages::ControlMessage;
use crate::messages::query::BufferStats;
use crate::nbd::connection::{ConnectionEnd, ConnectionLimits};
use crate::shared::ServerShared;
use driver::ShardDriver;
use exports::ExportTable;
use freezes::Freezes;
use headworks::Loss;
use headworks::driver::{Clock, DiskQueue, Engine, Event, Sleeper, Span, Wait, Waker};
use headworks_front::hot_list::HotList;
use headworks_front::memory::Memory;
use headworks_front::turn::FairTurn;
use held_log::HeldLog;
use idle::IdlePolicy;
use limits::{LimitTarget, ShardLimits};
use listeners::LISTENERS;
use log_limiter::LogLimiter;
use own_flushes::OwnFlushes;
use pause::Pause;
use restores::Restores;
use shard_io::{Envelope, ShardIo};
use targets::TargetLog;

/// Receive buffer in bytes: holds 64 requests of 4 KiB and stays in the second-level cache.
const SCRATCH: usize = 256 << 10;
/// Interval of the tick, which checks deadlines and file sizes. An idle server does not tick.
const TICK_NS: u64 = 1_000_000_000;
/// Limit for sending the last replies at shutdown.
const DRAIN_NS: u64 = 5_000_000_000;
/// Bytes of large payloads after which the engine is entered; they take a quarter of a millisecond.
const SKIPPED_PAYLOADS: usize = 1 << 20;
/// Messages taken from one ring in one turn.
const MESSAGES_MAX: usize = 1024;

/// Phases of a shard's shutdown, in order; each of its volumes has phases of its own ([`crate::shared::VolumeStop`]).
///
/// ```text
/// Running --stop--> Stopping --every volume closed, every connection gone--> Waiting --every shard waits--> ended
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShutdownPhase {
    Running,
    /// No connection is read from; requests in flight complete, and volumes are flushed.
    Stopping {
        /// Time at which the stop arrived.
        since: Instant,
        /// Sequence number of the first last flush; earlier flushes belong to waiters that are gone.
        first: u64,
        /// Clients that have not left were given their time.
        late: bool,
    },
    /// Finished; other shards may still use this shard's devices.
    Waiting,
}

/// Everything that a reactor is built from.
pub struct ReactorParts {
    pub id: ShardId,
    pub clock: Clock,
    pub driver: ShardDriver,
    pub engine: Box<dyn Engine>,
    pub io: ShardIo,
    pub sleeper: Arc<Sleeper>,
    pub wakers: Vec<Waker>,
    pub mailbox: Receiver<ControlMessage>,
    pub shared: Arc<ServerShared>,
    pub exports: Vec<ServedExport>,
    /// Listeners by number; only one shard has any.
    pub listeners: Vec<Option<ClientListener>>,
    /// Which client sees which export.
    pub access: Vec<Arc<AccessRules>>,
    pub files: Vec<WatchedFile>,
    /// The thread that looks at `files`.
    pub watcher: ImageWatcher,
    pub volumes: Vec<VolumeId>,
    pub limits: ConnectionLimits,
    /// Limits of bytes and I/Os a second of the whole server.
    pub server_limits: Limits,
    /// Weights and limits of the tenants that the server starts with, by their numbers.
    pub tenant_limits: Vec<(u16, Limits)>,
    pub poll_ns: u64,
    /// Bio slots of the shard that are reserved for bios of other shards.
    pub reserve: u32,
    /// Time limit of a shutdown; 0 is no limit.
    pub stop_ns: u64,
    /// Blocks of dead servers that volumes of this shard get first; none if there are none.
    pub restores: Option<Restores>,
    /// Clients are accepted from the start, not after [`ControlMessage::Listen`].
    pub listens: bool,
}

/// The event loop of one shard.
pub struct Reactor {
    parts: ReactorParts,
    exports: ExportTable,
    sets: queries::Sets,
    connections: HotList,
    /// What connections hold of the pool, and which of them wait for it.
    memory: Memory,
    /// What each export may have of a turn.
    turn: FairTurn,
    /// Limits of bytes and I/Os a second.
    limits: ShardLimits,
    /// Devices that do not answer, a bit each, as of `device_news`.
    stuck: u64,
    device_news: u32,
    held: HeldLog,
    target_log: TargetLog,
    log_limiter: LogLimiter,
    /// Commands that timed out and were not logged yet; and when the next line may be logged, one a second.
    timed_out: u64,
    next_timed_out: Instant,
    idle: IdlePolicy,
    /// Bytes of large payloads that were received since the engine was entered last.
    payloads: usize,
    phase: ShutdownPhase,
    own_flushes: OwnFlushes,
    /// Volumes whose images do not change now.
    freezes: Freezes,
    /// The pause in progress, while the server is handed over.
    pause: Option<Pause>,
    /// What this shard was to take over was not handed over: it ends.
    withdrawn: bool,
    next_tick: Instant,
    /// What used devices, cache and buffers in the last minute.
    usage: UsageLog,
    /// Something happened since the last tick, or a connection has a deadline.
    ticking: bool,
    buffer_stats: BufferStats,
    /// Time of the next look for those that keep more.
    next_shortening: Instant,
    /// Connections with old unsent data, as of the last look.
    victims: Vec<u32>,
    /// Time of the next look for buffers that unread replies hold; none if the next waiter is met at once.
    next_look: Option<Instant>,
    /// Idle memory of the pool was returned to the kernel.
    trimmed: bool,
    /// A stop arrived while blocks were restored.
    stop_after_restores: bool,
    /// `accept` failed for want of a file descriptor: listeners pause until the next tick.
    accept_paused: bool,
    scratch: Vec<u8>,
    events: Vec<Event>,
    envelopes: Vec<Envelope>,
    spans: Vec<Span>,
}

impl Reactor {
    /// A reactor that has not run yet.
    #[must_use]
    pub fn new(parts: ReactorParts) -> Self {
        let places = parts.io.slots().count();
        let rules = parts.access.clone();
        let exports = ExportTable::new(parts.exports.iter().cloned(), rules);
        let mut memory = Memory::new(parts.io.pool.size(), places);
        memory.set_devices(exports.devices_of(parts.id));
        let mut turn = FairTurn::default();
        let mut limits = ShardLimits::new(places, parts.id, parts.shared.shards() as u16);
        limits.set(Instant(0), LimitTarget::Server, &parts.server_limits);
        for (tenant, (weight, of_tenant)) in (0..).map(TenantId).zip(&parts.tenant_limits) {
            limits.set_tenant_weight(tenant, *weight);
            memory.set_tenant_weight(tenant, *weight);
            turn.set_tenant_weight(tenant, *weight);
            limits.set(Instant(0), LimitTarget::Tenant(tenant), of_tenant);
        }
        for export in &parts.exports {
            limits.put(Instant(0), export);
            let (id, weight, tenant) = (export.binding.export, export.weight, export.tenant);
            memory.set_weight(id, weight);
            memory.set_tenant(id, tenant);
            turn.set_weight(id, weight);
            turn.set_tenant(id, tenant);
        }
        limits.settle_homes(Instant(0));
        Self {
            exports,
            limits,
            stuck: 0,
            device_news: 0,
            sets: queries::Sets::default(),
            connections: HotList::new(places),
            memory,
            turn,
            held: HeldLog::default(),
            target_log: TargetLog::default(),
            log_limiter: LogLimiter::new(),
            timed_out: 0,
            next_timed_out: Instant(0),
            idle: IdlePolicy::new(parts.poll_ns),
            payloads: 0,
            phase: ShutdownPhase::Running,
            own_flushes: OwnFlushes::default(),
            freezes: Freezes::default(),
            pause: None,
            withdrawn: false,
            next_tick: Instant(0),
            usage: UsageLog::default(),
            ticking: false,
            buffer_stats: BufferStats::default(),
            next_shortening: Instant(0),
            victims: Vec::with_capacity(places),
            next_look: None,
            trimmed: true,
            stop_after_restores: false,
            accept_paused: false,
            scratch: vec![0; SCRATCH],
            events: Vec::with_capacity(1024),
            envelopes: Vec::with_capacity(MESSAGES_MAX),
            spans: Vec::with_capacity(1024),
            parts,
        }
    }

    /// Runs until the server stops.
    ///
    /// # Errors
    /// The engine failed.
    pub fn run(&mut self) -> io::Result<()> {
        self.watch_listeners();
        let mut wait = Wait::Poll;
        loop {
            if self.must_enter(wait) {
                self.enter(wait)?;
            }
            let now = self.parts.clock.now();
            let worked = self.turn(now);
            if self.withdrawn {
                return Ok(());
            }
            if self.phase == ShutdownPhase::Waiting
                && self.parts.shared.all_waiting()
                && self.devices_are_idle()
            {
                return Ok(());
            }
            wait = self.next_wait(now, worked);
        }
    }

    /// Continues to restore what dead servers left.
    fn restore(&mut self, now: Instant) {
        let ReactorParts { driver, io, restores, .. } = &mut self.parts;
        if restores.as_mut().is_some_and(|restores| restores.advance(driver, io)) {
            self.parts.restores = None;
            if self.stop_after_restores {
                self.stop(now);
            }
        }
    }

    /// Ends a shard that failed: every waiter sees a closed channel. Memory and devices that other shards may use are
    /// leaked.
    pub fn abandon(mut self) {
        self.parts.mailbox = std::sync::mpsc::channel().1;
        self.sets = queries::Sets::default();
        self.own_flushes.abandon();
        std::mem::forget(self);
    }

    /// Does everything between two waits; returns whether it did any work.
    fn turn(&mut self, now: Instant) -> bool {
        let mut worked = self.take_events(now);
        worked |= self.take_messages(now);
        worked |= self.take_control_messages(now);
        if self.withdrawn {
            return false;
        }
        if self.freezes.next_timeout().is_some_and(|at| at <= now) {
            self.expire_freezes(now);
        }
        worked |= self.pass_limited(now);
        worked |= self.receive(now);
        self.take_timers(now);
        if self.parts.restores.is_some() {
            self.restore(now);
        }
        self.ticking |= worked;
        if self.ticking && now >= self.next_tick {
            self.tick(now);
        }
        worked |= self.parts.driver.has_inputs();
        self.step(now);
        if self.resubmit_returned(now) {
            worked = true;
            self.step(now);
        }
        if let Some(volumes) = self.parts.driver.executor().take_losses() {
            self.note_losses(&volumes);
        }
        if self.parts.driver.shard().device_news() != self.device_news {
            self.on_device_states();
            worked = true;
        }
        worked |= self.send(now);
        self.limits.post_messages(&mut self.parts.io);
        self.push_messages();
        if self.parts.io.has_news() {
            self.answer_sets();
            self.own_flushes.answer(&mut self.parts.io.own_flushes);
            self.log_notices();
        }
        self.log_held(false);
        if self.phase != ShutdownPhase::Running {
            self.advance_shutdown(now);
        }
        if self.has_pause() {
            self.advance_pause(now);
        }
        // A connection that was closed while sending adds an input.
        worked || self.parts.driver.has_inputs()
    }

    /// Hot connections are served several times before the engine is entered, if no operation of a device is in flight. Turns
    /// with large payloads are long, so fewer pass before other connections are noticed.
    fn must_enter(&mut self, wait: Wait) -> bool {
        // The cache's own reads and writes start and end in the engine, too.
        let idle_disks = self.parts.driver.shard().is_idle() && self.frames_are_idle();
        let may_skip = !self.connections.is_empty() && self.payloads < SKIPPED_PAYLOADS;
        let enters = self.idle.must_enter(wait == Wait::Poll && may_skip && idle_disks);
        if enters {
            self.payloads = 0;
        }
        enters
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
        if self.idle.polls_after(now, worked, &self.parts.clock) {
            return Wait::Poll;
        }
        if self.parts.io.peers.iter().flatten().any(|peer| !peer.outbox.is_empty()) {
            // A ring was full. Rings are sized so that this does not happen; their reader makes room without a wake-up.
            return Wait::Poll;
        }
        while let Some(slot) = self.connections.pop() {
            self.watch(slot);
        }
        let tick = self.ticking.then_some(self.next_tick);
        let look = self.next_look.filter(|_| self.memory.first().is_some());
        let (limited, frozen) = (self.next_limited(), self.freezes.next_timeout());
        let (timer, driver) = (self.parts.io.timer, self.parts.driver.next_timeout());
        let times = [timer, driver, tick, look, limited, frozen];
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
                    self.connections.state_mut(token).blocked = false;
                    self.parts.io.list(token);
                    self.connections.heat(token);
                }
                Event::Disk(done) => {
                    let disk: &mut dyn DiskQueue = &mut *self.parts.engine;
                    self.parts.driver.on_disk(now, done, disk);
                }
                Event::Place { device, place } => {
                    let disk: &mut dyn DiskQueue = &mut *self.parts.engine;
                    self.parts.driver.on_ready(now, (device, place), disk);
                }
                Event::Woken => {}
            }
        }
        self.events = events;
        worked
    }

    fn take_messages(&mut self, now: Instant) -> bool {
        let io = &mut self.parts.io;
        let mut worked = false;
        for shard in 0..io.peers.len() {
            let Some(peer) = &mut io.peers[shard] else {
                continue;
            };
            peer.consumer.pop(MESSAGES_MAX, &mut self.envelopes);
            let from = ShardId(shard as u16);
            for envelope in self.envelopes.drain(..) {
                worked = true;
                match envelope {
                    Envelope::Shard { message, span } => {
                        io.keep_foreign(&message, span);
                        self.parts.driver.push(Input::Message { from, message });
                    }
                    Envelope::Lease { target, message } => {
                        self.limits.on_message(now, from, target, message);
                    }
                }
            }
        }
        worked
    }

    fn take_control_messages(&mut self, now: Instant) -> bool {
        let mut worked = false;
        while let Ok(message) = self.parts.mailbox.try_recv() {
            worked = true;
            match message {
                ControlMessage::Connection { connection, export, terms } => {
                    self.take_over(now, connection, export, terms);
                }
                ControlMessage::Control(control) => self.on_control(control),
                ControlMessage::Statistics => self.tell_statistics(),
                ControlMessage::Query(question) => self.on_question(now, question),
                ControlMessage::Command(order, answer) => self.on_command(now, *order, &answer),
                ControlMessage::Resized { volume, size } => self.exports.resize(volume, size),
                ControlMessage::Stop => self.stop(now),
                ControlMessage::Barrier(sender) => drop(sender),
                ControlMessage::Listen => self.listen(),
                ControlMessage::Pause(order) => self.begin_pause(order),
                ControlMessage::Adopt(order) => self.adopt(now, order),
                ControlMessage::Wake => {}
            }
        }
        worked
    }

    /// Applies a control input: buffers and limits keep weights and tenants, too.
    fn on_control(&mut self, control: Control) {
        if let Control::Weight { export, weight } = control {
            self.memory.set_weight(export, weight);
            self.turn.set_weight(export, weight);
            self.limits.set_weight(export, weight);
        }
        if let Control::TenantWeight { tenant, weight } = control {
            self.limits.set_tenant_weight(tenant, weight);
            self.memory.set_tenant_weight(tenant, weight);
            self.turn.set_tenant_weight(tenant, weight);
        }
        if let Control::ExportTenant { export, tenant } = control {
            self.memory.set_tenant(export, tenant);
            self.turn.set_tenant(export, tenant);
            self.limits.set_tenant(self.parts.io.now, export, tenant);
            self.limits.settle_homes(self.parts.io.now);
        }
        if let Control::Acknowledge { volume } = control {
            self.parts.shared.keeper().set_suspect(volume, false);
        }
        self.parts.driver.push(Input::Control(control));
    }

    fn take_timers(&mut self, now: Instant) {
        if self.parts.io.timer.is_some_and(|at| at <= now) {
            self.parts.io.timer = None;
            self.parts.driver.push(Input::Timer);
        }
        let ReactorParts { driver, engine, .. } = &mut self.parts;
        driver.on_timeout(now, &mut **engine);
    }

    /// Lets the shard handle inputs and carries its actions out until no input is left.
    fn step(&mut self, now: Instant) {
        let ReactorParts { driver, engine, io, .. } = &mut self.parts;
        driver.step(now, io, &mut **engine);
    }

    fn push_messages(&mut self) {
        for (shard, peer) in self.parts.io.peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            if !peer.outbox.is_empty() && peer.producer.push(&mut peer.outbox) {
                self.parts.wakers[shard].wake();
            }
        }
    }

    /// Notes that acknowledged data of volumes may be gone, for this process and the next one.
    fn note_losses(&self, losses: &[Loss]) {
        for &loss in losses {
            let volume = loss.volume();
            self.parts.shared.keeper().set_suspect(volume, true);
            if let Loss::Everything(volume) = loss {
                // Its cache may be on another shard. The device has said what happened.
                self.parts.shared.send_all(|| ControlMessage::Control(Control::Void { volume }));
                continue;
            }
            error!(
                "{}: its device may have lost writes that it had acknowledged since the last flush: flushes and FUA fail until the \
                 server restarts or the error is cleared (headworks ctl SOCKET discard-failed EXPORT)",
                self.exports.name_of(volume)
            );
        }
    }

    /// Logs that a device ceased to answer, or answers again: a line each.
    fn log_device_states(&mut self) {
        for (device, state) in self.parts.io.device_states.drain(..) {
            let exports = self.exports.names_on(device);
            match state {
                DeviceState::Stuck => error!(
                    device = device.0,
                    "{exports}: the device does not answer, or refuses everything: requests for it fail until it answers"
                ),
                DeviceState::Live => {
                    warn!(device = device.0, "{exports}: the device answers again");
                }
            }
        }
    }

    fn log_notices(&mut self) {
        self.log_device_states();
        let io = &mut self.parts.io;
        let now = io.now;
        for notice in io.notices.drain(..) {
            if let Notice::Suspect { volume, .. } = notice {
                // The next process is to know, too.
                self.parts.shared.keeper().set_suspect(volume, true);
            }
            match notice {
                Notice::Suspect { volume, status } => error!(
                    "{}: a device flush failed ({}): its flushes and FUA fail until the server restarts or the error is \
                     cleared (headworks ctl SOCKET discard-failed EXPORT)",
                    self.exports.name_of(volume),
                    status.err().map_or_else(String::new, |error| error.to_string())
                ),
                Notice::TimedOut { volume, op, offset, len } => {
                    self.timed_out += 1;
                    if now < self.next_timed_out {
                        continue;
                    }
                    self.next_timed_out = now.after(TICK_NS);
                    warn!(
                        offset,
                        len,
                        commands = std::mem::take(&mut self.timed_out),
                        "{}: {} timed out; the client got an error, its buffer stays in use until the device completes the command",
                        self.exports.name_of(volume),
                        op.name()
                    );
                }
                Notice::UnknownCompletion { device, .. } => {
                    error!(
                        "device hw{} completed a command that is not in flight; ignored",
                        device.0
                    );
                }
                // `ShardIo` keeps these apart.
                Notice::Set { .. } | Notice::DeviceState { .. } => {}
                Notice::ShortRead { volume, offset } => {
                    error!(
                        offset,
                        "{}: short read: the image was truncated below its size",
                        self.exports.name_of(volume)
                    );
                }
            }
        }
        let lost = std::mem::take(&mut io.notices_lost);
        if lost > 0 {
            warn!("{lost} more messages of this kind suppressed");
        }
    }

    /// Checks deadlines and file sizes, once a second while anything happens.
    fn tick(&mut self, now: Instant) {
        self.next_tick = now.after(TICK_NS);
        self.ticking = self.phase != ShutdownPhase::Running || self.freezes.first().is_some();
        self.drop_left_clients();
        for slot in self.parts.io.slots() {
            let Some((connection, _)) = self.parts.io.connection(slot) else {
                continue;
            };
            connection.release_idle_memory();
            let Some(deadline) = connection.deadline() else {
                continue;
            };
            self.ticking = true;
            if deadline <= now {
                let message = connection.timeout_message();
                self.buffer_stats.closed += u64::from(connection.binding().is_some());
                self.end(slot, &ConnectionEnd::Fault(message));
            }
        }
        let suppressed = self.log_limiter.tick(now);
        if suppressed > 0 {
            warn!("{suppressed} more messages about clients suppressed");
        }
        self.log_usage(now);
        self.log_held(true);
        self.log_tight_targets(now);
        self.retry_flushes();
        self.trim_when_idle();
        if std::mem::take(&mut self.accept_paused) {
            self.watch_listeners();
        }
        for index in 0..self.parts.files.len() {
            let file = &mut self.parts.files[index];
            let volume = file.volume;
            // What the thread found since the last tick; looking may wait for a disk, which a shard must not.
            file.ask(&self.parts.watcher);
            if file.was_just_deleted() {
                let name = self.exports.name_of(volume);
                warn!(
                    "{name}: its image was deleted; it is served until it is removed or the server stops, and its data are lost then"
                );
            }
            if let Some(size) = file.changed_size() {
                let name = self.exports.name_of(volume);
                warn!("{name}: its image changed its size to {size} bytes while it is served");
                self.parts.shared.keeper().resize(volume, size);
                self.exports.resize(volume, size);
                self.announce_size(volume, size);
                self.parts.driver.push(Input::Control(Control::Resize { volume, size }));
            }
        }
    }

    fn log_held(&mut self, at_tick: bool) {
        let ReactorParts { driver, volumes, .. } = &self.parts;
        let stops = self.phase != ShutdownPhase::Running;
        let name = |volume| self.exports.name_of(volume);
        self.held.check(driver.shard(), volumes, (at_tick, stops), name);
    }

    /// Returns idle memory of the pool to the kernel once no buffer is in use.
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
            let Some(stats) = self.parts.driver.shard().stats(VolumeId(volume)) else {
                continue;
            };
            let name = self.exports.name_of(VolumeId(volume));
            let lines = statistics::lines(stats);
            if lines.is_empty() {
                info!("{name}: no request has reached its device yet");
            }
            for line in lines {
                info!("{name}: {line}");
            }
        }
    }
}
