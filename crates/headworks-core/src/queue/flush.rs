//! The steps of a flush in the queue: it joins the sequence of its volume (`flush_sequence`), or the next device flush is sent for it.
//!
//! Invariants: a device flush has one request slot, from the first bio that needs it until the device has answered and no bio needs
//! another one; every bio that joined is answered once, with the device's answer or at a time-out.

use super::Queue;
use crate::action::{Action, Notice};
use crate::bio::{Op, VolumeId};
use crate::error::{IoError, Status};
use crate::input::ReplyStage;
use crate::pools::{Pools, answer};
use crate::request::{RequestStart, SlotId};
use crate::slab::NIL;
use crate::time::Instant;

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
        let request = self.volumes.of_bio(id).flush.cover();
        self.send(now, pools, request);
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
        let sequence = &mut self.volumes.of_bio(volume_id).flush;
        sequence.answer_all(now, pools, told);
        if sequence.end(&mut pools.bios) {
            let first = self.volumes.of_bio(volume_id).flush.first();
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
        let head = self.volumes.of_bio(volume).flush.first();
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
}
