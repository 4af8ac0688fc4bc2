//! The second half of a turn: each connection with output sends once, and what that frees lets others continue.

use headworks_core::Instant;
use tracing::{debug, warn};

use super::super::ReactorParts;
use super::super::shard_io::SMALL_REPLIES;
use super::Door;
use crate::clients::nbd::connection::ConnectionEnd;
use headworks_front::WaitsFor;
use headworks_front::outgoing::SendOutcome;

/// Bytes of large replies that are sent in one turn of the shard, and one send more.
const LARGE_SENDS: usize = 512 << 10;

impl Door {
    /// Sends once on every connection with output. Returns whether a paused connection can continue: then a turn must
    /// follow before any sleep, since paused connections are not watched.
    pub fn send(&mut self, parts: &mut ReactorParts, now: Instant) -> bool {
        let (mut goes_on, mut again, mut left) = (false, Vec::new(), LARGE_SENDS);
        while let Some(slot) = parts.io.next_listed(left > 0) {
            let Some((connection, pool)) = parts.io.connection(slot) else {
                continue;
            };
            if let Some(fault) = connection.take_fault() {
                self.stats.closed += 1;
                self.end(parts, slot, &ConnectionEnd::Fault(fault));
                self.note(parts, now, slot);
                continue;
            }
            if let Some(complaint) = connection.take_complaint()
                && self.log.admits()
            {
                warn!(peer = connection.peer(), "{complaint}");
            }
            let (is_large, before) = (connection.unsent() > SMALL_REPLIES, connection.sent_bytes());
            let sent = connection.send(now, pool, &mut self.spans);
            if is_large {
                let count = connection.sent_bytes() - before;
                left = left.saturating_sub(usize::try_from(count).unwrap_or(usize::MAX));
            }
            let (goes_on_now, stopped) = (connection.goes_on(), connection.stopped_by());
            if connection.has_more_after_answers() && stopped == WaitsFor::Nothing {
                self.hot.heat(slot);
            }
            let state = self.hot.state_mut(slot);
            match sent {
                // A socket that was full and is not writable yet: no data are read for it.
                Ok(SendOutcome::Dropped) if state.blocked => {}
                Ok(SendOutcome::Dropped) => {
                    if connection.note_dropped_next() {
                        self.hot.heat(slot);
                        goes_on = true;
                    }
                }
                Ok(SendOutcome::All) => state.blocked = false,
                Ok(SendOutcome::Budget) => {
                    state.blocked = false;
                    again.push(slot);
                }
                Ok(SendOutcome::Full) => {
                    state.blocked = true;
                    // Even a hot connection: while another client keeps the shard busy the engine is seldom entered,
                    // and a client that waits for the rest of a reply sends nothing.
                    self.watch(parts, slot);
                }
                Err(error) => {
                    debug!(%error, "sending failed");
                    self.close(parts, slot);
                    self.note(parts, now, slot);
                    continue;
                }
            }
            self.note(parts, now, slot);
            self.free_if_finished(parts, slot);
            goes_on |= goes_on_now && self.wake(parts, slot, stopped);
        }
        goes_on |= !again.is_empty() || parts.io.has_large_to_send();
        again.into_iter().for_each(|slot| parts.io.list(slot));
        goes_on |= self.wake_waiters(parts);
        goes_on |= self.make_room(parts, now);
        goes_on |= self.shorten_payloads(parts, now);
        // Payloads were cut.
        goes_on | self.wake_waiters(parts)
    }
}
