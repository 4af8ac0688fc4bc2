//! What an answer of the device means.
//!
//! ```text
//!             all moved, or a failure that is final
//!  InFlight -----------------------------------------> finish: answer the bios, free tag and slot
//!     |  ^
//!     |  |-- moved less than asked: send the rest
//!     |  |-- a step of a long discard or zeroing: send the next
//!     |  |-- the device cannot zero: send zeros as data
//!     |  `-- a merged request failed: send its bios again one by one, once
//!     `-- refused: requeue list, in the order of leaving the elevator; can be merged again
//! ```
//!
//! A device may lie: an answer for a command that is not in flight is reported and ignored, more bytes than were asked or a
//! hole where none was allowed count as a failure, no bytes at all is an error and never zeros.

use super::{Pools, Queue, RETRY_NS, TimerKind, answer, timer_of};
use crate::action::{Action, Notice};
use crate::bio::{BioFlags, Op};
use crate::error::{IoError, Status};
use crate::input::{Completion, ReplyStage, RequestId};
use crate::request::{Request, SlotId, Slots, State};
use crate::slab::NIL;
use crate::time::Instant;
use crate::wait_times::WaitTimes;

/// What becomes of a request whose command was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Finish(Status),
    /// Another command for the same request.
    Again,
    /// The device refused.
    Requeue,
    /// A merged request failed: every bio for itself.
    OneByOne,
}

impl Queue {
    /// The device answers.
    pub fn on_complete(&mut self, now: Instant, pools: &mut Pools, completion: Completion) {
        let Some(id) = self.find_in_flight(pools, completion.id) else {
            let (device, id) = (self.device, completion.id);
            pools.actions.list.push(Action::Notice(Notice::UnknownCompletion { device, id }));
            return;
        };
        self.flight.remove(&mut pools.slots, id);
        self.in_flight -= u32::from(!pools.slots[id].is(Request::FLUSH));
        self.busy = false;
        let verdict = self.judge(pools, id, &completion);
        if pools.slots[id].is(Request::FLUSH) && verdict != Verdict::Requeue {
            return self.on_flush_done(now, pools, id, completion.status);
        }
        match verdict {
            Verdict::Finish(status) => {
                let hole = completion.hole && status.is_ok();
                self.finish(now, pools, id, status, hole);
            }
            Verdict::Again => {
                self.send(now, pools, id);
            }
            Verdict::Requeue => self.requeue(now, pools, id),
            Verdict::OneByOne => self.retry_one_by_one(now, pools, id),
        }
    }

    fn find_in_flight(&self, pools: &Pools, id: RequestId) -> Option<SlotId> {
        let taken = pools.slots.is_taken(id.slot);
        let request = taken.then(|| &pools.slots[id.slot])?;
        let ours = self.volume(request.volume.0).is_some();
        let known = ours && request.state == State::InFlight && request.generation == id.generation;
        known.then_some(id.slot)
    }

    fn judge(&mut self, pools: &mut Pools, id: SlotId, completion: &Completion) -> Verdict {
        let request = &mut pools.slots[id];
        let (_, at, asked) = self.command(request);
        if request.is(Request::TIMED_OUT) {
            return Verdict::Finish(Err(IoError::TimedOut));
        }
        match completion.status {
            Ok(()) if completion.transferred > asked => Verdict::Finish(Err(IoError::Medium)),
            // Believed, it would be zeros for somebody who asked for data; asked again, it may be said for ever.
            Ok(()) if completion.hole && !request.flags.contains(BioFlags::HOLE_OK) => {
                Verdict::Finish(Err(IoError::Medium))
            }
            Ok(()) if asked > 0 && completion.transferred == 0 => {
                if request.op == Op::Read {
                    let notice = Notice::ShortRead { volume: request.volume, offset: at };
                    pools.actions.list.push(Action::Notice(notice));
                }
                self.judge_failure(&mut pools.slots[id], IoError::Medium)
            }
            Ok(()) if request.done + completion.transferred == request.len => {
                request.done = request.len;
                Verdict::Finish(Ok(()))
            }
            // A list is told whole.
            Ok(()) if request.op == Op::BlockStatus => Verdict::Finish(Err(IoError::Medium)),
            Ok(()) => {
                // One answer cannot say "part data, part zeros without data": the rest, or all of it if the first part was
                // such zeros, must come as data.
                request.flags = request.flags.without(BioFlags::HOLE_OK);
                request.done += if completion.hole { 0 } else { completion.transferred };
                Verdict::Again
            }
            Err(IoError::Busy) => Verdict::Requeue,
            Err(error) => self.judge_failure(request, error),
        }
    }

    fn judge_failure(&self, request: &mut Request, error: IoError) -> Verdict {
        let unsupported = error == IoError::Unsupported;
        match request.op {
            Op::Discard if unsupported => Verdict::Finish(Ok(())),
            Op::WriteZeroes
                if unsupported
                    && !request.is(Request::ZERO_AS_DATA)
                    && !request.flags.contains(BioFlags::FAST_ZERO) =>
            {
                request.marks |= Request::ZERO_AS_DATA;
                Verdict::Again
            }
            _ if request.bios > 1 && !request.is(Request::RETRY) => Verdict::OneByOne,
            _ => Verdict::Finish(Err(error)),
        }
    }

    /// A refused request goes back, to where it was among those that left with it, and may merge again.
    fn requeue(&mut self, now: Instant, pools: &mut Pools, id: SlotId) {
        let request = &mut pools.slots[id];
        request.state = State::Queued;
        request.marks |= Request::REQUEUED;
        if request.is(Request::FLUSH) {
            // It passed the elevator by: behind what has left so far.
            request.departure = self.departures;
        }
        self.queued += 1;
        self.insert_requeued(&mut pools.slots, id);
        self.make_findable(pools, id);
        self.busy = true;
        // An answer to another command would do, but what is in flight may never be answered.
        let timer = timer_of(self.device, TimerKind::Retry);
        if !pools.timers.is_set(timer) {
            pools.timers.set(timer, now.after(RETRY_NS));
        }
    }

    /// Inserts a request into the requeue list in the order in which requests left the elevator; mostly that is at its end.
    fn insert_requeued(&mut self, slots: &mut Slots, id: SlotId) {
        let departure = slots[id].departure;
        // Departures wrap: the difference has the sign of the order. Nothing that is not given up flies for 2^31 others.
        let precedes = |other: SlotId| (departure.wrapping_sub(slots[other].departure) as i32) < 0;
        let mut before = self.requeue.back(slots);
        while let Some(other) = before
            && precedes(other)
        {
            before = self.requeue.prev(slots, other);
        }
        match before {
            Some(other) => self.requeue.insert_after(slots, id, other),
            None => self.requeue.push_front(slots, id),
        }
    }

    fn retry_one_by_one(&mut self, now: Instant, pools: &mut Pools, id: SlotId) {
        let request = &mut pools.slots[id];
        request.marks |= Request::RETRY;
        request.flags = request.flags.without(BioFlags::HOLE_OK);
        self.aim_at_first_bio(pools, id);
        self.send(now, pools, id);
    }

    /// A request that retries is its first bio only; the others follow.
    fn aim_at_first_bio(&self, pools: &mut Pools, id: SlotId) {
        let request = &mut pools.slots[id];
        let bio = &pools.bios[request.bio_head].bio;
        (request.offset, request.len, request.done) = (bio.offset, bio.len, 0);
    }

    /// The request's commands are over.
    pub(super) fn finish(
        &mut self,
        now: Instant,
        pools: &mut Pools,
        id: SlotId,
        status: Status,
        hole: bool,
    ) {
        let request = &mut pools.slots[id];
        if request.is(Request::TIMED_OUT) && request.op.is_write() {
            self.zombies -= 1;
        }
        if request.parent != NIL {
            return self.finish_piece(now, pools, id, status);
        }
        let last = request.bio_head == request.bio_tail;
        if request.is(Request::RETRY) && !request.is(Request::TIMED_OUT) && !last {
            let slot = request.bio_head;
            request.bio_head = pools.bios[slot].next;
            pools.bios[slot].wait_times = self.account(now, pools, id, status);
            self.finish_bio(now, pools, slot, status, false);
            self.aim_at_first_bio(pools, id);
            self.send(now, pools, id);
            return;
        }
        let wait_times = self.account(now, pools, id, status);
        let (mut slot, tail) = (pools.slots[id].bio_head, pools.slots[id].bio_tail);
        loop {
            let next = pools.bios[slot].next;
            pools.bios[slot].wait_times = wait_times;
            self.finish_bio(now, pools, slot, status, hole);
            if slot == tail {
                break;
            }
            slot = next;
        }
        self.free(pools, id);
    }

    fn finish_piece(&mut self, now: Instant, pools: &mut Pools, id: SlotId, status: Status) {
        if pools.slots[id].state == State::InFlight {
            // What the last piece waited for, the bio waited for: from the time that it came.
            let slot = pools.slots[id].bio_head;
            pools.bios[slot].wait_times = self.account(now, pools, id, status);
        }
        let parent = pools.slots[id].parent;
        pools.slots[id].state = State::Free;
        if self.tracks {
            self.release(&pools.slots[id]);
        }
        pools.slots.put(id);
        let split = &mut pools.slots[parent];
        split.pieces -= 1;
        if status.is_err() {
            split.status = split.status.and(status);
            // No use in sending the rest.
            split.done = split.len;
        }
        let split = &pools.slots[parent];
        // With nothing owed there are as many tags as were asked for; a bio of more pieces than can be asked for goes on, too.
        if self.tags.reuses_tags() || split.is(Request::LEASED) || split.owed == 0 {
            // The tag goes to the next piece: a continuation keeps its ticket. Without a next piece it falls free.
            self.spawn_piece(pools, parent);
        } else {
            self.put_tag(pools.slots[parent].is_sync());
        }
        self.end_split(now, pools, parent);
    }

    /// Answers a split bio when its last piece has ended and no tag is on its way to it.
    pub(super) fn end_split(&mut self, now: Instant, pools: &mut Pools, parent: SlotId) {
        let split = &pools.slots[parent];
        if split.pieces > 0 || split.owed > 0 {
            return;
        }
        let (slot, status) = (split.bio_head, split.status);
        pools.slots[parent].state = State::Free;
        pools.slots.put(parent);
        self.finish_bio(now, pools, slot, status, false);
    }

    fn account(&mut self, now: Instant, pools: &Pools, id: SlotId, status: Status) -> WaitTimes {
        let request = &pools.slots[id];
        let (op, stamps) = (request.op, request.stamps);
        let (bytes, volume) = (u64::from(request.len), request.volume);
        let stats = &mut self.volume_mut(volume.0).stats;
        stats.ops[op as usize].errors += u64::from(status.is_err());
        WaitTimes::of_request(stats.on_finish(op, bytes, &stamps, now))
    }

    /// The device is done with a bio's data.
    fn finish_bio(
        &mut self,
        now: Instant,
        pools: &mut Pools,
        slot: u32,
        status: Status,
        hole: bool,
    ) {
        let entry = &pools.bios[slot];
        let (bio, answered, tags) = (entry.bio, entry.answered, entry.tags);
        let volume = self.volume_mut(bio.id.volume.0);
        volume.stats.ops[bio.op as usize].bios += 1;
        if bio.op.is_write() {
            volume.writes_completed += 1;
        }
        if answered {
            self.leases.given_up -= u32::from(tags);
            return answer(pools, slot, status, false, ReplyStage::Released);
        }
        let durable = !self.options.write_cache || bio.op == Op::Write && self.options.fua;
        if status.is_ok() && bio.op.is_write() && bio.flags.contains(BioFlags::FUA) && !durable {
            return self.join_flush(now, pools, slot);
        }
        answer(pools, slot, status, hole, ReplyStage::Final);
    }
}
