//! The receive path of a connection: one receive a turn, parsed into requests and bios.
//!
//! A payload is received into its own buffer where possible, otherwise copied there; the bio is submitted when the
//! payload is complete. Bytes that cannot be used in this turn wait in the stash, and a request without a buffer is
//! held; both come first in the next turn.
//!
//! Invariants:
//! - Nothing waits for a buffer before an incomplete payload: it has its own already, and the client's bytes alone return that. So a
//!   request is held, or a payload is being received, never both, and requests that passed a limit meanwhile stay parked. Otherwise
//!   connections with half a payload each could wait for one another's buffers.
//! - A bio is made only while the shard has a slot for it (`room`): whatever becomes ready without one waits as it is, a whole
//!   payload with its buffer. The shard would answer it with ENOMEM.
//! - A turn that returns [`ReceiveOutcome::Some`] has used bytes or submitted what was held, or nothing is left to do: the reactor
//!   calls again without a wait.

use std::io;

use headworks_core::{Bio, BioFlags, BioId, EXTENTS_BYTES, Input, Instant, IoError, Op};

use super::{
    BufferPolicy, Connection, ConnectionEnd, ExportBinding, HeldSince, LARGE_PART, LARGE_PAYLOAD,
    LARGE_TAIL, LENT_BYTES, Negotiation, Phase, ReceiveContext, ReceiveOutcome, Receiving,
    TURN_BIOS, TURN_BYTES, Transmission,
};
use crate::access::ClientOffer;
use crate::nbd::buffer_limits::BufferDemand;
use crate::nbd::transport::Transport;
use headworks::driver::{Buffer, Pool, Span};
use headworks_front::Transport as _;
use headworks_front::front_waits::FrontWaits;
use headworks_front::outgoing::SendOutcome;
use headworks_nbd::handshake::Outcome;
use headworks_nbd::transmission::{Parsed, ProtocolError, Request};

impl Connection {
    /// Receives once and submits bios for complete requests.
    pub fn receive(&mut self, context: &mut ReceiveContext<'_>) -> ReceiveOutcome {
        if std::mem::take(&mut self.is_deaf) && !matches!(self.phase, Phase::Handshake(_)) {
            // The client's time counts from now: what it sent before was not looked for.
            self.last_received = context.now;
        }
        let received = self.receive_once(context);
        self.is_deaf = matches!(
            received,
            ReceiveOutcome::Full
                | ReceiveOutcome::NoBuffer
                | ReceiveOutcome::NextTurn
                | ReceiveOutcome::Limited
                | ReceiveOutcome::Frozen
        );
        received
    }

    fn receive_once(&mut self, context: &mut ReceiveContext<'_>) -> ReceiveOutcome {
        if matches!(self.phase, Phase::Leaving | Phase::Dead) {
            return ReceiveOutcome::Nothing;
        }
        if context.frozen && self.waits_for_thaw() {
            return self.wait_for_thaw(context.now);
        }
        if self.has_passed()
            && let Some(stopped) = self.submit_passed(context)
        {
            return stopped;
        }
        // The payload being received has its buffer already.
        if !self.has_room() && self.payload_rest().is_none() {
            return ReceiveOutcome::Full;
        }
        if self.is_held_by_limit() && !self.holds_request() {
            return ReceiveOutcome::Limited;
        }
        if self.has_stash() || self.holds_request() || self.payload_is_whole() {
            return self.parse_kept(context);
        }
        let mut direct = self.payload_rest();
        let large = self.expects_large(direct);
        if large && *context.large_payloads == 0 {
            return ReceiveOutcome::NextTurn;
        }
        let mut tail = if large { LARGE_TAIL } else { context.scratch.len() };
        if let Some(rest) = direct.filter(|_| large) {
            let most = (*context.large_payloads).max(LARGE_PART);
            if most < rest.len() {
                // The rest of the payload waits for another turn, and so does what follows it.
                (direct, tail) = (Some(rest.part(0, most)), 0);
            }
        }
        let Some(transport) = &mut self.transport else {
            return ReceiveOutcome::Nothing;
        };
        let count = match transport.receive(direct, context.scratch, tail) {
            Ok(0) => return ReceiveOutcome::End(self.hang_up()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return ReceiveOutcome::Nothing;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                return ReceiveOutcome::Some;
            }
            Err(error) if is_hang_up(&error) => return ReceiveOutcome::End(self.hang_up()),
            // The error carries its message.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return ReceiveOutcome::End(ConnectionEnd::Fault(error.to_string()));
            }
            Err(error) => {
                return ReceiveOutcome::End(ConnectionEnd::Fault(format!(
                    "receiving failed: {error}"
                )));
            }
        };
        // The handshake has one time limit as a whole.
        if !matches!(self.phase, Phase::Handshake(_)) {
            self.last_received = context.now;
        }
        if large {
            *context.large_payloads = context.large_payloads.saturating_sub(count);
        }
        let placed = count.min(direct.map_or(0, Span::len));
        if placed > 0 {
            self.note_payload(placed);
        }
        let scratch = std::mem::take(&mut context.scratch);
        let received = self.parse_or_stash(&scratch[..count - placed], context);
        context.scratch = scratch;
        received
    }

    /// Whether the bounds allow another request, or another option of the handshake.
    #[must_use]
    pub fn has_room(&self) -> bool {
        if matches!(self.phase, Phase::Handshake(_)) {
            return self.outgoing.has_room_for_answers(self.limits.requests);
        }
        if self.refuses {
            let (_, dropped) = self.outgoing.dropped();
            return self.outgoing.replies() + dropped < self.limits.requests;
        }
        self.has_window_room()
    }

    /// Whether the bounds allow another request in flight.
    pub(super) fn has_window_room(&self) -> bool {
        // Dropped data count as if they were held: more of them would only be dropped, too.
        let (_, dropped) = self.outgoing.dropped();
        let submitted = self.window.used() + self.returned.len();
        let requests = submitted + self.outgoing.replies() + dropped + self.parked();
        requests < self.limits.requests && self.has_byte_room()
    }

    /// Whether the bounds allow another buffer.
    pub(super) fn has_byte_room(&self) -> bool {
        let ((dropped_bytes, _), (lent_bytes, _)) = (self.outgoing.dropped(), self.outgoing.lent());
        let held = self.held() + dropped_bytes + lent_bytes;
        held < self.limits.buffer_bytes && lent_bytes < LENT_BYTES
    }

    /// Bytes of the pool in use: for requests, and for unread replies.
    #[must_use]
    pub fn held(&self) -> usize {
        self.buffer_bytes + self.outgoing.held()
    }

    /// Bytes of the pool in use for requests without an answer.
    #[must_use]
    pub fn request_bytes(&self) -> usize {
        self.buffer_bytes
    }

    pub(super) fn holds_request(&self) -> bool {
        matches!(&self.phase, Phase::Transmission(transmission) if transmission.held.is_some())
    }

    /// Free part of the buffer of the payload that is being received.
    fn payload_rest(&self) -> Option<Span> {
        let Phase::Transmission(transmission) = &self.phase else {
            return None;
        };
        let receiving = transmission.receiving.as_ref()?;
        let buffer = receiving.buffer.as_ref()?;
        let rest = receiving.request.len as usize - receiving.filled;
        // SAFETY: `filled` is at most the request's length, which the buffer holds; nothing else uses the buffer yet.
        Some(unsafe { Span::new(buffer.base().add(receiving.filled), rest) })
    }

    /// Whether the client is to send more of a payload that has its buffer already.
    #[must_use]
    pub fn awaits_payload(&self) -> bool {
        self.payload_rest().is_some_and(|rest| !rest.is_empty())
    }

    /// Whether the payload of a write is being received or dropped.
    pub(super) fn payload_is_expected(&self) -> bool {
        matches!(&self.phase, Phase::Transmission(transmission) if transmission.receiving.is_some())
    }

    /// Whether a payload is complete, and waits for a bio slot or the end of a freeze.
    fn payload_is_whole(&self) -> bool {
        matches!(&self.phase, Phase::Transmission(transmission)
            if transmission.receiving.as_ref().is_some_and(Receiving::is_complete))
    }

    /// Whether the next bytes belong to a large payload, or follow one.
    fn expects_large(&self, direct: Option<Span>) -> bool {
        self.brings_large_payloads() || direct.is_some_and(|span| span.len() >= LARGE_PAYLOAD)
    }

    /// Goes on with what earlier turns kept, without receiving.
    fn parse_kept(&mut self, context: &mut ReceiveContext<'_>) -> ReceiveOutcome {
        let mut stash = std::mem::take(&mut self.stash);
        let is_held = self.holds_request() || self.payload_is_whole();
        let (used, received) = self.parse_bytes(&stash, context);
        stash.drain(..used);
        self.stash = stash;
        // Not in release builds: a thread that spins hurts less than a server that is gone.
        debug_assert!(
            received != ReceiveOutcome::Some
                || used > 0
                || is_held && !self.holds_request() && !self.payload_is_whole(),
            "a turn that is followed by another has done something"
        );
        received
    }

    /// Parses received bytes; bytes that cannot be used now go into the stash.
    fn parse_or_stash(&mut self, bytes: &[u8], context: &mut ReceiveContext<'_>) -> ReceiveOutcome {
        let (used, received) = self.parse_bytes(bytes, context);
        if !matches!(received, ReceiveOutcome::End(_)) {
            self.stash.extend_from_slice(&bytes[used..]);
        }
        received
    }

    fn parse_bytes(
        &mut self,
        bytes: &[u8],
        context: &mut ReceiveContext<'_>,
    ) -> (usize, ReceiveOutcome) {
        match self.phase {
            Phase::Handshake(_) => self.parse_handshake(bytes, context),
            _ => self.parse(bytes, context),
        }
    }

    fn parse_handshake(
        &mut self,
        bytes: &[u8],
        context: &mut ReceiveContext<'_>,
    ) -> (usize, ReceiveOutcome) {
        let Phase::Handshake(negotiation) = &mut self.phase else {
            return (0, ReceiveOutcome::Nothing);
        };
        let Negotiation { handshake, admission } = &mut **negotiation;
        if !admission.is_certified()
            && let Some(names) = self.transport.as_ref().and_then(Transport::peer_names)
        {
            admission.certify(names);
        }
        let offer = ClientOffer::new(context.exports, admission);
        let mut used = 0;
        loop {
            let mut out = Vec::new();
            let (count, outcome) = handshake.feed(&offer, &bytes[used..], &mut out);
            used += count;
            if !out.is_empty() {
                self.outgoing.header(|headers| headers.extend_from_slice(&out));
            }
            let received = match outcome {
                Outcome::Reply if self.outgoing.has_room_for_answers(self.limits.requests) => {
                    continue;
                }
                Outcome::Reply => ReceiveOutcome::Full,
                Outcome::NeedMore => ReceiveOutcome::Some,
                Outcome::Encrypt => self.encrypt(bytes.len() - used, context),
                Outcome::Ready { export, terms } => ReceiveOutcome::Chosen { export, terms },
                Outcome::Closed => ReceiveOutcome::End(ConnectionEnd::Goodbye),
                Outcome::Failed(sentence) => ReceiveOutcome::End(ConnectionEnd::Fault(sentence)),
            };
            return (used, received);
        }
    }

    /// Answers STARTTLS in the clear and encrypts everything after it. `early` bytes arrived after the request in the
    /// clear: they may come from an attacker in between.
    fn encrypt(&mut self, early: usize, context: &mut ReceiveContext<'_>) -> ReceiveOutcome {
        let fault = |sentence: String| ReceiveOutcome::End(ConnectionEnd::Fault(sentence));
        if early > 0 {
            return fault(format!("{early} unencrypted bytes followed the request for TLS"));
        }
        let (Some(transport), Some(acceptor)) = (&mut self.transport, self.acceptor.take()) else {
            return fault("TLS was negotiated but is not available".to_owned());
        };
        // The reply is short: a client whose socket does not take it does not read.
        match self.outgoing.send(transport, context.pool, &mut Vec::new()) {
            Ok(SendOutcome::All) => {}
            Ok(_) => return fault("the client does not read the handshake replies".to_owned()),
            Err(error) => return fault(format!("sending failed: {error}")),
        }
        match acceptor.session() {
            Ok(session) => transport.encrypt(session),
            Err(error) => return fault(error.to_string()),
        }
        ReceiveOutcome::Some
    }

    fn parse(&mut self, bytes: &[u8], context: &mut ReceiveContext<'_>) -> (usize, ReceiveOutcome) {
        let (mut used, mut bios, mut copied) = (0, 0, 0);
        loop {
            let Phase::Transmission(transmission) = &mut self.phase else {
                return (bytes.len(), ReceiveOutcome::Some);
            };
            if let Some(receiving) = &mut transmission.receiving {
                let count = receiving.fill(&bytes[used..]);
                (used, copied) = (used + count, copied + count);
                if !receiving.is_complete() {
                    return (used, ReceiveOutcome::Some);
                }
                if context.frozen && receiving.changes_volume() {
                    return (used, self.wait_for_thaw(context.now));
                }
                if !self.submit_received(context) {
                    return (used, ReceiveOutcome::NoBuffer);
                }
                bios += 1;
                continue;
            }
            if bios >= TURN_BIOS || copied >= TURN_BYTES {
                return (used, ReceiveOutcome::Some);
            }
            let has_slot = *context.room > 0 || self.refuses;
            let held = transmission.held.take_if(|_| has_slot);
            let mut waits = FrontWaits::default();
            let request = match held {
                Some(request) => {
                    waits = transmission.end_hold(context.now);
                    request
                }
                None if transmission.held.is_some() => {
                    transmission.begin_wait(context.now);
                    return (used, ReceiveOutcome::NoBuffer);
                }
                None if !self.has_room() => return (used, ReceiveOutcome::Full),
                None if !has_slot => return (used, ReceiveOutcome::NoBuffer),
                None => {
                    let Phase::Transmission(transmission) = &mut self.phase else {
                        continue;
                    };
                    let (count, parsed) = transmission.parser.parse(&bytes[used..]);
                    used += count;
                    match parsed {
                        Parsed::Request(request) => request,
                        Parsed::NeedMore => return (used, ReceiveOutcome::Some),
                        Parsed::Refused(refusal) => {
                            let replies = transmission.replies;
                            self.outgoing.header(|out| replies.refused(out, refusal));
                            continue;
                        }
                        Parsed::Disconnect => {
                            return (used, ReceiveOutcome::End(ConnectionEnd::Goodbye));
                        }
                        Parsed::End(error) => return (used, ReceiveOutcome::End(fault(error))),
                    }
                }
            };
            if let Some(gate) = &mut context.limits
                && held.is_none()
                && self.park(&request, context.now, gate)
            {
                if self.is_held_by_limit() {
                    return (used, ReceiveOutcome::Limited);
                }
                continue;
            }
            if context.frozen && request.op().is_write() {
                return (used, self.hold_frozen(request, waits, context.now));
            }
            if self.refuses && (*context.room == 0 || !self.has_window_room()) {
                self.refuse(request);
                bios += 1;
                continue;
            }
            let reads = if request.op() == Op::Read { request.len as usize } else { 0 };
            if reads >= LARGE_PAYLOAD && *context.large_reads == 0 {
                self.hold(request, waits);
                return (used, ReceiveOutcome::NextTurn);
            }
            if !self.admit(request, waits, context) {
                return (used, self.hold_for_buffer(request, waits, context.now));
            }
            // Data of reads will be copied, too, and count against the turn's share.
            (bios, copied) = (bios + 1, copied + reads);
            if reads >= LARGE_PAYLOAD {
                *context.large_reads = context.large_reads.saturating_sub(reads);
            }
        }
    }

    /// Keeps a parsed request for a later turn.
    pub(super) fn hold(&mut self, request: Request, waits: FrontWaits) {
        if let Phase::Transmission(transmission) = &mut self.phase {
            assert!(
                transmission.receiving.is_none(),
                "nothing is held before an incomplete payload"
            );
            (transmission.held, transmission.held_waits) = (Some(request), waits);
        }
    }

    /// Keeps a parsed request until there is a buffer for it.
    pub(super) fn hold_for_buffer(
        &mut self,
        request: Request,
        waits: FrontWaits,
        now: Instant,
    ) -> ReceiveOutcome {
        self.hold(request, waits);
        if let Phase::Transmission(transmission) = &mut self.phase {
            transmission.held_since = HeldSince::Buffer(now);
        }
        ReceiveOutcome::NoBuffer
    }

    /// Fails a request without a buffer or a bio, because its device does not answer; the payload of a write is received and
    /// dropped first.
    pub(super) fn refuse(&mut self, request: Request) {
        if let Phase::Transmission(transmission) = &mut self.phase
            && request.op() == Op::Write
        {
            transmission.receiving =
                Some(Receiving { buffer: None, request, filled: 0, waits: FrontWaits::default() });
            return;
        }
        self.answer_failure(request.op(), request.cookie, IoError::TimedOut);
    }

    /// Gives a request, which has had `waits`, its buffer and submits it, unless a payload comes first; false, and nothing
    /// is changed, if no buffer is free.
    pub(super) fn admit(
        &mut self,
        request: Request,
        waits: FrontWaits,
        context: &mut ReceiveContext<'_>,
    ) -> bool {
        let Phase::Transmission(transmission) = &mut self.phase else {
            return true;
        };
        let op = request.op();
        let held = self.buffer_bytes + self.outgoing.held();
        let from_cache = op == Op::Read && context.from_cache;
        if from_cache && self.cache_guess.expects_hit() {
            transmission.large = false;
            self.submit(&request, waits, None, context);
            return true;
        }
        if op == Op::Read && context.in_place {
            transmission.large = false;
            self.submit(&request, waits, None, context);
            return true;
        }
        let mut buffer = None;
        let len = op.buffer_len(request.len) as usize;
        if len > 0 {
            let stalled = op == Op::Read && self.outgoing.is_stalled(context.now);
            if may_take((held, len), stalled, context) {
                buffer = context.pool.try_take(len);
            }
            if buffer.is_none() {
                if from_cache {
                    // It needs none if it is cached; otherwise it comes back and waits for one.
                    transmission.large = false;
                    self.submit(&request, waits, None, context);
                    return true;
                }
                if self.refuses {
                    self.refuse(request);
                    return true;
                }
                return false;
            }
            if let (Some(device), Some(buffer)) = (&mut context.device, &buffer) {
                device.own += buffer.len();
                device.all += buffer.len();
            }
            if context.policy == BufferPolicy::Once {
                context.policy = BufferPolicy::Wait;
            }
        }
        self.buffer_bytes += buffer.as_ref().map_or(0, |buffer| buffer.len());
        transmission.large = op == Op::Write && request.len as usize >= LARGE_PAYLOAD;
        if op == Op::Write {
            transmission.receiving = Some(Receiving { buffer, request, filled: 0, waits });
        } else {
            self.submit(&request, waits, buffer, context);
        }
        true
    }

    /// Counts bytes of a payload that were received in its buffer. What parses the bytes behind them submits it.
    fn note_payload(&mut self, count: usize) {
        if let Phase::Transmission(transmission) = &mut self.phase
            && let Some(receiving) = &mut transmission.receiving
        {
            receiving.filled += count;
        }
    }

    /// Submits a whole payload, or answers a refused one; false if it must wait for a bio slot.
    fn submit_received(&mut self, context: &mut ReceiveContext<'_>) -> bool {
        let Phase::Transmission(transmission) = &mut self.phase else {
            return true;
        };
        let goes_on = |receiving: &Receiving| receiving.buffer.is_some() && !self.refuses;
        if *context.room == 0 && transmission.receiving.as_ref().is_some_and(goes_on) {
            transmission.begin_wait(context.now);
            return false;
        }
        let waits = transmission.end_hold(context.now);
        match transmission.receiving.take() {
            Some(Receiving { buffer: Some(buffer), request, waits: before, .. })
                if *context.room > 0 =>
            {
                self.submit(&request, before.and(waits), Some(buffer), context);
            }
            Some(Receiving { buffer, request, .. }) => {
                if let Some(buffer) = buffer {
                    self.return_buffer(buffer, context.pool);
                }
                self.answer_failure(request.op(), request.cookie, IoError::TimedOut);
            }
            None => {}
        }
        true
    }

    fn submit(
        &mut self,
        request: &Request,
        waits: FrontWaits,
        buffer: Option<Buffer>,
        context: &mut ReceiveContext<'_>,
    ) {
        let Phase::Transmission(transmission) = &self.phase else {
            return;
        };
        let ExportBinding { volume, export, ioprio, .. } = transmission.binding;
        let op = request.op();
        let status = op == Op::BlockStatus;
        if let Some(buffer) = buffer.as_ref().filter(|_| status) {
            // Cleared, so that nothing of an earlier use is reported.
            // SAFETY: the buffer is private and holds a list.
            unsafe { buffer.base().write_bytes(0, EXTENTS_BYTES as usize) };
        }
        let mut flags = request.bio_flags();
        if op == Op::Read && buffer.is_none() && !context.in_place {
            flags = flags.with(BioFlags::NO_BUFFER);
        }
        let Request { cookie, offset, len, .. } = *request;
        let sequence = self.window.insert(cookie, offset, len, op, buffer, context.now);
        if let Some(in_flight) = self.window.get(sequence).filter(|_| status) {
            in_flight.one_extent = request.bio_flags().contains(BioFlags::ONE_EXTENT);
        }
        if !waits.is_none()
            && let Some(in_flight) = self.window.get(sequence)
        {
            in_flight.front = waits.wait_times();
            in_flight.since = waits.began(in_flight.since);
        }
        *context.room = context.room.checked_sub(1).expect("a bio is made only with a slot for it");
        context.inputs.push(Input::Bio(Bio {
            id: BioId { connection: self.id, volume, export, sequence },
            offset,
            len,
            op,
            flags,
            ioprio,
        }));
    }
}

impl Receiving {
    /// Copies the bytes that belong to the payload; returns their number.
    fn fill(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.request.len as usize - self.filled);
        if let Some(buffer) = &self.buffer {
            // SAFETY: the buffer is ours alone while the payload comes in, and holds `len` bytes.
            unsafe {
                let base = buffer.base().add(self.filled);
                base.copy_from_nonoverlapping(bytes.as_ptr(), count);
            }
        }
        self.filled += count;
        count
    }

    fn is_complete(&self) -> bool {
        self.filled == self.request.len as usize
    }

    /// Whether it is complete, and goes to the device: one without a buffer is refused.
    pub(super) fn changes_volume(&self) -> bool {
        self.is_complete() && self.buffer.is_some()
    }
}

impl Transmission {
    /// Begins a wait for a bio slot, of the held request or of a whole payload, unless it waits already.
    fn begin_wait(&mut self, now: Instant) {
        match self.held_since {
            HeldSince::Buffer(_) => {}
            HeldSince::Frozen(_) => {
                self.held_waits = self.end_hold(now);
                self.held_since = HeldSince::Buffer(now);
            }
            HeldSince::Turn => self.held_since = HeldSince::Buffer(now),
        }
    }

    /// The waits of the held request, or of a whole payload, which is tried again.
    pub(super) fn end_hold(&mut self, now: Instant) -> FrontWaits {
        let waits = std::mem::take(&mut self.held_waits);
        match std::mem::take(&mut self.held_since) {
            HeldSince::Turn => waits,
            HeldSince::Buffer(since) => waits.and_buffer(now.since(since)),
            HeldSince::Frozen(since) => waits.and_limits(now.since(since)),
        }
    }
}

/// Whether a connection that holds `held` bytes may take a buffer for `len` bytes.
pub(super) fn may_take(
    (held, len): (usize, usize),
    stalled: bool,
    context: &ReceiveContext<'_>,
) -> bool {
    let has_turn = context.policy != BufferPolicy::Wait;
    Pool::block_bytes(len).is_some_and(|block| {
        let device = context.device;
        let demand = BufferDemand { held, block, has_turn, stalled, device };
        context.buffer_limits.admits(context.pool.taken(), demand)
    })
}

fn fault(error: ProtocolError) -> ConnectionEnd {
    ConnectionEnd::Fault(error.to_string())
}

fn is_hang_up(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::buffer_limits::BufferLimits;
    use crate::nbd::connection::ConnectionLimits;
    use headworks::driver::Pool;
    use headworks_nbd::ExportInfo;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    /// Unread long lists are bounded by one list, and a reader gets all of them.
    #[test]
    fn handshake_replies_are_bounded() {
        const ASKED: usize = 100;
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let seconds = 10_000_000_000;
        let limits = ConnectionLimits {
            requests: 128,
            buffer_bytes: 1 << 20,
            handshake_ns: seconds,
            stall_ns: seconds,
        };
        let mut connection = Connection::new(ours.into(), "test".into(), limits, Instant(0));
        let name = "n".repeat(100);
        let exports = vec![ExportInfo { name, ..ExportInfo::default() }; 300];
        let (mut pool, mut spans) = (Pool::new(1 << 20).unwrap(), Vec::new());
        theirs.write_all(&3_u32.to_be_bytes()).unwrap();
        theirs.write_all(&b"IHAVEOPT\0\0\0\x03\0\0\0\0".repeat(ASKED)).unwrap();
        let list = 300 * 124 + 20;
        let (mut most, mut got) = (0, vec![0; 18 + ASKED * list]);
        let mut at = 0;
        while at < got.len() {
            let received = connection.receive(&mut ReceiveContext {
                now: Instant(0),
                scratch: &mut [0; 4096],
                pool: &mut pool,
                policy: BufferPolicy::Free,
                from_cache: false,
                in_place: false,
                buffer_limits: BufferLimits::new(1 << 20, 1),
                device: None,
                frozen: false,
                limits: None,
                exports: &exports,
                room: &mut 1,
                large_reads: &mut 0,
                large_payloads: &mut 0,
                inputs: &mut Vec::new(),
            });
            assert!(!matches!(received, ReceiveOutcome::End(_)), "{received:?}");
            most = most.max(connection.outgoing.kept());
            connection.send(Instant(0), &mut pool, &mut spans).unwrap();
            theirs.set_nonblocking(true).unwrap();
            at += theirs.read(&mut got[at..]).unwrap_or(0);
        }
        assert!(most < 3 * list, "{most} bytes waited");
        assert!(got.ends_with(&[0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0]), "the last answer is whole");
    }

    const SECOND: u64 = 1_000_000_000;

    /// A connection in transmission, its client's end, and what it needs to receive.
    struct Rig {
        connection: Connection,
        theirs: UnixStream,
        pool: Pool,
        inputs: Vec<Input>,
    }

    impl Rig {
        fn new() -> Self {
            let (ours, theirs) = UnixStream::pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            let limits = ConnectionLimits {
                requests: 1024,
                buffer_bytes: 1 << 20,
                handshake_ns: 10 * SECOND,
                stall_ns: 3 * SECOND,
            };
            let mut connection = Connection::new(ours.into(), "test".into(), limits, Instant(0));
            let export = ExportInfo { size: 1 << 30, ..ExportInfo::default() };
            let terms = headworks_nbd::Negotiated::default();
            connection.begin(Instant(0), ExportBinding::default(), &export, terms);
            let mut rig =
                Self { connection, theirs, pool: Pool::new(1 << 20).unwrap(), inputs: Vec::new() };
            rig.connection.send(Instant(0), &mut rig.pool, &mut Vec::new()).unwrap();
            rig
        }

        fn receive(&mut self, now: u64, room: u32) -> ReceiveOutcome {
            self.connection.receive(&mut ReceiveContext {
                now: Instant(now),
                scratch: &mut vec![0; 256 << 10],
                pool: &mut self.pool,
                policy: BufferPolicy::Free,
                from_cache: false,
                in_place: false,
                buffer_limits: BufferLimits::new(1 << 20, 1),
                device: None,
                frozen: false,
                limits: None,
                exports: &Vec::<headworks_nbd::ExportInfo>::new(),
                room: &mut { room },
                large_reads: &mut (1 << 20),
                large_payloads: &mut (1 << 20),
                inputs: &mut self.inputs,
            })
        }
    }

    fn read_header(cookie: u64) -> [u8; 28] {
        let mut header = [0; 28];
        header[..4].copy_from_slice(&0x2560_9513_u32.to_be_bytes());
        header[8..16].copy_from_slice(&cookie.to_be_bytes());
        header[24..].copy_from_slice(&4096_u32.to_be_bytes());
        header
    }

    /// The rest of a header arrives while the shard has no bio slot: the client is not closed for it, nor when there is one
    /// again; a client that sends nothing is.
    #[test]
    fn header_that_waits_for_a_bio_slot_is_no_stall() {
        let mut rig = Rig::new();
        rig.theirs.write_all(&read_header(1)[..20]).unwrap();
        assert_eq!(rig.receive(SECOND, 8), ReceiveOutcome::Some);
        assert_eq!(rig.connection.deadline(), Some(Instant(4 * SECOND)), "it is to send the rest");
        rig.theirs.write_all(&read_header(1)[20..]).unwrap();
        assert_eq!(rig.receive(2 * SECOND, 0), ReceiveOutcome::NoBuffer);
        assert_eq!(rig.connection.deadline(), None, "the shard has no slot");
        assert_eq!(rig.receive(60 * SECOND, 0), ReceiveOutcome::NoBuffer);
        assert_eq!((rig.connection.deadline(), rig.inputs.len()), (None, 0));
        rig.theirs.write_all(&read_header(2)[..20]).unwrap();
        assert_eq!(rig.receive(70 * SECOND, 8), ReceiveOutcome::Some);
        assert_eq!(rig.inputs.len(), 1, "the first request is complete");
        assert_eq!(rig.receive(70 * SECOND, 8), ReceiveOutcome::Some);
        assert_eq!(rig.connection.deadline(), Some(Instant(73 * SECOND)));
    }

    fn write_header(cookie: u64, len: u32) -> [u8; 28] {
        let mut header = read_header(cookie);
        header[7] = 1;
        header[24..].copy_from_slice(&len.to_be_bytes());
        header
    }

    /// A rig with a write, of which all but its last half has arrived.
    fn rig_with_half_a_write(len: usize) -> Rig {
        let mut rig = Rig::new();
        rig.theirs.write_all(&write_header(1, len as u32)).unwrap();
        rig.theirs.write_all(&vec![7; len / 2]).unwrap();
        while rig.receive(SECOND, 8) == ReceiveOutcome::Some {}
        assert!(rig.connection.awaits_payload());
        rig
    }

    /// A payload becomes whole while all bio slots are taken: it keeps its buffer and waits for one, whether it was received in
    /// its buffer or copied there.
    #[test]
    fn whole_payload_waits_for_a_bio_slot() {
        for len in [4096, 64 << 10] {
            let mut rig = rig_with_half_a_write(len);
            let held = rig.connection.held();
            rig.theirs.write_all(&vec![7; len - len / 2]).unwrap();
            assert_eq!(rig.receive(2 * SECOND, 0), ReceiveOutcome::NoBuffer);
            assert_eq!((rig.inputs.len(), rig.connection.held()), (0, held));
            assert_eq!(rig.connection.deadline(), None, "the client has done its part");
            assert_eq!(rig.receive(60 * SECOND, 0), ReceiveOutcome::NoBuffer);
            rig.theirs.write_all(&read_header(2)).unwrap();
            assert_eq!(rig.receive(62 * SECOND, 1), ReceiveOutcome::NoBuffer, "for the read");
            assert!(matches!(rig.inputs[..], [Input::Bio(bio)] if bio.op == Op::Write));
            let result = (Ok(()), false, headworks_core::ReplyStage::Final);
            let write = rig.connection.reply(Instant(62 * SECOND), 1, result, &mut rig.pool);
            let buffer_wait = headworks_core::WaitTimes::of_front(0, 60 * SECOND);
            assert_eq!(write.map(|write| write.front), Some(buffer_wait));
            assert_eq!((rig.pool.taken(), rig.connection.held()), (0, 0));
        }
    }

    /// The device of a whole payload ceases to answer while all bio slots are taken: the write fails, and its buffer is returned.
    #[test]
    fn whole_payload_of_a_stuck_device_fails_without_a_bio_slot() {
        let mut rig = rig_with_half_a_write(4096);
        rig.theirs.write_all(&[7; 2048]).unwrap();
        assert_eq!(rig.receive(2 * SECOND, 0), ReceiveOutcome::NoBuffer);
        rig.connection.set_refuses(true);
        assert_eq!(rig.receive(3 * SECOND, 0), ReceiveOutcome::Some);
        assert_eq!((rig.inputs.len(), rig.pool.taken(), rig.connection.held()), (0, 0, 0));
        assert!(rig.connection.has_outgoing(), "an error");
    }

    /// A held request, too, waits for a slot that another one has taken meanwhile.
    #[test]
    fn held_request_waits_for_a_bio_slot() {
        let mut rig = Rig::new();
        let taken = [1 << 19, 1 << 18].map(|len| rig.pool.try_take(len).unwrap());
        let mut read = read_header(1);
        read[24..].copy_from_slice(&(256_u32 << 10).to_be_bytes());
        rig.theirs.write_all(&read).unwrap();
        assert_eq!(rig.receive(SECOND, 8), ReceiveOutcome::NoBuffer);
        taken.into_iter().for_each(|buffer| rig.pool.put(buffer));
        assert_eq!(rig.receive(2 * SECOND, 0), ReceiveOutcome::NoBuffer);
        assert_eq!(rig.inputs.len(), 0);
        rig.receive(3 * SECOND, 1);
        assert_eq!(rig.inputs.len(), 1);
    }

    #[test]
    fn received_bytes_keep_no_memory_once_they_are_parsed() {
        let mut rig = Rig::new();
        let headers: Vec<u8> = (0..500).flat_map(read_header).collect();
        rig.theirs.write_all(&headers).unwrap();
        rig.receive(SECOND, 1000);
        rig.connection.release_idle_memory();
        assert!(rig.connection.stash.capacity() >= 8192, "what is not parsed stays");
        for _ in 0..20 {
            rig.receive(SECOND, 1000);
            for sequence in 0..=rig.inputs.len() as u64 {
                let result = (
                    Err(headworks_core::IoError::Medium),
                    false,
                    headworks_core::ReplyStage::Final,
                );
                rig.connection.reply(Instant(SECOND), sequence, result, &mut rig.pool);
            }
        }
        assert_eq!(rig.inputs.len(), 500);
        rig.connection.release_idle_memory();
        assert_eq!(rig.connection.stash.capacity(), 0);
    }
}
