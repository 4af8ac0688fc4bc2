//! When a thread enters the engine, polls, yields its CPU or sleeps.

use headworks::house::Polling;
use headworks_core::Instant;

use super::payoff::Payoff;

/// Turns that hot connections may have before the engine is entered for the others.
pub(super) const SKIPS_MAX: u32 = 8;

/// Time before a device is due at which a sleeping thread wakes and polls. 60 us: an idle processor takes up to half of it to wake.
const EARLY_NS: u64 = 60_000;

/// Decides from the outcome of past turns how the next one begins.
pub(super) struct IdlePolicy {
    polling: Polling,
    payoff: Payoff,
    /// Time in polls since the start, and when the running one was last decided on.
    spent_ns: u64,
    polls_since: Option<Instant>,
    /// Turns since the engine was last entered.
    skips: u32,
    /// The last turn did work.
    worked_before: bool,
    /// The turn after work found none, so the thread yields its CPU before that turn.
    yields_first: bool,
    /// Time before a device is due from which the thread polls.
    early_ns: u64,
    /// Yields the CPU; a test does not.
    give_way: fn(),
}

impl IdlePolicy {
    /// A policy that polls for `poll_ns` before a sleep. With more than one of `cpus` it also polls before a device is due.
    pub fn new(poll_ns: u64, cpus: usize) -> Self {
        let polling = Polling::new(poll_ns);
        let early_ns = if poll_ns > 0 && cpus > 1 { EARLY_NS } else { 0 };
        let payoff = Payoff::new();
        Self {
            polling,
            payoff,
            spent_ns: 0,
            polls_since: None,
            skips: 0,
            worked_before: false,
            yields_first: false,
            early_ns,
            give_way: std::thread::yield_now,
        }
    }

    /// When a thread wakes for a device that is due at `at`: early enough to be there in time.
    pub fn wakes_at(&self, at: Instant) -> Instant {
        Instant(at.0.saturating_sub(self.early_ns))
    }

    /// Whether the engine must be entered; `may_skip` says that it has nothing to do for hot connections.
    pub fn must_enter(&mut self, may_skip: bool) -> bool {
        let skip = may_skip && self.skips < SKIPS_MAX;
        self.skips = if skip { self.skips + 1 } else { 0 };
        !skip
    }

    /// Whether the thread polls after a turn; yields the CPU first where that helps. `requests` were handled since the start.
    pub fn polls_after(
        &mut self,
        now: Instant,
        (worked, requests): (bool, u64),
        clock: impl Fn() -> Instant,
    ) -> bool {
        self.spent_ns += self.polls_since.take().map_or(0, |since| now.since(since));
        // A client with few requests in flight sends the next one only after it ran, so a turn before that is in vain. The
        // turn after the last work showed whether this is so.
        if self.worked_before {
            self.yields_first = !worked;
        }
        self.worked_before = worked;
        if worked {
            self.polling.on_work(now);
            if self.yields_first && self.polling.is_on() && self.payoff.polls() {
                self.polling.on_give(clock());
                (self.give_way)();
            }
            return true;
        }
        self.payoff.on_turn(now, requests, self.spent_ns);
        if !self.payoff.polls() || !self.polling.poll_again(now) {
            return false;
        }
        self.polls_since = Some(now);
        let before = clock();
        (self.give_way)();
        self.polling.on_yield(clock().since(before));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_wakes_before_a_device_is_due_unless_it_must_not_poll() {
        let due = Instant(1_000_000);
        assert_eq!(IdlePolicy::new(50_000, 2).wakes_at(due), Instant(940_000));
        assert_eq!(IdlePolicy::new(50_000, 2).wakes_at(Instant(5)), Instant(0));
        assert_eq!(IdlePolicy::new(50_000, 1).wakes_at(due), due);
        assert_eq!(IdlePolicy::new(0, 2).wakes_at(due), due);
    }

    /// Requests come at times of their own, 20 us apart, which is within the window of a poll: each poll hits, and serves not one request more.
    #[test]
    fn client_with_a_clock_of_its_own_is_slept_for() {
        let mut policy = IdlePolicy { give_way: || {}, ..IdlePolicy::new(50_000, 2) };
        let (mut now, mut requests, mut polled) = (1, 0, 0);
        while now < 10_000_000_000_u64 {
            requests += 1;
            policy.polls_after(Instant(now), (true, requests), || Instant(now));
            let due = now + 20_000;
            now += 2_000;
            let mut polls = policy.polls_after(Instant(now), (false, requests), || Instant(now));
            // The last half shows what it has found.
            polled += u64::from(polls && now > 5_000_000_000);
            while polls && now + 2_000 < due {
                now += 2_000;
                polls = policy.polls_after(Instant(now), (false, requests), || Instant(now));
            }
            now = due;
        }
        let part = 100 * polled / (requests / 2);
        assert!(part <= 15, "{part} % of the idle turns polled");
    }
}
