//! Reads without a buffer: their data are checked when they are answered, and their frames watched after that.
//!
//! A server may send the frames of an answered read until the executor announces that they change. So the last answered reads
//! are kept with a checksum: the frames must have the same bytes when their change is announced, or when they make room for
//! younger ones.

use std::collections::VecDeque;

use headworks::driver::Span;
use headworks_core::{Bio, BioFlags, BioId, Input, Op, ReplyStage, ShardId, WaitTimes};

use super::Environment;
use crate::check::violation;
use crate::coverage::Point;
use crate::frames::checksum;
use crate::scenario::WorldDefect;

/// Answered reads whose frames are watched.
const WATCHED: usize = 24;
/// One read in so many is submitted without a buffer.
const ONE_IN: u64 = 3;
const STABLE: &str = "frames of an answered read do not change before it is announced";
const ONCE: &str = "only reads in flight without a buffer are answered from frames or returned";

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
    ranges: VecDeque<LentRange>,
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
}

impl Environment {
    /// Takes the buffer from some reads of cached volumes. It depends on the bio alone, so no other draw is moved.
    pub(super) fn perhaps_without_buffer(&self, bio: Bio) -> Bio {
        let fits = bio.op == Op::Read && self.scenario.is_cached(bio.id.volume);
        if !fits || !self.scenario.checked || !(bio.id.sequence >> 8).is_multiple_of(ONE_IN) {
            return bio;
        }
        Bio { flags: bio.flags.with(BioFlags::NO_BUFFER), ..bio }
    }

    /// Answers a read from frames: its bytes go where the checks expect them, and the frames are watched.
    pub(super) fn reply_frames(&mut self, id: BioId, frames: &[Span], wait_times: WaitTimes) {
        let index = self.index(id.connection);
        let Some(slot) = self.connections[index].slot(id) else {
            return self.fail(violation(ONCE, format!("{id:?} is not in flight")));
        };
        let bio = self.connections[index].slots[slot].bio;
        let len: usize = frames.iter().map(|span| span.len()).sum();
        if bio.op != Op::Read || len != bio.len as usize {
            return self.fail(violation(ONCE, format!("{len} bytes for {bio:?}")));
        }
        self.coverage.hit(Point::ReplyFromFrames);
        if !wait_times.is_none() {
            self.coverage.hit(Point::ReplyFromFills);
        }
        let buffer = self.connections[index].buffers.bytes_mut(slot, len);
        let mut done = 0;
        for span in frames {
            // SAFETY: as above; the buffer is another allocation.
            let bytes = unsafe { span.bytes() };
            buffer[done..done + bytes.len()].copy_from_slice(bytes);
            done += bytes.len();
            self.lent.ranges.push_back(LentRange { id, span: *span, checksum: checksum(bytes) });
        }
        while self.lent.ranges.len() > WATCHED {
            let oldest = self.lent.ranges.pop_front().expect("there are many");
            self.check_lent(&oldest);
        }
        self.reply(id, Ok(()), false, ReplyStage::Final, wait_times);
    }

    /// Takes a read back that needs a buffer, and that may have waited before.
    pub(super) fn take_back(&mut self, id: BioId, wait_times: WaitTimes) {
        let index = self.index(id.connection);
        let Some(slot) = self.connections[index].slot(id) else {
            return self.fail(violation(ONCE, format!("{id:?} is not in flight")));
        };
        let bio = self.connections[index].slots[slot].bio;
        let point = match wait_times.is_none() {
            true => Point::ReadReturned,
            false => Point::ReadReturnedLate,
        };
        self.coverage.hit(point);
        self.lent.returned.push(bio);
    }

    /// Submits reads again that a shard returned, as far as it has room beyond its inbox, the oldest first.
    pub fn submit_returned(&mut self, shard: ShardId, room: usize, inbox: &mut Vec<Input>) {
        for bio in std::mem::take(&mut self.lent.returned) {
            let is_home = self.connections[self.index(bio.id.connection)].home == shard;
            match is_home && inbox.len() < room {
                true => inbox.push(Input::Bio(bio)),
                false => self.lent.returned.push(bio),
            }
        }
    }

    /// Checks the frames that change now, and watches them no longer.
    pub(super) fn before_change(&mut self, frames: Span) {
        if self.scenario.defect == WorldDefect::KeepsLentFrames {
            return;
        }
        while let Some(at) = self.lent.ranges.iter().position(|range| range.overlaps(frames)) {
            let range = self.lent.ranges.remove(at).expect("just found");
            self.check_lent(&range);
        }
    }

    fn check_lent(&mut self, range: &LentRange) {
        if range.has_changed() {
            let detail = format!("{} bytes of {:?} changed", range.span.len(), range.id);
            self.fail(violation(STABLE, detail));
        }
    }
}
