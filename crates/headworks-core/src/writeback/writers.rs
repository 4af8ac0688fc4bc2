//! The table of writers: one entry per connection, found by open addressing.
//!
//! ```text
//!            first block dirtied            batch full, above free-run
//!   known ------------------------> running --------------------------> paused
//!     ^                                | ^                                 |
//!     |  silent for a second           | |   resume: nothing owed          | resume: time still owed,
//!     '--------------------------------' '---------------------------------' because the rates fell: pause again
//! ```
//!
//! The table is allocated once. When it is full, all further connections share one entry and are throttled together as one
//! writer.
//!
//! Invariant: used + free entries == maximum + the shared entry.

/// A writer's index in the table, valid until its connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriterId(pub u32);

/// The fixed-point 1.0 of a [`Writer::weight`].
pub const WEIGHT_ONE: u32 = 1 << 16;

/// The [`Writer::until`] of a writer that is not paused.
pub const NEVER: u64 = u64::MAX;

/// The entry that connections share when the table is full.
const OVERFLOW: u32 = 0;

/// A free slot of the index.
const NONE: u32 = u32::MAX;

/// The throttle's state of one writer. Times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Writer {
    /// The connection of the writer.
    pub connection: u32,
    /// The device that it dirtied last.
    pub device: u16,
    /// The domain that it belongs to.
    pub domain: u16,
    /// Whether the entry is in use.
    pub known: bool,
    /// Whether it paused since its device was last in free-run. Its first pause gives it a random phase.
    pub spread: bool,
    /// The fraction of its share that it takes: 0 silent, [`WEIGHT_ONE`] all.
    pub weight: u32,
    /// Blocks dirtied since it was last charged.
    pub nr_dirtied: u32,
    /// Reduction of its next batch, in 256ths of a bio: see [`Writer::is_full`].
    pub dither: u8,
    /// Number of pauses, which seeds the jitter of the next one.
    pub pauses: u32,
    /// The virtual time up to which it has paid for its blocks: earlier than `now` is credit, later is debt.
    pub clock: u64,
    /// The last charge or end of a pause, from which think time counts.
    pub settled: u64,
    /// Its device's total wait for credit as of `settled`.
    pub short: u64,
    /// The time when it last dirtied a block.
    pub seen: u64,
    /// The end of its pause, or [`NEVER`].
    pub until: u64,
    /// The begin of its pause.
    pub began: u64,
    /// The pace by which `clock` was computed.
    pub pace: u64,
    /// What its first pause was shorter than its debt, in nanoseconds at `pace`: owed again when it leaves.
    pub forgiven: u64,
}

impl Writer {
    /// The entry of a new writer.
    fn new(connection: u32) -> Self {
        Self {
            connection,
            device: 0,
            domain: 0,
            known: true,
            spread: false,
            weight: 0,
            nr_dirtied: 0,
            dither: 0,
            pauses: 0,
            clock: 0,
            settled: 0,
            short: 0,
            seen: 0,
            until: NEVER,
            began: 0,
            pace: 1,
            forgiven: 0,
        }
    }

    /// Whether another bio of `blocks` would exceed the batch.
    ///
    /// A batch consists of whole bios. If all writers rounded it in one way, a pace near the border would make their periods jump
    /// together: the batch loses a bio, the pause gets *shorter*, late writers catch up with early ones, and all wake at once. So
    /// each writer rounds at a random point in each batch: mean periods follow the pace smoothly and phases mix. Batches of
    /// less than three bios are not reduced: a third less would cost a third more wake-ups.
    #[must_use]
    pub fn is_full(&self, blocks: u32, batch: u64) -> bool {
        let blocks = u64::from(blocks);
        let less = if batch >= 3 * blocks { blocks * u64::from(self.dither) / 256 } else { 0 };
        u64::from(self.nr_dirtied) + blocks + less > batch
    }
}

/// The table of writers.
#[derive(Clone, Debug)]
pub struct Writers {
    entries: Box<[Writer]>,
    /// Entries by connection with linear probing, at most half full.
    index: Box<[u32]>,
    free: Vec<u32>,
    /// The end of the entries that were ever used, which bounds scans.
    end: u32,
}

impl Writers {
    /// Creates a table for `max` connections (at least one) and the shared entry.
    #[must_use]
    pub fn new(max: u32) -> Self {
        let max = max.clamp(1, 1 << 24);
        let mut entries = vec![Writer { known: false, ..Writer::new(0) }; max as usize + 1];
        entries[OVERFLOW as usize].known = true;
        let slots = (max as usize * 2).next_power_of_two();
        Self {
            entries: entries.into_boxed_slice(),
            index: vec![NONE; slots].into_boxed_slice(),
            free: (1..=max).rev().collect(),
            end: 1,
        }
    }

    /// The connection's entry, created if necessary; the shared entry if the table is full.
    pub fn find_or_make(&mut self, connection: u32) -> WriterId {
        let at = self.probe(connection);
        if self.index[at] != NONE {
            return WriterId(self.index[at]);
        }
        let Some(entry) = self.free.pop() else { return WriterId(OVERFLOW) };
        assert!(!self.entries[entry as usize].known, "a free entry is in use");
        self.index[at] = entry;
        self.entries[entry as usize] = Writer::new(connection);
        self.end = self.end.max(entry + 1);
        WriterId(entry)
    }

    /// The connection's own entry, if it has one.
    #[must_use]
    pub fn find(&self, connection: u32) -> Option<WriterId> {
        let entry = self.index[self.probe(connection)];
        (entry != NONE).then_some(WriterId(entry))
    }

    /// Removes and returns the connection's entry. The shared entry is never removed.
    pub fn remove(&mut self, connection: u32) -> Option<(WriterId, Writer)> {
        let at = self.probe(connection);
        let entry = self.index[at];
        if entry == NONE {
            return None;
        }
        assert!(entry != OVERFLOW && self.entries[entry as usize].known);
        self.close_gap(at);
        self.free.push(entry);
        debug_assert!(self.free.len() < self.entries.len(), "more entries are free than exist");
        let was = self.entries[entry as usize];
        self.entries[entry as usize].known = false;
        self.entries[entry as usize].weight = 0;
        Some((WriterId(entry), was))
    }

    /// The entry of a writer.
    #[must_use]
    pub fn get(&self, writer: WriterId) -> &Writer {
        &self.entries[writer.0 as usize]
    }

    /// The entry of a writer, mutably.
    pub fn get_mut(&mut self, writer: WriterId) -> &mut Writer {
        &mut self.entries[writer.0 as usize]
    }

    /// All entries in use, the shared one included.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Writer> {
        self.entries[..self.end as usize].iter_mut().filter(|writer| writer.known)
    }

    /// The slot of the index that holds the connection, or where it belongs.
    fn probe(&self, connection: u32) -> usize {
        let mut at = self.home(connection);
        loop {
            let entry = self.index[at];
            if entry == NONE || self.entries[entry as usize].connection == connection {
                return at;
            }
            at = (at + 1) & (self.index.len() - 1);
        }
    }

    /// The slot where a probe for the connection begins.
    fn home(&self, connection: u32) -> usize {
        // Fibonacci hashing: consecutive connections land far apart.
        let hash = u64::from(connection).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        hash as usize & (self.index.len() - 1)
    }

    /// Empties a slot and moves up the entries that probed past it, so that no tombstones are needed.
    fn close_gap(&mut self, mut gap: usize) {
        let mask = self.index.len() - 1;
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let entry = self.index[at];
            if entry == NONE {
                break;
            }
            let home = self.home(self.entries[entry as usize].connection);
            // An entry moves if its home is not between the gap and itself.
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(gap) & mask) {
                self.index[gap] = entry;
                gap = at;
            }
        }
        debug_assert!(self.index[gap] != NONE, "a gap is closed where an entry was");
        self.index[gap] = NONE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;
    use std::collections::BTreeMap;

    #[test]
    fn table_behaves_like_a_map() {
        let (mut writers, mut model) = (Writers::new(60), BTreeMap::new());
        let mut prng = Prng::new(3);
        for _ in 0..50_000 {
            let connection = prng.below(90) as u32 * 7919;
            if prng.below(2) == 0 {
                let id = writers.find_or_make(connection);
                match model.get(&connection) {
                    Some(known) => assert_eq!(id, *known),
                    None if model.len() == 60 => assert_eq!(id, WriterId(OVERFLOW)),
                    None => {
                        assert!(!model.values().any(|other| *other == id));
                        assert_eq!(writers.get(id).weight, 0);
                        writers.get_mut(id).weight = 7;
                        model.insert(connection, id);
                    }
                }
            } else {
                let gone = writers.remove(connection).map(|(id, _)| id);
                assert_eq!(gone, model.remove(&connection));
            }
        }
    }

    #[test]
    fn batch_follows_the_pace_without_jumps() {
        // Bios of 16 blocks until it is full, over all places to round at.
        let bios = |batch: u64| -> u64 {
            let of = |dither: u8| {
                let mut writer = Writer { dither, ..Writer::new(1) };
                writer.nr_dirtied = 16;
                while !writer.is_full(16, batch) {
                    writer.nr_dirtied += 16;
                }
                u64::from(writer.nr_dirtied / 16)
            };
            (0..=255).map(of).sum()
        };
        for batch in 48..400 {
            let (less, more) = (bios(batch), bios(batch + 1));
            // A block more is a 16th of a bio more, in 256ths.
            assert!((less + 14..=less + 18).contains(&more), "{batch}: {less} {more}");
            assert!(more <= (batch + 1) * 16, "never more than a batch");
        }
        assert_eq!([bios(1), bios(16), bios(31), bios(32), bios(47)], [256, 256, 256, 512, 512]);
    }

    #[test]
    fn scan_visits_every_writer_once() {
        let mut writers = Writers::new(8);
        for connection in 10..14 {
            writers.find_or_make(connection);
        }
        writers.remove(11);
        let seen: Vec<u32> = writers.iter_mut().skip(1).map(|writer| writer.connection).collect();
        assert_eq!(seen, [10, 12, 13]);
    }
}
