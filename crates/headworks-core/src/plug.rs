//! The plug: it holds the requests of one turn back, so that neighbours become one request.
//!
//! A shard starts the plug when a batch of inputs begins and finishes it when the batch ends. Plugs nest: inner ones are
//! inert, only the outermost finish flushes. A plug is also flushed when it holds [`PLUG_MAX`] requests (twice as many when
//! they are for several devices) or when its last request grew to [`PLUG_BYTES`]: more would only wait, not merge. Requests
//! leave in the order in which they came. A plugged request holds no tag, so a full device never deadlocks with a plug.
//!
//! A bio is compared with all held requests of its device, newest first. Linux compares it with the newest of its queue only,
//! and so loses merges when two streams interleave. Two filters of 512 bits, of the places where held requests end and where they
//! start, reject nearly all bios that have no neighbour: a bio that passes is compared with up to 32 requests.
//!
//! Invariants: every held request is in state `Plugged`; the filters have the bits of every held request's end and start.

use crate::bio::{Bio, DeviceId};
use crate::elevator::MergeEdge;
use crate::error::Status;
use crate::input::ReplyStage;
use crate::merge;
use crate::options::NoMerges;
use crate::pools::{Pools, answer};
use crate::queue::QueueView;
use crate::request::{Bios, Request, RequestStart, RequestState, SlotId, Slots};
use crate::time::Instant;

/// Requests for one device that a plug holds; as Linux.
pub const PLUG_MAX: usize = 32;
/// Size in bytes from which the last request flushes the plug when the next one comes; as Linux.
pub const PLUG_BYTES: u32 = 128 << 10;

/// A bio that enters a device's path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlugBio<'a> {
    /// The bio as it was submitted.
    pub bio: &'a Bio,
    /// Its slot in the bio pool.
    pub slot: u32,
    /// When it arrived: now, or earlier if a change of options held it.
    pub since: Instant,
    /// The time from which its wait for the device is limited: it may have waited on another shard.
    pub waits_since: Instant,
    /// Tags of another shard's lease that it came with; 0 for bios of this shard.
    pub tags: u16,
}

/// The plug's decision about a bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offered {
    /// The bio was answered or became a held request.
    Taken,
    /// The bio became part of a held request.
    Merged,
    /// Nothing happened: the plug must be flushed first.
    Full,
}

/// The requests of one turn.
#[derive(Debug)]
pub(crate) struct Plug {
    depth: u32,
    entries: Vec<(DeviceId, SlotId)>,
    several_devices: bool,
    /// Bits for the offsets at which held requests end.
    ends: Places,
    /// Bits for the offsets at which they start.
    starts: Places,
}

/// A set of offsets of volumes that may say of one that it holds it although it does not: a bit of the hash of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Places([u64; 8]);

impl Places {
    /// Returns the bit of an offset of a volume.
    #[inline]
    fn bit(volume: u16, at: u64) -> usize {
        merge::hash(volume, at, 55)
    }

    // The remainder, which a bit never needs, spares the check of the bounds.
    #[inline]
    fn may_hold(&self, bit: usize) -> bool {
        self.0[bit / 64 % 8] & (1 << (bit % 64)) != 0
    }

    #[inline]
    fn add(&mut self, bit: usize) {
        self.0[bit / 64 % 8] |= 1 << (bit % 64);
    }
}

/// The bits of a bio's start and end in the filters.
#[derive(Clone, Copy, Debug)]
struct Edges {
    start: usize,
    end: usize,
}

impl Edges {
    #[inline]
    fn of(bio: &Bio) -> Self {
        let volume = bio.id.volume.0;
        Self { start: Places::bit(volume, bio.offset), end: Places::bit(volume, bio.end()) }
    }
}

impl Plug {
    /// Creates an empty plug that is not started.
    pub fn new() -> Self {
        Self {
            depth: 0,
            entries: Vec::with_capacity(2 * PLUG_MAX),
            several_devices: false,
            ends: Places::default(),
            starts: Places::default(),
        }
    }

    /// Starts the plug, or an inert inner one.
    pub fn start(&mut self) {
        self.depth += 1;
    }

    /// Ends a plug; returns true when it was the outermost and must be flushed.
    #[must_use]
    pub fn finish(&mut self) -> bool {
        debug_assert!(self.depth > 0, "a plug is finished as often as it was started");
        self.depth -= 1;
        self.depth == 0 && !self.entries.is_empty()
    }

    /// Answers a bio, merges it, or holds it as a request of its own, unless the plug is full.
    ///
    /// Inlined because it is on the path of every bio.
    #[inline(always)]
    pub fn offer(&mut self, queue: QueueView<'_>, pools: &mut Pools, new: &PlugBio<'_>) -> Offered {
        debug_assert!(self.depth > 0, "bios enter under a plug");
        if let Some(status) = queue.early_answer(new.bio) {
            answer_now(pools, new.slot, status);
            return Offered::Taken;
        }
        let Pools { slots, bios, .. } = pools;
        let segments = queue.limits.segments(new.bio.len);
        let edges = Edges::of(new.bio);
        if self.try_merge(slots, bios, &queue, new, (segments, edges)) {
            queue.count_merge(new.bio.op);
            return Offered::Merged;
        }
        if self.is_full(slots) {
            return Offered::Full;
        }
        let id = slots.try_take().expect("there are slots for every bio and every tag");
        let leased = if new.tags > 0 { Request::LEASED } else { 0 };
        slots[id].begin(RequestStart {
            marks: queue.first_marks(new.bio) | leased,
            tags: new.tags,
            waits_since: new.waits_since,
            ..RequestStart::of_bio(new.since, new.bio, new.slot, segments)
        });
        self.hold(new.bio, edges, queue.device, id);
        Offered::Taken
    }

    /// Returns true when the plug must be flushed before it takes another request.
    fn is_full(&self, slots: &Slots) -> bool {
        let max = if self.several_devices { 2 * PLUG_MAX } else { PLUG_MAX };
        debug_assert!(self.entries.len() <= max, "the plug is flushed in time");
        self.entries.len() >= max
            || self.entries.last().is_some_and(|&(_, id)| slots[id].len >= PLUG_BYTES)
    }

    /// Merges a bio into a held request, if one may take it; returns true if so.
    #[inline(always)]
    fn try_merge(
        &mut self,
        slots: &mut Slots,
        bios: &mut Bios,
        queue: &QueueView<'_>,
        new: &PlugBio<'_>,
        (segments, edges): (u16, Edges),
    ) -> bool {
        let bio = new.bio;
        let nomerges = queue.nomerges();
        if !bio.op.has_data() || nomerges == NoMerges::Never {
            return false;
        }
        if !self.ends.may_hold(edges.start) && !self.starts.may_hold(edges.end) {
            return false;
        }
        let oldest = match nomerges {
            NoMerges::OneHit => self.entries.len().saturating_sub(1),
            _ => 0,
        };
        for &(device, id) in self.entries[oldest..].iter().rev() {
            if device != queue.device {
                continue;
            }
            let Some(edge) = merge::fit_bio(&slots[id], bio, segments, queue.limits) else {
                continue;
            };
            let since = slots[id].waits_since;
            if !merge::share_a_limit(since, new.waits_since, queue.io_timeout_ns()) {
                continue;
            }
            debug_assert!(
                slots[id].state == RequestState::Plugged,
                "the plug holds plugged requests"
            );
            merge::join_bio(slots, bios, id, new.slot, edge, segments);
            slots[id].waits_since = slots[id].waits_since.min(new.waits_since);
            match edge {
                MergeEdge::Back => self.ends.add(edges.end),
                MergeEdge::Front => self.starts.add(edges.start),
            }
            return true;
        }
        false
    }

    /// Holds request `id`, which was made of `bio`.
    #[inline(always)]
    fn hold(&mut self, bio: &Bio, edges: Edges, device: DeviceId, id: SlotId) {
        let last = self.entries.last();
        self.several_devices |= last.is_some_and(|&(other, _)| other != device);
        self.entries.push((device, id));
        if bio.op.has_data() {
            self.starts.add(edges.start);
            self.ends.add(edges.end);
        }
    }

    /// Moves the requests for the oldest one's device to `ids`, in order; returns `None` when the plug is empty.
    pub fn take(&mut self, ids: &mut Vec<SlotId>) -> Option<DeviceId> {
        ids.clear();
        let &(device, _) = self.entries.first()?;
        if self.several_devices {
            ids.extend(self.entries.iter().filter(|entry| entry.0 == device).map(|entry| entry.1));
            self.entries.retain(|entry| entry.0 != device);
        } else {
            ids.extend(self.entries.drain(..).map(|entry| entry.1));
        }
        debug_assert!(!ids.is_empty(), "the oldest request is for that device");
        if self.entries.is_empty() {
            self.several_devices = false;
            (self.ends, self.starts) = Default::default();
        }
        Some(device)
    }
}

/// Answers a bio that needs no device.
#[cold]
fn answer_now(pools: &mut Pools, slot: u32, status: Status) {
    answer(pools, slot, status, false, ReplyStage::Final);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_outermost_finish_flushes_nonempty_plug() {
        let mut plug = Plug::new();
        plug.start();
        assert!(!plug.finish());
        plug.start();
        plug.start();
        plug.hold(&Bio::default(), Edges::of(&Bio::default()), DeviceId(0), 0);
        assert!(!plug.finish(), "an inner plug is inert");
        assert!(plug.finish());
    }

    #[test]
    #[should_panic(expected = "as often as it was started")]
    fn finish_without_start_panics() {
        let _ = Plug::new().finish();
    }

    #[test]
    fn requests_leave_by_device_oldest_first_in_order() {
        let mut plug = Plug::new();
        for (id, device) in [1, 0, 1, 2, 0].into_iter().enumerate() {
            plug.hold(&Bio::default(), Edges::of(&Bio::default()), DeviceId(device), id as u32);
        }
        let mut ids = Vec::new();
        let mut all = Vec::new();
        while let Some(device) = plug.take(&mut ids) {
            all.push((device.0, ids.clone()));
        }
        assert_eq!(all, [(1, vec![0, 2]), (0, vec![1, 4]), (2, vec![3])]);
        assert!(!plug.several_devices);
        assert_eq!((plug.ends, plug.starts), Default::default());
    }
}
