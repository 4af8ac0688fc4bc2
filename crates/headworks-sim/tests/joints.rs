//! Joined worlds: a planted defect is found.

use headworks_sim::joints::stops;
use headworks_sim::scenario::WorldDefect;
use headworks_sim::world::STOP_RULE;

#[test]
fn stop_beside_a_hung_device_flushes_the_others() {
    for seed in 0..20 {
        stops::run(seed).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn stop_that_waits_for_all_clients_is_found() {
    let found = (0..20).find_map(|seed| stops::run_with(seed, WorldDefect::StopsTogether).err());
    println!("StopsTogether: {:?}", found.as_ref().map(|failure| failure.seed));
    assert_eq!(found.map(|failure| failure.violation.rule), Some(STOP_RULE));
}
