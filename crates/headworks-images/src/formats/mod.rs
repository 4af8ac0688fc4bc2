//! Image formats as read-only devices: qcow2, and VMDK whose data are flat files.
//!
//! An image is resolved when it is opened, on a thread that may block: `imago` says what each byte of the disk maps to, and the
//! answers are joined to runs, a sorted array in memory (`RunMap`). From then on a read looks its runs up and becomes plain
//! operations of the engine on the files, so the path of an image is that of a `file:` with one search more. Compressed
//! clusters alone are read by threads of the device.
//!
//! ```text
//!   open      header.rs   what is not read is refused, and sizes are checked before memory is taken for them
//!             vmdk.rs     a VMDK descriptor is reduced to its extents
//!             chain.rs    the image, its backing files and its data files: opened beside the image, locked shared
//!             walk        imago: from 0 to the end
//!   map.rs    | zeros | data: file 0 at 327680 | plain: file 1 at 0 | compressed | ...
//!   device.rs | fill  | engine reads file 0    | engine reads file 1 | a thread reads and inflates
//! ```
//!
//! The map stays right because nothing writes: every file is locked as qemu locks images that it only reads, so no program that
//! respects these locks can change it. Devices refuse writes.
//!
//! Not read, each with a sentence that names the way out (`qemu-img convert`): extended L2 entries, zstd, encryption, images
//! that are marked dirty or corrupt, sparse VMDK extents, VMDK snapshots. Internal snapshots are ignored.

mod base;
mod chain;
mod decode;
mod device;
mod header;
mod magic;
mod map;
mod open;
#[cfg(test)]
mod tests;
mod vmdk;

pub use base::{BASE_FORMATS, ImageBases};
pub use device::FormatDevice;
pub use magic::{FoundFormat, ImageFormat, format_of};
pub use open::{ImageOptions, OpenImage};
