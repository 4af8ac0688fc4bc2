//! An overlay over devices instead of files: for simulated disks, so that what is checked there is what serves.

use std::io;
use std::sync::Arc;

use super::bitmap::{Bitmap, PAGE_BYTES};
use super::head::{data_start, file_bytes};
use super::here::{Here, Tag};
use super::load::{FoundBits, Stored, read_found};
use super::{OverlayDevice, Parts};
use headworks::Device;

/// What an overlay over devices is made of.
pub struct OverlayParts<'a> {
    /// Holds the overlay's own bytes, laid out as a file of it is, as its volumes 0 and 1.
    pub own: Box<dyn Device>,
    /// Holds the base as its volume 0.
    pub below: Box<dyn Device>,
    /// Reads what `own` has now, from an offset on.
    pub read: &'a dyn Fn(u64, &mut [u8]),
    /// The boot in which it is opened for writing; none for a layer that is only read.
    pub boot: Option<[u8; 16]>,
    /// Bytes of the volume, in whole blocks of 4 KiB.
    pub size: u64,
    /// Bytes of the base.
    pub base_size: u64,
    /// Place among the overlays that share completions of file operations, below 2048.
    pub place: u16,
    /// Number of overlays below this one, fewer than 8.
    pub layer: u8,
}

/// The bytes of a device, as files are read.
struct Bytes<'a>(&'a dyn Fn(u64, &mut [u8]));

impl Stored for Bytes<'_> {
    fn next_data(&self, from: u64, end: u64) -> io::Result<Option<(u64, u64)>> {
        let mut page = [0; PAGE_BYTES];
        let found = (from..end).step_by(PAGE_BYTES).find(|&at| {
            (self.0)(at, &mut page);
            page.iter().any(|&byte| byte != 0)
        });
        Ok(found.map(|at| (at, at + PAGE_BYTES as u64)))
    }

    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        (self.0)(at, bytes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

impl OverlayDevice {
    /// An overlay over devices. What `own` has is durable, if it is opened for writing: the caller has synced it.
    ///
    /// # Errors
    /// The kernel has no address space for its bitmap.
    pub fn over(parts: OverlayParts<'_>) -> io::Result<Self> {
        let OverlayParts { own, below, read, boot, size, base_size, place, layer } = parts;
        let file = Bytes(read);
        // What made a base made its bits durable.
        let tag = boot.map(|boot| Tag { boot, number: 0 });
        let FoundBits { live, here: found, .. } = read_found(&file, size, tag, boot.is_some())?;
        let here = Here::new(tag, size, &found)?;
        let mut bitmap = Bitmap::new(Arc::new(live))?;
        bitmap.mark_pending(&found.pending);
        Ok(Self::from_parts(Parts {
            own,
            below,
            bitmap,
            here,
            data: data_start(size),
            size,
            base_size,
            layer,
            place,
            read_only: boot.is_none(),
            late_bits: None,
        }))
    }

    /// Bytes of the file of an overlay of a volume of `size` bytes.
    #[must_use]
    pub fn file_bytes(size: u64) -> u64 {
        file_bytes(size)
    }

    /// Where the file of an overlay of a volume of `size` bytes has the volume's first byte.
    #[must_use]
    pub fn data_offset(size: u64) -> u64 {
        data_start(size)
    }
}
