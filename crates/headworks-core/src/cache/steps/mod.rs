//! The steps of operations, one file for each kind: functions over the state of the cache.
//!
//! A step continues an operation from its cursor and returns what it waits for next; [`WaitFor::Nothing`] when it has completed.
//! `slot` is `NIL` while the operation has none: most operations complete in their first step and never need one.

mod cached;
mod fill;
pub(super) mod flush;
mod from_frames;
pub(super) mod range;
mod read;
pub(super) mod resize;
mod status;
pub(super) mod write;
mod write_out;

pub(super) use fill::prefetch;
pub(super) use from_frames::{lend_frames, reply_from_frames};

use super::context::CallContext;
use super::state::CacheState;
use super::waiters::operation::{OpStep, Operation, WaitFor};
use crate::error::IoError;
use crate::slab::NIL;

/// Bytes that an operation copies in one turn: 1 MiB takes 0.1 ms, which other operations may wait.
const COPY_MAX: u32 = 1 << 20;

/// Continues an operation until it completes or must wait.
pub(super) fn step(
    state: &mut CacheState,
    ctx: &mut CallContext,
    op: &mut Operation,
    slot: u32,
) -> WaitFor {
    debug_assert!(op.waits_for == WaitFor::Nothing, "an operation that waits is not stepped");
    if op.limit.overdue && op.step != OpStep::Device {
        return state.time_out(ctx, op, slot);
    }
    if !op.locked
        && matches!(op.step, OpStep::Read | OpStep::Write | OpStep::Range)
        && let Some(holder) = state.waiters.range_conflict(&op.bio)
    {
        if state.waiters.op(holder).answered {
            return state.complete(ctx, op, Err(IoError::TimedOut));
        }
        return WaitFor::Range(holder);
    }
    if slot != NIL && is_past_end(state, op) {
        return state.complete(ctx, op, Err(crate::volume::beyond(op.bio.op)));
    }
    let waits_for = match op.step {
        OpStep::Read => read::step(state, ctx, op),
        OpStep::Write => write::step(state, ctx, op, slot),
        OpStep::WriteOut => write_out::step(state, ctx, op, slot),
        OpStep::Range => range::step(state, ctx, op, slot),
        OpStep::Flush => flush::step(state, ctx, op, slot),
        OpStep::Status => status::step(state, ctx, op, slot),
        OpStep::Device => WaitFor::Device,
    };
    match waits_for {
        WaitFor::Bios(_) | WaitFor::Flush => state.unless_silent(ctx, op, slot, waits_for),
        other => other,
    }
}

/// Returns true if the volume was made smaller while the operation waited, and ends before it.
fn is_past_end(state: &CacheState, op: &Operation) -> bool {
    let checked = matches!(op.step, OpStep::Read | OpStep::Write | OpStep::Range | OpStep::Status);
    checked && !op.locked && op.bio.end() > state.volumes[op.bio.id.volume].size()
}
