//! Exports that come, go and grow while the server runs, and what is written out when somebody asks.
//!
//! ```text
//!   add      place taken -> opened -> device, volume on every shard -> serving
//!   remove   hidden -> clients leave -> written out, flushed -> volume, device gone from every shard -> closed, places free
//!                `-- somebody is connected, or the write-out fails: found again, as it was
//!   resize   file longer -> device, then every shard
//!   drain    a flush of each volume
//! ```
//!
//! Orders are given one change at a time, by the lock of the estate, and no device is waited for meanwhile: what is on its way out is
//! marked as leaving while its clients leave and it is written out. `drain` and everything that only looks need no lock. Each step is
//! an order to every shard, answered before the next; the estate and the tree are changed when all have agreed. A server that stops
//! answers nobody, so whoever waits ends then.

mod add;
mod drain;
mod exports;
mod reconcile;
pub(crate) mod removal;
mod remove;
mod resize;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use headworks_core::{ChangeError, ConfigError, ExportId};

use super::rpc::RpcFault;
use super::settings::Settings;
use super::shards::ShardLink;
use super::tree::{TreeCell, lock};
use crate::control::inventory::{Inventory, PLACES};
use crate::messages::command::{Released, ShardCommand};
use headworks::driver::give_back;

pub use reconcile::ReloadReport;

/// How long it takes until something that was in the way is asked for again.
const PAUSE: Duration = Duration::from_millis(2);

/// Adds, removes, resizes and drains exports while the server runs.
pub struct LiveChanges {
    shards: Arc<ShardLink>,
    tree: Arc<TreeCell>,
    settings: Arc<Settings>,
    /// Locked for one change at a time, and never while a device is waited for.
    inventory: Mutex<Inventory>,
    /// Exports that are being written back.
    draining: Mutex<Vec<ExportId>>,
}

impl LiveChanges {
    /// Changes of a server that starts with `inventory`.
    pub fn new(
        shards: Arc<ShardLink>,
        tree: Arc<TreeCell>,
        settings: Arc<Settings>,
        inventory: Inventory,
    ) -> Self {
        let (inventory, draining) = (Mutex::new(inventory), Mutex::default());
        Self { shards, tree, settings, inventory, draining }
    }
}

/// Shows exports as draining for as long as it lives.
struct Draining<'a>(&'a LiveChanges, Vec<ExportId>);

impl<'a> Draining<'a> {
    fn new(live: &'a LiveChanges, exports: Vec<ExportId>) -> Self {
        lock(&live.draining).extend(&exports);
        Self(live, exports)
    }
}

impl Drop for Draining<'_> {
    fn drop(&mut self) {
        let mut all = lock(&self.0.draining);
        for export in &self.1 {
            if let Some(index) = all.iter().position(|other| other == export) {
                all.swap_remove(index);
            }
        }
    }
}

impl LiveChanges {
    /// Options of a device's queue, as the inventory records them.
    #[cfg(test)]
    pub fn queue_options(&self, device: u16) -> headworks_core::QueueOptions {
        lock(&self.inventory).devices[&device].config.queue
    }

    /// Gives a command to every shard; all of them must carry it out.
    fn command_all(&self, command: impl Fn() -> ShardCommand) -> Result<(), RpcFault> {
        for shard in self.shards.ids() {
            self.shards.command(shard, command())?.map_err(|error| refused(&error))?;
        }
        Ok(())
    }
}

/// What a shard refuses, for the operator.
fn refused(error: &ChangeError) -> RpcFault {
    match error {
        ChangeError::Busy(what) => RpcFault::refused("EBUSY", (*what).to_owned()),
        ChangeError::Invalid(error) => wrong(error),
    }
}

/// What is wrong with an export, as it would be at the start.
fn wrong(error: &ConfigError) -> RpcFault {
    if error.option == PLACES {
        return RpcFault::refused("ENOSPC", error.message.to_string());
    }
    RpcFault::refused("EINVAL", error.to_string())
}

/// Closes what shards gave up. What the allocator keeps of a device would be that of the largest number there ever was.
fn close(remains: Vec<Released>) {
    drop(remains);
    give_back();
}

#[cfg(test)]
mod removal_tests;
