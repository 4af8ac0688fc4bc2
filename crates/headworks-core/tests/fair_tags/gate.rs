//! A test harness for `FairTags`: requests go in, grants come out, and a naive model checks them.
//!
//! The model checks one order (requests of a connection are served in order), conservation (free + held == depth) and the
//! limits (asynchronous tags, idle tags). Which connection goes next is checked by the tests.

use std::collections::{BTreeMap, VecDeque};

use headworks_core::tags::{
    ByteBudget, FairTags, Grant, Requester, ReturnedTags, TagOptions, TagOwner, TagRequest,
};
use headworks_core::{ExportId, Instant, TenantId};

pub const KIB: u32 = 1 << 10;

/// Makes a synchronous request of `connection`, for export 0.
pub fn request(connection: u32, tags: u16, bytes: u32) -> TagRequest {
    let (requester, export) = (Requester::Request(0), ExportId(0));
    let cost = bytes.max(4096).into();
    let (tenant, tenant_weight) = (TenantId::NONE, 100);
    TagRequest {
        requester,
        tags,
        bytes,
        cost,
        sync: true,
        connection,
        export,
        weight: 100,
        tenant,
        tenant_weight,
        target_us: 0,
    }
}

/// What is served in order.
type Line = (TenantId, u16, u32, bool);

fn line_of(request: &TagRequest) -> Line {
    (request.tenant, request.export.0, request.connection, request.sync)
}

/// The policy and the requests that hold tags or wait.
pub struct Gate {
    pub tags: FairTags,
    pub now: u64,
    pub depth: u32,
    async_depth: u32,
    /// All requests so far, by number.
    pub requests: Vec<TagRequest>,
    /// Numbers of the requests that hold tags, oldest first.
    pub held: VecDeque<usize>,
    /// Waiting requests by tenant, export, connection and kind, in order of arrival.
    queues: BTreeMap<Line, VecDeque<usize>>,
    pub waiting: usize,
    /// Requests that were granted after they had waited, in order.
    pub granted: Vec<usize>,
    /// Tags held and their holders: synchronous, asynchronous.
    taken: [(u32, u32); 2],
}

impl Gate {
    pub fn new(depth: u32, async_depth: u32) -> Self {
        let waiters_max = 20_000;
        Self {
            tags: FairTags::new(TagOptions { depth, async_depth, waiters_max }),
            now: 0,
            depth,
            async_depth,
            requests: Vec::new(),
            held: VecDeque::new(),
            queues: BTreeMap::new(),
            waiting: 0,
            granted: Vec::new(),
            taken: [(0, 0); 2],
        }
    }

    /// Returns the tags that only light flows may use.
    pub fn reserve(&self) -> u32 {
        self.depth / 16
    }

    /// Submits a batch and takes all grants. Returns the number of the first request.
    pub fn batch(&mut self, requests: &[TagRequest]) -> usize {
        let first = self.put_in(requests);
        self.grants(ByteBudget::Available);
        first
    }

    /// Submits a batch without taking grants.
    pub fn put_in(&mut self, requests: &[TagRequest]) -> usize {
        let first = self.requests.len();
        let named = |(n, request): (usize, &TagRequest)| TagRequest {
            requester: Requester::Request((first + n) as u32),
            ..*request
        };
        self.requests.extend(requests.iter().enumerate().map(named));
        let before = self.waiting;
        let at_once = self.tags.request(Instant(self.now), &self.requests[first..], usize::MAX);
        assert!(at_once == 0 || before == 0, "a newcomer passes no waiter");
        for number in first..self.requests.len() {
            if number < first + at_once {
                self.hold(number);
            } else {
                let request = self.requests[number];
                let line = line_of(&request);
                self.queues.entry(line).or_default().push_back(number);
                self.waiting += 1;
            }
        }
        first
    }

    pub fn submit(&mut self, request: TagRequest) -> usize {
        self.batch(&[request])
    }

    /// Returns whether a request holds its tags.
    pub fn holds(&self, number: usize) -> bool {
        self.held.contains(&number)
    }

    /// Completes the request at position `at` of `held` and takes all grants. Returns its number.
    pub fn done(&mut self, at: usize) -> usize {
        let number = self.give_back(at);
        self.grants(ByteBudget::Available);
        number
    }

    /// Completes a request like [`Gate::done`] and returns it.
    pub fn finish(&mut self, at: usize) -> TagRequest {
        let number = self.done(at);
        self.requests[number]
    }

    fn hold(&mut self, number: usize) {
        let request = self.requests[number];
        let (tags, holders) = &mut self.taken[usize::from(!request.sync)];
        (*tags, *holders) = (*tags + u32::from(request.tags), *holders + 1);
        self.held.push_back(number);
    }

    /// Returns the tags of a request without taking grants.
    pub fn give_back(&mut self, at: usize) -> usize {
        let number = self.held.remove(at).expect("a request holds tags");
        let TagRequest { tags: want, sync, .. } = self.requests[number];
        let count = u32::from(want);
        let asyncs = if sync { 0 } else { count };
        let (tags, holders) = &mut self.taken[usize::from(!sync)];
        (*tags, *holders) = (tags.saturating_sub(count), holders.saturating_sub(1));
        self.tags.put(Instant(self.now), ReturnedTags { count, asyncs });
        number
    }

    /// Takes and checks all grants.
    pub fn grants(&mut self, budget: ByteBudget) {
        while let Some(Grant { requester, tags, .. }) =
            self.tags.next_grant(Instant(self.now), budget)
        {
            let Requester::Request(number) = requester else {
                panic!("no shard requested tags");
            };
            let request = self.requests[number as usize];
            assert_eq!(tags, request.tags, "requests are granted whole");
            if budget == ByteBudget::LightOnly {
                assert!(request.tags == 1 && request.bytes <= 64 * KIB, "{request:?} is not light");
            }
            let line = self.queues.get_mut(&line_of(&request));
            let first = line.expect("the request waited").pop_front();
            assert_eq!(
                first,
                Some(number as usize),
                "requests of a connection are granted in order"
            );
            self.waiting -= 1;
            self.hold(number as usize);
            self.granted.push(number as usize);
        }
        self.check(budget);
    }

    fn check(&self, budget: ByteBudget) {
        let [(syncs, _), (asyncs, async_holders)] = self.taken;
        assert_eq!(self.tags.free() + syncs + asyncs, self.depth, "tags are conserved");
        assert_eq!(self.tags.waiters() as usize, self.waiting);
        let within = asyncs <= self.async_depth || async_holders == 1;
        assert!(within, "{asyncs} asynchronous tags");
        let served = self.waiting == 0 || !self.held.is_empty() || budget == ByteBudget::LightOnly;
        assert!(served, "a request waits and none holds tags");
    }
}
