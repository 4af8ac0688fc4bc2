//! The file that a dead process left: checked, repaired, read, and made small.
//!
//! Of a file that is opened under its lock each dirty block has one entry, that of its newest bytes. An entry is cleared when its block is
//! somewhere else; the entries alone say what is needed, so memory of the rest can go at any time ([`LeftCache::shrink`]).
//!
//! What the kernel still has of the dead process suffers nothing from that. A fill may arrive in a frame whose page has gone: the page is the fill's
//! until then, and nobody reads it. A write-out comes from a frame that is dirty, and stays. An uncached write comes from a buffer and had no reply; its
//! page stays as it is until the write has ended, unless it is a part of a huge page, and therefore files are made small when the
//! images of the start are locked, behind which nothing of theirs is outstanding.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use headworks_core::cache::folio::BLOCK;
use headworks_core::{DirtyEntry, VolumeId};

use super::dirty_log::now;
use super::layout::{
    MAGIC, READABLE, ROWS_AT, VERSION, VolumeRow, entries, head, shard, shard_at, word,
};
use headworks::house::{Mapping, PAGE, page_size};
use headworks_house::Identity;

/// Most shards and rows that a file may claim to have: far more than any server has.
const COUNT_MAX: u64 = 1 << 16;

/// A dirty block: which one, and in which frame its newest bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirtyBlock {
    /// Volume of the block.
    pub volume: u16,
    /// Number of the block on its volume.
    pub block: u64,
    /// The frame with its newest bytes.
    pub frame: u32,
}

/// The dirty blocks that a table names, sorted by volume and block, each once. A shadow is newer than the block's own frame.
pub fn dirty_blocks(table: impl IntoIterator<Item = DirtyEntry>) -> Vec<DirtyBlock> {
    let entries = (0..).zip(table).filter(|(_, entry)| entry.is_dirty());
    let key = |(frame, entry): (u32, DirtyEntry)| {
        let (volume, block) = (entry.volume().0, entry.block());
        (volume, block, !entry.is_shadow(), frame)
    };
    let mut found: Vec<_> = entries.map(key).collect();
    found.sort_unstable();
    found.dedup_by_key(|(volume, block, ..)| (*volume, *block));
    let block = |(volume, block, _, frame)| DirtyBlock { volume, block, frame };
    found.into_iter().map(block).collect()
}

/// A dirty block of a file, with its bytes.
#[derive(Clone, Copy, Debug)]
pub struct LeftBlock<'a> {
    /// Number of the block on its volume.
    pub block: u64,
    /// The newest bytes, a whole block; the last block of an image may be shorter.
    pub bytes: &'a [u8],
    /// Its entry of the dirty table, for [`LeftCache::settle_block`].
    pub entry: usize,
}

/// A volume of a file that has dirty blocks.
#[derive(Clone, Debug)]
pub struct LeftVolume {
    /// Its id in the process that died.
    pub volume: VolumeId,
    /// Its image; none for a volume in memory, whose data died with the process.
    pub row: Option<VolumeRow>,
    /// Bytes of its dirty blocks.
    pub bytes: u64,
}

/// Frames and tables of a shard.
#[derive(Debug)]
struct LeftShard {
    table_at: usize,
    /// Offset of the frames in the file.
    frames_at: u64,
    /// Where frames and buffers are in the file.
    pages: [Range<u64>; 2],
    /// Frames whose entries may be read.
    entries: usize,
    frames: Mapping,
    buffers: Mapping,
    blocks: Vec<DirtyBlock>,
}

/// The file of a process that died.
#[derive(Debug)]
pub struct LeftCache {
    control: Mapping,
    rows: usize,
    /// Shards of the process, with caches and without.
    shards_all: usize,
    shards: Vec<LeftShard>,
    /// Volumes whose dirty blocks are somewhere else now.
    settled: Mutex<BTreeSet<u16>>,
    file: File,
}

/// Clears the entries of frames that a shadow beats, while the shadow's stands: were that one cleared first, older bytes would be the newest.
fn clear_beaten<'a>(table: impl Iterator<Item = &'a AtomicU64>, blocks: &[DirtyBlock]) {
    let mut newest: Vec<u32> = blocks.iter().map(|block| block.frame).collect();
    newest.sort_unstable();
    let mut newest = newest.into_iter().peekable();
    for (frame, entry) in (0..).zip(table) {
        let is_newest = newest.next_if_eq(&frame).is_some();
        if !is_newest && DirtyEntry(entry.load(Ordering::Relaxed)).is_dirty() {
            entry.store(DirtyEntry::CLEAN.0, Ordering::Release);
        }
    }
}

fn wrong(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message.into())
}

/// Whether a file of zeros is one of this project's whose process died before its first word. On tmpfs that word comes first, so there a
/// file of zeros is another's: an empty disk. A memfd has no name, and hugetlbfs is no place for disks.
fn begins_in_memory(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.nlink() == 0 || page_size(file)? != PAGE)
}

/// Whether a file has zeros alone.
fn is_zero(file: &File) -> io::Result<bool> {
    let (mut at, mut bytes) = (0_u64, vec![0; 1 << 16]);
    loop {
        // SAFETY: a call on an open descriptor.
        let data = unsafe { libc::lseek(file.as_raw_fd(), at as libc::off_t, libc::SEEK_DATA) };
        match io::Error::last_os_error() {
            _ if data >= 0 => at = data as u64,
            error if error.raw_os_error() == Some(libc::ENXIO) => return Ok(true),
            error => return Err(error),
        }
        let count = file.read_at(&mut bytes, at)?;
        if count == 0 || bytes[..count].iter().any(|byte| *byte != 0) {
            return Ok(count == 0);
        }
        at += count as u64;
    }
}

impl LeftCache {
    /// Opens a file of [`super::CacheMemory`]; `None` if its process died before it was complete. A copy that was cut short is done
    /// again.
    ///
    /// # Errors
    /// A sentence: it is no such file, of another version, or damaged.
    pub fn open(file: File) -> io::Result<Option<Self>> {
        Self::read(file, true)
    }

    /// Opens a file whose process may be running or ending: nothing is changed, and what is dirty is that of a moment, for
    /// [`LeftCache::volumes`] alone.
    ///
    /// # Errors
    /// As [`LeftCache::open`].
    pub fn look(file: File) -> io::Result<Option<Self>> {
        Self::read(file, false)
    }

    fn read(file: File, redo: bool) -> io::Result<Option<Self>> {
        let len = file.metadata()?.len();
        if len == 0 {
            return Ok(None);
        }
        if len < ROWS_AT as u64 {
            return Err(wrong("is too short to be a cache file"));
        }
        let first = Mapping::shared(&file, 0, ROWS_AT, true)?;
        let get = |at| word(&first, at).load(Ordering::Acquire);
        if get(head::READY) == 0 && get(head::MAGIC) == MAGIC {
            return Ok(None);
        }
        // An image may begin with zeros, too, or have nothing else, and is no file to be removed.
        if get(head::MAGIC) == 0 && begins_in_memory(&file)? && is_zero(&file)? {
            return Ok(None);
        }
        if get(head::MAGIC) != MAGIC {
            return Err(wrong("is no cache file of headworks"));
        }
        if !READABLE.contains(&get(head::VERSION)) {
            let theirs = get(head::VERSION);
            return Err(wrong(format!(
                "has layout {theirs}, and this version reads layouts up to {VERSION}: start the version that wrote it, which writes its \
                 data to the images at a clean stop, or remove the file to give the data up"
            )));
        }
        let (rows, shards) = (get(head::ROWS), get(head::SHARDS));
        let control = get(head::CONTROL_LEN);
        let heads = shard_at(rows.min(COUNT_MAX) as usize, shards.min(COUNT_MAX) as usize) as u64;
        if rows > COUNT_MAX || shards > COUNT_MAX || control < heads || control > len {
            return Err(wrong("is damaged: its head does not fit its length"));
        }
        let control = Mapping::shared(&file, 0, control as usize, true)?;
        let (rows, shards_found, settled) = (rows as usize, Vec::new(), Mutex::default());
        let shards_all = shards as usize;
        let mut left = Self { control, rows, shards_all, shards: shards_found, settled, file };
        for index in 0..shards_all {
            let shard = left.shard(index, len, redo)?;
            left.shards.extend(shard);
        }
        Ok(Some(left))
    }

    /// Maps a shard; none if it has no cache.
    fn shard(&self, index: usize, file_len: u64, redo: bool) -> io::Result<Option<LeftShard>> {
        let at = shard_at(self.rows, index);
        let get = |offset| word(&self.control, at + offset).load(Ordering::Acquire);
        let units = get(shard::UNITS);
        if units == 0 {
            return Ok(None);
        }
        let table_at = get(shard::TABLE_AT);
        let inside = |at: u64, len: u64, all: u64| at <= all && len <= all - at;
        let frames = units.saturating_mul(BLOCK.into());
        let (frames_at, buffers_at) = (get(shard::FRAMES_AT), get(shard::BUFFERS_AT));
        let buffers = get(shard::BUFFERS_LEN);
        let whole = units <= u32::MAX.into()
            && table_at.is_multiple_of(8)
            && inside(table_at, units * 8, self.control.len() as u64)
            && inside(frames_at, frames, file_len)
            && buffers > 0
            && inside(buffers_at, buffers, file_len);
        if !whole {
            return Err(wrong("is damaged: a shard's memory is not inside it"));
        }
        let pages = [frames_at..frames_at + frames, buffers_at..buffers_at + buffers];
        let frames = Mapping::shared(&self.file, frames_at as usize, frames as usize, false)?;
        let buffers = Mapping::shared(&self.file, buffers_at as usize, buffers as usize, false)?;
        let (frames_base, buffers_base) = (get(shard::FRAMES_BASE), get(shard::BUFFERS_BASE));
        let entry = |frame| word(&self.control, table_at as usize + frame * 8);
        if redo {
            self.redo(at, (&frames, frames_base), (&buffers, buffers_base))?;
        }
        let entries = entries(&self.control, at, units) as usize;
        let table = (0..entries).map(entry).map(|word| word.load(Ordering::Acquire));
        let blocks = dirty_blocks(table.map(DirtyEntry));
        if redo {
            clear_beaten((0..entries).map(entry), &blocks);
        }
        let table_at = table_at as usize;
        Ok(Some(LeftShard { table_at, frames_at, pages, entries, frames, buffers, blocks }))
    }

    /// Does the copy again that the process did not finish. A source outside of the buffers was a frame of an even earlier
    /// process, which was being restored: its block is still dirty there. The target is clean then, or has the same bytes from
    /// another process that died while it restored; so it needs nothing.
    fn redo(
        &self,
        at: usize,
        (frames, frames_base): (&Mapping, u64),
        (buffers, buffers_base): (&Mapping, u64),
    ) -> io::Result<()> {
        let redo = at + shard::REDO;
        let get = |offset| word(&self.control, redo + offset).load(Ordering::Acquire);
        let (to, from, len) = (get(0), get(8), get(16));
        if len == 0 {
            return Ok(());
        }
        let place = |memory: &Mapping, base: u64, at: u64| {
            let offset = usize::try_from(at.checked_sub(base)?).ok()?;
            let len = usize::try_from(len).ok()?;
            let fits = offset <= memory.len() && len <= memory.len() - offset;
            fits.then(|| memory.at(offset, len))
        };
        let target = place(frames, frames_base, to);
        let damaged = || wrong("is damaged: its redo record is not inside it");
        let target = target.ok_or_else(damaged)?;
        let source = match from {
            0 => None,
            from => Some(place(buffers, buffers_base, from)),
        };
        // SAFETY: the target is in the frames, the source in the buffers: two mappings of different parts of the file, which no
        // other process uses.
        unsafe {
            match source {
                None => target.write_bytes(0, len as usize),
                Some(None) => {}
                Some(Some(source)) => target.copy_from_nonoverlapping(source, len as usize),
            }
        }
        word(&self.control, redo + 16).store(0, Ordering::Release);
        Ok(())
    }

    /// The volumes that have dirty blocks.
    #[must_use]
    pub fn volumes(&self) -> Vec<LeftVolume> {
        let settled = self.settled.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found: Vec<LeftVolume> = Vec::new();
        let blocks = self.shards.iter().flat_map(|shard| &shard.blocks);
        for block in blocks.filter(|block| !settled.contains(&block.volume)) {
            match found.iter_mut().find(|left| left.volume.0 == block.volume) {
                Some(left) => left.bytes += u64::from(BLOCK),
                None => {
                    let index = usize::from(block.volume);
                    let row = (index < self.rows).then(|| VolumeRow::load(&self.control, index));
                    let volume = VolumeId(block.volume);
                    found.push(LeftVolume { volume, row: row.flatten(), bytes: BLOCK.into() });
                }
            }
        }
        found
    }

    /// The images of all volumes, with dirty blocks or without.
    #[must_use]
    pub fn rows(&self) -> Vec<VolumeRow> {
        (0..self.rows).filter_map(|index| VolumeRow::load(&self.control, index)).collect()
    }

    /// The dirty blocks of a volume in the order of their numbers, cut off at `size` bytes of the image.
    pub fn blocks(&self, volume: VolumeId, size: u64) -> impl Iterator<Item = LeftBlock<'_>> {
        // A volume lives on one shard.
        self.shards.iter().flat_map(move |shard| {
            let blocks = shard.blocks.iter().filter(move |block| block.volume == volume.0);
            blocks.filter_map(move |block| {
                let offset = block.block.checked_mul(BLOCK.into())?;
                let len = size.saturating_sub(offset).min(BLOCK.into()) as usize;
                let at = shard.frames.at(block.frame as usize * BLOCK as usize, len);
                // SAFETY: inside the mapping, which lives as long as the iterator; the process that wrote it is dead.
                let bytes = unsafe { std::slice::from_raw_parts(at, len) };
                let entry = shard.table_at + block.frame as usize * 8;
                (len > 0).then_some(LeftBlock { block: block.block, bytes, entry })
            })
        })
    }

    /// Reads a dirty block of a process that runs into `bytes`; false if it is not dirty in its frame any more, so that it is on the image.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn copy_block(&self, of: (usize, DirtyBlock), bytes: &mut [u8]) -> io::Result<bool> {
        let (shard, block) = of;
        let shard = &self.shards[shard];
        // Through the file: the frame may be another block's by now, which changes.
        self.file
            .read_exact_at(bytes, shard.frames_at + u64::from(block.frame) * u64::from(BLOCK))?;
        let entry = word(&self.control, shard.table_at + block.frame as usize * 8);
        let entry = DirtyEntry(entry.load(Ordering::Acquire));
        let is_same = entry.volume().0 == block.volume && entry.block() == block.block;
        Ok(entry.is_dirty() && is_same)
    }

    /// The dirty blocks of a volume, each with its shard.
    pub(crate) fn dirty_of(&self, volume: VolumeId) -> impl Iterator<Item = (usize, DirtyBlock)> {
        self.shards.iter().enumerate().flat_map(move |(shard, own)| {
            let blocks = own.blocks.iter().filter(move |block| block.volume == volume.0);
            blocks.map(move |block| (shard, *block))
        })
    }

    /// Forgets a dirty block, which is somewhere else now, by its [`LeftBlock::entry`].
    pub fn settle_block(&self, entry: usize) {
        word(&self.control, entry).store(DirtyEntry::CLEAN.0, Ordering::Release);
    }

    /// Forgets the dirty blocks of a volume, which are somewhere else now.
    pub fn settle(&self, volume: VolumeId) {
        for shard in &self.shards {
            for frame in 0..shard.entries {
                let entry = word(&self.control, shard.table_at + frame * 8);
                let value = DirtyEntry(entry.load(Ordering::Relaxed));
                if value.is_dirty() && value.volume() == volume {
                    entry.store(DirtyEntry::CLEAN.0, Ordering::Release);
                }
            }
        }
        self.settled.lock().unwrap_or_else(PoisonError::into_inner).insert(volume.0);
    }

    /// The word at `offset` in the entry of each shard.
    fn shard_words(&self, offset: usize) -> impl Iterator<Item = &AtomicU64> {
        let at = move |index| shard_at(self.rows, index) + offset;
        (0..self.shards_all).map(move |index| word(&self.control, at(index)))
    }

    /// Gives back the memory of what is not dirty: all buffers, and the other frames. What is dirty is all that the next start needs.
    pub fn shrink(&self) {
        let Ok(unit) = page_size(&self.file) else { return };
        for shard in &self.shards {
            let [frames, buffers] = shard.pages.clone();
            let entry = |frame: usize| word(&self.control, shard.table_at + frame * 8);
            let is_dirty =
                |frame: &usize| DirtyEntry(entry(*frame).load(Ordering::Acquire)).is_dirty();
            let mut at = frames.start;
            for frame in (0..shard.entries).filter(is_dirty) {
                let dirty = frames.start + frame as u64 * u64::from(BLOCK);
                self.give_back(at..dirty, unit as u64);
                at = dirty + u64::from(BLOCK);
            }
            // The last page of frames and buffers may be a part; nothing else is in it.
            for (at, end) in [(at, frames.end), (buffers.start, buffers.end)] {
                self.give_back(at..end.next_multiple_of(unit as u64), unit as u64);
            }
        }
    }

    /// Gives the whole pages of a range back to the kernel.
    fn give_back(&self, range: Range<u64>, unit: u64) {
        let (start, end) = (range.start.next_multiple_of(unit), range.end / unit * unit);
        let allocate = |mode| {
            let (start, len) = (start as libc::off_t, (end - start) as libc::off_t);
            // SAFETY: a call on an open descriptor. What it changes is memory of a dead process in which nothing is dirty.
            unsafe { libc::fallocate(self.file.as_raw_fd(), mode, start, len) }
        };
        if start < end {
            if unit > PAGE as u64 {
                // A huge page that was promised and never made stays promised.
                allocate(0);
            }
            allocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE);
        }
    }

    /// The latest time at which the process is known to have lived, in nanoseconds of real time.
    #[must_use]
    pub fn alive(&self) -> u64 {
        let times = self.shard_words(shard::ALIVE).map(|word| word.load(Ordering::Relaxed));
        times.max().unwrap_or(0)
    }

    /// Whether its devices had answered every command when the process died: nothing of it reached a file after
    /// [`LeftCache::alive`].
    #[must_use]
    pub fn was_idle(&self) -> bool {
        let counts = word(&self.control, head::VERSION).load(Ordering::Relaxed) == VERSION;
        counts && self.shard_words(shard::IN_FLIGHT).all(|word| word.load(Ordering::Acquire) == 0)
    }

    /// When the memory was made, in nanoseconds of real time: the process started then, or later.
    #[must_use]
    pub fn birth(&self) -> Option<u64> {
        Identity::of_file(&self.file).ok()?.birth()
    }

    /// Notes that the image of a volume is about to be written by this process. Changes of other images since the death stay others'.
    pub fn touch(&self, volume: VolumeId) {
        if usize::from(volume.0) < self.rows {
            VolumeRow::touch(&self.control, volume, now());
        }
    }

    #[cfg(test)]
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Sets the time of [`LeftCache::alive`].
    #[cfg(test)]
    pub(super) fn set_alive(&self, ns: u64) {
        self.shard_words(shard::ALIVE).for_each(|word| word.store(ns, Ordering::Relaxed));
    }

    /// The process that wrote it.
    #[must_use]
    pub fn pid(&self) -> u64 {
        word(&self.control, head::PID).load(Ordering::Relaxed)
    }

    /// Bytes of request buffers, which only the redo record needs.
    #[must_use]
    pub fn buffers(&self) -> usize {
        self.shards.iter().map(|shard| shard.buffers.len()).sum()
    }
}
