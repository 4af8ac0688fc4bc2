//! Held blocks: dirty blocks whose write-out failed.
//!
//! A held block stays dirty and is not sent by the flushers. A flush, a write-out on a writer's behalf, or a planned retry releases
//! it, and it is sent again. The operator can discard held blocks: reads then find what the device has.

use super::context::CallContext;
use super::pool::folio::{Folio, block};
use super::state::CacheState;
use crate::action::Actions;
use crate::bio::VolumeId;
use crate::error::IoError;
use crate::time::Instant;

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
        if self.pool.folio(unit).group == crate::slab::NIL {
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
