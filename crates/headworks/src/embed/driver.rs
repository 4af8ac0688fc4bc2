//! The shard with all that its driver needs: rings in, shard and executor between, rings out.
//!
//! ```text
//!   turn: events, bios, timers --> shard --> executor --> replies
//! ```
//!
//! It is called by the thread that has the right to drive, the owner's (`thread.rs`) or a feeder's (`driving.rs`). What comes out
//! depends on the order of the inputs and their times, not on the thread.
//!
//! Invariant: `desk.flushing` is the number of own flushes without a reply.

use std::sync::Arc;

use headworks_core::limits::{ClientSetting, ParkedBios};
use headworks_core::{
    Bio, BioFlags, BioId, Change, ChangeError, ConfigError, DeviceConfig, DeviceId, ExportConfig,
    Input, Instant, IoError, Message, Notice, Op, QueueOptions, ReplyStage, Shard, ShardConfig,
    ShardId, SpareSlots, Status, VolumeConfig, VolumeId, VolumeOptions, WaitTimes, WriteMode,
};

use super::handle::RingCounts;
use super::left_operations::LeftOperations;
use super::owner::OwnerReport;
use super::parker::Parker;
use super::removal::Removal;
use super::{Buffers, DeviceSetup, OwnerOptions, OwnerState, Reply};
use crate::device::{Device, Image};
use crate::engine::{DiskDone, DiskQueue, Event};
use crate::executor::{ActionSink, Executor, fetch_ahead};
use crate::memory::{Mapping, Populator, Span};
use crate::ring::{Consumer, Producer};

/// Bios taken from one ring in a turn: what a plug holds.
pub(super) const BIOS_MAX: usize = 32;
/// Bios after which a turn takes from no further ring. More would not merge; they would only evict the shard's state from the
/// nearest cache and deepen the elevator's index (16 feeders, mq-deadline: 4.4 M/s without the limit, 5.3 with it).
const TURN_BIOS: usize = 32;
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

    /// The handle was dropped, and the shard was not told.
    fn is_leaving(&self) -> bool {
        !self.closed && self.parker.is_closed()
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
// mappings of their own, which live as long as the driver, and are leaked with it if a device may still use them. For other memory
// the caller of `Handle::put_with` has promised the same.
unsafe impl ActionSink for Desk {
    #[inline]
    fn buffer(&mut self, bio: BioId) -> Span {
        if let Some(unit) = bio.unit() {
            return self.frames().frames_from(unit);
        }
        self.clients[bio.connection as usize].buffers.data[bio.sequence as usize].get()
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
pub(super) struct Volume {
    pub(super) device: DeviceId,
    pub(super) size: u64,
    /// The cache may hold dirty data of it.
    pub(super) cached: bool,
}

/// Shard, executor and rings.
pub(super) struct Driver {
    pub(super) shard: Shard,
    pub(super) executor: Executor,
    state: Arc<OwnerState>,
    desk: Desk,
    devices: Vec<bool>,
    pub(super) volumes: Vec<Option<Volume>>,
    /// The ids that are tried first for the next device and volume, so that an id is reused as late as possible.
    next: (usize, usize),
    slot_bytes: usize,
    pub(super) removals: Vec<Removal>,
    limited: ParkedBios,
    /// The shard was changed and has to be called once, also without inputs.
    pub(super) changed: bool,
    /// Handles that were closed when the shard was last told.
    closed_seen: usize,
    pub(super) inputs: Vec<Input>,
    batch: Vec<Input>,
    pub(super) counts: DriverCounts,
    /// The client whose ring is read first.
    first: usize,
    /// The handle of the feeder that drives, if its thread is known not to sleep.
    pub(super) awake: Option<u32>,
    /// The handle whose thread drove last, and since when it has without another.
    pub(super) holder: (Option<u32>, Instant),
    /// When a feeder last read every ring.
    pub(super) others_read: Instant,
    /// File operations of the turns of feeders.
    pub(super) left: LeftOperations,
    /// When the owner's thread wakes by itself; what is left from before while it is awake.
    pub(super) owner_wakes_at: Instant,
}

/// What its driving cost.
#[derive(Default)]
pub(super) struct DriverCounts {
    pub rings: RingCounts,
    /// Calls of the shard.
    pub turns: u64,
    /// Those of `turns` on a feeder's thread.
    pub feeder_turns: u64,
    /// Times that a feeder left batches of others to another driver.
    pub hand_overs: u64,
}

impl Driver {
    pub fn new(
        options: &OwnerOptions,
        clients: Vec<Client>,
        state: Arc<OwnerState>,
        disk_depth: usize,
    ) -> Result<Self, ConfigError> {
        let slots = options.handles * options.depth as usize;
        // An own flush for each volume.
        let bios_max = slots + usize::from(options.volumes_max);
        let queue = QueueOptions::default();
        let mut config = ShardConfig::single(queue, VolumeOptions::default(), bios_max as u32);
        (config.devices, config.volumes) = (Vec::new(), Vec::new());
        config.exports = vec![ExportConfig::default(); options.handles];
        (config.cache, config.dirty) = (options.cache, options.dirty);
        config.spare = SpareSlots {
            devices: options.devices_max,
            volumes: options.volumes_max,
            exports: 0,
            tags: options.tags_max,
        };
        let shard = Shard::new(config)?;
        Mapping::tables_in_huge_pages(shard.cache_tables());
        let to_publish = Vec::with_capacity(clients.len());
        Ok(Self {
            shard,
            executor: Executor::new(Vec::new()),
            state,
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
            limited: ParkedBios::new(options.handles),
            changed: false,
            closed_seen: 0,
            inputs: Vec::with_capacity(2 * slots + 16),
            batch: Vec::with_capacity(2 * slots + 16),
            counts: DriverCounts::default(),
            first: 0,
            awake: None,
            holder: (None, Instant(0)),
            others_read: Instant(0),
            left: LeftOperations::new(disk_depth),
            owner_wakes_at: Instant(0),
        })
    }

    pub fn report(&mut self) -> OwnerReport {
        let ids = (0..self.volumes.len()).filter(|&index| self.volumes[index].is_some());
        let ids = ids.map(|index| VolumeId(index as u16));
        OwnerReport {
            volumes: ids
                .map(|id| (id, self.shard.stats(id).cloned().unwrap_or_default()))
                .collect(),
            turns: self.counts.turns,
            feeder_turns: self.counts.feeder_turns,
            hand_overs: self.counts.hand_overs,
            counts: self.counts.rings,
            notices: std::mem::take(&mut self.desk.notices),
            flush_errors: std::mem::take(&mut self.desk.flushed)
                .into_iter()
                .filter_map(|(volume, status)| status.err().map(|error| (volume, error)))
                .collect(),
        }
    }

    /// Begins the end: a last look at the rings; bios that are pushed later are not completed. Nothing waits for a limit any more.
    pub fn begin_drain(&mut self, now: Instant) {
        let first = self.inputs.len();
        let Self { desk, inputs, .. } = self;
        for client in &mut desk.clients {
            client.bios.pop_each(usize::MAX, |bio| inputs.push(Input::Bio(bio)));
        }
        let Self { limited, inputs, desk, .. } = self;
        limited.release(now, |_| true, inputs);
        *limited = ParkedBios::new(desk.clients.len());
        self.reject_removed(first);
        self.desk.flushed.clear();
        self.removals.clear();
    }

    /// Flushes what the cache may hold.
    pub fn send_flushes(&mut self) {
        for index in 0..self.volumes.len() {
            if self.volumes[index].is_some_and(|volume| volume.cached) {
                self.send_flush(VolumeId(index as u16));
            }
        }
    }

    /// Returns true if no bio, own flush or frame is in flight.
    pub fn is_drained(&self) -> bool {
        self.shard.is_idle() && self.desk.flushing == 0 && self.frames_are_home()
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

    /// Changes the shard, between two calls of it.
    pub(super) fn change(&mut self, now: Instant, change: &Change) -> Result<(), ChangeError> {
        self.shard.change(now, change)?;
        self.changed = true;
        Ok(())
    }

    pub fn add_device(
        &mut self,
        now: Instant,
        setup: DeviceSetup,
    ) -> Result<DeviceId, ConfigError> {
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

    pub fn add_volume(
        &mut self,
        now: Instant,
        device: DeviceId,
        options: VolumeOptions,
        image: Option<Box<dyn Image>>,
    ) -> Result<VolumeId, ConfigError> {
        let index = free(&self.volumes, self.next.1, Option::is_none)
            .ok_or_else(|| ConfigError::new("volumes_max", "the owner has no room for a volume"))?;
        let id = VolumeId(index as u16);
        if options.block_size as usize > self.slot_bytes {
            let (block, slot) = (options.block_size, self.slot_bytes);
            let message = format!("{slot} bytes are less than the volume's block of {block}");
            return Err(ConfigError::new("slot_bytes", message));
        }
        let is_image = image.is_some();
        if let Some(image) = image {
            let body = self.executor.device(device);
            let body = body.ok_or_else(|| ConfigError::new("device", "there is no such device"))?;
            body.attach(id, image).map_err(|_| {
                ConfigError::new("device", "the device holds no images of this kind")
            })?;
        }
        let config = VolumeConfig { home: ShardId(0), device, options };
        if let Err(error) = self.change(now, &Change::AddVolume { volume: id, config }) {
            if is_image && let Some(body) = self.executor.device(device) {
                drop(body.detach(id));
            }
            return Err(invalid(error));
        }
        let cached = self.desk.frames.is_some() && options.mode != WriteMode::None;
        let volume = Volume { device, size: options.size, cached };
        (self.volumes[index], self.next.1) = (Some(volume), index + 1);
        Ok(id)
    }

    /// Applies a setting of a handle, a tenant or the owner.
    pub fn apply(&mut self, now: Instant, setting: &ClientSetting) {
        self.limited.apply(now, setting, &mut self.inputs);
        // What waited for a limit may go on.
        self.changed = true;
    }

    /// Begins a removal: what waits for a limit is rejected like what comes.
    pub fn begin_removal(&mut self, now: Instant, removal: Removal) {
        let first = self.inputs.len();
        self.limited.release(now, |bio| removal.rejects(bio.id.volume), &mut self.inputs);
        self.removals.push(removal);
        self.reject_removed(first);
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
            drop(body.detach(volume));
        }
        Ok(())
    }

    /// Removes a device from the shard.
    pub(super) fn remove_device(
        &mut self,
        now: Instant,
        device: DeviceId,
    ) -> Result<Box<dyn Device>, ChangeError> {
        self.change(now, &Change::RemoveDevice { device })?;
        self.devices[usize::from(device.0)] = false;
        // By the list: the engine may still have to make earlier changes in it.
        let body = self.executor.take(device, &mut self.left);
        body.ok_or_else(|| ConfigError::new("device", "there is no such device").into())
    }

    /// Calls the shard with what there is, and carries out what it says, until there is nothing more; returns true if there was anything.
    /// File operations go to `disk`.
    pub fn run(&mut self, now: Instant, disk: &mut dyn DiskQueue) -> bool {
        self.take_timers(now, disk);
        if self.limited.in_use() {
            self.limited.hold(now, &mut self.inputs);
        }
        if !self.has_inputs() {
            return false;
        }
        let changed = std::mem::take(&mut self.changed);
        let Self { shard, executor, desk, inputs, batch, counts, .. } = self;
        if changed && !shard.actions().list.is_empty() {
            // Those of a look-up that lent frames.
            executor.run(now, shard.actions(), desk, disk, inputs);
            shard.clear_actions();
        }
        loop {
            std::mem::swap(inputs, batch);
            fetch_ahead(shard, batch, desk.frames());
            shard.handle(now, batch);
            batch.clear();
            counts.turns += 1;
            executor.run(now, shard.actions(), desk, disk, inputs);
            shard.clear_actions();
            if inputs.is_empty() {
                break;
            }
        }
        if let Some(losses) = executor.take_losses() {
            let suspect = |volume| Notice::Suspect { volume, status: Err(IoError::Medium) };
            losses.into_iter().for_each(|loss| desk.notice(suspect(loss.volume())));
        }
        self.publish_replies();
        true
    }

    /// Returns true if the shard is to be called.
    pub fn has_inputs(&self) -> bool {
        !self.inputs.is_empty() || self.changed || !self.desk.to_publish.is_empty()
    }

    /// Reads one ring; returns true if it was read to its end.
    pub fn take_bios_of(&mut self, client: u32) -> bool {
        let (client, inputs) = (&mut self.desk.clients[client as usize], &mut self.inputs);
        let first = inputs.len();
        let count = client.bios.pop_each(BIOS_MAX, |bio| inputs.push(Input::Bio(bio)));
        client.submitted |= count > 0;
        self.reject_removed(first);
        count < BIOS_MAX
    }

    /// Reads the rings in turn, from where the last turn ended, until there is enough; returns true if all were read to their ends.
    pub fn take_bios(&mut self) -> bool {
        let (clients, taken) = (&mut self.desk.clients, self.inputs.len());
        let all = clients.len();
        let mut read = 0;
        // At least one ring, so that a flood of completions does not keep bios out.
        while read < all && (read == 0 || self.inputs.len() < TURN_BIOS) {
            let client = &mut clients[self.first];
            self.first = if self.first + 1 == all { 0 } else { self.first + 1 };
            let inputs = &mut self.inputs;
            let count = client.bios.pop_each(BIOS_MAX, |bio| inputs.push(Input::Bio(bio)));
            client.submitted |= count > 0;
            read += 1;
        }
        self.reject_removed(taken);
        read == all && self.inputs.len() < TURN_BIOS
    }

    /// The frames of the cache.
    pub(super) fn frames(&self) -> Span {
        self.desk.frames()
    }

    /// Returns true if a volume is in removal.
    #[inline]
    pub(super) fn is_rejected(&self, volume: VolumeId) -> bool {
        self.removals.iter().any(|removal| removal.rejects(volume))
    }

    /// Completes the bios from input `first` on that are for volumes in removal.
    pub(super) fn reject_removed(&mut self, first: usize) {
        let Self { inputs, removals, desk, .. } = self;
        if removals.is_empty() {
            return;
        }
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

    /// Returns true if a feeder has replies, did not take them and submitted nothing since the last call.
    pub fn feeder_waits(&mut self) -> bool {
        let mut waits = false;
        for client in &mut self.desk.clients {
            waits |= !std::mem::take(&mut client.submitted) && !client.replies.is_empty();
        }
        waits
    }

    /// Takes the completions of file operations, and calls devices whose descriptors are ready; returns true if there were any.
    pub fn take_events(
        &mut self,
        now: Instant,
        events: &mut Vec<Event>,
        disk: &mut dyn DiskQueue,
    ) -> bool {
        let mut any = false;
        for event in events.drain(..) {
            match event {
                Event::Disk(done) => self.executor.on_disk(now, done, disk, &mut self.inputs),
                Event::Place { device, place } => {
                    self.executor.on_ready(now, (device, place), disk, &mut self.inputs);
                }
                Event::Ready { .. } | Event::Woken => continue,
            }
            any = true;
        }
        any
    }

    /// Gives the engine the file operations and watches that feeders left; returns true if there were any. What it refuses, the devices try again.
    pub fn start_left(&mut self, now: Instant, engine: &mut dyn DiskQueue) -> bool {
        if self.left.is_empty() {
            return false;
        }
        let Self { left, executor, inputs, .. } = self;
        left.give_watches(engine);
        left.take_each(|operation, spans| {
            // SAFETY: promised when it was pushed to the list, until its completion.
            if !unsafe { engine.push(operation, spans) } {
                let (device, id) = (operation.device, operation.id);
                let refused = DiskDone { device, id, result: -libc::EAGAIN };
                executor.on_disk(now, refused, engine, inputs);
            }
        });
        true
    }

    fn take_timers(&mut self, now: Instant, disk: &mut dyn DiskQueue) {
        if self.desk.timer.is_some_and(|at| at <= now) {
            self.desk.timer = None;
            self.inputs.push(Input::Timer);
        }
        if self.executor.next_timeout().is_some_and(|at| at <= now) {
            self.executor.on_timeout(now, disk, &mut self.inputs);
        }
    }

    /// The earliest time at which the shard or a device is to be called.
    pub fn next_timeout(&self) -> Option<Instant> {
        let times = [self.desk.timer, self.executor.next_timeout(), self.limited.next_timeout()];
        times.into_iter().flatten().min()
    }

    /// Returns true if every ring is empty.
    pub fn rings_are_empty(&mut self) -> bool {
        self.desk.clients.iter_mut().all(|client| client.bios.is_empty())
    }

    /// The number of handles, those that were dropped included.
    pub fn handles(&self) -> usize {
        self.desk.clients.len()
    }

    fn publish_replies(&mut self) {
        for index in self.desk.to_publish.drain(..) {
            let client = &mut self.desk.clients[index as usize];
            self.counts.rings.messages += std::mem::take(&mut client.unpublished);
            self.counts.rings.pushes += 1;
            // A feeder that drives does not sleep.
            let awake = self.awake == Some(index) && client.replies.publish_silent();
            if !awake && client.replies.publish() {
                self.counts.rings.wakes += 1;
                client.parker.wake();
            }
        }
    }

    /// Returns true if a device may have commands, of a feeder or of the cache.
    pub fn has_commands(&self) -> bool {
        !self.shard.is_idle() || !self.frames_are_home()
    }

    /// Returns true if no device has frames of the cache.
    fn frames_are_home(&self) -> bool {
        self.desk.frames.is_none() || self.shard.is_quiet()
    }

    /// Returns true if a handle was dropped and the shard is to be told soon: nothing of it waits for a limit, whose timer comes first.
    pub fn is_closing(&self) -> bool {
        let waits = |client: u32| !self.limited.is_empty_of(client);
        self.state.closed_handles() != self.closed_seen
            && (0..)
                .zip(&self.desk.clients)
                .any(|(index, client)| client.is_leaving() && !waits(index))
    }

    /// Tells the shard of handles that were dropped and of which nothing waits.
    pub fn close_handles(&mut self, now: Instant) {
        let closed = self.state.closed_handles();
        if closed == self.closed_seen {
            return;
        }
        for (index, client) in self.desk.clients.iter_mut().enumerate() {
            let is_empty = client.bios.is_empty() && self.limited.is_empty_of(index as u32);
            if client.is_leaving() && is_empty {
                client.closed = true;
                self.limited.forget(now, index as u32);
                self.closed_seen += 1;
                self.inputs.push(Input::Close { connection: index as u32 });
            }
        }
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
