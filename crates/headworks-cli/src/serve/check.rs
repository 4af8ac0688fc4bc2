//! `headworks check FILE`: what would be served, or all that is wrong. Nothing is made and nothing is opened for writing.
//!
//! What is wrong with the words ends with 2, what is wrong with the world (an image that is not there) with 1.

use std::io::Write as _;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use headworks::display_size;
use headworks_core::Tunable;
use headworks_server::Base;
use headworks_server::assemble::ExportSpec;
use headworks_server::config::{Export, File, Tuned};
use serde_json::{Value, json};

use super::{Settled, Told, Wrong, plan, refuse};
use crate::complain;

/// Looks at a configuration file.
#[derive(clap::Args)]
pub struct Options {
    /// The configuration file; of NAME.toml also NAME.d/*.toml
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// From the file to an exit code.
pub fn run(options: &Options) -> ExitCode {
    let settled = match Told::by_file(&options.file).settle() {
        Ok(settled) => settled,
        Err(wrong) => return refuse_as(options, &wrong),
    };
    let (specs, _) = match plan(&settled) {
        Ok(planned) => planned,
        Err(problems) => return refuse_as(options, &Wrong::Words(problems)),
    };
    let both = settled.config.exports.iter().zip(&specs);
    let missing: Vec<String> = places(&settled)
        .into_iter()
        .chain(both.filter_map(|(export, spec)| image(export, spec)))
        .collect();
    if !missing.is_empty() {
        missing.iter().for_each(complain);
        tell_problems(options, &missing);
        return ExitCode::FAILURE;
    }
    let summary = summary(&settled, &specs);
    let text = match options.json {
        true => format!("{summary}\n"),
        false => show(&options.file, &summary),
    };
    // Nobody may be reading.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

/// Says what is wrong to people, and to the program that asked.
fn refuse_as(options: &Options, wrong: &Wrong) -> ExitCode {
    let said = match wrong {
        Wrong::Usage(error) => error.to_string(),
        Wrong::Words(problems) => problems.to_string(),
        Wrong::World(error) => error.to_string(),
    };
    let lines: Vec<String> = said.lines().map(str::to_owned).collect();
    tell_problems(options, &lines);
    refuse(wrong)
}

fn tell_problems(options: &Options, problems: &[String]) {
    if options.json {
        // Nobody may be reading.
        let _ = writeln!(std::io::stdout(), "{}", json!({ "problems": problems }));
    }
}

/// What is in the way of sockets and files that are made at the start.
fn places(settled: &Settled) -> Vec<String> {
    let names = ["unix", "control", "pid-file", "record"];
    let said = settled.config.server.iter().filter(|setting| {
        names.contains(&setting.name.as_str()) && !["", "-"].contains(&setting.word())
    });
    let wrong = said.filter_map(|setting| {
        let folder = missing_folder(Path::new(setting.word()))?;
        let what = format!("{}: there is no folder {}", setting.name, folder.display());
        Some(headworks_server::config::Problem::new(&setting.origin, what).to_string())
    });
    wrong.collect()
}

fn missing_folder(path: &Path) -> Option<PathBuf> {
    let folder = std::path::absolute(path).ok()?.parent()?.to_owned();
    (!folder.is_dir()).then_some(folder)
}

/// What is wrong with an export's image.
fn image(export: &Export, spec: &ExportSpec) -> Option<String> {
    let Base::File { path, options } = &spec.spec.base else { return None };
    let shown = path.display();
    let what = match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => match options.size {
            None => format!("there is no {shown}; with a size it would be made"),
            Some(_) => {
                let folder = missing_folder(path)?;
                format!("{shown} cannot be made: there is no folder {}", folder.display())
            }
        },
        Err(error) => format!("cannot look at {shown}: {error}"),
        Ok(found) if found.is_dir() => format!("{shown} is a folder"),
        // To open a pipe would be to wait for whoever writes.
        Ok(found) if !found.is_file() && !found.file_type().is_block_device() => {
            format!("{shown} is no file and no block device")
        }
        Ok(found) if found.is_file() && found.len() == 0 && options.size.is_none() => {
            format!("{shown} has no bytes to serve; give it a size")
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

fn summary(settled: &Settled, specs: &[ExportSpec]) -> Value {
    let Settled { options, config, notes } = settled;
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
        Base::File { path, options } => {
            let there = std::fs::metadata(path).ok().filter(|found| found.is_file());
            (
                "file",
                Some(path),
                there.map(|found| found.len()).filter(|len| *len > 0).or(options.size),
            )
        }
        Base::Null { size } => ("null", None, *size),
        Base::Mem { size } => ("mem", None, *size),
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

/// What is said of a queue; what nobody said is left out.
fn queue(config: &File, device: Option<&str>) -> Value {
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

/// The summary for people.
fn show(file: &Path, summary: &Value) -> String {
    let mut text = format!("{}: nothing is wrong\n", file.display());
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
        let users = if users.is_empty() { "nobody".to_owned() } else { users.join(", ") };
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
