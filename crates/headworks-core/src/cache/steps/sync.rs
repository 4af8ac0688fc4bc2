//! Flushes: all that was dirty when one began is written, then the device flushes.
//!
//! ```text
//!   begins: held blocks are tried again, the generation ends
//!      --> Sync: waits until nothing of that generation or before is left (flush_timeout ends it with an error)
//!      --> Below: the device's flush, which the queue shares among those that may share it
//!      --> answered: an error if the device's flush failed, if blocks are held, or if this connection has not heard of an
//!          error of write-out yet
//! ```
//!
//! Invariant: an `Ok` means that every write of the volume that was acknowledged before the flush came is durable.

use crate::bio::{Bio, VolumeId};
use crate::cache::pool::folio::BLOCK;
use crate::cache::pool::folio::{Folio, block};
use crate::cache::waiters::operation::{OpStep, Operation, WaitFor};
use crate::cache::{Cache, TimerKind, Turn};
use crate::error::{IoError, Status};
use crate::list::Fifo;
use crate::slab::NIL;
use crate::time::{Instant, SEC};

/// The first and the last time after which held blocks are tried again by themselves.
const BACKOFF_FIRST: u64 = SEC;
const BACKOFF_LAST: u64 = 30 * SEC;

impl Cache {
    /// A flush comes.
    pub(in crate::cache) fn begin_sync(&mut self, turn: &mut Turn, bio: Bio) {
        let mut op = Operation::new(bio, OpStep::Sync);
        op.writer = self.throttle.writer(bio.id.connection).0;
        op.deadline = turn.now.after(self.options.flush_timeout_ns);
        self.hear_from(op.writer, &bio);
        op.asked = self.heard[op.writer as usize].1;
        if self.defects.error_reported_once() {
            op.asked = self.volume(bio.id.volume).errors.sample();
        }
        if self.volume(bio.id.volume).held > 0 {
            self.unhold_volume(turn.now, bio.id.volume);
        }
        self.begin(turn, op);
    }

    /// See the head of this file.
    pub(in crate::cache) fn step_sync(
        &mut self,
        turn: &mut Turn,
        op: &mut Operation,
        slot: u32,
    ) -> WaitFor {
        if slot == NIL {
            return WaitFor::Slot;
        }
        if op.status.is_err() {
            self.count_flush(op.status);
            return self.finish(turn, op, op.status);
        }
        if self.volumes[usize::from(op.bio.id.volume.0)].truncation.is_some() {
            // What is held or dirty beyond its end is not waited for, and no error.
            return WaitFor::Turn;
        }
        let ignores = self.defects.flush_ignores_writeout();
        let stays = self.defects.flush_skips_device();
        let volume = &mut self.volumes[usize::from(op.bio.id.volume.0)];
        if op.generation == 0 {
            let Some(target) = volume.end_generation() else {
                // Flushes that were given up left something in every generation; nobody else may be waiting for it.
                let ended = volume.generation - 1;
                volume.target = Some(volume.target.map_or(ended, |other| other.max(ended)));
                return WaitFor::Sync;
            };
            // 0 says that there is none yet.
            op.generation = target + 1;
        }
        let target = op.generation - 1;
        let left = if ignores { volume.has_dirty(target) } else { volume.is_left(target) };
        if left {
            volume.target = Some(volume.target.map_or(target, |other| other.max(target)));
            return WaitFor::Sync;
        }
        if stays {
            return self.finish(turn, op, Ok(()));
        }
        let bio = op.bio;
        self.pass_down(op, slot, bio);
        WaitFor::Below
    }

    /// A flush must wait: for its generation, or until it can end one.
    pub(in crate::cache) fn wait_for_sync(&mut self, turn: &mut Turn, slot: u32) {
        let (volume, deadline) = (self.ops[slot].bio.id.volume, self.ops[slot].deadline);
        let ends = self.ops[slot].generation > 0;
        let volume = &mut self.volumes[usize::from(volume.0)];
        let list = if ends { &mut volume.syncs } else { &mut volume.sync_line };
        // Those that waited before and were stepped in vain keep their place.
        list.insert(&mut self.ops, slot, |a, b| a.deadline < b.deadline);
        let timer = self.timer_base + TimerKind::Sync as u32;
        if !turn.timers.is_set(timer) {
            turn.timers.set(timer, deadline);
        }
    }

    /// Something of a volume was written, cancelled or held: flushes that waited for it go on.
    pub(in crate::cache) fn advance(&mut self, volume: VolumeId) {
        let volume = &mut self.volumes[usize::from(volume.0)];
        volume.advance();
        let mut freed = false;
        while let Some(slot) = volume.syncs.head() {
            let target = self.ops[slot].generation - 1;
            if volume.is_left(target) {
                break;
            }
            volume.syncs.pop(&mut self.ops);
            self.lines.ready.push(&mut self.ops, slot);
            freed = true;
        }
        if volume.syncs.head().is_none() {
            volume.target = None;
        }
        if freed || volume.syncs.head().is_none() {
            let mut line = std::mem::replace(&mut volume.sync_line, Fifo::new());
            self.lines.ready.append(&mut self.ops, &mut line);
        }
    }

    /// The device's flush was answered.
    pub(in crate::cache) fn end_sync(
        &mut self,
        turn: &mut Turn,
        op: &mut Operation,
        below: Status,
    ) {
        // Whatever failed since it began, and was perhaps put among younger dirty blocks by another flush, was its own, too.
        let errors = &mut self.volumes[usize::from(op.bio.id.volume.0)].errors;
        let missed = errors.check(&mut op.asked);
        if op.writer != NIL {
            self.hear_from(op.writer, &op.bio);
            self.heard[op.writer as usize].1 = op.asked;
        }
        let volume = &mut self.volumes[usize::from(op.bio.id.volume.0)];
        let held = (volume.held > 0).then_some(volume.last_error);
        let status = match (below, held.or(missed)) {
            (Err(error), _) | (Ok(()), Some(error)) => Err(error),
            (Ok(()), None) => Ok(()),
        };
        self.count_flush(status);
        self.finish(turn, op, status);
    }

    /// A connection begins to count on the volume: errors from now on are to reach it.
    pub(in crate::cache) fn hear_from(&mut self, writer: u32, bio: &Bio) {
        let entry = &mut self.heard[writer as usize];
        let who = Some((bio.id.connection, bio.id.volume));
        if entry.0 != who {
            let since = self.volumes[usize::from(bio.id.volume.0)].errors.sample();
            *entry = (who, since);
        }
    }

    fn count_flush(&mut self, status: Status) {
        self.stats.flushes += 1;
        self.stats.flushes_failed += u64::from(status.is_err());
    }

    /// A flush has waited long enough: it fails, and the data stay dirty.
    pub(in crate::cache) fn on_sync_timeout(&mut self, turn: &mut Turn) {
        let mut next: Option<Instant> = None;
        for index in 0..self.volumes.len() {
            for line in [false, true] {
                loop {
                    let volume = &mut self.volumes[index];
                    let list = if line { &mut volume.sync_line } else { &mut volume.syncs };
                    let Some(slot) = list.head() else { break };
                    let deadline = self.ops[slot].deadline;
                    if deadline > turn.now {
                        next = Some(next.map_or(deadline, |other| other.min(deadline)));
                        break;
                    }
                    list.pop(&mut self.ops);
                    self.ops[slot].status = Err(IoError::TimedOut);
                    self.ready(slot);
                }
            }
        }
        self.set_timer(turn, TimerKind::Sync, next);
    }

    /// Every held block of a volume is written again now, though nobody waits for it.
    fn hurry_volume(&mut self, now: Instant, volume: VolumeId) {
        self.unhold_volume(now, volume);
        self.groups.hurry(volume);
        let device = usize::from(self.volume(volume).device.0);
        self.flushers[device].look_at_once();
    }

    /// Every held block of a volume is to be written again. When they are tried again by themselves is another matter: clients
    /// that flush all the time would put that off.
    pub(in crate::cache) fn unhold_volume(&mut self, now: Instant, volume: VolumeId) {
        let mut at = 0;
        while let Some(unit) = self.next_held(volume, at) {
            let blocks = self.folios[unit].blocks();
            self.unhold_at(now, unit, 0, blocks);
            self.held.clear(unit);
            at = unit + 1;
        }
    }

    /// The first folio of a volume, at `unit` or behind it, that may hold something.
    fn next_held(&mut self, volume: VolumeId, mut unit: u32) -> Option<u32> {
        loop {
            unit = self.held.next(unit)?;
            let folio = &self.folios[unit];
            if !folio.is(Folio::PRESENT) || folio.dirty == 0 {
                self.held.clear(unit);
            } else if folio.key.volume() == volume {
                return Some(unit);
            }
            unit += 1;
        }
    }

    /// Held blocks of a folio are dirty like others; whoever calls sends them at once.
    pub(in crate::cache) fn unhold(&mut self, unit: u32, first: u32, count: u32) {
        let states = self.folios.states(unit + first, count);
        if states.iter().any(|state| state & block::FAILED != 0) {
            self.unhold_at(Instant(0), unit, first, count);
        }
    }

    fn unhold_at(&mut self, now: Instant, unit: u32, first: u32, count: u32) {
        let volume = self.folios[unit].key.volume();
        let mut held = 0;
        for state in self.folios.states_mut(unit + first, count) {
            held += u32::from(*state & block::FAILED != 0);
            *state &= !block::FAILED;
        }
        if held == 0 {
            return;
        }
        self.count_held(volume, 0, held);
        if self.folios[unit].group == NIL {
            let current = self.volume(volume).current();
            let export = crate::bio::ExportId::default();
            self.groups.add(now, &mut self.folios, unit, export);
            self.folios[unit].generation = current;
            self.volume(volume).add_dirty(current);
        }
        let group = self.folios[unit].group;
        self.groups.mark_unheld(group);
    }

    /// A block was held: it is tried again by itself if the volume wants that, or if the reason may pass.
    pub(in crate::cache) fn plan_retry(
        &mut self,
        turn: &mut Turn,
        volume: VolumeId,
        error: IoError,
    ) {
        use crate::options::ErrorPolicy;
        let entry = self.volume(volume);
        let passing = matches!(error, IoError::TimedOut | IoError::NoSpace | IoError::NoMemory);
        if entry.retry_at.is_some() || entry.on_error == ErrorPolicy::Hold && !passing {
            return;
        }
        let backoff = (entry.backoff_ns * 2).clamp(BACKOFF_FIRST, BACKOFF_LAST);
        let at = turn.now.after(backoff);
        (entry.retry_at, entry.backoff_ns) = (Some(at), backoff);
        let next = self.volumes.iter().filter_map(|volume| volume.retry_at).min();
        self.set_timer(turn, TimerKind::Retry, next);
    }

    /// The time to try held blocks again has come.
    pub(in crate::cache) fn retry_failed(&mut self, turn: &mut Turn) {
        for index in 0..self.volumes.len() {
            if self.volumes[index].retry_at.is_none_or(|at| at > turn.now) {
                continue;
            }
            self.volumes[index].retry_at = None;
            if self.volumes[index].held > 0 {
                self.hurry_volume(turn.now, VolumeId(index as u16));
            }
        }
        let next = self.volumes.iter().filter_map(|volume| volume.retry_at).min();
        self.set_timer(turn, TimerKind::Retry, next);
    }

    /// The operator gives up what could not be written.
    pub fn on_acknowledge(&mut self, volume: VolumeId) {
        let writers = self.writers_of(volume);
        let mut at = 0;
        while let Some(unit) = self.next_held(volume, at) {
            let blocks = self.folios[unit].blocks();
            self.give_up_blocks(unit, 0, blocks, &writers);
            at = unit + 1;
        }
        self.scratch = writers;
        self.volume(volume).backoff_ns = 0;
        self.volume(volume).errors.acknowledge();
        self.advance(volume);
    }

    /// Changes whenever a volume begins or ceases to have something held.
    pub fn held_news(&self) -> u32 {
        self.held_news
    }

    /// Bytes of a volume that are held, and why the last write-out failed.
    pub fn held(&self, volume: VolumeId) -> Option<(u64, IoError)> {
        let entry = self.volumes.get(usize::from(volume.0))?;
        let bytes = u64::from(entry.held) * u64::from(BLOCK);
        (bytes > 0).then_some((bytes, entry.last_error))
    }

    /// Whether something of a volume could not be written out and may not be now: it is held, or just tried again.
    pub fn is_failing(&self, volume: VolumeId) -> bool {
        let entry = self.volumes.get(usize::from(volume.0));
        entry.is_some_and(|entry| entry.held > 0 || entry.failing && entry.unclean > 0)
    }

    /// What is held of a volume: (offset, length, error), neighbours joined where they lie in one folio.
    pub fn failed_ranges(&self, volume: VolumeId, into: &mut Vec<(u64, u64, IoError)>) {
        let entry = &self.volumes[usize::from(volume.0)];
        if entry.held == 0 {
            return;
        }
        for unit in self.held.iter() {
            let folio = &self.folios[unit];
            if !folio.is(Folio::PRESENT) || folio.dirty == 0 || folio.key.volume() != volume {
                continue;
            }
            for index in 0..folio.blocks() {
                if self.folios.states(unit + index, 1)[0] & block::FAILED != 0 {
                    let (offset, len) =
                        self.bytes_of(volume, folio.key.block() + u64::from(index), 1);
                    match into.last_mut() {
                        Some(last) if last.0 + last.1 == offset => last.1 += u64::from(len),
                        _ => into.push((offset, len.into(), entry.last_error)),
                    }
                }
            }
        }
        into.sort_unstable_by_key(|range| range.0);
    }
}
