//! The bounds of one connection: how many requests and bytes it may have in the shard, waiting and unsent together. At a bound it is not
//! read from.

use headworks_core::Op;
use headworks_front::{FrontRequest, Origin, WaitsFor};

use super::payload::{has_piece_room, place_waits};
use super::session::Session;
use super::{Intake, LENT_BYTES, Wire};

/// Whether the bounds allow another request, or another option of the handshake.
pub(super) fn has_room(wire: &Wire, intake: &Intake, session: &Session) -> bool {
    if session.is_negotiating() {
        return wire.outgoing().has_room_for_answers(session.bounds().requests);
    }
    requests_left(wire, intake, session) > 0
        && (intake.refuses() || has_byte_room(wire, intake, session))
}

/// Whether a connection goes on that is at its own bound: another request can be read, or one that waits for it would be admitted.
pub(super) fn goes_on(wire: &Wire, intake: &Intake, session: &Session) -> bool {
    let heads = intake.waiting().heads();
    let is_head = |what| heads.iter().flatten().any(|one| one.waits_for() == what);
    let reads = intake.stopped_by() == WaitsFor::Window && !is_head(WaitsFor::Window);
    reads && has_room(wire, intake, session)
        || heads.iter().flatten().any(|one| head_goes_on(one, wire, intake, session))
}

/// Whether what a request waits for of its own connection has come.
fn head_goes_on(one: &FrontRequest, wire: &Wire, intake: &Intake, session: &Session) -> bool {
    match one.waits_for() {
        // A piece has failed: the rest of its write is dropped, which needs nothing.
        _ if one.payload.refused.is_some() => true,
        WaitsFor::Window => window_opens(one, wire, intake, session),
        WaitsFor::Pieces => has_piece_room(intake),
        _ => false,
    }
}

fn window_opens(one: &FrontRequest, wire: &Wire, intake: &Intake, session: &Session) -> bool {
    let waiting = intake.waiting();
    let gives = one.request.op() != Op::Write || one.part_is_whole();
    let is_new = one.origin == Origin::Client && !one.has_payload();
    (!is_new || has_byte_room(wire, intake, session))
        && (!gives || place_waits(one, waiting.len() - 1, intake, session).is_none())
}

/// Requests that the client may begin.
#[inline]
pub(super) fn requests_left(wire: &Wire, intake: &Intake, session: &Session) -> usize {
    let begun = if intake.refuses() { 0 } else { begun(intake, session) };
    session.bounds().requests.saturating_sub(unsent(wire) + begun)
}

/// Whether the bounds allow another request in flight.
pub(super) fn has_window_room(wire: &Wire, intake: &Intake, session: &Session) -> bool {
    begun(intake, session) + unsent(wire) < session.bounds().requests
        && has_byte_room(wire, intake, session)
}

/// Whether the bounds allow another buffer.
#[inline]
pub(super) fn has_byte_room(wire: &Wire, intake: &Intake, session: &Session) -> bool {
    intake.block_bytes() < bytes_left(wire, session)
}

/// Most bytes of buffers for requests, as the send queue is.
#[inline]
pub(super) fn bytes_left(wire: &Wire, session: &Session) -> usize {
    let outgoing = wire.outgoing();
    let ((dropped_bytes, _), (lent_bytes, _)) = (outgoing.dropped(), outgoing.lent());
    if lent_bytes >= LENT_BYTES {
        return 0;
    }
    let unsent = outgoing.held() + dropped_bytes + lent_bytes;
    session.bounds().buffer_bytes.saturating_sub(unsent)
}

/// Requests in the shard and waiting.
#[inline]
fn begun(intake: &Intake, session: &Session) -> usize {
    session.window().used() + intake.waiting().len()
}

/// Unsent replies. Dropped data count as if they were held: more of them would only be dropped, too.
#[inline]
fn unsent(wire: &Wire) -> usize {
    let (_, dropped) = wire.outgoing().dropped();
    wire.outgoing().replies() + dropped
}
