//! `refuse-clients` and `accept-clients`: exports whose present clients go on while no other can open them.
//!
//! The export stays listed, so that a client learns why it cannot open it, and is not told that there is none. The mark is kept by the
//! shards alone: it lasts until `accept-clients`, or the end of the process.

use super::LiveChanges;
use super::chosen::chosen_exports;
use super::exports::export_reports;
use crate::control::tree::{ExportNode, lock};
use crate::reactor::messages::command::ShardCommand;
use headworks_control::param::Names;
use headworks_control::{RpcFault, answers};

/// The methods `refuse-clients` and `accept-clients`.
pub fn refuse_clients(
    live: &LiveChanges,
    exports: &Names,
    refuses: bool,
) -> Result<answers::ClientsChange, RpcFault> {
    let chosen = chosen_exports(&live.tree.current(), exports)?;
    {
        // No export is removed or replaced meanwhile.
        let _inventory = lock(&live.inventory);
        for entry in &chosen {
            let export = entry.id;
            live.command_all(|| ShardCommand::Refuse { export, refuses })?;
            let does = if refuses { "takes no new clients" } else { "takes new clients" };
            tracing::info!("export {} {does}", entry.shown_name());
        }
    }
    let reports = export_reports(live)?;
    let of = |entry: &ExportNode| reports.get(&entry.id).map_or(0, |report| report.clients);
    let clients: usize = chosen.iter().map(of).sum();
    let exports = super::names(&chosen);
    Ok(answers::ClientsChange { exports, clients: clients as u64 })
}
