//! Disk images as devices of the [`headworks`] library, and devices that spoil what passes them.
//!
//! - [`OverlayDevice`]: a disk of its own on a shared read-only base. [`NewOverlay`] makes one, [`OpenOverlay`] opens it and works on those
//!   that are not served, [`OverlaySnapshot`] keeps what one is now.
//! - [`FilesystemDevice`]: files and overlays of one filesystem, behind one queue.
//! - [`formats`] reads qcow2 and VMDK images; with the feature of this name, which is on by default.
//! - [`PartialDevice`]: requests of any range on a device that takes only whole blocks.
//! - [`DelayDevice`], [`ModelDevice`], [`ErrorFilter`], [`PowercutDevice`]: a slow disk, one as slow as a real one, one that fails, and one
//!   whose power can be cut.

mod delay;
mod error;
mod filesystem;
#[cfg(feature = "formats")]
pub mod formats;
mod model;
mod overlay;
mod partial;
mod powercut;
mod probability;

pub use delay::{DelayDevice, DelayOptions};
pub use error::{ErrorFilter, ErrorOptions};
pub use filesystem::FilesystemDevice;
pub use model::{ModelDevice, ModelEvent, ModelEvents, ModelStatus, ModelTimes};
pub use overlay::{
    BaseFormats, BaseImage, BaseImageOptions, CommitOptions, NewBase, NewOverlay, OpenBaseImage,
    OpenOverlay, OverlayBase, OverlayBaseKind, OverlayDevice, OverlayLayer, OverlayOptions,
    OverlayParts, OverlayProgress, OverlaySnapshot, REMOTE_BASE, ResetOptions, is_overlay,
};
pub use partial::{PartialDevice, PartialImage, WholeBlocks};
pub use powercut::{
    DiskChange, DiskLog, DiskLogReader, Fates, PowercutDevice, PowercutEnd, PowercutLog,
    PowercutOptions, PowercutReport,
};
pub use probability::Probability;
