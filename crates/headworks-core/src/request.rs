//! A request: what the queue sends to a device, made of one bio, of several that lie next to each other, or of a piece of one.
//!
//! Bios of a request are linked in the order of their offsets; all of them whole. A piece of a split bio is a request of its
//! own with a `parent` and never merges: its neighbours are its siblings, which the limits cut apart on purpose.

use crate::bio::{Bio, BioFlags, Ioprio, Op, VolumeId};
use crate::list::{Chained, Link, Linked};
use crate::merge::Limits;
use crate::slab::{NIL, Slab};
use crate::time::Instant;
use crate::wait_times::WaitTimes;

/// The request pool of a shard.
pub type Slots = Slab<Request>;
/// The name of a request on its shard.
pub type SlotId = u32;
/// The bio pool of a shard.
pub type Bios = Slab<BioSlot>;

/// Where a request is. One way round, but for `Queued -> InFlight -> Queued` when the device refuses.
///
/// ```text
///  Free -> Plugged -> Waiting (for a tag) -> Queued (in the elevator) -> InFlight -> Free
///             |  \________________________________^                        |  ^
///             |        a tag was free             `------ refused --------'  | next step, next bio of a retry
///             `-> Split (its pieces are requests of their own) -> Free       `--'
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestState {
    /// Nobody's.
    #[default]
    Free,
    /// In the plug.
    Plugged,
    /// At the gate: no tag yet.
    Waiting,
    /// Has a tag; in the elevator or in the requeue list.
    Queued,
    /// In the device.
    InFlight,
    /// A bio over the limits: waits for its pieces.
    Split,
}

/// One request.
#[derive(Clone, Debug)]
pub struct Request {
    /// First byte on the volume.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// Bytes that the device has finished, or that went into pieces; what is sent next starts here.
    pub done: u32,
    /// First bio, by offset.
    pub bio_head: u32,
    /// Last bio.
    pub bio_tail: u32,
    /// Where this request's data start in its (only) bio's buffer; 0 unless a piece.
    pub piece_offset: u32,
    /// Counts the commands sent from this slot.
    pub generation: u32,
    /// Neighbours in a list of the elevator or in the requeue list, see [`QueueLink`].
    pub queue_link: Link,
    /// Neighbours in the list of commands in flight, see [`FlightLink`].
    pub flight_link: Link,
    /// The split request whose piece this is.
    pub parent: SlotId,
    /// Neighbours in a bucket of the merge index by end, see [`EndLink`].
    pub end_link: Link,
    /// Neighbours in a bucket of the merge index by start, see [`StartLink`].
    pub start_link: Link,
    /// Links of a sorting elevator's tree: before, after, up.
    pub tree: [SlotId; 3],
    /// Counts what leaves the elevator, round and round: refused requests go again in this order.
    pub departure: u32,
    /// Segments the request will need.
    pub segments: u16,
    /// Bios linked.
    pub bios: u16,
    /// The volume (the file).
    pub volume: VolumeId,
    /// What.
    pub op: Op,
    /// The flags that all its bios share.
    pub flags: BioFlags,
    /// Before whom it goes; the same for all its bios.
    pub ioprio: Ioprio,
    /// Where it is.
    pub state: RequestState,
    /// Facts about it, see the associated constants.
    pub marks: u8,
    /// Tags that came with it on another shard's lease.
    pub tags: u16,
    /// Tags that were asked for a split request and not granted yet.
    pub owed: u16,
    /// Bytes it counts for against `hw_inflight_kb`.
    pub charged: u32,
    /// Pieces of a split request that are on their way.
    pub pieces: u32,
    /// A split request: the first error of its pieces.
    pub status: crate::error::Status,
    /// A sorting elevator's: when it goes first.
    pub deadline: Instant,
    /// When the command in flight was sent; what its time-out counts from.
    pub sent: Instant,
    /// The stage times: entered the plug, left it, got its tag, was sent.
    pub stamps: [Instant; 4],
}

impl Request {
    /// It is in the merge index.
    pub const INDEXED: u8 = 1;
    /// A merged request failed: its bios go again, one by one.
    pub const RETRY: u8 = 2;
    /// It passed its time-out; its bios are answered.
    pub const TIMED_OUT: u8 = 4;
    /// The device cannot zero: zeros are written as data, in steps.
    pub const ZERO_AS_DATA: u8 = 8;
    /// It came with tags of another shard's lease.
    pub const LEASED: u8 = 16;
    /// A device flush of the flush sequence: bypasses gate and elevator.
    pub const FLUSH: u8 = 32;
    /// The device refused it: it waits in the queue's requeue list, not in the elevator.
    pub const REQUEUED: u8 = 64;

    /// Starts a new use of the slot: every field is set, but for `generation`, which goes on, and what an elevator keeps.
    ///
    /// Field by field: a struct that is built aside and copied would be read back before its narrow stores have left the store
    /// buffer (measured: a quarter of `Shard::enter`). The pattern names every field, so a new one cannot be forgotten.
    #[inline(always)]
    pub(crate) fn begin(&mut self, start: RequestStart) {
        let Self {
            offset,
            len,
            done,
            bio_head,
            bio_tail,
            piece_offset,
            generation: _,
            queue_link,
            flight_link,
            parent,
            end_link,
            start_link,
            tree: _,
            departure: _,
            segments,
            bios,
            volume,
            op,
            flags,
            ioprio,
            state,
            marks,
            tags,
            owed,
            charged,
            pieces,
            status,
            deadline: _,
            sent: _,
            stamps,
        } = self;
        debug_assert!(
            *state == RequestState::Free,
            "a slot is used again only when its request has ended"
        );
        for link in [queue_link, flight_link, end_link, start_link] {
            debug_assert!(!link.is_linked(), "a request that has ended is in no list");
        }
        *offset = start.offset;
        *len = start.len;
        *done = 0;
        *bio_head = start.bio_head;
        *bio_tail = start.bio_tail;
        *piece_offset = start.piece_offset;
        *parent = start.parent;
        *segments = start.segments;
        *bios = start.bios;
        *volume = start.volume;
        *op = start.op;
        *flags = start.flags;
        *ioprio = start.ioprio;
        *state = start.state;
        *marks = start.marks;
        *tags = start.tags;
        *owed = 0;
        *charged = 0;
        *pieces = 0;
        *status = Ok(());
        *stamps = start.stamps;
    }

    /// The byte after the last.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.offset + self.len as u64
    }

    /// Whether `mark` is set.
    #[must_use]
    pub const fn is(&self, mark: u8) -> bool {
        self.marks & mark != 0
    }

    /// Whether somebody waits for it, see [`Op::is_sync`].
    #[must_use]
    pub const fn is_sync(&self) -> bool {
        self.op.is_sync(self.flags)
    }

    /// Whether it may be merged with others at all.
    #[must_use]
    pub const fn may_merge(&self) -> bool {
        self.op.has_data()
            && self.parent == NIL
            && self.marks & (Self::RETRY | Self::FLUSH) == 0
            && !self.flags.contains(BioFlags::NOMERGE)
            && self.done == 0
    }
}

impl Default for Request {
    fn default() -> Self {
        Self {
            offset: 0,
            len: 0,
            done: 0,
            bio_head: NIL,
            bio_tail: NIL,
            piece_offset: 0,
            generation: 0,
            queue_link: Link::UNLINKED,
            flight_link: Link::UNLINKED,
            parent: NIL,
            end_link: Link::UNLINKED,
            start_link: Link::UNLINKED,
            tree: [NIL; 3],
            departure: 0,
            segments: 0,
            bios: 0,
            volume: VolumeId(0),
            op: Op::Read,
            flags: BioFlags::NONE,
            ioprio: Ioprio::default(),
            state: RequestState::Free,
            marks: 0,
            tags: 0,
            owed: 0,
            charged: 0,
            pieces: 0,
            status: Ok(()),
            deadline: Instant(0),
            sent: Instant(0),
            stamps: [Instant(0); 4],
        }
    }
}

/// What a request begins with; everything else of it is zero or empty.
pub(crate) struct RequestStart {
    pub offset: u64,
    pub len: u32,
    pub bio_head: u32,
    pub bio_tail: u32,
    pub piece_offset: u32,
    pub parent: SlotId,
    pub segments: u16,
    pub bios: u16,
    pub volume: VolumeId,
    pub op: Op,
    pub flags: BioFlags,
    pub ioprio: Ioprio,
    pub state: RequestState,
    pub marks: u8,
    pub tags: u16,
    pub stamps: [Instant; 4],
}

impl RequestStart {
    /// A plugged request of one bio, which came at `now` and is in slot `slot`.
    #[inline(always)]
    pub fn of_bio(now: Instant, bio: &Bio, slot: u32, segments: u16) -> Self {
        Self {
            offset: bio.offset,
            len: bio.len,
            bio_head: slot,
            bio_tail: slot,
            piece_offset: 0,
            parent: NIL,
            segments,
            bios: 1,
            volume: bio.id.volume,
            op: bio.op,
            flags: bio.flags,
            ioprio: bio.ioprio,
            state: RequestState::Plugged,
            marks: 0,
            tags: 0,
            stamps: [now; 4],
        }
    }

    /// A device flush of `volume`, which is sent next.
    pub fn of_flush(now: Instant, volume: VolumeId) -> Self {
        Self {
            offset: 0,
            len: 0,
            bio_head: NIL,
            bio_tail: NIL,
            piece_offset: 0,
            parent: NIL,
            segments: 0,
            bios: 0,
            volume,
            op: Op::Flush,
            flags: BioFlags::NONE,
            ioprio: Ioprio::default(),
            state: RequestState::Queued,
            marks: Request::FLUSH,
            tags: 0,
            stamps: [now; 4],
        }
    }

    /// The next piece of the split request `from` in slot `parent`: at most `limit` bytes after what is `done` of it.
    pub fn of_piece(from: &Request, parent: SlotId, limit: u32, limits: &Limits) -> Self {
        debug_assert!(from.done < from.len, "a piece has bytes");
        let len = limit.min(from.len - from.done);
        Self {
            offset: from.offset + u64::from(from.done),
            len,
            bio_head: from.bio_head,
            bio_tail: from.bio_tail,
            piece_offset: from.done,
            parent,
            segments: limits.segments(len),
            bios: 1,
            volume: from.volume,
            op: from.op,
            flags: from.flags.without(BioFlags::HOLE_OK),
            ioprio: from.ioprio,
            state: RequestState::Queued,
            marks: from.marks & Request::LEASED,
            tags: 0,
            stamps: from.stamps,
        }
    }
}

/// The kind of lists that use [`Request::queue_link`]: those of an elevator, and the requeue list.
#[derive(Debug)]
pub enum QueueLink {}

/// The kind of lists that use [`Request::flight_link`]: commands in flight.
#[derive(Debug)]
pub enum FlightLink {}

/// The kind of lists that use [`Request::end_link`]: buckets of the merge index by end.
#[derive(Debug)]
pub enum EndLink {}

/// The kind of lists that use [`Request::start_link`]: buckets of the merge index by start.
#[derive(Debug)]
pub enum StartLink {}

/// Gives requests a link for one kind of list.
macro_rules! linked {
    ($kind:ty, $field:ident) => {
        impl Linked<$kind> for Request {
            #[inline]
            fn link(&self) -> &Link {
                &self.$field
            }

            #[inline]
            fn link_mut(&mut self) -> &mut Link {
                &mut self.$field
            }
        }
    };
}

linked!(QueueLink, queue_link);
linked!(FlightLink, flight_link);
linked!(EndLink, end_link);
linked!(StartLink, start_link);

impl Chained for BioSlot {
    #[inline]
    fn next(&mut self) -> &mut u32 {
        &mut self.next
    }
}

/// Where a bio came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BioOrigin {
    /// A frontend of this shard.
    #[default]
    Frontend,
    /// Another shard, which calls it `cookie` and spends `tags` of its lease on it.
    Shard {
        /// Which shard.
        shard: crate::bio::ShardId,
        /// Its name there.
        cookie: u32,
    },
    /// The cache of this shard, for the operation of that name (or none).
    Cache {
        /// Its name there.
        cookie: u32,
    },
}

/// A bio in flight.
#[derive(Clone, Debug, Default)]
pub struct BioSlot {
    /// What was asked.
    pub bio: Bio,
    /// Next bio of its request, or of a list of flush waiters.
    pub next: u32,
    /// Who asked.
    pub origin: BioOrigin,
    /// Tags of the lease that it spends (a bio that was sent to another shard, or came from one).
    pub tags: u16,
    /// It was answered by time-out; only its buffer is still out.
    pub answered: bool,
    /// What it waited for so far.
    pub wait_times: WaitTimes,
}

// One line of the CPU's cache.
const _: () = assert!(size_of::<BioSlot>() <= 64);
