//! Command line arguments of `headworks serve`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use headworks_program::known_words::ENGINES;
use headworks_server::{
    CacheSize, ExportOptions, Layer, TenantOptions, check_limit, parse_size, parse_time,
};

use crate::known_words::TLS_MODES;
use crate::log::LogTo;
use crate::tunables::QueueArgs;

/// Examples, and types of devices.
const EXAMPLES: &str = "\
Examples:
  headworks serve disk.img                          one image on a private unix socket
  headworks serve --size 10G new.img -U /run/d.sock  create a sparse image, choose the socket
  headworks serve a=one.img b=two.img -p 10809      two exports on TCP, 127.0.0.1:10809
  headworks serve mem:size=1G --run 'nbdinfo $uri'  serve while a command runs
  headworks serve nbd:uri=nbd://store/db            the export of another NBD server, behind our cache
  headworks serve delay:read=5ms,of=file:path=disk.img   a disk with slow reads, for tests
  headworks serve model:profile=hdd-7200,of=file:path=disk.img   as slow as a real drive; headworks disks lists them
  headworks serve --cache 4G --set vm/dirty_bytes=256M disk.img   a larger page cache, at most 256 MiB of it dirty
  headworks serve a=file:path=a.img,cache=writethrough b=file:path=b.img,cache=none
  headworks serve disk.img -p 10809 --tls require --tls-certificates /etc/headworks/pki   encrypted clients only
  headworks serve --tenant acme --listen unix=/run/acme.sock,mode=660,tenant=acme db=file:path=db.img,tenant=acme
  headworks serve --cache 0 disk.img                no page cache: every request goes to the device
  headworks serve --config /etc/headworks/main.toml        options, queues and exports from a file
  HEADWORKS_CACHE=1G headworks serve disk.img       every option has an environment variable
  headworks serve db=file:path=db.img,weight=400,ioprio=rt logs=file:path=logs.img,weight=50 --control /run/hw.ctl";

/// What else a user asks.
const FURTHER: &str = "\
The command line overrides environment variables (HEADWORKS_ and the option's name), and these override the file. A switch can
be turned off: --spread=off.
Sizes: 512, 4K, 10M, 1G, 2T (powers of 1024). Times: 10us, 5ms, 30 (seconds).";

/// Longest line of a paragraph.
const COLUMNS: usize = 126;

/// Types of devices with their keys, as a sentence: all that specifications know.
fn types() -> String {
    let of = |wraps: bool| {
        let kinds = Layer::kinds().filter(move |(_, wrapper)| *wrapper == wraps);
        let said = kinds.map(|(kind, _)| {
            format!("{kind} ({})", Layer::keys(kind).collect::<Vec<_>>().join(", "))
        });
        said.collect::<Vec<_>>().join(", ")
    };
    format!(
        "SPEC is a path or type:key=value,... Types are {}, and wrappers around another device (of=SPEC, the last key): {}.",
        of(false),
        of(true)
    )
}

/// The text behind the options of `--help`, with types of devices and the keys of exports and tenants.
fn after_help() -> String {
    let export =
        format!("Keys of the export, set on the outermost type: {}.", ExportOptions::help());
    let tenant = format!("Keys of a tenant: {}.", TenantOptions::help());
    format!("{EXAMPLES}\n\n{}{}{}{FURTHER}", filled(&types()), filled(&export), filled(&tenant))
}

/// Lines of a paragraph.
fn filled(text: &str) -> String {
    let (mut lines, mut width) = (String::new(), 0);
    for word in text.split(' ') {
        if width > 0 && width + 1 + word.len() > COLUMNS {
            lines.push('\n');
            width = 0;
        } else if width > 0 {
            lines.push(' ');
            width += 1;
        }
        lines.push_str(word);
        width += word.len();
    }
    lines + "\n"
}

/// Serves disk images over NBD
#[derive(Args, Debug)]
#[command(after_help = after_help())]
pub struct ServeArgs {
    /// Exports to serve; the first is the default export
    #[arg(value_name = "[NAME=]SPEC")]
    pub(super) exports: Vec<String>,
    /// Configuration file, see headworks.toml(5); options given elsewhere override it, SIGHUP reloads it
    #[arg(short, long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Print the effective configuration with the origin of each value, and exit
    #[arg(long)]
    pub(super) dump_config: bool,
    #[command(flatten)]
    pub(super) listening: ListenArgs,
    /// Refuse all writes
    #[arg(short, long)]
    pub(super) read_only: bool,
    /// Refuse to start when an image is missing, instead of serving the other exports
    #[arg(long)]
    pub(super) strict: bool,
    /// A tenant with its share of every device: acme,weight=400,ioprio-max=be:2,dirty=64M,cache-min=256M; exports name it with
    /// tenant=acme
    #[arg(long, value_name = "NAME[,KEY=VALUE...]")]
    pub(super) tenant: Vec<String>,
    /// Size of devices without one; creates missing image files
    #[arg(long, value_parser = size)]
    pub(super) size: Option<u64>,
    #[command(flatten)]
    pub(super) threads: ThreadArgs,
    /// Serve while this shell command runs and exit with its status; it gets $uri, $unixsocket, $port, $nbd and
    /// $control. Standard output is the command's: the start message goes to standard error
    #[arg(long, value_name = "CMD")]
    pub(super) run: Option<String>,
    /// Write the process id to this file once clients can connect
    #[arg(short = 'P', long, value_name = "FILE")]
    pub(super) pid_file: Option<PathBuf>,
    /// Change to this user (name or id) after everything is open and before clients are served
    #[arg(short, long, value_name = "USER[:GROUP]")]
    pub(super) user: Option<String>,
    /// Enable the seccomp filter: refuse system calls that a server never needs, such as exec, mount and ptrace
    #[arg(long, value_enum, default_value = "on", value_name = "ON|OFF")]
    pub(super) sandbox: Sandbox,
    /// Record all inputs of the I/O path for `headworks lab replay`
    #[arg(long, value_name = "FILE")]
    pub(super) record: Option<PathBuf>,
    /// Size of the page cache, all shards together: auto uses free memory up to half of all and gives it back when others need
    /// it; a size is a fixed limit; 0 disables the cache
    #[arg(long, value_parser = CacheSize::parse, default_value = "auto", value_name = "auto|SIZE")]
    pub(super) cache: CacheSize,
    /// Memory of the cache that outlives the server, so that a kill loses nothing: a path on tmpfs or hugetlbfs, auto (the service
    /// manager's descriptor store, the runtime directory, or a directory of this user in /run or /dev/shm), store or off
    #[arg(long, value_name = "PATH|auto|store|off", default_value = "auto")]
    pub(super) cache_file: String,
    /// Memory for request data, per shard
    #[arg(long, value_parser = size, default_value = "128M", value_name = "SIZE")]
    pub(super) buffers: u64,
    #[command(flatten)]
    pub(super) clients: ClientArgs,
    /// Time limit for writing dirty data at a shutdown; 0: unlimited
    #[arg(long, value_parser = time, default_value = "60s", value_name = "TIME")]
    pub(super) stop_timeout: u64,
    /// Print the start message as one JSON object
    #[arg(long)]
    pub(super) json: bool,
    /// Log target: standard error (or the journal behind it), syslog or none
    #[arg(long, value_enum, default_value = "stderr", value_name = "WHERE")]
    pub(super) log: LogTo,
    /// Log more: once for connections, twice for everything
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(super) verbose: u8,
    #[command(flatten)]
    pub(super) queue: QueueArgs,
}

/// Where clients, operators and monitors connect, and how they are encrypted.
#[derive(Args, Debug)]
pub struct ListenArgs {
    /// Listen on this unix socket; `-` creates a private one
    #[arg(short = 'U', long, value_name = "PATH")]
    pub(super) unix: Option<PathBuf>,
    /// Mode of the unix socket, octal
    #[arg(long, value_name = "MODE", default_value = "600")]
    pub(super) unix_mode: String,
    /// Listen on this TCP port; 0 takes a free one
    #[arg(short, long, value_parser = port)]
    pub(super) port: Option<u16>,
    /// TCP address to listen on, with --port
    #[arg(short = 'i', long, value_name = "ADDR", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub(super) ip_addr: IpAddr,
    /// A further socket with exports of its own: unix=PATH or address=IP:PORT, then mode, owner, tenant, exports=a-*+b, name, tls,
    /// tls-certificates, tls-verify-peer, kind (nbd, vhost-user or fuse)
    #[arg(long, value_name = "KEY=VALUE,...")]
    pub(super) listen: Vec<String>,
    /// A unix socket by which virtual machines have an export as their disk (vhost-user-blk); short for
    /// --listen kind=vhost-user,unix=PATH,exports=EXPORT
    #[arg(long, value_name = "EXPORT=PATH")]
    pub(super) vhost_user: Vec<String>,
    /// An existing directory in which programs have each export as a file; short for --listen kind=fuse,path=DIR
    #[arg(long, value_name = "DIR")]
    pub(super) fuse: Vec<String>,
    /// Control socket for `headworks ctl`; mode 600
    #[arg(long, value_name = "PATH")]
    pub(super) control: Option<PathBuf>,
    /// TLS: off, on (if the client asks) or require (unencrypted clients are refused)
    #[arg(long, value_name = "MODE", default_value = "off", value_parser = TLS_MODES, hide_possible_values = true)]
    pub(super) tls: String,
    /// Directory with server-cert.pem and server-key.pem, and ca-cert.pem for --tls-verify-peer
    #[arg(long, value_name = "DIR")]
    pub(super) tls_certificates: Option<PathBuf>,
    /// Require a client certificate signed by ca-cert.pem
    #[arg(long)]
    pub(super) tls_verify_peer: bool,
    /// Serve the status page for browsers (GET /) and Prometheus metrics (GET /metrics) at this address; port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT", value_parser = metrics_address)]
    pub(super) metrics: Option<SocketAddr>,
}

/// The threads that serve, and how they wait.
#[derive(Args, Debug)]
pub struct ThreadArgs {
    /// I/O engine: auto, uring or threads
    #[arg(long, default_value = "auto", value_name = "ENGINE", value_parser = ENGINES, hide_possible_values = true)]
    pub(super) engine: String,
    /// Busy-poll this many microseconds before sleeping, while that serves more requests; 0 disables polling
    #[arg(long, default_value_t = 50, value_name = "N")]
    pub(super) poll_us: u64,
    /// Number of shards (threads); devices are distributed over them
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(super) shards: u16,
    /// Distribute the volumes of one device over the shards, too
    #[arg(long)]
    pub(super) spread: bool,
    /// CPUs of the shards, in order: 0,1
    #[arg(long, value_parser = cpu, value_delimiter = ',', value_name = "LIST")]
    pub(super) cpus: Vec<usize>,
}

/// What clients may take.
#[derive(Args, Debug)]
pub struct ClientArgs {
    /// Maximum number of clients, per shard
    #[arg(long, default_value_t = 1024, value_name = "N")]
    pub(super) connections: usize,
    /// Maximum number of requests in flight, per client
    #[arg(long, default_value_t = 128, value_name = "N")]
    pub(super) requests: usize,
    /// Limit all clients together: iops-total=100K,bps-write=50M; bps and iops of total, read and write, each with -max and
    /// -max-length for a burst, and iops-size
    #[arg(long, value_parser = limit, value_delimiter = ',', value_name = "KEY=VALUE,...")]
    pub(super) limit: Vec<String>,
    /// Time limit of a handshake
    #[arg(long, value_parser = time, default_value = "10s", value_name = "TIME")]
    pub(super) handshake_timeout: u64,
    /// Close a connection whose payload or reply makes no progress for this long
    #[arg(long, value_parser = time, default_value = "60s", value_name = "TIME")]
    pub(super) stall_timeout: u64,
}

/// State of the seccomp filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Sandbox {
    On,
    Off,
}

fn size(word: &str) -> Result<u64, String> {
    parse_size(word)
}

/// Checks the form of one limit; together they are checked later.
fn limit(word: &str) -> Result<String, String> {
    check_limit(word).map(|()| word.to_owned())
}

fn time(word: &str) -> Result<u64, String> {
    parse_time(word)
}

fn metrics_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!("`{text}` is not an address and a port such as 127.0.0.1:9100 or [::1]:9100")
    })
}

fn port(word: &str) -> Result<u16, String> {
    let wrong = |_| format!("`{word}` is no port; 0 to 65535 are, and 10809 is that of NBD");
    word.parse().map_err(wrong)
}

fn cpu(word: &str) -> Result<usize, String> {
    let wrong = |_| format!("`{word}` is no number of a CPU; a list is written 0,1,2,3");
    word.parse().map_err(wrong)
}
