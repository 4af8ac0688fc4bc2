//! The factor on every writer's rate by the distance from the set point.
//!
//! ```text
//!   pos_ratio
//!   2.0 *
//!       |*
//!       | *
//!       |   *
//!   1.0 |       *  *  *                 flat at the set point: jitter changes no pause
//!       |                 *
//!       |                   *           steep at both ends: deviations are caught
//!       |                    *
//!   0.0 +----------+----------*---->  dirty + writeback + reserved
//!     freerun   setpoint    limit
//! ```
//!
//! Linux multiplies the global curve by a linear one for the device's share, and lifts it when the device's queue runs low. Here the
//! curve is the device's own, over its share of the limit or over what the others left, whichever is less (`share.rs`); a device
//! that runs low is below its own free-run.

/// The fixed-point 1.0 of a `pos_ratio`.
pub const ONE: u64 = 1 << SHIFT;

/// Fractional bits of a `pos_ratio`.
const SHIFT: u32 = 10;

/// `1 + ((setpoint - dirty) / (limit - setpoint))^3` in 1024ths, within 0..=2; 0 at the limit and above.
#[must_use]
pub fn pos_ratio(setpoint: u32, dirty: u32, limit: u32) -> u64 {
    if dirty >= limit {
        return 0;
    }
    debug_assert!(setpoint <= limit, "the set point is below the limit");
    let (setpoint, dirty, limit) = (i64::from(setpoint), i64::from(dirty), i64::from(limit));
    let x = ((setpoint - dirty) << SHIFT) / ((limit - setpoint) | 1);
    // Beyond twice the span the cube is outside 0..=2; the clamp prevents an overflow.
    let x = x.clamp(-2 << SHIFT, 2 << SHIFT);
    let cube = (((x * x) >> SHIFT) * x) >> SHIFT;
    (cube + (1 << SHIFT)).clamp(0, 2 << SHIFT) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cubic_matches_known_values() {
        let known = [
            (150_000, 2045),
            (156_250, 1453),
            (162_500, 1151),
            (168_750, 1039),
            (175_000, 1024),
            (181_250, 1008),
            (187_500, 896),
            (193_750, 594),
        ];
        for (dirty, ratio) in known {
            let ours = pos_ratio(175_000, dirty, 200_000);
            assert!(ours.abs_diff(ratio) <= 1, "{dirty}: {ours}, known {ratio}");
        }
        assert_eq!(pos_ratio(175_000, 200_000, 200_000), 0);
    }

    #[test]
    fn position_ratio_never_rises_and_stays_in_range() {
        for (setpoint, limit) in [(175_000, 200_000), (3, 4), (12_000, 12_700), (7, 7), (0, 1)] {
            let mut last = 2 * ONE;
            for dirty in (0..limit + limit / 4 + 2).step_by(limit as usize / 4000 + 1) {
                let ratio = pos_ratio(setpoint, dirty, limit);
                assert!(ratio <= last, "{setpoint} {limit}: {last} -> {ratio} at {dirty}");
                last = ratio;
            }
            assert_eq!(last, 0);
        }
    }

    #[test]
    fn largest_pool_does_not_overflow() {
        assert_eq!(pos_ratio(u32::MAX - 1, 0, u32::MAX), 2 * ONE);
        assert!(pos_ratio(1, u32::MAX - 1, u32::MAX) <= 2);
    }
}
