//! How each program begins and ends.

use std::process::ExitCode;
use std::time::Duration;

use crate::{complain, shown};

/// How long images of clusters may take to close at the end.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// Begins a program. A write beyond the limit of the size of files (RLIMIT_FSIZE, `ulimit -f`, `LimitFSIZE=`) fails with EFBIG
/// alone: the signal of the kernel would end the process, with all that it serves to others. Commands that are started have its default again.
pub fn begin() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: all zeros are an action with the default, no flags and an empty mask; the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        // It cannot fail with a number of a signal that has a handler.
        libc::sigaction(libc::SIGXFSZ, &raw const action, std::ptr::null_mut());
    }
}

/// Waits for images that are closed: their locks are given back while the process still runs.
pub fn close_images() {
    if !headworks_server::wait_for_closes(CLOSE_LIMIT) {
        shown::error_line!(
            "headworks: a Ceph cluster does not answer, so the lock of an image may stay for half a minute"
        );
    }
}

/// The exit code of a program whose command ended with `code`: a failure if a part of its output is missing.
pub fn end(code: ExitCode) -> ExitCode {
    match shown::output_error() {
        Some(error) => {
            complain(format_args!("cannot write to standard output: {error}"));
            ExitCode::FAILURE
        }
        None => code,
    }
}
