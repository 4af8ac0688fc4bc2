//! A policy operated by hand: request tags, put them back, pass time, and list the grants.

use crate::baseline::{KuaiV3, Legacy518, WakeOptions};
use headworks_core::Instant;
use headworks_core::bio::{ExportId, TenantId};
use headworks_core::tags::{ByteBudget, Requester, ReturnedTags, TagOptions, TagOwner, TagRequest};

/// Options of a host on which a woken task runs at once.
pub fn at_once() -> WakeOptions {
    WakeOptions { base_ns: 0, per_waiter_ns: 0, jitter_ns: 0, per_piece_ns: 0, ..late() }
}

/// Options of a host on which a woken task runs a second later.
pub fn late() -> WakeOptions {
    WakeOptions {
        base_ns: 1_000_000_000,
        per_waiter_ns: 0,
        jitter_ns: 0,
        per_piece_ns: 0,
        safety_net: false,
        ..WakeOptions::default()
    }
}

/// Returns the bits of the patches with these numbers.
pub fn patches(numbers: &[u8]) -> u8 {
    numbers.iter().fold(0, |bits, number| bits | 1 << (number - 1))
}

/// A tag owner, the time, and the number of requests so far.
pub struct Bench<T> {
    pub tags: T,
    pub now: u64,
    asked: u32,
}

impl Bench<Legacy518> {
    pub fn legacy(depth: u32, wake: WakeOptions) -> Self {
        Self::of(Legacy518::new(options(depth), wake))
    }
}

impl Bench<KuaiV3> {
    pub fn kuai(depth: u32, wake: WakeOptions, numbers: &[u8]) -> Self {
        Self::of(KuaiV3::new(options(depth), WakeOptions { patches: patches(numbers), ..wake }))
    }
}

pub fn options(depth: u32) -> TagOptions {
    TagOptions { depth, async_depth: depth, waiters_max: 2048 }
}

impl<T: TagOwner> Bench<T> {
    pub fn of(tags: T) -> Self {
        Self { tags, now: 0, asked: 0 }
    }

    /// Requests `want` tags for each of the next `count` tasks, numbered from 0. Returns the tasks granted by that, in order.
    pub fn request(&mut self, count: u32, want: u16) -> Vec<u32> {
        (0..count).for_each(|_| {
            let task = Requester::Request(self.asked);
            self.asked += 1;
            self.request_as(task, want, true);
        });
        self.granted()
    }

    pub fn request_as(&mut self, requester: Requester, want: u16, sync: bool) {
        let (connection, export) = (0, ExportId(0));
        let request = TagRequest {
            cost: 1,
            requester,
            tags: want,
            bytes: 4096,
            sync,
            connection,
            export,
            weight: 100,
            tenant: TenantId::NONE,
            tenant_weight: 100,
            target_us: 0,
        };
        assert_eq!(self.tags.request(Instant(self.now), &[request], 1), 0);
    }

    /// Takes all tags and restarts the numbers of tasks at 0.
    pub fn fill(&mut self) {
        let depth = self.tags.depth();
        assert_eq!(self.request(depth, 1).len(), depth as usize);
        self.asked = 0;
    }

    /// Puts tags back in one batch; returns the tasks granted at the same instant.
    pub fn put(&mut self, count: u32) -> Vec<u32> {
        self.tags.put(Instant(self.now), ReturnedTags { count, asyncs: 0 });
        self.granted()
    }

    /// Puts tags back one by one, long enough apart that no wakers race.
    pub fn put_each(&mut self, count: u32) -> Vec<u32> {
        let each = (0..count).flat_map(|_| {
            let mut got = self.put(1);
            got.extend(self.pass(1_000_000));
            got
        });
        each.collect()
    }

    /// Passes time; returns the tasks granted, in order.
    pub fn pass(&mut self, ns: u64) -> Vec<u32> {
        let (end, mut got) = (self.now + ns, Vec::new());
        while let Some(at) = self.tags.next_timeout().filter(|at| at.0 <= end) {
            self.now = self.now.max(at.0);
            got.extend(self.granted());
        }
        self.now = end;
        got
    }

    fn granted(&mut self) -> Vec<u32> {
        let mut got = Vec::new();
        while let Some(grant) = self.tags.next_grant(Instant(self.now), ByteBudget::Available) {
            match grant.requester {
                Requester::Request(id) => {
                    assert_eq!(grant.tags, 1);
                    got.push(id);
                }
                Requester::Shard(shard) => {
                    got.push(1_000_000 + u32::from(shard.0) * 100 + u32::from(grant.tags))
                }
            }
        }
        got
    }
}
