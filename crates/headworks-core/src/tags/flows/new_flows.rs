//! New flows: who begins to wait goes first, in advance of its turn.
//!
//! ```text
//!            had nothing waiting, and may advance
//!   resting ------------------------------------> light | bulky --granted--> to the back of its list, if it may advance again
//!      ^                                            |
//!      |                                            | an advance used up
//!      `---- nothing left ------ in its turn <------'
//! ```
//!
//! Two lists, so that small requests do not wait while a large one gathers its tags.

use super::{BULKY, FlowHead, Flows, LIGHT, QUANTUM};
use crate::slab::NIL;

impl Flows {
    /// Whether a flow may spend `cost` in advance of its turn.
    pub(super) fn may_advance(&self, flow: u32, cost: i64) -> bool {
        let flow = &self.flows[flow];
        let export = &self.exports[flow.export].share;
        let stride = QUANTUM.max(self.largest);
        let spent = flow.share.deficit.min(0) - cost;
        spent >= -stride && export.deficit > -export.quantum.max(self.largest)
    }

    /// A flow joins the new ones, if it may.
    pub(super) fn welcome(&mut self, flow: u32) {
        let Some(first) = self.front(flow) else {
            return;
        };
        if self.may_advance(flow, first.cost()) {
            self.join_early(flow, if first.is_light() { LIGHT } else { BULKY });
        }
    }

    /// The first new flow of a list; those whose export has nothing left to advance are new no longer.
    pub(super) fn first_early(&mut self, list: usize) -> Option<FlowHead> {
        while self.early[list].head != NIL {
            let flow = self.early[list].head;
            let first = self.front(flow).expect("a new flow waits");
            if self.may_advance(flow, first.cost()) {
                return Some(FlowHead { flow, light: first.is_light() });
            }
            self.leave_early(flow);
        }
        None
    }

    fn join_early(&mut self, flow: u32, list: usize) {
        let tail = self.early[list].tail;
        let node = &mut self.flows[flow];
        (node.early, node.early_prev, node.early_next) = (Some(list), tail, NIL);
        match tail {
            NIL => self.early[list].head = flow,
            _ => self.flows[tail].early_next = flow,
        }
        self.early[list].tail = flow;
    }

    /// True if it was new.
    pub(super) fn leave_early(&mut self, flow: u32) -> bool {
        let node = &mut self.flows[flow];
        let Some(list) = node.early.take() else {
            return false;
        };
        let (prev, next) = (node.early_prev, node.early_next);
        match prev {
            NIL => self.early[list].head = next,
            _ => self.flows[prev].early_next = next,
        }
        match next {
            NIL => self.early[list].tail = prev,
            _ => self.flows[next].early_prev = prev,
        }
        true
    }
}
