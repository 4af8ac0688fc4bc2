//! Tests of limits: exact rates in every interval, bursts, shares below a node, and neighbours that are left alone.

mod leases;
mod neighbours;
mod rates;
mod shares;
mod structure;

use super::tree::LimitTree;
use super::{LimitDirection, LimitKind, LimitedIo, Limits, NodeId, Rate};
use crate::bio::Op;
use crate::prng::Prng;
use crate::time::{Instant, MS, SEC};

/// Limits with one rate.
fn limit(kind: LimitKind, average: u64) -> Limits {
    let mut limits = Limits::default();
    limits.rates[kind as usize] = Rate { average, ..Rate::default() };
    limits
}

/// A client: it keeps `depth` requests of a size range outstanding, each answered after `device_ns` and followed by the next
/// after `think_ns`.
#[derive(Clone, Copy, Debug)]
struct Client {
    op: Op,
    sizes: (u64, u64),
    depth: u32,
    device_ns: u64,
    think_ns: u64,
}

impl Client {
    fn new(op: Op, size: u64, depth: u32) -> Self {
        Self { op, sizes: (size, size), depth, device_ns: 300_000, think_ns: 0 }
    }
}

/// An admitted request.
#[derive(Clone, Copy, Debug)]
struct Admission {
    at: u64,
    client: usize,
    bytes: u64,
    waited_ns: u64,
}

#[derive(Debug)]
struct ClientState {
    client: Client,
    leaf: NodeId,
    /// Requests behind the first one that waits in the tree, with the times at which they were made.
    queue: std::collections::VecDeque<(u64, LimitedIo)>,
    /// Time of the first one.
    head: Option<(u64, LimitedIo)>,
}

/// Clients of a tree in virtual time; a wake-up is late by up to `late_ns`.
#[derive(Debug)]
struct World {
    tree: LimitTree,
    clients: Vec<ClientState>,
    /// Times at which clients make their next request.
    events: std::collections::BTreeSet<(u64, u64, usize)>,
    prng: Prng,
    serial: u64,
    late_ns: u64,
    wakes: u64,
    admissions: Vec<Admission>,
}

impl World {
    fn new(late_ns: u64) -> Self {
        Self {
            tree: LimitTree::new(64),
            clients: Vec::new(),
            events: std::collections::BTreeSet::new(),
            prng: Prng::new(7),
            serial: 0,
            late_ns,
            wakes: 0,
            admissions: Vec::new(),
        }
    }

    fn client(&mut self, parent: NodeId, client: Client) -> usize {
        let index = self.clients.len();
        let leaf = self.tree.add_leaf(parent, 100, index as u32);
        let queue = std::collections::VecDeque::new();
        self.clients.push(ClientState { client, leaf, queue, head: None });
        (0..client.depth).for_each(|_| self.schedule(0, index));
        index
    }

    fn schedule(&mut self, at: u64, client: usize) {
        self.serial += 1;
        self.events.insert((at, self.serial, client));
    }

    fn admitted(&mut self, now: u64, client: usize, (made, io): (u64, LimitedIo)) {
        let (bytes, waited_ns) = (u64::from(io.bytes), now - made);
        self.admissions.push(Admission { at: now, client, bytes, waited_ns });
        let Client { device_ns, think_ns, .. } = self.clients[client].client;
        self.schedule(now + device_ns + think_ns, client);
    }

    fn request(&mut self, now: u64, index: usize) {
        let (low, high) = self.clients[index].client.sizes;
        let len = self.prng.between(low, high) as u32;
        let state = &mut self.clients[index];
        let io = LimitedIo::of(state.client.op, len).unwrap();
        if state.head.is_some() {
            state.queue.push_back((now, io));
        } else if self.tree.admit(Instant(now), state.leaf, io) {
            self.admitted(now, index, (now, io));
        } else {
            state.head = Some((now, io));
        }
    }

    fn pop_all(&mut self, now: u64) {
        while let Some(passed) = self.tree.pop(Instant(now)) {
            let index = passed.owner as usize;
            let state = &mut self.clients[index];
            let request = state.head.take().expect("only a waiting request passes");
            assert_eq!(request.1.direction, passed.direction);
            state.head = state.queue.pop_front();
            if let Some((_, io)) = state.head {
                self.tree.wait(Instant(now), state.leaf, io);
            }
            self.admitted(now, index, request);
        }
    }

    /// Runs until `end`; returns what was admitted.
    fn run(&mut self, from: u64, end: u64) {
        let (mut now, mut wake) = (from, None);
        loop {
            let due = self.tree.next_timeout().map(|at| at.0.max(now));
            match (due, wake) {
                (Some(due), None) => wake = Some((due, due + self.prng.below(self.late_ns + 1))),
                (Some(due), Some((before, _))) if due != before => {
                    wake = Some((due, due + self.prng.below(self.late_ns + 1)));
                }
                (None, _) => wake = None,
                _ => {}
            }
            let request = self.events.first().map(|(at, ..)| *at);
            let next = [request, wake.map(|(_, at)| at)].into_iter().flatten().min();
            let Some(next) = next.filter(|at| *at < end) else { return };
            now = next.max(now);
            if request.is_some_and(|at| at <= now) {
                let (_, _, client) = self.events.pop_first().unwrap();
                self.request(now, client);
            }
            if wake.is_some_and(|(_, at)| at <= now) {
                (wake, self.wakes) = (None, self.wakes + 1);
                self.pop_all(now);
            }
        }
    }

    fn bytes_of(&self, client: usize) -> u64 {
        self.admissions.iter().filter(|one| one.client == client).map(|one| one.bytes).sum()
    }

    fn count_of(&self, client: usize) -> u64 {
        self.admissions.iter().filter(|one| one.client == client).count() as u64
    }

    /// The shortest wait that 99 of 100 requests of a client did not exceed.
    fn p99_wait_ns(&self, client: usize) -> u64 {
        let own = self.admissions.iter().filter(|one| one.client == client);
        let mut waits: Vec<u64> = own.map(|one| one.waited_ns).collect();
        waits.sort_unstable();
        waits.get(waits.len() * 99 / 100).copied().unwrap_or(0)
    }
}

/// Asserts the two bounds of a rate over all pairs of admissions: at most `rate T + above`, at least `rate T - below` while
/// requests wait. Units are parts of a unit.
fn assert_bounds(admissions: &[(u64, u128)], rate: u64, above: u128, below: Option<u128>) {
    // With S(i) the sum before admission i, at most: S(j + 1) - S(i) - rate (t(j) - t(i)) <= above for all i <= j. The largest
    // difference of two such sequences is found in one pass.
    let mut sum = 0_i128;
    let (mut least_before, mut most_before) = (i128::MAX, i128::MIN);
    for (at, cost) in admissions {
        let line = i128::from(rate) * i128::from(*at);
        least_before = least_before.min(sum - line);
        sum += *cost as i128;
        let excess = sum - line - least_before;
        assert!(excess <= above as i128, "{excess} parts beyond the rate, {above} allowed");
        if let Some(below) = below {
            // Between two admissions, both excluded: nothing was admitted in the open interval after the last one.
            let missing = most_before - (sum - *cost as i128 - line);
            assert!(missing <= below as i128, "{missing} parts missing, {below} allowed");
            most_before = most_before.max(sum - line);
        }
    }
}
