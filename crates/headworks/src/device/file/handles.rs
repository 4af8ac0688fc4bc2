//! Second handles of an open image: its size, and writes before it is served.
//!
//! Each keeps the image and its lock open. Both make system calls that wait for a disk, so they are not for a shard's thread.

use std::fs::File;
use std::io::{self, IoSlice, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// A second handle of an image that reads and changes its size.
#[derive(Clone, Debug)]
pub struct SizeWatch {
    file: Arc<File>,
    /// The open file that holds the lock.
    lock: Arc<File>,
}

impl SizeWatch {
    pub(super) fn new(file: Arc<File>, lock: Arc<File>) -> Self {
        Self { file, lock }
    }

    /// Makes the lock of a writer that of a reader.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn share_lock(&self) -> io::Result<()> {
        super::lock::share(&self.lock)
    }

    /// The open file that holds the image's lock: a process that gets a descriptor of it holds the lock, too.
    #[must_use]
    pub fn lock(&self) -> &Arc<File> {
        &self.lock
    }

    /// The open file of the image.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The image's size now.
    ///
    /// # Errors
    /// When the file cannot be asked any more.
    pub fn current_size(&self) -> io::Result<u64> {
        size_of_file(&self.file)
    }

    /// Whether it is a file without any name left: its bytes go when it is closed.
    ///
    /// # Errors
    /// When the file cannot be asked any more.
    pub fn is_deleted(&self) -> io::Result<bool> {
        self.file.metadata().map(|metadata| metadata.is_file() && metadata.nlink() == 0)
    }

    /// Makes a file longer; what is new is a hole. Only regular files can be.
    ///
    /// # Errors
    /// The filesystem's reason.
    pub fn lengthen(&self, size: u64) -> io::Result<()> {
        // In a race with another process that extends the file, the later of the two wins.
        if size < self.current_size()? {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        self.file.set_len(size)
    }

    /// Whether it is a file that can be made longer, and not a disk.
    #[must_use]
    pub fn is_regular(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.is_file())
    }
}

/// What has to know of writes to an image whose bytes are not where they are in the volume.
pub trait WrittenRanges: std::fmt::Debug + Send + Sync {
    /// Bytes of the volume were written, and no sync has covered them yet.
    ///
    /// # Errors
    /// The range is not one that can be written.
    fn on_write(&self, offset: u64, len: u64) -> io::Result<()>;

    /// A sync that began after the writes has ended.
    ///
    /// # Errors
    /// The ranges could not be stored.
    fn on_sync(&self, file: &File) -> io::Result<()>;
}

/// A second handle of an image, for writes before it is served.
#[derive(Clone, Debug)]
pub struct ImageWriter {
    file: Arc<File>,
    size: u64,
    /// Offset of the volume in the file.
    start: u64,
    ranges: Option<Arc<dyn WrittenRanges>>,
}

impl ImageWriter {
    pub(super) fn new(file: Arc<File>, size: u64) -> Self {
        Self { file, size, start: 0, ranges: None }
    }

    /// A handle of a volume of `size` bytes from `start` on.
    #[must_use]
    pub fn with_ranges(
        file: Arc<File>,
        size: u64,
        start: u64,
        ranges: Arc<dyn WrittenRanges>,
    ) -> Self {
        Self { file, size, start, ranges: Some(ranges) }
    }

    /// Size of the image in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether the volume is the file itself: its device writes nothing but what commands ask for.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.ranges.is_none()
    }

    /// Writes pieces one after the other, before the image is served.
    ///
    /// # Errors
    /// The kernel's reason; a part may have been written.
    pub fn write_all_at(&self, offset: u64, pieces: &mut [IoSlice<'_>]) -> io::Result<()> {
        let len = pieces.iter().map(|piece| piece.len() as u64).sum();
        self.write_pieces(offset + self.start, pieces)?;
        self.ranges.as_ref().map_or(Ok(()), |ranges| ranges.on_write(offset, len))
    }

    fn write_pieces(&self, offset: u64, pieces: &mut [IoSlice<'_>]) -> io::Result<()> {
        let (mut at, mut left) = (offset, pieces);
        while !left.is_empty() {
            let count = left.len().min(libc::UIO_MAXIOV as usize) as libc::c_int;
            // SAFETY: an `IoSlice` is an iovec; all of them live through the call.
            let written = unsafe {
                libc::pwritev(self.file.as_raw_fd(), left.as_ptr().cast(), count, at as i64)
            };
            match usize::try_from(written) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    at += written as u64;
                    IoSlice::advance_slices(&mut left, written);
                }
                Err(_) => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
            }
        }
        Ok(())
    }

    /// Makes what was written durable.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()?;
        self.ranges.as_ref().map_or(Ok(()), |ranges| ranges.on_sync(&self.file))
    }
}

/// `fstat` knows no size of a block device, the end of the file does; the file's own position is not used otherwise.
pub(super) fn size_of_file(file: &File) -> io::Result<u64> {
    let mut position = file;
    position.seek(SeekFrom::End(0))
}
