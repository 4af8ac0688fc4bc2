//! How far the last export of an image has come on its way out of the shards.
//!
//! ```text
//!   volume: its home, the owner of its device, the others --> place free --> [device: the others, its owner --> place free]
//!               ^ from here on there is no way back                          if nothing else is on it by then
//! ```
//!
//! A shard that is not ready is asked again, by the same `remove` or, when that has given up, by another.

use std::collections::VecDeque;

use headworks_core::ShardId;

use crate::control::tree::ExportNode;

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalStep {
    /// A shard forgets the volume.
    Volume(ShardId),
    /// No shard has it: its place is free.
    VolumePlace,
    /// A shard forgets the device.
    Device(ShardId),
    /// No shard has that.
    DevicePlace,
}

/// The steps that are left.
#[derive(Clone, Debug)]
pub struct RemovalSteps {
    /// What goes.
    pub entry: ExportNode,
    owner: ShardId,
    shards: u16,
    steps: VecDeque<RemovalStep>,
    begun: bool,
}

impl RemovalSteps {
    /// From so many shards, of which `owner` has the device.
    pub fn new(entry: ExportNode, owner: ShardId, shards: u16) -> Self {
        // As shards want it: see `Shard::change`.
        let home = entry.home;
        let mut all: Vec<ShardId> = (0..shards).map(ShardId).collect();
        all.sort_by_key(|shard| (*shard != home, *shard != owner));
        let steps =
            all.into_iter().map(RemovalStep::Volume).chain([RemovalStep::VolumePlace]).collect();
        Self { entry, owner, shards, steps, begun: false }
    }

    /// The device goes as well.
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

    /// It is done.
    pub fn pass(&mut self) {
        self.steps.pop_front();
        self.begun = true;
    }

    /// A shard has forgotten the volume, and answers its requests with an error.
    pub fn has_begun(&self) -> bool {
        self.begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::tree::tests::tree;

    #[test]
    fn the_home_is_first_then_the_owner_and_a_device_leaves_its_owner_last() {
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
