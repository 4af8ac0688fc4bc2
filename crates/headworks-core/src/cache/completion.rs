//! What comes back from the devices: fills, write-outs, and bios that were passed down.
//!
//! The blocks of a bio change their state here and nowhere else, and whoever waited for their folio goes on. A bio that passed
//! its time-out comes twice: `Early` (whoever waits for it fails, and until the device answers whoever comes fails as well) and
//! `Released` (its frames are free; what was to be written is dirty again).

use crate::action::Action;
use crate::bio::{Op, VolumeId};
use crate::cache::device_io::{fills, write_outs};
use crate::cache::pool::folio::{BLOCK, BLOCK_SHIFT, block};
use crate::cache::waiters::operation::{OpStep, WaitFor};
use crate::cache::{Cache, Turn};
use crate::device_bio::DeviceCompletion;
use crate::error::{IoError, Status};
use crate::input::ReplyStage;
use crate::slab::NIL;

/// The blocks of a bio that came back.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Their folio.
    folio: u32,
    /// The first one's unit.
    unit: u32,
    /// The first one on its volume.
    block: u64,
    count: u32,
    volume: VolumeId,
}

impl Cache {
    /// A bio that went down comes back.
    pub fn on_completion(&mut self, turn: &mut Turn, up: DeviceCompletion) {
        let Some(unit) = up.bio.id.unit() else {
            self.passed -= u32::from(up.stage != ReplyStage::Early);
            return self.on_below(turn, up);
        };
        let (volume, at) = (up.bio.id.volume, up.bio.offset >> BLOCK_SHIFT);
        let folio = self.index.find(&self.folios, volume, at);
        let run = Run {
            folio: folio.expect("a folio with something on its way stays"),
            unit,
            block: at,
            count: up.bio.len.div_ceil(BLOCK),
            volume,
        };
        match (up.bio.op, up.stage) {
            (_, ReplyStage::Early) => self.on_late(turn, &run, &up),
            (Op::Read, stage) => {
                let device = usize::from(self.volume(volume).device.0);
                self.bios.sub(fills(device), 1);
                self.filling.sub(device, run.count);
                let status =
                    if stage == ReplyStage::Released { Err(IoError::TimedOut) } else { up.status };
                self.on_filled(turn, &run, &up, status);
            }
            (_, stage) => {
                let device = usize::from(self.volume(volume).device.0);
                self.bios.sub(write_outs(device), 1);
                let status =
                    if stage == ReplyStage::Released { Err(IoError::TimedOut) } else { up.status };
                if stage == ReplyStage::Released {
                    self.count_late(volume, 0, 1);
                }
                self.on_written(turn, &run, &up, status);
            }
        }
    }

    /// A command passed its time-out.
    fn on_late(&mut self, turn: &mut Turn, run: &Run, up: &DeviceCompletion) {
        self.folios[run.folio].late += 1;
        let failed = (run.block, run.block + u64::from(run.count), IoError::TimedOut);
        if up.bio.op == Op::Read {
            return self.wake_folio(run.folio, Some(failed), up.wait_times);
        }
        self.wake_folio(run.folio, None, up.wait_times);
        let volume = self.volume(run.volume);
        volume.errors.record(IoError::TimedOut);
        volume.last_error = IoError::TimedOut;
        self.count_late(run.volume, 1, 0);
        while let Some(slot) = self.volumes[usize::from(run.volume.0)].syncs.pop(&mut self.ops) {
            self.ops[slot].status = Err(IoError::TimedOut);
            self.ready(slot);
        }
        if up.cookie != NIL && !self.ops[up.cookie].answered {
            let op = &mut self.ops[up.cookie];
            op.answered = true;
            op.status = Err(IoError::TimedOut);
            let (id, status) = (op.bio.id, op.status);
            let stage = ReplyStage::Early;
            let wait_times = up.wait_times;
            turn.actions.list.push(Action::Reply { id, status, hole: false, stage, wait_times });
            // If it has its range for itself: who waits for that hears of it, as do those who come until it ends.
            if let Some(mut waiting) = self.ranges.take_waiting(up.cookie) {
                self.lines.ready.append(&mut self.ops, &mut waiting);
            }
        }
    }

    /// Blocks came from the device.
    fn on_filled(&mut self, turn: &mut Turn, run: &Run, up: &DeviceCompletion, status: Status) {
        if up.hole && status.is_ok() {
            let at = u64::from(run.unit) << BLOCK_SHIFT;
            turn.actions.list.push(Action::Zero { at, len: run.count * BLOCK });
        }
        let present = self.volume(run.volume).blocks();
        let there = if status.is_ok() { block::UPTODATE } else { 0 };
        for (state, at) in self.folios.states_mut(run.unit, run.count).iter_mut().zip(run.block..) {
            let there = if *state & block::VOID == 0 && at < present { there } else { 0 };
            *state = *state & !(block::FILLING | block::VOID) | there;
        }
        let folio = &mut self.folios[run.folio];
        folio.filling -= run.count as u16;
        self.no_longer_late(run.folio, up);
        let error = status.err();
        let failed = error.map(|e| (run.block, run.block + u64::from(run.count), e));
        self.wake_folio(run.folio, failed, up.wait_times);
    }

    /// The volume ended within the last block when this was sent, and goes on there now: of its rest nothing is known.
    fn ends_short(&self, run: &Run, up: &DeviceCompletion) -> bool {
        let end = up.bio.end();
        let within = !end.is_multiple_of(u64::from(BLOCK));
        within && end < self.volumes[usize::from(run.volume.0)].size
    }

    /// Each bio that was given up counts until it is answered: others of its folio may never rest.
    fn no_longer_late(&mut self, unit: u32, up: &DeviceCompletion) {
        self.folios[unit].late -= u16::from(up.stage == ReplyStage::Released);
    }

    /// Blocks were written, or could not be.
    fn on_written(&mut self, turn: &mut Turn, run: &Run, up: &DeviceCompletion, status: Status) {
        let device = self.volume(run.volume).device;
        self.flushers[usize::from(device.0)].came_back(run.count);
        let keep = status.is_err() && !self.defects.failed_is_clean();
        let present = self.volume(run.volume).blocks();
        let (mut clean, mut held) = (0, 0);
        for (unit, at) in (run.unit..run.unit + run.count).zip(run.block..) {
            let state = self.folios.states(unit, 1)[0] & !block::WRITEBACK;
            let state = if state & block::SHADOW != 0 {
                self.end_shadow(turn, unit);
                clean += 1;
                state & !block::SHADOW
            } else if keep && state & block::DIRTY == 0 && at < present {
                // Not up to date if the volume's end went past it and back: what it holds is what the device was to have.
                held += 1;
                state | block::UPTODATE | block::DIRTY | block::FAILED
            } else {
                clean += 1;
                state
            };
            self.folios.states_mut(unit, 1)[0] = state;
        }
        if self.ends_short(run, up) {
            let last = run.unit + run.count - 1;
            let state = self.folios.states(last, 1)[0];
            if state & block::FAILED != 0 {
                self.zero_from(turn, last, (up.bio.end() % u64::from(BLOCK)) as u32);
            } else if state & block::DIRTY == 0 {
                self.folios.states_mut(last, 1)[0] &= !(block::UPTODATE | block::USED);
            }
        }
        let folio = &mut self.folios[run.folio];
        folio.writeback -= run.count as u16;
        folio.dirty += held as u16;
        self.no_longer_late(run.folio, up);
        self.volume(run.volume).unclean -= clean;
        self.dirty_regions.sub(self.folios[run.folio].key, clean);
        self.throttle.on_written(turn.now, device, clean);
        if held > 0 {
            self.held.mark(run.folio);
            self.throttle.on_write_failed(turn.now, device, held);
        }
        if let Err(error) = status {
            self.on_failed(turn, run.volume, held, error);
        } else if self.volume(run.volume).held == 0 {
            let entry = self.volume(run.volume);
            (entry.backoff_ns, entry.failing) = (0, false);
        }
        self.volume(run.volume).sub_writing((up.bio.id.sequence >> 32 & 15) as u8);
        self.advance(run.volume);
        self.wake_folio(run.folio, None, up.wait_times);
        self.end_own(up, status);
    }

    fn on_failed(&mut self, turn: &mut Turn, volume: VolumeId, held: u32, error: IoError) {
        self.stats.failed += u64::from(held);
        let entry = self.volume(volume);
        (entry.last_error, entry.failing) = (error, true);
        entry.errors.record(error);
        self.count_held(volume, held, 0);
        self.plan_retry(turn, volume, error);
    }

    /// The operation in whose name it was sent has one less on its way.
    fn end_own(&mut self, up: &DeviceCompletion, status: Status) {
        if up.cookie == NIL {
            return;
        }
        let op = &mut self.ops[up.cookie];
        op.pending -= 1;
        self.waits[up.cookie as usize].below = up.wait_times;
        // A writer that writes out for itself sends anybody's blocks: their errors are the flushes' to tell.
        if op.step != OpStep::Write {
            op.status = op.status.and(status);
        }
        if op.pending == 0 && op.waits_for == WaitFor::Own {
            self.ready(up.cookie);
        }
    }
}
