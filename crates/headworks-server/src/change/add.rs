//! `add`: adds an export while the server runs.
//!
//! ```text
//!   lock: name and image reserved | image opened, what dead servers left of it written | lock: ids, volume on every shard
//!     `-- the image is served already: lock: serve        | marked, its base shared | lock: serve, or all of it undone
//! ```
//!
//! Rule: nothing that waits for a network or a disk runs under the lock of the inventory, so an image that takes seconds to open delays no
//! other change. What was checked before is checked again after it.

use std::path::Path;
use std::time::{Duration, Instant};

use headworks_core::{
    Control, DeviceConfig, DeviceId, ExportId, IoError, ShardId, VolumeConfig, VolumeId,
};

use super::absent::{put_absent, take_absent};
use super::bases::{remove_unused_bases, share_base};
use super::drain::write_out;
use super::exports::export_report;
use super::remove::being_removed;
use super::{LiveChanges, refused, wrong};
use crate::control::exports::{Export, ExportState};
use crate::control::inventory::{Addition, DeviceEntry, Inventory, Placement, VolumeEntry};
use crate::control::shards::stopping;
use crate::control::tree::{ExportNode, lock};
use crate::exports::assemble::export_info::served;
use crate::exports::assemble::image::OpenedImage;
use crate::exports::assemble::parts_of_blocks::{joining, partial_blocks, taking_parts};
use crate::exports::assemble::range;
use crate::exports::assemble::side_by_side::LateImage;
use crate::exports::assemble::{AbsentExport, ExportSource, ExportSpec, assembled, shown_name};
use crate::exports::export_range::ExportRange;
use crate::observe::latency::errors::errno_name;
use crate::reactor::messages::command::ShardCommand;
use crate::successor::leftovers::{Leftovers, RestoredImage};
use headworks::Device;
use headworks_control::{RpcFault, answers, methods};

/// Longest wait until an image is written out whose partition table is to be read.
const TABLE_LIMIT: Duration = Duration::from_secs(60);

/// The method `add`, with the parameters of a client.
pub fn add_by_words(live: &LiveChanges, asked: &methods::Add) -> Result<answers::Added, RpcFault> {
    let mut spec = ExportSpec::parse(&asked.spec, false).map_err(|error| wrong(&error))?;
    spec.read_only = asked.read_only;
    spec.source = ExportSource::Control;
    spec.share.tenant = spec.share.tenant.filter(|name| !name.is_none());
    // Relative paths start at the client's folder.
    if let Some(folder) = &asked.cwd.0 {
        spec.set_folder(Path::new(folder));
    }
    add(live, spec)
}

/// Adds an export; clients may choose it when this returns.
pub fn add(live: &LiveChanges, spec: ExportSpec) -> Result<answers::Added, RpcFault> {
    add_opened(live, spec, None)
}

/// Adds an export, whose image may be open already.
fn add_opened(
    live: &LiveChanges,
    spec: ExportSpec,
    opened: Option<OpenedImage>,
) -> Result<answers::Added, RpcFault> {
    spec.check().map_err(|error| wrong(&error))?;
    let partition = partition_of_served(live, &spec)?;
    let (entry, mut notes) = match reserve(live, &spec, partition)? {
        Reserved::Serving(entry) => (*entry, Vec::new()),
        Reserved::Name(_reservation) => add_new(live, &spec, opened)?,
    };
    take_absent(live, &spec.name)?;
    tracing::info!("export {} was added", entry.shown_name());
    // It is served, but not where programs look for its file.
    notes.extend(live.directories.problems_of(entry.id));
    Ok(answers::Added { export: entry.shown_name().to_owned(), notes })
}

/// Adds exports of one image that was not open when the server started, as soon as it is; unless they were removed meanwhile.
pub fn add_late(live: &LiveChanges, exports: Vec<LateImage>) {
    for LateImage { spec, image, .. } in exports {
        let name = spec.name.clone();
        // Without an answer another attempt is made here.
        let opened = image.and_then(|image| image.recv().ok()).transpose();
        let is_absent = || live.tree.current().absent(&name).is_some();
        if !is_absent() {
            continue;
        }
        let added = opened.map_err(|error| wrong(&error));
        if let Err(fault) = added.and_then(|opened| add_opened(live, spec.clone(), opened))
            && is_absent()
        {
            let reason = fault.message().to_owned();
            tracing::warn!("export {} stays absent: {reason}", shown_name(&name));
            // A server that stops lists nothing.
            let _ = put_absent(live, AbsentExport { spec, reason });
        }
    }
}

/// The partition that an export names, if its image is served already: what is dirty of it is written out before its table is read.
fn partition_of_served(
    live: &LiveChanges,
    spec: &ExportSpec,
) -> Result<Option<ExportRange>, RpcFault> {
    let names_one = spec.share.partition > 0;
    let volume = spec.identity().filter(|_| names_one);
    let volume = volume.and_then(|identity| lock(&live.inventory).find(Some(identity)));
    let tree = live.tree.current();
    let served = volume.and_then(|it| tree.exports.iter().find(|export| export.volume == it));
    let Some(served) = served else { return Ok(None) };
    let all = write_out(live, vec![served.clone()], Instant::now() + TABLE_LIMIT)?;
    if let Some(Err(error)) = all.first().map_or(Some(Err(IoError::TimedOut)), |one| one.outcome) {
        let message = format!(
            "partition: {} serves the image, and what is dirty of it cannot be written out before its table is read: {error}",
            served.shown_name()
        );
        return Err(RpcFault::refused(errno_name(error), message));
    }
    let found = range::of_partition(spec, None, &Leftovers::default());
    found.map_err(|error| wrong(&error))
}

/// Serves an export of a volume in use, or reserves the name and the image of one that is to be opened.
fn reserve<'a>(
    live: &'a LiveChanges,
    spec: &ExportSpec,
    partition: Option<ExportRange>,
) -> Result<Reserved<'a>, RpcFault> {
    let addition = Addition::new(spec, spec.identity());
    let mut inventory = lock(&live.inventory);
    check_name(&inventory, &spec.name)?;
    live.settings.tenants().named(spec.share.tenant)?;
    let export = inventory.free_export().map_err(|error| wrong(&error))?;
    if let Some(other) = inventory.addition_of_image(&addition) {
        let message = format!(
            "the image is being opened for export {}; try again when that is added",
            shown_name(&other.name)
        );
        return Err(RpcFault::refused("EBUSY", message));
    }
    if let Some(volume) = inventory.find(addition.identity) {
        if inventory.is_abandoned(volume) {
            return Err(image_given_up(spec));
        }
        if inventory.is_leaving(volume) {
            return Err(image_being_removed(spec));
        }
        inventory.may_share(volume, spec).map_err(|error| wrong(&error))?;
        may_share_tenant(live, &inventory, volume, spec)?;
        if spec.share.partition > 0 && partition.is_none() {
            let message = "its image was opened meanwhile; try again";
            return Err(RpcFault::refused("EBUSY", message));
        }
        let entry = serve(live, &mut inventory, export, (volume, partition), spec)?;
        return Ok(Reserved::Serving(Box::new(entry)));
    }
    inventory.may_open(spec).map_err(|error| wrong(&error))?;
    inventory.adding.push(addition);
    Ok(Reserved::Name(Reservation { changes: live, name: spec.name.clone() }))
}

/// Adds an export of a new volume, whose name is reserved; after an error an image that was created is gone.
fn add_new(
    live: &LiveChanges,
    spec: &ExportSpec,
    opened: Option<OpenedImage>,
) -> Result<(ExportNode, Vec<String>), RpcFault> {
    let ImageToAdd { opened, restored, written } = open_image(live, spec, opened)?;
    let made = opened.made(&spec.spec);
    let done = look_up(spec, opened).and_then(|(opened, partition)| {
        serve_new(live, spec, ImageToAdd { opened, restored, written }, partition)
    });
    if done.is_err() {
        // No client has written to the new image.
        if let Some(made) = made {
            made.undo();
        }
        remove_unused_bases(live)?;
    }
    done
}

fn serve_new(
    live: &LiveChanges,
    spec: &ExportSpec,
    image: ImageToAdd,
    partition: Option<ExportRange>,
) -> Result<(ExportNode, Vec<String>), RpcFault> {
    let suspect = image.restored.suspect;
    let (volume, mut notes) = add_volume(live, &mut lock(&live.inventory), spec, None, image)?;
    notes.extend(keep(live, volume, suspect));
    live.shards.keeper().leftovers().remove_empty();
    let served = share_base(live, volume).and_then(|note| {
        notes.extend(note);
        let mut inventory = lock(&live.inventory);
        let export = inventory.free_export().map_err(|error| wrong(&error))?;
        serve(live, &mut inventory, export, (volume, partition), spec)
    });
    match served {
        Ok(entry) => Ok((entry, notes)),
        Err(fault) => {
            let keeper = live.shards.keeper();
            keeper.forget(volume);
            keeper.undo(volume);
            let mut inventory = lock(&live.inventory);
            // A volume without an export could never be removed.
            if let Some(record) = inventory.volumes.remove(&volume.0) {
                let _ = forget_volume(live, &mut inventory, volume, record.config);
            }
            Err(fault)
        }
    }
}

/// The partition that an export names, in the image that was just opened.
fn look_up(
    spec: &ExportSpec,
    opened: OpenedImage,
) -> Result<(OpenedImage, Option<ExportRange>), RpcFault> {
    if spec.share.partition == 0 {
        return Ok((opened, None));
    }
    let again = || OpenedImage::new(&spec.spec, spec.writes());
    let found = range::with_table(opened, spec, again).and_then(|(opened, table)| {
        let found = range::of_partition(spec, Some(&table), &Leftovers::default());
        Ok((opened, found?))
    });
    found.map_err(|error| wrong(&error))
}

/// Prepares for dirty data of a volume that no export leads to yet; returns a sentence if its image cannot be marked.
fn keep(live: &LiveChanges, volume: VolumeId, suspect: bool) -> Option<String> {
    let known = |entry: &VolumeEntry| (entry.origin.clone(), entry.config.options);
    let (origin, options) = lock(&live.inventory).volumes.get(&volume.0).map(known)?;
    let note = live.shards.keeper().open(volume, &origin, &options);
    if suspect {
        live.shards.keeper().set_suspect(volume, true);
    }
    note
}

/// Checks that a further export of an image names the tenant of the others.
fn may_share_tenant(
    live: &LiveChanges,
    inventory: &Inventory,
    volume: VolumeId,
    spec: &ExportSpec,
) -> Result<(), RpcFault> {
    let tenant = live.settings.tenants().named(spec.share.tenant)?;
    let exports = inventory.exports.lock();
    let mut others = exports.values().filter(|other| other.volume == volume);
    let Some(other) = others.find(|other| other.now.tenant != tenant) else { return Ok(()) };
    let name = other.now.options.tenant;
    let name = name.map_or("none".to_owned(), |name| name.to_string());
    let message = format!(
        "the image is served as {} already, with the tenant {name}; an image belongs to one tenant",
        shown_name(&other.spec.name)
    );
    Err(RpcFault::refused("EINVAL", message))
}

fn check_name(inventory: &Inventory, name: &str) -> Result<(), RpcFault> {
    let name = shown_name(name);
    let is_called = |record: &&Export| record.is_named() && shown_name(&record.spec.name) == name;
    if inventory.addition(name).is_some() {
        return Err(being_added(name));
    }
    let exports = inventory.exports.lock();
    let mut others = exports.values().filter(is_called);
    match others.next().map(|record| &record.state) {
        None | Some(ExportState::Abandoned) => Ok(()),
        Some(ExportState::Serving) => {
            let message = format!("an export `{name}` exists already; remove it first");
            Err(RpcFault::refused("EEXIST", message))
        }
        Some(ExportState::Leaving) => Err(being_removed(name)),
        Some(ExportState::Stuck(_)) => {
            let message =
                format!("the removal of export `{name}` is incomplete; `remove {name}` again");
            Err(RpcFault::refused("EBUSY", message))
        }
    }
}

/// Opens an image, and writes to it what dead servers have left of it. The lock of the inventory is not held.
pub(super) fn open_image(
    live: &LiveChanges,
    spec: &ExportSpec,
    opened: Option<OpenedImage>,
) -> Result<ImageToAdd, RpcFault> {
    let wrong = |error| wrong(&error);
    let open = || OpenedImage::new(&spec.spec, spec.writes());
    let opened = opened.map_or_else(open, Ok).map_err(wrong)?;
    let made = opened.made(&spec.spec);
    let leftovers = live.shards.keeper().leftovers();
    let restored = opened.recover(spec, leftovers).and_then(|restored| {
        let written = restored.pending.iter().map(|pending| pending.write());
        Ok((written.collect::<Result<Vec<String>, _>>()?, restored))
    });
    let (written, restored) = match restored {
        Ok(restored) => restored,
        Err(error) => {
            if let Some(made) = made {
                made.undo();
            }
            return Err(wrong(error));
        }
    };
    let mut written = written;
    written.extend(leftovers.settle_strays());
    Ok(ImageToAdd { opened, restored, written })
}

/// Adds the volume of an image that was opened; on the shard `home`, if that is given. It is not marked yet.
pub(super) fn add_volume(
    live: &LiveChanges,
    inventory: &mut Inventory,
    spec: &ExportSpec,
    home: Option<ShardId>,
    image: ImageToAdd,
) -> Result<(VolumeId, Vec<String>), RpcFault> {
    // Others may have taken the last id while it was opened.
    inventory.may_open(spec).map_err(|error| wrong(&error))?;
    let ImageToAdd { opened, restored, written } = image;
    let Placement { volume, mut config, device, owner } =
        inventory.place(spec, &opened).map_err(|error| wrong(&error))?;
    config.home = home.unwrap_or(config.home);
    let (mut notes, mut origin) = (opened.notes.clone(), opened.origin(&spec.spec));
    origin.caching = spec.caching();
    notes.extend(restored.notes);
    notes.extend(written);
    let mut watched = opened.watched(volume);
    let (mut image, common) = (None, opened.common(spec));
    let blocks = partial_blocks(&config.options, opened.block_size());
    if let Some(queue) = device {
        let (_, body) = opened.into_device(&spec.spec, volume);
        let blocks = blocks.map(|blocks| (volume, blocks));
        let body = taking_parts(body, blocks.into_iter().collect(), common.is_some());
        let config_of = DeviceConfig { owner, queue };
        add_device(live, config.device, config_of, body)?;
        let name = spec.device.as_ref().map(|named| named.name.clone());
        let record = DeviceEntry { config: config_of, common, name };
        inventory.devices.insert(config.device.0, record);
    } else {
        image = opened.joins().ok().map(|(_, image)| joining(image, blocks));
    }
    for shard in live.shards.ids_from(owner) {
        let order = ShardCommand::AddVolume {
            volume,
            config,
            image: image.take_if(|_| shard == owner),
            watched: watched.take_if(|_| shard == config.home),
        };
        if let Err(error) = live.shards.command(shard, order)? {
            forget_volume(live, inventory, volume, config)?;
            return Err(refused(&error));
        }
    }
    if restored.suspect {
        live.shards.tell(owner, Control::Suspect { volume });
    }
    inventory.volumes.insert(volume.0, VolumeEntry::new(config, origin));
    Ok((volume, notes))
}

fn add_device(
    live: &LiveChanges,
    device: DeviceId,
    config: DeviceConfig,
    body: Box<dyn Device>,
) -> Result<(), RpcFault> {
    let mut body = Some(body);
    for shard in live.shards.ids_from(config.owner) {
        let body = body.take_if(|_| shard == config.owner);
        if let Err(error) =
            live.shards.command(shard, ShardCommand::AddDevice { device, config, body })?
        {
            forget_device(live, device, config.owner)?;
            return Err(refused(&error));
        }
    }
    Ok(())
}

/// Undoes a change that a shard refused; the other shards ignore what they do not have.
fn forget_volume(
    live: &LiveChanges,
    inventory: &mut Inventory,
    volume: VolumeId,
    config: VolumeConfig,
) -> Result<(), RpcFault> {
    for shard in live.shards.ids_from(config.home) {
        let _ = live
            .shards
            .command(shard, ShardCommand::RemoveVolume { volume, device: config.device })?;
    }
    let mut others = inventory.volumes.values();
    if !others.any(|other| other.config.device == config.device)
        && let Some(record) = inventory.devices.remove(&config.device.0)
    {
        forget_device(live, config.device, record.config.owner)?;
    }
    Ok(())
}

fn forget_device(live: &LiveChanges, device: DeviceId, owner: ShardId) -> Result<(), RpcFault> {
    for shard in live.shards.ids_from(owner).into_iter().rev() {
        let _ = live.shards.command(shard, ShardCommand::RemoveDevice { device })?;
    }
    Ok(())
}

fn serve(
    live: &LiveChanges,
    inventory: &mut Inventory,
    export: ExportId,
    (volume, partition): (VolumeId, Option<ExportRange>),
    spec: &ExportSpec,
) -> Result<ExportNode, RpcFault> {
    let record = inventory.volumes.get(&volume.0).ok_or_else(stopping)?;
    let (config, what) = (record.config, &record.origin.what);
    // The volume may have grown since it was added.
    let of_volume = |(id, other): (&u16, &Export)| (other.volume == volume).then_some(*id);
    let other = inventory.exports.lock().iter().find_map(of_volume);
    let size = match other.map(|id| export_report(live, ExportId(id))).transpose()? {
        Some(Some(report)) => report.volume_size.unwrap_or(config.options.size),
        _ => config.options.size,
    };
    let device = inventory.devices.get(&config.device.0).ok_or_else(stopping)?.config;
    let range = range::of_export(spec, size, what, partition).map_err(|error| wrong(&error))?;
    range::check_blocks(spec, range, &config).map_err(|error| wrong(&error))?;
    let assembled = assembled(spec, (volume, range), what, size);
    let tenant = live.settings.tenants().named(spec.share.tenant)?;
    let of_tenant = (tenant, live.settings.tenant_options(tenant));
    let served = served(&assembled, (export, of_tenant), &config, size, inventory.serial);
    let record = Export::new(spec, tenant, (volume, &config.options));
    inventory.exports.lock().insert(export.0, record);
    // Shard 0 lists exports to clients: it is told last, when all others know the export.
    for shard in live.shards.ids().rev() {
        let order = ShardCommand::Serve { export: Box::new(served.clone()) };
        let told = live.shards.command(shard, order);
        if let Err(fault) = told.and_then(|told| told.map_err(|error| refused(&error))) {
            inventory.exports.lock().remove(&export.0);
            return Err(fault);
        }
    }
    inventory.serial += 1;
    let entry = ExportNode {
        id: export,
        name: spec.name.clone(),
        volume,
        device: config.device,
        home: config.home,
        range,
        mode: config.options.mode,
        on_error: config.options.on_error,
        read_only: !spec.writes() || config.options.read_only,
        volatile: device.queue.write_cache && !config.options.read_only,
    };
    let origin = inventory.volumes.get(&volume.0).map(|it| &it.origin);
    let remote = origin.and_then(|origin| origin.remote.clone());
    let model = origin.and_then(|origin| origin.model.clone());
    live.tree.change(|tree| {
        tree.exports.push(entry.clone());
        let links = (remote.as_ref(), model.as_ref());
        tree.put_volume(volume, (config.device, device.owner), links);
    });
    live.settings.divide_parts()?;
    Ok(entry)
}

/// An export that is served at once, or one whose image is to be opened.
enum Reserved<'a> {
    Serving(Box<ExportNode>),
    Name(Reservation<'a>),
}

/// Keeps the name of an export that is being added.
struct Reservation<'a> {
    changes: &'a LiveChanges,
    name: String,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let name = &self.name;
        lock(&self.changes.inventory).adding.retain(|other| other.name != *name);
    }
}

/// An image that was opened, with what dead servers had left of it.
pub(super) struct ImageToAdd {
    opened: OpenedImage,
    restored: RestoredImage,
    /// What was written to it, a sentence each.
    written: Vec<String>,
}

/// The error for an export that is being added.
pub(super) fn being_added(name: &str) -> RpcFault {
    let name = shown_name(name);
    let message = format!("export {name} is being added; try again when its image is open");
    RpcFault::refused("EBUSY", message)
}

/// The error for an image whose last export was given up.
fn image_given_up(spec: &ExportSpec) -> RpcFault {
    let name = &spec.name;
    let message = format!(
        "the image of `{name}` is still open for an export that was given up (remove --abandon); try again when its device has answered"
    );
    RpcFault::refused("EBUSY", message)
}

/// The error for an image whose last export is being removed.
fn image_being_removed(spec: &ExportSpec) -> RpcFault {
    let name = &spec.name;
    let message = format!(
        "the image of `{name}` is being closed after its last export was removed; try again shortly"
    );
    RpcFault::refused("EBUSY", message)
}
