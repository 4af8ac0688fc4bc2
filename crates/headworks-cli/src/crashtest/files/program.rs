//! The recorded run: mounts, `--setup`, the checkpoint, `--run` and its lines.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use headworks_crash::{
    Directory, Disk, Limits, MountUser, Record, RecordWriter, Recording, SharedRecording, Tree,
    lock,
};

use super::super::arguments::CrashtestArgs;
use super::super::child::{kill_group, wait};
use super::workplace::{NAME, Workplace, size};

/// Bytes of a line at most; the rest is a line of its own.
const LINE_MAX: usize = 64 << 10;
/// Time for the last lines of a program that has ended.
const LAST_LINES: Duration = Duration::from_secs(5);
/// Lines of a log that an error shows.
const SHOWN_LINES: usize = 10;

/// Directories that are mounted, with the names of their variables.
pub struct Mounted {
    pub paths: Vec<(String, PathBuf)>,
    pub recording: SharedRecording,
    _directories: Vec<Directory>,
}

/// Mounts every directory of a record on the mount point of its name, with a prefix; an image is none.
pub fn mount(
    place: &Workplace,
    record: Record,
    limits: Limits,
    prefix: &str,
    user: MountUser,
) -> Result<Mounted, String> {
    let directories_of = record.disks.iter().enumerate().filter(|(_, disk)| !disk.is_image());
    let names: Vec<(usize, String)> =
        directories_of.map(|(index, disk)| (index, disk.name.clone())).collect();
    let recording = Arc::new(Mutex::new(Recording::new(record, limits)));
    let mut directories = Vec::new();
    let mut paths = Vec::new();
    for (index, name) in names {
        let access = place.access()?;
        let path = place.mount_point(&format!("{prefix}{name}"))?;
        let directory = Directory::mount(access, (&path, NAME), (&recording, index), user);
        directories.push(
            directory.map_err(|error| format!("{} cannot be mounted: {error}", path.display()))?,
        );
        paths.push((name, path));
    }
    Ok(Mounted { paths, recording, _directories: directories })
}

/// Runs the program once, and returns what it did.
pub fn record(options: &CrashtestArgs, place: &Workplace) -> Result<Record, String> {
    let limits = Limits { size: size(options), record: options.files.record_max };
    let mounted = mount(place, empty_record(options), limits, "", MountUser::Program)?;
    if let Some(setup) = &options.setup {
        set_up(options, place, &mounted, shell(setup, &mounted.paths), setup)?;
    }
    mounted.paths.iter().for_each(|(_, path)| write_mapped_pages(path));
    checkpoint(options, &mounted)?;
    let command = shell(options.program(), &mounted.paths);
    let record = recorded(options, place, &mounted, command)?;
    match record.counts().changes {
        0 => Err("the program changed nothing: it gets its directory as $dir".into()),
        _ => Ok(record),
    }
}

/// Runs the setup, as this command.
pub fn set_up(
    options: &CrashtestArgs,
    place: &Workplace,
    mounted: &Mounted,
    command: Command,
    shown: &str,
) -> Result<(), String> {
    match run(options, place, mounted, (command, shown), "setup.log", false)? {
        status if status.success() => Ok(()),
        status => Err(format!("the setup fails: {status}{}", end_of_log(place, "setup.log"))),
    }
}

/// What there is now is durable, and what follows is recorded.
pub fn checkpoint(options: &CrashtestArgs, mounted: &Mounted) -> Result<(), String> {
    let open = |record: &Record| match &options.files.record {
        Some(file) => RecordWriter::new(File::create(file)?, record).map(Some),
        None => Ok(None),
    };
    lock(&mounted.recording)
        .checkpoint(open)
        .map_err(|error| format!("the record cannot be written: {error}"))
}

/// Runs the program, as this command, and returns its record.
pub fn recorded(
    options: &CrashtestArgs,
    place: &Workplace,
    mounted: &Mounted,
    command: Command,
) -> Result<Record, String> {
    let shown = options.program();
    let status = run(options, place, mounted, (command, shown), "run.log", true)?;
    let mut recording = lock(&mounted.recording);
    recording.take_lines();
    if recording.overflowed() {
        return Err(format!(
            "the record has more than {} bytes: let the program do less, or give it --record-max",
            options.files.record_max
        ));
    }
    if !status.success() {
        return Err(format!(
            "the program fails without a power cut: {status}{}",
            end_of_log(place, "run.log")
        ));
    }
    recording.close().map_err(|error| format!("the record cannot be written: {error}"))
}

fn empty_record(options: &CrashtestArgs) -> Record {
    let mut disks = vec![Disk { name: "dir".into(), keeps_all: false }];
    if options.files.dirs > 1 {
        disks.push(Disk { name: "dir2".into(), keeps_all: false });
    }
    disks.push(Disk { name: "state".into(), keeps_all: true });
    empty_record_of(options, disks)
}

/// A record of these disks, which are empty, with the commands of the test.
pub fn empty_record_of(options: &CrashtestArgs, disks: Vec<Disk>) -> Record {
    // SAFETY: these calls have no preconditions.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let trees = disks.iter().map(|_| Tree::new(uid, gid)).collect();
    let mut record = Record::new(disks, trees);
    let commands = [("setup", &options.setup), ("run", &options.run), ("check", &options.check)];
    let given = commands.into_iter().filter_map(|(name, command)| Some((name, command.as_ref()?)));
    record.commands = given.map(|(name, command)| (name.to_owned(), command.clone())).collect();
    record
}

/// Runs a command, which is shown as a text; its lines are promises if it `promises`.
fn run(
    options: &CrashtestArgs,
    place: &Workplace,
    mounted: &Mounted,
    (mut command, shown): (Command, &str),
    log: &str,
    promises: bool,
) -> Result<ExitStatus, String> {
    let failed = |error: std::io::Error| format!("`{shown}` cannot be run: {error}");
    let errors = File::create(place.file(log)).map_err(failed)?;
    let output = match promises {
        true => Stdio::piped(),
        false => errors.try_clone().map_err(failed)?.into(),
    };
    let mut child =
        command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn().map_err(failed)?;
    let lines = child.stdout.take().map(|output| record_lines(output, &mounted.recording));
    let lines = lines.transpose().map_err(failed)?;
    let limit = Duration::from_nanos(options.timeout);
    let ended = wait(&mut child, limit);
    // What is left of the program ends with its machine.
    kill_group(&child);
    if let Some(lines) = lines {
        // A line that comes later is demanded of no state.
        let _ = lines.recv_timeout(LAST_LINES);
    }
    ended.map_err(failed)?.ok_or_else(|| {
        format!("`{shown}` did not end within {} s: --timeout gives it longer", limit.as_secs_f64())
    })
}

/// A command of the shell in a process group of its own, with a variable for each directory.
pub fn shell(command: &str, paths: &[(String, PathBuf)]) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", command]).process_group(0);
    shell.envs(paths.iter().map(|(name, path)| (name, path)));
    shell
}

/// Lines of a program, read without waiting.
struct Lines {
    output: ChildStdout,
    buffer: Vec<u8>,
    ended: Arc<AtomicBool>,
}

impl Lines {
    /// The next whole line; at the end also the last one without its end.
    fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer[..end].to_vec();
                self.buffer.drain(..=end);
                return Some(line);
            }
            let mut part = [0; 4096];
            match self.output.read(&mut part) {
                Ok(read @ 1..) => self.buffer.extend_from_slice(&part[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    let long = self.buffer.len() >= LINE_MAX;
                    return long.then(|| std::mem::take(&mut self.buffer));
                }
                // The end, or an error, which is one.
                _ => {
                    // Release: pairs with the Acquire of the thread that waits for the end.
                    self.ended.store(true, Ordering::Release);
                    return Some(std::mem::take(&mut self.buffer)).filter(|rest| !rest.is_empty());
                }
            }
            if self.buffer.len() >= LINE_MAX {
                return Some(std::mem::take(&mut self.buffer));
            }
        }
    }
}

/// Records lines: before each request of the directories, and by a thread of its own, so that a program which prints alone does not fill
/// the pipe. What it returns ends with the last of them.
fn record_lines(
    output: ChildStdout,
    recording: &SharedRecording,
) -> std::io::Result<mpsc::Receiver<()>> {
    let watched = output.as_fd().try_clone_to_owned()?;
    // SAFETY: flags of a descriptor that is open; the program's end of the pipe has flags of its own.
    if unsafe { libc::fcntl(output.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let ended = Arc::new(AtomicBool::new(false));
    let mut lines = Lines { output, buffer: Vec::new(), ended: Arc::clone(&ended) };
    lock(recording).listen(move || lines.next());
    let (end, receiver) = mpsc::channel();
    let recording = Arc::clone(recording);
    std::thread::spawn(move || {
        // Acquire: pairs with the Release of the reader.
        while !ended.load(Ordering::Acquire) {
            let mut poll =
                libc::pollfd { fd: watched.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one descriptor that is open during the call.
            unsafe { libc::poll(&raw mut poll, 1, -1) };
            lock(&recording).take_lines();
        }
        drop(end);
    });
    Ok(receiver)
}

/// Lets the kernel send what the setup stored into mappings.
fn write_mapped_pages(path: &Path) {
    if let Ok(directory) = File::open(path) {
        // SAFETY: the descriptor is open during the call.
        unsafe { libc::syncfs(directory.as_raw_fd()) };
    }
}

/// The last lines of a log, each on a line of its own, and where it is.
fn end_of_log(place: &Workplace, log: &str) -> String {
    let bytes = std::fs::read(place.file(log)).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(SHOWN_LINES)..];
    match last {
        [] => "; it said nothing".to_owned(),
        _ => format!("; see {}: {}", place.shown(log), last.join(" | ")),
    }
}
