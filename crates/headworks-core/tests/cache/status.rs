//! Block status over a cache: dirty blocks are reported at once, the device is asked about the others only.

use std::collections::BTreeSet;

use crate::harness::{BLOCK, FAILS, Harness, MIB};
use headworks_core::prng::Prng;
use headworks_core::{Op, ReplyStage, Submit};

const TIB: u64 = 1 << 40;
const LONGEST: u64 = u32::MAX as u64 & !(BLOCK - 1);

/// The outcome of a status bio: reported by the cache, or asked of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Data(u64),
    Asked(u64, u64),
    WaitRecorder,
}

fn ask(harness: &mut Harness, offset: u64, len: u64) -> Outcome {
    let (told, in_flight) = (harness.told.len(), harness.in_flight.len());
    let id = harness.send(9, Op::BlockStatus, offset, len);
    let submit = harness.in_flight.get(in_flight).copied();
    match (harness.told.get(told), submit) {
        (Some(&(bio, len)), None) => {
            assert_eq!((bio, harness.answer(id)), (id, Some(Ok(()))));
            Outcome::Data(len.into())
        }
        (None, Some(Submit { op, offset, len, segments, .. })) => {
            assert_eq!((op, segments), (Op::BlockStatus, 1));
            let submit = harness.in_flight.remove(in_flight);
            harness.complete_this(submit, Ok(()));
            assert_eq!(harness.answer(id), Some(Ok(())), "it is answered with the device's answer");
            Outcome::Asked(offset, len.into())
        }
        (None, None) => Outcome::WaitRecorder,
        other => panic!("{other:?}"),
    }
}

#[test]
fn dirty_blocks_are_data_and_device_answers_before_them() {
    let mut harness = Harness::new(4096, |_| {});
    assert_eq!(ask(&mut harness, 0, LONGEST), Outcome::Asked(0, LONGEST));
    harness.send(1, Op::Write, 64 * MIB + 100, 2 * BLOCK);
    // The rest of its blocks is read first.
    harness.settle(Ok(()));
    assert_eq!(ask(&mut harness, 0, LONGEST), Outcome::Asked(0, 64 * MIB));
    assert_eq!(ask(&mut harness, 64 * MIB, LONGEST), Outcome::Data(3 * BLOCK));
    // It begins and ends within blocks.
    assert_eq!(ask(&mut harness, 64 * MIB + BLOCK + 1, 17), Outcome::Data(17));
    assert_eq!(ask(&mut harness, 64 * MIB - 9, 10), Outcome::Asked(64 * MIB - 9, 9));
    let behind = 64 * MIB + 3 * BLOCK;
    assert_eq!(ask(&mut harness, behind, 5 * BLOCK), Outcome::Asked(behind, 5 * BLOCK));
}

#[test]
fn outstanding_and_held_blocks_are_data_written_ones_not() {
    let mut harness = Harness::new(4096, |_| {});
    harness.send(1, Op::Write, 0, BLOCK);
    harness.send(1, Op::Flush, 0, 0);
    assert_eq!(harness.in_flight.len(), 1, "its write-out is in flight");
    assert_eq!(ask(&mut harness, 0, MIB), Outcome::Data(BLOCK));
    harness.complete(FAILS);
    assert_eq!(ask(&mut harness, 0, MIB), Outcome::Data(BLOCK));
    harness.send(1, Op::Flush, 0, 0);
    harness.settle(Ok(()));
    assert_eq!(ask(&mut harness, 0, MIB), Outcome::Asked(0, MIB));
    // A clean block proves nothing: it may be zeros that were read from a hole.
    harness.send(1, Op::Read, 8 * BLOCK, BLOCK);
    harness.settle(Ok(()));
    harness.send(1, Op::Write, 16 * BLOCK, BLOCK);
    assert_eq!(ask(&mut harness, 0, MIB), Outcome::Asked(0, 16 * BLOCK));
}

#[test]
fn status_waits_for_a_discard() {
    let mut harness = Harness::new(4096, |_| {});
    harness.send(1, Op::Write, MIB, MIB);
    let discard = harness.send(1, Op::Discard, MIB, MIB / 2);
    assert_eq!(harness.answer(discard), None, "the device has it");
    assert_eq!(ask(&mut harness, 0, 4 * MIB), Outcome::Asked(0, MIB));
    assert_eq!(ask(&mut harness, MIB, 4 * MIB), Outcome::WaitRecorder);
    assert_eq!(ask(&mut harness, MIB + MIB / 2, MIB), Outcome::Data(MIB / 2));
    harness.complete(Ok(()));
    assert_eq!(harness.answer(discard), Some(Ok(())));
    let waited = harness.in_flight.last().map(|submit| (submit.op, submit.offset, submit.len));
    assert_eq!(waited, Some((Op::BlockStatus, MIB, MIB as u32 / 2)), "it goes on by itself");
}

#[test]
fn status_time_out_replies_early_and_releases() {
    let mut harness = Harness::new(4096, |_| {});
    let id = harness.send(1, Op::BlockStatus, 0, MIB);
    harness.wait(60_000_000_000);
    assert_eq!(
        harness.answers.last().map(|last| (last.id, last.stage)),
        Some((id, ReplyStage::Early))
    );
    harness.complete(Ok(()));
    let last = harness.answers.last().map(|last| (last.id, last.stage));
    assert_eq!(last, Some((id, ReplyStage::Released)));
}

/// A search is bounded, and a terabyte with little dirty data needs few status bios.
#[test]
fn sparse_terabyte_needs_few_status_queries() {
    let mut harness = Harness::new(16_384, |_| {});
    let mut prng = Prng::new(5);
    for _ in 0..100 {
        harness.send(1, Op::Write, prng.below(TIB / MIB) * MIB, BLOCK);
    }
    let (mut at, mut questions, mut data) = (0, 0, 0);
    while at < TIB {
        questions += 1;
        at = match ask(&mut harness, at, LONGEST.min(TIB - at)) {
            Outcome::Data(len) => {
                data += len;
                at + len
            }
            Outcome::Asked(offset, len) => {
                assert!(len > 0);
                offset + len
            }
            Outcome::WaitRecorder => panic!("nothing is locked"),
        };
    }
    assert_eq!(data, 100 * BLOCK);
    assert!(questions <= 2 * 100 + 257, "{questions} questions");
}

/// Compares with a set of the dirty blocks over random writes, reads, flushes and discards.
#[test]
fn status_matches_a_set_of_dirty_blocks() {
    for order in [0, 3, 9] {
        let mut harness =
            Harness::new(8192, |config| config.devices[0].queue.max_folio_order = order);
        let mut prng = Prng::new(u64::from(order) + 1);
        let mut newer = BTreeSet::new();
        for _ in 0..2000 {
            let (block, count) = (prng.below(3000), 1 + prng.below(40));
            let (offset, len) = (block * BLOCK, count * BLOCK);
            match prng.below(12) {
                0..=3 => {
                    harness.send(1, Op::Write, offset, len);
                    newer.extend(block..block + count);
                }
                4 => {
                    harness.send(1, Op::Read, offset, len);
                }
                5 => {
                    harness.send(1, Op::Discard, offset, len);
                    newer.retain(|at| !(block..block + count).contains(at));
                }
                6 if prng.below(4) == 0 => {
                    harness.send(1, Op::Flush, 0, 0);
                    newer.clear();
                }
                _ => {
                    let is_newer = newer.contains(&block);
                    let run =
                        (block..block + count).take_while(|at| newer.contains(at) == is_newer);
                    let run = run.count() as u64 * BLOCK;
                    let expected = match is_newer {
                        true => Outcome::Data(run),
                        false => Outcome::Asked(offset, run),
                    };
                    assert_eq!(ask(&mut harness, offset, len), expected);
                }
            }
            harness.settle(Ok(()));
            if harness.dirty().nr_dirty == 0 {
                newer.clear();
            }
        }
        assert!(harness.told.len() > 50, "{} were newer", harness.told.len());
    }
}
