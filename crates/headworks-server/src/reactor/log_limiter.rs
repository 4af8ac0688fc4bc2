//! How many lines clients may make the log grow by.
//!
//! Whoever can connect can have a line written, and a loop of connects would fill the disk that the log is on. A shard has room for
//! so many lines; what is used of it comes back slowly; what has no room is counted, and the count is told once a second.

use headworks_core::Instant;

/// Lines at once: a crowd that ends, each with its reason.
const ROOM: u32 = 5_000;
/// Lines that there is room for again, a second. About 30 MB a day at most.
const BACK: u64 = 2;
const SECOND_NS: u64 = 1_000_000_000;

/// The room of one shard.
#[derive(Debug)]
pub struct LogLimiter {
    room: u32,
    /// Up to when room has come back.
    at: Instant,
    left_out: u64,
}

impl LogLimiter {
    /// All the room, from the time that the server's clock starts at.
    pub fn new() -> Self {
        Self { room: ROOM, at: Instant(0), left_out: 0 }
    }

    /// Whether there is room for a line, which takes it; else it counts as left out.
    pub fn admits(&mut self) -> bool {
        let admits = self.room > 0;
        self.room -= u32::from(admits);
        self.left_out += u64::from(!admits);
        admits
    }

    /// To be called now and then: lines that were left out since the last call.
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
    fn a_flood_is_counted_and_not_told_line_by_line() {
        let mut log_limiter = LogLimiter::new();
        assert_eq!(admitted(&mut log_limiter, ROOM + 70), ROOM);
        assert_eq!(log_limiter.tick(Instant(SECOND_NS - 1)), 70);
        assert_eq!(admitted(&mut log_limiter, 1), 0, "no second is over");
        // Parts of seconds add up.
        assert_eq!(log_limiter.tick(Instant(3 * SECOND_NS / 2)), 1);
        assert_eq!(log_limiter.tick(Instant(2 * SECOND_NS)), 0);
        assert_eq!(admitted(&mut log_limiter, 10), 2 * BACK as u32);
    }

    #[test]
    fn a_quiet_day_gives_no_more_room_than_there_was() {
        let mut log_limiter = LogLimiter::new();
        log_limiter.tick(Instant(86_400 * SECOND_NS));
        assert_eq!(admitted(&mut log_limiter, 2 * ROOM), ROOM);
    }
}
