//! Reports of wait times for `stats`, `histograms` and `why`.

use std::collections::BTreeMap;

use headworks_core::cache::folio::BLOCK;
use headworks_core::{DeviceId, ExportId, Instant, Op};

use super::ReactorParts;
use super::door::Door;
use super::queries::TABLES_MAX;
use super::shard_io::ShardIo;
use crate::control::explain::CANDIDATES;
use crate::observe::latency::LatencyTable;
use crate::observe::latency::errors::ErrorCounts;
use crate::observe::latency::exports::ExportLatencies;
use crate::observe::latency::slow::{SlowFilter, SlowRequest, above_ns};
use crate::observe::latency::usage::UsageLog;
use crate::reactor::messages::query::{LatencyPart, LatencyReport, SlowReport};
use headworks_front::hot_list::ConnectionState;

/// Wait times of each export with clients on this shard, from `from` on: closed and open connections. One part
/// takes as many exports as fit one turn, and at least one.
pub(super) fn report_latency(door: &Door, io: &mut ShardIo, from: ExportId) -> LatencyPart {
    let of = |state: &ConnectionState| state.export.filter(|export| *export >= from);
    // Number of tables of each export.
    let mut tables: BTreeMap<ExportId, usize> = BTreeMap::new();
    let gone = io.latency.known(from);
    for export in gone.chain(door.states().filter_map(of)) {
        *tables.entry(export).or_default() += 1;
    }
    let mut sum = 0;
    let beyond = tables.iter().find(|(export, count)| {
        sum += **count;
        sum > TABLES_MAX && **export > from
    });
    let next = beyond.map(|(export, _)| *export);
    let mut reports: BTreeMap<ExportId, LatencyReport> = BTreeMap::new();
    for export in tables.into_keys().take_while(|export| next.is_none_or(|end| *export < end)) {
        let totals = io.latency.gone(export).cloned().unwrap_or_default();
        reports.insert(export, LatencyReport { export, totals, connections: 0, now: io.now });
    }
    for slot in io.slots() {
        let export = door.export_of(slot);
        let Some(report) = export.and_then(|export| reports.get_mut(&export)) else { continue };
        let connection = io.connection(slot).map(|(connection, _)| connection);
        if let Some((_, table)) = connection.and_then(|connection| connection.latency()) {
            report.totals.add(table);
            report.connections += 1;
        }
    }
    LatencyPart { reports: reports.into_values().collect(), next }
}

pub(super) fn report_slow(
    door: &Door,
    parts: &mut ReactorParts,
    now: Instant,
    (export, device): (ExportId, DeviceId),
    filter: SlowFilter,
) -> SlowReport {
    let (requests, slowest) = parts.io.latency.slow(export, now, filter);
    let writeback = parts.driver.shard().wb_stats(device);
    let since = Instant(now.0.saturating_sub(filter.seconds * 1_000_000_000));
    let own = door.exports.all().find(|one| one.binding.export == export);
    // A freeze lets reads pass: it held what changes the image, while it lasted.
    let held = |volume, slow: &SlowRequest| {
        let came = Instant(slow.at.0.saturating_sub(slow.total_ns));
        slow.op.is_write() && door.freezes.held_since(volume, came.max(since))
    };
    let frozen = own.is_some_and(|one| {
        let volume = one.binding.volume;
        door.freezes.holds(volume) || slowest.iter().any(|slow| held(volume, slow))
    });
    let alone_ns = fastest_in_device(door, &mut parts.io, export);
    let (errors, answered) = errors_of(door, &mut parts.io, export);
    SlowReport { now, requests, slowest, alone_ns, writeback, frozen, errors, answered }
}

/// The error replies of an export, and its answered requests of the operation of the last one.
fn errors_of(door: &Door, io: &mut ShardIo, export: ExportId) -> (ErrorCounts, u64) {
    let mut errors = io.latency.gone(export).map_or_else(Default::default, |gone| *gone.errors());
    let own: Vec<u32> = io.slots().filter(|slot| door.export_of(*slot) == Some(export)).collect();
    let each = |io: &mut ShardIo, act: &mut dyn FnMut(&LatencyTable)| {
        for slot in &own {
            let connection = io.connection(*slot).map(|(connection, _)| connection);
            if let Some((_, table)) = connection.and_then(|connection| connection.latency()) {
                act(table);
            }
        }
    };
    each(io, &mut |table| {
        if table.has_errors() {
            table.add_errors_to(&mut errors);
        }
    });
    let Some(last) = errors.last() else { return (errors, 0) };
    let mut answered = io.latency.gone(export).map_or(0, |gone| gone.requests(last.op));
    each(io, &mut |table| answered += table.requests(last.op));
    (errors, answered)
}

/// The smallest time that a request of each operation was in the device: of closed connections, and of as many open ones as a turn
/// takes.
fn fastest_in_device(door: &Door, io: &mut ShardIo, export: ExportId) -> [Option<u64>; Op::COUNT] {
    let gone = io.latency.gone(export);
    let mut fastest = Op::ALL.map(|op| gone?.fastest_in_device(op));
    let own = io.slots().filter(|slot| door.export_of(*slot) == Some(export));
    for slot in own.take(TABLES_MAX) {
        let connection = io.connection(slot).map(|(connection, _)| connection);
        let Some((_, table)) = connection.and_then(|connection| connection.latency()) else {
            continue;
        };
        for (seen, op) in fastest.iter_mut().zip(Op::ALL) {
            *seen = seen.iter().copied().chain(table.fastest_in_device(op)).min();
        }
    }
    fastest
}

/// The exports of this shard whose slowest requests were slowest, by the time that a hundredth of them exceeded, waits for limits left
/// out.
pub(super) fn report_slowest_exports(
    latency: &ExportLatencies,
    now: Instant,
    filter: SlowFilter,
) -> Vec<(ExportId, u64)> {
    let above = |export| {
        let (requests, slowest) = latency.slow(export, now, filter);
        (export, above_ns(requests, slowest))
    };
    let known = latency.known(ExportId(0)).map(above);
    let mut all: Vec<(ExportId, u64)> = known.collect();
    all.sort_by_key(|(_, ns)| u64::MAX - *ns);
    all.truncate(CANDIDATES);
    all
}

/// Ends a second of the log of what is used.
pub(super) fn log_usage(usage: &mut UsageLog, now: Instant, door: &Door, parts: &mut ReactorParts) {
    let mut second = usage.end_second(now);
    let shard = parts.driver.shard();
    shard.device_uses(|volume, device, used| second.volume(volume, device, used));
    for slot in parts.io.slots() {
        let Some(export) = door.export_of(slot) else { continue };
        let Some((connection, _)) = parts.io.connection(slot) else { continue };
        if let Some((_, table)) = connection.latency() {
            let id = connection.id();
            second.connection(slot as usize, (id, export), table.recent_sums());
        }
    }
    for export in parts.io.latency.known(ExportId(0)) {
        let (dirty, _) = shard.export_blocks(export);
        second.dirty(export, dirty * u64::from(BLOCK));
        second.buffers(export, door.held_by(export) as u64);
    }
    second.keep();
}
