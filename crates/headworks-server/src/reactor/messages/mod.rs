//! Messages between threads of the server, outside the data path.
//!
//! The control socket and the shards' threads know only these types of each other. `query` has the questions that a shard answers
//! and the reports it answers with, `in_flight` those of requests that are not answered yet, `command` the changes of devices, volumes and exports, `doors` those of the devices of virtual machines and of files of FUSE, `hand_over` the orders of a
//! hand-over.

pub mod command;
pub mod doors;
pub mod hand_over;
pub mod in_flight;
pub mod query;

use std::sync::mpsc::Sender;

use headworks_core::{Control, ExportId, VolumeId};
use headworks_nbd::Negotiated;

use crate::clients::nbd::connection::Connection;
use command::{CommandResult, ShardCommand};
use hand_over::{AdoptOrder, PauseOrder};
use query::ControlQuery;

/// A message to a shard's thread outside the data path.
pub enum ControlMessage {
    /// A connection whose handshake ended and whose export lives on the receiving shard.
    Connection {
        /// The connection; nothing is in flight.
        connection: Box<Connection>,
        /// The export that the client chose.
        export: ExportId,
        /// Protocol features agreed on in the handshake.
        terms: Negotiated,
    },
    /// A control input for the shard.
    Control(Control),
    /// Logs the statistics of the shard's volumes.
    Statistics,
    /// A query of the control socket.
    Query(ControlQuery),
    /// A change of devices, volumes or exports; the result is sent at once.
    Command(Box<ShardCommand>, Sender<CommandResult>),
    /// The image behind a volume of another shard changed its size.
    Resized {
        /// The volume whose image changed.
        volume: VolumeId,
        /// New size in bytes.
        size: u64,
    },
    /// What the thread of a vhost-user front end or of a FUSE directory asks.
    Door(Box<doors::DoorMessage>),
    /// A barrier: the shard drops the sender in its next turn.
    Barrier(Sender<std::convert::Infallible>),
    /// Stops the shard: complete what is in flight, flush, end.
    Stop,
    /// Everything that dead servers left is restored, or an old server has left: the shard accepts clients.
    Listen,
    /// Pauses the shard, whose server is handed over.
    Pause(PauseOrder),
    /// Takes over what another process hands over.
    Adopt(AdoptOrder),
    /// Wakes the shard so that it reads [`ServerShared`](crate::reactor::shared::ServerShared) again.
    Wake,
}
