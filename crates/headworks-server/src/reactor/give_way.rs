//! Room for the first waiter of the buffer queue: replies that clients leave unread give their buffers to it.
//!
//! ```text
//!   first waiter, demand not met --look--> victims with old unsent data? --yes--> drop the largest holder's, until met
//!        ^                                      | no
//!        `------- at the next look: when the oldest data will be old -------'
//! ```
//!
//! A look visits every connection. After one that found too little, the next is not before data can have become old;
//! without waiters there is none. Victims are ranked by `buffer_queue`: the export that holds most for its weight, in
//! it the connection that holds most.
//!
//! Invariants: nothing is dropped unless a connection waits whose own client takes its replies; never more buffers
//! are dropped than the demand needs, beyond the last one.

use headworks_core::Instant;

use super::Reactor;
use crate::messages::query::BufferStats;
use crate::nbd::buffer_limits::BufferDemand;
use headworks::driver::Pool;
use headworks_front::outgoing::TAKEN_WITHIN_NS;

/// Shortest time between two looks that find too little.
const LOOK_NS: u64 = 1_000_000;

impl Reactor {
    /// Drops unread replies until the first waiter's demand can be met. Returns whether it can.
    pub(super) fn make_room(&mut self, now: Instant) -> bool {
        let Some(first) = self.buffer_queue.first() else {
            self.next_look = None;
            return false;
        };
        if self.next_look.is_some_and(|at| now < at) {
            return false;
        }
        self.next_look = Some(now.after(TAKEN_WITHIN_NS));
        let Some(demand) = self.demand_of(first, now) else { return false };
        if self.is_met(demand) {
            self.next_look = None;
            return true;
        }
        if demand.stalled {
            // Data of a client that does not take its replies would only wait in another place. Another waiter may be
            // called, and gets a look at once.
            self.buffer_queue.set_stalled(first, true);
            self.next_look = None;
            return false;
        }
        if !self.buffer_limits.leaves_enough(demand) {
            // No reply that gives way would help: its device has as much as it may.
            return false;
        }
        let next_old = self.look_for_victims(now, first);
        self.drop_until_met(now, demand);
        if self.is_met(demand) {
            self.next_look = None;
            return true;
        }
        self.next_look = next_old.map(|at| at.max(now.after(LOOK_NS))).or(self.next_look);
        false
    }

    /// Counters for statistics and metrics.
    pub(super) fn buffer_stats(&self) -> BufferStats {
        BufferStats {
            size: self.parts.io.pool.size(),
            taken: self.parts.io.pool.taken(),
            waiting: self.buffer_queue.len(),
            ..self.buffer_stats
        }
    }

    fn demand_of(&mut self, slot: u32, now: Instant) -> Option<BufferDemand> {
        let limits = self.buffer_limits;
        let connection = self.parts.io.connection(slot)?.0;
        let device = self.device_use.bytes(connection.binding().map(|binding| binding.device));
        Some(BufferDemand { device, ..connection.demand(now, &limits)? })
    }

    /// Whether a demand is within the watermarks and the pool has a block for it.
    fn is_met(&mut self, demand: BufferDemand) -> bool {
        let pool: &mut Pool = &mut self.parts.io.pool;
        self.buffer_limits.admits(pool.taken(), demand)
            && pool.try_take(demand.block).map(|buffer| pool.put(buffer)).is_some()
    }

    /// Lists connections with old unsent data, and notes which ones are stalled. Returns the time at which more data
    /// will be old.
    fn look_for_victims(&mut self, now: Instant, first: u32) -> Option<Instant> {
        self.victims.clear();
        let mut next_old: Option<Instant> = None;
        for slot in self.parts.io.slots() {
            let Some((connection, _)) = self.parts.io.connection(slot) else { continue };
            let since = connection.oldest_data();
            let has_old = slot != first && connection.droppable(now) > 0;
            self.buffer_queue.set_stalled(slot, connection.is_stalled(now));
            if has_old {
                self.victims.push(slot);
            } else if let Some(old_at) = since.map(|since| since.after(TAKEN_WITHIN_NS)) {
                next_old = Some(next_old.map_or(old_at, |next| next.min(old_at)));
            }
        }
        next_old
    }

    fn drop_until_met(&mut self, now: Instant, demand: BufferDemand) {
        while !self.is_met(demand) {
            let Some(victim) = self.buffer_queue.largest_holder(&self.victims) else { return };
            let Some((connection, pool)) = self.parts.io.connection(victim) else { return };
            // One buffer at a time: the next one may be another connection's.
            let (freed, replies) = connection.drop_data(now, 1, pool);
            if freed == 0 {
                self.victims.retain(|&slot| slot != victim);
                continue;
            }
            self.buffer_stats.dropped_bytes += freed as u64;
            self.buffer_stats.dropped_replies += replies as u64;
            self.note(now, victim);
        }
    }
}
