//! An open image: handles of the libraries, operations, completions, and the end.
//!
//! librbd counts completions on an eventfd (`rbd_set_image_notification`), so none of its threads runs our code. It keeps a
//! pointer to the array of an operation's spans until the operation completes, so arrays live in the device's slots.
//!
//! **Closing** waits for operations in flight and gives the lock back, and both wait for the cluster, which may be gone. So a thread
//! closes, with what operations in flight use, and [`wait_for_closes`] gives it time before the process ends. Without that time the lock
//! stays until the cluster notices that its owner is gone (30 s).

use std::any::Any;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use headworks::driver::Span;

use crate::library::{Library, Ptr};

/// librbd's EVENT_TYPE_EVENTFD.
const EVENT_TYPE_EVENTFD: c_int = 2;
/// librbd's RBD_WRITE_ZEROES_FLAG_THICK_PROVISION.
const THICK: c_int = 1;
/// Completions taken by one call of librbd.
const BATCH: usize = 32;

/// An operation on an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads into the spans.
    Read,
    /// Writes from the spans.
    Write,
    /// Zeroes a range, with its room on disks kept (`thick`) or given back.
    Zero {
        /// Whether the range keeps its room on disks.
        thick: bool,
    },
    /// Waits for writes before it, and finds a lost lock.
    Flush,
}

/// What a device needs of an image; tests have one without a cluster.
pub trait Backend: Send {
    /// Starts an operation on a range (offset and length); its completion has `argument`. The error is an errno, and there is no completion then.
    ///
    /// # Safety
    /// The spans and their array stay valid until the completion was collected or what `close` was given is dropped.
    unsafe fn start(
        &mut self,
        operation: Operation,
        range: (u64, u64),
        spans: &[Span],
        argument: u64,
    ) -> Result<(), i32>;

    /// Appends up to `most` completions: arguments and results. Returns true if there may be more, and then the descriptor is readable.
    fn collect(&mut self, most: usize, into: &mut Vec<(u64, i64)>) -> bool;

    /// The descriptor that is readable when there are completions.
    fn fd(&self) -> RawFd;

    /// Ends it; `keep` is dropped when no operation is in flight any more.
    fn close(self, keep: Box<dyn Any + Send>);
}

/// Handles of the libraries, which are destroyed in this order. None is null from the time on that it was opened.
pub(crate) struct Handles {
    pub library: &'static Library,
    pub cluster: Ptr,
    pub pool: Ptr,
    pub image: Ptr,
}

// SAFETY: the libraries' handles may be used by any thread.
unsafe impl Send for Handles {}

impl Drop for Handles {
    fn drop(&mut self) {
        // SAFETY: the handles are open, and nothing uses them any more.
        unsafe {
            if !self.image.is_null() {
                (self.library.rbd_close)(self.image);
            }
            if !self.pool.is_null() {
                (self.library.rados_ioctx_destroy)(self.pool);
            }
            if !self.cluster.is_null() {
                (self.library.rados_shutdown)(self.cluster);
            }
        }
    }
}

/// An open image of a cluster.
pub struct RbdImage {
    /// Always there until the image is dropped.
    handles: Option<Handles>,
    completed: OwnedFd,
}

impl RbdImage {
    /// Has completions counted on a descriptor.
    pub(crate) fn new(handles: Handles) -> Result<Self, std::io::Error> {
        // SAFETY: it has no requirements.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and ours.
        let completed = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: the image is open, and the descriptor is open as long as it is.
        let result = unsafe {
            (handles.library.rbd_set_image_notification)(handles.image, fd, EVENT_TYPE_EVENTFD)
        };
        match result {
            0.. => Ok(Self { handles: Some(handles), completed }),
            error => Err(std::io::Error::from_raw_os_error(-error)),
        }
    }

    fn end(&mut self, keep: Box<dyn Any + Send>) {
        let Some(handles) = self.handles.take() else { return };
        // librbd writes to it until the image is closed.
        let completed = self.completed.try_clone();
        closing().count += 1;
        let close = move || {
            drop(handles);
            drop((completed, keep));
            closing().count -= 1;
            CLOSED.notify_all();
        };
        let thread = std::thread::Builder::new().name("headworks-rbd".into());
        if thread.spawn(close).is_err() {
            // What the thread was to close stays open until the process ends.
            closing().count -= 1;
        }
    }
}

impl Drop for RbdImage {
    fn drop(&mut self) {
        self.end(Box::new(()));
    }
}

impl Backend for RbdImage {
    unsafe fn start(
        &mut self,
        operation: Operation,
        (offset, len): (u64, u64),
        spans: &[Span],
        argument: u64,
    ) -> Result<(), i32> {
        let Some(Handles { library, image, .. }) = &self.handles else { return Err(libc::EBADF) };
        let mut completion = null_mut();
        // SAFETY: the image is open; the completion is released below or when it was collected; spans are laid out as `struct iovec`,
        // and their lives are the caller's promise.
        unsafe {
            let argument = argument as usize as Ptr;
            let made =
                (library.rbd_aio_create_completion)(argument, null_mut(), &raw mut completion);
            if made < 0 {
                return Err(-made);
            }
            let (vectors, count) = (spans.as_ptr().cast(), spans.len() as c_int);
            let started = match operation {
                Operation::Read => {
                    (library.rbd_aio_readv)(*image, vectors, count, offset, completion)
                }
                Operation::Write => {
                    (library.rbd_aio_writev)(*image, vectors, count, offset, completion)
                }
                Operation::Zero { thick } => {
                    let flags = if thick { THICK } else { 0 };
                    let len = len as usize;
                    (library.rbd_aio_write_zeroes)(*image, offset, len, completion, flags, 0)
                }
                Operation::Flush => (library.rbd_aio_flush)(*image, completion),
            };
            if started < 0 {
                (library.rbd_aio_release)(completion);
                return Err(-started);
            }
        }
        Ok(())
    }

    fn collect(&mut self, most: usize, into: &mut Vec<(u64, i64)>) -> bool {
        let Some(Handles { library, image, .. }) = &self.handles else { return false };
        let mut count = [0u8; 8];
        // SAFETY: our descriptor, and as many bytes as it gives. It may be empty.
        unsafe { libc::read(self.completed.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
        let mut taken = 0;
        while taken < most {
            let mut completions = [null_mut(); BATCH];
            let batch = BATCH.min(most - taken) as c_int;
            // SAFETY: the image is open, and the array has as much room. What it gives is ours, once.
            let found =
                unsafe { (library.rbd_poll_io_events)(*image, completions.as_mut_ptr(), batch) };
            for &completion in &completions[..found.max(0) as usize] {
                // SAFETY: a completion that was just given to us; it is not used after its release.
                unsafe {
                    let argument = (library.rbd_aio_get_arg)(completion) as usize as u64;
                    into.push((argument, (library.rbd_aio_get_return_value)(completion) as i64));
                    (library.rbd_aio_release)(completion);
                }
            }
            taken += found.max(0) as usize;
            if found < batch {
                return false;
            }
        }
        let one = 1u64.to_ne_bytes();
        // SAFETY: our descriptor and our bytes.
        unsafe { libc::write(self.completed.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        true
    }

    fn fd(&self) -> RawFd {
        self.completed.as_raw_fd()
    }

    fn close(mut self, keep: Box<dyn Any + Send>) {
        self.end(keep);
    }
}

/// Images that threads are closing.
struct Closing {
    count: usize,
}

static CLOSING: Mutex<Closing> = Mutex::new(Closing { count: 0 });
static CLOSED: Condvar = Condvar::new();

fn closing() -> std::sync::MutexGuard<'static, Closing> {
    CLOSING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until all images that were dropped are closed, at most `limit`; returns whether they are.
pub fn wait_for_closes(limit: Duration) -> bool {
    let waited = CLOSED.wait_timeout_while(closing(), limit, |closing| closing.count > 0);
    let (closing, _) = waited.unwrap_or_else(PoisonError::into_inner);
    closing.count == 0
}
