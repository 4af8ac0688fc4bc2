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
//!
//! Snapshots of overlays: a new layer is put on, as the server does it on the frozen and flushed export, and also whenever the device
//! takes it under load.
//!
//! Invariants: a device takes a layer only when everything is durable that the one below got, which the next power cut checks; one that
//! is idle and flushed takes it.

use headworks_core::cache::folio::BLOCK;
use headworks_core::time::{MS, US};
use headworks_core::{Change, ChangeError, DeviceId, VolumeId, WriteMode};

use super::World;
use super::layer_plan::{LayerStage, LayerState};
use crate::check::violation;
use crate::coverage::Point;
use crate::disk::{OverlaidDisk, OverlaidVolume, keep_top, new_top};
use crate::environment::Event;
use crate::scenario::LayerScenario;

/// Blocks of a word.
const WORD: u64 = 64;
/// Turns per attempt under load.
const EVERY: u64 = 128;

impl World {
    /// Puts all volumes that are there on their bases, after new shards have started.
    pub(super) fn lay_all(&mut self) {
        for index in 0..self.layers.count() {
            self.layers.set_stage(index, LayerStage::Apart);
            let LayerScenario { volume, .. } = self.env.scenario.layers[index];
            if self.hotplug.is_present(volume) {
                self.lay(volume);
            }
        }
    }

    /// Puts a volume on its base, if it has one: at once or later.
    pub(super) fn lay(&mut self, volume: VolumeId) {
        let Some(index) = self.layer_of(volume) else { return };
        self.layers.begin(index);
        self.advance_layer(index);
    }

    /// Forgets a volume that was removed.
    pub(super) fn lift(&mut self, volume: VolumeId) {
        if let Some(index) = self.layer_of(volume) {
            self.layers.void(index);
        }
    }

    /// Puts volumes on their bases in shards that adopt caches next.
    pub(super) fn lay_below_adopted(&mut self) {
        for index in 0..self.layers.count() {
            let LayerScenario { volume, .. } = self.env.scenario.layers[index];
            self.layers.void(index);
            if self.hotplug.is_present(volume) {
                self.env.coverage.hit(Point::LayerUpgraded);
                self.step_layer(index);
            }
        }
    }

    /// Goes on with what [`World::lay_below_adopted`] began.
    pub(super) fn lay_upgraded(&mut self) {
        for index in 0..self.layers.count() {
            if self.layers.state(index).stage != LayerStage::Apart {
                self.advance_layer(index);
            }
        }
    }

    /// Continues a plan, unless it is void.
    pub(super) fn continue_layer(&mut self, layer: u16, plan: u32) {
        let index = usize::from(layer);
        if self.layers.state(index).plan != plan {
            return;
        }
        let LayerScenario { volume, base } = self.env.scenario.layers[index];
        let below = self.layer_of(base).map(|below| self.layers.state(below).stage);
        if self.hotplug.changes(volume) || below == Some(LayerStage::Apart) {
            return self.schedule_layer(index, MS);
        }
        self.step_layer(index);
        self.advance_layer(index);
    }

    /// Takes steps at once, or plans the next one.
    fn advance_layer(&mut self, index: usize) {
        let LayerScenario { base, .. } = self.env.scenario.layers[index];
        let below = self.layer_of(base).map(|below| self.layers.state(below).stage);
        while self.layers.state(index).stage != LayerStage::Shared {
            if below == Some(LayerStage::Apart) || self.layers.prng.below(3) == 0 {
                let most = [10 * US, MS, 20 * MS][self.layers.prng.below(3) as usize];
                return self.schedule_layer(index, most);
            }
            self.step_layer(index);
        }
    }

    fn schedule_layer(&mut self, index: usize, most: u64) {
        let after = self.layers.prng.between(US, most);
        let LayerState { plan, .. } = self.layers.state(index);
        self.env.events.push(self.env.now.after(after), Event::Layer { layer: index as u16, plan });
    }

    fn step_layer(&mut self, index: usize) {
        let LayerScenario { volume, base } = self.env.scenario.layers[index];
        let LayerState { stage, names_more, .. } = self.layers.state(index);
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
        self.layers.set_stage(index, stage);
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
        let mut layers = self.env.scenario.layers.iter().enumerate();
        let is_on_it = |(index, layer): (usize, &LayerScenario)| {
            layer.base == base && self.layers.state(index).stage != LayerStage::Apart
        };
        if !layers.any(is_on_it) {
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

    /// Attempts a snapshot of a drawn volume now and then.
    pub(super) fn try_snapshot(&mut self) {
        let overlays = self.env.scenario.overlays.len() as u64;
        if overlays > 0 && self.snapshots.below(EVERY) == 0 {
            let index = self.snapshots.below(overlays) as usize;
            let stacked = self.snapshot(self.env.scenario.overlays[index].volume);
            self.env.coverage.add(Point::SnapshotBusy, (stacked == Some(true)).into());
        }
    }

    /// Puts a layer on every overlay of an idle world, in some of the rounds.
    pub(super) fn snapshot_idle(&mut self) {
        if self.env.scenario.overlays.is_empty() || self.snapshots.below(3) > 0 {
            return;
        }
        self.flush_all();
        for index in 0..self.env.scenario.overlays.len() {
            if self.env.broken.is_some() {
                return;
            }
            let volume = self.env.scenario.overlays[index].volume;
            match self.snapshot(volume) {
                Some(false) if self.env.scenario.mode(volume.volume) != WriteMode::Unsafe => {
                    let detail = format!("volume {}", volume.volume.0);
                    self.env.fail(violation("a flushed overlay takes a new layer", detail));
                }
                stacked => self.env.coverage.add(Point::Snapshot, (stacked == Some(true)).into()),
            }
        }
    }

    /// Puts a layer on a volume: whether the device took it; `None` if the volume has the most there may be.
    fn snapshot(&mut self, volume: OverlaidVolume) -> Option<bool> {
        let DeviceId(device) = self.env.scenario.volumes[usize::from(volume.volume.0)].device;
        let owner = self.env.scenario.devices[usize::from(device)].config.owner;
        let disk = &self.disks[usize::from(device)];
        let top = new_top(disk, volume)?;
        let executor = &mut self.shards[usize::from(owner.0)].executor;
        let overlays = executor.device(DeviceId(device))?.find::<OverlaidDisk>();
        let overlay = overlays.and_then(|overlays| overlays.overlay(volume.volume));
        let stacked = overlay.is_some_and(|overlay| overlay.stack(top).is_ok());
        if stacked {
            keep_top(disk, volume);
        }
        Some(stacked)
    }
}
