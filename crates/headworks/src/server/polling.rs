//! Whether a reactor looks a little longer before it sleeps.
//!
//! A wake-up across CPUs costs 22-25 us each way, so a busy client is answered several times faster by a server that is
//! still looking. Looking is worth it only while it hits, and never on a CPU that somebody else wants: every look gives the
//! CPU away first, and if somebody took it, sleeping is as fast and cheaper.
//!
//! ```text
//!   idle --budget > 0--> look (yield, try sockets) --something came--> hit: budget up
//!     |                    | window over, or the CPU is shared
//!     |                    v
//!     `--budget 0------> sleep (every 16th sleep looks once all the same, to find out)
//! ```

use headworks_core::Instant;

/// Looks that may miss before polling stops; a hit earns one back.
const BUDGET_MAX: u32 = 8;
/// With no budget left every 16th sleep tries once.
const TRY_EVERY: u32 = 16;
/// A yield that took longer than this gave the CPU to somebody else: a bare one takes less than a microsecond.
const SHARED_NS: u64 = 4_000;

/// The decision, without clock or socket.
#[derive(Debug)]
pub struct Polling {
    window_ns: u64,
    budget: u32,
    sleeps: u32,
    since: Option<Instant>,
    shared: bool,
}

impl Polling {
    /// Looks for up to `window_ns`; 0 never looks.
    #[must_use]
    pub fn new(window_ns: u64) -> Self {
        Self { window_ns, budget: BUDGET_MAX, sleeps: 0, since: None, shared: false }
    }

    /// Whether it looks at all at present.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.window_ns > 0 && self.budget > 0
    }

    /// Something came.
    pub fn on_work(&mut self) {
        if self.since.take().is_some() {
            self.budget = (self.budget + 1).min(BUDGET_MAX);
        }
        self.shared = false;
    }

    /// A look found nothing; the yield before it took `yield_ns`.
    pub fn on_yield(&mut self, yield_ns: u64) {
        self.shared |= yield_ns > SHARED_NS;
    }

    /// Nothing came: whether to look once more (true) or sleep.
    pub fn look_again(&mut self, now: Instant) -> bool {
        let looking = match self.since {
            Some(since) => !self.shared && now.since(since) < self.window_ns,
            None => self.starts(),
        };
        if looking {
            self.since.get_or_insert(now);
            return true;
        }
        if self.since.take().is_some() {
            self.budget = self.budget.saturating_sub(1);
        }
        self.shared = false;
        self.sleeps = self.sleeps.wrapping_add(1);
        false
    }

    fn starts(&self) -> bool {
        self.window_ns > 0 && (self.budget > 0 || self.sleeps % TRY_EVERY == TRY_EVERY - 1)
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
        assert!(total < 20 * (7 + 199 / TRY_EVERY + 2), "{total} looks for nothing");
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
                polling.on_work();
                hits += 1;
            }
        }
        assert!(hits > 300, "{hits}");
    }
}
