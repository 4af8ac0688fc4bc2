//! The world in virtual time: it drives the same `headworks_core::Shard` and the same `headworks::executor::Executor` as the
//! server, over modelled disks with real bytes, and checks what they promise.
//!
//! Read `world` first (the loop), then `disk` (how unkind devices are), `oracle` (what the bytes may be) and `check` (the
//! other rules). `scenario` draws a world from a seed, `smoke` runs many. Nothing here reads a clock, starts a thread, or
//! does real I/O; a run is a function of its seed.

pub mod buffers;
pub mod check;
pub mod connection;
pub mod coverage;
pub mod crash;
pub mod disk;
pub mod environment;
pub mod events;
pub mod frames;
pub mod harness;
pub mod operator;
pub mod oracle;
pub mod owed_errors;
pub mod scenario;
pub mod sector_pattern;
pub mod smoke;
pub mod throughput;
pub mod workload;
pub mod world;

pub use check::Failure;
pub use crash::CrashRun;
pub use scenario::Scenario;
pub use smoke::SmokeRun;
pub use world::{Outcome, run};
