//! The space of the caches' frames, where their filesystem may refuse it. See [`crate::memory_space`].

use headworks_core::cache::folio::BLOCK;

use super::*;

impl Environment {
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
