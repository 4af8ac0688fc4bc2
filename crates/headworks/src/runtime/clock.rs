//! The clock of everything that runs in real time.

use headworks_core::Instant;

/// A monotonic clock that counts nanoseconds from its start.
#[derive(Clone, Copy, Debug)]
pub struct Clock(std::time::Instant);

impl Clock {
    /// Starts a clock at zero.
    #[must_use]
    pub fn start() -> Self {
        Self(std::time::Instant::now())
    }

    /// Returns the time since the start.
    #[must_use]
    pub fn now(self) -> Instant {
        Instant(self.0.elapsed().as_nanos() as u64)
    }
}
