//! Room for the first waiter: replies that clients leave unread give their buffers to it.
//!
//! ```text
//!   first waiter, its block would not be given --look--> victims with old unsent data? --yes--> drop the largest holder's, until it is
//!        ^                                                  | no
//!        `-------- at the next look: when the oldest data will be old --------'
//! ```
//!
//! A look visits every connection. After one that found too little, the next is not before data can have become old;
//! without waiters there is none. Victims are ranked by `memory`: the export that holds most for its weight, in
//! it the connection that holds most.
//!
//! Invariants: nothing is dropped unless a connection waits whose own client takes its replies, nor data of an export that holds less
//! for its weight than the waiter's; never more buffers
//! are dropped than its block needs, beyond the last one.

use headworks_core::Instant;

use super::Reactor;
use crate::messages::query::BufferStats;
use headworks_front::memory::Wanted;
use headworks_front::outgoing::TAKEN_WITHIN_NS;

/// Shortest time between two looks that find too little.
const LOOK_NS: u64 = 1_000_000;

impl Reactor {
    /// Drops unread replies until the first waiter's block would be given; returns whether a waiter goes on.
    pub(super) fn make_room(&mut self, now: Instant) -> bool {
        let Some((first, wanted)) = self.memory.first() else { return false };
        if self.next_look.is_some_and(|at| now < at) {
            return false;
        }
        let Some((connection, _)) = self.parts.io.connection(first) else { return false };
        if connection.is_stalled(now) && matches!(wanted, Wanted::Block { reads: true, .. }) {
            // Data of a client that does not take its replies would only wait in another place. Another waiter becomes the
            // first, and gets a look in the next turn.
            self.memory.set_stalled(first, true);
            return self.wake_waiters() || self.memory.first().is_some();
        }
        let next_old = self.look_for_victims(now, first);
        if self.drop_until_woken(now, first) {
            self.next_look = None;
            return true;
        }
        let again = match next_old {
            _ if !self.victims.is_empty() => now,
            Some(old_at) => old_at,
            None => now.after(TAKEN_WITHIN_NS),
        };
        self.next_look = Some(again.max(now.after(LOOK_NS)));
        false
    }

    /// Counters for statistics and metrics.
    pub(super) fn buffer_stats(&self) -> BufferStats {
        BufferStats {
            size: self.parts.io.pool.size(),
            taken: self.parts.io.pool.taken(),
            waiting: self.memory.waiting(),
            ..self.buffer_stats
        }
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
            self.memory.set_stalled(slot, connection.is_stalled(now));
            if has_old {
                self.victims.push(slot);
            } else if let Some(old_at) = since.map(|since| since.after(TAKEN_WITHIN_NS)) {
                next_old = Some(next_old.map_or(old_at, |next| next.min(old_at)));
            }
        }
        next_old
    }

    /// Drops old unsent data, one buffer at a time, until the first waiter is another one; returns whether a waiter was woken.
    fn drop_until_woken(&mut self, now: Instant, first: u32) -> bool {
        let mut woken = false;
        while self.memory.first().is_some_and(|(slot, _)| slot == first) {
            let Some(victim) = self.memory.largest_holder(&self.victims, first) else { break };
            let Some((connection, pool)) = self.parts.io.connection(victim) else { break };
            // The next one may be another connection's.
            let (freed, replies) = connection.drop_data(now, 1, pool);
            if freed == 0 {
                self.victims.retain(|&slot| slot != victim);
                continue;
            }
            self.buffer_stats.dropped_bytes += freed as u64;
            self.buffer_stats.dropped_replies += replies as u64;
            self.note(now, victim);
            woken |= self.wake_waiters();
        }
        woken
    }
}
