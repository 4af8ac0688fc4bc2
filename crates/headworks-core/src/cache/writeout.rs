//! Dirty blocks: how they are marked, sent to their device, held when that fails, and cancelled.
//!
//! *Write-out.* The flusher sends whole passes, a writer its own range (`steps/write_out.rs`), and with the foreground policy a chunk of
//! the oldest data. Each run of dirty blocks that are neither held nor outstanding becomes a bio of the cache's own. It carries the
//! generation of its folio, so that a flush waits for it.
//!
//! *Held blocks* are dirty blocks whose write-out failed. A held block stays dirty and is not sent by the flushers. A flush, a write-out
//! on a writer's behalf, or a planned retry releases it, and it is sent again. The operator can discard held blocks: reads then find
//! what the device has.
//!
//! Invariants: a block is in one write-out at a time; a folio is in its extent group exactly while a block of it is to be written;
//! the turn in which it enters runs the flushers; a held block is dirty.

use super::context::{CallContext, TimerKind};
use super::device_io::writeouts;
use super::pool::folio::{Folio, block};
use super::pool::{RangeWalk, charge_drop};
use super::state::CacheState;
use super::volumes::GENERATIONS;
use crate::action::Actions;
use crate::bio::{Bio, BioFlags, BioId, ExportId, Ioprio, Op, VolumeId};
use crate::device_bio::DeviceBio;
use crate::error::IoError;
use crate::slab::NIL;
use crate::time::Instant;

/// The reason for a write-out, as the statistics count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteoutReason {
    /// The background threshold is exceeded.
    Background = 0,
    /// The data is older than `dirty_expire_centisecs`.
    Periodic = 1,
    /// A flush waits for it.
    Flush = 2,
    /// Reclaim found no clean folio.
    Frames = 3,
    /// A writer waits for it (FUA, writethrough, direct I/O).
    Writer = 4,
}

/// How dirty blocks are sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteoutRequest {
    /// The operation that waits for the write-outs, or `NIL`.
    pub cookie: u32,
    /// The connection that is charged: the flusher's account, or a writer.
    pub connection: u32,
    /// The flags of the bios.
    pub flags: BioFlags,
    /// The reason that is counted.
    pub reason: WriteoutReason,
    /// The most blocks to send.
    pub max_blocks: u32,
    /// The time from which the wait for the device is limited.
    pub since: Instant,
}

/// Write-out.
impl CacheState {
    /// Sends up to `quota` blocks of a volume's oldest group on behalf of a writer (the foreground policy); returns the bios.
    pub fn write_oldest_group(
        &mut self,
        ctx: &mut CallContext,
        (volume, connection): (VolumeId, u32),
        quota: u32,
        slot: u32,
    ) -> u32 {
        assert!(slot != NIL, "a writer waits for what it sends");
        let Some(group) = self.dirty.oldest_group(volume) else {
            return 0;
        };
        let device = self.volumes.device_index(volume);
        let mut sorted = std::mem::take(&mut self.scratch);
        self.dirty.collect_group(&self.pool, group, &mut sorted);
        let (mut bios, mut left) = (0, quota);
        for &unit in &sorted {
            if left == 0 || !self.io.may_write_out(device) {
                break;
            }
            let count = self.pool.folio(unit).blocks();
            let (flags, reason, since) = (BioFlags::NONE, WriteoutReason::Writer, ctx.now);
            let request = WriteoutRequest {
                cookie: slot,
                connection,
                flags,
                reason,
                max_blocks: left,
                since,
            };
            let (more, blocks) = self.send_dirty(ctx, unit, 0, count, request);
            bios += more;
            left = left.saturating_sub(blocks);
        }
        self.scratch = sorted;
        if self.dirty.group_exists(group) {
            // If all of it is outstanding, the next writer takes another group.
            let since = if bios == 0 { ctx.now } else { self.dirty.group(group).since };
            self.dirty.requeue_group(since, group);
        }
        bios
    }

    /// Sends the dirty blocks of a part of a folio that are neither held nor outstanding; returns the bios and blocks.
    pub fn send_dirty(
        &mut self,
        ctx: &mut CallContext,
        unit: u32,
        first: u32,
        count: u32,
        request: WriteoutRequest,
    ) -> (u32, u32) {
        self.cancel_truncated(unit, ctx.actions);
        assert!(first + count <= self.pool.folio(unit).blocks(), "blocks of the folio");
        let (mut bios, mut blocks) = (0, 0);
        let mut at = first;
        let end = first + count;
        let device = self.volumes.device_index(self.pool.folio(unit).key.volume());
        while at < end && blocks < request.max_blocks && self.io.may_send(writeouts(device)) {
            let until = end.min(at.saturating_add(request.max_blocks - blocks));
            let Some((start, run)) = self.pool.next_dirty_run(unit, at, until) else {
                break;
            };
            self.send_run(ctx.now, unit, start, run, &request);
            at = start + run;
            (bios, blocks) = (bios + 1, blocks + run);
        }
        if blocks > 0 {
            self.advance_generation(unit);
            self.leave_group_if_written(unit);
        }
        (bios, blocks)
    }

    fn send_run(
        &mut self,
        now: Instant,
        unit: u32,
        first: u32,
        run: u32,
        request: &WriteoutRequest,
    ) {
        self.pool.begin_writeback(unit, first, run);
        let folio = *self.pool.folio(unit);
        let volume = folio.key.volume();
        assert!(folio.group != NIL, "a folio is in a group while it is to be written");
        let export = folio.export;
        let entry = &mut self.volumes[volume];
        entry.add_writing(folio.generation);
        let device = entry.device();
        let (offset, len) = entry.bytes_of(folio.key.block() + u64::from(first), run);
        self.dirty.begin_writeback(now, device, folio.export, run);
        let id = BioId { connection: request.connection, volume, export, sequence: 0 };
        let (op, flags, ioprio) = (Op::Write, request.flags, Ioprio::default());
        let bio = Bio { id, offset, len, op, flags, ioprio };
        let (index, mark) = (usize::from(device.0), folio.generation);
        let cause = DeviceBio { bio, cookie: request.cookie, since: request.since };
        self.io.send_writeout(index, unit + first, mark, cause);
        self.stats.writeouts.bios += 1;
        self.stats.writeouts.blocks += u64::from(run);
        self.stats.writeouts.by_reason[request.reason as usize] += u64::from(run);
    }

    /// After a write-out, moves a folio to the next generation if all blocks that are still dirty are newer than its own. A flush
    /// is therefore not delayed by a folio that is written all the time.
    fn advance_generation(&mut self, unit: u32) {
        let folio = *self.pool.folio(unit);
        let volume = folio.key.volume();
        if folio.dirty == 0 || folio.generation == self.volumes[volume].current() {
            return;
        }
        if self.pool.has_older_block_to_write(unit) || folio.group == NIL {
            return;
        }
        let next = (folio.generation + 1) % GENERATIONS as u8;
        self.volumes[volume].sub_dirty(folio.generation);
        self.volumes[volume].add_dirty(next);
        self.pool.set_generation(unit, next);
        self.advance(volume);
    }

    /// Takes a folio out of its group when no block of it is to be written.
    fn leave_group_if_written(&mut self, unit: u32) {
        let folio = *self.pool.folio(unit);
        if folio.group == NIL || self.pool.has_block_to_write(unit) {
            return;
        }
        self.dirty.leave_group(&mut self.pool, unit);
        let volume = folio.key.volume();
        self.volumes[volume].sub_dirty(folio.generation);
        self.advance(volume);
    }

    /// Marks blocks dirty that a bio writes, and enters their folio into its group; returns how many of them had been held.
    pub fn mark_dirty(&mut self, now: Instant, bio: &Bio, unit: u32, first: u32, run: u32) -> u32 {
        let volume = bio.id.volume;
        debug_assert!(self.pool.folio(unit).key.volume() == volume, "a folio of the volume");
        let current = self.volumes[volume].current();
        let payer = self.payer_of(unit, bio.id.export);
        if payer != self.pool.folio(unit).export {
            self.pool.set_export(unit, payer);
        }
        if self.pool.folio(unit).group == NIL {
            self.dirty.enter_group(&mut self.pool, now, unit, current);
            self.volumes[volume].add_dirty(current);
            // A held block takes no credit, whose reservation asks for a run.
            self.needs_run = true;
        }
        let newer = self.pool.folio(unit).generation != current;
        let dirtied = self.pool.mark_dirty(unit, first, run, newer);
        if newer {
            self.volumes[volume].note_newer();
        }
        self.volumes[volume].add_unclean(dirtied.became_dirty);
        self.dirty.add_dirty(self.pool.folio(unit).key, dirtied.became_dirty);
        self.dirty.on_dirtied(self.volumes[volume].device(), payer, dirtied.became_dirty);
        dirtied.unheld
    }

    /// Returns the export that pays for blocks of a folio that a bio of `export` dirties: while something of the folio is dirty or
    /// under write-out, the one that pays for that.
    pub fn payer_of(&self, unit: u32, export: ExportId) -> ExportId {
        let folio = self.pool.folio(unit);
        if folio.dirty | folio.writeback == 0 { export } else { folio.export }
    }

    /// Cancels the dirty blocks of a part of a folio: they need not be written; returns how many.
    pub fn cancel_dirty(
        &mut self,
        unit: u32,
        first: u32,
        count: u32,
        actions: &mut Actions,
    ) -> u32 {
        let folio = *self.pool.folio(unit);
        if folio.dirty == 0 {
            return 0;
        }
        let volume = folio.key.volume();
        let (cancelled, held) = self.pool.cancel_dirty(unit, first, count, actions);
        let device = self.volumes[volume].device();
        self.volumes[volume].sub_unclean(cancelled);
        self.dirty.payers_mut().on_unheld(usize::from(device.0), folio.export, held);
        self.count_held(volume, 0, held);
        self.dirty.cancel(device, folio.key, folio.export, cancelled);
        self.leave_group_if_written(unit);
        cancelled
    }

    /// Cancels and invalidates the blocks of a folio in the range of a walk, and takes the cost off `budget`.
    pub fn drop_blocks(
        &mut self,
        walk: &RangeWalk,
        unit: u32,
        budget: &mut u32,
        actions: &mut Actions,
    ) {
        charge_drop(self.pool.folio(unit), budget);
        let (first, count) = walk.overlap(&self.pool, unit);
        self.cancel_dirty(unit, first, count, actions);
        self.pool.invalidate(unit, first, count);
    }

    /// Before a folio is written out, cancels its blocks past the end of a volume that is being truncated.
    fn cancel_truncated(&mut self, unit: u32, actions: &mut Actions) {
        if !self.volumes.is_truncating() {
            return;
        }
        let folio = *self.pool.folio(unit);
        let Some(truncation) = self.volumes.truncation(folio.key.volume()) else {
            return;
        };
        if truncation.start() < folio.key.block() + u64::from(folio.blocks()) {
            let range = (truncation.start(), u64::MAX);
            let walk = RangeWalk::new(&self.pool, folio.key.volume(), range);
            let (first, count) = walk.overlap(&self.pool, unit);
            self.cancel_dirty(unit, first, count, actions);
        }
    }

    /// Returns true if a block may not be filled or used while a device has it. (With a defect, blocks under write-out are filled.)
    pub fn busy_bits(&self) -> u8 {
        match self.defects.discard_ignores_writeout() {
            true => block::FILLING,
            false => block::FILLING | block::WRITEBACK,
        }
    }
}

/// Held blocks.
impl CacheState {
    /// Releases the held blocks of a part of a folio; the caller sends them at once.
    pub fn unhold(&mut self, unit: u32, first: u32, count: u32) {
        if self.pool.states(unit + first, count).iter().any(|state| state & block::FAILED != 0) {
            self.unhold_at(Instant(0), unit, first, count);
        }
    }

    fn unhold_at(&mut self, now: Instant, unit: u32, first: u32, count: u32) {
        let volume = self.pool.folio(unit).key.volume();
        let held = self.pool.unhold(unit, first, count);
        if held == 0 {
            return;
        }
        assert!(self.pool.folio(unit).dirty > 0, "held blocks are dirty");
        let device = self.volumes.device_index(volume);
        self.dirty.payers_mut().on_unheld(device, self.pool.folio(unit).export, held);
        self.count_held(volume, 0, held);
        if self.pool.folio(unit).group == NIL {
            let current = self.volumes[volume].current();
            self.dirty.enter_group(&mut self.pool, now, unit, current);
            self.volumes[volume].add_dirty(current);
        }
        self.dirty.mark_unheld(self.pool.folio(unit).group);
    }

    /// Releases every held block of a volume. This does not change when they are retried: clients that flush all the time would
    /// delay that.
    pub fn unhold_volume(&mut self, now: Instant, volume: VolumeId) {
        let mut at = 0;
        while let Some(unit) = self.next_held(volume, at) {
            let blocks = self.pool.folio(unit).blocks();
            self.unhold_at(now, unit, 0, blocks);
            self.dirty.clear_held(unit);
            at = unit + 1;
        }
        debug_assert!(self.volumes[volume].held() == 0, "every held block was found");
    }

    /// Returns the first folio of a volume at `unit` or after it that may hold blocks.
    fn next_held(&mut self, volume: VolumeId, mut unit: u32) -> Option<u32> {
        loop {
            unit = self.dirty.next_held(unit)?;
            let folio = self.pool.folio(unit);
            if !folio.is(Folio::PRESENT) || folio.dirty == 0 {
                self.dirty.clear_held(unit);
            } else if folio.key.volume() == volume {
                return Some(unit);
            }
            unit += 1;
        }
    }

    /// Plans a retry after a write-out failed, if the volume's policy or the error asks for one.
    pub fn plan_retry(&mut self, ctx: &mut CallContext, volume: VolumeId, error: IoError) {
        if self.volumes[volume].plan_retry(ctx.now, error) {
            self.set_retry_timer(ctx);
        }
    }

    /// Sets the timer for the next retry of held blocks; a frozen cache tries nothing again.
    pub fn set_retry_timer(&self, ctx: &mut CallContext) {
        let at = if self.is_frozen() { None } else { self.volumes.next_retry() };
        self.set_timer(ctx, TimerKind::Retry, at);
    }

    /// Writes the held blocks again of the volumes whose retry is due.
    pub fn retry_held(&mut self, ctx: &mut CallContext) {
        for volume in self.volumes.ids() {
            if self.volumes[volume].take_retry(ctx.now) {
                self.unhold_volume(ctx.now, volume);
                self.dirty.hurry_volume(volume);
                self.dirty.want_periodic(Some(self.volumes.device_index(volume)));
            }
        }
        self.set_retry_timer(ctx);
    }

    /// Discards the held blocks of a volume, as the operator asks.
    pub fn discard_held(&mut self, volume: VolumeId, actions: &mut Actions) {
        let mut writing = std::mem::take(&mut self.scratch);
        self.waiters.writing_ops(volume, &mut writing);
        let mut at = 0;
        while let Some(unit) = self.next_held(volume, at) {
            let blocks = self.pool.folio(unit).blocks();
            self.discard_held_blocks(unit, (0, blocks), &writing, actions);
            at = unit + 1;
        }
        self.scratch = writing;
        debug_assert!(self.volumes[volume].held() == 0, "every held block was found");
        self.volumes[volume].on_failed_discarded();
        self.advance(volume);
    }

    /// Discards the held blocks of a part of a folio. The operations `writing` that wrote to them and have not completed fail.
    pub fn discard_held_blocks(
        &mut self,
        unit: u32,
        (first, count): (u32, u32),
        writing: &[u32],
        actions: &mut Actions,
    ) {
        for index in first..first + count {
            let state = self.pool.state(unit + index);
            if state & block::FAILED != 0 && state & (block::WRITEBACK | block::SHADOW) == 0 {
                self.cancel_dirty(unit, index, 1, actions);
                self.pool.clear_valid(unit + index);
                let key = self.pool.folio(unit).key;
                let error = self.volumes[key.volume()].last_error();
                self.waiters.fail_writes(writing, key.block() + u64::from(index), error);
            }
        }
    }

    /// Collects the held ranges of a volume as (offset, length, error), joined where they lie in one folio.
    pub fn held_ranges(&self, volume: VolumeId, into: &mut Vec<(u64, u64, IoError)>) {
        let entry = &self.volumes[volume];
        if entry.held() == 0 {
            return;
        }
        for unit in self.dirty.held_folios() {
            let folio = self.pool.folio(unit);
            if !folio.is(Folio::PRESENT) || folio.dirty == 0 || folio.key.volume() != volume {
                continue;
            }
            for index in 0..folio.blocks() {
                if self.pool.state(unit + index) & block::FAILED != 0 {
                    let (offset, len) = entry.bytes_of(folio.key.block() + u64::from(index), 1);
                    match into.last_mut() {
                        Some(last) if last.0 + last.1 == offset => last.1 += u64::from(len),
                        _ => into.push((offset, len.into(), entry.last_error())),
                    }
                }
            }
        }
        into.sort_unstable_by_key(|range| range.0);
    }
}
