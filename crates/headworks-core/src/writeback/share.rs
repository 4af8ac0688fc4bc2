//! Each device's share of the dirty limit, in proportion to its recent completions.
//!
//! Completions are counted per device and in sum, and all counts halve every [`PERIOD_NS`]. These are Linux's floating proportions
//! with a period of 1 s for its 3: a device that starts beside a busy one has nine tenths of its share after 3 s, not 10. A
//! device without recent completions has an eighth of the free blocks, so that it can build a queue. So has each of several
//! devices before the first completions.
//!
//! Invariant: `total` is the sum of the counts.

use crate::time::{Instant, SEC};

/// The time in which counts halve.
pub const PERIOD_NS: u64 = SEC;

/// Recent completions of all devices.
#[derive(Clone, Debug)]
pub struct Shares {
    written: Vec<u64>,
    /// Number of devices that exist; `written` may have free slots.
    devices: usize,
    total: u64,
    period: Instant,
}

impl Shares {
    /// Creates the counts of `devices` devices.
    #[must_use]
    pub fn new(devices: usize) -> Self {
        Self { written: vec![0; devices], devices, total: 0, period: Instant(0) }
    }

    /// Clears the count of a slot that was added or removed; `devices` exist from now on.
    pub fn renew(&mut self, device: usize, devices: usize) {
        if self.written.len() <= device {
            self.written.resize(device + 1, 0);
        }
        assert!(self.written[device] <= self.total, "total < count of one device");
        self.total -= std::mem::take(&mut self.written[device]);
        self.devices = devices;
    }

    /// Counts blocks written to the device.
    pub fn on_written(&mut self, device: usize, blocks: u32) {
        self.written[device] += u64::from(blocks);
        self.total += u64::from(blocks);
        debug_assert!(self.total >= self.written[device]);
    }

    /// Halves the counts once for every elapsed period. Counts that would all become 0 are kept, so that shares survive idle
    /// time.
    pub fn age(&mut self, now: Instant) {
        let periods = now.since(self.period) / PERIOD_NS;
        if periods == 0 {
            return;
        }
        self.period = now;
        let shift = periods.min(63) as u32;
        if self.total >> shift == 0 {
            return;
        }
        // The total is summed anew, not halved: otherwise the rounding of the parts adds up.
        self.total = 0;
        for count in &mut self.written {
            *count >>= shift;
            self.total += *count;
        }
    }

    /// The device's share of `whole`.
    #[must_use]
    pub fn of(&self, device: usize, whole: u32) -> u32 {
        let (part, total) = match self.total {
            // Before the first completion slow devices are unknown, and memory fills faster than they become known.
            0 => (1, if self.devices > 1 { self.devices.max(8) as u64 } else { 1 }),
            total => (self.written[device], total),
        };
        debug_assert!(part <= total, "a share exceeds the whole");
        (u128::from(whole) * u128::from(part) / u128::from(total)) as u32
    }
}

/// A device's limit: its share by completions, at least an eighth of the free blocks and `floor`, at most what the others left.
#[must_use]
pub fn device_limit(part: u32, free: u32, floor: u32, left: u32) -> u32 {
    part.max(free / 8).max(floor).min(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_follow_completions() {
        let mut shares = Shares::new(2);
        assert_eq!(shares.of(0, 1000), 125);
        for second in 0..5 {
            shares.age(Instant(second * SEC));
            shares.on_written(0, 10_000);
            shares.on_written(1, 1_000);
        }
        // The counts are whole numbers: halving loses less than one of thousands.
        assert!((1000..=1001).contains(&shares.of(0, 1100)));
        assert!((99..=100).contains(&shares.of(1, 1100)));
    }

    #[test]
    fn dead_device_loses_its_share_and_idle_ones_keep_theirs() {
        let mut shares = Shares::new(2);
        shares.on_written(0, 100_000);
        shares.age(Instant(100 * SEC));
        assert_eq!(shares.of(0, 1000), 1000);
        for second in 101..111 {
            shares.on_written(1, 100_000);
            shares.age(Instant(second * SEC));
        }
        assert!(shares.of(0, 1000) <= 1, "{}", shares.of(0, 1000));
        assert!(shares.of(1, 1000) >= 998);
    }

    #[test]
    fn removed_device_takes_its_share_along() {
        let mut shares = Shares::new(1);
        shares.renew(2, 2);
        shares.on_written(0, 100);
        shares.on_written(2, 300);
        assert_eq!(shares.of(0, 1000), 250);
        shares.renew(2, 1);
        assert_eq!((shares.of(0, 1000), shares.of(2, 1000)), (1000, 0));
    }

    #[test]
    fn missed_periods_are_counted() {
        let mut shares = Shares::new(2);
        shares.on_written(0, 1 << 20);
        shares.on_written(1, 1 << 10);
        shares.age(Instant(9 * SEC));
        assert_eq!((shares.written[0], shares.written[1]), (1 << 11, 2));
    }

    #[test]
    fn device_limits_have_floor_and_ceiling() {
        assert_eq!(device_limit(500, 800, 50, 900), 500);
        assert_eq!(device_limit(5, 800, 50, 900), 100);
        assert_eq!(device_limit(5, 80, 50, 900), 50);
        assert_eq!(device_limit(500, 80, 50, 120), 120);
    }
}
