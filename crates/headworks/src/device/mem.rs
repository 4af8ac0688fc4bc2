//! `mem:` bytes in memory, answered at once.

use headworks_core::{Completion, Instant, Op};

use super::{Batch, Command, Device, DeviceIo};
use crate::memory::Span;

/// A disk in memory.
pub struct MemDevice {
    bytes: Vec<u8>,
}

impl MemDevice {
    /// A disk of `size` zero bytes.
    #[must_use]
    pub fn new(size: usize) -> Self {
        Self {
            bytes: vec![0; size],
        }
    }

    /// # Safety
    /// As [`Device::submit`].
    unsafe fn run(&mut self, command: &Command, spans: &[Span]) {
        let mut at = command.offset as usize;
        for span in spans {
            let bytes = &mut self.bytes[at..at + span.len];
            // SAFETY: the span is valid and ours by the caller's promise, and cannot overlap our own vector.
            unsafe {
                match command.op {
                    Op::Read => span.base.copy_from_nonoverlapping(bytes.as_ptr(), span.len),
                    _ => bytes
                        .as_mut_ptr()
                        .copy_from_nonoverlapping(span.base, span.len),
                }
            }
            at += span.len;
        }
    }
}

impl Device for MemDevice {
    unsafe fn submit(&mut self, _now: Instant, batch: Batch<'_>, io: &mut DeviceIo<'_>) {
        for command in batch.commands {
            if command.op.has_data() {
                // SAFETY: the caller's promise, passed on.
                unsafe { self.run(command, batch.spans_of(command)) };
            }
            io.completions.push(Completion {
                id: command.id,
                transferred: command.len,
                status: Ok(()),
                hole: false,
            });
        }
    }
}
