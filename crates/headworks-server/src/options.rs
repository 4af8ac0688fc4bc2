//! Options of a server with their defaults and ranges.

use std::fmt;
use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use headworks_core::limits::Limits;
use headworks_core::writeback::DirtyOptions;
use headworks_core::{CacheOptions, ConfigError, Shard, Tunable};

use crate::change::configured::LoadedConfiguration;
use crate::change::reload_request::ReloadHook;
use crate::clients::connection_id::CONNECTIONS_MAX;
use crate::clients::files::mounts::Mounts;
use crate::clients::nbd::connection::ConnectionLimits;
use crate::exports::access::{AccessSpec, LISTENERS_MAX};
use crate::exports::assemble::TenantSpec;
use crate::exports::assemble::cache_shares;
use crate::server::memory::AutoCache;
use crate::successor::leftovers::Leftovers;
use crate::{Address, InheritedSocket, LogLevel, Takeover, UpgradeHook};
use headworks::EngineChoice;
use headworks::house::display_size;
use headworks_house::Pool;
use headworks_nbd::tls::TlsOptions;

/// Bios in flight of one shard's own clients.
pub(crate) const BIOS_MAX: u32 = 8192;

/// A function that is called once with each new shard, before the shard handles any input; by default it does nothing.
///
/// For experiments: it may give a device another tag policy or elevator ([`Shard::set_tags`], [`Shard::set_elevator`]). A
/// record of such a shard does not replay with the usual ones.
#[derive(Clone, Default)]
pub struct PrepareShard(Option<Arc<ShardFn>>);

type ShardFn = dyn Fn(&mut Shard) + Send + Sync;

impl PrepareShard {
    /// Wraps a function over shards.
    pub fn new(prepare: impl Fn(&mut Shard) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(prepare)))
    }

    /// Calls the function with `shard`.
    pub fn call(&self, shard: &mut Shard) {
        if let Some(prepare) = &self.0 {
            prepare(shard);
        }
    }
}

impl fmt::Debug for PrepareShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "PrepareShard(set)" } else { "PrepareShard(none)" })
    }
}

/// An empty file in memory that a server makes its cache's memory: a memfd, or one on tmpfs or hugetlbfs.
#[derive(Clone, Debug)]
pub struct CacheFile {
    /// The file, opened for reading and writing.
    pub file: Arc<File>,
    /// Its name for messages.
    pub name: String,
    /// A server that cannot use it does not start; otherwise it says so and takes anonymous memory.
    pub required: bool,
}

/// Options of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Addresses on which NBD clients connect and are offered every export.
    pub listen: Vec<Address>,
    /// Listeners that offer exports of their own, and the certificates that exports need.
    pub access: AccessSpec,
    /// Path of the control socket, which only its owner may use.
    pub control: Option<PathBuf>,
    /// TCP address of the metrics endpoint.
    pub metrics: Option<SocketAddr>,
    /// Number of shards, each with a thread of its own; on few CPUs one is best.
    pub shards: u16,
    /// Spreads volumes over all shards instead of placing each with its device.
    pub spread: bool,
    /// CPUs of the shards in order; empty for no affinity.
    pub cpus: Vec<usize>,
    /// Engine for file and socket I/O.
    pub engine: EngineChoice,
    /// Time of polling before a sleep; 0 disables polling. 50 us: a client on another CPU wakes up in about 25 us and
    /// takes as long to send the next request (measured: 20 is too short, 100 gains nothing).
    pub poll_ns: u64,
    /// Bytes of request buffers for each shard.
    pub buffers: usize,
    /// Bytes of the page cache of all shards together; 0 disables it.
    pub cache: u64,
    /// Bounds of a cache of automatic size, whose room `cache` is; none for a fixed size.
    pub auto_cache: Option<AutoCache>,
    /// Limits of bytes and I/Os a second of all clients together.
    pub limits: Limits,
    /// Dirty limits and throttling of all shards together.
    pub dirty: DirtyOptions,
    /// What clients may take.
    pub clients: ClientLimits,
    /// Time limit of a shutdown; 0 is no limit. Data not written by then stay in memory and are lost.
    pub stop_ns: u64,
    /// File for the record of all inputs; further shards append `.N` to its name.
    pub record: Option<PathBuf>,
    /// Allows hot-add and hot-remove: reserves 64 devices and 1024 exports in all.
    pub live: bool,
    /// What a missing image of a reloaded configuration means.
    pub missing: MissingImage,
    /// Tenants; their order gives their numbers.
    pub tenants: Vec<TenantSpec>,
    /// Options of every queue, including those of devices added later.
    pub queue: Vec<(Tunable, u64)>,
    /// Mode and certificates of TLS.
    pub tls: TlsOptions,
    /// What the process hands to the server.
    pub process: ProcessContext,
}

/// What a process hands to its server, and no operator configures: what it has inherited or opened, and what it does when asked.
#[derive(Clone, Debug, Default)]
pub struct ProcessContext {
    /// An inherited socket that replaces [`ServerOptions::control`].
    pub control: Option<InheritedSocket>,
    /// An inherited TCP socket that replaces [`ServerOptions::metrics`].
    pub metrics: Option<InheritedSocket>,
    /// Shows and sets the log level.
    pub log_level: Option<LogLevel>,
    /// Memory of the cache that outlives the process; none for anonymous memory.
    pub cache_file: Option<CacheFile>,
    /// What earlier servers left.
    pub leftovers: Leftovers,
    /// A running server that this one replaces.
    pub takeover: Option<Takeover>,
    /// Takes requests of the control socket for an upgrade; without it they are refused.
    pub upgrade: Option<UpgradeHook>,
    /// Takes requests of the control socket for a reload; without it they are refused.
    pub reload: Option<ReloadHook>,
    /// The configuration file, for `diff`; nothing reads it.
    pub config: Option<PathBuf>,
    /// What files and command line say, for `diff` and reloads; none if it is what the server starts with.
    pub loaded: Option<LoadedConfiguration>,
    /// Changes each shard before its first input.
    pub prepare_shard: PrepareShard,
    /// Mounts files of FUSE; without it there are none.
    pub mounts: Option<Arc<dyn Mounts>>,
}

/// What clients may take.
#[derive(Clone, Copy, Debug)]
pub struct ClientLimits {
    /// Connections of each shard.
    pub connections: usize,
    /// Requests in flight of each connection.
    pub requests: usize,
    /// Time limit of a handshake.
    pub handshake_ns: u64,
    /// Time limit of a request or reply without progress.
    pub stall_ns: u64,
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self {
            connections: 1024,
            requests: 128,
            handshake_ns: 10_000_000_000,
            stall_ns: 60_000_000_000,
        }
    }
}

impl ClientLimits {
    fn validate(&self) -> Result<(), ConfigError> {
        range("connections", self.connections, 1, CONNECTIONS_MAX)?;
        range("requests", self.requests, 1, 4096)?;
        // For the shutdown 0 is no limit; here it would end every client at the next tick.
        let patience = [("handshake-timeout", self.handshake_ns), ("stall-timeout", self.stall_ns)];
        if let Some((name, _)) = patience.into_iter().find(|(_, ns)| *ns == 0) {
            let message = "0 would disconnect every client at once; use 10s or more";
            return Err(ConfigError::new(name, message));
        }
        Ok(())
    }
}

/// What a missing image means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingImage {
    /// No export is served.
    Refuse,
    /// Its export is absent, the others are served.
    Absent,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            access: AccessSpec::default(),
            control: None,
            metrics: None,
            shards: 1,
            spread: false,
            cpus: Vec::new(),
            engine: EngineChoice::Auto,
            poll_ns: 50_000,
            buffers: 128 << 20,
            cache: 0,
            auto_cache: None,
            limits: Limits::default(),
            dirty: DirtyOptions::default(),
            clients: ClientLimits::default(),
            stop_ns: 60_000_000_000,
            record: None,
            live: false,
            missing: MissingImage::Absent,
            tenants: Vec::new(),
            queue: Vec::new(),
            tls: TlsOptions::default(),
            process: ProcessContext::default(),
        }
    }
}

fn range(name: &'static str, value: usize, low: usize, high: usize) -> Result<(), ConfigError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(ConfigError::new(name, format!("{value} is not within {low}..={high}")))
}

impl ServerOptions {
    /// Bytes of the cache to which the ratios of dirty data refer.
    #[must_use]
    pub fn dirtyable(&self) -> u64 {
        match self.auto_cache {
            Some(_) => self.cache.min(AutoCache::DIRTYABLE),
            None => self.cache,
        }
    }

    /// Validates every option.
    ///
    /// # Errors
    /// The first option out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        range("shards", self.shards.into(), 1, 64)?;
        let listeners = self.listen.len() + self.access.listeners.len();
        range("listen", listeners, 0, LISTENERS_MAX)?;
        self.clients.validate()?;
        range("poll-us", self.poll_ns as usize / 1000, 0, 1000)?;
        // Room for two of the largest requests: one, and the reserve.
        let (least, most) = (2 * Pool::LARGEST, 1 << 40);
        if (least..=most).contains(&self.buffers) {
            return Ok(());
        }
        let [value, least, most] =
            [self.buffers, least, most].map(|bytes| display_size(bytes as u64));
        Err(ConfigError::new("buffers", format!("{value} is not within {least} to {most}")))
    }

    /// Bounds of each connection.
    pub(crate) fn connection_limits(&self) -> ConnectionLimits {
        ConnectionLimits {
            requests: self.clients.requests,
            buffer_bytes: self.buffers / 2,
            handshake_ns: self.clients.handshake_ns,
            stall_ns: self.clients.stall_ns,
        }
    }

    pub(crate) fn cache_spec(&self) -> cache_shares::CacheSpec {
        let Self { cache, dirty, clients: ClientLimits { connections, .. }, .. } = *self;
        cache_shares::CacheSpec { bytes: cache, dirty, dirtyable: self.dirtyable(), connections }
    }

    /// Bios of other shards that this shard's devices may have.
    pub(crate) fn foreign_bios(&self) -> u32 {
        if self.spread { self.bios_abroad() * (u32::from(self.shards) - 1) } else { 0 }
    }

    /// Bios that one shard may have on other shards' devices: its clients' and its cache's.
    pub(crate) fn bios_abroad(&self) -> u32 {
        let units = u32::try_from(self.cache / 4096).unwrap_or(u32::MAX);
        BIOS_MAX + CacheOptions { units, ..CacheOptions::default() }.bios()
    }
}
