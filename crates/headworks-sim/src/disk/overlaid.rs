//! Overlays whose files are on a modelled disk: the server's `OverlayDevice`, with its bits, rounds of flushes and snapshots, over files
//! with the volatile cache and the faults of the disk.
//!
//! ```text
//!   commands of volume v --> the overlay in place v --> pieces, syncs, bits --> files of the disk: v: its base, layer k: `layer_file`
//!            ^                        ^                                              |
//!            `---- completions -------`---- `on_disk`, the next of those that ended -'
//! ```
//!
//! What the process knows is lost with this device; what the kernel or the disk has is the disk's. A sync covers one file. Opened again
//! it reads the bits as any reader of the files would find them.

use std::collections::VecDeque;

use headworks::driver::{DiskDone, Span};
use headworks::{Command, CommandBatch, Device, DeviceIo, NullDevice};
use headworks_core::prng::Prng;
use headworks_core::{BioFlags, Completion, DeviceId, Instant, Op, RequestId, VolumeId};
use headworks_images::{OverlayDevice, OverlayParts};

use super::{Disk, DiskDefect, DiskFile, SharedDisk, Store};
use crate::environment::NoDisk;

/// Most volumes of a disk with overlays: the numbers of their files follow from theirs.
pub const OVERLAID_MAX: usize = 16;
/// Most layers of a volume.
pub const LAYERS_MAX: u8 = 4;
/// Unit of the data of an overlay.
const BLOCK: u32 = 4096;

/// A volume that is an overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverlaidVolume {
    /// The volume; its base is the file with this number.
    pub volume: VolumeId,
    /// Bytes, in whole blocks.
    pub size: u64,
    /// Bytes of its base.
    pub base_size: u64,
}

/// The file of a layer of a volume; 0 is the lowest.
#[must_use]
pub fn layer_file(volume: VolumeId, layer: u8) -> VolumeId {
    VolumeId((u16::from(layer) + 1) * OVERLAID_MAX as u16 + volume.0)
}

/// The end of the bits in the file of a layer.
pub(super) fn bits_end() -> u64 {
    OverlayDevice::data_offset(u64::from(BLOCK))
}

/// Leaves out the lowest bit of some words.
pub(super) fn lose_bits(bytes: &mut [u8], prng: &mut Prng) {
    for word in bytes.as_chunks_mut::<8>().0 {
        let bits = u64::from_le_bytes(*word);
        if bits != 0 && prng.below(4) == 0 {
            *word = (bits & (bits - 1)).to_le_bytes();
        }
    }
}

impl OverlaidVolume {
    /// The file of its base.
    #[must_use]
    pub fn base(&self) -> DiskFile {
        DiskFile { volume: self.volume, size: self.base_size, block_size: BLOCK, read_only: true }
    }

    /// The file of a layer.
    #[must_use]
    pub fn layer(&self, layer: u8) -> DiskFile {
        let size = OverlayDevice::file_bytes(self.size);
        DiskFile {
            volume: layer_file(self.volume, layer),
            size,
            block_size: BLOCK,
            read_only: false,
        }
    }
}

/// An operation of a file.
#[derive(Clone, Copy, Debug)]
struct FileOp {
    id: RequestId,
    place: u16,
}

/// The operations of files that a disk has, and those that have ended.
#[derive(Debug, Default)]
pub(super) struct FileOps {
    ops: Vec<Option<FileOp>>,
    generation: u32,
    /// In the order of their ends.
    ended: VecDeque<(FileOp, Completion)>,
    /// The one whose overlay is told now.
    told: Option<Completion>,
}

impl FileOps {
    /// Forgets all waiters without an answer.
    pub fn clear(&mut self) {
        self.ops.clear();
        self.ended.clear();
    }

    /// The disk's own id of an operation.
    fn begin(&mut self, op: FileOp) -> RequestId {
        let slot = self.ops.iter().position(Option::is_none).unwrap_or_else(|| {
            self.ops.push(None);
            self.ops.len() - 1
        });
        self.ops[slot] = Some(op);
        self.generation = self.generation.wrapping_add(2);
        RequestId { slot: slot as u32, generation: self.generation }
    }

    fn end(&mut self, answers: Vec<Completion>) {
        for answer in answers {
            let op = self.ops[answer.id.slot as usize].take();
            self.ended.extend(op.map(|op| (op, answer)));
        }
    }
}

impl Disk {
    fn start_file_op(&mut self, now: Instant, op: FileOp, command: &Command, spans: &[Span]) {
        let id = self.file_ops.begin(op);
        let mut answers = Vec::new();
        self.start(now, &Command { id, ..*command }, spans, &mut answers);
        self.file_ops.end(answers);
    }

    fn advance_file_ops(&mut self, now: Instant) {
        let mut answers = Vec::new();
        self.advance(now, &mut answers);
        self.file_ops.end(answers);
    }

    /// Reads bytes of a file, as a process does; behind its end they are zeros.
    fn read_file(&self, file: VolumeId, at: u64, bytes: &mut [u8]) {
        bytes.fill(0);
        let Some(Some(store)) = self.files.get(usize::from(file.0)) else { return };
        let len = bytes.len().min(store.size().saturating_sub(at) as usize);
        bytes[..len].copy_from_slice(store.read(at, len));
    }

    /// The id of the boot.
    fn boot(&self) -> [u8; 16] {
        u128::from(self.boots + 1).to_le_bytes()
    }

    /// Whether a defect leaves out a write of here bits, which are the last page of a file of a small volume; the page of their tag is before it.
    pub(super) fn leaves_out(&mut self, command: &Command, is_zeros: bool) -> bool {
        let Some(file) = self.file(command).filter(|_| self.options.overlaid) else { return false };
        let is_here = file.size >= bits_end() && command.offset + u64::from(BLOCK) == file.size;
        let loses = self.options.defect == DiskDefect::LosesHereBits && !is_zeros;
        loses && is_here && self.prng.below(4) == 0
    }

    /// Number of layers that a volume has.
    fn layers(&self, volume: VolumeId) -> u8 {
        let is_there = |layer: &u8| {
            let file = layer_file(volume, *layer);
            self.files.get(usize::from(file.0)).is_some_and(Option::is_some)
        };
        (0..LAYERS_MAX).take_while(is_there).count() as u8
    }

    /// Adds the file of a new layer, which is on the medium. The one below is not written any more.
    fn add_layer(&mut self, volume: OverlaidVolume) {
        let file = volume.layer(self.layers(volume.volume));
        let index = usize::from(file.volume.0);
        if self.files.len() <= index {
            self.files.resize_with(index + 1, || None);
            self.first_sectors.resize(index + 1, 0);
        }
        self.files[index] = Some(Store::new(file.size));
        let below = |other: &DiskFile| other.volume.0 + OVERLAID_MAX as u16 == file.volume.0;
        if let Some(below) = self.options.files.iter_mut().find(|other| below(other)) {
            below.read_only = true;
        }
        self.options.files.push(file);
    }
}

/// A new layer for a volume, in a file of its own once it was stacked ([`keep_top`]); `None` if the volume has the most there may be.
#[must_use]
pub fn new_top(disk: &SharedDisk, volume: OverlaidVolume) -> Option<Box<OverlayDevice>> {
    let layers = disk.lock().layers(volume.volume);
    let own = LayerFile {
        disk: disk.clone(),
        file: layer_file(volume.volume, layers),
        place: volume.volume.0,
    };
    // The layer below is as long as the volume.
    let volume = OverlaidVolume { base_size: volume.size, ..volume };
    let top = || Box::new(make(disk, volume, own, Box::new(NullDevice), (0, true)));
    (layers < LAYERS_MAX).then(top)
}

/// Gives a new layer that was stacked its file.
pub fn keep_top(disk: &SharedDisk, volume: OverlaidVolume) {
    disk.lock().add_layer(volume);
}

/// A file of the disk, as the device that an overlay is over.
struct LayerFile {
    disk: SharedDisk,
    file: VolumeId,
    place: u16,
}

impl Device for LayerFile {
    unsafe fn submit(&mut self, now: Instant, batch: CommandBatch<'_>, _: &mut DeviceIo<'_>) {
        for command in batch.commands {
            let op = FileOp { id: command.id, place: self.place };
            let of_file = Command { volume: self.file, ..*command };
            // The caller keeps the spans valid until completion.
            self.disk.lock().start_file_op(now, op, &of_file, batch.spans_of(command));
        }
    }

    fn on_disk(&mut self, _: Instant, done: DiskDone, io: &mut DeviceIo<'_>) {
        let told = self.disk.lock().file_ops.told.take();
        io.completions.extend(told.map(|answer| Completion { id: done.id, ..answer }));
    }
}

/// Overlays that share a modelled disk.
pub struct OverlaidDisk {
    disk: SharedDisk,
    volumes: Vec<(VolumeId, OverlayDevice)>,
}

impl OverlaidDisk {
    /// Opens the overlays with the layers that the disk has.
    #[must_use]
    pub fn open(disk: &SharedDisk, volumes: &[OverlaidVolume]) -> Self {
        let open = |volume: &OverlaidVolume| (volume.volume, open_chain(disk, *volume));
        Self { disk: disk.clone(), volumes: volumes.iter().map(open).collect() }
    }

    /// Writes blocks that a dead process left, as the next one does before it serves: data, bits, and everything synced.
    pub fn restore(&mut self, now: Instant, volume: VolumeId, blocks: &[(u64, Vec<u8>)]) {
        for (offset, bytes) in blocks {
            let mut bytes = bytes.clone();
            // SAFETY: the memory outlives the command, which has ended when this returns.
            let span = unsafe { Span::new(bytes.as_mut_ptr(), bytes.len()) };
            self.run(now, (Op::Write, volume, *offset), &[span]);
        }
        self.run(now, (Op::Flush, volume, 0), &[]);
    }

    /// Runs a command to its end, whatever time that takes.
    fn run(&mut self, now: Instant, (op, volume, offset): (Op, VolumeId, u64), spans: &[Span]) {
        let len = spans.iter().map(|span| span.len() as u32).sum();
        let id = RequestId::default();
        let (flags, first_span, count) = (BioFlags::NONE, 0, spans.len() as u16);
        let command = Command { id, volume, op, flags, offset, len, first_span, spans: count };
        let (mut completions, mut lost) = (Vec::new(), Vec::new());
        let device = DeviceId(0);
        let mut disk = NoDisk;
        let mut io =
            DeviceIo { device, completions: &mut completions, disk: &mut disk, lost: &mut lost };
        // SAFETY: the caller keeps the spans until this returns.
        unsafe { self.submit(now, CommandBatch { commands: &[command], spans }, &mut io) };
        while let Some(at) = self.next_timeout() {
            self.on_timeout(at, &mut io);
        }
        let succeeded = completions.iter().all(|answer| answer.status.is_ok());
        assert!(succeeded && completions.len() == 1, "a disk without faults: {completions:?}");
    }

    /// Tells the overlays what has ended.
    fn deliver(&mut self, now: Instant, io: &mut DeviceIo<'_>) {
        loop {
            let Some((op, answer)) = self.disk.lock().file_ops.ended.pop_front() else { return };
            self.disk.lock().file_ops.told = Some(answer);
            // The file takes the whole answer from the disk.
            let done = DiskDone { device: io.device, id: op.id, result: 0 };
            if let Some(overlay) = self.overlay(VolumeId(op.place)) {
                overlay.on_disk(now, done, io);
            }
        }
    }

    pub(crate) fn overlay(&mut self, volume: VolumeId) -> Option<&mut OverlayDevice> {
        let mut volumes = self.volumes.iter_mut();
        volumes.find(|(overlaid, _)| *overlaid == volume).map(|(_, overlay)| overlay)
    }
}

fn open_chain(disk: &SharedDisk, volume: OverlaidVolume) -> OverlayDevice {
    let file = |file| LayerFile { disk: disk.clone(), file, place: volume.volume.0 };
    let layers = disk.lock().layers(volume.volume);
    let mut below: Box<dyn Device> = Box::new(file(volume.volume));
    for layer in 0..layers {
        let number = layer_file(volume.volume, layer);
        let is_top = layer + 1 == layers;
        if is_top {
            // What a process that was killed wrote may not be durable.
            disk.lock().sync_file(number);
        }
        let overlay = make(disk, volume, file(number), below, (layer, is_top));
        if is_top {
            return overlay;
        }
        below = Box::new(overlay);
    }
    unreachable!("a volume that is an overlay has a layer");
}

fn make(
    disk: &SharedDisk,
    volume: OverlaidVolume,
    own: LayerFile,
    below: Box<dyn Device>,
    (layer, is_top): (u8, bool),
) -> OverlayDevice {
    let OverlaidVolume { volume: VolumeId(place), size, base_size } = volume;
    let base_size = if layer == 0 { base_size } else { size };
    let (file, boot) = (own.file, is_top.then(|| disk.lock().boot()));
    let read = |at: u64, bytes: &mut [u8]| disk.lock().read_file(file, at, bytes);
    let (own, read) = (Box::new(own), &read);
    OverlayDevice::over(OverlayParts { own, below, read, boot, size, base_size, place, layer })
        .expect("there is address space for a small bitmap")
}

impl Device for OverlaidDisk {
    unsafe fn submit(&mut self, now: Instant, batch: CommandBatch<'_>, io: &mut DeviceIo<'_>) {
        for command in batch.commands {
            let one = CommandBatch { commands: std::slice::from_ref(command), spans: batch.spans };
            let overlay = self.overlay(command.volume).expect("the volumes are the scenario's");
            // SAFETY: the caller's promise, passed on.
            unsafe { overlay.submit(now, one, io) };
        }
        self.deliver(now, io);
    }

    fn on_timeout(&mut self, now: Instant, io: &mut DeviceIo<'_>) {
        self.disk.lock().advance_file_ops(now);
        self.deliver(now, io);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.disk.next_timeout()
    }
}
