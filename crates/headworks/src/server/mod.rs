//! The server: shards on threads, clients in front, devices behind.
//!
//! A device and its volumes live on one shard; a client is accepted by shard 0 and moves to its export's shard when the
//! handshake ends, so a request never changes CPU. `reactor` is the thread, `desk` its connections and rings, `listener`
//! the sockets, `assemble` what stands below, `board` what threads tell each other outside the data path, `control` the
//! operator's way in.

pub mod assemble;
mod board;
mod caching;
pub mod control;
mod desk;
mod estate;
mod given;
mod listener;
mod metrics;
mod opening;
pub(crate) mod polling;
mod reactor;
pub mod recorder;
mod reloader;
mod statistics;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use headworks_core::writeback::DirtyOptions;
use headworks_core::{
    CacheOptions, ConfigError, Control, DeviceConfig, DeviceId, ExportConfig, ExportId, Instant,
    PlugNesting, QueueOptions, Shard, ShardConfig, ShardId, Spare, Tunable, VolumeConfig, VolumeId,
    WriteMode,
};

use crate::device::Device;
use crate::engine::{self, EngineChoice, Waker};
use crate::executor::Executor;
use crate::frontend::nbd::connection::{ConnectionLimits, Door};
use crate::frontend::nbd::{BlockSizes, ExportInfo, TransmissionFlags};
use crate::memory::{Mapping, Pages, Pool, tables_in_huge_pages};
use crate::ring::{self, Sleeper};
use crate::tls::{Offer, TlsOptions};
use crate::units::display_size;
use assemble::{AssembledExport, Assembly, WatchedFile};
use board::{Board, Mail};
use control::ControlSocket;
use control::live::Live;
use control::service::{Service, Setting};
use control::tree::{DeviceEntry, ExportEntry, Tree};
use desk::{Desk, Envelope, Peer};
use estate::Estate;
use listener::Listener;
use metrics::Metrics;
pub(crate) use reactor::ServedExport;
use reactor::{Parts, Reactor};
use recorder::Recorder;

pub use control::log_level::{LOG_LEVELS, LogLevel};
pub use given::{Given, Place};
pub use listener::Address;
pub use reloader::Reloader;

/// Bios that a shard's own clients may have in flight at once.
const BIOS_MAX: u32 = 8192;
/// Room in a ring beyond bios and their answers: tag messages of up to 64 devices.
const RING_EXTRA: usize = 1024;

/// Devices that there can be: what a shard's mask has bits for.
const DEVICES_MAX: usize = 64;
/// Exports that there can be if they come and go.
const EXPORTS_MAX: usize = 1024;
/// Operations on files of devices that come later, all together; beyond that they wait in turn.
const DEPTH_SPARE: usize = 1024;

/// Nanoseconds since the server started, on the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock(std::time::Instant);

impl Clock {
    /// A clock that starts now.
    #[must_use]
    pub fn start() -> Self {
        Self(std::time::Instant::now())
    }

    /// The time.
    #[must_use]
    pub fn now(self) -> Instant {
        Instant(self.0.elapsed().as_nanos() as u64)
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
    pub control_given: Option<Given>,
    /// What shows and sets how much is logged.
    pub log_level: Option<LogLevel>,
    /// Where Prometheus asks, over TCP.
    pub metrics: Option<SocketAddr>,
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
    /// Which plug flushes when plugs nest.
    pub plug_nesting: PlugNesting,
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
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            control: None,
            control_given: None,
            log_level: None,
            metrics: None,
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
            plug_nesting: PlugNesting::default(),
            stop_ns: 60_000_000_000,
            record: None,
            live: false,
            queue: Vec::new(),
            tls: TlsOptions::default(),
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
        range("connections", self.connections, 1, desk::CONNECTIONS_MAX)?;
        range("requests", self.requests, 1, 4096)?;
        range("poll-us", self.poll_ns as usize / 1000, 0, 1000)?;
        // Two of the largest requests: one and the reserve, and one connection's share is at least one.
        range("buffers", self.buffers, 2 * Pool::LARGEST, 1 << 40)
    }
}

/// A server that runs.
pub struct Server {
    board: Arc<Board>,
    threads: Vec<JoinHandle<()>>,
    engine: String,
    cache: Option<String>,
    ports: Vec<Option<u16>>,
    broken: Arc<Mutex<Option<String>>>,
    control: Option<ControlSocket>,
    service: Arc<Service>,
    metrics: Option<Metrics>,
    offer: Option<Arc<Offer>>,
}

/// An export that is served now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportNow {
    /// Its name; `default` if it has none.
    pub name: String,
    /// Its volume, as an index of what [`Server::left`] and [`Server::unflushed`] tell.
    pub volume: usize,
    /// Clients may only read.
    pub read_only: bool,
    /// Writes need a flush to outlive a power cut.
    pub volatile: bool,
}

/// Shards that were asked for a sign of life.
///
/// A shard answers by dropping what it was sent, which it does at its next turn, and for the last time when it ends. So the
/// call is complete when nothing of it is left, and a shard that has ended is not missed.
pub struct RollCall(Receiver<std::convert::Infallible>);

impl RollCall {
    /// Whether every shard has turned, or ended, since the call.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        matches!(self.0.try_recv(), Err(TryRecvError::Disconnected))
    }
}

/// What a shard's thread is made from, before it runs.
struct Seed {
    config: ShardConfig,
    devices: Vec<Option<Box<dyn Device>>>,
    peers: Vec<Option<Peer>>,
    sleeper: Arc<Sleeper>,
    mail: Receiver<Mail>,
    listeners: Vec<Listener>,
    files: Vec<WatchedFile>,
    cpu: Option<usize>,
}

impl Server {
    /// Starts every thread; clients may connect when this returns. `ended` is called, from a thread of the server, when all
    /// shards have flushed after [`Server::stop`], or when one has broken.
    ///
    /// # Errors
    /// What is in the way, in one sentence; nothing runs then.
    pub fn start(
        assembly: Assembly,
        options: &ServerOptions,
        ended: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, ConfigError> {
        Self::start_after(assembly, options, ended, || Ok(()))
    }

    /// As [`Server::start`]; `opened` is called when every image, ring and socket is open and before any client is served:
    /// the place to give up privileges. Its error ends the start.
    ///
    /// # Errors
    /// What is in the way, in one sentence; nothing runs then.
    pub fn start_after(
        assembly: Assembly,
        options: &ServerOptions,
        ended: impl Fn() + Send + Sync + 'static,
        opened: impl FnOnce() -> Result<(), ConfigError>,
    ) -> Result<Self, ConfigError> {
        options.validate()?;
        let offer = Offer::new(&options.tls)?.map(Arc::new);
        let listeners: Vec<Listener> =
            options.listen.iter().map(Listener::bind).collect::<Result<_, _>>()?;
        let ports = listeners.iter().map(Listener::port).collect();
        let owner_only = |path| Listener::bind_unix("control", path, 0o600);
        let control = match &options.control_given {
            Some(given) => Some(Listener::adopt("control", given)?),
            None => options.control.as_deref().map(owner_only).transpose()?,
        };
        let metrics = options.metrics.map(metrics::bind).transpose()?;
        let config = topology(&assembly, options);
        config.validate()?;
        let caches = caching::divide(&config, &options.cache_wish())?;
        let exports = served_exports(&assembly, &config);
        let (boxes, mails): (Vec<Sender<Mail>>, Vec<Receiver<Mail>>) =
            (0..options.shards).map(|_| channel()).unzip();
        let board = Arc::new(Board::new(boxes, config.volumes_max(), Box::new(ended)));
        let service = Arc::new(service(&assembly, &config, options, &board));
        let seeds = seeds(assembly, &config, caches, options, mails, listeners);
        let broken = Arc::new(Mutex::new(None));
        let crew = Crew {
            options: options.clone(),
            exports,
            board: Arc::clone(&board),
            broken: Arc::clone(&broken),
            offer: offer.clone(),
        };
        let Launched { threads, engine, pages } = launch(seeds, &crew, opened)?;
        let cache = pages.map(|pages| format!("{}, {pages}", display_size(options.cache)));
        let mut server = Self {
            board,
            threads,
            engine,
            cache,
            ports,
            broken,
            control: None,
            service: Arc::clone(&service),
            metrics: None,
            offer,
        };
        if let Some(listener) = control {
            match ControlSocket::start(listener, Arc::clone(&service)) {
                Ok(control) => server.control = Some(control),
                Err(error) => {
                    server.stop();
                    let _ = server.join();
                    return Err(error);
                }
            }
        }
        if let Some(listener) = metrics {
            match Metrics::start(listener, service) {
                Ok(metrics) => server.metrics = Some(metrics),
                Err(error) => {
                    server.stop();
                    let _ = server.join();
                    return Err(error);
                }
            }
        }
        Ok(server)
    }

    /// Where scrapers are answered; none without an endpoint.
    #[must_use]
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(Metrics::address)
    }

    /// Which engine runs, and why.
    #[must_use]
    pub fn engine(&self) -> &str {
        &self.engine
    }

    /// How large the page cache is and what its memory is made of; none without one.
    #[must_use]
    pub fn cache(&self) -> Option<&str> {
        self.cache.as_deref()
    }

    /// The port of each address of the options; none for unix sockets.
    #[must_use]
    pub fn ports(&self) -> &[Option<u16>] {
        &self.ports
    }

    /// Stops: no new requests, answers for those in flight, flushes. Returns at once.
    pub fn stop(&self) {
        self.board.send_all(|| Mail::Stop);
    }

    /// Has every shard log the statistics of its volumes.
    pub fn tell_statistics(&self) {
        self.board.send_all(|| Mail::Statistics);
    }

    /// Asks every shard for a sign of life; the call's [`RollCall::is_complete`] says later whether all gave it.
    #[must_use]
    pub fn roll_call(&self) -> RollCall {
        let (copy, answered) = channel();
        self.board.send_all(|| Mail::RollCall(copy.clone()));
        RollCall(answered)
    }

    /// What reads certificates and a configuration again, from a thread of its own.
    #[must_use]
    pub fn reloader(&self) -> Reloader {
        Reloader::new(Arc::clone(&self.service), self.offer.clone())
    }

    /// Tells the shards that own the volume's device and the volume.
    pub fn control(&self, control: Control) {
        self.board.send_all(|| Mail::Control(control));
    }

    /// What is served now.
    #[must_use]
    pub fn exports(&self) -> Vec<ExportNow> {
        let tree = self.service.tree();
        let now = |entry: &ExportEntry| ExportNow {
            name: entry.shown_name().to_owned(),
            volume: entry.volume.0.into(),
            read_only: entry.read_only,
            volatile: entry.volatile,
        };
        tree.exports.iter().map(now).collect()
    }

    /// Writes by volume that finished and that no flush covers, as of a stop that is under way; none where that is not known.
    #[must_use]
    pub fn unflushed(&self) -> Vec<Option<u64>> {
        self.board.unflushed()
    }

    /// Bytes by volume that are in the cache and not in its device, as of a stop that is under way; none where nothing is cached.
    #[must_use]
    pub fn left(&self) -> Vec<Option<u64>> {
        self.board.left()
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// A shard broke, or a last flush failed.
    pub fn join(mut self) -> Result<(), String> {
        let (control, metrics) = (self.control.take(), self.metrics.take());
        let result = self.join_shards();
        // Last, so that a stop that takes long can be looked at.
        if let Some(control) = control {
            control.stop();
        }
        if let Some(metrics) = metrics {
            metrics.stop();
        }
        result
    }

    fn join_shards(self) -> Result<(), String> {
        if let Some(broken) = self.broken.lock().ok().and_then(|mut broken| broken.take()) {
            // Others may wait for the broken one's devices for ever.
            return Err(broken);
        }
        for thread in self.threads {
            if thread.join().is_err() {
                return Err("a shard's thread has died".into());
            }
        }
        match self.board.failures() {
            0 => Ok(()),
            failures => {
                Err(format!("{failures} of the last flushes failed; see the messages above"))
            }
        }
    }
}

impl ServerOptions {
    fn cache_wish(&self) -> caching::Wish {
        let Self { cache, dirty, connections, .. } = *self;
        caching::Wish { bytes: cache, dirty, connections }
    }

    /// Bios of other shards that one may have in its devices.
    fn foreign_bios(&self) -> u32 {
        if self.spread { self.bios_abroad() * (u32::from(self.shards) - 1) } else { 0 }
    }

    /// Bios that one shard may have on other shards' devices: its clients' and its cache's own.
    fn bios_abroad(&self) -> u32 {
        let units = u32::try_from(self.cache / 4096).unwrap_or(u32::MAX);
        BIOS_MAX + CacheOptions { units, ..CacheOptions::default() }.bios()
    }
}

/// Which device and volume lives where. Caches come later: they are a shard's own.
fn topology(assembly: &Assembly, options: &ServerOptions) -> ShardConfig {
    let shards = options.shards;
    let owner = |device: usize| ShardId(device as u16 % shards);
    let devices = assembly
        .devices
        .iter()
        .enumerate()
        .map(|(device, (queue, _))| DeviceConfig { owner: owner(device), queue: *queue });
    let volumes = assembly.volumes.iter().enumerate().map(|(volume, &(device, options_of))| {
        let home = if options.spread { owner(volume) } else { owner(device.0.into()) };
        let mut volume = VolumeConfig { home, device, options: options_of };
        if options.cache == 0 {
            volume.options.mode = WriteMode::None;
        }
        volume
    });
    ShardConfig {
        id: ShardId(0),
        shards,
        bios_max: BIOS_MAX + options.foreign_bios(),
        devices: devices.collect(),
        volumes: volumes.collect(),
        exports: assembly
            .exports
            .iter()
            .map(|export| ExportConfig { weight: export.weight })
            .collect(),
        plug_nesting: options.plug_nesting,
        cache: CacheOptions::default(),
        dirty: DirtyOptions::default(),
        spare: if options.live { spare(assembly) } else { Spare::default() },
    }
}

/// Places for 64 devices and 1024 exports in all, and tags for as many devices as are likely to be large.
fn spare(assembly: &Assembly) -> Spare {
    let left = |most: usize, there: usize| most.saturating_sub(there) as u16;
    let devices = left(DEVICES_MAX, assembly.devices.len());
    Spare {
        devices,
        volumes: left(EXPORTS_MAX, assembly.volumes.len()),
        exports: left(EXPORTS_MAX, assembly.exports.len()),
        tags: u32::from(devices) * QueueOptions::default().nr_requests,
    }
}

/// What the control socket knows of the rest.
fn service(
    assembly: &Assembly,
    config: &ShardConfig,
    options: &ServerOptions,
    board: &Arc<Board>,
) -> Service {
    let devices = config.devices.iter().enumerate().map(|(index, device)| {
        let volumes = config.volumes.iter().enumerate();
        let own = volumes.filter(|(_, volume)| usize::from(volume.device.0) == index);
        DeviceEntry {
            id: DeviceId(index as u16),
            owner: device.owner,
            volumes: own.map(|(volume, _)| VolumeId(volume as u16)).collect(),
        }
    });
    let exports = assembly.exports.iter().enumerate().map(|(index, export)| {
        let volume = &config.volumes[usize::from(export.volume.0)];
        ExportEntry {
            id: ExportId(index as u16),
            name: export.name.clone(),
            volume: export.volume,
            device: volume.device,
            home: volume.home,
            mode: volume.options.mode,
            on_error: volume.options.on_error,
            read_only: export.read_only || volume.options.read_only,
            volatile: config.devices[usize::from(volume.device.0)].queue.write_cache
                && !volume.options.read_only,
        }
    });
    let settings = assembly
        .exports
        .iter()
        .map(|export| Setting { weight: export.weight, ioprio: export.ioprio });
    let tree = Tree {
        devices: devices.collect(),
        exports: exports.collect(),
        caching: caching::caching_shards(config, options.cache),
    };
    let estate =
        Estate::new(assembly, config, options.spread, tree.caching.clone(), options.queue.clone());
    let (board, live) = (Arc::clone(board), Live::new(estate));
    Service::new(board, config.shards, tree, settings.collect(), options.dirty, live)
        .with_log_level(options.log_level.clone())
}

fn served_exports(assembly: &Assembly, config: &ShardConfig) -> Vec<ServedExport> {
    let served = assembly.exports.iter().enumerate().map(|(index, export)| {
        let volume = &config.volumes[usize::from(export.volume.0)];
        served(export, ExportId(index as u16), volume, volume.options.size, index as u64)
    });
    served.collect()
}

/// An export as the shards know it; its volume may have grown to `size` since it was made.
fn served(
    export: &AssembledExport,
    id: ExportId,
    volume: &VolumeConfig,
    size: u64,
    serial: u64,
) -> ServedExport {
    let read_only = export.read_only || volume.options.read_only;
    let is_cached = volume.options.mode != WriteMode::None;
    ServedExport {
        info: ExportInfo {
            name: export.name.clone(),
            description: description(&export.description, volume.options.mode),
            size,
            flags: transmission_flags(read_only, volume.options.mode),
            block_sizes: BlockSizes {
                // A cache reads what is missing around a part of a block.
                min: if is_cached { 1 } else { volume.options.block_size },
                preferred: volume.options.block_size.max(4096),
                ..BlockSizes::default()
            },
        },
        door: Door { volume: export.volume, export: id, ioprio: export.ioprio },
        shard: volume.home,
        weight: export.weight,
        serial,
    }
}

/// Clients that show an export's description show what it does not promise.
fn description(what: &str, mode: WriteMode) -> String {
    match mode {
        WriteMode::Unsafe => format!("{what}, UNSAFE: flushes and FUA promise nothing"),
        _ => what.to_owned(),
    }
}

/// Multi-conn holds for every device: a flush of a volume covers all that any connection was told is written. Where flushes
/// promise nothing, that is not promised either.
fn transmission_flags(read_only: bool, mode: WriteMode) -> TransmissionFlags {
    use TransmissionFlags as Flags;
    let mut always =
        Flags::HAS_FLAGS.with(Flags::SEND_FLUSH).with(Flags::SEND_DF).with(Flags::SEND_CACHE);
    if mode != WriteMode::Unsafe {
        always = always.with(Flags::CAN_MULTI_CONN);
    }
    if read_only {
        return always.with(Flags::READ_ONLY);
    }
    always
        .with(Flags::SEND_FUA)
        .with(Flags::SEND_TRIM)
        .with(Flags::SEND_WRITE_ZEROES)
        .with(Flags::SEND_FAST_ZERO)
}

/// One seed per shard, with the rings between them.
fn seeds(
    assembly: Assembly,
    config: &ShardConfig,
    caches: Vec<(CacheOptions, DirtyOptions)>,
    options: &ServerOptions,
    mails: Vec<Receiver<Mail>>,
    listeners: Vec<Listener>,
) -> Vec<Seed> {
    let shards = usize::from(options.shards);
    let sleepers: Vec<Arc<Sleeper>> = (0..shards).map(|_| Arc::default()).collect();
    let mut peers = rings(&sleepers, config.bios_max as usize);
    let mut seeds: Vec<Seed> = mails
        .into_iter()
        .zip(caches)
        .enumerate()
        .map(|(shard, (mail, (cache, dirty)))| Seed {
            config: ShardConfig { id: ShardId(shard as u16), cache, dirty, ..config.clone() },
            devices: Vec::new(),
            peers: std::mem::take(&mut peers[shard]),
            sleeper: Arc::clone(&sleepers[shard]),
            mail,
            listeners: Vec::new(),
            files: Vec::new(),
            cpu: options.cpus.get(shard).copied(),
        })
        .collect();
    seeds[0].listeners = listeners;
    for (index, (_, device)) in assembly.devices.into_iter().enumerate() {
        let owner = usize::from(config.devices[index].owner.0);
        seeds.iter_mut().for_each(|seed| seed.devices.push(None));
        seeds[owner].devices[index] = Some(device);
    }
    for file in assembly.files {
        let home = config.volumes[usize::from(file.volume.0)].home;
        seeds[usize::from(home.0)].files.push(file);
    }
    seeds
}

/// The ends of the rings between every two shards, by shard, then by peer.
fn rings(sleepers: &[Arc<Sleeper>], bios_max: usize) -> Vec<Vec<Option<Peer>>> {
    let shards = sleepers.len();
    // A bio out, and two answers at most for each that came in: one early, one when its memory is free.
    let capacity = 3 * bios_max + RING_EXTRA;
    let mut producers: Vec<Vec<Option<ring::Producer<Envelope>>>> = Vec::new();
    let mut consumers: Vec<Vec<Option<ring::Consumer<Envelope>>>> = Vec::new();
    for _ in 0..shards {
        producers.push((0..shards).map(|_| None).collect());
        consumers.push((0..shards).map(|_| None).collect());
    }
    for from in 0..shards {
        for to in (0..shards).filter(|&to| to != from) {
            let (producer, consumer) = ring::ring(capacity, &sleepers[to]);
            producers[from][to] = Some(producer);
            consumers[to][from] = Some(consumer);
        }
    }
    let ends = producers.into_iter().zip(consumers);
    let pair = |(producer, consumer)| match (producer, consumer) {
        (Some(producer), Some(consumer)) => {
            Some(Peer { producer, consumer, outbox: Vec::with_capacity(1024) })
        }
        _ => None,
    };
    ends.map(|(producers, consumers)| producers.into_iter().zip(consumers).map(pair).collect())
        .collect()
}

/// What all threads share.
struct Crew {
    options: ServerOptions,
    exports: Vec<ServedExport>,
    board: Arc<Board>,
    broken: Arc<Mutex<Option<String>>>,
    offer: Option<Arc<Offer>>,
}

/// What a shard's thread has when it is ready to run.
struct Opened {
    engine: String,
    waker: Waker,
    pages: Option<Pages>,
}

/// The threads, and what they have.
struct Launched {
    threads: Vec<JoinHandle<()>>,
    engine: String,
    /// What caches are made of, the least of them; none if there is none.
    pages: Option<Pages>,
}

type Opening = (usize, Result<Opened, ConfigError>);

/// Starts the threads, waits until every engine is open, calls `before`, then lets them run.
fn launch(
    seeds: Vec<Seed>,
    crew: &Crew,
    before: impl FnOnce() -> Result<(), ConfigError>,
) -> Result<Launched, ConfigError> {
    let (opened, openings) = channel::<Opening>();
    let (mut threads, mut starts) = (Vec::new(), Vec::new());
    for (shard, seed) in seeds.into_iter().enumerate() {
        let (start, started) = channel::<Vec<Waker>>();
        let opened = opened.clone();
        let crew = Crew {
            options: crew.options.clone(),
            exports: crew.exports.clone(),
            board: Arc::clone(&crew.board),
            broken: Arc::clone(&crew.broken),
            offer: crew.offer.clone(),
        };
        let thread = std::thread::Builder::new()
            .name(format!("shard-{shard}"))
            .spawn(move || live(shard, seed, &crew, &opened, &started))
            .map_err(|error| {
                ConfigError::new("shards", format!("cannot start a thread: {error}"))
            })?;
        threads.push(thread);
        starts.push(start);
    }
    drop(opened);
    let mut wakers: Vec<Option<Waker>> = starts.iter().map(|_| None).collect();
    let (mut line, mut pages) = (String::new(), None);
    for _ in 0..starts.len() {
        let died = |_| ConfigError::new("shards", "a thread died at its start");
        let (shard, result) = openings.recv().map_err(died)?;
        let opened = result?;
        line = opened.engine;
        pages = pages.max(opened.pages);
        wakers[shard] = Some(opened.waker);
    }
    let wakers: Vec<Waker> = wakers.into_iter().flatten().collect();
    crew.board.set_wakers(wakers.clone());
    if let Err(error) = before() {
        drop(starts);
        // They end, with what they opened; one that has died has nothing to say.
        threads.into_iter().for_each(|thread| drop(thread.join()));
        return Err(error);
    }
    for start in starts {
        // A thread that is gone shows in `join`.
        let _ = start.send(wakers.clone());
    }
    Ok(Launched { threads, engine: line, pages })
}

/// A shard's thread, from its engine to its end.
fn live(
    shard: usize,
    seed: Seed,
    crew: &Crew,
    opened: &Sender<Opening>,
    started: &Receiver<Vec<Waker>>,
) {
    if let Some(cpu) = seed.cpu {
        pin(cpu);
    }
    let parts = match prepare(seed, crew) {
        Ok(parts) => parts,
        Err(error) => {
            let _ = opened.send((shard, Err(error)));
            return;
        }
    };
    let (mut parts, engine, pages) = parts;
    let waker = parts.engine.waker();
    let _ = opened.send((shard, Ok(Opened { engine, waker, pages })));
    // Without a start another shard failed, and the server does not come to be.
    let Ok(wakers) = started.recv() else { return };
    parts.wakers = wakers;
    let mut reactor = Reactor::new(parts);
    if let Err(error) = reactor.run() {
        tracing::error!("shard {shard} cannot go on: {error}");
        if let Ok(mut broken) = crew.broken.lock() {
            *broken = Some(format!("shard {shard} cannot go on: {error}"));
        }
        // Other shards' devices may still use our buffers.
        reactor.abandon();
        crew.board.break_off();
    }
}

fn prepare(seed: Seed, crew: &Crew) -> Result<(Parts, String, Option<Pages>), ConfigError> {
    let Seed { config, devices, peers, sleeper, mail, listeners, files, .. } = seed;
    let options = &crew.options;
    let id = config.id;
    let disk_depth: usize = config
        .devices
        .iter()
        .filter(|device| device.owner == id)
        .map(|device| device.queue.queue_depth as usize + 64)
        .sum();
    let disk_depth = disk_depth + if options.live { DEPTH_SPARE } else { 0 };
    let (engine, line) = engine::open(options.engine, disk_depth.max(1))?;
    let pool = Pool::new(options.buffers).map_err(|error| {
        ConfigError::new("buffers", format!("cannot map {}: {error}", options.buffers))
    })?;
    let (frames, pages) = map_frames(&config.cache)?.unzip();
    let recorder = options.record.as_ref().map(|path| open_record(path, &config)).transpose()?;
    let volumes = (0..config.volumes.len() as u16)
        .map(VolumeId)
        .filter(|volume| config.volumes[usize::from(volume.0)].home == id)
        .collect();
    let limits = ConnectionLimits {
        requests: options.requests,
        buffer_bytes: options.buffers / 2,
        handshake_ns: options.handshake_ns,
        stall_ns: options.stall_ns,
    };
    let shard = Shard::new(config.clone())?;
    tables_in_huge_pages(shard.cache_tables());
    let parts = Parts {
        id,
        clock: Clock::start(),
        shard,
        executor: Executor::new(devices),
        engine,
        desk: Desk::new(id, options.connections, pool, frames, peers),
        sleeper,
        wakers: Vec::new(),
        mail,
        board: Arc::clone(&crew.board),
        exports: crew.exports.clone(),
        listeners,
        files,
        volumes,
        limits,
        offer: crew.offer.clone(),
        poll_ns: options.poll_ns,
        reserve: options.foreign_bios(),
        stop_ns: options.stop_ns,
        recorder,
    };
    Ok((parts, line, pages))
}

/// The frames of a cache, if there is one. They cost nothing until they are used.
///
/// # Errors
/// The kernel has no address space for them.
pub fn map_frames(cache: &CacheOptions) -> Result<Option<(Mapping, Pages)>, ConfigError> {
    if !cache.is_on() {
        return Ok(None);
    }
    let bytes = cache.units as usize * 4096;
    Mapping::huge(bytes).map(Some).map_err(|error| {
        ConfigError::new("cache", format!("cannot map {}: {error}", display_size(bytes as u64)))
    })
}

fn open_record(path: &std::path::Path, config: &ShardConfig) -> Result<Recorder, ConfigError> {
    let mut name = path.as_os_str().to_owned();
    if config.id.0 > 0 {
        name.push(format!(".{}", config.id.0));
    }
    Recorder::create(name.as_ref(), config).map_err(|error| {
        ConfigError::new("record", format!("cannot write {}: {error}", name.to_string_lossy()))
    })
}

/// Keeps the calling thread on one CPU; a wish, not a promise.
pub fn pin(cpu: usize) {
    // SAFETY: an all-zero set is an empty one, and the call reads it only.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu % libc::CPU_SETSIZE as usize, &mut set);
        if libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) != 0 {
            tracing::warn!("cannot stay on CPU {cpu}: {}", std::io::Error::last_os_error());
        }
    }
}
