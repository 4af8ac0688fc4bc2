//! The volumes of a server for the process that is to replace it, and the locks of their images.

use std::fs::File;
use std::sync::Arc;

use headworks_core::VolumeId;
use headworks_house::Identity;

use super::LiveChanges;
use crate::control::tree::{ExportNode, lock};
use crate::exports::assemble::image::VolumeOrigin;
use crate::exports::assemble::shown_name;
use crate::spec::{BaseDevice, Wrapper};
use crate::successor::handover::{HandedPartition, HandedRemote, HandedVolume};

/// The open file that holds the lock of an image.
type ImageLock = (Identity, Arc<File>);

/// Volumes that only this process can flush: connections to other servers do not move, and of an overlay the new process reads from the
/// file which blocks are its own.
pub fn volumes_to_flush(live: &LiveChanges) -> Vec<VolumeId> {
    let inventory = lock(&live.inventory);
    let is_served = |id: &u16| !inventory.is_abandoned(VolumeId(*id));
    let is_meant = |origin: &VolumeOrigin| {
        origin.remote.is_some() || matches!(origin.spec.base, BaseDevice::Overlay { .. })
    };
    let served = inventory.volumes.iter().filter(|(_, entry)| entry.base_key.is_none());
    let served = served.filter(|(id, _)| is_served(id));
    let meant = served.filter(|(_, entry)| is_meant(&entry.origin));
    meant.map(|(id, _)| VolumeId(*id)).collect()
}

/// Returns the volumes, and the locks of their images.
///
/// # Errors
/// Data of a volume are in the memory of this process, or in an image of a cluster.
pub fn volumes_to_hand_over(
    live: &LiveChanges,
) -> Result<(Vec<HandedVolume>, Vec<ImageLock>), String> {
    let (inventory, tree) = (lock(&live.inventory), live.tree.current());
    if let Some(addition) = inventory.adding.first() {
        let name = shown_name(&addition.name);
        return Err(format!("export {name} is being added; try again when its image is open"));
    }
    let (mut volumes, mut locks) = (Vec::new(), Vec::new());
    // The new process finds out by itself which bases are shared.
    let served = inventory.volumes.iter().filter(|(_, entry)| entry.base_key.is_none());
    // What was given up ends with this process.
    let served = served.filter(|(id, _)| !inventory.is_abandoned(VolumeId(**id)));
    for (id, entry) in served {
        let origin = &entry.origin;
        let why = match origin.spec.base {
            BaseDevice::Mem { .. } => {
                "are only in the memory of this process and would be lost; remove the export first"
            }
            _ if origin.spec.wrappers.iter().any(Wrapper::holds_writes) => {
                "are partly in the memory of this process (powercut:) and would be lost; remove the export first"
            }
            // Two clients cannot have its lock.
            BaseDevice::Rbd(_) => {
                "are in an image of a Ceph cluster, whose lock cannot be handed over; restart the server instead"
            }
            BaseDevice::File { .. }
            | BaseDevice::Image { .. }
            | BaseDevice::Overlay { .. }
            | BaseDevice::Nbd(_)
            | BaseDevice::Null { .. } => "",
        };
        let exports = inventory.exports.lock();
        let mut of_volume = exports.values().filter(|export| export.volume == VolumeId(*id));
        let name = of_volume.next().map_or("", |export| &export.spec.name);
        if !why.is_empty() {
            return Err(format!("the data of export {} {why}", shown_name(name)));
        }
        let remote = origin
            .identity
            .zip(origin.remote.as_ref())
            .map(|(identity, link)| HandedRemote { identity, export: link.export.clone() });
        let (place, options) = ((VolumeId(*id), entry.config.home), &entry.config.options);
        let volume = HandedVolume::new(place, name.to_owned(), origin, options, &volumes);
        let partition = |node: &ExportNode| {
            let number = exports.get(&node.id.0)?.spec.share.partition;
            let identity = origin.identity.filter(|_| number > 0)?;
            Some(HandedPartition { identity, number, range: node.range })
        };
        let nodes = tree.exports.iter().filter(|node| node.volume == VolumeId(*id));
        let partitions = nodes.filter_map(partition).collect();
        volumes.push(HandedVolume { remote, partitions, ..volume });
        let lock = origin.identity.zip(origin.watch.as_ref());
        locks.extend(lock.map(|(identity, image)| (identity, Arc::clone(image.lock()))));
    }
    Ok((volumes, locks))
}
