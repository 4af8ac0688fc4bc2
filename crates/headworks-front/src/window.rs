//! Requests in flight of one connection, found by the sequence number of their bio.
//!
//! Sequence numbers count up and are never reused; the low bits are the index. The window has twice as many entries as
//! requests may be in flight, and a sequence number whose entry is in use is skipped. So a slow request delays no other
//! one, and a look-up is one index. Invariant: `used` entries are occupied, at most half of them.

use headworks_core::{Instant, Op, WaitTimes};

use headworks_house::Buffer;

/// A request between its header and the last byte of its reply.
#[derive(Debug)]
pub struct InFlight {
    /// Sequence number of the bio, unique for the connection.
    pub sequence: u64,
    /// The client's name for the request.
    pub cookie: u64,
    /// First byte of the request's range.
    pub offset: u64,
    /// Length of the range in bytes.
    pub len: u32,
    /// Time at which the request was complete, less its waits before the bio.
    pub since: Instant,
    /// Operation of the request.
    pub op: Op,
    /// Waits before the bio.
    pub front: WaitTimes,
    /// Only the first extent is wanted (block status).
    pub one_extent: bool,
    /// The error reply was sent at the time-out; only the buffer is still in use.
    pub answered: bool,
    /// A piece of a write that was given to the shard in parts; `cookie` is the number of its record.
    pub piece: bool,
    /// Data of the request; none for operations without data.
    pub buffer: Option<Buffer>,
}

impl InFlight {
    /// What is counted of the request if it is answered at `now`.
    #[inline]
    #[must_use]
    pub fn completed(&self, now: Instant) -> CompletedRequest {
        let Self { op, offset, len, since, front, .. } = *self;
        CompletedRequest { op, offset, len, total_ns: now.since(since), front }
    }
}

/// A request that was answered, as the tables count it.
#[derive(Clone, Copy, Debug)]
pub struct CompletedRequest {
    /// Operation of the request.
    pub op: Op,
    /// First byte of its range.
    pub offset: u64,
    /// Length of its range in bytes.
    pub len: u32,
    /// Nanoseconds from the turn in which it was complete to the turn that answered it.
    pub total_ns: u64,
    /// Its waits before the bio, which are a part of the total.
    pub front: WaitTimes,
}

/// Requests in flight of one connection.
#[derive(Debug)]
pub struct Window {
    places: Box<[Option<InFlight>]>,
    next: u64,
    used: usize,
}

impl Window {
    /// Creates a window for `requests` requests.
    #[must_use]
    pub fn new(requests: usize) -> Self {
        let places = (2 * requests.max(1)).next_power_of_two();
        Self { places: (0..places).map(|_| None).collect(), next: 1, used: 0 }
    }

    /// Number of requests in flight.
    #[inline]
    #[must_use]
    pub fn used(&self) -> usize {
        self.used
    }

    fn place(&self, sequence: u64) -> usize {
        sequence as usize & (self.places.len() - 1)
    }

    /// Adds a request and returns its sequence number. Fields are passed one by one so that they are written in place.
    #[inline]
    pub fn insert(
        &mut self,
        cookie: u64,
        offset: u64,
        len: u32,
        op: Op,
        buffer: Option<Buffer>,
        since: Instant,
    ) -> u64 {
        debug_assert!(self.used < self.places.len() / 2, "a connection stays within its limit");
        while self.places[self.place(self.next)].is_some() {
            self.next += 1;
        }
        let place = self.place(self.next);
        let (sequence, answered) = (self.next, false);
        self.places[place] = Some(InFlight {
            sequence,
            cookie,
            offset,
            len,
            since,
            op,
            front: WaitTimes::NONE,
            one_extent: false,
            answered,
            piece: false,
            buffer,
        });
        self.next += 1;
        self.used += 1;
        self.next - 1
    }

    /// All requests in flight, from the place of the newest backwards: a look ends with the oldest, which is near for few.
    pub fn all(&self) -> impl Iterator<Item = &InFlight> {
        let places = 1..=self.places.len() as u64;
        let backwards = places.map(|back| self.place(self.next.wrapping_sub(back)));
        backwards.filter_map(|place| self.places[place].as_ref()).take(self.used)
    }

    /// Finds the request of a sequence number.
    #[inline]
    pub fn get(&mut self, sequence: u64) -> Option<&mut InFlight> {
        let place = self.place(sequence);
        self.places[place].as_mut().filter(|in_flight| in_flight.sequence == sequence)
    }

    /// Removes the request of a sequence number.
    #[inline]
    pub fn remove(&mut self, sequence: u64) -> Option<InFlight> {
        self.get(sequence)?;
        debug_assert!(self.used > 0, "a request of the window is counted");
        self.used -= 1;
        let place = self.place(sequence);
        self.places[place].take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::prng::Prng;

    #[test]
    fn slow_request_keeps_its_window_entry() {
        let mut window = Window::new(4);
        let slow = window.insert(7, 0, 0, Op::Flush, None, Instant(0));
        let mut others: Vec<(u64, u64)> = Vec::new();
        let mut prng = Prng::new(1);
        for cookie in 100..2_000 {
            if others.len() == 3 {
                let (sequence, cookie) = others.swap_remove(prng.below(3) as usize);
                assert_eq!(window.remove(sequence).map(|in_flight| in_flight.cookie), Some(cookie));
                assert!(window.remove(sequence).is_none(), "once");
            }
            others.push((window.insert(cookie, 0, 0, Op::Flush, None, Instant(0)), cookie));
        }
        assert_eq!(window.get(slow).map(|in_flight| in_flight.cookie), Some(7));
        assert_eq!(window.used(), 4);
        let mut all: Vec<u64> = window.all().map(|in_flight| in_flight.cookie).collect();
        let mut known: Vec<u64> = others.iter().map(|(_, cookie)| *cookie).chain([7]).collect();
        all.sort_unstable();
        known.sort_unstable();
        assert_eq!(all, known);
    }
}
