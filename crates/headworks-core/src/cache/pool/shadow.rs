//! Shadows: where a block is written while the device still reads its frame.
//!
//! Bytes that a device was given do not change until it answered. So a write to a block under write-out goes to a frame of a
//! small reserve; reads find it there; when the device has answered, its bytes move into the block's own frame. When the
//! reserve is used up the write waits for the answer.

use crate::action::Action;
use crate::buddy::Buddy;
use crate::cache::pool::folio::{BLOCK, BLOCK_SHIFT};
use crate::cache::{Cache, Turn};

/// Frames of the reserve: one in 64, within these.
const SHADOWS_MIN: u32 = 4;
const SHADOWS_MAX: u32 = 256;

/// The reserve.
#[derive(Debug)]
pub(in crate::cache) struct Shadows {
    free: Vec<u32>,
    /// (Block's unit, shadow's unit); few, so they are searched one by one.
    used: Vec<(u32, u32)>,
}

impl Shadows {
    /// Takes the reserve out of the pool.
    pub fn new(frames: &mut Buddy) -> Self {
        let wanted = (frames.units() / 64).clamp(SHADOWS_MIN, SHADOWS_MAX).min(frames.units());
        let free: Vec<u32> = (0..wanted).filter_map(|_| frames.take(0)).collect();
        let used = Vec::with_capacity(free.len());
        Self { free, used }
    }

    /// Shadows in use.
    pub fn used(&self) -> u32 {
        self.used.len() as u32
    }

    /// Frames of the reserve.
    pub fn units(&self) -> u32 {
        (self.free.len() + self.used.len()) as u32
    }

    /// A shadow for the block at `unit`; `None` if all are in use.
    pub fn take(&mut self, unit: u32) -> Option<u32> {
        let shadow = self.free.pop()?;
        self.used.push((unit, shadow));
        Some(shadow)
    }

    /// The shadow of a block that has one.
    pub fn of(&self, unit: u32) -> u32 {
        let found = self.used.iter().find(|used| used.0 == unit);
        found.expect("a block that says it has a shadow has one").1
    }

    /// The block needs its shadow no longer.
    fn put(&mut self, unit: u32) -> u32 {
        let at = self.used.iter().position(|used| used.0 == unit);
        let (_, shadow) = self.used.swap_remove(at.expect("a shadow ends once"));
        self.free.push(shadow);
        shadow
    }
}

impl Cache {
    /// The device has the old bytes: the new ones move into the block's frame.
    pub(in crate::cache) fn end_shadow(&mut self, turn: &mut Turn, unit: u32) {
        let shadow = self.shadows.put(unit);
        turn.actions.list.push(Action::Move {
            from: u64::from(shadow) << BLOCK_SHIFT,
            to: u64::from(unit) << BLOCK_SHIFT,
            len: BLOCK,
        });
    }

    /// The new bytes of a block are not needed (it was discarded).
    pub(in crate::cache) fn drop_shadow(&mut self, unit: u32) {
        self.shadows.put(unit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_bounded_and_each_block_finds_its_own() {
        let mut frames = Buddy::new(1024, 10);
        let mut shadows = Shadows::new(&mut frames);
        assert_eq!(frames.taken(), 16);
        let taken: Vec<_> = (100..116).map(|unit| shadows.take(unit).unwrap()).collect();
        assert_eq!(shadows.take(200), None, "full is an answer");
        for (index, unit) in (100..116).enumerate() {
            assert_eq!(shadows.of(unit), taken[index]);
        }
        assert_eq!(shadows.put(107), taken[7]);
        assert_eq!((shadows.take(300), shadows.of(115)), (Some(taken[7]), taken[15]));
    }
}
