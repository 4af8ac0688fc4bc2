//! The gate: the tags and the bytes that a request needs before the elevator takes it.
//!
//! The tag policy decides the order of grants. Granted requests also count against what the device is given:
//!
//! ```text
//!   full    =  bytes in flight >= the limit (measured, or hw_inflight_kb)
//!              or: the elevator does not sort, and queue_depth requests are past the gate
//!   not full:  the first by shares goes
//!   full:      only a light request goes (small, alone in its connection, within its share), and only while others have paid
//!   an elevator that sorts has more than queue_depth as its window, up to nr_requests: while all that compete have equal shares,
//!              or each of them has a request waiting
//! ```
//!
//! **Late binding.** What is past the gate is served in the order of a FIFO or of the disk, whatever its share. So nothing is beyond
//! what the device needs, and shares decide which request is next when it has room. Over any time in which two exports wait here, what they
//! are served by weight differs by at most one request of each and one that passed; behind the gate are at most the limit and one
//! command, or `queue_depth` requests.
//!
//! **Which exports the gate limits.** An export with d requests outstanding of a device that works on D at once has at most d of the D
//! places: its requests never wait, and no weight gives it more. In a sorted window all that compete keep a request waiting, so it
//! holds at most d * (sum of weights) / weight of any of them: what a disk gains by a longer one is the price of the weights.
//!
//! `passing` says which requests may pass, `rivals` which exports compete for a window.
//!
//! Invariants: free + held + lent + returned == depth, where requests of this shard hold `held` and other shards `lent` (a
//! policy that grants tag by tag may hold some itself: then the sum is less); `admitted_bytes` is the sum of `charged` over all
//! requests that were admitted and have neither ended nor timed out.
//!
//! **Open.** In front of an elevator that owns shares the gate grants every request at once and whole, leases too, and limits no
//! bytes: a queue whose requests waited here would look empty there. There is a tag for every bio; requests of several pieces get
//! more than one as long as `nr_requests` are left beyond that.

mod charging;
mod targets;

use super::bulk::Bulk;
use super::export_shares::ExportShares;
use super::leases::{LeaseRequest, Leases};
use super::passing::Passing;
use super::rivals::Rivals;
use crate::bio::{ExportId, IoClass, Op, ShardId};
use crate::device_cost::{CostLearner, DeviceCost, ShareUnit, Streams};
use crate::gauge::{Gauge32, Gauge64};
use crate::options::{QueueOptions, Scheduler, ShardConfig};
use crate::request::{Request, SlotId};
use crate::request_limits::RequestLimits;
use crate::shares::ShareChange;
use crate::stats::QueueWaits;
use crate::tags::{
    self, ByteBudget, Grant, Requester, ReturnedTags, TagOptions, TagOwner, TagRequest,
    max_request_tags,
};
use crate::time::Instant;

/// Light requests may exceed the limit on bytes in flight by this part of it, beside the last large command, which may exceed it
/// too. A half: they get in at once, and many of them are limited.
const LIGHT_PART: u64 = 2;

/// The limits on what is past the gate.
struct GateLimits {
    /// Of the admitted bytes; `u64::MAX` without a limit.
    bytes_max: u64,
    /// Bytes that a command is charged beside its own.
    command_cost: u32,
    /// The longest command.
    command_max: u32,
    /// The commands of a request reach the device together, see [`Gate::set_limit`].
    whole: bool,
    /// Requests that the device takes. More are of use to an elevator that sorts, as its window, and to no other.
    commands_max: u32,
}

impl GateLimits {
    /// Returns the limits that `options` give. An elevator that owns shares limits bytes itself, and takes any number of requests.
    fn new(options: &QueueOptions) -> Self {
        let owns_shares = options.scheduler.owns_shares();
        let bytes_max = match options.hw_inflight_kb {
            0 => u64::MAX,
            _ if owns_shares => u64::MAX,
            kb => u64::from(kb) * 1024,
        };
        Self {
            bytes_max,
            command_cost: 0,
            command_max: options.max_bytes(),
            whole: bytes_max == u64::MAX,
            commands_max: if owns_shares { u32::MAX } else { options.queue_depth },
        }
    }
}

/// Admission to one device: tags, leases and bytes in flight.
pub(super) struct Gate {
    tags: Box<dyn TagOwner>,
    leases: Leases,
    shares: ExportShares,
    /// Tags that requests of this shard hold.
    held: Gauge32,
    /// Tags that came back in this batch and were not handed to the policy yet.
    returned: ReturnedTags,
    admitted_bytes: Gauge64,
    /// What light requests may pass.
    passing: Passing,
    /// The part of them that latency targets limit.
    bulk: Bulk,
    limits: GateLimits,
    /// What requests cost, learned while requests wait; and the unit of shares.
    costs: CostLearner,
    share: ShareUnit,
    streams: Streams,
    /// The elevator owns shares, and every request is granted at once.
    open: bool,
    /// The exports with requests, for the window of an elevator that sorts.
    rivals: Rivals,
    /// The elevator sorts.
    sorts: bool,
    /// Most bios of the shard.
    bios: u32,
    /// Most tags of one request.
    request_tags_max: u16,
    /// Tags of the requests of this submission.
    asked: u32,
    /// A request waited for the limit since this was asked last.
    bound: bool,
    /// The tag requests of one submission.
    requests: Vec<TagRequest>,
    /// How many of them the limits on bytes and on requests in flight admit, from the first; and the limit on bytes alone.
    most: usize,
    most_bytes: usize,
    /// What requests waited for of late.
    waits: QueueWaits,
    waiters_max: usize,
}

impl Gate {
    /// Creates a gate with all tags free, for at most `waiters_max` waiting requests.
    pub fn new(config: &ShardConfig, options: &QueueOptions, waiters_max: usize) -> Self {
        let shares = ExportShares::new(config);
        let mut bulk = Bulk::new(config.exports.len());
        bulk.set_targets(Instant(0), (!options.scheduler.owns_shares()).then_some(&shares));
        let mut gate = Self {
            tags: tags::make(tag_options(options, config, waiters_max)),
            leases: Leases::new(config.shards),
            shares,
            held: Gauge32::default(),
            returned: ReturnedTags::default(),
            admitted_bytes: Gauge64::default(),
            passing: Passing::default(),
            bulk,
            limits: GateLimits::new(options),
            costs: CostLearner::new(),
            share: options.share,
            streams: Streams::new(),
            open: options.scheduler.owns_shares(),
            rivals: Rivals::default(),
            sorts: options.scheduler == Scheduler::MqDeadline,
            bios: config.bios_total(),
            request_tags_max: max_request_tags(options.nr_requests),
            asked: 0,
            bound: false,
            requests: Vec::with_capacity(waiters_max),
            most: 0,
            most_bytes: 0,
            waits: QueueWaits::default(),
            waiters_max,
        };
        gate.rivals.set(gate.sorts, &gate.shares);
        gate
    }

    /// Returns the tag policy, for statistics.
    pub fn policy(&self) -> &dyn TagOwner {
        self.tags.as_ref()
    }

    /// Returns the largest number of requests that wait at once.
    pub fn waiters_max(&self) -> usize {
        self.waiters_max
    }

    /// Returns the parameters of a tag policy for a queue with these options.
    pub fn tag_options(&self, options: &QueueOptions, cached: bool) -> TagOptions {
        assert!(self.bios > 0, "a shard has bios");
        match options.scheduler.owns_shares() {
            true => TagOptions::open(options.tags(self.bios), self.waiters_max),
            false => TagOptions::new(options, self.waiters_max, cached),
        }
    }

    /// Returns the changes that give default shares the weights and tenants of exports.
    pub fn share_changes(&self) -> impl Iterator<Item = ShareChange> + '_ {
        self.shares.as_changes()
    }

    /// Returns the most bios of the shard.
    pub fn bios(&self) -> u32 {
        self.bios
    }

    /// Returns whether every request is granted at once.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Replaces the tag policy while no tag is held, lent or waited for.
    pub fn replace_policy(&mut self, tags: Box<dyn TagOwner>) {
        assert!(self.all_free(), "tags are replaced while all are free");
        assert!(self.waiters() == 0, "tags are replaced while no request waits for one");
        self.tags = tags;
    }

    /// Takes over the limit on bytes in flight and the unit of shares of other options.
    pub fn set_limits(&mut self, options: &QueueOptions) {
        self.limits = GateLimits::new(options);
        self.open = options.scheduler.owns_shares();
        self.sorts = options.scheduler == Scheduler::MqDeadline;
        self.rivals.set(self.sorts, &self.shares);
        self.set_targets(Instant(0));
        self.request_tags_max = max_request_tags(options.nr_requests);
        self.share = options.share;
    }

    /// Sets the limit that was found by measuring: each command is charged `command_cost` bytes beside its own, at most
    /// `command_max`. `whole` says that commands are as long as the device's limits allow: then a request that needs several is
    /// granted the tags for all at once, so that they reach the device together.
    pub fn set_limit(&mut self, bytes_max: u64, command_cost: u32, command_max: u32, whole: bool) {
        assert!(bytes_max > 0, "some requests may always be admitted");
        let commands_max = self.limits.commands_max;
        self.limits = GateLimits { bytes_max, command_cost, command_max, whole, commands_max };
    }

    /// Sets the longest command, and whether it is as long as the device's limits allow. Beside a limit that was set by hand a
    /// request is not granted the tags of all its commands at once.
    pub fn set_command_max(&mut self, command_max: u32, whole: bool) {
        let limits = &mut self.limits;
        (limits.command_max, limits.whole) = (command_max, whole && limits.bytes_max == u64::MAX);
    }

    /// Returns what the admitted requests were charged.
    pub fn admitted(&self) -> u64 {
        self.admitted_bytes.get()
    }

    /// Returns whether a request waited for the limit since the last call.
    pub fn take_bound(&mut self) -> bool {
        std::mem::take(&mut self.bound)
    }

    /// Changes the shares of exports and tenants; waiting requests keep the old ones.
    ///
    /// Returns true if the limit on bulk may have changed.
    pub fn change_shares(&mut self, now: Instant, change: ShareChange) -> bool {
        self.shares.change(change);
        self.rivals.change(change, &self.shares);
        self.rivals.set(self.sorts, &self.shares);
        let ShareChange::ExportTarget(export, _) = change else { return false };
        self.bulk.forget_counts(export);
        self.set_targets(now);
        true
    }

    /// Returns the number of requests and shards that wait for tags.
    #[inline]
    pub fn waiters(&self) -> u32 {
        self.tags.waiters()
    }

    /// Returns the tags that other shards hold.
    pub fn lent(&self) -> u32 {
        self.leases.lent()
    }

    /// Returns true when no request of this shard holds a tag.
    pub fn is_idle(&self) -> bool {
        let idle = self.tags.free() + self.leases.lent() == self.tags.depth();
        debug_assert!(!idle || self.held.is_zero(), "free + held + lent == depth");
        debug_assert!(
            !idle || self.waiters() > 0 || self.rivals.is_empty(),
            "every request that was counted has left"
        );
        idle
    }

    /// Returns true when every tag is free.
    pub fn all_free(&self) -> bool {
        self.tags.free() == self.tags.depth()
    }

    /// Returns true when no lent tag can come back before the device answers.
    pub fn leases_are_home(&self) -> bool {
        self.leases.only_timed_out()
    }

    /// Returns when the tag policy may grant although no tag came back.
    #[inline]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.tags.next_timeout()
    }

    /// Returns true when a finished piece's tag goes to the next piece of its bio.
    pub fn reuses_tags(&self) -> bool {
        self.tags.reuses_tags()
    }

    /// Returns the number of tags to request for `pieces` pieces of `piece` bytes: as many, but never so many that the request
    /// would wait for a nearly empty device, and no more bytes at once than half of what may be in flight, unless commands are whole.
    pub fn tags_for(&self, pieces: u32, piece: u32) -> u16 {
        debug_assert!(pieces > 0 && piece > 0, "a split request has pieces");
        let bytes_max = self.bulk.limit().unwrap_or(u64::MAX).min(self.limits.bytes_max);
        let by_bytes = (bytes_max / 2 / u64::from(piece)).clamp(1, u16::MAX.into());
        let whole = self.limits.whole || !self.tags.reuses_tags();
        let pieces = if whole { pieces } else { pieces.min(by_bytes as u32) };
        if self.open { self.tags_at_once(pieces) } else { self.tags.tags_for(pieces) }
    }

    /// Returns how many of `tags` an open gate grants at once: at least one, and so many that every other bio still gets one.
    fn tags_at_once(&self, tags: u32) -> u16 {
        let kept = self.bios + self.tags.depth() / 16 + self.asked;
        let more = self.tags.free().saturating_sub(kept);
        debug_assert!(self.open && tags > 0, "an open gate grants a tag and more");
        tags.min(self.request_tags_max.into()).min(1 + more) as u16
    }

    /// Begins a submission: the tag requests that follow are made together.
    #[inline]
    pub fn begin_submission(&mut self) {
        self.requests.clear();
        self.asked = 0;
    }

    /// Counts a request that asks for tags, for the window of an elevator that sorts.
    #[inline]
    pub fn enter(&mut self, request: &mut Request) {
        if self.rivals.is_on() {
            self.rivals.enter(request);
        }
    }

    /// Counts a request no more that ends.
    #[inline]
    pub fn leave(&mut self, request: &Request) {
        if request.is(Request::COUNTED) {
            self.rivals.leave(request);
        }
    }

    /// Counts a request that begins to wait for tags.
    #[inline]
    pub fn begin_wait(&mut self, request: &Request) {
        if request.is(Request::COUNTED) {
            self.rivals.begin_wait(request);
        }
    }

    /// Counts a request that waits for tags no more.
    #[inline]
    pub fn end_wait(&mut self, request: &Request) {
        if request.is(Request::COUNTED) {
            self.rivals.end_wait(request);
        }
    }

    /// Returns true if a granted request goes before what the elevator has sorted: it is light and of no background class, and a
    /// request that is not light was granted since the last such one. With unequal shares the window is as short as they allow: a
    /// heavy export's requests come alone there, and would go unsorted.
    pub fn is_express(&mut self, request: &Request, light: bool) -> bool {
        if !self.sorts || light && (self.differs() || request.ioprio.class() == IoClass::Idle) {
            return false;
        }
        self.passing.take_express(light)
    }

    /// Returns true if the exports that compete for the device have unequal shares of it.
    fn differs(&self) -> bool {
        self.rivals.is_on() && (!self.rivals.are_equal() || self.leases.lent() > 0)
    }

    /// Returns true while a window that is sorted may not grow: shares there follow what each has in it, so every one that competes
    /// must have a request waiting. See `rivals`.
    fn window_is_closed(&self) -> bool {
        self.sorts
            && self.reuses_tags()
            && self.out() >= self.limits.commands_max
            && self.differs()
            && !(self.rivals.all_wait() && self.leases.all_wait())
    }

    /// Adds a request to the submission.
    #[inline]
    pub fn add(&mut self, mut request: TagRequest) {
        debug_assert!(request.tags >= 1, "a request needs a tag");
        if self.bulk.is_on() {
            // Its latency target decides whether it may go at once.
            self.shares.fill(&mut request);
        }
        self.asked += u32::from(request.tags);
        self.requests.push(request);
    }

    /// Grants requests of the submission, from the first, for which no order matters; returns how many. What they cost is of no
    /// interest.
    pub fn grant_at_once(&mut self) -> usize {
        self.most_bytes = self.most_by_bytes();
        self.most = self.most_bytes.min(self.most_by_commands());
        let granted = self.tags.grant_at_once(&self.requests, self.most);
        debug_assert!(
            granted <= self.most,
            "the limit on bytes in flight holds for immediate grants"
        );
        self.hold(0, granted);
        granted
    }

    /// Sets the shares of a request of the submission that may have to wait, and what it costs them.
    pub fn set_cost(&mut self, index: usize, cost: u64) {
        self.shares.fill(&mut self.requests[index]);
        self.requests[index].cost = cost;
    }

    /// Makes the requests of the submission from the `first` on; returns how many of them were granted, the others wait.
    pub fn submit_from(&mut self, now: Instant, first: usize) -> usize {
        let granted = self.tags.request(now, &self.requests[first..], self.most - first);
        if self.bulk.is_on() {
            self.bulk.count_held(now, &self.requests[first + granted..]);
        }
        self.hold(first, granted);
        let next = first + granted;
        if let Some(request) = self.requests.get(next) {
            self.note_wait(now, request.tags, (next < self.most_bytes, next < self.most));
        }
        granted
    }

    /// Notes what a request for `tags` waits for, which the limits on bytes and on requests in flight let pass or not. One that waits for
    /// its turn alone, behind others that do not fit, waits for what they wait for.
    fn note_wait(&mut self, now: Instant, tags: u16, (bytes, commands): (bool, bool)) {
        let waits = &mut self.waits;
        if u32::from(tags) > self.tags.free() {
            waits.tags = Some(now);
        } else if !bytes || self.admitted_bytes.get() >= self.limits.bytes_max {
            waits.bytes = Some(now);
        } else if !commands || self.is_full() {
            self.waits.commands = Some(now);
        }
    }

    /// Returns what requests waited for of late.
    pub fn waits(&self) -> QueueWaits {
        self.waits
    }

    /// Counts the tags of granted requests of the submission.
    fn hold(&mut self, first: usize, granted: usize) {
        let requests = &self.requests[first..first + granted];
        self.held.add(requests.iter().map(|request| u32::from(request.tags)).sum());
    }

    /// Returns a tag request of the submission as requester and tags.
    #[inline]
    pub fn submitted(&self, index: usize) -> Option<(SlotId, u16)> {
        match self.requests.get(index)? {
            &TagRequest { requester: Requester::Request(id), tags, .. } => Some((id, tags)),
            TagRequest { requester: Requester::Shard(_), .. } => unreachable!("shards ask alone"),
        }
    }

    /// Returns how many requests of the submission, from the first, fit into the bytes that may be in flight.
    fn most_by_bytes(&mut self) -> usize {
        let most = match self.bulk.is_on() {
            true => self.bulk.fits(&self.requests, self.limits.command_cost),
            false => self.requests.len(),
        };
        if self.limits.bytes_max == u64::MAX {
            return most;
        }
        let mut room = self.limits.bytes_max.saturating_sub(self.admitted_bytes.get());
        let fits = self.requests.iter().take_while(|request| {
            let fits = room > 0;
            room =
                room.saturating_sub(u64::from(request.bytes) + u64::from(self.limits.command_cost));
            fits
        });
        let fits = fits.count();
        self.bound |= fits < self.requests.len();
        fits.min(most)
    }

    /// Returns how many requests of the submission, from the first, the device has room for; the last may have more commands.
    fn most_by_commands(&self) -> usize {
        let mut room = self.limits.commands_max.saturating_sub(self.out());
        debug_assert!(self.limits.commands_max > 0, "a device takes a command");
        if self.asked <= room {
            return self.requests.len();
        }
        let fits = self.requests.iter().take_while(|request| {
            let fits = room > 0;
            room = room.saturating_sub(request.tags.into());
            fits
        });
        fits.count()
    }

    /// Hands returned tags to the policy and returns the next grant.
    pub fn next_grant(&mut self, now: Instant) -> Option<Grant> {
        if self.returned.count > 0 {
            self.tags.put(now, std::mem::take(&mut self.returned));
        }
        let budget = self.budget();
        // A policy that grants tag by tag decides by itself; with a timer that is due it would be asked without end.
        if self.is_full() && self.tags.waiters() > 0 && self.reuses_tags() {
            self.bound |= self.admitted_bytes.get() >= self.limits.bytes_max;
            let room = self.limits.bytes_max / LIGHT_PART + u64::from(self.limits.command_max);
            let over = self.admitted_bytes.get().saturating_sub(self.limits.bytes_max);
            // One that a latency target guards needs no credit: bulk is held back for it.
            let guarded = matches!(budget, ByteBudget::Guarded { .. });
            if !guarded && !self.passing.is_open() || over >= room {
                return None;
            }
        }
        if self.window_is_closed() {
            return None;
        }
        let grant = self.tags.next_grant(now, budget);
        match grant {
            Some(Grant { requester: Requester::Request(_), tags, .. }) => {
                self.held.add(tags.into());
            }
            Some(Grant { requester: Requester::Shard(shard), tags, light, cost }) => {
                self.passing.on_grant(light, self.is_full(), cost);
                self.leases.lend(shard, tags);
            }
            None => {}
        }
        debug_assert!(self.is_conserved(), "free + held + lent <= depth");
        grant
    }

    /// Returns the requests that the limits on bytes in flight admit.
    fn budget(&mut self) -> ByteBudget {
        let light_only = self.is_full();
        let guard = if self.bulk.is_on() { self.bulk.guard() } else { None };
        match guard {
            Some(target_us) => {
                if self.tags.waiters() > 0 {
                    self.bulk.on_bound();
                }
                ByteBudget::Guarded { target_us, light_only }
            }
            None if light_only => ByteBudget::LightOnly,
            None => ByteBudget::Available,
        }
    }

    /// Withdraws a request that waits for tags and is `expired`; call it with the same `cursor`, first 0, until it returns
    /// `None`.
    pub fn withdraw(
        &mut self,
        cursor: &mut u32,
        expired: &dyn Fn(Requester) -> bool,
    ) -> Option<Requester> {
        if self.tags.waiters() == 0 { None } else { self.tags.withdraw(cursor, expired) }
    }

    /// Withdraws a request that waits for tags and merged with another one; returns false if it waits on.
    pub fn withdraw_merged(&mut self, id: SlotId, request: &Request) -> bool {
        let mut waiter = TagRequest {
            sync: request.is_sync(),
            connection: request.connection,
            export: request.export,
            ..TagRequest::of(Requester::Request(id))
        };
        self.shares.fill(&mut waiter);
        self.tags.withdraw_merged(&waiter)
    }

    /// Checks that no tag exists twice. Tags that a policy loses show as a queue that never becomes idle.
    fn is_conserved(&self) -> bool {
        let out = self.held.get() + self.leases.lent() + self.returned.count;
        self.tags.free() + out <= self.tags.depth()
    }

    /// Returns the present cost model.
    pub fn device_cost(&self) -> &DeviceCost {
        self.costs.cost()
    }

    /// Returns false once it is known that the device moves no head.
    pub fn may_seek(&self) -> bool {
        self.costs.may_seek()
    }

    /// Returns true while requests wait, or their costs are being learned.
    #[inline]
    pub fn is_contended(&self) -> bool {
        self.waiters() > 0 || self.costs.is_open()
    }

    /// Ends a turn with `in_flight` commands in the device; `queued` says that the elevator has more for it.
    #[inline]
    pub fn end_turn(&mut self, now: Instant, in_flight: u32, queued: bool) {
        let busy = queued || self.waiters() > 0;
        self.costs.on_turn(now, in_flight, busy);
        if self.bulk.is_noting() {
            self.bulk.on_batch(now, busy || in_flight > 0);
        }
    }

    /// Counts a tag that a request of this shard returns.
    #[inline]
    pub fn return_tag(&mut self, sync: bool) {
        self.held.sub(1);
        self.returned.count += 1;
        self.returned.asyncs += u32::from(!sync);
        debug_assert!(self.returned.asyncs <= self.returned.count, "asynchronous tags are tags");
    }

    /// Requests tags for another shard; returns how many it was granted at once.
    pub fn request_lease(
        &mut self,
        now: Instant,
        from: ShardId,
        lease: LeaseRequest,
    ) -> Option<u16> {
        let tags = lease.tags.clamp(1, self.request_tags_max);
        debug_assert!(self.request_tags_max > 0, "a request may have a tag");
        self.asked = 0;
        let request = TagRequest {
            requester: Requester::Shard(from),
            tags: if self.open { self.tags_at_once(tags.into()) } else { tags },
            bytes: lease.bytes,
            cost: lease.cost,
            sync: true,
            // No connection and no export has these numbers: a shard competes as an export of the tenant, with the weights of
            // that tenant that wait there.
            connection: u32::MAX - u32::from(from.0),
            export: ExportId(u16::MAX - from.0),
            weight: lease.weight.max(1),
            tenant: lease.tenant,
            tenant_weight: self.shares.tenant_weight(lease.tenant),
            target_us: lease.target_us,
        };
        let guarded = |guard: u32| lease.target_us > 0 && lease.target_us <= guard;
        let goes = !self.is_full()
            && self.out() < self.limits.commands_max
            && self.bulk.guard().is_none_or(guarded);
        let most = usize::from(goes);
        let granted = self.tags.request(now, &[request], most) == 1;
        if !granted {
            self.note_wait(now, request.tags, (true, self.out() < self.limits.commands_max));
            self.leases.wait(from);
            return None;
        }
        self.leases.lend(from, request.tags);
        Some(request.tags)
    }

    /// Takes tags back from a shard.
    pub fn return_lease(&mut self, from: ShardId, tags: u16) {
        self.leases.take_back(from, tags);
        self.returned.count += u32::from(tags);
    }

    /// Counts the leased tags of a bio that timed out.
    pub fn lease_timed_out(&mut self, tags: u16) {
        self.leases.add_timed_out(tags);
    }

    /// Counts the leased tags of a timed-out bio that the device has answered.
    pub fn lease_answered(&mut self, tags: u16) {
        self.leases.remove_timed_out(tags);
    }

    /// Returns a shard that must be asked to return its tags; each is asked once.
    pub fn revoke_next(&mut self) -> Option<ShardId> {
        self.leases.revoke_next()
    }

    /// Returns true when the device has what it is given: the bytes in flight have reached their limit, or what does not sort has as
    /// many requests past the gate as the device takes.
    #[inline]
    fn is_full(&self) -> bool {
        self.admitted_bytes.get() >= self.limits.bytes_max
            || !self.sorts && self.out() >= self.limits.commands_max
    }

    /// Returns the requests that are past the gate, here and on other shards.
    #[inline]
    fn out(&self) -> u32 {
        self.held.get() + self.leases.lent()
    }
}

/// Returns the parameters of the tag policy of a queue in `config`.
fn tag_options(options: &QueueOptions, config: &ShardConfig, waiters_max: usize) -> TagOptions {
    match options.scheduler.owns_shares() {
        true => TagOptions::open(options.tags(config.bios_total()), waiters_max),
        false => TagOptions::new(options, waiters_max, config.cache.is_on()),
    }
}

/// Returns the bytes that a request counts for. A discard or zeroing moves no data: whatever its length, it counts as one large
/// read at most; by its length it would wait for thousands of turns.
#[inline]
pub(crate) fn cost_bytes(op: Op, len: u32) -> u32 {
    match op {
        Op::Read | Op::Write => len,
        // Whatever the length, it costs the device about what the smallest read does.
        Op::BlockStatus => 4096,
        Op::Flush | Op::Discard | Op::WriteZeroes | Op::Prefetch => len.min(128 << 10),
    }
}

/// Returns the tags that a data bio of `len` bytes needs: one for each piece, bounded by what `nr_requests` serve.
pub(crate) fn pieces(limits: &RequestLimits, block_size: u32, len: u32, nr_requests: u32) -> u16 {
    let pieces = len.div_ceil(limits.piece(block_size)).max(1);
    pieces.min(u32::from(max_request_tags(nr_requests))) as u16
}
