//! From the elevator to the device: as many commands as it takes now, each with the memory it needs.
//!
//! Refused requests go first, in the order in which they left the elevator. A request's next command starts at what is `done` of
//! it: so short transfers are continued, and long discards and zeroing go in steps. Invariants: `in_flight <= queue_depth` (a
//! flush of each volume beside it); a command in flight is not in the merge index.

use super::{Queue, TimerKind, timer_of};
use crate::action::{Action, Segment, Submit};
use crate::bio::{BioFlags, Op};
use crate::error::{IoError, Status};
use crate::extent::EXTENTS_BYTES;
use crate::input::RequestId;
use crate::pools::Pools;
use crate::request::{Bios, Request, SlotId, Slots};
use crate::request_limits::{RequestLimits, round_to_block};
use crate::slab::NIL;
use crate::time::Instant;

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
    pub(super) fn send(&mut self, now: Instant, pools: &mut Pools, id: SlotId) -> bool {
        if let Some(status) = self.fails_unsent(&pools.slots, id) {
            self.finish(now, pools, id, status, false);
            return false;
        }
        self.issue(now, pools, id);
        true
    }

    /// Gives the device a request's next command.
    #[inline(always)]
    pub(super) fn issue(&mut self, now: Instant, pools: &mut Pools, id: SlotId) {
        self.in_flight.push(now, &mut pools.slots, id, self.options.queue_depth);
        let timer = timer_of(self.device, TimerKind::Timeout);
        if !pools.timers.is_set(timer) {
            pools.timers.set(timer, now.after(self.options.io_timeout_ns));
        }
        self.push_command(pools, id);
    }

    /// Returns why a command is not sent, if so: its bio failed with another piece, or a timed-out write could overtake it.
    pub(super) fn fails_unsent(&self, slots: &Slots, id: SlotId) -> Option<Status> {
        let request = &slots[id];
        if request.parent != NIL && slots[request.parent].split.status.is_err() {
            return Some(slots[request.parent].split.status);
        }
        let behind = self.in_flight.overlaps_timed_out_write(slots, request);
        behind.then_some(Err(IoError::TimedOut))
    }

    /// Returns the operation, offset and length of a request's next command.
    pub(super) fn command(&self, request: &Request) -> (Op, u64, u32) {
        debug_assert!(request.done <= request.len, "no more is done than was asked for");
        let at = request.offset + u64::from(request.done);
        let left = request.len - request.done;
        match request.op {
            Op::WriteZeroes if request.is(Request::ZERO_AS_DATA) => {
                let step = round_to_block(self.limits.device().max_bytes, self.block_size(request));
                (Op::Write, at, left.min(step))
            }
            Op::Discard => {
                let granule = self.block_size(request).max(self.options.discard_granularity);
                let step = round_to_block(self.options.discard_max_bytes, granule);
                (request.op, at, left.min(step))
            }
            Op::WriteZeroes => {
                let step = round_to_block(self.options.discard_max_bytes, self.block_size(request));
                (request.op, at, left.min(step))
            }
            op => (op, at, left),
        }
    }

    /// Adds a request's next command to the actions, with its segments.
    fn push_command(&self, pools: &mut Pools, id: SlotId) {
        let request = &pools.slots[id];
        let (op, offset, len) = self.command(request);
        let first_segment = pools.actions.segments.len();
        if request.op.has_data() {
            push_segments(request, &pools.bios, self.limits.device(), &mut pools.actions.segments);
        } else if request.op == Op::BlockStatus {
            // The list goes into the buffer of its one bio, whole.
            let bio = pools.bios[request.bios.head].bio.id;
            pools.actions.segments.push(Segment { bio, offset: 0, len: EXTENTS_BYTES });
        }
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
