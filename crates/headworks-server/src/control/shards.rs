//! The control socket's access to the shards' threads: queries with a deadline, commands without one.
//!
//! A query or command carries the channel for its answer. A shard that has ended drops the channel, which ends the wait with
//! `ESHUTDOWN`; a shard that does not turn ends the wait of a query with `ETIMEDOUT`.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel, sync_channel};
use std::time::Duration;

use headworks_core::elevator::ElevatorState;
use headworks_core::{Control, DeviceId, ShardId};

use super::tree::{Tree, device_name};
use crate::reactor::messages::ControlMessage;
use crate::reactor::messages::command::{CommandResult, ShardCommand};
use crate::reactor::messages::query::{ControlQuery, DeviceReport, QueryAnswer};
use crate::reactor::shared::ServerShared;
use crate::successor::keeper::Keeper;
use headworks_control::RpcFault;

/// A running shard answers within one turn; without an answer it is stuck in a device or has no CPU.
const ANSWER: Duration = Duration::from_secs(5);
/// A change of a queue option ends at most this long after the last command in flight completed or timed out.
const SWITCH_MARGIN: Duration = Duration::from_secs(5);

/// Time limits of queries to shards.
pub struct Deadlines {
    /// Limit of a plain query.
    pub answer: Duration,
    /// Limit of a change of a queue option, beyond the device's `io_timeout`.
    pub switch: Duration,
}

/// Sends queries and commands to the shards of a server.
pub struct ShardLink {
    shared: Arc<ServerShared>,
    shards: u16,
    deadlines: Deadlines,
    /// Queries sent so far.
    #[cfg(test)]
    asked: std::sync::atomic::AtomicUsize,
}

/// Reason why a query was not answered.
pub enum NoAnswer {
    /// The deadline passed.
    TooLong,
    /// The shard dropped the query: the server is stopping.
    Stopping,
}

impl ShardLink {
    /// A link to the first `shards` shards behind `shared`.
    pub fn new(shared: Arc<ServerShared>, shards: u16) -> Self {
        let deadlines = Deadlines { answer: ANSWER, switch: SWITCH_MARGIN };
        Self {
            shared,
            shards,
            deadlines,
            #[cfg(test)]
            asked: Default::default(),
        }
    }

    /// Replaces the time limits.
    #[cfg(test)]
    pub fn with_deadlines(self, deadlines: Deadlines) -> Self {
        Self { deadlines, ..self }
    }

    /// Number of queries sent so far.
    #[cfg(test)]
    pub fn asked(&self) -> usize {
        self.asked.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// The mailboxes of the shards.
    pub fn shared(&self) -> &Arc<ServerShared> {
        &self.shared
    }

    /// Memory and marks for the next server.
    pub fn keeper(&self) -> &Keeper {
        self.shared.keeper()
    }

    /// Sends a control input to one shard; it is handled before any later command.
    pub fn tell(&self, shard: ShardId, control: Control) {
        self.shared.send(shard, ControlMessage::Control(control));
    }

    /// Number of shards of the server.
    pub fn count(&self) -> u16 {
        self.shards
    }

    /// Ids of all shards in ascending order.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = ShardId> + use<> {
        (0..self.shards).map(ShardId)
    }

    /// Ids of all shards, `first` before the others.
    pub fn ids_from(&self, first: ShardId) -> Vec<ShardId> {
        let others = self.ids().filter(|shard| *shard != first);
        std::iter::once(first).chain(others).collect()
    }

    /// Sends a query to one shard and waits for its answer.
    ///
    /// # Errors
    /// `ETIMEDOUT` or `ESHUTDOWN`.
    pub fn ask<T>(
        &self,
        shard: ShardId,
        query: impl FnOnce(QueryAnswer<T>) -> ControlQuery,
    ) -> Result<T, RpcFault> {
        self.ask_within(shard, self.deadlines.answer, query).map_err(|reason| match reason {
            NoAnswer::Stopping => stopping(),
            NoAnswer::TooLong => {
                let seconds = self.deadlines.answer.as_secs_f32();
                let message = format!("shard {} did not answer within {seconds} s", shard.0);
                RpcFault::refused("ETIMEDOUT", message)
            }
        })
    }

    /// Sends the same query to every shard, one after the other.
    ///
    /// # Errors
    /// The first error of [`ShardLink::ask`].
    pub fn ask_all<T>(
        &self,
        query: impl Fn(QueryAnswer<T>) -> ControlQuery,
    ) -> Result<Vec<T>, RpcFault> {
        self.ids().map(|shard| self.ask(shard, &query)).collect()
    }

    /// As [`ShardLink::ask`], with a time limit of the caller.
    pub fn ask_within<T>(
        &self,
        shard: ShardId,
        limit: Duration,
        query: impl FnOnce(QueryAnswer<T>) -> ControlQuery,
    ) -> Result<T, NoAnswer> {
        #[cfg(test)]
        self.asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (answer, answers) = sync_channel(1);
        self.shared.send(shard, ControlMessage::Query(query(answer)));
        answers.recv_timeout(limit).map_err(|error| match error {
            RecvTimeoutError::Timeout => NoAnswer::TooLong,
            RecvTimeoutError::Disconnected => NoAnswer::Stopping,
        })
    }

    /// How long a change of an option of a queue with this `io_timeout` may take.
    pub fn switch_limit(&self, io_timeout_ns: u64) -> Duration {
        Duration::from_nanos(io_timeout_ns) + self.deadlines.switch
    }

    /// Gives a command to one shard and waits for its result, without a limit: a command must not take effect later.
    ///
    /// # Errors
    /// `ESHUTDOWN`.
    pub fn command(
        &self,
        shard: ShardId,
        command: ShardCommand,
    ) -> Result<CommandResult, RpcFault> {
        let (answer, answers) = channel();
        self.shared.send(shard, ControlMessage::Command(Box::new(command), answer));
        answers.recv().map_err(|_| stopping())
    }

    /// Statistics and options of a device and its queue.
    ///
    /// # Errors
    /// `ENOENT` for a device that is not in `tree`, else as [`ShardLink::ask`].
    pub fn device(&self, tree: &Tree, device: DeviceId) -> Result<DeviceReport, RpcFault> {
        let node = tree.device(device).ok_or_else(|| tree.no_entry(&device_name(device)))?;
        let volumes = Arc::clone(&node.volumes);
        self.ask(node.owner, |answer| ControlQuery::Device { device, volumes, answer })
    }

    /// State of a device's elevator; none if it does not serve in slots.
    ///
    /// # Errors
    /// As [`ShardLink::device`].
    pub fn elevator(
        &self,
        tree: &Tree,
        device: DeviceId,
    ) -> Result<Option<Box<ElevatorState>>, RpcFault> {
        let node = tree.device(device).ok_or_else(|| tree.no_entry(&device_name(device)))?;
        self.ask(node.owner, |answer| ControlQuery::Elevator { device, answer })
    }
}

/// Whether an error is that of a server that stops.
pub fn is_stopping(fault: &RpcFault) -> bool {
    fault.errno() == Some(SHUTDOWN)
}

const SHUTDOWN: &str = "ESHUTDOWN";

/// The error of every wait that the server's stop ends.
pub fn stopping() -> RpcFault {
    RpcFault::refused(SHUTDOWN, "the server is stopping")
}
