//! Bios over the limits: they are split into pieces, which are requests of their own.
//!
//! Pieces are made as tags come: with `fair` all at once, and each finished piece hands its tag to the next; with a policy that
//! grants tag by tag, one for each grant.
//!
//! Invariants: `pieces` of a split request counts its pieces that have not ended; `done` is the sum of their lengths and of those
//! that have; it ends when no piece is out and no tag is owed to it.

use super::Queue;
use crate::error::Status;
use crate::pools::Pools;
use crate::request::{Request, RequestStart, RequestState, SlotId};
use crate::slab::NIL;
use crate::time::Instant;

impl Queue {
    /// Makes a piece of a split request for each of `tags` granted tags.
    pub(super) fn spawn_pieces(&mut self, now: Instant, pools: &mut Pools, id: SlotId, tags: u16) {
        let split = &mut pools.slots[id];
        assert!(split.state == RequestState::Split, "only a split request has pieces");
        split.tags.owed = split.tags.owed.saturating_sub(tags);
        for _ in 0..tags {
            self.spawn_piece(pools, id, 0);
        }
        self.end_split(now, pools, id);
    }

    /// Makes the next piece of a split request, with `marks`, which uses one of its tags; without a next piece the tag is returned.
    fn spawn_piece(&mut self, pools: &mut Pools, parent: SlotId, marks: u16) {
        let from = &pools.slots[parent];
        assert!(from.parent == NIL, "a piece is not split again");
        if from.done == from.len {
            if !from.is(Request::LEASED) {
                self.gate.return_tag(from.is_sync());
            }
            return;
        }
        let len = (from.len - from.done).min(self.limits.current().piece(self.block_size(from)));
        let segments = self.limits.device().segments(len);
        let id = pools.slots.try_take().expect("there are slots for every bio and every tag");
        let piece = RequestStart::of_piece(&pools.slots[parent], parent, len, segments);
        let from = &mut pools.slots[parent];
        from.done += len;
        from.split.pieces += 1;
        assert!(from.done <= from.len, "pieces lie within their bio");
        let whole = from.len;
        pools.slots[id].begin(piece);
        pools.slots[id].marks |= marks;
        self.gate.charge(&mut pools.slots[id], whole);
        self.ready.push(id);
    }

    /// Ends a piece; its tag goes to the next piece or is returned.
    pub(super) fn finish_piece(
        &mut self,
        now: Instant,
        pools: &mut Pools,
        id: SlotId,
        status: Status,
    ) {
        if pools.slots[id].state == RequestState::InFlight {
            // The bio waited for what its last piece waited for, from when the bio came.
            let slot = pools.slots[id].bios.head;
            pools.bios[slot].wait_times = self.account(now, pools, id, status);
        }
        let parent = pools.slots[id].parent;
        pools.slots[id].state = RequestState::Free;
        self.release(&mut pools.slots[id]);
        pools.slots.put(id);
        let split = &mut pools.slots[parent];
        assert!(
            split.state == RequestState::Split && split.split.pieces > 0,
            "a piece has a split request"
        );
        split.split.pieces -= 1;
        if status.is_ok() {
            split.waits_since = now;
        } else {
            split.split.status = split.split.status.and(status);
            // The bio fails, so the rest is not sent.
            split.done = split.len;
        }
        let split = &pools.slots[parent];
        // With no tag owed, there are as many tags as were requested: a bio with more pieces goes on with those.
        if self.gate.reuses_tags() || split.is(Request::LEASED) || split.tags.owed == 0 {
            self.spawn_piece(pools, parent, Request::CONTINUES);
        } else {
            self.gate.return_tag(pools.slots[parent].is_sync());
        }
        self.end_split(now, pools, parent);
    }

    /// Answers a split bio when its last piece has ended and no tag is owed to it.
    fn end_split(&mut self, now: Instant, pools: &mut Pools, parent: SlotId) {
        let split = &mut pools.slots[parent];
        if split.split.pieces > 0 || split.tags.owed > 0 {
            return;
        }
        assert!(split.done == split.len, "a split bio ends when all of it went into pieces");
        let (slot, status) = (split.bios.head, split.split.status);
        split.state = RequestState::Free;
        self.gate.leave(split);
        pools.slots.put(parent);
        self.finish_bio(now, pools, slot, status, false);
    }
}
