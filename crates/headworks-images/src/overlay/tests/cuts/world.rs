//! An overlay over such files, what each of its sectors may hold, and the defects that are planted in it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use headworks_core::prng::Prng;
use headworks_core::{BioFlags, Completion, DeviceId, Instant, Op, RequestId, VolumeId};

use super::disk::{Base, Disk, Pending, SECTOR, Sector, VolatileFile, base_word, device_io};
use crate::overlay::bitmap::{Bitmap, PAGE_BLOCKS};
use crate::overlay::head::{BLOCK, HEAD_BYTES, data_start, here_start};
use crate::overlay::here::{Here, TAG_PAGE, Tag};
use crate::overlay::load::{FoundBits, read_found};
use crate::overlay::{OverlayDevice, Parts};
use headworks::driver::{DiskDone, Span};
use headworks::{Command, CommandBatch, Device, NullDevice};
use headworks_testing::TestDisk;

pub const SECTORS: usize = (BLOCK / SECTOR) as usize;
pub const SIZE: u64 = 3 * PAGE_BLOCKS * BLOCK;
/// Adjacent blocks around borders of words, sectors and pages of the bitmap.
pub const PLACES: [u64; 4] = [60, 4096 - 4, PAGE_BLOCKS - 4, 2 * PAGE_BLOCKS + 100];
pub const NEAR: u64 = 8;
/// As that of one of many overlays of a device.
pub const PLACE: u16 = 77;
pub const BLOCKS: usize = PLACES.len() * NEAR as usize;

/// A wrong order, as the file sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
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

pub fn block_at(index: usize) -> u64 {
    PLACES[index / NEAR as usize] + index as u64 % NEAR
}

/// Opens a file as [`OpenOverlay`](crate::OpenOverlay) does, in a boot.
pub fn layer(
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
pub fn open(disks: &[Arc<Mutex<Disk>>], opened: (u8, Defect)) -> OverlayDevice {
    let mut below: Box<dyn Device> = Box::new(Base);
    let top = disks.len() - 1;
    for (index, disk) in disks[..top].iter().enumerate() {
        below = Box::new(layer(disk, below, (PLACE, index as u8), true, opened));
    }
    layer(&disks[top], below, (PLACE, top as u8), false, opened)
}

pub struct World {
    pub disks: Vec<Arc<Mutex<Disk>>>,
    pub device: OverlayDevice,
    pub prng: Prng,
    pub boot: u8,
    pub defect: Defect,
    pub completions: Vec<Completion>,
    pub generation: u32,
    pub word: u64,
    /// Words that each sector may hold after a cut, the oldest first; the last is what is read.
    pub may: Vec<Vec<Sector>>,
    /// Changes in flight.
    pub changes: BTreeMap<RequestId, Change>,
    /// Flushes in flight: the versions that were complete when they were submitted.
    pub flushes: BTreeMap<RequestId, Vec<usize>>,
}

pub struct Change {
    pub first: usize,
    pub count: usize,
    pub fua: bool,
    pub _bytes: Vec<u8>,
}

impl Change {
    pub fn sectors(&self) -> Range<usize> {
        self.first * SECTORS..(self.first + self.count) * SECTORS
    }
}

impl World {
    pub fn new(seed: u64, defect: Defect) -> Self {
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

    pub fn top(&self) -> std::sync::MutexGuard<'_, Disk> {
        self.disks[self.disks.len() - 1].lock().unwrap()
    }

    pub fn submit(
        &mut self,
        op: Op,
        flags: BioFlags,
        offset: u64,
        len: u32,
        spans: &[Span],
    ) -> RequestId {
        self.generation += 1;
        let id = RequestId { slot: self.generation, generation: 1 };
        let command = Command {
            id,
            volume: VolumeId(5),
            op,
            flags,
            offset,
            len,
            first_span: 0,
            spans: spans.len() as u16,
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
    pub fn change(&mut self) {
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
    pub fn write_here(&mut self, first: u64, count: u64) {
        for block in first..first + count {
            let byte = here_start(SIZE) + TAG_PAGE + block / 8;
            let mut sector = self.top().read(byte / SECTOR);
            sector[(byte % SECTOR) as usize] |= 1 << (block % 8);
            self.top().write(byte / SECTOR * SECTOR, &sector);
        }
    }

    pub fn flush(&mut self) -> RequestId {
        let mut complete: Vec<usize> = self.may.iter().map(Vec::len).collect();
        for change in self.changes.values() {
            complete[change.sectors()].iter_mut().for_each(|count| *count -= 1);
        }
        let id = RequestId { slot: self.generation + 1, generation: 1 };
        self.flushes.insert(id, complete);
        assert_eq!(self.submit(Op::Flush, BioFlags::NONE, 0, 0, &[]), id);
        self.take_completions();
        id
    }

    pub fn step(&mut self) -> bool {
        let more = self.step_file();
        self.take_completions();
        more
    }

    /// Ends a random operation of a random file. Returns false if there is none.
    pub fn step_file(&mut self) -> bool {
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
    pub fn end(&mut self, pending: &Pending, result: i32) {
        let done = DiskDone { device: DeviceId(1), id: pending.id, result };
        let (mut queue, mut lost) = (TestDisk::default(), Vec::new());
        let mut io = device_io(&mut self.completions, &mut queue, &mut lost);
        self.device.on_disk(Instant(1), done, &mut io);
    }

    pub fn execute(&mut self, index: usize, pending: &Pending) -> i32 {
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

    pub fn is_live(&self, block: u64) -> bool {
        self.device.live().stored_word(block / 64)[block as usize % 64 / 8] >> (block % 8) & 1 == 1
    }

    pub fn spoil(&mut self, bytes: &mut [u8], from: u64) {
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

    pub fn take_completions(&mut self) {
        for completion in std::mem::take(&mut self.completions) {
            assert_eq!(completion.status, Ok(()));
            if let Some(change) = self.changes.remove(&completion.id) {
                if change.fua {
                    for may in &mut self.may[change.sectors()] {
                        may.drain(..may.len() - 1);
                    }
                    for complete in self.flushes.values_mut() {
                        complete[change.sectors()].fill(1);
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

    pub fn settle(&mut self) {
        while self.step() {}
        assert!(self.changes.is_empty() && self.flushes.is_empty());
    }

    /// Reads the blocks without changes in flight; the words of their sectors.
    pub fn read_all(&mut self) -> Vec<Sector> {
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
    pub fn step_keeping_answers(&mut self) -> bool {
        let answers = std::mem::take(&mut self.completions);
        let more = self.step_file();
        self.completions.splice(0..0, answers);
        more
    }

    pub fn step_read(&mut self) -> bool {
        assert!(self.changes.is_empty() && self.flushes.is_empty());
        let more = self.step();
        let all = ((NEAR * BLOCK) as u32, Ok(()));
        for completion in self.completions.drain(..) {
            assert_eq!((completion.transferred, completion.status), all);
        }
        more
    }

    /// A snapshot: everything is flushed, and a new file is put on top.
    pub fn snapshot(&mut self) {
        self.settle();
        self.flush();
        self.settle();
        self.stack_new_file().unwrap();
    }

    pub fn stack_new_file(&mut self) -> Result<(), ()> {
        let disk = Arc::default();
        let top = layer(&disk, Box::new(NullDevice), (0, 0), false, (self.boot, self.defect));
        self.device.stack(Box::new(top)).map_err(drop)?;
        self.disks.push(disk);
        Ok(())
    }

    /// Cuts the power and starts again; returns the number of sectors that hold what they may not.
    pub fn cut(&mut self) -> usize {
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

    pub fn reopen(&mut self) {
        self.changes.clear();
        self.flushes.clear();
        self.completions.clear();
        self.device = open(&self.disks, (self.boot, self.defect));
    }

    /// Kills the process and starts it again; returns the number of sectors in which an acknowledged change is not found.
    pub fn kill(&mut self) -> usize {
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

    pub fn check_reads(&mut self) {
        self.settle();
        let words = self.read_all();
        assert!(words.iter().zip(&self.may).all(|(word, may)| Some(word) == may.last()));
    }
}
