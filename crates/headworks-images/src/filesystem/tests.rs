//! Overlays and a plain file on one device: their bytes, their flushes, snapshots, and what is attached and detached.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use headworks_core::prng::Prng;
use headworks_core::{
    BioFlags, CacheOptions, IoError, Op, QueueOptions, RequestId, VolumeId, WriteMode,
};

use super::{FilesystemDevice, Image};
use crate::overlay::ids::PLACES_MAX;
use crate::{NewOverlay, OpenOverlay, OverlayOptions, OverlaySnapshot};
use headworks::driver::Span;
use headworks::{
    Command, CommandBatch, Device, DeviceSetup, Direct, FileOptions, OpenFile, Owner, OwnerOptions,
};
use headworks_house::{ImageHandles, SizeWatch};
use headworks_testing::{Bench, TempFile};

const SIZE: usize = 1 << 20;
const BLOCK: usize = 4096;
const NONE: BioFlags = BioFlags::NONE;
/// Two overlays on one base, and a file.
const ONE: VolumeId = VolumeId(0);
const OTHER: VolumeId = VolumeId(7);
const PLAIN: VolumeId = VolumeId(2);

fn file(path: &Path) -> Box<OpenFile> {
    let options = FileOptions { size: Some(SIZE as u64), ..FileOptions::default() };
    OpenFile::open(path, &options).unwrap().into()
}

fn overlay(path: &Path) -> Box<OpenOverlay> {
    OpenOverlay::open(path, &OverlayOptions::default(), None).unwrap().into()
}

/// The images, and the device that has them.
struct Disks {
    /// The base, then the two overlays and the file.
    paths: [TempFile; 4],
    bench: Bench<FilesystemDevice>,
    /// The file of the second overlay.
    watch: Option<SizeWatch>,
}

impl Disks {
    fn new() -> Self {
        let paths = ["base", "one", "other", "plain"].map(TempFile::absent);
        let bytes: Vec<u8> = (0..SIZE).map(|at| (at / 512 * 7 + at % 251) as u8 | 1).collect();
        std::fs::write(paths[0].path(), bytes).unwrap();
        for path in &paths[1..3] {
            NewOverlay::new(paths[0].path(), None).unwrap().create(path.path()).unwrap();
        }
        let mut disks = Self { paths, bench: Bench::new(FilesystemDevice::new()), watch: None };
        disks.open();
        disks
    }

    /// Opens the images; those that were open are closed.
    fn open(&mut self) {
        self.watch = None;
        *self.bench.device_mut() = FilesystemDevice::new();
        let [_, one, other, plain] = &self.paths;
        let other = overlay(other.path());
        let open = &other;
        self.watch = Some(open.file().size_watch());
        let device = self.bench.device_mut();
        device.attach(ONE, overlay(one.path())).unwrap();
        device.attach(OTHER, other).unwrap();
        device.attach(PLAIN, file(plain.path())).unwrap();
    }

    /// Starts a command on the first bytes of the bench's buffer.
    fn start(&mut self, volume: VolumeId, op: Op, block: usize) -> RequestId {
        let len = if op == Op::Flush { 0 } else { BLOCK };
        self.bench.volume = volume;
        self.bench.submit(op, NONE, (block * BLOCK) as u64, len as u32)
    }

    /// Ends all operations.
    fn drain(&mut self) {
        while self.bench.step() {}
    }

    /// The commands that have ended, all without an error.
    fn ended(&mut self) -> Vec<RequestId> {
        let ended = std::mem::take(&mut self.bench.completions);
        assert!(ended.iter().all(|done| done.status == Ok(())), "{ended:?}");
        ended.iter().map(|done| done.id).collect()
    }

    fn write(&mut self, volume: VolumeId, block: usize, byte: u8) {
        self.bench.buffer()[..BLOCK].fill(byte);
        self.start(volume, Op::Write, block);
        assert_eq!(self.bench.drain()[0].status, Ok(()));
    }

    fn flush(&mut self, volume: VolumeId) {
        self.start(volume, Op::Flush, 0);
        assert_eq!(self.bench.drain()[0].status, Ok(()));
    }

    fn read(&mut self, volume: VolumeId, block: usize) -> u8 {
        self.start(volume, Op::Read, block);
        let done = self.bench.drain();
        assert_eq!((done.len(), done[0].status), (1, Ok(())));
        let buffer = &self.bench.buffer()[..BLOCK];
        assert!(buffer.iter().all(|byte| *byte == buffer[0]));
        buffer[0]
    }

    /// A snapshot of the second overlay, as the server makes it.
    fn snapshot(&mut self, kept: &Path) -> Result<(), ()> {
        let path = self.paths[2].path();
        let (watch, options) = (self.watch.as_ref().unwrap(), OverlayOptions::default());
        let (mut snapshot, top) = OverlaySnapshot::prepare(path, watch, kept, &options).unwrap();
        snapshot.put_in_place().unwrap();
        let stacked = top.put_on(self.bench.device_mut(), OTHER).map_err(drop);
        match stacked {
            Ok(()) => self.watch = Some(snapshot.finish().1),
            Err(()) => snapshot.undo().unwrap(),
        }
        stacked
    }
}

/// A batch of commands, each in a range of its own; its memory is the same range of the bench's buffer.
#[derive(Default)]
struct Batch {
    commands: Vec<Command>,
    spans: Vec<Span>,
}

impl Batch {
    fn add(
        &mut self,
        disks: &mut Disks,
        volume: VolumeId,
        op: Op,
        flags: BioFlags,
        range: Range<usize>,
    ) {
        let slot = self.commands.len() as u32;
        let memory = &mut disks.bench.buffer()[range.clone()];
        // SAFETY: the buffer is the bench's, and nothing else uses it until the batch is drained.
        self.spans.push(unsafe { Span::new(memory.as_mut_ptr(), memory.len()) });
        self.commands.push(Command {
            id: RequestId { slot, generation: 1 },
            volume,
            op,
            flags,
            offset: range.start as u64,
            len: if op == Op::Flush { 0 } else { range.len() as u32 },
            first_span: slot,
            spans: u16::from(op.has_data()),
        });
    }

    fn run(&self, disks: &mut Disks, prng: &mut Prng) {
        disks.bench.submit_batch(CommandBatch { commands: &self.commands, spans: &self.spans });
        // Operations end in any order.
        while disks.bench.step_at(prng.below(4) as usize) {}
        let done = disks.bench.drain();
        for done in &done {
            let command = &self.commands[done.id.slot as usize];
            assert_eq!((done.status, done.transferred), (Ok(()), command.len), "{command:?}");
        }
        let mut slots: Vec<u32> = done.iter().map(|done| done.id.slot).collect();
        slots.sort_unstable();
        assert!(slots.into_iter().eq(0..self.commands.len() as u32), "one answer each");
    }
}

#[test]
fn interleaved_commands_match_a_byte_model_of_each_volume() {
    let mut disks = Disks::new();
    let mut prng = Prng::new(11);
    let base = std::fs::read(disks.paths[0].path()).unwrap();
    let mut models = [(ONE, base.clone()), (OTHER, base.clone()), (PLAIN, vec![0; SIZE])];
    const COMMANDS: usize = 16;
    const PART: usize = SIZE / BLOCK / COMMANDS;
    for _ in 0..300 {
        let mut batch = Batch::default();
        let mut expected = Vec::new();
        for at in 0..1 + prng.below(COMMANDS as u64) as usize {
            let (volume, model) = &mut models[prng.below(3) as usize];
            let first = at * PART + prng.below(PART as u64 - 4) as usize;
            let range = first * BLOCK..(first + 1 + prng.below(4) as usize) * BLOCK;
            let flags = if prng.below(4) == 0 { BioFlags::FUA } else { NONE };
            disks.bench.buffer()[range.clone()].fill(prng.next() as u8);
            let op = [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes, Op::Flush]
                [prng.below(7).saturating_sub(2) as usize];
            match op {
                Op::Write => {
                    model[range.clone()].copy_from_slice(&disks.bench.buffer()[range.clone()])
                }
                Op::Discard | Op::WriteZeroes => model[range.clone()].fill(0),
                Op::Flush => {}
                _ => expected.push((*volume, range.clone(), model[range.clone()].to_vec())),
            }
            batch.add(&mut disks, *volume, op, flags, range);
        }
        batch.run(&mut disks, &mut prng);
        for (volume, range, bytes) in expected {
            assert!(disks.bench.buffer()[range.clone()] == bytes, "{range:?} of {volume:?}");
        }
    }
    for (volume, _) in &models {
        disks.flush(*volume);
    }
    disks.open();
    for (volume, model) in &models {
        let mut batch = Batch::default();
        for at in 0..COMMANDS {
            let range = at * PART * BLOCK..(at + 1) * PART * BLOCK;
            batch.add(&mut disks, *volume, Op::Read, NONE, range);
        }
        batch.run(&mut disks, &mut prng);
        assert!(disks.bench.buffer()[..SIZE] == *model, "{volume:?} opened again");
    }
    assert!(std::fs::read(disks.paths[0].path()).unwrap() == base, "the base is never written");
}

#[test]
fn flush_waits_for_no_operation_of_another_volume() {
    let mut disks = Disks::new();
    disks.write(OTHER, 3, 3);
    let write = disks.start(ONE, Op::Write, 1);
    let plain = disks.start(PLAIN, Op::Write, 1);
    let flush = disks.start(OTHER, Op::Flush, 0);
    // A sync, a page of bits, a sync; the two writes stay in flight.
    for _ in 0..3 {
        assert!(disks.bench.completions.is_empty() && disks.bench.step_at(2));
    }
    assert_eq!(disks.ended(), [flush]);
    disks.drain();
    // Behind the data of an overlay's first write come its bits.
    assert_eq!(disks.ended(), [plain, write]);
}

#[test]
fn snapshot_is_made_while_another_overlay_has_commands_in_flight() {
    let mut disks = Disks::new();
    let kept = [TempFile::absent("kept"), TempFile::absent("kept")];
    disks.write(OTHER, 3, 3);
    assert!(disks.snapshot(kept[0].path()).is_err(), "no flush covers the write");
    disks.flush(OTHER);
    for (round, kept) in (4..).zip(&kept) {
        disks.bench.buffer()[..BLOCK].fill(round);
        let write = disks.start(ONE, Op::Write, 1);
        disks.snapshot(kept.path()).unwrap();
        disks.drain();
        assert_eq!(disks.ended(), [write]);
        disks.write(OTHER, usize::from(round), round);
        disks.flush(OTHER);
        assert_eq!(disks.read(ONE, 1), round);
        assert_eq!([3, round].map(|block| disks.read(OTHER, block.into())), [3, round]);
    }
    disks.flush(ONE);
    // A read that began before a snapshot ends in the layer that got it.
    let (last, read) = (TempFile::absent("kept"), disks.start(OTHER, Op::Read, 3));
    disks.snapshot(last.path()).unwrap();
    assert_eq!(disks.bench.drain()[0].id, read);
    assert_eq!(disks.bench.buffer()[0], 3);
    disks.open();
    assert_eq!([3, 4, 5].map(|block| disks.read(OTHER, block)), [3, 4, 5]);
    assert_eq!(disks.read(ONE, 1), 5);
}

#[test]
fn overlay_is_detached_when_nothing_of_it_is_in_flight() {
    let mut disks = Disks::new();
    for op in [Op::Write, Op::Flush, Op::Read] {
        let id = disks.start(ONE, op, 1);
        let device = disks.bench.device_mut();
        assert!(device.detach(ONE).is_none(), "{op:?} is in flight");
        disks.drain();
        assert_eq!(disks.ended(), [id]);
    }
    disks.write(OTHER, 5, 9);
    let path = disks.paths[1].path();
    assert!(OpenOverlay::open(path, &OverlayOptions::default(), None).is_err(), "it is locked");
    disks.start(OTHER, Op::Read, 5);
    drop(disks.bench.device_mut().detach(ONE).expect("others do not matter"));
    assert_eq!((disks.bench.drain().len(), disks.bench.buffer()[0]), (1, 9));
    assert!(disks.bench.device_mut().detach(ONE).is_none());
    disks.start(ONE, Op::Read, 1);
    assert_eq!(disks.bench.drain()[0].status, Err(IoError::Invalid));
    // The volume is free for either kind.
    disks.bench.device_mut().attach(ONE, overlay(disks.paths[1].path())).unwrap();
    disks.write(ONE, 1, 8);
    drop(disks.bench.device_mut().detach(ONE).unwrap());
    let another = TempFile::absent("another");
    disks.bench.device_mut().attach(ONE, file(another.path())).unwrap();
    assert_eq!(disks.read(ONE, 1), 0);
    drop(disks.bench.device_mut().detach(PLAIN).unwrap());
    drop(disks.bench.device_mut().detach(OTHER).unwrap());
}

#[test]
fn volume_has_one_image() {
    let mut disks = Disks::new();
    let third = TempFile::absent("third");
    NewOverlay::new(disks.paths[0].path(), None).unwrap().create(third.path()).unwrap();
    let another = TempFile::absent("another");
    let device = disks.bench.device_mut();
    let mut refuses = |volume, image: Box<dyn Image>| device.attach(volume, image).is_err();
    assert!(refuses(ONE, overlay(third.path())) && refuses(PLAIN, overlay(third.path())));
    assert!(refuses(ONE, file(another.path())) && refuses(PLAIN, file(another.path())));
    assert!(refuses(VolumeId(PLACES_MAX as u16), overlay(third.path())), "ids have no such place");
    assert!(!refuses(VolumeId(PLACES_MAX as u16 - 1), overlay(third.path())));
    assert!(!refuses(VolumeId(PLACES_MAX as u16), file(another.path())));
}

#[test]
fn queue_does_what_every_image_can_and_only_files_grow() {
    let mut disks = Disks::new();
    let plain = file(TempFile::absent("alone").path());
    let mut expected = plain.queue_options();
    expected.discard_granularity = expected.discard_granularity.max(BLOCK as u32);
    assert_eq!(disks.bench.device().queue_options(), expected);
    let buffered = OverlayOptions { direct: Direct::Off, ..OverlayOptions::default() };
    let third = TempFile::absent("third");
    NewOverlay::new(disks.paths[0].path(), None).unwrap().create(third.path()).unwrap();
    let open = OpenOverlay::open(third.path(), &buffered, None).unwrap();
    disks.bench.device_mut().attach(VolumeId(3), Box::new(open)).unwrap();
    expected.fua = false;
    assert_eq!(disks.bench.device().queue_options(), expected);
    drop(disks.bench.device_mut().detach(VolumeId(3)));
    expected.fua = true;
    let read = FileOptions { read_only: true, size: None, direct: Direct::Off };
    let only_read = OpenFile::open(disks.paths[0].path(), &read).unwrap();
    disks.bench.device_mut().attach(VolumeId(3), Box::new(only_read)).unwrap();
    assert_eq!(
        disks.bench.device().queue_options(),
        expected,
        "what is only read makes nothing less"
    );
    drop(disks.bench.device_mut().detach(VolumeId(3)));
    let read = OverlayOptions { read_only: true, ..OverlayOptions::default() };
    let only_read = OpenOverlay::open(third.path(), &read, None).unwrap().shared_queue_options();
    let fine = QueueOptions { discard_granularity: 512, ..plain.queue_options() };
    assert_eq!(fine.both(only_read), fine, "nor an overlay");
    let device = disks.bench.device_mut();
    assert_eq!(device.grow(ONE, 2 << 20), Err(IoError::Unsupported));
    assert_eq!(device.grow(PLAIN, 2 << 20), Ok(()));
    let top = OpenOverlay::open(third.path(), &OverlayOptions::default(), None).unwrap();
    assert!(Box::new(top.into_device()).put_on(device, PLAIN).is_err());
}

#[test]
fn owner_has_files_and_overlays_as_images_of_one_device() {
    let options = OwnerOptions { cache: CacheOptions::of_size(4 << 20), ..OwnerOptions::default() };
    let (owner, mut handles) = Owner::start(options).unwrap();
    let setup = DeviceSetup::new(FilesystemDevice::new(), QueueOptions::default());
    let device = owner.add_device(setup).unwrap();
    let (base, top) = (TempFile::absent("owner-base"), TempFile::absent("owner-top"));
    drop(file(base.path()));
    NewOverlay::new(base.path(), None).unwrap().create(top.path()).unwrap();
    let plain = TempFile::absent("owner-plain");
    let open = || OpenOverlay::open(top.path(), &OverlayOptions::default(), None);
    let overlay = owner.add_image(device, open().unwrap(), WriteMode::Writeback).unwrap();
    let file = owner.add_image(device, *file(plain.path()), WriteMode::Writeback).unwrap();
    for volume in [overlay, file] {
        handles[0].write(volume, BLOCK as u64, &[9; BLOCK]).unwrap();
    }
    assert!(open().is_err(), "it is locked");
    owner.remove_volume(overlay, Duration::from_secs(10)).unwrap();
    assert_eq!(open().unwrap().own_bytes(), BLOCK as u64);
    handles[0].read(file, BLOCK as u64, &mut [0; BLOCK]).unwrap();
    drop(handles);
    owner.join().unwrap();
    assert_eq!(std::fs::read(plain.path()).unwrap()[BLOCK..2 * BLOCK], [9; BLOCK]);
}
