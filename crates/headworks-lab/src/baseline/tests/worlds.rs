//! Simulated worlds whose devices have the old tag policies: the queue stays correct under grants that come tag by tag.

use crate::baseline::{TagPolicy, WakeOptions};
use headworks_core::prng::Prng;
use headworks_core::{DeviceId, Shard, ShardId};
use headworks_sim::scenario::Scenario;
use headworks_sim::world::{Prepare, run_prepared};

/// Gives every device one of the old policies, with delays of a few microseconds, so that batches meet in many orders; half of
/// the devices with the series have only some of its patches.
const PREPARE: Prepare = |shard: &mut Shard, scenario: &Scenario, _: ShardId| {
    for device in 0..scenario.devices.len() as u16 {
        let mut prng = Prng::new(scenario.seed << 8 | u64::from(device)).split("tags");
        let policy = TagPolicy::ALL[1 + prng.below(2) as usize];
        let wake = WakeOptions {
            wake_batch: prng.below(2) as u32 * prng.between(1, 8) as u32,
            base_ns: prng.below(3_000) as u32,
            per_waiter_ns: prng.below(1_000) as u32,
            jitter_ns: prng.below(2) as u32 * prng.below(20_000) as u32,
            per_piece_ns: prng.below(2) as u32 * prng.below(3_000) as u32,
            patches: if prng.below(2) == 0 { 0xff } else { prng.below(256) as u8 },
            safety_net: true,
            seed: prng.next() as u32,
        };
        policy.install(shard, DeviceId(device), wake);
    }
};

#[test]
fn worlds_with_old_tag_policies_break_no_rule() {
    let worlds = if cfg!(debug_assertions) { 8 } else { 1_000 };
    for seed in 1..=worlds {
        if let Err(failure) = run_prepared(Scenario::draw(seed, None), PREPARE) {
            panic!("seed {seed}: {failure}");
        }
    }
}

#[test]
fn power_cuts_with_old_tag_policies_lose_nothing() {
    let worlds = if cfg!(debug_assertions) { 5 } else { 500 };
    for seed in 1..=worlds {
        if let Err(failure) = run_prepared(Scenario::draw_crash(seed, None, false), PREPARE) {
            panic!("seed {seed}: {failure}");
        }
    }
}
