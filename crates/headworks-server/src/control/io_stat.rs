//! Counters of exports and tenants as a cgroup's `io.stat` shows them: one line for each device.
//!
//! `rbytes=` to `dios=` count what clients have read, written and discarded, whether the cache had it or not. The server's own keys:
//! `hw_dirty=` bytes that are not written out yet; `hw_limited=` and `hw_limited_usec=` requests that waited for limits, and their
//! waits together; `hw_wait_usec=` the waits for tags and in the I/O scheduler together. Sums of waits are estimated from histograms.

use std::collections::{BTreeMap, BTreeSet};

use headworks_core::{DeviceId, ExportId, Op, WaitKind};

use super::queries::Latencies;
use super::tree::{ExportNode, device_name};
use crate::reactor::messages::command::ExportReport;

/// Counters of one device.
#[derive(Clone, Copy, Debug, Default)]
struct DeviceCounters {
    /// Bytes and requests of reads, writes and discards.
    bytes: [u64; 3],
    requests: [u64; 3],
    dirty: u64,
    limited: u64,
    limited_ns: u64,
    wait_ns: u64,
}

/// Writes the lines of these exports.
pub fn io_stat<'a>(
    exports: impl Iterator<Item = &'a ExportNode>,
    latencies: &Latencies,
    reports: impl Iterator<Item = &'a ExportReport>,
) -> String {
    let mut dirty: BTreeMap<ExportId, u64> = BTreeMap::new();
    for report in reports {
        *dirty.entry(report.export).or_default() += report.dirty;
    }
    let mut devices: BTreeMap<DeviceId, DeviceCounters> = BTreeMap::new();
    let mut volumes = BTreeSet::new();
    for entry in exports {
        let sum = devices.entry(entry.device).or_default();
        // Exports of one image show the same dirty data.
        if volumes.insert(entry.volume) {
            sum.dirty += dirty.get(&entry.id).copied().unwrap_or(0);
        }
        let Some(totals) = latencies.get(&entry.id).map(|report| &report.totals) else { continue };
        for (index, op) in [Op::Read, Op::Write, Op::Discard].into_iter().enumerate() {
            sum.bytes[index] += totals.bytes(op);
            sum.requests[index] += totals.requests(op);
        }
        let (limited, limited_ns) = totals.waited(&[WaitKind::Limit]);
        (sum.limited, sum.limited_ns) = (sum.limited + limited, sum.limited_ns + limited_ns);
        sum.wait_ns += totals.waited(&[WaitKind::Tag, WaitKind::Scheduler]).1;
    }
    let line = |(device, sum): (DeviceId, DeviceCounters)| {
        let DeviceCounters { bytes: [r, w, d], requests: [reads, writes, discards], .. } = sum;
        format!(
            "{} rbytes={r} wbytes={w} rios={reads} wios={writes} dbytes={d} dios={discards} hw_dirty={} hw_limited_usec={} hw_limited={} hw_wait_usec={}",
            device_name(device),
            sum.dirty,
            sum.limited_ns / 1000,
            sum.limited,
            sum.wait_ns / 1000
        )
    };
    devices.into_iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::tree::tests::tree;
    use crate::observe::latency::{LatencyTable, LatencyTotals};
    use crate::reactor::messages::query::LatencyReport;
    use headworks_core::WaitTimes;

    #[test]
    fn lines_add_the_exports_of_each_device() {
        let tree = tree();
        let limited = WaitTimes::of_front(1_000_000, 0);
        let report = |export: u16| {
            let mut table = LatencyTable::default();
            table.record(Op::Read, 4096, 9, WaitTimes::NONE);
            table.record(Op::Write, 8192, 9, limited);
            table.record(Op::Discard, 512, 9, WaitTimes::NONE);
            let (export, totals) = (ExportId(export), LatencyTotals::from(&table));
            (export, LatencyReport { export, totals, connections: 1, ..Default::default() })
        };
        let latencies: Latencies = [report(0), report(1)].into_iter().collect();
        let dirty =
            |export| ExportReport { export: ExportId(export), dirty: 5, ..ExportReport::default() };
        let reports = [dirty(0), dirty(2)];
        let text = io_stat(tree.exports.iter(), &latencies, reports.iter());
        let lines: Vec<&str> = text.lines().collect();
        let begin = "hw0 rbytes=8192 wbytes=16384 rios=2 wios=2 dbytes=1024 dios=2 hw_dirty=5 hw_limited_usec=";
        assert!(
            lines[0].starts_with(begin) && lines[0].ends_with("hw_limited=2 hw_wait_usec=0"),
            "{text}"
        );
        let waited: u64 = lines[0][begin.len()..].split(' ').next().unwrap().parse().unwrap();
        assert!((1_600..2_400).contains(&waited), "{text}");
        assert_eq!(
            lines[1],
            "hw1 rbytes=0 wbytes=0 rios=0 wios=0 dbytes=0 dios=0 hw_dirty=5 hw_limited_usec=0 hw_limited=0 hw_wait_usec=0"
        );
        assert_eq!(io_stat([].into_iter(), &latencies, [].into_iter()), "");
    }
}
