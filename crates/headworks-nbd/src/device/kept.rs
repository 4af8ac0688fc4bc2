//! Copies of acknowledged writes that no flush of the remote covers yet: the answer to a remote that restarts.
//!
//! A server with a volatile cache may lose what it acknowledged. NFS clients keep such data until a commit whose verifier says that the
//! server is still the same one; here, until a flush succeeds. After a restart the newest copy of each byte is written again, before anything
//! else: nothing is lost, and no client notices. When half of the memory is used the device flushes by itself, and when all of it
//! is, writes wait for that flush.
//!
//! ```text
//!   send a write:   reserve its bytes ---> keep at its answer ---> released by a flush that was sent later
//!                        '--> give back (it failed, or is durable by itself)
//! ```
//!
//! Records lie in a ring in the order of their answers. The queue above holds back writes that overlap one in flight, so the later of two
//! records of one block is the newer one.
//!
//! Invariants: reserved and kept bytes never exceed the memory; a write that was not kept ([`Kept::miss`]) makes the record incomplete
//! until a flush covers it.

use std::collections::VecDeque;

use headworks::driver::Span;
use headworks_core::{BioFlags, Op};

use super::newest::Part;

/// Records at most, each of 48 bytes.
const RECORDS_MAX: usize = 1 << 16;

/// An acknowledged write or write of zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// The number of the write among those that were acknowledged.
    pub sequence: u64,
    pub op: Op,
    pub flags: BioFlags,
    pub offset: u64,
    pub len: u32,
    /// Where its bytes begin in the ring.
    at: usize,
}

impl Record {
    /// A record without data of its own in a ring, for tests.
    #[cfg(test)]
    pub fn new(sequence: u64, (op, flags): (Op, BioFlags), (offset, len): (u64, u32)) -> Self {
        Self { sequence, op, flags, offset, len, at: 0 }
    }

    /// Bytes of its data in the ring.
    fn bytes(&self) -> usize {
        bytes_of(self.op, self.len)
    }
}

/// Bytes of data that a write has.
fn bytes_of(op: Op, len: u32) -> usize {
    if op == Op::Write { len as usize } else { 0 }
}

/// Acknowledged writes that no flush covers.
#[derive(Debug)]
pub(super) struct Kept {
    ring: Box<[u8]>,
    /// Where the next byte goes.
    end: usize,
    /// Bytes of records.
    used: usize,
    /// Bytes and number of the writes that are sent.
    reserved: (usize, usize),
    records: VecDeque<Record>,
    /// The last write that was not kept, until a flush covers it.
    missed: Option<u64>,
}

impl Kept {
    /// Room for `bytes`; with 0 nothing is kept. The memory is taken from the system when it is first used.
    pub fn new(bytes: usize) -> Self {
        Self {
            ring: vec![0; bytes].into_boxed_slice(),
            end: 0,
            used: 0,
            reserved: (0, 0),
            records: VecDeque::new(),
            missed: None,
        }
    }

    /// Whether a write could ever be kept.
    pub fn can_keep(&self, op: Op, len: u32) -> bool {
        !self.ring.is_empty() && bytes_of(op, len) <= self.ring.len() / 2
    }

    /// Reserves the room of a write that is to be sent; false if it must wait for a flush.
    pub fn reserve(&mut self, op: Op, len: u32) -> bool {
        debug_assert!(self.can_keep(op, len), "what can never be kept is missed");
        let bytes = bytes_of(op, len);
        let fits = self.used + self.reserved.0 + bytes <= self.ring.len()
            && self.records.len() + self.reserved.1 < RECORDS_MAX;
        if fits {
            self.reserved = (self.reserved.0 + bytes, self.reserved.1 + 1);
        }
        fits
    }

    /// Gives back the room of a write that failed, that is durable by itself, or that is to be sent again.
    pub fn give_back(&mut self, op: Op, len: u32) {
        let bytes = bytes_of(op, len);
        assert!(self.reserved.0 >= bytes && self.reserved.1 > 0, "the write reserved its room");
        self.reserved = (self.reserved.0 - bytes, self.reserved.1 - 1);
    }

    /// Keeps an acknowledged write that has reserved its room, with its data in `parts`.
    ///
    /// # Safety
    /// The memory of the parts is valid.
    pub unsafe fn keep(
        &mut self,
        sequence: u64,
        (op, flags): (Op, BioFlags),
        (offset, len): (u64, u32),
        parts: impl Iterator<Item = Span>,
    ) {
        self.give_back(op, len);
        debug_assert!(self.records.back().is_none_or(|last| last.sequence < sequence));
        let record = Record { sequence, op, flags, offset, len, at: self.end };
        let mut left = record.bytes();
        for part in parts {
            // SAFETY: as the caller says.
            let bytes = unsafe { part.bytes() };
            let bytes = &bytes[..bytes.len().min(left)];
            self.append(bytes);
            left -= bytes.len();
        }
        // A write without memory is one of zeros.
        while left > 0 {
            let zeros = [0; 4096];
            let count = left.min(zeros.len());
            self.append(&zeros[..count]);
            left -= count;
        }
        self.used += record.bytes();
        self.records.push_back(record);
    }

    fn append(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(self.ring.len() - self.end));
        self.ring[self.end..self.end + first.len()].copy_from_slice(first);
        self.ring[..rest.len()].copy_from_slice(rest);
        self.end = if rest.is_empty() { self.end + first.len() } else { rest.len() };
        if self.end == self.ring.len() {
            self.end = 0;
        }
    }

    /// Notes an acknowledged write that was not kept.
    pub fn miss(&mut self, sequence: u64) {
        self.missed = Some(sequence);
    }

    /// Whether every acknowledged write that no flush covers is kept.
    pub fn is_complete(&self) -> bool {
        self.missed.is_none()
    }

    /// Whether it is time for a flush.
    pub fn wants_flush(&self) -> bool {
        let (used, most) = (self.used + self.reserved.0, self.ring.len());
        let has_any = !self.records.is_empty() || self.missed.is_some() && most > 0;
        let many = self.records.len() + self.reserved.1 > RECORDS_MAX / 2;
        has_any && (used > most / 2 || many || self.missed.is_some())
    }

    /// Releases what a flush covers: the writes up to `sequence`.
    pub fn release(&mut self, sequence: u64) {
        while let Some(first) = self.records.front().filter(|first| first.sequence <= sequence) {
            self.used -= first.bytes();
            self.records.pop_front();
        }
        self.missed = self.missed.filter(|&missed| missed > sequence);
    }

    /// Forgets everything: it was told that it may be lost.
    pub fn clear(&mut self) {
        self.records.clear();
        (self.used, self.missed) = (0, None);
    }

    /// The number of records.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// The records in the order of answers.
    pub fn records(&self) -> impl DoubleEndedIterator<Item = &Record> + ExactSizeIterator {
        self.records.iter()
    }

    /// A record, and the data of a part of it; the memory stays until the record is released.
    pub fn part(&self, part: Part) -> (Record, [&[u8]; 2]) {
        let record = self.records[part.record];
        if record.bytes() == 0 {
            return (record, [&[], &[]]);
        }
        let (skip, len) = ((part.from - record.offset) as usize, (part.to - part.from) as usize);
        let at = (record.at + skip) % self.ring.len();
        let first = len.min(self.ring.len() - at);
        (record, [&self.ring[at..at + first], &self.ring[..len - first]])
    }
}

#[cfg(test)]
mod tests {
    use headworks_core::prng::Prng;

    use super::super::newest::newest_parts;
    use super::*;

    fn keep(kept: &mut Kept, sequence: u64, offset: u64, data: &mut [u8]) {
        let len = data.len() as u32;
        assert!(kept.reserve(Op::Write, len));
        let (first, rest) = data.split_at_mut(data.len() / 3);
        // SAFETY: two parts of a slice that lives.
        unsafe {
            let parts = [first, rest].map(|part| Span::new(part.as_mut_ptr(), part.len()));
            kept.keep(sequence, (Op::Write, BioFlags::NONE), (offset, len), parts.into_iter());
        }
    }

    /// Replayed on what the flushes made durable, the records give the bytes of all acknowledged writes.
    #[test]
    fn replay_on_what_was_flushed_gives_what_was_acknowledged() {
        for seed in 0..200 {
            let mut prng = Prng::new(seed);
            let mut kept = Kept::new(4096);
            let (mut now, mut flushed) = (vec![0; 512], vec![0; 512]);
            for sequence in 1..200 {
                let (offset, len) = (prng.below(400), prng.between(1, 100) as usize);
                let mut data: Vec<u8> = (0..len).map(|_| prng.below(256) as u8).collect();
                if !kept.can_keep(Op::Write, len as u32) || kept.wants_flush() && prng.below(3) == 0
                {
                    flushed.copy_from_slice(&now);
                    kept.release(sequence - 1);
                    assert_eq!((kept.len(), kept.used), (0, 0));
                }
                if kept.used + len > 4096 {
                    assert!(!kept.reserve(Op::Write, len as u32), "a full ring takes no more");
                    continue;
                }
                now[offset as usize..][..len].copy_from_slice(&data);
                keep(&mut kept, sequence, offset, &mut data);
                let mut again = flushed.clone();
                for part in newest_parts(kept.records(), false) {
                    let bytes = kept.part(part).1.concat();
                    again[part.from as usize..part.to as usize].copy_from_slice(&bytes);
                }
                assert!(again == now, "seed {seed}, write {sequence}");
            }
        }
    }

    #[test]
    fn flush_releases_what_was_answered_before_it_was_sent() {
        let mut kept = Kept::new(1000);
        for sequence in 1..=3 {
            keep(&mut kept, sequence, 0, &mut [sequence as u8; 300]);
        }
        assert!(kept.wants_flush());
        kept.release(2);
        assert_eq!((kept.len(), kept.used), (1, 300));
        assert_eq!(kept.part(Part { record: 0, from: 0, to: 300 }).1.concat(), [3; 300]);
    }

    #[test]
    fn what_is_missed_is_complete_again_after_a_flush_that_covers_it() {
        let mut kept = Kept::new(1000);
        assert!(!kept.can_keep(Op::Write, 501) && kept.can_keep(Op::WriteZeroes, 1 << 30));
        kept.miss(7);
        assert!(!kept.is_complete() && kept.wants_flush());
        kept.release(6);
        assert!(!kept.is_complete());
        kept.release(7);
        assert!(kept.is_complete() && !kept.wants_flush());
        assert!(!Kept::new(0).can_keep(Op::Write, 1));
    }

    #[test]
    fn writes_that_are_sent_have_their_room() {
        let mut kept = Kept::new(1000);
        assert!(kept.reserve(Op::Write, 400) && kept.reserve(Op::Write, 500));
        assert!(!kept.reserve(Op::Write, 200), "reserved room is not given twice");
        kept.give_back(Op::Write, 400);
        assert!(kept.reserve(Op::Write, 200));
        assert!(kept.reserve(Op::WriteZeroes, 1 << 20), "zeros have no data");
    }
}
