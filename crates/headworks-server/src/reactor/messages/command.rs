//! Commands of the control socket that change devices, volumes and exports of a shard, and the shards' reports of
//! exports.

use std::sync::Arc;

use headworks_core::{ChangeError, DeviceConfig, DeviceId, ExportId, VolumeConfig, VolumeId};

use crate::exports::access::AccessRules;
use crate::exports::assemble::WatchedFile;
use crate::exports::assemble::export_info::{ServedExport, UnavailableExport};
use crate::listen::ClientListener;
use headworks::{Device, Image};
use headworks_images::OverlayDevice;
use headworks_nbd::tls::TlsAcceptor;

/// A command to one shard, which carries it out or refuses it at once.
pub enum ShardCommand {
    /// Adds a device with a free id.
    AddDevice {
        /// Id of the device.
        device: DeviceId,
        /// Owner and queue options of the device.
        config: DeviceConfig,
        /// The device itself, for its owner.
        body: Option<Box<dyn Device>>,
    },
    /// Adds a volume with a free id.
    AddVolume {
        /// Id of the volume.
        volume: VolumeId,
        /// Home shard, device and options of the volume.
        config: VolumeConfig,
        /// Image of a volume that joins a device, for the device's owner.
        image: Option<Box<dyn Image>>,
        /// File whose size the home shard watches.
        watched: Option<WatchedFile>,
    },
    /// Puts a volume on the volume of its base; both are at home on the shard.
    SetBase {
        /// The volume on top.
        volume: VolumeId,
        /// The volume below.
        base: VolumeId,
    },
    /// Names own blocks of a volume on a base, 64 at a time: number of the first one divided by 64, and a bit for each.
    OwnBlocks {
        /// The volume on top.
        volume: VolumeId,
        /// The blocks.
        words: Vec<(u64, u64)>,
    },
    /// Lets a volume share what is cached of its base: all own blocks were named.
    ReadBase {
        /// The volume on top.
        volume: VolumeId,
    },
    /// Removes a volume from the shard.
    RemoveVolume {
        /// Id of the volume.
        volume: VolumeId,
        /// Id of the device.
        device: DeviceId,
    },
    /// Removes a device from the shard.
    RemoveDevice {
        /// Id of the device.
        device: DeviceId,
    },
    /// Adds an export, which is served from now on.
    Serve {
        /// Description and binding of the export.
        export: Box<ServedExport>,
    },
    /// Hides an export from new clients, or shows it again.
    Hide {
        /// Id of the export.
        export: ExportId,
        /// Whether the export is hidden.
        hidden: bool,
    },
    /// Cuts the power of a disk that can lose it: the process ends.
    CutPower {
        /// Id of the device, for its owner.
        device: DeviceId,
    },
    /// Refuses new clients of an export, or takes them again.
    Refuse {
        /// Id of the export.
        export: ExportId,
        /// Whether they are refused.
        refuses: bool,
    },
    /// Removes an export that is gone.
    Forget {
        /// Id of the export.
        export: ExportId,
    },
    /// Replaces the exports that clients are refused with a reason.
    SetAbsent {
        /// Names and reasons.
        exports: Vec<UnavailableExport>,
    },
    /// Replaces the rules that say which client sees which export.
    SetAccess {
        /// The rules in force; all of them hold.
        rules: Vec<Arc<AccessRules>>,
    },
    /// Listens on one more socket; for the shard that accepts clients.
    AddListener {
        /// Number of the listener, which is free.
        number: u16,
        /// The socket, and what clients are told through it.
        listener: ClientListener,
    },
    /// Changes the name and the TLS configuration of a listener, for later clients.
    ChangeListener {
        /// Number of the listener.
        number: u16,
        /// Name for messages.
        name: Arc<str>,
        /// TLS configuration; none without TLS.
        acceptor: Option<Arc<TlsAcceptor>>,
    },
    /// Closes a listener, and disconnects the clients that are in their handshake through it.
    RemoveListener {
        /// Number of the listener.
        number: u16,
    },
    /// Disconnects the clients of an export.
    Evict {
        /// Id of the export.
        export: ExportId,
        /// Also closes connections with unread replies.
        unread: bool,
    },
    /// Closes the connections of an export, whose requests do not end: neither a stop nor a hand-over waits for them.
    Abandon {
        /// Id of the export.
        export: ExportId,
    },
    /// Announces a size that the server gives a file itself.
    Expect {
        /// Id of the volume.
        volume: VolumeId,
        /// New size in bytes.
        size: u64,
    },
    /// Makes an overlay the base of a new one.
    Stack {
        /// Id of its volume.
        volume: VolumeId,
        /// Id of the device.
        device: DeviceId,
        /// The new one.
        top: Box<OverlayDevice>,
    },
    /// Watches another file for a volume.
    WatchInstead {
        /// Id of the volume.
        volume: VolumeId,
        /// The file.
        file: WatchedFile,
    },
    /// Grows a volume to a new size.
    Grow {
        /// Id of the volume.
        volume: VolumeId,
        /// Id of the device.
        device: DeviceId,
        /// New size in bytes.
        size: u64,
    },
}

/// Result of a command; what the shard released is closed when it is dropped.
pub type CommandResult = Result<Released, ChangeError>;

/// Files and devices that a shard released.
#[derive(Default)]
pub struct Released(Vec<Box<dyn Send>>);

impl Released {
    /// An empty list: nothing was released.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds something that is to be closed.
    pub fn keep<T: Send + 'static>(&mut self, what: Option<T>) {
        self.0.extend(what.map(|what| Box::new(what) as Box<dyn Send>));
    }
}

/// State of an export on one shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportReport {
    /// Id of the export.
    pub export: ExportId,
    /// Number of its clients on this shard.
    pub clients: usize,
    /// How many of them are files that no program has open.
    pub unused: usize,
    /// Its size in bytes, on its home shard.
    pub size: Option<u64>,
    /// That of its volume, on its home shard.
    pub volume_size: Option<u64>,
    /// Dirty bytes of its volume.
    pub dirty: u64,
    /// Bytes of its volume that could not be written back.
    pub failed: u64,
    /// Whether a flush of its volume failed.
    pub suspect: bool,
    /// Whether its device does not answer, as its home shard knows.
    pub stuck: bool,
    /// Whether its image is frozen, as its home shard knows.
    pub frozen: bool,
    /// Whether it refuses new clients.
    pub refuses: bool,
    /// Whether its image has no name any more, as the shard of its device found last.
    pub deleted: bool,
}

impl ExportReport {
    /// Adds the report of another shard.
    pub fn add(&mut self, other: &Self) {
        self.clients += other.clients;
        self.unused += other.unused;
        self.size = self.size.or(other.size);
        self.volume_size = self.volume_size.or(other.volume_size);
        self.dirty += other.dirty;
        self.failed += other.failed;
        self.suspect |= other.suspect;
        self.stuck |= other.stuck;
        self.frozen |= other.frozen;
        self.refuses |= other.refuses;
        self.deleted |= other.deleted;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_shard_reports_of_an_export_is_in_the_sum() {
        let none =
            ExportReport { export: ExportId(3), clients: 2, dirty: 10, ..Default::default() };
        let home = ExportReport {
            clients: 1,
            unused: 1,
            size: Some(4096),
            volume_size: Some(8192),
            dirty: 5,
            failed: 7,
            suspect: true,
            stuck: true,
            frozen: true,
            refuses: true,
            deleted: true,
            ..none
        };
        let sum = ExportReport { clients: 3, dirty: 15, ..home };
        for (mut first, second) in [(none, home), (home, none)] {
            first.add(&second);
            assert_eq!(first, sum);
        }
    }
}
