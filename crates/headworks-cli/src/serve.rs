//! `headworks serve`: from the command line to a running server, and to its end.
//!
//! The main thread blocks all signals before any other thread starts and then only waits: for a signal, for the server's
//! end, for the child of `--run`. One SIGTERM or SIGINT drains, flushes and ends with 0; a second ends at once and says what
//! was not flushed.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus};

use clap::Args;
use headworks::core::time::MS;
use headworks::core::{ConfigError, Ioprio, PlugNesting, QueueOptions, Tunable};
use headworks::device::{Share, Spec};
use headworks::server::assemble::{self, Assembly, ExportSpec};
use headworks::server::{Address, Server, ServerOptions};
use headworks::units::{parse_size, parse_time};

use crate::signals::{News, Signals};
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
  headworks serve db=file:path=db.img,weight=400,ioprio=rt logs=file:path=logs.img,weight=50 --control /run/hw.ctl

SPEC is a path or type:key=value,...: file (path, size, direct, read-only), null (size), mem (size), and around another
device delay (read, write, flush, discard, all, jitter, of) and error (rate, errno, op, range, after, count, of).
Of an export, among the keys of the outermost type: weight (1 to 10000, default 100), its share of the device beside other
exports; ioprio (rt, be or idle, with a level of 0 to 7: be:0), the class of its clients' requests, default be:4.
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
    #[command(flatten)]
    queue: Queue,
    /// One JSON object at the start instead of lines
    #[arg(long)]
    json: bool,
    /// Say more: once for connections, twice for everything
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
}

/// The queue's tunables, as in /sys/block/DISK/queue.
#[derive(Args, Clone)]
#[command(next_help_heading = "Queue (names as in /sys/block/*/queue)")]
pub struct Queue {
    /// Requests admitted to a device's queue at once
    #[arg(long, value_name = "N")]
    nr_requests: Option<u32>,
    /// Commands in a device at once
    #[arg(long, value_name = "N")]
    queue_depth: Option<u32>,
    /// Largest request
    #[arg(long, value_name = "KIB")]
    max_sectors_kb: Option<u32>,
    /// Most segments of a request
    #[arg(long, value_name = "N")]
    max_segments: Option<u16>,
    /// 0 merges everywhere, 1 only with the last request, 2 never
    #[arg(long, value_name = "N")]
    nomerges: Option<u64>,
    /// A command that takes longer is answered with an error
    #[arg(long, value_parser = time, value_name = "TIME")]
    io_timeout: Option<u64>,
    /// The order of requests: none or mq-deadline
    #[arg(long, value_name = "NAME")]
    scheduler: Option<String>,
    /// Who gets a tag next: fair; for experiments legacy518 or kuai_v3
    #[arg(long, value_name = "POLICY")]
    tags: Option<String>,
    /// Any option by its name under queue/, as `headworks ctl` has it: iosched/fifo_batch=32, hw_inflight_kb=320
    #[arg(long = "set", value_name = "NAME=VALUE")]
    set: Vec<String>,
}

impl Queue {
    /// Overrides what the user named.
    ///
    /// # Errors
    /// What is out of range.
    pub fn apply(&self, options: &mut QueueOptions) -> Result<(), ConfigError> {
        let Self { nr_requests, queue_depth, max_sectors_kb, max_segments, nomerges, .. } = self;
        let Self { io_timeout, scheduler, tags, set, .. } = self;
        let numbers = [
            (Tunable::NrRequests, nr_requests.map(u64::from)),
            (Tunable::QueueDepth, queue_depth.map(u64::from)),
            (Tunable::MaxSectorsKb, max_sectors_kb.map(u64::from)),
            (Tunable::MaxSegments, max_segments.map(u64::from)),
            (Tunable::NoMerges, *nomerges),
            // In whole milliseconds, as it is recorded and shown.
            (Tunable::IoTimeout, io_timeout.map(|ns| ns.div_ceil(MS))),
        ];
        for (tunable, number) in numbers {
            if let Some(number) = number {
                tunable.set(options, number)?;
            }
        }
        for (tunable, word) in [(Tunable::Scheduler, scheduler), (Tunable::Tags, tags)] {
            if let Some(word) = word {
                tunable.set(options, tunable.parse(word)?)?;
            }
        }
        for word in set {
            let (tunable, value) = setting(word)?;
            tunable.set(options, value)?;
        }
        options.validate()
    }
}

/// What a word of `--set` says. What the device itself is, is no option.
fn setting(word: &str) -> Result<(Tunable, u64), ConfigError> {
    let found = word.split_once('=').and_then(|(name, value)| {
        Tunable::from_name(name).filter(|tunable| tunable.is_live()).map(|tunable| (tunable, value))
    });
    let Some((tunable, value)) = found else {
        let live = Tunable::ALL.into_iter().filter(|tunable| tunable.is_live());
        let names: Vec<&str> = live.map(Tunable::name).collect();
        let message = format!("`{word}` is not NAME=VALUE with a name of {}", names.join(", "));
        return Err(ConfigError::new("set", message));
    };
    Ok((tunable, tunable.parse(value)?))
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
    /// Its bytes outlive the process.
    lasting: bool,
}

struct Running {
    server: Server,
    exports: Vec<Shown>,
    notes: Vec<String>,
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
        cache: 0,
        dirty: Default::default(),
        stop_ns: 60_000_000_000,
    };
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
    let mut exports = shown(&assembly);
    let notes = std::mem::take(&mut assembly.notes);
    let ended = signals.ended()?;
    let server = Server::start(assembly, &server_options, move || ended.tell())?;
    let port = server.ports().iter().copied().flatten().next();
    for export in &mut exports {
        export.uri = uri(&export.name, unix.as_deref(), options.ip_addr, port);
    }
    let control = server_options.control;
    Ok(Running { server, exports, notes, unix, port, control, private })
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

fn shown(assembly: &Assembly) -> Vec<Shown> {
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
        Waited::AtOnce => end_at_once(&running, options),
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
    text += &format!("engine: {}\n", running.server.engine());
    text += "write mode: write-through, no cache: an acknowledged write is in the device\n";
    text += &format!("kill -9 loses: {}\n", loss(&running.exports));
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

/// What a kill -9 may lose.
fn loss(exports: &[Shown]) -> String {
    let lost: Vec<&str> =
        exports.iter().filter(|export| !export.lasting).map(Shown::shown_name).collect();
    let rest = "nothing that was acknowledged; a power cut may lose what was not flushed";
    match (lost.is_empty(), lost.len() == exports.len()) {
        (true, _) => rest.to_owned(),
        (_, true) => "everything: these devices keep their bytes in memory".to_owned(),
        _ => format!("all of {}, which is in memory; of the others {rest}", lost.join(", ")),
    }
}

impl Shown {
    fn shown_name(&self) -> &str {
        if self.name.is_empty() { "(default)" } else { &self.name }
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
            })
        })
        .collect();
    let object = serde_json::json!({
        "exports": exports,
        "engine": running.server.engine(),
        "write_mode": "through",
        "kill_loses": loss(&running.exports),
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

enum Waited {
    /// The server has ended; the status of the child, if there was one.
    Ended(Option<ExitStatus>),
    /// The user does not want to wait.
    AtOnce,
}

fn wait(running: &Running, signals: &Signals, mut child: Option<Child>) -> Waited {
    let (mut stopping, mut status) = (false, None);
    loop {
        match signals.wait() {
            News::Stop if stopping => return Waited::AtOnce,
            News::Stop => {
                stopping = true;
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
                    stopping = true;
                    running.server.stop();
                }
            }
            News::Statistics => running.server.tell_statistics(),
            News::Reload => tracing::info!("there is no configuration file to load again"),
            News::Ended => return Waited::Ended(status),
        }
    }
}

/// The second signal: say what is not flushed, and go. Threads may be in a device that does not answer: nothing may wait for
/// them, so nothing that they use is dropped.
fn end_at_once(running: &Running, options: &Options) -> ! {
    let unflushed = running.server.unflushed();
    let mut all_flushed = true;
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
