//! Fills: which blocks are read from the device, how far ahead, and into folios of which size.
//!
//! A missing block is requested once, however many operations need it: it is `FILLING` until the device completes, and the
//! operations wait for its folio. A bio requests everything that it needs before it waits, so its misses overlap.

use crate::bio::{Bio, BioFlags, Op, VolumeId};
use crate::cache::context::CallContext;
use crate::cache::device_io::fills;
use crate::cache::pool::folio::{BLOCK, BLOCK_SHIFT, Folio, block};
use crate::cache::readahead::{ReadAheadLimits, ReadAheadWindow, ReadEvent};
use crate::cache::state::CacheState;
use crate::cache::waiters::operation::{Operation, WaitFor};
use crate::input::ReplyStage;
use crate::time::Instant;

/// Blocks of a bio that are requested at once: 4 MiB, as much as the largest window of read-ahead.
const REQUEST_MAX: u64 = 1024;

/// The cause of a fill.
#[derive(Clone, Copy, Debug)]
pub(super) struct FillReason {
    /// The bio that caused it.
    pub bio: Bio,
    /// The blocks are read ahead: no operation waits for them yet.
    pub ahead: bool,
    /// They belong to a stream, which leaves the cache behind it.
    pub behind: bool,
    /// The time from which the wait for the device is limited.
    pub since: Instant,
}

/// Requests what is missing from the operation's cursor on, and what its stream will need next. If nothing could be requested,
/// returns what to wait for.
pub(super) fn request(state: &mut CacheState, op: &mut Operation) -> Result<(), WaitFor> {
    let volume = op.bio.id.volume;
    let first = op.at() >> BLOCK_SHIFT;
    let all = op.bio.end().div_ceil(u64::from(BLOCK));
    assert!(first < all, "the cursor is in the bio");
    let end = all.min(first + REQUEST_MAX);
    let window = window(state, &op.bio, first, (all - first) as u32, false);
    let order = window.as_ref().map_or(0, |window| window.order);
    let behind = window.is_some() && state.volumes[volume].drops_behind();
    let reason = FillReason { bio: op.bio, ahead: false, behind, since: op.limit.since };
    let filled = state.stats.fills.blocks;
    let reached = fill_range(state, Some(op), reason, (volume, first, end), order);
    let missed = state.stats.fills.blocks - filled;
    state.stats.misses += missed;
    // The others up to there were cached, and the read will not count them.
    state.stats.hits += (reached - first).saturating_sub(missed);
    if reached == first {
        let account = fills(state.volumes.device_index(volume));
        if state.io.may_send(account) {
            return Err(WaitFor::Frame);
        }
        state.drop_frame(op);
        return Err(WaitFor::Bios(account as u32));
    }
    op.progress = ((reached << BLOCK_SHIFT) - op.bio.offset).min(u64::from(op.bio.len)) as u32;
    if reached == end
        && let Some(window) = window
    {
        read_ahead(state, op.limit.since, &op.bio, &window, end);
    }
    Ok(())
}

/// Returns the window of read-ahead that a read starts, if any.
pub(super) fn window(
    state: &mut CacheState,
    bio: &Bio,
    first: u64,
    blocks: u32,
    marker: bool,
) -> Option<ReadAheadWindow> {
    if state.is_frozen() {
        return None;
    }
    let volume = bio.id.volume;
    let caching = state.volumes.caching(volume);
    // A window is a small part of the pool, or streams would evict each other.
    let window_max = (caching.read_ahead_kb / 4).min(state.pool.limit() / 16);
    let of = &state.volumes[volume];
    let read_end = first + u64::from(blocks);
    // What the base has is cached there, for all volumes on it.
    let own_end = of.layer().map(|layer| layer.own_end(read_end, window_max.into()));
    let limits = ReadAheadLimits {
        end: own_end.map_or(of.blocks(), |end| end.min(of.blocks())),
        window_max,
        order_max: caching.max_folio_order.min(state.pool.order_cap()),
        pool: state.pool.limit(),
    };
    let read = ReadEvent { volume, block: first, blocks, marker };
    state.ahead.on_read(bio.id.connection, read, limits)
}

/// Fills a window of read-ahead from block `from` on.
pub(super) fn read_ahead(
    state: &mut CacheState,
    since: Instant,
    bio: &Bio,
    window: &ReadAheadWindow,
    from: u64,
) {
    let volume = bio.id.volume;
    let start = window.start.max(from);
    // Blocks that are about to change under a lock are not read meanwhile.
    let end = window.start + u64::from(window.blocks);
    let end = state.waiters.first_locked(volume, start, end);
    if start >= end {
        return;
    }
    let behind = state.volumes[volume].drops_behind();
    let reason = FillReason { bio: *bio, ahead: true, behind, since };
    let reached = fill_range(state, None, reason, (volume, start, end), window.order);
    state.stats.read_ahead += reached - start;
    if let Some(unit) = state.pool.find(volume, window.marker.max(start))
        && state.pool.folio(unit).filling > 0
    {
        state.pool.set_mark(unit, Folio::MARKER);
    }
}

/// Requests every missing block of a range; returns the block at which memory or bios ran out, or the end.
fn fill_range(
    state: &mut CacheState,
    mut op: Option<&mut Operation>,
    reason: FillReason,
    (volume, first, end): (VolumeId, u64, u64),
    order: u8,
) -> u64 {
    let order_max = state.volumes.caching(volume).max_folio_order;
    // The order of a window limits its folios; without a window they are as large as the request.
    let order_max = if order > 0 { order.min(order_max) } else { order_max };
    let account = fills(state.volumes.device_index(volume));
    let mut at = first;
    while at < end {
        if !state.io.may_send(account) {
            return at;
        }
        let unit = match state.pool.find(volume, at) {
            Some(unit) => unit,
            None => {
                let order = state.pool.largest_fit(volume, at, order_max, end);
                let Some(unit) =
                    state.make_folio(op.as_deref_mut(), reason.bio.id.export, (volume, at), order)
                else {
                    return at;
                };
                let unused = if reason.ahead { Folio::UNUSED } else { 0 };
                let behind = if reason.behind { Folio::DROP_BEHIND } else { 0 };
                state.pool.set_mark(unit, unused | behind);
                unit
            }
        };
        let folio = state.pool.folio(unit);
        let (base, blocks) = (folio.key.block(), u64::from(folio.blocks()));
        debug_assert!((base..base + blocks).contains(&at), "the folio holds the block");
        let from = (at - base) as u32;
        let until = (end.min(base + blocks) - base) as u32;
        if !fill_folio(state, &reason, unit, from, until) {
            return at;
        }
        at = base + u64::from(until);
    }
    end
}

/// Requests the missing blocks `from..until` of a folio; false if bios ran out.
fn fill_folio(
    state: &mut CacheState,
    reason: &FillReason,
    unit: u32,
    from: u32,
    until: u32,
) -> bool {
    debug_assert!(from < until && until <= state.pool.folio(unit).blocks(), "blocks of the folio");
    let account = fills(state.volumes.device_index(state.pool.folio(unit).key.volume()));
    // A block under write-out is valid, or its frame is the device's until that has ended.
    let present = block::UPTODATE | state.busy_bits();
    let present = |state: &u8| state & present != 0;
    let mut at = from;
    while at < until {
        let states = state.pool.states(unit + at, until - at);
        let Some(skip) = states.iter().position(|state| !present(state)) else {
            return true;
        };
        let missing = &states[skip..];
        let run = missing.iter().position(present).unwrap_or(missing.len()) as u32;
        at += skip as u32;
        if !state.io.may_send(account) {
            return false;
        }
        send(state, reason, unit, at, run);
        at += run;
    }
    true
}

/// Requests `count` blocks of a folio from its block `first` on; none of them is valid or outstanding.
pub(super) fn send(state: &mut CacheState, reason: &FillReason, unit: u32, first: u32, count: u32) {
    assert!(count > 0, "a fill has blocks");
    state.pool.begin_fill(unit, first, count);
    let folio = state.pool.folio(unit);
    let at = folio.key.block() + u64::from(first);
    state.stats.fills.partial += u64::from(count < folio.blocks());
    state.stats.fills.bios += 1;
    state.stats.fills.blocks += u64::from(count);
    let flags = BioFlags::HOLE_OK;
    let flags = if reason.ahead { flags } else { flags.with(BioFlags::SYNC) };
    let id = reason.bio.id;
    let (offset, len) = state.volumes[id.volume].bytes_of(at, count);
    let bio = Bio { id, offset, len, op: Op::Read, flags, ioprio: reason.bio.ioprio };
    let device = state.volumes.device_index(id.volume);
    state.io.send_fill(device, (unit + first, count), bio, reason.since);
}

/// Reads a range into the cache that a client will need soon.
pub(in crate::cache) fn prefetch(state: &mut CacheState, ctx: &mut CallContext, bio: Bio) {
    let volume = bio.id.volume;
    let first = bio.offset >> BLOCK_SHIFT;
    let most = u64::from(state.pool.limit() / 4);
    let end = bio.end().div_ceil(u64::from(BLOCK)).min(first + most);
    if state.waiters.range_conflict(&bio).is_none() && !state.is_frozen() {
        let reason = FillReason { bio, ahead: true, behind: false, since: ctx.now };
        let reached = fill_range(state, None, reason, (volume, first, end), 0);
        state.stats.read_ahead += reached - first;
    }
    ctx.reply(&bio, Ok(()), ReplyStage::Final);
}
