//! Blocks that are cached, as reads use them: which are valid and where their bytes are, what is counted, and what eviction and
//! read-ahead learn of it.

use super::fill;
use crate::bio::Bio;
use crate::cache::pool::folio::{BLOCK, BLOCK_SHIFT, Folio, block};
use crate::cache::readahead::ReadEvent;
use crate::cache::state::CacheState;
use crate::time::Instant;

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
    count_hits(state, run, waited);
    state.pool.use_blocks(unit + first, run.blocks)
}

/// Counts the blocks of a run as hits, but for the first `waited` ones, which were counted.
#[inline]
pub(super) fn count_hits(state: &mut CacheState, run: &ValidRun, waited: u32) {
    state.stats.hits += u64::from(run.blocks.saturating_sub(waited));
}

/// Returns how many blocks from byte `done` of a read on it has waited for, which fills were requested for up to byte `progress`.
#[inline]
pub(super) fn waited_blocks(bio: &Bio, done: u32, progress: u32) -> u32 {
    if progress <= done {
        return 0;
    }
    let waited_until = (bio.offset + u64::from(progress)).div_ceil(u64::from(BLOCK));
    (waited_until - ((bio.offset + u64::from(done)) >> BLOCK_SHIFT)) as u32
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
