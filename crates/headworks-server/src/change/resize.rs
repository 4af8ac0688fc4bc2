//! `resize`: grows an export, by extending its file or by noticing that it grew. Clients name sizes of the export, of which the volume has
//! a range; what is compared and changed here are sizes of the volume.
//!
//! The file is asked and made longer without the lock of the inventory: its file system may take its time. What was checked before is
//! checked again after it.

use std::sync::Arc;

use headworks_core::{VolumeId, VolumeOptions};

use super::exports::export_report;
use super::freeze::check_not_frozen;
use super::remove::being_removed;
use super::{LiveChanges, refused};
use crate::control::exports::ExportState;
use crate::control::inventory::{Inventory, VolumeEntry};
use crate::control::tree::{ExportNode, lock};
use crate::reactor::messages::command::ShardCommand;
use crate::spec::BaseDevice;
use crate::spec::units::parse_size;
use headworks::house::display_size;
use headworks_control::param::Size;
use headworks_control::{RpcFault, answers, methods};
use headworks_house::SizeWatch;
use std::fmt;

/// The size that a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WantedSize {
    Exactly(u64),
    /// So many bytes more than the export has.
    More(u64),
    /// So many bytes fewer.
    Fewer(u64),
}

impl WantedSize {
    fn parse(word: &str) -> Result<Self, String> {
        match (word.strip_prefix('+'), word.strip_prefix('-')) {
            (Some(more), _) => parse_size(more).map(Self::More),
            (_, Some(fewer)) => parse_size(fewer).map(Self::Fewer),
            _ => parse_size(word).map(Self::Exactly),
        }
    }

    /// The size of an export that has `now` bytes; none if there is no such size.
    fn of(self, now: u64) -> Option<u64> {
        match self {
            Self::Exactly(size) => Some(size),
            Self::More(bytes) => now.checked_add(bytes),
            Self::Fewer(bytes) => now.checked_sub(bytes),
        }
    }
}

impl fmt::Display for WantedSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(size) => write!(f, "{size}"),
            Self::More(bytes) => write!(f, "+{bytes}"),
            Self::Fewer(bytes) => write!(f, "-{bytes}"),
        }
    }
}

/// A resize in progress. The lock of the inventory is not held; other resizes of the volume are refused while this lives.
struct Resizing<'a> {
    changes: &'a LiveChanges,
    entry: ExportNode,
    options: VolumeOptions,
    /// The smallest block of its image.
    block: u64,
    /// Handle of its file.
    watch: Option<SizeWatch>,
    /// The size of the volume before.
    now: u64,
    /// The size that the volume shall have.
    wanted: Option<u64>,
}

impl Drop for Resizing<'_> {
    fn drop(&mut self) {
        lock(&self.changes.inventory).resizing.retain(|volume| *volume != self.entry.volume);
    }
}

fn gone(entry: &ExportNode) -> RpcFault {
    RpcFault::refused("ENOENT", format!("{} is gone", entry.shown_name()))
}

/// The method `resize`, with the parameters of a client.
pub fn resize_by_words(
    live: &LiveChanges,
    asked: &methods::Resize,
) -> Result<answers::Resized, RpcFault> {
    let invalid = |message: String| RpcFault::refused("EINVAL", format!("size: {message}"));
    let size = match &asked.size {
        Size::Missing => None,
        Size::Word(word) => Some(WantedSize::parse(word).map_err(invalid)?),
        Size::Bytes(bytes) => Some(WantedSize::Exactly(*bytes)),
    };
    resize(live, &asked.export, size)
}

fn resize(
    live: &LiveChanges,
    name: &str,
    wanted: Option<WantedSize>,
) -> Result<answers::Resized, RpcFault> {
    let asked = begin_resize(live, name, wanted)?;
    let Resizing { entry, watch, now, wanted, .. } = &asked;
    let size = match watch {
        Some(watch) => size_of_file(entry, watch, (*wanted, *now, asked.block))?,
        None => wanted.ok_or_else(|| {
            let message = "it has the size it was given; say which it shall have";
            RpcFault::refused("EINVAL", format!("{}: {message}", entry.shown_name()))
        })?,
    };
    may_become(entry, *now, size, asked.options.size_max())?;
    if let Some(watch) = watch
        && wanted.is_some()
        && size > watch.current_size().unwrap_or(size)
    {
        if asked.options.read_only {
            let name = entry.shown_name();
            let message = format!("{name}: its image is open for reading alone");
            return Err(RpcFault::refused("EROFS", message));
        }
        lengthen(live, entry, watch, size)?;
    }
    if size > *now {
        finish_resize(live, name, &asked, size)?;
    }
    let of_export = |volume| entry.range.size(volume);
    let (size, before) = (of_export(size), of_export(*now));
    Ok(answers::Resized { export: entry.shown_name().to_owned(), size, before })
}

/// Finds out whether an export may be resized now, and keeps other resizes of it out.
fn begin_resize<'a>(
    live: &'a LiveChanges,
    name: &str,
    wanted: Option<WantedSize>,
) -> Result<Resizing<'a>, RpcFault> {
    let mut inventory = lock(&live.inventory);
    let entry = may_resize(live, &inventory, name)?;
    let report = export_report(live, entry.id)?;
    let now = report.and_then(|report| report.volume_size).unwrap_or_default();
    let Some(VolumeEntry { config, origin, .. }) = inventory.volumes.get(&entry.volume.0) else {
        return Err(gone(&entry));
    };
    if matches!(origin.spec.base, BaseDevice::Overlay { .. }) {
        let name = entry.shown_name();
        let message = format!(
            "{name} is an overlay, whose size does not change; `headworks image create --size` makes a larger one on it"
        );
        return Err(RpcFault::refused("EINVAL", message));
    }
    let (options, watch, block) = (config.options, origin.watch.clone(), origin.block_size.into());
    if inventory.resizing.contains(&entry.volume) {
        let name = entry.shown_name();
        let message = format!("{name} is being resized; try again when that is done");
        return Err(RpcFault::refused("EBUSY", message));
    }
    // No other resize comes between.
    let wanted = wanted.map(|wanted| size_of(&entry, now, wanted)).transpose()?;
    inventory.resizing.push(entry.volume);
    Ok(Resizing { changes: live, entry, options, block, watch, now, wanted })
}

/// The export, if it is served and not frozen.
fn may_resize(
    live: &LiveChanges,
    inventory: &Inventory,
    name: &str,
) -> Result<ExportNode, RpcFault> {
    let known = inventory.state(name);
    if known.is_some_and(|state| !matches!(state, ExportState::Serving)) {
        return Err(being_removed(name));
    }
    let entry = live.tree.current().find_export(name)?.clone();
    let report = export_report(live, entry.id)?;
    check_not_frozen(name, report.is_some_and(|report| report.frozen))?;
    Ok(entry)
}

/// Tells all shards of a size that the image has, unless the export has gone or has another image meanwhile.
fn finish_resize(
    live: &LiveChanges,
    name: &str,
    asked: &Resizing<'_>,
    size: u64,
) -> Result<(), RpcFault> {
    let mut inventory = lock(&live.inventory);
    let entry = may_resize(live, &inventory, name)?;
    let record = inventory.volumes.get_mut(&entry.volume.0);
    let file = |watch: &SizeWatch| Arc::as_ptr(watch.lock());
    let is_same = |record: &&mut VolumeEntry| {
        entry.volume == asked.entry.volume
            && record.origin.watch.as_ref().map(file) == asked.watch.as_ref().map(file)
    };
    let record = record.filter(is_same).ok_or_else(|| gone(&asked.entry))?;
    // Before a block behind the old end can be dirty.
    live.shards.keeper().resize(entry.volume, size);
    grow(live, &entry, size)?;
    record.config.options.size = size;
    let of_export = display_size(entry.range.size(size));
    tracing::info!("export {} has {of_export} now", entry.shown_name());
    Ok(())
}

/// The new size of an export of a file.
fn size_of_file(
    entry: &ExportNode,
    watch: &SizeWatch,
    (wanted, now, block): (Option<u64>, u64, u64),
) -> Result<u64, RpcFault> {
    let name = entry.shown_name();
    let present = watch.current_size().map_err(|error| {
        RpcFault::refused("EIO", format!("{name}: its image cannot be asked for its size: {error}"))
    })?;
    let present = present / block * block;
    let Some(size) = wanted else { return Ok(present) };
    if !size.is_multiple_of(block) {
        let message = format!("{name}: {size} is not a multiple of its block size {block}");
        return Err(RpcFault::refused("EINVAL", message));
    }
    if !watch.is_regular() && size != present {
        let message =
            format!("{name} is a disk of {present} bytes; leave the size away to serve all of it");
        return Err(RpcFault::refused("EINVAL", message));
    }
    if size < present && size >= now {
        let message = format!("{name}: its image has {present} bytes already; leave the size away");
        return Err(RpcFault::refused("EINVAL", message));
    }
    Ok(size)
}

fn lengthen(
    live: &LiveChanges,
    entry: &ExportNode,
    watch: &SizeWatch,
    size: u64,
) -> Result<(), RpcFault> {
    let volume = entry.volume;
    live.shards
        .command(entry.home, ShardCommand::Expect { volume, size })?
        .map_err(|error| refused(&error))?;
    watch.lengthen(size).map_err(|error| {
        let errno = match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EFBIG | libc::EDQUOT) => "ENOSPC",
            Some(libc::EBADF | libc::EINVAL | libc::EPERM | libc::EROFS) => "EROFS",
            _ => "EIO",
        };
        let name = entry.shown_name();
        RpcFault::refused(errno, format!("{name}: cannot grow the image: {error}"))
    })
}

/// Tells every shard, the owner of the device first.
fn grow(live: &LiveChanges, entry: &ExportNode, size: u64) -> Result<(), RpcFault> {
    let (volume, device): (VolumeId, _) = (entry.volume, entry.device);
    let owner = live.tree.current().device(device).map_or(entry.home, |device| device.owner);
    for shard in live.shards.ids_from(owner) {
        let order = ShardCommand::Grow { volume, device, size };
        live.shards.command(shard, order)?.map_err(|error| refused(&error))?;
    }
    Ok(())
}

/// The size of the volume with which the export has the size that is asked for; whether it may have it is checked as for one that was given.
fn size_of(entry: &ExportNode, now: u64, wanted: WantedSize) -> Result<u64, RpcFault> {
    let (name, range) = (entry.shown_name(), entry.range);
    if range.has_length() {
        let message = format!(
            "{name} is a part of its image with a length of its own (length= or partition=), which does not change; resize an export of the whole image"
        );
        return Err(RpcFault::refused("EINVAL", message));
    }
    let now = range.size(now);
    let size = wanted.of(now).and_then(|size| size.checked_add(range.start()));
    size.ok_or_else(|| {
        let message = format!("{name} has {now} bytes, and {wanted} is not possible");
        RpcFault::refused("EINVAL", message)
    })
}

fn may_become(entry: &ExportNode, now: u64, size: u64, most: u64) -> Result<(), RpcFault> {
    let name = entry.shown_name();
    if size < now {
        let [now, size] = [now, size].map(|volume| entry.range.size(volume));
        let message = format!(
            "{name} has {now} bytes and cannot shrink while clients may use them; serve {size} bytes under another name"
        );
        return Err(RpcFault::refused("EINVAL", message));
    }
    if size > most {
        let most = display_size(most);
        let message = format!("{name}: {size} bytes exceed its maximum of {most}");
        return Err(RpcFault::refused("EINVAL", message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::WantedSize;

    #[test]
    fn sign_makes_a_size_relative() {
        let size = |word: &str| WantedSize::parse(word).map(|wanted| wanted.of(1 << 20));
        assert_eq!(size("3M"), Ok(Some(3 << 20)));
        assert_eq!(size("+512K"), Ok(Some(3 << 19)));
        assert_eq!(size("-512K"), Ok(Some(1 << 19)));
        assert_eq!(size("-2M"), Ok(None));
        assert_eq!(WantedSize::More(u64::MAX).of(1), None);
        for wrong in ["+", "-", "+-1G", "++1G", "+x"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn relative_size_prints_with_its_sign() {
        let word = |word: &str| WantedSize::parse(word).unwrap().to_string();
        assert_eq!(
            (word("+1K"), word("-1K"), word("1K")),
            ("+1024".into(), "-1024".into(), "1024".into())
        );
    }
}
