//! Reads that are answered from the memory of their device ([`headworks::Device::memory`]).
//!
//! ```text
//!   read --no buffer--> bio whose span is the device's bytes --queue, device: nothing is copied--> reply --> lent piece of the send queue
//! ```
//!
//! Such a bio passes the shard as any other: it waits for tags and limits, is merged, split and timed out. The bytes of its reply are
//! those of the time of the reply, so each block has one version, which is none older than the read. From then on they are lent: the
//! shard's thread calls [`Connection::keep_lent`] before they change, as it does for frames of the cache.
//!
//! Invariants: a connection with memory has no cached volume, and a read in flight without a buffer has the memory of its connection.

use headworks_core::{Instant, Op, VolumeId};

use super::Connection;
use headworks::driver::Span;
use headworks_front::window::InFlight;

/// The bytes of a read without a buffer in the memory of its volume; none for other requests, or without memory.
pub(super) fn in_place(memory: Span, in_flight: &InFlight) -> Option<Span> {
    let lent = in_flight.op == Op::Read && !memory.is_empty();
    lent.then(|| memory.part(in_flight.offset as usize, in_flight.len as usize))
}

impl Connection {
    /// The memory of its volume that its replies are sent from; empty if the device lends none.
    #[inline]
    #[must_use]
    pub fn memory(&self) -> Span {
        self.memory
    }

    /// Names the memory of a volume, for the connections of that volume.
    pub fn set_memory(&mut self, volume: VolumeId, memory: Span) {
        if self.last_binding().is_some_and(|binding| binding.volume == volume) {
            self.memory = memory;
        }
    }

    /// The last piece of the send queue if it is lent.
    #[must_use]
    pub fn last_lent(&self) -> Option<Span> {
        self.outgoing.last_lent()
    }

    /// Queues the bytes of a read without a buffer.
    pub(super) fn push_in_place(&mut self, now: Instant, offset: u64, len: u32) {
        if len > 0 {
            let span = self.memory.part(offset as usize, len as usize);
            self.outgoing.push_frames(&[span], offset, now);
        }
    }
}
