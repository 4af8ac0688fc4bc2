//! Commands of the control socket: hot-add and hot-remove of devices, volumes and exports, between two turns.
//!
//! A command is carried out or refused at once; the control socket retries and keeps the order that
//! [`headworks_core::Shard::change`] requires. Files and devices that a shard releases return with the result, so that
//! another thread closes them.

use std::sync::mpsc::Sender;

use headworks::house::display_size;
use headworks_core::{
    Change, ChangeError, ConfigError, Control, DeviceState, ExportId, Input, Instant, IoError,
    Status, VolumeId,
};
use headworks_images::PowercutDevice;

use super::door::attached;
use super::{Reactor, ReactorParts};
use crate::clients::client::ShardClient;
use crate::exports::assemble::export_info::ServedExport;
use crate::reactor::messages::ControlMessage;
use crate::reactor::messages::command::{CommandResult, ExportReport, Released, ShardCommand};

impl Reactor {
    pub(super) fn on_command(
        &mut self,
        now: Instant,
        order: ShardCommand,
        answer: &Sender<CommandResult>,
    ) {
        if !self.stop.is_running() || self.has_pause() {
            // Dropping `answer` tells the sender that the shard stops.
            return;
        }
        let mut remains = Released::new();
        let result = self.execute(now, order, &mut remains);
        let _ = answer.send(result.map(|()| remains));
    }

    fn execute(
        &mut self,
        now: Instant,
        order: ShardCommand,
        remains: &mut Released,
    ) -> Result<(), ChangeError> {
        match order {
            ShardCommand::AddDevice { device, config, body } => {
                self.change(now, Change::AddDevice { device, config })?;
                if let Some(body) = body {
                    self.parts.driver.executor().put(device, body);
                }
            }
            ShardCommand::AddVolume { volume, config, image, watched } => {
                self.change(now, Change::AddVolume { volume, config })?;
                if let Some(image) = image {
                    let device = self.parts.driver.executor().device(config.device);
                    let taken = device.map(|device| device.attach(volume, image));
                    assert!(matches!(taken, Some(Ok(()))), "images join devices of filesystems");
                }
                self.parts.files.extend(watched);
                if config.home == self.parts.id {
                    self.parts.volumes.push(volume);
                }
            }
            ShardCommand::SetBase { volume, base } => {
                self.change(now, Change::SetBase { volume, base })?;
            }
            ShardCommand::OwnBlocks { volume, words } => {
                for (word, bits) in words {
                    self.change(now, Change::OwnBlocks { volume, word, bits })?;
                }
            }
            ShardCommand::ReadBase { volume } => self.change(now, Change::ReadBase { volume })?,
            ShardCommand::RemoveVolume { volume, device } => {
                self.change(now, Change::RemoveVolume { volume })?;
                self.door.freezes.forget(volume);
                if let Some(device) = self.parts.driver.executor().device(device) {
                    remains.keep(device.detach(volume));
                }
                self.parts.volumes.retain(|other| *other != volume);
                let files = &mut self.parts.files;
                while let Some(index) = files.iter().position(|file| file.volume == volume) {
                    remains.keep(Some(files.swap_remove(index)));
                }
            }
            ShardCommand::RemoveDevice { device } => {
                self.change(now, Change::RemoveDevice { device })?;
                let ReactorParts { driver, engine, .. } = &mut self.parts;
                remains.keep(driver.executor().take(device, &mut **engine));
            }
            ShardCommand::Serve { export } => {
                let id = export.binding.export;
                let controls = Control::shares(id, &export.config);
                self.door.put_limits(now, &export);
                self.door.limits.settle_homes(now);
                self.door.exports.put(*export);
                self.door.note_devices(&self.parts);
                controls.into_iter().for_each(|control| self.on_control(control));
            }
            ShardCommand::Hide { export, hidden } => self.door.exports.hide(export, hidden),
            ShardCommand::CutPower { device } => {
                let present = self.parts.driver.executor().device(device);
                let disk = present.and_then(|present| present.find::<PowercutDevice>());
                disk.ok_or(ChangeError::Busy("it has no powercut: disk"))?.cut_power();
            }
            ShardCommand::Stack { volume, device, top } => {
                let present = self.parts.driver.executor().device(device);
                let refused = match present {
                    Some(present) => top.put_on(present, volume).err(),
                    None => Some(top),
                };
                if refused.is_some() {
                    remains.keep(refused);
                    let shown = self.door.exports.name_of(volume);
                    tracing::debug!("{shown} has changes that no flush covers: not stacked");
                    return Err(ChangeError::Busy("it has changes that no flush covers"));
                }
            }
            ShardCommand::WatchInstead { volume, file } => {
                let mut files = self.parts.files.iter_mut();
                if let Some(old) = files.find(|old| old.volume == volume) {
                    remains.keep(Some(std::mem::replace(old, file)));
                }
            }
            ShardCommand::Refuse { export, refuses } => self.door.exports.refuse(export, refuses),
            ShardCommand::Forget { export } => {
                self.door.exports.take(export);
                self.door.limits.remove(now, export);
                self.door.limits.settle_homes(now);
                self.door.note_devices(&self.parts);
                self.parts.io.latency.forget(export);
            }
            ShardCommand::SetAbsent { exports } => self.door.exports.set_absent(exports),
            ShardCommand::SetAccess { rules } => self.door.exports.set_access(rules),
            ShardCommand::AddListener { number, listener } => {
                self.listeners.add(number, listener, &mut *self.parts.engine);
            }
            ShardCommand::ChangeListener { number, name, acceptor } => {
                if self.listeners.change(number, name, acceptor) {
                    let why = "its listener has other certificates now";
                    self.door.end_handshakes(&mut self.parts, number, why);
                }
            }
            ShardCommand::RemoveListener { number } => {
                if self.listeners.remove(number, &mut *self.parts.engine, remains) {
                    self.door.end_handshakes(&mut self.parts, number, "its listener was removed");
                }
            }
            ShardCommand::Evict { export, unread } => {
                self.door.evict(&mut self.parts, now, export, unread);
            }
            ShardCommand::Abandon { export } => self.door.abandon(&mut self.parts, export),
            ShardCommand::Expect { volume, size } => {
                let files = self.parts.files.iter_mut();
                files.filter(|file| file.volume == volume).for_each(|file| file.expect(size));
            }
            ShardCommand::Grow { volume, device, size } => {
                if let Some(device) = self.parts.driver.executor().device(device) {
                    let grown = device.grow(volume, size);
                    grown.map_err(|error| no_room(size, error))?;
                }
                attached::resize(&mut self.door, &mut self.parts, volume, size);
                self.parts.driver.push(Input::Control(Control::Resize { volume, size }));
            }
        }
        Ok(())
    }

    /// Changes the shard between two batches; a batch follows in this turn.
    fn change(&mut self, now: Instant, change: Change) -> Result<(), ChangeError> {
        self.parts.driver.change(now, &change)
    }

    /// State of every export that this shard knows: clients and cache on its home shard, flushes on the owner of its
    /// device.
    pub(super) fn report_exports(&self) -> Vec<ExportReport> {
        let clients = counted(self.door.states().filter_map(|state| state.export));
        let files = self.parts.io.clients().filter(|client| client.is_unused());
        let unused = counted(files.map(ShardClient::export_of_requests));
        let of =
            |all: &[usize], export: ExportId| all.get(usize::from(export.0)).map_or(0, |it| *it);
        let (shard, id) = (self.parts.driver.shard(), self.parts.id);
        let deleted = self.parts.deleted_volumes();
        let report = |export: &ServedExport| {
            let volume = export.binding.volume;
            let mut failed = Vec::new();
            if export.shard == id {
                shard.failed_ranges(volume, &mut failed);
            }
            ExportReport {
                export: export.binding.export,
                clients: of(&clients, export.binding.export),
                unused: of(&unused, export.binding.export),
                size: (export.shard == id).then_some(export.info.size),
                volume_size: (export.shard == id).then_some(export.volume_size),
                dirty: shard.dirty_bytes(volume).unwrap_or(0),
                failed: failed.iter().map(|(_, len, _)| len).sum(),
                suspect: shard.unflushed(volume).is_some_and(|(_, suspect)| suspect),
                stuck: export.shard == id
                    && shard.device_state(export.binding.device) == Some(DeviceState::Stuck),
                frozen: self.door.freezes.holds(volume),
                refuses: self.door.exports.refuses(export.binding.export),
                deleted: deleted.contains(&volume),
            }
        };
        self.door.exports.all().map(report).collect()
    }

    /// Writes back what is dirty of a volume and flushes its device; the status goes to `waiter`.
    pub(super) fn drain(&mut self, volume: VolumeId, waiter: Sender<Status>) {
        if self.stop.is_running() {
            let flush = self.own_flushes.submit_for(volume, waiter);
            self.parts.driver.push(flush);
        }
    }

    /// Tells the other shards that an image changed its size.
    pub(super) fn announce_size(&self, volume: VolumeId, size: u64) {
        for shard in (0..self.parts.wakers.len() as u16).map(headworks_core::ShardId) {
            if shard != self.parts.id {
                self.parts.shared.send(shard, ControlMessage::Resized { volume, size });
            }
        }
    }
}

/// How often each export is among these.
fn counted(exports: impl Iterator<Item = ExportId>) -> Vec<usize> {
    let mut counts = Vec::new();
    for ExportId(export) in exports {
        counts.resize(counts.len().max(usize::from(export) + 1), 0);
        counts[usize::from(export)] += 1;
    }
    counts
}
/// The error for a size that a device cannot have.
fn no_room(size: u64, error: IoError) -> ConfigError {
    let message =
        format!("the device cannot have {}: {error}; give a smaller one", display_size(size));
    ConfigError::new("size", message).caused_by(match error {
        IoError::NoMemory => Some(libc::ENOSPC),
        error => Some(error.errno()),
    })
}
