//! Random operations on a shard, checked against a model that is independent of the shard's implementation.
//!
//! A seed draws a configuration, bios, and a device that completes in any order: whole or short, with errors, refusals, holes,
//! invalid completions, or late. The model follows every command and every reply and checks the guarantees of a shard:
//!
//! - a bio is answered once, and its buffer is released only when no command names it;
//! - each byte of a bio is moved once by a command that succeeded, to the right place, by the right kind of command;
//! - an error is reported only to the bios of its command, a hole only to a bio that allows it;
//! - a flush or FUA is acknowledged only if a device flush sent after the end of the data succeeded; after a failed one all
//!   fail until the failure is acknowledged;
//! - a write is never in the device beside an overlapping write that timed out before;
//! - every bio is answered within twice `io_timeout` of its arrival, or of the last command that the device has ended; it
//!   fails unsent only after half of `io_timeout` (in a merged request), or while the device does not answer;
//! - limits hold: queue depth, tags, bytes, segments; a command in flight or a timer ends every wait;
//! - in the end all tags and slots are free.
//!
//! A failure prints its seed; `HEADWORKS_SEED=n cargo test -p headworks-core --test model` runs that seed alone.

use std::collections::BTreeMap;

use headworks_core::prng::Prng;
use headworks_core::time::{MS, US};
use headworks_core::{
    Action, Bio, BioFlags, BioId, Completion, Control, DeadlineOptions, DeviceId, DeviceState,
    Input, Instant, IoClass, IoError, Ioprio, NoMerges, Notice, Op, QueueOptions, ReplyStage,
    RequestId, Scheduler, Segment, Shard, ShardConfig, Status, Submit, VolumeId, VolumeOptions,
};

/// Number of seeds; 4 s in a debug build.
const SEEDS: u64 = 6000;
const TURNS: usize = 60;
const SECTOR: u64 = 512;
/// Bytes of a volume; bios stay near its start, so that they overlap.
const SIZE: u64 = 4 << 20;
const DEVICE: DeviceId = DeviceId(0);

/// An outstanding bio in the model.
struct ModelBio {
    bio: Bio,
    /// Successful transfers of each sector; an error of a command resets them.
    moved: Vec<u8>,
    entered: u64,
    /// When it arrived.
    arrived: u64,
    /// When it arrived, or the device answered a command for a part of it last.
    waits_since: u64,
    early: Option<u64>,
    /// The last completion of a part of it.
    finished: u64,
    /// A command for this bio alone failed, or a completion of its request was invalid.
    may_fail: bool,
    hole: bool,
    /// All its commands were device FUA writes.
    durable: bool,
    entered_suspect: bool,
    /// The latest completion of a write acknowledged before this bio; a flush must cover it.
    must_cover: u64,
}

/// A command in flight.
struct Command {
    submit: Submit,
    bios: Vec<BioId>,
    sent_at: u64,
    sent_event: u64,
}

/// The durability state of a volume.
#[derive(Default, Clone, Copy)]
struct Durability {
    /// The latest completion of an acknowledged write.
    acknowledged: u64,
    /// The event at which the last successful device flush was sent.
    flushed: u64,
    suspect: bool,
    /// A device flush timed out and is still outstanding.
    lost: bool,
}

struct World {
    shard: Shard,
    queue: QueueOptions,
    block: u64,
    bios_max: u32,
    prng: Prng,
    now: u64,
    timer: Option<u64>,
    /// Number of inputs so far, finer than time.
    event: u64,
    /// One input a batch, so that the order of all events is known.
    fine: bool,
    sequence: u64,
    bios: BTreeMap<BioId, ModelBio>,
    in_flight: BTreeMap<RequestId, Command>,
    /// The bio of each slot, for commands without memory.
    places: BTreeMap<u32, BioId>,
    /// The bios of the request in a slot; all are retried when one of its commands fails.
    groups: BTreeMap<u32, Vec<BioId>>,
    volumes: [Durability; 2],
    refusing: bool,
    /// The device does not answer: new bios fail at once.
    stuck: bool,
    /// When a command ended last, other than by a refusal.
    last_end: u64,
    answered: Option<RequestId>,
    fault_rate: u64,
}

fn world(seed: u64) -> World {
    let mut prng = Prng::new(seed);
    let mut pick = |of: &[u32]| of[prng.below(of.len() as u64) as usize];
    let block = pick(&[512, 4096]);
    let queue = QueueOptions {
        nr_requests: pick(&[1, 2, 3, 8, 64]),
        queue_depth: pick(&[1, 2, 4, 64]),
        max_sectors_kb: pick(&[4, 13, 64, 1280]),
        max_segments: pick(&[1, 3, 128]) as u16,
        max_segment_size: pick(&[4096, 12288, 32 << 20]),
        nomerges: [NoMerges::MergeAll, NoMerges::MergeAll, NoMerges::OneHit, NoMerges::Never]
            [pick(&[0, 1, 2, 3]) as usize],
        io_timeout_ns: 50 * MS,
        write_cache: pick(&[0, 1, 1]) == 1,
        fua: pick(&[0, 1]) == 1,
        discard: pick(&[0, 1, 1]) == 1,
        discard_granularity: pick(&[512, 4096, 65536]),
        discard_max_bytes: pick(&[65536, 100_000, 1 << 30]),
        write_zeroes: pick(&[0, 1, 1]) == 1,
        ..QueueOptions::default()
    };
    let mut queue = queue;
    draw_scheduler(&mut Prng::new(seed).split("scheduler"), &mut queue);
    let bios_max = pick(&[1, 5, 40]);
    let (fine, fault_rate) = (pick(&[0, 1]) == 1, pick(&[0, 5, 30]).into());
    let volume = VolumeOptions { size: SIZE, block_size: block, ..VolumeOptions::default() };
    let mut config = ShardConfig::single(queue, volume, bios_max);
    config.volumes.push(config.volumes[0]);
    World {
        shard: Shard::new(config).expect("every draw is a valid configuration"),
        queue,
        block: block.into(),
        bios_max,
        prng,
        now: MS,
        timer: None,
        event: 0,
        fine,
        sequence: 0,
        bios: BTreeMap::new(),
        in_flight: BTreeMap::new(),
        places: BTreeMap::new(),
        groups: BTreeMap::new(),
        volumes: [Durability::default(); 2],
        refusing: false,
        stuck: false,
        last_end: 0,
        answered: None,
        fault_rate,
    }
}

/// Draws mq-deadline for half of the shards, with times short enough to expire.
fn draw_scheduler(prng: &mut Prng, queue: &mut QueueOptions) {
    let mut pick = |of: &[u32]| of[prng.below(of.len() as u64) as usize];
    queue.scheduler = Scheduler::ALL[pick(&[0, 1]) as usize];
    queue.deadline = DeadlineOptions {
        read_expire_ms: pick(&[0, 1, 20]),
        write_expire_ms: pick(&[0, 5, 100]),
        writes_starved: pick(&[0, 1, 2]),
        fifo_batch: pick(&[1, 2, 16]),
        front_merges: pick(&[0, 1]) == 1,
        prio_aging_expire_ms: pick(&[0, 5, 40]),
        ..DeadlineOptions::default()
    };
}

impl World {
    fn run(&mut self) {
        for _ in 0..TURNS {
            self.pass_time();
            let inputs = if self.fine { 1 } else { self.prng.between(1, 12) };
            let batch: Vec<Input> = (0..inputs).filter_map(|_| self.draw()).collect();
            self.turn(&batch);
        }
        self.fault_rate = 0;
        let mut turns_left = 10_000;
        while !self.in_flight.is_empty() || !self.bios.is_empty() {
            match self.in_flight.keys().next().copied() {
                Some(id) => {
                    let answer = self.answer(id, Ok(()), u64::MAX, false);
                    self.turn(&[answer]);
                }
                None => {
                    let at = self
                        .timer
                        .expect("bios wait, no command is in flight, and no timer is set");
                    self.now = self.now.max(at);
                    self.tick();
                }
            }
            turns_left -= 1;
            assert!(turns_left > 0, "the run does not end");
        }
        assert!(self.shard.is_quiet() && self.shard.is_idle());
        assert_eq!(self.shard.room(), self.bios_max);
        assert_eq!(self.shard.tags_free(DEVICE), Some(self.queue.nr_requests));
        self.assert_no_class_waits();
    }

    /// Asserts that a bio of the lowest class is sent at once on an idle shard.
    fn assert_no_class_waits(&mut self) {
        // The last command may have been refused and have failed then: the retry timer is set.
        while let Some(at) = self.timer {
            self.now = self.now.max(at);
            self.tick();
        }
        if self.stuck {
            // It refused until all that it was asked had failed.
            return;
        }
        self.sequence += 1;
        let id = BioId { connection: 1, sequence: self.sequence, ..BioId::default() };
        let len = self.block as u32;
        let bio = Bio { id, len, ioprio: Ioprio::new(IoClass::Idle, 7), ..Bio::default() };
        self.shard.handle(Instant(self.now), &[Input::Bio(bio)]);
        let sent = |action: &Action| matches!(action, Action::Submit(_));
        assert!(self.shard.actions().list.iter().any(sent), "a request that ended still counts");
    }

    fn pass_time(&mut self) {
        let step = [0, 50 * US, MS, 20 * MS][self.prng.below(4) as usize];
        let end = self.now + self.prng.below(step + 1);
        let mut turns_left = 10_000;
        while let Some(at) = self.timer.filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.tick();
            turns_left -= 1;
            assert!(turns_left > 0, "a timer is set again and again");
        }
        self.now = end;
    }

    fn tick(&mut self) {
        self.timer = None;
        self.refusing = false;
        self.turn(&[Input::Timer]);
        for command in self.in_flight.values() {
            let in_time = self.now < command.sent_at + self.queue.io_timeout_ns;
            let told = |id: &BioId| self.bios[id].early.is_some();
            assert!(in_time || command.bios.iter().all(told), "a time-out was not reported");
        }
    }

    fn draw(&mut self) -> Option<Input> {
        if self.prng.below(100) < 2 {
            let volume = VolumeId(self.prng.below(2) as u16);
            self.volumes[usize::from(volume.0)].suspect = false;
            return Some(Input::Control(Control::Acknowledge { volume }));
        }
        if self.prng.below(2) == 0 {
            return self.draw_bio();
        }
        if self.prng.below(100) < self.fault_rate / 5 {
            // An invalid completion: the command was completed before.
            return self.answered.map(|id| completion(id, 512, Ok(()), false));
        }
        if self.in_flight.is_empty() {
            return None;
        }
        let nth = self.prng.below(self.in_flight.len() as u64) as usize;
        let id = *self.in_flight.keys().nth(nth).expect("it is below the length");
        Some(self.draw_answer(id))
    }

    fn draw_bio(&mut self) -> Option<Input> {
        let op = [
            Op::Read,
            Op::Read,
            Op::Write,
            Op::Write,
            Op::Write,
            Op::Flush,
            Op::Discard,
            Op::WriteZeroes,
        ][self.prng.below(8) as usize];
        let flags = [
            BioFlags::FUA,
            BioFlags::NOMERGE,
            BioFlags::SYNC,
            BioFlags::HOLE_OK,
            BioFlags::FAST_ZERO,
        ]
        .into_iter()
        .filter(|_| self.prng.below(5) == 0)
        .fold(BioFlags::NONE, BioFlags::with);
        // Small adjacent bios in a small range, and sometimes one over the limits.
        let blocks = if self.prng.below(12) == 0 { 200 } else { 4 };
        let len = self.prng.between(1, blocks) * self.block;
        let offset = self.prng.below(40) * self.block;
        self.sequence += 1;
        let mut bio = Bio {
            id: BioId {
                connection: 1,
                volume: VolumeId(self.prng.below(2) as u16),
                sequence: self.sequence,
                ..BioId::default()
            },
            offset,
            len: len as u32,
            op,
            flags: match op {
                Op::Read => flags.without(BioFlags::FUA),
                _ => flags.without(BioFlags::HOLE_OK),
            },
            ioprio: Ioprio::new(IoClass::ALL[[1, 1, 1, 0, 2][self.prng.below(5) as usize]], 4),
        };
        if op == Op::Flush {
            (bio.offset, bio.len) = (0, 0);
        }
        // Commands without memory are identified by their start, so no two bios share one.
        let effective = trimmed(&bio, &self.queue, self.block);
        let alike = |model_bio: &ModelBio| {
            model_bio.bio.op == op && model_bio.bio.offset == effective.offset
        };
        if matches!(op, Op::Discard | Op::WriteZeroes) && self.bios.values().any(alike) {
            return None;
        }
        let durability = self.volumes[usize::from(bio.id.volume.0)];
        self.event += 1;
        let model_bio = ModelBio {
            bio: effective,
            moved: vec![0; (effective.len as u64 / SECTOR) as usize],
            entered: self.event,
            arrived: self.now,
            waits_since: self.now,
            early: None,
            finished: 0,
            may_fail: false,
            hole: false,
            durable: true,
            entered_suspect: durability.suspect,
            must_cover: durability.acknowledged,
        };
        self.bios.insert(bio.id, model_bio);
        Some(Input::Bio(bio))
    }

    fn draw_answer(&mut self, id: RequestId) -> Input {
        let (all, hole_ok) = {
            let submit = &self.in_flight[&id].submit;
            (u64::from(submit.len), submit.flags.contains(BioFlags::HOLE_OK))
        };
        let hole = hole_ok && self.prng.below(2) == 0;
        if self.prng.below(100) >= self.fault_rate {
            return self.answer(id, Ok(()), all, hole);
        }
        let part = self.prng.below(all / SECTOR + 1) * SECTOR;
        match self.prng.below(10) {
            0..=2 => self.answer(id, Ok(()), part, hole),
            3..=4 => self.answer(id, Err(IoError::Medium), part, false),
            5 if self.in_flight[&id].submit.op == Op::Flush && self.prng.below(2) == 0 => {
                self.answer(id, Err(IoError::NotFlushed), 0, false)
            }
            5 => self.answer(id, Err(IoError::NoSpace), 0, false),
            6..=7 => self.answer(id, Err(IoError::Busy), 0, false),
            8 => self.answer(id, Err(IoError::Unsupported), 0, false),
            _ if self.prng.below(2) == 0 => self.answer(id, Ok(()), all + SECTOR, false),
            _ => self.answer(id, Ok(()), part, true),
        }
    }

    /// Completes a command and updates the model before the shard receives the completion.
    fn answer(&mut self, id: RequestId, status: Status, transferred: u64, hole: bool) -> Input {
        self.event += 1;
        let command = self.in_flight.remove(&id).expect("it is in flight");
        let submit = command.submit;
        self.answered = Some(id);
        let transferred =
            if status.is_ok() && transferred == u64::MAX { submit.len.into() } else { transferred };
        // A refusal of a timed-out command does not mark the device as busy.
        let late = self.now >= command.sent_at + self.queue.io_timeout_ns
            || command.bios.iter().any(|id| self.bios[id].early.is_some());
        self.refusing = status == Err(IoError::Busy) && !late;
        if status != Err(IoError::Busy) || late {
            self.last_end = self.now;
        }
        if submit.op == Op::Flush {
            self.flush_answered(&command, status);
            return completion(id, 0, status, false);
        }
        let invalid =
            transferred > submit.len.into() || hole && !submit.flags.contains(BioFlags::HOLE_OK);
        let failed = status.is_err() || invalid || transferred == 0;
        let alone = command.bios.len() == 1;
        for id in &command.bios {
            let model_bio = self.bios.get_mut(id).expect("checked when it was sent");
            model_bio.finished = self.event;
            if status == Err(IoError::Busy) {
                continue;
            }
            model_bio.waits_since = self.now;
            model_bio.durable &= submit.op == Op::Write && submit.flags.contains(BioFlags::FUA);
            model_bio.may_fail |= failed && alone;
            if model_bio.bio.op == Op::Discard && status == Err(IoError::Unsupported) {
                // A discard is advisory: unsupported counts as done.
                model_bio.moved.fill(1);
            }
        }
        if failed && status != Err(IoError::Busy) && submit.op.has_data() {
            for id in self.groups.remove(&submit.id.slot).unwrap_or_default() {
                if let Some(model_bio) = self.bios.get_mut(&id) {
                    model_bio.moved.fill(0);
                    model_bio.may_fail |= invalid && status.is_ok();
                }
            }
        }
        let whole = transferred == u64::from(submit.len);
        if !failed && (whole || !hole) {
            self.moved(&command, transferred, hole);
        }
        completion(id, transferred as u32, status, hole)
    }

    fn moved(&mut self, command: &Command, transferred: u64, hole: bool) {
        let (start, end) = (command.submit.offset, command.submit.offset + transferred);
        for id in &command.bios {
            let model_bio = self.bios.get_mut(id).expect("checked when it was sent");
            model_bio.hole = hole;
            let mine = model_bio.bio.offset.max(start)..model_bio.bio.end().min(end);
            for at in mine.step_by(SECTOR as usize) {
                model_bio.moved[((at - model_bio.bio.offset) / SECTOR) as usize] += 1;
            }
        }
    }

    fn flush_answered(&mut self, command: &Command, status: Status) {
        let volume = &mut self.volumes[usize::from(command.submit.volume.0)];
        let lost = std::mem::take(&mut volume.lost);
        match status {
            Ok(()) => volume.flushed = volume.flushed.max(command.sent_event),
            Err(IoError::Busy | IoError::NotFlushed) => {}
            Err(_) => volume.suspect = true,
        }
        assert!(!lost || self.now >= command.sent_at + self.queue.io_timeout_ns);
    }

    fn turn(&mut self, inputs: &[Input]) {
        self.shard.handle(Instant(self.now), inputs);
        for (action, segments) in self.take_actions() {
            match action {
                Action::Submit(submit) => {
                    let calm = inputs.iter().all(|i| matches!(i, Input::Bio(_)));
                    let held = self.refusing && calm && submit.op != Op::Flush;
                    assert!(!held, "a refusing device was given {submit:?}");
                    self.submitted(submit, &segments);
                }
                Action::Reply { id, status, hole, stage, .. } => {
                    self.replied(id, status, hole, stage)
                }
                Action::Timer { at } => self.timer = Some(at.0),
                Action::Notice(Notice::TimedOut { volume, op: Op::Flush, .. }) => {
                    self.volumes[usize::from(volume.0)].lost = true;
                }
                Action::Notice(Notice::DeviceState { state, .. }) => {
                    self.stuck = state == DeviceState::Stuck;
                }
                Action::Notice(_) => {}
                Action::Send { .. } => panic!("a single shard sends no messages"),
                Action::Data { .. }
                | Action::Copy { .. }
                | Action::Zero { .. }
                | Action::Move { .. }
                | Action::ReplyFrames { .. }
                | Action::NeedsBuffer { .. }
                | Action::SetDirty { .. }
                | Action::Prepare { .. }
                | Action::Release { .. } => {
                    panic!("there is no cache")
                }
            }
        }
        let taken = self.queue.nr_requests - self.shard.tags_free(DEVICE).expect("it is ours");
        let in_flight = self.in_flight.values().filter(|c| c.submit.op != Op::Flush).count() as u32;
        assert!(
            in_flight <= self.queue.queue_depth && in_flight <= taken,
            "{in_flight} fly, {taken} tags"
        );
        let unanswered = self.bios.values().filter(|model_bio| model_bio.early.is_none());
        for model_bio in unanswered {
            let since = model_bio.waits_since.max(self.last_end);
            let in_time = self.now - since <= 2 * self.queue.io_timeout_ns;
            assert!(in_time, "{:?} waits for longer than twice the time-out", model_bio.bio);
        }
        let ends = self.timer.is_some() || !self.in_flight.is_empty();
        assert!(ends || self.bios.is_empty(), "bios wait, and nothing will end it");
    }

    fn take_actions(&mut self) -> Vec<(Action, Vec<Segment>)> {
        let actions = self.shard.actions();
        let list = actions.list.iter().map(|&action| {
            let segments = match action {
                Action::Submit(submit) => actions.segments_of(&submit).to_vec(),
                _ => Vec::new(),
            };
            (action, segments)
        });
        let list = list.collect();
        self.shard.clear_actions();
        list
    }

    fn submitted(&mut self, submit: Submit, segments: &[Segment]) {
        let bios = match submit.op {
            Op::Flush => Vec::new(),
            Op::Read | Op::Write if !segments.is_empty() => self.check_memory(&submit, segments),
            _ => vec![self.find_by_place(&submit)],
        };
        if segments.is_empty() {
            self.groups.remove(&submit.id.slot);
        } else {
            let group = self.groups.entry(submit.id.slot).or_default();
            if !group.iter().any(|id| bios.contains(id)) {
                group.clear();
            }
            group.extend(&bios);
        }
        if submit.op != Op::Flush {
            let aligned = (submit.offset | u64::from(submit.len)).is_multiple_of(SECTOR);
            assert!(submit.len > 0 && aligned, "{submit:?}");
        }
        if submit.op.has_data() {
            assert!(submit.len <= self.queue.max_bytes().max(self.block as u32));
        }
        if submit.op.is_write() {
            self.check_overtaking(&submit, &bios);
        }
        let command = Command { submit, bios, sent_at: self.now, sent_event: self.event };
        let double = self.in_flight.insert(submit.id, command);
        assert!(double.is_none(), "two commands have one name");
        let flushes = |c: &&Command| c.submit.op == Op::Flush && c.submit.volume == submit.volume;
        assert!(self.in_flight.values().filter(flushes).count() <= 1);
    }

    /// Checks that the segments of a command cover its bios in order of their offsets.
    fn check_memory(&self, submit: &Submit, segments: &[Segment]) -> Vec<BioId> {
        let mut at = submit.offset;
        let mut bios: Vec<BioId> = Vec::new();
        assert!(segments.len() <= usize::from(self.queue.max_segments), "{submit:?}");
        for segment in segments {
            let model_bio = self.bios.get(&segment.bio).expect("a command for an ended bio");
            let bio = &model_bio.bio;
            assert_eq!((bio.op, bio.id.volume), (submit.op, submit.volume));
            assert_eq!(bio.offset + u64::from(segment.offset), at, "{submit:?} {segments:?}");
            assert!(segment.len > 0 && segment.len <= self.queue.max_segment_size);
            assert!(segment.offset + segment.len <= bio.len);
            assert!(model_bio.early.is_none(), "a command for a timed-out bio");
            let fua = bio.flags.contains(BioFlags::FUA) && self.queue.fua;
            assert_eq!(submit.flags.contains(BioFlags::FUA), fua);
            let hole = submit.flags.contains(BioFlags::HOLE_OK);
            assert!(!hole || bio.flags.contains(BioFlags::HOLE_OK));
            if bios.last() != Some(&bio.id) {
                bios.push(bio.id);
            }
            let twice = |c: &Command| {
                let end = submit.offset + u64::from(submit.len);
                let apart =
                    c.submit.offset + u64::from(c.submit.len) <= at || c.submit.offset >= end;
                c.bios.contains(&bio.id) && !(apart || bios.len() > 1)
            };
            assert!(!self.in_flight.values().any(twice), "one byte in two commands");
            at += u64::from(segment.len);
        }
        assert_eq!(at, submit.offset + u64::from(submit.len));
        let unmergeable = |id: &BioId| self.bios[id].bio.flags.contains(BioFlags::NOMERGE);
        assert!(bios.len() == 1 || !bios.iter().any(unmergeable), "merged despite NOMERGE");
        let class = |id: &BioId| {
            let bio = &self.bios[id].bio;
            (bio.flags.0 & (BioFlags::FUA.0 | BioFlags::SYNC.0), bio.ioprio)
        };
        assert!(bios.iter().all(|id| class(id) == class(&bios[0])), "classes were mixed");
        bios
    }

    /// Finds the bio of a command without memory, by the slot of its request or by the start of the bio.
    fn find_by_place(&mut self, submit: &Submit) -> BioId {
        let slot = submit.id.slot;
        let same = |model_bio: &ModelBio| {
            let op = model_bio.bio.op;
            let as_data = op == Op::WriteZeroes && submit.op == Op::Write;
            let kind = as_data || op == submit.op && !op.has_data();
            kind && model_bio.bio.id.volume == submit.volume
        };
        let fresh =
            |model_bio: &&ModelBio| same(model_bio) && model_bio.bio.offset == submit.offset;
        // A FUA bio outlives its request, so another request may use the slot.
        let unmoved = |model_bio: &ModelBio| model_bio.moved.contains(&0);
        let old = self.places.get(&slot).copied();
        let old = old.filter(|id| self.bios.get(id).is_some_and(|w| same(w) && unmoved(w)));
        let fresh = || Some(self.bios.values().find(fresh)?.bio.id);
        let id = old.or_else(fresh);
        let id = id.unwrap_or_else(|| panic!("no bio matches {submit:?}"));
        self.places.insert(slot, id);
        let model_bio = &self.bios[&id];
        let next = model_bio.moved.iter().position(|&count| count == 0);
        let next = next.map(|n| model_bio.bio.offset + n as u64 * SECTOR);
        assert_eq!(
            next,
            Some(submit.offset),
            "{submit:?} does not continue where {:?} stopped",
            model_bio.bio
        );
        assert!(submit.offset + u64::from(submit.len) <= model_bio.bio.end());
        assert!(model_bio.early.is_none(), "a command for a timed-out bio");
        id
    }

    /// Asserts that no overlapping write that timed out before these bios is still in the device.
    fn check_overtaking(&self, submit: &Submit, bios: &[BioId]) {
        let end = submit.offset + u64::from(submit.len);
        for old in self.in_flight.values().filter(|c| c.submit.op.is_write()) {
            let old_end = old.submit.offset + u64::from(old.submit.len);
            let overlap = old.submit.offset < end && submit.offset < old_end;
            if old.submit.volume != submit.volume || !overlap {
                continue;
            }
            for id in &old.bios {
                let given_up = self.bios[id].early;
                let later = |new: &BioId| given_up.is_some_and(|at| at < self.bios[new].entered);
                assert!(!bios.iter().any(later), "{submit:?} beside the late {:?}", old.submit);
            }
        }
    }

    fn replied(&mut self, id: BioId, status: Status, hole: bool, stage: ReplyStage) {
        let is_in_flight = self.in_flight.values().any(|command| command.bios.contains(&id));
        let model_bio = self.bios.get_mut(&id).expect("answered twice, or never asked");
        match stage {
            ReplyStage::Early => {
                assert!(model_bio.early.is_none() && status == Err(IoError::TimedOut));
                self.event += 1;
                model_bio.early = Some(self.event);
                return;
            }
            ReplyStage::Released => assert!(model_bio.early.is_some(), "released but not answered"),
            ReplyStage::Final => assert!(model_bio.early.is_none(), "answered twice"),
        }
        assert!(!is_in_flight, "{id:?} is free while a command names its buffer");
        let model_bio = self.bios.remove(&id).expect("it was just there");
        if stage == ReplyStage::Final {
            match status {
                Ok(()) => self.check_success(&model_bio, hole),
                Err(error) => self.check_failure(&model_bio, error, hole),
            }
        }
        if model_bio.bio.op.is_write() && model_bio.finished > 0 {
            let volume = &mut self.volumes[usize::from(id.volume.0)];
            volume.acknowledged = volume.acknowledged.max(model_bio.finished);
        }
    }

    fn check_success(&self, model_bio: &ModelBio, hole: bool) {
        let bio = &model_bio.bio;
        let advisory = bio.op == Op::Discard;
        let once = model_bio.moved.iter().all(|&count| count == 1);
        assert!(once || advisory, "{bio:?} is done, moved {:?}", model_bio.moved);
        assert_eq!(hole, model_bio.hole && bio.op == Op::Read, "{bio:?}");
        let volume = &self.volumes[usize::from(bio.id.volume.0)];
        let promises =
            bio.op == Op::Flush || bio.op.is_write() && bio.flags.contains(BioFlags::FUA);
        if !promises || !self.queue.write_cache || advisory && model_bio.finished == 0 {
            return;
        }
        assert!(
            !model_bio.entered_suspect || !volume.suspect,
            "{bio:?} promised on a suspect volume"
        );
        let needs = if bio.op == Op::Flush { model_bio.must_cover } else { model_bio.finished };
        let covered = volume.flushed >= needs || bio.op != Op::Flush && model_bio.durable;
        assert!(covered || !self.fine, "{bio:?} is not durable");
    }

    fn check_failure(&self, model_bio: &ModelBio, error: IoError, hole: bool) {
        let bio = &model_bio.bio;
        assert!(!hole);
        let promises = bio.op == Op::Flush || bio.flags.contains(BioFlags::FUA);
        match error {
            IoError::NoMemory => {
                assert_eq!(model_bio.finished, 0);
                assert!(self.bios.len() as u32 >= self.bios_max.min(2) - 1);
            }
            IoError::Unsupported => {
                let fast = bio.flags.contains(BioFlags::FAST_ZERO) && bio.op == Op::WriteZeroes;
                assert!(model_bio.may_fail || promises || fast, "{bio:?}");
            }
            IoError::Medium | IoError::NoSpace => {
                assert!(model_bio.may_fail || promises, "{bio:?} failed for another's error");
            }
            IoError::TimedOut => {
                // It may be part of a request that waited for at most half of the time before.
                let waited = 2 * (self.now - model_bio.arrived) >= self.queue.io_timeout_ns;
                let behind_late_write = bio.op.is_write() || bio.op == Op::Flush;
                assert!(behind_late_write || waited || self.stuck, "{bio:?} failed too early");
            }
            other => panic!("{bio:?} was answered {other}"),
        }
    }
}

/// Rounds a discard inward to the granularity; returns other bios unchanged.
fn trimmed(bio: &Bio, queue: &QueueOptions, block: u64) -> Bio {
    if bio.op != Op::Discard {
        return *bio;
    }
    let granularity = u64::from(queue.discard_granularity).max(block);
    let start = bio.offset.next_multiple_of(granularity);
    let end = bio.end() / granularity * granularity;
    Bio { offset: start, len: end.saturating_sub(start) as u32, ..*bio }
}

fn completion(id: RequestId, transferred: u32, status: Status, hole: bool) -> Input {
    let completion = Completion { id, transferred, status, hole };
    Input::Complete { device: DEVICE, completion }
}

#[test]
#[allow(clippy::disallowed_methods)] // A seed from outside makes a failure repeatable.
fn shard_matches_model_under_random_device_faults() {
    let only = std::env::var("HEADWORKS_SEED").ok();
    let only = only.map(|seed| seed.parse().expect("HEADWORKS_SEED is a number"));
    for seed in only.map_or(0..SEEDS, |seed| seed..seed + 1) {
        let result = std::panic::catch_unwind(|| world(seed).run());
        assert!(result.is_ok(), "HEADWORKS_SEED={seed} cargo test -p headworks-core --test model");
    }
}
