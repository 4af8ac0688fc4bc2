//! From the device into the pool: which blocks are asked for, with how much beyond, in folios of which size.
//!
//! A block that is missing is asked for once, however many wait for it: it is `FILLING` until the device answered, and whoever
//! wants it is parked on its folio. All that a bio needs is asked for before it waits, so its misses overlap.

use crate::bio::{Bio, BioFlags, BioId, Op, VolumeId};
use crate::cache::device_io::fills;
use crate::cache::pool::folio::{BLOCK, BLOCK_SHIFT, Folio, block};
use crate::cache::readahead::{ReadAheadLimits, ReadAheadWindow, ReadEvent};
use crate::cache::waiters::operation::{Operation, WaitFor};
use crate::cache::{Cache, Turn};
use crate::device_bio::DeviceBio;
use crate::slab::NIL;

/// Blocks of a bio that are asked for at once: 4 MiB, as the largest window of read-ahead.
const ASK_MAX: u64 = 1024;

/// For whom and what blocks are filled.
#[derive(Clone, Copy, Debug)]
pub(in crate::cache) struct FillReason {
    /// The bio that caused it.
    pub bio: Bio,
    /// Nobody waits for it yet.
    pub ahead: bool,
}

impl Cache {
    /// Asks for what is missing from the operation's cursor on, and for what its stream will want next.
    pub(in crate::cache) fn ask(
        &mut self,
        turn: &mut Turn,
        op: &mut Operation,
    ) -> Result<(), WaitFor> {
        let volume = op.bio.id.volume;
        let first = op.at() >> BLOCK_SHIFT;
        let all = op.bio.end().div_ceil(u64::from(BLOCK));
        let end = all.min(first + ASK_MAX);
        let window = self.window(&op.bio, first, (all - first) as u32, false);
        let order = window.as_ref().map_or(0, |window| window.order);
        let reason = FillReason { bio: op.bio, ahead: false };
        let filled = self.stats.filled;
        let reached = self.fill_range(turn, Some(op), reason, (volume, first, end), order);
        self.stats.misses += self.stats.filled - filled;
        if reached == first {
            let account = self.fills_of(volume);
            if self.may_send(account) {
                return Err(WaitFor::Frames);
            }
            self.drop_frame(op);
            return Err(WaitFor::Bios(account as u32));
        }
        op.asked = ((reached << BLOCK_SHIFT) - op.bio.offset).min(u64::from(op.bio.len)) as u32;
        if reached == end
            && let Some(window) = window
        {
            self.read_ahead(turn, &op.bio, &window, end);
        }
        Ok(())
    }

    /// The window of read-ahead that a read starts, if any.
    pub(in crate::cache) fn window(
        &mut self,
        bio: &Bio,
        first: u64,
        blocks: u32,
        marker: bool,
    ) -> Option<ReadAheadWindow> {
        let volume = bio.id.volume;
        let caching = self.caching(volume);
        // A window is a small part of the pool, or streams would push each other out.
        let window_max = (caching.read_ahead_kb / 4).min(self.folios.units() / 16);
        let limits = ReadAheadLimits {
            end: self.volumes[usize::from(volume.0)].blocks(),
            window_max,
            order_max: caching.max_folio_order.min(self.order_cap()),
        };
        let read = ReadEvent { volume, block: first, blocks, marker };
        self.ahead.on_read(bio.id.connection, read, limits)
    }

    /// Fills a window beyond what was asked for, from `from` on.
    pub(in crate::cache) fn read_ahead(
        &mut self,
        turn: &mut Turn,
        bio: &Bio,
        window: &ReadAheadWindow,
        from: u64,
    ) {
        let volume = bio.id.volume;
        let start = window.start.max(from);
        // What is about to change under a lock is not read meanwhile.
        let end = self.ranges.first_locked(volume, start, window.start + u64::from(window.blocks));
        if start >= end {
            return;
        }
        let reason = FillReason { bio: *bio, ahead: true };
        let reached = self.fill_range(turn, None, reason, (volume, start, end), window.order);
        self.stats.read_ahead += reached - start;
        let marked = self.index.find(&self.folios, volume, window.marker.max(start));
        if let Some(unit) = marked
            && self.folios[unit].filling > 0
        {
            self.folios[unit].marks |= Folio::MARKER;
        }
    }

    /// Asks for every missing block of a range; the block it came to when memory or bios ran out, or the end.
    pub(in crate::cache) fn fill_range(
        &mut self,
        turn: &mut Turn,
        mut op: Option<&mut Operation>,
        reason: FillReason,
        (volume, first, end): (VolumeId, u64, u64),
        order: u8,
    ) -> u64 {
        let order_max = self.caching(volume).max_folio_order;
        // A window says how large; what is merely asked for is as large as it is.
        let order_max = if order > 0 { order.min(order_max) } else { order_max };
        let account = self.fills_of(volume);
        let mut at = first;
        while at < end {
            if !self.may_send(account) {
                return at;
            }
            let unit = match self.index.find(&self.folios, volume, at) {
                Some(unit) => unit,
                None => {
                    let order = self.index.largest_fit(&self.folios, volume, at, order_max, end);
                    let Some(unit) = self.make_folio(turn, op.as_deref_mut(), (volume, at), order)
                    else {
                        return at;
                    };
                    if reason.ahead {
                        self.folios[unit].marks |= Folio::UNUSED;
                    }
                    unit
                }
            };
            let folio = &self.folios[unit];
            let (base, blocks) = (folio.key.block(), u64::from(folio.blocks()));
            let from = (at - base) as u32;
            let until = (end.min(base + blocks) - base) as u32;
            if !self.fill_folio(&reason, unit, from, until) {
                return at;
            }
            at = base + u64::from(until);
        }
        end
    }

    /// Asks for the missing blocks `from..until` of a folio; false if bios ran out.
    fn fill_folio(&mut self, reason: &FillReason, unit: u32, from: u32, until: u32) -> bool {
        let account = self.fills_of(self.folios[unit].key.volume());
        let mut at = from;
        while at < until {
            let states = self.folios.states(unit + at, until - at);
            // One under write-out is there, or its frame is the device's until that has ended.
            let there = block::UPTODATE | self.busy_bits();
            let there = |state: &u8| state & there != 0;
            let Some(skip) = states.iter().position(|state| !there(state)) else {
                return true;
            };
            let missing = &states[skip..];
            let run = missing.iter().position(there).unwrap_or(missing.len()) as u32;
            at += skip as u32;
            if !self.may_send(account) {
                return false;
            }
            self.send_fill(reason, unit, at, run);
            at += run;
        }
        true
    }

    /// A block with one of these that is not there is waited for. (The defect: also what is written out may be filled.)
    pub(in crate::cache) fn busy_bits(&self) -> u8 {
        match self.defects.discard_ignores_writeout() {
            true => block::FILLING,
            false => block::FILLING | block::WRITEBACK,
        }
    }

    /// Asks for `count` blocks of a folio from its block `first` on; none of them is there or on its way.
    pub(in crate::cache) fn send_fill(
        &mut self,
        reason: &FillReason,
        unit: u32,
        first: u32,
        count: u32,
    ) {
        for state in self.folios.states_mut(unit + first, count) {
            *state |= block::FILLING;
        }
        let folio = &mut self.folios[unit];
        folio.filling += count as u16;
        let at = folio.key.block() + u64::from(first);
        self.stats.fills_partial += u64::from(count < folio.blocks());
        self.stats.fills += 1;
        self.stats.filled += u64::from(count);
        let flags =
            if reason.ahead { BioFlags::HOLE_OK } else { BioFlags::HOLE_OK.with(BioFlags::SYNC) };
        let id = self.internal_id(&reason.bio.id, unit + first, 0);
        let (offset, len) = self.bytes_of(id.volume, at, count);
        let ioprio = reason.bio.ioprio;
        self.down.push(DeviceBio {
            bio: Bio { id, offset, len, op: Op::Read, flags, ioprio },
            cookie: NIL,
        });
        let account = self.fills_of(id.volume);
        self.bios.add(account, 1);
        self.filling.add(account / 2, count);
    }

    /// The account of a volume's fills.
    pub(in crate::cache) fn fills_of(&self, volume: VolumeId) -> usize {
        fills(usize::from(self.volumes[usize::from(volume.0)].device.0))
    }

    /// The name of a bio of the cache's own, caused by `cause`.
    pub(in crate::cache) fn internal_id(&mut self, cause: &BioId, unit: u32, mark: u8) -> BioId {
        self.count = self.count.wrapping_add(1);
        let count = self.count << 4 | u32::from(mark);
        BioId::internal(cause.connection, cause.volume, cause.export, count, unit)
    }

    /// Where blocks lie on their volume, in bytes: a last one may be there in part.
    pub(in crate::cache) fn bytes_of(&self, volume: VolumeId, at: u64, count: u32) -> (u64, u32) {
        let size = self.volumes[usize::from(volume.0)].size;
        let offset = at << BLOCK_SHIFT;
        let len = (u64::from(count) << BLOCK_SHIFT).min(size.saturating_sub(offset));
        (offset, len as u32)
    }

    /// A client wants a range in the cache soon.
    pub(in crate::cache) fn prefetch(&mut self, turn: &mut Turn, bio: Bio) {
        let volume = bio.id.volume;
        let first = bio.offset >> BLOCK_SHIFT;
        let most = u64::from(self.folios.units() / 4);
        let end = bio.end().div_ceil(u64::from(BLOCK)).min(first + most);
        if self.ranges.conflict(&bio).is_none() {
            let reason = FillReason { bio, ahead: true };
            let reached = self.fill_range(turn, None, reason, (volume, first, end), 0);
            self.stats.read_ahead += reached - first;
        }
        crate::cache::reply(turn, &bio, Ok(()), crate::input::ReplyStage::Final);
    }
}
