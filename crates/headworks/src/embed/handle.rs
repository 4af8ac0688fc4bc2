//! A feeder's end: slots, a ring of bios to the owner, a ring of replies from it.
//!
//! ```text
//!   slot: with the user --put--> batch --submit--> in flight --reply Final--> with the user, in the completion
//!                                                     `--reply Early (time-out): a completion without slot;
//!                                                        Released: the slot is free again in the handle
//! ```
//!
//! Invariant: every slot is in one place: with the user, in `free`, or in `in_flight`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use headworks_core::{Bio, BioId, ExportId, ReplyStage, VolumeId};

use super::driving::{Carried, SharedDriver};
use super::io::{Io, IoCompletion, RejectedIo, Slot};
use super::lent::LentSpans;
use super::parker::Parker;
use super::{Buffers, Reply};
use crate::memory::Span;
use crate::ring::{Consumer, Producer, Sleeper};

/// Checks of the ring before the CPU is yielded, each about 40 ns: an owner that is awake on another CPU answers a batch in a few
/// microseconds.
const SPINS: u32 = 64;
/// Yields of the CPU before a sleep. An owner that shares this CPU runs in them; a sleep would cost it a system call to end.
const YIELDS: u32 = 16;
/// The same where feeders drive and no disk is waited for: one that spins lets the driver come back to it later, with more at once.
const DRIVING_YIELDS: u32 = 48;
/// Yields between two looks whether a driver left batches. It is driven on only if that driver has not come back in between: it has the
/// shard in its cache.
const LOOK_YIELDS: u32 = 8;

/// The cost of one end of the rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingCounts {
    /// Messages pushed into rings.
    pub messages: u64,
    /// Batches of messages pushed.
    pub pushes: u64,
    /// System calls that woke the other end.
    pub wakes: u64,
    /// Sleeps of this end.
    pub sleeps: u64,
}

/// The reason why [`Handle::wait`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// [`Handle::reap`] may have completions.
    Ready,
    /// No I/O is in flight.
    Idle,
    /// The owner has ended; what is in flight is not completed any more.
    OwnerEnded,
}

/// One feeder's access to the volumes of an owner. It may move between threads, and is used by one at a time.
pub struct Handle {
    index: u32,
    depth: u32,
    buffers: Arc<Buffers>,
    free: Vec<Slot>,
    /// By the number of the slot.
    in_flight: Vec<InFlight>,
    /// I/Os without a completion, those of the batch included.
    outstanding: u32,
    batch: Vec<Bio>,
    bios: Producer<Bio>,
    replies: Consumer<Reply>,
    sleeper: Arc<Sleeper>,
    parker: Arc<Parker>,
    armed: bool,
    /// Of the last batch: this feeder has driven for long, and leaves the next one to a feeder that spins.
    carried: Carried,
    shared: Arc<SharedDriver>,
    lent: LentSpans,
    counts: RingCounts,
}

#[derive(Default)]
struct InFlight {
    slot: Option<Slot>,
    user_data: u64,
}

/// What a handle is made of.
pub(super) struct Parts {
    pub index: u32,
    pub depth: u32,
    pub buffers: Arc<Buffers>,
    pub bios: Producer<Bio>,
    pub replies: Consumer<Reply>,
    pub sleeper: Arc<Sleeper>,
    pub parker: Arc<Parker>,
    pub shared: Arc<SharedDriver>,
}

impl Handle {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts { index, depth, buffers, bios, replies, sleeper, parker, shared } = parts;
        Self {
            index,
            depth,
            // SAFETY: each handle has buffers of its own.
            free: unsafe { Slot::all(&buffers, depth) },
            buffers,
            in_flight: (0..depth).map(|_| InFlight::default()).collect(),
            outstanding: 0,
            batch: Vec::with_capacity(depth as usize),
            bios,
            replies,
            sleeper,
            parker,
            armed: false,
            carried: Carried::default(),
            shared,
            lent: LentSpans::default(),
            counts: RingCounts::default(),
        }
    }

    /// The number of slots: the most I/Os that can be in flight.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// The name of its share and its limits ([`Owner::set_share`](super::Owner::set_share)): its place among the owner's handles.
    #[must_use]
    pub fn export(&self) -> ExportId {
        ExportId(self.index as u16)
    }

    /// Takes a free slot; `None` if all are with the user or in flight.
    #[inline]
    pub fn slot(&mut self) -> Option<Slot> {
        self.free.pop()
    }

    /// Gives a slot back to the handle. A slot of another handle is dropped.
    #[inline]
    pub fn release(&mut self, slot: Slot) {
        if Arc::ptr_eq(&slot.buffers, &self.buffers) {
            self.free.push(slot);
        }
    }

    /// Adds an I/O to the batch that [`Handle::submit`] sends.
    ///
    /// # Errors
    /// The slot is of another handle, or smaller than the data. Ranges outside the volume and unknown volumes complete with
    /// [`IoError::Invalid`](headworks_core::IoError::Invalid).
    #[inline]
    pub fn put(&mut self, volume: VolumeId, mut slot: Slot, io: Io) -> Result<(), RejectedIo> {
        let memory = slot.as_mut_ptr();
        // SAFETY: the slot's memory, which outlives the path's use of it, and is moved into `in_flight` with the slot.
        unsafe { self.put_with(volume, slot, io, memory) }
    }

    /// As [`Handle::put`], with the data of the I/O at `memory` and not in the slot: nothing is copied into or out of the slot. Aligned to a
    /// page it suits every device.
    ///
    /// # Errors
    /// As [`Handle::put`]: no more than fits into a slot.
    ///
    /// # Safety
    /// The data's bytes at `memory` stay mapped and nothing else writes them, or reads them of a read, until the slot is back: with the
    /// completion, or in [`Handle::slot`] after a time-out. If it never is, they stay mapped for good.
    #[inline(always)]
    pub unsafe fn put_with(
        &mut self,
        volume: VolumeId,
        slot: Slot,
        io: Io,
        memory: *mut u8,
    ) -> Result<(), RejectedIo> {
        if !Arc::ptr_eq(&slot.buffers, &self.buffers) {
            return Err(RejectedIo { slot, reason: "the slot is of another handle" });
        }
        let len = io.op.buffer_len(io.len) as usize;
        if len > slot.len() {
            return Err(RejectedIo { slot, reason: "the data do not fit into the slot" });
        }
        let index = slot.index();
        // SAFETY: in the slot, or as the caller says. The entry is the feeder's until the ring takes the bio.
        self.buffers.data[index as usize].set(unsafe { Span::new(memory, len) });
        self.outstanding += 1;
        self.in_flight[index as usize] = InFlight { slot: Some(slot), user_data: io.user_data };
        self.batch.push(Bio {
            id: BioId {
                connection: self.index,
                export: self.export(),
                volume,
                sequence: index.into(),
            },
            offset: io.offset,
            len: io.len,
            op: io.op,
            flags: io.flags,
            ioprio: io.ioprio,
        });
        Ok(())
    }

    /// Sends the batch to the path. This thread drives the path if no other does, and then completions that wait for no disk are there
    /// afterwards.
    pub fn submit(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        self.counts.messages += self.batch.len() as u64;
        self.counts.pushes += 1;
        let Carried { stands_back, .. } = std::mem::take(&mut self.carried);
        let carried = match self.armed || stands_back {
            false => self.shared.carry_in(self.index, &mut self.batch),
            true => None,
        };
        if let Some(carried) = carried {
            self.carried = carried;
            self.counts.wakes += u64::from(carried.wakes);
        } else {
            self.bios.push_silent(&mut self.batch);
            let left = stands_back && self.shared.right.leave_to_spinning();
            if !left && self.shared.on_publish(self.index) && self.bios.must_wake() {
                self.counts.wakes += 1;
                self.shared.owner.wake();
            }
        }
        assert!(self.batch.is_empty(), "a ring has room for every slot");
    }

    /// Appends up to `limit` completions that are there and returns their number. Never waits.
    #[inline]
    pub fn reap(&mut self, limit: usize, completions: &mut Vec<IoCompletion>) -> usize {
        self.disarm();
        let first = completions.len();
        let Self { replies, in_flight, free, .. } = self;
        replies.pop_each(limit, |reply| {
            let known = &mut in_flight[reply.slot as usize];
            let (user_data, status, hole) = (known.user_data, reply.status, reply.hole);
            match reply.stage {
                ReplyStage::Final => {
                    let slot = known.slot.take();
                    completions.push(IoCompletion { user_data, status, hole, slot });
                }
                ReplyStage::Early => {
                    completions.push(IoCompletion { user_data, status, hole, slot: None });
                }
                ReplyStage::Released => free.extend(known.slot.take()),
            }
        });
        let count = completions.len() - first;
        self.outstanding -= count as u32;
        count
    }

    /// Submits the batch and waits for a completion. Returns at once if nothing is in flight.
    pub fn wait(&mut self) -> WaitOutcome {
        self.submit();
        self.disarm();
        if !self.replies.is_empty() {
            return WaitOutcome::Ready;
        }
        if self.outstanding == 0 {
            return WaitOutcome::Idle;
        }
        if self.spin() {
            return WaitOutcome::Ready;
        }
        loop {
            // Before the ring: the last replies are in it when the owner has ended.
            let ended = self.shared.state.is_ended();
            if !self.replies.is_empty() {
                return WaitOutcome::Ready;
            }
            if ended {
                return WaitOutcome::OwnerEnded;
            }
            if self.sleeper.may_sleep(|| self.replies.is_empty()) {
                self.counts.sleeps += 1;
                self.parker.sleep();
                self.sleeper.woken();
            }
        }
    }

    /// Waits awake for a while, and drives what a driver left; returns true if there is a completion.
    fn spin(&mut self) -> bool {
        let drives = self.shared.right.spin();
        let (mut ready, mut seen) = (false, None);
        let yields = if drives && !self.carried.left_operations { DRIVING_YIELDS } else { YIELDS };
        for check in 0..SPINS + yields {
            ready = !self.replies.is_empty();
            if ready {
                break;
            }
            match check < SPINS {
                true => std::hint::spin_loop(),
                false => std::thread::yield_now(),
            }
            if drives && check + 1 >= SPINS && (check + 1 - SPINS).is_multiple_of(LOOK_YIELDS) {
                let left = self.shared.right.left_pending();
                if left.is_some() && left == seen {
                    self.shared.drive_pending();
                }
                seen = left;
            }
        }
        if drives {
            self.shared.stop_spinning();
        }
        ready
    }

    /// Submits the batch and prepares a wait on the file descriptor of the handle ([`AsFd`]): it becomes readable at the next
    /// completion, or when the owner ends. Returns false if there are completions already, nothing is in flight or the owner has
    /// ended; there is nothing to wait for then. [`Handle::reap`] makes the descriptor unreadable again.
    ///
    /// A wake-up costs two system calls, an I/O none.
    pub fn arm(&mut self) -> bool {
        self.submit();
        self.disarm();
        let ended = self.shared.state.is_ended();
        if ended || self.outstanding == 0 || !self.sleeper.may_sleep(|| self.replies.is_empty()) {
            return false;
        }
        self.armed = self.parker.arm();
        if !self.armed || self.shared.state.is_ended() {
            self.armed = true;
            self.disarm();
            return false;
        }
        self.counts.sleeps += 1;
        true
    }

    /// Its number, the driver, and room for what is lent to it.
    #[inline]
    pub(super) fn lender(&mut self) -> (u32, &SharedDriver, &mut LentSpans) {
        (self.index, &self.shared, &mut self.lent)
    }

    /// The parking place of the handle.
    #[cfg(feature = "tokio")]
    pub(super) fn parker(&self) -> Arc<Parker> {
        Arc::clone(&self.parker)
    }

    /// Returns true if the owner has ended and there are no more completions.
    #[cfg(feature = "tokio")]
    pub(super) fn is_abandoned(&mut self) -> bool {
        self.shared.state.is_ended() && self.replies.is_empty()
    }

    #[inline]
    fn disarm(&mut self) {
        if std::mem::take(&mut self.armed) {
            self.sleeper.woken();
            self.parker.disarm();
        }
    }

    /// I/Os that have no completion yet.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// The cost of the handle's end of the rings since the start.
    #[must_use]
    pub fn counts(&self) -> RingCounts {
        self.counts
    }
}

impl AsFd for Handle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.parker.eventfd().as_fd()
    }
}

impl AsRawFd for Handle {
    fn as_raw_fd(&self) -> RawFd {
        self.parker.eventfd().as_raw_fd()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // A batch that was not submitted is dropped. What is in flight completes in the owner, which keeps the buffers.
        self.parker.close();
        self.shared.state.close_handle();
        self.shared.owner.wake();
    }
}
