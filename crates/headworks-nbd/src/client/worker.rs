//! One connection of a benchmark: generates requests and checks replies.
//!
//! ```text
//!   Fill (each block once, in order) --> Run (the pattern, until the time is over) --> ReadBack (what was written)
//! ```
//!
//! Fill and ReadBack are optional. Each phase ends with nothing in flight. A Window is a Run of which only a part counts: the
//! ramp before it and the requests in flight at its end would favour slow connections.
//!
//! Without a rate a connection has as many requests in flight as it may. With one it has arrivals (`arrivals`): a request is submitted when it is
//! due, or when there is room, and its latency counts from when it was due. So a server that stalls is charged with all that had to wait meanwhile.

use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::ClientError;
use super::arrivals::Arrivals;
use super::bench::Tally;
use super::blocks::{BlockRequest, Blocks, Order};
use super::pipeline::{Finished, Pipeline};
use crate::wire::{Command, CommandFlags};

/// A phase of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Write each block once.
    Fill,
    /// The pattern for a duration from the start of the thread.
    Run(Duration),
    /// The pattern for a ramp and a duration; only requests that end within the duration count.
    Window(Duration, Duration),
    /// Read each block once.
    ReadBack,
}

impl Phase {
    fn order(self) -> Order {
        match self {
            Self::Fill => Order::Fill,
            Self::Run(_) | Self::Window(..) => Order::Pattern,
            Self::ReadBack => Order::ReadBack,
        }
    }
}

/// The clock of a phase, and the times that it is limited by.
#[derive(Debug)]
pub struct Stopwatch {
    epoch: Instant,
    cpu: Duration,
    phase: Phase,
    /// No request is submitted from then on, in nanoseconds.
    deadline: u64,
    /// Requests that end in this range count.
    counted: Range<u64>,
}

impl Stopwatch {
    /// Starts the clock of a phase, and that of the thread's CPU time.
    pub fn start(phase: Phase) -> Self {
        let ns = |time: Duration| time.as_nanos() as u64;
        let (deadline, counted) = match phase {
            Phase::Run(time) => (ns(time), 0..u64::MAX),
            Phase::Window(ramp, time) => (ns(ramp + time), ns(ramp)..ns(ramp + time)),
            Phase::Fill | Phase::ReadBack => (u64::MAX, 0..u64::MAX),
        };
        Self { epoch: Instant::now(), cpu: cpu_time(), phase, deadline, counted }
    }

    /// Returns nanoseconds since the start.
    pub fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// Returns true while requests are submitted.
    pub fn is_open(&self, at: u64, stop: &AtomicBool) -> bool {
        // Relaxed: a hint, it orders no other access.
        at < self.deadline && !stop.load(Ordering::Relaxed)
    }

    /// Returns true when a request that ends at `at` counts.
    pub fn counts(&self, at: u64) -> bool {
        self.counted.contains(&at)
    }

    /// Writes the duration into a tally, and the thread's CPU time if `cpu`.
    pub fn stop(&self, tally: &mut Tally, cpu: bool) {
        tally.elapsed = match self.phase {
            Phase::Window(_, time) => time,
            _ => self.epoch.elapsed(),
        };
        if cpu {
            tally.cpu = cpu_time().saturating_sub(self.cpu);
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Pending {
    request: BlockRequest,
    /// When it was submitted, or was due.
    submitted_ns: u64,
}

/// A benchmark's connection with its state.
#[derive(Debug)]
pub struct Worker {
    pipeline: Pipeline,
    block_bytes: u32,
    blocks: Blocks,
    pending: Vec<Pending>,
    finished: Vec<Finished>,
    /// When requests are due, if not as soon as there is room.
    arrivals: Option<Arrivals>,
    pub tally: Tally,
}

impl Worker {
    pub fn new(
        mut pipeline: Pipeline,
        depth: usize,
        block_bytes: u32,
        mut blocks: Blocks,
        arrivals: Option<Arrivals>,
    ) -> Self {
        // Different bytes in each slot.
        (0..depth).for_each(|slot| blocks.fill_randomly(pipeline.data(slot)));
        Self {
            pipeline,
            block_bytes,
            blocks,
            pending: vec![Pending::default(); depth],
            finished: Vec::with_capacity(depth),
            arrivals,
            tally: Tally::default(),
        }
    }

    /// Runs a phase to its end or until `stop` is set; the tally starts at zero.
    pub fn go(&mut self, phase: Phase, stop: &AtomicBool) -> Result<(), ClientError> {
        self.begin(phase);
        if self.arrivals.is_some() {
            wake_in_time();
        }
        let watch = Stopwatch::start(phase);
        let mut at = 0;
        loop {
            let open = watch.is_open(at, stop);
            if open {
                self.refill(phase, at)?;
            }
            let due = self.next_due(phase).filter(|_| open);
            if self.pipeline.is_idle() && due.is_none() {
                break;
            }
            let until = due.map(|due| Duration::from_nanos(due.saturating_sub(watch.now())));
            self.pipeline.exchange(&mut self.finished, until)?;
            at = watch.now();
            self.collect(at, watch.counts(at))?;
        }
        watch.stop(&mut self.tally, true);
        self.take_calls();
        Ok(())
    }

    /// Starts a phase: the tally is zero, and the pattern starts anew.
    pub fn begin(&mut self, phase: Phase) {
        self.tally = Tally::default();
        self.blocks.begin(phase.order());
        if let Some(arrivals) = &mut self.arrivals {
            arrivals.restart();
        }
        self.pipeline.calls = [0; 2];
    }

    /// Submits requests if the phase is `open`, and sends what the socket takes.
    pub fn submit_and_send(
        &mut self,
        phase: Phase,
        open: bool,
        now_ns: u64,
    ) -> Result<(), ClientError> {
        if open {
            self.refill(phase, now_ns)?;
        }
        self.pipeline.send()
    }

    /// Receives what has arrived and counts completed requests; returns the time.
    pub fn receive_now(&mut self, watch: &Stopwatch) -> Result<u64, ClientError> {
        self.pipeline.receive_now(&mut self.finished)?;
        let at = watch.now();
        self.collect(at, watch.counts(at))?;
        Ok(at)
    }

    /// Copies the number of system calls to the tally.
    pub fn take_calls(&mut self) {
        self.tally.calls = self.pipeline.calls;
    }

    /// Returns true when nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.pipeline.is_idle()
    }

    /// Returns true when a batch is partly sent.
    pub fn is_blocked(&self) -> bool {
        self.pipeline.is_blocked()
    }

    /// Returns the descriptor of the socket.
    pub fn fd(&self) -> RawFd {
        self.pipeline.fd()
    }

    /// Disconnects in an orderly way.
    pub fn goodbye(self) {
        self.pipeline.goodbye();
    }

    /// When the next request is due that there is room for; `None` without a rate.
    fn next_due(&self, phase: Phase) -> Option<u64> {
        let arrivals = self.arrivals.as_ref().filter(|_| phase.order() == Order::Pattern)?;
        (self.pipeline.room() > 0).then(|| arrivals.next())
    }

    /// Submits requests that are due while there is room.
    fn refill(&mut self, phase: Phase, now_ns: u64) -> Result<(), ClientError> {
        while let Some(slot) = self.pipeline.next_slot() {
            let due = self.next_due(phase).unwrap_or(now_ns);
            if due > now_ns {
                return Ok(());
            }
            let Some(request) = self.blocks.choose(phase.order()) else {
                return Ok(());
            };
            if let Some(arrivals) =
                self.arrivals.as_mut().filter(|_| phase.order() == Order::Pattern)
            {
                arrivals.advance();
            }
            let BlockRequest { offset, is_write, .. } = request;
            if is_write {
                self.blocks.stamp(&request, offset, self.pipeline.data(slot));
            }
            let command = if is_write { Command::Write } else { Command::Read };
            self.pipeline.submit(command, CommandFlags::NONE, offset, self.block_bytes);
            self.pending[slot] = Pending { request, submitted_ns: due };
        }
        Ok(())
    }

    /// Counts (if `counts`) and verifies completed requests.
    fn collect(&mut self, now_ns: u64, counts: bool) -> Result<(), ClientError> {
        for index in 0..self.finished.len() {
            let Finished { slot, error } = self.finished[index];
            let pending = self.pending[slot];
            match error {
                Some(error) => self.tally.on_error(error),
                None if !counts => {}
                None => {
                    let latency = now_ns - pending.submitted_ns;
                    self.tally.on_done(pending.request.is_write, self.block_bytes, latency);
                }
            }
            if let Some(expected) = self.blocks.end(&pending.request, error.is_none()) {
                let data = self.pipeline.data(slot);
                self.blocks
                    .check(data, pending.request.offset, expected)
                    .map_err(ClientError::Verify)?;
                self.tally.verified += 1;
            }
        }
        self.finished.clear();
        Ok(())
    }
}

/// Has the kernel end this thread's sleeps when they are over; by default it may take 50 us longer.
fn wake_in_time() {
    // SAFETY: a number, and no memory. A kernel that refuses wakes later.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_usize) };
}

/// User and system time of this thread.
pub fn cpu_time() -> Duration {
    // SAFETY: zeros are a valid rusage, and the call fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage
    };
    let time = |value: libc::timeval| {
        Duration::from_micros(value.tv_sec as u64 * 1_000_000 + value.tv_usec as u64)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}
