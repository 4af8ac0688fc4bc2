//! A writer: one write at a time into a cached volume, the next as soon as it is answered.
//!
//! ```text
//!   starts_at --> write --> answered --> (work) --> write ... --> after exits_at: closes
//!                   `-- not answered in its turn: asleep, and woken by the answer
//! ```
//!
//! `dd` writes sequentially, as fast as it may or at a rate of its own. `Files` is like fs_mark: each file is one small write at
//! an offset of its own, with a flush after a number of files.

use headworks_core::prng::Prng;
use headworks_core::time::SEC;
use headworks_core::{Bio, BioFlags, BioId, ExportId, Instant, Ioprio, Op, VolumeId};

/// The access pattern of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritePattern {
    /// Sequential writes of this many bytes.
    Stream(u32),
    /// Files of 12 or 16 KiB; a flush after this many.
    Files(u32),
    /// Sequential reads of this many bytes.
    ReadStream(u32),
    /// Reads of 4 KiB anywhere in the region.
    RandomReads,
    /// Writes of this many bytes anywhere in the region.
    RandomWrites(u32),
}

/// Options of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterOptions {
    /// The volume written to, which without `CacheHarnessOptions::modes` is also the index of its device.
    pub volume: u16,
    /// Access pattern of the writer.
    pub manner: WritePattern,
    /// First byte of its region.
    pub start: u64,
    /// The byte after its region.
    pub end: u64,
    /// Bytes per second that the writer produces; 0 for as many as are taken.
    pub bytes_per_second: u64,
    /// Start time of the writer.
    pub starts_at: Instant,
    /// End time of the writer.
    pub exits_at: Instant,
}

impl WriterOptions {
    /// A writer like `dd`, active during the whole run.
    #[must_use]
    pub fn dd(volume: u16, bs: u32, start: u64, end: u64) -> Self {
        let manner = WritePattern::Stream(bs);
        let (starts_at, exits_at) = (Instant(0), Instant(u64::MAX));
        Self { volume, manner, start, end, bytes_per_second: 0, starts_at, exits_at }
    }
}

/// Distance between files, large enough that they rarely touch.
const PLACE: u64 = 64 << 10;

/// A writer in progress.
#[derive(Debug)]
pub(super) struct Writer {
    pub options: WriterOptions,
    connection: u32,
    /// The export that it writes to.
    pub export: ExportId,
    prng: Prng,
    next_at: u64,
    issued: u64,
    flush_in: u32,
    /// The writer has submitted something.
    pub began: bool,
    /// The outstanding bio: time and turn of submission, operation, bytes.
    pub out: Option<(Instant, u64, Op, u32)>,
    /// Bytes answered since the end of the ramp.
    pub bytes: u64,
    /// Answers since then, and those for which it slept.
    pub answers: (u64, u64),
}

impl Writer {
    pub fn new(options: WriterOptions, connection: u32, seed: u64) -> Self {
        let flush_in = match options.manner {
            WritePattern::Files(files) => files,
            _ => u32::MAX,
        };
        let (prng, next_at) = (Prng::new(seed ^ u64::from(connection) << 20), options.start);
        Self {
            options,
            connection,
            export: ExportId(0),
            prng,
            next_at,
            issued: 0,
            flush_in,
            began: false,
            out: None,
            bytes: 0,
            answers: (0, 0),
        }
    }

    /// The next bio of the writer.
    pub fn next(&mut self) -> Bio {
        let (offset, len) = match self.options.manner {
            _ if self.flush_in == 0 => (0, 0),
            WritePattern::Stream(bs) | WritePattern::ReadStream(bs) => (self.along(bs.into()), bs),
            WritePattern::RandomReads => (self.anywhere(4096), 4096),
            WritePattern::RandomWrites(bs) => (self.anywhere(bs.into()), bs),
            WritePattern::Files(_) => {
                let places = (self.options.end - self.options.start) / PLACE;
                let place = self.options.start + self.prng.below(places) * PLACE;
                (place, 4096 * self.prng.between(3, 4) as u32)
            }
        };
        self.flush_in = match (self.options.manner, self.flush_in) {
            (WritePattern::Files(files), 0) => files,
            (WritePattern::Files(_), left) => left - 1,
            _ => self.flush_in,
        };
        self.issued += 1;
        self.began = true;
        let id = BioId {
            connection: self.connection,
            volume: VolumeId(self.options.volume),
            export: self.export,
            sequence: self.issued,
        };
        let op = match self.options.manner {
            _ if len == 0 => Op::Flush,
            WritePattern::ReadStream(_) | WritePattern::RandomReads => Op::Read,
            WritePattern::Stream(_) | WritePattern::Files(_) | WritePattern::RandomWrites(_) => {
                Op::Write
            }
        };
        let flags = if len == 0 { BioFlags::NONE } else { BioFlags::SYNC };
        Bio { id, offset, len, op, flags, ioprio: Ioprio::default() }
    }

    /// The time of the next write of a writer that was answered and is ready at `ready`. A writer
    /// with a rate of its own waits until it has produced the bytes; it catches up after a delay.
    pub fn next_write_at(&self, ready: Instant) -> Instant {
        let WriterOptions { bytes_per_second: rate, starts_at, manner, .. } = self.options;
        let WritePattern::Stream(bs) = manner else {
            return ready;
        };
        if rate == 0 {
            return ready;
        }
        let produced = u128::from(self.issued) * u128::from(bs) * u128::from(SEC);
        ready.max(starts_at.after((produced / u128::from(rate)) as u64))
    }

    fn anywhere(&mut self, bs: u64) -> u64 {
        let places = (self.options.end - self.options.start) / bs;
        self.options.start + self.prng.below(places) * bs
    }

    fn along(&mut self, bs: u64) -> u64 {
        let at =
            if self.next_at + bs > self.options.end { self.options.start } else { self.next_at };
        self.next_at = at + bs;
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dd_writes_sequentially_and_wraps_around() {
        let mut writer = Writer::new(WriterOptions::dd(0, 4096, 8192, 16_384), 3, 1);
        let places: Vec<u64> = (0..4).map(|_| writer.next().offset).collect();
        assert_eq!(places, [8192, 12_288, 8192, 12_288]);
    }

    #[test]
    fn files_are_small_scattered_and_flushed_every_so_often() {
        let dd = WriterOptions::dd(0, 4096, 0, 1 << 30);
        let mut writer = Writer::new(WriterOptions { manner: WritePattern::Files(3), ..dd }, 3, 1);
        let bios: Vec<Bio> = (0..8).map(|_| writer.next()).collect();
        let flushes: Vec<bool> = bios.iter().map(|bio| bio.op == Op::Flush).collect();
        assert_eq!(flushes, [false, false, false, true, false, false, false, true]);
        let (first, second) = (bios[0], bios[1]);
        assert!([12_288, 16_384].contains(&first.len));
        assert!(first.offset != second.offset && first.offset.is_multiple_of(PLACE));
    }

    #[test]
    fn paced_writer_waits_for_its_bytes_and_catches_up_after_a_delay() {
        let dd = WriterOptions::dd(0, 65_536, 0, 1 << 30);
        let at = |rate, issued: u32, ready| {
            let mut writer = Writer::new(WriterOptions { bytes_per_second: rate, ..dd }, 1, 1);
            (0..issued).for_each(|_| {
                writer.next();
            });
            writer.next_write_at(Instant(ready)).0
        };
        assert_eq!(at(0, 9, 77), 77);
        assert_eq!(at(65_536, 2, 77), 2 * SEC);
        assert_eq!(at(65_536, 2, 3 * SEC), 3 * SEC);
    }
}
