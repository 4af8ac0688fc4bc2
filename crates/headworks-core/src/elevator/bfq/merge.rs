//! Where the requests of a connection go: to its own queue, or to one that it is merged into.
//!
//! Invariant: the streak is below [`STREAK`] between two requests.

use crate::slab::NIL;

/// Requests in a row that merge a queue, or part it again.
const STREAK: u8 = 2;

/// Where the requests of a connection go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Merge {
    /// The queue that they go to, and its key; `NIL` for the connection's own.
    pub into: u32,
    pub key: u64,
    /// Requests in a row that say that this is to change.
    pub streak: u8,
}

impl Merge {
    /// The requests go to the connection's own queue.
    pub const NONE: Self = Self { into: NIL, key: 0, streak: 0 };

    /// Returns whether the requests go to another queue.
    pub fn is_merged(&self) -> bool {
        self.into != NIL
    }

    /// Takes a request that does, or does not, say that the place is to change; returns whether it changes.
    pub fn changes(&mut self, speaks_for_it: bool) -> bool {
        self.streak = if speaks_for_it { self.streak + 1 } else { 0 };
        self.streak >= STREAK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_requests_in_a_row_change_the_place() {
        let mut merge = Merge::NONE;
        assert!(!merge.is_merged());
        let changes: Vec<bool> =
            [true, false, true, true].map(|speaks| merge.changes(speaks)).into();
        assert_eq!(changes, [false, false, false, true]);
    }
}
