//! One connection of a benchmark: generates requests and checks replies.
//!
//! ```text
//!   Fill (each block once, in order) --> Run (the pattern, until the time is over) --> ReadBack (what was written)
//! ```
//!
//! Fill and ReadBack are optional. Each phase ends with nothing in flight. A Window is a Run of which only a part counts: the
//! ramp before it and the requests in flight at its end would favour slow connections.

use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use headworks_core::prng::Prng;

use super::ClientError;
use super::bench::{Pattern, Tally};
use super::pipeline::{Finished, Pipeline};
use super::stamp::{self, Expected, Versions};
use crate::wire::{Command, CommandFlags};

/// Random draws of a block before a slot stays empty for a turn because all drawn blocks are busy.
const DRAWS_MAX: u32 = 32;

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

/// The constant parameters of a worker.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    pub pattern: Pattern,
    /// First block and number of blocks.
    pub first: u64,
    pub blocks: u64,
    /// Range of blocks (from, to) that only this connection fills.
    pub own: (u64, u64),
    pub block_bytes: u32,
    /// Seed of the stamps.
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Pending {
    block: u64,
    is_write: bool,
    submitted_ns: u64,
}

/// A benchmark's connection with its state.
#[derive(Debug)]
pub struct Worker {
    pipeline: Pipeline,
    share: Share,
    prng: Prng,
    /// Next block of a sequential pattern.
    next: u64,
    /// Present with verification only.
    versions: Option<Versions>,
    pending: Vec<Pending>,
    finished: Vec<Finished>,
    pub tally: Tally,
}

impl Worker {
    pub fn new(
        pipeline: Pipeline,
        depth: usize,
        share: Share,
        prng: Prng,
        untouched: Option<Expected>,
    ) -> Self {
        let versions = untouched.map(|content| Versions::new(share.blocks as usize, content));
        let mut worker = Self {
            pipeline,
            share,
            prng,
            next: 0,
            versions,
            pending: vec![Pending::default(); depth],
            finished: Vec::with_capacity(depth),
            tally: Tally::default(),
        };
        for slot in 0..depth {
            // Incompressible bytes, different in each slot.
            let data = worker.pipeline.data(slot);
            data.chunks_mut(8).for_each(|word| {
                word.copy_from_slice(&worker.prng.next().to_le_bytes()[..word.len()]);
            });
        }
        worker
    }

    /// Runs a phase to its end or until `stop` is set; the tally starts at zero.
    pub fn go(&mut self, phase: Phase, stop: &AtomicBool) -> Result<(), ClientError> {
        self.begin(phase);
        let watch = Stopwatch::start(phase);
        let mut at = 0;
        loop {
            if watch.is_open(at, stop) {
                self.refill(phase, at)?;
            }
            if self.pipeline.is_idle() {
                break;
            }
            self.pipeline.exchange(&mut self.finished)?;
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
        self.next = match phase {
            Phase::Run(_) | Phase::Window(..) => 0,
            Phase::Fill | Phase::ReadBack => self.share.own.0,
        };
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

    /// Submits requests while there is room.
    fn refill(&mut self, phase: Phase, now_ns: u64) -> Result<(), ClientError> {
        while let Some(slot) = self.pipeline.next_slot() {
            let Some((block, is_write)) = self.choose(phase) else {
                return Ok(());
            };
            let offset = (self.share.first + block) * u64::from(self.share.block_bytes);
            if let Some(versions) = &mut self.versions {
                versions.begin(block as usize);
                if is_write {
                    let version = versions.next(block as usize);
                    stamp::fill(self.pipeline.data(slot), self.share.seed, offset, version);
                }
            }
            let command = if is_write { Command::Write } else { Command::Read };
            self.pipeline.submit(command, CommandFlags::NONE, offset, self.share.block_bytes);
            self.pending[slot] = Pending { block, is_write, submitted_ns: now_ns };
        }
        Ok(())
    }

    /// Chooses the next block and its direction; none when the phase is over or all drawn blocks are busy.
    #[inline]
    fn choose(&mut self, phase: Phase) -> Option<(u64, bool)> {
        let Share { pattern, blocks, .. } = self.share;
        match phase {
            Phase::Run(_) | Phase::Window(..) => {}
            Phase::Fill => return self.in_order(|_, _| true).map(|block| (block, true)),
            Phase::ReadBack => {
                let tells =
                    |versions: &Versions, block| versions.expected(block) != Expected::Anything;
                return self.in_order(tells).map(|block| (block, false));
            }
        }
        let is_write = match pattern {
            Pattern::Read | Pattern::RandRead => false,
            Pattern::Write | Pattern::RandWrite => true,
            Pattern::RandRw { read_percent } => self.prng.below(100) >= u64::from(read_percent),
        };
        if matches!(pattern, Pattern::Read | Pattern::Write) {
            let block = self.next;
            if self.is_busy(block) {
                return None;
            }
            self.next = (block + 1) % blocks;
            return Some((block, is_write));
        }
        let draw = |worker: &mut Self| worker.prng.below(blocks);
        let mut block = draw(self);
        for _ in 0..DRAWS_MAX {
            if !self.is_busy(block) {
                return Some((block, is_write));
            }
            block = draw(self);
        }
        None
    }

    fn in_order(&mut self, wanted: impl Fn(&Versions, usize) -> bool) -> Option<u64> {
        while self.next < self.share.own.1 {
            let block = self.next;
            self.next += 1;
            if self.versions.as_ref().is_none_or(|versions| wanted(versions, block as usize)) {
                return Some(block);
            }
        }
        None
    }

    #[inline]
    fn is_busy(&self, block: u64) -> bool {
        self.versions.as_ref().is_some_and(|versions| versions.is_busy(block as usize))
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
                    self.tally.on_done(pending.is_write, self.share.block_bytes, latency);
                }
            }
            if self.versions.is_some() {
                self.verify(slot, pending, error.is_none())?;
            }
        }
        self.finished.clear();
        Ok(())
    }

    fn verify(&mut self, slot: usize, pending: Pending, success: bool) -> Result<(), ClientError> {
        let versions = self.versions.as_mut().expect("the caller has looked");
        let block = pending.block as usize;
        versions.end(block);
        if pending.is_write {
            versions.on_written(block, success);
            return Ok(());
        }
        let expected = versions.expected(block);
        if success && expected != Expected::Anything {
            let offset = (self.share.first + pending.block) * u64::from(self.share.block_bytes);
            stamp::check(self.pipeline.data(slot), self.share.seed, offset, expected)
                .map_err(ClientError::Verify)?;
            self.tally.verified += 1;
        }
        Ok(())
    }
}

/// Returns user and system time of this thread.
fn cpu_time() -> Duration {
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
