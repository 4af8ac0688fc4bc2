//! Points in time, passed to policy as an argument.
//!
//! Policy reads no clock. A driver passes `now` with each batch: the server reads a monotonic clock once a turn, the simulator
//! takes the time of its next event. Both count nanoseconds from an origin of the driver's choice.

/// A point in time, in nanoseconds since the driver's origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

/// One microsecond in nanoseconds.
pub const US: u64 = 1_000;
/// One millisecond in nanoseconds.
pub const MS: u64 = 1_000_000;
/// One second in nanoseconds.
pub const SEC: u64 = 1_000_000_000;

impl Instant {
    /// The point `ns` nanoseconds later, saturating.
    #[must_use]
    pub const fn after(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// Nanoseconds since `earlier`; 0 if `earlier` is later, as a reading of another thread may be.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
