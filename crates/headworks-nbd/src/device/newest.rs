//! The parts of kept writes that are written again: what no newer kept write has replaced.
//!
//! The older bytes of a block would be wrong on the remote until the newer ones are there, and stay if the remote refuses those. A newer write that is
//! durable by itself is on the remote: it is not sent, and neither is what it has replaced. A discard replaces nothing, since the remote
//! may ignore it.
//!
//! Invariants: parts of writes are disjoint; replayed on what was durable, in any order, they give what was acknowledged.

use std::collections::BTreeMap;

use headworks_core::{BioFlags, Op};

use super::kept::Record;

/// A range of a kept write, in bytes of the export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// The index of the record.
    pub record: usize,
    /// Its first byte in the export.
    pub from: u64,
    /// The byte behind its last one.
    pub to: u64,
}

/// What is to be sent of records in the order of their answers, in that order. With `has_fua` a write with FUA was durable at its answer.
pub(super) fn newest_parts<'a>(
    records: impl DoubleEndedIterator<Item = &'a Record> + ExactSizeIterator,
    has_fua: bool,
) -> Vec<Part> {
    let (mut parts, mut replaced) = (Vec::with_capacity(records.len()), Ranges::default());
    for (index, record) in records.enumerate().rev() {
        let (from, to) = (record.offset, record.offset + u64::from(record.len));
        let is_write = record.op != Op::Discard;
        let is_durable = is_write && has_fua && record.flags.contains(BioFlags::FUA);
        replaced.gaps(from, to, |from, to| {
            if !is_durable {
                parts.push(Part { record: index, from, to });
            }
        });
        if is_write {
            replaced.add(from, to);
        }
    }
    parts.reverse();
    parts
}

/// Disjoint ranges that do not touch, by their first byte.
#[derive(Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// The ranges that touch one, in order.
    fn touching(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let before = self.0.range(..from).next_back().filter(|it| *it.1 >= from);
        before.into_iter().chain(self.0.range(from..=to)).map(|(&from, &to)| (from, to))
    }

    /// Calls `each` with the parts of a range that are not in here.
    fn gaps(&self, from: u64, to: u64, mut each: impl FnMut(u64, u64)) {
        let mut at = from;
        for (start, end) in self.touching(from, to) {
            if at < start {
                each(at, start);
            }
            at = at.max(end);
        }
        if at < to {
            each(at, to);
        }
    }

    fn add(&mut self, mut from: u64, mut to: u64) {
        loop {
            let Some((start, end)) = self.touching(from, to).next() else { break };
            self.0.remove(&start);
            (from, to) = (from.min(start), to.max(end));
        }
        self.0.insert(from, to);
    }
}

#[cfg(test)]
mod tests {
    use headworks_core::prng::Prng;

    use super::*;

    /// Each byte is sent from the newest record that has it, unless that one is durable; discards beside it.
    #[test]
    fn each_byte_comes_from_its_newest_write() {
        for seed in 0..300 {
            let mut prng = Prng::new(seed);
            let records: Vec<Record> = (0..prng.between(1, 40))
                .map(|sequence| {
                    let op = [Op::Write, Op::Write, Op::WriteZeroes, Op::Discard]
                        [prng.below(4) as usize];
                    let flags = [BioFlags::NONE, BioFlags::FUA][usize::from(prng.below(4) == 0)];
                    let (offset, len) = (prng.below(60), prng.between(1, 30) as u32);
                    Record::new(sequence, (op, flags), (offset, len))
                })
                .collect();
            let has_fua = prng.below(2) == 0;
            let parts = newest_parts(records.iter(), has_fua);
            assert!(parts.iter().map(|part| part.record).is_sorted(), "seed {seed}");
            for byte in 0..90 {
                let mut expected = Vec::new();
                for (index, record) in records.iter().enumerate().rev() {
                    if !(record.offset..record.offset + u64::from(record.len)).contains(&byte) {
                        continue;
                    }
                    let is_discard = record.op == Op::Discard;
                    if is_discard || !(has_fua && record.flags.contains(BioFlags::FUA)) {
                        expected.insert(0, index);
                    }
                    if !is_discard {
                        break;
                    }
                }
                let sent = parts.iter().filter(|part| (part.from..part.to).contains(&byte));
                let sent: Vec<_> = sent.map(|part| part.record).collect();
                assert_eq!(sent, expected, "seed {seed}, byte {byte}");
            }
        }
    }
}
