//! The flush sequence: at most one device flush in flight per volume, shared by all bios that it covers.
//!
//! A flush promises that every write that was acknowledged before it was submitted is durable. So it may join a device flush in
//! flight only if no write of the volume finished since that one was sent; otherwise it waits for the next. A FUA write on a
//! device without FUA joins after its data, by the same rule.
//!
//! ```text
//!        flush, FUA after data                 answered
//!  Idle ------------------------> Running ------------------> Idle      `next` not empty: Running again
//!                                  |   ^ joins if nothing finished since it was sent, else goes to `next`
//!                                  | time-out: all waiting bios fail
//!                                  v
//!                                 Lost: every flush fails at once, until the device answers
//! ```
//!
//! A failed device flush does not tell which writes are lost, so the volume is *suspect*: every flush and FUA write fails until
//! the operator acknowledges. A later flush that succeeds would hide the loss (fsyncgate, 2018). Only a device that synced nothing can
//! know that nothing is lost, and says so by [`IoError::NotFlushed`]: its flush fails for want of room, and the next one may succeed.
//!
//! Invariants: `request` is a slot while a device flush is running; `running` and `next` are empty while it is idle;
//! `covers <= writes_completed` and `writes_flushed <= writes_completed`.

use crate::error::{IoError, Status};
use crate::input::ReplyStage;
use crate::list::Fifo;
use crate::pools::{Pools, answer};
use crate::request::{Bios, SlotId};
use crate::slab::NIL;
use crate::time::Instant;
use crate::wait_times::WaitKind;

/// The flushes of one volume.
#[derive(Debug)]
pub(super) struct FlushSequence {
    /// The device flush, from its start until the device answered; `NIL` when idle.
    request: SlotId,
    /// `writes_completed` when it was sent.
    covers: u64,
    /// Bios that it answers.
    running: Fifo,
    /// Bios that the next one answers.
    next: Fifo,
    /// The device flush timed out and was not answered yet.
    lost: bool,
    /// A device flush failed and was not acknowledged.
    suspect: bool,
    /// Writes whose data the device finished: what a flush can cover.
    writes_completed: u64,
    /// `writes_completed` when the last good flush was sent.
    writes_flushed: u64,
}

impl FlushSequence {
    /// Creates the state of a volume without a write.
    pub const fn new() -> Self {
        Self {
            request: NIL,
            covers: 0,
            running: Fifo::new(),
            next: Fifo::new(),
            lost: false,
            suspect: false,
            writes_completed: 0,
            writes_flushed: 0,
        }
    }

    /// Returns true while the device has a flush of the volume.
    pub fn is_running(&self) -> bool {
        self.request != NIL
    }

    /// Returns true while a failed flush is not acknowledged.
    #[inline]
    pub fn is_suspect(&self) -> bool {
        self.suspect
    }

    /// Returns the number of writes that finished since the last good flush was sent.
    pub fn unflushed(&self) -> u64 {
        assert!(self.writes_flushed <= self.writes_completed, "a flush covers finished writes");
        self.writes_completed - self.writes_flushed
    }

    /// Counts a write whose data the device finished.
    #[inline]
    pub fn on_write_finished(&mut self) {
        self.writes_completed += 1;
    }

    /// Notes that all finished writes are durable: the device has no volatile cache.
    pub fn assume_flushed(&mut self) {
        self.writes_flushed = self.writes_completed;
    }

    /// Returns why no flush can succeed now, if so.
    pub fn refusal(&self) -> Option<IoError> {
        match (self.suspect, self.lost) {
            (true, _) => Some(IoError::Medium),
            (false, true) => Some(IoError::TimedOut),
            (false, false) => None,
        }
    }

    /// Queues a bio for the device flush that may cover it; returns true when a device flush must be started.
    pub fn join(&mut self, bios: &mut Bios, slot: u32) -> bool {
        let idle = !self.is_running();
        assert!(!idle || self.running.head().is_none(), "an idle volume has no waiting flush");
        if idle || self.covers == self.writes_completed {
            self.running.push(bios, slot);
        } else {
            self.next.push(bios, slot);
        }
        idle
    }

    /// Starts the device flush in slot `request`.
    pub fn start(&mut self, request: SlotId) {
        assert!(!self.is_running(), "a volume has one device flush in flight at most");
        self.request = request;
    }

    /// Notes what the device flush covers: it is sent now. Returns its slot.
    pub fn cover(&mut self) -> SlotId {
        assert!(self.is_running(), "a device flush that is sent is running");
        self.covers = self.writes_completed;
        self.request
    }

    /// Returns the first bio that the device flush answers.
    pub fn first(&self) -> Option<u32> {
        self.running.head()
    }

    /// Answers the bios that wait for the running device flush.
    pub fn answer_all(&mut self, now: Instant, pools: &mut Pools, status: Status) {
        while let Some(slot) = self.running.pop(&mut pools.bios) {
            // After the data of a FUA write. The wait for a flush that it could not join counts as device time, too.
            let waited = now.since(pools.waits_since(slot));
            pools.bios[slot].wait_times =
                pools.bios[slot].wait_times.plus(WaitKind::Device, waited);
            answer(pools, slot, status, false, ReplyStage::Final);
        }
    }

    /// Makes the bios of the next device flush wait for the running one.
    fn join_all(&mut self, bios: &mut Bios) {
        self.running.append(bios, &mut self.next);
    }

    /// Takes the device's answer; returns what the bios are told, and whether the volume became suspect.
    pub fn on_answer(&mut self, bios: &mut Bios, status: Status) -> (Status, bool) {
        assert!(self.is_running(), "only a device flush in flight is answered");
        self.lost = false;
        match status {
            // What was lost while the device flushed is not on the device.
            Ok(()) if self.suspect => {
                self.join_all(bios);
                (Err(IoError::Medium), false)
            }
            Ok(()) => {
                assert!(self.covers <= self.writes_completed, "a flush covers finished writes");
                self.writes_flushed = self.covers;
                (Ok(()), false)
            }
            // Refused after it timed out (before, it would have been sent again): nothing was flushed, and nothing was lost.
            Err(IoError::Busy) => (status, false),
            Err(IoError::NotFlushed) => (Err(IoError::NoSpace), false),
            Err(_) => {
                self.suspect = true;
                self.join_all(bios);
                (status, true)
            }
        }
    }

    /// Ends the device flush; returns true when the next one must be sent for waiting bios.
    pub fn end(&mut self, bios: &mut Bios) -> bool {
        assert!(self.running.head().is_none(), "the bios of a flush are answered when it ends");
        self.join_all(bios);
        let again = self.running.head().is_some();
        if !again {
            self.request = NIL;
        }
        again
    }

    /// Prepares a refused device flush for being sent again: it covers everything that finished meanwhile.
    pub fn renew(&mut self, bios: &mut Bios) {
        self.cover();
        self.join_all(bios);
    }

    /// Fails all bios that wait for the device flush, which timed out: no flush succeeds before it is answered.
    pub fn time_out(&mut self, now: Instant, pools: &mut Pools) {
        assert!(self.is_running(), "a device flush in flight times out");
        self.lost = true;
        self.join_all(&mut pools.bios);
        self.answer_all(now, pools, Err(IoError::TimedOut));
    }

    /// Fails all bios that wait for the device flush, which the device refused for too long: it ends.
    pub fn expire(&mut self, now: Instant, pools: &mut Pools) {
        self.join_all(&mut pools.bios);
        self.answer_all(now, pools, Err(IoError::TimedOut));
        let again = self.end(&mut pools.bios);
        assert!(!again, "no bio waits for the next one");
    }

    /// Has flushes and FUA writes fail from now on, as after a failed flush.
    pub fn suspect(&mut self) {
        self.suspect = true;
    }

    /// Lets flushes and FUA writes succeed again after a failed flush.
    pub fn acknowledge(&mut self) {
        self.suspect = false;
    }
}
