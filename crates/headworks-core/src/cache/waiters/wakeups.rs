//! Which list an operation waits on, and which operations an event makes ready.
//!
//! Invariant: an operation that leaves the list for credit, caps or frames already holds what it waited for: a wake-up without it
//! would lose the race against a new operation. One that is moved to another list, or for which all waits end, asks again.

use super::Waiters;
use super::lists::FlushLists;
use super::operation::WaitFor;
use crate::bio::VolumeId;
use crate::cache::dirty::AccountId;
use crate::list::Fifo;
use crate::slab::NIL;
use crate::time::Instant;

impl Waiters {
    /// Adds lists up to those of `device`.
    pub fn add_device(&mut self, device: usize) {
        for _ in self.lists.credit.len()..=device {
            self.lists.credit.push(Fifo::new());
            self.lists.bios.extend([Fifo::new(), Fifo::new()]);
            self.lists.refused.push(false);
        }
    }

    /// Checks that no operation waits for a device, and resets its lists.
    pub fn reset_device(&mut self, device: usize) {
        assert!(self.lists.credit[device].head().is_none(), "no operation waits for its credit");
        for account in [2 * device, 2 * device + 1] {
            assert!(self.lists.bios[account].head().is_none(), "no operation waits for its bios");
        }
        self.lists.refused[device] = false;
    }

    /// Adds lists up to those of `volume`, which must be empty if they exist.
    pub fn add_volume(&mut self, volume: VolumeId) {
        let index = usize::from(volume.0);
        for _ in self.lists.flushes.len()..=index {
            self.lists.flushes.push(FlushLists::default());
        }
        let FlushLists { generation, start } = &self.lists.flushes[index];
        assert!(generation.head().is_none() && start.head().is_none(), "no flush of it waits");
    }

    /// Puts an operation on the list that its `waits_for` names; `device` is its volume's.
    ///
    /// Waits for a folio are listed in the folio's header, those for write-outs and completions nowhere.
    pub fn enlist(&mut self, slot: u32, device: usize) {
        let ops = &mut self.ops;
        match ops[slot].waits_for {
            WaitFor::Nothing | WaitFor::Slot => unreachable!("the operation waits for no event"),
            WaitFor::Folio(_) | WaitFor::Writeouts | WaitFor::Device => {}
            WaitFor::NextTurn => self.lists.next_turn.push(ops, slot),
            WaitFor::Frame => self.lists.frames.push(ops, slot),
            WaitFor::Bios(account) => self.lists.bios[account as usize].push(ops, slot),
            WaitFor::Credit(_) => self.lists.credit[device].push(ops, slot),
            WaitFor::Cap(account, _) => {
                self.lists.capped.add(1);
                self.lists.caps[usize::from(account)].push(ops, slot);
            }
            WaitFor::Pause => {
                let writer = ops[slot].writer;
                assert!(writer != NIL, "only a writer pauses");
                self.lists.paused[writer as usize].push(ops, slot);
            }
            WaitFor::Range(holder) => self.ranges.wait(ops, holder, slot),
            WaitFor::Flush => {
                let volume = usize::from(ops[slot].bio.id.volume.0);
                let list = self.lists.flushes[volume].list(ops[slot].generation > 0);
                // A flush that was stepped in vain keeps its place.
                list.insert(ops, slot, |a, b| a.deadline < b.deadline);
            }
        }
    }

    /// Marks an operation as able to continue.
    pub fn ready(&mut self, slot: u32) {
        debug_assert!(self.ops.is_taken(slot));
        self.lists.ready.push(&mut self.ops, slot);
    }

    /// Removes the first operation that can continue.
    pub fn next_ready(&mut self) -> Option<u32> {
        self.lists.ready.pop(&mut self.ops)
    }

    /// Returns true if an operation can continue.
    pub fn has_ready(&self) -> bool {
        self.lists.ready.head().is_some()
    }

    /// Makes the operations ready that waited for the next turn.
    pub fn start_turn(&mut self) {
        self.lists.ready.append(&mut self.ops, &mut self.lists.next_turn);
    }

    /// Returns the first operation that waits for a frame.
    pub fn first_for_frame(&self) -> Option<u32> {
        self.lists.frames.head()
    }

    /// Makes the first operation ready that waits for a frame; it holds one.
    pub fn end_frame_wait(&mut self) {
        let slot = self.lists.frames.pop(&mut self.ops).expect("an operation waits for a frame");
        assert!(self.ops[slot].frame.0 != NIL, "it leaves the list with a frame");
        self.ready(slot);
    }

    /// Makes every operation ready that waits for a frame.
    pub fn end_frame_waits(&mut self) {
        let list = std::mem::take(&mut self.lists.frames);
        self.lists.make_ready(&mut self.ops, list);
    }

    /// Moves the first operation that waits for a frame to the list of a bio account.
    pub fn move_frame_wait_to_bios(&mut self, account: usize) {
        let slot = self.lists.frames.pop(&mut self.ops).expect("an operation waits for a frame");
        self.ops[slot].waits_for = WaitFor::Bios(account as u32);
        self.lists.bios[account].push(&mut self.ops, slot);
    }

    /// Returns the number of bio accounts.
    pub fn bio_accounts(&self) -> usize {
        self.lists.bios.len()
    }

    /// Returns true if an operation waits for a bio of an account.
    pub fn waits_for_bio(&self, account: usize) -> bool {
        self.lists.bios[account].head().is_some()
    }

    /// Makes up to `count` operations ready that wait for a bio of an account.
    pub fn end_bio_waits(&mut self, account: usize, count: u32) {
        for _ in 0..count {
            let Some(slot) = self.lists.bios[account].pop(&mut self.ops) else {
                break;
            };
            self.ready(slot);
        }
    }

    /// Returns the number of devices with a credit list.
    pub fn credit_lists(&self) -> usize {
        self.lists.credit.len()
    }

    /// Returns the first operation that waits for credit of a device, and the blocks it waits for.
    pub fn first_for_credit(&self, device: usize) -> Option<(u32, u32)> {
        let slot = self.lists.credit[device].head()?;
        let WaitFor::Credit(blocks) = self.ops[slot].waits_for else {
            unreachable!("an operation on the credit list waits for credit")
        };
        Some((slot, blocks))
    }

    /// Returns true if the throttle has refused the first operation on a device's credit list.
    pub fn is_refused(&self, device: usize) -> bool {
        self.lists.refused[device]
    }

    /// Records whether the throttle has refused the first operation on a device's credit list.
    pub fn set_refused(&mut self, device: usize, refused: bool) {
        self.lists.refused[device] = refused;
    }

    /// Lowers what the first operation on a device's credit list waits for; the throttle is to be asked again.
    pub fn lower_credit_wait(&mut self, device: usize, blocks: u32) {
        let (slot, wanted) = self.first_for_credit(device).expect("an operation waits for credit");
        assert!(blocks < wanted, "a wait for credit is only lowered");
        self.ops[slot].waits_for = WaitFor::Credit(blocks);
        self.lists.refused[device] = false;
    }

    /// Makes the first operation ready that waits for credit, with `blocks` granted.
    pub fn end_credit_wait(&mut self, device: usize, blocks: u32) {
        let slot = self.lists.credit[device].pop(&mut self.ops).expect("it waits for credit");
        self.ops[slot].reserved.credit += blocks;
        self.ready(slot);
    }

    /// Makes every operation ready that waits for credit of a device.
    pub fn end_credit_waits(&mut self, device: usize) {
        let list = std::mem::take(&mut self.lists.credit[device]);
        self.lists.refused[device] = false;
        self.lists.make_ready(&mut self.ops, list);
    }

    /// Returns the first operation that waits for room under the cap of an account, and the blocks it waits for.
    pub fn first_for_cap(&self, account: AccountId) -> Option<(u32, u32)> {
        let slot = self.lists.caps[usize::from(account)].head()?;
        let WaitFor::Cap(_, blocks) = self.ops[slot].waits_for else {
            unreachable!("an operation on the list of an account waits for its cap")
        };
        Some((slot, blocks))
    }

    /// Moves the first operation that waits for one account to the list of another one, which has no room for it.
    pub fn move_cap_wait(&mut self, from: AccountId, to: AccountId) {
        assert!(from != to, "the first account has room");
        let (slot, blocks) = self.first_for_cap(from).expect("an operation waits for the cap");
        self.lists.caps[usize::from(from)].pop(&mut self.ops);
        self.ops[slot].waits_for = WaitFor::Cap(to, blocks);
        self.lists.caps[usize::from(to)].push(&mut self.ops, slot);
    }

    /// Makes the first operation ready that waits for the cap of an account, with `blocks` reserved for its payer.
    pub fn end_cap_wait(&mut self, account: AccountId, blocks: u32) {
        let list = &mut self.lists.caps[usize::from(account)];
        let slot = list.pop(&mut self.ops).expect("an operation waits for the cap");
        self.lists.capped.sub(1);
        assert!(
            self.ops[slot].reserved.paid == 0,
            "an operation that waits for a cap has reserved nothing"
        );
        self.ops[slot].reserved.paid = blocks;
        self.ready(slot);
    }

    /// Makes every operation ready that waits for a cap; each asks again.
    pub fn end_cap_waits(&mut self) {
        for account in 0..self.lists.caps.len() {
            if self.lists.capped.is_zero() {
                return;
            }
            let mut list = std::mem::take(&mut self.lists.caps[account]);
            while let Some(slot) = list.pop(&mut self.ops) {
                self.lists.capped.sub(1);
                self.ready(slot);
            }
        }
    }

    /// Returns true if an operation waits for a cap.
    pub fn waits_for_cap(&self) -> bool {
        !self.lists.capped.is_zero()
    }

    /// Returns the number of writers with a list of paused operations.
    pub fn writers(&self) -> usize {
        self.lists.paused.len()
    }

    /// Returns the first operation that waits for the end of a writer's pause.
    pub fn first_paused(&self, writer: u32) -> Option<u32> {
        self.lists.paused[writer as usize].head()
    }

    /// Removes the first operation that waits for the end of a writer's pause.
    pub fn pop_paused(&mut self, writer: u32) -> Option<u32> {
        self.lists.paused[writer as usize].pop(&mut self.ops)
    }

    /// Makes every operation ready that waits for the end of a writer's pause.
    pub fn end_pause(&mut self, writer: u32) {
        let list = std::mem::take(&mut self.lists.paused[writer as usize]);
        self.lists.make_ready(&mut self.ops, list);
    }

    /// Returns the generation up to which the first waiting flush of a volume waits.
    pub fn first_flush_target(&self, volume: VolumeId) -> Option<u64> {
        let slot = self.lists.flushes[usize::from(volume.0)].generation.head()?;
        let generation = self.ops[slot].generation;
        assert!(generation > 0, "a flush on this list has ended a generation");
        Some(generation - 1)
    }

    /// Makes the first flush of a volume ready that waits for a generation.
    pub fn end_first_flush_wait(&mut self, volume: VolumeId) {
        let list = &mut self.lists.flushes[usize::from(volume.0)].generation;
        let slot = list.pop(&mut self.ops).expect("a flush waits");
        self.ready(slot);
    }

    /// Makes every waiting flush of a volume ready.
    pub fn end_flush_waits(&mut self, volume: VolumeId) {
        let FlushLists { generation, start } = &mut self.lists.flushes[usize::from(volume.0)];
        self.lists.ready.append(&mut self.ops, generation);
        self.lists.ready.append(&mut self.ops, start);
    }

    /// Makes the flushes ready that wait until they can end a generation.
    pub fn end_flush_start_waits(&mut self, volume: VolumeId) {
        let list = &mut self.lists.flushes[usize::from(volume.0)].start;
        self.lists.ready.append(&mut self.ops, list);
    }

    /// Returns the waiting flush with the earliest deadline of one of a volume's lists.
    pub fn next_flush_deadline(&mut self, volume: VolumeId, started: bool) -> Option<Instant> {
        let slot = self.lists.flushes[usize::from(volume.0)].list(started).head()?;
        Some(self.ops[slot].deadline)
    }

    /// Fails the first waiting flush of one of a volume's lists; false if it has none.
    pub fn fail_flush(
        &mut self,
        volume: VolumeId,
        started: bool,
        error: crate::error::IoError,
    ) -> bool {
        let list = self.lists.flushes[usize::from(volume.0)].list(started);
        let Some(slot) = list.pop(&mut self.ops) else {
            return false;
        };
        self.ops[slot].status = Err(error);
        self.ready(slot);
        true
    }
}
