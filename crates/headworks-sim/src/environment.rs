//! The environment of the shards: connections, messages in flight, and the checkers. The executor
//! accesses it as [`ActionSink`](headworks::driver::ActionSink).
//!
//! The first violation is kept and ends the run at the end of the step; nothing here panics on what
//! a shard does.

mod ends;
mod event;
mod flushes;
mod frames;
mod history;
mod limits;
mod links;
mod no_disk;
mod port;
mod progress;
mod waits;

use headworks_core::extent::extents;
use headworks_core::prng::Prng;
use headworks_core::time::MS;
use headworks_core::{
    Action, Actions, Bio, BioFlags, BioId, Control, CopyDirection, DeviceId, DeviceState,
    ExtentState, Input, Instant, IoError, Message, Notice, Op, ReplyStage, RequestId, Segment,
    ShardId, Status, Submit, VolumeId, WaitTimes,
};
use headworks_disks::EventQueue;

use crate::check::{check_status, violation};
use crate::connection::{BioStage, Connection};
use crate::coverage::{Coverage, Point};
use crate::frames::Frames;
use crate::lent::LentFrames;
use crate::limits::FrontLimits;
use crate::memory_space::MemorySpace;
use crate::operator::Operator;
use crate::oracle::{Oracle, Violation};
use crate::owed_errors::OwedErrors;
use crate::scenario::{Scenario, WorldDefect};
use crate::sector_pattern::POISON;
use crate::tenants::TenantEdits;

use flushes::Flushes;
use history::{History, HistoryEvent};
use links::Links;
use progress::Progress;

pub use event::Event;
pub use no_disk::NoDisk;
pub use port::ShardPort;

/// The rule that a lost write-back error violates.
pub const ERROR_REPORTED: &str = "a write-back error fails the next flush of every connection";

const DATA_STABLE: &str = "data of a command in flight are stable";

/// What the clients of a device know of it.
#[derive(Clone, Copy, Debug, Default)]
struct DeviceView {
    /// Bios in flight.
    outstanding: u32,
    /// Until when bios may fail because it does not answer: other shards are told of its answer later.
    stuck_until: Instant,
}

/// Everything outside the shards of a simulated world.
pub struct Environment {
    /// The scenario, with current sizes.
    pub scenario: Scenario,
    /// The current virtual time.
    pub now: Instant,
    /// Pending events in order of time.
    pub events: EventQueue<Event>,
    /// When each shard wants `Input::Timer`.
    pub timers: Vec<Option<Instant>>,
    /// The connections of the jobs, then one reader for each volume.
    pub connections: Vec<Connection>,
    /// Connections that may submit at once.
    pub ready: Vec<u32>,
    /// Possible contents of each sector.
    pub oracle: Oracle,
    /// Write-back errors owed to connections.
    pub owed_errors: OwedErrors,
    /// The caches' frame pools.
    pub frames: Frames,
    /// The space of the frames, where their filesystem may refuse it.
    pub memory: Option<MemorySpace>,
    /// Reads without a buffer: the frames of answered ones, and those that the shards returned.
    pub lent: LentFrames,
    /// The flushes of each volume.
    pub flushes: Flushes,
    /// How far the world has come.
    pub progress: Progress,
    /// Changes tunables under load.
    pub operator: Operator,
    /// Changes of exports and tenants.
    pub tenants: TenantEdits,
    /// Limits in front of the shards.
    pub limits: FrontLimits,
    /// Coverage points passed so far.
    pub coverage: Coverage,
    /// The first violated rule.
    pub broken: Option<Violation>,
    /// Whether connections submit nothing: an upgrade is in progress.
    pub paused: bool,
    /// Whether faults are injected at present.
    pub faulty: bool,
    /// What is known of each device.
    device_states: Vec<DeviceView>,
    links: Links,
    delays: Prng,
    history: History,
}

impl Environment {
    /// The idle environment of the shards of `scenario`.
    #[must_use]
    pub fn new(scenario: Scenario, connections: Vec<Connection>) -> Self {
        let contracts = match scenario.checked {
            true => scenario.contracts(),
            false => Vec::new(),
        };
        let shards = usize::from(scenario.shards);
        let mut oracle = Oracle::new(&contracts);
        for volume in scenario.layered().filter(|_| scenario.checked) {
            let size = scenario.volumes[usize::from(volume.0)].options.size;
            oracle.preset(volume.0, size, |sector| scenario.initial(volume, sector));
        }
        Self {
            now: Instant(0),
            events: EventQueue::with_capacity(4096),
            timers: vec![None; shards],
            ready: Vec::with_capacity(connections.len()),
            owed_errors: OwedErrors::new(connections.len()),
            oracle,
            frames: Frames::new(scenario.shards, scenario.cache.units),
            memory: MemorySpace::of(&scenario),
            lent: LentFrames::default(),
            flushes: Flushes::new(scenario.volumes.len()),
            progress: Progress::default(),
            tenants: TenantEdits::new(scenario.seed, scenario.tenants),
            limits: FrontLimits::new(
                scenario.seed,
                scenario.limits,
                &scenario.tenants,
                shards,
                connections.len(),
            ),
            operator: Operator::new(scenario.seed, scenario.devices.len(), scenario.cache.is_on()),
            coverage: Coverage::default(),
            broken: None,
            paused: false,
            faulty: true,
            device_states: vec![DeviceView::default(); scenario.devices.len()],
            links: Links::new(scenario.shards),
            delays: Prng::new(scenario.seed).split("delays"),
            history: History::new(scenario.checked),
            connections,
            scenario,
        }
    }

    /// Records a violation if it is the first.
    pub fn fail(&mut self, violation: Violation) {
        self.broken.get_or_insert(violation);
    }

    /// Whether a bio is in flight or still to be submitted, or a tunable change is outstanding.
    #[must_use]
    pub fn has_waiters(&self) -> bool {
        let open = |connection: &Connection| !connection.is_done();
        self.connections.iter().any(open) || self.operator.unanswered() > 0
    }

    /// Submits the bios of a connection into the `inbox` of its shard, at most `room` of them.
    pub fn issue(&mut self, connection: u32, mut room: usize, inbox: &mut Vec<Input>) {
        let index = self.index(connection);
        self.connections[index].scheduled = false;
        let batch = self.connections[index].job.next_batch();
        for _ in 0..batch {
            if !self.connections[index].can_submit() {
                return;
            }
            if room == 0 || self.paused {
                self.connections[index].starved = true;
                return;
            }
            let bio = self.submit(index);
            if let Some(bio) = self.admit(index, bio) {
                room -= 1;
                inbox.push(Input::Bio(self.perhaps_without_buffer(bio)));
            }
            if self.connections[index].closes() {
                self.close(index, inbox);
                break;
            }
        }
        self.schedule(index);
    }

    /// The index of a connection; a reopened one has another id at the same index.
    #[must_use]
    pub fn index(&self, connection: u32) -> usize {
        connection as usize % self.connections.len()
    }

    /// Closes a connection with its bios in flight, and reopens it.
    pub fn close(&mut self, index: usize, inbox: &mut Vec<Input>) {
        let old = self.connections[index].id;
        let released = self.release(index, inbox);
        self.coverage.add(Point::LimitClosed, (released > 0).into());
        inbox.push(Input::Close { connection: old });
        self.coverage.hit(Point::Close);
        if self.connections[index].in_flight() > 1 {
            self.coverage.hit(Point::CloseBusy);
        }
        let id = BioId { connection: old, ..BioId::default() };
        let volume = self.connections[index].job.options.volume;
        self.history.log(
            self.now,
            Bio { id: BioId { volume, ..id }, ..Bio::default() },
            HistoryEvent::Closed,
        );
        let again = old + self.connections.len() as u32;
        self.connections[index].reopen(again);
        self.owed_errors.on_close(index);
    }

    fn submit(&mut self, index: usize) -> Bio {
        self.progress.made(self.now);
        let (bio, slot, malformed) = self.connections[index].submit(self.now);
        let device = self.scenario.volumes[usize::from(bio.id.volume.0)].device;
        let outstanding = &mut self.device_states[usize::from(device.0)].outstanding;
        *outstanding += 1;
        if !self.scenario.checked {
            return bio;
        }
        let tags = self.scenario.devices[usize::from(device.0)].config.queue.nr_requests;
        if *outstanding > tags {
            self.coverage.hit(Point::RequestWaited);
        }
        let connection = &mut self.connections[index];
        if bio.op.buffer_len(bio.len) > 0 && !connection.buffers.take(slot) {
            self.broken.get_or_insert(violation(
                "a released buffer is not written",
                format!("the buffer of {:?} was written to while it was free", bio.id),
            ));
        }
        let refused = malformed || self.is_read_only(&bio);
        let connection = &mut self.connections[index];
        let bytes = connection.buffers.bytes_mut(slot, Connection::data_len(&bio));
        if matches!(bio.op, Op::Read | Op::BlockStatus) {
            bytes.fill(POISON);
        }
        if !refused {
            connection.slots[slot].ticket = self.oracle.submit(&bio, bytes);
        }
        self.history.log(self.now, bio, HistoryEvent::Submitted);
        self.cover_bio(&bio, malformed);
        bio
    }

    fn is_read_only(&self, bio: &Bio) -> bool {
        let volume = &self.scenario.volumes[usize::from(bio.id.volume.0)];
        volume.options.read_only && bio.op.is_write()
    }

    fn cover_bio(&mut self, bio: &Bio, malformed: bool) {
        let point = match bio.op {
            _ if malformed => Point::Invalid,
            _ if self.is_read_only(bio) => Point::ReadOnly,
            Op::Read => Point::Read,
            Op::Write if bio.flags.contains(BioFlags::FUA) => Point::WriteFua,
            Op::Write => Point::Write,
            Op::Flush => Point::Flush,
            Op::Prefetch => Point::Prefetch,
            Op::BlockStatus => Point::BlockStatus,
            Op::Discard => Point::Discard,
            Op::WriteZeroes if bio.flags.contains(BioFlags::FAST_ZERO) => Point::WriteZeroesFast,
            Op::WriteZeroes => Point::WriteZeroes,
        };
        self.coverage.hit(point);
    }

    /// Replaces a volume by a new one of zeros, or of what its base has.
    pub fn replace(&mut self, volume: VolumeId, size: u64) {
        self.oracle.replace(volume.0);
        if self.scenario.base(volume).is_some() {
            let scenario = &self.scenario;
            self.oracle.preset(volume.0, size, |sector| scenario.initial(volume, sector));
        }
        self.flushes.replace(volume);
        self.owed_errors.on_replaced(volume);
        for index in 0..self.connections.len() {
            if self.connections[index].job.options.volume == volume {
                self.owed_errors.on_close(index);
            }
        }
    }

    /// Changes the size of a volume before its shard is informed; returns whether bios beyond the
    /// end are in flight.
    pub fn resize(&mut self, volume: VolumeId, size: u64) -> bool {
        let options = &mut self.scenario.volumes[usize::from(volume.0)].options;
        let old = std::mem::replace(&mut options.size, size);
        if size < old && self.scenario.checked {
            self.oracle.cut_off(volume.0, size, old);
        }
        self.fit(volume, old, size)
    }

    /// Adapts jobs to the new size; returns whether bios in flight lie beyond the end.
    pub fn fit(&mut self, volume: VolumeId, old: u64, size: u64) -> bool {
        let mut busy = false;
        for connection in &mut self.connections {
            if connection.job.options.volume != volume {
                continue;
            }
            connection.job.fit(old, size);
            for flight in connection.slots.iter_mut().filter(|f| f.stage != BioStage::Free) {
                flight.is_cut_off |= !flight.malformed && flight.bio.end() > size;
                busy |= flight.is_cut_off;
            }
        }
        busy
    }

    /// Schedules the next submission of a connection, now or after its pause.
    pub fn schedule(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        if connection.scheduled || connection.starved || !connection.can_submit() {
            return;
        }
        connection.scheduled = true;
        let (id, pause) = (connection.id, connection.job.next_pause_ns());
        if pause == 0 {
            self.ready.push(id);
        } else {
            let issue = Event::Issue { connection: id };
            self.events.push(self.now.after(pause), issue);
        }
    }

    /// Schedules the first submission of all connections.
    pub fn start(&mut self) {
        (0..self.connections.len()).for_each(|index| self.schedule(index));
    }

    /// Resumes the connections that found no room on `shard`.
    pub fn resume_starved(&mut self, shard: ShardId) {
        if self.limits.found_room(usize::from(shard.0)) {
            self.events.push(self.now, Event::Limits { shard });
        }
        for index in 0..self.connections.len() {
            let connection = &mut self.connections[index];
            if connection.starved && connection.home == shard {
                connection.starved = false;
                connection.scheduled = true;
                self.ready.push(connection.id);
            }
        }
    }

    /// Delivers a message to shard `to`.
    pub fn receive_message(&mut self, from: ShardId, to: ShardId, message: Message) -> Input {
        self.progress.message(self.now);
        if let Message::Bio { bio, .. } = message {
            if bio.id.unit().is_some() {
                return Input::Message { from, message };
            }
            let index = self.index(bio.id.connection);
            let connection = &mut self.connections[index];
            match connection.slot(bio.id) {
                Some(slot) => connection.slots[slot].holder = Some(to),
                None => self.fail(violation(
                    "a message refers to a bio in flight",
                    format!("shard {} sent {:?}, which is not in flight", from.0, bio.id),
                )),
            }
        }
        Input::Message { from, message }
    }

    /// The operator's acknowledgement of failed data.
    pub fn acknowledge(&mut self, volume: VolumeId) -> Input {
        self.flushes.acknowledge(volume);
        self.coverage.hit(Point::ControlAcknowledge);
        Input::Control(Control::Acknowledge { volume })
    }

    /// Checks the actions of a turn and counts them as coverage.
    pub fn cover_actions(&mut self, shard: ShardId, actions: &Actions) {
        for action in &actions.list {
            self.check_space(shard, action, actions);
            self.cover_frames(shard, action, actions);
            let Action::Submit(submit) = action else {
                continue;
            };
            let segments = actions.segments_of(submit);
            let Some(first) = segments.first() else {
                continue;
            };
            if segments.iter().any(|segment| segment.bio != first.bio) {
                self.coverage.hit(Point::RequestMerged);
            }
            let connection = &self.connections[self.index(first.bio.connection)];
            let split = connection.slot(first.bio).is_some_and(|slot| {
                submit.op.has_data()
                    && first.offset == 0
                    && first.len < connection.slots[slot].bio.len
            });
            if split {
                self.coverage.hit(Point::RequestSplit);
            }
        }
    }

    /// Checks and counts an action on frames.
    fn cover_frames(&mut self, shard: ShardId, action: &Action, actions: &Actions) {
        let point = match action {
            Action::Copy { direction: CopyDirection::ToPool, .. } => Point::CopyIn,
            Action::Copy { direction: CopyDirection::ToBuffer, .. } => Point::CopyOut,
            Action::Zero { .. } => Point::ZeroFrames,
            Action::Release { .. } => Point::ReleaseFrames,
            Action::Data { .. } => return self.coverage.hit(Point::StatusFromCache),
            Action::Move { .. } => Point::MoveFrames,
            Action::Submit(submit) => return self.cover_submit(submit, actions),
            _ => return,
        };
        self.coverage.hit(point);
        if let Err(wrong) = self.frames.check_access(shard.0, action) {
            self.fail(violation(DATA_STABLE, wrong));
        }
    }

    fn cover_submit(&mut self, submit: &Submit, actions: &Actions) {
        let segments = actions.segments_of(submit);
        let volumes = &self.scenario.volumes;
        let home = |segment: &Segment| volumes[usize::from(segment.bio.volume.0)].home.0;
        let submitted = self.frames.submit(submit, segments, home);
        let remote = self.scenario.devices[usize::from(submit.device.0)].config.owner
            != volumes[usize::from(submit.volume.0)].home;
        if let Err(wrong) = submitted {
            self.fail(violation(DATA_STABLE, wrong));
        }
        let Some(first) = segments.first().filter(|first| first.bio.unit().is_some()) else {
            return;
        };
        self.coverage.hit(match submit.op {
            Op::Read => Point::Fill,
            _ if submit.flags.contains(BioFlags::FUA) => Point::WriteOutFua,
            _ => Point::WriteOut,
        });
        if remote {
            self.coverage.hit(Point::CacheRemote);
        }
        let Submit { offset, len, op, flags, .. } = *submit;
        let bio = Bio { id: first.bio, offset, len, op, flags, ..Bio::default() };
        self.history.log(self.now, bio, HistoryEvent::Sent(submit.id));
    }

    /// Ends a command, as its completion is delivered to the shard.
    pub fn complete(&mut self, device: DeviceId, id: RequestId, status: Status) {
        self.progress.message(self.now);
        if let Some((volume, offset, len)) = self.frames.place(device, id) {
            let id_of = BioId { volume, ..BioId::default() };
            let bio = Bio { id: id_of, offset, len, ..Bio::default() };
            self.history.log(self.now, bio, HistoryEvent::Came(id, status));
            let failed = status.is_err_and(|error| error != IoError::Busy);
            if failed && self.has_own_writer_entries() && self.frames.is_writeout(device, id) {
                self.owed_errors.on_command_failed(volume, offset, len.into());
            }
        }
        if let Err(wrong) = self.frames.complete(device, id) {
            self.fail(violation(DATA_STABLE, wrong));
        }
    }

    /// Whether each connection has an entry of its own in the cache's writer table: connections
    /// that share an entry share its errors.
    fn has_own_writer_entries(&self) -> bool {
        self.scenario.cache.writers_max as usize >= self.connections.len()
    }

    /// Processes the failed ranges that a shard's cache holds after a turn.
    pub fn record_failures(&mut self, volume: VolumeId, held: &[(u64, u64, IoError)]) {
        if !self.owed_errors.is_recorded(volume, held) || self.scenario.is_unsafe(volume) {
            return;
        }
        for (place, connection) in self.connections.iter().enumerate() {
            if connection.job.options.volume == volume {
                self.owed_errors.owe(place, self.progress.turn());
            }
        }
    }

    /// Checks the answer to a bio against the errors owed to its connection.
    fn check_owed_error(&mut self, place: usize, bio: &Bio, status: Status) {
        // Errors owed to a closed connection are void.
        if bio.id.connection != self.connections[place].id {
            return;
        }
        match (bio.op, status) {
            (Op::Flush, Err(_)) => {
                let owed = self.owed_errors.on_failure(place, self.progress.turn());
                self.coverage.add(Point::OwedErrorReported, owed.into());
            }
            (Op::Flush, Ok(())) if self.owed_errors.is_owed(place) => {
                let detail = format!("{bio:?} succeeded although its connection is owed an error");
                self.fail(violation(ERROR_REPORTED, detail));
            }
            (Op::Flush, Ok(())) => self.owed_errors.on_success(place, self.progress.turn()),
            (Op::Write, Ok(())) if !bio.flags.contains(BioFlags::DIRECT) => {
                self.owed_errors.on_success(place, self.progress.turn());
            }
            _ => {}
        }
    }

    /// The injected defect of a frontend that reuses buffers too early.
    pub fn reuse_buffers(&mut self, actions: &Actions) {
        for action in &actions.list {
            let Action::Submit(submit) = action else {
                continue;
            };
            if submit.op != Op::Write {
                continue;
            }
            for segment in actions.segments_of(submit) {
                let index = self.index(segment.bio.connection);
                let connection = &mut self.connections[index];
                if let Some(slot) = connection.slot(segment.bio) {
                    let (start, end) = (segment.offset, segment.offset + segment.len);
                    let bytes = connection.buffers.bytes_mut(slot, end as usize);
                    bytes[start as usize..].fill(POISON);
                }
            }
        }
    }

    fn reply(&mut self, id: BioId, status: Status, hole: bool, stage: ReplyStage, _: WaitTimes) {
        const ONCE: &str = "every bio is answered exactly once";
        self.progress.made(self.now);
        let index = self.index(id.connection);
        let slot = self.connections.get(index).and_then(|c| c.slot(id));
        let Some(slot) = slot else {
            let detail = format!("{stage:?} {status:?} for {id:?}, which is not in flight");
            return self.fail(violation(ONCE, detail));
        };
        let flight = self.connections[index].slots[slot];
        if id.volume != flight.bio.id.volume {
            let shares = matches!(flight.bio.op, Op::Read | Op::Prefetch);
            if !shares || !self.scenario.is_below(id.volume, flight.bio.id.volume) {
                let detail = format!("{:?} was answered as {id:?}", flight.bio);
                return self.fail(violation("only reads go on, at a base of their volume", detail));
            }
            self.coverage.hit(Point::LayerRead);
        }
        let id = flight.bio.id;
        if self.connections[index].answer(slot, stage).is_none() {
            let detail = format!("{stage:?} {status:?} for {id:?}, which is {:?}", flight.stage);
            return self.fail(violation(ONCE, detail));
        }
        self.progress.count_answer(stage);
        if stage != ReplyStage::Early {
            let device = self.scenario.volumes[usize::from(id.volume.0)].device;
            let outstanding = &mut self.device_states[usize::from(device.0)].outstanding;
            assert!(*outstanding > 0, "a bio in flight is counted");
            *outstanding -= 1;
        }
        if self.scenario.checked {
            self.history.log(self.now, flight.bio, HistoryEvent::Answered(status, stage));
            self.cover_reply(status, hole, stage);
            if let Err(violation) = self.check_reply(index, slot, status, hole, stage) {
                self.fail(violation);
            }
            if stage != ReplyStage::Released {
                self.connections[index].count_answer(self.now);
                if let Err(violation) = self.check_wait(&flight.bio, flight.since) {
                    self.fail(violation);
                }
                self.check_owed_error(index, &flight.bio, status);
            }
            if flight.bio.op == Op::Flush && stage != ReplyStage::Released {
                self.on_flushed(&flight.bio, status);
            }
            if stage != ReplyStage::Early {
                self.connections[index].poison(slot);
            }
        }
        self.schedule(index);
    }

    /// After a failed flush of a cached volume the operator sometimes acknowledges the failed data.
    fn on_flushed(&mut self, bio: &Bio, status: Status) {
        let volume = bio.id.volume;
        self.flushes.ended(volume, status);
        if status.is_ok()
            || !self.scenario.is_cached(volume)
            || self.flushes.is_acknowledging(volume)
        {
            return;
        }
        self.coverage.hit(Point::FlushFailed);
        if self.faulty && self.delays.below(4) == 0 {
            self.schedule_acknowledge(volume);
        }
    }

    /// Marks a range of failed data as discarded.
    pub fn discard_failed(&mut self, volume: VolumeId, offset: u64, len: u64) {
        self.coverage.hit(Point::FailedDiscarded);
        let size = self.scenario.volumes[usize::from(volume.0)].options.size;
        let end = size.min(offset + len);
        if offset < end {
            self.oracle.discard_failed(volume.0, offset, end - offset);
        }
    }

    /// Schedules the operator's acknowledgement of failed data on `volume`.
    pub fn schedule_acknowledge(&mut self, volume: VolumeId) {
        self.flushes.begin_acknowledge(volume);
        let after = self.delays.between(100_000, 20_000_000);
        let acknowledge = Event::Acknowledge { volume };
        self.events.push(self.now.after(after), acknowledge);
    }

    fn check_reply(
        &mut self,
        index: usize,
        slot: usize,
        status: Status,
        hole: bool,
        stage: ReplyStage,
    ) -> Result<(), Violation> {
        let connection = &self.connections[index];
        let flight = connection.slots[slot];
        let bio = flight.bio;
        let is_cut_off = flight.is_cut_off
            && matches!(status, Err(IoError::Invalid | IoError::NoSpace))
            && bio.op != Op::Flush;
        let is_beyond_room = flight.was_released && status == Err(IoError::NoMemory);
        if stage != ReplyStage::Released && !is_cut_off && !is_beyond_room {
            let overdue = self.is_overdue(&bio, flight.since);
            check_status(&self.scenario, &bio, flight.malformed, self.faulty, status, overdue)
                .map_err(|violation| violation.after(self.now.since(flight.since)))?;
            if !self.scenario.is_unsafe(bio.id.volume) {
                self.flushes.check(&bio, flight.ticket.start, status)?;
            }
        }
        if hole && !(bio.op == Op::Read && bio.flags.contains(BioFlags::HOLE_OK)) {
            return Err(violation(
                "only a read with HOLE_OK is answered without data",
                format!("{bio:?} was answered with a hole"),
            ));
        }
        if flight.malformed || self.is_read_only(&bio) {
            return Ok(());
        }
        let bytes = connection.buffers.bytes(slot, Connection::data_len(&bio));
        if bio.op == Op::BlockStatus && status.is_ok() && stage == ReplyStage::Final {
            for extent in extents(bytes, bio.len) {
                self.coverage.hit(match extent.state.contains(ExtentState::ZERO) {
                    true => Point::StatusZeros,
                    false => Point::StatusData,
                });
            }
        }
        self.oracle.answer(&bio, flight.ticket, status, hole, stage, bytes)
    }

    fn cover_reply(&mut self, status: Status, hole: bool, stage: ReplyStage) {
        self.coverage.hit(match stage {
            ReplyStage::Final => Point::StageFinal,
            ReplyStage::Early => Point::StageEarly,
            ReplyStage::Released => Point::StageReleased,
        });
        let point = match status {
            Ok(()) if hole => Point::Hole,
            Err(IoError::Medium) => Point::ErrorMedium,
            Err(IoError::NoSpace) => Point::ErrorNoSpace,
            Err(IoError::TimedOut) => Point::ErrorTimedOut,
            Err(IoError::Unsupported) => Point::ErrorUnsupported,
            _ => return,
        };
        self.coverage.hit(point);
    }

    fn send(&mut self, from: ShardId, to: ShardId, message: Message) {
        let point = match message {
            Message::Bio { .. } => Point::MessageBio,
            Message::Done { .. } => Point::MessageDone,
            Message::TagWant { .. } => Point::MessageTagWant,
            Message::Limits { .. } => Point::MessageLimits,
            Message::Caching { .. } => Point::MessageCaching,
            Message::TagGrant { .. } => Point::MessageTagGrant,
            Message::TagRevoke { .. } => Point::MessageTagRevoke,
            Message::TagReturn { .. } => Point::MessageTagReturn,
            Message::DeviceState { .. } => Point::MessageDeviceState,
        };
        self.coverage.hit(point);
        if point == Point::MessageTagGrant
            && self.scenario.defect == WorldDefect::LosesGrants
            && self.delays.below(4) == 0
        {
            return;
        }
        let delay = 100 + self.delays.below(self.scenario.message_delay_ns);
        let at = self.links.arrival(from, to, self.now.after(delay));
        self.events.push(at, Event::Deliver { from, to, message });
    }

    fn notice(&mut self, notice: Notice) {
        match notice {
            Notice::Suspect { volume, .. } => {
                self.coverage.hit(Point::NoticeSuspect);
                self.flushes.suspect(volume, self.oracle.tick());
                self.schedule_acknowledge(volume);
            }
            Notice::TimedOut { .. } => self.coverage.hit(Point::NoticeTimedOut),
            Notice::ShortRead { .. } => self.coverage.hit(Point::NoticeShortRead),
            Notice::DeviceState { device, state } => {
                let stuck = state == DeviceState::Stuck;
                let until = if stuck { Instant(u64::MAX) } else { self.now.after(MS) };
                self.device_states[usize::from(device.0)].stuck_until = until;
                self.coverage.hit(if stuck { Point::NoticeStuck } else { Point::NoticeLive });
            }
            Notice::UnknownCompletion { .. } => self.progress.count_unknown_completion(),
            Notice::Set { token, status } => self.on_option_answered(token, status),
        }
    }

    fn on_option_answered(&mut self, token: u32, status: Status) {
        self.coverage.hit(match status {
            Ok(()) => Point::TunableChanged,
            Err(_) => Point::TunableRejected,
        });
        match self.operator.on_answer(token, status) {
            Ok((device, after)) => {
                self.events.push(self.now.after(after), Event::Switch { device });
            }
            Err(wrong) => self.fail(violation("a control change gets the right answer", wrong)),
        }
    }

    /// The history of the sector `place`, or the last events of the run; oldest first.
    #[must_use]
    pub fn history(&self, place: Option<(u16, u64)>) -> Vec<String> {
        self.history.lines(place)
    }

    /// The state of all busy connections, for people.
    #[must_use]
    pub fn state(&self) -> String {
        let mut text = String::new();
        for connection in self.connections.iter().filter(|c| c.in_flight() > 0) {
            text += &format!(
                "  connection {} on shard {}: {} in flight, {} to come{}\n",
                connection.id,
                connection.home.0,
                connection.in_flight(),
                connection.job.left,
                if connection.starved { ", no free bio slot" } else { "" }
            );
            let flights = connection.slots.iter();
            for flight in flights.filter(|f| f.stage != Default::default()).take(4) {
                let Bio { op, offset, len, .. } = flight.bio;
                let id = flight.bio.id.sequence;
                text += &format!("    {id:#x} {op:?} {offset}+{len} {:?}\n", flight.stage);
            }
        }
        text
    }
}
