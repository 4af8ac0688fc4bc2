//! What the oracle allows, told as games with one sector.

use super::*;
use headworks_core::IoError;

/// One sector, bios by hand.
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

    /// Which of the contents may survive a cut now.
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
fn a_completed_write_is_seen_and_an_overlapping_one_may_be() {
    let mut game = OracleTest::new();
    let one = game.write();
    let two = game.start(Op::Write, BioFlags::NONE);
    assert!(!game.may_see(&ZEROS) && game.may_see(&two.2) && game.may_see(&one));
    game.end(&two, Ok(()), ReplyStage::Final);
    assert!(!game.may_see(&one) && game.may_see(&two.2));
}

#[test]
fn what_a_read_saw_of_concurrent_writes_stays() {
    let mut game = OracleTest::new();
    let (one, two) = (game.start(Op::Write, BioFlags::NONE), game.start(Op::Write, BioFlags::NONE));
    game.end(&two, Ok(()), ReplyStage::Final);
    game.end(&one, Ok(()), ReplyStage::Final);
    assert!(game.may_see(&two.2) && game.may_see(&two.2) && !game.may_see(&one.2));
    game.flush();
    assert_eq!(game.survivors(&[&one.2, &two.2]), [false, true]);
}

#[test]
fn what_a_read_fixed_binds_reads_that_begin_later() {
    let mut game = OracleTest::new();
    let one = game.write();
    let failed = game.start(Op::Write, BioFlags::NONE);
    let slow = game.start(Op::Read, BioFlags::NONE);
    game.end(&failed, Err(IoError::Medium), ReplyStage::Final);
    assert!(game.may_see(&one) && !game.may_see(&failed.2));
    // It took its bytes while they were in memory, and waited for others since.
    let (bio, ticket, _) = slow;
    let answer = game.oracle.answer(&bio, ticket, Ok(()), false, ReplyStage::Final, &failed.2);
    assert_eq!(answer, Ok(()));
    assert!(game.may_see(&one) && !game.may_see(&failed.2), "nor does it undo that");
}

#[test]
fn a_flush_counts_what_was_acknowledged_before_it_was_submitted() {
    let mut game = OracleTest::new();
    let one = game.write();
    let flush = game.start(Op::Flush, BioFlags::NONE);
    let two = game.write();
    game.end(&flush, Ok(()), ReplyStage::Final);
    assert_eq!(game.survivors(&[&ZEROS, &one, &two]), [false, true, true]);
    let mut game = OracleTest::new();
    let one = game.write();
    let flush = game.start(Op::Flush, BioFlags::NONE);
    game.end(&flush, Err(IoError::Medium), ReplyStage::Final);
    assert_eq!(game.survivors(&[&ZEROS, &one]), [true, true]);
}

#[test]
fn fua_is_durable_alone() {
    let mut game = OracleTest::new();
    let one = game.write();
    let two = game.run(Op::Write, BioFlags::FUA);
    let three = game.write();
    let survive = game.survivors(&[&ZEROS, &one, &two, &three]);
    assert_eq!(survive, [false, false, true, true]);
}

#[test]
fn a_failed_write_is_old_or_new_and_a_late_one_never_beats_its_successor() {
    let mut game = OracleTest::new();
    let one = game.write();
    let late = game.start(Op::Write, BioFlags::NONE);
    game.end(&late, Err(IoError::TimedOut), ReplyStage::Early);
    assert!(game.may_see(&one) && game.may_see(&late.2) && game.may_see(&one));
    let two = game.write();
    assert!(!game.may_see(&late.2) && !game.may_see(&one) && game.may_see(&two));
    game.end(&late, Ok(()), ReplyStage::Released);
    assert!(!game.may_see(&late.2) && game.may_see(&two));
}

#[test]
fn discard_leaves_old_or_zeros_and_write_zeroes_leaves_zeros() {
    let mut game = OracleTest::new();
    let one = game.write();
    game.run(Op::Discard, BioFlags::NONE);
    assert!(game.may_see(&one) && game.may_see(&ZEROS) && game.may_see(&one));
    game.run(Op::WriteZeroes, BioFlags::NONE);
    assert!(!game.may_see(&one) && game.may_see(&ZEROS));
}

#[test]
fn a_discard_may_cancel_what_is_in_memory_only() {
    let mut game = OracleTest::of(WriteMode::Writeback);
    let one = game.write();
    game.flush();
    let two = game.write();
    game.run(Op::Discard, BioFlags::NONE);
    assert!(game.may_see(&one) && game.may_see(&two) && game.may_see(&ZEROS));
    let three = game.write();
    assert!(!game.may_see(&one) && !game.may_see(&two) && game.may_see(&three));
    game.flush();
    assert_eq!(game.survivors(&[&one, &two, &ZEROS, &three]), [false, false, false, true]);
    let mut game = OracleTest::of(WriteMode::None);
    let (one, two) = (game.write(), game.write());
    game.run(Op::Discard, BioFlags::NONE);
    assert!(!game.may_see(&one) && game.may_see(&two));
}

#[test]
fn what_the_operator_gave_up_is_old_or_new() {
    let mut game = OracleTest::of(WriteMode::Writeback);
    let (one, two) = (game.write(), game.write());
    assert!(!game.may_see(&one));
    game.oracle.give_up(0, 0, 512);
    assert!(game.may_see(&one) && game.may_see(&two));
    game.flush();
    assert_eq!(game.survivors(&[&one, &two]), [true, true]);
}

#[test]
fn an_unsafe_volume_keeps_any_version_of_its_own_through_a_cut() {
    let mut game = OracleTest::of(WriteMode::Unsafe);
    let one = game.write();
    game.flush();
    let two = game.write();
    game.flush();
    assert!(!game.may_see(&one) && game.may_see(&two));
    let mut foreign = one.clone();
    sector_pattern::fill(&mut foreign, 1, 0, 1);
    assert_eq!(game.survivors(&[&ZEROS, &one, &two, &foreign]), [true, true, true, false]);
}

#[test]
fn parts_of_a_sector_have_versions_of_their_own() {
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
fn lists_stay_short_when_flushes_come() {
    let mut game = OracleTest::new();
    for _ in 0..1_000 {
        game.write();
        game.flush();
    }
    assert!(game.oracle.entries_max() <= LIST_LONG + 2);
    assert!(game.oracle.writes.len() <= LIST_LONG + 3);
}

#[test]
fn foreign_bytes_are_named() {
    let mut game = OracleTest::new();
    let mut bytes = game.write();
    bytes[100] ^= 1;
    assert!(!game.may_see(&bytes) && !game.may_see(&[sector_pattern::POISON; 512]));
}
