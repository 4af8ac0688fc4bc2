//! One limit on several shards: exact over every interval with late messages, shares across shards, changes, and silent shards.

use std::collections::{BTreeMap, VecDeque};

use super::super::bucket::SLACK_NS;
use super::super::lease::quantum_ns;
use super::super::tokens::LeaseMessage;
use super::*;
use crate::bio::ShardId;

/// A client of a shard that keeps `depth` requests outstanding.
#[derive(Debug)]
struct Client {
    shard: usize,
    leaf: NodeId,
    op: Op,
    sizes: (u64, u64),
    think_ns: u64,
    /// Requests behind the one that waits in the tree.
    queue: VecDeque<(u64, LimitedIo)>,
    head: Option<(u64, LimitedIo)>,
}

/// What happens at a time.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A client makes its next request.
    Request(usize),
    /// A message about the node arrives.
    Message { from: usize, to: usize, message: LeaseMessage },
    /// A shard that slept until its tree was due looks at it.
    Wake { shard: usize, due: u64 },
}

/// Shards with a tree each, which share the root. Messages between two shards keep their order and are late by up to `delay_ns`.
#[derive(Debug)]
struct Shards {
    trees: Vec<LimitTree>,
    clients: Vec<Client>,
    events: BTreeMap<(u64, u64), Event>,
    /// Arrival of the last message from one shard to another.
    arrivals: BTreeMap<(usize, usize), u64>,
    wakes: Vec<Option<u64>>,
    /// Shards that do nothing until a time.
    stopped: Vec<u64>,
    prng: Prng,
    serial: u64,
    delay_ns: u64,
    late_ns: u64,
    messages: u64,
    admissions: Vec<Admission>,
}

impl Shards {
    /// Trees of `count` shards whose root lives on shard 0.
    fn new(count: u16, limits: &Limits, delay_ns: u64, late_ns: u64) -> Self {
        let trees = (0..count).map(|shard| {
            let mut tree = LimitTree::new(64);
            tree.set_shards(count);
            tree.set_limits(Instant(0), LimitTree::ROOT, limits);
            tree.set_home(Instant(0), LimitTree::ROOT, (shard > 0).then_some(ShardId(0)));
            tree
        });
        Self {
            trees: trees.collect(),
            clients: Vec::new(),
            events: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            wakes: vec![None; count.into()],
            stopped: vec![0; count.into()],
            prng: Prng::new(11),
            serial: 0,
            delay_ns,
            late_ns,
            messages: 0,
            admissions: Vec::new(),
        }
    }

    /// Adds an export of the given weight with one client.
    fn client(&mut self, shard: usize, weight: u32, client: super::Client) -> usize {
        let index = self.clients.len();
        let export = self.trees[shard].add_group(LimitTree::ROOT, weight, 0);
        let leaf = self.trees[shard].add_leaf(export, 100, index as u32);
        let super::Client { op, sizes, depth, think_ns, .. } = client;
        let (queue, head) = (VecDeque::new(), None);
        self.clients.push(Client { shard, leaf, op, sizes, think_ns, queue, head });
        (0..depth).for_each(|_| self.at(0, Event::Request(index)));
        index
    }

    fn at(&mut self, at: u64, event: Event) {
        self.serial += 1;
        self.events.insert((at, self.serial), event);
    }

    fn admitted(&mut self, now: u64, client: usize, (made, io): (u64, LimitedIo)) {
        let (bytes, waited_ns) = (u64::from(io.bytes), now - made);
        self.admissions.push(Admission { at: now, client, bytes, waited_ns });
        let next = now + 20_000 + self.clients[client].think_ns;
        self.at(next, Event::Request(client));
    }

    fn request(&mut self, now: u64, index: usize) {
        let (low, high) = self.clients[index].sizes;
        let len = self.prng.between(low, high) as u32;
        let client = &mut self.clients[index];
        let io = LimitedIo::of(client.op, len).unwrap();
        if client.head.is_some() {
            client.queue.push_back((now, io));
        } else if self.trees[client.shard].admit(Instant(now), client.leaf, io) {
            self.admitted(now, index, (now, io));
        } else {
            client.head = Some((now, io));
        }
    }

    fn pop_all(&mut self, now: u64, shard: usize) {
        while let Some(passed) = self.trees[shard].pop(Instant(now)) {
            let index = passed.owner as usize;
            let client = &mut self.clients[index];
            let request = client.head.take().expect("only a waiting request passes");
            client.head = client.queue.pop_front();
            if let Some((_, io)) = client.head {
                self.trees[shard].wait(Instant(now), client.leaf, io);
            }
            self.admitted(now, index, request);
        }
    }

    /// Sends the messages of a shard, and sets the time at which it looks at its tree.
    fn settle(&mut self, now: u64, shard: usize) {
        while let Some(sent) = self.trees[shard].next_outgoing() {
            self.messages += 1;
            let to = usize::from(sent.to.0);
            let last = self.arrivals.get(&(shard, to)).copied().unwrap_or(0);
            let arrival = (now + self.prng.below(self.delay_ns + 1)).max(last);
            self.arrivals.insert((shard, to), arrival);
            self.at(arrival, Event::Message { from: shard, to, message: sent.message });
        }
        let due = self.trees[shard].next_timeout().map(|at| at.0.max(now));
        if due != self.wakes[shard] {
            self.wakes[shard] = due;
            if let Some(due) = due {
                let late = self.prng.below(self.late_ns + 1);
                self.at(due + late, Event::Wake { shard, due });
            }
        }
    }

    fn run(&mut self, end: u64) {
        while let Some((&(at, serial), &event)) = self.events.first_key_value() {
            if at >= end {
                return;
            }
            self.events.remove(&(at, serial));
            let shard = match event {
                Event::Request(client) => self.clients[client].shard,
                Event::Message { to, .. } => to,
                Event::Wake { shard, due } if self.wakes[shard] == Some(due) => shard,
                // It was woken before.
                Event::Wake { .. } => continue,
            };
            if self.stopped[shard] > at {
                self.at(self.stopped[shard], event);
                continue;
            }
            match event {
                Event::Request(client) => self.request(at, client),
                Event::Message { from, to, message } => {
                    let from = ShardId(from as u16);
                    self.trees[to].on_message(Instant(at), LimitTree::ROOT, from, message);
                    self.pop_all(at, to);
                }
                Event::Wake { .. } => {
                    self.wakes[shard] = None;
                    self.pop_all(at, shard);
                }
            }
            self.settle(at, shard);
        }
    }

    fn set_limits(&mut self, now: u64, limits: &Limits) {
        for shard in 0..self.trees.len() {
            self.trees[shard].set_limits(Instant(now), LimitTree::ROOT, limits);
            self.pop_all(now, shard);
            self.settle(now, shard);
        }
    }

    fn bytes_of(&self, client: usize) -> u64 {
        self.admissions.iter().filter(|one| one.client == client).map(|one| one.bytes).sum()
    }

    fn p99_wait_ns(&self, client: usize) -> u64 {
        let own = self.admissions.iter().filter(|one| one.client == client);
        let mut waits: Vec<u64> = own.map(|one| one.waited_ns).collect();
        waits.sort_unstable();
        waits[waits.len() * 99 / 100]
    }

    fn parts(&self, kind: LimitKind) -> Vec<(u64, u128)> {
        let cost = |one: &Admission| match kind.is_bytes() {
            true => u128::from(one.bytes) * u128::from(SEC),
            false => u128::from(SEC),
        };
        self.admissions.iter().map(|one| (one.at, cost(one))).collect()
    }
}

/// What leases add to a bound: 4 ms that are held, 4 ms that are used in advance, and a request for each shard.
fn leased(shards: u16, rate: u64, largest: u128) -> u128 {
    let lessees = u128::from(shards - 1);
    let quantum = u128::from(quantum_ns(shards)) * u128::from(rate);
    lessees * (quantum.max(largest) + quantum)
}

#[test]
fn every_interval_admits_the_rate_on_all_shards_together() {
    let cases = [
        (LimitKind::IopsTotal, 100, (512, 4096)),
        (LimitKind::IopsTotal, 20_000, (512, 4096)),
        (LimitKind::BpsTotal, 10_000_000, (4096, 65_536)),
        (LimitKind::BpsTotal, 20_000_000, (512, 8192)),
        (LimitKind::BpsRead, 400_000_000, (512, 262_144)),
    ];
    for (kind, rate, sizes) in cases {
        for shards in [2, 3, 8] {
            for delay_ns in [0, 100_000, 500_000] {
                let mut world = Shards::new(shards, &limit(kind, rate), delay_ns, 200_000);
                for shard in 0..usize::from(shards) {
                    let client = super::Client { sizes, ..super::Client::new(Op::Read, 0, 8) };
                    world.client(shard, 100, client);
                }
                world.run(3 * SEC);
                let largest =
                    u128::from(if kind.is_bytes() { sizes.1 } else { 1 }) * u128::from(SEC);
                let slack = u128::from(SLACK_NS) * u128::from(rate);
                let leased = leased(shards, rate, largest);
                let parts = world.parts(kind);
                assert_bounds(&parts, rate, 2 * slack + largest + leased, None);
                let from = parts.partition_point(|(at, _)| *at < SEC / 5);
                let late = u128::from(1_450_000 + 2 * delay_ns) * u128::from(rate);
                // Light requests may pass while the level is twice its size.
                let above = slack + largest + late + leased;
                assert_bounds(&parts[from..], rate, above, Some(largest + late + leased));
                // In the long run it is exact.
                let sum: u128 = parts[from..].iter().map(|(_, cost)| cost).sum();
                let whole = u128::from(rate) * u128::from(3 * SEC - SEC / 5);
                let allowed = slack + largest + leased + late;
                assert!(sum.abs_diff(whole) <= allowed, "{kind:?} {rate} {shards} {delay_ns}");
            }
        }
    }
}

#[test]
fn one_message_serves_many_requests() {
    let mut world = Shards::new(2, &limit(LimitKind::IopsTotal, 100_000), 20_000, 50_000);
    for shard in [0, 1] {
        world.client(shard, 100, super::Client::new(Op::Read, 4096, 64));
    }
    world.run(SEC);
    let count = world.admissions.len() as u64;
    assert!(count >= 99_000, "{count} admitted");
    assert!(world.messages <= count / 20, "{} messages for {count} requests", world.messages);
}

#[test]
fn shards_share_by_the_weights_that_wait_there() {
    for delay_ns in [20_000, 300_000] {
        let mut world = Shards::new(4, &limit(LimitKind::BpsTotal, 20_000_000), delay_ns, 100_000);
        let client = super::Client::new(Op::Write, 16_384, 8);
        let weights = [(0, 100), (1, 200), (1, 400), (2, 1000), (3, 300)];
        for (shard, weight) in weights {
            world.client(shard, weight, client);
        }
        world.run(10 * SEC);
        for (index, (_, weight)) in weights.into_iter().enumerate() {
            let part = f64::from(weight) / 2000.0;
            let got = world.bytes_of(index) as f64 / 200e6;
            assert!(
                (got / part - 1.0).abs() < 0.03,
                "{index}: {got:.4}, not {part:.4}, {delay_ns}"
            );
        }
    }
}

/// A light client has its half beside a heavy one, wherever the two and the limit are.
#[test]
fn light_client_gets_its_part_on_any_shard() {
    let places = [(0, 1), (1, 0), (1, 1), (1, 2)];
    for (delay_ns, (heavy_on, light_on)) in
        [60_000, 500_000].into_iter().flat_map(|delay_ns| places.map(|place| (delay_ns, place)))
    {
        let mut world = Shards::new(3, &limit(LimitKind::BpsTotal, 20_000_000), delay_ns, 100_000);
        world.client(heavy_on, 100, super::Client::new(Op::Read, 65_536, 16));
        world.client(light_on, 100, super::Client::new(Op::Read, 4096, 1));
        world.run(10 * SEC);
        for client in [0, 1] {
            let got = world.bytes_of(client) as f64 / 100e6;
            assert!((got - 1.0).abs() < 0.03, "{heavy_on} {light_on}: client {client} {got:.4}");
        }
    }
}

#[test]
fn client_below_its_part_does_not_wait_for_messages() {
    for (heavy_on, light_on) in [(0, 1), (1, 1), (1, 2)] {
        let mut world = Shards::new(3, &limit(LimitKind::BpsTotal, 20_000_000), 100_000, 100_000);
        world.client(heavy_on, 100, super::Client::new(Op::Read, 65_536, 16));
        let think = super::Client { think_ns: 1_700_000, ..super::Client::new(Op::Read, 4096, 1) };
        let light = world.client(light_on, 100, think);
        world.run(10 * SEC);
        assert_eq!(world.p99_wait_ns(light), 0, "{heavy_on} {light_on}");
        let got = world.bytes_of(0) as f64 / 200e6;
        assert!((got - 0.884).abs() < 0.02, "the rest is the other's: {got:.4}");
    }
}

#[test]
fn rested_shard_keeps_nothing() {
    let mut world = Shards::new(2, &limit(LimitKind::IopsTotal, 10_000), 20_000, 0);
    world.client(1, 100, super::Client::new(Op::Read, 4096, 16));
    world.run(SEC / 2);
    world.clients[0].queue.clear();
    world.clients[0].head = None;
    let leaf = world.clients[0].leaf;
    world.trees[1].withdraw(Instant(SEC / 2), leaf);
    world.events.retain(|_, event| !matches!(event, Event::Request(_)));
    world.settle(SEC / 2, 1);
    world.run(SEC);
    let sent = world.events.values().any(|event| matches!(event, Event::Message { .. }));
    assert!(!sent, "nothing more is asked for");
    assert_eq!([0, 1].map(|shard| world.trees[shard].next_timeout()), [None; 2]);
    // All of the rate is there for the home, with the slack that it is to have.
    let before = world.admissions.len();
    world.client(0, 100, super::Client::new(Op::Read, 4096, 16));
    for (_, event) in std::mem::take(&mut world.events) {
        world.at(SEC, event);
    }
    world.run(2 * SEC);
    let count = world.admissions.len() - before;
    assert!(count.abs_diff(10_000) <= 60, "{count} in a second");
}

#[test]
fn changed_rate_holds_on_all_shards() {
    let kind = LimitKind::BpsTotal;
    let mut world = Shards::new(3, &limit(kind, 100_000_000), 100_000, 100_000);
    for shard in [0, 1, 2] {
        world.client(shard, 100, super::Client::new(Op::Read, 16_384, 16));
    }
    let rates = [10_000_000, 50_000_000, 2_000_000, 100_000_000];
    for (step, rate) in rates.into_iter().enumerate() {
        let now = (step as u64 + 1) * SEC;
        world.run(now);
        let before: u64 = (0..3).map(|client| world.bytes_of(client)).sum();
        world.set_limits(now, &limit(kind, rate));
        world.run(now + SEC * 9 / 10);
        let got = (0..3).map(|client| world.bytes_of(client)).sum::<u64>() - before;
        let allowed = rate / 25 + 8 * 16_384;
        assert!(got.abs_diff(rate * 9 / 10) <= allowed, "{got} bytes in 0.9 s at {rate}");
    }
    world.run(5 * SEC);
    world.set_limits(5 * SEC, &Limits::default());
    let before = world.admissions.len();
    world.run(5 * SEC + SEC / 10);
    assert!(world.admissions.len() - before > 10_000, "nothing is limited");
}

#[test]
fn node_moves_with_what_it_has_admitted() {
    let mut world = Shards::new(3, &limit(LimitKind::IopsTotal, 1000), 100_000, 100_000);
    for shard in [0, 1, 2] {
        world.client(shard, 100, super::Client::new(Op::Read, 4096, 8));
    }
    for (second, home) in [(1, 1), (2, 2), (3, 0), (4, 1)] {
        world.run(second * SEC);
        // Shards learn of it one after the other.
        for (step, shard) in [2, 0, 1].into_iter().enumerate() {
            let now = second * SEC + step as u64 * 3 * MS;
            world.run(now);
            let other = (shard != home).then_some(ShardId(home as u16));
            world.trees[shard].set_home(Instant(now), LimitTree::ROOT, other);
            world.pop_all(now, shard);
            world.settle(now, shard);
        }
    }
    world.run(5 * SEC);
    let count = world.admissions.len();
    assert!(count.abs_diff(5000) <= 100, "{count} in 5 s with four moves");
    for client in 0..3 {
        let own = world.bytes_of(client) / 4096;
        assert!(own.abs_diff(1667) <= 100, "client {client}: {own}");
    }
}

#[test]
fn silent_home_blocks_nobody_beyond_a_second() {
    let mut world = Shards::new(4, &limit(LimitKind::IopsTotal, 4000), 50_000, 100_000);
    for shard in [0, 1, 2] {
        world.client(shard, 100, super::Client::new(Op::Read, 4096, 8));
    }
    world.run(SEC);
    world.stopped[0] = 6 * SEC;
    world.run(6 * SEC);
    let count = |world: &Shards, client: usize, (from, to): (u64, u64)| {
        let own = world.admissions.iter().filter(|one| one.client == client);
        own.filter(|one| (from..to).contains(&one.at)).count() as u64
    };
    for client in [1, 2] {
        let own = count(&world, client, (2 * SEC + SEC / 10, 6 * SEC));
        assert!(own.abs_diff(3900) <= 60, "a quarter of the rate, not {own} in 3.9 s");
    }
    world.run(8 * SEC);
    let again: u64 =
        (0..3).map(|client| count(&world, client, (6 * SEC + SEC / 10, 8 * SEC))).sum();
    assert!(again.abs_diff(7600) <= 150, "{again} in 1.9 s when the home answers again");
    let own = count(&world, 1, (6 * SEC + SEC / 10, 8 * SEC));
    assert!(own.abs_diff(2533) <= 130, "{own} are its third");
}

/// Lessees that wait for a long time know that the home lives.
#[test]
fn long_wait_is_no_silence() {
    let mut world = Shards::new(3, &limit(LimitKind::IopsTotal, 1), 50_000, 100_000);
    for shard in [0, 1, 2] {
        world.client(shard, 100, super::Client::new(Op::Read, 4096, 4));
    }
    world.run(30 * SEC);
    let count = world.admissions.len();
    assert!((30..=33).contains(&count), "{count} in 30 s at one a second");
}

#[test]
fn stopped_lessee_takes_no_more_than_its_lease() {
    let mut world = Shards::new(2, &limit(LimitKind::IopsTotal, 10_000), 50_000, 100_000);
    for shard in [0, 1] {
        world.client(shard, 100, super::Client::new(Op::Read, 4096, 16));
    }
    world.run(SEC);
    world.stopped[1] = 3 * SEC;
    world.run(3 * SEC);
    let own = world.admissions.iter().filter(|one| one.client == 0 && one.at >= SEC).count();
    assert!(own.abs_diff(20_000) <= 100, "{own} in 2 s: all of the rate");
}

/// Random limits, homes, requests and delays: nothing is lost, and without limits everything passes.
#[test]
fn random_changes_on_several_shards_lose_no_request() {
    for seed in 0..20 {
        let mut prng = Prng::new(seed);
        let shards = 1 + prng.below(8) as u16;
        let mut world = Shards::new(shards, &Limits::default(), prng.below(2 * MS), MS);
        world.prng = Prng::new(seed + 1000);
        for _ in 0..12 {
            let op = if prng.below(2) == 0 { Op::Read } else { Op::Write };
            let sizes = (512, 512 << prng.below(10));
            let client = super::Client {
                sizes,
                think_ns: prng.below(MS),
                ..super::Client::new(op, 0, 1 + prng.below(16) as u32)
            };
            world.client(prng.below(shards.into()) as usize, 1 + prng.below(1000) as u32, client);
        }
        for step in 1..60 {
            let now = step * 20 * MS;
            world.run(now);
            match prng.below(4) {
                0 => {
                    let home = prng.below(shards.into()) as usize;
                    for shard in 0..usize::from(shards) {
                        let other = (shard != home).then_some(ShardId(home as u16));
                        world.trees[shard].set_home(Instant(now), LimitTree::ROOT, other);
                        world.pop_all(now, shard);
                        world.settle(now, shard);
                    }
                }
                1 => world.stopped[prng.below(shards.into()) as usize] = now + prng.below(15 * MS),
                _ => {
                    let kind = LimitKind::ALL[prng.below(6) as usize];
                    let mut limits = limit(kind, kind.least() << prng.below(16));
                    if prng.below(3) == 0 {
                        limits.rates[kind as usize].max = 3 * limits.rates[kind as usize].average;
                    }
                    world.set_limits(now, &limits);
                }
            }
        }
        world.run(1200 * MS);
        world.set_limits(1200 * MS, &Limits::default());
        world.run(1300 * MS);
        for (index, client) in world.clients.iter().enumerate() {
            let waits = client.head.map(|(since, _)| since);
            assert!(
                waits.is_none_or(|since| since > 1250 * MS),
                "seed {seed}: client {index} waits"
            );
        }
    }
}
