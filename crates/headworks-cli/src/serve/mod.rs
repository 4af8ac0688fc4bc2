//! `headworks serve`: from the command line to a running server, and to its end.
//!
//! The main thread blocks all signals before any other thread starts and then only waits: for a signal, for the server's
//! end, for the child of `--run`. One SIGTERM or SIGINT drains, writes out, flushes and ends with 0; a second, or the end of
//! `--stop-timeout`, ends at once and says what was not written.
//!
//! `options` are the words, `plan` what they mean, `address` where clients connect, `announce` what users are told, `child` the
//! command of `--run`, `stop` the way to the end, `tls` what is encrypted.

mod address;
mod announce;
mod child;
mod options;
mod plan;
mod stop;
mod tls;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use headworks::core::ConfigError;
use headworks::server::assemble::{Assembly, ExportSpec};
use headworks::server::{Address, Server, ServerOptions};

use crate::modes;
use crate::signals::Signals;
use crate::{USAGE, complain};
use address::{PrivateDirectory, addresses, uri};
use announce::{Shown, announce, shown};
use child::{child_code, spawn};
use plan::plan;
use stop::{Waited, end_at_once, wait};

pub use options::Options;

/// Serves until it is told to stop.
pub fn run(options: Options) -> ExitCode {
    crate::log_to_stderr(options.verbose);
    // Before any thread starts, so that all inherit the mask.
    let signals = match Signals::block() {
        Ok(signals) => signals,
        Err(error) => return fail(format!("cannot wait for signals: {error}")),
    };
    // What is wrong with the words comes before anything is opened, and has a code of its own.
    let planned = match plan(&options) {
        Ok(planned) => planned,
        Err(error) => {
            complain(error);
            return ExitCode::from(USAGE);
        }
    };
    match start(&options, planned, &signals) {
        Ok(running) => serve(&options, running, &signals),
        Err(error) => fail(error),
    }
}

fn fail(error: impl std::fmt::Display) -> ExitCode {
    complain(error);
    ExitCode::FAILURE
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
}

fn start(
    options: &Options,
    (specs, mut server_options): (Vec<ExportSpec>, ServerOptions),
    signals: &Signals,
) -> Result<Running, ConfigError> {
    let mut assembly = Assembly::new(&specs)?;
    for (queue, _) in &mut assembly.devices {
        options.queue.apply(queue)?;
    }
    let (listen, private) = addresses(options)?;
    let unix = listen.iter().find_map(|address| match address {
        Address::Unix { path, .. } => Some(path.clone()),
        Address::Tcp(_) => None,
    });
    server_options.listen = listen;
    let mut exports = shown(&assembly, server_options.cache > 0);
    let mut notes = std::mem::take(&mut assembly.notes);
    notes.extend(tls::note(&server_options.tls));
    let ended = signals.ended()?;
    let server = Server::start(assembly, &server_options, move || ended.tell())?;
    let port = server.ports().iter().copied().flatten().next();
    for export in &mut exports {
        let uri = uri(&export.name, unix.as_deref(), options.ip_addr, port);
        export.uri = tls::encrypted(uri, &server_options.tls);
    }
    let ServerOptions { cache: cache_bytes, control, .. } = server_options;
    let dirty_limit = modes::dirty_limit(cache_bytes, &server_options.dirty);
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
    })
}
fn serve(options: &Options, running: Running, signals: &Signals) -> ExitCode {
    if let Err(error) = announce(options, &running) {
        running.server.stop();
        let _ = running.server.join();
        return fail(error);
    }
    let child = match options.run.as_ref().map(|command| spawn(command, &running)).transpose() {
        Ok(child) => child,
        Err(error) => {
            running.server.stop();
            let _ = running.server.join();
            return fail(format!("cannot run the command: {error}"));
        }
    };
    let status = match wait(&running, signals, child) {
        Waited::AtOnce => end_at_once(&running, options, "before the stop that was not waited for"),
        Waited::TooLong => {
            let time =
                format!("within the {} s of --stop-timeout", options.stop_timeout / 1_000_000_000);
            end_at_once(&running, options, &time)
        }
        Waited::Ended(status) => status,
    };
    let Running { server, .. } = running;
    if let Some(path) = &options.pid_file {
        let _ = std::fs::remove_file(path);
    }
    match (server.join(), status) {
        (Err(error), _) => fail(error),
        (Ok(()), Some(status)) => child_code(status),
        (Ok(()), None) => ExitCode::SUCCESS,
    }
}
