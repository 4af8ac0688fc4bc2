//! The owner's thread: commands, removals, timers, the engine and the end.
//!
//! ```text
//!                     .------------------------------------------------------------------------------.
//!                     v                                                                              |
//!   has the right: commands, removals, operations that feeders left, completions --> turn            |
//!                     | feeders may drive: leave --> start operations, poll, sleep --> take the right -+
//!                     | this thread alone drives: work? --yes-----------------------------------------+
//!                     |                                  `--no--> poll, sleep with the right ----------'
//! ```
//!
//! While feeders may drive, the thread has the right only to work: it polls and sleeps in the engine without it, until completions come,
//! feeders call (`owner_call.rs`), or the next timer. Under [`Drive::Thread`] and at the end it keeps the right, and feeders wake it
//! by the announcement of `ring.rs`.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;

use headworks_core::{ConfigError, Instant};

use super::driver::{Client, Driver};
use super::driving::SharedDriver;
use super::owner::{Command, OwnerReport};
use super::{Drive, OwnerOptions, OwnerState};
use crate::combining::{Driving, DrivingRight, Leave};
use crate::engine::{DISK_DEPTH_MAX, Engine, Event, Wait, open_engine};
use crate::owner_call::OwnerCall;
use crate::ring::Sleeper;
use crate::runtime::{Clock, Polling, pin_thread};

/// Period of the check whether a feeder waits for the CPU of a busy owner. 250 us: each check costs a few switches. With 16 feeders
/// and the owner on 2 CPUs, Jain's index of the feeders is 0.5-0.6 without it, 0.8 with 250 us, and 0.9 with 100 us, which costs
/// the owner a tenth of its throughput.
const GIVE_WAY_NS: u64 = 250_000;
/// Tries to take the right before a sleep: a feeder's turn takes a microsecond or two.
const TAKE_SPINS: u32 = 256;
/// The longest sleep while a removal waits, or a dropped handle has bios in its ring.
const REMOVAL_NS: u64 = 1_000_000;

/// How far the end of the owner is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    No,
    /// Rings are not read any more; replies and flushes are outstanding.
    Draining {
        deadline: Instant,
        flushes_sent: bool,
    },
}

/// What is on the owner's thread alone.
pub(super) struct OwnerThread {
    shared: Arc<SharedDriver>,
    engine: Box<dyn Engine>,
    clock: Clock,
    polling: Polling,
    sleeper: Arc<Sleeper>,
    inbox: Receiver<Command>,
    drive: Drive,
    /// Feeders were told that this thread keeps the right.
    keeps: bool,
    ending: Ending,
    shutdown_ns: u64,
    events: Vec<Event>,
    /// When the CPU was last offered to feeders.
    gave_way: Instant,
    /// There was file I/O since the last sleep without the right: it pays to poll.
    polls: bool,
    /// Sleeps without the right.
    sleeps: u64,
}

/// What comes after a step with the right.
enum Step {
    Again,
    /// Feeders may drive.
    Leave(Leaving),
    Ended(io::Result<()>),
}

/// How the owner's thread leaves the right.
#[derive(Clone, Copy)]
struct Leaving {
    /// When it is to be taken again at the latest.
    wakes_at: Option<Instant>,
    /// Rings may have batches.
    more: bool,
    /// A device may have commands.
    commands: bool,
}

/// What a turn did.
struct Turned {
    any: bool,
    /// There was file I/O.
    files: bool,
    /// Rings may have more batches.
    more: bool,
}

impl OwnerThread {
    pub fn new(
        options: &OwnerOptions,
        clients: Vec<Client>,
        inbox: Receiver<Command>,
        sleeper: Arc<Sleeper>,
        state: Arc<OwnerState>,
    ) -> Result<Self, ConfigError> {
        if let Some(cpu) = options.cpu {
            pin_thread(cpu);
        }
        let disk_depth = (options.tags_max as usize + 64).min(DISK_DEPTH_MAX);
        let driver = Driver::new(options, clients, Arc::clone(&state), disk_depth)?;
        let (engine, _) = open_engine(options.engine, disk_depth)?;
        let (clock, owner) = (Clock::start(), engine.waker());
        let (right, call) = (DrivingRight::new(driver), OwnerCall::new(Arc::clone(&sleeper)));
        let lender = AtomicUsize::new(0);
        let shared = SharedDriver { right, clock, call, owner, state, lender };
        Ok(Self {
            shared: Arc::new(shared),
            engine,
            clock,
            polling: Polling::new(options.poll_ns),
            sleeper,
            inbox,
            drive: options.drive,
            keeps: false,
            ending: Ending::No,
            shutdown_ns: options.shutdown_timeout.as_nanos().min(u64::MAX.into()) as u64,
            events: Vec::with_capacity(1024),
            gave_way: Instant(0),
            polls: false,
            sleeps: 0,
        })
    }

    pub fn shared(&self) -> &Arc<SharedDriver> {
        &self.shared
    }

    pub fn run(mut self) -> io::Result<OwnerReport> {
        let shared = Arc::clone(&self.shared);
        let mut driving = self.take(&shared)?;
        let ended = loop {
            match driving.with(|driver| self.step(driver))? {
                Step::Again => {}
                Step::Leave(leaving) => driving = self.leave(&shared, driving, leaving)?,
                Step::Ended(ended) => break ended,
            }
        };
        let mut driver = driving.close();
        let mut report = driver.report();
        report.counts.sleeps += self.sleeps;
        if ended.is_ok() {
            return Ok(report);
        }
        // A device, or the kernel for it, may still write to slots and frames: they are leaked, with all that would wait for it.
        std::mem::forget((self, driver));
        ended.map(|()| report)
    }

    /// Takes the right. A feeder that has it leaves soon, and calls this thread.
    fn take<'a>(&mut self, shared: &'a SharedDriver) -> io::Result<Driving<'a, Driver>> {
        let mut spins = 0;
        loop {
            shared.call.answer();
            if let Some(driving) = shared.right.take_as_owner() {
                return Ok(driving);
            }
            if shared.right.is_closed() {
                return Err(io::Error::other("a thread panicked while it drove the shard"));
            }
            spins += 1;
            match spins < TAKE_SPINS {
                true => std::hint::spin_loop(),
                false => self.sleep(Wait::Forever)?,
            }
        }
    }

    /// Leaves the right to feeders, waits, and takes it again; keeps it if there is work that no feeder would do.
    fn leave<'a>(
        &mut self,
        shared: &'a SharedDriver,
        driving: Driving<'a, Driver>,
        leaving: Leaving,
    ) -> io::Result<Driving<'a, Driver>> {
        match driving.leave_as_owner(leaving.more) {
            Leave::Again(driving) => {
                if leaving.commands {
                    self.engine.turn(Wait::Poll, &mut self.events)?;
                }
                Ok(driving)
            }
            Leave::Left | Leave::WakeOwner => {
                self.wait(leaving)?;
                self.take(shared)
            }
        }
    }

    /// Waits without the right for completions, a call or the time. Polls while that pays.
    fn wait(&mut self, Leaving { wakes_at, commands, .. }: Leaving) -> io::Result<()> {
        if self.polls && self.look(commands)? {
            return Ok(());
        }
        let mut now = self.clock.now();
        while self.polls && wakes_at.is_none_or(|at| at > now) && self.polling.poll_again(now) {
            let before = self.clock.now();
            std::thread::yield_now();
            now = self.clock.now();
            self.polling.on_yield(now.since(before));
            // Before the next decision: what a feeder did that had this CPU meanwhile is a hit.
            if self.look(commands)? {
                return Ok(());
            }
        }
        self.polls = false;
        self.sleep(wait_until(wakes_at, now))
    }

    /// Returns true if there are completions or a call. What was pushed is started.
    fn look(&mut self, commands: bool) -> io::Result<bool> {
        if commands {
            self.engine.turn(Wait::Poll, &mut self.events)?;
        }
        Ok(!self.events.is_empty() || self.shared.call.is_called())
    }

    /// Sleeps without the right, unless feeders called.
    fn sleep(&mut self, wait: Wait) -> io::Result<()> {
        let wait = match wait != Wait::Poll && self.shared.call.may_sleep() {
            true => wait,
            false => Wait::Poll,
        };
        self.sleeps += u64::from(wait != Wait::Poll);
        let result = self.engine.turn(wait, &mut self.events);
        self.shared.call.woken();
        result
    }

    /// A step with the right.
    fn step(&mut self, driver: &mut Driver) -> io::Result<Step> {
        let now = self.clock.now();
        self.take_commands(driver, now);
        if !driver.removals.is_empty() {
            driver.advance_removals(now);
        }
        driver.close_handles(now);
        let is_ending = self.shared.state.is_ending(driver.handles());
        let turned = self.turn(driver, now);
        if turned.files {
            self.polling.on_work(now);
            self.polls = true;
        }
        if turned.any {
            self.give_way(driver, now);
            // Feeders that submit all the time do not put the end off.
            if !is_ending && self.feeders_drive() {
                return Ok(self.leaving(driver, turned.more));
            }
            self.polling.on_work(now);
            // Commands in a device must be started and their completions fetched.
            if driver.has_commands() {
                self.enter(driver, Wait::Poll)?;
            }
            if !is_ending {
                return Ok(Step::Again);
            }
        }
        if is_ending {
            match self.drain(driver, now) {
                Some(ended) => return Ok(Step::Ended(ended)),
                None if driver.has_inputs() => return Ok(Step::Again),
                None => {}
            }
        }
        self.rest(driver, now)
    }

    /// A step towards the end: the result when it is reached.
    fn drain(&mut self, driver: &mut Driver, now: Instant) -> Option<io::Result<()>> {
        if self.ending == Ending::No {
            driver.begin_drain(now);
            let deadline = Instant(now.0.saturating_add(self.shutdown_ns));
            self.ending = Ending::Draining { deadline, flushes_sent: false };
        }
        let Ending::Draining { deadline, flushes_sent } = self.ending else { return None };
        if driver.has_inputs() {
            return None;
        }
        if driver.shard.is_idle() && !flushes_sent {
            self.ending = Ending::Draining { deadline, flushes_sent: true };
            driver.send_flushes();
        }
        if driver.is_drained() {
            return Some(Ok(()));
        }
        if now >= deadline {
            let message = "a device did not complete its commands before the shutdown time-out";
            return Some(Err(io::Error::new(io::ErrorKind::TimedOut, message)));
        }
        None
    }

    fn take_commands(&mut self, driver: &mut Driver, now: Instant) {
        // A load first: the flag is read in every turn, and seldom set. Acquire: pairs with the Release in `Owner::ask`.
        let command = &self.shared.state.command;
        if !command.load(Ordering::Relaxed) || !command.swap(false, Ordering::Acquire) {
            return;
        }
        while let Ok(command) = self.inbox.try_recv() {
            command(driver, now);
        }
    }

    /// Everything between two waits.
    fn turn(&mut self, driver: &mut Driver, now: Instant) -> Turned {
        let left = driver.start_left(now, &mut *self.engine);
        let files = driver.take_events(now, &mut self.events, &mut *self.engine) || left;
        let more = self.ending == Ending::No && !driver.take_bios();
        Turned { any: driver.run(now, &mut *self.engine) || left, files, more }
    }

    /// Yields the CPU if a feeder has replies, does not take them and submits nothing: it may wait for this very CPU, which a busy
    /// owner would keep for whole time slices, so that feeders elsewhere would have 40 times its share.
    fn give_way(&mut self, driver: &mut Driver, now: Instant) {
        if now.since(self.gave_way) < GIVE_WAY_NS {
            return;
        }
        self.gave_way = now;
        if driver.feeder_waits() {
            std::thread::yield_now();
        }
    }

    /// Without work: leaves the right to feeders, or polls for a while and then sleeps.
    fn rest(&mut self, driver: &mut Driver, now: Instant) -> io::Result<Step> {
        if driver.has_inputs() || !self.events.is_empty() {
            return Ok(Step::Again);
        }
        if self.feeders_drive() {
            return Ok(self.leaving(driver, false));
        }
        if self.polling.poll_again(now) {
            let before = self.clock.now();
            std::thread::yield_now();
            self.polling.on_yield(self.clock.now().since(before));
            if driver.has_commands() {
                self.enter(driver, Wait::Poll)?;
            }
            return Ok(Step::Again);
        }
        let wait = wait_until(self.wakes_at(driver), now);
        self.enter(driver, wait)?;
        Ok(Step::Again)
    }

    /// Returns true if feeders may drive while this thread has no work, and tells them when that changes.
    fn feeders_drive(&mut self) -> bool {
        let drive = self.drive == Drive::Feeders && self.ending == Ending::No;
        if self.keeps == drive {
            self.keeps = !drive;
            self.shared.right.keep(self.keeps);
        }
        drive
    }

    fn leaving(&self, driver: &mut Driver, more: bool) -> Step {
        let (wakes_at, commands) = (self.wakes_at(driver), driver.has_commands());
        Step::Leave(Leaving { wakes_at, more, commands })
    }

    /// When to wake from a sleep, which the driver knows from here on.
    fn wakes_at(&self, driver: &mut Driver) -> Option<Instant> {
        let waits = !driver.removals.is_empty() || driver.is_closing();
        let removal = waits.then(|| Instant(self.clock.now().0 + REMOVAL_NS));
        let deadline = match self.ending {
            Ending::Draining { deadline, .. } => Some(deadline),
            Ending::No => None,
        };
        let wakes_at = [driver.next_timeout(), removal, deadline].into_iter().flatten().min();
        driver.owner_wakes_at = wakes_at.unwrap_or(Instant(u64::MAX));
        wakes_at
    }

    /// Enters the engine with the right.
    fn enter(&mut self, driver: &mut Driver, mut wait: Wait) -> io::Result<()> {
        if wait != Wait::Poll {
            // Commands and the end come with a wake-up of the engine, which is never lost.
            let draining = self.ending != Ending::No;
            match self.sleeper.may_sleep(|| draining || driver.rings_are_empty()) {
                true => self.sleeps += 1,
                false => wait = Wait::Poll,
            }
        }
        let result = self.engine.turn(wait, &mut self.events);
        self.sleeper.woken();
        result
    }
}

/// The wait that ends at a time.
fn wait_until(at: Option<Instant>, now: Instant) -> Wait {
    match at {
        Some(at) if at <= now => Wait::Poll,
        Some(at) => Wait::For(at.since(now)),
        None => Wait::Forever,
    }
}
