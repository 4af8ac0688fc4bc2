//! `headworks serve`: from the command line to a running server, and to its end.
//!
//! The main thread blocks all signals before any other thread starts and then only waits: for a signal, for the server's
//! end, for the child of `--run`. One SIGTERM or SIGINT drains, writes out, flushes and ends with 0; a second, or the end of
//! `--stop-timeout`, ends at once and says what was not written.
//!
//! `options` are the words, `layers` who said them (with `table`, the names, and `source`, where they are found), `plan` what they
//! mean, `check` the command that only looks, `address` where clients connect, `announce` what users are told, `child` the command
//! of `--run`, `reload` what SIGHUP does, `stop` the way to the end; `tls` what is encrypted, `systemd` whom a service manager talks
//! to, `user` who we are once all is open, `sandbox` what we may not do from then on.

mod address;
mod announce;
pub mod check;
mod child;
mod layers;
mod options;
mod pid_file;
mod plan;
mod reload;
mod sandbox;
mod source;
mod stop;
mod systemd;
mod table;
mod tls;
mod user;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use headworks_core::ConfigError;
use headworks_server::assemble::{Assembly, ExportSpec};
use headworks_server::config::Problems;
use headworks_server::{Address, LogLevel, Server, ServerOptions};

use crate::log;
use crate::durability;
use crate::signals::Signals;
use crate::{USAGE, complain};
use address::{PrivateDirectory, addresses, places, uri};
use announce::{Shown, announce, shown};
use child::{child_code, spawn};
use options::Sandbox;
use pid_file::PidFile;
use plan::blame;
use reload::Reload;
use stop::{Waited, end_at_once, wait};
use systemd::{Manager, Sockets, unix_path};
use user::User;

pub use layers::{Settled, Wrong, switches};
pub use options::Options;
pub use plan::plan;
pub use source::Told;

/// Serves until it is told to stop.
pub fn run() -> ExitCode {
    // Before anything is opened that could have their numbers.
    let sockets = match Sockets::take() {
        Ok(sockets) => sockets,
        Err(error) => return fail(error),
    };
    let told = Told::here();
    let settled = match told.settle() {
        Ok(settled) => settled,
        Err(wrong) => return refuse(&wrong),
    };
    let log_level = match log::install(settled.options.log, settled.options.verbose) {
        Ok(log_level) => log_level,
        Err(error) => return fail(error),
    };
    // Before any thread starts, so that all inherit the mask.
    let signals = match Signals::block() {
        Ok(signals) => signals,
        Err(error) => return fail(format!("cannot wait for signals: {error}")),
    };
    // What is wrong with the words comes before anything is opened, and has a code of its own.
    let planned = match plan(&settled) {
        Ok(planned) => planned,
        Err(problems) => return refuse(&Wrong::Words(problems)),
    };
    if settled.options.dump_config {
        return dump(settled);
    }
    let user = match user(&settled.options) {
        Ok(user) => user,
        Err(error) => return refuse(&Wrong::Words(Problems(vec![blame(&settled.config, &error)]))),
    };
    let place = Place { sockets, log_level, user };
    match start(&settled, planned, place, &signals) {
        Ok(running) => {
            let mut reload = Reload::new(told, &settled);
            serve(&settled.options, running, &signals, &mut reload)
        }
        Err(error) => fail(error),
    }
}

/// Says all that is wrong; words have a code of their own.
pub fn refuse(wrong: &Wrong) -> ExitCode {
    match wrong {
        Wrong::Usage(error) => return crate::explain(error),
        Wrong::Words(problems) => problems.to_string().lines().for_each(complain),
        Wrong::World(error) => return fail(error),
    }
    ExitCode::from(USAGE)
}

/// What would be served, in the form of a configuration file.
fn dump(settled: Settled) -> ExitCode {
    let notes: String = settled.notes.iter().map(|note| format!("# note: {note}\n")).collect();
    let text = notes + &settled.config.with_defaults().to_string();
    // Nobody may be reading.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

fn fail(error: impl std::fmt::Display) -> ExitCode {
    complain(error);
    ExitCode::FAILURE
}

/// What a server is given beside its words.
struct Place {
    sockets: Sockets,
    log_level: LogLevel,
    user: Option<User>,
}

fn user(options: &Options) -> Result<Option<User>, ConfigError> {
    options.user.as_deref().map(user::look_up).transpose()
}

struct Running {
    server: Server,
    exports: Vec<Shown>,
    notes: Vec<String>,
    /// The most that may be dirty, in bytes.
    dirty_limit: u64,
    cache_bytes: u64,
    /// How long a stop may take; none: however long.
    stop: Option<Duration>,
    unix: Option<PathBuf>,
    port: Option<u16>,
    control: Option<PathBuf>,
    /// The directory of a private socket; it goes with us.
    private: Option<PrivateDirectory>,
    pid_file: Option<PidFile>,
}

fn start(
    settled: &Settled,
    (specs, mut server_options): (Vec<ExportSpec>, ServerOptions),
    Place { sockets, log_level, user }: Place,
    signals: &Signals,
) -> Result<Running, ConfigError> {
    let Settled { options, config, .. } = settled;
    if let Some(user) = &user {
        user.prepare()?;
    }
    let mut assembly = Assembly::new(&specs)?;
    for ((queue, _), named) in assembly.devices.iter_mut().zip(&assembly.named) {
        config.apply_queue(named.as_ref().map(|named| named.name.as_str()), queue)?;
    }
    let (listen, private) = addresses(options, &sockets)?;
    let (unix, tcp) = places(&listen);
    server_options.listen = listen;
    if let Some(given) = sockets.control {
        server_options.control = unix_path(&given);
        server_options.control_given = Some(given);
        server_options.live = true;
    }
    server_options.metrics_given = sockets.metrics;
    server_options.log_level = Some(log_level);
    let mut exports = shown(&assembly, server_options.cache > 0);
    let mut notes = settled.notes.clone();
    notes.append(&mut assembly.notes);
    notes.extend(tls::note(&server_options.tls));
    let ended = signals.ended()?;
    let own = own_files(&server_options, private.as_ref());
    let mut pid_file = None;
    let opened = || {
        pid_file = options.pid_file.as_deref().map(PidFile::write).transpose()?;
        let Some(user) = &user else { return Ok(()) };
        own.iter().try_for_each(|path| user.give(path))?;
        user.become_it()
    };
    let server = Server::start_after(assembly, &server_options, move || ended.ring(), opened)?;
    let pid_file_path = options.pid_file.as_deref();
    notes.extend(user.iter().flat_map(|user| user.leftovers(&own, pid_file_path)));
    let port = server.ports().iter().copied().flatten().next();
    for export in &mut exports {
        let uri = uri(&export.name, unix.as_deref(), tcp.unwrap_or(options.ip_addr), port);
        export.uri = tls::encrypted(uri, &server_options.tls);
    }
    let ServerOptions { cache: cache_bytes, control, .. } = server_options;
    let dirty_limit = durability::dirty_limit(cache_bytes, &server_options.dirty);
    let stop = (options.stop_timeout > 0).then(|| Duration::from_nanos(options.stop_timeout));
    Ok(Running {
        server,
        exports,
        notes,
        dirty_limit,
        cache_bytes,
        stop,
        unix,
        port,
        control,
        private,
        pid_file,
    })
}

/// Files that we make to be reached by, and that a user whom we become is to have.
fn own_files(options: &ServerOptions, private: Option<&PrivateDirectory>) -> Vec<PathBuf> {
    let unix = options.listen.iter().filter_map(|address| match address {
        Address::Unix { path, .. } => Some(path.clone()),
        Address::Tcp(_) | Address::Given(_) => None,
    });
    let control = options.control.iter().filter(|_| options.control_given.is_none()).cloned();
    unix.chain(control).chain(private.map(|private| private.0.clone())).collect()
}

fn serve(options: &Options, running: Running, signals: &Signals, reload: &mut Reload) -> ExitCode {
    announce(options, &running);
    let child = match options.run.as_ref().map(|command| spawn(command, &running)).transpose() {
        Ok(child) => child,
        Err(error) => {
            running.server.stop();
            let _ = running.server.join();
            return fail(format!("cannot run the command: {error}"));
        }
    };
    // The command has to be started before; of what it starts nothing is ours.
    if options.sandbox == Sandbox::On
        && let Err(error) = sandbox::enter()
    {
        tracing::warn!("no system call is refused to the server (--sandbox): {error}");
    }
    let mut manager = Manager::new();
    manager.ready(running.exports.len());
    let status = match wait(&running, signals, &mut manager, child, reload) {
        Waited::AtOnce => end_at_once(&running, "before the stop that was not waited for"),
        Waited::TooLong => {
            let time =
                format!("within the {} s of --stop-timeout", options.stop_timeout / 1_000_000_000);
            end_at_once(&running, &time)
        }
        Waited::Ended(status) => status,
    };
    let Running { server, pid_file, .. } = running;
    drop(pid_file);
    match (server.join(), status) {
        (Err(error), _) => fail(error),
        (Ok(()), Some(status)) => child_code(status),
        (Ok(()), None) => ExitCode::SUCCESS,
    }
}
