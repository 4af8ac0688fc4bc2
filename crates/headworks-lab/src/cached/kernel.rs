//! The same jobs through the kernel's page cache: a file on a filesystem, or a block device.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use headworks_core::{ConfigError, Op};

use super::driver::stamp_all;

/// Bytes of each call that fills the cache: the kernel makes folios as large as a write permits.
const FILL_BYTES: usize = 1 << 20;

/// BLKDISCARD of linux/fs.h.
const BLKDISCARD: libc::Ioctl = 0x1277;

/// A file whose first `size` bytes are in the kernel's page cache.
pub struct Kernel {
    /// The name in rows.
    pub name: String,
    file: File,
    size: u64,
    buffer: Vec<u8>,
}

impl Kernel {
    /// Opens the file and overwrites its first `size` bytes.
    ///
    /// # Errors
    /// The file cannot be opened, or cannot hold that much.
    pub fn new(name: &str, path: &Path, size: u64) -> Result<Self, ConfigError> {
        let say = |error: io::Error| {
            ConfigError::new("beside", format!("{name}: {}: {error}", path.display()))
        };
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut kernel = Self {
            name: name.into(),
            file: file.map_err(say)?,
            size,
            buffer: (0..FILL_BYTES).map(|n| (n * 31 + n / 4096) as u8).collect(),
        };
        kernel.overwrite().map_err(say)?;
        kernel.settle().map_err(say)?;
        kernel.read_all().map_err(say)?;
        Ok(kernel)
    }

    /// The same file opened once more, with a buffer of its own for calls of at most so many bytes.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn reopened(&self, path: &Path, bytes: u32) -> Result<Self, ConfigError> {
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(|error| {
            ConfigError::new("beside", format!("{}: {}: {error}", self.name, path.display()))
        })?;
        let (name, size) = (self.name.clone(), self.size);
        Ok(Self { name, file, size, buffer: vec![0; bytes as usize] })
    }

    /// Writes everything once, so that all of it is dirty: the cost of a block's first write is
    /// measured on neither side.
    ///
    /// # Errors
    /// A write failed.
    pub fn overwrite(&mut self) -> io::Result<()> {
        for offset in (0..self.size).step_by(FILL_BYTES) {
            stamp_all(&mut self.buffer, offset);
            self.file.write_all_at(&self.buffer, offset)?;
        }
        Ok(())
    }

    fn read_all(&mut self) -> io::Result<()> {
        for offset in (0..self.size).step_by(FILL_BYTES) {
            self.file.read_exact_at(&mut self.buffer, offset)?;
        }
        Ok(())
    }

    /// The bytes of the last read.
    #[must_use]
    pub fn bytes(&self, len: u32) -> &[u8] {
        &self.buffer[..len as usize]
    }

    /// Writes everything to the device, so that the flusher is idle during the next run.
    ///
    /// # Errors
    /// The device failed.
    pub fn settle(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Discards a range: a hole in a file, BLKDISCARD of a block device.
    fn discard(&self, offset: u64, len: u32) -> io::Result<()> {
        let fd = self.file.as_raw_fd();
        let range = [offset, u64::from(len)];
        let failed = if self.file.metadata()?.file_type().is_block_device() {
            // SAFETY: the ioctl reads the two numbers of the range.
            unsafe { libc::ioctl(fd, BLKDISCARD, range.as_ptr()) }
        } else {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: a call without memory.
            unsafe { libc::fallocate(fd, mode, offset as libc::off_t, len.into()) }
        };
        if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Makes one read, write or discard call.
    ///
    /// # Errors
    /// The call failed, or was short.
    #[inline]
    pub fn call(&mut self, op: Op, offset: u64, len: u32) -> io::Result<()> {
        if op == Op::Discard {
            return self.discard(offset, len);
        }
        let bytes = &mut self.buffer[..len as usize];
        if op == Op::Write {
            stamp_all(bytes, offset);
        }
        // SAFETY: the buffer is ours and has `len` bytes. The bare call, because std's would loop
        // around it.
        let moved = unsafe {
            let (fd, at) = (self.file.as_raw_fd(), offset as libc::off_t);
            match op {
                Op::Read => libc::pread(fd, bytes.as_mut_ptr().cast(), bytes.len(), at),
                _ => libc::pwrite(fd, bytes.as_ptr().cast(), bytes.len(), at),
            }
        };
        match moved {
            moved if moved == len as isize => Ok(()),
            -1 => Err(io::Error::last_os_error()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Pages per folio of the file in the kernel's cache, by /proc/kpageflags: 1 means small folios
    /// only. `None` without permission.
    #[must_use]
    pub fn pages_per_folio(&self) -> Option<f64> {
        let len = (self.size as usize).min(256 << 20);
        // SAFETY: a new shared mapping for reading, of a file that is at least as long; unmapped
        // below.
        let base = unsafe {
            let (shared, fd) = (libc::MAP_SHARED, self.file.as_raw_fd());
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, shared, fd, 0)
        };
        if base == libc::MAP_FAILED {
            return None;
        }
        let counted = count_folios(base.cast(), len);
        // SAFETY: mapped above, and not used any more.
        unsafe { libc::munmap(base, len) };
        let (pages, folios) = counted.ok()?;
        (folios > 0).then(|| pages as f64 / folios as f64)
    }
}

/// Counts the pages mapped from `base` on, and those that begin a folio.
fn count_folios(base: *const u8, len: usize) -> io::Result<(u64, u64)> {
    const PAGE: usize = 4096;
    const COMPOUND_TAIL: u64 = 1 << 16;
    let (pagemap, flags) = (File::open("/proc/self/pagemap")?, File::open("/proc/kpageflags")?);
    let word = |file: &File, index: u64| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, index * 8).map(|()| u64::from_ne_bytes(bytes))
    };
    let (mut pages, mut folios) = (0, 0);
    for page in 0..len / PAGE {
        // SAFETY: inside the mapping; the read makes the kernel map the page.
        unsafe { base.add(page * PAGE).read_volatile() };
        let entry = word(&pagemap, (base as usize / PAGE + page) as u64)?;
        let frame = entry & ((1 << 55) - 1);
        if frame == 0 {
            continue;
        }
        pages += 1;
        folios += u64::from(word(&flags, frame)? & COMPOUND_TAIL == 0);
    }
    Ok((pages, folios))
}
