//! The placement of threads on CPUs.

/// Binds the calling thread to one CPU. A failure is logged and changes nothing: the kernel then places the thread.
pub fn pin_thread(cpu: usize) {
    // SAFETY: an all-zero set is an empty one, and the call only reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu % libc::CPU_SETSIZE as usize, &mut set);
        if libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) != 0 {
            let error = std::io::Error::last_os_error();
            tracing::warn!("cannot set the CPU affinity of a thread to CPU {cpu}: {error}");
        }
    }
}
