//! The way of a request through the device: commands are sent and answered, and flushes with them.
//!
//! *Dispatch.* The device gets as many commands as it takes now, each with the memory it needs. Refused requests go first, in the
//! order in which they left the elevator. A request's next command starts at what is `done` of it: so short transfers are continued,
//! and long discards and zeroing go in steps.
//!
//! *Answers.*
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
//!
//! *Flushes.* A flush joins the sequence of its volume (`flush_sequence`), or the next device flush is sent for it.
//!
//! Invariants: `in_flight <= queue_depth` (a flush of each volume beside it); a command in flight is not in the merge index; a device
//! flush has one request slot, from the first bio that needs it until the device has answered and no bio needs another one; every bio
//! that joined is answered once, with the device's answer or at a time-out.

use super::admit::kind_of;
use super::gate::cost_bytes;
use super::{Queue, TimerKind, timer_of};
use crate::action::{Action, Notice, Segment, Submit};
use crate::bio::{BioFlags, Op, VolumeId};
use crate::error::{IoError, Status};
use crate::extent::EXTENTS_BYTES;
use crate::input::{Completion, ReplyStage, RequestId};
use crate::pools::{Pools, answer};
use crate::request::{BioChain, Bios, Request, RequestStart, RequestState, SlotId, Slots};
use crate::request_limits::{GRAIN, RequestLimits, cut, round_to_block};
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

/// Dispatch.
impl Queue {
    /// Sends the device as many commands as it takes; returns how many requests failed instead.
    pub(super) fn dispatch(&mut self, now: Instant, pools: &mut Pools) -> u32 {
        if self.waiting.is_busy() || self.waiting.is_empty() {
            return 0;
        }
        let depth = self.options.queue_depth;
        debug_assert!(
            self.in_flight.commands() <= depth,
            "the device has at most queue_depth commands"
        );
        let room = (depth - self.in_flight.commands()) as usize;
        let (batch, requeued) = self.waiting.take_batch(now, &mut pools.slots, room);
        for &id in &batch.ids()[..requeued] {
            if pools.slots[id].is(Request::FLUSH) {
                self.volumes.of_bio(pools.slots[id].volume).flush.renew(&mut pools.bios);
            }
        }
        let mut failed = 0;
        for &id in batch.ids() {
            self.index.remove(&mut pools.slots, id);
            let request = &mut pools.slots[id];
            request.stamps[3] = now;
            self.waiting.depart(request);
            self.counters.count_issued(request);
            failed += u32::from(!self.send(now, pools, id));
        }
        self.waiting.put_batch(batch);
        failed
    }

    /// Sends a request's next command to the device; returns false if the request ended with an error instead.
    fn send(&mut self, now: Instant, pools: &mut Pools, id: SlotId) -> bool {
        if let Some(status) = self.fails_unsent(&pools.slots, id) {
            self.finish(now, pools, id, status, false);
            return false;
        }
        self.issue(now, pools, id);
        true
    }

    /// Gives the device a request's next command.
    #[inline(always)]
    fn issue(&mut self, now: Instant, pools: &mut Pools, id: SlotId) {
        self.in_flight.push(now, &mut pools.slots, id, self.options.queue_depth);
        let timer = timer_of(self.device, TimerKind::Timeout);
        if !pools.timers.is_set(timer) {
            pools.timers.set(timer, now.after(self.options.io_timeout_ns));
        }
        self.push_command(pools, id);
    }

    /// Returns why a command is not sent, if so: its bio failed with another piece, or a timed-out write could overtake it.
    fn fails_unsent(&self, slots: &Slots, id: SlotId) -> Option<Status> {
        let request = &slots[id];
        if request.parent != NIL && slots[request.parent].split.status.is_err() {
            return Some(slots[request.parent].split.status);
        }
        let behind = self.in_flight.overlaps_timed_out_write(slots, request);
        behind.then_some(Err(IoError::TimedOut))
    }

    /// Returns the operation, offset and length of a request's next command: all that is left of one with data, a step of a long one
    /// without.
    fn command(&self, request: &Request) -> (Op, u64, u32) {
        debug_assert!(request.done <= request.len, "no more is done than was asked for");
        let at = request.offset + u64::from(request.done);
        let left = request.len - request.done;
        let block = self.block_size(request);
        let granule = block.max(self.options.discard_granularity);
        let (op, most, block, grain) = match request.op {
            Op::WriteZeroes if request.is(Request::ZERO_AS_DATA) => {
                (Op::Write, self.limits.device().max_bytes, block, GRAIN)
            }
            Op::WriteZeroes => (Op::WriteZeroes, self.options.discard_max_bytes, block, GRAIN),
            Op::Discard => {
                (Op::Discard, self.options.discard_max_bytes, granule, granule.max(GRAIN))
            }
            op => return (op, at, left),
        };
        (op, at, cut(at, left, round_to_block(most, block), grain))
    }

    /// Adds a request's next command to the actions, with its segments.
    fn push_command(&self, pools: &mut Pools, id: SlotId) {
        let request = &pools.slots[id];
        let first_segment = pools.actions.segments.len();
        let (op, offset, len) = if request.op.has_data() {
            push_segments(request, &pools.bios, self.limits.device(), &mut pools.actions.segments);
            (request.op, request.offset + u64::from(request.done), request.len - request.done)
        } else {
            if request.op == Op::BlockStatus {
                // The list goes into the buffer of its one bio, whole.
                let bio = pools.bios[request.bios.head].bio.id;
                pools.actions.segments.push(Segment { bio, offset: 0, len: EXTENTS_BYTES });
            }
            self.command(request)
        };
        let segments = (pools.actions.segments.len() - first_segment) as u16;
        let fua = request.op == Op::Write && self.options.fua;
        let flags = if fua { request.flags } else { request.flags.without(BioFlags::FUA) };
        pools.actions.list.push(Action::Submit(Submit {
            id: RequestId { slot: id, generation: request.generation },
            device: self.device,
            volume: request.volume,
            op,
            flags,
            offset,
            len,
            first_segment: first_segment as u32,
            segments,
        }));
    }
}

/// Answers.
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

/// Flushes.
impl Queue {
    /// Takes a flush bio of a volume.
    pub fn flush(&mut self, now: Instant, pools: &mut Pools, slot: u32) {
        let bio = &pools.bios[slot].bio;
        assert!(bio.op == Op::Flush, "other bios go through the plug");
        let volume = self.volumes.of_bio(bio.id.volume);
        volume.stats.ops[Op::Flush as usize].bios += 1;
        if volume.flush.is_suspect() {
            answer(pools, slot, Err(IoError::Medium), false, ReplyStage::Final);
        } else if !self.options.write_cache {
            volume.flush.assume_flushed();
            answer(pools, slot, Ok(()), false, ReplyStage::Final);
        } else if !self.monitor.admits(now, self.options.io_timeout_ns) {
            answer(pools, slot, Err(IoError::TimedOut), false, ReplyStage::Final);
        } else {
            self.join_flush(now, pools, slot);
        }
    }

    /// Has flushes of a volume fail until the operator acknowledges it: data may be lost that no flush has told of.
    pub fn suspect(&mut self, volume: VolumeId) {
        if let Some(volume) = self.volumes.find_mut(volume) {
            volume.flush.suspect();
        }
    }

    /// Counts a write for every volume, which no flush has covered.
    pub fn assume_written(&mut self) {
        self.volumes.iter_mut().for_each(|volume| volume.flush.on_write_finished());
    }

    /// Lets flushes of a volume succeed again: the operator knows that one failed.
    pub fn acknowledge(&mut self, volume: VolumeId) {
        if let Some(volume) = self.volumes.find_mut(volume) {
            volume.flush.acknowledge();
        }
    }

    /// Makes a flush, or a FUA write whose data are done, wait for the device flush that may cover it.
    fn join_flush(&mut self, now: Instant, pools: &mut Pools, slot: u32) {
        let id = pools.bios[slot].bio.id.volume;
        let sequence = &mut self.volumes.of_bio(id).flush;
        if let Some(error) = sequence.refusal() {
            return answer(pools, slot, Err(error), false, ReplyStage::Final);
        }
        pools.begin_wait(now, slot);
        if sequence.join(&mut pools.bios, slot) {
            let request = pools.slots.try_take().expect("there is a slot for each volume's flush");
            pools.slots[request].begin(RequestStart::of_flush(now, id));
            sequence.start(request);
            self.send_flush(now, pools, id);
        }
    }

    /// Sends the device flush of a volume.
    fn send_flush(&mut self, now: Instant, pools: &mut Pools, id: VolumeId) {
        let request = self.volumes.of_bio(id).flush.cover();
        self.send(now, pools, request);
    }

    /// Takes the device's answer to a flush.
    fn on_flush_done(&mut self, now: Instant, pools: &mut Pools, id: SlotId, status: Status) {
        let (volume_id, stamps) = (pools.slots[id].volume, pools.slots[id].stamps);
        let volume = self.volumes.of_bio(volume_id);
        volume.stats.on_finish(Op::Flush, 0, &stamps, now);
        volume.stats.ops[Op::Flush as usize].errors += u64::from(status.is_err());
        let (told, is_news) = volume.flush.on_answer(&mut pools.bios, status);
        if is_news {
            let notice = Notice::Suspect { volume: volume_id, status };
            pools.actions.list.push(Action::Notice(notice));
        }
        self.charge_flush(pools, volume_id, now.since(stamps[3]));
        let sequence = &mut self.volumes.of_bio(volume_id).flush;
        sequence.answer_all(now, pools, told);
        if sequence.end(&mut pools.bios) {
            let first = self.volumes.of_bio(volume_id).flush.first();
            let first = first.expect("the next flush has a bio");
            pools.slots[id].stamps = [now; 4];
            pools.slots[id].waits_since = pools.waits_since(first);
            self.send_flush(now, pools, volume_id);
        } else {
            self.free(pools, id);
        }
    }

    /// Charges a device flush to the connections that it was for, in equal parts. The device worked on the commands in flight
    /// beside it, so it is charged for one part of its time in so many.
    fn charge_flush(&mut self, pools: &Pools, volume: VolumeId, took_ns: u64) {
        if self.gate.waiters() == 0 {
            return;
        }
        let head = self.volumes.of_bio(volume).flush.first();
        let all = || {
            std::iter::successors(head, |&slot| {
                Some(pools.bios[slot].next).filter(|&next| next != NIL)
            })
        };
        let bios = all().count() as u64;
        let time = took_ns / u64::from(self.in_flight.commands() + 1) / bios.max(1);
        for slot in all() {
            let bio = pools.bios[slot].bio.id;
            self.gate.charge_time(bio.export, bio.connection, time);
        }
    }
}

/// Adds the memory of what is left of a request, in order.
fn push_segments(
    request: &Request,
    bios: &Bios,
    limits: &RequestLimits,
    segments: &mut Vec<Segment>,
) {
    let (mut slot, mut skip, mut left) =
        (request.bios.head, request.done, request.len - request.done);
    debug_assert!(left > 0, "a command with data has a length");
    if request.bios.count <= 1 && left <= limits.max_segment_size {
        let bio = bios[slot].bio.id;
        return segments.push(Segment { bio, offset: request.piece_offset + skip, len: left });
    }
    while left > 0 {
        let bio = &bios[slot].bio;
        let whole = if request.parent == NIL { bio.len } else { request.len };
        if skip >= whole {
            skip -= whole;
            slot = bios[slot].next;
            continue;
        }
        let len = left.min(whole - skip).min(limits.max_segment_size);
        segments.push(Segment { bio: bio.id, offset: request.piece_offset + skip, len });
        skip += len;
        left -= len;
    }
}
