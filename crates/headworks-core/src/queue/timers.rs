//! The timers of a device on the shard's timer wheel.

use crate::bio::DeviceId;
use crate::pools::Pools;
use crate::time::Instant;

/// A device's timers; the wheel's index is `device * TIMERS + kind`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TimerKind {
    /// The oldest command in flight may have timed out.
    Timeout = 0,
    /// A device that refused a command is asked again.
    Retry = 1,
    /// A lease of another shard's device has been idle.
    LeaseIdle = 2,
    /// The elevator may dispatch although nothing happened.
    Elevator = 3,
    /// The tag policy may grant although no tag came back.
    Tags = 4,
    /// A request may have waited for the device for too long.
    Expiry = 5,
}

/// The number of timers per device.
pub(crate) const TIMERS: u32 = 6;

/// Returns the wheel's index of a device's timer.
pub(crate) fn timer_of(device: DeviceId, kind: TimerKind) -> u32 {
    u32::from(device.0) * TIMERS + kind as u32
}

/// Sets or clears a device's timer.
pub(super) fn set_timer(pools: &mut Pools, device: DeviceId, kind: TimerKind, at: Option<Instant>) {
    match at {
        Some(at) => pools.timers.set(timer_of(device, kind), at),
        None => pools.timers.clear(timer_of(device, kind)),
    }
}

/// Sets a device's timer for `at`, unless it is set for an earlier time.
pub(crate) fn set_timer_by(pools: &mut Pools, device: DeviceId, kind: TimerKind, at: Instant) {
    let timer = timer_of(device, kind);
    if pools.timers.at(timer).is_none_or(|set| at < set) {
        pools.timers.set(timer, at);
    }
}

/// Clears all timers of a device that is removed.
pub(crate) fn clear_timers(pools: &mut Pools, device: DeviceId) {
    (0..TIMERS).for_each(|kind| pools.timers.clear(u32::from(device.0) * TIMERS + kind));
}
