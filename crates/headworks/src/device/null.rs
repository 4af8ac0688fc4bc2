//! `null:` does nothing, at once: what is left is the cost of the path above.
//!
//! Writes, flushes, discards and write-zeroes succeed; the disk reads as zeros. A read that may be answered with a hole is;
//! any other gets its zeros, lest earlier content of the buffer leak. All of it is told to be data: a cache above may
//! hold what was written, and is not wrong to.

use headworks_core::{BioFlags, Completion, Instant, IoError, Op, QueueOptions, VolumeId};

use super::{CommandBatch, Device, DeviceIo};

/// A disk without bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullDevice;

impl NullDevice {
    /// What its queue should know: nothing is volatile and everything is possible.
    #[must_use]
    pub fn queue_options() -> QueueOptions {
        QueueOptions { write_cache: false, fua: true, ..QueueOptions::default() }
    }
}

impl Device for NullDevice {
    unsafe fn submit(&mut self, _now: Instant, batch: CommandBatch<'_>, io: &mut DeviceIo<'_>) {
        io.completions.extend(batch.commands.iter().map(|command| {
            if command.op == Op::BlockStatus {
                // SAFETY: the caller's promise, passed on.
                return unsafe { command.tell_all_data(batch.spans_of(command)) };
            }
            let hole = command.op == Op::Read && command.flags.contains(BioFlags::HOLE_OK);
            if command.op == Op::Read && !hole {
                for span in batch.spans_of(command) {
                    // SAFETY: the span is valid and ours by the caller's promise.
                    unsafe { span.base().write_bytes(0, span.len()) };
                }
            }
            Completion { hole, ..command.done() }
        }));
    }

    fn grow(&mut self, _volume: VolumeId, _size: u64) -> Result<(), IoError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Bench;
    use headworks_core::{Extent, ExtentState};

    #[test]
    fn reads_return_zeros_or_hole_and_other_commands_succeed() {
        let mut bench = Bench::new(NullDevice);
        bench.buffer()[..8192].fill(7);
        let read = bench.run(Op::Read, BioFlags::HOLE_OK, 1 << 40, 8192);
        assert_eq!((read.status, read.transferred, read.hole), (Ok(()), 8192, true));
        assert_eq!(bench.buffer()[0], 7, "a hole leaves the buffer alone");
        let read = bench.run(Op::Read, BioFlags::NONE, 1 << 40, 8192);
        assert_eq!((read.status, read.transferred, read.hole), (Ok(()), 8192, false));
        assert!(bench.buffer()[..8192].iter().all(|&byte| byte == 0));
        assert_eq!(bench.buffer()[8192], 0);
        bench.run(Op::BlockStatus, BioFlags::NONE, 0, u32::MAX);
        let told: Vec<_> = headworks_core::extent::extents(bench.buffer(), u32::MAX).collect();
        assert_eq!(told, [Extent { len: u32::MAX, state: ExtentState::DATA }]);
        for op in [Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes] {
            let len = if op == Op::Flush { 0 } else { 4096 };
            let done = bench.run(op, BioFlags::FUA, 0, len);
            assert_eq!((done.status, done.transferred, done.hole), (Ok(()), len, false));
        }
    }
}
