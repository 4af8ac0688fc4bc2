//! Overlays behind whole shards, whose process dies and whose power is cut at any moment: every defect of their files is found, by the
//! rule it violates.

use headworks_sim::disk::DiskDefect;
use headworks_sim::oracle::{CUT_RULE, DEATH_RULE};
use headworks_sim::scenario::Scenario;
use headworks_sim::world::run;

/// Seeds that have no violation without a defect.
const SEEDS: u64 = 60;
/// Seeds within which each defect is found; most take fewer than ten.
const MOST: u64 = 60;

/// The first of so many seeds whose world has a violation, and its rule.
fn found(defect: DiskDefect, seeds: u64) -> Option<(u64, &'static str)> {
    let found = (0..seeds).find_map(|seed| {
        let mut scenario = Scenario::draw_overlays(seed, None);
        scenario.devices[0].defect = defect;
        run(scenario).err().map(|failure| (seed, failure.violation.rule))
    });
    // For the table in VALIDATION.md.
    println!("{defect:?}: {found:?}");
    found
}

#[track_caller]
fn must_find(defect: DiskDefect) {
    let found = found(defect, MOST);
    assert!(found.is_some_and(|(_, rule)| [CUT_RULE, DEATH_RULE].contains(&rule)), "{found:?}");
}

#[test]
fn no_violation_without_defect() {
    assert_eq!(found(DiskDefect::None, SEEDS), None);
}

#[test]
fn missing_sync_between_data_and_bits_is_found() {
    must_find(DiskDefect::SkipsDataSync);
}

#[test]
fn missing_sync_behind_the_bits_is_found() {
    must_find(DiskDefect::SkipsBitsSync);
}

#[test]
fn lost_bit_is_found() {
    must_find(DiskDefect::LosesBits);
}

#[test]
fn skipped_fua_is_found() {
    must_find(DiskDefect::SkipsFua);
}

#[test]
fn lost_here_bits_are_found() {
    must_find(DiskDefect::LosesHereBits);
}

#[test]
fn boot_with_the_id_of_another_is_found() {
    must_find(DiskDefect::SameBoot);
}
