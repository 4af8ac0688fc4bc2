//! A helper process that starts the server's program again.
//!
//! The seccomp filter forbids the server to start programs, and `--user` takes its privileges away; a new process needs both. So
//! the server starts this helper first, before threads, privileges and the filter matter, and asks it later:
//!
//! ```text
//!   server --start, descriptor--> helper --fork, exec--> the same program, arguments, environment, directory
//!          --kill---------------> helper --SIGKILL, wait--'
//!          --end of file--------> helper ends; the started process goes on
//! ```
//!
//! Invariants: no path, argument or variable comes over the socket, so code that runs in the sandboxed server gains only a second
//! start of the same command. The helper has no descriptors but 0 to 2 and its socket: no listener, image or memory stays open in
//! it. It keeps the privileges of the start. No signal but SIGKILL ends it; the end of the server does.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::helper::{close_others, keep_at_exec, set_signal_mask};
use super::packet::{Packet, PacketError, PacketSocket};
use super::{VARIABLE, VARIABLES_OF_ONE_PROCESS};

/// The first argument that makes a process the helper.
pub const COMMAND: &str = "serve-spawner";
/// Name of the process; 15 characters is the most that the kernel keeps.
const NAME: &std::ffi::CStr = c"headworks-spawn";
/// Longest wait for the helper's end when the server ends.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// Requests, in the first byte of a packet; 4 bytes with the number of the request follow, which the answer repeats.
const START: u8 = b's';
const KILL: u8 = b'k';
/// Answers, in the fifth byte.
const DONE: u8 = b'+';
const REFUSED: u8 = b'-';

/// The helper, seen from the server.
#[derive(Debug)]
pub(in crate::serve) struct Spawner {
    socket: PacketSocket,
    /// Number of the latest request. Answers to earlier ones came too late.
    number: Mutex<u32>,
    helper: Child,
}

impl Spawner {
    /// Starts the helper for the command line of this process.
    ///
    /// # Errors
    /// A sentence why it cannot be started.
    pub fn start() -> Result<Self, String> {
        // Asked at the start: later the file may have been replaced.
        let program = std::env::current_exe()
            .map_err(|error| format!("the path of the server's program is unknown: {error}"))?;
        let mut helper = Command::new(&program);
        helper.arg(COMMAND);
        Self::start_with(helper, &program, std::env::args_os())
    }

    /// Starts the helper with the command `helper`; it is to start `program` with `words`, the program's name first.
    fn start_with(
        mut helper: Command,
        program: &Path,
        words: impl Iterator<Item = OsString>,
    ) -> Result<Self, String> {
        let cannot = |error: io::Error| format!("the helper process cannot be started: {error}");
        let (socket, end) = PacketSocket::pair().map_err(cannot)?;
        let number = end.as_fd().as_raw_fd();
        helper.arg(number.to_string()).arg(program).args(words);
        let prepare = move || set_signal_mask(libc::sigfillset).and_then(|()| keep_at_exec(number));
        // SAFETY: between fork and exec only the signal mask and a flag of a descriptor change, by system calls.
        let helper = unsafe { helper.pre_exec(prepare) }.spawn();
        Ok(Self { socket, number: Mutex::new(0), helper: helper.map_err(cannot)? })
    }

    /// Starts the program with a descriptor, which it finds by [`VARIABLE`]; returns the process id.
    ///
    /// # Errors
    /// A sentence why it is not started.
    pub fn spawn(&self, descriptor: &impl AsFd, until: Instant) -> Result<u32, String> {
        let answer = self.ask(START, Some(descriptor.as_fd()), until)?;
        answer.parse().map_err(|_| format!("the helper process answered `{answer}`"))
    }

    /// Ends the process that was started last, and waits for its end.
    ///
    /// # Errors
    /// A sentence why its end is unknown.
    pub fn kill(&self, until: Instant) -> Result<(), String> {
        self.ask(KILL, None, until).map(drop)
    }

    fn ask(
        &self,
        request: u8,
        descriptor: Option<std::os::fd::BorrowedFd>,
        until: Instant,
    ) -> Result<String, String> {
        let gone = |error: PacketError| match error {
            PacketError::Closed => {
                "the helper process that starts programs is gone; restart the server".to_owned()
            }
            error => format!("the helper process that starts programs: {error}"),
        };
        let mut number = self.number.lock().unwrap_or_else(PoisonError::into_inner);
        *number = number.wrapping_add(1);
        let number = number.to_le_bytes();
        let head = [&[request][..], &number].concat();
        self.socket.send(&head, descriptor.as_slice(), until).map_err(gone)?;
        loop {
            let Packet { bytes, .. } = self.socket.receive(Some(until)).map_err(gone)?;
            let Some((answered, [kind, text @ ..])) = bytes.split_first_chunk() else { continue };
            if *answered == number {
                let text = String::from_utf8_lossy(text).into_owned();
                return if *kind == DONE { Ok(text) } else { Err(text) };
            }
        }
    }
}

impl Drop for Spawner {
    /// Ends the helper and waits for it, so that a service manager finds no process behind.
    fn drop(&mut self) {
        self.socket.shut_down();
        let until = Instant::now() + END_TIMEOUT;
        while self.socket.receive(Some(until)).is_ok() {}
        // Its socket closes a moment before it can be waited for; a helper that hangs is left to init.
        if matches!(self.helper.try_wait(), Ok(None)) && Instant::now() < until {
            let _ = self.helper.wait();
        }
    }
}

/// Runs the helper process: the arguments are the number of its socket, the program and the program's arguments.
pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let mut arguments = arguments;
    let number = arguments.next().and_then(|word| word.into_string().ok()).unwrap_or_default();
    let (program, words) = (arguments.next(), arguments.collect());
    match (PacketSocket::inherit(&number), program) {
        (Ok(socket), Some(program)) => {
            let helper = Helper { socket, program: program.into(), words, started: None };
            helper.run()
        }
        _ => {
            crate::complain(format!(
                "{COMMAND} is a part of `headworks serve --control`, which starts it; see `headworks --help`"
            ));
            ExitCode::from(crate::USAGE)
        }
    }
}

/// The helper, seen from within.
struct Helper {
    socket: PacketSocket,
    program: PathBuf,
    /// Arguments with the program's name first.
    words: Vec<OsString>,
    started: Option<Child>,
}

impl Helper {
    fn run(mut self) -> ExitCode {
        // SAFETY: the name is terminated and static.
        unsafe { libc::prctl(libc::PR_SET_NAME, NAME.as_ptr()) };
        close_others(self.socket.as_fd().as_raw_fd());
        // The wait has no deadline: it ends with the server.
        while let Ok(packet) = self.socket.receive(None) {
            let Some((number, result)) = self.answer(packet) else { continue };
            let (kind, text) = match &result {
                Ok(text) => (DONE, text),
                Err(text) => (REFUSED, text),
            };
            let answer = [&number[..], &[kind], text.as_bytes()].concat();
            let until = Instant::now() + END_TIMEOUT;
            if self.socket.send(&answer, &[], until).is_err() {
                break;
            }
        }
        ExitCode::SUCCESS
    }

    /// Carries out a request; none for a packet that is no request.
    fn answer(&mut self, packet: Packet) -> Option<([u8; 4], Result<String, String>)> {
        let Packet { bytes, descriptors } = packet;
        let (kind, number) = bytes.split_first()?;
        let number: [u8; 4] = number.try_into().ok()?;
        let result = match (*kind, <[OwnedFd; 1]>::try_from(descriptors)) {
            (START, Ok([descriptor])) => self.start(&descriptor),
            (KILL, Err(none)) if none.is_empty() => self.kill().map(|()| String::new()),
            _ => Err("this is no request of the helper process".into()),
        };
        Some((number, result))
    }

    fn start(&mut self, descriptor: &OwnedFd) -> Result<String, String> {
        if let Some(child) = &mut self.started
            && matches!(child.try_wait(), Ok(None))
        {
            return Err(format!("process {} still runs", child.id()));
        }
        let fd = descriptor.as_raw_fd();
        let mut command = Command::new(&self.program);
        if let Some((name, rest)) = self.words.split_first() {
            command.arg0(name).args(rest);
        }
        for name in VARIABLES_OF_ONE_PROCESS {
            command.env_remove(name);
        }
        command.env(VARIABLE, fd.to_string());
        let prepare = move || set_signal_mask(libc::sigemptyset).and_then(|()| keep_at_exec(fd));
        // SAFETY: between fork and exec only the signal mask and a flag of a descriptor change, by system calls.
        let child = unsafe { command.pre_exec(prepare) }
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", self.program.display()))?;
        let id = child.id();
        self.started = Some(child);
        Ok(id.to_string())
    }

    fn kill(&mut self) -> Result<(), String> {
        let Some(mut child) = self.started.take() else { return Ok(()) };
        // Fails for a process that has ended.
        let _ = child.kill();
        child.wait().map(drop).map_err(|error| format!("cannot wait for its end: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::os::fd::RawFd;
    use std::os::unix::net::UnixStream;

    /// Variables that make the test below a helper, and a started program.
    const ROLE: &str = "HEADWORKS_TEST_OF_SPAWNER";

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// The test program itself plays the helper, and the program that the helper starts.
    fn spawner(role: &str, program: &Path) -> Spawner {
        let name = "serve::upgrade::spawner::tests::process_of_other_tests";
        let test = ["t", name, "--exact", "--nocapture", "--test-threads=1"].map(OsString::from);
        let mut helper = Command::new(std::env::current_exe().unwrap());
        helper.args(&test[1..]).arg("--").env(ROLE, role).stdout(std::process::Stdio::null());
        helper.env("LISTEN_FDS", "3").env("NOTIFY_SOCKET", "/n").env("WATCHDOG_PID", "1");
        Spawner::start_with(helper, program, test.into_iter()).unwrap()
    }

    fn spawner_of_this(role: &str) -> Spawner {
        spawner(role, &std::env::current_exe().unwrap())
    }

    /// Does nothing by itself: other tests start it as a process of its own.
    #[test]
    fn process_of_other_tests() {
        let Ok(role) = std::env::var(ROLE) else { return };
        if let Ok(number) = std::env::var(VARIABLE) {
            // The started program: reports on the descriptor, then waits for its end.
            let number: RawFd = number.parse().unwrap();
            // SAFETY: the helper passed it.
            let mut stream = UnixStream::from(unsafe {
                <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(number)
            });
            writeln!(stream, "{}", report(number)).unwrap();
            if role == "stays" {
                let _ = stream.read(&mut [0]);
            }
            std::process::exit(0);
        }
        let words: Vec<OsString> = std::env::args_os().skip_while(|word| word != "--").collect();
        // SAFETY: duplicates an open descriptor into one that the helper is to close.
        unsafe { libc::dup(0) };
        run(words.into_iter().skip(1));
        std::process::exit(0);
    }

    /// What a process finds at its start.
    fn report(number: RawFd) -> String {
        let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let open = open.filter_map(|entry| {
            let fd: RawFd = entry.file_name().to_str()?.parse().ok()?;
            let target = std::fs::read_link(entry.path()).ok()?;
            // The directory that is read.
            (fd > 2 && fd != number && !target.starts_with("/proc")).then_some(target)
        });
        // Of this thread: the main thread of the harness blocks signals while it starts others.
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let of = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or("?").trim().to_owned()
        };
        // The helper runs in a thread of the test harness here, and so has the name of a thread.
        let tasks = std::fs::read_dir(format!("/proc/{}/task", of("PPid:"))).unwrap().flatten();
        let names = tasks.map(|task| std::fs::read_to_string(task.path().join("comm")).unwrap());
        let parent =
            names.map(|name| name.trim().to_owned()).find(|name| name == "headworks-spawn");
        let set = |name: &str| u8::from(std::env::var_os(name).is_some());
        let variables = ["LISTEN_FDS", "WATCHDOG_PID", "NOTIFY_SOCKET"].map(set);
        let others: Vec<_> = open.collect();
        let blocked = of("SigBlk:");
        format!("{others:?} {variables:?} {parent:?} {blocked}")
    }

    fn line(stream: &UnixStream) -> String {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    #[test]
    fn started_program_has_its_descriptor_and_nothing_else() {
        let spawner = spawner_of_this("stays");
        let (ours, theirs) = UnixStream::pair().unwrap();
        let id = spawner.spawn(&theirs, soon()).unwrap();
        drop(theirs);
        assert_eq!(line(&ours), "[] [0, 0, 1] Some(\"headworks-spawn\") 0000000000000000");
        let again = spawner.spawn(&ours, soon()).unwrap_err();
        assert_eq!(again, format!("process {id} still runs"));
        // Alive, and ended when `kill` has returned.
        let state = Path::new("/proc").join(id.to_string());
        assert!(state.exists());
        spawner.kill(soon()).unwrap();
        assert!(!state.exists());
        assert_eq!((&ours).read(&mut [0]).unwrap(), 0, "the helper keeps no copy");
        spawner.kill(soon()).unwrap();
    }

    #[test]
    fn ended_program_makes_room_for_the_next() {
        let spawner = spawner_of_this("ends");
        for _ in 0..2 {
            let (ours, theirs) = UnixStream::pair().unwrap();
            spawner.spawn(&theirs, soon()).unwrap();
            drop(theirs);
            line(&ours);
            assert_eq!((&ours).read(&mut [0]).unwrap(), 0);
            spawner.kill(soon()).unwrap();
        }
    }

    #[test]
    fn helper_survives_signals_and_ends_with_the_server() {
        let mut spawner = spawner_of_this("stays");
        let (ours, theirs) = UnixStream::pair().unwrap();
        let id = spawner.spawn(&theirs, soon()).unwrap();
        drop(theirs);
        line(&ours);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1] {
            // SAFETY: the helper has not been waited for, so the id is its own.
            assert_eq!(unsafe { libc::kill(spawner.helper.id() as i32, signal) }, 0);
        }
        assert!(spawner.spawn(&ours, soon()).unwrap_err().contains("still runs"));
        spawner.socket.shut_down();
        assert!(spawner.helper.wait().unwrap().success());
        let gone = spawner.kill(soon()).unwrap_err();
        assert!(gone.contains("is gone; restart the server"), "{gone}");
        // The started process goes on.
        assert!(Path::new("/proc").join(id.to_string()).exists());
        drop(ours);
    }

    #[test]
    fn missing_program_is_named() {
        let spawner = spawner("stays", Path::new("/nonexistent/headworks"));
        let null = File::open("/dev/null").unwrap();
        let error = spawner.spawn(&null, soon()).unwrap_err();
        assert!(error.starts_with("cannot start /nonexistent/headworks: No such file"), "{error}");
    }

    #[test]
    fn other_requests_are_refused() {
        let spawner = spawner_of_this("stays");
        let null = File::open("/dev/null").unwrap();
        for (request, fd) in [(b'x', None), (START, None), (KILL, Some(null.as_fd()))] {
            let error = spawner.ask(request, fd, soon()).unwrap_err();
            assert_eq!(error, "this is no request of the helper process");
        }
        // Without a number there is nothing to answer.
        spawner.socket.send(b"s", &[], soon()).unwrap();
        spawner.kill(soon()).unwrap();
    }
}
