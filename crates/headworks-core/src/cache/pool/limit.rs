//! How many frames the pool may use: its *limit*, within the room that was reserved for it at the start.
//!
//! ```text
//!   frames   |  in use: folios, shadows, granted  |  free  |  withheld: given back  |  not in the tables yet
//!            |<---------------- usable ---------->|                                  |                      |
//!            |<------------------------ units of the tables ----------------------->|                      |
//!            |<----------------------------------------- room ------------------------------------------->|
//! ```
//!
//! The tables begin small and grow when frames are needed, so a large limit costs nothing before it is used. Below a lowered limit
//! the pool comes by withholding: free frames, and those of evicted folios, whose memory is given back. A raised limit restores
//! withheld frames before the tables grow, when they are needed.
//!
//! Where the driver answers for memory, the tables grow only over frames that have it, and a withheld frame, whose memory was given
//! back, is asked for before it is restored:
//!
//! ```text
//!   frames   |  units of the tables  |  backed: have memory  |  prepared: asked for  |
//! ```
//!
//! The limit decides over the frames that it is given; `growth` has what the pool does by it.
//!
//! Invariants: `usable` = units of the tables - withheld; the tables grow and frames are restored only while `usable` < limit
//! <= room; with answers units of the tables <= backed <= prepared, and while memory is refused limit <= backed - withheld, or the
//! smallest pool.

use crate::buddy::Buddy;
use crate::options::CacheOptions;

/// Units of the tables at the start: 4 MiB of frames.
pub(super) const UNITS_FIRST: u32 = CacheOptions::BACKED_MIN;
/// Units by which the tables grow, and that are restored, at once: 4 MiB of frames, whose tables are written in some 10 us.
pub(super) const UNITS_MORE: u32 = 1024;
/// The most units that are prepared beyond the tables: 64 MiB of frames. Less while the cache is small.
pub(super) const AHEAD_MAX: u32 = 16_384;
/// The lowest limit: the smallest pool, with its shadow frames and room for those of clients.
const UNITS_LEAST: u32 = CacheOptions::UNITS_MIN;

/// The limit of a pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    /// Units for which the tables have room.
    room: u32,
    /// Units that the pool may use.
    most: u32,
    /// Units whose memory was asked for; those of the tables and some beyond.
    prepared: u32,
    /// The limit that was set; `most` is less while memory is refused.
    set: u32,
    /// Units that have memory; none without answers.
    backed: Option<u32>,
    /// Withheld units whose memory was asked for.
    asked: u32,
    /// Withheld frames are needed.
    wants_withheld: bool,
    /// Memory was refused, and not had since.
    refused: bool,
}

impl Limit {
    /// The limit of a pool that may use all of its room.
    pub fn of(cache: &CacheOptions) -> Self {
        let room = cache.units;
        let backed = (cache.backed != u32::MAX).then_some(cache.backed.min(room));
        Self {
            room,
            most: room,
            prepared: backed.unwrap_or(0),
            set: room,
            backed,
            asked: 0,
            wants_withheld: false,
            refused: false,
        }
    }

    /// Returns the units that the pool may use.
    #[inline]
    pub fn get(&self) -> u32 {
        self.most
    }

    /// Returns the units for which the tables have room.
    pub fn room(&self) -> u32 {
        self.room
    }

    /// Sets the limit: at most the room, at least the smallest pool.
    pub fn set(&mut self, frames: &Buddy, units: u32) {
        self.set = units.clamp(self.least(), self.room);
        self.apply(frames);
    }

    /// Returns the smallest limit.
    fn least(&self) -> u32 {
        UNITS_LEAST.min(self.room)
    }

    fn apply(&mut self, frames: &Buddy) {
        let has = self.backed.filter(|_| self.refused);
        let has = has.map_or(u32::MAX, |backed| backed - frames.withheld());
        self.most = self.set.min(has.max(self.least()));
    }

    /// Notes that the first `units` have memory, as another process has used them since this pool was made.
    pub fn on_adopted(&mut self, units: u32) {
        self.backed = self.backed.map(|backed| backed.max(units));
        self.prepared = self.prepared.max(self.backed.unwrap_or(0));
    }

    /// Takes an answer for frames whose memory was asked for: they have it, or there is none at present.
    pub fn on_memory(&mut self, frames: &mut Buddy, first: u32, units: u32, had: bool) {
        let Some(backed) = &mut self.backed else { return };
        self.refused = !had;
        if first < frames.units() {
            let order = units.checked_ilog2().unwrap_or(0) as u8;
            if had && frames.answer(first, order, true) {
                self.asked -= 1 << order;
            }
        } else if had {
            debug_assert!(first == *backed, "memory is answered in the order of the frames");
            *backed = first.saturating_add(units).clamp(*backed, self.prepared);
        }
        self.apply(frames);
    }

    /// Returns the units that are used beyond the limit.
    pub fn excess(&self, frames: &Buddy) -> u32 {
        usable(frames).saturating_sub(self.most)
    }

    /// Returns how frames become free within the limit when no block of `order` is: how many withheld units are restored, and by how
    /// many the tables grow. Both are 0 at the limit, and while memory is asked for.
    pub fn extend(&mut self, frames: &Buddy, order: u8) -> (u32, u32) {
        let left = self.most.saturating_sub(usable(frames));
        let wanted = UNITS_MORE.max(2 << order).min(left);
        if self.backed.is_none() && frames.withheld() > 0 {
            return (wanted, 0);
        }
        if wanted > 0 {
            self.wants_withheld = self.backed.is_some() && frames.withheld() > self.asked;
        }
        (0, wanted.min(self.tables_max() - frames.units()))
    }

    /// Returns true if the pool may grow as soon as memory is answered for.
    pub fn awaits_memory(&self, frames: &Buddy) -> bool {
        self.backed.is_some() && !self.refused && usable(frames) < self.most
    }

    /// Returns the units that the tables may have now.
    pub fn tables_max(&self) -> u32 {
        self.backed.unwrap_or(self.room)
    }

    /// Returns the units beyond the tables that are to be prepared, once each: their first one, and how many. As many as the tables
    /// have, so that a small cache takes little; none before the tables grow. With answers also withheld units that are needed,
    /// and one range beyond the tables at a time.
    pub fn prepare(&mut self, frames: &mut Buddy) -> Option<(u32, u32)> {
        let (units, answers) = (frames.units(), self.backed.is_some());
        if self.wants_withheld {
            let left = self.most.saturating_sub(usable(frames)).min(UNITS_MORE);
            let asked = frames.ask(left.saturating_sub(self.asked));
            self.wants_withheld = asked.is_some();
            if let Some((unit, order)) = asked {
                self.asked += 1 << order;
                return Some((unit, 1 << order));
            }
        }
        let is_early = units <= UNITS_FIRST && !answers;
        if is_early || self.is_unanswered() {
            return None;
        }
        let first = self.prepared.max(units);
        let end = units.saturating_add(units.min(AHEAD_MAX)).min(self.most);
        let count = end.saturating_sub(first);
        self.prepared = first.max(end);
        debug_assert!(self.prepared <= self.room, "the room is what is mapped");
        (count > 0).then_some((first, count))
    }

    /// Returns true while memory beyond the tables is asked for.
    fn is_unanswered(&self) -> bool {
        self.backed.is_some_and(|backed| backed < self.prepared)
    }

    /// Returns prepared units beyond the tables that the limit does not allow any more, to be released.
    pub fn unprepare(&mut self, frames: &Buddy) -> Option<(u32, u32)> {
        if self.is_unanswered() {
            // What is asked for may be had at any moment.
            return None;
        }
        let first = self.most.max(frames.units());
        let count = self.prepared.saturating_sub(first);
        self.prepared -= count;
        self.backed = self.backed.map(|backed| backed - count);
        (count > 0).then_some((first, count))
    }
}

/// Returns the units of the tables that are not withheld.
fn usable(frames: &Buddy) -> u32 {
    frames.units() - frames.withheld()
}
