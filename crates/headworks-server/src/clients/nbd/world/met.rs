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
    /// Requests of machines that were answered.
    pub ring_answers: u64,
    /// Deaths of the server's process.
    pub deaths: u64,
    /// Requests that another process took over from one that died or lost its front end.
    pub adopted: u64,
    /// Connections of machines that ended with the process alive.
    pub left: u64,
    /// Machines that broke the rules of a ring.
    pub broken: u64,
    /// Rings that ended for it.
    pub ended: u64,
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
        self.ring_answers += other.ring_answers;
        self.deaths += other.deaths;
        self.adopted += other.adopted;
        self.left += other.left;
        self.broken += other.broken;
        self.ended += other.ended;
        self.longest_ms = self.longest_ms.max(other.longest_ms);
        self.longest_buffer_us = self.longest_buffer_us.max(other.longest_buffer_us);
        self.hash = self.hash.rotate_left(7) ^ other.hash;
    }

    /// The faults and waits, by name.
    #[must_use]
    pub fn faults(&self) -> [(&'static str, u64); 17] {
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
            ("requests of machines answered", self.ring_answers),
            ("deaths of the process", self.deaths),
            ("requests taken over", self.adopted),
            ("connections of machines that ended", self.left),
            ("machines that broke the rules", self.broken),
            ("rings that ended for it", self.ended),
        ]
    }
}
