//! Space of a filesystem in memory, reserved before it is used.
//!
//! A page of a file on tmpfs is had from the filesystem when it is first touched. If others have filled that by then, the touch is a
//! SIGBUS, which ends the process with all of its exports. So no page of the file is touched before `fallocate` has
//! given it: head, first frames and the floor of the buffers when the file is made, more frames with their part of the
//! dirty table on the thread that prepares them, more buffers when a request finds none. What is refused is not used: the
//! cache stays smaller, and requests wait for a buffer.
//!
//! A memfd has no limit but the machine's memory, and hugetlbfs reserves pages when they are mapped: neither needs this.
//!
//! Invariant: every frame below the word `BACKED` of its shard has space, unless it was given back, and so have its entry in the dirty table and
//! every page of the head; a look at a file touches nothing else. The simulated world checks it on a modelled filesystem
//! ([`LimitedFilesystem`]).

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::create::ShardGeometry;
use super::layout::{shard, word};
use headworks::house::{HUGE, Mapping, PAGE, page_size};
use headworks_house::Pool;

/// A cache of at most so many bytes has all of its frames from the start.
const WHOLE_MAX: usize = 16 << 20;
/// The first frames of a larger one, in bytes.
const FIRST: usize = 4 << 20;
/// Part of a shared filesystem that is left to others.
const LEFT_PART: u64 = 16;

/// A filesystem of limited size, as one of its files sees it: the kernel's, or a modelled one of the simulated world.
pub trait LimitedFilesystem: Debug + Send + Sync {
    /// Bytes that are free, and all of it; none without a limit.
    ///
    /// # Errors
    /// The kernel does not say.
    fn free(&self) -> io::Result<Option<(u64, u64)>>;

    /// Gives space to a range of whole pages of the file, of which a part may have some.
    ///
    /// # Errors
    /// There is no space.
    fn allocate(&self, pages: Range<u64>) -> io::Result<()>;

    /// Bytes that the file has.
    ///
    /// # Errors
    /// The kernel does not say.
    fn had(&self) -> io::Result<u64>;
}

impl LimitedFilesystem for File {
    fn free(&self) -> io::Result<Option<(u64, u64)>> {
        // SAFETY: a struct of integers, which the kernel fills in.
        let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
        // SAFETY: `found` lives through the call.
        if unsafe { libc::fstatvfs(self.as_raw_fd(), &raw mut found) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_bsize);
        Ok((found.f_blocks > 0).then(|| (bytes(found.f_bavail), bytes(found.f_blocks))))
    }

    fn allocate(&self, pages: Range<u64>) -> io::Result<()> {
        let (start, len) = (pages.start as libc::off_t, (pages.end - pages.start) as libc::off_t);
        // SAFETY: a call on an open descriptor.
        match unsafe { libc::fallocate(self.as_raw_fd(), 0, start, len) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn had(&self) -> io::Result<u64> {
        use std::os::unix::fs::MetadataExt;
        Ok(self.metadata()?.blocks() * 512)
    }
}

/// The space of a file on a filesystem of limited size.
#[derive(Clone, Debug)]
pub(super) struct Space {
    filesystem: Arc<dyn LimitedFilesystem>,
    /// Bytes of the filesystem that are left to others.
    leave: u64,
}

impl Space {
    /// The space of `file`; none if its memory needs no reservation. A cache that grows with what is free leaves a part to others.
    pub fn of(file: &File, grows: bool) -> io::Result<Option<Self>> {
        match page_size(file).is_ok_and(|page| page == PAGE) {
            true => Self::on(Arc::new(file.try_clone()?), grows),
            false => Ok(None),
        }
    }

    /// As [`Space::of`] on a filesystem of pages.
    pub fn on(filesystem: Arc<dyn LimitedFilesystem>, grows: bool) -> io::Result<Option<Self>> {
        let Some((_, all)) = filesystem.free()? else { return Ok(None) };
        let leave = if grows { all / LEFT_PART } else { 0 };
        Ok(Some(Self { filesystem, leave }))
    }

    /// Reserves a range of the file, of which a part may be reserved already.
    pub fn reserve(&self, at: usize, len: usize) -> io::Result<()> {
        let (start, end) = (at / PAGE * PAGE, (at + len).next_multiple_of(PAGE));
        self.filesystem.allocate(start as u64..end as u64)
    }

    /// As [`Space::reserve`], if enough is left to others.
    fn reserve_more(&self, at: usize, len: usize) -> io::Result<()> {
        let free = self.filesystem.free()?.map_or(u64::MAX, |(free, _)| free);
        if free < self.leave.saturating_add(len as u64) {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        self.reserve(at, len)
    }

    /// Bytes that the file has.
    pub fn had(&self) -> io::Result<u64> {
        self.filesystem.had()
    }
}

impl ShardGeometry {
    /// Frames that have space from the start.
    pub(super) fn first_units(&self) -> u32 {
        let all = self.units as usize * PAGE;
        if all <= WHOLE_MAX { self.units } else { (FIRST / PAGE) as u32 }
    }

    /// Bytes of the buffers that have space from the start: those of the largest request.
    pub(super) fn first_buffers(&self) -> usize {
        self.buffers.next_multiple_of(HUGE).min(Pool::LARGEST)
    }
}

/// Reserves frames of a shard.
#[derive(Debug)]
pub struct FrameSpace {
    pub(super) space: Space,
    pub(super) control: Arc<Mapping>,
    /// Offset of the shard's entry in the head.
    pub(super) entry: usize,
    pub(super) table_at: usize,
    pub(super) frames_at: usize,
}

impl FrameSpace {
    /// Reserves the frames in `len` bytes from byte `at` of the pool on, and their entries in the dirty table.
    ///
    /// # Errors
    /// There is no space.
    pub fn reserve(&self, at: usize, len: usize) -> io::Result<()> {
        self.take(at, len, Space::reserve_more)
    }

    /// As [`FrameSpace::reserve`], for frames that must have space; nothing is left to others.
    pub(super) fn reserve_first(&self, units: u32) -> io::Result<()> {
        self.take(0, units as usize * PAGE, Space::reserve)
    }

    /// Where in the file so many frames are from one on, and their entries in the dirty table.
    #[must_use]
    pub fn places(&self, first: u32, units: u32) -> [Range<usize>; 2] {
        let (first, units) = (first as usize, units as usize);
        let (entry, frame) = (self.table_at + first * 8, self.frames_at + first * PAGE);
        [entry..entry + units * 8, frame..frame + units * PAGE]
    }

    fn take(
        &self,
        at: usize,
        len: usize,
        reserve: fn(&Space, usize, usize) -> io::Result<()>,
    ) -> io::Result<()> {
        let (first, units) = (at / PAGE, len / PAGE);
        if units == 0 {
            return Ok(());
        }
        for place in self.places(first as u32, units as u32) {
            reserve(&self.space, place.start, place.len())?;
        }
        // A process that hands over may still be adding to it.
        let backed = word(&self.control, self.entry + shard::BACKED);
        backed.fetch_max((first + units) as u64, Ordering::AcqRel);
        Ok(())
    }
}

/// Reserves request buffers of a shard.
#[derive(Debug)]
pub struct BufferSpace {
    pub(super) space: Space,
    pub(super) at: usize,
    /// Bytes that have space from the start.
    pub floor: usize,
}

impl BufferSpace {
    /// Reserves `len` bytes of the buffers from byte `at` on; false without space.
    #[must_use]
    pub fn reserve(&self, at: usize, len: usize) -> bool {
        self.space.reserve_more(self.at + at, len).is_ok()
    }
}
