//! A client's request from its header to its bio: one record, whatever it waits for.
//!
//! ```text
//!   header --> Limit --> Freeze --> Buffer --> bio                              (reads and others)
//!                                     ^`--> Client --part whole--> Freeze --> Room --> bio (writes)
//!                                     `------------- the next part ---------------'
//!   returned by the cache (Again), dropped data of a reply (Reread) --> Room --> Buffer --> bio
//! ```
//!
//! A reason to wait is one value of [`WaitsFor`]; what a wait counts as in the latency tables is decided here, once for each.

use headworks::driver::Span;
use headworks_core::limits::LimitDirection;
use headworks_core::{Instant, IoError, Op};
use headworks_house::Buffer;
use headworks_nbd::transmission::Request;

use crate::front_waits::FrontWaits;

/// What a request waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitsFor {
    /// Nothing: it is new, or goes on in the next turn.
    #[default]
    Nothing,
    /// Bytes of its payload.
    Client,
    /// The connection's own bound of requests, replies or bytes.
    Window,
    /// A limit of bytes or I/Os a second.
    Limit(LimitDirection),
    /// The end of a freeze of its volume.
    Freeze,
    /// A bio slot of the shard.
    Room,
    /// The next turn of the shard, which has had its share of large requests.
    Turn,
    /// A buffer of the pool.
    Buffer,
    /// Pieces of the same write that the device has.
    Pieces,
}

/// Where a request came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The client sent it.
    Client,
    /// The cache returned it: it was submitted without a buffer and needs one.
    Again,
    /// Data of a reply that were dropped and are to be read again.
    Reread,
}

/// Shortest part of a payload that is written on its own, and alignment of its end on the volume.
pub const PART_MIN: u32 = 4 << 10;

/// A payload that is received, as far as it has come: a cursor over its parts.
///
/// ```text
///   0 ........ given ............ got ........ part ......... len
///   |in the shard|  in the block   | to come    | later parts   |
/// ```
#[derive(Debug, Default)]
pub struct Payload {
    /// Where the present part is received; none if nothing of it has come, or it is dropped.
    pub block: Option<Buffer>,
    /// Bytes that have come.
    pub got: u32,
    /// Bytes that the shard has.
    pub given: u32,
    /// End of the present part; 0 before the payload begins.
    pub part: u32,
    /// What is left of it is received and kept nowhere: the request fails with this when its last byte has come.
    pub refused: Option<IoError>,
    /// Number of the record of its pieces in the shard; 0 if it has none.
    pub split: u32,
    /// While it waits for memory: it is within its window.
    pub within: bool,
    /// The same: it waits for others of its export that are beyond theirs.
    pub for_others: bool,
}

/// A request that cannot go on, or whose payload is not there.
#[derive(Debug)]
pub struct FrontRequest {
    /// The header as it came.
    pub request: Request,
    /// Where it came from.
    pub origin: Origin,
    waits_for: WaitsFor,
    /// What it waited for has come: it goes on in the next turn.
    ready: bool,
    /// Whether it may pass its limits was asked: once for each request.
    pub limits_asked: bool,
    /// What it costs of the limit that it waits for.
    pub(crate) cost_ns: u64,
    /// Since when it waits.
    since: Instant,
    /// Waits that are over.
    waits: FrontWaits,
    /// The payload of a write.
    pub payload: Payload,
}

const _: () = assert!(size_of::<FrontRequest>() <= 128, "a thousand of them are copied at times");

impl FrontRequest {
    /// A request that has waited for nothing.
    #[must_use]
    pub fn new(request: Request, origin: Origin, now: Instant) -> Self {
        let limits_asked = origin != Origin::Client;
        Self {
            request,
            origin,
            waits_for: WaitsFor::Nothing,
            ready: false,
            limits_asked,
            cost_ns: 0,
            since: now,
            waits: FrontWaits::default(),
            payload: Payload::default(),
        }
    }

    /// A request that the cache returned, which waits for a buffer since `since` and waited before that.
    #[must_use]
    pub fn again(request: Request, before: FrontWaits, since: Instant) -> Self {
        let mut returned = Self::new(request, Origin::Again, since);
        (returned.waits_for, returned.waits) = (WaitsFor::Buffer, before);
        returned.ready = true;
        returned
    }

    /// What it waits for.
    #[inline]
    #[must_use]
    pub fn waits_for(&self) -> WaitsFor {
        if self.ready { WaitsFor::Nothing } else { self.waits_for }
    }

    /// The limit that it waits for.
    #[must_use]
    pub fn limited(&self) -> Option<LimitDirection> {
        match self.waits_for() {
            WaitsFor::Limit(direction) => Some(direction),
            _ => None,
        }
    }

    /// Whether it waits for a limit, or has passed it and was not tried since.
    #[must_use]
    pub fn was_limited(&self) -> bool {
        matches!(self.waits_for, WaitsFor::Limit(_))
    }

    /// When it began to wait, of a payload the present part.
    #[must_use]
    pub fn since(&self) -> Instant {
        self.since
    }

    /// When the first of its waits began that count.
    #[must_use]
    pub fn began(&self) -> Instant {
        self.waits.began(self.since)
    }

    /// Begins to wait, unless it waits for the same already.
    pub fn wait(&mut self, what: WaitsFor, now: Instant) {
        self.ready = false;
        if self.waits_for != what {
            self.settle(now);
            self.waits_for = what;
        }
    }

    /// What it waited for has come. Until it is tried it is counted as waiting.
    pub fn grant(&mut self) {
        self.ready = true;
    }

    /// Adds the present wait to those that are over, and returns all.
    pub fn settle(&mut self, now: Instant) -> FrontWaits {
        let waited = now.since(self.since);
        self.since = now;
        self.waits = match self.waits_for {
            WaitsFor::Limit(_) | WaitsFor::Freeze => self.waits.and_limits(waited),
            WaitsFor::Buffer | WaitsFor::Room => self.waits.and_buffer(waited),
            WaitsFor::Nothing
            | WaitsFor::Client
            | WaitsFor::Window
            | WaitsFor::Turn
            | WaitsFor::Pieces => self.waits,
        };
        self.waits
    }

    /// Whether its payload is being received, or dropped.
    #[must_use]
    pub fn has_payload(&self) -> bool {
        self.payload.part > 0
    }

    /// Whether the client is to send more of its payload, and there is room for it.
    #[inline]
    #[must_use]
    pub fn awaits_client(&self) -> bool {
        let Payload { block, got, part, refused, .. } = &self.payload;
        if refused.is_some() {
            return *part > 0 && *got < self.request.len;
        }
        got < part && block.as_ref().is_some_and(|block| self.kept() < block.len())
    }

    /// Whether the present part of its payload has come.
    #[inline]
    #[must_use]
    pub fn part_is_whole(&self) -> bool {
        self.has_payload()
            && self.payload.refused.is_none()
            && self.payload.got >= self.payload.part
    }

    /// Bytes that have come and that the shard does not have.
    #[inline]
    #[must_use]
    pub fn kept(&self) -> usize {
        (self.payload.got - self.payload.given) as usize
    }

    /// Bytes of memory for what has come of the present part, and for as much again.
    #[must_use]
    pub fn next_growth(&self) -> usize {
        let left = (self.payload.part - self.payload.given) as usize;
        (2 * self.kept()).max(PART_MIN as usize).min(left)
    }

    /// Begins the next part, of at most `window` bytes: the whole payload, or up to a multiple of `window` on the volume.
    pub fn begin_part(&mut self, window: u32) {
        let Payload { given, part, .. } = &mut self.payload;
        let len = self.request.len;
        if *given == 0 && len <= window {
            *part = len;
            return;
        }
        let from = self.request.offset + u64::from(*given);
        let most = u64::from(window) - from % u64::from(window);
        *part = len.min(*given + most as u32);
    }

    /// Ends the present part after what has come of it, at a multiple of `align` on the volume; false if that is nothing.
    pub fn shorten_part(&mut self, align: u32) -> bool {
        let Payload { given, got, part, refused, .. } = &mut self.payload;
        let beyond = (self.request.offset + u64::from(*got)) % u64::from(align);
        let end = u64::from(*got).saturating_sub(beyond);
        let shortens = refused.is_none() && *got < *part && end > u64::from(*given);
        if shortens {
            *part = end as u32;
        }
        shortens
    }

    /// Free part of the block, as far as the present part needs it.
    #[must_use]
    pub fn rest(&self) -> Option<Span> {
        let Payload { block, got, part, .. } = &self.payload;
        let (block, kept) = (block.as_ref()?, self.kept());
        let rest = ((part - got) as usize).min(block.len() - kept);
        // SAFETY: `kept` is at most the block's length; nothing else uses the block yet.
        Some(unsafe { Span::new(block.base().add(kept), rest) })
    }

    /// Takes bytes that belong to the payload; returns their number.
    pub fn fill(&mut self, bytes: &[u8]) -> usize {
        if self.payload.refused.is_some() {
            let count = bytes.len().min((self.request.len - self.payload.got) as usize);
            self.payload.got += count as u32;
            return count;
        }
        let Some(rest) = self.rest() else { return 0 };
        let count = bytes.len().min(rest.len());
        // SAFETY: the block is ours alone while the payload comes in, and has room for `rest`.
        unsafe { rest.base().copy_from_nonoverlapping(bytes.as_ptr(), count) };
        self.payload.got += count as u32;
        count
    }

    /// What the client has sent of it, as it came, but for what the shard has.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.payload.given == 0 {
            bytes.extend_from_slice(&self.request.header());
        }
        if let Some(block) = &self.payload.block {
            // SAFETY: the block is ours alone while the payload comes in, and these bytes of it were written.
            bytes.extend_from_slice(unsafe {
                std::slice::from_raw_parts(block.base(), self.kept())
            });
        }
        bytes
    }

    /// Whether it is a write whose payload follows in the stream and has not begun.
    #[must_use]
    pub fn stops_stream(&self) -> bool {
        self.request.op() == Op::Write && !self.awaits_client()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_nbd::wire::{Command, CommandFlags};

    const KIB: u32 = 1 << 10;
    const MIB: u32 = 1 << 20;

    fn write(offset: u64, len: u32) -> FrontRequest {
        let (command, flags) = (Command::Write, CommandFlags::NONE);
        let request = Request { cookie: 1, offset, len, command, flags };
        FrontRequest::new(request, Origin::Client, Instant(0))
    }

    /// Ends of the parts of a write.
    fn parts(offset: u64, len: u32, window: u32) -> Vec<u32> {
        let (mut one, mut parts) = (write(offset, len), Vec::new());
        while one.payload.given < len {
            one.begin_part(window);
            parts.push(one.payload.part);
            (one.payload.given, one.payload.got) = (one.payload.part, one.payload.part);
        }
        parts
    }

    #[test]
    fn write_up_to_its_window_is_one_part_and_a_longer_one_ends_at_multiples() {
        assert_eq!(parts(512, MIB, MIB), [MIB]);
        assert_eq!(parts(0, 3 * MIB, MIB), [MIB, 2 * MIB, 3 * MIB]);
        assert_eq!(parts(4096, 2 * MIB, MIB), [MIB - 4096, 2 * MIB - 4096, 2 * MIB]);
        assert_eq!(parts(512, 9 * KIB, 4 * KIB), [3584, 7680, 9 * KIB]);
        assert_eq!(parts(u64::from(MIB) - 1, MIB + 1, MIB), [1, MIB + 1]);
    }

    #[test]
    fn part_is_shortened_to_whole_blocks_of_what_has_come() {
        let mut one = write(512, 64 * KIB);
        one.begin_part(MIB);
        for (got, end) in [(0, None), (3583, None), (3584, Some(3584)), (9000, Some(7680))] {
            one.begin_part(MIB);
            one.payload.got = got;
            assert_eq!(one.shorten_part(PART_MIN), end.is_some(), "{got}");
            assert!(end.is_none_or(|end| one.payload.part == end && one.part_is_whole()));
        }
        one.payload.given = 7680;
        one.begin_part(MIB);
        assert!(!one.shorten_part(PART_MIN), "1320 bytes");
    }
}
