//! The writes that the remote has acknowledged, and which of them a flush covers.
//!
//! Invariant: no more are covered than were acknowledged, and what is covered stays so.

/// Counts of acknowledged writes, in their order, and of losses.
#[derive(Debug, Default)]
pub(super) struct Acknowledged {
    writes: u64,
    covered: u64,
    /// A flush has succeeded, so no write of an earlier process needs one.
    was_flushed: bool,
    losses: u64,
}

impl Acknowledged {
    /// Number of writes that were acknowledged.
    pub fn writes(&self) -> u64 {
        self.writes
    }

    /// Counts one; returns its number.
    pub fn count(&mut self) -> u64 {
        self.writes += 1;
        self.writes
    }

    /// A flush covers the first so many.
    pub fn cover(&mut self, writes: u64) {
        assert!(writes <= self.writes, "a flush covers what was acknowledged");
        (self.covered, self.was_flushed) = (self.covered.max(writes), true);
    }

    /// Whether some are covered by no flush.
    pub fn has_uncovered(&self) -> bool {
        self.writes > self.covered
    }

    /// Whether a flush has succeeded, here or in the process before.
    pub fn was_flushed(&self) -> bool {
        self.was_flushed
    }

    /// Number of losses that were told.
    pub fn losses(&self) -> u64 {
        self.losses
    }

    /// Counts a loss that is told.
    pub fn lose(&mut self) {
        self.losses += 1;
    }
}
