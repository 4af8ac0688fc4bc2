//! The server: shards on threads, clients in front, devices behind.
//!
//! A device and its volumes live on one shard; a client is accepted by shard 0 and moves to its export's shard when the
//! handshake ends, so a request never changes CPU. `reactor` is the thread, `desk` its connections and rings, `listener`
//! the sockets, `assemble` what stands below, `options` the numbers, `launch` the start, `offered` what clients are told,
//! `estate` what is served as it comes and goes, `board` what threads tell each other outside the data path, `control` the
//! operator's way in.

pub mod assemble;
mod board;
mod caching;
pub mod config;
pub mod control;
mod desk;
pub mod did_you_mean;
mod estate;
mod given;
pub mod latency;
mod launch;
mod listener;
mod metrics;
pub mod nbd;
mod offered;
mod opening;
mod options;
mod reactor;
pub mod recorder;
mod reloader;
mod server;
mod spec;
mod statistics;
pub mod units;

pub use control::log_level::{LOG_LEVELS, LogLevel};
pub use given::{Given, Place};
pub use listener::Address;
pub use options::ServerOptions;
pub use reloader::Reloader;
pub use server::{ExportNow, RollCall, Server};
pub use spec::{Base, Layer, Share, Spec, Wrapper};
