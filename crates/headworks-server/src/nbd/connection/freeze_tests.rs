//! Requests that change a frozen volume: they wait with what they have, and go on in their order.

use std::io::Write;
use std::os::unix::net::UnixStream;

use super::bench::Bench;
use super::*;
use super::{ConnectionLimits, ExportBinding, ReceiveOutcome};
use headworks_core::{Input, Instant, Op, ReplyStage, WaitTimes};
use headworks_front::WaitsFor;
use headworks_nbd::{ExportInfo, Negotiated};

const READ: u16 = 0;
const WRITE: u16 = 1;
const MS: u64 = 1_000_000;
const BUFFER: usize = 1 << 20;

/// A connection in transmission, its client's end, and what it has submitted.
struct Rig {
    connection: Connection,
    theirs: UnixStream,
    bench: Bench,
}

impl Rig {
    fn new() -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let limits = ConnectionLimits {
            requests: 16,
            buffer_bytes: BUFFER,
            handshake_ns: 1000 * MS,
            stall_ns: 1000 * MS,
        };
        let mut connection = Connection::new(ours.into(), "test".into(), limits, Instant(0));
        let export = ExportInfo { size: 1 << 30, ..ExportInfo::default() };
        connection.begin(Instant(0), ExportBinding::default(), &export, Negotiated::default());
        let mut rig = Self { connection, theirs, bench: Bench::new(BUFFER, 64) };
        rig.connection.send(Instant(0), &mut rig.bench.pool, &mut Vec::new()).unwrap();
        rig
    }

    fn request(&mut self, command: u16, cookie: u64, payload: &[u8]) {
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend([0, 0]);
        bytes.extend(command.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(0_u64.to_be_bytes());
        bytes.extend(4096_u32.to_be_bytes());
        bytes.extend(payload);
        self.theirs.write_all(&bytes).unwrap();
    }

    fn receive(&mut self, now: u64, frozen: bool) -> ReceiveOutcome {
        self.bench.frozen = frozen;
        self.bench.receive(&mut self.connection, now, None)
    }

    /// Receives until nothing comes.
    fn receive_all(&mut self, now: u64) {
        while self.receive(now, false) == ReceiveOutcome::Worked {}
    }

    fn submitted(&self) -> Vec<Op> {
        let op = |input: &Input| match input {
            Input::Bio(bio) => bio.op,
            other => panic!("{other:?} is no bio"),
        };
        self.bench.inputs.iter().map(op).collect()
    }
}

#[test]
fn reads_before_a_write_pass_and_nothing_behind_it_is_read() {
    let mut rig = Rig::new();
    rig.request(READ, 1, &[]);
    rig.request(WRITE, 2, &[7; 4096]);
    rig.request(READ, 3, &[]);
    assert_eq!(rig.receive(MS, true), ReceiveOutcome::Waits(WaitsFor::Freeze));
    assert_eq!(rig.submitted(), [Op::Read]);
    assert_eq!(rig.connection.deadline(), None, "a wait that the server causes is no stall");
    assert_eq!(rig.receive(5000 * MS, true), ReceiveOutcome::Waits(WaitsFor::Freeze));
    assert_eq!((rig.submitted().len(), rig.connection.writes_in_flight()), (1, 0));
    rig.receive_all(6000 * MS);
    assert_eq!(rig.submitted(), [Op::Read, Op::Write, Op::Read]);
    assert_eq!(rig.connection.writes_in_flight(), 1);
    let answer = (Ok(()), false, ReplyStage::Final);
    let pool = &mut rig.bench.pool;
    let write = rig.connection.reply(Instant(6001 * MS), 2, answer, pool).unwrap();
    assert_eq!((write.op, write.total_ns), (Op::Write, 6000 * MS));
    assert_eq!(write.front, WaitTimes::of_front(5999 * MS, 0), "its wait counts as a limit's");
}

#[test]
fn payload_that_becomes_whole_under_a_freeze_is_kept_with_its_buffer() {
    let mut rig = Rig::new();
    rig.request(WRITE, 1, &[7; 1000]);
    assert_eq!(rig.receive(MS, false), ReceiveOutcome::Worked);
    let held = rig.connection.held();
    assert!(held >= 4096, "{held}");
    assert_eq!(rig.receive(2 * MS, true), ReceiveOutcome::Idle, "its client is to send more");
    assert!(rig.connection.deadline().is_some());
    rig.theirs.write_all(&[7; 3096]).unwrap();
    rig.request(WRITE, 2, &[8; 4096]);
    while rig.receive(3 * MS, true) != ReceiveOutcome::Waits(WaitsFor::Freeze) {}
    assert_eq!((rig.submitted().len(), rig.connection.held()), (0, held));
    rig.receive_all(9 * MS);
    assert_eq!(rig.submitted(), [Op::Write, Op::Write]);
    let answer = (Ok(()), false, ReplyStage::Final);
    let write = rig.connection.reply(Instant(10 * MS), 1, answer, &mut rig.bench.pool).unwrap();
    assert_eq!(write.front, WaitTimes::of_front(6 * MS, 0));
}

/// A freeze ends while all bio slots are taken: the payload waits for one, and both waits are counted.
#[test]
fn thawed_payload_waits_for_a_bio_slot() {
    let mut rig = Rig::new();
    rig.request(WRITE, 1, &[7; 4096]);
    while rig.receive(MS, true) != ReceiveOutcome::Waits(WaitsFor::Freeze) {}
    rig.bench.room = 0;
    assert_eq!(rig.receive(5 * MS, false), ReceiveOutcome::Waits(WaitsFor::Room));
    assert_eq!(
        rig.receive(6 * MS, true),
        ReceiveOutcome::Waits(WaitsFor::Freeze),
        "and another one begins"
    );
    assert_eq!(rig.receive(8 * MS, false), ReceiveOutcome::Waits(WaitsFor::Room));
    assert_eq!(rig.submitted(), []);
    rig.bench.room = 1;
    rig.receive_all(10 * MS);
    assert_eq!((rig.submitted(), rig.bench.room), (vec![Op::Write], 0));
    let answer = (Ok(()), false, ReplyStage::Final);
    let write = rig.connection.reply(Instant(11 * MS), 1, answer, &mut rig.bench.pool).unwrap();
    assert_eq!(write.front, WaitTimes::of_front(6 * MS, 3 * MS));
}

#[test]
fn connection_that_ends_under_a_freeze_returns_its_buffer() {
    let mut rig = Rig::new();
    assert!(!rig.connection.client_has_left());
    rig.request(WRITE, 1, &[7; 4096]);
    while rig.receive(MS, true) != ReceiveOutcome::Waits(WaitsFor::Freeze) {}
    rig.theirs.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(rig.connection.client_has_left());
    rig.connection.close(&mut rig.bench.pool);
    assert_eq!((rig.bench.pool.taken(), rig.submitted().len()), (0, 0));
    assert!(rig.connection.is_finished());
}
