//! A directory in memory that takes the time of a modelled disk.
//!
//! ```text
//!   Channel --> the files (Recording, without a record) --> answer
//!                  |                                          | held until its time has come
//!                  '--> SlowDisk: which commands, how long ---'
//!                          places, journal, queue --> DeviceModel
//! ```
//!
//! `policy`, `places`, `journal` and `queue` decide, with the time as an argument; `directory` has the clock and the mount.

mod directory;
mod journal;
mod places;
mod policy;
#[cfg(test)]
mod policy_tests;
mod queue;

pub use directory::{SlowDirectory, SlowMount, SlowReport};
pub use policy::{Durability, Ended, SlowDisk, SlowOptions, SlowWrite, WaitKind, Waits, WriteMode};
pub use queue::Commands;
