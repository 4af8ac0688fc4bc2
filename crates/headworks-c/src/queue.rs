//! A queue of the C API: a handle, and what each of its slots is used for.
//!
//! ```text
//!   slot of the program:  hw_slot --> with the program --hw_put--> in flight --completion--> with the program --hw_release--> free
//!   slot of the queue:    hw_read, hw_writev ..: data of a write are copied in --> in flight --data of a read are copied out--> free
//! ```
//!
//! I/Os with memory of the program pass a slot, since devices need aligned memory that outlives the program's mistakes; a slot of
//! the program costs no copy, nor does one piece that begins at a page of memory which the program registered (`hw_register`).
//!
//! Invariants: a slot is in `held`, in flight or free in the handle; `pieces` of a slot are memory of the program until its I/O is
//! completed, and are forgotten with it; no I/O allocates but for a sentence about a mistake. `registered` has no two ranges
//! that share a byte, and changes while nothing is in flight.

use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use headworks::headworks_core::BioFlags;
use headworks::{Handle, Io, IoCompletion, Op, RejectedIo, Slot, VolumeId, WaitOutcome};

use crate::error::Failure;

/// Operation of `hw_put`: reads into the slot.
pub const HW_READ: u32 = 0;
/// Operation of `hw_put`: writes the start of the slot.
pub const HW_WRITE: u32 = 1;
/// Operation of `hw_put`: makes durable what was completed before. Offset and length are 0.
pub const HW_FLUSH: u32 = 2;
/// Operation of `hw_put`: the content of the range is not needed any more. Parts of blocks at its edges stay.
pub const HW_DISCARD: u32 = 3;
/// Operation of `hw_put`: the range reads as zeros afterwards.
pub const HW_WRITE_ZEROES: u32 = 4;

/// Flag of an I/O: completed only when it is durable (writes, discards, zeroing).
pub const HW_FUA: u32 = 1;
/// Flag of a read by `hw_put`: zeros may be left out of the slot, which `HW_COMPLETION_HOLE` then says.
pub const HW_HOLE_OK: u32 = 2;
/// Flag of an I/O: nothing waits for it, so others go first.
pub const HW_BACKGROUND: u32 = 4;
/// Flag of `hw_write_zeroes`: the range stays allocated.
pub const HW_NO_UNMAP: u32 = 8;

/// Flag of a completion: the data are zeros, and the slot is unchanged.
pub const HW_COMPLETION_HOLE: u32 = 1;

/// In a completion: the program has no slot of the I/O.
pub const HW_NO_SLOT: u32 = u32::MAX;
/// Most pieces of `hw_readv` and `hw_writev`.
pub const HW_PIECES_MAX: u32 = 128;
/// Most ranges of memory that a queue has registered.
pub const HW_REGISTERED_MAX: u32 = 16;
/// Devices take memory that begins at one.
const PAGE: usize = 4096;

/// The end of an I/O.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// What the program gave with the I/O.
    pub user_data: u64,
    /// 0, or a negative errno.
    pub result: i32,
    /// The slot of `hw_put`, which is the program's again; else `HW_NO_SLOT`. After a time-out (`-ETIMEDOUT`) it is `HW_NO_SLOT` as well: the device
    /// may still use the slot, and `hw_slot` finds it later.
    pub slot: u32,
    /// `HW_COMPLETION_HOLE`, or 0 for data in the slot.
    pub flags: u32,
    /// 0 in this version.
    pub reserved: u32,
}

/// The volume behind a queue.
#[derive(Clone, Copy)]
pub(crate) struct VolumeFacts {
    pub id: VolumeId,
    pub size: u64,
    pub block_size: u32,
    pub slot_bytes: u64,
    pub read_only: bool,
}

/// Memory of the program.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub base: *mut u8,
    pub len: usize,
}

impl Piece {
    /// Whether another one lies in this one.
    #[inline]
    fn has(self, other: Self) -> bool {
        let at = (other.base as usize).wrapping_sub(self.base as usize);
        at <= self.len && other.len <= self.len - at
    }

    /// Whether they share a byte.
    fn meets(self, other: Self) -> bool {
        let (own, others) = (self.base as usize, other.base as usize);
        own < others + other.len && others < own + self.len
    }
}

/// An I/O as a program asks for it.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    /// One of `HW_READ` to `HW_WRITE_ZEROES`.
    pub op: u32,
    pub offset: u64,
    pub len: u64,
    pub flags: u32,
}

/// What becomes of a slot when its I/O is completed.
#[derive(Clone, Copy)]
enum Use {
    /// It is the program's again.
    Program,
    /// So many pieces get the data of a read, from the slot or directly; it is free then.
    Queue { pieces: usize, direct: bool },
}

/// One thread's queue of I/Os.
pub struct Queue {
    handle: Handle,
    volume: VolumeFacts,
    /// Slots that the program has, by number.
    held: Vec<Option<Slot>>,
    /// By the number of the slot.
    uses: Vec<Use>,
    /// `HW_PIECES_MAX` for each slot.
    pieces: Vec<Piece>,
    /// Memory of the program that the device may use.
    registered: Vec<Piece>,
    done: Vec<IoCompletion>,
    /// A call is inside. It stays so after a panic.
    entered: bool,
}

const NO_SLOT: Failure = Failure::fixed(
    libc::EAGAIN,
    c"all slots of the queue are in use: reap completions, or open the disk with a larger depth",
);
const ENTERED: Failure = Failure::fixed(
    libc::ENOTRECOVERABLE,
    c"a call on this queue panicked before, or another thread is in one: a queue is used by one thread at a time",
);
const ENDED: Failure = Failure::fixed(
    libc::ESHUTDOWN,
    c"the disk's thread has ended: what is in flight is not completed any more",
);
const IDLE: Failure = Failure::fixed(
    libc::ENODATA,
    c"nothing is in flight on the queue: there is nothing to wait for",
);

/// The failure of a slot that the program does not have.
#[cold]
fn not_held(index: u32) -> Failure {
    Failure::invalid(format!(
        "the program does not have slot {index}: hw_slot takes one, a completion gives it back"
    ))
}

/// Copies the data of a read to the program.
///
/// # Safety
/// The pieces are memory of the program that may be written.
#[inline]
unsafe fn scatter(slot: &Slot, hole: bool, pieces: &[Piece]) {
    let mut at = 0;
    for &Piece { base, len } in pieces {
        // SAFETY: as the caller says; the slot is longer than all pieces together.
        unsafe {
            match hole {
                true => base.write_bytes(0, len),
                false => base.copy_from_nonoverlapping(slot[at..at + len].as_ptr(), len),
            }
        }
        at += len;
    }
}

impl Queue {
    pub(crate) fn new(mut handle: Handle, volume: VolumeFacts) -> Self {
        let depth = handle.depth() as usize;
        let none = Piece { base: std::ptr::null_mut(), len: 0 };
        let slots: Vec<Slot> = std::iter::from_fn(|| handle.slot()).collect();
        assert_eq!(slots.len(), depth, "a new handle has all its slots");
        slots.into_iter().for_each(|slot| handle.release(slot));
        Self {
            handle,
            volume,
            held: (0..depth).map(|_| None).collect(),
            uses: vec![Use::Program; depth],
            pieces: vec![none; depth * HW_PIECES_MAX as usize],
            registered: Vec::with_capacity(HW_REGISTERED_MAX as usize),
            done: Vec::with_capacity(2 * depth),
            entered: false,
        }
    }

    /// Begins a call.
    #[inline]
    pub(crate) fn enter(&mut self) -> Result<(), Failure> {
        match std::mem::replace(&mut self.entered, true) {
            false => Ok(()),
            true => Err(ENTERED),
        }
    }

    /// Ends a call that did not panic.
    #[inline]
    pub(crate) fn leave(&mut self) {
        self.entered = false;
    }

    pub(crate) fn depth(&self) -> u32 {
        self.handle.depth()
    }

    pub(crate) fn slot_bytes(&self) -> u64 {
        self.volume.slot_bytes
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.handle.as_raw_fd()
    }

    /// Takes a free slot for the program.
    #[inline]
    pub(crate) fn take_slot(&mut self) -> Result<u32, Failure> {
        let slot = self.handle.slot().ok_or(NO_SLOT)?;
        let index = slot.index();
        self.held[index as usize] = Some(slot);
        Ok(index)
    }

    /// The program's slot of a number.
    #[inline]
    fn held(&mut self, index: u32) -> Result<&mut Option<Slot>, Failure> {
        let held = self.held.get_mut(index as usize).filter(|held| held.is_some());
        held.ok_or_else(|| not_held(index))
    }

    /// Frees a slot of the program.
    #[inline]
    pub(crate) fn release(&mut self, index: u32) -> Result<(), Failure> {
        let slot = self.held(index)?.take();
        slot.into_iter().for_each(|slot| self.handle.release(slot));
        Ok(())
    }

    /// The memory of a slot of the program.
    #[inline]
    pub(crate) fn buffer(&mut self, index: u32) -> Result<*mut u8, Failure> {
        let slot = self.held(index)?.as_mut();
        slot.map(|slot| slot.as_mut_ptr()).ok_or_else(|| not_held(index))
    }

    /// Lets I/Os use memory of the program where it is.
    ///
    /// # Safety
    /// The memory may be read and written until it is forgotten; after a time-out until the slot of that I/O is back.
    pub(crate) unsafe fn register(&mut self, memory: Piece) -> Result<(), Failure> {
        self.check_idle()?;
        let Piece { base, len } = memory;
        if base.is_null() || len == 0 || !(base as usize | len).is_multiple_of(PAGE) {
            return Err(Failure::invalid(format!(
                "{len} bytes at {base:p} are no whole pages: align both to {PAGE}"
            )));
        }
        if (base as usize).checked_add(len).is_none() {
            return Err(Failure::invalid(format!(
                "{len} bytes at {base:p}: no program has so many"
            )));
        }
        if self.registered.iter().any(|other| other.meets(memory)) {
            return Err(Failure::new(libc::EEXIST, "a part of the memory is registered"));
        }
        if self.registered.len() == HW_REGISTERED_MAX as usize {
            let message = format!("{HW_REGISTERED_MAX} ranges are registered: hw_unregister one");
            return Err(Failure::new(libc::ENOSPC, message));
        }
        self.registered.push(memory);
        Ok(())
    }

    /// Forgets registered memory.
    pub(crate) fn unregister(&mut self, base: *mut u8) -> Result<(), Failure> {
        self.check_idle()?;
        // After a time-out the device has the memory until the slot is back.
        self.handle.reap(usize::MAX, &mut self.done);
        let free: Vec<Slot> = std::iter::from_fn(|| self.handle.slot()).collect();
        let back = free.len() + self.held.iter().flatten().count();
        free.into_iter().for_each(|slot| self.handle.release(slot));
        if back < self.held.len() {
            return Err(Failure::new(
                libc::EBUSY,
                "the device has not answered an I/O that timed out, and may use the memory still",
            ));
        }
        let found = self.registered.iter().position(|memory| memory.base == base);
        let index = found
            .ok_or_else(|| Failure::invalid(format!("no registered memory begins at {base:p}")))?;
        self.registered.swap_remove(index);
        Ok(())
    }

    /// Adds an I/O with a slot of the program.
    #[inline]
    pub(crate) fn put(
        &mut self,
        index: u32,
        request: Request,
        user_data: u64,
    ) -> Result<(), Failure> {
        let io = self.checked(request)?.user_data(user_data);
        let slot = self.held(index)?.take().ok_or_else(|| not_held(index))?;
        self.uses[index as usize] = Use::Program;
        self.send(slot, io)
    }

    /// Adds an I/O with a slot of the queue: with data in the pieces, or without data.
    ///
    /// # Safety
    /// The pieces are memory that may be read, or written until the completion of a read.
    #[inline]
    pub(crate) unsafe fn transfer(
        &mut self,
        request: Request,
        user_data: u64,
        pieces: impl ExactSizeIterator<Item = Piece> + Clone,
    ) -> Result<(), Failure> {
        let count = pieces.len();
        if count > HW_PIECES_MAX as usize {
            return Err(Failure::invalid(format!("{count} pieces are more than {HW_PIECES_MAX}")));
        }
        let reads = request.op == HW_READ;
        let flags = request.flags | if reads { HW_HOLE_OK } else { 0 };
        let io = self.checked(Request { flags, ..request })?.user_data(user_data);
        if pieces.clone().any(|piece| piece.base.is_null() && piece.len > 0) {
            return Err(Failure::invalid("the buffer is null"));
        }
        let mut slot = self.handle.slot().ok_or(NO_SLOT)?;
        let index = slot.index() as usize;
        let one = pieces.clone().next().filter(|_| count == 1);
        let direct = one.filter(|&piece| self.is_registered(piece));
        if reads {
            let first = index * HW_PIECES_MAX as usize;
            let kept = &mut self.pieces[first..first + count];
            kept.iter_mut().zip(pieces).for_each(|(kept, piece)| *kept = piece);
            self.uses[index] = Use::Queue { pieces: count, direct: direct.is_some() };
        } else {
            self.uses[index] = Use::Queue { pieces: 0, direct: false };
            let mut at = 0;
            for Piece { base, len } in pieces.take(if direct.is_some() { 0 } else { count }) {
                // SAFETY: memory of the program, says the caller; the slot is longer than all pieces together, which `checked` has found.
                unsafe { slot[at..at + len].as_mut_ptr().copy_from_nonoverlapping(base, len) };
                at += len;
            }
        }
        let Some(Piece { base, .. }) = direct else { return self.send(slot, io) };
        // SAFETY: the program has promised for registered memory what the handle asks for.
        let sent = unsafe { self.handle.put_with(self.volume.id, slot, io, base) };
        sent.map_err(|rejected| self.refused(rejected))
    }

    /// Whether a piece lies in registered memory, as devices need it.
    #[inline]
    fn is_registered(&self, piece: Piece) -> bool {
        (piece.base as usize).is_multiple_of(PAGE)
            && self.registered.iter().any(|memory| memory.has(piece))
    }

    #[inline]
    fn send(&mut self, slot: Slot, io: Io) -> Result<(), Failure> {
        self.handle.put(self.volume.id, slot, io).map_err(|rejected| self.refused(rejected))
    }

    #[cold]
    fn refused(&mut self, RejectedIo { slot, reason }: RejectedIo) -> Failure {
        self.handle.release(slot);
        Failure::invalid(reason)
    }

    /// What a program asked for, as an I/O.
    #[inline]
    fn checked(&self, request: Request) -> Result<Io, Failure> {
        let Request { op, offset, len, flags } = request;
        let most = if op <= HW_WRITE { self.volume.slot_bytes } else { u64::from(u32::MAX) };
        let op = self.check(request, most)?;
        let mut io = Io::new(op, offset, len as u32);
        if flags & HW_FUA != 0 {
            io = io.fua();
        }
        if flags & HW_HOLE_OK != 0 {
            io = io.allow_hole();
        }
        if flags & HW_NO_UNMAP != 0 {
            io = io.flags(BioFlags::NO_UNMAP);
        }
        Ok(if flags & HW_BACKGROUND != 0 { io.background() } else { io })
    }

    /// Checks what a program asked for, of at most so many bytes, against the volume.
    #[inline]
    fn check(&self, request: Request, most: u64) -> Result<Op, Failure> {
        let Request { op, offset, len, flags } = request;
        let volume = &self.volume;
        let (op, known) = match op {
            HW_READ => (Op::Read, HW_HOLE_OK | HW_BACKGROUND),
            HW_WRITE => (Op::Write, HW_FUA | HW_BACKGROUND),
            HW_FLUSH => (Op::Flush, 0),
            HW_DISCARD => (Op::Discard, HW_FUA | HW_BACKGROUND),
            HW_WRITE_ZEROES => (Op::WriteZeroes, HW_FUA | HW_BACKGROUND | HW_NO_UNMAP),
            _ => {
                let message =
                    format!("{op} is no operation: use one of HW_READ to HW_WRITE_ZEROES");
                return Err(Failure::invalid(message));
            }
        };
        let is_in_range = match op {
            Op::Flush => offset == 0 && len == 0,
            _ => len > 0 && offset.checked_add(len).is_some_and(|end| end <= volume.size),
        };
        // A discard leaves parts of blocks alone.
        let is_whole =
            op == Op::Discard || (offset | len) & (u64::from(volume.block_size) - 1) == 0;
        let is_allowed = !volume.read_only || matches!(op, Op::Read | Op::Flush);
        if is_in_range && is_whole && is_allowed && len <= most && flags & !known == 0 {
            return Ok(op);
        }
        Err(self.refusal(request, op, known, most))
    }

    /// Why an I/O is refused.
    #[cold]
    fn refusal(&self, request: Request, op: Op, known: u32, most: u64) -> Failure {
        let Request { offset, len, flags, .. } = request;
        let VolumeFacts { size, block_size, slot_bytes, read_only, .. } = self.volume;
        let name = op.name();
        let writes = !matches!(op, Op::Read | Op::Flush);
        Failure::invalid(if flags & !known != 0 {
            format!("flags {flags:#x} of a {name}: it may have {known:#x}")
        } else if op == Op::Flush {
            format!("a flush of {len} bytes at {offset}: both are 0, it is of the whole disk")
        } else if len == 0 {
            format!("a {name} of 0 bytes: at least a block of {block_size} bytes")
        } else if offset.checked_add(len).is_none_or(|end| end > size) {
            format!("a {name} of {len} bytes at {offset} is beyond the end of the disk, {size}")
        } else if read_only && writes {
            return Failure::new(libc::EPERM, format!("the disk is read-only: no {name}"));
        } else if len > most {
            format!("a {name} of {len} bytes: at most {most}, with slot_bytes {slot_bytes}")
        } else {
            format!(
                "a {name} of {len} bytes at {offset} is no whole blocks of {block_size} bytes: align both, or open with cache_bytes"
            )
        })
    }

    /// Sends what was put.
    #[inline]
    pub(crate) fn submit(&mut self) {
        self.handle.submit();
    }

    /// Hands out completions that are there; returns how many.
    #[inline]
    pub(crate) fn reap(&mut self, out: &mut [std::mem::MaybeUninit<Completion>]) -> usize {
        let Self { handle, held, uses, pieces, done, .. } = self;
        handle.reap(out.len(), done);
        let count = done.len();
        for (completion, out) in done.drain(..).zip(out) {
            let IoCompletion { user_data, status, hole, slot } = completion;
            let result = status.err().map_or(0, |error| -error.errno());
            let mut given = Completion {
                user_data,
                result,
                slot: HW_NO_SLOT,
                flags: if hole { HW_COMPLETION_HOLE } else { 0 },
                reserved: 0,
            };
            if let Some(slot) = slot {
                let index = slot.index() as usize;
                match uses[index] {
                    Use::Program => {
                        given.slot = slot.index();
                        held[index] = Some(slot);
                    }
                    Use::Queue { pieces: count, direct } => {
                        if status.is_ok() && (hole || !direct) {
                            let first = index * HW_PIECES_MAX as usize;
                            // SAFETY: memory of the program until this completion, as `transfer` demands.
                            unsafe { scatter(&slot, hole, &pieces[first..first + count]) };
                        }
                        given.flags = 0;
                        handle.release(slot);
                    }
                }
            }
            out.write(given);
        }
        count
    }

    /// Waits until `reap` may have something: true, or false after so many milliseconds. Less than 0: without limit.
    pub(crate) fn wait(&mut self, timeout_ms: i32) -> Result<bool, Failure> {
        let Ok(limit) = u64::try_from(timeout_ms) else {
            return self.outcome();
        };
        let until = Instant::now() + Duration::from_millis(limit);
        loop {
            if !self.handle.arm() {
                // There is something, or nothing is in flight, or the owner has ended: a wait ends at once.
                return self.outcome();
            }
            let left = until.saturating_duration_since(Instant::now());
            // Rounded up, or the last millisecond would be polled away.
            let left = left.as_nanos().div_ceil(1_000_000) as i32;
            let mut polled = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry, which lives until the call has returned.
            match unsafe { libc::poll(&raw mut polled, 1, left) } {
                0 => return Ok(false),
                1.. => return Ok(true),
                // A signal; arming again is harmless.
                _ => {}
            }
        }
    }

    fn outcome(&mut self) -> Result<bool, Failure> {
        match self.handle.wait() {
            WaitOutcome::Ready => Ok(true),
            WaitOutcome::Idle => Err(IDLE),
            WaitOutcome::OwnerEnded => Err(ENDED),
        }
    }

    /// Sends what was put and arms the descriptor; false if there is nothing to wait for.
    pub(crate) fn arm(&mut self) -> bool {
        self.handle.arm()
    }

    /// Reads and waits.
    pub(crate) fn read_now(&mut self, offset: u64, bytes: &mut [u8]) -> Result<(), Failure> {
        self.check_now(HW_READ, offset, bytes.len())?;
        Ok(self.handle.read(self.volume.id, offset, bytes)?)
    }

    /// Writes and waits.
    pub(crate) fn write_now(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        self.check_now(HW_WRITE, offset, bytes.len())?;
        Ok(self.handle.write(self.volume.id, offset, bytes)?)
    }

    /// Flushes and waits.
    pub(crate) fn flush_now(&mut self) -> Result<(), Failure> {
        self.check_idle()?;
        Ok(self.handle.flush(self.volume.id)?)
    }

    /// A call that waits divides its range, so it may have any length.
    fn check_now(&self, op: u32, offset: u64, len: usize) -> Result<(), Failure> {
        self.check_idle()?;
        let request = Request { op, offset, len: len as u64, flags: 0 };
        self.check(request, u64::MAX).map(|_| ())
    }

    fn check_idle(&self) -> Result<(), Failure> {
        match self.handle.outstanding() {
            0 => Ok(()),
            n => Err(Failure::new(
                libc::EBUSY,
                format!("{n} I/Os of the queue have no completion yet: reap them first"),
            )),
        }
    }
}
