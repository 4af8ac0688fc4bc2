//! Devices of safe code: each command comes as a value that has the data with it.
//!
//! ```text
//!   queue --batch--> Safe<D> --Work, one a command--> D: read_into, write_from --complete--> answers --> queue
//! ```
//!
//! [`Device::submit`] is unsafe to implement since its spans are raw memory that belongs to the device until the answer. Here the
//! command itself carries that right: [`Work`] cannot be copied, its bytes are reached through it alone, and [`Work::complete`] takes it.
//! So nothing can be read or written after the answer, and none is answered twice. A device may keep it and answer later. What a volume
//! has allocated is not asked of it: all is data.
//!
//! Invariants: `Answers` is made here only, so an answer belongs to a `Work`, and is taken by the device that was given it: numbers of
//! requests are those of one queue, so that an answer that strayed into another could end a command whose data are still in use. Data go
//! from the device into the memory of reads only, and the memory of writes is only read, as the contract of [`Span`] demands.

use std::sync::atomic::{AtomicU64, Ordering};

use headworks_core::{BioFlags, Completion, Instant, Op, Status, VolumeId};

use super::{Command, CommandBatch, Device, DeviceIo};
use crate::memory::Span;

/// A device that needs no unsafe code: [`DeviceSetup::safe`](crate::DeviceSetup::safe) makes it a [`Device`].
///
/// ```
/// #![forbid(unsafe_code)]
/// use headworks::headworks_core::{Instant, IoError, Op};
/// use headworks::{Answers, SafeDevice, Work};
///
/// /// A disk of zeros.
/// struct Zeros;
///
/// impl SafeDevice for Zeros {
///     fn start(&mut self, _: Instant, mut work: Work, answers: &mut Answers<'_>) {
///         let status = match work.op() {
///             Op::Read => {
///                 work.write_from(0, &vec![0; work.len() as usize]);
///                 Ok(())
///             }
///             Op::Flush => Ok(()),
///             _ => Err(IoError::ReadOnly),
///         };
///         work.complete(status, answers);
///     }
/// }
/// ```
pub trait SafeDevice: Send + 'static {
    /// Starts a command: answers it at once, or keeps it and answers later, in [`SafeDevice::on_timeout`] or another start. A command
    /// that is dropped instead is never answered, and fails when the queue's `io_timeout` is over.
    fn start(&mut self, now: Instant, work: Work, answers: &mut Answers<'_>);

    /// The time that [`SafeDevice::next_timeout`] named has come.
    fn on_timeout(&mut self, _now: Instant, _answers: &mut Answers<'_>) {}

    /// When the device wants to be called though nothing else happens.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }
}

/// Where a [`SafeDevice`] puts its answers: [`Work::complete`].
pub struct Answers<'a> {
    completions: &'a mut Vec<Completion>,
    device: u64,
}

/// A number that tells safe devices of one process apart.
fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only uniqueness matters.
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A command with its data, which belong to the device until it is answered.
#[derive(Debug)]
#[must_use = "a command that is dropped is never answered"]
pub struct Work {
    command: Command,
    data: Data,
    device: u64,
}

/// Most commands have one span.
#[derive(Debug)]
enum Data {
    One(Span),
    Many(Box<[Span]>),
}

impl Data {
    fn spans(&self) -> &[Span] {
        match self {
            Self::One(span) => std::slice::from_ref(span),
            Self::Many(spans) => spans,
        }
    }
}

impl Work {
    /// # Safety
    /// The spans are the command's, by the promise of [`Device::submit`].
    unsafe fn new(command: &Command, spans: &[Span], device: u64) -> Self {
        let data = match spans {
            [] => Data::One(Span::EMPTY),
            [one] => Data::One(*one),
            many => Data::Many(many.into()),
        };
        Self { command: *command, data, device }
    }

    /// What to do. A write without data ([`Work::has_data`]) writes zeros.
    #[must_use]
    pub fn op(&self) -> Op {
        self.command.op
    }

    /// Which of the device's volumes.
    #[must_use]
    pub fn volume(&self) -> VolumeId {
        self.command.volume
    }

    /// First byte on the volume.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.command.offset
    }

    /// Length of the range in bytes; 0 for a flush.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a range, not a container")]
    pub fn len(&self) -> u32 {
        self.command.len
    }

    /// `FUA`, `NO_UNMAP` and `HOLE_OK` matter to devices.
    #[must_use]
    pub fn flags(&self) -> BioFlags {
        self.command.flags
    }

    /// Whether the command has memory: reads, and writes of other than zeros.
    #[must_use]
    pub fn has_data(&self) -> bool {
        self.data.spans().iter().any(|span| !span.is_empty())
    }

    /// Copies data of a write, from byte `at` of the command on, into `bytes`; returns how many there were. 0 for any other operation.
    pub fn read_into(&self, at: usize, bytes: &mut [u8]) -> usize {
        if self.command.op != Op::Write {
            return 0;
        }
        self.each(at, bytes.len(), |span, range| {
            // SAFETY: the memory of a write belongs to this command and is only read until its answer, which takes `self`.
            bytes[range].copy_from_slice(unsafe { span.bytes() });
        })
    }

    /// Copies `bytes` into the memory of a read, from byte `at` of the command on; returns how many had room. 0 for any other operation.
    pub fn write_from(&mut self, at: usize, bytes: &[u8]) -> usize {
        if self.command.op != Op::Read {
            return 0;
        }
        self.each(at, bytes.len(), |span, range| {
            // SAFETY: the memory of a read is this command's alone until its answer, which takes `self`; `&mut self` is the only use of
            // it now, and slots and frames are initialized at the start.
            unsafe { span.bytes_mut() }.copy_from_slice(&bytes[range]);
        })
    }

    /// Calls `copy` with each piece of memory within `at..at + len`, and its place in that range; returns their length.
    fn each(
        &self,
        at: usize,
        len: usize,
        mut copy: impl FnMut(Span, std::ops::Range<usize>),
    ) -> usize {
        let (mut skip, mut done) = (at, 0);
        for span in self.data.spans() {
            let from = skip.min(span.len());
            skip -= from;
            let part = (span.len() - from).min(len - done);
            if part > 0 {
                copy(span.part(from, part), done..done + part);
                done += part;
            }
        }
        done
    }

    /// Answers the command: it did all it was asked, or nothing. [`Busy`](headworks_core::IoError::Busy) lets the queue try it again. The
    /// answers of another device do not take it; it is dropped then.
    pub fn complete(self, status: Status, answers: &mut Answers<'_>) {
        if self.device != answers.device {
            return;
        }
        answers.completions.push(self.command.ended(status));
    }
}

/// A [`SafeDevice`] as the queue calls it.
pub(crate) struct Safe<D> {
    device: D,
    id: u64,
}

impl<D> Safe<D> {
    pub(crate) fn new(device: D) -> Self {
        Self { device, id: next_id() }
    }
}

impl<D: SafeDevice> Device for Safe<D> {
    unsafe fn submit(&mut self, now: Instant, batch: CommandBatch<'_>, io: &mut DeviceIo<'_>) {
        let mut answers = Answers { completions: io.completions, device: self.id };
        for command in batch.commands {
            if command.op == Op::BlockStatus {
                // SAFETY: the caller's promise, passed on.
                let told = unsafe { command.tell_all_data(batch.spans_of(command)) };
                answers.completions.push(told);
                continue;
            }
            // SAFETY: the caller's promise.
            let work = unsafe { Work::new(command, batch.spans_of(command), self.id) };
            self.device.start(now, work, &mut answers);
        }
    }

    fn on_timeout(&mut self, now: Instant, io: &mut DeviceIo<'_>) {
        let mut answers = Answers { completions: io.completions, device: self.id };
        self.device.on_timeout(now, &mut answers);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.device.next_timeout()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bench, against_model};
    use headworks_core::RequestId;

    /// A disk in a vector, that answers every third command late.
    struct Vector {
        bytes: Vec<u8>,
        late: Vec<Work>,
        started: u32,
        now: Instant,
    }

    impl Vector {
        fn answer(&mut self, mut work: Work, answers: &mut Answers<'_>) {
            let at = work.offset() as usize;
            let range = at..at + work.len() as usize;
            match work.op() {
                Op::Read => assert_eq!(work.write_from(0, &self.bytes[range.clone()]), range.len()),
                Op::Write if work.has_data() => {
                    // In two parts, of which one begins within.
                    let half = range.len() / 3;
                    assert_eq!(work.read_into(0, &mut self.bytes[at..at + half]), half);
                    work.read_into(half, &mut self.bytes[at + half..range.end]);
                }
                Op::Flush => {}
                _ => self.bytes[range].fill(0),
            }
            work.complete(Ok(()), answers);
        }
    }

    impl SafeDevice for Vector {
        fn start(&mut self, now: Instant, work: Work, answers: &mut Answers<'_>) {
            self.started += 1;
            self.now = now;
            if self.started.is_multiple_of(3) {
                self.late.push(work);
            } else {
                self.answer(work, answers);
            }
        }

        fn on_timeout(&mut self, _: Instant, answers: &mut Answers<'_>) {
            for work in std::mem::take(&mut self.late) {
                self.answer(work, answers);
            }
        }

        fn next_timeout(&self) -> Option<Instant> {
            (!self.late.is_empty()).then(|| self.now.after(1000))
        }
    }

    #[test]
    fn safe_device_holds_what_a_model_holds() {
        let device = Vector {
            bytes: vec![0; 1 << 20],
            late: Vec::new(),
            started: 0,
            now: Instant::default(),
        };
        against_model(&mut Bench::new(Safe::new(device)), 7, 1 << 20, 512, 600);
    }

    fn work(op: Op, spans: &[Span]) -> Work {
        let len = spans.iter().map(|span| span.len() as u32).sum();
        let command = Command {
            id: RequestId::default(),
            volume: VolumeId(0),
            op,
            flags: BioFlags::NONE,
            offset: 0,
            len,
            first_span: 0,
            spans: spans.len() as u16,
        };
        // SAFETY: the test's memory outlives the work and is used through it alone.
        unsafe { Work::new(&command, spans, 0) }
    }

    #[test]
    fn answers_of_another_device_do_not_take_a_command() {
        let mut completions = Vec::new();
        for (device, taken) in [(1, 0), (0, 1)] {
            let mut answers = Answers { completions: &mut completions, device };
            work(Op::Flush, &[]).complete(Ok(()), &mut answers);
            assert_eq!(completions.len(), taken);
        }
        assert_ne!(Safe::new(()).id, Safe::new(()).id);
    }

    #[test]
    fn data_go_one_way_and_end_with_the_memory() {
        let mut memory = *b"abcdefgh";
        let base = memory.as_mut_ptr();
        // SAFETY: as in `work`.
        let spans = unsafe { [Span::new(base, 3), Span::new(base.wrapping_add(3), 5)] };
        let mut bytes = [0; 16];
        let write = work(Op::Write, &spans);
        assert_eq!((write.read_into(2, &mut bytes), &bytes[..6]), (6, &b"cdefgh"[..]));
        assert_eq!((write.read_into(8, &mut bytes), write.read_into(99, &mut bytes)), (0, 0));
        let mut write = write;
        assert_eq!(write.write_from(0, b"xyz"), 0, "the data of a write are not the device's");
        let mut read = work(Op::Read, &spans);
        assert_eq!(read.read_into(0, &mut bytes), 0, "what a read has in its memory is of others");
        assert_eq!((read.write_from(1, b"1234"), read.write_from(7, b"56")), (4, 1));
        drop((write, read));
        assert_eq!(&memory, b"a1234fg5");
    }
}
