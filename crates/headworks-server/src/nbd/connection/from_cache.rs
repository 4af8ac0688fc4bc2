//! Reads that are answered from the frames of the page cache.
//!
//! A read that is likely to be cached is submitted without a buffer, and so is any other read of a cached volume if no buffer is
//! free. The cache answers it from its frames, or returns it: then it is submitted again with a buffer, in the same turn or as
//! soon as there is one, before anything else is received.
//!
//! ```text
//!   read --likely, or no buffer is free--> bio without buffer --cached--> lent frames in the send queue
//!     |                                          `--returned--> `resubmit`, with a buffer --.
//!     `------------------- with a buffer ------------------------------------------------> bio
//! ```
//!
//! A bio without a buffer is answered or returned in the turn in which it is submitted.

use headworks_core::{Bio, BioFlags, BioId, Input, Instant, IoError, Op, WaitKind, WaitTimes};

use super::receive::may_take;
use super::{BufferPolicy, Connection, ExportBinding, Phase, ReceiveContext, completed};
use crate::latency::CompletedRequest;
use headworks::driver::{Buffer, Span};
use headworks_front::window::InFlight;

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
        if !matches!(self.phase, Phase::Dead) {
            self.returned.push_back(in_flight);
        }
    }

    /// Whether reads wait to be submitted again.
    #[must_use]
    pub fn has_returned(&self) -> bool {
        !self.returned.is_empty()
    }

    /// Submits returned reads again, with buffers; false if no buffer or no bio slot is free for the next one.
    pub fn resubmit(&mut self, context: &mut ReceiveContext<'_>) -> bool {
        while let Some(&InFlight { cookie, offset, len, since, front, .. }) = self.returned.front()
        {
            let Some(binding) = self.last_binding() else { return true };
            let buffer = match *context.room {
                0 => None,
                _ => self.take_buffer(len as usize, context),
            };
            let Some(buffer) = buffer else {
                if !self.refuses {
                    return false;
                }
                self.returned.pop_front();
                self.answer_failure(Op::Read, cookie, IoError::TimedOut);
                continue;
            };
            self.returned.pop_front();
            let limit_ns = front.at_most(WaitKind::Limit);
            let waited_ns = context.now.since(since).saturating_sub(limit_ns);
            self.buffer_bytes += buffer.len();
            let sequence = self.window.insert(cookie, offset, len, Op::Read, Some(buffer), since);
            // It was returned in the turn of its arrival, so what it has waited since was for the buffer.
            let front = front.with_front(WaitTimes::of_front(0, waited_ns));
            if let Some(in_flight) = self.window.get(sequence) {
                in_flight.front = front;
            }
            *context.room -= 1;
            let ExportBinding { volume, export, ioprio, .. } = binding;
            context.inputs.push(Input::Bio(Bio {
                id: BioId { connection: self.id, volume, export, sequence },
                offset,
                len,
                op: Op::Read,
                // As every read of a client.
                flags: BioFlags::SYNC.with(BioFlags::HOLE_OK),
                ioprio,
            }));
        }
        true
    }

    /// Takes a buffer for a read, if the connection may.
    fn take_buffer(&self, len: usize, context: &mut ReceiveContext<'_>) -> Option<Buffer> {
        let stalled = self.outgoing.is_stalled(context.now);
        if !may_take((self.held(), len), stalled, context) {
            return None;
        }
        let buffer = context.pool.try_take(len)?;
        if let Some(device) = &mut context.device {
            device.own += buffer.len();
            device.all += buffer.len();
        }
        if context.policy == BufferPolicy::Once {
            context.policy = BufferPolicy::Wait;
        }
        Some(buffer)
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
