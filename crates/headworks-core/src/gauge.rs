//! Counters that go up and down.
//!
//! The release profile has no overflow checks: a plain counter that is decremented once too often wraps to a huge number and the
//! limits that depend on it stop working. A gauge panics instead, at the place of the mistake. One comparison a change.

/// Defines a gauge over an unsigned integer.
macro_rules! gauge {
    ($name:ident, $int:ty, $doc:literal) => {
        #[doc = $doc]
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name($int);

        impl $name {
            /// Creates a gauge that starts at `value`.
            pub const fn new(value: $int) -> Self {
                Self(value)
            }

            /// Returns the current value.
            #[inline]
            pub const fn get(self) -> $int {
                self.0
            }

            /// Returns true when the value is zero.
            #[inline]
            pub const fn is_zero(self) -> bool {
                self.0 == 0
            }

            /// Raises the value by `n`; a debug build panics when it exceeds the integer's range.
            #[inline]
            pub fn add(&mut self, n: $int) {
                // Only in debug builds: each unit that is added stands for something that exists, and there are fewer of these.
                debug_assert!(self.0.checked_add(n).is_some(), "a gauge exceeded its range");
                self.0 = self.0.wrapping_add(n);
            }

            /// Lowers the value by `n`; panics when it would fall below zero.
            #[inline]
            pub fn sub(&mut self, n: $int) {
                assert!(n <= self.0, "a gauge fell below zero");
                self.0 -= n;
            }
        }
    };
}

gauge!(Gauge32, u32, "A 32-bit counter that goes up and down and never wraps.");
gauge!(Gauge64, u64, "A 64-bit counter that goes up and down and never wraps.");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauge_follows_additions_and_subtractions() {
        let mut gauge = Gauge32::new(2);
        gauge.add(3);
        gauge.sub(5);
        assert!(gauge.is_zero());
    }

    #[test]
    #[should_panic(expected = "a gauge fell below zero")]
    fn subtraction_below_zero_panics() {
        Gauge64::new(1).sub(2);
    }

    #[test]
    #[should_panic(expected = "a gauge exceeded its range")]
    fn addition_above_range_panics() {
        Gauge32::new(u32::MAX).add(1);
    }
}
