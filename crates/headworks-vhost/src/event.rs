//! Event descriptors of the front end: which are taken, and how they are signalled without waiting.
//!
//! An open file that a front end shares has a mode that it may change at any time: a write to an eventfd in blocking mode waits while
//! its counter is at its end, and other files may wait in every call (a file of FUSE even in poll). So
//!
//! - a kick, call or error descriptor is an eventfd, or it is refused ([`EventFd::check`]): its poll and close never wait;
//! - a signal is not a write. The kernel adds to the counter itself when an asynchronous read of an empty file of ours ends, which it
//!   does before `io_submit` returns. That addition stops at the counter's end and waits for nothing.
//!
//! A kernel without asynchronous I/O, or with none left (`fs.aio-max-nr`), leaves the write: tried where poll says that it has room.
//! Then a front end that fills the counter between the two calls, in blocking mode, makes the thread wait until it reads
//! ([`Notifier::fallback`]).
//!
//! Rejected: a write on an io_uring, which goes to a worker thread for a file in blocking mode; an io_uring of each descriptor with the
//! descriptor registered, which is memory and set-up for each ring; a pipe's splice, which eventfds do not have.
//!
//! Invariant: at most the signals under way are in the context's queue, which holds more than there are threads: what has ended is
//! taken after each.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::in_flight::sealed_file;

/// An eventfd of a front end. Its mode is never changed, as the open file belongs to the front end, too.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// Takes a descriptor if it is an eventfd; the error is a sentence. Nothing of the file itself is called.
    pub fn check(fd: OwnedFd) -> Result<Self, String> {
        let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let name = std::fs::read_link(link)
            .map_err(|error| format!("a descriptor cannot be told from others: /proc: {error}"))?;
        // Names of files of a file system begin with a slash, so no other file has this one.
        if name.as_os_str() == "anon_inode:[eventfd]" {
            return Ok(Self(fd));
        }
        Err(format!("a descriptor of {}, not an eventfd", name.display()))
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A notification to the front end.
#[derive(Debug)]
pub struct CallFd {
    fd: EventFd,
    notifier: Arc<Notifier>,
}

impl CallFd {
    /// The descriptor, signalled by `notifier`.
    #[must_use]
    pub fn new(fd: EventFd, notifier: Arc<Notifier>) -> Self {
        Self { fd, notifier }
    }

    /// Adds one to the counter. One system call, which does not wait.
    pub(crate) fn signal(&self) {
        let fd = self.fd.as_raw_fd();
        let is_done = self.notifier.aio.as_ref().is_ok_and(|aio| aio.signal(fd));
        if !is_done {
            write_if_room(fd);
        }
    }
}

/// What signals the event descriptors of front ends. Any thread may use it; it is made before a front end comes, which could use up what
/// the kernel has of asynchronous I/O.
#[derive(Debug)]
pub struct Notifier {
    aio: io::Result<Aio>,
}

impl Notifier {
    /// A notifier, by the best means that there are.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it opens files and takes of a limit")]
    pub fn new() -> Self {
        Self { aio: Aio::open(1) }
    }

    /// Why signals are writes, so that a hostile front end may make the thread wait; none if they are not.
    #[must_use]
    pub fn fallback(&self) -> Option<&io::Error> {
        self.aio.as_ref().err()
    }

    #[cfg(all(test, not(loom)))]
    fn with_writes() -> Self {
        // More than any kernel gives.
        Self { aio: Aio::open(u32::MAX) }
    }
}

/// `struct iocb` of `linux/aio_abi.h`.
#[derive(Debug, Default)]
#[repr(C)]
struct Iocb {
    data: u64,
    key_and_flags: [u32; 2],
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_fd: u32,
}

const _: () = assert!(size_of::<Iocb>() == 64);

const IOCB_CMD_PREAD: u16 = 0;
const IOCB_FLAG_RESFD: u32 = 1;

/// The head of the queue of what has ended, which the kernel maps into this process: its address is the context's name.
#[derive(Debug)]
#[repr(C)]
struct EndedQueue {
    id: u32,
    count: u32,
    /// The next entry to take: written here.
    head: AtomicU32,
    /// The next entry to fill: written by the kernel.
    tail: AtomicU32,
    magic: u32,
}

/// Marks a queue whose layout is the one above.
const MAGIC: u32 = 0xa10a_10a1;

/// A context of asynchronous I/O, and the empty file that it reads.
#[derive(Debug)]
struct Aio {
    context: libc::c_ulong,
    empty: File,
}

impl Aio {
    /// A context that counts as `requests` against the kernel's limit; it holds at least that many.
    fn open(requests: libc::c_uint) -> io::Result<Self> {
        let empty = sealed_file(c"headworks-empty", 0)?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes the context's name.
        if unsafe { libc::syscall(libc::SYS_io_setup, requests, &raw mut context) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let aio = Self { context, empty };
        if aio.ended().magic != MAGIC {
            return Err(io::Error::other("the kernel's queue has another layout"));
        }
        Ok(aio)
    }

    fn ended(&self) -> &EndedQueue {
        // SAFETY: the queue is mapped at this address from `io_setup` to `io_destroy`, at least a page of it, aligned to one. The kernel
        // changes no field but those that are atomic.
        unsafe { &*std::ptr::with_exposed_provenance(self.context as usize) }
    }

    /// Has the kernel add one to an eventfd's counter; false if it could not begin, for want of memory.
    fn signal(&self, fd: RawFd) -> bool {
        let mut read = Iocb {
            opcode: IOCB_CMD_PREAD,
            fd: self.empty.as_raw_fd() as u32,
            flags: IOCB_FLAG_RESFD,
            event_fd: fd as u32,
            ..Iocb::default()
        };
        let (count, mut reads): (libc::c_long, _) = (1, [&raw mut read]);
        // SAFETY: a context and one request of it, a read of no bytes, which ends within the call: nothing is used after it.
        let begun =
            unsafe { libc::syscall(libc::SYS_io_submit, self.context, count, reads.as_mut_ptr()) };
        // Everything that has ended is taken. Another thread may store an older place: the next signal takes the rest.
        let ended = self.ended();
        ended.head.store(ended.tail.load(Ordering::Acquire), Ordering::Release);
        begun == 1
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: the context is this one's alone, and none of its requests is under way.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

static ONE: u64 = 1;

/// Adds one to the counter of an eventfd unless it is at its end: then its owner is notified already.
fn write_if_room(fd: RawFd) {
    let mut poll = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one structure, which lives until the call has returned.
    if unsafe { libc::poll(&raw mut poll, 1, 0) } > 0 {
        // SAFETY: eight bytes of a constant.
        unsafe { libc::write(fd, (&raw const ONE).cast(), 8) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::os::fd::FromRawFd;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    /// Longer than anything here takes on a loaded machine.
    const LONG: Duration = Duration::from_secs(60);
    /// The highest count that a write can leave.
    const FULL: u64 = u64::MAX - 1;

    fn event_fd(flags: i32) -> OwnedFd {
        // SAFETY: the call takes no memory; the descriptor is new and belongs to nothing else.
        unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC | flags)) }
    }

    fn call_of(fd: &OwnedFd, notifier: &Arc<Notifier>) -> CallFd {
        let copy = EventFd::check(fd.try_clone().unwrap()).unwrap();
        CallFd::new(copy, Arc::clone(notifier))
    }

    fn add(fd: &OwnedFd, count: u64) {
        // SAFETY: eight bytes of a value that lives until the call has returned.
        let written = unsafe { libc::write(fd.as_raw_fd(), (&raw const count).cast(), 8) };
        assert_eq!(written, 8);
    }

    /// Takes the count of a descriptor; 0 if there is none.
    fn take(fd: &OwnedFd) -> u64 {
        let mut count = 0_u64;
        // SAFETY: the calls take no memory but eight bytes, which live until they have returned.
        unsafe {
            libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK);
            libc::read(fd.as_raw_fd(), (&raw mut count).cast(), 8);
        }
        count
    }

    #[test]
    fn each_signal_is_one_of_the_count_however_many_there_are() {
        for notifier in [Notifier::new(), Notifier::with_writes()].map(Arc::new) {
            let (fd, other) = (event_fd(0), event_fd(libc::EFD_NONBLOCK));
            let (call, second) = (call_of(&fd, &notifier), call_of(&other, &notifier));
            // Far more than the queue of what has ended has room for.
            for _ in 0..10_000 {
                call.signal();
                second.signal();
            }
            assert_eq!((take(&fd), take(&other)), (10_000, 10_000));
        }
    }

    #[test]
    fn threads_signal_by_one_notifier() {
        let notifier = Arc::new(Notifier::new());
        let fd = event_fd(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let call = call_of(&fd, &notifier);
                scope.spawn(move || (0..5_000).for_each(|_| call.signal()));
            }
        });
        assert_eq!(take(&fd), 20_000);
    }

    #[test]
    fn full_counter_in_blocking_mode_holds_no_thread() {
        let notifier = Arc::new(Notifier::new());
        assert!(notifier.fallback().is_none(), "{:?}", notifier.fallback());
        // The front end gives the descriptor in one mode and changes it then.
        let fd = event_fd(libc::EFD_NONBLOCK);
        let call = call_of(&fd, &notifier);
        // SAFETY: the call takes no memory.
        assert_eq!(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, 0) }, 0);
        add(&fd, FULL);
        let (done, is_done) = channel();
        std::thread::spawn(move || {
            (0..100).for_each(|_| call.signal());
            done.send(()).unwrap();
        });
        is_done.recv_timeout(LONG).expect("a signal waits for the front end");
        assert!(take(&fd) >= FULL, "it is notified");
        assert_eq!(take(&fd), 0);
    }

    #[test]
    fn full_counter_is_left_alone_by_writes() {
        let notifier = Arc::new(Notifier::with_writes());
        assert!(notifier.fallback().is_some());
        let fd = event_fd(0);
        add(&fd, FULL);
        call_of(&fd, &notifier).signal();
        assert_eq!(take(&fd), FULL);
    }

    #[test]
    fn other_files_are_no_event_descriptors() {
        let (reader, writer) = std::io::pipe().unwrap();
        let named =
            std::env::temp_dir().join(format!("anon_inode:[eventfd]{}", std::process::id()));
        let file = File::create(&named).unwrap();
        for fd in [reader.into(), writer.into(), file.into(), sealed_file(c"x", 1).unwrap().into()]
        {
            let sentence = EventFd::check(fd).unwrap_err();
            assert!(sentence.ends_with("not an eventfd"), "{sentence}");
        }
        std::fs::remove_file(named).unwrap();
    }
}
