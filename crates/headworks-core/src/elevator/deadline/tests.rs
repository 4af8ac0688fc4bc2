//! The rules of mq-deadline, one by one. Requests are words: `R8` reads at 8, `W`, `D`, `Z` change something there; before
//! them `v1:` for another file, `rt:` or `idle:` for another class.

use super::*;
use crate::bio::{Ioprio, VolumeId};
use crate::time::SEC;

/// An elevator, its requests and the time.
struct Rig {
    elevator: DeadlineElevator,
    slots: Slots,
    now: u64,
    words: Vec<String>,
    batch: Batch,
}

impl Rig {
    fn new(options: DeadlineOptions) -> Self {
        Self {
            elevator: DeadlineElevator::new(&options),
            slots: Slots::touched(2048),
            now: 1,
            words: Vec::new(),
            batch: Batch::with_capacity(2048),
        }
    }

    /// Requests come together.
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

    /// What leaves, at most `room`.
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

    /// The device has done it.
    fn complete(&mut self, words: &str) {
        let done = |word| {
            let Request { ioprio, op, .. } = request(word);
            EndedRequest { ioprio, op }
        };
        let done: Vec<EndedRequest> = words.split_whitespace().map(done).collect();
        self.elevator.on_complete(Instant(self.now), &done);
    }

    fn pass(&mut self, ms: u64) {
        self.now += ms * MS;
    }

    fn id(&self, word: &str) -> SlotId {
        self.words.iter().rposition(|known| known == word).expect(word) as SlotId
    }

    /// A bio joins `word` in front, so that it starts at `offset`.
    fn front(&mut self, word: &str, offset: u64) {
        let id = self.id(word);
        self.slots[id].offset = offset;
        self.elevator.on_merge(&mut self.slots, id, None, MergeEdge::Front);
    }

    /// `gone` joins `kept` behind it.
    fn join(&mut self, kept: &str, gone: &str) {
        let (kept, gone_id) = (self.id(kept), self.id(gone));
        self.elevator.on_merge(&mut self.slots, kept, Some(gone_id), MergeEdge::Back);
        self.complete(gone);
    }
}

fn request(word: &str) -> Request {
    let mut request = Request { len: 1, state: State::Queued, ..Request::default() };
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

/// The order in which these leave if they come together and the device takes them all.
fn order(words: &str) -> String {
    let mut rig = Rig::new(options());
    rig.insert(words);
    rig.dispatch_all()
}

#[test]
fn reads_go_first_and_each_direction_by_place() {
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
fn the_file_comes_first() {
    assert_eq!(order("v1:R0 R8 v1:R4 R2"), "R2 R8 v1:R0 v1:R4");
}

#[test]
fn the_sweep_goes_one_way_and_begins_again_at_the_oldest() {
    let mut rig = Rig::new(options());
    rig.insert("R50 R60");
    assert_eq!(rig.dispatch(1), "R50");
    rig.insert("R40 R10 R55");
    assert_eq!(rig.dispatch_all(), "R55 R60 R40 R10", "the oldest, and what is ahead of it");
}

#[test]
fn what_comes_ahead_of_the_sweep_is_taken_along() {
    let mut rig = Rig::new(options());
    rig.insert("R10 R30");
    assert_eq!(rig.dispatch(1), "R10");
    rig.insert("R20 R10");
    assert_eq!(rig.dispatch_all(), "R10 R20 R30");
}

#[test]
fn a_batch_goes_on_in_its_direction_even_if_reads_come() {
    let mut rig = Rig::new(DeadlineOptions { fifo_batch: 3, ..options() });
    rig.insert("W1 W2 W3 W4");
    assert_eq!(rig.dispatch(1), "W1");
    rig.insert("R9 R8");
    assert_eq!(rig.dispatch_all(), "W2 W3 R8 R9 W4");
}

#[test]
fn an_expired_read_begins_the_next_batch() {
    let mut rig = Rig::new(DeadlineOptions { fifo_batch: 2, ..options() });
    rig.insert("R90 R91");
    assert_eq!(rig.dispatch(1), "R90");
    rig.insert("R5");
    rig.pass(499);
    rig.insert("R92 R93 R94");
    assert_eq!(rig.dispatch(1), "R91");
    rig.pass(1);
    assert_eq!(rig.dispatch_all(), "R5 R92 R93 R94", "R5 has waited 500 ms");
}

#[test]
fn before_its_time_the_oldest_waits_for_the_end_of_the_sweep() {
    let mut rig = Rig::new(DeadlineOptions { fifo_batch: 2, ..options() });
    rig.insert("R90 R91");
    assert_eq!(rig.dispatch(1), "R90");
    rig.insert("R5 R92 R93 R94");
    rig.pass(499);
    assert_eq!(rig.dispatch_all(), "R91 R92 R93 R94 R5");
}

#[test]
fn deadlines_are_looked_at_when_a_batch_ends_and_not_within() {
    let mut rig = Rig::new(DeadlineOptions { fifo_batch: 4, ..options() });
    rig.insert("W50 W51 W52 W53 W54");
    assert_eq!(rig.dispatch(1), "W50");
    rig.insert("W1");
    rig.pass(5000);
    assert_eq!(rig.dispatch_all(), "W51 W52 W53 W54 W1", "W54 is older, and has expired, too");
    rig.insert("W60 W61 W62 W63 W64");
    assert_eq!(rig.dispatch(1), "W60");
    rig.insert("W2");
    rig.pass(4999);
    rig.insert("W70 W71");
    rig.pass(1);
    assert_eq!(rig.dispatch(3), "W61 W62 W63");
    assert_eq!(rig.dispatch_all(), "W64 W70 W71 W2", "the oldest is ahead, and begins the batch");
}

#[test]
fn writes_wait_for_so_many_batches_of_reads_and_no_more() {
    for (starved, expected) in [
        (0, "W0 W1 R0 R1 R2 R3 R4 R5"),
        (1, "R0 R1 W0 W1 R2 R3 R4 R5"),
        (2, "R0 R1 R2 R3 W0 W1 R4 R5"),
        (3, "R0 R1 R2 R3 R4 R5 W0 W1"),
    ] {
        let options = DeadlineOptions { fifo_batch: 2, writes_starved: starved, ..options() };
        let mut rig = Rig::new(options);
        rig.insert("R0 R1 R2 R3 R4 R5 W0 W1");
        assert_eq!(rig.dispatch_all(), expected, "writes_starved {starved}");
    }
}

/// In Linux `writes_starved` 0 keeps reads waiting as long as there are writes.
#[test]
fn writes_that_never_wait_let_an_expired_read_through_after_a_batch() {
    let options = DeadlineOptions { fifo_batch: 2, writes_starved: 0, ..options() };
    let mut rig = Rig::new(options);
    rig.insert("R0 R1 R2 W0 W1 W2 W3 W4 W5");
    assert_eq!(rig.dispatch(4), "W0 W1 W2 W3");
    rig.pass(500);
    assert_eq!(rig.dispatch_all(), "R0 R1 W4 W5 R2");
}

#[test]
fn a_lower_level_waits_until_the_higher_one_has_completed() {
    let mut rig = Rig::new(options());
    rig.insert("idle:R1 R2 rt:R3 rt:W4");
    assert_eq!(rig.dispatch_all(), "rt:R3 rt:W4");
    rig.complete("rt:W4");
    assert_eq!(rig.dispatch_all(), "", "rt:R3 is still in the device");
    rig.complete("rt:R3");
    assert_eq!(rig.dispatch_all(), "R2");
    rig.insert("rt:R5");
    assert_eq!(rig.dispatch_all(), "rt:R5");
    rig.complete("rt:R5 R2");
    assert_eq!(rig.dispatch_all(), "idle:R1");
}

#[test]
fn levels_within_a_class_are_one_level() {
    assert_eq!(order("be,7:R1 be,0:R3 be,4:R2"), "be,7:R1 be,4:R2 be,0:R3");
}

#[test]
fn the_timer_says_when_the_oldest_of_those_held_back_has_aged() {
    let mut rig = Rig::new(options());
    rig.insert("rt:R0");
    assert_eq!(rig.dispatch_all(), "rt:R0");
    rig.insert("idle:W7");
    rig.pass(3);
    rig.insert("R8");
    assert_eq!(rig.dispatch_all(), "");
    assert_eq!(rig.elevator.next_timeout(), Some(Instant(1 + 10 * SEC)));
    rig.pass(9_997);
    assert_eq!(rig.dispatch_all(), "idle:W7");
    assert_eq!(rig.elevator.next_timeout(), Some(Instant(1 + 10 * SEC + 3 * MS)));
    rig.pass(3);
    assert_eq!(rig.dispatch_all(), "R8");
    assert_eq!(rig.elevator.next_timeout(), None);
}

/// In Linux a look at an aged level may begin a batch there though nothing leaves: the batch of the other level then never ends.
#[test]
fn who_is_held_back_does_not_change_the_batches_of_the_others() {
    let trace = |others: &str| {
        let mut rig = Rig::new(DeadlineOptions { fifo_batch: 2, ..options() });
        rig.insert("R9");
        assert_eq!(rig.dispatch_all(), "R9");
        rig.insert(others);
        rig.insert("rt:R1 rt:R2 rt:R3 rt:R4 rt:R5 rt:R6 rt:W1 rt:W2");
        rig.dispatch_all()
    };
    // R9 began the batch that rt:R1 ends.
    assert_eq!(trace(""), "rt:R1 rt:R2 rt:R3 rt:R4 rt:R5 rt:W1 rt:W2 rt:R6");
    for others in ["R5", "R5 W5", "W5", "idle:R1", "R1 W1 idle:W1"] {
        assert_eq!(trace(others), trace(""), "{others}");
    }
}

/// In Linux only the next of the sweep is asked for its age: younger ones ahead of the oldest keep it waiting.
#[test]
fn an_aged_request_goes_even_if_younger_ones_lie_nearer() {
    let mut rig = Rig::new(options());
    rig.insert("rt:R0 R100");
    assert_eq!(rig.dispatch_all(), "rt:R0");
    rig.pass(9_999);
    rig.insert("R50");
    assert_eq!(rig.dispatch_all(), "");
    rig.pass(1);
    assert_eq!(rig.dispatch_all(), "R100");
}

#[test]
fn many_that_have_aged_go_in_the_order_of_their_places() {
    let mut rig = Rig::new(options());
    rig.insert("rt:R0 R30 R10 R20");
    assert_eq!(rig.dispatch_all(), "rt:R0");
    rig.pass(10_000);
    assert_eq!(rig.dispatch_all(), "R10 R20 R30");
}

#[test]
fn a_front_merge_moves_a_request_in_the_order() {
    let mut rig = Rig::new(options());
    rig.insert("R10 R20 R30");
    rig.front("R30", 15);
    assert_eq!(rig.dispatch(2), "R10 R30");
    rig.insert("R40");
    rig.front("R40", 12);
    assert_eq!(rig.dispatch_all(), "R20 R40", "12 is behind the sweep");
}

#[test]
fn who_takes_an_older_one_in_takes_its_deadline_and_its_place_in_the_line() {
    let mut rig = Rig::new(DeadlineOptions { fifo_batch: 1, ..options() });
    rig.insert("R50");
    assert_eq!(rig.dispatch(1), "R50");
    rig.insert("R8");
    rig.pass(200);
    rig.insert("R4 R60 R61");
    rig.join("R4", "R8");
    rig.pass(300);
    assert_eq!(rig.dispatch_all(), "R4 R60 R61", "500 ms after R8 came");
}

#[test]
fn who_takes_a_younger_one_in_keeps_its_own() {
    let mut rig = Rig::new(DeadlineOptions { fifo_batch: 1, ..options() });
    rig.insert("R50");
    assert_eq!(rig.dispatch(1), "R50");
    rig.insert("R4");
    rig.pass(200);
    rig.insert("R8 R60");
    rig.join("R4", "R8");
    rig.pass(299);
    assert_eq!(rig.dispatch(1), "R60");
    rig.insert("R70");
    rig.pass(1);
    assert_eq!(rig.dispatch_all(), "R4 R70");
}

#[test]
fn one_merged_away_holds_nobody_back() {
    let mut rig = Rig::new(options());
    rig.insert("rt:R0 rt:R1 R9");
    rig.join("rt:R0", "rt:R1");
    assert_eq!(rig.dispatch_all(), "rt:R0");
    rig.complete("rt:R0");
    assert_eq!(rig.dispatch_all(), "R9");
}

#[test]
fn who_joins_a_refused_request_leaves_and_that_one_is_not_sorted_in() {
    let mut rig = Rig::new(options());
    rig.insert("R0");
    assert_eq!(rig.dispatch_all(), "R0");
    rig.insert("R1 R5");
    rig.slots[0].marks |= Request::REQUEUED;
    rig.join("R0", "R1");
    rig.front("R5", 3);
    assert_eq!(rig.dispatch_all(), "R5");
}

#[test]
#[should_panic(expected = "more requests ended than were inserted")]
fn an_end_too_many_is_our_bug() {
    let mut rig = Rig::new(options());
    rig.insert("R0");
    rig.complete("R0 R0");
}

/// Words that never run out: `R` or `W` at places that go round.
fn refill(rig: &mut Rig, prefix: &str, count: usize) {
    let first = rig.words.len() as u64;
    let words: Vec<String> =
        (0..count as u64).map(|n| format!("{prefix}{}", (first + n) * 7919 % 1000)).collect();
    rig.insert(&words.join(" "));
}

/// M1 and M3: reads and writes that never run out leave in two batches of 16 reads to one of 16 writes, upward in each.
#[test]
fn m1_m3_two_batches_of_reads_to_one_of_writes_each_upward() {
    let mut rig = Rig::new(options());
    // Ascending places: a batch would end at the end of the sweep, too.
    let words = |op: &str, from: usize| -> String {
        (from..from + 320).map(|n| format!("{op}{n} ")).collect()
    };
    rig.insert(&words("R", 0));
    rig.insert(&words("W", 0));
    let mut place = 0;
    let trace = rig.dispatch(20 * 16);
    for (batch, chunk) in trace.split(' ').collect::<Vec<_>>().chunks(16).enumerate() {
        let expected = if batch % 3 == 2 { "W" } else { "R" };
        for (n, word) in chunk.iter().enumerate() {
            let (op, offset) = word.split_at(1);
            let offset: u32 = offset.parse().unwrap();
            assert!(op == expected && (n == 0 || offset > place), "batch {batch}: {chunk:?}");
            place = offset;
        }
    }
}

/// M2: on a device that does one thing at a time nobody waits longer than until its deadline, or until it is the oldest of
/// its direction, and then `writes_starved + 1` batches.
#[test]
fn m2_delay_is_bounded() {
    let service = 1;
    for (read_expire_ms, write_expire_ms, writes_starved, fifo_batch) in
        [(50, 100, 2, 16), (5, 5, 2, 4), (100, 10, 0, 16), (20, 300, 5, 1)]
    {
        let mut rig = Rig::new(DeadlineOptions {
            read_expire_ms,
            write_expire_ms,
            writes_starved,
            fifo_batch,
            ..options()
        });
        // When each became the oldest of its direction.
        let mut oldest_since: [Option<(SlotId, u64)>; 2] = [None, None];
        let (mut longest, mut inserted) = (0, 0);
        // Where writes never have to wait the two take turns: that is two batches, too.
        let batches = u64::from(writes_starved.max(1) + 1);
        let bound = batches * u64::from(fifo_batch) * service * MS;
        for turn in 0..1900 {
            // Bursts, more than it can do for a while, then fewer.
            let burst = if turn % 400 < 200 { 2 } else { 0 };
            for op in ["R", "W"].iter().take(burst) {
                if inserted < 1800 {
                    refill(&mut rig, op, 1);
                    inserted += 1;
                }
            }
            for (lane, since) in rig.elevator.levels[1].lanes.iter().zip(&mut oldest_since) {
                let oldest = lane.oldest();
                if since.is_none_or(|(id, _)| id != oldest) {
                    *since = Some((oldest, rig.now));
                }
            }
            rig.dispatch(1);
            if let Some(&id) = rig.batch.ids().first() {
                let direction = Direction::of(rig.slots[id].op) as usize;
                if let Some((_, since)) = oldest_since[direction].filter(|since| since.0 == id) {
                    let due = rig.slots[id].deadline.0.max(since);
                    let late = rig.now.saturating_sub(due);
                    let (word, options) = (&rig.words[id as usize], rig.elevator.writes_starved);
                    assert!(late <= bound, "{word} is {late} ns late, writes_starved {options}");
                    longest = longest.max(late);
                }
                let word = rig.words[id as usize].clone();
                rig.complete(&word);
            }
            rig.pass(service);
        }
        assert!(longest > 0, "nobody was ever late: the load is too light to show anything");
    }
}

/// M4: with a load of real time that never ends, best effort goes when it has aged, within a batch, and never before.
#[test]
fn m4_a_lower_level_goes_when_it_has_aged_and_never_before() {
    let aging = 40;
    let mut rig = Rig::new(DeadlineOptions { prio_aging_expire_ms: aging, ..options() });
    refill(&mut rig, "rt:R", 4);
    let mut out = rig.dispatch(2);
    let mut waited = Vec::new();
    for turn in 0..240u64 {
        if turn % 60 == 0 && turn < 180 {
            rig.insert(&format!("W{turn}"));
            waited.push(rig.now);
        }
        // Two in the device, two more behind them: there is always one of real time that has not completed.
        let (done, rest) = out.split_once(' ').expect("two are out");
        let (done, rest) = (done.to_owned(), rest.to_owned());
        rig.complete(&done);
        refill(&mut rig, "rt:R", 1);
        let sent = rig.dispatch(1);
        if sent.starts_with('W') {
            let age = (rig.now - waited.remove(0)) / MS;
            assert!(age >= u64::from(aging) && age <= u64::from(aging) + 16, "it waited {age} ms");
        }
        out = format!("{rest} {sent}");
        rig.pass(1);
    }
    assert_eq!(waited.len(), 0, "every write had its turn");
}

/// The deadline elevator before levels: one list, searched.
struct Legacy {
    options: DeadlineOptions,
    /// (write, place, deadline, word), oldest first.
    line: Vec<(bool, u64, u64, String)>,
    /// Where the next batch of each direction goes on, and how many are left of the present one.
    position: [u64; 2],
    left: u32,
    write: bool,
    starved: u32,
}

impl Legacy {
    fn next(&mut self, now: u64) -> Option<String> {
        if self.line.is_empty() {
            return None;
        }
        let ahead = |legacy: &Self, write: bool| {
            let lane = legacy.line.iter().enumerate().filter(|(_, entry)| {
                entry.0 == write && entry.1 >= legacy.position[usize::from(write)]
            });
            lane.min_by_key(|(at, entry)| (entry.1, *at)).map(|(at, _)| at)
        };
        let mut at = if self.left > 0 { ahead(self, self.write) } else { None };
        if at.is_none() {
            let oldest = |write| self.line.iter().position(|entry| entry.0 == write);
            let (reads, writes) = (oldest(false), oldest(true));
            if let (Some(_), Some(_)) = (reads, writes) {
                let read_expired = reads.is_some_and(|at| self.line[at].2 <= now);
                let turn = self.options.writes_starved > 0 || !self.write || !read_expired;
                self.write = self.starved >= self.options.writes_starved && turn;
                self.starved = if self.write { 0 } else { self.starved + 1 };
            } else {
                self.write = reads.is_none();
                self.starved = if self.write { 0 } else { self.starved };
            }
            let oldest = if self.write { writes? } else { reads? };
            let expired = self.line[oldest].2 <= now;
            at = if expired { None } else { ahead(self, self.write) }.or(Some(oldest));
            self.left = self.options.fifo_batch;
        }
        let (write, place, _, word) = self.line.remove(at?);
        self.left -= 1;
        self.position[usize::from(write)] = place;
        Some(word)
    }
}

/// M7: with one level it is the deadline elevator as it always was.
#[test]
fn m7_with_one_level_it_is_the_legacy_deadline() {
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
        let mut rig = Rig::new(options);
        let mut legacy = Legacy {
            options,
            line: Vec::new(),
            position: [0; 2],
            left: 0,
            write: true,
            starved: 0,
        };
        for _ in 0..60 {
            for _ in 0..prng.below(6) {
                let (write, place) = (prng.below(2) == 0, prng.below(100));
                let op = if write { "W" } else { "R" };
                // The number makes each word another one.
                let word = format!("v0:{class}:{op}{place}");
                rig.insert(&word);
                let expire = if write { options.write_expire_ms } else { options.read_expire_ms };
                legacy.line.push((write, place, rig.now + u64::from(expire) * MS, word));
            }
            for _ in 0..prng.below(5) {
                let expected = legacy.next(rig.now).unwrap_or_default();
                assert_eq!(rig.dispatch(1), expected, "round {round}, {options:?}");
                rig.complete(&expected);
            }
            rig.pass(prng.below(3));
        }
    }
}
