//! `snapshot`: what an overlay was becomes a base under a new name, and a new, empty overlay is written from then on.
//!
//! ```text
//!   freeze, as for `freeze` -> new top made and put in place (`OverlaySnapshot`) -> device stacked, file watched -> thaw
//!                                   `-- any of them fails: the names are as they were, thaw --'
//! ```
//!
//! Clients see a pause of their writes for a flush and some small files; reads go on. The export's path names the newest layer before
//! and after, so no configuration changes. The freeze has a time limit far above all steps: it ends only if this thread does.

use std::time::{Duration, Instant};

use headworks_core::ConfigError;
use headworks_images::{OverlayDevice, OverlayOptions, OverlaySnapshot};
use std::path::{Path, PathBuf};

use super::freeze::{bring_to_rest, close_gates, reopen, wait_for_writes};
use super::{LiveChanges, PAUSE, errno_of};
use crate::control::inventory::VolumeEntry;
use crate::control::tree::{ExportNode, lock};
use crate::exports::assemble::WatchedFile;
use crate::exports::assemble::image::{OpenedImage, Opening, VolumeOrigin};
use crate::reactor::messages::command::ShardCommand;
use crate::spec::{BaseDevice, Spec};
use crate::successor::leftovers::Leftovers;
use headworks_control::{RpcFault, answers, methods};

/// Longest time that clients wait, while everything is written out.
const LIMIT: Duration = Duration::from_secs(60);
/// Time limit of the freeze itself, for a control thread that ends in between.
const FREEZE: Duration = Duration::from_secs(600);
/// How long a device is asked again that is flushing.
const FLUSHING: Duration = Duration::from_secs(5);

/// The method `snapshot`, with the parameters of a client.
pub fn snapshot(
    live: &LiveChanges,
    asked: &methods::Snapshot,
) -> Result<answers::Snapshotted, RpcFault> {
    let tree = live.tree.current();
    let entry = tree.find_export(&asked.export)?;
    let (path, options, origin) = overlay_of(live, entry)?;
    let kept = path.parent().unwrap_or(Path::new("")).join(&asked.file);
    has_room_for_a_layer(&path, &options)?;
    let since = Instant::now();
    let images = [entry.clone()];
    close_gates(live, &images, FREEZE)?;
    let done = bring_to_rest(live, &images, since + LIMIT).and_then(|bytes| {
        Ok((bytes, stack_at_rest(live, entry, (&path, &options), &origin, &kept)?))
    });
    reopen(live, &images);
    let (bytes, kept) = done?;
    let seconds = since.elapsed().as_secs_f64();
    let name = entry.shown_name();
    tracing::info!("export {name}: a snapshot was made: {}", kept.display());
    let (export, file) = (name.to_owned(), kept.to_string_lossy().into_owned());
    Ok(answers::Snapshotted { export, file, bytes, seconds })
}

/// The overlay of an export that can be written.
fn overlay_of(
    live: &LiveChanges,
    entry: &ExportNode,
) -> Result<(PathBuf, OverlayOptions, VolumeOrigin), RpcFault> {
    let name = entry.shown_name();
    let refused = |why: &str| Err(RpcFault::refused("EINVAL", format!("{name} {why}")));
    let inventory = lock(&live.inventory);
    let Some(record) = inventory.volumes.get(&entry.volume.0) else {
        return refused("is gone");
    };
    match &record.origin.spec.base {
        _ if record.config.options.read_only => {
            refused("is read-only: a copy of its files is a snapshot")
        }
        BaseDevice::Overlay { path, options, .. } => {
            Ok((path.clone(), *options, record.origin.clone()))
        }
        _ => refused(
            "is no overlay; `headworks image create --base IMAGE FILE` makes one, to be served as overlay:path=FILE",
        ),
    }
}

/// Puts a new top in place, again while the device is not at rest: a freeze holds writes, and a client's flush may be in flight.
fn stack_at_rest(
    live: &LiveChanges,
    entry: &ExportNode,
    top: (&Path, &OverlayOptions),
    origin: &VolumeOrigin,
    kept: &Path,
) -> Result<PathBuf, RpcFault> {
    let since = Instant::now();
    loop {
        match stack(live, entry, top, origin, kept) {
            Err(fault) if fault.errno() == Some("EBUSY") && since.elapsed() < FLUSHING => {
                std::thread::sleep(PAUSE);
            }
            done => return done,
        }
    }
}

/// Puts a new top in place; returns the path of the layer that is kept. After an error everything is as before.
fn stack(
    live: &LiveChanges,
    entry: &ExportNode,
    (path, options): (&Path, &OverlayOptions),
    origin: &VolumeOrigin,
    kept: &Path,
) -> Result<PathBuf, RpcFault> {
    let gone = || RpcFault::refused("ENOENT", format!("{} is gone", entry.shown_name()));
    let open = origin.watch.as_ref().ok_or_else(gone)?;
    let (mut snapshot, device) =
        OverlaySnapshot::prepare(path, open, kept, options).map_err(refused)?;
    let stacked =
        snapshot.put_in_place().map_err(refused).and_then(|()| stack_device(live, entry, device));
    if let Err(fault) = stacked {
        return match snapshot.undo() {
            Ok(()) => Err(fault),
            Err(error) => Err(refused(error)),
        };
    }
    let kept = snapshot.kept().to_owned();
    note_new_top(live, entry, &origin.spec, snapshot);
    Ok(kept)
}

fn stack_device(
    live: &LiveChanges,
    entry: &ExportNode,
    top: Box<OverlayDevice>,
) -> Result<(), RpcFault> {
    let (volume, device) = (entry.volume, entry.device);
    let owner = live.tree.current().owner(entry);
    // If the freeze was ended meanwhile there may be changes that no flush covers.
    wait_for_writes(live, entry, Instant::now() + LIMIT)?;
    let order = ShardCommand::Stack { volume, device, top };
    live.shards.command(owner, order)?.map(drop).map_err(|_| {
        let message = format!(
            "export {}: it was thawed meanwhile, or is flushed all the time; try again",
            entry.shown_name()
        );
        RpcFault::refused("EBUSY", message)
    })
}

/// Remembers which file is served now. It is new and the same to clients, so nothing here can fail.
fn note_new_top(live: &LiveChanges, entry: &ExportNode, spec: &Spec, snapshot: OverlaySnapshot) {
    let (identity, watch) = snapshot.finish();
    let volume = entry.volume;
    let seen = OpenedImage::by(Opening::Inspect, spec, true, &Leftovers::default());
    let known = |record: &VolumeEntry| (record.origin.clone(), record.config.options);
    let known = lock(&live.inventory).volumes.get(&volume.0).map(known);
    let Some((mut origin, options)) = known else { return };
    if let Ok(seen) = seen {
        origin.what = seen.origin(spec).what;
    }
    origin.identity = Some(identity);
    origin.watch = Some(watch.clone());
    if let Some(note) = live.shards.keeper().open(volume, &origin, &options) {
        tracing::warn!("{note}");
    }
    if let Some(record) = lock(&live.inventory).volumes.get_mut(&volume.0) {
        record.origin = origin;
    }
    let file = WatchedFile::of_fixed_size(volume, watch);
    // A shard that has ended watches nothing.
    let _ = live.shards.command(entry.home, ShardCommand::WatchInstead { volume, file });
}

/// Refuses a snapshot of the highest layer that there may be.
fn has_room_for_a_layer(path: &Path, options: &OverlayOptions) -> Result<(), RpcFault> {
    let options = OverlayOptions { read_only: true, ..*options };
    let open = headworks_images::OpenOverlay::inspect(path, &options).map_err(refused)?;
    open.check_room_above().map_err(refused)
}

fn refused(error: ConfigError) -> RpcFault {
    RpcFault::refused(errno_of(&error), error.message)
}
