//! The world: N shards on one thread, the same [`Shard`] and [`Executor`] as the server, in virtual time.
//!
//! ```text
//!   heap, timers, disks --due--> inboxes --turn of a seeded shard, seeded size--> handle --actions--> executor
//!        ^                                                                                              |
//!        `--------------- messages (seeded delay, in order per pair), commands, next bios <-------------'
//! ```
//!
//! When several shards have something at one time, the seed says who goes first. A round is: the jobs run, then either all
//! falls quiet and is checked for leaks, or the power fails in the middle and new shards start over what the disks kept;
//! then every byte is read back. Invariant: time never goes back, and nothing happens that no event, disk or timer brought.

use headworks::device::Device;
use headworks::executor::Executor;
use headworks_core::cache::CacheStats;
use headworks_core::prng::Prng;
use headworks_core::record::RunHash;
use headworks_core::time::{MS, SEC};
use headworks_core::{
    Control, DeviceId, Input, Instant, IoError, Op, Shard, ShardId, VolumeConfig, VolumeId,
    WriteMode,
};

use crate::check::{Failure, check_quiet, violation};
use crate::connection::Connection;
use crate::coverage::{Coverage, Point};
use crate::disk::{Disk, DiskFile, DiskOptions, Fault, Model, NullDisk, SharedDisk};
use crate::oracle::Survival;
use crate::pattern::SECTOR;
use crate::scenario::{Scenario, WorldDefect};
use crate::wire::{Happening, NoDisk, Port, Wire};
use crate::workload::{Job, JobOptions, Pattern};

mod moves;
mod sizes;

use moves::Moves;

/// A shard and what drives it.
struct Cell {
    shard: Shard,
    executor: Executor,
    inbox: Vec<Input>,
    turn: Vec<Input>,
}

impl Cell {
    /// How many of the first `size` inputs make a turn: an acknowledgement has one of its own, so that what it gives up is
    /// known.
    fn until_acknowledge(&self, size: usize) -> usize {
        let is_one = |input: &Input| matches!(input, Input::Control(Control::Acknowledge { .. }));
        match self.inbox.iter().take(size).position(is_one) {
            None => size,
            Some(0) => 1,
            Some(before) => before,
        }
    }
}

/// What a test may do to a shard before the world starts: mutated policies go in here.
pub type Prepare = fn(&mut Shard, &Scenario, ShardId);

/// See the head of this file.
pub struct World {
    cells: Vec<Cell>,
    wire: Wire,
    disks: Vec<SharedDisk>,
    prepare: Prepare,
    order: Prng,
    moves: Moves,
    hash: RunHash,
    turns: u64,
    turns_max: u64,
    cuts: u64,
    /// Timers that still come when nobody waits for anything.
    idle_left: u32,
}

/// How a run ended well.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Of all inputs and actions.
    pub hash: u64,
    /// Bios answered.
    pub bios: u64,
    /// Turns of shards.
    pub turns: u64,
    /// Virtual time.
    pub at: Instant,
    /// What it went through.
    pub coverage: Coverage,
    /// Answers of devices that nothing waited for.
    pub unknown_completions: u64,
    /// Lies that disks told.
    pub lies: u64,
    /// Power cuts.
    pub cuts: u64,
    /// What was found after them, by write mode.
    pub survived: [Survival; WriteMode::ALL.len()],
}

const FLUSHES: [u32; Op::COUNT] = [0, 0, 1, 0, 0, 0, 0];

const FLUSH_AGAIN: &str = "a flush works again when the fault is gone and the operator knows";

/// Why a run of turns stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// Nothing is to come.
    Quiet,
    /// The power fails now.
    Cut,
    /// A rule was broken.
    Broken,
}

/// Runs `scenario` from start to end.
///
/// # Errors
/// The first rule that was broken.
pub fn run(scenario: Scenario) -> Result<Outcome, Box<Failure>> {
    run_prepared(scenario, |_, _, _| {})
}

/// As [`run`], with shards that `prepare` changed.
///
/// # Errors
/// The first rule that was broken.
pub fn run_prepared(scenario: Scenario, prepare: Prepare) -> Result<Outcome, Box<Failure>> {
    let rounds = scenario.rounds;
    let mut world = World::new(scenario, prepare);
    for round in 0..rounds {
        world.run_round(round);
        if world.wire.broken.is_some() {
            break;
        }
    }
    world.finish()
}

impl World {
    fn new(scenario: Scenario, prepare: Prepare) -> Self {
        let root = Prng::new(scenario.seed);
        let disks = match scenario.checked {
            true => make_disks(&scenario),
            false => Vec::new(),
        };
        let mut connections = Vec::new();
        let jobs = scenario.jobs.clone();
        let readers = (0..scenario.volumes.len()).map(|volume| reader(&scenario, volume));
        for (id, options) in jobs.into_iter().chain(readers).enumerate() {
            let home = scenario.volumes[usize::from(options.volume.0)].home;
            let mut job = Job::new(options, root.split("job").next() ^ id as u64);
            job.left = 0;
            connections.push(Connection::new(id as u32, home, job));
        }
        let cells = make_cells(&scenario, &disks, prepare);
        let moves = Moves::new(root.split("mover"), &scenario);
        let wire = Wire::new(scenario, connections);
        Self {
            cells,
            wire,
            disks,
            prepare,
            order: root.split("order"),
            moves,
            hash: RunHash::default(),
            turns: 0,
            turns_max: 0,
            cuts: 0,
            idle_left: 0,
        }
    }

    fn run_round(&mut self, round: u32) {
        let jobs = self.wire.scenario.jobs.len();
        self.set_faulty(true);
        let changes = self.wire.scenario.switches;
        for (device, after) in self.wire.operator.start(changes).into_iter().enumerate() {
            let device = DeviceId(device as u16);
            self.wire.events.push(self.wire.now.after(after), Happening::Switch { device });
        }
        self.plan_moves();
        for connection in &mut self.wire.connections[..jobs] {
            let there = self.moves.is_there(connection.job.options.volume);
            connection.held = !there;
            connection.job.left = if there { connection.job.options.bios } else { 0 };
        }
        // The cut comes at another turn in each round.
        let cut_after = self.wire.scenario.cut_after;
        let cut_after = match self.wire.scenario.cache.is_on() {
            false => cut_after.map(|turns| turns / u64::from(round + 1)),
            // Of early and late ones as many: there are more turns in which a lot goes on than in which it begins.
            true => cut_after.map(|turns| {
                let magnitude = 1 << self.order.between(0, turns.ilog2().into());
                self.order.between(magnitude / 2, magnitude).max(1)
            }),
        };
        let stop = self.run_jobs(cut_after);
        match stop {
            Stop::Broken => return,
            Stop::Quiet => self.check_quiet(),
            Stop::Cut => self.cut(),
        }
        if self.wire.broken.is_some() || !self.wire.scenario.checked {
            return;
        }
        self.set_faulty(false);
        self.verify();
        // What is in memory was seen. Is it on the disk, too, once a flush says so?
        if stop == Stop::Quiet && self.wire.scenario.cache.is_on() {
            self.flush_all();
            if self.wire.broken.is_none() {
                self.cut();
                self.verify();
            }
        }
    }

    /// Flushes every volume, the operator's help included.
    fn flush_all(&mut self) {
        let jobs = self.wire.scenario.jobs.len();
        for index in jobs..self.wire.connections.len() {
            let volume = self.wire.connections[index].job.options.volume;
            if !self.moves.is_there(volume) {
                continue;
            }
            let mut tries = 0;
            loop {
                let job = &mut self.wire.connections[index].job;
                let weights = std::mem::replace(&mut job.options.weights, FLUSHES);
                job.left = 1;
                let stop = self.run_jobs(None);
                self.wire.connections[index].job.options.weights = weights;
                let flushed = self.wire.flushed[usize::from(volume.0)];
                if stop == Stop::Broken || flushed.is_some_and(|status| status.is_ok()) {
                    break;
                }
                tries += 1;
                // Of the shortest time-out a slow disk needs many.
                let most = match flushed {
                    Some(Err(IoError::TimedOut)) => 1_000,
                    _ => 4,
                };
                if tries > most {
                    let detail = format!("volume {}: {flushed:?}", volume.0);
                    return self.wire.fail(violation(FLUSH_AGAIN, detail));
                }
                if tries > 1 {
                    self.wire.plan_acknowledge(volume);
                }
            }
        }
        if self.wire.broken.is_none() {
            self.check_quiet();
        }
    }

    /// Reads every byte.
    fn verify(&mut self) {
        let jobs = self.wire.scenario.jobs.len();
        // One volume after the other, so that even the smallest shards have room for every read.
        for index in jobs..self.wire.connections.len() {
            let job = &mut self.wire.connections[index].job;
            if !self.moves.is_there(job.options.volume) {
                continue;
            }
            let size = self.wire.scenario.volumes[index - jobs].options.size;
            job.rewind();
            job.left = bios_of_reader(size);
            if self.run_jobs(None) == Stop::Broken {
                return;
            }
        }
        self.wire.oracle.recovered();
        self.check_quiet();
    }

    fn set_faulty(&mut self, faulty: bool) {
        self.wire.faulty = faulty;
        for disk in &self.disks {
            disk.lock().set_faulty(faulty);
        }
    }

    /// Runs until nothing is to come, or for `turns` turns.
    fn run_jobs(&mut self, turns: Option<u64>) -> Stop {
        let left: u64 = self.wire.connections.iter().map(|c| u64::from(c.job.left)).sum();
        // Refusals and messages take turns of their own; ten times that is no progress.
        self.turns_max = self.turns + 2_000 * (left + 100);
        let stop_at = turns.map(|turns| self.turns + turns);
        if self.wire.scenario.cache.is_on() {
            self.idle_left = self.order.below(64) as u32;
            self.wire.moved = self.wire.now;
        }
        self.wire.start();
        self.issue_ready();
        loop {
            if self.wire.broken.is_some() {
                return Stop::Broken;
            }
            if stop_at.is_some_and(|at| self.turns >= at) {
                return Stop::Cut;
            }
            if !self.step() {
                return match self.wire.broken {
                    Some(_) => Stop::Broken,
                    None => Stop::Quiet,
                };
            }
        }
    }

    /// One turn of one shard, or the next point in time; false when nothing is to come.
    fn step(&mut self) -> bool {
        let busy = self.cells.iter().filter(|cell| !cell.inbox.is_empty()).count();
        if busy > 0 {
            let mut pick = match busy {
                1 => 0,
                busy => self.order.below(busy as u64),
            };
            let index = self.cells.iter().position(|cell| {
                let this = !cell.inbox.is_empty() && pick == 0;
                pick -= u64::from(!cell.inbox.is_empty() && !this);
                this
            });
            self.turn(index.expect("one of the busy shards was picked"));
            return true;
        }
        let timers = self.wire.timers.iter().flatten().copied();
        let disks = self.cells.iter().filter_map(|cell| cell.executor.next_timeout());
        let others = disks.chain(self.wire.events.next_at()).min();
        let Some(next) = timers.chain(others).min() else {
            return false;
        };
        if self.wire.scenario.cache.is_on() && !self.goes_on(next, others.is_some()) {
            return false;
        }
        self.wire.now = self.wire.now.max(next);
        self.take_due();
        true
    }

    /// Whether a world with caches, whose timers may never end, goes on: as long as somebody waits, and then for a while, so that
    /// what is dirty may or may not be written.
    fn goes_on(&mut self, next: Instant, comes: bool) -> bool {
        const LONGEST: u64 = 3_600 * SEC;
        if self.wire.waits() {
            let since = next.since(self.wire.moved);
            if since > LONGEST {
                self.wire.fail(violation(
                    "every wait has an owner who will end it",
                    format!("nothing was answered for {} s", since / SEC),
                ));
            }
            return since <= LONGEST;
        }
        // Leases go home, and 5.18's lost wake-ups are made good for.
        if comes || next.since(self.wire.moved.max(self.wire.told)) < 6 * SEC {
            return true;
        }
        self.idle_left = self.idle_left.saturating_sub(1);
        self.idle_left > 0
    }

    /// Moves everything that is due into the inboxes.
    fn take_due(&mut self) {
        let now = self.wire.now;
        while let Some((_, happening)) = self.wire.events.pop_due(now) {
            match happening {
                Happening::Deliver { from, to, message } => {
                    let input = self.wire.take_message(from, to, message);
                    self.cells[usize::from(to.0)].inbox.push(input);
                }
                Happening::Issue { connection } => self.wire.ready.push(connection),
                Happening::Move => self.go_on_moving(),
                Happening::Switch { device } if self.moves.concern(device) => {
                    // Nobody changes what is not there, or not yet everywhere.
                    if self.moves.go_on() {
                        self.wire.events.push(now.after(MS), Happening::Switch { device });
                    }
                }
                Happening::Switch { device } => {
                    let config = &self.wire.scenario.devices[usize::from(device.0)].config;
                    if let Some(control) = self.wire.operator.change(device, &config.queue) {
                        let owner = usize::from(config.owner.0);
                        let shard = match control {
                            // Any shard's: each has its own.
                            Control::SetDirty { .. } => {
                                self.wire.coverage.hit(Point::DirtySet);
                                self.order.below(self.cells.len() as u64) as usize
                            }
                            _ => owner,
                        };
                        self.cells[shard].inbox.push(Input::Control(control));
                    }
                }
                Happening::Acknowledge { volume } => {
                    let input = self.wire.acknowledge(volume);
                    let VolumeConfig { home, device, .. } =
                        self.wire.scenario.volumes[usize::from(volume.0)];
                    let owner = self.wire.scenario.devices[usize::from(device.0)].config.owner;
                    self.cells[usize::from(owner.0)].inbox.push(input);
                    if home != owner && self.wire.scenario.is_cached(volume) {
                        self.cells[usize::from(home.0)].inbox.push(input);
                    }
                }
            }
        }
        for (cell, timer) in self.cells.iter_mut().zip(&mut self.wire.timers) {
            if timer.is_some_and(|at| at <= now) {
                *timer = None;
                self.wire.coverage.hit(Point::Timer);
                cell.inbox.push(Input::Timer);
            }
            if cell.executor.next_timeout().is_some_and(|at| at <= now) {
                cell.executor.on_timeout(now, &mut NoDisk, &mut cell.inbox);
            }
        }
        self.issue_ready();
    }

    fn issue_ready(&mut self) {
        while let Some(connection) = self.wire.ready.pop() {
            let home = self.wire.connections[self.wire.index(connection)].home;
            let cell = &mut self.cells[usize::from(home.0)];
            // What lies in the inbox may take a slot each.
            let room = (cell.shard.room() as usize).saturating_sub(cell.inbox.len());
            self.wire.issue(connection, room, &mut cell.inbox);
        }
    }

    /// A shard takes a batch, and what it decides is carried out.
    fn turn(&mut self, index: usize) {
        self.turns += 1;
        self.wire.turn = self.turns;
        let (now, shard) = (self.wire.now, ShardId(index as u16));
        let most = self.wire.scenario.turn_max as u64;
        let size = self.order.between(1, most) as usize;
        let size = self.cells[index].until_acknowledge(size);
        let cell = &mut self.cells[index];
        if size >= cell.inbox.len() {
            std::mem::swap(&mut cell.inbox, &mut cell.turn);
        } else {
            cell.turn.extend(cell.inbox.drain(..size));
        }
        self.hash.add(u64::from(shard.0) << 32 | cell.turn.len() as u64);
        self.hash.add(now.0);
        cell.turn.iter().for_each(|input| self.hash.add_input(input));
        if self.wire.scenario.checked {
            watch_inputs(&mut self.wire, cell);
        }
        cell.shard.handle(now, &cell.turn);
        cell.turn.clear();
        let actions = cell.shard.actions();
        self.hash.add_actions(actions);
        if self.wire.scenario.checked {
            self.wire.cover_actions(shard, actions);
        }
        let mut port = Port { wire: &mut self.wire, shard };
        cell.executor.run(now, actions, &mut port, &mut NoDisk, &mut cell.inbox);
        watch_failures(&mut self.wire, cell, shard);
        self.wire.frames.sum_up();
        if self.wire.scenario.defect == WorldDefect::ReusesBuffers {
            self.wire.reuse_buffers(actions);
        }
        cell.shard.clear_actions();
        if cell.shard.room() > 0 {
            self.wire.feed(shard);
        }
        self.issue_ready();
        if self.turns > self.turns_max {
            self.wire.fail(violation(
                "work comes to an end",
                format!("{} turns and still not done", self.turns),
            ));
        }
    }

    /// Nothing is to come: all must be answered, and all must be back.
    fn check_quiet(&mut self) {
        let waiting: usize = self.wire.connections.iter().map(Connection::in_flight).sum();
        let to_come: u32 = self.wire.connections.iter().map(|c| c.job.left).sum();
        if waiting > 0 || to_come > 0 {
            return self.wire.fail(violation(
                "every wait has an owner who will end it",
                format!("{waiting} bios wait, {to_come} are to come, and no event is pending"),
            ));
        }
        let unanswered = self.wire.operator.unanswered();
        if unanswered > 0 {
            return self.wire.fail(violation(
                "every wait has an owner who will end it",
                format!("{unanswered} changes of options were not answered"),
            ));
        }
        for (index, cell) in self.cells.iter().enumerate() {
            if let Err(violation) = check_quiet(&self.wire.scenario, &cell.shard, index as u16) {
                return self.wire.fail(violation);
            }
        }
        for (index, disk) in self.disks.iter().enumerate() {
            let in_flight = disk.lock().in_flight();
            if in_flight > 0 {
                let detail = format!("device {index} still has {in_flight} commands");
                self.wire.fail(violation("when all is answered, everything is back", detail));
            }
        }
        self.check_commands();
    }

    /// What the disks saw.
    fn check_commands(&mut self) {
        for disk in &self.disks {
            if let Some(broken) = disk.lock().broken() {
                let broken = violation("commands keep to the device's limits", broken);
                self.wire.fail(broken);
            }
        }
    }

    /// The power fails and comes back.
    fn cut(&mut self) {
        self.check_commands();
        self.cuts += 1;
        self.wire.cover_cut();
        for cell in &self.cells {
            let stats = cell.shard.cache_stats().unwrap_or_default();
            let (held, shadow) = (stats.held > 0, stats.shadows > 0);
            let dirty = cell.shard.dirty_stats().is_some_and(|stats| stats.nr_dirty > 0);
            self.wire.coverage.add(Point::CutHeld, held.into());
            self.wire.coverage.add(Point::CutShadow, shadow.into());
            self.wire.coverage.add(Point::CutDirty, dirty.into());
        }
        self.count_caches();
        let now = self.wire.now;
        for disk in &self.disks {
            disk.lock().cut(now);
        }
        self.wire.cut();
        self.stop_moving();
        self.cells = make_cells(&self.wire.scenario, &self.disks, self.prepare);
        self.bring_guests_back();
    }

    fn finish(mut self) -> Result<Outcome, Box<Failure>> {
        // The first cause is what a disk was wrongly given, if it was.
        if self.wire.broken.is_some() {
            let first = self.disks.iter().find_map(|disk| {
                let broken = disk.lock().broken().map(String::from);
                broken.map(|text| violation("commands keep to the device's limits", text))
            });
            self.wire.broken = first.or(self.wire.broken);
        }
        self.check_notices();
        self.count_caches();
        self.count_coverage();
        let lies = self.disks.iter().map(|disk| disk.lock().counters().lies).sum();
        match self.wire.broken.take() {
            Some(violation) => Err(Box::new(Failure {
                seed: self.wire.scenario.seed,
                at: self.wire.now,
                history: self.wire.history(violation.place),
                state: self.state(),
                violation,
            })),
            None => Ok(Outcome {
                hash: self.hash.0,
                bios: self.wire.answered,
                turns: self.turns,
                at: self.wire.now,
                coverage: self.wire.coverage,
                unknown_completions: self.wire.unknown_completions,
                lies,
                cuts: self.cuts,
                survived: self.wire.oracle.survived(),
            }),
        }
    }

    /// Errors that only the operator can act on were said.
    fn check_notices(&mut self) {
        let failed_flushes: u64 = self
            .disks
            .iter()
            .map(|disk| disk.lock().counters().faults[Fault::Flush as usize])
            .sum();
        let said = self.wire.coverage.count(Point::NoticeSuspect);
        if failed_flushes > 0 && said == 0 && self.cuts == 0 {
            let detail = format!("{failed_flushes} device flushes failed and no notice came");
            self.wire.fail(violation("an error is never lost", detail));
        }
    }

    fn state(&self) -> String {
        let mut text = format!("  after {} turns\n", self.turns);
        for (index, cell) in self.cells.iter().enumerate() {
            text += &format!(
                "  shard {index}: room {} of {}, {} inputs wait, timer {:?}\n",
                cell.shard.room(),
                self.wire.scenario.bios_max,
                cell.inbox.len(),
                self.wire.timers[index].map(|at| at.0),
            );
            if let (Some(cache), Some(dirty)) = (cell.shard.cache_stats(), cell.shard.dirty_stats())
            {
                let headworks_core::cache::CacheStats { free, held, shadowed, waits, .. } = cache;
                text += &format!("    cache: {free} free, {held} held, {shadowed} shadowed,");
                text += &format!(" waits {waits:?}, {} dirty,", dirty.nr_dirty);
                text += &format!(" {} under write-out\n", dirty.nr_writeback);
                text += &format!("    {}\n", cell.shard.told_waits());
            }
            for device in 0..self.wire.scenario.devices.len() as u16 {
                let id = DeviceId(device);
                if let Some(free) = cell.shard.tags_free(id) {
                    text += &format!("    owns device {device}: {free} tags free\n");
                }
                if let Some(leased) = cell.shard.tags_leased(id).filter(|&leased| leased > 0) {
                    text += &format!("    leases {leased} tags of device {device}\n");
                }
            }
        }
        for (index, disk) in self.disks.iter().enumerate() {
            let device = &self.wire.scenario.devices[index];
            let disk = disk.lock();
            text += &format!(
                "  device {index}: {} commands in it, {:?}, {:?}\n",
                disk.in_flight(),
                device.model,
                device.faults
            );
        }
        text + &self.wire.state()
    }

    /// What the caches did, before they are gone.
    fn count_caches(&mut self) {
        for cell in &self.cells {
            if let Some(stats) = cell.shard.cache_stats() {
                count_cache(&mut self.wire.coverage, &stats);
            }
        }
    }

    fn count_coverage(&mut self) {
        let coverage = &mut self.wire.coverage;
        coverage.hit(match self.wire.scenario.shards {
            1 => Point::ShardsOne,
            2 => Point::ShardsTwo,
            _ => Point::ShardsFour,
        });
        for (disk, device) in self.disks.iter().zip(&self.wire.scenario.devices) {
            coverage.hit(match device.model {
                Model::Immediate => Point::ModelImmediate,
                Model::Constant { .. } => Point::ModelConstant,
                Model::Seek { .. } => Point::ModelSeek,
            });
            count_disk(coverage, &disk.lock());
        }
    }
}

/// What a shard is about to be told, as far as it is about frames or gives blocks up.
fn watch_inputs(wire: &mut Wire, cell: &Cell) {
    for input in &cell.turn {
        match *input {
            Input::Complete { device, completion } => {
                wire.complete(device, completion.id, completion.status);
            }
            Input::Control(Control::Acknowledge { volume }) => give_up(wire, &cell.shard, volume),
            _ => {}
        }
    }
}

/// What a shard noted of commands that failed.
fn watch_failures(wire: &mut Wire, cell: &Cell, shard: ShardId) {
    for index in 0..wire.scenario.volumes.len() {
        let volume = VolumeId(index as u16);
        if wire.scenario.volumes[index].home == shard && wire.hearing.expects(volume) {
            let mut held = Vec::new();
            cell.shard.failed_ranges(volume, &mut held);
            wire.note_failures(volume, &held);
        }
    }
}

/// What failed on `volume` and is held by `shard` is lost from now on.
fn give_up(wire: &mut Wire, shard: &Shard, volume: VolumeId) {
    let mut ranges = Vec::new();
    shard.failed_ranges(volume, &mut ranges);
    for (offset, len, _) in ranges {
        wire.give_up(volume, offset, len);
    }
}

fn count_cache(coverage: &mut Coverage, stats: &CacheStats) {
    // Who finds no shadow frame waits for the folio.
    let [frame, credit, pause, _, range, folio] = stats.waits;
    let [background, age, flush, frames, writer] = stats.written_for;
    let counts = [
        (Point::Hit, stats.hits),
        (Point::Miss, stats.misses),
        (Point::FillPartial, stats.fills_partial),
        (Point::DiscardDirty, stats.discarded_dirty),
        (Point::DirectDirty, stats.direct_dirty),
        (Point::ClosePaused, stats.closed_paused),
        (Point::ReadBeforeWrite, stats.read_before_write),
        (Point::Shadow, stats.shadowed),
        (Point::Evicted, stats.evicted_folios),
        // Larger than a block each, at least one of them.
        (Point::EvictedLarge, stats.evicted - stats.evicted_folios),
        (Point::GhostHit, stats.ghost_hits),
        (Point::WaitFrame, frame),
        (Point::WaitCredit, credit),
        (Point::WaitPause, pause),
        (Point::WaitRange, range),
        (Point::WaitFolio, folio),
        (Point::ForBackground, background),
        (Point::ForAge, age),
        (Point::ForFlush, flush),
        (Point::ForFrames, frames),
        (Point::ForWriter, writer),
        (Point::WriteOutFailed, stats.failed),
        (Point::ReadAhead, stats.read_ahead),
        (Point::ReadAheadWasted, stats.read_ahead_wasted),
        (Point::FlushAnswered, stats.flushes),
    ];
    counts.into_iter().for_each(|(point, times)| coverage.add(point, times));
}

fn count_disk(coverage: &mut Coverage, disk: &Disk) {
    let counters = disk.counters();
    let faults = [
        (Fault::Busy, Point::FaultBusy),
        (Fault::Late, Point::FaultLate),
        (Fault::Medium, Point::FaultMedium),
        (Fault::NoSpace, Point::FaultNoSpace),
        (Fault::Short, Point::FaultShort),
        (Fault::Nothing, Point::FaultNothing),
        (Fault::Flush, Point::FaultFlush),
        (Fault::Zeroes, Point::FaultZeroes),
        (Fault::BadRange, Point::FaultBadRange),
    ];
    for (fault, point) in faults {
        coverage.add(point, counters.faults[fault as usize]);
    }
    coverage.add(Point::PowerCutTorn, counters.torn);
    coverage.add(Point::RequestRequeued, counters.requeued);
    coverage.add(Point::RequestContinued, counters.continued);
    coverage.add(Point::DeviceFlush, counters.commands[2]);
    coverage.add(Point::DeviceDiscard, counters.commands[3]);
    coverage.add(Point::DeviceWriteZeroes, counters.commands[4]);
    coverage.add(Point::DeviceBlockStatus, counters.commands[6]);
    coverage.add(Point::DeviceFua, counters.fua);
    coverage.add(Point::DeviceZerosAsData, counters.zeros_as_data);
}

fn make_disks(scenario: &Scenario) -> Vec<SharedDisk> {
    let root = Prng::new(scenario.seed);
    let devices = scenario.devices.iter().enumerate();
    let disks = devices.map(|(index, device)| {
        let volumes = scenario.volumes.iter().enumerate();
        let files = volumes.filter(|(_, volume)| usize::from(volume.device.0) == index);
        let files = files.map(|(number, volume)| DiskFile {
            volume: VolumeId(number as u16),
            size: volume.options.size,
            block_size: volume.options.block_size.max(SECTOR as u32),
            read_only: volume.options.read_only,
        });
        SharedDisk::new(DiskOptions {
            queue: device.config.queue,
            files: files.collect(),
            model: device.model,
            faults: device.faults,
            defect: device.defect,
            seed: root.split("disk").next() ^ index as u64,
        })
    });
    disks.collect()
}

fn make_cells(scenario: &Scenario, disks: &[SharedDisk], prepare: Prepare) -> Vec<Cell> {
    let cells = (0..scenario.shards).map(|number| {
        let id = ShardId(number);
        let device = |(index, device): (usize, &crate::scenario::DeviceScenario)| {
            if device.config.owner != id {
                return None;
            }
            let made: Box<dyn Device> = match disks.get(index) {
                Some(disk) => Box::new(disk.clone()),
                None => Box::new(NullDisk::new(10_000, device.config.queue.queue_depth as usize)),
            };
            Some(made)
        };
        let devices = scenario.devices.iter().enumerate().map(device).collect();
        let mut shard = Shard::new(scenario.shard_config(id))
            .expect("scenarios are drawn within the options' ranges");
        prepare(&mut shard, scenario, id);
        Cell {
            shard,
            executor: Executor::new(devices),
            inbox: Vec::with_capacity(1024),
            turn: Vec::with_capacity(1024),
        }
    });
    cells.collect()
}

/// Bytes of a reader's bio.
const STEP: u32 = 8192;

/// How many bios go over a volume once.
fn bios_of_reader(size: u64) -> u32 {
    size.div_ceil(u64::from(STEP)) as u32
}

/// The job that reads a whole volume, each byte once.
fn reader(scenario: &Scenario, volume: usize) -> JobOptions {
    let size = scenario.volumes[volume].options.size;
    JobOptions {
        volume: VolumeId(volume as u16),
        start: 0,
        end: size,
        block_size: STEP,
        depth: scenario.bios_max.min(8) as u16,
        batch: 8,
        bios: bios_of_reader(size),
        weights: [1, 0, 0, 0, 0, 0, 0],
        sizes: [STEP; 4],
        pattern: Pattern::Once,
        ..JobOptions::default()
    }
}
