//! Feeders that drive the shard themselves, with the right of `combining.rs`.
//!
//! A feeder that finds the right free carries its batch in, and what others left in their rings, until the rings are empty or it has
//! done enough. A feeder that waits drives what a driver at its bound left. The owner's thread drives when no feeder is
//! there: for timers, commands, completions of file operations, and batches whose feeders sleep. It alone has the engine: file operations
//! of a feeder's turn are left to it in a list (`left_operations.rs`), and it is called (`owner_call.rs`).
//!
//! Invariants: the owner's thread sleeps no longer than to the earliest timer (`owner_wakes_at` is when it wakes, and a driver that
//! sets an earlier timer calls it), and not while operations are left to it; a feeder that panics while it drives ends the owner, and
//! every wait.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use headworks_core::{Bio, Input, Instant};

use super::OwnerState;
use super::driver::{BIOS_MAX, Driver};
use crate::combining::{Driving, DrivingRight, Leave, Take};
use crate::engine::Waker;
use crate::owner_call::OwnerCall;
use crate::runtime::Clock;

/// Time after which a driver leaves batches of others to a feeder that spins.
const HAND_OVER_NS: u64 = 20_000;
/// Time after which a driver leaves batches of others to the owner's thread, which it has to wake.
const BOUND_NS: u64 = 500_000;

/// Time for which a feeder that submits again and again lets the batches of others wait while their feeders spin: it carries more of them
/// in at once.
const SHARE_NS: u64 = 20_000;
/// Time after which a feeder that drives again and again stands back once for another one that spins.
const HOLD_NS: u64 = 1_000_000;

/// The shard and what its drivers need to change over.
pub(super) struct SharedDriver {
    pub right: DrivingRight<Driver>,
    pub clock: Clock,
    /// Calls the owner's thread, which may be awake.
    pub call: OwnerCall,
    /// Wakes the owner's thread.
    pub owner: Waker,
    pub state: Arc<OwnerState>,
    /// The thread that has lent bytes, as `lent.rs` names it; 0 if none has.
    pub lender: AtomicUsize,
}

/// What became of a batch that a feeder carried in.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Carried {
    /// The handle is to stand back the next time.
    pub stands_back: bool,
    /// File operations were left to the owner's thread: replies take as long as a disk.
    pub left_operations: bool,
    /// System calls that woke the owner's thread.
    pub wakes: u32,
}

/// Ends the owner if a feeder panics while it drives: dropped by the panic only, after the right, which that closed.
struct PanicGuard<'a>(&'a SharedDriver);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        self.0.state.set_ended();
        self.0.owner.wake();
    }
}

impl SharedDriver {
    /// Carries a batch in, past the ring of its handle, and drives. `None`, with the batch left to the caller, if it cannot be carried in
    /// now. The handle is not armed.
    #[inline]
    pub fn carry_in(&self, handle: u32, batch: &mut Vec<Bio>) -> Option<Carried> {
        if batch.len() > BIOS_MAX {
            return None;
        }
        let (mut driving, others) = self.right.take()?;
        // The handle's ring may have bios that go first.
        let first = !others || driving.with(|driver| driver.take_bios_of(handle));
        if first {
            driving.with(|driver| driver.carry_in(handle, batch));
        }
        let carried = self.drive(driving, Some(handle), others);
        first.then_some(carried)
    }

    /// Drives, or leaves a batch that was published in the ring of a handle to the driver. Returns true if that is the owner's thread.
    #[inline]
    pub fn on_publish(&self, handle: u32) -> bool {
        match self.right.take_or_leave() {
            Take::Taken(driving, others) => {
                self.drive(driving, Some(handle), others);
            }
            Take::Left => {}
            Take::LeftToOwner => return true,
        }
        false
    }

    /// Drives if batches were left in rings and the right is free.
    #[inline]
    pub fn drive_pending(&self) {
        if let Some(driving) = self.right.take_pending() {
            self.drive(driving, None, true);
        }
    }

    /// As [`DrivingRight::stop_spinning`]; drives if no other feeder would.
    pub fn stop_spinning(&self) {
        if let Some(driving) = self.right.stop_spinning() {
            self.drive(driving, None, true);
        }
    }

    /// Drives until the rings are empty or it has been enough. `own` is the handle that submitted; `others`: other rings may have
    /// batches.
    pub(super) fn drive(
        &self,
        driving: Driving<'_, Driver>,
        own: Option<u32>,
        others: bool,
    ) -> Carried {
        // In this order: a panic drops the right, which closes it, and then wakes the owner, which finds it closed.
        let guard = PanicGuard(self);
        let mut driving = driving;
        let began = self.clock.now();
        let mut now = began;
        let stands_back = driving.with(|driver| driver.hold(began, own)) && driving.feeder_spins();
        let (mut left_operations, mut wakes) = (false, 0);
        let later = own.is_some()
            && driving.feeder_spins()
            && driving.with(|driver| driver.others_may_wait(now));
        let (mut all, mut unread) = (others && !later, others && later);
        loop {
            let scope = if all { None } else { own };
            let read = driving.with(|driver| driver.feeder_turn(now, scope));
            if !read || all {
                now = self.clock.now();
            }
            let driven = now.since(began);
            let enough = driven >= BOUND_NS || driven >= HAND_OVER_NS && driving.feeder_spins();
            if !read && !enough && !driving.is_wanted() {
                continue;
            }
            if unread && !enough && !driving.feeder_spins() {
                (all, unread) = (true, false);
                continue;
            }
            let more = unread || !read;
            let (calls, operations) = driving.with(|driver| driver.leave(more));
            left_operations |= operations;
            let leave = driving.leave(more);
            if calls || matches!(leave, Leave::WakeOwner) {
                wakes += u32::from(self.call_owner());
            }
            match leave {
                // At the bound one more turn, and the rest is another's.
                Leave::Again(again) => (driving, all, unread) = (again, true, driven >= BOUND_NS),
                Leave::Left | Leave::WakeOwner => break,
            }
        }
        std::mem::forget(guard);
        Carried { stands_back, left_operations, wakes }
    }

    /// Calls the owner's thread, after the right was left. Returns true if it slept and was woken.
    pub(super) fn call_owner(&self) -> bool {
        let sleeps = self.call.call();
        if sleeps {
            self.owner.wake();
        }
        sleeps
    }
}

impl Driver {
    /// Takes a batch of a handle.
    fn carry_in(&mut self, handle: u32, batch: &mut Vec<Bio>) {
        let first = self.inputs.len();
        // By copies: what `drain` yields goes through the stack, and waits for its own stores.
        self.inputs.extend(batch.iter().map(|&bio| Input::Bio(bio)));
        batch.clear();
        self.reject_removed(first);
        self.awake = Some(handle);
    }

    /// Records which handle's thread drives; returns true if it has done so for long enough.
    fn hold(&mut self, now: Instant, own: Option<u32>) -> bool {
        if self.holder.0 != own {
            self.holder = (own, now);
        }
        now.since(self.holder.1) >= HOLD_NS
    }

    /// Returns true if the rings of others were read a short time ago.
    fn others_may_wait(&self, now: Instant) -> bool {
        now.since(self.others_read) < SHARE_NS
    }

    /// A turn on a feeder's thread, with the bios of one ring or of all; returns true if they were read to their ends.
    pub(super) fn feeder_turn(&mut self, now: Instant, own: Option<u32>) -> bool {
        let all_read = match own {
            Some(handle) => self.take_bios_of(handle),
            None => {
                self.others_read = now;
                self.take_bios()
            }
        };
        let turns = self.counts.turns;
        let mut left = std::mem::take(&mut self.left);
        self.run(now, &mut left);
        self.left = left;
        self.counts.feeder_turns += self.counts.turns - turns;
        all_read
    }

    /// Before a feeder leaves, with batches in rings or not: returns whether the owner's thread is to be called, which sleeps for longer than
    /// the earliest timer or has operations to start, and whether there are any.
    fn leave(&mut self, more: bool) -> (bool, bool) {
        self.counts.hand_overs += u64::from(more);
        self.awake = None;
        let sooner = self.next_timeout().filter(|&at| at < self.owner_wakes_at);
        if let Some(at) = sooner {
            self.owner_wakes_at = at;
        }
        (self.left.must_call() || sooner.is_some(), !self.left.is_empty())
    }
}
