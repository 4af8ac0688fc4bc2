//! The levels of shares by weight: tenants, and in them exports; exports without a tenant stand beside tenants.
//!
//! A party may take a block while it then holds at most its threshold: its factor times what the level leaves free. The factor is its
//! weight over the mean weight of the parties of its level that hold something, itself included, within [`FACTORS`].
//!
//! Invariants: what a tenant holds is the sum over its exports; `Siblings` are the sums over parties that hold something.

use std::cmp::Ordering;

use headworks_core::{ExportId, TenantId};

/// The factor of a party with the mean weight.
pub(super) const ONE: u64 = 1 << 10;
/// Smallest and largest factor: a quarter, and two.
const FACTORS: (u64, u64) = (ONE / 4, 2 * ONE);
/// A party that holds at most this part of its threshold may take any block that is free: one of 32 MiB would not fit into the
/// threshold of a light export.
const LITTLE: usize = 8;
/// More than any pool has; a factor of two keeps it within 64 bits.
const AMPLE: usize = 1 << 48;
/// Weight of an export or tenant before it is set.
const WEIGHT: u16 = 100;

/// A tenant or an export.
#[derive(Clone, Copy, Debug)]
struct Party {
    weight: u16,
    held: usize,
}

impl Party {
    const NEW: Self = Self { weight: WEIGHT, held: 0 };

    fn weight(&self) -> u64 {
        self.weight.into()
    }

    /// Orders by what is held for the weight.
    fn cmp_share(&self, other: &Self) -> Ordering {
        let scaled = |held: usize, weight: u16| held as u128 * u128::from(weight);
        scaled(self.held, other.weight).cmp(&scaled(other.held, self.weight))
    }
}

/// Sums over the parties of a level that hold something.
#[derive(Clone, Copy, Debug, Default)]
struct Siblings {
    weights: u64,
    holding: u64,
}

impl Siblings {
    /// Changes what a party holds by what one of its members holds now instead of before.
    fn change(&mut self, party: &mut Party, before: usize, now: usize) {
        debug_assert!(party.held >= before, "a party holds what its members hold");
        let held = party.held - before + now;
        let was = std::mem::replace(&mut party.held, held);
        match (was > 0, held > 0) {
            (false, true) => self.add(party.weight()),
            (true, false) => self.remove(party.weight()),
            _ => {}
        }
    }

    fn set_weight(&mut self, party: &mut Party, weight: u16) {
        let weight = weight.max(1);
        if party.held > 0 {
            assert!(self.weights >= party.weight(), "a party that holds something is counted");
            self.weights = self.weights - party.weight() + u64::from(weight);
        }
        party.weight = weight;
    }

    fn add(&mut self, weight: u64) {
        (self.weights, self.holding) = (self.weights + weight, self.holding + 1);
    }

    fn remove(&mut self, weight: u64) {
        (self.weights, self.holding) = (self.weights - weight, self.holding - 1);
    }

    /// The same with a party that may hold nothing.
    fn with(mut self, party: &Party) -> Self {
        if party.held == 0 {
            self.add(party.weight());
        }
        self
    }

    /// An equal part of `all`, times the factor of a party.
    fn quantum(&self, party: &Party, all: usize) -> usize {
        (all as u64 * self.factor(party) / ONE / self.with(party).holding) as usize
    }

    /// The factor of a party of this level.
    fn factor(&self, party: &Party) -> u64 {
        let all = self.with(party);
        if party.weight() * all.holding == all.weights {
            return ONE;
        }
        (party.weight() * all.holding * ONE / all.weights).clamp(FACTORS.0, FACTORS.1)
    }
}

#[derive(Clone, Copy, Debug)]
struct Tenant {
    party: Party,
    exports: Siblings,
}

/// A block that an export's connection asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub export: ExportId,
    pub block: usize,
    /// What the connection holds, and what of it is charged.
    pub held: (usize, usize),
    /// A block that counts as held by another export, or by another connection of this one.
    pub kept: (Option<ExportId>, usize),
}

/// Tenants and exports, and what each holds of one thing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    /// Tenants, and exports without a tenant.
    top: Siblings,
    tenants: Vec<Tenant>,
    exports: Vec<(Party, TenantId)>,
}

impl Tree {
    /// Makes room for an export.
    pub fn add(&mut self, export: ExportId) -> usize {
        let index = usize::from(export.0);
        if self.exports.len() <= index {
            self.exports.resize(index + 1, (Party::NEW, TenantId::NONE));
        }
        index
    }

    /// Makes room for a tenant, unless it is none.
    fn add_tenant(&mut self, tenant: TenantId) -> Option<usize> {
        let index = usize::from(tenant.0);
        if tenant == TenantId::NONE {
            return None;
        }
        if self.tenants.len() <= index {
            let new = Tenant { party: Party::NEW, exports: Siblings::default() };
            self.tenants.resize(index + 1, new);
        }
        Some(index)
    }

    /// Sets the weight of an export, which may be new, beside others of its tenant.
    pub fn set_weight(&mut self, export: ExportId, weight: u16) {
        let index = self.add(export);
        let (party, tenant) = &mut self.exports[index];
        let of_tenant = self.tenants.get_mut(usize::from(tenant.0));
        of_tenant.map_or(&mut self.top, |tenant| &mut tenant.exports).set_weight(party, weight);
    }

    /// Sets the weight of a tenant, which may be new.
    pub fn set_tenant_weight(&mut self, tenant: TenantId, weight: u16) {
        if let Some(index) = self.add_tenant(tenant) {
            self.top.set_weight(&mut self.tenants[index].party, weight);
        }
    }

    /// Moves an export with all it holds to a tenant, or to none.
    pub fn set_tenant(&mut self, export: ExportId, tenant: TenantId) {
        self.add_tenant(tenant);
        let index = self.add(export);
        let held = self.held_by(export);
        self.charge(export, held, 0);
        self.exports[index].1 = tenant;
        self.charge(export, 0, held);
        assert_eq!(self.held_by(export), held, "an export takes along what it holds");
    }

    /// What an export holds.
    pub fn held_by(&self, export: ExportId) -> usize {
        self.exports.get(usize::from(export.0)).map_or(0, |(party, _)| party.held)
    }

    /// Changes what a known export holds by what one of its connections holds now instead of before.
    pub fn charge(&mut self, export: ExportId, before: usize, now: usize) {
        let (party, tenant) = &mut self.exports[usize::from(export.0)];
        match self.tenants.get_mut(usize::from(tenant.0)) {
            None => self.top.change(party, before, now),
            Some(tenant) => {
                tenant.exports.change(party, before, now);
                self.top.change(&mut tenant.party, before, now);
            }
        }
    }

    /// Orders exports by what they hold for their weights: their tenants first, within a tenant the exports.
    pub fn cmp_share(&self, a: ExportId, b: ExportId) -> Ordering {
        let [(a, of_a), (b, of_b)] = [a, b].map(|export| self.exports[usize::from(export.0)]);
        if of_a == of_b {
            return a.cmp_share(&b);
        }
        let top = |party: Party, tenant: TenantId| {
            self.tenants.get(usize::from(tenant.0)).map_or(party, |tenant| tenant.party)
        };
        top(a, of_a).cmp_share(&top(b, of_b))
    }

    /// Whether an export may take a block where `free` is left for all: what its connections have room for then.
    pub fn room(&self, ask: &Ask, free: usize) -> Option<usize> {
        let (own, tenant) = &self.exports[usize::from(ask.export.0)];
        let (held, charged) = ask.held;
        // What the connection took since it was charged counts.
        let now = |party: &Party, kept: bool| {
            party.held + held - charged + if kept { ask.kept.1 } else { 0 }
        };
        let kept = ask.kept.0;
        let (mut room, mut siblings) = (free, &self.top);
        if let Some(of_tenant) = self.tenants.get(usize::from(tenant.0)) {
            let kept = kept.is_some_and(|other| self.exports[usize::from(other.0)].1 == *tenant);
            let held = now(&of_tenant.party, kept);
            room = room_below(self.top.factor(&of_tenant.party), held, ask.block, room)?;
            siblings = &of_tenant.exports;
        }
        room_below(siblings.factor(own), now(own, kept == Some(ask.export)), ask.block, room)
    }

    /// The part of an export in what all that hold something share at once, within the bounds of [`FACTORS`].
    pub fn quantum(&self, export: ExportId, all: usize) -> usize {
        // One that is not known yet has what a new one has.
        let known = self.exports.get(usize::from(export.0)).copied();
        let (own, tenant) = known.unwrap_or((Party::NEW, TenantId::NONE));
        match self.tenants.get(usize::from(tenant.0)) {
            None => self.top.quantum(&own, all),
            Some(Tenant { party, exports }) => exports.quantum(&own, self.top.quantum(party, all)),
        }
    }
}

/// Whether a party that holds `held` bytes may take `block` where its level has `room`: what its members have room for then,
/// or `None`. Twice what is left of its threshold, so that one member may have more than an equal part.
pub(super) fn room_below(factor: u64, held: usize, block: usize, room: usize) -> Option<usize> {
    let threshold = (room as u64 * factor / ONE) as usize;
    if held + block <= threshold {
        return Some((2 * (threshold - held)).min(AMPLE));
    }
    (held <= threshold / LITTLE).then_some(AMPLE)
}
