//! What a request must pass before it is a bio, in this order. All is taken at once or nothing, so what waits holds nothing that another
//! could use; a payload that is being received has its block.
//!
//! | check | a request that waits for it | goes on with |
//! |---|---|---|
//! | Window | is beyond the connection's bound of bytes; the number of requests is asked before a header is parsed | a reply that was sent |
//! | Limit | is asked once, and first of what costs: it holds nothing, others pass it | `LimitTree::pop` |
//! | Freeze | changes a frozen volume; after the limits, so that a thaw lets no burst through above a rate | a thaw |
//! | Pieces | is a write of which the device has four pieces, or with which the connection would have too many requests in flight | a piece that is answered |
//! | Room | finds no bio slot, which the shard would answer with ENOMEM; a write needs one for each part that is whole | a slot that comes back |
//! | Turn | is a large read of a turn that has had its share | the next turn |
//! | Buffer | finds no block: the last one, since it alone holds | a buffer that comes back |
//! | Client | has its block, and the payload follows | bytes |
//!
//! A device that does not answer (`refuses`) makes no request wait: what would wait for Window, Room or Buffer fails, a write after its
//! payload.

use headworks_core::limits::{LimitDirection, LimitedIo};
use headworks_core::{IoError, Op};

use super::bounds::{has_byte_room, has_window_room};
use super::{Connection, Intake, LARGE_PAYLOAD, Shares, Wire, payload, replies, reread};
use headworks_core::limits::LimitGate;
use headworks_front::front_waits::FrontWaits;
use headworks_front::{FrontRequest, Origin, WaitsFor};
use headworks_house::{Buffer, Pool};
use headworks_nbd::transmission::Request;

/// The memory of a request.
enum Memory {
    /// It needs none, or the cache lends it.
    None,
    Block(Buffer),
    /// None is free.
    Short,
}

/// Asks for everything that a request needs, and submits it; returns what it waits for, `Nothing` if it is submitted or answered.
pub(super) fn admission(
    one: &mut FrontRequest,
    connection: &mut Connection,
    shares: &mut Shares<'_>,
) -> WaitsFor {
    if one.payload.refused.is_some() {
        return end_refused(one, connection, shares);
    }
    let Connection { wire, intake, session } = connection;
    let op = one.request.op();
    let is_new = one.origin == Origin::Client && !one.has_payload();
    // A bio comes of it now: a write is received first.
    let gives = op != Op::Write || one.part_is_whole();
    let refuses = intake.refuses() && one.origin != Origin::Reread;
    if is_new && !refuses && !has_byte_room(wire, intake, session) {
        return WaitsFor::Window;
    }
    if let Some(direction) = limit(one, intake, shares) {
        return WaitsFor::Limit(direction);
    }
    if shares.frozen && op.is_write() && (gives || is_new) {
        return WaitsFor::Freeze;
    }
    let has_slot = shares.turn.room > 0;
    let has_place = || has_window_room(wire, intake, session);
    if refuses && (!has_slot && (gives || is_new) || is_new && !has_place()) {
        return refuse(one, connection, shares);
    }
    if gives && let Some(what) = payload::place_waits(one, intake.waiting().len(), intake, session)
    {
        return what;
    }
    if gives && !has_slot {
        return WaitsFor::Room;
    }
    match (op, one.origin) {
        (Op::Write, _) => payload::advance_write(one, connection, shares),
        (_, Origin::Reread) => reread::reread(connection, shares),
        _ => submit_with_memory(one, refuses, connection, shares),
    }
}

/// Submits a request that has no payload, if the turn and the memory allow.
fn submit_with_memory(
    one: &mut FrontRequest,
    refuses: bool,
    connection: &mut Connection,
    shares: &mut Shares<'_>,
) -> WaitsFor {
    let reads = read_len(&one.request);
    let is_large = reads >= LARGE_PAYLOAD && one.origin == Origin::Client;
    if is_large && shares.turn.large_reads == 0 {
        return WaitsFor::Turn;
    }
    let Connection { wire, intake, session } = connection;
    let block = match memory_for(&one.request, one.origin, (wire, intake), shares) {
        Memory::None => None,
        Memory::Block(block) => Some(block),
        Memory::Short if refuses => return refuse(one, connection, shares),
        Memory::Short => return WaitsFor::Buffer,
    };
    if is_large {
        shares.turn.large_reads = shares.turn.large_reads.saturating_sub(reads);
    }
    let waits = one.settle(shares.now);
    session.submit(&one.request, one.request.bio_flags(), waits, block, shares);
    WaitsFor::Nothing
}

/// Submits a request that nothing concerns and whose bytes all are there; returns the length of its payload. None if it must wait for
/// something, which [`admission`] then finds.
#[inline]
pub(super) fn submit_at_once(
    request: &Request,
    bytes: &[u8],
    connection: &mut Connection,
    shares: &mut Shares<'_>,
) -> Option<usize> {
    let payload = request.payload() as usize;
    if shares.turn.room == 0 || payload > bytes.len().min(shares.window as usize) {
        return None;
    }
    let reads = read_len(request);
    if reads >= LARGE_PAYLOAD {
        shares.turn.large_reads.checked_sub(1)?;
    }
    let Connection { wire, intake, session } = connection;
    let block = match memory_for(request, Origin::Client, (wire, intake), shares) {
        Memory::None => None,
        Memory::Block(block) => Some(block),
        Memory::Short => return None,
    };
    if reads >= LARGE_PAYLOAD {
        shares.turn.large_reads = shares.turn.large_reads.saturating_sub(reads);
    }
    if let Some(block) = block.as_ref().filter(|_| payload > 0) {
        // SAFETY: the block is ours alone, and holds the payload.
        unsafe { block.base().copy_from_nonoverlapping(bytes.as_ptr(), payload) };
    }
    session.submit(request, request.bio_flags(), FrontWaits::default(), block, shares);
    Some(payload)
}

/// Asks the limits of a request, once; returns the direction in which it waits.
pub(crate) fn limit(
    one: &mut FrontRequest,
    intake: &mut Intake,
    shares: &mut Shares<'_>,
) -> Option<LimitDirection> {
    if std::mem::replace(&mut one.limits_asked, true) {
        return None;
    }
    let LimitGate { tree, leaf } = shares.limits.as_mut()?;
    let io = LimitedIo::of(one.request.op(), one.request.len)?;
    let waiting = intake.waiting_mut();
    if !waiting.is_limited(io.direction) && tree.admit(shares.now, *leaf, io) {
        return None;
    }
    let cost_ns = tree.cost_ns(*leaf, io);
    let first_waits_ns = || tree.wait_ns(*leaf, io.direction);
    waiting.limit(one, (io.direction, cost_ns), first_waits_ns, shares.now);
    Some(io.direction)
}

/// The memory of a request: none for one that has no data, and for a read that the cache may answer from its frames.
#[inline]
fn memory_for(
    request: &Request,
    origin: Origin,
    (wire, intake): (&Wire, &mut Intake),
    shares: &mut Shares<'_>,
) -> Memory {
    let op = request.op();
    let from_cache = op == Op::Read && origin == Origin::Client && shares.from_cache;
    intake.set_large(op == Op::Write && request.len as usize >= LARGE_PAYLOAD);
    let len = op.buffer_len(request.len) as usize;
    if from_cache || len == 0 {
        return Memory::None;
    }
    take_block(len, op == Op::Read, wire, intake, shares).map_or(Memory::Short, Memory::Block)
}

/// Takes a block of the pool, if the connection may.
#[inline]
pub(super) fn take_block(
    len: usize,
    reads: bool,
    wire: &Wire,
    intake: &mut Intake,
    shares: &mut Shares<'_>,
) -> Option<Buffer> {
    if !may_take(Pool::block_bytes(len)?, reads, wire, intake, shares) {
        return None;
    }
    let block = shares.pool.try_take(len)?;
    intake.charge(block.len());
    Some(block)
}

/// Whether the connection may take `block` bytes more.
#[inline]
pub(super) fn may_take(
    block: usize,
    reads: bool,
    wire: &Wire,
    intake: &Intake,
    shares: &Shares<'_>,
) -> bool {
    let stalled = reads && wire.outgoing().is_stalled(shares.now);
    let held = intake.block_bytes() + wire.held();
    shares.memory.may_take(held, block, shares.pool.taken(), stalled)
}

/// Fails a request without a bio, because its device does not answer; what has not come of a write's payload is dropped first.
pub(super) fn refuse(
    one: &mut FrontRequest,
    connection: &mut Connection,
    shares: &mut Shares<'_>,
) -> WaitsFor {
    one.payload.refused = Some(IoError::TimedOut);
    if one.request.op() == Op::Write && one.payload.got < one.request.len {
        connection.intake.drop_block(one, shares.pool);
        connection.intake.set_large(false);
        one.payload.part = one.request.len;
        return WaitsFor::Client;
    }
    end_refused(one, connection, shares)
}

/// Ends a refused request whose bytes all have come: it is answered now, or with its last piece.
pub(super) fn end_refused(
    one: &mut FrontRequest,
    connection: &mut Connection,
    shares: &mut Shares<'_>,
) -> WaitsFor {
    let Connection { wire, intake, session } = connection;
    intake.drop_block(one, shares.pool);
    let error = one.payload.refused.unwrap_or(IoError::TimedOut);
    if !intake.splits_mut().refuse(one.payload.split, error) {
        let request = (one.request.op(), one.request.offset, one.request.cookie);
        replies::answer_failure(wire, session, shares.now, request, error);
    }
    // Nothing more comes of it.
    one.payload.given = one.request.len;
    WaitsFor::Nothing
}

/// Bytes of data that a request reads.
#[inline]
pub(super) fn read_len(request: &Request) -> usize {
    if request.op() == Op::Read { request.len as usize } else { 0 }
}
