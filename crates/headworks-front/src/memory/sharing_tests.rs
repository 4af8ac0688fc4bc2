//! The sharing of the buffer pool in virtual time: shares, waiters and windows together, without sockets and devices.
//!
//! Clients read at different rates: at once, at a link's rate, or never; others send a part of a large write and stop. The model admits
//! requests as a connection does and drops unread data as the reactor's `give_way` does; a device answers in [`DEVICE_NS`]. Checked
//! after every step: the pool is never overdrawn, incomplete payloads hold at most a quarter of it, a client that holds nothing gets a
//! small buffer at once, and a client that takes its replies waits a bounded time for a large one, whatever the others do.

use headworks_core::prng::Prng;
use headworks_core::{DeviceId, ExportId, Instant};

use super::{Held, KeptPayload, Memory, Supply, Wanted};
use crate::outgoing::TAKEN_WITHIN_NS;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const POOL: usize = 128 * MIB;
const STEP_NS: u64 = 1_000_000;
const DEVICE_NS: u64 = 2_000_000;
const STEPS: usize = 600;
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
    longest: u64,
    taken: usize,
    /// Bytes of a large write that it has sent a part of, if it does nothing else.
    half: Option<usize>,
}

impl Client {
    fn held(&self) -> usize {
        let held = self.replies.iter().filter(|reply| !reply.dropped).map(|reply| reply.block);
        held.sum::<usize>() + self.half.unwrap_or(0)
    }

    fn is_old(reply: &Reply, now: Instant) -> bool {
        now.since(reply.since) >= TAKEN_WITHIN_NS
    }

    fn is_stalled(&self, now: Instant) -> bool {
        self.replies.iter().any(|reply| reply.dropped || Self::is_old(reply, now))
    }
}

struct Model {
    memory: Memory,
    clients: Vec<Client>,
    export_of: Vec<u16>,
    now: Instant,
    dropped: usize,
}

impl Model {
    fn new(weights: &[u16], clients: Vec<(u16, Client)>) -> Self {
        let (export_of, clients): (Vec<_>, Vec<_>) = clients.into_iter().unzip();
        let mut memory = Memory::new(POOL, 1024);
        for (export, &weight) in (0..).map(ExportId).zip(weights) {
            memory.set_weight(export, weight);
        }
        let mut model = Self { memory, clients, export_of, now: Instant(0), dropped: 0 };
        for slot in 0..model.clients.len() {
            model.note(slot);
            if model.clients[slot].half.is_some() {
                let export = ExportId(model.export_of[slot]);
                model.memory.note_payload(slot as u32, Some(KeptPayload { export, bytes: 0 }));
            }
        }
        model
    }

    fn taken(&self) -> usize {
        self.clients.iter().map(Client::held).sum()
    }

    fn note(&mut self, slot: usize) {
        let owner = Some((ExportId(self.export_of[slot]), DeviceId(0)));
        let bytes = self.clients[slot].held();
        let held = Held { bytes, ..Held::default() };
        self.memory.note(slot as u32, owner, held, self.clients[slot].is_stalled(self.now));
    }

    fn try_admit(&mut self, slot: usize) -> bool {
        let (taken, now) = (self.taken(), self.now);
        let client = &mut self.clients[slot];
        let (held, block, stalled) = (client.held(), client.block, client.is_stalled(now));
        if !self.memory.share(slot as u32).may_take(held, block, taken, stalled) {
            client.waits_since.get_or_insert(now);
            self.memory.wait(slot as u32, Wanted::Block { bytes: block, reads: true });
            return false;
        }
        let since = now.after(DEVICE_NS);
        client.replies.push(Reply { left: block, block, since, dropped: false });
        let waited = client.waits_since.take().map_or(0, |since| now.since(since));
        client.longest = client.longest.max(waited);
        self.note(slot);
        true
    }

    /// Wakes waiters until none would be given its block, and drops unread data for the first.
    fn serve_waiters(&mut self) {
        let mut woken = Vec::new();
        for _ in 0..100_000 {
            let supply = Supply { taken: self.taken(), room: 1000 };
            if self.memory.wake(supply, |_| true, |slot| woken.push(slot)) {
                for slot in woken.drain(..) {
                    if self.try_admit(slot as usize) {
                        self.memory.leave(slot);
                    }
                }
            } else if !self.make_room() {
                return;
            }
        }
        panic!("waiters are woken without end");
    }

    fn make_room(&mut self) -> bool {
        let Some((first, _)) = self.memory.first() else { return false };
        let now = self.now;
        let old = |reply: &Reply| !reply.dropped && Client::is_old(reply, now);
        let has_old = |&slot: &u32| self.clients[slot as usize].replies.iter().any(old);
        let victims: Vec<u32> = (0..self.clients.len() as u32).filter(has_old).collect();
        let Some(victim) = self.memory.largest_holder(&victims, first) else { return false };
        let replies = &mut self.clients[victim as usize].replies;
        replies.iter_mut().rfind(|reply| old(reply)).unwrap().dropped = true;
        self.dropped += 1;
        self.note(victim as usize);
        true
    }

    /// A payload grows by as much as it has, or is cut to its window.
    fn receive_half(&mut self, slot: usize, held: usize) {
        let window = self.memory.window(ExportId(self.export_of[slot])) as usize;
        let more = held.max(4 * KIB);
        let grows = held + more <= window
            && self.memory.share(slot as u32).may_take(held, more, self.taken(), false);
        self.clients[slot].half = Some(if grows { held + more } else { held.min(window) });
        self.note(slot);
    }

    /// One step: clients take data, ask for more, and wait for buffers.
    fn step(&mut self) {
        self.now = self.now.after(STEP_NS);
        let now = self.now;
        for slot in 0..self.clients.len() {
            if let Some(held) = self.clients[slot].half {
                self.receive_half(slot, held);
                continue;
            }
            let client = &mut self.clients[slot];
            let mut budget = client.rate;
            for reply in client.replies.iter_mut().filter(|reply| reply.since <= now) {
                let count = reply.left.min(budget);
                (reply.left, budget) = (reply.left - count, budget - count);
                client.taken += count;
            }
            client.replies.retain(|reply| reply.left > 0);
            self.note(slot);
            while self.clients[slot].waits_since.is_none()
                && self.clients[slot].replies.len() < self.clients[slot].depth
                && self.try_admit(slot)
            {}
        }
        self.serve_waiters();
        assert!(self.taken() <= POOL, "{} bytes of the pool are taken", self.taken());
        let half: Vec<usize> = self.clients.iter().filter_map(|client| client.half).collect();
        assert!(half.iter().sum::<usize>() <= POOL / 4 + 4 * KIB * half.len(), "{half:?}");
        assert!(self.taken() + 4 * KIB <= POOL, "a small buffer is not free");
    }

    /// The longest wait of a client, one in progress included.
    fn longest(&self, slot: usize) -> u64 {
        let client = &self.clients[slot];
        let waits = client.waits_since.map_or(0, |since| self.now.since(since));
        client.longest.max(waits)
    }
}

fn client(rate: usize, block: usize, depth: usize) -> Client {
    let replies = Vec::new();
    Client { rate, block, depth, replies, waits_since: None, longest: 0, taken: 0, half: None }
}

/// Silent clients, links of 100 KB/s and of 10 MB/s, and clients that have sent a part of a large write.
fn hostile(prng: &mut Prng) -> Client {
    let rate = [0, 100, 10_000][prng.below(3) as usize];
    let block = 4096 << prng.below(12);
    let half = (prng.below(4) == 0).then_some(0);
    Client { half, ..client(rate, block, 1 + prng.below(128) as usize) }
}

/// Clients that take their replies: 4 KiB, 64 KiB and 1 MiB, and large requests in pieces of 1 MiB, four at a time.
fn honest() -> [Client; 4] {
    [(4 * KIB, 1), (64 * KIB, 4), (MIB, 1), (MIB, 4)]
        .map(|(block, depth)| client(usize::MAX, block, depth))
}

#[test]
fn honest_clients_hardly_wait_beside_hostile_exports() {
    let mut prng = Prng::new(12);
    for (exports, others) in [(1, 40), (1, 200), (2, 60), (4, 100)] {
        let mut clients: Vec<(u16, Client)> =
            honest().into_iter().map(|client| (exports, client)).collect();
        clients.extend((0..others).map(|slot| (slot % exports, hostile(&mut prng))));
        let mut model = Model::new(&vec![100; usize::from(exports) + 1], clients);
        (0..STEPS).for_each(|_| model.step());
        let longest: Vec<u64> = (0..4).map(|slot| model.longest(slot) / STEP_NS).collect();
        let bound = if exports == 1 { 0 } else { 25 };
        assert!(
            longest.iter().all(|&longest| longest <= bound),
            "{exports} exports: {longest:?} ms"
        );
        // 4 MiB in two steps.
        let taken = model.clients[3].taken / MIB;
        assert!(taken > STEPS, "{exports} exports: {taken} MiB in {STEPS} steps");
    }
}

#[test]
fn reader_waits_a_bounded_time_beside_any_others_of_its_export() {
    let mut prng = Prng::new(12);
    for others in [40, 100, 200] {
        let mut clients = vec![(0, client(usize::MAX, MIB, 2))];
        clients.extend((0..others).map(|_| (0, hostile(&mut prng))));
        let mut model = Model::new(&[100], clients);
        (0..STEPS).for_each(|_| model.step());
        let before = model.clients[0].taken;
        (0..STEPS).for_each(|_| model.step());
        let longest = model.longest(0);
        // Each of them has one block before the reader has its second, as their unread data become old.
        let bound = TAKEN_WITHIN_NS * (2 + others / 50);
        assert!(longest <= bound, "beside {others}: {} ms", longest / 1_000_000);
        let taken = (model.clients[0].taken - before) / MIB;
        assert!(taken > STEPS / 8, "beside {others}: {taken} MiB in {STEPS} steps");
        assert!(model.dropped > 0, "beside {others}: the pool was never short");
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
    // The last ones begin when unread data of the first are old.
    let steps = 2000 - (WAIT_MAX / STEP_NS) as usize;
    assert!(least >= steps * 100, "{least} bytes of {}", steps * 100);
}
