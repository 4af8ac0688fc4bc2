//! Merging: the rules by which adjacent requests become one, and the index that finds them.
//!
//! Reads merge with reads and writes with writes, if they are adjacent on one volume, of one export, of one class (FUA and
//! background work do not mix with others) and of one priority, within the device's limits. A request has one export, because one
//! pays for it. A piece of a split bio never merges: the limits cut it off its neighbours on purpose. Linux lets the last piece
//! merge; that is not worth a second kind of link here.

use crate::bio::{Bio, BioFlags};
use crate::elevator::MergeEdge;
use crate::gauge::Gauge32;
use crate::list::List;
use crate::request::{BioChain, Bios, EndLink, Request, RequestState, SlotId, Slots, StartLink};
use crate::request_limits::RequestLimits;
use crate::time::Instant;

/// The flags in which the bios of a request must agree.
const CLASS: BioFlags = BioFlags(BioFlags::FUA.0 | BioFlags::SYNC.0);

fn same_class(a: BioFlags, b: BioFlags) -> bool {
    a.0 & CLASS.0 == b.0 & CLASS.0
}

/// Returns the flags of a merged request: a hole may be answered only if every bio allows it.
fn joined_flags(a: BioFlags, b: BioFlags) -> BioFlags {
    BioFlags(a.0 & b.0)
}

/// Returns the edge at which `bio` may join `request`, if it may.
#[inline]
pub(crate) fn fit_bio(
    request: &Request,
    bio: &Bio,
    segments: u16,
    limits: &RequestLimits,
) -> Option<MergeEdge> {
    let edge = if request.end() == bio.offset {
        MergeEdge::Back
    } else if request.offset == bio.end() {
        MergeEdge::Front
    } else {
        return None;
    };
    let allowed = request.op == bio.op
        && request.volume == bio.id.volume
        && request.export == bio.id.export
        && same_class(request.flags, bio.flags)
        && request.ioprio == bio.ioprio
        && request.may_merge()
        && !bio.flags.contains(BioFlags::NOMERGE)
        && limits.admit(
            u64::from(request.len) + u64::from(bio.len),
            u32::from(request.bios.segments) + u32::from(segments),
        );
    allowed.then_some(edge)
}

/// The part that joins a request: a bio from the plug, or all of another request.
struct Part {
    offset: u64,
    len: u32,
    bios: BioChain,
    flags: BioFlags,
}

/// Links a part to `request` at `edge`; [`fit_bio`] or [`fit_requests`] allowed it.
#[inline]
fn join(request: &mut Request, bios: &mut Bios, part: Part, edge: MergeEdge) {
    match edge {
        MergeEdge::Back => {
            debug_assert!(request.end() == part.offset, "a back merge continues the request");
            bios[request.bios.tail].next = part.bios.head;
            request.bios.tail = part.bios.tail;
        }
        MergeEdge::Front => {
            debug_assert!(
                part.offset + u64::from(part.len) == request.offset,
                "a front merge ends at it"
            );
            bios[part.bios.tail].next = request.bios.head;
            request.bios.head = part.bios.head;
            request.offset = part.offset;
        }
    }
    request.len += part.len;
    request.bios.segments += part.bios.segments;
    request.bios.count += part.bios.count;
    request.flags = joined_flags(request.flags, part.flags);
}

/// Returns true if bios that have waited since `a` and since `b` may be in one request: all of them fail when the oldest has waited
/// for too long, so each has at least half of its time.
#[inline]
pub(crate) fn share_a_limit(a: Instant, b: Instant, io_timeout_ns: u64) -> bool {
    a == b || a.0.abs_diff(b.0) < io_timeout_ns / 2
}

/// Merges a bio into request `id` at `edge`.
pub(crate) fn join_bio(
    slots: &mut Slots,
    bios: &mut Bios,
    id: SlotId,
    slot: u32,
    edge: MergeEdge,
    segments: u16,
) {
    let Bio { offset, len, flags, .. } = bios[slot].bio;
    let part = Part { offset, len, bios: BioChain::of(slot, segments), flags };
    join(&mut slots[id], bios, part, edge);
}

/// Returns true when `back`, which starts where `front` ends, may become part of it.
pub(crate) fn fit_requests(front: &Request, back: &Request, limits: &RequestLimits) -> bool {
    front.end() == back.offset
        && front.op == back.op
        && front.volume == back.volume
        && front.export == back.export
        && same_class(front.flags, back.flags)
        && front.ioprio == back.ioprio
        && front.may_merge()
        && back.may_merge()
        && limits.admit(
            u64::from(front.len) + u64::from(back.len),
            u32::from(front.bios.segments) + u32::from(back.bios.segments),
        )
}

/// Moves the bios of `gone` to `kept`, at `edge` of `kept`. The caller frees `gone`.
pub(crate) fn join_requests(
    slots: &mut Slots,
    bios: &mut Bios,
    kept: SlotId,
    gone: SlotId,
    edge: MergeEdge,
) {
    debug_assert!(kept != gone, "a request is not merged with itself");
    let from = &slots[gone];
    let (stamps, waits_since) = (from.stamps, from.waits_since);
    // One without a tag has not reached the stage that begins with the tag, and says nothing of it.
    let stages = if from.state == RequestState::Queued { 3 } else { 2 };
    let part = Part { offset: from.offset, len: from.len, bios: from.bios, flags: from.flags };
    let kept = &mut slots[kept];
    join(kept, bios, part, edge);
    // The merged request counts from its oldest part, stage by stage: the older part's time in the queue is not plug time.
    for (stamp, other) in kept.stamps.iter_mut().zip(stamps).take(stages) {
        *stamp = (*stamp).min(other);
    }
    kept.waits_since = kept.waits_since.min(waits_since);
}

/// Waiting requests by where they end and where they start.
///
/// Two hash tables whose buckets are lists through the requests, sized at start for one entry a bucket on average. Insertion
/// and removal take constant time; a search looks at no more than [`CANDIDATES_MAX`] requests of a bucket, newest first.
///
/// Invariant: a request is in both tables while it is marked `INDEXED`, and in neither otherwise.
#[derive(Debug)]
pub struct MergeIndex {
    by_end: Vec<List<EndLink>>,
    by_start: Vec<List<StartLink>>,
    shift: u32,
    entries: Gauge32,
    /// Requests that searches looked at.
    #[cfg(test)]
    looked_at: std::cell::Cell<u64>,
}

/// The most requests of a bucket that a search looks at. A bucket is long only where many requests wait at one place and cannot
/// grow; Linux looks at one request that ends at the right place.
pub const CANDIDATES_MAX: usize = 16;

impl MergeIndex {
    /// Creates an index for about `entries` requests.
    #[must_use]
    pub fn new(entries: u32) -> Self {
        let buckets = entries.clamp(16, 1 << 16).next_power_of_two();
        Self {
            by_end: (0..buckets).map(|_| List::new()).collect(),
            by_start: (0..buckets).map(|_| List::new()).collect(),
            shift: 64 - buckets.trailing_zeros(),
            entries: Gauge32::new(0),
            #[cfg(test)]
            looked_at: std::cell::Cell::new(0),
        }
    }

    /// Returns true when no request is in the index.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_zero()
    }

    #[inline]
    fn bucket(&self, volume: u16, at: u64) -> usize {
        hash(volume, at, self.shift)
    }

    /// Adds a request, which is in no index and has a length.
    pub fn insert(&mut self, slots: &mut Slots, id: SlotId) {
        let request = &mut slots[id];
        debug_assert!(!request.is(Request::INDEXED), "a request is indexed once");
        debug_assert!(request.len > 0, "only requests with data merge");
        request.marks |= Request::INDEXED;
        let (volume, start, end) = (request.volume.0, request.offset, request.end());
        let (by_end, by_start) = (self.bucket(volume, end), self.bucket(volume, start));
        self.by_end[by_end].push_front(slots, id);
        self.by_start[by_start].push_front(slots, id);
        self.entries.add(1);
    }

    /// Removes a request if it is in the index; its range is the same as when it was inserted.
    #[inline]
    pub fn remove(&mut self, slots: &mut Slots, id: SlotId) {
        if slots[id].is(Request::INDEXED) {
            self.remove_indexed(slots, id);
        }
    }

    /// Removes a request that is in the index. Apart, so that the test is inlined where most requests never were in the index.
    #[inline(never)]
    fn remove_indexed(&mut self, slots: &mut Slots, id: SlotId) {
        let request = &mut slots[id];
        debug_assert!(request.is(Request::INDEXED), "only requests in the index are removed");
        request.marks &= !Request::INDEXED;
        let (volume, start, end) = (request.volume.0, request.offset, request.end());
        let (by_end, by_start) = (self.bucket(volume, end), self.bucket(volume, start));
        self.by_end[by_end].remove(slots, id);
        self.by_start[by_start].remove(slots, id);
        self.entries.sub(1);
    }

    /// Finds a request that may take `incoming`: one that ends where `incoming` starts, or (with `fronts`) starts where it ends.
    #[must_use]
    pub fn find(
        &self,
        slots: &Slots,
        incoming: &Request,
        limits: &RequestLimits,
        fronts: bool,
    ) -> Option<(SlotId, MergeEdge)> {
        let volume = incoming.volume.0;
        let bucket = &self.by_end[self.bucket(volume, incoming.offset)];
        for id in bucket.iter(slots).take(CANDIDATES_MAX) {
            self.count_look();
            if fit_requests(&slots[id], incoming, limits) {
                return Some((id, MergeEdge::Back));
            }
        }
        if !fronts {
            return None;
        }
        let bucket = &self.by_start[self.bucket(volume, incoming.end())];
        for id in bucket.iter(slots).take(CANDIDATES_MAX) {
            self.count_look();
            if fit_requests(incoming, &slots[id], limits) {
                return Some((id, MergeEdge::Front));
            }
        }
        None
    }

    /// Counts a request that a search looked at, for tests.
    #[inline]
    fn count_look(&self) {
        #[cfg(test)]
        self.looked_at.set(self.looked_at.get() + 1);
    }
}

/// Hashes an offset on a volume by Fibonacci hashing; the result is the top `64 - shift` bits.
#[inline]
pub(crate) fn hash(volume: u16, at: u64, shift: u32) -> usize {
    debug_assert!(shift < 64, "a hash has a bit at least");
    let key = at ^ (u64::from(volume) << 48);
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> shift) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bio::VolumeId;
    use crate::options::QueueOptions;
    use crate::prng::Prng;
    use crate::slab::NIL;

    fn limits() -> RequestLimits {
        RequestLimits::new(&QueueOptions {
            max_sectors_kb: 12,
            max_segments: 3,
            max_segment_size: 4096,
            ..QueueOptions::default()
        })
    }

    #[test]
    fn piece_keeps_every_limit_and_is_never_empty() {
        let mut limits = limits();
        assert_eq!((limits.piece(512), limits.piece(8192)), (12288, 8192));
        limits.max_segments = 1;
        assert_eq!(limits.piece(4096), 4096);
        assert_eq!(limits.piece(8192), 8192, "a block cannot be cut");
        (limits.max_segment_size, limits.max_segments) = (1 << 31, 1024);
        assert_eq!(limits.piece(512), 12288, "bytes by segments are more than 32 bits hold");
    }

    #[test]
    fn bio_needs_one_segment_per_part_of_its_buffer() {
        let segments = |len| limits().segments(len);
        assert_eq!([1, 4096, 4097, 8192].map(segments), [1, 1, 2, 2]);
    }

    /// A request that has its tag takes over when another one came, and not a tag that this one has not.
    #[test]
    fn merged_request_passes_its_stages_in_order() {
        let (mut slots, mut bios) = (Slots::touched(2), Bios::touched(2));
        let stamps = [[1, 5, 6, 1], [2, 3, 2, 2]].map(|stamps| stamps.map(Instant));
        for (id, state) in [RequestState::Queued, RequestState::Waiting].into_iter().enumerate() {
            let id = id as u32;
            assert_eq!((slots.try_take(), bios.try_take()), (Some(id), Some(id)));
            let stamps = stamps[id as usize];
            let (len, bios) = (4096, BioChain { count: 0, ..BioChain::of(id, 0) });
            let offset = u64::from(id * len);
            slots[id] = Request { offset, len, bios, state, stamps, ..Request::default() };
        }
        join_requests(&mut slots, &mut bios, 0, 1, MergeEdge::Back);
        assert_eq!(slots[0].stamps, [1, 3, 6, 1].map(Instant));
    }

    /// Random insertions and removals in an index with few buckets, against a search through all requests.
    #[test]
    fn index_finds_what_a_full_search_finds() {
        let mut prng = Prng::new(5);
        let mut slots = Slots::touched(64);
        let mut index = MergeIndex::new(16);
        let limits = limits();
        (0..64).for_each(|id| assert_eq!(slots.try_take(), Some(id)));
        for round in 0..20_000 {
            let id = prng.below(64) as u32;
            if slots[id].is(Request::INDEXED) {
                index.remove(&mut slots, id);
            } else {
                slots[id] = request(&mut prng);
                index.insert(&mut slots, id);
            }
            let entries = (0..64).filter(|&id| slots[id].is(Request::INDEXED));
            assert_eq!(index.is_empty(), entries.clone().count() == 0);
            let incoming = request(&mut prng);
            let naive = |id: &u32| {
                fit_requests(&slots[*id], &incoming, &limits)
                    || fit_requests(&incoming, &slots[*id], &limits)
            };
            let fitting: Vec<u32> = entries.filter(naive).collect();
            match index.find(&slots, &incoming, &limits, true) {
                None => assert!(fitting.is_empty(), "round {round}"),
                Some((id, MergeEdge::Back)) => {
                    assert!(fitting.contains(&id) && slots[id].end() == incoming.offset);
                }
                Some((id, MergeEdge::Front)) => {
                    assert!(fitting.contains(&id) && slots[id].offset == incoming.end());
                }
            }
        }
    }

    /// Inserts `count` requests for one block that cannot grow, and removes them in the order of arrival: the worst case for a
    /// bucket. Searches look at a bounded number of them; removals look at the neighbours only, see the tests of `list`.
    #[test]
    fn search_looks_at_bounded_candidates_on_a_hot_block() {
        let count = 8192;
        let mut slots = Slots::touched(count);
        let mut index = MergeIndex::new(2 * count);
        let limits = limits();
        let bios = BioChain::of(NIL, 3);
        let full = |offset| Request { offset, len: 12288, bios, ..Request::default() };
        for id in 0..count {
            slots.try_take();
            slots[id] = full(4096 * 3);
            for incoming in [full(0), full(4096 * 6)] {
                assert_eq!(index.find(&slots, &incoming, &limits, true), None);
            }
            index.insert(&mut slots, id);
        }
        (0..count).for_each(|id| index.remove(&mut slots, id));
        assert!(index.is_empty());
        let most = 2 * u64::from(count) * CANDIDATES_MAX as u64;
        assert!(index.looked_at.get() <= most, "{} requests looked at", index.looked_at.get());
    }

    fn request(prng: &mut Prng) -> Request {
        Request {
            offset: prng.below(40) * 4096,
            len: 4096 * prng.between(1, 2) as u32,
            bios: BioChain::of(NIL, 1),
            volume: VolumeId(prng.below(2) as u16),
            ..Request::default()
        }
    }
}
