//! Payloads of writes: memory as bytes come, and parts that are written before the rest has come.
//!
//! ```text
//!   header --begin--> claim a block --bytes--> part whole --give--> piece in the shard --.     next part: claim ..
//!                      ^   | refused, or over its window, and 4 KiB are whole: the part ends there             |
//!                      `---'                                                             all given, all answered --> one reply
//! ```
//!
//! - Up to its window (1 MiB, less while many payloads are incomplete: [`Memory::window`](headworks_front::memory::Memory::window)) a write is one bio, made when
//!   its payload is whole. A longer one is given in pieces that end at multiples of the window on the volume, in order, at most
//!   [`PIECES_MAX`] at a time. NBD promises nothing of a write before its reply.
//! - A block is claimed when a connection is read from, for the whole part if its payloads come quickly, else for twice what has come. It
//!   is cut to what has come when the connection is silent. So a silent payload keeps less than twice what was sent of it.
//! - A payload within its window grows without a share, since all windows together are a quarter of the pool
//!   ([`MemoryShare::may_keep`](headworks_front::memory::MemoryShare::may_keep)). While another payload of its export is beyond its window,
//!   it waits: that one is written.
//! - A payload that may not grow otherwise, or is beyond its window since others began, is written as far as whole blocks have come. What is
//!   left fits 4 KiB, which is guaranteed; so each payload goes on without any other. A write within its window comes to this only if the pool has no
//!   such block.
//! - Range and alignment of the whole are checked before its first piece. The first error is the reply's, after the last byte of the payload;
//!   what comes after the error is dropped. FUA is on every piece.
//! - A client that leaves in between has changed what the pieces say ([`Connection::torn_write`]). It had no reply.

use headworks_core::{ExportId, Instant, IoError, Op, Status};

use super::{Connection, Phase, Shares};
use crate::latency::CompletedRequest;
use headworks::driver::{Buffer, Pool};
use headworks_front::memory::{KeptPayload, WINDOW_MAX, Wanted};
use headworks_front::{FrontRequest, PART_MIN, WaitsFor};
use headworks_nbd::transmission::Request;

/// Pieces of a write that the shard has at once.
const PIECES_MAX: u16 = 4;
/// A payload that takes no longer is claimed a block for at once the next time.
const QUICK_NS: u64 = 10_000_000;
/// The block of a payload of which nothing has come for this long is cut.
const SILENT_NS: u64 = 1_000_000;

/// A write of which pieces are in the shard.
#[derive(Debug)]
pub(super) struct SplitWrite {
    number: u32,
    request: Request,
    /// Pieces in the shard.
    pieces: u16,
    /// The first error.
    status: Status,
    /// More of its payload is to come.
    open: bool,
    /// The whole request with its waits, once it is not open.
    whole: Option<CompletedRequest>,
    /// When its payload was whole.
    since: Instant,
}

impl Connection {
    /// Lets a write whose window, limits and freeze agree go on: it gives a part that is whole, and claims memory for the next.
    pub(super) fn advance_write(
        &mut self,
        one: &mut FrontRequest,
        shares: &mut Shares<'_>,
    ) -> WaitsFor {
        if !one.has_payload() {
            self.large = one.request.len as usize >= super::LARGE_PAYLOAD;
            one.begin_part(self.part_window(shares));
        }
        if one.part_is_whole() {
            let waits = self.give(one, shares);
            if waits != WaitsFor::Nothing || one.payload.given == one.request.len {
                return waits;
            }
        }
        if one.payload.refused.is_some() || self.claim(one, shares) {
            return WaitsFor::Client;
        }
        if self.refuses {
            return self.refuse(one, shares);
        }
        one.payload.keeps = self.is_within(one, shares)
            && !shares.memory.fits_windows(Pool::block_bytes(self.little(one)).unwrap_or(0));
        if one.payload.keeps {
            return WaitsFor::Buffer;
        }
        // What has come is written, so that the rest finds room.
        if one.shorten_part(self.part_align()) {
            return self.admission(one, shares);
        }
        WaitsFor::Buffer
    }

    /// The window as a multiple of the export's block.
    fn part_window(&self, shares: &Shares<'_>) -> u32 {
        shares.window.max(self.part_align())
    }

    /// Whether a write is to be one bio: it is no longer than its window.
    fn is_within(&self, one: &FrontRequest, shares: &Shares<'_>) -> bool {
        one.payload.given == 0 && one.request.len <= self.part_window(shares)
    }

    /// Memory for what has come of the present part, and as much again.
    fn little(&self, one: &FrontRequest) -> usize {
        let left = (one.payload.part - one.payload.given) as usize;
        (2 * one.kept()).max(PART_MIN as usize).min(left)
    }

    fn part_align(&self) -> u32 {
        self.block.max(PART_MIN)
    }

    /// What a request of which a bio comes now waits for, as far as the connection's own pieces and requests in flight say. A request has a
    /// place among those in flight since its header; a piece that is not its write's last leaves all others theirs.
    pub(super) fn place_waits(&self, one: &FrontRequest) -> Option<WaitsFor> {
        let is_piece =
            one.has_payload() && (one.payload.given > 0 || one.payload.part < one.request.len);
        if is_piece && self.pieces_of(one.payload.split) >= PIECES_MAX {
            return Some(WaitsFor::Pieces);
        }
        let others = if is_piece { self.waiting.len() } else { 0 };
        (self.window.used() + others >= self.limits.requests).then_some(WaitsFor::Window)
    }

    /// Pieces of a write in the shard.
    fn pieces_of(&self, number: u32) -> u16 {
        let of_write = self.splits.iter().find(|split| split.number == number);
        of_write.map_or(0, |split| split.pieces)
    }

    /// Gives the present part to the shard, which has a slot for it; what has come beyond it moves to a block of its own. `Nothing` if it is
    /// given.
    fn give(&mut self, one: &mut FrontRequest, shares: &mut Shares<'_>) -> WaitsFor {
        let is_whole = one.payload.given == 0 && one.payload.part == one.request.len;
        if !is_whole && one.payload.split == 0 && !self.begin_split(one, shares) {
            return if one.payload.got < one.request.len {
                WaitsFor::Client
            } else {
                self.end_refused(one, shares)
            };
        }
        let (from, end) = (one.payload.given as usize, one.payload.part as usize);
        let beyond = one.payload.got as usize - end;
        let mut next = None;
        if beyond > 0 {
            next = self.take_tail(one, beyond, shares);
            if next.is_none() {
                return WaitsFor::Buffer;
            }
        }
        let Some(mut block) = one.payload.block.take() else { return WaitsFor::Nothing };
        if let Some(next) = &next {
            // SAFETY: both blocks are ours alone; the first has these bytes and the second room for them.
            unsafe {
                let source = block.base().add(end - from);
                next.base().copy_from_nonoverlapping(source, beyond);
            }
        }
        let before = block.len();
        // SAFETY: what lies behind the part was copied, and nothing uses it.
        unsafe { shares.pool.cut(&mut block, end - from) };
        self.buffer_bytes -= before - block.len();
        self.quick = shares.now.since(one.since()) < QUICK_NS;
        let waits = one.settle(shares.now);
        let flags = one.request.bio_flags();
        if is_whole {
            self.submit(&one.request, flags, waits, Some(block), shares);
            one.payload.given = one.request.len;
            return WaitsFor::Nothing;
        }
        let number = one.payload.split;
        let Request { offset, command, flags: with, .. } = one.request;
        let (cookie, offset) = (u64::from(number), offset + from as u64);
        let piece = Request { cookie, offset, len: (end - from) as u32, command, flags: with };
        let sequence = self.submit(&piece, flags, Default::default(), Some(block), shares);
        if let Some(in_flight) = self.window.get(sequence) {
            in_flight.piece = true;
        }
        one.payload.given = one.payload.part;
        one.payload.block = next;
        let is_last = one.payload.given == one.request.len;
        if let Some(split) = self.splits.iter_mut().find(|split| split.number == number) {
            split.pieces += 1;
            split.open = !is_last;
            let (front, since) = (waits.wait_times(), waits.began(shares.now));
            let Request { offset, len, .. } = one.request;
            split.since = since;
            split.whole = is_last.then_some(CompletedRequest {
                op: Op::Write,
                offset,
                len,
                total_ns: 0,
                front,
            });
        }
        if !is_last {
            one.begin_part(self.part_window(shares));
        }
        WaitsFor::Nothing
    }

    /// Takes a block for what has come beyond a part that is given: less than a block of the volume, and with what is guaranteed it needs
    /// no share: payloads that each wait for memory of the others would never go on. What nothing has come for is returned before.
    fn take_tail(
        &mut self,
        one: &mut FrontRequest,
        beyond: usize,
        shares: &mut Shares<'_>,
    ) -> Option<Buffer> {
        let kept = one.kept();
        if let Some(block) = one.payload.block.as_mut() {
            let before = block.len();
            // SAFETY: nothing has come behind these bytes, and no receive is in progress.
            unsafe { shares.pool.cut(block, kept) };
            self.buffer_bytes -= before - block.len();
        }
        if Pool::block_bytes(beyond)? > shares.memory.limits().guaranteed() {
            return self.take_block(beyond, false, shares);
        }
        let tail = shares.pool.try_take(beyond)?;
        self.buffer_bytes += tail.len();
        Some(tail)
    }

    /// The memory that a payload waits for: a block for what has come beyond a part that is whole (`take_tail`), or more for its part.
    pub(super) fn wanted_by_payload(&self, one: &FrontRequest, guaranteed: usize) -> Wanted {
        let block = |len: usize| Pool::block_bytes(len).unwrap_or(Pool::LARGEST);
        if !one.part_is_whole() {
            let bytes = block(self.little(one));
            let from = one.payload.block.as_ref().map_or(0, |block| block.len());
            return match one.payload.keeps {
                true => Wanted::Growth { from, to: bytes },
                false => Wanted::Block { bytes, reads: false },
            };
        }
        match block((one.payload.got - one.payload.part) as usize) {
            bytes if bytes > guaranteed => Wanted::Block { bytes, reads: false },
            bytes => Wanted::Chunk { bytes },
        }
    }

    /// Makes the record of a write that is given in pieces; false if it may not begin, and then it is refused.
    fn begin_split(&mut self, one: &mut FrontRequest, shares: &mut Shares<'_>) -> bool {
        let Request { offset, len, .. } = one.request;
        let size = shares.exports.size_of(self.export);
        let end = offset.checked_add(u64::from(len));
        let is_misaligned = (offset | u64::from(len)) & (u64::from(self.block) - 1) != 0;
        let refused = if end.is_none_or(|end| size.is_none_or(|size| end > size)) {
            Some(IoError::NoSpace)
        } else {
            is_misaligned.then_some(IoError::Invalid)
        };
        if refused.is_some() {
            one.payload.refused = refused;
            self.large = false;
            self.drop_block(one, shares.pool);
            return false;
        }
        self.begin_split_record(one);
        true
    }

    pub(super) fn begin_split_record(&mut self, one: &mut FrontRequest) {
        self.last_split = self.last_split.wrapping_add(1).max(1);
        one.payload.split = self.last_split;
        self.splits.push(SplitWrite {
            number: self.last_split,
            request: one.request,
            pieces: 0,
            status: Ok(()),
            open: true,
            whole: None,
            since: Instant(0),
        });
    }

    /// Returns the block of a payload whose rest is dropped.
    pub(super) fn drop_block(&mut self, one: &mut FrontRequest, pool: &mut Pool) {
        if let Some(block) = one.payload.block.take() {
            self.return_block(block, pool);
        }
    }

    /// Ends a refused request whose bytes all have come: it is answered now, or with its last piece.
    pub(super) fn end_refused(
        &mut self,
        one: &mut FrontRequest,
        shares: &mut Shares<'_>,
    ) -> WaitsFor {
        self.drop_block(one, shares.pool);
        let error = one.payload.refused.unwrap_or(IoError::TimedOut);
        let of_request = |split: &SplitWrite| split.number == one.payload.split;
        match self.splits.iter().position(of_request) {
            Some(index) if self.splits[index].pieces > 0 => {
                let split = &mut self.splits[index];
                split.open = false;
                split.status = split.status.and(Err(error));
            }
            found => {
                if let Some(index) = found {
                    self.splits.swap_remove(index);
                }
                self.answer_failure(one.request.op(), one.request.cookie, error);
            }
        }
        // Nothing more comes of it.
        one.payload.given = one.request.len;
        WaitsFor::Nothing
    }

    /// Counts a piece that the shard has answered; returns the request if this completed it.
    pub(super) fn on_piece(
        &mut self,
        now: Instant,
        number: u64,
        status: Status,
        pool: &mut Pool,
    ) -> Option<CompletedRequest> {
        let index = self.splits.iter().position(|split| u64::from(split.number) == number)?;
        let split = &mut self.splits[index];
        split.pieces -= 1;
        split.status = split.status.and(status);
        if split.open {
            if let (Err(error), Some(one)) = (split.status, self.waiting.last_mut())
                && u64::from(one.payload.split) == number
            {
                one.payload.refused = Some(error);
                let block = one.payload.block.take();
                block.into_iter().for_each(|block| self.return_block(block, pool));
            }
            return None;
        }
        if split.pieces > 0 {
            return None;
        }
        let SplitWrite { request, status, whole, since, .. } = self.splits.swap_remove(index);
        if matches!(self.phase, Phase::Dead) {
            return None;
        }
        match status {
            Err(error) => self.answer_failure(Op::Write, request.cookie, error),
            Ok(()) => {
                let form = self.form;
                self.outgoing.header(|out| form.done(out, request.cookie, Ok(())));
            }
        }
        whole.map(|whole| CompletedRequest { total_ns: now.since(since), ..whole })
    }

    /// Takes memory for bytes that may come; false if there is none, and nothing is whole that could be given instead.
    fn claim(&mut self, one: &mut FrontRequest, shares: &mut Shares<'_>) -> bool {
        let (little, left) = (self.little(one), (one.payload.part - one.payload.given) as usize);
        let keeps = self.is_within(one, shares);
        self.quick && self.grow(one, left, false, shares) || self.grow(one, little, keeps, shares)
    }

    /// Grows the block of a payload to `len` bytes, in place if what lies behind it is free. `keeps`: it is within its window.
    fn grow(
        &mut self,
        one: &mut FrontRequest,
        len: usize,
        keeps: bool,
        shares: &mut Shares<'_>,
    ) -> bool {
        let before = one.payload.block.as_ref().map_or(0, |block| block.len());
        let Some(wanted) = Pool::block_bytes(len).filter(|&wanted| wanted > before) else {
            return before > 0;
        };
        let may_keep = || keeps && shares.memory.may_keep((before, wanted), shares.pool.taken());
        if !self.may_take(wanted - before, false, shares) && !may_keep() {
            return false;
        }
        let kept = one.kept();
        let pool = &mut *shares.pool;
        if !one.payload.block.as_mut().is_some_and(|block| pool.extend(block, len)) {
            let Some(larger) = pool.try_take(len) else { return false };
            if let Some(block) = one.payload.block.take() {
                // SAFETY: both blocks are ours alone, and each holds what has come.
                unsafe { larger.base().copy_from_nonoverlapping(block.base(), kept) };
                pool.put(block);
            }
            one.payload.block = Some(larger);
        }
        self.buffer_bytes += wanted - before;
        true
    }

    /// Shortens the part of a payload that may not grow, or is beyond its window, to the whole blocks that have come, so that it is given.
    pub(super) fn shorten_payload(&mut self, window: u32) {
        if window >= WINDOW_MAX {
            return;
        }
        let align = self.part_align();
        let window = window.max(align) as usize;
        if let Some(last) = self.waiting.last_mut()
            && last.payload.block.as_ref().is_some_and(|block| block.len() > window)
        {
            last.shorten_part(align);
        }
    }

    /// Whether a payload keeps more than a window.
    #[must_use]
    pub fn is_beyond(&self, window: u32) -> bool {
        let window = window.max(self.part_align()) as usize;
        let last = self.waiting.last().filter(|last| !last.part_is_whole());
        last.is_some_and(|last| {
            last.payload.block.as_ref().is_some_and(|block| block.len() > window)
        })
    }

    /// The export that its requests are counted for.
    #[must_use]
    pub fn export_of_requests(&self) -> ExportId {
        self.export
    }

    /// The payload that the shard does not have yet, and what it keeps.
    #[must_use]
    pub fn kept_payload(&self) -> Option<KeptPayload> {
        let last = self.waiting.last().filter(|last| last.has_payload())?;
        let bytes = last.payload.block.as_ref().map_or(0, |block| block.len());
        Some(KeptPayload { export: self.export, bytes })
    }

    /// Whether a payload has begun and the client is to send more of it.
    #[must_use]
    pub fn has_incomplete_payload(&self) -> bool {
        self.waiting
            .last()
            .is_some_and(|last| last.has_payload() && last.payload.got < last.request.len)
    }

    /// Whether nothing of a payload has come for a while.
    pub(super) fn is_silent(&self, now: Instant) -> bool {
        now.since(self.last_received) >= SILENT_NS
    }

    /// Returns the part of an incomplete payload's block in which nothing has come. The next receive claims it again.
    pub fn cut_payload(&mut self, pool: &mut Pool) {
        let Some(one) = self.waiting.last_mut() else { return };
        let kept = one.kept();
        if !one.awaits_client() {
            return;
        }
        let Some(mut block) = one.payload.block.take() else { return };
        let before = block.len();
        if kept == 0 {
            return self.return_block(block, pool);
        }
        // SAFETY: nothing has come behind these bytes, and no receive is in progress.
        unsafe { pool.cut(&mut block, kept) };
        self.buffer_bytes -= before - block.len();
        one.payload.block = Some(block);
    }

    /// What a write that ends here without a reply has changed, as a sentence for the log; none if no piece of one was given.
    #[must_use]
    pub fn torn_write(&self) -> Option<String> {
        let one =
            self.waiting.last().filter(|one| one.payload.split != 0 && one.payload.given > 0)?;
        let (given, Request { offset, len, .. }) = (one.payload.given, one.request);
        Some(format!(
            "connection ended in the middle of a write: {given} of {len} bytes at {offset} were written"
        ))
    }

    /// Tells the same once: a connection that ends is closed in several steps.
    pub fn take_torn_write(&mut self) -> Option<String> {
        let sentence = self.torn_write()?;
        if let Some(one) = self.waiting.last_mut() {
            one.payload.split = 0;
        }
        Some(sentence)
    }

    /// Whether what stops the connection is gone: a reply was sent, or a request answered.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        match self.stopped_by {
            WaitsFor::Window => self.window_opens(),
            WaitsFor::Pieces => self
                .waiting
                .last()
                .is_some_and(|last| self.pieces_of(last.payload.split) < PIECES_MAX),
            _ => false,
        }
    }
}
