//! Requests that change a frozen volume: they wait with what they have, and go on in their order.

use std::io::Write;

use super::bench::{Bench, Rig, header};
use super::{ConnectionLimits, ReceiveOutcome};
use headworks_core::{Input, Instant, Op, ReplyStage, WaitTimes};
use headworks_front::WaitsFor;
use headworks_nbd::ExportInfo;

const READ: u16 = 0;
const WRITE: u16 = 1;
const MS: u64 = 1_000_000;
const BUFFER: usize = 1 << 20;

fn rig() -> Rig {
    let (requests, buffer_bytes) = (16, BUFFER);
    let (handshake_ns, stall_ns) = (1000 * MS, 1000 * MS);
    let limits = ConnectionLimits { requests, buffer_bytes, handshake_ns, stall_ns };
    let export = ExportInfo { size: 1 << 30, ..ExportInfo::default() };
    Rig::new(limits, &export, Bench::new(BUFFER, 64))
}

fn request(rig: &mut Rig, command: u16, cookie: u64, payload: &[u8]) {
    let bytes = [&header(command, cookie, 0, 4096)[..], payload].concat();
    rig.theirs.write_all(&bytes).unwrap();
}

fn receive(rig: &mut Rig, now: u64, frozen: bool) -> ReceiveOutcome {
    rig.bench.frozen = frozen;
    rig.receive(now)
}

/// Receives until nothing comes.
fn receive_all(rig: &mut Rig, now: u64) {
    while receive(rig, now, false) == ReceiveOutcome::Worked {}
}

fn submitted(rig: &Rig) -> Vec<Op> {
    let op = |input: &Input| match input {
        Input::Bio(bio) => bio.op,
        other => panic!("{other:?} is no bio"),
    };
    rig.bench.inputs.iter().map(op).collect()
}

#[test]
fn reads_before_a_write_pass_and_nothing_behind_it_is_read() {
    let mut rig = rig();
    request(&mut rig, READ, 1, &[]);
    request(&mut rig, WRITE, 2, &[7; 4096]);
    request(&mut rig, READ, 3, &[]);
    assert_eq!(receive(&mut rig, MS, true), ReceiveOutcome::Waits(WaitsFor::Freeze));
    assert_eq!(submitted(&rig), [Op::Read]);
    assert_eq!(rig.connection.deadline(), None, "a wait that the server causes is no stall");
    assert_eq!(receive(&mut rig, 5000 * MS, true), ReceiveOutcome::Waits(WaitsFor::Freeze));
    assert_eq!((submitted(&rig).len(), rig.connection.writes_in_flight()), (1, 0));
    receive_all(&mut rig, 6000 * MS);
    assert_eq!(submitted(&rig), [Op::Read, Op::Write, Op::Read]);
    assert_eq!(rig.connection.writes_in_flight(), 1);
    let answer = (Ok(()), false, ReplyStage::Final);
    let pool = &mut rig.bench.pool;
    let write = rig.connection.reply(Instant(6001 * MS), 2, answer, pool).unwrap();
    assert_eq!((write.op, write.total_ns), (Op::Write, 6000 * MS));
    assert_eq!(write.front, WaitTimes::of_front(5999 * MS, 0), "its wait counts as a limit's");
}

#[test]
fn payload_that_becomes_whole_under_a_freeze_is_kept_with_its_buffer() {
    let mut rig = rig();
    request(&mut rig, WRITE, 1, &[7; 1000]);
    assert_eq!(receive(&mut rig, MS, false), ReceiveOutcome::Worked);
    let held = rig.connection.held();
    assert!(held >= 4096, "{held}");
    assert_eq!(receive(&mut rig, 2 * MS, true), ReceiveOutcome::Idle, "its client is to send more");
    assert!(rig.connection.deadline().is_some());
    rig.theirs.write_all(&[7; 3096]).unwrap();
    request(&mut rig, WRITE, 2, &[8; 4096]);
    while receive(&mut rig, 3 * MS, true) != ReceiveOutcome::Waits(WaitsFor::Freeze) {}
    assert_eq!((submitted(&rig).len(), rig.connection.held()), (0, held));
    receive_all(&mut rig, 9 * MS);
    assert_eq!(submitted(&rig), [Op::Write, Op::Write]);
    let answer = (Ok(()), false, ReplyStage::Final);
    let write = rig.connection.reply(Instant(10 * MS), 1, answer, &mut rig.bench.pool).unwrap();
    assert_eq!(write.front, WaitTimes::of_front(6 * MS, 0));
}

/// A freeze ends while all bio slots are taken: the payload waits for one, and both waits are counted.
#[test]
fn thawed_payload_waits_for_a_bio_slot() {
    let mut rig = rig();
    request(&mut rig, WRITE, 1, &[7; 4096]);
    while receive(&mut rig, MS, true) != ReceiveOutcome::Waits(WaitsFor::Freeze) {}
    rig.bench.room = 0;
    assert_eq!(receive(&mut rig, 5 * MS, false), ReceiveOutcome::Waits(WaitsFor::Room));
    assert_eq!(
        receive(&mut rig, 6 * MS, true),
        ReceiveOutcome::Waits(WaitsFor::Freeze),
        "and another one begins"
    );
    assert_eq!(receive(&mut rig, 8 * MS, false), ReceiveOutcome::Waits(WaitsFor::Room));
    assert_eq!(submitted(&rig), []);
    rig.bench.room = 1;
    receive_all(&mut rig, 10 * MS);
    assert_eq!((submitted(&rig), rig.bench.room), (vec![Op::Write], 0));
    let answer = (Ok(()), false, ReplyStage::Final);
    let write = rig.connection.reply(Instant(11 * MS), 1, answer, &mut rig.bench.pool).unwrap();
    assert_eq!(write.front, WaitTimes::of_front(6 * MS, 3 * MS));
}

#[test]
fn connection_that_ends_under_a_freeze_returns_its_buffer() {
    let mut rig = rig();
    assert!(!rig.connection.client_has_left());
    request(&mut rig, WRITE, 1, &[7; 4096]);
    while receive(&mut rig, MS, true) != ReceiveOutcome::Waits(WaitsFor::Freeze) {}
    rig.theirs.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(rig.connection.client_has_left());
    rig.connection.close(&mut rig.bench.pool);
    assert_eq!((rig.bench.pool.taken(), submitted(&rig).len()), (0, 0));
    assert!(rig.connection.is_finished());
}
