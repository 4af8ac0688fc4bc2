//! What a shard's thread works with: the shard and its devices, sockets and rings, and how it was configured.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use headworks_core::limits::Limits;
use headworks_core::{ShardId, VolumeId};

use super::driver::ShardDriver;
use super::restores::Restores;
use super::shard_io::ShardIo;
use crate::clients::nbd::connection::ConnectionLimits;
use crate::exports::access::AccessRules;
use crate::exports::assemble::export_info::ServedExport;
use crate::exports::assemble::{ImageWatcher, WatchedFile};
use crate::listen::ClientListener;
use crate::reactor::messages::ControlMessage;
use crate::reactor::shared::ServerShared;
use headworks::driver::{Clock, Engine, Waker};
use headworks::house::Sleeper;

/// What a shard's thread has to carry its shard and its connections: what each part of the reactor borrows, and what it is built
/// from.
pub struct ReactorParts {
    pub id: ShardId,
    pub clock: Clock,
    pub driver: ShardDriver,
    pub engine: Box<dyn Engine>,
    pub io: ShardIo,
    pub sleeper: Arc<Sleeper>,
    pub wakers: Vec<Waker>,
    pub mailbox: Receiver<ControlMessage>,
    pub shared: Arc<ServerShared>,
    pub exports: Vec<ServedExport>,
    /// Listeners by number; only one shard has any.
    pub listeners: Vec<Option<ClientListener>>,
    /// Which client sees which export.
    pub access: Vec<Arc<AccessRules>>,
    pub files: Vec<WatchedFile>,
    /// The thread that looks at `files`.
    pub watcher: ImageWatcher,
    pub volumes: Vec<VolumeId>,
    pub limits: ConnectionLimits,
    /// Limits of bytes and I/Os a second of the whole server.
    pub server_limits: Limits,
    /// Weights and limits of the tenants that the server starts with, by their numbers.
    pub tenant_limits: Vec<(u16, Limits)>,
    pub poll_ns: u64,
    /// Bio slots of the shard that are reserved for bios of other shards.
    pub reserve: u32,
    /// Time limit of a shutdown; 0 is no limit.
    pub stop_ns: u64,
    /// Blocks of dead servers that volumes of this shard get first; none if there are none.
    pub restores: Option<Restores>,
    /// Clients are accepted from the start, not after [`ControlMessage::Listen`].
    pub listens: bool,
}

impl ReactorParts {
    /// Bio slots of the shard that are not reserved for other shards, nor wanted by the inputs of its next step.
    pub(super) fn free_slots(&self) -> u32 {
        let kept = self.reserve.saturating_sub(self.io.foreign() as u32);
        let wanted = u32::try_from(self.driver.waiting_inputs()).unwrap_or(u32::MAX);
        self.driver.shard().room().saturating_sub(kept.saturating_add(wanted))
    }

    /// Volumes whose images were found without a name; the next question hears of those that lose it now.
    pub(super) fn deleted_volumes(&self) -> Vec<VolumeId> {
        let deleted = |file: &WatchedFile| {
            file.ask(&self.watcher);
            file.is_deleted().then_some(file.volume)
        };
        self.files.iter().filter_map(deleted).collect()
    }

    /// Whether no device has a command, not even one that timed out: it uses memory, and the number of a descriptor, that end with the
    /// shard.
    pub(super) fn devices_are_idle(&self) -> bool {
        self.driver.shard().is_quiet()
    }

    /// Whether no device uses frames of the cache; a read-ahead or a retried write-back may.
    pub(super) fn frames_are_idle(&self) -> bool {
        self.io.frames.is_none() || self.driver.shard().is_quiet()
    }

    /// Whether nothing is in a device, or in a ring.
    pub(super) fn is_still(&self) -> bool {
        self.has_told_all() && self.driver.shard().is_idle() && self.devices_are_idle()
    }

    /// Whether no input waits for the shard, and no message for another.
    pub(super) fn has_told_all(&self) -> bool {
        let empty = self.io.peers.iter().flatten().all(|peer| peer.outbox.is_empty());
        empty && !self.driver.has_inputs()
    }

    /// Lets the shard handle inputs and carries its actions out until no input is left.
    pub(super) fn step(&mut self, now: headworks_core::Instant) {
        let Self { driver, engine, io, .. } = self;
        driver.step(now, io, &mut **engine);
    }
}
