//! The cache in process: a shard on this thread, driven as the server drives it, over a null device.
//!
//! A program that links the library calls it with one bio or with a few. So a call puts in a batch, lets the shard decide and the
//! executor do, once or until all is answered, and reads the clock once. A bio that was not answered by the first turn had
//! to wait for something: `waited` counts them, and a figure for hits is one only where it is 0.

use headworks::device::{Device, NullDevice};
use headworks::engine::{DiskOp, DiskQueue};
use headworks::executor::{ActionSink, Executor};
use headworks::memory::{Mapping, Span, tables_in_huge_pages};
use headworks::{Clock, map_frames};
use headworks_core::cache::folio::BLOCK;
use headworks_core::{
    Action, Bio, BioFlags, BioId, ConfigError, Input, Instant, Message, Notice, Op, QueueOptions,
    ReplyStage, Shard, ShardConfig, ShardId, Status, VolumeOptions, WaitTimes,
};

/// Bytes of the largest batch: a turn of the server.
pub const BATCH_BYTES_MAX: usize = 1 << 20;
/// Turns for one batch; a null device answers at once, so more means that somebody waits for ever.
const TURNS_MAX: u64 = 100_000_000;

/// How to make one.
#[derive(Clone, Copy, Debug)]
pub struct CacheDriverOptions {
    /// Bytes of the volume, all of which will be cached.
    pub size: u64,
    /// Bytes of the pool.
    pub pool: u64,
    /// `max_folio_order` of the queue.
    pub max_folio_order: u8,
}

/// What is done with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchWork {
    /// Nothing: the bios are made, the clock is read. What the measuring itself costs.
    Nothing,
    /// All that the server does.
    Everything,
    /// The same, but no bytes are copied: what is left is the bookkeeping. Only for bios that hit.
    AllButCopies,
}

/// One bio of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Io {
    /// Read or write.
    pub op: Op,
    /// First byte.
    pub offset: u64,
    /// Bytes, whole blocks.
    pub len: u32,
    /// Whose.
    pub connection: u32,
}

/// What the first bytes of a block say after every write: where it is. So a cache that loses or mixes blocks is found out.
#[must_use]
pub fn stamp(offset: u64) -> [u8; 8] {
    (offset ^ 0x6865_6164_776f_726b).to_le_bytes()
}

/// Stamps every block of a buffer that will be written at `offset`.
#[inline]
pub fn stamp_all(bytes: &mut [u8], offset: u64) {
    for (block, at) in bytes.chunks_mut(BLOCK as usize).zip((offset..).step_by(BLOCK as usize)) {
        block[..8].copy_from_slice(&stamp(at));
    }
}

/// A shard, its cache, and the thread's way through them.
pub struct CacheDriver {
    shard: Shard,
    executor: Executor,
    desk: DriverSink,
    clock: Clock,
    inputs: Vec<Input>,
    batch: Vec<Input>,
    /// Bios that were not answered in their first turn.
    pub waited: u64,
    /// Copies made or left out.
    pub copies: u64,
}

struct DriverSink {
    frames: Mapping,
    buffers: Mapping,
    slot_bytes: usize,
    answered: u64,
    errors: u64,
    timer: Option<Instant>,
}

/// A null device asks no engine for anything.
struct NoDisk;

impl DiskQueue for NoDisk {
    unsafe fn push(&mut self, _op: DiskOp, _spans: &[Span]) -> bool {
        false
    }
}

impl DriverSink {
    /// The bytes of a bio that is not on its way.
    fn slot(&mut self, sequence: u64) -> &mut [u8] {
        let base = self.buffers.at(sequence as usize * self.slot_bytes, self.slot_bytes);
        // SAFETY: inside the mapping, and ours until the bio is put in.
        unsafe { std::slice::from_raw_parts_mut(base, self.slot_bytes) }
    }
}

// SAFETY: frames and buffers are mappings of their own, which live as long as the shard.
unsafe impl ActionSink for DriverSink {
    #[inline]
    fn buffer(&mut self, bio: BioId) -> Span {
        if let Some(unit) = bio.unit() {
            return self.frames().frames_from(unit);
        }
        let offset = bio.sequence as usize * self.slot_bytes;
        // SAFETY: inside the mapping of the buffers.
        unsafe { Span::new(self.buffers.at(offset, self.slot_bytes), self.slot_bytes) }
    }

    #[inline]
    fn frames(&self) -> Span {
        // SAFETY: the mapping lives as long as the shard.
        unsafe { self.frames.span() }
    }

    #[inline]
    fn reply(&mut self, _: BioId, status: Status, _: bool, _: ReplyStage, _: WaitTimes) {
        self.answered += 1;
        self.errors += u64::from(status.is_err());
    }

    fn send(&mut self, _to: ShardId, _message: Message) {}

    fn timer(&mut self, at: Instant) {
        self.timer = Some(at);
    }

    fn notice(&mut self, _notice: Notice) {}
}

impl CacheDriver {
    /// An empty cache.
    ///
    /// # Errors
    /// No memory.
    pub fn new(options: &CacheDriverOptions) -> Result<Self, ConfigError> {
        let queue = QueueOptions {
            max_folio_order: options.max_folio_order,
            ..NullDevice::queue_options()
        };
        let volume =
            VolumeOptions { size: options.size, block_size: 512, ..VolumeOptions::default() };
        let mut config = ShardConfig::single(queue, volume, 1024);
        config.cache.units = (options.pool / u64::from(BLOCK)) as u32;
        // Hits are measured: nothing is to be written out meanwhile. The kernel's side is told to sync before each run.
        config.dirty.dirty_ratio = 90;
        config.dirty.dirty_background_ratio = 90;
        config.dirty.dirty_writeback_centisecs = 0;
        let buffers = Mapping::new(BATCH_BYTES_MAX)
            .map_err(|error| ConfigError::new("cache", format!("no memory: {error}")))?;
        let frames = match map_frames(&config.cache)? {
            Some((frames, _)) => frames,
            None => return Err(ConfigError::new("cache", "there is none")),
        };
        let device: Box<dyn Device> = Box::new(NullDevice);
        let shard = Shard::new(config)?;
        tables_in_huge_pages(shard.cache_tables());
        Ok(Self {
            shard,
            executor: Executor::new(vec![Some(device)]),
            desk: DriverSink {
                frames,
                buffers,
                slot_bytes: 4096,
                answered: 0,
                errors: 0,
                timer: None,
            },
            clock: Clock::start(),
            inputs: Vec::with_capacity(4096),
            batch: Vec::with_capacity(4096),
            waited: 0,
            copies: 0,
        })
    }

    /// The shard, for its statistics.
    #[must_use]
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Reads a block and looks whether it is the one that was written.
    ///
    /// # Errors
    /// The cache lost it.
    pub fn check(&mut self, offset: u64) -> Result<(), ConfigError> {
        let io = Io { op: Op::Read, offset, len: BLOCK, connection: 0 };
        self.call(BatchWork::Everything, std::iter::once(io))?;
        match self.desk.slot(0)[..8] == stamp(offset) {
            true => Ok(()),
            false => {
                let message = format!("the block at {offset} is not what was written");
                Err(ConfigError::new("cache", message))
            }
        }
    }

    /// Does the bios of a batch and returns when all are answered.
    ///
    /// # Errors
    /// One failed, or was never answered.
    #[inline]
    pub fn call(
        &mut self,
        doing: BatchWork,
        ios: impl Iterator<Item = Io>,
    ) -> Result<(), ConfigError> {
        let before = self.desk.answered;
        let mut wanted = before;
        for io in ios {
            self.desk.slot_bytes = io.len as usize;
            let id =
                BioId { sequence: wanted - before, connection: io.connection, ..BioId::default() };
            let (offset, len, op) = (io.offset, io.len, io.op);
            if op == Op::Write {
                stamp_all(self.desk.slot(id.sequence), offset);
            }
            let flags = BioFlags::SYNC;
            self.inputs.push(Input::Bio(Bio { id, offset, len, op, flags, ..Bio::default() }));
            wanted += 1;
        }
        if doing == BatchWork::Nothing {
            std::hint::black_box((self.clock.now(), &mut self.inputs));
            self.inputs.clear();
            return Ok(());
        }
        self.turn(doing);
        self.waited += wanted - self.desk.answered;
        let mut turns = 0;
        while self.desk.answered < wanted {
            turns += 1;
            if turns == TURNS_MAX {
                return Err(ConfigError::new("cache", "a bio was never answered"));
            }
            self.turn(BatchWork::Everything);
        }
        if self.desk.errors > 0 {
            return Err(ConfigError::new("cache", "a bio failed"));
        }
        Ok(())
    }

    fn turn(&mut self, doing: BatchWork) {
        let now = self.clock.now();
        if self.desk.timer.is_some_and(|at| at <= now) {
            self.desk.timer = None;
            self.inputs.push(Input::Timer);
        }
        let Self { shard, executor, desk, inputs, batch, .. } = self;
        while !inputs.is_empty() {
            std::mem::swap(inputs, batch);
            shard.handle(now, batch);
            batch.clear();
            match doing {
                BatchWork::Everything => {
                    executor.run(now, shard.actions(), desk, &mut NoDisk, inputs);
                }
                _ => {
                    self.copies += all_but_copies(&shard.actions().list, desk);
                }
            }
            shard.clear_actions();
        }
    }
}

/// What the executor does for the actions of hits, up to the copy itself.
fn all_but_copies(actions: &[Action], desk: &mut DriverSink) -> u64 {
    let mut copies = 0;
    for action in actions {
        match *action {
            Action::Copy { bio, offset, len, at, direction } => {
                let (pool, buffer) = (desk.frames(), desk.buffer(bio));
                let (at, offset, len) = (at as usize, offset as usize, len as usize);
                let ends = (pool.part(at, len).base(), buffer.part(offset, len).base());
                std::hint::black_box((ends, len, direction));
                copies += 1;
            }
            Action::Reply { id, status, hole, stage, wait_times } => {
                desk.reply(id, status, hole, stage, wait_times);
            }
            Action::Timer { at } => desk.timer(at),
            ref other => panic!("a hit makes no {other:?}"),
        }
    }
    copies
}
