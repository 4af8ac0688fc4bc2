//! The cache in process: a shard on this thread, driven as the server drives it, over a null
//! device.
//!
//! A program that links the library submits one bio or a few at a time. So a call submits a batch,
//! runs the shard and the executor until all bios are answered, and reads the clock once. `waited`
//! counts bios that were not answered by the first turn; a figure for hits is valid only if it is
//! 0.

use headworks_cache_memory::{CacheMemory, DirtyLog, ShardGeometry, ShardMemory};
use std::os::fd::RawFd;

use headworks::driver::{ActionSink, Clock, DiskOp, DiskQueue, Executor, Interest, Span, Watch};
use headworks::house::{Mapping, fetch_ahead};
use headworks::{Device, NullDevice};
use headworks_core::cache::folio::BLOCK;
use headworks_core::{
    Action, Bio, BioFlags, BioId, ConfigError, DeviceId, Input, Instant, Message, Notice, Op,
    QueueOptions, ReplyStage, Shard, ShardConfig, ShardId, Status, VolumeOptions, WaitTimes,
};

/// Frames, buffers and the log of their changes.
type DriverMemory = (Mapping, Mapping, Option<DirtyLog>);

/// Maps frames and buffers of a shard: anonymous, or shared memory as of a server that keeps them.
fn memory(config: &ShardConfig, kept: bool) -> Result<DriverMemory, ConfigError> {
    let no_memory = |error| ConfigError::new("cache", format!("no memory: {error}"));
    let no_cache = || ConfigError::new("cache", "the shard has no cache");
    if kept {
        let geometry = ShardGeometry { units: config.cache.units, buffers: BATCH_BYTES_MAX };
        let memory = CacheMemory::in_memfd(1, vec![geometry]).map_err(no_memory)?;
        let ShardMemory { frames, buffers, log, .. } = memory.shard(0).map_err(no_memory)?;
        return Ok((frames.ok_or_else(no_cache)?, buffers, Some(log)));
    }
    let buffers = Mapping::new(BATCH_BYTES_MAX).map_err(no_memory)?;
    let (frames, _) = Mapping::for_frames(&config.cache)?.ok_or_else(no_cache)?;
    Ok((frames, buffers, None))
}

/// Maximum bytes of a batch: one turn of the server.
pub const BATCH_BYTES_MAX: usize = 1 << 20;
/// Maximum turns for one batch; a null device completes at once, so more means a hang.
const TURNS_MAX: u64 = 100_000_000;

/// Options of a cache driver.
#[derive(Clone, Copy, Debug)]
pub struct CacheDriverOptions {
    /// Bytes of the volume, all of which are cached.
    pub size: u64,
    /// Bytes of the frame pool.
    pub pool: u64,
    /// The `max_folio_order` of the queue.
    pub max_folio_order: u8,
    /// Frames in memory that outlives the process, with a dirty table and redo records.
    pub kept: bool,
}

/// The part of the work to be done for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchWork {
    /// Only makes the bios and reads the clock: the cost of measuring.
    Nothing,
    /// The complete work, as in the server.
    Everything,
    /// The complete work without copying bytes: the bookkeeping. Only for bios that hit.
    AllButCopies,
}

/// One bio of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Io {
    /// Operation, a read or a write.
    pub op: Op,
    /// First byte on the volume.
    pub offset: u64,
    /// Bytes, in whole blocks.
    pub len: u32,
    /// Connection that submits the job.
    pub connection: u32,
}

/// The first bytes of every written block: its offset. They reveal lost and misplaced blocks.
#[must_use]
pub fn stamp(offset: u64) -> [u8; 8] {
    (offset ^ 0x6865_6164_776f_726b).to_le_bytes()
}

/// Stamps every block of a buffer to be written at `offset`.
#[inline]
pub fn stamp_all(bytes: &mut [u8], offset: u64) {
    for (block, at) in bytes.chunks_mut(BLOCK as usize).zip((offset..).step_by(BLOCK as usize)) {
        block[..8].copy_from_slice(&stamp(at));
    }
}

/// A shard with its cache and executor, on the calling thread.
pub struct CacheDriver {
    shard: Shard,
    executor: Executor<DirtyLog>,
    sink: DriverSink,
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

/// A disk queue for a null device, never used.
struct NoDisk;

impl Watch for NoDisk {
    fn watch_place(&mut self, _: DeviceId, _: u16, _: RawFd, _: Interest) {
        unreachable!("a null device has no descriptors");
    }

    fn forget_place(&mut self, _: DeviceId, _: u16) {}
}

impl DiskQueue for NoDisk {
    unsafe fn push(&mut self, _op: DiskOp, _spans: &[Span]) -> bool {
        false
    }
}

impl DriverSink {
    /// The buffer of a bio that is not outstanding.
    fn slot(&mut self, sequence: u64) -> &mut [u8] {
        let base = self.buffers.at(sequence as usize * self.slot_bytes, self.slot_bytes);
        // SAFETY: inside the mapping, and ours until the bio is submitted.
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
    /// A driver with an empty cache.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn new(options: &CacheDriverOptions) -> Result<Self, ConfigError> {
        let queue = QueueOptions {
            max_folio_order: options.max_folio_order,
            ..NullDevice::queue_options()
        };
        let volume =
            VolumeOptions { size: options.size, block_size: 512, ..VolumeOptions::default() };
        let mut config = ShardConfig::single(queue, volume, 1024);
        config.cache.units = (options.pool / u64::from(BLOCK)) as u32;
        // Hits are measured: no write-out shall run meanwhile. The kernel's side is synced before
        // each run.
        config.dirty.dirty_ratio = 90;
        config.dirty.dirty_background_ratio = 90;
        config.dirty.dirty_writeback_centisecs = 0;
        config.cache.dirty_table = options.kept;
        let (frames, buffers, log) = memory(&config, options.kept)?;
        let device: Box<dyn Device> = Box::new(NullDevice);
        let shard = Shard::new(config)?;
        Mapping::tables_in_huge_pages(shard.cache_tables());
        let executor = Executor::with_log(vec![Some(device)], log);
        Ok(Self {
            shard,
            executor,
            sink: DriverSink {
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

    /// Reads a block and checks its stamp.
    ///
    /// # Errors
    /// The cache lost the block.
    pub fn check(&mut self, offset: u64) -> Result<(), ConfigError> {
        let io = Io { op: Op::Read, offset, len: BLOCK, connection: 0 };
        self.call(BatchWork::Everything, std::iter::once(io))?;
        match self.sink.slot(0)[..8] == stamp(offset) {
            true => Ok(()),
            false => {
                let message = format!("the block at {offset} has wrong contents");
                Err(ConfigError::new("cache", message))
            }
        }
    }

    /// Submits a batch and returns when all of its bios are answered.
    ///
    /// # Errors
    /// A bio failed, or was not answered.
    #[inline]
    pub fn call(
        &mut self,
        work: BatchWork,
        ios: impl Iterator<Item = Io>,
    ) -> Result<(), ConfigError> {
        let before = self.sink.answered;
        let mut wanted = before;
        for io in ios {
            self.sink.slot_bytes = io.len as usize;
            let id =
                BioId { sequence: wanted - before, connection: io.connection, ..BioId::default() };
            let (offset, len, op) = (io.offset, io.len, io.op);
            if op == Op::Write {
                stamp_all(self.sink.slot(id.sequence), offset);
            }
            let flags = BioFlags::SYNC;
            self.inputs.push(Input::Bio(Bio { id, offset, len, op, flags, ..Bio::default() }));
            wanted += 1;
        }
        if work == BatchWork::Nothing {
            std::hint::black_box((self.clock.now(), &mut self.inputs));
            self.inputs.clear();
            return Ok(());
        }
        self.turn(work);
        self.waited += wanted - self.sink.answered;
        let mut turns = 0;
        while self.sink.answered < wanted {
            turns += 1;
            if turns == TURNS_MAX {
                return Err(ConfigError::new("cache", "a bio was not answered"));
            }
            self.turn(BatchWork::Everything);
        }
        if self.sink.errors > 0 {
            return Err(ConfigError::new("cache", "a bio failed"));
        }
        Ok(())
    }

    fn turn(&mut self, work: BatchWork) {
        let now = self.clock.now();
        if self.sink.timer.is_some_and(|at| at <= now) {
            self.sink.timer = None;
            self.inputs.push(Input::Timer);
        }
        let Self { shard, executor, sink, inputs, batch, .. } = self;
        while !inputs.is_empty() {
            std::mem::swap(inputs, batch);
            fetch_ahead(shard, batch, sink.frames());
            shard.handle(now, batch);
            batch.clear();
            match work {
                BatchWork::Everything => {
                    executor.run(now, shard.actions(), sink, &mut NoDisk, inputs);
                }
                _ => {
                    self.copies += all_but_copies(&shard.actions().list, sink);
                }
            }
            shard.clear_actions();
        }
    }
}

/// Executes the actions of hits like the executor, except for the copy itself.
fn all_but_copies(actions: &[Action], sink: &mut DriverSink) -> u64 {
    let mut copies = 0;
    for action in actions {
        match *action {
            Action::Copy { bio, offset, len, at, direction } => {
                let (pool, buffer) = (sink.frames(), sink.buffer(bio));
                let (at, offset, len) = (at as usize, offset as usize, len as usize);
                let ends = (pool.part(at, len).base(), buffer.part(offset, len).base());
                std::hint::black_box((ends, len, direction));
                copies += 1;
            }
            Action::Reply { id, status, hole, stage, wait_times } => {
                sink.reply(id, status, hole, stage, wait_times);
            }
            Action::Timer { at } => sink.timer(at),
            ref other => panic!("unexpected action for a hit: {other:?}"),
        }
    }
    copies
}
