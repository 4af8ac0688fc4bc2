//! How feeders call the owner's thread, which sleeps without the right to drive: for file operations that they left, an earlier timer,
//! or a right that it waits for.
//!
//! ```text
//!   feeder                                owner
//!   leave the right                       asleep = true
//!   called = true                         ---- fence (SeqCst) ----
//!   ---- fence (SeqCst) ----              called? -> asleep = false, take the right
//!   asleep? -> take it and wake           sleep
//! ```
//!
//! Of two fences one comes first, as in `ring.rs`, so no call is slept over; and an owner that is awake costs a feeder no system call.
//!
//! Invariant: the owner answers a call before it takes the right, so it finds with the right what the caller left there.

use crate::ring::Sleeper;
use crate::sync::{Arc, AtomicBool, CachePadded, Ordering};

/// Calls of the owner's thread. They coalesce until it answers.
#[derive(Debug)]
pub struct OwnerCall {
    called: CachePadded<AtomicBool>,
    sleeper: Arc<Sleeper>,
}

impl OwnerCall {
    /// Calls to an owner that sleeps at `sleeper`.
    #[must_use]
    pub fn new(sleeper: Arc<Sleeper>) -> Self {
        Self { called: CachePadded(AtomicBool::new(false)), sleeper }
    }

    /// Calls the owner, after the right was left. True: it sleeps, and this caller must wake it, once.
    #[must_use = "a sleeping owner is not woken by the call itself"]
    pub fn call(&self) -> bool {
        // Release: pairs with the Acquire in `answer`; the right was left before. The first caller looks whether the owner sleeps.
        !self.called.0.swap(true, Ordering::Release) && self.sleeper.must_wake()
    }

    /// For the owner: returns true if it was called. The caller has not answered yet.
    pub fn is_called(&self) -> bool {
        // Relaxed: `answer` follows.
        self.called.0.load(Ordering::Relaxed)
    }

    /// For the owner, before it takes the right.
    pub fn answer(&self) {
        if self.is_called() {
            // Acquire: pairs with the Release in `call`; the right is taken after the caller has left it. A swap, not a store: it reads the
            // latest call.
            self.called.0.swap(false, Ordering::Acquire);
        }
    }

    /// For the owner: announces sleep. Returns false if it was called, and takes the announcement back.
    pub fn may_sleep(&self) -> bool {
        self.sleeper.may_sleep(|| !self.is_called())
    }

    /// For the owner: takes the announcement back, when sleep ended.
    pub fn woken(&self) {
        self.sleeper.woken();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn call_wakes_only_an_owner_that_sleeps_and_only_once() {
        let call = OwnerCall::new(Arc::new(Sleeper::default()));
        assert!(!call.call() && call.is_called(), "it is awake");
        assert!(!call.may_sleep(), "it was called");
        call.answer();
        assert!(call.may_sleep());
        assert!(call.call() && !call.call());
        call.woken();
        call.answer();
        assert!(!call.is_called());
    }
}
