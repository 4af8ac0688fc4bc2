//! The cache on a device that a test controls, in virtual time: failures, waits, and the order of write-out.

mod change;
mod counters;
mod device_frames;
mod faults;
mod flusher;
mod freeze;
mod from_frames;
mod handover;
mod harness;
mod layers;
mod limit;
mod resize;
mod status;
mod stream;
mod tenants;
mod unresponsive;
mod wait_times;
mod walk;
