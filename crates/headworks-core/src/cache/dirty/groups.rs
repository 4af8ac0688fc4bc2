//! What is dirty, by extents of 64 MiB: the flusher's stand-in for inodes.
//!
//! A group is an aligned 64 MiB of a volume of which at least one folio is dirty. It knows when its oldest data were dirtied
//! and holds its dirty folios in a list; a volume holds its groups in the order of that age. So age costs one entry per group,
//! not per block, and a write-out takes a whole neighbourhood in the order of addresses.
//!
//! ```text
//!   volume 0:  oldest -> [group 7: folios 3-1-2] -> [group 0: folios 9] -> youngest      by that age
//! ```
//!
//! The table is bounded. When it is full (dirty data scattered over more extents than there are entries), a folio joins the
//! youngest group of its volume instead: the order of addresses is then coarser, nothing else changes. Invariants: a folio is
//! in a group's list exactly while it is dirty and not held; a group has a folio; every volume can have one group at least.

use crate::bio::{ExportId, VolumeId};
use crate::cache::pool::folio::Folios;
use crate::slab::{NIL, Slab};
use crate::time::Instant;

/// log2 of a group's blocks: 64 MiB.
pub(crate) const GROUP_SHIFT: u32 = 14;

/// An extent with dirty folios.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// Whose.
    pub volume: VolumeId,
    /// Which 64 MiB of it.
    pub index: u64,
    /// Who dirtied it first: pays for its write-out.
    pub export: ExportId,
    /// When its oldest dirty data were dirtied.
    pub since: Instant,
    /// It is to be written at once, whatever its age.
    pub overdue: bool,
    /// Blocks of it were held and are tried again.
    pub unheld: bool,
    /// First of its dirty folios.
    pub head: u32,
    /// How many there are.
    pub folios: u32,
    /// Neighbours in the volume's list.
    older: u32,
    younger: u32,
    /// Next with the same hash.
    chain: u32,
}

impl Default for Group {
    fn default() -> Self {
        Self {
            volume: VolumeId(0),
            index: 0,
            export: ExportId(0),
            since: Instant(0),
            overdue: false,
            unheld: false,
            head: NIL,
            folios: 0,
            older: NIL,
            younger: NIL,
            chain: NIL,
        }
    }
}

/// A volume's groups.
#[derive(Clone, Copy, Debug)]
struct GroupList {
    oldest: u32,
    youngest: u32,
}

/// All groups of a shard.
#[derive(Debug)]
pub(crate) struct Groups {
    pool: Slab<Group>,
    heads: Vec<u32>,
    volumes: Vec<GroupList>,
    /// Frames of the folios in them: what a few dirty blocks keep from being evicted.
    units: u32,
    /// Groups that were walked by.
    #[cfg(test)]
    walked: std::cell::Cell<u64>,
}

impl Groups {
    /// Room for `units / 8` groups and one of each volume.
    pub fn new(units: u32, volumes: usize) -> Self {
        let room = units / 8 + volumes as u32 + 16;
        let ends = GroupList { oldest: NIL, youngest: NIL };
        Self {
            pool: Slab::new(room),
            heads: vec![NIL; room.next_power_of_two() as usize / 2],
            volumes: vec![ends; volumes],
            units: 0,
            #[cfg(test)]
            walked: std::cell::Cell::new(0),
        }
    }

    /// Bytes of its tables.
    #[cfg(test)]
    pub fn table_bytes(&self) -> usize {
        (self.pool.free() + self.pool.taken()) as usize * (size_of::<Group>() + 4)
            + self.heads.len() * 4
    }

    fn place(&self, volume: VolumeId, index: u64) -> usize {
        let word = (index << 12 ^ u64::from(volume.0)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (word >> 40) as usize & (self.heads.len() - 1)
    }

    fn find(&self, volume: VolumeId, index: u64) -> Option<u32> {
        let mut id = self.heads[self.place(volume, index)];
        while id != NIL {
            let group = &self.pool[id];
            if group.index == index && group.volume == volume {
                return Some(id);
            }
            id = group.chain;
        }
        None
    }

    /// A folio became dirty.
    pub fn add(&mut self, now: Instant, folios: &mut Folios, unit: u32, export: ExportId) {
        let key = folios[unit].key;
        let (volume, index) = (key.volume(), key.block() >> GROUP_SHIFT);
        let id = self.find(volume, index).unwrap_or_else(|| self.begin(now, volume, index, export));
        let group = &mut self.pool[id];
        let head = std::mem::replace(&mut group.head, unit);
        group.folios += 1;
        let folio = &mut folios[unit];
        self.units += folio.blocks();
        (folio.group, folio.dirty_prev, folio.dirty_next) = (id, NIL, head);
        if head != NIL {
            folios[head].dirty_prev = unit;
        }
    }

    fn begin(&mut self, now: Instant, volume: VolumeId, index: u64, export: ExportId) -> u32 {
        let youngest = self.volumes[usize::from(volume.0)].youngest;
        // The last entries are for volumes that have none.
        let scarce = self.pool.free() <= self.volumes.len() as u32 && youngest != NIL;
        let taken = if scarce { None } else { self.pool.try_take() };
        let Some(id) = taken else {
            return youngest;
        };
        let place = self.place(volume, index);
        let chain = std::mem::replace(&mut self.heads[place], id);
        self.pool[id] = Group { volume, index, export, since: now, chain, ..Group::default() };
        self.link(id);
        id
    }

    /// A folio is clean, held or gone. Its group ends with its last folio; true then.
    pub fn remove(&mut self, folios: &mut Folios, unit: u32) -> bool {
        let folio = &mut folios[unit];
        self.units -= folio.blocks();
        let id = std::mem::replace(&mut folio.group, NIL);
        let (prev, next) = (folio.dirty_prev, folio.dirty_next);
        (folio.dirty_prev, folio.dirty_next) = (NIL, NIL);
        match prev {
            NIL => self.pool[id].head = next,
            prev => folios[prev].dirty_next = next,
        }
        if next != NIL {
            folios[next].dirty_prev = prev;
        }
        let group = &mut self.pool[id];
        group.folios -= 1;
        if group.folios > 0 {
            return false;
        }
        let place = self.place(self.pool[id].volume, self.pool[id].index);
        self.unchain(place, id);
        self.unlink(id);
        self.pool.put(id);
        true
    }

    fn unchain(&mut self, place: usize, id: u32) {
        let next = self.pool[id].chain;
        let mut at = self.heads[place];
        if at == id {
            self.heads[place] = next;
            return;
        }
        while self.pool[at].chain != id {
            at = self.pool[at].chain;
        }
        self.pool[at].chain = next;
    }

    /// Enters a group in front of all others of its volume: none can be older.
    fn link_first(&mut self, id: u32) {
        let ends = &mut self.volumes[usize::from(self.pool[id].volume.0)];
        let younger = std::mem::replace(&mut ends.oldest, id);
        match younger {
            NIL => ends.youngest = id,
            other => self.pool[other].older = id,
        }
        let group = &mut self.pool[id];
        (group.older, group.younger) = (NIL, younger);
    }

    /// Enters a group behind those that are as old, mostly at the young end.
    fn link(&mut self, id: u32) {
        let Group { volume, since, .. } = self.pool[id];
        let mut older = self.volumes[usize::from(volume.0)].youngest;
        while older != NIL && self.pool[older].since > since {
            #[cfg(test)]
            self.walked.set(self.walked.get() + 1);
            older = self.pool[older].older;
        }
        let ends = &mut self.volumes[usize::from(volume.0)];
        let younger = match older {
            NIL => std::mem::replace(&mut ends.oldest, id),
            other => std::mem::replace(&mut self.pool[other].younger, id),
        };
        match younger {
            NIL => ends.youngest = id,
            other => self.pool[other].older = id,
        }
        let group = &mut self.pool[id];
        (group.older, group.younger) = (older, younger);
    }

    fn unlink(&mut self, id: u32) {
        let Group { older, younger, volume, .. } = self.pool[id];
        let ends = &mut self.volumes[usize::from(volume.0)];
        match older {
            NIL => ends.oldest = younger,
            other => self.pool[other].younger = younger,
        }
        match younger {
            NIL => ends.youngest = older,
            other => self.pool[other].older = older,
        }
    }

    /// What is dirty of it now was dirtied at `since` or later.
    pub fn requeue(&mut self, since: Instant, id: u32) {
        self.unlink(id);
        let group = &mut self.pool[id];
        (group.since, group.overdue, group.unheld) = (since, false, false);
        self.link(id);
    }

    /// Blocks of it were held and are to be written again.
    pub fn mark_unheld(&mut self, id: u32) {
        self.pool[id].unheld = true;
    }

    /// Those of a volume of which blocks were held are the next to be written, whatever their age; they keep their order.
    pub fn hurry(&mut self, volume: VolumeId) {
        let mut at = self.volumes[usize::from(volume.0)].youngest;
        while at != NIL {
            let id = at;
            at = self.pool[id].older;
            if self.pool[id].unheld {
                self.unlink(id);
                let group = &mut self.pool[id];
                (group.since, group.overdue, group.unheld) = (Instant(0), true, false);
                self.link_first(id);
            }
        }
    }

    /// The oldest group of a volume.
    pub fn oldest(&self, volume: VolumeId) -> Option<u32> {
        let id = self.volumes[usize::from(volume.0)].oldest;
        (id != NIL).then_some(id)
    }

    /// The next younger one.
    pub fn younger(&self, id: u32) -> Option<u32> {
        let younger = self.pool[id].younger;
        (younger != NIL).then_some(younger)
    }

    /// Frames of the folios in them.
    pub fn units(&self) -> u32 {
        self.units
    }

    /// Nothing is to be written.
    pub fn is_empty(&self) -> bool {
        self.pool.taken() == 0
    }

    /// Whether there is a group of that name.
    pub fn exists(&self, id: u32) -> bool {
        self.pool.is_taken(id)
    }
}

impl std::ops::Index<u32> for Groups {
    type Output = Group;

    fn index(&self, id: u32) -> &Group {
        &self.pool[id]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::folio::FolioKey;
    use crate::prng::Prng;

    fn all(groups: &Groups, folios: &Folios, volume: u16) -> Vec<u32> {
        let mut units = Vec::new();
        let mut at = groups.oldest(VolumeId(volume));
        while let Some(id) = at {
            let mut unit = groups[id].head;
            let mut count = 0;
            while unit != NIL {
                assert_eq!(folios[unit].group, id);
                units.push(unit);
                count += 1;
                unit = folios[unit].dirty_next;
            }
            assert_eq!(count, groups[id].folios);
            assert!(count > 0, "a group has a folio");
            at = groups.younger(id);
        }
        units.sort_unstable();
        units
    }

    #[test]
    fn folios_come_and_go_and_every_one_is_in_one_list_even_when_the_table_is_full() {
        let mut folios = Folios::new(512);
        let mut groups = Groups::new(512, 2);
        let mut prng = Prng::new(5);
        let mut dirty = [Vec::new(), Vec::new()];
        for unit in 0..512 {
            // Far more extents than the table has entries.
            let block = prng.below(1 << 30);
            folios.begin(unit, FolioKey::new(VolumeId((unit % 2) as u16), block, 0), 0);
        }
        for _ in 0..20_000 {
            let unit = prng.below(512) as u32;
            let list: &mut Vec<u32> = &mut dirty[(unit % 2) as usize];
            match list.iter().position(|&other| other == unit) {
                Some(at) => {
                    list.swap_remove(at);
                    groups.remove(&mut folios, unit);
                }
                None => {
                    list.push(unit);
                    groups.add(Instant(0), &mut folios, unit, ExportId(0));
                }
            }
        }
        for (volume, mut list) in dirty.into_iter().enumerate() {
            list.sort_unstable();
            assert_eq!(all(&groups, &folios, volume as u16), list);
        }
    }

    #[test]
    fn one_extent_is_one_group_and_age_is_the_first_folios() {
        let mut folios = Folios::new(64);
        let mut groups = Groups::new(64, 1);
        for unit in 0..4 {
            folios.begin(unit, FolioKey::new(VolumeId(0), u64::from(unit) * 5000, 0), 0);
            groups.add(Instant(unit.into()), &mut folios, unit, ExportId(1));
        }
        // Blocks 0, 5000, 10000 and 15000 lie within 16384.
        let first = groups.oldest(VolumeId(0)).unwrap();
        assert_eq!((groups[first].folios, groups[first].since), (4, Instant(0)));
        folios.begin(9, FolioKey::new(VolumeId(0), 1 << 20, 0), 0);
        groups.add(Instant(9), &mut folios, 9, ExportId(1));
        let second = groups.younger(first).unwrap();
        groups.requeue(Instant(20), first);
        assert_eq!(groups.oldest(VolumeId(0)), Some(second));
        assert!(groups.remove(&mut folios, 9) && !groups.exists(second));
        assert_eq!(groups.oldest(VolumeId(0)), Some(first));
    }

    #[test]
    fn what_was_held_comes_first_in_its_order_however_much_it_is() {
        let (units, mut wanted) = (1 << 15, [Vec::new(), Vec::new()]);
        let mut folios = Folios::new(units);
        let mut groups = Groups::new(units, 2);
        for unit in 0..4096 {
            folios.begin(unit, FolioKey::new(VolumeId(0), u64::from(unit) << GROUP_SHIFT, 0), 0);
            groups.add(Instant(1 + u64::from(unit)), &mut folios, unit, ExportId(0));
            let held = unit % 3 != 0;
            wanted[usize::from(!held)].push(unit);
            if held {
                groups.mark_unheld(folios[unit].group);
            }
        }
        groups.hurry(VolumeId(0));
        groups.hurry(VolumeId(1));
        let first = groups.oldest(VolumeId(0));
        let order: Vec<u32> = std::iter::successors(first, |&id| groups.younger(id)).collect();
        let units: Vec<u32> = order.iter().map(|&id| groups[id].head).collect();
        assert_eq!(units, wanted.concat());
        for (at, &id) in order.iter().enumerate() {
            let hurried = at < wanted[0].len();
            assert_eq!((groups[id].overdue, groups[id].since == Instant(0)), (hurried, hurried));
        }
        assert!(groups.walked.get() < 4096, "{} groups were walked by", groups.walked.get());
        for unit in 0..4096 {
            assert!(groups.remove(&mut folios, unit));
        }
        assert!(groups.is_empty() && groups.oldest(VolumeId(0)).is_none());
    }

    #[test]
    fn the_table_is_small() {
        let groups = Groups::new(1 << 18, 16);
        assert!(groups.table_bytes() <= 9 << 18, "{}", groups.table_bytes());
    }
}
