//! Bios of many pieces: commands that are cut, batches that are full, copies.

use std::sync::{Arc, Mutex};

use headworks_core::{BioFlags, RequestId, Segment, Submit, VolumeId};

use super::*;
use crate::device::MemDevice;
use crate::testing::TestDisk;

const PIECE: usize = 512;
/// Bytes of each bio.
const BIO: usize = 1 << 20;

/// Bios of one connection, whose memory is cut into pieces that lie in turn from the end to the beginning of their part.
struct Scattered {
    memory: Vec<u8>,
    frames: Vec<u8>,
    piece: usize,
}

impl Scattered {
    fn new(bios: usize, piece: usize) -> Self {
        Self { memory: vec![0; bios * BIO], frames: vec![0; BIO], piece }
    }

    fn whole(&mut self, bio: BioId) -> Span {
        let memory = &mut self.memory[bio.sequence as usize * BIO..][..BIO];
        // SAFETY: the vector outlives what the test does with the span, and is not used meanwhile.
        unsafe { Span::new(memory.as_mut_ptr(), BIO) }
    }

    fn bytes(&mut self, sequence: u64, len: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.pieces(id(sequence), (0, len as u32), |piece| {
            // SAFETY: no device has the memory.
            bytes.extend_from_slice(unsafe { piece.bytes() });
        });
        bytes
    }
}

fn id(sequence: u64) -> BioId {
    BioId { sequence, ..BioId::default() }
}

// SAFETY: the vectors outlive the executor of each test and are not used beside it.
unsafe impl ActionSink for Scattered {
    const HAS_PIECES: bool = true;

    fn buffer(&mut self, _: BioId) -> Span {
        panic!("memory in pieces has no buffer")
    }

    fn pieces(&mut self, bio: BioId, (offset, len): (u32, u32), mut each: impl FnMut(Span)) {
        let (whole, count) = (self.whole(bio), BIO / self.piece);
        let (mut at, end) = (offset as usize, (offset + len) as usize);
        while at < end {
            let (index, skip) = (at / self.piece, at % self.piece);
            let part = (self.piece - skip).min(end - at);
            each(whole.part((count - 1 - index) * self.piece + skip, part));
            at += part;
        }
    }

    fn frames(&self) -> Span {
        let base = self.frames.as_ptr().cast_mut();
        // SAFETY: as in `whole`.
        unsafe { Span::new(base, self.frames.len()) }
    }

    fn reply(&mut self, _: BioId, _: Status, _: bool, _: ReplyStage, _: WaitTimes) {}
    fn send(&mut self, _: ShardId, _: Message) {}
    fn timer(&mut self, _: Instant) {}
    fn notice(&mut self, _: Notice) {}
}

/// The number of spans of each command, batch by batch.
type Batches = Arc<Mutex<Vec<Vec<usize>>>>;

/// A disk in memory that notes what it is given.
struct Noted(MemDevice, Batches);

impl Device for Noted {
    unsafe fn submit(&mut self, now: Instant, batch: CommandBatch<'_>, io: &mut DeviceIo<'_>) {
        assert!(batch.spans.len() <= BATCH_SPANS);
        let spans = batch.commands.iter().map(|command| {
            let spans = batch.spans_of(command);
            let bytes: usize = spans.iter().map(|span| span.len()).sum();
            assert_eq!(bytes, command.len as usize);
            spans.len()
        });
        self.1.lock().unwrap().push(spans.collect());
        // SAFETY: the caller's promise, passed on.
        unsafe { self.0.submit(now, batch, io) };
    }
}

/// Carries out commands of `len` bytes, one of each bio from the first on; returns the shape of their batches and the bytes moved.
fn run(
    executor: &mut Executor,
    sink: &mut Scattered,
    op: Op,
    commands: &[(u64, usize)],
) -> Vec<u32> {
    let mut actions = Actions::with_capacity(64, 64);
    for (bio, len) in commands {
        let len = *len as u32;
        let first_segment = actions.segments.len() as u32;
        actions.segments.push(Segment { bio: id(*bio), offset: 0, len });
        actions.list.push(Action::Submit(Submit {
            id: RequestId { slot: *bio as u32, generation: 0 },
            device: DeviceId(0),
            volume: VolumeId(0),
            op,
            flags: BioFlags::NONE,
            offset: *bio * BIO as u64,
            len,
            first_segment,
            segments: 1,
        }));
    }
    let mut inputs = Vec::new();
    let mut disk = TestDisk::default();
    executor.run(Instant(1), &actions, sink, &mut disk, &mut inputs);
    let moved = inputs.iter().map(|input| match input {
        Input::Complete { completion, .. } if completion.status.is_ok() => completion.transferred,
        other => panic!("{other:?}"),
    });
    moved.collect()
}

fn noted(bios: usize) -> (Executor, Batches) {
    let batches = Batches::default();
    let disk = MemDevice::new((bios * BIO) as u64).unwrap();
    let device = Noted(disk, Arc::clone(&batches));
    (Executor::new(vec![Some(Box::new(device))]), batches)
}

#[test]
fn full_batch_goes_to_its_device_and_another_begins() {
    const BIOS: usize = 20;
    let (mut executor, batches) = noted(BIOS);
    let capacity = executor.spans.capacity();
    let mut sink = Scattered::new(BIOS, PIECE);
    for (index, word) in sink.memory.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&index.to_le_bytes());
    }
    let (first, last) = (sink.bytes(0, 600 * PIECE), sink.bytes(BIOS as u64 - 1, 600 * PIECE));
    let commands: Vec<_> = (0..BIOS as u64).map(|bio| (bio, 600 * PIECE)).collect();
    let moved = run(&mut executor, &mut sink, Op::Write, &commands);
    assert_eq!(moved, vec![600 * PIECE as u32; BIOS], "each is whole");
    // As many as leave room for the longest command: 12 x 600 > 8192 - 1024.
    assert_eq!(*batches.lock().unwrap(), [vec![600; 12], vec![600; 8]]);
    sink.memory.fill(0);
    run(&mut executor, &mut sink, Op::Read, &commands);
    assert_eq!(
        (sink.bytes(0, 600 * PIECE), sink.bytes(BIOS as u64 - 1, 600 * PIECE)),
        (first, last)
    );
    assert_eq!(executor.spans.capacity(), capacity, "nothing was allocated");
}

#[test]
fn command_of_more_pieces_than_a_device_takes_is_cut_short() {
    let (mut executor, batches) = noted(8);
    let capacity = executor.spans.capacity();
    let mut sink = Scattered::new(8, PIECE);
    let lens = [1023, 1024, 1025, 2048, 1, 2048, 2048, 2048].map(|pieces| pieces * PIECE);
    let commands: Vec<_> = (0..).zip(lens).collect();
    let moved = run(&mut executor, &mut sink, Op::Write, &commands);
    let most = (SPANS_MAX * PIECE) as u32;
    assert_eq!(moved, lens.map(|len| most.min(len as u32)), "the queue continues the rest");
    let shapes = [vec![1023, 1024, 1024, 1024, 1, 1024, 1024, 1024]];
    assert_eq!(*batches.lock().unwrap(), shapes);
    // A whole batch of commands that each have far more pieces than there is room.
    let mut tiny = Scattered::new(8, 16);
    let commands: Vec<_> = (0..8).map(|bio| (bio, BIO)).collect();
    assert_eq!(run(&mut executor, &mut tiny, Op::Write, &commands), [(SPANS_MAX * 16) as u32; 8]);
    assert_eq!(executor.spans.capacity(), capacity, "nothing was allocated");
}

#[test]
fn copies_go_from_and_to_each_piece() {
    for piece in [1, 7, 512, 4096, BIO] {
        let mut sink = Scattered::new(2, if BIO.is_multiple_of(piece) { piece } else { 512 });
        sink.memory[..BIO].iter_mut().zip(0..).for_each(|(byte, at)| *byte = (at % 251) as u8);
        let bytes = sink.bytes(0, 20_000);
        let (mut executor, _) = noted(1);
        let copy = |bio, offset, direction| {
            let mut actions = Actions::with_capacity(4, 4);
            let (len, at) = (10_000, 4096);
            actions.list.push(Action::Copy { bio: id(bio), offset, len, at, direction });
            actions
        };
        let mut disk = TestDisk::default();
        for (bio, offset, direction) in
            [(0, 777, CopyDirection::ToPool), (1, 333, CopyDirection::ToBuffer)]
        {
            let actions = copy(bio, offset, direction);
            executor.run(Instant(1), &actions, &mut sink, &mut disk, &mut Vec::new());
        }
        assert_eq!(sink.frames[4096..14_096], bytes[777..10_777], "pieces of {piece}");
        let read = sink.bytes(1, 20_000);
        assert_eq!(read[333..10_333], bytes[777..10_777], "pieces of {piece}");
        let around = sink.frames[..4096].iter().chain(&read[..333]).chain(&read[10_333..]);
        assert!(around.into_iter().all(|byte| *byte == 0));
    }
}
