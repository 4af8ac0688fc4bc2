//! The intake between two processes: what the client has sent of requests that did not begin becomes bytes again, as they came.

use headworks_core::Instant;
use headworks_nbd::transmission::{Refusal, Request};
use headworks_nbd::wire::NbdError;

use super::Intake;
use crate::request::{FrontRequest, Origin, PART_MIN};

/// A write of which a part is written and no reply was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenWrite {
    /// Header of the write.
    pub request: Request,
    /// Bytes of its payload that are written.
    pub given: u32,
    /// Requests that came before it and wait.
    pub before: Vec<Request>,
}

impl Intake {
    /// Whether what has come can be put in the order of a stream again: the rest of a payload that is dropped comes first, so no header can be
    /// put before it.
    #[must_use]
    pub fn can_move(&self) -> bool {
        let drops = self.parser.is_some() && self.skipping().is_some();
        !drops || self.waiting.len() <= usize::from(self.has_payload())
    }

    /// The write that is being received and of which the shard had a part.
    #[must_use]
    pub fn open_write(&self) -> Option<OpenWrite> {
        let one = self.waiting.last()?;
        let (request, given) = (one.request, one.payload.given);
        let is_open = given > 0 && one.payload.refused.is_none();
        let is_before = |one: &&FrontRequest| one.origin == Origin::Client && !one.has_payload();
        let before = || self.waiting.all().filter(is_before).map(|one| one.request);
        is_open.then(|| OpenWrite { request, given, before: before().collect() })
    }

    /// Goes on with a write of which another process has written a part, to an export with blocks of `block` bytes.
    pub fn resume(&mut self, open: OpenWrite, block: u32, now: Instant) {
        let OpenWrite { request, given, before } = open;
        for request in before {
            self.waiting.push(FrontRequest::new(request, Origin::Client, now));
        }
        let mut one = FrontRequest::new(request, Origin::Client, now);
        one.limits_asked = true;
        (one.payload.given, one.payload.got) = (given, given);
        one.begin_part(PART_MIN.max(block));
        one.payload.split = self.splits.begin(request);
        self.waiting.push(one);
    }

    /// What the client has sent of requests that did not begin, as it came. A write whose payload follows is the last.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let sent =
            |one: &&FrontRequest| one.origin == Origin::Client && one.payload.refused.is_none();
        let is_open = self.open_write().is_some();
        let sent = self.waiting.all().filter(sent).filter(|one| !is_open || one.has_payload());
        let mut bytes: Vec<u8> = sent.flat_map(FrontRequest::bytes).collect();
        bytes.extend_from_slice(self.parser.as_ref().map_or(&[], |parser| parser.partial()));
        bytes
    }

    /// Bytes of a refused write's payload that are to be dropped first, and the refusal.
    #[must_use]
    pub fn skipping(&self) -> Option<(u32, Refusal)> {
        let dropped = self.waiting.last().and_then(|one| {
            let error = NbdError::from(one.payload.refused?);
            let refusal = Refusal { cookie: one.request.cookie, in_chunks: false, error };
            Some((one.request.len - one.payload.got, refusal))
        });
        dropped.or_else(|| self.parser.as_ref()?.skipping())
    }
}
