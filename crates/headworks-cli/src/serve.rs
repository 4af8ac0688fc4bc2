//! `headworks serve`: from the command line to a running server, and to its end.
//!
//! The main thread blocks all signals before any other thread starts and then only waits: for a signal, for the server's
//! end, for the child of `--run`. One SIGTERM or SIGINT drains, writes out, flushes and ends with 0; a second, or the end of
//! `--stop-timeout`, ends at once and says what was not written.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use clap::Args;
use headworks::core::{ConfigError, ErrorPolicy, Ioprio, PlugNesting, QueueOptions, WriteMode};
use headworks::device::{Share, Spec};
use headworks::server::assemble::{self, Assembly, ExportSpec};
use headworks::server::{Address, Server, ServerOptions};
use headworks::units::{parse_size, parse_time};

use crate::modes::{self, Promise};
use crate::progress::{self, Progress};
use crate::signals::{News, Signals};
use crate::tunables::Queue;
use crate::{USAGE, complain};

/// Serves disk images over NBD.
#[derive(Args)]
#[command(after_help = "\
Examples:
  headworks serve disk.img                          one image on a private unix socket
  headworks serve --size 10G new.img -U /run/d.sock  make a sparse image, choose the socket
  headworks serve a=one.img b=two.img -p 10809      two exports on TCP, 127.0.0.1:10809
  headworks serve mem:size=1G --run 'nbdinfo $uri'  serve while a command runs
  headworks serve delay:read=5ms,of=file:path=disk.img
  headworks serve --cache 4G --set vm/dirty_bytes=256M disk.img   a larger page cache, at most 256 MiB of it dirty
  headworks serve a=file:path=a.img,cache=writethrough b=file:path=b.img,cache=none
  headworks serve --cache 0 disk.img                no page cache: every request goes to the device
  headworks serve db=file:path=db.img,weight=400,ioprio=rt logs=file:path=logs.img,weight=50 --control /run/hw.ctl

SPEC is a path or type:key=value,...: file (path, size, direct, read-only), null (size), mem (size), and around another
device delay (read, write, flush, discard, all, jitter, of) and error (rate, errno, op, range, after, count, of).
Of an export, among the keys of the outermost type: weight (1 to 10000, default 100), its share of the device beside other
exports; ioprio (rt, be or idle, with a level of 0 to 7: be:0), the class of its clients' requests, default be:4; cache, when
a write is acknowledged: writeback (in the page cache; durable after a flush or by FUA), writethrough (in the device), none
(as without a cache) or unsafe (flushes promise nothing: for what may be lost), default writeback (mem and null: none); on-error, what becomes of
a block that could not be written out: hold (kept, flushes fail until it is acknowledged) or retry (also written again by
itself), default hold.
Sizes: 512, 4K, 10M, 1G, 2T (powers of 1024). Times: 10us, 5ms, 30 (seconds).")]
pub struct Options {
    /// What to serve; the first is the default export
    #[arg(value_name = "[NAME=]SPEC", required = true)]
    exports: Vec<String>,
    /// Listen on this unix socket; `-` makes a private one
    #[arg(short = 'U', long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// Permissions of the unix socket, octal
    #[arg(long, value_name = "MODE", default_value = "600")]
    unix_mode: String,
    /// Listen on this TCP port; 0 takes a free one
    #[arg(short, long)]
    port: Option<u16>,
    /// Listen on this address (with --port)
    #[arg(short = 'i', long, value_name = "ADDR", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    ip_addr: IpAddr,
    /// Listen for `headworks ctl` on this unix socket, for the owner alone
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Refuse all writes
    #[arg(short, long)]
    read_only: bool,
    /// Size of devices that name none; makes image files that are missing
    #[arg(long, value_parser = size)]
    size: Option<u64>,
    /// How to wait for disks and sockets: auto, uring or threads
    #[arg(long, default_value = "auto", value_name = "ENGINE")]
    engine: String,
    /// Look this many microseconds before sleeping; 0 never
    #[arg(long, default_value_t = 50, value_name = "N")]
    poll_us: u64,
    /// Threads; devices are shared out among them
    #[arg(long, default_value_t = 1, value_name = "N")]
    shards: u16,
    /// Share out volumes among the threads, too, even of one device
    #[arg(long)]
    spread: bool,
    /// CPUs for the threads, in order: 0,1
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    cpus: Vec<usize>,
    /// Run a shell command with $uri, $unixsocket, $port, $nbd and $control; serve until it ends, end with its status
    #[arg(long, value_name = "CMD")]
    run: Option<String>,
    /// Write the process id here once clients may connect
    #[arg(short = 'P', long, value_name = "FILE")]
    pid_file: Option<PathBuf>,
    /// Record every input of the path, for `headworks lab replay`
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// The page cache, all threads together; 0: none
    #[arg(long, value_parser = size, default_value = "256M", value_name = "SIZE")]
    cache: u64,
    /// Memory for requests' data, for each thread
    #[arg(long, value_parser = size, default_value = "128M", value_name = "SIZE")]
    buffers: u64,
    /// Clients at once, for each thread
    #[arg(long, default_value_t = 1024, value_name = "N")]
    connections: usize,
    /// Requests of one client in flight
    #[arg(long, default_value_t = 128, value_name = "N")]
    requests: usize,
    /// A handshake may take this long
    #[arg(long, value_parser = time, default_value = "10s", value_name = "TIME")]
    handshake_timeout: u64,
    /// A payload or reply that makes no progress for this long ends its connection
    #[arg(long, value_parser = time, default_value = "60s", value_name = "TIME")]
    stall_timeout: u64,
    /// A stop may take this long to write everything out; 0: however long
    #[arg(long, value_parser = time, default_value = "60s", value_name = "TIME")]
    stop_timeout: u64,
    #[command(flatten)]
    queue: Queue,
    /// One JSON object at the start instead of lines
    #[arg(long)]
    json: bool,
    /// Say more: once for connections, twice for everything
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
}

fn size(word: &str) -> Result<u64, String> {
    parse_size(word)
}

fn time(word: &str) -> Result<u64, String> {
    parse_time(word)
}

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

/// An export as it is shown.
struct Shown {
    name: String,
    description: String,
    size: u64,
    uri: String,
    volume: usize,
    weight: u16,
    ioprio: Ioprio,
    /// Writes need a flush to outlive a power cut.
    volatile: bool,
    read_only: bool,
    mode: WriteMode,
    on_error: ErrorPolicy,
    /// Its bytes outlive the process.
    lasting: bool,
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

struct PrivateDirectory(PathBuf);

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// What the command line says, checked as far as that goes without opening anything.
fn plan(options: &Options) -> Result<(Vec<ExportSpec>, ServerOptions), ConfigError> {
    let specs = options.exports.iter().map(|text| export_spec(text, options));
    let specs: Vec<ExportSpec> = specs.collect::<Result<_, _>>()?;
    assemble::check(&specs)?;
    options.queue.apply(&mut QueueOptions::default())?;
    unix_mode(options)?;
    let server = ServerOptions {
        listen: Vec::new(),
        control: options.control.as_ref().map(absolute),
        shards: options.shards,
        spread: options.spread,
        cpus: options.cpus.clone(),
        engine: options.engine.parse()?,
        poll_ns: options.poll_us.saturating_mul(1000),
        buffers: options.buffers as usize,
        connections: options.connections,
        requests: options.requests,
        handshake_ns: options.handshake_timeout,
        stall_ns: options.stall_timeout,
        record: options.record.clone(),
        plug_nesting: PlugNesting::default(),
        cache: options.cache,
        dirty: options.queue.dirty()?,
        stop_ns: options.stop_timeout,
    };
    let cached = |spec: &&ExportSpec| spec.share.mode.is_some_and(|mode| mode != WriteMode::None);
    if let Some(spec) = specs.iter().find(cached).filter(|_| options.cache == 0) {
        let message = format!("export `{}` wants one, but --cache 0 is none", spec.name);
        return Err(ConfigError::new("cache", message));
    }
    server.validate()?;
    Ok((specs, server))
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
    let notes = std::mem::take(&mut assembly.notes);
    let ended = signals.ended()?;
    let server = Server::start(assembly, &server_options, move || ended.tell())?;
    let port = server.ports().iter().copied().flatten().next();
    for export in &mut exports {
        export.uri = uri(&export.name, unix.as_deref(), options.ip_addr, port);
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

fn unix_mode(options: &Options) -> Result<u32, ConfigError> {
    let mode = u32::from_str_radix(&options.unix_mode, 8).ok();
    mode.filter(|mode| *mode <= 0o777).ok_or_else(|| {
        let message = format!("`{}` is no octal mode such as 660", options.unix_mode);
        ConfigError::new("unix-mode", message)
    })
}

fn export_spec(text: &str, options: &Options) -> Result<ExportSpec, ConfigError> {
    let (name, spec) = split_name(text);
    let (mut parsed, share) = Spec::parse_export(spec)?;
    if let Some(size) = options.size {
        parsed.set_default_size(size);
    }
    let name = match name {
        Some(name) => name.to_owned(),
        None if options.exports.len() == 1 => String::new(),
        None => parsed.short_name(),
    };
    Ok(ExportSpec { share, ..ExportSpec::new(name, parsed, options.read_only) })
}

/// `NAME=SPEC`: the name is made of letters, digits, `.`, `_` and `-`, so `file:path=x` and `./a=b` are specs.
fn split_name(text: &str) -> (Option<&str>, &str) {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
    };
    match text.split_once('=') {
        Some((name, spec)) if is_name(name) => (Some(name), spec),
        _ => (None, text),
    }
}

fn addresses(options: &Options) -> Result<(Vec<Address>, Option<PrivateDirectory>), ConfigError> {
    let mut listen = Vec::new();
    let mut private = None;
    if let Some(port) = options.port {
        listen.push(Address::Tcp(SocketAddr::new(options.ip_addr, port)));
    }
    let path = match &options.unix {
        Some(path) if path.as_os_str() != "-" => Some(path.clone()),
        None if options.port.is_some() => None,
        _ => {
            let directory = private_directory()?;
            let path = directory.0.join("headworks.sock");
            private = Some(directory);
            Some(path)
        }
    };
    if let Some(path) = path {
        let path = absolute(&path);
        listen.push(Address::Unix { path, mode: unix_mode(options)? });
    }
    Ok((listen, private))
}

fn absolute(path: &PathBuf) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.clone())
}

/// A new directory that only we may enter.
fn private_directory() -> Result<PrivateDirectory, ConfigError> {
    use std::os::unix::fs::DirBuilderExt;
    let base = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    for attempt in 0..100 {
        let path = base.join(format!("headworks-{}-{attempt}", std::process::id()));
        match std::fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(PrivateDirectory(path)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                let message =
                    format!("cannot make {}: {error}; name a socket with -U", path.display());
                return Err(ConfigError::new("unix", message));
            }
        }
    }
    Err(ConfigError::new("unix", "no private directory is free; name a socket with -U"))
}

fn shown(assembly: &Assembly, cache: bool) -> Vec<Shown> {
    let exports = assembly.exports.iter().map(|export| {
        let (device, volume) = &assembly.volumes[usize::from(export.volume.0)];
        Shown {
            name: export.name.clone(),
            description: export.description.clone(),
            size: volume.size,
            uri: String::new(),
            volume: export.volume.0.into(),
            weight: export.weight,
            ioprio: export.ioprio,
            volatile: assembly.devices[usize::from(device.0)].0.write_cache && !volume.read_only,
            read_only: export.read_only || volume.read_only,
            mode: if cache { volume.mode } else { WriteMode::None },
            on_error: volume.on_error,
            lasting: export.lasting,
        }
    });
    exports.collect()
}

fn uri(name: &str, unix: Option<&std::path::Path>, address: IpAddr, port: Option<u16>) -> String {
    let encode = |text: &str| -> String {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
        let encoded = text.bytes().map(|byte| match plain(byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        });
        encoded.collect()
    };
    match (unix, port) {
        (Some(path), _) => {
            format!("nbd+unix:///{}?socket={}", encode(name), encode(&path.to_string_lossy()))
        }
        (None, Some(port)) => format!("nbd://{}/{}", SocketAddr::new(address, port), encode(name)),
        (None, None) => String::new(),
    }
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

fn announce(options: &Options, running: &Running) -> Result<(), String> {
    let text = if options.json { announcement_json(running) } else { announcement(running) };
    let mut out = io::stdout().lock();
    // Nobody may be reading.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match &options.pid_file {
        Some(path) => std::fs::write(path, format!("{}\n", std::process::id()))
            .map_err(|error| format!("cannot write {}: {error}", path.display())),
        None => Ok(()),
    }
}

fn announcement(running: &Running) -> String {
    let mut text = String::new();
    for note in &running.notes {
        text += &format!("note: {note}\n");
    }
    for export in &running.exports {
        let (name, share) = (export.shown_name(), export.share());
        text += &format!("export: {name}: {}{share}\n", export.description);
    }
    let promises = promises(&running.exports);
    for export in running.exports.iter().filter(|export| export.mode == WriteMode::Unsafe) {
        let name = export.shown_name();
        text +=
            &format!("WARNING: export {name} is cache=unsafe: flushes and FUA promise nothing\n");
    }
    text += &format!("engine: {}\n", running.server.engine());
    text += &format!("cache: {}\n", running.server.cache().unwrap_or("none"));
    text += &format!("write mode: {}\n", modes::write_modes(&promises));
    text += &format!("kill -9 loses: {}\n", modes::loss(&promises, running.dirty_limit));
    for export in &running.exports {
        text += &format!("uri: {}\n", export.uri);
    }
    if let Some(first) = running.exports.first() {
        text += &format!("try: nbdinfo '{}'\n", first.uri);
    }
    if let Some(path) = &running.control {
        text += &format!("control: headworks ctl '{}' get\n", path.display());
    }
    text
}

fn promises(exports: &[Shown]) -> Vec<Promise<'_>> {
    exports.iter().map(Shown::promise).collect()
}

impl Shown {
    fn shown_name(&self) -> &str {
        if self.name.is_empty() { "(default)" } else { &self.name }
    }

    fn promise(&self) -> Promise<'_> {
        let Self { lasting, read_only, mode, .. } = *self;
        Promise { name: self.shown_name(), lasting, read_only, mode }
    }

    /// Its share and its class, if they are not the ordinary ones.
    fn share(&self) -> String {
        let ordinary = Share::default();
        let mut text = String::new();
        if self.weight != ordinary.weight {
            text += &format!(", weight {}", self.weight);
        }
        if self.ioprio != ordinary.ioprio {
            text += &format!(", class {}", self.ioprio);
        }
        text
    }
}

fn announcement_json(running: &Running) -> String {
    let exports: Vec<serde_json::Value> = running
        .exports
        .iter()
        .map(|export| {
            serde_json::json!({
                "name": export.name,
                "description": export.description,
                "size": export.size,
                "uri": export.uri,
                "weight": export.weight,
                "ioprio": export.ioprio.to_string(),
                "cache": export.mode.name(),
                "on_error": export.on_error.name(),
            })
        })
        .collect();
    let promises = promises(&running.exports);
    let object = serde_json::json!({
        "exports": exports,
        "engine": running.server.engine(),
        "cache": running.server.cache(),
        "cache_bytes": running.cache_bytes,
        "write_mode": modes::write_modes(&promises),
        "kill_loses": modes::loss(&promises, running.dirty_limit),
        "notes": running.notes,
        "unix": running.unix,
        "port": running.port,
        "control": running.control,
    });
    format!("{object}\n")
}

fn spawn(command: &str, running: &Running) -> io::Result<Child> {
    let first = running.exports.first().map_or("", |export| export.uri.as_str());
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(command).env("uri", first).env("nbd", first);
    if let Some(path) = &running.unix {
        shell.env("unixsocket", path);
    }
    if let Some(port) = running.port {
        shell.env("port", port.to_string());
    }
    if let Some(path) = &running.control {
        shell.env("control", path);
    }
    // SAFETY: between fork and exec only the signal mask is set back, by one system call.
    unsafe { shell.pre_exec(Signals::unblock).spawn() }
}

/// How often a stop is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// A stop that is under way.
struct Stop {
    since: Instant,
    told: Instant,
    progress: Progress,
}

impl Stop {
    fn new() -> Self {
        let now = Instant::now();
        Self { since: now, told: now, progress: Progress::new() }
    }

    /// Tells how far it is, once a second; true if its time is over.
    fn look(&mut self, running: &Running) -> bool {
        if self.told.elapsed() >= LOOK {
            self.told = Instant::now();
            let left = running.server.left().into_iter().flatten().sum();
            let at = self.since.elapsed().as_nanos() as u64;
            if let Some(line) = self.progress.line(at, left) {
                tracing::info!("{line}");
            }
        }
        running.stop.is_some_and(|stop| self.since.elapsed() >= stop)
    }
}

enum Waited {
    /// The server has ended; the status of the child, if there was one.
    Ended(Option<ExitStatus>),
    /// The user does not want to wait any more.
    AtOnce,
    /// The time for a stop is over.
    TooLong,
}

fn wait(running: &Running, signals: &Signals, mut child: Option<Child>) -> Waited {
    let (mut stop, mut status): (Option<Stop>, _) = (None, None);
    loop {
        // Nobody is waited for in vain: the server says when it has ended.
        let patience = stop.as_ref().map(|_| LOOK);
        match signals.wait(patience) {
            News::Stop if stop.is_some() => return Waited::AtOnce,
            News::Stop => {
                stop = Some(Stop::new());
                if let Some(child) = &child {
                    // SAFETY: the child has not been waited for, so the id is its own.
                    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
                }
                running.server.stop();
            }
            News::Child => {
                let ended = child.as_mut().and_then(|child| child.try_wait().ok().flatten());
                if ended.is_some() {
                    (status, child) = (ended, None);
                    stop.get_or_insert_with(Stop::new);
                    running.server.stop();
                }
            }
            News::Statistics => running.server.tell_statistics(),
            News::Reload => tracing::info!("there is no configuration file to load again"),
            News::Ended => return Waited::Ended(status),
            News::Silence => {}
        }
        if let Some(stop) = &mut stop
            && stop.look(running)
        {
            return Waited::TooLong;
        }
    }
}

/// The second signal, or no time is left: say what is not written and not flushed, and go. Threads may be in a device that does not answer: nothing may wait for
/// them, so nothing that they use is dropped.
fn end_at_once(running: &Running, options: &Options, reason: &str) -> ! {
    let (unflushed, left) = (running.server.unflushed(), running.server.left());
    let mut all_flushed = true;
    for export in running.exports.iter().filter(|export| !export.read_only) {
        let bytes = left.get(export.volume).copied().flatten().unwrap_or(0);
        if bytes > 0 {
            complain(progress::lost(export.shown_name(), bytes, reason));
            all_flushed = false;
        }
    }
    for export in running.exports.iter().filter(|export| export.volatile) {
        let name = export.shown_name();
        match unflushed.get(export.volume).copied().flatten() {
            Some(0) => continue,
            Some(writes) => {
                complain(format!("export {name}: {writes} acknowledged writes were not flushed"));
            }
            None => complain(format!("export {name}: it is not known whether all was flushed")),
        }
        all_flushed = false;
    }
    if all_flushed {
        complain("stopped at once; every acknowledged write was flushed");
    }
    if let Some(path) = &options.pid_file {
        let _ = std::fs::remove_file(path);
    }
    if let Some(private) = &running.private {
        let _ = std::fs::remove_dir_all(&private.0);
    }
    std::process::exit(1)
}

fn child_code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(code.clamp(0, 255) as u8)
}
