//! Whether anything has changed in our file since the last flush that covers it.

/// Counts changes: writes, zeroings and discards.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unsynced {
    begun: u64,
    in_flight: u32,
    /// Changes that the current round covers.
    round: u64,
    synced: u64,
}

impl Unsynced {
    /// Counts a change that begins.
    pub fn begin(&mut self) {
        self.begun += 1;
        self.in_flight += 1;
    }

    /// Counts a change that has ended, in whatever way.
    pub fn end(&mut self) {
        self.in_flight -= 1;
    }

    /// A round of flushes begins. It covers what has ended, so nothing more than the last one while a change is in flight.
    pub fn begin_round(&mut self) {
        self.round = if self.in_flight == 0 { self.begun } else { self.synced };
    }

    /// The round has ended; called for each of its flushes.
    pub fn end_round(&mut self, succeeded: bool) {
        if succeeded {
            self.synced = self.round;
        }
    }

    /// Whether every change is covered by a flush.
    pub fn is_none(&self) -> bool {
        self.in_flight == 0 && self.synced == self.begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_covered_by_a_flush_that_began_after_their_end() {
        let mut unsynced = Unsynced::default();
        assert!(unsynced.is_none());
        unsynced.begin();
        unsynced.begin_round();
        unsynced.end();
        unsynced.end_round(true);
        assert!(!unsynced.is_none(), "it ended after the round had begun");
        unsynced.begin_round();
        unsynced.end_round(false);
        assert!(!unsynced.is_none(), "the flush failed");
        unsynced.begin_round();
        unsynced.end_round(true);
        assert!(unsynced.is_none());
        unsynced.begin();
        assert!(!unsynced.is_none());
    }
}
