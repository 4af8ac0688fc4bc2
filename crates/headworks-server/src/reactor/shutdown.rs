//! Shutdown of a shard and of its volumes: requests in flight complete, each volume is written out, flushed and closed.
//!
//! ```text
//!   shard:   Running --stop--> Stopping --volumes have ended, connections are gone--> Waiting --every shard waits--> ended
//!   volume:  Serving --stop--> Draining --its clients have left--> Flushing --> Closing --mark removed--> Closed
//!                                                                     '--- error ---> Failed
//! ```
//!
//! **A volume's stop waits for nothing of another volume**: not for its clients, its device, its flush or the file system of its mark.
//! So a volume whose device does not answer keeps the process until `stop_ns`, and of the others everything is on the images by
//! then, and no mark is left.
//!
//! **A shard ends when nothing is in its devices**: their memory and descriptors go with it, and what has them by number would write into
//! those of another owner.
//!
//! Invariants: acknowledged data are flushed before a volume is closed. A client that does not read delays its volume by at most
//! five seconds, a device that does not answer by at most `stop_ns`; a flush that times out is submitted again until then. A
//! volume whose clients are still there after five seconds is flushed for the first time then: what was acknowledged does not
//! wait for a request that hangs.

use std::sync::Arc;
use std::sync::mpsc::channel;

use headworks_core::{Instant, IoError, Status, VolumeId};
use tracing::{error, info, warn};

use super::{Reactor, ReactorParts};
use crate::reactor::shared::VolumeStop;

/// Limit for sending the last replies at shutdown.
const DRAIN_NS: u64 = 5_000_000_000;

/// Phases of a shard's shutdown, in order; each of its volumes has phases of its own ([`crate::reactor::shared::VolumeStop`]).
///
/// ```text
/// Running --stop--> Stopping --every volume closed, every connection gone--> Waiting --every shard waits--> ended
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShutdownPhase {
    Running,
    /// No connection is read from; requests in flight complete, and volumes are flushed.
    Stopping {
        /// Time at which the stop arrived.
        since: Instant,
        /// Sequence number of the first last flush; earlier flushes belong to waiters that are gone.
        first: u64,
        /// Clients that have not left were given their time.
        late: bool,
    },
    /// Finished; other shards may still use this shard's devices.
    Waiting,
}

/// How far the end of a shard is.
#[derive(Debug)]
pub(super) struct Stop {
    phase: ShutdownPhase,
    /// A stop arrived while blocks were restored.
    after_restores: bool,
    /// What this shard was to take over was not handed over: it ends.
    pub withdrawn: bool,
}

impl Default for Stop {
    fn default() -> Self {
        Self { phase: ShutdownPhase::Running, after_restores: false, withdrawn: false }
    }
}

impl Stop {
    /// Whether no stop has arrived.
    pub fn is_running(&self) -> bool {
        self.phase == ShutdownPhase::Running
    }

    /// Whether the shard has finished, and other shards may still use its devices.
    pub fn is_waiting(&self) -> bool {
        self.phase == ShutdownPhase::Waiting
    }

    /// Whether a stop has arrived that was to follow the restores.
    pub fn is_due(&self) -> bool {
        self.after_restores
    }
}

impl Reactor {
    pub(super) fn stop(&mut self, now: Instant) {
        if !self.stop.is_running() {
            return;
        }
        if self.parts.restores.is_some() {
            // At the speed of memory, and then everything is in one place.
            self.stop.after_restores = true;
            return;
        }
        if self.has_pause() {
            self.end_pause();
        }
        let first = self.own_flushes.next_sequence();
        self.stop.phase = ShutdownPhase::Stopping { since: now, first, late: false };
        // Published at once: the loss is known even to a stop without time.
        self.publish_unflushed();
        let volumes = (0..self.parts.shared.volumes()).map(|volume| VolumeId(volume as u16));
        let dirty = volumes.filter_map(|volume| self.parts.driver.shard().dirty_bytes(volume));
        self.parts.shared.add_dirty_at_stop(dirty.sum());
        self.listeners.close_all(&mut *self.parts.engine);
        self.door.leave_all(&mut self.parts, now);
        self.sets.abandon();
        self.own_flushes.abandon();
        self.door.send(&mut self.parts, now);
    }

    pub(super) fn advance_shutdown(&mut self, now: Instant) {
        self.publish_unflushed();
        let ShutdownPhase::Stopping { since, first, late } = self.stop.phase else { return };
        let is_late = now.since(since) > DRAIN_NS;
        if is_late {
            for slot in self.parts.io.slots() {
                self.door.close_if_only_sending(&mut self.parts, slot);
            }
        }
        if is_late && !late {
            self.stop.phase = ShutdownPhase::Stopping { since, first, late: true };
            self.flush_undrained();
        }
        let in_time = self.parts.stop_ns == 0 || now.since(since) < self.parts.stop_ns;
        self.take_last_flushes(first, in_time);
        self.flush_drained();
        let ReactorParts { io, shared, volumes, .. } = &self.parts;
        let ended = volumes.iter().all(|volume| shared.progress_of(*volume).stop.has_ended());
        if ended && io.connections() == 0 && self.parts.devices_are_idle() {
            self.wait_for_others();
        }
    }

    /// Begins the last flush of each volume whose clients have left.
    fn flush_drained(&mut self) {
        let requests = self.requests_by_volume();
        let shared = Arc::clone(&self.parts.shared);
        for index in 0..self.parts.volumes.len() {
            let volume = self.parts.volumes[index];
            if shared.progress_of(volume).stop > VolumeStop::Draining {
                continue;
            }
            match requests[usize::from(volume.0)] {
                Some(count) => shared.publish_stop(volume, VolumeStop::Draining, count),
                // Nothing was written, so a device that does not answer delays nothing.
                None if self.parts.driver.shard().is_read_only(volume) => {
                    shared.close_volume(volume, self.parts.id);
                }
                None => {
                    shared.publish_stop(volume, VolumeStop::Flushing, 0);
                    self.flush(volume);
                }
            }
        }
    }

    /// Requests in flight by volume; none for a volume without clients.
    fn requests_by_volume(&mut self) -> Vec<Option<u64>> {
        let mut requests = vec![None; self.parts.shared.volumes()];
        for slot in self.parts.io.slots() {
            let export = self.door.export_of(slot);
            let volume = export.and_then(|export| self.door.exports.volume_of(export));
            if let (Some(volume), Some((connection, _))) = (volume, self.parts.io.connection(slot))
            {
                *requests[usize::from(volume.0)].get_or_insert(0) += connection.in_flight() as u64;
            }
        }
        requests
    }

    /// Flushes what was acknowledged of volumes with requests that hang; the status of this flush is not used.
    fn flush_undrained(&mut self) {
        let ReactorParts { shared, volumes, driver, .. } = &mut self.parts;
        for &volume in volumes.iter() {
            if shared.progress_of(volume).stop == VolumeStop::Draining {
                driver.push(self.own_flushes.submit_for(volume, channel().0));
            }
        }
    }

    /// Takes the statuses of last flushes; `first` is the sequence number of the first one.
    fn take_last_flushes(&mut self, first: u64, in_time: bool) {
        let mut answers = std::mem::take(&mut self.parts.io.own_flushes);
        for (id, status) in answers.drain(..).filter(|(id, _)| id.sequence >= first) {
            self.take_flush_status(id.volume, status, in_time);
        }
    }

    /// Takes the status of a last flush: the volume is closed, or has failed, or is flushed again.
    fn take_flush_status(&mut self, volume: VolumeId, status: Status, in_time: bool) {
        match status {
            Ok(()) => self.parts.shared.close_volume(volume, self.parts.id),
            // A full shard takes the flush later.
            Err(IoError::TimedOut | IoError::NoMemory | IoError::Busy) if in_time => {
                if self.own_flushes.retry(volume) {
                    let name = self.door.exports.name_of(volume);
                    warn!("{name}: the final flush is slow; still waiting for the device");
                }
            }
            Err(error) => {
                let name = self.door.exports.name_of(volume);
                error!("{name}: the final flush failed: {error}");
                self.parts.shared.publish_stop(volume, VolumeStop::Failed, 0);
                self.parts.shared.note_failure();
            }
        }
    }

    pub(super) fn retry_flushes(&mut self) {
        for volume in self.own_flushes.take_due() {
            self.flush(volume);
        }
    }

    fn flush(&mut self, volume: VolumeId) {
        let flush = self.own_flushes.submit(volume);
        self.parts.driver.push(flush);
    }

    fn wait_for_others(&mut self) {
        self.publish_unflushed();
        self.stop.phase = ShutdownPhase::Waiting;
        match self.parts.driver.finish_record() {
            None => {}
            Some(Ok(hash)) => info!("recorded; action hash {hash:016x}"),
            Some(Err(error)) => error!("the record is incomplete: {error}"),
        }
        self.parts.shared.wait();
    }

    fn publish_unflushed(&self) {
        for volume in 0..self.parts.shared.volumes() {
            let id = VolumeId(volume as u16);
            if let Some(bytes) = self.parts.driver.shard().dirty_bytes(id) {
                self.parts.shared.publish_left(volume, bytes);
            }
            if let Some(unflushed) = self.parts.driver.shard().unflushed(id) {
                self.parts.shared.publish(volume, unflushed);
            }
        }
    }
}
