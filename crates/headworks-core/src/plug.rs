//! The plug holds a turn's batch back until it is whole, so that neighbours become one request.
//!
//! A shard starts the plug when a batch of inputs begins and finishes it when the batch ends. Plugs nest: inner ones are
//! inert, only the outermost finish flushes. A plug also flushes when it holds [`PLUG_MAX`] requests (twice as many when they
//! are for several devices) or when its last request grew to [`PLUG_BYTES`]: more would only wait, not merge. Requests leave
//! in the order in which they came. A plugged request holds no tag yet, so a full device never deadlocks with a plug.
//!
//! A bio looks for a neighbour newest first over all requests of its device (Linux looks only at the newest one of a queue,
//! and so loses merges when two streams interleave); a filter of 256 bits answers "no neighbour" for most in two tests.

use crate::bio::{Bio, DeviceId};
use crate::elevator::MergeEdge;
use crate::merge::{self, Limits};
use crate::options::NoMerges;
use crate::request::{Bios, SlotId, Slots};

/// Requests for one device that a plug holds; as Linux.
pub const PLUG_MAX: usize = 32;
/// A last request of this size flushes the plug when the next one comes; as Linux.
pub const PLUG_BYTES: u32 = 128 << 10;

/// A turn's batch.
#[derive(Debug)]
pub(crate) struct Plug {
    depth: u32,
    entries: Vec<(DeviceId, SlotId)>,
    several_devices: bool,
    /// Bits for the places where held requests end or start.
    filter: [u64; 4],
}

impl Plug {
    pub fn new() -> Self {
        Self {
            depth: 0,
            entries: Vec::with_capacity(2 * PLUG_MAX),
            several_devices: false,
            filter: [0; 4],
        }
    }

    /// Starts a plug, or an inert inner one.
    pub fn start(&mut self) {
        self.depth += 1;
    }

    /// Ends a plug; true when it was the outermost and must be flushed.
    #[must_use]
    pub fn finish(&mut self) -> bool {
        assert!(self.depth > 0, "a plug is finished as often as it was started");
        self.depth -= 1;
        self.depth == 0 && !self.entries.is_empty()
    }

    /// Whether the plug must be flushed before it takes another request.
    pub fn must_flush(&self, slots: &Slots) -> bool {
        let max = if self.several_devices { 2 * PLUG_MAX } else { PLUG_MAX };
        self.entries.len() >= max
            || self.entries.last().is_some_and(|&(_, id)| slots[id].len >= PLUG_BYTES)
    }

    /// Puts a bio into a request that the plug holds, if one may take it; true if so.
    // On the way of every bio; the other caller is the end of a switch.
    #[inline(always)]
    pub fn try_merge(
        &mut self,
        slots: &mut Slots,
        bios: &mut Bios,
        device: DeviceId,
        (bio, slot): (&Bio, u32),
        limits: &Limits,
        nomerges: NoMerges,
    ) -> bool {
        if !bio.op.has_data() || nomerges == NoMerges::Never {
            return false;
        }
        if !self.may_hold(bio.id.volume.0, bio.offset) && !self.may_hold(bio.id.volume.0, bio.end())
        {
            return false;
        }
        let segments = limits.segments(bio.len);
        let oldest = match nomerges {
            NoMerges::OneHit => self.entries.len().saturating_sub(1),
            _ => 0,
        };
        for &(other, id) in self.entries[oldest..].iter().rev() {
            if other != device {
                continue;
            }
            let Some(edge) = merge::fit_bio(&slots[id], bio, segments, limits) else {
                continue;
            };
            merge::join_bio(slots, bios, id, slot, edge, segments);
            let grown_to = if edge == MergeEdge::Back { bio.end() } else { bio.offset };
            self.note(bio.id.volume.0, grown_to);
            return true;
        }
        false
    }

    /// Holds a request that was made of `bio`.
    pub fn add(&mut self, bio: &Bio, device: DeviceId, id: SlotId) {
        let last = self.entries.last();
        self.several_devices |= last.is_some_and(|&(other, _)| other != device);
        self.entries.push((device, id));
        if bio.op.has_data() {
            self.note(bio.id.volume.0, bio.offset);
            self.note(bio.id.volume.0, bio.end());
        }
    }

    /// Moves the requests of the oldest one's device to `ids`, in order; None when nothing is left.
    pub fn take(&mut self, ids: &mut Vec<SlotId>) -> Option<DeviceId> {
        ids.clear();
        let &(device, _) = self.entries.first()?;
        if self.several_devices {
            ids.extend(self.entries.iter().filter(|entry| entry.0 == device).map(|entry| entry.1));
            self.entries.retain(|entry| entry.0 != device);
        } else {
            ids.extend(self.entries.drain(..).map(|entry| entry.1));
        }
        if self.entries.is_empty() {
            self.several_devices = false;
            self.filter = [0; 4];
        }
        Some(device)
    }

    fn may_hold(&self, volume: u16, at: u64) -> bool {
        let bit = merge::hash(volume, at, 56);
        self.filter[bit / 64] & (1 << (bit % 64)) != 0
    }

    fn note(&mut self, volume: u16, at: u64) {
        let bit = merge::hash(volume, at, 56);
        self.filter[bit / 64] |= 1 << (bit % 64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_outermost_finish_flushes_and_only_if_there_is_something() {
        let mut plug = Plug::new();
        plug.start();
        assert!(!plug.finish());
        plug.start();
        plug.start();
        plug.add(&Bio::default(), DeviceId(0), 0);
        assert!(!plug.finish(), "an inner plug is inert");
        assert!(plug.finish());
    }

    #[test]
    #[should_panic(expected = "as often as it was started")]
    fn a_finish_too_many_is_our_bug() {
        let _ = Plug::new().finish();
    }

    #[test]
    fn requests_leave_by_device_the_oldest_ones_first_and_in_order() {
        let mut plug = Plug::new();
        for (id, device) in [1, 0, 1, 2, 0].into_iter().enumerate() {
            plug.add(&Bio::default(), DeviceId(device), id as u32);
        }
        let mut ids = Vec::new();
        let mut all = Vec::new();
        while let Some(device) = plug.take(&mut ids) {
            all.push((device.0, ids.clone()));
        }
        assert_eq!(all, [(1, vec![0, 2]), (0, vec![1, 4]), (2, vec![3])]);
        assert!(!plug.several_devices && plug.filter == [0; 4]);
    }
}
