//! A connection's requests in flight, found by the sequence of their bio.
//!
//! Sequences count up and are never reused; the place of one is its low bits. The window has twice as many places as there
//! may be requests, and a sequence whose place is taken is skipped, so a slow request holds up nobody and a look-up is one
//! index.

use headworks_core::{Instant, Op};

use headworks::driver::Buffer;

/// A request between its header and the last byte of its reply.
#[derive(Debug)]
pub struct InFlight {
    /// Its sequence, to tell it from an earlier one at the same place.
    pub sequence: u64,
    /// The client's name for it.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// When it was complete.
    pub since: Instant,
    /// What.
    pub op: Op,
    /// Of a block status: the first extent is enough.
    pub one_extent: bool,
    /// The reply was sent when it timed out; only the buffer is out.
    pub answered: bool,
    /// Its data; none for what has none.
    pub buffer: Option<Buffer>,
}

/// The requests of one connection.
#[derive(Debug)]
pub struct Window {
    places: Box<[Option<InFlight>]>,
    next: u64,
    used: usize,
}

impl Window {
    /// Room for `requests` at once.
    #[must_use]
    pub fn new(requests: usize) -> Self {
        let places = (2 * requests.max(1)).next_power_of_two();
        Self { places: (0..places).map(|_| None).collect(), next: 1, used: 0 }
    }

    /// How many are in flight.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used
    }

    fn place(&self, sequence: u64) -> usize {
        sequence as usize & (self.places.len() - 1)
    }

    /// Takes a request in and names it. The caller keeps `used` within the limit, which is half of the places. (Fields, so
    /// that they are written where they stay.)
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
        assert!(self.used < self.places.len() / 2, "a connection stays within its limit");
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
            one_extent: false,
            answered,
            buffer,
        });
        self.next += 1;
        self.used += 1;
        self.next - 1
    }

    /// The request of this sequence.
    pub fn get(&mut self, sequence: u64) -> Option<&mut InFlight> {
        let place = self.place(sequence);
        self.places[place].as_mut().filter(|in_flight| in_flight.sequence == sequence)
    }

    /// Takes the request of this sequence out.
    pub fn remove(&mut self, sequence: u64) -> Option<InFlight> {
        self.get(sequence)?;
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
    fn a_slow_request_keeps_its_place_while_others_come_and_go() {
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
    }
}
