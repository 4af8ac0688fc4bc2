//! One split ring on the device's side.
//!
//! ```text
//!   Stopped --start--> Started --enable--> Running --stop--> Draining --in flight 0--> Stopped (base answered)
//!                         ^----disable-------'   `--nonsense, fault--> Broken (ERR signalled; only a reset or a new connection helps)
//! ```
//!
//! A turn takes at most a bounded number of heads, answers what has completed, publishes `used.idx` once and notifies at most once.
//! Nothing is allocated and no system call is made for a request; the notification is one for a turn.
//!
//! Invariants: a head is in flight at most once; `in_flight` is the number of busy slots; each head taken gets exactly one used element,
//! unless the ring breaks, after which nothing is written to guest memory (V2). With an in-flight region the stores of `in_flight`
//! surround those of the ring in the order given there.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use crate::chain::{Chain, SPANS_MAX, Table};
use crate::config_space::Disk;
use crate::event::{CallFd, EventFd};
use crate::features::{self, Features};
use crate::in_flight::{InFlightRegion, Track};
use crate::log::DirtyLog;
use crate::memory::{GuestMemory, Span};
use crate::notify::{self, Wish};
use crate::observer::{NoObserver, StoreObserver};
use crate::request::{Asked, Outcome, Parser, Request, RequestOp, STATUS_OK, Ticket};
use crate::spans::{SpanList, SpanStore};
use crate::sync::{AtomicU16, Ordering};
use crate::wire::RingAddresses;

/// What all rings of a device share during a turn.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) memory: Arc<GuestMemory>,
    /// The table of before, while requests in flight have spans of it.
    pub(crate) old_memory: Option<Arc<GuestMemory>>,
    pub(crate) features: Features,
    pub(crate) disk: Disk,
    pub(crate) log: Option<Arc<DirtyLog>>,
    /// The driver has switched the cache off, or never negotiated FLUSH: writes carry FUA.
    pub(crate) is_write_through: bool,
    pub(crate) chain: Chain,
    pub(crate) parser: Parser,
    /// The table of memory that requests taken now use: 0 or 1, see `Device`.
    pub(crate) generation: usize,
    /// Requests in flight by the table that their spans are of.
    pub(crate) in_flight: [u32; 2],
}

impl Shared {
    fn wish(&self) -> Wish {
        if self.features.has(features::EVENT_IDX) { Wish::EventIndex } else { Wish::Flags }
    }

    /// The log, if LOG_ALL is negotiated.
    fn log(&self) -> Option<&DirtyLog> {
        self.log.as_deref().filter(|_| self.features.has(features::LOG_ALL))
    }

    /// Notes that memory of this process was written.
    fn mark(&self, log: &DirtyLog, span: Span) {
        let old = self.old_memory.as_ref().and_then(|old| old.guest_address(span.base()));
        if let Some((address, left)) = self.memory.guest_address(span.base()).or(old) {
            log.mark(address, left.min(span.len() as u64));
        }
    }
}

/// The places of a ring in this process.
#[derive(Clone, Copy, Debug)]
struct View {
    descriptors: Table,
    available: *mut u8,
    used: *mut u8,
    num: u16,
}

impl View {
    /// Finds the ring in memory; the error is a sentence.
    fn new(memory: &GuestMemory, at: &RingAddresses, num: u16) -> Result<Self, String> {
        let n = u64::from(num);
        let find = |what: &str, address: u64, len: u64, alignment: usize| {
            let place = memory.user_range(address, len);
            let place = place.filter(|place| place.addr() % alignment == 0);
            place.ok_or_else(|| {
                format!("the {what} of {num} at {address:#x} is not aligned memory of one region")
            })
        };
        let base = find("descriptor table", at.descriptors, 16 * n, 16)?;
        let available = find("available ring", at.available, 6 + 2 * n, 2)?;
        let used = find("used ring", at.used, 6 + 8 * n, 4)?;
        // SAFETY: the table is in a region, which stays mapped while the ring may use it.
        Ok(Self { descriptors: unsafe { Table::new(base, num) }, available, used, num })
    }

    fn word(base: *mut u8, at: usize) -> &'static AtomicU16 {
        // SAFETY: callers pass places within the rings that `new` has found and checked for alignment; the lifetime ends in each of
        // them. The driver accesses the word atomically, too.
        unsafe { &*base.wrapping_add(at).cast::<AtomicU16>() }
    }

    fn available_index(&self) -> &AtomicU16 {
        Self::word(self.available, 2)
    }

    fn used_index(&self) -> &AtomicU16 {
        Self::word(self.used, 2)
    }

    /// Where the driver says whether it wants to be notified.
    fn driver_wish(&self, wish: Wish) -> &AtomicU16 {
        match wish {
            Wish::EventIndex => Self::word(self.available, 4 + 2 * usize::from(self.num)),
            Wish::Flags => Self::word(self.available, 0),
        }
    }

    /// Where this side says whether it wants to be notified.
    fn own_wish(&self, wish: Wish) -> &AtomicU16 {
        match wish {
            Wish::EventIndex => Self::word(self.used, 4 + 8 * usize::from(self.num)),
            Wish::Flags => Self::word(self.used, 0),
        }
    }

    #[inline]
    fn head(&self, index: u16) -> u16 {
        let place = usize::from(index & (self.num - 1));
        Self::word(self.available, 4 + 2 * place).load(Ordering::Relaxed)
    }

    #[inline]
    fn write_used(&self, index: u16, head: u16, written: u32) {
        let place = 4 + 8 * usize::from(index & (self.num - 1));
        let element = self.used.wrapping_add(place).cast::<[u32; 2]>();
        // SAFETY: the element is within the used ring, which is aligned to 4.
        unsafe { element.write_volatile([u32::from(head), written]) };
    }
}

/// One head in flight.
#[derive(Clone, Copy, Debug)]
struct Slot {
    spans: SpanList,
    status: *mut u8,
    /// Bytes of data.
    len: u32,
    /// Requests of this head that have not completed.
    left: u16,
    fail: u8,
    generation: u8,
    is_busy: bool,
    is_read: bool,
}

const FREE: Slot = Slot {
    spans: SpanList::EMPTY,
    status: std::ptr::null_mut(),
    len: 0,
    left: 0,
    fail: STATUS_OK,
    generation: 0,
    is_busy: false,
    is_read: false,
};

/// Where a ring is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Started,
    Draining,
    Stopped,
    Broken,
}

/// What a control thread knows of a ring when it starts.
#[derive(Debug)]
pub(crate) struct RingStart {
    pub(crate) queue: u16,
    pub(crate) num: u16,
    pub(crate) base: u16,
    pub(crate) addresses: RingAddresses,
    pub(crate) is_enabled: bool,
    pub(crate) kick: Option<EventFd>,
    pub(crate) call: Option<CallFd>,
    pub(crate) error: Option<CallFd>,
}

/// A ring that serves or has served. A control thread makes it, so that the shard allocates nothing.
#[derive(Debug)]
pub struct Ring<O: StoreObserver = NoObserver> {
    queue: u16,
    view: View,
    addresses: RingAddresses,
    phase: Phase,
    is_enabled: bool,
    // The next entry of the available ring.
    last_avail: u16,
    // The next used index, and the one that the driver sees.
    used: u16,
    used_published: u16,
    slots: Box<[Slot]>,
    store: SpanStore,
    in_flight: u32,
    track: Option<Track<O>>,
    // Heads of a process that died, the next one last.
    resubmit: Vec<u16>,
    // The store had no room for a request; it waits for a completion.
    is_full: bool,
    is_quieted: bool,
    kick: Option<EventFd>,
    call: Option<CallFd>,
    error: Option<CallFd>,
}

// SAFETY: the pointers name guest memory, which any thread may access; the ring is used by one thread at a time.
unsafe impl<O: StoreObserver> Send for Ring<O> {}

impl<O: StoreObserver> Ring<O> {
    /// Finds the ring in memory, and with an in-flight region what a process that died had taken; the error is a sentence.
    pub(crate) fn new(
        start: RingStart,
        memory: &GuestMemory,
        in_flight: Option<&Arc<InFlightRegion>>,
    ) -> Result<Self, String> {
        let RingStart { queue, num, base, addresses, is_enabled, kick, call, error } = start;
        let view = View::new(memory, &addresses, num)?;
        let used = view.used_index().load(Ordering::Acquire);
        let track = in_flight.map(|region| Track::new(region, queue, num)).transpose()?;
        let mut ring = Self {
            queue,
            view,
            addresses,
            phase: Phase::Started,
            is_enabled,
            last_avail: base,
            used,
            used_published: used,
            slots: vec![FREE; usize::from(num)].into(),
            store: SpanStore::new(usize::from(num), SPANS_MAX),
            in_flight: 0,
            track,
            resubmit: Vec::new(),
            is_full: false,
            is_quieted: false,
            kick,
            call,
            error,
        };
        if let Some(track) = &mut ring.track {
            ring.resubmit = track.recover(used)?;
            // The base of the front end may be older than what the dead process took.
            ring.last_avail = used.wrapping_add(ring.resubmit.len() as u16);
            ring.resubmit.reverse();
        }
        Ok(ring)
    }

    /// Index of the ring in its device.
    #[must_use]
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// Number of requests that a process which died had taken, and that are submitted again.
    #[must_use]
    pub fn taken_over(&self) -> usize {
        self.resubmit.len()
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    pub(crate) fn base(&self) -> u16 {
        self.last_avail
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    pub(crate) fn kick_fd(&self) -> Option<RawFd> {
        self.kick.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Whether a turn may take heads.
    pub(crate) fn is_running(&self) -> bool {
        self.phase == Phase::Started && self.is_enabled
    }

    /// Whether a turn may find something: a draining ring still submits what a dead process had taken.
    pub(crate) fn gives(&self) -> bool {
        let is_draining = self.phase == Phase::Draining && !self.resubmit.is_empty();
        self.is_enabled && (self.phase == Phase::Started || is_draining)
    }

    /// Whether nothing is in flight, left to submit again, or answered without the driver's knowledge.
    pub(crate) fn is_drained(&self) -> bool {
        self.in_flight == 0 && self.resubmit.is_empty() && self.used == self.used_published
    }

    pub(crate) fn set_enabled(&mut self, is_enabled: bool) {
        self.is_enabled = is_enabled;
    }

    /// Begins to drain. What a dead process had taken is submitted still, or the driver would wait for it.
    pub(crate) fn stop(&mut self) {
        if self.phase == Phase::Started {
            self.phase = Phase::Draining;
        }
        if !self.is_enabled {
            // A ring that was never enabled submits nothing; its region keeps what there is.
            self.resubmit.clear();
        }
    }

    /// Ends the ring at the end of the connection: what was taken is answered, what was not yet submitted again stays in the region.
    pub(crate) fn close(&mut self) {
        self.resubmit.clear();
        if self.phase == Phase::Started {
            self.phase = Phase::Draining;
        }
    }

    /// The ring has drained: the kick descriptor is not watched any more.
    pub(crate) fn on_stopped(&mut self) -> Option<EventFd> {
        self.phase = Phase::Stopped;
        self.kick.take()
    }

    /// As `on_stopped`, after a reset: the kick descriptor stays with the ring.
    pub(crate) fn mark_stopped(&mut self) {
        self.phase = Phase::Stopped;
    }

    /// The new descriptor is signalled: an answer may have been published while there was none.
    pub(crate) fn replace_call(&mut self, call: Option<CallFd>) -> Option<CallFd> {
        let old = std::mem::replace(&mut self.call, call);
        self.notify();
        old
    }

    /// Notifies the driver, whether it wants that or not.
    pub(crate) fn notify(&self) {
        if let Some(call) = &self.call {
            call.signal();
        }
    }

    pub(crate) fn replace_error(&mut self, error: Option<CallFd>) -> Option<CallFd> {
        std::mem::replace(&mut self.error, error)
    }

    pub(crate) fn replace_kick(&mut self, kick: Option<EventFd>) -> Option<EventFd> {
        std::mem::replace(&mut self.kick, kick)
    }

    /// The ring breaks: it takes, writes and notifies nothing any more.
    #[cold]
    pub(crate) fn break_off(&mut self) {
        if matches!(self.phase, Phase::Broken | Phase::Stopped) {
            return;
        }
        self.phase = Phase::Broken;
        self.resubmit.clear();
        self.used = self.used_published;
        if let Some(error) = &self.error {
            error.signal();
        }
    }

    /// Finds the ring again in a new table of memory, or at new addresses; the error is a sentence.
    pub(crate) fn relocate(
        &mut self,
        memory: &GuestMemory,
        addresses: Option<RingAddresses>,
    ) -> Result<(), String> {
        let addresses = addresses.unwrap_or(self.addresses);
        self.view = View::new(memory, &addresses, self.view.num)?;
        self.addresses = addresses;
        Ok(())
    }

    /// Takes at most `max` heads and appends their requests; returns how many. The error says why the ring is broken.
    pub(crate) fn take(
        &mut self,
        shared: &mut Shared,
        max: usize,
        out: &mut Vec<Request>,
    ) -> Result<usize, &'static str> {
        if !self.gives() {
            return Ok(0);
        }
        self.is_full = false;
        let mut available = self.last_avail;
        if self.is_running() {
            available = self.view.available_index().load(Ordering::Acquire);
            if available.wrapping_sub(self.last_avail) > self.view.num {
                return Err("the available index is further ahead than the ring is long");
            }
        }
        let wish = shared.wish();
        if wish == Wish::Flags && !self.is_quieted && available != self.last_avail {
            notify::disarm(self.view.own_wish(wish), wish);
            self.is_quieted = true;
        }
        let mut taken = 0;
        while taken < max {
            let (head, is_again) = match self.resubmit.last() {
                Some(head) => (*head, true),
                None if self.last_avail != available => (self.view.head(self.last_avail), false),
                None => break,
            };
            if !self.take_one(shared, head, is_again, out)? {
                self.is_full = true;
                break;
            }
            taken += 1;
        }
        Ok(taken)
    }

    /// Takes one head; false when there is no room for its spans at present.
    #[inline]
    fn take_one(
        &mut self,
        shared: &mut Shared,
        head: u16,
        is_again: bool,
        out: &mut Vec<Request>,
    ) -> Result<bool, &'static str> {
        if head >= self.view.num {
            return Err("an available head is beyond the descriptor table");
        }
        if self.slots[usize::from(head)].is_busy {
            return Err("an available head is in flight already");
        }
        let allows_indirect = shared.features.has(features::INDIRECT);
        shared.chain.walk(&shared.memory, self.view.descriptors, head, allows_indirect)?;
        let parsed = shared.parser.parse(&mut shared.chain, &shared.disk, shared.features)?;
        let spans = match parsed.asked {
            Asked::One { op: RequestOp::Read, .. } => trimmed(shared.chain.writable()),
            Asked::One { op: RequestOp::Write, .. } => trimmed(shared.chain.readable()),
            _ => &[],
        };
        let Some(spans) = self.store.keep(spans) else { return Ok(false) };
        if is_again {
            self.resubmit.pop();
        } else {
            self.last_avail = self.last_avail.wrapping_add(1);
            if let Some(track) = &mut self.track {
                track.take(head);
            }
        }
        let slot = &mut self.slots[usize::from(head)];
        slot.spans = spans;
        slot.status = parsed.status;
        slot.len = 0;
        slot.left = 1;
        slot.fail = STATUS_OK;
        slot.generation = shared.generation as u8;
        slot.is_busy = true;
        slot.is_read = parsed.is_read;
        self.in_flight += 1;
        shared.in_flight[shared.generation] += 1;
        let ticket = Ticket { queue: self.queue, head, part: 0 };
        match parsed.asked {
            Asked::One { op, offset, len } => {
                slot.len = len;
                let is_fua = op == RequestOp::Write && shared.is_write_through;
                out.push(Request { ticket, op, offset, len, is_fua, may_unmap: false });
            }
            Asked::Segments { op, count } => {
                slot.left = count as u16;
                for (part, one) in (0..).zip(shared.parser.segments(0..count)) {
                    out.push(Request {
                        ticket: Ticket { part, ..ticket },
                        op,
                        offset: one.offset,
                        len: one.len,
                        is_fua: shared.is_write_through,
                        may_unmap: one.may_unmap,
                    });
                }
            }
            Asked::Answer { status, written } => {
                slot.left = 0;
                slot.fail = status;
                if status == STATUS_OK {
                    (slot.len, slot.is_read) = (written, true);
                }
                self.finish(shared, head);
            }
        }
        Ok(true)
    }

    /// Appends nothing to the ring until every request of the head has completed; then its answer.
    #[inline]
    pub(crate) fn complete(&mut self, shared: &mut Shared, head: u16, outcome: Outcome) {
        let slot = &mut self.slots[usize::from(head)];
        assert!(slot.is_busy && slot.left > 0, "a request completes once");
        if slot.fail == STATUS_OK {
            slot.fail = outcome.status();
        }
        slot.left -= 1;
        if slot.left == 0 {
            self.finish(shared, head);
        }
    }

    /// Writes the answer of a head into the used ring, unpublished, and frees its slot.
    fn finish(&mut self, shared: &mut Shared, head: u16) {
        let slot = &mut self.slots[usize::from(head)];
        slot.is_busy = false;
        self.in_flight -= 1;
        shared.in_flight[usize::from(slot.generation)] -= 1;
        self.is_full = false;
        if matches!(self.phase, Phase::Started | Phase::Draining) {
            let written = if slot.is_read && slot.fail == STATUS_OK { slot.len } else { 0 };
            O::before_store();
            // SAFETY: the place of the status byte is in a region that stays mapped while the request is counted.
            unsafe { slot.status.write_volatile(slot.fail) };
            if let Some(log) = shared.log() {
                self.store.pieces(&slot.spans, 0, written as usize, |span| shared.mark(log, span));
                shared.mark(log, Span::new(slot.status, 1));
            }
            O::before_store();
            self.view.write_used(self.used, head, written + 1);
            self.used = self.used.wrapping_add(1);
            if let Some(track) = &mut self.track {
                track.answer(head);
            }
        }
        self.store.release(&mut slot.spans);
    }

    /// Whether answers wait for `publish`.
    pub(crate) fn has_answers(&self) -> bool {
        self.used != self.used_published
    }

    /// Shows the driver the answers of a turn, and notifies it if it wants that.
    pub(crate) fn publish(&mut self, shared: &Shared) {
        if !self.has_answers() {
            return;
        }
        if let (Some(log), Some(address)) = (shared.log(), self.addresses.log) {
            log.mark(address, 6 + 8 * u64::from(self.view.num));
        }
        let (old, new) = (self.used_published, self.used);
        O::before_store();
        // Release: pairs with the Acquire of the driver, which reads the elements and the data after it.
        self.view.used_index().store(new, Ordering::Release);
        self.used_published = new;
        if let Some(track) = &mut self.track {
            track.published(new);
        }
        let wish = shared.wish();
        if notify::is_wanted(self.view.driver_wish(wish), wish, old, new) {
            self.notify();
        }
    }

    /// Asks for a notification of the next head; true: something is there already.
    pub(crate) fn arm(&mut self, shared: &Shared) -> bool {
        if !self.is_running() || self.is_full {
            return false;
        }
        if !self.resubmit.is_empty() {
            return true;
        }
        let wish = shared.wish();
        self.is_quieted = false;
        notify::arm(self.view.available_index(), self.view.own_wish(wish), wish, self.last_avail)
    }

    /// Calls `each` with the memory of `len` bytes of a request from `offset` on.
    #[inline]
    pub(crate) fn pieces(&self, head: u16, offset: usize, len: usize, each: impl FnMut(Span)) {
        let slot = &self.slots[usize::from(head)];
        assert!(slot.is_busy, "the memory of a request is used until it completes");
        self.store.pieces(&slot.spans, offset, len, each);
    }

    /// Whether the in-flight region's file may shrink.
    pub(crate) fn is_guarded(&self) -> bool {
        self.track.as_ref().is_some_and(Track::is_guarded)
    }

    pub(crate) fn is_faulted(&self) -> bool {
        self.track.as_ref().is_some_and(Track::is_faulted)
    }
}

/// The spans without the empty ones at both ends, which header and status leave.
fn trimmed(spans: &[Span]) -> &[Span] {
    let begin = spans.iter().take_while(|span| span.is_empty()).count();
    let spans = &spans[begin..];
    let end = spans.iter().rev().take_while(|span| span.is_empty()).count();
    &spans[..spans.len() - end]
}

/// Takes the count out of a kick descriptor, without waiting and without changing its mode.
pub(crate) fn clear_kick(fd: RawFd) {
    let mut count = 0_u64;
    let part = libc::iovec { iov_base: (&raw mut count).cast(), iov_len: 8 };
    // SAFETY: one part of eight bytes, which live until the call has returned. Offset -1 is the file's own. RWF_NOWAIT: the open file may be
    // in blocking mode, and another reader may have been first.
    unsafe {
        libc::syscall(libc::SYS_preadv2, fd, &raw const part, 1, -1_i64, -1_i64, libc::RWF_NOWAIT)
    };
}
