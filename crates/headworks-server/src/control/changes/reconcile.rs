//! `reload`: compares exports with a configuration by name, and adds, removes or changes those that differ.
//!
//! Only what the configuration made is touched: an export of `ctl add` stays, unless the configuration has one of its name
//! now and takes it over. Weight, class and limits are compared with those that were loaded last, so that a value of `ctl set` stays
//! until the configuration says another one.

use std::io::ErrorKind;

use headworks_core::{ConfigError, Ioprio, VolumeId};

use super::LiveChanges;
use crate::assemble::side_by_side::side_by_side;
use crate::assemble::{self, AbsentExport, ExportSource, ExportSpec};
use crate::cache_part::part_word;
use crate::control::inventory::{ExportEntry, ExportState};
use crate::control::rpc::{RpcFault, RpcResult};
use crate::control::tree::lock;
use crate::latency_target::latency_target_word;
use crate::limit_words::shown_limits;
use crate::options::MissingImage;
use headworks::{Identity, display_size};
use headworks_front::limits::LimitTarget;

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
}

impl ReloadReport {
    fn note_added(&mut self, name: String, added: &RpcResult) {
        match added {
            Ok(_) => self.added.push(name),
            Err(fault) => self.failed.push((name, sentence(fault))),
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

impl LiveChanges {
    /// Makes the exports match `wanted`; see [`crate::Reloader::reconcile`].
    pub fn reconcile(&self, wanted: Vec<ExportSpec>) -> Result<ReloadReport, ConfigError> {
        assemble::check_exports(&wanted)?;
        *lock(&self.configured) = wanted.clone();
        let mut reload = ReloadReport::default();
        // Exports whose removal is in progress count as gone; adding one of them may fail.
        let (mut there, mut unfinished) = (Vec::new(), Vec::new());
        {
            let inventory = lock(&self.inventory);
            let of = |volume: VolumeId| inventory.volumes.get(&volume.0);
            for ExportEntry { spec, state, volume, .. } in inventory.exports.values() {
                match state {
                    ExportState::Serving => {
                        there.push(ServedFile {
                            spec: spec.clone(),
                            image: of(*volume).and_then(|entry| entry.origin.identity),
                            size: of(*volume).map_or(0, |entry| entry.config.options.size),
                        });
                    }
                    ExportState::Stuck(_) => unfinished.push(spec.clone()),
                    ExportState::Leaving => {}
                }
            }
        }
        // Removals come first, to free ids and files.
        for old in unfinished.iter().chain(there.iter().map(|there| &there.spec)) {
            let stays = old.source == ExportSource::Control
                || wanted.iter().any(|new| new.name == old.name);
            if !stays || unfinished.iter().any(|stuck| stuck.name == old.name) {
                match self.remove(&old.name, false) {
                    Ok(_) => reload.removed.push(shown(&old.name)),
                    Err(fault) => reload.kept.push((shown(&old.name), sentence(&fault))),
                }
            }
        }
        let lost = |absent: &&AbsentExport| {
            absent.spec.source != ExportSource::Control
                && !wanted.iter().any(|new| new.name == absent.spec.name)
        };
        for gone in self.tree.current().absent.iter().filter(lost) {
            if self.take_absent(&gone.spec.name).unwrap_or(false) {
                reload.removed.push(shown(&gone.spec.name));
            }
        }
        let mut slow = Vec::new();
        for new in wanted {
            let name = shown(&new.name);
            let is_there = there.iter().any(|old| old.spec.name == new.name);
            if let Some(absent) = self.absent_if_missing(&new).filter(|_| !is_there) {
                let reason = absent.reason.clone();
                match self.put_absent(absent) {
                    Ok(_) => reload.absent.push((name, reason)),
                    Err(fault) => reload.failed.push((name, sentence(&fault))),
                }
                continue;
            }
            match there.iter().find(|old| old.spec.name == new.name) {
                Some(old) => self.update(old, &new, &mut reload),
                None if new.spec.base.may_wait() => slow.push(new),
                None => reload.note_added(name, &self.add(new)),
            }
        }
        let names: Vec<String> = slow.iter().map(|new| shown(&new.name)).collect();
        for (name, added) in names.into_iter().zip(side_by_side(slow, |new| self.add(new))) {
            reload.note_added(name, &added);
        }
        Ok(reload)
    }

    /// The export as absent, if its image is missing and that is accepted.
    fn absent_if_missing(&self, export: &ExportSpec) -> Option<AbsentExport> {
        AbsentExport::of(export, self.shards.keeper().leftovers())
            .filter(|_| self.missing == MissingImage::Absent)
    }

    /// Applies weight, class and limits of an export in both; other differences need a restart.
    fn update(&self, old: &ServedFile, new: &ExportSpec, reload: &mut ReloadReport) {
        let name = shown(&new.name);
        let (mut differs, mut set) = (Vec::new(), Vec::new());
        let ServedFile { spec: old, image, size } = old;
        let loaded = old.share;
        if !old.spec.is_same_device(&new.spec) || was_swapped(*image, new) {
            differs.push("its image");
        } else if let Some(wanted) = new.spec.size_of_new_image().filter(|wanted| wanted > size) {
            let why = format!(
                "its image has {}, less than size={}; `ctl resize {name} {}` grows it, and the next start refuses it as it is",
                display_size(*size),
                display_size(wanted),
                wanted
            );
            reload.kept.push((name.clone(), why));
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
        if old.share.describe != new.share.describe {
            differs.push("describe");
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
        if loaded.weight != weight
            && now.weight != weight
            && self.settings.set_weight(entry.id, weight).is_ok()
        {
            set.push(format!("weight {weight}"));
        }
        if loaded.ioprio != ioprio
            && now.ioprio != ioprio
            && self.settings.set_ioprio(entry.id, ioprio).is_ok()
        {
            set.push(format!("ioprio {ioprio}"));
        }
        let target = new.share.latency_target_us;
        if loaded.latency_target_us != target
            && now.latency_target_us != target
            && self.settings.set_latency_target(entry.id, target).is_ok()
        {
            set.push(format!("latency-target {}", latency_target_word(target)));
        }
        let dirty = new.share.dirty;
        if loaded.dirty != dirty
            && now.dirty != dirty
            && self.settings.set_export_dirty(entry.id, dirty).is_ok()
        {
            set.push(format!("dirty {}", part_word(dirty)));
        }
        let tenant = new.share.tenant;
        if loaded.tenant != tenant && self.settings.tenant_of(entry.id) != tenant {
            let shown = tenant.map_or("none".to_owned(), |name| name.to_string());
            match self.settings.set_export_tenant(&[entry.id], tenant) {
                Ok(()) => set.push(format!("tenant {shown}")),
                Err(fault) => reload.kept.push((name.clone(), sentence(&fault))),
            }
        }
        let limits = new.share.limits;
        if loaded.limits != limits
            && now.limits != limits
            && self.settings.set_limits(LimitTarget::Export(entry.id), limits).is_ok()
        {
            set.push(shown_limits(&limits));
        }
        if !set.is_empty() {
            reload.changed.push((name, set.join(", ")));
        }
        if let Some(record) = lock(&self.inventory).exports.get_mut(&entry.id.0) {
            record.spec.source = new.source;
            record.spec.layers = new.layers.clone();
            record.spec.certificates = new.certificates.clone();
            (record.spec.share.weight, record.spec.share.ioprio) = (weight, ioprio);
            record.spec.share.tenant = tenant;
            record.spec.share.latency_target_us = target;
            record.spec.share.dirty = dirty;
            record.spec.share.limits = limits;
        }
    }
}

/// Whether the path now names another file, or none, since a file may have been renamed over the open one.
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
