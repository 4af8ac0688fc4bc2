//! What worlds have met, so that a run can tell that it tried everything.

/// What worlds have met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Met {
    /// Worlds that have ended.
    pub worlds: u64,
    /// Requests that were answered.
    pub answers: u64,
    /// Answers that are errors.
    pub errors: u64,
    /// Bad requests, which were refused.
    pub refused: u64,
    /// Times that a connection waited for a buffer or a bio slot.
    pub waits: u64,
    /// Requests that passed their limits after a wait.
    pub passed: u64,
    /// Requests that waited for the end of a freeze.
    pub frozen: u64,
    /// Replies whose unread data were dropped.
    pub dropped: u64,
    /// Connections that moved to another process.
    pub moved: u64,
    /// Clients that vanished at a byte.
    pub vanished: u64,
    /// Connections that were closed for a stall.
    pub stalls: u64,
    /// Requests that failed because their device did not answer.
    pub timed_out: u64,
    /// Parts of writes that were given before the rest had come.
    pub pieces: u64,
    /// The longest that a request of a client without a fault took, in ms of virtual time.
    pub longest_ms: u64,
    /// The longest that a client of a quiet export waited for a buffer, in us of virtual time.
    pub longest_buffer_us: u64,
    /// A hash of all answers, to compare runs.
    pub hash: u64,
}

impl Met {
    /// Adds what another world has met.
    pub fn add(&mut self, other: &Self) {
        self.worlds += other.worlds;
        self.answers += other.answers;
        self.errors += other.errors;
        self.refused += other.refused;
        self.waits += other.waits;
        self.passed += other.passed;
        self.frozen += other.frozen;
        self.dropped += other.dropped;
        self.moved += other.moved;
        self.vanished += other.vanished;
        self.stalls += other.stalls;
        self.timed_out += other.timed_out;
        self.pieces += other.pieces;
        self.longest_ms = self.longest_ms.max(other.longest_ms);
        self.longest_buffer_us = self.longest_buffer_us.max(other.longest_buffer_us);
        self.hash = self.hash.rotate_left(7) ^ other.hash;
    }

    /// The faults and waits, by name.
    #[must_use]
    pub fn faults(&self) -> [(&'static str, u64); 11] {
        [
            ("failed requests", self.errors),
            ("bad requests", self.refused),
            ("waits for a buffer or a slot", self.waits),
            ("requests that waited for limits", self.passed),
            ("waits for a thaw", self.frozen),
            ("replies that were dropped", self.dropped),
            ("connections that moved", self.moved),
            ("clients that vanished", self.vanished),
            ("connections that stalled", self.stalls),
            ("requests that timed out", self.timed_out),
            ("pieces of writes", self.pieces),
        ]
    }
}
