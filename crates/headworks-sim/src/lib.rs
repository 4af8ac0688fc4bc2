//! The simulator: the `headworks_core::Shard` and `headworks::driver::Executor` of the server in
//! virtual time, over modelled disks that hold real bytes, with checkers of everything they
//! promise.
//!
//! Start with `world` (the event loop), then `disk` (the faults of devices), `oracle` (the bytes a
//! read or a power cut may return) and `check` (the other rules). `scenario` draws a simulated
//! world from a seed; `smoke` runs many of them. Nothing here reads a clock, starts a thread or
//! does real I/O: a run is a function of its seed.

pub mod buffers;
pub mod check;
pub mod connection;
pub mod coverage;
pub mod crash;
pub mod disk;
pub mod environment;
pub mod frames;
pub mod harness;
pub mod joints;
mod lent;
pub mod limits;
pub mod memory_space;
pub mod operator;
pub mod oracle;
pub mod outage;
pub mod owed_errors;
pub mod scenario;
pub mod sector_pattern;
pub mod smoke;
pub mod tenants;
pub mod throughput;
pub mod workload;
pub mod world;

pub use check::Failure;
pub use crash::CrashRun;
pub use joints::JointsRun;
pub use scenario::Scenario;
pub use smoke::SmokeRun;
pub use world::{Outcome, run};
