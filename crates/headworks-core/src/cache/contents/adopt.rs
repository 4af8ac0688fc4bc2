//! Adopting the contents of another process's cache into an empty one, whose frames hold the same bytes.
//!
//! Everything is checked before anything changes, so after an error the cache is still empty. Volumes are named by their ids in the
//! old process; the caller says which ids they have now. What is clean of a volume that is not served, not cached or smaller now
//! is forgotten, and also of one that has grown behind a block that was not whole. Dirty blocks of such a volume are an error: they
//! would be lost.
//!
//! Generations begin anew: everything adopted is of the first one, and a flush waits for it.

use super::{CacheContents, CachedFolio, CachedVolumeContents, ContentsError};
use crate::action::Actions;
use crate::bio::{ExportId, VolumeId};
use crate::cache::Cache;
use crate::cache::pool::AdoptedFolio;
use crate::cache::pool::folio::{BLOCK_SHIFT, FolioKey};
use crate::cache::state::CacheState;
use crate::options::WriteMode;
use crate::slab::NIL;
use crate::time::Instant;

/// The new ids of the volumes of the contents, in their order; `None` for one of which nothing is adopted.
struct VolumeMap<'a> {
    known: &'a [CachedVolumeContents],
    ids: Vec<Option<VolumeId>>,
}

impl VolumeMap<'_> {
    /// Returns the new id of a volume.
    fn of(&self, volume: VolumeId) -> Option<VolumeId> {
        let place = self.known.binary_search_by_key(&volume, |known| known.volume);
        self.ids[place.ok()?]
    }
}

impl Cache {
    /// Adopts contents into the empty cache. `volumes` and `connections` give the present ids, `exports` the export that what is
    /// cached of a volume counts for; it is an error if the shard does not serve a volume that `volumes` names and that has dirty
    /// blocks.
    pub fn adopt(
        &mut self,
        now: Instant,
        contents: &CacheContents,
        volumes: &dyn Fn(VolumeId) -> Option<VolumeId>,
        exports: &dyn Fn(VolumeId) -> ExportId,
        connections: &dyn Fn(u32) -> Option<u32>,
    ) -> Result<(), ContentsError> {
        let state = &mut self.state;
        let map = check(state, contents, volumes)?;
        state.pool.release_shadows();
        let mut units = vec![NIL; contents.folios.len()];
        for (folio, unit) in contents.folios.iter().zip(&mut units) {
            if let Some(volume) = map.of(folio.volume) {
                adopt_folio(state, (volume, exports(volume)), folio, contents.states(folio));
                *unit = folio.unit;
            }
        }
        state.pool.reserve_shadows();
        state.dirty.throttle_mut().end_adoption(now);
        adopt_groups(state, now, contents, &units);
        adopt_errors(state, contents, &map, connections);
        let renamed = |(old, new): (&CachedVolumeContents, &Option<VolumeId>)| {
            new.filter(|&new| new != old.volume)
        };
        let renamed = contents.volumes.iter().zip(&map.ids).filter_map(renamed).collect();
        state.pool.set_renamed(renamed);
        state.needs_run = true;
        Ok(())
    }

    /// Returns true if the dirty table has entries of volumes with other ids.
    #[inline]
    pub fn has_renamed(&self) -> bool {
        self.state.pool.has_renamed()
    }

    /// Sets the entries of the dirty table whose volumes have other ids than the table says, unless the cache is frozen.
    pub fn report_renamed(&mut self, actions: &mut Actions) {
        if !self.state.is_frozen() {
            self.state.pool.report_renamed(actions);
        }
    }
}

/// Checks that the contents fit the cache, and returns the ids that its volumes have now.
fn check<'a>(
    state: &CacheState,
    contents: &'a CacheContents,
    volumes: &dyn Fn(VolumeId) -> Option<VolumeId>,
) -> Result<VolumeMap<'a>, ContentsError> {
    let units = state.pool.room();
    if contents.units != units {
        return Err(ContentsError::new(format!(
            "the cache has {units} frames, and its contents are of one with {}",
            contents.units
        )));
    }
    if !state.pool.is_empty() || state.waiters.len() > 0 {
        return Err(ContentsError::new("the cache is in use; only a new one adopts contents"));
    }
    let mut ids: Vec<Option<VolumeId>> = Vec::with_capacity(contents.volumes.len());
    for known in &contents.volumes {
        let new = volumes(known.volume);
        if new.is_some() && ids.contains(&new) {
            let sentence = "two volumes of the contents are the same volume now";
            return Err(ContentsError::new(sentence));
        }
        let refusal = refusal(state, known, new);
        if let Some(refusal) = &refusal {
            check_clean(contents, known.volume, refusal)?;
        }
        ids.push(new.filter(|_| refusal.is_none()));
    }
    let map = VolumeMap { known: &contents.volumes, ids };
    let adopted = contents.folios.iter().filter(|folio| map.of(folio.volume).is_some());
    let taken: u64 = adopted.map(|folio| u64::from(folio.blocks())).sum();
    if taken + u64::from(state.pool.shadow_frames().1) > units.into() {
        let sentence = "the contents leave no frames for blocks that are written during write-out";
        return Err(ContentsError::new(sentence));
    }
    Ok(map)
}

/// Checks that a volume has no dirty blocks, of which nothing is adopted.
fn check_clean(
    contents: &CacheContents,
    volume: VolumeId,
    refusal: &str,
) -> Result<(), ContentsError> {
    match contents.dirty_blocks(volume) {
        0 => Ok(()),
        dirty => Err(ContentsError::new(format!(
            "{dirty} dirty blocks of volume {} would be lost: {refusal}",
            volume.0
        ))),
    }
}

/// Returns why nothing of a volume can be adopted, if so.
fn refusal(
    state: &CacheState,
    known: &CachedVolumeContents,
    new: Option<VolumeId>,
) -> Option<String> {
    let Some(new) = new else {
        return Some("this shard does not serve it any more".into());
    };
    let entry = state.volumes.get(new).filter(|entry| !entry.is_free_slot());
    let Some(entry) = entry else {
        return Some(format!("there is no volume {}", new.0));
    };
    if entry.mode() == WriteMode::None {
        return Some("it is not cached any more".into());
    }
    let keeps_last_block = known.size.is_multiple_of(1 << BLOCK_SHIFT);
    let fits = entry.size() == known.size || entry.size() > known.size && keeps_last_block;
    (!fits).then(|| format!("it had {} bytes and now has {}", known.size, entry.size()))
}

/// Adopts a folio, and counts its dirty blocks.
fn adopt_folio(
    state: &mut CacheState,
    (volume, export): (VolumeId, ExportId),
    folio: &CachedFolio,
    states: &[u8],
) {
    let key = FolioKey::new(volume, folio.block, folio.order);
    let CachedFolio { unit, order, main, freq, unused, .. } = *folio;
    let adopted = AdoptedFolio { unit, order, key, export, main, freq, unused };
    let dirty = state.pool.adopt(&adopted, states);
    if let Some(layer) = state.volumes[volume].layer_mut() {
        layer.note_change(folio.block << BLOCK_SHIFT, u64::from(folio.blocks()) << BLOCK_SHIFT);
    }
    if dirty > 0 {
        let device = state.volumes[volume].device();
        state.volumes[volume].add_unclean(dirty);
        state.dirty.adopt(device, key, export, dirty);
    }
}

/// Enters the dirty folios into their groups, the oldest groups first; `units` are the frames of the folios that were adopted.
fn adopt_groups(state: &mut CacheState, now: Instant, contents: &CacheContents, units: &[u32]) {
    let mut groups: Vec<_> = contents.groups.iter().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.age_ns));
    for group in groups {
        let since = Instant(now.0.saturating_sub(group.age_ns));
        // A group lists the folio that entered last first.
        let adopted = group.folios.iter().rev().map(|&place| units[place as usize]);
        for unit in adopted.filter(|&unit| unit != NIL) {
            enter_group(state, since, unit);
            if group.overdue {
                state.dirty.mark_overdue(state.pool.folio(unit).group);
            }
        }
    }
    // Blocks that were held: they are in no group.
    for &unit in units.iter().filter(|&&unit| unit != NIL) {
        if state.pool.folio(unit).dirty > 0 && state.pool.folio(unit).group == NIL {
            enter_group(state, now, unit);
        }
    }
}

fn enter_group(state: &mut CacheState, since: Instant, unit: u32) {
    let volume = state.pool.folio(unit).key.volume();
    let current = state.volumes[volume].current();
    state.dirty.enter_group(&mut state.pool, since, unit, current);
    state.volumes[volume].add_dirty(current);
}

/// Adopts the errors of write-out, and how far connections have seen them.
fn adopt_errors(
    state: &mut CacheState,
    contents: &CacheContents,
    map: &VolumeMap,
    connections: &dyn Fn(u32) -> Option<u32>,
) {
    for (known, new) in contents.volumes.iter().zip(&map.ids) {
        if let Some(new) = *new {
            state.volumes[new].adopt_errors((known.error, known.errors, known.seen));
        }
    }
    for position in &contents.positions {
        let connection = connections(position.connection);
        if let (Some(volume), Some(connection)) = (map.of(position.volume), connection) {
            let writer = state.dirty.throttle_mut().writer(connection).0;
            state.volumes.adopt_position(writer, (connection, volume), position.position);
        }
    }
}
