//! `headworks ctl freeze EXPORT --run COMMAND`: a command that runs while images are frozen, and their thaw.
//!
//! ```text
//!   freeze -> COMMAND -> thaw -> exit code of COMMAND; 1 if the freeze had ended before the thaw
//! ```
//!
//! SIGINT goes to the command alone, which ends it; then the images are thawed. If this process is killed, the freeze ends by its time
//! limit.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};

use headworks_control::methods::Thaw;
use headworks_control::param::Names;

use crate::complain;
use crate::ctl::call;
use crate::serve::child_code;

/// Runs a command while `exports` are frozen, then thaws them; returns the exit code.
pub fn run_frozen(socket: &Path, exports: &[String], command: &str) -> ExitCode {
    let ended = run(command);
    let thawed = call(socket, &Thaw { exports: Names(exports.to_vec()) });
    let code = match ended {
        Ok(status) => child_code(status),
        Err(error) => {
            complain(format!("cannot run /bin/sh: {error}"));
            ExitCode::FAILURE
        }
    };
    match thawed {
        Ok(_) => code,
        Err(error) => {
            complain(error);
            ExitCode::FAILURE
        }
    }
}

fn run(command: &str) -> io::Result<ExitStatus> {
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(command);
    // SAFETY: between fork and exec only the disposition of one signal is set, by one system call.
    unsafe { shell.pre_exec(|| interrupt(libc::SIG_DFL)) };
    // Before the start: a key pressed at once ends the command, not this process.
    interrupt(libc::SIG_IGN)?;
    let ended = shell.status();
    interrupt(libc::SIG_DFL)?;
    ended
}

/// Sets what SIGINT does.
fn interrupt(disposition: libc::sighandler_t) -> io::Result<()> {
    // SAFETY: no handler is installed: the signal is ignored or has its default.
    match unsafe { libc::signal(libc::SIGINT, disposition) } {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
