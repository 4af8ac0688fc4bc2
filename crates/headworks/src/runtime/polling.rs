//! The decision of a reactor whether to poll before it sleeps.
//!
//! A wake-up across CPUs costs 22-25 us each way, so a busy client is answered several times faster by a server that
//! still polls. Polling pays only while it hits, and never on a CPU that another task needs: each poll yields the CPU first,
//! and if another task took it, sleeping is as fast and cheaper.
//!
//! A thread that yields to tasks that never sleep runs again after a slice of each, milliseconds later; a sleeping thread is
//! woken before them. There a poll always hits, since the client ran meanwhile, and costs a hundred wake-ups. So a poll that
//! lost the CPU for that long stops polling for a while, longer each time.
//!
//! ```text
//!   idle --budget > 0--> look (yield, try sockets) --something came--> hit: budget up, patience down
//!     |                    | window over, or the CPU is shared  `--but a slice was lost: no budget, patience up
//!     |                    v
//!     `--budget 0------> sleep (after `patience` sleeps one polls, to find out)
//! ```

use headworks_core::Instant;

/// Looks that may miss before polling stops; a hit earns one back.
const BUDGET_MAX: u32 = 8;
/// With no budget left so many sleeps pass before one tries.
const PATIENCE_MIN: u32 = 16;
/// The most of them: a slice of 10 ms lost among as many sleeps of 50 us is 5 %, and after a quarter of a second without others
/// looking is back.
const PATIENCE_MAX: u32 = 4096;
/// A yield that took longer than this gave the CPU to another task: a bare one takes less than a microsecond.
const SHARED_NS: u64 = 4_000;
/// And for longer than this, to a task that does not sleep: a client on the same CPU asks or answers within microseconds, the
/// scheduler's slices are 0.7 ms and more.
const SLICE_NS: u64 = 500_000;

/// The decision, without clock or socket.
#[derive(Debug)]
pub struct Polling {
    window_ns: u64,
    budget: u32,
    /// Sleeps between two tries without budget.
    patience: u32,
    /// Those left before the next.
    sleeps_left: u32,
    since: Option<Instant>,
    shared: bool,
    lost: bool,
    /// When the CPU was given away after work.
    given: Option<Instant>,
}

impl Polling {
    /// Looks for up to `window_ns`; 0 never looks.
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

    /// Whether it looks at all at present.
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

    /// A look found nothing; the yield before it took `yield_ns`.
    pub fn on_yield(&mut self, yield_ns: u64) {
        self.shared |= yield_ns > SHARED_NS;
        if yield_ns > SLICE_NS {
            self.lose();
        }
    }

    /// Nothing came: whether to look once more (true) or sleep.
    pub fn look_again(&mut self, now: Instant) -> bool {
        self.take_back(now);
        let looking = match self.since {
            Some(since) => !self.shared && now.since(since) < self.window_ns,
            None => self.window_ns > 0 && (self.budget > 0 || self.sleeps_left == 0),
        };
        if looking {
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

    /// The turn after the CPU was given away.
    fn take_back(&mut self, now: Instant) {
        if self.given.take().is_some_and(|given| now.since(given) > SLICE_NS) {
            self.lose();
        }
    }

    fn lose(&mut self) {
        (self.lost, self.budget) = (true, 0);
        self.patience = (self.patience * 4).min(PATIENCE_MAX);
        self.sleeps_left = self.patience;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks until it would sleep; returns how often it looked.
    fn idle(polling: &mut Polling, now: u64, shared: bool) -> u32 {
        let mut looks = 0;
        while polling.look_again(Instant(now + u64::from(looks) * 1_000)) {
            looks += 1;
            polling.on_yield(if shared { 50_000 } else { 300 });
        }
        looks
    }

    #[test]
    fn looks_for_the_window_and_stops_when_it_never_hits() {
        let mut polling = Polling::new(20_000);
        assert_eq!(idle(&mut polling, 0, false), 20);
        let total: u32 = (1..200).map(|round| idle(&mut polling, round * 1_000_000, false)).sum();
        assert!(total < 20 * (7 + 199 / PATIENCE_MIN + 2), "{total} looks for nothing");
        assert!(total > 20 * (7 + 199 / PATIENCE_MIN / 2), "{total} looks: it tries now and then");
        assert_eq!(idle(&mut Polling::new(0), 0, false), 0);
    }

    #[test]
    fn a_shared_cpu_is_left_at_once_and_hits_bring_polling_back() {
        let mut polling = Polling::new(20_000);
        for round in 0..100 {
            assert!(idle(&mut polling, round * 1_000_000, true) <= 1);
        }
        assert!(!polling.look_again(Instant(0)) || polling.look_again(Instant(0)));
        let mut hits = 0;
        for round in 0..400 {
            if polling.look_again(Instant(round * 1_000_000)) {
                polling.on_work(Instant(round * 1_000_000));
                hits += 1;
            }
        }
        assert!(hits > 300, "{hits}");
    }

    /// A client's rounds, one request each: after the answer the CPU is given away if it should be, which takes `yield_ns`, then
    /// its next request is there. What the first `rounds` cost in slices, and whether it looks in the end.
    fn serve(polling: &mut Polling, rounds: u64, yield_ns: u64) -> (u64, bool) {
        let (mut now, mut lost) = (1, 0);
        for _ in 0..rounds {
            polling.on_work(Instant(now));
            let mut given = 0;
            if polling.is_on() {
                polling.on_give(Instant(now));
                given = yield_ns;
            } else if polling.look_again(Instant(now)) {
                polling.on_yield(yield_ns);
                given = yield_ns;
            }
            now += 50_000 + given;
            lost += u64::from(given > SLICE_NS);
        }
        (lost, polling.is_on())
    }

    #[test]
    fn a_hit_that_cost_a_slice_is_none() {
        let mut polling = Polling::new(50_000);
        let (lost, on) = serve(&mut polling, 20_000, 3_000_000);
        // The first, then after 64, 256, 1024 and 4096 sleeps, and every 4096 from there on.
        assert!(!on && (5..=9).contains(&lost), "{lost} slices in 20000 rounds");
        // The others are gone.
        let (_, on) = serve(&mut polling, u64::from(2 * PATIENCE_MAX), 300);
        assert!(on, "looking is back");
        // A client on the same CPU runs while it is given away, and not for long.
        let (lost, on) = serve(&mut polling, 10_000, 30_000);
        assert!(on && lost == 0);
    }
}
