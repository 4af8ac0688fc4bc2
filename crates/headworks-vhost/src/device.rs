//! The shard's side of a device: its rings, turned without locks, allocation or waiting.
//!
//! ```text
//!   control thread --Order--> Device --Answer--> control thread      one order at a time
//!   take --> Request .. the path below .. complete --> publish       each turn
//!   arm: before a sleep, false: sleep until a kick                   on_kick
//! ```
//!
//! The thread that drives a device gives it orders of a [`crate::Session`], takes requests, completes them in any order, and publishes
//! once a turn. What an order replaces (memory, rings, descriptors) comes back in its answer, and the control thread drops it: the shard
//! unmaps and closes nothing.
//!
//! Invariants: requests in flight use one of at most two tables of memory; the answer to a change of memory comes when the old table
//! has none left (V4). The answer to a stop comes when nothing of the ring is in flight.

use std::os::fd::RawFd;
use std::sync::Arc;

use crate::QUEUES_MAX;
use crate::chain::Chain;
use crate::config_space::Disk;
use crate::event::{CallFd, EventFd};
use crate::features::{self, Features};
use crate::log::DirtyLog;
use crate::memory::{GuestMemory, Span};
use crate::observer::{NoObserver, StoreObserver};
use crate::request::{Outcome, Parser, Request, Ticket};
use crate::ring::{Phase, Ring, Shared, clear_kick};
use crate::wire::RingAddresses;

/// Most heads that a ring gives in a turn.
pub const HEADS_A_RING: usize = 64;
/// Most heads that a device gives in a turn.
pub const HEADS_A_DEVICE: usize = 256;

/// What a control thread asks of a device. The next order follows the answer to this one.
#[derive(Debug)]
pub enum Order<O: StoreObserver = NoObserver> {
    /// The driver has negotiated these features.
    Features(Features),
    /// The table of memory is replaced. Answered when no request in flight uses the old one.
    Memory(Arc<GuestMemory>),
    /// A ring begins to serve. Requests of a process that died are its first: the order is given when the image's lock is held.
    Start(Box<Ring<O>>),
    /// A ring ends. Answered with its base when nothing of it is in flight.
    Stop {
        /// Index of the ring.
        queue: u16,
    },
    /// A ring takes heads, or takes none.
    Enable {
        /// Index of the ring.
        queue: u16,
        /// Whether it takes heads.
        is_enabled: bool,
    },
    /// The descriptor by which the driver notifies the device is replaced.
    Kick {
        /// Index of the ring.
        queue: u16,
        /// The eventfd; none: the ring is polled.
        fd: Option<EventFd>,
    },
    /// The descriptor by which the device notifies the driver is replaced.
    Call {
        /// Index of the ring.
        queue: u16,
        /// The eventfd; none: the driver polls.
        fd: Option<CallFd>,
    },
    /// The descriptor that is signalled when the ring breaks is replaced.
    Error {
        /// Index of the ring.
        queue: u16,
        /// The eventfd, if any.
        fd: Option<CallFd>,
    },
    /// A ring has other addresses, or its writes are logged from now on.
    Addresses {
        /// Index of the ring.
        queue: u16,
        /// The addresses.
        addresses: RingAddresses,
    },
    /// Writes to guest memory are logged, or are not any more.
    Log(Option<Arc<DirtyLog>>),
    /// The driver has switched the cache: false means write-through.
    Writeback(bool),
    /// All rings end and the features are forgotten. Answered when nothing is in flight.
    Reset,
}

/// What an order replaced: dropped on the control thread, as that unmaps and closes.
#[derive(Debug, Default)]
pub struct Retired<O: StoreObserver = NoObserver> {
    memory: Option<Arc<GuestMemory>>,
    ring: Option<Box<Ring<O>>>,
    fd: Option<EventFd>,
    call: Option<CallFd>,
    log: Option<Arc<DirtyLog>>,
}

impl<O: StoreObserver> Retired<O> {
    /// Returns true if nothing was replaced.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { memory, ring, fd, call, log } = self;
        memory.is_none() && ring.is_none() && fd.is_none() && call.is_none() && log.is_none()
    }
}

/// The answer to an order.
#[derive(Debug)]
pub enum Answer<O: StoreObserver = NoObserver> {
    /// The order is carried out.
    Done(Retired<O>),
    /// A ring has stopped.
    Stopped {
        /// Index of the ring.
        queue: u16,
        /// The next entry of its available ring.
        base: u16,
        /// What it does not need any more.
        retired: Retired<O>,
    },
    /// The order cannot be carried out; a sentence.
    Refused(String, Retired<O>),
}

/// A ring that broke, for one line of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenRing {
    /// Index of the ring; none: all of the device, whose memory is gone.
    pub queue: Option<u16>,
    /// What was wrong with it, a phrase.
    pub why: &'static str,
}

/// The order whose answer waits for requests in flight.
#[derive(Debug)]
enum Pending {
    Memory,
    Stop(u16),
    Reset,
}

/// A device on its shard.
#[derive(Debug)]
pub struct Device<O: StoreObserver = NoObserver> {
    rings: Vec<Option<Box<Ring<O>>>>,
    shared: Shared,
    pending: Option<Pending>,
    answer: Option<Answer<O>>,
    broken: Option<BrokenRing>,
    // A bit for each ring: may give heads; is started or draining, so has answers to publish.
    running: u64,
    live: u64,
    // The ring where the next turn begins.
    first: u32,
    // Memory is looked at for faults: some file of it may shrink.
    is_guarded: bool,
    is_writeback: bool,
    is_closed: bool,
}

impl Device {
    /// A device of a disk, without rings and memory.
    #[must_use]
    pub fn new(disk: Disk) -> Self {
        Self::observed(disk)
    }
}

impl<O: StoreObserver> Device<O> {
    /// A device of a disk, without rings and memory, whose observer is told of its stores.
    #[must_use]
    pub fn observed(disk: Disk) -> Self {
        let shared = Shared {
            memory: Arc::default(),
            old_memory: None,
            features: Features::default(),
            disk,
            log: None,
            is_write_through: true,
            chain: Chain::new(),
            parser: Parser::new(),
            generation: 0,
            in_flight: [0; 2],
        };
        Self {
            rings: (0..QUEUES_MAX).map(|_| None).collect(),
            shared,
            pending: None,
            answer: None,
            broken: None,
            running: 0,
            live: 0,
            first: 0,
            is_guarded: false,
            is_writeback: true,
            is_closed: false,
        }
    }

    /// Changes the disk: its size from the next request on.
    pub fn set_disk(&mut self, disk: Disk) {
        self.shared.disk = disk;
    }

    /// Carries out an order, or begins to. [`Device::next_answer`] has its answer; a turn follows, as a ring may have started that has
    /// requests already.
    ///
    /// # Panics
    /// If the order before has not been answered.
    pub fn on_order(&mut self, order: Order<O>) {
        assert!(self.pending.is_none() && self.answer.is_none(), "one order at a time");
        match order {
            Order::Memory(memory) => return self.replace_memory(memory),
            Order::Stop { queue } => return self.stop(queue),
            Order::Reset => return self.reset(),
            _ => {}
        }
        self.answer = Some(match self.carry_out(order) {
            Ok(retired) => Answer::Done(retired),
            Err((sentence, retired)) => Answer::Refused(sentence, retired),
        });
        self.refresh();
    }

    fn carry_out(&mut self, order: Order<O>) -> Result<Retired<O>, (String, Retired<O>)> {
        let mut retired = Retired::default();
        match order {
            Order::Features(features) => {
                self.shared.features = features;
                self.set_write_through();
            }
            Order::Start(ring) => {
                let place = &mut self.rings[usize::from(ring.queue())];
                if let Some(old) = place.as_ref().filter(|old| old.in_flight() > 0) {
                    let sentence = format!("ring {} has requests in flight", old.queue());
                    return Err((sentence, Retired { ring: Some(ring), ..retired }));
                }
                // A process that died may have published answers without a notification.
                ring.notify();
                retired.ring = place.replace(ring);
            }
            Order::Enable { queue, is_enabled } => {
                self.with_ring(queue, |ring| ring.set_enabled(is_enabled));
            }
            Order::Kick { queue, fd } => {
                retired.fd = self.with_ring(queue, |ring| ring.replace_kick(fd)).flatten();
            }
            Order::Call { queue, fd } => {
                retired.call = self.with_ring(queue, |ring| ring.replace_call(fd)).flatten();
            }
            Order::Error { queue, fd } => {
                retired.call = self.with_ring(queue, |ring| ring.replace_error(fd)).flatten();
            }
            Order::Addresses { queue, addresses } => {
                let memory = Arc::clone(&self.shared.memory);
                let moved = self.with_ring(queue, |ring| ring.relocate(&memory, Some(addresses)));
                if let Some(Err(sentence)) = moved {
                    return Err((sentence, retired));
                }
            }
            Order::Log(log) => retired.log = std::mem::replace(&mut self.shared.log, log),
            Order::Writeback(is_writeback) => {
                self.is_writeback = is_writeback;
                self.set_write_through();
            }
            Order::Memory(_) | Order::Stop { .. } | Order::Reset => {}
        }
        Ok(retired)
    }

    fn with_ring<T>(&mut self, queue: u16, change: impl FnOnce(&mut Ring<O>) -> T) -> Option<T> {
        self.rings.get_mut(usize::from(queue))?.as_deref_mut().map(change)
    }

    /// The rule of the specification: a driver without FLUSH gets a write-through cache.
    fn set_write_through(&mut self) {
        let flushes = self.shared.features.has(features::FLUSH);
        let is_switchable = self.shared.features.has(features::CONFIG_WCE);
        self.shared.is_write_through = !flushes || (is_switchable && !self.is_writeback);
    }

    fn replace_memory(&mut self, memory: Arc<GuestMemory>) {
        self.shared.old_memory = Some(std::mem::replace(&mut self.shared.memory, memory));
        self.shared.generation ^= 1;
        let memory = Arc::clone(&self.shared.memory);
        for ring in self.rings.iter_mut().flatten() {
            let is_live = matches!(ring.phase(), Phase::Started | Phase::Draining);
            if is_live && ring.relocate(&memory, None).is_err() {
                ring.break_off();
                let why = "the ring is not in the new table of memory";
                self.broken.get_or_insert(BrokenRing { queue: Some(ring.queue()), why });
            }
        }
        self.pending = Some(Pending::Memory);
        self.refresh();
    }

    fn stop(&mut self, queue: u16) {
        self.with_ring(queue, Ring::stop);
        self.pending = Some(Pending::Stop(queue));
        self.refresh();
    }

    fn reset(&mut self) {
        self.rings.iter_mut().flatten().for_each(|ring| ring.stop());
        self.pending = Some(Pending::Reset);
        self.refresh();
    }

    fn refresh(&mut self) {
        (self.running, self.live) = (0, 0);
        for (queue, ring) in self.rings.iter().enumerate() {
            let Some(ring) = ring.as_deref() else { continue };
            self.running |= u64::from(ring.gives()) << queue;
            let is_live = matches!(ring.phase(), Phase::Started | Phase::Draining);
            self.live |= u64::from(is_live) << queue;
        }
        let old = self.shared.old_memory.as_ref();
        self.is_guarded = self.shared.memory.is_guarded()
            || old.is_some_and(|memory| memory.is_guarded())
            || self.shared.log.as_ref().is_some_and(|log| log.is_guarded())
            || self.rings.iter().flatten().any(|ring| ring.is_guarded());
    }

    /// Calls `each` with every ring that is started or draining.
    #[inline]
    fn each_live(&mut self, mut each: impl FnMut(&mut Ring<O>, &Shared)) {
        let mut left = self.live;
        while left != 0 {
            let queue = left.trailing_zeros() as usize;
            left &= left - 1;
            if let Some(ring) = self.rings[queue].as_deref_mut() {
                each(ring, &self.shared);
            }
        }
    }

    /// The answer to the last order, as soon as there is one. Asked after [`Device::publish`].
    pub fn next_answer(&mut self) -> Option<Answer<O>> {
        if self.answer.is_none() {
            self.answer = match self.pending.as_ref()? {
                Pending::Memory => self.memory_replaced(),
                Pending::Stop(queue) => self.stopped(*queue),
                Pending::Reset => self.reset_done(),
            };
            if self.answer.is_some() {
                self.pending = None;
                self.refresh();
            }
        }
        self.answer.take()
    }

    fn memory_replaced(&mut self) -> Option<Answer<O>> {
        let is_unused = self.shared.in_flight[self.shared.generation ^ 1] == 0;
        is_unused.then(|| {
            Answer::Done(Retired { memory: self.shared.old_memory.take(), ..Retired::default() })
        })
    }

    fn stopped(&mut self, queue: u16) -> Option<Answer<O>> {
        let mut retired = Retired::default();
        let Some(Some(ring)) = self.rings.get_mut(usize::from(queue)) else {
            return Some(Answer::Refused(format!("ring {queue} was never started"), retired));
        };
        if !ring.is_drained() {
            return None;
        }
        let base = ring.base();
        retired.fd = ring.on_stopped();
        Some(Answer::Stopped { queue, base, retired })
    }

    fn reset_done(&mut self) -> Option<Answer<O>> {
        if !self.rings.iter().flatten().all(|ring| ring.is_drained()) {
            return None;
        }
        // The descriptors are closed with the ring, when it is replaced or the device dropped.
        for ring in self.rings.iter_mut().flatten() {
            ring.stop();
            ring.mark_stopped();
        }
        self.shared.features = Features::default();
        self.is_writeback = true;
        self.set_write_through();
        Some(Answer::Done(Retired::default()))
    }

    /// Takes what the rings have, at most `max` heads, [`HEADS_A_RING`] of each ring and [`HEADS_A_DEVICE`] in all, and appends the
    /// requests. Returns the number of heads; some of them may be answered already.
    ///
    /// A discard of several segments is several requests, so that `out` may grow by more than `max`, at most by 16 times as many.
    pub fn take(&mut self, max: usize, out: &mut Vec<Request>) -> usize {
        let max = max.min(HEADS_A_DEVICE);
        // Each turn begins with another ring, so that none is always last.
        let order = self.running.rotate_right(self.first);
        let (mut left, mut taken) = (order, 0);
        while left != 0 && taken < max {
            let queue = (left.trailing_zeros() + self.first) % u64::BITS;
            left &= left - 1;
            let Some(ring) = self.rings[queue as usize].as_deref_mut() else { continue };
            match ring.take(&mut self.shared, HEADS_A_RING.min(max - taken), out) {
                Ok(count) => taken += count,
                Err(why) => {
                    ring.break_off();
                    self.broken.get_or_insert(BrokenRing { queue: Some(queue as u16), why });
                    self.refresh();
                }
            }
        }
        self.first = (self.first + 1) % u64::BITS;
        taken
    }

    /// Calls `each` with the memory of `len` bytes of a request's data from its byte `offset` on, in order. The memory is valid until the
    /// request completes.
    ///
    /// # Panics
    /// If the request is not in flight.
    #[inline]
    pub fn pieces(&self, ticket: Ticket, offset: u32, len: u32, each: impl FnMut(Span)) {
        let ring = self.rings[usize::from(ticket.queue)].as_deref();
        let ring = ring.expect("a ring stays while a request of it is in flight");
        ring.pieces(ticket.head, offset as usize, len as usize, each);
    }

    /// A request has ended below: nothing touches its memory any more.
    ///
    /// The answer is in the used ring when all segments of its head have ended, and the driver sees it after [`Device::publish`].
    ///
    /// # Panics
    /// If the request is not in flight.
    #[inline]
    pub fn complete(&mut self, ticket: Ticket, outcome: Outcome) {
        let ring = self.rings[usize::from(ticket.queue)].as_deref_mut();
        let ring = ring.expect("a ring stays while a request of it is in flight");
        ring.complete(&mut self.shared, ticket.head, outcome);
    }

    /// Shows the driver the answers of this turn, and notifies it at most once a ring. A truncated file of memory ends all rings here.
    pub fn publish(&mut self) {
        if self.is_guarded && self.is_faulted() {
            self.break_all("a file of guest memory was truncated");
            return;
        }
        self.each_live(|ring, shared| ring.publish(shared));
    }

    fn is_faulted(&self) -> bool {
        self.shared.memory.is_faulted()
            || self.shared.old_memory.as_ref().is_some_and(|memory| memory.is_faulted())
            || self.shared.log.as_ref().is_some_and(|log| log.is_faulted())
            || self.rings.iter().flatten().any(|ring| ring.is_faulted())
    }

    #[cold]
    fn break_all(&mut self, why: &'static str) {
        let is_live = |ring: &Ring<O>| matches!(ring.phase(), Phase::Started | Phase::Draining);
        if self.rings.iter().flatten().any(|ring| is_live(ring)) {
            self.broken = Some(BrokenRing { queue: None, why });
        }
        self.rings.iter_mut().flatten().for_each(|ring| ring.break_off());
        self.refresh();
    }

    /// A ring that has broken since the last call.
    pub fn next_broken(&mut self) -> Option<BrokenRing> {
        self.broken.take()
    }

    /// Asks the driver to kick at the next request of each ring; true: something is there already, so do not sleep.
    ///
    /// A ring that waits for room asks for nothing: after a completion the next [`Device::take`] goes on.
    pub fn arm(&mut self) -> bool {
        let mut has_more = false;
        self.each_live(|ring, shared| has_more |= ring.arm(shared));
        has_more
    }

    /// The descriptors that become readable at a kick, with their rings: those of rings that take heads.
    pub fn kicks(&self) -> impl Iterator<Item = (u16, RawFd)> + '_ {
        let running = self.rings.iter().flatten().filter(|ring| ring.is_running());
        running.filter_map(|ring| Some((ring.queue(), ring.kick_fd()?)))
    }

    /// Whether a ring has no kick descriptor, so that only polling finds its requests.
    #[must_use]
    pub fn must_poll(&self) -> bool {
        let mut running = self.rings.iter().flatten().filter(|ring| ring.is_running());
        running.any(|ring| ring.kick_fd().is_none())
    }

    /// A kick descriptor is readable: its count is taken. One system call.
    pub fn on_kick(&mut self, queue: u16) {
        if let Some(fd) = self.with_ring(queue, |ring| ring.kick_fd()).flatten() {
            clear_kick(fd);
        }
    }

    /// The connection has ended. No head is taken any more; what is in flight is completed and published as before.
    pub fn close(&mut self) {
        self.is_closed = true;
        self.rings.iter_mut().flatten().for_each(|ring| ring.close());
        self.refresh();
    }

    /// Whether a closed device has nothing in flight, so that it may be dropped. On the control thread: that unmaps and closes.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.is_closed && self.in_flight() == 0 && !self.has_answers()
    }

    /// Whether answers wait for [`Device::publish`].
    #[must_use]
    pub fn has_answers(&self) -> bool {
        self.rings.iter().flatten().any(|ring| ring.has_answers())
    }

    /// Number of heads in flight.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.shared.in_flight.iter().sum()
    }
}
