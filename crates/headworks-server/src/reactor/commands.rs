//! What joins and leaves a shard while it runs, and what is written out when somebody asks; between turns.
//!
//! An order is done or refused at once: whoever gave it (the control socket) waits, asks again, and tells every shard in the
//! order that [`headworks_core::Shard::change`] wants. What a shard gives up (files, devices) goes back with the answer, so that
//! it is closed on a thread whose time is nobody's.

use std::sync::mpsc::Sender;

use headworks_core::{
    Bio, BioFlags, BioId, Change, ChangeError, Control, ExportId, Input, Instant, Op, Status,
    VolumeId,
};

use super::{Reactor, ShutdownPhase};
use crate::connection_id::OWN_FLUSHES;
use crate::messages::ControlMessage;
use crate::messages::command::{CommandResult, ExportReport, Released, ShardCommand};

/// Own flushes that somebody waits for.
#[derive(Default)]
pub(super) struct Drains {
    waiting: Vec<(u64, Sender<Status>)>,
}

impl Reactor {
    pub(super) fn on_order(
        &mut self,
        now: Instant,
        order: ShardCommand,
        answer: &Sender<CommandResult>,
    ) {
        if self.phase != ShutdownPhase::Running {
            // Whoever waits hears that nobody answers any more.
            return;
        }
        let mut remains = Released::new();
        let result = self.obey(now, order, &mut remains);
        let _ = answer.send(result.map(|()| remains));
    }

    fn obey(
        &mut self,
        now: Instant,
        order: ShardCommand,
        remains: &mut Released,
    ) -> Result<(), ChangeError> {
        match order {
            ShardCommand::AddDevice { device, config, body } => {
                self.change(now, Change::AddDevice { device, config })?;
                if let Some(body) = body {
                    self.parts.executor.put(device, body);
                }
            }
            ShardCommand::AddVolume { volume, config, file, watched } => {
                self.change(now, Change::AddVolume { volume, config })?;
                if let Some(file) = file {
                    let device = self.parts.executor.device(config.device);
                    let taken = device.map(|device| device.take_in(volume, file));
                    assert!(matches!(taken, Some(Ok(()))), "images join devices of files");
                }
                self.parts.files.extend(watched);
                if config.home == self.parts.id {
                    self.parts.volumes.push(volume);
                }
            }
            ShardCommand::RemoveVolume { volume, device } => {
                self.change(now, Change::RemoveVolume { volume })?;
                if let Some(device) = self.parts.executor.device(device) {
                    remains.keep(device.let_go(volume));
                }
                self.parts.volumes.retain(|other| *other != volume);
                let files = &mut self.parts.files;
                while let Some(index) = files.iter().position(|file| file.volume == volume) {
                    remains.keep(Some(files.swap_remove(index)));
                }
            }
            ShardCommand::RemoveDevice { device } => {
                self.change(now, Change::RemoveDevice { device })?;
                remains.keep(self.parts.executor.take(device));
            }
            ShardCommand::Serve { export } => {
                let (id, weight) = (export.binding.export, export.weight);
                self.exports.put(export);
                self.on_control(Control::Weight { export: id, weight });
            }
            ShardCommand::Hide { export, hidden } => self.exports.hide(export, hidden),
            ShardCommand::Forget { export } => {
                self.exports.take(export);
                self.parts.io.latency.forget(export);
            }
            ShardCommand::Evict { export, unread } => self.evict(export, unread),
            ShardCommand::Expect { volume, size } => {
                let files = self.parts.files.iter_mut();
                files.filter(|file| file.volume == volume).for_each(|file| file.expect(size));
            }
            ShardCommand::Grow { volume, device, size } => {
                if let Some(device) = self.parts.executor.device(device) {
                    let refused = |_| ChangeError::Busy("the device cannot have this size");
                    device.grow(volume, size).map_err(refused)?;
                }
                self.exports.resize(volume, size);
                self.inputs.push(Input::Control(Control::Resize { volume, size }));
            }
        }
        Ok(())
    }

    /// Between two batches: the last one's actions are carried out, and the next one follows in this turn.
    fn change(&mut self, now: Instant, change: Change) -> Result<(), ChangeError> {
        let result = self.parts.shard.change(now, &change);
        if let Some(recorder) = &mut self.parts.recorder {
            recorder.note_change(now, &change);
        }
        self.changed = true;
        result
    }

    /// The clients of an export leave: what is in flight is answered, nothing more is read. Those that have only `unread` replies
    /// left are closed if told so.
    fn evict(&mut self, export: ExportId, unread: bool) {
        for slot in self.clients_of(export) {
            self.tell_close(slot);
            self.buffer_queue.leave(slot);
            if let Some((connection, pool)) = self.parts.io.connection(slot) {
                connection.leave(pool);
                self.parts.io.list(slot);
            }
            if unread {
                self.close_if_only_sending(slot);
            }
        }
    }

    fn clients_of(&self, export: ExportId) -> Vec<u32> {
        let slots = self.parts.io.slots();
        slots.filter(|&slot| self.connection_states[slot as usize].export == Some(export)).collect()
    }

    /// What every export is like of which this shard knows: its clients and its cache where it lives, its flushes where its
    /// device is.
    pub(super) fn report_exports(&self) -> Vec<ExportReport> {
        let mut clients = Vec::new();
        for state in &self.connection_states {
            if let Some(ExportId(export)) = state.export {
                clients.resize(clients.len().max(usize::from(export) + 1), 0);
                clients[usize::from(export)] += 1;
            }
        }
        let (shard, id) = (&self.parts.shard, self.parts.id);
        let report = |export: &super::ServedExport| {
            let volume = export.binding.volume;
            let mut failed = Vec::new();
            if export.shard == id {
                shard.failed_ranges(volume, &mut failed);
            }
            ExportReport {
                export: export.binding.export,
                clients: clients.get(usize::from(export.binding.export.0)).copied().unwrap_or(0),
                size: (export.shard == id).then_some(export.info.size),
                dirty: shard.dirty_bytes(volume).unwrap_or(0),
                failed: failed.iter().map(|(_, len, _)| len).sum(),
                suspect: shard.unflushed(volume).is_some_and(|(_, suspect)| suspect),
            }
        };
        self.exports.all().map(report).collect()
    }

    /// Writes out what is dirty of a volume now, and flushes its device.
    pub(super) fn drain(&mut self, volume: VolumeId, answer: Sender<Status>) {
        if self.phase == ShutdownPhase::Running {
            self.drains.waiting.push((self.own_flushes, answer));
            self.flush(volume);
        }
    }

    /// Passes answers to own flushes on; those of a stop stay.
    pub(super) fn answer_drains(&mut self) {
        let waiting = &mut self.drains.waiting;
        self.parts.io.own_flushes.retain(|(id, status)| {
            let asked = waiting.iter().position(|(sequence, _)| *sequence == id.sequence);
            asked.map(|index| waiting.swap_remove(index).1.send(*status)).is_none()
        });
    }

    /// Nobody waits for these while the server stops.
    pub(super) fn abandon_drains(&mut self) {
        self.drains.waiting.clear();
    }

    pub(super) fn flush(&mut self, volume: VolumeId) {
        let sequence = self.own_flushes;
        self.own_flushes += 1;
        let id = BioId { connection: OWN_FLUSHES, volume, sequence, ..BioId::default() };
        // By FUA, so that it is obeyed where flushes promise nothing, too.
        let flags = BioFlags::SYNC.with(BioFlags::FUA);
        self.inputs.push(Input::Bio(Bio { id, op: Op::Flush, flags, ..Bio::default() }));
    }

    /// The image behind a volume was seen to have another size: every shard tells it to its clients.
    pub(super) fn tell_size(&self, volume: VolumeId, size: u64) {
        for shard in (0..self.parts.wakers.len() as u16).map(headworks_core::ShardId) {
            if shard != self.parts.id {
                self.parts.shared.send(shard, ControlMessage::Resized { volume, size });
            }
        }
    }
}
