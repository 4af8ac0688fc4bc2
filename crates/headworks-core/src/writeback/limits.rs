//! The thresholds of dirty blocks that follow from the tunables.
//!
//! ```text
//!     0 ------ background ------ freerun ------ setpoint ------ limit -- threshold
//!       idle     flusher runs     writers pause   pos_ratio = 1   0       real-time writers only
//! ```
//!
//! The pool is a fixed number of blocks, so the thresholds are constants between two changes of the tunables; other allocations do
//! not move them. A lowered threshold is approached in small steps ([`smoothed`]).
//!
//! Invariants for every configuration: `background < freerun < setpoint < limit <= threshold` once the threshold has 64
//! blocks or more, and the control scope (`limit - freerun`) is at least 3/32 of the threshold.

use super::DirtyOptions;

/// Bytes of a block, the unit of all counts of write-back.
pub const BLOCK: u64 = 4096;

/// The thresholds of dirty blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thresholds {
    /// `nr_dirty_threshold`: the hard bound on dirty + writeback + reserved.
    pub thresh: u32,
    /// `nr_dirty_background_threshold`: the flusher runs above it. Blocks under writeback do not count.
    pub background: u32,
    /// The end of free-run: below it no writer pauses.
    pub freerun: u32,
    /// The set point of the control.
    pub setpoint: u32,
    /// The hard bound for all classes but real time: a 32nd lower, so that real-time writers always find room.
    pub limit: u32,
}

impl Thresholds {
    /// The thresholds of a pool of `dirtyable` blocks.
    ///
    /// A background threshold that is not below the dirty threshold becomes half of it, as in Linux. It is at most 3/4 of the
    /// threshold, so that free-run ends at 7/8 and the control scope has a minimum width.
    #[must_use]
    pub fn of(options: &DirtyOptions, dirtyable: u32) -> Self {
        let thresh = blocks(options.dirty_bytes, options.dirty_ratio, dirtyable).max(2);
        let background =
            blocks(options.dirty_background_bytes, options.dirty_background_ratio, dirtyable);
        Self::from_pair(thresh, background)
    }

    fn from_pair(thresh: u32, background: u32) -> Self {
        let background = if background >= thresh { thresh / 2 } else { background };
        let background = background.min(thresh - thresh / 4);
        let limit = thresh - thresh / 32;
        let freerun = middle(thresh, background);
        let setpoint = middle(freerun, limit);
        assert!(background <= freerun && limit <= thresh && setpoint <= thresh);
        assert!(thresh < 64 || background < freerun && freerun < setpoint && setpoint < limit);
        Self { thresh, background, freerun, setpoint, limit }
    }

    /// The thresholds scaled up to `thresh`, while a lowered limit is approached (`smoothed`).
    #[must_use]
    pub fn raised_to(self, thresh: u32) -> Self {
        if thresh <= self.thresh {
            return self;
        }
        Self::from_pair(thresh, part(self.background, thresh, self.thresh))
    }

    /// The thresholds of one device whose part of the limit is `limit`.
    #[must_use]
    pub fn share(self, limit: u32) -> Self {
        let of = |region| part(region, limit, self.limit);
        Self {
            thresh: of(self.thresh),
            background: of(self.background),
            freerun: of(self.freerun),
            setpoint: of(self.setpoint),
            limit,
        }
    }

    /// The end of free-run for real-time writers: that of Linux's raised limits (a quarter and a 32nd more of both), at most the
    /// other classes' limit.
    #[must_use]
    pub fn freerun_rt(self) -> u32 {
        let bonus =
            |region: u32| region.saturating_add(region / 4).saturating_add(self.thresh / 32);
        middle(bonus(self.thresh), bonus(self.background)).min(self.limit)
    }
}

/// The next value, after 200 ms, of a limit that approaches `thresh` with `used` blocks in use.
///
/// It rises at once and falls by a 32nd of the distance (a time constant of 6.4 s), so that a lowered tunable does not block every
/// writer until the device has drained the difference.
#[must_use]
pub fn smoothed(limit: u32, thresh: u32, used: u32) -> u32 {
    let target = thresh.max(used);
    if limit <= target {
        return limit.max(thresh);
    }
    // A minimum step ends the tail: the position keeps the target just below the limit, and a 32nd of that rounds to 0.
    let step = ((limit - target) / 32).max(thresh / 1024).max(1);
    limit - step.min(limit - target)
}

/// `bytes` if not 0, else `ratio` per cent of `dirtyable`; at most `dirtyable`.
fn blocks(bytes: u64, ratio: u32, dirtyable: u32) -> u32 {
    let wanted = match bytes {
        0 => u64::from(dirtyable) * u64::from(ratio) / 100,
        _ => bytes.div_ceil(BLOCK),
    };
    assert!(bytes > 0 || ratio <= 100, "a ratio is at most the pool");
    wanted.min(u64::from(dirtyable)) as u32
}

/// `value * numerator / denominator`.
fn part(value: u32, numerator: u32, denominator: u32) -> u32 {
    (u64::from(value) * u64::from(numerator) / u64::from(denominator.max(1))) as u32
}

/// The mean of two thresholds.
const fn middle(a: u32, b: u32) -> u32 {
    ((a as u64 + b as u64) / 2) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of a 4 GiB pool.
    const POOL: u32 = 1 << 20;

    fn with(change: impl Fn(&mut DirtyOptions)) -> Thresholds {
        let mut options = DirtyOptions::default();
        change(&mut options);
        Thresholds::of(&options, POOL)
    }

    #[test]
    fn defaults_match_linux_ratios() {
        let regions = with(|_| ());
        assert_eq!(regions.thresh, 209_715);
        assert_eq!(regions.background, 104_857);
        assert_eq!(regions.freerun, 157_286);
        assert_eq!(regions.limit, 209_715 - 6_553);
        assert_eq!(regions.setpoint, (157_286 + 203_162) / 2);
    }

    #[test]
    fn byte_limits_precede_ratios_and_are_rounded_up() {
        let regions = with(|options| {
            options.dirty_bytes = (64 << 20) + 1;
            options.dirty_background_bytes = 16 << 20;
        });
        assert_eq!((regions.thresh, regions.background), (16_385, 4_096));
        assert_eq!(with(|options| options.dirty_bytes = u64::MAX).thresh, POOL);
        assert_eq!(with(|options| options.dirty_bytes = 1).thresh, 2);
    }

    #[test]
    fn any_setting_leaves_a_control_scope() {
        for (ratio, background) in [(20, 20), (20, 90), (20, 19), (1, 0), (100, 99), (5, 4)] {
            let regions = with(|options| {
                options.dirty_ratio = ratio;
                options.dirty_background_ratio = background;
            });
            assert!(regions.background < regions.freerun, "{regions:?}");
            assert!(regions.freerun < regions.setpoint && regions.setpoint < regions.limit);
            assert!(regions.limit - regions.freerun >= regions.thresh * 3 / 32 - 2, "{regions:?}");
            assert!(regions.freerun_rt() <= regions.limit);
        }
    }

    #[test]
    fn background_above_threshold_becomes_half_of_it() {
        let regions = with(|options| options.dirty_background_ratio = 30);
        assert_eq!(regions.background, regions.thresh / 2);
    }

    #[test]
    fn real_time_free_run_ends_near_the_limit() {
        let regions = with(|_| ());
        assert!(regions.limit - regions.freerun_rt() <= 3, "{}", regions.freerun_rt());
    }

    #[test]
    fn lowered_limit_is_approached_in_steps() {
        assert_eq!(smoothed(1000, 2000, 0), 2000);
        assert_eq!(smoothed(2000, 1000, 0), 2000 - 31);
        assert_eq!(smoothed(2000, 1000, 1968), 2000 - 1);
        let mut limit = 100_000;
        let steps = (0..).take_while(|_| {
            let next = smoothed(limit, 50_000, 0);
            std::mem::replace(&mut limit, next) != next
        });
        let steps = steps.count();
        assert_eq!(limit, 50_000);
        assert!((100..250).contains(&steps), "{steps}");
    }
}
