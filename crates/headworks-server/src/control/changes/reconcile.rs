//! A configuration that was read again: what differs by name is added, removed or set; the rest is not touched.

use std::io::ErrorKind;

use headworks_core::{ConfigError, Ioprio, VolumeId};

use super::LiveChanges;
use crate::assemble::{self, ExportSpec};
use crate::control::inventory::{ExportEntry, ExportState};
use crate::control::rpc::RpcFault;
use crate::control::tree::lock;
use crate::spec::BaseDevice;
use headworks::Identity;

/// What came of a configuration that was read again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReloadReport {
    /// Exports that are new.
    pub added: Vec<String>,
    /// Exports that are gone.
    pub removed: Vec<String>,
    /// Exports that have another weight or class, and what.
    pub changed: Vec<(String, String)>,
    /// Exports that stay as they are though the configuration says otherwise, and why.
    pub kept: Vec<(String, String)>,
    /// Exports that could not be added, and why.
    pub failed: Vec<(String, String)>,
}

/// An export that is served, and which file it is if it is one.
struct ServedFile {
    spec: ExportSpec,
    image: Option<Identity>,
}

impl LiveChanges {
    /// See [`crate::server::Reloader::reconcile`].
    pub fn reconcile(&self, wanted: Vec<ExportSpec>) -> Result<ReloadReport, ConfigError> {
        assemble::check(&wanted)?;
        let mut reload = ReloadReport::default();
        // What somebody else removes just now is as good as gone; who wants it hears of that when it is added.
        let (mut there, mut unfinished) = (Vec::new(), Vec::new());
        {
            let inventory = lock(&self.inventory);
            let image = |volume: VolumeId| inventory.volumes.get(&volume.0)?.origin.identity;
            for ExportEntry { spec, presence, volume, .. } in inventory.exports.values() {
                match presence {
                    ExportState::Serving => {
                        there.push(ServedFile { spec: spec.clone(), image: image(*volume) });
                    }
                    ExportState::Stuck(_) => unfinished.push(spec.clone()),
                    ExportState::Leaving => {}
                }
            }
        }
        // Places and files become free first.
        for old in unfinished.iter().chain(there.iter().map(|there| &there.spec)) {
            let is_wanted = wanted.iter().any(|new| new.name == old.name);
            if !is_wanted || unfinished.iter().any(|stuck| stuck.name == old.name) {
                match self.remove(&old.name, false) {
                    Ok(_) => reload.removed.push(shown(&old.name)),
                    Err(fault) => reload.kept.push((shown(&old.name), sentence(&fault))),
                }
            }
        }
        for new in wanted {
            let name = shown(&new.name);
            match there.iter().find(|old| old.spec.name == new.name) {
                Some(old) => self.update(old, &new, &mut reload),
                None => match self.add(new) {
                    Ok(_) => reload.added.push(name),
                    Err(fault) => reload.failed.push((name, sentence(&fault))),
                },
            }
        }
        Ok(reload)
    }

    /// An export that is in both: its share is set, anything else waits for a restart.
    fn update(&self, old: &ServedFile, new: &ExportSpec, reload: &mut ReloadReport) {
        let name = shown(&new.name);
        let (mut differs, mut set) = (Vec::new(), Vec::new());
        let ServedFile { spec: old, image } = old;
        if old.spec != new.spec || was_swapped(*image, new) {
            differs.push("its image");
        }
        let name_of = |spec: &ExportSpec| spec.device.as_ref().map(|device| device.name.clone());
        if name_of(old) != name_of(new) {
            differs.push("its device");
        }
        if old.read_only != new.read_only {
            differs.push("read-only");
        }
        if old.share.mode != new.share.mode {
            differs.push("cache");
        }
        if old.share.on_error != new.share.on_error {
            differs.push("on-error");
        }
        if !differs.is_empty() {
            let why = format!(
                "{} changed; restart the server, or remove and add the export",
                differs.join(" and ")
            );
            reload.kept.push((name.clone(), why));
        }
        let tree = self.tree.current();
        let Some(entry) = tree.exports.iter().find(|entry| entry.name == new.name) else { return };
        let now = self.settings.of(entry.id);
        let (weight, ioprio): (u16, Ioprio) = (new.share.weight, new.share.ioprio);
        if now.weight != weight && self.settings.set_weight(entry.id, weight).is_ok() {
            set.push(format!("weight {weight}"));
        }
        if now.ioprio != ioprio && self.settings.set_ioprio(entry.id, ioprio).is_ok() {
            set.push(format!("ioprio {ioprio}"));
        }
        if !set.is_empty() {
            reload.changed.push((name, set.join(", ")));
        }
    }
}

/// Whether the same words mean another file now, or none: one may have been moved into the place of the one that is open.
fn was_swapped(image: Option<Identity>, new: &ExportSpec) -> bool {
    let (Some(image), BaseDevice::File { path, .. }) = (image, &new.spec.base) else {
        return false;
    };
    match Identity::of(path) {
        Ok(now) => now != image,
        // Who gave privileges up may not look everywhere.
        Err(error) => error.kind() == ErrorKind::NotFound,
    }
}

fn shown(name: &str) -> String {
    assemble::shown_name(name).to_owned()
}

fn sentence(fault: &RpcFault) -> String {
    fault.message().to_owned()
}
