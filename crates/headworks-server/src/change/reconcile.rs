//! `reload`: compares exports with a configuration by name, and adds, removes or changes those that differ.
//!
//! Only what the configuration made is touched: an export of `ctl add` stays, unless the configuration has one of its name
//! now and takes it over. Weight, class and limits are compared with those that were loaded last, so that a value of `ctl set` stays
//! until the configuration says another one.

use std::io::ErrorKind;

use headworks_core::{ConfigError, VolumeId};

use super::absent::{put_absent, take_absent};
use super::add::add;
use super::remove::remove;
use super::{LiveChanges, RemovalWay};
use crate::control::exports::{Export, ExportState};
use crate::control::tree::lock;
use crate::exports::assemble::side_by_side::side_by_side;
use crate::exports::assemble::{self, AbsentExport, ExportSource, ExportSpec};
use crate::options::MissingImage;
use crate::spec::ExportOption;
use crate::spec::option_table::{Effect, OptionTable};
use headworks::house::display_size;
use headworks_control::{RpcFault, answers};
use headworks_house::Identity;
use serde_json::Value;

/// Result of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReloadReport {
    /// Names of added exports.
    pub added: Vec<String>,
    /// Names of removed exports.
    pub removed: Vec<String>,
    /// Exports with a new weight, class or limit, and the changes.
    pub changed: Vec<(String, String)>,
    /// Exports that differ and stay as they are, and the reasons.
    pub kept: Vec<(String, String)>,
    /// Exports whose images are missing, and the reasons; listed as absent.
    pub absent: Vec<(String, String)>,
    /// Exports that could not be added, and the reasons.
    pub failed: Vec<(String, String)>,
    /// Sentences about exports that were added.
    pub notes: Vec<String>,
}

impl ReloadReport {
    fn note_added(&mut self, name: String, added: Result<answers::Added, RpcFault>) {
        match added {
            Ok(added) => {
                self.added.push(name);
                self.notes.extend(added.notes);
            }
            Err(fault) => self.failed.push((name, sentence(&fault))),
        }
    }
}

/// An export in use, and the identity of its file.
struct ServedFile {
    spec: ExportSpec,
    image: Option<Identity>,
    /// Size of the volume.
    size: u64,
}

/// Makes the exports match `wanted`; see [`crate::Reloader::reconcile`].
pub fn reconcile(live: &LiveChanges, wanted: Vec<ExportSpec>) -> Result<ReloadReport, ConfigError> {
    assemble::check_exports(&wanted).map_err(|(_, error)| error)?;
    *lock(&live.configured) = wanted.clone();
    let mut reload = ReloadReport::default();
    // Exports whose removal is in progress count as gone; adding one of them may fail.
    let (mut there, mut unfinished) = (Vec::new(), Vec::new());
    {
        let inventory = lock(&live.inventory);
        let of = |volume: VolumeId| inventory.volumes.get(&volume.0);
        for Export { spec, state, volume, .. } in inventory.exports.lock().values() {
            match state {
                ExportState::Serving => {
                    there.push(ServedFile {
                        spec: spec.clone(),
                        image: of(*volume).and_then(|entry| entry.origin.identity),
                        size: of(*volume).map_or(0, |entry| entry.config.options.size),
                    });
                }
                ExportState::Stuck(_) => unfinished.push(spec.clone()),
                ExportState::Leaving | ExportState::Abandoned => {}
            }
        }
    }
    // Removals come first, to free ids and files.
    for old in unfinished.iter().chain(there.iter().map(|there| &there.spec)) {
        let stays =
            old.source == ExportSource::Control || wanted.iter().any(|new| new.name == old.name);
        if !stays || unfinished.iter().any(|stuck| stuck.name == old.name) {
            match remove(live, &old.name, RemovalWay::Unused) {
                Ok(_) => reload.removed.push(shown(&old.name)),
                Err(fault) => reload.kept.push((shown(&old.name), sentence(&fault))),
            }
        }
    }
    let lost = |absent: &&AbsentExport| {
        absent.spec.source != ExportSource::Control
            && !wanted.iter().any(|new| new.name == absent.spec.name)
    };
    for gone in live.tree.current().absent.iter().filter(lost) {
        if take_absent(live, &gone.spec.name).unwrap_or(false) {
            reload.removed.push(shown(&gone.spec.name));
        }
    }
    let mut slow = Vec::new();
    for new in wanted {
        let name = shown(&new.name);
        let is_there = there.iter().any(|old| old.spec.name == new.name);
        if let Some(absent) = absent_if_missing(live, &new).filter(|_| !is_there) {
            let reason = absent.reason.clone();
            match put_absent(live, absent) {
                Ok(_) => reload.absent.push((name, reason)),
                Err(fault) => reload.failed.push((name, sentence(&fault))),
            }
            continue;
        }
        match there.iter().find(|old| old.spec.name == new.name) {
            Some(old) => update(live, old, &new, &mut reload),
            None if new.spec.base.may_wait() => slow.push(new),
            None => reload.note_added(name, add(live, new)),
        }
    }
    let names: Vec<String> = slow.iter().map(|new| shown(&new.name)).collect();
    for (name, added) in names.into_iter().zip(side_by_side(slow, |new| add(live, new))) {
        reload.note_added(name, added);
    }
    Ok(reload)
}

/// The export as absent, if its image is missing and that is accepted.
fn absent_if_missing(live: &LiveChanges, export: &ExportSpec) -> Option<AbsentExport> {
    AbsentExport::of(export, live.shards.keeper().leftovers())
        .filter(|_| live.missing == MissingImage::Absent)
}

/// Applies the options of an export in both that take effect at once; other differences need a restart.
fn update(live: &LiveChanges, old: &ServedFile, new: &ExportSpec, reload: &mut ReloadReport) {
    let name = shown(&new.name);
    let mut set = Vec::new();
    let ServedFile { spec: old, image, size } = old;
    let differs = after_restart(old, *image, new);
    let is_other = differs.iter().any(|one| one.key == "image");
    let wanted = new.spec.size_of_new_image().filter(|wanted| !is_other && wanted > size);
    if let Some(wanted) = wanted {
        let why = format!(
            "its image has {}, less than size={}; `ctl resize {name} {}` grows it, and the next start refuses it as it is",
            display_size(*size),
            display_size(wanted),
            wanted
        );
        reload.kept.push((name.clone(), why));
    }
    if !differs.is_empty() {
        let words: Vec<&str> = differs.iter().map(AfterRestart::word).collect();
        let why = format!(
            "{} changed; restart the server, or remove and add the export",
            words.join(" and ")
        );
        reload.kept.push((name.clone(), why));
    }
    let changed = |option: &&ExportOption| !option.is_same(&old.share, &new.share);
    let changed = || ExportOption::ALL.iter().copied().filter(|option| changed(&option));
    let tree = live.tree.current();
    let Some(entry) = tree.exports.iter().find(|entry| entry.name == new.name) else { return };
    let now = live.settings.of(entry.id).options;
    // A value that `ctl` has set to the same is left alone.
    for option in changed().filter(|option| option.is_live()) {
        if option.is_same(&now, &new.share) {
            continue;
        }
        match live.settings.put_option(entry.id, option, &new.share) {
            Ok(()) => set.push(option.said(&new.share)),
            Err(fault) => reload.kept.push((name.clone(), sentence(&fault))),
        }
    }
    if !set.is_empty() {
        reload.changed.push((name, set.join(", ")));
    }
    if let Some(record) = lock(&live.inventory).exports.lock().get_mut(&entry.id.0) {
        record.spec.source = new.source;
        record.spec.layers = new.layers.clone();
        record.spec.certificates = new.certificates.clone();
        for option in ExportOption::ALL.iter().filter(|option| option.is_live()) {
            option.copy(&mut record.spec.share, &new.share);
        }
    }
}

/// Whether the path now names another file, or none, since a file may have been renamed over the open one.
/// A value of an export that a restart alone takes over: its key, what is configured, and what it is until then.
pub(super) struct AfterRestart {
    pub key: &'static str,
    pub configured: Value,
    pub running: Value,
}

impl AfterRestart {
    /// As a sentence names it.
    fn word(&self) -> &'static str {
        match self.key {
            "image" => "its image",
            "device" => "its device",
            key => key,
        }
    }
}

/// Returns what a restart takes over of an export whose file is `image`. It looks at files, so no lock is held.
pub(super) fn after_restart(
    old: &ExportSpec,
    image: Option<Identity>,
    new: &ExportSpec,
) -> Vec<AfterRestart> {
    let mut found = Vec::new();
    let mut add = |key, configured: Value, running: Value| {
        found.push(AfterRestart { key, configured, running });
    };
    let [configured, running] = [new, old].map(|spec| spec.spec.short_name());
    let is_other = !old.spec.is_same_device(&new.spec);
    if is_other && configured != running {
        add("image", configured.into(), running.into());
    } else if is_other || was_swapped(image, new) {
        let another = format!("{configured} (another file, or opened otherwise)");
        add("image", another.into(), running.into());
    }
    let [configured, running] =
        [new, old].map(|spec| spec.device.as_ref().map(|device| device.name.clone()));
    if configured != running {
        add("device", configured.into(), running.into());
    }
    if old.read_only != new.read_only {
        add("read-only", new.read_only.into(), old.read_only.into());
    }
    for option in ExportOption::ALL.iter().filter(|option| option.row().effect == Effect::Restart) {
        for (key, configured, running) in option.differences(&new.share, &old.share) {
            add(key, configured, running);
        }
    }
    found
}

fn was_swapped(image: Option<Identity>, new: &ExportSpec) -> bool {
    let (Some(image), Some(path)) = (image, new.spec.base.path()) else {
        return false;
    };
    match Identity::of(path) {
        Ok(now) => now != image,
        // Without privileges the file may not be visible.
        Err(error) => error.kind() == ErrorKind::NotFound,
    }
}

fn shown(name: &str) -> String {
    assemble::shown_name(name).to_owned()
}

fn sentence(fault: &RpcFault) -> String {
    fault.message().to_owned()
}
