//! Writes: into blocks, which are dirty then.
//!
//! A writer passes, in this order: the pause of its connection, dirty credit (a block is reserved before it becomes dirty, so
//! the limit holds at every moment), a frame, the rest of a block that it writes in part. It holds credit while it waits for a
//! frame, never the other way round: credit is at most a part of the pool, so whoever has it finds a frame in the end.

use crate::action::{Action, CopyDirection};
use crate::bio::{Bio, DeviceId, IoClass, Op};
use crate::cache::pool::folio::{BLOCK, BLOCK_SHIFT, Folio, block};
use crate::cache::pool::reclaim::Reclaim;
use crate::cache::steps::fill::FillReason;
use crate::cache::waiters::operation::{OpStep, Operation, WaitFor};
use crate::cache::{COPY_MAX, Cache, Turn};
use crate::error::IoError;
use crate::options::WriteMode;
use crate::slab::NIL;
use crate::writeback::WriterId;

/// Blocks that credit is asked for at once: 1 MiB.
const CREDIT_STEP: u32 = 256;

impl Cache {
    /// A write comes.
    pub(in crate::cache) fn begin_write(&mut self, turn: &mut Turn, bio: Bio) {
        let mut op = Operation::new(bio, OpStep::Write);
        self.begin_writer(turn, &mut op);
    }

    /// Finds the writer; behind those of it that pause already, or at once.
    pub(in crate::cache) fn begin_writer(&mut self, turn: &mut Turn, op: &mut Operation) {
        op.writer = self.throttle.writer(op.bio.id.connection).0;
        self.hear_from(op.writer, &op.bio);
        if self.has_paused(op.writer)
            && let Some(slot) = self.ops.try_take()
        {
            self.ops[slot] = op.clone();
            return self.park(turn, slot, WaitFor::Writer);
        }
        self.begin(turn, op.clone());
    }

    /// Writes up to the first block for which it must wait.
    pub(in crate::cache) fn step_write(
        &mut self,
        turn: &mut Turn,
        op: &mut Operation,
        slot: u32,
    ) -> WaitFor {
        if op.status.is_err() || self.is_given_up(op) {
            let status = op.status.and(Err(self.volume(op.bio.id.volume).last_error));
            return self.finish(turn, op, status);
        }
        if op.pending > 0 {
            return WaitFor::Own;
        }
        if slot == NIL && self.throttle.has_foreground() {
            return WaitFor::Slot;
        }
        let enough = op.done.saturating_add(COPY_MAX);
        loop {
            while op.done < op.until {
                if op.done >= enough {
                    return WaitFor::Turn;
                }
                if let Some(park) = self.write_some(turn, op, slot) {
                    return park;
                }
            }
            if !self.next_part(op) {
                break;
            }
        }
        self.drop_credit(op);
        let mode = self.volume(op.bio.id.volume).mode;
        let early = self.defects.writethrough_early();
        if op.is_fua() || mode == WriteMode::Writethrough && !early {
            if slot == NIL {
                return WaitFor::Slot;
            }
            (op.step, op.asked) = (OpStep::Clean, 0);
            return self.step_clean(turn, op, slot);
        }
        self.finish(turn, op, Ok(()))
    }

    /// Too much of the volume is held because it could not be written: it takes no more.
    fn is_given_up(&self, op: &Operation) -> bool {
        let volume = &self.volumes[usize::from(op.bio.id.volume.0)];
        let half = (self.throttle.reserve_max(volume.device) / 2).max(1);
        volume.held > 0 && volume.held >= (self.folios.units() / 100).max(16).min(half)
    }

    /// One run of blocks, or the reason to wait.
    fn write_some(&mut self, turn: &mut Turn, op: &mut Operation, slot: u32) -> Option<WaitFor> {
        let volume = op.bio.id.volume;
        if self.pause_of(turn, op.writer).is_some() && !self.is_stuck(volume) {
            // What it had reserved and does not dirty now is others'.
            self.drop_credit(op);
            return Some(WaitFor::Writer);
        }
        let at = op.at() >> BLOCK_SHIFT;
        let Some((unit, first)) = self.index.locate(&self.folios, volume, at) else {
            return self.place(turn, op, at);
        };
        let state = self.folios.states(unit + first, 1)[0];
        let over = self.defects.fill_overwrites() && self.part(op).whole;
        // Cut off by a smaller volume while it was written out: the old bytes must not come after the new ones.
        let cut_off = state & (block::WRITEBACK | block::UPTODATE) == block::WRITEBACK;
        if state & block::FILLING != 0 && !over || cut_off {
            if self.folios[unit].is_late() {
                return Some(self.finish(turn, op, Err(IoError::TimedOut)));
            }
            return Some(WaitFor::Folio(unit));
        }
        let part = self.part(op);
        if state & block::WRITEBACK != 0 && !self.defects.no_shadow() {
            return self.write_shadow(turn, op, (unit, first, state), part, slot);
        }
        if !part.whole && state & block::UPTODATE == 0 {
            return self.read_first(turn, op, unit, first);
        }
        let clean = state & block::DIRTY == 0;
        if clean
            && op.credit == 0
            && let Some(park) = self.take_credit(turn, op)
        {
            return Some(park);
        }
        let run = match part.whole {
            // At least this block, which a defect may have let pass.
            true => self.run_of(op, unit, first, part.blocks, clean).max(1),
            false => 1,
        };
        self.put_bytes(turn, op, unit + first, run);
        self.soil(turn, op, (unit, first, run), clean, slot)
    }

    /// Makes a folio for a block that is in none.
    fn place(&mut self, turn: &mut Turn, op: &mut Operation, at: u64) -> Option<WaitFor> {
        if op.credit == 0
            && let Some(park) = self.take_credit(turn, op)
        {
            return Some(park);
        }
        let volume = op.bio.id.volume;
        let end = (op.bio.offset + u64::from(op.until)).div_ceil(u64::from(BLOCK));
        let order_max = self.caching(volume).max_folio_order;
        let order = self.index.largest_fit(&self.folios, volume, at, order_max, end);
        match self.make_folio(turn, Some(op), (volume, at), order) {
            Some(_) => None,
            None => Some(WaitFor::Frames),
        }
    }

    /// How the cursor lies in its block.
    pub(in crate::cache) fn part(&self, op: &Operation) -> Part {
        let (at, left) = (op.at(), op.until - op.done);
        let within = (at % u64::from(BLOCK)) as u32;
        let size = self.volumes[usize::from(op.bio.id.volume.0)].size;
        // The last block of a volume ends where the volume does.
        let block_end = (at - u64::from(within) + u64::from(BLOCK)).min(size);
        let whole = within == 0 && at + u64::from(left) >= block_end;
        let ends_volume = at + u64::from(left) >= size;
        let blocks = if ends_volume { left.div_ceil(BLOCK) } else { left / BLOCK };
        Part { whole, blocks }
    }

    /// Blocks from `first` on that are written in one go: whole ones, as clean or as dirty as the first, with nothing on its
    /// way, and not more than there is credit for.
    fn run_of(&self, op: &Operation, unit: u32, first: u32, blocks: u32, clean: bool) -> u32 {
        let in_folio = self.folios[unit].blocks() - first;
        let most = if clean { blocks.min(op.credit) } else { blocks };
        let states = self.folios.states(unit + first, in_folio.min(most).max(1));
        let same = |state: &u8| {
            state & (block::FILLING | block::WRITEBACK) == 0 && (state & block::DIRTY == 0) == clean
        };
        states.iter().position(|state| !same(state)).unwrap_or(states.len()) as u32
    }

    fn take_credit(&mut self, turn: &mut Turn, op: &mut Operation) -> Option<WaitFor> {
        self.stirred = true;
        let device = self.volumes[usize::from(op.bio.id.volume.0)].device;
        let left =
            (op.at() % u64::from(BLOCK) + u64::from(op.until - op.done)).div_ceil(u64::from(BLOCK));
        let want = (left as u32).min(self.credit_most(device));
        let class = op.bio.ioprio.class();
        if self.waits_for_credit(usize::from(device.0))
            || !self.throttle.reserve_for(device, want, class)
        {
            if let Some(error) = self.flushers[usize::from(device.0)].stuck() {
                self.throttle.forget_refused(device);
                return Some(self.finish(turn, op, Err(error)));
            }
            return Some(WaitFor::Credit(want));
        }
        op.credit = want;
        None
    }

    /// Blocks that one operation asks credit for at once: a small part of what there is, so that several get some.
    pub(in crate::cache) fn credit_most(&self, device: DeviceId) -> u32 {
        (self.throttle.reserve_max(device) / 8).clamp(1, CREDIT_STEP)
    }

    /// The bytes of `run` blocks from the cursor on go to the frames from `unit` on.
    fn put_bytes(&mut self, turn: &mut Turn, op: &mut Operation, unit: u32, run: u32) {
        let within = (op.at() % u64::from(BLOCK)) as u32;
        let len = (op.until - op.done).min(run * BLOCK - within);
        let at = u64::from(unit) << BLOCK_SHIFT | u64::from(within);
        turn.actions.list.push(match op.bio.op {
            Op::WriteZeroes => Action::Zero { at, len },
            _ => Action::Copy {
                bio: op.bio.id,
                offset: op.done,
                len,
                at,
                direction: CopyDirection::ToPool,
            },
        });
        op.done += len;
    }

    /// `run` blocks of a folio were written: they are dirty; the throttle may pause the writer for it.
    fn soil(
        &mut self,
        turn: &mut Turn,
        op: &mut Operation,
        (unit, first, run): (u32, u32, u32),
        clean: bool,
        slot: u32,
    ) -> Option<WaitFor> {
        // What was there before is written again: worth keeping.
        if self.folios.states(unit + first, 1)[0] & block::USED != 0 {
            Reclaim::touch(&mut self.folios, unit);
        }
        self.folios[unit].marks &= !Folio::UNUSED;
        let failed = self.mark_dirty(turn, &op.bio, unit, first, run);
        if failed > 0 {
            self.count_held(op.bio.id.volume, 0, failed);
        }
        if !clean {
            return None;
        }
        op.credit -= run;
        self.charge(turn, op, run, slot)
    }

    /// Tells the throttle of blocks that became dirty; it may pause the writer, or have it write out for itself.
    fn charge(
        &mut self,
        turn: &mut Turn,
        op: &mut Operation,
        run: u32,
        slot: u32,
    ) -> Option<WaitFor> {
        let device = self.volume(op.bio.id.volume).device;
        let writer = match op.writer {
            NIL => self.throttle.nobody(),
            writer => WriterId(writer),
        };
        let class = if op.writer == NIL { IoClass::RealTime } else { op.bio.ioprio.class() };
        // A pause is for what comes next: of this bio or of this connection.
        let _ = self.throttle.on_dirtied(turn.now, writer, device, run, class);
        let quota = self.throttle.foreground_quota(writer, device);
        if quota == 0 {
            return None;
        }
        op.pending +=
            self.write_for_itself(turn, (op.bio.id.volume, op.bio.id.connection), quota, slot);
        (op.pending > 0).then_some(WaitFor::Own)
    }

    /// Marks blocks dirty and puts their folio on the list of its group; how many of them had been held.
    fn mark_dirty(&mut self, turn: &Turn, bio: &Bio, unit: u32, first: u32, run: u32) -> u32 {
        let current = self.volumes[usize::from(bio.id.volume.0)].current();
        if self.folios[unit].group == NIL {
            self.groups.add(turn.now, &mut self.folios, unit, bio.id.export);
            self.folios[unit].generation = current;
            self.volumes[usize::from(bio.id.volume.0)].add_dirty(current);
        }
        let newer = if self.folios[unit].generation == current { 0 } else { block::NEWER };
        let (mut became, mut failed) = (0, 0);
        for state in self.folios.states_mut(unit + first, run) {
            let old = *state;
            became += u16::from(old & block::DIRTY == 0);
            failed += u32::from(old & block::FAILED != 0);
            // One that waits for its write-out already goes with the older ones.
            let fresh = old & block::DIRTY == 0 || old & block::FAILED != 0;
            let newer = if fresh { newer } else { old & block::NEWER };
            let kept = old & !(block::FAILED | block::NEWER);
            *state = kept | block::UPTODATE | block::USED | block::DIRTY | newer;
        }
        if newer != 0 {
            self.volumes[usize::from(bio.id.volume.0)].add_newer();
        }
        self.folios[unit].dirty += became;
        self.volumes[usize::from(bio.id.volume.0)].unclean += u32::from(became);
        self.dirty_regions.add(self.folios[unit].key, became.into());
        failed
    }

    /// The rest of a block that is written in part is read first.
    fn read_first(
        &mut self,
        turn: &mut Turn,
        op: &Operation,
        unit: u32,
        first: u32,
    ) -> Option<WaitFor> {
        if self.defects.no_read_before_write() {
            let at = u64::from(unit + first) << BLOCK_SHIFT;
            turn.actions.list.push(Action::Zero { at, len: BLOCK });
            self.folios.states_mut(unit + first, 1)[0] |= block::UPTODATE;
            return None;
        }
        let account = self.fills_of(op.bio.id.volume);
        if !self.may_send(account) {
            return Some(WaitFor::Bios(account as u32));
        }
        self.stats.read_before_write += 1;
        self.send_fill(&FillReason { bio: op.bio, ahead: false }, unit, first, 1);
        Some(WaitFor::Folio(unit))
    }

    /// A block that is on its way to the device is written beside its frame.
    fn write_shadow(
        &mut self,
        turn: &mut Turn,
        op: &mut Operation,
        (unit, first, state): (u32, u32, u8),
        part: Part,
        slot: u32,
    ) -> Option<WaitFor> {
        let clean = state & block::DIRTY == 0;
        if clean
            && op.credit == 0
            && let Some(park) = self.take_credit(turn, op)
        {
            return Some(park);
        }
        let shadow = if state & block::SHADOW != 0 {
            self.shadows.of(unit + first)
        } else {
            let Some(shadow) = self.shadows.take(unit + first) else {
                if self.folios[unit].is_late() {
                    return Some(self.finish(turn, op, Err(IoError::TimedOut)));
                }
                self.stats.waits[3] += 1;
                return Some(WaitFor::Folio(unit));
            };
            self.folios.states_mut(unit + first, 1)[0] |= block::SHADOW;
            if !part.whole {
                turn.actions.list.push(Action::Move {
                    from: u64::from(unit + first) << BLOCK_SHIFT,
                    to: u64::from(shadow) << BLOCK_SHIFT,
                    len: BLOCK,
                });
            }
            shadow
        };
        self.stirred = true;
        self.stats.shadowed += 1;
        self.put_bytes(turn, op, shadow, 1);
        self.soil(turn, op, (unit, first, 1), clean, slot)
    }

    /// Zeroes of which the ends are not whole blocks: the next end, if there is one.
    fn next_part(&mut self, op: &mut Operation) -> bool {
        let more = op.until < op.bio.len;
        if more {
            let tail = op.bio.end() % u64::from(BLOCK);
            op.done = op.bio.len - tail as u32;
            op.until = op.bio.len;
        }
        more
    }
}

/// How a cursor lies in its block.
#[derive(Clone, Copy, Debug)]
pub(in crate::cache) struct Part {
    /// The whole block is written.
    pub whole: bool,
    /// Whole blocks from here on.
    blocks: u32,
}
