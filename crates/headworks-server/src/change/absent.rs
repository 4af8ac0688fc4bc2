//! Exports that are configured and not served, because their images are missing.
//!
//! ```text
//!   image missing at the start or a reload --> absent --reload, add: the image is there--> served
//!                                                `-------remove, reload without it-----> (gone)
//! ```
//!
//! An absent export has neither ids nor a volume: it is a name with a reason in the tree, which `exports` shows, and in the
//! shards' lists, so that a client that asks for it learns the reason. Invariant: no name is absent and served.

use super::LiveChanges;
use crate::exports::assemble::export_info::unavailable;
use crate::exports::assemble::{AbsentExport, shown_name};
use crate::reactor::messages::command::ShardCommand;
use headworks_control::RpcFault;

/// Lists an export as absent; one that was listed gets the new reason.
pub(super) fn put_absent(live: &LiveChanges, export: AbsentExport) -> Result<(), RpcFault> {
    let name = shown_name(&export.spec.name).to_owned();
    live.tree.change(|tree| {
        tree.absent.retain(|absent| shown_name(&absent.spec.name) != name);
        tree.absent.push(export);
    });
    tell_absent(live)
}

/// Ends the absence of an export; returns whether it was absent.
pub(super) fn take_absent(live: &LiveChanges, name: &str) -> Result<bool, RpcFault> {
    if live.tree.current().absent(name).is_none() {
        return Ok(false);
    }
    let name = shown_name(name);
    live.tree.change(|tree| tree.absent.retain(|absent| shown_name(&absent.spec.name) != name));
    tell_absent(live)?;
    Ok(true)
}

fn tell_absent(live: &LiveChanges) -> Result<(), RpcFault> {
    let absent = &live.tree.current().absent;
    live.command_all(|| ShardCommand::SetAbsent { exports: unavailable(absent) })
}
