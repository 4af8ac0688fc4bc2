//! A volume of another size.
//!
//! Beyond the end nothing is read or written, so what is cached there can be forgotten turn by turn: the *cut*. Meanwhile nothing
//! of it goes to the device, flushes of the volume wait, and who makes the volume longer again ends the cut at once.
//!
//! ```text
//!   0 .................. end ------ forgotten ------ cut.at ------ still there ------ the largest end it had
//! ```
//!
//! What is on its way there keeps its frames until the device has answered: a block under write-out is not up to date any longer,
//! and what comes of one that is being filled is void. So if the volume is longer again by then, whoever wants the block waits
//! for that answer and then for the device; old bytes neither overtake new ones nor change under the device.

use crate::action::Action;
use crate::bio::VolumeId;
use crate::cache::pool::folio::{BLOCK, BLOCK_SHIFT, block};
use crate::cache::pool::walk::WalkStep;
use crate::cache::{Cache, TimerKind, Turn};

/// What lies beyond a volume's end and is still to be forgotten.
#[derive(Clone, Copy, Debug)]
pub(in crate::cache) struct Truncation {
    /// Blocks.
    start: u64,
    end: u64,
    /// How far a walk over them came.
    at: u64,
}

impl Cache {
    /// The volume is of another size: what is beyond it is forgotten. Of a block that was the last, in part, the device knows the
    /// rest: it is read again, when what is on its way of it has ended. What is dirty of it ends in zeros, as a file does that
    /// grew; a frame that the device reads is left alone, for then the dirty bytes are in a shadow.
    pub fn on_resize(&mut self, turn: &mut Turn, volume: VolumeId, size: u64) {
        let old = self.volume(volume).size;
        if size > old {
            while !self.go_on_with_cut(volume) {}
        }
        self.volume(volume).size = size;
        if size < old {
            self.begin_cut(
                volume,
                (size.div_ceil(u64::from(BLOCK)), old.div_ceil(u64::from(BLOCK))),
            );
            return;
        }
        let within = (old % u64::from(BLOCK)) as u32;
        if size == old || within == 0 {
            return;
        }
        let Some((unit, first)) = self.index.locate(&self.folios, volume, old >> BLOCK_SHIFT)
        else {
            return;
        };
        let state = self.folios.states(unit + first, 1)[0];
        if state & block::DIRTY == 0 {
            return self.invalidate(unit, first, 1);
        }
        let frame = match state & block::SHADOW {
            0 => unit + first,
            _ => self.shadows.of(unit + first),
        };
        self.zero_from(turn, frame, within);
    }

    fn begin_cut(&mut self, volume: VolumeId, (start, end): (u64, u64)) {
        let entry = self.volume(volume);
        let known = entry.truncation.replace(Truncation { start, end, at: 0 });
        if let (Some(known), Some(truncation)) = (known, &mut entry.truncation) {
            // Of what is left of the other, nobody knows where it is in a walk over both.
            truncation.end = truncation.end.max(known.end);
        }
        self.truncations += u32::from(known.is_none());
        self.stirred = true;
    }

    /// Goes on with every cut, each as far as one turn may.
    pub(in crate::cache) fn go_on_with_cuts(&mut self, turn: &mut Turn) {
        if self.truncations == 0 {
            return;
        }
        for volume in 0..self.volumes.len() {
            self.go_on_with_cut(VolumeId(volume as u16));
        }
        if self.truncations > 0 {
            turn.timers.set(self.timer_base + TimerKind::Turn as u32, turn.now);
        }
    }

    /// Forgets some of what is cut off; true when nothing is left.
    fn go_on_with_cut(&mut self, volume: VolumeId) -> bool {
        let Some(mut truncation) = self.volume(volume).truncation else {
            return true;
        };
        let (range, mut left) = ((truncation.start, truncation.end), Self::turn_budget());
        let ended = loop {
            match self.walk(volume, range, &mut truncation.at, &mut left) {
                WalkStep::End => break true,
                WalkStep::Enough => break false,
                WalkStep::Folio(unit) => {
                    truncation.at = self.behind(range, unit);
                    self.drop_blocks(unit, range, &mut left);
                }
            }
        };
        self.volume(volume).truncation = (!ended).then_some(truncation);
        self.truncations -= u32::from(ended);
        ended
    }

    /// Before blocks of a folio are written out: what of them is cut off is not.
    pub(in crate::cache) fn cancel_cut(&mut self, unit: u32) {
        if self.truncations == 0 {
            return;
        }
        let Some(truncation) = self.volume(self.folios[unit].key.volume()).truncation else {
            return;
        };
        let folio = &self.folios[unit];
        if truncation.start < folio.key.block() + u64::from(folio.blocks()) {
            let (first, count) = self.overlap(unit, (truncation.start, u64::MAX));
            self.cancel_blocks(unit, first, count);
        }
    }

    /// The bytes of a frame from `within` on are zeros.
    pub(in crate::cache) fn zero_from(&self, turn: &mut Turn, frame: u32, within: u32) {
        let at = u64::from(frame) << BLOCK_SHIFT | u64::from(within);
        turn.actions.list.push(Action::Zero { at, len: BLOCK - within });
    }
}
