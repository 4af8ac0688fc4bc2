//! Everything that can happen to a shard, as plain data.
//!
//! Nothing else enters: a log of inputs (with the `now` of each batch) replays to the same actions, in debug and release.
//! So an input holds no pointer, no usize and no float, and names things by ids that mean the same in every run.

use crate::bio::{Bio, BioId, DeviceId, ExportId, ShardId, VolumeId};
use crate::error::Status;
use crate::options::Tunable;
use crate::wait_times::WaitTimes;
use crate::writeback::DirtyTunable;

/// Names a command in flight: the request's slot and how often the slot was used before.
///
/// Both are decided by policy alone, so they are equal in every replay. A completion for a name that is not in flight is a
/// device's lie and is reported, never believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    /// The request's slot on its device's shard.
    pub slot: u32,
    /// Counts the commands sent from that slot.
    pub generation: u32,
}

/// What a device says of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Which command.
    pub id: RequestId,
    /// Bytes moved, from the command's start; less than asked is a short transfer, which the queue continues.
    pub transferred: u32,
    /// How it went; `Busy` means refused and not started.
    pub status: Status,
    /// The read range is all zeros and the buffer was not touched (allowed only where the command said `HOLE_OK`).
    pub hole: bool,
}

/// What shards say to each other. Delivered in order between any two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// To the owner of the volume's device: do this. It spends `tags` of the sender's lease until `Done`.
    Bio {
        /// The bio, checked by its volume.
        bio: Bio,
        /// The sender's own name for it, given back in `Done`.
        cookie: u32,
        /// How many leased tags it spends.
        tags: u16,
    },
    /// To the bio's shard: what became of it.
    Done {
        /// The name from `Bio`.
        cookie: u32,
        /// Which bio.
        id: BioId,
        /// How it went.
        status: Status,
        /// See [`Completion::hole`].
        hole: bool,
        /// What this says about the buffer.
        stage: ReplyStage,
        /// What it waited for there.
        wait_times: WaitTimes,
    },
    /// To the owner: those who wait here need `want` tags of `device`, the first of them no more.
    TagWant {
        /// Whose tags.
        device: DeviceId,
        /// How many, at least 1.
        want: u16,
        /// Bytes that they are for.
        bytes: u32,
        /// The weights of the exports that wait there, together.
        weight: u16,
    },
    /// To a shard: `count` tags of `device` are yours until returned.
    TagGrant {
        /// Whose tags.
        device: DeviceId,
        /// How many.
        count: u16,
    },
    /// To a shard: somebody waits; return what is unused now and the rest as it falls free.
    TagRevoke {
        /// Whose tags.
        device: DeviceId,
    },
    /// To every other shard: the queue of `device` works with these from now on. Comes before any tag that is granted by them.
    Limits {
        /// Whose.
        device: DeviceId,
        /// See [`crate::QueueOptions`].
        nr_requests: u32,
        /// See [`crate::QueueOptions`].
        max_sectors_kb: u32,
    },
    /// To every other shard: so volumes of `device` are cached from now on.
    Caching {
        /// Whose.
        device: DeviceId,
        /// See [`crate::QueueOptions`].
        read_ahead_kb: u32,
        /// See [`crate::QueueOptions`].
        max_folio_order: u8,
    },
    /// To the owner: `count` tags come back.
    TagReturn {
        /// Whose tags.
        device: DeviceId,
        /// How many.
        count: u16,
    },
}

/// Whether an answer is final for the bio's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ReplyStage {
    /// The answer, and the buffer is free.
    Final = 0,
    /// The answer came by time-out; the device may still use the buffer. `Released` follows.
    Early = 1,
    /// No answer (it was given before): the buffer is free.
    Released = 2,
}

/// What an operator may tell a shard while it runs.
///
/// `Set` is answered by [`crate::Notice::Set`] with the same token: at once, or when the queue has drained and switched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// The operator knows of the failed flush; the volume's flushes work again. Sent to the shard of its device.
    Acknowledge {
        /// Which volume.
        volume: VolumeId,
    },
    /// The file behind the volume has another size now. Sent to the volume's shard; beyond it requests fail.
    Resize {
        /// Which volume.
        volume: VolumeId,
        /// Bytes.
        size: u64,
    },
    /// A queue works with another value from now on. Sent to the shard that owns the device.
    Set {
        /// Whose queue.
        device: DeviceId,
        /// Which option.
        tunable: Tunable,
        /// Its value, in the unit of [`Tunable::get`].
        value: u64,
        /// Comes back in the answer.
        token: u32,
    },
    /// The shard's write-back works with another value from now on; answered by [`crate::Notice::Set`] at once.
    SetDirty {
        /// Which option.
        tunable: DirtyTunable,
        /// Its value for this shard, in the unit of [`DirtyTunable::get`].
        value: u64,
        /// Comes back in the answer.
        token: u32,
    },
    /// An export gets another share. Sent to every shard.
    Weight {
        /// Which export.
        export: ExportId,
        /// Its weight, 1..=10000.
        weight: u16,
    },
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// A frontend brings a bio to its volume's shard.
    Bio(Bio),
    /// A device of this shard answers.
    Complete {
        /// Which device.
        device: DeviceId,
        /// Its answer.
        completion: Completion,
    },
    /// The time last asked for with `Action::Timer` has come.
    Timer,
    /// Another shard speaks.
    Message {
        /// Who.
        from: ShardId,
        /// What.
        message: Message,
    },
    /// The operator speaks.
    Control(Control),
    /// A connection (or handle) is gone and will bring nothing more; what it has on its way is still answered.
    Close {
        /// Which.
        connection: u32,
    },
}
