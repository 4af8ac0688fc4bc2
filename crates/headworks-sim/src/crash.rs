//! Power cuts and process deaths: every world has caches, and every round ends with one of them, under
//! load or after all bios. Each seed gives a world of power cuts, and a world whose process dies with its
//! memory kept.
//!
//! Scenario `n` of seed `s` is the scenario of seed `s + n`, so one seed reproduces a failure. In
//! one of [`LYING_EVERY`] worlds a device acknowledges flushes without performing them; lost data
//! are expected there, and counted as found. Any other violation ends the run.

use headworks_core::WriteMode;
use headworks_core::record::RunHash;

use crate::check::Failure;
use crate::coverage::{Coverage, Point};
use crate::oracle::{CUT_RULE, CutReport};
use crate::scenario::Scenario;
use crate::world;

/// One scenario of this many has a lying device.
pub const LYING_EVERY: u64 = 16;
/// A run of at least this many cuts must pass every coverage point; a shorter one may miss rare
/// points by chance.
pub const COVERED_AFTER: u64 = 10_000;
/// The numbers of shards that worlds have.
pub const SHARDS: [u16; 3] = [1, 2, 4];

/// Worlds with a lying device, and how many of them lost data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LyingDevices {
    /// Worlds with a device that skips flushes.
    pub worlds: u64,
    /// Worlds in which lost data were detected.
    pub found: u64,
}

/// A power-cut run in progress.
#[derive(Clone, Debug, Default)]
pub struct CrashRun {
    /// Seed of the next scenario.
    pub seed: u64,
    /// Forces the number of shards.
    pub shards: Option<u16>,
    /// Scenarios that ended without a violation.
    pub scenarios: u64,
    /// Power cuts so far.
    pub cuts: u64,
    /// Process deaths so far.
    pub deaths: u64,
    /// Bios answered so far.
    pub bios: u64,
    /// State found after cuts, by number of shards as in [`SHARDS`] and by write mode.
    pub survived: [[CutReport; WriteMode::ALL.len()]; SHARDS.len()],
    /// Worlds with lying devices.
    pub lies: LyingDevices,
    /// Coverage points passed so far.
    pub coverage: Coverage,
    hash: RunHash,
}

impl CrashRun {
    /// A run that starts at `seed`.
    #[must_use]
    pub fn new(seed: u64, shards: Option<u16>) -> Self {
        Self { seed, shards, ..Self::default() }
    }

    /// Runs the next two scenarios of one seed: one with power cuts, one with process deaths.
    ///
    /// # Errors
    /// The violation; [`CrashRun::seed`] still names the scenario.
    pub fn run_next(&mut self) -> Result<(), Box<Failure>> {
        let lies = self.seed.is_multiple_of(LYING_EVERY);
        let scenario = Scenario::draw_crash(self.seed, self.shards, lies);
        let place = SHARDS.iter().position(|&shards| shards == scenario.shards);
        self.lies.worlds += u64::from(lies);
        match world::run(scenario) {
            Ok(outcome) => {
                self.hash.add(outcome.hash);
                self.bios += outcome.bios;
                self.cuts += outcome.cuts;
                self.coverage.merge(&outcome.coverage);
                // Data on a lying device say nothing about the path.
                let rows = self.survived[place.unwrap_or(0)].iter_mut();
                rows.zip(&outcome.survived).filter(|_| !lies).for_each(|(sum, one)| sum.add(one));
            }
            Err(failure) if lies && failure.violation.rule == CUT_RULE => {
                self.lies.found += 1;
                self.hash.add(failure.at.0);
                self.cuts += 1;
            }
            Err(failure) => return Err(failure),
        }
        let outcome = world::run(Scenario::draw_death(self.seed, self.shards))?;
        self.hash.add(outcome.hash);
        self.bios += outcome.bios;
        self.deaths += outcome.deaths;
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

    /// The coverage points that a long run must pass. These worlds have neither hot-plug nor volumes on a base.
    pub fn asked(&self) -> impl Iterator<Item = &'static Point> {
        let others = ["hot-plug:", "layer:"];
        Point::asked(self.shards).filter(move |point| {
            !point.is_of_joints() && !others.iter().any(|theirs| point.name().starts_with(theirs))
        })
    }

    /// Required coverage points that were not passed; none for a short run.
    #[must_use]
    pub fn missed(&self) -> Vec<Point> {
        match self.cuts < COVERED_AFTER {
            true => Vec::new(),
            false => self.coverage.missed(self.asked()),
        }
    }
}
