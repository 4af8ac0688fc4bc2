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

use super::Queue;
use crate::action::{Action, Notice};
use crate::bio::{Op, VolumeId};
use crate::error::{IoError, Status};
use crate::input::ReplyStage;
use crate::list::Fifo;
use crate::pools::{Pools, answer};
use crate::request::{Bios, RequestStart, SlotId};
use crate::slab::NIL;
use crate::time::Instant;
use crate::wait_times::WaitKind;

/// The flushes of one volume.
#[derive(Debug)]
pub(crate) struct FlushSequence {
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
    fn assume_flushed(&mut self) {
        self.writes_flushed = self.writes_completed;
    }

    /// Returns why no flush can succeed now, if so.
    fn refusal(&self) -> Option<IoError> {
        match (self.suspect, self.lost) {
            (true, _) => Some(IoError::Medium),
            (false, true) => Some(IoError::TimedOut),
            (false, false) => None,
        }
    }

    /// Queues a bio for the device flush that may cover it; returns true when a device flush must be started.
    fn join(&mut self, bios: &mut Bios, slot: u32) -> bool {
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
    fn start(&mut self, request: SlotId) {
        assert!(!self.is_running(), "a volume has one device flush in flight at most");
        self.request = request;
    }

    /// Notes what the device flush covers: it is sent now.
    fn cover(&mut self) {
        assert!(self.is_running(), "a device flush that is sent is running");
        self.covers = self.writes_completed;
    }

    /// Makes the bios of the next device flush wait for the running one.
    fn join_all(&mut self, bios: &mut Bios) {
        self.running.append(bios, &mut self.next);
    }

    /// Takes the device's answer; returns what the bios are told, and whether the volume became suspect.
    fn on_answer(&mut self, bios: &mut Bios, status: Status) -> (Status, bool) {
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
    fn end(&mut self, bios: &mut Bios) -> bool {
        assert!(self.running.head().is_none(), "the bios of a flush are answered when it ends");
        self.join_all(bios);
        let again = self.running.head().is_some();
        if !again {
            self.request = NIL;
        }
        again
    }

    /// Notes that the device flush timed out: no bio waits for it, and no flush succeeds before it is answered.
    fn lose(&mut self, bios: &mut Bios) {
        assert!(self.is_running(), "a device flush in flight times out");
        self.lost = true;
        self.join_all(bios);
    }

    /// Has flushes and FUA writes fail from now on, as after a failed flush.
    fn suspect(&mut self) {
        self.suspect = true;
    }

    /// Lets flushes and FUA writes succeed again after a failed flush.
    fn acknowledge(&mut self) {
        self.suspect = false;
    }
}

impl Queue {
    /// Takes a flush bio of a volume.
    pub fn flush(&mut self, now: Instant, pools: &mut Pools, slot: u32) {
        let bio = &pools.bios[slot].bio;
        assert!(bio.op == Op::Flush, "other bios go through the plug");
        let volume = self.volumes.of_bio(bio.id.volume);
        volume.stats.ops[Op::Flush as usize].bios += 1;
        if volume.flush.is_suspect() {
            answer(pools, slot, Err(IoError::Medium), false, ReplyStage::Final);
        } else if !self.options.write_cache {
            volume.flush.assume_flushed();
            answer(pools, slot, Ok(()), false, ReplyStage::Final);
        } else if !self.monitor.admits(now, self.options.io_timeout_ns) {
            answer(pools, slot, Err(IoError::TimedOut), false, ReplyStage::Final);
        } else {
            self.join_flush(now, pools, slot);
        }
    }

    /// Has flushes of a volume fail until the operator acknowledges it: data may be lost that no flush has told of.
    pub fn suspect(&mut self, volume: VolumeId) {
        if let Some(volume) = self.volumes.find_mut(volume) {
            volume.flush.suspect();
        }
    }

    /// Counts a write for every volume, which no flush has covered.
    pub fn assume_written(&mut self) {
        self.volumes.iter_mut().for_each(|volume| volume.flush.on_write_finished());
    }

    /// Lets flushes of a volume succeed again: the operator knows that one failed.
    pub fn acknowledge(&mut self, volume: VolumeId) {
        if let Some(volume) = self.volumes.find_mut(volume) {
            volume.flush.acknowledge();
        }
    }

    /// Makes a flush, or a FUA write whose data are done, wait for the device flush that may cover it.
    pub(super) fn join_flush(&mut self, now: Instant, pools: &mut Pools, slot: u32) {
        let id = pools.bios[slot].bio.id.volume;
        let sequence = &mut self.volumes.of_bio(id).flush;
        if let Some(error) = sequence.refusal() {
            return answer(pools, slot, Err(error), false, ReplyStage::Final);
        }
        pools.begin_wait(now, slot);
        if sequence.join(&mut pools.bios, slot) {
            let request = pools.slots.try_take().expect("there is a slot for each volume's flush");
            pools.slots[request].begin(RequestStart::of_flush(now, id));
            sequence.start(request);
            self.send_flush(now, pools, id);
        }
    }

    /// Sends the device flush of a volume.
    fn send_flush(&mut self, now: Instant, pools: &mut Pools, id: VolumeId) {
        let sequence = &mut self.volumes.of_bio(id).flush;
        sequence.cover();
        let request = sequence.request;
        self.send(now, pools, request);
    }

    /// Prepares a refused device flush for being sent again: it covers everything that finished meanwhile.
    pub(super) fn renew_flush(&mut self, pools: &mut Pools, id: SlotId) {
        let sequence = &mut self.volumes.of_bio(pools.slots[id].volume).flush;
        sequence.cover();
        sequence.join_all(&mut pools.bios);
    }

    /// Takes the device's answer to a flush.
    pub(super) fn on_flush_done(
        &mut self,
        now: Instant,
        pools: &mut Pools,
        id: SlotId,
        status: Status,
    ) {
        let (volume_id, stamps) = (pools.slots[id].volume, pools.slots[id].stamps);
        let volume = self.volumes.of_bio(volume_id);
        volume.stats.on_finish(Op::Flush, 0, &stamps, now);
        volume.stats.ops[Op::Flush as usize].errors += u64::from(status.is_err());
        let (told, is_news) = volume.flush.on_answer(&mut pools.bios, status);
        if is_news {
            let notice = Notice::Suspect { volume: volume_id, status };
            pools.actions.list.push(Action::Notice(notice));
        }
        self.charge_flush(pools, volume_id, now.since(stamps[3]));
        self.answer_flushed(now, pools, volume_id, told);
        if self.volumes.of_bio(volume_id).flush.end(&mut pools.bios) {
            let first = self.volumes.of_bio(volume_id).flush.running.head();
            let first = first.expect("the next flush has a bio");
            pools.slots[id].stamps = [now; 4];
            pools.slots[id].waits_since = pools.waits_since(first);
            self.send_flush(now, pools, volume_id);
        } else {
            self.free(pools, id);
        }
    }

    /// Charges a device flush to the connections that it was for, in equal parts. The device worked on the commands in flight
    /// beside it, so it is charged for one part of its time in so many.
    fn charge_flush(&mut self, pools: &Pools, volume: VolumeId, took_ns: u64) {
        if self.gate.waiters() == 0 {
            return;
        }
        let head = self.volumes.of_bio(volume).flush.running.head();
        let all = || {
            std::iter::successors(head, |&slot| {
                Some(pools.bios[slot].next).filter(|&next| next != NIL)
            })
        };
        let bios = all().count() as u64;
        let time = took_ns / u64::from(self.in_flight.commands() + 1) / bios.max(1);
        for slot in all() {
            let bio = pools.bios[slot].bio.id;
            self.gate.charge_time(bio.export, bio.connection, time);
        }
    }

    /// Fails all bios that wait for a device flush that timed out.
    pub(super) fn lose_flush(&mut self, now: Instant, pools: &mut Pools, volume: VolumeId) {
        self.volumes.of_bio(volume).flush.lose(&mut pools.bios);
        self.answer_flushed(now, pools, volume, Err(IoError::TimedOut));
    }

    /// Fails all bios that wait for a device flush that the device refused for too long.
    pub(super) fn expire_flush(&mut self, now: Instant, pools: &mut Pools, id: SlotId) {
        let volume = pools.slots[id].volume;
        self.volumes.of_bio(volume).flush.join_all(&mut pools.bios);
        self.answer_flushed(now, pools, volume, Err(IoError::TimedOut));
        let again = self.volumes.of_bio(volume).flush.end(&mut pools.bios);
        assert!(!again, "no bio waits for the next one");
        self.free(pools, id);
    }

    /// Answers the bios that wait for the running device flush.
    fn answer_flushed(
        &mut self,
        now: Instant,
        pools: &mut Pools,
        volume: VolumeId,
        status: Status,
    ) {
        let sequence = &mut self.volumes.of_bio(volume).flush;
        while let Some(slot) = sequence.running.pop(&mut pools.bios) {
            // After the data of a FUA write. The wait for a flush that it could not join counts as device time, too.
            let waited = now.since(pools.waits_since(slot));
            pools.bios[slot].wait_times =
                pools.bios[slot].wait_times.plus(WaitKind::Device, waited);
            answer(pools, slot, status, false, ReplyStage::Final);
        }
    }
}
