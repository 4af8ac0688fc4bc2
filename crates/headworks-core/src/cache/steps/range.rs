//! Discard, write-zeroes and direct I/O: bios that bypass the cache.
//!
//! The operation locks its range; others that touch it wait. A discard cancels what is dirty of it, since its content is not needed.
//! Direct I/O, a zeroing (which may fail), and a discard of blocks whose FUA or writethrough write has not completed write
//! it out. When nothing of the range is outstanding, the cached blocks are invalidated and the client's bio goes to the device. So
//! neither an older write-out nor an older fill can undo what the device is told.
//!
//! ```text
//!   locked --> cancelled or written --> nothing outstanding, invalidated --> Device --> unlocked --> completed
//!                turn by turn            folio by folio, turn by turn          `-> the unaligned ends of a zeroing: Write
//! ```
//!
//! Whole blocks only: a discard is rounded inward, direct I/O outward; an unaligned zeroing writes zeros at its ends.

use super::write_out;
use crate::action::Action;
use crate::bio::{Bio, BioFlags, Op};
use crate::cache::context::CallContext;
use crate::cache::pool::folio::{BLOCK, BLOCK_SHIFT, block};
use crate::cache::pool::{RangeWalk, TURN_BUDGET, WalkStep, charge_cancel, charge_drop};
use crate::cache::state::CacheState;
use crate::cache::waiters::operation::{OpStep, Operation, WaitFor};
use crate::cache::waiters::touched_blocks;
use crate::device_bio::DeviceCompletion;
use crate::error::IoError;
use crate::input::ReplyStage;
use crate::slab::NIL;

/// The longest zeroing with an unaligned end that is written like data.
const ZERO_MAX: u32 = 128 << 10;

/// Returns the whole blocks of a bio; a partial last block of the volume counts if the bio ends with the volume.
fn whole_blocks(state: &CacheState, bio: &Bio) -> (u64, u64) {
    let size = state.volumes[bio.id.volume].size();
    let start = bio.offset.div_ceil(u64::from(BLOCK));
    let end = match bio.end() == size {
        true => size.div_ceil(u64::from(BLOCK)),
        false => bio.end() >> BLOCK_SHIFT,
    };
    (start, end.max(start))
}

/// Returns true if a zeroing is written like data: a short one with an unaligned end, unless it must be fast.
pub(in crate::cache) fn zeroes_as_write(state: &CacheState, bio: &Bio) -> bool {
    let (start, end) = whole_blocks(state, bio);
    let aligned = (start, end) == touched_blocks(bio);
    let fast = bio.flags.contains(BioFlags::FAST_ZERO);
    !(aligned || start < end && (fast || bio.len > ZERO_MAX))
}

/// Locks the range, cleans it, and passes the bio to the device.
pub(super) fn step(
    state: &mut CacheState,
    ctx: &mut CallContext,
    op: &mut Operation,
    slot: u32,
) -> WaitFor {
    if slot == NIL {
        return WaitFor::Slot;
    }
    let volume = op.bio.id.volume;
    let range = if op.direct { touched_blocks(&op.bio) } else { whole_blocks(state, &op.bio) };
    if range.0 >= range.1 {
        // Perhaps the volume has grown meanwhile, and its partial last block is no longer a whole one.
        state.waiters.unlock_range(op, slot);
        return state.complete(ctx, op, Ok(()));
    }
    if !op.locked {
        state.waiters.lock_range(op, slot, range);
    }
    // A device may refuse to zero: until it has not, acknowledged data must stay. And data that a writer waits for (FUA,
    // writethrough) is written before it is discarded, or the writer would be told that it is on the device when it never was.
    if op.progress == 0 && op.walk == 0 {
        let zeroes = op.bio.op == Op::WriteZeroes;
        op.writes_out = op.direct || zeroes || state.waiters.writes_out(volume, range);
    }
    if op.writes_out {
        let written = state.stats.writeouts.blocks;
        let waits_for = write_out::write_range(state, ctx, op, slot, BioFlags::SYNC);
        if op.direct {
            state.stats.direct_dirty += state.stats.writeouts.blocks - written;
        }
        if let Some(waits_for) = waits_for {
            return waits_for;
        }
        if op.status.is_err() {
            state.waiters.unlock_range(op, slot);
            return state.complete(ctx, op, op.status);
        }
    } else if op.progress == 0 {
        // Once: under the lock only a failed write-out makes blocks dirty, see `invalidate_range`.
        if !cancel_range(state, ctx, op, range) {
            return WaitFor::NextTurn;
        }
        (op.progress, op.walk) = (1, 0);
    }
    match invalidate_range(state, ctx, op, range) {
        Some(WaitFor::Folio(unit)) if state.pool.folio(unit).is_late() => {
            state.waiters.unlock_range(op, slot);
            return state.complete(ctx, op, Err(IoError::TimedOut));
        }
        Some(waits_for) => return waits_for,
        None => {}
    }
    if state.is_late_for_device(ctx, op) {
        state.waiters.unlock_range(op, slot);
        return state.complete(ctx, op, Err(IoError::TimedOut));
    }
    let bio = device_bio(op, range);
    state.pass_to_device(op, slot, bio);
    WaitFor::Device
}

/// Cancels the dirty blocks of an operation's range; false if they are more than one turn may cancel.
fn cancel_range(
    state: &mut CacheState,
    ctx: &mut CallContext,
    op: &mut Operation,
    range: (u64, u64),
) -> bool {
    debug_assert!(op.locked, "only a locked range stays clean");
    let walk = RangeWalk::new(&state.pool, op.bio.id.volume, range);
    let mut budget = TURN_BUDGET;
    loop {
        match walk.next(&state.pool, &mut op.walk, &mut budget) {
            WalkStep::End => return true,
            WalkStep::OverBudget => return false,
            WalkStep::Folio(unit) => {
                op.walk = walk.position_after(&state.pool, unit);
                let (first, count) = walk.overlap(&state.pool, unit);
                charge_cancel(state.pool.folio(unit), &mut budget);
                let cancelled = state.cancel_dirty(unit, first, count, ctx.actions);
                state.stats.discarded_dirty += u64::from(cancelled);
            }
        }
    }
}

/// Invalidates the cached blocks of an operation's range up to the first outstanding one; returns what to wait for before it
/// continues. Blocks that a failed write-out made dirty again are cancelled as soon as it has ended, so that they are not sent again.
fn invalidate_range(
    state: &mut CacheState,
    ctx: &mut CallContext,
    op: &mut Operation,
    range: (u64, u64),
) -> Option<WaitFor> {
    debug_assert!(op.locked, "only a locked range stays clean");
    let walk = RangeWalk::new(&state.pool, op.bio.id.volume, range);
    let mut budget = TURN_BUDGET;
    loop {
        let unit = match walk.next(&state.pool, &mut op.walk, &mut budget) {
            WalkStep::End => return None,
            WalkStep::OverBudget => return Some(WaitFor::NextTurn),
            WalkStep::Folio(unit) => unit,
        };
        let (first, count) = walk.overlap(&state.pool, unit);
        let busy = |s: &u8| s & (block::WRITEBACK | block::FILLING) != 0;
        if state.pool.states(unit + first, count).iter().any(busy)
            && !state.defects.discard_ignores_writeout()
        {
            return Some(WaitFor::Folio(unit));
        }
        op.walk = walk.position_after(&state.pool, unit);
        charge_drop(state.pool.folio(unit), &mut budget);
        if op.bio.op == Op::Discard {
            state.cancel_dirty(unit, first, count, ctx.actions);
        }
        state.pool.invalidate(unit, first, count);
    }
}

/// Returns the bio for the device: of discards and zeroings the whole blocks.
fn device_bio(op: &Operation, (start, end): (u64, u64)) -> Bio {
    if op.direct {
        return op.bio;
    }
    debug_assert!(start < end, "the device gets whole blocks");
    let offset = start << BLOCK_SHIFT;
    let len = (end << BLOCK_SHIFT).min(op.bio.end()) - offset;
    Bio { offset, len: len as u32, ..op.bio }
}

/// Handles the completion of a client bio that was passed to its device.
pub(in crate::cache) fn on_device_completion(
    state: &mut CacheState,
    ctx: &mut CallContext,
    completion: &DeviceCompletion,
) {
    let slot = completion.cookie;
    assert!(slot != NIL, "an operation waits for a bio that was passed on");
    state.waiters.set_below(slot, completion.wait_times);
    if completion.stage == ReplyStage::Early {
        let op = state.waiters.op_mut(slot);
        op.answered = true;
        ctx.reply_after(&op.bio, completion.status, ReplyStage::Early, completion.wait_times);
        // It is unknown when the device answers: the waiters for the range fail, and new ones until then.
        return state.waiters.wake_range_waiters(slot);
    }
    let mut op = state.waiters.take_out(slot);
    debug_assert!(op.step == OpStep::Device, "the operation waits for its device");
    if op.answered {
        state.waiters.unlock_range(&mut op, slot);
        state.complete(ctx, &mut op, completion.status);
    } else if op.bio.op == Op::Flush {
        super::flush::end(state, ctx, &mut op, completion.status);
    } else if op.bio.op == Op::WriteZeroes
        && completion.bio.op == Op::WriteZeroes
        && completion.status.is_ok()
    {
        state.waiters.unlock_range(&mut op, slot);
        if op.continue_with_ends(&completion.bio) {
            state.waiters.put_back(slot, op);
            return state.waiters.ready(slot);
        }
        state.complete(ctx, &mut op, Ok(()));
    } else {
        state.waiters.unlock_range(&mut op, slot);
        state.waiters.end_wait(ctx.now, &mut op);
        let wait_times = state.waiters.wait_times(&op);
        let (id, status, hole) = (op.bio.id, completion.status, completion.hole);
        let stage = ReplyStage::Final;
        ctx.actions.list.push(Action::Reply { id, status, hole, stage, wait_times });
        state.release(&mut op);
    }
    state.waiters.remove(slot, op);
}
