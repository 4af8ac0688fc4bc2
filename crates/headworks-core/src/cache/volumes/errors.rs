//! The errors of a volume's write-out, as its connections see them (Linux: errseq_t).
//!
//! Every connection sees an error at its next flush, once. A connection that is opened after the error sees it only if no other
//! connection has seen it yet.

use crate::error::{IoError, Status};

/// The last error of a volume, and how many errors a connection could have missed.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::cache) struct ErrorSequence {
    error: Option<IoError>,
    count: u32,
    seen: bool,
}

impl ErrorSequence {
    /// Creates a sequence from the last error, the error count, and whether a connection has seen the error.
    pub fn of_parts((status, count, seen): (Status, u32, bool)) -> Self {
        Self { error: status.err(), count, seen }
    }

    /// Returns the last error, the error count, and whether a connection has seen the error.
    pub fn parts(&self) -> (Status, u32, bool) {
        (self.error.map_or(Ok(()), Err), self.count, self.seen)
    }

    /// Records an error as the latest one.
    pub fn record(&mut self, error: IoError) {
        self.error = Some(error);
        // Only errors that were seen must be told from new ones; so the count grows with flushes, not with errors.
        self.count += u32::from(self.seen || self.count == 0);
        self.seen = false;
    }

    /// Returns the position of a new connection: after the errors that were seen, before one that was not.
    pub fn sample(&self) -> u32 {
        if self.seen { self.count } else { self.count.saturating_sub(1) }
    }

    /// Marks the last error as seen by the operator. Open connections still see it.
    pub fn acknowledge(&mut self) {
        self.seen = true;
    }

    /// Returns the error that a connection at position `since` has not seen, and advances the position.
    pub fn check(&mut self, since: &mut u32) -> Option<IoError> {
        if *since == self.count {
            return None;
        }
        *since = self.count;
        self.seen = true;
        self.error
    }

    /// Returns the sequence for a volume that replaces this one: same count, no error to see.
    pub(super) fn for_next_volume(self) -> Self {
        Self { error: None, seen: true, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_connection_sees_an_error_once() {
        let mut errors = ErrorSequence::default();
        let (mut a, mut b) = (errors.sample(), errors.sample());
        assert_eq!(errors.check(&mut a), None);
        errors.record(IoError::Medium);
        errors.record(IoError::NoSpace);
        let mut unseen = errors.sample();
        assert_eq!(errors.check(&mut a), Some(IoError::NoSpace), "the latest wins");
        let mut seen = errors.sample();
        assert_eq!(errors.check(&mut b), Some(IoError::NoSpace));
        assert_eq!(errors.check(&mut unseen), Some(IoError::NoSpace));
        assert_eq!(errors.check(&mut seen), None);
        assert_eq!((errors.check(&mut a), errors.check(&mut b)), (None, None));
        errors.record(IoError::Medium);
        for since in [&mut a, &mut b, &mut seen, &mut unseen] {
            assert_eq!(errors.check(since), Some(IoError::Medium));
        }
    }

    #[test]
    fn acknowledged_error_is_hidden_from_new_connections() {
        let mut errors = ErrorSequence::default();
        let mut there = errors.sample();
        errors.record(IoError::NoSpace);
        errors.acknowledge();
        let mut later = errors.sample();
        assert_eq!(errors.check(&mut later), None);
        assert_eq!(errors.check(&mut there), Some(IoError::NoSpace));
        errors.record(IoError::Medium);
        assert_eq!(errors.check(&mut later), Some(IoError::Medium));
    }
}
