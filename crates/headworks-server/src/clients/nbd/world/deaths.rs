//! The death of the simulated process before a chosen store to a ring, a status byte or an in-flight region.
//!
//! A store is chosen by its number. Before it is made all memory of the machines is copied, and the call in which it happens goes on to its
//! end; then the world puts the copy back, so that this store and all later ones were never made. There is no unwinding: the lab's program
//! ends with a panic.

use std::cell::RefCell;

use headworks_vhost::StoreObserver;

thread_local! {
    static STATE: RefCell<State> = const { RefCell::new(State { left: None, places: Vec::new(), saved: Vec::new() }) };
}

struct State {
    /// Stores until the death; none: the process lives.
    left: Option<u64>,
    /// Memory of the machines that live on this thread: address and length.
    places: Vec<(*mut u8, usize)>,
    /// Their bytes at the death; empty if there was none.
    saved: Vec<Vec<u8>>,
}

/// Counts stores up to the one before which the process dies.
#[derive(Clone, Debug, Default)]
pub struct MortalProcess;

impl StoreObserver for MortalProcess {
    fn before_store() {
        STATE.with_borrow_mut(|state| match state.left {
            Some(0) => {
                state.left = None;
                // SAFETY: `watch` has the bytes mapped until `forget`; the world is one thread.
                let copy = |(base, len): &(*mut u8, usize)| unsafe {
                    std::slice::from_raw_parts(*base, *len).to_vec()
                };
                state.saved = state.places.iter().map(copy).collect();
            }
            Some(count) => state.left = Some(count - 1),
            None => {}
        });
    }
}

/// The process dies before the store that follows so many others; none: it lives.
pub fn plan(stores: Option<u64>) {
    STATE.with_borrow_mut(|state| state.left = stores);
}

/// Whether the process has died.
pub fn is_dead() -> bool {
    STATE.with_borrow(|state| !state.saved.is_empty())
}

/// Takes back all stores that were made after the death.
pub fn take_back() {
    STATE.with_borrow_mut(|state| {
        for ((base, len), bytes) in state.places.iter().zip(std::mem::take(&mut state.saved)) {
            // SAFETY: as in `before_store`; the copy has the same length.
            unsafe { base.copy_from_nonoverlapping(bytes.as_ptr(), *len) };
        }
    });
}

/// These bytes outlive the process. Between a death and `take_back` there is no call of this.
pub fn watch(base: *mut u8, len: usize) {
    STATE.with_borrow_mut(|state| state.places.push((base, len)));
}

/// The bytes at this address are about to be unmapped.
pub fn forget(base: *mut u8) {
    STATE.with_borrow_mut(|state| {
        if let Some(at) = state.places.iter().position(|place| place.0 == base) {
            state.places.remove(at);
            if !state.saved.is_empty() {
                state.saved.remove(at);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_after_the_death_are_taken_back() {
        let mut bytes = [0_u8; 4];
        let base = bytes.as_mut_ptr();
        let store = |at: usize| {
            MortalProcess::before_store();
            // SAFETY: four bytes of the test, which are used by this pointer alone meanwhile.
            unsafe { base.add(at).write_volatile(1) };
        };
        watch(base, 4);
        plan(Some(2));
        (0..4).for_each(store);
        assert!(is_dead());
        take_back();
        forget(base);
        assert_eq!((is_dead(), bytes), (false, [1, 1, 0, 0]));
    }
}
