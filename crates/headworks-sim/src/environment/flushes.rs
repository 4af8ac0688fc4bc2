//! The flushes of each volume, and what they promise.
//!
//! ```text
//!   trusted --a flush fails on the device--> suspect --the operator acknowledges the failed data--> trusted
//! ```
//!
//! Invariant: no flush and no FUA that begins on a suspect volume succeeds.

use headworks_core::{Bio, BioFlags, Op, Status, VolumeId};

use crate::check::violation;
use crate::oracle::Violation;

#[derive(Clone, Copy, Debug, Default)]
struct VolumeFlushes {
    /// Status of the last one.
    last: Option<Status>,
    /// Tick of the last one that failed on the device, until it is acknowledged.
    suspect: Option<u64>,
    /// The operator is about to acknowledge the failed data.
    acknowledging: bool,
}

/// The flushes of all volumes.
#[derive(Debug)]
pub struct Flushes(Vec<VolumeFlushes>);

impl Flushes {
    /// No flushes of so many volumes.
    #[must_use]
    pub fn new(volumes: usize) -> Self {
        Self(vec![VolumeFlushes::default(); volumes])
    }

    fn of(&mut self, volume: VolumeId) -> &mut VolumeFlushes {
        &mut self.0[usize::from(volume.0)]
    }

    /// Status of the last flush of a volume.
    #[must_use]
    pub fn last(&self, volume: VolumeId) -> Option<Status> {
        self.0[usize::from(volume.0)].last
    }

    /// Notes how a flush has ended.
    pub fn ended(&mut self, volume: VolumeId, status: Status) {
        self.of(volume).last = Some(status);
    }

    /// Forgets the last flush of a volume: another one follows.
    pub fn forget(&mut self, volume: VolumeId) {
        self.of(volume).last = None;
    }

    /// Forgets the last flush of every volume.
    pub fn forget_all(&mut self) {
        self.0.iter_mut().for_each(|volume| volume.last = None);
    }

    /// Notes at `tick` that a device failed to flush.
    pub fn suspect(&mut self, volume: VolumeId, tick: u64) {
        self.of(volume).suspect = Some(tick);
    }

    /// A new volume has the place of one that was removed.
    pub fn replace(&mut self, volume: VolumeId) {
        self.of(volume).suspect = None;
    }

    /// Whether the operator is about to acknowledge failed data.
    #[must_use]
    pub fn is_acknowledging(&self, volume: VolumeId) -> bool {
        self.0[usize::from(volume.0)].acknowledging
    }

    /// The operator is about to acknowledge failed data.
    pub fn begin_acknowledge(&mut self, volume: VolumeId) {
        self.of(volume).acknowledging = true;
    }

    /// The operator acknowledges the failed data.
    pub fn acknowledge(&mut self, volume: VolumeId) {
        let volume = self.of(volume);
        (volume.suspect, volume.acknowledging) = (None, false);
    }

    /// Forgets what a power cut ends.
    pub fn cut(&mut self) {
        self.0.iter_mut().for_each(|volume| (volume.suspect, volume.acknowledging) = (None, false));
    }

    /// Checks the answer to a bio that began at tick `start`.
    ///
    /// # Errors
    /// A suspect volume promises durability.
    pub fn check(&self, bio: &Bio, start: u64, status: Status) -> Result<(), Violation> {
        // A discard that covers no whole granule ends before durability matters.
        let is_durable = bio.op == Op::Flush
            || bio.op.is_write() && bio.op != Op::Discard && bio.flags.contains(BioFlags::FUA);
        let since = self.0[usize::from(bio.id.volume.0)].suspect;
        if is_durable && status.is_ok() && start > 0 && since.is_some_and(|since| start > since) {
            let detail = format!("{bio:?} succeeded after a failed flush");
            return Err(violation("a suspect volume promises no durability", detail));
        }
        Ok(())
    }
}
