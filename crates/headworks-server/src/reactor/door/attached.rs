//! Devices of virtual machines and files of FUSE among the clients of a shard: they come from threads of their doors, and go back there.
//! Front ends give their devices orders.
//!
//! ```text
//!   door's thread --Attach--> slot, export, hot --Order..--> answered by `publish`, at the end of the turn
//!                 --Close---> what is in flight ends --> slot free, the client goes back to the thread
//! ```

use headworks_core::{ExportId, Instant, VolumeId};

use super::super::ReactorParts;
use super::{Door, TOO_MANY};
use crate::clients::client::ShardClient;
use crate::clients::connection_id::slot_of;
use headworks_vhost::Order;

/// Takes in a client; returns its id, or why it is not served.
pub(in crate::reactor) fn attach(
    door: &mut Door,
    parts: &mut ReactorParts,
    now: Instant,
    export: ExportId,
    client: ShardClient,
) -> Result<u32, String> {
    if door.exports.refuses(export) {
        return Err("its export refuses clients".to_owned());
    }
    let Some((binding, info)) = door.exports.open(export) else {
        return Err("its export was removed".to_owned());
    };
    let is_local = parts.driver.executor().device(binding.device).is_some();
    let slot = match parts.io.insert(client) {
        Ok(slot) => slot,
        Err(client) => {
            client.retire();
            return Err(TOO_MANY.to_owned());
        }
    };
    let Some((client, _)) = parts.io.connection(slot) else { unreachable!("it was inserted") };
    match client {
        ShardClient::Rings(it) => it.begin(binding, info, is_local),
        ShardClient::Fuse(it) => it.begin(binding, info),
        ShardClient::Nbd(_) => unreachable!("a connection comes by its listener"),
    }
    let id = client.id();
    door.hot.reset(slot);
    door.hot.state_mut(slot).export = Some(export);
    door.note(parts, now, slot);
    door.hot.heat(slot);
    Ok(id)
}

/// Gives a device an order of its front end. One that is gone has told its thread.
pub(in crate::reactor) fn order(door: &mut Door, parts: &mut ReactorParts, id: u32, order: Order) {
    let slot = slot_of(id);
    if let Some((ShardClient::Rings(client), _)) = parts.io.connection(slot)
        && client.id() == id
    {
        let drains = matches!(order, Order::Stop { .. } | Order::Reset | Order::Memory(_));
        client.on_order(order);
        if drains {
            // Its front end waits, and the virtual machine with it: not for limits, too.
            door.submit_parked(parts, parts.io.now, slot);
        }
        parts.io.list(slot);
        door.hot.heat(slot);
    }
}

/// Ends a client whose door wants nothing more of it.
pub(in crate::reactor) fn close(door: &mut Door, parts: &mut ReactorParts, id: u32) {
    let slot = slot_of(id);
    if parts.io.connection(slot).is_some_and(|(client, _)| client.id() == id) {
        door.close(parts, slot);
        parts.io.list(slot);
    }
}

/// A volume has another size: clients that come are told, and devices and files at once.
pub(in crate::reactor) fn resize(
    door: &mut Door,
    parts: &mut ReactorParts,
    volume: VolumeId,
    size: u64,
) {
    door.exports.resize(volume, size);
    for slot in parts.io.slots() {
        if let Some((client, _)) = parts.io.connection(slot)
            && client.binding().is_some_and(|binding| binding.volume == volume)
        {
            client.resize(size);
        }
    }
}
