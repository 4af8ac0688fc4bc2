//! Power cuts, many: every world has caches, and every round ends with one, in the middle of its load or after a flush.
//!
//! Scenario `n` of seed `s` is the scenario of seed `s + n`, so a failure is repeated by that seed alone. In one of
//! [`LYING_EVERY`] a device says that it flushed and did not: there a lost block is the lie's, and is counted as found.
//! Whatever else breaks ends the run.

use headworks_core::WriteMode;
use headworks_core::record::RunHash;

use crate::check::Failure;
use crate::coverage::{Coverage, Point};
use crate::oracle::{CUT_RULE, CutReport};
use crate::scenario::Scenario;
use crate::world;

/// One scenario of so many has a device that lies.
pub const LYING_EVERY: u64 = 16;
/// Fewer cuts than this may leave a rare point out by chance; a run of at least as many must have hit every one.
pub const COVERED_AFTER: u64 = 10_000;
/// The numbers of shards that worlds have.
pub const SHARDS: [u16; 3] = [1, 2, 4];

/// What devices lied about, and what was seen of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LyingDevices {
    /// Worlds with such a device.
    pub worlds: u64,
    /// Worlds where data were found lost.
    pub found: u64,
}

/// A run under way.
#[derive(Clone, Debug, Default)]
pub struct CrashRun {
    /// The next seed.
    pub seed: u64,
    /// Forces the number of shards.
    pub shards: Option<u16>,
    /// Scenarios that ended well.
    pub scenarios: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Bios answered.
    pub bios: u64,
    /// What was found after cuts, by number of shards as in [`SHARDS`] and by write mode.
    pub survived: [[CutReport; WriteMode::ALL.len()]; SHARDS.len()],
    /// Of devices.
    pub lies: LyingDevices,
    /// What was passed.
    pub coverage: Coverage,
    hash: RunHash,
}

impl CrashRun {
    /// A run that starts at `seed`.
    #[must_use]
    pub fn new(seed: u64, shards: Option<u16>) -> Self {
        Self { seed, shards, ..Self::default() }
    }

    /// Runs the next scenario.
    ///
    /// # Errors
    /// The rule that it broke; [`CrashRun::seed`] still names it.
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
                // What a liar kept says nothing about the path.
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
        self.scenarios += 1;
        self.seed = self.seed.wrapping_add(1);
        Ok(())
    }

    /// The hash of all scenarios so far.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash.0
    }

    /// The points that a long run passes. A world that is cut keeps its volumes: what they may hold is followed to the end.
    pub fn asked(&self) -> impl Iterator<Item = &'static Point> {
        Point::asked(self.shards).filter(|point| !point.name().starts_with("change:"))
    }

    /// What the run should have passed and did not; nothing is asked of a short run.
    #[must_use]
    pub fn missed(&self) -> Vec<Point> {
        match self.cuts < COVERED_AFTER {
            true => Vec::new(),
            false => self.coverage.missed(self.asked()),
        }
    }
}
