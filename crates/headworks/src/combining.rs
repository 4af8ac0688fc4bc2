//! The right to drive a state machine that many threads feed (flat combining): the thread that has the CPU drives it.
//!
//! A feeder publishes its batch in a ring of its own and then either takes the right, carries in every ring's batches and leaves, or
//! finds the machine driven and goes on: the driver carries its batch in before it leaves. The owner's thread takes the same
//! right, before any feeder. All of it is one word, so there is one order of all steps:
//!
//! ```text
//!   DRIVEN   a thread has the right
//!   PENDING  a batch may be in a ring that the driver has not read: the right is not left free with it
//!   OWNER    the owner's thread has the right, or is the next to get it: feeders leave their batches
//!   CLOSED   no thread gets the right any more: the owner has ended, or a driver panicked
//!   KEPT     the owner's thread does not leave the right: feeders need not spin for it
//!   n        feeders that spin and take a right that is left with PENDING, at most 2047
//!   taken    how often the right was taken, modulo what fits
//!
//!   feeder:  publish --> free? --yes--> DRIVEN --> turns --> leave --> PENDING came? --> turns again
//!                          `--no---> PENDING, go on           `---> bound: PENDING stays, a spinning feeder or the owner drives on
//! ```
//!
//! Invariants:
//! - The right is left free without PENDING only by a driver that has read every ring after it cleared PENDING. So no batch is left
//!   behind: its feeder sets PENDING after publishing it, or finds PENDING set and not cleared yet.
//! - The right is left free with PENDING only while a feeder spins, or the owner is woken. The last feeder that stops spinning takes such
//!   a right instead.
//! - A feeder that finds PENDING set does not write the word. That is safe by two fences: its own, between publishing and the load of
//!   the word, and the driver's, between clearing PENDING and reading the rings.

use crate::sync::{AtomicUsize, CachePadded, Ordering, UnsafeCell, fence};

const DRIVEN: usize = 1;
const PENDING: usize = 2;
const OWNER: usize = 4;
const CLOSED: usize = 8;
const KEPT: usize = 16;
/// One feeder that spins; eleven bits from here on are their number.
const SPINNING: usize = 1 << 5;
const SPINNING_BITS: usize = 0x7ff << 5;
/// The bits from here on count how often the right was taken.
const TAKEN: usize = 1 << 16;

/// A value that one thread at a time drives.
#[derive(Debug)]
pub struct DrivingRight<T> {
    word: CachePadded<AtomicUsize>,
    /// `None` after the end.
    value: UnsafeCell<Option<T>>,
}

// SAFETY: the value is entered by the thread that set DRIVEN, and after CLOSED without DRIVEN by the owner's thread alone. The Acquire
// of the one and the Release of the one before hand it over, so it only moves between threads, which is what `T: Send` allows.
unsafe impl<T: Send> Sync for DrivingRight<T> {}

/// The right, held. Dropped without being left, as by a panic, it closes the right for all.
#[derive(Debug)]
pub struct Driving<'a, T> {
    right: &'a DrivingRight<T>,
    left: bool,
}

/// What became of a published batch.
#[derive(Debug)]
pub enum Take<'a, T> {
    /// The caller drives. True: other rings may have batches, too.
    Taken(Driving<'a, T>, bool),
    /// The driver carries the batch in.
    Left,
    /// The owner's thread does, which may have to be woken.
    LeftToOwner,
}

/// What a driver has to do that wanted to leave.
#[derive(Debug)]
pub enum Leave<'a, T> {
    /// Batches came meanwhile: to read every ring again.
    Again(Driving<'a, T>),
    /// Nothing.
    Left,
    /// To wake the owner's thread, which drives on.
    WakeOwner,
}

impl<T> DrivingRight<T> {
    /// A value that no thread drives yet.
    pub fn new(value: T) -> Self {
        Self { word: CachePadded(AtomicUsize::new(0)), value: UnsafeCell::new(Some(value)) }
    }

    /// Takes the right if it is free. With it comes whether rings may have batches.
    #[inline]
    pub fn take(&self) -> Option<(Driving<'_, T>, bool)> {
        let word = self.load();
        if word & (DRIVEN | OWNER | CLOSED) != 0 {
            return None;
        }
        let taken = self.exchange(word, taken(word)).ok();
        taken.map(|()| (self.entered(word), word & PENDING != 0))
    }

    /// Takes the right, or leaves the batch that the caller has published in its ring to the driver.
    #[inline]
    pub fn take_or_leave(&self) -> Take<'_, T> {
        let mut word = self.load();
        loop {
            if word & (DRIVEN | OWNER | CLOSED) == 0 {
                match self.exchange(word, taken(word)) {
                    Ok(()) => return Take::Taken(self.entered(word), word & PENDING != 0),
                    Err(seen) => word = seen,
                }
                continue;
            }
            if word & PENDING != 0 {
                // SeqCst: pairs with the fence of a driver that clears PENDING: the batch is out before PENDING is looked at.
                fence(Ordering::SeqCst);
                word = self.load();
            }
            let marked = word & (DRIVEN | OWNER) != 0 && word & PENDING != 0;
            if marked || word & CLOSED != 0 {
                break;
            }
            if word & (DRIVEN | OWNER) != 0 {
                match self.exchange(word, word | PENDING) {
                    Ok(()) => break,
                    Err(seen) => word = seen,
                }
            }
        }
        if word & OWNER != 0 { Take::LeftToOwner } else { Take::Left }
    }

    /// Leaves a batch that the caller has published to a feeder that spins, if there is one and the right is free.
    pub fn leave_to_spinning(&self) -> bool {
        let word = self.load();
        let free = word & (DRIVEN | OWNER | CLOSED) == 0;
        free && word & SPINNING_BITS != 0 && self.exchange(word, word | PENDING).is_ok()
    }

    /// A number, if the right is left with batches in rings: another one after every time that it was taken.
    #[inline]
    pub fn left_pending(&self) -> Option<usize> {
        let word = self.load();
        is_handed_over(word).then_some(word / TAKEN)
    }

    /// Takes a right that was left with batches in rings.
    #[inline]
    pub fn take_pending(&self) -> Option<Driving<'_, T>> {
        let word = self.load();
        if !is_handed_over(word) {
            return None;
        }
        self.exchange(word, taken(word)).ok().map(|()| self.entered(word))
    }

    /// Announces a feeder that spins: it calls [`DrivingRight::take_pending`] again and again, until [`DrivingRight::stop_spinning`].
    /// Returns false, without announcing it, if the owner's thread keeps the right.
    #[inline]
    pub fn spin(&self) -> bool {
        if self.load() & (KEPT | CLOSED) != 0 {
            return false;
        }
        // Relaxed: the word's order is enough.
        self.word.0.fetch_add(SPINNING, Ordering::Relaxed);
        true
    }

    /// Takes the announcement back, and with it the right if no other feeder would take it.
    #[inline]
    pub fn stop_spinning(&self) -> Option<Driving<'_, T>> {
        let mut word = self.load();
        loop {
            let takes = is_handed_over(word) && word & SPINNING_BITS == SPINNING;
            let rest = word - SPINNING;
            let next = if takes { taken(rest) } else { rest };
            match self.exchange(word, next) {
                Ok(()) => return takes.then(|| self.entered(word)),
                Err(seen) => word = seen,
            }
        }
    }

    /// For the owner's thread: takes the right before any feeder. `None` if a feeder has it, which wakes the owner when it leaves; or if
    /// the right is closed.
    pub fn take_as_owner(&self) -> Option<Driving<'_, T>> {
        let mut word = self.load();
        loop {
            if word & CLOSED != 0 || word & (DRIVEN | OWNER) == DRIVEN | OWNER {
                return None;
            }
            let takes = word & DRIVEN == 0;
            let next = if takes { taken(word | OWNER) } else { word | OWNER };
            match self.exchange(word, next) {
                Ok(()) => return takes.then(|| self.entered(PENDING)),
                Err(seen) => word = seen,
            }
        }
    }

    /// For the owner's thread: whether it will keep the right.
    pub fn keep(&self, keeps: bool) {
        // Relaxed: a hint. A feeder that missed it spins in vain, or is answered by the owner.
        match keeps {
            true => self.word.0.fetch_or(KEPT, Ordering::Relaxed),
            false => self.word.0.fetch_and(!KEPT, Ordering::Relaxed),
        };
    }

    /// Returns true if no thread gets the right any more.
    pub fn is_closed(&self) -> bool {
        self.load() & CLOSED != 0
    }

    /// For the owner's thread: the value after a driver dropped the right without leaving it.
    pub fn take_closed(&self) -> Option<T> {
        // Acquire: pairs with the Release in the driver's drop.
        let word = self.word.0.load(Ordering::Acquire);
        if word & (CLOSED | DRIVEN) != CLOSED {
            return None;
        }
        // SAFETY: no thread has the right or gets it any more, and only the owner's thread comes here.
        self.value.with_mut(|value| unsafe { (*value).take() })
    }

    #[inline]
    fn load(&self) -> usize {
        // Relaxed: what a step is decided by; the exchange that follows orders it.
        self.word.0.load(Ordering::Relaxed)
    }

    #[inline]
    fn exchange(&self, word: usize, next: usize) -> Result<(), usize> {
        // AcqRel: Acquire pairs with the Release of the driver before, and of feeders that set PENDING after publishing; Release with the
        // Acquire of the next driver. Relaxed: a failure decides anew.
        let exchange =
            self.word.0.compare_exchange(word, next, Ordering::AcqRel, Ordering::Relaxed);
        exchange.map(drop)
    }

    /// The right, after the exchange of `word`.
    #[inline]
    fn entered(&self, word: usize) -> Driving<'_, T> {
        if word & PENDING != 0 {
            // SeqCst: pairs with the fence of a ring's push: PENDING is cleared before the rings are read.
            fence(Ordering::SeqCst);
        }
        Driving { right: self, left: false }
    }
}

/// The word with the right taken.
#[inline]
fn taken(word: usize) -> usize {
    ((word | DRIVEN) & !PENDING).wrapping_add(TAKEN)
}

/// Returns true if the right was left to the feeders that spin.
#[inline]
fn is_handed_over(word: usize) -> bool {
    word & (DRIVEN | PENDING | OWNER | CLOSED) == PENDING
}

impl<'a, T> Driving<'a, T> {
    /// Calls `f` with the value.
    #[inline]
    pub fn with<R>(&mut self, f: impl FnOnce(&mut T) -> R) -> R {
        self.right.value.with_mut(|value| {
            // SAFETY: this thread has the right; `self` is borrowed, so it does not enter twice.
            let value = unsafe { &mut *value };
            f(value.as_mut().expect("the value is taken out after the end only"))
        })
    }

    /// Returns true if the owner's thread waits for the right.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.right.load() & OWNER != 0
    }

    /// Returns true if a feeder spins.
    #[inline]
    pub fn feeder_spins(&self) -> bool {
        self.right.load() & SPINNING_BITS != 0
    }

    /// Leaves the right, as a feeder. `more`: rings may have batches that the caller did not read. With batches in rings it is left only
    /// if another feeder spins, or else to the owner's thread if `more`.
    #[inline]
    pub fn leave(self, more: bool) -> Leave<'a, T> {
        let mut word = self.right.load();
        loop {
            let (pending, owner) = (word & PENDING != 0, word & OWNER != 0);
            let again = pending && !more && !owner && word & SPINNING_BITS == 0;
            let next = match (again, more) {
                (true, _) => word & !PENDING,
                (false, true) => (word & !DRIVEN) | PENDING,
                (false, false) => word & !DRIVEN,
            };
            match self.right.exchange(word, next) {
                Ok(()) if again => return Leave::Again(self.cleared()),
                Ok(()) => {
                    self.forget();
                    let alone = more && word & SPINNING_BITS == 0;
                    return if owner || alone { Leave::WakeOwner } else { Leave::Left };
                }
                Err(seen) => word = seen,
            }
        }
    }

    /// Leaves the right to the feeders, as the owner's thread. `more` as in [`Driving::leave`]. It is not left with batches in rings
    /// unless a feeder spins.
    pub fn leave_as_owner(self, more: bool) -> Leave<'a, T> {
        let mut word = self.right.load();
        loop {
            let pending = more || word & PENDING != 0;
            let again = pending && word & SPINNING_BITS == 0;
            let next = match (again, pending) {
                (true, _) => word & !PENDING,
                (false, true) => (word & !(DRIVEN | OWNER)) | PENDING,
                (false, false) => word & !(DRIVEN | OWNER),
            };
            match self.right.exchange(word, next) {
                Ok(()) if again => return Leave::Again(self.cleared()),
                Ok(()) => {
                    self.forget();
                    return Leave::Left;
                }
                Err(seen) => word = seen,
            }
        }
    }

    /// Ends the driving for all and takes the value out, as the owner's thread.
    pub fn close(mut self) -> T {
        // Relaxed: no other thread enters from here on.
        self.right.word.0.fetch_or(CLOSED, Ordering::Relaxed);
        self.left = true;
        // SAFETY: this thread has the right, which is never left.
        let value = self.right.value.with_mut(|value| unsafe { (*value).take() });
        value.expect("the value is taken out once")
    }

    /// Still the right, after PENDING was cleared.
    fn cleared(self) -> Self {
        // SeqCst: as in `entered`.
        fence(Ordering::SeqCst);
        self
    }

    fn forget(mut self) {
        self.left = true;
    }
}

impl<T> Drop for Driving<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if !self.left {
            // Release: pairs with the Acquire in `take_closed`. CLOSED first: no feeder gets the right between the two.
            self.right.word.0.fetch_or(CLOSED, Ordering::Relaxed);
            self.right.word.0.fetch_and(!DRIVEN, Ordering::Release);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn left<T>(leave: &Leave<'_, T>) -> bool {
        matches!(leave, Leave::Left)
    }

    #[test]
    fn batch_of_other_feeder_keeps_the_driver() {
        let right = DrivingRight::new(1);
        let Take::Taken(mut driving, others) = right.take_or_leave() else { panic!("it is free") };
        assert!(!others, "every ring but the own was read by the driver before");
        assert!((0..2).all(|_| matches!(right.take_or_leave(), Take::Left)));
        driving.with(|value| *value += 1);
        let Leave::Again(mut driving) = driving.leave(false) else { panic!("a batch waits") };
        assert_eq!(driving.with(|value| *value), 2);
        assert!(left(&driving.leave(false)));
        assert!(right.take_pending().is_none(), "nothing was left");
    }

    #[test]
    fn driver_at_its_bound_hands_over_to_spinning_feeder_or_owner() {
        let right = DrivingRight::new(());
        assert!(right.spin());
        let (driving, _) = right.take().unwrap();
        assert!(driving.feeder_spins());
        assert!(left(&driving.leave(true)));
        let driving = right.take_pending().unwrap();
        assert!(right.take_pending().is_none());
        assert!(right.stop_spinning().is_none(), "it is driven");
        assert!(matches!(driving.leave(true), Leave::WakeOwner));
        assert!(right.take_as_owner().is_some_and(|driving| left(&driving.leave_as_owner(false))));
    }

    #[test]
    fn last_feeder_that_stops_spinning_takes_the_right() {
        let right = DrivingRight::new(());
        assert!(right.spin() && right.spin());
        let (driving, _) = right.take().unwrap();
        assert!(left(&driving.leave(true)));
        assert!(right.stop_spinning().is_none(), "another one spins");
        let driving = right.stop_spinning().unwrap();
        assert!(left(&driving.leave(false)));
        let (driving, others) = right.take().unwrap();
        assert!(!others && left(&driving.leave(false)));
    }

    #[test]
    fn owner_gets_the_right_before_feeders() {
        let right = DrivingRight::new(());
        assert!(right.spin());
        let (driving, _) = right.take().unwrap();
        assert!(!driving.is_wanted() && right.take_as_owner().is_none() && driving.is_wanted());
        assert!(right.take().is_none());
        assert!(matches!(driving.leave(false), Leave::WakeOwner));
        right.keep(true);
        assert!(!right.spin(), "the owner keeps it");
        right.keep(false);
        assert!(right.take().is_none() && right.take_pending().is_none());
        let driving = right.take_as_owner().unwrap();
        assert!(left(&driving.leave_as_owner(true)), "a feeder spins");
        let driving = right.stop_spinning().unwrap();
        assert!(left(&driving.leave(false)));
        let driving = right.take_as_owner().unwrap();
        assert!((0..2).all(|_| matches!(right.take_or_leave(), Take::LeftToOwner)));
        let Leave::Again(driving) = driving.leave_as_owner(false) else { panic!("a batch waits") };
        assert!(left(&driving.leave_as_owner(false)));
    }

    #[test]
    fn panic_of_the_driver_closes_the_right() {
        let right = DrivingRight::new(7);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            right.take().unwrap().0.with(|_| panic!("inside"));
        }));
        assert!(panicked.is_err() && right.is_closed());
        assert!(right.take().is_none() && right.take_as_owner().is_none());
        assert_eq!((right.take_closed(), right.take_closed()), (Some(7), None));

        let right = DrivingRight::new(8);
        assert_eq!((right.take_as_owner().unwrap().close(), right.is_closed()), (8, true));
        assert!(right.take().is_none() && right.take_closed().is_none());
    }

    #[test]
    fn threads_enter_one_at_a_time() {
        let (right, start) = (DrivingRight::new((0_u64, 0)), std::sync::Barrier::new(3));
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        let entered: u64 = std::thread::scope(|scope| {
            let work = || {
                start.wait();
                let mut entered = 0;
                for _ in 0..rounds {
                    let Take::Taken(mut driving, _) = right.take_or_leave() else { continue };
                    loop {
                        driving.with(|(first, second)| {
                            *first += 1;
                            assert_eq!(*first, *second + 1);
                            *second += 1;
                        });
                        entered += 1;
                        match driving.leave(false) {
                            Leave::Again(again) => driving = again,
                            _ => break,
                        }
                    }
                }
                entered
            };
            let threads = [(); 3].map(|()| scope.spawn(work));
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        let mut driving = right.take_as_owner().unwrap();
        assert_eq!(driving.with(|value| *value), (entered, entered));
        driving.close();
    }
}
