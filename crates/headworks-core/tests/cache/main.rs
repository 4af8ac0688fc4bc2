//! The cache on a device that does what a test says, in virtual time: what fails, what waits, what is written when.

mod change;
mod desk;
mod faults;
mod flusher;
mod lent;
mod resize;
mod status;
mod wait_times;
mod walk;
