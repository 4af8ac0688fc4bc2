//! Overlays behind whole shards, whose power is cut at any moment: every defect of their files is found, by the rule it violates.

use headworks_sim::disk::DiskDefect;
use headworks_sim::oracle::CUT_RULE;
use headworks_sim::scenario::Scenario;
use headworks_sim::world::run;

/// Seeds within which each defect is found; most take fewer than ten.
const SEEDS: u64 = 60;

/// The first seed of a world with a violation, and its rule.
fn found(defect: DiskDefect) -> Option<(u64, &'static str)> {
    let found = (0..SEEDS).find_map(|seed| {
        let mut scenario = Scenario::draw_overlays(seed, None);
        scenario.devices[0].defect = defect;
        run(scenario).err().map(|failure| (seed, failure.violation.rule))
    });
    // For the table in VALIDATION.md.
    println!("{defect:?}: {found:?}");
    found
}

#[test]
fn no_violation_without_defect() {
    assert_eq!(found(DiskDefect::None), None);
}

#[test]
fn missing_sync_between_data_and_bits_is_found() {
    let found = found(DiskDefect::SkipsDataSync);
    assert!(found.is_some_and(|(_, rule)| rule == CUT_RULE), "{found:?}");
}

#[test]
fn missing_sync_behind_the_bits_is_found() {
    let found = found(DiskDefect::SkipsBitsSync);
    assert!(found.is_some_and(|(_, rule)| rule == CUT_RULE), "{found:?}");
}

#[test]
fn lost_bit_is_found() {
    let found = found(DiskDefect::LosesBits);
    assert!(found.is_some_and(|(_, rule)| rule == CUT_RULE), "{found:?}");
}

#[test]
fn skipped_fua_is_found() {
    let found = found(DiskDefect::SkipsFua);
    assert!(found.is_some_and(|(_, rule)| rule == CUT_RULE), "{found:?}");
}
