//! Reads that are answered from the frames of the page cache.
//!
//! A read that is likely to be cached is submitted without a buffer, and so is any other read of a cached volume if no buffer is
//! free. The cache answers it from its frames, or returns it: then it is submitted again with a buffer, in the same turn or as
//! soon as there is one, before anything else is received.
//!
//! ```text
//!   read --likely, or no buffer is free--> bio without buffer --cached--> lent frames in the send queue
//!     |                                          `--returned--> the list of waiting requests --.
//!     `------------------- with a buffer ------------------------------------------------> bio
//! ```
//!
//! A bio without a buffer is answered or returned in the turn in which it is submitted.

use headworks_core::{Instant, WaitKind};

use super::Connection;
use super::session::Session;
use headworks::driver::Span;
use headworks_front::FrontRequest;
use headworks_front::front_waits::FrontWaits;
use headworks_front::intake::Intake;
use headworks_front::window::{CompletedRequest, InFlight};
use headworks_nbd::transmission::Request;
use headworks_nbd::wire::{Command, CommandFlags};

/// Queues the reply to a read without a buffer, whose data are in `frames`; returns the request.
///
/// The frames are sent from where they are until [`Connection::keep_lent`] is called for them.
pub(super) fn reply_frames(
    connection: &mut Connection,
    now: Instant,
    sequence: u64,
    frames: &[Span],
) -> Option<CompletedRequest> {
    let Connection { wire, intake, session } = connection;
    let in_flight = session.take(sequence)?;
    assert!(in_flight.buffer.is_none(), "a read with a buffer is copied");
    intake.guess_mut().note_hit();
    if !session.is_dead() {
        let InFlight { cookie, offset, len, .. } = in_flight;
        let form = session.form();
        wire.outgoing_mut().header(|out| form.read_data(out, cookie, offset, len));
        wire.outgoing_mut().push_frames(frames, offset, now);
    }
    Some(in_flight.completed(now))
}

/// Takes back a read that the cache cannot answer: it needs a buffer.
pub(super) fn needs_buffer(intake: &mut Intake, session: &mut Session, sequence: u64) {
    let Some(in_flight) = session.take(sequence) else { return };
    intake.guess_mut().note_miss();
    if session.is_dead() {
        return;
    }
    let InFlight { cookie, offset, len, since, front, .. } = in_flight;
    let (command, flags) = (Command::Read, CommandFlags::NONE);
    // It was returned in the turn of its arrival, so what it has waited, but for limits, was for the buffer.
    let limit_ns = front.at_most(WaitKind::Limit);
    let request = Request { cookie, offset, len, command, flags };
    let before = FrontWaits::for_limits(limit_ns);
    intake.waiting_mut().push(FrontRequest::again(request, before, since.after(limit_ns)));
}
