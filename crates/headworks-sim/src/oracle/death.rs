//! The death of the process: what it leaves is there, each block that was being written is old or new, and what only the kernel has is
//! durable with the next flush.

use headworks_core::cache::folio::BLOCK;

use super::{MIXED_RULE, NEVER, Oracle, Outcome, TornPart, Violation, WriteRecord};
use crate::sector_pattern::SECTOR;

impl Oracle {
    /// Records the death of the process; call [`Oracle::cut`] next. What it leaves may be `durable`, or is with the next flush.
    pub fn die(&mut self, durable: bool) {
        self.died = true;
        self.volatile = !durable;
        self.torn.clear();
        for cell in 0..self.cells.len() {
            let mut found: Vec<(u64, u64)> = Vec::new();
            for (entry, write) in self.list(cell) {
                if write.by_frames && write.settled == NEVER && !entry.lost {
                    found.push((write.version, entry.submitted));
                }
            }
            for (version, submitted) in found {
                let over = self.list(cell).filter(|(_, write)| write.ended >= submitted);
                let over = over.map(|(_, write)| write.version).collect();
                let block = self.block_of(cell);
                let last = self.torn.iter_mut().rev().find(|part| part.version == version);
                match last.filter(|part| part.cells.end == cell && part.block == block) {
                    Some(part) => {
                        part.cells.end += 1;
                        part.over.push(over);
                    }
                    None => {
                        let (cells, over) = (cell..cell + 1, vec![over]);
                        self.torn.push(TornPart { version, block, cells, over });
                    }
                }
            }
        }
        if self.volatile {
            self.end_all();
        }
    }

    /// Ends the writes in flight at the death of the process: of each block there is the old or the new, which the next flush makes durable.
    fn end_all(&mut self) {
        self.tick += 1;
        let tick = self.tick;
        for write in 0..self.writes.len() as u32 {
            let record = &mut self.writes[write as usize];
            if record.uses == 0 || record.settled != NEVER {
                continue;
            }
            record.settled = tick;
            if record.ended == NEVER {
                record.ended = tick;
                record.outcome = if record.discards { Outcome::Discarded } else { Outcome::Failed };
            }
            self.release(write);
        }
    }

    /// The volume and block of a cell.
    fn block_of(&self, cell: usize) -> (usize, u64) {
        let next = self.volumes.partition_point(|volume| volume.first_cell <= cell);
        let (sector, _, _) = self.volumes[next - 1].place(cell);
        (next - 1, sector * SECTOR as u64 / u64::from(BLOCK))
    }

    /// Checks that every block that was being written is old or new.
    pub(super) fn check_torn(&mut self) -> Result<(), Violation> {
        for TornPart { version, block: (volume, block), cells, over } in
            std::mem::take(&mut self.torn)
        {
            let found: Vec<u64> = cells.clone().map(|cell| self.newest(cell)).collect();
            let is_new = |(at, base): (usize, &u64)| *base == version || over[at].contains(base);
            let has_it = found.contains(&version);
            if has_it && !found.iter().enumerate().all(is_new) {
                return Err(Violation {
                    rule: MIXED_RULE,
                    detail: format!(
                        "of version {version}, block {block} of volume {volume} has {found:?}"
                    ),
                    place: Some((volume as u16, block * u64::from(BLOCK))),
                });
            }
        }
        Ok(())
    }

    /// Records what a death left in a cell as a write that has just been acknowledged.
    pub(super) fn add_found(&mut self, cell: usize, version: u64) {
        self.tick += 1;
        let (tick, volume) = (self.tick, self.volume_of(cell));
        let write = match self.found {
            Some((of, found, write)) if (of, found) == (volume, version) => write,
            _ => {
                self.release_found();
                let write = self.new_write(WriteRecord {
                    version,
                    ended: tick,
                    settled: tick,
                    outcome: Outcome::Done,
                    fua: false,
                    discards: false,
                    by_frames: false,
                    volume,
                    uses: 1,
                });
                self.found = Some((volume, version, write));
                write
            }
        };
        self.add(cell, write, tick);
    }

    pub(super) fn release_found(&mut self) {
        if let Some((.., write)) = self.found.take() {
            self.release(write);
        }
    }

    /// The version of a cell that was found last.
    fn newest(&self, cell: usize) -> u64 {
        self.list(cell).next().map_or(self.cells[cell].base, |(_, write)| write.version)
    }

    fn volume_of(&self, cell: usize) -> u16 {
        self.volumes.partition_point(|volume| volume.first_cell <= cell) as u16 - 1
    }
}
