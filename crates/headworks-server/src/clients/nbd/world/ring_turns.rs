//! Turns of machines' devices in front of the shard, as the reactor gives them.

use headworks_core::{DeviceId, Instant, ReplyStage, Status};
use headworks_front::WaitsFor;
use headworks_front::memory::Held;
use headworks_front::window::CompletedRequest;

use super::front::Front;
use super::rings::MachineClient;
use crate::clients::nbd::connection::{LimitGate, ReceiveOutcome, Shares, TurnShare};

/// Weight of a device's limits.
const WEIGHT: u32 = 100;

impl Front {
    /// Takes requests from a device's rings, and does with it what the outcome says. Its slot follows those of `lines` connections.
    pub fn receive_ring(&mut self, now: Instant, lines: usize, index: usize) -> ReceiveOutcome {
        let received = self.receive_ring_only(now, lines, index);
        self.note_ring(lines, index);
        let slot = (lines + index) as u32;
        let waits = ReceiveOutcome::Waits;
        let keeps = [WaitsFor::Buffer, WaitsFor::Room, WaitsFor::Turn].map(waits);
        if !keeps.contains(&received) {
            self.memory.leave(slot);
        }
        let ring = &mut self.rings[index];
        // It is watched when nothing moves any more.
        let stays = [ReceiveOutcome::Idle, ReceiveOutcome::Worked, waits(WaitsFor::Turn)];
        ring.hot = stays.contains(&received);
        if let (ReceiveOutcome::Waits(WaitsFor::Buffer | WaitsFor::Room), Some(client)) =
            (&received, &ring.client)
        {
            let wants = client.wants(&self.memory.limits());
            self.memory.wait(slot, wants);
        }
        received
    }

    /// Takes requests from a device's rings.
    pub fn receive_ring_only(
        &mut self,
        now: Instant,
        lines: usize,
        index: usize,
    ) -> ReceiveOutcome {
        self.with_ring(now, lines, index, |client, shares| client.receive(shares))
    }

    /// Submits what was taken from a device's rings before. Nothing more is taken.
    pub fn resubmit_ring(&mut self, now: Instant, lines: usize, index: usize) {
        self.with_ring(now, lines, index, |client, shares| {
            client.resubmit(shares);
            ReceiveOutcome::Idle
        });
        self.note_ring(lines, index);
    }

    fn with_ring(
        &mut self,
        now: Instant,
        lines: usize,
        index: usize,
        call: impl FnOnce(&mut MachineClient, &mut Shares<'_>) -> ReceiveOutcome,
    ) -> ReceiveOutcome {
        let (slot, ring) = ((lines + index) as u32, &mut self.rings[index]);
        let (export, is_troubled) = (ring.export, ring.export == self.troubled);
        let Some(client) = &mut ring.client else { return ReceiveOutcome::Idle };
        let limits = if self.limited {
            let (tree, group) = (&mut self.tree, self.groups[usize::from(export)]);
            let leaf = *ring.leaf.get_or_insert_with(|| tree.add_leaf(group, WEIGHT, slot));
            Some(LimitGate { tree, leaf })
        } else {
            None
        };
        let room = self.memory.slots(Some(DeviceId(export)), self.slots - self.in_flight);
        let turn = TurnShare { room, large_reads: 1 << 20, large_payloads: 0, received: 0 };
        let mut lent = Shares {
            now,
            scratch: &mut self.scratch,
            pool: &mut self.pool,
            memory: self.memory.share(slot),
            from_cache: false,
            frozen: self.frozen && is_troubled,
            limits,
            exports: &self.exports,
            window: self.memory.window(client.export_of_requests()),
            turn,
            inputs: &mut self.inputs,
        };
        let received = call(client, &mut lent);
        self.in_flight += room - lent.turn.room;
        received
    }

    /// Gives a device a reply of the shard.
    pub fn reply_ring(
        &mut self,
        now: Instant,
        index: usize,
        sequence: u64,
        result: (Status, bool, ReplyStage),
    ) -> Option<CompletedRequest> {
        let ring = &mut self.rings[index];
        ring.is_listed = true;
        ring.client.as_mut()?.reply(now, sequence, result, &mut self.pool)
    }

    /// Records what a device holds.
    pub fn note_ring(&mut self, lines: usize, index: usize) {
        let ring = &self.rings[index];
        let Some(client) = &ring.client else { return };
        let (bytes, requests) = (client.held(), client.in_flight());
        let held = Held { bytes, request_bytes: client.request_bytes(), requests };
        let binding = ring.binding();
        let owner = Some((binding.export, binding.device));
        self.memory.note((lines + index) as u32, owner, held, false);
    }

    /// Requests of a device that wait for limits.
    pub fn parked_ring(&self, index: usize) -> usize {
        self.rings[index].client.as_ref().map_or(0, |client| client.parked())
    }

    /// Lets everything pass that a device has waiting for limits.
    pub fn pass_ring(&mut self, now: Instant, index: usize) {
        let ring = &mut self.rings[index];
        if let Some(client) = ring.client.as_mut().filter(|client| client.parked() > 0) {
            client.pass_all();
            if let Some(leaf) = ring.leaf.take() {
                self.tree.remove(now, leaf);
            }
        }
    }

    /// The front end of a machine has left.
    pub fn close_ring(&mut self, now: Instant, lines: usize, index: usize) {
        let ring = &mut self.rings[index];
        if let Some(leaf) = ring.leaf.take() {
            self.tree.remove(now, leaf);
        }
        self.memory.forget((lines + index) as u32);
        if let Some(client) = &mut ring.client {
            client.close(&mut self.pool);
        }
    }
}
