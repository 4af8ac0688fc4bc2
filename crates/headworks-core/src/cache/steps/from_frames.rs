//! Reads without a buffer: answered from the frames of the pool when every block is valid.
//!
//! A read whose blocks are cached is answered at once; any other waits for its fills as a read with a buffer does
//! ([`super::read`]), and is answered when the last one has come. It pins nothing meanwhile: blocks that were evicted again, or too
//! many ranges, and it is returned and comes again with a buffer, which takes each block as it comes. So that this is rare, all
//! such reads that wait want a bounded part of the pool; beyond that one is returned before anything is done for it.
//!
//! The ranges are collected first and the folios touched after that, because a touch may start read-ahead, and that may evict a
//! folio of the bio. (Its frames keep their bytes until an action that follows changes them.)

use super::cached::{touch, use_run, valid_run, waited_blocks};
use crate::action::{Action, FrameRange};
use crate::bio::{Bio, Op};
use crate::cache::context::CallContext;
use crate::cache::pool::folio::BLOCK_SHIFT;
use crate::cache::state::CacheState;
use crate::cache::waiters::operation::{Operation, WaitFor};
use crate::wait_times::WaitTimes;

/// Ends a read that has waited for its blocks: all of them are there, or it is returned.
pub(super) fn end(state: &mut CacheState, ctx: &mut CallContext, op: &mut Operation) -> WaitFor {
    debug_assert!(op.done == op.bio.len, "it has come to its end");
    let wait_times = state.end(ctx.now, op);
    if !reply_from_frames(state, ctx, (&op.bio, op.bio.len), wait_times) {
        ctx.return_bio(&op.bio, wait_times);
    }
    WaitFor::Nothing
}

/// Answers a read, of which the first `counted` bytes are in the counters, with ranges of the pool; false if a block is missing or
/// being changed, or if there are too many ranges.
pub(in crate::cache) fn reply_from_frames(
    state: &mut CacheState,
    ctx: &mut CallContext,
    (bio, counted): (&Bio, u32),
    wait_times: WaitTimes,
) -> bool {
    debug_assert!(bio.has_no_buffer(), "a bio with a buffer is copied");
    let Some(first) = find(state, ctx, bio) else { return false };
    let ranges = (ctx.actions.ranges.len() - first) as u16;
    let first = first as u32;
    ctx.actions.list.push(Action::ReplyFrames { id: bio.id, first, ranges, wait_times });
    touch_all(state, ctx, (bio, counted));
    true
}

/// Hands the ranges of the pool that hold a read's data to `ranges`; false if there is no such answer.
pub(in crate::cache) fn lend_frames(
    state: &mut CacheState,
    ctx: &mut CallContext,
    bio: &Bio,
    ranges: &mut Vec<FrameRange>,
) -> bool {
    let Some(first) = find(state, ctx, bio) else { return false };
    debug_assert!(first < ctx.actions.ranges.len(), "data are somewhere");
    ranges.extend(ctx.actions.ranges.drain(first..));
    touch_all(state, ctx, (bio, 0));
    true
}

/// Appends the ranges of the pool that hold a bio's data to those of the batch; returns the index of the first one.
fn find(state: &CacheState, ctx: &mut CallContext, bio: &Bio) -> Option<usize> {
    debug_assert!(bio.op == Op::Read && bio.len > 0, "a read that its volume accepts");
    if state.waiters.range_conflict(bio).is_some() {
        return None;
    }
    let first = ctx.actions.ranges.len();
    if !collect(state, ctx, bio, first) {
        ctx.actions.ranges.truncate(first);
        return None;
    }
    Some(first)
}

/// Appends the ranges of the pool that hold a bio's data; false if some are not there.
fn collect(state: &CacheState, ctx: &mut CallContext, bio: &Bio, first_range: usize) -> bool {
    let mut done = 0;
    while done < bio.len {
        let offset = bio.offset + u64::from(done);
        let Some((unit, first)) = state.pool.locate(bio.id.volume, offset >> BLOCK_SHIFT) else {
            return false;
        };
        let Some(run) = valid_run(state, (offset, bio.len - done), unit, first) else {
            return false;
        };
        if !ctx.actions.push_range(first_range, run.at, run.len) {
            return false;
        }
        done += run.len;
    }
    true
}

/// Counts the blocks of a bio as used, and tells eviction and read-ahead.
fn touch_all(state: &mut CacheState, ctx: &CallContext, (bio, counted): (&Bio, u32)) {
    let mut done = 0;
    while done < bio.len {
        let offset = bio.offset + u64::from(done);
        let at = offset >> BLOCK_SHIFT;
        // Read-ahead for a run before this one may have evicted it.
        let Some((unit, first)) = state.pool.locate(bio.id.volume, at) else { return };
        let Some(run) = valid_run(state, (offset, bio.len - done), unit, first) else { return };
        let again = use_run(state, unit, first, &run, waited_blocks(bio, done, counted));
        touch(state, ctx.now, bio, unit, at, again);
        done += run.len;
    }
}
