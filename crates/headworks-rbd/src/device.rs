//! The device of an image: each command is one operation of librbd, with a slot.
//!
//! ```text
//!   submit     slot (command, array of spans) --> librbd, argument = slot and generation
//!   on_ready   completions --> slot by argument --> answer
//! ```
//!
//! **The lock is lost** when an operation answers that the cluster has shut this client out (ESHUTDOWN), or that the image is not writable
//! any more (EROFS). Another client writes the image then, so what a cache has of it is void: the device gives the volume up, and every
//! further command fails. An idle image would not notice, so its device reads a block if it heard nothing of the cluster for
//! [`PROBE_NS`].
//!
//! A cluster that does not answer is not an error here: librbd sends again by itself until it does, and the queue's `io_timeout`
//! answers clients meanwhile. A time-out of librbd's own would be wrong, because the operation may still be applied later.
//!
//! Invariants: every command is answered once; the array and memory of an operation are left alone until its completion; a completion of
//! an earlier use of a slot changes nothing.

use headworks::driver::{Interest, Span};
use headworks::{Command, CommandBatch, Device, DeviceIo};
use headworks_core::extent::ExtentWriter;
use headworks_core::time::SEC;
use headworks_core::{
    BioFlags, Completion, ExtentState, Instant, IoError, Op, RequestId, VolumeId,
};

use crate::image::{Backend, Operation, RbdImage};

/// Most operations in flight; further commands are refused as busy.
pub(crate) const SLOTS: usize = 512;
/// Most completions handled in a turn.
const TURN: usize = 64;
/// Time without an answer of the cluster after which it is asked for one.
pub(crate) const PROBE_NS: u64 = 5 * SEC;
/// Argument of the probe.
const PROBE: u64 = u64::MAX;
/// Bytes of the probe.
const PROBE_BYTES: usize = 512;
/// The place of the image's descriptor.
const COMPLETED: u16 = 0;

/// An operation in flight, or room for one.
#[derive(Default)]
struct Slot {
    /// The command; none of a free slot.
    id: Option<RequestId>,
    /// Bytes that a success transfers.
    len: u32,
    /// The use of the slot, from the completion's argument.
    generation: u32,
    /// The array that librbd reads until the completion.
    spans: Vec<Span>,
}

/// What must stay where it is while operations are in flight.
struct Held {
    slots: Vec<Slot>,
    _probe: Box<[u8; PROBE_BYTES]>,
    probe_span: [Span; 1],
}

/// An image as a device; its one volume is the image.
pub struct RbdDevice<B: Backend = RbdImage> {
    name: String,
    /// Always there until the device is dropped.
    backend: Option<B>,
    size: u64,
    /// The lock was taken when the image was opened.
    locked: bool,
    lost: bool,
    held: Option<Held>,
    free: Vec<u32>,
    /// Operations in flight, the probe included.
    in_flight: u32,
    watched: bool,
    volume: Option<VolumeId>,
    /// When the cluster is asked next.
    probe_at: Instant,
    probing: bool,
    /// The cluster answered since the time was set.
    heard: bool,
    collected: Vec<(u64, i64)>,
}

impl<B: Backend> RbdDevice<B> {
    pub(crate) fn new(name: String, backend: B, size: u64, locked: bool) -> Self {
        let mut probe = Box::new([0; PROBE_BYTES]);
        let base = probe.as_mut_ptr();
        // SAFETY: the bytes are in a box that lives as long as operations do; nothing else uses them.
        let probe_span = [unsafe { Span::new(base, PROBE_BYTES.min(size as usize)) }];
        let slots = (0..SLOTS).map(|_| Slot::default()).collect();
        Self {
            name,
            backend: Some(backend),
            size,
            locked,
            lost: false,
            held: Some(Held { slots, _probe: probe, probe_span }),
            free: (0..SLOTS as u32).rev().collect(),
            in_flight: 0,
            watched: false,
            volume: None,
            probe_at: Instant(0),
            probing: false,
            heard: true,
            collected: Vec::with_capacity(TURN),
        }
    }

    /// Starts a command, or answers it.
    ///
    /// # Safety
    /// As [`Device::submit`].
    unsafe fn begin(&mut self, command: &Command, spans: &[Span], io: &mut DeviceIo<'_>) {
        self.volume = Some(command.volume);
        let end = command.offset.checked_add(command.len.into());
        let inside = end.is_some_and(|end| end <= self.size);
        let operation = match command.op {
            _ if self.lost => Err(Err(IoError::ShutDown)),
            _ if !inside => Err(Err(IoError::Invalid)),
            Op::Prefetch => Err(Ok(())),
            // SAFETY: the caller's promise.
            Op::BlockStatus => Err(unsafe { all_data(command, spans) }),
            Op::Flush => Ok(Operation::Flush),
            Op::Read => Ok(Operation::Read),
            Op::Write if spans.is_empty() => Ok(Operation::Zero { thick: true }),
            Op::Write => Ok(Operation::Write),
            Op::Discard => Ok(Operation::Zero { thick: false }),
            Op::WriteZeroes => {
                Ok(Operation::Zero { thick: command.flags.contains(BioFlags::NO_UNMAP) })
            }
        };
        match operation {
            // SAFETY: the caller's promise.
            Ok(operation) => unsafe { self.start(operation, command, spans, io) },
            Err(status) => io.completions.push(answer(command.id, command.len, status)),
        }
    }

    /// # Safety
    /// As [`Device::submit`].
    unsafe fn start(
        &mut self,
        operation: Operation,
        command: &Command,
        spans: &[Span],
        io: &mut DeviceIo<'_>,
    ) {
        let (Some(backend), Some(held)) = (&mut self.backend, &mut self.held) else { return };
        let Some(index) = self.free.pop() else {
            io.completions.push(answer(command.id, 0, Err(IoError::Busy)));
            return;
        };
        let slot = &mut held.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.spans.clear();
        slot.spans.extend_from_slice(spans);
        let argument = u64::from(slot.generation) << 32 | u64::from(index);
        let range = (command.offset, command.len.into());
        // SAFETY: the array is the slot's until the completion, or until the image is closed; the memory by the caller's promise.
        match unsafe { backend.start(operation, range, &slot.spans, argument) } {
            Ok(()) => {
                (slot.id, slot.len) = (Some(command.id), command.len);
                self.in_flight += 1;
                self.watch(io);
            }
            Err(errno) => {
                self.free.push(index);
                let status = Err(self.failed(errno, io));
                io.completions.push(answer(command.id, 0, status));
            }
        }
    }

    fn watch(&mut self, io: &mut DeviceIo<'_>) {
        if let (false, Some(backend)) = (self.watched, &self.backend) {
            io.watch(COMPLETED, backend.fd(), Interest::Read);
            self.watched = true;
        }
    }

    /// The error of an operation; one that means a lost lock changes the state.
    fn failed(&mut self, errno: i32, io: &mut DeviceIo<'_>) -> IoError {
        let shut_out = errno == libc::ESHUTDOWN || (errno == libc::EROFS && self.locked);
        if !shut_out {
            return match errno {
                // Not the errors of a server that is to be asked again.
                libc::EBUSY | libc::EAGAIN | libc::EINTR => IoError::Medium,
                _ => IoError::from_errno(errno),
            };
        }
        if !self.lost {
            self.lost = true;
            tracing::error!(
                "{}: the cluster has shut this server out, another client writes the image now: every request fails, and what was not written out is not in the image; remove the export",
                self.name
            );
        }
        // Each time, since an operator may have acknowledged it meanwhile.
        if let Some(volume) = self.volume {
            io.give_up(volume);
        }
        IoError::ShutDown
    }

    fn ended(&mut self, (argument, result): (u64, i64), io: &mut DeviceIo<'_>) {
        let errno = if result < 0 { -result as i32 } else { 0 };
        self.heard = true;
        if argument == PROBE {
            (self.probing, self.in_flight) = (false, self.in_flight - 1);
            if errno != 0 {
                self.failed(errno, io);
            }
            return;
        }
        let index = argument as u32;
        let slot = self.held.as_mut().and_then(|held| held.slots.get_mut(index as usize));
        let slot = slot.filter(|slot| u64::from(slot.generation) == argument >> 32);
        let Some((id, len)) = slot.and_then(|slot| Some((slot.id.take()?, slot.len))) else {
            tracing::error!("{}: librbd completed an operation that is not in flight", self.name);
            return;
        };
        self.free.push(index);
        self.in_flight -= 1;
        let status = match errno {
            0 => Ok(()),
            errno => Err(self.failed(errno, io)),
        };
        io.completions.push(answer(id, len, status));
    }

    /// Reads a block, to hear whether this client is still served.
    fn probe(&mut self, io: &mut DeviceIo<'_>) {
        let (Some(backend), Some(held)) = (&mut self.backend, &self.held) else { return };
        let len = held.probe_span[0].len() as u64;
        // SAFETY: bytes and array are in boxes that are kept until the completion, or until the image is closed.
        match unsafe { backend.start(Operation::Read, (0, len), &held.probe_span, PROBE) } {
            Ok(()) => {
                (self.probing, self.in_flight) = (true, self.in_flight + 1);
                self.watch(io);
            }
            Err(errno) => {
                self.failed(errno, io);
            }
        }
    }
}

impl<B: Backend> Device for RbdDevice<B> {
    unsafe fn submit(&mut self, _now: Instant, batch: CommandBatch<'_>, io: &mut DeviceIo<'_>) {
        for command in batch.commands {
            // SAFETY: the caller's promise, passed on.
            unsafe { self.begin(command, batch.spans_of(command), io) };
        }
    }

    fn on_ready(&mut self, _now: Instant, _place: u16, io: &mut DeviceIo<'_>) {
        self.watched = false;
        let Some(backend) = &mut self.backend else { return };
        let mut collected = std::mem::take(&mut self.collected);
        backend.collect(TURN, &mut collected);
        for ended in collected.drain(..) {
            self.ended(ended, io);
        }
        self.collected = collected;
        if self.in_flight > 0 {
            self.watch(io);
        }
    }

    fn on_timeout(&mut self, now: Instant, io: &mut DeviceIo<'_>) {
        if now < self.probe_at {
            return;
        }
        self.probe_at = now.after(PROBE_NS);
        if !self.heard && !self.probing {
            self.probe(io);
        }
        self.heard = false;
    }

    fn next_timeout(&self) -> Option<Instant> {
        (self.locked && !self.lost).then_some(self.probe_at)
    }
}

impl<B: Backend> Drop for RbdDevice<B> {
    fn drop(&mut self) {
        let (Some(backend), Some(held)) = (self.backend.take(), self.held.take()) else { return };
        backend.close(Box::new(held));
    }
}

fn answer(id: RequestId, len: u32, status: Result<(), IoError>) -> Completion {
    Completion { id, transferred: if status.is_ok() { len } else { 0 }, status, hole: false }
}

/// Tells that the range is data: librbd would have to ask the cluster for each object.
///
/// # Safety
/// The command's spans are valid and its own.
unsafe fn all_data(command: &Command, spans: &[Span]) -> Result<(), IoError> {
    let [span] = spans else { return Err(IoError::Invalid) };
    // SAFETY: the caller's promise.
    let mut list = ExtentWriter::new(unsafe { span.bytes_mut() }, command.len, 1);
    list.push(command.len.into(), ExtentState::DATA);
    match list.finish() {
        0 => Err(IoError::Invalid),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
