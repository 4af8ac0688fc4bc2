//! The buffers of a connection: real bytes at fixed addresses, poisoned while they are free.
//!
//! ```text
//!   free (poisoned) --take: still poison?--> held --poison--> free
//! ```
//!
//! A use after release reads poison; a write after release changes the poison, which the next
//! `take` detects. Bytes are accessed through raw pointers only, because devices hold spans of them
//! at the same time.

use headworks::driver::Span;

use crate::sector_pattern::POISON;

/// Buffers of equal size, named by slot.
pub struct PoisonedBuffers {
    base: *mut u8,
    bytes: usize,
    slot_bytes: usize,
    /// Poisoned bytes of each buffer, from its start; 0 while held.
    poisoned: Vec<u32>,
}

// SAFETY: the memory behind `base` is owned by this value; spans of it are used only on the thread
// that runs the simulation.
unsafe impl Send for PoisonedBuffers {}

impl PoisonedBuffers {
    /// Allocates `count` buffers of `slot_bytes` bytes.
    #[must_use]
    pub fn new(count: usize, slot_bytes: usize) -> Self {
        let bytes = count * slot_bytes;
        let memory = vec![0u8; bytes].into_boxed_slice();
        Self { base: Box::into_raw(memory).cast(), bytes, slot_bytes, poisoned: vec![0; count] }
    }

    /// Takes a buffer for use; returns false if it was written since its release.
    #[must_use]
    pub fn take(&mut self, slot: usize) -> bool {
        let poisoned = std::mem::take(&mut self.poisoned[slot]) as usize;
        let (words, rest) = self.bytes(slot, poisoned).as_chunks::<8>();
        words.iter().all(|word| *word == [POISON; 8]) && rest.iter().all(|&byte| byte == POISON)
    }

    /// Poisons the first `len` bytes of a released buffer.
    pub fn poison(&mut self, slot: usize, len: u32) {
        self.bytes_mut(slot, len as usize).fill(POISON);
        self.poisoned[slot] = len;
    }

    /// The memory of a buffer, for a device.
    #[must_use]
    pub fn span(&self, slot: usize) -> Span {
        assert!(slot < self.poisoned.len(), "a buffer that exists");
        // SAFETY: within the allocation, which the world drops after its devices.
        unsafe { Span::new(self.base.add(slot * self.slot_bytes), self.slot_bytes) }
    }

    /// The first `len` bytes of a buffer.
    #[must_use]
    pub fn bytes(&self, slot: usize, len: usize) -> &[u8] {
        let span = self.span(slot);
        assert!(len <= span.len(), "within the buffer");
        // SAFETY: within the allocation, and no device is running during the call.
        unsafe { std::slice::from_raw_parts(span.base(), len) }
    }

    /// The first `len` bytes of a buffer, mutable.
    pub fn bytes_mut(&mut self, slot: usize, len: usize) -> &mut [u8] {
        let span = self.span(slot);
        assert!(len <= span.len(), "within the buffer");
        // SAFETY: as in `bytes`, and `self` is borrowed for it.
        unsafe { std::slice::from_raw_parts_mut(span.base(), len) }
    }
}

impl Drop for PoisonedBuffers {
    fn drop(&mut self) {
        let memory = std::ptr::slice_from_raw_parts_mut(self.base, self.bytes);
        // SAFETY: made by `Box::into_raw` of a slice of this length, and dropped once. Devices,
        // which hold spans, are dropped or powered off before the buffers.
        drop(unsafe { Box::from_raw(memory) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_after_release_is_detected_at_next_take() {
        let mut buffers = PoisonedBuffers::new(2, 4096);
        assert!(buffers.take(1));
        buffers.bytes_mut(1, 4096).fill(7);
        buffers.poison(1, 4096);
        assert!(buffers.bytes(1, 4096).iter().all(|&byte| byte == POISON));
        assert!(buffers.take(1));
        buffers.poison(1, 100);
        // SAFETY: within the buffer, as a late device would.
        unsafe { *buffers.span(1).base().add(99) = 1 };
        assert!(!buffers.take(1));
    }
}
