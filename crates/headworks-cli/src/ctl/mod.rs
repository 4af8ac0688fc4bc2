//! `headworks ctl [SOCKET] ...`: one request to the control socket of a running server, and its answer as text or JSON.
//!
//! The server validates names and values. A request that it refuses prints one sentence and exits with 1; a usage
//! error exits with 2.

#[cfg(test)]
mod answer_tests;
pub(crate) mod exports;
pub(crate) mod freeze;
pub(crate) mod listeners;
pub(crate) mod names;
pub(crate) mod reload;
pub(crate) mod save;
pub(crate) mod socket;
pub(crate) mod state;
pub(crate) mod tenants;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use headworks::house::display_size;
use headworks_control::answers::{
    self, BufferStats, CacheStats, Connection, DeviceStats, DirtyStats, Discarded, DiskCounters,
    DiskRow, ExportStats, FailedRange, FailedRanges, StagePercentiles, Stats, Upgraded,
};
use headworks_control::client::{self, ClientError};
use headworks_control::methods::{self, Values};
use headworks_control::param::{Assignments, Folder, LookBack, RequestOp};
use headworks_control::{Method, Params, Request};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::columns::seconds;
use crate::ctl::exports::ExportCommand;
use crate::ctl::listeners::ListenerCommand;
use crate::ctl::state::show_state;
use crate::ctl::tenants::TenantCommand;
use crate::shown::escaped;
use crate::{USAGE, complain, observe};

/// Controls a running server through its control socket
#[derive(Args)]
#[command(after_help = "\
Examples:
  headworks ctl exports                                 of the service headworks@main
  headworks ctl backup exports                          of the service headworks@backup
  headworks serve --control /run/hw.ctl disk.img        a server with a control socket
  headworks ctl /run/hw.ctl get                         all values, as `path = value` lines
  headworks ctl /run/hw.ctl get hw0/queue/scheduler     none [mq-deadline] bfq
  headworks ctl /run/hw.ctl set hw0/queue/scheduler mq-deadline
  headworks ctl /run/hw.ctl set exports/db/queue/nr_requests=64
  headworks ctl /run/hw.ctl set 'exports/acme-*/weight' 200 exports/db/ioprio be:2
  headworks ctl /run/hw.ctl set exports/db/weight 400   share of the device relative to other exports
  headworks ctl /run/hw.ctl set exports/db/ioprio rt:0  I/O priority class of its clients: rt, be or idle
  headworks ctl /run/hw.ctl set vm/dirty_bytes 64M      limit of dirty data in the page cache; resets vm/dirty_ratio to 0
  headworks ctl /run/hw.ctl set hw0/queue/read_ahead_kb 512
  headworks ctl /run/hw.ctl failed db                   acknowledged ranges that could not be written
  headworks ctl /run/hw.ctl discard-failed db           bytes that would be lost; --yes discards them
  headworks ctl /run/hw.ctl log-level debug             log clients' requests, too, until set back to info
  headworks ctl /run/hw.ctl diskstats                   lines as in /proc/diskstats
  headworks ctl /run/hw.ctl exports                     table of exports
  headworks ctl /run/hw.ctl add logs=/srv/logs.img      add an export; SPEC as for `headworks serve`
  headworks ctl /run/hw.ctl add tmp=mem:size=1G,weight=50
  headworks ctl /run/hw.ctl add --read-only /srv/base.img
  headworks ctl /run/hw.ctl remove logs --force         disconnect clients, write out, unlock the image
  headworks ctl /run/hw.ctl resize db 20G               grow the image; without a size: take over its present size
  headworks ctl /run/hw.ctl resize db +5G               grow it by 5 GiB
  headworks ctl /run/hw.ctl drain                       write out and flush everything; clients continue
  headworks ctl /run/hw.ctl refuse-clients db           present clients go on, new ones are refused until accept-clients
  headworks ctl /run/hw.ctl freeze db --run 'cp --reflink=always db.img db-snap.img'   a copy of one point in time
  headworks ctl /run/hw.ctl snapshot db db-monday.hwo   keep what an overlay is now as a file of its own
  headworks ctl /run/hw.ctl add-tenant acme,weight=400   a share of every device for the exports of one customer
  headworks ctl /run/hw.ctl add-tenant t21,weight=200 --base golden.img --size 20G --socket /run/t21.sock,mode=660
                                                        a tenant with a disk on a base, and a socket that offers it alone
  headworks ctl /run/hw.ctl add-listener unix=/run/acme.sock,tenant=acme   a further socket
  headworks ctl /run/hw.ctl set exports/db/tenant acme  move an export to a tenant; none: to no tenant
  headworks ctl /run/hw.ctl tenants                     table of tenants
  headworks ctl /run/hw.ctl listeners                   table of sockets, with the exports that each offers
  headworks ctl /run/hw.ctl diff                        what ctl changed since the configuration was loaded
  headworks ctl /run/hw.ctl save                        write that to FILE.d/99-ctl.toml
  headworks ctl /run/hw.ctl reload                      load the configuration files again
  headworks ctl /run/hw.ctl latency                     latency percentiles; with an export: its histogram
  headworks ctl /run/hw.ctl why db                      where slow requests of the last minute spent their time, and by whom
  headworks ctl /run/hw.ctl why --op read --since 10s   the export with the slowest reads of the last ten seconds
  headworks ctl /run/hw.ctl upgrade                     start the program again; clients stay connected

SOCKET with a slash, or the name of a socket's file in the working directory, is a path. Any other SOCKET is the NAME of a service:
/run/headworks/NAME.ctl. Without SOCKET the path is in the environment variable HEADWORKS_CONTROL, else it is /run/headworks/main.ctl.
A word that is a command is never SOCKET; with a slash it is: ./get.

Names are those of /sys/block/DISK/queue and, under vm/, of /proc/sys/vm; names of Headworks begin with hw_. hw0 is the first
device. Images on one filesystem, files and overlays, share a device; `get exports/NAME/device` prints it. A refused value changes nothing.")]
pub struct CtlArgs {
    #[arg(value_name = "SOCKET", help = socket::HELP)]
    socket: Option<PathBuf>,
    #[command(subcommand)]
    command: CtlCommand,
    /// Print the server's answer as JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum CtlCommand {
    /// Prints one value, all values below a path, or all values
    Get {
        /// Path such as hw0/queue/scheduler, hw0/queue, exports/db or connections
        path: Option<String>,
    },
    /// Changes values while the server runs: all of them, or none if a value is wrong
    Set {
        /// Path such as hw0/queue/nr_requests and its new value, or PATH=VALUE; in a path * stands for any text and ? for one byte
        #[arg(value_name = "PATH VALUE", required = true)]
        words: Vec<String>,
    },
    /// Prints counters and stage times of exports, devices and connections
    Stats,
    /// Prints one line per device in the format of /proc/diskstats
    Diskstats,
    #[command(flatten)]
    Export(ExportCommand),
    #[command(flatten)]
    Tenant(TenantCommand),
    /// Lists how the running server differs from its configuration files
    Diff,
    /// Writes what ctl changed to a drop-in of the configuration file, FILE.d/99-ctl.toml
    Save {
        /// Print the drop-in instead
        #[arg(long)]
        print: bool,
    },
    /// Prints latency percentiles of all exports, or the histogram of one
    Latency {
        /// Export name; `default` is the export without a name
        export: Option<String>,
    },
    /// Explains where the slow requests of an export spent the last minute, and by whom they were held up
    Why {
        /// Export name; `default` is the export without a name. Without one, the export whose slow requests were slowest
        export: Option<String>,
        /// Only requests of this kind
        #[arg(long, value_name = "OP", value_parser = RequestOp::ALL)]
        op: Option<String>,
        /// Only requests of the last so many seconds, 1 to 60
        #[arg(long, value_name = "TIME", value_parser = since_seconds)]
        since: Option<u64>,
    },
    /// Lists the connected clients
    Connections,
    #[command(flatten)]
    Listener(ListenerCommand),
    /// Replaces the server by a new process of the installed program, with the present configuration; clients stay connected
    Upgrade,
    /// Loads the configuration files again, as SIGHUP does, and prints what changed and what did not
    ///
    /// Exits with 1 if the files have errors, of which nothing is loaded then, or if a change failed.
    Reload,
    /// Prints the log level, or changes it while the server runs
    LogLevel {
        /// error, warn, info, debug or trace
        level: Option<String>,
    },
    /// Lists the ranges of an export that were acknowledged and could not be written
    Failed {
        /// Export name; `default` is the export without a name
        export: String,
    },
    /// DESTROYS DATA: discards acknowledged writes that could not be written, so that flushes of the export succeed
    /// again
    ///
    /// Without --yes it prints how many bytes would be lost, changes nothing and exits with 1.
    DiscardFailed {
        /// Export name; `default` is the export without a name
        export: String,
        /// Discard the data
        #[arg(long)]
        yes: bool,
    },
}

/// What `discard-failed` would destroy, if `--yes` was not given.
fn unconfirmed(command: &CtlCommand, result: &Value) -> Result<Option<Discarded>, String> {
    let CtlCommand::DiscardFailed { yes: false, .. } = command else { return Ok(None) };
    let answer: Discarded = read(result)?;
    Ok(Some(answer).filter(|answer| answer.was_suspect || answer.failed_bytes != 0))
}

/// Failures that an answer reports beside what was done.
fn failures(command: &CtlCommand, result: &Value) -> Result<Vec<String>, String> {
    match command {
        CtlCommand::Reload => Ok(reload::failures(&read(result)?)),
        _ => Ok(Vec::new()),
    }
}

/// Sends the request, prints the answer and returns the exit code.
pub fn run(options: &CtlArgs) -> ExitCode {
    let (method, params) = match request(&options.command) {
        Ok(request) => request,
        Err(error) => {
            complain(error);
            return ExitCode::from(USAGE);
        }
    };
    let socket = socket::find(options.socket.as_deref());
    let told = match ask(&socket, method, &params) {
        Ok(answer) => tell(options, &socket, &answer),
        Err(error) => {
            complain(error);
            return ExitCode::FAILURE;
        }
    };
    told.unwrap_or_else(|error| {
        error.lines().for_each(complain);
        ExitCode::FAILURE
    })
}

/// Prints an answer; returns the exit code.
fn tell(options: &CtlArgs, socket: &Path, answer: &Value) -> Result<ExitCode, String> {
    let unconfirmed = unconfirmed(&options.command, answer)?;
    if let Some(loss) = unconfirmed.as_ref().filter(|_| !options.json) {
        complain(would_discard(loss));
        return Ok(ExitCode::FAILURE);
    }
    if let CtlCommand::Export(ExportCommand::Freeze { exports, run: Some(run), .. }) =
        &options.command
    {
        return Ok(freeze::run_frozen(socket, exports, run));
    }
    let notes = match &options.command {
        CtlCommand::Tenant(command) => command.complete(socket)?,
        _ => String::new(),
    };
    let text = match (&options.command, options.json) {
        (CtlCommand::Save { print: false }, is_json) => {
            let saved = save::save(|saved| call(socket, &methods::Diff { save: saved }))?;
            match is_json {
                true => format!("{:#}\n", saved.json()?),
                false => saved.show(),
            }
        }
        (CtlCommand::Save { print: true }, false) => save::print(&unescaped(answer)?)?,
        (_, true) => format!("{answer:#}\n"),
        (command, false) => show(command, answer)? + &notes,
    };
    crate::shown::print(text);
    let failures = failures(&options.command, answer)?;
    if !options.json {
        failures.iter().for_each(complain);
    }
    Ok(match unconfirmed.is_some() || !failures.is_empty() {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

/// Seconds of `why --since`: `10`, `10s`, `1m`.
fn since_seconds(text: &str) -> Result<u64, String> {
    let number = |rest: &str| rest.parse::<u64>().ok();
    let seconds = match (text.strip_suffix('s'), text.strip_suffix('m')) {
        (Some(rest), _) => number(rest),
        (None, Some(rest)) => number(rest).and_then(|minutes| minutes.checked_mul(60)),
        _ => number(text),
    };
    seconds
        .filter(|seconds| (1..=60).contains(seconds))
        .ok_or_else(|| format!("`{text}` is not a time of 1s to 60s"))
}

/// A request as it is sent.
pub fn sent<R: Request>(request: &R) -> (Method, Params) {
    (R::METHOD, request.write())
}

/// The working directory: a relative path is relative to this process, not to the server.
pub fn here() -> Folder {
    let here = std::env::current_dir().unwrap_or_default();
    Folder(Some(here.to_string_lossy().into_owned()))
}

fn request(command: &CtlCommand) -> Result<(Method, Params), String> {
    Ok(match command {
        CtlCommand::Get { path } => sent(&methods::Get { path: path.clone() }),
        CtlCommand::Set { words } => {
            let values = Some(Assignments(assignments(words)?));
            sent(&methods::Set { values, ..methods::Set::default() })
        }
        CtlCommand::Stats | CtlCommand::Latency { export: None } => sent(&methods::Stats {}),
        CtlCommand::Diskstats => sent(&methods::Diskstats {}),
        CtlCommand::Export(command) => command.request(),
        CtlCommand::Tenant(command) => command.request(),
        CtlCommand::Diff | CtlCommand::Save { .. } => sent(&methods::Diff::default()),
        CtlCommand::Latency { export } => sent(&methods::Histograms { export: export.clone() }),
        CtlCommand::Why { export, op, since } => sent(&methods::Why {
            export: export.clone(),
            op: RequestOp(op.clone()),
            seconds: LookBack(*since),
        }),
        CtlCommand::Connections => sent(&methods::Connections {}),
        CtlCommand::Listener(command) => return command.request(),
        CtlCommand::Upgrade => sent(&methods::Upgrade {}),
        CtlCommand::Reload => sent(&methods::Reload {}),
        CtlCommand::LogLevel { level } => sent(&methods::LogLevel { level: level.clone() }),
        CtlCommand::Failed { export } => sent(&methods::Failed { export: export.clone() }),
        CtlCommand::DiscardFailed { export, yes } => {
            sent(&methods::DiscardFailed { export: export.clone(), confirm: *yes })
        }
    })
}

/// Pairs of a path and its value. A path has no `=`, so a word with one is both, unless it follows a path.
fn assignments(words: &[String]) -> Result<Vec<(String, String)>, String> {
    let (mut pairs, mut words) = (Vec::new(), words.iter());
    while let Some(word) = words.next() {
        let pair = word.split_once('=').or_else(|| Some((word.as_str(), words.next()?.as_str())));
        let Some((path, value)) = pair else {
            return Err(format!("{word} needs a value: PATH VALUE, or PATH=VALUE"));
        };
        pairs.push((path.to_owned(), value.to_owned()));
    }
    Ok(pairs)
}

/// Sends a request and returns its answer as it came, or an error sentence for the user.
pub fn ask(socket: &Path, method: Method, params: &Params) -> Result<Value, String> {
    client::ask(socket, method, params).map_err(|error| match error {
        ClientError::Connect(error) => socket::cannot_connect(socket, &error),
        ClientError::Failed(sentence) => sentence,
    })
}

/// Sends a request and returns its answer, or an error sentence for the user.
pub fn call<R: Request>(socket: &Path, request: &R) -> Result<R::Answer, String> {
    unescaped(&ask(socket, R::METHOD, &request.write())?)
}

/// An answer for people: without control characters in its strings and names.
pub fn read<T: DeserializeOwned>(answer: &Value) -> Result<T, String> {
    unescaped(&escaped(answer))
}

fn unescaped<T: DeserializeOwned>(answer: &Value) -> Result<T, String> {
    T::deserialize(answer).map_err(|error| format!("the server gave an unknown answer: {error}"))
}

fn show(command: &CtlCommand, answer: &Value) -> Result<String, String> {
    Ok(match command {
        CtlCommand::Get { path } => {
            show_values(path.as_deref().unwrap_or_default(), &read(answer)?)?
        }
        CtlCommand::Set { .. } => show_values("", &read(answer)?)?,
        CtlCommand::Stats => show_stats(&read(answer)?),
        CtlCommand::Diskstats => read::<Vec<_>>(answer)?.iter().map(diskstats_line).collect(),
        CtlCommand::Export(command) => command.show(answer)?,
        CtlCommand::Tenant(command) => command.show(answer)?,
        CtlCommand::Diff => save::show_diff(&read(answer)?),
        // Written by `tell`.
        CtlCommand::Save { .. } => String::new(),
        CtlCommand::Connections => show_connections(&read::<Vec<_>>(answer)?),
        CtlCommand::Listener(command) => command.show(answer)?,
        CtlCommand::Upgrade => show_upgraded(&read(answer)?),
        CtlCommand::Reload => reload::show(&read(answer)?),
        CtlCommand::LogLevel { .. } => read::<answers::LogLevel>(answer)?.level + "\n",
        CtlCommand::Latency { export: None } => observe::show_percentiles(&read(answer)?),
        CtlCommand::Latency { .. } => observe::show_histograms(&read(answer)?),
        CtlCommand::Why { .. } => observe::show_why(&read(answer)?),
        CtlCommand::Failed { .. } => show_failed(&read(answer)?),
        CtlCommand::DiscardFailed { .. } => show_discarded(&read(answer)?),
    })
}

/// A string without its quotes, anything else as JSON.
pub fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A word, or a dash for none.
pub fn or_dash(word: Option<&String>) -> String {
    word.cloned().unwrap_or_else(|| "-".to_owned())
}

/// Formats one value alone, as cat shows a file in sysfs; several as `path = value` lines.
fn show_values(path: &str, values: &Values) -> Result<String, String> {
    if let Some(value) = values.get(path.trim_matches('/')) {
        return match value.is_object() {
            true => Ok(show_state(&unescaped(value)?)),
            false => Ok(plain(value) + "\n"),
        };
    }
    Ok(values.iter().map(|(path, value)| format!("{path} = {}\n", plain(value))).collect())
}

fn diskstats_line(device: &DiskRow) -> String {
    let mut line = format!("{:>4} {:>7} {}", device.major, device.minor, device.name);
    let fields = serde_json::to_value(&device.fields).unwrap_or_default();
    for field in DiskCounters::NAMES {
        line += &format!(" {}", fields[*field]);
    }
    line + "\n"
}

/// A client as lists name it: its address, after what it speaks unless that is NBD.
pub(crate) fn who(one: &Connection) -> String {
    match one.kind.as_str() {
        "nbd" => one.peer.clone(),
        kind => format!("{kind} {}", one.peer),
    }
}

fn show_connections(connections: &[Connection]) -> String {
    let line = |one: &Connection| {
        format!(
            "{}: {} at {}, export {}, class {}, {} in flight{}{}\n",
            one.id,
            who(one),
            or_dash(one.listener.as_ref()),
            or_dash(one.export.as_ref()),
            or_dash(one.ioprio.as_ref()),
            one.in_flight,
            if one.waiting > 0 { format!(", {} waiting", one.waiting) } else { String::new() },
            one.oldest_s.map_or(String::new(), |age| format!(", the oldest for {}", seconds(age)))
        )
    };
    connections.iter().map(line).collect()
}

/// Formats the result of `upgrade`.
fn show_upgraded(done: &Upgraded) -> String {
    let Upgraded { pid, ms, paused_ms } = done;
    format!("upgraded: process {pid} serves now, in {ms} ms, paused for {paused_ms} ms\n")
}

/// Formats the result of `discard-failed --yes`.
fn show_discarded(done: &Discarded) -> String {
    let export = &done.export;
    match done.discarded {
        true => format!("{export}: discarded; lost: {}\n", losses(done)),
        false => format!("{export}: nothing to discard: no write-out or flush has failed\n"),
    }
}

/// Formats what `discard-failed` without `--yes` would destroy, and how to go on.
fn would_discard(loss: &Discarded) -> String {
    let export = &loss.export;
    let retry = match loss.failed_bytes {
        0 => String::new(),
        _ => format!(
            "; `failed {export}` lists the ranges, and a flush writes them once the disk works again"
        ),
    };
    format!(
        "{export}: discard-failed would lose {}; nothing was changed{retry}; repeat with --yes to discard",
        losses(loss)
    )
}

/// Formats the loss: bytes kept after failed write-back, and writes in doubt since a failed device flush.
fn losses(loss: &Discarded) -> String {
    let bytes = loss.failed_bytes;
    let mut parts = vec![format!("{bytes} acknowledged bytes")];
    if bytes > 0 {
        parts[0] += &format!(" ({})", display_size(bytes));
    }
    if loss.was_suspect {
        parts.push(format!(
            "some or all of the {} writes since its last good flush (a device flush failed)",
            loss.unflushed
        ));
    }
    parts.join(" and ")
}

fn show_failed(failed: &FailedRanges) -> String {
    let line = |range: &FailedRange| {
        format!("{} bytes at {}: {}\n", range.bytes, range.offset, range.error)
    };
    match failed.ranges.is_empty() {
        true => format!("{}: no write-out has failed\n", failed.export),
        false => failed.ranges.iter().map(line).collect(),
    }
}

fn mib(blocks: u64) -> String {
    format!("{:.1} MiB", blocks as f64 / 256.0)
}

/// Formats the lines about the page cache.
fn show_cache(cache: &CacheStats) -> String {
    let (hits, misses) = (cache.hits, cache.misses);
    let part = match hits + misses {
        0 => "-".to_owned(),
        all => format!("{:.1}%", hits as f64 * 100.0 / all as f64),
    };
    let mut text = format!(
        "cache: {} of {} in use{}; {hits} hits, {misses} misses ({part} hits), {} filled, {} read ahead, {} evicted\n",
        mib(cache.resident),
        mib(cache.units),
        match cache.room {
            room if room > cache.units => format!(", up to {}", mib(room)),
            _ => String::new(),
        },
        mib(cache.filled),
        mib(cache.read_ahead),
        mib(cache.evicted),
    );
    let folios = cache.folios.iter().enumerate().filter(|(_, count)| **count != 0);
    let folios: Vec<String> =
        folios.map(|(order, count)| format!("{count} of {} KiB", 4 << order)).collect();
    if !folios.is_empty() {
        text += &format!("  folios: {}\n", folios.join(", "));
    }
    text
}

/// Formats the line about dirty data, of which `held` blocks could not be written.
fn show_dirty(dirty: &DirtyStats, held: u64) -> String {
    format!(
        "dirty: {}, {} under write-out; background from {}, limit {}; {} made dirty, {} written, {} held after failures; {} writers, {} pauses of {} in all\n",
        mib(dirty.nr_dirty),
        mib(dirty.nr_writeback),
        mib(dirty.nr_dirty_background_threshold),
        mib(dirty.nr_dirty_threshold),
        mib(dirty.nr_dirtied),
        mib(dirty.nr_written),
        mib(held),
        dirty.writers,
        dirty.pauses,
        time(dirty.paused_ns),
    )
}

fn show_device(name: &str, device: &DeviceStats) -> String {
    let (queue, tags) = (&device.queue, &device.tags);
    let depth = match &device.depth {
        None => "fixed".into(),
        Some(depth) if depth.limit_kb == 0 => "no limit".into(),
        Some(depth) => {
            format!("{} KiB, commands of {} KiB", depth.limit_kb, depth.command_max_kb)
        }
    };
    let oldest = device.oldest.as_ref().filter(|oldest| oldest.age_s >= 1.0);
    let told = oldest.map(|oldest| format!("  {}\n", oldest.told)).unwrap_or_default();
    format!(
        "{name}: {}{}, {} issued, {} sequential, {} in flight; depth: {depth}; tags: {} of {} free, {} asks, {} waits, longest {}\n{told}",
        if device.device_state == "stuck" { "DOES NOT ANSWER, " } else { "" },
        device.scheduler,
        queue.issued,
        queue.sequential_ratio.map_or("-".into(), |part| format!("{:.1}%", part * 100.0)),
        queue.in_flight,
        tags.free,
        tags.depth,
        tags.asks,
        tags.waits,
        time(tags.longest_wait_ns),
    )
}

fn show_export(name: &str, export: &ExportStats) -> String {
    let mut text = format!(
        "{name}: device {}{}, weight {}, class {}, cache {}, {} unflushed writes{}\n",
        export.device,
        export.tenant.as_ref().map_or(String::new(), |name| format!(", tenant {name}")),
        export.weight,
        export.ioprio,
        match &*export.cache {
            "unsafe" => "UNSAFE (flushes guarantee nothing)",
            mode => mode,
        },
        export.unflushed,
        if export.suspect { ", SUSPECT: a flush failed" } else { "" },
    );
    let oldest = export.in_flight.oldest.as_ref().filter(|oldest| oldest.age_s >= 1.0);
    text += &oldest.map(|oldest| format!("  {}\n", oldest.told)).unwrap_or_default();
    for (op, row) in &export.ops {
        text += &format!(
            "  {op}: {} bios in {} requests, {} merged, {} bytes, {} errors; p50/p99: {}\n",
            row.bios,
            row.requests,
            row.merges,
            row.bytes,
            row.errors,
            stages(&row.stages)
        );
    }
    text
}

fn show_buffers(buffers: &BufferStats) -> String {
    format!(
        "buffers: {} of {} bytes in use, {} waiting ({} waits), {} unread replies dropped ({} bytes), {} payloads \
         written early, {} blocks cut, {} stalled clients disconnected\n",
        buffers.taken,
        buffers.size,
        buffers.waiting,
        buffers.waits,
        buffers.dropped_replies,
        buffers.dropped_bytes,
        buffers.payloads_written_early,
        buffers.blocks_cut,
        buffers.closed,
    )
}

fn show_stats(stats: &Stats) -> String {
    let mut text = String::new();
    stats.devices.iter().for_each(|(name, device)| text += &show_device(name, device));
    stats.exports.iter().for_each(|(name, export)| text += &show_export(name, export));
    for row in stats.turns.iter().filter(|row| row.turns != 0) {
        text += &format!(
            "turns of {} bios: {} with {} bios, {} merged in the plug\n",
            row.bios_in_turn, row.turns, row.bios, row.merges
        );
    }
    text += &show_buffers(&stats.buffers);
    text += &stats.cache.as_ref().map_or_else(String::new, show_cache);
    let held = stats.cache.as_ref().map_or(0, |cache| cache.held);
    text += &stats.dirty.as_ref().map_or_else(String::new, |dirty| show_dirty(dirty, held));
    text + &show_connections(&stats.connections)
}

fn stages(stages: &BTreeMap<String, StagePercentiles>) -> String {
    let order = ["plug", "tag", "sched", "device"];
    let stage = |name: &str| {
        let times = stages.get(name).cloned().unwrap_or_default();
        format!("{name} {}/{}", time(times.p50_ns), time(times.p99_ns))
    };
    order.map(stage).join(", ")
}

/// Formats nanoseconds with a fitting unit.
fn time(ns: u64) -> String {
    match ns {
        ns @ 0..1_000 => format!("{ns} ns"),
        ns @ 1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        ns @ 1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        ns => format!("{:.1} s", ns as f64 / 1e9),
    }
}

/// What a command asks: method and parameters.
#[cfg(test)]
pub fn asked(options: &CtlArgs) -> (&'static str, Value) {
    let (method, params) = request(&options.command).unwrap();
    (method.name(), Value::Object(params))
}

/// What a command prints of an answer, with its failures.
#[cfg(test)]
pub fn shown(options: &CtlArgs, answer: &Value) -> String {
    let failures = failures(&options.command, answer).unwrap();
    let refused = unconfirmed(&options.command, answer).unwrap();
    let refused = refused.map(|loss| would_discard(&loss));
    let errors = failures.into_iter().chain(refused).map(|line| format!("error: {line}\n"));
    show(&options.command, answer).unwrap() + &errors.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn one_value_prints_like_sysfs_several_as_lines() {
        let show_values = |path: &str, all: &Value| show_values(path, &read(all).unwrap()).unwrap();
        let one = json!({ "hw0/queue/scheduler": "none [mq-deadline] bfq" });
        assert_eq!(show_values("hw0/queue/scheduler", &one), "none [mq-deadline] bfq\n");
        assert_eq!(show_values("/hw0/queue/scheduler/", &one), "none [mq-deadline] bfq\n");
        assert_eq!(show_values("hw0", &one), "hw0/queue/scheduler = none [mq-deadline] bfq\n");
        assert_eq!(show_values("", &json!({ "a": 1, "b": "x" })), "a = 1\nb = x\n");
    }

    #[test]
    fn set_accepts_both_forms_and_equals_sign_in_value() {
        let params = |line: &str| {
            let words = line.split(' ').map(str::to_owned).collect();
            request(&CtlCommand::Set { words }).map(|(_, params)| params["values"].clone())
        };
        let pair = |path: &str, value: &str| json!({ "path": path, "value": value });
        assert_eq!(params("a/b c"), Ok(json!([pair("a/b", "c")])));
        assert_eq!(params("a/b=c"), Ok(json!([pair("a/b", "c")])));
        assert_eq!(params("a b=c"), Ok(json!([pair("a", "b=c")])));
        let three = json!([pair("a", "1"), pair("b", "2"), pair("c", "d=3")]);
        assert_eq!(params("a 1 b=2 c d=3"), Ok(three));
        assert!(params("a/b").unwrap_err().contains("PATH=VALUE"));
        assert!(params("a 1 b").unwrap_err().starts_with("b needs a value"));
    }

    #[test]
    fn cache_sizes_print_in_mib_and_only_with_cache() {
        let cache = json!({ "units": 512, "resident": 256, "hits": 3, "misses": 1, "filled": 1,
            "read_ahead": 0, "evicted": 0, "held": 1, "folios": [0, 7, 0, 0, 0, 0, 0, 0, 0, 1] });
        let text = show_cache(&read(&cache).unwrap());
        assert!(
            text.starts_with("cache: 1.0 MiB of 2.0 MiB in use; 3 hits, 1 misses (75.0% hits)")
        );
        assert!(text.contains("folios: 7 of 8 KiB, 1 of 2048 KiB"), "{text}");
        let dirty = json!({ "nr_dirty": 128, "nr_writeback": 0, "nr_dirty_threshold": 256,
            "nr_dirty_background_threshold": 128, "nr_dirtied": 0, "nr_written": 0, "writers": 2,
            "pauses": 3, "paused_ns": 1_500_000 });
        let text = show_dirty(&read(&dirty).unwrap(), 1);
        assert!(text.contains("dirty: 0.5 MiB, 0.0 MiB under write-out; background from 0.5 MiB"));
        assert!(
            text.contains("limit 1.0 MiB") && text.contains("2 writers, 3 pauses of 1.5 ms"),
            "{text}"
        );
    }

    #[test]
    fn failed_ranges_are_listed_with_their_errors() {
        let range = json!({ "offset": 8192, "bytes": 4096, "error": "no space" });
        let failed = |ranges| {
            let answer = json!({ "export": "a", "ranges": ranges });
            show_failed(&read(&answer).unwrap())
        };
        assert_eq!(failed(json!([range])), "4096 bytes at 8192: no space\n");
        assert!(failed(json!([])).starts_with("a: no write-out has failed"));
    }

    #[test]
    fn discard_failed_needs_yes_when_data_would_be_lost() {
        let answer = |suspect: bool, bytes: u64, discarded: bool| {
            json!({ "export": "a", "was_suspect": suspect, "unflushed": 3, "failed_bytes": bytes,
                "discarded": discarded })
        };
        let command = |yes| CtlCommand::DiscardFailed { export: "a".into(), yes };
        let is_unconfirmed =
            |command: &CtlCommand, answer: &Value| unconfirmed(command, answer).unwrap().is_some();
        let would_discard = |answer: &Value| would_discard(&read(answer).unwrap());
        let show_discarded = |answer: &Value| show_discarded(&read(answer).unwrap());
        assert!(is_unconfirmed(&command(false), &answer(false, 4096, false)));
        assert!(is_unconfirmed(&command(false), &answer(true, 0, false)));
        assert!(!is_unconfirmed(&command(false), &answer(false, 0, false)));
        assert!(!is_unconfirmed(&command(true), &answer(true, 4096, true)));
        let refusal = would_discard(&answer(false, 8192, false));
        assert!(
            refusal.starts_with("a: discard-failed would lose 8192 acknowledged bytes (8 KiB);")
        );
        assert!(refusal.contains("nothing was changed") && refusal.contains("--yes"), "{refusal}");
        let done = show_discarded(&answer(true, 4096, true));
        assert!(done.starts_with("a: discarded; lost: 4096 acknowledged bytes"), "{done}");
        assert!(done.contains("the 3 writes since its last good flush"), "{done}");
        assert!(show_discarded(&answer(false, 0, false)).contains("nothing to discard"));
        let (method, params) = request(&command(true)).unwrap();
        assert_eq!((method, &params["confirm"]), (Method::DiscardFailed, &json!(true)));
    }

    #[test]
    fn upgrade_tells_process_and_times() {
        assert_eq!(request(&CtlCommand::Upgrade), Ok((Method::Upgrade, Params::new())));
        let text = show_upgraded(&Upgraded { pid: 7, ms: 120, paused_ms: 15 });
        assert_eq!(text, "upgraded: process 7 serves now, in 120 ms, paused for 15 ms\n");
    }

    #[test]
    fn diskstats_line_has_kernel_format() {
        let fields: serde_json::Map<String, Value> = DiskCounters::NAMES
            .iter()
            .enumerate()
            .map(|(index, name)| ((*name).to_owned(), (index + 1).into()))
            .collect();
        let device = json!({ "name": "hw0", "major": 240, "minor": 0, "fields": fields });
        let expected = " 240       0 hw0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n";
        assert_eq!(diskstats_line(&read(&device).unwrap()), expected);
    }
}
