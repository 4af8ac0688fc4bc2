//! What is done with an overlay that is not served: commit, reset, rebase, flatten.
//!
//! ```text
//!   commit   head says "commit" --> our runs into the base, sync --> bits 0, sync --> head with the base as it is now --> data punched
//!   reset    head says "reset" ------------------------------------> bits 0, sync --> head with the base as it is now --> data punched
//!   rebase                                                                            head with another base
//!   flatten  FILE.new-PID: all layers' data, fsync --link--> FILE
//! ```
//!
//! Each can be interrupted at any point and begun again. Commit: blocks stay ours until the base has them durably, and a block that both
//! have reads the same from either, so it can be served in between; while the head says "commit" the base's time of modification does not
//! count. Reset: in between it is refused, since some blocks are given up and some are not. Data are punched only when no bit on the disk
//! names them. A reset after an interrupted commit would leave the base a mixture and throw the only complete copy away, so it needs a word.
//! Whatever changes the head makes durable first what is only in the here bits, which end with it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use headworks_core::ConfigError;

use super::bitmap::PAGE_BYTES;
use super::head::{
    BLOCK, BaseRecord, HEAD_BYTES, Head, Task, bitmap_bytes, data_start, here_start,
};
use super::here::Tag;
use super::image::BaseFormats;
use super::load::{FoundBits, next_data, read_bits, read_found, read_here};
use super::new::{NewBase, NewOverlay, io_error, place_new_file, refuse};
use super::open::{OpenBase, OpenOverlay, OverlayOptions, Way, read_head};
use super::writer::{WrittenBits, store_pages};
use headworks::house::Mapping;
use headworks::{Direct, FileOptions, OpenFile};
use headworks_house::WrittenRanges;

/// Bytes that are copied at a time.
const CHUNK: usize = 1 << 20;

/// Is told how much of the work is done, in bytes, and of how much; false ends it.
pub type OverlayProgress<'a> = &'a mut dyn FnMut(u64, u64) -> bool;

/// How an overlay is committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitOptions {
    /// Whether the base may be in any directory.
    pub base_anywhere: bool,
    /// Whether other overlays that lie on the base may be lost.
    pub others_are_lost: bool,
}

/// How an overlay is reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResetOptions {
    /// Whether the base may be in any directory.
    pub base_anywhere: bool,
    /// What opens bases that are images.
    pub formats: BaseFormats,
    /// Whether the blocks are given up although an interrupted commit has written only some of them to the base.
    pub keep_mixture: bool,
}

/// Where a commit writes.
struct Target {
    file: Arc<File>,
    start: u64,
    bits: Option<WrittenBits>,
}

impl Target {
    fn note(&self, offset: u64, len: u64) -> io::Result<()> {
        self.bits.as_ref().map_or(Ok(()), |bits| bits.on_write(offset, len))
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.start + offset)?;
        self.note(offset, bytes.len() as u64)
    }

    fn zero(&self, offset: u64, len: u64, zeros: &[u8]) -> io::Result<()> {
        if punch(&self.file, self.start + offset, len).is_err() {
            let end = offset + len;
            for at in (offset..end).step_by(zeros.len()) {
                let part = (end - at).min(zeros.len() as u64) as usize;
                self.file.write_all_at(&zeros[..part], self.start + at)?;
            }
        }
        self.note(offset, len)
    }

    fn sync(&self) -> io::Result<()> {
        // All, because the time of modification is kept in the head.
        self.file.sync_all()?;
        self.bits.as_ref().map_or(Ok(()), |bits| bits.on_sync(&self.file))?;
        self.file.sync_all()
    }
}

fn punch(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: a plain call on an open file.
    match unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, len as i64) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn stopped() -> io::Error {
    io::Error::new(io::ErrorKind::Interrupted, "stopped")
}

/// Options of a tool: through the kernel's page cache, because heads are smaller than blocks of direct I/O.
fn tool_options(base_anywhere: bool, formats: BaseFormats) -> OverlayOptions {
    OverlayOptions { read_only: false, direct: Direct::Off, base_anywhere, formats }
}

/// Makes what is only in the here bits durable, in the bitmap: a head with another number ends them.
fn settle(file: &File, head: &Head) -> io::Result<()> {
    let tag = Tag::of_this_boot(head.number);
    let FoundBits { live, here: found, .. } = read_found(file, head.volume_size, tag, true)?;
    store_pages(file, &live, found.pending.into_iter())
}

/// The number of a changed head. Numbers begin at 0, so only a damaged or hostile head is at their end, where a change would look older.
fn next_number(head: &Head) -> io::Result<u64> {
    let end = "the number of its head is at its end, so it cannot be changed; `headworks image flatten` makes a raw image of it";
    head.number.checked_add(1).ok_or_else(|| io::Error::other(end))
}

fn write_head(file: &File, head: &Head) -> io::Result<()> {
    let (at, copy) = head.encode();
    file.write_all_at(&copy, at)?;
    file.sync_data()
}

impl OpenOverlay {
    /// Copies the overlay's blocks into its base, and empties the overlay. Needs both alone; other overlays on the base would be refused
    /// afterwards, so those that are found ([`OpenOverlay::overlays_on`]) forbid it unless they may be lost. Returns the number of bytes that were the overlay's.
    ///
    /// # Errors
    /// A sentence about what cannot be read or written. The commit can be begun again.
    pub fn commit(
        path: &Path,
        options: &CommitOptions,
        progress: OverlayProgress<'_>,
    ) -> Result<u64, ConfigError> {
        let wanted = tool_options(options.base_anywhere, BaseFormats::default());
        let mut open = Self::open_for(path, &wanted, Way::Commit)?;
        open.check_room()?;
        // The base of an interrupted commit has changed already.
        if !options.others_are_lost && !open.is_committing() {
            open.check_others()?;
        }
        let bytes = open.own_bytes();
        open.copy_into_base(progress).map_err(|error| {
            let message =
                format!("{}: the commit did not end: {error}; begin it again", path.display());
            ConfigError::new("path", message)
        })?;
        open.empty(true)?;
        Ok(bytes)
    }

    /// Empties the overlay: its volume is the base as it is now. Returns the number of bytes that are given up.
    ///
    /// # Errors
    /// A sentence about what cannot be read or written.
    pub fn reset(path: &Path, options: &ResetOptions) -> Result<u64, ConfigError> {
        let mut open = Self::open_to_reset(path, options)?;
        let bytes = open.own_bytes();
        open.begin(Task::Reset).map_err(|error| io_error(path, &error))?;
        open.empty(false)?;
        Ok(bytes)
    }

    /// The number of bytes that [`OpenOverlay::reset`] would give up; nothing is changed.
    ///
    /// # Errors
    /// As [`OpenOverlay::reset`].
    pub fn bytes_to_reset(path: &Path, options: &ResetOptions) -> Result<u64, ConfigError> {
        Self::open_to_reset(path, options).map(|open| open.own_bytes())
    }

    fn open_to_reset(path: &Path, options: &ResetOptions) -> Result<Self, ConfigError> {
        let wanted = tool_options(options.base_anywhere, options.formats);
        let open = Self::open_for(path, &wanted, Way::Reset)?;
        if open.is_committing() && !options.keep_mixture {
            let message = format!(
                "is in the middle of a commit: its base has only some of its blocks, and it has the others; end the commit (headworks image commit {}), \
                 or give them up and keep the mixture (--keep-mixture)",
                path.display()
            );
            return refuse(path, &message);
        }
        let size = open.base_record()?.size;
        if size > open.head.size() {
            return refuse(path, "is smaller than its base now; make a new overlay instead");
        }
        Ok(open)
    }

    /// Forgets what is only in the here bits: first writes that a killed process acknowledged and no flush covered. For a file system that
    /// lost data and was mounted again in the same boot. Returns the number of bytes that are given up.
    ///
    /// # Errors
    /// A sentence about what cannot be read or written.
    pub fn forget_here(path: &Path) -> Result<u64, ConfigError> {
        let options = FileOptions { read_only: false, size: None, direct: Direct::Off };
        let file = OpenFile::open(path, &options)?;
        let (head, _) = read_head(path, file.file())?;
        let forget = |file: &File| {
            let (live, _) = read_bits(file, head.volume_size)?;
            let durable = live.count();
            read_here(file, head.volume_size, Tag::of_this_boot(head.number), &live)?;
            file.write_all_at(&[0; PAGE_BYTES], here_start(head.volume_size))?;
            file.sync_data()?;
            Ok((live.count() - durable) * BLOCK)
        };
        forget(file.file()).map_err(|error: io::Error| io_error(path, &error))
    }

    /// Takes `base` as it is now as the base. Nothing is copied, and only the size is compared: its bytes have to be those of the present base.
    ///
    /// # Errors
    /// A sentence about what cannot be opened or written, or why it cannot be the base.
    pub fn rebase(path: &Path, base: &NewBase<'_>) -> Result<(), ConfigError> {
        let options = FileOptions { read_only: false, size: None, direct: Direct::Off };
        let file = OpenFile::open(path, &options)?;
        let (head, _) = read_head(path, file.file())?;
        if head.task != Task::None {
            return refuse(path, "is in the middle of a commit or a reset; end that first");
        }
        settle(file.file(), &head).map_err(|error| io_error(path, &error))?;
        // Locks it against writers; the overlay itself is in use now and so is refused.
        let new = NewOverlay::on(base, None)?;
        let base = new.base_for(path)?;
        if base.size > head.size() {
            return refuse(path, "is smaller than that base; make a new overlay instead");
        }
        // What the overlay has not written would change.
        if base.size != head.base.size {
            let message = format!(
                "has a base of {} bytes, and that one has {}: its bytes are not the same; make a new overlay on it instead",
                head.base.size, base.size
            );
            return refuse(path, &message);
        }
        next_number(&head)
            .and_then(|number| write_head(file.file(), &Head { base, number, ..head }))
            .map_err(|error| io_error(path, &error))
    }

    pub(super) fn begin(&mut self, task: Task) -> io::Result<()> {
        self.store_head(Head { task, ..self.head.clone() })
    }

    /// Refuses a commit that the base has no room for.
    fn check_room(&self) -> Result<(), ConfigError> {
        let grows = matches!(&self.base, OpenBase::Raw(file) if file.is_regular());
        match self.head.size() <= self.head.base.size || grows {
            true => Ok(()),
            false => refuse(
                &self.path,
                "is larger than its base, which cannot grow; `headworks image flatten` makes one image of both",
            ),
        }
    }

    fn target(&self) -> Target {
        match &self.base {
            OpenBase::Raw(file) => Target { file: Arc::clone(file.file()), start: 0, bits: None },
            // Refused when it was opened.
            OpenBase::Image(..) => unreachable!("an image is not opened for a commit"),
            OpenBase::Overlay(open) => Target {
                file: Arc::clone(open.file.file()),
                start: data_start(open.head.volume_size),
                bits: Some(WrittenBits::new(Arc::clone(open.bitmap.live()))),
            },
        }
    }

    fn copy_into_base(&mut self, progress: OverlayProgress<'_>) -> io::Result<()> {
        // A head with another number ends the here bits.
        self.settle()?;
        self.begin(Task::Commit)?;
        let target = self.target();
        let mut size = self.head.volume_size;
        if matches!(self.base, OpenBase::Raw(_)) {
            size = self.head.size();
            if self.head.base.size < size {
                target.file.set_len(size)?;
            }
        }
        let (own, start, all) = (self.file.file(), data_start(size), self.own_bytes());
        let (mut bytes, zeros) = (vec![0; CHUNK], vec![0; CHUNK]);
        let mut done = 0;
        for run in self.own_runs() {
            let (mut at, end) = (run.start, run.end.min(size));
            while at < end {
                let data = next_data(own, start + at, start + end)?;
                let (first, next) =
                    data.map_or((end, end), |(first, next)| (first - start, next - start));
                if first > at {
                    target.zero(at, first - at, &zeros)?;
                }
                for from in (first..next).step_by(CHUNK) {
                    let part = &mut bytes[..(next - from).min(CHUNK as u64) as usize];
                    own.read_exact_at(part, start + from)?;
                    target.write(from, part)?;
                    if !progress(done + from - run.start, all) {
                        return Err(stopped());
                    }
                }
                at = next;
            }
            done += run.end - run.start;
            if !progress(done, all) {
                return Err(stopped());
            }
        }
        target.sync()?;
        if !progress(all, all) {
            return Err(stopped());
        }
        Ok(())
    }

    /// The runs of blocks that are ours, in bytes.
    fn own_runs(&self) -> impl Iterator<Item = Range<u64>> {
        let (live, blocks) = (self.bitmap.live(), self.head.volume_size / BLOCK);
        let mut at = 0;
        std::iter::from_fn(move || {
            while at < blocks {
                let (is_own, count) = live.run(at, blocks - at);
                let run = at * BLOCK..(at + count) * BLOCK;
                at += count;
                if is_own {
                    return Some(run);
                }
            }
            None
        })
    }

    /// Clears the bits, takes the base as it is now, and gives the data back.
    fn empty(&mut self, committed: bool) -> Result<(), ConfigError> {
        let base = self.base_record()?;
        let result = (|| {
            let own = Arc::clone(self.file.file());
            let (start, end) =
                (HEAD_BYTES as u64, HEAD_BYTES as u64 + bitmap_bytes(self.head.volume_size));
            let mut at = start;
            while let Some((first, next)) = next_data(&own, at, end)? {
                for page in (first..next).step_by(PAGE_BYTES) {
                    own.write_all_at(&[0; PAGE_BYTES], page)?;
                }
                at = next;
            }
            own.sync_data()?;
            let path = self.head.base.path.clone();
            let base = BaseRecord { path, ..base };
            self.store_head(Head { base, task: Task::None, ..self.head.clone() })?;
            // A filesystem that cannot punch keeps the space.
            let _ = punch(&own, data_start(self.head.volume_size), self.head.volume_size);
            own.sync_data()
        })();
        result.map_err(|error: io::Error| {
            let path = self.path.display();
            let what = if committed { "the commit did not end" } else { "it is not empty yet" };
            ConfigError::new("path", format!("{path}: {what}: {error}; begin it again"))
                .caused_by(error.raw_os_error())
        })
    }

    /// Makes a changed head durable, in the place of the older copy.
    fn store_head(&mut self, head: Head) -> io::Result<()> {
        let head = Head { number: next_number(&self.head)?, ..head };
        write_head(self.file.file(), &head)?;
        self.head = head;
        Ok(())
    }

    /// Writes the whole volume, with its bases, to a new raw image; what is a hole in all layers is one there.
    ///
    /// # Errors
    /// A sentence about what cannot be read or written; the new file is removed again.
    pub fn flatten(&self, out: &Path, progress: OverlayProgress<'_>) -> Result<u64, ConfigError> {
        place_new_file(out, |file| self.write_raw(file, progress))
    }

    fn write_raw(&self, file: &File, progress: OverlayProgress<'_>) -> io::Result<u64> {
        let size = self.head.size();
        file.set_len(size)?;
        let memory = Mapping::new(CHUNK)?;
        // SAFETY: our own mapping, which nothing else uses.
        let bytes = unsafe { std::slice::from_raw_parts_mut(memory.base(), CHUNK) };
        let (mut at, mut written) = (0, 0);
        while let Some(Range { start, end }) = self.next_data(at, size)? {
            for from in (start..end).step_by(CHUNK) {
                let len = (end - from).min(CHUNK as u64) as usize;
                // Whole blocks, for direct I/O: the volume may end within one.
                self.read_at(from, &mut bytes[..len.next_multiple_of(BLOCK as usize)])?;
                let part = &bytes[..len];
                // A remote does not say where its zeros are.
                if part.iter().any(|&byte| byte != 0) {
                    file.write_all_at(part, from)?;
                    written += part.len() as u64;
                }
                if !progress(from, size) {
                    return Err(stopped());
                }
            }
            at = end;
        }
        Ok(written)
    }

    /// The next bytes that may be other than zeros.
    fn next_data(&self, from: u64, end: u64) -> io::Result<Option<Range<u64>>> {
        let start = data_start(self.head.volume_size);
        let mut at = from;
        while at < end {
            let (is_own, run_end) = self.run(at, end);
            let found = match (is_own, &self.base) {
                (true, _) => next_data(self.file.file(), start + at, start + run_end)?
                    .map(|(first, next)| first - start..next - start),
                (false, OpenBase::Raw(file)) => {
                    next_data(file.file(), at, run_end.min(self.head.base.size))?
                        .map(|(first, next)| first..next)
                }
                (false, OpenBase::Overlay(open)) => {
                    open.next_data(at, run_end.min(self.head.base.size))?
                }
                (false, OpenBase::Image(_, image)) => image
                    .next_data(at, run_end.min(self.head.base.size))
                    .map(|(first, next)| first..next),
            };
            if found.is_some() {
                return Ok(found);
            }
            at = run_end;
        }
        Ok(None)
    }

    /// Whether a byte is ours, and where that ends.
    fn run(&self, at: u64, end: u64) -> (bool, u64) {
        let first = at / BLOCK;
        let (is_own, count) = self.bitmap.live().run(first, end.div_ceil(BLOCK) - first);
        (is_own, ((first + count) * BLOCK).min(end))
    }

    /// Reads bytes of the volume.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let (mut at, end) = (offset, offset + bytes.len() as u64);
        while at < end {
            let (is_own, run_end) = self.run(at, end);
            let part = &mut bytes[(at - offset) as usize..(run_end - offset) as usize];
            if is_own {
                let start = data_start(self.head.volume_size);
                self.file.file().read_exact_at(part, start + at)?;
            } else {
                let inside = self.base_bytes().saturating_sub(at).min(part.len() as u64);
                let (inside, beyond) = part.split_at_mut(inside as usize);
                beyond.fill(0);
                match &self.base {
                    OpenBase::Raw(file) => file.file().read_exact_at(inside, at)?,
                    OpenBase::Overlay(open) => open.read_at(at, inside)?,
                    OpenBase::Image(_, image) => image.read_at(at, inside)?,
                }
            }
            at = run_end;
        }
        Ok(())
    }
}
