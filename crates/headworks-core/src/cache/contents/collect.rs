//! Collecting the contents of a frozen, quiet cache.

use super::{CacheContents, CachedFolio, CachedVolumeContents, DirtyGroup, ErrorPosition};
use crate::cache::Cache;
use crate::cache::pool::folio::{EvictionList, Folio};
use crate::cache::state::CacheState;
use crate::slab::NIL;
use crate::time::Instant;

impl Cache {
    /// Returns true while the cache starts nothing of its own.
    pub fn is_frozen(&self) -> bool {
        self.state.is_frozen()
    }

    /// Collects the contents. The cache is frozen and quiet.
    pub fn contents(&self, now: Instant) -> CacheContents {
        assert!(self.is_frozen() && self.is_quiet(), "contents do not change while they move");
        let state = &self.state;
        let mut contents = CacheContents { units: state.pool.room(), ..CacheContents::default() };
        collect_errors(state, &mut contents);
        let mut places = vec![NIL; state.pool.units() as usize];
        for list in [EvictionList::Small, EvictionList::Main] {
            for unit in state.pool.by_age(list) {
                collect_folio(state, unit, &mut contents, &mut places);
            }
        }
        let positions = &contents.positions;
        let known = |volume: &CachedVolumeContents| {
            let id = volume.volume;
            let cached = state.pool.folios_of(id) > 0 || volume.errors > 0;
            cached || positions.iter().any(|position| position.volume == id)
        };
        contents.volumes.retain(known);
        for volume in state.volumes.ids() {
            let mut at = state.dirty.oldest_group(volume);
            while let Some(id) = at {
                collect_group(state, now, id, &mut contents, &places);
                at = state.dirty.younger_group(id);
            }
        }
        if state.defects.handover_cleans() {
            contents.forget_first_dirty();
        }
        if state.defects.handover_forgets_errors() {
            contents.positions.clear();
            contents.volumes.iter_mut().for_each(|volume| volume.seen = true);
        }
        contents
    }
}

/// Adds every volume, and how far its connections have seen its errors. Those that have seen all are told of the next one, too,
/// although they may send nothing until then.
fn collect_errors(state: &CacheState, contents: &mut CacheContents) {
    for volume in state.volumes.ids().filter(|&volume| !state.volumes[volume].is_free_slot()) {
        let entry = &state.volumes[volume];
        let (error, errors, seen) = entry.error_sequence().parts();
        let size = entry.size();
        contents.volumes.push(CachedVolumeContents { volume, size, error, errors, seen });
    }
    for (connection, volume, position) in state.volumes.positions() {
        let open = state.dirty.throttle().is_open(connection);
        if open && contents.volume(volume).is_some() {
            contents.positions.push(ErrorPosition { connection, volume, position });
        }
    }
}

/// Adds a folio that has a valid block.
fn collect_folio(state: &CacheState, unit: u32, contents: &mut CacheContents, places: &mut [u32]) {
    let folio = state.pool.folio(unit);
    assert!(folio.writeback + folio.filling == 0, "nothing of a quiet cache is outstanding");
    let states = state.pool.states(unit, folio.blocks());
    if states.iter().all(|state| state & CachedFolio::VALID == 0) {
        return;
    }
    places[unit as usize] = contents.folios.len() as u32;
    contents.folios.push(CachedFolio {
        volume: folio.key.volume(),
        block: folio.key.block(),
        unit,
        order: folio.order,
        main: folio.eviction.list() == EvictionList::Main,
        freq: folio.eviction.freq(),
        unused: folio.is(Folio::UNUSED),
        first_state: contents.states.len() as u32,
    });
    contents.states.extend(states.iter().map(|state| match state & CachedFolio::VALID {
        0 => 0,
        _ => state & CachedFolio::STATES,
    }));
}

/// Adds a group with its folios.
fn collect_group(
    state: &CacheState,
    now: Instant,
    id: u32,
    contents: &mut CacheContents,
    places: &[u32],
) {
    let group = state.dirty.group(id);
    let linked = |unit: u32| (unit != NIL).then_some(unit);
    let folios = std::iter::successors(linked(group.head), |&unit| {
        linked(state.pool.folio(unit).dirty_next)
    });
    let folios = folios.map(|unit| places[unit as usize]);
    let folios: Vec<u32> = folios.collect();
    debug_assert!(!folios.is_empty() && !folios.contains(&NIL), "a dirty folio has a valid block");
    let (volume, age_ns, overdue) = (group.volume, now.since(group.since), group.overdue);
    contents.groups.push(DirtyGroup { volume, age_ns, overdue, folios });
}
