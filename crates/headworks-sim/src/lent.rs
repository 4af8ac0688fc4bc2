//! Reads without a buffer: their data are checked when they are answered, and their frames watched after that.
//!
//! A server may send the frames of an answered read until the executor announces that they change. So the last answered reads
//! are kept with a checksum: the frames must have the same bytes when their change is announced, or when they make room for
//! younger ones.

use headworks::driver::Span;
use headworks_core::{Bio, BioId};

use crate::check::violation;
use crate::frames::checksum;
use crate::oracle::Violation;

/// Answered reads whose frames are watched.
const WATCHED: usize = 24;
const STABLE: &str = "frames of an answered read do not change before it is announced";

/// A part of an answered read.
#[derive(Clone, Copy, Debug)]
struct LentRange {
    id: BioId,
    span: Span,
    checksum: u64,
}

/// Reads without a buffer.
#[derive(Debug, Default)]
pub struct LentFrames {
    /// The frames of the last answered ones, in the order of their answers.
    ranges: Vec<LentRange>,
    /// Those that need a buffer, to be submitted again after the turn, or when the shard has room: what others had it read on its
    /// devices meanwhile may have taken their slots.
    returned: Vec<Bio>,
}

impl LentRange {
    fn overlaps(&self, other: Span) -> bool {
        let range = |span: Span| (span.base() as usize, span.base() as usize + span.len());
        let ((start, end), (from, to)) = (range(self.span), range(other));
        start < to && from < end
    }

    fn has_changed(&self) -> bool {
        // SAFETY: frames stay as long as the world, and no device runs during the call.
        checksum(unsafe { self.span.bytes() }) != self.checksum
    }

    fn check(&self) -> Result<(), Violation> {
        match self.has_changed() {
            true => {
                let detail = format!("{} bytes of {:?} changed", self.span.len(), self.id);
                Err(violation(STABLE, detail))
            }
            false => Ok(()),
        }
    }
}

impl LentFrames {
    /// Watches the frames of an answered read.
    ///
    /// # Errors
    /// Those of an older one, which make room, have changed.
    pub fn watch(&mut self, id: BioId, frames: &[Span]) -> Result<(), Violation> {
        for span in frames {
            // SAFETY: as in `has_changed`.
            let checksum = checksum(unsafe { span.bytes() });
            self.ranges.push(LentRange { id, span: *span, checksum });
        }
        let over = self.ranges.len().saturating_sub(WATCHED);
        checked(self.ranges.drain(..over))
    }

    /// Watches frames no longer that change now.
    ///
    /// # Errors
    /// They have changed before.
    pub fn before_change(&mut self, frames: Span) -> Result<(), Violation> {
        checked(self.ranges.extract_if(.., |range| range.overlaps(frames)))
    }

    /// Keeps a read that needs a buffer, to be submitted again.
    pub fn take_back(&mut self, bio: Bio) {
        self.returned.push(bio);
    }

    /// The reads to be submitted again that `take` takes, the oldest first; the others stay.
    pub fn submit_returned(&mut self, mut take: impl FnMut(&Bio) -> bool) {
        self.returned.retain(|bio| !take(bio));
    }
}

/// Takes ranges; the first that has changed is the error.
fn checked(ranges: impl Iterator<Item = LentRange>) -> Result<(), Violation> {
    let changed: Vec<Violation> = ranges.filter_map(|range| range.check().err()).collect();
    changed.into_iter().next().map_or(Ok(()), Err)
}
