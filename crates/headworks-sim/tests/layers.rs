//! Volumes on a base, with power cuts, process deaths, hot-plug and upgrades: no read shows what was there before an acknowledged
//! change, or what another volume has; and every defect of that is detected, by the rule it violates.

use headworks_core::cache::CacheDefect;
use headworks_sim::coverage::{Coverage, Point};
use headworks_sim::oracle::{CUT_RULE, DEATH_RULE};
use headworks_sim::scenario::Scenario;
use headworks_sim::world::{Prepare, run_prepared};

/// Number of worlds in which a defect must be detected.
const WORLDS: u64 = 60;
const READ_NEWEST: &str = "a completed write is seen by every later read";

/// The seed of the first world that fails, and the violated rule.
fn found(prepare: Prepare) -> Option<(u64, &'static str)> {
    (1..=WORLDS).find_map(|seed| {
        let failure = run_prepared(Scenario::draw_layers(seed, None), prepare).err()?;
        Some((seed, failure.violation.rule))
    })
}

fn must_find(prepare: Prepare) {
    let (seed, rule) = found(prepare).expect("no world found the defect");
    let rules = [READ_NEWEST, CUT_RULE, DEATH_RULE];
    assert!(rules.contains(&rule), "seed {seed} found it as: {rule}");
}

#[test]
fn volumes_on_a_base_show_their_own_changes() {
    let mut coverage = Coverage::default();
    for seed in 1..=WORLDS {
        match run_prepared(Scenario::draw_layers(seed, None), |_, _, _| {}) {
            Ok(outcome) => coverage.merge(&outcome.coverage),
            Err(failure) => panic!("{failure}"),
        }
    }
    let asked = Point::ALL.iter().filter(|point| point.name().starts_with("layer:"));
    assert_eq!(coverage.missed(asked), []);
}

/// What was found in these worlds: a volume that grew read the base behind its old end (315), and one was removed while the base was read
/// for it (85).
#[test]
fn worlds_that_broke_a_rule_pass() {
    for (seed, shards) in [(315, Some(2)), (85, None)] {
        run_prepared(Scenario::draw_layers(seed, shards), |_, _, _| {})
            .unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn change_that_is_not_noted_is_detected() {
    must_find(|shard, _, _| shard.set_cache_defect(CacheDefect::ForgetsOwnBlocks));
}

#[test]
fn change_before_the_base_that_is_not_noted_is_detected() {
    must_find(|shard, _, _| shard.set_cache_defect(CacheDefect::ForgetsEarlierChanges));
}
