//! The way of a request from the plug to the elevator: it merges with a waiting request, or gets its tags, and is split into pieces
//! if it is over the limits.
//!
//! *Admission.* A request needs one tag; a request over the limits, as many as its pieces may use at once. An admitted request is
//! `ready`: it enters the elevator when the batch ends.
//!
//! *Merging.* Waiting requests (at the gate, in the elevator and in the requeue list) are in the merge index; a request from the plug
//! that finds a neighbour there becomes part of it and needs no tag. A request that grew may touch the next one: then those two become
//! one. A waiter for a tag that joins another request is withdrawn from the gate, if it is found there soon: the older of two waiters
//! stays, so no bio loses its place.
//!
//! *Splitting.* The pieces of a bio are requests of their own. They are made as tags come: with `fair` all at once, and each finished
//! piece hands its tag to the next; with a policy that grants tag by tag, one for each grant.
//!
//! Invariants: every waiting request that may merge is in the index, unless it was just taken out to grow; `pieces` of a split request
//! counts its pieces that have not ended; `done` is the sum of their lengths and of those that have; it ends when no piece is out and no
//! tag is owed to it.

use super::Queue;
use super::gate::cost_bytes;
use super::leases::LeaseRequest;
use crate::action::Action;
use crate::bio::ShardId;
use crate::device_cost::CommandKind;
use crate::elevator::MergeEdge;
use crate::error::Status;
use crate::input::Message;
use crate::merge;
use crate::options::{NoMerges, Scheduler};
use crate::pools::Pools;
use crate::request::{Request, RequestStart, RequestState, SlotId};
use crate::slab::NIL;
use crate::tags::{Grant, Requester, TagRequest};
use crate::time::Instant;
use crate::wait_times::WaitTimes;

/// A request that waited less than this part of a time-out elsewhere sets no timer: it fails so much later.
const WAITED_PART: u64 = 128;

impl Queue {
    /// Takes requests from the plug, in order: they merge with waiting requests, are admitted, or wait for tags.
    pub fn submit(&mut self, now: Instant, pools: &mut Pools, ids: &[SlotId]) {
        self.gate.begin_submission();
        let contended = self.gate.is_contended();
        let waited_before = now.0.saturating_sub(self.options.io_timeout_ns / WAITED_PART);
        for &id in ids {
            let request = &mut pools.slots[id];
            debug_assert!(
                request.state == RequestState::Plugged,
                "the plug holds plugged requests"
            );
            request.stamps[1] = now;
            let waited = request.waits_since.0 < waited_before;
            if !self.monitor.admits(now, self.options.io_timeout_ns) {
                self.refuse(pools, id, WaitTimes::NONE);
                continue;
            }
            if waited {
                // In a cache, or on another shard: the timer for what waits here may be too late.
                self.limit_wait(pools, id);
            }
            if self.refuse_overlap(pools, id) || self.try_merge(pools, id) {
                continue;
            }
            match pools.slots[id].tags.leased {
                0 => {
                    let request = self.tag_request_of(pools, id, contended);
                    self.limits.note_large(now, request.bytes);
                    self.gate.add(request);
                    self.gate.enter(&mut pools.slots[id]);
                }
                leased => {
                    let request = &pools.slots[id];
                    self.limits.note_large(now, cost_bytes(request.op, request.len));
                    self.admit(now, pools, id, leased);
                }
            }
        }
        let mut granted = self.gate.grant_at_once();
        if self.gate.submitted(granted).is_some() {
            self.price(pools, granted);
            granted += self.gate.submit_from(now, granted);
        }
        let mut index = 0;
        while let Some((id, tags)) = self.gate.submitted(index) {
            if index < granted {
                self.admit(now, pools, id, tags);
            } else {
                pools.slots[id].state = RequestState::Waiting;
                self.gate.begin_wait(&pools.slots[id]);
                self.make_findable(pools, id);
            }
            index += 1;
        }
    }

    /// Sets the costs of the requests of the submission from the `first` on: they may have to wait.
    fn price(&mut self, pools: &Pools, first: usize) {
        let mut index = first;
        while let Some((id, _)) = self.gate.submitted(index) {
            let request = &pools.slots[id];
            let (commands, bytes) =
                (self.commands_of(request), cost_bytes(request.op, request.len));
            self.gate.set_cost(index, self.gate.cost(kind_of(request), commands, bytes));
            index += 1;
        }
    }

    /// Hands returned tags to the waiting requests and shards.
    pub(super) fn grant(&mut self, now: Instant, pools: &mut Pools) {
        while let Some(Grant { requester, tags, light, .. }) = self.gate.next_grant(now) {
            match requester {
                Requester::Request(id) => {
                    self.index.remove(&mut pools.slots, id);
                    let request = &pools.slots[id];
                    let (kind, bytes) = (kind_of(request), cost_bytes(request.op, request.len));
                    if request.state == RequestState::Waiting {
                        self.gate.end_wait(request);
                    }
                    self.gate.correct_charge(kind, self.commands_of(request), bytes, light);
                    if self.gate.is_express(request, light) {
                        pools.slots[id].marks |= Request::EXPRESS;
                    }
                    self.admit(now, pools, id, tags);
                }
                Requester::Shard(shard) => self.send_grant(pools, shard, tags),
            }
        }
    }

    /// Returns the tag request of a request, and notes how many tags it is owed. With contention it is noted whether it continues
    /// the one before it; otherwise no cost counts.
    fn tag_request_of(&mut self, pools: &mut Pools, id: SlotId, contended: bool) -> TagRequest {
        let request = &pools.slots[id];
        let mut tags = 1;
        if self.limits.must_split(request) {
            let piece = self.limits.current().piece(self.block_size(request));
            tags = self.gate.tags_for(request.len.div_ceil(piece), piece);
        }
        let (bytes, sync) = (cost_bytes(request.op, request.len), request.is_sync());
        let (connection, export) = (request.connection, request.export);
        if contended {
            let bio = pools.bios[request.bios.head].bio.id;
            if self.gate.note_stream(&bio, request.offset, request.len) {
                pools.slots[id].marks |= Request::SEQUENTIAL;
            }
        }
        pools.slots[id].tags.owed = tags;
        let requester = Requester::Request(id);
        TagRequest { tags, bytes, sync, connection, export, ..TagRequest::of(requester) }
    }

    /// Returns the number of commands that a request costs: those that the device's limits ask for. Commands that the depth
    /// control cuts smaller are its choice and cost the request nothing.
    fn commands_of(&self, request: &Request) -> u32 {
        match request.op.has_data() && request.len > self.limits.device().max_bytes {
            true => request.len.div_ceil(self.limits.device().piece(self.block_size(request))),
            false => 1,
        }
    }

    /// Admits a request that was granted `tags` tags, or some of the tags that it is owed.
    #[inline(always)]
    pub(super) fn admit(&mut self, now: Instant, pools: &mut Pools, id: SlotId, tags: u16) {
        debug_assert!(tags > 0, "a request is admitted with tags");
        let request = &mut pools.slots[id];
        debug_assert!(!request.is(Request::INDEXED), "an admitted request is ready, not waiting");
        if request.state != RequestState::Split {
            request.stamps[2] = now;
            // One that is owed several tags returns them as pieces, though it may fit into a command by now.
            let several = !request.is(Request::LEASED) && tags.max(request.tags.owed) > 1;
            if !several && !self.limits.must_split(request) {
                request.state = RequestState::Queued;
                self.gate.charge(request, request.len);
                self.ready.push(id);
                return;
            }
            request.state = RequestState::Split;
        }
        self.spawn_pieces(now, pools, id, tags);
    }

    /// Takes another shard's request for an extension of its lease.
    pub fn on_lease_request(
        &mut self,
        now: Instant,
        pools: &mut Pools,
        from: ShardId,
        request: LeaseRequest,
    ) {
        if self.is_draining() {
            return self.switch.hold_lease_request(from, request);
        }
        if let Some(tags) = self.gate.request_lease(now, from, request) {
            self.send_grant(pools, from, tags);
        }
    }

    /// Takes tags back that another shard returns.
    pub fn on_tag_return(&mut self, from: ShardId, tags: u16) {
        self.gate.return_lease(from, tags);
    }

    /// Sends granted tags to another shard.
    fn send_grant(&self, pools: &mut Pools, to: ShardId, count: u16) {
        debug_assert!(to != self.owner, "a shard has no lease of its own device");
        let cost = *self.gate.device_cost();
        let message = Message::TagGrant { device: self.device, count, cost };
        pools.actions.list.push(Action::Send { to, message });
    }

    /// Asks every other shard once to return its tags: requests wait here.
    pub(super) fn revoke_leases(&mut self, pools: &mut Pools) {
        while let Some(to) = self.gate.revoke_next() {
            let message = Message::TagRevoke { device: self.device };
            pools.actions.list.push(Action::Send { to, message });
        }
    }
}

/// Merging with waiting requests.
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
    fn try_merge(&mut self, pools: &mut Pools, id: SlotId) -> bool {
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

/// Pieces of bios over the limits.
impl Queue {
    /// Makes a piece of a split request for each of `tags` granted tags.
    fn spawn_pieces(&mut self, now: Instant, pools: &mut Pools, id: SlotId, tags: u16) {
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
        let (at, left) = (from.offset + u64::from(from.done), from.len - from.done);
        let len = self.limits.current().piece_at(at, left, self.block_size(from));
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

/// Returns the kind of a request's commands in the cost model.
pub(super) fn kind_of(request: &Request) -> CommandKind {
    CommandKind::new(request.op, request.is(Request::SEQUENTIAL))
}
