//! The server: shards on threads, clients in front, devices behind.
//!
//! A device and its volumes live on one shard; a client is accepted by shard 0 and moves to its export's shard when the
//! handshake ends, so a request never changes CPU. `reactor` is the thread, `desk` its connections and rings, `listener`
//! the sockets, `assemble` what stands below, `options` the numbers, `launch` the start, `offered` what clients are told,
//! `inventory` what is served as it comes and goes, `shared` what threads tell each other outside the data path, `control` the
//! operator's way in.

pub mod assemble;
pub mod config;
mod connection_id;
pub mod control;
pub mod did_you_mean;
pub mod latency;
mod launch;
mod listen;
mod log_level;
mod messages;
mod metrics;
pub mod nbd;
mod options;
mod reactor;
pub mod recorder;
mod reloader;
mod server;
mod shared;
mod spec;
pub mod units;

pub use listen::Address;
pub use listen::inherited::{InheritedAddress, InheritedSocket};
pub use log_level::{LOG_LEVELS, LogLevel};
pub use options::{PrepareShard, ServerOptions};
pub use reloader::Reloader;
pub use server::{ActiveExport, Server, ShardBarrier};
pub use spec::{BaseDevice, ExportOptions, Layer, Spec, Wrapper};
