//! The policy in virtual time: D1 (an fsync takes the model's time), durability against the trace of the disk's commands, limits, and
//! each planted fault found by one of these tests.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use headworks_core::prng::Prng;
use headworks_core::time::{MS, SEC};
use headworks_core::{Instant, Op};
use headworks_disks::{DeviceModel, Disk, ModelCommand, NAMED};

use super::policy::*;

/// A command with the times of its submission and its end.
#[derive(Clone, Copy, Debug)]
struct Traced {
    submitted: Instant,
    ended: Option<Instant>,
    op: Op,
    offset: u64,
    len: u32,
}

type Trace = Arc<Mutex<Vec<Traced>>>;

/// A model that writes down what it is asked for.
struct TracedModel {
    model: Box<dyn DeviceModel + Send>,
    trace: Trace,
    by_token: HashMap<u64, usize>,
}

impl DeviceModel for TracedModel {
    fn submit(&mut self, now: Instant, order: ModelCommand) {
        let mut trace = self.trace.lock().unwrap();
        self.by_token.insert(order.token, trace.len());
        let ModelCommand { op, offset, len, .. } = order;
        trace.push(Traced { submitted: now, ended: None, op, offset, len });
        self.model.submit(now, order);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.model.next_timeout()
    }

    fn on_timeout(&mut self, now: Instant, done: &mut Vec<u64>) {
        let before = done.len();
        self.model.on_timeout(now, done);
        let mut trace = self.trace.lock().unwrap();
        for token in &done[before..] {
            trace[self.by_token[token]].ended = Some(now);
        }
    }
}

const SIZE: u64 = 1 << 30;
const BLOCK: u64 = 4096;

/// A slow disk with its trace, and a clock.
struct Bench {
    disk: SlowDisk,
    trace: Trace,
    now: Instant,
    tickets: u64,
    ended: HashMap<u64, Ended>,
}

impl Bench {
    fn new(name: &str, dirty: u64) -> Self {
        Self::with(Disk::named(name).unwrap(), dirty)
    }

    fn with(disk: Disk, dirty: u64) -> Self {
        let trace = Trace::default();
        let model = TracedModel {
            model: disk.model(1),
            trace: Arc::clone(&trace),
            by_token: HashMap::new(),
        };
        let options = SlowOptions { size: SIZE, dirty, depth: disk.depth() };
        let disk = SlowDisk::new(Box::new(model), options);
        Self { disk, trace, now: Instant(0), tickets: 0, ended: HashMap::new() }
    }

    fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    fn write(&mut self, file: u64, block: u64, count: u64, mode: WriteMode) -> Option<u64> {
        let ticket = self.ticket();
        let (offset, len) = (block * BLOCK, count * BLOCK);
        let write = SlowWrite { file, offset, len, grown: true, mode };
        let waits = self.disk.on_write(self.now, ticket, write);
        self.collect();
        waits.then_some(ticket)
    }

    fn read(&mut self, file: u64, block: u64, count: u64) -> Option<u64> {
        let ticket = self.ticket();
        let waits = self.disk.on_read(self.now, ticket, file, block * BLOCK, count * BLOCK);
        waits.then_some(ticket)
    }

    fn sync(&mut self, file: u64, durability: Durability) -> u64 {
        let ticket = self.ticket();
        self.disk.on_sync(self.now, ticket, file, durability);
        ticket
    }

    /// Takes what has ended. Nothing ends before its time.
    fn collect(&mut self) {
        for end in self.disk.drain_ended() {
            assert!(end.at <= self.now, "an operation ends early");
            assert!(self.ended.insert(end.ticket, end).is_none(), "it ends twice");
        }
    }

    /// Goes on to the next event; false if there is none.
    fn step(&mut self) -> bool {
        let Some(at) = self.disk.next_timeout() else { return false };
        self.now = self.now.max(at);
        self.disk.on_timeout(self.now);
        self.collect();
        true
    }

    /// Goes on until an operation has ended; returns when.
    fn wait(&mut self, ticket: u64) -> Instant {
        while !self.ended.contains_key(&ticket) {
            assert!(self.step(), "nothing happens any more");
        }
        self.ended[&ticket].at
    }

    fn idle(&mut self) {
        while self.step() {}
    }

    fn commands(&self) -> Vec<(Op, u32)> {
        self.trace.lock().unwrap().iter().map(|one| (one.op, one.len)).collect()
    }
}

/// Time that a model alone takes for groups of commands; each group begins when the one before has ended.
fn alone(disk: &Disk, at: Instant, groups: &[Vec<(Op, u64, u32)>], warm: &[Traced]) -> u64 {
    let mut model = disk.model(1);
    let mut done = Vec::new();
    // What the disk had done before, at the same times.
    for (index, one) in warm.iter().enumerate() {
        while let Some(event) = model.next_timeout().filter(|event| *event <= one.submitted) {
            model.on_timeout(event, &mut done);
        }
        let token = 1 << 40 | index as u64;
        let Traced { op, offset, len, .. } = *one;
        model.submit(one.submitted, ModelCommand { token, op, offset, len });
    }
    while let Some(event) = model.next_timeout().filter(|event| *event <= at) {
        model.on_timeout(event, &mut done);
    }
    let mut now = at;
    for group in groups {
        done.clear();
        let (mut next, mut ended) = (0, 0);
        while ended < group.len() {
            while next < group.len() && next < ended + disk.depth() as usize {
                let (op, offset, len) = group[next];
                model.submit(now, ModelCommand { token: next as u64, op, offset, len });
                next += 1;
            }
            now = model.next_timeout().unwrap();
            model.on_timeout(now, &mut done);
            ended += done.drain(..).count();
        }
    }
    now.since(at)
}

#[test]
fn fsync_of_n_blocks_takes_the_time_of_its_commands() {
    for named in &NAMED {
        for scattered in [false, true] {
            let mut bench = Bench::with(named.disk, 1 << 30);
            bench.disk.put(2, 0..65_536);
            // The file's length is known, so that fdatasync needs no transaction.
            bench.write(2, 0, 1, WriteMode::Buffered);
            let ticket = bench.sync(2, Durability::All);
            bench.wait(ticket);
            let warm: Vec<Traced> = bench.trace.lock().unwrap().clone();
            bench.now = bench.now.after(SEC);
            bench.disk.on_timeout(bench.now);
            let begun = bench.now;
            let blocks: Vec<u64> = (0..256).map(|n| if scattered { n * 97 } else { n }).collect();
            for block in &blocks {
                let ticket = bench.ticket();
                let (offset, len) = (block * BLOCK, BLOCK);
                let mode = WriteMode::Buffered;
                let write = SlowWrite { file: 2, offset, len, grown: false, mode };
                assert!(!bench.disk.on_write(begun, ticket, write));
            }
            let ticket = bench.sync(2, Durability::Data);
            let took = bench.wait(ticket).since(begun);
            let data = match scattered {
                true => blocks.iter().map(|block| (Op::Write, block * BLOCK, 4096)).collect(),
                false => (0..2).map(|n| (Op::Write, n << 19, 1 << 19)).collect(),
            };
            let expected = alone(&named.disk, begun, &[data, vec![(Op::Flush, 0, 0)]], &warm);
            let error = took as f64 / expected as f64 - 1.0;
            assert!(error.abs() <= 0.01, "{}: {took} ns for {expected}", named.name);
        }
    }
}

#[test]
fn fsync_of_a_new_file_commits_between_two_flushes() {
    let mut bench = Bench::new("sata", 1 << 30);
    bench.disk.on_change(bench.now, 1, Durability::Data);
    bench.disk.on_change(bench.now, 2, Durability::Data);
    bench.write(2, 0, 200, WriteMode::Buffered);
    let ticket = bench.sync(2, Durability::All);
    bench.wait(ticket);
    let data = [(Op::Write, 128 * 4096), (Op::Write, 72 * 4096)];
    let commit = [(Op::Write, 8192), (Op::Flush, 0), (Op::Write, 4096), (Op::Flush, 0)];
    assert_eq!(bench.commands(), [&data[..], &commit[..]].concat());
    // The journal lies in the middle, and the data at the beginning.
    let trace = bench.trace.lock().unwrap().clone();
    assert_eq!((trace[0].offset, trace[2].offset), (0, SIZE / 2));
    assert_eq!(trace[4].offset, SIZE / 2 + 8192);
    for pair in trace.windows(2).skip(1) {
        assert!(pair[1].submitted >= pair[0].ended.unwrap(), "a step begins when one has ended");
    }
    // Nothing is dirty: fdatasync and fsync flush.
    for durability in [Durability::Data, Durability::All] {
        let before = bench.commands().len();
        let ticket = bench.sync(2, durability);
        bench.wait(ticket);
        assert_eq!(bench.commands()[before..], [(Op::Flush, 0)]);
    }
}

#[test]
fn syncs_at_once_share_a_commit() {
    let mut bench = Bench::new("sata", 1 << 30);
    let tickets: Vec<u64> = (2..66)
        .map(|file| {
            bench.write(file, 0, 1, WriteMode::Buffered);
            bench.sync(file, Durability::All)
        })
        .collect();
    for ticket in tickets {
        bench.wait(ticket);
    }
    assert!((1..=3).contains(&bench.disk.commits()), "{} commits", bench.disk.commits());
    let flushes = bench.commands().iter().filter(|(op, _)| *op == Op::Flush).count();
    assert!(flushes <= 6, "{flushes} flushes for 64 syncs");
}

/// 64 readers beside an fsync of 64 MiB: when the fsync ends, and how many reads have ended by then.
fn readers_beside_fsync(reads_wait: bool) -> (u64, usize) {
    let mut bench = Bench::new("sata", 1 << 30);
    bench.disk.queue_for_tests().reads_wait_for_writes = reads_wait;
    bench.disk.put(3, 0..65_536);
    let mut prng = Prng::new(2);
    // Each block apart, so that the disk has as many commands.
    for n in 0..16_384 {
        bench.write(2, 2 * n, 1, WriteMode::Buffered);
    }
    bench.disk.put(2, 0..40_000);
    let sync = bench.sync(2, Durability::Data);
    let mut readers: Vec<u64> =
        (0..64).map(|_| bench.read(3, prng.below(65_000), 1).unwrap()).collect();
    let mut done = 0;
    while !bench.ended.contains_key(&sync) {
        assert!(bench.step());
        for reader in &mut readers {
            if bench.ended.contains_key(reader) {
                done += 1;
                *reader = bench.read(3, prng.below(65_000), 1).unwrap();
            }
        }
    }
    (bench.ended[&sync].took, done)
}

#[test]
fn readers_go_on_beside_an_fsync() {
    let (took, reads) = readers_beside_fsync(false);
    assert!(reads > 4000, "{reads} reads in {took} ns");
    let (_, behind) = readers_beside_fsync(true);
    assert!(behind < 1000, "the planted order of the queue is found: {behind} reads");
}

/// A writer that waits when it is told to: the most that was in memory, and bytes in a second behind the limit.
fn writer(limit: u64, fault: Option<Fault>) -> (u64, f64) {
    let mut bench = Bench::new("hdd-7200", limit);
    bench.disk.fault = fault;
    let (mut most, mut from) = (0, None);
    for n in 0..800 {
        if let Some(ticket) = bench.write(2, n * 256, 256, WriteMode::Buffered) {
            bench.wait(ticket);
        }
        most = most.max(bench.disk.dirty());
        if n == 400 {
            from = Some(bench.now);
        }
        bench.now = bench.now.after(100_000);
    }
    (most, (400u64 << 20) as f64 / (bench.now.since(from.unwrap()) as f64 / 1e9))
}

#[test]
fn writers_wait_beyond_the_dirty_limit() {
    let limit = 64 << 20;
    let (most, rate) = writer(limit, None);
    assert!(most <= limit + (1 << 20), "{most} bytes in memory");
    // The rate of the medium, which the profile has as 4 MiB in 22 ms and faster.
    assert!((60e6..250e6).contains(&rate), "{rate} bytes in a second");
    let (most, rate) = writer(limit, Some(Fault::IgnoresDirtyLimit));
    assert!(most > 4 * limit && rate > 1e9, "the planted fault is found");
}

#[test]
fn limit_of_zero_makes_each_write_wait() {
    let mut bench = Bench::new("hdd-7200", 0);
    for n in 0..20 {
        let ticket = bench.write(2, n, 1, WriteMode::Buffered).unwrap();
        bench.wait(ticket);
        assert_eq!(bench.disk.dirty(), 0);
    }
}

#[test]
fn dirty_blocks_and_transactions_are_written_by_themselves() {
    let mut bench = Bench::new("sata", 1 << 30);
    bench.now = Instant(SEC);
    bench.write(2, 0, 1, WriteMode::Buffered);
    bench.idle();
    let trace = bench.trace.lock().unwrap().clone();
    let writes: Vec<_> = trace.iter().filter(|one| one.op == Op::Write).collect();
    // The change of its times after 5 s, its block after 30 s, and the place of that 5 s later.
    assert_eq!((writes[0].submitted, writes[0].len), (Instant(6 * SEC), 8192));
    assert_eq!((writes[2].submitted, writes[2].len), (Instant(31 * SEC), 4096));
    assert_eq!((writes[3].submitted, writes[3].len), (Instant(36 * SEC), 8192));
    assert_eq!((bench.disk.dirty(), bench.disk.commits()), (0, 2));
}

#[test]
fn reads_take_what_is_not_in_memory() {
    let mut bench = Bench::new("sata", 1 << 30);
    bench.disk.put(2, 0..600);
    assert_eq!(bench.read(2, 700, 10), None, "a hole");
    assert_eq!(bench.read(3, 0, 10), None, "an empty file");
    bench.write(2, 10, 5, WriteMode::Buffered);
    assert_eq!(bench.read(2, 11, 3), None, "dirty");
    let ticket = bench.read(2, 0, 300).unwrap();
    bench.wait(ticket);
    let lengths: Vec<u32> = bench.commands().iter().map(|(_, len)| len / 4096).collect();
    assert_eq!(lengths, [10, 128, 128, 29]);
    // Being written: still in memory.
    bench.sync(2, Durability::Data);
    assert_eq!(bench.read(2, 10, 5), None);
    bench.idle();
    assert!(bench.read(2, 10, 5).is_some());
}

#[test]
fn removed_files_are_not_written() {
    let mut bench = Bench::new("sata", 1 << 20);
    for file in 2..102 {
        bench.write(file, 0, 20, WriteMode::Buffered);
        bench.disk.on_gone(bench.now, file);
    }
    bench.write(200, 0, 20, WriteMode::Buffered);
    bench.disk.on_truncate(bench.now, 200, 5 * BLOCK);
    let ticket = bench.sync(200, Durability::Data);
    bench.wait(ticket);
    assert_eq!(bench.commands()[0], (Op::Write, 5 * 4096));
    bench.disk.on_truncate(bench.now, 200, 0);
    assert_eq!(bench.read(200, 0, 5), None);
    assert_eq!(bench.disk.files_for_tests(), 1, "removed files leave nothing");
}

/// What the trace must show for each operation that ended: writes of its blocks that ended, then a flush submitted after.
struct Promise {
    begun: Instant,
    /// File and block, with the place where it lies once it is written.
    blocks: Vec<(u64, u64)>,
    needs_flush: bool,
}

/// Random operations; returns the first broken rule.
fn broken_rule(name: &str, seed: u64, fault: Option<Fault>) -> Option<String> {
    let mut prng = Prng::new(seed);
    let mut bench = Bench::new(name, 2 << 20);
    bench.disk.fault = fault;
    let mut promises: BTreeMap<u64, Promise> = BTreeMap::new();
    // By file: the dirty blocks with the time of their last write.
    let mut written: BTreeMap<(u64, u64), Instant> = BTreeMap::new();
    for _ in 0..400 {
        let file = 2 + prng.below(4);
        let block = prng.below(64);
        // No two operations at the same time: which came first is known by it.
        bench.now = bench.now.after(1);
        match prng.below(12) {
            0..6 if bench.disk.has_room() => {
                let count = 1 + prng.below(4);
                let mode = match prng.below(5) {
                    0 => WriteMode::Direct,
                    1 => WriteMode::Synchronous(Durability::Data),
                    _ => WriteMode::Buffered,
                };
                let begun = bench.now;
                let ticket = bench.write(file, block, count, mode);
                let blocks: Vec<_> = (block..block + count).map(|block| (file, block)).collect();
                written.extend(blocks.iter().map(|one| (*one, begun)));
                if let Some(ticket) = ticket
                    && mode != WriteMode::Buffered
                {
                    let needs_flush = mode != WriteMode::Direct;
                    promises.insert(ticket, Promise { begun, blocks, needs_flush });
                }
            }
            6..9 => {
                let begun = bench.now;
                let of_file = written.keys().filter(|(of, _)| *of == file);
                let blocks = of_file.copied().collect();
                let durability = [Durability::Data, Durability::All][prng.below(2) as usize];
                let ticket = bench.sync(file, durability);
                promises.insert(ticket, Promise { begun, blocks, needs_flush: true });
            }
            9 => {
                let (begun, ticket) = (bench.now, bench.ticket());
                bench.disk.on_sync_all(bench.now, ticket);
                let blocks = written.keys().copied().collect();
                promises.insert(ticket, Promise { begun, blocks, needs_flush: true });
            }
            _ => bench.now = bench.now.after(prng.below(20 * MS)),
        }
        bench.disk.on_timeout(bench.now);
        bench.collect();
        let over = bench.disk.dirty() > (2 << 20) + 1024 * 4 * BLOCK;
        if over {
            return Some("more is dirty than the limit".into());
        }
        if let Some(broken) = first_broken(&mut bench, &mut promises, &written) {
            return Some(broken);
        }
    }
    for _ in 0..100_000 {
        if promises.is_empty() {
            return None;
        }
        if !bench.step() {
            return Some("an operation never ends".into());
        }
        if let Some(broken) = first_broken(&mut bench, &mut promises, &written) {
            return Some(broken);
        }
    }
    Some("operations do not end".into())
}

fn first_broken(
    bench: &mut Bench,
    promises: &mut BTreeMap<u64, Promise>,
    written: &BTreeMap<(u64, u64), Instant>,
) -> Option<String> {
    let trace = bench.trace.lock().unwrap().clone();
    let ended: Vec<(u64, Instant)> =
        promises.keys().filter_map(|ticket| Some((*ticket, bench.ended.get(ticket)?.at))).collect();
    for (ticket, at) in ended {
        let promise = promises.remove(&ticket).unwrap();
        let mut durable_from = promise.begun;
        for (file, block) in promise.blocks {
            // Written again since: the trace has a later write of it, too.
            let last = written[&(file, block)];
            if last > promise.begun {
                continue;
            }
            let Some(place) = bench.disk.place_for_tests(file, block) else {
                return Some(format!("block {block} of {file} has no place at its sync's end"));
            };
            let holds = |one: &&Traced| {
                let range = one.offset / BLOCK..(one.offset + u64::from(one.len)) / BLOCK;
                one.op == Op::Write && range.contains(&place) && one.submitted >= last
            };
            let Some(end) = trace.iter().filter(holds).filter_map(|one| one.ended).min() else {
                return Some(format!("block {block} of {file} is not written at its sync's end"));
            };
            if end > at {
                return Some("a sync ends before its writes".into());
            }
            durable_from = durable_from.max(end);
        }
        let flushed = trace.iter().any(|one| {
            let ended = one.ended.is_some_and(|ended| ended <= at);
            one.op == Op::Flush && one.submitted >= durable_from && ended
        });
        if promise.needs_flush && !flushed {
            return Some("no flush follows a sync's writes".into());
        }
    }
    None
}

#[test]
fn syncs_end_when_their_data_are_durable() {
    for name in ["hdd-7200", "sata", "cloud-gp3"] {
        for seed in 1..20 {
            assert_eq!(broken_rule(name, seed, None), None, "{name}, seed {seed}");
        }
    }
}

#[test]
fn planted_faults_break_a_rule() {
    for fault in [
        Fault::SkipsFlush,
        Fault::FlushesBeforeWritesEnd,
        Fault::EndsEarly,
        Fault::JoinsEndingCommit,
        Fault::ForgetsRewrites,
    ] {
        let found = (1..20).find_map(|seed| broken_rule("sata", seed, Some(fault)));
        assert!(found.is_some(), "{fault:?} is not found");
    }
}

#[test]
fn names_are_durable_when_their_directory_is() {
    // No block is dirty: what a sync of a directory owes is the commit alone, and nothing when there is none.
    let commands = |fault| {
        let mut bench = Bench::new("sata", 1 << 30);
        bench.disk.fault = fault;
        bench.disk.on_change(bench.now, 7, Durability::Data);
        let ticket = bench.ticket();
        if bench.disk.on_sync_directory(bench.now, ticket) {
            bench.wait(ticket);
            let ticket = bench.ticket();
            assert!(!bench.disk.on_sync_directory(bench.now, ticket), "all is committed");
        }
        bench.commands().len()
    };
    assert_eq!(commands(None), 4, "blocks, flush, record, flush");
    assert_eq!(commands(Some(Fault::SkipsCommit)), 0, "the planted fault is found");
}

#[test]
fn late_calls_move_no_time_of_the_disk() {
    let times = |mut nap: Box<dyn FnMut() -> u64>| {
        let mut bench = Bench::new("hdd-7200", 1 << 30);
        let mut prng = Prng::new(4);
        let mut ends = Vec::new();
        for round in 0..60u64 {
            // The program's own times are the same: it is not slower for a late answer.
            let begun = Instant(round * 200 * MS);
            while bench.now < begun {
                bench.now = bench.now.after(nap()).min(begun);
                bench.disk.on_timeout(bench.now);
                bench.collect();
            }
            bench.write(2, prng.below(5000), 3, WriteMode::Buffered);
            let ticket = bench.sync(2, Durability::All);
            ends.push(ticket);
        }
        bench.now = bench.now.after(SEC);
        bench.disk.on_timeout(bench.now);
        bench.collect();
        ends.iter().map(|ticket| bench.ended[ticket].at).collect::<Vec<_>>()
    };
    let prompt = times(Box::new(|| 1000));
    let mut prng = Prng::new(9);
    assert_eq!(times(Box::new(move || prng.between(1, 30 * MS))), prompt);
}

#[test]
fn operations_that_wait_are_bounded() {
    let mut bench = Bench::new("hdd-7200", 1 << 30);
    let mut begun = 0;
    while bench.disk.has_room() {
        bench.write(begun, 0, 1, WriteMode::Buffered);
        bench.sync(begun, Durability::All);
        begun += 1;
    }
    assert_eq!(begun, OPERATIONS_MAX as u64);
    bench.idle();
    assert_eq!(bench.ended.len(), OPERATIONS_MAX);
    assert!(bench.disk.has_room());
}
