//! Power cuts and kills at any step. After a cut every unsynced sector of our file is old or any newer version by itself; after a kill the
//! kernel has all that was written, and each operation in flight is carried out or not.
//!
//! The same harness plants defects in the file, as a device with a wrong order would cause them, and finds each.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use headworks_core::prng::Prng;
use headworks_core::{BioFlags, Completion, DeviceId, Instant, IoError, Op, RequestId, VolumeId};

use super::super::bitmap::{Bitmap, PAGE_BLOCKS};
use super::super::head::{BLOCK, HEAD_BYTES, data_start, here_start};
use super::super::here::{Here, TAG_PAGE, Tag};
use super::super::load::{FoundBits, Stored, read_found};
use super::super::{OverlayDevice, Parts};
use headworks::driver::{DiskDone, Span};
use headworks::house::Loss;
use headworks::testing::TestDisk;
use headworks::{Command, CommandBatch, Device, DeviceIo, NullDevice};

const SECTOR: u64 = 512;
const SECTORS: usize = (BLOCK / SECTOR) as usize;
const SIZE: u64 = 3 * PAGE_BLOCKS * BLOCK;
/// Adjacent blocks around borders of words, sectors and pages of the bitmap.
const PLACES: [u64; 4] = [60, 4096 - 4, PAGE_BLOCKS - 4, 2 * PAGE_BLOCKS + 100];
const NEAR: u64 = 8;
/// As that of one of many overlays of a device.
const PLACE: u16 = 77;
const BLOCKS: usize = PLACES.len() * NEAR as usize;

/// A wrong order, as the file sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    None,
    /// The bits of writes that completed after the sync began are written, too.
    LiveBits,
    /// The sync between data and bits is left out.
    NoFirstSync,
    /// The sync between bits and acknowledgement is left out.
    NoSecondSync,
    /// A new bit is left out of a bitmap write now and then.
    LostBit,
    /// A zeroing or discard leaves the data of blocks whose bit is 0, where a cut may have left bytes.
    NoPunch,
    /// A write is answered without its here bits now and then.
    LostHere,
    /// Here bits are in the file before the data.
    HereFirst,
    /// Here bits are believed in another boot.
    OtherBoot,
    /// Here bits of another boot are not cleared before the tag is written.
    NoClear,
    /// Here bits are taken for bits on the disk.
    HereIsDurable,
    /// The file is not synced before its bits are taken for durable.
    NoOpenSync,
}

/// The defects that a kill shows, or a power cut after one.
const OF_KILLS: [Defect; 6] = [
    Defect::LostHere,
    Defect::HereFirst,
    Defect::OtherBoot,
    Defect::NoClear,
    Defect::LiveBits,
    Defect::HereIsDurable,
];

type Sector = u64;

/// A file with a volatile cache. A sector is named by its number and holds the word at its start.
#[derive(Default)]
struct Disk {
    stable: BTreeMap<u64, Vec<u8>>,
    /// Writes in their order, with the number of the event.
    cached: Vec<(u64, u64, Vec<u8>)>,
    pending: Vec<Pending>,
    events: u64,
    syncs: u64,
}

struct Pending {
    id: RequestId,
    op: Op,
    fua: bool,
    offset: u64,
    bytes: Vec<u8>,
    spans: Vec<Span>,
    began: u64,
}

impl Disk {
    fn read(&self, sector: u64) -> Vec<u8> {
        let newest = self.cached.iter().rev().find(|write| write.1 == sector);
        let stored = newest.map(|write| &write.2).or_else(|| self.stable.get(&sector));
        stored.cloned().unwrap_or_else(|| vec![0; SECTOR as usize])
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.events += 1;
        for (index, part) in bytes.chunks(SECTOR as usize).enumerate() {
            self.cached.push((self.events, offset / SECTOR + index as u64, part.to_vec()));
        }
    }

    /// Makes stable what was written before the event.
    fn sync(&mut self, began: u64) {
        let (covered, rest) =
            self.cached.drain(..).partition(|write: &(u64, _, _)| write.0 <= began);
        self.cached = rest;
        let covered: Vec<(u64, u64, Vec<u8>)> = covered;
        self.stable.extend(covered.into_iter().map(|(_, sector, bytes)| (sector, bytes)));
    }

    /// Makes the newest version of a range of sectors stable.
    fn settle(&mut self, offset: u64, len: usize) {
        for sector in offset / SECTOR..(offset + len as u64) / SECTOR {
            let newest = self.read(sector);
            self.stable.insert(sector, newest);
            self.cached.retain(|write| write.1 != sector);
        }
    }

    /// What is left after a cut; operations that had begun may have written any of their sectors.
    fn cut(&mut self, prng: &mut Prng) {
        for pending in std::mem::take(&mut self.pending) {
            if pending.op != Op::Read && pending.op != Op::Flush {
                self.write(pending.offset, &pending.bytes);
            }
        }
        let mut versions: BTreeMap<u64, Vec<Vec<u8>>> = BTreeMap::new();
        for (_, sector, bytes) in self.cached.drain(..) {
            versions.entry(sector).or_default().push(bytes);
        }
        for (sector, mut versions) in versions {
            let kept = prng.below(versions.len() as u64 + 1) as usize;
            if kept > 0 {
                self.stable.insert(sector, versions.swap_remove(kept - 1));
            }
        }
    }
}

impl Stored for Mutex<Disk> {
    fn next_data(&self, from: u64, end: u64) -> std::io::Result<Option<(u64, u64)>> {
        let disk = self.lock().unwrap();
        let pages = (from..end).step_by(BLOCK as usize);
        let sectors = |page: u64| page / SECTOR..(page + BLOCK) / SECTOR;
        let has_data = |page: u64| {
            disk.stable.range(sectors(page)).next().is_some()
                || disk.cached.iter().any(|write| sectors(page).contains(&write.1))
        };
        Ok(pages.into_iter().find(|&page| has_data(page)).map(|page| (page, page + BLOCK)))
    }

    fn read_at(&self, bytes: &mut [u8], at: u64) -> std::io::Result<()> {
        let disk = self.lock().unwrap();
        for (sector, part) in (at / SECTOR..).zip(bytes.chunks_mut(SECTOR as usize)) {
            part.copy_from_slice(&disk.read(sector));
        }
        Ok(())
    }

    fn sync(&self) -> std::io::Result<()> {
        self.lock().unwrap().sync(u64::MAX);
        Ok(())
    }
}

/// Our file, as a device whose operations end when the test says so.
struct VolatileFile(Arc<Mutex<Disk>>);

impl Device for VolatileFile {
    unsafe fn submit(&mut self, _: Instant, batch: CommandBatch<'_>, _: &mut DeviceIo<'_>) {
        let mut disk = self.0.lock().unwrap();
        for command in batch.commands {
            let spans = batch.spans_of(command).to_vec();
            let bytes = match command.op {
                Op::Write if !spans.is_empty() => {
                    // SAFETY: valid until the completion.
                    let parts: Vec<&[u8]> =
                        spans.iter().map(|span| unsafe { span.bytes() }).collect();
                    parts.concat()
                }
                Op::Read | Op::Flush => Vec::new(),
                _ => vec![0; command.len as usize],
            };
            disk.events += 1;
            let began = disk.events;
            let (id, op, offset) = (command.id, command.op, command.offset);
            let fua = command.flags.contains(BioFlags::FUA);
            disk.pending.push(Pending { id, op, fua, offset, bytes, spans, began });
        }
    }

    fn on_disk(&mut self, _: Instant, done: DiskDone, io: &mut DeviceIo<'_>) {
        let status = if done.result < 0 { Err(IoError::from_errno(-done.result)) } else { Ok(()) };
        let transferred = done.result.max(0) as u32;
        io.completions.push(Completion { id: done.id, transferred, status, hole: false });
    }
}

/// The word of a sector of the base.
fn base_word(sector: u64) -> Sector {
    1 << 40 | sector
}

/// A base that answers at once, and must not be written.
struct Base;

impl Device for Base {
    unsafe fn submit(&mut self, _: Instant, batch: CommandBatch<'_>, io: &mut DeviceIo<'_>) {
        for command in batch.commands {
            assert_eq!(command.op, Op::Read, "the base is only read");
            let mut sector = command.offset / SECTOR;
            for span in batch.spans_of(command) {
                // SAFETY: ours until the completion.
                for part in unsafe { span.bytes_mut() }.chunks_mut(SECTOR as usize) {
                    part.fill(0);
                    part[..8].copy_from_slice(&base_word(sector).to_le_bytes());
                    sector += 1;
                }
            }
            io.completions.push(command.done());
        }
    }
}

fn device_io<'a>(
    completions: &'a mut Vec<Completion>,
    disk: &'a mut TestDisk,
    lost: &'a mut Vec<Loss>,
) -> DeviceIo<'a> {
    DeviceIo { device: DeviceId(1), completions, disk, lost }
}

fn block_at(index: usize) -> u64 {
    PLACES[index / NEAR as usize] + index as u64 % NEAR
}

/// Opens a file as [`super::super::OpenOverlay`] does, in a boot.
fn layer(
    disk: &Arc<Mutex<Disk>>,
    below: Box<dyn Device>,
    (place, number): (u16, u8),
    read_only: bool,
    (boot, defect): (u8, Defect),
) -> OverlayDevice {
    let boot = if defect == Defect::OtherBoot { 1 } else { boot };
    let tag = (!read_only).then_some(Tag { boot: [boot; 16], number: 5 });
    let is_synced = !read_only && defect != Defect::NoOpenSync;
    let FoundBits { live, here: mut found, .. } =
        read_found(&**disk, SIZE, tag, is_synced).unwrap();
    if defect == Defect::NoClear {
        found.stale.clear();
    }
    let mut bitmap = Bitmap::new(Arc::new(live)).unwrap();
    if defect != Defect::HereIsDurable {
        bitmap.mark_pending(&found.pending);
    }
    OverlayDevice::from_parts(Parts {
        place,
        own: Box::new(VolatileFile(Arc::clone(disk))),
        below,
        bitmap,
        here: Here::new(tag, SIZE, &found).unwrap(),
        data: data_start(SIZE),
        size: SIZE,
        base_size: SIZE,
        layer: number,
        read_only,
        late_bits: None,
    })
}

/// The overlay over the given files, the first of which is the lowest.
fn open(disks: &[Arc<Mutex<Disk>>], opened: (u8, Defect)) -> OverlayDevice {
    let mut below: Box<dyn Device> = Box::new(Base);
    let top = disks.len() - 1;
    for (index, disk) in disks[..top].iter().enumerate() {
        below = Box::new(layer(disk, below, (PLACE, index as u8), true, opened));
    }
    layer(&disks[top], below, (PLACE, top as u8), false, opened)
}

struct World {
    disks: Vec<Arc<Mutex<Disk>>>,
    device: OverlayDevice,
    prng: Prng,
    boot: u8,
    defect: Defect,
    completions: Vec<Completion>,
    generation: u32,
    word: u64,
    /// Words that each sector may hold after a cut, the oldest first; the last is what is read.
    may: Vec<Vec<Sector>>,
    /// Changes in flight.
    changes: BTreeMap<RequestId, Change>,
    /// Flushes in flight: the versions that were complete when they were submitted.
    flushes: BTreeMap<RequestId, Vec<usize>>,
}

struct Change {
    first: usize,
    count: usize,
    fua: bool,
    _bytes: Vec<u8>,
}

impl Change {
    fn sectors(&self) -> Range<usize> {
        self.first * SECTORS..(self.first + self.count) * SECTORS
    }
}

impl World {
    fn new(seed: u64, defect: Defect) -> Self {
        let disks = vec![Arc::default()];
        let may = (0..BLOCKS).flat_map(|index| {
            (0..SECTORS as u64)
                .map(move |at| vec![base_word(block_at(index) * SECTORS as u64 + at)])
        });
        Self {
            device: open(&disks, (1, defect)),
            disks,
            prng: Prng::new(seed),
            boot: 1,
            defect,
            completions: Vec::new(),
            generation: 0,
            word: 0,
            may: may.collect(),
            changes: BTreeMap::new(),
            flushes: BTreeMap::new(),
        }
    }

    fn top(&self) -> std::sync::MutexGuard<'_, Disk> {
        self.disks[self.disks.len() - 1].lock().unwrap()
    }

    fn submit(
        &mut self,
        op: Op,
        flags: BioFlags,
        offset: u64,
        len: u32,
        spans: &[Span],
    ) -> RequestId {
        self.generation += 1;
        let id = RequestId { slot: self.generation, generation: 1 };
        let spans_len = spans.len() as u16;
        let command = Command {
            id,
            volume: VolumeId(5),
            op,
            flags,
            offset,
            len,
            first_span: 0,
            spans: spans_len,
        };
        let (mut disk, mut lost) = (TestDisk::default(), Vec::new());
        let mut io = device_io(&mut self.completions, &mut disk, &mut lost);
        // SAFETY: the world keeps the memory until the completion.
        unsafe {
            self.device.submit(Instant(1), CommandBatch { commands: &[command], spans }, &mut io);
        }
        id
    }

    /// A write, zeroing or discard of blocks that no other change in flight touches.
    fn change(&mut self) {
        let first = self.prng.below(BLOCKS as u64) as usize;
        let count = 1 + self.prng.below(3).min(NEAR - 1 - first as u64 % NEAR) as usize;
        let touches =
            |change: &Change| first < change.first + change.count && change.first < first + count;
        if self.changes.values().any(touches) {
            return;
        }
        let zeroes = self.prng.below(6) == 0;
        let fua = self.prng.below(12) == 0;
        let mut bytes = vec![0; count * BLOCK as usize];
        for (index, sector) in bytes.chunks_mut(SECTOR as usize).enumerate() {
            self.word += u64::from(!zeroes);
            let word = if zeroes { 0 } else { self.word };
            sector[..8].copy_from_slice(&word.to_le_bytes());
            self.may[first * SECTORS + index].push(word);
        }
        // SAFETY: kept in the change until its completion.
        let span = unsafe { Span::new(bytes.as_mut_ptr(), bytes.len()) };
        let (op, spans) = match zeroes {
            true if self.prng.below(2) == 0 => (Op::Discard, &[][..]),
            true => (Op::WriteZeroes, &[][..]),
            false => (Op::Write, &[span][..]),
        };
        let flags = if fua { BioFlags::FUA } else { BioFlags::NONE };
        let (offset, len) = (block_at(first) * BLOCK, (count as u64 * BLOCK) as u32);
        if self.defect == Defect::HereFirst {
            self.write_here(block_at(first), count as u64);
        }
        // A completion may come at once, so the change is known before.
        let id = RequestId { slot: self.generation + 1, generation: 1 };
        self.changes.insert(id, Change { first, count, fua, _bytes: bytes });
        assert_eq!(self.submit(op, flags, offset, len, spans), id);
        self.take_completions();
    }

    /// Sets here bits in the file.
    fn write_here(&mut self, first: u64, count: u64) {
        for block in first..first + count {
            let byte = here_start(SIZE) + TAG_PAGE + block / 8;
            let mut sector = self.top().read(byte / SECTOR);
            sector[(byte % SECTOR) as usize] |= 1 << (block % 8);
            self.top().write(byte / SECTOR * SECTOR, &sector);
        }
    }

    fn flush(&mut self) -> RequestId {
        let mut complete: Vec<usize> = self.may.iter().map(Vec::len).collect();
        for change in self.changes.values() {
            let sectors = change.first * SECTORS..(change.first + change.count) * SECTORS;
            complete[sectors].iter_mut().for_each(|count| *count -= 1);
        }
        let id = RequestId { slot: self.generation + 1, generation: 1 };
        self.flushes.insert(id, complete);
        assert_eq!(self.submit(Op::Flush, BioFlags::NONE, 0, 0, &[]), id);
        self.take_completions();
        id
    }

    fn step(&mut self) -> bool {
        let more = self.step_file();
        self.take_completions();
        more
    }

    /// Ends a random operation of a random file. Returns false if there is none.
    fn step_file(&mut self) -> bool {
        let waiting = |disk: &Arc<Mutex<Disk>>| disk.lock().unwrap().pending.len();
        let choices: Vec<(usize, usize)> = (0..self.disks.len())
            .flat_map(|disk| (0..waiting(&self.disks[disk])).map(move |index| (disk, index)))
            .collect();
        if choices.is_empty() {
            return false;
        }
        let (disk, index) = choices[self.prng.below(choices.len() as u64) as usize];
        let pending = self.disks[disk].lock().unwrap().pending.swap_remove(index);
        let result = self.execute(disk, &pending);
        self.end(&pending, result);
        true
    }

    /// Ends an operation of a file.
    fn end(&mut self, pending: &Pending, result: i32) {
        let done = DiskDone { device: DeviceId(1), id: pending.id, result };
        let (mut queue, mut lost) = (TestDisk::default(), Vec::new());
        let mut io = device_io(&mut self.completions, &mut queue, &mut lost);
        self.device.on_disk(Instant(1), done, &mut io);
    }

    fn execute(&mut self, index: usize, pending: &Pending) -> i32 {
        let is_bitmap = pending.op == Op::Write && pending.offset < data_start(SIZE);
        let mut bytes = pending.bytes.clone();
        if is_bitmap && self.defect != Defect::None {
            self.spoil(&mut bytes, pending.offset - HEAD_BYTES as u64);
        }
        let mut disk = self.disks[index].lock().unwrap();
        match pending.op {
            Op::Flush => {
                disk.syncs += 1;
                // The first sync of a round comes before any of its bitmap writes.
                let has_bits = disk.cached.iter().any(|write| write.1 * SECTOR < data_start(SIZE));
                let is_left_out = match self.defect {
                    Defect::NoFirstSync => !has_bits,
                    Defect::NoSecondSync => has_bits,
                    _ => false,
                };
                if !is_left_out {
                    disk.sync(pending.began);
                }
                0
            }
            Op::Read => {
                let mut sector = pending.offset / SECTOR;
                for span in &pending.spans {
                    // SAFETY: ours until the completion.
                    for part in unsafe { span.bytes_mut() }.chunks_mut(SECTOR as usize) {
                        part.copy_from_slice(&disk.read(sector));
                        sector += 1;
                    }
                }
                pending.spans.iter().map(|span| span.len()).sum::<usize>() as i32
            }
            _ if pending.offset >= here_start(SIZE) => {
                let is_clear = pending.spans.is_empty();
                let is_tag = pending.offset == here_start(SIZE);
                let is_left_out = match self.defect {
                    Defect::LostHere => !is_clear && !is_tag && self.prng.below(4) == 0,
                    Defect::NoClear => is_clear,
                    _ => false,
                };
                if !is_left_out {
                    disk.write(pending.offset, &bytes);
                }
                bytes.len() as i32
            }
            _ => {
                let is_punch = pending.op != Op::Write || pending.spans.is_empty();
                for (at, part) in
                    (pending.offset..).step_by(BLOCK as usize).zip(bytes.chunks(BLOCK as usize))
                {
                    let is_spared = self.defect == Defect::NoPunch && is_punch;
                    if !is_spared || self.is_live((at - data_start(SIZE)) / BLOCK) {
                        disk.write(at, part);
                    }
                }
                if pending.fua {
                    disk.settle(pending.offset, bytes.len());
                }
                bytes.len() as i32
            }
        }
    }

    fn is_live(&self, block: u64) -> bool {
        self.device.live().stored_word(block / 64)[block as usize % 64 / 8] >> (block % 8) & 1 == 1
    }

    fn spoil(&mut self, bytes: &mut [u8], from: u64) {
        let live = self.device.live();
        for (index, word) in bytes.chunks_mut(8).enumerate() {
            let stored = live.stored_word(from / 8 + index as u64);
            match self.defect {
                Defect::LiveBits => word.copy_from_slice(&stored),
                Defect::LostBit if stored != [0; 8] && self.prng.below(4) == 0 => {
                    let bits = u64::from_le_bytes(word.try_into().unwrap());
                    word.copy_from_slice(&(bits & bits.saturating_sub(1)).to_le_bytes());
                }
                _ => {}
            }
        }
    }

    fn take_completions(&mut self) {
        for completion in std::mem::take(&mut self.completions) {
            assert_eq!(completion.status, Ok(()));
            if let Some(change) = self.changes.remove(&completion.id) {
                if change.fua {
                    let sectors = change.first * SECTORS..(change.first + change.count) * SECTORS;
                    for may in &mut self.may[sectors] {
                        may.drain(..may.len() - 1);
                    }
                    for complete in self.flushes.values_mut() {
                        let sectors =
                            change.first * SECTORS..(change.first + change.count) * SECTORS;
                        complete[sectors].fill(1);
                    }
                }
            } else if let Some(complete) = self.flushes.remove(&completion.id) {
                for (at, (may, complete)) in self.may.iter_mut().zip(complete).enumerate() {
                    may.drain(..complete - 1);
                    for other in self.flushes.values_mut() {
                        other[at] = other[at].saturating_sub(complete - 1).max(1);
                    }
                }
            }
        }
    }

    fn settle(&mut self) {
        while self.step() {}
        assert!(self.changes.is_empty() && self.flushes.is_empty());
    }

    /// Reads the blocks without changes in flight; the words of their sectors.
    fn read_all(&mut self) -> Vec<Sector> {
        let mut words = Vec::new();
        for place in PLACES {
            let mut bytes = vec![0xee_u8; (NEAR * BLOCK) as usize];
            // SAFETY: kept until the read has ended, below.
            let halves = unsafe {
                let base = bytes.as_mut_ptr();
                [Span::new(base, 3 * 4096), Span::new(base.add(3 * 4096), 5 * 4096)]
            };
            self.submit(Op::Read, BioFlags::NONE, place * BLOCK, (NEAR * BLOCK) as u32, &halves);
            while self.step_read() {}
            let sectors = bytes.chunks(SECTOR as usize);
            words.extend(sectors.map(|sector| u64::from_le_bytes(sector[..8].try_into().unwrap())));
        }
        words
    }

    /// Ends an operation; answers stay in `completions`.
    fn step_keeping_answers(&mut self) -> bool {
        let answers = std::mem::take(&mut self.completions);
        let more = self.step_file();
        self.completions.splice(0..0, answers);
        more
    }

    fn step_read(&mut self) -> bool {
        assert!(self.changes.is_empty() && self.flushes.is_empty());
        let more = self.step();
        for completion in self.completions.drain(..) {
            assert_eq!(
                (completion.transferred, completion.status),
                ((NEAR * BLOCK) as u32, Ok(()))
            );
        }
        more
    }

    /// A snapshot: everything is flushed, and a new file is put on top.
    fn snapshot(&mut self) {
        self.settle();
        self.flush();
        self.settle();
        self.stack_new_file().unwrap();
    }

    fn stack_new_file(&mut self) -> Result<(), ()> {
        let disk = Arc::default();
        let top = layer(&disk, Box::new(NullDevice), (0, 0), false, (self.boot, self.defect));
        self.device.stack(Box::new(top)).map_err(drop)?;
        self.disks.push(disk);
        Ok(())
    }

    /// Cuts the power and starts again; returns the number of sectors that hold what they may not.
    fn cut(&mut self) -> usize {
        let top = self.disks.len() - 1;
        self.disks[top].lock().unwrap().cut(&mut self.prng);
        for disk in &self.disks[..top] {
            let disk = disk.lock().unwrap();
            assert!(disk.cached.is_empty(), "a base has nothing that is not on the disk");
        }
        self.boot += 1;
        self.reopen();
        let words = self.read_all();
        let wrong = words.iter().zip(&self.may).filter(|(word, may)| !may.contains(word)).count();
        // What a reader has seen is what there is from now on.
        self.may = words.into_iter().map(|word| vec![word]).collect();
        wrong
    }

    fn reopen(&mut self) {
        self.changes.clear();
        self.flushes.clear();
        self.completions.clear();
        self.device = open(&self.disks, (self.boot, self.defect));
    }

    /// Kills the process and starts it again; returns the number of sectors in which an acknowledged change is not found.
    fn kill(&mut self) -> usize {
        for index in 0..self.disks.len() {
            let pending = std::mem::take(&mut self.disks[index].lock().unwrap().pending);
            for pending in pending.into_iter().filter(|pending| pending.op != Op::Read) {
                if self.prng.below(2) == 0 {
                    self.execute(index, &pending);
                }
            }
        }
        let in_flight: Vec<Range<usize>> = self.changes.values().map(Change::sectors).collect();
        self.reopen();
        let words = self.read_all();
        let mut wrong = 0;
        for (at, (word, may)) in words.iter().zip(&mut self.may).enumerate() {
            // Of a change that was not answered either state is right, and it is what there is from now on.
            let is_open = in_flight.iter().any(|range| range.contains(&at));
            if is_open && may.last() != Some(word) {
                may.pop();
            }
            wrong += usize::from(may.last() != Some(word));
        }
        wrong
    }

    fn check_reads(&mut self) {
        self.settle();
        let words = self.read_all();
        assert!(words.iter().zip(&self.may).all(|(word, may)| Some(word) == may.last()));
    }
}

/// Seeds of each of the two long tests: `HEADWORKS_SCHEDULES=12500 cargo test --release -p headworks-images --lib overlay` for 100,000 cuts.
fn seeds() -> u64 {
    std::env::var("HEADWORKS_SCHEDULES").map_or(1_250, |text| text.parse().unwrap())
}

/// Runs seeds of four cuts each; returns the number of cuts and of wrong sectors.
fn cuts(seeds: Range<u64>, defect: Defect) -> (usize, usize) {
    let (mut cuts, mut wrong) = (0, 0);
    for seed in seeds {
        let mut world = World::new(seed, defect);
        for _ in 0..4 {
            for _ in 0..world.prng.below(60) {
                match world.prng.below(16) {
                    0..=5 => world.change(),
                    6 => {
                        world.flush();
                    }
                    7 if world.prng.below(8) == 0 && defect == Defect::None => world.check_reads(),
                    8 if world.prng.below(40) == 0
                        && world.disks.len() < 4
                        && defect == Defect::None =>
                    {
                        world.snapshot();
                    }
                    _ => {
                        world.step();
                    }
                }
            }
            wrong += world.cut();
            cuts += 1;
        }
    }
    (cuts, wrong)
}

/// One step of a schedule in which processes are killed, too.
fn random_step(world: &mut World) {
    match world.prng.below(16) {
        0..=5 => world.change(),
        6 => {
            world.flush();
        }
        7 if world.prng.below(10) == 0 && world.disks.len() < 3 => world.snapshot(),
        _ => {
            world.step();
        }
    }
}

/// Ends schedules by a kill and by a power cut after each of their steps, and after a second life of some steps by either again. Returns
/// the number of ends, and of schedules in which a sector was wrong.
fn ends(seeds: Range<u64>, steps: u64, defect: Defect) -> (usize, usize) {
    let (mut ends, mut wrong) = (0, 0);
    for seed in seeds {
        let mut is_wrong = false;
        for (length, power) in (0..steps).flat_map(|length| [(length, false), (length, true)]) {
            let mut world = World::new(seed, defect);
            (0..length).for_each(|_| random_step(&mut world));
            is_wrong |= (if power { world.cut() } else { world.kill() }) > 0;
            (0..world.prng.below(16)).for_each(|_| random_step(&mut world));
            is_wrong |= (if world.prng.below(2) == 0 { world.cut() } else { world.kill() }) > 0;
            ends += 2;
            if is_wrong {
                break;
            }
        }
        wrong += usize::from(is_wrong);
    }
    (ends, wrong)
}

#[test]
fn no_sector_is_wrong_after_kills_and_power_cuts_at_every_step() {
    let seeds = seeds() / 50;
    assert_eq!(ends(0..seeds, 60, Defect::None), (seeds as usize * 60 * 4, 0));
}

#[test]
fn each_defect_of_here_bits_is_found() {
    for defect in OF_KILLS {
        assert!((0..60).any(|seed| ends(seed..seed + 1, 60, defect).1 > 0), "{defect:?}");
    }
}

/// A process is killed between the write of bits and their sync; the next one finds them in the kernel's pages. It acknowledges a FUA
/// write of 88, and the power goes. Returns what is there then.
fn fua_write_between_kill_and_cut(defect: Defect) -> Sector {
    let mut world = World::new(1, defect);
    let (mut bytes, mut newer) = (vec![0_u8; 4096], vec![0_u8; 4096]);
    bytes.chunks_mut(512).for_each(|sector| sector[0] = 77);
    newer.chunks_mut(512).for_each(|sector| sector[0] = 88);
    // SAFETY: kept to the end of the test.
    let (span, newer_span) =
        unsafe { (Span::new(bytes.as_mut_ptr(), 4096), Span::new(newer.as_mut_ptr(), 4096)) };
    let at = block_at(0) * BLOCK;
    world.submit(Op::Write, BioFlags::NONE, at, 4096, &[span]);
    while world.step_keeping_answers() {}
    world.submit(Op::Flush, BioFlags::NONE, 0, 0, &[]);
    // The sync of the data, and the write of the bits; the second sync is in flight when the process is killed.
    assert!(world.step_keeping_answers() && world.step_keeping_answers());
    assert_eq!(world.top().pending.len(), 1);
    world.top().pending.clear();
    world.reopen();
    assert_eq!(world.device.live().count(), 1, "the bit is in the kernel's pages");
    world.submit(Op::Write, BioFlags::FUA, at, 4096, &[newer_span]);
    while world.step_keeping_answers() {}
    assert_eq!(world.completions.len(), 1, "the FUA write is acknowledged");
    // The power goes: nothing of what was not synced has come.
    world.top().cached.clear();
    world.boot += 1;
    world.reopen();
    world.read_all()[0]
}

#[test]
fn fua_write_after_a_kill_outlives_a_power_cut() {
    assert_eq!(fua_write_between_kill_and_cut(Defect::None), 88);
    assert_ne!(fua_write_between_kill_and_cut(Defect::NoOpenSync), 88, "the defect is found");
}

#[test]
fn no_sector_is_wrong_after_power_cuts() {
    assert_eq!(cuts(0..seeds(), Defect::None), (4 * seeds() as usize, 0));
}

// Two tests, for two processors.
#[test]
fn no_sector_is_wrong_after_other_power_cuts() {
    assert_eq!(cuts(seeds()..2 * seeds(), Defect::None), (4 * seeds() as usize, 0));
}

#[test]
fn bits_of_later_writes_in_a_round_are_found() {
    assert!(cuts(0..60, Defect::LiveBits).1 > 0);
}

#[test]
fn missing_sync_between_data_and_bits_is_found() {
    assert!(cuts(0..60, Defect::NoFirstSync).1 > 0);
}

#[test]
fn missing_sync_behind_the_bits_is_found() {
    assert!(cuts(0..60, Defect::NoSecondSync).1 > 0);
}

#[test]
fn bytes_of_a_cut_left_below_zeros_are_found() {
    assert!(cuts(0..60, Defect::NoPunch).1 > 0);
}

#[test]
fn lost_bit_is_found() {
    assert!(cuts(0..60, Defect::LostBit).1 > 0);
}

#[test]
fn flush_without_new_bits_makes_one_sync() {
    let mut world = World::new(1, Defect::None);
    for expected in [2, 3, 4] {
        if expected == 2 {
            world.change();
        }
        world.settle();
        world.flush();
        world.settle();
        assert_eq!(world.top().syncs, expected, "the first flush has bits to write");
    }
}

#[test]
fn failed_operation_fails_the_flush_and_the_next_one_writes_the_bits() {
    for fails in 0..3 {
        let mut world = World::new(2, Defect::None);
        world.change();
        world.settle();
        let id = world.flush();
        let mut failed_one = false;
        for step in 0.. {
            let Some(pending) = world.top().pending.pop() else { break };
            let result = if step == fails { -libc::EIO } else { world.execute(0, &pending) };
            failed_one |= step == fails;
            world.end(&pending, result);
        }
        assert!(failed_one);
        let completion = world.completions.pop().unwrap();
        assert_eq!((completion.id, completion.status), (id, Err(IoError::Medium)));
        world.flushes.clear();
        world.flush();
        world.settle();
        assert_eq!(world.cut(), 0, "the second flush made all durable");
    }
}

#[test]
fn flush_whose_bits_find_no_room_says_that_nothing_is_lost() {
    for (fails, expected) in
        [(0, IoError::NoSpace), (1, IoError::NotFlushed), (2, IoError::NoSpace)]
    {
        let mut world = World::new(2, Defect::None);
        world.change();
        world.settle();
        world.flush();
        for step in 0.. {
            let Some(pending) = world.top().pending.pop() else { break };
            let result = if step == fails { -libc::ENOSPC } else { world.execute(0, &pending) };
            world.end(&pending, result);
        }
        assert_eq!(world.completions.pop().unwrap().status, Err(expected), "step {fails}");
        world.flushes.clear();
        world.flush();
        world.settle();
        assert_eq!(world.cut(), 0, "with room again all is made durable");
    }
}

#[test]
fn snapshot_waits_for_a_flush_and_reads_in_flight_end_after_it() {
    let mut world = World::new(4, Defect::None);
    world.change();
    assert!(world.changes.values().all(|change| !change.fua), "it would be covered at once");
    assert!(world.stack_new_file().is_err(), "a change is in flight");
    world.settle();
    assert!(world.stack_new_file().is_err(), "no flush covers it");
    world.flush();
    assert!(world.stack_new_file().is_err(), "the flush is in flight");
    world.settle();
    // A read in flight of each layer, and a status, across two snapshots.
    let mut bytes = vec![0xee_u8; (NEAR * BLOCK) as usize];
    // SAFETY: kept until the reads have ended, below.
    let span = unsafe { Span::new(bytes.as_mut_ptr(), bytes.len()) };
    for place in PLACES {
        world.submit(Op::Read, BioFlags::NONE, place * BLOCK, (NEAR * BLOCK) as u32, &[span]);
    }
    let before = world.completions.len() + world.top().pending.len();
    assert!(world.top().pending.iter().any(|pending| pending.op == Op::Read));
    world.stack_new_file().unwrap();
    world.stack_new_file().unwrap();
    while world.step_keeping_answers() {}
    assert_eq!((before, world.completions.len()), (PLACES.len(), PLACES.len()));
    world.completions.clear();
    world.change();
    world.settle();
    world.check_reads();
    for _ in 3..8 {
        world.flush();
        world.settle();
        world.stack_new_file().unwrap();
    }
    world.flush();
    world.settle();
    assert!(world.stack_new_file().is_err(), "eight layers are the most");
    assert_eq!(world.cut(), 0);
}

#[test]
fn snapshot_waits_for_bits_that_a_killed_process_left() {
    let mut world = World::new(4, Defect::None);
    world.change();
    world.settle();
    assert_eq!(world.kill(), 0);
    assert!(world.stack_new_file().is_err(), "they are here bits alone");
    world.flush();
    world.settle();
    world.stack_new_file().unwrap();
    assert_eq!(world.kill(), 0);
}

#[test]
fn read_only_layer_refuses_changes_and_bad_ranges_fail() {
    let disk = Arc::default();
    let mut device = layer(&disk, Box::new(Base), (0, 0), true, (1, Defect::None));
    let mut run = |op, offset, len| {
        let (mut completions, mut queue, mut lost) = (Vec::new(), TestDisk::default(), Vec::new());
        let command = Command {
            id: RequestId::default(),
            volume: VolumeId(0),
            op,
            flags: BioFlags::NONE,
            offset,
            len,
            first_span: 0,
            spans: 0,
        };
        let mut io = device_io(&mut completions, &mut queue, &mut lost);
        let batch = CommandBatch { commands: &[command], spans: &[] };
        // SAFETY: there are no spans.
        unsafe { device.submit(Instant(1), batch, &mut io) };
        assert_eq!(completions, [command.failed(completions[0].status.unwrap_err())]);
        completions[0].status.unwrap_err()
    };
    assert_eq!(run(Op::Discard, 0, 4096), IoError::ReadOnly);
    assert_eq!(run(Op::Read, SIZE, 4096), IoError::Invalid);
    assert_eq!(run(Op::Read, u64::MAX, 4096), IoError::Invalid);
    assert_eq!(run(Op::BlockStatus, 0, 4096), IoError::Invalid);
}
