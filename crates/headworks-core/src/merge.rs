//! Making one request of several: which may join, and how they are joined.
//!
//! Only reads with reads and writes with writes, of one volume, next to each other, of one class (FUA and background work do
//! not mix with others), and within the device's limits. A piece of a split bio never merges: the limits cut it off its
//! neighbours on purpose (Linux lets the last piece merge; that is not worth a second kind of link here).

use crate::bio::{Bio, BioFlags};
use crate::elevator::MergeEdge;
use crate::options::QueueOptions;
use crate::request::{Bios, Request, SlotId, Slots};
use crate::slab::NIL;

/// The device's limits on one data request.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub(crate) max_bytes: u32,
    pub(crate) max_segments: u16,
    pub(crate) max_segment_size: u32,
}

impl Limits {
    /// Those of a queue.
    #[must_use]
    pub fn new(options: &QueueOptions) -> Self {
        Self {
            max_bytes: options.max_bytes(),
            max_segments: options.max_segments,
            max_segment_size: options.max_segment_size,
        }
    }

    /// Segments that a bio of `len` bytes needs: its buffer is contiguous.
    #[inline]
    #[must_use]
    pub fn segments(&self, len: u32) -> u16 {
        if len <= self.max_segment_size {
            return 1;
        }
        len.div_ceil(self.max_segment_size).min(u32::from(u16::MAX)) as u16
    }

    /// Bytes of the largest piece that a bio is split into; a multiple of `block`.
    #[must_use]
    pub fn piece(&self, block: u32) -> u32 {
        let by_segments = u64::from(self.max_segment_size) * u64::from(self.max_segments);
        let largest = u64::from(self.max_bytes).min(by_segments) as u32;
        step(largest, block)
    }

    fn admit(&self, bytes: u64, segments: u32) -> bool {
        bytes <= u64::from(self.max_bytes) && segments <= u32::from(self.max_segments)
    }
}

/// The most bytes up to `limit` that end at a block: what goes in steps must not be cut where the device cannot.
#[inline]
pub(crate) fn step(limit: u32, block: u32) -> u32 {
    (limit & !(block - 1)).max(block)
}

/// The flags in which the bios of a request must agree.
const CLASS: BioFlags = BioFlags(BioFlags::FUA.0 | BioFlags::SYNC.0);

fn same_class(a: BioFlags, b: BioFlags) -> bool {
    a.0 & CLASS.0 == b.0 & CLASS.0
}

/// Flags of a joined request: a hole may be answered only if everybody allows it.
fn joined_flags(a: BioFlags, b: BioFlags) -> BioFlags {
    BioFlags(a.0 & b.0)
}

/// At which edge `bio` may join `request`, if at all.
#[inline]
pub(crate) fn fit_bio(
    request: &Request,
    bio: &Bio,
    segments: u16,
    limits: &Limits,
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
        && same_class(request.flags, bio.flags)
        && request.ioprio == bio.ioprio
        && request.may_merge()
        && !bio.flags.contains(BioFlags::NOMERGE)
        && limits.admit(
            u64::from(request.len) + u64::from(bio.len),
            u32::from(request.segments) + u32::from(segments),
        );
    allowed.then_some(edge)
}

/// Links `bio` to `request` at `edge`.
pub(crate) fn join_bio(
    slots: &mut Slots,
    bios: &mut Bios,
    id: SlotId,
    slot: u32,
    edge: MergeEdge,
    segments: u16,
) {
    let request = &mut slots[id];
    match edge {
        MergeEdge::Back => {
            bios[request.bio_tail].next = slot;
            request.bio_tail = slot;
        }
        MergeEdge::Front => {
            bios[slot].next = request.bio_head;
            request.bio_head = slot;
            request.offset = bios[slot].bio.offset;
        }
    }
    request.len += bios[slot].bio.len;
    request.segments += segments;
    request.bios += 1;
    request.flags = joined_flags(request.flags, bios[slot].bio.flags);
}

/// Whether `back`, which starts where `front` ends, may become part of it.
pub(crate) fn fit_requests(front: &Request, back: &Request, limits: &Limits) -> bool {
    front.end() == back.offset
        && front.op == back.op
        && front.volume == back.volume
        && same_class(front.flags, back.flags)
        && front.ioprio == back.ioprio
        && front.may_merge()
        && back.may_merge()
        && limits.admit(
            u64::from(front.len) + u64::from(back.len),
            u32::from(front.segments) + u32::from(back.segments),
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
    let (gone_offset, gone_head, gone_tail) =
        (slots[gone].offset, slots[gone].bio_head, slots[gone].bio_tail);
    let (len, segments, count, flags, stamps) = {
        let gone = &slots[gone];
        (gone.len, gone.segments, gone.bios, gone.flags, gone.stamps)
    };
    let kept = &mut slots[kept];
    match edge {
        MergeEdge::Back => {
            bios[kept.bio_tail].next = gone_head;
            kept.bio_tail = gone_tail;
        }
        MergeEdge::Front => {
            bios[gone_tail].next = kept.bio_head;
            kept.bio_head = gone_head;
            kept.offset = gone_offset;
        }
    }
    kept.len += len;
    kept.segments += segments;
    kept.bios += count;
    kept.flags = joined_flags(kept.flags, flags);
    // Counted from the oldest part on, stage by stage: what the older one spent waiting was not spent in the plug.
    for (stamp, other) in kept.stamps.iter_mut().zip(stamps).take(3) {
        *stamp = (*stamp).min(other);
    }
}

/// Finds requests that wait in a queue by where they end and where they start.
///
/// Two tables of chains through the slots, sized at start-up for at most one entry per place on average.
#[derive(Debug)]
pub struct MergeIndex {
    /// Heads of the chains by end, then by start.
    heads: [Vec<SlotId>; 2],
    shift: u32,
    entries: u32,
}

/// Which table: by end (for back merges) or by start (for front merges).
const BY_END: usize = 0;
const BY_START: usize = 1;

impl MergeIndex {
    /// An index for about that many requests.
    #[must_use]
    pub fn new(entries: u32) -> Self {
        let places = entries.clamp(16, 1 << 16).next_power_of_two();
        let heads = vec![NIL; places as usize];
        Self { heads: [heads.clone(), heads], shift: 64 - places.trailing_zeros(), entries: 0 }
    }

    /// Whether nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    fn place(&self, volume: u16, at: u64) -> usize {
        hash(volume, at, self.shift)
    }

    /// Adds a request where it ends and where it starts.
    pub fn insert(&mut self, slots: &mut Slots, id: SlotId) {
        debug_assert!(!slots[id].is(Request::INDEXED));
        for (table, at) in [(BY_END, slots[id].end()), (BY_START, slots[id].offset)] {
            let place = self.place(slots[id].volume.0, at);
            slots[id].chain[table] = self.heads[table][place];
            self.heads[table][place] = id;
        }
        slots[id].marks |= Request::INDEXED;
        self.entries += 1;
    }

    /// Takes a request out, if it is in.
    pub fn remove(&mut self, slots: &mut Slots, id: SlotId) {
        if !slots[id].is(Request::INDEXED) {
            return;
        }
        for (table, at) in [(BY_END, slots[id].end()), (BY_START, slots[id].offset)] {
            let place = self.place(slots[id].volume.0, at);
            let after = slots[id].chain[table];
            let mut link = self.heads[table][place];
            if link == id {
                self.heads[table][place] = after;
                continue;
            }
            while slots[link].chain[table] != id {
                link = slots[link].chain[table];
            }
            slots[link].chain[table] = after;
        }
        slots[id].marks &= !Request::INDEXED;
        self.entries -= 1;
    }

    /// A request that ends where `incoming` starts, or (if `fronts` may grow) starts where it ends, and may take it.
    #[must_use]
    pub fn find(
        &self,
        slots: &Slots,
        incoming: &Request,
        limits: &Limits,
        fronts: bool,
    ) -> Option<(SlotId, MergeEdge)> {
        let mut id = self.heads[BY_END][self.place(incoming.volume.0, incoming.offset)];
        while id != NIL {
            if fit_requests(&slots[id], incoming, limits) {
                return Some((id, MergeEdge::Back));
            }
            id = slots[id].chain[BY_END];
        }
        if !fronts {
            return None;
        }
        let mut id = self.heads[BY_START][self.place(incoming.volume.0, incoming.end())];
        while id != NIL {
            if fit_requests(incoming, &slots[id], limits) {
                return Some((id, MergeEdge::Front));
            }
            id = slots[id].chain[BY_START];
        }
        None
    }
}

/// Fibonacci hashing of a place on a volume into the top bits.
#[inline]
pub(crate) fn hash(volume: u16, at: u64, shift: u32) -> usize {
    let key = at ^ (u64::from(volume) << 48);
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> shift) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bio::VolumeId;
    use crate::prng::Prng;

    fn limits() -> Limits {
        Limits::new(&QueueOptions {
            max_sectors_kb: 12,
            max_segments: 3,
            max_segment_size: 4096,
            ..QueueOptions::default()
        })
    }

    #[test]
    fn a_piece_keeps_every_limit_and_is_never_nothing() {
        let mut limits = limits();
        assert_eq!((limits.piece(512), limits.piece(8192)), (12288, 8192));
        limits.max_segments = 1;
        assert_eq!(limits.piece(4096), 4096);
        assert_eq!(limits.piece(8192), 8192, "a block cannot be cut");
        (limits.max_segment_size, limits.max_segments) = (1 << 31, 1024);
        assert_eq!(limits.piece(512), 12288, "bytes by segments are more than 32 bits hold");
    }

    #[test]
    fn a_bio_needs_a_segment_for_each_part_of_its_buffer() {
        let segments = |len| limits().segments(len);
        assert_eq!([1, 4096, 4097, 8192].map(segments), [1, 1, 2, 2]);
    }

    /// Random requests in and out of an index with few places, against a search through all of them.
    #[test]
    fn the_index_finds_what_a_search_through_all_finds() {
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

    fn request(prng: &mut Prng) -> Request {
        Request {
            offset: prng.below(40) * 4096,
            len: 4096 * prng.between(1, 2) as u32,
            segments: 1,
            bios: 1,
            volume: VolumeId(prng.below(2) as u16),
            ..Request::default()
        }
    }
}
