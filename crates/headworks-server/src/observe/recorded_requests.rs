//! Requests of clients, counted from a record: what a server's counters must say of the same run.
//!
//! A request is counted at its reply, as the server does: its time is that from the batch with its bio to the batch with its reply. A
//! request of more than a buffer, which becomes several bios, is counted as these.

use std::collections::BTreeMap;
use std::path::Path;

use headworks_core::{Action, Bio, BioId, ConfigError, ExportId, Input, Instant, ReplyStage};

use crate::clients::connection_id::is_client;
use crate::observe::latency::request_name;
use crate::observe::recorder::{Step, replay};

/// What a record has of the requests of an export and an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordedRequests {
    /// Requests that were answered, failed ones included.
    pub requests: u64,
    /// Bytes of these requests.
    pub bytes: u64,
    /// Those of them that failed.
    pub errors: u64,
    /// Nanoseconds from their arrival to their reply, summed.
    pub ns: u64,
}

/// Counts the requests of a record by export and name of the operation.
///
/// # Errors
/// As [`replay_recording`](crate::replay_recording).
pub fn recorded_requests(
    path: &Path,
) -> Result<BTreeMap<(ExportId, &'static str), RecordedRequests>, ConfigError> {
    let mut in_flight: BTreeMap<(u32, u64), (Instant, Bio)> = BTreeMap::new();
    let mut all: BTreeMap<_, RecordedRequests> = BTreeMap::new();
    let key = |id: BioId| (id.connection, id.sequence);
    replay(path, &mut |shard, step| {
        let Step::Batch(now, inputs) = step else { return };
        for input in inputs {
            match input {
                // A read that came back for a buffer has come before.
                Input::Bio(bio) if is_client(bio.id.connection) => {
                    in_flight.entry(key(bio.id)).or_insert((now, *bio));
                }
                _ => {}
            }
        }
        for action in &shard.actions().list {
            let (id, failed) = match *action {
                // The release of a buffer follows a reply that was counted.
                Action::Reply { stage: ReplyStage::Released, .. } => continue,
                Action::Reply { id, status, .. } => (id, status.is_err()),
                Action::ReplyFrames { id, .. } => (id, false),
                _ => continue,
            };
            let Some((began, bio)) = in_flight.remove(&key(id)) else { continue };
            let row = all.entry((bio.id.export, request_name(bio.op))).or_default();
            row.requests += 1;
            row.bytes += u64::from(bio.len);
            row.errors += u64::from(failed);
            row.ns += now.since(began);
        }
    })?;
    Ok(all)
}
