//! The metrics of a server as a page in Prometheus' text format.

use std::collections::BTreeMap;

use headworks_core::cache::folio::BLOCK;
use headworks_core::stats::TargetCounts;
use headworks_core::{DeviceState, ExportId, Op, TenantId, WaitKind};
use headworks_images::ModelTimes;
use headworks_nbd::device::{RemoteReport, RemoteState};

use super::exports::put_exports;
use super::process::put_process;
use super::text::{MetricType, MetricsPage, seconds};
use crate::control::in_flight::InFlightExports;
use crate::control::queries::{Latencies, LimitReports, Queries, TargetTotals};
use crate::control::tree::{DeviceNode, ExportNode, TenantNode, Tree, device_name};
use crate::observe::latency::{Histogram, ROWS, request_name, row_name};
use crate::reactor::messages::query::{BufferStats, DeviceReport, LatencyReport};
use crate::spec::tenant::TenantName;
use headworks_control::RpcFault;
use headworks_core::limits::LimitTarget;

/// Makes the page of all metrics.
pub fn metrics_page(queries: &Queries, tree: &Tree) -> Result<String, RpcFault> {
    let mut page = MetricsPage::default();
    page.family("headworks_build_info", MetricType::Gauge, "The version of the server.");
    page.sample("headworks_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    page.family("headworks_uptime_seconds", MetricType::Gauge, "Seconds since the server started.");
    page.sample("headworks_uptime_seconds", &[], queries.uptime().as_secs_f64());
    put_process(&mut page, queries.uptime());
    let latencies = queries.latencies()?;
    put_clients(&mut page, queries, tree, &latencies);
    put_exports(&mut page, queries, tree, &latencies)?;
    let names = NodeNames::new(queries, tree);
    let counts = queries.node_counts()?;
    put_limits(&mut page, &names, &counts.limits);
    put_targets(&mut page, &names, &counts.targets);
    put_tenants_dirty(&mut page, &names, &queries.dirty_by_tenant(tree)?);
    put_devices(&mut page, queries, tree, &names)?;
    put_buffers(&mut page, queries)?;
    put_caches(&mut page, queries)?;
    put_tenants_cached(&mut page, queries, tree)?;
    Ok(page.into_text())
}

/// How long what is not answered yet has waited: of an export since it came, of a device since that was sent it; 0 without one.
fn put_oldest(
    page: &mut MetricsPage,
    (tree, names): (&Tree, &NodeNames<'_>),
    all: &InFlightExports,
    devices: &[(String, DeviceReport)],
) {
    let name = "headworks_oldest_request_seconds";
    page.family(name, MetricType::Gauge, "Age of the oldest request that is not answered yet.");
    for entry in &tree.exports {
        let Some(labels) = names.export(entry.id) else { continue };
        let oldest = all.get(&entry.id).and_then(|all| all.oldest.as_ref());
        page.sample(name, &labels, oldest.map_or(0.0, |oldest| oldest.age.as_secs_f64()));
    }
    for (device, report) in devices {
        let age_ns = report.oldest.map_or(0, |oldest| oldest.age_ns);
        page.sample(name, &[("device", device)], seconds(age_ns));
    }
}

/// Metrics of queues and devices.
fn put_devices(
    page: &mut MetricsPage,
    queries: &Queries,
    tree: &Tree,
    names: &NodeNames<'_>,
) -> Result<(), RpcFault> {
    let mut reports = Vec::new();
    for DeviceNode { id, .. } in &tree.devices {
        let report = queries.device_if_there(tree, *id)?;
        reports.extend(report.map(|report| (device_name(*id), report)));
    }
    let turns = queries.turns()?;
    let plug: u64 = turns.iter().flat_map(|shard| &shard.rows).map(|row| row.merges).sum();
    // Both are counted where merges happen; a difference of counters read at different times could decrease.
    let queue: u64 = reports.iter().map(|(_, report)| report.queue.merges).sum();
    let name = "headworks_merges_total";
    page.family(
        name,
        MetricType::Counter,
        "Merged requests, in the plug or with a queued request.",
    );
    page.sample(name, &[("kind", "plug")], plug);
    page.sample(name, &[("kind", "queue")], queue);
    let name = "headworks_device_busy_seconds_total";
    page.family(name, MetricType::Counter, "Time with at least one request in flight.");
    for (device, report) in &reports {
        page.sample(name, &[("device", device)], seconds(report.busy_ns));
    }
    let name = "headworks_queue_requests";
    page.family(name, MetricType::Gauge, "Requests waiting for a tag, queued, or in the device.");
    for (device, report) in &reports {
        page.sample(name, &[("device", device)], report.queue.in_flight);
    }
    let name = "headworks_device_stuck";
    page.family(name, MetricType::Gauge, "1 while the device does not answer; requests then fail.");
    for (device, report) in &reports {
        page.sample(name, &[("device", device)], u32::from(report.state == DeviceState::Stuck));
    }
    put_oldest(page, (tree, names), &queries.in_flight(tree)?, &reports);
    put_remotes(page, tree);
    put_models(page, tree);
    let name = "headworks_device_bulk_limit_bytes";
    let help = "Most bytes in the device of exports without a latency target or with a looser one; absent without a target.";
    page.family(name, MetricType::Gauge, help);
    for (device, report) in &reports {
        if let Some(targets) = report.queue.targets {
            let limit = targets.limit.map_or("+Inf".to_owned(), |limit| limit.to_string());
            page.sample(name, &[("device", device)], limit);
        }
    }
    let name = "headworks_device_smallest_latency_seconds";
    let help =
        "Smallest latency of small requests on the idle device; measured with a latency target.";
    page.family(name, MetricType::Gauge, help);
    for (device, report) in &reports {
        if let Some(ns) = report.smallest_ns {
            page.sample(name, &[("device", device)], seconds(ns));
        }
    }
    for (name, help, bytes) in [
        ("headworks_device_requests_total", "Requests of a device's queue, after merging.", false),
        ("headworks_device_bytes_total", "Bytes of requests of a device's queue.", true),
    ] {
        page.family(name, MetricType::Counter, help);
        for (device, report) in &reports {
            for (op, counts) in Op::ALL.into_iter().zip(&report.ops) {
                let labels = [("device", device.as_str()), ("op", op.name())];
                let value = if bytes { counts.bytes } else { counts.requests };
                if counts.requests > 0 {
                    page.sample(name, &labels, value);
                }
            }
        }
    }
    let name = "headworks_device_errors_total";
    page.family(name, MetricType::Counter, "Requests of a device's queue that failed.");
    for (device, report) in &reports {
        for (op, counts) in Op::ALL.into_iter().zip(&report.ops) {
            if counts.errors > 0 {
                page.sample(name, &[("device", device), ("op", op.name())], counts.errors);
            }
        }
    }
    let name = "headworks_device_depth_limit";
    let help = "Cost of commands that the device may have at once, where it is found by measuring.";
    page.family(name, MetricType::Gauge, help);
    for (device, report) in &reports {
        if let Some(depth) = report.queue.depth.filter(|depth| depth.limit > 0) {
            page.sample(name, &[("device", device)], depth.limit);
        }
    }
    let name = "headworks_tags";
    page.family(name, MetricType::Gauge, "Tags of the device: requests that it may have at once.");
    for (device, report) in &reports {
        page.sample(name, &[("device", device)], report.tags_depth);
    }
    let name = "headworks_tags_free";
    page.family(name, MetricType::Gauge, "Free tags.");
    for (device, report) in &reports {
        page.sample(name, &[("device", device)], report.tags_free);
    }
    Ok(())
}

/// Connections of devices behind other servers.
fn put_remotes(page: &mut MetricsPage, tree: &Tree) {
    let remotes: Vec<_> = tree
        .devices
        .iter()
        .filter_map(|device| Some((device_name(device.id), device.remote.as_ref()?)))
        .map(|(device, link)| (device, link.uri.as_str(), link.status.report()))
        .collect();
    type Of = fn(&RemoteReport) -> u64;
    let rows: [(&str, MetricType, &str, Of); 4] = [
        (
            "headworks_remote_up",
            MetricType::Gauge,
            "1 while an nbd: device has connections.",
            |it| u64::from(it.state == RemoteState::Up),
        ),
        (
            "headworks_remote_connections",
            MetricType::Gauge,
            "Open connections of an nbd: device.",
            |it| it.connections.into(),
        ),
        (
            "headworks_remote_reconnects_total",
            MetricType::Counter,
            "How often an nbd: device connected anew.",
            |it| it.reconnects,
        ),
        (
            "headworks_remote_losses_total",
            MetricType::Counter,
            "How often acknowledged writes of an nbd: device may have been lost with the server.",
            |it| it.losses,
        ),
    ];
    if remotes.is_empty() {
        return;
    }
    for (name, metric, help, of) in rows {
        page.family(name, metric, help);
        for (device, uri, report) in &remotes {
            page.sample(name, &[("device", device.as_str()), ("remote", *uri)], of(report));
        }
    }
}

/// How long the commands of modelled disks took by their models, and how late they were answered.
fn put_models(page: &mut MetricsPage, tree: &Tree) {
    let models: Vec<_> = tree
        .devices
        .iter()
        .filter_map(|device| Some((device_name(device.id), device.model.as_ref()?)))
        .map(|(device, link)| (device, link.name.as_str(), link.status.times()))
        .collect();
    type Of = fn(&ModelTimes) -> (&headworks_core::stats::Histogram, u64);
    let rows: [(&str, &str, Of); 2] = [
        (
            "headworks_model_seconds",
            "What commands of a model: device take by the model.",
            |times| (&times.modelled, times.modelled_ns),
        ),
        (
            "headworks_model_late_seconds",
            "How much later than the model's time commands of a model: device were answered.",
            |times| (&times.late, times.late_ns),
        ),
    ];
    if models.is_empty() {
        return;
    }
    for (name, help, of) in rows {
        page.family(name, MetricType::Histogram, help);
        for (device, model, times) in &models {
            let (row, sum_ns) = of(times);
            let labels = [("device", device.as_str()), ("model", *model)];
            page.histogram(name, &labels, &Histogram::from(row), sum_ns);
        }
    }
}

/// Metrics of the request buffers of all shards together.
fn put_buffers(page: &mut MetricsPage, queries: &Queries) -> Result<(), RpcFault> {
    let shards = queries.buffers()?;
    let mut put = |kind, name: &str, help: &str, value: u64| {
        page.family(name, kind, help);
        page.sample(name, &[], value);
    };
    let sum = |of: fn(&BufferStats) -> u64| shards.iter().map(of).sum::<u64>();
    let (gauge, counter) = (MetricType::Gauge, MetricType::Counter);
    let help = "Memory of all request buffers.";
    put(gauge, "headworks_buffer_limit_bytes", help, sum(|s| s.size as u64));
    let help = "Request buffers in use: in flight, being received, or in unread replies.";
    put(gauge, "headworks_buffer_used_bytes", help, sum(|s| s.taken as u64));
    let help = "Clients that wait for a request buffer.";
    put(gauge, "headworks_buffer_waiters", help, sum(|s| s.waiting as u64));
    let help = "Times that a client began to wait for a request buffer.";
    put(counter, "headworks_buffer_waits_total", help, sum(|s| s.waits));
    let help = "Unread replies whose data were dropped for other clients, to be read again.";
    put(counter, "headworks_dropped_replies_total", help, sum(|s| s.dropped_replies));
    let help = "Bytes of buffers that dropped replies returned.";
    put(counter, "headworks_dropped_bytes_total", help, sum(|s| s.dropped_bytes));
    let help = "Parts of writes that were written before all of them had come, for other clients.";
    put(counter, "headworks_payloads_written_early_total", help, sum(|s| s.payloads_written_early));
    let help = "Buffers of incomplete writes that were cut to what had come.";
    put(counter, "headworks_blocks_cut_total", help, sum(|s| s.blocks_cut));
    let help = "Clients disconnected because they made no progress, or a reply could not continue.";
    put(counter, "headworks_stalled_disconnects_total", help, sum(|s| s.closed));
    Ok(())
}

/// Metrics of all caches together; none without a cache.
fn put_caches(page: &mut MetricsPage, queries: &Queries) -> Result<(), RpcFault> {
    let caches = queries.caches()?;
    let cache = || caches.iter().filter_map(|report| report.cache);
    let dirty = || caches.iter().filter_map(|report| report.dirty);
    let bytes = |blocks: u64| blocks * u64::from(BLOCK);
    if cache().next().is_none() {
        return Ok(());
    }
    let gauge = |page: &mut MetricsPage, name: &str, help: &str, value: u64| {
        page.family(name, MetricType::Gauge, help);
        page.sample(name, &[], value);
    };
    let dirty_blocks = dirty().map(|d| d.nr_dirty + d.nr_writeback).sum();
    let resident = cache().map(|c| c.size.resident).sum();
    let limit = dirty().map(|d| d.nr_dirty_threshold).sum();
    let help = "Acknowledged data that is not written yet.";
    gauge(page, "headworks_cache_dirty_bytes", help, bytes(dirty_blocks));
    let help = "Limit of dirty data.";
    gauge(page, "headworks_cache_dirty_limit_bytes", help, bytes(limit));
    gauge(page, "headworks_cache_resident_bytes", "Data in the page cache.", bytes(resident));
    let (now, most) = (cache().map(|c| c.size.units).sum(), cache().map(|c| c.size.room).sum());
    let help = "Memory that the page cache may use now.";
    gauge(page, "headworks_cache_limit_bytes", help, bytes(now));
    let help = "Memory that the page cache may use at most.";
    gauge(page, "headworks_cache_max_bytes", help, bytes(most));
    let counter = |page: &mut MetricsPage, name: &str, help: &str, value: u64| {
        page.family(name, MetricType::Counter, help);
        page.sample(name, &[], value);
    };
    let (hits, misses) = (cache().map(|c| c.hits).sum(), cache().map(|c| c.misses).sum());
    counter(page, "headworks_cache_hits_total", "Blocks of 4 KiB found in the cache.", hits);
    counter(page, "headworks_cache_misses_total", "Blocks that had to be read.", misses);
    Ok(())
}

/// What is cached for tenants; none without a cache.
fn put_tenants_cached(
    page: &mut MetricsPage,
    queries: &Queries,
    tree: &Tree,
) -> Result<(), RpcFault> {
    if tree.caching.is_empty() || tree.tenants.is_empty() {
        return Ok(());
    }
    let uses = queries.cache_uses()?;
    let name = "headworks_tenant_cached_bytes";
    page.family(name, MetricType::Gauge, "Data of a tenant's exports in the page cache.");
    for tenant in &tree.tenants {
        let used = uses.get(&tenant.id).copied().unwrap_or_default();
        page.sample(name, &[("tenant", tenant.name.as_str())], used.cached);
    }
    Ok(())
}

/// Names of exports and tenants by their numbers.
struct NodeNames<'a> {
    exports: BTreeMap<ExportId, (&'a str, Option<TenantName>)>,
    tenants: BTreeMap<TenantId, &'a str>,
}

impl<'a> NodeNames<'a> {
    fn new(queries: &Queries, tree: &'a Tree) -> Self {
        let export =
            |entry: &'a ExportNode| (entry.id, (entry.shown_name(), queries.tenant_of(entry.id)));
        let tenant = |node: &'a TenantNode| (node.id, node.name.as_str());
        Self {
            exports: tree.exports.iter().map(export).collect(),
            tenants: tree.tenants.iter().map(tenant).collect(),
        }
    }

    /// Labels of an export; none if it was removed.
    fn export(&self, id: ExportId) -> Option<LabelList<'_>> {
        let (name, tenant) = self.exports.get(&id)?;
        Some(of_export(name, tenant.as_ref(), &[]))
    }

    /// Labels of a tenant; none if it was removed.
    fn tenant(&self, id: TenantId) -> Option<LabelList<'_>> {
        Some(vec![("tenant", *self.tenants.get(&id)?)])
    }
}

/// What limits have held back: of the server without a label, of exports with theirs, of tenants in families of their own: a sum over
/// one family counts nothing twice.
fn put_limits(page: &mut MetricsPage, names: &NodeNames<'_>, all: &LimitReports) {
    let (mut rows, mut tenants) = (Vec::new(), Vec::new());
    for (target, report) in all {
        match *target {
            LimitTarget::Server => rows.push((Vec::new(), report)),
            LimitTarget::Export(id) => {
                rows.extend(names.export(id).map(|labels| (labels, report)));
            }
            LimitTarget::Tenant(id) => {
                tenants.extend(names.tenant(id).map(|labels| (labels, report)));
            }
        }
    }
    for (kind, rows) in [("", &rows), ("tenant_", &tenants)] {
        let name = format!("headworks_{kind}limited_requests_total");
        page.family(&name, MetricType::Counter, "Requests that waited for a limit.");
        for (labels, report) in rows {
            page.sample(&name, labels, report.limited);
        }
        let name = format!("headworks_{kind}limited_seconds_total");
        page.family(&name, MetricType::Counter, "Time in which requests waited for a limit.");
        for (labels, report) in rows {
            page.sample(&name, labels, seconds(report.limited_ns));
        }
    }
}

/// What tenants have in the cache that is not written out.
fn put_tenants_dirty(
    page: &mut MetricsPage,
    names: &NodeNames<'_>,
    dirty: &BTreeMap<TenantId, u64>,
) {
    let name = "headworks_tenant_dirty_bytes";
    page.family(name, MetricType::Gauge, "Acknowledged data of a tenant that is not written yet.");
    for (id, bytes) in dirty {
        if let Some(labels) = names.tenant(*id) {
            page.sample(name, &labels, bytes);
        }
    }
}

/// What latency targets have counted, of exports and, in families of their own, of tenants.
fn put_targets(page: &mut MetricsPage, names: &NodeNames<'_>, all: &TargetTotals) {
    let exports = all.exports.iter();
    let exports: Vec<_> =
        exports.filter_map(|(id, counts)| Some((names.export(*id)?, counts))).collect();
    let tenants = all.tenants.iter();
    let tenants: Vec<_> =
        tenants.filter_map(|(id, counts)| Some((names.tenant(*id)?, counts))).collect();
    type Of = fn(&TargetCounts) -> u64;
    let rows: [(&str, &str, Of); 3] = [
        ("requests", "Small requests with a latency target.", |counts| counts.ended),
        ("missed", "Small requests that missed their latency target.", |counts| counts.missed),
        ("held", "Requests that waited for the latency target of others.", |counts| counts.held),
    ];
    for (what, help, of) in rows {
        for (kind, rows) in [("", &exports), ("tenant_", &tenants)] {
            let name = format!("headworks_{kind}target_{what}_total");
            page.family(&name, MetricType::Counter, help);
            for (labels, counts) in rows {
                page.sample(&name, labels, of(counts));
            }
        }
    }
}

/// Metrics of clients and their requests.
fn put_clients(page: &mut MetricsPage, queries: &Queries, tree: &Tree, all: &Latencies) {
    let tenants: Vec<Option<TenantName>> =
        tree.exports.iter().map(|entry| queries.tenant_of(entry.id)).collect();
    // Every export has a connection count; the others need completed requests.
    let name = "headworks_connections";
    page.family(name, MetricType::Gauge, "Clients of this export.");
    for (entry, tenant) in tree.exports.iter().zip(&tenants) {
        let count = all.get(&entry.id).map_or(0, |report| report.connections);
        page.sample(name, &of_export(entry.shown_name(), tenant.as_ref(), &[]), count);
    }
    let rows: Vec<(LabelList<'_>, &LatencyReport, Op)> = tree
        .exports
        .iter()
        .zip(&tenants)
        .filter_map(|(entry, tenant)| Some((entry.shown_name(), tenant, all.get(&entry.id)?)))
        .flat_map(|(export, tenant, report)| {
            Op::ALL.map(|kind| {
                (of_export(export, tenant.as_ref(), &[("op", request_name(kind))]), report, kind)
            })
        })
        .filter(|(_, report, kind)| report.totals.requests(*kind) > 0)
        .collect();
    let name = "headworks_requests_total";
    page.family(name, MetricType::Counter, "Requests answered.");
    for (labels, report, kind) in &rows {
        page.sample(name, labels, report.totals.requests(*kind));
    }
    let name = "headworks_bytes_total";
    page.family(name, MetricType::Counter, "Bytes of completed requests.");
    for (labels, report, kind) in &rows {
        page.sample(name, labels, report.totals.bytes(*kind));
    }
    let name = "headworks_request_stage_seconds";
    page.family(
        name,
        MetricType::Histogram,
        "Latency by stage; the sum of a stage other than total is estimated from its buckets.",
    );
    for (labels, report, kind) in &rows {
        for row in 0..ROWS {
            let counts = report.totals.row(*kind, row);
            // A stage at which no request waited yet.
            if row > 0 && counts.is_zero() {
                continue;
            }
            let sum = if row == 0 { report.totals.sum_ns(*kind) } else { counts.about_ns() };
            let labels = [&labels[..], &[("stage", row_name(row))]].concat();
            page.histogram(name, &labels, &counts, sum);
        }
    }
    for (name, wait, help) in [
        ("headworks_tag_wait_seconds", WaitKind::Tag, "Requests that waited for a tag (estimate)."),
        (
            "headworks_dirty_pause_seconds",
            WaitKind::Dirty,
            "Requests that waited for the dirty limit (estimate).",
        ),
    ] {
        page.family(name, MetricType::Summary, help);
        for (labels, report, kind) in &rows {
            let counts = report.totals.row(*kind, 1 + wait as usize);
            let waited: u64 =
                counts.buckets().filter(|(end, _)| *end > 0).map(|(_, count)| count).sum();
            page.summary(name, labels, counts.about_ns(), waited);
        }
    }
}

/// Labels as pairs of name and value.
pub(super) type LabelList<'a> = Vec<(&'a str, &'a str)>;

/// Labels of an export, with its tenant if it has one.
pub(super) fn of_export<'a>(
    export: &'a str,
    tenant: Option<&'a TenantName>,
    more: &[(&'a str, &'a str)],
) -> LabelList<'a> {
    let own = [Some(("export", export)), tenant.map(|name| ("tenant", name.as_str()))];
    own.into_iter().flatten().chain(more.iter().copied()).collect()
}
