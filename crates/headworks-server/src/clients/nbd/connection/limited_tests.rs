//! Parked requests: they hold nothing, stop the stream where they must, and move to another process as they came.

use std::io::Write as _;
use std::os::unix::net::UnixStream;

use headworks_core::limits::{LimitDirection, LimitKind, LimitTree, Limits, NodeId};
use headworks_core::{Input, Instant, IoError, Op, ReplyStage, WaitTimes};
use headworks_front::WaitsFor;
use headworks_nbd::ExportInfo;

use super::bench::{self, Bench, Rig};
use super::{Connection, ConnectionLimits, LimitGate, ReceiveOutcome};

/// A wait for a limit of reads or of writes.
const LIMITED: ReceiveOutcome = ReceiveOutcome::Waits(WaitsFor::Limit(LimitDirection::Write));
const READ_LIMITED: ReceiveOutcome = ReceiveOutcome::Waits(WaitsFor::Limit(LimitDirection::Read));
const MS: u64 = 1_000_000;
const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;

/// A connection under a limit of I/Os a second.
struct LimitedRig {
    connection: Connection,
    theirs: UnixStream,
    bench: Bench,
    tree: LimitTree,
    leaf: NodeId,
}

fn limits(kind: LimitKind, rate: u64) -> Limits {
    let mut limits = Limits::default();
    limits.rates[kind as usize].average = rate;
    limits
}

fn header(command: u16, cookie: u64, len: u32) -> [u8; 28] {
    bench::header(command, cookie, 0, len)
}

impl LimitedRig {
    fn new(kind: LimitKind, rate: u64) -> Self {
        Self::with_pool(kind, rate, 1 << 20)
    }

    /// The same with a pool of so many bytes.
    fn with_pool(kind: LimitKind, rate: u64, pool: usize) -> Self {
        let seconds = 10_000_000_000;
        let limits_of = ConnectionLimits {
            requests: 2048,
            buffer_bytes: 1 << 20,
            handshake_ns: seconds,
            stall_ns: seconds,
        };
        let flags = headworks_nbd::TransmissionFlags(0b10_0101);
        let export = ExportInfo { size: 1 << 30, flags, ..ExportInfo::default() };
        let Rig { connection, theirs, bench } =
            Rig::new(limits_of, &export, Bench::new(pool, 4096));
        let mut tree = LimitTree::new(4);
        let leaf = tree.add_leaf(LimitTree::ROOT, 100, 0);
        tree.set_limits(Instant(0), LimitTree::ROOT, &limits(kind, rate));
        Self { connection, theirs, bench, tree, leaf }
    }

    fn request(&mut self, command: u16, cookie: u64, len: u32, payload: &[u8]) {
        self.theirs.write_all(&header(command, cookie, len)).unwrap();
        self.theirs.write_all(payload).unwrap();
    }

    /// Sends reads of 512 bytes at once.
    fn reads(&mut self, count: u64) {
        let all: Vec<u8> = (0..count).flat_map(|cookie| header(READ, cookie, 512)).collect();
        self.theirs.write_all(&all).unwrap();
    }

    fn receive(&mut self, now: u64) -> ReceiveOutcome {
        let gate = LimitGate { tree: &mut self.tree, leaf: self.leaf };
        self.bench.receive(&mut self.connection, now, Some(gate))
    }

    /// Receives until nothing changes.
    fn receive_all(&mut self, now: u64) -> ReceiveOutcome {
        loop {
            match self.receive(now) {
                ReceiveOutcome::Worked => {}
                outcome => return outcome,
            }
        }
    }

    /// Lets pass what the limits agree to; returns the number.
    fn pass(&mut self, now: u64) -> usize {
        let mut count = 0;
        while let Some(passed) = self.tree.pop(Instant(now)) {
            count += 1;
            if let Some(next) = self.connection.pass(passed.direction) {
                self.tree.wait(Instant(now), self.leaf, next);
            }
        }
        count
    }

    /// Everything that a request may hold: buffers, bio slots, requests in flight, inputs of the shard.
    fn held(&self) -> (usize, usize, u32, usize, usize) {
        let Self { connection, bench: Bench { pool, room, inputs, .. }, .. } = self;
        (pool.taken(), connection.held(), *room, connection.in_flight(), inputs.len())
    }

    /// Answers every request that was submitted.
    fn answer_all(&mut self, now: u64) {
        for input in std::mem::take(&mut self.bench.inputs) {
            let Input::Bio(bio) = input else { continue };
            let result = (Err(IoError::Medium), false, ReplyStage::Final);
            self.connection.reply(Instant(now), bio.id.sequence, result, &mut self.bench.pool);
        }
    }
}

/// A rig whose pool is used up, with a parked read and a part of a write behind it.
fn rig_with_half_a_payload() -> (LimitedRig, [headworks_house::Buffer; 2]) {
    let mut rig = LimitedRig::new(LimitKind::IopsRead, 100);
    rig.request(READ, 1, 512, &[]);
    rig.request(READ, 2, 256 << 10, &[]);
    rig.request(WRITE, 3, 64 << 10, &[3; 1000]);
    assert_eq!(rig.receive_all(0), ReceiveOutcome::Idle);
    let taken = [1 << 19, 1 << 18].map(|len| rig.bench.pool.try_take(len).unwrap());
    (rig, taken)
}

/// A read passes its limit during a payload and finds no buffer: the payload goes on, and the read follows it.
#[test]
fn passed_read_without_buffer_does_not_stop_the_payload() {
    let (mut rig, taken) = rig_with_half_a_payload();
    assert_eq!((rig.bench.inputs.len(), rig.connection.parked()), (1, 1));
    assert_eq!(rig.pass(20 * MS), 1);
    assert_eq!(rig.receive(20 * MS), ReceiveOutcome::Idle, "the client is to send more");
    assert_eq!(rig.receive(21 * MS), ReceiveOutcome::Idle);
    assert!(rig.connection.deadline().is_some(), "and has its time for that");
    rig.theirs.write_all(&[3; (64 << 10) - 1000]).unwrap();
    while rig.receive(22 * MS) == ReceiveOutcome::Worked && rig.bench.inputs.len() < 2 {}
    assert!(matches!(&rig.bench.inputs[1..], [Input::Bio(bio)] if bio.op == Op::Write));
    assert_eq!(
        rig.receive(23 * MS),
        ReceiveOutcome::Waits(WaitsFor::Buffer),
        "now it waits in the queue"
    );
    taken.into_iter().for_each(|buffer| rig.bench.pool.put(buffer));
    rig.receive(24 * MS);
    assert!(matches!(&rig.bench.inputs[2..], [Input::Bio(bio)] if bio.op == Op::Read));
}

/// The read is tried again with each part of the payload.
#[test]
fn passed_read_gets_its_buffer_before_the_payload_is_whole() {
    let (mut rig, taken) = rig_with_half_a_payload();
    rig.pass(20 * MS);
    assert_eq!(rig.receive(20 * MS), ReceiveOutcome::Idle);
    taken.into_iter().for_each(|buffer| rig.bench.pool.put(buffer));
    rig.theirs.write_all(&[3; 10]).unwrap();
    assert_eq!(rig.receive_all(21 * MS), ReceiveOutcome::Idle);
    assert_eq!((rig.bench.inputs.len(), rig.connection.parked()), (2, 0));
    assert!(rig.connection.intake.awaits_payload());
}

/// A read passes its limit and waits for a buffer, or a trim for the end of a freeze; the write behind it waits for the limit. What has
/// arrived of its payload is not taken for a header when the other one goes on.
#[test]
fn payload_of_a_parked_write_is_not_parsed_behind_a_held_request() {
    for command in [READ, TRIM] {
        let mut rig = LimitedRig::new(LimitKind::IopsTotal, 100);
        rig.request(READ, 1, 512, &[]);
        rig.request(command, 2, 256 << 10, &[]);
        rig.request(WRITE, 3, 512, &[3; 512]);
        assert!(matches!(rig.receive_all(0), ReceiveOutcome::Waits(WaitsFor::Limit(_))));
        assert_eq!((rig.bench.inputs.len(), rig.connection.parked()), (1, 2));
        let taken = [1 << 19, 1 << 18].map(|len| rig.bench.pool.try_take(len).unwrap());
        rig.bench.frozen = command == TRIM;
        assert_eq!(rig.pass(6 * MS), 1);
        let waits = rig.receive(6 * MS);
        assert!(matches!(waits, ReceiveOutcome::Waits(_)), "{waits:?}");
        taken.into_iter().for_each(|buffer| rig.bench.pool.put(buffer));
        rig.bench.frozen = false;
        let limited = rig.receive_all(7 * MS);
        assert!(matches!(limited, ReceiveOutcome::Waits(WaitsFor::Limit(_))), "{limited:?}");
        assert_eq!((rig.bench.inputs.len(), rig.connection.parked()), (2, 1));
        assert_eq!(rig.pass(16 * MS), 1);
        assert_eq!(rig.receive_all(16 * MS), ReceiveOutcome::Idle);
        assert!(matches!(&rig.bench.inputs[2..], [Input::Bio(bio)] if bio.op == Op::Write));
    }
}

#[test]
fn thousand_parked_reads_hold_nothing() {
    let mut rig = LimitedRig::with_pool(LimitKind::IopsTotal, 2000, 4 << 20);
    // The slack of 4 ms lets nine pass; the last one brings the level over it.
    rig.reads(9);
    rig.receive_all(0);
    rig.answer_all(0);
    let before = rig.held();
    rig.reads(1000);
    assert_eq!(rig.receive_all(0), ReceiveOutcome::Idle, "headers behind a parked read are read");
    assert_eq!((rig.connection.parked(), rig.held()), (1000, before));
    assert_eq!(rig.connection.deadline().map(|_| ()), rig.connection.has_outgoing().then_some(()));
    let passed: usize = (1..=100).map(|at| rig.pass(at * MS)).sum();
    assert!((200..=210).contains(&passed), "0.1 s at 2000 a second: {passed}");
    rig.receive_all(100 * MS);
    assert_eq!((rig.bench.inputs.len(), rig.connection.parked()), (passed, 1000 - passed));
}

#[test]
fn parked_write_stops_its_stream_before_the_payload() {
    let mut rig = LimitedRig::new(LimitKind::IopsTotal, 100);
    rig.request(WRITE, 1, 512, &[1; 512]);
    rig.request(WRITE, 2, 512, &[2; 512]);
    rig.request(READ, 3, 512, &[]);
    assert_eq!(rig.receive_all(0), LIMITED);
    assert_eq!((rig.bench.inputs.len(), rig.connection.parked()), (1, 1));
    let held = rig.held();
    assert_eq!(rig.receive(5 * MS), LIMITED, "nothing is read behind it");
    assert_eq!((rig.held(), rig.connection.deadline()), (held, None), "and that is no stall");
    assert_eq!(rig.pass(6 * MS), 1);
    assert_eq!(rig.receive_all(6 * MS), ReceiveOutcome::Idle);
    assert_eq!((rig.bench.inputs.len(), rig.connection.parked()), (2, 1), "the read waits now");
    assert!(matches!(&rig.bench.inputs[1], Input::Bio(bio) if bio.id.sequence == 2));
    assert_eq!(rig.pass(16 * MS), 1);
    rig.receive_all(16 * MS);
    assert_eq!(rig.bench.inputs.len(), 3);
}

#[test]
fn flush_passes_parked_reads_and_writes_pass_limited_reads() {
    let mut rig = LimitedRig::new(LimitKind::IopsRead, 100);
    rig.reads(3);
    rig.request(FLUSH, 4, 0, &[]);
    rig.request(WRITE, 5, 512, &[5; 512]);
    assert_eq!(rig.receive_all(0), ReceiveOutcome::Idle);
    let ops: Vec<_> = rig
        .bench
        .inputs
        .iter()
        .filter_map(|input| match input {
            Input::Bio(bio) => Some(bio.op),
            _ => None,
        })
        .collect();
    assert_eq!(ops, [Op::Read, Op::Flush, Op::Write]);
}

#[test]
fn long_waits_stop_the_reading() {
    let mut rig = LimitedRig::new(LimitKind::IopsTotal, 10);
    rig.reads(100);
    assert_eq!(rig.receive_all(0), READ_LIMITED);
    // All headers came in one receive; those behind the wait of a second stay bytes.
    let parked = rig.connection.parked();
    assert!((10..=12).contains(&parked), "{parked} parked at 10 a second");
    assert_eq!(rig.pass(96 * MS), 1);
    assert_eq!(rig.receive_all(96 * MS), READ_LIMITED);
    assert_eq!(rig.bench.inputs.len(), 2);
}

/// Reads, writes and frozen writes that pass while the shard has no bio slot wait for one.
#[test]
fn passed_request_waits_for_a_bio_slot() {
    for command in [READ, WRITE] {
        let mut rig = LimitedRig::new(LimitKind::IopsTotal, 100);
        rig.request(READ, 1, 512, &[]);
        rig.request(command, 2, 512, if command == WRITE { &[2; 512] } else { &[] });
        rig.receive_all(0);
        rig.bench.room = 0;
        assert_eq!(rig.pass(6 * MS), 1);
        assert_eq!(rig.receive(6 * MS), ReceiveOutcome::Waits(WaitsFor::Room));
        rig.bench.room = 1;
        rig.receive_all(7 * MS);
        assert_eq!((rig.bench.inputs.len(), rig.bench.room), (2, 0));
    }
    let mut rig = LimitedRig::new(LimitKind::IopsTotal, 100);
    rig.request(READ, 1, 512, &[]);
    rig.request(WRITE, 2, 512, &[2; 512]);
    rig.receive_all(0);
    (rig.bench.frozen, rig.bench.room) = (true, 1);
    rig.pass(6 * MS);
    assert_eq!(rig.receive_all(6 * MS), ReceiveOutcome::Waits(WaitsFor::Freeze));
    (rig.bench.frozen, rig.bench.room) = (false, 0);
    assert_eq!(
        rig.receive_all(7 * MS),
        ReceiveOutcome::Waits(WaitsFor::Room),
        "held, and the freeze has ended"
    );
    rig.bench.room = 1;
    rig.receive_all(8 * MS);
    assert_eq!((rig.bench.inputs.len(), rig.bench.room), (2, 0));
}

#[test]
fn wait_for_a_limit_is_counted_as_such() {
    let mut rig = LimitedRig::new(LimitKind::IopsTotal, 100);
    rig.request(READ, 1, 512, &[]);
    rig.request(READ, 2, 512, &[]);
    rig.receive_all(0);
    assert_eq!(rig.pass(6 * MS), 1);
    rig.receive_all(7 * MS);
    let result = || (Err(IoError::Medium), false, ReplyStage::Final);
    let first = rig.connection.reply(Instant(8 * MS), 1, result(), &mut rig.bench.pool).unwrap();
    let second = rig.connection.reply(Instant(8 * MS), 2, result(), &mut rig.bench.pool).unwrap();
    assert_eq!((first.front, first.total_ns), (WaitTimes::NONE, 8 * MS));
    assert_eq!((second.front, second.total_ns), (WaitTimes::of_front(7 * MS, 0), 8 * MS));
}

#[test]
fn parked_requests_move_to_another_process() {
    let mut rig = LimitedRig::new(LimitKind::IopsTotal, 100);
    rig.request(READ, 1, 512, &[]);
    rig.receive_all(0);
    rig.answer_all(0);
    rig.connection.send(Instant(0), &mut rig.bench.pool, &mut Vec::new()).unwrap();
    rig.request(READ, 7, 512, &[]);
    rig.request(READ, 8, 1024, &[]);
    rig.request(WRITE, 9, 512, &[9; 100]);
    assert_eq!(rig.receive_all(0), LIMITED);
    assert_eq!(rig.connection.parked(), 3);
    assert!(rig.connection.is_at_rest());
    let handed = rig.connection.hand_over().unwrap();
    assert_eq!(handed.unparsed.len(), 3 * 28 + 100);
    let cookies: Vec<u8> = (0..3).map(|index| handed.unparsed[28 * index + 15]).collect();
    assert_eq!((cookies, handed.unparsed[3 * 28]), (vec![7, 8, 9], 9));
}

#[test]
fn leaving_connection_drops_or_submits_what_is_parked() {
    let mut rig = LimitedRig::new(LimitKind::IopsTotal, 100);
    rig.reads(5);
    rig.receive_all(0);
    assert_eq!((rig.connection.parked(), rig.bench.inputs.len()), (4, 1));
    rig.connection.pass_all();
    rig.tree.remove(Instant(0), rig.leaf);
    rig.receive(0);
    assert_eq!((rig.connection.parked(), rig.bench.inputs.len()), (0, 5), "limits are ignored");
    let mut rig = LimitedRig::new(LimitKind::IopsTotal, 100);
    rig.reads(5);
    rig.receive_all(0);
    rig.connection.close(&mut rig.bench.pool);
    rig.tree.remove(Instant(0), rig.leaf);
    assert_eq!((rig.connection.parked(), rig.tree.next_timeout()), (0, None));
}
