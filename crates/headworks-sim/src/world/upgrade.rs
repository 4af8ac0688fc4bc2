//! Live upgrades: new shards take over the frames, dirty tables, disks and connections of the old ones.
//!
//! ```text
//!   connections pause, every cache is frozen --> nothing is in flight --> contents, as words --> new shards adopt them
//!        |                                            |                                             |
//!        `--- not within 5 s: given up ---------------+--- sometimes: abandoned -------> the old shards go on
//! ```
//!
//! The frames keep their bytes. Messages between shards, tunable changes and hot-plug changes end before. The new shards have the
//! options that the old ones had at their start, and are told of suspect volumes. Half of them are frozen while they adopt.
//!
//! Invariants, checked at each upgrade: frozen shards become quiet; the new caches have the contents of the old ones; the dirty
//! table fits them; in an idle world a folio that was cached is read without the device.

use std::sync::atomic::Ordering;

use headworks_core::cache::folio::BLOCK;
use headworks_core::cache::{CacheContents, CachedFolio, ContentsError};
use headworks_core::time::SEC;
use headworks_core::{Control, DirtyEntry, ExportId, Input, ShardId, VolumeId};

use super::make::{STEP, SimShard, make_core};
use super::{Stop, World};
use crate::check::violation;
use crate::coverage::Point;
use crate::environment::Event;
use crate::scenario::WorldDefect;

/// The rule that a cache breaks that never becomes quiet.
const QUIET: &str = "a frozen shard becomes quiet";
/// The rule of contents that change between two shards, or do not fit.
const ADOPTED: &str = "an upgrade keeps the contents of the caches";
/// The rule of an upgrade that loses folios.
const HITS: &str = "what was cached before an upgrade is read without the device";

/// The longest time in which shards become quiet, or the upgrade is given up.
const LONGEST: u64 = 5 * SEC;
/// Folios of each shard that are read after an upgrade.
const READ_MAX: usize = 4;

impl World {
    /// Plans the upgrades of a round; in half of the rounds that are cut, one is just before.
    pub(super) fn plan_upgrades(&mut self, cut_after: Option<u64>) {
        let upgrades = self.env.scenario.upgrades;
        self.upgrades.begin_round(upgrades, self.turns, cut_after);
    }

    /// Ends the upgrades of a round, which ended by `stop`.
    pub(super) fn end_upgrades(&mut self, stop: Stop) {
        let soon = self.upgrades.end_round(self.turns);
        if stop == Stop::Cut && soon {
            self.env.coverage.hit(match self.env.scenario.ends.deaths {
                true => Point::DeathUpgraded,
                false => Point::UpgradeCut,
            });
        }
    }

    /// Whether an upgrade is to begin now: no hot-plug change is in progress.
    pub(super) fn is_upgrade_due(&self) -> bool {
        self.upgrades.is_due(self.turns) && !self.hotplug.is_under_way()
    }

    /// Upgrades the shards, or gives it up.
    pub(super) fn upgrade(&mut self) {
        let busy = self.env.connections.iter().any(|connection| connection.in_flight() > 0);
        self.env.coverage.add(Point::UpgradeBusy, busy.into());
        self.env.paused = true;
        self.tell_all(Control::Freeze { on: true });
        let quiet = self.wait_until_still();
        if quiet && self.env.broken.is_none() {
            self.exchange();
        } else {
            self.env.coverage.hit(Point::UpgradeGivenUp);
            self.tell_all(Control::Freeze { on: false });
        }
        self.env.paused = false;
        for shard in 0..self.shards.len() {
            self.env.resume_starved(ShardId(shard as u16));
        }
        self.issue_ready();
        self.upgrades.ended(self.turns);
    }

    /// Upgrades an idle world, in half of the rounds, and reads what was cached.
    pub(super) fn upgrade_idle(&mut self) {
        if self.env.scenario.upgrades == 0 || self.upgrades.prng.below(2) == 0 {
            return;
        }
        self.upgrades.clear();
        self.turns_max = self.turns + 100_000;
        self.upgrade();
        for contents in self.upgrades.take_adopted() {
            self.read_cached(&contents);
        }
    }

    fn tell_all(&mut self, control: Control) {
        for shard in &mut self.shards {
            shard.inbox.push(Input::Control(control));
        }
    }

    /// Runs until nothing is in flight anywhere; false if that takes too long.
    fn wait_until_still(&mut self) -> bool {
        let (end, in_flight) = (self.env.now.after(LONGEST), self.in_flight());
        self.turns_max += 2_000 * (in_flight + 100);
        while !self.is_still() {
            if self.env.broken.is_some() || self.env.now > end {
                return false;
            }
            if !self.step() {
                let detail = format!("no event is pending:\n{}", self.state());
                self.env.fail(violation(QUIET, detail));
            }
        }
        true
    }

    /// Number of bios in flight.
    fn in_flight(&self) -> u64 {
        self.env.connections.iter().map(|connection| connection.in_flight() as u64).sum()
    }

    /// Whether nothing is in flight: no input, message, command, bio or tunable change.
    fn is_still(&self) -> bool {
        let still = |shard: &SimShard| shard.inbox.is_empty() && shard.core.is_quiet();
        let message = |event: &Event| matches!(event, Event::Deliver { .. });
        self.in_flight() == 0
            && self.shards.iter().all(still)
            && self.disks.iter().all(|disk| disk.lock().in_flight() == 0)
            && self.env.operator.unanswered() == 0
            && !self.env.events.any(message)
    }

    /// Replaces the shards by new ones with the same contents, or lets the old ones go on.
    fn exchange(&mut self) {
        let taken: Result<Vec<_>, ContentsError> = (0..self.shards.len())
            .map(|shard| {
                let words = self.shards[shard].core.contents(self.env.now)?.encode();
                CacheContents::decode(&words)
            })
            .collect();
        let taken = match taken {
            Ok(taken) => taken,
            Err(error) => return self.env.fail(violation(ADOPTED, error.to_string())),
        };
        if self.upgrades.prng.below(8) == 0 {
            self.env.coverage.hit(Point::UpgradeAbandoned);
            return self.tell_all(Control::Freeze { on: false });
        }
        self.cover(&taken);
        self.caps.replace();
        let suspects = self.suspects();
        for shard in 0..self.shards.len() {
            let core = make_core(&self.env.scenario, self.prepare, ShardId(shard as u16));
            self.shards[shard].core = core;
        }
        self.env.upgrade();
        self.restore_hotplugged();
        self.lay_below_adopted();
        for (shard, contents) in taken.iter().enumerate() {
            self.adopt(shard, contents);
        }
        self.lay_upgraded();
        for (owner, volume) in suspects {
            self.env.coverage.hit(Point::UpgradeSuspect);
            self.shards[owner].inbox.push(Input::Control(Control::Suspect { volume }));
        }
        self.tell_all(Control::Freeze { on: false });
        for shard in 0..self.shards.len() {
            while self.env.broken.is_none() && !self.shards[shard].inbox.is_empty() {
                self.turn(shard);
            }
            self.check_table(shard);
        }
        self.upgrades.completed(taken);
    }

    /// Gives a new shard the contents of the old one.
    fn adopt(&mut self, shard: usize, contents: &CacheContents) {
        let frozen = self.upgrades.prng.below(2) == 0;
        if frozen {
            self.shards[shard].inbox.push(Input::Control(Control::Freeze { on: true }));
        }
        self.turn(shard);
        let (now, examined) = (self.env.now, frozen && self.is_examined());
        let core = &mut self.shards[shard].core;
        if let Err(error) = core.adopt_cache(now, contents, Some, |_| ExportId(0), Some) {
            return self.env.fail(violation(ADOPTED, format!("shard {shard}: {error}")));
        }
        if core.cache_stats().is_some() {
            core.check_cache();
        }
        if examined && !core.contents(now).is_ok_and(|adopted| is_same(&adopted, contents)) {
            let detail = format!("shard {shard} has other contents than those that it adopted");
            self.env.fail(violation(ADOPTED, detail));
        }
    }

    /// Counts what an upgrade hands over, before the old shards are dropped.
    fn cover(&mut self, taken: &[CacheContents]) {
        self.count_caches();
        self.env.coverage.hit(Point::Upgrade);
        let volumes = self.env.scenario.volumes.len() as u16;
        let dirty = |contents: &CacheContents| {
            (0..volumes).any(|volume| contents.dirty_blocks(VolumeId(volume)) > 0)
        };
        self.env.coverage.add(Point::UpgradeDirty, taken.iter().any(dirty).into());
        let held = |shard: &SimShard| shard.core.cache_stats().is_some_and(|s| s.held > 0);
        self.env.coverage.add(Point::UpgradeHeld, self.shards.iter().any(held).into());
    }

    /// The suspect volumes, with the owners of their devices.
    fn suspects(&self) -> Vec<(usize, VolumeId)> {
        let volumes = self.env.scenario.volumes.iter().enumerate();
        let owned = volumes.map(|(index, volume)| {
            let owner = self.env.scenario.devices[usize::from(volume.device.0)].config.owner;
            (usize::from(owner.0), VolumeId(index as u16))
        });
        let suspect = |&(owner, volume): &(usize, VolumeId)| {
            self.shards[owner].core.unflushed(volume).is_some_and(|(_, suspect)| suspect)
        };
        owned.filter(suspect).collect()
    }

    /// Whether caches and dirty tables are examined after an upgrade.
    fn is_examined(&self) -> bool {
        self.env.scenario.defect != WorldDefect::UncheckedUpgrades
    }

    /// Checks the dirty table, which has outlived the shard that wrote it.
    fn check_table(&self, shard: usize) {
        let SimShard { core, executor, .. } = &self.shards[shard];
        if let Some(log) = executor.log().filter(|_| self.is_examined()) {
            let entry =
                |word: &std::sync::atomic::AtomicU64| DirtyEntry(word.load(Ordering::Relaxed));
            let table: Vec<_> = log.table().iter().map(entry).collect();
            core.check_dirty_table(&table);
        }
    }

    /// Reads some folios that a shard has adopted, and checks that no block was missing.
    fn read_cached(&mut self, contents: &CacheContents) {
        let whole = |folio: &&CachedFolio| {
            // A block read before its volume was put on the base is found there after that.
            let is_shared = self.env.scenario.base(folio.volume).is_some();
            let states = contents.states(folio);
            !is_shared && states.iter().all(|state| state & CachedFolio::VALID != 0)
        };
        let folios: Vec<_> = contents.folios().iter().filter(whole).collect();
        let apart = folios.len().div_ceil(READ_MAX).max(1);
        for folio in folios.into_iter().step_by(apart) {
            if self.env.broken.is_some() || self.read_folio(folio) == Stop::Broken {
                return;
            }
        }
    }

    /// Reads a folio with the reader of its volume.
    fn read_folio(&mut self, folio: &CachedFolio) -> Stop {
        let volume = self.env.scenario.volumes[usize::from(folio.volume.0)];
        let home = usize::from(volume.home.0);
        let misses = |world: &Self| world.shards[home].core.cache_stats().map(|stats| stats.misses);
        let before = misses(self);
        let start = folio.block * u64::from(BLOCK);
        let end = (start + u64::from(folio.blocks() * BLOCK)).min(volume.options.size);
        let reader = self.env.scenario.jobs.len() + usize::from(folio.volume.0);
        let job = &mut self.env.connections[reader].job;
        (job.options.start, job.options.end) = (start, end);
        job.rewind();
        job.left = (end - start).div_ceil(STEP.into()) as u32;
        let stop = self.run_jobs(None);
        let job = &mut self.env.connections[reader].job;
        (job.options.start, job.options.end) = (0, volume.options.size);
        self.env.coverage.hit(Point::UpgradeHit);
        if misses(self) != before {
            self.env.fail(violation(HITS, format!("{folio:?}")));
        }
        stop
    }
}

/// Whether two caches hold the same folios in the same states and order. (Held blocks are in no dirty group of the old cache.)
fn is_same(one: &CacheContents, other: &CacheContents) -> bool {
    let states = |folio: &CachedFolio| one.states(folio) == other.states(folio);
    one.units() == other.units()
        && one.folios() == other.folios()
        && one.folios().iter().all(states)
}
