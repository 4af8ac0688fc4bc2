//! A stop while the device of some volumes does not answer: each other volume is flushed as soon as its own clients have left.
//!
//! ```text
//!   clients send nothing more, a device hangs --> its own clients have left: flush of a volume, again while it times out --> flushed
//!                                            `-- the hung device's volumes: at most until the stop gives up
//!   the power is cut --> every byte that was acknowledged on the other devices is there
//! ```

use headworks_core::time::{MS, SEC};
use headworks_core::{DeviceId, IoError, VolumeId};

use super::{FLUSHES, World};
use crate::check::violation;
use crate::coverage::Point;
use crate::disk::Outage;
use crate::scenario::WorldDefect;

/// The rule of a stop.
pub const STOP_RULE: &str = "a stop beside a hung device flushes all other volumes";
/// Time of a stop.
const LIMIT: u64 = 60 * SEC;
/// Time after which flushes that timed out are submitted again.
const AGAIN: u64 = 10 * MS;
/// How long the device does not answer.
const HANGS: u64 = 3_600 * SEC;

impl World {
    /// Stops while a drawn device hangs, and cuts the power.
    pub(super) fn stop_beside_hung(&mut self) {
        let hung = DeviceId(self.order.below(self.disks.len() as u64) as u16);
        self.set_faulty(false);
        self.hang(hung, true);
        self.env.coverage.hit(Point::StopHung);
        let jobs = self.env.scenario.jobs.len();
        for connection in &mut self.env.connections[..jobs] {
            connection.job.left = 0;
        }
        self.env.flushed.fill(None);
        let until = self.env.now.after(LIMIT);
        self.turns_max = self.turns + 1_000_000;
        while self.env.now < until && self.env.broken.is_none() {
            self.flush_left_alone();
            let others_done = self.others(hung).all(|volume| self.is_flushed(volume));
            if others_done || !self.step() {
                break;
            }
        }
        self.check_others(hung);
        for connection in &mut self.env.connections[jobs..] {
            connection.job.left = 0;
        }
        self.hang(hung, false);
        if self.env.broken.is_none() {
            self.cut();
        }
    }

    fn hang(&mut self, device: DeviceId, hangs: bool) {
        let now = self.env.now.0;
        let outage =
            hangs.then_some(Outage { from_ns: now, until_ns: now + HANGS, refuses: false });
        self.disks[usize::from(device.0)].lock().set_outage(outage);
        self.env.scenario.devices[usize::from(device.0)].faults.outage = outage;
    }

    /// Volumes of devices that answer.
    fn others(&self, hung: DeviceId) -> impl Iterator<Item = VolumeId> {
        let volumes = self.env.scenario.volumes.iter().enumerate();
        let others = volumes.filter(move |(_, volume)| volume.device != hung);
        others.map(|(index, _)| VolumeId(index as u16))
    }

    fn is_flushed(&self, volume: VolumeId) -> bool {
        self.env.flushed[usize::from(volume.0)] == Some(Ok(()))
    }

    /// Flushes the volumes whose clients have left, again if that timed out.
    fn flush_left_alone(&mut self) {
        let jobs = self.env.scenario.jobs.len();
        let waits = |connections: &[crate::connection::Connection], volume: VolumeId| {
            connections.iter().any(|it| it.job.options.volume == volume && it.in_flight() > 0)
        };
        let all_wait = self.env.scenario.defect == WorldDefect::StopsTogether
            && self.env.connections[..jobs].iter().any(|connection| connection.in_flight() > 0);
        let again = self.flushed_again.after(AGAIN);
        if self.env.now >= again {
            self.flushed_again = self.env.now;
        }
        for index in jobs..self.env.connections.len() {
            let volume = VolumeId((index - jobs) as u16);
            let flushed = self.env.flushed[usize::from(volume.0)];
            // A device that is known not to answer fails flushes at once.
            let is_due = flushed.is_none()
                || flushed == Some(Err(IoError::TimedOut)) && self.env.now >= again;
            let left = self.env.connections[index].job.left;
            if all_wait || !is_due || left > 0 || waits(&self.env.connections, volume) {
                continue;
            }
            self.env.flushed[usize::from(volume.0)] = None;
            let job = &mut self.env.connections[index].job;
            job.options.weights = FLUSHES;
            job.left = 1;
            self.env.start();
            self.issue_ready();
        }
    }

    fn check_others(&mut self, hung: DeviceId) {
        let jobs = self.env.scenario.jobs.len();
        for index in jobs..self.env.connections.len() {
            self.env.connections[index].job.options.weights = [1, 0, 0, 0, 0, 0, 0];
        }
        let late: Vec<_> = self.others(hung).filter(|volume| !self.is_flushed(*volume)).collect();
        if let (Some(volume), None) = (late.first(), &self.env.broken) {
            let status = self.env.flushed[usize::from(volume.0)];
            let detail = format!("volume {} while device {} hangs: {status:?}", volume.0, hung.0);
            self.env.fail(violation(STOP_RULE, detail));
        }
    }
}
