//! The command of `--run`, a child process during which the server runs.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus};

use super::io_flusher;
use super::running::Running;
use crate::signals::Signals;

pub(super) fn spawn(command: &str, running: &Running) -> io::Result<Child> {
    let first = running.first_uri().unwrap_or_default();
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(command).env("uri", first).env("nbd", first);
    // These variables are addressed to this process.
    for name in ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "NOTIFY_SOCKET", "WATCHDOG_USEC"] {
        shell.env_remove(name);
    }
    if let Some(path) = &running.unix {
        shell.env("unixsocket", path);
    }
    if let Some(port) = running.port {
        shell.env("port", port.to_string());
    }
    if let Some(path) = &running.control {
        shell.env("control", path);
    }
    let reset = || {
        io_flusher::unmark();
        Signals::unblock()
    };
    // SAFETY: between fork and exec only a mark and the signal mask are reset, by one system call each.
    unsafe { shell.pre_exec(reset).spawn() }
}

/// The exit code of a command that has ended, as a shell has it.
pub fn child_code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(code.clamp(0, 255) as u8)
}
