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
use crate::nbd::window::InFlight;
use headworks::driver::{Buffer, Span};

/// Guesses whether reads are cached, from whether the last ones were.
///
/// A returned read costs a second pass through the shard. So after a miss two reads have a buffer, twice as many after each further
/// one, and then one read tries again; each hit halves their number.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CacheGuess {
    /// Misses less hits, 0..=[`CacheGuess::MOST`].
    misses: u8,
    /// Reads that have a buffer before one tries again.
    skip: u8,
}

impl CacheGuess {
    /// At most one read in 65 tries.
    const MOST: u8 = 6;

    /// Whether the next read goes without a buffer.
    #[inline]
    pub fn expects_hit(&mut self) -> bool {
        if self.misses == 0 {
            return true;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        // Until its outcome is known, the others have buffers.
        self.skip = 1 << self.misses;
        true
    }

    #[inline]
    fn note_hit(&mut self) {
        self.misses = self.misses.saturating_sub(1);
    }

    fn note_miss(&mut self) {
        self.misses = (self.misses + 1).min(Self::MOST);
        self.skip = 1 << self.misses;
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads of a sequence of hits and misses that try, in percent, each answered before the next.
    fn tries(hits: u32, of: u32) -> u32 {
        let (mut guess, mut tries) = (CacheGuess::default(), 0);
        let mut prng = headworks_core::prng::Prng::new(5);
        for _ in 0..100_000 {
            if guess.expects_hit() {
                tries += 1;
                match prng.below(of.into()) < u64::from(hits) {
                    true => guess.note_hit(),
                    false => guess.note_miss(),
                }
            }
        }
        tries / 1000
    }

    #[test]
    fn few_reads_are_returned_and_most_hits_go_without_buffer() {
        assert_eq!(tries(1, 1), 100);
        assert!(tries(0, 1) < 2);
        assert!(tries(1, 2) < 6, "{}", tries(1, 2));
        assert!(tries(19, 20) > 80, "{}", tries(19, 20));
    }

    #[test]
    fn one_read_tries_while_its_outcome_is_unknown() {
        let mut guess = CacheGuess::default();
        (0..64).for_each(|_| guess.note_miss());
        assert_eq!((0..650).filter(|_| guess.expects_hit()).count(), 10);
    }
}
