//! What shares of a device are counted in.

use super::{CommandKind, DeviceCost};
use crate::tunables::choice;

/// Bytes that a request costs at least when bytes are shared: up to that many a device is as busy as with fewer.
const BYTES_MIN: u32 = 4096;

/// What shares of a device are counted in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum ShareUnit {
    /// Device time by the learned cost model: a small write on a disk counts for its seek.
    #[default]
    Time = 0,
    /// Bytes, at least 4 KiB a request.
    Bytes = 1,
}

impl ShareUnit {
    /// Every unit, in the order of their codes.
    pub const ALL: [Self; 2] = [Self::Time, Self::Bytes];

    /// The words of the tunable, in the order of their codes.
    pub const NAMES: [&'static str; 2] = ["time", "bytes"];

    /// Returns what a request of `commands` commands and `bytes` bytes costs its shares.
    #[inline]
    #[must_use]
    pub fn cost(self, model: &DeviceCost, kind: CommandKind, commands: u32, bytes: u32) -> u64 {
        match self {
            Self::Time => model.of(kind, commands, bytes),
            Self::Bytes => bytes.max(BYTES_MIN).into(),
        }
    }

    /// Returns what device time that was measured costs its shares; where bytes count, as much as the smallest request.
    #[must_use]
    pub fn cost_of_time(self, time_ns: u64) -> u64 {
        match self {
            Self::Time => time_ns,
            Self::Bytes => BYTES_MIN.into(),
        }
    }
}

choice!(ShareUnit);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bio::Op;

    #[test]
    fn bytes_cost_their_number_and_time_the_model() {
        let (model, kind) = (DeviceCost::default(), CommandKind::new(Op::Read, false));
        assert_eq!(ShareUnit::Bytes.cost(&model, kind, 8, 1 << 20), 1 << 20);
        assert_eq!(ShareUnit::Bytes.cost(&model, kind, 1, 512), 4096);
        assert_eq!(ShareUnit::Time.cost(&model, kind, 8, 1 << 20), model.of(kind, 8, 1 << 20));
    }
}
