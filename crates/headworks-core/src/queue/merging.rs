//! Merging with waiting requests: at the gate, in the elevator and in the requeue list.
//!
//! Waiting requests are in the merge index; a request from the plug that finds a neighbour there becomes part of it and needs no
//! tag. A request that grew may touch the next one: then those two become one. A waiter for a tag that joins another request is
//! withdrawn from the gate, if it is found there soon: the older of two waiters stays, so no bio loses its place.
//!
//! Invariant: every waiting request that may merge is in the index, unless it was just taken out to grow.

use super::Queue;
use crate::elevator::MergeEdge;
use crate::merge;
use crate::options::{NoMerges, Scheduler};
use crate::pools::Pools;
use crate::request::{Request, RequestState, SlotId};
use crate::time::Instant;

impl Queue {
    /// Puts a waiting request into the merge index, if it may merge.
    pub(super) fn make_findable(&mut self, pools: &mut Pools, id: SlotId) {
        let request = &pools.slots[id];
        debug_assert!(
            matches!(request.state, RequestState::Waiting | RequestState::Queued),
            "only waiting requests merge"
        );
        if self.options.nomerges == NoMerges::MergeAll
            && request.may_merge()
            && !request.is(Request::INDEXED)
            && !self.limits.must_split(request)
        {
            self.index.insert(&mut pools.slots, id);
        }
    }

    /// Merges a request from the plug into a waiting one, if one may take it; returns true if it did.
    pub(super) fn try_merge(&mut self, pools: &mut Pools, id: SlotId) -> bool {
        if self.index.is_empty() || !pools.slots[id].may_merge() {
            return false;
        }
        let options = &self.options;
        let fronts = options.scheduler != Scheduler::MqDeadline || options.deadline.front_merges;
        let Some((mut kept, edge)) = self.find_neighbour(pools, id, fronts) else {
            return false;
        };
        let came = pools.slots[id].waits_since;
        if !self.has_time_for(&pools.slots[kept], came) {
            return false;
        }
        self.absorb(pools, kept, id, edge);
        // The grown request may touch the next one now.
        let found = self.find_neighbour(pools, kept, true);
        let joins =
            |gone| self.may_join(pools, kept, gone) && self.has_time_for(&pools.slots[gone], came);
        if let Some((gone, edge)) = found.filter(|&(gone, _)| joins(gone)) {
            kept = self.join(pools, kept, gone, edge);
        }
        self.index.insert(&mut pools.slots, kept);
        true
    }

    /// Returns true if bios that came at `came` may join a request that waits, see [`merge::share_a_limit`].
    fn has_time_for(&self, waiting: &Request, came: Instant) -> bool {
        merge::share_a_limit(waiting.waits_since, came, self.options.io_timeout_ns)
    }

    /// Moves the bios of `gone`, which came from the plug or was withdrawn from the gate, to `kept`, and takes `kept` out of the index.
    fn absorb(&mut self, pools: &mut Pools, kept: SlotId, gone: SlotId, edge: MergeEdge) {
        debug_assert!(
            matches!(pools.slots[gone].state, RequestState::Plugged | RequestState::Waiting),
            "it has no tag"
        );
        self.index.remove(&mut pools.slots, kept);
        self.count_merged(pools, gone);
        merge::join_requests(&mut pools.slots, &mut pools.bios, kept, gone, edge);
        if pools.slots[kept].state == RequestState::Queued {
            let bytes = pools.slots[gone].len;
            self.gate.charge_merge(&mut pools.slots[kept], bytes);
            if !pools.slots[kept].is(Request::REQUEUED) {
                self.waiting.on_merge(&mut pools.slots, kept, None, edge);
            }
        }
        pools.slots[gone].state = RequestState::Free;
        pools.slots.put(gone);
    }

    /// Joins `kept`, which is out of the index, with `other`, which it touches at the `edge` of `other`. Returns the one that is left,
    /// out of the index; `kept` if `other` waits for a tag and goes on waiting.
    fn join(&mut self, pools: &mut Pools, kept: SlotId, other: SlotId, edge: MergeEdge) -> SlotId {
        debug_assert!(!pools.slots[kept].is(Request::INDEXED), "its range changes");
        let opposite = if edge == MergeEdge::Back { MergeEdge::Front } else { MergeEdge::Back };
        let waits = |id: SlotId| pools.slots[id].state == RequestState::Waiting;
        if !waits(other) {
            self.join_waiting(pools, kept, other, opposite);
            return kept;
        }
        let is_older = waits(kept) && pools.slots[other].stamps[1] < pools.slots[kept].stamps[1];
        let (left, gone, edge) =
            if is_older { (other, kept, edge) } else { (kept, other, opposite) };
        if !self.gate.withdraw_merged(gone, &pools.slots[gone]) {
            return kept;
        }
        self.gate.end_wait(&pools.slots[gone]);
        self.gate.leave(&pools.slots[gone]);
        self.index.remove(&mut pools.slots, gone);
        self.absorb(pools, left, gone, edge);
        left
    }

    /// Moves the bios of `gone`, which is in the elevator, to `kept`, which is out of the index.
    fn join_waiting(&mut self, pools: &mut Pools, kept: SlotId, gone: SlotId, edge: MergeEdge) {
        debug_assert!(!pools.slots[kept].is(Request::INDEXED), "its range changes");
        self.index.remove(&mut pools.slots, gone);
        merge::join_requests(&mut pools.slots, &mut pools.bios, kept, gone, edge);
        self.waiting.on_merge(&mut pools.slots, kept, Some(gone), edge);
        self.count_merged(pools, gone);
        if pools.slots[kept].state == RequestState::Queued {
            // What is bulk may have changed between the two.
            let bytes = pools.slots[gone].charge.bytes;
            self.gate.uncharge(&mut pools.slots[gone]);
            self.gate.charge_merge(&mut pools.slots[kept], bytes);
        }
        self.free(pools, gone);
    }

    /// Returns true when `gone` may leave the list that it waits in. One that has a deadline is not merged into a request that waits
    /// for a tag: there it would have none.
    fn may_join(&self, pools: &Pools, kept: SlotId, gone: SlotId) -> bool {
        let (kept, gone) = (&pools.slots[kept], &pools.slots[gone]);
        let keeps_deadline =
            self.options.scheduler == Scheduler::None || kept.state == RequestState::Queued;
        match gone.state {
            RequestState::Waiting => true,
            _ => !gone.is(Request::REQUEUED) && keeps_deadline,
        }
    }

    /// Returns a waiting request that ends where this one starts, or (with `fronts`) starts where it ends.
    fn find_neighbour(
        &self,
        pools: &Pools,
        id: SlotId,
        fronts: bool,
    ) -> Option<(SlotId, MergeEdge)> {
        self.index.find(&pools.slots, &pools.slots[id], self.limits.current(), fronts)
    }

    /// Counts a request that was merged away. All its bios but the first were counted when they joined it.
    fn count_merged(&mut self, pools: &Pools, gone: SlotId) {
        let (op, volume) = (pools.slots[gone].op, pools.slots[gone].volume);
        self.volumes.of_bio(volume).stats.ops[op as usize].merges += 1;
        self.counters.count_merge();
    }
}
