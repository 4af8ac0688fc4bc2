//! How far each volume of a simulated world is put on its base.
//!
//! Invariant: of several plans for a volume the last one counts.

use headworks_core::prng::Prng;

use crate::scenario::Scenario;

/// How far a volume is put on its base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LayerStage {
    Apart,
    /// Own blocks are told up to this word.
    Set(u64),
    Shared,
}

/// A volume that is being put on its base, or is.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerState {
    pub stage: LayerStage,
    /// Number of its plan: events of earlier ones are void.
    pub plan: u32,
    /// More own blocks are named than there are.
    pub names_more: bool,
}

/// The volumes on a base of a simulated world, in the scenario's order.
pub(super) struct Layers {
    /// Draws steps, pauses and blocks.
    pub prng: Prng,
    states: Vec<LayerState>,
}

impl Layers {
    pub fn new(prng: Prng, scenario: &Scenario) -> Self {
        let state = LayerState { stage: LayerStage::Apart, plan: 0, names_more: false };
        Self { prng, states: vec![state; scenario.layers.len()] }
    }

    /// Number of volumes that have a base.
    pub fn count(&self) -> usize {
        self.states.len()
    }

    /// How far a volume is put on its base, and by which plan.
    pub fn state(&self, index: usize) -> LayerState {
        self.states[index]
    }

    /// Begins a plan: events of earlier ones are void.
    pub fn begin(&mut self, index: usize) {
        self.states[index].plan += 1;
        self.states[index].names_more = self.prng.below(4) == 0;
    }

    /// Voids the plan of a volume, which is on no base any more.
    pub fn void(&mut self, index: usize) {
        let state = &mut self.states[index];
        (state.stage, state.plan) = (LayerStage::Apart, state.plan + 1);
    }

    /// Notes how far a volume is put on its base now.
    pub fn set_stage(&mut self, index: usize, stage: LayerStage) {
        self.states[index].stage = stage;
    }
}
