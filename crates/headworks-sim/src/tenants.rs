//! Exports and tenants of a simulated world: drawn shares, latency targets and parts of the cache, which the operator changes under
//! load.
//!
//! There are fewer tenants than places, so that a tenant often loses its last export and gets another one: that is how tenants
//! are removed and added. Every shard is told of every change; shards that already have bios of the export keep them where they
//! wait.

use headworks_core::options::TENANTS_MAX;
use headworks_core::prng::Prng;
use headworks_core::time::{MS, US};
use headworks_core::{Control, ExportConfig, ExportId, TenantConfig, TenantId, TenantMemory};

/// Exports and tenants of a world; without exports all bios are of one that is not configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantScenario {
    /// Number of exports, to which the connections belong in turn.
    pub exports: u16,
    /// Number of tenants, from the first and from the last place.
    pub tenants: u16,
    /// Changes in a round.
    pub changes: u32,
    /// Tenants and exports have caps of dirty data, and tenants minimums and maximums of the cache.
    pub parts: bool,
    /// The longest latency target in microseconds, 0 if no export has one. The shortest is a hundredth: below what a device
    /// needs.
    pub target_us: u32,
}

impl TenantScenario {
    /// Draws exports in half of the worlds, and tenants in most of these.
    pub fn draw(prng: &mut Prng) -> Self {
        if prng.below(2) == 0 {
            return Self::default();
        }
        let (exports, tenants) = (prng.between(1, 5) as u16, prng.below(4) as u16);
        let changes = [0, 10, 100][prng.below(3) as usize];
        let target_us = [0, 0, 1_000, 100_000][prng.below(4) as usize];
        let parts = prng.below(2) == 0;
        Self { exports, tenants, changes, parts, target_us }
    }

    /// The tenants that a world may have.
    pub fn places(&self) -> impl Iterator<Item = TenantId> + use<> {
        (0..self.tenants).map(Self::place)
    }

    /// The place of a tenant: the odd ones are at the end of the table.
    pub(crate) fn place(number: u16) -> TenantId {
        let most = TENANTS_MAX as u16;
        TenantId(if number.is_multiple_of(2) { number } else { most - number })
    }

    /// The export of a connection.
    #[must_use]
    pub fn export_of(&self, connection: usize) -> ExportId {
        ExportId((connection % usize::from(self.exports.max(1))) as u16)
    }

    /// The exports at the start: every second one has a tenant, every third a latency target.
    #[must_use]
    pub fn exports(&self) -> Vec<ExportConfig> {
        let export = |number: u16| {
            let target = if number.is_multiple_of(3) { self.target_us } else { 0 };
            let dirty_max = if self.parts && number % 4 == 2 { 40 } else { u32::MAX };
            let usual =
                ExportConfig { latency_target_us: target, dirty_max, ..ExportConfig::default() };
            match number % 2 == 1 && self.tenants > 0 {
                true => ExportConfig {
                    weight: 100 * number,
                    tenant: Self::place(number % self.tenants),
                    ..usual
                },
                false => usual,
            }
        };
        (0..self.exports).map(export).collect()
    }

    /// The tenants at the start.
    #[must_use]
    pub fn weights(&self) -> Vec<TenantConfig> {
        let tenant = |number: u16| TenantConfig {
            weight: (50 + 400 * number).min(10_000),
            memory: match (self.parts, number) {
                (true, 0) => TenantMemory { dirty_max: 24, cache_min: 64, cache_max: 200 },
                (true, 1) => TenantMemory { cache_min: 32, ..TenantMemory::default() },
                _ => TenantMemory::default(),
            },
        };
        (0..self.tenants).map(tenant).collect()
    }
}

/// The changes of exports and tenants.
#[derive(Debug)]
pub struct TenantEdits {
    prng: Prng,
    scenario: TenantScenario,
    left: u32,
}

impl TenantEdits {
    /// The changes of a world.
    #[must_use]
    pub fn new(seed: u64, scenario: TenantScenario) -> Self {
        Self { prng: Prng::new(seed).split("tenant edits"), scenario, left: 0 }
    }

    /// Starts a round; returns the delay of its first change, if it has any.
    pub fn start(&mut self) -> Option<u64> {
        self.left = self.scenario.changes;
        (self.left > 0).then(|| self.prng.between(US, 5 * MS))
    }

    /// Ends the round at a power cut.
    pub fn cut(&mut self) {
        self.left = 0;
    }

    /// The next change, and the delay until the one after it.
    pub fn change(&mut self) -> Option<(Control, u64)> {
        self.left = self.left.checked_sub(1)?;
        let prng = &mut self.prng;
        let export = ExportId(prng.below(self.scenario.exports.max(1).into()) as u16);
        let tenant = match prng.below(u64::from(self.scenario.tenants) + 1) as u16 {
            none if none == self.scenario.tenants => TenantId::NONE,
            number => TenantScenario::place(number),
        };
        let weight = [1, 100, 100, 10_000][prng.below(4) as usize];
        let target_us = self.scenario.target_us / [1, 10, 100, u32::MAX][prng.below(4) as usize];
        if self.scenario.parts && prng.below(3) == 0 {
            let mut size = || [1, 8, 100, 1000][prng.below(4) as usize];
            let (dirty_max, cache_min, cache_max) = (size(), size() - 1, size());
            let control = match prng.below(4) {
                0 => Control::ExportDirty { export, dirty_max },
                1 => Control::ExportDirty { export, dirty_max: u32::MAX },
                2 => Control::TenantMemory { tenant, memory: TenantMemory::default() },
                _ => Control::TenantMemory {
                    tenant,
                    memory: TenantMemory { dirty_max, cache_min, cache_max },
                },
            };
            return Some((control, prng.between(US, 2 * MS)));
        }
        let control = match prng.below(5) {
            4 if self.scenario.target_us > 0 => Control::ExportTarget { export, target_us },
            0 => Control::Weight { export, weight },
            1 if !tenant.is_none() => Control::TenantWeight { tenant, weight },
            _ => Control::ExportTenant { export, tenant },
        };
        Some((control, prng.between(US, 2 * MS)))
    }
}
