//! Rate limit of log lines that clients can cause.
//!
//! Every client can cause log lines, and a loop of connects would fill the disk. The limiter is a token bucket of one
//! shard; suppressed lines are counted, and the count is logged once a second.

use headworks_core::Instant;

/// Burst: many connections may end at once, each with its reason.
const ROOM: u32 = 5_000;
/// Lines per second in the long run; about 30 MB a day at most.
const BACK: u64 = 2;
const SECOND_NS: u64 = 1_000_000_000;

/// The token bucket of one shard.
#[derive(Debug)]
pub struct LogLimiter {
    room: u32,
    /// Time up to which tokens were added.
    at: Instant,
    left_out: u64,
}

impl LogLimiter {
    /// A full bucket at the start of the server's clock.
    pub fn new() -> Self {
        Self { room: ROOM, at: Instant(0), left_out: 0 }
    }

    /// Takes a token; without one the line counts as suppressed.
    pub fn admits(&mut self) -> bool {
        let admits = self.room > 0;
        self.room -= u32::from(admits);
        self.left_out += u64::from(!admits);
        admits
    }

    /// Adds tokens; returns the number of lines suppressed since the last call.
    pub fn tick(&mut self, now: Instant) -> u64 {
        let seconds = now.since(self.at) / SECOND_NS;
        self.at = self.at.after(seconds * SECOND_NS);
        let back = seconds.saturating_mul(BACK).min(ROOM.into()) as u32;
        self.room = (self.room + back).min(ROOM);
        std::mem::take(&mut self.left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(log_limiter: &mut LogLimiter, asked: u32) -> u32 {
        (0..asked).filter(|_| log_limiter.admits()).count() as u32
    }

    #[test]
    fn suppressed_lines_are_counted() {
        let mut log_limiter = LogLimiter::new();
        assert_eq!(admitted(&mut log_limiter, ROOM + 70), ROOM);
        assert_eq!(log_limiter.tick(Instant(SECOND_NS - 1)), 70);
        assert_eq!(admitted(&mut log_limiter, 1), 0, "no second is over");
        // Fractions of a second accumulate.
        assert_eq!(log_limiter.tick(Instant(3 * SECOND_NS / 2)), 1);
        assert_eq!(log_limiter.tick(Instant(2 * SECOND_NS)), 0);
        assert_eq!(admitted(&mut log_limiter, 10), 2 * BACK as u32);
    }

    #[test]
    fn bucket_never_exceeds_its_burst() {
        let mut log_limiter = LogLimiter::new();
        log_limiter.tick(Instant(86_400 * SECOND_NS));
        assert_eq!(admitted(&mut log_limiter, 2 * ROOM), ROOM);
    }
}
