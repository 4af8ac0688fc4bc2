//! `drain`: writes back what is dirty now and flushes the devices, while clients continue.

use std::sync::mpsc::Receiver;

use headworks_core::{IoError, ShardId, Status, VolumeId};
use serde_json::json;

use super::{Draining, LiveChanges, PAUSE};
use crate::control::params::optional_text;
use crate::control::rpc::{Params, RpcFault, RpcResult};
use crate::control::shards::stopping;
use crate::control::tree::{ExportNode, Tree};
use crate::messages::query::ControlQuery;

/// A write-back in progress.
struct WriteOut<'a> {
    entry: &'a ExportNode,
    bytes: u64,
    status: Receiver<Status>,
}

impl LiveChanges {
    pub fn drain(&self, params: &Params) -> RpcResult {
        let since = std::time::Instant::now();
        let tree = self.tree.current();
        let entries = match optional_text(params, "export")? {
            Some(name) => vec![tree.find_export(name)?],
            None => volumes(&tree),
        };
        let _shown = Draining::new(self, entries.iter().map(|entry| entry.id).collect());
        // All are started first: devices work in parallel.
        let started: Vec<WriteOut<'_>> = entries
            .into_iter()
            .map(|entry| {
                let (bytes, status) = self.start_drain(entry.home, entry.volume)?;
                Ok(WriteOut { entry, bytes, status })
            })
            .collect::<Result<_, RpcFault>>()?;
        let (mut rows, mut failures, mut sum) = (Vec::new(), Vec::new(), 0);
        for WriteOut { entry, bytes, status } in started {
            match self.end_drain(entry.home, entry.volume, status)? {
                Ok(()) => rows.push(json!({ "export": entry.shown_name(), "bytes": bytes })),
                Err(error) => failures.push(format!("{}: {error}", entry.shown_name())),
            }
            sum += bytes;
        }
        if !failures.is_empty() {
            let message = format!("could not write everything out: {}", failures.join("; "));
            let message = format!(
                "{message}; `failed EXPORT` lists the bytes, `discard-failed EXPORT` discards them"
            );
            return Err(RpcFault::refused("EIO", message));
        }
        let seconds = since.elapsed().as_secs_f64();
        Ok(json!({ "exports": rows, "bytes": sum, "seconds": seconds }))
    }

    /// Starts the write-back and flush of a volume; returns its dirty bytes and the channel for the status.
    pub(super) fn start_drain(
        &self,
        home: ShardId,
        volume: VolumeId,
    ) -> Result<(u64, Receiver<Status>), RpcFault> {
        self.shards.ask(home, |answer| ControlQuery::Drain { volume, answer })
    }

    /// Waits for the status without a limit; the server's stop ends the wait.
    fn end_drain(
        &self,
        home: ShardId,
        volume: VolumeId,
        mut status: Receiver<Status>,
    ) -> Result<Status, RpcFault> {
        loop {
            match status.recv().map_err(|_| stopping())? {
                // A flush may time out, and a full shard takes it later: retry.
                Err(IoError::TimedOut | IoError::NoMemory | IoError::Busy) => {
                    std::thread::sleep(PAUSE);
                    status = self.start_drain(home, volume)?.1;
                }
                end => return Ok(end),
            }
        }
    }
}

/// One export of every volume.
fn volumes(tree: &Tree) -> Vec<&ExportNode> {
    let mut entries: Vec<&ExportNode> = Vec::new();
    for entry in &tree.exports {
        if !entries.iter().any(|known| known.volume == entry.volume) {
            entries.push(entry);
        }
    }
    entries
}
