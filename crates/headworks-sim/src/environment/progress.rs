//! How far a simulated world has come, and what its shards have said of it. Invariant: the times do not go back.

use headworks_core::{Instant, ReplyStage};

/// Turns, answers and messages of a world.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    turn: u64,
    answered: u64,
    unknown_completions: u64,
    /// Time of the last submission or answer.
    last: Instant,
    /// Time of the last completion or message delivered to a shard.
    last_message: Instant,
}

impl Progress {
    /// Number of the current or last turn.
    #[must_use]
    pub fn turn(&self) -> u64 {
        self.turn
    }

    /// Number of bios answered.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Number of `UnknownCompletion` notices.
    #[must_use]
    pub fn unknown_completions(&self) -> u64 {
        self.unknown_completions
    }

    /// Time of the last submission or answer.
    #[must_use]
    pub fn last(&self) -> Instant {
        self.last
    }

    /// Time of the last submission, answer, completion or message.
    #[must_use]
    pub fn last_sign(&self) -> Instant {
        self.last.max(self.last_message)
    }

    /// Begins the turn of this number.
    pub fn begin_turn(&mut self, turn: u64) {
        assert!(turn > self.turn, "turns count up");
        self.turn = turn;
    }

    /// Notes a submission, or a rest that counts as one.
    pub fn made(&mut self, now: Instant) {
        assert!(now >= self.last, "time does not go back");
        self.last = now;
    }

    /// Notes the stage of an answer; one that was early is released without being answered again.
    pub fn count_answer(&mut self, stage: ReplyStage) {
        self.answered += u64::from(stage != ReplyStage::Released);
    }

    /// Notes a message or a completion that a shard takes.
    pub fn message(&mut self, now: Instant) {
        assert!(now >= self.last_message, "time does not go back");
        self.last_message = now;
    }

    /// Notes a completion of a command that no shard knows.
    pub fn count_unknown_completion(&mut self) {
        self.unknown_completions += 1;
    }
}
