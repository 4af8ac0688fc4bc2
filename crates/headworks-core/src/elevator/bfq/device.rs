//! What is in the device, and how much more it may have.
//!
//! The elevator orders what is outside the device; what is inside is ordered by the device and delays everything. Three limits,
//! each of which lets one request in at least: the estimated time of what is inside, on a rotating device; the bytes
//! (`hw_inflight_kb`); elsewhere what the control of the depth has measured, in bytes and a cost for each command. Without the
//! last a light reader on flash waited for whatever the device takes: 32 commands of 1 MiB, 60 ms.
//!
//! Invariant: `requests` is the number of dispatched requests that have neither ended nor timed out, refused ones included.

use super::settings::Settings;
use crate::gauge::{Gauge32, Gauge64};

/// The requests in the device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InDevice {
    requests: Gauge32,
    bytes: Gauge64,
    estimate_ns: Gauge64,
    most: u32,
    /// The measured limit on bytes and `command_cost` for each request; 0 for none.
    limit: u64,
    command_cost: u32,
    /// A request waited for that limit.
    bound: bool,
}

impl InDevice {
    /// Returns the number of requests in the device.
    pub fn requests(&self) -> u32 {
        self.requests.get()
    }

    /// Returns the largest number that ever was there.
    pub fn most(&self) -> u32 {
        self.most
    }

    /// Returns whether another request may be dispatched. The limit on time holds while `timed` says so.
    pub fn has_room(&self, settings: &Settings, timed: impl FnOnce() -> bool) -> bool {
        if self.requests.is_zero() {
            return true;
        }
        let bytes = self.bytes.get() < settings.inflight_bytes && !self.is_full();
        let time = || self.estimate_ns.get() < settings.inflight_ns || !timed();
        !settings.strict && bytes && time()
    }

    /// Sets the measured limit; `u64::MAX` for none.
    pub fn set_limit(&mut self, limit: u64, command_cost: u32) {
        (self.limit, self.command_cost) = (if limit == u64::MAX { 0 } else { limit }, command_cost);
    }

    /// Returns what is inside, by the measure of that limit, and whether a request waited for it since the last call.
    pub fn take_load(&mut self) -> (u64, bool) {
        (self.load(), std::mem::take(&mut self.bound))
    }

    /// Notes that requests wait.
    #[inline]
    pub fn note_waiting(&mut self) {
        self.bound |= self.is_full();
    }

    fn load(&self) -> u64 {
        self.bytes.get() + u64::from(self.requests.get()) * u64::from(self.command_cost)
    }

    fn is_full(&self) -> bool {
        self.limit > 0 && self.load() >= self.limit
    }

    /// Counts a request that is dispatched.
    pub fn add(&mut self, bytes: u32, estimate_ns: u32) {
        self.requests.add(1);
        self.bytes.add(bytes.into());
        self.estimate_ns.add(estimate_ns.into());
        self.most = self.most.max(self.requests.get());
    }

    /// Counts a request that has ended or timed out.
    pub fn remove(&mut self, bytes: u32, estimate_ns: u32) {
        self.requests.sub(1);
        self.bytes.sub(bytes.into());
        self.estimate_ns.sub(estimate_ns.into());
        debug_assert!(!self.requests.is_zero() || self.bytes.is_zero(), "an empty device has none");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::QueueOptions;
    use crate::time::MS;

    #[test]
    fn measured_limit_counts_a_cost_for_each_command() {
        let settings = Settings::new(&QueueOptions::default());
        let mut device = InDevice::default();
        device.set_limit(20_000, 2048);
        for requests in 0..4 {
            assert!(device.has_room(&settings, || true), "{requests} of 6144");
            device.note_waiting();
            assert_eq!(device.take_load(), (requests * 6144, false));
            device.add(4096, 0);
        }
        assert!(!device.has_room(&settings, || true));
        device.note_waiting();
        assert_eq!((device.take_load(), device.take_load()), ((24_576, true), (24_576, false)));
        device.set_limit(u64::MAX, 2048);
        assert!(device.has_room(&settings, || true));
    }

    /// P10: each limit lets in one request beyond it and no more.
    #[test]
    fn each_limit_is_exceeded_by_one_request_at_most() {
        let options =
            QueueOptions { rotational: true, hw_inflight_kb: 64, ..QueueOptions::default() };
        let settings = Settings::new(&options);
        let mut device = InDevice::default();
        device.add(1 << 20, 0);
        assert!(!device.has_room(&settings, || true), "the first one goes whatever its size");
        device.remove(1 << 20, 0);
        device.add(65_535, 19 * MS as u32);
        assert!(device.has_room(&settings, || true));
        device.add(1, MS as u32);
        assert!(!device.has_room(&settings, || true) && !device.has_room(&settings, || false));
        device.remove(1, MS as u32);
        device.add(0, MS as u32);
        assert!(!device.has_room(&settings, || true) && device.has_room(&settings, || false));
    }
}
