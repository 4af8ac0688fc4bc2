//! The owner's thread: rings and engine in, shard and executor between, rings out.
//!
//! ```text
//!   run: commands, removals --> turn: events, bios, timers --> shard --> executor --> replies --> poll or sleep
//! ```
//!
//! Invariant: `desk.flushing` is the number of own flushes without a reply.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;

use headworks_core::{
    Bio, BioFlags, BioId, Change, ChangeError, ConfigError, DeviceConfig, DeviceId, Input, Instant,
    IoError, Message, Notice, Op, QueueOptions, ReplyStage, Shard, ShardConfig, ShardId,
    SpareSlots, Status, VolumeConfig, VolumeId, VolumeOptions, WaitTimes, WriteMode,
};

use super::handle::RingCounts;
use super::owner::{Command, NewVolume, OwnerReport};
use super::parker::Parker;
use super::removal::Removal;
use super::{Buffers, DeviceSetup, OwnerOptions, OwnerState, Reply};
use crate::engine::{DISK_DEPTH_MAX, Engine, Event, Wait, Waker, open_engine};
use crate::executor::{ActionSink, Executor};
use crate::memory::{Mapping, Populator, Span};
use crate::ring::{Consumer, Producer, Sleeper};
use crate::runtime::{Clock, Polling, pin_thread};

/// Bios taken from one ring in a turn: what a plug holds.
const BIOS_MAX: usize = 32;
/// Bios after which a turn takes from no further ring. More would not merge; they would only evict the shard's state from the
/// nearest cache and deepen the elevator's index (16 feeders, mq-deadline: 4.4 M/s without the limit, 5.3 with it).
const TURN_BIOS: usize = 32;
/// Period of the check whether a feeder waits for the CPU of a busy owner. 250 us: each check costs a few switches. With 16 feeders
/// and the owner on 2 CPUs, Jain's index of the feeders is 0.5-0.6 without it, 0.8 with 250 us, and 0.9 with 100 us, which costs
/// the owner a tenth of its throughput.
const GIVE_WAY_NS: u64 = 250_000;
/// The longest sleep while a removal waits.
const REMOVAL_NS: u64 = 1_000_000;
/// The connection of the owner's own flushes.
const OWN_FLUSH: u32 = u32::MAX - 1;
/// Notices that are kept, so that a device that breaks the protocol all the time fills nothing.
const NOTICES_MAX: usize = 16;

/// A feeder as the owner sees it.
pub(super) struct Client {
    bios: Consumer<Bio>,
    replies: Producer<Reply>,
    /// Replies in the ring that are not published yet.
    unpublished: u64,
    /// It submitted since the last check whether a feeder waits for the CPU.
    submitted: bool,
    /// The shard was told that the handle is closed.
    closed: bool,
    pub(super) parker: Arc<Parker>,
    buffers: Arc<Buffers>,
}

impl Client {
    pub fn new(
        bios: Consumer<Bio>,
        replies: Producer<Reply>,
        parker: Arc<Parker>,
        buffers: Arc<Buffers>,
    ) -> Self {
        let (unpublished, submitted, closed) = (0, false, false);
        Self { bios, replies, unpublished, submitted, closed, parker, buffers }
    }
}

/// Receives the shard's actions that are not for a device.
pub(super) struct Desk {
    clients: Vec<Client>,
    /// Clients with replies to be published.
    to_publish: Vec<u32>,
    timer: Option<Instant>,
    notices: Vec<Notice>,
    /// Makes the memory of frames before they are used; ends before they are unmapped.
    populator: Option<Populator>,
    frames: Option<Mapping>,
    flushing: u32,
    /// Replies to own flushes.
    flushed: Vec<(VolumeId, Status)>,
}

impl Desk {
    #[inline]
    fn complete(&mut self, id: BioId, status: Status, hole: bool, stage: ReplyStage) {
        let client = &mut self.clients[id.connection as usize];
        if client.unpublished == 0 {
            self.to_publish.push(id.connection);
        }
        client.unpublished += 1;
        let reply = Reply { slot: id.sequence as u32, status, hole, stage };
        assert!(client.replies.put(reply).is_ok(), "a ring has room for every reply");
    }
}

// SAFETY: a slot holds every bio that `Handle::put` accepts, and belongs to the path until its last reply; slots and frames are
// mappings of their own, which live as long as the driver, and are leaked with it if a device may still use them.
unsafe impl ActionSink for Desk {
    #[inline]
    fn buffer(&mut self, bio: BioId) -> Span {
        if let Some(unit) = bio.unit() {
            return self.frames().frames_from(unit);
        }
        let buffers = &self.clients[bio.connection as usize].buffers;
        // SAFETY: a slot of a mapping that lives as long as the driver, which the feeder cannot use until it is completed.
        unsafe { Span::new(buffers.slot(bio.sequence as u32), buffers.slot_bytes) }
    }

    #[inline]
    fn frames(&self) -> Span {
        // SAFETY: the mapping lives as long as the driver, and does not grow.
        self.frames.as_ref().map_or(Span::EMPTY, |frames| unsafe { frames.span() })
    }

    fn prepare(&mut self, frames: Span) {
        if let Some(populator) = &self.populator {
            populator.populate(frames);
        }
    }

    fn release(&mut self, frames: Span) {
        if let Some(mapping) = &self.frames {
            // SAFETY: frames that hold nothing, which no device uses.
            unsafe { mapping.release(frames) };
        }
    }

    #[inline]
    fn reply(&mut self, id: BioId, status: Status, hole: bool, stage: ReplyStage, _: WaitTimes) {
        if id.connection != OWN_FLUSH {
            self.complete(id, status, hole, stage);
        } else if stage != ReplyStage::Released {
            self.flushing -= 1;
            self.flushed.push((id.volume, status));
        }
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

#[derive(Clone, Copy)]
struct Volume {
    device: DeviceId,
    /// The cache may hold dirty data of it.
    cached: bool,
}

/// How far the end of the owner is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    No,
    /// Rings are not read any more; replies and flushes are outstanding.
    Draining {
        deadline: Instant,
        flushes_sent: bool,
    },
}

/// Everything on the owner's thread.
pub(super) struct Driver {
    pub(super) shard: Shard,
    pub(super) executor: Executor,
    engine: Box<dyn Engine>,
    clock: Clock,
    polling: Polling,
    sleeper: Arc<Sleeper>,
    state: Arc<OwnerState>,
    inbox: Receiver<Command>,
    desk: Desk,
    devices: Vec<bool>,
    volumes: Vec<Option<Volume>>,
    /// The ids that are tried first for the next device and volume, so that an id is reused as late as possible.
    next: (usize, usize),
    slot_bytes: usize,
    pub(super) removals: Vec<Removal>,
    /// The shard was changed and has to be called once, also without inputs.
    changed: bool,
    ending: Ending,
    shutdown_ns: u64,
    /// Handles that were closed when the shard was last told.
    closed_seen: usize,
    inputs: Vec<Input>,
    batch: Vec<Input>,
    events: Vec<Event>,
    turns: u64,
    counts: RingCounts,
    /// The client whose ring is read first.
    first: usize,
    /// When the CPU was last offered to feeders.
    gave_way: Instant,
}

impl Driver {
    pub fn new(
        options: &OwnerOptions,
        clients: Vec<Client>,
        inbox: Receiver<Command>,
        sleeper: Arc<Sleeper>,
        state: Arc<OwnerState>,
    ) -> Result<Self, ConfigError> {
        if let Some(cpu) = options.cpu {
            pin_thread(cpu);
        }
        let slots = options.handles * options.depth as usize;
        // An own flush for each volume.
        let bios_max = slots + usize::from(options.volumes_max);
        let queue = QueueOptions::default();
        let mut config = ShardConfig::single(queue, VolumeOptions::default(), bios_max as u32);
        (config.devices, config.volumes) = (Vec::new(), Vec::new());
        (config.cache, config.dirty) = (options.cache, options.dirty);
        config.spare = SpareSlots {
            devices: options.devices_max,
            volumes: options.volumes_max,
            exports: 0,
            tags: options.tags_max,
        };
        let shard = Shard::new(config)?;
        Mapping::tables_in_huge_pages(shard.cache_tables());
        let disk_depth = (options.tags_max as usize + 64).min(DISK_DEPTH_MAX);
        let (engine, _) = open_engine(options.engine, disk_depth)?;
        let to_publish = Vec::with_capacity(clients.len());
        Ok(Self {
            shard,
            executor: Executor::new(Vec::new()),
            engine,
            clock: Clock::start(),
            polling: Polling::new(options.poll_ns),
            sleeper,
            state,
            inbox,
            desk: Desk {
                clients,
                to_publish,
                timer: None,
                notices: Vec::new(),
                // Without a thread the memory is made when it is used.
                populator: options.cache.is_on().then(Populator::start).and_then(Result::ok),
                frames: Mapping::for_frames(&options.cache)?.map(|(frames, _)| frames),
                flushing: 0,
                flushed: Vec::new(),
            },
            devices: vec![false; options.devices_max.into()],
            volumes: vec![None; options.volumes_max.into()],
            next: (0, 0),
            slot_bytes: options.slot_bytes,
            removals: Vec::new(),
            changed: false,
            ending: Ending::No,
            shutdown_ns: options.shutdown_timeout.as_nanos().min(u64::MAX.into()) as u64,
            closed_seen: 0,
            inputs: Vec::with_capacity(2 * slots + 16),
            batch: Vec::with_capacity(2 * slots + 16),
            events: Vec::with_capacity(1024),
            turns: 0,
            counts: RingCounts::default(),
            first: 0,
            gave_way: Instant(0),
        })
    }

    pub fn waker(&self) -> Waker {
        self.engine.waker()
    }

    pub fn run(mut self) -> io::Result<OwnerReport> {
        let ended = loop {
            let now = self.clock.now();
            self.take_commands();
            if !self.removals.is_empty() {
                self.advance_removals(now);
            }
            if self.turn(now) {
                self.polling.on_work(now);
                self.give_way(now);
                // Commands in a device must be started and their completions fetched.
                if self.has_commands() {
                    self.enter(Wait::Poll)?;
                }
                if self.ending == Ending::No {
                    continue;
                }
            }
            if self.state.is_ending(self.desk.clients.len()) {
                match self.drain(now) {
                    Some(ended) => break ended,
                    None if self.has_inputs() => continue,
                    None => {}
                }
            }
            self.rest(now)?;
        };
        let report = self.report();
        if ended.is_ok() {
            return Ok(report);
        }
        // A device, or the kernel for it, may still write to slots and frames: they are leaked, with all that would wait for it.
        std::mem::forget(self);
        ended.map(|()| report)
    }

    fn report(&mut self) -> OwnerReport {
        let ids = (0..self.volumes.len()).filter(|&index| self.volumes[index].is_some());
        let ids = ids.map(|index| VolumeId(index as u16));
        OwnerReport {
            volumes: ids
                .map(|id| (id, self.shard.stats(id).cloned().unwrap_or_default()))
                .collect(),
            turns: self.turns,
            counts: self.counts,
            notices: std::mem::take(&mut self.desk.notices),
            flush_errors: std::mem::take(&mut self.desk.flushed)
                .into_iter()
                .filter_map(|(volume, status)| status.err().map(|error| (volume, error)))
                .collect(),
        }
    }

    /// A step towards the end: the result when it is reached.
    fn drain(&mut self, now: Instant) -> Option<io::Result<()>> {
        if self.ending == Ending::No {
            // The last look at the rings; bios that are pushed later are not completed.
            while self.take_bios() {}
            self.desk.flushed.clear();
            self.removals.clear();
            let deadline = Instant(now.0.saturating_add(self.shutdown_ns));
            self.ending = Ending::Draining { deadline, flushes_sent: false };
        }
        let Ending::Draining { deadline, flushes_sent } = self.ending else { return None };
        if self.has_inputs() {
            return None;
        }
        let idle = self.shard.is_idle();
        if idle && !flushes_sent {
            self.ending = Ending::Draining { deadline, flushes_sent: true };
            for index in 0..self.volumes.len() {
                if self.volumes[index].is_some_and(|volume| volume.cached) {
                    self.send_flush(VolumeId(index as u16));
                }
            }
        }
        if idle && self.desk.flushing == 0 && self.frames_are_home() {
            return Some(Ok(()));
        }
        if now >= deadline {
            let message = "a device did not complete its commands before the shutdown time-out";
            return Some(Err(io::Error::new(io::ErrorKind::TimedOut, message)));
        }
        None
    }

    /// Submits a flush of the owner's own; its status goes to `desk.flushed`.
    pub(super) fn send_flush(&mut self, volume: VolumeId) {
        self.desk.flushing += 1;
        let sequence = u64::from(volume.0);
        let id = BioId { connection: OWN_FLUSH, volume, sequence, ..BioId::default() };
        // FUA, so that it is obeyed where flushes promise nothing, too.
        let flags = BioFlags::SYNC.with(BioFlags::FUA);
        self.inputs.push(Input::Bio(Bio { id, op: Op::Flush, flags, ..Bio::default() }));
    }

    /// Takes the status of an own flush of `volume`.
    pub(super) fn take_flushed(&mut self, volume: VolumeId) -> Option<Status> {
        let flushed = &mut self.desk.flushed;
        let at = flushed.iter().position(|(other, _)| *other == volume)?;
        Some(flushed.swap_remove(at).1)
    }

    /// Returns true if the cache may hold dirty data of a volume; `None` if there is no such volume.
    pub(super) fn is_cached(&self, volume: VolumeId) -> Option<bool> {
        self.volumes.get(usize::from(volume.0)).copied().flatten().map(|volume| volume.cached)
    }

    fn take_commands(&mut self) {
        // A load first: the flag is read in every turn, and seldom set. Acquire: pairs with the Release in `Owner::ask`.
        if !self.state.command.load(Ordering::Relaxed)
            || !self.state.command.swap(false, Ordering::Acquire)
        {
            return;
        }
        // An owner that is gone does not wait for its answer.
        while let Ok(command) = self.inbox.try_recv() {
            match command {
                Command::AddDevice(setup, answer) => {
                    let _ = answer.send(self.add_device(setup));
                }
                Command::AddVolume(device, volume, answer) => {
                    let _ = answer.send(self.add_volume(device, volume));
                }
                Command::RemoveVolume(volume, timeout, answer) => {
                    let deadline = self.clock.now().0.saturating_add(timeout.as_nanos() as u64);
                    self.removals.push(Removal::volume(volume, Instant(deadline), answer));
                }
                Command::RemoveDevice(device, timeout, answer) => {
                    let deadline = self.clock.now().0.saturating_add(timeout.as_nanos() as u64);
                    self.removals.push(Removal::device(device, Instant(deadline), answer));
                }
                Command::Stats(volume, answer) => {
                    let _ = answer.send(self.shard.stats(volume).cloned());
                }
            }
        }
    }

    /// Changes the shard, between two calls of it.
    pub(super) fn change(&mut self, now: Instant, change: &Change) -> Result<(), ChangeError> {
        self.shard.change(now, change)?;
        self.changed = true;
        Ok(())
    }

    fn add_device(&mut self, setup: DeviceSetup) -> Result<DeviceId, ConfigError> {
        let now = self.clock.now();
        let index = free(&self.devices, self.next.0, |taken| !taken)
            .ok_or_else(|| ConfigError::new("devices_max", "the owner has no room for a device"))?;
        let device = DeviceId(index as u16);
        let config = DeviceConfig { owner: ShardId(0), queue: setup.queue };
        self.change(now, &Change::AddDevice { device, config }).map_err(invalid)?;
        if let Some(elevator) = setup.elevator {
            self.shard.set_elevator(device, elevator);
        }
        self.executor.put(device, setup.device);
        (self.devices[index], self.next.0) = (true, index + 1);
        Ok(device)
    }

    fn add_volume(&mut self, device: DeviceId, volume: NewVolume) -> Result<VolumeId, ConfigError> {
        let now = self.clock.now();
        let index = free(&self.volumes, self.next.1, Option::is_none)
            .ok_or_else(|| ConfigError::new("volumes_max", "the owner has no room for a volume"))?;
        let id = VolumeId(index as u16);
        let (options, image) = match volume {
            NewVolume::Range(options) => (options, None),
            NewVolume::Image(image, mode) => {
                (VolumeOptions { mode, ..image.volume_options() }, Some(image))
            }
        };
        if options.block_size as usize > self.slot_bytes {
            let (block, slot) = (options.block_size, self.slot_bytes);
            let message = format!("{slot} bytes are less than the volume's block of {block}");
            return Err(ConfigError::new("slot_bytes", message));
        }
        let is_image = image.is_some();
        if let Some(image) = image {
            let body = self.executor.device(device);
            let body = body.ok_or_else(|| ConfigError::new("device", "there is no such device"))?;
            body.attach_image(id, *image)
                .map_err(|_| ConfigError::new("device", "the device holds no images"))?;
        }
        let config = VolumeConfig { home: ShardId(0), device, options };
        if let Err(error) = self.change(now, &Change::AddVolume { volume: id, config }) {
            if is_image && let Some(body) = self.executor.device(device) {
                drop(body.detach_image(id));
            }
            return Err(invalid(error));
        }
        let cached = self.desk.frames.is_some() && options.mode != WriteMode::None;
        (self.volumes[index], self.next.1) = (Some(Volume { device, cached }), index + 1);
        Ok(id)
    }

    /// Removes a volume from the shard, and its image from the device.
    pub(super) fn remove_volume(
        &mut self,
        now: Instant,
        volume: VolumeId,
    ) -> Result<(), ChangeError> {
        self.change(now, &Change::RemoveVolume { volume })?;
        if let Some(Volume { device, .. }) = self.volumes[usize::from(volume.0)].take()
            && let Some(body) = self.executor.device(device)
        {
            drop(body.detach_image(volume));
        }
        Ok(())
    }

    /// Removes a device from the shard; `None` if it has no body.
    pub(super) fn remove_device(
        &mut self,
        now: Instant,
        device: DeviceId,
    ) -> Result<Option<Box<dyn crate::device::Device>>, ChangeError> {
        self.change(now, &Change::RemoveDevice { device })?;
        self.devices[usize::from(device.0)] = false;
        Ok(self.executor.take(device))
    }

    /// Everything between two waits; true if anything happened.
    fn turn(&mut self, now: Instant) -> bool {
        self.take_events(now);
        if self.ending == Ending::No {
            self.take_bios();
        }
        self.take_timers(now);
        if !self.has_inputs() {
            return false;
        }
        self.changed = false;
        let Self { shard, executor, engine, desk, inputs, batch, .. } = self;
        loop {
            std::mem::swap(inputs, batch);
            shard.handle(now, batch);
            batch.clear();
            self.turns += 1;
            executor.run(now, shard.actions(), desk, &mut **engine, inputs);
            shard.clear_actions();
            if inputs.is_empty() {
                break;
            }
        }
        self.publish_replies();
        true
    }

    fn has_inputs(&self) -> bool {
        !self.inputs.is_empty() || self.changed || !self.desk.to_publish.is_empty()
    }

    /// Reads the rings in turn, from where the last turn ended, until there is enough; true if there was anything.
    fn take_bios(&mut self) -> bool {
        let (clients, taken) = (&mut self.desk.clients, self.inputs.len());
        let all = clients.len();
        for _ in 0..all {
            let client = &mut clients[self.first];
            self.first = if self.first + 1 == all { 0 } else { self.first + 1 };
            let inputs = &mut self.inputs;
            client.submitted |=
                client.bios.pop_each(BIOS_MAX, |bio| inputs.push(Input::Bio(bio))) > 0;
            if self.inputs.len() >= TURN_BIOS {
                break;
            }
        }
        let found = self.inputs.len() > taken;
        if found && !self.removals.is_empty() {
            self.reject_removed(taken);
        }
        found
    }

    /// Completes the bios from input `first` on that are for volumes in removal.
    fn reject_removed(&mut self, first: usize) {
        let Self { inputs, removals, desk, .. } = self;
        let mut index = 0;
        inputs.retain(|input| {
            index += 1;
            let Input::Bio(bio) = input else { return true };
            let removed = |removal: &Removal| removal.rejects(bio.id.volume);
            if index <= first || bio.id.connection == OWN_FLUSH || !removals.iter().any(removed) {
                return true;
            }
            desk.complete(bio.id, Err(IoError::Invalid), false, ReplyStage::Final);
            false
        });
    }

    /// Yields the CPU if a feeder has replies, does not take them and submits nothing: it may wait for this very CPU, which a busy
    /// owner would keep for whole time slices, so that feeders elsewhere would have 40 times its share.
    fn give_way(&mut self, now: Instant) {
        if now.since(self.gave_way) < GIVE_WAY_NS {
            return;
        }
        self.gave_way = now;
        let mut waits = false;
        for client in &mut self.desk.clients {
            waits |= !std::mem::take(&mut client.submitted) && !client.replies.is_empty();
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

    fn publish_replies(&mut self) {
        for index in self.desk.to_publish.drain(..) {
            let client = &mut self.desk.clients[index as usize];
            self.counts.messages += std::mem::take(&mut client.unpublished);
            self.counts.pushes += 1;
            if client.replies.publish() {
                self.counts.wakes += 1;
                client.parker.wake();
            }
        }
    }

    /// Returns true if a device may have commands, of a feeder or of the cache.
    fn has_commands(&self) -> bool {
        !self.shard.is_idle() || !self.frames_are_home()
    }

    /// Returns true if no device has frames of the cache.
    fn frames_are_home(&self) -> bool {
        self.desk.frames.is_none() || self.shard.is_quiet()
    }

    /// Tells the shard of handles that were dropped and whose ring is empty.
    fn close_handles(&mut self) {
        let closed = self.state.closed_handles();
        if closed == self.closed_seen {
            return;
        }
        for (index, client) in self.desk.clients.iter_mut().enumerate() {
            if !client.closed && client.parker.is_closed() && client.bios.is_empty() {
                client.closed = true;
                self.closed_seen += 1;
                self.inputs.push(Input::Close { connection: index as u32 });
            }
        }
    }

    /// Without work: polls for a while, then sleeps.
    fn rest(&mut self, now: Instant) -> io::Result<()> {
        self.close_handles();
        if self.has_inputs() || !self.events.is_empty() {
            return Ok(());
        }
        if self.polling.poll_again(now) {
            let before = self.clock.now();
            std::thread::yield_now();
            self.polling.on_yield(self.clock.now().since(before));
            if self.has_commands() {
                self.enter(Wait::Poll)?;
            }
            return Ok(());
        }
        let removal = (!self.removals.is_empty()).then(|| Instant(now.0 + REMOVAL_NS));
        let deadline = match self.ending {
            Ending::Draining { deadline, .. } => Some(deadline),
            Ending::No => None,
        };
        let times = [self.desk.timer, self.executor.next_timeout(), removal, deadline];
        let wait = match times.into_iter().flatten().min() {
            Some(at) if at <= now => Wait::Poll,
            Some(at) => Wait::For(at.since(now)),
            None => Wait::Forever,
        };
        self.enter(wait)
    }

    fn enter(&mut self, wait: Wait) -> io::Result<()> {
        let Self { engine, sleeper, desk, events, ending, counts, .. } = self;
        let mut wait = wait;
        if wait != Wait::Poll {
            // Commands and the end come with a wake-up of the engine, which is never lost.
            let draining = *ending != Ending::No;
            let idle = || draining || desk.clients.iter_mut().all(|client| client.bios.is_empty());
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

/// The first free place from `start` on, around the table.
fn free<T>(table: &[T], start: usize, is_free: impl Fn(&T) -> bool) -> Option<usize> {
    let all = table.len();
    (0..all).map(|offset| (start + offset) % all).find(|&index| is_free(&table[index]))
}

fn invalid(error: ChangeError) -> ConfigError {
    match error {
        ChangeError::Invalid(error) => error,
        ChangeError::Busy(why) => ConfigError::new("device", why),
    }
}
