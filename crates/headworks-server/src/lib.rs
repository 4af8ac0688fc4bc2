//! An NBD server on Headworks' block I/O path.
//!
//! For programs that serve images to NBD clients: the command `headworks serve` is made of this crate. A program that only
//! wants the I/O path without the network uses the crate `headworks`.
//!
//! A server is started from an [`Assembly`] (opened devices, volumes and exports) and [`ServerOptions`]. It runs
//! one thread for each shard; a device and its volumes live on one shard. Shard 0 accepts clients, and a connection moves
//! to the shard of its export after the handshake, so the requests of a connection stay on one CPU.
//!
//! ```no_run
//! use headworks_server::{Address, Assembly, ExportSpec, Server, ServerOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let exports = [ExportSpec::parse("file:path=disk.img,size=1G", true)?];
//! let address = Address::Tcp("127.0.0.1:10809".parse()?);
//! let options = ServerOptions { listen: vec![address], ..ServerOptions::default() };
//! let server = Server::start(Assembly::new(&exports)?, &options, || ())?;
//! std::thread::sleep(std::time::Duration::from_secs(60));
//! server.stop();
//! server.join()?;
//! # Ok(())
//! # }
//! ```
//!
//! Modules from the bottom up; none uses one above it:
//!
//! | module | content |
//! |---|---|
//! | `spec`, `tenant`, `option_table`, `units`, `did_you_mean` | what users write: devices, the tables of options of exports and tenants, sizes, times; suggestions for misspelled names |
//! | `export_range`, `partition_table` | the range of its volume that an export serves: offsets of both; where partitions are |
//! | `device_reader` | reads that wait, of a device that no shard drives |
//! | `latency` | histograms of wait times |
//! | `access` | which clients see which exports |
//! | `nbd` | connections: receive, parse, reply, send |
//! | `rings`, `client` | vhost-user devices: their requests come by memory that they share; a client of a shard, of either kind |
//! | `keeper`, `leftovers`, `marker`, `recovery` | what a server leaves for the next one: dirty data in shared memory, marks beside images, and where data go that have none |
//! | `assemble`, [`config`] | exports from specifications and from the configuration file |
//! | `messages`, `shared` | what threads of the server exchange, outside the data path |
//! | `reactor` | the event loop of a shard's thread |
//! | `control` | the control socket, whose requests and answers are the crate headworks-control |
//! | `status_page`, `metrics` | the web page of the server's state, and the endpoint that serves it and the metrics |
//! | `launch`, `restoring`, `server` | start, stop and wait |
//! | `handover` | replacement of the process while clients stay connected |

mod access;
mod assemble;
mod cache_part;
mod client;
pub mod config;
mod connection_id;
mod control;
mod cpus;
mod device_reader;
mod did_you_mean;
mod export_range;
mod files;
mod handover;
mod keeper;
mod latency;
mod latency_target;
mod launch;
mod leftovers;
mod limit_words;
mod listen;
mod listener_set;
mod loaded;
mod log_level;
mod marker;
mod memory;
mod messages;
mod metrics;
mod name_pattern;
mod nbd;
mod opened_listeners;
mod option_table;
mod options;
mod partition_table;
mod reactor;
mod recorded_requests;
mod recorder;
mod recovery;
mod reload_request;
mod reloader;
mod restoring;
mod rings;
mod server;
mod shared;
mod spec;
mod state_directory;
mod status_page;
mod tenant;
mod units;
mod whole;

pub use access::{AccessSpec, ListenerKind, ListenerSpec, access_warnings};
pub use assemble::TenantSpec;
pub use assemble::{
    AbsentExport, AssembledExport, Assembly, ExportSource, ExportSpec, NamedDevice, WatchedFile,
    check_exports,
};
pub use control::{AccessReport, ReloadReport, RetuneReport, TenantReport};
pub use did_you_mean::nearest_name;
pub use files::directory::file_of;
pub use files::mounts::Mounts;
pub use handover::{
    Handover, PauseInProgress, Takeover, TakeoverStep, TakeoverSteps, UnmatchedClients,
    UpgradeHook, UpgradeRefusal, UpgradeReport, UpgradeRequest, UpgradeResult,
};
pub use headworks_rbd::wait_for_closes;
pub use latency_target::latency_target_word;
pub use launch::sleep_precisely;
pub use leftovers::Leftovers;
pub use limit_words::{LIMIT_KEYS, check_limit, parse_limits, slow_limit};
pub use listen::inherited::{InheritedAddress, InheritedSocket};
pub use listen::{Address, FileOwner, PATH_MAX as SOCKET_PATH_MAX};
pub use loaded::{ConfiguredTunables, LoadedConfiguration};
pub use log_level::{LOG_LEVELS, LogLevel};
pub use memory::{AutoCache, CacheSize, MemoryLimit};
pub use nbd::receive_path::{ROUND as RECEIVE_PATH_ROUND, ReceivePath, ReceivePathOp};
pub use nbd::world as front_world;
pub use options::{
    CacheFile, ClientLimits, MissingImage, PrepareShard, ProcessContext, ServerOptions,
};
pub use recorded_requests::{RecordedRequests, recorded_requests};
pub use recorder::{Replayed, replay_recording, replay_slots};
pub use reload_request::{ReloadHook, ReloadOutcome, ReloadRequest};
pub use reloader::Reloader;
pub use server::{ActiveExport, Server, ShardBarrier};
pub use shared::{VolumeProgress, VolumeStop};
pub use spec::{
    BASES, BaseDevice, DiskDescription, ExportOptions, Layer, Model, Spec, UncleanPolicy, Wrapper,
    is_remote_base,
};
pub use tenant::{TenantName, TenantOptions};
pub use units::{parse_size, parse_switch, parse_time};
