//! Values that `set` changes: options of queues and of write-back, weights and classes of exports and connections.
//!
//! Weights, classes and the options of write-back are kept here, since only this file changes them; options of a queue are
//! asked of the shard that owns the device. One lock orders the changes, so the last `set` of a name is what every shard has.

mod set;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use headworks_core::cache::folio::BLOCK;
use headworks_core::limits::Limits;
use headworks_core::options::Tunable;
use headworks_core::writeback::{DirtyOptions, DirtyTunable};
use headworks_core::{
    Control, DeviceId, ExportConfig, ExportId, IoError, Ioprio, ShardId, Status, TenantId,
    WriteMode,
};

use super::exports::{ExportNow, Exports};
use super::report;
use super::shards::{NoAnswer, ShardLink, stopping};
use super::targets::{TargetFault, refuse_tight_target};
use super::tenants::{TenantEntry, Tenants};
use super::tree::{ExportNode, TenantNode, Tree, TreeCell, lock};
use crate::exports::assemble::TenantSpec;
use crate::exports::assemble::cache_shares::divided;
use crate::observe::latency::errors::errno_name;
use crate::reactor::messages::query::ControlQuery;
use crate::spec::cache_part::{CachePart, CacheUse, check_minimums, images_on};
use crate::spec::latency_target::{TARGETS, target_in_force};
use crate::spec::option_table::OptionTable;
use crate::spec::tenant::{TenantName, TenantOptions};
use crate::spec::{ExportOption, ExportOptions};
use headworks_control::{RpcFault, RpcResult};
use headworks_core::limits::LimitTarget;

/// Accepted forms of limits, for errors.
const LIMITS: &str = "0 or max for none; 50M bytes, 20K I/Os (powers of 1000), 30s; rbps=max wbps=52428800 for io.max";

/// Current values of settings, and the way to change them.
pub struct Settings {
    shards: Arc<ShardLink>,
    tree: Arc<TreeCell>,
    /// Their options, which only this file changes.
    exports: Arc<Exports>,
    tenants: Mutex<Tenants>,
    /// Bytes of the cache, in which the minimums of all tenants must fit.
    cache_bytes: AtomicU64,
    /// Limits of the whole server.
    limits: Mutex<Limits>,
    /// Options of the whole server; byte limits are divided among the shards that cache.
    dirty: Mutex<DirtyOptions>,
    /// Held while a value is changed that several shards keep.
    changing: Mutex<()>,
}

impl Settings {
    /// The settings that a server starts with.
    pub fn new(
        shards: Arc<ShardLink>,
        tree: Arc<TreeCell>,
        exports: Arc<Exports>,
        dirty: DirtyOptions,
    ) -> Self {
        let dirty = Mutex::new(dirty);
        let tenants = Mutex::default();
        Self {
            shards,
            tree,
            exports,
            tenants,
            cache_bytes: AtomicU64::new(0),
            limits: Mutex::default(),
            dirty,
            changing: Mutex::new(()),
        }
    }

    /// Takes the tenants that a server starts with, and the size of its cache.
    pub fn start_tenants(&self, tenants: &[TenantSpec], cache_bytes: u64) {
        // Relaxed: set before another thread has the settings.
        self.cache_bytes.store(cache_bytes, Ordering::Relaxed);
        *lock(&self.tenants) = Tenants::new(tenants);
        self.publish_tenants();
    }

    /// All tenants, as they are now.
    pub fn tenants(&self) -> Tenants {
        lock(&self.tenants).clone()
    }

    /// Name of an export's tenant.
    pub fn tenant_of(&self, export: ExportId) -> Option<TenantName> {
        self.tenant_name(self.of(export).tenant)
    }

    fn tenant_name(&self, tenant: TenantId) -> Option<TenantName> {
        lock(&self.tenants).get(tenant).map(|entry| entry.spec.name)
    }

    /// Highest I/O priority and weight of a tenant; the defaults for an export without one.
    pub fn tenant_options(&self, tenant: TenantId) -> TenantOptions {
        lock(&self.tenants).get(tenant).map(|entry| entry.now).unwrap_or_default()
    }

    /// Shows the present tenants in the tree of names.
    fn publish_tenants(&self) {
        let node = |(id, entry): (TenantId, &TenantEntry)| TenantNode { id, name: entry.spec.name };
        let nodes: Vec<TenantNode> = lock(&self.tenants).iter().map(node).collect();
        self.tree.change(|tree| tree.tenants = nodes);
    }

    /// Adds a tenant, whose weight every shard knows before an export can have it.
    pub fn add_tenant(&self, spec: TenantSpec) -> Result<TenantId, RpcFault> {
        let _order = lock(&self.changing);
        self.check_part(None, spec.options.part)?;
        let tenant = lock(&self.tenants).add(spec)?;
        let weight = spec.options.weight;
        let told = self
            .tell_all(Control::TenantWeight { tenant, weight })
            .and_then(|()| self.tell_part(tenant, spec.options.part))
            .and_then(|()| self.tell_limits(LimitTarget::Tenant(tenant), spec.options.limits));
        if let Err(fault) = told {
            lock(&self.tenants).remove(tenant);
            return Err(fault);
        }
        self.publish_tenants();
        Ok(tenant)
    }

    /// Removes a tenant that has no exports; `first_export` names one.
    pub fn remove_tenant(
        &self,
        name: &str,
        first_export: impl FnOnce(TenantId) -> Option<String>,
    ) -> Result<(), RpcFault> {
        let _order = lock(&self.changing);
        let tenants = self.tenants();
        let tenant = tenants.find(name).ok_or_else(|| tenants.missing(name))?;
        if let Some(export) = first_export(tenant) {
            let message = format!(
                "tenant {name} has exports, such as {export}; remove them or set exports/{export}/tenant first"
            );
            return Err(RpcFault::refused("EBUSY", message));
        }
        // Its number may be another tenant's soon.
        self.tell_part(tenant, CachePart::default())?;
        lock(&self.tenants).remove(tenant);
        self.publish_tenants();
        Ok(())
    }

    /// Takes over what a configuration says of a tenant, and sets its values.
    pub fn load_tenant(
        &self,
        tenant: TenantId,
        spec: TenantSpec,
        options: TenantOptions,
    ) -> Result<(), RpcFault> {
        self.set_tenant_options(tenant, options)?;
        if let Some(entry) = lock(&self.tenants).get_mut(tenant) {
            entry.spec = spec;
        }
        Ok(())
    }

    /// Lets the values of tenants be compared with those that are configured, without a change of a value.
    pub fn compare_tenants_with(&self, configured: &[TenantSpec]) {
        let mut tenants = lock(&self.tenants);
        for &spec in configured {
            if let Some(entry) = tenants.find(spec.name.as_str()).and_then(|id| tenants.get_mut(id))
            {
                entry.spec = spec;
            }
        }
    }

    /// Sets the values of a tenant on every shard.
    fn set_tenant_options(&self, tenant: TenantId, options: TenantOptions) -> Result<(), RpcFault> {
        let _order = lock(&self.changing);
        let before = self.tenant_options(tenant);
        if options.part != before.part {
            self.check_part(Some(tenant), options.part)?;
            self.tell_part(tenant, options.part)?;
        }
        if options.weight != before.weight {
            self.tell_all(Control::TenantWeight { tenant, weight: options.weight })?;
        }
        if options.limits != before.limits {
            self.tell_limits(LimitTarget::Tenant(tenant), options.limits)?;
        }
        if let Some(entry) = lock(&self.tenants).get_mut(tenant) {
            entry.now = options;
        }
        if options.latency_target_us != before.latency_target_us {
            for (export, own) in self.exports.of_tenant(tenant) {
                self.tell_target(export, &own, &options)?;
            }
        }
        if options.ioprio_max != before.ioprio_max {
            for (export, own) in self.exports.of_tenant(tenant) {
                self.tell_ioprio(export, options.limit(own.ioprio))?;
            }
        }
        Ok(())
    }

    /// Moves exports, which are all those of an image, to a tenant or to none.
    pub fn set_export_tenant(
        &self,
        exports: &[ExportId],
        name: Option<TenantName>,
    ) -> Result<(), RpcFault> {
        let _order = lock(&self.changing);
        let tenant = lock(&self.tenants).named(name)?;
        let options = self.tenant_options(tenant);
        for &export in exports {
            self.tell_all(Control::ExportTenant { export, tenant })?;
            let name = name.filter(|name| !name.is_none());
            // Only the shard that accepts clients knows which of them may see it.
            let query = |answer| ControlQuery::Owner { export, tenant: name, answer };
            self.shards.ask(ShardId(0), query)?;
            self.exports.change(export, |now| {
                (now.tenant, now.options.tenant) = (tenant, name);
            });
            let own = self.of(export).options;
            self.tell_target(export, &own, &options)?;
            self.tell_ioprio(export, options.limit(own.ioprio))?;
        }
        self.divide_parts()
    }

    /// Checks a part of the cache beside those of all tenants but `tenant`.
    fn check_part(&self, tenant: Option<TenantId>, part: CachePart) -> Result<(), RpcFault> {
        let tenants = self.tenants();
        let others = tenants.iter().filter(|(id, _)| Some(*id) != tenant);
        let parts = others.map(|(_, entry)| entry.now.part).chain([part]);
        let cache = self.cache_bytes.load(Ordering::Relaxed);
        let checked = part.check().and_then(|()| match part.min {
            0 => Ok(()),
            _ => check_minimums(parts, cache),
        });
        checked.map_err(|message| RpcFault::refused("EINVAL", message))
    }

    /// Tells each shard that caches its part of what a tenant has of the cache.
    fn tell_part(&self, tenant: TenantId, part: CachePart) -> Result<(), RpcFault> {
        let tree = self.tree.current();
        let cached = tree.exports.iter().filter(|entry| entry.mode != WriteMode::None);
        let own = cached.filter(|entry| self.of(entry.id).tenant == tenant);
        let homes: Vec<ShardId> = own.map(|entry| entry.home).collect();
        for &shard in &tree.caching {
            let memory = part.of_shard(images_on(&homes, shard, &tree.caching));
            let control = Control::TenantMemory { tenant, memory };
            self.shards.ask(shard, |answer| ControlQuery::Tell { control, answer })?;
        }
        Ok(())
    }

    /// Divides the parts of the cache among the shards again, after exports were added, removed or moved.
    pub fn divide_parts(&self) -> Result<(), RpcFault> {
        if self.tree.current().caching.len() < 2 {
            return Ok(());
        }
        let tenants = self.tenants();
        let with_part = tenants.iter().filter(|(_, entry)| entry.now.part != CachePart::default());
        for (id, entry) in with_part {
            self.tell_part(id, entry.now.part)?;
        }
        Ok(())
    }

    /// What tenants have of the cache.
    pub fn cache_uses(&self) -> Result<BTreeMap<TenantId, CacheUse>, RpcFault> {
        let tree = self.tree.current();
        let exports: Arc<[ExportId]> = tree.exports.iter().map(|entry| entry.id).collect();
        let mut uses = BTreeMap::<TenantId, CacheUse>::new();
        for &shard in &tree.caching {
            let query = |answer| ControlQuery::ExportBlocks { exports: exports.clone(), answer };
            for (export, (dirty, cached)) in exports.iter().zip(self.shards.ask(shard, query)?) {
                let used = uses.entry(self.of(*export).tenant).or_default();
                used.dirty += dirty * u64::from(BLOCK);
                used.cached += cached * u64::from(BLOCK);
            }
        }
        Ok(uses)
    }

    /// Puts an option of an export in force; every shard is told before the value is shown.
    ///
    /// # Errors
    /// A shard does not answer, or there is no such tenant.
    pub fn put_option(
        &self,
        export: ExportId,
        option: ExportOption,
        wanted: &ExportOptions,
    ) -> Result<(), RpcFault> {
        if option == ExportOption::Tenant {
            return self.set_export_tenant(&[export], wanted.tenant);
        }
        let _order = lock(&self.changing);
        let tenant = self.of(export).tenant;
        let of_tenant = self.tenant_options(tenant);
        let ExportConfig { weight, dirty_max, latency_target_us: target_us, .. } =
            wanted.config(tenant, &of_tenant);
        match option {
            ExportOption::Weight => self.tell_all(Control::Weight { export, weight })?,
            ExportOption::Ioprio => self.tell_ioprio(export, of_tenant.limit(wanted.ioprio))?,
            ExportOption::LatencyTarget => {
                self.tell_all(Control::ExportTarget { export, target_us })?;
            }
            ExportOption::Dirty => self.tell_all(Control::ExportDirty { export, dirty_max })?,
            ExportOption::Limits => {
                self.tell_limits(LimitTarget::Export(export), wanted.limits)?;
            }
            // No shard knows a value of these that could change.
            ExportOption::Tenant
            | ExportOption::Mode
            | ExportOption::OnError
            | ExportOption::OnUnclean
            | ExportOption::Describe
            | ExportOption::StrictBlocks
            | ExportOption::Offset
            | ExportOption::Length
            | ExportOption::Partition => return Ok(()),
        }
        self.exports.change(export, |now| option.copy(&mut now.options, wanted));
        Ok(())
    }

    /// Gives a control input to every shard.
    fn tell_all(&self, control: Control) -> Result<(), RpcFault> {
        for shard in self.shards.ids() {
            self.shards.ask(shard, |answer| ControlQuery::Tell { control, answer })?;
        }
        Ok(())
    }

    /// Tells every shard the latency target of an export that is in force with these options.
    fn tell_target(
        &self,
        export: ExportId,
        own: &ExportOptions,
        of_tenant: &TenantOptions,
    ) -> Result<(), RpcFault> {
        let target_us = target_in_force(own.latency_target_us, of_tenant.latency_target_us);
        self.tell_all(Control::ExportTarget { export, target_us })
    }

    /// Refuses a latency target that a device of these exports cannot keep, as far as that is known.
    fn check_target(
        &self,
        tree: &Tree,
        path: &str,
        target_us: u32,
        is_own: impl Fn(&ExportNode) -> bool,
    ) -> Result<(), RpcFault> {
        if target_us == 0 {
            return Ok(());
        }
        let own = tree.exports.iter().filter(|entry| is_own(entry));
        let mut devices: Vec<DeviceId> = own.map(|entry| entry.device).collect();
        devices.sort_unstable();
        devices.dedup();
        refuse_tight_target(&self.shards, tree, &devices, target_us).map_err(|fault| match fault {
            TargetFault::Shards(fault) => fault,
            TargetFault::Tight(why) => {
                RpcFault::refused("EINVAL", format!("{path}: {why}")).accepts(TARGETS)
            }
        })
    }

    /// The latency target of an export that is in force, in microseconds, and the tenant that it comes from, if it does.
    pub fn target_of(&self, export: ExportId) -> (u32, Option<TenantName>) {
        let setting = self.of(export);
        let of_tenant = self.tenant_options(setting.tenant).latency_target_us;
        let own = setting.options.latency_target_us;
        let (target_us, is_own) = (target_in_force(own, of_tenant), own > 0);
        (target_us, if is_own { None } else { self.tenant_name(setting.tenant) })
    }

    /// Sets the class of an export's clients on every shard.
    fn tell_ioprio(&self, export: ExportId, ioprio: Ioprio) -> Result<(), RpcFault> {
        for shard in self.shards.ids() {
            self.shards.ask(shard, |answer| ControlQuery::ExportIoprio {
                export,
                ioprio,
                answer,
            })?;
        }
        Ok(())
    }

    /// Notes the limits that the shards began with for the whole server.
    pub fn begin_with(&self, limits: Limits) {
        *lock(&self.limits) = limits;
    }

    /// Limits of the server or an export, as they are now.
    pub fn limits(&self, target: LimitTarget) -> Limits {
        match target {
            LimitTarget::Server => *lock(&self.limits),
            LimitTarget::Tenant(tenant) => self.tenant_options(tenant).limits,
            LimitTarget::Export(export) => self.of(export).options.limits,
        }
    }

    /// Options of write-back of the whole server.
    pub fn dirty(&self) -> DirtyOptions {
        *lock(&self.dirty)
    }

    /// Options of an export, as they are now.
    pub fn of(&self, export: ExportId) -> ExportNow {
        self.exports.now(export)
    }

    /// Refuses a depth for a scheduler that admits requests by itself.
    fn check_depth(
        &self,
        tree: &Tree,
        path: &str,
        (device, tunable): (DeviceId, Tunable),
    ) -> Result<(), RpcFault> {
        if tunable != Tunable::AsyncDepth {
            return Ok(());
        }
        let scheduler = self.shards.device(tree, device)?.options.scheduler;
        if !scheduler.owns_shares() {
            return Ok(());
        }
        let message = format!(
            "{path}: the scheduler {} divides the device itself and admits every request; set weights, or another scheduler first",
            scheduler.name()
        );
        Err(RpcFault::refused("EINVAL", message))
    }

    fn set_tunable(
        &self,
        tree: &Tree,
        path: &str,
        (device, tunable): (DeviceId, Tunable),
        value: u64,
    ) -> RpcResult {
        self.check_depth(tree, path, (device, tunable))?;
        let before = self.shards.device(tree, device)?.options;
        // Commands in flight may take as long as the old time-out; a new one counts from the switch on.
        let longest = self.shards.switch_limit(before.io_timeout_ns);
        let owner = tree.device(device).map_or(ShardId(0), |entry| entry.owner);
        let query = |answer| ControlQuery::Set { device, tunable, value, answer };
        match self.shards.ask_within(owner, longest, query) {
            Ok(status) => switched(path, status, tunable.accepted())?,
            Err(NoAnswer::Stopping) => return Err(stopping()),
            Err(NoAnswer::TooLong) => {
                let message = format!(
                    "{path}: the change is still waiting after {} s; it takes effect when the commands in flight have completed",
                    longest.as_secs_f32()
                );
                return Err(RpcFault::refused("ETIMEDOUT", message));
            }
        }
        let options = self.shards.device(tree, device)?.options;
        Ok(report::value(tunable, tunable.get(&options)))
    }

    /// Options of write-back after a change; a value that suits the whole server may be too small for one shard.
    fn check_dirty(
        &self,
        path: &str,
        tunable: DirtyTunable,
        value: u64,
    ) -> Result<DirtyOptions, RpcFault> {
        let share = divided(tunable, value, self.tree.current().caching.len());
        let mut options = *lock(&self.dirty);
        let whole = tunable.set(&mut options, value);
        let checked = whole.and(tunable.check(share)).map(|()| options);
        checked.map_err(|error| {
            RpcFault::refused("EINVAL", format!("{path}: {}", error.message))
                .accepts(tunable.accepted())
        })
    }

    /// Sets an option of the whole server; each shard with a cache gets its share before the new value is shown.
    fn set_dirty(&self, path: &str, tunable: DirtyTunable, value: u64) -> RpcResult {
        let _order = lock(&self.changing);
        let options = self.check_dirty(path, tunable, value)?;
        let caching = &self.tree.current().caching;
        let share = divided(tunable, value, caching.len());
        for shard in caching {
            let query = |answer| ControlQuery::SetDirty { tunable, value: share, answer };
            switched(path, self.shards.ask(*shard, query)?, tunable.accepted())?;
        }
        *lock(&self.dirty) = options;
        Ok(report::dirty_value(tunable, tunable.get(&options)))
    }

    /// Changes limits to valid ones; returns those in force.
    fn change_limits(
        &self,
        target: LimitTarget,
        change: impl Fn(&mut Limits) -> Result<(), String>,
    ) -> Result<Limits, LimitFault> {
        let _order = lock(&self.changing);
        let mut limits = self.limits(target);
        change(&mut limits).map_err(LimitFault::Invalid)?;
        self.tell_limits(target, limits).map_err(LimitFault::Shards)?;
        Ok(limits)
    }

    /// Replaces the limits of the whole server, which are valid.
    pub fn set_server_limits(&self, limits: Limits) -> Result<(), RpcFault> {
        let _order = lock(&self.changing);
        self.tell_limits(LimitTarget::Server, limits)
    }

    fn tell_limits(&self, target: LimitTarget, limits: Limits) -> Result<(), RpcFault> {
        for shard in self.shards.ids() {
            let query = |answer| ControlQuery::SetLimits { target, limits, answer };
            self.shards.ask(shard, query)?;
        }
        match target {
            LimitTarget::Server => *lock(&self.limits) = limits,
            LimitTarget::Tenant(tenant) => {
                if let Some(entry) = lock(&self.tenants).get_mut(tenant) {
                    entry.now.limits = limits;
                }
            }
            LimitTarget::Export(export) => {
                self.exports.change(export, |now| now.options.limits = limits);
            }
        }
        Ok(())
    }

    fn set_connection_ioprio(&self, path: &str, id: u32, ioprio: Ioprio) -> Result<(), RpcFault> {
        for shard in self.shards.ids() {
            let query = |answer| ControlQuery::ConnectionIoprio { connection: id, ioprio, answer };
            if self.shards.ask(shard, query)? {
                return Ok(());
            }
        }
        let message = format!("there is no {path}; `connections` lists the present ones");
        Err(RpcFault::refused("ENOENT", message))
    }
}

/// Why limits were not changed.
enum LimitFault {
    /// The value is wrong, as a sentence says.
    Invalid(String),
    /// A shard did not answer.
    Shards(RpcFault),
}

fn fixed(path: &str) -> RpcFault {
    let message = format!("{path} describes the device or the export and cannot be set");
    RpcFault::refused("EACCES", message)
}

/// Turns a shard's answer to a change into an error for the client.
fn switched(path: &str, status: Status, accepted: String) -> Result<(), RpcFault> {
    let Err(error) = status else { return Ok(()) };
    Err(match error {
        IoError::Invalid => {
            RpcFault::refused("EINVAL", format!("{path}: the device does not support this value"))
                .accepts(accepted)
        }
        IoError::Busy => RpcFault::refused(
            "EBUSY",
            format!(
                "{path}: another change is in progress, or timed-out commands still hold resources; try again"
            ),
        ),
        IoError::Unsupported => {
            RpcFault::refused("ENOTSUP", format!("{path} cannot be set while the server runs"))
        }
        other => RpcFault::refused(errno_name(other), format!("{path}: {other}")),
    })
}
