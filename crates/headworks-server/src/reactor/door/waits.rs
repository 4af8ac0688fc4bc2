//! Requests that wait for something else than buffers: limits let them pass by a timer, a freeze ends, and requests for a device that
//! ceased to answer fail at once.

use headworks_core::options::DEVICES_MAX;
use headworks_core::{DeviceId, DeviceState, Instant, VolumeId};
use tracing::{info, warn};

use super::super::ReactorParts;
use super::Door;
use crate::clients::nbd::connection::{ConnectionEnd, Shares, TurnShare};
use crate::reactor::messages::query::Thawed;
use headworks_front::WaitsFor;

impl Door {
    /// Lets parked requests pass whose limits agree now; returns whether there was one.
    pub fn pass_limited(&mut self, parts: &mut ReactorParts, now: Instant) -> bool {
        if self.limits.next_timeout().is_none_or(|at| at > now) || self.paused {
            return false;
        }
        let mut any = false;
        while let Some(passed) = self.limits.pop(now) {
            any = true;
            let slot = passed.owner;
            if let Some((connection, _)) = parts.io.connection(slot)
                && self.limits.knows(slot)
                && let Some(next) = connection.pass(passed.direction)
            {
                self.limits.wait(now, slot, next);
            }
            self.resume_limited(parts, slot);
        }
        any
    }

    /// Lets everything pass that a connection has parked, whatever the limits are.
    pub fn pass_parked(&mut self, parts: &mut ReactorParts, now: Instant, slot: u32) {
        let Some((connection, _)) = parts.io.connection(slot) else { return };
        if connection.parked() > 0 {
            connection.pass_all();
            self.limits.forget(now, slot);
            self.resume_limited(parts, slot);
        }
    }

    /// Submits what a connection has parked, as far as there are buffers: a stop or a removal does not wait for limits.
    pub fn submit_parked(&mut self, parts: &mut ReactorParts, now: Instant, slot: u32) {
        self.pass_parked(parts, now, slot);
        let room = parts.free_slots();
        let Some((connection, pool)) = parts.io.connection(slot) else { return };
        if connection.parked() == 0 {
            return;
        }
        let frozen = connection.binding().is_some_and(|it| self.freezes.holds(it.volume));
        let turn =
            TurnShare { room, large_reads: usize::MAX, large_payloads: usize::MAX, received: 0 };
        let mut shares = Shares {
            now,
            scratch: &mut self.scratch,
            pool,
            memory: self.memory.share(slot),
            from_cache: false,
            frozen,
            limits: None,
            exports: &self.exports,
            window: self.memory.window(connection.export_of_requests()),
            turn,
            inputs: parts.driver.inputs(),
        };
        connection.submit_before_leaving(&mut shares);
    }

    /// When parked requests are looked at again; none while nothing is read.
    pub fn next_limited(&self) -> Option<Instant> {
        if self.paused { None } else { self.limits.next_timeout() }
    }

    fn resume_limited(&mut self, parts: &mut ReactorParts, slot: u32) {
        let connection = parts.io.connection(slot);
        let stopped =
            connection.map_or(WaitsFor::Nothing, |(connection, _)| connection.stopped_by());
        // A connection whose requests all wait for limits is at its bound, and no answer ends that.
        if matches!(stopped, WaitsFor::Nothing | WaitsFor::Limit(_) | WaitsFor::Window) {
            self.hot.heat(slot);
        }
    }

    /// Freezes a volume whose home is this shard. Of requests that wait for room, those that change it wait for the thaw from now on.
    pub fn freeze_volume(
        &mut self,
        parts: &mut ReactorParts,
        now: Instant,
        volume: VolumeId,
        limit_ns: u64,
    ) -> Result<(), &'static str> {
        if !self.freezes.begin(now, volume, limit_ns) {
            return Err("it is frozen already; `thaw` ends that");
        }
        info!("{} is frozen for at most {} s", self.exports.name_of(volume), seconds(limit_ns));
        self.wake_volume(parts, volume, &[WaitsFor::Buffer, WaitsFor::Room]);
        Ok(())
    }

    /// Requests in flight that change a frozen volume, those included whose clients were told of a time-out; none if it is not frozen.
    pub fn writes_in_flight(
        &mut self,
        parts: &mut ReactorParts,
        volume: VolumeId,
    ) -> Option<usize> {
        if !self.freezes.holds(volume) {
            return None;
        }
        let all = self.exports.all().filter(|export| export.binding.volume == volume);
        let exports: Vec<_> = all.map(|export| export.binding.export).collect();
        let mut count = 0;
        for slot in parts.io.slots() {
            // Connections that are closed, too: their requests may still be in the device.
            let export = self.hot.state(slot).export;
            if export.is_some_and(|export| exports.contains(&export))
                && let Some((connection, _)) = parts.io.connection(slot)
            {
                count += connection.writes_in_flight();
            }
        }
        Some(count)
    }

    /// Ends a freeze: what waits goes on.
    pub fn thaw_volume(
        &mut self,
        parts: &mut ReactorParts,
        now: Instant,
        volume: VolumeId,
    ) -> Thawed {
        let thawed = self.freezes.end(now, volume);
        if let Thawed::Now { after_ns } = thawed {
            let name = self.exports.name_of(volume);
            info!("{name} is thawed after {} s", seconds(after_ns));
            self.release_waiting(parts, volume);
        }
        thawed
    }

    /// Ends freezes whose time is over.
    pub fn expire_freezes(&mut self, parts: &mut ReactorParts, now: Instant) {
        if self.freezes.next_timeout().is_none_or(|at| at > now) {
            return;
        }
        while let Some((volume, length_ns)) = self.freezes.expire(now) {
            warn!(
                "{}: the freeze ended by itself after {} s; a copy that was not finished by then is not of one point in time",
                self.exports.name_of(volume),
                seconds(length_ns)
            );
            self.release_waiting(parts, volume);
        }
    }

    /// Lets the connections of a volume read on. What a client that has left had waiting is dropped: it may have sent it again, or
    /// something newer, through another connection.
    fn release_waiting(&mut self, parts: &mut ReactorParts, volume: VolumeId) {
        self.drop_left_clients(parts);
        self.wake_volume(parts, volume, &[WaitsFor::Freeze]);
    }

    /// Lets the connections of a volume go on for which one of these has come.
    fn wake_volume(&mut self, parts: &mut ReactorParts, volume: VolumeId, came: &[WaitsFor]) {
        for slot in parts.io.slots() {
            let Some((connection, _)) = parts.io.connection(slot) else { continue };
            if connection.binding().is_some_and(|it| it.volume == volume) {
                came.iter().for_each(|what| _ = self.wake(parts, slot, *what));
            }
        }
    }

    /// Closes connections that wait for a thaw and whose clients have left: they are not watched.
    pub fn drop_left_clients(&mut self, parts: &mut ReactorParts) {
        for slot in parts.io.slots() {
            if let Some((connection, _)) = parts.io.connection(slot)
                && connection.stopped_by() == WaitsFor::Freeze
                && connection.client_has_left()
            {
                self.end(parts, slot, &ConnectionEnd::HungUp);
            }
        }
    }

    /// Lets the connections of devices that ceased to answer, or answer again, continue: they may have waited for room. Returns whether there is
    /// such a device.
    pub fn on_device_states(&mut self, parts: &mut ReactorParts) -> bool {
        let shard = parts.driver.shard();
        if shard.device_news() == self.device_news {
            return false;
        }
        self.device_news = shard.device_news();
        let is_stuck =
            |device: &u16| shard.device_state(DeviceId(*device)) == Some(DeviceState::Stuck);
        let before = self.stuck;
        self.stuck =
            (0..DEVICES_MAX as u16).filter(is_stuck).fold(0, |all, device| all | 1 << device);
        for slot in parts.io.slots() {
            let Some((connection, _)) = parts.io.connection(slot) else { continue };
            let device = connection.binding().map(|binding| binding.device);
            if device.is_some_and(|device| (before ^ self.stuck) >> device.0 & 1 != 0) {
                // Requests for a stuck device fail at once, those that wait for a limit, too.
                self.pass_parked(parts, parts.io.now, slot);
                self.memory.leave(slot);
                self.hot.heat(slot);
            }
        }
        true
    }
}

fn seconds(ns: u64) -> String {
    format!("{:.3}", ns as f64 / 1e9)
}
