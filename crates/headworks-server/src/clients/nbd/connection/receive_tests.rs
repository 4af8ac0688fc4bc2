//! Receives: what is bounded, what waits for a bio slot or a buffer, and what is kept meanwhile.

use super::bench::{Bench, Rig, header};
use super::*;
use headworks_core::{Input, Instant, Op};
use headworks_nbd::ExportInfo;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// Unread long lists are bounded by one list, and a reader gets all of them.
#[test]
fn handshake_replies_are_bounded() {
    const ASKED: usize = 100;
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let seconds = 10_000_000_000;
    let limits = ConnectionLimits {
        requests: 128,
        buffer_bytes: 1 << 20,
        handshake_ns: seconds,
        stall_ns: seconds,
    };
    let mut connection = Connection::new(ours.into(), "test".into(), limits, Instant(0));
    let name = "n".repeat(100);
    let exports = vec![ExportInfo { name, ..ExportInfo::default() }; 300];
    let (mut bench, mut spans) = (Bench::new(1 << 20, 1), Vec::new());
    bench.exports = exports;
    theirs.write_all(&3_u32.to_be_bytes()).unwrap();
    theirs.write_all(&b"IHAVEOPT\0\0\0\x03\0\0\0\0".repeat(ASKED)).unwrap();
    let list = 300 * 124 + 20;
    let (mut most, mut got) = (0, vec![0; 18 + ASKED * list]);
    let mut at = 0;
    while at < got.len() {
        let received = bench.receive(&mut connection, 0, None);
        assert!(!matches!(received, ReceiveOutcome::End(_)), "{received:?}");
        most = most.max(connection.wire.outgoing().kept());
        connection.send(Instant(0), &mut bench.pool, &mut spans).unwrap();
        theirs.set_nonblocking(true).unwrap();
        at += theirs.read(&mut got[at..]).unwrap_or(0);
    }
    assert!(most < 3 * list, "{most} bytes waited");
    assert!(got.ends_with(&[0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0]), "the last answer is whole");
}

const SECOND: u64 = 1_000_000_000;

fn rig() -> Rig {
    let (requests, buffer_bytes) = (1024, 1 << 20);
    let (handshake_ns, stall_ns) = (10 * SECOND, 3 * SECOND);
    let limits = ConnectionLimits { requests, buffer_bytes, handshake_ns, stall_ns };
    let export = ExportInfo { size: 1 << 30, ..ExportInfo::default() };
    Rig::new(limits, &export, Bench::new(1 << 20, 0))
}

fn receive(rig: &mut Rig, now: u64, room: u32) -> ReceiveOutcome {
    rig.bench.room = room;
    rig.receive(now)
}

fn read_header(cookie: u64) -> [u8; 28] {
    header(0, cookie, 0, 4096)
}

/// The rest of a header arrives while the shard has no bio slot: the client is not closed for it, nor when there is one
/// again; a client that sends nothing is.
#[test]
fn header_that_waits_for_a_bio_slot_is_no_stall() {
    let mut rig = rig();
    rig.theirs.write_all(&read_header(1)[..20]).unwrap();
    assert_eq!(receive(&mut rig, SECOND, 8), ReceiveOutcome::Worked);
    assert_eq!(rig.connection.deadline(), Some(Instant(4 * SECOND)), "it is to send the rest");
    rig.theirs.write_all(&read_header(1)[20..]).unwrap();
    assert_eq!(receive(&mut rig, 2 * SECOND, 0), ReceiveOutcome::Waits(WaitsFor::Room));
    assert_eq!(rig.connection.deadline(), None, "the shard has no slot");
    assert_eq!(receive(&mut rig, 60 * SECOND, 0), ReceiveOutcome::Waits(WaitsFor::Room));
    assert_eq!((rig.connection.deadline(), rig.bench.inputs.len()), (None, 0));
    rig.theirs.write_all(&read_header(2)[..20]).unwrap();
    assert_eq!(receive(&mut rig, 70 * SECOND, 8), ReceiveOutcome::Worked);
    assert_eq!(rig.bench.inputs.len(), 1, "the first request is complete");
    assert_eq!(receive(&mut rig, 70 * SECOND, 8), ReceiveOutcome::Worked);
    assert_eq!(rig.connection.deadline(), Some(Instant(73 * SECOND)));
}

fn write_header(cookie: u64, len: u32) -> [u8; 28] {
    header(1, cookie, 0, len)
}

/// A rig with a write, of which all but its last half has arrived.
fn rig_with_half_a_write(len: usize) -> Rig {
    let mut rig = rig();
    rig.theirs.write_all(&write_header(1, len as u32)).unwrap();
    rig.theirs.write_all(&vec![7; len / 2]).unwrap();
    while receive(&mut rig, SECOND, 8) == ReceiveOutcome::Worked {}
    assert!(rig.connection.intake.awaits_payload());
    rig
}

/// A payload becomes whole while all bio slots are taken: it keeps its buffer and waits for one, whether it was received in
/// its buffer or copied there.
#[test]
fn whole_payload_waits_for_a_bio_slot() {
    for len in [4096, 64 << 10] {
        let mut rig = rig_with_half_a_write(len);
        let held = rig.connection.held();
        rig.theirs.write_all(&vec![7; len - len / 2]).unwrap();
        assert_eq!(receive(&mut rig, 2 * SECOND, 0), ReceiveOutcome::Waits(WaitsFor::Room));
        assert_eq!((rig.bench.inputs.len(), rig.connection.held()), (0, held));
        assert_eq!(rig.connection.deadline(), None, "the client has done its part");
        assert_eq!(receive(&mut rig, 60 * SECOND, 0), ReceiveOutcome::Waits(WaitsFor::Room));
        rig.theirs.write_all(&read_header(2)).unwrap();
        assert_eq!(receive(&mut rig, 62 * SECOND, 1), ReceiveOutcome::Worked);
        let read = receive(&mut rig, 62 * SECOND, 0);
        assert_eq!(read, ReceiveOutcome::Waits(WaitsFor::Room), "for the read");
        assert!(matches!(rig.bench.inputs[..], [Input::Bio(bio)] if bio.op == Op::Write));
        let result = (Ok(()), false, headworks_core::ReplyStage::Final);
        let write = rig.connection.reply(Instant(62 * SECOND), 1, result, &mut rig.bench.pool);
        let buffer_wait = headworks_core::WaitTimes::of_front(0, 60 * SECOND);
        assert_eq!(write.map(|write| write.front), Some(buffer_wait));
        assert_eq!((rig.bench.pool.taken(), rig.connection.held()), (0, 0));
    }
}

/// The device of a whole payload ceases to answer while all bio slots are taken: the write fails, and its buffer is returned.
#[test]
fn whole_payload_of_a_stuck_device_fails_without_a_bio_slot() {
    let mut rig = rig_with_half_a_write(4096);
    rig.theirs.write_all(&[7; 2048]).unwrap();
    assert_eq!(receive(&mut rig, 2 * SECOND, 0), ReceiveOutcome::Waits(WaitsFor::Room));
    rig.connection.set_refuses(true);
    assert_eq!(receive(&mut rig, 3 * SECOND, 0), ReceiveOutcome::Worked);
    assert_eq!((rig.bench.inputs.len(), rig.bench.pool.taken(), rig.connection.held()), (0, 0, 0));
    assert!(rig.connection.has_outgoing(), "an error");
}

/// A held request, too, waits for a slot that another one has taken meanwhile.
#[test]
fn held_request_waits_for_a_bio_slot() {
    let mut rig = rig();
    let taken = [1 << 19, 1 << 18].map(|len| rig.bench.pool.try_take(len).unwrap());
    let read = header(0, 1, 0, 256 << 10);
    rig.theirs.write_all(&read).unwrap();
    assert_eq!(receive(&mut rig, SECOND, 8), ReceiveOutcome::Waits(WaitsFor::Buffer));
    taken.into_iter().for_each(|buffer| rig.bench.pool.put(buffer));
    assert_eq!(receive(&mut rig, 2 * SECOND, 0), ReceiveOutcome::Waits(WaitsFor::Room));
    assert_eq!(rig.bench.inputs.len(), 0);
    receive(&mut rig, 3 * SECOND, 1);
    assert_eq!(rig.bench.inputs.len(), 1);
}

#[test]
fn received_bytes_keep_no_memory_once_they_are_parsed() {
    let mut rig = rig();
    let headers: Vec<u8> = (0..500).flat_map(read_header).collect();
    rig.theirs.write_all(&headers).unwrap();
    receive(&mut rig, SECOND, 1000);
    rig.connection.release_idle_memory();
    assert!(rig.connection.wire.stash_capacity() >= 8192, "what is not parsed stays");
    for _ in 0..20 {
        receive(&mut rig, SECOND, 1000);
        for sequence in 0..=rig.bench.inputs.len() as u64 {
            let result =
                (Err(headworks_core::IoError::Medium), false, headworks_core::ReplyStage::Final);
            rig.connection.reply(Instant(SECOND), sequence, result, &mut rig.bench.pool);
        }
    }
    assert_eq!(rig.bench.inputs.len(), 500);
    rig.connection.release_idle_memory();
    assert_eq!(rig.connection.wire.stash_capacity(), 0);
}
