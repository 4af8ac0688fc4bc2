//! The cache with real bytes in a pool that is much smaller than the volume: see `harness`.

use headworks_core::prng::Prng;
use headworks_core::writeback::ThrottlePolicy;
use headworks_core::{ShardConfig, WriteMode};
use headworks_sim::harness::{Harness, HarnessOptions};

const KIND: HarnessOptions = HarnessOptions { clients: 6, region: 100_000, faults: false };

fn rounds(
    options: HarnessOptions,
    seeds: std::ops::Range<u64>,
    config: impl Fn(u64) -> ShardConfig,
) {
    for seed in seeds {
        let mut harness = Harness::new(options, config(seed), Prng::new(seed));
        for _ in 0..4 {
            harness.run(600, None);
            harness.flush_and_compare();
        }
        assert!(harness.answered() > 500, "{} bios", harness.answered());
        assert!(harness.told().iter().all(|&extents| extents > 3), "{:?}", harness.told());
    }
}

#[test]
fn every_byte_is_where_it_should_be_in_a_pool_that_is_too_small() {
    // 614 KB of volume: 150 blocks, in 256 frames less the shadows; and then in fewer still.
    rounds(KIND, 1..30, |_| KIND.config(WriteMode::Writeback, 256));
}

#[test]
fn small_folios_and_a_tiny_limit() {
    rounds(KIND, 30..60, |_| {
        let mut config = KIND.config(WriteMode::Writeback, 256);
        config.dirty.dirty_bytes = 64 << 10;
        config.devices[0].queue.max_folio_order = 0;
        config.devices[0].queue.read_ahead_kb = 0;
        config
    });
}

#[test]
fn writethrough_is_on_the_device_when_it_is_answered() {
    rounds(KIND, 60..80, |_| KIND.config(WriteMode::Writethrough, 256));
}

#[test]
fn the_old_way_of_throttling_keeps_every_byte_too() {
    rounds(KIND, 80..100, |_| {
        let mut config = KIND.config(WriteMode::Writeback, 256);
        config.dirty.policy = ThrottlePolicy::Foreground;
        config.dirty.dirty_bytes = 128 << 10;
        config
    });
}

/// Any configuration, over a disk that fails, refuses and stops short: what is promised still holds.
#[test]
fn a_bad_disk_loses_nothing_that_was_promised() {
    let bad = HarnessOptions { faults: true, ..KIND };
    rounds(bad, 100..140, |seed| bad.draw(&mut Prng::new(seed).split("configuration")));
}
