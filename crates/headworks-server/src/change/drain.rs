//! `drain`: writes back what is dirty now and flushes the devices, while clients continue.
//!
//! All exports are written out at the same time, and each wait has a limit: an export whose device does not answer delays the
//! write-out of no other, and is named with its device when the time is over.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use headworks_core::{IoError, ShardId, Status, VolumeId};

use super::{Draining, LiveChanges, PAUSE};
use crate::control::shards::stopping;
use crate::control::tree::{ExportNode, Tree, device_name, lock};
use crate::observe::latency::errors::errno_name;
use crate::reactor::messages::query::ControlQuery;
use headworks::house::display_size;
use headworks_control::{RpcFault, answers, methods};

/// Time limit if a client asks for none: twice the usual `io_timeout`, so that everything that can time out has.
const LIMIT: Duration = Duration::from_secs(60);

/// A write-out of a volume.
pub(super) struct WriteOut {
    /// An export of the volume.
    pub entry: ExportNode,
    /// Bytes that were dirty at its begin.
    pub bytes: u64,
    status: Receiver<Status>,
    /// How it ended; none while it goes on.
    pub outcome: Option<Status>,
}

pub fn drain(live: &LiveChanges, asked: &methods::Drain) -> Result<answers::Drained, RpcFault> {
    let since = Instant::now();
    let limit = asked.timeout.0.map_or(LIMIT, Duration::from_secs_f64);
    let tree = live.tree.current();
    let entries = match asked.export.as_deref() {
        Some(name) => vec![tree.find_export(name)?.clone()],
        None => volumes(&tree),
    };
    let _shown = Draining::new(live, entries.iter().map(|entry| entry.id).collect());
    let all = write_out(live, entries, since + limit)?;
    let (mut rows, mut failures, mut late) = (Vec::new(), Vec::new(), Vec::new());
    for WriteOut { entry, bytes, outcome, .. } in &all {
        let name = entry.shown_name();
        match outcome {
            Some(Ok(())) => {
                rows.push(answers::DrainedExport { export: name.to_owned(), bytes: *bytes })
            }
            // Its removal writes it out.
            Some(Err(IoError::Invalid)) if is_leaving(live, entry) => {}
            Some(Err(error)) => failures.push((*error, format!("{name}: {error}"))),
            None => {
                let (device, size) = (device_name(entry.device), display_size(*bytes));
                late.push(format!("{name} (device {device}, {size} dirty at the begin)"));
            }
        }
    }
    if let Some((first, _)) = failures.first() {
        let errno = errno_name(*first);
        let said: Vec<String> = failures.into_iter().map(|(_, said)| said).collect();
        let message = format!(
            "could not write everything out: {}; `failed EXPORT` lists the bytes, `discard-failed EXPORT` discards them",
            said.join("; ")
        );
        return Err(RpcFault::refused(errno, message));
    }
    if !late.is_empty() {
        let (seconds, late) = (limit.as_secs_f64(), late.join(", "));
        let message = format!(
            "not written out and flushed within {seconds} s, because the device does not answer or needs longer (--timeout): {late}; {} of {} exports are",
            rows.len(),
            all.len()
        );
        return Err(RpcFault::refused("ETIMEDOUT", message));
    }
    let seconds = since.elapsed().as_secs_f64();
    let sum: u64 = all.iter().map(|one| one.bytes).sum();
    Ok(answers::Drained { exports: rows, bytes: sum, seconds })
}

/// Whether the volume of an export has been removed meanwhile, or is being removed.
fn is_leaving(live: &LiveChanges, entry: &ExportNode) -> bool {
    let inventory = lock(&live.inventory);
    !inventory.volumes.contains_key(&entry.volume.0) || inventory.is_leaving(entry.volume)
}

/// Writes back and flushes volumes side by side; those that have not ended at `until` have no outcome.
pub(super) fn write_out(
    live: &LiveChanges,
    entries: Vec<ExportNode>,
    until: Instant,
) -> Result<Vec<WriteOut>, RpcFault> {
    let begin = |entry: ExportNode| {
        let (bytes, status) = start_drain(live, entry.home, entry.volume)?;
        Ok(WriteOut { entry, bytes, status, outcome: None })
    };
    let mut all: Vec<WriteOut> = entries.into_iter().map(begin).collect::<Result<_, _>>()?;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        // One pause a round; the first write-out's end ends it.
        let (mut pause, mut again, mut is_done) = (left.min(PAUSE), Vec::new(), true);
        for one in all.iter_mut().filter(|one| one.outcome.is_none()) {
            match one.status.recv_timeout(std::mem::take(&mut pause)) {
                // A flush may time out, and a full shard takes it later: retry.
                Ok(Err(IoError::TimedOut | IoError::NoMemory | IoError::Busy)) => again.push(one),
                Ok(ended) => one.outcome = Some(ended),
                Err(RecvTimeoutError::Timeout) => is_done = false,
                Err(RecvTimeoutError::Disconnected) => return Err(stopping()),
            }
        }
        if (is_done && again.is_empty()) || left.is_zero() {
            return Ok(all);
        }
        if !again.is_empty() {
            std::thread::sleep(left.min(PAUSE));
        }
        for one in again {
            one.status = start_drain(live, one.entry.home, one.entry.volume)?.1;
        }
    }
}

/// Starts the write-back and flush of a volume; returns its dirty bytes and the channel for the status.
pub(super) fn start_drain(
    live: &LiveChanges,
    home: ShardId,
    volume: VolumeId,
) -> Result<(u64, Receiver<Status>), RpcFault> {
    live.shards.ask(home, |answer| ControlQuery::Drain { volume, answer })
}

/// One export of every volume.
fn volumes(tree: &Tree) -> Vec<ExportNode> {
    let mut entries: Vec<ExportNode> = Vec::new();
    for entry in &tree.exports {
        if !entries.iter().any(|known| known.volume == entry.volume) {
            entries.push(entry.clone());
        }
    }
    entries
}
