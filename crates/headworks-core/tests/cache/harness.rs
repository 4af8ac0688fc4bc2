//! A shard with a cache on a device that a test controls, in virtual time. The tables are checked after every batch.

use headworks_core::cache::CacheContents;
use headworks_core::{
    Action, Bio, BioFlags, BioId, CacheOptions, Completion, Control, DirtyEntry, ExportId, Input,
    Instant, IoError, Op, QueueOptions, ReplyStage, Shard, ShardConfig, Status, Submit, VolumeId,
    VolumeOptions, WaitTimes,
};

use crate::device_frames::DeviceFrames;

pub const BLOCK: u64 = 4096;
pub const MIB: u64 = 1 << 20;

/// A reply to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub id: BioId,
    pub status: Status,
    pub stage: ReplyStage,
    pub at: u64,
    /// The times that the bio waited.
    pub wait_times: WaitTimes,
}

/// An answer whose data are in the pool.
pub struct FromFrames {
    pub id: BioId,
    pub bytes: u64,
    pub ranges: usize,
    pub wait_times: WaitTimes,
}

pub struct Harness {
    pub shard: Shard,
    pub now: u64,
    pub timer: Option<u64>,
    pub in_flight: Vec<Submit>,
    pub answers: Vec<Answer>,
    /// Bytes written and commands by operation, since the start.
    pub written: u64,
    pub commands: [u64; Op::COUNT],
    /// Every write that the device got: time, volume, offset, bytes.
    pub writes: Vec<(u64, u16, u64, u32)>,
    /// Reads that were answered from frames, with their bytes and number of ranges; and reads that were returned.
    pub from_frames: Vec<FromFrames>,
    pub returned: Vec<(BioId, WaitTimes)>,
    /// Data that was reported without asking the device: the bio, and bytes.
    pub told: Vec<(BioId, u32)>,
    /// Blocks that the dirty table got, each with the byte from which its frame was filled with zeros to its end just before.
    pub dirtied: Vec<(u64, Option<u64>)>,
    /// Frames that were released: the offset in the pool, and bytes.
    pub released: Vec<(u64, u32)>,
    /// Frames that were prepared, in the same way.
    pub prepared: Vec<(u64, u32)>,
    device_frames: DeviceFrames,
    table: Vec<DirtyEntry>,
    sequence: u64,
    turns: u64,
    config: ShardConfig,
}

pub fn config(units: u32) -> ShardConfig {
    let volume = VolumeOptions { size: 1 << 40, block_size: 512, ..VolumeOptions::default() };
    let queue = QueueOptions { read_ahead_kb: 0, ..QueueOptions::default() };
    let mut config = ShardConfig::single(queue, volume, 2048);
    config.cache =
        CacheOptions { units, account: 1 << 20, dirty_table: true, ..CacheOptions::default() };
    config
}

impl Harness {
    pub fn new(units: u32, change: impl FnOnce(&mut ShardConfig)) -> Self {
        let mut config = config(units);
        change(&mut config);
        Self {
            table: vec![DirtyEntry::CLEAN; config.cache.units as usize],
            shard: Shard::new(config.clone()).unwrap(),
            now: 0,
            timer: None,
            in_flight: Vec::new(),
            answers: Vec::new(),
            written: 0,
            commands: [0; Op::COUNT],
            writes: Vec::new(),
            from_frames: Vec::new(),
            returned: Vec::new(),
            told: Vec::new(),
            dirtied: Vec::new(),
            released: Vec::new(),
            prepared: Vec::new(),
            device_frames: DeviceFrames::default(),
            sequence: 0,
            turns: 0,
            config,
        }
    }

    /// Replaces the shard by a new one, which adopts the contents of its cache as words; `change` changes the configuration.
    pub fn hand_over(
        &mut self,
        change: impl FnOnce(&mut ShardConfig),
        volumes: impl Fn(VolumeId) -> Option<VolumeId>,
    ) -> Result<(), String> {
        self.control(Control::Freeze { on: true });
        self.settle(Ok(()));
        let words = self.contents().encode();
        let contents = CacheContents::decode(&words).unwrap();
        let mut config = self.config.clone();
        change(&mut config);
        let mut shard = Shard::new(config.clone()).unwrap();
        shard.handle(Instant(self.now), &[Input::Control(Control::Freeze { on: true })]);
        let adopted =
            shard.adopt_cache(Instant(self.now), &contents, volumes, |_| ExportId(0), Some);
        adopted.map_err(|error| error.to_string())?;
        (self.shard, self.config, self.timer) = (shard, config, None);
        // A turn of the frozen shard changes nothing of the dirty table.
        let before = self.table.clone();
        self.frozen_turn();
        assert_eq!(before, self.table);
        self.control(Control::Freeze { on: false });
        Ok(())
    }

    /// Executes what the new shard has to do before it may change the table, which may still have old ids.
    fn frozen_turn(&mut self) {
        self.shard.handle(Instant(self.now), &[]);
        let timers = |action: &&Action| matches!(action, Action::Timer { .. });
        let actions = &self.shard.actions().list;
        assert_eq!(actions.iter().filter(timers).count(), actions.len(), "{actions:?}");
        self.shard.clear_actions();
    }

    /// The contents of the frozen cache.
    pub fn contents(&self) -> CacheContents {
        self.shard.contents(Instant(self.now)).unwrap()
    }

    pub fn turn(&mut self, inputs: &[Input]) {
        self.device_frames.take_back(inputs);
        self.shard.handle(Instant(self.now), inputs);
        self.device_frames.check(self.shard.actions());
        let mut zeroed = 0..0;
        for action in &self.shard.actions().list {
            match *action {
                Action::Submit(submit) => {
                    self.commands[submit.op as usize] += 1;
                    assert!(
                        submit.len > 0 || submit.op == Op::Flush,
                        "{submit:?} asks for nothing"
                    );
                    if submit.op == Op::Write {
                        self.written += u64::from(submit.len);
                        let (volume, offset) = (submit.volume.0, submit.offset);
                        self.writes.push((self.now, volume, offset, submit.len));
                    }
                    self.in_flight.push(submit);
                }
                Action::Reply { id, status, stage, wait_times, .. } => {
                    self.answers.push(Answer { id, status, stage, at: self.now, wait_times });
                }
                Action::ReplyFrames { id, first, ranges, wait_times } => {
                    let ranges = self.shard.actions().ranges_of(first, ranges);
                    let bytes = ranges.iter().map(|range| u64::from(range.len)).sum();
                    self.from_frames.push(FromFrames {
                        id,
                        bytes,
                        ranges: ranges.len(),
                        wait_times,
                    });
                }
                Action::NeedsBuffer { id, wait_times } => self.returned.push((id, wait_times)),
                Action::Data { bio, len } => self.told.push((bio, len)),
                Action::Timer { at } => self.timer = Some(at.0),
                Action::Release { at, len } => self.released.push((at, len)),
                Action::Prepare { at, len } => self.prepared.push((at, len)),
                Action::Zero { at, len } => zeroed = at..at + u64::from(len),
                Action::SetDirty { unit, count, entry } => {
                    if entry.is_dirty() {
                        let last = u64::from(unit + count - 1) * BLOCK;
                        let tail = (zeroed.end == last + BLOCK).then(|| zeroed.start - last);
                        self.dirtied.push((entry.after((count - 1).into()).block(), tail));
                    }
                    let frames = &mut self.table[unit as usize..][..count as usize];
                    for (at, frame) in (0..).zip(frames) {
                        *frame = entry.after(at);
                    }
                }
                _ => {}
            }
        }
        self.shard.clear_actions();
        // The check takes as long as a thousand turns: with a large pool only every 64th time.
        self.turns += 1;
        let units = self.stats().size.units;
        if units <= 4096 || self.turns.is_multiple_of(64) {
            self.shard.check_cache();
            self.shard.check_dirty_table(&self.table);
        }
    }

    pub fn bio(&mut self, connection: u32, op: Op, offset: u64, len: u64, flags: BioFlags) -> Bio {
        self.sequence += 1;
        let id = BioId { connection, sequence: self.sequence, ..BioId::default() };
        Bio { id, op, offset, len: len as u32, flags: flags.with(BioFlags::SYNC), ..Bio::default() }
    }

    /// Submits a bio of connection `connection`.
    pub fn send(&mut self, connection: u32, op: Op, offset: u64, len: u64) -> BioId {
        self.send_flags(connection, op, offset, len, BioFlags::NONE)
    }

    pub fn send_flags(
        &mut self,
        connection: u32,
        op: Op,
        offset: u64,
        len: u64,
        flags: BioFlags,
    ) -> BioId {
        let bio = self.bio(connection, op, offset, len, flags);
        self.turn(&[Input::Bio(bio)]);
        bio.id
    }

    pub fn send_to(
        &mut self,
        volume: u16,
        connection: u32,
        op: Op,
        offset: u64,
        len: u64,
    ) -> BioId {
        let mut bio = self.bio(connection, op, offset, len, BioFlags::NONE);
        bio.id.volume = VolumeId(volume);
        self.turn(&[Input::Bio(bio)]);
        bio.id
    }

    /// Submits a bio of an export; its connection has the same number.
    pub fn send_as(&mut self, export: u16, op: Op, offset: u64, len: u64) -> BioId {
        let mut bio = self.bio(export.into(), op, offset, len, BioFlags::NONE);
        bio.id.export = ExportId(export);
        self.turn(&[Input::Bio(bio)]);
        bio.id
    }

    pub fn control(&mut self, control: Control) {
        self.turn(&[Input::Control(control)]);
    }

    pub fn answer(&self, id: BioId) -> Option<Status> {
        let mut of = self.answers.iter().filter(|answer| answer.id == id);
        let first = of.next()?;
        assert!(first.stage == ReplyStage::Early || of.next().is_none(), "answered twice: {id:?}");
        Some(first.status)
    }

    /// Completes the oldest command of the device.
    pub fn complete(&mut self, status: Status) {
        let submit = self.in_flight.remove(0);
        self.complete_this(submit, status);
    }

    pub fn complete_this(&mut self, submit: Submit, status: Status) {
        let transferred = if status.is_ok() { submit.len } else { 0 };
        let completion = Completion { id: submit.id, transferred, status, hole: false };
        self.turn(&[Input::Complete { device: submit.device, completion }]);
    }

    /// Completes every command, writes with `status`, until none is outstanding.
    pub fn settle(&mut self, status: Status) {
        for _ in 0..100_000 {
            let Some(submit) = self.in_flight.first() else { return };
            let status = if submit.op == Op::Write { status } else { Ok(()) };
            self.complete(status);
        }
        panic!("the device is never done");
    }

    /// Advances the time and serves the timers that expire.
    pub fn wait(&mut self, ns: u64) {
        let end = self.now + ns;
        while let Some(at) = self.timer.filter(|&at| at <= end) {
            self.timer = None;
            self.now = self.now.max(at);
            self.turn(&[Input::Timer]);
        }
        self.now = end;
    }

    /// Advances the time with a device that completes at once.
    pub fn wait_served(&mut self, ns: u64, status: Status) {
        let end = self.now + ns;
        self.settle(status);
        while let Some(at) = self.timer.filter(|&at| at <= end) {
            self.timer = None;
            self.now = self.now.max(at);
            self.turn(&[Input::Timer]);
            self.settle(status);
        }
        self.now = end;
    }

    /// The number of bios that were submitted.
    pub fn sent(&self) -> u64 {
        self.sequence
    }

    pub fn stats(&self) -> headworks_core::cache::CacheStats {
        self.shard.cache_stats().unwrap()
    }

    pub fn dirty(&self) -> headworks_core::writeback::DirtyStats {
        self.shard.dirty_stats().unwrap()
    }
}

pub const FAILS: Status = Err(IoError::Medium);
