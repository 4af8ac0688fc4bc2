//! The flush sequence: at most one device flush in flight per volume, shared by all who may share it.
//!
//! A flush promises: every write that was acknowledged before it was submitted is durable. So it may join a device flush that
//! is under way only if no write of the volume finished since that one was sent; otherwise it waits for the next. A FUA write
//! on a device that has none joins after its data, by the same rule.
//!
//! ```text
//!        flush, FUA after data                 answered
//!  Idle ------------------------> Running ------------------> Idle      next list not empty: Running again
//!                                  |   ^ joins if nothing finished since it was sent, else goes to `next`
//!                                  | time-out: everybody is answered
//!                                  v
//!                                 Lost: every flush fails at once, until the device answers
//! ```
//!
//! A device flush that failed says nothing about which writes are lost, so the volume is *suspect*: every flush and FUA
//! fails until the operator acknowledges (a flush that later succeeds would hide the loss: fsyncgate, 2018).

use super::{Pools, Queue, answer};
use crate::action::{Action, Notice};
use crate::bio::{Op, VolumeId};
use crate::error::{IoError, Status};
use crate::input::ReplyStage;
use crate::list::Fifo;
use crate::request::{RequestStart, SlotId};
use crate::slab::NIL;
use crate::time::Instant;
use crate::wait_times::WaitKind;

/// One volume's flushes.
#[derive(Debug)]
pub(crate) struct FlushSequence {
    /// The device flush, from its start until the device answered; `NIL` when idle.
    request: SlotId,
    /// `writes_completed` when it was sent.
    covers: u64,
    /// Bios that it answers.
    running: Fifo,
    /// Bios that the one after it answers.
    next: Fifo,
    /// It timed out.
    lost: bool,
}

impl FlushSequence {
    pub const fn new() -> Self {
        Self { request: NIL, covers: 0, running: Fifo::new(), next: Fifo::new(), lost: false }
    }

    /// The device has a flush of it.
    pub fn is_running(&self) -> bool {
        self.request != NIL
    }
}

impl Queue {
    /// A flush comes from a volume.
    pub fn flush(&mut self, now: Instant, pools: &mut Pools, slot: u32) {
        let id = pools.bios[slot].bio.id.volume;
        let needs_device = self.options.write_cache;
        let volume = self.volume_mut(id.0);
        volume.stats.ops[Op::Flush as usize].bios += 1;
        if volume.suspect {
            answer(pools, slot, Err(IoError::Medium), false, ReplyStage::Final);
        } else if !needs_device {
            volume.writes_flushed = volume.writes_completed;
            answer(pools, slot, Ok(()), false, ReplyStage::Final);
        } else {
            self.join_flush(now, pools, slot);
        }
    }

    /// The operator knows that a flush failed.
    pub fn acknowledge(&mut self, volume: VolumeId) {
        if let Some(Some(volume)) = self.volumes.get_mut(usize::from(volume.0)) {
            volume.suspect = false;
        }
    }

    /// Puts a flush, or a FUA write whose data are done, to the device flush that may cover it.
    pub(super) fn join_flush(&mut self, now: Instant, pools: &mut Pools, slot: u32) {
        let id = pools.bios[slot].bio.id.volume;
        let volume = self.volume_mut(id.0);
        if volume.suspect || volume.flush.lost {
            let error = if volume.suspect { IoError::Medium } else { IoError::TimedOut };
            return answer(pools, slot, Err(error), false, ReplyStage::Final);
        }
        pools.begin_wait(now, slot);
        let idle = volume.flush.request == NIL;
        if idle || volume.flush.covers == volume.writes_completed {
            volume.flush.running.push(&mut pools.bios, slot);
        } else {
            volume.flush.next.push(&mut pools.bios, slot);
        }
        if idle {
            let request = pools.slots.try_take().expect("there is a slot for each volume's flush");
            pools.slots[request].begin(RequestStart::of_flush(now, id));
            self.volume_mut(id.0).flush.request = request;
            self.send_flush(now, pools, id);
        }
    }

    fn send_flush(&mut self, now: Instant, pools: &mut Pools, id: VolumeId) {
        let volume = self.volume_mut(id.0);
        volume.flush.covers = volume.writes_completed;
        let request = volume.flush.request;
        self.send(now, pools, request);
    }

    /// A flush that the device had refused goes again: it covers all that finished meanwhile.
    pub(super) fn renew_flush(&mut self, pools: &mut Pools, id: SlotId) {
        let volume = self.volume_mut(pools.slots[id].volume.0);
        volume.flush.covers = volume.writes_completed;
        let sequence = &mut volume.flush;
        sequence.running.append(&mut pools.bios, &mut sequence.next);
    }

    /// The device answered its flush.
    pub(super) fn on_flush_done(
        &mut self,
        now: Instant,
        pools: &mut Pools,
        id: SlotId,
        status: Status,
    ) {
        let volume_id = pools.slots[id].volume;
        let stamps = pools.slots[id].stamps;
        let volume = self.volume_mut(volume_id.0);
        volume.stats.on_finish(Op::Flush, 0, &stamps, now);
        volume.stats.ops[Op::Flush as usize].errors += u64::from(status.is_err());
        volume.flush.lost = false;
        match status {
            Ok(()) => volume.writes_flushed = volume.flush.covers,
            // Refused after it was given up (else it would have gone again): nothing was flushed, and nothing was lost.
            Err(IoError::Busy) => {}
            Err(_) => {
                volume.suspect = true;
                let sequence = &mut volume.flush;
                sequence.running.append(&mut pools.bios, &mut sequence.next);
                let notice = Notice::Suspect { volume: volume_id, status };
                pools.actions.list.push(Action::Notice(notice));
            }
        }
        self.answer_running(now, pools, volume_id, status);
        let sequence = &mut self.volume_mut(volume_id.0).flush;
        sequence.running.append(&mut pools.bios, &mut sequence.next);
        if sequence.running.head().is_some() {
            pools.slots[id].stamps = [now; 4];
            self.send_flush(now, pools, volume_id);
        } else {
            sequence.request = NIL;
            self.free(pools, id);
        }
    }

    /// The device flush passed its time-out: nobody waits for it any longer.
    pub(super) fn lose_flush(&mut self, now: Instant, pools: &mut Pools, volume: VolumeId) {
        let sequence = &mut self.volume_mut(volume.0).flush;
        sequence.lost = true;
        sequence.running.append(&mut pools.bios, &mut sequence.next);
        self.answer_running(now, pools, volume, Err(IoError::TimedOut));
    }

    fn answer_running(
        &mut self,
        now: Instant,
        pools: &mut Pools,
        volume: VolumeId,
        status: Status,
    ) {
        while let Some(slot) = self.volume_mut(volume.0).flush.running.pop(&mut pools.bios) {
            // After the data of a FUA write. A flush that could not be joined is the device's time as well.
            let waited = now.since(pools.waits_since(slot));
            pools.bios[slot].wait_times =
                pools.bios[slot].wait_times.plus(WaitKind::Device, waited);
            answer(pools, slot, status, false, ReplyStage::Final);
        }
    }
}
