//! Time-outs: a command is given up, its memory is not.
//!
//! The bios of a command that passes `io_timeout` are answered with an error, but its tag and its buffers stay out until the
//! device answers, however late: the device may still read or write them. Until then a new write over the same bytes fails,
//! because the late one could overtake it. Commands in flight are listed in the order in which they were sent, so one timer
//! for each queue, set for the oldest command, is enough and costs nothing per command.

use super::{Queue, TimerKind, timer_of};
use crate::action::{Action, Notice};
use crate::error::IoError;
use crate::input::ReplyStage;
use crate::pools::{Pools, answer};
use crate::request::{Request, RequestState, SlotId};
use crate::slab::NIL;
use crate::time::Instant;
use crate::wait_times::WaitTimes;

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
