//! When the device keeps a write, when it flushes by itself, and how it writes what it kept again.
//!
//! After a reconnection the kept writes are sent, without what newer ones have replaced ([`super::newest`]), several at a time; a discard
//! waits for writes that it overlaps, and everything else until all are acknowledged. They stay kept: the new server has not flushed them either. If one fails, or a
//! flush of the device's own, the loss is told, once nothing of the ring is in flight. After a loss was told the device flushes, so that what an operator then finds and
//! accepts is durable; until a flush that was submitted after it has succeeded, each further loss is told, too.

use headworks::driver::Span;
use headworks::{Command, DeviceIo};
use headworks_core::{BioFlags, Instant, IoError, Op, RequestId, Status};

use super::dial::Dial;
use super::kept::Record;
use super::newest::{Part, newest_parts};
use super::slots::Purpose;
use super::{NbdDevice, TransmissionFlags};

/// Kept writes that are sent at once.
const AT_ONCE: usize = 32;

/// Whether what a told loss has left is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    Yes,
    /// A flush is due.
    No,
    /// The remote has refused it: the next one is a client's, or on the next connection.
    Refused,
}

/// The repetition of what was kept.
#[derive(Debug, Default)]
pub(super) struct Repeat {
    /// What is to be sent.
    parts: Vec<Part>,
    /// The first part that is not sent.
    next: usize,
    /// What is sent: slot, first byte, end.
    sent: Vec<(u32, u64, u64)>,
    /// One was refused: no further one is sent. The loss is told when those in flight are answered, since they lie in the ring, and could
    /// overtake what is sent after them.
    failed: bool,
}

impl<D: Dial> NbdDevice<D> {
    /// Whether acknowledged writes may be lost with the remote.
    pub(super) fn is_volatile(&self) -> bool {
        self.flags.contains(TransmissionFlags::SEND_FLUSH) && !self.options.stable
    }

    /// Whether a command may be sent: a write whose copy must be kept has room for it, or it waits for a flush.
    pub(super) fn finds_room(&mut self, slot: u32) -> bool {
        let it = self.slots.slot(slot);
        let Command { op, len, .. } = it.command;
        if !op.is_write()
            || it.purpose != Purpose::Asked
            || !self.is_volatile()
            || !self.kept.can_keep(op, len)
        {
            return true;
        }
        let has_room = self.kept.reserve(op, len);
        self.slots.slot_mut(slot).has_room = has_room;
        has_room
    }

    /// Gives back the room of a command that needs it no longer.
    pub(super) fn give_room_back(&mut self, slot: u32) {
        let it = self.slots.slot_mut(slot);
        if std::mem::take(&mut it.has_room) {
            let Command { op, len, .. } = it.command;
            self.kept.give_back(op, len);
        }
    }

    /// Counts a change that was acknowledged, and keeps it. One that is durable by itself, and a discard, is kept only behind others:
    /// repeated without it they would overwrite it.
    pub(super) fn on_acknowledged(&mut self, slot: u32) {
        let it = self.slots.slot_mut(slot);
        let Command { op, flags, offset, len, .. } = it.command;
        let durable = op == Op::Discard
            || flags.contains(BioFlags::FUA) && self.flags.contains(TransmissionFlags::SEND_FUA);
        if durable && (self.kept.len() == 0 || self.defects.durable_not_kept()) {
            return;
        }
        let number = self.acknowledged.count();
        if !self.is_volatile() {
            return;
        }
        let it = self.slots.slot_mut(slot);
        if !std::mem::take(&mut it.has_room) {
            return self.kept.miss(number);
        }
        let parts = it.parts(0, len as usize);
        // SAFETY: the memory of a command that was not answered.
        unsafe { self.kept.keep(number, (op, flags), (offset, len), parts) };
    }

    /// Notes that a flush covers the first so many acknowledged writes. What a loss has left is durable if the flush came after it.
    pub(super) fn on_flushed(&mut self, slot: u32, covers: u64) {
        self.acknowledged.cover(covers);
        if !self.is_before_loss(slot) {
            self.settled = Settled::Yes;
        }
        let all = self.defects.flush_releases_all();
        self.kept.release(if all { u64::MAX } else { covers });
        self.waiting.extend(self.crowded.drain(..));
    }

    /// Whether the device should flush by itself.
    pub(super) fn release_is_due(&self) -> bool {
        let unsettled = self.settled == Settled::No;
        let wanted = self.kept.wants_flush() || !self.crowded.is_empty() || unsettled;
        wanted && !self.is_releasing && self.repeat.is_none()
    }

    /// Queues a flush if one is due.
    pub(super) fn release_if_due(&mut self) {
        let Some(volume) = self.volume.filter(|_| self.release_is_due()) else { return };
        let flush = Command::flush(RequestId::default(), volume);
        if let Some(slot) = self.slots.take_for(Purpose::Release, &flush, [].into_iter()) {
            self.slots.slot_mut(slot).losses = self.acknowledged.losses();
            self.is_releasing = true;
            self.waiting.push_front(slot);
        }
    }

    /// Takes the answer to a flush of the device's own.
    pub(super) fn on_released(&mut self, status: Status, io: &mut DeviceIo<'_>) {
        self.is_releasing = false;
        match status {
            // Without a connection nothing is known.
            Ok(()) | Err(IoError::TimedOut) => {}
            Err(_) => {
                self.tell_loss(io);
                self.settled = Settled::Refused;
            }
        }
        self.waiting.extend(self.crowded.drain(..));
    }

    /// Says that acknowledged writes may be gone.
    pub(super) fn tell_loss(&mut self, io: &mut DeviceIo<'_>) {
        if let Some(volume) = self.volume
            && !self.defects.untold_loss()
        {
            io.lose(volume);
            self.acknowledged.lose();
            self.status.change(|report| report.losses += 1);
        }
        self.settled = Settled::No;
        self.kept.clear();
        self.repeat = None;
    }

    /// Sends the next kept writes that overlap none in flight.
    pub(super) fn send_kept(&mut self, now: Instant) {
        let Self { repeat, kept, slots, connections, volume, flags, defects, .. } = self;
        let (Some(repeat), Some(volume)) = (repeat, *volume) else { return };
        while repeat.sent.len() < AT_ONCE
            && !repeat.failed
            && let Some(&part) = repeat.parts.get(repeat.next)
        {
            let (record, data) = kept.part(part);
            let Part { from, to, .. } = part;
            let overlaps = repeat.sent.iter().any(|&(_, other, end)| from < end && other < to);
            if overlaps && !defects.overlapping_at_once() {
                break;
            }
            // SAFETY: only read, and the ring is neither moved nor reused while the record is kept.
            let spans = data
                .into_iter()
                .filter(|piece| !piece.is_empty())
                .map(|piece| unsafe { Span::new(piece.as_ptr().cast_mut(), piece.len()) });
            let command = Command {
                id: RequestId::default(),
                volume,
                op: record.op,
                flags: record.flags,
                offset: from,
                len: (to - from) as u32,
                first_span: 0,
                spans: if record.op == Op::Write { 1 } else { 0 },
            };
            let Some(slot) = slots.take_for(Purpose::Repeat, &command, spans) else { break };
            let least = connections.iter_mut().zip(0..).min_by_key(|(it, _)| it.bytes);
            let Some((connection, index)) = least else { break };
            slots.assign(slot, index, *flags);
            connection.push(now, slots, slot);
            repeat.sent.push((slot, from, to));
            repeat.next += 1;
        }
        if repeat.sent.is_empty() && repeat.next == repeat.parts.len() {
            self.repeat = None;
        }
    }

    /// Begins to send what is kept again, if anything is.
    pub(super) fn begin_repeat(&mut self) {
        if self.kept.len() == 0 || self.defects.kept_not_repeated() {
            return;
        }
        let whole = |(record, it): (usize, &Record)| {
            let (from, to) = (it.offset, it.offset + u64::from(it.len));
            Part { record, from, to }
        };
        let parts = match self.defects.overlapping_at_once() || self.defects.older_repeated() {
            true => self.kept.records().enumerate().map(whole).collect(),
            false => {
                let has_fua = self.flags.contains(TransmissionFlags::SEND_FUA);
                newest_parts(self.kept.records(), has_fua)
            }
        };
        self.repeat = Some(Repeat { parts, ..Repeat::default() });
    }

    /// Takes the answer to a kept write that was sent again.
    pub(super) fn on_repeated(&mut self, slot: u32, status: Status, io: &mut DeviceIo<'_>) {
        let Some(repeat) = &mut self.repeat else { return };
        repeat.sent.retain(|&(other, ..)| other != slot);
        repeat.failed |= status.is_err() && !self.defects.refused_repeat_ignored();
        match repeat.sent.is_empty() {
            true if repeat.failed => self.tell_loss(io),
            true if repeat.next == repeat.parts.len() => self.repeat = None,
            _ => {}
        }
    }
}
