//! Jobs in the manner of fio: one connection each, with a mix of operations, sizes and offsets at a
//! fixed depth.
//!
//! `JobOptions` describes a job; `Job::next` draws its next bio. Some bios are malformed and some
//! write to a read-only volume: the path must reject these.

use headworks_core::prng::Prng;
use headworks_core::{Bio, BioFlags, BioId, Ioprio, Op, VolumeId};

use crate::sector_pattern::SECTOR;

/// How a job chooses offsets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessPattern {
    /// Sequential, wrapping around at the end of the region.
    #[default]
    Sequential,
    /// Uniform over the region.
    Random,
    /// Mostly the first blocks of the region, so that bios overlap constantly.
    Hot,
    /// Sequential once to the end; the last bio takes the remainder.
    Once,
}

/// Options of a job. Rates are per million bios.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobOptions {
    /// The volume that the job uses.
    pub volume: VolumeId,
    /// First byte of its region.
    pub start: u64,
    /// The byte after its region.
    pub end: u64,
    /// Alignment of offsets and lengths; at least a sector.
    pub block_size: u32,
    /// Maximum bios in flight, 1..=256.
    pub depth: u16,
    /// Maximum bios submitted together.
    pub batch: u16,
    /// Total number of bios.
    pub bios: u32,
    /// Weights of the operations, by code.
    pub weights: [u32; Op::COUNT],
    /// Sizes to choose from, with equal probability.
    pub sizes: [u32; 4],
    /// How offsets are chosen.
    pub pattern: AccessPattern,
    /// Rate of FUA among writing bios.
    pub fua: u32,
    /// Rate of each of the other flags.
    pub flags: u32,
    /// Rate of malformed bios.
    pub malformed: u32,
    /// Maximum pause after an answer in nanoseconds; 0 for none.
    pub think_ns: u64,
    /// I/O priority of its bios.
    pub ioprio: Ioprio,
    /// Rate of `DIRECT` among reads and writes.
    pub direct: u32,
    /// The volume takes bios that begin and end at any byte.
    pub any_byte: bool,
    /// Offsets within a sector at which bios begin and end; all 0: sector boundaries only.
    pub cuts: SectorCuts,
    /// Closes and reopens after this many bios; 0 means never.
    pub close_after: u32,
}

/// Offsets within a sector; the first is 0.
pub type SectorCuts = [u16; 4];

/// A job in progress.
#[derive(Clone, Debug)]
pub struct Job {
    /// The options of the job.
    pub options: JobOptions,
    /// Bios not submitted yet.
    pub left: u32,
    cursor: u64,
    prng: Prng,
}

impl Job {
    /// A job that has submitted nothing yet.
    #[must_use]
    pub fn new(options: JobOptions, seed: u64) -> Self {
        Self { options, left: options.bios, cursor: options.start, prng: Prng::new(seed) }
    }

    /// Adapts the region to a new volume size: one that reached the end does so again, and none
    /// reaches beyond it.
    pub fn fit(&mut self, old: u64, size: u64) {
        let options = &mut self.options;
        if options.end == old || options.end > size {
            options.end = size;
        }
        if options.start >= options.end {
            options.start = 0;
        }
        self.cursor = self.cursor.min(options.end);
    }

    /// Restarts at the beginning of the region.
    pub fn rewind(&mut self) {
        self.cursor = self.options.start;
    }

    /// Draws the number of bios to submit together.
    pub fn next_batch(&mut self) -> u16 {
        self.prng.between(1, self.options.batch.max(1).into()) as u16
    }

    /// Draws the pause before the next bio.
    pub fn next_pause_ns(&mut self) -> u64 {
        match self.options.think_ns {
            0 => 0,
            most => self.prng.below(most + 1),
        }
    }

    /// Draws the next bio with the given id; the flag says whether it is malformed.
    pub fn next(&mut self, id: BioId) -> (Bio, bool) {
        assert!(self.left > 0, "called only while bios are left");
        self.left -= 1;
        let op = self.draw_op();
        let (flags, ioprio) = (self.draw_flags(op), self.options.ioprio);
        let mut bio = Bio { id, op, flags, ioprio, ..Bio::default() };
        if op == Op::Flush {
            return (bio, false);
        }
        (bio.offset, bio.len) = self.draw_place();
        if self.options.cuts[1] > 0 && !flags.contains(BioFlags::DIRECT) {
            (bio.offset, bio.len) = self.move_edges(bio.offset, bio.len);
        }
        let malformed = self.options.malformed > 0
            && op != Op::Discard
            && self.prng.per_million(self.options.malformed);
        if malformed {
            self.spoil(&mut bio);
        }
        (bio, malformed)
    }

    fn draw_op(&mut self) -> Op {
        let weights = &self.options.weights;
        let mut left = self.prng.below(weights.iter().sum::<u32>().into()) as u32;
        for op in Op::ALL {
            let weight = weights[op as usize];
            if left < weight {
                return op;
            }
            left -= weight;
        }
        Op::Read
    }

    fn draw_flags(&mut self, op: Op) -> BioFlags {
        let mut flags = BioFlags::NONE;
        let mut add = |applies: bool, rate: u32, flag| {
            if applies && rate > 0 && self.prng.per_million(rate) {
                flags = flags.with(flag);
            }
        };
        let rate = self.options.flags;
        add(op.is_write(), self.options.fua, BioFlags::FUA);
        add(true, rate, BioFlags::SYNC);
        add(op.has_data(), rate / 4, BioFlags::NOMERGE);
        add(op == Op::Read, rate, BioFlags::HOLE_OK);
        add(op == Op::WriteZeroes, rate, BioFlags::NO_UNMAP);
        add(op == Op::WriteZeroes, rate, BioFlags::FAST_ZERO);
        add(op.has_data(), self.options.direct, BioFlags::DIRECT);
        add(op == Op::BlockStatus, rate, BioFlags::ONE_EXTENT);
        flags
    }

    fn draw_place(&mut self) -> (u64, u32) {
        let JobOptions { start, end, sizes, block_size, pattern, .. } = self.options;
        let span = end - start;
        let len = u64::from(sizes[self.prng.below(4) as usize]).min(span);
        let blocks = (span - len) / u64::from(block_size) + 1;
        let offset = match pattern {
            AccessPattern::Random => start + self.prng.below(blocks) * u64::from(block_size),
            AccessPattern::Hot => {
                let hot = if self.prng.below(8) == 0 { blocks } else { blocks.min(16) };
                start + self.prng.below(hot) * u64::from(block_size)
            }
            AccessPattern::Sequential => {
                if self.cursor + len > end {
                    self.cursor = start;
                }
                let offset = self.cursor;
                self.cursor += len;
                offset
            }
            AccessPattern::Once => {
                let offset = if self.cursor < end { self.cursor } else { start };
                self.cursor = offset + len.min(end - offset);
                return (offset, (self.cursor - offset) as u32);
            }
        };
        (offset, len as u32)
    }

    /// Moves the ends of a bio within its first and last sector.
    fn move_edges(&mut self, offset: u64, len: u32) -> (u64, u32) {
        let mut cut = || match self.prng.below(2) {
            0 => 0,
            _ => u64::from(self.options.cuts[self.prng.below(4) as usize]),
        };
        let (start, end) = (offset + cut(), offset + u64::from(len));
        let shorter = match cut() {
            0 => end,
            cut => end - SECTOR as u64 + cut,
        };
        let end = if shorter > start { shorter } else { end };
        (start, (end - start) as u32)
    }

    /// Makes a bio invalid, but never longer than its buffer.
    fn spoil(&mut self, bio: &mut Bio) {
        match self.prng.below(3) {
            0 => bio.offset = u64::MAX - u64::from(bio.len) / 2,
            1 => bio.offset += 1 << 40,
            _ if self.options.any_byte => bio.len = 0,
            _ => bio.offset += SECTOR as u64 / 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bios_stay_within_region_and_alignment() {
        for pattern in [AccessPattern::Sequential, AccessPattern::Random, AccessPattern::Hot] {
            let options = JobOptions {
                volume: VolumeId(0),
                start: 8192,
                end: 8192 + 65536,
                block_size: 4096,
                depth: 1,
                batch: 1,
                bios: 1_000,
                weights: [1; Op::COUNT],
                sizes: [4096, 8192, 65536, 12288],
                pattern,
                fua: 100_000,
                flags: 100_000,
                malformed: 0,
                think_ns: 0,
                ..JobOptions::default()
            };
            let mut job = Job::new(options, 1);
            let mut fua = 0;
            while job.left > 0 {
                let (bio, malformed) = job.next(BioId::default());
                fua += u32::from(bio.flags.contains(BioFlags::FUA));
                assert!(!malformed);
                if bio.op != Op::Flush {
                    assert!(bio.offset >= 8192 && bio.end() <= 8192 + 65536 && bio.len > 0);
                    assert_eq!((bio.offset | u64::from(bio.len)) % 4096, 0);
                }
            }
            assert!((30..90).contains(&fua));
        }
    }
}
