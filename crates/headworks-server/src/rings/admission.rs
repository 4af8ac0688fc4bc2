//! What a request of a ring must pass before it is a bio. The checks are those of a connection's requests, in the same order, as far as
//! they concern it: its payload is there already, in guest memory.
//!
//! | check | a request that waits for it | goes on with |
//! |---|---|---|
//! | Window | finds as many bios of the device in the shard as it may have | an answer |
//! | Limit | is asked once; others pass it | `LimitTree::pop` |
//! | Freeze | changes a frozen volume | a thaw |
//! | Room | finds no bio slot of the shard | a slot that comes back |
//! | Turn | is a large read of a turn that has had its share | the next turn |
//! | Buffer | has pieces that are not whole blocks and finds no block for their copy | a buffer that comes back |
//!
//! A request of more bytes than the largest block fails at once. A device that does not answer refuses nothing here: the machine's requests wait for it, as they would for a disk.
//!
//! Invariants: a request that waits is in the list, in its order; while one waits for something else than a limit nothing is taken from
//! the rings, so their descriptors are what bounds the machine.

use headworks_core::{Bio, BioFlags, BioId, Input, IoError, Op};

use super::{RingClient, ticket_of};
use crate::nbd::connection::admission::limit;
use crate::nbd::connection::{ReceiveOutcome, Shares};
use headworks::house::{Buffer, Pool};
use headworks_front::front_waits::FrontWaits;
use headworks_front::{FrontRequest, Origin, WaitsFor};
use headworks_nbd::transmission::Request;
use headworks_nbd::wire::{Command, CommandFlags};
use headworks_vhost::RequestOp;

/// Requests that a device submits in a turn, of all its rings.
const TURN_REQUESTS: usize = 256;
/// Bytes that a device moves in a turn beside others.
const TURN_BYTES: usize = 1 << 20;
/// A read of at least this length counts against the turn's share of large reads.
const LARGE: usize = 32 << 10;

/// Takes requests from the rings and submits them.
pub(super) fn receive(client: &mut RingClient, shares: &mut Shares<'_>) -> ReceiveOutcome {
    client.intake.stop(WaitsFor::Nothing);
    let had_waiting = client.has_waiting();
    let stopped = if had_waiting { step(client, shares) } else { None };
    let received = match stopped {
        Some(what) => ReceiveOutcome::Waits(what),
        None => take(client, shares, client.session.reads()),
    };
    if let ReceiveOutcome::Waits(what) = received {
        client.intake.stop(what);
    }
    if had_waiting && received == ReceiveOutcome::Idle { ReceiveOutcome::Worked } else { received }
}

/// Tries the waiting requests in their order; returns what the first one waits for that waits for no limit.
fn step(client: &mut RingClient, shares: &mut Shares<'_>) -> Option<WaitsFor> {
    let mut place = 0;
    while let Some(one) = client.intake.waiting().get(place) {
        if one.limited().is_some() {
            place += 1;
            continue;
        }
        let Some(mut one) = client.intake.waiting_mut().take(place) else { break };
        let what = admit(client, &mut one, shares);
        if what == WaitsFor::Nothing {
            continue;
        }
        one.wait(what, shares.now);
        client.intake.waiting_mut().put_back(place, one);
        if !matches!(what, WaitsFor::Limit(_)) {
            return Some(what);
        }
        place += 1;
    }
    None
}

/// Submits again what waits, and what was taken from the rings before; false if one must wait. Nothing more is taken.
pub(super) fn resubmit(client: &mut RingClient, shares: &mut Shares<'_>) -> bool {
    if step(client, shares).is_none() {
        take(client, shares, false);
    }
    !client.has_left_over()
}

/// Submits new requests until there are none, one waits, or the turn is over. `looks`: also those that the rings still have.
fn take(client: &mut RingClient, shares: &mut Shares<'_>, looks: bool) -> ReceiveOutcome {
    let is_gated = shares.limits.is_some() || shares.frozen;
    let (mut taken, mut bytes) = (0, 0);
    while taken < TURN_REQUESTS && bytes < TURN_BYTES {
        if !has_window_room(client) {
            return ReceiveOutcome::Waits(WaitsFor::Window);
        }
        let Some(asked) = client.next_request(looks) else {
            let is_idle = taken == 0 && !client.has_answers();
            return if is_idle { ReceiveOutcome::Idle } else { ReceiveOutcome::Worked };
        };
        taken += 1;
        bytes += asked.len as usize;
        let request = request_of(&asked);
        let len = request.op().buffer_len(request.len) as usize;
        if len > Pool::LARGEST {
            // The path has no larger ones; no driver makes them, as one request would hold up all others.
            client.complete(asked.ticket, Err(IoError::Invalid));
            continue;
        }
        shares.turn.received += len;
        let mut one = FrontRequest::new(request, Origin::Client, shares.now);
        one.limits_asked = !is_gated;
        let what = admit(client, &mut one, shares);
        if what == WaitsFor::Nothing {
            continue;
        }
        one.wait(what, shares.now);
        client.intake.waiting_mut().push(one);
        if !matches!(what, WaitsFor::Limit(_)) {
            return ReceiveOutcome::Waits(what);
        }
    }
    ReceiveOutcome::Worked
}

/// Whether the device may have another bio, or another request that waits.
pub(super) fn has_window_room(client: &RingClient) -> bool {
    let begun = client.session.window().used() + client.intake.waiting().len();
    begun < client.session.bounds().requests
}

/// Asks for everything that a request needs, and submits it; returns what it waits for, `Nothing` if it is submitted.
fn admit(client: &mut RingClient, one: &mut FrontRequest, shares: &mut Shares<'_>) -> WaitsFor {
    let op = one.request.op();
    if let Some(direction) = limit(one, &mut client.intake, shares) {
        return WaitsFor::Limit(direction);
    }
    if shares.frozen && op.is_write() {
        return WaitsFor::Freeze;
    }
    if shares.turn.room == 0 {
        return WaitsFor::Room;
    }
    let len = op.buffer_len(one.request.len) as usize;
    let is_large = op == Op::Read && len >= LARGE;
    if is_large && shares.turn.large_reads == 0 {
        return WaitsFor::Turn;
    }
    let block = if len > 0 && !client.is_direct(one.request.cookie, len) {
        let Some(block) = take_block(client, len, shares) else { return WaitsFor::Buffer };
        if op == Op::Write {
            // SAFETY: the block is ours alone until the bio is submitted.
            client.gather(ticket_of(one.request.cookie), unsafe { block.span() }, len);
        }
        Some(block)
    } else {
        None
    };
    if is_large {
        shares.turn.large_reads = shares.turn.large_reads.saturating_sub(len);
    }
    let waits = one.settle(shares.now);
    submit(client, &one.request, waits, block, shares);
    WaitsFor::Nothing
}

/// Takes a block of the pool, if the device may.
fn take_block(client: &mut RingClient, len: usize, shares: &mut Shares<'_>) -> Option<Buffer> {
    let held = client.intake.block_bytes();
    let bytes = Pool::block_bytes(len)?;
    if !shares.memory.may_take(held, bytes, shares.pool.taken(), false) {
        return None;
    }
    let block = shares.pool.try_take(len)?;
    client.intake.charge(block.len());
    Some(block)
}

/// Makes the bio of a request, which has a slot of the shard.
fn submit(
    client: &mut RingClient,
    request: &Request,
    waits: FrontWaits,
    block: Option<Buffer>,
    shares: &mut Shares<'_>,
) {
    let session = &mut client.session;
    let Some(binding) = session.last_binding() else {
        unreachable!("a device takes requests when it has its export");
    };
    let Request { cookie, offset, len, .. } = *request;
    let op = request.op();
    let sequence = session.window_mut().insert(cookie, offset, len, op, block, shares.now);
    if !waits.is_none()
        && let Some(in_flight) = session.window_mut().get(sequence)
    {
        in_flight.front = waits.wait_times();
        in_flight.since = waits.began(in_flight.since);
    }
    shares.turn.room -= 1;
    shares.inputs.push(Input::Bio(Bio {
        id: BioId {
            connection: session.id(),
            volume: binding.volume,
            export: binding.export,
            sequence,
        },
        offset: binding.range.on_volume(offset, len),
        len,
        op,
        flags: flags_of(request),
        ioprio: binding.ioprio,
    }));
}

/// Guest memory is filled in any case: it may not be called a hole.
fn flags_of(request: &Request) -> BioFlags {
    let mut flags = BioFlags::SYNC;
    if request.flags.contains(CommandFlags::FUA) {
        flags = flags.with(BioFlags::FUA);
    }
    if request.flags.contains(CommandFlags::NO_HOLE) {
        flags = flags.with(BioFlags::NO_UNMAP);
    }
    flags
}

/// A request of a ring in the terms of the front, whose limits, waits and tables are the same for all clients.
fn request_of(asked: &headworks_vhost::Request) -> Request {
    let command = match asked.op {
        RequestOp::Read => Command::Read,
        RequestOp::Write => Command::Write,
        RequestOp::Flush => Command::Flush,
        RequestOp::Discard => Command::Trim,
        RequestOp::WriteZeroes => Command::WriteZeroes,
    };
    let mut flags = CommandFlags::NONE;
    if asked.is_fua {
        flags = CommandFlags(flags.0 | CommandFlags::FUA.0);
    }
    if asked.op == RequestOp::WriteZeroes && !asked.may_unmap {
        flags = CommandFlags(flags.0 | CommandFlags::NO_HOLE.0);
    }
    let cookie = u64::from(asked.ticket.bits());
    Request { cookie, offset: asked.offset, len: asked.len, command, flags }
}
