//! Time limits: commands that the device does not answer, and requests that have waited for the device for too long.
//!
//! *Time-outs.* A command is given up, its memory is not. The bios of a command that passes `io_timeout` are answered with an error,
//! but its tag and its buffers stay out until the device answers, however late: the device may still read or write them. Until then a
//! new write over the same bytes fails, because the late one could overtake it. Commands in flight are listed in the order in which
//! they were sent, so one timer for each queue, set for the oldest command, is enough and costs nothing per command.
//!
//! *Expiry.* `io_timeout` limits the wait for a device that answers nothing (at the gate, in the elevator, in the requeue list, behind
//! a change of options) as it limits the time in the device. While commands end, requests have their turn and wait for it, however
//! many there are: a busy disk fails nothing. A wait counts from the arrival of the oldest bio, and anew when the device has
//! finished a part of the request, or has failed one whose bios are then sent one by one. So no bio is without an answer for
//! longer than twice `io_timeout` in which nothing of it is done.
//!
//! One timer for each queue is set while requests wait, and the batch in which it fires searches all requests of the shard:
//! a wait costs nothing, and searches are rare. What fails here was not sent, so its buffer is free at once.
//!
//! Invariants: while the device has a command that has not timed out, the timer of time-outs is set for the oldest one or earlier; while
//! a request waits, the timer of waits is set for its end, for the next look at a device that answers, or earlier.

use super::device_state::DeviceMonitor;
use super::{Queue, TimerKind, set_timer_by, timer_of};
use crate::action::{Action, Notice};
use crate::error::IoError;
use crate::input::{Message, ReplyStage};
use crate::pools::{Pools, answer};
use crate::request::{Request, RequestState, SlotId, Slots};
use crate::slab::NIL;
use crate::tags::Requester;
use crate::time::Instant;
use crate::wait_times::{WaitKind, WaitTimes};

/// Commands.
impl Queue {
    /// Takes the time-out timer: times out every command that is due, and sets the timer for the next.
    pub fn on_timeout(&mut self, now: Instant, pools: &mut Pools) {
        let mut next = self.in_flight.oldest();
        let mut any = false;
        while let Some(id) = next {
            next = self.in_flight.next(&pools.slots, id);
            let request = &pools.slots[id];
            let deadline = request.sent.after(self.options.io_timeout_ns);
            if !request.is(Request::TIMED_OUT) {
                if deadline > now {
                    pools.timers.set(timer_of(self.device, TimerKind::Timeout), deadline);
                    break;
                }
                self.time_out(now, pools, id);
                any = true;
            }
        }
        if any {
            self.note_overdue(now, pools, true);
        }
    }

    /// Answers the bios of a command that the device did not answer in time.
    fn time_out(&mut self, now: Instant, pools: &mut Pools, id: SlotId) {
        let request = &pools.slots[id];
        let Request { volume, op, offset, len, parent, bios, .. } = *request;
        let wait_times = WaitTimes::until(&request.stamps, now);
        pools.actions.list.push(Action::Notice(Notice::TimedOut { volume, op, offset, len }));
        if request.is(Request::FLUSH) {
            self.in_flight.mark_timed_out(&mut pools.slots, id);
            return self.volumes.of_bio(volume).flush.time_out(now, pools);
        }
        self.abandon(pools, id);
        if parent != NIL {
            // No more pieces. The bio is answered, so the other pieces in flight may be answered too late as well.
            let split = &mut pools.slots[parent];
            assert!(split.state == RequestState::Split, "a piece has a split request");
            split.done = split.len;
            split.split.status = Err(IoError::TimedOut);
            self.abandon_siblings(pools, parent);
        }
        let mut next = Some(bios.head);
        while let Some(slot) = next {
            next = pools.bio_after(slot, bios.tail);
            if !pools.bios[slot].answered {
                self.gate.lease_timed_out(pools.bios[slot].tags);
                pools.bios[slot].wait_times = wait_times;
                answer(pools, slot, Err(IoError::TimedOut), false, ReplyStage::Early);
            }
        }
    }

    /// Marks a command as timed out. It no longer holds back requests of a lower priority, nor those that wait for bytes in
    /// flight: they would wait as long as the device likes.
    fn abandon(&mut self, pools: &mut Pools, id: SlotId) {
        self.in_flight.mark_timed_out(&mut pools.slots, id);
        let request = &mut pools.slots[id];
        self.gate.uncharge(request);
        self.waiting.note_ended(request);
    }

    /// Marks all pieces of a split request that are in flight as timed out.
    fn abandon_siblings(&mut self, pools: &mut Pools, parent: SlotId) {
        let mut next = self.in_flight.oldest();
        while let Some(id) = next {
            next = self.in_flight.next(&pools.slots, id);
            let piece = &pools.slots[id];
            if piece.parent == parent && !piece.is(Request::TIMED_OUT) {
                self.abandon(pools, id);
            }
        }
    }

    /// Fails a new write over bytes that a timed-out write may still change; returns true if so.
    #[inline]
    pub(super) fn refuse_overlap(&mut self, pools: &mut Pools, id: SlotId) -> bool {
        let refused = self.in_flight.overlaps_timed_out_write(&pools.slots, &pools.slots[id]);
        if refused {
            self.refuse(pools, id, WaitTimes::NONE);
        }
        refused
    }

    /// Answers the bios of a request that holds no tag yet with a time-out, and frees it.
    #[cold]
    pub(super) fn refuse(&mut self, pools: &mut Pools, id: SlotId, wait_times: WaitTimes) {
        let request = &mut pools.slots[id];
        assert!(
            matches!(request.state, RequestState::Plugged | RequestState::Waiting),
            "a request with a tag is not refused"
        );
        let (head, tail) = (request.bios.head, request.bios.tail);
        if request.state == RequestState::Waiting {
            self.gate.end_wait(request);
        }
        self.gate.leave(request);
        request.state = RequestState::Free;
        pools.slots.put(id);
        let mut next = Some(head);
        while let Some(slot) = next {
            next = pools.bio_after(slot, tail);
            pools.bios[slot].wait_times = pools.bios[slot].wait_times.and(wait_times);
            answer(pools, slot, Err(IoError::TimedOut), false, ReplyStage::Final);
        }
    }
}

/// Waits.
impl Queue {
    /// Takes the expiry timer: the end of the batch fails what has waited for too long.
    pub fn on_expiry(&mut self) {
        self.expiry.on_timer();
    }

    /// Sets the expiry timer for a request that waits again and may have waited before.
    pub(super) fn limit_wait(&self, pools: &mut Pools, id: SlotId) {
        let at = self.waits_until(&pools.slots, id);
        set_timer_by(pools, self.device, TimerKind::Expiry, at);
    }

    /// Returns when a waiting request fails. Pieces of a bio fail together.
    pub(super) fn waits_until(&self, slots: &Slots, id: SlotId) -> Instant {
        let request = &slots[id];
        let since = match request.parent {
            NIL => request.waits_since,
            parent => slots[parent].waits_since,
        };
        since.after(self.options.io_timeout_ns)
    }

    /// Fails every request that has waited for too long, and sets the timer for the next one; returns whether any has. Called
    /// while every request with a tag is in the elevator, in the requeue list or in the device.
    pub(super) fn expire_waiting(&mut self, now: Instant, pools: &mut Pools) -> bool {
        assert!(self.ready.is_empty(), "what got its tag is in the elevator");
        let answers = !self.is_silent(now, &pools.slots);
        self.expiry.note_search(answers);
        if answers {
            return false;
        }
        // Bios of other shards may wait for the tags that the device has.
        self.note_overdue(now, pools, false);
        let mut any = self.expire_at_gate(now, pools);
        let mut next = self.expire_held(now, pools);
        let (mut failed, mut refused) = (false, false);
        for id in 0..pools.slots.places() {
            let state = pools.slots[id].state;
            let waits = matches!(state, RequestState::Queued | RequestState::Waiting);
            if !waits || !self.is_ours(&pools.slots, id) {
                continue;
            }
            let until = self.waits_until(&pools.slots, id);
            if until > now {
                next = Some(next.map_or(until, |other: Instant| other.min(until)));
            } else if state == RequestState::Queued {
                refused |= pools.slots[id].is(Request::REQUEUED);
                failed = true;
                self.expire_queued(now, pools, id);
            }
        }
        any |= failed;
        if let Some(at) = next {
            set_timer_by(pools, self.device, TimerKind::Expiry, at);
        }
        if any && (refused || !self.in_flight.is_empty()) {
            self.note_overdue(now, pools, true);
        }
        any
    }

    /// Returns true if the device has ended no command for a part of the time-out, although it had some all that time or refused
    /// them. An idle device owes no answer: a request that waited elsewhere, for a frame of the cache perhaps, may be overdue when it
    /// arrives.
    pub(super) fn is_silent(&self, now: Instant, slots: &Slots) -> bool {
        let timeout_ns = self.options.io_timeout_ns;
        let asked = match self.in_flight.oldest() {
            Some(_) if self.waiting.is_refused() => true,
            Some(oldest) => DeviceMonitor::is_silence(slots[oldest].sent, now, timeout_ns),
            None => self.waiting.is_busy(),
        };
        asked && self.monitor.is_silent(now, timeout_ns)
    }

    /// Returns true if a request is one of this queue's.
    fn is_ours(&self, slots: &Slots, id: SlotId) -> bool {
        slots.is_taken(id) && self.volumes.find(slots[id].volume).is_some()
    }

    /// Fails requests that have waited for tags for too long; returns whether any has.
    fn expire_at_gate(&mut self, now: Instant, pools: &mut Pools) -> bool {
        let (mut cursor, mut any) = (0, false);
        loop {
            let (slots, timeout_ns) = (&pools.slots, self.options.io_timeout_ns);
            let expired = |requester| match requester {
                Requester::Request(id) => {
                    slots[id].state == RequestState::Waiting
                        && slots[id].waits_since.after(timeout_ns) <= now
                }
                Requester::Shard(_) => false,
            };
            let Some(requester) = self.gate.withdraw(&mut cursor, &expired) else {
                return any;
            };
            let Requester::Request(id) = requester else {
                unreachable!("a shard's request for tags does not expire");
            };
            any = true;
            self.index.remove(&mut pools.slots, id);
            let Request { stamps: [plugged, submitted, ..], .. } = pools.slots[id];
            let wait_times = WaitTimes::until(&[plugged, submitted, now, now], now);
            self.refuse(pools, id, wait_times);
        }
    }

    /// Fails bios that have waited for a change of options for too long; returns when the next one fails.
    fn expire_held(&mut self, now: Instant, pools: &mut Pools) -> Option<Instant> {
        while let Some(slot) = self.first_held() {
            let since = pools.waits_since(slot);
            let until = since.after(self.options.io_timeout_ns);
            if until > now {
                return Some(until);
            }
            self.drop_first_held(pools);
            pools.bios[slot].wait_times = WaitTimes::NONE.plus(WaitKind::Plug, now.since(since));
            answer(pools, slot, Err(IoError::TimedOut), false, ReplyStage::Final);
        }
        None
    }

    /// Fails a request that waits in the elevator or in the requeue list.
    pub(super) fn expire_queued(&mut self, now: Instant, pools: &mut Pools, id: SlotId) {
        self.waiting.remove(&mut pools.slots, id);
        self.index.remove(&mut pools.slots, id);
        let request = &mut pools.slots[id];
        if request.is(Request::FLUSH) {
            self.volumes.of_bio(request.volume).flush.expire(now, pools);
            return self.free(pools, id);
        }
        // Its other bios are not sent one by one.
        request.marks &= !Request::RETRY;
        request.stamps[3] = now;
        self.finish(now, pools, id, Err(IoError::TimedOut), false);
    }

    /// Notes that a request is, or may be, overdue: the device is unresponsive, or stuck if a request failed, all that the device
    /// has is overdue, and it ended nothing for long.
    fn note_overdue(&mut self, now: Instant, pools: &mut Pools, failed: bool) {
        let all = failed && self.in_flight.only_timed_out(&pools.slots);
        if self.monitor.on_overdue(now, all, self.options.io_timeout_ns) {
            self.announce_state(pools);
        }
    }

    /// Tells the other shards and the caches whether the device answers, and the operator if its state has changed.
    pub(super) fn announce_state(&mut self, pools: &mut Pools) {
        let (device, state) = (self.device, self.monitor.state());
        let unresponsive = self.monitor.is_unresponsive();
        if self.monitor.take_change() {
            pools.actions.list.push(Action::Notice(Notice::DeviceState { device, state }));
        }
        pools.state_changes |= 1 << device.0;
        self.send_to_others(pools, Message::DeviceState { device, state, unresponsive });
    }
}
