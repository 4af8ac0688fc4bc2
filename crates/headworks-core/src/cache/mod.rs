//! The page cache of a shard: folios of 4 KiB to 2 MiB between the volumes and the queues.
//!
//! The cache decides what is kept, and what is read and written when. A bio that hits completes in the same call. Any other one
//! becomes an operation (`waiters/operation.rs`): a cursor that waits for one event at a time.
//!
//! ```text
//!   bio --> steps/read, write: block by block              --> copies, reply
//!             | missing: steps/fill (with read-ahead)            ^
//!             v                                                  |
//!   device_io: bios of the cache's own --> plug, queue, device --+ completion
//!             ^
//!             | flusher: background, periodic, flush, for frames
//!   steps/flush: generations; steps/range: discard, zeroes, direct I/O
//! ```
//!
//! The state has five owners with private fields:
//!
//! | owner | holds |
//! |---|---|
//! | `pool` | folios and their block states, frames, the index, eviction, shadows |
//! | `dirty` | extent groups, credit and the throttle, dirty regions, held folios |
//! | `waiters` | operations, the lists on which they wait, locked ranges |
//! | `volumes` | sizes, generations, errors, truncations |
//! | `device_io` | bios of the cache's own, and how many may be outstanding |
//!
//! Above them `state` puts them side by side; `writeout`, `completion`, `flusher` and `steps` work on all of them; this file
//! schedules the operations.
//!
//! Invariants: every wait is ended by a completion, a timer, or something that one of these frees; a frame that a device has is not
//! written (a write goes to a shadow), and not read while it is filled; a dirty, busy or waited-for folio is not evicted;
//! `dirty + writeback + credit` never exceeds the limit; nothing grows after the start.

mod change;
mod check;
mod completion;
mod contents;
mod context;
mod defect;
mod device_io;
mod dirty;
mod expiry;
mod flusher;
mod freeze;
mod pool;
mod readahead;
mod state;
mod stats;
mod steps;
mod volumes;
mod waiters;
mod writeout;

pub use contents::{CacheContents, CachedFolio, CachedVolumeContents, ContentsError};
pub(crate) use context::{CallContext, DeviceCaching};
#[cfg(feature = "defects")]
pub use defect::CacheDefect;
pub use pool::folio;
pub use stats::{CacheSize, CacheStats, Fills, IndexUse, TenantDirty, Writeouts};
pub(crate) use waiters::operation::OperationWait;

use std::ops::Range;

use crate::action::FrameRange;
use crate::bio::{Bio, BioFlags, BioId, ExportId, Op, TenantId, VolumeId};
use crate::device_bio::{DeviceBio, DeviceCompletion};
use crate::error::IoError;
use crate::input::ReplyStage;
use crate::options::{CacheOptions, ShardConfig, TenantMemory, WriteMode};
use crate::shares::ShareChange;
use crate::slab::NIL;
use crate::time::Instant;
use crate::wait_times::WaitTimes;
use crate::writeback::{DirtyOptions, Throttle};
use context::TimerKind;
use flusher::Flushers;
use pool::folio::{BLOCK, BLOCK_SHIFT};
use state::CacheState;
use waiters::operation::{OpStep, Operation, WaitFor};

/// The page cache of a shard.
pub(crate) struct Cache {
    state: CacheState,
    flushers: Flushers,
}

impl Cache {
    /// Creates an empty cache with everything allocated that it will need; `timer_base` is its first timer.
    pub fn new(config: &ShardConfig, timer_base: u32) -> Self {
        let CacheOptions { units, account, .. } = config.cache;
        let flushers = Flushers::new(units, account, config.devices.len());
        Self { state: CacheState::new(config, timer_base), flushers }
    }

    /// Returns the number of timers that a cache needs.
    pub fn timers(options: &CacheOptions) -> usize {
        if options.is_on() {
            TimerKind::Writer as usize + options.writers_max as usize + 1
        } else {
            0
        }
    }

    /// Returns the memory of the tables that every bio reads.
    pub fn tables(&self) -> impl Iterator<Item = Range<*const u8>> {
        self.state.pool.tables()
    }

    /// Returns true if the bios of a volume are for the cache.
    #[inline]
    pub fn caches(&self, volume: VolumeId) -> bool {
        self.state.volumes[volume].mode() != WriteMode::None
    }

    /// Returns where in the pool the first byte of a read most likely is; it may be past the pool.
    #[inline]
    pub fn guess(&self, bio: &Bio) -> Option<u64> {
        let volume = self.state.volumes.read_volume(bio);
        let unit = self.state.pool.guess(volume, bio.offset >> BLOCK_SHIFT)?;
        Some((u64::from(unit) << BLOCK_SHIFT) | (bio.offset % u64::from(BLOCK)))
    }

    /// Returns the volume whose data the operation of a client's bio is about, the base's where it reads that, and what it waits for.
    pub fn operation_wait(&self, id: BioId) -> Option<(VolumeId, OperationWait)> {
        self.state.waiters.wait_of(id)
    }

    /// Returns the number of client bios that wait in the cache.
    pub fn waiting(&self) -> u32 {
        self.state.waiters.len()
    }

    /// Returns the number of outstanding bios below the cache: its own, and those of clients that it passed on.
    pub fn below(&self) -> u32 {
        self.state.io.below()
    }

    /// Takes the bios to be sent to the devices; [`Cache::return_device_bios`] gives the buffer back.
    pub fn take_device_bios(&mut self) -> Vec<DeviceBio> {
        self.state.io.take_queue()
    }

    /// Gives the emptied buffer of [`Cache::take_device_bios`] back.
    pub fn return_device_bios(&mut self, buffer: Vec<DeviceBio>) {
        self.state.io.return_queue(buffer);
    }

    /// Returns the number of bios that the cache may still send: its own, and those of waiting clients.
    pub fn kept(&self) -> u32 {
        (self.state.options.bios() + self.waiting()).saturating_sub(self.below())
    }

    /// Handles a bio that its volume has accepted.
    pub fn on_bio(&mut self, ctx: &mut CallContext, bio: Bio) {
        debug_assert!(self.caches(bio.id.volume), "the volume is cached");
        let (mut bio, by) = (bio, bio.id.volume);
        self.lead_to_base(&mut bio);
        let state = &mut self.state;
        let volume = &state.volumes[bio.id.volume];
        let unsafe_mode = volume.mode() == WriteMode::Unsafe;
        let aligned = (bio.offset | u64::from(bio.len)) & u64::from(volume.block_size() - 1) == 0;
        // A flush with FUA is the driver's own, at its end: it writes even what was never promised.
        let ignored = unsafe_mode && !bio.flags.contains(BioFlags::FUA);
        if unsafe_mode || bio.op == Op::Flush {
            bio.flags = bio.flags.without(BioFlags::FUA);
        }
        let direct = bio.flags.contains(BioFlags::DIRECT);
        state.needs_run |= direct || !matches!(bio.op, Op::Read | Op::Write);
        match bio.op {
            Op::Read if bio.has_no_buffer() => {
                if !direct && steps::reply_from_frames(state, ctx, (&bio, 0), WaitTimes::NONE) {
                    return;
                }
                if direct || !state.has_room_without_buffer(&bio) {
                    return ctx.return_bio(&bio, WaitTimes::NONE);
                }
                self.begin(ctx, Operation { by, ..Operation::new(ctx.now, bio, OpStep::Read) });
            }
            Op::Flush if ignored => ctx.reply(&bio, Ok(()), ReplyStage::Final),
            Op::Flush => {
                let op = steps::flush::begin(state, ctx, bio);
                self.begin(ctx, op);
            }
            Op::Prefetch => steps::prefetch(state, ctx, bio),
            Op::BlockStatus => self.begin(ctx, Operation::new(ctx.now, bio, OpStep::Status)),
            Op::Discard => self.begin(ctx, Operation::new(ctx.now, bio, OpStep::Range)),
            Op::WriteZeroes if steps::range::zeroes_as_write(state, &bio) => {
                self.begin_write(ctx, bio);
            }
            Op::WriteZeroes => self.begin(ctx, Operation::new(ctx.now, bio, OpStep::Range)),
            Op::Read | Op::Write if direct && aligned => {
                let op = Operation { direct: true, ..Operation::new(ctx.now, bio, OpStep::Range) };
                self.begin(ctx, op);
            }
            Op::Read => {
                self.begin(ctx, Operation { by, ..Operation::new(ctx.now, bio, OpStep::Read) });
            }
            Op::Write => self.begin_write(ctx, bio),
        }
    }

    /// Hands the ranges of the pool that hold a read's data to `ranges`; false if a block is missing or being changed.
    pub fn lend_frames(
        &mut self,
        ctx: &mut CallContext,
        bio: &Bio,
        ranges: &mut Vec<FrameRange>,
    ) -> bool {
        debug_assert!(self.caches(bio.id.volume), "the volume is cached");
        let mut bio = *bio;
        self.lead_to_base(&mut bio);
        steps::lend_frames(&mut self.state, ctx, &bio, ranges)
    }

    /// Has a bio go on at the base of its volume, if it may.
    #[inline]
    fn lead_to_base(&mut self, bio: &mut Bio) {
        let notes = !self.state.defects.forgets_own_blocks();
        self.state.volumes.lead_to_base(bio, notes);
    }

    /// Begins a write: after the paused ones of its connection, or at once.
    fn begin_write(&mut self, ctx: &mut CallContext, bio: Bio) {
        let state = &mut self.state;
        let mut op = Operation::new(ctx.now, bio, OpStep::Write);
        op.writer = state.dirty.throttle_mut().writer(bio.id.connection).0;
        state.volumes.begin_errors(op.writer, &bio);
        if state.waiters.first_paused(op.writer).is_some()
            && let Some(slot) = state.waiters.add(&op)
        {
            return state.park(ctx, slot, WaitFor::Pause);
        }
        self.begin(ctx, op);
    }

    /// Steps an operation that has no slot; most complete here and never need one.
    fn begin(&mut self, ctx: &mut CallContext, mut op: Operation) {
        debug_assert!(op.wait_record == NIL && !op.locked, "a new operation");
        let state = &mut self.state;
        match steps::step(state, ctx, &mut op, NIL) {
            WaitFor::Nothing => state.needs_run |= op.progress > 0,
            waits_for => {
                state.needs_run = true;
                let Some(slot) = state.waiters.add(&op) else {
                    // The shard accepts a bio only while it has room for it.
                    state.drop_credit(&mut op);
                    return ctx.reply(&op.bio, Err(IoError::NoMemory), ReplyStage::Final);
                };
                if waits_for == WaitFor::Slot {
                    self.resume(ctx, slot);
                } else {
                    state.park(ctx, slot, waits_for);
                }
            }
        }
    }

    /// Steps an operation whose wait has ended.
    fn resume(&mut self, ctx: &mut CallContext, slot: u32) {
        let state = &mut self.state;
        let mut op = state.waiters.take_out(slot);
        state.waiters.end_wait(ctx.now, &mut op);
        match steps::step(state, ctx, &mut op, slot) {
            WaitFor::Nothing => state.waiters.remove(slot, op),
            waits_for => {
                assert!(waits_for != WaitFor::Slot, "the operation has a slot");
                state.waiters.put_back(slot, op);
                state.park(ctx, slot, waits_for);
            }
        }
    }

    /// Handles a completion from a device.
    pub fn on_completion(&mut self, ctx: &mut CallContext, completion: DeviceCompletion) {
        match completion.bio.id.unit() {
            Some(unit) => self.state.on_own_completion(ctx, unit, &completion),
            None => {
                if completion.stage != ReplyStage::Early {
                    self.state.io.end_passed();
                }
                steps::range::on_device_completion(&mut self.state, ctx, &completion);
            }
        }
    }

    /// Handles the end of a connection: its operations no longer pause.
    pub fn on_close(&mut self, ctx: &mut CallContext, connection: u32) {
        self.state.ahead.forget(connection);
        self.state.close_writer(ctx, connection);
    }

    /// Handles the expiry of one of the cache's timers.
    pub fn on_timer(&mut self, ctx: &mut CallContext, timer: u32) {
        const THROTTLE: u32 = TimerKind::Throttle as u32;
        const PERIODIC: u32 = TimerKind::Periodic as u32;
        const FLUSH: u32 = TimerKind::Flush as u32;
        const RETRY: u32 = TimerKind::Retry as u32;
        const NEXT_TURN: u32 = TimerKind::NextTurn as u32;
        const EXPIRY: u32 = TimerKind::Expiry as u32;
        match self.state.timer_number(timer) {
            THROTTLE => self.state.dirty.throttle_mut().on_timer(ctx.now),
            PERIODIC => self.state.dirty.on_periodic(ctx.now),
            FLUSH => steps::flush::on_timeout(&mut self.state, ctx),
            RETRY => self.state.retry_held(ctx),
            NEXT_TURN => self.state.waiters.start_turn(),
            EXPIRY => self.state.expire_waits(ctx),
            writer => self.resume_writer(ctx, writer - TimerKind::Writer as u32),
        }
    }

    /// Continues the operations of a writer whose pause has ended, until it pauses again.
    fn resume_writer(&mut self, ctx: &mut CallContext, writer: u32) {
        loop {
            if self.state.pause_of(ctx.now, writer).is_some() {
                if self.state.waiters.first_paused(writer).is_some() {
                    self.state.set_writer_timer(ctx, writer);
                }
                return;
            }
            let Some(slot) = self.state.waiters.pop_paused(writer) else {
                return;
            };
            self.resume(ctx, slot);
        }
    }

    /// Notes an input other than a bio: [`Cache::run`] has work to do.
    pub fn request_run(&mut self) {
        self.state.needs_run = true;
    }

    /// Returns true if [`Cache::run`] has work to do.
    pub fn needs_run(&self) -> bool {
        self.state.needs_run || !self.state.io.is_queue_empty()
    }

    /// Ends a batch: grants what became free, steps the operations that can continue, and lets the flushers write.
    pub fn run(&mut self, ctx: &mut CallContext) {
        self.state.needs_run = false;
        steps::resize::continue_truncations(&mut self.state, ctx);
        loop {
            // First the operations whose block has just been filled: a frame for another one might evict it unread, and in a small
            // pool none would advance.
            while let Some(slot) = self.state.waiters.next_ready() {
                self.resume(ctx, slot);
            }
            self.state.grant_caps();
            self.state.grant_credit();
            self.state.grant_frames();
            self.state.grant_bios();
            if !self.state.waiters.has_ready() {
                break;
            }
        }
        self.state.keep_limit(ctx);
        // The flushers may make operations ready (blocks that they drop, not write); the next input steps these.
        self.flushers.run(&mut self.state, ctx);
        let at = self.state.dirty.throttle().next_timeout();
        self.state.set_timer(ctx, TimerKind::Throttle, at);
        let at = match self.state.is_frozen() {
            true => None,
            false => self.state.dirty.next_periodic(ctx.now),
        };
        self.state.set_timer(ctx, TimerKind::Periodic, at);
    }

    /// Freezes the cache, or lets it start write-out and read-ahead again.
    pub fn set_frozen(&mut self, ctx: &mut CallContext, frozen: bool) {
        self.state.set_frozen(ctx, frozen);
    }

    /// Sets the size of a volume, in bytes.
    pub fn on_resize(&mut self, ctx: &mut CallContext, volume: VolumeId, size: u64) {
        steps::resize::resize(&mut self.state, ctx, volume, size);
    }

    /// Discards the blocks of a volume that could not be written, as the operator asks.
    pub fn discard_held(&mut self, ctx: &mut CallContext, volume: VolumeId) {
        self.state.discard_held(volume, ctx.actions);
    }

    /// Sets how the blocks of a device's volumes are cached.
    pub fn set_caching(&mut self, device: usize, read_ahead_kb: u32, max_folio_order: u8) {
        self.state.volumes.set_caching(device, read_ahead_kb, max_folio_order);
    }

    /// Sets how long an operation may wait for something of a device.
    pub fn set_io_timeout(&mut self, device: usize, io_timeout_ns: u64) {
        self.state.volumes.set_io_timeout(device, io_timeout_ns);
    }

    /// Notes whether a device answers: it is `silent` while it is stuck, `unresponsive` then and before.
    pub fn set_silent(
        &mut self,
        ctx: &mut CallContext,
        device: usize,
        (silent, unresponsive): (bool, bool),
    ) {
        self.state.set_silent(ctx, device, (silent, unresponsive));
    }

    /// Sets the tunables of write-back.
    pub fn set_dirty(&mut self, now: Instant, dirty: DirtyOptions) {
        self.state.dirty.set_options(now, dirty);
        self.state.apply_limits();
    }

    /// Changes the shares of exports and tenants; they divide the write bandwidth of devices.
    pub fn change_shares(&mut self, change: ShareChange) {
        let throttle = self.state.dirty.throttle_mut();
        match change {
            ShareChange::ExportWeight(export, weight) => throttle.set_export_weight(export, weight),
            // A target is about requests in the device.
            ShareChange::ExportTarget(..) => {}
            ShareChange::ExportTenant(export, tenant) => {
                throttle.set_tenant(export, tenant);
                self.state.pool.set_tenant(export, tenant);
                self.state.dirty.payers_mut().set_tenant(export, tenant);
                self.end_cap_waits();
            }
            ShareChange::TenantWeight(tenant, weight) => throttle.set_tenant_weight(tenant, weight),
        }
    }

    /// Sets a tenant's part of the cache.
    pub fn set_tenant_memory(&mut self, tenant: TenantId, memory: TenantMemory) {
        self.state.pool.set_memory(tenant, memory);
        self.state.dirty.payers_mut().set_tenant_cap(tenant, memory.dirty_cap());
        self.end_cap_waits();
    }

    /// Sets the cap of an export's dirty blocks; `u32::MAX` for none.
    pub fn set_export_dirty(&mut self, export: ExportId, blocks: u32) {
        debug_assert!(blocks > 0, "a cap of 0 would stop the writers");
        self.state.dirty.payers_mut().set_export_cap(export, blocks);
        self.end_cap_waits();
    }

    /// Has every operation that waits for a cap ask again, after caps or tenants have changed.
    fn end_cap_waits(&mut self) {
        self.state.waiters.end_cap_waits();
        self.state.needs_run = true;
    }

    /// Returns the blocks that are dirty or under write-out for an export, and those that are cached for it.
    pub fn export_blocks(&self, export: ExportId) -> (u64, u64) {
        let cached = self.state.pool.cached(export);
        (self.state.dirty.payers().unclean(export), cached.into())
    }

    /// Returns the dirty and writeback blocks of all payers of a device.
    pub fn payer_sums(&self, device: usize) -> (u64, u64) {
        self.state.dirty.payers().sums(device)
    }

    /// Returns what the dirty blocks of a tenant are.
    pub fn tenant_dirty(&self, tenant: TenantId) -> TenantDirty {
        let payers = self.state.dirty.payers();
        let (used, cap, released) = payers.tenant_used(tenant);
        TenantDirty { used, cap, released, written: payers.tenant_written(tenant) }
    }

    /// Lets nearly empty extent groups wait in the background, or visits every group in turn.
    pub fn set_sparse_groups_wait(&mut self, wait: bool) {
        self.flushers.set_sparse_groups_wait(wait);
    }

    /// Activates a deliberate violation of the rules, for negative tests.
    #[cfg(feature = "defects")]
    pub fn set_defect(&mut self, defect: CacheDefect) {
        self.state.defects.set(defect);
    }

    /// Returns the counters and sizes of the cache.
    pub fn stats(&self) -> CacheStats {
        let state = &self.state;
        let mut stats = state.stats;
        stats.held = state.volumes.held();
        stats.waits = state.waiters.wait_counts();
        state.pool.add_stats(&mut stats);
        stats
    }

    /// Returns the throttle, which decides on pauses.
    pub fn throttle(&self) -> &Throttle {
        self.state.dirty.throttle()
    }

    /// Returns the throttle, to trace its decisions.
    pub fn throttle_mut(&mut self) -> &mut Throttle {
        self.state.dirty.throttle_mut()
    }

    /// Returns the tunables of write-back that hold now.
    pub fn dirty_options(&self) -> DirtyOptions {
        *self.state.dirty.options()
    }

    /// Returns the bytes of a volume that are dirty or under write-out, in whole blocks.
    pub fn dirty_bytes(&self, volume: VolumeId) -> u64 {
        u64::from(self.state.volumes[volume].unclean()) << folio::BLOCK_SHIFT
    }

    /// Returns a counter that changes whenever a volume begins or ceases to hold blocks.
    pub fn held_changes(&self) -> u32 {
        self.state.volumes.held_changes()
    }

    /// Returns the held bytes of a volume, and the error of the last failed write-out.
    pub fn held(&self, volume: VolumeId) -> Option<(u64, IoError)> {
        let entry = self.state.volumes.get(volume)?;
        let bytes = u64::from(entry.held()) << folio::BLOCK_SHIFT;
        (bytes > 0).then(|| (bytes, entry.last_error()))
    }

    /// Returns true if a write-out of a volume failed and the data is still dirty.
    pub fn is_failing(&self, volume: VolumeId) -> bool {
        self.state.volumes.get(volume).is_some_and(|entry| entry.is_failing())
    }

    /// Collects the held ranges of a volume as (offset, length, error), joined where they lie in one folio.
    pub fn held_ranges(&self, volume: VolumeId, into: &mut Vec<(u64, u64, IoError)>) {
        self.state.held_ranges(volume, into);
    }

    /// Returns true if no operation waits, no bio is outstanding and no truncation is in progress; there may be dirty data.
    pub fn is_quiet(&self) -> bool {
        let state = &self.state;
        let idle = state.waiters.len() == 0 && !state.volumes.is_truncating();
        idle && state.io.in_flight() == 0 && state.io.is_queue_empty()
    }
}
