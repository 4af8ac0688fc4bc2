//! Simulated worlds with constant hot-plug of volumes and devices.

use headworks_core::cache::CacheDefect;
use headworks_sim::coverage::{Coverage, Point};
use headworks_sim::scenario::Scenario;
use headworks_sim::world::{Prepare, run_prepared};

const WORLDS: u64 = 36;

fn world(seed: u64) -> Scenario {
    let mut scenario = Scenario::draw(seed, None);
    scenario.hotplug.changes = 12;
    scenario
}

fn broken(prepare: Prepare) -> (Vec<&'static str>, Coverage) {
    let (mut rules, mut coverage) = (Vec::new(), Coverage::default());
    for seed in 1..=WORLDS {
        match run_prepared(world(seed), prepare) {
            Ok(outcome) => coverage.merge(&outcome.coverage),
            Err(failure) => rules.push(failure.violation.rule),
        }
    }
    (rules, coverage)
}

#[test]
fn no_state_survives_hot_remove() {
    let (rules, coverage) = broken(|_, _, _| {});
    assert!(rules.is_empty(), "{rules:?}");
    let often = [Point::VolumeReplaced, Point::DeviceReplaced, Point::ChangeBusy];
    for point in often {
        assert!(coverage.count(point) > WORLDS, "{}", point.name());
    }
    // Of hotplugged only where some were drawn.
    let some = [
        Point::VolumeAdded,
        Point::VolumeRemoved,
        Point::ReplacedResized,
        Point::Grown,
        Point::Shrunk,
        Point::ShrunkBusy,
    ];
    for point in some {
        assert!(coverage.count(point) > 3, "{}", point.name());
    }
}

#[test]
fn blocks_that_survive_hot_remove_are_detected() {
    let (rules, _) = broken(|shard, _, _| shard.set_cache_defect(CacheDefect::FoliosStay));
    assert!(rules.len() >= 3, "found in {} of {WORLDS} worlds", rules.len());
    let about = [
        "a completed write is seen by every later read",
        "a read returns what was written there",
        "flushed data survive a power cut",
        "an upgrade keeps the contents of the caches",
    ];
    assert!(rules.iter().all(|rule| about.contains(rule)), "{rules:?}");
}
