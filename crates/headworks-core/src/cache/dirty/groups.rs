//! Extent groups: what is dirty, by extents of 64 MiB. They serve the flusher as inodes serve Linux's write-back.
//!
//! A group is an aligned 64 MiB of a volume of which at least one folio is dirty. It records when its oldest data was dirtied and
//! lists its dirty folios; a volume lists its groups in the order of that age. So age costs one entry for each group, not for each
//! block, and a pass writes a whole neighbourhood in the order of addresses.
//!
//! ```text
//!   volume 0:  oldest -> [group 7: folios 3-1-2] -> [group 0: folios 9] -> youngest      by age
//! ```
//!
//! A second list of the volume has the groups that are *filled*: since they were visited last, their folios have reached the floor
//! of the volume. In the background a flusher visits these, in the order in which they were filled, and leaves nearly empty ones
//! until they are filled or old: a visit to a stream costs a seek, however little it finds.
//!
//! The table is bounded. When it is full (dirty data scattered over more extents than there are entries), a folio joins the
//! youngest group of its volume instead: the order of addresses becomes coarser, nothing else changes.
//!
//! Invariants: a folio is on a group's list exactly while a block of it is dirty and not held; a group has at least one folio; every
//! volume can have at least one group; `units` is the sum of the folios on all lists, a group's `units` that of its own; `sparse` is
//! the sum of `units` over the groups that are not filled.

use crate::bio::{ExportId, VolumeId};
use crate::cache::pool::folio::Folios;
use crate::gauge::Gauge32;
use crate::slab::{NIL, Slab};
use crate::time::Instant;

/// The log2 of a group's blocks: 64 MiB.
pub(crate) const GROUP_SHIFT: u32 = 14;

/// An extent with dirty folios.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// The volume of the extent.
    pub volume: VolumeId,
    /// The number of the extent on its volume, in 64 MiB.
    pub index: u64,
    /// The export that dirtied it first, which is charged for its write-out.
    pub export: ExportId,
    /// The time at which its oldest dirty data was dirtied.
    pub since: Instant,
    /// The group is to be written at once, whatever its age.
    pub overdue: bool,
    /// Blocks of it were held and are to be written again.
    pub unheld: bool,
    /// The group is on its volume's list of filled groups.
    filled: bool,
    /// The first of its dirty folios.
    pub head: u32,
    /// The number of its dirty folios.
    pub folios: u32,
    /// The units of its dirty folios.
    pub units: u32,
    /// The next older and younger group of the volume.
    older: u32,
    younger: u32,
    /// The groups that were filled before and after it.
    filled_before: u32,
    filled_after: u32,
    /// The next group with the same hash.
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
            filled: false,
            head: NIL,
            folios: 0,
            units: 0,
            older: NIL,
            younger: NIL,
            filled_before: NIL,
            filled_after: NIL,
            chain: NIL,
        }
    }
}

/// The most groups, beside one of each volume: those of 16 TiB, in 1 MiB of hash chains.
const GROUPS_MAX: u32 = 1 << 18;

/// Units at which a group is filled before its volume's floor is known: 1 MiB.
const FLOOR: u32 = 256;

/// The groups of a volume, by age, and the filled ones in the order in which they were filled.
#[derive(Clone, Copy, Debug)]
struct GroupList {
    oldest: u32,
    youngest: u32,
    first_filled: u32,
    last_filled: u32,
    /// Units at which a group is filled.
    floor: u32,
}

impl Default for GroupList {
    fn default() -> Self {
        Self { oldest: NIL, youngest: NIL, first_filled: NIL, last_filled: NIL, floor: FLOOR }
    }
}

/// The extent groups of a shard.
#[derive(Debug)]
pub(crate) struct Groups {
    pool: Slab<Group>,
    heads: Vec<u32>,
    volumes: Vec<GroupList>,
    /// Units of the folios on all lists: what dirty blocks keep from eviction.
    units: Gauge32,
    /// Units of the groups that are not filled.
    sparse: Gauge32,
    /// Groups that were passed while sorting.
    #[cfg(test)]
    walked: std::cell::Cell<u64>,
}

impl Groups {
    /// Creates a table for `units / 8` groups, at most [`GROUPS_MAX`], and one of each volume.
    pub fn new(units: u32, volumes: usize) -> Self {
        let room = (units / 8).min(GROUPS_MAX) + volumes as u32 + 16;
        Self {
            pool: Slab::new(room),
            heads: vec![NIL; room.next_power_of_two() as usize / 2],
            volumes: vec![GroupList::default(); volumes],
            units: Gauge32::default(),
            sparse: Gauge32::default(),
            #[cfg(test)]
            walked: std::cell::Cell::new(0),
        }
    }

    /// Returns the size of the tables in bytes.
    #[cfg(test)]
    pub fn table_bytes(&self) -> usize {
        (self.pool.free() + self.pool.taken()) as usize * (size_of::<Group>() + 4)
            + self.heads.len() * 4
    }

    /// Returns the hash chain of an extent.
    fn chain_of(&self, volume: VolumeId, index: u64) -> usize {
        let word = (index << 12 ^ u64::from(volume.0)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (word >> 40) as usize & (self.heads.len() - 1)
    }

    fn find(&self, volume: VolumeId, index: u64) -> Option<u32> {
        let mut id = self.heads[self.chain_of(volume, index)];
        while id != NIL {
            let group = &self.pool[id];
            if group.index == index && group.volume == volume {
                return Some(id);
            }
            id = group.chain;
        }
        None
    }

    /// Adds a folio that became dirty to the group of its extent.
    pub fn add(&mut self, now: Instant, folios: &mut Folios, unit: u32, export: ExportId) {
        let key = folios[unit].key;
        let (volume, index) = (key.volume(), key.block() >> GROUP_SHIFT);
        assert!(folios[unit].group == NIL, "a folio is in one group");
        let id = self.find(volume, index).unwrap_or_else(|| self.begin(now, volume, index, export));
        let group = &mut self.pool[id];
        let head = std::mem::replace(&mut group.head, unit);
        group.folios += 1;
        let folio = &mut folios[unit];
        let blocks = folio.blocks();
        group.units += blocks;
        self.units.add(blocks);
        if !group.filled {
            self.sparse.add(blocks);
        }
        if group.units >= self.volumes[usize::from(group.volume.0)].floor && !group.filled {
            self.fill(id);
        }
        let folio = &mut folios[unit];
        (folio.group, folio.dirty_prev, folio.dirty_next) = (id, NIL, head);
        if head != NIL {
            folios[head].dirty_prev = unit;
        }
    }

    fn begin(&mut self, now: Instant, volume: VolumeId, index: u64, export: ExportId) -> u32 {
        let youngest = self.volumes[usize::from(volume.0)].youngest;
        // The last entries are reserved for volumes without a group.
        let scarce = self.pool.free() <= self.volumes.len() as u32 && youngest != NIL;
        let taken = if scarce { None } else { self.pool.try_take() };
        let Some(id) = taken else {
            return youngest;
        };
        let place = self.chain_of(volume, index);
        let chain = std::mem::replace(&mut self.heads[place], id);
        self.pool[id] = Group { volume, index, export, since: now, chain, ..Group::default() };
        self.link(id);
        id
    }

    /// Removes a folio that is clean, held or dropped; returns true if its group ended with it.
    pub fn remove(&mut self, folios: &mut Folios, unit: u32) -> bool {
        let folio = &mut folios[unit];
        let blocks = folio.blocks();
        self.units.sub(blocks);
        let id = std::mem::replace(&mut folio.group, NIL);
        assert!(id != NIL, "the folio is in a group");
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
        assert!(group.folios > 0, "a group lists its folios");
        group.folios -= 1;
        group.units -= blocks;
        if !group.filled {
            self.sparse.sub(blocks);
        }
        if group.folios > 0 {
            return false;
        }
        if self.pool[id].filled {
            self.unfill(id);
        }
        let place = self.chain_of(self.pool[id].volume, self.pool[id].index);
        self.unchain(place, id);
        self.unlink(id);
        self.pool.put(id);
        true
    }

    /// Puts a group last on its volume's list of filled groups.
    fn fill(&mut self, id: u32) {
        let group = &mut self.pool[id];
        assert!(!group.filled, "a group is filled once");
        self.sparse.sub(group.units);
        let list = &mut self.volumes[usize::from(group.volume.0)];
        let before = std::mem::replace(&mut list.last_filled, id);
        (group.filled, group.filled_before, group.filled_after) = (true, before, NIL);
        match before {
            NIL => list.first_filled = id,
            other => self.pool[other].filled_after = id,
        }
    }

    /// Takes a group off its volume's list of filled groups.
    fn unfill(&mut self, id: u32) {
        let group = &mut self.pool[id];
        assert!(group.filled, "the group is filled");
        self.sparse.add(group.units);
        group.filled = false;
        let (before, after) = (group.filled_before, group.filled_after);
        let list = &mut self.volumes[usize::from(group.volume.0)];
        match before {
            NIL => list.first_filled = after,
            other => self.pool[other].filled_after = after,
        }
        let list = &mut self.volumes[usize::from(self.pool[id].volume.0)];
        match after {
            NIL => list.last_filled = before,
            other => self.pool[other].filled_before = before,
        }
    }

    /// Sets the units at which groups of a volume are filled. Groups that are filled already stay so until they are visited.
    pub fn set_floor(&mut self, volume: VolumeId, floor: u32) {
        debug_assert!(floor > 0, "an empty group does not exist");
        self.volumes[usize::from(volume.0)].floor = floor;
    }

    /// Returns the group of a volume that has been filled for the longest time.
    pub fn first_filled(&self, volume: VolumeId) -> Option<u32> {
        let id = self.volumes[usize::from(volume.0)].first_filled;
        (id != NIL).then_some(id)
    }

    /// Returns the group that was filled after a filled one.
    pub fn filled_after(&self, id: u32) -> Option<u32> {
        debug_assert!(self.pool.is_taken(id) && self.pool[id].filled, "the group is filled");
        let after = self.pool[id].filled_after;
        (after != NIL).then_some(after)
    }

    /// Returns the units of the groups that are not filled.
    pub fn sparse_units(&self) -> u32 {
        self.sparse.get()
    }

    /// Removes a group from its hash chain.
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

    /// Makes a group the oldest of its volume.
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

    /// Enters a group after those of the same age, usually at the young end.
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

    /// Removes a group from the list of its volume.
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

    /// Sets the age of a group that was visited: its dirty data was dirtied at `since` or later. It has to fill again.
    pub fn requeue(&mut self, since: Instant, id: u32) {
        assert!(self.pool.is_taken(id), "the group exists");
        if self.pool[id].filled {
            self.unfill(id);
            if self.pool[id].units >= self.volumes[usize::from(self.pool[id].volume.0)].floor {
                self.fill(id);
            }
        }
        self.unlink(id);
        let group = &mut self.pool[id];
        (group.since, group.overdue, group.unheld) = (since, false, false);
        self.link(id);
    }

    /// Makes a group to be written at once, whatever its age.
    pub fn mark_overdue(&mut self, id: u32) {
        debug_assert!(self.pool.is_taken(id), "the group exists");
        self.pool[id].overdue = true;
    }

    /// Notes that held blocks of a group are to be written again.
    pub fn mark_unheld(&mut self, id: u32) {
        debug_assert!(self.pool.is_taken(id), "the group exists");
        self.pool[id].unheld = true;
    }

    /// Makes the groups of a volume with blocks that were held the next ones to be written, in their order.
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

    /// Returns the oldest group of a volume.
    pub fn oldest(&self, volume: VolumeId) -> Option<u32> {
        let id = self.volumes[usize::from(volume.0)].oldest;
        (id != NIL).then_some(id)
    }

    /// Returns the next younger group.
    pub fn younger(&self, id: u32) -> Option<u32> {
        debug_assert!(self.pool.is_taken(id), "the group exists");
        let younger = self.pool[id].younger;
        (younger != NIL).then_some(younger)
    }

    /// Returns the units of the folios on all lists.
    pub fn units(&self) -> u32 {
        self.units.get()
    }

    /// Returns true if nothing is to be written.
    pub fn is_empty(&self) -> bool {
        self.pool.taken() == 0
    }

    /// Returns true if there is a group of this number.
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
    fn each_dirty_folio_is_on_one_list_when_table_is_full() {
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

    /// The filled groups of a volume, in their order, after a check of both lists and of the sums.
    fn filled(groups: &Groups, folios: &Folios, volumes: u16) -> Vec<u32> {
        let (mut all, mut sparse, mut total) = (Vec::new(), 0, 0);
        for volume in (0..volumes).map(VolumeId) {
            let order = |first, next: fn(&Groups, u32) -> Option<u32>| {
                std::iter::successors(first, |&id| next(groups, id)).collect::<Vec<u32>>()
            };
            let by_age = order(groups.oldest(volume), Groups::younger);
            let filled = order(groups.first_filled(volume), Groups::filled_after);
            for &id in &by_age {
                let units = std::iter::successors(Some(groups[id].head), |&unit| {
                    Some(folios[unit].dirty_next).filter(|&next| next != NIL)
                });
                let units: u32 = units.map(|unit| folios[unit].blocks()).sum();
                assert_eq!((units, filled.contains(&id)), (groups[id].units, groups[id].filled));
                total += units;
                sparse += if groups[id].filled { 0 } else { units };
            }
            assert!(filled.iter().all(|id| by_age.contains(id)));
            all.extend(filled);
        }
        assert_eq!((total, sparse), (groups.units(), groups.sparse_units()));
        all
    }

    #[test]
    fn filled_groups_are_listed_in_the_order_of_filling() {
        let mut folios = Folios::new(64);
        let mut groups = Groups::new(64, 1);
        groups.set_floor(VolumeId(0), 3);
        let add = |groups: &mut Groups, folios: &mut Folios, unit: u32, extent: u64| {
            let block = (extent << GROUP_SHIFT) + u64::from(unit);
            folios.begin(unit, FolioKey::new(VolumeId(0), block, 0), 0);
            groups.add(Instant(unit.into()), folios, unit, ExportId(0));
            folios[unit].group
        };
        let old = add(&mut groups, &mut folios, 0, 0);
        for unit in 1..4 {
            add(&mut groups, &mut folios, unit, 1);
        }
        let first = folios[1].group;
        assert_eq!(filled(&groups, &folios, 1), [first]);
        assert_eq!(groups.oldest(VolumeId(0)), Some(old));
        add(&mut groups, &mut folios, 4, 0);
        add(&mut groups, &mut folios, 5, 0);
        assert_eq!(filled(&groups, &folios, 1), [first, old]);
        // A visit that leaves a filled group puts it last; one that leaves less ends the fill.
        groups.requeue(Instant(9), first);
        assert_eq!(filled(&groups, &folios, 1), [old, first]);
        groups.remove(&mut folios, 0);
        assert_eq!(filled(&groups, &folios, 1), [old, first], "until it is visited");
        groups.requeue(Instant(10), old);
        assert_eq!(filled(&groups, &folios, 1), [first]);
        for unit in [1, 2, 3] {
            groups.remove(&mut folios, unit);
        }
        assert_eq!(filled(&groups, &folios, 1), [0; 0]);
    }

    #[test]
    fn lists_and_sums_agree_under_random_changes() {
        let mut folios = Folios::new(512);
        let mut groups = Groups::new(512, 2);
        let mut prng = Prng::new(8);
        for unit in 0..512 {
            let extent = prng.below(12) << GROUP_SHIFT;
            let key = FolioKey::new(VolumeId((unit % 2) as u16), extent + u64::from(unit), 0);
            folios.begin(unit, key, 0);
        }
        let mut seen = 0;
        for step in 0..20_000 {
            let unit = prng.below(512) as u32;
            match (prng.below(50), folios[unit].group) {
                (0, _) => groups.set_floor(VolumeId(unit as u16 % 2), 1 + prng.below(30) as u32),
                (_, NIL) => groups.add(Instant(step), &mut folios, unit, ExportId(0)),
                (1..6, group) => groups.requeue(Instant(step), group),
                _ => {
                    groups.remove(&mut folios, unit);
                }
            }
            seen += filled(&groups, &folios, 2).len();
        }
        assert!(seen > 20_000, "{seen}");
    }

    #[test]
    fn group_has_the_age_of_its_first_folio() {
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
    fn hurried_groups_come_first_in_their_order() {
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
        assert!(groups.walked.get() < 4096, "{} groups were passed", groups.walked.get());
        for unit in 0..4096 {
            assert!(groups.remove(&mut folios, unit));
        }
        assert!(groups.is_empty() && groups.oldest(VolumeId(0)).is_none());
    }

    #[test]
    fn table_stays_below_nine_bytes_a_unit() {
        let groups = Groups::new(1 << 18, 16);
        assert!(groups.table_bytes() <= 9 << 18, "{}", groups.table_bytes());
    }
}
