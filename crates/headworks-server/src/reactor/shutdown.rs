//! How a reactor ends: answer what is in flight, flush, wait until no other shard needs our devices.
//!
//! ```text
//!  Running --stop--> Draining --nothing in flight--> Flushing --all answered--> Waiting --every shard waits--> ended
//! ```
//!
//! Invariant: what a client was told is written is flushed before the thread ends; a client that reads nothing holds this up
//! for five seconds at most, a device that does not answer for as long as the user waits. A flush writes what is dirty and may
//! give up after a time of its own; then it is asked for again, until the stop's time is over.

use headworks_core::{Instant, IoError, Status, VolumeId};
use tracing::{error, info, warn};

use super::{DRAIN_NS, LISTENERS, Reactor, ShutdownPhase};

/// Last flushes that take long. A device that has not answered one refuses the next at once, so they are asked for by the tick.
#[derive(Default)]
pub(super) struct Late {
    due: Vec<VolumeId>,
    /// Those that the operator was told of.
    told: Vec<VolumeId>,
}

impl Reactor {
    pub(super) fn stop(&mut self, now: Instant) {
        if self.phase != ShutdownPhase::Running {
            return;
        }
        self.phase = ShutdownPhase::Draining { since: now };
        // At once: whoever gives the stop no time is still told what is lost.
        self.publish_unflushed();
        for listener in std::mem::take(&mut self.parts.listeners).into_iter().enumerate() {
            self.parts.engine.forget(LISTENERS + listener.0 as u32, listener.1.fd());
        }
        for slot in self.parts.io.slots() {
            self.tell_close(slot);
            if let Some((connection, pool)) = self.parts.io.connection(slot) {
                connection.leave(pool);
                self.parts.io.list(slot);
            }
        }
        self.buffer_queue.clear();
        self.abandon_sets();
        self.abandon_drains();
        self.send(now);
    }

    pub(super) fn advance_shutdown(&mut self, now: Instant) {
        if self.phase == ShutdownPhase::Running {
            return;
        }
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
                    .filter(|(id, status)| self.is_last_word((id.volume, *status), in_time));
                match left - ended.count() {
                    0 if self.frames_are_home() => self.wait_for_others(),
                    left => self.phase = ShutdownPhase::Flushing { left, first, since },
                }
            }
            ShutdownPhase::Running | ShutdownPhase::Waiting => {}
        }
    }

    /// A client that does not read holds up nobody's shutdown; buffers in the device do.
    pub(super) fn close_if_only_sending(&mut self, slot: u32) {
        if self.parts.io.connection(slot).is_some_and(|(connection, _)| connection.has_outgoing()) {
            self.close(slot);
        }
    }

    /// Takes the answer to an own flush; false if it is asked for again.
    fn is_last_word(&mut self, (volume, status): (VolumeId, Status), in_time: bool) -> bool {
        match status {
            Ok(()) => {}
            Err(IoError::TimedOut) if in_time => {
                if !self.late.told.contains(&volume) {
                    self.late.told.push(volume);
                    let name = self.exports.name_of(volume);
                    warn!(volume = volume.0, "{name}: the last flush takes long; it goes on");
                }
                self.late.due.push(volume);
                return false;
            }
            Err(error) => {
                error!(volume = volume.0, "the last flush failed: {error}");
                self.parts.shared.note_failure();
            }
        }
        true
    }

    pub(super) fn flush_late(&mut self) {
        let due = std::mem::take(&mut self.late.due);
        due.into_iter().for_each(|volume| self.flush(volume));
    }

    fn flush_all(&mut self, now: Instant, since: Instant) {
        let volumes = self.parts.volumes.clone();
        self.phase =
            ShutdownPhase::Flushing { left: volumes.len(), first: self.own_flushes, since };
        volumes.into_iter().for_each(|volume| self.flush(volume));
        self.step(now);
        self.push_messages();
        self.advance_shutdown(now);
    }

    fn wait_for_others(&mut self) {
        self.publish_unflushed();
        self.phase = ShutdownPhase::Waiting;
        if let Some(recorder) = &mut self.parts.recorder {
            match recorder.finish() {
                Ok(hash) => info!("recorded; action hash {hash:016x}"),
                Err(error) => error!("the record is incomplete: {error}"),
            }
        }
        self.parts.shared.wait();
    }

    /// No device has frames of our cache: only then may they go. (Something was read ahead, or what failed is written again.)
    pub(super) fn frames_are_home(&self) -> bool {
        self.parts.io.frames.is_none() || self.parts.shard.is_quiet()
    }

    fn publish_unflushed(&self) {
        for volume in 0..self.parts.shared.volumes() {
            let id = VolumeId(volume as u16);
            if let Some(bytes) = self.parts.shard.dirty_bytes(id) {
                self.parts.shared.publish_left(volume, bytes);
            }
            if let Some((writes, suspect)) = self.parts.shard.unflushed(id) {
                self.parts.shared.publish(volume, writes + u64::from(suspect));
            }
        }
    }
}
