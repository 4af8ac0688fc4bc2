//! Payloads keep memory for what has come, and long writes are given in pieces.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;

use headworks_core::{Bio, DeviceId, ExportId, Input, Instant, IoError, Op, ReplyStage, Status};
use headworks_front::front_waits::FrontWaits;
use headworks_front::intake::PayloadCounts;
use headworks_front::memory::{Held, KeptPayload, Memory, Supply, Wanted, Wants};
use headworks_front::{FrontRequest, WaitsFor};
use headworks_nbd::transmission::Request;
use headworks_nbd::wire::{Command, CommandFlags};
use headworks_nbd::{ExportInfo, Negotiated};

use super::bench::{self, Bench};
use super::{Connection, ConnectionLimits, ExportBinding, ReceiveOutcome};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

struct Rig {
    connection: Connection,
    theirs: UnixStream,
    bench: Bench,
    now: u64,
}

fn limits(requests: usize) -> ConnectionLimits {
    ConnectionLimits {
        requests,
        buffer_bytes: 64 * MIB,
        handshake_ns: 10 * SECOND,
        stall_ns: 60 * SECOND,
    }
}

impl Rig {
    fn new(requests: usize) -> Self {
        let export = ExportInfo { size: 64 << 20, ..ExportInfo::default() };
        let mut bench = Bench::new(64 * MIB, 1000);
        bench.exports = vec![export.clone()];
        let bench::Rig { connection, theirs, bench } =
            bench::Rig::new(limits(requests), &export, bench);
        theirs.set_nonblocking(true).unwrap();
        let mut rig = Self { connection, theirs, bench, now: 0 };
        let _ = rig.replies();
        rig
    }

    fn receive(&mut self) -> ReceiveOutcome {
        loop {
            let received = self.bench.receive(&mut self.connection, self.now, None);
            if received != ReceiveOutcome::Worked {
                return received;
            }
        }
    }

    /// Sends bytes while the server receives; returns how the last receive ended.
    fn send(&mut self, bytes: &[u8]) -> ReceiveOutcome {
        let mut sent = 0;
        let mut last = ReceiveOutcome::Worked;
        while sent < bytes.len() {
            match self.theirs.write(&bytes[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    assert!(
                        matches!(last, ReceiveOutcome::Worked | ReceiveOutcome::Idle),
                        "{last:?}"
                    );
                }
                Err(error) => panic!("{error}"),
            }
            last = self.receive();
        }
        last
    }

    fn header(&mut self, offset: u64, len: usize) -> ReceiveOutcome {
        self.send(&bench::header(1, 9, offset, len as u32))
    }

    fn bios(&self) -> Vec<Bio> {
        let bio = |input: &Input| match input {
            Input::Bio(bio) => *bio,
            other => panic!("{other:?}"),
        };
        self.bench.inputs.iter().map(bio).collect()
    }

    fn ranges(&self) -> Vec<(u64, usize)> {
        self.bios().iter().map(|bio| (bio.offset, bio.len as usize)).collect()
    }

    fn answer(&mut self, bio: &Bio, status: Status) -> bool {
        let result = (status, false, ReplyStage::Final);
        let pool = &mut self.bench.pool;
        let counted = self.connection.reply(Instant(self.now), bio.id.sequence, result, pool);
        self.connection.send(Instant(self.now), pool, &mut Vec::new()).unwrap();
        counted.is_some()
    }

    /// Checks the data of the bios from one on, and answers them.
    fn check_and_answer(&mut self, known: usize) {
        for bio in self.bios().split_off(known) {
            let span = self.connection.buffer(bio.id.sequence).unwrap();
            let expected = payload(bio.offset as usize, bio.len as usize);
            // SAFETY: the buffer is the request's, and nothing changes it.
            assert!(unsafe { span.part(0, bio.len as usize).bytes() } == expected);
            self.answer(&bio, Ok(()));
        }
    }

    /// Errors of the replies that the client has got.
    fn replies(&mut self) -> Vec<u32> {
        let mut bytes = [0; 4096];
        let count = self.theirs.read(&mut bytes).unwrap_or(0);
        let codes = bytes[..count].as_chunks::<16>().0.iter();
        codes.map(|reply| u32::from_be_bytes(reply[4..8].try_into().unwrap())).collect()
    }
}

/// The byte of a payload at an offset of the volume.
fn payload(offset: usize, len: usize) -> Vec<u8> {
    (offset..offset + len).map(|at| (at % 251) as u8).collect()
}

#[test]
fn silent_payload_keeps_less_than_twice_what_was_sent() {
    for (sent, kept) in [(0, 0), (1, 4 * KIB), (5 * KIB, 8 * KIB), (100 * KIB, 128 * KIB)] {
        let mut rig = Rig::new(16);
        rig.header(0, 32 * MIB);
        rig.send(&vec![7; sent]);
        rig.now += 5 * MS;
        assert_eq!(rig.receive(), ReceiveOutcome::Idle);
        assert_eq!((rig.connection.held(), rig.bench.pool.taken()), (kept, kept), "{sent}");
        assert!(rig.connection.deadline().is_some(), "its client is to go on");
        rig.connection.close(&mut rig.bench.pool);
        assert_eq!((rig.bench.pool.taken(), rig.connection.intake.torn_write()), (0, None));
    }
}

#[test]
fn write_up_to_its_window_is_one_bio_however_its_bytes_come() {
    let mut rig = Rig::new(16);
    rig.header(512, MIB);
    let bytes = payload(512, MIB);
    for chunk in bytes.chunks(30_000) {
        assert_eq!(rig.bench.inputs.len(), 0);
        rig.send(chunk);
        rig.now += 5 * MS;
        rig.receive();
    }
    assert_eq!(rig.ranges(), [(512, MIB)]);
    let bio = rig.bios()[0];
    let span = rig.connection.buffer(bio.id.sequence).unwrap();
    // SAFETY: the buffer is the request's, and nothing changes it.
    assert!(unsafe { span.part(0, MIB).bytes() } == bytes);
    assert!(rig.answer(&bio, Ok(())));
    assert_eq!((rig.replies(), rig.bench.pool.taken()), (vec![0], 0));
}

#[test]
fn longer_write_is_given_in_pieces_and_answered_once_when_all_are() {
    let mut rig = Rig::new(16);
    let (offset, len) = (4096, 2 * MIB + 8192);
    rig.header(offset, len);
    let bytes = payload(4096, len);
    rig.send(&bytes[..len - 1]);
    assert_eq!(rig.ranges(), [(4096, MIB - 4096), (1 << 20, MIB)]);
    for bio in rig.bios() {
        let span = rig.connection.buffer(bio.id.sequence).unwrap();
        let at = bio.offset as usize - 4096;
        // SAFETY: the buffer is the request's, and nothing changes it.
        let data = unsafe { span.part(0, bio.len as usize).bytes() };
        assert!(data == &bytes[at..at + bio.len as usize]);
        assert!(!rig.answer(&bio, Ok(())));
    }
    assert_eq!(rig.replies(), [0; 0], "its last byte has not come");
    rig.send(&bytes[len - 1..]);
    assert_eq!(rig.ranges()[2..], [(2 << 20, 12 * KIB)]);
    let last = rig.bios()[2];
    assert!(rig.answer(&last, Ok(())));
    assert_eq!((rig.replies(), rig.bench.pool.taken(), rig.connection.held()), (vec![0], 0, 0));
}

#[test]
fn error_of_a_piece_is_the_reply_after_the_last_byte() {
    let mut rig = Rig::new(16);
    rig.header(0, 4 * MIB);
    rig.send(&vec![7; 2 * MIB + 100]);
    let [first, second] = rig.bios()[..] else { panic!("two pieces") };
    rig.answer(&second, Err(IoError::NoSpace));
    assert_eq!(rig.replies(), [0; 0]);
    rig.send(&vec![7; 2 * MIB - 101]);
    assert_eq!(rig.bench.inputs.len(), 2, "what follows the error is dropped");
    rig.answer(&first, Ok(()));
    assert_eq!(rig.replies(), [0; 0], "libnbd gives up on a reply before the last byte");
    rig.send(&[7]);
    rig.connection.send(Instant(rig.now), &mut rig.bench.pool, &mut Vec::new()).unwrap();
    assert_eq!((rig.replies(), rig.bench.pool.taken()), (vec![28], 0));
    rig.header(0, 512);
    rig.send(&[7; 512]);
    assert_eq!(rig.ranges()[2..], [(0, 512)], "the stream goes on");
}

/// What it waited for is needed no more.
#[test]
fn error_of_a_piece_ends_the_wait_for_the_next_part() {
    let mut rig = Rig::new(16);
    rig.header(0, 2 * MIB);
    rig.send(&payload(0, MIB));
    rig.bench.room = 0;
    for _ in 0..200 {
        let _ = rig.theirs.write(&payload(MIB, 256 * KIB));
        if rig.receive() == ReceiveOutcome::Waits(WaitsFor::Room) {
            break;
        }
    }
    assert_eq!(rig.connection.stopped_by(), WaitsFor::Room);
    assert!(!rig.connection.goes_on());
    let first = rig.bios()[0];
    rig.answer(&first, Err(IoError::Medium));
    assert!(rig.connection.goes_on());
}

#[test]
fn write_past_the_end_changes_nothing() {
    for (offset, error) in [((63 << 20) + 4096, 28), (100, 22)] {
        let mut rig = Rig::new(16);
        rig.header(offset, 2 * MIB);
        rig.send(&vec![7; 2 * MIB]);
        rig.connection.send(Instant(rig.now), &mut rig.bench.pool, &mut Vec::new()).unwrap();
        let replies = rig.replies();
        if offset == 100 {
            // Blocks of one byte: nothing is misaligned.
            assert_eq!((replies, rig.bench.inputs.len()), (vec![], 3));
            continue;
        }
        assert_eq!((replies, rig.bench.inputs.len()), (vec![error], 0));
        assert_eq!(rig.bench.pool.taken(), 0);
    }
}

#[test]
fn no_more_than_four_pieces_are_in_the_shard() {
    let mut rig = Rig::new(16);
    rig.header(0, 8 * MIB);
    // The sender is stopped in the middle: what the socket takes is not received.
    for _ in 0..200 {
        let _ = rig.theirs.write(&vec![7; 256 * KIB]);
        if rig.receive() == ReceiveOutcome::Waits(WaitsFor::Pieces) {
            break;
        }
    }
    assert_eq!((rig.bench.inputs.len(), rig.connection.stopped_by()), (4, WaitsFor::Pieces));
    assert_eq!((rig.connection.deadline(), rig.connection.goes_on()), (None, false));
    let first = rig.bios()[0];
    rig.answer(&first, Ok(()));
    assert!(rig.connection.goes_on());
    rig.receive();
    assert_eq!(rig.bench.inputs.len(), 5);
}

#[test]
fn one_request_in_flight_gives_its_pieces_one_by_one() {
    let mut rig = Rig::new(1);
    rig.header(0, 2 * MIB);
    for _ in 0..200 {
        let _ = rig.theirs.write(&vec![7; 256 * KIB]);
        if rig.receive() == ReceiveOutcome::Waits(WaitsFor::Window) {
            break;
        }
    }
    assert_eq!((rig.bench.inputs.len(), rig.connection.stopped_by()), (1, WaitsFor::Window));
    assert!(!rig.connection.goes_on(), "the shard would try it without end");
    let first = rig.bios()[0];
    rig.answer(&first, Ok(()));
    assert!(rig.connection.goes_on());
    rig.receive();
    assert_eq!(rig.bench.inputs.len(), 2);
}

/// Others begin: the window shrinks, and what is beyond it is written as far as whole blocks have come.
#[test]
fn payload_beyond_its_window_is_written_as_far_as_it_has_come() {
    let mut rig = Rig::new(16);
    rig.header(512, MIB);
    rig.send(&payload(512, 100 * KIB));
    assert!(!rig.connection.is_beyond(1 << 20) && rig.connection.is_beyond(64 << 10));
    rig.bench.window = 64 << 10;
    rig.receive();
    assert_eq!(rig.ranges(), [(512, 100 * KIB - 512)]);
    rig.check_and_answer(0);
    for at in (100 * KIB..MIB).step_by(4 * KIB) {
        let known = rig.bench.inputs.len();
        rig.send(&payload(512 + at, 4 * KIB));
        rig.check_and_answer(known);
    }
    let ranges = rig.ranges();
    assert_eq!(ranges.iter().map(|(_, len)| len).sum::<usize>(), MIB);
    assert!(ranges[2..].iter().all(|(offset, len)| offset % 65536 == 0 && *len <= 64 * KIB));
    assert_eq!((rig.replies(), rig.bench.pool.taken()), (vec![0], 0));
}

/// Another connection of the export holds more than its share leaves: a write within its window is still one bio, and a longer one is
/// given as far as it has come.
#[test]
fn write_within_its_window_needs_no_share() {
    for (len, sent, first) in [(MIB, MIB, MIB), (2 * MIB, 100_000, 64 * KIB)] {
        let mut rig = Rig::new(1000);
        let (export, device) = (ExportId::default(), DeviceId::default());
        rig.bench.memory = Memory::new(64 * MIB, 2);
        let others: Vec<_> = (0..48).map(|_| rig.bench.pool.try_take(MIB).unwrap()).collect();
        let held = Held { bytes: 48 * MIB, ..Held::default() };
        rig.bench.memory.note(0, Some((export, device)), Held::default(), false);
        rig.bench.memory.note(1, Some((export, device)), held, false);
        rig.header(0, len);
        for at in (0..sent).step_by(50_000) {
            assert_eq!(rig.bench.inputs.len(), usize::from(len > MIB && at > 65_536));
            rig.send(&payload(at, 50_000.min(sent - at)));
            rig.bench.memory.note_payload(0, rig.connection.kept_payload());
        }
        assert_eq!(rig.ranges()[..1], [(0, first)]);
        others.into_iter().for_each(|other| rig.bench.pool.put(other));
    }
}

/// Another payload of the export is beyond its window: this one waits until that is written, and is not torn.
#[test]
fn write_within_its_window_waits_for_one_that_is_beyond() {
    let mut rig = Rig::new(1000);
    let (export, device) = (ExportId::default(), DeviceId::default());
    rig.bench.memory = Memory::new(64 * MIB, 64);
    rig.bench.window = 256 * KIB as u32;
    let other = |rig: &mut Rig, mib: usize, slots: std::ops::Range<u32>| {
        for slot in slots {
            let kept = KeptPayload { export, bytes: mib * MIB };
            rig.bench.memory.note_payload(slot, Some(kept));
        }
    };
    other(&mut rig, 1, 1..40);
    rig.bench.memory.note(0, Some((export, device)), Held::default(), false);
    let held = Held { bytes: 48 * MIB, ..Held::default() };
    rig.bench.memory.note(1, Some((export, device)), held, false);
    let others: Vec<_> = (0..48).map(|_| rig.bench.pool.try_take(MIB).unwrap()).collect();
    rig.header(0, 200 * KIB);
    let last = rig.send(&payload(0, 64 * KIB));
    assert_eq!(
        (last, rig.ranges().len()),
        (ReceiveOutcome::Waits(WaitsFor::Buffer), 0),
        "64 KiB are guaranteed"
    );
    let wanted = rig.connection.wants(&rig.bench.memory.limits());
    let (from, to) = (64 * KIB, 128 * KIB);
    assert_eq!(wanted, Wanted::Growth { from, to, window: 0, for_others: true }.into());
    let own = Held { bytes: rig.connection.held(), ..Held::default() };
    rig.bench.memory.note(0, Some((export, device)), own, false);
    rig.bench.memory.wait(0, wanted);
    let supply = Supply { taken: rig.bench.pool.taken(), room: 8 };
    assert!(!rig.bench.memory.wake(supply, |_| true, |_| {}));
    // Its share would do, too, with a block of the pool.
    let less = Supply { taken: 0, ..supply };
    assert!(!rig.bench.memory.wake(less, |_| false, |_| {}));
    rig.bench.memory.wait(0, wanted);
    assert!(rig.bench.memory.wake(less, |_| true, |_| {}));
    rig.bench.memory.wait(0, wanted);
    other(&mut rig, 0, 1..40);
    assert!(rig.bench.memory.wake(supply, |_| true, |_| {}));
    rig.receive();
    rig.send(&payload(64 * KIB, 136 * KIB));
    assert_eq!(rig.ranges(), [(0, 200 * KIB)]);
    others.into_iter().for_each(|other| rig.bench.pool.put(other));
}

/// A write is longer than its window, and waits for its share. The window grows when other payloads end: then it needs none.
#[test]
fn write_that_waits_is_woken_when_its_window_has_grown() {
    let mut rig = Rig::new(1000);
    let (export, device) = (ExportId::default(), DeviceId::default());
    rig.bench.memory = Memory::new(8 * MIB, 8);
    let (held, kept) =
        (Held { bytes: 5 * MIB, ..Held::default() }, KeptPayload { export, bytes: 0 });
    let memory = &mut rig.bench.memory;
    memory.note(0, Some((export, device)), held, false);
    (0..5).for_each(|slot| memory.note_payload(slot, Some(kept)));
    let window = memory.window(export) + 1;
    let wanted = Wanted::Growth { from: 0, to: 4 * KIB, window, for_others: false };
    memory.wait(0, wanted);
    let supply = Supply { taken: 5 * MIB, room: 8 };
    assert!(!memory.wake(supply, |_| true, |_| {}));
    (1..5).for_each(|slot| memory.note_payload(slot, None));
    assert!(memory.wake(supply, |_| true, |_| {}));
}

/// The pool is used up: a payload that may not grow gives what is whole, and goes on with 4 KiB.
#[test]
fn payload_that_may_not_grow_is_written_as_far_as_it_has_come() {
    let mut rig = Rig::new(1000);
    rig.header(0, 512 * KIB);
    rig.send(&payload(0, 5000));
    rig.now += 5 * MS;
    rig.receive();
    let mut others = Vec::new();
    while let Some(other) = rig.bench.pool.try_take(4096) {
        others.push(other);
    }
    let last = rig.send(&payload(5000, 3192));
    assert_eq!((rig.ranges(), last), (vec![(0, 8192)], ReceiveOutcome::Waits(WaitsFor::Buffer)));
    assert_eq!(rig.connection.held(), 8192, "the piece");
    let counts = PayloadCounts { written_early: 1, cut: 1 };
    assert_eq!(rig.connection.take_payload_counts(), counts);
    assert_eq!(rig.connection.take_payload_counts(), PayloadCounts::default(), "once");
    let first = rig.bios()[0];
    rig.answer(&first, Ok(()));
    rig.send(&payload(8192, 8192));
    assert_eq!(rig.ranges()[1..], [(8192, 8192)]);
    others.into_iter().for_each(|other| rig.bench.pool.put(other));
    let second = rig.bios()[1];
    rig.answer(&second, Ok(()));
    let at = 16 * KIB;
    rig.send(&payload(at, 512 * KIB - at));
    assert_eq!(rig.ranges().iter().map(|(_, len)| len).sum::<usize>(), 512 * KIB);
}

/// All payloads hold more than their shares, and each has some bytes beyond its whole blocks: none waits for memory that only another one
/// could return.
#[test]
fn payload_needs_no_share_for_what_has_come_beyond_its_whole_blocks() {
    let mut rig = Rig::new(16);
    rig.header(0, MIB);
    rig.send(&payload(0, 100 * KIB + 2000));
    let mut others = Vec::new();
    while let Some(other) = rig.bench.pool.try_take(64 << 10) {
        others.push(other);
    }
    rig.bench.window = 64 << 10;
    rig.receive();
    assert_eq!(rig.ranges(), [(0, 100 * KIB)]);
    assert_eq!(rig.connection.held(), 132 << 10, "the piece, and a block for 2000 bytes");
    rig.check_and_answer(0);
    others.into_iter().for_each(|other| rig.bench.pool.put(other));
    let known = rig.bench.inputs.len();
    rig.send(&payload(100 * KIB + 2000, 4 * KIB - 2000));
    rig.check_and_answer(known);
    for at in (104 * KIB..MIB).step_by(4 * KIB) {
        let known = rig.bench.inputs.len();
        rig.send(&payload(at, 4 * KIB));
        rig.check_and_answer(known);
    }
    assert_eq!(rig.ranges().iter().map(|(_, len)| len).sum::<usize>(), MIB);
    assert_eq!((rig.replies(), rig.bench.pool.taken()), (vec![0], 0));
}

/// Small blocks lie everywhere: the pool has half of its memory and no block of 8 KiB. Then a write within its window is given in pieces; with
/// such a block it is one bio.
#[test]
fn write_within_its_window_is_given_in_pieces_where_no_block_is_long_enough() {
    for scattered in [true, false] {
        let mut rig = Rig::new(1000);
        let all = std::iter::from_fn(|| rig.bench.pool.try_take(4 * KIB));
        let (mut kept, mut freed) = (Vec::new(), Vec::new());
        for (at, block) in all.collect::<Vec<_>>().into_iter().enumerate() {
            let to_free = if scattered { at % 2 == 0 } else { at < 8192 };
            if to_free { &mut freed } else { &mut kept }.push(block);
        }
        freed.into_iter().for_each(|block| rig.bench.pool.put(block));
        rig.header(0, 64 * KIB);
        for at in (0..64 * KIB).step_by(4 * KIB) {
            rig.send(&payload(at, 4 * KIB));
        }
        let pieces = rig.ranges().len();
        assert_eq!(pieces, if scattered { 4 } else { 1 }, "four are in the shard at once");
        let mut known = 0;
        while known < rig.bench.inputs.len() {
            let now = rig.bench.inputs.len();
            rig.check_and_answer(known);
            known = now;
            rig.receive();
        }
        assert_eq!(rig.ranges().iter().map(|(_, len)| len).sum::<usize>(), 64 * KIB);
        assert_eq!(rig.replies(), [0]);
        kept.into_iter().for_each(|block| rig.bench.pool.put(block));
        assert_eq!(rig.bench.pool.taken(), 0);
    }
}

/// Each piece takes a place among the requests in flight: headers that came with the payload are read when there is one again.
#[test]
fn pieces_take_the_places_of_headers_behind_them() {
    let mut rig = Rig::new(4);
    rig.bench.window = 4 * KIB as u32;
    let reads = [bench::header(0, 1, 0, 512), bench::header(0, 2, 0, 512)].concat();
    let write = bench::header(1, 9, 0, 16 * KIB as u32);
    let last = rig.send(&[&write[..], &payload(0, 16 * KIB), &reads].concat());
    assert_eq!((last, rig.ranges().len()), (ReceiveOutcome::Waits(WaitsFor::Window), 4));
    rig.check_and_answer(0);
    rig.receive();
    assert_eq!(rig.ranges()[4..], [(0, 512), (0, 512)]);
}

/// A read that the cache returned waits for a block before a payload that waits for others of its export: it has its block when there is
/// one, whatever the payload waits for.
#[test]
fn request_before_a_waiting_payload_is_woken_for_its_own_block() {
    let mut rig = Rig::new(1000);
    let owner = Some((ExportId::default(), DeviceId::default()));
    rig.bench.memory = Memory::new(64 * MIB, 64);
    rig.bench.window = 256 * KIB as u32;
    for slot in 1..40 {
        let kept = KeptPayload { export: ExportId::default(), bytes: MIB };
        rig.bench.memory.note_payload(slot, Some(kept));
    }
    let others: Vec<_> = (0..48).map(|_| rig.bench.pool.try_take(MIB).unwrap()).collect();
    let note = |rig: &mut Rig, bytes| {
        let own = Held { bytes: rig.connection.held(), ..Held::default() };
        rig.bench.memory.note(0, owner, own, false);
        rig.bench.memory.note(1, owner, Held { bytes, ..Held::default() }, false);
    };
    note(&mut rig, 48 * MIB);
    rig.header(0, 200 * KIB);
    rig.send(&payload(0, 64 * KIB));
    let (command, flags) = (Command::Read, CommandFlags::NONE);
    let read = Request { cookie: 5, offset: 0, len: 4096, command, flags };
    let again = FrontRequest::again(read, FrontWaits::default(), Instant(0));
    rig.connection.intake.waiting_mut().push(again);
    assert_eq!(rig.receive(), ReceiveOutcome::Waits(WaitsFor::Buffer));
    note(&mut rig, 48 * MIB);
    let wants = rig.connection.wants(&rig.bench.memory.limits());
    let (from, to) = (64 * KIB, 128 * KIB);
    let first = Wanted::Growth { from, to, window: 0, for_others: true };
    let other = Some(Wanted::Block { bytes: 4 * KIB, reads: true });
    assert_eq!(wants, Wants { first, other });
    rig.bench.memory.wait(0, wants);
    let supply = Supply { taken: 48 * MIB + 64 * KIB, room: 8 };
    assert!(!rig.bench.memory.wake(supply, |_| true, |_| {}));
    // There is a share for 4 KiB more, and none for 64.
    let left = 28 * MIB - 88 * KIB;
    note(&mut rig, left);
    let supply = Supply { taken: left + 64 * KIB, room: 8 };
    assert!(rig.bench.memory.wake(supply, |_| true, |_| {}));
    for other in others {
        rig.bench.pool.put(other);
    }
    rig.receive();
    assert_eq!(rig.ranges(), [(0, 4096)]);
}

/// No block at all is free for these bytes: the waiter is woken for a block by its size, whatever its share.
#[test]
fn payload_waits_for_any_block_for_what_has_come_beyond_its_whole_blocks() {
    let mut rig = Rig::new(16);
    rig.header(0, MIB);
    rig.send(&payload(0, 100 * KIB + 2000));
    rig.connection.cut_payload(&mut rig.bench.pool);
    let mut others = Vec::new();
    while let Some(other) = rig.bench.pool.try_take(4 << 10) {
        others.push(other);
    }
    rig.bench.window = 64 << 10;
    assert_eq!(rig.receive(), ReceiveOutcome::Waits(WaitsFor::Buffer));
    let limits = Memory::new(64 * MIB, 1).limits();
    assert_eq!(rig.connection.wants(&limits), Wanted::Chunk { bytes: 4 * KIB }.into());
    rig.bench.pool.put(others.pop().unwrap());
    rig.receive();
    assert_eq!(rig.ranges(), [(0, 100 * KIB)]);
}

#[test]
fn client_that_leaves_in_the_middle_is_told_in_the_log() {
    let mut rig = Rig::new(16);
    rig.header(4096, 32 * MIB);
    rig.send(&vec![7; 3 * MIB]);
    assert_eq!(rig.bench.inputs.len(), 3);
    let sentence =
        "connection ended in the middle of a write: 3141632 of 33554432 bytes at 4096 were written";
    assert_eq!(rig.connection.intake.torn_write().as_deref(), Some(sentence));
    assert_eq!(rig.connection.take_torn_write().as_deref(), Some(sentence));
    assert_eq!(rig.connection.take_torn_write(), None, "it is told once");
    rig.connection.close(&mut rig.bench.pool);
    for bio in rig.bios() {
        let result = (Ok(()), false, ReplyStage::Final);
        rig.connection.reply(Instant(0), bio.id.sequence, result, &mut rig.bench.pool);
    }
    assert_eq!((rig.bench.pool.taken(), rig.connection.is_finished()), (0, true));
}

#[test]
fn open_write_goes_on_in_another_process() {
    let mut rig = Rig::new(16);
    rig.header(0, 2 * MIB);
    rig.send(&payload(0, MIB + 5000));
    let first = rig.bios()[0];
    assert!(!rig.connection.is_at_rest());
    rig.answer(&first, Ok(()));
    assert!(rig.connection.is_at_rest());
    let handed = rig.connection.hand_over().unwrap();
    let open = handed.open.clone().unwrap();
    assert_eq!((open.given, open.request.len, open.before.len()), (1 << 20, 2 << 20, 0));
    assert_eq!(handed.unparsed.len(), 5000);
    let mut next = Connection::adopt(handed, limits(16), Instant(0));
    let export = rig.bench.exports[0].clone();
    next.begin(Instant(0), ExportBinding::default(), &export, Negotiated::default());
    rig.connection.close(&mut rig.bench.pool);
    rig.connection = next;
    rig.bench.inputs.clear();
    rig.send(&payload(MIB + 5000, MIB - 5000));
    let ranges = rig.ranges();
    assert_eq!((ranges[0].0, ranges.iter().map(|(_, len)| len).sum::<usize>()), (1 << 20, MIB));
    let mut counted = 0;
    for bio in rig.bios() {
        let span = rig.connection.buffer(bio.id.sequence).unwrap();
        let expected = payload(bio.offset as usize, bio.len as usize);
        // SAFETY: the buffer is the request's, and nothing changes it.
        assert!(unsafe { span.part(0, bio.len as usize).bytes() } == expected);
        counted += usize::from(rig.answer(&bio, Ok(())));
    }
    assert_eq!((counted, rig.replies(), rig.bench.pool.taken()), (1, vec![0], 0));
    assert!(rig.bios().iter().all(|bio| bio.op == Op::Write));
}

/// A piece has failed, and all of the payload has come: nothing follows with which the next process would answer.
#[test]
fn failed_write_whose_payload_has_come_is_answered_by_the_next_process() {
    let mut rig = Rig::new(1);
    rig.header(0, 2 * MIB);
    rig.send(&payload(0, 2 * MIB));
    let first = rig.bios()[0];
    rig.answer(&first, Err(IoError::Medium));
    let handed = rig.connection.hand_over().unwrap();
    assert_eq!(handed.skip.map(|(bytes, _)| bytes), Some(0));
    let mut next = Connection::adopt(handed, limits(1), Instant(0));
    let export = rig.bench.exports[0].clone();
    next.begin(Instant(0), ExportBinding::default(), &export, Negotiated::default());
    rig.connection.close(&mut rig.bench.pool);
    rig.connection = next;
    rig.connection.send(Instant(0), &mut rig.bench.pool, &mut Vec::new()).unwrap();
    assert_eq!((rig.replies(), rig.bench.pool.taken()), (vec![5], 0));
    assert_eq!(rig.connection.deadline(), None, "nothing is expected of the client");
}
