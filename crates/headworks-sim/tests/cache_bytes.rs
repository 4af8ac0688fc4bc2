//! The cache with real bytes in a pool that is much smaller than the volume: see `harness`.

use headworks_core::prng::Prng;
use headworks_core::writeback::{DirtyPosition, ForegroundWriteback};
use headworks_core::{ShardConfig, WriteMode};
use headworks_sim::harness::{Harness, HarnessOptions};

const KIND: HarnessOptions = HarnessOptions { clients: 6, region: 100_000, faults: false };

fn rounds(
    options: HarnessOptions,
    seeds: std::ops::Range<u64>,
    config: impl Fn(u64) -> ShardConfig,
) {
    for seed in seeds {
        let harness = round(Harness::new(options, config(seed), Prng::new(seed)));
        // A drawn volume may have no cache.
        let from_frames = harness.from_frames();
        assert!(options.faults || from_frames > 10, "{from_frames} reads from frames");
    }
}

fn round(mut harness: Harness<Prng>) -> Harness<Prng> {
    for _ in 0..4 {
        harness.run(600, None);
        harness.flush_and_compare();
    }
    assert!(harness.answered() > 500, "{} bios", harness.answered());
    assert!(
        harness.status_extents().iter().all(|&extents| extents > 3),
        "{:?}",
        harness.status_extents()
    );
    harness
}

#[test]
fn data_are_correct_in_a_pool_smaller_than_the_volume() {
    // 614 KB of volume: 150 blocks, in 256 frames less the shadow frames.
    rounds(KIND, 1..30, |_| KIND.config(WriteMode::Writeback, 256));
}

#[test]
fn data_are_correct_with_small_folios_and_tiny_dirty_limit() {
    rounds(KIND, 30..60, |_| {
        let mut config = KIND.config(WriteMode::Writeback, 256);
        config.dirty.dirty_bytes = 64 << 10;
        config.devices[0].queue.max_folio_order = 0;
        config.devices[0].queue.read_ahead_kb = 0;
        config
    });
}

#[test]
fn writethrough_data_are_on_the_device_when_answered() {
    rounds(KIND, 60..80, |_| KIND.config(WriteMode::Writethrough, 256));
}

/// Six blocks after each four.
#[derive(Debug)]
struct EveryFourth;

impl ForegroundWriteback for EveryFourth {
    fn quota(&self, _: &DirtyPosition, nr_dirtied: u32) -> Option<u32> {
        (nr_dirtied >= 4).then_some(6)
    }
}

#[test]
fn data_are_correct_with_foreground_writeback() {
    for seed in 80..100 {
        let mut config = KIND.config(WriteMode::Writeback, 256);
        config.dirty.dirty_bytes = 128 << 10;
        let mut harness = Harness::new(KIND, config, Prng::new(seed));
        harness.shard().set_foreground(Box::new(EveryFourth));
        round(harness);
    }
}

/// Any configuration over a disk that fails, rejects and transfers short keeps acknowledged data.
#[test]
fn faulty_disk_loses_no_acknowledged_data() {
    let bad = HarnessOptions { faults: true, ..KIND };
    rounds(bad, 100..140, |seed| bad.draw(&mut Prng::new(seed).split("configuration")));
}

/// Runs bios of any kind, with hand-overs to new shards while bios are in flight and while none are.
fn rounds_with_hand_overs(options: HarnessOptions, seed: u64, config: ShardConfig) -> u32 {
    let mut harness = Harness::new(options, config, Prng::new(seed));
    let mut count = 0;
    for _ in 0..4 {
        for _ in 0..3 {
            harness.run(150, None);
            count += u32::from(harness.hand_over());
        }
        harness.flush_and_compare();
        harness.run(100, None);
        harness.drain();
        count += u32::from(harness.hand_over());
        harness.flush_and_compare();
    }
    assert!(harness.answered() > 500, "{} bios", harness.answered());
    count
}

#[test]
fn data_are_correct_after_hand_over_to_new_shards() {
    for (seed, mode) in
        (140..170).zip([WriteMode::Writeback, WriteMode::Writethrough].into_iter().cycle())
    {
        let mut config = KIND.config(mode, 256);
        if seed % 3 == 0 {
            config.dirty.dirty_bytes = 64 << 10;
        }
        assert_eq!(rounds_with_hand_overs(KIND, seed, config), 16);
    }
}

#[test]
fn faulty_disk_loses_no_acknowledged_data_after_hand_over() {
    let bad = HarnessOptions { faults: true, ..KIND };
    let count = |seed| {
        let config = bad.draw(&mut Prng::new(seed).split("configuration"));
        rounds_with_hand_overs(bad, seed, config)
    };
    assert!((170..200).map(count).sum::<u32>() > 200, "the volume is usually there");
}
