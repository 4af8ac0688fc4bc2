//! The slowest requests of an export: of each of the last 60 seconds the slowest of each operation.
//!
//! There is no threshold to set: a second keeps what is slower than the fastest request of its operation that it has. So most requests
//! cost one comparison. Operations are apart, so that slow writes displace no read, and slow trims no flush.

use headworks_core::{Instant, Op, WaitKind, WaitTimes};

/// Seconds that are kept.
pub const SECONDS: usize = 60;
/// Requests kept of each operation for each second, in the order of [`Op::ALL`].
pub const KEPT: [usize; Op::COUNT] = [16, 12, 6, 2, 2, 1, 1];
/// Where the requests of each operation begin, and where the last one's end.
const BEGIN: [usize; Op::COUNT + 1] = {
    let mut begin = [0; Op::COUNT + 1];
    let mut op = 0;
    while op < Op::COUNT {
        begin[op + 1] = begin[op] + KEPT[op];
        op += 1;
    }
    begin
};
const KEPT_ALL: usize = BEGIN[Op::COUNT];

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
    /// By operation.
    requests: [u64; Op::COUNT],
    used: [usize; Op::COUNT],
    slowest: [SlowRequest; KEPT_ALL],
}

const EMPTY: Second = Second {
    number: u64::MAX,
    requests: [0; Op::COUNT],
    used: [0; Op::COUNT],
    slowest: [NO_REQUEST; KEPT_ALL],
};
const NO_REQUEST: SlowRequest = SlowRequest {
    total_ns: 0,
    at: Instant(0),
    offset: 0,
    wait_times: WaitTimes::NONE,
    len: 0,
    connection: 0,
    op: Op::Read,
};

/// Fewest requests that are considered, if there are as many.
const LEAST: usize = 10;

/// How many of the slowest requests are considered: a hundredth of all, at least ten, as far as they were kept and had to wait.
#[must_use]
pub fn considered(requests: u64, slowest: &[SlowRequest]) -> usize {
    // Requests that were answered in the turn of their arrival were only kept because no others came.
    let waited = slowest.partition_point(|slow| slow.total_ns > 0).max(1).min(slowest.len());
    (requests.div_ceil(100) as usize).max(LEAST).min(waited)
}

/// The time that every considered request took at least, without its wait for limits; `slowest` is in descending order.
#[must_use]
pub fn above_ns(requests: u64, mut slowest: Vec<SlowRequest>) -> u64 {
    let count = considered(requests, &slowest);
    for slow in &mut slowest {
        slow.total_ns = slow.total_ns.saturating_sub(slow.wait_times.at_most(WaitKind::Limit));
    }
    slowest.sort_unstable_by_key(|slow| u64::MAX - slow.total_ns);
    count.checked_sub(1).map_or(0, |last| slowest[last].total_ns)
}

/// Ring of the last 60 seconds; about 115 KiB.
#[derive(Debug)]
pub struct SlowRing {
    seconds: Box<[Second]>,
    /// Index of the current second.
    current: usize,
    ends: Instant,
    /// Requests of an operation that are not slower are not kept.
    floor_ns: [u64; Op::COUNT],
}

/// Which requests are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowFilter {
    /// The operation; all of them if none.
    pub op: Option<Op>,
    /// How many of the last seconds, 1..=60.
    pub seconds: u64,
}

impl Default for SlowFilter {
    fn default() -> Self {
        Self { op: None, seconds: SECONDS as u64 }
    }
}

impl SlowFilter {
    fn has(self, op: usize) -> bool {
        self.op.is_none_or(|wanted| wanted as usize == op)
    }
}

impl Default for SlowRing {
    fn default() -> Self {
        Self {
            seconds: vec![EMPTY; SECONDS].into_boxed_slice(),
            current: 0,
            ends: Instant(0),
            floor_ns: [0; Op::COUNT],
        }
    }
}

impl SlowRing {
    /// Counts a completed request, and keeps it if it is slow.
    #[inline]
    pub fn record(
        &mut self,
        slow: impl FnOnce() -> SlowRequest,
        now: Instant,
        (op, total_ns): (Op, u64),
    ) {
        if now >= self.ends {
            self.begin_second(now);
        }
        let index = op as usize;
        self.seconds[self.current].requests[index] += 1;
        // An operation that has room has the floor 0, and a request in the turn of its arrival takes 0 ns.
        if total_ns >= self.floor_ns[index] {
            self.keep(index, slow());
        }
    }

    #[cold]
    fn begin_second(&mut self, now: Instant) {
        let number = now.0 / SECOND_NS;
        self.current = number as usize % SECONDS;
        self.seconds[self.current] = Second { number, ..EMPTY };
        self.ends = Instant((number + 1) * SECOND_NS);
        self.floor_ns = [0; Op::COUNT];
    }

    fn keep(&mut self, op: usize, slow: SlowRequest) {
        let Second { used, slowest, .. } = &mut self.seconds[self.current];
        let (used, slowest) = (&mut used[op], &mut slowest[BEGIN[op]..BEGIN[op + 1]]);
        if let Some(free) = slowest.get_mut(*used) {
            *free = slow;
            *used += 1;
        } else if let Some(fastest) = slowest.iter_mut().min_by_key(|kept| kept.total_ns) {
            *fastest = slow;
        }
        if *used == slowest.len() {
            let fastest = slowest.iter().map(|kept| kept.total_ns).min();
            // One more, so that of equal requests the first ones stay.
            self.floor_ns[op] = fastest.map_or(0, |ns| ns + 1);
        }
    }

    /// Number of requests of the last seconds, and the slowest of them in descending order.
    #[must_use]
    pub fn recent(&self, now: Instant, filter: SlowFilter) -> (u64, Vec<SlowRequest>) {
        let last = now.0 / SECOND_NS;
        let recent = |second: &&Second| {
            second.number <= last && last - second.number < filter.seconds.min(SECONDS as u64)
        };
        let mut requests = 0;
        let mut slowest = Vec::new();
        for second in self.seconds.iter().filter(recent) {
            for op in (0..Op::COUNT).filter(|op| filter.has(*op)) {
                requests += second.requests[op];
                slowest.extend_from_slice(&second.slowest[BEGIN[op]..][..second.used[op]]);
            }
        }
        slowest.sort_unstable_by_key(|slow| (u64::MAX - slow.total_ns, slow.at));
        (requests, slowest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::prng::Prng;

    const ALL: SlowFilter = SlowFilter { op: None, seconds: SECONDS as u64 };

    fn record_op(ring: &mut SlowRing, op: Op, now: u64, total_ns: u64) {
        let slow = || SlowRequest { total_ns, at: Instant(now), op, ..SlowRequest::default() };
        ring.record(slow, Instant(now), (op, total_ns));
    }

    fn record(ring: &mut SlowRing, now: u64, total_ns: u64) {
        record_op(ring, Op::Read, now, total_ns);
    }

    #[test]
    fn slow_writes_displace_no_read_and_filters_choose() {
        let mut ring = SlowRing::default();
        record(&mut ring, 5, 7);
        (0..100).for_each(|_| record_op(&mut ring, Op::Write, 6, 1 << 30));
        record_op(&mut ring, Op::Flush, 2 * SECOND_NS, 99);
        let now = Instant(2 * SECOND_NS + 1);
        let found = |op, seconds| {
            let (requests, slowest) = ring.recent(now, SlowFilter { op, seconds });
            (requests, slowest.len())
        };
        assert_eq!(found(Some(Op::Read), 60), (1, 1));
        assert_eq!(found(Some(Op::Write), 60), (100, KEPT[1]));
        assert_eq!(found(None, 60), (102, KEPT[1] + 2));
        assert_eq!(found(None, 2), (1, 1), "this second and the one before");
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
            expected.extend_from_slice(&all[500 - KEPT[0]..]);
        }
        expected.sort_unstable_by(|a, b| b.cmp(a));
        let (requests, slowest) = ring.recent(Instant(3 * SECOND_NS), ALL);
        let found: Vec<u64> = slowest.iter().map(|slow| slow.total_ns).collect();
        assert_eq!((requests, found), (1500, expected));
    }

    #[test]
    fn requests_older_than_a_minute_are_dropped() {
        let mut ring = SlowRing::default();
        record(&mut ring, 0, 99);
        record(&mut ring, 30 * SECOND_NS, 1);
        let count = |ring: &SlowRing, second: u64| ring.recent(Instant(second * SECOND_NS), ALL).0;
        assert_eq!([30, 59, 60, 89, 90].map(|at| count(&ring, at)), [2, 2, 1, 1, 0]);
        // The same entry of the ring, a minute later.
        record(&mut ring, 90 * SECOND_NS, 7);
        assert_eq!(ring.recent(Instant(90 * SECOND_NS), ALL).1[0].total_ns, 7);
        assert_eq!(ring.recent(Instant(90 * SECOND_NS), ALL).0, 1);
    }
}
