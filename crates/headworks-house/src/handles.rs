//! What is asked of an open image beside its device, and second handles of it: its size, and writes before it is served.
//!
//! Each handle keeps the image and its lock open. Both make system calls that wait for a disk, so they are not for a shard's thread.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use headworks::OpenFile;
use headworks::house::{share_lock, size_of_file};

use crate::identity::Identity;

/// Filesystems that set the times of files by this machine's clock, when the system call is made.
const LOCAL_TIMES: [u64; 7] =
    [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994, 0x794c_7630, 0x8584_58f6];

/// What a file was when it had just been locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundFile {
    /// Size of the file in bytes.
    pub size: u64,
    /// When its content or status was last changed, in nanoseconds of real time. Unlike the modification time it cannot be set.
    pub changed: u64,
}

/// What the crates around the library ask of an image that no device has yet.
pub trait ImageHandles {
    /// Which file it is. The kernel is asked each time.
    fn identity(&self) -> Identity;

    /// What the file was when it had just been locked.
    fn found(&self) -> FoundFile;

    /// Whether the times of the file are set by this machine's clock when it is written, and not later or by a server.
    fn has_local_times(&self) -> bool;

    /// A handle to write the image before it is served. It keeps image and lock open.
    fn writer(&self) -> ImageWriter;

    /// A handle to ask for the size of the file while a device has the image. It keeps image and lock open.
    fn size_watch(&self) -> SizeWatch;
}

impl ImageHandles for OpenFile {
    fn identity(&self) -> Identity {
        Identity::of_open(self.file(), self.metadata())
    }

    fn found(&self) -> FoundFile {
        let (seconds, rest) = (self.metadata().ctime(), self.metadata().ctime_nsec());
        let changed = (seconds as u64).wrapping_mul(1_000_000_000).wrapping_add(rest as u64);
        FoundFile { size: self.volume_options().size, changed }
    }

    fn has_local_times(&self) -> bool {
        // SAFETY: a struct of integers, for which zeros are a value.
        let mut facts: libc::statfs = unsafe { std::mem::zeroed() };
        // SAFETY: `facts` lives through the call, which fills it.
        let failed = unsafe { libc::fstatfs(self.file().as_raw_fd(), &mut facts) } != 0;
        !failed && LOCAL_TIMES.contains(&(facts.f_type as u64 & 0xffff_ffff))
    }

    fn writer(&self) -> ImageWriter {
        let (file, size) = (Arc::clone(self.file()), self.volume_options().size);
        ImageWriter { file, size, start: 0, ranges: None }
    }

    fn size_watch(&self) -> SizeWatch {
        SizeWatch { file: Arc::clone(self.file()), lock: Arc::clone(self.lock()) }
    }
}

/// A second handle of an image that reads and changes its size.
#[derive(Clone, Debug)]
pub struct SizeWatch {
    file: Arc<File>,
    /// The open file that holds the lock.
    lock: Arc<File>,
}

impl SizeWatch {
    /// Makes the lock of a writer that of a reader.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn share_lock(&self) -> io::Result<()> {
        share_lock(&self.lock)
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

#[cfg(test)]
mod tests {
    use headworks::{ConfigError, Direct, FileOptions};
    use headworks_testing::TempFile;

    use super::*;

    /// Without direct I/O, which wants aligned memory.
    fn open(image: &TempFile) -> Result<OpenFile, ConfigError> {
        let options = FileOptions { direct: Direct::Off, ..FileOptions::default() };
        OpenFile::open(image.path(), &options)
    }

    fn opened(image: &TempFile) -> OpenFile {
        std::fs::write(image.path(), [0; 8192]).unwrap();
        open(image).unwrap()
    }

    #[test]
    fn size_watch_follows_image_when_it_shrinks_and_grows() {
        let image = TempFile::new("watch");
        let opened = opened(&image);
        let (watch, other) = (opened.size_watch(), File::options().write(true).open(image.path()));
        let other = other.unwrap();
        for size in [4096, 1 << 20] {
            other.set_len(size).unwrap();
            assert_eq!(watch.current_size().unwrap(), size);
            assert_eq!(opened.current_size().unwrap(), size);
        }
        assert_eq!((opened.volume_options().size, opened.found().size), (8192, 8192));
        assert!(watch.lengthen(8192).is_err(), "an image never shrinks");
        assert!(watch.is_regular());
        watch.lengthen(2 << 20).unwrap();
        assert_eq!(watch.current_size().unwrap(), 2 << 20);
    }

    #[test]
    fn handles_keep_image_and_lock() {
        let image = TempFile::new("handles");
        let opened = opened(&image);
        let (watch, writer, identity) = (opened.size_watch(), opened.writer(), opened.identity());
        assert_eq!(identity, Identity::of(image.path()).unwrap());
        drop(opened);
        assert!(open(&image).is_err());
        writer.write_all_at(4096, &mut [IoSlice::new(&[7; 512]), IoSlice::new(&[8])]).unwrap();
        writer.sync().unwrap();
        assert_eq!(
            std::fs::read(image.path()).unwrap()[4096..4609],
            [[7; 512].as_slice(), &[8]].concat()
        );
        drop((watch, writer));
        assert!(open(&image).is_ok());
    }
}
