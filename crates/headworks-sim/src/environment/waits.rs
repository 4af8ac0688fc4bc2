//! What a bio may wait for a device that does not answer, and when it may fail for it.

use headworks_core::{Bio, Instant};

use super::Environment;
use crate::check::violation;
use crate::oracle::Violation;

/// The part of `io_timeout` after which a device that ends nothing is silent: the core's, in its `device_state`.
const SILENCE_PART: u64 = 4;

impl Environment {
    /// Whether a bio may fail because it waited for its device: for as long as `io_timeout` (or half of it, as part of a request
    /// that waited before), or because the device does not answer anything: it has been noticed, or an outage has lasted for
    /// `io_timeout` (a flush fails with the older one that it waits for). A cached one may fail sooner: a write-out that had waited
    /// for its turn before the outage is overdue once the device has been silent for [`SILENCE_PART`] of `io_timeout`, and a
    /// cache that may not hold more failed blocks answers its writers with the error. A write that waits for a cap of dirty data
    /// may fail once a write-out of its device is later than `io_timeout`, which many write-outs for one device can be without a
    /// fault.
    pub(super) fn is_overdue(&self, bio: &Bio, since: Instant) -> bool {
        let device = self.scenario.volumes[usize::from(bio.id.volume.0)].device;
        let timeout = self.scenario.devices[usize::from(device.0)].config.queue.io_timeout_ns;
        let faults = &self.scenario.devices[usize::from(device.0)].faults;
        let answers = faults.busy == 0 && faults.late == 0 && faults.outage.is_none();
        let silence = match self.scenario.is_cached(bio.id.volume) {
            true => timeout / SILENCE_PART,
            false => timeout,
        };
        let is_out = faults.outage.is_some_and(|outage| {
            (outage.from_ns + silence..outage.until_ns + timeout).contains(&self.now.0)
        });
        self.now < self.device_states[usize::from(device.0)].stuck_until
            || is_out
            || !answers && 2 * self.now.since(since) >= timeout
            || self.scenario.tenants.parts && self.now.since(since) >= timeout
    }

    /// Checks that a bio of a device with an outage did not wait too long: nothing else delays it.
    pub(super) fn check_wait(&self, bio: &Bio, since: Instant) -> Result<(), Violation> {
        const BOUNDED: &str = "no bio waits for longer than twice io_timeout";
        let device = self.scenario.volumes[usize::from(bio.id.volume.0)].device;
        if self.scenario.devices[usize::from(device.0)].faults.outage.is_none() {
            return Ok(());
        }
        let timeout = self.scenario.devices[usize::from(device.0)].config.queue.io_timeout_ns;
        // Messages take their time, and a lease's part of the wait is counted in 255ths.
        let most = 2 * timeout + timeout / 64 + 10 * self.scenario.message_delay_ns;
        let waited = self.now.since(since);
        if waited > most {
            return Err(violation(BOUNDED, format!("{bio:?} waited for {waited} ns")));
        }
        Ok(())
    }
}
