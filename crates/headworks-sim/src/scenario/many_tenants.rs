//! Worlds with many tenants: 50 of them and 60 exports on a disk and on flash, three tenants and an export with limits, every
//! third export with a latency target, and changes of all of it, under power cuts, upgrades and changes of other options.

use headworks_core::prng::Prng;
use headworks_core::time::{MS, SEC, US};

use super::{Scenario, draw_cached_job, draw_job};
use crate::disk::LatencyModel;
use crate::limits::LimitScenario;
use crate::tenants::TenantScenario;

/// Number of exports, each with a connection of its own.
const EXPORTS: u16 = 60;
const TENANTS: u16 = 50;
/// Most bios of a connection, so that a world takes as long as others.
const BIOS_MAX: u32 = 40;
const DEPTH_MAX: u16 = 16;

impl Scenario {
    /// Draws the world with many tenants of `seed`, with the given number of shards if any.
    #[must_use]
    pub fn draw_many_tenants(seed: u64, shards: Option<u16>) -> Self {
        let root = Prng::new(seed);
        let mut prng = root.split("many tenants");
        let cached = prng.below(2) == 0;
        let mut scenario = Self::draw_with(seed, shards, cached, 0);
        for (index, device) in scenario.devices.iter_mut().enumerate() {
            device.model = match index % 2 {
                0 => LatencyModel::Seek {
                    settle_ns: prng.between(100 * US, 2 * MS),
                    stroke_ns: prng.between(1_000, 20_000),
                    turn_ns: 8_333_333,
                    track_sectors: prng.between(500, 3_000),
                },
                _ => LatencyModel::Constant {
                    latency_ns: prng.between(20 * US, 200 * US),
                    jitter_ns: prng.between(0, 100 * US),
                    channels: 32,
                },
            };
            device.config.queue.io_timeout_ns = 60 * SEC;
        }
        scenario.jobs = (0..EXPORTS)
            .map(|_| {
                let mut job = draw_job(&mut prng, &scenario.volumes);
                if cached {
                    draw_cached_job(&mut prng, seed, &scenario.volumes, &mut job);
                }
                job.bios = job.bios.min(BIOS_MAX);
                job.depth = job.depth.min(DEPTH_MAX);
                job
            })
            .collect();
        let depth: u32 = scenario.jobs.iter().map(|job| u32::from(job.depth)).sum();
        scenario.bios_max = if scenario.tight { depth / 3 } else { depth + 8 };
        scenario.tenants = TenantScenario {
            exports: EXPORTS,
            tenants: TENANTS,
            changes: 100,
            parts: true,
            target_us: 20_000,
        };
        scenario.limits = LimitScenario {
            exports: 1,
            tenants: 3,
            server: prng.below(4) == 0,
            changes: [0, 20][prng.below(2) as usize],
        };
        scenario.ends.cut_after = Some(prng.between(1 << 6, 1 << 13));
        scenario.rounds = 2;
        scenario.draw_upgrades();
        scenario
    }
}
