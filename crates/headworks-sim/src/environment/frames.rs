//! The frames of the caches: reads without a buffer, which are answered from them, and the space of frames where their filesystem may
//! refuse it. See [`crate::lent`] and [`crate::memory_space`].

use headworks::driver::Span;
use headworks_core::cache::folio::BLOCK;
use headworks_core::{
    Action, Actions, Bio, BioFlags, BioId, Input, Instant, Op, ReplyStage, Segment, ShardId,
    WaitTimes,
};

use super::Environment;
use crate::check::violation;
use crate::coverage::Point;
use crate::memory_space::{MEMORY_RULE, MemorySpace};
use crate::scenario::WorldDefect;

/// One read in so many is submitted without a buffer.
const ONE_IN: u64 = 3;
const ONCE: &str = "only reads in flight without a buffer are answered from frames or returned";

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
            // SAFETY: frames stay as long as the world, and no device runs during the call; the buffer is another allocation.
            let bytes = unsafe { span.bytes() };
            buffer[done..done + bytes.len()].copy_from_slice(bytes);
            done += bytes.len();
        }
        if let Err(violation) = self.lent.watch(id, frames) {
            self.fail(violation);
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
        self.lent.take_back(bio);
    }

    /// Submits reads again that a shard returned, as far as it has room beyond its inbox, the oldest first.
    pub fn submit_returned(&mut self, shard: ShardId, room: usize, inbox: &mut Vec<Input>) {
        let connections = &self.connections;
        self.lent.submit_returned(|bio| {
            let connection = &connections[bio.id.connection as usize % connections.len()];
            let fits = connection.home == shard && inbox.len() < room;
            if fits {
                inbox.push(Input::Bio(*bio));
            }
            fits
        });
    }

    /// Checks the frames that change now, and watches them no longer.
    pub(super) fn before_change(&mut self, frames: Span) {
        if self.scenario.defect == WorldDefect::KeepsLentFrames {
            return;
        }
        if let Err(violation) = self.lent.before_change(frames) {
            self.fail(violation);
        }
    }

    /// Checks that an action touches no memory that its filesystem has not given.
    pub(super) fn check_space(&mut self, shard: ShardId, action: &Action, actions: &Actions) {
        let Some(memory) = &self.memory else { return };
        let volumes = &self.scenario.volumes;
        let home = |segment: &Segment| volumes[usize::from(segment.bio.volume.0)].home.0;
        let segments = match action {
            Action::Submit(submit) => actions.segments_of(submit),
            _ => &[],
        };
        if let Err(wrong) = memory.check(shard, action, segments, home) {
            self.fail(violation(MEMORY_RULE, wrong));
        }
    }

    /// Takes the memory of frames that hold nothing.
    pub(super) fn give_back(&mut self, shard: ShardId, frames: Span) {
        let (first, units) = self.units_of(shard, frames);
        if let Some(memory) = &mut self.memory {
            memory.give_back(shard, first, units);
            self.coverage.hit(Point::MemoryReleased);
        }
    }

    /// Asks for the memory of frames that are used next.
    pub(super) fn ask_for(&mut self, shard: ShardId, frames: Span) {
        let (first, units) = self.units_of(shard, frames);
        if let Some(memory) = &mut self.memory {
            memory.ask(self.now, shard, first, units);
        }
    }

    /// The first of some frames of a pool, and how many they are.
    fn units_of(&self, shard: ShardId, frames: Span) -> (u32, u32) {
        let at = frames.base() as usize - self.frames.span(shard.0).base() as usize;
        ((at / BLOCK as usize) as u32, (frames.len() / BLOCK as usize) as u32)
    }

    /// The time of the next answer for memory, or change by others.
    #[must_use]
    pub fn next_memory_at(&self) -> Option<Instant> {
        self.memory.as_ref().map(MemorySpace::next_at)
    }

    /// Takes the answers for memory that are due.
    pub fn take_memory_answers(&mut self) -> Vec<(ShardId, Input)> {
        let Self { memory, coverage, now, .. } = self;
        let answers = memory.iter_mut().flat_map(|memory| memory.run_due(*now, coverage));
        answers.map(|(shard, answer)| (shard, Input::Control(answer))).collect()
    }
}
