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
//! Rooms, in the order in which a server uses them:
//!
//! | room | content |
//! |---|---|
//! | `spec`, [`config`] | what users write: devices, tables of options of exports and tenants, sizes, times; the configuration file |
//! | `exports` | what is served: images, volumes, exports, and which clients see them |
//! | `listen` | listening sockets and directories |
//! | `clients` | NBD connections, vhost-user devices and files of FUSE, whose requests become bios |
//! | `reactor` | the event loop of a shard's thread, and the messages between threads |
//! | `observe` | metrics, status page, histograms, recordings |
//! | `control` | the control socket, whose requests and answers are the crate headworks-control |
//! | `change` | changes while the server runs, and reloads |
//! | `successor` | what a server leaves to the next one, alive or dead |
//! | `server` | start, stop and wait |

mod change;
mod clients;
pub mod config;
mod control;
mod exports;
mod listen;
mod observe;
mod options;
mod reactor;
mod server;
mod spec;
mod successor;

pub use change::configured::{ConfiguredTunables, LoadedConfiguration};
pub use change::reload_request::{ReloadHook, ReloadOutcome, ReloadRequest};
pub use change::reloader::Reloader;
pub use change::{AccessReport, ReloadReport, RetuneReport, TenantReport};
pub use clients::files::directory::file_of;
pub use clients::files::mounts::Mounts;
pub use clients::nbd::receive_path::{ROUND as RECEIVE_PATH_ROUND, ReceivePath, ReceivePathOp};
pub use clients::nbd::world as front_world;
pub use exports::access::{AccessSpec, ListenerKind, ListenerSpec, access_warnings};
pub use exports::assemble::TenantSpec;
pub use exports::assemble::{
    AbsentExport, AssembledExport, Assembly, ExportSource, ExportSpec, NamedDevice, WatchedFile,
    check_exports,
};
pub use headworks_rbd::wait_for_closes;
pub use listen::inherited::{InheritedAddress, InheritedSocket};
pub use listen::{Address, FileOwner, PATH_MAX as SOCKET_PATH_MAX};
pub use observe::recorded_requests::{RecordedRequests, recorded_requests};
pub use observe::recorder::{Replayed, replay_recording, replay_slots};
pub use options::{
    CacheFile, ClientLimits, MissingImage, PrepareShard, ProcessContext, ServerOptions,
};
pub use reactor::shared::{VolumeProgress, VolumeStop};
pub use server::launch::sleep_precisely;
pub use server::memory::{AutoCache, CacheSize, MemoryLimit};
pub use server::{ActiveExport, Server, ShardBarrier};
pub use spec::did_you_mean::nearest_name;
pub use spec::latency_target::latency_target_word;
pub use spec::limit_words::{LIMIT_KEYS, check_limit, parse_limits, slow_limit};
pub use spec::log_level::{LOG_LEVELS, LogLevel};
pub use spec::tenant::{TenantName, TenantOptions};
pub use spec::units::{parse_size, parse_switch, parse_time};
pub use spec::{
    BASES, BaseDevice, DiskDescription, ExportOptions, Layer, Model, Spec, UncleanPolicy, Wrapper,
    is_remote_base,
};
pub use successor::handover::{
    Handover, PauseInProgress, Takeover, TakeoverStep, TakeoverSteps, UnmatchedClients,
    UpgradeHook, UpgradeRefusal, UpgradeReport, UpgradeRequest, UpgradeResult,
};
pub use successor::leftovers::Leftovers;
