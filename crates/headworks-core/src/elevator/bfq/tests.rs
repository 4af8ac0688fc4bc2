//! Tests of bfq with clients and a model of a device.

mod changes;

use super::budget::{EndedSlot, SlotEnd};
use super::*;
use crate::bio::{BioFlags, IoClass, Ioprio, Op, VolumeId};
use crate::options::BfqOptions;
use crate::prng::Prng;
use crate::time::{MS, SEC, US};

/// Request slots of a world.
const SLOTS: u32 = 4096;

/// A client that sends requests and waits for their ends.
#[derive(Clone, Copy, Debug)]
struct Client {
    export: u16,
    ioprio: Ioprio,
    op: Op,
    flags: BioFlags,
    /// Requests that it has outstanding at most.
    depth: u32,
    len: u32,
    random: bool,
    /// It takes the requests of one stream in turn with the other clients that do.
    in_stream: bool,
    /// Time from the end of a request to the next one.
    think_ns: u64,
    /// It sends its first request then.
    starts: u64,
    /// It sends no more after so many.
    most: u64,
}

impl Default for Client {
    fn default() -> Self {
        Self {
            export: 0,
            ioprio: Ioprio::default(),
            op: Op::Read,
            flags: BioFlags::SYNC,
            depth: 1,
            len: 128 << 10,
            random: false,
            in_stream: false,
            think_ns: 100 * US,
            starts: 0,
            most: u64::MAX,
        }
    }
}

/// What became of a client.
#[derive(Clone, Debug, Default)]
struct Done {
    sent: u64,
    bytes: u64,
    requests: u64,
    /// Time from arrival to end, of each request.
    latencies: Vec<u64>,
}

/// Clients, the elevator, and a device of so many channels, each of which takes a seek and the transfer.
struct World {
    bfq: BfqElevator,
    slots: Slots,
    now: u64,
    prng: Prng,
    clients: Vec<Client>,
    done: Vec<Done>,
    /// When clients send their next requests: (time, client).
    due: std::collections::BTreeSet<(u64, u64, usize)>,
    number: u64,
    /// Requests of the stream that were sent.
    stream: u64,
    /// Requests in the device: (end, slot).
    device: Vec<(u64, SlotId)>,
    owner: Vec<usize>,
    channels: usize,
    free_at: Vec<u64>,
    head: Position,
    seek_ns: u64,
    bytes_per_ms: u64,
    room: usize,
    batch: Batch,
}

impl World {
    fn new(options: QueueOptions, clients: &[Client]) -> Self {
        let rotational = options.rotational;
        let mut due = std::collections::BTreeSet::new();
        for (client, of) in clients.iter().enumerate() {
            for n in 0..of.depth {
                due.insert((of.starts, n.into(), client));
            }
        }
        let channels = if rotational { 1 } else { 8 };
        Self {
            bfq: BfqElevator::new(&options, SLOTS),
            slots: Slots::new(SLOTS),
            now: 0,
            prng: Prng::new(1),
            clients: clients.to_vec(),
            done: vec![Done::default(); clients.len()],
            due,
            number: 1 << 20,
            stream: 0,
            device: Vec::new(),
            owner: vec![0; SLOTS as usize],
            channels,
            free_at: vec![0; channels],
            head: Position::default(),
            seek_ns: if rotational { 8 * MS } else { 60 * US },
            bytes_per_ms: if rotational { 100_000 } else { 400_000 },
            room: options.queue_depth as usize,
            batch: Batch::with_capacity(options.queue_depth as usize),
        }
    }

    fn request(&mut self, client: usize) -> SlotId {
        let of = self.clients[client];
        let id = self.slots.try_take().expect("there are slots");
        let sent = &mut self.done[client].sent;
        let place = if of.random { self.prng.below(1 << 18) } else { *sent };
        *sent += 1;
        let mut offset = (client as u64) << 36 | (place * u64::from(of.len));
        if of.in_stream {
            offset = (1 << 50) | (self.stream * u64::from(of.len));
            self.stream += 1;
        }
        self.slots[id] = Request {
            offset,
            len: of.len,
            connection: client as u32,
            export: ExportId(of.export),
            volume: VolumeId(0),
            op: of.op,
            flags: of.flags,
            ioprio: of.ioprio,
            state: RequestState::Queued,
            stamps: [Instant(self.now); 4],
            ..Request::default()
        };
        self.owner[id as usize] = client;
        id
    }

    /// Sends what is due.
    fn send(&mut self) {
        let mut ids = Vec::new();
        while let Some(&(at, n, client)) = self.due.first()
            && at <= self.now
        {
            self.due.remove(&(at, n, client));
            if self.done[client].sent < self.clients[client].most {
                ids.push(self.request(client));
            }
        }
        self.bfq.insert(Instant(self.now), &mut self.slots, &ids);
    }

    fn dispatch(&mut self) {
        self.batch.reset(self.room - self.device.len());
        let mut batch = std::mem::replace(&mut self.batch, Batch::with_capacity(0));
        self.bfq.dispatch(Instant(self.now), &mut self.slots, &mut batch);
        for &id in batch.ids() {
            let request = &mut self.slots[id];
            request.state = RequestState::InFlight;
            let channel = (0..self.channels).min_by_key(|&n| self.free_at[n]).unwrap();
            let start = self.free_at[channel].max(self.now);
            let seek = if Position::of(request) == self.head { 0 } else { self.seek_ns };
            self.head = Position::after(request);
            let end = start + seek + u64::from(request.len) * MS / self.bytes_per_ms;
            self.free_at[channel] = end;
            self.device.push((end, id));
        }
        self.batch = batch;
    }

    fn complete(&mut self) {
        let mut ended = Vec::new();
        self.device.sort_unstable();
        while let Some(&(at, id)) = self.device.first()
            && at <= self.now
        {
            self.device.remove(0);
            ended.push(EndedRequest::of(&self.slots[id]));
            let client = self.owner[id as usize];
            let done = &mut self.done[client];
            done.bytes += u64::from(self.slots[id].len);
            done.requests += 1;
            done.latencies.push(self.now - self.slots[id].stamps[0].0);
            self.slots[id].state = RequestState::Free;
            self.slots.put(id);
            self.number += 1;
            self.due.insert((self.now + self.clients[client].think_ns, self.number, client));
        }
        self.bfq.on_complete(Instant(self.now), &self.slots, &ended);
    }

    /// Runs until `end`, checking after each step that nothing stalls and that the counts agree.
    fn run(&mut self, end: u64) {
        while self.now < end {
            self.complete();
            self.send();
            self.dispatch();
            self.check();
            let timer = self.bfq.next_timeout().map(|at| at.0);
            let (late, timer) =
                (timer.filter(|at| *at <= self.now), timer.filter(|at| *at > self.now));
            // A full device takes nothing before it ends something: no step for each nanosecond until then.
            assert!(late.is_none() || self.device.len() == self.room, "a timer that is over");
            let device = self.device.iter().map(|entry| entry.0).min();
            let due = self.due.first().map(|entry| entry.0);
            let next = [device, due, timer].into_iter().flatten().min();
            self.now = next.unwrap_or(end).max(self.now + 1);
        }
    }

    /// P11: what is in the device is counted, always. P13: no stall.
    fn check(&self) {
        assert_eq!(self.bfq.device.requests() as usize, self.device.len());
        let (mut in_device, mut waiting) = (0, 0);
        for queue in self.bfq.places.all() {
            in_device += queue.in_device.get();
            waiting += queue.requests.count();
        }
        assert_eq!(in_device as usize, self.device.len());
        assert_eq!(waiting, self.bfq.waiting.get());
        if self.device.is_empty() && !self.bfq.waiting.is_zero() {
            let at = self.bfq.next_timeout().expect("what waits for nothing has a timer");
            let longest = self.bfq.settings.slice_idle_ns.max(20 * MS);
            assert!(at.0 <= self.now + longest, "a wait of {}", at.0 - self.now);
        }
    }

    fn weigh(&mut self, export: u16, weight: u16) {
        self.bfq.change_shares(ShareChange::ExportWeight(ExportId(export), weight));
    }

    fn weigh_tenant(&mut self, tenant: u16, weight: u16) {
        self.bfq.change_shares(ShareChange::TenantWeight(TenantId(tenant), weight));
    }

    fn move_to(&mut self, export: u16, tenant: TenantId) {
        self.bfq.change_shares(ShareChange::ExportTenant(ExportId(export), tenant));
    }

    fn bytes(&self) -> Vec<u64> {
        self.done.iter().map(|done| done.bytes).collect()
    }
}

fn disk() -> QueueOptions {
    let bfq = BfqOptions { low_latency: false, ..BfqOptions::default() };
    QueueOptions { rotational: true, queue_depth: 32, bfq, ..QueueOptions::default() }
}

fn flash() -> QueueOptions {
    QueueOptions { rotational: false, ..disk() }
}

fn raising(options: QueueOptions) -> QueueOptions {
    let bfq = BfqOptions { low_latency: true, ..options.bfq };
    QueueOptions { bfq, ..options }
}

/// Asserts that exports of these weights got their shares within `tolerance` parts of a thousand.
fn assert_shares(bytes: &[u64], weights: &[u64], tolerance: u64) {
    let (all, sum) = (bytes.iter().sum::<u64>(), weights.iter().sum::<u64>());
    for (got, weight) in bytes.iter().zip(weights) {
        let share = all * weight / sum;
        assert!(got.abs_diff(share) * 1000 <= share * tolerance, "{got} for {share}: {bytes:?}");
    }
}

#[test]
fn exports_get_their_weights_on_a_disk() {
    let weights = [1, 2, 4, 10];
    for (depth, len, random) in
        [(1, 128 << 10, false), (4, 128 << 10, false), (8, 1 << 20, false), (4, 4096, true)]
    {
        let client = |export| Client { export, depth, len, random, ..Client::default() };
        let clients: Vec<Client> = (0..4).map(client).collect();
        let mut world = World::new(disk(), &clients);
        for (export, weight) in weights.iter().enumerate() {
            world.weigh(export as u16, 100 * *weight as u16);
        }
        world.run(60 * SEC);
        let tolerance = if len == 128 << 10 { 20 } else { 30 };
        assert_shares(&world.bytes(), &weights, tolerance);
    }
}

#[test]
fn exports_get_their_weights_on_flash_with_enough_requests() {
    let weights = [1, 2, 4, 10];
    let clients = [0, 1, 2, 3].map(|export| Client {
        export,
        depth: 32,
        len: 16 << 10,
        random: true,
        ..Client::default()
    });
    let mut world = World::new(QueueOptions { queue_depth: 16, ..flash() }, &clients);
    for (export, weight) in weights.iter().enumerate() {
        world.weigh(export as u16, 100 * *weight as u16);
    }
    world.run(4 * SEC);
    assert_shares(&world.bytes(), &weights, 20);
}

/// P20: with strict guarantees clients of one request at a time keep their weights on flash, where they have no backlog.
#[test]
fn strict_guarantees_keep_weights_of_single_requests_on_flash() {
    let mut options = flash();
    options.bfq.strict_guarantees = true;
    let weights = [1, 2, 4, 10];
    let clients = [0, 1, 2, 3].map(|export| Client {
        export,
        len: 4096,
        random: true,
        think_ns: 20 * US,
        ..Client::default()
    });
    let mut world = World::new(options, &clients);
    for (export, weight) in weights.iter().enumerate() {
        world.weigh(export as u16, 100 * *weight as u16);
    }
    while world.now < 8 * SEC {
        let at = world.now + 50 * MS;
        world.run(at);
        assert!(world.device.len() <= 1, "one request at a time");
    }
    assert_shares(&world.bytes(), &weights, 20);
}

#[test]
fn sequential_readers_of_one_request_keep_the_disk_busy() {
    let clients = [Client::default(); 4].map(|client| client);
    let clients: Vec<Client> = clients
        .iter()
        .enumerate()
        .map(|(n, client)| Client { export: n as u16, ..*client })
        .collect();
    let mut world = World::new(disk(), &clients);
    world.run(20 * SEC);
    let sum: u64 = world.bytes().iter().sum();
    // Of 2000 MB at the media rate; without idling each request would cost a seek, and 280 would be left.
    assert!(sum > 1_500_000_000, "{sum}");
    assert_shares(&world.bytes(), &[1, 1, 1, 1], 50);
}

#[test]
fn random_reader_keeps_half_of_the_time_beside_a_sequential_one() {
    let sequential = Client { depth: 4, ..Client::default() };
    let random = Client { random: true, len: 4096, export: 1, ..Client::default() };
    let mut alone = World::new(disk(), &[random]);
    alone.run(20 * SEC);
    let mut world = World::new(disk(), &[sequential, random]);
    world.run(20 * SEC);
    let (got, of) = (world.done[1].requests, alone.done[0].requests);
    assert!(got * 100 >= of * 40, "{got} of {of}");
    assert!(world.done[0].bytes > 500_000_000, "{:?}", world.bytes());
}

/// P15: a slot lasts no longer than its time and one request, and serves its budget and one request at most.
#[test]
fn slot_is_bounded_in_time_and_service() {
    for options in [disk(), flash(), raising(disk())] {
        let clients: Vec<Client> = (0..6_u16)
            .map(|n| Client {
                export: n / 2,
                depth: 1 + u32::from(n) * 5,
                random: n % 3 == 0,
                len: 4096 << n,
                ..Client::default()
            })
            .collect();
        let mut world = World::new(options, &clients);
        let mut most = 0;
        for _ in 0..20_000 {
            let at = world.now + 100 * US;
            world.run(at);
            let Some(slot) = world.bfq.slot else { continue };
            let queue = &world.bfq.places[slot.queue];
            assert!(queue.service <= queue.budget, "{} of {}", queue.service, queue.budget);
            let longest = world.bfq.settings.slot_max_ns(queue.raise.slot_factor());
            // It ends with the next event: a completion of the largest requests that are in the device.
            let late = 400 * MS;
            assert!(world.now - slot.since.0 <= longest.max(slot.until.since(slot.since)) + late);
            most = most.max(queue.service);
        }
        assert!(most > 0);
    }
}

/// P16: nothing is waited for that is asynchronous or of the idle class, or with `slice_idle` 0.
#[test]
fn idling_needs_a_reason() {
    let writes = Client { op: Op::Write, flags: BioFlags::NONE, ..Client::default() };
    let idle = Client { ioprio: Ioprio::new(IoClass::Idle, 4), ..Client::default() };
    let mut none = disk();
    none.bfq.slice_idle_us = 0;
    let several = QueueOptions { queue_depth: 32, ..flash() };
    for (options, client) in
        [(disk(), writes), (disk(), idle), (none, Client::default()), (several, Client::default())]
    {
        let clients = [client, Client { export: 1, depth: 4, ..client }];
        let mut world = World::new(options, &clients);
        while world.now < SEC {
            let at = world.now + 50 * US;
            world.run(at);
            assert!(!world.bfq.idling.is_waiting(), "{client:?}");
        }
    }
    let mut world =
        World::new(disk(), &[Client::default(), Client { export: 1, ..Client::default() }]);
    let mut waited = false;
    while world.now < SEC {
        let at = world.now + 50 * US;
        world.run(at);
        waited |= world.bfq.idling.is_waiting();
    }
    assert!(waited, "a sequential reader on a disk is waited for");
}

/// With all that the device takes, a light reader waits for it.
#[test]
fn measured_limit_keeps_a_light_reader_quick_on_flash() {
    let bulk =
        |export| Client { export, depth: 16, len: 64 << 10, random: true, ..Client::default() };
    let light =
        Client { export: 7, len: 4096, random: true, think_ns: 500 * US, ..Client::default() };
    let clients: Vec<Client> = (0..7).map(bulk).chain([light]).collect();
    let run = |limit: u64| {
        let mut world = World::new(flash(), &clients);
        world.bfq.limit_device(limit, 2048);
        world.run(2 * SEC);
        let bytes: u64 = world.bytes()[..7].iter().sum();
        let mut latencies = world.done[7].latencies.clone();
        latencies.sort_unstable();
        (latencies[latencies.len() * 99 / 100], bytes, world.bfq.take_device_load())
    };
    let (free, all, (_, bound)) = run(u64::MAX);
    assert!(!bound, "nothing waits for a limit that is not there");
    // Nine commands: one for each channel.
    let (limited, most, (load, bound)) = run(8 * (66 << 10) + 1);
    assert!(bound && load <= 9 * (66 << 10), "{load}");
    assert!(3 * limited < 2 * free, "{limited} of {free} ns");
    assert!(10 * most > 9 * all, "{most} of {all} bytes");
}

/// Until 20 of its requests were known, each new reader was waited for after each of them, for a slot.
#[test]
fn new_random_readers_of_a_disk_are_served_in_turn() {
    let client = |export| Client { export, len: 4096, random: true, ..Client::default() };
    let clients: Vec<Client> = (0..100).map(client).collect();
    // A round takes 0.8 s.
    for (options, rounds) in [(disk(), 3), (raising(disk()), 10)] {
        let mut world = World::new(options, &clients);
        world.run(rounds * 804 * MS);
        let served = world.done.iter().filter(|done| done.requests > 0).count();
        assert_eq!(served, 100, "in {rounds} rounds");
    }
}

/// What comes while the device has the one before merges with the next.
#[test]
fn small_request_of_a_stream_waits_for_the_one_before_on_a_disk() {
    for (len, most) in [(4096, 1), (128 << 10, 4)] {
        let client = Client { depth: 4, len, op: Op::Write, ..Client::default() };
        let mut world = World::new(disk(), &[client]);
        let mut in_device = 0;
        while world.now < SEC {
            let at = world.now + 20 * US;
            world.run(at);
            in_device = in_device.max(world.device.len());
        }
        assert_eq!(in_device, most, "{len} bytes");
    }
}

/// The stream's small requests wait for the one in the device, and the other client behind its slot.
#[test]
fn command_that_never_ends_holds_others_for_a_slot_at_most() {
    let stream = Client { depth: 4, len: 4096, op: Op::Write, ..Client::default() };
    let other = Client { export: 1, len: 4096, random: true, starts: 10 * MS, ..Client::default() };
    let mut world = World::new(disk(), &[stream, other]);
    while world.now < 9 * MS || world.device.is_empty() {
        let at = world.now + 20 * US;
        world.run(at);
    }
    world.device[0].0 = u64::MAX;
    // No further request arrives at which the elevator could look at its slot.
    world.run(SEC);
    assert!(world.done[1].requests > 0, "behind a command of the other client");
}

/// A client of 400 small dependent reads among bulk readers: the time that it takes.
fn start_of_a_program(options: QueueOptions, readers: u16) -> u64 {
    let bulk = |n| Client { export: n, depth: 4, ..Client::default() };
    let mut clients: Vec<Client> = (0..readers).map(bulk).collect();
    let starts = if readers > 0 { 30 * SEC } else { 0 };
    clients.push(Client {
        export: readers,
        len: 16 << 10,
        random: true,
        most: 100,
        starts,
        think_ns: 50 * US,
        ..Client::default()
    });
    let mut world = World::new(options, &clients);
    let program = usize::from(readers);
    while world.done[program].requests < 100 {
        let at = world.now + 10 * MS;
        world.run(at);
        assert!(world.now < starts + 60 * SEC, "the program starts");
    }
    world.now - starts
}

#[test]
fn interactive_client_starts_beside_readers_nearly_as_alone() {
    let alone = start_of_a_program(raising(disk()), 0);
    let beside = start_of_a_program(raising(disk()), 10);
    let plain = start_of_a_program(disk(), 10);
    assert!(beside * 10 <= alone * 16, "{beside} for {alone}");
    assert!(plain > 3 * beside, "without raising it waits: {plain}, {beside}");
}

/// P22: raising acts inside an export only.
#[test]
fn raised_client_does_not_change_shares_of_exports() {
    let bulk = |export| Client { export, depth: 8, ..Client::default() };
    let mut shares = Vec::new();
    for options in [disk(), raising(disk())] {
        // The third export has a client that comes back every three seconds, and one that never pauses.
        let burst =
            Client { export: 2, len: 256 << 10, depth: 4, think_ns: 3 * SEC, ..Client::default() };
        let mut world = World::new(options, &[bulk(0), bulk(1), bulk(2), burst]);
        world.run(60 * SEC);
        let bytes = world.bytes();
        let exports = [bytes[0], bytes[1], bytes[2] + bytes[3]];
        shares.push(exports.map(|got| got * 10_000 / exports.iter().sum::<u64>()));
    }
    for export in 0..3 {
        let (plain, raised) = (shares[0][export], shares[1][export]);
        assert!(plain.abs_diff(raised) < 100, "less than 1 %: {shares:?}");
    }
}

/// P23: raising all is raising none.
#[test]
fn equal_raised_clients_have_equal_shares() {
    let clients = [Client { depth: 4, ..Client::default() }; 5];
    let mut world = World::new(raising(disk()), &clients);
    world.run(3 * SEC);
    assert!(world.bfq.symmetry.raised_busy() >= 4, "they are new, and raised");
    assert_shares(&world.bytes(), &[1; 5], 150);
}

/// P24: an unraised queue with requests keeps its slot for the hold.
#[test]
fn hold_keeps_a_slot_from_preemption() {
    let mut clients = vec![Client { depth: 8, ..Client::default() }; 4];
    clients.push(Client {
        len: 16 << 10,
        random: true,
        think_ns: 15 * MS,
        starts: 30 * SEC,
        ..Client::default()
    });
    let mut world = World::new(raising(disk()), &clients);
    world.run(30 * SEC);
    world.bfq.ends.clear();
    world.run(32 * SEC);
    let hold = world.bfq.settings.hold_ns;
    let preempted = |slot: &&EndedSlot| slot.end == SlotEnd::Preempted && !slot.raised;
    let lengths: Vec<u64> = world.bfq.ends.iter().filter(preempted).map(|slot| slot.ns).collect();
    assert!(lengths.len() > 5 && lengths.iter().all(|&ns| ns >= hold), "{lengths:?}");
    // Without a hold the raised client goes first at once.
    let mut options = raising(disk());
    options.bfq.hold_us = 0;
    let mut world = World::new(options, &clients);
    world.run(32 * SEC);
    assert!(world.bfq.ends.iter().any(|slot| preempted(&slot) && slot.ns < hold));
}

/// P10, P11, P13 in random worlds: see `World::check`; and every request ends.
#[test]
fn random_worlds_do_not_stall() {
    for seed in 0..80 {
        let mut prng = Prng::new(seed);
        let mut pick = |values: &[u64]| values[prng.below(values.len() as u64) as usize];
        let mut options = QueueOptions {
            rotational: pick(&[0, 1]) == 1,
            queue_depth: pick(&[1, 2, 5, 32]) as u32,
            hw_inflight_kb: pick(&[0, 0, 64, 1024]) as u32,
            ..QueueOptions::default()
        };
        options.bfq = BfqOptions {
            slice_idle_us: pick(&[0, 100, 8000]) as u32,
            low_latency: pick(&[0, 1]) == 1,
            timeout_sync_ms: pick(&[1, 10, 125]) as u32,
            max_budget: pick(&[0, 1, 100, 100_000]) as u32,
            strict_guarantees: pick(&[0, 0, 0, 1]) == 1,
            hold_us: pick(&[0, 60_000]) as u32,
            inflight_us: pick(&[0, 20_000]) as u32,
            slot_us: pick(&[0, 100]) as u32,
            ..BfqOptions::default()
        };
        let clients: Vec<Client> = (0..pick(&[1, 2, 5, 20]))
            .map(|n| Client {
                export: (n % pick(&[1, 2, 7])) as u16,
                ioprio: Ioprio::new(
                    IoClass::ALL[pick(&[0, 1, 1, 2]) as usize],
                    pick(&[0, 4, 7]) as u8,
                ),
                op: [Op::Read, Op::Write][pick(&[0, 0, 1]) as usize],
                flags: [BioFlags::NONE, BioFlags::SYNC][pick(&[0, 1]) as usize],
                depth: pick(&[1, 1, 4, 16]) as u32,
                len: 512 << pick(&[0, 3, 8]),
                random: pick(&[0, 1]) == 1,
                in_stream: pick(&[0, 0, 1]) == 1,
                think_ns: pick(&[1, 100_000, 20 * MS, 400 * MS, 3 * SEC]),
                starts: pick(&[0, 0, SEC]),
                most: pick(&[1, 30, 200]),
            })
            .collect();
        let mut world = World::new(options, &clients);
        for export in 0..7 {
            world.weigh(export, pick(&[1, 100, 100, 10_000]) as u16);
        }
        let mut end = 0;
        let finished = |world: &World| {
            let mut all = world.done.iter().zip(&world.clients);
            all.all(|(done, client)| done.requests == client.most)
        };
        while !finished(&world) {
            end += SEC;
            world.run(end);
            assert!(end < 3000 * SEC, "seed {seed}: a client waits for ever");
        }
        assert!(world.bfq.waiting.is_zero() && world.device.is_empty());
    }
}

/// A request that is removed or merged away is no end of service.
#[test]
fn removed_and_merged_requests_are_not_completed() {
    let mut world = World::new(disk(), &[Client { depth: 4, ..Client::default() }]);
    world.room = 1;
    world.run(1);
    assert_eq!((world.bfq.waiting.get(), world.bfq.device.requests()), (3, 1));
    let next = world.bfq.places[0].requests.next();
    world.bfq.remove(&mut world.slots, next);
    let removed = EndedRequest::of(&world.slots[next]);
    assert_eq!(removed.dispatched.flow, NIL);
    world.bfq.on_complete(Instant(world.now), &world.slots, &[removed]);
    assert_eq!((world.bfq.waiting.get(), world.bfq.device.requests()), (2, 1));
    let kept = world.bfq.places[0].requests.next();
    let gone = (0..4)
        .find(|&id| id != kept && id != next && world.slots[id].state == RequestState::Queued);
    world.bfq.on_merge(&mut world.slots, kept, gone, MergeEdge::Back);
    assert_eq!(world.slots[gone.unwrap()].dispatched.flow, NIL);
    assert_eq!((world.bfq.waiting.get(), world.bfq.places[0].requests.next()), (1, kept));
}

/// Connections that are dealt one stream are one queue as long as they are.
#[test]
fn connections_of_one_stream_are_served_as_one_queue() {
    let part = Client { in_stream: true, depth: 4, ..Client::default() };
    let other = Client { depth: 2, ..Client::default() };
    let merged = |world: &World| {
        let queues = world.bfq.places.all().iter();
        queues.filter(|queue| queue.merge.is_merged()).count()
    };
    let alone = |clients: &[Client]| {
        let mut world = World::new(disk(), clients);
        world.run(2 * SEC);
        world.bytes().iter().sum::<u64>() as f64
    };
    let one = alone(&[Client { depth: 16, ..part }]);
    let ratio = alone(&[part; 4]) / one;
    assert!(ratio > 0.97, "{ratio} of one connection");
    let mut world = World::new(disk(), &[part, part, part, part, other, other]);
    world.run(2 * SEC);
    assert_eq!(merged(&world), 3, "the readers of other places are no part of it");
    // One of them goes elsewhere.
    let before = world.bytes();
    world.clients[1].in_stream = false;
    world.run(3 * SEC);
    assert_eq!(merged(&world), 2);
    world.clients.iter_mut().for_each(|client| client.in_stream = false);
    world.run(6 * SEC);
    assert_eq!(merged(&world), 0);
    let got: Vec<u64> = world.bytes().iter().zip(&before).map(|(now, then)| now - then).collect();
    assert!(got.iter().all(|&bytes| bytes > 0), "{got:?}");
}

/// Random readers of one small region, other exports, and connections of another priority have queues of their own.
#[test]
fn only_connections_of_one_stream_are_merged() {
    let part = Client { in_stream: true, depth: 2, ..Client::default() };
    let high = Client { ioprio: Ioprio::new(IoClass::BestEffort, 1), ..part };
    for clients in [
        vec![part, Client { export: 1, ..part }, Client { export: 2, ..part }],
        vec![part, high],
        vec![part, Client { flags: BioFlags::NONE, op: Op::Write, ..part }],
        vec![Client { random: true, len: 4096, ..Client::default() }; 6],
    ] {
        let mut world = World::new(disk(), &clients);
        world.run(SEC);
        let queues = world.bfq.places.all();
        assert!(queues.iter().all(|queue| !queue.merge.is_merged()), "{clients:?}");
    }
    // On flash distance costs nothing.
    let mut world = World::new(QueueOptions { rotational: false, ..disk() }, &[part; 4]);
    world.run(SEC / 10);
    assert!(world.bfq.places.all().iter().all(|queue| !queue.merge.is_merged()));
}
