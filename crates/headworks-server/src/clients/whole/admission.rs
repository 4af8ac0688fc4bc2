//! What a request that comes whole must pass before it is a bio. The checks are those of a connection's requests, in the same order, as far as
//! they concern it: its data are there already.
//!
//! | check | a request that waits for it | goes on with |
//! |---|---|---|
//! | Window | finds as many bios of the client in the shard as it may have | an answer |
//! | Limit | is asked once; others pass it | `LimitTree::pop` |
//! | Freeze | changes a frozen volume; others pass it | a thaw |
//! | Room | finds no bio slot of the shard | a slot that comes back |
//! | Turn | is a large read of a turn that has had its share | the next turn |
//! | Buffer | finds no block for its data | a buffer that comes back |
//!
//! A request of more bytes than the largest block fails at once. A device that does not answer refuses nothing here: requests wait for it,
//! as they would for a disk.
//!
//! A freeze may last for minutes. Requests that change nothing pass those that wait for the thaw, unless the source keeps [`FROZEN_BYTES`] of
//! data for these.
//!
//! Invariants: a request that waits is in the list, in its order; while one waits for something else than a limit or a thaw nothing is taken
//! from the source, so what the source can hold is what bounds the client.

use headworks_core::{Bio, BioFlags, BioId, Input, IoError, Op};

use super::{Next, Source, WholeClient};
use crate::clients::nbd::connection::admission::limit;
use crate::clients::nbd::connection::{ConnectionEnd, ReceiveOutcome, Shares};
use headworks_front::front_waits::FrontWaits;
use headworks_front::intake::Intake;
use headworks_front::{FrontRequest, Origin, WaitsFor};
use headworks_house::{Buffer, Pool};
use headworks_nbd::transmission::Request;
use headworks_nbd::wire::CommandFlags;

/// Requests that a client submits in a turn.
const TURN_REQUESTS: usize = 256;
/// Bytes that a client moves in a turn beside others.
const TURN_BYTES: usize = 1 << 20;
/// Data that the source keeps for writes that wait for a thaw, after which nothing more is taken: they are in blocks of the pool.
const FROZEN_BYTES: usize = 1 << 20;
/// A read of at least this length counts against the turn's share of large reads.
const LARGE: usize = 32 << 10;

/// Takes requests from the source and submits them.
pub(super) fn receive<S: Source>(
    client: &mut WholeClient<S>,
    shares: &mut Shares<'_>,
) -> ReceiveOutcome {
    client.intake.stop(WaitsFor::Nothing);
    let waiting = client.intake.waiting().len();
    let stopped = if waiting > 0 { step(client, shares) } else { None };
    // What waits for a limit still is no work: the shard sleeps until the limit lets it pass.
    let moved = client.intake.waiting().len() < waiting;
    let received = match stopped {
        Some(what) => ReceiveOutcome::Waits(what),
        None => take(client, shares, client.session.reads()),
    };
    if let ReceiveOutcome::Waits(what) = received {
        client.intake.stop(what);
    }
    if moved && received == ReceiveOutcome::Idle { ReceiveOutcome::Worked } else { received }
}

/// Tries the waiting requests in their order; returns what the first one waits for that keeps others waiting.
fn step<S: Source>(client: &mut WholeClient<S>, shares: &mut Shares<'_>) -> Option<WaitsFor> {
    let mut place = 0;
    while let Some(one) = client.intake.waiting().get(place) {
        let is_frozen = shares.frozen && one.waits_for() == WaitsFor::Freeze;
        if is_frozen || one.limited().is_some() {
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
        if !lets_pass(what) {
            return Some(what);
        }
        place += 1;
    }
    None
}

fn lets_pass(what: WaitsFor) -> bool {
    matches!(what, WaitsFor::Limit(_) | WaitsFor::Freeze)
}

/// Submits again what waits, and what was taken from the source before; false if one must wait. Nothing more is taken.
pub(super) fn resubmit<S: Source>(client: &mut WholeClient<S>, shares: &mut Shares<'_>) -> bool {
    if step(client, shares).is_none() {
        take(client, shares, false);
    }
    !client.has_left_over()
}

/// Submits again what waits; false if one must wait.
pub(super) fn resubmit_waiting<S: Source>(
    client: &mut WholeClient<S>,
    shares: &mut Shares<'_>,
) -> bool {
    step(client, shares);
    !client.has_waiting()
}

/// Submits new requests until there are none, one waits, or the turn is over. `looks`: also those that the client still has.
fn take<S: Source>(
    client: &mut WholeClient<S>,
    shares: &mut Shares<'_>,
    looks: bool,
) -> ReceiveOutcome {
    let is_gated = shares.limits.is_some() || shares.frozen;
    let (mut taken, mut bytes) = (0, 0);
    while taken < TURN_REQUESTS && bytes < TURN_BYTES {
        if shares.frozen && client.source.kept() >= FROZEN_BYTES {
            return ReceiveOutcome::Waits(WaitsFor::Freeze);
        }
        let room = window_room(client);
        if room == 0 {
            return ReceiveOutcome::Waits(WaitsFor::Window);
        }
        let request = match client.source.next(room, looks, &mut client.intake, shares) {
            Next::Request(request) => request,
            Next::Waits(what) => return ReceiveOutcome::Waits(what),
            Next::Gone => return ReceiveOutcome::End(ConnectionEnd::HungUp),
            Next::Nothing if taken == 0 => return ReceiveOutcome::Idle,
            Next::Nothing | Next::Others => return ReceiveOutcome::Worked,
        };
        taken += 1;
        bytes += request.len as usize;
        let len = request.op().buffer_len(request.len) as usize;
        if len > Pool::LARGEST {
            // The path has no larger ones; no driver makes them, as one request would hold up all others.
            client.source.refuse(&request, IoError::Invalid);
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
        if !lets_pass(what) {
            return ReceiveOutcome::Waits(what);
        }
    }
    ReceiveOutcome::Worked
}

/// How many bios more the client may have, or requests that wait.
pub(super) fn window_room<S>(client: &WholeClient<S>) -> usize {
    let begun = client.session.window().used() + client.intake.waiting().len();
    client.session.bounds().requests.saturating_sub(begun)
}

/// Asks for everything that a request needs, and submits it; returns what it waits for, `Nothing` if it is submitted.
fn admit<S: Source>(
    client: &mut WholeClient<S>,
    one: &mut FrontRequest,
    shares: &mut Shares<'_>,
) -> WaitsFor {
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
    let Ok(block) = client.source.block(&one.request, &mut client.intake, shares) else {
        return WaitsFor::Buffer;
    };
    if is_large {
        shares.turn.large_reads = shares.turn.large_reads.saturating_sub(len);
    }
    let waits = one.settle(shares.now);
    submit(client, &one.request, waits, block, shares);
    WaitsFor::Nothing
}

/// Takes a block of the pool, if the client may.
pub(crate) fn take_block(
    len: usize,
    intake: &mut Intake,
    shares: &mut Shares<'_>,
) -> Result<Buffer, NoBlock> {
    let bytes = Pool::block_bytes(len).ok_or(NoBlock)?;
    if !shares.memory.may_take(intake.block_bytes(), bytes, shares.pool.taken(), false) {
        return Err(NoBlock);
    }
    let block = shares.pool.try_take(len).ok_or(NoBlock)?;
    intake.charge(block.len());
    Ok(block)
}

/// No block of the pool is free for the client.
#[derive(Debug)]
pub struct NoBlock;

/// Makes the bio of a request, which has a slot of the shard.
fn submit<S>(
    client: &mut WholeClient<S>,
    request: &Request,
    waits: FrontWaits,
    block: Option<Buffer>,
    shares: &mut Shares<'_>,
) {
    let session = &mut client.session;
    let Some(&binding) = session.last_binding() else {
        unreachable!("a client takes requests when it has its export");
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

/// Memory of the client is filled in any case: it may not be called a hole.
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
