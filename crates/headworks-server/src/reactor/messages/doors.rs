//! What the threads of vhost-user front ends and of FUSE directories ask of the shard of an export.

use std::sync::mpsc::SyncSender;

use headworks_core::ExportId;

use crate::clients::client::ShardClient;
use crate::exports::assemble::export_info::ServedExport;
use headworks_vhost::Order;

/// A question or an order of such a thread.
pub enum DoorMessage {
    /// The export as the shard knows it; none if it is gone, or lives elsewhere.
    Describe {
        /// The export.
        export: ExportId,
        /// Takes the answer.
        answer: SyncSender<Option<ServedExport>>,
    },
    /// Takes a client in: a device without rings, or a file. The answer is its id, or why it is refused.
    Attach {
        /// The export that is its disk, or its content.
        export: ExportId,
        /// The client.
        client: ShardClient,
        /// Takes the answer.
        answer: SyncSender<Result<u32, String>>,
    },
    /// Gives a device an order; its answer comes by its line.
    Order {
        /// Id of the device.
        client: u32,
        /// The order.
        order: Order,
    },
    /// The front end of a device has left.
    Close {
        /// Id of the device.
        client: u32,
    },
}
