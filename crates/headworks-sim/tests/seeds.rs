//! Worlds that once broke, by their seeds.

use headworks_sim::scenario::Scenario;

/// The caches of two shards filled the places of the shard that owns their device, and its own cache had none left.
const NO_PLACE_LEFT: u64 = 500_519;
/// A write-out failed while a discard waited for it: its block was dirty again, and then had no bytes.
const FAILED_UNDER_DISCARD: u64 = 50;

#[test]
fn what_broke_once_stays_whole() {
    for seed in [NO_PLACE_LEFT, FAILED_UNDER_DISCARD] {
        if let Err(failure) = headworks_sim::run(Scenario::draw_crash(seed, None, false)) {
            panic!("{failure}");
        }
    }
}
