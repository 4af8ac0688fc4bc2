//! Which range of its volume an export serves: its keys `offset` and `length`, checked against the volume, or `partition`, looked up in the
//! table of partitions.
//!
//! The table is read once, when the export is opened, from the image as it is then, below its wrappers: what an overlay or an image of a
//! format has there, and what a killed server left, which is written before. The image is opened a second time for it, for reading alone;
//! it may be in use.

use std::time::Duration;

use headworks_core::{ConfigError, ShardConfig, VolumeConfig, VolumeId, WriteMode};

use super::image::{OpenedImage, Opening};
use super::{AssembledExport, ExportSpec, shown_name};
use crate::exports::device_reader::DeviceReader;
use crate::exports::export_range::ExportRange;
use crate::exports::partition_table::PartitionTable;
use crate::spec::{BaseDevice, Spec};
use crate::successor::leftovers::Leftovers;
use headworks::house::display_size;

/// Two seconds in all, beside what the attempts take.
const PATIENCE_TRIES: u32 = 80;
const PATIENCE_PAUSE: Duration = Duration::from_millis(25);

/// The key of errors about partitions.
pub(super) const PARTITION: &str = "partition";

/// A table of partitions, or why there is none.
pub(crate) type Table = Result<PartitionTable, ConfigError>;

/// Reads the table of an image. It may be in use.
fn read_table(export: &ExportSpec) -> Table {
    let mut base = export.spec.base.clone();
    if let BaseDevice::Nbd(remote) = &mut base {
        remote.options.connections = 1;
    }
    let spec = Spec { wrappers: Vec::new(), base };
    let opened = OpenedImage::by(Opening::Read, &spec, false, &Leftovers::default())?;
    let (what, options) = (shown_image(export, opened.what()), opened.options);
    let (queue, device) = opened.into_device(&spec, VolumeId(0));
    let mut reader = DeviceReader::start(device, queue, options)?;
    let mut read = |offset, bytes: &mut [u8]| reader.read_at(offset, bytes);
    let table = PartitionTable::read(options.size, &mut read);
    table.map_err(|why| ConfigError::new(PARTITION, format!("{what} {why}")))
}

/// Reads the table of an image that was just opened. A remote is opened again after it, since its server may permit one client.
///
/// # Errors
/// It cannot be opened again.
pub(crate) fn with_table(
    opened: OpenedImage,
    export: &ExportSpec,
    open_again: impl FnMut() -> Result<OpenedImage, ConfigError>,
) -> Result<(OpenedImage, Table), ConfigError> {
    if !matches!(export.spec.base, BaseDevice::Nbd(_)) {
        return Ok((opened, read_table(export)));
    }
    drop(opened);
    let table = patiently(|| read_table(export));
    Ok((patiently(open_again)?, table))
}

/// Tries again for a moment if a remote refuses: it may not have noticed that its only client has left.
fn patiently<T>(mut attempt: impl FnMut() -> Result<T, ConfigError>) -> Result<T, ConfigError> {
    for _ in 0..PATIENCE_TRIES {
        match attempt() {
            Err(error) if error.option == "uri" => std::thread::sleep(PATIENCE_PAUSE),
            ended => return ended,
        }
    }
    attempt()
}

/// The range of the partition that an export names; none if it names none. One that a running server hands over is that which its clients
/// have; others are looked up in `table`, or in that of the image as it is now.
///
/// # Errors
/// The image has no such partition, or cannot be read.
pub(crate) fn of_partition(
    export: &ExportSpec,
    table: Option<&Table>,
    leftovers: &Leftovers,
) -> Result<Option<ExportRange>, ConfigError> {
    let number = export.share.partition;
    if number == 0 {
        return Ok(None);
    }
    if let Some(range) = handed(export, leftovers) {
        return Ok(Some(range));
    }
    let read;
    let table = match table {
        Some(table) => table,
        None => {
            read = read_table(export);
            &read
        }
    };
    let found = table.as_ref().map_err(Clone::clone)?.find(number);
    let wrong = |why| {
        let what = shown_image(export, "the image");
        ConfigError::new(PARTITION, format!("{what} {why}"))
    };
    found.map(|(start, len)| Some(ExportRange::new(start, Some(len)))).map_err(wrong)
}

/// The partition of an export that a running server hands over.
fn handed(export: &ExportSpec, leftovers: &Leftovers) -> Option<ExportRange> {
    leftovers.partition_of(export.identity()?, export.share.partition)
}

/// Whether an export of the image of this one names a partition that is to be looked up.
pub(super) fn needs_table(
    exports: &[ExportSpec],
    export: &ExportSpec,
    leftovers: &Leftovers,
) -> bool {
    let own = export.identity();
    let is_same = |other: &ExportSpec| {
        std::ptr::eq(other, export) || own.is_some() && other.identity() == own
    };
    let mut naming = exports.iter().filter(|other| other.share.partition > 0);
    naming.any(|other| is_same(other) && handed(other, leftovers).is_none())
}

/// The range of an export of a volume of `size` bytes, which is `what` for people; that of its `partition`, if it has one.
///
/// # Errors
/// The volume has no such range.
pub(crate) fn of_export(
    export: &ExportSpec,
    size: u64,
    what: &str,
    partition: Option<ExportRange>,
) -> Result<ExportRange, ConfigError> {
    if let Some(range) = partition {
        return Ok(range);
    }
    let (offset, length) = (export.share.offset, export.share.length);
    let what = shown_image(export, what);
    let wrong = |key, why: String| Err(ConfigError::new(key, format!("{what} {why}")));
    if offset > 0 && offset >= size {
        return wrong(
            "offset",
            format!("has {size} bytes, and offset={offset} is not before its end"),
        );
    }
    let left = size.saturating_sub(offset);
    match length {
        0 => Ok(ExportRange::new(offset, None)),
        length if length > left => {
            wrong("length", format!("has {left} bytes from {offset} on, less than length={length}"))
        }
        length => Ok(ExportRange::new(offset, Some(length))),
    }
}

/// Checks that requests of whole blocks of an export are whole blocks of its volume.
///
/// # Errors
/// The range begins or ends within a block, and the volume takes no parts of blocks.
pub(crate) fn check_blocks(
    export: &ExportSpec,
    range: ExportRange,
    volume: &VolumeConfig,
) -> Result<(), ConfigError> {
    let (block, size) = (u64::from(volume.options.block_size), volume.options.size);
    let (start, end) = (range.start(), range.start() + range.size(size));
    let is_whole = start.is_multiple_of(block) && (end.is_multiple_of(block) || end == size);
    if volume.options.mode != WriteMode::None || is_whole {
        return Ok(());
    }
    let name = shown_name(&export.name);
    let key = if export.share.partition > 0 { PARTITION } else { "offset" };
    let message = format!(
        "export `{name}`: bytes {start} to {end} are no whole blocks of {block} bytes, as strict-blocks=on wants without a cache; leave strict-blocks away, or give it a cache"
    );
    Err(ConfigError::new(key, message))
}

/// Checks the ranges of all exports of a server that starts.
///
/// # Errors
/// The first export whose range [`check_blocks`] refuses.
pub(crate) fn check_all(
    exports: &[AssembledExport],
    config: &ShardConfig,
) -> Result<(), ConfigError> {
    let volume = |export: &AssembledExport| &config.volumes[usize::from(export.volume.0)];
    exports.iter().try_for_each(|export| check_blocks(&export.spec, export.range, volume(export)))
}

/// What of its image an export serves, for people; none if it serves all.
pub(super) fn shown(export: &ExportSpec, range: ExportRange) -> Option<String> {
    match (export.share.partition, range.start()) {
        (0, 0) if !range.has_length() => None,
        (0, start) => Some(format!("from {} on", shown_bytes(start))),
        (number, _) => Some(format!("partition {number}")),
    }
}

/// An image in messages: its path, or what it is.
fn shown_image(export: &ExportSpec, what: &str) -> String {
    let path = export.spec.base.path();
    path.map_or_else(|| what.to_owned(), |path| path.display().to_string())
}

/// A size if it is a round one, else bytes.
fn shown_bytes(bytes: u64) -> String {
    match bytes.is_multiple_of(1 << 20) {
        true => display_size(bytes),
        false => format!("byte {bytes}"),
    }
}
