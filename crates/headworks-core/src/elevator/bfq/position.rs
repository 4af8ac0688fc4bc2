//! Where requests lie, how far apart, and which of two is nearer to the head.

use super::settings::{SECTOR, SEEK_SECTORS, SMALL_SECTORS, Settings};
use crate::request::Request;

/// A place on a device: a sector of a volume. How two volumes lie to each other is not known: they are far apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub volume: u16,
    pub sector: u64,
}

/// The distance of two volumes, in sectors: further than any two places of one.
const FAR: u64 = 1 << 60;

impl Position {
    /// Returns where a request begins.
    pub fn of(request: &Request) -> Self {
        Self { volume: request.volume.0, sector: request.offset / SECTOR }
    }

    /// Returns where a request ends.
    pub fn after(request: &Request) -> Self {
        Self { volume: request.volume.0, sector: request.end().div_ceil(SECTOR) }
    }

    /// Returns the sectors between two places.
    pub fn distance(self, other: Self) -> u64 {
        if self.volume == other.volume { self.sector.abs_diff(other.sector) } else { FAR }
    }

    /// Returns the cost of moving the head from here to `to`; `None` for a place so far behind that the next sweep reaches it.
    fn cost(self, settings: &Settings, to: Self) -> Option<u64> {
        let ahead = (to.volume, to.sector) >= (self.volume, self.sector);
        let distance = self.distance(to);
        if ahead {
            return Some(distance);
        }
        (distance <= settings.back_seek_sectors).then(|| distance * settings.back_seek_penalty)
    }

    /// Returns true if `a` is served before `b` with the head here: the nearer one, of equals the higher, of those behind the sweep
    /// the lower.
    pub fn prefers(self, settings: &Settings, a: Self, b: Self) -> bool {
        let key = |place: Self| (place.volume, place.sector);
        match (self.cost(settings, a), self.cost(settings, b)) {
            (Some(x), Some(y)) if x != y => x < y,
            (Some(_), Some(_)) => key(a) >= key(b),
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (None, None) => key(a) <= key(b),
        }
    }
}

/// Returns the length of a request in sectors, at least 1: one that moves no data costs a command.
pub(super) fn sectors_of(request: &Request) -> u32 {
    let bytes = crate::queue::cost_bytes(request.op, request.len);
    u64::from(bytes).div_ceil(SECTOR).max(1) as u32
}

/// Returns whether a request after one that ended at `last` is seeky.
pub(super) fn is_seeky(settings: &Settings, last: Option<Position>, request: &Request) -> bool {
    let distance = last.map_or(0, |last| last.distance(Position::of(request)));
    distance > SEEK_SECTORS && (settings.rotational || sectors_of(request) < SMALL_SECTORS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::QueueOptions;

    /// P18: fixed vectors.
    #[test]
    fn back_seek_is_preferred_by_its_cost() {
        let settings = Settings::new(&QueueOptions::default());
        let at = |sector| Position { volume: 0, sector };
        let head = at(100_000);
        for (a, b, first) in [
            // Ahead: the nearer one. Behind: at twice the distance.
            (100_010, 100_020, true),
            (99_990, 100_019, false),
            (99_990, 100_021, true),
            // Equal cost: the higher.
            (99_990, 100_020, false),
            // 16 MiB behind is the most; further behind is wrapped, and goes last.
            (100_000 - 32_768, 100_000 + 65_537, true),
            (100_000 - 32_769, 900_000_000, false),
            // Both wrapped: the lower.
            (10, 20, true),
        ] {
            assert_eq!(head.prefers(&settings, at(a), at(b)), first, "{a} {b}");
            assert_eq!(head.prefers(&settings, at(b), at(a)), !first, "{b} {a}");
        }
        let other = Position { volume: 1, sector: 100_000 };
        assert!(head.prefers(&settings, at(900_000_000), other), "another volume is far");
    }

    #[test]
    fn seeky_depends_on_distance_and_on_flash_on_length() {
        let flash = Settings::new(&QueueOptions::default());
        let disk = Settings::new(&QueueOptions { rotational: true, ..QueueOptions::default() });
        let request = |len| Request { offset: 801 * 512, len, ..Request::default() };
        let last = Some(Position::default());
        assert!(is_seeky(&flash, last, &request(4096)) && is_seeky(&disk, last, &request(4096)));
        assert!(
            !is_seeky(&flash, last, &request(32_768)) && is_seeky(&disk, last, &request(32_768))
        );
        assert!(!is_seeky(&disk, Some(Position { volume: 0, sector: 1 }), &request(4096)));
        assert!(!is_seeky(&disk, None, &request(4096)), "nothing is known of the first request");
    }
}
