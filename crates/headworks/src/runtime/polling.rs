//! The decision of a reactor whether to poll before it sleeps.
//!
//! A wake-up across CPUs costs 22-25 us each way, so a busy client is answered several times faster by a server that
//! still polls. Polling pays only while it hits, and never on a CPU that another task needs: each poll yields the CPU first,
//! and if another task took the CPU, sleeping is as fast and cheaper.
//!
//! A thread that yields to tasks that never sleep runs again after a slice of each, milliseconds later; a sleeping thread is
//! woken before them. On such a CPU a poll always hits, since the client ran meanwhile, and costs as much as a hundred
//! wake-ups. So a poll that lost the CPU for a slice stops polling for a number of sleeps, up to four times as many each
//! time.
//!
//! ```text
//!   idle --budget > 0--> poll (yield, try sockets) --work found--> hit: budget up, patience down
//!     |                    | window over, or the CPU is shared  `--but a slice was lost: no budget, patience up
//!     |                    v
//!     `--budget 0------> sleep (after `patience` sleeps one trial poll)
//! ```

use headworks_core::Instant;

/// Misses before polling stops; a hit earns one back.
const BUDGET_MAX: u32 = 8;
/// Least number of sleeps between two trial polls without budget.
const PATIENCE_MIN: u32 = 16;
/// Largest number of sleeps between two trial polls: one lost slice of 10 ms per 4096 sleeps of 50 us is 5 %, and polling
/// resumes a quarter of a second after the other tasks have ended.
const PATIENCE_MAX: u32 = 4096;
/// A yield longer than this gave the CPU to another task: without another task a yield takes less than a microsecond.
const SHARED_NS: u64 = 4_000;
/// A yield longer than this gave the CPU to a task that does not sleep: a client on the same CPU runs for microseconds, the
/// scheduler's slices are 0.7 ms and more.
const SLICE_NS: u64 = 500_000;

/// The polling decision, without clock or socket.
#[derive(Debug)]
pub struct Polling {
    window_ns: u64,
    budget: u32,
    /// Sleeps between two trial polls without budget.
    patience: u32,
    /// Sleeps left before the next trial poll.
    sleeps_left: u32,
    since: Option<Instant>,
    shared: bool,
    lost: bool,
    /// Time of the yield after work.
    given: Option<Instant>,
}

impl Polling {
    /// Creates the decision for polls of up to `window_ns` without work; 0 never polls.
    #[must_use]
    pub fn new(window_ns: u64) -> Self {
        Self {
            window_ns,
            budget: BUDGET_MAX,
            patience: PATIENCE_MIN,
            sleeps_left: PATIENCE_MIN,
            since: None,
            shared: false,
            lost: false,
            given: None,
        }
    }

    /// Returns whether polling is enabled at present.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.window_ns > 0 && self.budget > 0
    }

    /// Records a yield of the CPU after work, before the next poll.
    pub fn on_give(&mut self, now: Instant) {
        self.given = Some(now);
    }

    /// Records that a poll found work.
    pub fn on_work(&mut self, now: Instant) {
        self.take_back(now);
        if self.since.take().is_some() && !self.lost {
            self.budget = (self.budget + 1).min(BUDGET_MAX);
            self.patience = (self.patience / 2).max(PATIENCE_MIN);
        }
        (self.shared, self.lost) = (false, false);
    }

    /// Records a poll without work; the yield before it took `yield_ns`.
    pub fn on_yield(&mut self, yield_ns: u64) {
        self.shared |= yield_ns > SHARED_NS;
        if yield_ns > SLICE_NS {
            self.lose();
        }
    }

    /// Decides after a turn without work whether to poll once more (true) or sleep.
    pub fn poll_again(&mut self, now: Instant) -> bool {
        self.take_back(now);
        let polls = match self.since {
            Some(since) => !self.shared && now.since(since) < self.window_ns,
            None => self.window_ns > 0 && (self.budget > 0 || self.sleeps_left == 0),
        };
        if polls {
            self.since.get_or_insert(now);
            return true;
        }
        if self.since.take().is_some() {
            self.budget = self.budget.saturating_sub(1);
            self.sleeps_left = self.patience;
        }
        (self.shared, self.lost) = (false, false);
        self.sleeps_left = self.sleeps_left.saturating_sub(1);
        false
    }

    /// Checks, in the turn after a yield, whether the yield lost a slice.
    fn take_back(&mut self, now: Instant) {
        if self.given.take().is_some_and(|given| now.since(given) > SLICE_NS) {
            self.lose();
        }
    }

    /// Stops polling for `patience` sleeps after a lost slice.
    fn lose(&mut self) {
        (self.lost, self.budget) = (true, 0);
        self.patience = (self.patience * 4).min(PATIENCE_MAX);
        self.sleeps_left = self.patience;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls until the decision is to sleep; returns the number of polls.
    fn idle(polling: &mut Polling, now: u64, shared: bool) -> u32 {
        let mut polls = 0;
        while polling.poll_again(Instant(now + u64::from(polls) * 1_000)) {
            polls += 1;
            polling.on_yield(if shared { 50_000 } else { 300 });
        }
        polls
    }

    #[test]
    fn polling_lasts_for_the_window_and_stops_without_hits() {
        let mut polling = Polling::new(20_000);
        assert_eq!(idle(&mut polling, 0, false), 20);
        let total: u32 = (1..200).map(|round| idle(&mut polling, round * 1_000_000, false)).sum();
        assert!(total < 20 * (7 + 199 / PATIENCE_MIN + 2), "{total} polls without work");
        assert!(
            total > 20 * (7 + 199 / PATIENCE_MIN / 2),
            "{total} polls: trial polls are missing"
        );
        assert_eq!(idle(&mut Polling::new(0), 0, false), 0);
    }

    #[test]
    fn shared_cpu_stops_polling_and_hits_restore_it() {
        let mut polling = Polling::new(20_000);
        for round in 0..100 {
            assert!(idle(&mut polling, round * 1_000_000, true) <= 1);
        }
        assert!(!polling.poll_again(Instant(0)) || polling.poll_again(Instant(0)));
        let mut hits = 0;
        for round in 0..400 {
            if polling.poll_again(Instant(round * 1_000_000)) {
                polling.on_work(Instant(round * 1_000_000));
                hits += 1;
            }
        }
        assert!(hits > 300, "{hits}");
    }

    /// Runs `rounds` requests of one client. After each answer a yield, if due, takes `yield_ns`; then the next request is
    /// ready. Returns the number of lost slices and whether polling is on at the end.
    fn serve(polling: &mut Polling, rounds: u64, yield_ns: u64) -> (u64, bool) {
        let (mut now, mut lost) = (1, 0);
        for _ in 0..rounds {
            polling.on_work(Instant(now));
            let mut given = 0;
            if polling.is_on() {
                polling.on_give(Instant(now));
                given = yield_ns;
            } else if polling.poll_again(Instant(now)) {
                polling.on_yield(yield_ns);
                given = yield_ns;
            }
            now += 50_000 + given;
            lost += u64::from(given > SLICE_NS);
        }
        (lost, polling.is_on())
    }

    #[test]
    fn hit_after_lost_time_slice_stops_polling() {
        let mut polling = Polling::new(50_000);
        let (lost, on) = serve(&mut polling, 20_000, 3_000_000);
        // Trial polls: the first, then after 64, 256, 1024 and 4096 sleeps, and every 4096 sleeps from there on.
        assert!(!on && (5..=9).contains(&lost), "{lost} slices in 20000 rounds");
        // The other tasks have ended.
        let (_, on) = serve(&mut polling, u64::from(2 * PATIENCE_MAX), 300);
        assert!(on, "polling resumes");
        // A client on the same CPU runs briefly during the yield.
        let (lost, on) = serve(&mut polling, 10_000, 30_000);
        assert!(on && lost == 0);
    }
}
