//! Detects that an image changed its size while it is served.

use headworks::SizeWatch;
use headworks_core::VolumeId;

/// A file whose size is looked at while it is served.
pub struct WatchedFile {
    /// Its volume.
    pub volume: VolumeId,
    watch: SizeWatch,
    size: u64,
    block_size: u64,
    /// The size that we are about to give it ourselves.
    expected: Option<u64>,
}

impl WatchedFile {
    /// A file that was opened with `size` bytes.
    pub(crate) fn new(volume: VolumeId, watch: SizeWatch, size: u64, block_size: u64) -> Self {
        Self { volume, watch, size, block_size, expected: None }
    }

    /// The new size, rounded down to whole blocks, if it differs from the last look's and is not the one that is expected.
    pub fn changed_size(&mut self) -> Option<u64> {
        let size = self.watch.current_size().ok()? / self.block_size * self.block_size;
        if size == std::mem::replace(&mut self.size, size) {
            return None;
        }
        // Once: a file that comes back to this size later is news again.
        (self.expected.take() != Some(size)).then_some(size)
    }

    /// It is no news if the file has this size.
    pub(crate) fn expect(&mut self, size: u64) {
        self.expected = Some(size);
    }
}
