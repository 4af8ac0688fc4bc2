//! File operations and watches that feeders left to the owner's thread, which has the engine.
//!
//! ```text
//!   feeder's turn: device --push--> the list --call--> owner's thread: --push--> engine
//! ```
//!
//! The list is a [`DiskQueue`]. Of operations it takes a fixed number: full, it refuses, as a full engine does. Changes of watches it keeps all,
//! in their order, which a device makes rarely: a watch that is forgotten before its descriptor is closed is forgotten by the engine
//! before it may watch another of that number. The list is part of what is driven, so the right to
//! drive guards it. The owner is called once for all that comes until it empties the list.

use crate::engine::ops::SPANS_MAX;
use std::os::fd::RawFd;

use headworks_core::DeviceId;

use crate::engine::{DiskOp, DiskQueue, Interest, Watch};
use crate::memory::Span;

/// Spans for each operation, on average. 16: a read ahead of 64 KiB into the smallest folios.
const SPANS_EACH: usize = 16;

/// A call of [`Watch`] for a place of a device, without what is to be watched where the watch ends.
type WatchChange = (DeviceId, u16, Option<(RawFd, Interest)>);

/// Operations that no engine has yet, in order.
#[derive(Default)]
pub(super) struct LeftOperations {
    /// With the number of spans of each.
    operations: Vec<(DiskOp, u32)>,
    spans: Vec<Span>,
    watches: Vec<WatchChange>,
    /// The owner's thread was called since it last took them.
    called: bool,
}

impl LeftOperations {
    /// Room for `most` operations.
    pub fn new(most: usize) -> Self {
        Self {
            operations: Vec::with_capacity(most),
            spans: Vec::with_capacity(most * SPANS_EACH + SPANS_MAX),
            watches: Vec::new(),
            called: false,
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty() && self.watches.is_empty()
    }

    /// Returns true if the owner's thread is to be called, and will be.
    #[inline]
    pub fn must_call(&mut self) -> bool {
        !self.is_empty() && !std::mem::replace(&mut self.called, true)
    }

    /// Has `engine` make the changes of watches, in order.
    pub fn give_watches(&mut self, engine: &mut dyn DiskQueue) {
        for (device, place, watched) in self.watches.drain(..) {
            match watched {
                Some((fd, interest)) => engine.watch_place(device, place, fd, interest),
                None => engine.forget_place(device, place),
            }
        }
    }

    /// Takes all operations out, in order.
    pub fn take_each(&mut self, mut take: impl FnMut(DiskOp, &[Span])) {
        let mut first = 0;
        for (operation, spans) in self.operations.drain(..) {
            let last = first + spans as usize;
            take(operation, &self.spans[first..last]);
            first = last;
        }
        self.spans.clear();
        self.called = false;
    }
}

impl Watch for LeftOperations {
    fn watch_place(&mut self, device: DeviceId, place: u16, fd: RawFd, interest: Interest) {
        self.watches.push((device, place, Some((fd, interest))));
    }

    fn forget_place(&mut self, device: DeviceId, place: u16) {
        self.watches.push((device, place, None));
    }
}

impl DiskQueue for LeftOperations {
    unsafe fn push(&mut self, operation: DiskOp, spans: &[Span]) -> bool {
        let room = self.spans.capacity() - self.spans.len();
        if self.operations.len() == self.operations.capacity() || spans.len() > room {
            return false;
        }
        self.operations.push((operation, spans.len() as u32));
        self.spans.extend_from_slice(spans);
        true
    }
}

#[cfg(test)]
mod tests {
    use headworks_core::{DeviceId, RequestId};

    use super::*;
    use crate::engine::DiskKind;

    fn operation(offset: u64) -> DiskOp {
        let (device, id) = (DeviceId(0), RequestId::default());
        DiskOp { device, id, fd: -1, kind: DiskKind::Read, offset, len: 0 }
    }

    fn push(left: &mut LeftOperations, offset: u64, spans: usize) -> bool {
        // SAFETY: nothing executes the operation; no byte of the span is used.
        unsafe { left.push(operation(offset), &vec![Span::EMPTY; spans]) }
    }

    #[test]
    fn operations_come_out_in_order_with_their_spans_and_one_call() {
        let mut left = LeftOperations::new(4);
        assert!(!left.must_call());
        assert!(push(&mut left, 1, 2) && left.must_call());
        assert!(push(&mut left, 2, 0) && push(&mut left, 3, 1) && !left.must_call());
        let mut taken = Vec::new();
        left.take_each(|operation, spans| taken.push((operation.offset, spans.len())));
        assert_eq!(taken, [(1, 2), (2, 0), (3, 1)]);
        assert!(left.is_empty() && !left.must_call());
        assert!(push(&mut left, 4, 1) && left.must_call());
    }

    #[test]
    fn full_list_refuses_without_growing() {
        let mut left = LeftOperations::new(2);
        let capacities = (left.operations.capacity(), left.spans.capacity());
        assert!(push(&mut left, 0, SPANS_MAX));
        let room = left.spans.capacity() - SPANS_MAX;
        assert!(!push(&mut left, 1, room + 1) && push(&mut left, 1, room));
        assert!(!push(&mut left, 2, 0));
        assert_eq!((left.operations.capacity(), left.spans.capacity()), capacities);
    }
}
