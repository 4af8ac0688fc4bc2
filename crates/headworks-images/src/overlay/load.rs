//! Reads what a file says of its blocks: the bitmap, and the here bits of this boot.
//!
//! Holes are skipped, because a large volume has large and mostly empty bitmaps.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use super::bitmap::{LiveBits, PAGE_BYTES};
use super::head::{BLOCK, HEAD_BYTES, bitmap_bytes, here_start};
use super::here::{HereFound, TAG_BYTES, TAG_PAGE, Tag};
use headworks::house::Mapping;

/// Bytes of here bits that are read at a time.
const CHUNK: u64 = 64 << 10;

/// The file of an overlay, as this module reads it.
pub(super) trait Stored {
    /// The next whole pages of a range that may have data; `None` if there are none.
    fn next_data(&self, from: u64, end: u64) -> io::Result<Option<(u64, u64)>>;

    /// Reads bytes; behind the end of the file they are zeros. Memory and offset are in whole pages.
    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()>;

    /// Makes what was read durable.
    fn sync(&self) -> io::Result<()>;
}

impl Stored for File {
    fn next_data(&self, from: u64, end: u64) -> io::Result<Option<(u64, u64)>> {
        next_data(self, from, end)
    }

    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match FileExt::read_at(self, &mut bytes[done..], at + done as u64) {
                Ok(0) => {
                    bytes[done..].fill(0);
                    return Ok(());
                }
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// What a file says of its blocks.
pub(super) struct FoundBits {
    pub live: LiveBits,
    /// Bits behind the end of the volume.
    pub stray: u64,
    pub here: HereFound,
}

/// Reads what a file says of its blocks. Of one that is to be written, the bits are durable then: those that a killed process wrote may have
/// been in the kernel's pages alone, and a power cut would take them from under a write that counts on them.
pub(super) fn read_found(
    file: &impl Stored,
    size: u64,
    tag: Option<Tag>,
    is_written: bool,
) -> io::Result<FoundBits> {
    let (live, stray) = read_bits(file, size)?;
    let here = read_here(file, size, tag, &live)?;
    if is_written {
        file.sync()?;
    }
    Ok(FoundBits { live, stray, here })
}

/// Reads the bitmap; also the number of bits behind the end.
pub(super) fn read_bits(file: &impl Stored, size: u64) -> io::Result<(LiveBits, u64)> {
    let mut live = LiveBits::new(size)?;
    let (start, end) = (HEAD_BYTES as u64, HEAD_BYTES as u64 + bitmap_bytes(size));
    let (mut at, mut stray) = (start, 0);
    while let Some((first, next)) = file.next_data(at, end)? {
        let range = (first - start) as usize..(next - start) as usize;
        let bytes = &mut live.bytes_mut()[range.clone()];
        // The pages of a full bitmap would be faulted in one by one.
        Mapping::tables_in_huge_pages(std::iter::once(bytes.as_ptr_range()));
        file.read_at(bytes, first)?;
        stray += live.adopt(range);
        at = next;
    }
    Ok((live, stray))
}

/// Sets the here bits of a file in `live` if they are under this tag.
pub(super) fn read_here(
    file: &impl Stored,
    size: u64,
    tag: Option<Tag>,
    live: &LiveBits,
) -> io::Result<HereFound> {
    let Some(tag) = tag else { return Ok(HereFound::default()) };
    let memory = Mapping::new(CHUNK as usize)?;
    // SAFETY: our own mapping, which nothing else uses.
    let bytes = unsafe { std::slice::from_raw_parts_mut(memory.base(), CHUNK as usize) };
    let tag_at = here_start(size);
    file.read_at(&mut bytes[..TAG_PAGE as usize], tag_at)?;
    let is_ours = bytes[..TAG_BYTES] == tag.encode();
    let (start, end) = (tag_at + TAG_PAGE, tag_at + TAG_PAGE + bitmap_bytes(size));
    let mut found = HereFound { is_ours, ..HereFound::default() };
    let mut at = start;
    while let Some((first, next)) = file.next_data(at, end)? {
        at = next;
        if !is_ours {
            found.stale.push(first..next);
            continue;
        }
        for from in (first..next).step_by(CHUNK as usize) {
            let part = &mut bytes[..(next - from).min(CHUNK) as usize];
            file.read_at(part, from)?;
            live.add(from - start, part, |word| note_page(&mut found.pending, word));
        }
    }
    Ok(found)
}

/// Sets the bits that the file has now, in whichever of the two places; `pending` are all pages with a bit that is new in `live`.
pub(super) fn add_bits(
    file: &impl Stored,
    size: u64,
    tag: Option<Tag>,
    live: &LiveBits,
) -> io::Result<HereFound> {
    let (now, _) = read_bits(file, size)?;
    let (blocks, mut at) = (size.div_ceil(BLOCK), 0);
    let mut pending = Vec::new();
    while at < blocks {
        let (is_own, count) = now.run(at, blocks - at);
        if is_own {
            live.set(at, count, |word| note_page(&mut pending, word));
        }
        at += count;
    }
    let mut found = read_here(file, size, tag, live)?;
    found.pending.append(&mut pending);
    found.pending.sort_unstable();
    found.pending.dedup();
    Ok(found)
}

/// Adds the page of a word that has a new bit; words come in their order.
fn note_page(pages: &mut Vec<u32>, word: u64) {
    let page = (word / (PAGE_BYTES as u64 / 8)) as u32;
    if pages.last() != Some(&page) {
        pages.push(page);
    }
}

/// The next pages with data in a range; `None` if there are none.
pub(super) fn next_data(file: &File, from: u64, end: u64) -> io::Result<Option<(u64, u64)>> {
    let seek = |at: u64, whence| {
        // SAFETY: a plain call on an open file, whose position is not used otherwise.
        let found = unsafe { libc::lseek(file.as_raw_fd(), at as i64, whence) };
        u64::try_from(found).map_err(|_| io::Error::last_os_error())
    };
    if from >= end {
        return Ok(None);
    }
    let data = match seek(from, libc::SEEK_DATA) {
        Ok(data) => data,
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => return Ok(None),
        // A filesystem that knows no holes.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Ok(Some((from, end))),
        Err(error) => return Err(error),
    };
    if data >= end {
        return Ok(None);
    }
    let hole = seek(data, libc::SEEK_HOLE)?;
    let (first, next) = (data / BLOCK * BLOCK, hole.next_multiple_of(BLOCK).min(end));
    Ok(Some((first.max(from), next)))
}
