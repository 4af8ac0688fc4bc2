//! The counters of a server at one time, as the status page needs them.
//!
//! Read by the queries that `stats` and the metrics use: a few to each shard, and one for each device. Reads and writes
//! have one latency together, and flushes theirs, as in `top`. The time by stage is that of all requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use headworks_core::cache::folio::BLOCK;
use headworks_core::{DeviceId, DeviceState, Op, WaitKind};

use crate::control::in_flight::OldestRequest;
use crate::control::queries::{ExportFacts, Queries};
use crate::control::service::ControlService;
use crate::control::tenants::TenantEntry;
use crate::control::tree::{ExportNode, Tree, device_name};
use crate::exports::assemble::shown_name;
use crate::observe::latency::slow::SlowFilter;
use crate::observe::latency::{Histogram, ROWS};
use crate::reactor::messages::query::LatencyReport;
use crate::spec::limit_words::limit_words;
use crate::spec::tenant::TenantOptions;
use headworks_control::RpcFault;

/// Seconds over which the worst export is found.
const WORST_SECONDS: u64 = 10;
/// Parts of the time of requests: the waits, then the rest.
pub const PARTS: usize = WaitKind::COUNT + 1;

/// Counters of an export since the server started.
#[derive(Clone, Debug, Default)]
pub struct ExportCounters {
    /// Completed reads, and their bytes.
    pub reads: (u64, u64),
    /// Completed writes, and their bytes.
    pub writes: (u64, u64),
    /// Number of completed flushes.
    pub flushes: u64,
    /// Completed requests of all operations.
    pub requests: u64,
    /// Error replies of all operations.
    pub errors: u64,
    /// Nanoseconds for which its requests were in the device, summed.
    pub device_ns: u64,
    /// Nanoseconds of all requests in each part of their time.
    pub parts_ns: [u64; PARTS],
    /// Times of reads and writes from request to reply.
    pub times: Histogram,
    /// Times of flushes, likewise.
    pub flush_times: Histogram,
}

/// An export at the time of the snapshot.
#[derive(Clone, Debug)]
pub struct ExportRow {
    /// Name of the export as messages have it.
    pub name: Arc<str>,
    /// Name of its tenant.
    pub tenant: Option<String>,
    /// Name of its device; none if its image cannot be opened.
    pub device: Option<String>,
    /// State in one word.
    pub state: &'static str,
    /// Data of its image.
    pub facts: ExportFacts,
    /// Number of its clients.
    pub clients: u32,
    /// Age of its oldest request in flight in nanoseconds, and where that waits.
    pub oldest: Option<(u64, &'static str)>,
    /// Counters since the start.
    pub counters: ExportCounters,
}

/// A device at the time of the snapshot.
#[derive(Clone, Debug)]
pub struct DeviceLoad {
    /// Name of the device.
    pub name: String,
    /// Whether the device answers.
    pub state: DeviceState,
    /// Name of its elevator.
    pub scheduler: &'static str,
    /// Requests that wait for a tag, are queued or in the device.
    pub requests: u32,
    /// Tags: all, and free ones.
    pub tags: (u32, u32),
    /// Nanoseconds in which it had a request.
    pub busy_ns: u64,
    /// Age of its oldest command in nanoseconds.
    pub oldest_ns: Option<u64>,
}

/// A tenant as it is set; what its exports do is in their rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantRow {
    /// Name of the tenant.
    pub name: String,
    /// Share of every device, relative to the other tenants.
    pub weight: u16,
    /// Limits as they are set, `bps-write 50M, iops-total 1000`; empty without one.
    pub limits: String,
    /// Its latency target in microseconds, if it has one.
    pub target_us: Option<u32>,
}

impl TenantRow {
    fn new(entry: &TenantEntry) -> Self {
        let TenantOptions { weight, limits, latency_target_us, .. } = entry.now;
        Self {
            name: entry.spec.name.to_string(),
            weight,
            limits: limit_words(&limits)
                .map(|(key, word)| format!("{key} {word}"))
                .collect::<Vec<_>>()
                .join(", "),
            target_us: Some(latency_target_us).filter(|target| *target > 0),
        }
    }
}

/// The page cache of all shards together, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheLoad {
    /// Data in the cache.
    pub resident: u64,
    /// Memory that it may use now.
    pub limit: u64,
    /// Acknowledged data that is not written yet.
    pub dirty: u64,
    /// Dirty data above which write-back begins.
    pub background: u64,
    /// Most dirty data that there may be.
    pub threshold: u64,
}

/// The worst export of the last seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorstExport {
    /// Name of the export.
    pub export: String,
    /// What its slow requests waited for, and by whom they were held up.
    pub sentences: Vec<String>,
}

/// State and counters of a server at one time.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Seconds since the server started.
    pub uptime: f64,
    /// Exports in the order of their ids, then those that are absent.
    pub exports: Vec<ExportRow>,
    /// Devices in the order of their ids; a server has at most 64.
    pub devices: Vec<DeviceLoad>,
    /// Tenants in the order of their numbers.
    pub tenants: Vec<TenantRow>,
    /// The page cache; none without one.
    pub cache: Option<CacheLoad>,
    /// The export with the slowest requests; none while nothing is slow.
    pub worst: Option<WorstExport>,
}

impl Snapshot {
    /// Reads a server.
    ///
    /// # Errors
    /// A shard does not answer, or the server is stopping.
    pub fn take(service: &ControlService) -> Result<Self, RpcFault> {
        let (queries, tree) = (service.queries(), service.tree());
        let latencies = queries.latencies()?;
        let facts = queries.export_facts(&tree)?;
        let in_flight = queries.in_flight(&tree)?;
        let uses = queries.device_uses()?;
        let mut held: BTreeMap<_, u64> = BTreeMap::new();
        for used in &uses {
            *held.entry(used.volume).or_default() += used.used.device_ns;
        }
        let uptime = queries.uptime().as_secs_f64();
        let mut exports: Vec<ExportRow> = Vec::with_capacity(tree.exports.len());
        for entry in &tree.exports {
            let facts = facts.get(&entry.id).copied().unwrap_or_default();
            // Exports of one image share its volume, whose use counts as that of the first.
            let device_ns = held.remove(&entry.volume).unwrap_or_default();
            let row = export(queries, entry, facts, latencies.get(&entry.id), device_ns);
            let oldest = in_flight.get(&entry.id).and_then(|all| all.oldest.as_ref());
            exports.push(ExportRow { oldest: oldest.map(OldestRequest::age_and_place), ..row });
        }
        exports.extend(tree.absent.iter().map(|absent| ExportRow {
            name: shown_name(&absent.spec.name).into(),
            tenant: absent.spec.share.tenant.map(|name| name.to_string()),
            device: None,
            state: "absent",
            facts: ExportFacts::default(),
            clients: 0,
            oldest: None,
            counters: ExportCounters::default(),
        }));
        let mut devices = Vec::with_capacity(tree.devices.len());
        for node in &tree.devices {
            devices.extend(device(queries, &tree, node.id)?);
        }
        let tenants = queries.tenants().iter().map(|(_, entry)| TenantRow::new(entry)).collect();
        let (cache, worst) = (cache(queries)?, worst(queries));
        Ok(Self { uptime, exports, devices, tenants, cache, worst })
    }
}

fn export(
    queries: &Queries,
    entry: &ExportNode,
    facts: ExportFacts,
    report: Option<&LatencyReport>,
    device_ns: u64,
) -> ExportRow {
    let counters = report.map(counters).unwrap_or_default();
    ExportRow {
        name: entry.shown_name().into(),
        tenant: queries.tenant_of(entry.id).map(|name| name.to_string()),
        device: Some(device_name(entry.device)),
        state: facts.state(),
        facts,
        clients: report.map_or(0, |report| report.connections),
        oldest: None,
        counters: ExportCounters { device_ns, ..counters },
    }
}

fn counters(report: &LatencyReport) -> ExportCounters {
    let totals = &report.totals;
    let count = |op| (totals.requests(op), totals.bytes(op));
    let mut counters = ExportCounters {
        reads: count(Op::Read),
        writes: count(Op::Write),
        flushes: totals.requests(Op::Flush),
        requests: Op::ALL.into_iter().map(|op| totals.requests(op)).sum(),
        flush_times: totals.row(Op::Flush, 0),
        errors: totals.errors().total(),
        ..ExportCounters::default()
    };
    for op in [Op::Read, Op::Write] {
        counters.times.add(&totals.row(op, 0));
    }
    for op in Op::ALL {
        for row in 1..ROWS {
            counters.parts_ns[row - 1] += totals.row(op, row).about_ns();
        }
    }
    // Waits are estimates from buckets, the total is exact.
    let total: u64 = Op::ALL.into_iter().map(|op| totals.sum_ns(op)).sum();
    let waits: u64 = counters.parts_ns.iter().sum();
    counters.parts_ns[PARTS - 1] = total.saturating_sub(waits);
    counters
}

fn device(queries: &Queries, tree: &Tree, id: DeviceId) -> Result<Option<DeviceLoad>, RpcFault> {
    let report = queries.device_if_there(tree, id)?;
    Ok(report.map(|report| DeviceLoad {
        name: device_name(id),
        state: report.state,
        scheduler: report.options.scheduler.name(),
        requests: report.queue.in_flight,
        tags: (report.tags_depth, report.tags_free),
        busy_ns: report.busy_ns,
        oldest_ns: report.oldest.map(|oldest| oldest.age_ns),
    }))
}

fn cache(queries: &Queries) -> Result<Option<CacheLoad>, RpcFault> {
    let reports = queries.caches()?;
    let bytes = |blocks: u64| blocks * u64::from(BLOCK);
    let mut sum: Option<CacheLoad> = None;
    for report in reports {
        if let Some(cache) = report.cache {
            let sum = sum.get_or_insert_default();
            sum.resident += bytes(cache.size.resident);
            sum.limit += bytes(cache.size.units);
        }
        if let Some(dirty) = report.dirty {
            let sum = sum.get_or_insert_default();
            sum.dirty += bytes(dirty.nr_dirty + dirty.nr_writeback);
            sum.background += bytes(dirty.nr_dirty_background_threshold);
            sum.threshold += bytes(dirty.nr_dirty_threshold);
        }
    }
    Ok(sum)
}

/// What `why` says of the worst export of the last seconds; nothing while an export that it is about is removed.
fn worst(queries: &Queries) -> Option<WorstExport> {
    let report = queries.why(None, SlowFilter { op: None, seconds: WORST_SECONDS }).ok()?;
    let export = report.export.filter(|_| report.slow || !report.findings.is_empty())?;
    let sentences = std::iter::once(report.sentence).chain(report.notes).collect();
    Some(WorstExport { export, sentences })
}
