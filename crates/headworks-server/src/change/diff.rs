//! `diff`: how the running server differs from the configuration that was loaded last, also as a drop-in file.
//!
//! ```text
//!   exports     added by ctl -> an [[export]]      removed by ctl -> an [[export]] with enabled = false
//!               weight, ioprio, limits changed -> the whole [[export]], since a later file replaces it
//!   listeners   added by ctl -> a [[listen]]       removed by ctl -> a [[listen]] with enabled = false
//!   queues      device with a name -> [[device]]   without one -> [server.queue], if all such devices agree
//!   write-back  [server.vm]
//! ```
//!
//! A value in `[server.queue]` is also that of named devices that say nothing of it, so the drop-in says for each of them the
//! value that it has. What no file can say is listed as unsaved, with the reason.
//!
//! The command line wins over files, so a file has nothing of what is said there. A process that replaces this one is told
//! everything: its changes win over its own command line.

use std::collections::BTreeMap;

use headworks_core::QueueOptions;
use headworks_core::options::Tunable;
use headworks_core::writeback::DirtyTunable;
use serde_json::Value;

use super::LiveChanges;
use super::reconcile::{AfterRestart, after_restart};
use super::retune::dirty_changes;
use super::tenants::diff_tenants;
use crate::config::{
    ConfigFile, DeviceSection, ExportSection, Origin, Setting, Tuned, Value as ConfigValue,
    is_probed, size_word,
};
use crate::control::exports::{Export, ExportState};
use crate::control::inventory::Inventory;
use crate::control::report::{dirty_value, value};
use crate::control::tree::{device_name, lock};
use crate::exports::assemble::{ExportSource, ExportSpec, shown_name};
use crate::reactor::messages::query::DeviceReport;
use crate::spec::ExportOption;
use crate::spec::limit_words::{LIMIT_KEYS, limit_word, limit_words};
use crate::spec::option_table::OptionTable;
use crate::spec::tenant::{NONE, TenantName};
use headworks_control::answers::{self, Difference};
use headworks_control::{RpcFault, methods};
use headworks_core::limits::LimitTarget;

/// Differences that are found, and the drop-in that says them.
#[derive(Default)]
pub(super) struct Differences {
    changes: Vec<Difference>,
    pub(super) file: ConfigFile,
    unsaved: Vec<String>,
}

impl Differences {
    pub(super) fn add(&mut self, path: &str, configured: Value, running: Value) {
        self.changes.push(Difference { path: path.to_owned(), configured, running });
    }
}

/// The reader of a drop-in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DropInReader {
    /// A later start: the command line wins over it.
    LaterStart,
    /// The process that replaces this one: it wins over the command line.
    Successor,
}

impl DropInReader {
    /// Returns whether values of what comes from `source` have an effect.
    pub(super) fn takes(self, source: ExportSource) -> bool {
        self == Self::Successor || source != ExportSource::CommandLine
    }
}

/// A queue of a running device.
pub(super) struct RunningQueue {
    pub path: String,
    /// Name of the device in the configuration.
    pub name: Option<String>,
    pub options: QueueOptions,
    /// Options that the device began with.
    initial: QueueOptions,
}

/// Answers the method `diff`: changes, a drop-in, and what no file can say.
pub fn diff(live: &LiveChanges, asked: &methods::Diff) -> Result<answers::Diff, RpcFault> {
    let mut found = differences(live, DropInReader::LaterStart)?;
    if asked.save {
        super::saved::note_saved(live, &found.file);
    }
    diff_after_restart(live, &mut found);
    Ok(answers::Diff {
        config: live.config.as_ref().map(|path| path.to_string_lossy().into_owned()),
        changes: found.changes,
        text: live.inherited.clone().merged(found.file).to_string(),
        unsaved: found.unsaved,
    })
}

/// Returns all changes as a drop-in for the process that replaces this one.
///
/// # Errors
/// A shard does not answer.
pub fn for_successor(live: &LiveChanges) -> Result<String, RpcFault> {
    let found = differences(live, DropInReader::Successor)?;
    Ok(live.inherited.clone().merged(found.file).to_string())
}

pub(super) fn differences(
    live: &LiveChanges,
    reader: DropInReader,
) -> Result<Differences, RpcFault> {
    let mut found = Differences::default();
    let Differences { changes, file, unsaved } = &mut found;
    diff_tenants(live, reader, file, unsaved, |path, old, new| {
        changes.push(Difference { path: path.to_owned(), configured: old, running: new });
    });
    super::live_listeners::differences(live, &mut found);
    diff_exports(live, reader, &mut found);
    diff_limits(live, &mut found);
    let queues = running_queues(live)?;
    diff_queues(live, &queues, &mut found);
    diff_dirty(live, &mut found);
    Ok(found)
}

fn diff_exports(live: &LiveChanges, reader: DropInReader, found: &mut Differences) {
    let (inventory, configured) = (lock(&live.inventory), lock(&live.configured));
    let exports = inventory.exports.lock();
    let absent = &live.tree.current().absent;
    let is_there = |name: &str| {
        exports.values().any(|export| export.is_named() && export.spec.name == name)
            || absent.iter().any(|absent| absent.spec.name == name)
    };
    for export in exports.values() {
        if matches!(export.state, ExportState::Serving) {
            diff_export(live, reader, (&inventory, &configured), export, found);
        }
    }
    for gone in configured.iter().filter(|spec| !is_there(&spec.name)) {
        let name = shown_name(&gone.name);
        found.add(&format!("exports/{name}"), words(gone), Value::Null);
        match reader.takes(gone.source) {
            true => {
                found.file.exports.push(ExportSection::disabled(&gone.name, &Origin::Control));
            }
            false => found.unsaved.push(on_command_line("export", name)),
        }
    }
}

/// Why a change is not saved.
pub(super) fn on_command_line(what: &str, name: &str) -> String {
    format!("{what} {name} is on the command line, which wins over a file; change it there")
}

/// Limits of the whole server: a file says all of them.
fn diff_limits(live: &LiveChanges, found: &mut Differences) {
    let (configured, now) =
        (lock(&live.tunables).limits, live.settings.limits(LimitTarget::Server));
    for key in LIMIT_KEYS {
        let [old, new] = [&configured, &now].map(|limits| limit_word(limits, key));
        if old != new {
            found.add(&format!("server/{key}"), old.into(), new.into());
        }
    }
    if configured != now {
        found.file.server.push(server_limits(live));
    }
}

/// Limits of the whole server as a file says them.
pub(super) fn server_limits(live: &LiveChanges) -> Setting {
    let now = live.settings.limits(LimitTarget::Server);
    let words = limit_words(&now).map(|(key, word)| format!("{key}={word}")).collect();
    let (name, value) = ("limit".to_owned(), ConfigValue::List(words));
    Setting { name, value, origin: Origin::Control }
}

fn running_queues(live: &LiveChanges) -> Result<Vec<RunningQueue>, RpcFault> {
    let tree = live.tree.current();
    let mut queues = Vec::new();
    for node in &tree.devices {
        // It may have been removed meanwhile.
        let report = live.tree.if_current(&tree, live.shards.device(&tree, node.id))?;
        let Some(DeviceReport { options, .. }) = report else { continue };
        let inventory = lock(&live.inventory);
        let Some(entry) = inventory.devices.get(&node.id.0) else { continue };
        let (path, name) = (device_name(node.id), entry.name.clone());
        queues.push(RunningQueue { path, name, options, initial: entry.config.queue });
    }
    Ok(queues)
}

fn diff_queues(live: &LiveChanges, queues: &[RunningQueue], found: &mut Differences) {
    let configured = lock(&live.tunables).clone();
    let said = |queue: &RunningQueue, tunable| configured.value(queue.name.as_deref(), tunable);
    let usual = QueueOptions::default();
    // By device; none is that of all devices without a name.
    let mut saved: BTreeMap<Option<&str>, Vec<(Tunable, u64)>> = BTreeMap::new();
    for tunable in Tunable::ALL.into_iter().filter(|tunable| tunable.is_live()) {
        for queue in queues {
            let (old, now) = (said(queue, tunable), tunable.get(&queue.options));
            // The queue of a process that replaces another one begins with what `ctl` had set there.
            let is_own = live.started.value(queue.name.as_deref(), tunable).is_none();
            let found_or_usual = match is_own {
                true => Some(tunable.get(&queue.initial)),
                false => (!is_probed(tunable)).then(|| tunable.get(&usual)),
            };
            let old = old.or(found_or_usual);
            if old == Some(now) {
                continue;
            }
            let old = old.unwrap_or_else(|| tunable.get(&usual));
            let path = format!("{}/queue/{}", queue.path, tunable.name());
            found.add(&path, value(tunable, old), value(tunable, now));
            let like = |other: &&RunningQueue| other.name.is_none();
            let nameless = || queues.iter().filter(like);
            if queue.name.is_none() && nameless().any(|other| tunable.get(&other.options) != now) {
                found.unsaved.push(format!(
                    "{path}: other devices without a name have other values; give the device one ([[device]])"
                ));
                continue;
            }
            let values = saved.entry(queue.name.as_deref()).or_default();
            if !values.contains(&(tunable, now)) {
                values.push((tunable, now));
            }
        }
    }
    // A value of all devices must not reach named ones.
    for (tunable, _) in saved.get(&None).cloned().unwrap_or_default() {
        for device in &configured.devices {
            let own = queues.iter().find(|q| q.name.as_deref() == Some(&*device.name));
            let now = own.map_or_else(
                || configured.value(Some(&device.name), tunable),
                |queue| Some(tunable.get(&queue.options)),
            );
            let now = now.unwrap_or_else(|| tunable.get(&usual));
            let values = saved.entry(Some(&device.name)).or_default();
            if !values.contains(&(tunable, now)) {
                values.push((tunable, now));
            }
        }
    }
    for (name, values) in saved {
        let tuned = |(tunable, value)| Tuned { tunable, value, origin: Origin::Control };
        let queue = values.into_iter().map(tuned).collect();
        match name {
            None => found.file.queue = queue,
            Some(name) => found.file.devices.push(DeviceSection {
                name: name.to_owned(),
                queue,
                origin: Origin::Control,
            }),
        }
    }
}

fn diff_dirty(live: &LiveChanges, found: &mut Differences) {
    let (configured, now) = (lock(&live.tunables).dirty, live.settings.dirty());
    for (tunable, number) in dirty_changes(&configured, &now) {
        let old = dirty_value(tunable, tunable.get(&configured));
        found.add(&format!("vm/{}", tunable.name()), old, dirty_value(tunable, number));
        // A file gives a limit as bytes or as a ratio.
        let is_other = match tunable {
            DirtyTunable::Ratio => DirtyTunable::Bytes.get(&now) > 0,
            DirtyTunable::BackgroundRatio => DirtyTunable::BackgroundBytes.get(&now) > 0,
            DirtyTunable::Bytes | DirtyTunable::BackgroundBytes => number == 0,
            _ => false,
        };
        if !is_other {
            let origin = Origin::Control;
            found.file.vm.push(Tuned { tunable, value: number, origin });
        }
    }
}

/// Adds an export to what `diff` finds, if an option of it differs or `ctl` has added it.
fn diff_export(
    live: &LiveChanges,
    reader: DropInReader,
    (inventory, configured): (&Inventory, &[ExportSpec]),
    export: &Export,
    found: &mut Differences,
) {
    let (spec, now) = (&export.spec, &export.now.options);
    let (name, share) = (shown_name(&spec.name), &spec.share);
    let is_added = spec.source == ExportSource::Control;
    let before = found.changes.len();
    if is_added {
        found.add(&format!("exports/{name}"), Value::Null, words(spec));
    }
    for option in ExportOption::ALL.iter().filter(|option| option.is_live()) {
        for (key, old, new) in option.differences(share, now) {
            found.add(&format!("exports/{name}/{key}"), old, new);
        }
    }
    // An image keeps its size itself.
    let size = spec.spec.size_without_image().map(|given| {
        let volume = inventory.volumes.get(&export.volume.0);
        [given, volume.map_or(given, |volume| volume.config.options.size)]
    });
    if let Some([old, new]) = size.filter(|[old, new]| old != new) {
        found.add(&format!("exports/{name}/size"), size_word(old).into(), size_word(new).into());
    }
    if found.changes.len() == before {
        return;
    }
    let section = section_now(live, configured, export, size.map(|[_, new]| new));
    match section.filter(|_| reader.takes(spec.source)) {
        Some(section) => found.file.exports.push(section),
        None => found.unsaved.push(on_command_line("export", name)),
    }
}

/// The section of an export as it runs, with the size of a device that is no image. What only a restart changes is said as it is configured.
fn section_now(
    live: &LiveChanges,
    configured: &[ExportSpec],
    export: &Export,
    size: Option<u64>,
) -> Option<ExportSection> {
    let (running, now) = (&export.spec, &export.now.options);
    let is_of_file = running.source != ExportSource::Control;
    let known = configured.iter().find(|spec| is_of_file && spec.name == running.name);
    let spec = known.unwrap_or(running);
    let mut said = spec.share;
    ExportOption::ALL
        .iter()
        .filter(|option| option.is_live())
        .for_each(|option| option.copy(&mut said, now));
    // The list of a tenant may name the export, so that it has none is said, too.
    if live.settings.tenants().iter().next().is_some() {
        said.tenant = said.tenant.or(TenantName::parse(NONE).ok());
    }
    let mut section = ExportSection::of(spec, &said, &Origin::Control)?;
    if let Some(size) = size.filter(|_| spec.spec == running.spec) {
        section.set_size(size);
    }
    Some(section)
}

/// Adds what exports will have after a restart alone, because a reload refused to change it: the configuration has it already, so there is
/// nothing to save.
fn diff_after_restart(live: &LiveChanges, found: &mut Differences) {
    let both: Vec<_> = {
        let (inventory, configured) = (lock(&live.inventory), lock(&live.configured));
        let exports = inventory.exports.lock();
        let served = exports.values().filter(|export| {
            matches!(export.state, ExportState::Serving)
                && export.spec.source != ExportSource::Control
        });
        let with_new = |export: &Export| {
            let new = configured.iter().find(|new| new.name == export.spec.name)?;
            let image = inventory.volumes.get(&export.volume.0)?.origin.identity;
            Some((export.spec.clone(), image, new.clone()))
        };
        served.filter_map(with_new).collect()
    };
    for (old, image, new) in both {
        let name = shown_name(&old.name);
        for AfterRestart { key, configured, running } in after_restart(&old, image, &new) {
            let note =
                format!("export {name}: {key} is configured already; a restart takes it over");
            found.unsaved.push(note);
            found.add(&format!("exports/{name}/{key}"), configured, running);
        }
    }
}

/// An export in the words of a command line.
fn words(spec: &ExportSpec) -> Value {
    let section = ExportSection::of(spec, &spec.share, &Origin::Control);
    section.map_or_else(|| spec.spec.short_name().into(), |section| section.words().into())
}
