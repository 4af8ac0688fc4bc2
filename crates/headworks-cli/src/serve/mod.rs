//! `headworks serve`: from the command line to a running server, and its shutdown.
//!
//! The main thread blocks all signals before it starts other threads, and then waits for a signal, the end of the
//! server or the end of the `--run` child. One SIGTERM or SIGINT drains, writes out, flushes and exits with 0; a
//! third one, a second one 2 s later, or the end of `--stop-timeout`, exits at once and reports what was not written.
//!
//! Modules: `options` the arguments, `layers` their precedence (`table` the names, `source` files and environment), `plan` their
//! meaning, `peer_words` what others' users write instead, `images` what is opened, `memory` the limits, `mounts` the helper process that mounts files of FUSE, `check` the dry run, `address` and `listen` listeners, `announce` the start message and
//! `announced_export` its exports, `running` what a server has while it runs,
//! `child` the command of `--run`, `reload` SIGHUP and `ctl reload`, `stop` the shutdown, `stop_signals` what begins it and cuts it short, `tls`
//! certificates, `systemd` the service manager, `user` dropping privileges, `sandbox` the seccomp filter, `upgrade` the
//! replacement of the process while clients stay connected.

mod address;
mod announce;
mod announced_export;
mod cache_file;
pub mod check;
mod child;
mod images;
mod io_flusher;
mod layers;
mod listen;
mod memory;
mod mounts;
mod options;
mod peer_words;
mod pid_file;
mod plan;
mod reload;
mod running;
mod sandbox;
mod source;
mod stop;
mod stop_signals;
mod systemd;
mod table;
mod tls;
mod upgrade;
mod user;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use headworks_core::ConfigError;
use headworks_server::config::{ConfigFile, Problems};
use headworks_server::{
    Address, Assembly, ExportSpec, LogLevel, Mounts, Server, ServerOptions, Takeover,
};

use crate::durability;
use crate::log;
use crate::progress;
use crate::signals::Signals;
use crate::{USAGE, complain, shown};
use address::{PrivateDirectory, addresses, socket_addresses, uri};
use announce::announce;
use announced_export::announced;
use cache_file::{CacheStore, StoredMemory};
pub use child::child_code;
use child::spawn;
use layers::blame;
use mounts::MountHelpers;
use options::Sandbox;
use pid_file::PidFile;
use reload::Reload;
use running::Running;
use stop::{StopOutcome, Upkeep, end_at_once, wait};
use systemd::{InheritedSockets, ServiceManager, unix_path};
use upgrade::{Predecessor, ProcessState, Upgrades};
use user::User;
pub use user::owner_by_numbers;

pub use mounts::{COMMAND as MOUNTS_COMMAND, run as run_mounts};

pub use layers::{EffectiveOptions, OptionError, switches};
pub use options::{ListenArgs, ServeArgs};
pub use peer_words::option_answer;
pub use plan::plan;
pub use source::OptionSources;
pub use upgrade::{SPAWNER_COMMAND, run_spawner};

/// Runs the server until it is told to stop.
pub fn run() -> ExitCode {
    let mut predecessor = match Predecessor::take() {
        Ok(predecessor) => predecessor,
        Err(error) => return fail(error),
    };
    match launch(&mut predecessor) {
        Ok(code) => code,
        Err(wrong) => {
            if let Some(predecessor) = &predecessor {
                predecessor.fail(&wrong.to_string());
            }
            report_error(&wrong)
        }
    }
}

/// Starts the server and runs it; an error means that nothing was served, and that the process to be replaced has to know.
fn launch(predecessor: &mut Option<Predecessor>) -> Result<ExitCode, OptionError> {
    // First, before anything opens a descriptor with the number of a passed socket.
    let (mut state, takeover) = match predecessor {
        Some(predecessor) => {
            let (state, takeover) = predecessor.standing()?;
            (state, Some(takeover))
        }
        None => after_stop(InheritedSockets::take()?),
    };
    let sources = OptionSources::here();
    let mut effective = sources.resolve()?;
    let mut loaded = None;
    if let Some(takeover) = &takeover {
        loaded = reload::loaded(&effective);
        let changes = ConfigFile::read_changes(takeover.changes()).map_err(OptionError::Invalid)?;
        let drops_privileges = effective.options.user.is_some();
        effective.config = upgrade::with_changes(effective.config, changes, drops_privileges)?;
    }
    let log_level = log::install(effective.options.log, effective.options.verbose)?;
    // Before any thread starts: threads inherit the signal mask.
    let signals = Signals::block()
        .map_err(|error| OptionError::Io(format!("cannot wait for signals: {error}")))?;
    // Usage errors are reported before anything is opened, with exit code 2.
    let (specs, mut server_options) = plan(&effective).map_err(OptionError::Invalid)?;
    if effective.options.dump_config {
        return Ok(dump(effective));
    }
    let user = user(&effective.options)
        .map_err(|error| OptionError::Invalid(Problems(vec![blame(&effective.config, &error)])))?;
    let has_control =
        effective.options.listening.control.is_some() || state.sockets.control.is_some();
    // Before any thread starts, and before privileges are dropped.
    let (mut upgrades, hook) = Upgrades::prepare(&effective.options, has_control, &signals)?;
    let handed = std::mem::take(&mut state.mounts);
    let mounts = MountHelpers::start(&server_options, user.as_ref().map(User::ids), handed);
    let mounts = mounts.map_err(OptionError::Io)?.map(Arc::new);
    // After the processes that serve nothing have been started, and before all threads.
    if let Some(Err(error)) = mounts.as_ref().map(|_| io_flusher::mark()) {
        tracing::debug!("memory pressure may stop file systems on files of FUSE: {error}");
    }
    let (reload_requests, reload_hook) = reload::take_requests(&signals)?;
    let mounts_of_server = || mounts.clone().map(|helper| helper as Arc<dyn Mounts>);
    let is_after_stop = predecessor.is_none() && takeover.is_some();
    let spare = is_after_stop.then(|| state.passed_again()).transpose();
    let spare =
        spare.map_err(|error| OptionError::Io(format!("no descriptor is left: {error}")))?;
    server_options.process.upgrade = Some(hook.clone());
    server_options.process.reload = Some(reload_hook.clone());
    server_options.process.takeover = takeover;
    server_options.process.loaded = loaded;
    server_options.process.mounts = mounts_of_server();
    let sockets = std::mem::take(&mut state.sockets);
    let environment =
        Environment { sockets, log_level: log_level.clone(), user, state, mounts: mounts.clone() };
    let running = match (start(&effective, (specs, server_options), environment, &signals), spare) {
        // Cache or shards are others now, as a restart may have it: what the stop has left does not fit.
        (Err(error), Some(sockets)) if error.option == TAKEOVER => {
            tracing::warn!("clients have to connect again: {}", error.message);
            let (specs, mut server_options) = plan(&effective).map_err(OptionError::Invalid)?;
            server_options.process.upgrade = Some(hook);
            server_options.process.reload = Some(reload_hook);
            server_options.process.mounts = mounts_of_server();
            let (user, state) = (self::user(&effective.options)?, ProcessState::default());
            let environment =
                Environment { sockets, log_level, user, state, mounts: mounts.clone() };
            start(&effective, (specs, server_options), environment, &signals)?
        }
        (started, _) => started?,
    };
    let mut reload = Reload::new(sources, &effective, reload_requests);
    let mut upkeep = Upkeep { reload: &mut reload, upgrades: &mut upgrades };
    let code = serve(&effective.options, running, &signals, &mut upkeep, predecessor.take());
    if let Some(mounts) = mounts {
        mounts.finish();
    }
    Ok(code)
}

/// The state that a stop has left for this start, if it has.
fn after_stop(mut sockets: InheritedSockets) -> (ProcessState, Option<Takeover>) {
    let left = std::mem::take(&mut sockets.left);
    let takeover = match (left.into_takeover(), &mut sockets.memory[..]) {
        // With other memory there are data of a dead server, which come first.
        (Ok(takeover), [_]) => takeover,
        (Ok(_), _) => None,
        (Err(error), _) => {
            complain(format!("{error}; clients have to connect again"));
            None
        }
    };
    let memory = takeover.as_ref().and_then(|_| sockets.memory.pop());
    let memory = memory.map(|(descriptor, name)| StoredMemory::passed(descriptor, name));
    (ProcessState { sockets, memory, ..Default::default() }, takeover)
}

/// Prints all errors and returns the exit code: 2 for usage errors, 1 for others.
pub fn report_error(wrong: &OptionError) -> ExitCode {
    match wrong {
        OptionError::Usage(error) => return crate::explain(error),
        OptionError::Invalid(problems) => problems.to_string().lines().for_each(complain),
        OptionError::Io(error) => return fail(error),
    }
    ExitCode::from(USAGE)
}

/// Prints the effective options in the form of a configuration file.
fn dump(effective: EffectiveOptions) -> ExitCode {
    let notes = effective.notes.iter();
    let notes: String = notes.map(|note| shown::line(format!("# note: {note}"))).collect();
    let text = notes + &effective.config.with_defaults().to_string();
    crate::shown::print(text);
    ExitCode::SUCCESS
}

fn fail(error: impl std::fmt::Display) -> ExitCode {
    complain(error);
    ExitCode::FAILURE
}

/// The option that errors of a takeover name.
const TAKEOVER: &str = "upgrade";

/// What the process provides beside its options: passed sockets, log level, user.
struct Environment {
    sockets: InheritedSockets,
    log_level: LogLevel,
    user: Option<User>,
    /// What the process handed over that this one replaces, without the sockets.
    state: ProcessState,
    mounts: Option<Arc<MountHelpers>>,
}

fn user(options: &ServeArgs) -> Result<Option<User>, ConfigError> {
    options.user.as_deref().map(user::look_up).transpose()
}

fn start(
    effective: &EffectiveOptions,
    (specs, mut server_options): (Vec<ExportSpec>, ServerOptions),
    Environment { mut sockets, log_level, user, mut state, mounts }: Environment,
    signals: &Signals,
) -> Result<Running, ConfigError> {
    let EffectiveOptions { options, config, .. } = effective;
    let tight = memory::check(config, &server_options)?;
    if let Some(user) = &user {
        user.prepare()?;
    }
    let memory = std::mem::take(&mut sockets.memory);
    let mut store = CacheStore::find(
        &options.cache_file,
        memory,
        state.memory.as_ref(),
        user.as_ref().map(User::uid),
        server_options.cache > 0,
    )?;
    let is_takeover = server_options.process.takeover.is_some();
    if let Some(takeover) = &server_options.process.takeover {
        if let Some(memory) = state.memory.take().filter(|_| takeover.has_memory()) {
            store.take_over(memory);
        }
        takeover.give_locks(&store.leftovers);
    }
    server_options.live |= sockets.control.is_some();
    server_options.process.config = options.config.as_ref().map(address::absolute);
    let kind = (server_options.live, is_takeover);
    let mut assembly = images::open(effective, &specs, kind, &store.leftovers)?;
    if server_options.cache > 0 {
        server_options.process.cache_file = store.create()?;
        memory::fit_cache(&mut server_options)?;
    }
    server_options.process.leftovers = store.leftovers.clone();
    let of_predecessor = state.private.take().map(PrivateDirectory::of_predecessor);
    let has_sections = !server_options.access.listeners.is_empty();
    let (listen, mut private) =
        addresses(&options.listening, &sockets, of_predecessor, has_sections)?;
    let (unix, tcp) = socket_addresses(&listen);
    server_options.listen = listen;
    if let Some(given) = &sockets.control {
        server_options.control = unix_path(given);
        server_options.process.control = Some(given.clone());
    }
    server_options.process.metrics = sockets.metrics.clone();
    server_options.process.log_level = Some(log_level);
    let mut exports = announced(&assembly, server_options.cache > 0);
    let mut notes = notes_before(effective, &mut assembly, tight);
    notes.extend(notes_of_listening(effective, &specs, &server_options));
    let ended = signals.ended()?;
    let mut own = own_files(&server_options, private.as_ref());
    // Another process named it: only the one that made it gives it to the user.
    own.extend(store.path().filter(|_| !store.is_taken_over()).map(PathBuf::from));
    let mut pid_file = None;
    let opened = || {
        // The replaced process has the file until it has ended.
        let write = if is_takeover { PidFile::open } else { PidFile::write };
        pid_file = options.pid_file.as_deref().map(write).transpose()?;
        let Some(user) = &user else { return Ok(()) };
        own.iter().try_for_each(|path| user.set_owner(path))?;
        user.apply()
    };
    let server = Server::start_after(assembly, &server_options, move || ended.notify(), opened)
        .inspect_err(|_| {
            if !store.is_taken_over() {
                store.remove()
            }
        })?;
    if is_takeover {
        // From here on the files of the replaced process are this one's.
        private.iter_mut().for_each(PrivateDirectory::take_over);
        take_pid_file(pid_file.as_mut(), state.pid_file.as_deref());
    }
    notes.append(&mut store.notes);
    notes.extend(server.notes().iter().cloned());
    if !server.keeps_cache() {
        store.remove();
    }
    let pid_file_path = options.pid_file.as_deref();
    notes.extend(user.iter().flat_map(|user| user.removal_warnings(&own, pid_file_path)));
    let port = server.ports().iter().copied().flatten().next();
    let listeners = listen::announced(&server_options.access, &specs, &server);
    let has_default = !server_options.listen.is_empty();
    let further = address::further(&server_options.listen, &server.ports());
    for export in &mut exports {
        let ip = tcp.unwrap_or(options.listening.ip_addr);
        export.uri = match has_default {
            true => {
                tls::encrypted(uri(&export.name, unix.as_deref(), ip, port), &server_options.tls)
            }
            false => first_uri(&listeners, &export.name),
        };
    }
    let ServerOptions { dirty, auto_cache, .. } = &server_options;
    let dirty_limit = durability::dirty_limit(server_options.dirtyable(), dirty);
    let dirty_limit = durability::dirty_most(dirty_limit, *auto_cache, dirty, server.keeps_cache());
    let ServerOptions { cache: cache_bytes, control, .. } = server_options;
    let stop = (options.stop_timeout > 0).then(|| Duration::from_nanos(options.stop_timeout));
    Ok(Running {
        server,
        exports,
        listeners,
        has_default,
        notes,
        dirty_limit,
        cache_bytes,
        stop,
        unix,
        port,
        further,
        control,
        private,
        pid_file,
        store,
        sockets,
        mounts,
    })
}

/// What is to be said of options, memory and images; what may hurt goes to the log too.
fn notes_before(
    effective: &EffectiveOptions,
    assembly: &mut Assembly,
    tight: Option<String>,
) -> Vec<String> {
    let absent: Vec<String> = assembly.absent.iter().map(announce::absent).collect();
    absent.iter().chain(&tight).for_each(|warning| tracing::warn!("{warning}"));
    let mut notes = effective.notes.clone();
    notes.extend(absent.into_iter().chain(tight));
    notes.append(&mut assembly.notes);
    notes
}

/// What is to be said of listening sockets, and of the clients that can reach them; warnings go to the log too.
fn notes_of_listening(
    effective: &EffectiveOptions,
    specs: &[ExportSpec],
    server_options: &ServerOptions,
) -> Vec<String> {
    let warnings = listen::warnings(specs, server_options);
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let unused = address::unused(&effective.config, &effective.options.listening);
    let all = tls::note(&server_options.tls).into_iter().chain(listen::exposed(server_options));
    all.chain(unused).chain(warnings).collect()
}

/// The first listener's address of an export; none if no listener offers it.
fn first_uri(listeners: &[listen::AnnouncedListener], name: &str) -> String {
    let mut offered = listeners.iter().flat_map(|listener| &listener.exports);
    offered.find(|(offered, _)| offered == name).map(|(_, uri)| uri.clone()).unwrap_or_default()
}

/// Writes the pid file when this process has replaced another one, and removes the other one's if it has another path.
fn take_pid_file(own: Option<&mut PidFile>, of_predecessor: Option<&Path>) {
    if let Some(path) =
        of_predecessor.filter(|path| own.as_ref().is_none_or(|own| own.path() != *path))
        && let Err(error) = std::fs::remove_file(path)
    {
        tracing::warn!("cannot remove the old pid file {}: {error}", path.display());
    }
    if let Some(Err(error)) = own.map(PidFile::fill) {
        tracing::warn!("{error}");
    }
}

/// Socket files that the server creates; `--user` becomes their owner.
fn own_files(options: &ServerOptions, private: Option<&PrivateDirectory>) -> Vec<PathBuf> {
    let unix = options.listen.iter().filter_map(|address| match address {
        Address::Unix { path, .. } => Some(path.clone()),
        Address::Tcp(_) | Address::InheritedSocket(_) | Address::Directory(_) => None,
    });
    // A socket with an owner of its own stays that owner's.
    let sections = options.access.listeners.iter().filter(|spec| spec.owner.is_none());
    let unix = unix.chain(sections.filter_map(listen::path_of));
    let control = options.control.iter().filter(|_| options.process.control.is_none()).cloned();
    let private = private.filter(|private| private.is_own());
    unix.chain(control).chain(private.map(|private| private.path().to_owned())).collect()
}

fn serve(
    options: &ServeArgs,
    running: Running,
    signals: &Signals,
    upkeep: &mut Upkeep,
    predecessor: Option<Predecessor>,
) -> ExitCode {
    announce(options, &running);
    let child = match options.run.as_ref().map(|command| spawn(command, &running)).transpose() {
        Ok(child) => child,
        Err(error) => {
            running.server.stop();
            let _ = running.server.join();
            return fail(format!("cannot run the --run command: {error}"));
        }
    };
    // After the child has started: the filter forbids exec.
    if options.sandbox == Sandbox::On
        && let Err(error) = sandbox::install()
    {
        tracing::warn!(
            "cannot install the seccomp filter (--sandbox): {error}; the server runs without it"
        );
    }
    let mut manager = ServiceManager::new();
    manager.ready(running.exports.len());
    if let Some(predecessor) = predecessor {
        predecessor.serving();
    }
    let (status, took) = match wait(&running, signals, &mut manager, child, upkeep) {
        StopOutcome::AtOnce(took) => {
            end_at_once(&running, "before another signal ended the server", took)
        }
        StopOutcome::TimedOut(took) => {
            let time =
                format!("within the {} s of --stop-timeout", options.stop_timeout / 1_000_000_000);
            end_at_once(&running, &time, took)
        }
        StopOutcome::HandedOver(done) => done.exit(),
        StopOutcome::Left(connections) => {
            tracing::info!(
                "everything is written out; {connections} connections wait for the next start"
            );
            // Nothing is dropped that the next start finds; files of this process go.
            let Running { pid_file, private, .. } = running;
            drop((pid_file, private));
            std::process::exit(0)
        }
        StopOutcome::Ended(status, took) => (status, took),
    };
    let Running { server, pid_file, store, .. } = running;
    drop(pid_file);
    let dirty = server.dirty_at_stop();
    let memory = server.memory();
    let ended = server.join();
    if ended.is_ok() {
        tracing::info!("{}", progress::completed(dirty, took.as_nanos() as u64));
    }
    if ended.is_ok() && memory.is_some_and(|memory| memory.dirty_bytes() == 0) {
        store.remove();
    }
    match (ended, status) {
        (Err(error), _) => fail(error),
        (Ok(()), Some(status)) => child_code(status),
        (Ok(()), None) => ExitCode::SUCCESS,
    }
}
