//! What exports without a latency target, or with a looser one, have in the device: its limit is that of the device's
//! [`TargetControl`], and its bytes are counted here.
//!
//! Requests of exports with a target are counted, by export and by tenant, and so are those that wait for the limit. The smallest
//! latency is measured beside it, see [`SmallestLatency`].
//!
//! Invariants: `bytes` is the sum of `charged` over all admitted requests with `bulk` set; without a latency target nothing is
//! counted and nothing is limited; `noting` says that a target is on or the smallest latency is watched.

use super::export_shares::ExportShares;
use crate::bio::{ExportId, TenantId};
use crate::gauge::Gauge64;
use crate::latency_target::{SMALL_MAX, SmallestLatency, TargetControl};
use crate::options::TENANTS_MAX;
use crate::request::Request;
use crate::slab::NIL;
use crate::stats::{TargetCounts, TargetStats};
use crate::tags::{Requester, TagRequest};
use crate::time::{Instant, US};

/// The bulk of one device.
#[derive(Debug)]
pub(super) struct Bulk {
    control: TargetControl,
    bytes: Gauge64,
    /// By export, since its target was set last.
    counts: Vec<TargetCounts>,
    /// By tenant; empty until an export has a target.
    tenants: Vec<TargetCounts>,
    smallest: SmallestLatency,
    /// Latencies are noted.
    noting: bool,
}

impl Bulk {
    /// Creates the bulk of a device for `exports` exports.
    pub fn new(exports: usize) -> Self {
        Self {
            control: TargetControl::new(),
            bytes: Gauge64::default(),
            counts: vec![TargetCounts::default(); exports],
            tenants: Vec::new(),
            smallest: SmallestLatency::new(),
            noting: false,
        }
    }

    /// Takes over the targets of all exports, or none.
    pub fn set_targets(&mut self, now: Instant, shares: Option<&ExportShares>) {
        let targets = shares.into_iter().flat_map(ExportShares::targets_us);
        let targets = targets.map(|target| u64::from(target) * US);
        self.control.set_targets(now, targets);
        if self.is_on() && self.tenants.is_empty() {
            self.tenants.resize(TENANTS_MAX, TargetCounts::default());
        }
        self.set_noting(self.is_on() || self.smallest.is_watched(now), true);
        debug_assert!(!self.is_on() || self.noting, "latencies are noted for a target");
    }

    /// Counts the requests of an export anew: it has another target, or is another export.
    pub fn forget_counts(&mut self, export: ExportId) {
        if let Some(counts) = self.counts.get_mut(usize::from(export.0)) {
            *counts = TargetCounts::default();
        }
    }

    /// Measures the smallest latency of a queue that is busy or empty for a while, though no export may have a target; returns it,
    /// in nanoseconds.
    pub fn watch_smallest(&mut self, now: Instant, is_busy: bool) -> Option<u64> {
        self.smallest.watch(now);
        self.set_noting(true, is_busy);
        debug_assert!(self.smallest.is_watched(now), "it is watched for a while");
        self.smallest.get(now)
    }

    fn set_noting(&mut self, noting: bool, is_busy: bool) {
        if noting && !self.noting {
            self.smallest.restart(is_busy);
        }
        self.noting = noting;
    }

    /// Returns true while latencies are noted.
    #[inline]
    pub fn is_noting(&self) -> bool {
        self.noting
    }

    /// Notes the end of a batch that left the queue busy or empty.
    pub fn on_batch(&mut self, now: Instant, is_busy: bool) {
        debug_assert!(self.noting, "batches are noted with latencies");
        self.smallest.on_batch(now, is_busy);
        if !self.is_on() {
            self.noting = self.smallest.is_watched(now);
        }
    }

    /// Returns true while an export has a target.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.control.is_on()
    }

    /// Returns whether requests of an export with this target are bulk now.
    pub fn is_bulk(&self, target_us: u32) -> bool {
        self.control.is_bulk(u64::from(target_us) * US)
    }

    /// Returns the bytes that bulk may have in the device beside those that it has; `None` without a limit.
    pub fn room(&self) -> Option<u64> {
        self.control.limit().map(|limit| limit.saturating_sub(self.bytes.get()))
    }

    /// Returns the target for which bulk has to wait now, in microseconds.
    pub fn guard(&self) -> Option<u32> {
        debug_assert!(self.is_on() || self.room().is_none(), "a limit is for a target");
        let full = self.room()? == 0;
        full.then(|| (self.control.guarded().unwrap_or(0) / US) as u32)
    }

    /// Returns how many of `requests`, from the first, fit into the limit; a request fits while there is room for a byte.
    pub fn fits(&mut self, requests: &[TagRequest], command_cost: u32) -> usize {
        let Some(mut room) = self.room() else {
            return requests.len();
        };
        let fits = requests.iter().take_while(|request| {
            let bulk = self.is_bulk(request.target_us);
            let fits = !bulk || room > 0;
            let cost = u64::from(request.bytes) + u64::from(command_cost);
            room = room.saturating_sub(if bulk { cost } else { 0 });
            fits
        });
        let fits = fits.count();
        if fits < requests.len() {
            self.control.on_bound();
        }
        fits
    }

    /// Notes that `admitted` bytes are in the device.
    pub fn on_load(&mut self, admitted: u64) {
        debug_assert!(self.is_on(), "what is in the device is noted for a target");
        self.control.on_load(admitted);
    }

    /// Notes that bulk waits for its limit.
    pub fn on_bound(&mut self) {
        self.control.on_bound();
    }

    /// Counts an admitted request that was charged, if it is bulk.
    pub fn charge(&mut self, request: &mut Request, target_us: u32) {
        debug_assert!(!request.charge.bulk, "a request is charged once");
        if self.is_bulk(target_us) {
            request.charge.bulk = true;
            self.bytes.add(request.charge.bytes.into());
        }
    }

    /// Counts bytes that an admitted request grew by.
    pub fn charge_more(&mut self, bytes: u32) {
        self.bytes.add(bytes.into());
    }

    /// Returns the bytes of a request that ended or timed out.
    pub fn uncharge(&mut self, bytes: u32) {
        debug_assert!(self.bytes.get() >= bytes.into(), "bulk that ends was counted");
        self.bytes.sub(bytes.into());
    }

    /// Counts requests that have to wait, if that is for the limit.
    pub fn count_held(&mut self, now: Instant, requests: &[TagRequest]) {
        debug_assert!(self.is_on(), "requests are held for a target");
        let Some(target_us) = self.guard() else { return };
        for request in requests {
            // Exports of other shards are not known here.
            let is_own = matches!(request.requester, Requester::Request(_));
            if !is_own || !self.is_bulk(request.target_us) {
                continue;
            }
            let own = self.counts.get_mut(usize::from(request.export.0));
            let tenant = self.tenants.get_mut(usize::from(request.tenant.0));
            for counts in own.into_iter().chain(tenant) {
                counts.held += 1;
                (counts.held_at, counts.held_for_us) = (Some(now), target_us);
            }
        }
    }

    /// Notes the time of a finished request, of an export of `tenant` with this target or, by 0, none.
    pub fn note(&mut self, now: Instant, request: &Request, target_us: u32, tenant: TenantId) {
        debug_assert!(self.noting, "latencies are noted while a flag says so");
        // A piece of a large request waits for its siblings, not for others.
        if request.len > SMALL_MAX || !request.is_sync() || request.parent != NIL {
            return;
        }
        let came = request.stamps[0];
        self.smallest.note(came, now);
        // Without a target on the device its exports may have one that is not kept.
        if target_us == 0 || !self.is_on() {
            return;
        }
        let target_ns = u64::from(target_us) * US;
        self.control.note(target_ns, came, now);
        let own = self.counts.get_mut(usize::from(request.export.0));
        let tenant = self.tenants.get_mut(usize::from(tenant.0));
        for counts in own.into_iter().chain(tenant) {
            counts.ended += 1;
            counts.missed += u64::from(now.since(came) > target_ns);
        }
    }

    /// Returns true when a window of the control has ended.
    #[inline]
    pub fn is_due(&self, now: Instant) -> bool {
        self.control.is_due(now)
    }

    /// Ends a window while `admitted` bytes are in the device; returns true if the limit changed.
    pub fn end_window(&mut self, now: Instant, admitted: u64) -> bool {
        debug_assert!(self.bytes.get() <= admitted, "bulk is a part of what is in the device");
        self.control.end_window(now, admitted)
    }

    /// Returns the limit; `None` without one.
    pub fn limit(&self) -> Option<u64> {
        self.control.limit()
    }

    /// Returns the present limit.
    pub fn stats(&self) -> Option<TargetStats> {
        self.is_on().then(|| TargetStats {
            limit: self.control.limit(),
            bulk: self.bytes.get(),
            guarded_us: self.control.guarded().map(|target| (target / US) as u32),
        })
    }

    /// Returns the counts of an export.
    pub fn counts(&self, export: ExportId) -> TargetCounts {
        self.counts.get(usize::from(export.0)).copied().unwrap_or_default()
    }

    /// Returns the counts of all tenants; none before an export had a target.
    pub fn tenant_counts(&self) -> &[TargetCounts] {
        &self.tenants
    }

    /// Returns the smallest latency in nanoseconds, as far as it was measured.
    pub fn smallest(&self, now: Instant) -> Option<u64> {
        self.smallest.get(now)
    }
}
