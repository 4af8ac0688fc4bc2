//! The receive path of a connection: one receive a turn, parsed into requests and bios.
//!
//! A payload is received into its own block where possible, otherwise copied there; the bio is submitted when the payload is
//! complete. Bytes that cannot be used in this turn wait in the stash; a request that cannot go on waits in one list
//! ([`Waiting`](headworks_front::Waiting)), with its reason. Both come first in the next turn.
//!
//! ```text
//!   bytes --> header --small, whole, nothing concerns it--> bio                      (`submit_at_once`)
//!               `--> list --`step`: `admission` of each, from the front--> bio
//!                      `-- the last one waits for the client: its payload is received, whatever the others wait for
//! ```
//!
//! Invariants:
//! - An incomplete payload is always received further: it has its block already, and the client's bytes alone return that. Otherwise
//!   connections with half a payload each could wait for one another's buffers.
//! - Headers are read only while every request of the list waits for a limit and lets others pass.
//! - A turn that returns [`ReceiveOutcome::Worked`] has used bytes or moved a request, or nothing is left to do: the reactor
//!   calls again without a wait.

use std::io;

use super::admission::read_len;
use super::{
    Connection, ConnectionEnd, LARGE_PART, LARGE_PAYLOAD, LARGE_TAIL, LENT_BYTES, Negotiation,
    Phase, ReceiveOutcome, Shares, TURN_BIOS, TURN_BYTES,
};
use crate::access::ClientOffer;
use crate::nbd::transport::Transport;
use headworks::driver::Span;
use headworks_front::outgoing::SendOutcome;
use headworks_front::{FrontRequest, Origin, Transport as _, WaitsFor};
use headworks_nbd::handshake::Outcome;
use headworks_nbd::transmission::{Parsed, ProtocolError};

/// Which waiting requests are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tried {
    /// Reads that the cache returned.
    Again,
    /// All.
    All,
}

/// What one receive may still do.
struct TurnQuota {
    bios: usize,
    bytes: usize,
    /// A request was submitted or has got its block.
    moved: bool,
}

impl TurnQuota {
    fn new() -> Self {
        Self { bios: TURN_BIOS, bytes: TURN_BYTES, moved: false }
    }

    fn count(&mut self, bios: usize, bytes: usize) {
        self.bios -= bios;
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    fn is_over(&self) -> bool {
        self.bios == 0 || self.bytes == 0
    }
}

/// What a connection may receive after its waiting requests were tried.
enum Stream {
    /// Headers.
    Open,
    /// The rest of a payload.
    Payload,
    /// The same and more in the next turn.
    NextTurn,
    /// Nothing: a request waits.
    Stopped(WaitsFor),
}

impl Connection {
    /// Receives once and submits bios for complete requests.
    pub fn receive(&mut self, shares: &mut Shares<'_>) -> ReceiveOutcome {
        let waited = std::mem::take(&mut self.stopped_by);
        if waited != WaitsFor::Nothing && !matches!(self.phase, Phase::Handshake(_)) {
            // The client's time counts from now: what it sent before was not looked for.
            self.last_received = shares.now;
        }
        let received = self.receive_once(shares);
        if let ReceiveOutcome::Waits(what) = received {
            self.stopped_by = what;
        }
        received
    }

    /// What it waits for before anything is read from the client; `Nothing` if it is read from.
    #[must_use]
    pub fn stopped_by(&self) -> WaitsFor {
        self.stopped_by
    }

    /// Whether a request of it waits for something, or the connection does.
    #[must_use]
    pub fn waits_for(&self, what: WaitsFor) -> bool {
        self.stopped_by == what || self.waiting.is_waiting_for(what)
    }

    /// Whether requests wait to be submitted.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn receive_once(&mut self, shares: &mut Shares<'_>) -> ReceiveOutcome {
        if matches!(self.phase, Phase::Leaving | Phase::Dead) {
            return match self.step(&mut TurnQuota::new(), shares, Tried::All) {
                Stream::Stopped(what) => ReceiveOutcome::Waits(what),
                _ => ReceiveOutcome::Idle,
            };
        }
        if matches!(self.phase, Phase::Handshake(_)) && !self.has_room() {
            return ReceiveOutcome::Waits(WaitsFor::Window);
        }
        self.shorten_payload(shares.window);
        if (self.has_stash() || self.can_step())
            && let Some(received) = self.parse_kept(shares)
        {
            return received;
        }
        if !self.has_room() && !self.awaits_payload() {
            return ReceiveOutcome::Waits(WaitsFor::Window);
        }
        if let Some(limit) = self.waiting.stops_for_limit() {
            return ReceiveOutcome::Waits(limit);
        }
        self.receive_bytes(shares)
    }

    fn receive_bytes(&mut self, shares: &mut Shares<'_>) -> ReceiveOutcome {
        let mut direct = self.payload_rest();
        let large = self.expects_large(direct);
        if large && shares.turn.large_payloads == 0 {
            return ReceiveOutcome::Waits(WaitsFor::Turn);
        }
        let mut tail = if large { LARGE_TAIL } else { shares.scratch.len() };
        if let Some(rest) = direct.filter(|_| large) {
            let most = shares.turn.large_payloads.max(LARGE_PART);
            if most < rest.len() {
                // The rest of the payload waits for another turn, and so does what follows it.
                (direct, tail) = (Some(rest.part(0, most)), 0);
            }
        }
        let Some(transport) = &mut self.transport else {
            return ReceiveOutcome::Idle;
        };
        let count = match transport.receive(direct, shares.scratch, tail) {
            Ok(0) => return ReceiveOutcome::End(self.hang_up()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if self.has_incomplete_payload() && self.is_silent(shares.now) {
                    self.quick = false;
                    self.cut_payload(shares.pool);
                }
                return ReceiveOutcome::Idle;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                return ReceiveOutcome::Worked;
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
            self.last_received = shares.now;
        }
        if large {
            shares.turn.large_payloads = shares.turn.large_payloads.saturating_sub(count);
        }
        shares.turn.received += count;
        let placed = count.min(direct.map_or(0, Span::len));
        if placed > 0
            && let Some(last) = self.waiting.last_mut()
        {
            last.payload.got += placed as u32;
        }
        let scratch = std::mem::take(&mut shares.scratch);
        let received = self.parse_or_stash(&scratch[..count - placed], shares);
        shares.scratch = scratch;
        received
    }

    /// Whether the bounds allow another request, or another option of the handshake.
    #[must_use]
    pub fn has_room(&self) -> bool {
        if matches!(self.phase, Phase::Handshake(_)) {
            return self.outgoing.has_room_for_answers(self.limits.requests);
        }
        self.requests_left() > 0 && (self.refuses || self.has_byte_room())
    }

    /// Whether a connection that is at its own bound can go on.
    #[must_use]
    pub fn window_opens(&self) -> bool {
        self.has_room() || self.waiting.is_waiting_for(WaitsFor::Window) && self.has_byte_room()
    }

    /// Requests that the client may begin.
    fn requests_left(&self) -> usize {
        // Dropped data count as if they were held: more of them would only be dropped, too.
        let (_, dropped) = self.outgoing.dropped();
        let unsent = self.outgoing.replies() + dropped;
        let begun = if self.refuses { 0 } else { self.window.used() + self.waiting.len() };
        self.limits.requests.saturating_sub(unsent + begun)
    }

    /// Whether the bounds allow another request in flight.
    pub(super) fn has_window_room(&self) -> bool {
        let (_, dropped) = self.outgoing.dropped();
        let begun = self.window.used() + self.waiting.len();
        begun + self.outgoing.replies() + dropped < self.limits.requests && self.has_byte_room()
    }

    /// Whether the bounds allow another buffer.
    pub(super) fn has_byte_room(&self) -> bool {
        self.buffer_bytes < self.bytes_left()
    }

    /// Most bytes of buffers for requests, as the send queue is.
    fn bytes_left(&self) -> usize {
        let ((dropped_bytes, _), (lent_bytes, _)) = (self.outgoing.dropped(), self.outgoing.lent());
        if lent_bytes >= LENT_BYTES {
            return 0;
        }
        let unsent = self.outgoing.held() + dropped_bytes + lent_bytes;
        self.limits.buffer_bytes.saturating_sub(unsent)
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

    /// Free part of the block of the payload that is being received.
    fn payload_rest(&self) -> Option<Span> {
        self.waiting.last().filter(|last| last.awaits_client())?.rest()
    }

    /// Whether the client is to send more of a payload.
    #[must_use]
    pub fn awaits_payload(&self) -> bool {
        self.waiting.last().is_some_and(FrontRequest::awaits_client)
    }

    /// Whether the payload of a write has begun, and the write is not in the shard.
    pub(super) fn has_payload(&self) -> bool {
        self.waiting.last().is_some_and(FrontRequest::has_payload)
    }

    /// Whether a waiting request can be tried.
    fn can_step(&self) -> bool {
        let others = self.waiting.has_others();
        others
            && (!self.awaits_payload() || self.waiting.all().count() > self.waiting.limited() + 1)
    }

    /// Whether the next bytes belong to a large payload, or follow one.
    fn expects_large(&self, direct: Option<Span>) -> bool {
        self.brings_large_payloads() || direct.is_some_and(|span| span.len() >= LARGE_PAYLOAD)
    }

    /// Goes on with what earlier turns kept, without receiving; none if the client's bytes are all that it needs.
    fn parse_kept(&mut self, shares: &mut Shares<'_>) -> Option<ReceiveOutcome> {
        let mut stash = std::mem::take(&mut self.stash);
        let mut quota = TurnQuota::new();
        let (used, received) = self.parse_bytes(&stash, &mut quota, shares);
        stash.drain(..used);
        self.stash = stash;
        let worked = used > 0 || quota.moved || received != ReceiveOutcome::Worked;
        // Not in release builds: a thread that spins hurts less than a server that is gone.
        debug_assert!(
            worked || self.stash.is_empty(),
            "bytes that wait are used, or wait for something"
        );
        worked.then_some(received)
    }

    /// Parses received bytes; bytes that cannot be used now go into the stash.
    fn parse_or_stash(&mut self, bytes: &[u8], shares: &mut Shares<'_>) -> ReceiveOutcome {
        let (used, received) = self.parse_bytes(bytes, &mut TurnQuota::new(), shares);
        if !matches!(received, ReceiveOutcome::End(_)) {
            self.stash.extend_from_slice(&bytes[used..]);
        }
        received
    }

    fn parse_bytes(
        &mut self,
        bytes: &[u8],
        quota: &mut TurnQuota,
        shares: &mut Shares<'_>,
    ) -> (usize, ReceiveOutcome) {
        match self.phase {
            Phase::Handshake(_) => self.parse_handshake(bytes, shares),
            _ => self.parse(bytes, quota, shares),
        }
    }

    fn parse_handshake(
        &mut self,
        bytes: &[u8],
        shares: &mut Shares<'_>,
    ) -> (usize, ReceiveOutcome) {
        let Phase::Handshake(negotiation) = &mut self.phase else {
            return (0, ReceiveOutcome::Idle);
        };
        let Negotiation { handshake, admission } = &mut **negotiation;
        if !admission.is_certified()
            && let Some(names) = self.transport.as_ref().and_then(Transport::peer_names)
        {
            admission.certify(names);
        }
        let offer = ClientOffer::new(shares.exports, admission);
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
                Outcome::Reply => ReceiveOutcome::Waits(WaitsFor::Window),
                Outcome::NeedMore => ReceiveOutcome::Worked,
                Outcome::Encrypt => self.encrypt(bytes.len() - used, shares),
                Outcome::Ready { export, terms } => ReceiveOutcome::Chosen { export, terms },
                Outcome::Closed => ReceiveOutcome::End(ConnectionEnd::Goodbye),
                Outcome::Failed(sentence) => ReceiveOutcome::End(ConnectionEnd::Fault(sentence)),
            };
            return (used, received);
        }
    }

    /// Answers STARTTLS in the clear and encrypts everything after it. `early` bytes arrived after the request in the
    /// clear: they may come from an attacker in between.
    fn encrypt(&mut self, early: usize, shares: &mut Shares<'_>) -> ReceiveOutcome {
        let fault = |sentence: String| ReceiveOutcome::End(ConnectionEnd::Fault(sentence));
        if early > 0 {
            return fault(format!("{early} unencrypted bytes followed the request for TLS"));
        }
        let (Some(transport), Some(acceptor)) = (&mut self.transport, self.acceptor.take()) else {
            return fault("TLS was negotiated but is not available".to_owned());
        };
        // The reply is short: a client whose socket does not take it does not read.
        match self.outgoing.send(transport, shares.pool, &mut Vec::new()) {
            Ok(SendOutcome::All) => {}
            Ok(_) => return fault("the client does not read the handshake replies".to_owned()),
            Err(error) => return fault(format!("sending failed: {error}")),
        }
        match acceptor.session() {
            Ok(session) => transport.encrypt(session),
            Err(error) => return fault(error.to_string()),
        }
        ReceiveOutcome::Worked
    }

    fn parse(
        &mut self,
        bytes: &[u8],
        quota: &mut TurnQuota,
        shares: &mut Shares<'_>,
    ) -> (usize, ReceiveOutcome) {
        let (mut used, mut left) = (0, self.requests_left());
        let bytes_left = if self.refuses { usize::MAX } else { self.bytes_left() };
        let is_gated = shares.limits.is_some() || shares.frozen || self.refuses;
        loop {
            if self.waiting.has_others() {
                let filled = self.fill(&bytes[used..]);
                used += filled;
                quota.count(0, filled);
                match self.step(quota, shares, Tried::All) {
                    Stream::Open => {}
                    Stream::Payload if used < bytes.len() => continue,
                    Stream::Payload | Stream::NextTurn => return (used, ReceiveOutcome::Worked),
                    Stream::Stopped(what) => return (used, ReceiveOutcome::Waits(what)),
                }
            } else if let Some(limit) = self.waiting.stops_for_limit() {
                return (used, ReceiveOutcome::Waits(limit));
            }
            if quota.is_over() {
                return (used, ReceiveOutcome::Worked);
            }
            if left == 0 || self.buffer_bytes >= bytes_left {
                return (used, ReceiveOutcome::Waits(WaitsFor::Window));
            }
            let Phase::Transmission(transmission) = &mut self.phase else {
                return (bytes.len(), ReceiveOutcome::Worked);
            };
            let (count, parsed) = transmission.parser.parse(&bytes[used..]);
            used += count;
            let request = match parsed {
                Parsed::Request(request) => request,
                Parsed::NeedMore => return (used, ReceiveOutcome::Worked),
                Parsed::Refused(refusal) => {
                    let replies = transmission.replies;
                    self.outgoing.header(|out| replies.refused(out, refusal));
                    left -= 1;
                    continue;
                }
                Parsed::Disconnect => return (used, ReceiveOutcome::End(ConnectionEnd::Goodbye)),
                Parsed::End(error) => return (used, ReceiveOutcome::End(fault(error))),
            };
            left -= 1;
            if !is_gated && let Some(count) = self.submit_at_once(&request, &bytes[used..], shares)
            {
                used += count;
                // Data of reads will be copied, too, and count against the turn's share.
                quota.count(1, count.max(read_len(&request)));
                continue;
            }
            self.waiting.push(FrontRequest::new(request, Origin::Client, shares.now));
        }
    }

    /// Takes bytes of the payload that is being received; returns their number.
    fn fill(&mut self, bytes: &[u8]) -> usize {
        match self.waiting.last_mut() {
            Some(last) if last.awaits_client() => last.fill(bytes),
            _ => 0,
        }
    }

    /// Tries the waiting requests in their order. After one that must wait only a whole payload is tried, which has its block.
    fn step(&mut self, quota: &mut TurnQuota, shares: &mut Shares<'_>, tried: Tried) -> Stream {
        let (mut place, mut stopped) = (self.waiting.first_due(), None);
        while let Some(one) = self.waiting.get(place) {
            let is_due = one.limited().is_none()
                && !one.awaits_client()
                // What is received has its memory, or its part of what is guaranteed.
                && (stopped.is_none() || one.has_payload())
                && (tried == Tried::All || one.origin == Origin::Again);
            if !is_due {
                place += 1;
                continue;
            }
            if quota.bios == 0 {
                return Stream::NextTurn;
            }
            let Some(mut one) = self.waiting.take(place) else { break };
            let given = one.payload.given;
            let what = self.admission(&mut one, shares);
            quota.moved |= what == WaitsFor::Nothing || one.payload.given > given;
            if what == WaitsFor::Nothing {
                quota.count(1, read_len(&one.request));
                continue;
            }
            one.wait(what, shares.now);
            self.waiting.put_back(place, one);
            place += 1;
            if !matches!(what, WaitsFor::Client | WaitsFor::Limit(_)) {
                stopped.get_or_insert(what);
            }
        }
        match (stopped, self.waiting.stops_for_limit()) {
            _ if self.awaits_payload() => Stream::Payload,
            (Some(what), _) | (None, Some(what)) => Stream::Stopped(what),
            (None, None) => Stream::Open,
        }
    }

    /// Submits returned reads again; false if one must wait. Nothing is received.
    pub fn resubmit(&mut self, shares: &mut Shares<'_>) -> bool {
        self.step(&mut TurnQuota { bios: usize::MAX, ..TurnQuota::new() }, shares, Tried::Again);
        self.waiting.again() == 0
    }

    /// Submits what has passed its limits before the connection leaves; what must wait is dropped.
    pub fn submit_before_leaving(&mut self, shares: &mut Shares<'_>) {
        self.step(&mut TurnQuota { bios: usize::MAX, ..TurnQuota::new() }, shares, Tried::All);
    }
}

fn fault(error: ProtocolError) -> ConnectionEnd {
    ConnectionEnd::Fault(error.to_string())
}

fn is_hang_up(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::super::bench::Bench;
    use super::super::{ConnectionLimits, ExportBinding};
    use super::*;
    use headworks_core::{Input, Instant, Op};
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
        let (mut bench, mut spans) = (Bench::new(1 << 20, 1), Vec::new());
        bench.exports = exports;
        theirs.write_all(&3_u32.to_be_bytes()).unwrap();
        theirs.write_all(&b"IHAVEOPT\0\0\0\x03\0\0\0\0".repeat(ASKED)).unwrap();
        let list = 300 * 124 + 20;
        let (mut most, mut got) = (0, vec![0; 18 + ASKED * list]);
        let mut at = 0;
        while at < got.len() {
            let received = bench.receive(&mut connection, 0, None);
            assert!(!matches!(received, ReceiveOutcome::End(_)), "{received:?}");
            most = most.max(connection.outgoing.kept());
            connection.send(Instant(0), &mut bench.pool, &mut spans).unwrap();
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
        bench: Bench,
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
            let mut rig = Self { connection, theirs, bench: Bench::new(1 << 20, 0) };
            rig.connection.send(Instant(0), &mut rig.bench.pool, &mut Vec::new()).unwrap();
            rig
        }

        fn receive(&mut self, now: u64, room: u32) -> ReceiveOutcome {
            self.bench.room = room;
            self.bench.receive(&mut self.connection, now, None)
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
        assert_eq!(rig.receive(SECOND, 8), ReceiveOutcome::Worked);
        assert_eq!(rig.connection.deadline(), Some(Instant(4 * SECOND)), "it is to send the rest");
        rig.theirs.write_all(&read_header(1)[20..]).unwrap();
        assert_eq!(rig.receive(2 * SECOND, 0), ReceiveOutcome::Waits(WaitsFor::Room));
        assert_eq!(rig.connection.deadline(), None, "the shard has no slot");
        assert_eq!(rig.receive(60 * SECOND, 0), ReceiveOutcome::Waits(WaitsFor::Room));
        assert_eq!((rig.connection.deadline(), rig.bench.inputs.len()), (None, 0));
        rig.theirs.write_all(&read_header(2)[..20]).unwrap();
        assert_eq!(rig.receive(70 * SECOND, 8), ReceiveOutcome::Worked);
        assert_eq!(rig.bench.inputs.len(), 1, "the first request is complete");
        assert_eq!(rig.receive(70 * SECOND, 8), ReceiveOutcome::Worked);
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
        while rig.receive(SECOND, 8) == ReceiveOutcome::Worked {}
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
            assert_eq!(rig.receive(2 * SECOND, 0), ReceiveOutcome::Waits(WaitsFor::Room));
            assert_eq!((rig.bench.inputs.len(), rig.connection.held()), (0, held));
            assert_eq!(rig.connection.deadline(), None, "the client has done its part");
            assert_eq!(rig.receive(60 * SECOND, 0), ReceiveOutcome::Waits(WaitsFor::Room));
            rig.theirs.write_all(&read_header(2)).unwrap();
            assert_eq!(rig.receive(62 * SECOND, 1), ReceiveOutcome::Worked);
            let read = rig.receive(62 * SECOND, 0);
            assert_eq!(read, ReceiveOutcome::Waits(WaitsFor::Room), "for the read");
            assert!(matches!(rig.bench.inputs[..], [Input::Bio(bio)] if bio.op == Op::Write));
            let result = (Ok(()), false, headworks_core::ReplyStage::Final);
            let write = rig.connection.reply(Instant(62 * SECOND), 1, result, &mut rig.bench.pool);
            let buffer_wait = headworks_core::WaitTimes::of_front(0, 60 * SECOND);
            assert_eq!(write.map(|write| write.front), Some(buffer_wait));
            assert_eq!((rig.bench.pool.taken(), rig.connection.held()), (0, 0));
        }
    }

    /// The device of a whole payload ceases to answer while all bio slots are taken: the write fails, and its buffer is returned.
    #[test]
    fn whole_payload_of_a_stuck_device_fails_without_a_bio_slot() {
        let mut rig = rig_with_half_a_write(4096);
        rig.theirs.write_all(&[7; 2048]).unwrap();
        assert_eq!(rig.receive(2 * SECOND, 0), ReceiveOutcome::Waits(WaitsFor::Room));
        rig.connection.set_refuses(true);
        assert_eq!(rig.receive(3 * SECOND, 0), ReceiveOutcome::Worked);
        assert_eq!(
            (rig.bench.inputs.len(), rig.bench.pool.taken(), rig.connection.held()),
            (0, 0, 0)
        );
        assert!(rig.connection.has_outgoing(), "an error");
    }

    /// A held request, too, waits for a slot that another one has taken meanwhile.
    #[test]
    fn held_request_waits_for_a_bio_slot() {
        let mut rig = Rig::new();
        let taken = [1 << 19, 1 << 18].map(|len| rig.bench.pool.try_take(len).unwrap());
        let mut read = read_header(1);
        read[24..].copy_from_slice(&(256_u32 << 10).to_be_bytes());
        rig.theirs.write_all(&read).unwrap();
        assert_eq!(rig.receive(SECOND, 8), ReceiveOutcome::Waits(WaitsFor::Buffer));
        taken.into_iter().for_each(|buffer| rig.bench.pool.put(buffer));
        assert_eq!(rig.receive(2 * SECOND, 0), ReceiveOutcome::Waits(WaitsFor::Room));
        assert_eq!(rig.bench.inputs.len(), 0);
        rig.receive(3 * SECOND, 1);
        assert_eq!(rig.bench.inputs.len(), 1);
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
            for sequence in 0..=rig.bench.inputs.len() as u64 {
                let result = (
                    Err(headworks_core::IoError::Medium),
                    false,
                    headworks_core::ReplyStage::Final,
                );
                rig.connection.reply(Instant(SECOND), sequence, result, &mut rig.bench.pool);
            }
        }
        assert_eq!(rig.bench.inputs.len(), 500);
        rig.connection.release_idle_memory();
        assert_eq!(rig.connection.stash.capacity(), 0);
    }
}
