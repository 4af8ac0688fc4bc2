//! The pause of a shard whose server is handed over to another process.
//!
//! ```text
//!   Running --Pause--> Draining --nothing of a client in flight--> (Cleaning) --> Freezing --nothing in a device--> handed over
//!      ^                  |           write-out goes on: writers may   everything is   the cache starts                 |
//!      |                  |           wait for dirty credit            written out     nothing more                    |
//!      '------------------'---------------------'--- the order was withdrawn --'---------------------------------------'
//! ```
//!
//! Before a restart everything is written out, most of it before Draining, while clients are served; so are, in any case, volumes that
//! only this process can flush ([`PauseOrder::flush`]).
//!
//! Beside an export that was given up (`control/changes/abandon.rs`) nothing can be said of the cache's memory, which its device may use:
//! the others are written out, and only connections are handed over ([`PauseWay::WrittenOut`]).
//!
//! While paused a shard accepts no client and reads no request. After the hand-over its thread waits for the end of the pause, or
//! of the process: so nothing changes that the other process was told. Clients that cannot move (`ShardClient::hand_over`) stay
//! and are closed by the end of the process. What devices and files have read ends in Draining: it does not wait for limits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use headworks_core::{Control, Input, Instant, Status, VolumeId};

use super::Reactor;
use crate::clients::client::HandedClient;
use crate::exports::access::ListenerKind;
use crate::reactor::messages::hand_over::{
    AdoptOrder, AdoptedClient, PauseOrder, PauseWay, PausedShard,
};
use crate::successor::handover::ToldExport;

/// A shard's own state of a pause.
pub(super) struct Pause {
    order: PauseOrder,
    stage: Stage,
}

enum Stage {
    /// Flushes that have not completed; clients are still served.
    WritingOut(Receiver<Status>),
    Draining,
    /// Flushes that have not completed.
    Cleaning(Receiver<Status>),
    Freezing,
}

impl Reactor {
    /// Whether nothing is accepted and read.
    fn is_paused(&self) -> bool {
        let reads = |pause: &Pause| matches!(pause.stage, Stage::WritingOut(_));
        self.pause.as_ref().is_some_and(|pause| !reads(pause))
    }

    /// Whether a pause is in progress, in whatever stage.
    pub(super) fn has_pause(&self) -> bool {
        self.pause.is_some()
    }

    /// Begins a pause; a shard that stops drops the order, and one with a frozen volume refuses it.
    pub(super) fn begin_pause(&mut self, mut order: PauseOrder) {
        if !self.stop.is_running() || self.has_pause() {
            return;
        }
        if self.parts.restores.is_some() {
            let reason =
                "what a killed server left is being restored; try again when clients are served";
            let _ = order.answer.send(Err(reason.to_owned()));
            return;
        }
        if let Some(volume) = self.door.freezes.first() {
            let name = self.door.exports.name_of(volume);
            let reason = format!("{name} is frozen (ctl freeze); try again after its thaw");
            let _ = order.answer.send(Err(reason));
            return;
        }
        let stage = match order.way {
            PauseWay::WrittenOutBefore => Stage::WritingOut(self.flush_own_volumes(|_| true)),
            // So that little is left to flush when clients wait.
            PauseWay::AsItIs if self.parts.volumes.iter().any(|id| order.flush.contains(id)) => {
                Stage::WritingOut(self.flush_own_volumes(|volume| order.flush.contains(&volume)))
            }
            PauseWay::AsItIs | PauseWay::WrittenOut => {
                order.begun = None;
                Stage::Draining
            }
        };
        self.pause = Some(Pause { order, stage });
        if self.is_paused() {
            self.door.pause(&mut self.parts);
        }
    }

    /// Continues a pause, if there is one, as far as it can at the end of a turn.
    pub(super) fn advance_pause(&mut self, now: Instant) {
        let Some(pause) = &self.pause else { return };
        if pause.order.end.try_recv() == Err(TryRecvError::Disconnected) {
            return self.end_pause();
        }
        match &pause.stage {
            Stage::WritingOut(flushes) => match outcome(flushes) {
                Some(Ok(())) => self.stop_reading(),
                Some(Err(error)) => self.refuse_pause(&format!("write-out failed: {error}")),
                None => {}
            },
            Stage::Draining => {
                if self.connections_are_at_rest() {
                    self.clean_or_freeze();
                }
            }
            Stage::Cleaning(flushes) => match outcome(flushes) {
                Some(Ok(())) => self.freeze(),
                Some(Err(error)) => self.refuse_pause(&format!("write-out failed: {error}")),
                None => {}
            },
            Stage::Freezing => {
                if self.is_still() {
                    self.hand_over(now);
                }
            }
        }
    }

    /// Whether no client waits for an answer of the shard, and every socket has what it takes.
    fn connections_are_at_rest(&mut self) -> bool {
        let io = &mut self.parts.io;
        let sent = io.to_send.is_empty() && !io.has_large_to_send();
        let door = &self.door;
        let is_left = |slot| door.export_of(slot).is_some_and(|id| door.exports.is_abandoned(id));
        sent && io
            .slots()
            .filter(|slot| !is_left(*slot))
            .all(|slot| io.connection(slot).is_none_or(|(connection, _)| connection.is_at_rest()))
    }

    /// Whether nothing is in a device, or in a ring; but for what devices have of exports that were given up.
    fn is_still(&self) -> bool {
        match self.door.exports.abandoned_volumes().is_empty() {
            true => self.parts.is_still(),
            // The rest has been written out, and clients are at rest.
            false => self.way() == PauseWay::WrittenOut && self.parts.has_told_all(),
        }
    }

    fn way(&self) -> PauseWay {
        self.pause.as_ref().map_or(PauseWay::AsItIs, |pause| pause.order.way)
    }

    /// Most is written out: from now on nothing is read.
    fn stop_reading(&mut self) {
        if let Some(pause) = &mut self.pause {
            pause.order.begun = None;
            pause.stage = Stage::Draining;
        }
        self.door.pause(&mut self.parts);
    }

    fn clean_or_freeze(&mut self) {
        let Some(Pause { order, .. }) = &self.pause else { return };
        let (all, flush) = (order.way != PauseWay::AsItIs, Arc::clone(&order.flush));
        if !all && !self.parts.volumes.iter().any(|volume| flush.contains(volume)) {
            return self.freeze();
        }
        let flushes = self.flush_own_volumes(|volume| all || flush.contains(&volume));
        self.set_stage(Stage::Cleaning(flushes));
    }

    /// Writes out and flushes those of this shard's volumes that `is_meant` selects; returns where the outcomes come.
    fn flush_own_volumes(&mut self, is_meant: impl Fn(VolumeId) -> bool) -> Receiver<Status> {
        let (flushed, flushes) = channel();
        let given_up = self.door.exports.abandoned_volumes();
        let is_meant = |volume| is_meant(volume) && !given_up.contains(&volume);
        let meant: Vec<_> = self.parts.volumes.iter().copied().filter(|id| is_meant(*id)).collect();
        for volume in meant {
            let flush = self.own_flushes.submit_for(volume, flushed.clone());
            self.parts.driver.push(flush);
        }
        flushes
    }

    fn freeze(&mut self) {
        self.parts.driver.push(Input::Control(Control::Freeze { on: true }));
        self.set_stage(Stage::Freezing);
    }

    fn set_stage(&mut self, stage: Stage) {
        if let Some(pause) = &mut self.pause {
            pause.stage = stage;
        }
    }

    fn refuse_pause(&mut self, reason: &str) {
        if let Some(pause) = &self.pause {
            let _ = pause.order.answer.send(Err(reason.to_owned()));
        }
        self.end_pause();
    }

    /// Hands over, and waits for the end of the pause.
    fn hand_over(&mut self, now: Instant) {
        let moves = self.way() != PauseWay::WrittenOut;
        let contents = moves.then(|| self.parts.driver.shard().contents(now)).transpose();
        let contents = match contents {
            Ok(contents) => contents.map(|contents| contents.encode()),
            Err(error) => return self.refuse_pause(&error.to_string()),
        };
        let mut paused = PausedShard {
            shard: self.parts.id,
            connections: Vec::new(),
            files: Vec::new(),
            stay: 0,
            contents,
            suspect: Vec::new(),
        };
        for slot in self.parts.io.slots() {
            let Some((connection, _)) = self.parts.io.connection(slot) else { continue };
            let binding = connection.binding();
            let export = binding.and_then(|binding| self.door.exports.open(binding.export));
            let Some((binding, info)) = export else {
                paused.stay += 1;
                continue;
            };
            let told = ToldExport::new(info, binding.volume, binding.range);
            match connection.hand_over() {
                Some(HandedClient::Connection(handed)) => paused.connections.push((told, handed)),
                Some(HandedClient::File(handed)) => paused.files.push((told, handed)),
                // Its mount would outlive what serves it.
                None if connection.kind() == ListenerKind::Fuse => {
                    let peer = connection.peer();
                    let why = format!("no descriptor is left for the file {peer} (ulimit -n)");
                    return self.refuse_pause(&why);
                }
                None => paused.stay += 1,
            }
        }
        let volumes = (0..self.parts.shared.volumes()).map(|volume| VolumeId(volume as u16));
        let shard = self.parts.driver.shard();
        let suspects =
            volumes.filter(|&volume| shard.unflushed(volume).is_some_and(|(_, suspect)| suspect));
        paused.suspect = suspects.collect();
        let Some(pause) = &self.pause else { return };
        let _ = pause.order.answer.send(Ok(paused));
        // Nothing is sent: this ends when the other end is dropped.
        let _ = pause.order.end.recv();
        self.end_pause();
    }

    /// Goes on as before.
    pub(super) fn end_pause(&mut self) {
        self.pause = None;
        self.door.end_pause();
        self.parts.driver.push(Input::Control(Control::Freeze { on: false }));
        self.listeners.watch_all(&mut *self.parts.engine);
        self.door.resume_all(&mut self.parts);
    }
}

impl Reactor {
    /// Takes over what another process has handed over, and waits until that has left.
    pub(super) fn adopt(&mut self, now: Instant, order: AdoptOrder) {
        let AdoptOrder { contents, volumes, clients: adopted, answer, go } = order;
        let (mut ids, mut clients) = (BTreeMap::new(), Vec::new());
        for AdoptedClient { old_id, client, export, terms } in adopted {
            let slot = match self.door.adopt(&mut self.parts, client) {
                Ok(Some(slot)) => slot,
                Ok(None) => continue,
                Err(why) => {
                    let _ = answer.send(Err(why));
                    self.stop.withdrawn = true;
                    return;
                }
            };
            let id = self.parts.io.connection(slot).map(|(connection, _)| connection.id());
            ids.extend(id.map(|id| (old_id, id)));
            clients.push((slot, export, terms));
        }
        let adopted = match &contents {
            Some(words) => {
                let of = |volume| self.door.exports.first_of(volume);
                self.parts.driver.adopt_cache(now, words, (&volumes, &of), &ids)
            }
            None => Ok(()),
        };
        let _ = answer.send(adopted);
        if go.recv().is_err() {
            self.stop.withdrawn = true;
            return;
        }
        self.parts.driver.push(Input::Control(Control::Freeze { on: false }));
        for (slot, export, terms) in clients {
            self.door.begin_client(&mut self.parts, now, slot, export, terms);
        }
    }
}

/// The outcome of all flushes; none while one has not completed.
fn outcome(flushes: &Receiver<Status>) -> Option<Status> {
    let failed = flushes.try_iter().find(Status::is_err);
    let all = || flushes.try_recv() == Err(TryRecvError::Disconnected);
    failed.or_else(|| all().then_some(Ok(())))
}

#[cfg(test)]
mod tests {
    use super::super::fairness_tests::{Harness, device_parts};
    use super::super::restores::Restores;
    use super::*;
    use headworks::NullDevice;

    #[test]
    fn pause_beside_a_restore_is_refused_with_its_reason() {
        let mut parts = device_parts(None, Box::new(NullDevice), 1 << 20, 1 << 20);
        parts.restores = Some(Restores::new(Vec::new(), channel().0));
        let mut harness = Harness::with(parts);
        let ((answer, answers), (_going, end)) = (channel(), channel());
        let (way, flush) = (PauseWay::AsItIs, Vec::new().into());
        harness.reactor.begin_pause(PauseOrder { way, flush, begun: None, answer, end });
        assert!(answers.try_recv().unwrap().unwrap_err().contains("is being restored"));
    }
}
