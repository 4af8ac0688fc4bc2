//! Parts of the cache: which tenant a folio counts for, and whose folios eviction takes next.
//!
//! A tenant with a minimum or a maximum has a part of its own: eviction lists of its own. All others share the common part. While no
//! tenant has a part, all folios are in the common one, and nothing here costs more than the test of a flag.
//!
//! ```text
//!   frames are needed --> parts above their minimum, in turn: a 64th of what each has above it --> victim
//!   a tenant is at its maximum ------------------------------------> its own part --> victim
//! ```
//!
//! So others never evict what a tenant has within its minimum, but for the rest of one folio. When every part is within its minimum,
//! the asking one gives way, then the common one, then the others in turn. When parts above their minimums have nothing clean, the asking one
//! gives way; and when nothing else becomes clean, because all that is dirty is held, any part does, or a read would wait without end.
//!
//! When a part begins or ends, or an export changes its tenant, folios stay where they are and move when eviction examines them: a
//! change costs nothing, and each folio moves once.
//!
//! Invariants: a part is in the ring exactly while it has more than its minimum; `outside` is the number of units of all parts
//! but the common one; `cached` counts the units of each export's folios.

use crate::bio::{ExportId, TenantId};
use crate::gauge::Gauge32;
use crate::list::{Links, List, OnlyLink};
use crate::options::{ExportConfig, TENANTS_MAX, TenantConfig, TenantMemory};

/// The part of tenants without one, and of exports without a tenant.
pub(super) const COMMON: u16 = 0;

/// A part gives this fraction of what it has above its minimum before the next one has its turn: small, so that no part is emptied
/// while others keep all they have.
const TURN_DIVISOR: u32 = 64;

/// A part of the cache.
#[derive(Clone, Copy, Debug)]
struct Part {
    min: u32,
    max: u32,
    units: Gauge32,
}

/// The parts of a pool.
#[derive(Debug)]
pub struct Parts {
    /// By export; the last entry is for those that are not configured.
    tenants: Vec<TenantId>,
    cached: Vec<Gauge32>,
    /// The common part, then that of each tenant.
    parts: Vec<Part>,
    /// Tenants with a minimum or a maximum.
    configured: u32,
    outside: Gauge32,
    /// Parts with more than their minimum.
    ring: List<OnlyLink>,
    links: Links,
    turn: u16,
    /// Units that the part whose turn it is still gives.
    left: u32,
}

impl Default for Part {
    fn default() -> Self {
        let TenantMemory { cache_min, cache_max, .. } = TenantMemory::default();
        Self { min: cache_min, max: cache_max, units: Gauge32::default() }
    }
}

impl Parts {
    /// Creates the empty parts of the tenants of a configuration.
    #[must_use]
    pub fn new(exports: &[ExportConfig], tenants: &[TenantConfig]) -> Self {
        let mut of: Vec<TenantId> = exports.iter().map(|export| export.tenant).collect();
        of.push(TenantId::NONE);
        let mut parts = Self {
            cached: vec![Gauge32::default(); of.len()],
            tenants: of,
            parts: vec![Part::default(); TENANTS_MAX + 1],
            configured: 0,
            outside: Gauge32::default(),
            ring: List::new(),
            links: Links::new(TENANTS_MAX + 1),
            turn: COMMON,
            left: 0,
        };
        for (tenant, config) in (0..).zip(tenants) {
            parts.set_memory(TenantId(tenant), config.memory);
        }
        parts
    }

    fn index(&self, export: ExportId) -> usize {
        usize::from(export.0).min(self.tenants.len() - 1)
    }

    /// Returns true if not all folios are in the common part, or more will be elsewhere.
    #[inline]
    #[must_use]
    pub fn is_divided(&self) -> bool {
        self.configured > 0 || !self.outside.is_zero()
    }

    /// Returns the part that folios of an export belong to.
    #[must_use]
    pub fn of(&self, export: ExportId) -> u16 {
        if self.configured == 0 {
            return COMMON;
        }
        let tenant = self.tenants[self.index(export)];
        let own = tenant.0.wrapping_add(1);
        debug_assert!(tenant.is_none() || usize::from(own) < self.parts.len(), "it has a part");
        let has_part = |part: &Part| part.min > 0 || part.max < u32::MAX;
        match self.parts.get(usize::from(own)) {
            Some(part) if !tenant.is_none() && has_part(part) => own,
            _ => COMMON,
        }
    }

    /// Sets the minimum and the maximum of a tenant's part; folios move when eviction examines them.
    pub fn set_memory(&mut self, tenant: TenantId, memory: TenantMemory) {
        if usize::from(tenant.0) >= TENANTS_MAX {
            return;
        }
        let own = tenant.0 + 1;
        let is_part = |part: &Part| u32::from(part.min > 0 || part.max < u32::MAX);
        let part = &mut self.parts[usize::from(own)];
        self.configured -= is_part(part);
        (part.min, part.max) = (memory.cache_min, memory.cache_max.max(1));
        self.configured += is_part(part);
        debug_assert!(self.configured < u32::from(self.len()), "a tenant has one part");
        self.rank(own);
    }

    /// Moves an export to a tenant; its folios follow when eviction examines them.
    pub fn set_tenant(&mut self, export: ExportId, tenant: TenantId) {
        if let Some(known) = self.tenants.get_mut(usize::from(export.0)) {
            *known = tenant;
        }
    }

    /// Counts units that joined the lists of a part. Called while the cache is divided, or for all folios when it becomes so.
    pub fn add(&mut self, part: u16, units: u32) {
        self.parts[usize::from(part)].units.add(units);
        if part != COMMON {
            self.outside.add(units);
        }
        self.rank(part);
    }

    /// Counts units that left the lists of a part.
    pub fn sub(&mut self, part: u16, units: u32) {
        self.parts[usize::from(part)].units.sub(units);
        debug_assert!(part == COMMON || self.outside.get() >= units, "they were outside");
        if part != COMMON {
            self.outside.sub(units);
        }
        self.rank(part);
    }

    /// Enters a part into the ring, or removes it.
    fn rank(&mut self, part: u16) {
        let Part { min, units, .. } = self.parts[usize::from(part)];
        let (above, id) = (units.get() > min, u32::from(part));
        if above == self.links[id].is_linked() {
            return;
        }
        if above {
            self.ring.push_back(&mut self.links, id);
        } else {
            if self.turn == part {
                self.pass();
            }
            self.ring.remove(&mut self.links, id);
        }
    }

    /// Ends the turn of a part.
    pub fn pass(&mut self) {
        let id = u32::from(self.turn);
        let linked = self.links[id].is_linked();
        let next = if linked { self.ring.next(&self.links, id) } else { None };
        if let Some(next) = next.or(self.ring.front()) {
            self.begin_turn(next as u16);
        }
    }

    fn begin_turn(&mut self, part: u16) {
        let Part { min, units, .. } = self.parts[usize::from(part)];
        self.turn = part;
        self.left = (units.get().saturating_sub(min) / TURN_DIVISOR).max(1);
        debug_assert!(self.left <= units.get().max(1), "a part gives what it has");
    }

    /// Returns the part whose folio is evicted next when `asking` needs frames.
    pub fn next(&mut self, asking: u16) -> u16 {
        let Some(first) = self.ring.front() else {
            return self.next_within_minimum(asking);
        };
        if !self.links[u32::from(self.turn)].is_linked() {
            self.begin_turn(first as u16);
        } else if self.left == 0 {
            self.pass();
        }
        debug_assert!(self.links[u32::from(self.turn)].is_linked(), "a part in the ring gives");
        self.turn
    }

    /// Counts units that were evicted from the part whose turn it is.
    pub fn spend(&mut self, units: u32) {
        self.left = self.left.saturating_sub(units);
    }

    /// Returns the part to evict from when all are within their minimums, which only a cache has whose minimums take all of it.
    fn next_within_minimum(&mut self, asking: u16) -> u16 {
        let has_any = |part: &u16| !self.parts[usize::from(*part)].units.is_zero();
        let all = self.parts.len() as u16;
        let others = (self.turn + 1..all).chain(COMMON..self.turn + 1);
        let found = [asking, COMMON].into_iter().chain(others).find(has_any);
        let part = found.unwrap_or(COMMON);
        debug_assert!(part == COMMON || self.parts[usize::from(part)].units.get() > 0);
        if part != asking {
            self.turn = part;
        }
        part
    }

    /// Returns the units by which a part would exceed its maximum with `more`.
    #[must_use]
    pub fn excess(&self, part: u16, more: u32) -> u32 {
        let Part { max, units, .. } = self.parts[usize::from(part)];
        units.get().saturating_add(more).saturating_sub(max)
    }

    /// Returns the largest order of a folio in a part: 64 of them fit its maximum.
    #[must_use]
    pub fn order_cap(&self, part: u16) -> u8 {
        (self.parts[usize::from(part)].max / 64).max(1).ilog2() as u8
    }

    /// Counts the units of a folio that begins.
    #[inline]
    pub fn begin(&mut self, export: ExportId, units: u32) {
        let index = self.index(export);
        self.cached[index].add(units);
    }

    /// Counts the units of a folio that ends.
    #[inline]
    pub fn end(&mut self, export: ExportId, units: u32) {
        let index = self.index(export);
        self.cached[index].sub(units);
    }

    /// Returns the units that are cached for an export.
    #[must_use]
    pub fn cached(&self, export: ExportId) -> u32 {
        self.cached[self.index(export)].get()
    }

    /// Returns the units of a part, for checks.
    #[must_use]
    pub fn units(&self, part: u16) -> u32 {
        self.parts[usize::from(part)].units.get()
    }

    /// Returns the number of parts, used or not.
    #[must_use]
    pub fn len(&self) -> u16 {
        self.parts.len() as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: u16 = 1;
    const B: u16 = 2;

    fn parts(mins: [u32; 2]) -> Parts {
        let export = |tenant| ExportConfig { tenant, ..ExportConfig::default() };
        let exports = [export(TenantId(0)), export(TenantId(1)), export(TenantId::NONE)];
        let mut parts = Parts::new(&exports, &[]);
        for (tenant, cache_min) in (0..).zip(mins) {
            let memory = TenantMemory { cache_min, ..TenantMemory::default() };
            parts.set_memory(TenantId(tenant), memory);
        }
        parts
    }

    /// Evicts `units` one by one for the common part; returns how many each part gave.
    fn taken(parts: &mut Parts, units: u32) -> [u32; 3] {
        let mut taken = [0; 3];
        for _ in 0..units {
            let part = parts.next(COMMON);
            parts.spend(1);
            parts.sub(part, 1);
            taken[usize::from(part)] += 1;
        }
        taken
    }

    #[test]
    fn only_tenants_with_a_minimum_or_maximum_have_a_part() {
        let mut parts = parts([10, 0]);
        let of = |parts: &Parts| [0, 1, 2, 9].map(|export| parts.of(ExportId(export)));
        assert_eq!(of(&parts), [A, COMMON, COMMON, COMMON]);
        let memory = TenantMemory { cache_max: 50, ..TenantMemory::default() };
        parts.set_memory(TenantId(1), memory);
        assert_eq!(of(&parts), [A, B, COMMON, COMMON]);
        parts.set_tenant(ExportId(2), TenantId(0));
        assert_eq!(of(&parts), [A, B, A, COMMON]);
        (0..2).for_each(|tenant| parts.set_memory(TenantId(tenant), TenantMemory::default()));
        assert!(!parts.is_divided() && of(&parts) == [COMMON; 4]);
    }

    #[test]
    fn parts_give_in_proportion_to_what_they_have_above_their_minimum() {
        let mut parts = parts([1000, 500]);
        for (part, units) in [(COMMON, 6400), (A, 1000), (B, 3700)] {
            parts.add(part, units);
        }
        let [common, a, b] = taken(&mut parts, 4800);
        assert_eq!(a, 0);
        assert!(common.abs_diff(2 * b) <= 200, "{common} {b}");
        let rest = taken(&mut parts, 4800);
        assert_eq!([common + rest[0], rest[1], b + rest[2]], [6400, 0, 3200]);
        // Everything is within a minimum now: without a part of its own, the asking one takes from the tenants.
        let [_, a, b] = taken(&mut parts, 10);
        assert_eq!(a + b, 10);
    }

    #[test]
    fn part_that_leaves_the_ring_in_its_turn_passes_it_on() {
        let mut parts = parts([1, 1]);
        (COMMON..=B).for_each(|part| parts.add(part, 2));
        let [common, a, b] = taken(&mut parts, 4);
        assert_eq!([common, a, b], [2, 1, 1]);
        parts.add(A, 5);
        assert_eq!(taken(&mut parts, 5), [0, 5, 0]);
        assert_eq!((parts.excess(A, 1), parts.units(A)), (0, 1));
    }
}
