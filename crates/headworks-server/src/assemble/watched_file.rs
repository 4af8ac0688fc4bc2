//! Detects that an image changed its size while it is served.

use headworks::SizeWatch;
use headworks_core::VolumeId;

/// A file whose size is checked while it is served.
pub struct WatchedFile {
    /// Volume behind the file.
    pub volume: VolumeId,
    watch: SizeWatch,
    size: u64,
    block_size: u64,
    /// Size that the server itself is about to set.
    expected: Option<u64>,
}

impl WatchedFile {
    /// Watches a file that was opened with `size` bytes.
    pub(crate) fn new(volume: VolumeId, watch: SizeWatch, size: u64, block_size: u64) -> Self {
        Self { volume, watch, size, block_size, expected: None }
    }

    /// Returns the new size in whole blocks, if it changed and was not announced.
    pub fn changed_size(&mut self) -> Option<u64> {
        let size = self.watch.current_size().ok()? / self.block_size * self.block_size;
        if size == std::mem::replace(&mut self.size, size) {
            return None;
        }
        // Once: a later change to this size is reported.
        (self.expected.take() != Some(size)).then_some(size)
    }

    /// Announces a size that the server sets itself.
    pub(crate) fn expect(&mut self, size: u64) {
        self.expected = Some(size);
    }
}
