//! Requests of virtio-blk: from a chain to what the path below is asked.
//!
//! | type | becomes |
//! |---|---|
//! | 0 IN, 1 OUT | a read or write at sector x 512; FUA on a write where FLUSH is not negotiated or the cache is switched off |
//! | 4 FLUSH | a flush |
//! | 8 GET_ID | answered at once |
//! | 11 DISCARD, 13 WRITE_ZEROES | a request for each segment of 16 bytes |
//!
//! A chain without a whole header or without a status byte breaks the ring: there is no place for an answer. Everything else is
//! answered with IOERR (1) or UNSUPP (2). The header is read once, from wherever its 16 bytes are.

use std::ops::Range;

use crate::SECTOR;
use crate::chain::{Chain, take_front, take_last};
use crate::config_space::{Disk, ZERO_SECTORS_MAX, ZERO_SEGMENTS_MAX};
use crate::features::{self, Features};
use crate::memory::Span;

/// Status: done.
pub(crate) const STATUS_OK: u8 = 0;
/// Status: failed.
pub(crate) const STATUS_IOERR: u8 = 1;
/// Status: not supported.
pub(crate) const STATUS_UNSUPP: u8 = 2;

const HEADER_BYTES: usize = 16;
const SEGMENT_BYTES: usize = 16;
const SEGMENTS_BYTES_MAX: usize = SEGMENT_BYTES * ZERO_SEGMENTS_MAX as usize;
/// Bytes of the answer to GET_ID.
const ID_BYTES: usize = 20;

/// What a request asks of the path below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOp {
    /// Data from the disk into the request's spans.
    Read,
    /// Data from the request's spans to the disk.
    Write,
    /// What was acknowledged before becomes durable.
    Flush,
    /// The range is not needed any more.
    Discard,
    /// The range becomes zeros.
    WriteZeroes,
}

/// A name of a request, or of a segment of one, for its completion.
///
/// A name is used again after the completion. Until then no other request of the device has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// Index of the ring.
    pub queue: u16,
    /// Head of the chain in its ring.
    pub head: u16,
    /// Segment of a discard or write-zeroes; else 0.
    pub part: u8,
}

impl Ticket {
    /// The name as a number below 2^24, for an id that has no room for a struct.
    #[must_use]
    pub const fn bits(self) -> u32 {
        (self.queue as u32) << 18 | (self.head as u32 & 0x3ff) << 8 | self.part as u32
    }

    /// The name of a number from [`Ticket::bits`].
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self {
            queue: (bits >> 18 & 0x3f) as u16,
            head: (bits >> 8 & 0x3ff) as u16,
            part: bits as u8,
        }
    }
}

/// A request for the path below. Its range is within the disk and a multiple of the block size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Name for [`crate::Device::complete`] and [`crate::Device::pieces`].
    pub ticket: Ticket,
    /// What is asked of the disk.
    pub op: RequestOp,
    /// First byte on the disk.
    pub offset: u64,
    /// Bytes; 0 for a flush.
    pub len: u32,
    /// The answer promises durability, without a flush.
    pub is_fua: bool,
    /// Zeroing may release the range.
    pub may_unmap: bool,
}

/// How a request ended below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done as asked, all bytes of it.
    Done,
    /// The path below does not do this.
    Unsupported,
    /// Not done, or only in part.
    Failed,
}

impl Outcome {
    pub(crate) const fn status(self) -> u8 {
        match self {
            Self::Done => STATUS_OK,
            Self::Failed => STATUS_IOERR,
            Self::Unsupported => STATUS_UNSUPP,
        }
    }
}

/// What a chain asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// One request.
    One { op: RequestOp, offset: u64, len: u32 },
    /// Segments of a discard or write-zeroes, whose bytes are in the scratch.
    Segments { op: RequestOp, count: usize },
    /// Answered at once with this status and so many bytes written.
    Answer { status: u8, written: u32 },
}

/// A chain taken apart.
#[derive(Clone, Debug)]
pub(crate) struct Parsed {
    pub(crate) asked: Asked,
    /// Where the status byte is written.
    pub(crate) status: *mut u8,
    /// Whether the data are among the chain's writable spans.
    pub(crate) is_read: bool,
}

/// One segment of a discard or write-zeroes, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) offset: u64,
    pub(crate) len: u32,
    pub(crate) may_unmap: bool,
}

/// Reads requests for a disk. The scratch is the segments of the request at hand.
#[derive(Debug)]
pub(crate) struct Parser {
    scratch: [u8; SEGMENTS_BYTES_MAX],
    segments: [Segment; ZERO_SEGMENTS_MAX as usize],
}

impl Parser {
    pub(crate) const fn new() -> Self {
        let none = Segment { offset: 0, len: 0, may_unmap: false };
        Self { scratch: [0; SEGMENTS_BYTES_MAX], segments: [none; ZERO_SEGMENTS_MAX as usize] }
    }

    pub(crate) fn segments(&self, range: Range<usize>) -> &[Segment] {
        &self.segments[range]
    }

    /// Takes a chain apart; the error says why the ring is broken.
    #[inline]
    pub(crate) fn parse(
        &mut self,
        chain: &mut Chain,
        disk: &Disk,
        features: Features,
    ) -> Result<Parsed, &'static str> {
        let mut header = [0; HEADER_BYTES];
        if !take_front(chain.readable(), &mut header) {
            return Err("a request without a whole header");
        }
        let status = take_last(chain.writable()).ok_or("a request without a status byte")?;
        let kind = crate::wire::u32_at(&header, 0);
        let sector = crate::wire::u64_at(&header, 8);
        let asked = match kind {
            0 => movement(RequestOp::Read, sector, chain.writable(), disk),
            1 if disk.is_read_only => refuse(STATUS_IOERR),
            1 => movement(RequestOp::Write, sector, chain.readable(), disk),
            4 => Asked::One { op: RequestOp::Flush, offset: 0, len: 0 },
            8 => identify(chain.writable(), disk),
            11 | 13 if disk.is_read_only => refuse(STATUS_IOERR),
            11 if features.has(features::DISCARD) => {
                self.zeroing(RequestOp::Discard, chain.readable(), disk)
            }
            13 if features.has(features::WRITE_ZEROES) => {
                self.zeroing(RequestOp::WriteZeroes, chain.readable(), disk)
            }
            _ => refuse(STATUS_UNSUPP),
        };
        Ok(Parsed { asked, status, is_read: kind == 0 })
    }

    /// Reads and checks the segments of a discard or write-zeroes. One that is wrong refuses all.
    fn zeroing(&mut self, op: RequestOp, spans: &mut [Span], disk: &Disk) -> Asked {
        let bytes = total(spans);
        if bytes == 0
            || !bytes.is_multiple_of(SEGMENT_BYTES as u64)
            || bytes > SEGMENTS_BYTES_MAX as u64
        {
            return refuse(STATUS_IOERR);
        }
        let (bytes, count) = (bytes as usize, bytes as usize / SEGMENT_BYTES);
        take_front(spans, &mut self.scratch[..bytes]);
        for index in 0..count {
            let raw = &self.scratch[index * SEGMENT_BYTES..][..SEGMENT_BYTES];
            match segment(op, raw, disk) {
                Ok(segment) => self.segments[index] = segment,
                Err(status) => return refuse(status),
            }
        }
        Asked::Segments { op, count }
    }
}

fn segment(op: RequestOp, raw: &[u8], disk: &Disk) -> Result<Segment, u8> {
    let (sector, count) = (crate::wire::u64_at(raw, 0), crate::wire::u32_at(raw, 8));
    let flags = crate::wire::u32_at(raw, 12);
    // Bit 0 is "unmap" of a write-zeroes; on a discard, and every other bit, it is reserved.
    if flags > 1 || (op == RequestOp::Discard && flags != 0) {
        return Err(STATUS_UNSUPP);
    }
    if count == 0 || count > ZERO_SECTORS_MAX {
        return Err(STATUS_IOERR);
    }
    let len = u64::from(count) * SECTOR;
    let offset = place(sector, len, disk).ok_or(STATUS_IOERR)?;
    Ok(Segment { offset, len: len as u32, may_unmap: op == RequestOp::Discard || flags & 1 != 0 })
}

const fn refuse(status: u8) -> Asked {
    Asked::Answer { status, written: 0 }
}

fn total(spans: &[Span]) -> u64 {
    spans.iter().map(|span| span.len() as u64).sum()
}

/// The offset of a range that is whole blocks within the disk.
#[inline]
fn place(sector: u64, len: u64, disk: &Disk) -> Option<u64> {
    let offset = sector.checked_mul(SECTOR)?;
    let mask = u64::from(disk.block_size) - 1;
    let is_whole = (offset | len) & mask == 0;
    // The last sector may be a part of one, which is not offered.
    let end = disk.size & !(SECTOR - 1);
    (is_whole && offset.checked_add(len)? <= end).then_some(offset)
}

#[inline]
fn movement(op: RequestOp, sector: u64, spans: &[Span], disk: &Disk) -> Asked {
    let len = total(spans);
    match place(sector, len, disk) {
        Some(offset) if len > 0 && len <= u64::from(u32::MAX) => {
            Asked::One { op, offset, len: len as u32 }
        }
        _ => refuse(STATUS_IOERR),
    }
}

/// Writes the disk's serial into the first 20 bytes.
fn identify(spans: &[Span], disk: &Disk) -> Asked {
    let mut written = 0;
    for span in spans {
        let part = span.len().min(ID_BYTES - written);
        // SAFETY: the span is in a mapped region that the device may write; `part` bytes of the serial are left.
        unsafe {
            std::ptr::copy_nonoverlapping(disk.serial[written..].as_ptr(), span.base(), part);
        }
        written += part;
    }
    Asked::Answer { status: STATUS_OK, written: written as u32 }
}
