//! What happens in a simulated world at a time of its own.

use headworks_core::{DeviceId, Message, ShardId, VolumeId};

/// An event in the queue of the simulation.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A message arrives at a shard.
    Deliver {
        /// The sending shard of the message.
        from: ShardId,
        /// The receiving shard of the message.
        to: ShardId,
        /// The message itself.
        message: Message,
    },
    /// A connection submits bios.
    Issue {
        /// The number of the connection.
        connection: u32,
    },
    /// The next step of a hot-plug change.
    HotplugChange,
    /// The operator changes a tunable.
    Switch {
        /// The device to be changed.
        device: DeviceId,
    },
    /// The operator moves an export to another tenant, or changes a weight.
    TenantChange,
    /// Bios that wait for limits in front of a shard may pass.
    Limits {
        /// The shard.
        shard: ShardId,
    },
    /// The operator changes a limit.
    LimitChange,
    /// The next step to put a volume on its base.
    Layer {
        /// Index of the layer in the scenario.
        layer: u16,
        /// The plan that it belongs to.
        plan: u32,
    },
    /// The operator acknowledges failed data.
    Acknowledge {
        /// The volume with failed data.
        volume: VolumeId,
    },
}
