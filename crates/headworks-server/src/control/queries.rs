//! Methods that read: values, statistics, histograms, connections, failed ranges; and `discard-failed`.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use headworks_core::cache::folio::BLOCK;
use headworks_core::limits::LimitReport;
use headworks_core::stats::TurnStats;
use headworks_core::{Control, DeviceId, ExportId, ShardId, TenantId};
use serde_json::Value;

use super::elevator::{ServedMeanwhile, state_of};
use super::io_stat::io_stat;
use super::settings::Settings;
use super::shards::ShardLink;
pub use super::targets::TargetTotals;
use super::targets::{HeldByTarget, OwnTarget};
use super::tenants::Tenants;
use super::tree::{DeviceNode, ExportNode, Leaf, Tree, TreeCell, device_name, is_within};
use super::why::LongestLimit;
use super::{latency, report};
use crate::observe::latency::slow::SECONDS;
use crate::observe::latency::usage::VolumeUse;
use crate::reactor::messages::query::{
    BufferStats, CacheReport, ConnectionReport, ControlQuery, DeviceReport, LatencyReport,
    VolumeReport,
};
use crate::spec::cache_part::CacheUse;
use crate::spec::limit_words::{NO_LIMIT, cgroup_max, limit_word};
use crate::spec::option_table::OptionTable;
use crate::spec::tenant::{NONE, TenantName};
use headworks_control::methods::Values;
use headworks_control::{RpcFault, RpcResult, answers};
use headworks_core::limits::LimitTarget;

/// Wait times by export, for exports that had a client.
pub type Latencies = BTreeMap<ExportId, LatencyReport>;

/// What limits have held back, by what they are set on.
pub type LimitReports = BTreeMap<LimitTarget, LimitReport>;

/// What limits and latency targets have counted of the server, its tenants and exports.
#[derive(Clone, Debug, Default)]
pub struct NodeCounts {
    /// What limits have held back.
    pub limits: LimitReports,
    /// What latency targets have counted.
    pub targets: TargetTotals,
}

impl NodeCounts {
    /// Seconds in which requests waited for the limits of `target`.
    pub fn limited_seconds(&self, target: LimitTarget) -> f64 {
        self.limits.get(&target).map_or(0.0, |report| report.limited_ns as f64 / 1e9)
    }
}

/// Reason of the state `deleted`.
pub const DELETED: &str = "its image was deleted; its data are lost when it is closed";

/// State and data of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportFacts {
    /// Size of the export in bytes.
    pub size: u64,
    /// Acknowledged bytes of its image that are not written yet.
    pub dirty: u64,
    /// Acknowledged bytes of its image that could not be written.
    pub held: u64,
    /// Bytes in the cache for it.
    pub cached: u64,
    /// A flush failed, and that was not cleared.
    pub suspect: bool,
    /// Its device does not answer.
    pub stuck: bool,
    /// Its image is frozen.
    pub frozen: bool,
    /// It refuses new clients.
    pub refuses: bool,
    /// Its image was deleted while it is served.
    pub deleted: bool,
}

impl ExportFacts {
    /// The state that weighs most.
    pub fn state(&self) -> &'static str {
        match self {
            Self { stuck: true, .. } => "stuck",
            Self { suspect: true, .. } => "suspect",
            Self { deleted: true, .. } => "deleted",
            Self { frozen: true, .. } => "frozen",
            Self { refuses: true, .. } => "refusing",
            _ => "serving",
        }
    }
}

/// Reads the state of the server for clients and scrapers.
pub struct Queries {
    shards: Arc<ShardLink>,
    tree: Arc<TreeCell>,
    settings: Arc<Settings>,
    started: std::time::Instant,
}

impl Queries {
    /// Queries of a server that starts now.
    pub fn new(shards: Arc<ShardLink>, tree: Arc<TreeCell>, settings: Arc<Settings>) -> Self {
        Self { shards, tree, settings, started: std::time::Instant::now() }
    }

    pub(super) fn shards(&self) -> &ShardLink {
        &self.shards
    }

    pub(super) fn tree(&self) -> &TreeCell {
        &self.tree
    }

    /// Values of all names at or below `path`.
    ///
    /// # Errors
    /// `ENOENT` if there is none.
    pub fn get(&self, path: &str) -> Result<Values, RpcFault> {
        let (path, tree) = (path.trim_matches('/'), self.tree.current());
        let mut values = Values::new();
        let mut uses: Option<BTreeMap<TenantId, CacheUse>> = None;
        let mut device_before: Option<(DeviceId, DeviceReport)> = None;
        let mut of_tenants = None;
        let fact = |export, show: fn(&ExportNode) -> Value| tree.entry(export).map(show);
        for (name, leaf) in tree.leaves(path) {
            let value = match leaf {
                Leaf::Tunable(device, tunable) => {
                    if device_before.as_ref().is_none_or(|(before, _)| *before != device) {
                        device_before =
                            self.device_if_there(&tree, device)?.map(|report| (device, report));
                    }
                    match &device_before {
                        Some((_, report)) => report::value(tunable, tunable.get(&report.options)),
                        None => Value::Null,
                    }
                }
                Leaf::Device(export) => {
                    fact(export, |entry| device_name(entry.device).into()).into()
                }
                Leaf::ReadOnly(export) => {
                    fact(export, |entry| u8::from(entry.read_only).into()).into()
                }
                Leaf::Export(export, option, in_cgroup) => {
                    match option.value(&self.settings.of(export).options, in_cgroup) {
                        Value::Null => NONE.into(),
                        value => value,
                    }
                }
                // Counters and states are shown to a reader that names them.
                Leaf::IoStat(_) | Leaf::TenantIoStat(_) | Leaf::ElevatorState(_)
                    if name != path =>
                {
                    continue;
                }
                Leaf::ElevatorState(device) => self.elevator_state(&tree, device)?,
                Leaf::IoStat(export) => self.io_stat(&tree, |entry| entry.id == export)?.into(),
                Leaf::TenantIoStat(tenant) => {
                    let is_own = |entry: &ExportNode| self.settings.of(entry.id).tenant == tenant;
                    self.io_stat(&tree, is_own)?.into()
                }
                // A list of all tenants asks no shard.
                Leaf::TenantDirty(_) | Leaf::TenantCached(_) if !path.contains('/') => continue,
                Leaf::TenantDirty(tenant) | Leaf::TenantCached(tenant) => {
                    let uses = match &uses {
                        Some(uses) => uses,
                        None => uses.insert(self.settings.cache_uses()?),
                    };
                    let used = uses.get(&tenant).copied().unwrap_or_default();
                    match leaf {
                        Leaf::TenantDirty(_) => used.dirty.into(),
                        _ => used.cached.into(),
                    }
                }
                Leaf::Tenant(tenant, option, in_cgroup) => {
                    option.value(&self.settings.tenant_options(tenant), in_cgroup)
                }
                Leaf::TenantExports(tenant) => {
                    let names = of_tenants.get_or_insert_with(|| self.names_by_tenant(&tree));
                    names.get(&tenant).map_or(String::new(), |names| names.join(" ")).into()
                }
                Leaf::Limit(target, key) => {
                    let word = limit_word(&self.settings.limits(target), key);
                    // Limits that are not set are shown to a reader that names them.
                    if word == NO_LIMIT && name != path {
                        continue;
                    }
                    word.into()
                }
                Leaf::IoMax(target) => {
                    let limits = self.settings.limits(target);
                    if limits.is_none() && name != path {
                        continue;
                    }
                    cgroup_max(&limits).into()
                }
                Leaf::Dirty(tunable) => {
                    report::dirty_value(tunable, tunable.get(&self.settings.dirty()))
                }
                Leaf::Connection(_) => continue,
            };
            values.insert(name, value);
        }
        let root = "connections";
        if path.is_empty() || is_within(path, root) {
            for (_, connection) in self.list_connections()? {
                let name = format!("{root}/{}/ioprio", connection.id);
                if let Some((_, ioprio)) = connection.chosen
                    && (path.is_empty() || is_within(&name, path))
                {
                    values.insert(name, ioprio.to_string().into());
                }
            }
        }
        if values.is_empty() && path != root {
            return Err(tree.no_entry(path));
        }
        Ok(values)
    }

    /// State of a device's elevator.
    fn elevator_state(&self, tree: &Tree, device: DeviceId) -> RpcResult {
        let name = |export| tree.entry(export).map(|entry| entry.shown_name().to_owned());
        match self.shards.elevator(tree, device)? {
            Some(state) => headworks_control::reply(&state_of(&state, name)),
            None => {
                let scheduler = self.shards.device(tree, device)?.options.scheduler.name();
                let message = format!("the scheduler {scheduler} has no state; bfq has");
                Err(RpcFault::refused("ENOENT", message))
            }
        }
    }

    /// What the elevator of an export's device served in the last minute; none if it does not serve in slots.
    pub(super) fn served_meanwhile(
        &self,
        tree: &Tree,
        entry: &ExportNode,
    ) -> Result<Option<ServedMeanwhile>, RpcFault> {
        let name = |export| match tree.entry(export) {
            Some(other) => match self.settings.tenant_of(export) {
                Some(tenant) => format!("export {} of tenant {tenant}", other.shown_name()),
                None => format!("export {}", other.shown_name()),
            },
            None => "a removed export".to_owned(),
        };
        let state = self.shards.elevator(tree, entry.device)?;
        Ok(state.map(|state| ServedMeanwhile::of(&state, entry.id, name)))
    }

    /// Names of exports by tenant, in one pass.
    fn names_by_tenant<'a>(&self, tree: &'a Tree) -> BTreeMap<TenantId, Vec<&'a str>> {
        let mut all: BTreeMap<TenantId, Vec<&str>> = BTreeMap::new();
        for entry in &tree.exports {
            all.entry(self.settings.of(entry.id).tenant).or_default().push(entry.shown_name());
        }
        all
    }

    /// Counters of exports as a cgroup's `io.stat`, one line for each device.
    fn io_stat(
        &self,
        tree: &Tree,
        is_own: impl Fn(&ExportNode) -> bool,
    ) -> Result<String, RpcFault> {
        let dirty = self.shards.ask_all(|answer| ControlQuery::Exports { answer })?;
        let own = tree.exports.iter().filter(|entry| is_own(entry));
        Ok(io_stat(own, &self.latencies()?, dirty.iter().flatten()))
    }

    /// Dirty bytes of each tenant's exports. Exports of one image, which have one tenant, show the same data.
    pub fn dirty_by_tenant(&self, tree: &Tree) -> Result<BTreeMap<TenantId, u64>, RpcFault> {
        let mut dirty: BTreeMap<ExportId, u64> = BTreeMap::new();
        let reports = self.shards.ask_all(|answer| ControlQuery::Exports { answer })?;
        for report in reports.iter().flatten() {
            *dirty.entry(report.export).or_default() += report.dirty;
        }
        let (mut all, mut volumes) = (BTreeMap::new(), BTreeSet::new());
        for entry in tree.exports.iter().filter(|entry| volumes.insert(entry.volume)) {
            let bytes = dirty.get(&entry.id).copied().unwrap_or(0);
            *all.entry(self.settings.of(entry.id).tenant).or_default() += bytes;
        }
        Ok(all)
    }

    /// State and data of each export.
    pub fn export_facts(&self, tree: &Tree) -> Result<BTreeMap<ExportId, ExportFacts>, RpcFault> {
        let mut all: BTreeMap<ExportId, ExportFacts> = BTreeMap::new();
        let reports = self.shards.ask_all(|answer| ControlQuery::Exports { answer })?;
        for report in reports.iter().flatten() {
            let facts = all.entry(report.export).or_default();
            facts.size += report.size.unwrap_or(0);
            facts.dirty += report.dirty;
            facts.held += report.failed;
            facts.suspect |= report.suspect;
            facts.stuck |= report.stuck;
            facts.frozen |= report.frozen;
            facts.refuses |= report.refuses;
            facts.deleted |= report.deleted;
        }
        let exports: Arc<[ExportId]> = tree.exports.iter().map(|entry| entry.id).collect();
        let blocks = self.shards.ask_all(|answer| {
            let exports = Arc::clone(&exports);
            ControlQuery::ExportBlocks { exports, answer }
        })?;
        for (export, (_, cached)) in
            blocks.iter().flat_map(|blocks| exports.iter().copied().zip(blocks.iter().copied()))
        {
            all.entry(export).or_default().cached += cached * u64::from(BLOCK);
        }
        Ok(all)
    }

    /// The last error reply of each export that had one, and how long ago that was in nanoseconds.
    pub fn last_errors(&self) -> Result<BTreeMap<ExportId, u64>, RpcFault> {
        let mut all = BTreeMap::new();
        for (now, errors) in self.shards.ask_all(|answer| ControlQuery::LastErrors { answer })? {
            let ago = errors.into_iter().map(|(export, last)| (export, now.since(last.at)));
            all.extend(ago);
        }
        Ok(all)
    }

    /// What the requests of each volume have used of its device.
    pub fn device_uses(&self) -> Result<Vec<VolumeUse>, RpcFault> {
        let all = self.shards.ask_all(|answer| ControlQuery::DeviceUses { answer })?;
        Ok(all.into_iter().flatten().collect())
    }

    /// What the latency targets of all devices have counted.
    pub fn targets(&self) -> Result<TargetTotals, RpcFault> {
        TargetTotals::ask(&self.shards)
    }

    /// The latency target of an export, and those of others that hold it back.
    pub(super) fn target_facts(
        &self,
        tree: &Tree,
        entry: &ExportNode,
        device: &DeviceReport,
    ) -> Result<(Option<OwnTarget>, Option<HeldByTarget>), RpcFault> {
        let report =
            self.shards.ask(tree.owner(entry), |answer| ControlQuery::Targets { answer })?;
        let counts = report.exports.iter().find(|(export, _)| *export == entry.id);
        let counts = counts.map(|(_, counts)| *counts).unwrap_or_default();
        let name = device_name(entry.device);
        let whose = |entry: &ExportNode, tenant: Option<TenantName>| match tenant {
            Some(tenant) => format!("tenant {tenant}"),
            None => format!("export {}", entry.shown_name()),
        };
        let (target_us, tenant) = self.settings.target_of(entry.id);
        let own = (target_us > 0).then(|| OwnTarget {
            target_us,
            of: whose(entry, tenant),
            device: name.clone(),
            kept: device.queue.targets.is_some(),
            counts,
            smallest_ns: device.smallest_ns,
        });
        let is_recent =
            |at: headworks_core::Instant| report.now.since(at) < SECONDS as u64 * 1_000_000_000;
        let held = counts.held_at.is_some_and(is_recent).then(|| {
            let others = tree.exports.iter().filter(|other| other.device == entry.device);
            let mut of: Vec<String> = others
                .map(|other| (other, self.settings.target_of(other.id)))
                .filter(|(_, (target_us, _))| *target_us == counts.held_for_us)
                .map(|(other, (_, tenant))| whose(other, tenant))
                .collect();
            of.sort_unstable();
            of.dedup();
            HeldByTarget {
                target_us: counts.held_for_us,
                of,
                device: name,
                limit: device.queue.targets.and_then(|targets| targets.limit),
                requests: counts.held,
            }
        });
        Ok((own, held))
    }

    /// All tenants of the server.
    pub fn tenants(&self) -> Tenants {
        self.settings.tenants()
    }

    /// Name of an export's tenant, if it has one.
    pub fn tenant_of(&self, export: ExportId) -> Option<TenantName> {
        self.settings.tenant_of(export)
    }

    /// Discards the blocks of an export whose write-back failed and lets its flushes succeed again. Without `confirm`, an
    /// export that has something to lose is reported and left as it is.
    pub fn discard_failed(
        &self,
        name: &str,
        confirm: bool,
    ) -> Result<answers::Discarded, RpcFault> {
        let tree = self.tree.current();
        let entry = tree.find_export(name)?;
        let ExportNode { volume, home, .. } = *entry;
        let owner = tree.owner(entry);
        let report = self.shards.ask(owner, |answer| ControlQuery::Volume { volume, answer })?;
        let failed = self.shards.ask(home, |answer| ControlQuery::Failed { volume, answer })?;
        let name = entry.shown_name();
        let bytes: u64 = failed.iter().map(|range| range.len).sum();
        if confirm {
            let control = Control::Acknowledge { volume };
            // The failed blocks are discarded first, then flushes may succeed again.
            self.shards.ask(home, |answer| ControlQuery::Tell { control, answer })?;
            if owner != home {
                self.shards.ask(owner, |answer| ControlQuery::Tell { control, answer })?;
            }
            if report.suspect || bytes > 0 {
                tracing::warn!(
                    "export {name}: discarded {bytes} acknowledged bytes that could not be written (ctl discard-failed); its flushes can succeed again"
                );
            }
        }
        Ok(answers::Discarded {
            export: name.to_owned(),
            was_suspect: report.suspect,
            unflushed: report.unflushed,
            failed_bytes: bytes,
            discarded: confirm && (report.suspect || bytes > 0),
        })
    }

    /// Ranges of an export that could not be written back.
    pub fn failed(&self, name: &str) -> Result<answers::FailedRanges, RpcFault> {
        let tree = self.tree.current();
        let entry = tree.find_export(name)?;
        let volume = entry.volume;
        let ranges =
            self.shards.ask(entry.home, |answer| ControlQuery::Failed { volume, answer })?;
        let export = entry.shown_name().to_owned();
        Ok(answers::FailedRanges { export, ranges: report::failed(&ranges) })
    }

    /// Statistics of exports, devices, caches and turns.
    pub fn stats(&self) -> Result<answers::Stats, RpcFault> {
        let tree = self.tree.current();
        let mut reports: Vec<(DeviceId, DeviceReport)> = Vec::new();
        for DeviceNode { id, .. } in &tree.devices {
            reports.extend(self.device_if_there(&tree, *id)?.map(|report| (*id, report)));
        }
        let (latencies, in_flight) = (self.latencies()?, self.in_flight(&tree)?);
        let mut exports = BTreeMap::new();
        for entry in &tree.exports {
            let volume = entry.volume;
            let report = self
                .shards
                .ask(tree.owner(entry), |answer| ControlQuery::Volume { volume, answer });
            let Some(report) = self.tree.if_current(&tree, report)? else { continue };
            let report: VolumeReport = report;
            let device = reports.iter().find(|(device, _)| *device == entry.device);
            let Some((_, DeviceReport { options, .. })) = device else { continue };
            let setting = (self.settings.of(entry.id), self.settings.tenant_of(entry.id));
            let latency = (latencies.get(&entry.id), in_flight.get(&entry.id));
            let row = report::export(entry, setting, options, &report, latency);
            exports.insert(entry.shown_name().to_owned(), row);
        }
        let devices = reports.iter();
        let devices = devices.map(|(device, table)| {
            let oldest = self.oldest_command(&tree, table.oldest);
            (device_name(*device), report::device(table, oldest.as_ref()))
        });
        let caches = self.caches()?;
        Ok(answers::Stats {
            devices: devices.collect(),
            exports,
            connections: self.connections()?,
            seconds: self.started.elapsed().as_secs_f64(),
            turns: report::turns(&self.turns()?),
            cache: report::cache(&caches),
            dirty: report::dirty(&caches),
            buffers: report::buffers(&self.buffers()?),
        })
    }

    /// Counters of every device with the fields of `/proc/diskstats`.
    pub fn diskstats(&self) -> Result<Vec<answers::DiskRow>, RpcFault> {
        let (mut lines, tree) = (Vec::new(), self.tree.current());
        for DeviceNode { id, .. } in &tree.devices {
            let report = self.device_if_there(&tree, *id)?;
            lines.extend(report.map(|report| report::diskstats(*id, &report)));
        }
        Ok(lines)
    }

    /// One row for each connection.
    pub fn connections(&self) -> Result<Vec<answers::Connection>, RpcFault> {
        let (list, tree) = (self.list_connections()?, self.tree.current());
        let shown = list.iter().map(|(shard, connection)| {
            let name = |export| Some(tree.entry(export)?.shown_name().to_owned());
            answers::Connection {
                id: connection.id,
                kind: connection.kind.word().to_owned(),
                peer: connection.peer.clone(),
                listener: connection.listener.as_deref().map(str::to_owned),
                shard: shard.0,
                export: connection.chosen.and_then(|(export, _)| name(export)),
                ioprio: connection.chosen.map(|(_, ioprio)| ioprio.to_string()),
                in_flight: connection.in_flight,
                waiting: connection.waiting,
                oldest_s: connection.oldest_ns.map(|ns| ns as f64 / 1e9),
                latency: connection.latency.as_ref().map(|table| latency::compact(&table.into())),
            }
        });
        Ok(shown.collect())
    }

    /// Number of connections by the name of the listener that they came through.
    pub fn clients_by_listener(&self) -> Result<BTreeMap<Arc<str>, usize>, RpcFault> {
        let mut counts = BTreeMap::new();
        for (_, connection) in self.list_connections()? {
            if let Some(listener) = connection.listener {
                *counts.entry(listener).or_default() += 1;
            }
        }
        Ok(counts)
    }

    fn list_connections(&self) -> Result<Vec<(ShardId, ConnectionReport)>, RpcFault> {
        let mut all = Vec::new();
        for shard in self.shards.ids() {
            let mut next = Some(0);
            while let Some(from) = next {
                let (some, more) =
                    self.shards.ask(shard, |answer| ControlQuery::Connections { from, answer })?;
                all.extend(some.into_iter().map(|connection| (shard, connection)));
                next = more;
            }
        }
        Ok(all)
    }

    /// Collects wait times of all exports from every shard, part by part.
    pub fn latencies(&self) -> Result<Latencies, RpcFault> {
        let mut all = Latencies::new();
        for shard in self.shards.ids() {
            let mut next = Some(ExportId(0));
            while let Some(from) = next {
                let part =
                    self.shards.ask(shard, |answer| ControlQuery::Latency { from, answer })?;
                for report in part.reports {
                    match all.entry(report.export) {
                        // Most exports have clients on one shard.
                        Entry::Vacant(place) => drop(place.insert(report)),
                        Entry::Occupied(sum) => {
                            let sum = sum.into_mut();
                            sum.totals.merge(&report.totals);
                            sum.connections += report.connections;
                            sum.now = sum.now.max(report.now);
                        }
                    }
                }
                next = part.next;
            }
        }
        Ok(all)
    }

    /// Histograms of one export, or of every export.
    pub fn histograms(&self, name: Option<&str>) -> Result<answers::Histograms, RpcFault> {
        let (tree, all) = (self.tree.current(), self.latencies()?);
        let ops = |entry: &ExportNode| {
            let report = all.get(&entry.id);
            report.map(|report| latency::histograms(&report.totals)).unwrap_or_default()
        };
        let none = answers::Histograms::default();
        if let Some(name) = name {
            let entry = tree.find_export(name)?;
            let (export, ops) = (Some(entry.shown_name().to_owned()), Some(ops(entry)));
            return Ok(answers::Histograms { export, ops, ..none });
        }
        let one = |entry: &ExportNode| (entry.shown_name().to_owned(), ops(entry));
        let exports = Some(tree.exports.iter().map(one).collect());
        Ok(answers::Histograms { exports, ..none })
    }

    /// What limits and latency targets have counted.
    pub fn node_counts(&self) -> Result<NodeCounts, RpcFault> {
        Ok(NodeCounts { limits: self.limits()?, targets: self.targets()? })
    }

    /// What limits have held back, on all shards together.
    pub fn limits(&self) -> Result<LimitReports, RpcFault> {
        let mut all = LimitReports::new();
        for shard in self.shards.ids() {
            for (target, report) in
                self.shards.ask(shard, |answer| ControlQuery::Limits { answer })?
            {
                let sum = all.entry(target).or_default();
                sum.limited += report.limited;
                sum.limited_ns = sum.limited_ns.max(report.limited_ns);
                sum.is_holding |= report.is_holding;
                sum.kind = report.kind.or(sum.kind);
            }
        }
        Ok(all)
    }

    /// The limit on an export's path that requests have waited for longest: node, limit and rate.
    pub(super) fn longest_limit(
        &self,
        entry: &ExportNode,
    ) -> Result<Option<LongestLimit>, RpcFault> {
        let reports = self.limits()?;
        let tenant = LimitTarget::Tenant(self.settings.of(entry.id).tenant);
        let targets = [LimitTarget::Export(entry.id), tenant, LimitTarget::Server];
        let own = reports.into_iter().filter(|(target, _)| targets.contains(target));
        let longest = own.max_by_key(|(_, report)| (report.is_holding, report.limited_ns));
        Ok(longest.and_then(|(target, report)| {
            let (kind, limits) = (report.kind?, self.settings.limits(target));
            let rate = limits.rate(kind);
            let tenant = || self.settings.tenant_of(entry.id).map(|name| name.to_string());
            let (node, path) = match target {
                LimitTarget::Export(_) => {
                    let name = entry.shown_name();
                    (format!("export {name}"), format!("exports/{name}"))
                }
                LimitTarget::Tenant(_) => {
                    let name = tenant().unwrap_or_default();
                    (format!("tenant {name}"), format!("tenants/{name}"))
                }
                LimitTarget::Server => ("the server".to_owned(), "server".to_owned()),
            };
            let burst = if rate.max > 0 { ", burst used up" } else { "" };
            let mut doubled = limits;
            doubled.rates[kind as usize].average = rate.average.saturating_mul(2);
            let [now, doubled] = [limits, doubled].map(|limits| limit_word(&limits, kind.name()));
            Some(LongestLimit {
                words: format!("{node}: {} {now}{burst}", kind.name()),
                doubled: format!("{path}/{} {doubled}", kind.name()),
            })
        }))
    }

    /// Statistics of a device; none if it was removed since `tree` was taken.
    pub fn device_if_there(
        &self,
        tree: &Tree,
        device: DeviceId,
    ) -> Result<Option<DeviceReport>, RpcFault> {
        self.tree.if_current(tree, self.shards.device(tree, device))
    }

    /// Plug statistics of every shard.
    pub fn turns(&self) -> Result<Vec<TurnStats>, RpcFault> {
        self.shards.ask_all(|answer| ControlQuery::Turns { answer })
    }

    /// Cache statistics of every shard.
    pub fn caches(&self) -> Result<Vec<CacheReport>, RpcFault> {
        self.shards.ask_all(|answer| ControlQuery::Cache { answer })
    }

    /// What tenants have of the cache.
    pub fn cache_uses(&self) -> Result<BTreeMap<TenantId, CacheUse>, RpcFault> {
        self.settings.cache_uses()
    }

    /// Request buffers of every shard.
    pub fn buffers(&self) -> Result<Vec<BufferStats>, RpcFault> {
        self.shards.ask_all(|answer| ControlQuery::Buffers { answer })
    }

    /// Queries to shards so far.
    #[cfg(test)]
    pub fn asked(&self) -> usize {
        self.shards.asked()
    }

    /// Time since the server started.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }
}
