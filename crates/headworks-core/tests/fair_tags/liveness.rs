//! Liveness: every request is granted, at every depth and in every order of completions.
//!
//! After every batch the model of [`Gate`] checks conservation, order and limits, and that no request waits while none holds
//! tags.

use headworks_core::prng::Prng;
use headworks_core::tags::{
    ByteBudget, FairTags, ReturnedTags, TagOptions, TagOwner, TagRequest, max_request_tags,
};
use headworks_core::{ExportId, Instant, TenantId};

use crate::gate::{Gate, KIB, request};

/// A workload drawn from a seed: number of connections and exports, size of requests.
struct Workload {
    prng: Prng,
    connections: u64,
    exports: u64,
    max_request_tags: u64,
    asyncs: u32,
    large: u32,
    /// Tenants of the exports, which move at random, and the weights of tenants.
    tenants: [TenantId; 4],
    weights: [u16; 3],
}

impl Workload {
    fn new(depth: u32, mut prng: Prng) -> Self {
        Self {
            connections: 1 << prng.below(6),
            exports: 1 + prng.below(4),
            max_request_tags: 1 + prng.below(max_request_tags(depth).into()),
            asyncs: [0, 300_000, 900_000, 1_000_000][prng.below(4) as usize],
            large: [0, 100_000, 1_000_000][prng.below(3) as usize],
            tenants: [TenantId::NONE; 4],
            weights: [100; 3],
            prng,
        }
    }

    /// Moves an export to another tenant, or to none, and changes a tenant's weight.
    fn edit_tenants(&mut self) {
        let prng = &mut self.prng;
        let to = prng.below(4) as u16;
        self.tenants[prng.below(4) as usize] = if to == 3 { TenantId::NONE } else { TenantId(to) };
        self.weights[prng.below(3) as usize] = prng.between(1, 10_000) as u16;
    }

    fn request(&mut self) -> TagRequest {
        let prng = &mut self.prng;
        let connection = prng.below(self.connections) as u32;
        let large = prng.per_million(self.large);
        let want = if large { prng.between(1, self.max_request_tags) as u16 } else { 1 };
        let bytes = (u32::from(want) * 4 * KIB) << prng.below(9);
        let export = (u64::from(connection) % self.exports) as usize;
        let tenant = self.tenants[export];
        TagRequest {
            sync: !prng.per_million(self.asyncs),
            export: ExportId(export as u16),
            tenant,
            tenant_weight: self.weights.get(usize::from(tenant.0)).copied().unwrap_or(100),
            weight: [1, 100, 100, 10_000][connection as usize % 4],
            ..request(connection, want, bytes)
        }
    }
}

/// Runs a drawn workload; with odd seeds exports move between tenants meanwhile.
fn fuzz(depth: u32, seed: u64, steps: u32) {
    let mut prng = Prng::new(seed << 16 | u64::from(depth));
    let async_depth = if prng.below(2) == 0 { depth } else { prng.between(1, depth.into()) as u32 };
    let mut gate = Gate::new(depth, async_depth);
    let mut workload = Workload::new(depth, prng.split("crowd"));
    let waiting_max = 4 + prng.below(200) as usize;
    let edits = seed % 2 == 1;
    for _ in 0..steps {
        gate.now += prng.below(1000);
        if prng.below(2) == 0 && gate.waiting < waiting_max {
            if edits && prng.below(4) == 0 {
                workload.edit_tenants();
            }
            let batch: Vec<TagRequest> =
                (0..prng.between(1, 8)).map(|_| workload.request()).collect();
            gate.batch(&batch);
        } else if !gate.held.is_empty() {
            for _ in 0..prng.between(1, 1 + depth as u64 / 8).min(gate.held.len() as u64) {
                gate.give_back(prng.below(gate.held.len() as u64) as usize);
            }
            if prng.below(8) == 0 {
                gate.grants(ByteBudget::LightOnly);
            }
            gate.grants(ByteBudget::Available);
        }
        let idle = gate.tags.stats().idle_max;
        assert!(idle < u32::from(max_request_tags(depth)) + gate.reserve(), "{idle} tags lay idle");
    }
    while !gate.held.is_empty() {
        gate.done(prng.below(gate.held.len() as u64) as usize);
    }
    assert_eq!((gate.waiting, gate.tags.free()), (0, depth), "depth {depth}, seed {seed}");
    let stats = gate.tags.stats();
    assert_eq!((stats.requests, stats.grants), (gate.requests.len() as u64, stats.requests));
}

#[test]
fn every_request_is_granted_at_every_depth() {
    for depth in 1..=1024 {
        // A debug build tests every depth as well, but for fewer steps.
        let (steps, seeds) = if cfg!(debug_assertions) { (100, 2) } else { (400, 10) };
        let seeds = if depth <= 64 { 4 * seeds } else { seeds };
        (0..seeds).for_each(|seed| fuzz(depth, seed, steps));
    }
}

#[test]
fn wait_is_bounded_in_bytes_granted_to_others() {
    // 12 equal connections, each with 4 requests of at most 1 MiB outstanding: before a waiter are 4 MiB of its own, 32 turns, and
    // in each the others get a quantum. Another connection may have saved up 1 MiB, and one is in advance.
    let bound = 33 * 11 * 128 * u64::from(KIB) + 11 * 2 * 1024 * u64::from(KIB);
    for depth in [1, 2, 7, 16, 62, 64] {
        for seed in 0..4 {
            let mut prng = Prng::new(seed);
            let mut gate = Gate::new(depth, depth);
            let wants = u64::from(max_request_tags(depth).min(8));
            let mut next = |n: u32| {
                let bytes = (4 * KIB) << prng.below(9);
                request(n, prng.between(1, wants) as u16, bytes)
            };
            // Bytes granted to all when each request was submitted.
            let (mut granted, mut seen, mut at) = (0_u64, 0, Vec::new());
            for n in 0..48 {
                gate.submit(next(n % 12));
            }
            for _ in 0..5_000 {
                at.resize(gate.requests.len(), granted);
                for &number in &gate.granted[seen..] {
                    let waited = granted - at[number];
                    assert!(waited <= bound, "depth {depth}: passed by {waited} bytes");
                    granted += u64::from(gate.requests[number].bytes);
                }
                seen = gate.granted.len();
                let done = gate.done(prng_at(&gate, seed));
                gate.submit(next(gate.requests[done].connection));
            }
            assert!(seen > 4_000);
        }
    }
}

/// Selects the next completion: not always the oldest request.
fn prng_at(gate: &Gate, seed: u64) -> usize {
    Prng::new(seed + gate.requests.len() as u64).below(gate.held.len() as u64) as usize
}

#[test]
fn request_of_256_pieces_is_served_on_62_tags() {
    // The policy grants 31 tags for 256 pieces; the pieces use them one after the other.
    let mut gate = Gate::new(62, 62);
    let want = gate.tags.tags_for(256);
    assert_eq!(want, 31);
    gate.batch(&vec![request(1, 1, 128 * KIB); 100]);
    let large: Vec<usize> = (0..4).map(|n| gate.submit(request(2 + n, want, 32 << 20))).collect();
    let mut steps = 0;
    while !large.iter().all(|number| gate.granted.contains(number)) {
        let done = gate.done(0);
        if gate.requests[done].connection == 1 {
            gate.submit(request(1, 1, 128 * KIB));
        }
        steps += 1;
        assert!(steps < 5_000, "256 turns of 128 KiB each, beside a connection that takes turns");
    }
}

#[test]
fn light_writes_do_not_use_up_async_limit_of_gathering_write() {
    for room in [ByteBudget::Available, ByteBudget::LightOnly] {
        let mut tags = FairTags::new(TagOptions { depth: 32, async_depth: 4, waiters_max: 64 });
        let write =
            |connection, want| TagRequest { sync: false, ..request(connection, want, 4 * KIB) };
        assert_eq!(tags.request(Instant(0), &[request(1, 1, 4 * KIB); 27], 27), 27);
        assert_eq!(tags.request(Instant(0), &[write(2, 4)], 1), 0);
        assert_eq!(tags.next_grant(Instant(0), ByteBudget::Available), None, "the head gathers");
        tags.request(Instant(0), &[write(3, 1)], 1);
        assert_eq!(tags.next_grant(Instant(0), room), None, "{room:?}");
        tags.put(Instant(0), ReturnedTags { count: 1, asyncs: 0 });
        let large = tags.next_grant(Instant(0), ByteBudget::Available).map(|grant| grant.tags);
        assert_eq!(large, Some(4));
        assert_eq!(tags.next_grant(Instant(0), ByteBudget::Available), None, "the limit holds");
    }
}
