//! An open image: handles of the libraries, operations, completions, and the end.
//!
//! librbd counts completions on an eventfd (`rbd_set_image_notification`), so none of its threads runs our code. It keeps a
//! pointer to the array of an operation's spans until the operation completes, so arrays live in the device's slots.
//!
//! **What librbd was given stays until it has closed the image**: the descriptor, whose *number* it keeps and writes to whenever an
//! operation ends, and the memory of operations in flight. A descriptor that is closed before gives its number to another file, which
//! librbd would write to then. So handles and descriptor are one value ([`OpenImage`]) that drops the handles first, and nothing duplicates
//! the descriptor.
//!
//! **Closing** waits for operations in flight and gives the lock back, and both wait for the cluster, which may be gone. So a thread
//! closes, with what operations in flight use, and [`wait_for_closes`] gives it time before the process ends. Without that time the lock
//! stays until the cluster notices that its owner is gone (30 s). librbd never frees a completion that was not taken, so the thread takes
//! those of all operations in flight before it closes the image. Without a thread all of it stays until the process ends.
//!
//! Invariant: `in_flight` is the number of completions that were created and not released.

use std::any::Any;
use std::ffi::c_int;
use std::mem::ManuallyDrop;
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
pub trait Backend: Send + 'static {
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

/// What librbd has and uses until it has closed the image. Fields are dropped in their order.
struct OpenImage {
    handles: Handles,
    /// librbd writes to its number.
    completed: OwnedFd,
}

/// An open image of a cluster.
pub struct RbdImage {
    /// Always there until the image is closed or dropped.
    open: Option<OpenImage>,
    /// Operations whose completions were not collected.
    in_flight: usize,
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
        // Before librbd gets the descriptor: an error below closes the image first.
        let open = OpenImage { handles, completed };
        let Handles { library, image, .. } = open.handles;
        // SAFETY: the image is open, and the descriptor is open as long as it is.
        let result = unsafe { (library.rbd_set_image_notification)(image, fd, EVENT_TYPE_EVENTFD) };
        match result {
            0.. => Ok(Self { open: Some(open), in_flight: 0 }),
            error => Err(std::io::Error::from_raw_os_error(-error)),
        }
    }

    fn end(&mut self, keep: Box<dyn Any + Send>) {
        let Some(open) = self.open.take() else { return };
        let in_flight = self.in_flight;
        closing().count += 1;
        // Without a thread nothing of it is dropped: librbd, or the cluster for it, may use it until the process ends.
        let used = ManuallyDrop::new((open, keep));
        let close = move || {
            let (open, keep) = ManuallyDrop::into_inner(used);
            release_rest(&open, in_flight);
            drop(open);
            drop(keep);
            closing().count -= 1;
            CLOSED.notify_all();
        };
        let thread = std::thread::Builder::new().name("headworks-rbd".into());
        if let Err(error) = thread.spawn(close) {
            tracing::error!(
                "no thread to close an image of the cluster, which stays open: {error}"
            );
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
        let Some(OpenImage { handles: Handles { library, image, .. }, .. }) = &self.open else {
            return Err(libc::EBADF);
        };
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
        self.in_flight += 1;
        Ok(())
    }

    fn collect(&mut self, most: usize, into: &mut Vec<(u64, i64)>) -> bool {
        let Some(open) = &self.open else { return false };
        let before = into.len();
        let more = collect(open, most, into);
        self.in_flight -= into.len() - before;
        more
    }

    fn fd(&self) -> RawFd {
        self.open.as_ref().map_or(-1, |open| open.completed.as_raw_fd())
    }

    fn close(mut self, keep: Box<dyn Any + Send>) {
        self.end(keep);
    }
}

/// Takes up to `most` completions and releases them; returns true if there may be more, and then the descriptor is readable.
fn collect(
    OpenImage { handles: Handles { library, image, .. }, completed }: &OpenImage,
    most: usize,
    into: &mut Vec<(u64, i64)>,
) -> bool {
    let mut count = [0u8; 8];
    // SAFETY: our descriptor, and as many bytes as it gives. It may be empty.
    unsafe { libc::read(completed.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
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
    unsafe { libc::write(completed.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    true
}

/// Waits for the completions of all operations in flight, however long the cluster takes, and releases them.
fn release_rest(open: &OpenImage, mut in_flight: usize) {
    let mut ended = Vec::with_capacity(BATCH);
    while in_flight > 0 {
        let mut wanted =
            libc::pollfd { fd: open.completed.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, and our descriptor.
        unsafe { libc::poll(&raw mut wanted, 1, -1) };
        ended.clear();
        collect(open, BATCH, &mut ended);
        in_flight -= ended.len();
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

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    /// Completions that were created and not released.
    static LIVE: AtomicUsize = AtomicUsize::new(0);

    /// librbd's image: its operations end when the test says so.
    #[derive(Default)]
    struct Image {
        fd: c_int,
        started: VecDeque<usize>,
        ended: VecDeque<usize>,
        is_closed: bool,
    }

    fn image_of(image: Ptr) -> std::sync::MutexGuard<'static, Image> {
        // SAFETY: the test keeps the image until it has ended.
        unsafe { &*image.cast_const().cast::<Mutex<Image>>() }.lock().unwrap()
    }

    impl Image {
        fn complete_one(&mut self) {
            let completion = self.started.pop_front().unwrap();
            self.ended.push_back(completion);
            // SAFETY: the descriptor is open as long as the image.
            unsafe { libc::write(self.fd, 1u64.to_ne_bytes().as_ptr().cast(), 8) };
        }
    }

    unsafe extern "C" fn set_notification(image: Ptr, fd: c_int, _: c_int) -> c_int {
        image_of(image).fd = fd;
        0
    }

    unsafe extern "C" fn create(argument: Ptr, _: Ptr, completion: *mut Ptr) -> c_int {
        LIVE.fetch_add(1, SeqCst);
        // SAFETY: the caller's room for a pointer.
        unsafe { *completion = Box::into_raw(Box::new(argument as usize)).cast() };
        0
    }

    unsafe extern "C" fn start(
        image: Ptr,
        _: crate::library::Vectors,
        _: c_int,
        _: u64,
        completion: Ptr,
    ) -> c_int {
        image_of(image).started.push_back(completion as usize);
        0
    }

    unsafe extern "C" fn refuse(_: Ptr, _: Ptr) -> c_int {
        -libc::ENOMEM
    }

    unsafe extern "C" fn poll(image: Ptr, into: *mut Ptr, most: c_int) -> c_int {
        let mut image = image_of(image);
        let count = image.ended.len().min(most as usize);
        for (at, completion) in image.ended.drain(..count).enumerate() {
            // SAFETY: the caller's room for `most`.
            unsafe { *into.add(at) = completion as Ptr };
        }
        count as c_int
    }

    unsafe extern "C" fn argument_of(completion: Ptr) -> Ptr {
        // SAFETY: a completion of `create` that was not released.
        unsafe { *completion.cast::<usize>() as Ptr }
    }

    unsafe extern "C" fn result_of(_: Ptr) -> isize {
        0
    }

    unsafe extern "C" fn release(completion: Ptr) {
        LIVE.fetch_sub(1, SeqCst);
        // SAFETY: a completion of `create`, released once.
        drop(unsafe { Box::from_raw(completion.cast::<usize>()) });
    }

    unsafe extern "C" fn close(image: Ptr) -> c_int {
        let mut image = image_of(image);
        assert!(image.started.is_empty() && !image.is_closed);
        image.is_closed = true;
        0
    }

    #[test]
    fn closing_releases_every_completion_and_keeps_memory_until_then() {
        let library = Box::leak(Box::new(Library {
            rbd_set_image_notification: set_notification,
            rbd_aio_create_completion: create,
            rbd_aio_readv: start,
            rbd_aio_writev: start,
            rbd_aio_flush: refuse,
            rbd_poll_io_events: poll,
            rbd_aio_get_arg: argument_of,
            rbd_aio_get_return_value: result_of,
            rbd_aio_release: release,
            rbd_close: close,
            ..Library::absent()
        }));
        let state = Arc::new(Mutex::new(Image::default()));
        let handles = Handles {
            library,
            cluster: null_mut(),
            pool: null_mut(),
            image: Arc::as_ptr(&state).cast_mut().cast(),
        };
        let mut image = RbdImage::new(handles).unwrap();
        let fd = image.fd();
        let memory = Arc::new(vec![0u8; 4096]);
        let mut run = |operation, argument| {
            // SAFETY: there is no memory.
            unsafe { image.start(operation, (0, 512), &[], argument) }
        };
        for argument in 0..100 {
            let operation = if argument % 2 == 0 { Operation::Read } else { Operation::Write };
            assert_eq!(run(operation, argument), Ok(()));
        }
        assert_eq!(run(Operation::Flush, 100), Err(libc::ENOMEM));
        assert_eq!(LIVE.load(SeqCst), 100, "one that did not start is released");
        for _ in 0..60 {
            state.lock().unwrap().complete_one();
        }
        let mut collected = Vec::new();
        assert!(image.collect(40, &mut collected));
        assert_eq!((collected.len(), collected[39], LIVE.load(SeqCst)), (40, (39, 0), 60));
        // Twenty have ended and were not collected, forty are in flight.
        image.close(Box::new(Arc::clone(&memory)));
        // However late the thread begins: nothing else gets the number.
        // SAFETY: it has no requirements.
        assert_ne!(unsafe { libc::fcntl(fd, libc::F_GETFD) }, -1, "librbd writes to it");
        let victim = headworks_testing::TempFile::new("victim");
        let opened = std::fs::File::options().write(true).open(victim.path()).unwrap();
        assert_ne!(opened.as_raw_fd(), fd);
        for _ in 0..40 {
            assert!(
                !wait_for_closes(Duration::ZERO),
                "it waits for operations, but no caller has to"
            );
            assert_eq!(Arc::strong_count(&memory), 2, "operations in flight use it");
            let mut state = state.lock().unwrap();
            assert!(!state.is_closed);
            state.complete_one();
        }
        assert!(wait_for_closes(Duration::from_secs(60)));
        assert!(state.lock().unwrap().is_closed);
        assert_eq!((LIVE.load(SeqCst), Arc::strong_count(&memory)), (0, 1));
        assert!(std::fs::read(victim.path()).unwrap().is_empty(), "written by librbd");
        // SAFETY: it has no requirements.
        assert_eq!(unsafe { libc::fcntl(fd, libc::F_GETFD) }, -1, "the descriptor is closed");
    }
}
