//! The slowest requests of an export: the 32 slowest of each of the last 60 seconds.
//!
//! There is no threshold to set: a second keeps what is slower than the fastest request it has. So most requests cost
//! one comparison.

use headworks_core::{Instant, Op, WaitTimes};

/// Seconds that are kept.
pub const SECONDS: usize = 60;
/// Requests kept for each second.
pub const KEPT: usize = 32;

const SECOND_NS: u64 = 1_000_000_000;

/// A request that was among the slowest of its second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlowRequest {
    /// Nanoseconds from its arrival to its reply.
    pub total_ns: u64,
    /// Time of its reply.
    pub at: Instant,
    /// First byte of its range.
    pub offset: u64,
    /// Waits that it had.
    pub wait_times: WaitTimes,
    /// Length of its range in bytes.
    pub len: u32,
    /// Id of its connection.
    pub connection: u32,
    /// Operation of the request.
    pub op: Op,
}

#[derive(Clone, Copy, Debug)]
struct Second {
    /// Number of the second on the shard's clock; `u64::MAX` if unused.
    number: u64,
    requests: u64,
    used: usize,
    slowest: [SlowRequest; KEPT],
}

const EMPTY: Second =
    Second { number: u64::MAX, requests: 0, used: 0, slowest: [NO_REQUEST; KEPT] };
const NO_REQUEST: SlowRequest = SlowRequest {
    total_ns: 0,
    at: Instant(0),
    offset: 0,
    wait_times: WaitTimes::NONE,
    len: 0,
    connection: 0,
    op: Op::Read,
};

/// Ring of the last 60 seconds; about 110 KiB.
#[derive(Debug)]
pub struct SlowRing {
    seconds: Box<[Second]>,
    /// Index of the current second.
    current: usize,
    ends: Instant,
    /// Requests that are not slower are not kept.
    floor_ns: u64,
}

impl Default for SlowRing {
    fn default() -> Self {
        Self {
            seconds: vec![EMPTY; SECONDS].into_boxed_slice(),
            current: 0,
            ends: Instant(0),
            floor_ns: 0,
        }
    }
}

impl SlowRing {
    /// Counts a completed request, and keeps it if it is slow.
    #[inline]
    pub fn record(&mut self, slow: impl FnOnce() -> SlowRequest, now: Instant, total_ns: u64) {
        if now >= self.ends {
            self.begin_second(now);
        }
        let second = &mut self.seconds[self.current];
        second.requests += 1;
        if total_ns > self.floor_ns || second.used < KEPT {
            self.keep(slow());
        }
    }

    #[cold]
    fn begin_second(&mut self, now: Instant) {
        let number = now.0 / SECOND_NS;
        self.current = number as usize % SECONDS;
        self.seconds[self.current] = Second { number, ..EMPTY };
        self.ends = Instant((number + 1) * SECOND_NS);
        self.floor_ns = 0;
    }

    fn keep(&mut self, slow: SlowRequest) {
        let second = &mut self.seconds[self.current];
        if second.used < KEPT {
            second.slowest[second.used] = slow;
            second.used += 1;
        } else if let Some(fastest) = second.slowest.iter_mut().min_by_key(|kept| kept.total_ns) {
            *fastest = slow;
        }
        if second.used == KEPT {
            self.floor_ns = second.slowest.iter().map(|kept| kept.total_ns).min().unwrap_or(0);
        }
    }

    /// Number of requests of the last minute, and the slowest of them in descending order.
    #[must_use]
    pub fn recent(&self, now: Instant) -> (u64, Vec<SlowRequest>) {
        let last = now.0 / SECOND_NS;
        let recent =
            |second: &&Second| second.number <= last && last - second.number < SECONDS as u64;
        let mut requests = 0;
        let mut slowest = Vec::new();
        for second in self.seconds.iter().filter(recent) {
            requests += second.requests;
            slowest.extend_from_slice(&second.slowest[..second.used]);
        }
        slowest.sort_unstable_by_key(|slow| (u64::MAX - slow.total_ns, slow.at));
        (requests, slowest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::prng::Prng;

    fn record(ring: &mut SlowRing, now: u64, total_ns: u64) {
        let slow = || SlowRequest { total_ns, at: Instant(now), ..SlowRequest::default() };
        ring.record(slow, Instant(now), total_ns);
    }

    #[test]
    fn each_second_keeps_slowest_in_any_order() {
        let mut ring = SlowRing::default();
        let mut prng = Prng::new(1);
        let mut expected = Vec::new();
        for second in 0..3_u64 {
            let mut all: Vec<u64> = (0..500).map(|_| prng.below(1 << 30)).collect();
            for total in &all {
                record(&mut ring, second * SECOND_NS + 5, *total);
            }
            all.sort_unstable();
            expected.extend_from_slice(&all[500 - KEPT..]);
        }
        expected.sort_unstable_by(|a, b| b.cmp(a));
        let (requests, slowest) = ring.recent(Instant(3 * SECOND_NS));
        let found: Vec<u64> = slowest.iter().map(|slow| slow.total_ns).collect();
        assert_eq!((requests, found), (1500, expected));
    }

    #[test]
    fn requests_older_than_a_minute_are_dropped() {
        let mut ring = SlowRing::default();
        record(&mut ring, 0, 99);
        record(&mut ring, 30 * SECOND_NS, 1);
        let count = |ring: &SlowRing, second: u64| ring.recent(Instant(second * SECOND_NS)).0;
        assert_eq!([30, 59, 60, 89, 90].map(|at| count(&ring, at)), [2, 2, 1, 1, 0]);
        // The same entry of the ring, a minute later.
        record(&mut ring, 90 * SECOND_NS, 7);
        assert_eq!(ring.recent(Instant(90 * SECOND_NS)).1[0].total_ns, 7);
        assert_eq!(ring.recent(Instant(90 * SECOND_NS)).0, 1);
    }
}
