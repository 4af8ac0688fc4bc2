//! Shutdown of a shard: complete what is in flight, flush, wait until no other shard needs this shard's devices.
//!
//! ```text
//! Running --stop--> Draining --nothing in flight--> Flushing --all completed--> Waiting --every shard waits--> ended
//! ```
//!
//! Invariant: acknowledged data are flushed before the thread ends. A client that does not read delays the end by at
//! most five seconds, a device that does not answer by at most `stop_ns`. A flush that times out is submitted again
//! until then.

use headworks_core::{Instant, IoError, Status, VolumeId};
use tracing::{error, info, warn};

use super::{DRAIN_NS, Reactor, ShutdownPhase};

impl Reactor {
    pub(super) fn stop(&mut self, now: Instant) {
        if self.phase != ShutdownPhase::Running {
            return;
        }
        if self.parts.restores.is_some() {
            // At the speed of memory, and then everything is in one place.
            self.stop_after_restores = true;
            return;
        }
        if self.has_pause() {
            self.end_pause();
        }
        self.phase = ShutdownPhase::Draining { since: now };
        // Published at once: the loss is known even to a stop without time.
        self.publish_unflushed();
        let volumes = (0..self.parts.shared.volumes()).map(|volume| VolumeId(volume as u16));
        let dirty = volumes.filter_map(|volume| self.parts.driver.shard().dirty_bytes(volume));
        self.parts.shared.add_dirty_at_stop(dirty.sum());
        self.close_listeners();
        for slot in self.parts.io.slots() {
            self.submit_parked(now, slot);
            self.submit_close(slot);
            if let Some((connection, pool)) = self.parts.io.connection(slot) {
                connection.leave(pool);
                self.parts.io.list(slot);
            }
        }
        self.buffer_queue.clear();
        for slot in self.parts.io.slots() {
            if self.parts.io.connection(slot).is_some_and(|(it, _)| it.has_returned()) {
                self.connections.heat(slot);
            }
        }
        self.abandon_sets();
        self.own_flushes.abandon();
        self.send(now);
    }

    pub(super) fn advance_shutdown(&mut self, now: Instant) {
        self.publish_unflushed();
        match self.phase {
            ShutdownPhase::Draining { since } => {
                if now.since(since) > DRAIN_NS {
                    self.parts.io.slots().for_each(|slot| self.close_if_only_sending(slot));
                }
                if self.parts.io.connections() == 0 {
                    self.flush_all(now, since);
                }
            }
            ShutdownPhase::Flushing { left, first, since } => {
                let in_time = self.parts.stop_ns == 0 || now.since(since) < self.parts.stop_ns;
                let mut answers = std::mem::take(&mut self.parts.io.own_flushes);
                let ended = answers
                    .drain(..)
                    .filter(|(id, _)| id.sequence >= first)
                    .filter(|(id, status)| self.take_flush_status((id.volume, *status), in_time));
                let ended = ended.count();
                assert!(ended <= left, "a last flush completes once");
                match left - ended {
                    0 if self.frames_are_idle() => self.wait_for_others(),
                    left => self.phase = ShutdownPhase::Flushing { left, first, since },
                }
            }
            ShutdownPhase::Running | ShutdownPhase::Waiting => {}
        }
    }

    /// Closes a connection that only has unread replies. Buffers in a device still delay the shutdown.
    pub(super) fn close_if_only_sending(&mut self, slot: u32) {
        if self.parts.io.connection(slot).is_some_and(|(connection, _)| connection.has_outgoing()) {
            self.close(slot);
        }
    }

    /// Takes the status of a last flush; returns false if the flush is submitted again.
    fn take_flush_status(&mut self, (volume, status): (VolumeId, Status), in_time: bool) -> bool {
        match status {
            Ok(()) => {}
            Err(IoError::TimedOut) if in_time => {
                if self.own_flushes.retry(volume) {
                    let name = self.exports.name_of(volume);
                    warn!("{name}: the final flush is slow; still waiting for the device");
                }
                return false;
            }
            Err(error) => {
                let name = self.exports.name_of(volume);
                error!("{name}: the final flush failed: {error}");
                self.parts.shared.note_failure();
            }
        }
        true
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

    fn flush_all(&mut self, now: Instant, since: Instant) {
        let volumes = self.parts.volumes.clone();
        self.phase = ShutdownPhase::Flushing {
            left: volumes.len(),
            first: self.own_flushes.next_sequence(),
            since,
        };
        volumes.into_iter().for_each(|volume| self.flush(volume));
        self.step(now);
        self.push_messages();
        self.advance_shutdown(now);
    }

    fn wait_for_others(&mut self) {
        self.publish_unflushed();
        self.phase = ShutdownPhase::Waiting;
        match self.parts.driver.finish_record() {
            None => {}
            Some(Ok(hash)) => info!("recorded; action hash {hash:016x}"),
            Some(Err(error)) => error!("the record is incomplete: {error}"),
        }
        self.parts.shared.wait();
    }

    /// Whether no device uses frames of the cache; a read-ahead or a retried write-back may.
    pub(super) fn frames_are_idle(&self) -> bool {
        self.parts.io.frames.is_none() || self.parts.driver.shard().is_quiet()
    }

    fn publish_unflushed(&self) {
        for volume in 0..self.parts.shared.volumes() {
            let id = VolumeId(volume as u16);
            if let Some(bytes) = self.parts.driver.shard().dirty_bytes(id) {
                self.parts.shared.publish_left(volume, bytes);
            }
            if let Some((writes, suspect)) = self.parts.driver.shard().unflushed(id) {
                self.parts.shared.publish(volume, writes + u64::from(suspect));
            }
        }
    }
}
