//! One direction of a client's link: how many bytes may move at an instant of virtual time.

use headworks_core::Instant;
use headworks_core::time::{MS, SEC};

/// Time for which an idle link saves up what it might have moved.
const SAVED_NS: u64 = 5 * MS;

/// A direction of a link.
#[derive(Clone, Copy, Debug)]
pub struct Pipe {
    /// Bytes a second; 0: nothing moves.
    pub rate: u64,
    /// Most bytes that lie at the other end unread.
    pub room: usize,
    /// Bytes move so many at a time or not at all, as the records of TLS do, unless these are the last ones.
    pub unit: usize,
    /// The link breaks after so many bytes.
    pub cut_at: Option<u64>,
    /// Bytes that have moved.
    pub moved: u64,
    /// The time up to which the rate is used up.
    used_until: Instant,
}

impl Pipe {
    /// A link that begins at `now`.
    #[must_use]
    pub fn new(rate: u64, room: usize, unit: usize, now: Instant) -> Self {
        Self { rate, room, unit: unit.max(1), cut_at: None, moved: 0, used_until: now }
    }

    /// Whether it has broken.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.cut_at.is_some_and(|at| self.moved >= at)
    }

    /// Bytes that may move now, of `waiting` ones, while `unread` lie at the other end.
    #[must_use]
    pub fn allowed(&self, now: Instant, waiting: usize, unread: usize) -> usize {
        let saved = u128::from(now.since(self.used_until).min(self.saves_ns()));
        let by_rate = (saved * u128::from(self.rate) / u128::from(SEC)) as usize;
        let before_cut =
            self.cut_at.map_or(usize::MAX, |at| at.saturating_sub(self.moved) as usize);
        let most = by_rate.min(self.room.saturating_sub(unread)).min(before_cut);
        match waiting {
            _ if waiting <= most => waiting,
            _ if before_cut == most => most,
            _ => most / self.unit * self.unit,
        }
    }

    /// Notes that bytes have moved.
    pub fn note(&mut self, now: Instant, count: usize) {
        if count == 0 || self.rate == 0 {
            return;
        }
        self.moved += count as u64;
        let from = self.used_until.0.max(now.0.saturating_sub(self.saves_ns()));
        let took = (count as u128 * u128::from(SEC)).div_ceil(u128::from(self.rate));
        self.used_until = Instant(from + took as u64);
    }

    /// When the rate lets something move of `waiting` bytes, at most a thousand times a second; none if it never does.
    #[must_use]
    pub fn next(&self, waiting: usize) -> Option<Instant> {
        if self.rate == 0 || waiting == 0 {
            return None;
        }
        let count = self.unit.max((self.rate / 1000) as usize).min(waiting) as u128;
        let takes = (count * u128::from(SEC)).div_ceil(u128::from(self.rate));
        Some(self.used_until.after(takes as u64))
    }

    /// The link has another rate from now on.
    pub fn set_rate(&mut self, now: Instant, rate: u64) {
        self.rate = rate;
        self.used_until = now;
    }

    /// What an idle link saves up: at least a unit.
    fn saves_ns(&self) -> u64 {
        let unit = self.unit as u64 * SEC / self.rate.max(1) + 1;
        SAVED_NS.max(unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipe_keeps_its_rate_its_units_and_its_room() {
        let mut pipe = Pipe::new(1_000_000, 10_000, 4_000, Instant(0));
        assert_eq!(pipe.allowed(Instant(3 * MS), 50_000, 0), 0, "3000 bytes are no unit");
        assert_eq!(pipe.allowed(Instant(3 * MS), 2_500, 0), 2_500, "the last ones");
        assert_eq!(pipe.allowed(Instant(4 * MS), 50_000, 0), 4_000);
        assert_eq!(pipe.allowed(Instant(900 * MS), 50_000, 0), 4_000, "saved up for 5 ms");
        assert_eq!(pipe.allowed(Instant(4 * MS), 50_000, 9_000), 0);
        pipe.note(Instant(4 * MS), 4_000);
        assert_eq!(
            (pipe.allowed(Instant(4 * MS), 9, 0), pipe.next(50_000)),
            (0, Some(Instant(8 * MS)))
        );
        pipe.cut_at = Some(4_100);
        assert_eq!(pipe.allowed(Instant(8 * MS), 50_000, 0), 100);
        pipe.note(Instant(8 * MS), 100);
        assert!(pipe.is_cut());
    }
}
