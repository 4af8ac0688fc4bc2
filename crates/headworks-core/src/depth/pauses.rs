//! Pauses of a device: after one it takes writes into its memory, faster than it can go on.
//!
//! A drive empties its buffer while it has nothing to do. Until that is full again, its throughput says nothing of a limit: a larger one
//! that is tried then looks better, and write-out that comes in bursts raised it again and again, to many milliseconds of commands
//! before a small write. The buffer is what was written in the pause, at most; a link that is a third faster than the flash needs
//! [`FILLS`] times the pause to fill it.
//!
//! Invariant: `told` is at most [`FILL_MAX_NS`] after the end of a pause.

use crate::time::{Instant, MS};

/// A shorter pause is none: clients that ask one by one leave a device idle between their requests.
const PAUSE_NS: u64 = MS;
/// Time to fill a drive's buffer, in pauses, and at most.
const FILLS: u64 = 3;
const FILL_MAX_NS: u64 = 100 * MS;

/// The last pause of a device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pauses {
    /// Since when it has nothing.
    idle: Option<Instant>,
    /// From then on its throughput tells of the limit.
    told: Instant,
}

impl Pauses {
    /// Notes the end of a batch that left the queue busy or empty; returns true if it ended a pause.
    #[inline]
    pub fn on_batch(&mut self, now: Instant, is_busy: bool) -> bool {
        if !is_busy {
            self.idle.get_or_insert(now);
            return false;
        }
        self.idle.take().is_some_and(|since| self.end(now, now.since(since)))
    }

    fn end(&mut self, now: Instant, pause: u64) -> bool {
        if pause < PAUSE_NS {
            return false;
        }
        self.told = now.after((FILLS * pause).min(FILL_MAX_NS));
        debug_assert!(self.told > now, "a pause has a length");
        true
    }

    /// Returns true while the device may fill its buffer.
    pub fn is_filling(&self, now: Instant) -> bool {
        now < self.told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_fills_for_some_time_after_a_pause_but_not_between_single_requests() {
        let mut pauses = Pauses::default();
        let mut batch = |us: u64, is_busy| {
            let now = Instant(us * 1000);
            (pauses.on_batch(now, is_busy), pauses.is_filling(now))
        };
        assert_eq!(batch(0, true), (false, false), "it has not begun with a pause");
        assert_eq!([batch(100, false), batch(1099, true)], [(false, false); 2]);
        assert_eq!([batch(2000, false), batch(2500, false)], [(false, false); 2]);
        assert_eq!(batch(4000, true), (true, true), "2 ms, whose first batch counts");
        assert_eq!([batch(9999, true), batch(10_000, true)], [(false, true), (false, false)]);
        assert_eq!([batch(11_000, false), batch(9_000_000, true)], [(false, false), (true, true)]);
        assert_eq!(
            [batch(9_099_999, true), batch(9_100_000, true)],
            [(false, true), (false, false)]
        );
    }
}
