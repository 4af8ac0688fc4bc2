//! New flows: connections that began to wait a short time ago and go in advance of their turn.
//!
//! ```text
//!         begins to wait, and may advance
//!   idle ---------------------------------> Light | Bulky --granted--> back of its list, if it may advance again
//!     ^                                       |
//!     |                                       | advance used up
//!     `--- no waiter left --- in its turn <---'
//! ```
//!
//! Two lists, so that small requests do not wait while a large one gathers its tags.
//!
//! Invariant: a flow is in the list that its `new_list` names, and then it has a waiter.

use super::flow::{Flow, NewLink, NewList};
use super::pool::Pool;
use crate::list::List;

/// The lists of new flows, each first in first out.
#[derive(Debug, Default)]
pub(super) struct NewFlows {
    lists: [List<NewLink>; 2],
}

impl NewFlows {
    /// Returns the first flow of a list.
    pub fn front(&self, list: NewList) -> Option<u32> {
        self.lists[list as usize].front()
    }

    /// Returns true when neither list has a flow.
    pub fn is_empty(&self) -> bool {
        self.lists.iter().all(List::is_empty)
    }

    /// Adds a flow at the back of a list.
    pub fn push(&mut self, flows: &mut Pool<Flow>, flow: u32, list: NewList) {
        assert!(flows[flow].new_list.is_none(), "a flow is in one list of new flows");
        debug_assert!(!flows[flow].waiters.is_empty(), "a new flow waits");
        flows[flow].new_list = Some(list);
        self.lists[list as usize].push_back(flows, flow);
    }

    /// Removes a flow; returns true if it was new.
    pub fn remove(&mut self, flows: &mut Pool<Flow>, flow: u32) -> bool {
        let Some(list) = flows[flow].new_list.take() else {
            return false;
        };
        self.lists[list as usize].remove(flows, flow);
        true
    }
}
