//! Images of a Ceph cluster as devices.
//!
//! ```text
//!   library.rs   librados and librbd, loaded at the first image: a program without images needs neither
//!   name.rs      POOL/NAMESPACE/IMAGE@SNAPSHOT
//!   open.rs      connects, opens, takes the exclusive lock: on a thread of its own, within a limit of time
//!   image.rs     an open image: starts operations, collects completions, closes on a thread of its own
//!   device.rs    commands to operations; what the loss of the lock means
//! ```
//!
//! An image is written by one client: the exclusive lock is taken when it is opened and kept. librbd's own cache is off, so a write that
//! completed is on as many replicas as the pool asks for.

mod device;
mod image;
mod library;
mod name;
mod open;

pub use device::RbdDevice;
pub use image::{RbdImage, wait_for_closes};
pub use name::ImageName;
pub use open::{Access, OpenRbd, RbdOptions};
