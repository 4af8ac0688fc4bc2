//! The mechanism of Headworks: what carries out the decisions of [`headworks_core`].
//!
//! `frontend` parses protocols and knows nothing below a volume; `executor` carries out a shard's actions; `device` moves
//! bytes; `engine` waits for disks and sockets; `memory` holds every byte of data. `server` is the path behind a protocol,
//! `embed` the path inside another program; `tls` what both ends of an encrypted connection do; `config` the file that says what
//! to serve.

pub mod client;
#[cfg(not(loom))]
pub mod config;
pub mod device;
// The model checker looks at rings, not at threads and sockets.
#[cfg(not(loom))]
pub mod embed;
pub mod engine;
pub mod executor;
pub mod frontend;
pub mod latency;
pub mod memory;
pub mod nearest;
pub mod primitive;
pub mod ring;
#[cfg(not(loom))]
pub mod server;
pub mod tls;
pub mod units;

pub use headworks_core as core;
