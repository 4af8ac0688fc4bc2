//! Start message of the server: exports, addresses, and what a crash may lose. It goes to standard output, or with `--run` to
//! standard error: the output of the command is not mixed with it.

use std::io::{self, Write};
use std::path::Path;

use headworks_core::WriteMode;
use headworks_server::AbsentExport;

use super::ServeArgs;
use super::announced_export::{AnnouncedExport, shown_export};
use super::running::Running;
use crate::durability::{self, ExportDurability};
use crate::shown::Lines;

/// Sentence about an export whose image is missing.
pub(super) fn absent(absent: &AbsentExport) -> String {
    let AbsentExport { spec, reason } = absent;
    format!(
        "export {} is absent: {reason}; it is served when that is remedied and the configuration is reloaded, or by `ctl add`",
        shown_export(&spec.name)
    )
}

pub(super) fn announce(options: &ServeArgs, running: &Running) {
    let text = if options.json { announcement_json(running) } else { announcement(running) };
    let mut out: Box<dyn Write> = match options.run {
        Some(_) => Box::new(io::stderr().lock()),
        None => Box::new(io::stdout().lock()),
    };
    // It may be closed.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn announcement(running: &Running) -> String {
    let mut text = Lines::default();
    for note in &running.notes {
        text.push(format!("note: {note}"));
    }
    for export in &running.exports {
        let (name, share) = (export.shown_name(), export.share());
        text.push(format!("export: {name}: {}{share}", export.description));
    }
    let durabilities = durabilities(&running.exports);
    for export in running.exports.iter().filter(|export| export.mode == WriteMode::Unsafe) {
        let name = export.shown_name();
        text.push(format!(
            "WARNING: export {name} is cache=unsafe: flushes and FUA guarantee nothing"
        ));
    }
    text.push(format!("version: {}", env!("CARGO_PKG_VERSION")));
    text.push(format!("engine: {}", running.server.engine()));
    text.push(format!("cache: {}", running.server.cache().unwrap_or("none")));
    if let Some(modes) = durability::write_modes(&durabilities) {
        text.push(format!("write mode: {modes}"));
    }
    if durability::may_be_dirty(&durabilities) {
        text.push(format!("dirty data: {}", running.dirty_place()));
    }
    let kept = running.server.keeps_cache();
    let loss = durability::loss(&durabilities, &running.dirty_limit, kept);
    text.push(format!("kill -9 loses: {loss}"));
    for export in running.exports.iter().filter(|_| running.has_default) {
        text.push(format!("uri: {}", export.uri));
    }
    for listener in &running.listeners {
        listener.tell(&mut text);
    }
    if let Some(uri) = running.first_uri() {
        text.push(format!("try: nbdinfo '{uri}'"));
    }
    for address in &running.further {
        text.push(format!("{address}, same exports"));
    }
    if let Some(address) = running.server.metrics() {
        text.push(format!("metrics: http://{address}/metrics"));
        text.push(format!("status page: http://{address}/"));
    }
    if let Some(path) = &running.control {
        text.push(format!("control: headworks ctl '{}' get", path.display()));
    }
    text.into_text()
}

fn durabilities(exports: &[AnnouncedExport]) -> Vec<ExportDurability<'_>> {
    exports.iter().map(AnnouncedExport::durability).collect()
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
    let listeners: Vec<serde_json::Value> = running
        .listeners
        .iter()
        .map(|listener| {
            let exports = listener.exports.iter();
            let exports =
                exports.map(|(name, uri)| serde_json::json!({ "name": name, "uri": uri }));
            serde_json::json!({
                "name": listener.name,
                "address": listener.address,
                "offers_all": listener.offers_all,
                "exports": exports.collect::<Vec<_>>(),
            })
        })
        .collect();
    let durabilities = durabilities(&running.exports);
    let has_dirty = durability::may_be_dirty(&durabilities);
    let object = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "exports": exports,
        "listeners": listeners,
        "engine": running.server.engine(),
        "cache": running.server.cache(),
        "cache_bytes": running.cache_bytes,
        "write_mode": durability::write_modes(&durabilities),
        "dirty_data": has_dirty.then(|| running.dirty_place()),
        "kill_loses": durability::loss(&durabilities, &running.dirty_limit, running.server.keeps_cache()),
        "notes": running.notes,
        "unix": running.unix.as_deref().map(Path::to_string_lossy),
        "port": running.port,
        "further": running.further,
        "control": running.control.as_deref().map(Path::to_string_lossy),
        "metrics": running.server.metrics(),
    });
    format!("{object}\n")
}
