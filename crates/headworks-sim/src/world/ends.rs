//! How the process of a simulated world ends: it dies, or it stops beside a device that does not answer.
//!
//! The death of the process: between any two actions, or within one that takes several stores.
//!
//! ```text
//!   a turn of a drawn shard: handle, the first k actions, a part of action k   (then nothing more runs)
//!   disks: what the kernel had is completed, or never began                    (`Disk::outlive`)
//!   recovery: redo the copy, read the dirty tables, write the blocks, sync
//!   new shards, empty frames; every byte is read back: every acknowledged write is there, no block is mixed
//! ```
//!
//! Frames, dirty tables and buffers are what the process leaves; everything else is new.
//!
//! A stop while the device of some volumes does not answer: each other volume is flushed as soon as its own clients have left.
//!
//! ```text
//!   clients send nothing more, a device hangs --> its own clients have left: flush of a volume, again while it times out --> flushed
//!                                            `-- the hung device's volumes: at most until the stop gives up
//!   the power is cut --> every byte that was acknowledged on the other devices is there
//! ```

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use headworks::driver::ActionSink;
use headworks::house::ChangeLog;
use headworks_cache_memory::{DirtyLog, dirty_blocks};
use headworks_core::cache::folio::BLOCK;
use headworks_core::time::{MS, SEC};
use headworks_core::{
    Action, Actions, CopyDirection, DeviceId, DirtyEntry, IoError, ShardId, VolumeId,
};

use super::World;
use super::make::{FLUSHES, make_shards};
use super::observe::observe_inputs;
use crate::check::violation;
use crate::coverage::Point;
use crate::disk::{Outage, OverlaidDisk};
use crate::environment::{NoDisk, ShardPort};
use crate::memory_space::MEMORY_RULE;
use crate::scenario::{RoundEnds, WorldDefect};

/// The rule of a stop.
pub const STOP_RULE: &str = "a stop beside a hung device flushes all other volumes";
/// Time of a stop.
const LIMIT: u64 = 60 * SEC;
/// Time after which flushes that timed out are submitted again.
const AGAIN: u64 = 10 * MS;
/// How long the device does not answer.
const HANGS: u64 = 3_600 * SEC;

impl World {
    /// Whether the process dies where a round ends, or the power is cut.
    pub(super) fn dies(&mut self) -> bool {
        let RoundEnds { deaths, cuts, .. } = self.env.scenario.ends;
        deaths && (!cuts || self.death.below(2) == 0)
    }

    /// Ends the process, starts new shards, and gives the disks what was only in memory.
    pub(super) fn die(&mut self) {
        self.check_commands();
        self.deaths += 1;
        self.env.coverage.hit(Point::ProcessDeath);
        self.last_turn();
        for shard in &self.shards {
            let stats = shard.core.cache_stats().unwrap_or_default();
            self.env.coverage.add(Point::DeathHeld, (stats.held > 0).into());
            let dirty = shard.core.dirty_stats().is_some_and(|stats| stats.nr_dirty > 0);
            self.env.coverage.add(Point::DeathDirty, dirty.into());
        }
        self.env.coverage.add(Point::DeathWriting, (self.env.frames.writing() > 0).into());
        self.count_caches();
        self.check_left();
        for disk in &self.disks {
            disk.lock().outlive(self.env.now);
        }
        let mut left: BTreeMap<VolumeId, Vec<(u64, Vec<u8>)>> = BTreeMap::new();
        for shard in 0..self.shards.len() {
            for (volume, offset, bytes) in self.recover(shard) {
                left.entry(volume).or_default().push((offset, bytes));
            }
        }
        left.into_iter().for_each(|(volume, blocks)| self.restore(volume, blocks));
        // Otherwise what is not restored is durable with the next flush, as far as the kernel has it.
        if !self.env.scenario.ends.cuts {
            for disk in &self.disks {
                disk.lock().sync();
            }
        }
        self.env.die();
        self.stop_hotplug();
        self.shards = make_shards(&self.env.scenario, &self.disks, self.prepare);
        self.caps.replace();
        self.restore_hotplugged();
        self.lay_all();
    }

    /// Checks that what the next process looks at has space.
    fn check_left(&mut self) {
        let Some(memory) = &self.env.memory else { return };
        let left = self.shards.iter().enumerate().map(|(index, shard)| {
            let table = shard.executor.log().map_or(&[][..], DirtyLog::table);
            let entries = table.iter().map(|word| DirtyEntry(word.load(Ordering::Relaxed)));
            let dirty = (0..).zip(entries).filter(|(_, entry)| entry.is_dirty());
            memory.check_left(ShardId(index as u16), dirty.map(|(unit, _)| unit))
        });
        if let Some(wrong) = left.filter_map(Result::err).next() {
            self.env.fail(violation(MEMORY_RULE, wrong));
        }
    }

    /// Begins the turn of a shard that has inputs, and stops at a drawn place in its actions.
    fn last_turn(&mut self) {
        let busy: Vec<_> =
            (0..self.shards.len()).filter(|&shard| !self.shards[shard].inbox.is_empty()).collect();
        if busy.is_empty() || self.env.broken.is_some() {
            return;
        }
        let index = busy[self.death.below(busy.len() as u64) as usize];
        let (now, id) = (self.env.now, ShardId(index as u16));
        let shard = &mut self.shards[index];
        let size = shard.until_acknowledge(self.env.scenario.turn_max);
        let size = size.min(shard.inbox.len());
        shard.turn.extend(shard.inbox.drain(..size));
        observe_inputs(&mut self.env, shard);
        shard.core.handle(now, &shard.turn);
        shard.turn.clear();
        let Actions { mut list, segments, ranges } = {
            let Actions { list, segments, ranges } = shard.core.actions();
            Actions { list: list.clone(), segments: segments.clone(), ranges: ranges.clone() }
        };
        if self.env.scenario.defect == WorldDefect::EntriesLate {
            // Stable: nothing else changes its place.
            list.sort_by_key(|action| matches!(action, Action::SetDirty { .. }));
        }
        let done = self.death.below(list.len() as u64 + 1) as usize;
        let next = list.get(done).copied();
        list.truncate(done);
        let actions = Actions { list, segments, ranges };
        self.env.cover_actions(id, &actions);
        let mut port = ShardPort { env: &mut self.env, shard: id };
        shard.executor.run(now, &actions, &mut port, &mut NoDisk, &mut shard.inbox);
        shard.core.clear_actions();
        if let Some(action) = next {
            self.part_of(index, &action);
        }
    }

    /// Does a drawn part of an action.
    fn part_of(&mut self, index: usize, action: &Action) {
        let id = ShardId(index as u16);
        let tears = self.env.scenario.defect == WorldDefect::TornCopies;
        let mut port = ShardPort { env: &mut self.env, shard: id };
        let frames = port.frames();
        let log = self.shards[index].executor.log().expect("a world of deaths has logs");
        let (target, source, len) = match *action {
            Action::Copy { bio, offset, len, at, direction: CopyDirection::ToPool } => {
                let buffer = port.buffer(bio).part(offset as usize, len as usize);
                (at, Some(buffer), len)
            }
            Action::Zero { at, len } => (at, None, len),
            Action::Move { from, to, len } => {
                let part = self.death.below(u64::from(len) + 1) as usize;
                let (from, to) = (frames.part(from as usize, part), frames.part(to as usize, part));
                // SAFETY: two frames of the pool that no device uses, as the shard says.
                unsafe { to.base().copy_from_nonoverlapping(from.base(), part) };
                return self.env.coverage.hit(Point::DeathInMove);
            }
            Action::SetDirty { unit, count, entry } => {
                log.set(unit, self.death.below(u64::from(count) + 1) as u32, entry);
                return self.env.coverage.hit(Point::DeathBeforeEntry);
            }
            _ => return,
        };
        let base = frames.part(target as usize, len as usize).base();
        let from = source.map_or(std::ptr::null(), |span| span.base().cast_const());
        if !tears {
            log.begin_change(base, from, len as usize);
        }
        let part = self.death.below(u64::from(len) + 1) as usize;
        // SAFETY: inside the frames and the bio's buffer, which are different memory; no device uses either, as the shard says.
        unsafe {
            match source {
                Some(span) => base.copy_from_nonoverlapping(span.base(), part),
                None => base.write_bytes(0, part),
            }
        }
        let entry = log.table()[target as usize / BLOCK as usize].load(Ordering::Relaxed);
        let dirty = DirtyEntry(entry).is_dirty();
        self.env.coverage.hit(if dirty { Point::DeathInOverwrite } else { Point::DeathInCopy });
    }

    /// The dirty blocks that a shard left: volume, offset and bytes.
    fn recover(&mut self, index: usize) -> Vec<(VolumeId, u64, Vec<u8>)> {
        let Some(log) = self.shards[index].executor.log() else { return Vec::new() };
        let frames = self.env.frames.span(index as u16);
        redo(log);
        let table = log.table().iter().map(|word| DirtyEntry(word.load(Ordering::Relaxed)));
        let shadows = table.clone().filter(|entry| entry.is_shadow()).count();
        self.env.coverage.add(Point::DeathShadow, shadows as u64);
        let blocks = dirty_blocks(table).into_iter().map(|block| {
            let volume = &self.env.scenario.volumes[usize::from(block.volume)];
            let (offset, size) = (block.block * u64::from(BLOCK), volume.options.size);
            let len = size.saturating_sub(offset).min(BLOCK.into()) as usize;
            let at = block.frame as usize * BLOCK as usize;
            // SAFETY: a frame of the pool; nothing else runs.
            let bytes = unsafe { frames.part(at, len).bytes() };
            (VolumeId(block.volume), offset, bytes.to_vec())
        });
        blocks.filter(|(_, _, bytes)| !bytes.is_empty()).collect()
    }

    /// Brings blocks to a disk, and syncs the file that has them now.
    fn restore(&mut self, volume: VolumeId, blocks: Vec<(u64, Vec<u8>)>) {
        let device = self.env.scenario.volumes[usize::from(volume.0)].device;
        let disk = &self.disks[usize::from(device.0)];
        let overlaid = self.env.scenario.overlays_of(device);
        if !overlaid.is_empty() {
            disk.lock().set_faulty(false);
            OverlaidDisk::open(disk, &overlaid).restore(self.env.now, volume, &blocks);
            return disk.lock().set_faulty(self.env.faulty);
        }
        let mut disk = disk.lock();
        if !blocks.iter().all(|(offset, bytes)| disk.restore(volume, *offset, bytes)) {
            let detail = format!("it names volume {}, which is not there", volume.0);
            self.env.fail(violation("the dirty table names blocks of volumes", detail));
        }
        disk.sync_file(volume);
    }

    /// Stops while a drawn device hangs, and cuts the power.
    pub(super) fn stop_beside_hung(&mut self) {
        let hung = DeviceId(self.order.below(self.disks.len() as u64) as u16);
        self.set_faulty(false);
        self.hang(hung, true);
        self.env.coverage.hit(Point::StopHung);
        let jobs = self.env.scenario.jobs.len();
        for connection in &mut self.env.connections[..jobs] {
            connection.job.left = 0;
        }
        self.env.flushes.forget_all();
        let until = self.env.now.after(LIMIT);
        self.turns_max = self.turns + 1_000_000;
        while self.env.now < until && self.env.broken.is_none() {
            self.flush_left_alone();
            let others_done = self.others(hung).all(|volume| self.is_flushed(volume));
            if others_done || !self.step() {
                break;
            }
        }
        self.check_others(hung);
        for connection in &mut self.env.connections[jobs..] {
            connection.job.left = 0;
        }
        self.hang(hung, false);
        if self.env.broken.is_none() {
            self.cut();
        }
    }

    fn hang(&mut self, device: DeviceId, hangs: bool) {
        let now = self.env.now.0;
        let outage =
            hangs.then_some(Outage { from_ns: now, until_ns: now + HANGS, refuses: false });
        self.disks[usize::from(device.0)].lock().set_outage(outage);
        self.env.scenario.devices[usize::from(device.0)].faults.outage = outage;
    }

    /// Volumes of devices that answer.
    fn others(&self, hung: DeviceId) -> impl Iterator<Item = VolumeId> {
        let volumes = self.env.scenario.volumes.iter().enumerate();
        let others = volumes.filter(move |(_, volume)| volume.device != hung);
        others.map(|(index, _)| VolumeId(index as u16))
    }

    fn is_flushed(&self, volume: VolumeId) -> bool {
        self.env.flushes.last(volume) == Some(Ok(()))
    }

    /// Flushes the volumes whose clients have left, again if that timed out.
    fn flush_left_alone(&mut self) {
        let jobs = self.env.scenario.jobs.len();
        let waits = |connections: &[crate::connection::Connection], volume: VolumeId| {
            connections.iter().any(|it| it.job.options.volume == volume && it.in_flight() > 0)
        };
        let all_wait = self.env.scenario.defect == WorldDefect::StopsTogether
            && self.env.connections[..jobs].iter().any(|connection| connection.in_flight() > 0);
        let again = self.flushed_again.after(AGAIN);
        if self.env.now >= again {
            self.flushed_again = self.env.now;
        }
        for index in jobs..self.env.connections.len() {
            let volume = VolumeId((index - jobs) as u16);
            let flushed = self.env.flushes.last(volume);
            // A device that is known not to answer fails flushes at once.
            let is_due = flushed.is_none()
                || flushed == Some(Err(IoError::TimedOut)) && self.env.now >= again;
            let left = self.env.connections[index].job.left;
            if all_wait || !is_due || left > 0 || waits(&self.env.connections, volume) {
                continue;
            }
            self.env.flushes.forget(volume);
            let job = &mut self.env.connections[index].job;
            job.options.weights = FLUSHES;
            job.left = 1;
            self.env.start();
            self.issue_ready();
        }
    }

    fn check_others(&mut self, hung: DeviceId) {
        let jobs = self.env.scenario.jobs.len();
        for index in jobs..self.env.connections.len() {
            self.env.connections[index].job.options.weights = [1, 0, 0, 0, 0, 0, 0];
        }
        let late: Vec<_> = self.others(hung).filter(|volume| !self.is_flushed(*volume)).collect();
        if let (Some(volume), None) = (late.first(), &self.env.broken) {
            let status = self.env.flushes.last(*volume);
            let detail = format!("volume {} while device {} hangs: {status:?}", volume.0, hung.0);
            self.env.fail(violation(STOP_RULE, detail));
        }
    }
}

/// Does the copy again that the process did not finish.
fn redo(log: &DirtyLog) {
    let Some((to, from, len)) = log.change() else { return };
    let to = std::ptr::with_exposed_provenance_mut::<u8>(to as usize);
    let from = std::ptr::with_exposed_provenance::<u8>(from as usize);
    // SAFETY: the world's own frames and buffers, which `part_of` named; they are there until the world ends.
    unsafe {
        match from.is_null() {
            true => to.write_bytes(0, len as usize),
            false => to.copy_from_nonoverlapping(from, len as usize),
        }
    }
}
