//! Shadow frames: where a block is written while the device reads its frame.
//!
//! Bytes that a device was given do not change until it completes. A write to a block under write-out therefore goes to a frame of a
//! small reserve, and reads find it there. When the device has completed, the bytes move into the block's own frame. When the
//! reserve is used up, the write waits for that.
//!
//! Invariant: free + used frames == the reserve; a block has at most one shadow.

use crate::buddy::Buddy;

/// The smallest reserve, in frames; otherwise one frame in 64.
const SHADOWS_MIN: u32 = 4;
/// The largest reserve, in frames.
pub(super) const SHADOWS_MAX: u32 = 256;

/// The reserve of frames for shadows.
#[derive(Debug)]
pub(super) struct ShadowFrames {
    free: Vec<u32>,
    /// (Block's unit, shadow's unit); few, so they are searched one by one.
    used: Vec<(u32, u32)>,
}

impl ShadowFrames {
    /// Takes the reserve out of a pool with room for `units`.
    pub fn new(frames: &mut Buddy, units: u32) -> Self {
        let wanted = (units / 64).clamp(SHADOWS_MIN, SHADOWS_MAX).min(units);
        let free: Vec<u32> = (0..wanted).filter_map(|_| frames.take(0)).collect();
        let used = Vec::with_capacity(free.len());
        Self { free, used }
    }

    /// Returns the reserve to the pool; no shadow is in use.
    pub fn release(&mut self, frames: &mut Buddy) {
        assert!(self.used.is_empty(), "a block has its newest bytes in a shadow");
        self.free.drain(..).for_each(|frame| frames.put(frame, 0));
    }

    /// Returns the number of shadows in use.
    pub fn used(&self) -> u32 {
        self.used.len() as u32
    }

    /// Returns the number of frames in the reserve.
    pub fn units(&self) -> u32 {
        (self.free.len() + self.used.len()) as u32
    }

    /// Takes a shadow for the block at `unit`; `None` if all are in use.
    pub fn take(&mut self, unit: u32) -> Option<u32> {
        debug_assert!(self.used.iter().all(|used| used.0 != unit), "a block has one shadow");
        let shadow = self.free.pop()?;
        assert!(self.used.len() < self.used.capacity(), "the reserve does not grow");
        self.used.push((unit, shadow));
        Some(shadow)
    }

    /// Returns the shadow of a block that has one.
    pub fn of(&self, unit: u32) -> u32 {
        let found = self.used.iter().find(|used| used.0 == unit);
        found.expect("a block in state SHADOW has a shadow").1
    }

    /// Frees the shadow of a block and returns it.
    pub fn put(&mut self, unit: u32) -> u32 {
        let at = self.used.iter().position(|used| used.0 == unit);
        let (_, shadow) = self.used.swap_remove(at.expect("a shadow is freed once"));
        self.free.push(shadow);
        shadow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_is_bounded_and_finds_each_shadow() {
        let mut frames = Buddy::new(1024, 10);
        let mut shadows = ShadowFrames::new(&mut frames, 1024);
        assert_eq!(frames.taken(), 16);
        let taken: Vec<_> = (100..116).map(|unit| shadows.take(unit).unwrap()).collect();
        assert_eq!(shadows.take(200), None, "the reserve is used up");
        for (index, unit) in (100..116).enumerate() {
            assert_eq!(shadows.of(unit), taken[index]);
        }
        assert_eq!(shadows.put(107), taken[7]);
        assert_eq!((shadows.take(300), shadows.of(115)), (Some(taken[7]), taken[15]));
    }
}
