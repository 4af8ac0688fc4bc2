//! Everything around the shards: connections, messages on their way, the checkers. The executor speaks to it as [`Outlet`].
//!
//! Whatever breaks a rule is kept (the first only) and ends the run at the end of the step; nothing here panics on what a
//! shard does.

use headworks::engine::{DiskOp, DiskQueue};
use headworks::executor::{Outlet, frames_of};
use headworks::memory::Span;
use headworks_core::extent::extents;
use headworks_core::prng::Prng;
use headworks_core::{
    Action, Actions, Bio, BioFlags, BioId, Control, CopyDirection, DeviceId, ExtentState, Input,
    Instant, IoError, Message, Notice, Op, ReplyStage, RequestId, Segment, ShardId, Status, Submit,
    VolumeId, WaitTimes,
};

use crate::check::{check_status, violation};
use crate::connection::{BioStage, Connection};
use crate::coverage::{Coverage, Point};
use crate::events::EventQueue;
use crate::frames::Frames;
use crate::operator::Operator;
use crate::oracle::{Oracle, Violation};
use crate::owed_errors::OwedErrors;
use crate::scenario::{Scenario, WorldDefect};
use crate::sector_pattern::{POISON, SECTOR};

/// HistoryEvent the heap holds.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A message arrives.
    Deliver {
        /// Who sent it.
        from: ShardId,
        /// Who gets it.
        to: ShardId,
        /// HistoryEvent.
        message: Message,
    },
    /// A connection submits.
    Issue {
        /// Which.
        connection: u32,
    },
    /// A volume is to leave, or its leaving or coming goes on.
    HotplugChange,
    /// The operator changes a queue.
    Switch {
        /// Whose.
        device: DeviceId,
    },
    /// The operator looks at a failed flush.
    Acknowledge {
        /// On which volume.
        volume: VolumeId,
    },
}

/// A line of history.
#[derive(Clone, Copy, Debug)]
struct HistoryEntry {
    now: Instant,
    bio: Bio,
    what: HistoryEvent,
}

#[derive(Clone, Copy, Debug)]
enum HistoryEvent {
    Submitted,
    Answered(Status, ReplyStage),
    /// A command of the cache's own.
    Sent(RequestId),
    Came(RequestId, Status),
    Closed,
}

/// How much history is kept; what is last_message of it at most.
const HISTORY: usize = 1 << 14;
const HISTORY_SHOWN: usize = 60;

/// HistoryEvent is broken when an error of write-out is kept from somebody.
pub const ERROR_REPORTED: &str = "an error of write-out fails the next flush of every connection";

const DATA_STABLE: &str = "bytes on their way do not change";

/// See the head of this file.
pub struct Environment {
    /// The scenario.
    pub scenario: Scenario,
    /// Virtual time.
    pub now: Instant,
    /// HistoryEvent comes.
    pub events: EventQueue<Event>,
    /// When each shard wants `Input::Timer`.
    pub timers: Vec<Option<Instant>>,
    /// The jobs' connections, then one per volume that verifies.
    pub connections: Vec<Connection>,
    /// Connections that may submit at once.
    pub ready: Vec<u32>,
    /// HistoryEvent each sector may hold.
    pub oracle: Oracle,
    /// Who must hear of errors of write-out.
    pub owed_errors: OwedErrors,
    /// The turn of a shard that goes on, or was the last.
    pub turn: u64,
    /// The caches' pools.
    pub frames: Frames,
    /// By volume: how its last flush was answered.
    pub flushed: Vec<Option<Status>>,
    /// When something was submitted or answered last.
    pub last_progress: Instant,
    /// When a shard was last_message of a completion, or by another, last.
    pub last_message: Instant,
    /// Who changes queues while they work.
    pub operator: Operator,
    /// HistoryEvent the run went through.
    pub coverage: Coverage,
    /// The first broken rule.
    pub broken: Option<Violation>,
    /// Faults happen at present.
    pub faulty: bool,
    /// Bios answered.
    pub answered: u64,
    /// Notices `UnknownCompletion`.
    pub unknown_completions: u64,
    /// Messages lost on purpose.
    pub lost: u64,
    /// Bios not over, by device.
    pub outstanding: Vec<u32>,
    /// Volumes whose flush failed: since which tick.
    suspect: Vec<Option<u64>>,
    /// Volumes that the operator is about to look at.
    acknowledging: Vec<bool>,
    /// When the last message between two shards arrives.
    arrivals: Vec<Instant>,
    delays: Prng,
    history: Vec<HistoryEntry>,
    history_at: usize,
}

impl Environment {
    /// Around the shards of `scenario`, with nothing going on.
    #[must_use]
    pub fn new(scenario: Scenario, connections: Vec<Connection>) -> Self {
        let contracts = match scenario.checked {
            true => scenario.contracts(),
            false => Vec::new(),
        };
        let shards = usize::from(scenario.shards);
        Self {
            now: Instant(0),
            events: EventQueue::with_capacity(4096),
            timers: vec![None; shards],
            ready: Vec::with_capacity(connections.len()),
            owed_errors: OwedErrors::new(connections.len()),
            turn: 0,
            connections,
            oracle: Oracle::new(&contracts),
            frames: Frames::new(scenario.shards, scenario.cache.units),
            flushed: vec![None; scenario.volumes.len()],
            last_progress: Instant(0),
            last_message: Instant(0),
            operator: Operator::new(scenario.seed, scenario.devices.len(), scenario.cache.is_on()),
            coverage: Coverage::default(),
            broken: None,
            faulty: true,
            answered: 0,
            unknown_completions: 0,
            lost: 0,
            outstanding: vec![0; scenario.devices.len()],
            suspect: vec![None; scenario.volumes.len()],
            acknowledging: vec![false; scenario.volumes.len()],
            arrivals: vec![Instant(0); shards * shards],
            delays: Prng::new(scenario.seed).split("delays"),
            history: Vec::with_capacity(if scenario.checked { HISTORY } else { 0 }),
            history_at: 0,
            scenario,
        }
    }

    /// Keeps the first broken rule.
    pub fn fail(&mut self, violation: Violation) {
        self.broken.get_or_insert(violation);
    }

    /// The power failed: messages, timers and bios are gone.
    pub fn cut(&mut self) {
        self.events.clear();
        self.ready.clear();
        self.timers.fill(None);
        self.suspect.fill(None);
        self.acknowledging.fill(false);
        self.frames.cut();
        self.outstanding.fill(0);
        self.connections.iter_mut().for_each(Connection::reset);
        self.oracle.cut();
        if self.scenario.checked {
            for (volume, config) in self.scenario.volumes.iter().enumerate() {
                self.oracle.forget_beyond(volume as u16, config.options.size);
            }
        }
        self.owed_errors.cut();
        self.operator.cut();
    }

    /// HistoryEvent a power cut finds.
    pub fn cover_cut(&mut self) {
        self.coverage.hit(Point::PowerCut);
        if self.frames.writing() == 0 {
            return;
        }
        self.coverage.hit(Point::CutWriting);
        let flights = self.connections.iter().flat_map(|connection| &connection.slots);
        let mut flights = flights.filter(|flight| flight.stage == BioStage::Waiting);
        if flights.any(|flight| {
            flight.bio.op == Op::Flush && self.scenario.is_cached(flight.bio.id.volume)
        }) {
            self.coverage.hit(Point::CutSync);
        }
    }

    /// Whether anybody has_waiters for an answer, or has something to submit.
    #[must_use]
    pub fn has_waiters(&self) -> bool {
        let open = |connection: &Connection| !connection.is_done();
        self.connections.iter().any(open) || self.operator.unanswered() > 0
    }

    /// A connection submits what it may, into its shard's `inbox`, as far as there is `room`.
    pub fn issue(&mut self, connection: u32, mut room: usize, inbox: &mut Vec<Input>) {
        let index = self.index(connection);
        self.connections[index].planned = false;
        let batch = self.connections[index].job.next_batch();
        for _ in 0..batch {
            if !self.connections[index].can_submit() {
                return;
            }
            if room == 0 {
                self.connections[index].starved = true;
                return;
            }
            room -= 1;
            let bio = self.submit(index);
            inbox.push(Input::Bio(bio));
            if self.connections[index].closes() {
                self.close(index, inbox);
                break;
            }
        }
        self.plan(index);
    }

    /// The place of a connection: one that closed and came again has another id there.
    #[must_use]
    pub fn index(&self, connection: u32) -> usize {
        connection as usize % self.connections.len()
    }

    /// A connection goes, with all that it has on its way, and comes again.
    pub fn close(&mut self, index: usize, inbox: &mut Vec<Input>) {
        let old = self.connections[index].id;
        inbox.push(Input::Close { connection: old });
        self.coverage.hit(Point::Close);
        if self.connections[index].in_flight() > 1 {
            self.coverage.hit(Point::CloseBusy);
        }
        let id = BioId { connection: old, ..BioId::default() };
        let volume = self.connections[index].job.options.volume;
        self.log(Bio { id: BioId { volume, ..id }, ..Bio::default() }, HistoryEvent::Closed);
        let again = old + self.connections.len() as u32;
        self.connections[index].reopen(again);
        self.owed_errors.on_close(index);
    }

    fn submit(&mut self, index: usize) -> Bio {
        self.last_progress = self.now;
        let (bio, slot, malformed) = self.connections[index].submit();
        let device = self.scenario.volumes[usize::from(bio.id.volume.0)].device;
        let outstanding = &mut self.outstanding[usize::from(device.0)];
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
                "a buffer that was given back is left alone",
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
        self.log(bio, HistoryEvent::Submitted);
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

    /// Another volume, all zeros, is in the place of `volume`.
    pub fn replace(&mut self, volume: VolumeId) {
        self.oracle.replace(volume.0);
        self.suspect[usize::from(volume.0)] = None;
        self.owed_errors.on_replaced(volume);
        for index in 0..self.connections.len() {
            if self.connections[index].job.options.volume == volume {
                self.owed_errors.on_close(index);
            }
        }
    }

    /// A volume has another size from now on; its shard is about to hear of it. Whether bios beyond its end are on their way.
    pub fn resize(&mut self, volume: VolumeId, size: u64) -> bool {
        let options = &mut self.scenario.volumes[usize::from(volume.0)].options;
        let old = std::mem::replace(&mut options.size, size);
        if size < old && self.scenario.checked {
            self.oracle.cut_off(volume.0, size, old);
        }
        self.fit(volume, old, size)
    }

    /// Jobs keep to their volume; whether of what they have on its way some lies beyond its end.
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

    /// Lets a connection submit again, now or after its pause.
    pub fn plan(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        if connection.planned || connection.starved || !connection.can_submit() {
            return;
        }
        connection.planned = true;
        let (id, pause) = (connection.id, connection.job.next_pause_ns());
        if pause == 0 {
            self.ready.push(id);
        } else {
            let issue = Event::Issue { connection: id };
            self.events.push(self.now.after(pause), issue);
        }
    }

    /// All connections start.
    pub fn start(&mut self) {
        (0..self.connections.len()).for_each(|index| self.plan(index));
    }

    /// `shard` has room again: who had to wait for it goes on.
    pub fn resume_starved(&mut self, shard: ShardId) {
        for index in 0..self.connections.len() {
            let connection = &mut self.connections[index];
            if connection.starved && connection.home == shard {
                connection.starved = false;
                connection.planned = true;
                self.ready.push(connection.id);
            }
        }
    }

    /// An input for `shard` comes off the heap.
    pub fn receive_message(&mut self, from: ShardId, to: ShardId, message: Message) -> Input {
        self.last_message = self.now;
        if let Message::Bio { bio, .. } = message {
            if bio.id.unit().is_some() {
                return Input::Message { from, message };
            }
            let index = self.index(bio.id.connection);
            let connection = &mut self.connections[index];
            match connection.slot(bio.id) {
                Some(slot) => connection.slots[slot].holder = Some(to),
                None => self.fail(violation(
                    "a message is about a bio in flight",
                    format!("shard {} sent {:?}, which is over", from.0, bio.id),
                )),
            }
        }
        Input::Message { from, message }
    }

    /// The operator acknowledges a failed flush.
    pub fn acknowledge(&mut self, volume: VolumeId) -> Input {
        self.suspect[usize::from(volume.0)] = None;
        self.acknowledging[usize::from(volume.0)] = false;
        self.coverage.hit(Point::ControlAcknowledge);
        Input::Control(Control::Acknowledge { volume })
    }

    /// Looks at what a shard decided, beside carrying it out.
    pub fn cover_actions(&mut self, shard: ShardId, actions: &Actions) {
        for action in &actions.list {
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

    /// Watches what happens to frames.
    fn cover_frames(&mut self, shard: ShardId, action: &Action, actions: &Actions) {
        let point = match action {
            Action::Copy { direction: CopyDirection::ToPool, .. } => Point::CopyIn,
            Action::Copy { direction: CopyDirection::ToBuffer, .. } => Point::CopyOut,
            Action::Zero { .. } => Point::ZeroFrames,
            Action::Data { .. } => return self.coverage.hit(Point::NewerHere),
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
        self.log(bio, HistoryEvent::Sent(submit.id));
    }

    /// A shard is about to be last_message of a completion.
    pub fn complete(&mut self, device: DeviceId, id: RequestId, status: Status) {
        self.last_message = self.now;
        if let Some((volume, offset, len)) = self.frames.place(device, id) {
            let id_of = BioId { volume, ..BioId::default() };
            let bio = Bio { id: id_of, offset, len, ..Bio::default() };
            self.log(bio, HistoryEvent::Came(id, status));
            let failed = status.is_err_and(|error| error != IoError::Busy);
            if failed && self.reports_errors_to_all() && self.frames.is_writeout(device, id) {
                self.owed_errors.on_command_failed(volume, offset, len.into());
            }
        }
        if let Err(wrong) = self.frames.complete(device, id) {
            self.fail(violation(DATA_STABLE, wrong));
        }
    }

    /// Whether each connection has a place of its own in the cache's table of writers: those that share one hear of an error
    /// together.
    fn reports_errors_to_all(&self) -> bool {
        self.scenario.cache.writers_max as usize >= self.connections.len()
    }

    /// A shard's turn is over, in which it noted the failures that `held` tells.
    pub fn note_failures(&mut self, volume: VolumeId, held: &[(u64, u64, IoError)]) {
        if !self.owed_errors.is_recorded(volume, held) || self.scenario.promises_nothing(volume) {
            return;
        }
        for (place, connection) in self.connections.iter().enumerate() {
            if connection.job.options.volume == volume {
                self.owed_errors.owe(place, self.turn);
            }
        }
    }

    /// Keeps account of who heard of errors.
    fn check_owed_error(&mut self, place: usize, bio: &Bio, status: Status) {
        // HistoryEvent an old connection left is nobody's any longer.
        if bio.id.connection != self.connections[place].id {
            return;
        }
        match (bio.op, status) {
            (Op::Flush, Err(_)) => {
                let owed = self.owed_errors.on_failure(place, self.turn);
                self.coverage.add(Point::ErrorHeard, owed.into());
            }
            (Op::Flush, Ok(())) if self.owed_errors.is_owed(place) => {
                let detail = format!("{bio:?} succeeded, and its connection was told of none");
                self.fail(violation(ERROR_REPORTED, detail));
            }
            (Op::Flush, Ok(())) => self.owed_errors.on_success(place, self.turn),
            (Op::Write, Ok(())) if !bio.flags.contains(BioFlags::DIRECT) => {
                self.owed_errors.on_success(place, self.turn);
            }
            _ => {}
        }
    }

    /// The defect of a frontend that gives buffers away too early.
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
        self.last_progress = self.now;
        let index = self.index(id.connection);
        let slot = self.connections.get(index).and_then(|c| c.slot(id));
        let Some(slot) = slot else {
            let detail = format!("{stage:?} {status:?} for {id:?}, which is not in flight");
            return self.fail(violation(ONCE, detail));
        };
        let flight = self.connections[index].slots[slot];
        if self.connections[index].answer(slot, stage).is_none() {
            let detail = format!("{stage:?} {status:?} for {id:?}, which is {:?}", flight.stage);
            return self.fail(violation(ONCE, detail));
        }
        self.answered += u64::from(stage != ReplyStage::Released);
        if stage != ReplyStage::Early {
            let device = self.scenario.volumes[usize::from(id.volume.0)].device;
            self.outstanding[usize::from(device.0)] -= 1;
        }
        if self.scenario.checked {
            self.log(flight.bio, HistoryEvent::Answered(status, stage));
            self.cover_reply(status, hole, stage);
            if let Err(violation) = self.check_reply(index, slot, status, hole, stage) {
                self.fail(violation);
            }
            if stage != ReplyStage::Released {
                self.check_owed_error(index, &flight.bio, status);
            }
            if flight.bio.op == Op::Flush && stage != ReplyStage::Released {
                self.on_flushed(&flight.bio, status);
            }
            if stage != ReplyStage::Early {
                self.connections[index].poison(slot);
            }
        }
        self.plan(index);
    }

    /// A flush of a cached volume failed: sooner or later the operator looks.
    fn on_flushed(&mut self, bio: &Bio, status: Status) {
        let volume = usize::from(bio.id.volume.0);
        self.flushed[volume] = Some(status);
        if status.is_ok() || !self.scenario.is_cached(bio.id.volume) || self.acknowledging[volume] {
            return;
        }
        self.coverage.hit(Point::FlushFailed);
        if self.faulty && self.delays.below(4) == 0 {
            self.plan_acknowledge(bio.id.volume);
        }
    }

    /// Bytes that could not be written are given up.
    pub fn give_up(&mut self, volume: VolumeId, offset: u64, len: u64) {
        self.coverage.hit(Point::GaveUp);
        let size = self.scenario.volumes[usize::from(volume.0)].options.size;
        let end = size.min(offset + len);
        if offset < end {
            self.oracle.give_up(volume.0, offset, end - offset);
        }
    }

    /// The operator acknowledges what failed on `volume`, a little later.
    pub fn plan_acknowledge(&mut self, volume: VolumeId) {
        self.acknowledging[usize::from(volume.0)] = true;
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
        if stage != ReplyStage::Released && !is_cut_off {
            check_status(&self.scenario, &bio, flight.malformed, self.faulty, status)?;
            self.check_suspect(&bio, flight.ticket.start, status)?;
        }
        if hole && !(bio.op == Op::Read && bio.flags.contains(BioFlags::HOLE_OK)) {
            return Err(violation(
                "only a read that allows it is answered without data",
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
                    true => Point::ToldZeros,
                    false => Point::ToldData,
                });
            }
        }
        self.oracle.answer(&bio, flight.ticket, status, hole, stage, bytes)
    }

    /// After a failed flush every later flush and FUA of the volume fails until the operator knows.
    fn check_suspect(&self, bio: &Bio, start: u64, status: Status) -> Result<(), Violation> {
        let durable = bio.op == Op::Flush || bio.op.is_write() && bio.flags.contains(BioFlags::FUA);
        let since = self.suspect[usize::from(bio.id.volume.0)];
        // A discard that touches no whole granule is done before anything looks at durability.
        let empty = bio.op == Op::Discard;
        if self.scenario.promises_nothing(bio.id.volume) {
            return Ok(());
        }
        if durable
            && !empty
            && status.is_ok()
            && start > 0
            && since.is_some_and(|since| start > since)
        {
            return Err(violation(
                "a suspect volume promises no durability",
                format!("{bio:?} succeeded after a failed flush"),
            ));
        }
        Ok(())
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
        };
        self.coverage.hit(point);
        if point == Point::MessageTagGrant
            && self.scenario.defect == WorldDefect::LosesGrants
            && self.delays.below(4) == 0
        {
            self.lost += 1;
            return;
        }
        // In order between any two: never before the one sent last.
        let delay = 100 + self.delays.below(self.scenario.message_delay_ns);
        let pair = usize::from(from.0) * usize::from(self.scenario.shards) + usize::from(to.0);
        let at = self.now.after(delay).max(self.arrivals[pair]);
        self.arrivals[pair] = at;
        self.events.push(at, Event::Deliver { from, to, message });
    }

    fn notice(&mut self, notice: Notice) {
        match notice {
            Notice::Suspect { volume, .. } => {
                self.coverage.hit(Point::NoticeSuspect);
                self.suspect[usize::from(volume.0)] = Some(self.oracle.tick());
                self.plan_acknowledge(volume);
            }
            Notice::TimedOut { .. } => self.coverage.hit(Point::NoticeTimedOut),
            Notice::ShortRead { .. } => self.coverage.hit(Point::NoticeShortRead),
            Notice::UnknownCompletion { .. } => self.unknown_completions += 1,
            Notice::Set { token, status } => self.on_option_answered(token, status),
        }
    }

    fn on_option_answered(&mut self, token: u32, status: Status) {
        self.coverage.hit(match status {
            Ok(()) => Point::Switched,
            Err(_) => Point::SwitchRefused,
        });
        match self.operator.on_answer(token, status) {
            Ok((device, after)) => {
                self.events.push(self.now.after(after), Event::Switch { device });
            }
            Err(wrong) => self.fail(violation("a change is answered as it deserves", wrong)),
        }
    }

    fn log(&mut self, bio: Bio, what: HistoryEvent) {
        let line = HistoryEntry { now: self.now, bio, what };
        if self.history.len() < HISTORY {
            self.history.push(line);
        } else {
            self.history[self.history_at % HISTORY] = line;
        }
        self.history_at += 1;
    }

    /// HistoryEvent happened to `place`, or the last that happened at all, oldest first.
    #[must_use]
    pub fn history(&self, place: Option<(u16, u64)>) -> Vec<String> {
        let newest = self.history_at % HISTORY.max(1);
        let (old, new) = match self.history.len() < HISTORY {
            true => (&self.history[..], &[][..]),
            false => (&self.history[newest..], &self.history[..newest]),
        };
        let concerns = |bio: &Bio| {
            place.is_none_or(|(volume, offset)| {
                let flush = bio.op == Op::Flush;
                let touches = bio.offset < offset + SECTOR as u64 && offset < bio.end();
                bio.id.volume.0 == volume && (flush || touches)
            })
        };
        let lines = old.iter().chain(new).rev();
        let lines = lines.filter(|line| concerns(&line.bio)).take(HISTORY_SHOWN);
        let mut last_message: Vec<_> = lines.map(tell).collect();
        last_message.reverse();
        last_message
    }

    /// Where everything stands, for people.
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
                if connection.starved { ", no room" } else { "" }
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

fn tell(line: &HistoryEntry) -> String {
    let Bio { id, op, offset, len, flags, .. } = line.bio;
    let what = match line.what {
        HistoryEvent::Sent(id) => format!("sent by the cache as {}.{}", id.slot, id.generation),
        HistoryEvent::Came(id, status) => format!("{}.{} came: {status:?}", id.slot, id.generation),
        HistoryEvent::Closed => "the connection closed".into(),
        HistoryEvent::Submitted => "submitted".into(),
        HistoryEvent::Answered(Ok(()), stage) => format!("{stage:?}"),
        HistoryEvent::Answered(Err(error), stage) => format!("{stage:?}: {error}"),
    };
    format!(
        "{:>14} ns  {}/{:#x} {:?} {}:{}+{} flags {:#x}  {what}",
        line.now.0, id.connection, id.sequence, op, id.volume.0, offset, len, flags.0
    )
}

/// The env as one shard's executor sees it.
pub struct ShardPort<'a> {
    /// The env.
    pub env: &'a mut Environment,
    /// The shard.
    pub shard: ShardId,
}

impl ShardPort<'_> {
    /// The frames of a bio that a cache made: this shard's, or one's that sent it here.
    fn frames_of(&mut self, bio: BioId, unit: u32) -> Span {
        let volume = self.env.scenario.volumes[usize::from(bio.volume.0)];
        let owner = self.env.scenario.devices[usize::from(volume.device.0)].config.owner;
        if self.shard != volume.home && self.shard != owner {
            let detail = format!("shard {} uses the frames of {bio:?}", self.shard.0);
            self.env.fail(violation("frames are used by their shard and their device", detail));
        }
        frames_of(self.env.frames.span(volume.home.0), unit)
    }
}

impl Outlet for ShardPort<'_> {
    fn buffer(&mut self, bio: BioId) -> Span {
        if let Some(unit) = bio.unit() {
            return self.frames_of(bio, unit);
        }
        let connection = &self.env.connections[self.env.index(bio.connection)];
        let home = connection.home;
        if let Some(slot) = connection.slot(bio)
            && (home == self.shard || connection.slots[slot].holder == Some(self.shard))
        {
            return connection.buffers.span(slot);
        }
        let span = connection.buffers.span(0);
        let detail = format!("shard {} uses the buffer of {bio:?}", self.shard.0);
        self.env.fail(violation(
            "a buffer is used between submission and release, by who has its bio",
            detail,
        ));
        span
    }

    fn frames(&self) -> Span {
        self.env.frames.span(self.shard.0)
    }

    fn reply(
        &mut self,
        id: BioId,
        status: Status,
        hole: bool,
        stage: ReplyStage,
        wait_times: WaitTimes,
    ) {
        self.env.reply(id, status, hole, stage, wait_times);
    }

    fn send(&mut self, to: ShardId, message: Message) {
        self.env.send(self.shard, to, message);
    }

    fn timer(&mut self, at: Instant) {
        self.env.timers[usize::from(self.shard.0)] = Some(at);
    }

    fn notice(&mut self, notice: Notice) {
        self.env.notice(notice);
    }
}

/// No real I/O can leak into the world.
pub struct NoDisk;

impl DiskQueue for NoDisk {
    fn push(&mut self, _: DiskOp, _: &[Span]) -> bool {
        false
    }
}
