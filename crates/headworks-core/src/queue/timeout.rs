//! Giving up on a command without giving up its memory.
//!
//! A command that passes `io_timeout` is answered with an error, but its tag and its buffers stay out until the device
//! answers, however late: the device may still read or write them. Until then a new write over the same bytes fails, because
//! the late one could overtake it. Commands in flight hang in the order in which they were sent, so one timer per queue,
//! set for the oldest, is enough and costs nothing per command.

use super::{Pools, Queue, TimerKind, answer, timer_of};
use crate::action::{Action, Notice};
use crate::error::IoError;
use crate::input::ReplyStage;
use crate::request::{Request, SlotId, Slots};
use crate::slab::NIL;
use crate::time::Instant;
use crate::wait_times::WaitTimes;

impl Queue {
    /// The oldest command may have timed out.
    pub fn on_timeout(&mut self, now: Instant, pools: &mut Pools) {
        let mut in_turn = self.flight.front();
        while let Some(id) = in_turn {
            in_turn = self.flight.next(&pools.slots, id);
            let request = &pools.slots[id];
            let deadline = request.sent.after(self.options.io_timeout_ns);
            if !request.is(Request::TIMED_OUT) {
                if deadline > now {
                    pools.timers.set(timer_of(self.device, TimerKind::Timeout), deadline);
                    return;
                }
                self.time_out(now, pools, id);
            }
        }
    }

    fn time_out(&mut self, now: Instant, pools: &mut Pools, id: SlotId) {
        let request = &pools.slots[id];
        let Request { volume, op, offset, len, parent, .. } = *request;
        let wait_times = WaitTimes::until(&request.stamps, now);
        let (mut slot, tail) = (request.bio_head, request.bio_tail);
        pools.actions.list.push(Action::Notice(Notice::TimedOut { volume, op, offset, len }));
        if request.is(Request::FLUSH) {
            pools.slots[id].marks |= Request::TIMED_OUT;
            return self.lose_flush(now, pools, volume);
        }
        self.give_up(pools, id);
        if parent != NIL {
            // No more pieces. The bio is answered, so those that are out may come too late as well, however young.
            let split = &mut pools.slots[parent];
            split.done = split.len;
            split.status = Err(IoError::TimedOut);
            self.time_out_siblings(pools, parent);
        }
        loop {
            let next = pools.bios[slot].next;
            if !pools.bios[slot].answered {
                self.leases.given_up += u32::from(pools.bios[slot].tags);
                pools.bios[slot].wait_times = wait_times;
                answer(pools, slot, Err(IoError::TimedOut), false, ReplyStage::Early);
            }
            if slot == tail {
                return;
            }
            slot = next;
        }
    }

    /// Nobody waits for it any longer: it holds nobody of a lower level back, nor those who wait for room by bytes, for they
    /// would wait as long as the device likes.
    fn give_up(&mut self, pools: &mut Pools, id: SlotId) {
        let request = &mut pools.slots[id];
        request.marks |= Request::TIMED_OUT;
        self.zombies += u32::from(request.op.is_write());
        self.admitted_bytes -= u64::from(std::mem::take(&mut request.charged));
        let (ioprio, op) = (request.ioprio, request.op);
        self.note_done(ioprio, op);
    }

    fn time_out_siblings(&mut self, pools: &mut Pools, parent: SlotId) {
        let mut in_turn = self.flight.front();
        while let Some(id) = in_turn {
            in_turn = self.flight.next(&pools.slots, id);
            let piece = &pools.slots[id];
            if piece.parent == parent && !piece.is(Request::TIMED_OUT) {
                self.give_up(pools, id);
            }
        }
    }

    /// Whether a timed-out write is still in the device that may overwrite what `new` is about to write.
    pub(super) fn is_behind_zombie(&self, slots: &Slots, new: SlotId) -> bool {
        let Request { offset: start, volume, op, .. } = slots[new];
        let end = slots[new].end();
        op.is_write()
            && self.flight.iter(slots).any(|id| {
                let old = &slots[id];
                let overlaps = old.volume == volume && old.offset < end && start < old.end();
                old.is(Request::TIMED_OUT) && old.op.is_write() && overlaps
            })
    }

    /// Fails a new write over bytes that a timed-out one may still write; true if it is gone.
    pub(super) fn refuse_overlap(&mut self, pools: &mut Pools, new: SlotId) -> bool {
        if !self.is_behind_zombie(&pools.slots, new) {
            return false;
        }
        let (mut slot, tail) = (pools.slots[new].bio_head, pools.slots[new].bio_tail);
        loop {
            let next = pools.bios[slot].next;
            answer(pools, slot, Err(IoError::TimedOut), false, ReplyStage::Final);
            if slot == tail {
                break;
            }
            slot = next;
        }
        pools.slots[new].state = crate::request::State::Free;
        pools.slots.put(new);
        true
    }
}
