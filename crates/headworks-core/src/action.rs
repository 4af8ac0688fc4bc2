//! What a shard wants done: one ordered list, executed completely before the next input.
//!
//! Actions describe; the executor holds bytes, devices, sockets and clocks. The bytes that a `Submit` names stay as they are
//! until its completion was put in; the buffer of a bio may be reused after its `Reply` says `Final` or `Released`.

use crate::bio::{BioFlags, BioId, DeviceId, Op, ShardId, VolumeId};
use crate::error::Status;
use crate::input::{Message, ReplyStage, RequestId};
use crate::time::Instant;
use crate::wait_times::WaitTimes;

/// A piece of a bio's buffer, in the order in which it lies on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Whose buffer.
    pub bio: BioId,
    /// First byte within it.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
}

/// One command for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submit {
    /// To be given back in the completion.
    pub id: RequestId,
    /// Which device.
    pub device: DeviceId,
    /// Which of its files.
    pub volume: VolumeId,
    /// What to do. `Write` without segments writes zeros.
    pub op: Op,
    /// `FUA`, `NO_UNMAP`, `HOLE_OK` matter here.
    pub flags: BioFlags,
    /// First byte on the volume.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// Where its segments start in [`Actions::segments`].
    pub first_segment: u32,
    /// How many there are.
    pub segments: u16,
}

/// Something an operator should know, said once; never per I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A device flush failed: flushes and FUA of the volume fail until acknowledged.
    Suspect {
        /// Which volume.
        volume: VolumeId,
        /// How the flush failed.
        status: Status,
    },
    /// A command passed its time-out; its tag and buffer stay until the device answers.
    TimedOut {
        /// Which volume.
        volume: VolumeId,
        /// What it was.
        op: Op,
        /// Where.
        offset: u64,
        /// Bytes.
        len: u32,
    },
    /// A device answered for a command that is not in flight.
    UnknownCompletion {
        /// Which device.
        device: DeviceId,
        /// The name it gave.
        id: RequestId,
    },
    /// The answer to [`crate::Control::Set`].
    Set {
        /// The token that came with it.
        token: u32,
        /// `Ok` when every request that comes now meets the new value; `Invalid`: the value is none that it takes;
        /// `Unsupported`: it is a fact of the device; `Busy`: another switch is under way, or commands that were given up hold
        /// tags that would be replaced, or what the rest waits for.
        status: Status,
    },
    /// A read inside the volume ended early: the file is shorter than it was.
    ShortRead {
        /// Which volume.
        volume: VolumeId,
        /// Where the data ended.
        offset: u64,
    },
}

/// The way of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CopyDirection {
    /// From the bio's buffer: a write.
    ToPool = 0,
    /// Into the bio's buffer: a read.
    ToBuffer = 1,
}

/// One thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Give a command to a device.
    Submit(Submit),
    /// Move bytes between a bio's buffer and the pool.
    Copy {
        /// Whose buffer.
        bio: BioId,
        /// First byte within the buffer.
        offset: u32,
        /// Bytes.
        len: u32,
        /// First byte within the pool.
        at: u64,
        /// Which way.
        direction: CopyDirection,
    },
    /// Zero bytes of the pool.
    Zero {
        /// First byte within the pool.
        at: u64,
        /// Bytes.
        len: u32,
    },
    /// Move bytes within the pool; the two ranges never overlap.
    Move {
        /// First byte that is read.
        from: u64,
        /// First byte that is written.
        to: u64,
        /// Bytes.
        len: u32,
    },
    /// Tell in the buffer of a bio that asks for block status: its first `len` bytes are data, and that is all that is told.
    Data {
        /// Whose buffer.
        bio: BioId,
        /// Bytes.
        len: u32,
    },
    /// Answer a bio, or free its buffer.
    Reply {
        /// Which bio.
        id: BioId,
        /// How it went.
        status: Status,
        /// The read data are all zeros and are not in the buffer.
        hole: bool,
        /// What this says about the buffer.
        stage: ReplyStage,
        /// What it waited for.
        wait_times: WaitTimes,
    },
    /// Tell another shard.
    Send {
        /// Who.
        to: ShardId,
        /// What.
        message: Message,
    },
    /// Put in [`crate::Input::Timer`] at this time; replaces the time asked for before.
    Timer {
        /// When.
        at: Instant,
    },
    /// Tell the operator.
    Notice(Notice),
}

// A list of hundreds is written and read for each turn.
const _: () = assert!(size_of::<Action>() <= 48);

/// The list of a batch and the segments its submits point at.
#[derive(Debug, Default)]
pub struct Actions {
    /// In order.
    pub list: Vec<Action>,
    /// Shared by all submits of the list.
    pub segments: Vec<Segment>,
}

impl Actions {
    /// An empty list with room for `actions` and `segments` before anything is allocated.
    #[must_use]
    pub fn with_capacity(actions: usize, segments: usize) -> Self {
        Self { list: Vec::with_capacity(actions), segments: Vec::with_capacity(segments) }
    }

    /// Makes room for so many before anything is allocated again.
    pub fn make_room(&mut self, actions: usize, segments: usize) {
        self.list.reserve_exact(actions.saturating_sub(self.list.len()));
        self.segments.reserve_exact(segments.saturating_sub(self.segments.len()));
    }

    /// The segments of one of the list's submits.
    #[must_use]
    pub fn segments_of(&self, submit: &Submit) -> &[Segment] {
        let first = submit.first_segment as usize;
        &self.segments[first..first + usize::from(submit.segments)]
    }

    /// Forgets everything, keeps the room.
    pub fn clear(&mut self) {
        self.list.clear();
        self.segments.clear();
    }
}
