//! vhost-user-blk: a disk for virtual machines, whose requests lie in the machine's own memory.
//!
//! ```text
//!   socket -- Channel -- Message --> Session --Order--> Device --Request--> the path below
//!                        (control thread)     <-Answer-- (shard)  <-complete-
//!                                                          |
//!                                            rings, data and the in-flight region: shared memory
//! ```
//!
//! - [`Session`] is the control side: messages in, answers and orders out, no I/O. It runs on a control thread.
//! - [`Device`] is the shard's side: rings are read and written by hand, in turns. Nothing is allocated for a request, no system call is made
//!   for one, and its header is read once. Data are not copied: [`Device::pieces`] names them where they are.
//! - [`GuestMemory`] is mapped and unmapped by the control side; the device says when nothing in flight uses a table any more.
//! - [`InFlightRegion`] outlives the process: the next one submits again what was taken and not answered.
//! - [`driver`] is the other side, a front end without a virtual machine: it tests, and measures for `headworks bench`.
//!
//! Messages, rings, descriptors, the in-flight region and the log come from outside. Each index, length and address is checked; what breaks
//! the rules of a ring ends that ring, what breaks those of the messages ends the connection.
//!
//! The messages are parsed here and not by the crate `vhost`: its handler reads the socket itself and answers GET_VRING_BASE before it
//! returns, so that it can neither be fuzzed without a socket nor wait for a shard. Rings are read by hand for speed: 66 ns a request
//! with the crate `virtio-queue`, which looks for the region at every access, 4 ns so.

mod chain;
mod channel;
mod config_space;
mod device;
#[cfg(all(test, not(loom)))]
mod device_tests;
pub mod driver;
mod event;
mod fault;
pub mod features;
mod in_flight;
mod log;
mod memory;
pub mod notify;
mod observer;
#[cfg(all(test, not(loom)))]
mod recovery_tests;
mod request;
mod ring;
mod session;
#[cfg(all(test, not(loom)))]
mod session_tests;
mod spans;
mod sync;
#[cfg(all(test, not(loom)))]
mod testing;
pub mod wire;

pub use channel::{Channel, Received};
pub use config_space::{
    CONFIG_BYTES, Disk, SEGMENTS_MAX, WRITEBACK_AT, ZERO_SECTORS_MAX, ZERO_SEGMENTS_MAX,
};
pub use device::{Answer, BrokenRing, Device, HEADS_A_DEVICE, HEADS_A_RING, Order, Retired};
pub use event::{CallFd, EventFd, Notifier};
pub use in_flight::InFlightRegion;
pub use log::DirtyLog;
pub use memory::{GuestMemory, REGIONS_MAX, Span};
pub use observer::{NoObserver, StoreObserver};
pub use request::{Outcome, Request, RequestOp, Ticket};
pub use ring::Ring;
pub use session::{Offer, Session, Step};

/// Most queues of a device.
pub const QUEUES_MAX: u16 = 64;
/// Most descriptors of a ring.
pub const QUEUE_SIZE_MAX: u16 = 1024;
/// Bytes of a sector, the unit of addresses on the wire.
pub const SECTOR: u64 = 512;
