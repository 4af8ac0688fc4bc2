//! Shards are replaced by new ones at any moment: every acknowledged write survives, also a power cut or a process death
//! soon after, and every defect of the hand-over is detected, by the rule it violates.

use std::ops::RangeInclusive;

use headworks_core::cache::CacheDefect;
use headworks_sim::coverage::{Coverage, Point};
use headworks_sim::environment::ERROR_REPORTED;
use headworks_sim::oracle::{CUT_RULE, DEATH_RULE};
use headworks_sim::scenario::{Scenario, WorldDefect};
use headworks_sim::world::{Prepare, run_prepared};

/// Number of worlds in which a defect must be detected.
const WORLDS: u64 = 60;
/// The same for a defect that needs a connection that has not seen an error.
const WORLDS_RARE: RangeInclusive<u64> = 585..=2_000;
const SOUND: Prepare = |_, _, _| {};
const READ_NEWEST: &str = "a completed write is seen by every later read";

/// A world with upgrades; every third one has process deaths, another third power cuts.
fn world(seed: u64) -> Scenario {
    let mut scenario = match seed % 3 {
        0 => Scenario::draw_death(seed, None),
        1 => Scenario::draw_crash(seed, None, false),
        _ => Scenario::draw(seed, None),
    };
    scenario.upgrades = 4;
    scenario.cache.dirty_table = scenario.cache.is_on();
    scenario
}

/// The violated rule of the first world that fails.
fn found(mut worlds: RangeInclusive<u64>, prepare: Prepare) -> Option<(u64, &'static str)> {
    worlds.find_map(|seed| {
        let mut scenario = world(seed);
        scenario.defect = WorldDefect::UncheckedUpgrades;
        let failure = run_prepared(scenario, prepare).err()?;
        Some((seed, failure.violation.rule))
    })
}

#[test]
fn upgrades_lose_nothing() {
    let mut coverage = Coverage::default();
    for seed in 1..=WORLDS {
        match run_prepared(world(seed), SOUND) {
            Ok(outcome) => coverage.merge(&outcome.coverage),
            Err(failure) => panic!("{failure}"),
        }
    }
    let asked = Point::ALL.iter().filter(|point| point.name().contains("upgrade"));
    assert_eq!(coverage.missed(asked), []);
}

#[test]
fn dirty_block_handed_over_as_clean_is_detected() {
    let cleans: Prepare = |shard, _, _| shard.set_cache_defect(CacheDefect::HandoverCleans);
    let (seed, rule) = found(1..=WORLDS, cleans).expect("no world found the defect");
    // Whichever comes first after the upgrade: a read, a death or a power cut.
    let lost = [READ_NEWEST, DEATH_RULE, CUT_RULE];
    assert!(lost.contains(&rule), "seed {seed} found it as: {rule}");
}

#[test]
fn error_that_is_not_handed_over_is_detected() {
    let forgets: Prepare = |shard, _, _| {
        shard.set_cache_defect(CacheDefect::HandoverForgetsErrors);
    };
    let (seed, rule) = found(WORLDS_RARE, forgets).expect("no world found the defect");
    assert_eq!(rule, ERROR_REPORTED, "seed {seed}");
}
