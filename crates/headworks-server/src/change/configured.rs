//! The configuration that a running server is compared with: what its files and its command line say.
//!
//! A process that has replaced another one (an upgrade) also starts with what `ctl` had changed there and saved nowhere. Those
//! values are in force and in no file, as they were before: a reload leaves them alone until a file says something new, and `diff`
//! finds them.

use headworks_core::Tunable;
use headworks_core::limits::Limits;
use headworks_core::writeback::DirtyOptions;

use crate::exports::assemble::{ExportSpec, NamedDevice, TenantSpec};

/// What files and command line say, without the changes of a replaced process.
#[derive(Clone, Debug, Default)]
pub struct LoadedConfiguration {
    /// Exports in their order.
    pub exports: Vec<ExportSpec>,
    /// Tenants in their order.
    pub tenants: Vec<TenantSpec>,
    /// Tunables and limits of the server.
    pub tunables: ConfiguredTunables,
}

/// Tunables of a configuration.
#[derive(Clone, Debug, Default)]
pub struct ConfiguredTunables {
    /// Tunables of every queue.
    pub queue: Vec<(Tunable, u64)>,
    /// Named devices with all tunables of their queues.
    pub devices: Vec<NamedDevice>,
    /// Options of write-back of the whole server.
    pub dirty: DirtyOptions,
    /// Limits of bytes and I/Os a second of the whole server.
    pub limits: Limits,
}

impl ConfiguredTunables {
    /// Tunables of the queue of a named device, or of a device without a name.
    fn queue_of(&self, device: Option<&str>) -> &[(Tunable, u64)] {
        let named = self.devices.iter().find(|known| Some(known.name.as_str()) == device);
        named.map_or(&self.queue, |named| &named.queue)
    }

    /// Value of a tunable in the configuration of a device; none if nothing is said.
    pub(crate) fn value(&self, device: Option<&str>, tunable: Tunable) -> Option<u64> {
        let said = self.queue_of(device).iter().find(|(other, _)| *other == tunable);
        said.map(|(_, value)| *value)
    }
}
