//! Memory that a machine and the server share: a file of memory, mapped by the machine.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::AtomicU16;

use super::deaths;

/// A mapping that outlives the simulated process.
#[derive(Debug)]
pub struct MachineMemory {
    file: File,
    base: *mut u8,
    len: usize,
}

impl MachineMemory {
    /// So many bytes of zeros.
    pub fn new(len: usize) -> io::Result<Self> {
        // SAFETY: the name is a C string; the descriptor is new and belongs to nothing else.
        let fd = unsafe { libc::memfd_create(c"machine".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the same.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(len as u64)?;
        Self::of(file, len)
    }

    /// A file that the server has made.
    pub fn of(file: impl Into<File>, len: usize) -> io::Result<Self> {
        let file = file.into();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (flags, fd) = (libc::MAP_SHARED, file.as_raw_fd());
        // SAFETY: a new mapping at an address that the kernel chooses replaces nothing.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        deaths::watch(base.cast(), len);
        Ok(Self { file, base: base.cast(), len })
    }

    /// Bytes of the memory.
    pub fn len(&self) -> usize {
        self.len
    }

    /// A descriptor of the file for the server.
    pub fn fd(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }

    /// Copies bytes out of the memory.
    pub fn read(&self, at: usize, out: &mut [u8]) {
        assert!(at + out.len() <= self.len, "within the memory");
        // SAFETY: the range is mapped; the world is one thread.
        unsafe { self.base.add(at).copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) };
    }

    /// Copies bytes into the memory.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len, "within the memory");
        // SAFETY: as in `read`.
        unsafe { self.base.add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Sets a range to one byte.
    pub fn fill(&self, at: usize, len: usize, byte: u8) {
        assert!(at + len <= self.len, "within the memory");
        // SAFETY: as in `read`.
        unsafe { self.base.add(at).write_bytes(byte, len) };
    }

    /// An index of a ring.
    pub fn word(&self, at: usize) -> &AtomicU16 {
        assert!(at.is_multiple_of(2) && at + 2 <= self.len, "an aligned word within the memory");
        // SAFETY: the word is mapped and aligned, and lives as long as the memory; the other side accesses it atomically, too.
        unsafe { AtomicU16::from_ptr(self.base.add(at).cast()) }
    }
}

impl Drop for MachineMemory {
    fn drop(&mut self) {
        deaths::forget(self.base);
        // SAFETY: the range was mapped by `of`; nothing else uses it.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}
