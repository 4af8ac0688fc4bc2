//! Each device's part of what may be dirty: its part of what was written lately.
//!
//! Completions are counted per device and in sum, and all counts halve every [`PERIOD_NS`] (Linux's floating proportions,
//! with 1 s for its 3: a device that starts beside a busy one has nine tenths of its part after 3 s, not 10). A device that
//! wrote nothing lately has an eighth of what is free, so that it can build a queue and begin to earn. So has each of several
//! while nobody wrote anything: who is slow is known after the first completions only.

use crate::time::{Instant, SEC};

/// The counts halve once in that time.
pub const PERIOD_NS: u64 = SEC;

/// Who wrote how much lately.
#[derive(Clone, Debug)]
pub struct Shares {
    written: Vec<u64>,
    /// Devices that there are: places may be vacant.
    devices: usize,
    total: u64,
    period: Instant,
}

impl Shares {
    /// Counts for so many devices.
    #[must_use]
    pub fn new(devices: usize) -> Self {
        Self { written: vec![0; devices], devices, total: 0, period: Instant(0) }
    }

    /// A place is used anew, or vacant: what was written there counts no more. So many devices there are then.
    pub fn renew(&mut self, device: usize, devices: usize) {
        if self.written.len() <= device {
            self.written.resize(device + 1, 0);
        }
        self.total -= std::mem::take(&mut self.written[device]);
        self.devices = devices;
    }

    /// `blocks` more were written to the device.
    pub fn on_written(&mut self, device: usize, blocks: u32) {
        self.written[device] += u64::from(blocks);
        self.total += u64::from(blocks);
    }

    /// Halves the counts for every period that has passed. While nothing at all is written nothing ages, since then nobody
    /// can have earned more than another.
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
        // The total is the sum of what is left, not its own half: else the parts' rounding adds up beside it.
        self.total = 0;
        for count in &mut self.written {
            *count >>= shift;
            self.total += *count;
        }
    }

    /// The device's part of `whole`.
    #[must_use]
    pub fn of(&self, device: usize, whole: u32) -> u32 {
        let (part, total) = match self.total {
            // Nobody knows yet who is slow, and memory fills faster than anybody can show it.
            0 => (1, if self.devices > 1 { self.devices.max(8) as u64 } else { 1 }),
            total => (self.written[device], total),
        };
        (u128::from(whole) * u128::from(part) / u128::from(total)) as u32
    }
}

/// A device's limit: its part by completions, at least an eighth of what is free and `floor`, at most what the others left.
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
    fn a_dead_device_loses_its_share_and_an_idle_world_nothing() {
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
    fn who_leaves_takes_its_share_along() {
        let mut shares = Shares::new(1);
        shares.renew(2, 2);
        shares.on_written(0, 100);
        shares.on_written(2, 300);
        assert_eq!(shares.of(0, 1000), 250);
        shares.renew(2, 1);
        assert_eq!((shares.of(0, 1000), shares.of(2, 1000)), (1000, 0));
    }

    #[test]
    fn missed_periods_count() {
        let mut shares = Shares::new(2);
        shares.on_written(0, 1 << 20);
        shares.on_written(1, 1 << 10);
        shares.age(Instant(9 * SEC));
        assert_eq!((shares.written[0], shares.written[1]), (1 << 11, 2));
    }

    #[test]
    fn limits_have_a_floor_and_a_ceiling() {
        assert_eq!(device_limit(500, 800, 50, 900), 500);
        assert_eq!(device_limit(5, 800, 50, 900), 100);
        assert_eq!(device_limit(5, 80, 50, 900), 50);
        assert_eq!(device_limit(500, 80, 50, 120), 120);
    }
}
