//! Admission of requests: their tags, and their way into the elevator.
//!
//! A request needs one tag; a request over the limits, as many as its pieces may use at once. An admitted request is `ready`: it
//! enters the elevator when the batch ends.

use super::Queue;
use super::gate::cost_bytes;
use super::leases::LeaseRequest;
use crate::action::Action;
use crate::bio::ShardId;
use crate::device_cost::CommandKind;
use crate::input::Message;
use crate::pools::Pools;
use crate::request::{Request, RequestState, SlotId};
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

/// Returns the kind of a request's commands in the cost model.
pub(super) fn kind_of(request: &Request) -> CommandKind {
    CommandKind::new(request.op, request.is(Request::SEQUENTIAL))
}
