//! Steps of the removal of a volume, and of its device if nothing else is on it.
//!
//! ```text
//!   volume: home shard, owner of the device, other shards --> free id --> [device: other shards, owner --> free id]
//!               ^ after the first of these the removal cannot be undone     if no other volume is on it
//! ```
//!
//! A shard that refuses a step is asked again, by the same `remove` or by a later one.

use std::collections::VecDeque;

use headworks_core::ShardId;

use crate::control::tree::ExportNode;

/// A step of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalStep {
    /// A shard removes the volume.
    Volume(ShardId),
    /// No shard has the volume: its id becomes free.
    VolumePlace,
    /// A shard removes the device.
    Device(ShardId),
    /// No shard has the device: its id becomes free.
    DevicePlace,
}

/// The remaining steps of a removal.
#[derive(Clone, Debug)]
pub struct RemovalSteps {
    /// The export that is removed.
    pub entry: ExportNode,
    owner: ShardId,
    shards: u16,
    steps: VecDeque<RemovalStep>,
    begun: bool,
}

impl RemovalSteps {
    /// Steps for a volume on these shards, of which `owner` has the device.
    pub fn new(entry: ExportNode, owner: ShardId, shards: u16) -> Self {
        // The order that `Shard::change` requires.
        let home = entry.home;
        let mut all: Vec<ShardId> = (0..shards).map(ShardId).collect();
        all.sort_by_key(|shard| (*shard != home, *shard != owner));
        let steps =
            all.into_iter().map(RemovalStep::Volume).chain([RemovalStep::VolumePlace]).collect();
        Self { entry, owner, shards, steps, begun: false }
    }

    /// Adds the steps of the device.
    pub fn with_device(&mut self) {
        let mut all: Vec<ShardId> = (0..self.shards).map(ShardId).collect();
        all.sort_by_key(|shard| *shard == self.owner);
        self.steps
            .extend(all.into_iter().map(RemovalStep::Device).chain([RemovalStep::DevicePlace]));
    }

    /// The next step; none when nothing is left.
    pub fn step(&self) -> Option<RemovalStep> {
        self.steps.front().copied()
    }

    /// Records that the next step was done.
    pub fn pass(&mut self) {
        self.steps.pop_front();
        self.begun = true;
    }

    /// Whether a shard has removed the volume: its requests fail, and the removal cannot be undone.
    pub fn has_begun(&self) -> bool {
        self.begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::tree::tests::tree;

    #[test]
    fn volume_leaves_home_first_and_device_leaves_owner_last() {
        let mut entry = tree().exports[0].clone();
        entry.home = ShardId(2);
        let mut departure = RemovalSteps::new(entry, ShardId(1), 4);
        let mut steps = Vec::new();
        while let Some(step) = departure.step() {
            if step == RemovalStep::VolumePlace {
                departure.with_device();
            }
            assert_eq!(departure.has_begun(), !steps.is_empty());
            departure.pass();
            steps.push(step);
        }
        let shards =
            |numbers: [u16; 4], step: fn(ShardId) -> RemovalStep| numbers.map(ShardId).map(step);
        let expected = [
            &shards([2, 1, 0, 3], RemovalStep::Volume)[..],
            &[RemovalStep::VolumePlace],
            &shards([0, 2, 3, 1], RemovalStep::Device),
            &[RemovalStep::DevicePlace],
        ];
        assert_eq!(steps, expected.concat());
    }
}
