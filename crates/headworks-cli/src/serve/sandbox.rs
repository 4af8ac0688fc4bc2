//! The seccomp filter of a running server: a deny list for all threads, permanent.
//!
//! An allow list would be stricter, but the system calls of the C library, the standard library and the engines vary
//! with their versions, and a call missing from it breaks a server that holds acknowledged writes. The deny list names
//! what an attacker with code execution needs next: starting programs, executable memory, other processes, mounts,
//! namespaces, users, clocks and the kernel.
//!
//! A refused call fails with EPERM and kills nothing, because a killed server loses dirty data. `clone3` fails with
//! ENOSYS: a filter cannot read its arguments, and the C library falls back to `clone`, whose flags it can check. A
//! call through another architecture's entry kills the process, as this program never makes one; x32, which shares the
//! x86_64 entry, is refused per call.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Width, SeccompCmpOp as Is, SeccompCondition,
    SeccompFilter, SeccompRule,
};

/// Bit that marks x32 calls of the x86_64 entry.
#[cfg(target_arch = "x86_64")]
const X32: i64 = 0x4000_0000;
/// x32's own numbers of refused calls: execve, ptrace, kexec_load, process_vm_readv, process_vm_writev, execveat.
#[cfg(target_arch = "x86_64")]
const X32_OWN: [i64; 6] = [520, 521, 528, 539, 540, 545];

/// Calls refused with any arguments.
const REFUSED: &[i64] = &[
    // Starting programs; io_uring cannot start any.
    libc::SYS_execve,
    libc::SYS_execveat,
    // Access to other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_perf_event_open,
    // System V shared memory can become executable without a flag of mmap that a filter could check.
    libc::SYS_shmat,
    // Mounts and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    // Users, groups and capabilities.
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_setgroups,
    libc::SYS_capset,
    libc::SYS_personality,
    // Files by handle, and set-user-id files.
    libc::SYS_open_by_handle_at,
    libc::SYS_mknodat,
    // The kernel, its keys and clocks.
    libc::SYS_bpf,
    libc::SYS_userfaultfd,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_quotactl,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_vhangup,
    libc::SYS_lookup_dcookie,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mknod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
];

/// Installs the filter for all present and future threads.
///
/// # Errors
/// A sentence if the kernel refuses; then no call is filtered.
pub(super) fn install() -> Result<(), String> {
    let entered = programs().and_then(|programs| {
        programs.iter().try_for_each(|program| seccompiler::apply_filter_all_threads(program))
    });
    entered.map_err(|error| error.to_string())
}

/// The filter programs; the kernel runs all and takes the strictest result. Each program has one way to refuse.
fn programs() -> Result<[BpfProgram; 2], seccompiler::Error> {
    Ok([refusals()?, no_clone3()?])
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn refusals() -> Result<BpfProgram, seccompiler::Error> {
    let mut rules: Rules = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    // Only threads: a new process would be for a program or a namespace.
    let thread = libc::CLONE_THREAD as u64;
    rules.insert(libc::SYS_clone, vec![when(0, Is::MaskedEq(thread), 0)?]);
    // Memory is filled by clients and never executed.
    let executable = libc::PROT_EXEC as u64;
    for call in [libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_pkey_mprotect] {
        rules.insert(call, vec![when(2, Is::MaskedEq(executable), executable)?]);
    }
    #[cfg(target_arch = "x86_64")]
    rules.extend(x32(&rules));
    compile(rules, SeccompAction::Errno(libc::EPERM as u32))
}

fn no_clone3() -> Result<BpfProgram, seccompiler::Error> {
    let rules: Rules = [(libc::SYS_clone3, Vec::new())].into();
    #[cfg(target_arch = "x86_64")]
    let rules: Rules = [(libc::SYS_clone3 | X32, Vec::new())].into_iter().chain(rules).collect();
    compile(rules, SeccompAction::Errno(libc::ENOSYS as u32))
}

/// The same rules for the x32 entry.
#[cfg(target_arch = "x86_64")]
fn x32(rules: &Rules) -> Rules {
    let same = rules.iter().map(|(call, chain)| (call | X32, chain.clone()));
    same.chain(X32_OWN.map(|call| (call | X32, Vec::new()))).collect()
}

fn when(argument: u8, is: Is, value: u64) -> Result<SeccompRule, seccompiler::Error> {
    let condition = SeccompCondition::new(argument, Width::Qword, is, value)?;
    Ok(SeccompRule::new(vec![condition])?)
}

fn compile(rules: Rules, refusal: SeccompAction) -> Result<BpfProgram, seccompiler::Error> {
    let here = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refusal, here)?;
    Ok(filter.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    /// Runs a call behind the filters in a thread of its own and returns its result.
    fn behind<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
        let thread = std::thread::spawn(move || {
            for program in programs().unwrap() {
                seccompiler::apply_filter(&program).unwrap();
            }
            what()
        });
        thread.join().unwrap()
    }

    fn errno(status: libc::c_long) -> i32 {
        assert_eq!(status, -1, "it was let through");
        io::Error::last_os_error().raw_os_error().unwrap()
    }

    /// A call without arguments that would otherwise fail with another error.
    fn refuses(call: i64) -> i32 {
        // SAFETY: these calls follow no null pointer into memory of this process.
        behind(move || errno(unsafe { libc::syscall(call, 0, 0, 0, 0, 0, 0) }))
    }

    #[test]
    fn deny_list_holds_for_both_entries() {
        for call in REFUSED {
            assert_eq!(refuses(*call), libc::EPERM, "call {call}");
            #[cfg(target_arch = "x86_64")]
            assert_eq!(refuses(*call | X32), libc::EPERM, "call {call} by x32");
        }
        #[cfg(target_arch = "x86_64")]
        for call in X32_OWN {
            assert_eq!(refuses(call | X32), libc::EPERM, "x32's own call {call}");
        }
    }

    #[test]
    fn starting_a_program_fails() {
        let error = behind(|| std::process::Command::new("true").spawn().unwrap_err());
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        // A new process by the fallback from clone3.
        assert_eq!(refuses(libc::SYS_clone), libc::EPERM);
        assert_eq!(refuses(libc::SYS_clone3), libc::ENOSYS);
    }

    #[test]
    fn threads_memory_and_files_still_work() {
        behind(|| {
            let sum: u32 = std::thread::spawn(|| vec![1_u32; 1 << 20].iter().sum()).join().unwrap();
            assert_eq!(sum, 1 << 20);
            let path = std::env::temp_dir().join(format!("hw-sandbox-{}", std::process::id()));
            std::fs::write(&path, "x").unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"x");
            std::fs::remove_file(&path).unwrap();
            std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        });
    }

    #[test]
    fn handing_over_to_another_process_still_works() {
        behind(super::super::upgrade::tests::hand_over_once);
    }

    #[test]
    fn executable_memory_is_refused() {
        let anywhere = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new anonymous mapping at an address that the kernel chooses.
        let map = move |protection| unsafe {
            libc::mmap(std::ptr::null_mut(), 4096, protection, anywhere, -1, 0)
        };
        let refused = behind(move || errno(map(libc::PROT_READ | libc::PROT_EXEC) as libc::c_long));
        assert_eq!(refused, libc::EPERM);
        let refused = behind(move || {
            let memory = map(libc::PROT_READ | libc::PROT_WRITE);
            assert_ne!(memory, libc::MAP_FAILED);
            // SAFETY: the page was mapped above and has no other user.
            let status = unsafe { libc::mprotect(memory, 4096, libc::PROT_READ | libc::PROT_EXEC) };
            errno(status.into())
        });
        assert_eq!(refused, libc::EPERM);
    }
}
