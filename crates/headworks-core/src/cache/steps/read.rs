//! Reads: copy block by block what is cached, and wait for what is not.

use super::{COPY_MAX, fill};
use crate::action::{Action, CopyDirection};
use crate::bio::Bio;
use crate::cache::context::CallContext;
use crate::cache::pool::folio::{BLOCK, BLOCK_SHIFT, Folio, block};
use crate::cache::readahead::ReadEvent;
use crate::cache::state::CacheState;
use crate::cache::waiters::operation::{Operation, WaitFor};
use crate::error::IoError;
use crate::time::Instant;

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
        if let Some(again) = copy_run(state, ctx, op, unit, first) {
            touch(state, ctx.now, &op.bio, unit, at, again);
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
    state.complete(ctx, op, Ok(()))
}

/// Valid blocks of a folio that a read wants, and the bytes of it that are in them.
pub(super) struct ValidRun {
    /// Offset of the first byte in the pool.
    pub at: u64,
    /// Number of bytes of the read.
    pub len: u32,
    /// Number of blocks with them.
    pub blocks: u32,
}

/// Finds the valid blocks of a folio from its block `first` on, as far as a read wants them that continues at `offset` with `left`
/// bytes; `None` if the first one is not valid.
#[inline]
pub(super) fn valid_run(
    state: &CacheState,
    (offset, left): (u64, u32),
    unit: u32,
    first: u32,
) -> Option<ValidRun> {
    let within = (offset % u64::from(BLOCK)) as u32;
    let wanted = (within + left).div_ceil(BLOCK);
    let blocks = state.pool.folio(unit).blocks();
    debug_assert!(first < blocks && wanted > 0, "the cursor is in the folio");
    let states = state.pool.states(unit + first, wanted.min(blocks - first));
    let plain = |state: &u8| state & (block::UPTODATE | block::SHADOW) == block::UPTODATE;
    let run = states.iter().position(|state| !plain(state)).unwrap_or(states.len()) as u32;
    let (from, blocks) = match run {
        0 if states[0] & block::SHADOW != 0 => (state.pool.shadow_of(unit + first), 1),
        0 => return None,
        run => (unit + first, run),
    };
    let at = u64::from(from) << BLOCK_SHIFT | u64::from(within);
    Some(ValidRun { at, len: left.min(blocks * BLOCK - within), blocks })
}

/// Counts a read of valid blocks from block `first` of a folio on, `waited` of which are counted as misses; returns whether the
/// first one was used before.
#[inline]
pub(super) fn use_run(
    state: &mut CacheState,
    unit: u32,
    first: u32,
    run: &ValidRun,
    waited: u32,
) -> bool {
    state.stats.hits += u64::from(run.blocks.saturating_sub(waited));
    state.pool.use_blocks(unit + first, run.blocks)
}

/// Copies the valid blocks of a folio from its block `first` on, as far as the bio wants them; returns whether the first one
/// was used before, or `None` if it is not valid.
fn copy_run(
    state: &mut CacheState,
    ctx: &mut CallContext,
    op: &mut Operation,
    unit: u32,
    first: u32,
) -> Option<bool> {
    let run = valid_run(state, (op.at(), op.bio.len - op.done), unit, first)?;
    let again = use_run(state, unit, first, &run, waited_blocks(op));
    ctx.actions.list.push(Action::Copy {
        bio: op.bio.id,
        offset: op.done,
        len: run.len,
        at: run.at,
        direction: CopyDirection::ToBuffer,
    });
    op.done += run.len;
    Some(again)
}

/// Returns how many blocks from the cursor on the read has waited for.
#[inline]
fn waited_blocks(op: &Operation) -> u32 {
    if op.progress <= op.done {
        return 0;
    }
    let waited_until = (op.bio.offset + u64::from(op.progress)).div_ceil(u64::from(BLOCK));
    (waited_until - (op.at() >> BLOCK_SHIFT)) as u32
}

/// Tells eviction and read-ahead that a read used a folio; a marker starts the next window.
pub(super) fn touch(
    state: &mut CacheState,
    now: Instant,
    bio: &Bio,
    unit: u32,
    at: u64,
    again: bool,
) {
    // Only a block that is read again makes its folio worth keeping: a scan uses each block of a large folio once.
    if again {
        state.pool.touch(unit);
    }
    let folio = state.pool.folio(unit);
    if folio.marks & (Folio::MARKER | Folio::UNUSED | Folio::DROP_BEHIND) == 0 {
        return;
    }
    let marker = folio.is(Folio::MARKER);
    let blocks = (bio.end().div_ceil(u64::from(BLOCK)) - at) as u32;
    if folio.is(Folio::UNUSED) {
        let read = ReadEvent { volume: bio.id.volume, block: at, blocks, marker };
        state.ahead.on_used(bio.id.connection, read, folio.blocks());
    }
    state.pool.clear_marks(unit, Folio::MARKER | Folio::UNUSED);
    // Before read-ahead, which takes the frames and may evict the folio.
    if state.pool.folio(unit).is(Folio::DROP_BEHIND) {
        leave_behind(state, bio, unit, at, again);
    }
    if marker {
        state.needs_run = true;
        if let Some(window) = fill::window(state, bio, at, blocks, true) {
            fill::read_ahead(state, now, bio, &window, window.start);
        }
    }
}

/// Lets a folio that a stream brought go once all of it was read; a block that is read again keeps it.
fn leave_behind(state: &mut CacheState, bio: &Bio, unit: u32, at: u64, again: bool) {
    // A stream whose reads end within blocks continues there: that is no repetition.
    let continues = at << BLOCK_SHIFT < bio.offset;
    if again && !continues && !state.defects.drops_dirty_behind() {
        return state.pool.clear_marks(unit, Folio::DROP_BEHIND);
    }
    let folio = state.pool.folio(unit);
    let first = (at - folio.key.block()) as u32;
    let left = u64::from(folio.blocks() - first);
    let wanted = bio.end().div_ceil(u64::from(BLOCK)) - at;
    let run = wanted.min(left) as u32;
    if again {
        state.pool.use_valid(unit + first, run);
    }
    // The common case without a search: the stream has not come to the end of the folio.
    let more = u64::from(run) < left && state.pool.is_unused(unit + first + run);
    let within = wanted <= left && !bio.end().is_multiple_of(u64::from(BLOCK));
    if !more && !within {
        state.drop_behind(unit);
    }
}
