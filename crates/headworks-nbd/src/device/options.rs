//! What a remote's export is to the path: limits of its queue, geometry, and what must be the same after a reconnection.

use headworks_core::{ConfigError, QueueOptions, VolumeOptions};

use crate::TransmissionFlags;
use crate::client::Export;

/// How a device treats its remote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteOptions {
    /// Connections, if the server permits several: 1..=[`RemoteOptions::CONNECTIONS_MAX`].
    pub connections: u8,
    /// Time for which commands wait for a new connection, in nanoseconds; 0: they fail at once.
    pub reconnect_ns: u64,
    /// Writes that were in flight when a connection was lost fail, instead of being sent again.
    pub fail_writes: bool,
    /// What the remote has acknowledged outlives it, also without a flush.
    pub stable: bool,
    /// Memory for copies of acknowledged writes that no flush covers, in bytes: a remote that restarts gets them again. 0: what it lost is
    /// told.
    pub keep: u32,
    /// Time for an attempt to connect: all connections with TLS and options; nanoseconds.
    pub connect_ns: u64,
    /// Time without a byte from a connection with requests, after which it is lost; nanoseconds.
    pub timeout_ns: u64,
}

impl RemoteOptions {
    /// The most connections of a device.
    pub const CONNECTIONS_MAX: u8 = 8;
}

impl Default for RemoteOptions {
    fn default() -> Self {
        let second = 1_000_000_000;
        Self {
            connections: 4,
            reconnect_ns: 30 * second,
            fail_writes: false,
            stable: false,
            keep: 32 << 20,
            connect_ns: 10 * second,
            timeout_ns: 30 * second,
        }
    }
}

/// The smallest block of an export: announced, or a sector if the size is made of sectors.
fn block_size(export: &Export) -> u32 {
    match export.block_sizes {
        Some(sizes) => sizes.min,
        None if export.size.is_multiple_of(512) => 512,
        None => 1,
    }
}

/// The longest read or write in bytes.
fn payload_max(export: &Export) -> u32 {
    export.block_sizes.map_or(crate::wire::PAYLOAD_BYTES_MAX, |sizes| sizes.max)
}

/// Options of the queue above a remote.
#[must_use]
pub fn queue_options(export: &Export) -> QueueOptions {
    let offers = |flag| export.flags.contains(flag);
    let usual = QueueOptions::default();
    let granularity = usual.discard_granularity.max(block_size(export));
    QueueOptions {
        max_sectors_kb: usual.max_sectors_kb.min(payload_max(export) / 1024),
        rotational: offers(TransmissionFlags::ROTATIONAL),
        write_cache: offers(TransmissionFlags::SEND_FLUSH),
        fua: offers(TransmissionFlags::SEND_FUA),
        discard: offers(TransmissionFlags::SEND_TRIM),
        discard_granularity: granularity,
        write_zeroes: offers(TransmissionFlags::SEND_WRITE_ZEROES),
        ..usual
    }
}

/// Size, block size and access of a remote's export.
///
/// # Errors
/// A sentence: it cannot be served.
pub fn volume_options(export: &Export) -> Result<VolumeOptions, ConfigError> {
    let (size, block) = (export.size, block_size(export));
    let wrong = |message: String| Err(ConfigError::new("uri", message));
    if !block.is_power_of_two() || block > 64 << 10 {
        return wrong(format!(
            "the server's smallest block of {block} bytes is no power of two up to 64K"
        ));
    }
    if payload_max(export) < (block.max(4096)) {
        return wrong(format!("the server takes only {} bytes a request", payload_max(export)));
    }
    if !size.is_multiple_of(block.into()) {
        return wrong(format!(
            "the export's size of {size} bytes is no multiple of its block of {block}"
        ));
    }
    let read_only = export.flags.contains(TransmissionFlags::READ_ONLY);
    Ok(VolumeOptions { size, block_size: block, read_only, ..VolumeOptions::default() })
}

/// Says why an export found after a reconnection is not the one that was served; none if it is.
pub(super) fn difference(served: &Export, found: &Export) -> Option<String> {
    if found.size != served.size {
        return Some(format!("it had {} bytes and has {}", served.size, found.size));
    }
    if block_size(found) != block_size(served) || payload_max(found) < payload_max(served) {
        return Some("its block sizes differ".to_owned());
    }
    let access = |export: &Export| export.flags.contains(TransmissionFlags::READ_ONLY);
    if access(found) != access(served) {
        let now = if access(found) { "read-only" } else { "writable" };
        return Some(format!("it is {now} now"));
    }
    let relied_on = [
        (TransmissionFlags::SEND_FLUSH, "flush"),
        (TransmissionFlags::SEND_FUA, "FUA"),
        (TransmissionFlags::SEND_TRIM, "trim"),
        (TransmissionFlags::SEND_WRITE_ZEROES, "write-zeroes"),
    ];
    let gone = relied_on
        .iter()
        .find(|(flag, _)| served.flags.contains(*flag) && !found.flags.contains(*flag));
    gone.map(|(_, name)| format!("it no longer offers {name}"))
}
