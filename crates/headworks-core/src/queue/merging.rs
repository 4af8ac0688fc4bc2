//! Merging with waiting requests: at the gate, in the elevator and in the requeue list.
//!
//! Waiting requests are in the merge index; a request from the plug that finds a neighbour there becomes part of it and needs no
//! tag. A request that grew may touch the next one: then those two become one, if the other has its tag already (a tag request
//! cannot be withdrawn).
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
            && !self.must_split(request)
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
        let Some((kept, edge)) = self.find_neighbour(pools, id, fronts) else {
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
            let edge = if edge == MergeEdge::Back { MergeEdge::Front } else { MergeEdge::Back };
            self.join_waiting(pools, kept, gone, edge);
        }
        self.index.insert(&mut pools.slots, kept);
        true
    }

    /// Returns true if bios that came at `came` may join a request that waits, see [`merge::share_a_limit`].
    fn has_time_for(&self, waiting: &Request, came: Instant) -> bool {
        merge::share_a_limit(waiting.waits_since, came, self.options.io_timeout_ns)
    }

    /// Moves the bios of `gone`, which came from the plug, to `kept`, and takes `kept` out of the index.
    fn absorb(&mut self, pools: &mut Pools, kept: SlotId, gone: SlotId, edge: MergeEdge) {
        debug_assert!(pools.slots[gone].state == RequestState::Plugged, "it came from the plug");
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

    /// Moves the bios of `gone`, which is in the elevator, to `kept`, which is out of the index.
    fn join_waiting(&mut self, pools: &mut Pools, kept: SlotId, gone: SlotId, edge: MergeEdge) {
        debug_assert!(!pools.slots[kept].is(Request::INDEXED), "its range changes");
        self.index.remove(&mut pools.slots, gone);
        merge::join_requests(&mut pools.slots, &mut pools.bios, kept, gone, edge);
        self.waiting.on_merge(&mut pools.slots, kept, Some(gone), edge);
        self.count_merged(pools, gone);
        if pools.slots[kept].state == RequestState::Queued {
            // What is bulk may have changed between the two.
            let bytes = pools.slots[gone].charged;
            self.gate.uncharge(&mut pools.slots[gone]);
            self.gate.charge_merge(&mut pools.slots[kept], bytes);
        }
        self.free(pools, gone);
    }

    /// Returns true when `gone` may leave the list that it waits in. A request that waits for tags may not: its tag request cannot be
    /// withdrawn. One that has a deadline is not merged into such a request: there it would have none.
    fn may_join(&self, pools: &Pools, kept: SlotId, gone: SlotId) -> bool {
        let (kept, gone) = (&pools.slots[kept], &pools.slots[gone]);
        let keeps_deadline =
            self.options.scheduler == Scheduler::None || kept.state == RequestState::Queued;
        gone.state == RequestState::Queued && !gone.is(Request::REQUEUED) && keeps_deadline
    }

    /// Returns a waiting request that ends where this one starts, or (with `fronts`) starts where it ends.
    fn find_neighbour(
        &self,
        pools: &Pools,
        id: SlotId,
        fronts: bool,
    ) -> Option<(SlotId, MergeEdge)> {
        self.index.find(&pools.slots, &pools.slots[id], &self.command_limits, fronts)
    }

    /// Counts a request that was merged away. All its bios but the first were counted when they joined it.
    fn count_merged(&mut self, pools: &Pools, gone: SlotId) {
        let (op, volume) = (pools.slots[gone].op, pools.slots[gone].volume);
        self.volumes.of_bio(volume).stats.ops[op as usize].merges += 1;
        self.counters.count_merge();
    }
}
