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

use headworks_core::limits::{LimitDirection, LimitTree, LimitedIo, NodeId};
use headworks_core::{Bio, BioFlags, BioId, EXTENTS_BYTES, Input, IoError, Op};

use super::{Connection, ExportBinding, LARGE_PAYLOAD, Shares};
use headworks::driver::{Buffer, Pool};
use headworks_front::front_waits::FrontWaits;
use headworks_front::{FrontRequest, Origin, WaitsFor};
use headworks_nbd::transmission::Request;

/// The limits on a connection's path.
pub struct LimitGate<'a> {
    /// Limits of the shard's exports.
    pub tree: &'a mut LimitTree,
    /// The connection's node in the tree.
    pub leaf: NodeId,
}

/// The memory of a request.
enum Memory {
    /// It needs none, or the cache lends it.
    None,
    Block(Buffer),
    /// None is free.
    Short,
}

impl Connection {
    /// Asks for everything that a request needs, and submits it; returns what it waits for, `Nothing` if it is submitted or answered.
    pub(super) fn admission(
        &mut self,
        one: &mut FrontRequest,
        shares: &mut Shares<'_>,
    ) -> WaitsFor {
        if one.payload.refused.is_some() {
            return self.end_refused(one, shares);
        }
        let op = one.request.op();
        let is_new = one.origin == Origin::Client && !one.has_payload();
        // A bio comes of it now: a write is received first.
        let gives = op != Op::Write || one.part_is_whole();
        let refuses = self.refuses && one.origin != Origin::Reread;
        if is_new && !refuses && !self.has_byte_room() {
            return WaitsFor::Window;
        }
        if let Some(direction) = self.limit(one, shares) {
            return WaitsFor::Limit(direction);
        }
        if shares.frozen && op.is_write() && (gives || is_new) {
            return WaitsFor::Freeze;
        }
        let has_slot = shares.turn.room > 0;
        if refuses && (!has_slot && (gives || is_new) || is_new && !self.has_window_room()) {
            return self.refuse(one, shares);
        }
        if gives && let Some(what) = self.place_waits(one) {
            return what;
        }
        if gives && !has_slot {
            return WaitsFor::Room;
        }
        match (op, one.origin) {
            (Op::Write, _) => self.advance_write(one, shares),
            (_, Origin::Reread) => self.reread(shares),
            _ => self.submit_with_memory(one, refuses, shares),
        }
    }

    /// Submits a request that has no payload, if the turn and the memory allow.
    fn submit_with_memory(
        &mut self,
        one: &mut FrontRequest,
        refuses: bool,
        shares: &mut Shares<'_>,
    ) -> WaitsFor {
        let reads = read_len(&one.request);
        let is_large = reads >= LARGE_PAYLOAD && one.origin == Origin::Client;
        if is_large && shares.turn.large_reads == 0 {
            return WaitsFor::Turn;
        }
        let block = match self.memory_for(&one.request, one.origin, shares) {
            Memory::None => None,
            Memory::Block(block) => Some(block),
            Memory::Short if refuses => return self.refuse(one, shares),
            Memory::Short => return WaitsFor::Buffer,
        };
        if is_large {
            shares.turn.large_reads = shares.turn.large_reads.saturating_sub(reads);
        }
        let waits = one.settle(shares.now);
        self.submit(&one.request, one.request.bio_flags(), waits, block, shares);
        WaitsFor::Nothing
    }

    /// Submits a request that nothing concerns and whose bytes all are there; returns the length of its payload. None if it must wait for
    /// something, which [`Connection::admission`] then finds.
    #[inline]
    pub(super) fn submit_at_once(
        &mut self,
        request: &Request,
        bytes: &[u8],
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
        let block = match self.memory_for(request, Origin::Client, shares) {
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
        self.submit(request, request.bio_flags(), FrontWaits::default(), block, shares);
        Some(payload)
    }

    /// Asks the limits of a request, once; returns the direction in which it waits.
    fn limit(&mut self, one: &mut FrontRequest, shares: &mut Shares<'_>) -> Option<LimitDirection> {
        if std::mem::replace(&mut one.limits_asked, true) {
            return None;
        }
        let LimitGate { tree, leaf } = shares.limits.as_mut()?;
        let io = LimitedIo::of(one.request.op(), one.request.len)?;
        if !self.waiting.is_limited(io.direction) && tree.admit(shares.now, *leaf, io) {
            return None;
        }
        let cost_ns = tree.cost_ns(*leaf, io);
        let first_waits_ns = || tree.wait_ns(*leaf, io.direction);
        self.waiting.limit(one, (io.direction, cost_ns), first_waits_ns, shares.now);
        Some(io.direction)
    }

    /// The memory of a request: none for one that has no data, and for a read that is likely to be answered from lent memory.
    #[inline]
    fn memory_for(&mut self, request: &Request, origin: Origin, shares: &mut Shares<'_>) -> Memory {
        let op = request.op();
        let lends = op == Op::Read && origin == Origin::Client;
        let from_cache = lends && shares.from_cache;
        self.large = op == Op::Write && request.len as usize >= LARGE_PAYLOAD;
        if from_cache && self.cache_guess.expects_hit() {
            return Memory::None;
        }
        let len = op.buffer_len(request.len) as usize;
        if len == 0 {
            return Memory::None;
        }
        match self.take_block(len, op == Op::Read, shares) {
            Some(block) => Memory::Block(block),
            // It needs none if it is cached; otherwise it comes back and waits for one.
            None if from_cache => Memory::None,
            None => Memory::Short,
        }
    }

    /// Takes a block of the pool, if the connection may.
    #[inline]
    pub(super) fn take_block(
        &mut self,
        len: usize,
        reads: bool,
        shares: &mut Shares<'_>,
    ) -> Option<Buffer> {
        if !self.may_take(Pool::block_bytes(len)?, reads, shares) {
            return None;
        }
        let block = shares.pool.try_take(len)?;
        self.buffer_bytes += block.len();
        Some(block)
    }

    /// Whether the connection may take `block` bytes more.
    #[inline]
    pub(super) fn may_take(&self, block: usize, reads: bool, shares: &Shares<'_>) -> bool {
        let stalled = reads && self.outgoing.is_stalled(shares.now);
        shares.memory.may_take(self.held(), block, shares.pool.taken(), stalled)
    }

    /// Fails a request without a bio, because its device does not answer; what has not come of a write's payload is dropped first.
    pub(super) fn refuse(&mut self, one: &mut FrontRequest, shares: &mut Shares<'_>) -> WaitsFor {
        one.payload.refused = Some(IoError::TimedOut);
        if one.request.op() == Op::Write && one.payload.got < one.request.len {
            self.drop_block(one, shares.pool);
            self.large = false;
            one.payload.part = one.request.len;
            return WaitsFor::Client;
        }
        self.end_refused(one, shares)
    }

    /// Makes the bio of a request, which has a slot of the shard; returns its sequence number.
    pub(super) fn submit(
        &mut self,
        request: &Request,
        flags: BioFlags,
        waits: FrontWaits,
        block: Option<Buffer>,
        shares: &mut Shares<'_>,
    ) -> u64 {
        let ExportBinding { volume, export, ioprio, .. } =
            self.last_binding().expect("a request has an export");
        let op = request.op();
        let status = op == Op::BlockStatus;
        if let Some(block) = block.as_ref().filter(|_| status) {
            // Cleared, so that nothing of an earlier use is reported.
            // SAFETY: the buffer is private and holds a list.
            unsafe { block.base().write_bytes(0, EXTENTS_BYTES as usize) };
        }
        let mut flags = flags;
        if op == Op::Read && block.is_none() {
            flags = flags.with(BioFlags::NO_BUFFER);
        }
        let Request { cookie, offset, len, .. } = *request;
        let sequence = self.window.insert(cookie, offset, len, op, block, shares.now);
        if let Some(in_flight) = self.window.get(sequence).filter(|_| status) {
            in_flight.one_extent = flags.contains(BioFlags::ONE_EXTENT);
        }
        if !waits.is_none()
            && let Some(in_flight) = self.window.get(sequence)
        {
            in_flight.front = waits.wait_times();
            in_flight.since = waits.began(in_flight.since);
        }
        shares.turn.room =
            shares.turn.room.checked_sub(1).expect("a bio is made only with a slot for it");
        shares.inputs.push(Input::Bio(Bio {
            id: BioId { connection: self.id, volume, export, sequence },
            offset,
            len,
            op,
            flags,
            ioprio,
        }));
        sequence
    }
}

/// Bytes of data that a request reads.
pub(super) fn read_len(request: &Request) -> usize {
    if request.op() == Op::Read { request.len as usize } else { 0 }
}
