//! How to serve: every number with its default and its range.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use headworks_core::writeback::DirtyOptions;
use headworks_core::{CacheOptions, ConfigError, Shard, Tunable};

use super::assemble::cache_shares;
use super::connection_id::CONNECTIONS_MAX;
use super::{Address, InheritedSocket, LogLevel};
use headworks::EngineChoice;
use headworks::driver::Pool;
use headworks_nbd::tls::TlsOptions;

/// Bios that a shard's own clients may have in flight at once.
pub(super) const BIOS_MAX: u32 = 8192;

/// A function that is called once with each new shard, before the shard handles any input; by default it does nothing.
///
/// For experiments: it may give a device another tag policy or elevator ([`Shard::set_tags`], [`Shard::set_elevator`]). A
/// record of such a shard does not replay with the usual ones.
#[derive(Clone, Default)]
pub struct PrepareShard(Option<Arc<ShardFn>>);

type ShardFn = dyn Fn(&mut Shard) + Send + Sync;

impl PrepareShard {
    /// Wraps a function.
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

/// How to serve.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where clients connect.
    pub listen: Vec<Address>,
    /// Where the operator connects: a unix socket for its owner alone.
    pub control: Option<PathBuf>,
    /// A socket that listens already, instead of `control`.
    pub control_given: Option<InheritedSocket>,
    /// What shows and sets how much is logged.
    pub log_level: Option<LogLevel>,
    /// Where Prometheus asks, over TCP.
    pub metrics: Option<SocketAddr>,
    /// A TCP socket that listens already, instead of `metrics`.
    pub metrics_given: Option<InheritedSocket>,
    /// Threads. 1: on few CPUs a second one only costs wake-ups.
    pub shards: u16,
    /// Spread volumes over all shards instead of keeping each with its device.
    pub spread: bool,
    /// CPUs for the shards, in order; empty leaves the choice to the kernel.
    pub cpus: Vec<usize>,
    /// Which engine.
    pub engine: EngineChoice,
    /// Look this long before sleeping; 0 never. 50 us: a client on another CPU takes about 25 to wake up and as long to ask
    /// again (measured: 20 misses it, 100 gains nothing).
    pub poll_ns: u64,
    /// Bytes of buffers, for each shard.
    pub buffers: usize,
    /// Bytes of the page cache, all shards together; 0: none.
    pub cache: u64,
    /// How much of it may be dirty, all shards together, and when writers wait.
    pub dirty: DirtyOptions,
    /// Clients at once, for each shard.
    pub connections: usize,
    /// Requests of one client in flight.
    pub requests: usize,
    /// A handshake takes no longer.
    pub handshake_ns: u64,
    /// A client that reads or sends nothing of what is under way for this long is closed.
    pub stall_ns: u64,
    /// A stop that takes longer leaves what is not written; 0: however long it takes.
    pub stop_ns: u64,
    /// Write all inputs there; shards beyond the first add `.N`.
    pub record: Option<PathBuf>,
    /// Exports may come and go while it runs: places are kept for 64 devices and 1024 exports in all.
    pub live: bool,
    /// Options of every queue, also of those that come later.
    pub queue: Vec<(Tunable, u64)>,
    /// Whether and how clients encrypt.
    pub tls: TlsOptions,
    /// Changes each shard before its first input.
    pub prepare_shard: PrepareShard,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            control: None,
            control_given: None,
            log_level: None,
            metrics: None,
            metrics_given: None,
            shards: 1,
            spread: false,
            cpus: Vec::new(),
            engine: EngineChoice::Auto,
            poll_ns: 50_000,
            buffers: 128 << 20,
            cache: 0,
            dirty: DirtyOptions::default(),
            connections: 1024,
            requests: 128,
            handshake_ns: 10_000_000_000,
            stall_ns: 60_000_000_000,
            stop_ns: 60_000_000_000,
            record: None,
            live: false,
            queue: Vec::new(),
            tls: TlsOptions::default(),
            prepare_shard: PrepareShard::default(),
        }
    }
}

impl ServerOptions {
    /// Checks every range once.
    ///
    /// # Errors
    /// The first option out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let range = |name, value: usize, low: usize, high: usize| {
            if (low..=high).contains(&value) {
                return Ok(());
            }
            Err(ConfigError::new(name, format!("{value} is not within {low}..={high}")))
        };
        range("shards", self.shards.into(), 1, 64)?;
        range("connections", self.connections, 1, CONNECTIONS_MAX)?;
        range("requests", self.requests, 1, 4096)?;
        range("poll-us", self.poll_ns as usize / 1000, 0, 1000)?;
        // Of a stop 0 is however long. Here it would end every client at the next tick.
        let patience = [("handshake-timeout", self.handshake_ns), ("stall-timeout", self.stall_ns)];
        if let Some((name, _)) = patience.into_iter().find(|(_, ns)| *ns == 0) {
            let message = "0 would disconnect every client at once; use 10s or more";
            return Err(ConfigError::new(name, message));
        }
        // Two of the largest requests: one and the reserve, and one connection's share is at least one.
        range("buffers", self.buffers, 2 * Pool::LARGEST, 1 << 40)
    }
}

impl ServerOptions {
    pub(super) fn cache_spec(&self) -> cache_shares::CacheSpec {
        let Self { cache, dirty, connections, .. } = *self;
        cache_shares::CacheSpec { bytes: cache, dirty, connections }
    }

    /// Bios of other shards that one may have in its devices.
    pub(super) fn foreign_bios(&self) -> u32 {
        if self.spread { self.bios_abroad() * (u32::from(self.shards) - 1) } else { 0 }
    }

    /// Bios that one shard may have on other shards' devices: its clients' and its cache's own.
    pub(super) fn bios_abroad(&self) -> u32 {
        let units = u32::try_from(self.cache / 4096).unwrap_or(u32::MAX);
        BIOS_MAX + CacheOptions { units, ..CacheOptions::default() }.bios()
    }
}
