//! Who gets memory: frames for new folios, by eviction of clean ones if none is free.
//!
//! Whoever needs a frame that is not there waits in line for *a* frame, never for a particular one, and leaves the line with
//! it. A newcomer takes none while somebody waits. What was not asked for by a client (read-ahead) never waits and takes none
//! from the line.

use crate::bio::VolumeId;
use crate::cache::pool::folio::{Folio, FolioKey};
use crate::cache::pool::reclaim::Victim;
use crate::cache::waiters::operation::Operation;
use crate::cache::{Cache, Turn};
use crate::slab::NIL;
use crate::wait_times::WaitTimes;

/// Folios that eviction looks at before it says that none is clean.
const VICTIM_STEPS: u32 = 64;

impl Cache {
    /// The largest folio that the pool should have: 64 of them fit at least, or a few accesses would fill it.
    pub(in crate::cache) fn order_cap(&self) -> u8 {
        (self.folios.units() / 64).max(1).ilog2() as u8
    }

    /// Makes a folio for `block`, of `order` or below, and enters it; `None` when there is no memory now.
    pub(in crate::cache) fn make_folio(
        &mut self,
        turn: &mut Turn,
        op: Option<&mut Operation>,
        (volume, block): (VolumeId, u64),
        order: u8,
    ) -> Option<u32> {
        let (unit, order) = match op {
            Some(op) if op.frame.0 != NIL => {
                let granted = std::mem::replace(&mut op.frame, (NIL, 0));
                (granted.0, granted.1)
            }
            _ if self.lines.frames.head().is_some() => return None,
            _ => self.take_frames(turn, order.min(self.order_cap()))?,
        };
        self.folios.begin(unit, FolioKey::new(volume, block, order), order);
        self.index.insert(&self.folios, unit);
        self.volume(volume).folios += 1;
        self.reclaim.insert(&mut self.folios, unit);
        Some(unit)
    }

    /// Frames of `order`, or of the largest order below that there are; evicts as much as `order` holds, once.
    fn take_frames(&mut self, turn: &mut Turn, order: u8) -> Option<(u32, u8)> {
        if let Some(unit) = self.frames.take(order) {
            return Some((unit, order));
        }
        let mut missing = 1_i64 << order;
        while missing > 0 {
            let Some(units) = self.evict_one(turn) else {
                break;
            };
            missing -= i64::from(units);
            if let Some(unit) = self.frames.take(order) {
                return Some((unit, order));
            }
        }
        (0..order).rev().find_map(|order| Some((self.frames.take(order)?, order)))
    }

    /// Evicts a clean folio; its units.
    fn evict_one(&mut self, turn: &mut Turn) -> Option<u32> {
        if self.defects.evicts_filling()
            && let Some(units) = self.evict_filling()
        {
            return Some(units);
        }
        match self.reclaim.victim(&mut self.folios, VICTIM_STEPS) {
            Victim::Clean(unit) => {
                let folio = self.folios[unit];
                if folio.is(Folio::UNUSED) {
                    self.stats.read_ahead_wasted += u64::from(folio.blocks());
                    self.ahead.on_waste(folio.key.volume(), folio.blocks());
                }
                self.stats.evicted_folios += 1;
                self.stats.evicted += u64::from(folio.blocks());
                self.unmake(unit);
                Some(folio.blocks())
            }
            Victim::Dirty if self.defects.evicts_dirty() => self.evict_dirty(),
            Victim::Dirty => {
                self.want_clean(turn);
                None
            }
            Victim::None => None,
        }
    }

    /// The defect: what is dirty goes like what is clean.
    fn evict_dirty(&mut self) -> Option<u32> {
        let unit = (0..self.folios.units()).find(|&unit| {
            let folio = &self.folios[unit];
            folio.is(Folio::PRESENT) && folio.dirty > 0 && folio.writeback + folio.filling == 0
        })?;
        let blocks = self.folios[unit].blocks();
        self.cancel_blocks(unit, 0, blocks);
        self.forget_folio(unit);
        Some(blocks)
    }

    /// The defect: what is being filled goes like what is there.
    fn evict_filling(&mut self) -> Option<u32> {
        let unit = (0..self.folios.units()).find(|&unit| {
            let folio = &self.folios[unit];
            folio.is(Folio::PRESENT) && folio.filling > 0 && folio.dirty + folio.writeback == 0
        })?;
        self.wake_folio(unit, None, WaitTimes::NONE);
        let blocks = self.folios[unit].blocks();
        self.folios.states_mut(unit, blocks).fill(0);
        self.folios[unit].filling = 0;
        self.forget_folio(unit);
        Some(blocks)
    }

    /// A folio ends: it is in no list and nothing of it is needed.
    fn unmake(&mut self, unit: u32) {
        let Folio { order, key, .. } = self.folios[unit];
        self.index.remove(&self.folios, unit);
        self.volume(key.volume()).folios -= 1;
        self.folios.end(unit);
        self.frames.put(unit, order);
    }

    /// Drops a folio of which nothing is valid any longer, unless somebody waits for it or something is on its way.
    pub(in crate::cache) fn forget_folio(&mut self, unit: u32) {
        let folio = self.folios[unit];
        if folio.is_idle() && folio.waiters == NIL {
            self.reclaim.forget(&mut self.folios, unit);
            self.unmake(unit);
        }
    }

    /// Hands frames to whoever waits for them, in turn.
    pub(in crate::cache) fn serve_frames(&mut self, turn: &mut Turn) {
        while let Some(slot) = self.lines.frames.head() {
            if self.defer_fill(slot) {
                continue;
            }
            if self.ops[slot].frame.0 == NIL {
                let Some(granted) = self.take_frames(turn, 0) else {
                    return;
                };
                self.ops[slot].frame = granted;
            }
            self.lines.frames.pop(&mut self.ops);
            self.ready(slot);
        }
    }

    /// A granted frame that was not needed goes back.
    pub(in crate::cache) fn drop_frame(&mut self, op: &mut Operation) {
        let (unit, order) = std::mem::replace(&mut op.frame, (NIL, 0));
        if unit != NIL {
            self.frames.put(unit, order);
        }
    }
}
