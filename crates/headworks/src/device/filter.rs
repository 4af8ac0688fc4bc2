//! A device around another that looks at what passes, in safe code: it counts, refuses, or watches answers.
//!
//! The filter sees each command once, in order, before the device below gets it, and each answer once, refusals included. It never
//! touches data. What it does not refuse goes down in runs, as it came: a batch that nothing is refused of is passed on as it is.
//!
//! What is no command goes to the device below by the defaults of [`Device`], as with every wrapper.

use headworks_core::{Completion, Instant, IoError};

use super::{Command, CommandBatch, Device, DeviceIo};
use crate::engine::DiskDone;

/// What a [`FilterDevice`] does with the commands that pass it.
///
/// ```
/// #![forbid(unsafe_code)]
/// use headworks::headworks_core::{Instant, IoError, Op};
/// use headworks::{Command, Filter, FilterDevice, MemDevice};
///
/// /// Refuses to trim.
/// struct KeepBlocks;
///
/// impl Filter for KeepBlocks {
///     fn command(&mut self, _: Instant, command: &Command) -> Result<(), IoError> {
///         if command.op == Op::Discard { Err(IoError::Unsupported) } else { Ok(()) }
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let disk = FilterDevice::new(KeepBlocks, Box::new(MemDevice::new(1 << 20)?));
/// # Ok(())
/// # }
/// ```
pub trait Filter: Send + 'static {
    /// A command comes from the queue.
    ///
    /// # Errors
    /// The answer of a command that the device below is not to get. [`IoError::Busy`] lets the queue try it again.
    fn command(&mut self, _now: Instant, _command: &Command) -> Result<(), IoError> {
        Ok(())
    }

    /// A command is answered.
    fn completion(&mut self, _now: Instant, _completion: &Completion) {}
}

/// A device of which a [`Filter`] sees all commands and answers.
pub struct FilterDevice<F> {
    filter: F,
    below: Box<dyn Device>,
}

impl<F: Filter> FilterDevice<F> {
    /// Puts a filter before `below`.
    #[must_use]
    pub fn new(filter: F, below: Box<dyn Device>) -> Self {
        Self { filter, below }
    }

    /// The filter, to see what it has counted.
    #[must_use]
    pub fn filter(&self) -> &F {
        &self.filter
    }

    /// Calls the device below, and shows the filter what it has answered.
    fn with(
        &mut self,
        now: Instant,
        io: &mut DeviceIo<'_>,
        call: impl FnOnce(&mut F, &mut dyn Device, &mut DeviceIo<'_>),
    ) {
        let first = io.completions.len();
        call(&mut self.filter, &mut *self.below, io);
        for completion in &io.completions[first..] {
            self.filter.completion(now, completion);
        }
    }
}

impl<F: Filter> Device for FilterDevice<F> {
    unsafe fn submit(&mut self, now: Instant, batch: CommandBatch<'_>, io: &mut DeviceIo<'_>) {
        self.with(now, io, |filter, below, io| {
            let mut run = 0;
            for (index, command) in batch.commands.iter().enumerate() {
                let Err(error) = filter.command(now, command) else { continue };
                if let Some(part) = batch.part(run..index) {
                    // SAFETY: the caller's promise, passed on.
                    unsafe { below.submit(now, part, io) };
                }
                run = index + 1;
                io.completions.push(command.failed(error));
            }
            if let Some(rest) = batch.part(run..batch.commands.len()) {
                // SAFETY: as above.
                unsafe { below.submit(now, rest, io) };
            }
        });
    }

    fn on_disk(&mut self, now: Instant, done: DiskDone, io: &mut DeviceIo<'_>) {
        self.with(now, io, |_, below, io| below.on_disk(now, done, io));
    }

    fn on_ready(&mut self, now: Instant, place: u16, io: &mut DeviceIo<'_>) {
        self.with(now, io, |_, below, io| below.on_ready(now, place, io));
    }

    fn on_timeout(&mut self, now: Instant, io: &mut DeviceIo<'_>) {
        self.with(now, io, |_, below, io| below.on_timeout(now, io));
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.below.next_timeout()
    }

    fn below(&mut self) -> Option<&mut dyn Device> {
        Some(&mut *self.below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{MemDevice, NullDevice};
    use crate::testing::{Bench, LateDevice, against_model};
    use headworks_core::{BioFlags, Op};

    #[derive(Default)]
    struct Counts {
        commands: u32,
        answers: u32,
        errors: u32,
        refused: Option<Op>,
    }

    impl Filter for Counts {
        fn command(&mut self, _: Instant, command: &Command) -> Result<(), IoError> {
            self.commands += 1;
            if self.refused == Some(command.op) { Err(IoError::ReadOnly) } else { Ok(()) }
        }

        fn completion(&mut self, _: Instant, completion: &Completion) {
            self.answers += 1;
            self.errors += u32::from(completion.status.is_err());
        }
    }

    #[test]
    fn filter_changes_nothing_of_a_device_that_it_lets_all_pass() {
        let below = Box::new(MemDevice::new(1 << 20).unwrap());
        let mut bench = Bench::new(FilterDevice::new(Counts::default(), below));
        against_model(&mut bench, 1, 1 << 20, 512, 400);
        let filter = bench.device().filter();
        assert!(filter.commands >= 400 && filter.answers == filter.commands);
    }

    #[test]
    fn filter_sees_late_answers_and_refusals_once() {
        let below = Box::new(LateDevice::new(500));
        let counts = Counts { refused: Some(Op::Write), ..Counts::default() };
        let mut bench = Bench::new(FilterDevice::new(counts, below));
        bench.submit(Op::Read, BioFlags::NONE, 0, 4096);
        bench.submit(Op::Write, BioFlags::NONE, 0, 4096);
        let filter = bench.device().filter();
        assert_eq!((filter.commands, filter.answers, filter.errors), (2, 1, 1), "the read waits");
        assert!(bench.step());
        let filter = bench.device().filter();
        assert_eq!((filter.commands, filter.answers, filter.errors), (2, 2, 1));
    }

    #[test]
    fn memory_behind_a_filter_is_not_lent() {
        let below: Box<dyn Device> = Box::new(MemDevice::new(1 << 20).unwrap());
        assert!(below.memory().is_some());
        let mut filter: Box<dyn Device> = Box::new(FilterDevice::new(Counts::default(), below));
        assert!(filter.memory().is_none());
        assert!(filter.find::<MemDevice>().is_some() && filter.find::<NullDevice>().is_none());
    }
}
