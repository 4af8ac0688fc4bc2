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

/// A discard cancelled what a FUA write was about to write out: that was answered Ok and never written.
const DISCARDED_UNDER_FUA: u64 = 432_840_006_673;
/// In a small pool blocks were evicted between their arrival and the step of who had waited for them. On four shards.
const EVICTED_UNSEEN: u64 = 750_485_048_017;

#[test]
fn everybody_gets_on_in_a_pool_that_is_far_too_small() {
    if let Err(failure) = headworks_sim::run(Scenario::draw(EVICTED_UNSEEN, Some(4))) {
        panic!("{failure}");
    }
}

#[test]
fn what_broke_once_stays_whole() {
    let worlds = [
        (NO_PLACE_LEFT, None),
        (FAILED_UNDER_DISCARD, None),
        (FLUSHED_TOO_EARLY, None),
        (NOBODY_WOKEN, Some(4)),
        (QUOTA_OUTLIVED_ITS_POLICY, None),
        (DISCARDED_UNDER_FUA, None),
    ];
    for (seed, shards) in worlds {
        let scenario = Scenario::draw_crash(seed, shards, false);
        if let Err(failure) = headworks_sim::run(scenario) {
            panic!("{failure}");
        }
    }
}
