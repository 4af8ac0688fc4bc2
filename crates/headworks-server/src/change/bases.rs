//! The volumes of overlays' bases: all overlays on one base, at home on one shard, share what is cached of it.
//!
//! ```text
//!   an overlay with a cache, unwrapped --> volume of its base: found, or opened and added (it may be an overlay itself)
//!       --> SetBase: the shard notes what is changed --> own blocks of the open overlay --> ReadBase: reads go on at the base
//!   the last overlay on it is removed --> the volume of the base is removed, and its file closed
//! ```
//!
//! Which blocks are an overlay's own is read after the shard has begun to note changes, so none is missed. A base that cannot be shared is
//! no error: its overlays read it by themselves, as before, and a sentence says so. No client sees these volumes: they have no export.
//!
//! Opening a base and reading which blocks are an overlay's own wait for a disk or a network, so the lock of the inventory is not held then;
//! another lock orders additions of overlays among themselves, and no base counts as unused while one is in progress.
//!
//! Invariant: the volume of a base is there as long as a volume is on it.

use std::time::Instant;

use headworks::FileOptions;
use headworks_core::{VolumeConfig, VolumeId, WriteMode};
use headworks_house::Identity;
use headworks_images::formats::{ImageFormat, ImageOptions};
use headworks_images::{OverlayBase, OverlayBaseKind, REMOTE_BASE};

use super::add::{add_volume, open_image};
use super::remove::{LEAVING, PAUSE_MAX};
use super::{LiveChanges, PAUSE, close, refused};
use crate::control::inventory::{BaseKey, Inventory};
use crate::control::shards::stopping;
use crate::control::tree::lock;
use crate::exports::assemble::ExportSpec;
use crate::reactor::messages::command::{Released, ShardCommand};
use crate::spec::{BaseDevice, Spec, base_device};
use headworks_control::RpcFault;

/// Words of own blocks in one command, which takes a shard well below a millisecond.
const WORDS: usize = 8192;

/// The specification that opens a base as an export would.
fn spec_of(base: &OverlayBase) -> Option<Spec> {
    let (path, options) = (base.path().to_owned(), base.options());
    let base = match base.kind() {
        OverlayBaseKind::Raw => {
            let options = FileOptions { read_only: true, size: None, direct: options.direct };
            BaseDevice::File { path, options, raw: true }
        }
        OverlayBaseKind::Overlay => BaseDevice::Overlay { path, options: *options, new: None },
        OverlayBaseKind::Image(REMOTE_BASE) => base_device(&path).ok()?,
        OverlayBaseKind::Image(name) => {
            let format = ImageFormat::ALL.into_iter().find(|format| format.name() == name)?;
            let (outside, direct) = (options.base_anywhere, options.direct);
            BaseDevice::Image { path, options: ImageOptions { format, outside, direct } }
        }
    };
    Some(Spec { wrappers: Vec::new(), base })
}

/// Lets all overlays share what is cached of their bases; returns a sentence for each that cannot.
pub(crate) fn share_bases(live: &LiveChanges) -> Vec<String> {
    let volumes: Vec<VolumeId> =
        lock(&live.inventory).volumes.keys().copied().map(VolumeId).collect();
    let shared = volumes.into_iter().map(|volume| share_base(live, volume));
    // Without an answer the server stops.
    shared.filter_map(|note| note.ok().flatten()).collect()
}

/// Lets an overlay share what is cached of its base; returns a sentence if it cannot.
///
/// # Errors
/// The server stops.
pub(super) fn share_base(live: &LiveChanges, volume: VolumeId) -> Result<Option<String>, RpcFault> {
    if own_base(live, volume).is_none() {
        return Ok(None);
    }
    let sharing = lock(&live.sharing);
    lock(&live.inventory).is_sharing = true;
    let done = share_own_base(live, volume);
    lock(&live.inventory).is_sharing = false;
    drop(sharing);
    // Removals meanwhile have left them.
    remove_unused_bases(live)?;
    done
}

/// The base of an overlay that could share what is cached of it, and does not yet.
fn own_base(live: &LiveChanges, volume: VolumeId) -> Option<(OverlayBase, VolumeConfig)> {
    let inventory = lock(&live.inventory);
    let entry = inventory.volumes.get(&volume.0)?;
    let shares = entry.base.is_none() && entry.config.options.mode != WriteMode::None;
    let base = entry.origin.base.clone().filter(|_| shares)?;
    Some((base, entry.config))
}

/// As [`share_base`], for the only thread that does it.
fn share_own_base(live: &LiveChanges, volume: VolumeId) -> Result<Option<String>, RpcFault> {
    let Some((base, config)) = own_base(live, volume) else { return Ok(None) };
    let fault = match put_on_base(live, (volume, config), &base) {
        Ok(()) => return Ok(None),
        Err(fault) if fault.errno() == stopping().errno() => return Err(fault),
        Err(fault) => fault,
    };
    let path = base.path().display();
    let why = fault.message();
    Ok(Some(format!("{path} is cached for each overlay on it by itself: {why}")))
}

fn put_on_base(
    live: &LiveChanges,
    (volume, config): (VolumeId, VolumeConfig),
    base: &OverlayBase,
) -> Result<(), RpcFault> {
    let below = base_volume(live, config, base)?;
    let order = ShardCommand::SetBase { volume, base: below };
    carry_out_at(live, config, order)?;
    // From here on the base stays, whatever comes next.
    if let Some(entry) = lock(&live.inventory).volumes.get_mut(&volume.0) {
        entry.base = Some(below);
    }
    let own = base.own_blocks().map_err(|error| {
        RpcFault::refused("EIO", format!("its overlay's bitmap cannot be read: {error}"))
    })?;
    for words in own.chunks(WORDS) {
        let order = ShardCommand::OwnBlocks { volume, words: words.to_vec() };
        carry_out_at(live, config, order)?;
    }
    carry_out_at(live, config, ShardCommand::ReadBase { volume })
}

fn carry_out_at(
    live: &LiveChanges,
    config: VolumeConfig,
    order: ShardCommand,
) -> Result<(), RpcFault> {
    live.shards.command(config.home, order)?.map(drop).map_err(|error| refused(&error))
}

/// The volume of a base for an overlay with this configuration; it is added if there is none.
fn base_volume(
    live: &LiveChanges,
    above: VolumeConfig,
    base: &OverlayBase,
) -> Result<VolumeId, RpcFault> {
    let invalid = |message: String| RpcFault::refused("EINVAL", message);
    let spec = spec_of(base).ok_or_else(|| invalid("its format is not known".into()))?;
    let identity = match &spec.base {
        BaseDevice::Nbd(remote) => remote.identity(),
        BaseDevice::Rbd(rbd) => rbd.identity(),
        _ => Identity::of(base.path()).map_err(|error| invalid(error.to_string()))?,
    };
    let key = BaseKey { spec, identity, home: above.home };
    if let Some(volume) = lock(&live.inventory).find_base(&key) {
        return Ok(volume);
    }
    let export = ExportSpec::new(base.path().display().to_string(), key.spec.clone(), true);
    let image = open_image(live, &export, None)?;
    let mut guard = lock(&live.inventory);
    let inventory = &mut *guard;
    let (volume, _) = add_volume(live, inventory, &export, Some(above.home), image)?;
    live.shards.keeper().leftovers().remove_empty();
    let entry = inventory.volumes.get_mut(&volume.0).ok_or_else(stopping)?;
    entry.base_key = Some(key);
    let device = entry.config.device;
    let owner = inventory.devices.get(&device.0).ok_or_else(stopping)?.config.owner;
    live.tree.change(|tree| {
        tree.bases.push(volume);
        tree.put_volume(volume, (device, owner), (None, None));
    });
    drop(guard);
    // Before anything is put on it.
    if let Some(note) = share_own_base(live, volume)? {
        tracing::info!("{note}");
    }
    Ok(volume)
}

/// Removes the volumes of bases on which no volume is any more. One that is still in use after a minute is left to the next removal.
pub(super) fn remove_unused_bases(live: &LiveChanges) -> Result<(), RpcFault> {
    let (since, mut pause) = (Instant::now(), PAUSE);
    let mut released = Vec::new();
    loop {
        let mut inventory = lock(&live.inventory);
        let Some((volume, config)) = inventory.unused_base() else { break };
        let is_removed = remove_base(live, &mut inventory, (volume, config), &mut released)?;
        drop(inventory);
        if is_removed {
            continue;
        }
        if since.elapsed() > LEAVING {
            tracing::warn!("volume {} of a base without overlays stays in use", volume.0);
            break;
        }
        std::thread::sleep(pause);
        pause = PAUSE_MAX.min(2 * pause);
    }
    close(released);
    Ok(())
}

/// Removes a volume and, if nothing else is on it, its device; false if a shard has to be asked again.
fn remove_base(
    live: &LiveChanges,
    inventory: &mut Inventory,
    (volume, config): (VolumeId, VolumeConfig),
    released: &mut Vec<Released>,
) -> Result<bool, RpcFault> {
    let device = config.device;
    let owner = inventory.devices.get(&device.0).ok_or_else(stopping)?.config.owner;
    let mut shards = live.shards.ids_from(config.home);
    // The order that `Shard::change` requires; a shard that has removed it says that there is none.
    shards[1..].sort_by_key(|shard| *shard != owner);
    for shard in shards {
        match live.shards.command(shard, ShardCommand::RemoveVolume { volume, device })? {
            Ok(parts) => released.push(parts),
            Err(headworks_core::ChangeError::Busy(_)) => return Ok(false),
            Err(headworks_core::ChangeError::Invalid(_)) => {}
        }
    }
    live.tree.change(|tree| tree.take_volume(volume));
    if inventory.shares_device(volume) {
        inventory.volumes.remove(&volume.0);
        return Ok(true);
    }
    if let Some(record) = inventory.devices.get_mut(&device.0) {
        // No image may join it any more.
        record.common = None;
    }
    let mut shards = live.shards.ids_from(owner);
    shards.rotate_left(1);
    for shard in shards {
        match live.shards.command(shard, ShardCommand::RemoveDevice { device })? {
            Ok(parts) => released.push(parts),
            Err(headworks_core::ChangeError::Busy(_)) => return Ok(false),
            Err(headworks_core::ChangeError::Invalid(_)) => {}
        }
    }
    inventory.devices.remove(&device.0);
    inventory.volumes.remove(&volume.0);
    live.tree.change(|tree| tree.devices.retain(|known| known.id != device));
    Ok(true)
}
