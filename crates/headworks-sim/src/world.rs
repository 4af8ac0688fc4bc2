//! The event loop of the simulation: N shards on one thread, the same `Shard` and `Executor` as
//! the server, in virtual time.
//!
//! ```text
//!   heap, timers, disks --due--> inboxes --turn of a seeded shard, seeded size--> handle --actions--> executor
//!        ^                                                                                              |
//!        `--------------- messages (seeded delay, in order per pair), commands, next bios <-------------'
//! ```
//!
//! When several shards have inputs at one time, the seed decides which runs first. A round runs the
//! jobs; then either the world becomes idle and is checked for leaks, or the power is cut under
//! load and new shards start over what the disks kept; then every byte is read back. Invariants:
//! time does not go back, and every input comes from an event, a disk or a timer.

use headworks_core::prng::Prng;
use headworks_core::record::RunHash;
use headworks_core::time::{MS, SEC};
use headworks_core::{
    Control, DeviceId, Input, Instant, IoError, ShardId, VolumeConfig, WriteMode,
};

use crate::check::{Failure, check_idle, violation};
use crate::connection::Connection;
use crate::coverage::{Coverage, Point};
use crate::disk::{Fault, LatencyModel, SharedDisk};
use crate::environment::{Environment, Event, NoDisk, ShardPort};
use crate::oracle::CutReport;
use crate::scenario::{Scenario, WorldDefect};
use crate::workload::Job;

mod caps;
mod ends;
mod hotplug;
mod hotplug_plan;
mod layer_plan;
mod layers;
mod make;
mod observe;
mod upgrade;
mod upgrade_plan;

pub use ends::STOP_RULE;
pub use make::Prepare;

use hotplug_plan::Hotplug;
use layer_plan::Layers;
use make::{FLUSHES, SimShard, bios_of_reader, make_disks, make_shards, reader};
use observe::{count_disk, observe_failures, observe_inputs};
use upgrade_plan::Upgrades;

/// A simulated world of one scenario.
pub struct World {
    shards: Vec<SimShard>,
    env: Environment,
    disks: Vec<SharedDisk>,
    prepare: Prepare,
    order: Prng,
    hotplug: Hotplug,
    /// The volumes on a base.
    layers: Layers,
    /// What tenants may have dirty.
    caps: caps::CapCheck,
    hash: RunHash,
    turns: u64,
    turns_max: u64,
    cuts: u64,
    deaths: u64,
    /// Draws what happens at process deaths.
    death: Prng,
    /// Draws when shards are replaced, and how.
    upgrades: Upgrades,
    /// Draws when overlays get a new layer.
    snapshots: Prng,
    /// When flushes of a stop were last submitted again.
    flushed_again: Instant,
    /// Timers that still fire once no bio is outstanding.
    idle_left: u32,
}

/// The result of a run without a violation.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Hash of all inputs and actions.
    pub hash: u64,
    /// Number of bios answered.
    pub bios: u64,
    /// Number of turns of all shards.
    pub turns: u64,
    /// Virtual time of the end.
    pub at: Instant,
    /// Coverage points that were passed.
    pub coverage: Coverage,
    /// Completions of unknown commands.
    pub unknown_completions: u64,
    /// Lies told by the disks.
    pub lies: u64,
    /// Number of power cuts.
    pub cuts: u64,
    /// Number of process deaths.
    pub deaths: u64,
    /// Number of upgrades that took place.
    pub upgrades: u64,
    /// Answers of each job in each second of virtual time.
    pub answers: Vec<Vec<u32>>,
    /// State found after the cuts, by write mode.
    pub survived: [CutReport; WriteMode::ALL.len()],
}

const FLUSH_AGAIN: &str =
    "flushes succeed after the fault is gone and failed data are acknowledged";

/// Why a run of turns ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// No event is pending.
    Idle,
    /// The power cut is due.
    Cut,
    /// A rule was violated.
    Broken,
}

/// Runs `scenario` from start to end.
///
/// # Errors
/// The first violated rule.
pub fn run(scenario: Scenario) -> Result<Outcome, Box<Failure>> {
    run_prepared(scenario, |_, _, _| {})
}

/// As [`run`], with shards changed by `prepare`.
///
/// # Errors
/// The first violated rule.
pub fn run_prepared(scenario: Scenario, prepare: Prepare) -> Result<Outcome, Box<Failure>> {
    let rounds = scenario.rounds;
    let mut world = World::new(scenario, prepare);
    for round in 0..rounds {
        world.run_round(round);
        if world.env.broken.is_some() {
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
            let mut connection = Connection::new(id as u32, home, job);
            connection.export = scenario.tenants.export_of(id);
            connections.push(connection);
        }
        let shards = make_shards(&scenario, &disks, prepare);
        let hotplug = Hotplug::new(root.split("mover"), &scenario);
        let layers = Layers::new(root.split("laying"), &scenario);
        let env = Environment::new(scenario, connections);
        let mut world = Self {
            shards,
            env,
            disks,
            prepare,
            order: root.split("order"),
            hotplug,
            layers,
            caps: caps::CapCheck::default(),
            hash: RunHash::default(),
            turns: 0,
            turns_max: 0,
            cuts: 0,
            deaths: 0,
            death: root.split("deaths"),
            upgrades: Upgrades::new(root.split("upgrading")),
            snapshots: root.split("snapshots"),
            flushed_again: Instant(0),
            idle_left: 0,
        };
        world.lay_all();
        world
    }

    fn run_round(&mut self, round: u32) {
        let jobs = self.env.scenario.jobs.len();
        self.set_faulty(true);
        let changes = self.env.scenario.option_changes;
        for (device, after) in self.env.operator.start(changes).into_iter().enumerate() {
            let device = DeviceId(device as u16);
            self.env.events.push(self.env.now.after(after), Event::Switch { device });
        }
        if let Some(after) = self.env.tenants.start() {
            self.env.events.push(self.env.now.after(after), Event::TenantChange);
        }
        if let Some(after) = self.env.limits.start() {
            self.env.events.push(self.env.now.after(after), Event::LimitChange);
        }
        self.plan_hotplug();
        for connection in &mut self.env.connections[..jobs] {
            let there = self.hotplug.is_present(connection.job.options.volume);
            connection.paused = !there;
            connection.job.left = if there { connection.job.options.bios } else { 0 };
        }
        // The cut others_pending after a different number of turns in each round.
        let cut_after = self.env.scenario.ends.cut_after;
        let cut_after = match self.env.scenario.cache.is_on() {
            false => cut_after.map(|turns| turns / u64::from(round + 1)),
            // As many early cuts as late ones: a run has more turns under full load than at its
            // beginning.
            true => cut_after.map(|turns| {
                let magnitude = 1 << self.order.between(0, turns.ilog2().into());
                self.order.between(magnitude / 2, magnitude).max(1)
            }),
        };
        self.plan_upgrades(cut_after);
        let stop = self.run_jobs(cut_after);
        self.end_upgrades(stop);
        match stop {
            Stop::Broken => return,
            Stop::Idle => self.check_idle(),
            Stop::Cut if self.env.scenario.ends.stops => self.stop_beside_hung(),
            Stop::Cut if self.dies() => self.die(),
            Stop::Cut => self.cut(),
        }
        if self.env.broken.is_some() || !self.env.scenario.checked {
            return;
        }
        self.set_faulty(false);
        if stop == Stop::Idle {
            self.upgrade_idle();
        }
        self.verify();
        if stop == Stop::Idle {
            self.snapshot_idle();
        }
        // The contents of memory were verified. Now flush, cut the power, and verify the disk.
        if stop == Stop::Idle && self.dies() {
            // What was acknowledged and never flushed survives, too.
            self.die();
            self.verify();
        } else if stop == Stop::Idle && self.env.scenario.cache.is_on() {
            self.flush_all();
            if self.env.broken.is_none() {
                self.cut();
                self.verify();
            }
        }
    }

    /// Flushes every volume; the operator acknowledges failed data where needed.
    fn flush_all(&mut self) {
        let jobs = self.env.scenario.jobs.len();
        for index in jobs..self.env.connections.len() {
            let volume = self.env.connections[index].job.options.volume;
            if !self.hotplug.is_present(volume) {
                continue;
            }
            let mut tries = 0;
            loop {
                let job = &mut self.env.connections[index].job;
                let weights = std::mem::replace(&mut job.options.weights, FLUSHES);
                job.left = 1;
                let stop = self.run_jobs(None);
                self.env.connections[index].job.options.weights = weights;
                let flushed = self.env.flushes.last(volume);
                if stop == Stop::Broken || flushed.is_some_and(|status| status.is_ok()) {
                    break;
                }
                tries += 1;
                // With the shortest time-out a slow disk needs many tries.
                let most = match flushed {
                    Some(Err(IoError::TimedOut)) => 1_000,
                    _ => 4,
                };
                if tries > most {
                    let detail = format!("volume {}: {flushed:?}", volume.0);
                    return self.env.fail(violation(FLUSH_AGAIN, detail));
                }
                if tries > 1 {
                    self.env.schedule_acknowledge(volume);
                }
            }
        }
        if self.env.broken.is_none() {
            self.check_idle();
        }
    }

    /// Reads every byte back.
    fn verify(&mut self) {
        let jobs = self.env.scenario.jobs.len();
        // One volume at a time, so that even the smallest shards have room for the reads.
        for index in jobs..self.env.connections.len() {
            let job = &mut self.env.connections[index].job;
            if !self.hotplug.is_present(job.options.volume) {
                continue;
            }
            let size = self.env.scenario.volumes[index - jobs].options.size;
            job.rewind();
            job.left = bios_of_reader(size);
            if self.run_jobs(None) == Stop::Broken {
                return;
            }
        }
        if let Err(violation) = self.env.oracle.recovered() {
            self.env.fail(violation);
        }
        self.check_idle();
    }

    fn set_faulty(&mut self, faulty: bool) {
        self.env.faulty = faulty;
        for disk in &self.disks {
            disk.lock().set_faulty(faulty);
        }
    }

    /// Runs until no event is pending, or for `turns` turns.
    fn run_jobs(&mut self, turns: Option<u64>) -> Stop {
        let left: u64 = self.env.connections.iter().map(|c| u64::from(c.job.left)).sum();
        // Rejections and messages take turns, too; ten times as many is no progress.
        self.turns_max = self.turns + 2_000 * (left + 100);
        let stop_at = turns.map(|turns| self.turns + turns);
        if self.env.scenario.cache.is_on() {
            self.idle_left = self.order.below(64) as u32;
            self.env.progress.made(self.env.now);
        }
        self.env.start();
        self.issue_ready();
        loop {
            if self.env.broken.is_some() {
                return Stop::Broken;
            }
            if stop_at.is_some_and(|at| self.turns >= at) {
                return Stop::Cut;
            }
            if self.is_upgrade_due() {
                self.upgrade();
                continue;
            }
            self.try_snapshot();
            if !self.step() {
                return match self.env.broken {
                    Some(_) => Stop::Broken,
                    None => Stop::Idle,
                };
            }
        }
    }

    /// Runs one turn of one shard, or advances to the next event; false when none is pending.
    fn step(&mut self) -> bool {
        let busy = self.shards.iter().filter(|shard| !shard.inbox.is_empty()).count();
        if busy > 0 {
            let mut pick = match busy {
                1 => 0,
                busy => self.order.below(busy as u64),
            };
            let index = self.shards.iter().position(|shard| {
                let this = !shard.inbox.is_empty() && pick == 0;
                pick -= u64::from(!shard.inbox.is_empty() && !this);
                this
            });
            self.turn(index.expect("one of the busy shards was picked"));
            return true;
        }
        let timers = self.env.timers.iter().flatten().copied();
        let timers = timers.chain(self.env.next_memory_at());
        let disks = self.shards.iter().filter_map(|shard| shard.executor.next_timeout());
        let others = disks.chain(self.env.events.next_at()).min();
        let Some(next) = timers.chain(others).min() else {
            return false;
        };
        if self.env.scenario.cache.is_on() && !self.continues(next, others.is_some()) {
            return false;
        }
        self.env.now = self.env.now.max(next);
        self.deliver_due();
        true
    }

    /// Whether a world with caches continues, whose timers may never end: while bios are
    /// outstanding, and then for a drawn number of timers, so that dirty data may or may not be
    /// written.
    fn continues(&mut self, next: Instant, others_pending: bool) -> bool {
        const LONGEST: u64 = 3_600 * SEC;
        if self.env.has_waiters() {
            let since = next.since(self.env.progress.last());
            if since > LONGEST {
                self.env.fail(violation(
                    "every bio and control change is answered",
                    format!("no progress for {} s", since / SEC),
                ));
            }
            return since <= LONGEST;
        }
        // Leased tags are returned, and lost wake-ups of Linux 5.18 are recovered.
        if others_pending || next.since(self.env.progress.last_sign()) < 6 * SEC {
            return true;
        }
        self.idle_left = self.idle_left.saturating_sub(1);
        self.idle_left > 0
    }

    /// Moves everything that is due into the inboxes.
    fn deliver_due(&mut self) {
        let now = self.env.now;
        while let Some((_, happening)) = self.env.events.pop_due(now) {
            match happening {
                Event::Deliver { from, to, message } => {
                    let input = self.env.receive_message(from, to, message);
                    self.shards[usize::from(to.0)].inbox.push(input);
                }
                Event::Issue { connection } => self.env.ready.push(connection),
                Event::HotplugChange | Event::Switch { .. } | Event::Layer { .. }
                    if self.env.paused =>
                {
                    self.env.events.push(now.after(MS), happening);
                }
                Event::HotplugChange => self.continue_hotplug(),
                Event::Layer { layer, plan } => self.continue_layer(layer, plan),
                Event::Switch { device } if self.hotplug.affects(device) => {
                    // No change of a device that is absent, or not yet known to all shards.
                    if self.hotplug.is_active() {
                        self.env.events.push(now.after(MS), Event::Switch { device });
                    }
                }
                Event::Switch { device } => {
                    let units = self.env.scenario.cache.units;
                    if let Some(limit) = self.env.operator.change_limit(units) {
                        let shard = self.order.below(self.shards.len() as u64) as usize;
                        self.shards[shard].inbox.push(Input::Control(limit));
                    }
                    let config = &self.env.scenario.devices[usize::from(device.0)].config;
                    if let Some(control) = self.env.operator.change(device, &config.queue) {
                        let owner = usize::from(config.owner.0);
                        let shard = match control {
                            // Write-back options are per shard: any shard will do.
                            Control::SetDirty { .. } => {
                                self.env.coverage.hit(Point::DirtySet);
                                self.order.below(self.shards.len() as u64) as usize
                            }
                            _ => owner,
                        };
                        self.shards[shard].inbox.push(Input::Control(control));
                    }
                }
                Event::TenantChange => {
                    let Some((control, after)) = self.env.tenants.change() else { continue };
                    self.env.coverage.hit(Point::TenantChanged);
                    for shard in &mut self.shards {
                        shard.inbox.push(Input::Control(control));
                    }
                    self.env.limits.follow(now, &control);
                    self.plan_all_limits();
                    self.env.events.push(now.after(after), Event::TenantChange);
                }
                Event::LimitChange => {
                    let Some(after) = self.env.limits.change(now) else { continue };
                    self.env.coverage.hit(Point::LimitChanged);
                    self.plan_all_limits();
                    self.env.events.push(now.after(after), Event::LimitChange);
                }
                Event::Limits { shard } => {
                    self.env.limits.look(usize::from(shard.0));
                    let port = &mut self.shards[usize::from(shard.0)];
                    let room = (port.core.room() as usize).saturating_sub(port.inbox.len());
                    self.env.pass_limited(shard, room, &mut port.inbox);
                }
                Event::Acknowledge { volume } => {
                    let input = self.env.acknowledge(volume);
                    let VolumeConfig { home, device, .. } =
                        self.env.scenario.volumes[usize::from(volume.0)];
                    let owner = self.env.scenario.devices[usize::from(device.0)].config.owner;
                    self.shards[usize::from(owner.0)].inbox.push(input);
                    if home != owner && self.env.scenario.is_cached(volume) {
                        self.shards[usize::from(home.0)].inbox.push(input);
                    }
                }
            }
        }
        for (shard, answer) in self.env.take_memory_answers() {
            self.shards[usize::from(shard.0)].inbox.push(answer);
        }
        for (shard, timer) in self.shards.iter_mut().zip(&mut self.env.timers) {
            if timer.is_some_and(|at| at <= now) {
                *timer = None;
                self.env.coverage.hit(Point::Timer);
                shard.inbox.push(Input::Timer);
            }
            if shard.executor.next_timeout().is_some_and(|at| at <= now) {
                shard.executor.on_timeout(now, &mut NoDisk, &mut shard.inbox);
            }
        }
        self.issue_ready();
    }

    /// Plans the next look at the limits in front of every shard, after a change.
    fn plan_all_limits(&mut self) {
        for shard in 0..self.shards.len() {
            self.env.plan_limits(ShardId(shard as u16));
        }
    }

    fn issue_ready(&mut self) {
        while let Some(connection) = self.env.ready.pop() {
            let home = self.env.connections[self.env.index(connection)].home;
            let shard = &mut self.shards[usize::from(home.0)];
            // Each bio in the inbox may take a slot.
            let room = (shard.core.room() as usize).saturating_sub(shard.inbox.len());
            self.env.issue(connection, room, &mut shard.inbox);
        }
    }

    /// Runs one turn of a shard and executes its actions.
    fn turn(&mut self, index: usize) {
        self.turns += 1;
        self.env.progress.begin_turn(self.turns);
        let (now, id) = (self.env.now, ShardId(index as u16));
        let most = self.env.scenario.turn_max as u64;
        let size = self.order.between(1, most) as usize;
        let size = self.shards[index].until_acknowledge(size);
        let shard = &mut self.shards[index];
        if size >= shard.inbox.len() {
            std::mem::swap(&mut shard.inbox, &mut shard.turn);
        } else {
            shard.turn.extend(shard.inbox.drain(..size));
        }
        self.hash.add(u64::from(id.0) << 32 | shard.turn.len() as u64);
        self.hash.add(now.0);
        shard.turn.iter().for_each(|input| self.hash.add_input(input));
        if self.env.scenario.checked {
            observe_inputs(&mut self.env, shard);
        }
        shard.core.handle(now, &shard.turn);
        self.caps.check(&mut self.env, index, shard);
        shard.turn.clear();
        let actions = shard.core.actions();
        self.hash.add_actions(actions);
        if self.env.scenario.checked {
            self.env.cover_actions(id, actions);
        }
        let mut port = ShardPort { env: &mut self.env, shard: id };
        shard.executor.run(now, actions, &mut port, &mut NoDisk, &mut shard.inbox);
        self.env.submit_returned(id, shard.core.room() as usize, &mut shard.inbox);
        observe_failures(&mut self.env, shard, id);
        self.env.frames.checksum_writes();
        if self.env.scenario.defect == WorldDefect::ReusesBuffers {
            self.env.reuse_buffers(actions);
        }
        shard.core.clear_actions();
        if shard.core.room() > 0 {
            self.env.resume_starved(id);
        }
        self.issue_ready();
        if self.turns > self.turns_max {
            self.env.fail(violation(
                "a scenario ends within its turn limit",
                format!("not done after {} turns", self.turns),
            ));
        }
    }

    /// Checks an idle world: everything is answered and all resources are returned.
    fn check_idle(&mut self) {
        let waiting: usize = self.env.connections.iter().map(Connection::in_flight).sum();
        let to_come: u32 = self.env.connections.iter().map(|c| c.job.left).sum();
        if waiting > 0 || to_come > 0 {
            return self.env.fail(violation(
                "every bio and control change is answered",
                format!(
                    "{waiting} bios in flight, {to_come} to be submitted, and no event pending"
                ),
            ));
        }
        let unanswered = self.env.operator.unanswered();
        if unanswered > 0 {
            return self.env.fail(violation(
                "every bio and control change is answered",
                format!("{unanswered} changes of options were not answered"),
            ));
        }
        for (index, shard) in self.shards.iter().enumerate() {
            if let Err(violation) = check_idle(&self.env.scenario, &shard.core, index as u16) {
                return self.env.fail(violation);
            }
        }
        for (index, disk) in self.disks.iter().enumerate() {
            let in_flight = disk.lock().in_flight();
            if in_flight > 0 {
                let detail = format!("device {index} still has {in_flight} commands");
                self.env.fail(violation("an idle shard holds no resources", detail));
            }
        }
        self.check_commands();
    }

    /// Checks that the disks were given valid commands only.
    fn check_commands(&mut self) {
        for disk in &self.disks {
            if let Some(broken) = disk.lock().broken() {
                let broken = violation("commands respect the device's limits", broken);
                self.env.fail(broken);
            }
        }
    }

    /// Cuts the power and starts new shards.
    fn cut(&mut self) {
        self.check_commands();
        self.cuts += 1;
        self.env.cover_cut();
        for shard in &self.shards {
            let stats = shard.core.cache_stats().unwrap_or_default();
            let (held, shadow) = (stats.held > 0, stats.shadows > 0);
            let dirty = shard.core.dirty_stats().is_some_and(|stats| stats.nr_dirty > 0);
            self.env.coverage.add(Point::CutHeld, held.into());
            self.env.coverage.add(Point::CutShadow, shadow.into());
            self.env.coverage.add(Point::CutDirty, dirty.into());
        }
        self.count_caches();
        let now = self.env.now;
        for disk in &self.disks {
            disk.lock().cut(now);
        }
        self.env.cut();
        self.stop_hotplug();
        self.shards = make_shards(&self.env.scenario, &self.disks, self.prepare);
        self.caps.replace();
        self.restore_hotplugged();
        self.lay_all();
    }

    fn finish(mut self) -> Result<Outcome, Box<Failure>> {
        // If a disk was given an invalid command, that is the first cause.
        if self.env.broken.is_some() {
            let first = self.disks.iter().find_map(|disk| {
                let broken = disk.lock().broken().map(String::from);
                broken.map(|text| violation("commands respect the device's limits", text))
            });
            self.env.broken = first.or(self.env.broken);
        }
        self.check_notices();
        self.count_caches();
        self.count_coverage();
        let lies = self.disks.iter().map(|disk| disk.lock().counters().lies).sum();
        match self.env.broken.take() {
            Some(violation) => Err(Box::new(Failure {
                seed: self.env.scenario.seed,
                at: self.env.now,
                history: self.env.history(violation.place),
                state: self.state(),
                violation,
            })),
            None => Ok(Outcome {
                hash: self.hash.0,
                bios: self.env.progress.answered(),
                turns: self.turns,
                at: self.env.now,
                coverage: self.env.coverage,
                unknown_completions: self.env.progress.unknown_completions(),
                lies,
                cuts: self.cuts,
                deaths: self.deaths,
                upgrades: self.upgrades.done(),
                answers: self.env.connections.iter().map(|c| c.answers.clone()).collect(),
                survived: self.env.oracle.survived(),
            }),
        }
    }

    /// Checks that every failed device flush caused a notice to the operator.
    fn check_notices(&mut self) {
        let failed_flushes: u64 = self
            .disks
            .iter()
            .map(|disk| disk.lock().counters().faults[Fault::Flush as usize])
            .sum();
        let said = self.env.coverage.count(Point::NoticeSuspect);
        if failed_flushes > 0 && said == 0 && self.cuts + self.deaths == 0 {
            let detail = format!("{failed_flushes} device flushes failed without a notice");
            self.env.fail(violation("an error is never lost", detail));
        }
    }

    fn state(&self) -> String {
        let mut text = format!("  after {} turns\n", self.turns);
        for (index, shard) in self.shards.iter().enumerate() {
            text += &format!(
                "  shard {index}: room {} of {}, {} inputs wait, timer {:?}\n",
                shard.core.room(),
                self.env.scenario.bios_max,
                shard.inbox.len(),
                self.env.timers[index].map(|at| at.0),
            );
            if let (Some(cache), Some(dirty)) = (shard.core.cache_stats(), shard.core.dirty_stats())
            {
                let headworks_core::cache::CacheStats { size, held, shadowed, waits, .. } = cache;
                text +=
                    &format!("    cache: {} free, {held} held, {shadowed} shadowed,", size.free);
                text += &format!(" waits {waits:?}, {} dirty,", dirty.nr_dirty);
                text += &format!(" {} under write-out\n", dirty.nr_writeback);
                text += &format!("    {}\n", shard.core.told_waits());
            }
            for device in 0..self.env.scenario.devices.len() as u16 {
                let id = DeviceId(device);
                if let Some(free) = shard.core.tags_free(id) {
                    text += &format!("    owns device {device}: {free} tags free\n");
                }
                if let Some(leased) = shard.core.tags_leased(id).filter(|&leased| leased > 0) {
                    text += &format!("    leases {leased} tags of device {device}\n");
                }
            }
        }
        for (index, disk) in self.disks.iter().enumerate() {
            let device = &self.env.scenario.devices[index];
            let volumes = self.env.scenario.volumes.iter().enumerate();
            let volumes: Vec<_> = volumes
                .filter(|(_, volume)| usize::from(volume.device.0) == index)
                .map(|(id, _)| id)
                .collect();
            let disk = disk.lock();
            text += &format!(
                "  device {index} with volumes {volumes:?}: {} commands in it, io_timeout {} ns, {:?}, {:?}\n",
                disk.in_flight(),
                device.config.queue.io_timeout_ns,
                device.model,
                device.faults
            );
        }
        text + &self.env.state()
    }

    /// Adds the counters of the caches to the coverage, before the shards are dropped.
    fn count_caches(&mut self) {
        for shard in &self.shards {
            if let Some(stats) = shard.core.cache_stats() {
                self.env.coverage.add_cache(&stats);
            }
        }
    }

    fn count_coverage(&mut self) {
        let coverage = &mut self.env.coverage;
        coverage.hit(match self.env.scenario.shards {
            1 => Point::ShardsOne,
            2 => Point::ShardsTwo,
            _ => Point::ShardsFour,
        });
        for (disk, device) in self.disks.iter().zip(&self.env.scenario.devices) {
            coverage.hit(match device.model {
                LatencyModel::Immediate => Point::ModelImmediate,
                LatencyModel::Constant { .. } => Point::ModelConstant,
                LatencyModel::Seek { .. } => Point::ModelSeek,
            });
            count_disk(coverage, &disk.lock());
        }
    }
}
