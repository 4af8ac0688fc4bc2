//! `remove`: an export goes, with its clients if that was said, and its image if nothing else serves it.

use std::time::{Duration, Instant};

use headworks_core::{DeviceId, ExportId, ShardId, VolumeId};
use serde_json::{Value, json};

use super::super::order::{ExportReport, Order, Remains};
use super::super::rpc::{Fault, Params};
use super::super::service::{Answer, Service, find_export, lock, text};
use super::super::tree::{ExportEntry, Tree};
use super::{Draining, PAUSE, close, refused};
use crate::server::estate::Estate;

/// A client that does not read its last replies holds up a removal no longer than a stop.
const UNREAD: Duration = Duration::from_secs(5);
/// What is in a device is answered or given up within this; a device that does not answer keeps its memory, and the export stays.
const LEAVING: Duration = Duration::from_secs(60);
/// The cache may be reading ahead, or give up a command that was late.
const QUIET: Duration = Duration::from_secs(60);

impl Service {
    /// By the words of a client.
    pub(in super::super) fn remove_by_words(&self, params: &Params) -> Answer {
        let force = match params.get("force") {
            None | Some(Value::Bool(false)) => false,
            Some(Value::Bool(true)) => true,
            Some(_) => return Err(Fault::params("force is true or false")),
        };
        self.remove(text(params, "export")?, force)
    }

    /// When this returns it is gone, and its file is closed if it was the last export of it.
    pub(super) fn remove(&self, name: &str, force: bool) -> Answer {
        let mut estate = lock(&self.live().estate);
        let tree = self.tree();
        let entry = find_export(&tree, name)?;
        let last = !estate.shares_volume(entry.id);
        let report = self.report_of(entry)?;
        self.may_go(entry, &report, force, last)?;
        let shown = Draining::new(self.live(), vec![entry.id]);
        self.hide(entry.id, true)?;
        let gone = self.empty(entry, force, last).and_then(|()| match last {
            true => self.remove_volume(&mut estate, entry),
            false => Ok(Vec::new()),
        });
        let remains = match gone {
            Ok(remains) => remains,
            Err(fault) => {
                // It serves again; a server that stops does not.
                let _ = self.hide(entry.id, false);
                return Err(fault);
            }
        };
        drop(shown);
        self.change_tree(|tree| tree.exports.retain(|other| other.id != entry.id));
        self.tell_all(|| Order::Forget { export: entry.id })?;
        estate.exports.remove(&entry.id.0);
        close(remains);
        tracing::info!("export {} was removed", entry.shown_name());
        Ok(json!({ "export": entry.shown_name(), "clients": report.clients, "closed": last }))
    }

    fn report_of(&self, entry: &ExportEntry) -> Result<ExportReport, Fault> {
        let report = self.export_report(entry.id)?;
        report.ok_or_else(|| Fault::refused("ENOENT", format!("{} is gone", entry.shown_name())))
    }

    fn may_go(
        &self,
        entry: &ExportEntry,
        report: &ExportReport,
        force: bool,
        last: bool,
    ) -> Result<(), Fault> {
        let name = entry.shown_name();
        if report.clients > 0 && !force {
            let message = match report.clients {
                1 => format!("export {name} has a client; --force closes it"),
                clients => format!("export {name} has {clients} clients; --force closes them"),
            };
            return Err(Fault::refused("EBUSY", message));
        }
        if last && report.failed > 0 {
            let bytes = report.failed;
            let message = format!(
                "{bytes} bytes of export {name} could not be written out; `failed {name}` shows them, `acknowledge {name}` gives them up"
            );
            return Err(Fault::refused("EIO", message));
        }
        if last && report.suspect {
            let message = format!(
                "a flush of export {name} has failed; `acknowledge {name}` says that this is known"
            );
            return Err(Fault::refused("EIO", message));
        }
        Ok(())
    }

    fn hide(&self, export: ExportId, hidden: bool) -> Result<(), Fault> {
        self.tell_all(|| Order::Hide { export, hidden })
    }

    /// Clients leave, and all they wrote reaches the device.
    fn empty(&self, entry: &ExportEntry, force: bool, last: bool) -> Result<(), Fault> {
        let report = self.report_of(entry)?;
        // Somebody may have come before it was hidden.
        self.may_go(entry, &report, force, last)?;
        if report.clients > 0 {
            self.evict(entry)?;
        }
        if last && let Err(error) = self.write_out(entry.home, entry.volume)? {
            let name = entry.shown_name();
            let message = format!(
                "export {name} could not be written out ({error}), so it stays; see `failed {name}`, and `acknowledge {name}`"
            );
            return Err(Fault::refused("EIO", message));
        }
        Ok(())
    }

    fn evict(&self, entry: &ExportEntry) -> Result<(), Fault> {
        let (since, export) = (Instant::now(), entry.id);
        let mut unread = false;
        self.tell_all(|| Order::Evict { export, unread: false })?;
        loop {
            let left = self.report_of(entry)?.clients;
            if left == 0 {
                return Ok(());
            }
            if since.elapsed() > UNREAD && !unread {
                unread = true;
                self.tell_all(|| Order::Evict { export, unread })?;
            }
            if since.elapsed() > LEAVING {
                let name = entry.shown_name();
                let message = format!(
                    "requests of {left} clients of export {name} are still in its device; try again when it has answered"
                );
                return Err(Fault::refused("EBUSY", message));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The volume leaves every shard, and its device if that is empty then.
    fn remove_volume(
        &self,
        estate: &mut Estate,
        entry: &ExportEntry,
    ) -> Result<Vec<Remains>, Fault> {
        let ExportEntry { volume, device, home, .. } = *entry;
        let owner = estate.devices.get(&device.0).map_or(home, |holding| holding.config.owner);
        let order = || Order::RemoveVolume { volume, device };
        let shares_device = estate.shares_device(volume);
        // Who looks must not find what a shard may have forgotten.
        let before = self.tree();
        self.change_tree(|tree| {
            tree.exports.retain(|other| other.id != entry.id);
            if let Some(known) = tree.devices.iter_mut().find(|known| known.id == device) {
                known.volumes = known.volumes.iter().copied().filter(|v| *v != volume).collect();
            }
            tree.devices.retain(|known| known.id != device || shares_device);
        });
        let first = match self.insist(home, order, Some(QUIET))? {
            // From here on its requests are answered with an error: there is no way back.
            Ok(first) => first,
            Err(error) => {
                self.change_tree(|tree| *tree = Tree::clone(&before));
                return Err(refused(&error));
            }
        };
        let mut remains = vec![first];
        let others = self.all_from(owner).into_iter().filter(|shard| *shard != home);
        for shard in others {
            remains.extend(self.insist(shard, order, None)?);
        }
        if !shares_device {
            remains.extend(self.remove_device(device, owner)?);
            estate.devices.remove(&device.0);
        }
        forget(estate, volume);
        Ok(remains)
    }

    fn remove_device(&self, device: DeviceId, owner: ShardId) -> Result<Vec<Remains>, Fault> {
        let mut remains = Vec::new();
        for shard in self.all_from(owner).into_iter().rev() {
            remains.extend(self.insist(shard, || Order::RemoveDevice { device }, None)?);
        }
        Ok(remains)
    }
}

/// The handles of the file that we hold ourselves are closed with it.
fn forget(estate: &mut Estate, volume: VolumeId) {
    estate.volumes.remove(&volume.0);
}
