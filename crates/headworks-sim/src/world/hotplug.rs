//! Hot-plug and resize of simulated volumes and devices under load.
//!
//! An added volume is a new file: all zeros, often of another size. The oracle thus detects any
//! block, stream or error that survives from the removed one. At most one change is in progress;
//! the shards apply it one after another, with other turns in between.
//!
//! ```text
//!   replace:  Emptying --home agrees--> RemovingVolume, shard by shard --> (RemovingDevice --> AddingDevice) --> AddingVolume, shard by shard
//!              |  ^ `-- dirty: a flush --.
//!              |  '----------------------'
//!              `-- refused too often: the volume stays
//!   remove:   (discard all of it) Emptying --> RemovingVolume --> (RemovingDevice)     a hot-plugged volume is removed
//!   add:      (AddingDevice -->) AddingVolume                                          a volume takes a free slot
//!   resize:   grow; or shrink --> Shrunk --> grow, perhaps before a command has ended
//! ```
//!
//! Connections of a removed volume submit nothing meanwhile; half of them reopen under another id.
//! Invariant, checked at each step: a shard refuses while a bio of the volume is in flight, and
//! agrees in the end.
//!
//! Sizes: Invariant: disk, oracle, jobs and scenario change the size at once; the volume's home shard
//! learns of it by an input behind the bios submitted earlier. From then on bytes beyond the end
//! may be old or zero (`Oracle::cut_off`), also after the volume grows again.

use headworks_core::time::{MS, US};
use headworks_core::{
    Change, ChangeError, Control, DeviceId, Input, Op, ShardId, VolumeConfig, VolumeId,
};

use super::World;
use super::hotplug_plan::{HotplugChange, HotplugGoal, HotplugStage};
use super::make::{FLUSHES, bios_of_reader};
use crate::check::violation;
use crate::coverage::Point;
use crate::environment::Event;
use crate::sector_pattern::SECTOR;

/// Operations of a volume's reader job when it verifies.
const READS: [u32; Op::COUNT] = [1, 0, 0, 0, 0, 0, 0];
/// Operations of a reader job that discards a volume before its removal.
const DISCARDS: [u32; Op::COUNT] = [0, 0, 0, 1, 0, 0, 0];
/// Refusals by the home shard after which the volume stays: its device may never accept the dirty
/// data.
const TRIES_MAX: u32 = 12;
/// Refusals by any other shard after which the change fails: with pauses of up to 50 ms, some
/// hours.
const TRIES_LAST: u32 = 1_000_000;

impl World {
    /// Plans the changes of a new round.
    pub(super) fn plan_hotplug(&mut self) {
        if self.hotplug.plan(self.env.scenario.hotplug.changes) {
            self.schedule_step(20 * MS);
        }
    }

    /// Aborts the change in progress at a power cut; volumes then are present on all shards or on
    /// none.
    pub(super) fn stop_hotplug(&mut self) {
        self.hotplug.abort();
        let jobs = self.env.scenario.jobs.len();
        for reader in &mut self.env.connections[jobs..] {
            reader.job.options.weights = READS;
        }
    }

    /// Adds the hot-plugged devices and volumes to new shards after a power cut.
    pub(super) fn restore_hotplugged(&mut self) {
        let (devices, volumes) = self.env.scenario.permanent();
        let mut changes = Vec::new();
        for index in self.hotplug.devices_from(devices) {
            let config = self.env.scenario.devices[index].config;
            changes.push(Change::AddDevice { device: DeviceId(index as u16), config });
        }
        for index in self.hotplug.volumes_from(volumes) {
            let config = self.env.scenario.volumes[index];
            changes.push(Change::AddVolume { volume: VolumeId(index as u16), config });
            self.env.coverage.hit(Point::CutHotplugged);
        }
        for change in changes {
            let owner = match change {
                Change::AddDevice { config, .. } => config.owner,
                Change::AddVolume { config, .. } => self.owner(config.device),
                _ => unreachable!("they come"),
            };
            for shard in self.order(&[owner]) {
                if let Err(error) = self.shards[shard].core.change(self.env.now, &change) {
                    let detail = format!("shard {shard} of {change:?}: {error}");
                    self.env.fail(violation("a valid topology change succeeds", detail));
                }
                self.turn(shard);
            }
        }
    }

    fn schedule_step(&mut self, most: u64) {
        let after = self.hotplug.prng.between(US, most);
        self.env.events.push(self.env.now.after(after), Event::HotplugChange);
    }

    /// Continues the change in progress, or begins the next one.
    pub(super) fn continue_hotplug(&mut self) {
        let Some(at) = self.hotplug.under_way() else {
            return self.begin_change();
        };
        match at.stage {
            HotplugStage::Emptying => self.empty(at),
            HotplugStage::RemovingVolume(agreed) => {
                let change = Change::RemoveVolume { volume: at.volume };
                self.ask_shard(at, agreed, change, self.removal_order(&at));
            }
            HotplugStage::RemovingDevice(agreed) => {
                let order = self.device_removal_order(&at);
                let waits = |input: &Input| matches!(input, Input::Control(Control::Set { device, .. }) if *device == at.device);
                // Tunable changes already in the inbox are applied first.
                if self.shards[order[agreed]].inbox.iter().any(waits) {
                    return self.schedule_step(MS);
                }
                self.ask_shard(at, agreed, Change::RemoveDevice { device: at.device }, order);
            }
            HotplugStage::AddingDevice(agreed) => {
                let config = self.env.scenario.devices[usize::from(at.device.0)].config;
                let change = Change::AddDevice { device: at.device, config };
                self.ask_shard(at, agreed, change, self.addition_order(&at));
            }
            HotplugStage::AddingVolume(agreed) => {
                let config = self.env.scenario.volumes[usize::from(at.volume.0)];
                let change = Change::AddVolume { volume: at.volume, config };
                self.ask_shard(at, agreed, change, self.addition_order(&at));
            }
            HotplugStage::Shrunk => {
                self.resize(at.volume, false);
                self.end_change(at);
            }
        }
    }

    fn begin_change(&mut self) {
        if !self.hotplug.take_planned() {
            return;
        }
        let (_, permanent) = self.env.scenario.permanent();
        let (goal, volume) = match self.hotplug.prng.below(10) {
            0..3 => (HotplugGoal::Add, self.hotplug.pick(false, permanent)),
            3..5 => (HotplugGoal::Remove, self.hotplug.pick(true, permanent)),
            5..8 => (HotplugGoal::Resize, self.hotplug.pick(true, 0)),
            _ => (HotplugGoal::Replace, None),
        };
        let (goal, volume) = match (volume, self.hotplug.pick(true, 0)) {
            (Some(volume), _) => (goal, volume),
            (None, Some(volume)) => (HotplugGoal::Replace, volume),
            (None, None) => return,
        };
        if self.env.scenario.has_layers(volume) {
            self.check_base_stays(volume);
            return self.schedule_step(5 * MS);
        }
        let device = self.env.scenario.volumes[usize::from(volume.0)].device;
        let at = HotplugChange { goal, volume, device, stage: HotplugStage::Emptying, tries: 0 };
        match goal {
            HotplugGoal::Resize => self.begin_resize(at),
            HotplugGoal::Add => self.begin_addition(at),
            HotplugGoal::Remove | HotplugGoal::Replace => self.begin_removal(at),
        }
    }

    fn begin_removal(&mut self, at: HotplugChange) {
        self.hotplug.go_on(at);
        let jobs = self.env.scenario.jobs.len();
        for connection in &mut self.env.connections[..jobs] {
            if connection.job.options.volume != at.volume {
                continue;
            }
            connection.paused = true;
            if at.goal == HotplugGoal::Remove {
                connection.job.left = 0;
            }
        }
        self.release_limited(at.volume);
        let options = self.env.scenario.volumes[usize::from(at.volume.0)].options;
        if at.goal == HotplugGoal::Remove && !options.read_only && self.hotplug.prng.below(2) == 0 {
            self.env.coverage.hit(Point::DiscardedRemoved);
            let reader = &mut self.env.connections[jobs + usize::from(at.volume.0)].job;
            reader.options.weights = DISCARDS;
            self.run_reader(&at, bios_of_reader(options.size));
        }
        self.schedule_step(100 * US);
    }

    /// Runs other operations with the volume's reader job.
    fn run_reader(&mut self, at: &HotplugChange, bios: u32) {
        let reader = self.env.scenario.jobs.len() + usize::from(at.volume.0);
        let job = &mut self.env.connections[reader].job;
        job.rewind();
        job.left = bios;
        self.turns_max += 2_000 * u64::from(bios);
        self.env.schedule(reader);
        self.issue_ready();
    }

    /// Waits until no bio of the volume is in flight, then asks its home shard; sometimes asks
    /// earlier and expects a refusal.
    fn empty(&mut self, at: HotplugChange) {
        let jobs = self.env.scenario.jobs.len();
        let of_volume = |c: &&crate::connection::Connection| c.job.options.volume == at.volume;
        let flights: usize =
            self.env.connections.iter().filter(of_volume).map(|c| c.in_flight()).sum();
        let flushing = self.env.connections[jobs + usize::from(at.volume.0)].job.left > 0;
        let home = self.removal_order(&at)[0];
        let unseen = |input: &Input| matches!(input, Input::Bio(bio) if bio.id.volume == at.volume);
        if flights == 0 && !flushing {
            self.env.connections[jobs + usize::from(at.volume.0)].job.options.weights = READS;
            self.hotplug.go_on(HotplugChange { stage: HotplugStage::RemovingVolume(0), ..at });
            return self.continue_hotplug();
        }
        let seen = flights > 0 && !self.shards[home].inbox.iter().any(unseen);
        if seen && self.hotplug.prng.below(3) == 0 {
            let change = Change::RemoveVolume { volume: at.volume };
            if self.ask(home, &change).is_ok() {
                let detail = format!("volume {} left with {flights} bios in flight", at.volume.0);
                return self.env.fail(violation("a volume in use cannot be removed", detail));
            }
        }
        self.schedule_step(5 * MS);
    }

    pub(super) fn ask(&mut self, shard: usize, change: &Change) -> Result<(), ChangeError> {
        let asked = self.shards[shard].core.change(self.env.now, change);
        if matches!(asked, Err(ChangeError::Busy(_))) {
            self.env.coverage.hit(Point::ChangeBusy);
        }
        asked
    }

    /// Asks the next shard in `order`.
    fn ask_shard(&mut self, at: HotplugChange, agreed: usize, change: Change, order: Vec<usize>) {
        match self.ask(order[agreed], &change) {
            Ok(()) => {
                self.turn(order[agreed]);
                self.agreed(at, agreed + 1 == order.len());
            }
            Err(ChangeError::Busy(_)) if at.tries < TRIES_LAST => self.refused(at),
            Err(error) => {
                let detail = format!("shard {} of {change:?}: {error}", order[agreed]);
                self.env.fail(violation("a valid topology change succeeds", detail));
            }
        }
    }

    fn agreed(&mut self, at: HotplugChange, all: bool) {
        let parts = at.goal == HotplugGoal::Remove;
        let stage = match at.stage {
            HotplugStage::Emptying => HotplugStage::RemovingVolume(0),
            HotplugStage::RemovingVolume(n) if !all => HotplugStage::RemovingVolume(n + 1),
            HotplugStage::RemovingVolume(_) => {
                self.env.coverage.hit(Point::VolumeReplaced);
                if parts {
                    self.hotplug.set_volume(at.volume, false);
                    self.env.coverage.hit(Point::VolumeRemoved);
                }
                self.lift(at.volume);
                self.replace(at.volume);
                match self.device_is_empty(&at) {
                    true => HotplugStage::RemovingDevice(0),
                    false if parts => return self.end_change(at),
                    false => HotplugStage::AddingVolume(0),
                }
            }
            HotplugStage::RemovingDevice(n) if !all => HotplugStage::RemovingDevice(n + 1),
            HotplugStage::RemovingDevice(_) if parts => {
                self.hotplug.set_device(at.device, false);
                self.env.coverage.hit(Point::DeviceRemoved);
                return self.end_change(at);
            }
            HotplugStage::RemovingDevice(_) => {
                self.env.coverage.hit(Point::DeviceReplaced);
                HotplugStage::AddingDevice(0)
            }
            HotplugStage::AddingDevice(n) if !all => HotplugStage::AddingDevice(n + 1),
            HotplugStage::AddingDevice(_) => return self.begin_addition(at),
            HotplugStage::AddingVolume(n) if !all => HotplugStage::AddingVolume(n + 1),
            HotplugStage::AddingVolume(_) => {
                self.end_change(at);
                return self.lay(at.volume);
            }
            HotplugStage::Shrunk => return self.end_change(at),
        };
        self.hotplug.go_on(HotplugChange { stage, tries: 0, ..at });
        self.schedule_step(100 * US);
    }

    /// Begins to add the volume, after its device if that is absent.
    fn begin_addition(&mut self, at: HotplugChange) {
        let stage = match self.hotplug.set_device(at.device, true) {
            false => {
                self.env.coverage.hit(Point::DeviceAdded);
                HotplugStage::AddingDevice(0)
            }
            true => {
                self.hotplug.set_volume(at.volume, true);
                HotplugStage::AddingVolume(0)
            }
        };
        self.hotplug.go_on(HotplugChange { stage, tries: 0, ..at });
        self.schedule_step(100 * US);
    }

    fn refused(&mut self, at: HotplugChange) {
        let tries = at.tries + 1;
        self.hotplug.go_on(HotplugChange { tries, ..at });
        match at.stage {
            HotplugStage::RemovingVolume(0) if tries > TRIES_MAX => {
                self.env.coverage.hit(Point::ChangeGivenUp);
                self.end_change(at);
            }
            // Flush the dirty data first.
            HotplugStage::RemovingVolume(0) => {
                let reader = self.env.scenario.jobs.len() + usize::from(at.volume.0);
                self.env.connections[reader].job.options.weights = FLUSHES;
                self.hotplug.go_on(HotplugChange { stage: HotplugStage::Emptying, tries, ..at });
                self.run_reader(&at, 1);
                self.schedule_step(5 * MS);
            }
            _ => self.schedule_step(50 * MS),
        }
    }

    /// Submits what waits for limits: a removal does not wait for them.
    fn release_limited(&mut self, volume: VolumeId) {
        for index in 0..self.env.scenario.jobs.len() {
            if self.env.connections[index].job.options.volume == volume {
                let home = usize::from(self.env.connections[index].home.0);
                self.env.release(index, &mut self.shards[home].inbox);
            }
        }
    }

    fn begin_resize(&mut self, at: HotplugChange) {
        let shorter = self.hotplug.prng.below(2) == 0;
        if self.resize(at.volume, shorter) {
            self.hotplug.go_on(HotplugChange { stage: HotplugStage::Shrunk, ..at });
            // Often for less time than a command takes.
            let most = [10 * US, 300 * US, 20 * MS][self.hotplug.prng.below(3) as usize];
            return self.schedule_step(most);
        }
        self.end_change(at);
    }

    fn end_change(&mut self, at: HotplugChange) {
        self.hotplug.end();
        if self.hotplug.is_present(at.volume) && at.goal != HotplugGoal::Resize {
            self.resume_connections(&at);
        }
        if self.hotplug.has_planned() {
            self.schedule_step(5 * MS);
        }
    }

    /// Resumes the connections of a volume that was added, or stayed.
    fn resume_connections(&mut self, at: &HotplugChange) {
        let jobs = self.env.scenario.jobs.len();
        if at.goal == HotplugGoal::Add {
            self.env.coverage.hit(Point::VolumeAdded);
        }
        for index in 0..jobs {
            let connection = &mut self.env.connections[index];
            if connection.job.options.volume != at.volume {
                continue;
            }
            connection.paused = false;
            if at.goal == HotplugGoal::Add {
                connection.job.left = connection.job.options.bios;
                self.turns_max += 2_000 * u64::from(connection.job.left);
            }
            let home = usize::from(connection.home.0);
            if self.hotplug.prng.below(2) == 0 {
                self.env.close(index, &mut self.shards[home].inbox);
            }
            self.env.schedule(index);
        }
        self.issue_ready();
    }

    /// Whether the device is removed with the volume: it has no other volume, and for a permanent
    /// removal it is hot-plugged, too.
    fn device_is_empty(&self, at: &HotplugChange) -> bool {
        let mut others = self.hotplug.volumes_from(0).filter(|&index| {
            index != usize::from(at.volume.0)
                && self.env.scenario.volumes[index].device == at.device
        });
        let (permanent, _) = self.env.scenario.permanent();
        let goes = at.goal == HotplugGoal::Replace || usize::from(at.device.0) >= permanent;
        goes && others.next().is_none()
    }

    fn owner(&self, device: DeviceId) -> ShardId {
        self.env.scenario.devices[usize::from(device.0)].config.owner
    }

    /// All shards, those in `first` at the front.
    fn order(&self, first: &[ShardId]) -> Vec<usize> {
        let mut order = Vec::new();
        let all = (0..self.shards.len()).map(|shard| ShardId(shard as u16));
        for shard in first.iter().copied().chain(all).map(|shard| usize::from(shard.0)) {
            if !order.contains(&shard) {
                order.push(shard);
            }
        }
        order
    }

    fn removal_order(&self, at: &HotplugChange) -> Vec<usize> {
        let home = self.env.scenario.volumes[usize::from(at.volume.0)].home;
        self.order(&[home, self.owner(at.device)])
    }

    fn device_removal_order(&self, at: &HotplugChange) -> Vec<usize> {
        let mut order = self.order(&[self.owner(at.device)]);
        order.rotate_left(1);
        order
    }

    fn addition_order(&self, at: &HotplugChange) -> Vec<usize> {
        self.order(&[self.owner(at.device)])
    }

    /// Replaces the volume's file by a new one of zeros, or of what its base has.
    pub(super) fn replace(&mut self, volume: VolumeId) {
        let VolumeConfig { device, options, .. } = self.env.scenario.volumes[usize::from(volume.0)];
        let (old, same) = (options.size, self.hotplug.prng.below(2) == 0);
        let size = if same { old } else { self.draw_size(volume) };
        if let Some(disk) = self.disks.get(usize::from(device.0)) {
            let mut disk = disk.lock();
            disk.replace(volume, size);
            if self.env.scenario.base(volume).is_some() {
                disk.preset(volume, |sector| self.env.scenario.initial(volume, sector));
            }
            drop(disk);
            self.env.replace(volume, size);
            self.env.scenario.volumes[usize::from(volume.0)].options.size = size;
            self.env.fit(volume, old, size);
            self.env.coverage.add(Point::ReplacedResized, (size != old).into());
        }
    }

    /// Draws a valid size for a volume.
    fn draw_size(&mut self, volume: VolumeId) -> u64 {
        let options = self.env.scenario.volumes[usize::from(volume.0)].options;
        let most = self.env.scenario.sizes_max[usize::from(volume.0)];
        let prng = &mut self.hotplug.prng;
        let unit = match options.block_size <= SECTOR as u32 && prng.below(2) == 0 {
            true => SECTOR as u64,
            false => 8192,
        };
        match prng.below(4) {
            0 => most,
            _ => prng.between(8192, most) / unit * unit,
        }
    }

    /// Resizes the file and informs the volume's home shard; returns whether it shrank.
    pub(super) fn resize(&mut self, volume: VolumeId, shorter: bool) -> bool {
        let config = self.env.scenario.volumes[usize::from(volume.0)];
        let old = config.options.size;
        let drawn = self.draw_size(volume);
        let size = if shorter { drawn.min(old) } else { drawn.max(old) };
        if size == old {
            return false;
        }
        self.env.coverage.hit(if size < old { Point::Shrunk } else { Point::Grown });
        if let Some(disk) = self.disks.get(usize::from(config.device.0)) {
            disk.lock().resize(volume, size);
        }
        if self.env.resize(volume, size) && size < old {
            self.env.coverage.hit(Point::ShrunkBusy);
        }
        let input = Input::Control(Control::Resize { volume, size });
        self.shards[usize::from(config.home.0)].inbox.push(input);
        size < old
    }
}
