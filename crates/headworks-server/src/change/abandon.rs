//! `remove --abandon`: gives up an export whose device does not answer.
//!
//! ```text
//!   remove --its device has not answered--> clients are closed | dirty bytes go to a file | its name is free
//!                                             '--its requests have ended--> written out --> removed from each shard, closed
//! ```
//!
//! Rules:
//! - What is given up has no name: no list, figure or message of a running server has it, and another export may be added under its name. Its
//!   image cannot be: it stays open and locked, because the device may yet write to it.
//! - Neither memory nor a tag is given back before the device has ended what it was sent, since it may write there. Both are bounded by
//!   what the export had, and its ids by the places of the server.
//! - Data are given up by the end of the process alone: as long as it runs they are written if the device answers. What only the cache
//!   has is in a recovery file by then. The mark of the image stays until everything is written.
//! - Nothing waits for it: a stop ends when the others have, and a hand-over hands the others over.

use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Mutex, OnceLock};

use headworks_core::{Control, IoError, Status, VolumeId};

use super::LiveChanges;
use super::bases::remove_unused_bases;
use super::close;
use super::drain::start_drain;
use super::remove::{ExportRemoval, remove_from_tree};
use super::remove::{forget_shared, remove_from_shards, report_of, restore};
use crate::control::exports::ExportState;
use crate::control::shards::stopping;
use crate::control::tree::{ExportNode, lock};
use crate::reactor::messages::command::ShardCommand;
use crate::reactor::messages::query::ControlQuery;
use crate::successor::keeper::remove_marks;
use crate::successor::recovery::write_from_memory;
use headworks::house::display_size;
use headworks_control::{RpcFault, answers};

/// An export that was given up.
pub(super) struct AbandonedExport {
    removal: ExportRemoval,
    /// Its last flush, once its clients' requests have ended.
    flush: Option<Receiver<Status>>,
    /// Why what was dirty could not be written.
    lost: Option<IoError>,
}

/// The exports that were given up, until their devices answer.
#[derive(Default)]
pub struct AbandonedExports {
    /// Not locked while a shard is asked.
    list: Mutex<Vec<AbandonedExport>>,
    /// Starts what calls [`AbandonedExports::end`] until none is left.
    later: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl AbandonedExports {
    /// Sets what is called when an export was given up: it is to call [`AbandonedExports::end`] from time to time.
    pub fn on_first(&self, later: impl Fn() + Send + Sync + 'static) {
        let _ = self.later.set(Box::new(later));
    }

    /// Gives an export up; `fault` says what its removal waits for.
    pub(super) fn give_up(
        &self,
        changes: &LiveChanges,
        mut removal: ExportRemoval,
        fault: &RpcFault,
    ) -> Result<answers::Removed, RpcFault> {
        let left = match take_leave(changes, &mut removal, fault) {
            Ok(left) => left,
            Err(fault) => {
                restore(changes, &mut removal);
                return Err(fault);
            }
        };
        let (name, clients) = (removal.entry.shown_name().to_owned(), removal.clients as u64);
        tracing::warn!("export {name} was given up: {}", left.waits_for);
        left.notes.iter().for_each(|note| tracing::warn!("export {name}: {note}"));
        lock(&self.list).push(AbandonedExport { removal, flush: None, lost: None });
        if let Some(later) = self.later.get() {
            later();
        }
        let abandoned = Some(left);
        Ok(answers::Removed { export: name, clients, closed: false, abandoned })
    }

    /// Goes on with the removals of what was given up, as far as their devices allow; returns whether none is left.
    ///
    /// # Errors
    /// The server stops.
    pub fn end(&self, changes: &LiveChanges) -> Result<bool, RpcFault> {
        let mut all = std::mem::take(&mut *lock(&self.list));
        let mut outcome = Ok(());
        all.retain_mut(|one| match end_one(changes, one) {
            Ok(is_done) => !is_done,
            Err(fault) => {
                outcome = Err(fault);
                true
            }
        });
        let mut list = lock(&self.list);
        list.append(&mut all);
        outcome.map(|()| list.is_empty())
    }
}

/// Closes the clients, keeps what only the cache has, and takes the name away.
fn take_leave(
    changes: &LiveChanges,
    removal: &mut ExportRemoval,
    fault: &RpcFault,
) -> Result<answers::Abandoned, RpcFault> {
    let entry = removal.entry.clone();
    let ExportNode { id: export, volume, device, .. } = entry;
    changes.command_all(|| ShardCommand::Abandon { export })?;
    let mut left = what_is_left(changes, &entry)?;
    left.waits_for = fault.message().to_owned();
    let inventory = lock(&changes.inventory);
    if inventory.shares_volume(export) {
        changes.tree.change(|tree| tree.exports.retain(|other| other.id != export));
    } else {
        let is_alone = !inventory.shares_device(volume);
        changes.tree.change(|tree| {
            remove_from_tree(tree, export, volume);
            tree.devices.retain(|node| !is_alone || node.id != device);
        });
        removal.mark = removal.mark.take().or_else(|| changes.shards.keeper().take(volume));
    }
    if let Some(record) = inventory.exports.lock().get_mut(&export.0) {
        record.state = ExportState::Abandoned;
    }
    changes.settings.divide_parts()?;
    Ok(left)
}

/// Counts what is not on the image, and writes what the cache has of it to a recovery file.
fn what_is_left(changes: &LiveChanges, entry: &ExportNode) -> Result<answers::Abandoned, RpcFault> {
    let (volume, bytes) = (entry.volume, report_of(changes, entry)?.dirty);
    let owner = changes.tree.current().owner(entry);
    let report = changes.shards.ask(owner, |answer| ControlQuery::Volume { volume, answer })?;
    let mut left = answers::Abandoned {
        waits_for: String::new(),
        unwritten_bytes: bytes,
        unflushed: report.unflushed,
        recovery_file: None,
        notes: Vec::new(),
    };
    let mut note = |sentence: String| left.notes.push(sentence);
    if bytes > 0 {
        let (size, keeper) = (display_size(bytes), changes.shards.keeper());
        let unwritten = format!("{size} of acknowledged writes are not on the image");
        match keeper.memory().map(|memory| write_from_memory(memory, volume)) {
            Some(Ok(file)) => {
                note(format!("{unwritten}; they are in {} too", file.display()));
                left.recovery_file = Some(file.display().to_string());
            }
            Some(Err(error)) => {
                note(format!("{unwritten}, and there is no recovery file: {error}"));
            }
            None => note(format!(
                "{unwritten}, and there is no recovery file, since the cache's memory is this process's alone (--cache-file)"
            )),
        }
    }
    if report.unflushed > 0 && entry.volatile {
        let writes = report.unflushed;
        left.notes.push(format!("{writes} acknowledged writes were not flushed by its device"));
    }
    Ok(left)
}

fn end_one(changes: &LiveChanges, one: &mut AbandonedExport) -> Result<bool, RpcFault> {
    if one.removal.steps.is_none() {
        if report_of(changes, &one.removal.entry)?.clients > 0 {
            return Ok(false);
        }
        if forget_shared(changes, &one.removal.entry)? {
            return Ok(true);
        }
        if !is_written_out(changes, one)? {
            return Ok(false);
        }
    }
    if remove_from_shards(changes, &mut one.removal)?.is_some() {
        return Ok(false);
    }
    let name = one.removal.entry.shown_name();
    match one.lost {
        None => {
            remove_marks(one.removal.mark.take());
            tracing::info!(
                "export {name}, which was given up: its device has answered; everything is written out, and its image is closed"
            );
        }
        Some(error) => tracing::warn!(
            "export {name}, which was given up: its device has answered, and what was dirty could not be written ({error}); its image is closed"
        ),
    }
    close(std::mem::take(&mut one.removal.released));
    remove_unused_bases(changes)?;
    Ok(true)
}

/// Whether everything is written out and flushed, or cannot be: then it is discarded.
fn is_written_out(changes: &LiveChanges, one: &mut AbandonedExport) -> Result<bool, RpcFault> {
    let ExportNode { volume, home, .. } = one.removal.entry;
    let flush = match one.flush.take() {
        Some(flush) => flush,
        None => start_drain(changes, home, volume)?.1,
    };
    match flush.try_recv() {
        Ok(Ok(())) => Ok(true),
        // A flush may time out, and a full shard takes it later.
        Ok(Err(IoError::TimedOut | IoError::NoMemory | IoError::Busy)) => Ok(false),
        Ok(Err(error)) => {
            one.lost = Some(error);
            acknowledge(changes, volume)?;
            Ok(true)
        }
        Err(TryRecvError::Empty) => {
            one.flush = Some(flush);
            Ok(false)
        }
        Err(TryRecvError::Disconnected) => Err(stopping()),
    }
}

/// Discards the blocks of a volume that could not be written.
fn acknowledge(changes: &LiveChanges, volume: VolumeId) -> Result<(), RpcFault> {
    let control = Control::Acknowledge { volume };
    changes.shards.ask_all(|answer| ControlQuery::Tell { control, answer }).map(drop)
}
