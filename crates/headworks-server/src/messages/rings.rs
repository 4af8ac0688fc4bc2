//! What the thread of a vhost-user front end asks of the shard of its export.

use std::sync::mpsc::SyncSender;

use headworks_core::ExportId;

use crate::assemble::export_info::ServedExport;
use crate::rings::RingClient;
use headworks_vhost::Order;

/// A question or an order of the thread of a front end.
pub enum RingsMessage {
    /// The export as the shard knows it; none if it is gone, or lives elsewhere.
    Describe {
        /// The export.
        export: ExportId,
        /// Takes the answer.
        answer: SyncSender<Option<ServedExport>>,
    },
    /// Takes a device in; the answer is its id, or why it is refused.
    Attach {
        /// The export that is its disk.
        export: ExportId,
        /// The device, without rings.
        client: Box<RingClient>,
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
