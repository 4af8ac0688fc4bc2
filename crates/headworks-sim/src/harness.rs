//! One shard with real bytes, a disk that completes in any order and injects faults, and a model of
//! the expected contents of every byte.
//!
//! Smaller than `world`: no timing, no workloads, one device. Every event is one draw from
//! [`Choices`]: a seeded stream in tests, or the input of a fuzzer ([`ByteChoices`]), so that the
//! fuzzer controls every step.
//!
//! Each client has a region of its own and at most one bio in flight, so the result of every read
//! is known exactly. Regions share blocks, so clients still interact. After a failed write the
//! contents of its range are unknown, and unchecked, until the next write. Bytes beyond the end of
//! a volume that was shrunk and grown again may be old or zero: the first read decides, and later
//! reads must agree. The volume is removed, sometimes with its device, whenever the shard permits
//! it; at that moment all of its data must be on the disk, from which the volume added next reads
//! them.

mod changes;

use std::collections::BTreeMap;
use std::ops::Range;

use headworks_core::cache::CacheContents;
use headworks_core::extent::{EXTENTS_MAX, ExtentWriter, extents};
use headworks_core::prng::Prng;
use headworks_core::writeback::DirtyOptions;
use headworks_core::{
    Action, Bio, BioFlags, BioId, CacheOptions, Completion, Control, CopyDirection, DeviceId,
    ErrorPolicy, ExportId, Extent, ExtentState, Input, Instant, IoError, NoMerges, Op,
    QueueOptions, ReplyStage, Scheduler, Shard, ShardConfig, Status, Submit, VolumeId,
    VolumeOptions, WriteMode,
};

use crate::sector_pattern::POISON;

/// A source of decisions.
pub trait Choices {
    /// Returns a number in `0..bound`; 0 is always the harmless choice.
    fn below(&mut self, bound: u64) -> u64;
    /// Whether the source is exhausted: every further number is 0.
    fn is_exhausted(&self) -> bool {
        false
    }
}

impl Choices for Prng {
    fn below(&mut self, bound: u64) -> u64 {
        Prng::below(self, bound)
    }
}

/// Decisions read from a byte string, for fuzzers.
pub struct ByteChoices<'a>(pub &'a [u8]);

impl Choices for ByteChoices<'_> {
    fn below(&mut self, bound: u64) -> u64 {
        let wanted = if bound <= 256 { 1 } else { 3 };
        let count = wanted.min(self.0.len());
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)) % bound.max(1)
    }

    fn is_exhausted(&self) -> bool {
        self.0.is_empty()
    }
}

/// Maximum lengths of bios, one drawn for each: within a block, across a few blocks, long.
const LENGTHS: [u64; 3] = [600, 5000, 40_000];
/// Bytes beyond the last client's region, so that the volume does not end at a block boundary.
const TAIL: u64 = 1088;
/// Addresses at or above this mean a client's buffer; below it, the frame pool.
const BUFFERS: u64 = 1 << 40;
/// Bytes of one frame of the pool.
const FRAME: u64 = 4096;

/// Size of a harness, and whether faults are injected.
#[derive(Clone, Copy, Debug)]
pub struct HarnessOptions {
    /// Number of clients, each with a region.
    pub clients: u32,
    /// Bytes of each region.
    pub region: u64,
    /// Injects device faults, lies and operator changes.
    pub faults: bool,
}

impl HarnessOptions {
    /// Bytes of the volume that holds every region.
    #[must_use]
    pub const fn volume_size(&self) -> u64 {
        (self.region * self.clients as u64 + TAIL) / 512 * 512
    }

    /// A configuration of one device and one volume, with `units` frames of cache; 0 means no
    /// cache.
    #[must_use]
    pub fn config(&self, mode: WriteMode, units: u32) -> ShardConfig {
        let block_size = if units > 0 { 512 } else { 1 };
        let volume =
            VolumeOptions { size: self.volume_size(), block_size, mode, ..Default::default() };
        let queue = QueueOptions { queue_depth: 8, nr_requests: 16, ..QueueOptions::default() };
        let mut config = ShardConfig::single(queue, volume, 64);
        config.cache = CacheOptions { units, account: 1 << 20, ..CacheOptions::default() };
        config.dirty = DirtyOptions { dirty_expire_centisecs: 5, ..DirtyOptions::default() };
        config
    }

    /// Draws a configuration from `choices`.
    #[must_use]
    pub fn draw(&self, choices: &mut impl Choices) -> ShardConfig {
        let mode = WriteMode::ALL[choices.below(5) as usize];
        let units = [256, 256, 512, 0][choices.below(4) as usize];
        let mut config = self.config(mode, units);
        let queue = &mut config.devices[0].queue;
        queue.scheduler = Scheduler::ALL[choices.below(2) as usize];
        queue.nomerges = NoMerges::ALL[choices.below(3) as usize];
        queue.queue_depth = [8, 1, 2, 32][choices.below(4) as usize];
        queue.nr_requests = queue.queue_depth.max([16, 1, 4, 62][choices.below(4) as usize]);
        queue.max_sectors_kb = [1280, 4, 16, 64][choices.below(4) as usize];
        queue.max_folio_order = [9, 0, 2, 4][choices.below(4) as usize];
        queue.read_ahead_kb = [4096, 0, 16, 128][choices.below(4) as usize];
        queue.fua = choices.below(2) == 1;
        config.volumes[0].options.on_error = ErrorPolicy::ALL[choices.below(2) as usize];
        config.dirty.dirty_bytes = [0, 64 << 10, 128 << 10][choices.below(3) as usize];
        config
    }
}

struct Client {
    buffer: Vec<u8>,
    expected: Vec<u8>,
    /// By byte of the region: a read must return the expected byte.
    known: Vec<bool>,
    /// By byte: cut off by a shrink; the next read decides its contents.
    cut: Vec<bool>,
    bio: Option<Bio>,
    /// The volume was shrunk to this size since the bio in flight was submitted.
    cut_from: u64,
    /// Answered early by a time-out; the shard may still access the buffer.
    answered_early: bool,
    sequence: u64,
}

impl Client {
    fn record(&mut self, at: usize, bytes: impl ExactSizeIterator<Item = u8>) {
        let end = at + bytes.len();
        self.known[at..end].fill(true);
        self.cut[at..end].fill(false);
        self.expected[at..end].iter_mut().zip(bytes).for_each(|(old, new)| *old = new);
    }

    /// Marks the contents of a range as unknown; `cut`: because the volume was shrunk.
    fn forget(&mut self, range: Range<usize>, cut: bool) {
        self.known[range.clone()].fill(false);
        self.cut[range].fill(cut);
    }
}

/// A command in the disk, with the addresses of its bytes.
struct InFlight {
    submit: Submit,
    places: Vec<(u64, u32)>,
    /// A write's data at submission; they must be unchanged at completion.
    submitted_data: Vec<u8>,
}

/// A shard, its disk and its clients. A broken promise is a panic that names it.
pub struct Harness<C> {
    shard: Shard,
    options: HarnessOptions,
    config: ShardConfig,
    choices: C,
    now: u64,
    timer: Option<u64>,
    pool: Vec<u8>,
    disk: Vec<u8>,
    /// Current size of the volume in bytes.
    size: u64,
    /// Whether the volume is present, and its device.
    present: (bool, bool),
    in_flight: Vec<InFlight>,
    clients: Vec<Client>,
    flushes: BTreeMap<u32, Status>,
    /// Failed blocks may have been discarded, so the disk's contents are unknown as well.
    discarded_failed: bool,
    answered: u64,
    /// Extents reported to clients as data, and as zeros.
    status_extents: [u64; 2],
    /// Reads that were answered from frames.
    from_frames: u64,
}

/// Writes the extent list of a range of the disk, by sector.
fn write_status(disk: &[u8], submit: &Submit, list: &mut [u8]) {
    let most = if submit.flags.contains(BioFlags::ONE_EXTENT) { 1 } else { EXTENTS_MAX };
    let mut list = ExtentWriter::new(list, submit.len, most);
    let (mut at, end) = (submit.offset as usize, submit.offset as usize + submit.len as usize);
    while at < end {
        let next = (at / 512 + 1) * 512;
        let zeros = disk[at..next.min(end)].iter().all(|&byte| byte == 0);
        let state = if zeros { ExtentState::HOLE_ZERO } else { ExtentState::DATA };
        if !list.push((next - at) as u64, state) {
            break;
        }
        at = next;
    }
    list.finish();
}

impl<C: Choices> Harness<C> {
    /// A harness with a new shard.
    #[must_use]
    pub fn new(options: HarnessOptions, config: ShardConfig, choices: C) -> Self {
        let size = options.volume_size() as usize;
        let region = options.region as usize;
        let client = |_| Client {
            buffer: vec![0; region],
            expected: vec![0; region],
            known: vec![true; region],
            cut: vec![false; region],
            bio: None,
            cut_from: u64::MAX,
            answered_early: false,
            sequence: 0,
        };
        Self {
            shard: Shard::new(config.clone()).expect("a valid configuration"),
            pool: vec![0; config.cache.units as usize * FRAME as usize],
            clients: (0..options.clients).map(client).collect(),
            options,
            config,
            choices,
            now: 0,
            timer: None,
            disk: vec![0; size],
            size: options.volume_size(),
            present: (true, true),
            in_flight: Vec::new(),
            flushes: BTreeMap::new(),
            discarded_failed: false,
            answered: 0,
            status_extents: [0; 2],
            from_frames: 0,
        }
    }

    /// The shard under test, whose policies may be replaced before the first bio.
    pub fn shard(&mut self) -> &mut Shard {
        &mut self.shard
    }

    /// Number of bios answered so far.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Extents reported to clients as data, and as zeros.
    #[must_use]
    pub fn status_extents(&self) -> [u64; 2] {
        self.status_extents
    }

    /// Reads that were answered from frames.
    #[must_use]
    pub fn from_frames(&self) -> u64 {
        self.from_frames
    }

    /// Whether the source of decisions is exhausted.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.choices.is_exhausted()
    }

    fn base(&self, id: u32) -> u64 {
        self.options.region * u64::from(id)
    }

    fn is_cached(&self) -> bool {
        self.config.cache.is_on() && self.config.volumes[0].options.mode != WriteMode::None
    }

    fn next_bio(&mut self, id: u32) -> Bio {
        let ops = [Op::Read, Op::Read, Op::Write, Op::Write, Op::Write, Op::Flush, Op::Discard];
        let ops = [&ops[..], &[Op::WriteZeroes, Op::Prefetch, Op::BlockStatus]].concat();
        let (region, base) = (self.options.region, self.base(id));
        let choices = &mut self.choices;
        let op = ops[choices.below(ops.len() as u64) as usize];
        let longest = LENGTHS[choices.below(3) as usize];
        let mut offset = choices.below(region - 1);
        let mut len = 1 + choices.below(longest.min(region - offset));
        let mut flags = BioFlags::SYNC;
        if choices.below(8) == 1 {
            flags = flags.with(BioFlags::FUA);
        }
        if op == Op::BlockStatus && choices.below(2) == 1 {
            flags = flags.with(BioFlags::ONE_EXTENT);
        }
        if choices.below(6) == 1 && op.has_data() {
            flags = flags.with(BioFlags::DIRECT);
        }
        let block = u64::from(self.config.volumes[0].options.block_size);
        if flags.contains(BioFlags::DIRECT) || !self.is_cached() {
            // Bios that bypass the cache are aligned to the device's blocks.
            let start = (base + offset).next_multiple_of(block);
            let end = (start + len.next_multiple_of(block)).min((base + region) / block * block);
            if start < end {
                (offset, len) = (start - base, end - start);
            } else {
                flags = flags.without(BioFlags::DIRECT);
            }
        }
        let client = &mut self.clients[id as usize];
        client.sequence += 1;
        let (offset, len) = if op == Op::Flush { (0, 0) } else { (base + offset, len) };
        let id = BioId { connection: id, sequence: client.sequence, ..BioId::default() };
        Bio { id, offset, len: len as u32, op, flags, ..Bio::default() }
    }

    fn submit_all(&mut self, only: Option<Op>) -> Vec<Input> {
        let mut inputs = Vec::new();
        for id in 0..self.options.clients {
            if self.clients[id as usize].bio.is_some() || self.choices.below(3) == 2 {
                continue;
            }
            let mut bio = self.next_bio(id);
            if let Some(op) = only {
                let whole = (self.base(id), self.options.region as u32);
                let (offset, len) = if op == Op::Flush { (0, 0) } else { whole };
                bio = Bio { op, offset, len, flags: BioFlags::SYNC, ..bio };
            }
            let word = (self.choices.below(1 << 24) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let client = &mut self.clients[id as usize];
            if bio.op == Op::Write {
                let word = word.to_le_bytes();
                for (index, byte) in client.buffer[..bio.len as usize].iter_mut().enumerate() {
                    *byte = word[index % 8] ^ (index >> 3) as u8;
                }
            } else {
                client.buffer[..bio.len as usize].fill(0xee);
            }
            (client.bio, client.cut_from) = (Some(bio), u64::MAX);
            let no_buffer = bio.op == Op::Read && client.sequence % 2 == 1;
            let flags = if no_buffer { bio.flags.with(BioFlags::NO_BUFFER) } else { bio.flags };
            inputs.push(Input::Bio(Bio { flags, ..bio }));
        }
        inputs
    }

    fn turn(&mut self, inputs: &[Input]) {
        self.shard.handle(Instant(self.now), inputs);
        let actions: Vec<Action> = self.shard.actions().list.clone();
        let segments = self.shard.actions().segments.clone();
        let ranges = self.shard.actions().ranges.clone();
        let mut returned = Vec::new();
        self.shard.clear_actions();
        self.shard.check_cache();
        for action in actions {
            match action {
                Action::Submit(submit) => {
                    let first = submit.first_segment as usize;
                    let list = &segments[first..first + usize::from(submit.segments)];
                    let place = |segment: &headworks_core::Segment| match segment.bio.unit() {
                        Some(unit) => u64::from(unit) * FRAME + u64::from(segment.offset),
                        None => {
                            let client = u64::from(segment.bio.connection);
                            BUFFERS | client << 32 | u64::from(segment.offset)
                        }
                    };
                    let places: Vec<(u64, u32)> =
                        list.iter().map(|segment| (place(segment), segment.len)).collect();
                    let submitted_data = match submit.op {
                        Op::Write => self.bytes(&places),
                        _ => Vec::new(),
                    };
                    self.in_flight.push(InFlight { submit, places, submitted_data });
                }
                Action::Copy { bio, offset, len, at, direction } => {
                    let (at, len, offset) = (at as usize, len as usize, offset as usize);
                    let buffer = &mut self.clients[bio.connection as usize].buffer;
                    let buffer = &mut buffer[offset..offset + len];
                    match direction {
                        CopyDirection::ToPool => self.pool[at..at + len].copy_from_slice(buffer),
                        CopyDirection::ToBuffer => buffer.copy_from_slice(&self.pool[at..at + len]),
                    }
                }
                Action::ReplyFrames { id, first, ranges: count, .. } => {
                    let buffer = &mut self.clients[id.connection as usize].buffer;
                    let mut done = 0;
                    for range in &ranges[first as usize..][..usize::from(count)] {
                        let (at, len) = (range.at as usize, range.len as usize);
                        buffer[done..done + len].copy_from_slice(&self.pool[at..at + len]);
                        done += len;
                    }
                    self.from_frames += 1;
                    self.on_reply(id, Ok(()), false, ReplyStage::Final);
                }
                Action::NeedsBuffer { id, .. } => {
                    let bio = self.clients[id.connection as usize].bio;
                    let bio = bio.expect("only bios in flight are returned");
                    assert!(bio.id == id && bio.op == Op::Read);
                    returned.push(Input::Bio(bio));
                }
                Action::Data { bio, len } => {
                    let buffer = &mut self.clients[bio.connection as usize].buffer;
                    let mut list = ExtentWriter::new(buffer, len, 1);
                    list.push(len.into(), ExtentState::DATA);
                    list.finish();
                }
                Action::Zero { at, len } => {
                    self.pool[at as usize..at as usize + len as usize].fill(0);
                }
                Action::Move { from, to, len } => {
                    self.pool.copy_within(from as usize..from as usize + len as usize, to as usize);
                }
                Action::Reply { id, status, hole, stage, .. } => {
                    self.on_reply(id, status, hole, stage);
                }
                Action::SetDirty { .. } | Action::Prepare { .. } => {}
                Action::Release { at, len } => {
                    self.pool[at as usize..at as usize + len as usize].fill(POISON);
                }
                Action::Timer { at } => self.timer = Some(at.0),
                Action::Notice(notice) => self.on_notice(notice),
                Action::Send { .. } => panic!("there is one shard"),
            }
        }
        if !returned.is_empty() {
            self.turn(&returned);
        }
    }

    fn bytes(&self, places: &[(u64, u32)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for &(at, len) in places {
            let from = match at & BUFFERS {
                0 => &self.pool[at as usize..],
                _ => &self.clients[(at >> 32 & 0xff) as usize].buffer[at as u32 as usize..],
            };
            bytes.extend_from_slice(&from[..len as usize]);
        }
        bytes
    }

    fn on_reply(&mut self, id: BioId, status: Status, hole: bool, stage: ReplyStage) {
        let client = &mut self.clients[id.connection as usize];
        let bio = client.bio.expect("only bios in flight are answered");
        assert_eq!(bio.id, id);
        if stage == ReplyStage::Released {
            assert!(client.answered_early, "released after an answer");
            (client.bio, client.answered_early) = (None, false);
            return;
        }
        assert!(!client.answered_early, "answered once");
        assert!(status.is_ok() || self.options.faults, "{bio:?}: {status:?}");
        self.answered += 1;
        client.answered_early = stage == ReplyStage::Early;
        if stage == ReplyStage::Final {
            client.bio = None;
        }
        if bio.op == Op::Flush {
            self.flushes.insert(id.connection, status);
            return;
        }
        match status {
            Ok(()) => self.on_success(bio, hole),
            Err(_) if bio.op.is_write() => {
                let base = self.base(id.connection);
                let range = (bio.offset - base) as usize..(bio.end() - base) as usize;
                self.clients[id.connection as usize].forget(range, false);
            }
            Err(_) => {}
        }
    }

    /// Fixes the contents of bytes that a shrink cut off to what this read returned. Not with
    /// `writethrough`: present a failed write-out is dropped, and later reads return the device's
    /// contents.
    fn learn(&mut self, bio: &Bio, hole: bool) {
        let (from, client) = self.part_of(bio);
        if client.cut_from < u64::MAX || !client.cut[from.clone()].contains(&true) {
            return;
        }
        for at in from.clone() {
            if std::mem::take(&mut client.cut[at]) {
                client.known[at] = true;
                client.expected[at] = if hole { 0 } else { client.buffer[at - from.start] };
            }
        }
    }

    /// The range of a bio within its client's region.
    fn part_of(&mut self, bio: &Bio) -> (Range<usize>, &mut Client) {
        let base = self.base(bio.id.connection);
        let client = &mut self.clients[bio.id.connection as usize];
        ((bio.offset - base) as usize..(bio.end() - base) as usize, client)
    }

    fn on_success(&mut self, bio: Bio, hole: bool) {
        let base = self.base(bio.id.connection);
        let (from, len) = ((bio.offset - base) as usize, bio.len as usize);
        let granularity = match self.is_cached() {
            true => FRAME,
            false => u64::from(self.config.volumes[0].options.block_size),
        };
        let granularity = granularity.max(self.config.devices[0].queue.discard_granularity.into());
        let client = &mut self.clients[bio.id.connection as usize];
        match bio.op {
            Op::Read => {
                // Mostly all bytes are known and right, which one comparison of memory tells.
                let same = !hole && client.buffer[..len] == client.expected[from..from + len];
                let found = |at: usize| if hole { 0 } else { client.buffer[at] };
                let differs = |&at: &usize| {
                    client.known[from + at] && found(at) != client.expected[from + at]
                };
                let wrong = if same { None } else { (0..len).find(differs) };
                assert!(wrong.is_none(), "{bio:?} differs at {wrong:?}");
                if self.config.volumes[0].options.mode != WriteMode::Writethrough {
                    self.learn(&bio, hole);
                }
            }
            Op::Write => {
                let written = client.buffer[..len].to_vec();
                client.record(from, written.into_iter());
            }
            Op::WriteZeroes => client.record(from, vec![0; len].into_iter()),
            Op::Discard => {
                // Rounded inward to the discard granularity; this disk reads zeros afterwards.
                let start = bio.offset.next_multiple_of(granularity);
                let end = bio.end() / granularity * granularity;
                if start < end {
                    let at = (start - base) as usize;
                    client.record(at, vec![0; (end - start) as usize].into_iter());
                }
            }
            Op::BlockStatus => {
                let mut at = from;
                for Extent { len, state } in extents(&client.buffer, bio.len) {
                    let end = at + len as usize;
                    let wrong = (at..end).find(|&at| client.known[at] && client.expected[at] != 0);
                    let zero = state.contains(ExtentState::ZERO);
                    assert!(!zero || wrong.is_none(), "{bio:?} reported zeros at {wrong:?}");
                    self.status_extents[usize::from(zero)] += 1;
                    at = end;
                }
                assert!(at > from, "{bio:?} got an empty list");
            }
            Op::Flush | Op::Prefetch => {}
        }
        let (range, client) = self.part_of(&bio);
        if bio.op.is_write() && client.cut_from < bio.end() {
            let cut_from = client.cut_from.max(bio.offset) - bio.offset;
            client.forget(range.start + cut_from as usize..range.end, true);
        }
        let durable = bio.flags.contains(BioFlags::FUA)
            && matches!(bio.op, Op::Write | Op::WriteZeroes)
            && self.config.volumes[0].options.mode != WriteMode::Unsafe;
        if durable {
            self.compare(bio.id.connection, from..from + len, "acknowledged with FUA");
        }
    }

    /// Asserts that the known bytes of a client's range are on the disk.
    fn compare(&self, id: u32, range: Range<usize>, why: &str) {
        let (client, base) = (&self.clients[id as usize], self.base(id) as usize);
        let differs =
            |at: &usize| client.known[*at] && self.disk[base + at] != client.expected[*at];
        let wrong = range.clone().find(differs);
        assert!(wrong.is_none(), "client {id}: {range:?} was {why}, {wrong:?} is not on the disk");
    }

    /// Completes one command in flight, with or without a fault.
    fn complete_one(&mut self) -> Option<Input> {
        if self.in_flight.is_empty() {
            return None;
        }
        let at = self.choices.below(self.in_flight.len() as u64) as usize;
        let InFlight { submit, places, submitted_data } = self.in_flight.swap_remove(at);
        let mut completion =
            Completion { id: submit.id, transferred: submit.len, status: Ok(()), hole: false };
        let fault = if self.options.faults { self.choices.below(16) } else { 0 };
        match fault {
            15 => completion.status = Err(IoError::Medium),
            14 => completion.status = Err(IoError::NoSpace),
            13 => completion.status = Err(IoError::Busy),
            // A short transfer moves at least 512 bytes: zero bytes would mean the end of the file.
            12 if submit.op.has_data() && submit.len >= 1024 => {
                completion.transferred = submit.len / 1024 * 512;
            }
            _ => {}
        }
        if completion.status.is_err() {
            completion.transferred = 0;
        }
        let moved = if submit.op.has_data() { completion.transferred } else { submit.len };
        if submit.op == Op::Write && !places.is_empty() {
            let bytes = self.bytes(&places);
            assert!(bytes == submitted_data, "the data of a write changed in flight");
        }
        if completion.status.is_ok() {
            self.apply(&submit, &places, moved as usize);
        }
        Some(Input::Complete { device: DeviceId(0), completion })
    }

    fn apply(&mut self, submit: &Submit, places: &[(u64, u32)], moved: usize) {
        let start = submit.offset as usize;
        match submit.op {
            Op::Read => {
                let mut done = 0;
                for &(at, len) in places {
                    let len = (len as usize).min(moved - done);
                    let bytes = &self.disk[start + done..start + done + len];
                    let into = match at & BUFFERS {
                        0 => &mut self.pool[at as usize..],
                        _ => {
                            let client = &mut self.clients[(at >> 32 & 0xff) as usize];
                            &mut client.buffer[at as u32 as usize..]
                        }
                    };
                    into[..len].copy_from_slice(bytes);
                    done += len;
                }
            }
            Op::Write if submit.segments > 0 => {
                let bytes = self.bytes(places);
                self.disk[start..start + moved].copy_from_slice(&bytes[..moved]);
            }
            Op::Write | Op::WriteZeroes | Op::Discard => {
                self.disk[start..start + moved].fill(0);
            }
            Op::BlockStatus => {
                let client = (places[0].0 >> 32 & 0xff) as usize;
                write_status(&self.disk, submit, &mut self.clients[client].buffer);
            }
            Op::Flush | Op::Prefetch => {}
        }
    }

    /// Runs `steps` steps with bios of any kind, or with bios of one kind over whole regions.
    pub fn run(&mut self, steps: u64, only: Option<Op>) {
        for _ in 0..steps {
            self.now += self.choices.below(400_000);
            let mut inputs = Vec::new();
            if self.timer.is_some_and(|at| at <= self.now) {
                self.timer = None;
                inputs.push(Input::Timer);
            }
            for _ in 0..self.choices.below(4) {
                inputs.extend(self.complete_one());
            }
            inputs.extend(self.submit_all(only));
            if self.options.faults {
                self.inject_inputs(&mut inputs);
            }
            self.turn(&inputs);
        }
    }

    /// Runs until every bio is answered.
    pub fn drain(&mut self) {
        let mut idle = 0;
        while self.clients.iter().any(|client| client.bio.is_some()) {
            let mut inputs: Vec<Input> = self.complete_one().into_iter().collect();
            if inputs.is_empty() {
                let at = self.timer.take().unwrap_or_else(|| {
                    let waiting: Vec<_> = self.clients.iter().filter_map(|c| c.bio).collect();
                    panic!("no event is pending for these bios: {waiting:?}")
                });
                self.now = self.now.max(at);
                inputs.push(Input::Timer);
                idle += 1;
                assert!(idle < 100_000, "no progress: {:?}", self.shard.cache_stats());
            }
            self.turn(&inputs);
        }
    }

    /// Replaces the shard by a new one that adopts its cache, if the volume is present; returns whether it is.
    ///
    /// # Panics
    /// If the frozen shard does not become quiet, or its contents are refused.
    pub fn hand_over(&mut self) -> bool {
        if self.present != (true, true) {
            return false;
        }
        self.turn(&[Input::Control(Control::Freeze { on: true })]);
        let mut events = 0;
        while !self.shard.is_quiet() {
            let mut inputs: Vec<Input> = self.complete_one().into_iter().collect();
            if inputs.is_empty() {
                let at = self.timer.take().expect("a shard that is not quiet waits for an event");
                self.now = self.now.max(at);
                inputs.push(Input::Timer);
            }
            self.turn(&inputs);
            events += 1;
            assert!(events < 100_000, "no progress: {}", self.shard.told_waits());
        }
        let now = Instant(self.now);
        let dirty = self.shard.dirty_bytes(VolumeId(0));
        let words = self.shard.contents(now).expect("it is frozen and quiet").encode();
        let contents = CacheContents::decode(&words).expect("words of this version");
        self.config.volumes[0].options.size = self.size;
        self.shard = Shard::new(self.config.clone()).expect("a valid configuration");
        self.shard
            .adopt_cache(now, &contents, Some, |_| ExportId(0), Some)
            .expect("the same geometry");
        self.shard.check_cache();
        assert_eq!(self.shard.dirty_bytes(VolumeId(0)), dirty);
        self.timer = None;
        self.turn(&[]);
        true
    }

    /// Flushes, compares the known bytes with the disk if every flush succeeded, then reads
    /// everything.
    pub fn flush_and_compare(&mut self) {
        self.drain();
        let longest = self.resize(self.options.volume_size());
        self.turn(&[longest]);
        for _ in 0..1000 {
            if self.present == (true, true) {
                break;
            }
            self.add_back();
            self.turn(&[]);
        }
        assert_eq!(self.present, (true, true), "the volume and its device can be added");
        self.flushes.clear();
        self.run(20, Some(Op::Flush));
        self.drain();
        let promised = self.config.volumes[0].options.mode != WriteMode::Unsafe;
        let all = self.flushes.len() == self.clients.len();
        if promised && all && self.flushes.values().all(Result::is_ok) {
            for id in 0..self.options.clients {
                self.compare(id, 0..self.options.region as usize, "flushed");
            }
        }
        self.run(20, Some(Op::Read));
        self.drain();
    }
}
