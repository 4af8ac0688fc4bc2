//! `remove`: an export goes, with its clients if that was said, and its image if nothing else serves it.
//!
//! ```text
//!   lock: marked as leaving | hidden, clients leave | lock: another export of the image? only the name goes
//!                                                   |  no: written out and flushed
//!                                                   '----------> lock: shard for shard forgets it | in the way? a moment later again
//! ```
//!
//! The lock is held for orders and never for a device: others add, remove and resize meanwhile. Who asks for what is leaving
//! hears EBUSY. Invariant: an image whose every export is leaving gets no other, so the last one stays the last.

use std::time::{Duration, Instant};

use headworks_core::{ChangeError, DeviceId, ExportId, IoError, VolumeId};
use serde_json::{Value, json};

use super::removal::{RemovalStep, RemovalSteps};
use super::{Draining, LiveChanges, PAUSE, close, refused};
use crate::assemble::shown_name;
use crate::control::inventory::{ExportState, Inventory};
use crate::control::params::text;
use crate::control::rpc::{Params, RpcFault, RpcResult};
use crate::control::shards::stopping;
use crate::control::tree::{ExportNode, Tree, lock};
use crate::messages::command::{ExportReport, Released, ShardCommand};

/// A client that does not read its last replies holds up a removal no longer than a stop.
const UNREAD: Duration = Duration::from_secs(5);
/// A device that has done nothing of what is waited for within this is not waited for any longer. Twice the usual `io_timeout`, so
/// what can be given up was.
const LEAVING: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 60 });
/// A shard that is not ready is asked this often at least.
const PAUSE_MAX: Duration = Duration::from_millis(64);

/// An export on its way out.
struct ExportRemoval {
    entry: ExportNode,
    /// How many were closed.
    clients: usize,
    /// How far it is, from when it is known to be the last one of its image.
    departure: Option<RemovalSteps>,
    remains: Vec<Released>,
}

impl LiveChanges {
    /// By the words of a client.
    pub fn remove_by_words(&self, params: &Params) -> RpcResult {
        let force = match params.get("force") {
            None | Some(Value::Bool(false)) => false,
            Some(Value::Bool(true)) => true,
            Some(_) => return Err(RpcFault::params("force must be true or false")),
        };
        self.remove(text(params, "export")?, force)
    }

    /// When this returns it is gone, and its file is closed if it was the last export of it.
    pub(super) fn remove(&self, name: &str, force: bool) -> RpcResult {
        let mut leaver = self.begin_removal(name, force)?;
        let _shown = Draining::new(self, vec![leaver.entry.id]);
        let closed = match self.send_off(&mut leaver, force) {
            Ok(closed) => closed,
            Err(fault) => {
                self.stay(&mut leaver);
                close(leaver.remains);
                return Err(fault);
            }
        };
        let ExportRemoval { entry, clients, remains, .. } = leaver;
        close(remains);
        tracing::info!("export {} was removed", entry.shown_name());
        Ok(json!({ "export": entry.shown_name(), "clients": clients, "closed": closed }))
    }

    /// Marks it as leaving, if it may.
    fn begin_removal(&self, name: &str, force: bool) -> Result<ExportRemoval, RpcFault> {
        let mut inventory = lock(&self.inventory);
        // What some shards have forgotten already is not in the tree any more.
        let known = inventory.export(name).map(|(_, holding)| holding.presence.clone());
        let leaver = match known {
            Some(ExportState::Leaving) => return Err(leaving(name)),
            Some(ExportState::Stuck(departure)) => {
                let entry = departure.entry.clone();
                ExportRemoval { entry, clients: 0, departure: Some(departure), remains: Vec::new() }
            }
            Some(ExportState::Serving) | None => {
                let entry = self.tree.current().find_export(name)?.clone();
                let report = self.report_of(&entry)?;
                may_leave(&entry, &report, force)?;
                if !inventory.shares_volume(entry.id) {
                    may_close(&entry, &report)?;
                }
                ExportRemoval { entry, clients: 0, departure: None, remains: Vec::new() }
            }
        };
        if let Some(holding) = inventory.exports.get_mut(&leaver.entry.id.0) {
            holding.presence = ExportState::Leaving;
        }
        Ok(leaver)
    }

    /// It cannot go: it serves again, or as much of it as is left waits for another `remove`. A server that stops does not care.
    fn stay(&self, leaver: &mut ExportRemoval) {
        let mut inventory = lock(&self.inventory);
        let id = leaver.entry.id;
        let presence = match leaver.departure.take().filter(RemovalSteps::has_begun) {
            Some(departure) => ExportState::Stuck(departure),
            None => {
                let _ = self.hide(id, false);
                ExportState::Serving
            }
        };
        if let Some(holding) = inventory.exports.get_mut(&id.0) {
            holding.presence = presence;
        }
    }

    /// All of the way; whether the image is closed at its end.
    fn send_off(&self, leaver: &mut ExportRemoval, force: bool) -> Result<bool, RpcFault> {
        if leaver.departure.is_none() {
            self.empty(leaver, force)?;
            if self.forget_shared(&leaver.entry)? {
                return Ok(false);
            }
            may_close(&leaver.entry, &self.report_of(&leaver.entry)?)?;
            self.write_out(&leaver.entry)?;
        }
        let (since, mut pause) = (Instant::now(), PAUSE);
        while let Some(what) = self.leave(leaver)? {
            if since.elapsed() > LEAVING {
                return Err(not_gone(leaver, what));
            }
            std::thread::sleep(pause);
            pause = PAUSE_MAX.min(2 * pause);
        }
        Ok(true)
    }

    fn report_of(&self, entry: &ExportNode) -> Result<ExportReport, RpcFault> {
        let report = self.export_report(entry.id)?;
        report.ok_or_else(|| RpcFault::refused("ENOENT", format!("{} is gone", entry.shown_name())))
    }

    fn hide(&self, export: ExportId, hidden: bool) -> Result<(), RpcFault> {
        self.command_all(|| ShardCommand::Hide { export, hidden })
    }

    /// Nobody comes any more, and who is there leaves.
    fn empty(&self, leaver: &mut ExportRemoval, force: bool) -> Result<(), RpcFault> {
        let entry = &leaver.entry;
        self.hide(entry.id, true)?;
        // Somebody may have come before it was hidden.
        let report = self.report_of(entry)?;
        may_leave(entry, &report, force)?;
        leaver.clients = report.clients;
        if report.clients > 0 { self.evict(entry) } else { Ok(()) }
    }

    fn evict(&self, entry: &ExportNode) -> Result<(), RpcFault> {
        let (since, export) = (Instant::now(), entry.id);
        let mut unread = false;
        self.command_all(|| ShardCommand::Evict { export, unread: false })?;
        loop {
            let left = self.report_of(entry)?.clients;
            if left == 0 {
                return Ok(());
            }
            if since.elapsed() > UNREAD && !unread {
                unread = true;
                self.command_all(|| ShardCommand::Evict { export, unread })?;
            }
            if since.elapsed() > LEAVING {
                let name = entry.shown_name();
                let message = format!(
                    "requests of {left} clients of export {name} are still in flight; try again when the device has completed them"
                );
                return Err(RpcFault::refused("EBUSY", message));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Another export of the image stays, so only the name goes; false if there is none.
    fn forget_shared(&self, entry: &ExportNode) -> Result<bool, RpcFault> {
        let mut inventory = lock(&self.inventory);
        if !inventory.shares_volume(entry.id) {
            return Ok(false);
        }
        self.tree.change(|tree| tree.exports.retain(|other| other.id != entry.id));
        self.forget_export(&mut inventory, entry.id)?;
        Ok(true)
    }

    fn forget_export(&self, inventory: &mut Inventory, export: ExportId) -> Result<(), RpcFault> {
        self.command_all(|| ShardCommand::Forget { export })?;
        inventory.exports.remove(&export.0);
        Ok(())
    }

    /// All that is dirty reaches the device, as long as that gets on.
    fn write_out(&self, entry: &ExportNode) -> Result<(), RpcFault> {
        let name = entry.shown_name();
        let (mut since, mut least) = (Instant::now(), u64::MAX);
        loop {
            let (dirty, status) = self.start_drain(entry.home, entry.volume)?;
            if dirty < least {
                (since, least) = (Instant::now(), dirty);
            }
            match status.recv().map_err(|_| stopping())? {
                Ok(()) => return Ok(()),
                // A flush gives up after a time of its own, and a shard that is full takes it a little later.
                Err(IoError::TimedOut | IoError::NoMemory | IoError::Busy) => {}
                Err(error) => {
                    let message = format!(
                        "export {name} could not be written out ({error}), so it is not removed; `failed {name}` lists the bytes, `discard-failed {name}` discards them"
                    );
                    return Err(RpcFault::refused("EIO", message));
                }
            }
            if since.elapsed() > LEAVING {
                let message = format!(
                    "the device of export {name} makes no progress writing {dirty} dirty bytes, so the export is not removed; try again when the device answers"
                );
                return Err(RpcFault::refused("EBUSY", message));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The volume leaves every shard that is ready, and its device if that is empty then; what is in the way, if anything is.
    fn leave(&self, leaver: &mut ExportRemoval) -> Result<Option<&'static str>, RpcFault> {
        let mut inventory = lock(&self.inventory);
        let ExportNode { id, volume, device, home, .. } = leaver.entry;
        let owner = inventory.devices.get(&device.0).map_or(home, |holding| holding.config.owner);
        let departure = leaver.departure.get_or_insert_with(|| {
            RemovalSteps::new(leaver.entry.clone(), owner, self.shards.count())
        });
        let before = self.tree.current();
        // Who looks must not find what a shard may have forgotten.
        self.tree.change(|tree| take_out(tree, id, volume));
        while let Some(step) = departure.step() {
            let told = match step {
                RemovalStep::Volume(shard) => {
                    self.shards.command(shard, ShardCommand::RemoveVolume { volume, device })?
                }
                RemovalStep::Device(shard) => {
                    self.shards.command(shard, ShardCommand::RemoveDevice { device })?
                }
                RemovalStep::VolumePlace => {
                    if !self.stays(&mut inventory, (volume, device)) {
                        departure.with_device();
                    }
                    inventory.volumes.remove(&volume.0);
                    Ok(Released::new())
                }
                RemovalStep::DevicePlace => {
                    inventory.devices.remove(&device.0);
                    Ok(Released::new())
                }
            };
            match told {
                Ok(remains) => leaver.remains.push(remains),
                Err(error) => {
                    if !departure.has_begun() {
                        // Nobody else changes the tree while we hold the lock.
                        self.tree.change(|tree| tree.clone_from(&before));
                    }
                    return in_the_way(&error);
                }
            }
            departure.pass();
        }
        self.forget_export(&mut inventory, id)?;
        Ok(None)
    }

    /// Whether something else is on a device that a volume has just left; else no image joins it any more, and nobody sees it.
    fn stays(&self, inventory: &mut Inventory, (volume, device): (VolumeId, DeviceId)) -> bool {
        if inventory.shares_device(volume) {
            return true;
        }
        if let Some(holding) = inventory.devices.get_mut(&device.0) {
            holding.common = None;
        }
        self.tree.change(|tree| tree.devices.retain(|known| known.id != device));
        false
    }
}

fn take_out(tree: &mut Tree, export: ExportId, volume: VolumeId) {
    tree.exports.retain(|entry| entry.id != export);
    for device in tree.devices.iter_mut().filter(|device| device.volumes.contains(&volume)) {
        device.volumes = device.volumes.iter().copied().filter(|other| *other != volume).collect();
    }
}

/// A shard that is busy is asked again.
fn in_the_way(error: &ChangeError) -> Result<Option<&'static str>, RpcFault> {
    match error {
        ChangeError::Busy(what) => Ok(Some(what)),
        ChangeError::Invalid(_) => Err(refused(error)),
    }
}

/// Who asks for an export that is on its way out.
pub(super) fn leaving(name: &str) -> RpcFault {
    let name = shown_name(name);
    RpcFault::refused("EBUSY", format!("export {name} is being removed; try again when it is gone"))
}

/// It does not go within the time that there is.
fn not_gone(leaver: &ExportRemoval, what: &str) -> RpcFault {
    let name = leaver.entry.shown_name();
    let message = match leaver.departure.as_ref().is_some_and(RemovalSteps::has_begun) {
        false => format!("export {name} stays: {what}; try again when its device has answered"),
        true => format!(
            "export {name} serves no more and all of it is written out, but {what}: its image stays open and its name taken until `remove {name}` is said again after that"
        ),
    };
    RpcFault::refused("EBUSY", message)
}

fn may_leave(entry: &ExportNode, report: &ExportReport, force: bool) -> Result<(), RpcFault> {
    let name = entry.shown_name();
    let message = match report.clients {
        0 => return Ok(()),
        _ if force => return Ok(()),
        1 => format!("export {name} has a client; --force closes it"),
        clients => format!("export {name} has {clients} clients; --force closes them"),
    };
    Err(RpcFault::refused("EBUSY", message))
}

/// With the last export of an image what could not be written would be lost.
fn may_close(entry: &ExportNode, report: &ExportReport) -> Result<(), RpcFault> {
    let name = entry.shown_name();
    if report.failed > 0 {
        let bytes = report.failed;
        let message = format!(
            "{bytes} bytes of export {name} could not be written out; `failed {name}` lists them, `discard-failed {name}` discards them"
        );
        return Err(RpcFault::refused("EIO", message));
    }
    if report.suspect {
        let message = format!(
            "a flush of export {name} failed, and earlier writes may be lost; `discard-failed {name}` accepts the loss"
        );
        return Err(RpcFault::refused("EIO", message));
    }
    Ok(())
}
