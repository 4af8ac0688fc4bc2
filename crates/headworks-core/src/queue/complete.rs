//! The device's answers and what follows from them.
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
//! A device may lie: an answer for a command that is not in flight is reported and ignored; more bytes than were asked for, or a
//! hole where none was allowed, count as a failure; no bytes at all is an error and never zeros.

use super::admit::kind_of;
use super::gate::cost_bytes;
use super::{Queue, TimerKind, timer_of};
use crate::action::{Action, Notice};
use crate::bio::{BioFlags, Op};
use crate::error::{IoError, Status};
use crate::input::{Completion, ReplyStage, RequestId};
use crate::pools::{Pools, answer};
use crate::request::{BioChain, Request, RequestState, SlotId};
use crate::slab::NIL;
use crate::time::Instant;
use crate::wait_times::WaitTimes;

/// The consequence of a command's answer for its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// The request ends.
    Finish(Status),
    /// Another command is sent for the same request.
    Again,
    /// The device refused: the request is sent again later.
    Requeue,
    /// A merged request failed: each bio is sent again alone.
    OneByOne,
}

impl Queue {
    /// Takes the device's answer to a command.
    pub fn on_complete(&mut self, now: Instant, pools: &mut Pools, completion: Completion) {
        let Some(id) = self.find_in_flight(pools, completion.id) else {
            let (device, id) = (self.device, completion.id);
            pools.actions.list.push(Action::Notice(Notice::UnknownCompletion { device, id }));
            return;
        };
        if self.gate.is_learning() {
            self.learn(&pools.slots[id], &completion);
        }
        let is_flush = pools.slots[id].is(Request::FLUSH);
        let late = pools.slots[id].is(Request::TIMED_OUT);
        self.in_flight.remove(&mut pools.slots, id);
        self.waiting.clear_busy();
        if completion.status != Err(IoError::Busy) || late {
            self.waiting.on_end();
            if self.monitor.on_end(now) {
                self.announce_state(pools);
            }
        }
        let verdict = self.judge(now, pools, id, &completion);
        if is_flush && verdict != Verdict::Requeue {
            return self.on_flush_done(now, pools, id, completion.status);
        }
        match verdict {
            Verdict::Finish(status) => {
                let hole = completion.hole && status.is_ok();
                self.limits.measure(now, &pools.slots[id]);
                self.finish(now, pools, id, status, hole);
            }
            Verdict::Again => {
                self.charge_again(pools, id);
                self.send(now, pools, id);
            }
            Verdict::Requeue => self.requeue(now, pools, id),
            Verdict::OneByOne => {
                self.charge_again(pools, id);
                self.retry_one_by_one(now, pools, id);
            }
        }
    }

    /// Notes a finished command, for the cost model.
    fn learn(&mut self, request: &Request, completion: &Completion) {
        let known = completion.status.is_ok() && matches!(request.op, Op::Read | Op::Write);
        // A piece that the depth control cut off is bytes of a command that the device's limits allow.
        let piece = self.limits.device().piece(self.block_size(request));
        let whole = request.parent == NIL || request.piece_offset % piece < request.len;
        let kind = known.then(|| kind_of(request));
        self.gate.note_finished(kind, whole, completion.transferred);
    }

    /// Charges a request's connection for the command that follows a short transfer, a step or a failure.
    fn charge_again(&mut self, pools: &Pools, id: SlotId) {
        let request = &pools.slots[id];
        let bio = pools.bios[request.bios.head].bio.id;
        let bytes = cost_bytes(request.op, request.len - request.done);
        self.gate.charge_extra(bio.export, bio.connection, kind_of(request), bytes);
    }

    /// Returns the slot of a command that this queue has in flight.
    fn find_in_flight(&self, pools: &Pools, id: RequestId) -> Option<SlotId> {
        let taken = pools.slots.is_taken(id.slot);
        let request = taken.then(|| &pools.slots[id.slot])?;
        let ours = self.volumes.find(request.volume).is_some();
        let sent = request.state == RequestState::InFlight && request.generation == id.generation;
        (ours && sent).then_some(id.slot)
    }

    /// Decides what follows from an answer.
    fn judge(
        &mut self,
        now: Instant,
        pools: &mut Pools,
        id: SlotId,
        completion: &Completion,
    ) -> Verdict {
        let request = &mut pools.slots[id];
        if request.is(Request::TIMED_OUT) {
            return Verdict::Finish(Err(IoError::TimedOut));
        }
        // Most answers: a command with data asks for all that is left.
        let whole = completion.transferred == request.len - request.done;
        let allowed = !completion.hole || request.flags.contains(BioFlags::HOLE_OK);
        if whole && allowed && request.op.has_data() && completion.status.is_ok() {
            debug_assert!(completion.transferred > 0, "a command with data has a length");
            request.done = request.len;
            return Verdict::Finish(Ok(()));
        }
        let (_, at, asked) = self.command(request);
        match completion.status {
            Ok(()) if completion.transferred > asked => Verdict::Finish(Err(IoError::Medium)),
            // Believed, it would be zeros for a bio that asked for data; asked again, the device may repeat it without end.
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
            // A list of extents comes whole.
            Ok(()) if request.op == Op::BlockStatus => Verdict::Finish(Err(IoError::Medium)),
            Ok(()) => {
                // One answer cannot say "part data, part zeros without data": the rest, or all of it if the first part was such
                // zeros, must come as data.
                request.flags = request.flags.without(BioFlags::HOLE_OK);
                request.done += if completion.hole { 0 } else { completion.transferred };
                request.waits_since = now;
                debug_assert!(request.done < request.len, "a request that goes on has bytes left");
                Verdict::Again
            }
            Err(IoError::Busy) => Verdict::Requeue,
            Err(error) => self.judge_failure(request, error),
        }
    }

    /// Decides what follows from a failure.
    fn judge_failure(&self, request: &mut Request, error: IoError) -> Verdict {
        debug_assert!(error != IoError::Busy, "a refusal is no failure");
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
            _ if request.bios.count > 1 && !request.is(Request::RETRY) => Verdict::OneByOne,
            _ => Verdict::Finish(Err(error)),
        }
    }

    /// Takes a refused request back: it is sent again later and may merge until then.
    fn requeue(&mut self, now: Instant, pools: &mut Pools, id: SlotId) {
        if !self.waiting.is_refused() {
            let oldest = self.in_flight.oldest().unwrap_or(id);
            self.monitor.on_first_refusal(pools.slots[oldest].sent.min(pools.slots[id].sent));
        }
        self.waiting.requeue(&mut pools.slots, id);
        // The answer to another command would do as well, but what is in flight may never be answered.
        let timer = timer_of(self.device, TimerKind::Retry);
        if !pools.timers.is_set(timer) {
            pools.timers.set(timer, now.after(self.waiting.next_pause()));
        }
        if self.waits_until(&pools.slots, id) <= now && self.is_silent(now, &pools.slots) {
            // It was in the device for long before it was refused.
            return self.expire_queued(now, pools, id);
        }
        self.make_findable(pools, id);
        self.limit_wait(pools, id);
    }

    /// Sends the bios of a failed merged request again, each alone.
    fn retry_one_by_one(&mut self, now: Instant, pools: &mut Pools, id: SlotId) {
        let request = &mut pools.slots[id];
        debug_assert!(request.bios.count > 1, "a request of one bio is not retried");
        request.marks |= Request::RETRY;
        request.waits_since = now;
        request.flags = request.flags.without(BioFlags::HOLE_OK);
        self.aim_at_first_bio(pools, id);
        self.send(now, pools, id);
    }

    /// Narrows a request that retries to its first bio; the others follow.
    fn aim_at_first_bio(&self, pools: &mut Pools, id: SlotId) {
        let request = &mut pools.slots[id];
        let bio = &pools.bios[request.bios.head].bio;
        (request.offset, request.len, request.done) = (bio.offset, bio.len, 0);
    }

    /// Ends a request with `status`: answers its bios and frees its slot and its tag. A request that retries goes on with its
    /// next bio.
    pub(super) fn finish(
        &mut self,
        now: Instant,
        pools: &mut Pools,
        id: SlotId,
        status: Status,
        hole: bool,
    ) {
        let request = &pools.slots[id];
        if request.parent != NIL {
            return self.finish_piece(now, pools, id, status);
        }
        let mut status = status;
        if self.retries_more(request) {
            match self.go_on_one_by_one(now, pools, id, status) {
                Some(last) => status = last,
                None => return,
            }
        }
        let BioChain { head, tail, .. } = pools.slots[id].bios;
        let wait_times = self.account(now, pools, id, status);
        let mut next = Some(head);
        while let Some(slot) = next {
            next = pools.bio_after(slot, tail);
            pools.bios[slot].wait_times = wait_times;
            self.finish_bio(now, pools, slot, status, hole);
        }
        self.free(pools, id);
    }

    /// Answers the first bio of a request that retries, and sends the next one. Returns the status of the last bio once only that is
    /// left, or `None` while the device has one.
    #[cold]
    fn go_on_one_by_one(
        &mut self,
        now: Instant,
        pools: &mut Pools,
        id: SlotId,
        status: Status,
    ) -> Option<Status> {
        let mut status = status;
        while self.retries_more(&pools.slots[id]) {
            let slot = pools.slots[id].bios.head;
            pools.slots[id].bios.head = pools.bios[slot].next;
            pools.bios[slot].wait_times = self.account(now, pools, id, status);
            self.finish_bio(now, pools, slot, status, false);
            self.aim_at_first_bio(pools, id);
            let failure = match self.waits_until(&pools.slots, id) <= now {
                // The others have waited for it since the merged command failed.
                true => Some(Err(IoError::TimedOut)),
                false => self.fails_unsent(&pools.slots, id),
            };
            match failure {
                Some(failure) => status = failure,
                None => {
                    self.issue(now, pools, id);
                    return None;
                }
            }
        }
        Some(status)
    }

    /// Returns true for a request that retries and has another bio after its first.
    fn retries_more(&self, request: &Request) -> bool {
        request.is(Request::RETRY)
            && !request.is(Request::TIMED_OUT)
            && request.bios.head != request.bios.tail
    }

    /// Adds a finished request to its volume's statistics; returns the wait times of its stages.
    // Inlined, as the other steps that each request passes once: a call would cost a fifth of it.
    #[inline(always)]
    pub(super) fn account(
        &mut self,
        now: Instant,
        pools: &Pools,
        id: SlotId,
        status: Status,
    ) -> WaitTimes {
        let request = &pools.slots[id];
        let (op, stamps) = (request.op, request.stamps);
        debug_assert!(
            stamps.is_sorted() && stamps[3] <= now,
            "a request passes its stages in order"
        );
        if self.gate.notes_latency() && status.is_ok() {
            self.gate.note_latency(now, request);
        }
        let stats = &mut self.volumes.of_bio(request.volume).stats;
        stats.ops[op as usize].errors += u64::from(status.is_err());
        WaitTimes::of_request(stats.on_finish(op, request.len.into(), &stamps, now))
    }

    /// Answers a bio whose data the device finished; a FUA write may have to wait for a flush first.
    #[inline(always)]
    pub(super) fn finish_bio(
        &mut self,
        now: Instant,
        pools: &mut Pools,
        slot: u32,
        status: Status,
        hole: bool,
    ) {
        let entry = &pools.bios[slot];
        let (bio, answered, tags) = (entry.bio, entry.answered, entry.tags);
        self.volumes.of_bio(bio.id.volume).on_bio_finished(bio.op);
        if answered {
            self.gate.lease_answered(tags);
            return answer(pools, slot, status, false, ReplyStage::Released);
        }
        let durable = !self.options.write_cache || bio.op == Op::Write && self.options.fua;
        if status.is_ok() && bio.op.is_write() && bio.flags.contains(BioFlags::FUA) && !durable {
            return self.join_flush(now, pools, slot);
        }
        answer(pools, slot, status, hole, ReplyStage::Final);
    }
}
