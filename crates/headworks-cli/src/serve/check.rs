//! `headworks check FILE`: prints what would be served, or every error that would end a start. Creates nothing and opens
//! nothing for writing.
//!
//! The decisions are those of a start, by the same code: `plan` for the options, `images` for what is opened, and
//! [`Server::check`] for the rest. Only what needs a socket, a thread or memory is left to the start.
//!
//! Invalid options exit with 2, what the world lacks (an image, a directory, a certificate) exits with 1.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use headworks::house::display_size;
use headworks_core::Tunable;
use headworks_nbd::tls::TlsMode;
use headworks_server::config::{ConfigFile, Problem, Problems, Setting, Tuned};
use headworks_server::{
    AccessSpec, Assembly, BaseDevice, CacheSize, ExportSpec, ListenerSpec, MissingImage, Server,
    ServerOptions, parse_switch, slow_limit,
};
use serde_json::{Value, json};

use super::address::named_addresses;
use super::announce;
use super::announced_export::shown_export;
use super::layers::{blame, problem_of, shown_name};
use super::source::{LoadedFile, load};
use super::{
    EffectiveOptions, OptionError, OptionSources, cache_file, images, listen, memory, plan,
    report_error,
};
use crate::complain;
use crate::shown::{escaped, line, path_text};

/// Checks a configuration file: prints what would be served, or every error with its position
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  headworks check /etc/headworks/main.toml              exit code 0: can be served, 1: files are missing, 2: errors in the file
  headworks check main.toml && kill -HUP \"$(cat /run/headworks.pid)\"")]
pub struct CheckArgs {
    /// Configuration file; NAME.d/*.toml is read, too
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Checks the file and returns the exit code.
pub fn run(options: &CheckArgs) -> ExitCode {
    let effective = match OptionSources::by_file(&options.file).resolve() {
        Ok(effective) => effective,
        Err(OptionError::Invalid(problems)) => return report_options(options, problems),
        Err(wrong) => return report_error_as(options, &wrong),
    };
    let (specs, server) = match plan(&effective) {
        Ok(planned) => planned,
        Err(problems) => {
            let EffectiveOptions { options: given, config, .. } = &effective;
            let kept = config.plan_rest(given.size, given.read_only).0;
            let missing = images::missing(&effective, true);
            return report_with_images(options, problems, (config, &kept, missing));
        }
    };
    if let Err(error) = super::user(&effective.options) {
        let problem = blame(&effective.config, &error);
        return report_error_as(options, &OptionError::Invalid(Problems(vec![problem])));
    }
    let mut warnings = effective.overridden.clone();
    warnings.extend(limit_warnings(&specs, &server));
    let listen = named_addresses(&effective.options.listening);
    warnings.extend(listen::warnings(&specs, &ServerOptions { listen, ..server.clone() }));
    let access = server.access.clone();
    let memory = memory::check(&effective.config, &server);
    let (mut assembly, mut errors) = start_errors(&effective, &specs, server);
    match memory {
        Ok(warning) => assembly.notes.extend(warning.into_iter().chain(warnings)),
        Err(error) => errors.push(blame(&effective.config, &error).to_string()),
    }
    if !errors.is_empty() {
        errors.iter().for_each(complain);
        print_problems(options, &errors);
        return ExitCode::FAILURE;
    }
    let summary = summary(&effective, &specs, &assembly, &access);
    let text = match options.json {
        true => format!("{summary}\n"),
        false => show(&options.file, &escaped(&summary)),
    };
    crate::shown::print(text);
    ExitCode::SUCCESS
}

/// Warnings about limits under which clients may give up.
fn limit_warnings(specs: &[ExportSpec], server: &ServerOptions) -> Vec<String> {
    let exports = specs.iter().map(|spec| (format!("export {}", spec.name), &spec.share.limits));
    let tenants = server.tenants.iter();
    let tenants = tenants.map(|one| (format!("tenant {}", one.name), &one.options.limits));
    let server_limits = std::iter::once(("the server".to_owned(), &server.limits));
    let all = server_limits.chain(tenants).chain(exports);
    all.filter_map(|(what, limits)| {
        Some(format!("{what}: {}", slow_limit(limits, server.clients.requests)?))
    })
    .collect()
}

/// Reports wrong options, and what else is wrong if every section could be read: of one that could not, it is not known what it says.
fn report_options(options: &CheckArgs, problems: Problems) -> ExitCode {
    let LoadedFile { file, problems: unread, .. } = match load(&options.file) {
        Ok(loaded) => loaded,
        Err(wrong) => return report_error_as(options, &wrong),
    };
    if !unread.0.is_empty() {
        return report_error_as(options, &OptionError::Invalid(problems));
    }
    let is_strict = |setting: &Setting| {
        setting.name == "strict" && parse_switch(setting.word()).unwrap_or(false)
    };
    let missing = match file.server.iter().any(is_strict) {
        true => MissingImage::Refuse,
        false => MissingImage::Absent,
    };
    let kept = file.plan_rest(None, false).0;
    report_with_images(options, problems, (&file, &kept, missing))
}

/// Reports problems together with those of paths and images, so that all of them are mended in one round; and which exports would be absent.
fn report_with_images(
    options: &CheckArgs,
    mut problems: Problems,
    (config, specs, missing): (&ConfigFile, &[ExportSpec], MissingImage),
) -> ExitCode {
    let (assembly, refused) = Assembly::inspect(specs, missing);
    problems.0.extend(path_errors(config));
    let of_image = |(index, error)| problem_of(config, specs, (Some(index), error));
    problems.0.extend(refused.into_iter().map(of_image));
    problems.0.sort();
    problems.0.dedup();
    let code = report_error_as(options, &OptionError::Invalid(problems));
    for absent in &assembly.absent {
        let note = line(announce::absent(absent));
        crate::shown::print_error(format_args!("headworks: note: {note}"));
    }
    code
}

/// Prints errors as text and, with --json, as JSON.
fn report_error_as(options: &CheckArgs, wrong: &OptionError) -> ExitCode {
    let said = match wrong {
        OptionError::Usage(error) => error.to_string(),
        OptionError::Invalid(problems) => problems.to_string(),
        OptionError::Io(error) => error.to_string(),
    };
    let lines: Vec<String> = said.lines().map(str::to_owned).collect();
    print_problems(options, &lines);
    report_error(wrong)
}

fn print_problems(options: &CheckArgs, problems: &[String]) {
    if options.json {
        // Standard output may be closed.
        crate::shown::print_line!("{}", json!({ "problems": problems }));
    }
}

/// Errors about sockets and files that the server would create.
fn path_errors(config: &ConfigFile) -> Vec<Problem> {
    let names = ["unix", "control", "pid-file", "record"];
    let said = config.server.iter().filter(|setting| {
        names.contains(&setting.name.as_str()) && !["", "-"].contains(&setting.word())
    });
    let wrong = said.filter_map(|setting| {
        let folder = missing_folder(Path::new(setting.word()))?;
        let what = format!("{}: no such directory: {}", setting.name, folder.display());
        Some(Problem::new(&setting.origin, what))
    });
    let files = config.server.iter().filter(|one| ["pid-file", "record"].contains(&&*one.name));
    let covered = files.filter(|setting| Path::new(setting.word()).is_dir()).map(|setting| {
        let what = format!(
            "{}: cannot write {}: it is a directory, not a regular file",
            setting.name,
            setting.word()
        );
        Problem::new(&setting.origin, what)
    });
    let listeners = config.listeners.iter();
    let listeners = listeners.filter(|section| section.is_enabled() != Ok(false));
    let sockets = listeners.filter_map(|section| {
        let unix = section.settings.iter().find(|setting| setting.name == "unix")?;
        let folder = missing_folder(Path::new(unix.word()))?;
        let what = format!("listener {}: no such directory: {}", section.name, folder.display());
        Some(Problem::new(&unix.origin, what))
    });
    wrong.chain(covered).chain(sockets).collect()
}

/// The directory of a path, if there is none.
pub fn missing_folder(path: &Path) -> Option<PathBuf> {
    let folder = std::path::absolute(path).ok()?.parent()?.to_owned();
    (!folder.is_dir()).then_some(folder)
}

/// Inspects what a start would open; returns every error that would end the start, with its position.
fn start_errors(
    effective: &EffectiveOptions,
    specs: &[ExportSpec],
    mut server: ServerOptions,
) -> (Assembly, Vec<String>) {
    let EffectiveOptions { options, config, .. } = effective;
    let (assembly, refused) = images::inspect(effective, specs, server.live);
    let mut errors = path_errors(config);
    errors.extend(refused.into_iter().map(|one| problem_of(config, specs, one)));
    if server.cache > 0 {
        errors.extend(
            cache_file::check(&options.cache_file).err().map(|error| blame(config, &error)),
        );
    }
    if errors.is_empty() {
        server.listen = named_addresses(&options.listening);
        let refused = Server::check(&assembly, &server).err();
        errors.extend(refused.map(|error| blame(config, &error)));
    }
    // In the order of the file.
    errors.sort();
    (assembly, errors.iter().map(Problem::to_string).collect())
}

fn summary(
    effective: &EffectiveOptions,
    specs: &[ExportSpec],
    assembly: &Assembly,
    access: &AccessSpec,
) -> Value {
    let EffectiveOptions { options, config, notes, .. } = effective;
    let exports: Vec<Value> = specs.iter().map(|spec| export(spec, assembly)).collect();
    let notes: Vec<&String> = notes.iter().chain(&assembly.notes).collect();
    let devices: Vec<Value> = config.devices.iter().map(|device| {
        let users = specs.iter().filter(|spec| device_of(spec) == Some(device.name.as_str()));
        let users: Vec<&str> = users.map(|spec| spec.name.as_str()).collect();
        json!({ "name": device.name, "exports": users, "queue": queue(config, Some(&device.name)) })
    }).collect();
    let has_own = options.listening.port.is_some() || !access.listeners.is_empty();
    let private = (!has_own).then(|| PathBuf::from("-"));
    let listeners: Vec<Value> = access.listeners.iter().map(|spec| listener(spec, specs)).collect();
    json!({
        "unix": options.listening.unix.as_ref().or(private.as_ref()).map(|path| path_text(path)),
        "port": options.listening.port,
        "ip_addr": options.listening.port.map(|_| options.listening.ip_addr.to_string()),
        "control": options.listening.control.as_ref().map(|path| path_text(path)),
        "listeners": listeners,
        "cache_bytes": memory::cache_size(options.cache).0,
        "cache_auto": options.cache == CacheSize::Auto,
        "exports": exports,
        "devices": devices,
        "queue": queue(config, None),
        "notes": notes,
    })
}

fn listener(spec: &ListenerSpec, specs: &[ExportSpec]) -> Value {
    let offered = specs.iter().filter(|one| spec.offers(&one.name, one.share.tenant));
    let exports: Vec<&str> = offered.map(|one| shown_export(&one.name)).collect();
    json!({
        "name": spec.name,
        "address": spec.address.key(),
        "offers_all": spec.offers_all(),
        "exports": exports,
        "tls": match spec.tls.mode {
            TlsMode::Off => "off",
            TlsMode::On => "on",
            TlsMode::Require => "require",
        },
        "verifies_clients": spec.verifies(),
    })
}

fn export(spec: &ExportSpec, assembly: &Assembly) -> Value {
    let path = spec.spec.base.path();
    let kind = match &spec.spec.base {
        BaseDevice::File { .. } => "file",
        BaseDevice::Image { options, .. } => options.format.name(),
        BaseDevice::Overlay { .. } => "overlay",
        BaseDevice::Rbd(_) => "rbd",
        BaseDevice::Null { .. } => "null",
        BaseDevice::Mem { .. } => "mem",
        BaseDevice::Nbd(_) => "nbd",
    };
    let uri = match &spec.spec.base {
        BaseDevice::Nbd(remote) => Some(remote.uri.to_string()),
        _ => None,
    };
    let served = assembly.exports.iter().find(|export| export.spec.name == spec.name);
    let size = served.map(|export| export.size);
    let absent = assembly.absent.iter().find(|absent| absent.spec.name == spec.name);
    json!({
        "name": spec.name,
        "type": kind,
        "path": path,
        "uri": uri,
        "part": served.and_then(|export| export.part.as_ref()),
        "size": size,
        "made": absent.is_none() && path.is_some_and(|path| !path.exists()),
        "absent": absent.map(|absent| &absent.reason),
        "wrappers": spec.spec.wrappers.len(),
        "device": device_of(spec),
        "read_only": spec.read_only,
        "weight": spec.share.weight,
        "tenant": spec.share.tenant.map(|name| name.to_string()),
        "ioprio": spec.share.ioprio.to_string(),
        "cache": spec.share.mode.map(|mode| mode.name()),
        "on_error": spec.share.on_error.map(|policy| policy.name()),
    })
}

fn device_of(spec: &ExportSpec) -> Option<&str> {
    spec.device.as_ref().map(|named| named.name.as_str())
}

/// The options set for a queue; defaults are left out.
fn queue(config: &ConfigFile, device: Option<&str>) -> Value {
    let value = |tuned: &Tuned<Tunable>| {
        let words = tuned.tunable.words();
        let word = words.and_then(|words| words.get(tuned.value as usize).copied());
        (
            tuned.tunable.name().to_owned(),
            word.map_or_else(|| json!(tuned.value), |word| json!(word)),
        )
    };
    Value::Object(config.queue_of(device).iter().map(value).collect())
}

/// Formats the summary as text.
fn show(file: &Path, summary: &Value) -> String {
    let mut text = line(format!("{}: no errors", file.display()));
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut listen = Vec::new();
    match summary["unix"].as_str() {
        Some("-") => listen.push("a private unix socket".to_owned()),
        Some(path) => listen.push(path.to_owned()),
        None => {}
    }
    if let Some(port) = summary["port"].as_u64() {
        listen.push(format!("port {port} of {}", word(&summary["ip_addr"])));
    }
    if !listen.is_empty() {
        text += &format!("listen: {}\n", listen.join(" and "));
    }
    for one in summary["listeners"].as_array().into_iter().flatten() {
        let exports = one["exports"].as_array().into_iter().flatten().map(word);
        let exports = exports.collect::<Vec<_>>().join(", ");
        let offers = match (one["offers_all"] == true, exports.as_str()) {
            (true, _) => "every export",
            (false, "") => "no export",
            (false, some) => some,
        };
        let (name, address) = (word(&one["name"]), word(&one["address"]));
        let at = if name == address { String::new() } else { format!(" at {address}") };
        let tls = match (one["tls"].as_str(), one["verifies_clients"] == true) {
            (Some("off") | None, _) => "",
            (_, false) => ", with TLS",
            (_, true) => ", with TLS and client certificates",
        };
        text += &format!("listener: {name}{at}: {offers}{tls}\n");
    }
    if let Some(path) = summary["control"].as_str() {
        text += &format!("control: {path}\n");
    }
    match summary["cache_bytes"].as_u64() {
        Some(0) | None => text += "cache: none\n",
        Some(bytes) if summary["cache_auto"] == true => {
            text += &format!("cache: up to {} of free memory\n", display_size(bytes));
        }
        Some(bytes) => text += &format!("cache: {}\n", display_size(bytes)),
    }
    let said = |queue: &Value| -> String {
        let each = queue.as_object().into_iter().flatten();
        each.map(|(name, value)| format!(", {name} {}", word(value))).collect()
    };
    for device in summary["devices"].as_array().into_iter().flatten() {
        let users = device["exports"].as_array().into_iter().flatten().map(word);
        let users: Vec<String> = users.map(|name| shown_name(&name).to_owned()).collect();
        let users = if users.is_empty() { "no export".to_owned() } else { users.join(", ") };
        let queue = said(&device["queue"]);
        text += &format!("device: {}: for {users}{queue}\n", word(&device["name"]));
    }
    let queue = said(&summary["queue"]);
    if !queue.is_empty() {
        text += &format!("other devices: {}\n", &queue[2..]);
    }
    for export in summary["exports"].as_array().into_iter().flatten() {
        text += &show_export(export);
    }
    for note in summary["notes"].as_array().into_iter().flatten() {
        text += &format!("note: {}\n", word(note));
    }
    text
}

fn show_export(export: &Value) -> String {
    let name = export["name"].as_str().unwrap_or_default();
    let what = export["path"]
        .as_str()
        .or(export["uri"].as_str())
        .or(export["type"].as_str())
        .unwrap_or_default();
    let mut text = format!("export: {}: {what}", shown_name(name));
    if let Some(part) = export["part"].as_str() {
        text += &format!(", {part}");
    }
    if let Some(size) = export["size"].as_u64() {
        text += &format!(", {}", display_size(size));
    }
    let made = export["made"] == true;
    text += if made { ", to be made" } else { "" };
    if let Some(reason) = export["absent"].as_str() {
        text += &format!(", ABSENT: {reason}");
    }
    match export["wrappers"].as_u64() {
        Some(0) | None => {}
        Some(1) => text += " behind a wrapper",
        Some(n) => text += &format!(" behind {n} wrappers"),
    }
    text += if export["read_only"] == true { ", read-only" } else { "" };
    for key in ["device", "tenant", "weight", "ioprio", "cache", "on_error"] {
        match &export[key] {
            Value::Null => {}
            Value::String(word) => text += &format!(", {} {word}", key.replace('_', "-")),
            value => text += &format!(", {key} {value}"),
        }
    }
    text + "\n"
}
