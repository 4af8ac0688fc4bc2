//! The device time of a request: what it costs all others that wait for the device.
//!
//! ```text
//!   cost = base (first command) + (commands - 1) * base (sequential) + bytes * cost of a byte
//! ```
//!
//! The linear model of Linux's iocost: a base for random and for sequential commands and a cost a byte, for reads and for
//! writes. The unit is a nanosecond of a busy device: with all costs right, a busy device finishes one nanosecond of cost in
//! one nanosecond, however many commands it works on at once. Nothing is measured beforehand: [`CostLearner`] corrects the
//! model while requests wait for the device, and only then, because only then does it matter.
//!
//! Invariants: every base and every byte's cost lies within its bounds, so a request's cost is at least 100
//! ns and no product overflows.

mod learn;
mod share_unit;
mod streams;

use crate::bio::Op;

pub use learn::CostLearner;
pub use share_unit::ShareUnit;
pub(crate) use streams::Streams;

/// Fraction bits of the cost of a byte.
const BYTE_BITS: u32 = 20;

/// Least and greatest base of a command: 100 ns and 2 s.
const BASE_NS: (f64, f64) = (100.0, 2e9);

/// Least and greatest cost of a byte: free, and that of 1 MB/s.
const BYTE_NS: (f64, f64) = (0.0, 1e3);

/// Base of a command that moves a head: at least 1 ms.
const SEEK_NS: u32 = 1_000_000;

/// The kinds of commands that the model tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandKind {
    /// A read or a block status query; otherwise a write, discard or zeroing.
    pub read: bool,
    /// It begins where the command before it of the same connection ended.
    pub sequential: bool,
}

impl CommandKind {
    /// Returns the kind of an operation.
    #[must_use]
    pub const fn new(op: Op, sequential: bool) -> Self {
        let read = matches!(op, Op::Read | Op::BlockStatus | Op::Prefetch);
        Self { read, sequential }
    }

    /// Index of its base in [`DeviceCost::base_ns`].
    const fn base(self) -> usize {
        2 * !self.read as usize + self.sequential as usize
    }
}

/// The linear cost model of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceCost {
    /// Base of a command in nanoseconds: read random, read sequential, write random, write sequential.
    base_ns: [u32; 4],
    /// Nanoseconds of a byte read and of a byte written, with [`BYTE_BITS`] fraction bits.
    byte: [u64; 2],
}

impl Default for DeviceCost {
    /// A fast disk: 2 us a command and 2 GB/s. It makes a request of 4 KiB cost as much as 8 KiB more of a large one.
    fn default() -> Self {
        let byte = 1 << (BYTE_BITS - 1);
        Self { base_ns: [2000; 4], byte: [byte; 2] }
    }
}

impl DeviceCost {
    /// Returns the nanoseconds of device time of a request: `commands` commands, of which the first is of this kind and the
    /// others are sequential, with `bytes` bytes together.
    #[inline]
    #[must_use]
    pub fn of(&self, kind: CommandKind, commands: u32, bytes: u32) -> u64 {
        debug_assert!(commands > 0, "a request has at least one command");
        let others = CommandKind { sequential: true, ..kind };
        let base = u64::from(self.base_ns[kind.base()])
            + u64::from(commands - 1) * u64::from(self.base_ns[others.base()]);
        base + ((u64::from(bytes) * self.byte[usize::from(!kind.read)]) >> BYTE_BITS)
    }

    /// Returns the bytes that take twice as long as the base of a random command, if that is a seek: cut shorter, commands that
    /// others come between cost a disk much of its throughput. 0 for a device without seeks, whose bases are small and not
    /// well known while all commands are large.
    #[must_use]
    pub fn bytes_of_a_seek(&self) -> u32 {
        let bytes = |base: u32, byte: u64| match base {
            ..SEEK_NS => 0,
            _ => (u64::from(base) << (BYTE_BITS + 1)) / byte.max(1),
        };
        let most = bytes(self.base_ns[0], self.byte[0]).max(bytes(self.base_ns[2], self.byte[1]));
        most.min(1 << 30) as u32
    }

    /// Returns the model as words for a record.
    #[must_use]
    pub const fn words(&self) -> [u64; 4] {
        let [a, b, c, d] = self.base_ns;
        [(a as u64) << 32 | b as u64, (c as u64) << 32 | d as u64, self.byte[0], self.byte[1]]
    }

    /// Reads [`DeviceCost::words`]; `None` for a model out of bounds.
    #[must_use]
    pub fn from_words([a, b, c, d]: [u64; 4]) -> Option<Self> {
        let base_ns = [(a >> 32) as u32, a as u32, (b >> 32) as u32, b as u32];
        let (least, most) = (BASE_NS.0 as u32, BASE_NS.1 as u32);
        let byte_max = (BYTE_NS.1 as u64) << BYTE_BITS;
        let sound = base_ns.iter().all(|base| (least..=most).contains(base));
        (sound && c <= byte_max && d <= byte_max).then_some(Self { base_ns, byte: [c, d] })
    }

    /// Returns the bases in nanoseconds: read random, read sequential, write random, write sequential.
    #[must_use]
    pub const fn base_ns(&self) -> [u32; 4] {
        self.base_ns
    }

    /// Returns the picoseconds of a byte read and of a byte written.
    #[must_use]
    pub const fn byte_ps(&self) -> [u64; 2] {
        [(self.byte[0] * 1000) >> BYTE_BITS, (self.byte[1] * 1000) >> BYTE_BITS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_is_base_of_first_command_and_sequential_base_of_others() {
        let base_ns = [8000, 100, 5000, 200];
        let cost = DeviceCost { base_ns, byte: [2 << BYTE_BITS, 1 << (BYTE_BITS - 1)] };
        let kind = |read, sequential| CommandKind { read, sequential };
        assert_eq!(cost.of(kind(true, false), 1, 4096), 8000 + 8192);
        assert_eq!(cost.of(kind(true, true), 1, 4096), 100 + 8192);
        assert_eq!(cost.of(kind(false, false), 8, 1 << 20), 5000 + 7 * 200 + (1 << 19));
        assert_eq!(cost.byte_ps(), [2000, 500]);
        assert_eq!(cost.bytes_of_a_seek(), 0, "no seek");
        let disk = DeviceCost { base_ns: [5_000_000; 4], byte: [10 << BYTE_BITS; 2] };
        assert_eq!(disk.bytes_of_a_seek(), 1_000_000, "5 ms at 10 ns a byte, twice");
        assert_eq!(DeviceCost::from_words(cost.words()), Some(cost));
        assert_eq!(DeviceCost::from_words([0; 4]), None, "a command is not free");
    }
}
