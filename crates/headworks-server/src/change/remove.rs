//! `remove`: removes an export, with its clients if forced, and its volume if no other export uses it.
//!
//! ```text
//!   lock: mark as leaving | hide, disconnect | lock: another export of the volume? remove the name only
//!                                            |  no: write back and flush
//!                                            '----------> lock: remove from each shard | refused? retry after a pause
//! ```
//!
//! The lock is held for commands and never for a device or a file system, so other changes proceed meanwhile. Requests about an export
//! that is being removed fail with EBUSY. Invariant: a volume whose exports are all leaving gets no new export.

use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use headworks_core::{ChangeError, DeviceId, ExportId, IoError, VolumeId};

use super::absent::take_absent;
use super::add::being_added;
use super::bases::remove_unused_bases;
use super::drain::start_drain;
use super::exports::export_report;
use super::freeze::check_not_frozen;
use super::held_up::held_up_by;
use super::removal::{RemovalStep, RemovalSteps};
use super::{Draining, LiveChanges, PAUSE, close, refused};
use crate::control::exports::ExportState;
use crate::control::inventory::Inventory;
use crate::control::shards::{is_stopping, stopping};
use crate::control::tree::{ExportNode, Tree, lock};
use crate::exports::assemble::shown_name;
use crate::observe::latency::errors::errno_name;
use crate::reactor::messages::command::{ExportReport, Released, ShardCommand};
use crate::successor::keeper::remove_marks;
use crate::successor::marker::Marker;
use headworks_control::{RpcFault, answers, methods};

/// Time limit of clients that do not read their last replies; as in a shutdown.
const UNREAD: Duration = Duration::from_secs(5);
/// Time limit of a device without progress: twice the usual `io_timeout`, so that everything that can time out has.
pub(super) const LEAVING: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 60 });
/// The same of an export that may be given up: as long as a client that reads nothing is waited for.
const GIVEN_UP: Duration = if cfg!(test) { Duration::from_millis(200) } else { UNREAD };
/// Longest pause before a shard is asked again.
pub(super) const PAUSE_MAX: Duration = Duration::from_millis(64);

/// How far a removal goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalWay {
    /// An export with clients stays.
    Unused,
    /// Its clients are disconnected; it stays if its device does not answer.
    Forced,
    /// Its clients are disconnected, and it is given up if its device does not answer.
    Abandoned,
}

impl RemovalWay {
    /// What a client of the control socket asks for.
    pub fn asked(asked: &methods::Remove) -> Self {
        match asked {
            methods::Remove { abandon: true, .. } => Self::Abandoned,
            methods::Remove { force: true, .. } => Self::Forced,
            _ => Self::Unused,
        }
    }

    /// Time limit of a device without progress.
    fn patience(self) -> Duration {
        match self {
            Self::Unused | Self::Forced => LEAVING,
            Self::Abandoned => GIVEN_UP,
        }
    }
}

/// A removal in progress.
pub(super) struct ExportRemoval {
    pub entry: ExportNode,
    way: RemovalWay,
    /// Number of clients that were disconnected.
    pub clients: usize,
    /// Remaining steps, once this is known to be the volume's last export.
    pub steps: Option<RemovalSteps>,
    pub released: Vec<Released>,
    /// The mark of its image, which is to be removed.
    pub mark: Option<Marker>,
}

impl ExportRemoval {
    fn new(entry: ExportNode, way: RemovalWay, steps: Option<RemovalSteps>) -> Self {
        Self { entry, way, clients: 0, steps, released: Vec::new(), mark: None }
    }
}

/// Removes an export; its image is closed when this returns, if no other export uses it.
pub fn remove(
    live: &LiveChanges,
    name: &str,
    way: RemovalWay,
) -> Result<answers::Removed, RpcFault> {
    let removed = |name: &str, clients, closed| {
        Ok(answers::Removed { export: name.to_owned(), clients, closed, abandoned: None })
    };
    if take_absent(live, name)? {
        tracing::info!("export {} was removed; it was absent", shown_name(name));
        return removed(shown_name(name), 0, true);
    }
    let mut removal = begin_removal(live, name, way)?;
    let _shown = Draining::new(live, vec![removal.entry.id]);
    let carried_out = carry_out(live, &mut removal);
    // Before the lock of the image is given up, and without that of the inventory.
    remove_marks(removal.mark.take());
    let closed = match carried_out {
        Ok(closed) => closed,
        Err(fault) if way == RemovalWay::Abandoned && !is_stopping(&fault) => {
            return live.abandoned.give_up(live, removal, &fault);
        }
        Err(fault) => {
            restore(live, &mut removal);
            close(removal.released);
            return Err(fault);
        }
    };
    let ExportRemoval { entry, clients, released, .. } = removal;
    close(released);
    remove_unused_bases(live)?;
    tracing::info!("export {} was removed", entry.shown_name());
    removed(entry.shown_name(), clients as u64, closed)
}

/// The names of exports that were given up, as long as their devices have not answered.
pub fn abandoned_names(live: &LiveChanges) -> Vec<String> {
    let inventory = lock(&live.inventory);
    let all = inventory.exports.lock();
    let given_up = all.values().filter(|record| !record.is_named());
    given_up.map(|record| shown_name(&record.spec.name).to_owned()).collect()
}

/// Marks an export as leaving, if it may be removed.
fn begin_removal(
    live: &LiveChanges,
    name: &str,
    way: RemovalWay,
) -> Result<ExportRemoval, RpcFault> {
    let inventory = lock(&live.inventory);
    // An export that some shards have removed is not in the tree.
    let known = inventory.state(name);
    let removal = match known {
        Some(ExportState::Leaving) => return Err(being_removed(name)),
        Some(ExportState::Stuck(steps)) => {
            let entry = steps.entry.clone();
            ExportRemoval::new(entry, way, Some(steps))
        }
        None if inventory.addition(name).is_some() => return Err(being_added(name)),
        Some(ExportState::Serving | ExportState::Abandoned) | None => {
            let entry = live.tree.current().find_export(name)?.clone();
            let report = report_of(live, &entry)?;
            check_not_frozen(entry.shown_name(), report.frozen)?;
            check_clients(&entry, &report, way)?;
            if !inventory.shares_volume(entry.id) && way != RemovalWay::Abandoned {
                check_failed_data(&entry, &report)?;
            }
            ExportRemoval::new(entry, way, None)
        }
    };
    if let Some(record) = inventory.exports.lock().get_mut(&removal.entry.id.0) {
        record.state = ExportState::Leaving;
    }
    Ok(removal)
}

/// Ends a failed removal: the export serves again, or waits for another `remove` if shards have removed it.
pub(super) fn restore(live: &LiveChanges, removal: &mut ExportRemoval) {
    let inventory = lock(&live.inventory);
    let id = removal.entry.id;
    let state = match removal.steps.take().filter(RemovalSteps::has_begun) {
        Some(steps) => ExportState::Stuck(steps),
        None => {
            let _ = hide(live, id, false);
            ExportState::Serving
        }
    };
    if let Some(record) = inventory.exports.lock().get_mut(&id.0) {
        record.state = state;
    }
}

/// Carries out the removal; returns whether the image is closed.
fn carry_out(live: &LiveChanges, removal: &mut ExportRemoval) -> Result<bool, RpcFault> {
    let patience = removal.way.patience();
    if removal.steps.is_none() {
        disconnect_clients(live, removal)?;
        if forget_shared(live, &removal.entry)? {
            return Ok(false);
        }
        check_failed_data(&removal.entry, &report_of(live, &removal.entry)?)?;
        write_out_removed(live, &removal.entry, patience)?;
    }
    let (since, mut pause) = (Instant::now(), PAUSE);
    while let Some(what) = remove_from_shards(live, removal)? {
        if since.elapsed() > patience {
            return Err(unfinished(removal, what));
        }
        std::thread::sleep(pause);
        pause = PAUSE_MAX.min(2 * pause);
    }
    Ok(true)
}

pub(super) fn report_of(live: &LiveChanges, entry: &ExportNode) -> Result<ExportReport, RpcFault> {
    let report = export_report(live, entry.id)?;
    report.ok_or_else(|| RpcFault::refused("ENOENT", format!("{} is gone", entry.shown_name())))
}

fn hide(live: &LiveChanges, export: ExportId, hidden: bool) -> Result<(), RpcFault> {
    live.command_all(|| ShardCommand::Hide { export, hidden })
}

/// Hides the export and disconnects its clients.
fn disconnect_clients(live: &LiveChanges, removal: &mut ExportRemoval) -> Result<(), RpcFault> {
    let entry = &removal.entry;
    hide(live, entry.id, true)?;
    // A client may have connected before the export was hidden.
    let report = report_of(live, entry)?;
    check_clients(entry, &report, removal.way)?;
    removal.clients = report.clients;
    match report.clients {
        0 => Ok(()),
        _ => evict(live, entry, removal.way.patience()),
    }
}

fn evict(live: &LiveChanges, entry: &ExportNode, patience: Duration) -> Result<(), RpcFault> {
    let (since, export) = (Instant::now(), entry.id);
    let mut unread = false;
    live.command_all(|| ShardCommand::Evict { export, unread: false })?;
    loop {
        let left = report_of(live, entry)?.clients;
        if left == 0 {
            return Ok(());
        }
        if since.elapsed() > UNREAD && !unread {
            unread = true;
            live.command_all(|| ShardCommand::Evict { export, unread })?;
        }
        if since.elapsed() > patience {
            let name = entry.shown_name();
            let held = held_up_by(live, entry.device);
            let message = format!(
                "requests of {left} clients of export {name} are still in flight{held}; try again when the device has completed them, or give \
                 the export up (`remove {name} --abandon`)"
            );
            return Err(RpcFault::refused("EBUSY", message));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Removes the name alone if another export has the same volume; false if none has.
pub(super) fn forget_shared(live: &LiveChanges, entry: &ExportNode) -> Result<bool, RpcFault> {
    let inventory = lock(&live.inventory);
    if !inventory.shares_volume(entry.id) {
        return Ok(false);
    }
    live.tree.change(|tree| tree.exports.retain(|other| other.id != entry.id));
    forget_export(live, &inventory, entry.id)?;
    live.settings.divide_parts()?;
    Ok(true)
}

fn forget_export(
    live: &LiveChanges,
    inventory: &Inventory,
    export: ExportId,
) -> Result<(), RpcFault> {
    live.command_all(|| ShardCommand::Forget { export })?;
    inventory.exports.lock().remove(&export.0);
    Ok(())
}

/// Writes back all dirty data, as long as the device makes progress.
fn write_out_removed(
    live: &LiveChanges,
    entry: &ExportNode,
    patience: Duration,
) -> Result<(), RpcFault> {
    let name = entry.shown_name();
    let (mut since, mut least) = (Instant::now(), u64::MAX);
    let (mut dirty, mut status) = start_drain(live, entry.home, entry.volume)?;
    loop {
        if dirty < least {
            (since, least) = (Instant::now(), dirty);
        }
        match status.recv_timeout(PAUSE_MAX) {
            Ok(Ok(())) => return Ok(()),
            // A flush may time out, and a full shard takes it later: retry.
            Ok(Err(IoError::TimedOut | IoError::NoMemory | IoError::Busy)) => {
                std::thread::sleep(PAUSE);
                (dirty, status) = start_drain(live, entry.home, entry.volume)?;
            }
            Ok(Err(error)) => {
                let message = format!(
                    "export {name} could not be written out ({error}), so it is not removed; `failed {name}` lists the bytes, `discard-failed {name}` discards them"
                );
                return Err(RpcFault::refused(errno_name(error), message));
            }
            Err(RecvTimeoutError::Timeout) => dirty = report_of(live, entry)?.dirty,
            Err(RecvTimeoutError::Disconnected) => return Err(stopping()),
        }
        if since.elapsed() > patience {
            let held = held_up_by(live, entry.device);
            let message = format!(
                "the device of export {name} makes no progress writing {dirty} dirty bytes{held}; the export is not removed, try again when the \
                 device answers, or give the export up (`remove {name} --abandon`)"
            );
            return Err(RpcFault::refused("EBUSY", message));
        }
    }
}

/// Removes the volume from every shard, and its device if that is empty then; returns the reason of a refusal.
pub(super) fn remove_from_shards(
    live: &LiveChanges,
    removal: &mut ExportRemoval,
) -> Result<Option<&'static str>, RpcFault> {
    let mut inventory = lock(&live.inventory);
    let ExportNode { id, volume, device, home, .. } = removal.entry;
    let owner = inventory.devices.get(&device.0).map_or(home, |record| record.config.owner);
    let steps = removal.steps.get_or_insert_with(|| {
        RemovalSteps::new(removal.entry.clone(), owner, live.shards.count())
    });
    let before = live.tree.current();
    // Readers of the tree must not find what a shard may have removed.
    live.tree.change(|tree| remove_from_tree(tree, id, volume));
    while let Some(step) = steps.step() {
        let told = match step {
            RemovalStep::Volume(shard) => {
                live.shards.command(shard, ShardCommand::RemoveVolume { volume, device })?
            }
            RemovalStep::Device(shard) => {
                live.shards.command(shard, ShardCommand::RemoveDevice { device })?
            }
            RemovalStep::VolumePlace => {
                if !keeps_device(live, &mut inventory, (volume, device)) {
                    steps.with_device();
                }
                live.shards.keeper().forget(volume);
                inventory.volumes.remove(&volume.0);
                removal.mark = removal.mark.take().or_else(|| live.shards.keeper().take(volume));
                Ok(Released::new())
            }
            RemovalStep::DevicePlace => {
                inventory.devices.remove(&device.0);
                Ok(Released::new())
            }
        };
        match told {
            Ok(released) => removal.released.push(released),
            Err(error) => {
                if !steps.has_begun() {
                    // The lock prevents other changes of the tree.
                    live.tree.change(|tree| tree.clone_from(&before));
                }
                return busy_reason(&error);
            }
        }
        steps.pass();
    }
    forget_export(live, &inventory, id)?;
    Ok(None)
}

/// Whether another volume is on the device; otherwise no image may join it any more.
fn keeps_device(
    live: &LiveChanges,
    inventory: &mut Inventory,
    (volume, device): (VolumeId, DeviceId),
) -> bool {
    if inventory.shares_device(volume) {
        return true;
    }
    if let Some(record) = inventory.devices.get_mut(&device.0) {
        record.common = None;
    }
    live.tree.change(|tree| tree.devices.retain(|known| known.id != device));
    false
}

pub(super) fn remove_from_tree(tree: &mut Tree, export: ExportId, volume: VolumeId) {
    tree.exports.retain(|entry| entry.id != export);
    tree.take_volume(volume);
}

/// A busy shard is asked again; other errors end the removal.
fn busy_reason(error: &ChangeError) -> Result<Option<&'static str>, RpcFault> {
    match error {
        ChangeError::Busy(what) => Ok(Some(what)),
        ChangeError::Invalid(_) => Err(refused(error)),
    }
}

/// The error for an export that is being removed.
pub(super) fn being_removed(name: &str) -> RpcFault {
    let name = shown_name(name);
    RpcFault::refused("EBUSY", format!("export {name} is being removed; try again when it is gone"))
}

/// The error for a removal that did not finish in time.
fn unfinished(removal: &ExportRemoval, what: &str) -> RpcFault {
    let name = removal.entry.shown_name();
    let message = match removal.steps.as_ref().is_some_and(RemovalSteps::has_begun) {
        false => format!("export {name} stays: {what}; try again when its device has answered"),
        true => format!(
            "export {name} is no longer served and all of it is written out, but {what}: its image stays open and its name in use until `remove {name}` is repeated after that"
        ),
    };
    RpcFault::refused("EBUSY", message)
}

fn check_clients(
    entry: &ExportNode,
    report: &ExportReport,
    way: RemovalWay,
) -> Result<(), RpcFault> {
    let name = entry.shown_name();
    let message = match report.clients.saturating_sub(report.unused) {
        0 => return Ok(()),
        _ if way != RemovalWay::Unused => return Ok(()),
        1 => format!("export {name} has a client; --force closes it"),
        clients => format!("export {name} has {clients} clients; --force closes them"),
    };
    Err(RpcFault::refused("EBUSY", message))
}

/// Refuses to remove the last export of a volume with data that could not be written back.
fn check_failed_data(entry: &ExportNode, report: &ExportReport) -> Result<(), RpcFault> {
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
