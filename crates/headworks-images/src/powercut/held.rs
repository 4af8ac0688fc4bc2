//! The volatile cache of a simulated disk: writes that were acknowledged and are not on the device below, in their order.
//!
//! What a power cut leaves of them is decided here: each write is lost, kept or torn into blocks by itself, so a later one may survive
//! an earlier one. In an eighth of the cuts nothing survives, in another eighth everything.

use headworks_core::VolumeId;
use headworks_core::prng::Prng;

use headworks::driver::Span;

/// Memory that direct I/O accepts.
#[derive(Clone, Copy)]
#[repr(align(4096))]
struct Block(#[expect(dead_code, reason = "read through a span")] [u8; BLOCK]);
const BLOCK: usize = 4096;

/// Bytes of one write, aligned for direct I/O.
pub(super) struct Data {
    blocks: Vec<Block>,
    len: usize,
}

impl Data {
    fn zeros(len: usize) -> Self {
        Self { blocks: vec![Block([0; BLOCK]); len.div_ceil(BLOCK)], len }
    }

    /// A copy of the bytes of `spans`, and zeros for what they do not cover.
    ///
    /// # Safety
    /// The spans are valid and not written meanwhile.
    pub unsafe fn copied(spans: &[Span], len: usize) -> Self {
        let mut data = Self::zeros(len);
        let mut at = 0;
        for span in spans {
            // SAFETY: the caller's promise.
            let bytes = unsafe { span.bytes() };
            let end = (at + bytes.len()).min(len);
            data.bytes_mut()[at..end].copy_from_slice(&bytes[..end - at]);
            at = end;
        }
        data
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the blocks are contiguous and initialised, and `len` is not beyond them.
        unsafe { std::slice::from_raw_parts(self.blocks.as_ptr().cast(), self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.blocks.as_mut_ptr().cast(), self.len) }
    }

    /// The bytes from `from` on, for a command that only reads them.
    pub fn span_from(&self, from: usize) -> Span {
        let base = self.blocks.as_ptr().cast::<u8>().cast_mut();
        // SAFETY: the blocks stay where they are while the command is under way: their owner keeps them until its completion.
        unsafe { Span::new(base, self.len) }.part(from, self.len - from)
    }
}

/// A write in the cache.
pub(super) struct HeldWrite {
    pub volume: VolumeId,
    pub offset: u64,
    pub data: Data,
}

impl HeldWrite {
    fn end(&self) -> u64 {
        self.offset + self.data.len() as u64
    }
}

/// What became of the writes that a cut met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fates {
    /// Writes of which nothing is left.
    pub lost: u64,
    /// Writes that are whole.
    pub kept: u64,
    /// Writes of which some blocks are left.
    pub torn: u64,
}

/// Writes in the cache, oldest first.
#[derive(Default)]
pub(super) struct HeldWrites {
    writes: Vec<HeldWrite>,
    bytes: usize,
}

impl HeldWrites {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn len(&self) -> usize {
        self.writes.len()
    }

    pub fn push(&mut self, write: HeldWrite) {
        self.bytes += write.data.len();
        self.writes.push(write);
    }

    pub fn get(&self, index: usize) -> &HeldWrite {
        &self.writes[index]
    }

    /// Forgets the oldest ones: they are on the device below.
    pub fn forget(&mut self, count: usize) {
        self.bytes -= self.writes.drain(..count).map(|write| write.data.len()).sum::<usize>();
    }

    /// Older writes get the bytes of one that went past the cache, so that they do not undo it later.
    pub fn overwrite(&mut self, newer: &HeldWrite) {
        for older in self.writes.iter_mut().filter(|older| older.volume == newer.volume) {
            let (from, to) = (older.offset.max(newer.offset), older.end().min(newer.end()));
            if from < to {
                let source = (from - newer.offset) as usize..(to - newer.offset) as usize;
                let target = (from - older.offset) as usize..(to - older.offset) as usize;
                older.data.bytes_mut()[target].copy_from_slice(&newer.data.bytes()[source]);
            }
        }
    }

    /// Puts what is in the cache over what a read of `len` bytes found below.
    ///
    /// # Safety
    /// The spans are valid, and nothing else uses them.
    pub unsafe fn patch(&self, volume: VolumeId, offset: u64, len: usize, spans: &[Span]) {
        let end = offset + len as u64;
        for write in self.writes.iter().filter(|write| write.volume == volume) {
            let (from, to) = (write.offset.max(offset), write.end().min(end));
            let mut at = offset;
            for span in spans {
                let span_end = at + span.len() as u64;
                let (first, last) = (from.max(at), to.min(span_end));
                if first < last {
                    let source = &write.data.bytes()
                        [(first - write.offset) as usize..(last - write.offset) as usize];
                    // SAFETY: the caller's promise.
                    let target = unsafe { span.bytes_mut() };
                    target[(first - at) as usize..(last - at) as usize].copy_from_slice(source);
                }
                at = span_end;
            }
        }
    }

    /// Takes all writes and returns what a power cut leaves of them, in their order; `block` is the part that is never torn.
    pub fn survivors(&mut self, prng: &mut Prng, block: usize) -> (Vec<HeldWrite>, Fates) {
        let mut fates = Fates::default();
        let mut left = Vec::new();
        let whole = prng.below(8);
        self.bytes = 0;
        for write in self.writes.drain(..) {
            let fate = match whole {
                0 => 0,
                1 => 1,
                _ => prng.below(3),
            };
            match fate {
                0 => fates.lost += 1,
                2 if write.data.len() > block => {
                    let before = left.len();
                    tear(&write, prng, block, &mut left);
                    match left.len() - before {
                        0 => fates.lost += 1,
                        _ => fates.torn += 1,
                    }
                }
                _ => {
                    fates.kept += 1;
                    left.push(write);
                }
            }
        }
        (left, fates)
    }
}

/// The blocks of a torn write that are left: a beginning of it, or any of its blocks.
fn tear(write: &HeldWrite, prng: &mut Prng, block: usize, left: &mut Vec<HeldWrite>) {
    let blocks = write.data.len().div_ceil(block);
    let beginning = (prng.below(2) == 0).then(|| prng.below(blocks as u64) as usize);
    for index in 0..blocks {
        let survives = match beginning {
            Some(count) => index < count,
            None => prng.below(2) == 0,
        };
        if survives {
            let from = index * block;
            let to = (from + block).min(write.data.len());
            let mut data = Data::zeros(to - from);
            data.bytes_mut().copy_from_slice(&write.data.bytes()[from..to]);
            let offset = write.offset + from as u64;
            left.push(HeldWrite { volume: write.volume, offset, data });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(offset: u64, byte: u8, len: usize) -> HeldWrite {
        let mut data = Data::zeros(len);
        data.bytes_mut().fill(byte);
        HeldWrite { volume: VolumeId(0), offset, data }
    }

    fn held(writes: impl IntoIterator<Item = HeldWrite>) -> HeldWrites {
        let mut held = HeldWrites::default();
        writes.into_iter().for_each(|write| held.push(write));
        held
    }

    /// What is read where the device below has zeros.
    fn read(held: &HeldWrites, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let (one, two) = bytes.split_at_mut(len / 2);
        // SAFETY: both are parts of the vector, which nothing else uses.
        let spans = [one, two].map(|part| unsafe { Span::new(part.as_mut_ptr(), part.len()) });
        // SAFETY: as above.
        unsafe { held.patch(VolumeId(0), offset, len, &spans) };
        bytes
    }

    #[test]
    fn read_finds_the_newest_write_of_each_byte() {
        let held = held([write(0, 1, 2048), write(1024, 2, 1024), write(4096, 3, 512)]);
        let found = read(&held, 512, 4096);
        let expected: Vec<u8> = [vec![1; 512], vec![2; 1024], vec![0; 2048], vec![3; 512]].concat();
        assert_eq!(found, expected);
        assert_eq!(held.bytes(), 2048 + 1024 + 512);
    }

    #[test]
    fn older_writes_do_not_undo_one_that_went_past_the_cache() {
        let mut held = held([write(0, 1, 2048)]);
        held.overwrite(&write(1024, 9, 4096));
        assert_eq!(read(&held, 0, 2048), [vec![1; 1024], vec![9; 1024]].concat());
    }

    #[test]
    fn each_write_is_lost_kept_or_torn_and_the_same_seed_decides_the_same() {
        let all = || held((0..64).map(|index| write(index * 4096, index as u8 + 1, 4096)));
        let mut seen = Fates::default();
        for seed in 0..64 {
            let (left, fates) = all().survivors(&mut Prng::new(seed), 512);
            let (again, _) = all().survivors(&mut Prng::new(seed), 512);
            let places = |left: &[HeldWrite]| -> Vec<(u64, usize)> {
                left.iter().map(|write| (write.offset, write.data.len())).collect()
            };
            assert_eq!(places(&left), places(&again));
            assert_eq!(fates.lost + fates.kept + fates.torn, 64);
            for write in &left {
                let byte = (write.offset / 4096) as u8 + 1;
                assert!(write.data.bytes().iter().all(|found| *found == byte));
                assert!(write.offset % 512 == 0 && write.data.len() % 512 == 0);
            }
            seen.lost = seen.lost.max(fates.lost);
            seen.kept = seen.kept.max(fates.kept);
            seen.torn = seen.torn.max(fates.torn);
        }
        assert_eq!((seen.lost, seen.kept), (64, 64), "some cuts lose all, some nothing");
        assert!(seen.torn > 10);
    }

    #[test]
    fn a_write_of_one_block_is_not_torn() {
        for seed in 0..32 {
            let mut held = held([write(0, 1, 4096), write(4096, 2, 4096)]);
            let (left, fates) = held.survivors(&mut Prng::new(seed), 4096);
            assert_eq!(fates.torn, 0);
            assert!(left.iter().all(|write| write.data.len() == 4096));
            assert_eq!((held.len(), held.bytes()), (0, 0));
        }
    }
}
