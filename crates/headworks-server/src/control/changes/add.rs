//! `add`: one more export.

use std::path::PathBuf;

use headworks_core::{DeviceConfig, DeviceId, ExportId, ShardId, VolumeConfig, VolumeId};
use serde_json::{Value, json};

use super::remove::leaving;
use super::{LiveChanges, refused, wrong};
use crate::assemble::export_info::served;
use crate::assemble::image::{CreatedImage, OpenedImage};
use crate::assemble::{ExportSpec, assembled, shown_name};
use crate::control::inventory::{
    DeviceEntry, ExportEntry, ExportState, Inventory, Placement, VolumeEntry,
};
use crate::control::params::text;
use crate::control::rpc::{Params, RpcFault, RpcResult};
use crate::control::settings::ExportSettings;
use crate::control::shards::stopping;
use crate::control::tree::{DeviceNode, ExportNode, lock};
use crate::messages::command::ShardCommand;
use crate::spec::BaseDevice;
use headworks::Device;

impl LiveChanges {
    /// By the words of a client.
    pub fn add_by_words(&self, params: &Params) -> RpcResult {
        let flag = |name: &str| match params.get(name) {
            None => Ok(false),
            Some(Value::Bool(on)) => Ok(*on),
            Some(_) => Err(RpcFault::params(format!("{name} must be true or false"))),
        };
        let mut spec =
            ExportSpec::parse(text(params, "spec")?, false).map_err(|error| wrong(&error))?;
        spec.read_only = flag("read_only")?;
        // Paths are the client's.
        if let (BaseDevice::File { path, .. }, Some(Value::String(folder))) =
            (&mut spec.spec.base, params.get("cwd"))
        {
            *path = PathBuf::from(folder).join(path.as_path());
        }
        self.add(spec)
    }

    /// Clients may choose it when this returns.
    pub fn add(&self, spec: ExportSpec) -> RpcResult {
        spec.check().map_err(|error| wrong(&error))?;
        let mut inventory = lock(&self.inventory);
        self.may_be_called(&inventory, &spec.name)?;
        let export = inventory.free_export().map_err(|error| wrong(&error))?;
        let mut made = None;
        let (entry, notes) = match self.put(&mut inventory, export, &spec, &mut made) {
            Ok(added) => added,
            Err(fault) => {
                // No client could write to it.
                if let Some(made) = made {
                    made.undo();
                }
                return Err(fault);
            }
        };
        tracing::info!("export {} was added", entry.shown_name());
        Ok(json!({ "export": entry.shown_name(), "notes": notes }))
    }

    /// Of an image that is served, or of one more, which may be `made` for it.
    fn put(
        &self,
        inventory: &mut Inventory,
        export: ExportId,
        spec: &ExportSpec,
        made: &mut Option<CreatedImage>,
    ) -> Result<(ExportNode, Vec<String>), RpcFault> {
        if let Some(volume) = inventory.find(spec) {
            if inventory.is_leaving(volume) {
                return Err(image_leaving(spec));
            }
            inventory.may_share(volume, spec).map_err(|error| wrong(&error))?;
            return Ok((self.serve(inventory, export, volume, spec)?, Vec::new()));
        }
        let (volume, notes) = self.add_volume(inventory, spec, made)?;
        match self.serve(inventory, export, volume, spec) {
            Ok(entry) => Ok((entry, notes)),
            Err(fault) => {
                // Without an export nothing would ever take it away.
                if let Some(holding) = inventory.volumes.remove(&volume.0) {
                    let _ = self.forget_volume(inventory, volume, holding.config);
                }
                Err(fault)
            }
        }
    }

    fn may_be_called(&self, inventory: &Inventory, name: &str) -> Result<(), RpcFault> {
        let name = shown_name(name);
        let is_called = |holding: &&ExportEntry| shown_name(&holding.spec.name) == name;
        let mut others = inventory.exports.values().filter(is_called);
        match others.next().map(|holding| &holding.presence) {
            None => Ok(()),
            Some(ExportState::Serving) => {
                let message = format!("an export `{name}` exists already; remove it first");
                Err(RpcFault::refused("EEXIST", message))
            }
            Some(ExportState::Leaving) => Err(leaving(name)),
            Some(ExportState::Stuck(_)) => {
                let message =
                    format!("the removal of export `{name}` is incomplete; `remove {name}` again");
                Err(RpcFault::refused("EBUSY", message))
            }
        }
    }

    fn add_volume(
        &self,
        inventory: &mut Inventory,
        spec: &ExportSpec,
        made: &mut Option<CreatedImage>,
    ) -> Result<(VolumeId, Vec<String>), RpcFault> {
        inventory.may_open(spec).map_err(|error| wrong(&error))?;
        let opened = OpenedImage::new(&spec.spec, spec.writes()).map_err(|error| wrong(&error))?;
        *made = opened.made(&spec.spec);
        let Placement { volume, config, device, owner } =
            inventory.site(spec, &opened).map_err(|error| wrong(&error))?;
        let (notes, mut origin) = (opened.notes.clone(), opened.origin(&spec.spec));
        origin.caching = spec.caching();
        let mut watched = opened.watched(volume);
        let (mut file, common) = (None, opened.common(spec));
        if let Some(queue) = device {
            let (_, body) = opened.into_device(&spec.spec, volume);
            let config_of = DeviceConfig { owner, queue };
            self.add_device(config.device, config_of, body)?;
            let holding = DeviceEntry { config: config_of, common };
            inventory.devices.insert(config.device.0, holding);
        } else {
            file = opened.joins().ok().map(|(_, file)| file);
        }
        for shard in self.shards.ids_from(owner) {
            let order = ShardCommand::AddVolume {
                volume,
                config,
                file: file.take_if(|_| shard == owner),
                watched: watched.take_if(|_| shard == config.home),
            };
            if let Err(error) = self.shards.command(shard, order)? {
                self.forget_volume(inventory, volume, config)?;
                return Err(refused(&error));
            }
        }
        inventory.volumes.insert(volume.0, VolumeEntry { config, origin });
        Ok((volume, notes))
    }

    fn add_device(
        &self,
        device: DeviceId,
        config: DeviceConfig,
        body: Box<dyn Device>,
    ) -> Result<(), RpcFault> {
        let mut body = Some(body);
        for shard in self.shards.ids_from(config.owner) {
            let body = body.take_if(|_| shard == config.owner);
            if let Err(error) =
                self.shards.command(shard, ShardCommand::AddDevice { device, config, body })?
            {
                self.forget_device(device, config.owner)?;
                return Err(refused(&error));
            }
        }
        Ok(())
    }

    /// A change was refused by a shard: those that had agreed forget it again, the others have nothing to forget.
    fn forget_volume(
        &self,
        inventory: &mut Inventory,
        volume: VolumeId,
        config: VolumeConfig,
    ) -> Result<(), RpcFault> {
        for shard in self.shards.ids_from(config.home) {
            let _ = self
                .shards
                .command(shard, ShardCommand::RemoveVolume { volume, device: config.device })?;
        }
        let mut others = inventory.volumes.values();
        if !others.any(|other| other.config.device == config.device)
            && let Some(holding) = inventory.devices.remove(&config.device.0)
        {
            self.forget_device(config.device, holding.config.owner)?;
        }
        Ok(())
    }

    fn forget_device(&self, device: DeviceId, owner: ShardId) -> Result<(), RpcFault> {
        for shard in self.shards.ids_from(owner).into_iter().rev() {
            let _ = self.shards.command(shard, ShardCommand::RemoveDevice { device })?;
        }
        Ok(())
    }

    fn serve(
        &self,
        inventory: &mut Inventory,
        export: ExportId,
        volume: VolumeId,
        spec: &ExportSpec,
    ) -> Result<ExportNode, RpcFault> {
        let holding = inventory.volumes.get(&volume.0).ok_or_else(stopping)?;
        let (config, what) = (holding.config, &holding.origin.what);
        // Somebody may have made it longer since.
        let others = inventory.exports.iter().find(|(_, other)| other.volume == volume);
        let size = match others.map(|(id, _)| self.export_report(ExportId(*id))).transpose()? {
            Some(Some(report)) => report.size.unwrap_or(config.options.size),
            _ => config.options.size,
        };
        let device = inventory.devices.get(&config.device.0).ok_or_else(stopping)?.config;
        let assembled = assembled(spec, volume, what, size);
        let served = served(&assembled, export, &config, size, inventory.serial);
        self.settings
            .put(export, ExportSettings { weight: assembled.weight, ioprio: assembled.ioprio });
        // Shard 0 is where clients choose: when it knows the export all others do.
        for shard in self.shards.ids().rev() {
            let order = ShardCommand::Serve { export: served.clone() };
            self.shards.command(shard, order)?.map_err(|error| refused(&error))?;
        }
        inventory.serial += 1;
        let holding = ExportEntry { volume, spec: spec.clone(), presence: ExportState::Serving };
        inventory.exports.insert(export.0, holding);
        let entry = ExportNode {
            id: export,
            name: spec.name.clone(),
            volume,
            device: config.device,
            home: config.home,
            mode: config.options.mode,
            on_error: config.options.on_error,
            read_only: assembled.read_only || config.options.read_only,
            volatile: device.queue.write_cache && !config.options.read_only,
        };
        self.tree.change(|tree| {
            tree.exports.push(entry.clone());
            match tree.devices.iter_mut().find(|known| known.id == config.device) {
                Some(known) if known.volumes.contains(&volume) => {}
                Some(known) => {
                    known.volumes = known.volumes.iter().copied().chain([volume]).collect();
                }
                None => {
                    let volumes = [volume].into();
                    let (id, owner) = (config.device, device.owner);
                    tree.devices.push(DeviceNode { id, owner, volumes });
                    tree.devices.sort_by_key(|device| device.id);
                }
            }
        });
        Ok(entry)
    }
}

/// Nobody joins an image whose last export goes.
fn image_leaving(spec: &ExportSpec) -> RpcFault {
    let name = &spec.name;
    let message = format!(
        "the image of `{name}` is being closed after its last export was removed; try again shortly"
    );
    RpcFault::refused("EBUSY", message)
}
