//! The recorded run: mounts, `--setup`, the checkpoint, `--run` and its lines.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use headworks_crash::{
    Directory, Disk, Limits, Record, RecordWriter, Recording, SharedRecording, Tree, lock,
};

use super::super::arguments::CrashtestArgs;
use super::super::child::{kill_group, wait};
use super::workplace::{NAME, Workplace, size};

/// Bytes of a line at most; the rest is a line of its own.
const LINE_MAX: u64 = 64 << 10;
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

/// Mounts every disk of a record on the mount points of its names, with a prefix.
pub fn mount(
    place: &Workplace,
    record: Record,
    limits: Limits,
    prefix: &str,
) -> Result<Mounted, String> {
    let access = place.access()?;
    let names: Vec<String> = record.disks.iter().map(|disk| disk.name.clone()).collect();
    let recording = Arc::new(Mutex::new(Recording::new(record, limits)));
    let mut directories = Vec::new();
    let mut paths = Vec::new();
    for (index, name) in names.into_iter().enumerate() {
        let path = place.mount_point(&format!("{prefix}{name}"))?;
        let directory = Directory::mount(access, &path, NAME, &recording, index);
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
    let mounted = mount(place, empty_record(options), limits, "")?;
    if let Some(setup) = &options.setup {
        let status = run(options, place, &mounted, setup, "setup.log", false)?;
        if !status.success() {
            return Err(format!("the setup fails: {status}{}", end_of_log(place, "setup.log")));
        }
    }
    mounted.paths.iter().for_each(|(_, path)| write_mapped_pages(path));
    let open = |record: &Record| match &options.files.record {
        Some(file) => RecordWriter::new(File::create(file)?, record).map(Some),
        None => Ok(None),
    };
    lock(&mounted.recording)
        .checkpoint(open)
        .map_err(|error| format!("the record cannot be written: {error}"))?;
    let status = run(options, place, &mounted, options.program(), "run.log", true)?;
    let mut recording = lock(&mounted.recording);
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
    let record =
        recording.close().map_err(|error| format!("the record cannot be written: {error}"))?;
    match record.counts().changes {
        0 => Err("the program changed nothing: it gets its directory as $dir".into()),
        _ => Ok(record),
    }
}

fn empty_record(options: &CrashtestArgs) -> Record {
    let mut disks = vec![Disk { name: "dir".into(), keeps_all: false }];
    if options.files.dirs > 1 {
        disks.push(Disk { name: "dir2".into(), keeps_all: false });
    }
    disks.push(Disk { name: "state".into(), keeps_all: true });
    // SAFETY: these calls have no preconditions.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let trees = disks.iter().map(|_| Tree::new(uid, gid)).collect();
    let mut record = Record::new(disks, trees);
    let commands = [("setup", &options.setup), ("run", &options.run), ("check", &options.check)];
    let given = commands.into_iter().filter_map(|(name, command)| Some((name, command.as_ref()?)));
    record.commands = given.map(|(name, command)| (name.to_owned(), command.clone())).collect();
    record
}

/// Runs a command with its directories; its lines are promises if it `promises`.
fn run(
    options: &CrashtestArgs,
    place: &Workplace,
    mounted: &Mounted,
    command: &str,
    log: &str,
    promises: bool,
) -> Result<ExitStatus, String> {
    let failed = |error: std::io::Error| format!("`{command}` cannot be run: {error}");
    let errors = File::create(place.file(log)).map_err(failed)?;
    let output = match promises {
        true => Stdio::piped(),
        false => errors.try_clone().map_err(failed)?.into(),
    };
    let mut child = shell(command, &mounted.paths)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .spawn()
        .map_err(failed)?;
    let lines = child.stdout.take().map(|output| record_lines(output, &mounted.recording));
    let limit = Duration::from_nanos(options.timeout);
    let ended = wait(&mut child, limit);
    // What is left of the program ends with its machine.
    kill_group(&child);
    if let Some(lines) = lines {
        // A line that comes later is demanded of no state.
        let _ = lines.recv_timeout(LAST_LINES);
    }
    ended.map_err(failed)?.ok_or_else(|| {
        format!(
            "`{command}` did not end within {} s: --timeout gives it longer",
            limit.as_secs_f64()
        )
    })
}

/// A command of the shell in a process group of its own, with a variable for each directory.
pub fn shell(command: &str, paths: &[(String, PathBuf)]) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", command]).process_group(0);
    shell.envs(paths.iter().map(|(name, path)| (name, path)));
    shell
}

/// Records lines as they come. What it returns ends with the last of them.
fn record_lines(output: ChildStdout, recording: &SharedRecording) -> mpsc::Receiver<()> {
    let (end, ended) = mpsc::channel();
    let recording = Arc::clone(recording);
    std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while matches!((&mut output).take(LINE_MAX).read_until(b'\n', &mut line), Ok(1..)) {
            let text = line.strip_suffix(b"\n").unwrap_or(&line);
            lock(&recording).line(text);
            line.clear();
        }
        drop(end);
    });
    ended
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
