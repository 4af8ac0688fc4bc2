//! The world of a device behind a remote: random commands while the remote's streams are cut, its replies come in any order, it restarts,
//! and in half of the schedules refuses some changes and flushes, those of the device's own among them.
//!
//! A seed draws the number of connections, the protocol, whether the remote is stable, what the device may keep, how often the remote
//! refuses, and a schedule of commands and faults. The model knows what each block may contain (`content`). Its rules:
//!
//! - a read returns what was acknowledged last (also where chunks overlap and leave a gap: it is sent again), or is whole and unknown after a loss that was told; after a refused change its bytes are
//!   those of before or of the change until the next one succeeds;
//! - a loss is told before any flush succeeds, and a remote that keeps or gets again what it acknowledged loses only what it refuses;
//! - each command is answered once, with an error only if the remote refused it, and a flush after a loss; a refused flush covers nothing;
//! - in the end everything flushed is there after a restart.
//!
//! The same seed gives the same run.

mod content;
pub mod remote;

use std::collections::BTreeMap;

use headworks::driver::Span;
use headworks_core::prng::Prng;
use headworks_core::time::{MS, SEC};
use headworks_core::{BioFlags, Completion, IoError, Op, RequestId, Status};
use headworks_testing::Bench;

use self::content::Content;
use self::remote::{BLOCK, Refusals, Remote, SIZE, Shared, TestDial, all_flags, lock};
use super::{NbdDevice, RemoteOptions};

/// Blocks that half of the commands are for.
const HOT: usize = 16;
/// Steps of a schedule.
const STEPS: u64 = 400;
/// Silence after which a connection is lost.
const TIMEOUT_NS: u64 = SEC;

/// What schedules have met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Met {
    /// Commands that were answered.
    pub commands: u64,
    /// Restarts of the remote.
    pub restarts: u64,
    /// Restarts after a chosen byte of its replies.
    pub cuts: u64,
    /// Connections that the remote closed, without an end of its own.
    pub disconnects: u64,
    /// Times that the remote did nothing for a while.
    pub stalls: u64,
    /// Losses that the device told.
    pub losses: u64,
    /// Flushes that failed, for whatever reason.
    pub failed_flushes: u64,
    /// Changes that the remote refused.
    pub refused_changes: u64,
    /// Flushes that the remote refused.
    pub refused_flushes: u64,
    /// Kept writes that the remote refused when they were sent again.
    pub refused_repeats: u64,
    /// Reads that were answered with a gap.
    pub gaps: u64,
    /// A hash of all answers, to compare runs.
    pub hash: u64,
}

impl Met {
    /// Adds what another schedule has met.
    pub fn add(&mut self, other: &Self) {
        self.commands += other.commands;
        self.restarts += other.restarts;
        self.cuts += other.cuts;
        self.disconnects += other.disconnects;
        self.stalls += other.stalls;
        self.losses += other.losses;
        self.failed_flushes += other.failed_flushes;
        self.refused_changes += other.refused_changes;
        self.refused_flushes += other.refused_flushes;
        self.refused_repeats += other.refused_repeats;
        self.gaps += other.gaps;
        self.hash = self.hash.rotate_left(7) ^ other.hash;
    }
}

/// A command in flight.
struct InFlight {
    op: Op,
    /// Its block; none for a flush.
    block: Option<usize>,
    memory: Box<[u8]>,
    /// The step of its submission.
    at: u64,
    /// Losses that were told before it.
    losses: u64,
    is_durable: bool,
}

/// What a user of the device knows.
struct World {
    bench: Bench<NbdDevice<TestDial>>,
    remote: Shared,
    prng: Prng,
    is_stable: bool,
    /// The device keeps what no flush covers: nothing is lost.
    keeps: bool,
    /// The remote refuses some changes and flushes.
    refuses: bool,
    /// Refusals that commands of this world have been answered with.
    answered_refusals: u64,
    /// What each block may have.
    contents: Vec<Content>,
    /// Blocks that were acknowledged at a step and not flushed since.
    dirty: BTreeMap<usize, u64>,
    in_flight: BTreeMap<(u32, u32), InFlight>,
    step: u64,
    stalled_until: u64,
    /// No command is submitted before this step.
    quiet_until: u64,
    met: Met,
}

/// Runs the schedule of a seed.
///
/// # Errors
/// The broken rule in a sentence.
pub fn run(seed: u64) -> Result<Met, String> {
    run_with(seed, true, |_| {})
}

/// Runs the schedule of a seed, without refusals unless they are permitted.
fn run_with(
    seed: u64,
    may_refuse: bool,
    prepare: impl FnOnce(&mut NbdDevice<TestDial>),
) -> Result<Met, String> {
    let mut prng = Prng::new(seed);
    let (is_structured, is_stable) = (prng.below(3) > 0, prng.below(4) == 0);
    let (shared, dial) = Remote::new(prng.next(), all_flags(), is_structured);
    lock(&shared).connections = prng.between(1, 4) as usize;
    let refuses = prng.below(2) == 0 && may_refuse;
    if refuses {
        let refusals = &mut lock(&shared).refusals;
        refusals.changes_one_in = [0, 5, 50, 500][prng.below(4) as usize];
        refusals.flushes_one_in = [0, 2, 10, 50][prng.below(4) as usize];
    }
    lock(&shared).gaps_one_in = [0, 0, 60][prng.below(3) as usize];
    // Nothing, room for a few writes, or for all.
    let keep = [0, 3 * BLOCK as u32, 1 << 20][prng.below(3) as usize];
    let options = RemoteOptions {
        keep,
        reconnect_ns: 3600 * SEC,
        timeout_ns: TIMEOUT_NS,
        stable: is_stable,
        ..RemoteOptions::default()
    };
    let opened = lock(&shared).open();
    let mut device = NbdDevice::new("a remote", options, prng.next(), (dial, opened));
    prepare(&mut device);
    let mut world = World {
        bench: Bench::new(device),
        remote: shared,
        prng,
        is_stable,
        keeps: keep > 0,
        refuses,
        answered_refusals: 0,
        contents: vec![Content::zeros(); SIZE / BLOCK],
        dirty: BTreeMap::new(),
        in_flight: BTreeMap::new(),
        step: 1,
        stalled_until: 0,
        quiet_until: 0,
        met: Met::default(),
    };
    for _ in 0..STEPS {
        world.one_step()?;
    }
    world.finish()?;
    world.met.gaps = lock(&world.remote).gaps;
    Ok(world.met)
}

impl World {
    fn one_step(&mut self) -> Result<(), String> {
        self.step += 1;
        let is_quiet = self.step < self.quiet_until;
        if !is_quiet && self.prng.below(25) == 0 {
            self.quiet_until = self.step + self.prng.between(5, 30);
            let reads = if self.prng.below(2) == 0 { HOT } else { 0 };
            for block in 0..reads {
                self.submit_if_free(Op::Read, block, 0xee, false);
            }
        }
        // A burst fills the first connection, so that others are used.
        let most = if self.prng.below(8) == 0 { 60 } else { 4 };
        for _ in 0..if is_quiet { 0 } else { self.prng.below(most) } {
            self.submit();
        }
        for _ in 0..self.prng.below(5) {
            self.pump();
            self.bench.step_now();
            self.collect()?;
        }
        self.fault();
        self.bench.now = self.bench.now.after(self.prng.below(20) * MS);
        Ok(())
    }

    /// Lets the remote do something; returns whether it did.
    fn pump(&mut self) -> bool {
        let mut remote = lock(&self.remote);
        let before = remote.refusals.changes;
        let moved = remote.pump();
        // Nothing else is in flight while kept writes are sent again.
        if self.bench.device().repeat.is_some() {
            self.met.refused_repeats += remote.refusals.changes - before;
        }
        (self.met.refused_changes, self.met.refused_flushes) =
            (remote.refusals.changes, remote.refusals.flushes);
        moved
    }

    /// Draws a fault; most steps have none.
    fn fault(&mut self) {
        let mut remote = lock(&self.remote);
        if remote.is_stalled && self.step >= self.stalled_until {
            remote.resume();
        }
        // Most faults come while nothing is asked.
        let rarely = if self.step < self.quiet_until { 100 } else { 300 };
        // What the device sends first after a fault is refused, or what a client sends.
        if self.refuses && self.prng.below(rarely / 2) == 0 {
            remote.refusals.next_changes = self.prng.between(1, 8) as u32;
        }
        if self.refuses && self.prng.below(rarely / 2) == 0 {
            remote.refusals.next_flushes = self.prng.between(1, 20) as u32;
        }
        match self.prng.below(rarely) {
            // What it has received is kept until it goes on.
            _ if remote.is_stalled => {}
            0..=2 if self.is_stable => {
                self.met.restarts += 1;
                remote.restart_stable();
            }
            0..=2 => {
                self.met.restarts += 1;
                remote.restart();
                // Of what is written again, perhaps.
                if self.refuses && self.prng.below(2) == 0 {
                    remote.refusals.next_changes = self.prng.between(1, 8) as u32;
                }
            }
            // A cut restarts it as one that loses.
            3..=4 if !self.is_stable => {
                self.met.cuts += 1;
                remote.cut_after = Some(remote.sent + self.prng.below(3000) as usize);
            }
            5..=6 => {
                self.met.disconnects += 1;
                remote.disconnect();
            }
            7 => {
                self.met.stalls += 1;
                remote.is_stalled = true;
                self.stalled_until = self.step + self.prng.between(1, 200);
            }
            _ => {}
        }
    }

    fn submit(&mut self) {
        // Some blocks are written again and again.
        let blocks = if self.prng.below(2) == 0 { HOT } else { SIZE / BLOCK };
        let block = self.prng.below(blocks as u64) as usize;
        let ops = [Op::Read, Op::Write, Op::Write, Op::WriteZeroes, Op::Discard, Op::Flush];
        let op = ops[self.prng.below(ops.len() as u64) as usize];
        let value = if op == Op::Write { self.prng.next() as u8 } else { 0xee };
        let is_durable = op.is_write() && self.prng.below(4) == 0;
        self.submit_if_free(op, block, value, is_durable);
    }

    /// Submits a command unless another one of its block is in flight.
    fn submit_if_free(&mut self, op: Op, block: usize, value: u8, is_durable: bool) {
        if self.in_flight.values().all(|other| other.block != Some(block)) {
            self.submit_one(op, block, value, is_durable);
        }
    }

    fn submit_one(&mut self, op: Op, block: usize, value: u8, is_durable: bool) {
        let mut memory = vec![value; BLOCK].into_boxed_slice();
        // SAFETY: `in_flight` has the memory until the command is answered.
        let spans =
            [0, BLOCK / 2].map(|at| unsafe { Span::new(memory.as_mut_ptr().add(at), BLOCK / 2) });
        let spans = if op.has_data() { &spans[..] } else { &[] };
        let flags = if is_durable { BioFlags::FUA } else { BioFlags::NONE };
        let (offset, len, block) = match op {
            Op::Flush => (0, 0, None),
            _ => ((block * BLOCK) as u64, BLOCK as u32, Some(block)),
        };
        let losses = self.met.losses + u64::from(!self.bench.lost.is_empty());
        let id = self.bench.submit_spans(op, flags, offset, len, spans);
        let at = self.step;
        let command = InFlight { op, block, memory, at, losses, is_durable };
        self.in_flight.insert(key(id), command);
    }

    /// Takes the answers of one call of the device: what it acknowledged before a loss in that call is lost, too.
    fn collect(&mut self) -> Result<(), String> {
        let (mut flushes, losses) = (Vec::new(), self.met.losses);
        for done in std::mem::take(&mut self.bench.completions) {
            let Some(command) = self.in_flight.remove(&key(done.id)) else {
                return Err(format!("a command was answered twice: {done:?}"));
            };
            self.met.commands += 1;
            let word = u64::from(done.id.generation) ^ u64::from(done.status.is_ok()) << 32;
            self.met.hash = (self.met.hash ^ word).wrapping_mul(0x0100_0000_01b3);
            match command.op {
                Op::Flush => flushes.push((command, done)),
                _ => self.take_answer(command, done)?,
            }
        }
        if !std::mem::take(&mut self.bench.lost).is_empty() {
            self.met.losses += 1;
            if (self.is_stable || self.keeps) && !self.was_refused_unasked() {
                return Err("a loss was told although nothing is lost".to_owned());
            }
            for block in std::mem::take(&mut self.dirty).into_keys() {
                self.contents[block].lose(self.refuses);
            }
        }
        for (flush, done) in flushes {
            if done.status.is_ok() && losses > flush.losses {
                return Err("a flush succeeded although a loss was told while it waited".to_owned());
            }
            self.take_flush(&flush, done.status)?;
        }
        Ok(())
    }

    fn take_answer(&mut self, command: InFlight, done: Completion) -> Result<(), String> {
        let InFlight { op, block, memory, is_durable, .. } = command;
        let Some(block) = block else { return Ok(()) };
        let content = &mut self.contents[block];
        let value = if op == Op::Write { memory[0] } else { 0 };
        if let Err(error) = done.status {
            if op == Op::Read || !self.take_refusal(error) {
                return Err(format!("{op:?} of block {block} failed: {error}"));
            }
            self.contents[block].refuse(value);
            return Ok(());
        }
        match op {
            Op::Read => {
                let wrong = |wrong| format!("block {block} {wrong}, at step {}", self.step);
                if content.read(&memory).map_err(wrong)? {
                    // It was not lost, and no flush covers it yet.
                    self.dirty.insert(block, self.step);
                }
                return Ok(());
            }
            Op::Discard => content.discard(),
            _ => content.write(value),
        }
        match is_durable && op != Op::Discard {
            true => self.dirty.remove(&block),
            false => self.dirty.insert(block, self.step),
        };
        Ok(())
    }

    fn take_flush(&mut self, flush: &InFlight, status: Status) -> Result<(), String> {
        let Err(error) = status else {
            self.dirty.retain(|_, acknowledged| *acknowledged >= flush.at);
            return Ok(());
        };
        self.met.failed_flushes += 1;
        let was_lost = error == IoError::Medium && self.met.losses > flush.losses;
        match was_lost || self.take_refusal(error) {
            true => Ok(()),
            false => Err(format!("a flush failed: {error}")),
        }
    }

    /// Takes an error of a command as one of the remote's refusals; false if there is none left.
    fn take_refusal(&mut self, error: IoError) -> bool {
        let is_one = matches!(error, IoError::Medium | IoError::NoSpace);
        let is_left = self.was_refused_unasked();
        self.answered_refusals += 1;
        is_one && is_left
    }

    /// Whether the remote has refused something for which no command of this world has failed.
    fn was_refused_unasked(&self) -> bool {
        let refusals = lock(&self.remote).refusals;
        refusals.changes + refusals.flushes > self.answered_refusals
    }

    /// Lets both sides do what they can, with time, until every command is answered.
    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..20_000 {
            let mut moved = self.pump();
            moved |= self.bench.step_now();
            self.collect()?;
            if !moved && self.in_flight.is_empty() {
                return Ok(());
            }
            if !moved {
                self.bench.now = self.bench.now.after(10 * MS);
            }
        }
        Err(format!("{} commands were never answered", self.in_flight.len()))
    }

    /// Reads every block, flushes, restarts the remote, and reads every block again.
    fn finish(&mut self) -> Result<(), String> {
        {
            let mut remote = lock(&self.remote);
            remote.cut_after = None;
            remote.resume();
            let Refusals { changes, flushes, .. } = remote.refusals;
            remote.gaps_one_in = 0;
            remote.refusals = Refusals { changes, flushes, ..Refusals::default() };
        }
        self.settle()?;
        self.read_all()?;
        self.step += 1;
        self.submit_one(Op::Flush, 0, 0, false);
        self.settle()?;
        lock(&self.remote).restart();
        self.read_all()?;
        match self.bench.device().slots.count() {
            0 => Ok(()),
            left => Err(format!("{left} slots are in use in the end")),
        }
    }

    fn read_all(&mut self) -> Result<(), String> {
        for block in 0..SIZE / BLOCK {
            self.submit_one(Op::Read, block, 0xee, false);
        }
        self.settle()
    }
}

fn key(id: RequestId) -> (u32, u32) {
    (id.slot, id.generation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::defect::Defect;

    fn run_with_defect(seed: u64, defect: Defect) -> Result<Met, String> {
        run_with(seed, true, |device| device.defects.active = defect)
    }

    #[test]
    fn contents_equal_model_or_loss_is_told_first() {
        let mut met = Met::default();
        for seed in 0..100 {
            met.add(&run(seed).unwrap_or_else(|rule| panic!("seed {seed}: {rule}")));
        }
        let Met { restarts, cuts, disconnects, stalls, losses, failed_flushes, .. } = met;
        let Met { refused_changes, refused_flushes, refused_repeats, gaps, .. } = met;
        let faults = [restarts, cuts, disconnects, stalls, losses, failed_flushes, gaps];
        let refusals = [refused_changes, refused_flushes, refused_repeats];
        let least = faults.into_iter().chain(refusals).min();
        assert!(least > Some(15), "every case was met: {met:?}");
    }

    #[test]
    fn same_seed_repeats_a_schedule() {
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }

    #[test]
    fn every_defect_is_found() {
        for &defect in Defect::ALL {
            // The first that finds it: hundreds before it do not.
            let first = match defect {
                Defect::FlushCoversLater | Defect::FlushReleasesAll => 93,
                Defect::OlderRepeated => 319,
                Defect::RefusedFlushCovers => 201,
                _ => 0,
            };
            let found = (first..first + 1000).find(|&seed| {
                let outcome = std::panic::catch_unwind(|| run_with_defect(seed, defect));
                !matches!(outcome, Ok(Ok(_)))
            });
            assert!(found.is_some(), "{defect:?} was not found");
        }
    }

    #[test]
    fn some_defects_are_found_only_where_the_remote_refuses() {
        let defects =
            [Defect::OlderRepeated, Defect::RefusedRepeatIgnored, Defect::RefusedFlushCovers];
        for defect in defects {
            for seed in 0..40 {
                let outcome = run_with(seed, false, |device| device.defects.active = defect);
                assert!(outcome.is_ok(), "{defect:?}, seed {seed}: {outcome:?}");
            }
        }
    }
}
