//! The state of bfq as it is shown: made when it is asked for, from what the parts know.

use super::in_service::Slot;
use super::places::Places;
use super::queue::{BfqQueue, QueueId};
use crate::bio::ExportId;
use crate::elevator::slot_trace::{SlotEvent, SlotTrace};
use crate::elevator::state::{FlowState, STATE_EXPORTS, STATE_QUEUES, Served, SlotState};
use crate::time::Instant;

impl Places {
    /// Returns the slot of the queue in service, for which it is waited until `idle_until`.
    pub fn slot_state(&self, now: Instant, slot: &Slot, idle_until: Option<Instant>) -> SlotState {
        let queue = &self[slot.queue];
        SlotState {
            export: ExportId(queue.export as u16),
            connection: queue.connection(),
            age_ns: now.since(slot.since),
            left_ns: slot.until.since(now),
            idle_ns: idle_until.map(|until| until.since(now)),
        }
    }

    /// Returns the first queues by activity and service, that of `current` before all.
    pub fn flows(&self, now: Instant, current: Option<QueueId>) -> Vec<FlowState> {
        let rank = |id: QueueId| {
            let (queue, served) = (&self[id], self[id].recent.sum(now));
            let place = (current == Some(id), queue.busy, !queue.in_device.is_zero());
            std::cmp::Reverse((place, served.slot_ns, served.sectors))
        };
        let mut ids: Vec<QueueId> = (0..self.len() as QueueId).collect();
        ids.sort_by_cached_key(|&id| rank(id));
        ids.truncate(STATE_QUEUES);
        ids.into_iter().map(|id| self[id].flow_state(now)).collect()
    }

    /// Returns the exports that were served most, and the sum over all.
    pub fn served_by_export(&self, now: Instant) -> (Vec<(ExportId, Served)>, Served) {
        let mut exports: Vec<(ExportId, Served)> = Vec::new();
        let mut sum = Served::default();
        let mut ids: Vec<QueueId> = (0..self.len() as QueueId).collect();
        ids.sort_by_key(|&id| self[id].export);
        for id in ids {
            let (queue, served) = (&self[id], self[id].recent.sum(now));
            let export = ExportId(queue.export as u16);
            sum.add(&served);
            match exports.last_mut() {
                Some((last, all)) if *last == export => all.add(&served),
                _ => exports.push((export, served)),
            }
        }
        exports.sort_by_key(|(_, served)| std::cmp::Reverse((served.slot_ns, served.sectors)));
        exports.retain(|(_, served)| *served != Served::default());
        exports.truncate(STATE_EXPORTS);
        (exports, sum)
    }
}

impl BfqQueue {
    /// Returns the connection whose synchronous requests it has.
    fn connection(&self) -> Option<u32> {
        self.sync.then_some((self.key >> 8) as u32)
    }

    /// Describes an event of the queue.
    pub fn trace(&self, at: Instant, event: impl FnOnce(&Self) -> SlotEvent) -> SlotTrace {
        let (export, connection) = (ExportId(self.export as u16), self.connection());
        SlotTrace { at, export, connection, event: event(self) }
    }

    /// Describes the present raise of the weight.
    pub fn raise_event(&self) -> SlotEvent {
        SlotEvent::Raise { reason: self.raise.name(), weight: self.weight() }
    }

    fn flow_state(&self, now: Instant) -> FlowState {
        FlowState {
            export: ExportId(self.export as u16),
            connection: self.connection(),
            ioprio: self.ioprio,
            busy: self.busy,
            weight: self.weight(),
            raise: self.raise.name(),
            waiting: self.requests.count(),
            in_device: self.in_device.get(),
            budget: self.budget,
            service: self.service,
            think_ns: self.think.mean_ns(),
            seeky: self.think.is_seeky(),
            inject: self.inject.get(false),
            served: self.recent.sum(now),
        }
    }
}
