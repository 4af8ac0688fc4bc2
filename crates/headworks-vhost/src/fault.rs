//! Guest memory whose file is truncated: a page that is gone raises SIGBUS in whatever thread touches it.
//!
//! The guard answers the signal for registered ranges: it puts private zero pages over the whole range, so that the access repeats
//! and succeeds, and marks the range as faulted. The device looks at the mark once a turn and ends. Elsewhere the signal does what it
//! did before. Accesses of the kernel for us (reads and writes of files into guest memory) fail with EFAULT and need no guard.
//!
//! Files that are sealed against shrinking cannot lose pages and are not registered; the handler is installed with the first range.
//! Rejected: a copy through a pipe or `process_vm_readv` for each access, which is a system call a request.
//!
//! The table has a fixed number of slots, as a signal handler must not allocate or lock. A slot's length is written last and
//! cleared first, so the handler never sees half a range.

use std::mem;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Ranges at once: 8 devices with all memory slots, or hundreds with a few.
const SLOTS: usize = 4096;

struct Slot {
    taken: AtomicBool,
    base: AtomicUsize,
    len: AtomicUsize,
    faulted: AtomicBool,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        taken: AtomicBool::new(false),
        base: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        faulted: AtomicBool::new(false),
    }
}; SLOTS];

/// One more than the highest slot that was ever taken, so that the handler's search is short.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);
static INSTALL: Once = Once::new();
/// The handler before this one, written once before the first range is registered.
static mut PREVIOUS: mem::MaybeUninit<libc::sigaction> = mem::MaybeUninit::uninit();

/// A registered range. Dropping it ends the guard, which is done before the range is unmapped.
#[derive(Debug)]
pub(crate) struct Guard(usize);

impl Guard {
    /// Guards `len` bytes at `base`; none if the table is full.
    pub(crate) fn new(base: *mut u8, len: usize) -> Option<Self> {
        INSTALL.call_once(install);
        let free = |slot: &Slot| !slot.taken.swap(true, Ordering::AcqRel);
        let index = TABLE.iter().position(free)?;
        let slot = &TABLE[index];
        slot.faulted.store(false, Ordering::Relaxed);
        slot.base.store(base.addr(), Ordering::Relaxed);
        // Release: pairs with the Acquire in `find`; a handler that sees the length sees the base.
        slot.len.store(len, Ordering::Release);
        HIGHEST.fetch_max(index + 1, Ordering::Release);
        Some(Self(index))
    }

    /// Whether a page of the range was missing.
    pub(crate) fn is_faulted(&self) -> bool {
        TABLE[self.0].faulted.load(Ordering::Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let slot = &TABLE[self.0];
        slot.len.store(0, Ordering::Release);
        slot.taken.store(false, Ordering::Release);
    }
}

fn install() {
    // SAFETY: the handler is async-signal-safe: it reads atomics and calls mmap. PREVIOUS is written here alone, under the Once,
    // before any range is registered.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_bus_error;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &raw const action, (&raw mut PREVIOUS).cast());
    }
}

/// The slot whose range contains `address`.
fn find(address: usize) -> Option<&'static Slot> {
    TABLE[..HIGHEST.load(Ordering::Acquire)].iter().find(|slot| {
        let len = slot.len.load(Ordering::Acquire);
        len != 0 && address.wrapping_sub(slot.base.load(Ordering::Relaxed)) < len
    })
}

extern "C" fn on_bus_error(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid siginfo to a handler with SA_SIGINFO.
    let address = unsafe { (*info).si_addr() }.addr();
    if let Some(slot) = find(address) {
        slot.faulted.store(true, Ordering::Relaxed);
        let base = std::ptr::without_provenance_mut(slot.base.load(Ordering::Relaxed));
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let len = slot.len.load(Ordering::Relaxed);
        // SAFETY: the range is a mapping of guest memory that its owner keeps while the slot has a length. The pages that replace it
        // are readable and writable as before.
        let mapped = unsafe { libc::mmap(base, len, access, flags, -1, 0) };
        if mapped != libc::MAP_FAILED {
            return;
        }
    }
    // Not guest memory: the access repeats under the handler of before, by default the end of the process.
    // SAFETY: PREVIOUS was written before this handler could run for a range; sigaction is async-signal-safe.
    unsafe { libc::sigaction(libc::SIGBUS, (&raw const PREVIOUS).cast(), std::ptr::null_mut()) };
}
