//! Actions: the ordered output of a shard, executed completely before the next batch.
//!
//! Actions are descriptions; the executor holds bytes, devices, sockets and clocks. The bytes of a `Submit` must not change before
//! its completion is an input. The buffer of a bio may be reused after a `Reply` with stage `Final` or `Released`.

use crate::bio::{BioFlags, BioId, DeviceId, Op, ShardId, VolumeId};
use crate::dirty_entry::DirtyEntry;
use crate::error::Status;
use crate::input::{Message, ReplyStage, RequestId};
use crate::queue::DeviceState;
use crate::time::Instant;
use crate::wait_times::WaitTimes;

/// A piece of a bio's buffer; the segments of a command are in device order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// The bio that owns the buffer.
    pub bio: BioId,
    /// Offset within the buffer.
    pub offset: u32,
    /// Length of the segment in bytes.
    pub len: u32,
}

/// A range of the pool with data of a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameRange {
    /// Offset within the pool.
    pub at: u64,
    /// Length of the range in bytes.
    pub len: u32,
}

/// Most ranges of one [`Action::ReplyFrames`].
pub const REPLY_RANGES_MAX: usize = 64;
/// Most ranges of a batch.
const RANGES_MAX: usize = 4096;

/// One command for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submit {
    /// The id that the completion returns.
    pub id: RequestId,
    /// The device of the command.
    pub device: DeviceId,
    /// The volume, which selects a file of the device.
    pub volume: VolumeId,
    /// The operation; `Write` without segments writes zeros.
    pub op: Op,
    /// Flags, of which `FUA`, `NO_UNMAP` and `HOLE_OK` apply.
    pub flags: BioFlags,
    /// Offset of the first byte on the volume.
    pub offset: u64,
    /// Length of the command in bytes.
    pub len: u32,
    /// Index of its first segment in [`Actions::segments`].
    pub first_segment: u32,
    /// Number of its segments.
    pub segments: u16,
}

/// An event for the operator, reported once and never per I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A device flush failed: flushes and FUA writes of the volume fail until the failed data is discarded.
    Suspect {
        /// The volume concerned.
        volume: VolumeId,
        /// The error of the flush.
        status: Status,
    },
    /// A command timed out; its tag and buffer stay in use until the device answers.
    TimedOut {
        /// The volume concerned.
        volume: VolumeId,
        /// Operation of the command.
        op: Op,
        /// Offset on the volume.
        offset: u64,
        /// Length in bytes.
        len: u32,
    },
    /// A device completed a command that is not in flight.
    UnknownCompletion {
        /// The device of the command.
        device: DeviceId,
        /// The id that the device returned.
        id: RequestId,
    },
    /// A device does not answer any more, or answers again.
    DeviceState {
        /// The device concerned.
        device: DeviceId,
        /// Its state from now on.
        state: DeviceState,
    },
    /// The answer to [`crate::Control::Set`] and [`crate::Control::SetDirty`].
    Set {
        /// The token of the request.
        token: u32,
        /// `Ok`: the new value applies to every further request. `Invalid`: the value is not accepted. `Unsupported`: the value
        /// describes the device. `Busy`: another change is in progress, or timed-out commands hold tags that would be replaced
        /// or that the drain waits for.
        status: Status,
    },
    /// A read inside the volume ended early: the file is shorter than it was.
    ShortRead {
        /// The volume concerned.
        volume: VolumeId,
        /// The offset where the data ended.
        offset: u64,
    },
}

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CopyDirection {
    /// From the bio's buffer to the pool: a write.
    ToPool = 0,
    /// From the pool to the bio's buffer: a read.
    ToBuffer = 1,
}

/// One action of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Submits a command to a device.
    Submit(Submit),
    /// Copies bytes between a bio's buffer and the pool.
    Copy {
        /// The bio that owns the buffer.
        bio: BioId,
        /// Offset within the buffer.
        offset: u32,
        /// Length in bytes.
        len: u32,
        /// Offset within the pool.
        at: u64,
        /// Direction of the copy.
        direction: CopyDirection,
    },
    /// Zeroes bytes of the pool.
    Zero {
        /// Offset within the pool.
        at: u64,
        /// Length in bytes.
        len: u32,
    },
    /// Copies bytes within the pool; the two ranges never overlap.
    Move {
        /// Offset of the source in the pool.
        from: u64,
        /// Offset of the target in the pool.
        to: u64,
        /// Length in bytes.
        len: u32,
    },
    /// Names frames that the cache will use next, so that the driver can have their memory made before. Where
    /// [`crate::CacheOptions::backed`] asks for it, none is used before [`crate::Control::CacheMemory`] has answered.
    Prepare {
        /// Offset within the pool.
        at: u64,
        /// Length in bytes, a multiple of 4096.
        len: u32,
    },
    /// Releases frames that hold nothing: their memory may be given back. Their bytes do not matter any more.
    Release {
        /// Offset within the pool.
        at: u64,
        /// Length in bytes, a multiple of 4096.
        len: u32,
    },
    /// Sets the entries of a run of frames in the dirty table. See [`DirtyEntry`].
    SetDirty {
        /// The first frame.
        unit: u32,
        /// Number of frames.
        count: u32,
        /// The entry of the first frame; [`DirtyEntry::after`] gives the following ones.
        entry: DirtyEntry,
    },
    /// Writes a list of one extent into the buffer of a block-status bio: its first `len` bytes are data.
    Data {
        /// The bio that owns the buffer.
        bio: BioId,
        /// Length in bytes.
        len: u32,
    },
    /// Completes a bio, or releases its buffer.
    Reply {
        /// The id of the bio.
        id: BioId,
        /// Outcome of the bio.
        status: Status,
        /// Whether the data is all zeros and not in the buffer.
        hole: bool,
        /// What the reply means for the buffer.
        stage: ReplyStage,
        /// The wait times of the bio.
        wait_times: WaitTimes,
    },
    /// Completes a read without a buffer ([`BioFlags::NO_BUFFER`]): its data are ranges of the pool, in order. They are these
    /// bytes until a later action changes them.
    ReplyFrames {
        /// The id of the bio.
        id: BioId,
        /// Index of the first range in [`Actions::ranges`].
        first: u32,
        /// Number of ranges, at most [`REPLY_RANGES_MAX`].
        ranges: u16,
        /// The wait times of the bio.
        wait_times: WaitTimes,
    },
    /// Returns a read without a buffer whose data are not in the pool all at once, or would take too much of it: it can be
    /// submitted again with a buffer.
    NeedsBuffer {
        /// The id of the bio, which is not in the shard any more.
        id: BioId,
        /// What it waited for before it was returned.
        wait_times: WaitTimes,
    },
    /// Sends a message to another shard.
    Send {
        /// The receiving shard.
        to: ShardId,
        /// The message to be sent.
        message: Message,
    },
    /// Requests [`crate::Input::Timer`] at this time; replaces the request before.
    Timer {
        /// The time of the input.
        at: Instant,
    },
    /// Reports an event to the operator.
    Notice(Notice),
}

// Hundreds of actions are written and read in each turn.
const _: () = assert!(size_of::<Action>() <= 48);

/// The actions of a batch, the segments of its commands, and the ranges of its replies from frames.
#[derive(Debug, Default)]
pub struct Actions {
    /// The actions, in order of execution.
    pub list: Vec<Action>,
    /// The segments of all commands of the list.
    pub segments: Vec<Segment>,
    /// The ranges of all replies from frames.
    pub ranges: Vec<FrameRange>,
}

impl Actions {
    /// Creates an empty list with capacity for `actions` and `segments`.
    #[must_use]
    pub fn with_capacity(actions: usize, segments: usize) -> Self {
        Self {
            list: Vec::with_capacity(actions),
            segments: Vec::with_capacity(segments),
            ranges: Vec::new(),
        }
    }

    /// Allocates the ranges of a shard with a cache.
    pub(crate) fn make_room_for_ranges(&mut self) {
        self.ranges.reserve_exact(RANGES_MAX);
    }

    /// Raises the capacity to at least `actions` and `segments`.
    pub fn make_room(&mut self, actions: usize, segments: usize) {
        self.list.reserve_exact(actions.saturating_sub(self.list.len()));
        self.segments.reserve_exact(segments.saturating_sub(self.segments.len()));
    }

    /// The segments of a command of this list.
    #[inline]
    #[must_use]
    pub fn segments_of(&self, submit: &Submit) -> &[Segment] {
        let first = submit.first_segment as usize;
        &self.segments[first..first + usize::from(submit.segments)]
    }

    /// The ranges of a reply from frames.
    #[must_use]
    pub fn ranges_of(&self, first: u32, ranges: u16) -> &[FrameRange] {
        let first = first as usize;
        &self.ranges[first..first + usize::from(ranges)]
    }

    /// Appends a range to those of the reply that begins with range `first`; joins ranges that are adjacent in the pool. Returns
    /// false if the reply or the batch has as many as it may.
    pub(crate) fn push_range(&mut self, first: usize, at: u64, len: u32) -> bool {
        assert!(first <= self.ranges.len(), "a reply's ranges are the last ones");
        if self.ranges.len() > first
            && let Some(last) = self.ranges.last_mut()
            && last.at + u64::from(last.len) == at
        {
            last.len += len;
            return true;
        }
        if self.ranges.len() - first == REPLY_RANGES_MAX || self.ranges.len() == RANGES_MAX {
            return false;
        }
        self.ranges.push(FrameRange { at, len });
        true
    }

    /// Appends [`Action::SetDirty`]; continues the last action of the list if that sets the entries of the frames before.
    pub(crate) fn set_dirty(&mut self, unit: u32, count: u32, entry: DirtyEntry) {
        assert!(count > 0, "a run has frames");
        if let Some(Action::SetDirty { unit: first, count: frames, entry: before }) =
            self.list.last_mut()
            && *first + *frames == unit
            && before.after((*frames).into()) == entry
        {
            *frames += count;
            return;
        }
        self.list.push(Action::SetDirty { unit, count, entry });
    }

    /// Clears the list and keeps its capacity.
    pub fn clear(&mut self) {
        self.list.clear();
        self.segments.clear();
        self.ranges.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_adjacent_frames_are_one_action() {
        let mut actions = Actions::default();
        let entry = |block| DirtyEntry::new(VolumeId(1), block);
        actions.set_dirty(8, 2, entry(40));
        actions.set_dirty(10, 1, entry(42));
        actions.set_dirty(11, 1, entry(44));
        actions.set_dirty(12, 1, DirtyEntry::CLEAN);
        actions.set_dirty(13, 3, DirtyEntry::CLEAN);
        let set = |unit, count, entry| Action::SetDirty { unit, count, entry };
        let want = [set(8, 3, entry(40)), set(11, 1, entry(44)), set(12, 4, DirtyEntry::CLEAN)];
        assert_eq!(actions.list, want);
    }
}
