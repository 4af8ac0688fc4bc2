//! Volumes that are put on their base, at the start or under load.
//!
//! ```text
//!   lay: at once, or after a pause:  SetBase ..  OwnBlocks of some words ..  ReadBase     between two batches each
//!     ^                                `-- upgrade: before the new shard adopts          (`..`: a pause, or none)
//!     `-- new shards, volume added;  volume removed: lifted
//! ```
//!
//! Own blocks are those that differ on the modelled disk when they are told; sometimes more are named. Invariant, checked by
//! hot-plug: while a volume is on a base, the base stays.

use headworks_core::cache::folio::BLOCK;
use headworks_core::prng::Prng;
use headworks_core::time::{MS, US};
use headworks_core::{Change, ChangeError, VolumeId};

use super::World;
use crate::check::violation;
use crate::coverage::Point;
use crate::environment::Event;
use crate::scenario::{LayerScenario, Scenario};

/// Blocks of a word.
const WORD: u64 = 64;

/// How far a volume is put on its base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LayerStage {
    Apart,
    /// Own blocks are told up to this word.
    Set(u64),
    Shared,
}

/// A volume that is being put on its base, or is.
#[derive(Clone, Copy, Debug)]
struct LayerState {
    stage: LayerStage,
    /// Number of its plan: events of earlier ones are void.
    plan: u32,
    /// More own blocks are named than there are.
    names_more: bool,
}

/// The volumes on a base of a simulated world, in the scenario's order.
pub(super) struct Layers {
    prng: Prng,
    states: Vec<LayerState>,
}

impl Layers {
    pub fn new(prng: Prng, scenario: &Scenario) -> Self {
        let state = LayerState { stage: LayerStage::Apart, plan: 0, names_more: false };
        Self { prng, states: vec![state; scenario.layers.len()] }
    }
}

impl World {
    /// Puts all volumes that are there on their bases, after new shards have started.
    pub(super) fn lay_all(&mut self) {
        for index in 0..self.layers.states.len() {
            self.layers.states[index].stage = LayerStage::Apart;
            let LayerScenario { volume, .. } = self.env.scenario.layers[index];
            if self.hotplug.is_present(volume) {
                self.lay(volume);
            }
        }
    }

    /// Puts a volume on its base, if it has one: at once or later.
    pub(super) fn lay(&mut self, volume: VolumeId) {
        let Some(index) = self.layer_of(volume) else { return };
        let state = &mut self.layers.states[index];
        state.plan += 1;
        state.names_more = self.layers.prng.below(4) == 0;
        self.advance_layer(index);
    }

    /// Forgets a volume that was removed.
    pub(super) fn lift(&mut self, volume: VolumeId) {
        if let Some(index) = self.layer_of(volume) {
            let state = &mut self.layers.states[index];
            (state.stage, state.plan) = (LayerStage::Apart, state.plan + 1);
        }
    }

    /// Puts volumes on their bases in shards that adopt caches next.
    pub(super) fn lay_below_adopted(&mut self) {
        for index in 0..self.layers.states.len() {
            let LayerScenario { volume, .. } = self.env.scenario.layers[index];
            let state = &mut self.layers.states[index];
            (state.stage, state.plan) = (LayerStage::Apart, state.plan + 1);
            if self.hotplug.is_present(volume) {
                self.env.coverage.hit(Point::LayerUpgraded);
                self.step_layer(index);
            }
        }
    }

    /// Goes on with what [`World::lay_below_adopted`] began.
    pub(super) fn lay_upgraded(&mut self) {
        for index in 0..self.layers.states.len() {
            if self.layers.states[index].stage != LayerStage::Apart {
                self.advance_layer(index);
            }
        }
    }

    /// Continues a plan, unless it is void.
    pub(super) fn continue_layer(&mut self, layer: u16, plan: u32) {
        let index = usize::from(layer);
        if self.layers.states[index].plan != plan {
            return;
        }
        let LayerScenario { volume, base } = self.env.scenario.layers[index];
        let below = self.layer_of(base).map(|below| self.layers.states[below].stage);
        if self.hotplug.changes(volume) || below == Some(LayerStage::Apart) {
            return self.schedule_layer(index, MS);
        }
        self.step_layer(index);
        self.advance_layer(index);
    }

    /// Takes steps at once, or plans the next one.
    fn advance_layer(&mut self, index: usize) {
        let LayerScenario { base, .. } = self.env.scenario.layers[index];
        let below = self.layer_of(base).map(|below| self.layers.states[below].stage);
        while self.layers.states[index].stage != LayerStage::Shared {
            if below == Some(LayerStage::Apart) || self.layers.prng.below(3) == 0 {
                let most = [10 * US, MS, 20 * MS][self.layers.prng.below(3) as usize];
                return self.schedule_layer(index, most);
            }
            self.step_layer(index);
        }
    }

    fn schedule_layer(&mut self, index: usize, most: u64) {
        let after = self.layers.prng.between(US, most);
        let LayerState { plan, .. } = self.layers.states[index];
        self.env.events.push(self.env.now.after(after), Event::Layer { layer: index as u16, plan });
    }

    fn step_layer(&mut self, index: usize) {
        let LayerScenario { volume, base } = self.env.scenario.layers[index];
        let LayerState { stage, names_more, .. } = self.layers.states[index];
        let size = self.env.scenario.sizes_max[usize::from(volume.0)];
        let words = size.div_ceil(u64::from(BLOCK)).div_ceil(WORD);
        let stage = match stage {
            LayerStage::Apart => {
                self.cover_layer(volume);
                self.change_layer(Change::SetBase { volume, base });
                LayerStage::Set(0)
            }
            LayerStage::Set(word) if word < words => {
                let end = (word + self.layers.prng.between(1, words)).min(words);
                for word in word..end {
                    let bits = self.own_blocks(volume, base, word, names_more);
                    self.change_layer(Change::OwnBlocks { volume, word, bits });
                }
                LayerStage::Set(end)
            }
            LayerStage::Set(_) => {
                self.change_layer(Change::ReadBase { volume });
                LayerStage::Shared
            }
            LayerStage::Shared => LayerStage::Shared,
        };
        self.layers.states[index].stage = stage;
    }

    fn own_blocks(&mut self, volume: VolumeId, base: VolumeId, word: u64, names_more: bool) -> u64 {
        let device = self.env.scenario.volumes[usize::from(volume.0)].device;
        let own = self.disks[usize::from(device.0)].lock().own_blocks(volume, base, word);
        let prng = &mut self.layers.prng;
        let more = if names_more { prng.next() & prng.next() & prng.next() } else { 0 };
        own | more
    }

    /// Applies a change to all shards; those elsewhere ignore it.
    fn change_layer(&mut self, change: Change) {
        for shard in 0..self.shards.len() {
            if let Err(error) = self.shards[shard].core.change(self.env.now, &change) {
                let detail = format!("shard {shard} of {change:?}: {error}");
                self.env.fail(violation("a valid topology change succeeds", detail));
            }
        }
    }

    fn cover_layer(&mut self, volume: VolumeId) {
        self.env.coverage.hit(Point::LayerSet);
        let of_volume = |c: &&crate::connection::Connection| c.job.options.volume == volume;
        let busy = self.env.connections.iter().filter(of_volume).any(|c| c.in_flight() > 0);
        self.env.coverage.add(Point::LayerSetBusy, busy.into());
        let home = self.env.scenario.volumes[usize::from(volume.0)].home;
        let core = &self.shards[usize::from(home.0)].core;
        let dirty = core.dirty_stats().is_some_and(|stats| stats.nr_dirty > 0);
        self.env.coverage.add(Point::LayerSetDirty, dirty.into());
    }

    /// Checks that a base cannot be removed while a volume is on it.
    pub(super) fn check_base_stays(&mut self, base: VolumeId) {
        let states = self.layers.states.iter().zip(&self.env.scenario.layers);
        let mut on_it =
            states.filter(|(state, layer)| layer.base == base && state.stage != LayerStage::Apart);
        if on_it.next().is_none() {
            return;
        }
        let home = usize::from(self.env.scenario.volumes[usize::from(base.0)].home.0);
        match self.ask(home, &Change::RemoveVolume { volume: base }) {
            Err(ChangeError::Busy(_)) => self.env.coverage.hit(Point::BaseKept),
            other => {
                let detail = format!("the removal of base {} was answered {other:?}", base.0);
                self.env.fail(violation("a base stays while a volume is on it", detail));
            }
        }
    }

    fn layer_of(&self, volume: VolumeId) -> Option<usize> {
        self.env.scenario.layers.iter().position(|layer| layer.volume == volume)
    }
}
