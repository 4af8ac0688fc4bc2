//! A connection between two processes: what one knows of its client, for another that goes on with the same socket.
//!
//! Only a plain connection in transmission moves, and only while none of its requests is in flight. What the client has sent of a
//! request becomes bytes again, as they came, so the other process needs no other way to read them. Unsent replies move as bytes;
//! dropped data (`outgoing`) as ranges to be read again.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use headworks_core::{Instant, Ioprio};
use headworks_front::{FrontRequest, Origin, PART_MIN};
use headworks_nbd::Negotiated;
use headworks_nbd::transmission::{Refusal, Request};
use headworks_nbd::wire::NbdError;

use super::{Connection, ConnectionLimits, ExportBinding, Phase, Transmission};
use headworks_front::outgoing::UnsentPiece;

/// A connection for another process.
#[derive(Debug)]
pub struct HandedConnection {
    /// A descriptor of the client's socket.
    pub socket: OwnedFd,
    /// Its id in the old process.
    pub id: u32,
    /// Address of the client for the log.
    pub peer: String,
    /// Name of the listener that the client came through.
    pub listener: Option<String>,
    /// Protocol features agreed on in the handshake.
    pub terms: Negotiated,
    /// Class of its requests, if it has one of its own.
    pub ioprio: Option<Ioprio>,
    /// What the client has sent of requests that did not begin.
    pub unparsed: Vec<u8>,
    /// Bytes of a refused write's payload that are to be dropped before `unparsed`, and the refusal.
    pub skip: Option<(u32, Refusal)>,
    /// A write of which a part is written: `unparsed` begins with the rest of its payload.
    pub open: Option<OpenWrite>,
    /// Replies that are not sent yet, in order.
    pub unsent: Vec<UnsentPiece>,
    /// Number of those replies.
    pub replies: usize,
}

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

/// State that a connection of another process continues with when its export is bound.
#[derive(Debug, Default)]
pub(super) struct Resumption {
    ioprio: Option<Ioprio>,
    skip: Option<(u32, Refusal)>,
    pub(super) open: Option<OpenWrite>,
}

impl Connection {
    /// Whether nothing of the connection is in the shard.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        // The rest of a payload that is dropped comes first, so no header can be put before it.
        let mixes = match &self.phase {
            Phase::Transmission(transmission) => {
                self.unfinished(transmission).1.is_some()
                    && self.waiting.len() > usize::from(self.has_payload())
            }
            _ => false,
        };
        self.window.used() == 0 && self.waiting.again() == 0 && self.reread.is_none() && !mixes
    }

    /// What another process needs to go on with this connection; none if it cannot move: it is encrypted, or not in transmission.
    ///
    /// # Panics
    /// If a request is in flight.
    #[must_use]
    pub fn hand_over(&self) -> Option<HandedConnection> {
        let Phase::Transmission(transmission) = &self.phase else {
            return None;
        };
        let transport = self.transport.as_ref().filter(|transport| !transport.is_encrypted())?;
        assert!(self.is_at_rest(), "no request is in flight");
        let socket = transport.duplicate().ok()?;
        let mut unparsed = self.waiting_bytes();
        let (unfinished, skip) = self.unfinished(transmission);
        unparsed.extend_from_slice(unfinished);
        unparsed.extend_from_slice(&self.stash);
        Some(HandedConnection {
            socket,
            id: self.id,
            peer: self.peer.clone(),
            listener: self.listener.as_deref().map(str::to_owned),
            terms: transmission.parser.terms(),
            ioprio: transmission.own_ioprio.then_some(transmission.binding.ioprio),
            unparsed,
            skip,
            open: self.open_write(),
            unsent: self.outgoing.unsent(),
            replies: self.outgoing.replies(),
        })
    }

    /// Goes on with a connection of another process; [`Connection::begin`] follows.
    #[must_use]
    pub fn adopt(handed: HandedConnection, limits: ConnectionLimits, now: Instant) -> Self {
        let HandedConnection {
            socket,
            peer,
            listener,
            ioprio,
            unparsed,
            skip,
            open,
            unsent,
            replies,
            ..
        } = handed;
        let mut connection = Self::without_greeting(socket, peer, limits, now);
        connection.listener = listener.map(Arc::from);
        connection.stash = unparsed;
        connection.outgoing.adopt(unsent, replies);
        connection.resumption = Some(Box::new(Resumption { ioprio, skip, open }));
        connection
    }

    /// The write that is being received and of which the shard had a part.
    fn open_write(&self) -> Option<OpenWrite> {
        let one = self.waiting.last()?;
        let (request, given) = (one.request, one.payload.given);
        let is_open = given > 0 && one.payload.refused.is_none();
        let is_before = |one: &&FrontRequest| one.origin == Origin::Client && !one.has_payload();
        let before = || self.waiting.all().filter(is_before).map(|one| one.request);
        is_open.then(|| OpenWrite { request, given, before: before().collect() })
    }

    /// Goes on with a write of which another process has written a part.
    pub(super) fn resume_write(&mut self, open: OpenWrite, now: Instant) {
        let OpenWrite { request, given, before } = open;
        for request in before {
            self.waiting.push(FrontRequest::new(request, Origin::Client, now));
        }
        let mut one = FrontRequest::new(request, Origin::Client, now);
        one.limits_asked = true;
        (one.payload.given, one.payload.got) = (given, given);
        one.begin_part(PART_MIN.max(self.block));
        self.begin_split_record(&mut one);
        self.waiting.push(one);
    }

    /// What the client has sent of requests that did not begin, as it came. A write whose payload follows is the last.
    fn waiting_bytes(&self) -> Vec<u8> {
        let sent =
            |one: &&FrontRequest| one.origin == Origin::Client && one.payload.refused.is_none();
        let is_open = self.open_write().is_some();
        let sent = self.waiting.all().filter(sent).filter(|one| !is_open || one.has_payload());
        sent.flat_map(FrontRequest::bytes).collect()
    }

    /// What the client has sent of a header; and what is to be dropped before it.
    fn unfinished<'a>(&self, transmission: &'a Transmission) -> (&'a [u8], Option<(u32, Refusal)>) {
        let dropped = self.waiting.last().and_then(|one| {
            let error = NbdError::from(one.payload.refused?);
            let refusal = Refusal { cookie: one.request.cookie, in_chunks: false, error };
            Some((one.request.len - one.payload.got, refusal))
        });
        let parser = &transmission.parser;
        (parser.partial(), dropped.or_else(|| parser.skipping()))
    }
}

impl Transmission {
    /// Continues where a connection of another process stopped.
    pub(super) fn resume(&mut self, resumption: &Resumption) {
        if let Some(ioprio) = resumption.ioprio {
            (self.binding, self.own_ioprio) = (ExportBinding { ioprio, ..self.binding }, true);
        }
        if let Some((bytes, refusal)) = resumption.skip {
            self.parser.skip(bytes, refusal);
        }
    }
}
