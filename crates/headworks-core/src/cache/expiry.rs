//! Waits that last for too long: their operations fail, as requests that wait for a device do.
//!
//! While a device is unresponsive (`queue/device_state.rs`), an operation is answered within two time-outs of its arrival,
//! wherever it waits. In the first it may wait for something shared: a frame, a bio, credit, a pause, a locked range. After
//! that it asks the device for nothing more, which would need another time-out to answer. For a folio or older write-out,
//! which a command of the device takes part of, it may wait for two. Its bios carry its arrival, so the queue limits their
//! waits with its own: a bio is sent within one time-out of the arrival, and a command has another. A read that has copied a
//! part begins anew, for what it copied came from the device.
//!
//! While a device is stuck, operations that need it fail at once: hits are served, and blocks become dirty while there is
//! credit.
//!
//! Invariant: while an operation waits with a limit, the timer is set for it or earlier.

use super::context::{CallContext, TimerKind};
use super::device_io::{fills, writeouts};
use super::state::CacheState;
use super::waiters::operation::{OpStep, Operation, WaitFor};
use crate::bio::DeviceId;
use crate::error::IoError;
use crate::slab::NIL;
use crate::time::Instant;
use crate::wait_times::WaitTimes;

impl CacheState {
    /// Notes whether a device answers; if it does not, the operations fail that wait for it.
    pub fn set_silent(
        &mut self,
        ctx: &mut CallContext,
        device: usize,
        (silent, unresponsive): (bool, bool),
    ) {
        self.dirty.set_silent(device, silent, unresponsive);
        self.io.set_unresponsive(device, unresponsive);
        self.update_stuck(device, IoError::TimedOut);
        self.needs_run = true;
        if unresponsive {
            self.expire_waits(ctx);
        }
        if !silent {
            return;
        }
        for account in [fills(device), writeouts(device)] {
            self.waiters.end_bio_waits(account, u32::MAX);
        }
        for volume in self.volumes.ids().filter(|&volume| self.volumes.is_on(volume, device)) {
            for started in [true, false] {
                while self.waiters.fail_flush(volume, started, IoError::TimedOut) {}
            }
        }
    }

    /// Returns what an operation does instead of a wait for its device: while that does not answer, it fails.
    pub fn unless_silent(
        &mut self,
        ctx: &mut CallContext,
        op: &mut Operation,
        slot: u32,
        waits_for: WaitFor,
    ) -> WaitFor {
        let device = self.volumes.device_index(op.bio.id.volume);
        match self.dirty.is_silent(device) {
            true => self.time_out(ctx, op, slot),
            false => waits_for,
        }
    }

    /// Fails an operation that has waited for too long, as soon as no write-out of its own is outstanding.
    pub fn time_out(&mut self, ctx: &mut CallContext, op: &mut Operation, slot: u32) -> WaitFor {
        let status = Err(IoError::TimedOut);
        if op.pending > 0 {
            op.status = op.status.and(status);
            return WaitFor::Writeouts;
        }
        debug_assert!(op.step != OpStep::Device, "the queue limits what the device has");
        if op.step == OpStep::Flush {
            super::steps::flush::count(self, status);
        }
        self.waiters.unlock_range(op, slot);
        self.complete(ctx, op, status)
    }

    /// Returns true if an operation has waited for so long that its device could not answer in time: it is not asked any more.
    pub fn is_late_for_device(&self, ctx: &CallContext, op: &Operation) -> bool {
        let volume = op.bio.id.volume;
        self.dirty.is_unresponsive(self.volumes.device_index(volume))
            && op.limit.since.after(self.volumes.caching(volume).io_timeout_ns) <= ctx.now
    }

    /// Returns when an operation has waited for too long; `None` while its wait has no such limit.
    fn waits_until(&self, op: &Operation) -> Option<Instant> {
        let volume = op.bio.id.volume;
        if !self.dirty.is_unresponsive(self.volumes.device_index(volume)) {
            return None;
        }
        let timeout_ns = self.volumes.caching(volume).io_timeout_ns;
        let last = op.came.after(2 * timeout_ns);
        match op.waits_for {
            WaitFor::Folio(_) | WaitFor::Flush => Some(last),
            WaitFor::Frame
            | WaitFor::Bios(_)
            | WaitFor::Credit(_)
            | WaitFor::Cap(..)
            | WaitFor::Pause
            | WaitFor::Range(_) => Some(op.limit.since.after(timeout_ns).min(last)),
            WaitFor::Nothing
            | WaitFor::Slot
            | WaitFor::NextTurn
            | WaitFor::Writeouts
            | WaitFor::Device => None,
        }
    }

    /// Sets the timer for the end of a wait that begins, if it is limited.
    pub fn limit_wait(&self, ctx: &mut CallContext, slot: u32) {
        if let Some(at) = self.waits_until(self.waiters.op(slot)) {
            let timer = self.timer(TimerKind::Expiry);
            if ctx.timers.at(timer).is_none_or(|set| at < set) {
                ctx.timers.set(timer, at);
            }
        }
    }

    /// Fails every operation that has waited for too long, and sets the timer for the next one.
    pub fn expire_waits(&mut self, ctx: &mut CallContext) {
        let mut next: Option<Instant> = None;
        for slot in 0..self.waiters.places() {
            let Some(until) = self.waiters.get(slot).and_then(|op| self.waits_until(op)) else {
                continue;
            };
            if until > ctx.now {
                next = Some(next.map_or(until, |other| other.min(until)));
            } else {
                self.waiters.op_mut(slot).limit.overdue = true;
                self.wake_with(slot);
            }
        }
        self.set_timer(ctx, TimerKind::Expiry, next);
    }

    /// Wakes an operation with all others that wait for the same: these wait again, in their order.
    fn wake_with(&mut self, slot: u32) {
        self.needs_run = true;
        let device = self.device_of(slot);
        let op = self.waiters.op(slot);
        match op.waits_for {
            WaitFor::Folio(unit) => self.wake_folio(unit, None, WaitTimes::NONE),
            WaitFor::Frame => self.waiters.end_frame_waits(),
            WaitFor::Bios(account) => self.waiters.end_bio_waits(account as usize, u32::MAX),
            WaitFor::Range(holder) => self.waiters.wake_range(holder),
            WaitFor::Credit(_) => {
                self.waiters.end_credit_waits(device);
                self.dirty.throttle_mut().forget_refused(DeviceId(device as u16));
            }
            WaitFor::Cap(..) => self.waiters.end_cap_waits(),
            // Its connection has closed, so it is ready and waits for nothing.
            WaitFor::Pause if op.writer == NIL => {}
            WaitFor::Pause => {
                let writer = op.writer;
                self.waiters.end_pause(writer);
            }
            WaitFor::Flush => self.waiters.end_flush_waits(op.bio.id.volume),
            _ => unreachable!("the wait has no limit"),
        }
    }
}
