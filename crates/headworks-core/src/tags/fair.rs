//! The tag policy `fair`: no barging, large requests are served whole, and light connections hardly wait.
//!
//! ```text
//!   request --no waiters, `tags` + reserve are free--> granted: no look-up, no state
//!       \--otherwise--> flows (whose turn: fair queueing by device time) --> head --enough are free--> granted
//!                                                                     |  not yet, and it wants several
//!                                                                     `--> gathers: returned tags are kept for it
//! ```
//!
//! - **The head gathers.** A waiter that is the head while some tags are free, but too few, stays the head until it has what it
//!   wants. Meanwhile fewer tags are idle than it wants and the reserve.
//! - **The reserve** (`depth / 16`) is for light flows alone, so that one finds a tag though all others are used. At most as many
//!   of their requests as the reserve pass one gathering head; after that it needs no reserve beside it, so light requests
//!   that come one after the other cannot starve it.
//! - **`async_depth`** limits the tags of asynchronous requests, which also always leave one tag beside the reserve, so that a
//!   synchronous request to a device full of background writes gets its tag at once. A request for more than `async_depth`
//!   tags goes when no other asynchronous request holds any. With such a limit the two kinds have flows of their own, and of
//!   their two heads the one that has waited longer goes first (a light one before one that is not). With one share for both
//!   kinds a connection that mostly reads would hardly ever write beside connections that only write, because it is not its
//!   turn when the limit leaves room (measured: 2 writes to their 200). Without a limit all requests are of one kind.
//!
//! Invariants, checked by [`FairTags::check`] after every batch:
//! - free + taken == depth, and asyncs <= taken;
//! - waiters == the waiters of both flows; those without `async_depth` limit are all in the synchronous ones;
//! - a head gathers only while requests wait, and at most `reserve` requests have passed it (while the byte budget is used up,
//!   what the gate admits);
//! - a request and the reserve fit into the depth, so a waiter is granted when no tag is held.

use super::flows::{FlowHead, Flows, Waiter};
use super::owner::{
    ByteBudget, Grant, Requester, ReturnedTags, TagOptions, TagOwner, TagRequest, max_request_tags,
};
use super::stats::TagStats;
use crate::bio::{ExportId, TenantId};
use crate::gauge::Gauge32;
use crate::time::Instant;

/// One tag in 16 is reserved for light flows: some 6 % of the depth, and none of a device with fewer tags.
const RESERVE_PART: u32 = 16;

/// Index of the flows of synchronous requests, or of all without a limit on asynchronous ones.
const SYNC: usize = 0;
/// Index of the flows of asynchronous requests, if they are limited.
const ASYNC: usize = 1;

/// A head that may be granted next.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// Index of its flows: [`SYNC`] or [`ASYNC`].
    kind: usize,
    head: FlowHead,
}

/// A head that keeps all returned tags until it has as many as it wants.
#[derive(Clone, Copy, Debug)]
struct Gathering {
    candidate: Candidate,
    /// Light requests that were granted meanwhile, at most the reserve.
    passed: u32,
}

/// The outcome of a search for the next grant.
#[derive(Clone, Copy, Debug)]
enum Choice {
    Grant(Candidate),
    /// The head wants more tags than are free: the free ones are idle.
    ShortOfTags,
    /// No request may go: no tag is free, or waiters are held back by bytes or by `async_depth`.
    Nothing,
}

/// The tags of a device under the policy `fair`, and the requests that wait for them.
#[derive(Debug)]
pub struct FairTags {
    depth: u32,
    /// Tags for light flows alone.
    reserve: u32,
    /// Most tags of asynchronous requests; `depth` without a limit.
    async_max: u32,
    free: Gauge32,
    /// Tags that requests and leases hold.
    taken: Gauge32,
    /// Those of them that asynchronous requests hold.
    asyncs: Gauge32,
    /// Waiters of both kinds.
    waiters: Gauge32,
    /// Waiters by kind, see [`SYNC`] and [`ASYNC`].
    flows: [Flows; 2],
    gathering: Option<Gathering>,
    /// Kind of the last grant.
    last_kind: usize,
    /// Idle tags, and since when.
    idle: u32,
    idle_since: Instant,
    /// The current series of grants has begun.
    granting: bool,
    stats: TagStats,
}

impl FairTags {
    /// Creates `depth` free tags and space for `waiters_max` waiters.
    #[must_use]
    pub fn new(options: TagOptions) -> Self {
        let TagOptions { depth, async_depth, waiters_max } = options;
        assert!(depth > 0 && async_depth > 0, "a device needs at least one tag of each kind");
        let reserve = depth / RESERVE_PART;
        assert!(u32::from(max_request_tags(depth)) + reserve <= depth, "a request never fits");
        let limited = async_depth < depth;
        let async_max = if limited { async_depth.min(depth - reserve - 1) } else { depth };
        Self {
            depth,
            reserve,
            async_max,
            free: Gauge32::new(depth),
            taken: Gauge32::default(),
            asyncs: Gauge32::default(),
            waiters: Gauge32::default(),
            flows: [Flows::new(waiters_max), Flows::new(if limited { waiters_max } else { 0 })],
            gathering: None,
            last_kind: SYNC,
            idle: 0,
            idle_since: Instant(0),
            granting: false,
            stats: TagStats::default(),
        }
    }

    /// Returns whether asynchronous requests are limited and have flows of their own.
    fn is_async_limited(&self) -> bool {
        self.async_max < self.depth
    }

    /// Returns whether `tags` more asynchronous tags are within the limit.
    fn async_fits(&self, tags: u32) -> bool {
        self.asyncs.get() + tags <= self.async_max || self.asyncs.is_zero()
    }

    fn take(&mut self, request: &TagRequest) {
        let tags = u32::from(request.tags);
        self.free.sub(tags);
        self.taken.add(tags);
        self.asyncs.add(if request.sync { 0 } else { tags });
    }

    /// Returns the kind of the flows that a request waits in.
    fn kind_of(&self, request: &TagRequest) -> usize {
        if self.is_async_limited() && !request.sync { ASYNC } else { SYNC }
    }

    /// Counts a waiter that was withdrawn, and was the first of its flow or not. A gathering head that was withdrawn is not the head
    /// any more.
    fn on_withdrawn(&mut self, kind: usize, flow: u32, was_first: bool) {
        self.waiters.sub(1);
        let gathers = |gathering: &Gathering| {
            let candidate = gathering.candidate;
            was_first && candidate.kind == kind && candidate.head.flow == flow
        };
        if self.waiters.is_zero() || self.gathering.as_ref().is_some_and(gathers) {
            self.gathering = None;
        }
        if self.waiters.is_zero() {
            self.flows.iter_mut().for_each(Flows::reset);
        }
        debug_assert!(self.check(), "an invariant broke in a withdrawal");
    }

    /// Makes a request wait.
    fn wait(&mut self, now: Instant, request: TagRequest) {
        let kind = self.kind_of(&request);
        let light = self.flows[kind].push(now, self.stats.waits, request);
        let open = self.gathering.is_none_or(|gathering| gathering.passed < self.reserve);
        let fits = u32::from(request.tags) <= self.free.get();
        let kept_back = !self.waiters.is_zero() && fits && !(light && open);
        self.stats.barging_prevented += u64::from(kept_back);
        self.stats.waits += 1;
        self.waiters.add(1);
    }

    fn waiter(&self, candidate: Candidate) -> &Waiter {
        self.flows[candidate.kind].waiter(candidate.head)
    }

    /// Selects the waiter that is granted next.
    fn choose(&mut self, budget: ByteBudget) -> Choice {
        debug_assert!(!self.waiters.is_zero(), "a search needs a waiter");
        if self.free.is_zero() {
            return Choice::Nothing;
        }
        let gathering = self.gathering.map(|gathering| gathering.candidate);
        if budget == ByteBudget::LightOnly {
            return self.light(Flows::light_beside_pieces).map_or(Choice::Nothing, Choice::Grant);
        }
        if let ByteBudget::Guarded { target_us, light_only } = budget {
            return self.choose_guarded(target_us, light_only);
        }
        let Some(first) = gathering.or_else(|| self.first()) else {
            return Choice::Nothing;
        };
        let tags = u32::from(self.waiter(first).request.tags);
        // A head that was passed as often as it may be waits for no reserve.
        let passed = self.gathering.map_or(0, |gathering| gathering.passed);
        let spare = if first.head.small || passed == self.reserve { 0 } else { self.reserve };
        if tags + spare <= self.free.get() {
            self.gathering = None;
            return Choice::Grant(first);
        }
        self.gathering.get_or_insert(Gathering { candidate: first, passed: 0 });
        self.passing().map_or(Choice::ShortOfTags, Choice::Grant)
    }

    /// Selects a waiter with a latency target of at most `target_us`, while the limit on bulk is reached. One that wants more tags
    /// than are free gathers them; a gathering head that is bulk waits for bytes, not for tags.
    fn choose_guarded(&mut self, target_us: u32, light_only: bool) -> Choice {
        let gathering = self.gathering.map(|gathering| gathering.candidate);
        let guarded = |owner: &Self, head: &Candidate| {
            let target = owner.waiter(*head).request.target_us;
            target > 0 && target <= target_us && !light_only
        };
        let first = match gathering.filter(|head| guarded(self, head)) {
            Some(head) => head,
            None => {
                let mut of = |kind: usize| {
                    let head = self.flows[kind].guarded(target_us, light_only)?;
                    Some(Candidate { kind, head })
                };
                let (sync, other) = (of(SYNC), of(ASYNC));
                let other =
                    other.filter(|&head| self.async_fits(self.waiter(head).request.tags.into()));
                let rank = |first: &Candidate| (!first.head.light, self.waiter(*first).number);
                let Some(head) = sync.into_iter().chain(other).min_by_key(rank) else {
                    return Choice::Nothing;
                };
                head
            }
        };
        let same = |gathering: &Gathering| {
            gathering.candidate.kind == first.kind
                && gathering.candidate.head.flow == first.head.flow
        };
        if u32::from(self.waiter(first).request.tags) <= self.free.get() {
            self.gathering = self.gathering.filter(|gathering| !same(gathering));
            return Choice::Grant(first);
        }
        self.gathering = Some(Gathering { candidate: first, passed: 0 });
        Choice::ShortOfTags
    }

    /// Returns the head of both kinds whose turn it is.
    fn first(&mut self) -> Option<Candidate> {
        let sync = self.flows[SYNC].pick().map(|head| Candidate { kind: SYNC, head });
        if self.flows[ASYNC].is_empty() {
            return sync;
        }
        let other = self.flows[ASYNC].pick().map(|head| Candidate { kind: ASYNC, head });
        // Synchronous requests go on while the asynchronous head waits for the limit.
        let other = other.filter(|&first| self.async_fits(self.waiter(first).request.tags.into()));
        let rank = |first: &Candidate| (!first.head.light, self.waiter(*first).number);
        sync.into_iter().chain(other).min_by_key(rank)
    }

    /// Returns the first light head; an asynchronous one only if a gathering asynchronous head fits beside it.
    fn light(&mut self, find: fn(&mut Flows) -> Option<FlowHead>) -> Option<Candidate> {
        let sync = find(&mut self.flows[SYNC]).map(|head| Candidate { kind: SYNC, head });
        let other = find(&mut self.flows[ASYNC]).map(|head| Candidate { kind: ASYNC, head });
        let kept = self.gathering.map(|gathering| gathering.candidate);
        let kept = kept.filter(|head| head.kind == ASYNC);
        let kept: u32 = kept.map_or(0, |head| self.waiter(head).request.tags.into());
        sync.or_else(|| other.filter(|_| self.asyncs.get() + 1 + kept <= self.async_max))
    }

    /// Returns a light head that may pass the gathering one, and counts it.
    fn passing(&mut self) -> Option<Candidate> {
        let passed = self.gathering.map_or(0, |gathering| gathering.passed);
        if passed == self.reserve {
            return None;
        }
        let light = self.light(Flows::light)?;
        if let Some(gathering) = &mut self.gathering {
            gathering.passed += 1;
        }
        self.stats.barged += 1;
        Some(light)
    }

    /// Accounts the idle tags of the time until now; from now on `idle` tags are idle.
    fn account_idle(&mut self, now: Instant, idle: u32) {
        debug_assert!(idle <= self.free.get(), "only free tags are idle");
        if self.idle == idle && idle == 0 {
            return;
        }
        self.stats.idle_tag_ns += u64::from(self.idle) * now.since(self.idle_since);
        self.stats.idle_max = self.stats.idle_max.max(idle);
        (self.idle, self.idle_since) = (idle, now);
    }

    /// Returns whether the invariants of the file head hold.
    fn check(&self) -> bool {
        let [sync, other] = self.flows.each_ref().map(|flows| flows.waiting());
        let waiting = self.waiters.get();
        let gathers = self.gathering.is_none_or(|gathering| gathering.passed <= self.reserve);
        self.free.get() + self.taken.get() == self.depth
            && self.asyncs <= self.taken
            && sync + other == waiting
            && (other == 0 || self.is_async_limited())
            && gathers
            && (waiting > 0 || self.gathering.is_none())
    }
}

impl TagOwner for FairTags {
    fn grant_at_once(&mut self, requests: &[TagRequest], most: usize) -> usize {
        if !self.waiters.is_zero() {
            return 0;
        }
        let mut granted = 0;
        // In registers: through memory each request would wait for the one before it.
        let (mut free, mut asyncs) = (self.free.get(), self.asyncs.get());
        for request in &requests[..most.min(requests.len())] {
            let tags = u32::from(request.tags);
            let fits = request.sync || asyncs + tags <= self.async_max || asyncs == 0;
            if tags + self.reserve > free || !fits {
                break;
            }
            free -= tags;
            asyncs += if request.sync { 0 } else { tags };
            granted += 1;
        }
        self.taken.add(self.free.get() - free);
        (self.free, self.asyncs) = (Gauge32::new(free), Gauge32::new(asyncs));
        self.stats.requests += granted as u64;
        self.stats.grants += granted as u64;
        granted
    }

    fn request(&mut self, now: Instant, requests: &[TagRequest], most: usize) -> usize {
        let granted = self.grant_at_once(requests, most);
        self.stats.requests += (requests.len() - granted) as u64;
        for &request in &requests[granted..] {
            let fits = request.tags >= 1 && request.tags <= max_request_tags(self.depth);
            assert!(fits, "a request for more tags than are ever granted");
            self.wait(now, request);
        }
        debug_assert!(self.check(), "an invariant broke in a request");
        granted
    }

    fn put(&mut self, _now: Instant, returned: ReturnedTags) {
        assert!(returned.count <= self.taken.get(), "a tag was put back twice");
        assert!(returned.asyncs <= self.asyncs.get(), "an asynchronous tag was put back twice");
        self.taken.sub(returned.count);
        self.free.add(returned.count);
        self.asyncs.sub(returned.asyncs);
        debug_assert!(self.check(), "an invariant broke in a put");
    }

    fn next_grant(&mut self, now: Instant, budget: ByteBudget) -> Option<Grant> {
        if self.waiters.is_zero() && !self.granting && self.idle == 0 {
            return None;
        }
        let choice = if self.waiters.is_zero() { Choice::Nothing } else { self.choose(budget) };
        let Choice::Grant(Candidate { kind, head }) = choice else {
            let short = matches!(choice, Choice::ShortOfTags);
            self.granting = false;
            self.account_idle(now, if short { self.free.get() } else { 0 });
            debug_assert!(self.check(), "an invariant broke in a batch");
            return None;
        };
        let waiter = self.flows[kind].pop(head);
        self.last_kind = kind;
        self.waiters.sub(1);
        if self.waiters.is_zero() {
            self.flows.iter_mut().for_each(Flows::reset);
        }
        self.take(&waiter.request);
        self.stats.grants += 1;
        self.stats.wakes += u64::from(!std::mem::replace(&mut self.granting, true));
        self.stats.woken += 1;
        self.stats.longest_wait_ns = self.stats.longest_wait_ns.max(now.since(waiter.since));
        let TagRequest { requester, tags, cost, .. } = waiter.request;
        Some(Grant { requester, tags, light: head.light, cost })
    }

    fn withdraw_merged(&mut self, waiter: &TagRequest) -> bool {
        let kind = self.kind_of(waiter);
        let Some((flow, was_first)) = self.flows[kind].withdraw_merged(waiter) else {
            return false;
        };
        self.on_withdrawn(kind, flow, was_first);
        true
    }

    fn withdraw(
        &mut self,
        cursor: &mut u32,
        expired: &dyn Fn(Requester) -> bool,
    ) -> Option<Requester> {
        debug_assert!(self.check(), "an invariant broke before a withdrawal");
        // The cursor passes the flows of one kind after those of the other.
        let [sync, other] = self.flows.each_ref().map(Flows::places);
        while *cursor < sync + other {
            let (kind, flow) =
                if *cursor < sync { (SYNC, *cursor) } else { (ASYNC, *cursor - sync) };
            let Some(waiter) = self.flows[kind].withdraw_first(flow, expired) else {
                *cursor += 1;
                continue;
            };
            self.on_withdrawn(kind, flow, true);
            return Some(waiter.request.requester);
        }
        None
    }

    fn correct_charge(&mut self, cost: u64) {
        self.flows[self.last_kind].charge_last(cost);
    }

    fn charge(&mut self, tenant: TenantId, export: ExportId, connection: u32, cost: u64) {
        let [sync, other] = &mut self.flows;
        if !sync.charge(tenant, export, connection, cost) {
            other.charge(tenant, export, connection, cost);
        }
    }

    fn free(&self) -> u32 {
        self.free.get()
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn waiters(&self) -> u32 {
        self.waiters.get()
    }

    fn stats(&self) -> TagStats {
        self.stats
    }
}
