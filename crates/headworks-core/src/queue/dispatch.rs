//! From the elevator to the device: as many commands as it takes at that moment, each with the memory it needs.
//!
//! What was refused goes first, in the order in which it left the elevator. A request's next command starts at what is `done`
//! of it: so short transfers are continued, and long discards and zeroing go in steps. Invariants: `in_flight <= queue_depth`
//! (a flush of each volume beside it); what is sent is not in the merge index any longer.

use super::{Pools, Queue, TimerKind, timer_of};
use crate::action::{Action, Segment, Submit};
use crate::bio::{BioFlags, Op};
use crate::elevator::Batch;
use crate::error::{IoError, Status};
use crate::extent::EXTENTS_BYTES;
use crate::input::RequestId;
use crate::merge::{self, Limits};
use crate::request::{Bios, Request, SlotId, Slots, State};
use crate::slab::NIL;
use crate::time::Instant;

impl Queue {
    /// Gives the device as much as it takes; how many failed on the way.
    pub(super) fn dispatch(&mut self, now: Instant, pools: &mut Pools) -> u32 {
        if self.busy || self.queued == 0 {
            return 0;
        }
        let mut batch = std::mem::replace(&mut self.batch, Batch::with_capacity(0));
        batch.reset((self.options.queue_depth - self.in_flight) as usize);
        while batch.room() > 0
            && let Some(id) = self.requeue.pop_front(&mut pools.slots)
        {
            pools.slots[id].marks &= !Request::REQUEUED;
            if pools.slots[id].is(Request::FLUSH) {
                self.renew_flush(pools, id);
            }
            batch.push(id);
        }
        if batch.room() > 0 {
            self.elevator.dispatch(now, &mut pools.slots, &mut batch);
        }
        self.queued -= batch.ids().len() as u32;
        let mut failed = 0;
        for &id in batch.ids() {
            assert!(pools.slots[id].state == State::Queued, "an elevator gives each request once");
            self.index.remove(&mut pools.slots, id);
            pools.slots[id].stamps[3] = now;
            pools.slots[id].departure = self.departures;
            self.departures = self.departures.wrapping_add(1);
            self.count_issued(&pools.slots[id]);
            failed += u32::from(!self.send(now, pools, id));
        }
        self.batch = batch;
        failed
    }

    /// Counts what leaves for the device, and whether it goes on where the last one ended.
    fn count_issued(&mut self, request: &Request) {
        if request.op.has_data() {
            self.stats.issued += 1;
            self.stats.sequential += u64::from(self.last_end == (request.volume, request.offset));
            self.last_end = (request.volume, request.end());
        }
    }

    /// Sends a request's next command to the device; false if it failed instead.
    pub(super) fn send(&mut self, now: Instant, pools: &mut Pools, id: SlotId) -> bool {
        if let Some(status) = self.fails_unsent(&pools.slots, id) {
            self.finish(now, pools, id, status, false);
            return false;
        }
        let request = &mut pools.slots[id];
        debug_assert!(!request.is(Request::INDEXED), "nothing merges with what is in the device");
        request.state = State::InFlight;
        request.sent = now;
        request.generation = request.generation.wrapping_add(1);
        self.in_flight += u32::from(!request.is(Request::FLUSH));
        self.flight.push_back(&mut pools.slots, id);
        let timer = timer_of(self.device, TimerKind::Timeout);
        if !pools.timers.is_set(timer) {
            pools.timers.set(timer, now.after(self.options.io_timeout_ns));
        }
        self.push_command(pools, id);
        true
    }

    /// Why a command is not sent any more, if so: its bio has failed by another piece, or a late write is in the way.
    pub(super) fn fails_unsent(&self, slots: &Slots, id: SlotId) -> Option<Status> {
        let parent = slots[id].parent;
        if parent != NIL && slots[parent].status.is_err() {
            return Some(slots[parent].status);
        }
        let behind = self.zombies > 0 && self.is_behind_zombie(slots, id);
        behind.then_some(Err(IoError::TimedOut))
    }

    /// What the request asks of the device next.
    pub(super) fn command(&self, request: &Request) -> (Op, u64, u32) {
        let at = request.offset + u64::from(request.done);
        let left = request.len - request.done;
        match request.op {
            Op::WriteZeroes if request.is(Request::ZERO_AS_DATA) => (
                Op::Write,
                at,
                left.min(merge::step(self.limits.max_bytes, self.block_size(request))),
            ),
            Op::Discard => {
                let granule = self.block_size(request).max(self.options.discard_granularity);
                let step = merge::step(self.options.discard_max_bytes, granule);
                (request.op, at, left.min(step))
            }
            Op::WriteZeroes => {
                let step = merge::step(self.options.discard_max_bytes, self.block_size(request));
                (request.op, at, left.min(step))
            }
            op => (op, at, left),
        }
    }

    pub(super) fn push_command(&self, pools: &mut Pools, id: SlotId) {
        let request = &pools.slots[id];
        let (op, offset, len) = self.command(request);
        let first_segment = pools.actions.segments.len();
        if request.op.has_data() {
            push_segments(request, &pools.bios, &self.limits, &mut pools.actions.segments);
        } else if request.op == Op::BlockStatus {
            // The list goes into the buffer of its one bio, whole.
            let bio = pools.bios[request.bio_head].bio.id;
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

/// Names the memory of what is left of a request, in order.
fn push_segments(request: &Request, bios: &Bios, limits: &Limits, segments: &mut Vec<Segment>) {
    let (mut slot, mut skip, mut left) =
        (request.bio_head, request.done, request.len - request.done);
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
