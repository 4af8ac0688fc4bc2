//! What a queue was served in the last minute: the sums of two half minutes.
//!
//! Invariant: `present` is of the half minute `period`, `before` of the one before it.

use crate::elevator::state::Served;
use crate::time::{Instant, SEC};

/// Length of a period: half a minute.
const PERIOD_NS: u64 = 30 * SEC;

/// The service of a queue in the present half minute and the one before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recent {
    period: u64,
    present: Served,
    before: Served,
}

impl Recent {
    /// Returns the sums of the present half minute, to be added to.
    pub fn at(&mut self, now: Instant) -> &mut Served {
        let period = now.0 / PERIOD_NS;
        if period != self.period {
            *self = Self { period, present: Served::default(), before: self.last(period) };
        }
        &mut self.present
    }

    /// Returns the sums of the half minute before `period`.
    fn last(&self, period: u64) -> Served {
        match period - self.period {
            0 => self.before,
            1 => self.present,
            _ => Served::default(),
        }
    }

    /// Returns the service of both half minutes.
    pub fn sum(&self, now: Instant) -> Served {
        let period = now.0 / PERIOD_NS;
        let mut sum = self.last(period);
        if period == self.period {
            sum.add(&self.present);
        }
        sum
    }

    /// Returns the time that a sum covers.
    pub fn span_ns(now: Instant) -> u64 {
        (now.0 % PERIOD_NS + PERIOD_NS).min(now.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_covers_half_a_minute_to_a_minute() {
        let at = |seconds: u64| Instant(seconds * SEC);
        let mut recent = Recent::default();
        recent.at(at(5)).sectors += 1;
        recent.at(at(29)).sectors += 2;
        assert_eq!(recent.sum(at(29)).sectors, 3);
        recent.at(at(31)).sectors += 4;
        assert_eq!((recent.sum(at(31)).sectors, recent.sum(at(59)).sectors), (7, 7));
        assert_eq!((recent.sum(at(60)).sectors, recent.sum(at(89)).sectors), (4, 4));
        assert_eq!(recent.sum(at(90)).sectors, 0);
        recent.at(at(95)).sectors += 8;
        assert_eq!(recent.sum(at(95)).sectors, 8, "a pause longer than a period is no service");
        assert_eq!((Recent::span_ns(at(5)), Recent::span_ns(at(65))), (5 * SEC, 35 * SEC));
    }
}
