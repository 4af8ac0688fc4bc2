//! Per-connection state of the reactor, and the list of connections that are tried every turn.
//!
//! Invariants: a slot is in the hot list exactly if its state says so, and at most once; `stashed` is the sum over the states.

use headworks_core::ExportId;

/// State of a connection, by slot.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectionState {
    hot: bool,
    /// The last send filled the socket.
    pub blocked: bool,
    /// The export of the client, until the connection is freed.
    pub export: Option<ExportId>,
    stashed: usize,
}

impl ConnectionState {
    /// Whether the connection is tried every turn.
    pub fn is_hot(&self) -> bool {
        self.hot
    }
}

/// States of all slots, and the hot list.
pub struct HotList {
    states: Vec<ConnectionState>,
    hot: Vec<u32>,
    /// Sum of the states' stashes.
    stashed: usize,
}

impl HotList {
    /// A list for slots below `slots`.
    pub fn new(slots: usize) -> Self {
        Self {
            states: vec![ConnectionState::default(); slots],
            hot: Vec::with_capacity(slots),
            stashed: 0,
        }
    }

    /// State of a slot.
    pub fn state(&self, slot: u32) -> &ConnectionState {
        &self.states[slot as usize]
    }

    /// State of a slot, to be changed.
    pub fn state_mut(&mut self, slot: u32) -> &mut ConnectionState {
        &mut self.states[slot as usize]
    }

    /// States of all slots.
    pub fn states(&self) -> impl Iterator<Item = &ConnectionState> {
        self.states.iter()
    }

    /// Records how many received bytes of a connection wait to be parsed.
    pub fn note_stash(&mut self, slot: u32, bytes: usize) {
        let before = std::mem::replace(&mut self.states[slot as usize].stashed, bytes);
        self.stashed = self.stashed - before + bytes;
    }

    /// Received bytes of all connections that wait to be parsed.
    pub fn stashed(&self) -> usize {
        self.stashed
    }

    /// Resets the state for a new connection. The slot may still be hot from the connection before.
    pub fn reset(&mut self, slot: u32) {
        self.note_stash(slot, 0);
        let state = &mut self.states[slot as usize];
        *state = ConnectionState { hot: state.hot, ..ConnectionState::default() };
    }

    /// Adds a connection to the hot list, unless it is there already: the reactor tries it every turn.
    pub fn heat(&mut self, slot: u32) {
        if !std::mem::replace(&mut self.states[slot as usize].hot, true) {
            self.hot.push(slot);
        }
    }

    /// The slot at `index` of the hot list.
    pub fn get(&self, index: usize) -> Option<u32> {
        self.hot.get(index).copied()
    }

    /// Removes the slot at `index`; the last one takes its place.
    pub fn cool(&mut self, index: usize) {
        let slot = self.hot.swap_remove(index);
        let was_hot = std::mem::replace(&mut self.states[slot as usize].hot, false);
        debug_assert!(was_hot, "a slot is in the list once");
    }

    /// Moves the first `count` slots to the end of the list.
    pub fn rotate(&mut self, count: usize) {
        let most = self.hot.len();
        self.hot.rotate_left(count.min(most));
    }

    /// Removes a slot from the list; none if it is empty.
    pub fn pop(&mut self) -> Option<u32> {
        let slot = self.hot.pop()?;
        self.states[slot as usize].hot = false;
        Some(slot)
    }

    /// Exports of the hot connections.
    pub fn hot_exports(&self) -> impl Iterator<Item = ExportId> {
        self.hot.iter().filter_map(|&slot| self.states[slot as usize].export)
    }

    /// Number of hot connections.
    pub fn len(&self) -> usize {
        self.hot.len()
    }

    /// Whether no connection is hot.
    pub fn is_empty(&self) -> bool {
        self.hot.is_empty()
    }
}
