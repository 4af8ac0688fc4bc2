//! Which blocks a command of any range needs, and in which steps: pure arithmetic.

use headworks_core::Op;
use headworks_core::extent::EXTENTS_BYTES;
use headworks_core::request_limits::GRAIN;

use headworks::Command;
use headworks::driver::Span;

/// Addresses of memory that direct I/O takes are multiples of a block, but of no more than this: pools give pages.
const MEMORY_ALIGN: u64 = 4096;

/// The blocks of a volume, which takes ranges that begin and end at multiples of one. A volume that ends within its last block has all of
/// it: bytes beyond its end are written back as they were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WholeBlocks {
    block: u64,
}

/// What is done of a command in one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// First byte of its blocks.
    pub start: u64,
    /// End of its blocks.
    pub end: u64,
    /// Bytes of the command that it carries out, from the first on.
    pub len: u32,
    /// Blocks are written from a buffer; otherwise the command itself goes below, for whole blocks.
    pub is_change: bool,
    /// The first block, and the last one, has bytes that must stay; the same one counts as the first.
    reads: (bool, bool),
    block: u64,
}

/// A command that a job gives to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Reads the first block.
    First,
    /// Reads the last block.
    Second,
    /// Writes or reads all of them.
    Last,
}

impl WholeBlocks {
    /// The largest block of which a part can be written: two of them are one buffer.
    pub const LARGEST: u32 = 64 << 10;

    /// Blocks of `block` bytes.
    ///
    /// # Panics
    /// If `block` is no power of two up to [`Self::LARGEST`].
    #[must_use]
    pub fn new(block: u32) -> Self {
        assert!(block.is_power_of_two() && block <= Self::LARGEST, "limits are rounded by masks");
        Self { block: block.into() }
    }

    fn down(&self, at: u64) -> u64 {
        at & !(self.block - 1)
    }

    fn up(&self, at: u64) -> u64 {
        at.next_multiple_of(self.block)
    }

    /// The blocks of which a command has a part.
    pub(super) fn around(&self, command: &Command) -> (u64, u64) {
        let end = command.offset + u64::from(command.len);
        (self.down(command.offset), self.up(end))
    }

    /// Whether the device takes the command as it is, with its memory.
    pub(super) fn are_whole(&self, command: &Command, spans: &[Span]) -> bool {
        let end = command.offset + u64::from(command.len);
        if matches!(command.op, Op::Flush | Op::Prefetch) {
            return true;
        }
        if self.around(command) != (command.offset, end) {
            return false;
        }
        !command.op.has_data() || self.is_aligned(spans)
    }

    /// Whether every span but the last ends where the next may begin.
    fn is_aligned(&self, spans: &[Span]) -> bool {
        let mask = self.block.min(MEMORY_ALIGN) as usize - 1;
        let (last, others) = match spans {
            [others @ .., last] => (last, others),
            [] => return true,
        };
        last.base() as usize & mask == 0
            && others.iter().all(|span| (span.base() as usize | span.len()) & mask == 0)
    }

    /// What is done first of a command that is not whole, with a buffer of at most `chunk` bytes.
    pub(super) fn plan(&self, command: &Command, chunk: u64) -> Plan {
        let end = command.offset + u64::from(command.len);
        let (start, around) = self.around(command);
        let has_buffer = command.spans > 0;
        match command.op {
            Op::Read => self.copied(command, start, end.min(self.reach(start, chunk)), false),
            Op::Write if has_buffer => {
                self.copied(command, start, end.min(self.reach(start, chunk)), true)
            }
            Op::Write | Op::WriteZeroes => self.zeroed(command, (start, end)),
            Op::Discard => {
                let inner = (self.up(command.offset), self.down(end));
                Plan { len: command.len, ..self.passed(inner.0, inner.1.max(inner.0)) }
            }
            Op::BlockStatus | Op::Flush | Op::Prefetch => {
                let around = match around - start > u64::from(u32::MAX) {
                    true => around - self.block,
                    false => around,
                };
                Plan { len: command.len, ..self.passed(start, around) }
            }
        }
    }

    /// Where a round ends that begins at `start`: at a multiple of [`GRAIN`] of the disk, if the buffer reaches one.
    fn reach(&self, start: u64, chunk: u64) -> u64 {
        let (end, whole) = (start + chunk, (start + chunk) & !(u64::from(GRAIN) - 1));
        if whole > start + self.block { whole } else { end }
    }

    /// Zeros: a part of the first block, or all blocks that are whole, or a part of the last one.
    fn zeroed(&self, command: &Command, (start, end): (u64, u64)) -> Plan {
        let inner = self.down(end);
        if start < command.offset || inner <= start {
            return self.copied(command, start, end.min(start + self.block), true);
        }
        Plan { len: (inner - start) as u32, ..self.passed(start, inner) }
    }

    /// Bytes up to `end` through a buffer.
    fn copied(&self, command: &Command, start: u64, end: u64, is_change: bool) -> Plan {
        let (len, around) = ((end - command.offset) as u32, self.up(end));
        let (first, last) = (start < command.offset, end < around);
        let is_one = around - start <= self.block;
        let reads = match is_change {
            true => (first || is_one && last, last && !is_one),
            false => (false, false),
        };
        Plan { start, end: around, len, is_change, reads, block: self.block }
    }

    /// Whole blocks, as the device has them.
    fn passed(&self, start: u64, end: u64) -> Plan {
        Plan { start, end, len: 0, is_change: false, reads: (false, false), block: self.block }
    }
}

impl Plan {
    /// Whether nothing is to be done.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Bytes of the buffer for a command of `op`.
    pub fn buffer_len(&self, op: Op) -> usize {
        match op {
            _ if self.is_change => (self.end - self.start) as usize,
            Op::Read => (self.end - self.start) as usize,
            Op::BlockStatus => EXTENTS_BYTES as usize,
            _ => 0,
        }
    }

    pub fn first_step(&self) -> Step {
        match self.reads {
            (true, _) => Step::First,
            (false, true) => Step::Second,
            (false, false) => Step::Last,
        }
    }

    pub fn step_after(&self, step: Step) -> Step {
        if step == Step::First && self.reads.1 { Step::Second } else { Step::Last }
    }

    /// The blocks of a step.
    pub fn step_range(&self, step: Step) -> (u64, u64) {
        match step {
            Step::First => (self.start, self.start + self.block),
            Step::Second => (self.end - self.block, self.end),
            Step::Last => (self.start, self.end),
        }
    }

    pub fn step_len(&self, step: Step) -> u64 {
        let (start, end) = self.step_range(step);
        end - start
    }
}
