//! The device against a remote in the same thread, whose streams are cut, whose replies are reordered, and which restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard};

use headworks::testing::Bench;
use headworks_core::extent::extents;
use headworks_core::time::SEC;
use headworks_core::{BioFlags, RequestId};

use super::*;
use crate::Replies;
use crate::client::Socket;
use crate::wire::{REQUEST_BYTES, SIMPLE_REPLY_MAGIC};

const BLOCK: usize = 512;
const NONE: BioFlags = BioFlags::NONE;
const SIZE: usize = 64 << 10;

/// A request that the remote has received whole.
struct Received {
    stream: usize,
    header: RequestHeader,
    data: Vec<u8>,
}

struct Stream {
    socket: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
}

/// A server with a volatile cache.
struct Remote {
    stable: Vec<u8>,
    current: Vec<u8>,
    export: Export,
    connections: usize,
    streams: Vec<Stream>,
    pending: Vec<Received>,
    /// Whether attempts succeed.
    is_there: bool,
    results: VecDeque<Attempt>,
    bell: UnixStream,
    /// Attempts so far, and those in progress.
    attempts: u32,
    /// Bytes that are sent before every stream is closed; none for no cut.
    cut_after: Option<usize>,
    sent: usize,
    prng: Prng,
}

type Shared = Arc<Mutex<Remote>>;

struct TestDial(Shared, UnixStream);

impl Dial for TestDial {
    fn start(&mut self) {
        let mut remote = lock(&self.0);
        remote.attempts += 1;
        assert!(remote.results.is_empty(), "one attempt at a time");
        let attempt = if remote.is_there { Ok(remote.open()) } else { Err(ClientError::Closed) };
        remote.results.push_back(attempt);
        (&remote.bell).write_all(&[0]).unwrap();
    }

    fn fd(&self) -> RawFd {
        self.1.as_raw_fd()
    }

    fn take(&mut self) -> Option<Attempt> {
        let _ = self.1.read(&mut [0; 8]);
        lock(&self.0).results.pop_front()
    }
}

fn lock(remote: &Shared) -> MutexGuard<'_, Remote> {
    remote.lock().unwrap()
}

fn all_flags() -> TransmissionFlags {
    TransmissionFlags::SEND_FLUSH
        .with(TransmissionFlags::SEND_FUA)
        .with(TransmissionFlags::SEND_TRIM)
        .with(TransmissionFlags::SEND_WRITE_ZEROES)
        .with(TransmissionFlags::CAN_MULTI_CONN)
}

impl Remote {
    fn new(seed: u64, flags: TransmissionFlags, structured: bool) -> (Shared, TestDial) {
        let (bell, ear) = UnixStream::pair().unwrap();
        ear.set_nonblocking(true).unwrap();
        let allocation = structured.then_some(7);
        let size = SIZE as u64;
        let export = Export { size, flags, structured, allocation, ..Export::default() };
        let remote = Self {
            stable: vec![0; SIZE],
            current: vec![0; SIZE],
            export,
            connections: 1,
            streams: Vec::new(),
            pending: Vec::new(),
            is_there: true,
            results: VecDeque::new(),
            bell,
            attempts: 0,
            cut_after: None,
            sent: 0,
            prng: Prng::new(seed),
        };
        let remote = Arc::new(Mutex::new(remote));
        (Arc::clone(&remote), TestDial(remote, ear))
    }

    fn open(&mut self) -> Vec<Opened> {
        let one = |_| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            self.streams.push(Stream { socket: ours, input: Vec::new(), output: Vec::new() });
            (Socket::Unix(theirs), self.export.clone())
        };
        (0..self.connections).map(one).collect()
    }

    /// The process ends: what no flush covers is gone.
    fn restart(&mut self) {
        self.streams.clear();
        self.pending.clear();
        self.current.copy_from_slice(&self.stable);
    }

    /// The connections end, and the process stays: it executes some of what it has received, and then no more.
    fn disconnect(&mut self) {
        for request in std::mem::take(&mut self.pending) {
            if self.prng.below(2) == 0 {
                self.execute(&request);
            }
        }
        self.streams.clear();
    }

    /// Receives a part, answers a request or two in any order, and sends a part; returns whether anything moved.
    fn pump(&mut self) -> bool {
        let mut moved = false;
        for index in 0..self.streams.len() {
            let part = self.prng.between(1, 3000) as usize;
            let stream = &mut self.streams[index];
            let mut bytes = vec![0; part];
            match stream.socket.read(&mut bytes) {
                Ok(count) => {
                    moved |= count > 0;
                    stream.input.extend_from_slice(&bytes[..count]);
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            while let Some(received) = take_request(index, &mut stream.input) {
                self.pending.push(received);
            }
        }
        for _ in 0..2 {
            if !self.pending.is_empty() {
                let next = self.prng.below(self.pending.len() as u64) as usize;
                let request = self.pending.swap_remove(next);
                self.execute(&request);
                moved = true;
            }
        }
        moved | self.send()
    }

    fn send(&mut self) -> bool {
        let mut moved = false;
        for stream in &mut self.streams {
            let most = match self.cut_after {
                Some(cut) => cut - self.sent,
                None => self.prng.between(1, 5000) as usize,
            };
            let count = stream.output.len().min(most);
            if count > 0 {
                // The device may have closed it.
                let _ = stream.socket.write_all(&stream.output[..count]);
                stream.output.drain(..count);
                self.sent += count;
                moved = true;
            }
        }
        if self.cut_after == Some(self.sent) {
            self.cut_after = None;
            self.restart();
            return true;
        }
        moved
    }

    fn execute(&mut self, request: &Received) {
        let RequestHeader { flags, command, cookie, offset, len } = request.header;
        let range = offset as usize..offset as usize + len as usize;
        let replies = Replies { structured: self.export.structured };
        let out = &mut self.streams[request.stream].output;
        let fua = CommandFlags(flags).contains(CommandFlags::FUA);
        match wire::Command::from_code(command).expect("a known command") {
            wire::Command::Read => {
                let data = &self.current[range];
                let zeros = data.iter().all(|&byte| byte == 0);
                if zeros && replies.read_hole(out, cookie, offset, len) {
                    return;
                }
                if !zeros {
                    replies.read_data(out, cookie, offset, len);
                }
                out.extend_from_slice(data);
                return;
            }
            wire::Command::Write => {
                self.current[range.clone()].copy_from_slice(&request.data);
                if fua {
                    self.stable[range].copy_from_slice(&request.data);
                }
            }
            wire::Command::WriteZeroes | wire::Command::Trim => {
                self.current[range.clone()].fill(0);
                if fua {
                    self.stable[range].fill(0);
                }
            }
            wire::Command::Flush => self.stable.copy_from_slice(&self.current),
            wire::Command::BlockStatus => {
                let half = len / 2;
                out.extend(wire::STRUCTURED_REPLY_MAGIC.to_be_bytes());
                out.extend([0, 1, 0, 5]);
                out.extend(cookie.to_be_bytes());
                for word in [20_u32, 7, half, 3, len - half, 0] {
                    out.extend(word.to_be_bytes());
                }
                return;
            }
            wire::Command::Disconnect | wire::Command::Cache => return,
        }
        replies.done(out, cookie, Ok(()));
    }
}

fn take_request(stream: usize, input: &mut Vec<u8>) -> Option<Received> {
    let header = RequestHeader::decode(input.first_chunk::<REQUEST_BYTES>()?).unwrap();
    let is_write = header.command == wire::Command::Write as u16;
    let len = REQUEST_BYTES + if is_write { header.len as usize } else { 0 };
    if input.len() < len {
        return None;
    }
    let data = input[REQUEST_BYTES..len].to_vec();
    input.drain(..len);
    Some(Received { stream, header, data })
}

type TestBench = Bench<NbdDevice<TestDial>>;

fn bench(options: RemoteOptions, remote: &Shared, dial: TestDial) -> TestBench {
    let opened = lock(remote).open();
    Bench::new(NbdDevice::new("a remote", options, 5, (dial, opened)))
}

fn started(
    flags: TransmissionFlags,
    structured: bool,
    options: RemoteOptions,
) -> (TestBench, Shared) {
    let (remote, dial) = Remote::new(1, flags, structured);
    (bench(options, &remote, dial), remote)
}

/// Lets both sides do what they can without time; returns whether anything moved.
fn settle(bench: &mut TestBench, remote: &Shared) -> bool {
    let mut any = false;
    loop {
        let mut moved = lock(remote).pump();
        moved |= bench.step_now();
        any |= moved;
        if !moved {
            return any;
        }
    }
}

/// Until every command is answered, also with time.
fn drain(bench: &mut TestBench, remote: &Shared, count: usize) -> Vec<Completion> {
    for _ in 0..10_000 {
        settle(bench, remote);
        if bench.completions.len() >= count {
            break;
        }
        bench.now = bench.now.after(10 * MS);
    }
    assert_eq!(bench.completions.len(), count, "every command has one answer");
    std::mem::take(&mut bench.completions)
}

fn run(bench: &mut TestBench, remote: &Shared, op: Op, offset: u64, len: u32) -> Status {
    bench.submit(op, NONE, offset, len);
    drain(bench, remote, 1)[0].status
}

/// Operation, block, memory, and the step of its submission.
type InFlight = (Op, usize, Box<[u8]>, u64);

/// What a user of the device knows, and what it has in flight: blocks of one value each.
struct Model {
    bench: TestBench,
    remote: Shared,
    prng: Prng,
    /// Unknown after a loss, until it is read or written.
    values: Vec<Option<u8>>,
    discarded: Vec<bool>,
    /// Blocks whose loss was told, and what is left of them was not flushed since.
    suspect: BTreeSet<usize>,
    /// Acknowledged at this step and not flushed since.
    dirty: BTreeMap<usize, u64>,
    in_flight: BTreeMap<(u32, u32), InFlight>,
    step: u64,
    failed_flushes: u32,
    losses: u32,
}

impl Model {
    fn submit(&mut self) {
        let block = self.prng.below((SIZE / BLOCK) as u64) as usize;
        if self.in_flight.values().any(|(_, other, ..)| *other == block) {
            return;
        }
        let op = [Op::Read, Op::Write, Op::Write, Op::WriteZeroes, Op::Discard, Op::Flush]
            [self.prng.below(6) as usize];
        let value = match op {
            Op::Write => self.prng.next() as u8,
            _ => 0,
        };
        let mut memory = vec![if op == Op::Write { value } else { 0xee }; BLOCK].into_boxed_slice();
        // SAFETY: `in_flight` has the memory until the command is answered.
        let spans =
            [0, BLOCK / 2].map(|at| unsafe { Span::new(memory.as_mut_ptr().add(at), BLOCK / 2) });
        let spans = if op.has_data() { &spans[..] } else { &[] };
        let flags = if self.prng.below(8) == 0 { BioFlags::FUA } else { NONE };
        let (offset, len) = ((block * BLOCK) as u64, BLOCK as u32);
        let id = match op {
            Op::Flush => self.bench.submit_spans(op, NONE, 0, 0, &[]),
            _ => self.bench.submit_spans(op, flags, offset, len, spans),
        };
        let block = if op == Op::Flush { usize::MAX } else { block };
        self.in_flight.insert(key(id), (op, block, memory, self.step));
        if flags.contains(BioFlags::FUA) && op != Op::Flush && op != Op::Read {
            // Durable when it is acknowledged: marked by a step that every flush covers.
            self.in_flight.get_mut(&key(id)).unwrap().3 = 0;
        }
    }

    /// Takes the answers of one call of the device: what it acknowledged before a loss in that call is lost, too.
    fn collect(&mut self) {
        let (flushes, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.bench.completions)
            .into_iter()
            .partition(|done| self.in_flight[&key(done.id)].0 == Op::Flush);
        for done in others {
            let (op, block, memory, at) = self.in_flight.remove(&key(done.id)).expect("one answer");
            assert_eq!(done.status, Ok(()));
            if op == Op::Read {
                let value = memory[0];
                assert!(memory.iter().all(|&byte| byte == value), "a torn block");
                if !self.discarded[block] {
                    let known = *self.values[block].get_or_insert(value);
                    assert_eq!(value, known, "block {block} at step {}", self.step);
                }
                continue;
            }
            self.values[block] = match op {
                Op::Write => Some(memory[0]),
                Op::WriteZeroes => Some(0),
                // Whatever it was or zeros, and another of these after a restart.
                _ => None,
            };
            self.discarded[block] = op == Op::Discard;
            match at {
                0 => self.dirty.remove(&block),
                _ => self.dirty.insert(block, self.step),
            };
        }
        if !std::mem::take(&mut self.bench.lost).is_empty() {
            self.losses += 1;
            self.suspect.extend(std::mem::take(&mut self.dirty).into_keys());
            for &block in &self.suspect {
                self.values[block] = None;
            }
        }
        for done in flushes {
            let (.., at) = self.in_flight.remove(&key(done.id)).expect("one answer");
            match done.status {
                Ok(()) => {
                    self.dirty.retain(|_, acked| *acked >= at);
                    self.suspect.clear();
                }
                Err(error) => {
                    assert_eq!(error, IoError::Medium);
                    self.failed_flushes += 1;
                }
            }
        }
    }
}

impl Model {
    /// Until every command is answered. Answers are taken call by call: what is acknowledged after a loss is not lost with it.
    fn end(&mut self) {
        for _ in 0..100_000 {
            if self.in_flight.is_empty() {
                return;
            }
            let moved = lock(&self.remote).pump();
            // The lock is free by now: the device may dial.
            let stepped = self.bench.step_now();
            self.collect();
            if !moved && !stepped {
                self.bench.now = self.bench.now.after(10 * MS);
            }
        }
        panic!("every command has one answer");
    }

    /// Flushes, and compares what outlives the remote.
    fn is_durable_after_a_flush(&mut self) {
        assert_eq!(run(&mut self.bench, &self.remote, Op::Flush, 0, 0), Ok(()));
        let remote = lock(&self.remote);
        for (block, bytes) in remote.stable.chunks(BLOCK).enumerate() {
            let known = self.values[block].filter(|_| !self.discarded[block]);
            assert!(known.is_none_or(|value| bytes == [value; BLOCK]), "block {block}");
        }
    }
}

fn key(id: RequestId) -> (u32, u32) {
    (id.slot, id.generation)
}

/// Names the schedule that fails.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("schedule {}", self.0);
        }
    }
}

/// A load on a remote that restarts and forgets what it did not flush; returns the flushes that failed and the losses that were told.
fn restarts_under_load(seed: u64, keep: u32) -> (u32, u32) {
    let _named = Named(seed);
    let (remote, dial) = Remote::new(seed, all_flags(), !seed.is_multiple_of(3));
    lock(&remote).connections = 1 + seed as usize % 4;
    let options = RemoteOptions { reconnect_ns: 3600 * SEC, keep, ..RemoteOptions::default() };
    let bench = bench(options, &remote, dial);
    let (values, discarded) = (vec![Some(0); SIZE / BLOCK], vec![false; SIZE / BLOCK]);
    let (dirty, in_flight) = (BTreeMap::new(), BTreeMap::new());
    let prng = Prng::new(seed);
    let (step, failed_flushes, losses) = (1, 0, 0);
    let mut model = Model {
        bench,
        remote,
        prng,
        values,
        discarded,
        suspect: BTreeSet::new(),
        dirty,
        in_flight,
        step,
        failed_flushes,
        losses,
    };
    for _ in 0..150 {
        model.step += 1;
        for _ in 0..model.prng.below(4) {
            model.submit();
        }
        for _ in 0..model.prng.below(4) {
            lock(&model.remote).pump();
            model.bench.step_now();
            model.collect();
        }
        if model.prng.below(30) == 0 {
            let mut remote = lock(&model.remote);
            match model.prng.below(3) {
                0 => remote.restart(),
                1 => remote.disconnect(),
                // At any byte of a reply.
                _ => remote.cut_after = Some(remote.sent + model.prng.below(2000) as usize),
            }
        }
        let pause = model.prng.below(20) * MS;
        model.bench.now = model.bench.now.after(pause);
    }
    lock(&model.remote).cut_after = None;
    model.end();
    settle(&mut model.bench, &model.remote);
    // A restart that no command has met.
    model.collect();
    assert_eq!(model.bench.device().slots.count(), 0, "every command ends");
    model.is_durable_after_a_flush();
    (model.failed_flushes, model.losses)
}

/// Schedules of each kind: `HEADWORKS_SCHEDULES=100000 cargo test --release -p headworks-nbd restarts` for a deep run.
fn schedules() -> u64 {
    std::env::var("HEADWORKS_SCHEDULES").map_or(60, |text| text.parse().unwrap())
}

/// Sums the failed flushes and the losses of all schedules.
fn restarts(keep: u32) -> (u32, u32) {
    (0..schedules()).fold((0, 0), |sums, seed| {
        let (failed, losses) = restarts_under_load(seed, keep);
        (sums.0 + failed, sums.1 + losses)
    })
}

#[test]
fn contents_equal_model_or_loss_is_told_first_when_remote_restarts() {
    let sums = restarts(0);
    assert!(sums.0 > 10 && sums.1 > 50, "the case was met: {sums:?}");
}

#[test]
fn nothing_is_lost_when_a_remote_restarts_whose_unflushed_writes_are_kept() {
    assert_eq!(restarts(1 << 20), (0, 0));
}

/// The device flushes by itself all the time, and writes wait for that.
#[test]
fn nothing_is_lost_with_room_for_few_writes() {
    assert_eq!(restarts(3 * BLOCK as u32), (0, 0));
}

#[test]
fn stream_cut_at_any_byte_changes_no_result() {
    for structured in [false, true] {
        let mut cut = 0;
        loop {
            let (mut bench, remote) = started(
                all_flags(),
                structured,
                RemoteOptions { stable: true, ..RemoteOptions::default() },
            );
            bench.buffer()[..2048].fill(7);
            assert_eq!(run(&mut bench, &remote, Op::Write, 0, 2048), Ok(()));
            lock(&remote).stable[..2048].fill(7);
            let sent = lock(&remote).sent;
            lock(&remote).cut_after = Some(sent + cut);
            bench.buffer()[..4096].fill(1);
            bench.submit(Op::Read, NONE, 512, 1024);
            bench.submit(Op::Flush, NONE, 0, 0);
            drain(&mut bench, &remote, 2);
            assert!(bench.buffer()[..1024].iter().all(|&byte| byte == 7), "cut after {cut}");
            assert_eq!(run(&mut bench, &remote, Op::BlockStatus, 0, 4096), Ok(()));
            let list: Vec<_> = extents(bench.buffer(), 4096).map(|extent| extent.state.0).collect();
            assert_eq!(list, if structured { vec![3, 0] } else { vec![0] });
            assert!(bench.lost.is_empty(), "a stable remote loses nothing");
            if lock(&remote).cut_after.is_some() {
                break;
            }
            cut += 1;
        }
        assert!(cut > 1024);
    }
}

#[test]
fn only_uncovered_writes_are_lost() {
    // Steps before the restart, and whether something is lost.
    let cases: [(&[Op], bool); 5] = [
        (&[], false),
        (&[Op::Write], true),
        (&[Op::Write, Op::Flush], false),
        (&[Op::Write, Op::Flush, Op::WriteZeroes], true),
        (&[Op::Discard, Op::Read], false),
    ];
    for (ops, is_lost) in cases {
        let nothing_kept = RemoteOptions { keep: 0, ..RemoteOptions::default() };
        let (mut bench, remote) = started(all_flags(), true, nothing_kept);
        for &op in ops {
            assert_eq!(run(&mut bench, &remote, op, 0, 512), Ok(()));
        }
        settle(&mut bench, &remote);
        lock(&remote).restart();
        settle(&mut bench, &remote);
        assert_eq!(!bench.lost.is_empty(), is_lost, "{ops:?}");
        assert_eq!(run(&mut bench, &remote, Op::Flush, 0, 0), Ok(()), "the shard fails it");
    }
    // Without a volatile cache nothing can be lost.
    let flags = TransmissionFlags::SEND_TRIM;
    let (mut bench, remote) = started(flags, true, RemoteOptions::default());
    assert_eq!(run(&mut bench, &remote, Op::Write, 0, 512), Ok(()));
    lock(&remote).restart();
    settle(&mut bench, &remote);
    assert!(bench.lost.is_empty());
}

/// Sends bytes on every stream, as if the remote had made them.
fn say(remote: &Shared, bytes: &[u8]) {
    for stream in &mut lock(remote).streams {
        stream.output.extend_from_slice(bytes);
    }
}

fn simple(cookie: u64) -> Vec<u8> {
    let mut bytes = SIMPLE_REPLY_MAGIC.to_be_bytes().to_vec();
    bytes.extend([0; 4]);
    bytes.extend(cookie.to_be_bytes());
    bytes
}

#[test]
fn reply_that_matches_no_request_ends_the_connection() {
    let (mut bench, remote) = started(all_flags(), true, RemoteOptions::default());
    assert_eq!(run(&mut bench, &remote, Op::Flush, 0, 0), Ok(()));
    for (said, cookie) in [("answered twice", 1 << 32), ("of no slot", 99), ("of no generation", 0)]
    {
        let attempts = lock(&remote).attempts;
        say(&remote, &simple(cookie));
        bench.submit(Op::Flush, NONE, 0, 0);
        drain(&mut bench, &remote, 1);
        assert_eq!(lock(&remote).attempts, attempts + 1, "{said}");
    }
}

#[test]
fn random_bytes_of_a_server_never_panic_and_commands_are_answered() {
    let mut prng = Prng::new(9);
    for round in 0..600 {
        let options = RemoteOptions { reconnect_ns: SEC, ..RemoteOptions::default() };
        let (mut bench, remote) = started(all_flags(), round % 2 == 0, options);
        bench.submit(Op::Read, BioFlags::HOLE_OK, 0, 4096);
        bench.submit(Op::Write, NONE, 8192, 4096);
        bench.submit(Op::BlockStatus, NONE, 0, 8192);
        while bench.step_now() {}
        // Replies that are nearly right go deeper than noise.
        let mut bytes = Vec::new();
        for _ in 0..prng.between(1, 4) {
            let magic = [wire::STRUCTURED_REPLY_MAGIC, SIMPLE_REPLY_MAGIC][prng.below(2) as usize];
            bytes.extend(magic.to_be_bytes());
            bytes.extend([0, prng.below(2) as u8, 0, [0, 1, 2, 5, 9][prng.below(5) as usize]]);
            bytes.extend((1_u64 << 32 | prng.below(4)).to_be_bytes());
            bytes.extend((prng.below(40) as u32 * 4).to_be_bytes());
            bytes.extend((0..prng.below(60)).map(|_| prng.below(3) as u8));
        }
        lock(&remote).is_there = false;
        let mut stream = lock(&remote).streams.remove(0);
        stream.socket.write_all(&bytes).unwrap();
        while bench.step_now() {}
        drop(stream);
        drain(&mut bench, &remote, 3);
    }
}

#[test]
fn overlapping_chunks_show_no_older_memory() {
    let (mut bench, remote) = started(all_flags(), true, RemoteOptions::default());
    bench.buffer()[..1024].fill(0x55);
    bench.submit(Op::Read, NONE, 0, 1024);
    let mut bytes = Vec::new();
    for (last, offset) in [(0_u8, 512_u64), (1, 512)] {
        bytes.extend(wire::STRUCTURED_REPLY_MAGIC.to_be_bytes());
        bytes.extend([0, last, 0, 1]);
        bytes.extend((1_u64 << 32).to_be_bytes());
        bytes.extend((8_u32 + 512).to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend([9; 512]);
    }
    lock(&remote).streams[0].socket.write_all(&bytes).unwrap();
    while bench.step_now() {}
    assert_eq!(std::mem::take(&mut bench.completions).len(), 1);
    assert!(bench.buffer()[..512].iter().all(|&byte| byte == 0));
    assert!(bench.buffer()[512..1024].iter().all(|&byte| byte == 9));
}

#[test]
fn everything_fails_after_reconnect_time_and_works_again_later() {
    let options = RemoteOptions { reconnect_ns: 2 * SEC, ..RemoteOptions::default() };
    let (mut bench, remote) = started(all_flags(), true, options);
    lock(&remote).is_there = false;
    bench.submit(Op::Write, NONE, 0, 512);
    while bench.step_now() {}
    lock(&remote).restart();
    while bench.step_now() {}
    bench.submit(Op::Read, NONE, 4096, 512);
    let began = bench.now;
    let done = drain(&mut bench, &remote, 2);
    assert!(done.iter().all(|done| done.status == Err(IoError::TimedOut)), "{done:?}");
    let took = bench.now.since(began);
    assert!((2 * SEC..3 * SEC).contains(&took), "{took}");
    assert_eq!(run(&mut bench, &remote, Op::Read, 0, 512), Err(IoError::TimedOut));
    let flush = run(&mut bench, &remote, Op::Flush, 0, 0);
    assert_eq!(flush, Err(IoError::TimedOut), "there may be writes of an earlier process");
    lock(&remote).is_there = true;
    bench.now = bench.now.after(6 * SEC);
    settle(&mut bench, &remote);
    assert_eq!(run(&mut bench, &remote, Op::Read, 0, 512), Ok(()));
}

#[test]
fn flush_without_remote_succeeds_only_if_it_covers_nothing() {
    for (stable, ops, expected) in [
        (false, &[Op::Flush][..], Ok(())),
        (true, &[Op::Flush, Op::Write], Err(IoError::TimedOut)),
        (true, &[Op::Write, Op::Flush], Ok(())),
    ] {
        let options = RemoteOptions { stable, reconnect_ns: SEC, ..RemoteOptions::default() };
        let (mut bench, remote) = started(all_flags(), true, options);
        for &op in ops {
            assert_eq!(
                run(&mut bench, &remote, op, 0, if op == Op::Flush { 0 } else { 512 }),
                Ok(())
            );
        }
        lock(&remote).is_there = false;
        while bench.step_now() {}
        lock(&remote).restart();
        while bench.step_now() {}
        assert_eq!(run(&mut bench, &remote, Op::Flush, 0, 0), expected, "{stable} {ops:?}");
    }
}

#[test]
fn attempts_double_their_pauses_up_to_five_seconds() {
    let (mut bench, remote) = started(all_flags(), true, RemoteOptions::default());
    lock(&remote).is_there = false;
    while bench.step_now() {}
    lock(&remote).restart();
    settle(&mut bench, &remote);
    let mut pauses = Vec::new();
    for attempt in 1..=12 {
        let before = bench.now;
        while lock(&remote).attempts < attempt {
            assert!(bench.step());
        }
        while bench.step_now() {}
        pauses.push(bench.now.since(before) / MS);
    }
    let bound = |index: usize| 5000.min(100 << index);
    for (index, &pause) in pauses.iter().enumerate() {
        assert!((bound(index) / 2..=bound(index)).contains(&pause), "{pauses:?}");
    }
    assert!(pauses[6..].windows(2).any(|pair| pair[0] != pair[1]), "with jitter: {pauses:?}");
}

#[test]
fn remote_that_drops_every_connection_fails_commands_in_time() {
    let options = RemoteOptions { reconnect_ns: 2 * SEC, ..RemoteOptions::default() };
    let (mut bench, remote) = started(all_flags(), true, options);
    bench.submit(Op::Read, NONE, 0, 512);
    let began = bench.now;
    while bench.completions.is_empty() {
        while bench.step_now() {}
        lock(&remote).restart();
        while bench.step_now() {}
        bench.now = bench.now.after(20 * MS);
    }
    assert_eq!(bench.completions[0].status, Err(IoError::TimedOut));
    assert!(bench.now.since(began) < 4 * SEC && lock(&remote).attempts > 3);
}

#[test]
fn writes_in_flight_fail_if_they_are_not_to_be_sent_again() {
    let options = RemoteOptions { fail_writes: true, ..RemoteOptions::default() };
    let (mut bench, remote) = started(all_flags(), true, options);
    let write = bench.submit(Op::Write, NONE, 0, 512);
    let read = bench.submit(Op::Read, NONE, 4096, 512);
    while bench.step_now() {}
    lock(&remote).restart();
    while bench.step_now() {}
    let unsent = bench.submit(Op::Write, NONE, 8192, 512);
    let done = drain(&mut bench, &remote, 3);
    let status = |id| done.iter().find(|done| done.id == id).unwrap().status;
    assert_eq!(status(write), Err(IoError::Medium));
    assert_eq!((status(read), status(unsent)), (Ok(()), Ok(())));

    let options = RemoteOptions { reconnect_ns: 0, ..RemoteOptions::default() };
    let (mut bench, remote) = started(all_flags(), true, options);
    bench.submit(Op::Read, NONE, 0, 512);
    while bench.step_now() {}
    lock(&remote).restart();
    while bench.step_now() {}
    assert_eq!(bench.completions[0].status, Err(IoError::TimedOut), "at once");
    bench.completions.clear();
}

#[test]
fn silent_connection_is_given_up_and_the_command_sent_again() {
    let options = RemoteOptions { timeout_ns: 5 * SEC, ..RemoteOptions::default() };
    let (mut bench, remote) = started(all_flags(), true, options);
    bench.now = bench.now.after(100 * SEC);
    while bench.step_now() {}
    assert_eq!(lock(&remote).attempts, 0, "an idle connection may be silent");
    bench.submit(Op::Read, NONE, 0, 512);
    let began = bench.now;
    while lock(&remote).attempts == 0 {
        assert!(bench.step());
    }
    assert!((5 * SEC..6 * SEC).contains(&bench.now.since(began)));
    assert_eq!(drain(&mut bench, &remote, 1)[0].status, Ok(()));
}

#[test]
fn another_export_under_the_name_is_barred() {
    type Change = fn(&mut Export);
    let change: [(&str, Change); 3] = [
        ("size", |export| export.size += 512),
        ("access", |export| export.flags = export.flags.with(TransmissionFlags::READ_ONLY)),
        ("offer", |export| export.flags = TransmissionFlags::SEND_FLUSH),
    ];
    for (what, change) in change {
        let (mut bench, remote) = started(all_flags(), true, RemoteOptions::default());
        assert_eq!(run(&mut bench, &remote, Op::Read, 0, 512), Ok(()));
        change(&mut lock(&remote).export);
        lock(&remote).restart();
        while bench.step_now() {}
        bench.submit(Op::Read, NONE, 0, 512);
        assert_eq!(drain(&mut bench, &remote, 1)[0].status, Err(IoError::Medium), "{what}");
        bench.now = bench.now.after(100 * SEC);
        while bench.step_now() {}
        assert_eq!(lock(&remote).attempts, 1, "{what}: no attempt follows");
        let report = bench.device().status().report();
        assert_eq!((report.state, report.losses), (RemoteState::Barred, 1), "{what}");
        assert_eq!(std::mem::take(&mut bench.lost).len(), 1, "{what}: the shard fails flushes");
        let flush = run(&mut bench, &remote, Op::Flush, 0, 0);
        assert_eq!(flush, Ok(()), "{what}: an acknowledged loss leaves nothing to flush");
    }
}

#[test]
fn errors_and_shutdown_of_the_remote_are_told_apart() {
    let (mut bench, remote) = started(all_flags(), false, RemoteOptions::default());
    let reply = |slot: u64, code: u32| {
        let mut bytes = simple(1 << 32 | slot);
        bytes[4..8].copy_from_slice(&code.to_be_bytes());
        bytes
    };
    bench.submit(Op::Write, NONE, 0, 512);
    while bench.step_now() {}
    lock(&remote).streams[0].socket.write_all(&reply(0, 28)).unwrap();
    while bench.step_now() {}
    assert_eq!(std::mem::take(&mut bench.completions)[0].status, Err(IoError::NoSpace));

    bench.submit(Op::Write, NONE, 0, 512);
    while bench.step_now() {}
    let mut shutdown = reply(0, 108);
    shutdown[11] = 2;
    lock(&remote).streams[0].socket.write_all(&shutdown).unwrap();
    assert_eq!(drain(&mut bench, &remote, 1)[0].status, Ok(()), "sent again");
    assert_eq!(lock(&remote).attempts, 1);
}
