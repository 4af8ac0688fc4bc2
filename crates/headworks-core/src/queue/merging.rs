//! Merging with what waits: in the line for tags, in the elevator, in the requeue list.
//!
//! What waits is in the merge index; a request from the plug that finds a neighbour there becomes part of it and needs no tag.
//! A request that grew may touch the next one: then those two become one, if the other has its tag already (a ticket in the
//! line cannot be returned).

use super::{Pools, Queue};
use crate::elevator::MergeEdge;
use crate::merge;
use crate::options::{NoMerges, Scheduler};
use crate::request::{Request, SlotId, State};

impl Queue {
    pub(super) fn make_findable(&mut self, pools: &mut Pools, id: SlotId) {
        let request = &pools.slots[id];
        if self.options.nomerges == NoMerges::MergeAll
            && request.may_merge()
            && !request.is(Request::INDEXED)
            && !self.must_split(request)
        {
            self.index.insert(&mut pools.slots, id);
        }
    }

    /// Puts the request into one that waits, if one may take it; true if it is gone.
    pub(super) fn try_merge(&mut self, pools: &mut Pools, id: SlotId) -> bool {
        if self.index.is_empty() || !pools.slots[id].may_merge() {
            return false;
        }
        let options = &self.options;
        let fronts = options.scheduler == Scheduler::None || options.deadline.front_merges;
        let Some((kept, edge)) = self.find_neighbour(pools, id, fronts) else {
            return false;
        };
        self.absorb(pools, kept, id, edge);
        // The grown request may touch the next one now.
        let found = self.find_neighbour(pools, kept, true);
        if let Some((gone, edge)) = found.filter(|&(gone, _)| self.may_join(pools, kept, gone)) {
            let edge = if edge == MergeEdge::Back { MergeEdge::Front } else { MergeEdge::Back };
            self.index.remove(&mut pools.slots, gone);
            merge::join_requests(&mut pools.slots, &mut pools.bios, kept, gone, edge);
            self.elevator.on_merge(&mut pools.slots, kept, Some(gone), edge);
            self.queued -= 1;
            self.count_merged(pools, gone);
            if pools.slots[kept].state == State::Queued {
                pools.slots[kept].charged += std::mem::take(&mut pools.slots[gone].charged);
            }
            self.free(pools, gone);
        }
        self.index.insert(&mut pools.slots, kept);
        true
    }

    /// `kept` takes the bios of `gone`, which came from the plug; leaves `kept` out of the index.
    pub(super) fn absorb(
        &mut self,
        pools: &mut Pools,
        kept: SlotId,
        gone: SlotId,
        edge: MergeEdge,
    ) {
        self.index.remove(&mut pools.slots, kept);
        self.count_merged(pools, gone);
        merge::join_requests(&mut pools.slots, &mut pools.bios, kept, gone, edge);
        if pools.slots[kept].state == State::Queued {
            self.charge(pools, kept, pools.slots[gone].len);
            if !pools.slots[kept].is(Request::REQUEUED) {
                self.elevator.on_merge(&mut pools.slots, kept, None, edge);
            }
        }
        pools.slots[gone].state = State::Free;
        pools.slots.put(gone);
    }

    /// Whether `gone` may leave what it waits in. One in the line for tags stays there: its ticket cannot be returned. One that
    /// has a deadline is not put back into that line: there it would have none.
    fn may_join(&self, pools: &Pools, kept: SlotId, gone: SlotId) -> bool {
        let (kept, gone) = (&pools.slots[kept], &pools.slots[gone]);
        let keeps_deadline =
            self.options.scheduler == Scheduler::None || kept.state == State::Queued;
        gone.state == State::Queued && !gone.is(Request::REQUEUED) && keeps_deadline
    }

    /// A request that waits beside this one; `fronts`: one that starts where it ends, too.
    fn find_neighbour(
        &self,
        pools: &Pools,
        id: SlotId,
        fronts: bool,
    ) -> Option<(SlotId, MergeEdge)> {
        self.index.find(&pools.slots, &pools.slots[id], &self.limits, fronts)
    }

    /// One request less. Its bios but the first were counted when they joined it.
    pub(super) fn count_merged(&mut self, pools: &Pools, gone: SlotId) {
        let (op, volume) = (pools.slots[gone].op, pools.slots[gone].volume);
        self.volume_mut(volume.0).stats.ops[op as usize].merges += 1;
        self.stats.merges += 1;
    }
}
