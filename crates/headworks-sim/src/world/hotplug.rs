//! Volumes and devices of the world that leave and come, and volumes that become longer and shorter, while the rest goes on.
//!
//! What comes is another file: all zeros, often of another size. So a block, a stream or an error that outlived the old one is
//! seen by the oracle. One move is under way at a time; the shards hear of each change one after the other, with other turns between.
//!
//! ```text
//!   replace:  Emptying --home agrees--> Leaving, shard by shard --> (DeviceLeaving --> DeviceComing) --> Coming, shard by shard
//!              |  ^ `-- dirty: a flush --.
//!              |  '----------------------'
//!              `-- refused too often: the volume stays
//!   part:     (all of it discarded) Emptying --> Leaving --> (DeviceLeaving)          a guest goes
//!   join:     (DeviceComing -->) Coming                                               a guest comes to its spare place
//!   resize:   longer; or shorter --> Short --> longer again, perhaps before a command has ended
//! ```
//!
//! The connections of what leaves submit nothing meanwhile; half of them come again under another id. Invariant, checked at each
//! step: a shard refuses as long as anything of the volume is on its way, and agrees in the end.

use headworks_core::prng::Prng;
use headworks_core::time::{MS, US};
use headworks_core::{Change, ChangeError, Control, DeviceId, Input, Op, ShardId, VolumeId};

use super::{FLUSHES, World, bios_of_reader};
use crate::check::violation;
use crate::coverage::Point;
use crate::scenario::Scenario;
use crate::wire::Happening;

/// What a volume's reader does when it does not flush.
const READS: [u32; Op::COUNT] = [1, 0, 0, 0, 0, 0, 0];
/// What it does before a volume leaves of which nothing is to be written out.
const DISCARDS: [u32; Op::COUNT] = [0, 0, 0, 1, 0, 0, 0];
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
    Short,
}

/// What a move is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    Replace,
    Join,
    Part,
    Resize,
}

#[derive(Clone, Copy, Debug)]
struct Move {
    goal: Goal,
    volume: VolumeId,
    device: DeviceId,
    stage: Stage,
    tries: u32,
}

/// See the head of this file.
pub(super) struct Moves {
    pub(super) prng: Prng,
    left: u32,
    under_way: Option<Move>,
    /// By id: after a power cut it is there.
    volumes: Vec<bool>,
    devices: Vec<bool>,
}

impl Moves {
    pub fn new(prng: Prng, scenario: &Scenario) -> Self {
        let (devices, volumes) = scenario.residents();
        Self {
            prng,
            left: 0,
            under_way: None,
            volumes: (0..scenario.volumes.len()).map(|volume| volume < volumes).collect(),
            devices: (0..scenario.devices.len()).map(|device| device < devices).collect(),
        }
    }

    /// Whether a device may be away, or not yet known everywhere.
    pub fn concern(&self, device: DeviceId) -> bool {
        !self.devices[usize::from(device.0)]
            || self.under_way.is_some_and(|at| at.device == device && at.goal != Goal::Resize)
    }

    /// Whether a volume is there, between two moves.
    pub fn is_there(&self, volume: VolumeId) -> bool {
        self.volumes[usize::from(volume.0)]
    }

    /// Whether there is more to come.
    pub fn go_on(&self) -> bool {
        self.left > 0 || self.under_way.is_some()
    }

    /// One of the volumes that are there, or of those that are not, if there is one.
    fn pick(&mut self, there: bool, from: usize) -> Option<VolumeId> {
        let fits = |&volume: &usize| self.volumes[volume] == there;
        let volumes: Vec<_> = (from..self.volumes.len()).filter(fits).collect();
        let count = volumes.len() as u64;
        (count > 0).then(|| VolumeId(volumes[self.prng.below(count) as usize] as u16))
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

    /// New shards know of the residents only.
    pub(super) fn bring_guests_back(&mut self) {
        let (devices, volumes) = self.wire.scenario.residents();
        let mut changes = Vec::new();
        for index in (devices..self.moves.devices.len()).filter(|&at| self.moves.devices[at]) {
            let config = self.wire.scenario.devices[index].config;
            changes.push(Change::AddDevice { device: DeviceId(index as u16), config });
        }
        for index in (volumes..self.moves.volumes.len()).filter(|&at| self.moves.volumes[at]) {
            let config = self.wire.scenario.volumes[index];
            changes.push(Change::AddVolume { volume: VolumeId(index as u16), config });
            self.wire.coverage.hit(Point::CutGuests);
        }
        for change in changes {
            let owner = match change {
                Change::AddDevice { config, .. } => config.owner,
                Change::AddVolume { config, .. } => self.owner(config.device),
                _ => unreachable!("they come"),
            };
            for shard in self.order(&[owner]) {
                if let Err(error) = self.cells[shard].shard.change(self.wire.now, &change) {
                    let detail = format!("shard {shard} of {change:?}: {error}");
                    self.wire.fail(violation("a change that can be made is made", detail));
                }
                self.turn(shard);
            }
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
            Stage::Short => {
                self.resize(at.volume, false);
                self.end_move(at);
            }
        }
    }

    fn begin_move(&mut self) {
        if self.moves.left == 0 {
            return;
        }
        self.moves.left -= 1;
        let (_, residents) = self.wire.scenario.residents();
        let (goal, volume) = match self.moves.prng.below(10) {
            0..3 => (Goal::Join, self.moves.pick(false, residents)),
            3..5 => (Goal::Part, self.moves.pick(true, residents)),
            5..8 => (Goal::Resize, self.moves.pick(true, 0)),
            _ => (Goal::Replace, None),
        };
        let (goal, volume) = match (volume, self.moves.pick(true, 0)) {
            (Some(volume), _) => (goal, volume),
            (None, Some(volume)) => (Goal::Replace, volume),
            (None, None) => return,
        };
        let device = self.wire.scenario.volumes[usize::from(volume.0)].device;
        let at = Move { goal, volume, device, stage: Stage::Emptying, tries: 0 };
        match goal {
            Goal::Resize => self.begin_resize(at),
            Goal::Join => self.begin_coming(at),
            Goal::Part | Goal::Replace => self.begin_leaving(at),
        }
    }

    fn begin_leaving(&mut self, at: Move) {
        self.moves.under_way = Some(at);
        let jobs = self.wire.scenario.jobs.len();
        for connection in &mut self.wire.connections[..jobs] {
            if connection.job.options.volume != at.volume {
                continue;
            }
            connection.held = true;
            if at.goal == Goal::Part {
                connection.job.left = 0;
            }
        }
        let options = self.wire.scenario.volumes[usize::from(at.volume.0)].options;
        if at.goal == Goal::Part && !options.read_only && self.moves.prng.below(2) == 0 {
            self.wire.coverage.hit(Point::PartedDiscarded);
            let reader = &mut self.wire.connections[jobs + usize::from(at.volume.0)].job;
            reader.options.weights = DISCARDS;
            self.send_reader(&at, bios_of_reader(options.size));
        }
        self.move_after(100 * US);
    }

    /// The volume's reader does something else for once.
    fn send_reader(&mut self, at: &Move, bios: u32) {
        let reader = self.wire.scenario.jobs.len() + usize::from(at.volume.0);
        let job = &mut self.wire.connections[reader].job;
        job.rewind();
        job.left = bios;
        self.turns_max += 2_000 * u64::from(bios);
        self.wire.plan(reader);
        self.issue_ready();
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
        let parts = at.goal == Goal::Part;
        let stage = match at.stage {
            Stage::Emptying => Stage::Leaving(0),
            Stage::Leaving(n) if !all => Stage::Leaving(n + 1),
            Stage::Leaving(_) => {
                self.wire.coverage.hit(Point::VolumeLeft);
                if parts {
                    self.moves.volumes[usize::from(at.volume.0)] = false;
                    self.wire.coverage.hit(Point::VolumeParted);
                }
                self.replace(at.volume);
                match self.device_is_empty(&at) {
                    true => Stage::DeviceLeaving(0),
                    false if parts => return self.end_move(at),
                    false => Stage::Coming(0),
                }
            }
            Stage::DeviceLeaving(n) if !all => Stage::DeviceLeaving(n + 1),
            Stage::DeviceLeaving(_) if parts => {
                self.moves.devices[usize::from(at.device.0)] = false;
                self.wire.coverage.hit(Point::DeviceParted);
                return self.end_move(at);
            }
            Stage::DeviceLeaving(_) => {
                self.wire.coverage.hit(Point::DeviceLeft);
                Stage::DeviceComing(0)
            }
            Stage::DeviceComing(n) if !all => Stage::DeviceComing(n + 1),
            Stage::DeviceComing(_) => return self.begin_coming(at),
            Stage::Coming(n) if !all => Stage::Coming(n + 1),
            Stage::Coming(_) | Stage::Short => return self.end_move(at),
        };
        self.moves.under_way = Some(Move { stage, tries: 0, ..at });
        self.move_after(100 * US);
    }

    /// The volume comes, if its device is there, or else that does.
    fn begin_coming(&mut self, at: Move) {
        let device = &mut self.moves.devices[usize::from(at.device.0)];
        let stage = match std::mem::replace(device, true) {
            false => {
                self.wire.coverage.hit(Point::DeviceJoined);
                Stage::DeviceComing(0)
            }
            true => {
                self.moves.volumes[usize::from(at.volume.0)] = true;
                Stage::Coming(0)
            }
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
                self.wire.connections[reader].job.options.weights = FLUSHES;
                self.moves.under_way = Some(Move { stage: Stage::Emptying, tries, ..at });
                self.send_reader(&at, 1);
                self.move_after(5 * MS);
            }
            _ => self.move_after(50 * MS),
        }
    }

    fn begin_resize(&mut self, at: Move) {
        let shorter = self.moves.prng.below(2) == 0;
        if self.resize(at.volume, shorter) {
            self.moves.under_way = Some(Move { stage: Stage::Short, ..at });
            // Often for less time than a command takes.
            let most = [10 * US, 300 * US, 20 * MS][self.moves.prng.below(3) as usize];
            return self.move_after(most);
        }
        self.end_move(at);
    }

    fn end_move(&mut self, at: Move) {
        self.moves.under_way = None;
        if self.moves.is_there(at.volume) && at.goal != Goal::Resize {
            self.let_in(&at);
        }
        if self.moves.left > 0 {
            self.move_after(5 * MS);
        }
    }

    /// The connections of a volume that came, or stayed, go on.
    fn let_in(&mut self, at: &Move) {
        let jobs = self.wire.scenario.jobs.len();
        if at.goal == Goal::Join {
            self.wire.coverage.hit(Point::VolumeJoined);
        }
        for index in 0..jobs {
            let connection = &mut self.wire.connections[index];
            if connection.job.options.volume != at.volume {
                continue;
            }
            connection.held = false;
            if at.goal == Goal::Join {
                connection.job.left = connection.job.options.bios;
                self.turns_max += 2_000 * u64::from(connection.job.left);
            }
            let home = usize::from(connection.home.0);
            if self.moves.prng.below(2) == 0 {
                self.wire.close(index, &mut self.cells[home].inbox);
            }
            self.wire.plan(index);
        }
        self.issue_ready();
    }

    /// Whether the device leaves with the volume: it has no other, and if the volume goes for good it is a guest, too.
    fn device_is_empty(&self, at: &Move) -> bool {
        let volumes = self.wire.scenario.volumes.iter().zip(&self.moves.volumes).enumerate();
        let mut others = volumes.filter(|&(index, (volume, there))| {
            index != usize::from(at.volume.0) && *there && volume.device == at.device
        });
        let (residents, _) = self.wire.scenario.residents();
        let goes = at.goal == Goal::Replace || usize::from(at.device.0) >= residents;
        goes && others.next().is_none()
    }

    fn owner(&self, device: DeviceId) -> ShardId {
        self.wire.scenario.devices[usize::from(device.0)].config.owner
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
        self.order(&[home, self.owner(at.device)])
    }

    fn device_leaving_order(&self, at: &Move) -> Vec<usize> {
        let mut order = self.order(&[self.owner(at.device)]);
        order.rotate_left(1);
        order
    }

    fn coming_order(&self, at: &Move) -> Vec<usize> {
        self.order(&[self.owner(at.device)])
    }
}
