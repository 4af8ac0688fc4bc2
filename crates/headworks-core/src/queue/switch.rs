//! Changing a queue's options while it works: the queue drains, its parts are replaced, and held bios enter.
//!
//! ```text
//!         Set              all that was in the queue has ended          options, tags, elevator replaced
//!  Open ---------> Draining ---------------------------------> switch ----------------------------------> Open
//!                     |  bios are held, in order                             held bios enter, in order
//!                     |-- only timed-out commands hold tags, and the tags must be replaced: Busy --> Open
//!                     `-- the rest waits for tags or device room that only those hold:      Busy --> Open
//! ```
//!
//! The queue is empty when it changes, so no request ever meets two sets of limits, two elevators or two tag policies. A drain
//! ends: every command is answered or times out within `io_timeout`, leases are revoked at once, and new bios, new flushes and
//! new lease requests wait here. Bios that spend a lease already are let in: the drain waits for them, but not for the tags of
//! timed-out bios, which come back when the device answers.
//!
//! Invariants: one change at a time; an invalid value changes nothing; held bios enter in the order in which they came, before
//! any later one.

use super::{Queue, TimerKind, clear_timers, timer_of};
use crate::action::{Action, Notice};
use crate::error::{IoError, Status};
use crate::input::Message;
use crate::options::{QueueOptions, Tunable};
use crate::pools::Pools;
use crate::tags;
use crate::time::Instant;

impl Queue {
    /// Sets an option that only the cache uses; nothing is drained.
    pub fn set_caching(&mut self, tunable: Tunable, value: u64) -> Status {
        assert!(tunable.is_caching(), "options of the queue are set by draining");
        // A change in progress was made from the options as they were before.
        let mut all = self.switch.next_mut().into_iter().chain([&mut self.options]);
        all.try_for_each(|options| tunable.set(options, value)).map_err(|_| IoError::Invalid)
    }

    /// Begins a change of an option; the answer comes when the queue has drained.
    pub fn set(&mut self, pools: &mut Pools, tunable: Tunable, value: u64, token: u32) {
        let mut next = self.options;
        let refused = match tunable.set(&mut next, value) {
            _ if self.is_draining() => Some(IoError::Busy),
            Err(_) => Some(IoError::Invalid),
            Ok(()) if !tunable.is_live() => Some(IoError::Unsupported),
            Ok(()) if !self.blocks_fit(&next) => Some(IoError::Invalid),
            Ok(()) => None,
        };
        match refused {
            Some(error) => notify(pools, token, Err(error)),
            None if next == self.options => notify(pools, token, Ok(())),
            None => self.switch.begin(next, token),
        }
    }

    /// Returns true when a block of each of the device's volumes fits into a command.
    fn blocks_fit(&self, next: &QueueOptions) -> bool {
        self.volumes.largest_block().is_none_or(|block| block <= next.max_bytes())
    }

    /// Returns true while bios are to be held.
    #[inline]
    pub fn is_draining(&self) -> bool {
        self.switch.is_draining()
    }

    /// Holds a bio until the change is over.
    pub fn hold(&mut self, now: Instant, pools: &mut Pools, slot: u32) {
        pools.begin_wait(now, slot);
        self.switch.hold(&mut pools.bios, slot);
    }

    /// Returns the bio that has been held longest.
    pub(super) fn first_held(&self) -> Option<u32> {
        self.switch.first_held()
    }

    /// Drops the bio that has been held longest; the caller answers it.
    pub(super) fn drop_first_held(&mut self, pools: &mut Pools) {
        let dropped = self.switch.pop_held(&mut pools.bios);
        assert!(dropped.is_some(), "a held bio is dropped");
    }

    /// Returns the next held bio.
    pub fn next_held(&mut self, pools: &mut Pools) -> Option<u32> {
        assert!(!self.is_draining(), "held bios enter when the change is over");
        self.switch.pop_held(&mut pools.bios)
    }

    /// Ends a change if the queue has drained; returns true when it is open again and held bios may enter.
    pub(super) fn try_switch(&mut self, now: Instant, pools: &mut Pools) -> bool {
        let Some(&(next, token)) = self.switch.next() else {
            return false;
        };
        if !self.in_flight.only_timed_out(&pools.slots) || !self.gate.leases_are_home() {
            return false;
        }
        let waits = !self.waiting.is_empty() || self.gate.waiters() > 0;
        if waits && self.goes_on_by_itself() {
            return false;
        }
        self.switch.end();
        let status = if waits { Err(IoError::Busy) } else { self.apply(now, pools, next) };
        notify(pools, token, status);
        for shard in self.switch.shards() {
            if let Some(request) = self.switch.take_lease_request(shard) {
                self.on_lease_request(now, pools, shard, request);
            }
        }
        true
    }

    /// Returns true when a timer will move the waiting requests, although the device is silent.
    fn goes_on_by_itself(&self) -> bool {
        let open = self.in_flight.commands() < self.options.queue_depth;
        self.waiting.is_busy()
            || open && self.waiting.next_timeout().is_some()
            || self.gate.next_timeout().is_some()
    }

    /// Replaces the options of a drained queue, and the parts that depend on them.
    fn apply(&mut self, now: Instant, pools: &mut Pools, next: QueueOptions) -> Status {
        assert!(self.waiting.is_empty() && self.gate.waiters() == 0, "the queue has drained");
        let old = std::mem::replace(&mut self.options, next);
        let lessees_see = |options: &QueueOptions| {
            let QueueOptions { max_sectors_kb, share, io_timeout_ns, .. } = *options;
            (options.lessee_requests(), max_sectors_kb, share, io_timeout_ns)
        };
        let tags = self.gate.tag_options(&next, self.cached);
        if tags != self.gate.tag_options(&old, self.cached) {
            if !self.gate.all_free() {
                self.options = old;
                return Err(IoError::Busy);
            }
            self.make_room(pools);
            self.gate.replace_policy(tags::make(tags));
        }
        // The new elevator is told nothing of timed-out requests that are still in the device: the old one knew of them.
        let replaced = self.waiting.set_options(now, &old, &next, self.gate.bios());
        // It is set for a command that was sent under the old time-out, and every command in flight has timed out.
        pools.timers.clear(timer_of(self.device, TimerKind::Timeout));
        // No request waits that it was set for.
        pools.timers.clear(timer_of(self.device, TimerKind::Expiry));
        self.reset_limits();
        if replaced {
            self.set_shares();
        }
        if lessees_see(&old) != lessees_see(&next) {
            self.announce_limits(pools);
        }
        Ok(())
    }

    /// Tells other shards the limits by which they cut and count. Messages between two shards keep their order, so no tag overtakes
    /// this.
    pub(super) fn announce_limits(&self, pools: &mut Pools) {
        let QueueOptions { max_sectors_kb, share, io_timeout_ns, .. } = self.options;
        let (device, nr_requests) = (self.device, self.options.lessee_requests());
        let message = Message::Limits { device, nr_requests, max_sectors_kb, share, io_timeout_ns };
        self.send_to_others(pools, message);
    }

    /// Sends a message to every other shard.
    pub(super) fn send_to_others(&self, pools: &mut Pools, message: Message) {
        for shard in self.switch.shards() {
            if shard != self.owner {
                pools.actions.list.push(Action::Send { to: shard, message });
            }
        }
    }

    /// Removes the device, which has no request. Slots that were made for more tags than it began with stay, for other devices.
    pub fn remove(&self, pools: &mut Pools, tags_at_start: u32) {
        assert!(self.can_be_removed(), "a device is removed while nothing uses it");
        assert!(self.slots_for >= tags_at_start, "slots are never taken back");
        pools.spare_slots += self.slots_for - tags_at_start;
        clear_timers(pools, self.device);
    }

    /// Makes request slots for the pieces of more tags, and room in the lists of a batch. Once a change, never per request.
    fn make_room(&mut self, pools: &mut Pools) {
        let tags = self.options.tags(self.gate.bios());
        assert!(tags >= self.options.nr_requests, "there are tags for nr_requests at least");
        let more = tags.saturating_sub(self.slots_for);
        let spare = more.min(pools.spare_slots);
        pools.spare_slots -= spare;
        pools.slots.grow(more - spare);
        self.slots_for += more;
        let waiters_max = self.gate.waiters_max();
        self.ready.reserve_exact(waiters_max + tags as usize);
        self.waiting.grow(&self.options, pools.slots.capacity());
    }
}

/// Answers a change of options.
fn notify(pools: &mut Pools, token: u32, status: Status) {
    pools.actions.list.push(Action::Notice(Notice::Set { token, status }));
}
