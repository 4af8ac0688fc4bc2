//! Regression tests of bugs that the simulator found, each reduced to one shard, one device and scripted completions.

use headworks_core::time::SEC;
use headworks_core::*;

struct Harness {
    shard: Shard,
    now: Instant,
}

impl Harness {
    fn new(queue: QueueOptions) -> Self {
        let volume = VolumeOptions { size: 1 << 20, block_size: 512, ..VolumeOptions::default() };
        let config = ShardConfig::single(queue, volume, 16);
        Self { shard: Shard::new(config).unwrap(), now: Instant(0) }
    }

    fn step(&mut self, inputs: &[Input]) -> Vec<Action> {
        self.shard.handle(self.now, inputs);
        let list = self.shard.actions().list.clone();
        self.shard.clear_actions();
        list
    }

    fn bio(
        &mut self,
        op: Op,
        flags: BioFlags,
        sequence: u64,
        offset: u64,
        len: u32,
    ) -> Vec<Action> {
        let id = BioId { sequence, ..BioId::default() };
        let bio = Bio { id, offset, len, op, flags, ..Bio::default() };
        self.step(&[Input::Bio(bio)])
    }

    fn answer(&mut self, submit: Submit, transferred: u32, hole: bool) -> Vec<Action> {
        let completion = Completion { id: submit.id, transferred, status: Ok(()), hole };
        let device = submit.device;
        self.step(&[Input::Complete { device, completion }])
    }
}

fn submits(actions: &[Action]) -> Vec<Submit> {
    let submit = |action: &Action| match action {
        Action::Submit(submit) => Some(*submit),
        _ => None,
    };
    actions.iter().filter_map(submit).collect()
}

/// (sequence, status, hole, stage) of every reply.
fn replies(actions: &[Action]) -> Vec<(u64, Status, bool, ReplyStage)> {
    let reply = |action: &Action| match *action {
        Action::Reply { id, status, hole, stage, .. } => Some((id.sequence, status, hole, stage)),
        _ => None,
    };
    actions.iter().filter_map(reply).collect()
}

const DONE: (u64, Status, bool, ReplyStage) = (1, Ok(()), false, ReplyStage::Final);

#[test]
fn unsupported_discard_and_zeroing_are_never_sent() {
    let queue = QueueOptions { discard: false, write_zeroes: false, ..QueueOptions::default() };
    let mut harness = Harness::new(queue);
    let actions = harness.bio(Op::Discard, BioFlags::NONE, 1, 0, 65536);
    assert_eq!((submits(&actions).len(), replies(&actions)), (0, vec![DONE]));
    let actions = harness.bio(Op::WriteZeroes, BioFlags::FAST_ZERO, 1, 0, 4096);
    let refused = (1, Err(IoError::Unsupported), false, ReplyStage::Final);
    assert_eq!(replies(&actions), [refused]);
    let sent = submits(&harness.bio(Op::WriteZeroes, BioFlags::NONE, 1, 0, 4096));
    assert_eq!((sent[0].op, sent[0].segments, sent[0].len), (Op::Write, 0, 4096));
    assert_eq!(replies(&harness.answer(sent[0], 4096, false)), [DONE]);
}

#[test]
fn short_hole_is_read_again_as_data() {
    let mut harness = Harness::new(QueueOptions::default());
    let first = submits(&harness.bio(Op::Read, BioFlags::HOLE_OK, 1, 0, 4096))[0];
    let again = submits(&harness.answer(first, 1024, true))[0];
    assert_eq!((again.offset, again.len), (0, 4096));
    assert!(!again.flags.contains(BioFlags::HOLE_OK));
    assert_eq!(replies(&harness.answer(again, 4096, false)), [DONE]);
}

#[test]
fn rest_of_short_read_is_read_as_data() {
    let mut harness = Harness::new(QueueOptions::default());
    let first = submits(&harness.bio(Op::Read, BioFlags::HOLE_OK, 1, 0, 4096))[0];
    let rest = submits(&harness.answer(first, 1024, false))[0];
    assert_eq!((rest.offset, rest.len), (1024, 3072));
    assert!(!rest.flags.contains(BioFlags::HOLE_OK));
}

#[test]
fn queued_write_is_not_sent_beside_timed_out_write() {
    let queue = QueueOptions { queue_depth: 2, io_timeout_ns: SEC, ..QueueOptions::default() };
    let mut harness = Harness::new(queue);
    let late = submits(&harness.bio(Op::Write, BioFlags::NONE, 1, 0, 4096))[0];
    let other = submits(&harness.bio(Op::Read, BioFlags::NONE, 2, 65536, 512))[0];
    // The device is full: this write waits in the elevator.
    assert!(submits(&harness.bio(Op::Write, BioFlags::NONE, 3, 2048, 4096)).is_empty());
    harness.now = Instant(SEC / 2);
    let next = submits(&harness.answer(other, 512, false));
    // It may be sent while the first write is in time; then the device decides their order. Occupy the slot with a read next.
    assert_eq!(next.len(), 1, "in time, so it is sent");
    harness.answer(next[0], 4096, false);
    let read = submits(&harness.bio(Op::Read, BioFlags::NONE, 4, 65536, 512))[0];
    assert!(submits(&harness.bio(Op::Write, BioFlags::NONE, 5, 2048, 4096)).is_empty());
    harness.now = Instant(SEC + 1);
    let early = replies(&harness.step(&[Input::Timer]));
    assert_eq!(early, [(1, Err(IoError::TimedOut), false, ReplyStage::Early)]);
    let actions = harness.answer(read, 512, false);
    assert!(submits(&actions).is_empty(), "the late write could overwrite it");
    let refused = (5, Err(IoError::TimedOut), false, ReplyStage::Final);
    assert!(replies(&actions).contains(&refused));
    assert_eq!(
        replies(&harness.answer(late, 4096, false)),
        [(1, Err(IoError::TimedOut), false, ReplyStage::Released)]
    );
    assert!(harness.shard.is_quiet());
}

#[test]
fn steps_of_long_commands_end_at_blocks_and_granules() {
    let queue = QueueOptions {
        max_sectors_kb: 5,
        discard_max_bytes: 100_000,
        discard_granularity: 4096,
        ..QueueOptions::default()
    };
    let mut harness = Harness::new(queue);
    let discard = submits(&harness.bio(Op::Discard, BioFlags::NONE, 1, 0, 1 << 18))[0];
    assert_eq!(discard.len, 98_304);
    let zeroes = submits(&harness.bio(Op::WriteZeroes, BioFlags::NONE, 2, 1 << 19, 1 << 18))[0];
    assert_eq!(zeroes.len, 98_304);
}

/// A server that is killed between two commands of a request leaves each 4 KiB block of the disk old or new.
#[test]
fn request_is_cut_at_multiples_of_4_kib_of_the_disk() {
    let queue = QueueOptions {
        nr_requests: 64,
        max_sectors_kb: 9,
        discard_max_bytes: 70_000,
        discard_granularity: 512,
        ..QueueOptions::default()
    };
    for op in [Op::Write, Op::Read, Op::WriteZeroes, Op::Discard] {
        for offset in [0, 512, 3584, 4096 + 1536] {
            let mut harness = Harness::new(queue);
            let mut commands = submits(&harness.bio(op, BioFlags::NONE, 1, offset, 200_704));
            let (mut seen, mut at) = (0, offset);
            while seen < commands.len() {
                let command = commands[seen];
                assert_eq!(command.offset, at, "{op:?} at {offset}");
                at += u64::from(command.len);
                let is_last = at == offset + 200_704;
                assert!(is_last || at % 4096 == 0, "{op:?} at {offset} is cut at {at}");
                assert!(command.len >= if is_last { 512 } else { 4096 } || seen == 0);
                commands.extend(submits(&harness.answer(command, command.len, false)));
                seen += 1;
            }
            assert_eq!(at, offset + 200_704);
            assert!(harness.shard.is_quiet());
        }
    }
}

#[test]
fn timed_out_write_marks_all_its_pieces_late() {
    let queue = QueueOptions {
        nr_requests: 8,
        queue_depth: 2,
        max_sectors_kb: 4,
        io_timeout_ns: SEC,
        ..QueueOptions::default()
    };
    let mut harness = Harness::new(queue);
    let pieces = submits(&harness.bio(Op::Write, BioFlags::NONE, 1, 0, 12288));
    assert_eq!(pieces.len(), 2, "the third waits for the device");
    harness.now = Instant(SEC / 2);
    let third = submits(&harness.answer(pieces[1], 4096, false))[0];
    harness.now = Instant(SEC + 1);
    let early = replies(&harness.step(&[Input::Timer]));
    assert_eq!(early, [(1, Err(IoError::TimedOut), false, ReplyStage::Early)]);
    // The third piece was sent later and is in time, but its bio is answered: a new write may not race it.
    let actions = harness.bio(Op::Write, BioFlags::NONE, 2, third.offset, 4096);
    assert!(submits(&actions).is_empty());
    let refused = (2, Err(IoError::TimedOut), false, ReplyStage::Final);
    assert_eq!(replies(&actions), [refused]);
    assert!(replies(&harness.answer(pieces[0], 4096, false)).is_empty());
    let released = (1, Err(IoError::TimedOut), false, ReplyStage::Released);
    assert_eq!(replies(&harness.answer(third, 4096, false)), [released]);
    assert!(harness.shard.is_quiet());
}
