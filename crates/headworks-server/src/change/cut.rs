//! `cut`: the power of a `powercut:` disk goes off now.
//!
//! The disk ends the process once what survives is on its image, so the answer rarely arrives. One that does says that the cut began.

use super::LiveChanges;
use crate::control::tree::lock;
use crate::reactor::messages::command::ShardCommand;
use headworks_control::{RpcFault, answers};

/// Cuts the power of an export's disk: the method `cut`.
pub fn cut(live: &LiveChanges, export: &str) -> Result<answers::PowerCut, RpcFault> {
    let tree = live.tree.current();
    let entry = tree.find_export(export)?;
    let name = entry.shown_name();
    let owner = tree.owner(entry);
    // The device is not removed meanwhile.
    let _inventory = lock(&live.inventory);
    let cut = live.shards.command(owner, ShardCommand::CutPower { device: entry.device })?;
    cut.map(|_| answers::PowerCut { export: name.to_owned() }).map_err(|_| {
        let right = "serve it as powercut:of=file:path=IMAGE";
        RpcFault::refused("EINVAL", format!("export {name} has no power to cut; {right}"))
    })
}
