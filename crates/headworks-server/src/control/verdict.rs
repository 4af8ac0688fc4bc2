//! Whether requests are slow: one rule for `why`, `top` and the status page.
//!
//! ```text
//!   the device does not answer ------------------------------> stuck
//!   no request ----------------------------------------------> idle
//!   most of their time was for a limit that was set ---------> limited
//!   enough of them took longer than the device explains -----> slow
//!   else ----------------------------------------------------> quiet
//! ```
//!
//! Rule: nothing is called slow without evidence. What counts is the time of a request without its wait for limits, which are what an
//! operator asked for. It is compared with what the device takes for one request alone, measured or the smallest seen, of the same
//! operation: [`MULTIPLE`] times that, at least [`SLOW_NS`], at most [`ALONE_NS`] or twice that, because a device that takes longer than
//! [`ALONE_NS`] for one is slow itself. A device that had no more than one request at a time is compared with the upper of these bounds:
//! nothing stood in its way.
//! [`ENOUGH`] requests beyond are evidence, or one that took [`LONG_NS`].

use headworks_core::{DeviceState, Op, WaitKind};

use super::why::{Slowness, WhySnapshot};
use crate::observe::latency::slow::SlowRequest;

/// Requests shorter than this are not slow, whatever the device takes: 1 ms.
pub(super) const SLOW_NS: u64 = 1_000_000;
/// What a device takes at most for one request alone, if it is not slow itself: 20 ms, a disk that seeks.
const ALONE_NS: u64 = 20_000_000;
/// A request that took this long is evidence by itself: 100 ms.
const LONG_NS: u64 = 100_000_000;
/// How many times as long as alone a request takes that is slow: as if it waited for two others.
const MULTIPLE: u64 = 3;
/// Slow requests that are evidence: fewer may be a disk that paused for a moment.
const ENOUGH: usize = 5;
/// Requests in a device on average from which on it has more than one at a time.
pub(super) const MORE_THAN_ONE: f64 = 1.0;

/// What is said of the requests of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No request completed.
    Idle,
    /// Requests completed, and nothing was slow.
    Quiet,
    /// Requests waited for limits that were set.
    Limited,
    /// Requests were slow.
    Slow,
    /// The device does not answer.
    Stuck,
}

impl Verdict {
    /// The word for it in answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Quiet => "quiet",
            Self::Limited => "limited",
            Self::Slow => "slow",
            Self::Stuck => "stuck",
        }
    }

    /// What the slow requests of an export say.
    pub fn of(facts: &WhySnapshot, slowness: &Slowness<'_>) -> Self {
        if facts.device_state == DeviceState::Stuck {
            return Self::Stuck;
        }
        if slowness.requests == 0 {
            return Self::Idle;
        }
        let was_limited = slowness.slowest.iter().any(|slow| limited_ns(slow) >= SLOW_NS);
        if was_limited && slowness.main_stage() == Some(WaitKind::Limit) {
            return Self::Limited;
        }
        let (beyond, longest) = beyond(facts, slowness);
        match beyond >= ENOUGH || longest >= LONG_NS {
            true => Self::Slow,
            false if was_limited && slowness.share_of(WaitKind::Limit) >= super::why::WORTH => {
                Self::Limited
            }
            false => Self::Quiet,
        }
    }
}

/// How many of the considered requests took longer than the device explains, and the longest of them all; without waits for limits.
pub(super) fn beyond(facts: &WhySnapshot, slowness: &Slowness<'_>) -> (usize, u64) {
    let rest = |slow: &SlowRequest| slow.total_ns.saturating_sub(limited_ns(slow));
    let is_beyond = |slow: &&SlowRequest| rest(slow) >= threshold_ns(facts, slowness, slow.op);
    let count = slowness.slowest.iter().filter(is_beyond).count();
    (count, slowness.slowest.iter().map(rest).max().unwrap_or(0))
}

/// The time from which on a request is slow.
pub(super) fn threshold_ns(facts: &WhySnapshot, slowness: &Slowness<'_>, op: Op) -> u64 {
    let alone = facts.alone_ns[op as usize].unwrap_or(0);
    if alone >= ALONE_NS {
        return ALONE_NS;
    }
    let in_device = slowness.main_stage() == Some(WaitKind::Device);
    let alone_there = facts.in_device.is_some_and(|requests| requests <= MORE_THAN_ONE);
    let least = if in_device && alone_there { ALONE_NS } else { SLOW_NS };
    (alone * MULTIPLE).clamp(least, ALONE_NS).max(2 * alone)
}

/// What a request waited for limits, which is what was asked for.
pub(super) fn limited_ns(slow: &SlowRequest) -> u64 {
    super::why::parts(slow)[WaitKind::Limit as usize] as u64
}

/// Whether requests are worth a look at what held them: some may be slow.
pub(super) fn may_be_slow(slowest: &[SlowRequest]) -> bool {
    slowest.first().is_some_and(|slow| slow.total_ns >= SLOW_NS)
}

#[cfg(test)]
mod tests {
    use super::super::why::{LongestLimit, PlaceWait, why};
    use super::*;
    use crate::observe::latency::slow::SlowFilter;
    use headworks_control::answers;
    use headworks_core::stats::{DepthStats, QueueStats, QueueWaits, bucket_of};
    use headworks_core::{Instant, QueueOptions, WaitTimes};

    const MS: u64 = 1_000_000;

    fn slow(total_ns: u64, waits: &[(WaitKind, u64)]) -> SlowRequest {
        let one = |word, (wait, ns): &(WaitKind, u64)| {
            word | (bucket_of(*ns) as u64) << (8 * *wait as u32)
        };
        let wait_times = WaitTimes::from_word(waits.iter().fold(0, one));
        SlowRequest { total_ns, wait_times, ..SlowRequest::default() }
    }

    fn facts() -> WhySnapshot {
        let mut alone_ns = [None; Op::COUNT];
        alone_ns[Op::Read as usize] = Some(MS / 10);
        let (device, export) = ("hw0".to_owned(), "db".to_owned());
        WhySnapshot { device, export, alone_ns, nr_requests: 256, ..WhySnapshot::default() }
    }

    fn told(facts: &WhySnapshot, slowest: &[SlowRequest]) -> answers::Why {
        let slowness = Slowness::of(SlowFilter::default(), slowest.len() as u64, slowest);
        why(facts, Instant(0), &slowness)
    }

    #[test]
    fn few_short_requests_are_no_evidence() {
        let in_device = |ms: u64| slow(ms * MS, &[(WaitKind::Device, ms * MS)]);
        let answer = told(&facts(), &[in_device(5), in_device(4), slow(MS / 10, &[])]);
        assert_eq!((&*answer.state, answer.slow, answer.hints.len()), ("quiet", false, 0));
        assert!(answer.sentence.ends_with("5.0 ms; 2 took longer than 1.0 ms, too few to say why"));
        assert_eq!(told(&facts(), &[in_device(5); 5]).state, "slow");
        assert_eq!(
            told(&facts(), &[in_device(100)]).state,
            "slow",
            "one that took long is evidence"
        );
        let text = told(&facts(), &[slow(MS / 2, &[]); 20]).sentence;
        assert!(text.ends_with("took longer than 500.0 us; hw0 alone takes 100.0 us"), "{text}");
    }

    #[test]
    fn threshold_is_what_the_device_takes_alone_and_its_load() {
        let mut facts = facts();
        facts.alone_ns[Op::Read as usize] = Some(5 * MS);
        let queued = [slow(12 * MS, &[(WaitKind::Device, 12 * MS)]); 9];
        assert_eq!(told(&facts, &queued).state, "quiet", "it takes 5 ms for each");
        facts.alone_ns[Op::Read as usize] = Some(3 * MS);
        facts.in_device = Some(2.5);
        let answer = told(&facts, &queued);
        assert!(answer.slow && answer.hints[0].contains("admit fewer requests"), "{answer:?}");
        facts.in_device = Some(0.7);
        assert_eq!(told(&facts, &queued).state, "quiet", "nothing stood in their way");
        let answer = told(&facts, &[slow(25 * MS, &[(WaitKind::Device, 25 * MS)]); 9]);
        assert!(answer.slow && answer.hints[0].contains("one request at a time"), "{answer:?}");
    }

    #[test]
    fn wait_for_a_limit_is_limited_and_the_hint_names_that_limit() {
        let (words, doubled) = ("export db: iops-total 1000", "exports/db/iops-total 2000");
        let limit = LongestLimit { words: words.into(), doubled: doubled.into() };
        let facts = WhySnapshot { limit: Some(limit), ..facts() };
        let limited = |rest: u64| {
            let waits = [(WaitKind::Limit, 50 * MS), (WaitKind::Device, rest.max(1))];
            [slow(50 * MS + rest, &waits); 20]
        };
        for rest in [0, 20 * MS] {
            let answer = told(&facts, &limited(rest));
            assert_eq!((&*answer.state, answer.slow), ("limited", false));
            assert!(answer.sentence.starts_with("db: limited, not slow: "), "{}", answer.sentence);
            let hint = "limit: `ctl set exports/db/iops-total 2000` doubles it, `ctl set exports/db/iops-total none` removes it";
            assert_eq!(answer.hints, [hint]);
        }
        let answer = told(&facts, &limited(150 * MS));
        assert!(answer.slow && answer.hints[0].starts_with("device: "), "{answer:?}");
    }

    #[test]
    fn wait_before_the_device_is_for_what_was_used_up() {
        let at = |ms: u64| Some(Instant(ms * MS));
        let depth = Some(DepthStats { limit: 48 << 10, ..DepthStats::default() });
        let place = |waits: QueueWaits, options: &QueueOptions| {
            let queue = QueueStats { depth, waits, ..QueueStats::default() };
            PlaceWait::of(options, &queue, Instant(100 * MS))
        };
        let options = QueueOptions::default();
        let bytes = QueueWaits { bytes: at(150), tags: at(50), commands: at(150) };
        assert_eq!(place(bytes, &options), PlaceWait::Depth(48 << 10));
        assert_eq!(place(QueueWaits { tags: at(120), ..bytes }, &options), PlaceWait::Tag);
        let commands = QueueWaits { bytes: None, ..bytes };
        assert_eq!(place(commands, &options), PlaceWait::Commands(options.queue_depth));
        let fixed = QueueOptions { hw_inflight_kb: 64, ..options };
        assert_eq!(place(bytes, &fixed), PlaceWait::Bytes(64));
        let facts = WhySnapshot { place: PlaceWait::Depth(48 << 10), ..facts() };
        let answer = told(&facts, &[slow(9 * MS, &[(WaitKind::Tag, 9 * MS)]); 9]);
        let reason =
            "in tag (held back by the measured depth of hw0, which takes about 48 KiB at once)";
        assert!(answer.sentence.contains(reason), "{}", answer.sentence);
    }
}
