//! A token bucket of commands, as clouds sell them: a rate that is always granted, and credits for bursts above it.
//!
//! ```text
//!   credits (at most credits_max) <--- iops a second
//!      | command of n units: n credits, and n / burst_iops seconds since the command before
//!      `-- too few: the command waits until they are there
//! ```
//!
//! Credits are counted in billionths, so a nanosecond adds exactly `iops` of them. Invariants: a command is granted no earlier than the one
//! before it; a busy disk is granted `iops` a second in the long run, and a full bucket lasts for `credits / (burst_iops - iops)` seconds.

use headworks_core::Instant;

/// Billionths of a credit.
const CREDIT: u64 = 1_000_000_000;

/// Commands in a second, and how many more for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IopsBudget {
    /// Units in a second that are always granted, at least 1.
    pub iops: u64,
    /// Units in a second while there are credits, at least `iops`.
    pub burst_iops: u64,
    /// Credits at the start, at most `credits_max`.
    pub credits: u64,
    /// The most credits that are kept, up to a billion.
    pub credits_max: u64,
    /// Bytes of a unit: a command counts as one for each that it begins, at least one.
    pub unit_bytes: u64,
}

impl IopsBudget {
    /// So many units in a second that no disk is held back.
    pub const UNLIMITED: u64 = 100_000_000;

    /// Of a disk that counts no commands.
    pub const NONE: Self = Self {
        iops: Self::UNLIMITED,
        burst_iops: Self::UNLIMITED,
        credits: 0,
        credits_max: 0,
        unit_bytes: 256 << 10,
    };
}

/// The bucket of a disk.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    budget: IopsBudget,
    /// Billionths of credits at `since`, which may be ahead of the present.
    credits: u64,
    since: Instant,
}

impl TokenBucket {
    /// The bucket of a disk at time 0; none if it counts no commands.
    pub fn new(budget: IopsBudget) -> Option<Self> {
        if budget.iops == IopsBudget::UNLIMITED {
            return None;
        }
        assert!(budget.iops > 0 && budget.burst_iops >= budget.iops, "a disk takes commands");
        assert!(budget.unit_bytes > 0 && budget.credits_max <= 1_000_000_000, "units have bytes");
        let credits = budget.credits.min(budget.credits_max) * CREDIT;
        Some(Self { budget, credits, since: Instant(0) })
    }

    /// Returns when a command of `len` bytes that comes at `now` is granted.
    pub fn take(&mut self, now: Instant, len: u64) -> Instant {
        let IopsBudget { iops, burst_iops, credits_max, unit_bytes, .. } = self.budget;
        let cost = len.div_ceil(unit_bytes).max(1).saturating_mul(CREDIT);
        let start = self.since.max(now);
        // A command that follows a pause is granted at once, whatever the rate: the bucket holds a command's credits at least.
        let room = (credits_max * CREDIT).max(cost);
        let refill = u128::from(start.since(self.since)) * u128::from(iops);
        let credits = (u128::from(self.credits) + refill).min(room.into()) as u64;
        // Grants follow each other at the burst's rate, or as credits come.
        let missing = cost.saturating_sub(credits);
        let granted = start.after(missing.div_ceil(iops));
        let spaced = granted.after(cost / burst_iops);
        let more = u128::from(spaced.since(start)) * u128::from(iops);
        let left = u128::from(credits) + more - u128::from(cost);
        self.credits = left.min(room.into()) as u64;
        self.since = spaced;
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GP2: IopsBudget = IopsBudget {
        iops: 300,
        burst_iops: 3_000,
        credits: 54_000,
        credits_max: 54_000,
        unit_bytes: 256 << 10,
    };

    /// Times of `count` commands of a disk that is never idle.
    fn grants(budget: IopsBudget, count: u64, len: u64) -> Vec<Instant> {
        let mut bucket = TokenBucket::new(budget).unwrap();
        let mut now = Instant(0);
        let mut next = || {
            now = bucket.take(now, len);
            now
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn burst_lasts_for_its_credits_and_the_rate_holds_afterwards() {
        let times = grants(GP2, 100_000, 4096);
        let burst_ends = times.windows(2).position(|two| two[1].since(two[0]) > 1_000_000);
        let seconds = times[burst_ends.unwrap()].0 as f64 / 1e9;
        assert!((seconds / (54_000.0 / 2_700.0) - 1.0).abs() < 0.01, "a burst of {seconds:.2} s");
        let last = &times[70_000..];
        let rate = (last.len() - 1) as f64 * 1e9 / last[last.len() - 1].since(last[0]) as f64;
        assert!((rate / 300.0 - 1.0).abs() < 0.005, "{rate:.2} a second in the long run");
    }

    #[test]
    fn bucket_without_credits_grants_its_rate_from_the_start() {
        let times = grants(IopsBudget { credits: 0, ..GP2 }, 3_000, 4096);
        let rate = 3_000.0 * 1e9 / times[2_999].0 as f64;
        assert!((rate / 300.0 - 1.0).abs() < 0.005, "{rate:.2}");
    }

    #[test]
    fn large_command_counts_as_its_units() {
        let times = grants(IopsBudget { credits: 0, ..GP2 }, 300, 1 << 20);
        let rate = 300.0 * 1e9 / times[299].0 as f64;
        assert!((rate / 75.0 - 1.0).abs() < 0.01, "{rate:.2}");
    }

    #[test]
    fn idle_disk_earns_credits_up_to_its_most() {
        let mut bucket = TokenBucket::new(IopsBudget { credits: 0, ..GP2 }).unwrap();
        let mut now = Instant(100 * 1_000_000_000);
        let since = now;
        for _ in 0..30_000 {
            now = bucket.take(now, 4096);
        }
        // 100 s have earned 30,000.
        let rate = 30_000.0 * 1e9 / now.since(since) as f64;
        assert!((rate / 3_000.0 - 1.0).abs() < 0.01, "{rate:.2}");
    }
}
