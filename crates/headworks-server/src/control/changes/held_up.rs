//! What holds up a change that waits for devices: the command that a device has had for the longest time.

use std::fmt;
use std::time::Duration;

use headworks_core::{DeviceId, VolumeId};

use super::LiveChanges;
use crate::control::tree::{DeviceNode, Tree, device_name};

/// A command that a device has not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OldestCommand {
    /// Names of the exports of its volume.
    exports: String,
    device: DeviceId,
    /// Time since the device was sent it.
    pub age: Duration,
}

impl fmt::Display for OldestCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { exports, device, age } = self;
        let age = age.as_secs_f32();
        write!(f, "export {exports}, device {}, oldest {age:.1} s", device_name(*device))
    }
}

impl LiveChanges {
    /// The oldest command of all devices; none if they are idle. A shard that does not answer has none.
    pub(crate) fn oldest_command(&self) -> Option<OldestCommand> {
        let tree = self.tree.current();
        let found = tree.devices.iter().filter_map(|node| self.oldest_on(&tree, node));
        found.max_by_key(|oldest| oldest.age)
    }

    /// The oldest command of one device, in words with a colon before them; empty for an idle device.
    pub(super) fn held_up_by(&self, device: DeviceId) -> String {
        let tree = self.tree.current();
        let oldest = tree.device(device).and_then(|node| self.oldest_on(&tree, node));
        oldest.map(|oldest| format!(": {oldest}")).unwrap_or_default()
    }

    fn oldest_on(&self, tree: &Tree, node: &DeviceNode) -> Option<OldestCommand> {
        let (volume, age) = self.shards.device(tree, node.id).ok()?.oldest?;
        let exports = exports_of(tree, node, volume);
        Some(OldestCommand { exports, device: node.id, age: Duration::from_nanos(age) })
    }
}

/// Names of the exports of a volume; of a base, which has none, those of its device.
fn exports_of(tree: &Tree, node: &DeviceNode, volume: VolumeId) -> String {
    let names = |is_meant: &dyn Fn(VolumeId) -> bool| {
        let meant = tree.exports.iter().filter(|export| is_meant(export.volume));
        meant.map(|export| export.shown_name()).collect::<Vec<_>>().join(", ")
    };
    match names(&|other| other == volume) {
        own if !own.is_empty() => own,
        _ => names(&|other| node.volumes.contains(&other)),
    }
}
