//! An overlay over devices instead of files: for simulated disks, so that what is checked there is what serves.

use std::io;
use std::sync::Arc;

use super::bitmap::{Bitmap, LiveBits};
use super::head::{HEAD_BYTES, bitmap_bytes, data_start};
use super::here::Here;
use super::{OverlayDevice, Parts};
use crate::device::Device;

/// What an overlay over devices is made of.
pub struct OverlayParts {
    /// Holds the overlay's own bytes, laid out as a file of it is, as its volume 0.
    pub own: Box<dyn Device>,
    /// Holds the base as its volume 0.
    pub below: Box<dyn Device>,
    /// The bitmap as `own` has it now; see [`OverlayDevice::bitmap_range`].
    pub stored: Vec<u8>,
    /// Bytes of the volume, in whole blocks of 4 KiB.
    pub size: u64,
    /// Bytes of the base.
    pub base_size: u64,
    /// Place among the overlays that share completions of file operations, below 2048.
    pub place: u16,
    /// Number of overlays below this one, fewer than 8.
    pub layer: u8,
    /// Whether changes are refused.
    pub read_only: bool,
}

impl OverlayDevice {
    /// An overlay over devices.
    ///
    /// # Errors
    /// The kernel has no address space for its bitmap.
    pub fn over(parts: OverlayParts) -> io::Result<Self> {
        let OverlayParts { own, below, stored, size, base_size, place, layer, read_only } = parts;
        let mut live = LiveBits::new(size)?;
        let bytes = live.bytes_mut();
        let len = stored.len().min(bytes.len());
        bytes[..len].copy_from_slice(&stored[..len]);
        live.adopt(0..len);
        let bitmap = Bitmap::new(Arc::new(live))?;
        Ok(Self::from_parts(Parts {
            own,
            below,
            bitmap,
            // A simulated disk has no boots, so nothing could be believed.
            here: Here::none(),
            data: data_start(size),
            size,
            base_size,
            layer,
            place,
            read_only,
            late_bits: None,
        }))
    }

    /// Where the file of an overlay of a volume of `size` bytes has its bitmap: offset and length.
    #[must_use]
    pub fn bitmap_range(size: u64) -> (u64, u64) {
        (HEAD_BYTES as u64, bitmap_bytes(size))
    }

    /// Where the file of an overlay of a volume of `size` bytes has the volume's first byte.
    #[must_use]
    pub fn data_offset(size: u64) -> u64 {
        data_start(size)
    }
}
