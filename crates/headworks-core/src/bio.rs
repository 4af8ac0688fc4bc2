//! A bio: one user's wish, as the path carries it from a frontend down to a queue.
//!
//! A bio names bytes, it does not hold them: the mechanism keeps a buffer per [`BioId`] and the path speaks of
//! (bio, offset in its buffer, length). Offsets and lengths are in bytes everywhere; sectors of 512 bytes exist only in
//! statistics, where users expect them.

/// A disk as users see it. Two exports of one file are one volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeId(pub u16);

/// What has one queue: a disk, a filesystem with its images, a memory device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u16);

/// A single-owner world: one reactor thread, one driver thread, or one of the simulator's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

/// Who a bio is. Unique while it is in flight; chosen by the frontend, opaque here, so that a log of inputs replays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BioId {
    /// The frontend's connection (or handle); also who the bio is accounted to.
    pub connection: u32,
    /// The volume it is for.
    pub volume: VolumeId,
    /// Counts up within the connection.
    pub sequence: u64,
}

/// What is asked for. The discriminants are stable: they are recorded and hashed, and index statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// Device to buffer.
    #[default]
    Read = 0,
    /// Buffer to device.
    Write = 1,
    /// All writes acknowledged before this was submitted become durable. No range.
    Flush = 2,
    /// The range's content is no longer needed; reads may return anything. Advisory.
    Discard = 3,
    /// The range reads as zeros afterwards.
    WriteZeroes = 4,
}

impl Op {
    /// How many operations there are; statistics have one row each.
    pub const COUNT: usize = 5;
    /// Every operation, in the order of their codes.
    pub const ALL: [Op; Op::COUNT] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];

    /// Whether the operation changes what later reads see.
    #[must_use]
    pub const fn is_write(self) -> bool {
        matches!(self, Op::Write | Op::Discard | Op::WriteZeroes)
    }

    /// Whether the operation moves bytes between a buffer and the device.
    #[must_use]
    pub const fn has_data(self) -> bool {
        matches!(self, Op::Read | Op::Write)
    }

    /// The word users know it by.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Discard => "discard",
            Op::WriteZeroes => "write_zeroes",
        }
    }
}

/// A set of wishes beside the operation. The bits are stable: they are recorded and hashed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BioFlags(pub u8);

impl BioFlags {
    /// None of them.
    pub const NONE: Self = Self(0);
    /// Durable before it is acknowledged (writes, discards, write-zeroes).
    pub const FUA: Self = Self(1);
    /// Write-zeroes: keep the range allocated.
    pub const NO_UNMAP: Self = Self(2);
    /// Write-zeroes: fail with `Unsupported` rather than write zeros as data.
    pub const FAST_ZERO: Self = Self(4);
    /// Do not merge this one with others.
    pub const NOMERGE: Self = Self(8);
    /// Somebody waits for it; without it a write counts as background work.
    pub const SYNC: Self = Self(16);
    /// Reads: the device may answer "all zeros" without touching the buffer.
    pub const HOLE_OK: Self = Self(32);

    /// Whether all of `other`'s bits are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both sets.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// This set less `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// One wish: plain data, 32 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bio {
    /// Who it is.
    pub id: BioId,
    /// First byte on the volume.
    pub offset: u64,
    /// Bytes; 0 for a flush.
    pub len: u32,
    /// What to do.
    pub op: Op,
    /// How to do it.
    pub flags: BioFlags,
}

impl Bio {
    /// The byte after the last; ranges are checked to fit before anything else looks at this.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.len as u64)
    }
}

const _: () = assert!(size_of::<Bio>() == 32);
