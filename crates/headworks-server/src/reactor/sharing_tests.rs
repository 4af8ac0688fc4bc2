//! The sharing of the buffer pool in virtual time: watermarks and queue together, without sockets and devices.
//!
//! Clients read at different rates: at once, at a link's rate, or never. The model admits requests as `Connection::admit`
//! does and drops unread data as `give_way` does; a device answers in [`DEVICE_NS`]. Checked after every step: the pool is
//! never overdrawn, a client that holds nothing gets a small buffer at once, and a client that takes its replies waits
//! at most [`WAIT_MAX`] for a large one, whatever the others do.

use headworks_core::prng::Prng;
use headworks_core::{ExportId, Instant};

use super::buffer_queue::BufferQueue;
use crate::nbd::buffer_limits::{BufferDemand, BufferLimits};
use headworks_front::outgoing::TAKEN_WITHIN_NS;

const MIB: usize = 1 << 20;
const POOL: usize = 128 * MIB;
const STEP_NS: u64 = 1_000_000;
const DEVICE_NS: u64 = 2_000_000;
const STEPS: usize = 1500;
/// Unread data must become old, and turns pass; one more period for data that were restored meanwhile.
const WAIT_MAX: u64 = 2 * TAKEN_WITHIN_NS + 10 * STEP_NS;

/// A reply: bytes that are not taken yet, of a buffer that is held until all are.
struct Reply {
    left: usize,
    block: usize,
    since: Instant,
    dropped: bool,
}

struct Client {
    /// Bytes that it takes in a step.
    rate: usize,
    block: usize,
    depth: usize,
    replies: Vec<Reply>,
    waits_since: Option<Instant>,
    taken: usize,
}

impl Client {
    fn held(&self) -> usize {
        self.replies.iter().filter(|reply| !reply.dropped).map(|reply| reply.block).sum()
    }

    fn is_old(reply: &Reply, now: Instant) -> bool {
        now.since(reply.since) >= TAKEN_WITHIN_NS
    }

    fn is_stalled(&self, now: Instant) -> bool {
        self.replies.iter().any(|reply| reply.dropped || Self::is_old(reply, now))
    }
}

struct Model {
    limits: BufferLimits,
    queue: BufferQueue,
    clients: Vec<Client>,
    export_of: Vec<u16>,
    now: Instant,
    dropped: usize,
}

impl Model {
    fn new(weights: &[u16], clients: Vec<(u16, Client)>) -> Self {
        let (export_of, clients): (Vec<_>, Vec<_>) = clients.into_iter().unzip();
        let places = clients.len();
        Self {
            limits: BufferLimits::new(POOL, 1024),
            queue: BufferQueue::new(places, weights.iter().copied()),
            clients,
            export_of,
            now: Instant(0),
            dropped: 0,
        }
    }

    fn taken(&self) -> usize {
        self.clients.iter().map(Client::held).sum()
    }

    fn note(&mut self, slot: usize) {
        let export = Some(ExportId(self.export_of[slot]));
        self.queue.note(slot as u32, export, self.clients[slot].held());
        self.queue.set_stalled(slot as u32, self.clients[slot].is_stalled(self.now));
    }

    fn demand(&self, slot: usize, has_turn: bool) -> BufferDemand {
        let client = &self.clients[slot];
        let stalled = client.is_stalled(self.now);
        BufferDemand { held: client.held(), block: client.block, has_turn, stalled, device: None }
    }

    fn try_admit(&mut self, slot: usize, has_turn: bool) -> bool {
        if !self.limits.admits(self.taken(), self.demand(slot, has_turn)) {
            return false;
        }
        let (block, now) = (self.clients[slot].block, self.now);
        let since = now.after(DEVICE_NS);
        self.clients[slot].replies.push(Reply { left: block, block, since, dropped: false });
        self.clients[slot].waits_since = None;
        self.note(slot);
        true
    }

    fn make_room(&mut self, slot: usize) {
        let demand = self.demand(slot, true);
        while !demand.stalled && !self.limits.admits(self.taken(), demand) {
            let now = self.now;
            let old = |reply: &Reply| !reply.dropped && Client::is_old(reply, now);
            let victims: Vec<u32> = (0..self.clients.len() as u32)
                .filter(|&victim| self.clients[victim as usize].replies.iter().any(old))
                .collect();
            let Some(victim) = self.queue.largest_holder(&victims) else { return };
            let replies = &mut self.clients[victim as usize].replies;
            replies.iter_mut().rfind(|reply| old(reply)).unwrap().dropped = true;
            self.dropped += 1;
            self.note(victim as usize);
        }
    }

    /// One step: clients take data, ask for more, and wait for buffers.
    fn step(&mut self) {
        self.now = self.now.after(STEP_NS);
        let now = self.now;
        for slot in 0..self.clients.len() {
            let client = &mut self.clients[slot];
            let mut budget = client.rate;
            for reply in client.replies.iter_mut().filter(|reply| reply.since <= now) {
                let count = reply.left.min(budget);
                (reply.left, budget) = (reply.left - count, budget - count);
                client.taken += count;
            }
            client.replies.retain(|reply| reply.left > 0);
            self.note(slot);
            let waits = self.clients[slot].waits_since.is_some();
            let full = self.clients[slot].replies.len() >= self.clients[slot].depth;
            if !waits && !full && !self.try_admit(slot, self.queue.len() == 0) {
                self.clients[slot].waits_since = Some(now);
                self.queue.join(slot as u32);
            }
        }
        self.queue.call(|_| false);
        while let Some(first) = self.queue.first() {
            self.make_room(first as usize);
            if !self.try_admit(first as usize, true) {
                break;
            }
            self.queue.leave(first);
            self.queue.call(|_| false);
        }
        assert!(self.taken() <= POOL, "{} bytes of the pool are taken", self.taken());
        let small =
            BufferDemand { held: 0, block: 4096, has_turn: false, stalled: true, device: None };
        assert!(self.limits.admits(self.taken(), small), "a small buffer is not free");
    }
}

fn client(rate: usize, block: usize, depth: usize) -> Client {
    Client { rate, block, depth, replies: Vec::new(), waits_since: None, taken: 0 }
}

#[test]
fn reader_waits_a_bounded_time_beside_any_others() {
    let mut prng = Prng::new(12);
    for round in 0..4 {
        let others = [40, 60, 100, 300][round];
        let mut clients = vec![(1, client(usize::MAX, 4 * MIB, 2))];
        for _ in 0..others {
            // Silent ones, links of 100 KB/s, and of 10 MB/s.
            let rate = [0, 100, 10_000][prng.below(3) as usize];
            let block = 4096 << prng.below(12);
            clients.push((0, client(rate, block, 1 + prng.below(128) as usize)));
        }
        let mut model = Model::new(&[1, 1000], clients);
        let (mut longest, mut before) = (0, 0);
        for step in 0..STEPS {
            model.step();
            let waited = model.clients[0].waits_since.map_or(0, |since| model.now.since(since));
            longest = longest.max(waited);
            if step == STEPS / 3 {
                before = model.clients[0].taken;
            }
        }
        assert!(longest <= WAIT_MAX, "round {round}: {} ms", longest / 1_000_000);
        // Alone it takes 2 MiB a step; up to a hundred links of 10 MB/s take the rest.
        let (taken, steps) = ((model.clients[0].taken - before) / MIB, STEPS * 2 / 3);
        assert!(taken > steps / 2, "round {round}: {taken} MiB in {steps} steps");
        assert!(model.dropped > 0, "round {round}: the pool was never short");
    }
}

#[test]
fn links_at_full_use_are_served_at_their_rate() {
    // A hundred links of 100 KB/s, each with more asked for than the pool has for it.
    let clients = (0..100).map(|_| (0, client(100, MIB, 16))).collect();
    let mut model = Model::new(&[100], clients);
    for _ in 0..2000 {
        model.step();
    }
    let least = model.clients.iter().map(|client| client.taken).min().unwrap();
    assert!(least >= 1_900 * 100, "{least} bytes of {}", 2_000 * 100);
}
