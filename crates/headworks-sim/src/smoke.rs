//! Many short swarm scenarios from consecutive seeds.
//!
//! Scenario `n` of seed `s` is the scenario of seed `s + n`, so one seed reproduces a failure. The
//! hash of a run depends on the seed, the number of scenarios and the requested number of shards
//! only.

use headworks_core::record::RunHash;

use crate::check::Failure;
use crate::coverage::{Coverage, Point};
use crate::outage;
use crate::scenario::Scenario;
use crate::world;

/// A run of at least this many scenarios must pass every coverage point; a shorter one may miss
/// rare points by chance.
pub const COVERED_AFTER: u64 = 300;

/// Every world whose seed is a multiple of this has an outage: it takes as long as 120 others.
const OUTAGE_EVERY: u64 = 256;

/// Of so many worlds one has many tenants.
const TENANTS_EVERY: u64 = 64;

/// Of so many worlds one has volumes on a base.
const LAYERS_EVERY: u64 = 8;

/// Which worlds a run has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SmokeKind {
    /// All kinds, drawn by the seed.
    #[default]
    Mixed,
    /// Worlds with many tenants alone.
    ManyTenants,
    /// Worlds with volumes on a base alone.
    Layers,
}

/// A smoke run in progress.
#[derive(Clone, Debug, Default)]
pub struct SmokeRun {
    /// Seed of the next scenario.
    pub seed: u64,
    /// Forces the number of shards.
    pub shards: Option<u16>,
    /// Which worlds it has.
    pub kind: SmokeKind,
    /// Scenarios that ended without a violation.
    pub scenarios: u64,
    /// Bios answered so far.
    pub bios: u64,
    /// Coverage points passed so far.
    pub coverage: Coverage,
    hash: RunHash,
}

impl SmokeRun {
    /// A run that starts at `seed`.
    #[must_use]
    pub fn new(seed: u64, shards: Option<u16>) -> Self {
        Self { seed, shards, ..Self::default() }
    }

    /// Runs the next scenario.
    ///
    /// # Errors
    /// The violation; [`SmokeRun::seed`] still names the scenario.
    pub fn run_next(&mut self) -> Result<(), Box<Failure>> {
        let (seed, shards) = (self.seed, self.shards);
        let outcome = match self.kind {
            SmokeKind::ManyTenants => world::run(Scenario::draw_many_tenants(seed, shards))?,
            SmokeKind::Layers => world::run(Scenario::draw_layers(seed, shards))?,
            SmokeKind::Mixed if seed % TENANTS_EVERY == 1 => {
                world::run(Scenario::draw_many_tenants(seed, shards))?
            }
            SmokeKind::Mixed if seed % LAYERS_EVERY == 2 => {
                world::run(Scenario::draw_layers(seed, shards))?
            }
            SmokeKind::Mixed if seed.is_multiple_of(OUTAGE_EVERY) => {
                outage::run_drawn(seed, shards)?
            }
            SmokeKind::Mixed => world::run(Scenario::draw(seed, shards))?,
        };
        self.hash.add(outcome.hash);
        self.hash.add(outcome.bios);
        self.hash.add(outcome.at.0);
        self.bios += outcome.bios;
        self.coverage.merge(&outcome.coverage);
        self.scenarios += 1;
        self.seed = self.seed.wrapping_add(1);
        Ok(())
    }

    /// The hash of all scenarios so far.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash.0
    }

    /// Required coverage points that were not passed; none for a short run, or one of a single kind of world.
    #[must_use]
    pub fn missed(&self) -> Vec<Point> {
        if self.scenarios < COVERED_AFTER || self.kind != SmokeKind::Mixed {
            return Vec::new();
        }
        let asked = Point::asked(self.shards);
        self.coverage.missed(
            asked.filter(|point| !point.is_of_death() && !point.is_of_joints() && !point.is_rare()),
        )
    }
}
