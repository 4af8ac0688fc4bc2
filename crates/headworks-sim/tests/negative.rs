//! Tests of the checkers: every injected defect must be detected, by the rule it violates.
//!
//! The same worlds pass without the defect. Two lies of devices are different: the path must
//! tolerate them, and the worlds pass.

use headworks_core::elevator::{Batch, Elevator, MergeEdge, NoneElevator};
use headworks_core::request::{SlotId, Slots};
use headworks_core::tags::{
    ByteBudget, FairTags, Grant, ReturnedTags, TagOptions, TagOwner, TagRequest, TagStats,
};
use headworks_core::{
    DeviceConfig, DeviceId, Instant, QueueOptions, Shard, ShardId, VolumeConfig, VolumeId,
    VolumeOptions,
};
use headworks_sim::disk::{DiskDefect, Faults, LatencyModel};
use headworks_sim::scenario::{DeviceScenario, Scenario, WorldDefect};
use headworks_sim::workload::{AccessPattern, JobOptions};
use headworks_sim::world::{Outcome, Prepare, run_prepared};

const DEPTH: u32 = 16;

/// A disk without faults, a volume on shard `home`, and four busy connections that overlap constantly.
fn world(seed: u64, home: u16) -> Scenario {
    let queue = QueueOptions {
        nr_requests: DEPTH,
        queue_depth: 8,
        max_sectors_kb: 16,
        fua: true,
        ..QueueOptions::default()
    };
    let device = DeviceScenario {
        config: DeviceConfig { owner: ShardId(0), queue },
        model: LatencyModel::Constant { latency_ns: 50_000, jitter_ns: 100_000, channels: 8 },
        faults: Faults::default(),
        defect: DiskDefect::None,
    };
    let volume = VolumeConfig {
        home: ShardId(home),
        device: DeviceId(0),
        options: VolumeOptions { size: 1 << 20, block_size: 4096, ..VolumeOptions::default() },
    };
    let job = JobOptions {
        volume: VolumeId(0),
        start: 0,
        end: 1 << 20,
        block_size: 4096,
        depth: 16,
        batch: 4,
        bios: 300,
        weights: [10, 30, 4, 0, 0, 0, 0],
        sizes: [4096, 8192, 4096, 32768],
        pattern: AccessPattern::Hot,
        fua: 200_000,
        flags: 0,
        malformed: 0,
        think_ns: 0,
        ..JobOptions::default()
    };
    Scenario {
        shards: 2,
        bios_max: 80,
        turn_max: 16,
        message_delay_ns: 5_000,
        ..Scenario::plain(seed, vec![device], vec![volume], vec![job; 4])
    }
}

const SOUND: Prepare = |_, _, _| {};

/// Runs ten worlds adapted by `change` and returns the violated rules.
fn broken_rules(home: u16, change: impl Fn(&mut Scenario), prepare: Prepare) -> Vec<&'static str> {
    let worlds = (1..=10).map(|seed| {
        let mut scenario = world(seed, home);
        change(&mut scenario);
        scenario
    });
    let failures = worlds.filter_map(|scenario| run_prepared(scenario, prepare).err());
    failures.map(|failure| failure.violation.rule).collect()
}

/// Asserts that at least half of the worlds failed, all by one of `rules`.
fn must_find(rules: &[&str], broken: &[&str]) {
    assert!(broken.len() >= 5, "found in {} of 10 worlds", broken.len());
    for rule in broken {
        assert!(rules.contains(rule), "found as: {rule}");
    }
}

const WAITS: &str = "every bio and control change is answered";
const BACK: &str = "an idle shard holds no resources";
/// While a request waits, a timer looks at its device again and again: so the world of one that hangs does not become idle.
const ENDS: &str = "a scenario ends within its turn limit";
const CUT: &str = "flushed data survive a power cut";
const BYTES: &str = "a read returns what was written there";

#[test]
fn no_violation_without_defect() {
    for home in [0, 1] {
        assert!(broken_rules(home, |_| {}, SOUND).is_empty());
        assert!(broken_rules(home, |s| s.ends.cut_after = Some(s.seed * 40), SOUND).is_empty());
    }
}

#[test]
fn device_that_skips_flushes_is_detected_after_power_cut() {
    let change = |scenario: &mut Scenario| {
        scenario.devices[0].defect = DiskDefect::SkipsFlush;
        scenario.jobs.iter_mut().for_each(|job| job.fua = 0);
        scenario.ends.cut_after = Some(300);
    };
    must_find(&[CUT], &broken_rules(0, change, SOUND));
}

#[test]
fn device_that_skips_fua_is_detected_after_power_cut() {
    let change = |scenario: &mut Scenario| {
        scenario.devices[0].defect = DiskDefect::SkipsFua;
        scenario.jobs.iter_mut().for_each(|job| job.weights[2] = 0);
        scenario.ends.cut_after = Some(300);
    };
    must_find(&[CUT], &broken_rules(0, change, SOUND));
}

#[test]
fn buffer_reused_before_write_completion_is_detected() {
    let change = |scenario: &mut Scenario| scenario.defect = WorldDefect::ReusesBuffers;
    must_find(&[BYTES], &broken_rules(0, change, SOUND));
}

#[test]
fn lost_grant_between_shards_is_detected_as_a_hang() {
    let change = |scenario: &mut Scenario| scenario.defect = WorldDefect::LosesGrants;
    must_find(&[WAITS, BACK, ENDS], &broken_rules(1, change, SOUND));
}

/// A fair tag owner that leaks tags or loses wake-ups.
struct BadTags {
    inner: FairTags,
    puts: u32,
    grants: u32,
    leak_every: u32,
    lose_every: u32,
}

impl BadTags {
    fn new(scenario: &Scenario, leak_every: u32, lose_every: u32) -> Box<Self> {
        let waiters_max = (scenario.bios_max + u32::from(scenario.shards)) as usize;
        Box::new(Self {
            inner: FairTags::new(TagOptions { depth: DEPTH, async_depth: DEPTH, waiters_max }),
            puts: 0,
            grants: 0,
            leak_every,
            lose_every,
        })
    }
}

impl TagOwner for BadTags {
    fn request(&mut self, now: Instant, asks: &[TagRequest], most: usize) -> usize {
        self.inner.request(now, asks, most)
    }

    fn put(&mut self, now: Instant, freed: ReturnedTags) {
        self.puts += 1;
        let leaked = u32::from(self.puts.is_multiple_of(self.leak_every));
        self.inner.put(now, ReturnedTags { count: freed.count - leaked, ..freed });
    }

    fn next_grant(&mut self, now: Instant, room: ByteBudget) -> Option<Grant> {
        let grant = self.inner.next_grant(now, room)?;
        self.grants += 1;
        if self.grants.is_multiple_of(self.lose_every) {
            // The wake-up is lost, and its tags with it.
            return None;
        }
        Some(grant)
    }

    fn free(&self) -> u32 {
        self.inner.free()
    }

    fn depth(&self) -> u32 {
        self.inner.depth()
    }

    fn waiters(&self) -> u32 {
        self.inner.waiters()
    }

    fn stats(&self) -> TagStats {
        self.inner.stats()
    }
}

#[test]
fn leaked_tags_are_detected() {
    let prepare: Prepare = |shard: &mut Shard, scenario, _| {
        shard.set_tags(DeviceId(0), BadTags::new(scenario, 100, u32::MAX));
    };
    must_find(&[BACK, WAITS], &broken_rules(0, |_| {}, prepare));
}

#[test]
fn lost_wake_up_is_detected() {
    let prepare: Prepare = |shard: &mut Shard, scenario, _| {
        shard.set_tags(DeviceId(0), BadTags::new(scenario, u32::MAX, 50));
    };
    must_find(&[WAITS, ENDS], &broken_rules(0, |_| {}, prepare));
}

/// The `none` elevator, which drops or duplicates every fiftieth request.
struct BadElevator {
    inner: NoneElevator,
    given: u32,
    copies: usize,
}

impl BadElevator {
    fn new(copies: usize) -> Box<Self> {
        Box::new(Self { inner: NoneElevator::new(), given: 0, copies })
    }
}

impl Elevator for BadElevator {
    fn insert(&mut self, now: Instant, slots: &mut Slots, ids: &[SlotId]) {
        self.inner.insert(now, slots, ids);
    }

    fn dispatch(&mut self, now: Instant, slots: &mut Slots, batch: &mut Batch) -> usize {
        let before = batch.ids().len();
        let mut one = Batch::with_capacity(1);
        while batch.room() >= self.copies.max(1) {
            one.reset(1);
            if self.inner.dispatch(now, slots, &mut one) == 0 {
                break;
            }
            self.given += 1;
            let copies = if self.given.is_multiple_of(50) { self.copies } else { 1 };
            (0..copies).for_each(|_| batch.push(one.ids()[0]));
        }
        batch.ids().len() - before
    }

    fn remove(&mut self, slots: &mut Slots, id: SlotId) {
        self.inner.remove(slots, id);
    }

    fn on_merge(&mut self, slots: &mut Slots, kept: SlotId, gone: Option<SlotId>, edge: MergeEdge) {
        self.inner.on_merge(slots, kept, gone, edge);
    }
}

/// Asserts that every one of ten worlds with this elevator fails, by a rule or by an assertion of
/// headworks-core, which may come first.
fn must_fail_everywhere(prepare: Prepare) {
    let passed = (1..=10).filter(|&seed| {
        let run = || run_prepared(world(seed, 0), prepare);
        std::panic::catch_unwind(run).is_ok_and(|outcome| outcome.is_ok())
    });
    assert_eq!(passed.count(), 0, "worlds that did not detect it");
}

#[test]
fn elevator_that_drops_a_request_is_detected() {
    must_fail_everywhere(|shard: &mut Shard, _, _| {
        shard.set_elevator(DeviceId(0), BadElevator::new(0));
    });
}

#[test]
fn elevator_that_duplicates_a_request_is_detected() {
    must_fail_everywhere(|shard: &mut Shard, _, _| {
        shard.set_elevator(DeviceId(0), BadElevator::new(2));
    });
}

fn run_with_defect(defect: DiskDefect) -> Vec<Outcome> {
    let worlds = (1..=10).map(|seed| {
        let mut scenario = world(seed, u16::from(seed % 2 == 0));
        scenario.devices[0].defect = defect;
        scenario
    });
    worlds.map(|scenario| run_prepared(scenario, SOUND).unwrap()).collect()
}

#[test]
fn device_that_completes_twice_is_tolerated_and_reported() {
    for outcome in run_with_defect(DiskDefect::AnswersTwice) {
        assert!(outcome.lies > 0 && outcome.unknown_completions == outcome.lies);
    }
}

#[test]
fn device_that_reports_too_many_bytes_is_tolerated() {
    for outcome in run_with_defect(DiskDefect::ClaimsTooMuch) {
        assert!(outcome.lies > 0);
    }
}
