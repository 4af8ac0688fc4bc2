//! Light requests that pass: beyond what the device is given, and before what an elevator has sorted. Both are paid for by requests
//! that are not light, so light ones alone never hold back others.
//!
//! Credit is device time. A grant that is not light adds what it costs, up to that; so does the next piece of a large request, if
//! nothing is left: a device that is sent one bio piece by piece has no other grant for as long as that takes. A light request that
//! passes takes off what it costs, and may leave a debt.
//!
//! Invariant: the credit is at most the cost of the last request that was not light; a debt is at most the cost of one light
//! request.

/// Light requests that go before the window of a sorting elevator in a row. More would break the sweep as often.
const EXPRESS_MAX: u32 = 1;

/// What light requests may pass.
#[derive(Debug, Default)]
pub(super) struct Passing {
    /// Device time that they may take beyond the limit.
    credit: i64,
    /// How many may go before the window of a sorting elevator.
    express: u32,
}

impl Passing {
    /// Returns true if a light request may pass.
    pub fn is_open(&self) -> bool {
        self.credit > 0
    }

    /// Counts a grant of `cost`; `full` says that it went beyond the limit.
    pub fn on_grant(&mut self, light: bool, full: bool, cost: u64) {
        let cost = cost.min(i64::MAX as u64) as i64;
        debug_assert!(self.express <= EXPRESS_MAX, "one goes in a row");
        if !light {
            self.credit = (self.credit + cost).min(cost);
        } else if full && self.credit > 0 {
            self.credit -= cost;
        }
    }

    /// Counts a piece of a large request, or one that is as large.
    #[inline]
    pub fn on_piece(&mut self) {
        self.credit = self.credit.max(1);
    }

    /// Counts a grant before a sorting elevator; returns true if it may go before the window.
    pub fn take_express(&mut self, light: bool) -> bool {
        let express = light && self.express > 0;
        self.express = match light {
            true => self.express - u32::from(express),
            false => EXPRESS_MAX,
        };
        express
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn light_requests_pass_while_others_have_paid() {
        let mut passing = Passing::default();
        assert!(!passing.is_open(), "there is no credit");
        passing.on_grant(true, true, 5);
        passing.on_grant(false, false, 10);
        assert!(passing.is_open());
        passing.on_grant(false, false, 10);
        passing.on_grant(true, true, 7);
        assert!(passing.is_open(), "10 were paid, however many there were");
        passing.on_grant(true, true, 7);
        assert!(!passing.is_open());
        passing.on_grant(false, false, 3);
        assert!(!passing.is_open(), "a debt of 4 is not paid with 3");
        passing.on_piece();
        assert!(passing.is_open());
        passing.on_grant(true, false, 7);
        assert!(passing.is_open(), "one within the limit pays nothing");
    }

    #[test]
    fn express_request_follows_one_that_is_not_light() {
        let mut passing = Passing::default();
        assert!(!passing.take_express(true));
        assert!(!passing.take_express(false) && !passing.take_express(false));
        assert!(passing.take_express(true) && !passing.take_express(true));
        assert!(!passing.take_express(false) && passing.take_express(true));
    }
}
