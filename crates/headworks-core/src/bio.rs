//! A bio: one user's wish, as the path carries it from a frontend down to a queue.
//!
//! A bio names bytes, it does not hold them: the mechanism keeps a buffer per [`BioId`] and the path speaks of
//! (bio, offset in its buffer, length). Offsets and lengths are in bytes everywhere; sectors of 512 bytes exist only in
//! statistics, where users expect them.

use crate::extent::EXTENTS_BYTES;

/// A disk as users see it. Two exports of one file are one volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeId(pub u16);

/// What has one queue: a disk, a filesystem with its images, a memory device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u16);

/// A single-owner world: one reactor thread, one driver thread, or one of the simulator's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

/// A way in: a name that clients come by. Several may lead to one volume; each has a share of its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExportId(pub u16);

/// A class of service, as `ioprio_set(2)` has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum IoClass {
    /// `rt`: before everybody else.
    RealTime = 1,
    /// `be`: the ordinary one.
    #[default]
    BestEffort = 2,
    /// `idle`: when nobody else wants anything.
    Idle = 3,
}

impl IoClass {
    /// Every class, best first.
    pub const ALL: [Self; 3] = [Self::RealTime, Self::BestEffort, Self::Idle];

    /// Its place among the classes, the best is 0.
    #[must_use]
    pub const fn rank(self) -> usize {
        self as usize - 1
    }

    /// The word that users give.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RealTime => "rt",
            Self::BestEffort => "be",
            Self::Idle => "idle",
        }
    }
}

/// A class and a level 0..=7 within it, 0 the best. Bios of different priorities never share a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ioprio(u8);

impl Default for Ioprio {
    fn default() -> Self {
        Self::new(IoClass::BestEffort, 4)
    }
}

impl Ioprio {
    /// A priority; the level is kept within 0..=7.
    #[must_use]
    pub const fn new(class: IoClass, level: u8) -> Self {
        Self((class as u8) << 3 | (level & 7))
    }

    /// The priority with that code (class * 8 + level).
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        if code >= 8 && code < 32 { Some(Self(code)) } else { None }
    }

    /// Its number, which is recorded.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The class.
    #[must_use]
    pub const fn class(self) -> IoClass {
        match self.0 >> 3 {
            1 => IoClass::RealTime,
            3 => IoClass::Idle,
            _ => IoClass::BestEffort,
        }
    }

    /// The level within the class.
    #[must_use]
    pub const fn level(self) -> u8 {
        self.0 & 7
    }

    /// The priority that `class[,level]` stands for, as in `rt`, `be,0` or `idle`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (class, level) = text.split_once(',').unwrap_or((text, "4"));
        let class = IoClass::ALL.into_iter().find(|known| known.name() == class)?;
        let level = level.parse().ok().filter(|level| *level <= 7)?;
        Some(Self::new(class, level))
    }
}

impl std::fmt::Display for Ioprio {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{},{}", self.class().name(), self.level())
    }
}

/// Who a bio is. Unique while it is in flight; chosen by the frontend, opaque here, so that a log of inputs replays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BioId {
    /// The frontend's connection (or handle); also who the bio is accounted to.
    pub connection: u32,
    /// The volume it is for.
    pub volume: VolumeId,
    /// The export it came by: whose share it spends.
    pub export: ExportId,
    /// Counts up within the connection; below [`BioId::INTERNAL`].
    pub sequence: u64,
}

impl BioId {
    /// Set in the sequence of a bio that the cache made: a fill or a write-out. Its bytes are in the pool, not in a buffer.
    pub const INTERNAL: u64 = 1 << 63;

    /// The name of a bio of the cache's own: in `connection`'s and `export`'s account, over the frames from `unit` on; `count`
    /// tells it from others over the same frames.
    #[inline]
    #[must_use]
    pub const fn internal(
        connection: u32,
        volume: VolumeId,
        export: ExportId,
        count: u32,
        unit: u32,
    ) -> Self {
        let count = (count & 0x7fff_ffff) as u64;
        Self { connection, volume, export, sequence: Self::INTERNAL | count << 32 | unit as u64 }
    }

    /// The first frame that an internal bio is about; `None` for a client's.
    #[inline]
    #[must_use]
    pub const fn unit(self) -> Option<u32> {
        if self.sequence & Self::INTERNAL == 0 { None } else { Some(self.sequence as u32) }
    }
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
    /// The range is to be in the cache soon; nothing is promised, and without a cache nothing done. Never reaches a queue.
    Prefetch = 5,
    /// What the range is made of: a list of extents into the buffer, see [`extent`](crate::extent). It may be short.
    BlockStatus = 6,
}

impl Op {
    /// How many operations there are; statistics have one row each.
    pub const COUNT: usize = 7;
    /// Every operation, in the order of their codes.
    pub const ALL: [Op; Op::COUNT] = [
        Op::Read,
        Op::Write,
        Op::Flush,
        Op::Discard,
        Op::WriteZeroes,
        Op::Prefetch,
        Op::BlockStatus,
    ];

    /// Whether the operation changes what later reads see.
    #[must_use]
    pub const fn is_write(self) -> bool {
        matches!(self, Op::Write | Op::Discard | Op::WriteZeroes)
    }

    /// Whether somebody waits for the operation: whoever asks always, the rest if `flags` say so. The other kind is held to
    /// `async_depth`.
    #[must_use]
    pub const fn is_sync(self, flags: BioFlags) -> bool {
        matches!(self, Op::Read | Op::BlockStatus) || flags.contains(BioFlags::SYNC)
    }

    /// Whether the operation moves bytes between a buffer and the device.
    #[must_use]
    pub const fn has_data(self) -> bool {
        matches!(self, Op::Read | Op::Write)
    }

    /// Bytes of the buffer of a bio about `len` bytes; 0 if it has none.
    #[must_use]
    pub const fn buffer_len(self, len: u32) -> u32 {
        match self {
            Op::Read | Op::Write => len,
            Op::BlockStatus => EXTENTS_BYTES,
            Op::Flush | Op::Discard | Op::WriteZeroes | Op::Prefetch => 0,
        }
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
            Op::Prefetch => "prefetch",
            Op::BlockStatus => "block_status",
        }
    }
}

/// A set of wishes beside the operation. The bits are stable: they are recorded and hashed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BioFlags(pub u8);

crate::flag_set!(BioFlags);

impl BioFlags {
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
    /// Past the cache, as `O_DIRECT`: what is cached of the range is written first and forgotten.
    pub const DIRECT: Self = Self(64);
    /// Block status: the first extent is enough.
    pub const ONE_EXTENT: Self = Self(128);
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
    /// Before whom it goes.
    pub ioprio: Ioprio,
}

impl Bio {
    /// The byte after the last; ranges are checked to fit before anything else looks at this.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.len as u64)
    }
}

const _: () = assert!(size_of::<Bio>() == 32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_is_read_as_it_is_shown() {
        for class in IoClass::ALL {
            for level in 0..8 {
                let ioprio = Ioprio::new(class, level);
                assert_eq!(Ioprio::parse(&ioprio.to_string()), Some(ioprio));
                assert_eq!(Ioprio::from_code(ioprio.code()), Some(ioprio));
                assert_eq!((ioprio.class(), ioprio.level()), (class, level));
            }
        }
        assert_eq!(Ioprio::parse("be"), Some(Ioprio::default()));
        for wrong in ["", "rt,8", "rt,", "be,-1", "best", "rt,1,2"] {
            assert_eq!(Ioprio::parse(wrong), None, "{wrong}");
        }
        assert_eq!((Ioprio::from_code(7), Ioprio::from_code(32)), (None, None));
    }
}
