//! Resizing a volume; the blocks past a lowered end are dropped turn by turn (`volumes/truncation.rs`).

use crate::bio::VolumeId;
use crate::cache::context::CallContext;
use crate::cache::pool::folio::{BLOCK, BLOCK_SHIFT, block};
use crate::cache::pool::{Pool, RangeWalk, TURN_BUDGET, WalkStep};
use crate::cache::state::CacheState;
use crate::cache::volumes::Truncation;

/// Sets the size of a volume, in bytes.
///
/// When it grows, the device knows the rest of a block that was the last, partial one: it is read again once nothing of it is
/// outstanding. A dirty one is extended by zeros, as a file that grows; while the device reads its frame, the dirty bytes are in
/// a shadow, and that is extended.
pub(in crate::cache) fn resize(
    state: &mut CacheState,
    ctx: &mut CallContext,
    volume: VolumeId,
    size: u64,
) {
    let old = state.volumes[volume].size();
    if size > old {
        while !continue_truncation(state, ctx, volume) {}
    }
    state.volumes.set_size(volume, size);
    if size < old {
        let (start, end) = (size.div_ceil(u64::from(BLOCK)), old.div_ceil(u64::from(BLOCK)));
        let truncation = Truncation::new(start, end, state.volumes.truncation(volume));
        state.volumes.set_truncation(volume, Some(truncation));
        state.needs_run = true;
        return;
    }
    let within = (old % u64::from(BLOCK)) as u32;
    if size == old || within == 0 {
        return;
    }
    let Some((unit, first)) = state.pool.locate(volume, old >> BLOCK_SHIFT) else {
        return;
    };
    if state.pool.state(unit + first) & block::DIRTY == 0 {
        return state.pool.invalidate(unit, first, 1);
    }
    let frame = state.pool.newest_frame(unit + first);
    Pool::zero_from(frame, within, &mut ctx.actions.list);
}

/// Continues every truncation, each as far as one turn may.
pub(in crate::cache) fn continue_truncations(state: &mut CacheState, ctx: &mut CallContext) {
    if !state.volumes.is_truncating() {
        return;
    }
    for volume in state.volumes.ids() {
        continue_truncation(state, ctx, volume);
    }
    if state.volumes.is_truncating() {
        state.set_next_turn(ctx);
    }
}

/// Ends every truncation at once.
pub(in crate::cache) fn end_truncations(state: &mut CacheState, ctx: &mut CallContext) {
    for volume in state.volumes.ids() {
        while !continue_truncation(state, ctx, volume) {}
    }
    debug_assert!(!state.volumes.is_truncating(), "every truncation has ended");
}

/// Drops some of the blocks past a volume's end; true when none is left.
fn continue_truncation(state: &mut CacheState, ctx: &mut CallContext, volume: VolumeId) -> bool {
    let Some(mut truncation) = state.volumes.truncation(volume) else {
        return true;
    };
    let walk = RangeWalk::new(&state.pool, volume, truncation.range());
    let mut budget = TURN_BUDGET;
    let ended = loop {
        match walk.next(&state.pool, &mut truncation.position, &mut budget) {
            WalkStep::End => break true,
            WalkStep::OverBudget => break false,
            WalkStep::Folio(unit) => {
                truncation.position = walk.position_after(&state.pool, unit);
                state.drop_blocks(&walk, unit, &mut budget, ctx.actions);
            }
        }
    };
    state.volumes.set_truncation(volume, (!ended).then_some(truncation));
    ended
}
