//! What a read may return: each cell holds a version that the contract allows, and none that an earlier read has ruled out.

use super::{
    ANY, CUT_RULE, CellState, DEAD, DEATH_RULE, NEVER, NIL, Oracle, Outcome, Ticket, Violation,
};
use crate::sector_pattern;
use crate::sector_pattern::{POISON, SECTOR, SectorContent};
use headworks_core::{Bio, WriteMode};

impl Oracle {
    pub(super) fn check_read(
        &mut self,
        bio: &Bio,
        ticket: Ticket,
        hole: bool,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        for cell in self.range(bio) {
            let volume = &self.volumes[usize::from(bio.id.volume.0)];
            let (number, at, len) = volume.place(cell);
            let offset = number * SECTOR as u64 + at as u64;
            let place = Some((bio.id.volume.0, offset));
            let start = (offset - bio.offset) as usize;
            let found = match hole {
                true => SectorContent::Version(0),
                false => self.identify(cell, &bytes[start..start + len], bio.id.volume.0),
            };
            let SectorContent::Version(version) = found else {
                // The bytes of a partial sector do not identify a version that is no longer
                // possible.
                let old = self.recovering && len < SECTOR && found == SectorContent::Garbage;
                return Err(Violation {
                    rule: if old && self.died {
                        DEATH_RULE
                    } else if old {
                        CUT_RULE
                    } else {
                        "a read returns what was written there"
                    },
                    detail: format!(
                        "{found:?} was read, but never written; {}",
                        self.describe(cell)
                    ),
                    place,
                });
            };
            let fits = match self.recovering {
                true => self.settle_survivor(cell, version),
                false => self.check_seen(cell, version, ticket.start),
            };
            if !fits {
                let rule = match self.recovering {
                    true if self.died => DEATH_RULE,
                    true => CUT_RULE,
                    false => "a completed write is seen by every later read",
                };
                return Err(Violation {
                    rule,
                    detail: format!(
                        "version {version} was read by a bio submitted at tick {}; {}",
                        ticket.start,
                        self.describe(cell)
                    ),
                    place,
                });
            }
        }
        Ok(())
    }

    /// Identifies the bytes of a cell. A part of a sector is compared with the possible versions
    /// only.
    pub(super) fn identify(&self, cell: usize, bytes: &[u8], volume: u16) -> SectorContent {
        let (sector, at, len) = self.volumes[usize::from(volume)].place(cell);
        if len == SECTOR {
            return sector_pattern::identify(bytes, volume, sector);
        }
        let base = self.cells[cell].base;
        let versions = self.list(cell).map(|(_, write)| write.version);
        let known = versions.chain((base < ANY).then_some(base));
        let mut known =
            known.filter(|&version| sector_pattern::is_part(bytes, version, volume, sector, at));
        let named = (at == 0).then(|| sector_pattern::named(bytes));
        let named =
            named.filter(|&version| sector_pattern::is_part(bytes, version, volume, sector, at));
        match known.next().or(named) {
            Some(version) => SectorContent::Version(version),
            None if bytes.iter().all(|&byte| byte == POISON) => SectorContent::Poison,
            None => SectorContent::Garbage,
        }
    }

    /// Whether a read begun at `start` may return `version`; fixes the order of writes if possible.
    pub(super) fn check_seen(&mut self, cell: usize, version: u64, start: u64) -> bool {
        let base = self.cells[cell].base;
        let is_base = base == version || base == ANY;
        if self.cells[cell].head == NIL {
            return is_base;
        }
        let line = self.last_superseding(cell, false, start);
        if line == 0 && is_base {
            return true;
        }
        // Of several writes of zeros the last in the list is the newest: the most likely one, and
        // the only safe one to fix.
        let mut at = self.cells[cell].head;
        let (mut seen, mut quiet, mut alone) = (NIL, true, line != 0 || base == DEAD);
        while at != NIL {
            let entry = &self.entries[at as usize];
            let write = &self.writes[entry.write as usize];
            quiet &= write.settled < start && write.outcome != Outcome::Discarded;
            if write.version == version && entry.end(write) >= line {
                alone &= seen == NIL;
                seen = if seen == NIL { at } else { seen };
            }
            at = entry.next;
        }
        if seen == NIL {
            return false;
        }
        let entry = &mut self.entries[seen as usize];
        let write = &self.writes[entry.write as usize];
        if quiet && alone && write.outcome == Outcome::Done && !entry.lost {
            entry.placed = self.tick;
        }
        true
    }

    /// Whether `version` may have survived; the cell holds it from now on.
    pub(super) fn settle_survivor(&mut self, cell: usize, version: u64) -> bool {
        let line = match self.died {
            true => self.last_superseding(cell, false, NEVER),
            false => self.last_superseding(cell, true, 0),
        };
        let base = self.cells[cell].base;
        let is_base = base == version || base == ANY;
        let fits = self.may_leave_any(cell) && !self.died
            || is_base && line == 0
            || self
                .list(cell)
                .any(|(entry, write)| write.version == version && entry.end(write) >= line);
        if fits {
            let newest = self.list(cell).next().map(|(_, write)| write.version);
            let survived = &mut self.survived[self.mode(cell) as usize];
            survived.cells += 1;
            survived.unflushed += u64::from(newest.is_some());
            survived.stale += u64::from(newest.is_some_and(|newest| newest != version));
            match self.volatile && self.cells[cell].head != NIL {
                true => self.add_found(cell, version),
                false => self.cells[cell] = CellState::of(version),
            }
        }
        fits
    }

    /// Whether a cut may leave any version, including dropped ones; whole sectors identify theirs.
    pub(super) fn may_leave_any(&self, cell: usize) -> bool {
        self.mode(cell) == WriteMode::Unsafe
    }

    pub(super) fn describe(&self, cell: usize) -> String {
        let mut text = match self.cells[cell].base {
            DEAD => String::from("it could hold"),
            ANY => String::from("it could hold any version"),
            base => format!("it could hold version {base}"),
        };
        for (entry, write) in self.list(cell) {
            let tick = |tick| match tick {
                NEVER => String::from("-"),
                tick => tick.to_string(),
            };
            text += &format!(
                ", version {} ({:?}{}{}, ticks {}..{})",
                write.version,
                write.outcome,
                if self.is_durable(write) { ", durable" } else { "" },
                if entry.lost { ", lost" } else { "" },
                entry.placed,
                tick(write.ended)
            );
        }
        text
    }
}
