//! Completions from the devices: of fills, of write-outs, and of client bios that were passed on.
//!
//! A command that passes its time-out completes twice. At the first completion (`Early`) the operations that wait for it fail, and
//! until the device answers so do new ones that need it. At the second (`Released`) its frames are free, and what was to be written
//! is dirty again.

use super::context::CallContext;
use super::device_io::DeviceIo;
use super::pool::BlockRun;
use super::pool::folio::{BLOCK, BLOCK_SHIFT, Folio};
use super::state::CacheState;
use super::waiters::operation::{OpStep, WaitFor};
use crate::action::Action;
use crate::bio::{Op, VolumeId};
use crate::device_bio::DeviceCompletion;
use crate::error::{IoError, Status};
use crate::input::ReplyStage;
use crate::slab::NIL;

impl CacheState {
    /// Completes a bio of the cache's own, for the frames from `unit` on.
    pub fn on_own_completion(
        &mut self,
        ctx: &mut CallContext,
        unit: u32,
        completion: &DeviceCompletion,
    ) {
        let bio = &completion.bio;
        let (volume, block) = (bio.id.volume, bio.offset >> BLOCK_SHIFT);
        let folio = self.pool.find(volume, block).expect("a busy folio stays in the index");
        let run = BlockRun { folio, unit, block, count: bio.len.div_ceil(BLOCK), volume };
        debug_assert!(unit >= folio && unit < folio + self.pool.folio(folio).blocks());
        let device = self.volumes.device_index(volume);
        let status = match completion.stage {
            ReplyStage::Early => return self.on_late(ctx, &run, completion),
            ReplyStage::Released => Err(IoError::TimedOut),
            _ => completion.status,
        };
        if completion.stage == ReplyStage::Released {
            self.io.count_late(device, 0, 1);
        }
        if bio.op == Op::Read {
            self.io.end_fill(device, run.count);
            return self.on_filled(ctx, &run, completion, status);
        }
        self.io.end_writeout(device);
        if completion.stage == ReplyStage::Released {
            self.count_late(volume, 0, 1);
        }
        self.on_written(ctx, &run, completion, status);
    }

    /// Handles a command that passed its time-out.
    fn on_late(&mut self, ctx: &mut CallContext, run: &BlockRun, completion: &DeviceCompletion) {
        self.pool.add_late(run.folio);
        self.io.count_late(self.volumes.device_index(run.volume), 1, 0);
        let below = completion.wait_times;
        if completion.bio.op == Op::Read {
            let failed = (run.block, run.block + u64::from(run.count), IoError::TimedOut);
            return self.wake_folio(run.folio, Some(failed), below);
        }
        self.wake_folio(run.folio, None, below);
        self.volumes[run.volume].on_write_timed_out();
        self.count_late(run.volume, 1, 0);
        while self.waiters.fail_flush(run.volume, true, IoError::TimedOut) {}
        let slot = completion.cookie;
        if slot != NIL && !self.waiters.op(slot).answered {
            let op = self.waiters.op_mut(slot);
            op.answered = true;
            op.status = Err(IoError::TimedOut);
            ctx.reply_after(&op.bio, op.status, ReplyStage::Early, below);
            // The waiters for its range, if it locks one, fail; so do new ones until the device answers.
            self.waiters.wake_range_waiters(slot);
        }
    }

    /// Ends a fill.
    fn on_filled(
        &mut self,
        ctx: &mut CallContext,
        run: &BlockRun,
        completion: &DeviceCompletion,
        status: Status,
    ) {
        if completion.hole && status.is_ok() {
            let at = u64::from(run.unit) << BLOCK_SHIFT;
            ctx.actions.list.push(Action::Zero { at, len: run.count * BLOCK });
        }
        debug_assert!(completion.bio.op == Op::Read, "a fill reads");
        self.pool.end_fill(run, self.volumes[run.volume].blocks(), status.is_ok());
        self.end_late(run.folio, completion);
        let failed = status.err().map(|e| (run.block, run.block + u64::from(run.count), e));
        self.wake_folio(run.folio, failed, completion.wait_times);
    }

    /// Counts down the late bios of a folio, each of which counts until its second completion.
    fn end_late(&mut self, unit: u32, completion: &DeviceCompletion) {
        if completion.stage == ReplyStage::Released {
            self.pool.sub_late(unit);
        }
    }

    /// Returns true if the volume ended within the last block when the write-out was sent, and has grown since.
    fn ends_short(&self, run: &BlockRun, completion: &DeviceCompletion) -> bool {
        let end = completion.bio.end();
        let within = !end.is_multiple_of(u64::from(BLOCK));
        within && end < self.volumes[run.volume].size()
    }

    /// Ends a write-out.
    fn on_written(
        &mut self,
        ctx: &mut CallContext,
        run: &BlockRun,
        completion: &DeviceCompletion,
        status: Status,
    ) {
        let volume = run.volume;
        let device = self.volumes[volume].device();
        debug_assert!(completion.bio.op == Op::Write, "a write-out writes");
        let keep = status.is_err() && !self.defects.failed_is_clean();
        let present = self.volumes[volume].blocks();
        let before = ctx.actions.list.len();
        let written = self.pool.end_writeback(run, present, keep, ctx.actions);
        if self.defects.stale_entry() {
            let mut index = 0;
            ctx.actions.list.retain(|action| {
                index += 1;
                index <= before || !matches!(action, Action::SetDirty { .. })
            });
        }
        if self.ends_short(run, completion) {
            let within = (completion.bio.end() % u64::from(BLOCK)) as u32;
            self.pool.end_short_writeback(run.unit + run.count - 1, within, &mut ctx.actions.list);
        }
        self.pool.count_written(run, written);
        self.end_late(run.folio, completion);
        self.volumes[volume].sub_unclean(written.clean);
        let Folio { key, export, .. } = *self.pool.folio(run.folio);
        self.dirty.end_writeback(ctx.now, device, (key, export), (written.clean, written.held));
        if written.held > 0 {
            self.dirty.mark_held(run.folio);
        }
        match status {
            Err(error) => self.on_write_failed(ctx, volume, written.held, error),
            Ok(()) => self.volumes[volume].on_write_succeeded(),
        }
        self.volumes[volume].sub_writing(DeviceIo::mark_of(&completion.bio.id));
        self.advance(volume);
        self.wake_folio(run.folio, None, completion.wait_times);
        self.drop_behind(run.folio);
        self.end_own_writeout(completion, status);
    }

    fn on_write_failed(
        &mut self,
        ctx: &mut CallContext,
        volume: VolumeId,
        held: u32,
        error: IoError,
    ) {
        debug_assert!(!self.volumes[volume].is_free_slot(), "a busy volume stays");
        self.stats.failed += u64::from(held);
        self.volumes[volume].on_write_failed(error);
        self.count_held(volume, held, 0);
        self.plan_retry(ctx, volume, error);
    }

    /// Counts down the outstanding write-outs of the operation that sent one.
    fn end_own_writeout(&mut self, completion: &DeviceCompletion, status: Status) {
        let slot = completion.cookie;
        if slot == NIL {
            return;
        }
        self.waiters.set_below(slot, completion.wait_times);
        let op = self.waiters.op_mut(slot);
        assert!(op.pending > 0, "the operation sent the write-out");
        op.pending -= 1;
        // With the foreground policy a writer sends blocks of others: their errors are for the flushes to report.
        if op.step != OpStep::Write {
            op.status = op.status.and(status);
        }
        if op.pending == 0 && op.waits_for == WaitFor::Writeouts {
            self.waiters.ready(slot);
        }
    }
}
