//! Joined worlds: where a server meets what it does not own. Each kind draws a world from a seed and checks rules of its own.
//!
//! | kind | what is joined | real code that decides |
//! |---|---|---|
//! | `overlays` | whole shards over overlays, whose process dies and whose power is cut | shards, executor, `OverlayDevice` |
//! | `images` | images that are deleted, replaced, renamed and restored between a death and the next start | `headworks_cache_memory::judge` |
//! | `memory` | caches in a filesystem of limited size that others fill and empty | shards, `headworks-cache-memory` |
//! | `stops` | a stop while the device of some volumes does not answer | shards, executor |

pub mod images;
pub mod stops;

use headworks_core::Instant;
use headworks_core::record::RunHash;

use self::images::{ImagesDefect, ImagesMet};
use crate::check::Failure;
use crate::coverage::{Coverage, Point};
use crate::scenario::Scenario;
use crate::world::{self, Outcome};

/// A run of at least this many seeds must pass every coverage point of its kinds.
pub const COVERED_AFTER: u64 = 40;

/// Hosts with images of a seed.
const IMAGES_EACH: u64 = 100;

/// A kind of joined world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JointKind {
    /// Overlays behind whole shards.
    Overlays,
    /// Images that change between a death and the next start.
    Images,
    /// Memory on a filesystem that others fill.
    Memory,
    /// Stops beside a hung device.
    Stops,
}

impl JointKind {
    /// All kinds, in the order in which a seed runs them.
    pub const ALL: [Self; 4] = [Self::Overlays, Self::Images, Self::Memory, Self::Stops];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Overlays => "overlays",
            Self::Images => "images",
            Self::Memory => "memory",
            Self::Stops => "stops",
        }
    }

    /// The kind of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// A run in progress.
#[derive(Clone, Debug, Default)]
pub struct JointsRun {
    /// Worlds that ended without a violation.
    pub worlds: u64,
    /// Power cuts so far.
    pub cuts: u64,
    /// Process deaths so far.
    pub deaths: u64,
    /// What hosts with images have met.
    pub images: ImagesMet,
    /// Coverage points passed so far.
    pub coverage: Coverage,
    hash: RunHash,
}

impl JointsRun {
    /// Runs the world of a seed and kind.
    ///
    /// # Errors
    /// The violation.
    pub fn run(&mut self, seed: u64, kind: JointKind) -> Result<(), Box<Failure>> {
        let outcome = match kind {
            JointKind::Overlays => world::run(Scenario::draw_overlays(seed, None))?,
            JointKind::Memory => world::run(Scenario::draw_memory(seed, None))?,
            JointKind::Stops => stops::run(seed)?,
            JointKind::Images => return self.run_images(seed),
        };
        self.add(&outcome);
        Ok(())
    }

    /// Runs hosts with images: many, as each takes microseconds.
    fn run_images(&mut self, seed: u64) -> Result<(), Box<Failure>> {
        for at in 0..IMAGES_EACH {
            let own = seed.wrapping_mul(IMAGES_EACH).wrapping_add(at);
            let met = images::run(own, ImagesDefect::None).map_err(|(violation, history)| {
                let (at, state) = (Instant(0), format!("  of host {own}"));
                Box::new(Failure { seed, at, violation, history, state })
            })?;
            self.images.add(&met);
            self.hash.add(met.restored << 32 | met.beside << 16 | met.not_told);
        }
        self.worlds += IMAGES_EACH;
        Ok(())
    }

    fn add(&mut self, outcome: &Outcome) {
        self.worlds += 1;
        self.cuts += outcome.cuts;
        self.deaths += outcome.deaths;
        self.coverage.merge(&outcome.coverage);
        self.hash.add(outcome.hash);
    }

    /// The points that only joined worlds can pass, and that were not passed.
    #[must_use]
    pub fn missed(&self, kinds: &[JointKind]) -> Vec<Point> {
        let of = |point: &&Point| match point.name().split(':').next() {
            Some("overlay") => kinds.contains(&JointKind::Overlays),
            Some("memory") => kinds.contains(&JointKind::Memory),
            Some("stop") => kinds.contains(&JointKind::Stops),
            _ => false,
        };
        self.coverage.missed(Point::ALL.iter().filter(of))
    }

    /// The hash of all worlds so far.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash.0
    }
}
