//! Latencies in a fixed array: log-linear, 32 steps to each doubling, so a percentile is right within 3 %.
//!
//! ```text
//!   0..32: one bucket each | 32..64: 32 buckets of 1 | 64..128: 32 of 2 | 128..256: 32 of 4 | ...
//! ```

/// Buckets per doubling, as a power of two: 2^5 = 32.
const STEP_BITS: u32 = 5;
const STEPS: usize = 1 << STEP_BITS;
/// Largest value is 2^40 ns, 18 minutes; longer values count as that.
const BUCKETS: usize = (40 - STEP_BITS as usize + 1) * STEPS;

/// A histogram of latencies in nanoseconds.
#[derive(Clone, Debug)]
pub struct Histogram {
    buckets: Box<[u64]>,
    count: u64,
    sum: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: vec![0; BUCKETS].into_boxed_slice(), count: 0, sum: 0, max: 0 }
    }
}

impl Histogram {
    /// Records one latency in nanoseconds.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.buckets[bucket(ns)] += 1;
        self.count += 1;
        self.sum += ns;
        self.max = self.max.max(ns);
    }

    /// Adds all counts of `other`.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    /// Returns the number of recorded latencies.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the largest latency.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Returns the mean; 0 when empty.
    #[must_use]
    pub fn mean(&self) -> u64 {
        self.sum.checked_div(self.count).unwrap_or(0)
    }

    /// Returns the value that `per_mille` of 1000 do not exceed; 0 when empty.
    #[must_use]
    pub fn percentile(&self, per_mille: u64) -> u64 {
        let rank = (u128::from(self.count) * u128::from(per_mille)).div_ceil(1000) as u64;
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank.max(1) {
                return upper(index).min(self.max);
            }
        }
        0
    }
}

#[inline]
fn bucket(ns: u64) -> usize {
    if ns < STEPS as u64 {
        return ns as usize;
    }
    let shift = ns.ilog2() - STEP_BITS;
    let index = ((shift as usize) << STEP_BITS) + (ns >> shift) as usize;
    index.min(BUCKETS - 1)
}

/// Returns the largest value of a bucket.
fn upper(index: usize) -> u64 {
    let shift = (index >> STEP_BITS).saturating_sub(1);
    let step = index - (shift << STEP_BITS);
    ((step as u64 + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::prng::Prng;

    #[test]
    fn value_lies_within_its_bucket() {
        let mut prng = Prng::new(1);
        for value in (0..5000).chain((0..10_000).map(|_| prng.next() >> prng.between(24, 63))) {
            let index = bucket(value);
            assert!(value <= upper(index), "{value}");
            assert!(index == 0 || value > upper(index - 1), "{value}");
            assert!(upper(index) - value <= value / 32, "{value}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_mean_and_sum_add_up() {
        let (mut low, mut high) = (Histogram::default(), Histogram::default());
        assert_eq!((low.percentile(500), low.mean()), (0, 0));
        (1..=900).for_each(|ns| low.record(ns));
        (901..=1000).for_each(|ns| high.record(ns));
        low.add(&high);
        assert_eq!((low.count(), low.mean(), low.max()), (1000, 500, 1000));
        assert!((500..=516).contains(&low.percentile(500)));
        assert!((990..=1000).contains(&low.percentile(990)));
        assert_eq!(low.percentile(1000), 1000);
    }
}
