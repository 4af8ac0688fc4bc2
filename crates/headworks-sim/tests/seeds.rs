//! Worlds that once broke, by their seeds.

use headworks_sim::scenario::Scenario;

/// The caches of two shards filled the places of the shard that owns their device, and its own cache had none left.
const NO_PLACE_LEFT: u64 = 500_519;
/// A write-out failed while a discard waited for it: its block was dirty again, and then had no bytes.
const FAILED_UNDER_DISCARD: u64 = 50;
/// Write-back's limits were changed, and writers went on waiting for what the new ones never bring. On four shards.
const NOBODY_WOKEN: u64 = 920_340;

/// A flush did not wait for blocks that were dirtied in a folio of which older ones were still on their way to be written.
const FLUSHED_TOO_EARLY: u64 = 3_000_076;

/// The old throttling was switched off under a writer that still had a chunk to write for itself.
const QUOTA_OUTLIVED_ITS_POLICY: u64 = 169_490_432_799;

#[test]
fn what_broke_once_stays_whole() {
    let worlds = [
        (NO_PLACE_LEFT, None),
        (FAILED_UNDER_DISCARD, None),
        (FLUSHED_TOO_EARLY, None),
        (NOBODY_WOKEN, Some(4)),
        (QUOTA_OUTLIVED_ITS_POLICY, None),
    ];
    for (seed, shards) in worlds {
        let scenario = Scenario::draw_crash(seed, shards, false);
        if let Err(failure) = headworks_sim::run(scenario) {
            panic!("{failure}");
        }
    }
}
