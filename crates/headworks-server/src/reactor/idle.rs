//! When a thread enters the engine, polls, yields its CPU or sleeps.

use headworks::driver::Clock;
use headworks::house::Polling;
use headworks_core::Instant;

/// Turns that hot connections may have before the engine is entered for the others.
pub(super) const SKIPS_MAX: u32 = 8;

/// Decides from the outcome of past turns how the next one begins.
pub(super) struct IdlePolicy {
    polling: Polling,
    /// Turns since the engine was last entered.
    skips: u32,
    /// The last turn did work.
    worked_before: bool,
    /// The turn after work found none, so the thread yields its CPU before that turn.
    yields_first: bool,
}

impl IdlePolicy {
    /// A policy that polls for `poll_ns` before a sleep.
    pub fn new(poll_ns: u64) -> Self {
        let polling = Polling::new(poll_ns);
        Self { polling, skips: 0, worked_before: false, yields_first: false }
    }

    /// Whether the engine must be entered; `may_skip` says that it has nothing to do for hot connections.
    pub fn must_enter(&mut self, may_skip: bool) -> bool {
        let skip = may_skip && self.skips < SKIPS_MAX;
        self.skips = if skip { self.skips + 1 } else { 0 };
        !skip
    }

    /// Whether the thread polls after a turn; yields the CPU first where that helps.
    pub fn polls_after(&mut self, now: Instant, worked: bool, clock: &Clock) -> bool {
        // A client with few requests in flight sends the next one only after it ran, so a turn before that is in vain. The
        // turn after the last work showed whether this is so.
        if self.worked_before {
            self.yields_first = !worked;
        }
        self.worked_before = worked;
        if worked {
            self.polling.on_work(now);
            if self.yields_first && self.polling.is_on() {
                self.polling.on_give(clock.now());
                std::thread::yield_now();
            }
            return true;
        }
        if !self.polling.poll_again(now) {
            return false;
        }
        let before = clock.now();
        std::thread::yield_now();
        self.polling.on_yield(clock.now().since(before));
        true
    }
}
