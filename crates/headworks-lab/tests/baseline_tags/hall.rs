//! A policy and those who ask it, by hand: `ask`, `put`, let time pass, and see who got a tag.

use headworks_core::Instant;
use headworks_core::bio::ExportId;
use headworks_core::tags::{ByteBudget, Requester, ReturnedTags, TagOptions, TagOwner, TagRequest};
use headworks_lab::baseline::{KuaiV3, Legacy518, WakeOptions};

/// A host that takes no time: what is woken runs at once.
pub fn at_once() -> WakeOptions {
    WakeOptions { base_ns: 0, per_waiter_ns: 0, jitter_ns: 0, per_piece_ns: 0, ..late() }
}

/// A host on which who was woken runs a second later.
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

/// Only these patches, by their numbers.
pub fn patches(numbers: &[u8]) -> u8 {
    numbers.iter().fold(0, |bits, number| bits | 1 << (number - 1))
}

pub struct Hall<T> {
    pub tags: T,
    pub now: u64,
    asked: u32,
}

impl Hall<Legacy518> {
    pub fn legacy(depth: u32, wake: WakeOptions) -> Self {
        Self::of(Legacy518::new(options(depth), wake))
    }
}

impl Hall<KuaiV3> {
    pub fn kuai(depth: u32, wake: WakeOptions, numbers: &[u8]) -> Self {
        Self::of(KuaiV3::new(options(depth), WakeOptions { patches: patches(numbers), ..wake }))
    }
}

pub fn options(depth: u32) -> TagOptions {
    TagOptions { depth, async_depth: depth, waiters_max: 2048 }
}

impl<T: TagOwner> Hall<T> {
    pub fn of(tags: T) -> Self {
        Self { tags, now: 0, asked: 0 }
    }

    /// `count` more ask for `want` tags each; their names go on from 0. Who got tags by that, in order.
    pub fn ask(&mut self, count: u32, want: u16) -> Vec<u32> {
        (0..count).for_each(|_| {
            let who = Requester::Request(self.asked);
            self.asked += 1;
            self.ask_as(who, want, true);
        });
        self.granted()
    }

    pub fn ask_as(&mut self, requester: Requester, want: u16, sync: bool) {
        let (connection, export) = (0, ExportId(0));
        let ask = TagRequest {
            requester,
            tags: want,
            bytes: 4096,
            sync,
            connection,
            export,
            weight: 100,
        };
        assert_eq!(self.tags.request(Instant(self.now), &[ask], 1), 0);
    }

    /// All tags are taken by others than those who will be named from 0 on.
    pub fn fill(&mut self) {
        let depth = self.tags.depth();
        assert_eq!(self.ask(depth, 1).len(), depth as usize);
        self.asked = 0;
    }

    /// Tags come back, in one batch; who got one at the same instant.
    pub fn put(&mut self, count: u32) -> Vec<u32> {
        self.tags.put(Instant(self.now), ReturnedTags { count, asyncs: 0 });
        self.granted()
    }

    /// Tags come back one after the other, long enough apart that no wakers race.
    pub fn put_each(&mut self, count: u32) -> Vec<u32> {
        let each = (0..count).flat_map(|_| {
            let mut got = self.put(1);
            got.extend(self.pass(1_000_000));
            got
        });
        each.collect()
    }

    /// Time passes; who got a tag, in order.
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
