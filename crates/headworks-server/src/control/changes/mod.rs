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

use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use headworks_core::{ChangeError, ConfigError, ExportId, ShardId};

use super::rpc::RpcFault;
use super::service::{ControlService, lock, stopping};
use crate::control::inventory::{Inventory, PLACES};
use crate::messages::ControlMessage;
use crate::messages::command::{CommandResult, Released, ShardCommand};
use headworks::memory::give_back;

pub use reconcile::ReloadReport;

/// How long it takes until something that was in the way is asked for again.
const PAUSE: Duration = Duration::from_millis(2);

/// What changes of exports work with.
pub struct LiveChanges {
    /// Held while shards are told that exports come, go or grow.
    inventory: Mutex<Inventory>,
    /// Exports that are being written out.
    draining: Mutex<Vec<ExportId>>,
}

impl LiveChanges {
    pub fn new(inventory: Inventory) -> Self {
        Self { inventory: Mutex::new(inventory), draining: Mutex::default() }
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

impl ControlService {
    /// One shard obeys or refuses. It is waited for without a limit: what it will do later must not be a surprise.
    fn order(&self, shard: ShardId, order: ShardCommand) -> Result<CommandResult, RpcFault> {
        let (answer, answers) = channel();
        self.shared().send(shard, ControlMessage::Command(Box::new(order), answer));
        answers.recv().map_err(|_| stopping())
    }

    /// Every shard, `first` first.
    fn all_from(&self, first: ShardId) -> Vec<ShardId> {
        let others = self.shards().filter(|shard| *shard != first);
        std::iter::once(first).chain(others).collect()
    }

    /// An order that every shard obeys.
    fn tell_all(&self, order: impl Fn() -> ShardCommand) -> Result<(), RpcFault> {
        for shard in self.shards() {
            self.order(shard, order())?.map_err(|error| refused(&error))?;
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
#[cfg(test)]
mod tests;
