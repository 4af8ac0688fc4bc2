//! Meaning of stop signals: which one begins a shutdown, and which one cuts it short.
//!
//! ```text
//!   first signal --> Begin                      (or the end of the --run command began the shutdown)
//!   second one, less than 2 s after the begin --> Ignored: a supervisor that signals a process and then its group
//!   second one, 2 s after the begin or later --> AtOnce
//!   third one --> AtOnce
//! ```
//!
//! Signals within [`SAME_EVENT`] of the first are one event: `timeout` and some supervisors signal a process and its group
//! within microseconds, and a person cannot ask twice in that time. Cutting a shutdown short loses acknowledged writes, so it
//! needs a signal that can only be a second request.

use std::time::{Duration, Instant};

/// Signals at most this long after the first one of an event belong to it. 50 ms: far more than a supervisor needs to signal a
/// process and its group, far less than a person needs to press a key again.
const SAME_EVENT: Duration = Duration::from_millis(50);

/// Time after the begin of a shutdown from which on a second signal cuts it short.
const SECOND_COUNTS_AFTER: Duration = Duration::from_secs(2);

/// What a stop signal means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopSignal {
    /// The shutdown begins.
    Begin,
    /// The signal belongs to the same event as the last one.
    Repeated,
    /// A second signal that came too early to cut the shutdown short.
    Early,
    /// The shutdown is cut short.
    AtOnce,
}

/// Stop signals of a process, in the order of their arrival.
#[derive(Debug, Default)]
pub(super) struct StopSignals {
    /// Begin of the shutdown, by a signal or otherwise.
    began: Option<Instant>,
    /// First signal of the latest event.
    latest: Option<Instant>,
    /// Events so far.
    events: u32,
}

impl StopSignals {
    /// Records a shutdown that no signal began.
    pub(super) fn on_begin(&mut self, now: Instant) {
        self.began.get_or_insert(now);
    }

    /// Takes a stop signal that arrived at `now`.
    pub(super) fn on_signal(&mut self, now: Instant) -> StopSignal {
        if self.latest.is_some_and(|first| now.saturating_duration_since(first) <= SAME_EVENT) {
            return StopSignal::Repeated;
        }
        self.latest = Some(now);
        self.events += 1;
        let Some(began) = self.began else {
            self.began = Some(now);
            return StopSignal::Begin;
        };
        let is_late = now.saturating_duration_since(began) >= SECOND_COUNTS_AFTER;
        match is_late || self.events >= 3 {
            true => StopSignal::AtOnce,
            false => StopSignal::Early,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::StopSignal::{AtOnce, Begin, Early, Repeated};
    use super::*;

    /// Meanings of signals at these milliseconds; `begun` is when a shutdown began without a signal.
    fn meanings(begun: Option<u64>, signals: &[u64]) -> Vec<StopSignal> {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut stop = StopSignals::default();
        if let Some(ms) = begun {
            stop.on_begin(at(ms));
        }
        signals.iter().map(|ms| stop.on_signal(at(*ms))).collect()
    }

    #[test]
    fn signals_of_one_event_begin_one_shutdown() {
        assert_eq!(meanings(None, &[0, 0, 1, 40]), [Begin, Repeated, Repeated, Repeated]);
        // Compared with the first one: a key that is held down ends the server in the end.
        assert_eq!(meanings(None, &[0, 50, 100, 150]), [Begin, Repeated, Early, Repeated]);
        assert_eq!(
            meanings(None, &[0, 30, 60, 90, 120]),
            [Begin, Repeated, Early, Repeated, AtOnce]
        );
    }

    #[test]
    fn second_signal_counts_after_two_seconds() {
        assert_eq!(meanings(None, &[0, 51]), [Begin, Early]);
        assert_eq!(meanings(None, &[0, 1999]), [Begin, Early]);
        assert_eq!(meanings(None, &[0, 2000]), [Begin, AtOnce]);
        assert_eq!(meanings(None, &[0, 0, 2000, 2000]), [Begin, Repeated, AtOnce, Repeated]);
    }

    #[test]
    fn third_signal_counts_at_any_time() {
        assert_eq!(meanings(None, &[0, 100, 200]), [Begin, Early, AtOnce]);
        assert_eq!(
            meanings(None, &[0, 0, 100, 100, 200]),
            [Begin, Repeated, Early, Repeated, AtOnce]
        );
    }

    #[test]
    fn shutdown_without_signal_counts_as_begun() {
        // Ctrl-C ends the --run command and signals the server, in either order.
        assert_eq!(meanings(Some(0), &[0, 5]), [Early, Repeated]);
        assert_eq!(meanings(Some(0), &[10, 500, 900]), [Early, Early, AtOnce]);
        assert_eq!(meanings(Some(0), &[3000]), [AtOnce]);
    }
}
