//! The time without a connection, from its loss until the server has answered something, and the pauses between attempts.
//!
//! Invariant: a connection that is opened and lost before any reply does not begin a new outage.

use headworks_core::Instant;
use headworks_core::prng::Prng;
use headworks_core::time::MS;

/// The first pause before an attempt, and the longest.
const PAUSE_NS: (u64, u64) = (100 * MS, 5000 * MS);

/// An outage, if there is one.
#[derive(Debug)]
pub(super) struct Outage {
    /// When the connection was lost, until there is a reply on a new one or a new one with nothing to send.
    since: Option<Instant>,
    /// What waited too long was failed and logged.
    gave_up: bool,
    /// Attempts since the last reply.
    attempts: u32,
    prng: Prng,
}

impl Outage {
    /// No outage; the attempts of later ones are spread by `seed`.
    pub fn none(seed: u64) -> Self {
        Self { since: None, gave_up: false, attempts: 0, prng: Prng::new(seed) }
    }

    /// There is no connection, or none any more.
    pub fn begin(&mut self, now: Instant) {
        self.since.get_or_insert(now);
        self.gave_up = false;
    }

    /// The server has answered.
    pub fn end(&mut self) {
        (self.since, self.attempts) = (None, 0);
    }

    /// There is a connection, which has something to send or not; returns for how many milliseconds there was none. What waits has
    /// the time from the first loss on, until the server answers something.
    pub fn reconnect(&mut self, now: Instant, sends: bool) -> u64 {
        let lasted = self.since.map_or(0, |at| now.since(at) / MS);
        self.since = self.since.filter(|_| sends);
        lasted
    }

    /// When commands that wait for a connection fail, which wait for `limit_ns`.
    pub fn give_up_at(&self, limit_ns: u64) -> Option<Instant> {
        self.since.map(|at| at.after(limit_ns))
    }

    /// Gives up; whether it does so for the first time in this outage.
    pub fn give_up(&mut self) -> bool {
        !std::mem::replace(&mut self.gave_up, true)
    }

    /// Attempts since the last reply.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The pause before the next attempt: it doubles with each one, and is shortened by up to a half.
    pub fn pause(&mut self) -> u64 {
        let (least, most) = PAUSE_NS;
        let pause = most.min(least << self.attempts.min(16));
        self.attempts += 1;
        self.prng.between(pause / 2, pause)
    }
}
