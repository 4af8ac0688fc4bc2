//! Joined worlds: planted defects are found.

use headworks_sim::coverage::{Coverage, Point};
use headworks_sim::joints::stops;
use headworks_sim::memory_space::MEMORY_RULE;
use headworks_sim::scenario::{Scenario, WorldDefect};
use headworks_sim::world::{self, STOP_RULE};

#[test]
fn stop_beside_a_hung_device_flushes_the_others() {
    for seed in 0..20 {
        stops::run(seed).unwrap_or_else(|failure| panic!("{failure}"));
    }
    // A write-out that had waited for a second before its device hung is overdue once that has been silent for a quarter of it.
    stops::run(5_802_163_159_343).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn stop_that_waits_for_all_clients_is_found() {
    let found = (0..20).find_map(|seed| stops::run_with(seed, WorldDefect::StopsTogether).err());
    println!("StopsTogether: {:?}", found.as_ref().map(|failure| failure.seed));
    assert_eq!(found.map(|failure| failure.violation.rule), Some(STOP_RULE));
}

#[test]
fn full_memory_filesystem_makes_the_cache_smaller_and_loses_nothing() {
    let mut coverage = Coverage::default();
    for seed in 0..40 {
        let outcome = world::run(Scenario::draw_memory(seed, None));
        coverage.merge(&outcome.unwrap_or_else(|failure| panic!("{failure}")).coverage);
    }
    let of_memory = Point::ALL.iter().filter(|point| point.name().starts_with("memory:"));
    assert_eq!(coverage.missed(of_memory), []);
}

#[test]
fn use_of_refused_memory_is_found() {
    let found = (0..20).find_map(|seed| {
        let defect = WorldDefect::AnswersRefusedMemory;
        world::run(Scenario { defect, ..Scenario::draw_memory(seed, None) }).err()
    });
    println!("AnswersRefusedMemory: {:?}", found.as_ref().map(|failure| failure.seed));
    assert_eq!(found.map(|failure| failure.violation.rule), Some(MEMORY_RULE));
}
