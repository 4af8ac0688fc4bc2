//! Flushes that a shard submits itself: for `drain`, for removals and at shutdown.
//!
//! A flush is named by its sequence number. Its completion goes to the waiter that asked for it; completions without a
//! waiter belong to the shutdown. A flush that timed out at shutdown is submitted again by the next tick.

use std::sync::mpsc::Sender;

use headworks_core::{Bio, BioFlags, BioId, Input, Op, Status, VolumeId};

use crate::clients::connection_id::OWN_FLUSHES;

/// Sequence numbers, waiters and retries of a shard's own flushes.
#[derive(Default)]
pub(super) struct OwnFlushes {
    submitted: u64,
    waiting: Vec<(u64, Sender<Status>)>,
    /// Volumes to be flushed again by the next tick. A device that has not completed a flush refuses the next one at once.
    due: Vec<VolumeId>,
    /// Volumes whose slow flush was logged.
    logged: Vec<VolumeId>,
}

impl OwnFlushes {
    /// Sequence number of the next flush.
    pub fn next_sequence(&self) -> u64 {
        self.submitted
    }

    /// The input for a flush of a volume.
    pub fn submit(&mut self, volume: VolumeId) -> Input {
        let sequence = self.submitted;
        self.submitted += 1;
        let id = BioId { connection: OWN_FLUSHES, volume, sequence, ..BioId::default() };
        // FUA: the flush also takes effect in the mode `unsafe`.
        let flags = BioFlags::SYNC.with(BioFlags::FUA);
        Input::Bio(Bio { id, op: Op::Flush, flags, ..Bio::default() })
    }

    /// As [`OwnFlushes::submit`]; the status goes to `waiter`.
    pub fn submit_for(&mut self, volume: VolumeId, waiter: Sender<Status>) -> Input {
        self.waiting.push((self.submitted, waiter));
        self.submit(volume)
    }

    /// Sends completions to their waiters; those of the shutdown stay in `completed`.
    pub fn answer(&mut self, completed: &mut Vec<(BioId, Status)>) {
        let waiting = &mut self.waiting;
        completed.retain(|(id, status)| {
            let waiter = waiting.iter().position(|(sequence, _)| *sequence == id.sequence);
            waiter.map(|index| waiting.swap_remove(index).1.send(*status)).is_none()
        });
    }

    /// Drops all waiters, which ends their waits.
    pub fn abandon(&mut self) {
        self.waiting.clear();
    }

    /// Schedules another flush of a volume; true if this is its first retry.
    pub fn retry(&mut self, volume: VolumeId) -> bool {
        self.due.push(volume);
        let is_first = !self.logged.contains(&volume);
        if is_first {
            self.logged.push(volume);
        }
        is_first
    }

    /// Takes the volumes whose flush is due again.
    pub fn take_due(&mut self) -> Vec<VolumeId> {
        std::mem::take(&mut self.due)
    }
}
