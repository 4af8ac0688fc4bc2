//! The kernel's side of a mount: an open `/dev/fuse` from which requests are read and to which answers are written.
//!
//! A process that serves a mount and also uses it, itself or through a file system that lies on it, can be killed while a thread of it
//! waits in the kernel for an answer, which no signal ends. The other threads are gone then, but the descriptors belong to all threads of
//! the process: the device stays open, the kernel waits for an answer without end, and with it every sync of the machine. Also a thread that ends
//! unmounts, before it closes its files, what its mount namespace had if it is the last one there. So such a process serves by
//! [`Channel::serve_alone`]: the device belongs to the thread that serves, which has none of the mounts.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::mpsc::sync_channel;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::mount;

/// Descriptors that every thread keeps: standard input, output and error.
const STANDARD: libc::c_uint = 3;

/// What a wait for a request found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A request of so many bytes.
    Request(usize),
    /// None within the time.
    Nothing,
    /// The mount is gone.
    Gone,
}

/// An open `/dev/fuse` that belongs to a mount.
#[derive(Debug)]
pub struct Channel {
    device: OwnedFd,
}

impl From<OwnedFd> for Channel {
    fn from(device: OwnedFd) -> Self {
        Self { device }
    }
}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        self.device.as_raw_fd()
    }
}

impl Channel {
    /// Serves by a thread with a table of descriptors of its own, in which there are the device and the standard ones alone; no other thread has
    /// the device. So `serve` uses no descriptor that it does not open itself. Where the process has a mount namespace, the thread has another
    /// one, without mounts of FUSE and without what is mounted later. When the process is killed, this thread ends whatever the others wait
    /// for, and the mount with it. A kernel before 5.9, or one that forbids it, leaves the device to all threads.
    ///
    /// # Errors
    /// There is no further thread; nothing is served.
    pub fn serve_alone(
        self,
        name: &str,
        serve: impl FnOnce(&Self) + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let device = self.device.into_raw_fd();
        let (sender, ready) = sync_channel(1);
        let thread = Builder::new().name(name.to_owned()).spawn(move || {
            let is_own = own_table(device).is_ok();
            if is_own {
                mount::leave_mounts();
            }
            let _ = sender.send(is_own);
            // SAFETY: the descriptor is this thread's: of its own table, or of the one of all, where it is left to it.
            serve(&Self { device: unsafe { OwnedFd::from_raw_fd(device) } });
        });
        let is_shared = thread.is_ok() && ready.recv() == Ok(false);
        if !is_shared {
            // SAFETY: the descriptor of this table, which `into_raw_fd` gave up; a thread that serves has a copy.
            drop(unsafe { OwnedFd::from_raw_fd(device) });
        }
        thread
    }

    /// Waits for a request and returns its length in `buffer`, which has [`crate::REQUEST_MAX`] bytes; none once the mount is gone.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            let error = match self.read(buffer) {
                Ok(length) => return Ok(Some(length)),
                Err(error) => error,
            };
            match error.raw_os_error() {
                // A request that was interrupted before it was read, a signal, another reader.
                Some(libc::ENOENT | libc::EINTR | libc::EAGAIN) => {}
                Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(None),
                _ => return Err(error),
            }
        }
    }

    /// Another descriptor of the same device, for another process: it reads and answers what this one would, in place of this one.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.device.try_clone()
    }

    /// From now on a read that finds no request returns, as [`Channel::receive_within`] needs it.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        // SAFETY: flags of a descriptor that is open.
        match unsafe { libc::fcntl(self.device.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits at most `limit` for a request and reads it into `buffer`, which has [`crate::REQUEST_MAX`] bytes; without a limit as long as
    /// it takes. The channel is non-blocking: a request that is there when the wait ends may be gone when it is read.
    pub fn receive_within(
        &self,
        buffer: &mut [u8],
        limit: Option<Duration>,
    ) -> io::Result<Received> {
        let mut poll =
            libc::pollfd { fd: self.device.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let limit = limit.map(|limit| libc::timespec {
            tv_sec: limit.as_secs().min(3600) as libc::time_t,
            tv_nsec: libc::c_long::from(limit.subsec_nanos()),
        });
        let limit = limit.as_ref().map_or(std::ptr::null(), |limit| &raw const *limit);
        // SAFETY: one descriptor that is open, and a time that lives, during the call.
        let ready = unsafe { libc::ppoll(&raw mut poll, 1, limit, std::ptr::null()) };
        if ready < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::Interrupted => Ok(Received::Nothing),
                _ => Err(error),
            };
        }
        if ready == 0 {
            return Ok(Received::Nothing);
        }
        self.try_receive(buffer)
    }

    /// Reads a request, if one is there, into `buffer`: it has room for the largest write that was agreed on, and 4 KiB more. The channel is
    /// non-blocking.
    pub fn try_receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        let read = self.read(buffer);
        match read.as_ref().map_err(io::Error::raw_os_error) {
            Ok(&length) => Ok(Received::Request(length)),
            Err(Some(libc::ENOENT | libc::EINTR | libc::EAGAIN)) => Ok(Received::Nothing),
            Err(Some(libc::ENODEV | libc::ECONNABORTED)) => Ok(Received::Gone),
            Err(_) => read.map(Received::Request),
        }
    }

    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the kernel writes at most `buffer.len()` bytes into a buffer that lives during the call.
        let read = unsafe {
            libc::read(self.device.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len())
        };
        if read < 0 { Err(io::Error::last_os_error()) } else { Ok(read as usize) }
    }

    /// Writes an answer. A request that was interrupted or whose mount is gone needs none any more.
    pub fn send(&self, reply: &[u8]) -> io::Result<()> {
        self.send_parts([reply, &[]])
    }

    /// Writes an answer of two parts: its head, and data that lie elsewhere.
    pub fn send_parts(&self, parts: [&[u8]; 2]) -> io::Result<()> {
        let parts = parts
            .map(|part| libc::iovec { iov_base: part.as_ptr() as *mut _, iov_len: part.len() });
        // SAFETY: the kernel reads slices that live during the call.
        let sent = unsafe { libc::writev(self.device.as_raw_fd(), parts.as_ptr(), 2) };
        if sent >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ECONNABORTED) => Ok(()),
            _ => Err(error),
        }
    }
}

/// Gives the calling thread a table of descriptors of its own, with the standard ones and `kept`.
fn own_table(kept: RawFd) -> io::Result<()> {
    let kept = kept as libc::c_uint;
    // A range that holds no descriptor: the table is copied, and nothing closed.
    close_range(libc::c_uint::MAX, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE)?;
    if kept > STANDARD {
        close_range(STANDARD, kept - 1, 0)?;
    }
    close_range(kept.max(STANDARD - 1) + 1, libc::c_uint::MAX, 0)
}

fn close_range(first: libc::c_uint, last: libc::c_uint, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: descriptors of the calling thread's table are closed, of which nothing here or in what it runs has an owner.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
