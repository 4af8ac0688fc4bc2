//! Reads that are answered from the frames of the page cache.
//!
//! A read of a cached volume is submitted without a buffer. The cache answers it from its frames, at once or when its blocks have come
//! from the device; where they cannot be there all at once it returns the read, which is submitted again with a buffer, as soon as there
//! is one, before anything else is received.
//!
//! ```text
//!   read ---> bio without buffer ---its blocks are there---> lent frames in the send queue
//!                        `--returned--> the list of waiting requests --> bio with a buffer
//! ```

use headworks_core::{Instant, WaitTimes};

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
    let Connection { wire, session, .. } = connection;
    let in_flight = session.take(sequence)?;
    assert!(in_flight.buffer.is_none(), "a read with a buffer is copied");
    if !session.is_dead() {
        let InFlight { cookie, offset, len, .. } = in_flight;
        let form = session.form();
        wire.outgoing_mut().header(|out| form.read_data(out, cookie, offset, len));
        wire.outgoing_mut().push_frames(frames, offset, now);
    }
    Some(in_flight.completed(now))
}

/// Takes back a read that the cache cannot answer: it needs a buffer.
pub(super) fn needs_buffer(
    intake: &mut Intake,
    session: &mut Session,
    now: Instant,
    (sequence, wait_times): (u64, WaitTimes),
) {
    let Some(in_flight) = session.take(sequence) else { return };
    if session.is_dead() {
        return;
    }
    let InFlight { cookie, offset, len, since, front, .. } = in_flight;
    let (command, flags) = (Command::Read, CommandFlags::NONE);
    let request = Request { cookie, offset, len, command, flags };
    let before = FrontWaits::of_returned(now.since(since), wait_times.with_front(front));
    intake.waiting_mut().push(FrontRequest::again(request, before, now));
}
