//! Modelled disks: how long commands take on a drive that turns, on flash, and on a virtual disk.
//!
//! A [`DeviceModel`] has no data and reads no clock: commands and their times go in, the times of their completions come out, in whole
//! nanoseconds and the same on every machine. The simulator puts real bytes and faults around [`LatencyModel`], the experiments count
//! with the calibrated models in virtual time, and `model:` of the server makes them a disk in real time.

mod device_model;
mod disk;
mod events;
mod hdd;
mod paced;
mod ssd;
mod stream;
mod timing;
mod token_bucket;
mod virtual_disk;
mod write_cache;

pub use device_model::{DeviceModel, ModelCommand, ModelCounters, PerCommand, TwoPoint};
pub use disk::{Disk, Field, NAMED, NamedDisk, Unit};
pub use events::EventQueue;
pub use hdd::{Hdd, HddProfile};
pub use paced::PacedDisk;
pub use ssd::{Ssd, SsdProfile};
pub use stream::{Stream, StreamProfile};
pub use timing::{LatencyModel, Timing};
pub use token_bucket::IopsBudget;
pub use virtual_disk::{VirtualDisk, VirtualDiskProfile};
