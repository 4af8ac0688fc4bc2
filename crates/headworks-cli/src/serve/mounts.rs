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
//! The helper goes from process to process in an upgrade, by its socket: it knows how each file was mounted, and its socket ends with the last process that
//! has it, however the upgrade ends. So an upgrade unmounts nothing and leaves nothing, and a new process starts helpers for new directories alone. Each request has
//! a number that its answer repeats: an answer that came too late for one process is not that to the next one's request.
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
use std::sync::atomic::{AtomicBool, Ordering};
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

/// Bytes of a request's number.
const NUMBER: usize = 8;
/// Requests, in the byte behind a packet's number; the number of the directory and the name of the file follow.
const MOUNTS: u8 = b'm';
const UNMOUNTS: u8 = b'u';
/// Answers, in the byte behind the number of the request; the first answer is to no request and has the number 0.
const DONE: u8 = b'+';
const REFUSED: u8 = b'-';

/// A helper for another process.
#[derive(Debug)]
pub(super) struct HandedHelper {
    /// The way to it.
    pub socket: PacketSocket,
    /// The directories that it was started with, in the order of their numbers.
    pub directories: Vec<PathBuf>,
    /// User and group of its files; none for its own.
    pub owner: Option<(u32, u32)>,
}

/// The helpers, seen from the server: one that it has started, and those of the processes before it.
#[derive(Debug)]
pub(super) struct MountHelpers(Vec<MountHelper>);

impl MountHelpers {
    /// Takes helpers of the process that is replaced, and starts one for the directories of these options that they do not have; none if there
    /// are no directories. `owner` (user and group) is to use the files. A helper that has none of the directories is left to its end, which is
    /// that of the other process.
    ///
    /// # Errors
    /// A sentence why it cannot be started, why a directory cannot be used, or why a helper cannot be taken.
    pub fn start(
        options: &ServerOptions,
        owner: Option<(u32, u32)>,
        handed: Vec<HandedHelper>,
    ) -> Result<Option<Self>, String> {
        let directory = |address: &headworks_server::Address| match address {
            headworks_server::Address::Directory(path) => Some(path.clone()),
            _ => None,
        };
        let listeners = options.access.listeners.iter();
        let mut directories: Vec<_> =
            listeners.filter_map(|spec| directory(&spec.address)).collect();
        let mut helpers = Vec::new();
        for HandedHelper { socket, directories: known, owner: its } in handed {
            if !directories.iter().any(|path| known.contains(path)) {
                continue;
            }
            if its != owner {
                return Err("the user of the files of FUSE was changed (--user): restart the server instead".to_owned());
            }
            directories.retain(|path| !known.contains(path));
            let helper = MountHelper {
                socket,
                directories: known,
                owner,
                helper: None,
                requests: Mutex::new(first_request()),
                is_finishing: AtomicBool::new(false),
            };
            helpers.push(helper);
        }
        if !directories.is_empty() {
            helpers.push(MountHelper::start(directories, owner)?);
        }
        Ok((!helpers.is_empty()).then_some(Self(helpers)))
    }

    /// The helpers for another process.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn hand_over(&self) -> io::Result<Vec<HandedHelper>> {
        self.0.iter().map(MountHelper::hand_over).collect()
    }

    /// Waits until everything is unmounted.
    pub fn finish(&self) {
        self.0.iter().for_each(MountHelper::finish);
    }

    fn helper_of(&self, directory: &Path) -> Result<&MountHelper, String> {
        let found =
            self.0.iter().find(|helper| helper.directories.iter().any(|it| it == directory));
        found.ok_or_else(|| {
            "the directory is none of those that the server was started with; restart it".to_owned()
        })
    }
}

impl Mounts for MountHelpers {
    fn knows(&self, directory: &Path) -> bool {
        self.helper_of(directory).is_ok()
    }

    fn mount(&self, directory: &Path, file: &str) -> Result<OwnedFd, String> {
        let device = self.helper_of(directory)?.ask(MOUNTS, directory, file)?.pop();
        device.ok_or_else(|| "the helper that mounts sent no device".to_owned())
    }

    fn unmount(&self, directory: &Path, file: &str) -> Result<(), String> {
        let helper = self.helper_of(directory)?;
        match helper.ask(UNMOUNTS, directory, file) {
            // A directory whose thread is a moment later than the end of the server: no failure to be told of.
            Err(_) if helper.is_finishing.load(Ordering::Acquire) => Ok(()),
            answer => answer.map(drop),
        }
    }
}

/// A number that no request of another process has.
fn first_request() -> u64 {
    u64::from(std::process::id()) << 32
}

/// A helper, seen from the server.
#[derive(Debug)]
struct MountHelper {
    socket: PacketSocket,
    directories: Vec<PathBuf>,
    owner: Option<(u32, u32)>,
    /// The process; none that another one has started.
    helper: Option<Mutex<Child>>,
    /// Number of the last request, whose answer is awaited while this is locked.
    requests: Mutex<u64>,
    /// The server ends: the helper unmounts everything and answers nothing more.
    is_finishing: AtomicBool,
}

impl MountHelper {
    fn start(directories: Vec<PathBuf>, owner: Option<(u32, u32)>) -> Result<Self, String> {
        let cannot =
            |error: io::Error| format!("the helper that mounts cannot be started: {error}");
        let (socket, end) = PacketSocket::pair().map_err(cannot)?;
        let number = end.as_fd().as_raw_fd();
        let mut helper = Command::new(std::env::current_exe().map_err(cannot)?);
        let shown = owner.map_or_else(String::new, |(user, group)| format!("{user}:{group}"));
        helper.arg(COMMAND).arg(number.to_string()).arg(shown).args(&directories);
        let prepare = move || set_signal_mask(libc::sigfillset).and_then(|()| keep_at_exec(number));
        // SAFETY: between fork and exec only the signal mask and a flag of a descriptor change, by system calls.
        let helper = unsafe { helper.pre_exec(prepare) }.spawn().map_err(cannot)?;
        drop(end);
        // It has opened the directories, or says why not.
        Self::answer_of(&socket, 0, Instant::now() + TIMEOUT)?;
        Ok(Self {
            socket,
            directories,
            owner,
            helper: Some(Mutex::new(helper)),
            requests: Mutex::new(first_request()),
            is_finishing: AtomicBool::new(false),
        })
    }

    fn hand_over(&self) -> io::Result<HandedHelper> {
        let socket = PacketSocket::adopt(self.socket.duplicate()?).map_err(io::Error::other)?;
        Ok(HandedHelper { socket, directories: self.directories.clone(), owner: self.owner })
    }

    fn finish(&self) {
        let socket = &self.socket;
        // Before the helper can end: what is asked for from here on it does of itself.
        self.is_finishing.store(true, Ordering::Release);
        socket.shut_down();
        let until = Instant::now() + TIMEOUT;
        while socket.receive(Some(until)).is_ok() {}
        let Some(helper) = &self.helper else { return };
        let mut helper = helper.lock().unwrap_or_else(PoisonError::into_inner);
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
        let mut count = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *count += 1;
        let packet = [&count.to_le_bytes()[..], &[request, number], file.as_bytes()].concat();
        self.socket.send(&packet, &[], until).map_err(|error| gone(&error))?;
        Self::answer_of(&self.socket, *count, until)
    }

    fn answer_of(
        socket: &PacketSocket,
        count: u64,
        until: Instant,
    ) -> Result<Vec<OwnedFd>, String> {
        loop {
            let received = socket.receive(Some(until));
            let Packet { bytes, descriptors } = received.map_err(|error| gone(&error))?;
            let Some((number, answer)) = bytes.split_first_chunk::<NUMBER>() else {
                return Err(gone(&"it answers what is no answer"));
            };
            if u64::from_le_bytes(*number) != count {
                // It came too late: its request was given up.
                continue;
            }
            return match answer.split_first() {
                Some((&DONE, _)) => Ok(descriptors),
                _ => Err(String::from_utf8_lossy(answer.get(1..).unwrap_or_default()).into_owned()),
            };
        }
    }
}

fn gone(error: &dyn std::fmt::Display) -> String {
    format!("the helper that mounts: {error}; restart the server")
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
            answer(&socket, 0, Err(&why));
            return ExitCode::FAILURE;
        }
    };
    answer(&socket, 0, Ok(None));
    // The wait has no deadline: it ends with the last process that has the other end.
    while let Ok(packet) = socket.receive(None) {
        let Some((count, request)) = packet.bytes.split_first_chunk::<NUMBER>() else { continue };
        let outcome = carry_out(&mut directories, request);
        let outcome = outcome.as_ref().map(Option::as_ref).map_err(String::as_str);
        answer(&socket, u64::from_le_bytes(*count), outcome);
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

fn answer(socket: &PacketSocket, count: u64, outcome: Result<Option<&OwnedFd>, &str>) {
    let until = Instant::now() + TIMEOUT;
    let (kind, why) = match outcome {
        Ok(_) => (DONE, ""),
        Err(why) => (REFUSED, why),
    };
    let packet = [&count.to_le_bytes()[..], &[kind], why.as_bytes()].concat();
    let device = outcome.ok().flatten().map(|device| device.as_fd());
    // A server that has ended needs no answer.
    let _ = socket.send(&packet, device.as_slice(), until);
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_server::ListenerSpec;

    /// A helper of another process for these directories, and its end.
    fn handed(directories: &[&str], owner: Option<(u32, u32)>) -> (HandedHelper, PacketSocket) {
        let (socket, end) = PacketSocket::pair().unwrap();
        let directories = directories.iter().map(PathBuf::from).collect();
        (HandedHelper { socket, directories, owner }, end)
    }

    fn options(directory: &str) -> ServerOptions {
        let mut options = ServerOptions::default();
        options.access.listeners = vec![ListenerSpec {
            name: "files".to_owned(),
            kind: headworks_server::ListenerKind::Fuse,
            address: headworks_server::Address::Directory(directory.into()),
            owner: None,
            exports: Vec::new(),
            tenant: None,
            tls: headworks_nbd::tls::TlsOptions::default(),
        }];
        options
    }

    #[test]
    fn answer_that_came_too_late_is_not_that_to_another_process() {
        let (helper, end) = handed(&["/a", "/b"], None);
        let helpers = MountHelpers::start(&options("/b"), None, vec![helper]).unwrap().unwrap();
        assert!(helpers.knows(Path::new("/a")), "its files may be unmounted");
        // To the process before.
        answer(&end, 7, Ok(Some(&std::fs::File::open("/dev/null").unwrap().into())));
        let served = std::thread::spawn(move || {
            let request = end.receive(None).unwrap().bytes;
            let (count, request) = request.split_first_chunk::<NUMBER>().unwrap();
            assert_eq!(request, b"m\x01x");
            answer(&end, u64::from_le_bytes(*count), Err("it is full"));
            end
        });
        assert_eq!(helpers.mount(Path::new("/b"), "x").unwrap_err(), "it is full");
        drop(served.join().unwrap());
        assert!(helpers.unmount(Path::new("/a"), "x").unwrap_err().contains("restart the server"));
        assert!(helpers.mount(Path::new("/c"), "x").unwrap_err().contains("none of those"));
    }

    #[test]
    fn unmount_at_the_end_of_the_server_is_left_to_the_helper() {
        let (helper, end) = handed(&["/a"], None);
        let helpers = MountHelpers::start(&options("/a"), None, vec![helper]).unwrap().unwrap();
        drop(end);
        assert!(helpers.unmount(Path::new("/a"), "x").is_err(), "it has ended before");
        helpers.finish();
        assert_eq!(helpers.unmount(Path::new("/a"), "x"), Ok(()));
    }

    #[test]
    fn helper_without_a_use_or_with_other_owners_is_not_taken() {
        let (helper, end) = handed(&["/a"], None);
        assert!(
            MountHelpers::start(&ServerOptions::default(), None, vec![helper]).unwrap().is_none()
        );
        assert!(
            end.receive(None).is_err(),
            "it unmounts when its socket is closed in every process"
        );
        let (helper, _end) = handed(&["/a"], Some((1, 1)));
        let error = MountHelpers::start(&options("/a"), None, vec![helper]).unwrap_err();
        assert!(error.contains("--user"), "{error}");
    }

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
