//! Every defect by which a cache may lose data must be detected by the simulation, by the rule it violates.
//!
//! The same worlds pass without a defect. An assertion of headworks-core may fail first.

use std::ops::RangeInclusive;

use headworks_core::ShardId;
use headworks_core::cache::CacheDefect;
use headworks_sim::environment::ERROR_REPORTED;
use headworks_sim::oracle::CUT_RULE;
use headworks_sim::scenario::{Scenario, WorldDefect};
use headworks_sim::world::{Prepare, run_prepared};

/// Last of the worlds in which a defect must be detected. Each is searched for from one that is near the first which finds it.
const WORLDS: u64 = 60;
/// The same for a defect that needs two connections to be owed one error, and the failed data rewritten since.
const WORLDS_RARE: RangeInclusive<u64> = 55..=2_000;

const READ_NEWEST: &str = "a completed write is seen by every later read";
const BYTES: &str = "a read returns what was written there";
const STABLE: &str = "data of a command in flight are stable";
const SUSPECT: &str = "a suspect volume promises no durability";
const PANIC: &str = "an assertion of headworks-core";

fn world(seed: u64) -> Scenario {
    Scenario::draw_crash(seed, None, false)
}

/// The seed of the first world that fails, and the violated rule.
fn found(mut worlds: RangeInclusive<u64>, prepare: Prepare) -> Option<(u64, &'static str)> {
    worlds.find_map(|seed| {
        let run = || run_prepared(world(seed), prepare);
        match std::panic::catch_unwind(run) {
            Err(_) => Some((seed, PANIC)),
            Ok(outcome) => outcome.err().map(|failure| (seed, failure.violation.rule)),
        }
    })
}

fn must_find(worlds: RangeInclusive<u64>, rules: &[&str], prepare: Prepare) {
    let (seed, rule) = found(worlds, prepare).expect("no world found the defect");
    assert!(rules.contains(&rule), "seed {seed} found it as: {rule}");
}

macro_rules! defects {
    ($($(#[$doc:meta])* $name:ident: $defect:ident, $first:literal => $rules:expr;)+) => {
        $($(#[$doc])* #[test]
        fn $name() {
            must_find($first..=WORLDS, &$rules, |shard, _, _: ShardId| {
                shard.set_cache_defect(CacheDefect::$defect);
            });
        })+
    };
}

defects! {
    flush_not_forwarded_to_device: FlushSkipsDevice, 1 => [CUT_RULE, SUSPECT];
    flush_that_ignores_writeout: FlushIgnoresWriteout, 30 => [CUT_RULE];
    write_in_place_under_writeout: NoShadow, 1 => [STABLE];
    fill_over_written_data: FillOverwrites, 1 => [STABLE, READ_NEWEST, BYTES];
    failed_block_counted_as_clean: FailedIsClean, 1 => [CUT_RULE, READ_NEWEST];
    writethrough_answered_early: WritethroughEarly, 1 => [CUT_RULE, READ_NEWEST];
    partial_write_without_read: NoReadBeforeWrite, 1 => [READ_NEWEST, BYTES, CUT_RULE];
    discard_that_ignores_writeout: DiscardIgnoresWriteout, 50 => [STABLE, READ_NEWEST, CUT_RULE, PANIC];
    folios_evicted_during_fill: EvictsFilling, 1 => [STABLE, READ_NEWEST, BYTES, PANIC];
    dirty_folios_evicted: EvictsDirty, 1 => [READ_NEWEST, CUT_RULE, PANIC];
    paused_writers_without_a_flusher: FlusherSleeps, 1 => [PANIC];
    dirty_folios_dropped_behind_a_stream: DropsDirtyBehind, 1 => [READ_NEWEST, CUT_RULE, PANIC];
}

#[test]
fn writeback_error_reported_to_one_connection_is_detected() {
    must_find(WORLDS_RARE, &[ERROR_REPORTED], |shard, _, _| {
        shard.set_cache_defect(CacheDefect::ErrorReportedOnce);
    });
}

#[test]
fn change_of_lent_frames_is_detected() {
    let fails = |seed| {
        let defect = WorldDefect::KeepsLentFrames;
        let outcome = run_prepared(Scenario { defect, ..world(seed) }, |_, _, _| {});
        outcome.err().map(|failure| failure.violation.rule)
    };
    let found = (1..=WORLDS).find_map(fails);
    assert_eq!(found, Some("frames of an answered read do not change before it is announced"));
}

#[test]
fn no_violation_without_defect() {
    assert_eq!(found(1..=WORLDS, |_, _, _| {}), None);
}
