//! Makes the file of a process that starts, or adopts that of a process which hands over, and hands its parts to the shards.
//!
//! An adopted file is not changed before [`CacheMemory::take_over`]: until then it is the other process's, which may go on.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use headworks_core::{CacheOptions, DirtyEntry, VolumeId};

use super::dirty_log::{DirtyLog, exact_now};
use super::layout::{
    MAGIC, READABLE, ROW_BYTES, ROWS_AT, VERSION, VolumeRow, entries, head, shard, shard_at, word,
};
use super::left::LeftCache;
use super::reserve::{BufferSpace, FrameSpace, LimitedFilesystem, Space};
use headworks::house::{HUGE, Mapping, PAGE, display_size, memory_file, page_size};

/// The memory that a shard needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardGeometry {
    /// Frames of its cache.
    pub units: u32,
    /// Bytes of its request buffers.
    pub buffers: usize,
}

/// Frames, buffers and dirty log of a shard.
#[derive(Debug)]
pub struct ShardMemory {
    /// Frames of the cache; none without a cache.
    pub frames: Option<Mapping>,
    /// Memory of the request buffers.
    pub buffers: Mapping,
    /// The dirty log, without entries if there is no cache: its shard may have the devices of others' volumes.
    pub log: DirtyLog,
    /// What reserves more frames and buffers; none where memory needs no reservation.
    pub space: Option<(FrameSpace, BufferSpace)>,
}

/// The file of a process that runs.
#[derive(Debug)]
pub struct CacheMemory {
    file: File,
    control: Arc<Mapping>,
    rows: usize,
    geometry: Vec<ShardGeometry>,
    /// Its filesystem, if that can be full.
    space: Option<Space>,
    /// Bytes that an adopted file had.
    had: u64,
    /// Held while a row is stored.
    storing: Mutex<()>,
    /// Words of an adopted file that are stored when it is taken over; none for a file of our own.
    pending: Option<Mutex<Vec<(usize, u64)>>>,
}

/// Where the parts of a file are.
struct Offsets {
    /// Table, frames and buffers of each shard.
    shards: Vec<[usize; 3]>,
    /// Length of what is before the first table.
    head: usize,
    control: usize,
    len: usize,
}

impl Offsets {
    fn new(rows: usize, geometry: &[ShardGeometry]) -> Self {
        let head = shard_at(rows, geometry.len()).next_multiple_of(PAGE);
        let mut at = head;
        let mut shards = Vec::new();
        for shard in geometry {
            shards.push([at, 0, 0]);
            at += (shard.units as usize * size_of::<u64>()).next_multiple_of(PAGE);
        }
        let control = at.next_multiple_of(HUGE);
        at = control;
        for (shard, offsets) in geometry.iter().zip(&mut shards) {
            offsets[1] = at;
            at += (shard.units as usize * PAGE).next_multiple_of(HUGE);
            offsets[2] = at;
            at += shard.buffers.next_multiple_of(HUGE);
        }
        Self { shards, head, control, len: at }
    }
}

/// Writes the first word of a new file, with the page that it is in, before the file has its length: a process that is killed
/// meanwhile leaves no file of zeros, which an empty disk is, too. A file of hugetlbfs cannot be written, and its first word is stored later.
fn write_magic(file: &File) -> io::Result<()> {
    let mut page = [0; ROWS_AT];
    page[head::MAGIC..][..8].copy_from_slice(&MAGIC.to_le_bytes());
    match file.write_all_at(&page, 0) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        written => written,
    }
}

impl CacheMemory {
    /// Bytes of the file for such shards.
    #[must_use]
    pub fn bytes(rows: usize, geometry: &[ShardGeometry]) -> u64 {
        Offsets::new(rows, geometry).len as u64
    }

    /// Bytes that the filesystem of a file has free; none for a memfd, which has no limit but the machine's memory.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn space(file: &File) -> io::Result<Option<u64>> {
        Ok(file.free()?.map(|(free, _)| free))
    }

    /// What is dirty now, for [`copy_recovery`](crate::copy_recovery).
    ///
    /// # Errors
    /// As [`LeftCache::look`].
    pub fn look(&self) -> io::Result<Option<LeftCache>> {
        LeftCache::look(self.file.try_clone()?)
    }

    /// Frames of all shards in the file of a running process.
    ///
    /// # Errors
    /// It is no such file.
    pub fn frames_in(file: &File) -> io::Result<u64> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "it has another layout");
        let len = usize::try_from(file.metadata()?.len()).ok().filter(|len| *len >= PAGE);
        let len = len.ok_or_else(wrong)?;
        let first = Mapping::shared(file, 0, PAGE, true)?;
        let get = |at| word(&first, at).load(Ordering::Acquire) as usize;
        if get(head::MAGIC) as u64 != MAGIC || !READABLE.contains(&(get(head::VERSION) as u64)) {
            return Err(wrong());
        }
        let (shards, rows, control) =
            (get(head::SHARDS), get(head::ROWS), get(head::CONTROL_LEN).min(len));
        let fits = rows <= len / ROW_BYTES && shard_at(rows, shards.min(len)) <= control;
        let table =
            Mapping::shared(file, 0, control, true).ok().filter(|_| fits).ok_or_else(wrong)?;
        let units = |index| word(&table, shard_at(rows, index) + shard::UNITS);
        Ok((0..shards).map(|index| units(index).load(Ordering::Acquire)).sum())
    }

    /// As [`CacheMemory::new`] in a new memfd, which lives as long as a descriptor of it.
    ///
    /// # Errors
    /// The kernel has no descriptor or address space for it.
    pub fn in_memfd(rows: usize, geometry: Vec<ShardGeometry>) -> io::Result<Self> {
        Self::new(memory_file(c"headworks-cache")?, rows, geometry, 0)
    }

    /// Makes the empty `file` the memory of `geometry`, with room for the images of `rows` volumes. Pages are allocated when they
    /// are first written; on a filesystem of limited size they are reserved before that. Its cache grows with what is free there
    /// beyond the first `least` bytes of frames; 0: there must be room for all.
    ///
    /// # Errors
    /// The filesystem has not the room, or the kernel cannot make the file so long, or map it.
    pub fn new(
        file: File,
        rows: usize,
        geometry: Vec<ShardGeometry>,
        least: u64,
    ) -> io::Result<Self> {
        check_space(&file, rows, &geometry, least)?;
        let space = Space::of(&file, least > 0)?;
        Self::with_space(file, rows, geometry, space)
    }

    /// As [`CacheMemory::new`] in a new memfd that counts as a file of `filesystem`.
    ///
    /// # Errors
    /// As [`CacheMemory::new`].
    pub fn on(
        filesystem: Arc<dyn LimitedFilesystem>,
        rows: usize,
        geometry: Vec<ShardGeometry>,
        least: u64,
    ) -> io::Result<Self> {
        check_space(&*filesystem, rows, &geometry, least)?;
        let space = Space::on(filesystem, least > 0)?;
        Self::with_space(memory_file(c"headworks-cache")?, rows, geometry, space)
    }

    fn with_space(
        file: File,
        rows: usize,
        geometry: Vec<ShardGeometry>,
        space: Option<Space>,
    ) -> io::Result<Self> {
        let offsets = Offsets::new(rows, &geometry);
        write_magic(&file)?;
        file.set_len(offsets.len as u64)?;
        if let Some(space) = &space {
            space.reserve(0, offsets.head)?;
        } else if page_size(&file)? > PAGE {
            // What was mapped once is promised to the file.
            let promised = Mapping::shared(&file, 0, offsets.len, true);
            promised.map_err(|_| no_room(offsets.len as u64, "not so many free pages"))?;
        }
        let control = Arc::new(Mapping::shared(&file, 0, offsets.control, true)?);
        let set = |at, value| word(&control, at).store(value, Ordering::Relaxed);
        set(head::MAGIC, MAGIC);
        set(head::VERSION, VERSION);
        set(head::LEN, offsets.len as u64);
        set(head::SHARDS, geometry.len() as u64);
        set(head::ROWS, rows as u64);
        set(head::CONTROL_LEN, offsets.control as u64);
        set(head::PID, std::process::id().into());
        for (index, (entry, [table, frames, buffers])) in
            geometry.iter().zip(&offsets.shards).enumerate()
        {
            let at = shard_at(rows, index);
            set(at + shard::UNITS, entry.units.into());
            set(at + shard::TABLE_AT, *table as u64);
            set(at + shard::FRAMES_AT, *frames as u64);
            set(at + shard::BUFFERS_AT, *buffers as u64);
            set(at + shard::BUFFERS_LEN, entry.buffers as u64);
        }
        let storing = Mutex::new(());
        let memory = Self { file, control, rows, geometry, space, had: 0, storing, pending: None };
        memory.reserve_first()?;
        word(&memory.control, head::READY).store(1, Ordering::Release);
        Ok(memory)
    }

    /// Reserves what each shard has from the start, or has had in the process that made the file.
    fn reserve_first(&self) -> io::Result<()> {
        for (index, geometry) in self.geometry.iter().enumerate() {
            let space = self.space_of(index).filter(|_| geometry.units > 0);
            let Some((frames, buffers)) = space else { continue };
            frames.reserve_first(self.backed_of(index, geometry))?;
            buffers.space.reserve(buffers.at, buffers.floor)?;
        }
        Ok(())
    }

    /// Frames of a shard that have space, or are to have it at the start; an adopted cache may grow a little as it is adopted.
    fn backed_of(&self, index: usize, geometry: &ShardGeometry) -> u32 {
        let entry = shard_at(self.rows, index) + shard::BACKED;
        let backed = word(&self.control, entry).load(Ordering::Acquire) as u32;
        let wanted = match (backed, &self.pending) {
            (_, None) => geometry.first_units(),
            // A process that reserved nothing may have used any of them.
            (0, Some(_)) => geometry.units,
            (backed, Some(_)) => backed.saturating_add(CacheOptions::BACKED_MIN),
        };
        wanted.min(geometry.units)
    }

    /// Frames of a shard that may be used at the start; none if their memory needs no reservation. For
    /// [`CacheOptions::backed`].
    #[must_use]
    pub fn backed(&self, index: usize) -> Option<u32> {
        self.space.as_ref()?;
        let entry = shard_at(self.rows, index) + shard::BACKED;
        Some(word(&self.control, entry).load(Ordering::Acquire) as u32)
    }

    fn space_of(&self, index: usize) -> Option<(FrameSpace, BufferSpace)> {
        let space = self.space.clone()?;
        let entry = shard_at(self.rows, index);
        let get = |offset| word(&self.control, entry + offset).load(Ordering::Relaxed) as usize;
        let (table_at, frames_at) = (get(shard::TABLE_AT), get(shard::FRAMES_AT));
        let (at, floor) = (get(shard::BUFFERS_AT), self.geometry[index].first_buffers());
        let buffers = BufferSpace { space: space.clone(), at, floor };
        let control = Arc::clone(&self.control);
        Some((FrameSpace { space, control, entry, table_at, frames_at }, buffers))
    }

    /// Maps the file of a process that hands over, which still uses it, as memory of the same `geometry`.
    ///
    /// # Errors
    /// It is no such file, or its rows or shards are others.
    pub fn adopt(file: File, rows: usize, geometry: Vec<ShardGeometry>) -> io::Result<Self> {
        let wrong = |message: &str| io::Error::new(io::ErrorKind::InvalidData, message.to_owned());
        let offsets = Offsets::new(rows, &geometry);
        if file.metadata()?.len() != offsets.len as u64 {
            return Err(wrong("it has another size: cache, buffers or shards were changed"));
        }
        let control = Arc::new(Mapping::shared(&file, 0, offsets.control, true)?);
        let get = |at| word(&control, at).load(Ordering::Acquire);
        let is_readable = READABLE.contains(&get(head::VERSION));
        if [get(head::MAGIC), get(head::READY)] != [MAGIC, 1] || !is_readable {
            return Err(wrong("it has another layout"));
        }
        let counts = [get(head::SHARDS), get(head::ROWS), get(head::CONTROL_LEN)];
        let same =
            |(index, (entry, [table, frames, buffers])): (usize, (&ShardGeometry, &[usize; 3]))| {
                let at = shard_at(rows, index);
                let ours = [
                    entry.units.into(),
                    *table as u64,
                    *frames as u64,
                    *buffers as u64,
                    entry.buffers as u64,
                ];
                let words = [
                    shard::UNITS,
                    shard::TABLE_AT,
                    shard::FRAMES_AT,
                    shard::BUFFERS_AT,
                    shard::BUFFERS_LEN,
                ];
                words.map(|offset| get(at + offset)) == ours
            };
        if counts != [geometry.len() as u64, rows as u64, offsets.control as u64]
            || !geometry.iter().zip(&offsets.shards).enumerate().all(same)
        {
            return Err(wrong("its parts are others: cache, buffers or shards were changed"));
        }
        let ours = vec![(head::VERSION, VERSION), (head::PID, std::process::id().into())];
        let pending = Some(Mutex::new(ours));
        // It may leave a part of the filesystem to others, whether the other process's cache grows or not.
        let (space, storing) = (Space::of(&file, true)?, Mutex::new(()));
        let mut memory = Self { file, control, rows, geometry, space, had: 0, storing, pending };
        // What is withheld there has no memory; here it is free.
        memory.reserve_first()?;
        memory.had = memory.space.as_ref().map_or(Ok(0), Space::had)?;
        Ok(memory)
    }

    /// Makes an adopted file this process's own: the other process will not touch it again. No effect on a file of our own.
    pub fn take_over(&self) {
        let Some(pending) = &self.pending else { return };
        let had = self.space.as_ref().and_then(|space| space.had().ok());
        if had.is_some_and(|had| had < self.had) {
            // It gave memory back meanwhile; where others have taken that, there is nothing better.
            let _ = self.reserve_first();
        }
        for (at, value) in pending.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            word(&self.control, at).store(value, Ordering::Release);
        }
    }

    /// Maps the parts of a shard; once for each.
    ///
    /// # Errors
    /// The kernel has no address space, or no huge pages in a hugetlbfs.
    pub fn shard(&self, index: usize) -> io::Result<ShardMemory> {
        let ShardGeometry { units, buffers } = self.geometry[index];
        let at = shard_at(self.rows, index);
        let get = |offset| word(&self.control, at + offset).load(Ordering::Relaxed) as usize;
        let map = |offset, len: usize| Mapping::shared(&self.file, offset, len, true);
        let frames_len = (units as usize * PAGE).next_multiple_of(HUGE);
        let frames = (units > 0).then(|| map(get(shard::FRAMES_AT), frames_len)).transpose()?;
        let buffers = map(get(shard::BUFFERS_AT), buffers.next_multiple_of(HUGE))?;
        let set = |offset, base: *mut u8| match &self.pending {
            None => word(&self.control, at + offset).store(base.addr() as u64, Ordering::Relaxed),
            Some(pending) => pending
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push((at + offset, base.addr() as u64)),
        };
        set(shard::BUFFERS_BASE, buffers.base());
        if let Some(frames) = &frames {
            set(shard::FRAMES_BASE, frames.base());
        }
        let table = (get(shard::TABLE_AT), units as usize);
        let memory = Arc::clone(&self.control);
        let log = DirtyLog::new(memory, at + shard::REDO, at + shard::ALIVE, table);
        Ok(ShardMemory { frames, buffers, log, space: self.space_of(index) })
    }

    /// Notes what the image of a volume is; before anything of it can be dirty.
    ///
    /// # Panics
    /// If there is no row for the volume.
    pub fn set_row(&self, volume: VolumeId, row: &VolumeRow) {
        assert!(usize::from(volume.0) < self.rows, "a row for every volume");
        let _alone = self.storing.lock().unwrap_or_else(PoisonError::into_inner);
        row.store(&self.control, volume);
        self.stamp();
    }

    /// Changes of images and marks until now are not of after the death.
    fn stamp(&self) {
        for index in 0..self.geometry.len() {
            let alive = word(&self.control, shard_at(self.rows, index) + shard::ALIVE);
            alive.fetch_max(exact_now(), Ordering::Relaxed);
        }
    }

    /// Forgets the image of a volume that was written out and closed: what becomes of it is others' from now on.
    pub fn clear_row(&self, volume: VolumeId) {
        if usize::from(volume.0) < self.rows {
            let _alone = self.storing.lock().unwrap_or_else(PoisonError::into_inner);
            VolumeRow::clear(&self.control, volume);
        }
    }

    /// Gives the dirty blocks of volume `from` and its row the id `to`, whose row is free. A process that dies meanwhile leaves
    /// both rows, each with a part of the blocks.
    ///
    /// # Errors
    /// There is no such row.
    pub fn renumber(&self, from: VolumeId, to: VolumeId) -> io::Result<()> {
        if usize::from(from.0).max(usize::from(to.0)) >= self.rows {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "there is no row for the id"));
        }
        let _alone = self.storing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(row) = VolumeRow::load(&self.control, from.0.into()) {
            row.store(&self.control, to);
        }
        for (index, geometry) in self.geometry.iter().enumerate() {
            let at = shard_at(self.rows, index) + shard::TABLE_AT;
            let table = word(&self.control, at).load(Ordering::Relaxed) as usize;
            let entry = shard_at(self.rows, index);
            for frame in 0..entries(&self.control, entry, geometry.units.into()) as usize {
                let place = word(&self.control, table + frame * 8);
                let entry = DirtyEntry(place.load(Ordering::Acquire));
                if entry.is_dirty() && entry.volume() == from {
                    place.store(entry.of_volume(to).0, Ordering::Release);
                }
            }
        }
        VolumeRow::clear(&self.control, from);
        Ok(())
    }

    /// The number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Notes that a volume has `size` bytes; nothing if it has no image.
    pub fn set_size(&self, volume: VolumeId, size: u64) {
        if usize::from(volume.0) < self.rows {
            VolumeRow::set_size(&self.control, volume, size);
        }
    }

    /// Notes that a volume's image was marked, and how far the clock of its filesystem is ahead of this machine's, in nanoseconds.
    pub fn set_ahead(&self, volume: VolumeId, ahead: u64) {
        if usize::from(volume.0) < self.rows {
            VolumeRow::set_ahead(&self.control, volume, ahead);
            self.stamp();
        }
    }

    /// Notes whether a device flush of a volume failed and was not acknowledged.
    pub fn set_suspect(&self, volume: VolumeId, suspect: bool) {
        if usize::from(volume.0) < self.rows {
            VolumeRow::set_suspect(&self.control, volume, suspect);
        }
    }

    /// Bytes of the frames that no device has.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        let mut frames = 0;
        for (index, geometry) in self.geometry.iter().enumerate() {
            let at = shard_at(self.rows, index) + shard::TABLE_AT;
            let table = word(&self.control, at).load(Ordering::Relaxed) as usize;
            let first = shard_at(self.rows, index);
            for frame in 0..entries(&self.control, first, geometry.units.into()) as usize {
                let entry = word(&self.control, table + frame * 8).load(Ordering::Acquire);
                frames += u64::from(DirtyEntry(entry).is_dirty());
            }
        }
        frames * PAGE as u64
    }
}

fn no_room(bytes: u64, has: &str) -> io::Error {
    let bytes = display_size(bytes);
    let message = format!(
        "cache and buffers need {bytes}, and its filesystem has {has}; use less (--cache, --buffers), or a larger filesystem"
    );
    io::Error::new(io::ErrorKind::StorageFull, message)
}

/// Refuses a filesystem without room for such a file, or for the `least` bytes of frames. A memfd has no limit but the machine's memory.
fn check_space(
    filesystem: &dyn LimitedFilesystem,
    rows: usize,
    geometry: &[ShardGeometry],
    least: u64,
) -> io::Result<()> {
    let offsets = Offsets::new(rows, geometry);
    let floors = geometry.iter().map(|shard| shard.first_buffers() as u64).sum::<u64>();
    let bytes = match least {
        0 => offsets.len as u64,
        least => offsets.head as u64 + least + floors,
    };
    if let Some((free, _)) = filesystem.free()?.filter(|(free, _)| *free < bytes) {
        return Err(no_room(bytes, &format!("{} free", display_size(free))));
    }
    Ok(())
}

impl AsFd for CacheMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl AsRawFd for CacheMemory {
    fn as_raw_fd(&self) -> i32 {
        self.file.as_raw_fd()
    }
}
