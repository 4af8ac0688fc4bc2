//! Frozen volumes of a shard: their images do not change between a freeze and its end, so that a copy is of one point in time.
//!
//! ```text
//!              freeze                       thaw
//!   writable ----------> Frozen ---------------------------> writable, and what waited goes on
//!      ^                   `--until--> Ended (by itself) -----.
//!      `--------- thaw (is told that it had ended), or freeze '
//! ```
//!
//! A frozen volume's clients submit nothing that changes it: the connection keeps such a request, and reads nothing behind it
//! (`WaitsFor::Freeze`). Reads of other connections, and flushes, go on. What was
//! submitted before is waited for, written out and flushed by the control thread, as for `drain`.
//!
//! Invariants: a freeze has an end, whether anybody asks for it or not; one that ended by itself is remembered, so that the caller of
//! `thaw` learns that its copy is not of one point in time; a shard without freezes pays one comparison for each receive.

use headworks_core::{Instant, VolumeId};

use crate::reactor::messages::query::Thawed;

/// A volume that is frozen, or was.
#[derive(Clone, Copy, Debug)]
struct Freeze {
    volume: VolumeId,
    since: Instant,
    until: Instant,
    /// It ended by itself.
    ended: bool,
}

/// The frozen volumes of a shard; at most one entry for each volume.
#[derive(Debug, Default)]
pub(super) struct Freezes {
    all: Vec<Freeze>,
    /// When the last freeze of a volume ended, once for each.
    ends: Vec<(VolumeId, Instant)>,
}

impl Freezes {
    /// Whether a volume is frozen.
    #[inline]
    pub fn holds(&self, volume: VolumeId) -> bool {
        self.all.iter().any(|one| one.volume == volume && !one.ended)
    }

    /// Whether a volume is frozen now, or was at or after `since`.
    pub fn held_since(&self, volume: VolumeId, since: Instant) -> bool {
        let ended = |(other, end): &(VolumeId, Instant)| *other == volume && *end >= since;
        self.holds(volume) || self.ends.iter().any(ended)
    }

    /// Forgets a volume that is removed: another one may get its id.
    pub fn forget(&mut self, volume: VolumeId) {
        self.all.retain(|one| one.volume != volume);
        self.ends.retain(|(other, _)| *other != volume);
    }

    fn note_end(&mut self, volume: VolumeId, now: Instant) {
        self.ends.retain(|(other, _)| *other != volume);
        self.ends.push((volume, now));
    }

    /// The first frozen volume; none if there is none.
    pub fn first(&self) -> Option<VolumeId> {
        self.all.iter().find(|one| !one.ended).map(|one| one.volume)
    }

    /// Freezes a volume for `limit_ns` at most; false if it is frozen already.
    pub fn begin(&mut self, now: Instant, volume: VolumeId, limit_ns: u64) -> bool {
        if self.holds(volume) {
            return false;
        }
        self.all.retain(|one| one.volume != volume);
        let until = now.after(limit_ns);
        self.all.push(Freeze { volume, since: now, until, ended: false });
        true
    }

    /// Forgets a volume, and says how its freeze ended.
    pub fn end(&mut self, now: Instant, volume: VolumeId) -> Thawed {
        let Some(index) = self.all.iter().position(|one| one.volume == volume) else {
            return Thawed::WasNot;
        };
        let Freeze { since, until, ended, .. } = self.all.swap_remove(index);
        match ended {
            true => Thawed::HadEnded { after_ns: until.since(since) },
            false => {
                self.note_end(volume, now);
                Thawed::Now { after_ns: now.since(since) }
            }
        }
    }

    /// When the first freeze ends by itself.
    #[inline]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.all.iter().filter(|one| !one.ended).map(|one| one.until).min()
    }

    /// Ends a freeze whose time is over; returns its volume and length.
    pub fn expire(&mut self, now: Instant) -> Option<(VolumeId, u64)> {
        let late = |one: &&mut Freeze| !one.ended && one.until <= now;
        let one = self.all.iter_mut().find(late)?;
        one.ended = true;
        let (volume, length_ns) = (one.volume, one.until.since(one.since));
        self.note_end(volume, now);
        Some((volume, length_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn freeze_ends_by_itself_and_is_remembered_until_it_is_asked_for() {
        let (mut freezes, [a, b]) = (Freezes::default(), [3, 4].map(VolumeId));
        assert_eq!((freezes.next_timeout(), freezes.first()), (None, None));
        assert!(freezes.begin(Instant(0), a, 5 * SECOND));
        assert!(!freezes.begin(Instant(1), a, SECOND), "once");
        assert!(freezes.begin(Instant(SECOND), b, SECOND));
        assert_eq!(freezes.next_timeout(), Some(Instant(2 * SECOND)));
        assert_eq!(freezes.expire(Instant(2 * SECOND - 1)), None);
        assert_eq!(freezes.expire(Instant(2 * SECOND)), Some((b, SECOND)));
        assert_eq!(freezes.expire(Instant(3 * SECOND)), None);
        assert!(freezes.holds(a) && !freezes.holds(b));
        let late = Thawed::HadEnded { after_ns: SECOND };
        assert_eq!(freezes.end(Instant(4 * SECOND), b), late);
        assert_eq!(freezes.end(Instant(4 * SECOND), b), Thawed::WasNot, "it was told");
        assert_eq!(freezes.end(Instant(4 * SECOND), a), Thawed::Now { after_ns: 4 * SECOND });
        assert_eq!(freezes.next_timeout(), None);
        let ended = |since: u64| [a, b].map(|volume| freezes.held_since(volume, Instant(since)));
        assert_eq!(ended(2 * SECOND), [true, true]);
        assert_eq!((ended(3 * SECOND), ended(5 * SECOND)), ([true, false], [false, false]));
    }

    #[test]
    fn new_freeze_replaces_one_that_ended() {
        let (mut freezes, volume) = (Freezes::default(), VolumeId(0));
        assert!(freezes.begin(Instant(0), volume, SECOND));
        assert!(freezes.expire(Instant(SECOND)).is_some());
        assert!(freezes.begin(Instant(2 * SECOND), volume, SECOND));
        assert_eq!(freezes.first(), Some(volume));
        assert_eq!(freezes.end(Instant(2 * SECOND), volume), Thawed::Now { after_ns: 0 });
        assert!(freezes.held_since(volume, Instant(0)));
        freezes.forget(volume);
        assert!(
            !freezes.held_since(volume, Instant(0)),
            "the next volume of this id was not frozen"
        );
    }
}
