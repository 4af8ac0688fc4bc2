//! What a range of a file is made of, by `lseek`: a hole of a sparse file takes no space and reads as zeros.
//!
//! It may have to wait for a disk, and a filesystem may look through much: so it is done by threads of a pool under either
//! engine (a ring has no such operation). Few seeks for each extent that is told, and as few extents as fit the list.
//!
//! A file that cannot tell (a block device, an old filesystem) is data, and so is what lies beyond its end: there a read
//! fails, and should. The file's position is not used otherwise.

use std::io;
use std::os::fd::RawFd;

use headworks_core::ExtentState;
use headworks_core::extent::{EXTENTS_MAX, ExtentWriter};

/// Writes the list for `len` bytes from `offset` on into `bytes`: how many extents it has, or a negative errno.
pub(crate) fn tell(fd: RawFd, offset: u64, len: u64, one: bool, bytes: &mut [u8]) -> i32 {
    let most = if one { 1 } else { EXTENTS_MAX };
    let mut writer = ExtentWriter::new(bytes, len.min(u32::MAX.into()) as u32, most);
    match tell_all(fd, offset, offset.saturating_add(len), most, &mut writer) {
        Ok(()) => writer.finish() as i32,
        Err(errno) => -errno,
    }
}

/// The list of who cannot ask: data, which is never wrong.
pub(crate) fn unasked(len: u64, bytes: &mut [u8]) -> i32 {
    let mut writer = ExtentWriter::new(bytes, len.min(u32::MAX.into()) as u32, 1);
    writer.push(len, ExtentState::DATA);
    writer.finish() as i32
}

/// Ends with the list or with the range, and after so many seeks whatever others do to the file meanwhile.
fn tell_all(
    fd: RawFd,
    start: u64,
    end: u64,
    most: usize,
    writer: &mut ExtentWriter<'_>,
) -> Result<(), i32> {
    let size = seek(fd, 0, libc::SEEK_END)?.unwrap_or(0);
    let mut at = start;
    for _ in 0..most + 2 {
        if at >= size {
            writer.push(end.saturating_sub(at), ExtentState::DATA);
            return Ok(());
        }
        let Some(data) = seek(fd, at, libc::SEEK_DATA)? else {
            if !writer.push(size - at, ExtentState::HOLE_ZERO) {
                return Ok(());
            }
            at = size;
            continue;
        };
        if data > at && !writer.push(data - at, ExtentState::HOLE_ZERO) {
            return Ok(());
        }
        // None if the file is truncated at this moment.
        let hole = seek(fd, data, libc::SEEK_HOLE)?.filter(|hole| *hole > data);
        if !writer.push(hole.unwrap_or(end).saturating_sub(data), ExtentState::DATA) {
            return Ok(());
        }
        at = hole.unwrap_or(end);
    }
    Ok(())
}

/// Where the file goes on; none: nowhere. A file that cannot tell where its holes are has none.
fn seek(fd: RawFd, at: u64, whence: i32) -> Result<Option<u64>, i32> {
    loop {
        // SAFETY: a plain call on an open file.
        let found = unsafe { libc::lseek(fd, at as i64, whence) };
        if let Ok(found) = u64::try_from(found) {
            return Ok(Some(found));
        }
        match (io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO), whence) {
            (libc::EINTR, _) => {}
            (libc::ENXIO, _) => return Ok(None),
            (libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS, libc::SEEK_DATA) => {
                return Ok(Some(at));
            }
            (libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS, libc::SEEK_HOLE) => {
                return Ok(Some(u64::MAX));
            }
            (errno, _) => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    use headworks_core::extent::extents;

    use super::*;
    use crate::testing::{TempFile, memory_directory};

    const MIB: u64 = 1 << 20;
    const DATA: u32 = 0;
    const HOLE: u32 = 3;

    fn told(file: &File, offset: u64, len: u64, one: bool) -> Vec<(u64, u32)> {
        let mut bytes = [0xee; 1024];
        let count = tell(file.as_raw_fd(), offset, len, one, &mut bytes);
        let list: Vec<_> = extents(&bytes, len as u32).map(|e| (e.len.into(), e.state.0)).collect();
        assert_eq!(list.len() as i32, count);
        list
    }

    fn sparse(directory: &std::path::Path) -> (TempFile, File) {
        let path = TempFile::absent_in(directory, "extents");
        let file = File::create_new(path.path()).unwrap();
        file.set_len(1 << 40).unwrap();
        for at in [1, 2, 5] {
            file.write_all_at(&[7; MIB as usize], at * MIB).unwrap();
        }
        (path, file)
    }

    #[test]
    fn sparse_file_reports_its_holes_and_data() {
        for directory in [Some(std::env::temp_dir()), memory_directory()].into_iter().flatten() {
            let (_path, file) = sparse(&directory);
            let all = [(MIB, HOLE), (2 * MIB, DATA), (2 * MIB, HOLE), (MIB, DATA)];
            let rest = (u32::MAX as u64 - 6 * MIB, HOLE);
            assert_eq!(told(&file, 0, u32::MAX.into(), false), [&all[..], &[rest]].concat());
            assert_eq!(told(&file, 0, u32::MAX.into(), true), all[..1]);
            assert_eq!(told(&file, 4096, 8 * MIB, true), [(MIB - 4096, HOLE)]);
            assert_eq!(told(&file, MIB + 4096, MIB, false), [(MIB, DATA)]);
            assert_eq!(told(&file, 1 << 39, MIB, false), [(MIB, HOLE)]);
        }
    }

    #[test]
    fn range_beyond_end_of_file_is_reported_as_data() {
        let (_path, file) = sparse(&std::env::temp_dir());
        file.set_len(3 * MIB).unwrap();
        assert_eq!(told(&file, 0, 8 * MIB, false), [(MIB, HOLE), (7 * MIB, DATA)]);
        assert_eq!(told(&file, 4 * MIB, MIB, false), [(MIB, DATA)]);
        file.set_len(4 * MIB).unwrap();
        assert_eq!(told(&file, 3 * MIB, 2 * MIB, false), [(MIB, HOLE), (MIB, DATA)]);
    }

    #[test]
    fn extent_list_stops_when_full_and_pipe_returns_error() {
        let path = TempFile::new("fragments");
        let file = File::options().write(true).read(true).open(path.path()).unwrap();
        for index in 0..100 {
            file.write_all_at(&[7; 4096], index * 128 * 1024).unwrap();
        }
        let list = told(&file, 0, 64 * MIB, false);
        assert_eq!(list.len(), EXTENTS_MAX);
        assert_eq!(list[..2], [(4096, DATA), (124 * 1024, HOLE)]);
        let (pipe, _) = io::pipe().unwrap();
        assert_eq!(tell(pipe.as_raw_fd(), 0, 1, true, &mut [0; 8]), -libc::ESPIPE);
    }
}
