//! A helper process that mounts files of FUSE for the server.
//!
//! The seccomp filter forbids the server to mount and to start programs, and `--user` takes its privileges away. So a server with FUSE
//! listeners starts this helper first, and asks it later:
//!
//! ```text
//!   server --mount, directory's number, name--> helper --mount(2) or fusermount3--> the device, by the socket
//!          --unmount-------------------------> helper
//!          --end of file---------------------> helper unmounts all and ends, also when the server was killed
//! ```
//!
//! Invariants: no path comes over the socket, so code that runs in the sandboxed server can mount nothing but files of single names in the
//! directories that the helper was started with, and none that has content. The helper has no descriptors but 0 to 2 and its socket; no
//! signal but SIGKILL ends it. When it is killed, its mounts stay and answer ENOTCONN until the next start on the same directory.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use headworks_fuse::MountedFiles;
use headworks_server::{Mounts, ServerOptions};

use super::upgrade::helper::{close_others, keep_at_exec, set_signal_mask};
use super::upgrade::packet::{Packet, PacketSocket};

/// The first argument that makes a process the helper.
pub const COMMAND: &str = "serve-mounts";
/// Name of the process; 15 characters is the most that the kernel keeps.
const NAME: &std::ffi::CStr = c"headworks-mount";
/// Name of the mounts in the table of mounts.
const MOUNT: &str = headworks::house::safe_open::EXPORT_MOUNT;
/// Longest wait for a mount, for which a program may be started, and for the helper's end.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Requests, in the first byte of a packet; the number of the directory and the name of the file follow.
const MOUNTS: u8 = b'm';
const UNMOUNTS: u8 = b'u';
/// Answers, in the first byte.
const DONE: u8 = b'+';
const REFUSED: u8 = b'-';

/// The helper, seen from the server.
#[derive(Debug)]
pub(super) struct MountHelper {
    socket: Mutex<PacketSocket>,
    directories: Vec<PathBuf>,
    helper: Mutex<Child>,
}

impl MountHelper {
    /// Starts the helper for the directories of these options, whose files `owner` (user and group) is to use; none if there are no
    /// directories.
    ///
    /// # Errors
    /// A sentence why it cannot be started, or why a directory cannot be used.
    pub fn start(
        options: &ServerOptions,
        owner: Option<(u32, u32)>,
    ) -> Result<Option<Self>, String> {
        let directory = |address: &headworks_server::Address| match address {
            headworks_server::Address::Directory(path) => Some(path.clone()),
            _ => None,
        };
        let listeners = options.access.listeners.iter();
        let directories: Vec<_> = listeners.filter_map(|spec| directory(&spec.address)).collect();
        if directories.is_empty() {
            return Ok(None);
        }
        let cannot =
            |error: io::Error| format!("the helper that mounts cannot be started: {error}");
        let (socket, end) = PacketSocket::pair().map_err(cannot)?;
        let number = end.as_fd().as_raw_fd();
        let mut helper = Command::new(std::env::current_exe().map_err(cannot)?);
        let owner = owner.map_or_else(String::new, |(user, group)| format!("{user}:{group}"));
        helper.arg(COMMAND).arg(number.to_string()).arg(owner).args(&directories);
        let prepare = move || set_signal_mask(libc::sigfillset).and_then(|()| keep_at_exec(number));
        // SAFETY: between fork and exec only the signal mask and a flag of a descriptor change, by system calls.
        let helper = unsafe { helper.pre_exec(prepare) }.spawn().map_err(cannot)?;
        drop(end);
        let started = Self { socket: Mutex::new(socket), directories, helper: Mutex::new(helper) };
        // It has opened the directories, or says why not.
        started.answer(Instant::now() + TIMEOUT).map(|_| Some(started))
    }

    /// Waits until everything is unmounted.
    pub fn finish(&self) {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        socket.shut_down();
        let until = Instant::now() + TIMEOUT;
        while socket.receive(Some(until)).is_ok() {}
        let mut helper = self.helper.lock().unwrap_or_else(PoisonError::into_inner);
        // Its socket closes a moment before it can be waited for; a helper that hangs is left to init.
        if matches!(helper.try_wait(), Ok(None)) && Instant::now() < until {
            let _ = helper.wait();
        }
    }

    fn ask(&self, request: u8, directory: &Path, file: &str) -> Result<Vec<OwnedFd>, String> {
        let known = self.directories.iter().position(|known| known == directory);
        let number = known.and_then(|place| u8::try_from(place).ok()).ok_or_else(|| {
            "the directory is none of those that the server was started with; restart it".to_owned()
        })?;
        let until = Instant::now() + TIMEOUT;
        let packet = [&[request, number][..], file.as_bytes()].concat();
        {
            let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
            socket.send(&packet, &[], until).map_err(|error| gone(&error))?;
            Self::answer_of(&socket, until)
        }
    }

    fn answer(&self, until: Instant) -> Result<Vec<OwnedFd>, String> {
        Self::answer_of(&self.socket.lock().unwrap_or_else(PoisonError::into_inner), until)
    }

    fn answer_of(socket: &PacketSocket, until: Instant) -> Result<Vec<OwnedFd>, String> {
        let Packet { bytes, descriptors } =
            socket.receive(Some(until)).map_err(|error| gone(&error))?;
        match bytes.split_first() {
            Some((&DONE, _)) => Ok(descriptors),
            Some((_, text)) => Err(String::from_utf8_lossy(text).into_owned()),
            None => Err("the helper that mounts has ended; restart the server".to_owned()),
        }
    }
}

fn gone(error: &dyn std::fmt::Display) -> String {
    format!("the helper that mounts: {error}; restart the server")
}

impl Mounts for MountHelper {
    fn knows(&self, directory: &Path) -> bool {
        self.directories.iter().any(|known| known == directory)
    }

    fn mount(&self, directory: &Path, file: &str) -> Result<OwnedFd, String> {
        let device = self.ask(MOUNTS, directory, file)?.pop();
        device.ok_or_else(|| "the helper that mounts sent no device".to_owned())
    }

    fn unmount(&self, directory: &Path, file: &str) -> Result<(), String> {
        self.ask(UNMOUNTS, directory, file).map(drop)
    }
}

/// Runs the helper process: the arguments are the number of its socket, the numbers of the user and group of its files (empty: its own),
/// and the directories.
pub fn run(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let number = arguments.next().and_then(|word| word.into_string().ok()).unwrap_or_default();
    let Ok(socket) = PacketSocket::inherit(&number) else {
        crate::complain(format!(
            "{COMMAND} is a part of `headworks serve --fuse`, which starts it; see `headworks --help`"
        ));
        return ExitCode::from(crate::USAGE);
    };
    // SAFETY: the name is terminated and static.
    unsafe { libc::prctl(libc::PR_SET_NAME, NAME.as_ptr()) };
    close_others(socket.as_fd().as_raw_fd());
    let owner = arguments.next().and_then(|word| word.into_string().ok()).unwrap_or_default();
    let owner = owner
        .split_once(':')
        .and_then(|(user, group)| Some((user.parse::<u32>().ok()?, group.parse::<u32>().ok()?)));
    let opened = |path: OsString| {
        let opened = MountedFiles::open(Path::new(&path), MOUNT);
        let opened = opened.map(|files| match owner {
            Some(owner) => files.owned_by(owner),
            None => files,
        });
        let shown = path.display();
        opened.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                format!("fuse: there is no directory {shown}; make it first")
            }
            io::ErrorKind::NotADirectory => format!("fuse: {shown} is not a directory"),
            _ => format!("fuse: {shown}: {error}"),
        })
    };
    let directories: Result<Vec<_>, _> = arguments.map(opened).collect();
    let mut directories = match directories {
        Ok(directories) => directories,
        Err(why) => {
            answer(&socket, Err(&why));
            return ExitCode::FAILURE;
        }
    };
    answer(&socket, Ok(None));
    // The wait has no deadline: it ends with the server.
    while let Ok(packet) = socket.receive(None) {
        let outcome = carry_out(&mut directories, &packet.bytes);
        let outcome = outcome.as_ref().map(Option::as_ref).map_err(String::as_str);
        answer(&socket, outcome);
    }
    // Dropped, they unmount what is left.
    drop(directories);
    ExitCode::SUCCESS
}

fn carry_out(directories: &mut [MountedFiles], request: &[u8]) -> Result<Option<OwnedFd>, String> {
    let wrong = || "this is no request of the helper that mounts".to_owned();
    let [kind, number, name @ ..] = request else { return Err(wrong()) };
    let directory = directories.get_mut(usize::from(*number)).ok_or_else(wrong)?;
    let name = std::str::from_utf8(name).map_err(|_| wrong())?;
    match *kind {
        MOUNTS => directory.mount(name).map(Some).map_err(|error| error.to_string()),
        UNMOUNTS => directory.unmount(name).map(|()| None).map_err(|error| error.to_string()),
        _ => Err(wrong()),
    }
}

fn answer(socket: &PacketSocket, outcome: Result<Option<&OwnedFd>, &str>) {
    let until = Instant::now() + TIMEOUT;
    // A server that has ended needs no answer.
    let _ = match outcome {
        Ok(device) => socket.send(&[DONE], device.map(|it| it.as_fd()).as_slice(), until),
        Err(why) => socket.send(&[&[REFUSED][..], why.as_bytes()].concat(), &[], until),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_other_forms_are_refused() {
        let folder = std::env::temp_dir();
        let mut directories = vec![MountedFiles::open(&folder, "hw-test").unwrap()];
        for request in [&b""[..], b"m", b"m\x01a", b"x\x00a", b"m\x00\xff", b"m\x00a/b", b"m\x00.."]
        {
            assert!(carry_out(&mut directories, request).is_err(), "{request:?}");
        }
        assert!(carry_out(&mut directories, b"u\x00a").is_err(), "it is not mounted");
    }
}
