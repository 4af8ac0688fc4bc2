//! What limits know of a connection's requests, and what the reactor asks of those that wait.

use headworks_core::limits::{LimitDirection, LimitedIo};

use super::Connection;

impl Connection {
    /// Number of requests that wait for limits, or have just passed them.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.waiting.parked()
    }

    /// Lets the first request of a direction pass; returns what limits know of the one behind it.
    pub fn pass(&mut self, direction: LimitDirection) -> Option<LimitedIo> {
        self.waiting.pass(direction)
    }

    /// Lets all requests pass: their export knows no limits any more.
    pub fn pass_all(&mut self) {
        self.waiting.pass_all();
    }
}
