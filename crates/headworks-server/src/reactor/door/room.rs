//! Room for those that wait for buffers: they are woken as blocks come back, payloads that keep more than their window are written as far as
//! they have come, and replies that clients leave unread give their buffers to the first waiter.
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

use std::collections::BTreeMap;

use headworks_core::{ExportId, Instant};

use super::super::ReactorParts;
use super::Door;
use crate::reactor::messages::query::{BufferStats, BufferUser};
use headworks_front::WaitsFor;
use headworks_front::memory::{Supply, Wanted};
use headworks_front::outgoing::TAKEN_WITHIN_NS;

/// Shortest time between two looks that find too little.
const LOOK_NS: u64 = 1_000_000;
/// Time between two looks for payloads that keep more than their window.
const SHORTEN_NS: u64 = 1_000_000;

/// When waiters are looked after next, and at whose expense.
#[derive(Debug)]
pub(super) struct GiveWay {
    /// Connections with old unsent data, as of the last look.
    victims: Vec<u32>,
    /// Time of the next look for buffers that unread replies hold; none if the next waiter is met at once.
    next_look: Option<Instant>,
    /// Time of the next look for payloads that keep more than their window.
    next_shortening: Instant,
}

impl GiveWay {
    /// Room for `places` connections.
    pub fn new(places: usize) -> Self {
        let victims = Vec::with_capacity(places);
        Self { victims, next_look: None, next_shortening: Instant(0) }
    }
}

impl Door {
    /// Time of the next look for buffers that unread replies hold, if a connection waits for one.
    pub fn next_look(&self) -> Option<Instant> {
        self.give_way.next_look.filter(|_| self.memory.first().is_some())
    }

    /// While others wait for buffers: lets payloads that keep more than their window be written as far as they have come. Returns whether
    /// there is one.
    pub fn shorten_payloads(&mut self, parts: &mut ReactorParts, now: Instant) -> bool {
        if !self.memory.needs_payloads() || self.give_way.next_shortening > now {
            return false;
        }
        self.give_way.next_shortening = now.after(SHORTEN_NS);
        let mut any = false;
        let incomplete: Vec<_> = self.memory.incomplete().collect();
        for slot in incomplete {
            let Some((connection, pool)) = parts.io.connection(slot) else { continue };
            let window = self.memory.window(connection.export_of_requests());
            connection.cut_payload(pool);
            if connection.is_beyond(window) && connection.stopped_by() == WaitsFor::Nothing {
                self.hot.heat(slot);
                any = true;
            }
            self.note(parts, now, slot);
        }
        any
    }

    /// Lets the waiters continue that would be given what they wait for; returns whether there are any.
    pub fn wake_waiters(&mut self, parts: &mut ReactorParts) -> bool {
        let supply = Supply { taken: parts.io.pool.taken(), room: parts.free_slots() };
        let Self { memory, hot, .. } = self;
        let pool = &mut parts.io.pool;
        let has_block = |len| pool.try_take(len).map(|buffer| pool.put(buffer)).is_some();
        memory.wake(supply, has_block, |slot| hot.heat(slot))
    }

    /// Drops unread replies until the first waiter's block would be given; returns whether a waiter goes on.
    pub fn make_room(&mut self, parts: &mut ReactorParts, now: Instant) -> bool {
        let Some((first, wanted)) = self.memory.first() else { return false };
        if self.give_way.next_look.is_some_and(|at| now < at) {
            return false;
        }
        let Some((connection, _)) = parts.io.connection(first) else { return false };
        if connection.is_stalled(now) && matches!(wanted, Wanted::Block { reads: true, .. }) {
            // Data of a client that does not take its replies would only wait in another place. Another waiter becomes the
            // first, and gets a look in the next turn.
            self.memory.set_stalled(first, true);
            return self.wake_waiters(parts) || self.memory.first().is_some();
        }
        let next_old = self.look_for_victims(parts, now, first);
        if self.drop_until_woken(parts, now, first) {
            self.give_way.next_look = None;
            return true;
        }
        let again = match next_old {
            _ if !self.give_way.victims.is_empty() => now,
            Some(old_at) => old_at,
            None => now.after(TAKEN_WITHIN_NS),
        };
        self.give_way.next_look = Some(again.max(now.after(LOOK_NS)));
        false
    }

    /// Counters for statistics and metrics.
    pub fn buffer_stats(&self, parts: &ReactorParts) -> BufferStats {
        BufferStats {
            size: parts.io.pool.size(),
            taken: parts.io.pool.taken(),
            waiting: self.memory.waiting(),
            ..self.stats
        }
    }

    /// What each export has of the pool, and how many of its requests wait for some.
    pub fn buffer_users(&self, parts: &mut ReactorParts) -> Vec<BufferUser> {
        let mut users: BTreeMap<ExportId, BufferUser> = BTreeMap::new();
        for slot in parts.io.slots() {
            let Some(export) = self.export_of(slot) else { continue };
            let Some((connection, _)) = parts.io.connection(slot) else { continue };
            let user = users.entry(export).or_insert(BufferUser { export, ..Default::default() });
            let payload = connection.kept_payload().filter(|_| connection.has_incomplete_payload());
            user.waiting += connection.buffer_waits();
            user.bytes += connection.held();
            user.payload_bytes += payload.map_or(0, |payload| payload.bytes);
        }
        users.into_values().filter(|user| user.waiting + user.bytes > 0).collect()
    }

    /// Lists connections with old unsent data, and notes which ones are stalled. Returns the time at which more data
    /// will be old.
    fn look_for_victims(
        &mut self,
        parts: &mut ReactorParts,
        now: Instant,
        first: u32,
    ) -> Option<Instant> {
        self.give_way.victims.clear();
        let mut next_old: Option<Instant> = None;
        for slot in parts.io.slots() {
            let Some((connection, _)) = parts.io.connection(slot) else { continue };
            let since = connection.oldest_data();
            let has_old = slot != first && connection.droppable(now) > 0;
            self.memory.set_stalled(slot, connection.is_stalled(now));
            if has_old {
                self.give_way.victims.push(slot);
            } else if let Some(old_at) = since.map(|since| since.after(TAKEN_WITHIN_NS)) {
                next_old = Some(next_old.map_or(old_at, |next| next.min(old_at)));
            }
        }
        next_old
    }

    /// Drops old unsent data, one buffer at a time, until the first waiter is another one; returns whether a waiter was woken.
    fn drop_until_woken(&mut self, parts: &mut ReactorParts, now: Instant, first: u32) -> bool {
        let mut woken = false;
        while self.memory.first().is_some_and(|(slot, _)| slot == first) {
            let Some(victim) = self.memory.largest_holder(&self.give_way.victims, first) else {
                break;
            };
            let Some((connection, pool)) = parts.io.connection(victim) else { break };
            // The next one may be another connection's.
            let (freed, replies) = connection.drop_data(now, 1, pool);
            if freed == 0 {
                self.give_way.victims.retain(|&slot| slot != victim);
                continue;
            }
            self.stats.dropped_bytes += freed as u64;
            self.stats.dropped_replies += replies as u64;
            self.note(parts, now, victim);
            woken |= self.wake_waiters(parts);
        }
        woken
    }
}
