//! Images as devices of the [`headworks`] library: formats of other programs.
//!
//! - [`formats`] reads qcow2 and VMDK images; with the feature of this name, which is on by default.

#[cfg(feature = "formats")]
pub mod formats;
