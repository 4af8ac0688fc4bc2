//! Requests and bios: the slots that a shard's pools hold.
//!
//! A request is the unit that a queue sends to a device. It consists of one bio, of several adjacent ones, or of a piece of one.
//! The bios of a request are linked in the order of their offsets. A piece of a split bio is a request of its own with a
//! `parent`; it never merges, because its neighbours are its siblings, which the limits cut apart on purpose.

use crate::bio::{Bio, BioFlags, ExportId, Ioprio, Op, VolumeId};
use crate::error::Status;
use crate::list::{Chained, Link, Linked};
use crate::slab::{NIL, Slab};
use crate::time::Instant;
use crate::wait_times::WaitTimes;

/// The request pool of a shard.
pub type Slots = Slab<Request>;
/// The index of a request in its shard's pool.
pub type SlotId = u32;
/// The bio pool of a shard.
pub type Bios = Slab<BioSlot>;

/// The state of a request. It only advances, but for `Queued -> InFlight -> Queued` when the device refuses.
///
/// ```text
///  Free -> Plugged -> Waiting (for a tag) -> Queued (in the elevator) -> InFlight -> Free
///             |  \________________________________^                        |  ^
///             |        a tag was free             `------ refused --------'  | next step, next bio of a retry
///             `-> Split (its pieces are requests of their own) -> Free       `--'
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestState {
    /// The slot holds no request.
    #[default]
    Free,
    /// Held back in the plug.
    Plugged,
    /// Waits at the gate for a tag.
    Waiting,
    /// Has a tag; waits in the elevator or in the requeue list.
    Queued,
    /// Its command is in the device.
    InFlight,
    /// Holds a bio over the limits and waits for its pieces.
    Split,
}

/// The bios of a request, which are linked in the order of their offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BioChain {
    /// Slot of the first bio, by offset; `NIL` without bios.
    pub head: u32,
    /// Slot of the last bio, by offset.
    pub tail: u32,
    /// Number of bios in the chain.
    pub count: u16,
    /// Number of segments that a command for all of them needs.
    pub segments: u16,
}

impl BioChain {
    /// The chain without a bio.
    pub const EMPTY: Self = Self { head: NIL, tail: NIL, count: 0, segments: 0 };

    /// The chain of one bio.
    #[inline(always)]
    #[must_use]
    pub const fn of(slot: u32, segments: u16) -> Self {
        Self { head: slot, tail: slot, count: 1, segments }
    }
}

/// The places of a request in the lists and in the tree of its queue.
#[derive(Clone, Copy, Debug)]
pub struct RequestLinks {
    /// Neighbours in a list of the elevator or in the requeue list, see [`QueueLink`].
    pub queue: Link,
    /// Neighbours in the list of commands in flight, see [`FlightLink`].
    pub flight: Link,
    /// Neighbours in a bucket of the merge index by end, see [`EndLink`].
    pub end: Link,
    /// Neighbours in a bucket of the merge index by start, see [`StartLink`].
    pub start: Link,
    /// Links in a sorting elevator's tree: left, right, parent; and its rank there.
    pub tree: [u32; 4],
}

impl RequestLinks {
    /// The links of a request in no list.
    pub const UNLINKED: Self = Self {
        queue: Link::UNLINKED,
        flight: Link::UNLINKED,
        end: Link::UNLINKED,
        start: Link::UNLINKED,
        tree: [NIL; 4],
    };

    /// Returns true while the request is in a list.
    #[must_use]
    pub const fn any(&self) -> bool {
        self.queue.is_linked()
            || self.flight.is_linked()
            || self.end.is_linked()
            || self.start.is_linked()
    }
}

/// What is noted of a request when it leaves the elevator. All but the departure is of an elevator that owns shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatched {
    /// The elevator's queue that the request waits in or was dispatched from; `NIL` of one that was removed or merged away before.
    pub flow: u32,
    /// Length when it was dispatched, in bytes; it may grow and shrink while it is retried.
    pub bytes: u32,
    /// What the device is expected to take for it, in nanoseconds.
    pub estimate_ns: u32,
    /// Sequence number of leaving the elevator, which wraps; refused requests are sent again in this order.
    pub departure: u32,
}

impl Dispatched {
    /// What is noted of a new request: nothing.
    pub const NONE: Self = Self { flow: NIL, bytes: 0, estimate_ns: 0, departure: 0 };
}

/// The tags of a request beside the one that it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestTags {
    /// Tags of another shard's lease that it came with.
    pub leased: u16,
    /// Tags that were requested for it and not granted yet.
    pub owed: u16,
}

/// What a request counts for against the limits on what the device has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charge {
    /// Bytes that count against `hw_inflight_kb`.
    pub bytes: u32,
    /// They count as bulk beside a latency target; false while nothing is charged.
    pub bulk: bool,
}

/// The pieces of a split request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// Those that have not ended.
    pub pieces: u32,
    /// The first error of those that have.
    pub status: Status,
}

impl Split {
    /// A request without pieces.
    pub const NONE: Self = Self { pieces: 0, status: Ok(()) };
}

/// One request to a device.
#[derive(Clone, Debug)]
pub struct Request {
    /// First byte on the volume, in bytes.
    pub offset: u64,
    /// Length in bytes; 0 for a flush.
    pub len: u32,
    /// Bytes that the device has finished or that went into pieces; the next command or piece starts here.
    pub done: u32,
    /// Its bios, linked by offset.
    pub bios: BioChain,
    /// Offset of the data in the buffer of the only bio, for a piece; otherwise 0.
    pub piece_offset: u32,
    /// Number of commands sent from this slot, over all its uses; it wraps.
    pub generation: u32,
    /// Its places in the lists of its queue.
    pub links: RequestLinks,
    /// The split request that this is a piece of, or `NIL`.
    pub parent: SlotId,
    /// What the elevator notes of it.
    pub dispatched: Dispatched,
    /// The connection of its first bio.
    pub connection: u32,
    /// The export whose share all its bios use.
    pub export: ExportId,
    /// The volume of all its bios.
    pub volume: VolumeId,
    /// The operation of all its bios.
    pub op: Op,
    /// The flags that all its bios share.
    pub flags: BioFlags,
    /// I/O priority, the same for all its bios.
    pub ioprio: Ioprio,
    /// Its place on the path.
    pub state: RequestState,
    /// A set of the marks that the associated constants define.
    pub marks: u16,
    /// The tags that it came with, or waits for.
    pub tags: RequestTags,
    /// What it counts for against `hw_inflight_kb`.
    pub charge: Charge,
    /// Its pieces, of a split request.
    pub split: Split,
    /// Time from which a sorting elevator serves it first.
    pub deadline: Instant,
    /// Time when its last command was sent; the time-out counts from here.
    pub sent: Instant,
    /// Time from which its wait for the device is limited: when it arrived, or when the device finished a part of it last.
    pub waits_since: Instant,
    /// Times when it entered the plug, left it, got its tag, and left the elevator.
    pub stamps: [Instant; 4],
}

impl Request {
    /// Mark: it is in the merge index.
    pub const INDEXED: u16 = 1;
    /// Mark: it failed as a merged request and sends its bios again one by one.
    pub const RETRY: u16 = 2;
    /// Mark: it passed its time-out, and its bios are answered.
    pub const TIMED_OUT: u16 = 4;
    /// Mark: the device cannot zero; zeros are written as data, in steps.
    pub const ZERO_AS_DATA: u16 = 8;
    /// Mark: it came with tags of another shard's lease.
    pub const LEASED: u16 = 16;
    /// Mark: it is a device flush, which bypasses gate and elevator.
    pub const FLUSH: u16 = 32;
    /// Mark: the device refused it, and it waits in the requeue list.
    pub const REQUEUED: u16 = 64;
    /// Mark: it begins where the request before it of its connection ended, as far as known.
    pub const SEQUENTIAL: u16 = 128;
    /// Mark: its export counts it among the rivals for a sorting elevator's window.
    pub const COUNTED: u16 = 256;
    /// Mark: it goes before all that a sorting elevator has sorted.
    pub const EXPRESS: u16 = 512;
    /// Mark: it is a piece that follows one of its bio that has ended.
    pub const CONTINUES: u16 = 1024;

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
            bios,
            piece_offset,
            generation: _,
            links,
            parent,
            dispatched: _,
            connection,
            export,
            volume,
            op,
            flags,
            ioprio,
            state,
            marks,
            tags,
            charge,
            split,
            deadline: _,
            sent: _,
            waits_since,
            stamps,
        } = self;
        debug_assert!(
            *state == RequestState::Free,
            "a slot is used again only when its request has ended"
        );
        debug_assert!(!links.any(), "a request that has ended is in no list");
        *offset = start.offset;
        *len = start.len;
        *done = 0;
        *bios = start.bios;
        *piece_offset = start.piece_offset;
        *parent = start.parent;
        *connection = start.connection;
        *export = start.export;
        *volume = start.volume;
        *op = start.op;
        *flags = start.flags;
        *ioprio = start.ioprio;
        *state = start.state;
        *marks = start.marks;
        *tags = RequestTags { leased: start.tags, owed: 0 };
        charge.bytes = 0;
        *split = Split::NONE;
        *waits_since = start.waits_since;
        *stamps = start.stamps;
    }

    /// Returns the offset after the last byte.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.offset + self.len as u64
    }

    /// Returns true when `mark` is set.
    #[must_use]
    pub const fn is(&self, mark: u16) -> bool {
        self.marks & mark != 0
    }

    /// Returns true when a caller waits for it, see [`Op::is_sync`].
    #[must_use]
    pub const fn is_sync(&self) -> bool {
        self.op.is_sync(self.flags)
    }

    /// Returns true when it may be merged with other requests at all.
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
            bios: BioChain::EMPTY,
            piece_offset: 0,
            generation: 0,
            links: RequestLinks::UNLINKED,
            parent: NIL,
            dispatched: Dispatched::NONE,
            connection: 0,
            export: ExportId(0),
            volume: VolumeId(0),
            op: Op::Read,
            flags: BioFlags::NONE,
            ioprio: Ioprio::default(),
            state: RequestState::Free,
            marks: 0,
            tags: RequestTags::default(),
            charge: Charge::default(),
            split: Split::NONE,
            deadline: Instant(0),
            sent: Instant(0),
            waits_since: Instant(0),
            stamps: [Instant(0); 4],
        }
    }
}

/// The fields that a request begins with; everything else of it is zero or empty.
pub(crate) struct RequestStart {
    /// See [`Request::offset`] for the unit.
    pub offset: u64,
    /// See [`Request::len`] for the unit.
    pub len: u32,
    /// Its bios, linked by offset.
    pub bios: BioChain,
    /// Offset of a piece in its bio's buffer.
    pub piece_offset: u32,
    /// The split request of a piece, or `NIL`.
    pub parent: SlotId,
    /// The connection of its bio.
    pub connection: u32,
    /// The export of its bios.
    pub export: ExportId,
    /// The volume of its bios.
    pub volume: VolumeId,
    /// The operation of its bios.
    pub op: Op,
    /// The flags of its bios.
    pub flags: BioFlags,
    /// The priority of its bios.
    pub ioprio: Ioprio,
    /// The first state of the request.
    pub state: RequestState,
    /// The marks that it starts with.
    pub marks: u16,
    /// Tags of another shard's lease that it comes with.
    pub tags: u16,
    /// The time from which its wait for the device is limited.
    pub waits_since: Instant,
    /// The stage times so far.
    pub stamps: [Instant; 4],
}

impl RequestStart {
    /// Describes a plugged request of one bio, which arrived at `now` and is in slot `slot`.
    #[inline(always)]
    pub fn of_bio(now: Instant, bio: &Bio, slot: u32, segments: u16) -> Self {
        Self {
            offset: bio.offset,
            len: bio.len,
            bios: BioChain::of(slot, segments),
            piece_offset: 0,
            parent: NIL,
            connection: bio.id.connection,
            export: bio.id.export,
            volume: bio.id.volume,
            op: bio.op,
            flags: bio.flags,
            ioprio: bio.ioprio,
            state: RequestState::Plugged,
            marks: 0,
            tags: 0,
            waits_since: now,
            stamps: [now; 4],
        }
    }

    /// Describes a device flush of `volume`, which is sent next.
    pub fn of_flush(now: Instant, volume: VolumeId) -> Self {
        Self {
            offset: 0,
            len: 0,
            bios: BioChain::EMPTY,
            piece_offset: 0,
            parent: NIL,
            connection: 0,
            export: ExportId(0),
            volume,
            op: Op::Flush,
            flags: BioFlags::NONE,
            ioprio: Ioprio::default(),
            state: RequestState::Queued,
            marks: Request::FLUSH,
            tags: 0,
            waits_since: now,
            stamps: [now; 4],
        }
    }

    /// Describes the next piece of the split request `from` in slot `parent`: `len` bytes after what is `done` of it.
    pub fn of_piece(from: &Request, parent: SlotId, len: u32, segments: u16) -> Self {
        debug_assert!(len > 0 && from.done + len <= from.len, "pieces lie within their bio");
        Self {
            offset: from.offset + u64::from(from.done),
            len,
            bios: BioChain { segments, count: 1, ..from.bios },
            piece_offset: from.done,
            parent,
            connection: from.connection,
            export: from.export,
            volume: from.volume,
            op: from.op,
            flags: from.flags.without(BioFlags::HOLE_OK),
            ioprio: from.ioprio,
            state: RequestState::Queued,
            marks: from.marks & Request::LEASED
                | if from.done > 0 {
                    Request::SEQUENTIAL
                } else {
                    from.marks & Request::SEQUENTIAL
                },
            tags: 0,
            waits_since: from.waits_since,
            stamps: from.stamps,
        }
    }
}

/// The kind of lists that use [`RequestLinks::queue`]: those of an elevator, and the requeue list.
#[derive(Debug)]
pub enum QueueLink {}

/// The kind of lists that use [`RequestLinks::flight`]: commands in flight.
#[derive(Debug)]
pub enum FlightLink {}

/// The kind of lists that use [`RequestLinks::end`]: buckets of the merge index by end.
#[derive(Debug)]
pub enum EndLink {}

/// The kind of lists that use [`RequestLinks::start`]: buckets of the merge index by start.
#[derive(Debug)]
pub enum StartLink {}

/// Gives requests a link for one kind of list.
macro_rules! linked {
    ($kind:ty, $field:ident) => {
        impl Linked<$kind> for Request {
            #[inline]
            fn link(&self) -> &Link {
                &self.links.$field
            }

            #[inline]
            fn link_mut(&mut self) -> &mut Link {
                &mut self.links.$field
            }
        }
    };
}

linked!(QueueLink, queue);
linked!(FlightLink, flight);
linked!(EndLink, end);
linked!(StartLink, start);

impl Chained for BioSlot {
    #[inline]
    fn next(&mut self) -> &mut u32 {
        &mut self.next
    }
}

/// The origin of a bio, which is sent its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BioOrigin {
    /// A client of this shard.
    #[default]
    Frontend,
    /// Another shard, which spends tags of its lease on the bio.
    Shard {
        /// The shard that sent it.
        shard: crate::bio::ShardId,
        /// The slot of the bio on that shard.
        cookie: u32,
    },
    /// The cache of this shard.
    Cache {
        /// The slot of the cache operation that waits for it, or `NIL`.
        cookie: u32,
    },
}

/// A bio that is not answered yet.
#[derive(Clone, Debug, Default)]
pub struct BioSlot {
    /// The bio as it was submitted.
    pub bio: Bio,
    /// Next bio of its request, or of a queue of bios that wait.
    pub next: u32,
    /// The party that is sent the answer.
    pub origin: BioOrigin,
    /// Tags of a lease that it spends, for a bio that was sent to another shard or came from one.
    pub tags: u16,
    /// It was answered at its time-out; the device still has its buffer.
    pub answered: bool,
    /// The time that it waited so far, by kind.
    pub wait_times: WaitTimes,
}

// One cache line.
const _: () = assert!(size_of::<BioSlot>() <= 64);
