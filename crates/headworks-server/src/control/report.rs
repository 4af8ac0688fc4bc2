//! Answers as JSON: values as sysfs shows them, tables of statistics, fields of diskstats.
//!
//! `diskstats` has the 17 fields of /proc/diskstats in order: sectors have 512 bytes, times are in milliseconds,
//! write-zeroes count as writes as in Linux. A request is counted from the plug to its completion; requests of other
//! shards from their arrival at the device's shard.

use std::collections::BTreeMap;

use headworks_core::cache::{CacheSize, CacheStats, Fills, IndexUse, Writeouts};
use headworks_core::options::Tunable;
use headworks_core::stats::{OpStats, Stage, TurnRow, TurnStats, VolumeStats};
use headworks_core::writeback::{DirtyStats, DirtyTunable};
use headworks_core::{DeviceId, Instant, Op, QueueOptions};
use serde_json::Value;

use super::exports::ExportNow;
use super::in_flight::{InFlight, OldestRequest};
use super::latency;
use super::tree::{ExportNode, device_name};
use crate::observe::latency::errors::{ErrorCounts, errno_name};
use crate::observe::latency::request_name;
use crate::reactor::messages::query::{
    BufferStats, CacheReport, DeviceReport, FailedRange, LatencyReport, OpCounts, VolumeReport,
};
use crate::spec::tenant::TenantName;
use headworks_control::answers;
use headworks_control::shape::Sum;

/// Major device number for local and experimental use.
const MAJOR: u32 = 240;

const MS: u64 = 1_000_000;

/// A value as sysfs shows it: a number, or words with the chosen one in brackets.
pub fn value(tunable: Tunable, value: u64) -> Value {
    if tunable == Tunable::WriteCache {
        return if value == 0 { "write through" } else { "write back" }.into();
    }
    match tunable.words() {
        Some(_) => tunable.show(value).into(),
        None => value.into(),
    }
}

/// A value of write-back as `/proc/sys/vm` shows it; a choice as sysfs shows it.
pub fn dirty_value(tunable: DirtyTunable, value: u64) -> Value {
    match tunable.words() {
        Some(_) => tunable.show(value).into(),
        None => value.into(),
    }
}

/// The answer with the counters of `$from`, which have the same names there: every one of them, since nothing may stand for the rest. After
/// a semicolon a group of counters that the answer has beside the others.
macro_rules! same_names {
    (
        $from:expr, $source:ident => $answer:ident { $($field:ident,)* }
        $(, $pattern:ident: $array:pat => $made:expr)*
        $(; $group:ident: $inner:pat => $($own:ident),* $(, = $said:ident: $value:expr)?)* $(,)?
    ) => {{
        let $source { $($field,)* $($pattern: $array,)* $($group: $inner,)* } = $from;
        answers::$answer { $($field,)* $($pattern: $made,)* $($($own,)* $($said: $value,)?)* }
    }};
}

/// Sum of the request buffers of all shards.
pub fn buffers(shards: &[BufferStats]) -> answers::BufferStats {
    let all = shards.iter().map(|stats| {
        same_names!(
            *stats,
            BufferStats => BufferStats { waits, dropped_replies, dropped_bytes, payloads_written_early, blocks_cut, closed, },
            size: size => size as u64,
            taken: taken => taken as u64,
            waiting: waiting => waiting as u64,
        )
    });
    Sum::total(all).unwrap_or_default()
}

/// Sum of the caches of all shards; none without a cache.
pub fn cache(shards: &[CacheReport]) -> Option<answers::CacheStats> {
    Sum::total(shards.iter().filter_map(|shard| shard.cache).map(cache_of))
}

/// Sum of dirty counters under the names of /proc/vmstat, in blocks of 4 KiB; none without a cache.
pub fn dirty(shards: &[CacheReport]) -> Option<answers::DirtyStats> {
    Sum::total(shards.iter().filter_map(|shard| shard.dirty).map(dirty_of))
}

fn cache_of(stats: CacheStats) -> answers::CacheStats {
    same_names!(
        stats,
        CacheStats => CacheStats {
            hits, misses, failed, held, shadowed, shadows, discarded_dirty, direct_dirty, read_before_write, evicted_folios, evicted,
            ghost_hits, dropped_behind, read_ahead, read_ahead_wasted, closed_paused, flushes, flushes_failed,
        },
        folios: folios => folios.to_vec(),
        waits: [frames, credit, pause, shadow, range, folio] =>
            answers::CacheWaits { frames, credit, pause, shadow, range, folio };
        size: CacheSize { room, units, free, resident } => room, units, free, resident;
        fills: Fills { bios: fills, blocks: filled, partial: fills_partial } => fills, filled, fills_partial;
        index: IndexUse { operations: index_operations, probes: index_probes } => index_operations, index_probes;
        writeouts: Writeouts { bios: writeouts, blocks: written, by_reason: [background, age, sync, for_frames, writers] } =>
            writeouts, written, = written_for: answers::WrittenFor { background, age, sync, frames: for_frames, writers },
    )
}

fn dirty_of(stats: DirtyStats) -> answers::DirtyStats {
    same_names!(
        stats,
        DirtyStats => DirtyStats {
            nr_dirty, nr_writeback, reserved, nr_dirtied, nr_written, nr_dirty_threshold, nr_dirty_background_threshold, writers,
            pauses, paused_ns, pauses_continued, refused, traces_lost, write_rate,
        },
    )
}

/// Ranges that could not be written back.
pub fn failed(ranges: &[FailedRange]) -> Vec<answers::FailedRange> {
    let range = |range: &FailedRange| {
        let error = range.error.to_string();
        answers::FailedRange { offset: range.offset, bytes: range.len, error }
    };
    ranges.iter().map(range).collect()
}

/// Counters of /proc/diskstats by name.
pub fn diskstats(device: DeviceId, report: &DeviceReport) -> answers::DiskRow {
    let of = |op: Op| report.ops[op as usize];
    let (read, discard, flush) = (of(Op::Read), of(Op::Discard), of(Op::Flush));
    let write = sum(of(Op::Write), of(Op::WriteZeroes));
    let [rd_ticks, wr_ticks, dc_ticks, fl_ticks] =
        [read, write, discard, flush].map(|counts| counts.time_ns / MS);
    let fields = answers::DiskCounters {
        rd_ios: read.requests,
        rd_merges: read.merges,
        rd_sectors: read.bytes / 512,
        rd_ticks,
        wr_ios: write.requests,
        wr_merges: write.merges,
        wr_sectors: write.bytes / 512,
        wr_ticks,
        in_flight: report.queue.in_flight.into(),
        io_ticks: report.busy_ns / MS,
        time_in_queue: rd_ticks + wr_ticks + dc_ticks + fl_ticks,
        dc_ios: discard.requests,
        dc_merges: discard.merges,
        dc_sectors: discard.bytes / 512,
        dc_ticks,
        fl_ios: flush.requests,
        fl_ticks,
    };
    answers::DiskRow { name: device_name(device), major: MAJOR, minor: device.0, fields }
}

fn sum(a: OpCounts, b: OpCounts) -> OpCounts {
    OpCounts {
        requests: a.requests + b.requests,
        merges: a.merges + b.merges,
        bytes: a.bytes + b.bytes,
        time_ns: a.time_ns + b.time_ns,
        errors: a.errors + b.errors,
    }
}

/// Statistics of a device's queue and tags.
pub fn device(report: &DeviceReport, oldest: Option<&OldestRequest>) -> answers::DeviceStats {
    let DeviceReport { options, queue, tags, .. } = report;
    let ratio = queue.sequential as f64 / queue.issued.max(1) as f64;
    let (cost, bytes) = (queue.cost.base_ns(), queue.cost.byte_ps());
    answers::DeviceStats {
        scheduler: options.scheduler.name().to_owned(),
        device_state: report.state.name().to_owned(),
        queue: answers::QueueStats {
            issued: queue.issued,
            sequential: queue.sequential,
            sequential_ratio: (queue.issued > 0).then_some(ratio),
            in_flight: queue.in_flight,
            busy_ns: report.busy_ns,
        },
        depth: queue.depth.map(|depth| answers::DepthStats {
            limit_kb: depth.limit >> 10,
            command_max_kb: depth.command_max >> 10,
            trials: depth.trials,
            too_small: depth.too_small,
        }),
        cost: answers::CommandCosts {
            read_ns: cost[0],
            read_sequential_ns: cost[1],
            read_ps_per_byte: bytes[0],
            write_ns: cost[2],
            write_sequential_ns: cost[3],
            write_ps_per_byte: bytes[1],
        },
        tags: answers::TagStats {
            depth: report.tags_depth,
            free: report.tags_free,
            asks: tags.requests,
            waits: tags.waits,
            grants: tags.grants,
            barging_prevented: tags.barging_prevented,
            barged: tags.barged,
            longest_wait_ns: tags.longest_wait_ns,
            wakes: tags.wakes,
            woken: tags.woken,
            idle_max: tags.idle_max,
            idle_tag_ns: tags.idle_tag_ns,
        },
        oldest: oldest.map(OldestRequest::answer),
        errors: report.ops.iter().map(|counts| counts.errors).sum(),
    }
}

/// Plug statistics of all shards, by the number of bios in a turn.
pub fn turns(shards: &[TurnStats]) -> Vec<answers::Turns> {
    let row = |row: usize| {
        let of =
            |count: fn(&TurnRow) -> u64| shards.iter().map(|s| count(&s.rows[row])).sum::<u64>();
        answers::Turns {
            bios_in_turn: TurnStats::label(row).to_owned(),
            turns: of(|row| row.turns),
            bios: of(|row| row.bios),
            merges: of(|row| row.merges),
        }
    };
    (0..TurnStats::default().rows.len()).map(row).collect()
}

/// Statistics of an export; exports of one file show the same volume. A device without a volatile cache needs no flush.
pub fn export(
    entry: &ExportNode,
    (now, tenant): (ExportNow, Option<TenantName>),
    options: &QueueOptions,
    report: &VolumeReport,
    (latency, in_flight): (Option<&LatencyReport>, Option<&InFlight>),
) -> answers::ExportStats {
    let held = report.stats.used();
    answers::ExportStats {
        device: device_name(entry.device),
        volume: entry.volume.0,
        read_only: entry.read_only,
        tenant: tenant.map(|name| name.to_string()),
        weight: now.options.weight,
        ioprio: now.options.ioprio.to_string(),
        cache: entry.mode.name().to_owned(),
        on_error: entry.on_error.name().to_owned(),
        unflushed: if options.write_cache { report.unflushed } else { 0 },
        suspect: report.suspect,
        held: answers::DeviceUse { tag_ns: held.tag_ns, device_ns: held.device_ns },
        ops: ops(&report.stats),
        latency: latency.map(|report| latency::summary(&report.totals)).unwrap_or_default(),
        in_flight: in_flight.map(InFlight::answer).unwrap_or_default(),
        errors: latency
            .map(|report| errors(report.now, report.totals.errors()))
            .unwrap_or_default(),
    }
}

/// Error replies of an export.
pub fn errors(now: Instant, counts: &ErrorCounts) -> answers::Errors {
    let mut by_op: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for (op, error, count) in counts.all() {
        let of_op = by_op.entry(request_name(op).to_owned()).or_default();
        of_op.insert(error.name().to_owned(), count);
    }
    let last = counts.last().map(|last| answers::LastError {
        ago_s: now.since(last.at) as f64 / 1e9,
        op: request_name(last.op).to_owned(),
        offset: last.offset,
        connection: last.connection,
        error: errno_name(last.error).to_owned(),
    });
    answers::Errors { total: counts.total(), by_op, last }
}

/// A row for each operation that occurred.
fn ops(stats: &VolumeStats) -> BTreeMap<String, answers::OpStats> {
    let rows = Op::ALL.into_iter().zip(&stats.ops);
    let happened = rows.filter(|(_, row)| row.bios > 0 || row.requests > 0);
    happened.map(|(op, row)| (op.name().to_owned(), op_row(row))).collect()
}

fn op_row(row: &OpStats) -> answers::OpStats {
    let stage = |stage: Stage| {
        let times = &row.stages[stage as usize];
        let percentiles = answers::StagePercentiles {
            p50_ns: times.percentile(500),
            p90_ns: times.percentile(900),
            p99_ns: times.percentile(990),
            p999_ns: times.percentile(999),
        };
        (stage.name().to_owned(), percentiles)
    };
    answers::OpStats {
        bios: row.bios,
        requests: row.requests,
        merges: row.merges,
        bytes: row.bytes,
        errors: row.errors,
        time_ns: row.time_ns,
        stages: Stage::ALL.into_iter().map(stage).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::stats::QueueStats;

    #[test]
    fn diskstats_has_kernel_order_and_units() {
        let counts = |n: u64| OpCounts {
            requests: n,
            merges: 10 * n,
            bytes: 512 * 100 * n,
            time_ns: 1_000 * MS * n + 999_999,
            errors: n,
        };
        let report = DeviceReport {
            state: headworks_core::DeviceState::Live,
            options: QueueOptions::default(),
            queue: QueueStats { in_flight: 7, ..QueueStats::default() },
            busy_ns: 5 * MS,
            tags: Default::default(),
            tags_depth: 0,
            tags_free: 0,
            smallest_ns: None,
            oldest: None,
            ops: [counts(1), counts(2), counts(3), counts(4), counts(5), counts(6), counts(7)],
        };
        let line = diskstats(DeviceId(3), &report);
        let fields = serde_json::to_value(&line.fields).unwrap();
        let fields = fields.as_object().unwrap();
        let expected: [(&str, u64); 17] = [
            ("rd_ios", 1),
            ("rd_merges", 10),
            ("rd_sectors", 100),
            ("rd_ticks", 1_000),
            ("wr_ios", 2 + 5),
            ("wr_merges", 20 + 50),
            ("wr_sectors", 200 + 500),
            ("wr_ticks", 2_000 + 5_000 + 1),
            ("in_flight", 7),
            ("io_ticks", 5),
            ("time_in_queue", 1_000 + 7_001 + 3_000 + 4_000),
            ("dc_ios", 4),
            ("dc_merges", 40),
            ("dc_sectors", 400),
            ("dc_ticks", 4_000),
            ("fl_ios", 3),
            ("fl_ticks", 3_000),
        ];
        for ((name, value), own) in expected.into_iter().zip(answers::DiskCounters::NAMES) {
            assert_eq!((name, &fields[name]), (*own, &Value::from(value)));
        }
        assert_eq!(fields.len(), expected.len());
        assert_eq!((&*line.name, line.minor), ("hw3", 3));
    }

    #[test]
    fn cache_counters_of_shards_add_up() {
        let mut cached = CacheStats {
            size: CacheSize { units: 3, ..CacheSize::default() },
            hits: 5,
            ..Default::default()
        };
        (cached.folios[9], cached.waits[1]) = (2, 4);
        let some = DirtyStats { nr_dirty: 7, nr_dirty_threshold: 9, ..Default::default() };
        let with = CacheReport { cache: Some(cached), dirty: Some(some) };
        let both = [with, CacheReport::default(), with];
        let sum = cache(&both).unwrap();
        assert_eq!((sum.units, sum.hits, sum.folios[9], sum.waits.credit), (6, 10, 4, 8));
        let sum = dirty(&both).unwrap();
        assert_eq!((sum.nr_dirty, sum.nr_dirty_threshold), (14, 18));
        let none = [CacheReport::default()];
        assert_eq!((cache(&none), dirty(&none)), (None, None));
    }

    #[test]
    fn turn_counters_of_shards_add_up() {
        let mut shards = [TurnStats::default(); 2];
        shards[0].rows[1] = TurnRow { turns: 2, bios: 5, merges: 3 };
        shards[1].rows[1] = TurnRow { turns: 1, bios: 2, merges: 1 };
        let expected = answers::Turns { bios_in_turn: "2-3".into(), turns: 3, bios: 7, merges: 4 };
        assert_eq!((&turns(&shards)[1], turns(&shards).len()), (&expected, 7));
    }

    #[test]
    fn values_and_ranges_match_sysfs() {
        assert_eq!(value(Tunable::Scheduler, 1), "none [mq-deadline] bfq");
        assert_eq!(value(Tunable::NrRequests, 64), 64);
        assert_eq!(value(Tunable::WriteCache, 1), "write back");
        assert_eq!(value(Tunable::WriteCache, 0), "write through");
        assert_eq!(Tunable::NrRequests.accepted(), "1..=4096");
        assert_eq!(Tunable::Scheduler.accepted(), "none, mq-deadline, bfq");
    }
}
