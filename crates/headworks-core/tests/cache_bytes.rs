//! The cache with real bytes: a shard, a pool, a disk that answers in any order, and a model of what every byte must be.
//!
//! Each connection has a region of its own and one bio on its way, so what a read must find is known exactly. The pool is much
//! smaller than the volume.

use std::collections::BTreeMap;

use headworks_core::prng::Prng;
use headworks_core::writeback::DirtyOptions;
use headworks_core::{
    Action, Bio, BioFlags, BioId, CacheOptions, Completion, DeviceId, Input, Instant, Op,
    QueueOptions, Shard, ShardConfig, Submit, Towards, VolumeOptions, WriteMode,
};

const REGION: u64 = 100_000;
const CLIENTS: u32 = 6;
const SIZE: u64 = REGION * CLIENTS as u64 + 1088;

struct Client {
    prng: Prng,
    buffer: Vec<u8>,
    expected: Vec<u8>,
    bio: Option<Bio>,
    sequence: u64,
}

struct Bench {
    shard: Shard,
    now: u64,
    timer: Option<u64>,
    pool: Vec<u8>,
    disk: Vec<u8>,
    flying: Vec<(Submit, Vec<(u64, u32)>)>,
    clients: Vec<Client>,
    prng: Prng,
    /// Bytes under a write at its submission: they must be the same at its completion.
    given: BTreeMap<(u32, u32), Vec<u8>>,
    answered: u64,
}

impl Bench {
    fn new(seed: u64, mode: WriteMode, units: u32, change: fn(&mut ShardConfig)) -> Self {
        let volume = VolumeOptions { size: SIZE, block_size: 512, mode, ..Default::default() };
        let queue = QueueOptions { queue_depth: 8, nr_requests: 16, ..QueueOptions::default() };
        let mut config = ShardConfig::single(queue, volume, 64);
        config.cache = CacheOptions { units, account: 1 << 20, ..CacheOptions::default() };
        config.dirty = DirtyOptions { dirty_expire_centisecs: 5, ..DirtyOptions::default() };
        change(&mut config);
        let root = Prng::new(seed);
        let client = |id: u32| Client {
            prng: Prng::new(seed * 1000 + u64::from(id)),
            buffer: vec![0; REGION as usize],
            expected: vec![0; REGION as usize],
            bio: None,
            sequence: 0,
        };
        Self {
            shard: Shard::new(config).unwrap(),
            now: 0,
            timer: None,
            pool: vec![0xaa; units as usize * 4096],
            disk: vec![0; SIZE as usize],
            flying: Vec::new(),
            clients: (0..CLIENTS).map(client).collect(),
            prng: root.split("disk"),
            given: BTreeMap::new(),
            answered: 0,
        }
    }

    fn next_bio(&mut self, id: u32) -> Bio {
        let client = &mut self.clients[id as usize];
        let prng = &mut client.prng;
        let op = [Op::Read, Op::Read, Op::Write, Op::Write, Op::Write, Op::Flush, Op::Discard]
            .into_iter()
            .chain([Op::WriteZeroes, Op::Prefetch])
            .nth(prng.below(9) as usize)
            .unwrap();
        let len_max = [600, 5000, 40_000][prng.below(3) as usize];
        let mut offset = prng.below(REGION - 1);
        let mut len = 1 + prng.below(len_max.min(REGION - offset));
        let mut flags = BioFlags::SYNC;
        if prng.below(8) == 0 {
            flags = flags.with(BioFlags::FUA);
        }
        let base = REGION * u64::from(id);
        if prng.below(6) == 0 && op.has_data() {
            // Direct I/O is aligned to the device's blocks.
            flags = flags.with(BioFlags::DIRECT);
            let start = (base + offset).next_multiple_of(512);
            let end = (start + len.next_multiple_of(512)).min((base + REGION) / 512 * 512);
            if start < end {
                (offset, len) = (start - base, end - start);
            }
        }
        if op == Op::Flush {
            (offset, len) = (0, 0);
        }
        client.sequence += 1;
        let offset = if op == Op::Flush { 0 } else { base + offset };
        let id = BioId { connection: id, sequence: client.sequence, ..BioId::default() };
        Bio { id, offset, len: len as u32, op, flags, ..Bio::default() }
    }

    fn submit_all(&mut self, only: Option<Op>) -> Vec<Input> {
        let mut inputs = Vec::new();
        for id in 0..CLIENTS {
            if self.clients[id as usize].bio.is_some() || self.prng.below(3) == 0 {
                continue;
            }
            let mut bio = self.next_bio(id);
            if let Some(op) = only {
                let base = REGION * u64::from(id);
                bio = Bio { op, offset: base, len: REGION as u32, flags: BioFlags::SYNC, ..bio };
                if op == Op::Flush {
                    (bio.offset, bio.len) = (0, 0);
                }
            }
            let client = &mut self.clients[id as usize];
            if bio.op == Op::Write {
                let word = client.prng.next().to_le_bytes();
                for (index, byte) in client.buffer[..bio.len as usize].iter_mut().enumerate() {
                    *byte = word[index % 8] ^ (index >> 3) as u8;
                }
            } else {
                client.buffer.fill(0xee);
            }
            client.bio = Some(bio);
            inputs.push(Input::Bio(bio));
        }
        inputs
    }

    fn turn(&mut self, inputs: &[Input]) {
        self.shard.handle(Instant(self.now), inputs);
        let actions: Vec<Action> = self.shard.actions().list.clone();
        let segments = self.shard.actions().segments.clone();
        self.shard.clear_actions();
        self.shard.check_cache();
        for action in actions {
            match action {
                Action::Submit(submit) => {
                    let first = submit.first_segment as usize;
                    let list = &segments[first..first + usize::from(submit.segments)];
                    let places: Vec<(u64, u32)> = list
                        .iter()
                        .map(|segment| match segment.bio.unit() {
                            Some(unit) => {
                                (u64::from(unit) * 4096 + u64::from(segment.offset), segment.len)
                            }
                            None => {
                                let client = u64::from(segment.bio.connection);
                                let at = 1 << 40 | client << 32 | u64::from(segment.offset);
                                (at, segment.len)
                            }
                        })
                        .collect();
                    if submit.op == Op::Write {
                        let bytes = self.bytes(&places);
                        self.given.insert((submit.id.slot, submit.id.generation), bytes);
                    }
                    self.flying.push((submit, places));
                }
                Action::Copy { bio, offset, len, at, towards } => {
                    let (at, len, offset) = (at as usize, len as usize, offset as usize);
                    let buffer = &mut self.clients[bio.connection as usize].buffer;
                    match towards {
                        Towards::Pool => {
                            self.pool[at..at + len].copy_from_slice(&buffer[offset..offset + len])
                        }
                        Towards::Buffer => {
                            buffer[offset..offset + len].copy_from_slice(&self.pool[at..at + len])
                        }
                    }
                }
                Action::Zero { at, len } => {
                    self.pool[at as usize..at as usize + len as usize].fill(0)
                }
                Action::Move { from, to, len } => {
                    self.pool.copy_within(from as usize..from as usize + len as usize, to as usize)
                }
                Action::Reply { id, status, hole, .. } => {
                    assert_eq!(status, Ok(()));
                    self.answer(id, hole);
                }
                Action::Timer { at } => self.timer = Some(at.0),
                Action::Notice(notice) => panic!("{notice:?}"),
                Action::Send { .. } => panic!("there is one shard"),
            }
        }
    }

    fn bytes(&self, places: &[(u64, u32)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for &(at, len) in places {
            let from = match at >> 40 {
                0 => &self.pool[at as usize..],
                _ => &self.clients[(at >> 32 & 0xff) as usize].buffer[at as u32 as usize..],
            };
            bytes.extend_from_slice(&from[..len as usize]);
        }
        bytes
    }

    fn answer(&mut self, id: BioId, hole: bool) {
        self.answered += 1;
        let size = self.disk.len();
        let client = &mut self.clients[id.connection as usize];
        let bio = client.bio.take().expect("answered once");
        assert_eq!(bio.id, id);
        let base = REGION * u64::from(id.connection);
        let from = bio.offset.saturating_sub(base) as usize;
        let range = from..from + bio.len as usize;
        match bio.op {
            Op::Read => {
                let buffer = if hole { &vec![0; range.len()] } else { &client.buffer };
                let same = buffer[..range.len()] == client.expected[range.clone()];
                let at = (0..range.len()).find(|&i| buffer[i] != client.expected[range.start + i]);
                assert!(same, "{bio:?} differs at {at:?} of {size}");
            }
            Op::Write => {
                let len = range.len();
                client.expected[range.clone()].copy_from_slice(&client.buffer[..len]);
            }
            Op::WriteZeroes => client.expected[range.clone()].fill(0),
            Op::Discard => {
                // Inward to 4 KiB of the volume.
                let start = bio.offset.next_multiple_of(4096);
                let end = bio.end() / 4096 * 4096;
                if start < end {
                    client.expected[(start - base) as usize..(end - base) as usize].fill(0);
                }
            }
            Op::Flush | Op::Prefetch => {}
        }
        if bio.flags.contains(BioFlags::FUA) && bio.op.is_write() && bio.op != Op::Discard {
            let on_disk = &self.disk[bio.offset as usize..bio.end() as usize];
            assert!(on_disk == &client.expected[range], "{bio:?} is not on the disk");
        }
    }

    /// The disk finishes something.
    fn complete_one(&mut self) -> Option<Input> {
        if self.flying.is_empty() {
            return None;
        }
        let at = self.prng.below(self.flying.len() as u64) as usize;
        let (submit, places) = self.flying.swap_remove(at);
        let (start, len) = (submit.offset as usize, submit.len as usize);
        match submit.op {
            Op::Read => {
                let mut done = 0;
                for (at, len) in places {
                    let bytes = &self.disk[start + done..start + done + len as usize];
                    match at >> 40 {
                        0 => self.pool[at as usize..][..len as usize].copy_from_slice(bytes),
                        _ => {
                            let buffer = &mut self.clients[(at >> 32 & 0xff) as usize].buffer;
                            buffer[at as u32 as usize..][..len as usize].copy_from_slice(bytes);
                        }
                    }
                    done += len as usize;
                }
            }
            Op::Write if submit.segments > 0 => {
                let bytes = self.bytes(&places);
                let given = self.given.remove(&(submit.id.slot, submit.id.generation)).unwrap();
                assert!(bytes == given, "the bytes of a write changed under the device");
                self.disk[start..start + len].copy_from_slice(&bytes);
            }
            Op::Write | Op::WriteZeroes | Op::Discard => self.disk[start..start + len].fill(0),
            Op::Flush | Op::Prefetch => {}
        }
        let completion =
            Completion { id: submit.id, transferred: submit.len, status: Ok(()), hole: false };
        Some(Input::Complete { device: DeviceId(0), completion })
    }

    fn run(&mut self, steps: u64, only: Option<Op>) {
        for _ in 0..steps {
            self.now += self.prng.below(400_000);
            let mut inputs = Vec::new();
            if self.timer.is_some_and(|at| at <= self.now) {
                self.timer = None;
                inputs.push(Input::Timer);
            }
            for _ in 0..self.prng.below(4) {
                inputs.extend(self.complete_one());
            }
            inputs.extend(self.submit_all(only));
            self.turn(&inputs);
        }
    }

    /// Everything on its way ends.
    fn drain(&mut self) {
        let mut idle = 0;
        while self.clients.iter().any(|client| client.bio.is_some()) {
            let mut inputs: Vec<Input> = self.complete_one().into_iter().collect();
            if inputs.is_empty() {
                let at = self.timer.take().unwrap_or_else(|| {
                    let waiting: Vec<_> = self.clients.iter().filter_map(|c| c.bio).collect();
                    panic!("bios wait and nothing will end it: {waiting:?}")
                });
                self.now = self.now.max(at);
                inputs.push(Input::Timer);
                idle += 1;
                assert!(idle < 100_000, "nothing ends: {:?}", self.shard.cache_stats());
            }
            self.turn(&inputs);
        }
    }

    fn flush_and_compare(&mut self) {
        self.drain();
        self.run(20, Some(Op::Flush));
        self.drain();
        for (id, client) in self.clients.iter().enumerate() {
            let base = id * REGION as usize;
            assert!(
                self.disk[base..base + REGION as usize] == client.expected[..],
                "what was flushed is on the disk"
            );
        }
        self.run(20, Some(Op::Read));
        self.drain();
    }
}

fn rounds(mode: WriteMode, units: u32, seeds: std::ops::Range<u64>, change: fn(&mut ShardConfig)) {
    for seed in seeds {
        let mut bench = Bench::new(seed, mode, units, change);
        for _ in 0..4 {
            bench.run(600, None);
            bench.flush_and_compare();
        }
        assert!(bench.answered > 1000, "{} bios", bench.answered);
    }
}

#[test]
fn every_byte_is_where_it_should_be_in_a_pool_that_is_too_small() {
    // 614 KB of volume: 150 blocks, in 256 frames less the shadows; and then in fewer still.
    rounds(WriteMode::Writeback, 256, 1..30, |_| {});
}

#[test]
fn small_folios_and_a_tiny_limit() {
    rounds(WriteMode::Writeback, 256, 30..60, |config| {
        config.dirty.dirty_bytes = 64 << 10;
        config.devices[0].queue.max_folio_order = 0;
        config.devices[0].queue.read_ahead_kb = 0;
    });
}

#[test]
fn writethrough_is_on_the_device_when_it_is_answered() {
    rounds(WriteMode::Writethrough, 256, 60..80, |_| {});
}

#[test]
fn the_old_way_of_throttling_keeps_every_byte_too() {
    rounds(WriteMode::Writeback, 256, 80..100, |config| {
        config.dirty.policy = headworks_core::writeback::ThrottlePolicy::Foreground;
        config.dirty.dirty_bytes = 128 << 10;
    });
}
