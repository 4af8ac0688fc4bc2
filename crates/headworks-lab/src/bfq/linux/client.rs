//! One client on a kernel's device: a job of the harness, driven by the monotonic clock.
//!
//! ```text
//!   job.submit --> io_submit --> kernel --> io_getevents --> job.answer --> the job thinks --.
//!      ^                                                                                     |
//!      `-------------------------------------------------------------------------------------'
//! ```
//!
//! Each start of a program has a thread of its own, which for the kernel's schedulers is a new process. An open loop counts from the
//! time at which a bio was due, also when the kernel blocked the submission of the one before. Counting begins at `ramp_ns` and
//! lasts for `runtime_ns`; completions afterwards are waited for and not counted.

use std::io;
use std::thread;

use headworks_core::{Bio, Instant};

use super::aio::{Aio, AioCommand, AioCompletion};
use crate::harness::{Job, JobCounts};
use headworks_server::sleep_precisely;

/// The times of a run, on the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunTimes {
    /// Nanoseconds of the clock at the run's time 0.
    pub epoch_ns: u64,
    /// Time before counting starts.
    pub ramp_ns: u64,
    /// Time during which is counted.
    pub runtime_ns: u64,
}

impl RunTimes {
    /// The present; 0 before the run.
    fn now(self) -> Instant {
        Instant(monotonic_ns().saturating_sub(self.epoch_ns))
    }

    fn ends(self) -> Instant {
        Instant(self.ramp_ns + self.runtime_ns)
    }

    fn counts(self, at: Instant) -> bool {
        at.0 >= self.ramp_ns && at < self.ends()
    }
}

/// A client in progress.
pub(super) struct LinuxClient {
    job: Job,
    device: Aio,
    times: RunTimes,
    /// The next submission that waits for no answer.
    wake: Option<Instant>,
    counts: JobCounts,
    failed: u64,
}

impl LinuxClient {
    /// Job `number` of a run.
    pub fn new(number: u32, job: Job, device: Aio, times: RunTimes) -> Self {
        let wake = Some(job.options.first_at(number));
        Self { job, device, times, wake, counts: JobCounts::default(), failed: 0 }
    }

    /// Runs to the end; returns the counters and the number of failed bios.
    ///
    /// # Errors
    /// The kernel refused a submission.
    pub fn run(mut self) -> io::Result<(JobCounts, u64)> {
        self.wait_for_epoch();
        let ends = self.times.ends();
        while self.times.now() < ends {
            let client = &mut self;
            thread::scope(|scope| scope.spawn(|| client.run_thread()).join())
                .map_err(|_| io::Error::other("a client's thread panicked"))??;
        }
        self.counts.waiting_ns = self.job.waiting_ns(ends);
        self.counts.unfinished_ns = self.job.unfinished_ns(ends);
        Ok((self.counts, self.failed))
    }

    fn wait_for_epoch(&self) {
        let left = self.times.epoch_ns.saturating_sub(monotonic_ns());
        thread::sleep(std::time::Duration::from_nanos(left));
    }

    /// Runs to the end of the run, or of a program's start with the rest behind it.
    fn run_thread(&mut self) -> io::Result<()> {
        sleep_precisely();
        let mut commands = Vec::new();
        let mut completions = Vec::new();
        loop {
            let now = self.times.now();
            if now >= self.times.ends() {
                return Ok(());
            }
            if self.wake.is_some_and(|at| at <= now) {
                self.submit(now, &mut commands)?;
                continue;
            }
            let until = self.wake.unwrap_or(self.times.ends()).min(self.times.ends());
            self.device.wait(until.since(now), |completion| completions.push(completion))?;
            let mut started = false;
            for completion in completions.drain(..) {
                started |= self.answer(completion);
            }
            if started {
                return Ok(());
            }
        }
    }

    fn submit(&mut self, now: Instant, commands: &mut Vec<AioCommand>) -> io::Result<()> {
        let due = self.wake.take().expect("the caller looked at it");
        let at = if self.job.options.period_ns > 0 { due } else { now };
        commands.clear();
        self.wake = self.job.submit(at, |bio| commands.push(command(&bio)));
        self.device.submit(commands)
    }

    /// Counts a completion; returns whether it ended a program's start.
    fn answer(&mut self, completion: AioCompletion) -> bool {
        let now = self.times.now();
        let outcome = self.job.answer(now, completion.token);
        self.failed += u64::from(completion.result != i64::from(outcome.bytes));
        if self.times.counts(now) {
            self.counts.bios += 1;
            self.counts.bytes += u64::from(outcome.bytes);
            self.counts.latency.record(outcome.took_ns);
            self.counts.starts_ns.extend(outcome.started_in_ns);
        }
        if let Some(after) = outcome.wakes_after_ns {
            self.wake = Some(now.after(after));
        }
        outcome.started_in_ns.is_some()
    }
}

fn command(bio: &Bio) -> AioCommand {
    AioCommand { token: bio.id.sequence, op: bio.op, offset: bio.offset, len: bio.len }
}

/// Nanoseconds of the monotonic clock, which all processes share.
pub(super) fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the struct it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use headworks_core::Op;
    use headworks_core::time::MS;

    use super::*;
    use crate::harness::{JobOptions, Program};
    use crate::live::server::TempFolder;

    /// Runs one job on a file of 8 MiB for 20 ms, or on a machine that has others to run for as long as it takes until the job has
    /// counted enough.
    fn run_until(options: JobOptions, enough: impl Fn(&JobCounts) -> bool) -> (JobCounts, u64) {
        let mut runs = (0..9).map(|doubled| run_for(options, (20 * MS) << doubled));
        runs.find(|(counts, _)| enough(counts)).expect("enough within ten seconds")
    }

    fn run_for(options: JobOptions, runtime_ns: u64) -> (JobCounts, u64) {
        let folder = TempFolder::make().unwrap();
        let path = folder.image("file", 8 << 20).unwrap();
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let device = Aio::new(file, options.iodepth, 1 << 20).unwrap();
        let times = RunTimes { epoch_ns: monotonic_ns() + MS, ramp_ns: 0, runtime_ns };
        let job = Job::all(1, vec![options]).remove(0);
        LinuxClient::new(0, job, device, times).run().unwrap()
    }

    #[test]
    fn client_counts_its_bios_and_bytes() {
        for op in [Op::Read, Op::Write] {
            let options =
                JobOptions { op, bs: 8192, iodepth: 4, end: 8 << 20, ..JobOptions::default() };
            let (counts, failed) = run_until(options, |counts| counts.bios > 0);
            assert_eq!(failed, 0);
            assert_eq!(counts.bytes, counts.bios * 8192);
            assert_eq!(counts.latency.count(), counts.bios);
        }
    }

    #[test]
    fn reads_beyond_the_end_are_failures() {
        let options = JobOptions { start: 8 << 20, end: 9 << 20, ..JobOptions::default() };
        let (counts, failed) = run_until(options, |counts| counts.bios > 0);
        assert!(failed >= counts.bios, "{failed} of {}", counts.bios);
    }

    #[test]
    fn program_starts_again_and_again() {
        let program = Program { name: "x", reads: 20, bytes: 20 << 12, far: 5, ahead_percent: 50 };
        let job = JobOptions::starting(program, 0, 8 << 20, 1_000);
        let (counts, failed) =
            run_until(JobOptions { start_ns: 1_000, ..job }, |counts| counts.starts_ns.len() > 1);
        assert_eq!(failed, 0);
        assert!(counts.bios >= 20 * counts.starts_ns.len() as u64);
    }

    #[test]
    fn open_loop_submits_one_bio_each_period() {
        let options =
            JobOptions { period_ns: 2 * MS, iodepth: 1024, end: 8 << 20, ..JobOptions::default() };
        let (counts, _) = run_for(options, 200 * MS);
        // A machine that stalls catches up; it never submits more.
        assert!((1..=100).contains(&counts.bios), "{counts:?}");
    }
}
