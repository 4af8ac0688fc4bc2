//! `fair`: the gate above the tags. Nobody barges, a large wish is served whole, and light connections hardly wait.
//!
//! ```text
//!   ask --nobody waits, `want` + reserve are free--> granted: no look-up, nothing remembered
//!     \--otherwise--> flows (whose turn: deficit round robin) --> head --enough is free--> granted
//!                                                                  |  not yet, want > 1
//!                                                                  `--> gathers: freed tags are kept for it
//! ```
//!
//! - **The head gathers.** Who wants several tags and comes first when one is free stays the head until it has them all; a
//!   head that wants one has nothing to gather, so who is first is asked again each time. Tags idle meanwhile: fewer than its
//!   want and the reserve.
//! - **The reserve** (`depth / 16`) is for light flows' requests alone, so that one finds a tag though all others are used. At
//!   most as many as the reserve pass one gathering head.
//! - **`async_depth`**: asynchronous requests hold no more tags than that, and always leave one beside the reserve, so that a
//!   synchronous request that comes to a device full of background writes gets its tag at once. A wish that is larger than
//!   `async_depth` goes alone. Where there is such a limit the two kinds have flows of their own, and of their heads the one
//!   that has waited longer goes first (a light one before one that is not). With one deficit for both kinds a connection that
//!   mostly reads would hardly ever write beside those who only write: whenever the limit leaves room it is not its turn
//!   (measured: 2 writes to their 200). Without a limit there is one kind, in the order of tickets.
//!
//! Invariants: free + taken = depth; want + reserve <= depth, so with nothing taken the head goes: somebody who waits, while
//! nothing is held, is granted; a gathering head is passed by at most `reserve` requests (while bytes are short, by what may
//! be advanced).

use super::flows::{FlowHead, Flows, Waiter};
use super::{
    ByteBudget, Grant, ReturnedTags, TagOptions, TagOwner, TagRequest, TagStats, max_request_tags,
};
use crate::time::Instant;

/// One tag in so many is kept for light flows. 16: some 6 % of the depth, and none of a device with fewer tags than that.
const RESERVE_PART: u32 = 16;

/// Who goes first, and of which kind it is.
#[derive(Clone, Copy, Debug)]
struct First {
    kind: usize,
    head: FlowHead,
}

/// What somebody waits for, and the rest if there is a limit for it.
const SYNC: usize = 0;
const ASYNC: usize = 1;

/// The tags of a device, and who waits for them.
#[derive(Debug)]
pub struct FairTags {
    depth: u32,
    free: u32,
    reserve: u32,
    /// Tags of asynchronous requests, and how many they may be.
    asyncs: u32,
    async_max: u32,
    /// How many wait, of both kinds.
    waiters: u32,
    /// Those who wait; the asynchronous ones apart if there is a limit for them.
    flows: [Flows; 2],
    /// The kind of the last grant.
    last: usize,
    /// The head that keeps what falls free, and how many passed it.
    gathering: Option<First>,
    passed: u32,
    /// The head waits for tags, not for bytes or for `async_depth`: what is free lies idle.
    short: bool,
    /// Tags that lie idle, and since when.
    idle: u32,
    idle_since: Instant,
    /// Grants have come out since the last time that there was none.
    waking: bool,
    stats: TagStats,
}

impl FairTags {
    /// `depth` free tags and room for `waiters_max` in line.
    #[must_use]
    pub fn new(options: TagOptions) -> Self {
        let TagOptions { depth, async_depth, waiters_max } = options;
        assert!(depth > 0, "a device without tags serves nobody");
        let reserve = depth / RESERVE_PART;
        let limited = async_depth < depth;
        let async_max = if limited { async_depth.min(depth - reserve - 1) } else { depth };
        Self {
            depth,
            free: depth,
            reserve,
            asyncs: 0,
            async_max,
            waiters: 0,
            flows: [Flows::new(waiters_max), Flows::new(if limited { waiters_max } else { 0 })],
            last: SYNC,
            gathering: None,
            passed: 0,
            short: false,
            idle: 0,
            idle_since: Instant(0),
            waking: false,
            stats: TagStats::default(),
        }
    }

    /// Whether `want` asynchronous tags more are within the limit.
    fn async_fits(&self, want: u32) -> bool {
        self.asyncs + want <= self.async_max || self.asyncs == 0
    }

    fn take(&mut self, request: &TagRequest) {
        self.free -= u32::from(request.tags);
        self.asyncs += if request.sync { 0 } else { u32::from(request.tags) };
    }

    /// Somebody waits from now on.
    fn wait(&mut self, now: Instant, request: TagRequest) {
        let limited = self.async_max < self.depth;
        let kind = if limited && !request.sync { ASYNC } else { SYNC };
        let light = self.flows[kind].push(now, self.stats.waits, request);
        let may_pass = light && (self.gathering.is_none() || self.passed < self.reserve);
        let barges = self.waiters > 0 && u32::from(request.tags) <= self.free && !may_pass;
        self.stats.barging_prevented += u64::from(barges);
        self.stats.waits += 1;
        self.waiters += 1;
    }

    fn waiter(&self, first: First) -> &Waiter {
        self.flows[first.kind].waiter(first.head)
    }

    /// Who gets tags now.
    fn choose(&mut self, room: ByteBudget) -> Option<First> {
        self.short = false;
        if self.free == 0 {
            return None;
        }
        if room == ByteBudget::LightOnly {
            return self.light();
        }
        let first = self.gathering.or_else(|| self.first())?;
        let want = u32::from(self.waiter(first).request.tags);
        let spare = if first.head.light { 0 } else { self.reserve };
        if want + spare <= self.free {
            (self.gathering, self.passed) = (None, 0);
            return Some(first);
        }
        self.short = true;
        if want > 1 {
            self.gathering = Some(first);
            return self.passing();
        }
        None
    }

    /// Whose turn it is, of both kinds.
    fn first(&mut self) -> Option<First> {
        let sync = self.flows[SYNC].pick().map(|head| First { kind: SYNC, head });
        if self.flows[ASYNC].is_empty() {
            return sync;
        }
        let other = self.flows[ASYNC].pick().map(|head| First { kind: ASYNC, head });
        // Synchronous ones go on while what it needs of the limit comes together.
        let other = other.filter(|&first| self.async_fits(self.waiter(first).request.tags.into()));
        let rank = |first: &First| (!first.head.light, self.waiter(*first).number);
        sync.into_iter().chain(other).min_by_key(rank)
    }

    /// The first light request; an asynchronous one only if the gathering head fits beside it.
    fn light(&mut self) -> Option<First> {
        let sync = self.flows[SYNC].light().map(|head| First { kind: SYNC, head });
        let other = self.flows[ASYNC].light().map(|head| First { kind: ASYNC, head });
        let kept = self.gathering.filter(|head| head.kind == ASYNC);
        let kept = kept.map_or(0, |head| self.waiter(head).request.tags.into());
        sync.or_else(|| other.filter(|_| self.asyncs + 1 + kept <= self.async_max))
    }

    /// A light request that may pass the gathering head.
    fn passing(&mut self) -> Option<First> {
        if self.passed == self.reserve {
            return None;
        }
        let light = self.light()?;
        self.passed += 1;
        self.stats.barged += 1;
        Some(light)
    }

    /// The batch has ended: counts the tags that lay idle until now.
    fn settle(&mut self, now: Instant) {
        let idle = if self.short { self.free } else { 0 };
        if self.idle == idle && idle == 0 {
            return;
        }
        self.stats.idle_tag_ns += u64::from(self.idle) * now.since(self.idle_since);
        self.stats.idle_max = self.stats.idle_max.max(idle);
        (self.idle, self.idle_since) = (idle, now);
    }
}

impl TagOwner for FairTags {
    fn request(&mut self, now: Instant, requests: &[TagRequest], most: usize) -> usize {
        let mut granted = 0;
        self.stats.requests += requests.len() as u64;
        if self.waiters == 0 {
            // In registers: through memory each ask would wait for the one before it.
            let (mut free, mut asyncs) = (self.free, self.asyncs);
            for request in &requests[..most.min(requests.len())] {
                let want = u32::from(request.tags);
                let fits = request.sync || asyncs + want <= self.async_max || asyncs == 0;
                if want + self.reserve > free || !fits {
                    break;
                }
                free -= want;
                asyncs += if request.sync { 0 } else { want };
                granted += 1;
            }
            (self.free, self.asyncs) = (free, asyncs);
            self.stats.grants += granted as u64;
        }
        for &request in &requests[granted..] {
            let fits = request.tags >= 1 && request.tags <= max_request_tags(self.depth);
            assert!(fits, "a want that never fits");
            self.wait(now, request);
        }
        granted
    }

    fn put(&mut self, _now: Instant, freed: ReturnedTags) {
        self.free += freed.count;
        assert!(self.free <= self.depth, "a tag came back twice");
        assert!(freed.asyncs <= self.asyncs, "an asynchronous tag came back twice");
        self.asyncs -= freed.asyncs;
    }

    fn next_grant(&mut self, now: Instant, room: ByteBudget) -> Option<Grant> {
        if self.waiters == 0 && !self.waking && self.idle == 0 {
            return None;
        }
        let first = if self.waiters == 0 { None } else { self.choose(room) };
        let Some(First { kind, head }) = first else {
            self.waking = false;
            self.settle(now);
            return None;
        };
        self.short = false;
        let waiter = self.flows[kind].pop(head);
        self.last = kind;
        self.waiters -= 1;
        if self.waiters == 0 {
            self.flows.iter_mut().for_each(Flows::reset);
        }
        self.take(&waiter.request);
        self.stats.grants += 1;
        self.stats.wakes += u64::from(!std::mem::replace(&mut self.waking, true));
        self.stats.woken += 1;
        self.stats.longest_wait_ns = self.stats.longest_wait_ns.max(now.since(waiter.since));
        Some(Grant { requester: waiter.request.requester, tags: waiter.request.tags })
    }

    fn charge_growth(&mut self, bytes: u32) {
        self.flows[self.last].charge_last(bytes);
    }

    fn free(&self) -> u32 {
        self.free
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn waiters(&self) -> u32 {
        self.waiters
    }

    fn stats(&self) -> TagStats {
        self.stats
    }
}
