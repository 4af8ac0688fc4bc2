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

use super::{Connection, Phase, completed};
use crate::latency::CompletedRequest;
use headworks::driver::{Buffer, Span};
use headworks_front::FrontRequest;
use headworks_front::front_waits::FrontWaits;
use headworks_front::window::InFlight;
use headworks_nbd::transmission::Request;
use headworks_nbd::wire::{Command, CommandFlags};

impl Connection {
    /// Queues the reply to a read without a buffer, whose data are in `frames`; returns the request.
    ///
    /// The frames are sent from where they are until [`Connection::keep_lent`] is called for them.
    pub fn reply_frames(
        &mut self,
        now: Instant,
        sequence: u64,
        frames: &[Span],
    ) -> Option<CompletedRequest> {
        let in_flight = self.window.remove(sequence)?;
        assert!(in_flight.buffer.is_none(), "a read with a buffer is copied");
        self.cache_guess.note_hit();
        if !matches!(self.phase, Phase::Dead) {
            let InFlight { cookie, offset, len, .. } = in_flight;
            let form = self.form;
            self.outgoing.header(|out| form.read_data(out, cookie, offset, len));
            self.outgoing.push_frames(frames, offset, now);
        }
        Some(completed(&in_flight, now))
    }

    /// Takes back a read that the cache cannot answer: it needs a buffer.
    pub fn needs_buffer(&mut self, sequence: u64) {
        let Some(in_flight) = self.window.remove(sequence) else { return };
        self.cache_guess.note_miss();
        if matches!(self.phase, Phase::Dead) {
            return;
        }
        let InFlight { cookie, offset, len, since, front, .. } = in_flight;
        let (command, flags) = (Command::Read, CommandFlags::NONE);
        // It was returned in the turn of its arrival, so what it has waited, but for limits, was for the buffer.
        let limit_ns = front.at_most(WaitKind::Limit);
        let request = Request { cookie, offset, len, command, flags };
        let before = FrontWaits::for_limits(limit_ns);
        self.waiting.push(FrontRequest::again(request, before, since.after(limit_ns)));
    }

    /// Whether reads that the cache returned wait to be submitted again.
    #[must_use]
    pub fn has_returned(&self) -> bool {
        self.waiting.again() > 0
    }

    /// Number of lent pieces in the send queue.
    #[must_use]
    pub fn lent(&self) -> usize {
        self.outgoing.lent().1
    }

    /// The frames that are lent to it.
    pub fn lent_frames(&self) -> impl Iterator<Item = Span> {
        self.outgoing.lent_frames()
    }

    /// Makes unsent data independent of frames that are about to change. `take` gives a buffer, or none, for a connection that holds
    /// as many bytes as its first argument, and data of the length of its second.
    pub fn keep_lent(
        &mut self,
        changing: Span,
        now: Instant,
        mut take: impl FnMut(usize, usize) -> Option<Buffer>,
    ) {
        let requests = self.buffer_bytes;
        self.outgoing.keep_lent(changing, now, |unsent, len| take(requests + unsent, len));
    }
}
