//! The environment as the executor of one shard uses it.

use headworks::driver::{ActionSink, Span};
use headworks_core::{BioId, Instant, Message, Notice, ReplyStage, ShardId, Status, WaitTimes};

use super::Environment;
use crate::check::violation;
use crate::sector_pattern::POISON;

/// The environment as seen by one shard's executor.
pub struct ShardPort<'a> {
    /// The shared environment of all shards.
    pub env: &'a mut Environment,
    /// The shard whose actions are executed.
    pub shard: ShardId,
}

impl ShardPort<'_> {
    /// The frames of a cache bio: of this shard, or of the shard that forwarded it.
    fn frames_of(&mut self, bio: BioId, unit: u32) -> Span {
        let volume = self.env.scenario.volumes[usize::from(bio.volume.0)];
        let owner = self.env.scenario.devices[usize::from(volume.device.0)].config.owner;
        if self.shard != volume.home && self.shard != owner {
            let detail = format!("shard {} uses the frames of {bio:?}", self.shard.0);
            self.env.fail(violation(
                "frames are accessed only by their shard and its device owners",
                detail,
            ));
        }
        self.env.frames.span(volume.home.0).frames_from(unit)
    }
}

// SAFETY: pools and buffers are allocations of their own, dropped after the devices; the world checks which operation uses
// them and when.
unsafe impl ActionSink for ShardPort<'_> {
    const KEEPS_FRAMES: bool = true;

    fn buffer(&mut self, bio: BioId) -> Span {
        if let Some(unit) = bio.unit() {
            return self.frames_of(bio, unit);
        }
        let connection = &self.env.connections[self.env.index(bio.connection)];
        let home = connection.home;
        if let Some(slot) = connection.slot(bio)
            && (home == self.shard || connection.slots[slot].holder == Some(self.shard))
        {
            return connection.buffers.span(slot);
        }
        let span = connection.buffers.span(0);
        let detail = format!("shard {} uses the buffer of {bio:?}", self.shard.0);
        self.env
            .fail(violation("a buffer is accessed only by the shard that holds its bio", detail));
        span
    }

    fn frames(&self) -> Span {
        self.env.frames.span(self.shard.0)
    }

    fn reply(
        &mut self,
        id: BioId,
        status: Status,
        hole: bool,
        stage: ReplyStage,
        wait_times: WaitTimes,
    ) {
        self.env.reply(id, status, hole, stage, wait_times);
    }

    fn reply_frames(&mut self, id: BioId, frames: &[Span], wait_times: WaitTimes) {
        self.env.reply_frames(id, frames, wait_times);
    }

    fn needs_buffer(&mut self, id: BioId, wait_times: WaitTimes) {
        self.env.take_back(id, wait_times);
    }

    fn before_change(&mut self, frames: Span) {
        self.env.before_change(frames);
    }

    fn release(&mut self, frames: Span) {
        // What reads them before it writes them is found by its wrong bytes.
        // SAFETY: frames of the pool that no device uses, as the shard says and the checks have found.
        unsafe { frames.bytes_mut() }.fill(POISON);
        self.env.give_back(self.shard, frames);
    }

    fn prepare(&mut self, frames: Span) {
        self.env.ask_for(self.shard, frames);
    }

    fn send(&mut self, to: ShardId, message: Message) {
        self.env.send(self.shard, to, message);
    }

    fn timer(&mut self, at: Instant) {
        self.env.timers[usize::from(self.shard.0)] = Some(at);
    }

    fn notice(&mut self, notice: Notice) {
        self.env.notice(notice);
    }
}
