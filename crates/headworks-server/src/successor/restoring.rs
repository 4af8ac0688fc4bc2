//! The start of a server that finds data of dead ones: what goes into the cache at once, and when clients are accepted.
//!
//! ```text
//!   pending --fits the dirty limit of a cache whose memory outlives us--> the shards write it into their caches
//!       `---- otherwise: written to the image before the shards start
//!   a block is in the cache --> its entry in the dead server's memory is cleared
//!   every shard has finished --> all entries of the volumes cleared --> clients are accepted --> empty files removed
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use headworks_core::writeback::DirtyOptions;
use headworks_core::{CacheOptions, ConfigError, ShardConfig, ShardId, VolumeId};

use crate::reactor::messages::ControlMessage;
use crate::reactor::restores::{RestoreResult, Restores, VolumeRestore};
use crate::reactor::shared::ServerShared;
use crate::successor::leftovers::PendingRestore;

/// Restores of all shards, as a start divides them.
pub(crate) struct StartRestores {
    /// By shard; the shard gets them with its parts.
    pub shards: BTreeMap<u16, Restores>,
    /// Sentences about all data that were found.
    pub notes: Vec<String>,
    pending: Vec<PendingRestore>,
    results: Receiver<RestoreResult>,
}

/// Most dirty bytes of a shard.
fn dirty_limit((cache, dirty): &(CacheOptions, DirtyOptions)) -> u64 {
    let bytes = u64::from(cache.units) * 4096;
    match dirty.dirty_bytes {
        0 => bytes / 100 * u64::from(dirty.dirty_ratio),
        limit => limit.min(bytes),
    }
}

impl StartRestores {
    /// Decides where the data go; what cannot be served from the caches at once is written to the images here.
    ///
    /// # Errors
    /// An image could not be written.
    pub fn new(
        pending: Vec<(VolumeId, PendingRestore)>,
        config: &ShardConfig,
        caches: &[(CacheOptions, DirtyOptions)],
    ) -> Result<Self, ConfigError> {
        let mut room: Vec<u64> = caches.iter().map(dirty_limit).collect();
        let mut volumes: BTreeMap<u16, Vec<VolumeRestore>> = BTreeMap::new();
        let (mut notes, mut kept) = (Vec::new(), Vec::new());
        for (volume, pending) in pending {
            let of = &config.volumes[usize::from(volume.0)];
            let (home, bytes) = (usize::from(of.home.0), pending.volume.bytes);
            let dirty = of.options.mode.holds_dirty();
            if !(dirty && caches[home].0.dirty_table && bytes <= room[home]) {
                notes.push(pending.write()?);
                continue;
            }
            room[home] -= bytes;
            notes.push(pending.note());
            volumes.entry(of.home.0).or_default().push(VolumeRestore {
                volume,
                left: pending.volume.volume,
                size: pending.image.size(),
                cache: Arc::clone(&pending.cache),
            });
            kept.push(pending);
        }
        let (done, results): (Sender<RestoreResult>, _) = channel();
        let restores = |volumes| Restores::new(volumes, done.clone());
        let shards = volumes.into_iter().map(|(shard, volumes)| (shard, restores(volumes)));
        Ok(Self { shards: shards.collect(), notes, pending: kept, results })
    }

    /// Whether clients must wait for a shard.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Waits in a thread for all shards; then the dead servers' memory is not needed, and shard 0 accepts clients.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn watch(self, shared: Arc<ServerShared>) -> Result<(), ConfigError> {
        let began = Instant::now();
        let thread = std::thread::Builder::new().name("restore".into());
        let spawned = thread.spawn(move || {
            let mut failed = false;
            // Ends when every shard has answered, or has ended.
            for result in self.results {
                if let Err((volume, error)) = result {
                    failed = true;
                    tracing::error!(
                        volume = volume.0,
                        "cannot restore what a killed server left: {error}; it stays in its memory, and the server ends"
                    );
                }
            }
            if failed {
                shared.note_failure();
                return shared.break_off();
            }
            for pending in &self.pending {
                pending.cache.settle(pending.volume.volume);
            }
            shared.send(ShardId(0), ControlMessage::Listen);
            tracing::debug!("restored within {} ms", began.elapsed().as_millis());
            shared.keeper().leftovers().remove_empty();
        });
        spawned.map(drop).map_err(|error| {
            ConfigError::new("cache-file", format!("cannot start a thread: {error}"))
        })
    }
}
