//! The intake of a connection: requests from their headers to their bios, as far as they have come.
//!
//! ```text
//!   bytes --parser--> header --> bio at once
//!                       `--> waiting --admission--> bio        the last one may have a payload that comes (`payload`)
//! ```
//!
//! It has what was received and is not in the shard, and what stops the client's stream. It sends nothing and knows neither the
//! client nor its export: what needs those asks with this as an argument.
//!
//! Invariants: there is a parser exactly while requests are taken; `block_bytes` is the sum of the blocks of payloads that come and of
//! requests in flight; a write that waits, and a payload that comes, is the last request of the list.

mod hand_over;
mod payload;

use headworks_core::limits::{LimitDirection, LimitedIo};
use headworks_house::Pool;
use headworks_nbd::transmission::RequestParser;

use crate::memory::{MemoryLimits, Wanted, Wants};
use crate::request::{FrontRequest, Origin, WaitsFor};
use crate::split_writes::SplitWrites;
use crate::waiting::Waiting;

pub use hand_over::OpenWrite;

/// What has arrived and is not in the shard.
#[derive(Debug)]
pub struct Intake {
    /// None before requests are taken and afterwards.
    parser: Option<RequestParser>,
    /// Requests that cannot go on, or whose payload has not come.
    waiting: Waiting,
    /// What it waits for before anything is read; `Nothing` if it is read from. While it waits the client's time does not count.
    stopped_by: WaitsFor,
    /// Writes of which pieces are in the shard.
    splits: SplitWrites,
    /// Bytes of buffers of requests.
    block_bytes: usize,
    /// The last write had a large payload.
    large: bool,
    /// The last payload came quickly.
    quick: bool,
    /// The device does not answer: requests for which there is no room fail at once.
    refuses: bool,
    counts: PayloadCounts,
}

/// What became of payloads since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PayloadCounts {
    /// Parts that were written before all of them had come, because the payload might not grow or was beyond its window.
    pub written_early: u32,
    /// Blocks in which bytes were missing and that were cut to what had come.
    pub cut: u32,
}

impl Default for Intake {
    fn default() -> Self {
        Self {
            parser: None,
            waiting: Waiting::default(),
            stopped_by: WaitsFor::Nothing,
            splits: SplitWrites::default(),
            block_bytes: 0,
            large: false,
            quick: true,
            refuses: false,
            counts: PayloadCounts::default(),
        }
    }
}

impl Intake {
    /// Requests are taken from now on.
    pub fn begin(&mut self, parser: RequestParser) {
        assert!(self.parser.is_none(), "a connection begins to take requests once");
        self.parser = Some(parser);
    }

    /// No more requests are taken, and those of the client that are not in the shard are dropped.
    pub fn end(&mut self, pool: &mut Pool) {
        self.parser = None;
        let dropped: Vec<_> = self.waiting.drop_clients().collect();
        for block in dropped.into_iter().filter_map(|one| one.payload.block) {
            self.return_block(block, pool);
        }
    }

    /// The parser of headers; none unless requests are taken.
    #[inline]
    pub fn parser_mut(&mut self) -> Option<&mut RequestParser> {
        self.parser.as_mut()
    }

    /// The same, to be read.
    #[must_use]
    pub fn parser(&self) -> Option<&RequestParser> {
        self.parser.as_ref()
    }

    /// The requests that wait.
    #[inline]
    #[must_use]
    pub fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    /// The same, to be changed.
    #[inline]
    pub fn waiting_mut(&mut self) -> &mut Waiting {
        &mut self.waiting
    }

    /// What it waits for before anything is read from the client; `Nothing` if it is read from.
    #[inline]
    #[must_use]
    pub fn stopped_by(&self) -> WaitsFor {
        self.stopped_by
    }

    /// Nothing is read from the client before this comes, or it is read from if that is `Nothing`. Returns what it waited for.
    #[inline]
    pub fn stop(&mut self, what: WaitsFor) -> WaitsFor {
        std::mem::replace(&mut self.stopped_by, what)
    }

    /// Whether a request of it waits for something, or the stream does.
    #[must_use]
    pub fn waits_for(&self, what: WaitsFor) -> bool {
        self.stopped_by == what || self.waiting.is_waiting_for(what)
    }

    /// Whether a part of a request has come, and the client is to send the rest.
    #[must_use]
    pub fn is_in_request(&self) -> bool {
        let in_header = |parser: &RequestParser| !parser.is_between_requests();
        self.has_payload() || self.parser.as_ref().is_some_and(in_header)
    }

    /// Whether a waiting request can be tried.
    #[inline]
    #[must_use]
    pub fn can_step(&self) -> bool {
        self.waiting.has_others()
            && (!self.awaits_payload() || self.waiting.all().count() > self.waiting.limited() + 1)
    }

    /// Whether the last write had a large payload, so that more are likely.
    #[inline]
    #[must_use]
    pub fn brings_large_payloads(&self) -> bool {
        self.large
    }

    /// Notes whether the last request is a write with a large payload.
    #[inline]
    pub fn set_large(&mut self, large: bool) {
        self.large = large;
    }

    /// Whether the last payload came quickly.
    #[must_use]
    pub fn is_quick(&self) -> bool {
        self.quick
    }

    /// Notes whether the last payload came quickly.
    pub fn set_quick(&mut self, quick: bool) {
        self.quick = quick;
    }

    /// Whether the device does not answer.
    #[inline]
    #[must_use]
    pub fn refuses(&self) -> bool {
        self.refuses
    }

    /// Sets whether the device does not answer: then requests fail for which there is no room, instead of waiting for it.
    #[inline]
    pub fn set_refuses(&mut self, refuses: bool) {
        self.refuses = refuses;
    }

    /// The writes of which pieces are in the shard.
    #[inline]
    #[must_use]
    pub fn splits(&self) -> &SplitWrites {
        &self.splits
    }

    /// The same, to be changed.
    pub fn splits_mut(&mut self) -> &mut SplitWrites {
        &mut self.splits
    }

    /// Bytes of the pool in use for requests without an answer.
    #[inline]
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Counts a block, or what one has grown by.
    #[inline]
    pub fn charge(&mut self, bytes: usize) {
        self.block_bytes += bytes;
    }

    /// Counts a block that is returned or belongs to a reply now, or what one has shrunk by.
    #[inline]
    pub fn discharge(&mut self, bytes: usize) {
        debug_assert!(self.block_bytes >= bytes, "buffers in flight are counted");
        self.block_bytes -= bytes;
    }

    /// Takes the counts of payloads that were written early or cut.
    #[inline]
    pub fn take_counts(&mut self) -> PayloadCounts {
        std::mem::take(&mut self.counts)
    }

    /// Number of requests that wait for a buffer.
    #[must_use]
    pub fn buffer_waits(&self) -> usize {
        self.waiting.all().filter(|one| one.waits_for() == WaitsFor::Buffer).count()
    }

    /// Number of requests that wait for limits, or have just passed them.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.waiting.parked()
    }

    /// Lets the first request of a direction pass; returns what limits know of the one behind it.
    pub fn pass(&mut self, direction: LimitDirection) -> Option<LimitedIo> {
        self.waiting.pass(direction)
    }

    /// Lets all requests pass: their export knows no limits any more.
    pub fn pass_all(&mut self) {
        self.waiting.pass_all();
    }

    /// What the connection waits for, if it waits for a buffer or a bio slot: what its payload does, and a request before that.
    #[must_use]
    pub fn wants(&self, limits: &MemoryLimits) -> Wants {
        let [first, payload] = self.waiting.heads();
        let mut wants =
            [payload, first].into_iter().flatten().filter_map(|one| wanted(one, limits));
        let first = wants.next().unwrap_or(Wanted::Slot);
        Wants { first, other: wants.next() }
    }

    /// The same of a client whose requests come whole, where others pass those that wait for a thaw.
    #[must_use]
    pub fn wants_of_whole(&self, limits: &MemoryLimits) -> Wants {
        let first = self.waiting.all().find_map(|one| wanted(one, limits));
        Wants { first: first.unwrap_or(Wanted::Slot), other: None }
    }
}

/// What a request waits for, if that is a buffer or a bio slot.
fn wanted(one: &FrontRequest, limits: &MemoryLimits) -> Option<Wanted> {
    match one.waits_for() {
        WaitsFor::Room => return Some(Wanted::Slot),
        WaitsFor::Buffer => {}
        _ => return None,
    }
    let block = |len: usize| Pool::block_bytes(len).unwrap_or(Pool::LARGEST);
    if one.origin == Origin::Reread {
        return Some(Wanted::Chunk { bytes: block(limits.guaranteed()) });
    }
    if one.has_payload() {
        return Some(payload::wanted(one, limits.guaranteed()));
    }
    let op = one.request.op();
    let len = op.buffer_len(one.request.len) as usize;
    Some(Wanted::Block { bytes: block(len), reads: op == headworks_core::Op::Read })
}
