//! Raising the weight of queues whose users notice a delay: interactive ones and soft real-time ones.
//!
//! ```text
//!   None --first request after 2 s of rest--> Interactive (x30, 3 to 25 s, at most 60 MB)
//!     \--first request not before `soft_next`--> SoftRealTime (x3000, 300 ms, again with each request that conforms)
//!
//!   SoftRealTime ends: back to the Interactive period that it came from, if that still runs
//! ```
//!
//! `soft_next` is when a client of at most 3.6 MB/s would send its next request, counted from its last activation: one that comes
//! earlier is greedy. Departures from Linux: the 60 MB count anew in each interactive period, because a connection lives longer
//! than a process; each conforming request keeps a soft real-time queue raised, though it never becomes empty; one that is served
//! faster than 3.6 MB/s is raised no more and not again within a second; `soft_next` is computed whenever the queue is empty, not
//! only at the end of a slot.
//!
//! Invariants: a queue that is not raised has the factor 1; `soft_next` does not move back, but when an interactive period ends.

use super::rate::PeakRate;
use super::settings::{SHORT_NS, Settings};
use crate::time::{Instant, MS, SEC};

/// Rest after which a queue's next request begins an interactive period.
const REST_NS: u64 = 2 * SEC;
const INTERACTIVE: u64 = 30;
const SOFT: u64 = 3000;
const SOFT_NS: u64 = 300 * MS;
/// Sectors that an interactive period serves at most.
const INTERACTIVE_SECTORS: u64 = 120_000;
/// Sectors per second of a soft real-time client.
const SOFT_RATE: u64 = 7000;
/// Sectors that it may be ahead of that rate.
const SOFT_BURST: u64 = 2048;
/// Time after which a greedy one may try again.
const SOFT_RETRY_NS: u64 = SEC;
/// The least and longest interactive period.
const PERIOD_NS: (u64, u64) = (3 * SEC, 25 * SEC);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RaiseKind {
    None,
    Interactive,
    SoftRealTime,
}

/// The raising of one queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Raise {
    kind: RaiseKind,
    /// Start of the period.
    since: Instant,
    /// Start of the interactive period that a soft one interrupted.
    interrupted: Option<Instant>,
    /// Sectors served in the period.
    served: u64,
    /// Start of the soft period, by which its rate is counted.
    soft_since: Instant,
    /// The earliest next request of a soft real-time client.
    soft_next: Instant,
    /// The last activation, and the sectors served since then.
    activated: Instant,
    served_since: u64,
    /// The last request did not follow the end of another at once.
    paced: bool,
}

/// The facts about a queue that becomes active by which it is raised.
#[derive(Clone, Copy, Debug)]
pub(super) struct Activation {
    /// Since when it had no request, waiting or in the device; `None` if one is in the device.
    pub idle_since: Option<Instant>,
    /// It has never been active before.
    pub fresh: bool,
    pub totally_seeky: bool,
}

impl Raise {
    /// Creates the state of a new queue, which is not raised.
    pub fn new(now: Instant) -> Self {
        Self {
            kind: RaiseKind::None,
            since: now,
            interrupted: None,
            served: 0,
            soft_since: now,
            soft_next: now,
            activated: now,
            served_since: 0,
            paced: false,
        }
    }

    /// Returns the factor of the weight.
    pub fn factor(&self) -> u64 {
        match self.kind {
            RaiseKind::None => 1,
            RaiseKind::Interactive => INTERACTIVE,
            RaiseKind::SoftRealTime => SOFT,
        }
    }

    /// Returns the reason in words.
    pub fn name(&self) -> &'static str {
        match self.kind {
            RaiseKind::None => "none",
            RaiseKind::Interactive => "interactive",
            RaiseKind::SoftRealTime => "soft real time",
        }
    }

    /// Returns whether the weight is raised.
    pub fn is_raised(&self) -> bool {
        self.kind != RaiseKind::None
    }

    /// Returns the factor of the length of a slot: a soft real-time queue has short ones.
    pub fn slot_factor(&self) -> u64 {
        if self.kind == RaiseKind::SoftRealTime { 1 } else { self.factor() }
    }

    /// Returns the length of an interactive period: on a slower device a start takes longer.
    fn period_ns(settings: &Settings, rate: &PeakRate) -> u64 {
        let usual_ns = if settings.rotational { 7 * SEC } else { 5 * SEC / 2 };
        let usual = PeakRate::usual(settings.rotational);
        (usual * (usual_ns / MS) / rate.peak() * MS).clamp(PERIOD_NS.0, PERIOD_NS.1)
    }

    /// Takes the first request of an empty queue that may be raised; returns whether it has just been raised.
    pub fn on_activate(&mut self, now: Instant, settings: &Settings, queue: Activation) -> bool {
        let rested = queue.idle_since.is_some_and(|since| now.since(since) > REST_NS);
        let interactive = queue.fresh || rested;
        let soft = !queue.totally_seeky && queue.idle_since.is_some() && now > self.soft_next;
        let before = self.kind;
        if settings.low_latency {
            match (interactive, soft, before) {
                (true, ..) => self.begin(now, RaiseKind::Interactive),
                (_, true, RaiseKind::SoftRealTime) => self.since = now,
                (_, true, _) => {
                    let interactive = before == RaiseKind::Interactive;
                    self.interrupted = interactive.then_some(self.since);
                    self.begin(now, RaiseKind::SoftRealTime);
                }
                _ => {}
            }
        }
        (self.activated, self.served_since) = (now, 0);
        before == RaiseKind::None && self.is_raised()
    }

    fn begin(&mut self, now: Instant, kind: RaiseKind) {
        (self.kind, self.since, self.served) = (kind, now, 0);
        if kind == RaiseKind::SoftRealTime {
            self.soft_since = now;
        } else {
            self.interrupted = None;
        }
    }

    /// Returns whether a soft real-time queue has not been served faster than its rate.
    fn conforms(&self, now: Instant) -> bool {
        self.served <= SOFT_RATE * (now.since(self.soft_since) / MS) / 1000 + SOFT_BURST
    }

    /// Takes a request of the queue, whose last request ended at `last_end`. A request that follows an end at once is that of a
    /// greedy client: among several of them each may be served slowly enough to conform.
    pub fn on_request(&mut self, now: Instant, last_end: Instant) {
        self.paced = now.since(last_end) >= SHORT_NS;
        if self.kind == RaiseKind::SoftRealTime && self.paced && self.conforms(now) {
            self.since = now;
        }
    }

    /// Takes the start of a slot: the wait for it does not use up a soft period.
    pub fn on_slot(&mut self, now: Instant) {
        if self.kind == RaiseKind::SoftRealTime && self.paced {
            self.since = self.since.max(now);
        }
    }

    /// Takes the fact that all of the last requests were far apart: such a client is no player.
    pub fn on_totally_seeky(&mut self, now: Instant, settings: &Settings, rate: &PeakRate) {
        if self.kind == RaiseKind::SoftRealTime {
            self.end_soft(now, settings, rate);
        }
    }

    /// Counts sectors that were served.
    pub fn on_served(&mut self, sectors: u32) {
        self.served_since += u64::from(sectors);
        if self.is_raised() {
            self.served += u64::from(sectors);
        }
    }

    /// Takes the fact that the queue has no request, waiting or in the device.
    pub fn on_empty(&mut self, now: Instant, settings: &Settings) {
        // A soft client's next request comes when its rate allows, and not at once, as that of a greedy one.
        if self.kind != RaiseKind::Interactive {
            let by_rate = self.activated.after(self.served_since * SEC / SOFT_RATE);
            let pause = now.after(settings.slice_idle_ns + 2 * SHORT_NS);
            self.soft_next = self.soft_next.max(by_rate).max(pause);
        }
    }

    /// Ends a period that has lasted or served enough; returns whether the factor changed.
    pub fn expire(&mut self, now: Instant, settings: &Settings, rate: &PeakRate) -> bool {
        let before = self.kind;
        match self.kind {
            RaiseKind::None => {}
            RaiseKind::Interactive => {
                let lasted = now.since(self.since);
                let over = lasted > PERIOD_NS.0 && lasted > Self::period_ns(settings, rate);
                if over || self.served > INTERACTIVE_SECTORS {
                    self.end(now);
                    self.soft_next = now;
                }
            }
            RaiseKind::SoftRealTime if !self.conforms(now) => {
                self.end_soft(now, settings, rate);
                self.soft_next = now.after(SOFT_RETRY_NS);
            }
            RaiseKind::SoftRealTime => {
                if now.since(self.since) > SOFT_NS {
                    self.end_soft(now, settings, rate);
                }
            }
        }
        before != self.kind
    }

    /// Ends the raising; returns whether the queue was raised.
    pub fn stop(&mut self, now: Instant) -> bool {
        let raised = self.is_raised();
        self.end(now);
        raised
    }

    fn end_soft(&mut self, now: Instant, settings: &Settings, rate: &PeakRate) {
        debug_assert!(self.kind == RaiseKind::SoftRealTime, "a soft period ends");
        let period = Self::period_ns(settings, rate);
        match self.interrupted.take().filter(|&since| now.since(since) <= period) {
            Some(since) => (self.kind, self.since) = (RaiseKind::Interactive, since),
            None => self.end(now),
        }
    }

    fn end(&mut self, now: Instant) {
        (self.kind, self.since, self.interrupted) = (RaiseKind::None, now, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::QueueOptions;
    use crate::prng::Prng;

    fn disk() -> (Settings, PeakRate) {
        let options = QueueOptions { rotational: true, ..QueueOptions::default() };
        (Settings::new(&options), PeakRate::new(true))
    }

    const IDLE: Activation =
        Activation { idle_since: Some(Instant(0)), fresh: false, totally_seeky: false };

    #[test]
    fn rest_makes_interactive_until_time_or_sectors_are_used() {
        let (settings, rate) = disk();
        let mut raise = Raise::new(Instant(0));
        raise.soft_next = Instant(u64::MAX);
        let start = Instant(3 * SEC);
        assert!(!raise.on_activate(Instant(2 * SEC), &settings, IDLE), "2 s are not more than 2 s");
        assert!(raise.on_activate(start, &settings, IDLE));
        assert_eq!((raise.factor(), raise.slot_factor()), (30, 30));
        // Two thirds of the usual rate: 10.5 s.
        assert!(!raise.expire(start.after(10 * SEC), &settings, &rate));
        assert!(raise.expire(start.after(11 * SEC), &settings, &rate));
        assert_eq!(raise.factor(), 1);
        // Each period has its own count.
        for _ in 0..3 {
            assert!(raise.on_activate(start, &settings, IDLE));
            (0..60).for_each(|_| raise.on_served(2000));
            assert!(!raise.expire(start, &settings, &rate));
            raise.on_served(1);
            assert!(raise.expire(start, &settings, &rate));
        }
    }

    #[test]
    fn without_low_latency_nothing_is_raised() {
        let (mut settings, _) = disk();
        settings.low_latency = false;
        let fresh = Activation { fresh: true, ..IDLE };
        assert!(!Raise::new(Instant(0)).on_activate(Instant(9 * SEC), &settings, fresh));
    }

    #[test]
    fn soft_period_returns_to_the_interactive_one_that_it_interrupted() {
        let (settings, rate) = disk();
        let mut raise = Raise::new(Instant(0));
        let fresh = Activation { fresh: true, ..IDLE };
        assert!(raise.on_activate(Instant(SEC), &settings, fresh));
        let idle = Activation { idle_since: Some(Instant(SEC)), ..IDLE };
        raise.on_activate(Instant(2 * SEC), &settings, idle);
        assert_eq!((raise.factor(), raise.slot_factor()), (3000, 1));
        assert!(raise.expire(Instant(2 * SEC + 301 * MS), &settings, &rate));
        assert_eq!(raise.factor(), 30);
        assert!(raise.expire(Instant(12 * SEC), &settings, &rate));
        assert_eq!(raise.factor(), 1);
    }

    /// A client that sends a request of `sectors` and the next one `pause` after its end, each taking `takes`.
    fn run(sectors: u32, takes: u64, pause: impl Fn(u64) -> u64) -> (u64, u64) {
        let (settings, rate) = disk();
        let mut raise = Raise::new(Instant(SEC));
        let (mut now, mut late, mut raised) = (SEC, 0, 0);
        let (mut ended, end) = (SEC, 62 * SEC);
        while now < end {
            let idle_since = Some(Instant(ended));
            let activation = Activation { idle_since, fresh: false, totally_seeky: false };
            raise.on_activate(Instant(now), &settings, activation);
            raise.on_request(Instant(now), Instant(ended));
            raise.on_slot(Instant(now));
            raise.on_served(sectors);
            raise.expire(Instant(now), &settings, &rate);
            if now > 2 * SEC {
                late += 1;
                raised += u64::from(raise.factor() == SOFT);
            }
            now += takes;
            ended = now;
            raise.on_empty(Instant(now), &settings);
            now += pause(now);
        }
        (raised, late)
    }

    /// Greedy clients that share a disk may each be served slowly enough to conform; their requests follow an end at once.
    #[test]
    fn greedy_client_that_is_served_slowly_is_soft_for_one_period() {
        let (settings, rate) = disk();
        let served_slowly = |think: u64| {
            let mut raise = Raise::new(Instant(0));
            let idle = Activation { idle_since: Some(Instant(SEC)), ..IDLE };
            raise.on_activate(Instant(SEC), &settings, idle);
            assert_eq!(raise.factor(), SOFT);
            let mut now = SEC;
            // 128 KiB in 46 ms are 2.8 MB/s.
            while now < 2 * SEC {
                raise.on_request(Instant(now), Instant(now - think));
                now += 40 * MS;
                raise.on_slot(Instant(now));
                raise.on_served(256);
                raise.expire(Instant(now), &settings, &rate);
                now += 6 * MS;
            }
            raise.factor()
        };
        assert_eq!(served_slowly(20_000), 1);
        assert_eq!(served_slowly(3 * MS), SOFT, "one that thinks may be a player");
    }

    /// P21: a client of 3 MB/s stays soft real time for a minute; greedy ones are not after a second.
    #[test]
    fn steady_client_is_soft_real_time_and_greedy_clients_are_not() {
        // 64 KiB every 21.8 ms.
        let (raised, of) = run(128, 2 * MS, |now| 21_800_000 - now % 21_800_000);
        assert!(raised * 100 >= of * 99, "{raised} of {of}");
        let mut prng = Prng::new(1);
        for client in 0..1000 {
            let sectors = 1 << prng.between(3, 11);
            // At 20 to 200 MB/s, and with a think time of at most 2 ms.
            let takes = u64::from(sectors) * prng.between(2_560, 25_600);
            let think = prng.below(2 * MS);
            let (raised, of) = run(sectors, takes, |_| think);
            assert_eq!(raised, 0, "client {client}: {raised} of {of}, {sectors} {takes} {think}");
        }
    }
}
