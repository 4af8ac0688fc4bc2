//! Write-out on a writer's behalf: what FUA, writethrough and direct I/O wait for.
//!
//! The operation passes over its range once. It sends dirty blocks in its own name, and waits for blocks whose older version is
//! under write-out, to examine them again. It is done when all of its write-outs have completed. A block that was written by
//! another write-out meanwhile is on the device but perhaps not durable; for FUA a flush of the device then follows.

use crate::bio::{Bio, BioFlags, Op};
use crate::cache::context::CallContext;
use crate::cache::device_io::writeouts;
use crate::cache::pool::RangeWalk;
use crate::cache::pool::folio::{BLOCK, BLOCK_SHIFT, FolioKey, ORDER_MAX, block};
use crate::cache::state::CacheState;
use crate::cache::waiters::operation::{Operation, WaitFor};
use crate::cache::waiters::touched_blocks;
use crate::cache::writeout::{WriteoutReason, WriteoutRequest};
use crate::error::IoError;
use crate::options::WriteMode;

/// Blocks (or clean regions of 2 MiB) that are examined in one turn: 0.5 ms.
const EXAMINE_MAX: u32 = 16_384;

/// Writes the range out, then flushes the device if that is needed, then completes.
pub(super) fn step(
    state: &mut CacheState,
    ctx: &mut CallContext,
    op: &mut Operation,
    slot: u32,
) -> WaitFor {
    let flags = if op.is_fua() { BioFlags::FUA } else { BioFlags::NONE };
    if let Some(waits_for) = write_range(state, ctx, op, slot, flags.with(BioFlags::SYNC)) {
        return waits_for;
    }
    if op.status.is_err() {
        if state.volumes[op.bio.id.volume].mode() == WriteMode::Writethrough {
            discard_failed(state, ctx, &op.bio);
        }
        return state.complete(ctx, op, op.status);
    }
    if op.is_fua() && op.wants_flush {
        if state.is_late_for_device(ctx, op) {
            return state.complete(ctx, op, Err(IoError::TimedOut));
        }
        let flush = Bio { op: Op::Flush, offset: 0, len: 0, ..op.bio };
        state.pass_to_device(op, slot, flush);
        return WaitFor::Device;
    }
    state.complete(ctx, op, Ok(()))
}

/// Sends the dirty blocks of the operation's range, as whole blocks; `None` when all of them are written or failed.
pub(super) fn write_range(
    state: &mut CacheState,
    ctx: &mut CallContext,
    op: &mut Operation,
    slot: u32,
    flags: BioFlags,
) -> Option<WaitFor> {
    let volume = op.bio.id.volume;
    let first = op.bio.offset >> BLOCK_SHIFT;
    let end = op.bio.end().div_ceil(u64::from(BLOCK));
    let device = state.volumes.device_index(volume);
    debug_assert!(slot != crate::slab::NIL, "the operation waits for what it sends");
    let mut examined = 0;
    while first + u64::from(op.progress) < end {
        if examined >= EXAMINE_MAX {
            return Some(WaitFor::NextTurn);
        }
        examined += 1;
        let at = first + u64::from(op.progress);
        // Nearly all of a terabyte that is zeroed is not cached.
        let around = FolioKey::new(volume, at, ORDER_MAX);
        if !state.dirty.may_be_dirty_around(around) {
            let next = (around.block() + (1 << ORDER_MAX)).min(end);
            op.wants_flush = true;
            op.progress += (next - at) as u32;
            continue;
        }
        let Some((unit, from)) = state.pool.locate(volume, at) else {
            op.wants_flush = true;
            op.progress += 1;
            continue;
        };
        let folio = state.pool.folio(unit);
        let left = (end - at).min(u64::from(folio.blocks() - from)) as u32;
        let states = state.pool.states(unit + from, left);
        if states[0] & block::WRITEBACK != 0 {
            if folio.is_late() {
                op.status = Err(IoError::TimedOut);
                return (op.pending > 0).then_some(WaitFor::Writeouts);
            }
            return Some(WaitFor::Folio(unit));
        }
        if states[0] & block::DIRTY == 0 {
            op.wants_flush = true;
            op.progress += 1;
            continue;
        }
        let ready = |s: &u8| s & (block::DIRTY | block::WRITEBACK) == block::DIRTY;
        let run = states.iter().position(|s| !ready(s)).unwrap_or(left as usize) as u32;
        if state.is_late_for_device(ctx, op) {
            op.status = Err(IoError::TimedOut);
            return (op.pending > 0).then_some(WaitFor::Writeouts);
        }
        if !state.io.may_send(writeouts(device)) {
            return Some(WaitFor::Bios(writeouts(device) as u32));
        }
        state.unhold(unit, from, run);
        let (connection, reason) = (op.bio.id.connection, WriteoutReason::Writer);
        let request = WriteoutRequest {
            cookie: slot,
            connection,
            flags,
            reason,
            max_blocks: run,
            since: op.limit.since,
        };
        let (bios, _) = state.send_dirty(ctx, unit, from, run, request);
        op.pending += bios;
        op.progress += run;
    }
    (op.pending > 0).then_some(WaitFor::Writeouts)
}

/// Discards the held blocks of a bio whose client is told that they were not written (writethrough).
fn discard_failed(state: &mut CacheState, ctx: &mut CallContext, bio: &Bio) {
    let mut writing = std::mem::take(&mut state.scratch);
    state.waiters.writing_ops(bio.id.volume, &mut writing);
    let walk = RangeWalk::new(&state.pool, bio.id.volume, touched_blocks(bio));
    let mut position = 0;
    while let Some(unit) = walk.next_unbounded(&state.pool, &mut position) {
        let (first, count) = walk.overlap(&state.pool, unit);
        state.discard_held_blocks(unit, (first, count), &writing, ctx.actions);
    }
    state.scratch = writing;
}
