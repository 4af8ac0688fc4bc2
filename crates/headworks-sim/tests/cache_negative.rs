//! Every way in which a cache may lose data, built in on purpose, must be found by the world, and by a rule that is about it.
//!
//! The same worlds without a defect pass, so what is found is the defect. Core's own assertions may see it first.

use headworks_core::ShardId;
use headworks_core::cache::CacheDefect;
use headworks_sim::environment::ERROR_REPORTED;
use headworks_sim::oracle::CUT_RULE;
use headworks_sim::scenario::Scenario;
use headworks_sim::world::{Prepare, run_prepared};

/// As many worlds as a defect may go unseen in.
const WORLDS: u64 = 60;
/// For a defect that shows only where two connections of a volume hear of one error, and what failed was written since.
const WORLDS_RARE: u64 = 2_000;

const SEEN: &str = "a completed write is seen by every later read";
const BYTES: &str = "a read returns what was written there";
const STABLE: &str = "bytes on their way do not change";
const PANIC: &str = "an assertion of the core";

fn world(seed: u64) -> Scenario {
    Scenario::draw_crash(seed, None, false)
}

/// The first of the worlds that breaks, and its rule.
fn found(worlds: u64, prepare: Prepare) -> Option<(u64, &'static str)> {
    (1..=worlds).find_map(|seed| {
        let run = || run_prepared(world(seed), prepare);
        match std::panic::catch_unwind(run) {
            Err(_) => Some((seed, PANIC)),
            Ok(outcome) => outcome.err().map(|failure| (seed, failure.violation.rule)),
        }
    })
}

fn must_find(worlds: u64, rules: &[&str], prepare: Prepare) {
    let (seed, rule) = found(worlds, prepare).expect("no world found the defect");
    assert!(rules.contains(&rule), "seed {seed} found it as: {rule}");
}

macro_rules! defects {
    ($($(#[$doc:meta])* $name:ident: $defect:ident => $rules:expr;)+) => {
        $($(#[$doc])* #[test]
        fn $name() {
            must_find(WORLDS, &$rules, |shard, _, _: ShardId| {
                shard.set_cache_defect(CacheDefect::$defect);
            });
        })+
    };
}

defects! {
    a_flush_that_is_not_passed_on: FlushSkipsDevice => [CUT_RULE];
    a_flush_that_ignores_write_out: FlushIgnoresWriteout => [CUT_RULE];
    a_write_under_write_out_in_place: NoShadow => [STABLE];
    a_fill_over_what_was_written: FillOverwrites => [STABLE, SEEN, BYTES];
    a_failed_block_that_counts_as_clean: FailedIsClean => [CUT_RULE, SEEN];
    writethrough_that_answers_early: WritethroughEarly => [CUT_RULE, SEEN];
    a_partial_write_that_does_not_read_the_rest: NoReadBeforeWrite => [SEEN, BYTES, CUT_RULE];
    a_discard_that_ignores_write_out: DiscardIgnoresWriteout => [STABLE, SEEN, CUT_RULE, PANIC];
    folios_evicted_while_they_are_filled: EvictsFilling => [STABLE, SEEN, BYTES, PANIC];
    dirty_folios_evicted: EvictsDirty => [SEEN, CUT_RULE, PANIC];
}

#[test]
fn an_error_of_write_out_told_to_one_connection_only() {
    must_find(WORLDS_RARE, &[ERROR_REPORTED], |shard, _, _| {
        shard.set_cache_defect(CacheDefect::ErrorReportedOnce);
    });
}

#[test]
fn without_a_defect_nothing_is_found() {
    assert_eq!(found(WORLDS, |_, _, _| {}), None);
}
