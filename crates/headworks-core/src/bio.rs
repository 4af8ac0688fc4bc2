//! A bio: one I/O request of a client, from its frontend to a queue.
//!
//! A bio names bytes and holds none: the executor keeps a buffer for each [`BioId`], and actions name parts of it as (bio, offset
//! in its buffer, length). All offsets and lengths are in bytes; sectors of 512 bytes appear only in statistics.

use crate::extent::EXTENTS_BYTES;

/// A disk as users see it; two exports of one file share a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeId(pub u16);

/// A backing device with one queue: a disk, a filesystem with its images, or memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u16);

/// A shard: the state of one thread of a driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

/// A name under which clients reach a volume, with a share of its device. Several exports may lead to one volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExportId(pub u16);

/// A customer of a server, with a share of every device that its exports use. Its exports divide that share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u16);

impl TenantId {
    /// The tenant of exports without one: they compete beside the tenants, each by its own weight.
    pub const NONE: Self = Self(u16::MAX);

    /// Returns true for an export without a tenant.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == Self::NONE.0
    }
}

impl Default for TenantId {
    fn default() -> Self {
        Self::NONE
    }
}

/// A scheduling class, as in `ioprio_set(2)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum IoClass {
    /// `rt`: served before the other classes.
    RealTime = 1,
    /// `be`: the default scheduling class.
    #[default]
    BestEffort = 2,
    /// `idle`: served when no other class has requests.
    Idle = 3,
}

impl IoClass {
    /// Every class, highest priority first.
    pub const ALL: [Self; 3] = [Self::RealTime, Self::BestEffort, Self::Idle];

    /// Position among the classes, 0 for the highest.
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

/// An I/O priority: a class and a level 0..=7, 0 the highest. Bios of different priorities never share a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ioprio(u8);

impl Default for Ioprio {
    fn default() -> Self {
        Self::new(IoClass::BestEffort, 4)
    }
}

impl Ioprio {
    /// Creates a priority; only the low three bits of the level count.
    #[must_use]
    pub const fn new(class: IoClass, level: u8) -> Self {
        Self((class as u8) << 3 | (level & 7))
    }

    /// The priority with that code (class * 8 + level).
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        if code >= 8 && code < 32 { Some(Self(code)) } else { None }
    }

    /// The stable code of this priority (class * 8 + level).
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The scheduling class of this priority.
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

    /// Parses `class[,level]`, as in `rt`, `be,0` or `idle`.
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

/// The name of a bio, unique while it is outstanding. The frontend chooses it, so recorded inputs replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BioId {
    /// The frontend's connection (or handle), which the bio is accounted to.
    pub connection: u32,
    /// The volume that it addresses.
    pub volume: VolumeId,
    /// The export whose share of the device it uses.
    pub export: ExportId,
    /// A counter of the connection, below [`BioId::INTERNAL`].
    pub sequence: u64,
}

impl BioId {
    /// The bit that marks a bio of the cache (a fill or a write-out), whose bytes are in the pool.
    pub const INTERNAL: u64 = 1 << 63;

    /// Names a bio of the cache over the frames from `unit` on, accounted to `connection` and `export`. `count` tells it from
    /// others over the same frames.
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

    /// The first frame of an internal bio; `None` for a client's bio.
    #[inline]
    #[must_use]
    pub const fn unit(self) -> Option<u32> {
        if self.sequence & Self::INTERNAL == 0 { None } else { Some(self.sequence as u32) }
    }
}

/// The operation of a bio. The discriminants are stable: they are recorded and hashed, and index statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// Reads from the device into the buffer.
    #[default]
    Read = 0,
    /// Writes from the buffer to the device.
    Write = 1,
    /// Makes all writes durable that were acknowledged before it was submitted. It has no range.
    Flush = 2,
    /// Drops the content of the range; later reads may return anything. Advisory.
    Discard = 3,
    /// Makes the range read as zeros.
    WriteZeroes = 4,
    /// Hints that the range will be read soon; does nothing without a cache. Never reaches a queue.
    Prefetch = 5,
    /// Writes the allocation status of the range into the buffer as a list of [extents](crate::extent), which may end early.
    BlockStatus = 6,
}

impl Op {
    /// Number of operations; statistics have one row each.
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

    /// Whether the operation is synchronous: reads always, others with [`BioFlags::SYNC`]. Asynchronous ones are limited by
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

    /// Bytes of the buffer of a bio that covers `len` bytes; 0 without a buffer.
    #[must_use]
    pub const fn buffer_len(self, len: u32) -> u32 {
        match self {
            Op::Read | Op::Write => len,
            Op::BlockStatus => EXTENTS_BYTES,
            Op::Flush | Op::Discard | Op::WriteZeroes | Op::Prefetch => 0,
        }
    }

    /// The name that users see.
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

/// Flags of a bio. The bits are stable: they are recorded and hashed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BioFlags(pub u8);

crate::flag_set!(BioFlags);

impl BioFlags {
    /// The bio is durable before it is acknowledged (writes, discards, write-zeroes).
    pub const FUA: Self = Self(1);
    /// Write-zeroes: keep the range allocated.
    pub const NO_UNMAP: Self = Self(2);
    /// Write-zeroes: fail with `Unsupported` rather than write zeros as data.
    pub const FAST_ZERO: Self = Self(4);
    /// The bio is never merged with others.
    pub const NOMERGE: Self = Self(8);
    /// The bio is synchronous; a write without it counts as background work.
    pub const SYNC: Self = Self(16);
    /// Reads: the device may answer "all zeros" without touching the buffer.
    pub const HOLE_OK: Self = Self(32);
    /// Bypasses the cache, as `O_DIRECT`: cached blocks of the range are written out first and dropped.
    pub const DIRECT: Self = Self(64);
    /// Block status: the first extent is enough.
    pub const ONE_EXTENT: Self = Self(128);
    /// Reads: the bio has no buffer. Once all of it is cached it is answered by [`crate::Action::ReplyFrames`]; if it never is, all
    /// at once, it is returned by [`crate::Action::NeedsBuffer`]. Block status has another meaning for the bit.
    pub const NO_BUFFER: Self = Self(128);
}

/// One I/O request: plain data of 32 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bio {
    /// The name of the bio.
    pub id: BioId,
    /// Offset of the first byte on the volume.
    pub offset: u64,
    /// Length in bytes; 0 for a flush.
    pub len: u32,
    /// The operation to be done.
    pub op: Op,
    /// Flags that modify the operation.
    pub flags: BioFlags,
    /// Priority among the bios of its device.
    pub ioprio: Ioprio,
}

impl Bio {
    /// The offset after the last byte, saturating; the volume check rejects bios that overflow.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.len as u64)
    }

    /// Whether the bio is a read without a buffer.
    #[inline]
    #[must_use]
    pub const fn has_no_buffer(&self) -> bool {
        self.flags.contains(BioFlags::NO_BUFFER) && matches!(self.op, Op::Read)
    }
}

const _: () = assert!(size_of::<Bio>() == 32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displayed_priority_is_parsed_back() {
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
