//! The owner's thread: takes what the feeders put into their rings, lets the shard decide, carries it out, answers.
//!
//! ```text
//!      .-> take bios of every ring, disk events, timers
//!      |   shard.handle(inputs); executor.run(actions)           until devices that answer at once have nothing more to say
//!      |   push each feeder's answers, wake it if it sleeps
//!      '-- nothing came? give the CPU away and look again for a little, then sleep in the engine
//! ```
//!
//! Invariant: it sleeps only if no ring had anything after it said so (`Sleeper::may_sleep`).

use std::io;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;

use headworks_core::stats::VolumeStats;
use headworks_core::{
    Bio, BioFlags, BioId, ConfigError, DeviceId, Input, Instant, Message, Notice, Op, ReplyStage,
    Shard, ShardConfig, ShardId, Status, VolumeId, WaitTimes,
};

use super::bed::Bed;
use super::handle::{Answer, Handle, Parts, RingCounts};
use super::{Buffers, Curfew, Ends, OwnerOptions};
use crate::engine::{self, Engine, Event, Wait, Waker};
use crate::executor::{ActionSink, Executor};
use crate::memory::{Mapping, Span, tables_in_huge_pages};
use crate::ring::{Consumer, Producer, Sleeper, ring};
use crate::runtime::{Clock, Polling, map_frames, pin_thread};

/// Bios taken from one ring in a turn: what a plug holds.
const BIOS_MAX: usize = 32;
/// No further ring is looked at in a turn that has so many. More would not merge, they would only push what the shard works on
/// out of the nearest cache and make the elevator's index deeper (16 feeders, mq-deadline: 4.4 M/s without, 5.3 with).
const TURN_BIOS: usize = 32;
/// A busy owner looks that often whether feeders wait for its CPU. 250 us: each time costs it a few switches. 16 feeders and
/// the owner on 2 CPUs: Jain's index of the feeders is 0.5-0.6 without, 0.8 with 250 us, 0.9 with 100 us, but then the owner
/// has a tenth less.
const GIVE_WAY_NS: u64 = 250_000;
/// The id that the flush at the end carries.
const OWN_FLUSH: u32 = u32::MAX - 1;
/// Notices that are kept; a device that lies all the time fills nothing.
const NOTICES_MAX: usize = 16;

/// What the owner had to say at its end.
#[derive(Clone, Debug, Default)]
pub struct Ended {
    /// Statistics of the volume.
    pub stats: VolumeStats,
    /// Calls of the shard.
    pub turns: u64,
    /// Answers, and what they cost.
    pub counts: RingCounts,
    /// The first notices.
    pub notices: Vec<Notice>,
    /// How the flush of the cache went that ended it; none without a cache.
    pub flushed: Option<Status>,
}

/// The thread that owns the device.
pub struct Owner {
    thread: JoinHandle<io::Result<Ended>>,
}

impl Owner {
    /// Waits until every handle is gone and everything was answered.
    ///
    /// # Errors
    /// Its engine broke, or its thread died.
    pub fn join(self) -> io::Result<Ended> {
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("the owner's thread died")))
    }
}

/// A feeder, seen from here.
struct Client {
    bios: Consumer<Bio>,
    answers: Producer<Answer>,
    /// Answers in the ring that the feeder does not see yet.
    unpublished: u64,
    /// It put something since the owner last looked whether somebody waits for its CPU.
    heard: bool,
    bed: Arc<Bed>,
    buffers: Arc<Buffers>,
}

/// Where the shard's actions go that are not for the device.
struct Desk {
    clients: Vec<Client>,
    /// Clients with answers that are to be published.
    to_push: Vec<u32>,
    timer: Option<Instant>,
    notices: Vec<Notice>,
    frames: Option<Mapping>,
    /// How our own flush went.
    flushed: Option<Status>,
}

// SAFETY: a slot holds every bio that `Handle::put` accepts, and is the path's until its last answer; slots and frames are
// mappings of their own, which live as long as the driver.
unsafe impl ActionSink for Desk {
    #[inline]
    fn buffer(&mut self, bio: BioId) -> Span {
        if let Some(unit) = bio.unit() {
            return self.frames().frames_from(unit);
        }
        let buffers = &self.clients[bio.connection as usize].buffers;
        // SAFETY: a slot of a mapping that lives as long as the driver, used by nobody else until it is answered.
        unsafe { Span::new(buffers.slot(bio.sequence as u32), buffers.slot_bytes) }
    }

    #[inline]
    fn frames(&self) -> Span {
        // SAFETY: the mapping lives as long as the driver.
        self.frames.as_ref().map_or(Span::EMPTY, |frames| unsafe { frames.span() })
    }

    #[inline]
    fn reply(&mut self, id: BioId, status: Status, hole: bool, stage: ReplyStage, _: WaitTimes) {
        if id.connection == OWN_FLUSH {
            self.flushed.get_or_insert(status);
            return;
        }
        let client = &mut self.clients[id.connection as usize];
        if client.unpublished == 0 {
            self.to_push.push(id.connection);
        }
        client.unpublished += 1;
        let answer = Answer { slot: id.sequence as u32, status, hole, stage };
        assert!(client.answers.put(answer).is_ok(), "a ring has room for every answer");
    }

    fn send(&mut self, _to: ShardId, _message: Message) {}

    fn timer(&mut self, at: Instant) {
        self.timer = Some(at);
    }

    fn notice(&mut self, notice: Notice) {
        if self.notices.len() < NOTICES_MAX {
            self.notices.push(notice);
        }
    }
}

/// The flush that ends an owner with a cache.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flush {
    Due,
    UnderWay,
}

/// Everything on the owner's thread.
struct Driver {
    shard: Shard,
    executor: Executor,
    engine: Box<dyn Engine>,
    clock: Clock,
    polling: Polling,
    sleeper: Arc<Sleeper>,
    ends: Arc<Ends>,
    desk: Desk,
    /// What is left to do for the cache before the end.
    flush: Option<Flush>,
    inputs: Vec<Input>,
    batch: Vec<Input>,
    events: Vec<Event>,
    turns: u64,
    counts: RingCounts,
    /// The client whose ring is looked at first.
    first: usize,
    /// When the CPU was last offered to feeders.
    gave_way: Instant,
}

/// See [`super::start`].
pub(super) fn start(options: OwnerOptions) -> Result<(Owner, Vec<Handle>), ConfigError> {
    let sleeper = Arc::new(Sleeper::default());
    let ends = Arc::new(Ends::default());
    let (mut clients, mut handles) = (Vec::new(), Vec::new());
    let (depth, slot_bytes) = (options.depth, options.slot_bytes);
    for _ in 0..options.handles {
        let (bed, own_sleeper) = (Arc::new(Bed::default()), Arc::new(Sleeper::default()));
        let (bio_in, bios) = ring(depth as usize, &sleeper);
        // A bio that timed out has two answers: `Early` and `Released`.
        let (answer_in, answers) = ring(2 * depth as usize, &own_sleeper);
        let buffers = Arc::new(Buffers::new(depth, slot_bytes)?);
        handles.push((bio_in, answers, own_sleeper, Arc::clone(&bed), Arc::clone(&buffers)));
        clients.push(Client {
            bios,
            answers: answer_in,
            unpublished: 0,
            heard: false,
            bed,
            buffers,
        });
    }
    let (told, hears) = mpsc::channel();
    let (sleeper_there, ends_there) = (Arc::clone(&sleeper), Arc::clone(&ends));
    let beds = clients.iter().map(|client| Arc::clone(&client.bed)).collect();
    let thread = std::thread::Builder::new().name("headworks-owner".to_owned());
    let thread = thread.spawn(move || {
        let _curfew = Curfew { ends: Arc::clone(&ends_there), beds };
        match Driver::new(options, clients, sleeper_there, ends_there) {
            Ok(mut driver) => {
                let _ = told.send(Ok(driver.engine.waker()));
                driver.run()
            }
            Err(error) => {
                let _ = told.send(Err(error));
                Ok(Ended::default())
            }
        }
    });
    let thread = thread
        .map_err(|error| ConfigError::new("threads", format!("cannot start one: {error}")))?;
    let waker: Waker = hears
        .recv()
        .map_err(|_| ConfigError::new("threads", "the owner thread panicked at its start"))??;
    let handles =
        handles.into_iter().enumerate().map(|(index, (bios, answers, sleeper, bed, buffers))| {
            Handle::new(Parts {
                index: index as u32,
                depth,
                buffers,
                bios,
                answers,
                sleeper,
                bed,
                owner: waker.clone(),
                ends: Arc::clone(&ends),
            })
        });
    Ok((Owner { thread }, handles.collect()))
}

impl Driver {
    fn new(
        options: OwnerOptions,
        clients: Vec<Client>,
        sleeper: Arc<Sleeper>,
        ends: Arc<Ends>,
    ) -> Result<Self, ConfigError> {
        if let Some(cpu) = options.cpu {
            pin_thread(cpu);
        }
        let slots = options.handles * options.depth as usize;
        let bios_max = u32::try_from(slots).unwrap_or(u32::MAX);
        // One more for the flush at the end.
        let mut config =
            ShardConfig::single(options.queue, options.volume, bios_max.saturating_add(1));
        (config.cache, config.dirty) = (options.cache, options.dirty);
        let mut shard = Shard::new(config)?;
        tables_in_huge_pages(shard.cache_tables());
        if let Some(elevator) = options.elevator {
            shard.set_elevator(DeviceId(0), elevator);
        }
        let (engine, _) =
            engine::open_engine(options.engine, options.queue.queue_depth as usize + 64)?;
        let to_push = Vec::with_capacity(clients.len());
        Ok(Self {
            shard,
            executor: Executor::new(vec![Some(options.device)]),
            engine,
            clock: Clock::start(),
            polling: Polling::new(options.poll_ns),
            sleeper,
            ends,
            desk: Desk {
                clients,
                to_push,
                timer: None,
                notices: Vec::new(),
                frames: map_frames(&options.cache)?.map(|(frames, _)| frames),
                flushed: None,
            },
            flush: options.cache.is_on().then_some(Flush::Due),
            inputs: Vec::with_capacity(2 * slots + 16),
            batch: Vec::with_capacity(2 * slots + 16),
            events: Vec::with_capacity(1024),
            turns: 0,
            counts: RingCounts::default(),
            first: 0,
            gave_way: Instant(0),
        })
    }

    fn run(&mut self) -> io::Result<Ended> {
        loop {
            let now = self.clock.now();
            if self.turn(now) {
                self.polling.on_work(now);
                self.give_way(now);
                // Commands in a device must be started and their answers fetched.
                if self.has_commands() {
                    self.enter(Wait::Poll)?;
                }
                continue;
            }
            if self.ends.closed() == self.desk.clients.len() && self.shard.is_idle() {
                // What a handle pushed before it went is seen now that it is seen gone.
                if self.rings_are_empty() && self.is_flushed() && self.frames_are_home() {
                    break;
                }
                self.enter(Wait::Poll)?;
                continue;
            }
            self.rest(now)?;
        }
        Ok(Ended {
            stats: self.shard.stats(VolumeId(0)).cloned().unwrap_or_default(),
            turns: self.turns,
            counts: self.counts,
            notices: std::mem::take(&mut self.desk.notices),
            flushed: self.desk.flushed,
        })
    }

    /// Everything between two waits; true if anything happened.
    fn turn(&mut self, now: Instant) -> bool {
        self.take_events(now);
        self.take_bios();
        self.take_timers(now);
        if self.inputs.is_empty() {
            return false;
        }
        let Self { shard, executor, engine, desk, inputs, batch, .. } = self;
        while !inputs.is_empty() {
            std::mem::swap(inputs, batch);
            shard.handle(now, batch);
            batch.clear();
            self.turns += 1;
            executor.run(now, shard.actions(), desk, &mut **engine, inputs);
            shard.clear_actions();
        }
        self.push_answers();
        true
    }

    /// Rings in turn, from where the last turn ended, until there is enough.
    fn take_bios(&mut self) {
        let clients = &mut self.desk.clients;
        let all = clients.len();
        for _ in 0..all {
            let client = &mut clients[self.first];
            self.first = if self.first + 1 == all { 0 } else { self.first + 1 };
            let inputs = &mut self.inputs;
            client.heard |= client.bios.pop_each(BIOS_MAX, |bio| inputs.push(Input::Bio(bio))) > 0;
            if self.inputs.len() >= TURN_BIOS {
                break;
            }
        }
    }

    /// A feeder that has answers, does not take them and puts nothing may wait for this very CPU, which a busy owner would
    /// keep for whole time slices: feeders elsewhere would have 40 times its share.
    fn give_way(&mut self, now: Instant) {
        if now.since(self.gave_way) < GIVE_WAY_NS {
            return;
        }
        self.gave_way = now;
        let mut waits = false;
        for client in &mut self.desk.clients {
            waits |= !std::mem::take(&mut client.heard) && !client.answers.is_empty();
        }
        if waits {
            std::thread::yield_now();
        }
    }

    fn take_events(&mut self, now: Instant) {
        for event in self.events.drain(..) {
            if let Event::Disk(done) = event {
                self.executor.on_disk(now, done, &mut *self.engine, &mut self.inputs);
            }
        }
    }

    fn take_timers(&mut self, now: Instant) {
        if self.desk.timer.is_some_and(|at| at <= now) {
            self.desk.timer = None;
            self.inputs.push(Input::Timer);
        }
        if self.executor.next_timeout().is_some_and(|at| at <= now) {
            self.executor.on_timeout(now, &mut *self.engine, &mut self.inputs);
        }
    }

    fn push_answers(&mut self) {
        for index in self.desk.to_push.drain(..) {
            let client = &mut self.desk.clients[index as usize];
            self.counts.messages += std::mem::take(&mut client.unpublished);
            self.counts.pushes += 1;
            if client.answers.publish() {
                self.counts.wakes += 1;
                client.bed.make_noise();
            }
        }
    }

    /// Nobody feeds any more: true if nothing is dirty, or what is has failed; else that is under way.
    fn is_flushed(&mut self) -> bool {
        if self.flush == Some(Flush::Due) {
            self.flush = Some(Flush::UnderWay);
            let id = BioId { connection: OWN_FLUSH, ..BioId::default() };
            // By FUA, so that it is obeyed where flushes promise nothing, too.
            let flags = BioFlags::SYNC.with(BioFlags::FUA);
            self.inputs.push(Input::Bio(Bio { id, op: Op::Flush, flags, ..Bio::default() }));
        }
        self.flush.is_none() || self.desk.flushed.is_some()
    }

    /// Something may be in the device: of a feeder or of the cache.
    fn has_commands(&self) -> bool {
        !self.shard.is_idle() || !self.frames_are_home()
    }

    /// The device has no frames of the cache.
    fn frames_are_home(&self) -> bool {
        self.desk.frames.is_none() || self.shard.is_quiet()
    }

    fn rings_are_empty(&mut self) -> bool {
        self.desk.clients.iter_mut().all(|client| client.bios.is_empty())
    }

    /// Nothing came: looks again for a little, then sleeps.
    fn rest(&mut self, now: Instant) -> io::Result<()> {
        if self.polling.look_again(now) {
            let before = self.clock.now();
            std::thread::yield_now();
            self.polling.on_yield(self.clock.now().since(before));
            if self.has_commands() {
                self.enter(Wait::Poll)?;
            }
            return Ok(());
        }
        let times = [self.desk.timer, self.executor.next_timeout()];
        let wait = match times.into_iter().flatten().min() {
            Some(at) if at <= now => Wait::Poll,
            Some(at) => Wait::For(at.since(now)),
            None => Wait::Forever,
        };
        self.enter(wait)
    }

    fn enter(&mut self, wait: Wait) -> io::Result<()> {
        let Self { shard, engine, sleeper, desk, events, ends, counts, .. } = self;
        let mut wait = wait;
        if wait != Wait::Poll {
            let (all, idle) = (desk.clients.len(), shard.is_idle());
            let idle = || {
                let may_end = idle && ends.closed() == all;
                !may_end && desk.clients.iter_mut().all(|client| client.bios.is_empty())
            };
            match sleeper.may_sleep(idle) {
                true => counts.sleeps += 1,
                false => wait = Wait::Poll,
            }
        }
        let result = engine.turn(wait, events);
        sleeper.woken();
        result
    }
}
