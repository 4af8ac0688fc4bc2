//! What holds up a change that waits for devices: the command that a device has had for the longest time.

use std::collections::BTreeMap;

use headworks_core::DeviceId;

use super::LiveChanges;
use crate::control::in_flight::OldestRequest;
use crate::control::tree::{DeviceNode, Tree, lock};

/// The oldest command of all devices; none if they are idle. A shard that does not answer has none.
pub(crate) fn oldest_command(live: &LiveChanges) -> Option<OldestRequest> {
    let tree = live.tree.current();
    let devices = tree.devices.iter();
    let found = devices.filter_map(|node| oldest_on(live, &tree, node));
    let found = found.filter(|oldest| !lock(&live.inventory).is_abandoned(oldest.volume()));
    found.max_by_key(|oldest| oldest.age)
}

/// What exports of devices behind other servers say of a request without an answer, by device.
pub(super) fn silences(live: &LiveChanges, tree: &Tree) -> BTreeMap<DeviceId, String> {
    let remotes = tree.devices.iter().filter(|node| node.remote.is_some());
    remotes.filter_map(|node| Some((node.id, oldest_on(live, tree, node)?.silence()?))).collect()
}

/// The oldest command of one device, in words with a colon before them; empty for an idle device.
pub(super) fn held_up_by(live: &LiveChanges, device: DeviceId) -> String {
    let tree = live.tree.current();
    let oldest = tree.device(device).and_then(|node| oldest_on(live, &tree, node));
    oldest.map(|oldest| format!(": {oldest}")).unwrap_or_default()
}

fn oldest_on(live: &LiveChanges, tree: &Tree, node: &DeviceNode) -> Option<OldestRequest> {
    let oldest = live.shards.device(tree, node.id).ok()?.oldest?;
    Some(OldestRequest::new(tree, oldest, |export| live.settings.tenant_of(export)))
}
