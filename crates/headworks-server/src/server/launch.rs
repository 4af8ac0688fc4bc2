//! Starts the shards' threads: their parts, the rings between them, and a common start.
//!
//! ```text
//! seeds (per shard) --threads--> prepare: engine, buffers, cache --ready--> all ready? --before()--> run
//!                                     `-- one fails: none runs, and its error is returned
//! ```

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use headworks_core::writeback::DirtyOptions;
use headworks_core::{CacheOptions, ConfigError, Shard, ShardConfig, ShardId, VolumeId};

use crate::exports::access::AccessRules;
use crate::exports::assemble::cache_shares;
use crate::exports::assemble::export_info::ServedExport;
use crate::exports::assemble::parts_of_blocks::{partial_volumes, taking_parts};
use crate::exports::assemble::{Assembly, ImageWatcher, WatchedFile};
use crate::listen::ClientListener;
use crate::observe::recorder::Recorder;
use crate::options::ServerOptions;
use crate::reactor::driver::ShardDriver;
use crate::reactor::messages::ControlMessage;
use crate::reactor::restores::Restores;
use crate::reactor::shard_io::{Envelope, Peer, ShardIo};
use crate::reactor::shared::ServerShared;
use crate::reactor::{Reactor, ReactorParts};
use crate::server::memory::start_populator;
use crate::spec::cache_part::{CachePart, set_parts};
use headworks::Device;
use headworks::driver::{Clock, Executor, Waker, open_engine};
use headworks::house::{
    Consumer, Mapping, Populator, Producer, Sleeper, display_size, pin_thread, ring,
};
use headworks_cache_memory::{DirtyLog, ShardMemory};
use headworks_house::Pool;

/// Ring entries beyond bios and their completions: tag messages of up to 64 devices.
const RING_EXTRA: usize = 1024;
/// Engine depth reserved for devices that are added later; operations beyond it wait.
const DEPTH_SPARE: usize = 1024;

/// Everything that a shard's thread is made from.
pub(crate) struct ShardSeed {
    config: ShardConfig,
    devices: Vec<Option<Box<dyn Device>>>,
    peers: Vec<Option<Peer>>,
    sleeper: Arc<Sleeper>,
    mail: Receiver<ControlMessage>,
    listeners: Vec<Option<ClientListener>>,
    files: Vec<WatchedFile>,
    cpu: Option<usize>,
    /// What dead servers left of this shard's volumes.
    restores: Option<Restores>,
}

impl ShardSeed {
    /// Gives the shard what it has to restore before clients are served.
    pub fn set_restores(&mut self, restores: Restores) {
        self.restores = Some(restores);
    }
}

/// Makes one seed per shard, and the rings between them.
pub(crate) fn seeds(
    assembly: Assembly,
    config: &ShardConfig,
    caches: Vec<(CacheOptions, DirtyOptions)>,
    options: &ServerOptions,
    mails: Vec<Receiver<ControlMessage>>,
    listeners: Vec<ClientListener>,
) -> Vec<ShardSeed> {
    let shards = usize::from(options.shards);
    let sleepers: Vec<Arc<Sleeper>> = (0..shards).map(|_| Arc::default()).collect();
    let mut peers = rings(&sleepers, config.bios_max as usize);
    let volumes: Vec<VolumeId> = assembly.exports.iter().map(|export| export.volume).collect();
    let caching = cache_shares::caching_shards(config, options.cache);
    let parts: Vec<CachePart> = options.tenants.iter().map(|one| one.options.part).collect();
    let origins = assembly.origins;
    let of_shard = |shard: usize, cache, dirty| {
        let mut own = ShardConfig { id: ShardId(shard as u16), cache, dirty, ..config.clone() };
        set_parts(&mut own, &volumes, &parts, &caching);
        own
    };
    let mut seeds: Vec<ShardSeed> = mails
        .into_iter()
        .zip(caches)
        .enumerate()
        .map(|(shard, (mail, (cache, dirty)))| ShardSeed {
            config: of_shard(shard, cache, dirty),
            devices: Vec::new(),
            peers: std::mem::take(&mut peers[shard]),
            sleeper: Arc::clone(&sleepers[shard]),
            mail,
            listeners: Vec::new(),
            files: Vec::new(),
            cpu: options.cpus.get(shard).copied(),
            restores: None,
        })
        .collect();
    seeds[0].listeners = listeners.into_iter().map(Some).collect();
    for (index, (_, device)) in assembly.devices.into_iter().enumerate() {
        let owner = usize::from(config.devices[index].owner.0);
        let is_joined = assembly.common[index].is_some();
        let device = taking_parts(device, partial_volumes(index, config, &origins), is_joined);
        seeds.iter_mut().for_each(|seed| seed.devices.push(None));
        seeds[owner].devices[index] = Some(device);
    }
    for file in assembly.files {
        let home = config.volumes[usize::from(file.volume.0)].home;
        seeds[usize::from(home.0)].files.push(file);
    }
    seeds
}

/// Rings between every two shards, indexed by shard, then by peer.
fn rings(sleepers: &[Arc<Sleeper>], bios_max: usize) -> Vec<Vec<Option<Peer>>> {
    let shards = sleepers.len();
    // A bio out, and at most two completions for each one in: an early one, and one that frees its memory.
    let capacity = 3 * bios_max + RING_EXTRA;
    let mut producers: Vec<Vec<Option<Producer<Envelope>>>> = Vec::new();
    let mut consumers: Vec<Vec<Option<Consumer<Envelope>>>> = Vec::new();
    for _ in 0..shards {
        producers.push((0..shards).map(|_| None).collect());
        consumers.push((0..shards).map(|_| None).collect());
    }
    for from in 0..shards {
        for to in (0..shards).filter(|&to| to != from) {
            let (producer, consumer) = ring(capacity, &sleepers[to]);
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

/// Parts that all threads share.
pub(crate) struct ThreadSetup {
    pub options: ServerOptions,
    pub exports: Vec<ServedExport>,
    pub shared: Arc<ServerShared>,
    pub broken: Arc<Mutex<Option<String>>>,
    pub access: Vec<Arc<AccessRules>>,
    /// Clients are accepted from the start.
    pub listens: bool,
    pub watcher: ImageWatcher,
}

/// A shard's thread that is ready to run.
struct ReadyShard {
    engine: String,
    waker: Waker,
    pages: Option<&'static str>,
}

/// Running threads and what they use.
pub(crate) struct Launched {
    pub threads: Vec<JoinHandle<()>>,
    pub engine: String,
    /// The kinds of pages of the caches; none without a cache.
    pub pages: Option<String>,
}

type StartResult = (usize, Result<ReadyShard, ConfigError>);

/// Starts the threads, waits until every engine is open, calls `before`, then lets them run.
pub(crate) fn launch(
    seeds: Vec<ShardSeed>,
    setup: &ThreadSetup,
    before: impl FnOnce() -> Result<(), ConfigError>,
) -> Result<Launched, ConfigError> {
    let (opened, openings) = channel::<StartResult>();
    let (mut threads, mut starts) = (Vec::new(), Vec::new());
    for (shard, seed) in seeds.into_iter().enumerate() {
        let (start, started) = channel::<Vec<Waker>>();
        let opened = opened.clone();
        let setup = ThreadSetup {
            options: setup.options.clone(),
            exports: setup.exports.clone(),
            shared: Arc::clone(&setup.shared),
            broken: Arc::clone(&setup.broken),
            access: setup.access.clone(),
            listens: setup.listens,
            watcher: setup.watcher.clone(),
        };
        let thread = std::thread::Builder::new()
            .name(format!("shard-{shard}"))
            .spawn(move || live(shard, seed, &setup, &opened, &started))
            .map_err(|error| {
                ConfigError::new("shards", format!("cannot start a thread: {error}"))
            })?;
        threads.push(thread);
        starts.push(start);
    }
    drop(opened);
    let mut wakers: Vec<Option<Waker>> = starts.iter().map(|_| None).collect();
    let (mut line, mut pages) = (String::new(), Vec::new());
    for _ in 0..starts.len() {
        let died = |_| ConfigError::new("shards", "a thread panicked at its start");
        let (shard, result) = openings.recv().map_err(died)?;
        let opened = result?;
        line = opened.engine;
        pages.extend(opened.pages.filter(|kind| !pages.contains(kind)));
        wakers[shard] = Some(opened.waker);
    }
    let wakers: Vec<Waker> = wakers.into_iter().flatten().collect();
    setup.shared.set_wakers(wakers.clone());
    if let Err(error) = before() {
        drop(starts);
        // They release what they opened.
        threads.into_iter().for_each(|thread| drop(thread.join()));
        return Err(error);
    }
    for start in starts {
        // A thread that died shows in `join`.
        let _ = start.send(wakers.clone());
    }
    let pages = (!pages.is_empty()).then(|| pages.join(" and "));
    Ok(Launched { threads, engine: line, pages })
}

/// Lets the timers of the calling thread expire on time: by default the kernel may delay them by 50 us.
pub fn sleep_precisely() {
    // SAFETY: the call takes a number and changes nothing but the calling thread's slack. Without it sleeps are a little longer.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
}

/// Body of a shard's thread.
fn live(
    shard: usize,
    seed: ShardSeed,
    setup: &ThreadSetup,
    opened: &Sender<StartResult>,
    started: &Receiver<Vec<Waker>>,
) {
    if let Some(cpu) = seed.cpu {
        pin_thread(cpu);
    }
    sleep_precisely();
    let parts = match prepare(seed, setup) {
        Ok(parts) => parts,
        Err(error) => {
            let _ = opened.send((shard, Err(error)));
            return;
        }
    };
    let (mut parts, engine, pages) = parts;
    let waker = parts.engine.waker();
    let _ = opened.send((shard, Ok(ReadyShard { engine, waker, pages })));
    // Without a start message another shard failed, and no thread runs.
    let Ok(wakers) = started.recv() else { return };
    parts.wakers = wakers;
    let mut reactor = Reactor::new(parts);
    if let Err(error) = reactor.run() {
        tracing::error!("shard {shard} failed: {error}");
        if let Ok(mut broken) = setup.broken.lock() {
            *broken = Some(format!("shard {shard} failed: {error}"));
        }
        // Devices of other shards may still use this shard's buffers.
        reactor.abandon();
        setup.shared.break_off();
    }
}

fn prepare(
    seed: ShardSeed,
    setup: &ThreadSetup,
) -> Result<(ReactorParts, String, Option<&'static str>), ConfigError> {
    let ShardSeed { config, devices, peers, sleeper, mail, listeners, files, restores, .. } = seed;
    let options = &setup.options;
    let id = config.id;
    let disk_depth: usize = config
        .devices
        .iter()
        .filter(|device| device.owner == id)
        .map(|device| device.queue.queue_depth as usize + 64)
        .sum();
    let has_spare_devices = config.spare.devices > 0;
    let disk_depth = disk_depth + if has_spare_devices { DEPTH_SPARE } else { 0 };
    let (engine, line) = open_engine(options.engine, disk_depth.max(1))?;
    let ShardStorage { pool, frames, pages, log, populator } = storage(&config, setup)?;
    let recorder = options.record.as_ref().map(|path| open_record(path, &config)).transpose()?;
    let volumes = (0..config.volumes.len() as u16)
        .map(VolumeId)
        .filter(|volume| config.volumes[usize::from(volume.0)].home == id)
        .collect();
    let limits = options.connection_limits();
    let mut shard = Shard::new(config.clone())?;
    options.process.prepare_shard.call(&mut shard);
    Mapping::tables_in_huge_pages(shard.cache_tables());
    let executor = Executor::with_log(devices, log);
    let parts = ReactorParts {
        id,
        clock: Clock::start(),
        driver: ShardDriver::new(shard, executor, recorder),
        engine,
        io: ShardIo::new(
            id,
            options.clients.connections,
            pool,
            (frames, populator),
            peers,
            options.foreign_bios() as usize,
        ),
        sleeper,
        wakers: Vec::new(),
        mailbox: mail,
        shared: Arc::clone(&setup.shared),
        exports: setup.exports.clone(),
        listeners,
        files,
        watcher: setup.watcher.clone(),
        volumes,
        server_limits: options.limits,
        tenant_limits: options
            .tenants
            .iter()
            .map(|tenant| (tenant.options.weight, tenant.options.limits))
            .collect(),
        limits,
        access: setup.access.clone(),
        poll_ns: options.poll_ns,
        reserve: options.foreign_bios(),
        stop_ns: options.stop_ns,
        restores,
        listens: setup.listens,
    };
    Ok((parts, line, pages))
}

/// Frames and request buffers of a shard.
struct ShardStorage {
    pool: Pool,
    frames: Option<Mapping>,
    pages: Option<&'static str>,
    log: Option<DirtyLog>,
    /// Prepares frames; none without a cache or a thread.
    populator: Option<Populator>,
}

/// Maps the memory of a shard: shared memory that outlives the process, if the server has such, else anonymous memory.
fn storage(config: &ShardConfig, setup: &ThreadSetup) -> Result<ShardStorage, ConfigError> {
    let bytes = setup.options.buffers;
    let buffers = |error: std::io::Error| {
        ConfigError::new("buffers", format!("cannot map {}: {error}", display_size(bytes as u64)))
    };
    let Some(memory) = setup.shared.keeper().memory().filter(|_| config.cache.is_on()) else {
        let pool = Pool::new(bytes).map_err(buffers)?;
        let (frames, pages) = Mapping::for_frames(&config.cache)?.unzip();
        let populator = frames.as_ref().and_then(|_| Populator::start().ok());
        return Ok(ShardStorage { pool, frames, pages, log: None, populator });
    };
    let mapped = memory.shard(config.id.0.into());
    let ShardMemory { frames, buffers: region, log, space } = mapped
        .map_err(|error| ConfigError::new("cache-file", format!("cannot map it: {error}")))?;
    let (frame_space, buffer_space) = space.unzip();
    let pool = match buffer_space {
        None => Pool::over(region),
        Some(space) => Pool::growing(region, space.floor, move |at, len| space.reserve(at, len)),
    };
    let pool = pool.map_err(buffers)?;
    let name = setup.options.process.cache_file.as_ref().map_or("", |file| file.name.as_str());
    let start = |frames| start_populator(config.id, frames, frame_space, (&setup.shared, name));
    let populator = frames.as_ref().and_then(start);
    Ok(ShardStorage { pool, frames, pages: Some("shared memory"), log: Some(log), populator })
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
