//! The requests of a connection that cannot go on: one list, in the order in which they are tried.
//!
//! ```text
//!   [ Reread ] [ Again .. ] [ Client .. , the last one perhaps with an incomplete payload ]
//! ```
//!
//! Data that continue a reply come first, then reads that the cache returned, then what the client sent, in its order. Requests that
//! wait for a limit let others pass; the order within a direction stays.
//!
//! Invariants: a write that waits, and a payload that is received, is the last one; `limited` counts those that wait for a limit.

use std::collections::VecDeque;

use headworks_core::Instant;
use headworks_core::limits::{LimitDirection, LimitedIo};

use crate::request::{FrontRequest, Origin, WaitsFor};

/// While the newest request that waits for a limit waits for longer than this, nothing more is read.
const LIMITED_NS: u64 = 1_000_000_000;

/// Requests of one direction that wait for a limit.
#[derive(Clone, Copy, Debug, Default)]
struct Limited {
    count: usize,
    /// What they cost of the limit that they cost most of.
    cost_ns: u64,
    /// What the first of them had to wait when it came.
    wait_ns: u64,
}

/// The waiting requests of a connection.
#[derive(Debug, Default)]
pub struct Waiting {
    list: VecDeque<FrontRequest>,
    limited: [Limited; 2],
    again: usize,
}

impl Waiting {
    /// Whether no request waits here.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Number of requests, reads of dropped data aside.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len() - usize::from(self.has_reread())
    }

    /// All requests, in their order.
    pub fn all(&self) -> impl Iterator<Item = &FrontRequest> {
        self.list.iter()
    }

    /// Number of requests that wait for limits.
    #[inline]
    #[must_use]
    pub fn limited(&self) -> usize {
        self.limited[0].count + self.limited[1].count
    }

    /// Number of requests that wait for limits or have passed them and were not tried.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.list.iter().filter(|one| one.was_limited()).count()
    }

    /// Whether dropped data wait to be read again.
    #[must_use]
    pub fn has_reread(&self) -> bool {
        self.list.front().is_some_and(|first| first.origin == Origin::Reread)
    }

    /// Number of reads that the cache returned.
    #[must_use]
    pub fn again(&self) -> usize {
        self.again
    }

    /// Whether one does not wait for a limit: it can be tried, or its payload comes.
    #[inline]
    #[must_use]
    pub fn has_others(&self) -> bool {
        self.list.len() > self.limited()
    }

    /// Adds a request in its place.
    pub fn push(&mut self, one: FrontRequest) {
        match one.origin {
            Origin::Client => self.list.push_back(one),
            Origin::Reread => {
                assert!(!self.has_reread(), "one chunk is read at a time");
                self.list.push_front(one);
            }
            Origin::Again => {
                let place = usize::from(self.has_reread()) + self.again;
                self.list.insert(place, one);
                self.again += 1;
            }
        }
    }

    /// The request at a place.
    #[must_use]
    pub fn get(&self, place: usize) -> Option<&FrontRequest> {
        self.list.get(place)
    }

    /// A place before which no request can be tried: that of the last one, if all others wait for limits.
    #[must_use]
    pub fn first_due(&self) -> usize {
        let is_last = self.list.len() == self.limited() + 1
            && self.list.back().is_some_and(|last| last.limited().is_none());
        if is_last { self.list.len() - 1 } else { 0 }
    }

    /// The requests that stop others, each by what it waits for: the first that waits for no limit, and the one with a payload. Nothing
    /// else is tried while they wait.
    pub fn heads(&self) -> [Option<&FrontRequest>; 2] {
        let waits = |one: &&FrontRequest| one.limited().is_none() && !one.awaits_client();
        let first = self.list.iter().find(waits).filter(|one| !one.has_payload());
        // One of which a piece has failed waits for its client as soon as it is tried.
        let stops = |last: &&FrontRequest| last.has_payload() && last.limited().is_none();
        let last = self.last().filter(stops);
        [first, last.filter(|last| last.waits_for() != WaitsFor::Client)]
    }

    /// The request whose payload comes, or is whole and waits.
    #[inline]
    #[must_use]
    pub fn last(&self) -> Option<&FrontRequest> {
        self.list.back()
    }

    /// The same, to be changed.
    pub fn last_mut(&mut self) -> Option<&mut FrontRequest> {
        self.list.back_mut()
    }

    /// Removes a request that is tried.
    pub fn take(&mut self, place: usize) -> Option<FrontRequest> {
        let one = self.list.remove(place)?;
        assert!(one.limited().is_none(), "what waits for a limit is not tried");
        let returned = usize::from(one.origin == Origin::Again);
        assert!(self.again >= returned, "reads that the cache returned are counted");
        self.again -= returned;
        Some(one)
    }

    /// Puts a request back that was taken from a place, and waits.
    pub fn put_back(&mut self, place: usize, one: FrontRequest) {
        self.again += usize::from(one.origin == Origin::Again);
        self.list.insert(place, one);
    }

    /// Whether another request of a direction waits for a limit: then a new one waits behind it.
    #[must_use]
    pub fn is_limited(&self, direction: LimitDirection) -> bool {
        self.limited[direction as usize].count > 0
    }

    /// Lets a request that is tried, the newest one, wait for a limit from now on: it costs `cost_ns` there, and the first of its
    /// direction has to wait for `first_waits_ns`. It is put back next.
    pub fn limit(
        &mut self,
        one: &mut FrontRequest,
        (direction, cost_ns): (LimitDirection, u64),
        first_waits_ns: impl FnOnce() -> u64,
        now: Instant,
    ) {
        assert!(one.limited().is_none(), "a request waits for one limit at a time");
        let limited = &mut self.limited[direction as usize];
        if limited.count == 0 {
            limited.wait_ns = first_waits_ns();
        }
        limited.count += 1;
        limited.cost_ns += cost_ns;
        one.cost_ns = cost_ns;
        one.wait(WaitsFor::Limit(direction), now);
    }

    /// Lets the first request of a direction pass its limits; returns what limits know of the one behind it.
    pub fn pass(&mut self, direction: LimitDirection) -> Option<LimitedIo> {
        let mut of_direction = self.list.iter_mut().filter(|one| one.limited() == Some(direction));
        let first = of_direction.next().expect("a waiting request passes");
        first.grant();
        let cost_ns = first.cost_ns;
        let next = of_direction.next().and_then(|next| next.limited_io());
        let limited = &mut self.limited[direction as usize];
        assert!(limited.count > 0 && limited.cost_ns >= cost_ns, "one that waits is counted");
        limited.count -= 1;
        limited.cost_ns -= cost_ns;
        next
    }

    /// Lets everything pass: there are no limits any more.
    pub fn pass_all(&mut self) {
        self.list.iter_mut().filter(|one| one.limited().is_some()).for_each(FrontRequest::grant);
        self.limited = Default::default();
    }

    /// Whether nothing may be read from the client because of a request that waits for a limit: a write, whose payload follows, or one
    /// that waits for long.
    #[inline]
    #[must_use]
    pub fn stops_for_limit(&self) -> Option<WaitsFor> {
        if self.limited() == 0 { None } else { self.find_stop() }
    }

    fn find_stop(&self) -> Option<WaitsFor> {
        let last = self.list.back()?;
        let stops = last.limited().is_some() && last.stops_stream()
            || self.limited.iter().any(|limited| {
                limited.count > 0 && limited.wait_ns.saturating_add(limited.cost_ns) > LIMITED_NS
            });
        let direction = last.limited().unwrap_or(LimitDirection::Read);
        stops.then_some(WaitsFor::Limit(direction))
    }

    /// Removes what the client sent; returns the requests.
    pub fn drop_clients(&mut self) -> impl Iterator<Item = FrontRequest> {
        self.limited = Default::default();
        let kept = usize::from(self.has_reread()) + self.again;
        self.list.split_off(kept).into_iter()
    }

    /// Removes everything; returns the requests.
    pub fn drain(&mut self) -> impl Iterator<Item = FrontRequest> {
        (self.limited, self.again) = (Default::default(), 0);
        std::mem::take(&mut self.list).into_iter()
    }

    /// Whether a request waits for something.
    #[must_use]
    pub fn is_waiting_for(&self, what: WaitsFor) -> bool {
        self.list.iter().any(|one| one.waits_for() == what)
    }
}

impl FrontRequest {
    fn limited_io(&self) -> Option<LimitedIo> {
        LimitedIo::of(self.request.op(), self.request.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_nbd::transmission::Request;
    use headworks_nbd::wire::{Command, CommandFlags};

    fn request(cookie: u64, command: Command, origin: Origin) -> FrontRequest {
        let flags = CommandFlags::NONE;
        let request = Request { cookie, offset: 0, len: 4096, command, flags };
        FrontRequest::new(request, origin, Instant(0))
    }

    /// Adds a request that waits for a limit; the first of its direction has to wait for 0.3 s.
    fn limited(waiting: &mut Waiting, mut one: FrontRequest, cost: (LimitDirection, u64)) {
        waiting.limit(&mut one, cost, || 300_000_000, Instant(0));
        waiting.push(one);
    }

    fn cookies(waiting: &Waiting) -> Vec<u64> {
        waiting.all().map(|one| one.request.cookie).collect()
    }

    #[test]
    fn replies_that_have_begun_come_first_and_returned_reads_next() {
        let mut waiting = Waiting::default();
        for (cookie, origin) in [
            (1, Origin::Client),
            (2, Origin::Again),
            (3, Origin::Again),
            (4, Origin::Reread),
            (5, Origin::Client),
            (6, Origin::Again),
        ] {
            waiting.push(request(cookie, Command::Read, origin));
        }
        assert_eq!(cookies(&waiting), [4, 2, 3, 6, 1, 5]);
        assert_eq!((waiting.len(), waiting.again(), waiting.has_reread()), (5, 3, true));
        let taken = waiting.take(1).unwrap();
        assert_eq!(waiting.again(), 2);
        waiting.put_back(1, taken);
        assert_eq!(waiting.drop_clients().count(), 2);
        assert_eq!(cookies(&waiting), [4, 2, 3, 6]);
        assert_eq!(waiting.drain().count(), 4);
        assert!(waiting.is_empty() && waiting.again() == 0);
    }

    #[test]
    fn requests_of_a_direction_pass_in_order_beside_the_other() {
        let (mut waiting, ms) = (Waiting::default(), 1_000_000);
        let [read, write] = LimitDirection::ALL;
        for (cookie, command, direction) in [
            (1, Command::Read, read),
            (2, Command::Trim, write),
            (3, Command::Read, read),
            (4, Command::Trim, write),
        ] {
            limited(&mut waiting, request(cookie, command, Origin::Client), (direction, 400 * ms));
        }
        assert_eq!((waiting.limited(), waiting.has_others()), (4, false));
        assert_eq!(waiting.stops_for_limit(), Some(WaitsFor::Limit(write)), "1.1 s");
        assert!(waiting.pass(write).is_some_and(|next| next.direction == write));
        assert!(waiting.pass(read).is_some() && waiting.stops_for_limit().is_none());
        assert_eq!((waiting.limited(), waiting.parked(), waiting.has_others()), (2, 4, true));
        assert_eq!(waiting.take(0).map(|mut one| one.settle(Instant(7)).is_none()), Some(false));
        assert_eq!(waiting.pass(read), None);
        waiting.pass_all();
        assert_eq!((waiting.limited(), waiting.len()), (0, 3));
    }

    #[test]
    fn write_that_waits_for_a_limit_stops_the_stream() {
        let mut waiting = Waiting::default();
        let [read, write] = LimitDirection::ALL;
        let of = |cookie, command| request(cookie, command, Origin::Client);
        limited(&mut waiting, of(1, Command::Read), (read, 1));
        assert_eq!(waiting.stops_for_limit(), None);
        limited(&mut waiting, of(2, Command::Write), (write, 1));
        assert_eq!(waiting.stops_for_limit(), Some(WaitsFor::Limit(write)));
        waiting.pass(write);
        assert_eq!(waiting.stops_for_limit(), None, "it is tried");
    }
}
