//! The bound on bypass: how much of each other connection is granted while a connection's first waiter waits.
//!
//! The bound is that of the head of `shares`: a sibling of weight `x` passes a request of cost `l` and weight `w`, whose
//! connection was served `p` before, with at most `x / w * (p + l)` and three of its own requests.

use headworks_core::ExportId;
use headworks_core::prng::Prng;
use headworks_core::tags::{ByteBudget, TagRequest, max_request_tags};

use crate::gate::{Gate, KIB, request};

/// Connections whose waits are looked at; of more than so many the first.
const WATCHED: usize = 24;

/// Largest cost of a request.
const COST_MAX: u64 = 1 << 20;

/// How the connections of a run are divided into exports.
#[derive(Clone, Copy, Debug)]
enum Exports {
    /// All in one export, equal.
    One,
    /// One export each, with weights of 1 to 64.
    Weighted,
}

/// A connection's requests: how many are outstanding at most, and which sizes they have.
#[derive(Clone, Copy, Debug)]
struct Client {
    export: ExportId,
    weight: u16,
    depth: u32,
    /// Sizes are 4 KiB shifted by up to this.
    sizes: u64,
    /// It asks again after each answer; otherwise at random moments.
    closed: bool,
    outstanding: u32,
}

/// The first waiter of a watched connection, and what passed it.
#[derive(Clone, Debug, Default)]
struct Head {
    number: Option<usize>,
    /// Cost of the connection's grant before it.
    before: u64,
    passed: Vec<u64>,
}

struct Run {
    gate: Gate,
    prng: Prng,
    clients: Vec<Client>,
    heads: Vec<Head>,
    /// Waiting requests of the watched connections, in order.
    waiting: Vec<std::collections::VecDeque<usize>>,
    seen: usize,
    largest: f64,
}

impl Run {
    fn new(seed: u64, depth: u32, flows: usize, exports: Exports) -> Self {
        let mut prng = Prng::new(seed);
        let client = |n: usize| {
            let (export, weight) = match exports {
                Exports::One => (ExportId(0), 100),
                Exports::Weighted => (ExportId(n as u16), 1 << prng.below(7)),
            };
            let (sizes, closed) = (prng.below(9), prng.below(3) > 0);
            let depth = 1 << (prng.below(3) * prng.below(3));
            Client { export, weight, depth, sizes, closed, outstanding: 0 }
        };
        let clients: Vec<Client> = (0..flows).map(client).collect();
        let watched = flows.min(WATCHED);
        let head = Head { passed: vec![0; flows], ..Head::default() };
        Self {
            gate: Gate::new(depth, depth),
            prng: Prng::new(seed + 1),
            clients,
            heads: vec![head; watched],
            waiting: vec![Default::default(); watched],
            seen: 0,
            largest: 0.0,
        }
    }

    fn request(&mut self, client: usize) -> TagRequest {
        let Client { export, weight, sizes, .. } = self.clients[client];
        let bytes = (4 * KIB) << self.prng.below(sizes + 1);
        let most = u64::from(max_request_tags(self.gate.depth));
        let tags = u64::from(bytes.div_ceil(128 * KIB)).min(most) as u16;
        TagRequest { export, weight, ..request(client as u32, tags, bytes) }
    }

    /// Submits a request of a client; it may be granted at once.
    fn submit(&mut self, client: usize) {
        let request = self.request(client);
        self.clients[client].outstanding += 1;
        let number = self.gate.put_in(&[request]);
        if client < self.heads.len() && !self.gate.holds(number) {
            self.waiting[client].push_back(number);
            self.note_head(client);
        }
        self.grant();
    }

    /// Completes a random request that holds tags, and lets its client ask again.
    fn complete(&mut self) {
        let at = self.prng.below(self.gate.held.len() as u64) as usize;
        let number = self.gate.give_back(at);
        let client = self.gate.requests[number].connection as usize;
        self.clients[client].outstanding -= 1;
        self.gate.now += self.prng.below(1000);
        self.grant();
        if self.clients[client].closed {
            self.submit(client);
        }
    }

    fn grant(&mut self) {
        self.gate.grants(ByteBudget::Available);
        self.account();
        if self.gate.waiting == 0 {
            // All is forgotten, and nothing has passed anything.
            self.heads.iter_mut().for_each(|head| head.before = 0);
        }
    }

    /// Accounts the grants since the last call to the heads that they passed.
    fn account(&mut self) {
        for at in self.seen..self.gate.granted.len() {
            let number = self.gate.granted[at];
            let TagRequest { connection, cost, .. } = self.gate.requests[number];
            let by = connection as usize;
            for client in 0..self.heads.len() {
                if client == by || self.heads[client].number.is_none() {
                    continue;
                }
                self.heads[client].passed[by] += cost;
                let (bound, passed) = (self.bound(client, by), self.heads[client].passed[by]);
                self.largest = self.largest.max(passed as f64 / bound as f64);
                assert!(passed <= bound, "{client} was passed by {passed} of {by}, bound {bound}");
            }
            if by < self.heads.len() {
                assert_eq!(self.waiting[by].pop_front(), Some(number));
                self.heads[by].number = None;
                self.heads[by].before = cost;
                self.note_head(by);
            }
        }
        self.seen = self.gate.granted.len();
    }

    /// Begins to watch a connection's first waiter, if that is a new one.
    fn note_head(&mut self, client: usize) {
        let head = &mut self.heads[client];
        if head.number.is_none() && !self.waiting[client].is_empty() {
            head.number = self.waiting[client].front().copied();
            head.passed.fill(0);
        }
    }

    fn bound(&self, client: usize, by: usize) -> u64 {
        let head = &self.heads[client];
        let cost = self.gate.requests[head.number.expect("it waits")].cost;
        let (own, other) = (self.clients[client].weight, self.clients[by].weight);
        u64::from(other) * (head.before + cost) / u64::from(own) + 3 * COST_MAX
    }

    fn step(&mut self) {
        if self.prng.below(2) == 0 || self.gate.held.is_empty() {
            let client = self.prng.below(self.clients.len() as u64) as usize;
            if self.clients[client].outstanding < self.clients[client].depth {
                self.submit(client);
            }
        } else {
            self.complete();
        }
    }
}

#[test]
fn waiter_is_passed_by_bounded_cost_of_each_other_connection() {
    let scale = if cfg!(debug_assertions) { 4 } else { 40 };
    let mut largest: f64 = 0.0;
    for exports in [Exports::One, Exports::Weighted] {
        for flows in [1, 2, 7, 64, 700, 4096] {
            for depth in [1, 2, 16, 64, 256, 1024] {
                let seed = flows as u64 * 10_000 + u64::from(depth);
                let mut run = Run::new(seed, depth, flows, exports);
                let steps = scale * (4 * flows).clamp(2_000, 12_000);
                (0..steps).for_each(|_| run.step());
                largest = largest.max(run.largest);
            }
        }
    }
    assert!(largest > 0.4, "the bound is not idle: {largest:.2} of it is reached");
}

#[test]
fn closed_loops_of_any_number_are_served_once_a_round() {
    for flows in [8_usize, 64, 300, 1000, 4096] {
        for depth in [1, 2, 31, 62, 256] {
            let mut gate = Gate::new(depth, depth);
            for client in 0..flows as u32 {
                gate.submit(request(client, 1, 4 * KIB));
            }
            let (mut last, mut rounds) = (vec![0_usize; flows], 0);
            for served in 1..=12 * flows.max(depth as usize) {
                let client = gate.finish(0).connection as usize;
                let gap = served - last[client];
                // A request is in the device for as many others as it holds.
                let most = flows.max(depth as usize) + 1;
                assert!(
                    gap <= 2 * most,
                    "{flows} clients, {depth} tags: {gap} answers between two"
                );
                rounds += usize::from(gap > most);
                last[client] = served;
                gate.submit(request(client as u32, 1, 4 * KIB));
            }
            assert!(rounds <= flows, "a client waits longer than a round only at first: {rounds}");
        }
    }
}
