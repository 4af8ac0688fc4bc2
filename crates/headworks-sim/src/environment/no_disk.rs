//! The engine of devices without files.

use std::os::fd::RawFd;

use headworks::driver::{DiskOp, DiskQueue, Interest, Span, Watch};
use headworks_core::DeviceId;

/// A disk queue that takes no operation: the simulation does no real I/O.
pub struct NoDisk;

impl Watch for NoDisk {
    fn watch_place(&mut self, _: DeviceId, _: u16, _: RawFd, _: Interest) {
        unreachable!("modelled devices have no descriptors");
    }

    fn forget_place(&mut self, _: DeviceId, _: u16) {}
}

impl DiskQueue for NoDisk {
    unsafe fn push(&mut self, _: DiskOp, _: &[Span]) -> bool {
        false
    }
}
