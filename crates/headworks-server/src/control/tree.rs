//! The tree of names that `get` and `set` know, as in sysfs.
//!
//! ```text
//!   hw0/queue/nr_requests, hw0/queue/iosched/fifo_batch ...     a device and its queue
//!   hw0/queue/iosched/state                                     slots and queues of the elevator bfq
//!   exports/NAME/{device,read-only,weight,ioprio,tenant,cache,on-error,dirty}
//!   exports/NAME/{bps-total,iops-write-max,...,io.max}          limits of the export's clients
//!   tenants/NAME/{bps-total,iops-write-max,...,io.max}          limits of the tenant's clients
//!   server/{bps-total,iops-write-max,...,io.max}                limits of the whole server
//!   exports/NAME/queue/...                                      the queue of the export's device
//!   tenants/NAME/{weight,ioprio-max,latency-target,exports}
//!   {exports,tenants}/NAME/{io.weight,io.latency,io.stat}       weight, latency target and counters by the names of a cgroup
//!   tenants/NAME/{dirty,cache-min,cache-max,dirty-bytes,cached-bytes}    its part of the page cache
//!   connections/ID/ioprio
//!   vm/dirty_bytes, vm/dirty_expire_centisecs ...               write-back of the whole server, with a cache
//! ```
//!
//! The export without a name is shown as `default`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_core::options::Tunable;
use headworks_core::writeback::DirtyTunable;
use headworks_core::{DeviceId, ErrorPolicy, ExportId, ShardId, TenantId, VolumeId, WriteMode};

use crate::exports::assemble::{AbsentExport, shown_name};
use crate::exports::export_range::ExportRange;
use crate::spec::did_you_mean::distance;
use crate::spec::limit_words::LIMIT_KEYS;
use crate::spec::option_table::OptionTable;
use crate::spec::tenant::{TenantName, TenantOption};
use crate::spec::{ExportOption, ModelLink, RemoteLink};
use headworks_control::RpcFault;
use headworks_core::limits::LimitTarget;

/// A device in the tree, with its volumes.
#[derive(Clone, Debug)]
pub struct DeviceNode {
    /// Id of the device.
    pub id: DeviceId,
    /// Shard that owns the device.
    pub owner: ShardId,
    /// Volumes on the device.
    pub volumes: Arc<[VolumeId]>,
    /// The server that it is behind.
    pub remote: Option<RemoteLink>,
    /// The modelled disk whose time it takes.
    pub model: Option<ModelLink>,
}

/// An export in the tree.
#[derive(Clone, Debug)]
pub struct ExportNode {
    /// Id of the export.
    pub id: ExportId,
    /// Name of the export; may be empty.
    pub name: String,
    /// Volume behind the export.
    pub volume: VolumeId,
    /// Device of the export's volume.
    pub device: DeviceId,
    /// Home shard of the export's volume.
    pub home: ShardId,
    /// Range of the volume that the export serves.
    pub range: ExportRange,
    /// Cache mode of the export's volume.
    pub mode: WriteMode,
    /// Policy for blocks that cannot be written back.
    pub on_error: ErrorPolicy,
    /// Whether clients may only read.
    pub read_only: bool,
    /// Whether writes need a flush to survive a power failure.
    pub volatile: bool,
}

/// A value that a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaf {
    /// An option of a queue.
    Tunable(DeviceId, Tunable),
    /// State of a queue's elevator.
    ElevatorState(DeviceId),
    /// Device of an export.
    Device(ExportId),
    /// Whether an export is read-only.
    ReadOnly(ExportId),
    /// An option of an export; true for its name in a cgroup, where that has a form of its own.
    Export(ExportId, ExportOption, bool),
    /// An option of a tenant, likewise.
    Tenant(TenantId, TenantOption, bool),
    /// Exports of a tenant.
    TenantExports(TenantId),
    /// Bytes that a tenant has dirty.
    TenantDirty(TenantId),
    /// Bytes that are cached for a tenant.
    TenantCached(TenantId),
    /// One limit of the server or an export, by its key.
    Limit(LimitTarget, &'static str),
    /// Limits as cgroup shows them.
    IoMax(LimitTarget),
    /// Counters of an export, as cgroup's `io.stat` shows them.
    IoStat(ExportId),
    /// Counters of a tenant, as cgroup's `io.stat` shows them.
    TenantIoStat(TenantId),
    /// Class of one connection, by its id.
    Connection(u32),
    /// An option of write-back.
    Dirty(DirtyTunable),
}

/// A tenant in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantNode {
    /// Number of the tenant.
    pub id: TenantId,
    /// Name of the tenant.
    pub name: TenantName,
}

/// All devices and exports of a server. A version is never changed; a change makes a new one.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// Devices in ascending order of their ids.
    pub devices: Vec<DeviceNode>,
    /// Volumes that no export leads to: the bases of overlays.
    pub bases: Vec<VolumeId>,
    /// Exports in the order in which they were added.
    pub exports: Vec<ExportNode>,
    /// Tenants in the order of their numbers.
    pub tenants: Vec<TenantNode>,
    /// Shards with a cache.
    pub caching: Vec<ShardId>,
    /// Exports that are not served because their images are missing.
    pub absent: Vec<AbsentExport>,
}

/// The current tree. Readers keep the version that they took; a change publishes a new one.
#[derive(Default)]
pub struct TreeCell {
    current: Mutex<Arc<Tree>>,
    /// Told of each change, until they return false.
    watchers: Mutex<Vec<Box<dyn Fn() -> bool + Send + Sync>>>,
}

impl TreeCell {
    /// A cell with its first version.
    pub fn new(tree: Tree) -> Self {
        Self { current: Mutex::new(Arc::new(tree)), watchers: Mutex::default() }
    }

    /// The version that is current now.
    pub fn current(&self) -> Arc<Tree> {
        Arc::clone(&lock(&self.current))
    }

    /// Calls back after each change, until that returns false.
    pub fn watch(&self, told: Box<dyn Fn() -> bool + Send + Sync>) {
        lock(&self.watchers).push(told);
    }

    /// Publishes a changed copy of the current version.
    pub fn change(&self, change: impl FnOnce(&mut Tree)) {
        let mut current = lock(&self.current);
        let mut tree = Tree::clone(&current);
        change(&mut tree);
        *current = Arc::new(tree);
        drop(current);
        lock(&self.watchers).retain(|told| told());
    }

    /// Turns an error about `tree` into `None` when that version is no longer current: a device or export leaves the tree
    /// before a shard forgets it, so the error may only say that it is gone.
    pub fn if_current<T>(
        &self,
        tree: &Tree,
        result: Result<T, RpcFault>,
    ) -> Result<Option<T>, RpcFault> {
        match result {
            Err(_) if !std::ptr::eq(tree, Arc::as_ptr(&self.current())) => Ok(None),
            result => result.map(Some),
        }
    }
}

/// Locks a mutex of the control socket. A panic leaves whole values, so poison is ignored.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Name of a device in paths.
pub fn device_name(device: DeviceId) -> String {
    format!("hw{}", device.0)
}

impl ExportNode {
    /// Name of the export in paths and tables.
    pub fn shown_name(&self) -> &str {
        shown_name(&self.name)
    }
}

/// Most names in a suggestion.
const NEAREST: usize = 3;
/// What is longer is no slip of the finger, and would take long to compare.
const SLIP_MAX: usize = 200;

impl Tree {
    /// Notes that a volume is on a device, which may be new.
    pub fn put_volume(
        &mut self,
        volume: VolumeId,
        (device, owner): (DeviceId, ShardId),
        (remote, model): (Option<&RemoteLink>, Option<&ModelLink>),
    ) {
        match self.devices.iter_mut().find(|known| known.id == device) {
            Some(known) if known.volumes.contains(&volume) => {}
            Some(known) => {
                known.volumes = known.volumes.iter().copied().chain([volume]).collect();
            }
            None => {
                let (volumes, remote, model) = ([volume].into(), remote.cloned(), model.cloned());
                self.devices.push(DeviceNode { id: device, owner, volumes, remote, model });
                self.devices.sort_by_key(|device| device.id);
            }
        }
    }

    /// Notes that a volume is on no device any more.
    pub fn take_volume(&mut self, volume: VolumeId) {
        self.bases.retain(|base| *base != volume);
        for device in self.devices.iter_mut().filter(|device| device.volumes.contains(&volume)) {
            let others = device.volumes.iter().copied().filter(|other| *other != volume);
            device.volumes = others.collect();
        }
    }

    /// The server that an export's device is behind.
    pub fn remote_of(&self, entry: &ExportNode) -> Option<&RemoteLink> {
        self.devices.iter().find(|device| device.id == entry.device)?.remote.as_ref()
    }

    /// The modelled disk whose time an export's device takes.
    pub fn model_of(&self, entry: &ExportNode) -> Option<&ModelLink> {
        self.device(entry.device)?.model.as_ref()
    }

    /// Finds an export; none if it was removed.
    pub fn entry(&self, export: ExportId) -> Option<&ExportNode> {
        self.exports.iter().find(|entry| entry.id == export)
    }

    /// Finds a device; none if it was removed.
    pub fn device(&self, device: DeviceId) -> Option<&DeviceNode> {
        self.devices.iter().find(|entry| entry.id == device)
    }

    /// Shard that owns the device of an export.
    pub fn owner(&self, entry: &ExportNode) -> ShardId {
        self.device(entry.device).map_or(entry.home, |device| device.owner)
    }

    /// Finds the export of a name; `default` is also the one without a name.
    pub fn export(&self, name: &str) -> Option<&ExportNode> {
        let by = |name: &str| self.exports.iter().find(|export| export.name == name);
        let unnamed = || (name == shown_name("")).then(|| by("")).flatten();
        by(name).or_else(unnamed)
    }

    /// Names at or below `path` in order, without connections. An empty path leaves out the queues below exports.
    pub fn leaves(&self, path: &str) -> Vec<(String, Leaf)> {
        let mut all = Vec::new();
        let has_cache = !self.caching.is_empty();
        for DeviceNode { id, .. } in &self.devices {
            queue(&device_name(*id), *id, &mut all);
        }
        for entry in &self.exports {
            let (export, base) = (entry.id, format!("exports/{}", entry.shown_name()));
            let own = [
                ("device", Leaf::Device(export)),
                ("read-only", Leaf::ReadOnly(export)),
                ("io.stat", Leaf::IoStat(export)),
            ];
            all.extend(own.map(|(name, leaf)| (format!("{base}/{name}"), leaf)));
            options(&base, has_cache, &mut all, |option, form| Leaf::Export(export, option, form));
            limits(&base, LimitTarget::Export(export), &mut all);
            if is_within(path, &format!("{base}/queue")) {
                queue(&base, entry.device, &mut all);
            }
        }
        for TenantNode { id, name } in &self.tenants {
            let base = format!("tenants/{name}");
            options(&base, has_cache, &mut all, |option, form| Leaf::Tenant(*id, option, form));
            if has_cache {
                all.push((format!("{base}/dirty-bytes"), Leaf::TenantDirty(*id)));
                all.push((format!("{base}/cached-bytes"), Leaf::TenantCached(*id)));
            }
            all.push((format!("{base}/exports"), Leaf::TenantExports(*id)));
            all.push((format!("{base}/io.stat"), Leaf::TenantIoStat(*id)));
            limits(&base, LimitTarget::Tenant(*id), &mut all);
        }
        limits(SERVER, LimitTarget::Server, &mut all);
        if !self.caching.is_empty() {
            let leaf =
                |tunable: DirtyTunable| (format!("vm/{}", tunable.name()), Leaf::Dirty(tunable));
            all.extend(DirtyTunable::ALL.map(leaf));
        }
        if path.is_empty() {
            return all;
        }
        let of = |path: &str| -> Vec<(String, Leaf)> {
            all.iter().filter(|(name, _)| is_within(name, path)).cloned().collect()
        };
        let found = of(path);
        match with_hyphens(path).filter(|_| found.is_empty()).map(|path| of(&path)).as_deref() {
            // Under the name that was asked for.
            Some([(_, leaf)]) => vec![(path.to_owned(), *leaf)],
            _ => found,
        }
    }

    /// The error for a path that names nothing.
    pub fn no_entry(&self, path: &str) -> RpcFault {
        RpcFault::refused("ENOENT", format!("there is no {path}; {}", self.advice(path)))
    }

    /// The export of a name that a client sent.
    ///
    /// # Errors
    /// `ENOENT`, with the names that exist.
    pub fn find_export(&self, name: &str) -> Result<&ExportNode, RpcFault> {
        self.export(name).ok_or_else(|| {
            if let Some(absent) = self.absent(name) {
                let message = format!("export {name} is absent: {}", absent.reason);
                return RpcFault::refused("ENOENT", message);
            }
            let names: Vec<&str> =
                self.exports.iter().take(16).map(ExportNode::shown_name).collect();
            let known = if names.is_empty() { "none at all".to_owned() } else { names.join(", ") };
            let message = format!("there is no export `{name}`; there are {known}");
            RpcFault::refused("ENOENT", message)
        })
    }

    /// The absent export of a name.
    pub fn absent(&self, name: &str) -> Option<&AbsentExport> {
        self.absent.iter().find(|absent| shown_name(&absent.spec.name) == shown_name(name))
    }

    /// Suggests the nearest names for a path that names nothing, or the roots of the tree.
    pub fn advice(&self, path: &str) -> String {
        let below = path.split('/').take(2).collect::<Vec<_>>().join("/");
        let queue_of_export = path.starts_with("exports/") && path.contains("/queue");
        let slip = path.len() <= SLIP_MAX;
        let mut known = self.leaves(if queue_of_export { "exports" } else { "" });
        if let Some(export) = below.strip_prefix("exports/").and_then(|name| self.export(name)) {
            known.extend(self.leaves(&format!("exports/{}/queue", export.shown_name())));
        }
        let mut near: Vec<(usize, String)> = known
            .into_iter()
            .filter(|_| slip)
            .map(|(name, _)| (distance(&name, path), name))
            .filter(|(distance, name)| *distance <= 2 + name.len() / 8)
            .collect();
        near.sort();
        near.truncate(NEAREST);
        if !near.is_empty() {
            let names: Vec<String> = near.into_iter().map(|(_, name)| name).collect();
            return format!("the nearest are {}", names.join(", "));
        }
        let mut names: Vec<String> =
            self.devices.iter().take(8).map(|device| device_name(device.id)).collect();
        names.extend((!self.caching.is_empty()).then(|| "vm".to_owned()));
        names.extend((!self.tenants.is_empty()).then(|| "tenants".to_owned()));
        names.extend(["exports", SERVER].map(str::to_owned));
        format!("names begin with {} and connections", names.join(", "))
    }
}

/// The path of an option as it was spelled before 0.2: `exports/db/latency_target` is `exports/db/latency-target`. Names of the kernel, below
/// `queue` and `vm`, keep their underscores.
pub(super) fn with_hyphens(path: &str) -> Option<String> {
    let (base, name) = path.rsplit_once('/')?;
    let is_own = ["exports/", "tenants/"].iter().any(|root| base.starts_with(root));
    (is_own && name.contains('_')).then(|| format!("{base}/{}", name.replace('_', "-")))
}

fn queue(base: &str, device: DeviceId, all: &mut Vec<(String, Leaf)>) {
    let leaf = |tunable: Tunable| {
        (format!("{base}/queue/{}", tunable.name()), Leaf::Tunable(device, tunable))
    };
    all.extend(Tunable::ALL.map(leaf));
    all.push((format!("{base}/queue/iosched/state"), Leaf::ElevatorState(device)));
}

/// Names of the options of a table, and those that a cgroup has for them. One value has two names, unless a cgroup has another form of it.
fn options<T: OptionTable>(
    base: &str,
    has_cache: bool,
    all: &mut Vec<(String, Leaf)>,
    leaf: impl Fn(T, bool) -> Leaf,
) {
    for option in T::ALL.iter().copied().filter(|option| option.is_shown(has_cache)) {
        let key = option.own_key().unwrap_or_default();
        all.push((format!("{base}/{key}"), leaf(option, false)));
        if let Some(cgroup) = &option.row().cgroup {
            all.push((format!("{base}/{}", cgroup.name), leaf(option, option.has_cgroup_form())));
        }
    }
}

/// Root of the names of the whole server.
const SERVER: &str = "server";

fn limits(base: &str, target: LimitTarget, all: &mut Vec<(String, Leaf)>) {
    let leaf = |key: &'static str| (format!("{base}/{key}"), Leaf::Limit(target, key));
    all.extend(LIMIT_KEYS.map(leaf));
    all.push((format!("{base}/io.max"), Leaf::IoMax(target)));
}

/// Whether `name` is `path` or below it.
pub fn is_within(name: &str, path: &str) -> bool {
    name.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Two devices; `db` and `logs` on the first, the export without a name on the second.
    pub fn tree() -> Tree {
        let device = |id, volumes: &[u16]| DeviceNode {
            id: DeviceId(id),
            owner: ShardId(0),
            volumes: volumes.iter().copied().map(VolumeId).collect(),
            remote: None,
            model: None,
        };
        let export = |name: &str, volume, device| ExportNode {
            id: ExportId(volume),
            name: name.to_owned(),
            volume: VolumeId(volume),
            device: DeviceId(device),
            home: ShardId(0),
            range: ExportRange::default(),
            mode: WriteMode::default(),
            on_error: ErrorPolicy::default(),
            read_only: false,
            volatile: false,
        };
        Tree {
            devices: vec![device(0, &[0, 1]), device(1, &[2])],
            bases: Vec::new(),
            exports: vec![export("db", 0, 0), export("logs", 1, 0), export("", 2, 1)],
            tenants: vec![TenantNode { id: TenantId(3), name: TenantName::parse("acme").unwrap() }],
            caching: vec![ShardId(0), ShardId(1)],
            absent: Vec::new(),
        }
    }

    fn names(path: &str) -> Vec<String> {
        tree().leaves(path).into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn path_lists_names_below_it() {
        let all = 2 * (Tunable::ALL.len() + 1) + 3 * 32 + 20 + 32 + DirtyTunable::ALL.len();
        assert_eq!(names("").len(), all);
        assert_eq!(names("tenants/acme").len(), 32);
        assert_eq!(names("vm").len(), DirtyTunable::ALL.len());
        assert_eq!(names("hw0").len(), Tunable::ALL.len() + 1);
        assert_eq!(names("hw1/queue/iosched").len(), 21);
        assert_eq!(names("exports/logs/queue").len(), Tunable::ALL.len() + 1);
        assert_eq!(names("exports/db").len(), 32);
        assert_eq!(names("server").len(), 20);
        assert_eq!(names("exports").len(), 96);
        for nothing in ["hw", "hw2", "hw0/que", "exports/d", "exports/db/queue/nr", "x", "/"] {
            assert_eq!(names(nothing), [""; 0], "{nothing}");
        }
        let one = |path: &str| tree().leaves(path);
        let nr = Leaf::Tunable(DeviceId(0), Tunable::NrRequests);
        assert_eq!(one("hw0/queue/nr_requests"), [("hw0/queue/nr_requests".into(), nr)]);
        let by_export = "exports/logs/queue/nr_requests";
        assert_eq!(one(by_export), [(by_export.into(), nr)]);
        let weight = "exports/default/weight";
        assert_eq!(
            one(weight),
            [(weight.into(), Leaf::Export(ExportId(2), ExportOption::Weight, false))]
        );
    }

    #[test]
    fn underscores_of_older_versions_are_taken_for_hyphens() {
        let one = |path: &str| tree().leaves(path);
        let [(_, target)] = &one("exports/db/latency-target")[..] else { panic!("one name") };
        assert_eq!(
            one("exports/db/latency_target"),
            [("exports/db/latency_target".into(), *target)]
        );
        assert_eq!(one("tenants/acme/dirty_bytes").len(), 1);
        for nothing in
            ["exports/db/queue/nr-requests", "exports/d_b", "vm/dirty-bytes", "exports/db/x_y"]
        {
            assert!(one(nothing).is_empty(), "{nothing}");
        }
    }

    #[test]
    fn server_without_cache_has_no_vm_names() {
        let tree = Tree { caching: Vec::new(), ..tree() };
        assert!(tree.leaves("vm").is_empty());
        assert!(!tree.advice("something/else").contains("vm"));
    }

    #[test]
    fn every_listed_name_is_found_again() {
        let all = tree().leaves("").into_iter().chain(tree().leaves("exports/db/queue"));
        for (name, leaf) in all {
            assert_eq!(tree().leaves(&name), [(name.clone(), leaf)]);
        }
    }

    #[test]
    fn export_named_default_hides_unnamed_one() {
        let mut tree = tree();
        let id = |tree: &Tree, name: &str| tree.export(name).map(|entry| entry.id);
        assert_eq!(id(&tree, "default"), Some(ExportId(2)));
        assert_eq!(id(&tree, ""), Some(ExportId(2)));
        tree.exports[1].name = "default".into();
        assert_eq!(id(&tree, "default"), Some(ExportId(1)));
        assert_eq!((id(&tree, "logs"), id(&tree, "")), (None, Some(ExportId(2))));
    }

    #[test]
    fn misspelled_path_gets_suggestions() {
        let advice = |path: &str| tree().advice(path);
        assert!(advice("hw0/queue/nr_request").contains("hw0/queue/nr_requests"));
        assert!(advice("hw1/queue/shceduler").contains("hw1/queue/scheduler"));
        assert!(advice("exports/db/wieght").contains("exports/db/weight"));
        assert!(advice("exports/db/queue/nomerge").contains("exports/db/queue/nomerges"));
        let far = advice("something/else");
        assert!(far.contains("hw0, hw1, vm, tenants, exports, server and connections"), "{far}");
        assert!(advice("vm/dirty_byte").contains("vm/dirty_bytes"));
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!((distance("", "abc"), distance("abc", "")), (3, 3));
    }
}
