//! The changes of devices and volumes in a simulated world: those planned, the one in progress, and what is present.
//!
//! Invariants: at most one change is in progress; a volume is present or absent apart from it, and a power cut does not change that.

use headworks_core::prng::Prng;
use headworks_core::{DeviceId, VolumeId};

use crate::scenario::Scenario;

/// Progress of a change; the number counts the shards that have agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HotplugStage {
    Emptying,
    RemovingVolume(usize),
    RemovingDevice(usize),
    AddingDevice(usize),
    AddingVolume(usize),
    Shrunk,
}

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HotplugGoal {
    Replace,
    Add,
    Remove,
    Resize,
}

/// A change in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct HotplugChange {
    pub goal: HotplugGoal,
    pub volume: VolumeId,
    pub device: DeviceId,
    pub stage: HotplugStage,
    pub tries: u32,
}

/// State of hot-plug in a simulated world.
pub(super) struct Hotplug {
    /// Draws changes, sizes and pauses.
    pub prng: Prng,
    left: u32,
    under_way: Option<HotplugChange>,
    /// Whether each volume is present, by id; a power cut does not change it.
    volumes: Vec<bool>,
    devices: Vec<bool>,
}

impl Hotplug {
    pub fn new(prng: Prng, scenario: &Scenario) -> Self {
        let (devices, volumes) = scenario.permanent();
        Self {
            prng,
            left: 0,
            under_way: None,
            volumes: (0..scenario.volumes.len()).map(|volume| volume < volumes).collect(),
            devices: (0..scenario.devices.len()).map(|device| device < devices).collect(),
        }
    }

    /// Whether a device may be absent, or not yet known to all shards.
    pub fn affects(&self, device: DeviceId) -> bool {
        !self.devices[usize::from(device.0)]
            || self
                .under_way
                .is_some_and(|at| at.device == device && at.goal != HotplugGoal::Resize)
    }

    /// Whether a volume is present, apart from a change in progress.
    pub fn is_present(&self, volume: VolumeId) -> bool {
        self.volumes[usize::from(volume.0)]
    }

    /// Whether a volume is being added or removed.
    pub fn changes(&self, volume: VolumeId) -> bool {
        let at = self.under_way.filter(|at| at.volume == volume);
        at.is_some_and(|at| at.goal != HotplugGoal::Resize)
    }

    /// Whether a change is in progress.
    pub fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Whether a change is in progress or scheduled.
    pub fn is_active(&self) -> bool {
        self.left > 0 || self.under_way.is_some()
    }

    /// Picks a volume with id `from` or higher that is present, or absent; none if there is none.
    pub fn pick(&mut self, there: bool, from: usize) -> Option<VolumeId> {
        let fits = |&volume: &usize| self.volumes[volume] == there;
        let volumes: Vec<_> = (from..self.volumes.len()).filter(fits).collect();
        let count = volumes.len() as u64;
        (count > 0).then(|| VolumeId(volumes[self.prng.below(count) as usize] as u16))
    }

    /// Plans the changes of a new round; true if there are any.
    pub fn plan(&mut self, changes: u32) -> bool {
        self.left = changes;
        changes > 0
    }

    /// Takes one of the planned changes; false when none is left.
    pub fn take_planned(&mut self) -> bool {
        let has_one = self.left > 0;
        self.left -= u32::from(has_one);
        has_one
    }

    /// Whether changes are planned.
    pub fn has_planned(&self) -> bool {
        self.left > 0
    }

    /// The change in progress.
    pub fn under_way(&self) -> Option<HotplugChange> {
        self.under_way
    }

    /// Begins a change, or goes on with the one in progress.
    pub fn go_on(&mut self, change: HotplugChange) {
        let same = |at: HotplugChange| at.volume == change.volume && at.goal == change.goal;
        assert!(self.under_way.is_none_or(same), "one change at a time");
        self.under_way = Some(change);
    }

    /// Ends the change in progress, if there is one.
    pub fn end(&mut self) {
        self.under_way = None;
    }

    /// Aborts the change in progress, and those that are planned.
    pub fn abort(&mut self) {
        (self.left, self.under_way) = (0, None);
    }

    /// The devices from `first` on that are present.
    pub fn devices_from(&self, first: usize) -> impl Iterator<Item = usize> {
        (first..self.devices.len()).filter(|&at| self.devices[at])
    }

    /// The volumes from `first` on that are present.
    pub fn volumes_from(&self, first: usize) -> impl Iterator<Item = usize> {
        (first..self.volumes.len()).filter(|&at| self.volumes[at])
    }

    /// Notes that a volume is present, or absent.
    pub fn set_volume(&mut self, volume: VolumeId, present: bool) {
        self.volumes[usize::from(volume.0)] = present;
    }

    /// Notes that a device is present, or absent; returns whether it was present before.
    pub fn set_device(&mut self, device: DeviceId, present: bool) -> bool {
        std::mem::replace(&mut self.devices[usize::from(device.0)], present)
    }
}
