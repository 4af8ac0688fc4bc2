//! The cases on a block device of the kernel, with the kernel's own schedulers.
//!
//! ```text
//!   run: for each case and scheduler: switch, make a group for each export
//!     `--> a process for each client (enter the group, wait for the epoch, `client`) --row of counts--> the row of the case
//! ```
//!
//! The device must be a modelled disk as `headworks serve model:` serves it: regions of clients are those of the rows in virtual
//! time. With `none` the clients of a case run alone, as its goals need them, and with every other scheduler together. Cases with
//! tenants are left out. Rows have the table and cells of the experiment in virtual time, with the schedulers `linux-...`; they
//! have no verdicts. The device is overwritten.

mod aio;
mod client;
mod system;

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant as Clock};

use headworks_core::ConfigError;
use headworks_core::time::MS;

use super::cases::{BfqCase, CASES};
use super::client as layout;
use super::disks::Disk;
use super::run::{self, ClientCounts, Elevator, Part, RunOutcome};
use crate::harness::{Job, JobOptions};
use crate::report::{Progress, Report, Row};
use aio::Aio;
use client::{LinuxClient, RunTimes, monotonic_ns};
use system::{Groups, KernelDevice};

/// The schedulers of the kernel that cases run with.
pub const SCHEDULERS: [&str; 4] = ["none", "mq-deadline", "bfq", "kyber"];

/// Time that a client has to start, and after its run to end: the commands that a full queue still has.
const GRACE: Duration = Duration::from_secs(120);

/// Time between the start of the first process and the run, for each process.
const START_NS: u64 = 50 * MS;

/// Selects rows on a block device.
#[derive(Clone, Debug)]
pub struct LinuxOptions {
    /// Path of the block device.
    pub device: PathBuf,
    /// The disk that it is.
    pub disk: Disk,
    /// Cases, or experiments; none: all.
    pub cases: Vec<String>,
    /// Schedulers, each one of [`SCHEDULERS`].
    pub schedulers: Vec<String>,
    /// Seed of the clients' random offsets.
    pub seed: u64,
    /// Measured milliseconds of each case, instead of its own.
    pub ms: Option<u64>,
}

/// One client of a run, as another process is told.
#[derive(Clone, Debug)]
pub struct LinuxClientOptions {
    /// Path of the block device.
    pub device: PathBuf,
    /// The disk that it is.
    pub disk: Disk,
    /// Name of the case.
    pub case: String,
    /// The part of its clients that runs.
    pub part: String,
    /// The client's number in the part.
    pub number: u32,
    /// Seed of the clients' random offsets.
    pub seed: u64,
    /// Measured time in milliseconds.
    pub ms: u64,
    /// Nanoseconds of the monotonic clock at the run's time 0.
    pub epoch_ns: u64,
    /// Folder of the client's group.
    pub group: PathBuf,
}

/// Runs the selected rows; each is also given to `print` as soon as it is complete.
///
/// # Errors
/// Invalid options, or a kernel that refuses a scheduler or a group.
pub fn run(options: &LinuxOptions, print: impl Fn(&Row)) -> Result<Report, ConfigError> {
    let kernel = KernelDevice::new(&options.device)?;
    check_size(options)?;
    let runs = runs(options);
    let mut progress = Progress::new("bfq-linux", runs.len());
    let mut rows = Vec::new();
    for (case, scheduler, part) in runs {
        kernel.set_scheduler(scheduler)?;
        let row = run_case(options, case, scheduler, part)?;
        print(&row);
        rows.push(row);
        progress.step();
    }
    drop(progress);
    Ok(Report { title: "bfq: the kernel's schedulers".into(), rows, ..Report::default() })
}

/// Cases with their schedulers, and which of their clients run.
fn runs(options: &LinuxOptions) -> Vec<(&'static BfqCase, &str, Part)> {
    let wanted = |case: &&BfqCase| {
        let named = |name: &String| name == case.name || name == case.experiment;
        // Groups have one level here.
        let here = case.disks.contains(&options.disk) && case.tenants == 0;
        here && (options.cases.is_empty() || options.cases.iter().any(named))
    };
    let mut runs = Vec::new();
    for case in CASES.iter().filter(wanted) {
        for scheduler in &options.schedulers {
            if scheduler != "none" {
                runs.push((case, scheduler.as_str(), Part::All));
                continue;
            }
            let needs = |of: fn((bool, bool)) -> bool| {
                case.goals.iter().any(|(measure, _)| of(measure.needs()))
            };
            let first = needs(|(first, _)| first).then_some((case, "none", Part::First));
            let rest = needs(|(_, rest)| rest).then_some((case, "none", Part::Rest));
            runs.extend(first.into_iter().chain(rest));
        }
    }
    runs
}

fn check_size(options: &LinuxOptions) -> Result<(), ConfigError> {
    let (path, wanted) = (options.device.display(), options.disk.size());
    let size = File::open(&options.device).and_then(|mut file| file.seek(SeekFrom::End(0)));
    match size {
        Ok(size) if size == wanted => Ok(()),
        Ok(size) => {
            let name = options.disk.name();
            let message = format!("{path} has {size} bytes; {name} has {wanted}");
            Err(ConfigError::new("device", message))
        }
        Err(error) => Err(ConfigError::new("device", format!("{path}: {error}"))),
    }
}

fn jobs(case: &BfqCase, disk: Disk, part: Part) -> Vec<JobOptions> {
    part.of(layout::jobs(case.groups, case.step, disk, case.length_ms[0] * MS))
}

fn run_case(
    options: &LinuxOptions,
    case: &BfqCase,
    scheduler: &str,
    part: Part,
) -> Result<Row, ConfigError> {
    let jobs = jobs(case, options.disk, part);
    let exports = layout::exports(case.groups, case.weights, case.tenants);
    let weights: Vec<u16> = exports.iter().map(|export| export.weight).collect();
    let groups = Groups::new(&weights, scheduler == "bfq")?;
    let [ramp_ms, usual_ms, _] = case.length_ms;
    let ms = options.ms.unwrap_or(usual_ms);
    let epoch_ns = monotonic_ns() + START_NS * (jobs.len() as u64 + 4);
    let deadline = Clock::now() + GRACE + Duration::from_millis(ramp_ms + ms);
    let mut clients = Vec::new();
    for (number, job) in (0u32..).zip(&jobs) {
        let group = groups.folder(job.export.0.into()).to_path_buf();
        let (device, disk, seed) = (options.device.clone(), options.disk, options.seed);
        let (case, part) = (case.name.into(), part.name().into());
        let client =
            LinuxClientOptions { device, disk, case, part, number, seed, ms, epoch_ns, group };
        clients.push(Process::spawn(&client)?);
    }
    let mut rows = Vec::new();
    for client in clients {
        rows.push(client.end(deadline)?);
    }
    let counts: Vec<ClientCounts> = rows.iter().map(counts_of).collect();
    let outcome = RunOutcome {
        bios: counts.iter().map(|client| client.bios).sum(),
        failed: rows.iter().map(|row| row.int("failed")).sum(),
        ..RunOutcome::default()
    };
    let name = format!("linux-{scheduler}");
    let elevator = Elevator { name: &name, bounds: "none", hold_ms: 0 };
    Ok(run::row(case, options.disk, elevator, part, ms, (&counts, outcome)))
}

/// A client's process; killed if it is dropped before its end.
struct Process(Child);

impl Process {
    fn spawn(options: &LinuxClientOptions) -> Result<Self, ConfigError> {
        let number = |value: u64| value.to_string();
        let mut command = Command::new("/proc/self/exe");
        command.args(["run", "bfq-linux-client"]);
        command.arg("--device").arg(&options.device).arg("--group").arg(&options.group);
        command.args(["--disk", options.disk.name(), "--case", &options.case]);
        command.args(["--part", &options.part, "--number", &number(options.number.into())]);
        command.args(["--seed", &number(options.seed), "--ms", &number(options.ms)]);
        command.args(["--epoch-ns", &number(options.epoch_ns)]);
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        spawned.map(Self).map_err(|error| ConfigError::new("client", error.to_string()))
    }

    /// Waits for the process and parses the one row that it prints, which fits a pipe.
    fn end(mut self, deadline: Clock) -> Result<Row, ConfigError> {
        let wrong = |message: String| ConfigError::new("client", message);
        let status = loop {
            match self.0.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Clock::now() > deadline => {
                    return Err(wrong(format!(
                        "no end within {} s after the run",
                        GRACE.as_secs()
                    )));
                }
                Ok(None) => thread::sleep(Duration::from_millis(20)),
                Err(error) => return Err(wrong(error.to_string())),
            }
        };
        let mut text = String::new();
        let read = self.0.stdout.take().map(|mut pipe| pipe.read_to_string(&mut text));
        let row = Row::from_json(text.trim_end());
        match (read, row, status.success()) {
            (Some(Ok(_)), Some(row), true) => Ok(row),
            _ => Err(wrong(format!("a client ended with {status} and printed no counts"))),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // After `end` the process is gone, and both calls do nothing.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs one client; returns the row that [`run`] reads.
///
/// # Errors
/// The case or the group does not exist, or the device refuses.
pub fn run_client(options: &LinuxClientOptions) -> Result<Row, ConfigError> {
    let unknown = |what: &str| ConfigError::new("client", format!("there is no such {what}"));
    let case = CASES.iter().find(|case| case.name == options.case);
    let case = case.ok_or_else(|| unknown("case"))?;
    let part = Part::ALL.into_iter().find(|part| part.name() == options.part);
    let jobs = jobs(case, options.disk, part.ok_or_else(|| unknown("part"))?);
    let index = options.number as usize;
    let job = Job::all(options.seed, jobs).into_iter().nth(index);
    let job = job.ok_or_else(|| unknown("client"))?;
    if job.options.stream > 0 {
        return Err(ConfigError::new("case", "clients of one stream cannot be processes"));
    }
    system::enter(&options.group)?;
    let path = options.device.display();
    let say = |error| ConfigError::new("device", format!("{path}: {error}"));
    let mut open = OpenOptions::new();
    let open = open.read(true).write(true).custom_flags(libc::O_DIRECT);
    let file = open.open(&options.device).map_err(say)?;
    // The reads of a program are longer than `bs`.
    let len_max = job.options.bs.max(128 << 10);
    let device = Aio::new(file, job.options.iodepth, len_max).map_err(say)?;
    let times = RunTimes {
        epoch_ns: options.epoch_ns,
        ramp_ns: case.length_ms[0] * MS,
        runtime_ns: options.ms * MS,
    };
    let client = LinuxClient::new(options.number, job, device, times);
    let (counts, failed) = client.run().map_err(say)?;
    let counts = ClientCounts::of(&counts);
    Ok(row_of(&counts, failed))
}

fn row_of(counts: &ClientCounts, failed: u64) -> Row {
    Row::new("client")
        .with("bios", counts.bios)
        .with("bytes", counts.bytes)
        .with("p50_us", counts.p50_us)
        .with("p99_us", counts.p99_us)
        .with("longest_us", counts.longest_us)
        .with("starts_ms", counts.starts_ms.clone())
        .with("unfinished_ms", counts.unfinished_ms)
        .with("failed", failed)
}

fn counts_of(row: &Row) -> ClientCounts {
    ClientCounts {
        bios: row.int("bios"),
        bytes: row.int("bytes"),
        p50_us: row.int("p50_us"),
        p99_us: row.int("p99_us"),
        longest_us: row.int("longest_us"),
        starts_ms: row.ints("starts_ms"),
        unfinished_ms: row.int("unfinished_ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_round_trip_through_a_clients_row() {
        let counts = ClientCounts {
            bios: 7,
            bytes: u64::MAX,
            p50_us: 1,
            p99_us: 2,
            longest_us: 3,
            starts_ms: vec![4, 5],
            unfinished_ms: 6,
        };
        let read = Row::from_json(&row_of(&counts, 9).to_json()).unwrap();
        assert_eq!((counts_of(&read), read.int("failed")), (counts, 9));
    }

    #[test]
    fn none_runs_clients_alone_and_others_run_them_together() {
        let options = |names: &[&str]| LinuxOptions {
            device: "/dev/nothing".into(),
            disk: Disk::Hdd,
            cases: names.iter().map(|&name| name.into()).collect(),
            schedulers: vec!["none".into(), "bfq".into()],
            seed: 1,
            ms: None,
        };
        let pair = options(&["random-beside-d1"]);
        let parts: Vec<_> = runs(&pair).iter().map(|(_, name, part)| (*name, *part)).collect();
        assert_eq!(parts, [("none", Part::First), ("none", Part::Rest), ("bfq", Part::All)]);
        let shares = options(&["E1"]);
        assert_eq!(runs(&shares).len(), 5, "shares need nothing alone");
        assert!(run(&shares, |_| ()).is_err(), "there is no such device");
    }
}
