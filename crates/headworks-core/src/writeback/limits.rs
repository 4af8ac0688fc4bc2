//! How much may be dirty: the thresholds that follow from the tunables.
//!
//! ```text
//!     0 ------ background ------ freerun ------ setpoint ------ limit -- threshold
//!       idle     flusher runs     writers pause   pos_ratio = 1   0       only rt may go on to here
//! ```
//!
//! The pool is a fixed number of blocks, so the thresholds are constants between two settings: nothing an allocation does
//! elsewhere can pull them away from under the writers. What a setting takes away goes in small steps ([`smoothed`]).
//!
//! Invariants, whatever is configured: `background < freerun < setpoint < limit <= threshold` once the threshold has 64
//! blocks or more, and the control scope (`limit - freerun`) is at least 3/32 of the threshold.

use super::DirtyOptions;

/// Bytes of a block, the unit of everything in this folder.
pub const BLOCK: u64 = 4096;

/// The regions, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thresholds {
    /// `nr_dirty_threshold`: the hard bound on dirty + writeback + reserved, for everybody.
    pub thresh: u32,
    /// `nr_dirty_background_threshold`: above it the flusher runs. Only what is dirty counts, not what is being written.
    pub background: u32,
    /// Up to here nobody pauses.
    pub freerun: u32,
    /// Where the control holds the position.
    pub setpoint: u32,
    /// The hard bound for all but `rt`: a 32nd lower, so that a real-time writer finds room beside any number of others.
    pub limit: u32,
}

impl Thresholds {
    /// The thresholds of a pool of `dirtyable` blocks.
    ///
    /// A background threshold not below the dirty threshold becomes half of it, as in Linux. A thin gap between them
    /// would make the control scope thin: the background is at most 3/4 of the threshold, so that free-run ends at 7/8.
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
        Self { thresh, background, freerun, setpoint: middle(freerun, limit), limit }
    }

    /// The same regions with the threshold at `thresh`: while a lowered limit is approached ([`smoothed`]).
    #[must_use]
    pub fn raised_to(self, thresh: u32) -> Self {
        if thresh <= self.thresh {
            return self;
        }
        Self::from_pair(thresh, part(self.background, thresh, self.thresh))
    }

    /// One device's regions, where `limit` of the whole limit is its own.
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

    /// Up to here a real-time writer does not pause: the free-run of Linux's raised limits (a quarter and a 32nd more
    /// of both), which is where the others' limit ends.
    #[must_use]
    pub fn freerun_rt(self) -> u32 {
        let bonus =
            |region: u32| region.saturating_add(region / 4).saturating_add(self.thresh / 32);
        middle(bonus(self.thresh), bonus(self.background)).min(self.limit)
    }
}

/// The hard limit one 200 ms step after it was `limit`, on its way to `thresh` with `used` blocks in use.
///
/// Up at once, down by a 32nd of the distance (a time constant of 6.4 s): a lowered setting must not block every writer
/// until the device has drained the difference.
#[must_use]
pub fn smoothed(limit: u32, thresh: u32, used: u32) -> u32 {
    let target = thresh.max(used);
    if limit <= target {
        return limit.max(thresh);
    }
    // The tail in steps that end: the position keeps the target just below the limit, and a 32nd of that is nothing.
    let step = ((limit - target) / 32).max(thresh / 1024).max(1);
    limit - step.min(limit - target)
}

/// `bytes` if given, else `ratio` percent of `dirtyable`; never more than there is.
fn blocks(bytes: u64, ratio: u32, dirtyable: u32) -> u32 {
    let wanted = match bytes {
        0 => u64::from(dirtyable) * u64::from(ratio) / 100,
        _ => bytes.div_ceil(BLOCK),
    };
    wanted.min(u64::from(dirtyable)) as u32
}

/// `value * numerator / denominator`.
fn part(value: u32, numerator: u32, denominator: u32) -> u32 {
    (u64::from(value) * u64::from(numerator) / u64::from(denominator.max(1))) as u32
}

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
    fn defaults_are_the_ratios_of_linux() {
        let regions = with(|_| ());
        assert_eq!(regions.thresh, 209_715);
        assert_eq!(regions.background, 104_857);
        assert_eq!(regions.freerun, 157_286);
        assert_eq!(regions.limit, 209_715 - 6_553);
        assert_eq!(regions.setpoint, (157_286 + 203_162) / 2);
    }

    #[test]
    fn bytes_go_before_ratios_and_are_rounded_up() {
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
    fn a_background_above_the_threshold_becomes_half_of_it() {
        let regions = with(|options| options.dirty_background_ratio = 30);
        assert_eq!(regions.background, regions.thresh / 2);
    }

    #[test]
    fn real_time_runs_free_to_the_end_of_the_others() {
        let regions = with(|_| ());
        assert!(regions.limit - regions.freerun_rt() <= 3, "{}", regions.freerun_rt());
    }

    #[test]
    fn a_lowered_limit_is_approached_in_steps() {
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
