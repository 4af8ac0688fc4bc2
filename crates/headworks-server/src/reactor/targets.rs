//! Latency targets on a shard: counts for reports, and a message for each target that cannot be kept.
//!
//! A target below twice the smallest latency of its device is missed whatever the others do. At the start nothing is known of the
//! device; once it is, the log says so, once for each target.

use std::collections::BTreeMap;

use headworks_core::stats::TargetCounts;
use headworks_core::{DeviceId, ExportId, Instant, Shard, TenantId};
use tracing::warn;

use super::exports::ExportTable;
use crate::reactor::messages::query::TargetReport;
use crate::spec::latency_target::{latency_target_word, least_target};

/// Most targets that are remembered as logged; beyond that the log says no more.
const TOLD_MAX: usize = 64;

/// Targets in microseconds, by device, that the log has named.
#[derive(Debug, Default)]
pub(super) struct TargetLog {
    told: Vec<(DeviceId, u32)>,
}

/// A target that is too small for its device.
#[derive(Debug, PartialEq, Eq)]
struct TightTarget {
    device: DeviceId,
    target_us: u32,
    smallest_ns: u64,
    /// The first export with it, and the number of all.
    export: ExportId,
    exports: usize,
}

impl TargetLog {
    /// Returns the targets of the exports on a device that are too small and were not named yet.
    fn find(
        &mut self,
        now: Instant,
        shard: &Shard,
        device: DeviceId,
        exports: &ExportTable,
    ) -> Vec<TightTarget> {
        let Some(smallest_ns) = shard.smallest_latency(now, device) else { return Vec::new() };
        // A queue knows the targets of all exports.
        let is_own = |export: ExportId| exports.device_of(export) == Some(device);
        let own = shard.targets(device).filter(|(export, _)| is_own(*export));
        self.tight(device, smallest_ns, own)
    }

    /// Finds the targets that are too small for a device with this latency, and notes them.
    fn tight(
        &mut self,
        device: DeviceId,
        smallest_ns: u64,
        targets: impl Iterator<Item = (ExportId, u32)>,
    ) -> Vec<TightTarget> {
        let least = least_target(smallest_ns);
        let mut found: BTreeMap<u32, TightTarget> = BTreeMap::new();
        let is_tight = |target_us: u32| u64::from(target_us) < least;
        for (export, target_us) in targets.filter(|(_, target_us)| is_tight(*target_us)) {
            if self.told.len() == TOLD_MAX || self.told.contains(&(device, target_us)) {
                continue;
            }
            let first = TightTarget { device, target_us, smallest_ns, export, exports: 0 };
            found.entry(target_us).or_insert(first).exports += 1;
        }
        let room = TOLD_MAX - self.told.len();
        self.told.extend(found.keys().map(|target_us| (device, *target_us)).take(room));
        found.into_values().collect()
    }
}

/// Logs targets that cannot be kept, when that becomes known.
pub(super) fn log_tight_targets(
    log: &mut TargetLog,
    now: Instant,
    shard: &Shard,
    exports: &ExportTable,
) {
    let mut devices: Vec<DeviceId> = exports.all().map(|export| export.binding.device).collect();
    devices.sort_unstable();
    devices.dedup();
    for device in devices {
        for tight in log.find(now, shard, device, exports) {
            let name = exports.shown(tight.export);
            let more = match tight.exports {
                1 => String::new(),
                others => format!(" and {} others", others - 1),
            };
            let target = latency_target_word(tight.target_us);
            let smallest_us = tight.smallest_ns.div_ceil(1000);
            let least = latency_target_word(least_target(tight.smallest_ns) as u32);
            warn!(
                "the latency target {target} of export {name}{more} is below twice the smallest latency seen on hw{}, {smallest_us} us: \
                 it will be missed whatever the others do; choose at least {least}",
                tight.device.0
            );
        }
    }
}

/// What the latency targets of this shard's devices have counted.
pub(super) fn report_targets(now: Instant, shard: &Shard, table: &ExportTable) -> TargetReport {
    let mut exports = Vec::new();
    let mut devices: Vec<DeviceId> = Vec::new();
    for binding in table.all().map(|export| export.binding) {
        let counts = shard.target_counts(binding.device, binding.export);
        if counts != TargetCounts::default() {
            exports.push((binding.export, counts));
        }
        devices.push(binding.device);
    }
    devices.sort_unstable();
    devices.dedup();
    let mut tenants: BTreeMap<TenantId, TargetCounts> = BTreeMap::new();
    for device in devices {
        let all = (0..).map(TenantId).zip(shard.tenant_target_counts(device));
        for (tenant, counts) in all.filter(|(_, counts)| **counts != TargetCounts::default()) {
            tenants.entry(tenant).or_default().add(counts);
        }
    }
    TargetReport { now, exports, tenants: tenants.into_iter().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_target_that_is_too_small_is_named_once() {
        let mut log = TargetLog::default();
        let (one, two) = (DeviceId(0), DeviceId(1));
        let exports = |targets: &'static [u32]| (0..).map(ExportId).zip(targets.iter().copied());
        let targets = &[100, 5_000, 100, 199, 200];
        let found = log.tight(one, 100_000, exports(targets));
        let words: Vec<_> =
            found.iter().map(|tight| (tight.target_us, tight.export.0, tight.exports)).collect();
        assert_eq!(words, [(100, 0, 2), (199, 3, 1)]);
        assert_eq!(log.tight(one, 100_000, exports(targets)), []);
        assert_eq!(log.tight(two, 100_000, exports(&[100])).len(), 1, "of another device");
        assert_eq!(log.tight(one, 100_001, exports(targets)).len(), 1, "200 us are too few now");
        for target in 1..1_000 {
            log.tight(one, 1_000_000, [(ExportId(0), target)].into_iter());
        }
        assert_eq!(log.told.len(), TOLD_MAX);
    }
}
