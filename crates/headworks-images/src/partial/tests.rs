//! Parts of blocks on a device that refuses them, with chosen and random orders of its answers.

use super::*;
use headworks_core::extent::extents;
use headworks_core::prng::Prng;
use headworks_core::{BioFlags, ExtentState, Op, RequestId, Status};
use headworks_testing::{Bench, against_model};

const BLOCK: usize = 512;
const NONE: BioFlags = BioFlags::NONE;

/// A disk of whole blocks whose answers come when a test says so, in any order.
struct WholeDisk {
    bytes: Vec<u8>,
    block: usize,
    pending: Vec<(Command, Vec<Span>)>,
    /// Commands as they came.
    log: Vec<(Op, u64, u32, BioFlags)>,
    /// Answers of the next commands that are carried out, in place of what they ask for.
    script: VecDeque<Option<(u32, Status)>>,
    /// Everything is answered within `submit`.
    at_once: bool,
}

impl WholeDisk {
    fn new(size: usize, block: usize) -> Self {
        let bytes = vec![0; size];
        let (pending, log, script) = (Vec::new(), Vec::new(), VecDeque::new());
        Self { bytes, block, pending, log, script, at_once: false }
    }

    fn check(&self, command: &Command, spans: &[Span]) {
        let (offset, len) = (command.offset as usize, command.len as usize);
        let is_whole = (offset | len).is_multiple_of(self.block);
        assert!(is_whole, "{command:?} is no whole blocks");
        assert!(offset + len <= self.bytes.len(), "{command:?} is beyond the end");
        if command.op.has_data() && !spans.is_empty() {
            assert!(spans.iter().all(|span| (span.base() as usize).is_multiple_of(self.block)));
            assert_eq!(spans.iter().map(|span| span.len()).sum::<usize>(), len);
        }
    }

    /// Carries out one of the pending commands.
    fn answer(&mut self, index: usize, io: &mut DeviceIo<'_>) {
        let (command, spans) = self.pending.remove(index);
        if let Some(Some((transferred, status))) = self.script.pop_front() {
            return io.completions.push(Completion { transferred, status, ..command.done() });
        }
        let range = command.offset as usize..command.offset as usize + command.len as usize;
        match command.op {
            Op::Read => {
                let mut from = range.start;
                for span in &spans {
                    // SAFETY: memory of the test, which outlives the command.
                    unsafe { span.bytes_mut() }.copy_from_slice(&self.bytes[from..][..span.len()]);
                    from += span.len();
                }
            }
            Op::Write if !spans.is_empty() => {
                let mut from = range.start;
                for span in &spans {
                    // SAFETY: as above.
                    self.bytes[from..][..span.len()].copy_from_slice(unsafe { span.bytes() });
                    from += span.len();
                }
            }
            Op::Write | Op::WriteZeroes | Op::Discard => self.bytes[range].fill(0),
            Op::BlockStatus => {
                let blocks = self.bytes[range].chunks(self.block);
                let state = |block: &[u8]| match block.iter().all(|&byte| byte == 0) {
                    true => ExtentState::HOLE_ZERO,
                    false => ExtentState::DATA,
                };
                // SAFETY: as above.
                let told = unsafe {
                    command.tell_extents(&spans, |list| {
                        blocks.for_each(|one| _ = list.push(one.len() as u64, state(one)));
                    })
                };
                return io.completions.push(told);
            }
            Op::Flush | Op::Prefetch => {}
        }
        io.completions.push(command.done());
    }
}

impl Device for WholeDisk {
    unsafe fn submit(&mut self, _: Instant, batch: CommandBatch<'_>, io: &mut DeviceIo<'_>) {
        for command in batch.commands {
            let spans = batch.spans_of(command);
            self.check(command, spans);
            self.log.push((command.op, command.offset, command.len, command.flags));
            self.pending.push((*command, spans.to_vec()));
            if self.at_once {
                self.answer(self.pending.len() - 1, io);
            }
        }
    }
}

/// A disk of 64 KiB behind the device, where byte `i` is `i % 251`.
fn bench() -> Bench<PartialDevice> {
    sized(64 << 10, BLOCK)
}

fn sized(size: usize, block: usize) -> Bench<PartialDevice> {
    let mut disk = WholeDisk::new(size, block);
    disk.bytes.iter_mut().enumerate().for_each(|(index, byte)| *byte = (index % 251) as u8);
    let blocks = WholeBlocks::new(block as u32);
    Bench::new(PartialDevice::new(Box::new(disk), [(VolumeId(0), blocks)]))
}

fn disk(bench: &mut Bench<PartialDevice>) -> &mut WholeDisk {
    (bench.device_mut() as &mut dyn Device).find().unwrap()
}

/// Has the disk carry out a pending command; returns what was answered above.
fn answer(bench: &mut Bench<PartialDevice>, index: usize) -> Vec<Completion> {
    let now = bench.now;
    bench.call(|device, io| {
        device.with(now, io, |below, io| below.find::<WholeDisk>().unwrap().answer(index, io));
    });
    std::mem::take(&mut bench.completions)
}

/// Has the disk carry out everything in its order.
fn drain(bench: &mut Bench<PartialDevice>) -> Vec<Completion> {
    let mut all = std::mem::take(&mut bench.completions);
    while !disk(bench).pending.is_empty() {
        all.extend(answer(bench, 0));
    }
    all
}

/// Submits a write of `value`, whose memory the caller keeps.
fn write(bench: &mut Bench<PartialDevice>, offset: u64, bytes: &mut [u8]) -> RequestId {
    // SAFETY: the tests keep it until the command is answered.
    let span = unsafe { Span::new(bytes.as_mut_ptr(), bytes.len()) };
    bench.submit_spans(Op::Write, NONE, offset, bytes.len() as u32, &[span])
}

fn ops(bench: &mut Bench<PartialDevice>) -> Vec<(Op, u64, u32)> {
    let log = std::mem::take(&mut disk(bench).log);
    log.into_iter().map(|(op, offset, len, _)| (op, offset, len)).collect()
}

#[test]
fn part_of_a_block_is_read_changed_and_written() {
    let mut bench = bench();
    let mut model = disk(&mut bench).bytes.clone();
    for (offset, len, steps) in [
        (700, 100, vec![(Op::Read, 512, 512), (Op::Write, 512, 512)]),
        (512, 100, vec![(Op::Read, 512, 512), (Op::Write, 512, 512)]),
        (100, 924, vec![(Op::Read, 0, 512), (Op::Write, 0, 1024)]),
        (1024, 700, vec![(Op::Read, 1536, 512), (Op::Write, 1024, 1024)]),
        (5, 1019 + 4, vec![(Op::Read, 0, 512), (Op::Read, 1024, 512), (Op::Write, 0, 1536)]),
    ] {
        let mut bytes = vec![0xaa; len];
        write(&mut bench, offset, &mut bytes);
        let done = drain(&mut bench);
        assert_eq!((done.len(), done[0].status, done[0].transferred), (1, Ok(()), len as u32));
        assert_eq!(ops(&mut bench), steps);
        model[offset as usize..][..len].copy_from_slice(&bytes);
        assert!(disk(&mut bench).bytes == model, "{offset} + {len}");
    }
}

#[test]
fn writes_of_one_block_follow_each_other() {
    let mut bench = bench();
    let (mut one, mut two, mut whole) = (vec![1; 100], vec![2; 100], [3; 1024]);
    let first = write(&mut bench, 100, &mut one);
    let second = write(&mut bench, 300, &mut two);
    let at = whole.as_ptr().align_offset(BLOCK);
    let third = write(&mut bench, 0, &mut whole[at..at + 512]);
    assert_eq!(ops(&mut bench), [(Op::Read, 0, 512)], "the others wait for the first");
    assert!(answer(&mut bench, 0).is_empty());
    let ids = |done: Vec<Completion>| done.iter().map(|one| one.id).collect::<Vec<_>>();
    assert_eq!(ids(answer(&mut bench, 0)), [first]);
    assert_eq!(ids(drain(&mut bench)), [second, third]);
    assert!(disk(&mut bench).bytes[..512].iter().all(|&byte| byte == 3));
}

#[test]
fn part_waits_for_whole_write_of_its_block() {
    let mut bench = bench();
    let (mut part, mut whole) = (vec![1; 100], [3; 1024]);
    let at = whole.as_ptr().align_offset(BLOCK);
    write(&mut bench, 0, &mut whole[at..at + 512]);
    write(&mut bench, 100, &mut part);
    bench.submit(Op::Read, NONE, 0, 512);
    let seen = [(Op::Write, 0, 512), (Op::Read, 0, 512)];
    assert_eq!(ops(&mut bench), seen, "the part waits, the client's read does not");
    assert_eq!(drain(&mut bench).len(), 3);
    let bytes = &disk(&mut bench).bytes;
    assert!(bytes[..100].iter().chain(&bytes[200..512]).all(|&byte| byte == 3));
    assert!(bytes[100..200].iter().all(|&byte| byte == 1));
}

#[test]
fn whole_write_waits_for_a_change_of_its_block() {
    let mut bench = bench();
    let (mut part, mut whole) = (vec![1; 100], [3; 1024]);
    let at = whole.as_ptr().align_offset(BLOCK);
    write(&mut bench, 100, &mut part);
    write(&mut bench, 0, &mut whole[at..at + 512]);
    bench.submit(Op::Discard, NONE, 0, 512);
    bench.submit(Op::WriteZeroes, NONE, 512, 512);
    let seen = [(Op::Read, 0, 512), (Op::WriteZeroes, 512, 512)];
    assert_eq!(ops(&mut bench), seen, "what touches the block waits, others do not");
    assert_eq!(drain(&mut bench).len(), 4);
    let order = [(Op::Write, 0, 512), (Op::Write, 0, 512), (Op::Discard, 0, 512)];
    assert_eq!(ops(&mut bench), order);
}

#[test]
fn later_whole_write_does_not_overtake_a_waiting_part() {
    let mut bench = bench();
    let (mut part, mut whole) = (vec![1; 100], [3; 1024]);
    let at = whole.as_ptr().align_offset(BLOCK);
    let whole = &mut whole[at..at + 512];
    write(&mut bench, 0, whole);
    write(&mut bench, 100, &mut part);
    write(&mut bench, 0, whole);
    assert_eq!(drain(&mut bench).len(), 3);
    let order: Vec<Op> = ops(&mut bench).into_iter().map(|(op, ..)| op).collect();
    assert_eq!(order, [Op::Write, Op::Read, Op::Write, Op::Write]);
    assert!(disk(&mut bench).bytes[..512].iter().all(|&byte| byte == 3));
}

#[test]
fn failures_below_are_the_answer_and_free_the_blocks() {
    for (step, error) in [(0, IoError::Medium), (1, IoError::NoSpace), (0, IoError::Busy)] {
        let mut bench = bench();
        let before = disk(&mut bench).bytes.clone();
        let mut bytes = vec![1; 100];
        write(&mut bench, 100, &mut bytes);
        disk(&mut bench).script.extend(vec![None; step]);
        disk(&mut bench).script.push_back(Some((0, Err(error))));
        let done = drain(&mut bench);
        assert_eq!((done.len(), done[0].status, done[0].transferred), (1, Err(error), 0));
        assert!(disk(&mut bench).bytes == before);
        write(&mut bench, 100, &mut bytes);
        assert_eq!(drain(&mut bench)[0].status, Ok(()));
        assert_eq!(&disk(&mut bench).bytes[100..200], &bytes[..]);
    }
}

#[test]
fn block_that_is_read_in_part_fails_the_write() {
    let mut bench = bench();
    let mut bytes = vec![1; 100];
    write(&mut bench, 100, &mut bytes);
    disk(&mut bench).script.push_back(Some((511, Ok(()))));
    let done = drain(&mut bench);
    assert_eq!(done[0].status, Err(IoError::Medium));
}

#[test]
fn fua_is_on_the_write_alone_and_flushes_pass() {
    let mut bench = bench();
    bench.submit(Op::Write, BioFlags::FUA, 100, 100);
    bench.submit(Op::Flush, NONE, 0, 0);
    drain(&mut bench);
    let fua: Vec<_> = disk(&mut bench).log.iter().map(|&(op, .., flags)| (op, flags)).collect();
    assert_eq!(fua, [(Op::Read, NONE), (Op::Flush, NONE), (Op::Write, BioFlags::FUA)]);
}

#[test]
fn zeros_change_ends_and_pass_what_is_whole() {
    let mut bench = bench();
    let (mut at, mut left) = (100u64, 2000u32);
    let mut rounds = Vec::new();
    while left > 0 {
        bench.submit(Op::WriteZeroes, NONE, at, left);
        let done = drain(&mut bench)[0];
        assert_eq!(done.status, Ok(()));
        rounds.push(done.transferred);
        (at, left) = (at + u64::from(done.transferred), left - done.transferred);
    }
    assert_eq!(rounds, [412, 1536, 52]);
    let bytes = &disk(&mut bench).bytes;
    assert!(bytes[100..2100].iter().all(|&byte| byte == 0));
    assert_eq!((bytes[99], bytes[2100]), (99, (2100 % 251) as u8));
    ops(&mut bench);
    bench.submit(Op::Discard, NONE, 100, 2000);
    assert_eq!(drain(&mut bench)[0].transferred, 2000);
    bench.submit(Op::Discard, NONE, 100, 200);
    assert_eq!(drain(&mut bench)[0].transferred, 200, "no whole block is in it");
    assert_eq!(ops(&mut bench), [(Op::Discard, 512, 1536)]);
}

#[test]
fn status_begins_at_the_range() {
    let mut bench = bench();
    disk(&mut bench).bytes[512..1024].fill(0);
    bench.submit(Op::BlockStatus, NONE, 100, 1000);
    assert_eq!(drain(&mut bench)[0].status, Ok(()));
    let told: Vec<_> = extents(bench.buffer(), 1000).map(|one| (one.len, one.state)).collect();
    let (data, hole) = (ExtentState::DATA, ExtentState::HOLE_ZERO);
    assert_eq!(told, [(412, data), (512, hole), (76, data)]);
    assert_eq!(ops(&mut bench), [(Op::BlockStatus, 0, 1536)]);
    // A range that is longer than its list.
    bench.submit(Op::BlockStatus, NONE, 100, 60_000);
    assert_eq!(drain(&mut bench)[0].status, Ok(()));
    let told: u32 = extents(bench.buffer(), 60_000).map(|one| one.len).sum();
    assert_eq!(told, 60_000);
}

#[test]
fn memory_that_is_not_aligned_is_copied() {
    let mut bench = bench();
    let mut bytes = vec![7u8; 4 << 10];
    let at = bytes.as_ptr().align_offset(BLOCK) + 8;
    write(&mut bench, 512, &mut bytes[at..at + 1024]);
    assert_eq!(drain(&mut bench)[0].status, Ok(()));
    assert_eq!(ops(&mut bench), [(Op::Write, 512, 1024)], "nothing is read for it");
    assert!(disk(&mut bench).bytes[512..1536].iter().all(|&byte| byte == 7));
}

#[test]
fn long_commands_are_short_transfers_of_one_buffer() {
    let mut bench = sized(1 << 20, BLOCK);
    // The round of the second ends at 4 KiB of the disk, too.
    for offset in [100, 3684] {
        bench.submit(Op::Read, NONE, offset as u64, 300 << 10);
        let done = drain(&mut bench)[0];
        assert_eq!(done.transferred as usize, CHUNK - offset);
        let model = disk(&mut bench).bytes[offset..CHUNK].to_vec();
        assert!(bench.buffer()[..CHUNK - offset] == model);
        assert_eq!(bench.device().pool.as_ref().unwrap().taken(), 0);
    }
}

#[test]
fn commands_beyond_the_buffers_wait() {
    let mut bench = bench();
    for index in 0..JOBS_MAX as u64 + 3 {
        bench.submit(Op::Write, NONE, index * 1024 + 1, 10);
    }
    assert_eq!(disk(&mut bench).pending.len(), JOBS_MAX);
    assert_eq!(drain(&mut bench).len(), JOBS_MAX + 3);
}

#[test]
fn other_volumes_pass_untouched() {
    let mut bench = bench();
    disk(&mut bench).block = 1;
    bench.volume = VolumeId(1);
    bench.submit(Op::Write, NONE, 3, 5);
    assert_eq!(ops(&mut bench), [(Op::Write, 3, 5)]);
    drain(&mut bench);
}

#[test]
fn random_commands_of_any_range_match_vector_model() {
    for block in [512, 4096] {
        for seed in 0..8 {
            let mut bench = sized(1 << 20, block);
            let disk = disk(&mut bench);
            disk.bytes.fill(0);
            disk.at_once = true;
            against_model_with_parts(&mut bench, seed, block);
        }
    }
}

/// The model of all devices with whole blocks, then ranges of any bytes.
fn against_model_with_parts(bench: &mut Bench<PartialDevice>, seed: u64, block: usize) {
    against_model(bench, seed, 1 << 20, block, 100);
    let mut prng = Prng::new(seed);
    let mut model = disk(bench).bytes.clone();
    for _ in 0..300 {
        let (offset, most) = (prng.below((1 << 20) - 1) as usize, 9 * block as u64);
        let len = (1 + prng.below(most) as usize).min((1 << 20) - offset);
        let (mut at, end) = (offset, offset + len);
        let op = [Op::Read, Op::Write, Op::WriteZeroes][prng.below(3) as usize];
        let value = prng.below(255) as u8 + 1;
        bench.buffer()[..len].fill(value);
        while at < end {
            let done = bench.run(op, NONE, at as u64, (end - at) as u32);
            let moved = done.transferred as usize;
            assert!(done.status.is_ok() && moved > 0);
            match op {
                Op::Read => assert!(bench.buffer()[..moved] == model[at..at + moved]),
                Op::Write => model[at..at + moved].fill(value),
                _ => model[at..at + moved].fill(0),
            }
            at += moved;
        }
        assert!(disk(bench).bytes == model, "{op:?} {offset} + {len}");
    }
}

/// A client that owns bytes of its own, which may share blocks with those of others.
struct Client {
    range: std::ops::Range<usize>,
    model: Vec<u8>,
    memory: Vec<u8>,
    /// Its command, and what is left of it.
    doing: Option<(RequestId, Op, usize, usize, u8)>,
}

impl Client {
    fn new(range: std::ops::Range<usize>, bytes: &[u8]) -> Self {
        let model = bytes[range.clone()].to_vec();
        Self { memory: vec![0; model.len()], model, range, doing: None }
    }

    /// Begins a random command, or goes on with one.
    fn submit(
        &mut self,
        bench: &mut Bench<PartialDevice>,
        (op, at, len, value): (Op, usize, usize, u8),
        slot: u32,
    ) {
        let memory = &mut self.memory[..len];
        if op == Op::Write {
            memory.fill(value);
        }
        // SAFETY: the client keeps its memory until it has its answer.
        let span = unsafe { Span::new(memory.as_mut_ptr(), len) };
        let spans: &[Span] = if op.has_data() { &[span] } else { &[] };
        let id = RequestId { slot, generation: value.into() };
        let (volume, offset) = (VolumeId(0), (self.range.start + at) as u64);
        let (len, spans_len) = (len as u32, spans.len() as u16);
        let command =
            Command { id, volume, op, flags: NONE, offset, len, first_span: 0, spans: spans_len };
        bench.submit_batch(CommandBatch { commands: &[command], spans });
        self.doing = Some((id, op, at, len as usize, value));
    }

    /// Takes an answer; what is left is submitted by the caller.
    fn take(&mut self, done: Completion) {
        let Some((_, op, at, len, value)) = self.doing.take() else { panic!("nothing is asked") };
        let moved = match done.status {
            Ok(()) => done.transferred as usize,
            Err(_) => 0,
        };
        match op {
            Op::Read => assert!(self.memory[..moved] == self.model[at..at + moved], "stale read"),
            Op::Write => self.model[at..at + moved].fill(value),
            Op::WriteZeroes => self.model[at..at + moved].fill(0),
            _ => {}
        }
        if done.status.is_ok() && moved < len || done.status == Err(IoError::Busy) {
            self.doing = Some((done.id, op, at + moved, len - moved, value));
        }
    }
}

/// Clients whose bytes share blocks, beside each other, with answers of the disk in random order, failures and refusals: bytes that a
/// client wrote are never lost to a neighbour's write.
#[test]
fn neighbours_in_a_block_never_lose_bytes() {
    for seed in 0..300 {
        let mut prng = Prng::new(seed);
        let mut bench = bench();
        let (mut clients, mut at) = (Vec::new(), 0);
        while at < 8 << 10 {
            // Some own whole blocks.
            let len = [1 + prng.below(300) as usize, 512 - at % 512, 1024][prng.below(3) as usize];
            clients.push(Client::new(at..at + len, &disk(&mut bench).bytes));
            at += len;
        }
        for step in 0..1500 {
            let busy = disk(&mut bench).pending.len();
            let index = prng.below(clients.len() as u64) as usize;
            let client = &mut clients[index];
            if client.doing.is_none() && prng.below(3) > 0 && step < 1200 {
                let op = [Op::Read, Op::Write, Op::Write, Op::WriteZeroes];
                let op = op[prng.below(4) as usize];
                let at = prng.below(client.model.len() as u64) as usize;
                let at = if prng.below(2) == 0 { 0 } else { at };
                let most = client.model.len() - at;
                let len =
                    if prng.below(2) == 0 { most } else { 1 + prng.below(most as u64) as usize };
                client.submit(&mut bench, (op, at, len, prng.below(255) as u8 + 1), index as u32);
            } else if busy > 0 {
                match prng.below(40) {
                    0 => disk(&mut bench).script.push_back(Some((0, Err(IoError::Medium)))),
                    1 => disk(&mut bench).script.push_back(Some((0, Err(IoError::Busy)))),
                    _ => {}
                }
                let pick = prng.below(busy as u64) as usize;
                let done = answer(&mut bench, pick);
                bench.completions.extend(done);
            }
            for done in std::mem::take(&mut bench.completions) {
                let index = done.id.slot as usize;
                clients[index].take(done);
                if let Some((_, op, at, len, value)) = clients[index].doing.take() {
                    clients[index].submit(&mut bench, (op, at, len, value), index as u32);
                }
            }
        }
        while !disk(&mut bench).pending.is_empty() {
            for done in answer(&mut bench, 0) {
                let index = done.id.slot as usize;
                clients[index].take(done);
                if let Some((_, op, at, len, value)) = clients[index].doing.take() {
                    clients[index].submit(&mut bench, (op, at, len, value), index as u32);
                }
            }
        }
        assert!(clients.iter().all(|client| client.doing.is_none()), "seed {seed}: unanswered");
        for client in &clients {
            let bytes = &disk(&mut bench).bytes[client.range.clone()];
            assert!(bytes == client.model, "seed {seed}: {:?} lost bytes", client.range);
        }
    }
}
