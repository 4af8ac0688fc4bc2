//! Block status over a cache: what is newer here is data at once, the device is asked for the rest and never beyond it.

use std::collections::BTreeSet;

use crate::desk::{BLOCK, Desk, FAILS, MIB};
use headworks_core::prng::Prng;
use headworks_core::{Op, ReplyStage, Submit};

const TIB: u64 = 1 << 40;
const LONGEST: u64 = u32::MAX as u64 & !(BLOCK - 1);

/// What became of a question: told here, or what the device is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Data(u64),
    Asked(u64, u64),
    WaitRecorder,
}

fn ask(desk: &mut Desk, offset: u64, len: u64) -> Outcome {
    let (told, flying) = (desk.told.len(), desk.flying.len());
    let id = desk.send(9, Op::BlockStatus, offset, len);
    let submit = desk.flying.get(flying).copied();
    match (desk.told.get(told), submit) {
        (Some(&(bio, len)), None) => {
            assert_eq!((bio, desk.answer(id)), (id, Some(Ok(()))));
            Outcome::Data(len.into())
        }
        (None, Some(Submit { op, offset, len, segments, .. })) => {
            assert_eq!((op, segments), (Op::BlockStatus, 1));
            let submit = desk.flying.remove(flying);
            desk.complete_this(submit, Ok(()));
            assert_eq!(desk.answer(id), Some(Ok(())), "it is answered with the device's answer");
            Outcome::Asked(offset, len.into())
        }
        (None, None) => Outcome::WaitRecorder,
        other => panic!("{other:?}"),
    }
}

#[test]
fn newer_blocks_are_data_and_the_device_is_asked_up_to_them() {
    let mut desk = Desk::new(4096, |_| {});
    assert_eq!(ask(&mut desk, 0, LONGEST), Outcome::Asked(0, LONGEST));
    desk.send(1, Op::Write, 64 * MIB + 100, 2 * BLOCK);
    // What is left of its blocks is read first.
    desk.settle(Ok(()));
    assert_eq!(ask(&mut desk, 0, LONGEST), Outcome::Asked(0, 64 * MIB));
    assert_eq!(ask(&mut desk, 64 * MIB, LONGEST), Outcome::Data(3 * BLOCK));
    // It begins and ends within blocks.
    assert_eq!(ask(&mut desk, 64 * MIB + BLOCK + 1, 17), Outcome::Data(17));
    assert_eq!(ask(&mut desk, 64 * MIB - 9, 10), Outcome::Asked(64 * MIB - 9, 9));
    let behind = 64 * MIB + 3 * BLOCK;
    assert_eq!(ask(&mut desk, behind, 5 * BLOCK), Outcome::Asked(behind, 5 * BLOCK));
}

#[test]
fn a_block_on_its_way_or_held_is_newer_and_a_written_one_is_not() {
    let mut desk = Desk::new(4096, |_| {});
    desk.send(1, Op::Write, 0, BLOCK);
    desk.send(1, Op::Flush, 0, 0);
    assert_eq!(desk.flying.len(), 1, "its write-out is on its way");
    assert_eq!(ask(&mut desk, 0, MIB), Outcome::Data(BLOCK));
    desk.complete(FAILS);
    assert_eq!(ask(&mut desk, 0, MIB), Outcome::Data(BLOCK));
    desk.send(1, Op::Flush, 0, 0);
    desk.settle(Ok(()));
    assert_eq!(ask(&mut desk, 0, MIB), Outcome::Asked(0, MIB));
    // A clean block says nothing: it may be zeros that were read from a hole.
    desk.send(1, Op::Read, 8 * BLOCK, BLOCK);
    desk.settle(Ok(()));
    desk.send(1, Op::Write, 16 * BLOCK, BLOCK);
    assert_eq!(ask(&mut desk, 0, MIB), Outcome::Asked(0, 16 * BLOCK));
}

#[test]
fn what_is_being_discarded_is_waited_for() {
    let mut desk = Desk::new(4096, |_| {});
    desk.send(1, Op::Write, MIB, MIB);
    let discard = desk.send(1, Op::Discard, MIB, MIB / 2);
    assert_eq!(desk.answer(discard), None, "the device has it");
    assert_eq!(ask(&mut desk, 0, 4 * MIB), Outcome::Asked(0, MIB));
    assert_eq!(ask(&mut desk, MIB, 4 * MIB), Outcome::WaitRecorder);
    assert_eq!(ask(&mut desk, MIB + MIB / 2, MIB), Outcome::Data(MIB / 2));
    desk.complete(Ok(()));
    assert_eq!(desk.answer(discard), Some(Ok(())));
    let waited = desk.flying.last().map(|submit| (submit.op, submit.offset, submit.len));
    assert_eq!(waited, Some((Op::BlockStatus, MIB, MIB as u32 / 2)), "it goes on by itself");
}

#[test]
fn a_question_that_times_out_is_answered_early_and_released() {
    let mut desk = Desk::new(4096, |_| {});
    let id = desk.send(1, Op::BlockStatus, 0, MIB);
    desk.wait(60_000_000_000);
    assert_eq!(
        desk.answers.last().map(|last| (last.id, last.stage)),
        Some((id, ReplyStage::Early))
    );
    desk.complete(Ok(()));
    let last = desk.answers.last().map(|last| (last.id, last.stage));
    assert_eq!(last, Some((id, ReplyStage::Released)));
}

/// A look is bounded, and a terabyte of which a little is dirty is told in few questions.
#[test]
fn a_terabyte_is_told_in_few_questions() {
    let mut desk = Desk::new(16_384, |_| {});
    let mut prng = Prng::new(5);
    for _ in 0..100 {
        desk.send(1, Op::Write, prng.below(TIB / MIB) * MIB, BLOCK);
    }
    let (mut at, mut questions, mut data) = (0, 0, 0);
    while at < TIB {
        questions += 1;
        at = match ask(&mut desk, at, LONGEST.min(TIB - at)) {
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

/// Against a set of the blocks that are newer, over random writes, reads, flushes and discards.
#[test]
fn agrees_with_a_set_of_blocks() {
    for order in [0, 3, 9] {
        let mut desk = Desk::new(8192, |config| config.devices[0].queue.max_folio_order = order);
        let mut prng = Prng::new(u64::from(order) + 1);
        let mut newer = BTreeSet::new();
        for _ in 0..2000 {
            let (block, count) = (prng.below(3000), 1 + prng.below(40));
            let (offset, len) = (block * BLOCK, count * BLOCK);
            match prng.below(12) {
                0..=3 => {
                    desk.send(1, Op::Write, offset, len);
                    newer.extend(block..block + count);
                }
                4 => {
                    desk.send(1, Op::Read, offset, len);
                }
                5 => {
                    desk.send(1, Op::Discard, offset, len);
                    newer.retain(|at| !(block..block + count).contains(at));
                }
                6 if prng.below(4) == 0 => {
                    desk.send(1, Op::Flush, 0, 0);
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
                    assert_eq!(ask(&mut desk, offset, len), expected);
                }
            }
            desk.settle(Ok(()));
            if desk.dirty().nr_dirty == 0 {
                newer.clear();
            }
        }
        assert!(desk.told.len() > 50, "{} were newer", desk.told.len());
    }
}
