//! The running server: start, queries, stop.

pub(crate) mod cpus;
pub(crate) mod launch;
pub(crate) mod memory;

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use headworks_core::writeback::DirtyOptions;
use headworks_core::{
    CacheOptions, ConfigError, Control, ShardConfig, ShardId, VolumeId, VolumeOptions,
};

use crate::change;
use crate::clients::files::directory::check_file;
use crate::control::ControlSocket;
use crate::control::service::ControlService;
use crate::control::shards::ShardLink;
use crate::control::tree::{ExportNode, device_name};
use crate::exports::assemble::cache_shares;
use crate::exports::assemble::check_tenants;
use crate::exports::assemble::export_info::{served_exports, unavailable};
use crate::exports::assemble::image::{CreatedImage, VolumeOrigin};
use crate::exports::assemble::range;
use crate::exports::assemble::side_by_side::LateImage;
use crate::exports::assemble::topology::topology;
use crate::exports::assemble::{Assembly, ImageWatcher};
use crate::listen::listener_set::{Acceptors, ListenerSet, named, rules_for};
use crate::listen::opened_listeners::OpenedListeners;
use crate::listen::{Address, ClientListener, DoorThread, Listener, check_unix};
use crate::observe::metrics::Metrics;
use crate::options::CacheFile;
use crate::reactor::messages::ControlMessage;
use crate::reactor::messages::command::ShardCommand;
use crate::reactor::messages::hand_over::PausedServer;
use crate::reactor::shared::{ServerShared, VolumeProgress};
use crate::server::cpus::check_cpus;
use crate::server::launch::{Launched, ThreadSetup, launch, seeds};
use crate::server::memory::{AutoCache, CachingShards, MemoryWatch};
use crate::spec::cache_part::check_parts;
use crate::successor::handover::{Adoption, HandedListener, HandedVolume};
use crate::successor::keeper::Keeper;
use crate::successor::restoring::StartRestores;
use crate::{Reloader, ServerOptions};
use headworks::house::display_size;
use headworks_cache_memory::{CacheMemory, ShardGeometry};

/// A running server. Stop it with [`Server::stop`], then wait with [`Server::join`].
pub struct Server {
    shared: Arc<ServerShared>,
    threads: Vec<JoinHandle<()>>,
    engine: String,
    cache: Option<String>,
    listeners: Arc<ListenerSet>,
    auto_cache: Option<AutoCache>,
    broken: Arc<Mutex<Option<String>>>,
    control: Option<ControlSocket>,
    service: Arc<ControlService>,
    notes: Vec<String>,
    metrics: Option<Metrics>,
    /// Sets the limit of a cache of automatic size.
    memory: Option<MemoryWatch>,
    /// What ctl had changed when the standing part was handed over.
    handed_changes: Mutex<Option<String>>,
    /// Whether the process that is to replace this one was told that it gets the memory of the cache.
    handed_memory: Mutex<bool>,
    /// The volumes as they were handed over last.
    handed_volumes: Mutex<Vec<HandedVolume>>,
    /// The pause of all shards, while another process takes over.
    paused: Mutex<Option<PausedServer>>,
}

/// An export that is served at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveExport {
    /// Name of the export; `default` if it has none.
    pub name: String,
    /// Name of its device, as `ctl` takes it.
    pub device: String,
    /// Whether clients may only read.
    pub read_only: bool,
    /// Whether writes need a flush to survive a power failure.
    pub volatile: bool,
    /// How far its stop is, as published. Complete after a [`Server::barrier`] that began after the stop.
    pub progress: VolumeProgress,
}

/// A barrier across all shards.
///
/// Every shard gets a clone of a channel's sender and drops it in its next turn, or when it ends. The barrier is
/// complete when all clones are dropped.
pub struct ShardBarrier(Receiver<std::convert::Infallible>);

impl ShardBarrier {
    /// Whether every shard has made a turn, or has ended, since the call.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.wait(Duration::ZERO)
    }

    /// Waits for completion, at most for `patience`; returns whether the barrier is complete.
    #[must_use]
    pub fn wait(&self, patience: Duration) -> bool {
        matches!(self.0.recv_timeout(patience), Err(RecvTimeoutError::Disconnected))
    }
}

/// What a start derives from its options before it opens a socket or starts a thread.
struct Prepared {
    acceptors: Acceptors,
    config: ShardConfig,
    caches: Vec<(CacheOptions, DirtyOptions)>,
}

impl Prepared {
    fn new(assembly: &Assembly, options: &ServerOptions) -> Result<Self, ConfigError> {
        options.validate()?;
        check_cpus(&options.cpus)?;
        check_tenants(&assembly.exports, &options.tenants)?;
        let tenants = options.tenants.iter();
        let parts = tenants.map(|tenant| (tenant.name.as_str(), tenant.options.part));
        check_parts(parts, options.cache)?;
        let mut acceptors = Acceptors::default();
        acceptors.get(&options.tls)?;
        for spec in &options.access.listeners {
            acceptors.get(&spec.tls).map_err(|error| named(Some(spec), error))?;
        }
        let config = topology(assembly, options);
        config.validate()?;
        range::check_all(&assembly.exports, &config)?;
        let caches = cache_shares::divide(&config, &options.cache_spec())?;
        Ok(Self { acceptors, config, caches })
    }
}

impl Server {
    /// Checks whether [`Server::start`] accepts an inspected assembly with these options, as far as that is known without
    /// a socket, a thread or memory: the same code decides in both.
    ///
    /// # Errors
    /// The reason why the server would not start.
    pub fn check(assembly: &Assembly, options: &ServerOptions) -> Result<(), ConfigError> {
        Prepared::new(assembly, options)?;
        options.listen.iter().try_for_each(Address::check)?;
        for spec in &options.access.listeners {
            spec.address.check().map_err(|error| named(Some(spec), error))?;
            let Address::Directory(path) = &spec.address else { continue };
            let names = assembly.exports.iter().map(|export| export.spec.name.as_str());
            let mut offered = names.filter(|name| spec.offers(name, None));
            let checked = offered.try_for_each(|name| check_file(path, name));
            checked.map_err(|why| ConfigError::new("fuse", why))?;
        }
        options.control.iter().try_for_each(|path| check_unix("control", path))
    }

    /// Starts every thread; clients may connect when this returns. `ended` is called from a thread of the server when
    /// all shards have flushed after [`Server::stop`], or when a shard failed.
    ///
    /// # Errors
    /// The reason why the server cannot start; nothing runs then.
    pub fn start(
        assembly: Assembly,
        options: &ServerOptions,
        ended: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, ConfigError> {
        Self::start_after(assembly, options, ended, || Ok(()))
    }

    /// As [`Server::start`]. `opened` is called when every image, ring and socket is open and before any client is
    /// served: the place to drop privileges. Its error ends the start.
    ///
    /// # Errors
    /// The reason why the server cannot start; nothing runs then.
    pub fn start_after(
        mut assembly: Assembly,
        options: &ServerOptions,
        ended: impl Fn() + Send + Sync + 'static,
        opened: impl FnOnce() -> Result<(), ConfigError>,
    ) -> Result<Self, ConfigError> {
        let created = std::mem::take(&mut assembly.created);
        let started = Self::start_assembled(assembly, options, ended, opened);
        started.inspect_err(|_| created.into_iter().for_each(CreatedImage::undo))
    }

    fn start_assembled(
        mut assembly: Assembly,
        options: &ServerOptions,
        ended: impl Fn() + Send + Sync + 'static,
        opened: impl FnOnce() -> Result<(), ConfigError>,
    ) -> Result<Self, ConfigError> {
        let Prepared { mut acceptors, config, mut caches } = Prepared::new(&assembly, options)?;
        let late = std::mem::take(&mut assembly.late);
        let OpenedListeners { clients, control, metrics, set } =
            OpenedListeners::open(options, &mut acceptors)?;
        let served = assembly.exports.iter().map(|export| export.spec.name.as_str());
        let absent = assembly.absent.iter().map(|absent| absent.spec.name.as_str());
        let rules = rules_for(&set.entries(), &options.access, served.chain(absent));
        set.set_rules(rules.clone());
        let listeners = Arc::new(set);
        let homes: Vec<ShardId> = config.volumes.iter().map(|volume| volume.home).collect();
        let adoption = options.process.takeover.as_ref();
        let adoption = adoption.map(|from| Adoption::begin(from, &assembly, &homes)).transpose()?;
        let (memory, note) = cache_memory(&config, &caches, options)?;
        for (index, (cache, _)) in caches.iter_mut().enumerate() {
            cache.dirty_table = memory.is_some() && cache.is_on();
            let backed = memory.as_ref().and_then(|memory| memory.backed(index));
            cache.backed = backed.unwrap_or(u32::MAX);
        }
        let mut notes: Vec<String> = note.into_iter().collect();
        let suspect = assembly.suspect.clone();
        let pending = std::mem::take(&mut assembly.pending);
        let mut restores = StartRestores::new(pending, &config, &caches)?;
        notes.append(&mut restores.notes);
        // What was written to the images needs no memory any more.
        options.process.leftovers.remove_empty();
        let exports = served_exports(&assembly, &config, &options.tenants);
        let (boxes, mails): (Vec<Sender<ControlMessage>>, Vec<Receiver<ControlMessage>>) =
            (0..options.shards).map(|_| channel()).unzip();
        let keeper = Keeper::new(memory, options.process.leftovers.clone());
        let keeper = if adoption.is_some() { keeper.with_marks_of_predecessor() } else { keeper };
        let volumes: Vec<_> = (0..)
            .map(VolumeId)
            .zip(assembly.origins.iter().cloned().zip(config.volumes.iter().map(|v| v.options)))
            .collect();
        let open_volumes = |keeper: &Keeper| -> Vec<String> {
            let open = |(id, (origin, options)): &(VolumeId, (VolumeOrigin, VolumeOptions))| {
                keeper.open(*id, origin, options)
            };
            volumes.iter().filter_map(open).collect()
        };
        match adoption {
            None => notes.extend(open_volumes(&keeper)),
            Some(_) => keeper.hold_marks(volumes.iter().map(|(_, (origin, _))| origin)),
        }
        let shared = ServerShared::new(boxes, config.volumes_max(), Box::new(ended));
        let shared = Arc::new(shared.with_keeper(keeper));
        for volume in suspect {
            // Before the first client: the shards find it in their mailboxes.
            shared.send_all(|| ControlMessage::Control(Control::Suspect { volume }));
            shared.keeper().set_suspect(volume, true);
        }
        if adoption.is_some() {
            // Before anything else: nothing may be written while the old server can go on.
            shared.send_all(|| ControlMessage::Control(Control::Freeze { on: true }));
        }
        for shard in 0..options.shards {
            // Read in the first turn, before any client; no shard refuses it.
            let exports = unavailable(&assembly.absent);
            let order = Box::new(ShardCommand::SetAbsent { exports });
            shared.send(ShardId(shard), ControlMessage::Command(order, channel().0));
        }
        let service = ControlService::for_server(&assembly, &config, options, &shared);
        let service = Arc::new(service.with_listeners(Arc::clone(&listeners)));
        service.attend();
        let contexts = change::listeners::door_contexts(service.changes());
        let mut clients = clients
            .into_iter()
            .map(|(entry, listener)| entry.client_listener(listener, &contexts))
            .collect::<Result<Vec<_>, _>>()
            .inspect_err(|_| shared.keeper().undo_all())?;
        let directories: Vec<_> = clients.iter_mut().filter_map(first_files).collect();
        let mut seeds = seeds(assembly, &config, caches, options, mails, clients);
        for (shard, blocks) in std::mem::take(&mut restores.shards) {
            seeds[usize::from(shard)].set_restores(blocks);
        }
        let broken = Arc::new(Mutex::new(None));
        let setup = ThreadSetup {
            options: options.clone(),
            exports,
            shared: Arc::clone(&shared),
            broken: Arc::clone(&broken),
            access: rules,
            listens: restores.is_empty() && adoption.is_none(),
            watcher: ImageWatcher::start().inspect_err(|_| shared.keeper().undo_all())?,
        };
        let launched = launch(seeds, &setup, opened);
        // Nothing was served.
        let launched = launched.inspect_err(|_| shared.keeper().undo_all());
        let Launched { threads, engine, pages } = launched?;
        if let Some(adoption) = adoption {
            let directories = (&*shared, &contexts.directories);
            let finished = adoption.finish(directories, &setup.exports, options, || {
                let keeper = shared.keeper();
                if let Some(takeover) = &options.process.takeover {
                    // Release: what the old process did comes first.
                    takeover.standing().left.store(true, Ordering::Release);
                }
                if let Some(memory) = keeper.memory() {
                    memory.take_over();
                }
                notes.extend(open_volumes(keeper));
                options.process.leftovers.drop_locks();
            });
            if let Err(error) = finished {
                // They have the images open, which another start may need.
                threads.into_iter().for_each(|thread| drop(thread.join()));
                return Err(error);
            }
            if let Some(takeover) = &options.process.takeover {
                takeover.standing().close_listeners();
            }
        }
        let restoring = (!restores.is_empty()).then(|| restores.watch(Arc::clone(&shared)));
        let size = match options.auto_cache {
            Some(_) => format!("up to {} of free memory", display_size(options.cache)),
            None => display_size(options.cache),
        };
        let cache = pages.map(|pages| format!("{size}, {pages}"));
        let mut server = Self {
            shared,
            threads,
            engine,
            cache,
            listeners,
            auto_cache: options.auto_cache,
            broken,
            control: None,
            service,
            notes,
            metrics: None,
            memory: None,
            handed_changes: Mutex::default(),
            handed_memory: Mutex::default(),
            handed_volumes: Mutex::default(),
            paused: Mutex::default(),
        };
        server.notes.extend(change::bases::share_bases(server.service.changes()));
        let opened = match restoring {
            // Files come when everything is restored.
            Some(opened) => opened,
            // There is no way back to the old process.
            None if options.process.takeover.is_some() => {
                let outcomes = directories.iter().map(await_files);
                let problems = outcomes.filter_map(|outcome| outcome.err());
                server.notes.extend(problems.map(|error| error.message.to_string()));
                Ok(())
            }
            None => directories.iter().try_for_each(await_files),
        };
        match opened.and_then(|()| server.open_endpoints(control, metrics)) {
            Ok(()) => {
                server.add_late(late);
                Ok(server)
            }
            Err(error) => {
                // No client was told of a loss that a mark is of: it stays.
                server.shared.keeper().fail_start();
                server.stop();
                let _ = server.join();
                Err(error)
            }
        }
    }

    /// Serves late images as soon as they are open, each on a thread that ends then; exports of one image one after the other.
    fn add_late(&self, late: Vec<LateImage>) {
        let mut groups: Vec<Vec<LateImage>> = Vec::new();
        for one in late {
            match groups
                .iter_mut()
                .find(|group| one.identity.is_some() && group[0].identity == one.identity)
            {
                Some(group) => group.push(one),
                None => groups.push(vec![one]),
            }
        }
        for group in groups {
            let service = Arc::clone(&self.service);
            let add = move || change::add::add_late(service.changes(), group);
            if let Err(error) = std::thread::Builder::new().name("headworks-late".into()).spawn(add)
            {
                tracing::warn!("an export stays absent until `ctl add` or a reload: {error}");
            }
        }
    }

    /// Starts what watches the memory, the control socket and the metrics endpoint, as far as there are any.
    fn open_endpoints(
        &mut self,
        control: Option<Listener>,
        metrics: Option<TcpListener>,
    ) -> Result<(), ConfigError> {
        if let Some(bounds) = self.auto_cache.filter(|_| self.cache.is_some()) {
            let shards = self.service.tree().caching.clone();
            let link = ShardLink::new(Arc::clone(&self.shared), self.shared.shards() as u16);
            self.memory = Some(MemoryWatch::start(
                bounds,
                self.keeps_cache(),
                CachingShards { link, shards },
            )?);
        }
        if let Some(listener) = control {
            self.control = Some(ControlSocket::start(listener, Arc::clone(&self.service))?);
        }
        if let Some(listener) = metrics {
            self.metrics = Some(Metrics::start(listener, Arc::clone(&self.service))?);
        }
        Ok(())
    }

    pub(crate) fn service(&self) -> &ControlService {
        &self.service
    }

    pub(crate) fn shared(&self) -> &ServerShared {
        &self.shared
    }

    /// Second descriptors of the listening sockets.
    pub(crate) fn handed(&self) -> MutexGuard<'_, Vec<HandedListener>> {
        self.listeners.handed()
    }

    /// The volumes as they were handed over last.
    pub(crate) fn handed_volumes(&self) -> MutexGuard<'_, Vec<HandedVolume>> {
        self.handed_volumes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the process that is to replace this one was told that it gets the memory of the cache.
    pub(crate) fn handed_memory(&self) -> MutexGuard<'_, bool> {
        self.handed_memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What ctl had changed when the standing part was handed over; none before.
    pub(crate) fn handed_changes(&self) -> MutexGuard<'_, Option<String>> {
        self.handed_changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a pause, and ends the one before, if there was one.
    pub(crate) fn set_paused(&self, paused: Option<PausedServer>) {
        let before = &mut *self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(PausedServer { ends }) = std::mem::replace(before, paused) {
            drop(ends);
        }
        self.shared.send_all(|| ControlMessage::Wake);
    }

    /// Address of the metrics endpoint; none without one.
    #[must_use]
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(Metrics::address)
    }

    /// The engine in use, and the reason for it.
    #[must_use]
    pub fn engine(&self) -> &str {
        &self.engine
    }

    /// Size of the page cache and the kind of its memory; none without a cache.
    #[must_use]
    pub fn cache(&self) -> Option<&str> {
        self.cache.as_deref()
    }

    /// Messages for the user about memory and marks, one sentence each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Whether the cache's memory outlives the process.
    #[must_use]
    pub fn keeps_cache(&self) -> bool {
        self.shared.keeper().memory().is_some()
    }

    /// The cache's memory that outlives the process; none if it dies with the process.
    #[must_use]
    pub fn memory(&self) -> Option<Arc<CacheMemory>> {
        self.shared.keeper().memory().cloned()
    }

    /// TCP port of each address in `listen`; none for unix sockets.
    #[must_use]
    pub fn ports(&self) -> Vec<Option<u16>> {
        let own = self.listeners.entries().into_iter().filter(|entry| entry.spec.is_none());
        own.map(|entry| entry.port).collect()
    }

    /// TCP port of each listener of `access`; none for unix sockets.
    #[must_use]
    pub fn ports_of_sections(&self) -> Vec<Option<u16>> {
        let sections = self.listeners.entries().into_iter().filter(|entry| entry.spec.is_some());
        sections.map(|entry| entry.port).collect()
    }

    /// Starts the shutdown and returns at once: no new requests, completion of those in flight, flushes.
    pub fn stop(&self) {
        // With these open, clients could still connect, and would wait for the end.
        self.handed().clear();
        let deleted = change::exports::deleted_images(self.service.changes());
        let tree = self.service.tree();
        for export in tree.exports.iter().filter(|export| deleted.contains(&export.volume)) {
            tracing::warn!(
                "export {}: its image was deleted; what was written to it is lost",
                export.shown_name()
            );
        }
        self.shared.send_all(|| ControlMessage::Stop);
    }

    /// Logs the statistics of all volumes.
    pub fn tell_statistics(&self) {
        if self.service.tree().exports.is_empty() {
            tracing::info!("no statistics: the server has no exports");
        }
        self.shared.send_all(|| ControlMessage::Statistics);
    }

    /// Starts a barrier across all shards.
    #[must_use]
    pub fn barrier(&self) -> ShardBarrier {
        let (copy, answered) = channel();
        self.shared.send_all(|| ControlMessage::Barrier(copy.clone()));
        ShardBarrier(answered)
    }

    /// Returns a handle that reloads certificates and exports.
    #[must_use]
    pub fn reloader(&self) -> Reloader {
        Reloader::new(Arc::clone(&self.service), Arc::clone(&self.listeners))
    }

    /// Sends a control input to every shard.
    pub fn control(&self, control: Control) {
        self.shared.send_all(|| ControlMessage::Control(control));
    }

    /// Exports that are served at the moment.
    #[must_use]
    pub fn exports(&self) -> Vec<ActiveExport> {
        let tree = self.service.tree();
        let now = |entry: &ExportNode| ActiveExport {
            name: entry.shown_name().to_owned(),
            device: device_name(entry.device),
            read_only: entry.read_only,
            volatile: entry.volatile,
            progress: self.shared.progress_of(entry.volume),
        };
        tree.exports.iter().map(now).collect()
    }

    /// Names of exports that were given up and whose devices have not answered: a stop waits for none of them.
    #[must_use]
    pub fn abandoned(&self) -> Vec<String> {
        change::remove::abandoned_names(self.service.changes())
    }

    /// Bytes of all volumes that are in the cache only, as published during a stop.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.shared.left()
    }

    /// Bytes that were only in the cache when the shards began the stop; 0 before it.
    #[must_use]
    pub fn dirty_at_stop(&self) -> u64 {
        self.shared.dirty_at_stop()
    }

    /// Waits until the server has ended.
    ///
    /// # Errors
    /// A shard failed, or a last flush failed.
    pub fn join(mut self) -> Result<(), String> {
        let (control, metrics) = (self.control.take(), self.metrics.take());
        let result = self.join_shards();
        // Stopped last, so that a slow shutdown can be observed.
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
            // Other shards may wait for the failed shard's devices without end.
            return Err(broken);
        }
        for thread in self.threads {
            if thread.join().is_err() {
                return Err("a shard thread panicked; see the messages above".into());
            }
        }
        match self.shared.failures() {
            0 => Ok(()),
            failures => Err(format!("{failures} final flushes failed; see the messages above")),
        }
    }
}

/// Longest time in which the files of a start are mounted.
const FILES: Duration = Duration::from_secs(30);

/// What tells of the first files of a listener; none if it has none.
fn first_files(listener: &mut ClientListener) -> Option<Receiver<Result<(), String>>> {
    match &mut listener.thread {
        Some(DoorThread::Directory(directory)) => directory.first.take(),
        _ => None,
    }
}

/// Waits until a directory has its files, so that they are there when the server is said to serve.
fn await_files(first: &Receiver<Result<(), String>>) -> Result<(), ConfigError> {
    let late = |_| Err("its files were not mounted in time".to_owned());
    let outcome = first.recv_timeout(FILES).unwrap_or_else(late);
    outcome.map_err(|why| ConfigError::new("fuse", why))
}

/// The memory of all shards in the file that the options give, or a note why it is anonymous.
fn cache_memory(
    config: &ShardConfig,
    caches: &[(CacheOptions, DirtyOptions)],
    options: &ServerOptions,
) -> Result<(Option<Arc<CacheMemory>>, Option<String>), ConfigError> {
    let Some(CacheFile { file, name, required }) = &options.process.cache_file else {
        return Ok((None, None));
    };
    if !caches.iter().any(|(cache, _)| cache.is_on()) {
        return Ok((None, None));
    }
    let geometry = caches
        .iter()
        .map(|(cache, _)| ShardGeometry { units: cache.units, buffers: options.buffers });
    // As many again, for ids that change when a process takes over.
    let (rows, geometry) = (2 * config.volumes_max(), geometry.collect());
    // A cache of automatic size begins with what it keeps under any pressure.
    let least = options.auto_cache.map_or(0, |bounds| bounds.floor);
    let adopts = options.process.takeover.as_ref().is_some_and(|from| from.has_memory());
    let made = file.try_clone().and_then(|file| match adopts {
        true => CacheMemory::adopt(file, rows, geometry),
        false => CacheMemory::new(file, rows, geometry, least),
    });
    if let (true, Err(error)) = (adopts, &made) {
        let message = format!("cannot take over the cache in {name}: {error}; restart instead");
        return Err(ConfigError::new("upgrade", message));
    }
    match made {
        Ok(memory) => Ok((Some(Arc::new(memory)), None)),
        Err(error) if *required => {
            Err(ConfigError::new("cache-file", format!("cannot use {name}: {error}")))
        }
        Err(error) => {
            // It is not to keep what was reserved.
            let _ = file.set_len(0);
            let note = format!("the cache is in anonymous memory: cannot use {name}: {error}");
            Ok((None, Some(note)))
        }
    }
}

#[cfg(test)]
mod abandon_tests;
#[cfg(test)]
mod answer_tests;
#[cfg(test)]
mod change_tests;
#[cfg(test)]
mod foreign_driver_tests;
#[cfg(test)]
mod in_flight_tests;
#[cfg(test)]
mod limit_tests;
#[cfg(test)]
mod listener_tests;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod range_tests;
#[cfg(test)]
mod recorded_tests;
#[cfg(test)]
mod rings_pieces_tests;
#[cfg(test)]
mod rings_tests;
#[cfg(test)]
mod status_page_tests;
#[cfg(test)]
mod stop_tests;
#[cfg(test)]
mod tenant_tests;
