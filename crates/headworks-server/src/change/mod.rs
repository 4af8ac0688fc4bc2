//! Changes of a running server: hot-add, hot-remove and resize of exports, `drain`, `freeze` and `thaw`, and reloads of the configuration.
//!
//! ```text
//!   add      reserve name -> open -> ids, device, volume on every shard -> serve
//!   remove   hide -> disconnect clients -> write back, flush -> remove volume, device from every shard -> close, free ids
//!                `-- a client is connected, or write-back fails: shown again, as before
//!   (abandon close the clients' sockets, keep dirty bytes in a file, forget the name -> the rest of `remove` when the device answers)
//!   resize   lock: may it? | extend the file | lock: device, then every shard
//!   drain    flush each volume
//!   refuse-clients, accept-clients   a mark of each export on each shard
//!   freeze   gate of each volume -> flush each -> ... -> thaw
//!   (bases   the volume of an overlay's base, shared by all overlays on it: with the first added, with the last removed)
//!   snapshot freeze -> a new file on top of the overlay -> thaw
//!   reload   `reloader`: the configuration's files against `configured` -> `diff` -> add, remove, retune, listeners, tenants
//! ```
//!
//! The lock of the inventory orders changes; it is not held while a device or a file system is waited for: an image is opened, made longer and
//! marked without it. `drain` and queries need no
//! lock. Each step is a command to every shard, completed before the next; inventory and tree are changed when all
//! shards have agreed. A stop of the server ends every wait.

mod abandon;
mod absent;
pub(crate) mod add;
pub(crate) mod bases;
mod chosen;
pub(crate) mod clients;
pub(crate) mod configured;
pub(crate) mod cut;
pub(crate) mod diff;
pub(crate) mod drain;
pub(crate) mod exports;
pub(crate) mod freeze;
pub(crate) mod hand_over;
pub(crate) mod held_up;
pub(crate) mod listeners;
pub(crate) mod live_listeners;
mod loaded;
pub(crate) mod reconcile;
pub(crate) mod reload_request;
pub(crate) mod reloader;
pub(crate) mod removal;
pub(crate) mod remove;
pub(crate) mod resize;
pub(crate) mod retune;
mod saved;
pub(crate) mod snapshot;
pub(crate) mod tenants;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headworks_core::{ChangeError, ConfigError, ExportId};

use crate::change::configured::ConfiguredTunables;
use crate::clients::files::directory::ServedDirectories;
use crate::clients::files::mounts::Mounts;
use crate::clients::nbd::connection::ConnectionLimits;
use crate::config::ConfigFile;
use crate::control::inventory::{Inventory, PLACES};
use crate::control::settings::Settings;
use crate::control::shards::ShardLink;
use crate::control::tree::{ExportNode, TreeCell, lock};
use crate::exports::access::AccessSpec;
use crate::exports::assemble::TenantSpec;
use crate::exports::assemble::{ExportSource, ExportSpec};
use crate::listen::listener_set::ListenerSet;
use crate::options::{MissingImage, ServerOptions};
use crate::reactor::messages::command::{Released, ShardCommand};
use abandon::AbandonedExports;
use headworks_control::RpcFault;
use headworks_nbd::tls::TlsOptions;
use live_listeners::LiveAccess;

pub use listeners::AccessReport;
pub use reconcile::ReloadReport;
pub use remove::RemovalWay;
pub use retune::RetuneReport;
pub use tenants::TenantReport;

/// Names of exports as answers have them.
fn names(exports: &[ExportNode]) -> Vec<String> {
    exports.iter().map(|entry| entry.shown_name().to_owned()).collect()
}

/// Pause before something busy is tried again.
const PAUSE: Duration = Duration::from_millis(2);

/// What changes of a running server work on. A change is a function of its own file.
pub struct LiveChanges {
    shards: Arc<ShardLink>,
    tree: Arc<TreeCell>,
    settings: Arc<Settings>,
    /// Locked for one change at a time, and never while a device is waited for.
    inventory: Mutex<Inventory>,
    /// Locked before the inventory while a volume is put on the volume of its base.
    sharing: Mutex<()>,
    /// Exports that are being written back.
    draining: Mutex<Vec<ExportId>>,
    /// What a missing image of a reloaded configuration means.
    missing: MissingImage,
    /// Tunables of the last configuration.
    tunables: Mutex<ConfiguredTunables>,
    /// Tunables that the server has started with.
    started: ConfiguredTunables,
    /// Exports of the last configuration.
    configured: Mutex<Vec<ExportSpec>>,
    /// Tenants of the last configuration.
    configured_tenants: Mutex<Vec<TenantSpec>>,
    /// The configuration file, if there is one.
    config: Option<PathBuf>,
    /// What was changed in the server that this one has replaced, and saved nowhere.
    inherited: ConfigFile,
    /// Exports that were given up, until their devices answer.
    abandoned: AbandonedExports,
    /// The sockets on which clients connect.
    listeners: Arc<ListenerSet>,
    /// Bounds of each client.
    client_limits: ConnectionLimits,
    /// The listeners of the last configuration, and those of `ctl`; locked before the exports of the last configuration.
    access: Mutex<LiveAccess>,
    /// What mounts files of FUSE; none in a process that cannot.
    mounts: Option<Arc<dyn Mounts>>,
    /// The directories of these files.
    directories: Arc<ServedDirectories>,
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
        Self {
            shards,
            tree,
            settings,
            inventory,
            sharing: Mutex::default(),
            draining,
            missing: MissingImage::Absent,
            tunables: Mutex::default(),
            started: ConfiguredTunables::default(),
            configured: Mutex::default(),
            configured_tenants: Mutex::default(),
            config: None,
            inherited: ConfigFile::default(),
            abandoned: AbandonedExports::default(),
            listeners: Arc::default(),
            client_limits: ServerOptions::default().connection_limits(),
            access: Mutex::default(),
            mounts: None,
            directories: Arc::default(),
        }
    }

    /// The exports that were given up.
    pub fn abandoned(&self) -> &AbandonedExports {
        &self.abandoned
    }

    /// Sets the listeners that the server starts with.
    pub fn with_listeners(self, listeners: Arc<ListenerSet>) -> Self {
        Self { listeners, ..self }
    }

    /// The directories of files of FUSE.
    pub fn directories(&self) -> &ServedDirectories {
        &self.directories
    }

    /// Sets what mounts files of FUSE.
    pub fn with_mounts(self, mounts: Option<Arc<dyn Mounts>>) -> Self {
        Self { mounts, ..self }
    }

    /// Sets the bounds of each client.
    pub fn with_client_limits(self, client_limits: ConnectionLimits) -> Self {
        Self { client_limits, ..self }
    }

    /// Sets what a missing image of a reloaded configuration means.
    pub fn with_missing(self, missing: MissingImage) -> Self {
        Self { missing, ..self }
    }

    /// Sets the tenants that the server starts with; those that `ctl` added before are in no file.
    pub fn with_tenants(self, mut tenants: Vec<TenantSpec>) -> Self {
        tenants.retain(|tenant| tenant.source != ExportSource::Control);
        Self { configured_tenants: Mutex::new(tenants), ..self }
    }

    /// Sets what was changed in the server that this one replaces, and saved nowhere; and the listeners, TLS included, that the server
    /// starts with.
    pub fn with_inherited(
        self,
        inherited: ConfigFile,
        (access, tls): (&AccessSpec, &TlsOptions),
    ) -> Self {
        let access = Mutex::new(LiveAccess::new(access, tls, &inherited));
        Self { inherited, access, ..self }
    }

    /// Sets the configuration that the server starts with: its file, tunables and exports.
    pub fn with_configuration(
        self,
        config: Option<PathBuf>,
        tunables: ConfiguredTunables,
        exports: Vec<ExportSpec>,
    ) -> Self {
        let started = tunables.clone();
        let (tunables, configured) = (Mutex::new(tunables), Mutex::new(exports));
        Self { config, tunables, started, configured, ..self }
    }
}

/// Marks exports as draining while it lives.
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

/// The error for a change that a shard refused.
fn refused(error: &ChangeError) -> RpcFault {
    match error {
        ChangeError::Busy(what) => RpcFault::refused("EBUSY", (*what).to_owned()),
        ChangeError::Invalid(error) => wrong(error),
    }
}

/// The error for an invalid export, as at the start of the server.
fn wrong(error: &ConfigError) -> RpcFault {
    if error.option == PLACES {
        return RpcFault::refused("ENOSPC", error.message.to_string());
    }
    RpcFault::refused(errno_of(error), error.to_string())
}

/// The name of the system's error that caused this one; that of a wrong value if none did.
fn errno_of(error: &ConfigError) -> &'static str {
    match error.cause() {
        Some(libc::ENOENT) => "ENOENT",
        Some(libc::EEXIST) => "EEXIST",
        Some(libc::EACCES | libc::EPERM) => "EACCES",
        Some(libc::EROFS) => "EROFS",
        Some(libc::EBUSY | libc::EAGAIN | libc::ETXTBSY) => "EBUSY",
        Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => "ENOSPC",
        // What the words lead to cannot be opened as such.
        None
        | Some(
            libc::EINVAL
            | libc::ENOTDIR
            | libc::EISDIR
            | libc::ENAMETOOLONG
            | libc::ELOOP
            | libc::ENOTSUP,
        ) => "EINVAL",
        Some(_) => "EIO",
    }
}

/// Closes what shards released, and returns the allocator's idle memory to the kernel.
fn close(released: Vec<Released>) {
    drop(released);
    trim_heap();
}

/// Returns the allocator's idle memory to the kernel: the tables of a device take a megabyte or more.
fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim releases only memory that is not allocated.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod removal_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cause_of_an_error_gives_its_errno() {
        let errno =
            |cause: Option<i32>| wrong(&ConfigError::new("path", "no").caused_by(cause)).errno();
        for (number, name) in [
            (libc::ENOSPC, "ENOSPC"),
            (libc::EDQUOT, "ENOSPC"),
            (libc::EFBIG, "ENOSPC"),
            (libc::ENOENT, "ENOENT"),
            (libc::EEXIST, "EEXIST"),
            (libc::EACCES, "EACCES"),
            (libc::EROFS, "EROFS"),
            (libc::EBUSY, "EBUSY"),
            (libc::EIO, "EIO"),
            (libc::EMFILE, "EIO"),
            (libc::ENOTDIR, "EINVAL"),
            (libc::ENAMETOOLONG, "EINVAL"),
        ] {
            assert_eq!(errno(Some(number)), Some(name), "{number}");
        }
        assert_eq!(errno(None), Some("EINVAL"));
    }
}
