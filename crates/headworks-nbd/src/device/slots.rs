//! Commands that a device has: what was asked, and how far the remote has answered.
//!
//! ```text
//!   Free --take--> Waiting --assign--> InFlight --answered--> Free        lost: InFlight --> Waiting, with a new cookie
//! ```
//!
//! A cookie is (slot, generation). Invariants: a generation is used once, so no cookie is used twice; the memory of a slot that is not
//! free is the command's and may be used.

use headworks::driver::Span;
use headworks::{Command, CommandBatch};
use headworks_core::Op;

use crate::client::coverage::Coverage;
use crate::wire::{self, CommandFlags, NbdError, REQUEST_BYTES, RequestHeader, TransmissionFlags};
use headworks_core::BioFlags;

/// Commands at most: the deepest queue, and flushes beside it.
const SLOTS_MAX: usize = 4096 + 64;
/// Zeros that are sent for writes without data.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Where a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Free,
    /// It waits for a connection.
    Waiting,
    /// It is in the queue of a connection, or sent.
    InFlight {
        connection: u8,
        /// All its bytes were sent.
        sent: bool,
    },
}

/// What a command is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A client, or the cache, waits for its answer.
    Asked,
    /// The device flushes what it keeps.
    Release,
    /// The device writes what it has kept again.
    Repeat,
}

/// One command.
#[derive(Debug)]
pub(super) struct Slot {
    pub command: Command,
    pub purpose: Purpose,
    /// It is a write that has room in [`super::kept::Kept`].
    pub has_room: bool,
    pub spans: Vec<Span>,
    pub place: Place,
    generation: u32,
    pub header: [u8; REQUEST_BYTES],
    /// Received parts of a read.
    pub covered: Coverage,
    /// A block status was received.
    pub is_told: bool,
    /// The whole read is a hole, and its buffer was not touched.
    pub is_hole: bool,
    pub error: Option<NbdError>,
    /// Of a flush: the number of acknowledged writes when it was sent.
    pub covers: u64,
    /// The number of losses that had been told when it was submitted.
    pub losses: u64,
}

impl Slot {
    /// Bytes of payload that are sent behind the header.
    pub fn payload(&self) -> usize {
        let sends_data = be_command(&self.header) == wire::Command::Write as u16;
        if sends_data { self.command.len as usize } else { 0 }
    }

    /// Appends what is to be sent of the command, without its first `skip` bytes.
    ///
    /// # Safety
    /// The spans are used while the slot is neither moved nor freed, and the memory of its command is valid.
    pub unsafe fn gather(&self, skip: usize, out: &mut Vec<Span>) {
        let header = &self.header[skip.min(REQUEST_BYTES)..];
        if !header.is_empty() {
            // SAFETY: only read, while the slot stays.
            out.push(unsafe { Span::new(header.as_ptr().cast_mut(), header.len()) });
        }
        let mut skip = skip.saturating_sub(REQUEST_BYTES);
        let mut left = self.payload() - skip;
        if self.spans.is_empty() {
            while left > 0 {
                let len = left.min(ZEROS.len());
                // SAFETY: only read, and static.
                out.push(unsafe { Span::new(ZEROS.as_ptr().cast_mut(), len) });
                left -= len;
            }
            return;
        }
        for span in &self.spans {
            let own = span.len().min(skip);
            skip -= own;
            let len = (span.len() - own).min(left);
            if len > 0 {
                out.push(span.part(own, len));
                left -= len;
            }
        }
    }

    /// The parts of the command's memory from byte `at` on, `len` bytes.
    pub fn parts(&self, at: usize, len: usize) -> impl Iterator<Item = Span> + '_ {
        let (mut skip, mut left) = (at, len);
        self.spans.iter().filter_map(move |span| {
            let own = span.len().min(skip);
            skip -= own;
            let count = (span.len() - own).min(left);
            left -= count;
            (count > 0).then(|| span.part(own, count))
        })
    }

    /// Copies received bytes to byte `at` of the command's memory.
    pub fn copy_in(&self, at: usize, mut bytes: &[u8]) {
        for part in self.parts(at, bytes.len()) {
            let (own, rest) = bytes.split_at(part.len());
            // SAFETY: the memory of a command that was not answered.
            unsafe { part.base().copy_from_nonoverlapping(own.as_ptr(), own.len()) };
            bytes = rest;
        }
    }

    /// Zeroes `len` bytes of the command's memory from `at` on.
    pub fn zero(&self, at: usize, len: usize) {
        for part in self.parts(at, len) {
            // SAFETY: as for a copy.
            unsafe { part.base().write_bytes(0, part.len()) };
        }
    }
}

fn be_command(header: &[u8; REQUEST_BYTES]) -> u16 {
    wire::be16(header, 6)
}

/// All commands of a device.
#[derive(Debug, Default)]
pub(super) struct Slots {
    table: Vec<Slot>,
    free: Vec<u32>,
}

impl Slots {
    /// Takes a command in; none if there are too many.
    pub fn take(&mut self, command: &Command, batch: CommandBatch<'_>) -> Option<u32> {
        self.take_for(Purpose::Asked, command, batch.spans_of(command).iter().copied())
    }

    /// Takes a command with its memory in; none if there are too many.
    pub fn take_for(
        &mut self,
        purpose: Purpose,
        command: &Command,
        spans: impl Iterator<Item = Span>,
    ) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.table.len() < SLOTS_MAX => {
                self.table.push(Slot {
                    command: *command,
                    purpose,
                    has_room: false,
                    spans: Vec::new(),
                    place: Place::Free,
                    generation: 0,
                    header: [0; REQUEST_BYTES],
                    covered: Coverage::default(),
                    is_told: false,
                    is_hole: false,
                    error: None,
                    covers: 0,
                    losses: 0,
                });
                self.table.len() as u32 - 1
            }
            None => return None,
        };
        let slot = &mut self.table[index as usize];
        (slot.command, slot.purpose, slot.has_room) = (*command, purpose, false);
        slot.spans.clear();
        slot.spans.extend(spans);
        slot.place = Place::Waiting;
        Some(index)
    }

    /// The slot of an index that was given out.
    pub fn slot(&self, index: u32) -> &Slot {
        &self.table[index as usize]
    }

    /// The slot of an index that was given out.
    pub fn slot_mut(&mut self, index: u32) -> &mut Slot {
        &mut self.table[index as usize]
    }

    /// The slot that a cookie names on a connection; none if no command that was sent whole has it.
    pub fn find(&self, cookie: u64, connection: u8) -> Option<u32> {
        let slot = self.table.get(cookie as u32 as usize)?;
        let sent = Place::InFlight { connection, sent: true };
        let is_it = slot.place == sent && u64::from(slot.generation) == cookie >> 32;
        is_it.then_some(cookie as u32)
    }

    /// Gives a waiting command to a connection: it has a cookie of its own, and nothing of an earlier answer.
    pub fn assign(&mut self, index: u32, connection: u8, flags: TransmissionFlags) {
        let slot = &mut self.table[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.place = Place::InFlight { connection, sent: false };
        slot.covered.clear();
        (slot.is_told, slot.is_hole, slot.error) = (false, false, None);
        let (command, command_flags) = request_of(&slot.command, flags);
        slot.header = RequestHeader {
            flags: command_flags.0,
            command: command as u16,
            cookie: u64::from(slot.generation) << 32 | u64::from(index),
            offset: if command == wire::Command::Flush { 0 } else { slot.command.offset },
            len: slot.command.len,
        }
        .encode();
    }

    /// Frees the slot of an answered command.
    pub fn free(&mut self, index: u32) {
        debug_assert!(self.table[index as usize].place != Place::Free, "a command ends once");
        self.table[index as usize].place = Place::Free;
        self.free.push(index);
    }

    /// Indices of the commands that connections have.
    pub fn in_flight(&self) -> Vec<u32> {
        let is_in_flight = |slot: &Slot| matches!(slot.place, Place::InFlight { .. });
        (0..).zip(&self.table).filter(|(_, slot)| is_in_flight(slot)).map(|it| it.0).collect()
    }

    /// The number of commands.
    pub fn count(&self) -> usize {
        self.table.len() - self.free.len()
    }
}

/// The request of a command to a remote that offers `offered`.
fn request_of(command: &Command, offered: TransmissionFlags) -> (wire::Command, CommandFlags) {
    let fua = match command.flags.contains(BioFlags::FUA) {
        true if offered.contains(TransmissionFlags::SEND_FUA) => CommandFlags::FUA,
        _ => CommandFlags::NONE,
    };
    let zeroes = |flags: CommandFlags| {
        let flags = match command.flags.contains(BioFlags::NO_UNMAP) {
            true => flags.with(CommandFlags::NO_HOLE),
            false => flags,
        };
        let fast = command.flags.contains(BioFlags::FAST_ZERO)
            && offered.contains(TransmissionFlags::SEND_FAST_ZERO);
        if fast { flags.with(CommandFlags::FAST_ZERO) } else { flags }
    };
    let can_zero = offered.contains(TransmissionFlags::SEND_WRITE_ZEROES);
    match command.op {
        Op::Read | Op::Prefetch => (wire::Command::Read, CommandFlags::NONE),
        Op::Write if command.spans > 0 || !can_zero => (wire::Command::Write, fua),
        Op::Write | Op::WriteZeroes => (wire::Command::WriteZeroes, zeroes(fua)),
        Op::Flush => (wire::Command::Flush, CommandFlags::NONE),
        Op::Discard => (wire::Command::Trim, fua),
        Op::BlockStatus if command.flags.contains(BioFlags::ONE_EXTENT) => {
            (wire::Command::BlockStatus, CommandFlags::REQ_ONE)
        }
        Op::BlockStatus => (wire::Command::BlockStatus, CommandFlags::NONE),
    }
}
