//! Copies to and from memory that may be gone: mapped files.
//!
//! A page of a mapped file whose file has become shorter, or whose filesystem is full, answers an access with SIGBUS. All
//! accesses are made by one routine of a few instructions, and a signal handler knows them by their address: it lets the
//! routine return "faulted" instead. So a fault is the result of the one copy that met it, whatever thread made it:
//!
//! ```text
//!   copy:     rep movsq  --- SIGBUS ---.    handler: is the interrupted instruction one of ours?
//!             rep movsb  --- SIGBUS ---+             yes: go on at `faulted`, as if `copy` had jumped there
//!             return 0                 |             no:  whatever handled SIGBUS before us
//!   faulted:  return 1  <--------------'
//! ```
//!
//! Rejected: putting an anonymous page where the fault was and a mark beside it. It needs a registry of mappings that a signal
//! handler can read, a place for the mark, and afterwards the file's page again; here nothing is left to undo.
//!
//! Invariant: the routine uses no stack, so both ways out return to its caller. Only on x86-64; elsewhere [`arm`] says no.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub use x86_64::{arm, copy, prefetch};

/// Makes the process ready for [`copy`]; false where that cannot be done, and then `copy` must not be used.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub fn arm() -> bool {
    false
}

/// Never called: [`arm`] said no.
///
/// # Safety
/// None needed.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub unsafe fn copy(_to: *mut u8, _from: *const u8, _len: usize) -> bool {
    unreachable!("guarded copies exist on x86-64 alone, and `arm` said so")
}

/// A hint about memory that a copy will need soon.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub fn prefetch(_from: *const u8) {}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod x86_64 {
    use std::arch::naked_asm;
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    use std::sync::{Once, OnceLock};

    /// What handled SIGBUS before us. Set before our handler is installed, and never again: it may be read in a signal.
    static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();
    static INSTALL: Once = Once::new();

    /// Half a KiB: the rest comes by itself, once the processor sees the copy run. With 64 lines the hint takes longer than
    /// the copy that it is to be hidden behind.
    const PREFETCH_LINES: usize = 8;

    /// The bytes of `routine` that hold its two copying instructions: 3 (rep movsq), 3 (mov), 2 (rep movsb).
    const ROUTINE_LEN: usize = 8;

    /// Makes the process ready for [`copy`]; false where that cannot be done, and then `copy` must not be used.
    ///
    /// Whoever installs a SIGBUS handler later and does not call the one he found takes this away again.
    pub fn arm() -> bool {
        INSTALL.call_once(|| {
            // SAFETY: a struct of integers and an optional function, for which zeros are a value.
            let (mut old, mut new): (libc::sigaction, libc::sigaction) =
                unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
            // SAFETY: only asks; `old` lives through the call.
            if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut old) } != 0 {
                return;
            }
            // On the alternate stack: the standard library's handler, which we call, finds overflown stacks.
            new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
            new.sa_sigaction = on_bus_error as *const () as usize;
            if PREVIOUS.set(old).is_ok() {
                // SAFETY: the handler is async-signal-safe: it reads a static, changes its own context, and calls what was
                // there before, or sigaction and raise. If this fails, `is_armed` says no.
                unsafe { libc::sigaction(libc::SIGBUS, &raw const new, std::ptr::null_mut()) };
            }
        });
        is_armed()
    }

    /// Whether SIGBUS comes to our handler.
    fn is_armed() -> bool {
        // SAFETY: as in `arm`.
        let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: only asks; `now` lives through the call.
        let failed = unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut now) } != 0;
        !failed && now.sa_sigaction == on_bus_error as *const () as usize
    }

    /// Copies `len` bytes between a mapped file and memory, in either direction. False when a page was not there: then any
    /// part of it may have been copied.
    ///
    /// # Safety
    /// [`arm`] answered true. Both ranges are mapped memory of this process, one of them may be pages of a file that is no
    /// longer there; `to` may be written and is not borrowed; they do not overlap.
    #[inline]
    pub unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> bool {
        // SAFETY: the caller's promise about the ranges; a fault is handled, since `arm` has installed the handler.
        unsafe { routine(to, from, len % 8, len / 8) == 0 }
    }

    /// A hint about memory that a copy will need soon: its address translation and its first lines come in meanwhile. Any
    /// address will do, a hint never faults.
    #[inline]
    pub fn prefetch(from: *const u8) {
        for line in 0..PREFETCH_LINES {
            let line = from.wrapping_add(line * 64);
            // SAFETY: part of every x86-64, and no access.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
        }
    }

    /// Its copying instructions are its first [`ROUTINE_LEN`] bytes. It writes no stack, and the ABI lets it change rax, rcx,
    /// rsi and rdi. Whole words first: that is fast on every processor, and the last bytes are fewer than eight.
    #[unsafe(naked)]
    unsafe extern "sysv64" fn routine(
        to: *mut u8,
        from: *const u8,
        tail: usize,
        words: usize,
    ) -> usize {
        naked_asm!("rep movsq", "mov rcx, rdx", "rep movsb", "xor eax, eax", "ret")
    }

    /// Where the routine goes on after a fault. Never called.
    #[unsafe(naked)]
    unsafe extern "sysv64" fn faulted() -> usize {
        naked_asm!("mov eax, 1", "ret")
    }

    extern "C" fn on_bus_error(
        signal: libc::c_int,
        info: *mut libc::siginfo_t,
        context: *mut libc::c_void,
    ) {
        // SAFETY: the kernel gives a handler with SA_SIGINFO both, valid while it runs.
        let (code, next) = unsafe {
            let context = &mut *context.cast::<libc::ucontext_t>();
            let next = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
            ((*info).si_code, next)
        };
        let start = routine as *const () as usize;
        let ours = (start..start + ROUTINE_LEN).contains(&(*next as usize));
        // Other codes are no fault of the interrupted instruction: somebody sent the signal.
        if ours && matches!(code, libc::BUS_ADRERR | libc::BUS_MCEERR_AR) {
            *next = faulted as *const () as libc::greg_t;
            return;
        }
        // SAFETY: as this handler was called.
        unsafe { call_previous(signal, code, info, context) };
    }

    /// # Safety
    /// The arguments of a SIGBUS handler that runs.
    unsafe fn call_previous(
        signal: libc::c_int,
        code: libc::c_int,
        info: *mut libc::siginfo_t,
        context: *mut libc::c_void,
    ) {
        let previous = PREVIOUS.get();
        let handler = previous.map_or(libc::SIG_DFL, |previous| previous.sa_sigaction);
        let with_info = previous.is_some_and(|previous| previous.sa_flags & libc::SA_SIGINFO != 0);
        let sent = code <= 0;
        match handler {
            libc::SIG_IGN if sent => {}
            // A fault cannot be ignored: the kernel ends the process then, as it does by default.
            libc::SIG_DFL | libc::SIG_IGN => {
                // SAFETY: both calls are async-signal-safe; zeros are the default action.
                unsafe {
                    let mut default: libc::sigaction = std::mem::zeroed();
                    default.sa_sigaction = libc::SIG_DFL;
                    libc::sigaction(signal, &raw const default, std::ptr::null_mut());
                    libc::raise(signal);
                }
            }
            // SAFETY: it was installed as a handler with these arguments.
            _ if with_info => unsafe {
                let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                    std::mem::transmute(handler);
                handler(signal, info, context);
            },
            // SAFETY: as above, without SA_SIGINFO.
            _ => unsafe {
                let handler: extern "C" fn(libc::c_int) = std::mem::transmute(handler);
                handler(signal);
            },
        }
    }
}

#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
mod tests {
    use std::fs::File;
    use std::os::fd::{AsRawFd, FromRawFd};
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, ExitStatus};

    use super::*;
    use crate::memory::PAGE;

    /// A file in memory of `pages`, and all of it mapped.
    fn mapped(pages: usize) -> (File, *mut u8) {
        // SAFETY: plain calls; the descriptor is nobody else's.
        unsafe {
            let fd = libc::memfd_create(c"guarded".as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0);
            let file = File::from_raw_fd(fd);
            file.set_len((pages * PAGE) as u64).unwrap();
            let (access, len) = (libc::PROT_READ | libc::PROT_WRITE, pages * PAGE);
            let base = libc::mmap(
                std::ptr::null_mut(),
                len,
                access,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            );
            assert_ne!(base, libc::MAP_FAILED);
            (file, base.cast())
        }
    }

    #[test]
    fn copies_every_length_and_alignment() {
        assert!(arm());
        let (_file, base) = mapped(2);
        for (offset, len) in [(0, 0), (1, 1), (3, 7), (5, 8), (7, 9), (1, 4095), (9, 8000)] {
            let source: Vec<u8> = (0..len).map(|at| (at * 7 + len) as u8).collect();
            let mut back = vec![0xee; len + 1];
            // SAFETY: inside the mapping, and inside the vectors.
            unsafe {
                assert!(copy(base.add(offset), source.as_ptr(), len));
                assert!(copy(back.as_mut_ptr(), base.add(offset), len));
            }
            assert_eq!(back[..len], source, "{offset} + {len}");
            assert_eq!(back[len], 0xee, "nothing beyond {offset} + {len}");
        }
    }

    #[test]
    fn a_page_that_is_gone_fails_its_copy_alone() {
        assert!(arm());
        let (file, base) = mapped(4);
        let (other_file, other) = mapped(1);
        file.set_len(PAGE as u64).unwrap();
        let mut bytes = vec![7; 4 * PAGE];
        // Whole words, and the last bytes alone: both instructions may fault.
        for (offset, len) in [(PAGE, PAGE), (0, 4 * PAGE), (PAGE - 8, 16), (PAGE - 8, 11)] {
            // SAFETY: inside the mapping, though not inside the file.
            unsafe {
                assert!(!copy(bytes.as_mut_ptr(), base.add(offset), len));
                assert!(!copy(base.add(offset), bytes.as_ptr(), len));
                assert!(copy(other, bytes.as_ptr(), PAGE));
                assert!(copy(base, bytes.as_ptr(), PAGE));
            }
        }
        file.set_len(4 * PAGE as u64).unwrap();
        // SAFETY: as above; the file is back.
        assert!(unsafe { copy(base, bytes.as_ptr(), 4 * PAGE) });
        drop(other_file);
    }

    #[test]
    fn a_hint_about_any_address_is_harmless() {
        let (file, base) = mapped(1);
        file.set_len(0).unwrap();
        for address in [base.cast_const(), std::ptr::null(), usize::MAX as *const u8] {
            prefetch(address);
        }
    }

    #[test]
    fn threads_fault_independently() {
        assert!(arm());
        let threads: Vec<_> = (0..4)
            .map(|number| {
                std::thread::spawn(move || {
                    let (file, base) = mapped(2);
                    let mut bytes = vec![number; 2 * PAGE];
                    for round in 0..500 {
                        let whole = round % 2 == 0;
                        file.set_len(if whole { 2 * PAGE as u64 } else { 100 }).unwrap();
                        // SAFETY: inside the mapping.
                        let copied = unsafe { copy(bytes.as_mut_ptr(), base, 2 * PAGE) };
                        assert_eq!(copied, whole, "round {round}");
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
    }

    /// This very test once more in a process of its own, which ends as `role` says: a process has one SIGBUS handler.
    fn in_child(test: &str, role: &str) -> ExitStatus {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", test, "--nocapture"]);
        child.env("HEADWORKS_GUARDED_ROLE", role);
        child.output().unwrap().status
    }

    fn install(handler: usize, flags: libc::c_int) {
        // SAFETY: the handlers below do what a signal handler may.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler;
            action.sa_flags = flags;
            assert_eq!(libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()), 0);
        }
    }

    extern "C" fn plain(_signal: libc::c_int) {
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(42) };
    }

    extern "C" fn with_info(
        _signal: libc::c_int,
        info: *mut libc::siginfo_t,
        _context: *mut libc::c_void,
    ) {
        // SAFETY: a handler's argument; ends the process at once.
        unsafe { libc::_exit(40 + (*info).si_code) };
    }

    fn act(role: &str) -> ! {
        let (file, base) = mapped(2);
        match role {
            "plain" => install(plain as *const () as usize, 0),
            "info" => install(with_info as *const () as usize, libc::SA_SIGINFO),
            "ignore" => install(libc::SIG_IGN, 0),
            "default" => install(libc::SIG_DFL, 0),
            _ => {}
        }
        assert!(arm() && arm());
        file.set_len(0).unwrap();
        let mut byte = 0;
        // SAFETY: the last access is a fault that is not ours, which is what the test is about.
        unsafe {
            assert!(!copy(&raw mut byte, base, 1));
            if role == "ignore" {
                libc::raise(libc::SIGBUS);
                assert!(!copy(&raw mut byte, base, 1));
                libc::_exit(43);
            }
            base.read_volatile();
        }
        panic!("the access must have faulted");
    }

    #[test]
    fn faults_of_others_go_to_the_handler_before_us() {
        if let Ok(role) = std::env::var("HEADWORKS_GUARDED_ROLE") {
            act(&role);
        }
        let test = "memory::guarded::tests::faults_of_others_go_to_the_handler_before_us";
        assert_eq!(in_child(test, "plain").code(), Some(42));
        assert_eq!(in_child(test, "info").code(), Some(40 + libc::BUS_ADRERR));
        assert_eq!(in_child(test, "ignore").code(), Some(43));
        for role in ["default", "the standard library's"] {
            assert_eq!(in_child(test, role).signal(), Some(libc::SIGBUS), "{role}");
        }
    }
}
