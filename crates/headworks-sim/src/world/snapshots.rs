//! Snapshots of overlays: a new layer is put on, as the server does it on the frozen and flushed export, and also whenever the device
//! takes it under load.
//!
//! Invariants: a device takes a layer only when everything is durable that the one below got, which the next power cut checks; one that
//! is idle and flushed takes it.

use headworks_core::{DeviceId, WriteMode};

use super::World;
use crate::check::violation;
use crate::coverage::Point;
use crate::disk::{OverlaidDisk, OverlaidVolume, keep_top, new_top};

/// Turns per attempt under load.
const EVERY: u64 = 128;

impl World {
    /// Attempts a snapshot of a drawn volume now and then.
    pub(super) fn try_snapshot(&mut self) {
        let overlays = self.env.scenario.overlays.len() as u64;
        if overlays > 0 && self.snapshots.below(EVERY) == 0 {
            let index = self.snapshots.below(overlays) as usize;
            let stacked = self.snapshot(self.env.scenario.overlays[index].volume);
            self.env.coverage.add(Point::SnapshotBusy, (stacked == Some(true)).into());
        }
    }

    /// Puts a layer on every overlay of an idle world, in some of the rounds.
    pub(super) fn snapshot_idle(&mut self) {
        if self.env.scenario.overlays.is_empty() || self.snapshots.below(3) > 0 {
            return;
        }
        self.flush_all();
        for index in 0..self.env.scenario.overlays.len() {
            if self.env.broken.is_some() {
                return;
            }
            let volume = self.env.scenario.overlays[index].volume;
            match self.snapshot(volume) {
                Some(false) if self.env.scenario.mode(volume.volume) != WriteMode::Unsafe => {
                    let detail = format!("volume {}", volume.volume.0);
                    self.env.fail(violation("a flushed overlay takes a new layer", detail));
                }
                stacked => self.env.coverage.add(Point::Snapshot, (stacked == Some(true)).into()),
            }
        }
    }

    /// Puts a layer on a volume: whether the device took it; `None` if the volume has the most there may be.
    fn snapshot(&mut self, volume: OverlaidVolume) -> Option<bool> {
        let DeviceId(device) = self.env.scenario.volumes[usize::from(volume.volume.0)].device;
        let owner = self.env.scenario.devices[usize::from(device)].config.owner;
        let disk = &self.disks[usize::from(device)];
        let top = new_top(disk, volume)?;
        let executor = &mut self.shards[usize::from(owner.0)].executor;
        let overlays = executor.device(DeviceId(device))?.find::<OverlaidDisk>();
        let overlay = overlays.and_then(|overlays| overlays.overlay(volume.volume));
        let stacked = overlay.is_some_and(|overlay| overlay.stack(top).is_ok());
        if stacked {
            keep_top(disk, volume);
        }
        Some(stacked)
    }
}
