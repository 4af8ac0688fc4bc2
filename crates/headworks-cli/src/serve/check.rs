//! `headworks check FILE`: prints what would be served, or every error. Creates nothing and opens nothing for writing.
//!
//! Invalid options exit with 2, a missing image or directory exits with 1.

use std::io::Write as _;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use headworks::display_size;
use headworks_core::Tunable;
use headworks_server::config::{ConfigFile, ExportSection, Tuned};
use headworks_server::{BaseDevice, ExportSpec};
use serde_json::{Value, json};

use super::{EffectiveOptions, OptionError, OptionSources, plan, report_error};
use crate::complain;

/// Checks a configuration file: prints what would be served, or every error with its position
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  headworks check /etc/headworks/main.toml              exit code 0: can be served, 1: files missing, 2: errors in the file
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
        Err(wrong) => return report_error_as(options, &wrong),
    };
    let (specs, _) = match plan(&effective) {
        Ok(planned) => planned,
        Err(problems) => return report_error_as(options, &OptionError::Invalid(problems)),
    };
    let both = effective.config.exports.iter().zip(&specs);
    let missing: Vec<String> = path_errors(&effective)
        .into_iter()
        .chain(both.filter_map(|(export, spec)| image_error(export, spec)))
        .collect();
    if !missing.is_empty() {
        missing.iter().for_each(complain);
        print_problems(options, &missing);
        return ExitCode::FAILURE;
    }
    let summary = summary(&effective, &specs);
    let text = match options.json {
        true => format!("{summary}\n"),
        false => show(&options.file, &summary),
    };
    // Standard output may be closed.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
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
        let _ = writeln!(std::io::stdout(), "{}", json!({ "problems": problems }));
    }
}

/// Errors about sockets and files that the server would create.
fn path_errors(effective: &EffectiveOptions) -> Vec<String> {
    let names = ["unix", "control", "pid-file", "record"];
    let said = effective.config.server.iter().filter(|setting| {
        names.contains(&setting.name.as_str()) && !["", "-"].contains(&setting.word())
    });
    let wrong = said.filter_map(|setting| {
        let folder = missing_folder(Path::new(setting.word()))?;
        let what = format!("{}: no such directory: {}", setting.name, folder.display());
        Some(headworks_server::config::Problem::new(&setting.origin, what).to_string())
    });
    wrong.collect()
}

fn missing_folder(path: &Path) -> Option<PathBuf> {
    let folder = std::path::absolute(path).ok()?.parent()?.to_owned();
    (!folder.is_dir()).then_some(folder)
}

/// Error about the image of an export, if any.
fn image_error(export: &ExportSection, spec: &ExportSpec) -> Option<String> {
    let BaseDevice::File { path, options } = &spec.spec.base else { return None };
    let shown = path.display();
    let what = match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => match options.size {
            None => format!("{shown} does not exist; create it or give a size to have it created"),
            Some(_) => {
                let folder = missing_folder(path)?;
                format!("cannot create {shown}: no such directory: {}", folder.display())
            }
        },
        Err(error) => format!("cannot access {shown}: {error}"),
        Ok(found) if found.is_dir() => format!("{shown} is a directory"),
        // Opening a pipe would block until a writer opens it.
        Ok(found) if !found.is_file() && !found.file_type().is_block_device() => {
            format!("{shown} is neither a regular file nor a block device")
        }
        Ok(found) if found.is_file() && found.len() == 0 && options.size.is_none() => {
            format!("{shown} is empty; give it a size")
        }
        Ok(_) => match std::fs::File::open(path) {
            Ok(_) => return None,
            Err(error) => format!("cannot read {shown}: {error}"),
        },
    };
    let what = format!("export {}: {what}", shown_name(&export.name));
    Some(headworks_server::config::Problem::new(&export.origin, what).to_string())
}

fn shown_name(name: &str) -> &str {
    if name.is_empty() { "(default)" } else { name }
}

fn summary(effective: &EffectiveOptions, specs: &[ExportSpec]) -> Value {
    let EffectiveOptions { options, config, notes } = effective;
    let exports: Vec<Value> = specs.iter().map(export).collect();
    let devices: Vec<Value> = config.devices.iter().map(|device| {
        let users = specs.iter().filter(|spec| device_of(spec) == Some(device.name.as_str()));
        let users: Vec<&str> = users.map(|spec| spec.name.as_str()).collect();
        json!({ "name": device.name, "exports": users, "queue": queue(config, Some(&device.name)) })
    }).collect();
    let private = options.port.is_none().then(|| PathBuf::from("-"));
    json!({
        "unix": options.unix.clone().or(private),
        "port": options.port,
        "ip_addr": options.port.map(|_| options.ip_addr.to_string()),
        "control": options.control,
        "cache_bytes": options.cache,
        "exports": exports,
        "devices": devices,
        "queue": queue(config, None),
        "notes": notes,
    })
}

fn export(spec: &ExportSpec) -> Value {
    let (kind, path, size) = match &spec.spec.base {
        BaseDevice::File { path, options } => {
            let there = std::fs::metadata(path).ok().filter(|found| found.is_file());
            (
                "file",
                Some(path),
                there.map(|found| found.len()).filter(|len| *len > 0).or(options.size),
            )
        }
        BaseDevice::Null { size } => ("null", None, *size),
        BaseDevice::Mem { size } => ("mem", None, *size),
    };
    json!({
        "name": spec.name,
        "type": kind,
        "path": path,
        "size": size,
        "made": path.is_some_and(|path| !path.exists()),
        "wrappers": spec.spec.wrappers.len(),
        "device": device_of(spec),
        "read_only": spec.read_only,
        "weight": spec.share.weight,
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
    let mut text = format!("{}: no errors\n", file.display());
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
    text += &format!("listen: {}\n", listen.join(" and "));
    if let Some(path) = summary["control"].as_str() {
        text += &format!("control: {path}\n");
    }
    match summary["cache_bytes"].as_u64() {
        Some(0) | None => text += "cache: none\n",
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
    let what = export["path"].as_str().or(export["type"].as_str()).unwrap_or_default();
    let mut text = format!("export: {}: {what}", shown_name(name));
    if let Some(size) = export["size"].as_u64() {
        text += &format!(", {}", display_size(size));
    }
    let made = export["made"] == true;
    text += if made { ", to be made" } else { "" };
    match export["wrappers"].as_u64() {
        Some(0) | None => {}
        Some(1) => text += " behind a wrapper",
        Some(n) => text += &format!(" behind {n} wrappers"),
    }
    text += if export["read_only"] == true { ", read-only" } else { "" };
    for key in ["device", "weight", "ioprio", "cache", "on_error"] {
        match &export[key] {
            Value::Null => {}
            Value::String(word) => text += &format!(", {} {word}", key.replace('_', "-")),
            value => text += &format!(", {key} {value}"),
        }
    }
    text + "\n"
}
