//! One ring on the driver's side.
//!
//! Invariants: a slot is free or in flight; the descriptors of a slot's chain are its own, so a head names its slot. An answer for a slot
//! that is not in flight is counted as a double one and changes nothing. A wait ends with the connection: a device that has gone answers no more.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::DriverOptions;
use super::memory::{DriverMemory, QueuePlaces, SLOT_BYTES};
use crate::SECTOR;
use crate::chain::Descriptor;
use crate::features::{EVENT_IDX, INDIRECT};
use crate::notify::{self, Wish};
use crate::request::RequestOp;
use crate::sync::{AtomicU16, Ordering};
use crate::wire::RingAddresses;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT_FLAG: u16 = 4;
/// What a status byte holds before the device writes it.
const NO_STATUS: u8 = 0xff;
/// How often a queue that polls looks whether its connection has ended.
const PEER_LOOK_EVERY: Duration = Duration::from_millis(1);

/// How a queue waits for answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waiting {
    /// It asks for a notification and sleeps.
    #[default]
    Sleep,
    /// It looks at the used index again and again.
    Poll,
}

/// How a wait for answers ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Waited {
    /// There is an answer.
    Answered,
    /// There is none, and the time has passed.
    TimedOut,
    /// There is none, and the device has closed the connection.
    Closed,
}

/// An answer of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotStatus {
    /// The slot of the request.
    pub slot: u16,
    /// The status byte: 0 done, 1 failed, 2 not supported, 255 not written.
    pub status: u8,
    /// Bytes that the device says it has written, with the status.
    pub written: u32,
}

/// What a queue has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Kicks, a system call each.
    pub kicks: u64,
    /// Sleeps for an answer.
    pub waits: u64,
    /// Answers for slots that were not in flight, or heads that no slot has.
    pub strays: u64,
}

/// A ring and its slots.
#[derive(Debug)]
pub struct Queue {
    memory: Arc<DriverMemory>,
    places: QueuePlaces,
    index: u16,
    size: u16,
    depth: u16,
    pieces: u16,
    // Descriptors of a slot in the ring's table.
    stride: u16,
    is_indirect: bool,
    wish: Wish,
    waiting: Waiting,
    kick: OwnedFd,
    call: OwnedFd,
    // The connection's socket, while the ring is started on it.
    peer: Option<OwnedFd>,
    available: u16,
    published: u16,
    used: u16,
    is_busy: Box<[bool]>,
    counts: QueueCounts,
}

impl Queue {
    pub(crate) fn new(
        memory: &Arc<DriverMemory>,
        options: &DriverOptions,
        index: u16,
        features: u64,
    ) -> io::Result<Self> {
        let is_indirect = options.is_indirect && features & INDIRECT != 0;
        let queue = Self {
            memory: Arc::clone(memory),
            places: memory.places(index),
            index,
            size: options.queue_size(),
            depth: options.depth,
            pieces: options.pieces,
            stride: if is_indirect { 1 } else { options.pieces + 2 },
            is_indirect,
            wish: if features & EVENT_IDX != 0 { Wish::EventIndex } else { Wish::Flags },
            waiting: options.waiting,
            kick: event_fd()?,
            call: event_fd()?,
            peer: None,
            available: 0,
            published: 0,
            used: 0,
            is_busy: vec![false; usize::from(options.depth)].into(),
            counts: QueueCounts::default(),
        };
        // While polling nothing is asked for; an event index half a ring of numbers away says so, too.
        notify::disarm(queue.word(queue.own_wish()), queue.wish);
        if queue.wish == Wish::EventIndex {
            queue.word(queue.own_wish()).store(0x8000, Ordering::Relaxed);
        }
        Ok(queue)
    }

    /// Index of the ring in its device.
    #[must_use]
    pub fn index(&self) -> u16 {
        self.index
    }

    /// Number of descriptors of the ring.
    #[must_use]
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Returns the number of slots.
    #[must_use]
    pub fn depth(&self) -> u16 {
        self.depth
    }

    /// What the queue has counted since it was made.
    #[must_use]
    pub fn counts(&self) -> QueueCounts {
        self.counts
    }

    /// Whether a slot's request is in flight.
    #[must_use]
    pub fn is_in_flight(&self, slot: u16) -> bool {
        self.is_busy[usize::from(slot)]
    }

    /// Number of requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.is_busy.iter().filter(|is_busy| **is_busy).count()
    }

    pub(crate) fn addresses(&self) -> RingAddresses {
        let user = |place: usize| self.memory.at(place).addr() as u64;
        RingAddresses {
            descriptors: user(self.places.descriptors),
            used: user(self.places.used),
            available: user(self.places.available),
            log: None,
        }
    }

    pub(crate) fn kick_fd(&self) -> RawFd {
        self.kick.as_raw_fd()
    }

    pub(crate) fn call_fd(&self) -> RawFd {
        self.call.as_raw_fd()
    }

    /// Sets the connection whose end ends a wait.
    pub(crate) fn set_peer(&mut self, peer: Option<OwnedFd>) {
        self.peer = peer;
    }

    fn word(&self, place: usize) -> &AtomicU16 {
        // SAFETY: the place is an even one within the memory of this queue's rings, which lives as long as the queue. The device
        // accesses the word atomically, too.
        unsafe { &*self.memory.at(place).cast::<AtomicU16>() }
    }

    fn own_wish(&self) -> usize {
        match self.wish {
            Wish::EventIndex => self.places.available + 4 + 2 * usize::from(self.size),
            Wish::Flags => self.places.available,
        }
    }

    fn device_wish(&self) -> usize {
        match self.wish {
            Wish::EventIndex => self.places.used + 4 + 8 * usize::from(self.size),
            Wish::Flags => self.places.used,
        }
    }

    /// The ring's used index, which the device writes.
    #[must_use]
    pub fn used_index(&self) -> u16 {
        self.word(self.places.used + 2).load(Ordering::Acquire)
    }

    /// The buffer of a slot: its address and length. While the slot is in flight the device reads or writes it.
    #[must_use]
    pub fn buffer(&mut self, slot: u16) -> &mut [u8] {
        assert!(
            !self.is_busy[usize::from(slot)],
            "the buffer of a request in flight is the device's"
        );
        let place = self.places.buffers + self.places.buffer_bytes * usize::from(slot);
        // SAFETY: the buffer is memory of this queue alone, and the device has no request that names it.
        unsafe { std::slice::from_raw_parts_mut(self.memory.at(place), self.places.buffer_bytes) }
    }

    /// Puts a request of a free slot into the ring, where [`Queue::submit`] shows it to the device. `len` is at most the buffer's length;
    /// a discard or write-zeroes is one segment, with `flags` as its flags.
    pub fn put(&mut self, slot: u16, op: RequestOp, offset: u64, len: u32, flags: u32) {
        let kind = match op {
            RequestOp::Read => 0,
            RequestOp::Write => 1,
            RequestOp::Flush => 4,
            RequestOp::Discard => 11,
            RequestOp::WriteZeroes => 13,
        };
        let (data, is_written) = match op {
            RequestOp::Read => (len, true),
            RequestOp::Write => (len, false),
            RequestOp::Flush => (0, false),
            RequestOp::Discard | RequestOp::WriteZeroes => {
                let count = len / SECTOR as u32;
                let buffer = &mut self.buffer(slot)[..16];
                buffer[..8].copy_from_slice(&(offset / SECTOR).to_le_bytes());
                buffer[8..12].copy_from_slice(&count.to_le_bytes());
                buffer[12..].copy_from_slice(&flags.to_le_bytes());
                (16, false)
            }
        };
        let is_placed = matches!(op, RequestOp::Read | RequestOp::Write);
        self.put_raw(slot, kind, if is_placed { offset / SECTOR } else { 0 }, data, is_written);
    }

    /// As [`Queue::put`], with any type and sector, and `len` bytes of the buffer as data.
    pub fn put_raw(&mut self, slot: u16, kind: u32, sector: u64, len: u32, is_written: bool) {
        let count = if len == 0 { 0 } else { u32::from(self.pieces).min(len) };
        let cut = |piece: u32| (u64::from(len) * u64::from(piece) / u64::from(count)) as u32;
        let even = (0..count).map(|piece| (cut(piece), cut(piece + 1) - cut(piece)));
        self.put_chain(slot, (kind, sector), even, is_written);
    }

    /// Puts a read or write as [`Queue::put`] does, whose data are these parts of the buffer in their order: first byte, and number of bytes.
    /// At most [`DriverOptions::pieces`](super::DriverOptions::pieces) of them; they may overlap.
    pub fn put_pieces(&mut self, slot: u16, is_read: bool, offset: u64, pieces: &[(u32, u32)]) {
        assert!(pieces.len() <= usize::from(self.pieces), "a slot has room for its pieces alone");
        let kind = u32::from(!is_read);
        self.put_chain(slot, (kind, offset / SECTOR), pieces.iter().copied(), is_read);
    }

    fn put_chain(
        &mut self,
        slot: u16,
        (kind, sector): (u32, u64),
        pieces: impl Iterator<Item = (u32, u32)>,
        is_written: bool,
    ) {
        let place = usize::from(slot);
        assert!(!self.is_busy[place], "a slot is one request at a time");
        let at = self.places.slots + SLOT_BYTES * place;
        let header = self.memory.at(at);
        // SAFETY: the slot's 32 bytes are aligned memory of this queue, and no request names them.
        unsafe {
            header.cast::<[u32; 2]>().write_volatile([kind, 0]);
            header.wrapping_add(8).cast::<u64>().write_volatile(sector);
            header.wrapping_add(16).write_volatile(NO_STATUS);
        }
        self.describe(slot, at, pieces, is_written);
        self.is_busy[place] = true;
        let entry = usize::from(self.available & (self.size - 1));
        let head = slot * self.stride;
        self.word(self.places.available + 4 + 2 * entry).store(head, Ordering::Relaxed);
        self.available = self.available.wrapping_add(1);
    }

    /// Writes the descriptors of a slot's chain.
    fn describe(
        &mut self,
        slot: u16,
        header: usize,
        pieces: impl Iterator<Item = (u32, u32)>,
        is_written: bool,
    ) {
        let first = slot * self.stride;
        let table = self.places.tables + self.places.table_bytes * usize::from(slot);
        let (base, begin) = match self.is_indirect {
            true => (self.memory.at(table), 0),
            false => (self.memory.at(self.places.descriptors), first),
        };
        let mut index = begin;
        let mut write = |address: u64, len: u32, flags: u16| {
            let place = base.wrapping_add(16 * usize::from(index)).cast::<Descriptor>();
            index += 1;
            let next = if flags & NEXT != 0 { index } else { 0 };
            // SAFETY: the descriptor is one of the slot's own, aligned to 16.
            unsafe { place.write_volatile(Descriptor { address, len, flags, next }) };
        };
        let guest = |place: usize| self.memory.guest(place);
        write(guest(header), 16, NEXT);
        let buffer = self.places.buffers + self.places.buffer_bytes * usize::from(slot);
        for (from, len) in pieces {
            let end = u64::from(from) + u64::from(len);
            assert!(end <= self.places.buffer_bytes as u64, "data fit the buffer");
            let flags = NEXT | if is_written { WRITE } else { 0 };
            write(guest(buffer + from as usize), len, flags);
        }
        write(guest(header + 16), 1, WRITE);
        if self.is_indirect {
            let descriptors = index - begin;
            let place = self.memory.at(self.places.descriptors + 16 * usize::from(first));
            let len = 16 * u32::from(descriptors);
            let one = Descriptor { address: guest(table), len, flags: INDIRECT_FLAG, next: 0 };
            // SAFETY: the descriptor is the slot's own.
            unsafe { place.cast::<Descriptor>().write_volatile(one) };
        }
    }

    /// Shows the device what was put, and kicks it if it wants that.
    pub fn submit(&mut self) {
        if self.available == self.published {
            return;
        }
        let (old, new) = (self.published, self.available);
        let index = self.word(self.places.available + 2);
        let is_wanted = notify::publish(index, self.word(self.device_wish()), self.wish, old, new);
        self.published = new;
        if is_wanted {
            self.kick();
        }
    }

    /// Kicks the device, whether it wants that or not.
    pub fn kick(&mut self) {
        self.counts.kicks += 1;
        // SAFETY: eight bytes of a value that lives until the call has returned.
        unsafe { libc::write(self.kick.as_raw_fd(), (&raw const ONE).cast(), 8) };
    }

    /// Calls `each` with the answers that are there; returns how many.
    pub fn reap(&mut self, mut each: impl FnMut(SlotStatus)) -> usize {
        let end = self.used_index();
        let mut count = 0;
        while self.used != end {
            let entry = usize::from(self.used & (self.size - 1));
            let element = self.memory.at(self.places.used + 4 + 8 * entry).cast::<[u32; 2]>();
            // SAFETY: the element is within the used ring; the Acquire of the index orders the device's write before this.
            let [head, written] = unsafe { element.read_volatile() };
            self.used = self.used.wrapping_add(1);
            count += 1;
            let slot = head / u32::from(self.stride);
            let is_own = head.is_multiple_of(u32::from(self.stride));
            let busy = self.is_busy.get_mut(slot as usize).filter(|is_busy| is_own && **is_busy);
            let Some(is_busy) = busy else {
                self.counts.strays += 1;
                continue;
            };
            *is_busy = false;
            let status = self.places.slots + SLOT_BYTES * slot as usize + 16;
            // SAFETY: the status byte is memory of this queue, which the device has written before the index.
            let status = unsafe { self.memory.at(status).read_volatile() };
            each(SlotStatus { slot: slot as u16, status, written });
        }
        count
    }

    /// Waits until there is an answer, `timeout` has passed or the device has closed the connection.
    pub fn wait(&mut self, timeout: Duration) -> Waited {
        if self.has_answer() {
            return Waited::Answered;
        }
        let ended = match self.waiting {
            Waiting::Poll => self.spin(timeout),
            Waiting::Sleep => self.sleep(timeout),
        };
        // What the device has answered before its end counts.
        if self.has_answer() { Waited::Answered } else { ended }
    }

    fn has_answer(&self) -> bool {
        self.used_index() != self.used
    }

    fn spin(&self, timeout: Duration) -> Waited {
        // The clock costs more than a look, and the socket more than the clock: they are asked once in many.
        let mut times = None;
        loop {
            for _ in 0..1024 {
                if self.has_answer() {
                    return Waited::Answered;
                }
                std::hint::spin_loop();
            }
            // The device may need this CPU.
            std::thread::yield_now();
            let now = Instant::now();
            let (deadline, look) = times.get_or_insert((now + timeout, now + PEER_LOOK_EVERY));
            if now >= *deadline {
                return Waited::TimedOut;
            }
            if now >= *look {
                *look = now + PEER_LOOK_EVERY;
                if self.poll(Duration::ZERO, false) {
                    return Waited::Closed;
                }
            }
        }
    }

    /// A notification may be of an answer that was reaped before: then it sleeps again.
    fn sleep(&mut self, timeout: Duration) -> Waited {
        let deadline = Instant::now() + timeout;
        let ended = loop {
            let index = self.word(self.places.used + 2);
            if notify::arm(index, self.word(self.own_wish()), self.wish, self.used) {
                break Waited::Answered;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break Waited::TimedOut;
            }
            self.counts.waits += 1;
            if self.poll(left, true) {
                break Waited::Closed;
            }
        };
        notify::disarm(self.word(self.own_wish()), self.wish);
        ended
    }

    /// Waits for the end of the connection and, with `takes_calls`, for a notification, which it takes; returns whether the connection has
    /// ended.
    fn poll(&self, timeout: Duration, takes_calls: bool) -> bool {
        let call = self.call.as_raw_fd();
        let millis = timeout.as_micros().div_ceil(1000);
        let millis = i32::try_from(millis).unwrap_or(i32::MAX);
        let asked = |fd, events| libc::pollfd { fd, events, revents: 0 };
        // Negative descriptors are passed over.
        let mut fds = [
            asked(self.peer.as_ref().map_or(-1, AsRawFd::as_raw_fd), libc::POLLRDHUP),
            asked(if takes_calls { call } else { -1 }, libc::POLLIN),
        ];
        let mut count = 0_u64;
        // SAFETY: two structures, and eight bytes; all live until the calls have returned. The descriptor does not block.
        unsafe {
            // A signal is as a notification of nothing.
            if libc::poll(fds.as_mut_ptr(), 2, millis) <= 0 {
                return false;
            }
            if fds[1].revents != 0 {
                libc::read(call, (&raw mut count).cast(), 8);
            }
        }
        fds[0].revents != 0
    }
}

static ONE: u64 = 1;

fn event_fd() -> io::Result<OwnedFd> {
    // SAFETY: the call takes no memory; the descriptor is new and belongs to nothing else.
    unsafe {
        match libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}
