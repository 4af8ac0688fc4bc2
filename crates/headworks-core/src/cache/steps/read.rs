//! Reads: copy block by block what is cached, and wait for what is not. A read without a buffer copies nothing: it passes over what
//! is cached, and at its end all of it is there, or it is returned ([`super::from_frames`]).

use super::cached::{ValidRun, count_hits, touch, use_run, valid_run, waited_blocks};
use super::{COPY_MAX, fill, from_frames};
use crate::action::{Action, CopyDirection};
use crate::cache::context::CallContext;
use crate::cache::pool::folio::BLOCK_SHIFT;
use crate::cache::state::CacheState;
use crate::cache::waiters::operation::{Operation, WaitFor};
use crate::error::IoError;

/// Copies up to the first missing block; requests it and waits.
pub(super) fn step(state: &mut CacheState, ctx: &mut CallContext, op: &mut Operation) -> WaitFor {
    if op.status.is_err() {
        return state.complete(ctx, op, op.status);
    }
    debug_assert!(op.done <= op.bio.len, "the cursor is in the bio");
    let volume = op.bio.id.volume;
    let enough = op.done.saturating_add(COPY_MAX);
    while op.done < op.bio.len {
        if op.done >= enough {
            return WaitFor::NextTurn;
        }
        let at = op.at() >> BLOCK_SHIFT;
        let Some((unit, first)) = state.pool.locate(volume, at) else {
            if state.is_late_for_device(ctx, op) {
                return state.complete(ctx, op, Err(IoError::TimedOut));
            }
            match fill::request(state, op) {
                Ok(()) => continue,
                Err(waits_for) => return waits_for,
            }
        };
        if let Some(run) = valid_run(state, (op.at(), op.bio.len - op.done), unit, first) {
            let waited = waited_blocks(&op.bio, op.done, op.progress);
            if op.bio.has_no_buffer() {
                count_hits(state, &run, waited);
            } else {
                let again = use_run(state, unit, first, &run, waited);
                copy_run(ctx, op, &run);
                touch(state, ctx.now, &op.bio, unit, at, again);
            }
            op.done += run.len;
            continue;
        }
        // A block under write-out that is not valid was cut off by a truncation: the device still has its frame.
        if state.pool.state(unit + first) & state.busy_bits() != 0 {
            if state.pool.folio(unit).is_late() {
                return state.complete(ctx, op, Err(IoError::TimedOut));
            }
            if op.done >= op.progress {
                // Another operation requested it.
                state.stats.misses += 1;
                let end = ((at + 1) << BLOCK_SHIFT) - op.bio.offset;
                op.progress = end.min(u64::from(op.bio.len)) as u32;
            }
            return WaitFor::Folio(unit);
        }
        if state.is_late_for_device(ctx, op) {
            return state.complete(ctx, op, Err(IoError::TimedOut));
        }
        if let Err(waits_for) = fill::request(state, op) {
            return waits_for;
        }
    }
    match op.bio.has_no_buffer() {
        true => from_frames::end(state, ctx, op),
        false => state.complete(ctx, op, Ok(())),
    }
}

/// Copies valid blocks to the client.
fn copy_run(ctx: &mut CallContext, op: &Operation, run: &ValidRun) {
    ctx.actions.list.push(Action::Copy {
        bio: op.bio.id,
        offset: op.done,
        len: run.len,
        at: run.at,
        direction: CopyDirection::ToBuffer,
    });
}
