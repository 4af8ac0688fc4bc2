//! A group moves to another parent, with everything below it.
//!
//! The nodes below it stay as they are: times of a group's children are those of the group. In its new place the group starts
//! now, as a newcomer; what it was served more or less than its share stays behind. So a move gains or loses at most what two
//! siblings may be apart, see the bound in `shares`.
//!
//! Invariant: no path that leads to a leaf in service changes: a group in service is moved when its slot has ended.

use super::{ShareId, ShareState, ShareTree};

impl ShareTree {
    /// Moves a group, which is not in service, to another parent.
    pub fn move_group(&mut self, id: ShareId, parent: ShareId) {
        let node = self.nodes[id as usize];
        assert!(node.group != super::NIL && id != Self::ROOT, "a group other than the root moves");
        assert!(node.state != ShareState::InService, "a group in service moves after its slot");
        debug_assert!(!self.is_below(parent, id), "a group does not move below itself");
        if node.parent == parent {
            return;
        }
        if node.is_active() {
            self.leave(id, None);
        }
        self.forget(id);
        self.nodes[id as usize].parent = parent;
        if node.is_active() {
            self.arrivals += 1;
            self.activate_path(id, node.cost, None);
        }
    }

    /// Returns whether a node is `group` or below it.
    pub(super) fn is_below(&self, id: ShareId, group: ShareId) -> bool {
        let mut id = id;
        while id != group && id != Self::ROOT {
            id = self.nodes[id as usize].parent;
        }
        id == group
    }
}
