//! Pools, timers and lists that all parts of a shard share, and the answer to a bio.

use crate::action::{Action, Actions};
use crate::device_bio::DeviceCompletion;
use crate::error::{IoError, Status};
use crate::input::{Message, ReplyStage};
use crate::request::{BioOrigin, Bios, Slots};
use crate::time::Instant;
use crate::timer::TimerWheel;

/// The pools and the list of actions of one shard.
pub(crate) struct Pools {
    /// The bios that are not answered yet.
    pub bios: Bios,
    /// By bio slot: since when it waits for a device flush, for the end of a change of options, or for another shard's device.
    /// Beside the bios, each of which fills a cache line, because few ever wait so; plain numbers, because zeroed memory costs
    /// nothing until it is used.
    pub waits_since: Vec<u64>,
    /// The requests of all queues.
    pub slots: Slots,
    /// The actions of this batch, for the driver.
    pub actions: Actions,
    /// The timers of all devices and of the cache.
    pub timers: TimerWheel,
    /// Completions of the cache's bios in this batch.
    pub completions: Vec<DeviceCompletion>,
    /// Devices that ceased to answer or began to answer again in this batch, a bit each.
    pub state_changes: u64,
    /// Request slots that were made for tags of removed devices; devices that get more tags use them first.
    pub spare_slots: u32,
}

impl Pools {
    /// Starts the wait of a bio that no request counts.
    pub fn begin_wait(&mut self, now: Instant, slot: u32) {
        debug_assert!(self.bios.is_taken(slot), "a bio waits in its slot");
        self.waits_since[slot as usize] = now.0;
    }

    /// Returns when the wait of a bio began, see [`Pools::begin_wait`].
    pub fn waits_since(&self, slot: u32) -> Instant {
        Instant(self.waits_since[slot as usize])
    }

    /// Returns the bio after `slot` in a request whose last one is `tail`. Ask before `slot` is freed.
    #[inline]
    pub fn bio_after(&self, slot: u32, tail: u32) -> Option<u32> {
        (slot != tail).then(|| self.bios[slot].next)
    }
}

/// Answers a bio to its origin and frees its slot; an early answer keeps the slot until the device returns the buffer.
pub(crate) fn answer(pools: &mut Pools, slot: u32, status: Status, hole: bool, stage: ReplyStage) {
    debug_assert!(status != Err(IoError::Busy), "a refusal by the device is requeued");
    debug_assert!(pools.bios.is_taken(slot), "a bio is answered in its slot");
    let entry = &mut pools.bios[slot];
    let (id, wait_times) = (entry.bio.id, entry.wait_times);
    debug_assert!(
        entry.answered == (stage == ReplyStage::Released),
        "a bio is answered once, and released only after an early answer"
    );
    match entry.origin {
        BioOrigin::Frontend => {
            pools.actions.list.push(Action::Reply { id, status, hole, stage, wait_times });
        }
        BioOrigin::Shard { shard, cookie } => {
            let message = Message::Done { cookie, id, status, hole, stage, wait_times };
            pools.actions.list.push(Action::Send { to: shard, message });
        }
        BioOrigin::Cache { cookie } => {
            let bio = entry.bio;
            let completion = DeviceCompletion { bio, cookie, status, hole, stage, wait_times };
            pools.completions.push(completion);
        }
    }
    if stage == ReplyStage::Early {
        entry.answered = true;
    } else {
        pools.bios.put(slot);
    }
}
