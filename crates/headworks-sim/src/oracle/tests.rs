//! Tests of the oracle with one sector.

use super::*;
use headworks_core::IoError;

/// An oracle of one sector, driven bio by bio.
struct OracleTest {
    oracle: Oracle,
}

type Flight = (Bio, Ticket, Vec<u8>);

impl OracleTest {
    fn new() -> Self {
        Self::of(WriteMode::None)
    }

    fn of(mode: WriteMode) -> Self {
        let oracle =
            Oracle::new(&[Contract { size: 512, cuts: whole_sectors(), mode, lasting: false }]);
        Self { oracle }
    }

    fn start(&mut self, op: Op, flags: BioFlags) -> Flight {
        let bio = Bio {
            id: BioId::default(),
            offset: 0,
            len: if op == Op::Flush { 0 } else { 512 },
            op,
            flags,
            ..Bio::default()
        };
        let mut bytes = vec![0; 512];
        let ticket = self.oracle.submit(&bio, &mut bytes);
        (bio, ticket, bytes)
    }

    fn end(&mut self, flight: &Flight, status: Status, stage: ReplyStage) {
        let (bio, ticket, bytes) = flight;
        let answer = self.oracle.answer(bio, *ticket, status, false, stage, bytes);
        answer.unwrap();
    }

    fn run(&mut self, op: Op, flags: BioFlags) -> Vec<u8> {
        let flight = self.start(op, flags);
        self.end(&flight, Ok(()), ReplyStage::Final);
        flight.2
    }

    fn write(&mut self) -> Vec<u8> {
        self.run(Op::Write, BioFlags::NONE)
    }

    fn flush(&mut self) {
        self.run(Op::Flush, BioFlags::NONE);
    }

    fn may_see(&mut self, bytes: &[u8]) -> bool {
        let (bio, ticket, _) = self.start(Op::Read, BioFlags::NONE);
        let stage = ReplyStage::Final;
        let answer = self.oracle.answer(&bio, ticket, Ok(()), false, stage, bytes);
        answer.is_ok()
    }

    /// Which of `contents` may be there after the process dies now.
    fn left(mut self, contents: &[&[u8]]) -> Vec<bool> {
        self.oracle.die(true);
        self.survivors(contents)
    }

    /// The process dies, and what it leaves in the kernel is read: it is durable with the next flush only.
    fn die_and_read(&mut self, found: &[u8]) {
        self.oracle.die(false);
        self.oracle.cut();
        assert!(self.may_see(found));
        self.oracle.recovered().unwrap();
    }

    /// Which of `contents` may survive a power cut now.
    fn survivors(mut self, contents: &[&[u8]]) -> Vec<bool> {
        self.oracle.cut();
        let state = self.oracle.cells[0];
        let try_one = |bytes: &&[u8]| {
            self.oracle.cells[0] = state;
            self.may_see(bytes)
        };
        contents.iter().map(try_one).collect()
    }
}

const ZEROS: [u8; 512] = [0; 512];

#[test]
fn completed_write_must_be_read_and_overlapping_one_may_be() {
    let mut oracle = OracleTest::new();
    let one = oracle.write();
    let two = oracle.start(Op::Write, BioFlags::NONE);
    assert!(!oracle.may_see(&ZEROS) && oracle.may_see(&two.2) && oracle.may_see(&one));
    oracle.end(&two, Ok(()), ReplyStage::Final);
    assert!(!oracle.may_see(&one) && oracle.may_see(&two.2));
}

#[test]
fn first_read_fixes_order_of_concurrent_writes() {
    let mut oracle = OracleTest::new();
    let (one, two) =
        (oracle.start(Op::Write, BioFlags::NONE), oracle.start(Op::Write, BioFlags::NONE));
    oracle.end(&two, Ok(()), ReplyStage::Final);
    oracle.end(&one, Ok(()), ReplyStage::Final);
    assert!(oracle.may_see(&two.2) && oracle.may_see(&two.2) && !oracle.may_see(&one.2));
    oracle.flush();
    assert_eq!(oracle.survivors(&[&one.2, &two.2]), [false, true]);
}

#[test]
fn fixed_order_binds_only_later_reads() {
    let mut oracle = OracleTest::new();
    let one = oracle.write();
    let failed = oracle.start(Op::Write, BioFlags::NONE);
    let slow = oracle.start(Op::Read, BioFlags::NONE);
    oracle.end(&failed, Err(IoError::Medium), ReplyStage::Final);
    assert!(oracle.may_see(&one) && !oracle.may_see(&failed.2));
    // It copied its bytes while they were in memory, and has waited for other parts since.
    let (bio, ticket, _) = slow;
    let answer = oracle.oracle.answer(&bio, ticket, Ok(()), false, ReplyStage::Final, &failed.2);
    assert_eq!(answer, Ok(()));
    assert!(oracle.may_see(&one) && !oracle.may_see(&failed.2), "nor does it undo that");
}

#[test]
fn flush_covers_writes_acknowledged_before_its_submission() {
    let mut oracle = OracleTest::new();
    let one = oracle.write();
    let flush = oracle.start(Op::Flush, BioFlags::NONE);
    let two = oracle.write();
    oracle.end(&flush, Ok(()), ReplyStage::Final);
    assert_eq!(oracle.survivors(&[&ZEROS, &one, &two]), [false, true, true]);
    let mut oracle = OracleTest::new();
    let one = oracle.write();
    let flush = oracle.start(Op::Flush, BioFlags::NONE);
    oracle.end(&flush, Err(IoError::Medium), ReplyStage::Final);
    assert_eq!(oracle.survivors(&[&ZEROS, &one]), [true, true]);
}

#[test]
fn fua_write_is_durable_without_flush() {
    let mut oracle = OracleTest::new();
    let one = oracle.write();
    let two = oracle.run(Op::Write, BioFlags::FUA);
    let three = oracle.write();
    let survive = oracle.survivors(&[&ZEROS, &one, &two, &three]);
    assert_eq!(survive, [false, false, true, true]);
}

#[test]
fn failed_write_is_old_or_new_and_never_supersedes_successor() {
    let mut oracle = OracleTest::new();
    let one = oracle.write();
    let late = oracle.start(Op::Write, BioFlags::NONE);
    oracle.end(&late, Err(IoError::TimedOut), ReplyStage::Early);
    assert!(oracle.may_see(&one) && oracle.may_see(&late.2) && oracle.may_see(&one));
    let two = oracle.write();
    assert!(!oracle.may_see(&late.2) && !oracle.may_see(&one) && oracle.may_see(&two));
    oracle.end(&late, Ok(()), ReplyStage::Released);
    assert!(!oracle.may_see(&late.2) && oracle.may_see(&two));
}

#[test]
fn discard_leaves_old_or_zeros_and_write_zeroes_leaves_zeros() {
    let mut oracle = OracleTest::new();
    let one = oracle.write();
    oracle.run(Op::Discard, BioFlags::NONE);
    assert!(oracle.may_see(&one) && oracle.may_see(&ZEROS) && oracle.may_see(&one));
    oracle.run(Op::WriteZeroes, BioFlags::NONE);
    assert!(!oracle.may_see(&one) && oracle.may_see(&ZEROS));
}

#[test]
fn discard_may_drop_writes_that_are_not_durable() {
    let mut oracle = OracleTest::of(WriteMode::Writeback);
    let one = oracle.write();
    oracle.flush();
    let two = oracle.write();
    oracle.run(Op::Discard, BioFlags::NONE);
    assert!(oracle.may_see(&one) && oracle.may_see(&two) && oracle.may_see(&ZEROS));
    let three = oracle.write();
    assert!(!oracle.may_see(&one) && !oracle.may_see(&two) && oracle.may_see(&three));
    oracle.flush();
    assert_eq!(oracle.survivors(&[&one, &two, &ZEROS, &three]), [false, false, false, true]);
    let mut oracle = OracleTest::of(WriteMode::None);
    let (one, two) = (oracle.write(), oracle.write());
    oracle.run(Op::Discard, BioFlags::NONE);
    assert!(!oracle.may_see(&one) && oracle.may_see(&two));
}

#[test]
fn discarded_failed_data_are_old_or_new() {
    let mut oracle = OracleTest::of(WriteMode::Writeback);
    let (one, two) = (oracle.write(), oracle.write());
    assert!(!oracle.may_see(&one));
    oracle.oracle.discard_failed(0, 0, 512);
    assert!(oracle.may_see(&one) && oracle.may_see(&two));
    oracle.flush();
    assert_eq!(oracle.survivors(&[&one, &two]), [true, true]);
}

#[test]
fn power_cut_of_unsafe_volume_may_leave_any_version() {
    let mut oracle = OracleTest::of(WriteMode::Unsafe);
    let one = oracle.write();
    oracle.flush();
    let two = oracle.write();
    oracle.flush();
    assert!(!oracle.may_see(&one) && oracle.may_see(&two));
    let mut foreign = one.clone();
    sector_pattern::fill(&mut foreign, 1, 0, 1);
    assert_eq!(oracle.survivors(&[&ZEROS, &one, &two, &foreign]), [true, true, true, false]);
}

#[test]
fn discard_in_flight_may_drop_a_write_of_an_unsafe_volume_that_asked_for_fua() {
    for is_answered in [false, true] {
        let mut oracle = OracleTest::of(WriteMode::Unsafe);
        let one = oracle.write();
        let discard = oracle.start(Op::Discard, BioFlags::NONE);
        if is_answered {
            oracle.end(&discard, Ok(()), ReplyStage::Final);
        }
        let two = oracle.run(Op::Write, BioFlags::FUA);
        assert_eq!(oracle.left(&[&one, &two]), [!is_answered, true]);
    }
}

#[test]
fn cells_of_a_sector_have_separate_versions() {
    for seed in 0..200 {
        let cuts = draw_cuts(&mut Prng::new(seed));
        let mode = WriteMode::Writeback;
        let contract = Contract { size: 1024, cuts: cuts.to_vec(), mode, lasting: false };
        let mut oracle = Oracle::new(&[contract]);
        let (start, end) = (u64::from(cuts[2]), 512 + u64::from(cuts[1]));
        let bio =
            |op, offset, end| Bio { op, offset, len: (end - offset) as u32, ..Bio::default() };
        let write = bio(Op::Write, start, end);
        let mut bytes = vec![0; write.len as usize];
        let ticket = oracle.submit(&write, &mut bytes);
        let done = ReplyStage::Final;
        oracle.answer(&write, ticket, Ok(()), false, done, &bytes).unwrap();
        let mut whole = vec![0; 1024];
        whole[start as usize..end as usize].copy_from_slice(&bytes);
        let mut see = |whole: &[u8]| {
            let read = bio(Op::Read, 0, 1024);
            let ticket = oracle.submit(&read, &mut []);
            oracle.answer(&read, ticket, Ok(()), false, done, whole).is_ok()
        };
        assert!(see(&whole), "seed {seed}");
        for at in [0, start - 1, start, 511, 512, end - 1, end, 1023] {
            whole[at as usize] ^= 1;
            assert!(!see(&whole), "seed {seed}, byte {at}");
            whole[at as usize] ^= 1;
        }
    }
}

#[test]
fn flushes_keep_version_lists_short() {
    let mut oracle = OracleTest::new();
    for _ in 0..1_000 {
        oracle.write();
        oracle.flush();
    }
    assert!(oracle.oracle.entries_max() <= LIST_LONG + 2);
    assert!(oracle.oracle.writes.len() <= LIST_LONG + 3);
}

#[test]
fn foreign_data_are_reported() {
    let mut oracle = OracleTest::new();
    let mut bytes = oracle.write();
    bytes[100] ^= 1;
    assert!(!oracle.may_see(&bytes) && !oracle.may_see(&[sector_pattern::POISON; 512]));
}

#[test]
fn what_a_death_left_is_durable_with_the_next_flush() {
    let mut oracle = OracleTest::new();
    let one = oracle.write();
    oracle.flush();
    let two = oracle.write();
    let three = oracle.start(Op::Write, BioFlags::NONE);
    oracle.die_and_read(&two);
    assert!(oracle.may_see(&two) && !oracle.may_see(&one) && !oracle.may_see(&three.2));
    let flushed = |flush: bool| {
        let mut oracle = OracleTest::new();
        let one = oracle.write();
        oracle.flush();
        let two = oracle.write();
        oracle.die_and_read(&two);
        if flush {
            oracle.flush();
        }
        oracle.survivors(&[&one, &two])
    };
    assert_eq!((flushed(false), flushed(true)), (vec![true, true], vec![false, true]));
}
