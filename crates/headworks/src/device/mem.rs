//! `mem:` a disk in memory, answered at once.
//!
//! Sparse: the disk is one mapping whose pages cost nothing until written, and a bit per chunk of 64 KiB says whether any of
//! it ever was. Invariant: **a chunk whose bit is clear is all zeros and has no memory.** So a read of such chunks is answered
//! as a hole, or with zeros, without touching them, and a terabyte of them needs 2 MiB of bits.
//!
//! ```text
//!   zeroing   |....chunk....|....chunk....|....chunk....|....chunk....|
//!                    [=== memset ===][ given back, bits cleared ][= memset =]
//! ```
//!
//! Discard and write-zeroes are the same thing here: chunks that are covered whole are given back to the kernel, what is left
//! at the edges is overwritten with zeros if its chunk has a bit. NO_UNMAP changes nothing: memory is never reserved ahead.
//!
//! The device lends its memory ([`MemDevice::memory`]): the span of a read may be the bytes that it reads, which are not copied then.

use headworks_core::extent::ExtentWriter;
use headworks_core::{
    BioFlags, Completion, ConfigError, ExtentState, Instant, IoError, Op, QueueOptions, VolumeId,
};

use super::{Command, CommandBatch, Device, DeviceIo};
use crate::memory::{Copier, Mapping, PAGE, Span};

/// 64 KiB: few bits, and edges of a discard are short; 16 pages, so that giving one back is worth a system call.
const CHUNK: usize = 64 << 10;

/// Giving memory back takes 0.1 ms a MiB, and the thread of all clients does it.
const DISCARD_MAX: u32 = 1 << 20;

/// A disk in memory.
#[derive(Debug)]
pub struct MemDevice {
    bytes: Mapping,
    size: u64,
    /// A bit per chunk: it may hold something else than zeros.
    written: Vec<u64>,
    copier: Copier,
}

impl MemDevice {
    /// A disk of `size` zero bytes.
    ///
    /// # Errors
    /// When the address space has no room for it.
    pub fn new(size: u64) -> Result<Self, ConfigError> {
        let too_large =
            |_| ConfigError::new("size", format!("{size} bytes exceed the address space"));
        let len = usize::try_from(size).map_err(too_large)?;
        let chunks = len.div_ceil(CHUNK).max(1);
        let mapped = chunks.checked_mul(CHUNK).ok_or_else(|| {
            ConfigError::new("size", format!("{size} bytes exceed the address space"))
        })?;
        let bytes = Mapping::new(mapped).map_err(|error| {
            ConfigError::new("size", format!("no address space for {size} bytes: {error}"))
        })?;
        Ok(Self { bytes, size, written: vec![0; chunks.div_ceil(64)], copier: Copier::default() })
    }

    /// What its queue should know: nothing outlives the process, so nothing needs a flush.
    #[must_use]
    pub fn queue_options() -> QueueOptions {
        QueueOptions {
            write_cache: false,
            fua: true,
            discard_max_bytes: DISCARD_MAX,
            ..QueueOptions::default()
        }
    }

    /// Its bytes. They stay where they are until [`Device::grow`] or the end of the device, and change only inside [`Device::submit`], by the
    /// write commands of the batch ([`Op::is_write`]) and within their ranges.
    pub(super) fn memory(&self) -> Span {
        // SAFETY: the mapping stays until `grow` or the drop, and its bytes change only in `submit`.
        unsafe { self.bytes.span() }
    }

    /// # Safety
    /// As [`Device::submit`].
    unsafe fn run(&mut self, command: &Command, spans: &[Span]) -> Completion {
        let (start, len) = (command.offset, u64::from(command.len));
        if command.op != Op::Flush && (start > self.size || len > self.size - start) {
            return command.failed(IoError::Invalid);
        }
        let (start, end) = (start as usize, (start + len) as usize);
        let mut hole = false;
        match command.op {
            Op::Flush | Op::Prefetch => {}
            // SAFETY: the caller's promise, passed on; the range was checked.
            Op::Read => hole = unsafe { self.read(command.flags, start, end, spans) },
            // SAFETY: as above.
            Op::Write if !spans.is_empty() => unsafe { self.write(start, end, spans) },
            Op::Write | Op::Discard | Op::WriteZeroes => self.zero(start, end),
            Op::BlockStatus => {
                // SAFETY: as above.
                return unsafe { command.tell_extents(spans, |list| self.tell(start, end, list)) };
            }
        }
        Completion { hole, ..command.done() }
    }

    /// # Safety
    /// The spans are valid and ours.
    unsafe fn read(&self, flags: BioFlags, start: usize, end: usize, spans: &[Span]) -> bool {
        let unwritten = !self.any_written(start, end);
        if unwritten && flags.contains(BioFlags::HOLE_OK) {
            return true;
        }
        let mut at = start;
        for span in spans {
            let from = self.bytes.at(at, span.len());
            at += span.len();
            // SAFETY: the span is ours by the caller's promise, is no part of our mapping, and `from` has as many bytes, which
            // was checked.
            unsafe {
                if unwritten {
                    span.base().write_bytes(0, span.len());
                } else {
                    self.copier.read(from, span.base(), span.len(), std::ptr::null());
                }
            }
        }
        false
    }

    /// # Safety
    /// The spans are valid and not written meanwhile.
    unsafe fn write(&mut self, start: usize, end: usize, spans: &[Span]) {
        let mut at = start;
        for span in spans {
            let to = self.bytes.at(at, span.len());
            // SAFETY: as in `read`, the other way.
            unsafe { self.copier.write(span.base(), to, (span.len(), end - start)) };
            at += span.len();
        }
        if start < end {
            for chunk in start / CHUNK..=(end - 1) / CHUNK {
                self.written[chunk / 64] |= 1 << (chunk % 64);
            }
        }
    }

    fn zero(&mut self, start: usize, end: usize) {
        let (first, last) = (start.next_multiple_of(CHUNK), end / CHUNK * CHUNK);
        if first >= last {
            let middle = first.clamp(start, end);
            self.zero_edge(start, middle);
            self.zero_edge(middle, end);
            return;
        }
        self.zero_edge(start, first);
        if self.any_written(first, last) {
            // SAFETY: the device is ours alone, and its content in this range is to become zeros.
            unsafe { self.bytes.forget(first, last - first) };
            for chunk in first / CHUNK..last / CHUNK {
                self.written[chunk / 64] &= !(1 << (chunk % 64));
            }
        }
        self.zero_edge(last, end);
    }

    /// A range within one chunk.
    fn zero_edge(&mut self, start: usize, end: usize) {
        if self.any_written(start, end) {
            let to = self.bytes.at(start, end - start);
            // SAFETY: inside our mapping, which only this device accesses.
            unsafe { self.copier.zero(to, end - start) };
        }
    }

    /// Chunks that were never written, or given back, are holes. At most a look at the bits of 4 GiB.
    fn tell(&self, start: usize, end: usize, list: &mut ExtentWriter<'_>) {
        let mut at = start;
        while at < end {
            let written = self.any_written(at, at + 1);
            let next = self.next_other(at / CHUNK, written) * CHUNK;
            let state = if written { ExtentState::DATA } else { ExtentState::HOLE_ZERO };
            if !list.push((next.min(end) - at) as u64, state) {
                return;
            }
            at = next;
        }
    }

    /// The first chunk behind `chunk`, which is `written` or not, that may be otherwise: a word at a time.
    fn next_other(&self, chunk: usize, written: bool) -> usize {
        let alike = if written { u64::MAX } else { 0 };
        let mut at = chunk;
        loop {
            match self.written.get(at / 64) {
                None => return at,
                Some(&word) if at.is_multiple_of(64) && word == alike => at += 64,
                Some(&word) if (word >> (at % 64) & 1 != 0) == written => at += 1,
                Some(_) => return at,
            }
        }
    }

    /// Whether a chunk of the range has its bit set. One test for most requests, a word at a time for the largest.
    #[inline]
    fn any_written(&self, start: usize, end: usize) -> bool {
        if start >= end {
            return false;
        }
        let (first, last) = (start / CHUNK, (end - 1) / CHUNK);
        let from = u64::MAX << (first % 64);
        let until = u64::MAX >> (63 - last % 64);
        if first / 64 == last / 64 {
            return self.written[first / 64] & from & until != 0;
        }
        let middle = &self.written[first / 64 + 1..last / 64];
        self.written[first / 64] & from != 0
            || self.written[last / 64] & until != 0
            || middle.iter().any(|&word| word != 0)
    }
}

const _: () = assert!(CHUNK.is_multiple_of(PAGE));

impl Device for MemDevice {
    unsafe fn submit(&mut self, _now: Instant, batch: CommandBatch<'_>, io: &mut DeviceIo<'_>) {
        for command in batch.commands {
            // SAFETY: the caller's promise, passed on.
            let completion = unsafe { self.run(command, batch.spans_of(command)) };
            io.completions.push(completion);
        }
    }

    fn grow(&mut self, _volume: VolumeId, size: u64) -> Result<(), IoError> {
        let len = usize::try_from(size).ok().and_then(|len| len.checked_next_multiple_of(CHUNK));
        let len = len.ok_or(IoError::NoMemory)?;
        self.bytes.grow(len).map_err(|_| IoError::NoMemory)?;
        self.size = size.max(self.size);
        self.written.resize((len / CHUNK).div_ceil(64).max(self.written.len()), 0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bench, against_model};

    #[test]
    fn block_status_reports_unwritten_chunks_as_holes() {
        let size = 1 << 40;
        let mut bench = Bench::new(MemDevice::new(size).unwrap());
        const C: u64 = CHUNK as u64;
        for at in [0, 63, 64, 65, 700] {
            bench.run(Op::Write, BioFlags::NONE, at * C + 9, 1);
        }
        let mut told = |offset: u64, len: u32| -> Vec<(u64, u32)> {
            bench.run(Op::BlockStatus, BioFlags::NONE, offset, len);
            let list = headworks_core::extent::extents(bench.buffer(), len);
            list.map(|extent| (extent.len.into(), extent.state.0)).collect()
        };
        let rest = (u32::MAX as u64 - 701 * C, 3);
        let all = [(C, 0), (62 * C, 3), (3 * C, 0), (634 * C, 3), (C, 0), rest];
        assert_eq!(told(0, u32::MAX), all);
        assert_eq!(told(63 * C + 1, 2 * C as u32), [(2 * C, 0)]);
        assert_eq!(told(size - 5, 5), [(5, 3)]);
    }

    /// Number of resident pages of the device.
    fn resident(device: &MemDevice) -> usize {
        let mut pages = vec![0u8; device.bytes.len() / PAGE];
        let base = device.bytes.base().cast();
        // SAFETY: `pages` has a byte per page of our own mapping.
        let failed = unsafe { libc::mincore(base, device.bytes.len(), pages.as_mut_ptr()) };
        assert_eq!(failed, 0);
        pages.iter().filter(|&&page| page & 1 == 1).count()
    }

    #[test]
    fn grown_device_keeps_data_and_new_range_reads_zeros() {
        let mut bench = Bench::new(MemDevice::new(100_000).unwrap());
        bench.buffer()[..4096].fill(7);
        assert_eq!(bench.run(Op::Write, BioFlags::NONE, 90_000, 4096).status, Ok(()));
        bench.device_mut().grow(VolumeId(0), 10 << 20).unwrap();
        assert_eq!(bench.run(Op::Write, BioFlags::NONE, (10 << 20) - 4096, 4096).status, Ok(()));
        bench.buffer().fill(9);
        assert_eq!(bench.run(Op::Read, BioFlags::NONE, 90_000, 100_000).status, Ok(()));
        assert_eq!(bench.buffer()[..4096], [7; 4096]);
        assert!(bench.buffer()[4096..100_000].iter().all(|&byte| byte == 0));
        let error = bench.device_mut().grow(VolumeId(0), u64::MAX);
        assert_eq!(error, Err(IoError::NoMemory));
        assert_eq!(bench.run(Op::Read, BioFlags::NONE, (10 << 20) - 4096, 4096).status, Ok(()));
        assert_eq!(bench.buffer()[..4096], [7; 4096]);
    }

    #[test]
    fn random_commands_match_vector_model() {
        // An odd size: the last chunk and the last block are partial.
        let size = 9 * CHUNK + 1234;
        for seed in 0..8 {
            let device = MemDevice::new(size as u64).unwrap();
            against_model(&mut Bench::new(device), seed, size, 1, 800);
        }
    }

    #[test]
    fn unwritten_range_reads_as_hole_or_zeros() {
        let mut bench = Bench::new(MemDevice::new(1 << 40).unwrap());
        bench.buffer().fill(7);
        assert_eq!(bench.run(Op::Write, BioFlags::NONE, 77 << 30, 4096).status, Ok(()));
        let chunk = |index: i64| ((77_i64 << 30) + index * CHUNK as i64) as u64;
        for (offset, len, hole) in [
            (chunk(-1), CHUNK as u32, true),
            (chunk(-1), CHUNK as u32 + 1, false),
            (chunk(0) + 8192, 4096, false),
            (chunk(1), 1 << 20, true),
            (chunk(-200), 1 << 20, true),
            (0, 1 << 20, true),
        ] {
            let read = bench.run(Op::Read, BioFlags::HOLE_OK, offset, len);
            assert_eq!((read.hole, read.transferred), (hole, len), "{offset} + {len}");
        }
        // Without HOLE_OK the read returns zeros.
        let read = bench.run(Op::Read, BioFlags::NONE, 5 << 30, 1 << 20);
        assert!(!read.hole && bench.buffer()[..1 << 20].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn lent_memory_has_the_bytes_that_were_written() {
        let mut bench = Bench::new(MemDevice::new(64 * CHUNK as u64).unwrap());
        bench.buffer()[..4096].fill(7);
        assert_eq!(bench.run(Op::Write, BioFlags::NONE, 8192, 4096).status, Ok(()));
        let memory = bench.device().memory();
        // SAFETY: the device is used by this test alone.
        let bytes = |at: usize| unsafe { memory.part(at, 4096).bytes() };
        assert_eq!((bytes(8192), bytes(8192 + 4096)), (&[7; 4096][..], &[0; 4096][..]));
    }

    #[test]
    fn discard_frees_memory() {
        let mut bench = Bench::new(MemDevice::new(64 * CHUNK as u64).unwrap());
        bench.buffer().fill(7);
        let len = 16 * CHUNK as u32;
        assert_eq!(bench.run(Op::Write, BioFlags::NONE, 0, len).status, Ok(()));
        let full = resident(bench.device());
        assert!(full >= len as usize / PAGE);
        assert_eq!(bench.run(Op::Discard, BioFlags::NONE, 100, len - 100).status, Ok(()));
        assert!(resident(bench.device()) <= full - 15 * CHUNK / PAGE);
        let read = bench.run(Op::Read, BioFlags::HOLE_OK, CHUNK as u64, 15 * CHUNK as u32);
        assert!(read.hole, "discarded chunks are holes again");
        assert!(!bench.run(Op::Read, BioFlags::HOLE_OK, 0, 4096).hole);
        assert_eq!((bench.buffer()[99], bench.buffer()[100]), (7, 0));
    }

    #[test]
    fn written_chunk_is_found_across_bitmap_words() {
        // 300 chunks are five bitmap words. Every range around the one written chunk must find it.
        for chunk in [0, 1, 63, 64, 100, 127, 128, 200, 255, 256, 299] {
            let device = MemDevice::new(300 * CHUNK as u64).unwrap();
            let mut bench = Bench::new(device);
            bench.buffer().fill(7);
            let at = (chunk * CHUNK) as u64;
            bench.run(Op::Write, BioFlags::NONE, at, 1);
            for (start, end) in [(0, 300), (chunk, chunk + 1), (chunk, 300), (0, chunk + 1)] {
                assert!(bench.device().any_written(start * CHUNK, end * CHUNK));
            }
            assert!(!bench.device().any_written(0, chunk * CHUNK));
            assert!(!bench.device().any_written((chunk + 1) * CHUNK, 300 * CHUNK));
            bench.run(Op::Discard, BioFlags::NONE, 0, 300 * CHUNK as u32);
            bench.run(Op::Read, BioFlags::NONE, at, 1);
            assert_eq!(bench.buffer()[0], 0);
        }
    }

    #[test]
    fn command_beyond_the_end_returns_invalid() {
        let mut bench = Bench::new(MemDevice::new(8192).unwrap());
        for op in [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes] {
            for (offset, len) in [(8192, 1), (4096, 4097), (u64::MAX, 4096)] {
                let done = bench.run(op, BioFlags::NONE, offset, len);
                assert_eq!((done.status, done.transferred), (Err(IoError::Invalid), 0));
            }
        }
        assert!(MemDevice::new(u64::MAX).is_err() && MemDevice::new(1 << 60).is_err());
    }
}
