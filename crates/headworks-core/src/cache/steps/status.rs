//! Block status: blocks that are dirty here are data; the device knows about the others.
//!
//! ```text
//!   blocks    . . . . . . . D D W . . . . X X . .       D dirty, W under write-out, X locked by a discard, zeroing or direct I/O
//!   asked     [-------- device -]                       ends before the first dirty block
//!                           [data]                      the same, asked from there: answered at once
//!                                 [device]              ends before the lock; asked from there it waits for its end
//! ```
//!
//! The answer covers the first run only; a client asks again from its end. So one search is bounded, and an answer never mixes two
//! sources. A clean volume skips the search.
//!
//! **A reported hole is one.** Every write that was acknowledged before the question is on the device, or dirty (possibly
//! held), or under write-out. A block that is neither was written, and that completed before the question goes to the device; so the
//! device reports it as any write that it has acknowledged. Blocks that are dirtied after the search were not acknowledged before
//! the question. Under a lock, dirty blocks may be cancelled before the device has seen the discard: nothing is reported there.

use crate::action::Action;
use crate::bio::{Bio, VolumeId};
use crate::cache::context::CallContext;
use crate::cache::pool::folio::{BLOCK, BLOCK_SHIFT, FolioKey, ORDER_MAX, block};
use crate::cache::state::CacheState;
use crate::cache::waiters::operation::{Operation, WaitFor};
use crate::error::IoError;
use crate::slab::NIL;

/// Searches for one answer, of folios, missing blocks, and empty 2 MiB: 0.2 ms; 8 GiB where nothing is cached.
const SEARCH_MAX: u32 = 4096;

/// The first run of blocks of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StatusRun {
    /// Dirty or under write-out, up to this block.
    Dirty(u64),
    /// Clean, up to this block.
    Clean(u64),
}

/// Reports the first run if it is dirty; otherwise asks the device about it.
pub(super) fn step(
    state: &mut CacheState,
    ctx: &mut CallContext,
    op: &mut Operation,
    slot: u32,
) -> WaitFor {
    let Bio { id, offset, .. } = op.bio;
    let (first, end) = (offset >> BLOCK_SHIFT, op.bio.end().div_ceil(u64::from(BLOCK)));
    let free = state.waiters.first_locked(id.volume, first, end);
    if free == first {
        let at = Bio { len: 1, ..op.bio };
        let holder = state.waiters.range_conflict(&at).expect("its first block is locked");
        return match state.waiters.op(holder).answered {
            true => state.complete(ctx, op, Err(IoError::TimedOut)),
            false => WaitFor::Range(holder),
        };
    }
    // Bytes of the bio up to a block.
    let up_to = |block: u64| (op.bio.end().min(block << BLOCK_SHIFT) - offset) as u32;
    match first_run(state, id.volume, first, free) {
        StatusRun::Dirty(until) => {
            ctx.actions.list.push(Action::Data { bio: id, len: up_to(until) });
            state.complete(ctx, op, Ok(()))
        }
        StatusRun::Clean(_) if slot == NIL => WaitFor::Slot,
        StatusRun::Clean(_) if state.is_late_for_device(ctx, op) => {
            state.complete(ctx, op, Err(IoError::TimedOut))
        }
        StatusRun::Clean(until) => {
            let bio = Bio { len: up_to(until), ..op.bio };
            state.pass_to_device(op, slot, bio);
            WaitFor::Device
        }
    }
}

/// Returns the first run of `first..end`, which is not empty.
fn first_run(state: &CacheState, volume: VolumeId, first: u64, end: u64) -> StatusRun {
    assert!(first < end, "a status is asked for blocks");
    if state.volumes[volume].unclean() == 0 {
        return StatusRun::Clean(end);
    }
    let run = |dirty, until| match dirty {
        true => StatusRun::Dirty(until),
        false => StatusRun::Clean(until),
    };
    let (mut at, mut kind) = (first, None);
    for _ in 0..SEARCH_MAX {
        if at >= end {
            break;
        }
        let (dirty, until) = alike(state, volume, at);
        debug_assert!(until > at, "a search advances");
        if *kind.get_or_insert(dirty) != dirty {
            return run(!dirty, at);
        }
        at = until;
    }
    run(kind == Some(true), at.min(end))
}

/// Returns whether `block` is dirty or under write-out, and the end of the blocks of its folio (or missing ones) that are like it.
fn alike(state: &CacheState, volume: VolumeId, block: u64) -> (bool, u64) {
    let key = FolioKey::new(volume, block, ORDER_MAX);
    if !state.dirty.may_be_dirty_around(key) || state.pool.is_empty_around(key) {
        return (false, key.block() + (1 << ORDER_MAX));
    }
    let Some((unit, first)) = state.pool.locate(volume, block) else {
        return (false, block + 1);
    };
    let folio = state.pool.folio(unit);
    let left = folio.blocks() - first;
    if folio.dirty == 0 && folio.writeback == 0 {
        return (false, block + u64::from(left));
    }
    let dirty = |state: &u8| state & (block::DIRTY | block::WRITEBACK) != 0;
    let states = state.pool.states(unit + first, left);
    let alike = states.iter().take_while(|state| dirty(state) == dirty(&states[0]));
    (dirty(&states[0]), block + alike.count() as u64)
}
