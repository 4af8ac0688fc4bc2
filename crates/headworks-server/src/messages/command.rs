//! What the control socket orders of a shard when exports come, go and grow, and what the shard says of its exports.

use headworks_core::{ChangeError, DeviceConfig, DeviceId, ExportId, VolumeConfig, VolumeId};

use crate::assemble::WatchedFile;
use crate::assemble::export_info::ServedExport;
use headworks::{Device, OpenFile};

/// An order to one shard. It is obeyed or refused at once.
pub enum ShardCommand {
    /// A device takes a vacant place.
    AddDevice {
        /// Its place.
        device: DeviceId,
        /// Its owner and its queue.
        config: DeviceConfig,
        /// The device itself, for its owner.
        body: Option<Box<dyn Device>>,
    },
    /// A volume takes a vacant place.
    AddVolume {
        /// Its place.
        volume: VolumeId,
        /// Where it lives, and its options.
        config: VolumeConfig,
        /// The image, for the owner of a device that it joins.
        file: Option<OpenFile>,
        /// The file to look at, for its home.
        watched: Option<WatchedFile>,
    },
    /// A volume leaves.
    RemoveVolume {
        /// Which.
        volume: VolumeId,
        /// Its device.
        device: DeviceId,
    },
    /// A device leaves.
    RemoveDevice {
        /// Which.
        device: DeviceId,
    },
    /// An export begins to serve.
    Serve {
        /// Which.
        export: ServedExport,
    },
    /// New clients do not find an export, or find it again.
    Hide {
        /// Which.
        export: ExportId,
        /// Whether they do not.
        hidden: bool,
    },
    /// An export is gone.
    Forget {
        /// Which.
        export: ExportId,
    },
    /// The clients of an export leave.
    Evict {
        /// Which.
        export: ExportId,
        /// Also those who do not read their last replies.
        unread: bool,
    },
    /// A volume's file will have this size soon, and that is no news.
    Expect {
        /// Which.
        volume: VolumeId,
        /// Bytes.
        size: u64,
    },
    /// A volume has more bytes.
    Grow {
        /// Which.
        volume: VolumeId,
        /// Its device.
        device: DeviceId,
        /// Bytes.
        size: u64,
    },
}

/// What became of an order: what the shard has given up is closed when this is dropped.
pub type CommandResult = Result<Released, ChangeError>;

/// Files and devices that a shard gave up.
#[derive(Default)]
pub struct Released(Vec<Box<dyn Send>>);

impl Released {
    /// Nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Something more to close.
    pub fn keep<T: Send + 'static>(&mut self, what: Option<T>) {
        self.0.extend(what.map(|what| Box::new(what) as Box<dyn Send>));
    }
}

/// An export, as one shard sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportReport {
    /// Which.
    pub export: ExportId,
    /// Its clients on this shard.
    pub clients: usize,
    /// Its size, where its volume lives.
    pub size: Option<u64>,
    /// Bytes of its volume that are in the cache and not in the device.
    pub dirty: u64,
    /// Bytes of its volume that could not be written out.
    pub failed: u64,
    /// A flush of its volume failed.
    pub suspect: bool,
}

impl ExportReport {
    /// Adds what another shard says.
    pub fn add(&mut self, other: &Self) {
        self.clients += other.clients;
        self.size = self.size.or(other.size);
        self.dirty += other.dirty;
        self.failed += other.failed;
        self.suspect |= other.suspect;
    }
}
