//! The rules of mq-deadline, one test each.
//!
//! Requests are words: `R8` reads at 8, `W`, `D` and `Z` write, discard and zero; prefixes are `v1:` for another volume, `rt:` or
//! `idle:` for another class.

use super::*;
use crate::bio::{Ioprio, Op, VolumeId};
use crate::time::{MS, SEC};

/// An elevator, its requests and the time.
struct Harness {
    elevator: DeadlineElevator,
    slots: Slots,
    now: u64,
    words: Vec<String>,
    batch: Batch,
}

impl Harness {
    fn new(options: DeadlineOptions) -> Self {
        Self {
            elevator: DeadlineElevator::new(&options),
            slots: Slots::touched(2048),
            now: 1,
            words: Vec::new(),
            batch: Batch::with_capacity(2048),
        }
    }

    /// Inserts requests in one batch.
    fn insert(&mut self, words: &str) {
        let first = self.words.len() as u32;
        for word in words.split_whitespace() {
            let id = self.words.len() as u32;
            self.slots[id] = request(word);
            self.words.push(word.to_owned());
        }
        let ids: Vec<SlotId> = (first..self.words.len() as u32).collect();
        self.elevator.insert(Instant(self.now), &mut self.slots, &ids);
    }

    /// Dispatches at most `room` requests.
    fn dispatch(&mut self, room: usize) -> String {
        self.batch.reset(room);
        self.elevator.dispatch(Instant(self.now), &mut self.slots, &mut self.batch);
        let words: Vec<&str> =
            self.batch.ids().iter().map(|&id| self.words[id as usize].as_str()).collect();
        words.join(" ")
    }

    fn dispatch_all(&mut self) -> String {
        self.dispatch(2048)
    }

    /// Completes dispatched requests.
    fn complete(&mut self, words: &str) {
        let done = |word| EndedRequest::of(&request(word));
        let done: Vec<EndedRequest> = words.split_whitespace().map(done).collect();
        self.elevator.on_complete(Instant(self.now), &self.slots, &done);
    }

    fn pass(&mut self, ms: u64) {
        self.now += ms * MS;
    }

    fn id(&self, word: &str) -> SlotId {
        self.words.iter().rposition(|known| known == word).expect(word) as SlotId
    }

    /// Merges a bio into the front of `word`, which then starts at `offset`.
    fn front(&mut self, word: &str, offset: u64) {
        let id = self.id(word);
        self.slots[id].offset = offset;
        self.elevator.on_merge(&mut self.slots, id, None, MergeEdge::Front);
    }

    /// Merges `gone` into the back of `kept`.
    fn join(&mut self, kept: &str, gone: &str) {
        let (kept, gone_id) = (self.id(kept), self.id(gone));
        self.elevator.on_merge(&mut self.slots, kept, Some(gone_id), MergeEdge::Back);
        self.complete(gone);
    }
}

fn request(word: &str) -> Request {
    let mut request = Request { len: 1, state: RequestState::Queued, ..Request::default() };
    let mut parts = word.rsplit(':');
    let (op, offset) = parts.next().expect(word).split_at(1);
    request.offset = offset.parse().expect(word);
    request.op = match op {
        "R" => Op::Read,
        "W" => Op::Write,
        "D" => Op::Discard,
        "Z" => Op::WriteZeroes,
        _ => panic!("{word}"),
    };
    for part in parts {
        match part.strip_prefix('v') {
            Some(volume) => request.volume = VolumeId(volume.parse().expect(word)),
            None => request.ioprio = Ioprio::parse(part).expect(word),
        }
    }
    request
}

fn options() -> DeadlineOptions {
    DeadlineOptions::default()
}

/// Returns the dispatch order of requests that arrive in one batch.
fn order(words: &str) -> String {
    let mut harness = Harness::new(options());
    harness.insert(words);
    harness.dispatch_all()
}

#[test]
fn reads_go_first_and_directions_are_sorted() {
    assert_eq!(order("R8 R0 W4"), "R0 R8 W4");
    assert_eq!(order("W4 W2 R9 W8 R1"), "R1 R9 W2 W4 W8");
    assert_eq!(order("R7 R7 R3 R7"), "R3 R7 R7 R7");
    assert_eq!(order(""), "");
}

#[test]
fn discards_and_zeroing_go_with_the_writes() {
    assert_eq!(order("Z3 D1 W2 R9"), "R9 D1 W2 Z3");
}

#[test]
fn volumes_are_sorted_before_offsets() {
    assert_eq!(order("v1:R0 R8 v1:R4 R2"), "R2 R8 v1:R0 v1:R4");
}

#[test]
fn sweep_goes_upward_and_restarts_at_lowest_position() {
    let mut harness = Harness::new(options());
    harness.insert("R50 R60");
    assert_eq!(harness.dispatch(1), "R50");
    harness.insert("R40 R10 R55");
    assert_eq!(harness.dispatch_all(), "R55 R60 R10 R40", "what is ahead, then upward again");
}

#[test]
fn request_ahead_of_sweep_joins_it() {
    let mut harness = Harness::new(options());
    harness.insert("R10 R30");
    assert_eq!(harness.dispatch(1), "R10");
    harness.insert("R20 R10");
    assert_eq!(harness.dispatch_all(), "R10 R20 R30");
}

#[test]
fn write_batch_continues_when_reads_arrive() {
    let mut harness = Harness::new(DeadlineOptions { fifo_batch: 3, ..options() });
    harness.insert("W1 W2 W3 W4");
    assert_eq!(harness.dispatch(1), "W1");
    harness.insert("R9 R8");
    assert_eq!(harness.dispatch_all(), "W2 W3 R8 R9 W4");
}

#[test]
fn expired_read_starts_next_batch() {
    let mut harness = Harness::new(DeadlineOptions { fifo_batch: 2, ..options() });
    harness.insert("R90 R91");
    assert_eq!(harness.dispatch(1), "R90");
    harness.insert("R5");
    harness.pass(499);
    harness.insert("R92 R93 R94");
    assert_eq!(harness.dispatch(1), "R91");
    harness.pass(1);
    assert_eq!(harness.dispatch_all(), "R5 R92 R93 R94", "R5 has waited 500 ms");
}

#[test]
fn unexpired_oldest_request_waits_for_end_of_sweep() {
    let mut harness = Harness::new(DeadlineOptions { fifo_batch: 2, ..options() });
    harness.insert("R90 R91");
    assert_eq!(harness.dispatch(1), "R90");
    harness.insert("R5 R92 R93 R94");
    harness.pass(499);
    assert_eq!(harness.dispatch_all(), "R91 R92 R93 R94 R5");
}

#[test]
fn deadlines_are_checked_between_batches_only() {
    let mut harness = Harness::new(DeadlineOptions { fifo_batch: 4, ..options() });
    harness.insert("W50 W51 W52 W53 W54");
    assert_eq!(harness.dispatch(1), "W50");
    harness.insert("W1");
    harness.pass(5000);
    assert_eq!(harness.dispatch_all(), "W51 W52 W53 W54 W1", "W54 is older, and has expired, too");
    harness.insert("W60 W61 W62 W63 W64");
    assert_eq!(harness.dispatch(1), "W60");
    harness.insert("W2");
    harness.pass(4999);
    harness.insert("W70 W71");
    harness.pass(1);
    assert_eq!(harness.dispatch(3), "W61 W62 W63");
    assert_eq!(
        harness.dispatch_all(),
        "W64 W70 W71 W2",
        "the oldest is ahead, and begins the batch"
    );
}

#[test]
fn writes_starved_bounds_read_batches_before_writes() {
    for (starved, expected) in [
        (0, "W0 W1 R0 R1 R2 R3 R4 R5"),
        (1, "R0 R1 W0 W1 R2 R3 R4 R5"),
        (2, "R0 R1 R2 R3 W0 W1 R4 R5"),
        (3, "R0 R1 R2 R3 R4 R5 W0 W1"),
    ] {
        let options = DeadlineOptions { fifo_batch: 2, writes_starved: starved, ..options() };
        let mut harness = Harness::new(options);
        harness.insert("R0 R1 R2 R3 R4 R5 W0 W1");
        assert_eq!(harness.dispatch_all(), expected, "writes_starved {starved}");
    }
}

/// In Linux `writes_starved` 0 starves reads while there are writes.
#[test]
fn expired_read_passes_writes_with_writes_starved_0() {
    let options = DeadlineOptions { fifo_batch: 2, writes_starved: 0, ..options() };
    let mut harness = Harness::new(options);
    harness.insert("R0 R1 R2 W0 W1 W2 W3 W4 W5");
    assert_eq!(harness.dispatch(4), "W0 W1 W2 W3");
    harness.pass(500);
    assert_eq!(harness.dispatch_all(), "R0 R1 W4 W5 R2");
}

#[test]
fn lower_level_waits_until_higher_one_has_completed() {
    let mut harness = Harness::new(options());
    harness.insert("idle:R1 R2 rt:R3 rt:W4");
    assert_eq!(harness.dispatch_all(), "rt:R3 rt:W4");
    harness.complete("rt:W4");
    assert_eq!(harness.dispatch_all(), "", "rt:R3 is still in the device");
    harness.complete("rt:R3");
    assert_eq!(harness.dispatch_all(), "R2");
    harness.insert("rt:R5");
    assert_eq!(harness.dispatch_all(), "rt:R5");
    harness.complete("rt:R5 R2");
    assert_eq!(harness.dispatch_all(), "idle:R1");
}

#[test]
fn priorities_within_class_share_one_level() {
    assert_eq!(order("be,7:R1 be,0:R3 be,4:R2"), "be,7:R1 be,4:R2 be,0:R3");
}

#[test]
fn timer_is_set_to_aging_of_oldest_held_request() {
    let mut harness = Harness::new(options());
    harness.insert("rt:R0");
    assert_eq!(harness.dispatch_all(), "rt:R0");
    harness.insert("idle:W7");
    harness.pass(3);
    harness.insert("R8");
    assert_eq!(harness.dispatch_all(), "");
    assert_eq!(harness.elevator.next_timeout(), Some(Instant(1 + 10 * SEC)));
    harness.pass(9_997);
    assert_eq!(harness.dispatch_all(), "idle:W7");
    assert_eq!(harness.elevator.next_timeout(), Some(Instant(1 + 10 * SEC + 3 * MS)));
    harness.pass(3);
    assert_eq!(harness.dispatch_all(), "R8");
    assert_eq!(harness.elevator.next_timeout(), None);
}

/// In Linux a fruitless search of an aged level may start a batch there: the batch of the other level then never ends.
#[test]
fn held_request_does_not_change_batches_of_other_levels() {
    let trace = |others: &str| {
        let mut harness = Harness::new(DeadlineOptions { fifo_batch: 2, ..options() });
        harness.insert("R9");
        assert_eq!(harness.dispatch_all(), "R9");
        harness.insert(others);
        harness.insert("rt:R1 rt:R2 rt:R3 rt:R4 rt:R5 rt:R6 rt:W1 rt:W2");
        harness.dispatch_all()
    };
    // R9 began the batch that rt:R1 ends.
    assert_eq!(trace(""), "rt:R1 rt:R2 rt:R3 rt:R4 rt:R5 rt:W1 rt:W2 rt:R6");
    for others in ["R5", "R5 W5", "W5", "idle:R1", "R1 W1 idle:W1"] {
        assert_eq!(trace(others), trace(""), "{others}");
    }
}

/// In Linux only the age of the next request of the sweep counts: younger ones ahead of the oldest delay it.
#[test]
fn aged_request_goes_before_nearer_younger_ones() {
    let mut harness = Harness::new(options());
    harness.insert("rt:R0 R100");
    assert_eq!(harness.dispatch_all(), "rt:R0");
    harness.pass(9_999);
    harness.insert("R50");
    assert_eq!(harness.dispatch_all(), "");
    harness.pass(1);
    assert_eq!(harness.dispatch_all(), "R100");
}

#[test]
fn aged_requests_go_in_position_order() {
    let mut harness = Harness::new(options());
    harness.insert("rt:R0 R30 R10 R20");
    assert_eq!(harness.dispatch_all(), "rt:R0");
    harness.pass(10_000);
    assert_eq!(harness.dispatch_all(), "R10 R20 R30");
}

#[test]
fn front_merge_resorts_request() {
    let mut harness = Harness::new(options());
    harness.insert("R10 R20 R30");
    harness.front("R30", 15);
    assert_eq!(harness.dispatch(2), "R10 R30");
    harness.insert("R40");
    harness.front("R40", 12);
    assert_eq!(harness.dispatch_all(), "R20 R40", "12 is behind the sweep");
}

#[test]
fn merge_with_older_request_inherits_deadline_and_position() {
    let mut harness = Harness::new(DeadlineOptions { fifo_batch: 1, ..options() });
    harness.insert("R50");
    assert_eq!(harness.dispatch(1), "R50");
    harness.insert("R8");
    harness.pass(200);
    harness.insert("R4 R60 R61");
    harness.join("R4", "R8");
    harness.pass(300);
    assert_eq!(harness.dispatch_all(), "R4 R60 R61", "500 ms after R8 came");
}

#[test]
fn merge_with_younger_request_keeps_deadline() {
    let mut harness = Harness::new(DeadlineOptions { fifo_batch: 1, ..options() });
    harness.insert("R50");
    assert_eq!(harness.dispatch(1), "R50");
    harness.insert("R4");
    harness.pass(200);
    harness.insert("R8 R60");
    harness.join("R4", "R8");
    harness.pass(299);
    assert_eq!(harness.dispatch(1), "R60");
    harness.insert("R70");
    harness.pass(1);
    assert_eq!(harness.dispatch_all(), "R4 R70");
}

#[test]
fn merged_request_does_not_hold_lower_level_back() {
    let mut harness = Harness::new(options());
    harness.insert("rt:R0 rt:R1 R9");
    harness.join("rt:R0", "rt:R1");
    assert_eq!(harness.dispatch_all(), "rt:R0");
    harness.complete("rt:R0");
    assert_eq!(harness.dispatch_all(), "R9");
}

#[test]
fn merge_into_requeued_request_removes_merged_one() {
    let mut harness = Harness::new(options());
    harness.insert("R0");
    assert_eq!(harness.dispatch_all(), "R0");
    harness.insert("R1 R5");
    harness.slots[0].marks |= Request::REQUEUED;
    harness.join("R0", "R1");
    harness.front("R5", 3);
    assert_eq!(harness.dispatch_all(), "R5");
}

#[test]
#[should_panic(expected = "more requests ended than were inserted")]
fn second_completion_of_request_panics() {
    let mut harness = Harness::new(options());
    harness.insert("R0");
    harness.complete("R0 R0");
}

/// Inserts `count` requests at scattered positions.
fn refill(harness: &mut Harness, prefix: &str, count: usize) {
    let first = harness.words.len() as u64;
    let words: Vec<String> =
        (0..count as u64).map(|n| format!("{prefix}{}", (first + n) * 7919 % 1000)).collect();
    harness.insert(&words.join(" "));
}

/// M1 and M3: endless reads and writes leave in two batches of 16 reads to one of 16 writes, each upward.
#[test]
fn m1_m3_two_sorted_read_batches_to_one_write_batch() {
    let mut harness = Harness::new(options());
    // Ascending positions, because a batch also ends at the end of a sweep.
    let words = |op: &str, from: usize| -> String {
        (from..from + 320).map(|n| format!("{op}{n} ")).collect()
    };
    harness.insert(&words("R", 0));
    harness.insert(&words("W", 0));
    let mut last = 0;
    let trace = harness.dispatch(20 * 16);
    for (batch, chunk) in trace.split(' ').collect::<Vec<_>>().chunks(16).enumerate() {
        let expected = if batch % 3 == 2 { "W" } else { "R" };
        for (n, word) in chunk.iter().enumerate() {
            let (op, offset) = word.split_at(1);
            let offset: u32 = offset.parse().unwrap();
            assert!(op == expected && (n == 0 || offset > last), "batch {batch}: {chunk:?}");
            last = offset;
        }
    }
}

/// M2: on a device of depth 1 a request waits at most until its deadline, or until it is the oldest of its direction, and then
/// for `writes_starved + 1` batches.
#[test]
fn m2_delay_is_bounded() {
    let service = 1;
    for (read_expire_ms, write_expire_ms, writes_starved, fifo_batch) in
        [(50, 100, 2, 16), (5, 5, 2, 4), (100, 10, 0, 16), (20, 300, 5, 1)]
    {
        let mut harness = Harness::new(DeadlineOptions {
            read_expire_ms,
            write_expire_ms,
            writes_starved,
            fifo_batch,
            ..options()
        });
        // Time at which the oldest request of each direction became the oldest.
        let mut oldest_since: [Option<(SlotId, u64)>; 2] = [None, None];
        let (mut longest, mut inserted) = (0, 0);
        // With `writes_starved` 0 the directions alternate: that is two batches, too.
        let batches = u64::from(writes_starved.max(1) + 1);
        let bound = batches * u64::from(fifo_batch) * service * MS;
        for turn in 0..1900 {
            // Bursts of overload, then idle time.
            let burst = if turn % 400 < 200 { 2 } else { 0 };
            for op in ["R", "W"].iter().take(burst) {
                if inserted < 1800 {
                    refill(&mut harness, op, 1);
                    inserted += 1;
                }
            }
            for (lane, since) in
                harness.elevator.picker.levels[1].lanes.iter().zip(&mut oldest_since)
            {
                let oldest = lane.oldest();
                if since.is_none_or(|(id, _)| id != oldest) {
                    *since = Some((oldest, harness.now));
                }
            }
            harness.dispatch(1);
            if let Some(&id) = harness.batch.ids().first() {
                let direction = Direction::of(harness.slots[id].op) as usize;
                if let Some((_, since)) = oldest_since[direction].filter(|since| since.0 == id) {
                    let due = harness.slots[id].deadline.0.max(since);
                    let late = harness.now.saturating_sub(due);
                    let (word, options) =
                        (&harness.words[id as usize], harness.elevator.picker.writes_starved);
                    assert!(late <= bound, "{word} is {late} ns late, writes_starved {options}");
                    longest = longest.max(late);
                }
                let word = harness.words[id as usize].clone();
                harness.complete(&word);
            }
            harness.pass(service);
        }
        assert!(longest > 0, "no request was late: the load is too light");
    }
}

/// M4: beside an endless real-time load, best effort goes when it has aged, within a batch, and not before.
#[test]
fn m4_lower_level_goes_when_aged_and_not_before() {
    let aging = 40;
    let mut harness = Harness::new(DeadlineOptions { prio_aging_expire_ms: aging, ..options() });
    refill(&mut harness, "rt:R", 4);
    let mut out = harness.dispatch(2);
    let mut waited = Vec::new();
    for turn in 0..240u64 {
        if turn % 60 == 0 && turn < 180 {
            harness.insert(&format!("W{turn}"));
            waited.push(harness.now);
        }
        // Two requests in the device and two waiting: a real-time request is always outstanding.
        let (done, rest) = out.split_once(' ').expect("two are out");
        let (done, rest) = (done.to_owned(), rest.to_owned());
        harness.complete(&done);
        refill(&mut harness, "rt:R", 1);
        let sent = harness.dispatch(1);
        if sent.starts_with('W') {
            let age = (harness.now - waited.remove(0)) / MS;
            assert!(age >= u64::from(aging) && age <= u64::from(aging) + 16, "waited {age} ms");
        }
        out = format!("{rest} {sent}");
        harness.pass(1);
    }
    assert_eq!(waited.len(), 0, "every write was dispatched");
}

/// A naive deadline elevator without levels: one list, searched.
struct Legacy {
    options: DeadlineOptions,
    /// (write, offset, deadline, word), oldest first.
    waiting: Vec<(bool, u64, u64, String)>,
    /// Sweep position of each direction, and requests left of the current batch.
    position: [u64; 2],
    left: u32,
    write: bool,
    starved: u32,
}

impl Legacy {
    fn next(&mut self, now: u64) -> Option<String> {
        if self.waiting.is_empty() {
            return None;
        }
        let ahead = |legacy: &Self, write: bool| {
            let lane = legacy.waiting.iter().enumerate().filter(|(_, entry)| {
                entry.0 == write && entry.1 >= legacy.position[usize::from(write)]
            });
            lane.min_by_key(|(at, entry)| (entry.1, *at)).map(|(at, _)| at)
        };
        let mut at = if self.left > 0 { ahead(self, self.write) } else { None };
        if at.is_none() {
            let oldest = |write| self.waiting.iter().position(|entry| entry.0 == write);
            let (reads, writes) = (oldest(false), oldest(true));
            if let (Some(_), Some(_)) = (reads, writes) {
                let read_expired = reads.is_some_and(|at| self.waiting[at].2 <= now);
                let turn = self.options.writes_starved > 0 || !self.write || !read_expired;
                self.write = self.starved >= self.options.writes_starved && turn;
                self.starved = if self.write { 0 } else { self.starved + 1 };
            } else {
                self.write = reads.is_none();
                self.starved = if self.write { 0 } else { self.starved };
            }
            let oldest = if self.write { writes? } else { reads? };
            let expired = self.waiting[oldest].2 <= now;
            let lowest = |legacy: &mut Self| {
                legacy.position[usize::from(legacy.write)] = 0;
                ahead(legacy, legacy.write)
            };
            let sweep = |legacy: &mut Self| ahead(legacy, legacy.write).or_else(|| lowest(legacy));
            at = if expired { Some(oldest) } else { sweep(self) };
            self.left = self.options.fifo_batch;
        }
        let (write, offset, _, word) = self.waiting.remove(at?);
        self.left -= 1;
        self.position[usize::from(write)] = offset;
        Some(word)
    }
}

/// M7: with one level it behaves as the deadline elevator before levels.
#[test]
fn m7_single_level_matches_legacy_deadline() {
    let mut prng = crate::prng::Prng::new(7);
    for round in 0..300 {
        let mut pick = |of: [u32; 3]| of[prng.below(3) as usize];
        let options = DeadlineOptions {
            read_expire_ms: pick([2, 10, 500]),
            write_expire_ms: pick([4, 30, 5000]),
            writes_starved: pick([0, 1, 2]),
            fifo_batch: pick([1, 3, 16]),
            ..options()
        };
        let class = ["rt", "be", "idle"][prng.below(3) as usize];
        let mut harness = Harness::new(options);
        let mut legacy = Legacy {
            options,
            waiting: Vec::new(),
            position: [0; 2],
            left: 0,
            write: true,
            starved: 0,
        };
        for _ in 0..60 {
            for _ in 0..prng.below(6) {
                let (write, offset) = (prng.below(2) == 0, prng.below(100));
                let op = if write { "W" } else { "R" };
                let word = format!("v0:{class}:{op}{offset}");
                harness.insert(&word);
                let expire = if write { options.write_expire_ms } else { options.read_expire_ms };
                legacy.waiting.push((write, offset, harness.now + u64::from(expire) * MS, word));
            }
            for _ in 0..prng.below(5) {
                let expected = legacy.next(harness.now).unwrap_or_default();
                assert_eq!(harness.dispatch(1), expected, "round {round}, {options:?}");
                harness.complete(&expected);
            }
            harness.pass(prng.below(3));
        }
    }
}
