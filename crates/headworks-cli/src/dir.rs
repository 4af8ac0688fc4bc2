//! `headworks dir`: a program in a directory that takes the time of a modelled disk, without root.
//!
//! The directory is in memory and is mounted for the program alone where the process has a mount namespace of its own; it ends with the
//! program, whose exit status is passed on. If this process is killed, the program is killed too, and a namespace ends with its last process;
//! a mount by fusermount3 stays, answers ENOTCONN, and is undone by the next start.
//!
//! Exit codes: that of the program, 128 and its number after a signal; 125 the directory could not be made, 126 the program cannot be run,
//! 127 there is no such program.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};

use clap::Args;
use headworks_crash::{
    Access, SlowDirectory, SlowDisk, SlowMount, SlowOptions, SlowReport, Tree, Waits, read_tree,
    remove_stale,
};
use headworks_server::{Model, parse_size};
use serde_json::json;

use crate::{complain, shown};

/// Name of the mounts in the table of mounts.
const NAME: &str = "headworks-dir";
/// Exit codes of env(1) for what is not the program's.
const FAILED: u8 = 125;
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;
/// The smallest file system.
const SIZE_MIN: u64 = 1 << 20;
/// Part of the disk's time by which answers may be late before the figures are the machine's.
const LATE_PART: u64 = 20;

/// Runs a program in a directory that takes the time of a modelled disk
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct DirArgs {
    /// Directory to mount on: an empty one, or a name that does not exist yet
    mount: PathBuf,
    /// The disk: model:profile=hdd-7200 and its keys without `of`, or its profile alone (`headworks disks` lists them)
    #[arg(long, value_name = "DISK")]
    disk: String,
    /// Room for all files, which are in memory
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1G")]
    size: u64,
    /// What writes may leave in memory; beyond it writers wait for the disk; default: a fifth of the machine's memory
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    dirty: Option<u64>,
    /// Directory to begin with: it is copied, and its files lie on the disk
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// Every read goes to the disk, as if there were no page cache
    #[arg(long)]
    cold: bool,
    /// Write the summary as JSON: a line on standard error, or to FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Program and its arguments; it finds the directory in $dir, too
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  headworks dir slow --disk hdd-7200 -- sh -c 'cp -r src slow/ && sync slow/src/*'
  headworks dir slow --disk model:profile=cloud-gp2,credits=0 -- pytest --basetemp=slow/tmp
  headworks dir slow --disk sata --from testdata --cold -- ./read-all slow

What the program leaves in the directory is gone when it ends.

Exit status: that of CMD, 128+N if signal N ended it; 125 the directory could not be made, 126 CMD cannot be run, 127 there is no such CMD.";

/// Runs the command with its arguments.
pub fn run(options: &DirArgs) -> ExitCode {
    let failed = |error: String| {
        complain(error);
        ExitCode::from(FAILED)
    };
    let model = match Model::alone(&options.disk) {
        Ok(model) => model,
        Err(error) => return failed(format!("--disk: {error}")),
    };
    let prepared = Prepared::new(options, &model);
    let prepared = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return failed(error),
    };
    let mut child = match prepared.start(options) {
        Ok(child) => child,
        Err(error) => {
            let program = options.command[0].to_string_lossy();
            complain(format!("`{program}` cannot be run: {error}"));
            return ExitCode::from(match error.kind() {
                io::ErrorKind::NotFound => NOT_FOUND,
                _ => CANNOT_RUN,
            });
        }
    };
    let status = match prepared.signals.wait_for(&mut child) {
        Ok(status) => status,
        Err(error) => return failed(format!("the program cannot be waited for: {error}")),
    };
    let code = exit_code(status);
    let report = prepared.directory.report();
    if let Err(error) = tell(options, &model.name, code, &report) {
        complain(error);
    }
    ExitCode::from(code)
}

/// The exit code of a shell for this status.
fn exit_code(status: ExitStatus) -> u8 {
    let of_signal = || 128 + status.signal().unwrap_or(0);
    status.code().unwrap_or_else(of_signal) as u8
}

/// A mounted directory, and the signals of this process. Fields end in their order: the mount, then the directory that was made for it.
struct Prepared {
    directory: SlowDirectory,
    place: Place,
    signals: Signals,
}

impl Prepared {
    fn new(options: &DirArgs, model: &Model) -> Result<Self, String> {
        check_size(options.size, model)?;
        remove_stale(NAME);
        let tree = beginning(options)?;
        let place = Place::new(&options.mount)?;
        let cannot = |error: &dyn std::fmt::Display| {
            format!("{} cannot be mounted: {error}", place.path.display())
        };
        let access = Access::find(&place.path).map_err(|error| error.to_string())?;
        let signals = Signals::block().map_err(|error| cannot(&error))?;
        let depth = model.disk.depth();
        let slow = SlowMount {
            tree,
            model: model.disk.model(model.seed),
            options: SlowOptions {
                size: options.size,
                dirty: options.dirty.unwrap_or_else(|| memory() / 5),
                depth,
            },
            uncached: options.cold,
        };
        let directory = SlowDirectory::mount(access, &place.path, NAME, slow);
        let directory = directory.map_err(|error| cannot(&error))?;
        Ok(Self { directory, place, signals })
    }

    fn start(&self, options: &DirArgs) -> io::Result<Child> {
        let mut command = Command::new(&options.command[0]);
        command.args(&options.command[1..]).env("dir", &self.place.path);
        // Found again, it is the mount and not what lies below.
        if let Ok(current) = std::env::current_dir() {
            command.current_dir(current);
        }
        let signals = self.signals.before;
        let parent = std::process::id();
        let prepare = move || {
            // SAFETY: async-signal-safe calls: an initialised set, and flags of the process.
            unsafe {
                libc::sigprocmask(libc::SIG_SETMASK, &signals, std::ptr::null_mut());
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong);
                // The parent may have ended before the flag was set.
                if libc::getppid() as u32 != parent {
                    libc::_exit(i32::from(FAILED));
                }
            }
            Ok(())
        };
        // SAFETY: the closure makes async-signal-safe calls alone.
        unsafe { command.pre_exec(prepare) };
        command.spawn()
    }
}

/// Refuses sizes that are no file system, or larger than the disk.
fn check_size(size: u64, model: &Model) -> Result<(), String> {
    let disk = model.disk.field("size").map_or(0, |field| field.get(&model.disk));
    if size < SIZE_MIN {
        return Err(format!("--size: {size} bytes are too few: at least 1M"));
    }
    if size > disk || SlowDisk::span(size) > disk {
        let name = &model.name;
        return Err(format!(
            "--size: {size} bytes and a journal do not fit on {name}, which has {disk}: less, or --disk model:profile={name},size=.."
        ));
    }
    Ok(())
}

/// The files to begin with.
fn beginning(options: &DirArgs) -> Result<Tree, String> {
    let Some(from) = &options.from else {
        // SAFETY: these calls have no preconditions.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        return Ok(Tree::new(uid, gid));
    };
    let tree = read_tree(from)
        .map_err(|error| format!("--from: {} cannot be read: {error}", from.display()))?;
    match tree.used() <= options.size {
        true => Ok(tree),
        false => Err(format!(
            "--from: {} has {} bytes, more than --size: give it room",
            from.display(),
            tree.used()
        )),
    }
}

/// Bytes of the machine's memory.
fn memory() -> u64 {
    // SAFETY: the calls have no preconditions.
    let (pages, bytes) =
        unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    u64::try_from(pages).unwrap_or(0) * u64::try_from(bytes).unwrap_or(0)
}

/// The directory that is mounted on; one that was made goes at the end.
struct Place {
    path: PathBuf,
    made: bool,
}

impl Place {
    fn new(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let made = match fs::read_dir(path) {
            Ok(mut entries) => match entries.next() {
                None => false,
                Some(_) => {
                    return Err(format!(
                        "{shown} is not empty, and a mount would hide what is in it: an empty directory, and --from {shown} for its files"
                    ));
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let make = fs::create_dir(path);
                make.map_err(|error| format!("{shown} cannot be made: {error}"))?;
                true
            }
            Err(error) => return Err(format!("{shown} cannot be mounted on: {error}")),
        };
        let found = path.canonicalize();
        let path = found.map_err(|error| format!("{shown} cannot be found: {error}"))?;
        Ok(Self { path, made })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.made {
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// The signals that end a program, blocked in this process and its threads.
struct Signals {
    set: libc::sigset_t,
    before: libc::sigset_t,
}

impl Signals {
    fn block() -> io::Result<Self> {
        // SAFETY: the calls fill sets on the stack.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGCHLD]
            {
                libc::sigaddset(&mut set, signal);
            }
            match libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut before) {
                0 => Ok(Self { set, before }),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        }
    }

    /// Waits for the program. A signal to this process goes on to it; those of a terminal it gets from there.
    fn wait_for(&self, child: &mut Child) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            // SAFETY: plain data that the call fills.
            let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
            // SAFETY: an initialised set, and a place for what is found.
            let signal = unsafe { libc::sigwaitinfo(&self.set, &mut info) };
            if signal > 0 && signal != libc::SIGCHLD && info.si_code != libc::SI_KERNEL {
                // SAFETY: a child that was not waited for, so the number is its own.
                unsafe { libc::kill(child.id() as i32, signal) };
            }
        }
    }
}

/// Says what happened: a line on standard error, or JSON.
fn tell(options: &DirArgs, disk: &str, code: u8, report: &SlowReport) -> Result<(), String> {
    match &options.json {
        None => shown::print_error(summary(disk, report)),
        Some(path) if path.as_os_str() == "-" => {
            shown::error_line!("{}", as_json(disk, code, report));
        }
        Some(path) => fs::write(path, format!("{}\n", as_json(disk, code, report)))
            .map_err(|error| format!("--json: {} cannot be written: {error}", path.display()))?,
    }
    Ok(())
}

fn as_json(disk: &str, code: u8, report: &SlowReport) -> serde_json::Value {
    let commands = report.commands;
    let wait = |waits: Waits| json!({"count": waits.count, "ns": waits.ns});
    let [read, write, sync] = report.waits.map(wait);
    json!({
        "disk": disk,
        "status": code,
        "reads": commands.reads,
        "read_bytes": commands.read_bytes,
        "writes": commands.writes,
        "written_bytes": commands.written_bytes,
        "flushes": commands.flushes,
        "commits": report.commits,
        "waits": {"read": read, "write": write, "sync": sync},
        "late_ns": {
            "sum": report.late_ns,
            "p50": report.late.percentile(500),
            "p99": report.late.percentile(990),
        },
        "too_slow": is_late(report),
        "dirty_bytes": report.dirty,
    })
}

/// Whether answers were late by so much that figures are of the machine.
fn is_late(report: &SlowReport) -> bool {
    let waited: u64 = report.waits.iter().map(|waits| waits.ns).sum();
    report.late_ns > waited / LATE_PART
}

fn summary(disk: &str, report: &SlowReport) -> String {
    let commands = report.commands;
    let total = commands.reads + commands.writes + commands.flushes;
    let [read, write, sync] = report.waits;
    let waited = read.ns + write.ns + sync.ns;
    let mut lines = shown::Lines::default();
    lines.push(format!(
        "headworks dir: {disk}: {total} commands: {} reads of {}, {} writes of {}, {} flushes; the program waited {}: {} for {} reads, {} for {} writes, {} for {} syncs; answers {} late (median), {} (99 of 100)",
        commands.reads,
        size(commands.read_bytes),
        commands.writes,
        size(commands.written_bytes),
        commands.flushes,
        time(waited),
        time(read.ns),
        read.count,
        time(write.ns),
        write.count,
        time(sync.ns),
        sync.count,
        time(report.late.percentile(500)),
        time(report.late.percentile(990)),
    ));
    if is_late(report) {
        lines.push(format!(
            "headworks dir: the machine was late by {} in {} of the disk's time, so figures are of the machine and not of the model",
            time(report.late_ns),
            time(waited)
        ));
    }
    lines.into_text()
}

/// Bytes in a unit that leaves at most four digits.
fn size(bytes: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let power = (bytes.max(1).ilog2() / 10).min(4);
    match power {
        0 => format!("{bytes} bytes"),
        _ => {
            format!("{:.1} {}", bytes as f64 / (1u64 << (10 * power)) as f64, units[power as usize])
        }
    }
}

/// Nanoseconds in a unit that leaves few digits.
fn time(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_crash::Commands;

    #[test]
    fn figures_are_the_machines_when_answers_are_late_by_a_part_of_the_disks_time() {
        let mut report = SlowReport::default();
        report.waits[2] = Waits { count: 10, ns: 100_000_000 };
        report.commands =
            Commands { writes: 10, written_bytes: 40_960, flushes: 3, ..Commands::default() };
        report.late_ns = 5_000_000;
        let text = summary("hdd-7200", &report);
        assert!(text.starts_with("headworks dir: hdd-7200: 13 commands: 0 reads of 0 bytes, 10 writes of 40.0 KiB, 3 flushes; the program waited 100.0 ms"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        report.late_ns += 1;
        let text = summary("hdd-7200", &report);
        assert!(text.contains("late by 5.0 ms in 100.0 ms of the disk's time"), "{text}");
        assert_eq!(as_json("hdd-7200", 3, &report)["too_slow"], true);
    }

    #[test]
    fn sizes_are_those_that_fit_on_the_disk() {
        let model = |text: &str| Model::alone(text).unwrap();
        let wrong = |size, text: &str| check_size(size, &model(text)).err().unwrap_or_default();
        assert_eq!(wrong(1 << 30, "hdd-7200"), "");
        assert!(wrong(1000, "hdd-7200").contains("at least 1M"));
        let full = wrong(1 << 30, "model:profile=sata,size=1G");
        assert!(full.contains("do not fit on sata, which has 1073741824"), "{full}");
        assert_eq!(wrong((1 << 30) - (128 << 20), "model:profile=sata,size=1G"), "");
    }

    #[test]
    fn status_is_passed_on_as_a_shell_does() {
        assert_eq!(exit_code(ExitStatus::from_raw(7 << 8)), 7);
        assert_eq!(exit_code(ExitStatus::from_raw(libc::SIGINT)), 130);
    }
}
