//! What exports without a latency target, or with a looser one, have in the device: its limit is that of the device's
//! [`TargetControl`], and its bytes are counted here.
//!
//! Invariants: `bytes` is the sum of `charged` over all admitted requests with `bulk` set; without a latency target nothing is
//! counted and nothing is limited.

use super::export_shares::ExportShares;
use crate::bio::ExportId;
use crate::gauge::Gauge64;
use crate::latency_target::{SMALL_MAX, TargetControl};
use crate::request::Request;
use crate::stats::TargetStats;
use crate::tags::TagRequest;
use crate::time::{Instant, US};

/// The bulk of one device.
#[derive(Debug)]
pub(super) struct Bulk {
    control: TargetControl,
    bytes: Gauge64,
    /// Small requests with a target that have ended, and those of them that missed it.
    counts: Vec<(u64, u64)>,
}

impl Bulk {
    /// Creates the bulk of a device for `exports` exports.
    pub fn new(exports: usize) -> Self {
        let counts = vec![(0, 0); exports];
        Self { control: TargetControl::new(), bytes: Gauge64::default(), counts }
    }

    /// Takes over the targets of all exports, or none.
    pub fn set_targets(&mut self, now: Instant, shares: Option<&ExportShares>) {
        let targets = shares.into_iter().flat_map(ExportShares::targets_us);
        let targets = targets.map(|target| u64::from(target) * US);
        self.control.set_targets(now, targets);
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

    /// Notes that bulk waits for its limit.
    pub fn on_bound(&mut self) {
        self.control.on_bound();
    }

    /// Counts an admitted request that was charged, if it is bulk.
    pub fn charge(&mut self, request: &mut Request, target_us: u32) {
        debug_assert!(!request.bulk, "a request is charged once");
        if self.is_bulk(target_us) {
            request.bulk = true;
            self.bytes.add(request.charged.into());
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

    /// Notes the time of a finished request of an export with a target.
    pub fn note(&mut self, now: Instant, request: &Request, target_us: u32) {
        if target_us == 0 || request.len > SMALL_MAX || !request.is_sync() {
            return;
        }
        let (target_ns, latency_ns) = (u64::from(target_us) * US, now.since(request.stamps[0]));
        self.control.note(target_ns, request.stamps[0], now);
        if let Some((ended, missed)) = self.counts.get_mut(usize::from(request.export.0)) {
            *ended += 1;
            *missed += u64::from(latency_ns > target_ns);
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

    /// Returns the small requests of an export that had a target, and those that missed it.
    pub fn counts(&self, export: ExportId) -> (u64, u64) {
        self.counts.get(usize::from(export.0)).copied().unwrap_or_default()
    }
}
