//! A client's request from its header to its bio: one record, whatever it waits for.
//!
//! ```text
//!   header --> Limit --> Freeze --> Buffer --> bio                              (reads and others)
//!                                     `--> Client --whole--> Freeze --> Room --> bio      (writes)
//!   returned by the cache (Again), dropped data of a reply (Reread) --> Room --> Buffer --> bio
//! ```
//!
//! A reason to wait is one value of [`WaitsFor`]; what a wait counts as in the latency tables is decided here, once for each.

use headworks::driver::{Buffer, Span};
use headworks_core::limits::LimitDirection;
use headworks_core::{Instant, IoError, Op};
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

/// A payload that is received, as far as it has come.
#[derive(Debug, Default)]
pub struct Payload {
    /// Where it is received; none if it is dropped, or not begun.
    pub block: Option<Buffer>,
    /// Bytes that have come.
    pub got: u32,
    /// It is received and kept nowhere: the request fails with this when its last byte has come.
    pub refused: Option<IoError>,
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

const _: () = assert!(size_of::<FrontRequest>() <= 112, "a thousand of them are copied at times");

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
            WaitsFor::Nothing | WaitsFor::Client | WaitsFor::Window | WaitsFor::Turn => self.waits,
        };
        self.waits
    }

    /// Whether its payload is being received, or dropped.
    #[must_use]
    pub fn has_payload(&self) -> bool {
        self.payload.block.is_some() || self.payload.refused.is_some()
    }

    /// Whether the client is to send more of its payload before it goes on.
    #[inline]
    #[must_use]
    pub fn awaits_client(&self) -> bool {
        self.has_payload() && self.payload.got < self.request.len
    }

    /// Free part of the block that its payload is received in.
    #[must_use]
    pub fn rest(&self) -> Option<Span> {
        let Payload { block, got, .. } = &self.payload;
        let (block, got) = (block.as_ref()?, *got as usize);
        let rest = self.request.len as usize - got;
        // SAFETY: `got` is at most the request's length, which the block holds; nothing else uses the block yet.
        Some(unsafe { Span::new(block.base().add(got), rest) })
    }

    /// Takes bytes that belong to the payload; returns their number.
    pub fn fill(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min((self.request.len - self.payload.got) as usize);
        if let Some(rest) = self.rest() {
            // SAFETY: the block is ours alone while the payload comes in, and has room for the rest of it.
            unsafe { rest.base().copy_from_nonoverlapping(bytes.as_ptr(), count) };
        }
        self.payload.got += count as u32;
        count
    }

    /// What the client has sent of it, as it came.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.request.header().to_vec();
        if let Some(block) = &self.payload.block {
            // SAFETY: the block is ours alone while the payload comes in, and `got` bytes of it were written.
            let payload =
                unsafe { std::slice::from_raw_parts(block.base(), self.payload.got as usize) };
            bytes.extend_from_slice(payload);
        }
        bytes
    }

    /// Whether it is a write whose payload follows in the stream and has not begun.
    #[must_use]
    pub fn stops_stream(&self) -> bool {
        self.request.op() == Op::Write && !self.awaits_client()
    }
}
