//! Volumes and devices of the world that leave and come again while the rest goes on.
//!
//! What comes is another file: all zeros. So a block, a stream or an error that outlived the old one is seen by the oracle. One
//! move is under way at a time; the shards hear of each change one after the other, with other turns between.
//!
//! ```text
//!   Emptying --home agrees--> Leaving, shard by shard --> (DeviceLeaving --> DeviceComing) --> Coming, shard by shard --> done
//!    |  ^ `-- dirty: a flush --.
//!    |  '----------------------'
//!    `-- refused too often: the volume stays
//! ```
//!
//! Its connections submit nothing meanwhile; half of them come again under another id. Invariant, checked at each step: a shard
//! refuses as long as anything of the volume is on its way, and agrees in the end.

use headworks_core::prng::Prng;
use headworks_core::time::{MS, US};
use headworks_core::{Change, ChangeError, Control, DeviceId, Input, Op, ShardId, VolumeId};

use super::{FLUSHES, World};
use crate::check::violation;
use crate::coverage::Point;
use crate::disk::SharedDisk;
use crate::wire::Happening;

/// What a volume's reader does when it does not flush.
const READS: [u32; Op::COUNT] = [1, 0, 0, 0, 0, 0, 0];
/// Refusals by the home after which a volume stays: its device may never take what is dirty.
const TRIES_MAX: u32 = 12;
/// Refusals by any other, after which nobody believes in its agreeing: with pauses of up to 50 ms, some hours.
const TRIES_LAST: u32 = 1_000_000;

/// How far a move is; the number counts the shards that have agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Emptying,
    Leaving(usize),
    DeviceLeaving(usize),
    DeviceComing(usize),
    Coming(usize),
}

#[derive(Clone, Copy, Debug)]
struct Move {
    volume: VolumeId,
    device: DeviceId,
    stage: Stage,
    tries: u32,
}

/// See the head of this file.
pub(super) struct Moves {
    prng: Prng,
    left: u32,
    under_way: Option<Move>,
}

impl Moves {
    pub fn new(prng: Prng) -> Self {
        Self { prng, left: 0, under_way: None }
    }

    /// Whether a device may be away, or not yet known everywhere.
    pub fn concern(&self, device: DeviceId) -> bool {
        self.under_way.is_some_and(|under_way| under_way.device == device)
    }
}

impl World {
    /// A new round.
    pub(super) fn plan_moves(&mut self) {
        self.moves.left = self.wire.scenario.moves;
        if self.moves.left > 0 {
            self.move_after(20 * MS);
        }
    }

    /// The power failed: what is there afterwards is there on every shard.
    pub(super) fn stop_moving(&mut self) {
        (self.moves.left, self.moves.under_way) = (0, None);
        let jobs = self.wire.scenario.jobs.len();
        for reader in &mut self.wire.connections[jobs..] {
            reader.job.options.weights = READS;
        }
    }

    fn move_after(&mut self, most: u64) {
        let after = self.moves.prng.between(US, most);
        self.wire.events.push(self.wire.now.after(after), Happening::Move);
    }

    /// The next step of the move that is under way, or of the next one.
    pub(super) fn go_on_moving(&mut self) {
        let Some(at) = self.moves.under_way else {
            return self.begin_move();
        };
        match at.stage {
            Stage::Emptying => self.empty(at),
            Stage::Leaving(agreed) => {
                let change = Change::RemoveVolume { volume: at.volume };
                self.step_move(at, agreed, change, self.leaving_order(&at));
            }
            Stage::DeviceLeaving(agreed) => {
                let order = self.device_leaving_order(&at);
                let waits = |input: &Input| matches!(input, Input::Control(Control::Set { device, .. }) if *device == at.device);
                // What the operator has said already is done first.
                if self.cells[order[agreed]].inbox.iter().any(waits) {
                    return self.move_after(MS);
                }
                self.step_move(at, agreed, Change::RemoveDevice { device: at.device }, order);
            }
            Stage::DeviceComing(agreed) => {
                let config = self.wire.scenario.devices[usize::from(at.device.0)].config;
                let change = Change::AddDevice { device: at.device, config };
                self.step_move(at, agreed, change, self.coming_order(&at));
            }
            Stage::Coming(agreed) => {
                let config = self.wire.scenario.volumes[usize::from(at.volume.0)];
                let change = Change::AddVolume { volume: at.volume, config };
                self.step_move(at, agreed, change, self.coming_order(&at));
            }
        }
    }

    fn begin_move(&mut self) {
        if self.moves.left == 0 {
            return;
        }
        self.moves.left -= 1;
        let volumes = self.wire.scenario.volumes.len() as u64;
        let volume = VolumeId(self.moves.prng.below(volumes) as u16);
        let device = self.wire.scenario.volumes[usize::from(volume.0)].device;
        self.moves.under_way = Some(Move { volume, device, stage: Stage::Emptying, tries: 0 });
        let jobs = self.wire.scenario.jobs.len();
        for connection in &mut self.wire.connections[..jobs] {
            connection.held = connection.job.options.volume == volume;
        }
        self.move_after(100 * US);
    }

    /// Waits until nothing of the volume is on its way, then asks its home; now and then it asks before.
    fn empty(&mut self, at: Move) {
        let jobs = self.wire.scenario.jobs.len();
        let of_volume = |c: &&crate::connection::Connection| c.job.options.volume == at.volume;
        let flights: usize =
            self.wire.connections.iter().filter(of_volume).map(|c| c.in_flight()).sum();
        let flushing = self.wire.connections[jobs + usize::from(at.volume.0)].job.left > 0;
        let home = self.leaving_order(&at)[0];
        let unseen = |input: &Input| matches!(input, Input::Bio(bio) if bio.id.volume == at.volume);
        if flights == 0 && !flushing {
            self.wire.connections[jobs + usize::from(at.volume.0)].job.options.weights = READS;
            self.moves.under_way = Some(Move { stage: Stage::Leaving(0), ..at });
            return self.go_on_moving();
        }
        let seen = flights > 0 && !self.cells[home].inbox.iter().any(unseen);
        if seen && self.moves.prng.below(3) == 0 {
            let change = Change::RemoveVolume { volume: at.volume };
            if self.ask(home, &change).is_ok() {
                let detail =
                    format!("volume {} left with {flights} bios on their way", at.volume.0);
                return self.wire.fail(violation("a volume in use stays", detail));
            }
        }
        self.move_after(5 * MS);
    }

    fn ask(&mut self, shard: usize, change: &Change) -> Result<(), ChangeError> {
        let asked = self.cells[shard].shard.change(self.wire.now, change);
        if matches!(asked, Err(ChangeError::Busy(_))) {
            self.wire.coverage.hit(Point::ChangeBusy);
        }
        asked
    }

    /// Asks the next shard in `order`.
    fn step_move(&mut self, at: Move, agreed: usize, change: Change, order: Vec<usize>) {
        match self.ask(order[agreed], &change) {
            Ok(()) => {
                self.turn(order[agreed]);
                self.agreed(at, agreed + 1 == order.len());
            }
            Err(ChangeError::Busy(_)) if at.tries < TRIES_LAST => self.refused(at),
            Err(error) => {
                let detail = format!("shard {} of {change:?}: {error}", order[agreed]);
                self.wire.fail(violation("a change that can be made is made", detail));
            }
        }
    }

    fn agreed(&mut self, at: Move, all: bool) {
        let stage = match at.stage {
            Stage::Emptying => Stage::Leaving(0),
            Stage::Leaving(n) if !all => Stage::Leaving(n + 1),
            Stage::Leaving(_) => {
                self.replace(&at);
                match self.device_is_empty(&at) {
                    true => Stage::DeviceLeaving(0),
                    false => Stage::Coming(0),
                }
            }
            Stage::DeviceLeaving(n) if !all => Stage::DeviceLeaving(n + 1),
            Stage::DeviceLeaving(_) => {
                self.wire.coverage.hit(Point::DeviceLeft);
                Stage::DeviceComing(0)
            }
            Stage::DeviceComing(n) if !all => Stage::DeviceComing(n + 1),
            Stage::DeviceComing(_) => Stage::Coming(0),
            Stage::Coming(n) if !all => Stage::Coming(n + 1),
            Stage::Coming(_) => return self.end_move(at),
        };
        self.moves.under_way = Some(Move { stage, tries: 0, ..at });
        self.move_after(100 * US);
    }

    fn refused(&mut self, at: Move) {
        let tries = at.tries + 1;
        self.moves.under_way = Some(Move { tries, ..at });
        match at.stage {
            Stage::Leaving(0) if tries > TRIES_MAX => {
                self.wire.coverage.hit(Point::ChangeGivenUp);
                self.end_move(at);
            }
            // What is dirty is written out.
            Stage::Leaving(0) => {
                let reader = self.wire.scenario.jobs.len() + usize::from(at.volume.0);
                let job = &mut self.wire.connections[reader].job;
                job.options.weights = FLUSHES;
                job.left = 1;
                self.wire.plan(reader);
                self.issue_ready();
                self.moves.under_way = Some(Move { stage: Stage::Emptying, tries, ..at });
                self.move_after(5 * MS);
            }
            _ => self.move_after(50 * MS),
        }
    }

    /// The old file is gone; what comes is all zeros.
    fn replace(&mut self, at: &Move) {
        self.wire.coverage.hit(Point::VolumeLeft);
        let disk: Option<&SharedDisk> = self.disks.get(usize::from(at.device.0));
        if let Some(disk) = disk {
            disk.lock().replace(at.volume);
            self.wire.replace(at.volume);
        }
    }

    fn end_move(&mut self, at: Move) {
        self.moves.under_way = None;
        let jobs = self.wire.scenario.jobs.len();
        for index in 0..jobs {
            let connection = &mut self.wire.connections[index];
            if connection.job.options.volume != at.volume {
                continue;
            }
            connection.held = false;
            let home = usize::from(connection.home.0);
            if self.moves.prng.below(2) == 0 {
                self.wire.close(index, &mut self.cells[home].inbox);
            }
            self.wire.plan(index);
        }
        self.issue_ready();
        if self.moves.left > 0 {
            self.move_after(5 * MS);
        }
    }

    fn device_is_empty(&self, at: &Move) -> bool {
        let volumes = self.wire.scenario.volumes.iter();
        volumes.filter(|volume| volume.device == at.device).count() == 1
    }

    fn owner(&self, at: &Move) -> ShardId {
        self.wire.scenario.devices[usize::from(at.device.0)].config.owner
    }

    /// All shards, those first.
    fn order(&self, first: &[ShardId]) -> Vec<usize> {
        let mut order = Vec::new();
        let all = (0..self.cells.len()).map(|shard| ShardId(shard as u16));
        for shard in first.iter().copied().chain(all).map(|shard| usize::from(shard.0)) {
            if !order.contains(&shard) {
                order.push(shard);
            }
        }
        order
    }

    fn leaving_order(&self, at: &Move) -> Vec<usize> {
        let home = self.wire.scenario.volumes[usize::from(at.volume.0)].home;
        self.order(&[home, self.owner(at)])
    }

    fn device_leaving_order(&self, at: &Move) -> Vec<usize> {
        let mut order = self.order(&[self.owner(at)]);
        order.rotate_left(1);
        order
    }

    fn coming_order(&self, at: &Move) -> Vec<usize> {
        self.order(&[self.owner(at)])
    }
}
