//! The first half of a turn: each hot connection receives once, and its outcome decides whether it stays hot.
//!
//! Small requests of all come first; bytes of large requests go by shares of the exports (`FairTurn`).

use headworks_core::Instant;

use super::super::ReactorParts;
use super::{Door, SCRATCH};
use crate::clients::client::ShardClient;
use crate::clients::nbd::connection::{ReceiveOutcome, Shares, TurnShare};
use headworks_front::WaitsFor;
use headworks_front::memory::WINDOW_MAX;
use headworks_front::turn::TurnBytes;

/// Receives in one turn of a connection with large payloads; with payloads of 64 KiB, as many bytes as other
/// connections may copy.
const LARGE_RECEIVES: usize = 4;
/// Bytes of large payloads that one connection receives in a turn beside others; with the bound below, a small request of
/// another connection waits for 450 KiB at most, which take about 0.1 ms.
pub(in crate::reactor) const LARGE_SHARE: usize = 256 << 10;
/// Bytes of large payloads after which no other connection receives one in this turn of the shard: the connections that
/// are left are the first of the next turn.
pub(in crate::reactor) const LARGE_PAYLOADS: usize = 128 << 10;
/// The same for each hot connection more. 8 KiB: their copying takes longer than to find that a socket is empty, so many
/// idle connections cost a bulk writer less than half of the time.
pub(in crate::reactor) const LARGE_PAYLOADS_EACH: usize = 8 << 10;
/// Bytes of any kind that are received in one turn of the shard beside others, and one receive more: a millisecond or two.
pub(in crate::reactor) const RECEIVED: usize = 4 << 20;
/// Received bytes that cost as much of a turn as one byte of a large payload: most of them are small requests, which are bounded otherwise.
const SMALL_PART: usize = 4;
/// Bytes of large reads that are admitted in one turn of the shard, and one read more. Their data are copied from the cache
/// in the turn.
const LARGE_READS: usize = 1 << 20;

/// Part of the pool's size beyond which the connections of the shard may not keep received bytes together, with [`STASH_LITTLE`] for each.
const STASH_PART: usize = 16;
/// Bytes that a connection without TLS receives at a time beyond payloads while more is kept.
const STASH_LITTLE: usize = 8 << 10;

/// Which requests are submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Received {
    /// Reads that the cache returned.
    Before,
    /// These, and what is received now.
    Now,
}

/// One receive of a connection, and what it may have of the turn.
struct Receive {
    now: Instant,
    slot: u32,
    what: Received,
    turn: TurnShare,
    /// A step of a TLS handshake was made in this turn: no other one is.
    agreed: bool,
}

/// What all hot connections may have in a turn beside each other.
fn turn_bytes(hot: usize) -> TurnBytes {
    let payloads = LARGE_PAYLOADS + hot * LARGE_PAYLOADS_EACH;
    TurnBytes { received: RECEIVED, payloads, reads: LARGE_READS }
}

/// What a connection may have of a turn of which its export has `left`: as much as it likes if it is the only one that is hot.
fn turn_share(left: Option<TurnBytes>, room: u32) -> TurnShare {
    let (large_reads, large_payloads) = match left {
        None => (LARGE_READS, usize::MAX),
        Some(left) => (left.reads, if left.payloads > 0 { LARGE_SHARE } else { 0 }),
    };
    TurnShare { room, large_reads, large_payloads, received: 0 }
}

/// Receives once, or several times from a connection with large payloads: each takes a receive of its own, and a reply for
/// each would wake the client each time.
fn receive_some(connection: &mut ShardClient, shares: &mut Shares<'_>) -> ReceiveOutcome {
    let mut received = connection.receive(shares);
    for _ in 1..LARGE_RECEIVES {
        let goes_on = connection.brings_large_payloads() && shares.turn.large_payloads > 0;
        if received != ReceiveOutcome::Worked || !goes_on {
            return received;
        }
        match connection.receive(shares) {
            ReceiveOutcome::Idle => return ReceiveOutcome::Worked,
            next => received = next,
        }
    }
    received
}

impl Door {
    /// Receives once from every hot connection.
    pub fn receive(&mut self, parts: &mut ReactorParts, now: Instant) -> bool {
        if self.paused {
            return self.receive_returned(parts, now);
        }
        let mut room = parts.free_slots();
        let (mut index, mut worked, mut agreed) = (0, false, false);
        let (alone, mut deferred) = (self.hot.len() <= 1, None);
        if !alone {
            let budget = turn_bytes(self.hot.len());
            self.turn.begin(budget, self.hot.hot_exports());
        }
        while let Some(slot) = self.hot.get(index) {
            if self.rests(parts, slot) {
                self.hot.cool(index);
                self.watch(parts, slot);
                continue;
            }
            let export = self.hot.state(slot).export.filter(|_| !alone);
            let left = export.map(|export| self.turn.left(export));
            if left.is_some_and(|left| left.received == 0) {
                deferred.get_or_insert(index);
                (index, worked) = (index + 1, true);
                continue;
            }
            let given = turn_share(left, room);
            let mut one = Receive { now, slot, what: Received::Now, turn: given, agreed };
            // A connection that was closed elsewhere may still be in the list.
            let received = self.receive_from(parts, &mut one);
            (room, agreed) = (one.turn.room, one.agreed);
            let had = TurnBytes {
                received: one.turn.received,
                payloads: given.large_payloads - one.turn.large_payloads,
                reads: given.large_reads - one.turn.large_reads,
            };
            self.payloads += had.payloads + (had.received - had.payloads) / SMALL_PART;
            if let Some(export) = export {
                self.turn.spend(export, had);
            }
            worked |= matches!(
                received,
                Some(
                    ReceiveOutcome::Worked
                        | ReceiveOutcome::Waits(WaitsFor::Turn)
                        | ReceiveOutcome::Chosen { .. }
                        | ReceiveOutcome::End(_)
                )
            );
            if received == Some(ReceiveOutcome::Waits(WaitsFor::Turn)) {
                deferred.get_or_insert(index);
            }
            self.note(parts, now, slot);
            if received.is_some_and(|received| self.settle(parts, now, slot, received)) {
                index += 1;
            } else {
                self.hot.cool(index);
            }
        }
        // The first one that was deferred is the first of the next turn.
        if let Some(deferred) = deferred {
            self.hot.rotate(deferred);
        }
        worked
    }

    /// Whether a hot connection waits for its socket, which is full: its client takes replies before it sends more, as a rule.
    fn rests(&self, parts: &mut ReactorParts, slot: u32) -> bool {
        self.hot.state(slot).blocked
            && parts.io.connection(slot).is_some_and(|(connection, _)| connection.rests())
    }

    /// Submits reads again that the cache returned in this turn; returns whether there are any. A connection without a buffer or bio
    /// slot for them waits as it does for those of new requests.
    pub fn resubmit_returned(&mut self, parts: &mut ReactorParts, now: Instant) -> bool {
        if parts.io.returned.is_empty() {
            return false;
        }
        let mut room = parts.free_slots();
        while let Some(slot) = parts.io.returned.pop() {
            // They are not in flight any more.
            self.note(parts, now, slot);
            if matches!(
                self.resubmit_reads_of(parts, now, slot, &mut room),
                Some(ReceiveOutcome::Waits(_))
            ) {
                self.hot.heat(slot);
            }
            self.note(parts, now, slot);
        }
        true
    }

    /// Submits the returned reads of a connection again, as far as there are buffers and bio slots.
    fn resubmit_reads_of(
        &mut self,
        parts: &mut ReactorParts,
        now: Instant,
        slot: u32,
        room: &mut u32,
    ) -> Option<ReceiveOutcome> {
        let (what, turn) = (Received::Before, turn_share(None, *room));
        let mut one = Receive { now, slot, what, turn, agreed: true };
        let received = self.receive_from(parts, &mut one);
        *room = one.turn.room;
        received
    }

    /// Submits returned reads again while nothing is received; returns whether it did.
    fn receive_returned(&mut self, parts: &mut ReactorParts, now: Instant) -> bool {
        let (mut worked, mut room) = (false, parts.free_slots());
        for slot in parts.io.slots() {
            let returned = |parts: &mut ReactorParts| {
                let connection = parts.io.connection(slot);
                connection.is_some_and(|(connection, _)| connection.has_returned())
            };
            if !returned(parts) {
                continue;
            }
            let received = self.resubmit_reads_of(parts, now, slot, &mut room);
            self.note(parts, now, slot);
            if let Some(received) = received {
                self.settle(parts, now, slot, received);
            }
            worked |= !returned(parts);
        }
        worked
    }

    /// Receives once, with the bio slots that the connection's device leaves it.
    fn receive_from(
        &mut self,
        parts: &mut ReactorParts,
        one: &mut Receive,
    ) -> Option<ReceiveOutcome> {
        let (connection, _) = parts.io.connection(one.slot)?;
        let device = connection.binding().map(|binding| binding.device);
        let is_stuck = device.is_some_and(|device| self.stuck >> device.0 & 1 != 0);
        let refuses = connection.set_refuses(is_stuck);
        // What is sent to a device that does not answer fails at once: it holds nothing.
        let device = device.filter(|_| !refuses);
        let (room, allowed) = (one.turn.room, self.memory.slots(device, one.turn.room));
        one.turn.room = allowed;
        let received = self.receive_up_to(parts, one);
        one.turn.room += room - allowed;
        received
    }

    /// Receives requests that take at most a share of the turn, and leaves there what they did not take.
    fn receive_up_to(
        &mut self,
        parts: &mut ReactorParts,
        one: &mut Receive,
    ) -> Option<ReceiveOutcome> {
        let slot = one.slot;
        let may_lend = parts.io.may_lend(slot);
        let (connection, pool) = parts.io.connection(slot)?;
        let binding = connection.binding();
        let shard = parts.driver.shard();
        let is_cached = || binding.is_some_and(|binding| shard.is_cached(binding.volume));
        let from_cache = may_lend && is_cached();
        let agrees = connection.agrees_on_keys();
        if agrees && one.agreed {
            return Some(ReceiveOutcome::Waits(WaitsFor::Turn));
        }
        let is_full = self.hot.stashed() > pool.size() / STASH_PART;
        // Whole records of TLS, and whole requests of FUSE, have to fit.
        let most = if is_full && !connection.receives_whole() { STASH_LITTLE } else { SCRATCH };
        let export = connection.binding().map(|binding| binding.export);
        let mut shares = Shares {
            now: one.now,
            scratch: &mut self.scratch[..most],
            pool,
            memory: self.memory.share(slot),
            from_cache,
            frozen: binding.is_some_and(|binding| self.freezes.holds(binding.volume)),
            limits: export.and_then(|export| self.limits.gate(slot, export)),
            window: export.map_or(WINDOW_MAX, |export| self.memory.window(export)),
            exports: &self.exports,
            turn: one.turn,
            inputs: parts.driver.inputs(),
        };
        if one.what == Received::Before {
            let submitted = connection.resubmit(&mut shares);
            one.turn = shares.turn;
            let waits = ReceiveOutcome::Waits(WaitsFor::Buffer);
            return Some(if submitted { ReceiveOutcome::Idle } else { waits });
        }
        let received = receive_some(connection, &mut shares);
        one.turn = shares.turn;
        // One step a turn: a signature of ours and the check of a client's certificate cost as much as a thousand requests. The next
        // connection that has to wait is the first of the next turn, so each one of a burst gets its turn.
        one.agreed |= agrees && received != ReceiveOutcome::Idle;
        Some(received)
    }

    /// Acts on the outcome of a receive; returns whether the connection stays hot.
    fn settle(
        &mut self,
        parts: &mut ReactorParts,
        now: Instant,
        slot: u32,
        received: ReceiveOutcome,
    ) -> bool {
        // A waiter that was woken and has its turn later keeps its place.
        let keeps = matches!(
            received,
            ReceiveOutcome::Waits(WaitsFor::Buffer | WaitsFor::Room | WaitsFor::Turn)
        );
        if !keeps {
            self.memory.leave(slot);
        }
        if received == ReceiveOutcome::Idle {
            return true;
        }
        parts.io.list(slot);
        match received {
            ReceiveOutcome::Idle
            | ReceiveOutcome::Worked
            | ReceiveOutcome::Waits(WaitsFor::Turn) => return true,
            ReceiveOutcome::Waits(WaitsFor::Buffer | WaitsFor::Room) => {
                if let Some((connection, _)) = parts.io.connection(slot) {
                    let wants = connection.wants(&self.memory.limits());
                    self.stats.waits += u64::from(self.memory.wait(slot, wants));
                }
            }
            ReceiveOutcome::Waits(_) => {}
            ReceiveOutcome::Chosen { export, terms } => {
                return self.place(parts, now, slot, export, terms);
            }
            ReceiveOutcome::End(end) => self.end(parts, slot, &end),
        }
        false
    }
}
