//! Whether polling pays: now and then a trial compares how many requests are served with it and without.
//!
//! A client that waits for a reply before it sends its next request is served up to three times as fast by a thread that polls. One that
//! sends by a clock of its own has as many answers either way; but its next request comes within the window of a poll, too, so each poll hits,
//! and the thread takes a whole processor for what a few microseconds a request would do. Both look alike from one request to the next;
//! what tells them apart is the rate.
//!
//! ```text
//!   held, polls or does not --its time is over--> trial: polls, sleeps, sleeps, polls --> held, with what paid
//!      ^  |  (or sleeps, and the rate is another one)   |
//!      |  `-- polls take little time: held again       `-- the clients went quiet: held, as before
//!      '----- too few requests to tell: polls
//! ```
//!
//! A decision that a trial confirms is held for twice as long as before, and a trial ends as soon as sleeping clearly serves fewer requests. The two halves of each kind stand around the same middle, so a load that
//! grows or falls steadily favours none.
//!
//! Invariants: a trial's phases are `POLLS` in order; `polls` changes at the end of a phase alone; without polls that take time there is no trial.

use headworks_core::Instant;

/// What the phases of a trial do.
const POLLS: [bool; 4] = [true, false, false, true];
/// A phase has this many requests, whose number then varies by 2 % by chance, or ends by its longest time.
const REQUESTS: u64 = 2_000;
/// So many tell whether a client that waits has less than seven tenths without polls: by chance they vary by 7 %.
const REQUESTS_FEW: u64 = 200;
/// Shortest time of a phase: with less than that a turn is too large a part of it.
const PHASE_MIN_NS: u64 = 2_000_000;
/// Longest time of a phase. 50 ms: half of a trial is 100 ms, which is little of the least time for which a decision is held twice.
const PHASE_MAX_NS: u64 = 50_000_000;
/// A phase that lasted for longer than this had clients that went quiet.
const QUIET_NS: u64 = 4 * PHASE_MAX_NS;
/// How long a first decision is held.
const HELD_MIN_NS: u64 = 250_000_000;
/// How long the decision to poll is held at most: a trial then costs a client that waits 0.6 % of its requests.
const POLLS_MAX_NS: u64 = 8_000_000_000;
/// How long the decision to sleep is held at most. Shorter, since a client that would gain may have come.
const SLEEPS_MAX_NS: u64 = 2_000_000_000;
/// While the thread sleeps it looks this often whether the requests are those of the trial still.
const SLICE_NS: u64 = 100_000_000;
/// Percent of more requests for which polling pays.
const GAIN: u128 = 5;
/// Polls that take less than this part of the time cost nothing that is worth a trial.
const LITTLE: u64 = 8;
/// Requests a second below which polls seldom hit: their own budget ends them.
const FEW: u64 = 2_000;

/// The decision, without a clock.
#[derive(Debug)]
pub(super) struct Payoff {
    polls: bool,
    /// What the last trial found.
    pays: bool,
    /// The running phase of a trial.
    phase: Option<u8>,
    /// Start of the phase, or of the time for which a decision is held.
    began: Instant,
    /// Requests, and time of polls, at `began`.
    base: (u64, u64),
    held_ns: u64,
    /// Time for which the decision is still held, at `began`.
    left_ns: u64,
    /// Requests and time of the trial's phases that sleep, and of those that poll.
    sums: [(u64, u64); 2],
}

impl Payoff {
    /// Polls until a trial finds that it does not pay.
    pub fn new() -> Self {
        Self {
            polls: true,
            pays: true,
            phase: None,
            began: Instant(0),
            base: (0, 0),
            held_ns: HELD_MIN_NS,
            left_ns: HELD_MIN_NS,
            sums: [(0, 0); 2],
        }
    }

    /// Whether the thread may poll.
    #[inline]
    pub fn polls(&self) -> bool {
        self.polls
    }

    /// Continues after a turn. `requests` were handled, and `spent_ns` went into polls, since the start.
    #[inline]
    pub fn on_turn(&mut self, now: Instant, requests: u64, spent_ns: u64) {
        let age = now.since(self.began);
        match self.phase {
            None if age >= self.left_ns || age >= SLICE_NS && !self.pays => {
                self.look(now, requests, spent_ns);
            }
            Some(_) if !self.polls && self.is_slow(age, requests) => self.decide(true),
            Some(phase)
                if age >= PHASE_MAX_NS
                    || age >= PHASE_MIN_NS && requests - self.base.0 >= REQUESTS =>
            {
                self.end_phase(now, phase, requests, spent_ns);
            }
            _ => {}
        }
    }

    /// Whether a phase that sleeps, of `age`, already serves clearly fewer requests than one that polls.
    fn is_slow(&self, age: u64, requests: u64) -> bool {
        let slept = requests - self.base.0;
        let (polled, poll_ns) = self.sums[1];
        slept >= REQUESTS_FEW
            && age < PHASE_MAX_NS
            && u128::from(slept) * u128::from(poll_ns) * 10
                < u128::from(polled) * u128::from(age) * 7
    }

    /// A decision was held for its time, or for a slice of it.
    #[cold]
    fn look(&mut self, now: Instant, requests: u64, spent_ns: u64) {
        let age = now.since(self.began);
        let (handled, spent) = (requests - self.base.0, spent_ns - self.base.1);
        (self.began, self.base) = (now, (requests, spent_ns));
        self.left_ns = self.left_ns.saturating_sub(age);
        if u128::from(handled) * 1_000_000_000 < u128::from(age) * u128::from(FEW) {
            (self.pays, self.held_ns, self.left_ns) = (true, HELD_MIN_NS, 0);
        }
        let is_due = self.left_ns == 0 || !self.is_as_before(handled, age);
        let costs = !self.pays || spent >= age / LITTLE;
        if is_due && costs {
            (self.phase, self.polls, self.sums) = (Some(0), POLLS[0], [(0, 0); 2]);
        } else if is_due {
            (self.polls, self.left_ns) = (self.pays, self.held_ns);
        }
    }

    /// Whether requests come as often as while the trial slept, by a quarter.
    fn is_as_before(&self, handled: u64, age: u64) -> bool {
        let (slept, sleep_ns) = self.sums[0];
        let (now, then) =
            (u128::from(handled) * u128::from(sleep_ns), u128::from(slept) * u128::from(age));
        now * 4 >= then * 3 && now * 3 <= then * 4
    }

    #[cold]
    fn end_phase(&mut self, now: Instant, phase: u8, requests: u64, spent_ns: u64) {
        let age = now.since(self.began);
        let sum = &mut self.sums[usize::from(self.polls)];
        *sum = (sum.0 + requests - self.base.0, sum.1 + age);
        (self.began, self.base) = (now, (requests, spent_ns));
        let next = usize::from(phase) + 1;
        if age >= QUIET_NS {
            (self.phase, self.polls) = (None, self.pays);
            (self.held_ns, self.left_ns) = (HELD_MIN_NS, HELD_MIN_NS);
        } else if let Some(&polls) = POLLS.get(next) {
            (self.phase, self.polls) = (Some(next as u8), polls);
        } else {
            let [(slept, sleep_ns), (polled, poll_ns)] = self.sums;
            let rate = |requests: u64, ns: u64| u128::from(requests) * u128::from(ns);
            // Requests for each time, multiplied by both times.
            self.decide(rate(polled, sleep_ns) * 100 > rate(slept, poll_ns) * (100 + GAIN));
        }
    }

    /// Ends a trial.
    fn decide(&mut self, pays: bool) {
        let most = if pays { POLLS_MAX_NS } else { SLEEPS_MAX_NS };
        self.held_ns = if pays == self.pays { (2 * self.held_ns).min(most) } else { HELD_MIN_NS };
        (self.phase, self.polls, self.pays, self.left_ns) = (None, pays, pays, self.held_ns);
    }
}

#[cfg(test)]
mod tests {
    use headworks_core::prng::Prng;

    use super::*;

    /// How clients send: each after a reply, or `Clock` requests a second whatever the replies do.
    #[derive(Clone, Copy)]
    enum Load {
        /// Time of a request with polls and without.
        Waits(u64, u64),
        Clock(u64),
    }

    /// A thread with its clients.
    struct Thread {
        payoff: Payoff,
        now: u64,
        requests: u64,
        spent: u64,
        /// Time in which it polled, or could have.
        polled: u64,
        prng: Prng,
    }

    impl Thread {
        fn new() -> Self {
            let (payoff, prng) = (Payoff::new(), Prng::new(5));
            Self { payoff, now: 1, requests: 0, spent: 0, polled: 0, prng }
        }

        /// Runs a load; returns the part of the time with polls, in percent, and the requests.
        fn run(&mut self, load: Load, ns: u64) -> (u64, u64) {
            let (end, requests) = (self.now + ns, self.requests);
            self.polled = 0;
            while self.now < end {
                let polls = self.payoff.polls();
                let gap = match load {
                    Load::Waits(with, without) => {
                        if polls {
                            with
                        } else {
                            without
                        }
                    }
                    // Exponential by its mean: arrivals at random.
                    Load::Clock(rate) => {
                        let uniform = (self.prng.below(1 << 30) + 1) as f64 / (1u64 << 30) as f64;
                        (-uniform.ln() * 1e9 / rate as f64) as u64 + 1
                    }
                };
                self.now += gap;
                self.requests += 1;
                self.spent += if polls { gap.min(50_000) } else { 0 };
                self.polled += if polls { gap } else { 0 };
                self.payoff.on_turn(Instant(self.now), self.requests, self.spent);
            }
            (100 * self.polled / ns, self.requests - requests)
        }
    }

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn client_that_waits_is_polled_for_and_trials_cost_it_little() {
        let mut thread = Thread::new();
        let (part, requests) = thread.run(Load::Waits(12_000, 40_000), 2 * SECOND);
        assert!(part >= 98, "{part} % of the time with polls");
        assert!(requests * 12_000 >= 2 * SECOND * 98 / 100, "{requests} requests");
        // One that gains a fifth by it.
        let (part, _) = thread.run(Load::Waits(20_000, 24_000), 60 * SECOND);
        assert!(part >= 97, "{part} % of the time with polls");
    }

    #[test]
    fn client_with_a_clock_of_its_own_is_not_polled_for() {
        for rate in [20_000, 50_000, 200_000] {
            let mut thread = Thread::new();
            thread.run(Load::Clock(rate), SECOND);
            let (part, _) = thread.run(Load::Clock(rate), 20 * SECOND);
            assert!(part <= 15, "{part} % of the time with polls at {rate} a second");
        }
    }

    #[test]
    fn another_kind_of_client_is_noticed_within_half_a_second() {
        let mut thread = Thread::new();
        for _ in 0..3 {
            thread.run(Load::Clock(50_000), 20 * SECOND);
            thread.run(Load::Waits(12_000, 40_000), SECOND / 2);
            let (part, _) = thread.run(Load::Waits(12_000, 40_000), 10 * SECOND);
            assert!(part >= 95, "{part} % of the time with polls");
            thread.run(Load::Clock(50_000), 9 * SECOND);
            let (part, _) = thread.run(Load::Clock(50_000), 10 * SECOND);
            assert!(part <= 15, "{part} % of the time with polls");
        }
    }

    #[test]
    fn thread_whose_polls_take_no_time_has_no_trials() {
        let mut payoff = Payoff::new();
        for turn in 0..100_000 {
            payoff.on_turn(Instant(turn * 100_000), turn * 30, turn * 10_000);
            assert!(payoff.polls() && payoff.phase.is_none());
        }
    }

    #[test]
    fn quiet_clients_end_a_trial_and_few_requests_are_polled_for() {
        let mut payoff = Payoff::new();
        payoff.on_turn(Instant(HELD_MIN_NS), 10_000, HELD_MIN_NS);
        assert_eq!(payoff.phase, Some(0));
        payoff.on_turn(Instant(HELD_MIN_NS + QUIET_NS), 10_001, HELD_MIN_NS);
        assert!(payoff.phase.is_none() && payoff.polls());
        // A decision to sleep ends when there are few requests.
        (payoff.polls, payoff.pays) = (false, false);
        payoff.on_turn(Instant(HELD_MIN_NS * 2 + QUIET_NS), 10_100, HELD_MIN_NS);
        assert!(payoff.phase.is_none() && payoff.polls());
    }
}
