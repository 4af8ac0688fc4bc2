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

use super::admission::{admission, read_len, submit_at_once};
use super::bounds::{bytes_left, has_room, requests_left};
use super::{
    Connection, ConnectionEnd, LARGE_PART, LARGE_PAYLOAD, LARGE_TAIL, ReceiveOutcome, Shares,
    TURN_BIOS, TURN_BYTES, handshake, payload,
};
use crate::clients::nbd::transport::Transport;
use headworks::driver::Span;
use headworks_front::{FrontRequest, Origin, WaitsFor};
use headworks_nbd::transmission::{Parsed, ProtocolError};

/// Which waiting requests are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tried {
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

    /// As many requests as wait.
    fn without_bound() -> Self {
        Self { bios: usize::MAX, ..Self::new() }
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

/// Receives once and submits bios for complete requests.
pub(super) fn receive(connection: &mut Connection, shares: &mut Shares<'_>) -> ReceiveOutcome {
    let waited = connection.intake.stop(WaitsFor::Nothing);
    if waited != WaitsFor::Nothing && !connection.session.is_negotiating() {
        // The client's time counts from now: what it sent before was not looked for.
        connection.wire.note_heard(shares.now);
    }
    let received = receive_once(connection, shares);
    if let ReceiveOutcome::Waits(what) = received {
        connection.intake.stop(what);
    }
    received
}

fn receive_once(connection: &mut Connection, shares: &mut Shares<'_>) -> ReceiveOutcome {
    let Connection { wire, intake, session } = &mut *connection;
    if !session.reads() {
        return match step(connection, &mut TurnQuota::new(), shares, Tried::All) {
            Stream::Stopped(what) => ReceiveOutcome::Waits(what),
            _ => ReceiveOutcome::Idle,
        };
    }
    if session.is_negotiating() && !has_room(wire, intake, session) {
        return ReceiveOutcome::Waits(WaitsFor::Window);
    }
    intake.shorten_payload(shares.window, payload::part_align(session));
    if (wire.has_stash() || intake.can_step())
        && let Some(received) = parse_kept(connection, shares)
    {
        return received;
    }
    let Connection { wire, intake, session } = &mut *connection;
    if !has_room(wire, intake, session) && !intake.awaits_payload() {
        return ReceiveOutcome::Waits(WaitsFor::Window);
    }
    // A payload is received whatever waits for limits.
    if let Some(limit) = intake.waiting().stops_for_limit().filter(|_| !intake.awaits_payload()) {
        return ReceiveOutcome::Waits(limit);
    }
    receive_bytes(connection, shares)
}

fn receive_bytes(connection: &mut Connection, shares: &mut Shares<'_>) -> ReceiveOutcome {
    let Connection { wire, intake, session } = &mut *connection;
    let mut direct = intake.payload_rest();
    // The next bytes belong to a large payload, or follow one.
    let large = intake.brings_large_payloads()
        || direct.is_some_and(|span: Span| span.len() >= LARGE_PAYLOAD);
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
    let Some(received) = wire.receive(direct, shares.scratch, tail) else {
        return ReceiveOutcome::Idle;
    };
    let count = match received {
        Ok(0) => return ReceiveOutcome::End(hang_up(connection)),
        Ok(count) => count,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            payload::note_silence(wire, intake, shares);
            return ReceiveOutcome::Idle;
        }
        Err(error) if error.kind() == io::ErrorKind::Interrupted => {
            return ReceiveOutcome::Worked;
        }
        Err(error) if is_hang_up(&error) => return ReceiveOutcome::End(hang_up(connection)),
        // The error carries its message.
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return ReceiveOutcome::End(ConnectionEnd::Fault(error.to_string()));
        }
        Err(error) => {
            return ReceiveOutcome::End(ConnectionEnd::Fault(format!("receiving failed: {error}")));
        }
    };
    // The handshake has one time limit as a whole.
    if !session.is_negotiating() {
        wire.note_heard(shares.now);
    }
    if large {
        shares.turn.large_payloads = shares.turn.large_payloads.saturating_sub(count);
    }
    shares.turn.received += count;
    let placed = count.min(direct.map_or(0, |span| span.len()));
    intake.note_placed(placed);
    let scratch = std::mem::take(&mut shares.scratch);
    let received = parse_or_stash(connection, &scratch[..count - placed], shares);
    shares.scratch = scratch;
    received
}

/// Goes on with what earlier turns kept, without receiving; none if the client's bytes are all that it needs.
fn parse_kept(connection: &mut Connection, shares: &mut Shares<'_>) -> Option<ReceiveOutcome> {
    let mut stash = connection.wire.take_stash();
    let mut quota = TurnQuota::new();
    let (used, received) = parse_bytes(connection, &stash, &mut quota, shares);
    stash.drain(..used);
    let is_empty = stash.is_empty();
    connection.wire.put_stash(stash);
    let worked = used > 0 || quota.moved || received != ReceiveOutcome::Worked;
    // Not in release builds: a thread that spins hurts less than a server that is gone.
    debug_assert!(worked || is_empty, "bytes that wait are used, or wait for something");
    worked.then_some(received)
}

/// Parses received bytes; bytes that cannot be used now go into the stash.
fn parse_or_stash(
    connection: &mut Connection,
    bytes: &[u8],
    shares: &mut Shares<'_>,
) -> ReceiveOutcome {
    let (used, received) = parse_bytes(connection, bytes, &mut TurnQuota::new(), shares);
    if !matches!(received, ReceiveOutcome::End(_)) {
        connection.wire.keep(&bytes[used..]);
    }
    received
}

fn parse_bytes(
    connection: &mut Connection,
    bytes: &[u8],
    quota: &mut TurnQuota,
    shares: &mut Shares<'_>,
) -> (usize, ReceiveOutcome) {
    if connection.session.is_negotiating() {
        handshake::parse(connection, bytes, shares)
    } else {
        parse(connection, bytes, quota, shares)
    }
}

fn parse(
    connection: &mut Connection,
    bytes: &[u8],
    quota: &mut TurnQuota,
    shares: &mut Shares<'_>,
) -> (usize, ReceiveOutcome) {
    let Connection { wire, intake, session } = &mut *connection;
    let (mut used, mut left) = (0, requests_left(wire, intake, session));
    let refuses = intake.refuses();
    let bytes_left = if refuses { usize::MAX } else { bytes_left(wire, session) };
    let is_gated = shares.limits.is_some() || shares.frozen || refuses;
    loop {
        let intake = &mut connection.intake;
        if intake.waiting().has_others() {
            let filled = intake.fill(&bytes[used..]);
            used += filled;
            quota.count(0, filled);
            match step(connection, quota, shares, Tried::All) {
                Stream::Open => {}
                Stream::Payload if used < bytes.len() => continue,
                Stream::Payload | Stream::NextTurn => return (used, ReceiveOutcome::Worked),
                Stream::Stopped(what) => return (used, ReceiveOutcome::Waits(what)),
            }
            // A write takes a place for each of its pieces, and a header had one for the whole.
            let Connection { wire, intake, session } = &*connection;
            left = left.min(requests_left(wire, intake, session));
        } else if let Some(limit) = intake.waiting().stops_for_limit() {
            return (used, ReceiveOutcome::Waits(limit));
        }
        if quota.is_over() {
            return (used, ReceiveOutcome::Worked);
        }
        let Connection { wire, intake, session } = &mut *connection;
        if left == 0 || intake.block_bytes() >= bytes_left {
            return (used, ReceiveOutcome::Waits(WaitsFor::Window));
        }
        let Some(parser) = intake.parser_mut() else {
            return (bytes.len(), ReceiveOutcome::Worked);
        };
        let (count, parsed) = parser.parse(&bytes[used..]);
        used += count;
        let request = match parsed {
            Parsed::Request(request) => request,
            Parsed::NeedMore => return (used, ReceiveOutcome::Worked),
            Parsed::Refused(refusal) => {
                let form = session.form();
                wire.outgoing_mut().header(|out| form.refused(out, refusal));
                left -= 1;
                continue;
            }
            Parsed::Disconnect => return (used, ReceiveOutcome::End(ConnectionEnd::Goodbye)),
            Parsed::End(error) => return (used, ReceiveOutcome::End(fault(error))),
        };
        left -= 1;
        if !is_gated
            && let Some(count) = submit_at_once(&request, &bytes[used..], connection, shares)
        {
            used += count;
            // Data of reads will be copied, too, and count against the turn's share.
            quota.count(1, count.max(read_len(&request)));
            continue;
        }
        let one = FrontRequest::new(request, Origin::Client, shares.now);
        connection.intake.waiting_mut().push(one);
    }
}

/// Tries the waiting requests in their order. After one that must wait only a whole payload is tried, which has its block.
fn step(
    connection: &mut Connection,
    quota: &mut TurnQuota,
    shares: &mut Shares<'_>,
    tried: Tried,
) -> Stream {
    let (mut place, mut stopped) = (connection.intake.waiting().first_due(), None);
    while let Some(one) = connection.intake.waiting().get(place) {
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
        let Some(mut one) = connection.intake.waiting_mut().take(place) else { break };
        let given = one.payload.given;
        let what = admission(&mut one, connection, shares);
        quota.moved |= what == WaitsFor::Nothing || one.payload.given > given;
        if what == WaitsFor::Nothing {
            quota.count(1, read_len(&one.request));
            continue;
        }
        one.wait(what, shares.now);
        connection.intake.waiting_mut().put_back(place, one);
        place += 1;
        if !matches!(what, WaitsFor::Client | WaitsFor::Limit(_)) {
            stopped = Some(stopped.map_or(what, |first| more_telling(first, what)));
        }
    }
    let intake = &connection.intake;
    match (stopped, intake.waiting().stops_for_limit()) {
        _ if intake.awaits_payload() => Stream::Payload,
        (Some(what), _) | (None, Some(what)) => Stream::Stopped(what),
        (None, None) => Stream::Open,
    }
}

/// What a connection waits for by name whose first request and payload wait for these: what ends by itself with the next turn, then what
/// others give back, of which the payload keeps memory that they wait for. Its own bounds are looked at in any case.
fn more_telling(first: WaitsFor, payload: WaitsFor) -> WaitsFor {
    let is_given = |what| matches!(what, WaitsFor::Room | WaitsFor::Buffer);
    if payload == WaitsFor::Turn || first != WaitsFor::Turn && is_given(payload) {
        payload
    } else {
        first
    }
}

/// Submits returned reads again; false if one must wait. Nothing is received.
pub(super) fn resubmit(connection: &mut Connection, shares: &mut Shares<'_>) -> bool {
    step(connection, &mut TurnQuota::without_bound(), shares, Tried::Again);
    connection.intake.waiting().again() == 0
}

/// Submits what has passed its limits before the connection leaves; what must wait is dropped.
pub(super) fn submit_before_leaving(connection: &mut Connection, shares: &mut Shares<'_>) {
    step(connection, &mut TurnQuota::without_bound(), shares, Tried::All);
}

fn hang_up(connection: &Connection) -> ConnectionEnd {
    let Connection { wire, intake, session } = connection;
    // The line for the log says more of a torn write.
    let in_request = intake.is_in_request() && intake.torn_write().is_none();
    session.hang_up(wire.transport().is_some_and(Transport::is_handshaking), in_request)
}

fn fault(error: ProtocolError) -> ConnectionEnd {
    ConnectionEnd::Fault(error.to_string())
}

fn is_hang_up(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}
