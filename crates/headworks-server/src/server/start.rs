//! How a server starts: in which order things are opened, and what a step that fails takes back.
//!
//! ```text
//!   options checked --> listeners --> memory of the cache --> what dead servers left --> marks --> mailboxes with the first words
//!     --> threads: engines, images, `opened` --(upgrade: the old process pauses; its clients, cache and marks are adopted)-->
//!     restores begin --> files are mounted --> control socket, metrics --> late images
//! ```
//!
//! Invariants: a failure before the threads run undoes the marks, as nothing was served; later it keeps them. Until an adoption
//! has finished nothing is written that the old process could need.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headworks_core::writeback::DirtyOptions;
use headworks_core::{
    CacheOptions, ConfigError, Control, ShardConfig, ShardId, VolumeId, VolumeOptions,
};

use super::Server;
use crate::ServerOptions;
use crate::change;
use crate::clients::files::directory::check_file;
use crate::control::ControlSocket;
use crate::control::service::ControlService;
use crate::control::shards::ShardLink;
use crate::exports::access::AccessRules;
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
use crate::reactor::shared::ServerShared;
use crate::server::cpus::check_cpus;
use crate::server::launch::{Launched, ThreadSetup, launch, seeds};
use crate::server::memory::{CachingShards, MemoryWatch};
use crate::spec::cache_part::check_parts;
use crate::successor::handover::Adoption;
use crate::successor::keeper::Keeper;
use crate::successor::leftovers::PendingRestore;
use crate::successor::restoring::StartRestores;
use headworks::house::display_size;
use headworks_cache_memory::{CacheMemory, ShardGeometry};

/// Longest time in which the files of a start are mounted.
const FILES: Duration = Duration::from_secs(30);

/// Tells when a directory has its first files, or why not.
type FirstFiles = Receiver<Result<(), String>>;

/// A volume as the keeper opens it.
type KeptVolume = (VolumeId, (VolumeOrigin, VolumeOptions));

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
        let rules = rules_of(&set, &assembly, options);
        set.set_rules(rules.clone());
        let listeners = Arc::new(set);
        let adoption = begin_adoption(&assembly, &config, options)?;
        let mut pending = std::mem::take(&mut assembly.pending);
        let (memory, mut notes) = cache_memory(&config, &caches, options, &mut pending)?;
        back_caches(&mut caches, memory.as_deref());
        let mut restores = StartRestores::new(pending, &config, &caches)?;
        notes.append(&mut restores.notes);
        let exports = served_exports(&assembly, &config, &options.tenants);
        let volumes = kept_volumes(&assembly, &config);
        let named = options.process.cache_file.as_ref().filter(|_| memory.is_some());
        let memory_at = named.map(|named| PathBuf::from(&named.name));
        let mut keeper = Keeper::new(memory, options.process.leftovers.clone())
            .with_memory_at(memory_at.filter(|path| path.is_absolute()));
        if adoption.is_some() {
            keeper = keeper.with_marks_of_predecessor();
            keeper.hold_marks(volumes.iter().map(|(_, (origin, _))| origin));
        } else {
            notes.extend(open_volumes(&keeper, &volumes));
        }
        // What was written to the images needs no memory any more, and their marks are of this server.
        notes.extend(options.process.leftovers.remove_empty());
        let (boxes, mails): (Vec<Sender<ControlMessage>>, Vec<Receiver<ControlMessage>>) =
            (0..options.shards).map(|_| channel()).unzip();
        let shared = ServerShared::new(boxes, config.volumes_max(), Box::new(ended));
        let shared = Arc::new(shared.with_keeper(keeper));
        tell_first(&shared, &assembly, adoption.is_some());
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
                notes.extend(take_over_memory(shared.keeper(), &volumes, options));
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
        let mut server = Self {
            shared,
            threads,
            engine,
            cache: pages.map(|pages| cache_text(options, &pages)),
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
        let adopted = options.process.takeover.is_some();
        // Files come when everything is restored.
        let opened = restoring.unwrap_or_else(|| server.await_directories(&directories, adopted));
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

    /// Waits until the files of all directories are mounted. Behind an adoption there is no way back to the old process: problems are notes.
    fn await_directories(
        &mut self,
        directories: &[FirstFiles],
        adopted: bool,
    ) -> Result<(), ConfigError> {
        if !adopted {
            return directories.iter().try_for_each(await_files);
        }
        let problems = directories.iter().map(await_files).filter_map(Result::err);
        self.notes.extend(problems.map(|error| error.message.to_string()));
        Ok(())
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
}

/// The access rules of each listener, over the exports that are served and those that are absent.
fn rules_of(
    set: &ListenerSet,
    assembly: &Assembly,
    options: &ServerOptions,
) -> Vec<Arc<AccessRules>> {
    let served = assembly.exports.iter().map(|export| export.spec.name.as_str());
    let absent = assembly.absent.iter().map(|absent| absent.spec.name.as_str());
    rules_for(&set.entries(), &options.access, served.chain(absent))
}

/// Begins to take over from the process that hands over, if there is one.
fn begin_adoption(
    assembly: &Assembly,
    config: &ShardConfig,
    options: &ServerOptions,
) -> Result<Option<Adoption>, ConfigError> {
    let homes: Vec<ShardId> = config.volumes.iter().map(|volume| volume.home).collect();
    let takeover = options.process.takeover.as_ref();
    takeover.map(|from| Adoption::begin(from, assembly, &homes)).transpose()
}

/// Tells each cache whether its memory outlives this process, and how much of it is there.
fn back_caches(caches: &mut [(CacheOptions, DirtyOptions)], memory: Option<&CacheMemory>) {
    for (index, (cache, _)) in caches.iter_mut().enumerate() {
        cache.dirty_table = memory.is_some() && cache.is_on();
        let backed = memory.and_then(|memory| memory.backed(index));
        cache.backed = backed.unwrap_or(u32::MAX);
    }
}

fn kept_volumes(assembly: &Assembly, config: &ShardConfig) -> Vec<KeptVolume> {
    let options = config.volumes.iter().map(|volume| volume.options);
    (0..).map(VolumeId).zip(assembly.origins.iter().cloned().zip(options)).collect()
}

/// Sets the marks beside the images; returns sentences about them.
fn open_volumes(keeper: &Keeper, volumes: &[KeptVolume]) -> Vec<String> {
    let open = |(id, (origin, options)): &KeptVolume| keeper.open(*id, origin, options);
    volumes.iter().filter_map(open).collect()
}

/// What the shards find in their mailboxes before the first client.
fn tell_first(shared: &ServerShared, assembly: &Assembly, adopts: bool) {
    for &volume in &assembly.suspect {
        shared.send_all(|| ControlMessage::Control(Control::Suspect { volume }));
        shared.keeper().set_suspect(volume, true);
    }
    if adopts {
        // Nothing may be written while the old server can go on.
        shared.send_all(|| ControlMessage::Control(Control::Freeze { on: true }));
    }
    for shard in (0..shared.shards() as u16).map(ShardId) {
        // No shard refuses it.
        let exports = unavailable(&assembly.absent);
        let order = Box::new(ShardCommand::SetAbsent { exports });
        shared.send(shard, ControlMessage::Command(order, channel().0));
    }
}

/// The old process has paused: its memory and its marks are ours from here on. Returns sentences about the marks.
fn take_over_memory(
    keeper: &Keeper,
    volumes: &[KeptVolume],
    options: &ServerOptions,
) -> Vec<String> {
    if let Some(takeover) = &options.process.takeover {
        // Release: what the old process did comes first.
        takeover.standing().left.store(true, Ordering::Release);
    }
    if let Some(memory) = keeper.memory() {
        memory.take_over();
    }
    let notes = open_volumes(keeper, volumes);
    options.process.leftovers.drop_locks();
    notes
}

/// The size of the cache and the kind of its memory.
fn cache_text(options: &ServerOptions, pages: &str) -> String {
    match options.auto_cache {
        Some(_) => format!("up to {} of free memory, {pages}", display_size(options.cache)),
        None => format!("{}, {pages}", display_size(options.cache)),
    }
}

/// What tells of the first files of a listener; none if it has none.
fn first_files(listener: &mut ClientListener) -> Option<FirstFiles> {
    match &mut listener.thread {
        Some(DoorThread::Directory(directory)) => directory.first.take(),
        _ => None,
    }
}

/// Waits until a directory has its files, so that they are there when the server is said to serve.
fn await_files(first: &FirstFiles) -> Result<(), ConfigError> {
    let late = |_| Err("its files were not mounted in time".to_owned());
    let outcome = first.recv_timeout(FILES).unwrap_or_else(late);
    outcome.map_err(|why| ConfigError::new("fuse", why))
}

/// The memory of all shards in the file that the options give, with sentences: why it is anonymous, or what was written to the images
/// because there is no room for it beside the memory of dead servers.
fn cache_memory(
    config: &ShardConfig,
    caches: &[(CacheOptions, DirtyOptions)],
    options: &ServerOptions,
    pending: &mut Vec<(VolumeId, PendingRestore)>,
) -> Result<(Option<Arc<CacheMemory>>, Vec<String>), ConfigError> {
    let Some(CacheFile { file, name, required }) = &options.process.cache_file else {
        return Ok((None, Vec::new()));
    };
    if !caches.iter().any(|(cache, _)| cache.is_on()) {
        return Ok((None, Vec::new()));
    }
    let geometry = caches
        .iter()
        .map(|(cache, _)| ShardGeometry { units: cache.units, buffers: options.buffers });
    let geometry: Vec<_> = geometry.collect();
    // As many again, for ids that change when a process takes over.
    let rows = 2 * config.volumes_max();
    // A cache of automatic size begins with what it keeps under any pressure.
    let least = options.auto_cache.map_or(0, |bounds| bounds.floor);
    let adopts = options.process.takeover.as_ref().is_some_and(|from| from.has_memory());
    let make = || {
        file.try_clone().and_then(|file| match adopts {
            true => CacheMemory::adopt(file, rows, geometry.clone()),
            false => CacheMemory::new(file, rows, geometry.clone(), least),
        })
    };
    let (mut made, mut notes) = (make(), Vec::new());
    if made.as_ref().is_err_and(|error| error.kind() == ErrorKind::StorageFull) {
        // The first start of the dead server needed no more than this one.
        for (_, pending) in pending.drain(..) {
            notes.push(pending.write()?);
        }
        options.process.leftovers.shrink();
        made = make();
    }
    if let (true, Err(error)) = (adopts, &made) {
        let message = format!("cannot take over the cache in {name}: {error}; restart instead");
        return Err(ConfigError::new("upgrade", message));
    }
    match made {
        Ok(memory) => Ok((Some(Arc::new(memory)), notes)),
        Err(error) if *required => {
            Err(ConfigError::new("cache-file", format!("cannot use {name}: {error}")))
        }
        Err(error) => {
            // It is not to keep what was reserved.
            let _ = file.set_len(0);
            notes.push(format!("the cache is in anonymous memory: cannot use {name}: {error}"));
            Ok((None, notes))
        }
    }
}
