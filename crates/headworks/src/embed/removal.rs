//! Hot-remove of volumes and devices, in steps between the turns of the owner.
//!
//! ```text
//!   volume: bios rejected --> flush, if cached --> asks the shard until nothing uses it --> removed
//!   device:                                        asks the shard until nothing uses it --> removed
//!           time-out or failed flush, at any step --> refused, works as before
//! ```
//!
//! The caller's clock counts: the owner's thread may wait for lent bytes meanwhile. A step takes the [`Claim`], and a caller that gives up
//! takes it, too: the second one leaves everything as it is. So what a caller is told is what happened.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::Sender;

use headworks_core::{ChangeError, ConfigError, DeviceId, Instant, VolumeId};

use super::driver::Driver;
use crate::device::Device;

/// The pause between two questions to the shard.
const RETRY_NS: u64 = 1_000_000;

const OPEN: u8 = 0;
const REMOVING: u8 = 1;
const GIVEN_UP: u8 = 2;

/// The right to decide how a removal ends, of its caller or of the owner's thread.
#[derive(Clone, Default)]
pub(super) struct Claim(Arc<AtomicU8>);

impl Claim {
    /// Gives up; false if the owner's thread is in a step or has ended the removal: an answer follows, or the claim is open again.
    pub fn give_up(&self) -> bool {
        self.change(OPEN, GIVEN_UP)
    }

    /// Begins a step; false if the caller has given up.
    fn begin(&self) -> bool {
        self.change(OPEN, REMOVING)
    }

    /// Leaves the decision open after a step that was refused.
    fn leave(&self) {
        // Release: pairs with `change`.
        self.0.store(OPEN, Ordering::Release);
    }

    fn change(&self, from: u8, to: u8) -> bool {
        // AcqRel: both sides see what the other one did before.
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// A removal in progress.
pub(super) struct Removal {
    target: Target,
    claim: Claim,
    step: Step,
    deadline: Instant,
}

/// Where the result of a removal goes; its caller may be gone.
pub(super) type Answer<T> = Sender<Result<T, ChangeError>>;

enum Target {
    Volume(VolumeId, Answer<()>),
    Device(DeviceId, Answer<Box<dyn Device>>),
}

#[derive(Clone, Copy)]
enum Step {
    Start,
    Flushing,
    /// Asks the shard again at this time.
    Removing(Instant),
}

impl Removal {
    pub fn volume(
        volume: VolumeId,
        (deadline, claim): (Instant, Claim),
        answer: Answer<()>,
    ) -> Self {
        Self { target: Target::Volume(volume, answer), claim, step: Step::Start, deadline }
    }

    pub fn device(
        device: DeviceId,
        (deadline, claim): (Instant, Claim),
        answer: Answer<Box<dyn Device>>,
    ) -> Self {
        let step = Step::Removing(Instant(0));
        Self { target: Target::Device(device, answer), claim, step, deadline }
    }

    /// Returns true if new bios of `volume` are rejected.
    pub fn rejects(&self, volume: VolumeId) -> bool {
        matches!(self.target, Target::Volume(removed, _) if removed == volume)
    }

    /// A step; true when the removal has ended.
    fn advance(&mut self, driver: &mut Driver, now: Instant) -> bool {
        if !self.claim.begin() {
            return true;
        }
        let ended = self.try_step(driver, now);
        if !ended {
            self.claim.leave();
        }
        ended
    }

    fn try_step(&mut self, driver: &mut Driver, now: Instant) -> bool {
        let expired = now >= self.deadline;
        match &self.target {
            Target::Volume(volume, answer) => {
                settle(remove_volume(*volume, &mut self.step, driver, now), expired, answer)
            }
            Target::Device(device, answer) => {
                settle(driver.remove_device(now, *device), expired, answer)
            }
        }
    }
}

/// Answers with a result that is final; returns true if it is. `Busy` is only after the deadline.
fn settle<T>(result: Result<T, ChangeError>, expired: bool, answer: &Answer<T>) -> bool {
    let is_final = expired || !matches!(result, Err(ChangeError::Busy(_)));
    if is_final {
        let _ = answer.send(result);
    }
    is_final
}

fn remove_volume(
    volume: VolumeId,
    step: &mut Step,
    driver: &mut Driver,
    now: Instant,
) -> Result<(), ChangeError> {
    if let Step::Start = step {
        *step = match driver.is_cached(volume) {
            None => return Err(ConfigError::new("volume", "there is no such volume").into()),
            Some(true) => {
                // The status of an earlier removal's flush, which came after its time-out.
                while driver.take_flushed(volume).is_some() {}
                driver.send_flush(volume);
                Step::Flushing
            }
            Some(false) => Step::Removing(now),
        };
    }
    if let Step::Flushing = step {
        match driver.take_flushed(volume) {
            None => return Err(ChangeError::Busy("the flush of the volume has not completed")),
            Some(Err(error)) => {
                let message = format!("the flush of the volume failed: {error}");
                return Err(ConfigError::new("volume", message).into());
            }
            Some(Ok(())) => *step = Step::Removing(now),
        }
    }
    match *step {
        Step::Removing(at) if at > now => {
            Err(ChangeError::Busy("I/Os of the volume are in flight"))
        }
        _ => {
            *step = Step::Removing(Instant(now.0 + RETRY_NS));
            driver.remove_volume(now, volume)
        }
    }
}

impl Driver {
    /// A step of every removal.
    pub(super) fn advance_removals(&mut self, now: Instant) {
        let mut removals = std::mem::take(&mut self.removals);
        removals.retain_mut(|removal| !removal.advance(self, now));
        self.removals = removals;
    }
}
