//! Whether a device answers: decided from its completions, its time-outs and its refusals.
//!
//! ```text
//!            every command in it has timed out, or it refuses; and no command ended for `io_timeout`
//!   Live ------------------------------------------------------------------------------------------> Stuck
//!    ^                                                                                                 |
//!    `------------------------- a command ends: a late one, or that of a probe ------------------------'
//! ```
//!
//! A device is *unresponsive* before it is stuck: a request was overdue, and no command had ended for a part of the time-out. The
//! owner tells the other shards, and every cache, when it becomes so: they limit their waits, and its share of what devices
//! share. It is no state for the operator: a device that has lost one command and is idle otherwise is unresponsive until the
//! next command ends.
//!
//! While a device is stuck, new requests fail at once. Now and then one is let through as a probe, because the commands that
//! the device has may be lost for good. A probe that is not answered keeps its tag and its buffer as any other command, so the
//! pauses between probes double, up to [`PROBE_PAUSES_MAX`] time-outs.
//!
//! Invariants: a stuck device is unresponsive; a live device has no next probe; the pause is from 1 to [`PROBE_PAUSES_MAX`]
//! time-outs.

use crate::time::Instant;

/// The longest pause between two probes, in time-outs. 16: eight minutes with the usual 30 s.
const PROBE_PAUSES_MAX: u64 = 16;

/// A device is silent when it has ended no command for this part of a time-out.
const SILENCE_PART: u64 = 4;

/// Whether a device answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum DeviceState {
    /// The device answers, as far as known.
    #[default]
    Live = 0,
    /// The device does not answer, or refuses everything: new requests fail at once.
    Stuck = 1,
}

impl DeviceState {
    /// Returns the state with this number; `None` if there is none.
    #[must_use]
    pub fn of(number: u64) -> Option<Self> {
        [DeviceState::Live, DeviceState::Stuck].into_iter().find(|&state| state as u64 == number)
    }

    /// The name that users see.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            DeviceState::Live => "live",
            DeviceState::Stuck => "stuck",
        }
    }
}

/// Decides whether a device is live or stuck.
#[derive(Debug)]
pub(crate) struct DeviceMonitor {
    state: DeviceState,
    /// A request was overdue, and no command has ended since.
    unresponsive: bool,
    /// The state that the operator was told last.
    told: DeviceState,
    /// When a command ended last, or later: while the device was idle, it owed no answer.
    silent_from: Instant,
    /// When the next request is let through to a stuck device.
    next_probe: Option<Instant>,
    /// The pause after the next probe, in time-outs.
    pause: u64,
}

impl DeviceMonitor {
    /// Creates the state of a device that answers.
    pub const fn new() -> Self {
        let (state, silent_from, next_probe) = (DeviceState::Live, Instant(0), None);
        Self { state, unresponsive: false, told: state, silent_from, next_probe, pause: 1 }
    }

    /// Returns whether the device answers.
    pub fn state(&self) -> DeviceState {
        self.state
    }

    /// Returns true while new requests fail at once.
    #[inline]
    pub fn is_stuck(&self) -> bool {
        self.state == DeviceState::Stuck
    }

    /// Returns true while waits for the device are limited: a request was overdue, and no command has ended since.
    #[inline]
    pub fn is_unresponsive(&self) -> bool {
        self.unresponsive
    }

    /// Returns true once after each change of the state.
    pub fn take_change(&mut self) -> bool {
        std::mem::replace(&mut self.told, self.state) != self.state
    }

    /// Notes that the device ended a command, with any answer but a refusal. Returns true if it was unresponsive until now.
    #[inline]
    pub fn on_end(&mut self, now: Instant) -> bool {
        self.silent_from = now;
        self.unresponsive && self.set(DeviceState::Live, false, now, 0)
    }

    /// Notes that the device was idle before `asked`, when it got a command that it has now refused.
    pub fn on_first_refusal(&mut self, asked: Instant) {
        self.silent_from = self.silent_from.max(asked);
        debug_assert!(self.silent_from >= asked, "it was not silent before it was asked");
    }

    /// Returns true when no command has ended for a part of the time-out: requests that wait do not have their turn. A quarter:
    /// a busy disk ends one far more often, and it is short against the time-out that a request waits before.
    pub fn is_silent(&self, now: Instant, timeout_ns: u64) -> bool {
        Self::is_silence(self.silent_from, now, timeout_ns)
    }

    /// Returns true when the time since `since` is long enough to be a silence of the device.
    pub fn is_silence(since: Instant, now: Instant, timeout_ns: u64) -> bool {
        now.since(since) >= timeout_ns / SILENCE_PART
    }

    /// Notes that a request is overdue, or `all` that the device has. Returns true if the device is unresponsive or stuck from
    /// now on.
    pub fn on_overdue(&mut self, now: Instant, all: bool, timeout_ns: u64) -> bool {
        let silent = now.since(self.silent_from) >= timeout_ns;
        if all && silent && !self.is_stuck() {
            return self.set(DeviceState::Stuck, true, now, timeout_ns);
        }
        let begins = !self.unresponsive && self.is_silent(now, timeout_ns);
        self.unresponsive |= begins;
        begins
    }

    /// Takes over what the device's owner has found; returns true if it changes anything.
    pub fn follow(
        &mut self,
        now: Instant,
        state: DeviceState,
        unresponsive: bool,
        timeout_ns: u64,
    ) -> bool {
        assert!(unresponsive || state == DeviceState::Live, "a stuck device is unresponsive");
        if self.state != state {
            return self.set(state, unresponsive, now, timeout_ns);
        }
        std::mem::replace(&mut self.unresponsive, unresponsive) != unresponsive
    }

    /// Returns true if a new request may be sent: the device is live, or the request is a probe.
    #[inline]
    pub fn admits(&mut self, now: Instant, timeout_ns: u64) -> bool {
        !self.is_stuck() || self.begin_probe(now, timeout_ns)
    }

    #[cold]
    fn begin_probe(&mut self, now: Instant, timeout_ns: u64) -> bool {
        assert!((1..=PROBE_PAUSES_MAX).contains(&self.pause), "a pause is bounded");
        let due = self.next_probe.is_some_and(|at| at <= now);
        if due {
            self.pause = (2 * self.pause).min(PROBE_PAUSES_MAX);
            self.next_probe = Some(now.after(self.pause.saturating_mul(timeout_ns)));
        }
        due
    }

    #[cold]
    fn set(
        &mut self,
        state: DeviceState,
        unresponsive: bool,
        now: Instant,
        timeout_ns: u64,
    ) -> bool {
        assert!(
            (self.state, self.unresponsive) != (state, unresponsive),
            "a change changes something"
        );
        (self.state, self.unresponsive) = (state, unresponsive);
        self.pause = 1;
        let is_stuck = state == DeviceState::Stuck;
        self.next_probe = is_stuck.then(|| now.after(timeout_ns));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::SEC;

    const LIMIT: u64 = 5 * SEC;

    fn at(seconds: u64) -> Instant {
        Instant(seconds * SEC)
    }

    #[test]
    fn overdue_device_is_stuck_only_after_silence() {
        let mut monitor = DeviceMonitor::new();
        assert!(!monitor.on_end(at(100)));
        assert!(!monitor.on_overdue(at(101), true, LIMIT), "a command ended 1 s ago");
        assert!(!monitor.is_unresponsive());
        assert!(monitor.on_overdue(at(104), true, LIMIT), "a command ended 4 s ago");
        assert!(monitor.is_unresponsive() && !monitor.is_stuck() && !monitor.take_change());
        assert!(!monitor.on_overdue(at(104), true, LIMIT), "it is unresponsive already");
        assert!(monitor.admits(at(104), LIMIT));
        assert!(monitor.on_overdue(at(105), true, LIMIT));
        assert!(!monitor.on_overdue(at(106), true, LIMIT), "it is stuck already");
        assert!(!monitor.admits(at(106), LIMIT));
        assert_eq!(monitor.state().name(), "stuck");
        assert!(monitor.is_silent(at(106), LIMIT));
        assert!(monitor.on_end(at(107)), "any answer makes it live");
        assert!(!monitor.is_silent(at(108), LIMIT) && monitor.is_silent(at(109), LIMIT));
        assert!(!monitor.on_end(at(107)));
        assert!(monitor.admits(at(107), LIMIT));
    }

    /// A command that waited elsewhere is overdue when it reaches an idle device.
    #[test]
    fn device_that_was_idle_is_not_silent_when_it_refuses_its_first_command() {
        let mut monitor = DeviceMonitor::new();
        monitor.on_end(at(100));
        assert!(monitor.is_silent(at(1000), LIMIT), "it has ended nothing since");
        monitor.on_first_refusal(at(1000));
        assert!(!monitor.is_silent(at(1000), LIMIT));
        monitor.on_overdue(at(1001), true, LIMIT);
        assert!(!monitor.is_stuck());
        // The next refusals do not put off the end of its time.
        monitor.on_first_refusal(at(999));
        assert!(monitor.is_silent(at(1002), LIMIT));
        assert!(monitor.on_overdue(at(1005), true, LIMIT) && monitor.is_stuck());
    }

    #[test]
    fn pauses_between_probes_double_up_to_a_bound() {
        let mut monitor = DeviceMonitor::new();
        assert!(monitor.on_overdue(at(1000), true, LIMIT));
        let mut probes = Vec::new();
        for second in 1000..1500 {
            if monitor.admits(at(second), LIMIT) {
                probes.push((second - 1000) / 5);
                assert!(!monitor.admits(at(second), LIMIT), "one request at a time");
            }
        }
        assert_eq!(probes, [1, 3, 7, 15, 31, 47, 63, 79, 95]);
        monitor.on_end(at(1500));
        assert!(monitor.on_overdue(at(1505), true, LIMIT));
        assert!(monitor.admits(at(1510), LIMIT), "the pauses begin anew");
    }

    #[test]
    fn follower_changes_once() {
        let mut monitor = DeviceMonitor::new();
        assert!(!monitor.follow(at(1), DeviceState::Live, false, LIMIT));
        assert!(monitor.follow(at(1), DeviceState::Stuck, true, LIMIT));
        assert!(!monitor.follow(at(2), DeviceState::Stuck, true, LIMIT));
        assert!(!monitor.admits(at(2), LIMIT));
        assert!(monitor.admits(at(6), LIMIT));
        assert!(monitor.follow(at(7), DeviceState::Live, false, LIMIT));
        assert!(monitor.admits(at(7), LIMIT));
    }
}
