//! The notification handshake of a split ring, for both directions and both sides.
//!
//! ```text
//!   publisher                              waiter
//!   index = new          (Release)         wish = what it has seen     arm
//!   fence SeqCst                           fence SeqCst
//!   wish wanted?  --> notify               index != seen?  --> no sleep
//! ```
//!
//! The driver publishes `avail.idx` and the device waits with `avail_event`; the device publishes `used.idx` and the driver waits
//! with `used_event`. Invariant (V3): of the publisher's read of the wish and the waiter's second read of the index at least one
//! sees the other's store, because a fence lies between on both sides. So no publication is slept through.
//!
//! Without EVENT_IDX the wish is bit 0 of a flags word: set means "do not notify".

use crate::sync::{AtomicU16, Ordering, fence};

/// Bit 0 of `avail.flags` and `used.flags`: the other side need not notify.
pub const NO_NOTIFY: u16 = 1;

/// How a side says that it wants to be notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// EVENT_IDX: the word holds the index after whose publication a notification is wanted.
    EventIndex,
    /// The word's bit 0 suppresses notifications.
    Flags,
}

/// Returns true if an index that moves from `old` to `new` passes `event`.
#[must_use]
pub fn passes(event: u16, old: u16, new: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// Publishes `new` in `index`, which held `old`; returns true if the other side must be notified.
#[must_use]
pub fn publish(index: &AtomicU16, wish_word: &AtomicU16, wish: Wish, old: u16, new: u16) -> bool {
    // Release: pairs with the Acquire of the side that reads the index; entries before it are seen with it.
    index.store(new, Ordering::Release);
    is_wanted(wish_word, wish, old, new)
}

/// Whether the other side must be notified of an index that was published before.
#[must_use]
pub fn is_wanted(wish_word: &AtomicU16, wish: Wish, old: u16, new: u16) -> bool {
    // SeqCst: pairs with the fence in `arm`.
    fence(Ordering::SeqCst);
    // Relaxed: the fence orders it.
    let word = wish_word.load(Ordering::Relaxed);
    match wish {
        Wish::EventIndex => passes(word, old, new),
        Wish::Flags => word & NO_NOTIFY == 0,
    }
}

/// Asks to be notified of the first entry after `seen`, and looks once more. True: `index` has moved already; do not sleep.
#[must_use]
pub fn arm(index: &AtomicU16, wish_word: &AtomicU16, wish: Wish, seen: u16) -> bool {
    let word = match wish {
        Wish::EventIndex => seen,
        Wish::Flags => 0,
    };
    wish_word.store(word, Ordering::Relaxed);
    // SeqCst: pairs with the fence in `is_wanted`.
    fence(Ordering::SeqCst);
    // Acquire: pairs with the Release in `publish`.
    index.load(Ordering::Acquire) != seen
}

/// Says that no notification is wanted while this side polls. With EVENT_IDX the word that stays behind says so already.
pub fn disarm(wish_word: &AtomicU16, wish: Wish) {
    if wish == Wish::Flags {
        wish_word.store(NO_NOTIFY, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn event_between_old_and_new_is_passed() {
        assert!(passes(5, 5, 6), "the entry at the event itself");
        assert!(passes(5, 0, 6));
        assert!(!passes(5, 0, 5), "not yet");
        assert!(!passes(5, 6, 7), "long ago");
        assert!(passes(0xffff, 0xfffe, 1), "over the wrap");
        assert!(!passes(0, 0, 0), "nothing was published");
    }

    #[test]
    fn wish_is_kept_until_the_index_moves() {
        let (index, event) = (AtomicU16::new(7), AtomicU16::new(0));
        assert!(!arm(&index, &event, Wish::EventIndex, 7));
        assert!(publish(&index, &event, Wish::EventIndex, 7, 8));
        assert!(!publish(&index, &event, Wish::EventIndex, 8, 9), "once");
        assert!(arm(&index, &event, Wish::EventIndex, 7), "two entries are there");
    }

    #[test]
    fn flags_suppress_until_armed() {
        let (index, flags) = (AtomicU16::new(0), AtomicU16::new(0));
        disarm(&flags, Wish::Flags);
        assert!(!publish(&index, &flags, Wish::Flags, 0, 1));
        assert!(arm(&index, &flags, Wish::Flags, 0));
        assert!(publish(&index, &flags, Wish::Flags, 1, 2));
    }
}
