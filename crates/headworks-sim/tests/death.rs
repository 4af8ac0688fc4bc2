//! The process dies at any moment: every acknowledged write survives in the memory that it leaves, and every defect
//! of that is detected, by the rule it violates.

use headworks_core::cache::CacheDefect;
use headworks_sim::oracle::{DEATH_RULE, MIXED_RULE};
use headworks_sim::scenario::{Scenario, WorldDefect};
use headworks_sim::world::{Prepare, run_prepared};

/// Number of worlds in which a defect must be detected.
const WORLDS: u64 = 60;
const SOUND: Prepare = |_, _, _| {};
const BYTES: &str = "a read returns what was written there";

/// The violated rule of the first world that fails.
fn found(change: impl Fn(&mut Scenario), prepare: Prepare) -> Option<&'static str> {
    (1..=WORLDS).find_map(|seed| {
        let mut scenario = Scenario::draw_death(seed, None);
        change(&mut scenario);
        run_prepared(scenario, prepare).err().map(|failure| failure.violation.rule)
    })
}

fn must_find(rules: &[&str], change: impl Fn(&mut Scenario), prepare: Prepare) {
    let rule = found(change, prepare).expect("no world found the defect");
    assert!(rules.contains(&rule), "found as: {rule}");
}

#[test]
fn no_violation_without_defect() {
    assert_eq!(found(|_| {}, SOUND), None);
}

#[test]
fn entry_stored_after_reply_is_detected() {
    let late = |scenario: &mut Scenario| scenario.defect = WorldDefect::EntriesLate;
    must_find(&[DEATH_RULE], late, SOUND);
}

#[test]
fn copy_without_redo_record_is_detected() {
    let torn = |scenario: &mut Scenario| scenario.defect = WorldDefect::TornCopies;
    must_find(&[MIXED_RULE, BYTES, DEATH_RULE], torn, SOUND);
}

#[test]
fn entry_of_written_block_that_stays_is_detected() {
    let stale: Prepare = |shard, _, _| shard.set_cache_defect(CacheDefect::StaleEntry);
    // An upgrade would find it in the table itself.
    must_find(&[DEATH_RULE, BYTES], |scenario| scenario.upgrades = 0, stale);
}
