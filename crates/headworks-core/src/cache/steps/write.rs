//! Writes: copy into blocks, which become dirty.
//!
//! A write passes, in this order: the pause of its connection; the caps of the export that pays for it and of its tenant; dirty
//! credit (a block is reserved before it becomes dirty, so the limit holds at every moment); a frame; the rest of a block that it
//! writes in part. It holds credit while it waits for a frame, never the other way round: credit is at most a part of the pool,
//! so an operation with credit finds a frame in the end.
//!
//! Invariant, with a dirty table: past the end of its volume a dirty frame has zeros, or bytes that were there before the volume
//! shrank.

use super::{COPY_MAX, fill, write_out};
use crate::action::{Action, CopyDirection};
use crate::bio::{DeviceId, ExportId, IoClass, Op, VolumeId};
use crate::cache::context::CallContext;
use crate::cache::device_io::fills;
use crate::cache::pool::folio::{BLOCK, BLOCK_SHIFT, Folio, block};
use crate::cache::state::CacheState;
use crate::cache::waiters::operation::{BlockPart, OpStep, Operation, WaitFor};
use crate::error::IoError;
use crate::options::WriteMode;
use crate::slab::NIL;
use crate::writeback::WriterId;

/// Writes up to the first block for which it must wait; then writes out if the write must be durable.
pub(super) fn step(
    state: &mut CacheState,
    ctx: &mut CallContext,
    op: &mut Operation,
    slot: u32,
) -> WaitFor {
    if op.status.is_err() || holds_too_much(state, op) {
        let status = op.status.and(Err(state.volumes[op.bio.id.volume].last_error()));
        return state.complete(ctx, op, status);
    }
    if op.pending > 0 {
        return WaitFor::Writeouts;
    }
    if slot == NIL && state.dirty.throttle().has_foreground() {
        return WaitFor::Slot;
    }
    let enough = op.done.saturating_add(COPY_MAX);
    loop {
        while op.done < op.part_end {
            if op.done >= enough {
                return WaitFor::NextTurn;
            }
            if let Some(waits_for) = write_some(state, ctx, op, slot) {
                return waits_for;
            }
        }
        if !op.next_part() {
            break;
        }
    }
    state.drop_credit(op);
    let through = state.volumes[op.bio.id.volume].mode() == WriteMode::Writethrough;
    if op.is_fua() || through && !state.defects.writethrough_early() {
        if slot == NIL {
            return WaitFor::Slot;
        }
        (op.step, op.progress) = (OpStep::WriteOut, 0);
        return write_out::step(state, ctx, op, slot);
    }
    state.complete(ctx, op, Ok(()))
}

/// Returns true if the volume holds so many blocks that it takes no more writes.
fn holds_too_much(state: &CacheState, op: &Operation) -> bool {
    let volume = &state.volumes[op.bio.id.volume];
    let half = (state.dirty.throttle().reserve_max(volume.device()) / 2).max(1);
    let held = volume.held();
    held > 0 && held >= (state.pool.limit() / 100).max(16).min(half)
}

/// Writes one run of blocks, or returns what to wait for.
fn write_some(
    state: &mut CacheState,
    ctx: &mut CallContext,
    op: &mut Operation,
    slot: u32,
) -> Option<WaitFor> {
    debug_assert!(op.done < op.part_end && op.part_end <= op.bio.len, "the cursor is in the part");
    let volume = op.bio.id.volume;
    if !state.is_frozen()
        && state.pause_of(ctx.now, op.writer).is_some()
        && state.dirty.stuck(state.volumes.device_index(volume)).is_none()
    {
        // Credit that it does not use now is for others.
        state.drop_credit(op);
        return Some(WaitFor::Pause);
    }
    let at = op.at() >> BLOCK_SHIFT;
    let Some((unit, first)) = state.pool.locate(volume, at) else {
        return add_folio(state, ctx, op, at);
    };
    let bits = state.pool.state(unit + first);
    let part = op.block_part(state.volumes[volume].size());
    let over = state.defects.fill_overwrites() && part.whole;
    // Cut off by a truncation while it was written out: the old bytes must not follow the new ones.
    let cut_off = bits & (block::WRITEBACK | block::UPTODATE) == block::WRITEBACK;
    if bits & block::FILLING != 0 && !over || cut_off {
        if state.pool.folio(unit).is_late() {
            return Some(state.complete(ctx, op, Err(IoError::TimedOut)));
        }
        return Some(WaitFor::Folio(unit));
    }
    if bits & block::WRITEBACK != 0 && !state.defects.no_shadow() {
        return write_shadow(state, ctx, op, (unit, first, bits), part, slot);
    }
    if !part.whole && bits & block::UPTODATE == 0 {
        return read_first(state, ctx, op, unit, first);
    }
    let clean = bits & block::DIRTY == 0;
    if clean && let Some(waits_for) = hold_credit(state, ctx, op, unit) {
        return Some(waits_for);
    }
    let run = match part.whole {
        // At least this block, which a defect may have let pass.
        true => writable_run(state, op, unit, first, part.blocks, clean).max(1),
        false => 1,
    };
    put_bytes(ctx, op, unit + first, run);
    // A dirty block is in the table already.
    if clean {
        zero_past_end(state, ctx, (volume, at + u64::from(run)), unit + first + run - 1);
        state.pool.set_dirty(unit + first, run, (volume, at), ctx.actions);
    }
    dirty_blocks(state, ctx, op, (unit, first, run), (clean, part.whole), slot)
}

/// Makes a folio for a block that is in none.
fn add_folio(
    state: &mut CacheState,
    ctx: &mut CallContext,
    op: &mut Operation,
    at: u64,
) -> Option<WaitFor> {
    let export = op.bio.id.export;
    if op.reserved.credit == 0
        && let Some(waits_for) = take_credit(state, ctx, op, export)
    {
        return Some(waits_for);
    }
    let volume = op.bio.id.volume;
    let end = (op.bio.offset + u64::from(op.part_end)).div_ceil(u64::from(BLOCK));
    let order_max = state.volumes.caching(volume).max_folio_order;
    let order = state.pool.largest_fit(volume, at, order_max, end);
    let Some(unit) = state.make_folio(Some(op), export, (volume, at), order) else {
        return Some(WaitFor::Frame);
    };
    if state.volumes[volume].drops_behind() {
        state.pool.set_mark(unit, Folio::DROP_BEHIND);
    }
    None
}

/// Returns how many blocks from `first` on are written at once: whole ones, all clean or all dirty as the first, none outstanding,
/// and not more than there is credit for.
fn writable_run(
    state: &CacheState,
    op: &Operation,
    unit: u32,
    first: u32,
    blocks: u32,
    clean: bool,
) -> u32 {
    let in_folio = state.pool.folio(unit).blocks() - first;
    let most = if clean { blocks.min(op.reserved.credit) } else { blocks };
    let states = state.pool.states(unit + first, in_folio.min(most).max(1));
    let same = |state: &u8| {
        state & (block::FILLING | block::WRITEBACK) == 0 && (state & block::DIRTY == 0) == clean
    };
    states.iter().position(|state| !same(state)).unwrap_or(states.len()) as u32
}

/// Makes sure that the operation holds credit, reserved for the export that pays for dirty blocks of a folio.
fn hold_credit(
    state: &mut CacheState,
    ctx: &mut CallContext,
    op: &mut Operation,
    unit: u32,
) -> Option<WaitFor> {
    let payer = state.payer_of(unit, op.bio.id.export);
    debug_assert!(op.reserved.paid >= op.reserved.credit, "a payer pays for all credit");
    if op.reserved.credit > 0 && op.reserved.payer == payer {
        return None;
    }
    if op.reserved.credit > 0 {
        state.drop_credit(op);
    }
    take_credit(state, ctx, op, payer)
}

/// Reserves dirty credit for the rest of the operation, up to the share of one, which `payer` pays for; otherwise returns what to
/// wait for.
fn take_credit(
    state: &mut CacheState,
    ctx: &mut CallContext,
    op: &mut Operation,
    payer: ExportId,
) -> Option<WaitFor> {
    debug_assert!(op.reserved.credit == 0, "credit is used up before more is reserved");
    if op.reserved.payer != payer {
        state.drop_credit(op);
        op.reserved.payer = payer;
    }
    state.needs_run = true;
    let device = state.volumes[op.bio.id.volume].device();
    let index = usize::from(device.0);
    let left = u64::from(op.part_end - op.done);
    let left = (op.at() % u64::from(BLOCK) + left).div_ceil(u64::from(BLOCK));
    let wanted = (left as u32).min(state.credit_max(device));
    let wanted = match op.reserved.paid {
        0 => match take_room(state, op, wanted) {
            Ok(paid) => paid,
            Err(waits_for) => {
                let stuck = state.dirty.stuck(index);
                return stuck.map(|error| state.complete(ctx, op, Err(error))).or(Some(waits_for));
            }
        },
        paid => {
            let used = wanted.min(paid);
            state.dirty.unreserve(device, 0, (payer, paid - used));
            used
        }
    };
    op.reserved.paid = wanted;
    if state.waiters.first_for_credit(index).is_some() || !reserve(state, device, op, wanted) {
        if let Some(error) = state.dirty.stuck(index) {
            state.dirty.throttle_mut().forget_refused(device);
            return Some(state.complete(ctx, op, Err(error)));
        }
        return Some(WaitFor::Credit(wanted));
    }
    op.reserved.credit = wanted;
    None
}

/// Reserves up to `wanted` blocks under the caps of the operation's payer, past no other operation that waits for them; returns how
/// many, or what to wait for.
fn take_room(state: &mut CacheState, op: &Operation, wanted: u32) -> Result<u32, WaitFor> {
    let payers = state.dirty.payers();
    let wanted = payers.at_once(op.reserved.payer, wanted);
    if payers.has_caps() {
        let mut accounts = payers.accounts(op.reserved.payer);
        let waited = accounts.find(|&account| state.waiters.first_for_cap(account).is_some());
        if let Some(account) = waited.or_else(|| payers.full(op.reserved.payer, wanted)) {
            state.dirty.payers_mut().set_awaited(account, true);
            return Err(WaitFor::Cap(account, wanted));
        }
    }
    debug_assert!(op.reserved.paid == 0 && wanted > 0, "one reservation at a time");
    state.dirty.reserve_for_payer(op.reserved.payer, wanted);
    Ok(wanted)
}

fn reserve(state: &mut CacheState, device: DeviceId, op: &Operation, blocks: u32) -> bool {
    state.dirty.reserve_credit(device, blocks, op.bio.ioprio.class())
}

/// Copies the bytes of `run` blocks from the cursor on into the frames from `unit` on.
fn put_bytes(ctx: &mut CallContext, op: &mut Operation, unit: u32, run: u32) {
    let within = (op.at() % u64::from(BLOCK)) as u32;
    let len = (op.part_end - op.done).min(run * BLOCK - within);
    debug_assert!(len > 0, "a write advances");
    let at = u64::from(unit) << BLOCK_SHIFT | u64::from(within);
    let (bio, offset, direction) = (op.bio.id, op.done, CopyDirection::ToPool);
    ctx.actions.list.push(match op.bio.op {
        Op::WriteZeroes => Action::Zero { at, len },
        _ => Action::Copy { bio, offset, len, at, direction },
    });
    op.done += len;
}

/// Fills the frame of the block before block `end` with zeros past the end of the volume, if the volume ends within the block.
fn zero_past_end(
    state: &CacheState,
    ctx: &mut CallContext,
    (volume, end): (VolumeId, u64),
    frame: u32,
) {
    let volume = &state.volumes[volume];
    debug_assert!(end <= volume.blocks(), "a write ends with its volume");
    let within = (volume.size() % u64::from(BLOCK)) as u32;
    if within > 0 && end == volume.blocks() {
        state.pool.zero_past_end(frame, within, &mut ctx.actions.list);
    }
}

/// Marks `run` written blocks of a folio dirty, `whole` ones or a part of one, and charges the writer if they were clean.
fn dirty_blocks(
    state: &mut CacheState,
    ctx: &mut CallContext,
    op: &mut Operation,
    (unit, first, run): (u32, u32, u32),
    (clean, whole): (bool, bool),
    slot: u32,
) -> Option<WaitFor> {
    // A block that was used before and is written again makes its folio worth keeping. (Of a stream, only a whole block: one whose
    // writes end within blocks continues there.)
    let mut marks = Folio::UNUSED;
    if state.pool.state(unit + first) & block::USED != 0 {
        state.pool.touch(unit);
        marks |= if whole { Folio::DROP_BEHIND } else { 0 };
    }
    state.pool.clear_marks(unit, marks);
    let unheld = state.mark_dirty(ctx.now, &op.bio, unit, first, run);
    if unheld > 0 {
        let payer = state.pool.folio(unit).export;
        let device = state.volumes.device_index(op.bio.id.volume);
        state.dirty.payers_mut().on_unheld(device, payer, unheld);
        state.count_held(op.bio.id.volume, 0, unheld);
    }
    if !clean {
        return None;
    }
    assert!(op.reserved.credit >= run, "blocks become dirty with credit");
    assert!(op.reserved.paid >= run, "a payer pays for what becomes dirty");
    (op.reserved.credit, op.reserved.paid) = (op.reserved.credit - run, op.reserved.paid - run);
    charge(state, ctx, op, run, slot)
}

/// Tells the throttle of blocks that became dirty; it may pause the writer, or have it write out (an injected foreground policy).
fn charge(
    state: &mut CacheState,
    ctx: &mut CallContext,
    op: &mut Operation,
    run: u32,
    slot: u32,
) -> Option<WaitFor> {
    assert!(run > 0, "blocks became dirty");
    let device = state.volumes[op.bio.id.volume].device();
    let throttle = state.dirty.throttle_mut();
    let writer = match op.writer {
        NIL => {
            throttle.on_dirtied_after_close(ctx.now, op.bio.id.export, device, run);
            throttle.shared_writer()
        }
        writer => WriterId(writer),
    };
    let class = if op.writer == NIL { IoClass::RealTime } else { op.bio.ioprio.class() };
    // A pause is for what follows, of this bio or of this connection.
    throttle.assign(writer, op.bio.id.export);
    let _ = throttle.on_dirtied(ctx.now, writer, device, run, class);
    let quota = throttle.foreground_quota(writer, device);
    if quota == 0 {
        return None;
    }
    let of = (op.bio.id.volume, op.bio.id.connection);
    op.pending += state.write_oldest_group(ctx, of, quota, slot);
    (op.pending > 0).then_some(WaitFor::Writeouts)
}

/// Reads a block of which only a part is written.
fn read_first(
    state: &mut CacheState,
    ctx: &mut CallContext,
    op: &mut Operation,
    unit: u32,
    first: u32,
) -> Option<WaitFor> {
    if state.defects.no_read_before_write() {
        let at = u64::from(unit + first) << BLOCK_SHIFT;
        ctx.actions.list.push(Action::Zero { at, len: BLOCK });
        state.pool.force_valid(unit + first);
        return None;
    }
    if state.is_late_for_device(ctx, op) {
        return Some(state.complete(ctx, op, Err(IoError::TimedOut)));
    }
    let account = fills(state.volumes.device_index(op.bio.id.volume));
    if !state.io.may_send(account) {
        return Some(WaitFor::Bios(account as u32));
    }
    state.stats.read_before_write += 1;
    let reason =
        fill::FillReason { bio: op.bio, ahead: false, behind: false, since: op.limit.since };
    fill::send(state, &reason, unit, first, 1);
    Some(WaitFor::Folio(unit))
}

/// Writes a block under write-out into its shadow frame.
fn write_shadow(
    state: &mut CacheState,
    ctx: &mut CallContext,
    op: &mut Operation,
    (unit, first, bits): (u32, u32, u8),
    part: BlockPart,
    slot: u32,
) -> Option<WaitFor> {
    let clean = bits & block::DIRTY == 0;
    if clean && let Some(waits_for) = hold_credit(state, ctx, op, unit) {
        return Some(waits_for);
    }
    let shadow = if bits & block::SHADOW != 0 {
        state.pool.shadow_of(unit + first)
    } else {
        let Some(shadow) = state.pool.add_shadow(unit + first) else {
            if state.pool.folio(unit).is_late() {
                return Some(state.complete(ctx, op, Err(IoError::TimedOut)));
            }
            state.waiters.count_shadow_wait();
            return Some(WaitFor::Folio(unit));
        };
        if !part.whole {
            ctx.actions.list.push(Action::Move {
                from: u64::from(unit + first) << BLOCK_SHIFT,
                to: u64::from(shadow) << BLOCK_SHIFT,
                len: BLOCK,
            });
        }
        shadow
    };
    state.needs_run = true;
    state.stats.shadowed += 1;
    let at = op.at() >> BLOCK_SHIFT;
    put_bytes(ctx, op, shadow, 1);
    if bits & block::SHADOW == 0 {
        zero_past_end(state, ctx, (op.bio.id.volume, at + 1), shadow);
        state.pool.set_shadow_dirty(shadow, (op.bio.id.volume, at), ctx.actions);
    }
    dirty_blocks(state, ctx, op, (unit, first, 1), (clean, part.whole), slot)
}
