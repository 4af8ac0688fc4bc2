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
//! The reactor is a loop over parts with methods of their own; a call that concerns two of them gets the other as an argument, and none knows
//! the reactor.
//!
//! | part | what |
//! |---|---|
//! | `parts` | what all borrow: `driver` has the shard, `shard_io` its sockets and rings |
//! | `door` | the connections and what they share: turns, buffers, limits, freezes |
//! | `listeners` | where clients come from |
//! | `own_flushes`, `restores` | what the shard itself submits |
//! | `idle`, `payoff` | the polling policy |
//! | `held_log`, `error_log`, `notices`, `targets`, `log_limiter` | lines of the log |
//!
//! `commands`, `queries`, `pause` and `shutdown` are the event handlers of the whole.

#[cfg(test)]
mod cached_tests;
mod commands;
mod door;
pub(crate) mod driver;
mod error_log;
mod exports;
#[cfg(test)]
mod fairness_tests;
mod foreign_spans;
mod freezes;
mod held_log;
mod idle;
pub(crate) mod in_flight;
mod latency;
mod listeners;
mod log_limiter;
pub(crate) mod messages;
mod notices;
mod own_flushes;
mod parts;
pub(crate) mod pause;
mod payoff;
mod queries;
pub(crate) mod restores;
pub(crate) mod shard_io;
pub(crate) mod shared;
mod shutdown;
mod statistics;
mod targets;
#[cfg(test)]
mod unread_tests;

use std::io;

use headworks_core::{Control, Input, Instant, ShardId, VolumeId};
use tracing::{info, warn};

use crate::observe::latency::usage::UsageLog;
use crate::reactor::messages::ControlMessage;
use crate::reactor::messages::doors::DoorMessage;
use door::Door;
use error_log::ErrorLog;
use headworks::driver::{DiskQueue, Event, Wait};
use held_log::HeldLog;
use idle::IdlePolicy;
use listeners::{LISTENERS, Listeners};
use notices::NoticeLog;
use own_flushes::OwnFlushes;
pub use parts::ReactorParts;
use pause::Pause;
use shard_io::Envelope;
use shutdown::Stop;
use targets::TargetLog;

/// Interval of the tick, which checks deadlines and file sizes. An idle server does not tick.
const TICK_NS: u64 = 1_000_000_000;
/// Messages taken from one ring in one turn.
const MESSAGES_MAX: usize = 1024;

/// The event loop of one shard.
pub struct Reactor {
    parts: ReactorParts,
    door: Door,
    listeners: Listeners,
    stop: Stop,
    /// The pause in progress, while the server is handed over.
    pause: Option<Pause>,
    own_flushes: OwnFlushes,
    sets: queries::Sets,
    held: HeldLog,
    errors: ErrorLog,
    target_log: TargetLog,
    notices: NoticeLog,
    idle: IdlePolicy,
    ticks: Ticks,
    events: Vec<Event>,
    envelopes: Vec<Envelope>,
}

/// What happens once a second, while anything happens.
struct Ticks {
    next: Instant,
    /// Something happened since the last tick, or a connection has a deadline.
    on: bool,
    /// Idle memory of the pool was returned to the kernel.
    trimmed: bool,
    /// What used devices, cache and buffers in the last minute.
    usage: UsageLog,
}

impl Reactor {
    /// A reactor that has not run yet.
    #[must_use]
    pub fn new(mut parts: ReactorParts) -> Self {
        let listeners = Listeners::new(std::mem::take(&mut parts.listeners), parts.listens);
        let usage = UsageLog::default();
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            door: Door::new(&parts),
            listeners,
            stop: Stop::default(),
            pause: None,
            own_flushes: OwnFlushes::default(),
            sets: queries::Sets::default(),
            held: HeldLog::default(),
            errors: ErrorLog::default(),
            target_log: TargetLog::default(),
            notices: NoticeLog::default(),
            idle: IdlePolicy::new(parts.poll_ns, cpus),
            ticks: Ticks { next: Instant(0), on: false, trimmed: true, usage },
            events: Vec::with_capacity(1024),
            envelopes: Vec::with_capacity(MESSAGES_MAX),
            parts,
        }
    }

    /// Runs until the server stops.
    ///
    /// # Errors
    /// The engine failed.
    pub fn run(&mut self) -> io::Result<()> {
        self.listeners.watch_all(&mut *self.parts.engine);
        let mut wait = Wait::Poll;
        loop {
            if self.must_enter(wait) {
                self.enter(wait)?;
            }
            let now = self.parts.clock.now();
            let worked = self.turn(now);
            if self.stop.withdrawn {
                return Ok(());
            }
            if self.stop.is_waiting()
                && self.parts.shared.all_waiting()
                && self.parts.devices_are_idle()
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
            if self.stop.is_due() {
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
        if self.stop.withdrawn {
            return false;
        }
        self.door.expire_freezes(&mut self.parts, now);
        worked |= self.door.pass_limited(&mut self.parts, now);
        worked |= self.door.receive(&mut self.parts, now);
        self.take_timers(now);
        if self.parts.restores.is_some() {
            self.restore(now);
        }
        self.ticks.on |= worked;
        if self.ticks.on && now >= self.ticks.next {
            self.tick(now);
        }
        worked |= self.parts.driver.has_inputs();
        self.parts.step(now);
        if self.door.resubmit_returned(&mut self.parts, now) {
            worked = true;
            self.parts.step(now);
        }
        if let Some(volumes) = self.parts.driver.executor().take_losses() {
            notices::note_losses(&volumes, &self.door.exports, &self.parts.shared);
        }
        worked |= self.door.on_device_states(&mut self.parts);
        worked |= self.door.send(&mut self.parts, now);
        while let Some((target, to, message)) = self.door.limits.next_message() {
            self.parts.io.post(to, Envelope::Lease { target, message });
        }
        self.push_messages();
        if self.parts.io.has_news() {
            self.answer_sets();
            self.own_flushes.answer(&mut self.parts.io.own_flushes);
            let ReactorParts { io, shared, .. } = &mut self.parts;
            self.notices.log(&self.door.exports, io, shared);
        }
        self.log_held(false);
        if !self.stop.is_running() {
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
        let idle_disks = self.parts.driver.shard().is_idle() && self.parts.frames_are_idle();
        let may_skip = self.door.may_skip_engine();
        let enters = self.idle.must_enter(wait == Wait::Poll && may_skip && idle_disks);
        if enters {
            self.door.note_entered();
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
        let requests = self.parts.driver.handled();
        let clock = &self.parts.clock;
        if self.idle.polls_after(now, (worked, requests), || clock.now()) {
            return Wait::Poll;
        }
        if self.parts.io.peers.iter().flatten().any(|peer| !peer.outbox.is_empty()) {
            // A ring was full. Rings are sized so that this does not happen; their reader makes room without a wake-up.
            return Wait::Poll;
        }
        if self.door.watch_all(&mut self.parts) {
            return Wait::Poll;
        }
        let tick = self.ticks.on.then_some(self.ticks.next);
        let (look, limited) = (self.door.next_look(), self.door.next_limited());
        let frozen = self.door.freezes.next_timeout();
        let device = self.parts.driver.next_timeout();
        let (timer, driver) = (self.parts.io.timer, device.map(|at| self.idle.wakes_at(at)));
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
                Event::Ready { token } if token >= LISTENERS => {
                    let number = token - LISTENERS;
                    let (door, parts) = (&mut self.door, &mut self.parts);
                    self.ticks.on |= !self.listeners.accept(now, number, door, parts);
                }
                Event::Ready { token } => self.door.on_ready(&mut self.parts, token),
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
                        self.door.limits.on_message(now, from, target, message);
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
                    // After a stop its writes would not be flushed.
                    if self.stop.is_running() {
                        self.door.take_over(&mut self.parts, now, connection, export, terms);
                    }
                }
                ControlMessage::Control(control) => self.on_control(control),
                ControlMessage::Statistics => self.tell_statistics(),
                ControlMessage::Query(question) => self.on_question(now, question),
                ControlMessage::Command(order, answer) => self.on_command(now, *order, &answer),
                ControlMessage::Resized { volume, size } => {
                    door::attached::resize(&mut self.door, &mut self.parts, volume, size);
                }
                ControlMessage::Door(order) => self.on_door(now, *order),
                ControlMessage::Stop => self.stop(now),
                ControlMessage::Barrier(sender) => drop(sender),
                ControlMessage::Listen => self.listeners.listen(&mut *self.parts.engine),
                ControlMessage::Pause(order) => self.begin_pause(order),
                ControlMessage::Adopt(order) => self.adopt(now, order),
                ControlMessage::Wake => {}
            }
        }
        worked
    }

    /// Carries out what the thread of a door asks. A shard that stops or pauses drops the question, and with it the answer's channel.
    fn on_door(&mut self, now: Instant, order: DoorMessage) {
        let (door, parts) = (&mut self.door, &mut self.parts);
        match order {
            DoorMessage::Describe { export, answer } => {
                let mut all = door.exports.all();
                let found = all.find(|one| one.binding.export == export && one.shard == parts.id);
                let _ = answer.send(found.cloned());
            }
            DoorMessage::Attach { export, client, answer } => {
                if self.stop.is_running() && self.pause.is_none() {
                    let _ = answer.send(door::attached::attach(door, parts, now, export, client));
                }
            }
            DoorMessage::Order { client, order } => {
                door::attached::order(door, parts, client, order)
            }
            DoorMessage::Close { client } => door::attached::close(door, parts, client),
        }
    }

    /// Applies a control input: buffers and limits keep weights and tenants, too.
    fn on_control(&mut self, control: Control) {
        if let Control::Weight { export, weight } = control {
            self.door.set_weight(export, weight);
        }
        if let Control::TenantWeight { tenant, weight } = control {
            self.door.set_tenant_weight(tenant, weight);
        }
        if let Control::ExportTenant { export, tenant } = control {
            self.door.set_tenant(self.parts.io.now, export, tenant);
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

    fn push_messages(&mut self) {
        for (shard, peer) in self.parts.io.peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            if !peer.outbox.is_empty() && peer.producer.push(&mut peer.outbox) {
                self.parts.wakers[shard].wake();
            }
        }
    }

    /// Checks deadlines and file sizes, once a second while anything happens.
    fn tick(&mut self, now: Instant) {
        self.ticks.next = now.after(TICK_NS);
        self.ticks.on = !self.stop.is_running() || self.door.freezes.first().is_some();
        self.door.drop_left_clients(&mut self.parts);
        self.ticks.on |= self.door.end_late(&mut self.parts, now);
        let suppressed = self.door.log.tick(now);
        if suppressed > 0 {
            warn!("{suppressed} more messages about clients suppressed");
        }
        latency::log_usage(&mut self.ticks.usage, now, &self.door, &mut self.parts);
        self.ticks.on |= self.errors.check(now, &self.door, &mut self.parts.io);
        self.log_held(true);
        let (log, shard) = (&mut self.target_log, self.parts.driver.shard());
        targets::log_tight_targets(log, now, shard, &self.door.exports);
        self.retry_flushes();
        self.trim_when_idle();
        self.listeners.retry(&mut *self.parts.engine);
        for index in 0..self.parts.files.len() {
            let file = &mut self.parts.files[index];
            let volume = file.volume;
            // What the thread found since the last tick; looking may wait for a disk, which a shard must not.
            file.ask(&self.parts.watcher);
            if file.was_just_deleted() {
                let name = self.door.exports.name_of(volume);
                warn!(
                    "{name}: its image was deleted; it is served until it is removed or the server stops, and its data are lost then"
                );
            }
            if let Some(size) = file.changed_size() {
                let name = self.door.exports.name_of(volume);
                warn!("{name}: its image changed its size to {size} bytes while it is served");
                self.parts.shared.keeper().resize(volume, size);
                door::attached::resize(&mut self.door, &mut self.parts, volume, size);
                self.announce_size(volume, size);
                self.parts.driver.push(Input::Control(Control::Resize { volume, size }));
            }
        }
    }

    fn log_held(&mut self, at_tick: bool) {
        let ReactorParts { driver, volumes, .. } = &self.parts;
        let stops = !self.stop.is_running();
        let name = |volume| self.door.exports.name_of(volume);
        self.held.check(driver.shard(), volumes, (at_tick, stops), name);
    }

    /// Returns idle memory of the pool to the kernel once no buffer is in use.
    fn trim_when_idle(&mut self) {
        let pool = &mut self.parts.io.pool;
        let idle = pool.taken() == 0;
        if idle && !self.ticks.trimmed {
            pool.trim();
        }
        self.ticks.trimmed = idle;
    }

    fn tell_statistics(&self) {
        for volume in 0..self.parts.shared.volumes() as u16 {
            let Some(stats) = self.parts.driver.shard().stats(VolumeId(volume)) else {
                continue;
            };
            let name = self.door.exports.name_of(VolumeId(volume));
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
