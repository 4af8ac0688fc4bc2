//! Many short swarm scenarios from consecutive seeds: the run that finds what nobody thought of.
//!
//! Scenario `n` of seed `s` is the scenario of seed `s + n`, so a failure is repeated by that seed alone. The hash of a run
//! depends on the seed, the number of scenarios and the shards asked for, and on nothing else.

use headworks_core::record::RunHash;

use crate::check::Failure;
use crate::coverage::{Coverage, Point};
use crate::scenario::Scenario;
use crate::world;

/// Fewer scenarios than this may leave a rare point out by chance; a run of at least as many must have hit every one.
pub const COVERED_AFTER: u64 = 300;

/// A run under way.
#[derive(Clone, Debug, Default)]
pub struct SmokeRun {
    /// The next seed.
    pub seed: u64,
    /// Forces the number of shards.
    pub shards: Option<u16>,
    /// Scenarios that ended well.
    pub scenarios: u64,
    /// Bios answered.
    pub bios: u64,
    /// What was passed.
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
    /// The rule that it broke; [`SmokeRun::seed`] still names it.
    pub fn run_next(&mut self) -> Result<(), Box<Failure>> {
        let outcome = world::run(Scenario::draw(self.seed, self.shards))?;
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

    /// What the run should have passed and did not; nothing is asked of a short run.
    #[must_use]
    pub fn missed(&self) -> Vec<Point> {
        if self.scenarios < COVERED_AFTER {
            return Vec::new();
        }
        self.coverage.missed(Point::asked(self.shards))
    }
}
