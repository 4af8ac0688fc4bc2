//! When the waiting requests of a queue are searched for those that have waited for too long (`expiry`).

/// What the timer of waits has asked for.
#[derive(Debug, Default)]
pub(super) struct ExpirySearch {
    /// A request may have waited for too long: the end of the batch searches for it.
    due: bool,
    /// A request waited when the timer fired, and the device answered others: it is looked at soon again.
    put_off: bool,
}

impl ExpirySearch {
    /// Takes the timer: the end of the batch searches.
    pub fn on_timer(&mut self) {
        self.due = true;
    }

    /// Returns true once after the timer has fired.
    #[inline]
    pub fn take_due(&mut self) -> bool {
        std::mem::take(&mut self.due)
    }

    /// Notes a search. If the device answers no request fails, and the next look comes soon.
    pub fn note_search(&mut self, answers: bool) {
        self.put_off = answers;
    }

    /// Returns the time until waiting requests are looked at, if none of them is known to end earlier.
    pub fn pause(&mut self, timeout_ns: u64) -> u64 {
        if std::mem::take(&mut self.put_off) { timeout_ns / 8 } else { timeout_ns }
    }
}
