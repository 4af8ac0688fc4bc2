//! A command of parts of blocks in progress: its buffer, its commands below, and its answer.

use headworks_core::extent::{EXTENTS_BYTES, extents};
use headworks_core::{BioFlags, Completion, ExtentState, IoError, Op};

use super::Blocks;
use super::plan::{Plan, Step};
use headworks::Command;
use headworks::driver::Span;
use headworks_house::Buffer;

/// A command that is carried out by whole blocks.
pub(super) struct Job {
    pub command: Command,
    pub spans: Vec<Span>,
    pub plan: Plan,
    /// What the device does now.
    pub step: Step,
    pub buffer: Option<Buffer>,
}

impl Job {
    /// The blocks that it changes.
    pub fn changed(&self) -> Option<Blocks> {
        let Plan { start, end, .. } = self.plan;
        self.command.op.is_write().then_some(Blocks { volume: self.command.volume, start, end })
    }

    /// The command of the present step, with its memory.
    pub fn next_command(&self) -> (Command, Option<Span>) {
        let Command { op, flags, .. } = self.command;
        let (start, end) = self.plan.step_range(self.step);
        let (offset, len) = (start, (end - start) as u32);
        let (op, flags) = match self.step {
            Step::First | Step::Second => (Op::Read, BioFlags::NONE),
            Step::Last if self.plan.is_change => (Op::Write, BioFlags(flags.0 & BioFlags::FUA.0)),
            Step::Last if op == Op::Write || op == Op::WriteZeroes => (op, flags),
            Step::Last => (op, BioFlags::NONE),
        };
        let place = match op {
            Op::BlockStatus => (0, EXTENTS_BYTES as usize),
            _ => ((start - self.plan.start) as usize, len as usize),
        };
        let span = self.buffer.as_ref().map(|buffer| {
            // SAFETY: the buffer is the job's until its last command is answered, and nothing else uses it while one is below.
            unsafe { buffer.span() }.part(place.0, place.1)
        });
        (Command { op, flags, offset, len, ..self.command }, span)
    }

    /// The bytes of the buffer that are the command's own; none of a command whose bytes pass no buffer, as a list of extents.
    fn own(&self) -> Option<Span> {
        let is_copied = self.plan.is_change || self.command.op == Op::Read;
        let buffer = self.buffer.as_ref().filter(|_| is_copied)?;
        let from = self.command.offset.saturating_sub(self.plan.start) as usize;
        // SAFETY: as above; no command is below while these are copied.
        Some(unsafe { buffer.span() }.part(from, self.plan.len as usize))
    }

    /// Puts the command's bytes where they are written from.
    pub fn fill(&mut self) {
        let Some(own) = self.own().filter(|_| self.plan.is_change) else { return };
        // SAFETY: as above.
        let bytes = unsafe { own.bytes_mut() };
        if self.spans.is_empty() {
            return bytes.fill(0);
        }
        let mut rest = bytes;
        for span in &self.spans {
            let (part, others) = rest.split_at_mut(span.len().min(rest.len()));
            // SAFETY: the command's memory, which is valid until its completion.
            part.copy_from_slice(unsafe { span.part(0, part.len()).bytes() });
            rest = others;
        }
    }

    /// The answer of the command after the last step, of which the device did `transferred` bytes.
    pub fn answer(&self, transferred: u32) -> Completion {
        let command = &self.command;
        if command.op == Op::BlockStatus {
            return self.tell_extents();
        }
        let from = self.plan.start + u64::from(transferred);
        let all = transferred == (self.plan.end - self.plan.start) as u32;
        let done = match all {
            true => self.plan.len,
            false => from.saturating_sub(command.offset).min(self.plan.len.into()) as u32,
        };
        if command.op == Op::Read {
            self.copy_out(done as usize);
        }
        Completion { transferred: done, ..command.done() }
    }

    /// Copies the first `len` bytes of what was read.
    fn copy_out(&self, len: usize) {
        let Some(own) = self.own() else { return };
        // SAFETY: as in `own`.
        let mut rest = unsafe { own.part(0, len).bytes() };
        for span in &self.spans {
            let (part, others) = rest.split_at(span.len().min(rest.len()));
            // SAFETY: the command's memory, which is valid and ours until its completion.
            unsafe { span.part(0, part.len()).bytes_mut() }.copy_from_slice(part);
            rest = others;
        }
    }

    /// Tells what the device said of the blocks, without what is before the command's range.
    fn tell_extents(&self) -> Completion {
        let Plan { start, end, .. } = self.plan;
        let Some(buffer) = &self.buffer else { return self.command.failed(IoError::Invalid) };
        // SAFETY: as in `own`.
        let list = unsafe { buffer.span().part(0, EXTENTS_BYTES as usize).bytes() };
        let mut before = self.command.offset - start;
        let mut told = extents(list, (end - start) as u32).filter_map(|extent| {
            let cut = before.min(extent.len.into());
            before -= cut;
            Some((u64::from(extent.len) - cut, extent.state)).filter(|(len, _)| *len > 0)
        });
        // Nothing of the range may have been told.
        let first = told.next().unwrap_or((self.command.len.into(), ExtentState::DATA));
        // SAFETY: the command's memory, which is valid and ours until its completion.
        unsafe {
            self.command.tell_extents(&self.spans, |writer| {
                let all = std::iter::once(first).chain(told);
                all.for_each(|(len, state)| _ = writer.push(len, state));
            })
        }
    }
}
