//! The owners of a cache's state, side by side, and what concerns several of them: waiting, completing, granting.
//!
//! Each owner keeps its fields to itself. The files above this one (`writeout`, `completion`, `flusher`, `steps`) work on
//! all of them through a [`CacheState`].

use super::context::{CallContext, TimerKind};
use super::defect::Defects;
use super::device_io::{DeviceIo, fills};
use super::dirty::{AccountId, DirtyState};
use super::pool::folio::{BLOCK_SHIFT, Folio, ORDER_MAX};
use super::pool::{Eviction, Excess, Pool};
use super::readahead::ReadAhead;
use super::stats::CacheStats;
use super::volumes::Volumes;
use super::waiters::operation::{OpStep, Operation, WaitFor};
use super::waiters::{Waiters, touched_blocks};
use crate::action::Actions;
use crate::bio::{Bio, DeviceId, ExportId, VolumeId};
use crate::error::{IoError, Status};
use crate::input::ReplyStage;
use crate::options::{CacheOptions, ShardConfig};
use crate::slab::NIL;
use crate::time::Instant;
use crate::wait_times::WaitTimes;
use crate::writeback::WriterId;

/// Blocks of dirty credit that an operation asks for at once: 1 MiB.
const CREDIT_STEP: u32 = 256;

/// The reads without a buffer that wait may want this part of the pool.
const WITHOUT_BUFFER_PART: u64 = 4;

/// The owners of a cache's state.
pub(super) struct CacheState {
    /// The options of the cache.
    pub options: CacheOptions,
    /// Folios, frames and eviction.
    pub pool: Pool,
    /// Dirty data, credit and the throttle.
    pub dirty: DirtyState,
    /// Operations and their lists.
    pub waiters: Waiters,
    /// Volumes and their errors.
    pub volumes: Volumes,
    /// Bios of the cache's own.
    pub io: DeviceIo,
    /// Streams of sequential reads.
    pub ahead: ReadAhead,
    /// What the steps of operations count.
    pub stats: CacheStats,
    /// A deliberate violation of the rules, for tests.
    pub defects: Defects,
    /// Something other than a hit happened, so the end of the batch has work to do.
    pub needs_run: bool,
    /// The cache starts nothing of its own.
    frozen: bool,
    /// A list of units or slots that one call needs; empty between calls.
    pub scratch: Vec<u32>,
    /// The first of the cache's timers.
    timer_base: u32,
}

impl CacheState {
    /// Creates the state of an empty cache; nothing is allocated later.
    pub fn new(config: &ShardConfig, timer_base: u32) -> Self {
        let options = config.cache;
        let (devices, volumes) = (config.devices.len(), config.volumes_max());
        let pool = Pool::new(config);
        let queue = (options.bios() + config.bios_max) as usize;
        let (units, writers) = (options.units, options.writers_max);
        let tables = (devices, volumes);
        let dirty = DirtyState::new(config.dirty, units, pool.dirtyable(), tables, writers)
            .with_domains(&config.exports, &config.tenants);
        let accounts = dirty.payers().len();
        Self {
            dirty,
            pool,
            waiters: Waiters::new(config.bios_max, tables, writers, accounts),
            volumes: Volumes::new(config, writers),
            io: DeviceIo::new(units, devices, options.bios(), queue),
            ahead: ReadAhead::new(writers),
            stats: CacheStats::default(),
            defects: Defects::default(),
            needs_run: true,
            frozen: false,
            scratch: Vec::with_capacity(units.min(1 << 14) as usize),
            timer_base,
            options,
        }
    }

    /// Returns true while the cache starts nothing of its own.
    #[inline]
    pub fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Notes that the cache starts nothing of its own, or does so again.
    pub(super) fn begin_freeze(&mut self, frozen: bool) {
        debug_assert!(self.frozen != frozen, "the state changes");
        self.frozen = frozen;
    }

    /// Sets or clears one of the cache's timers.
    pub fn set_timer(&self, ctx: &mut CallContext, kind: TimerKind, at: Option<Instant>) {
        let id = self.timer_base + kind as u32;
        match at {
            Some(at) if ctx.timers.at(id) != Some(at) => ctx.timers.set(id, at),
            Some(_) => {}
            None => ctx.timers.clear(id),
        }
    }

    /// Returns the number of one of the cache's timers among the shard's.
    pub fn timer(&self, kind: TimerKind) -> u32 {
        self.timer_base + kind as u32
    }

    /// Returns the number of a timer of the shard among the cache's own.
    pub fn timer_number(&self, timer: u32) -> u32 {
        assert!(timer >= self.timer_base, "the timer is the cache's");
        timer - self.timer_base
    }

    /// Has the cache run again at once, in a batch of its own.
    pub fn set_next_turn(&self, ctx: &mut CallContext) {
        ctx.timers.set(self.timer_base + TimerKind::NextTurn as u32, ctx.now);
    }

    /// Returns the device of an operation's volume.
    pub fn device_of(&self, slot: u32) -> usize {
        self.volumes.device_index(self.waiters.op(slot).bio.id.volume)
    }

    /// Makes an operation wait.
    pub fn park(&mut self, ctx: &mut CallContext, slot: u32, waits_for: WaitFor) {
        assert!(slot != NIL, "an operation that waits has a slot");
        self.needs_run = true;
        self.waiters.begin_wait(ctx.now, slot, waits_for);
        let device = self.device_of(slot);
        if let WaitFor::Folio(unit) = waits_for {
            let next = self.pool.add_waiter(unit, slot);
            self.waiters.link_folio_waiter(slot, next);
        }
        self.waiters.enlist(slot, device);
        self.limit_wait(ctx, slot);
        match waits_for {
            WaitFor::NextTurn => self.set_next_turn(ctx),
            WaitFor::Pause => self.set_writer_timer(ctx, self.waiters.op(slot).writer),
            WaitFor::Flush => {
                let timer = self.timer_base + TimerKind::Flush as u32;
                if !ctx.timers.is_set(timer) {
                    ctx.timers.set(timer, self.waiters.op(slot).deadline);
                }
            }
            _ => {}
        }
    }

    /// Completes an operation: the client gets the answer, and what the operation holds is free.
    pub fn complete(
        &mut self,
        ctx: &mut CallContext,
        op: &mut Operation,
        status: Status,
    ) -> WaitFor {
        let wait_times = self.end(ctx.now, op);
        let stage = if op.answered { ReplyStage::Released } else { ReplyStage::Final };
        ctx.reply_after(&op.bio, status, stage, wait_times);
        WaitFor::Nothing
    }

    /// Ends an operation, whose answer follows: what it holds is free. Returns what it waited for.
    pub fn end(&mut self, now: Instant, op: &mut Operation) -> WaitTimes {
        assert!(!op.locked, "a range is unlocked before its operation completes");
        self.release(op);
        self.waiters.end_wait(now, op);
        self.waiters.wait_times(op)
    }

    /// Whether the blocks of one more read without a buffer may be waited for: they are there all at once when it is answered, so
    /// those of all such reads are a small part of the pool, or one would evict what another waits for.
    #[inline]
    pub fn has_room_without_buffer(&self, bio: &Bio) -> bool {
        let (first, end) = touched_blocks(bio);
        let wanted = end - first + self.waiters.blocks_without_buffer();
        wanted <= u64::from(self.pool.limit()) / WITHOUT_BUFFER_PART
    }

    /// Returns the credit and the frame that an operation holds.
    #[inline]
    pub fn release(&mut self, op: &mut Operation) {
        // A hit holds neither: two comparisons without a call.
        if op.reserved.paid > 0 {
            self.drop_credit(op);
        }
        if op.frame.0 != NIL {
            self.drop_frame(op);
        }
    }

    /// Returns the credit that an operation holds.
    pub fn drop_credit(&mut self, op: &mut Operation) {
        let (credit, paid) =
            (std::mem::take(&mut op.reserved.credit), std::mem::take(&mut op.reserved.paid));
        debug_assert!(credit <= paid, "a payer pays for all credit");
        if paid > 0 {
            let device = self.volumes[op.bio.id.volume].device();
            self.dirty.unreserve(device, credit, (op.reserved.payer, paid));
        }
    }

    /// Returns a granted frame that an operation did not need.
    pub fn drop_frame(&mut self, op: &mut Operation) {
        let (unit, order) = std::mem::replace(&mut op.frame, (NIL, 0));
        if unit != NIL {
            self.pool.put_frames(unit, order);
        }
    }

    /// Passes a client's bio to its device on behalf of an operation.
    pub fn pass_to_device(&mut self, op: &mut Operation, slot: u32, bio: crate::bio::Bio) {
        op.step = OpStep::Device;
        self.io.pass(bio, slot, op.limit.since);
    }

    /// Wakes the waiters of a folio of which something ended.
    ///
    /// Of a fill that failed, the waiters whose cursor is in `failed` (blocks of the volume) fail, if they need the block.
    pub fn wake_folio(&mut self, unit: u32, failed: Option<(u64, u64, IoError)>, below: WaitTimes) {
        let newest = self.pool.take_waiters(unit);
        let size = self.volumes[self.pool.folio(unit).key.volume()].size();
        self.waiters.wake_folio_waiters(newest, below, |op| {
            let (first, end, error) = failed?;
            // A write of the whole block, or a wait for a write-out, does not need what could not be read.
            let needs = match op.step {
                OpStep::Read => true,
                OpStep::Write => !op.block_part(size).whole,
                _ => false,
            };
            (needs && (first..end).contains(&(op.at() >> BLOCK_SHIFT))).then_some(error)
        });
    }

    /// Wakes the flushes of a volume that waited for what was written, cancelled or held.
    pub fn advance(&mut self, volume: VolumeId) {
        let entry = &mut self.volumes[volume];
        entry.advance();
        let mut woken = false;
        while let Some(target) = self.waiters.first_flush_target(volume) {
            if entry.is_left(target) {
                break;
            }
            self.waiters.end_first_flush_wait(volume);
            woken = true;
        }
        let none_waits = self.waiters.first_flush_target(volume).is_none();
        if none_waits {
            entry.clear_target();
        }
        if woken || none_waits {
            self.waiters.end_flush_start_waits(volume);
        }
    }

    /// Counts held blocks of a volume that were added or released.
    pub fn count_held(&mut self, volume: VolumeId, more: u32, less: u32) {
        self.volumes.count_held(volume, more, less);
        let (device, error) =
            (self.volumes.device_index(volume), self.volumes[volume].last_error());
        self.dirty.count_held(device, more, less);
        self.update_stuck(device, error);
    }

    /// Counts write-outs of a volume that passed their time-out, or completed after it.
    pub fn count_late(&mut self, volume: VolumeId, more: u32, less: u32) {
        let device = self.volumes.device_index(volume);
        self.dirty.count_late(device, more, less);
        self.update_stuck(device, IoError::TimedOut);
    }

    pub fn update_stuck(&mut self, device: usize, error: IoError) {
        if self.dirty.update_stuck(device, error) {
            self.free_writers(device);
        }
    }

    /// Decides again which devices are stuck, after a change of limits, and has every writer that waits ask again: what it waited for
    /// under the old limits may never come under the new ones.
    pub fn apply_limits(&mut self) {
        for device in 0..self.volumes.devices() {
            let mut ids = self.volumes.ids();
            let held = ids.find(|&volume| {
                self.volumes.is_on(volume, device) && self.volumes[volume].held() > 0
            });
            let error = held.map_or(IoError::TimedOut, |volume| self.volumes[volume].last_error());
            self.update_stuck(device, error);
            self.free_writers(device);
        }
        self.needs_run = true;
    }

    /// Wakes the operations that wait for credit of a device, or for the end of a pause; they ask again, and fail if the device is
    /// stuck and there is no credit.
    fn free_writers(&mut self, device: usize) {
        self.waiters.end_credit_waits(device);
        self.waiters.end_cap_waits();
        self.dirty.throttle_mut().forget_refused(DeviceId(device as u16));
        for writer in 0..self.waiters.writers() as u32 {
            let first = self.waiters.first_paused(writer);
            if first.is_some_and(|slot| self.device_of(slot) == device) {
                self.waiters.end_pause(writer);
            }
        }
    }

    /// Returns the end of a writer's pause, if it pauses.
    pub fn pause_of(&mut self, now: Instant, writer: u32) -> Option<Instant> {
        if writer == NIL {
            return None;
        }
        let throttle = self.dirty.throttle_mut();
        match throttle.paused_until(WriterId(writer)) {
            Some(until) if until <= now => throttle.resume(now, WriterId(writer)),
            paused => paused,
        }
    }

    /// Sets the timer for the end of a writer's pause; if that is over, it expires at once.
    pub fn set_writer_timer(&mut self, ctx: &mut CallContext, writer: u32) {
        assert!(writer != NIL, "only a writer pauses");
        let until = self.pause_of(ctx.now, writer).unwrap_or(ctx.now);
        ctx.timers.set(self.timer_base + TimerKind::Writer as u32 + writer, until);
    }

    /// Closes the writer of a connection: its operations continue without a pause.
    pub fn close_writer(&mut self, ctx: &mut CallContext, connection: u32) {
        let Some(writer) = self.dirty.throttle_mut().close(connection) else {
            return;
        };
        ctx.timers.clear(self.timer_base + TimerKind::Writer as u32 + writer.0);
        self.waiters.detach_writer(connection);
        while let Some(slot) = self.waiters.pop_paused(writer.0) {
            self.stats.closed_paused += 1;
            self.waiters.ready(slot);
        }
    }

    /// Returns the blocks of credit that one operation asks for at once: a small part of the limit, so that several get some.
    pub fn credit_max(&self, device: DeviceId) -> u32 {
        (self.dirty.throttle().reserve_max(device) / 8).clamp(1, CREDIT_STEP)
    }

    /// Grants free credit to the operations that wait for it, in order.
    pub fn grant_credit(&mut self) {
        for device in 0..self.waiters.credit_lists() {
            while let Some((slot, wanted)) = self.waiters.first_for_credit(device) {
                let id = DeviceId(device as u16);
                let class = self.waiters.op(slot).bio.ioprio.class();
                // The limit may have been lowered since the operation asked.
                let most = self.credit_max(id);
                if wanted > most {
                    self.waiters.lower_credit_wait(device, most);
                    continue;
                }
                // Once refused, the throttle knows what is wanted and says when that is free.
                if self.waiters.is_refused(device) && !self.dirty.throttle().freed(id) {
                    break;
                }
                assert!(wanted > 0, "an operation waits for some credit");
                let granted = self.dirty.reserve_credit(id, wanted, class);
                self.waiters.set_refused(device, !granted);
                if !granted {
                    break;
                }
                self.waiters.end_credit_wait(device, wanted);
            }
        }
    }

    /// Grants room under the caps of accounts to the operations that wait for it, in the order of each account.
    pub fn grant_caps(&mut self) {
        while let Some(account) = self.dirty.payers_mut().next_freed() {
            self.grant_cap(account);
        }
    }

    fn grant_cap(&mut self, account: AccountId) {
        loop {
            let Some((slot, wanted)) = self.waiters.first_for_cap(account) else {
                return self.dirty.payers_mut().set_awaited(account, false);
            };
            let payer = self.waiters.op(slot).reserved.payer;
            // The cap may have been lowered since the operation asked.
            let wanted = self.dirty.payers().at_once(payer, wanted);
            assert!(wanted > 0, "an operation waits for some blocks");
            match self.dirty.payers().full(payer, wanted) {
                None => {
                    self.dirty.reserve_for_payer(payer, wanted);
                    self.waiters.end_cap_wait(account, wanted);
                }
                Some(full) if full == account => return,
                Some(other) => {
                    self.dirty.payers_mut().set_awaited(other, true);
                    self.waiters.move_cap_wait(account, other);
                }
            }
        }
    }

    /// Grants frames to the operations that wait for them, in order.
    pub fn grant_frames(&mut self) {
        while let Some(slot) = self.waiters.first_for_frame() {
            // A read needs a bio as well, to fill the frame. Without one it waits for that, and delays no other operation.
            let account = fills(self.device_of(slot));
            if self.waiters.op(slot).step == OpStep::Read && !self.io.may_send(account) {
                self.waiters.move_frame_wait_to_bios(account);
                continue;
            }
            if self.waiters.op(slot).frame.0 == NIL {
                let export = self.waiters.op(slot).bio.id.export;
                let Some(granted) = self.take_frames(export, 0) else {
                    return;
                };
                self.waiters.op_mut(slot).frame = granted;
            }
            self.waiters.end_frame_wait();
        }
    }

    /// Wakes as many of the operations that wait for a bio as there are bios.
    pub fn grant_bios(&mut self) {
        for account in 0..self.waiters.bio_accounts() {
            if self.waiters.waits_for_bio(account) && self.io.may_send(account) {
                self.waiters.end_bio_waits(account, self.io.room(account));
            }
        }
    }

    /// Makes a folio of at most `order` for a block and an export, of the frame that `op` was granted if it has one; `None`
    /// without memory.
    ///
    /// Nothing is taken past the operations that wait for a frame.
    pub fn make_folio(
        &mut self,
        op: Option<&mut Operation>,
        export: ExportId,
        (volume, block): (VolumeId, u64),
        order: u8,
    ) -> Option<u32> {
        let (unit, order) = match op {
            Some(op) if op.frame.0 != NIL => std::mem::replace(&mut op.frame, (NIL, 0)),
            _ if self.waiters.first_for_frame().is_some() => return None,
            _ => self.take_frames(export, order.min(self.pool.order_cap()))?,
        };
        self.pool.begin_folio(unit, order, (volume, block), export);
        Some(unit)
    }

    /// Takes frames of `order`, or of the largest smaller order available, for an export; evicts at most as much as `order` needs,
    /// and more of its own where its tenant has a maximum.
    fn take_frames(&mut self, export: ExportId, order: u8) -> Option<(u32, u8)> {
        let (mut asking, mut order) = (0, order);
        if self.pool.is_divided() {
            let (part, most) = self.pool.part_of(export);
            (asking, order) = (part, order.min(most));
            self.pool.make_room(&mut self.ahead, part, 1 << order);
        }
        debug_assert!(order <= ORDER_MAX, "the order of a folio");
        if let Some(unit) = self.pool.take_frames(order) {
            return Some((unit, order));
        }
        if self.pool.extend(order) {
            return (0..=order)
                .rev()
                .find_map(|order| Some((self.pool.take_frames(order)?, order)));
        }
        if self.pool.awaits_memory() && !self.is_frozen() {
            // Nothing is evicted for the time that an answer takes.
            return None;
        }
        let mut missing = 1_i64 << order;
        while missing > 0 {
            let Some(units) = self.evict(asking) else {
                break;
            };
            missing -= i64::from(units);
            if let Some(unit) = self.pool.take_frames(order) {
                return Some((unit, order));
            }
        }
        (0..order).rev().find_map(|order| Some((self.pool.take_frames(order)?, order)))
    }

    /// Evicts a clean folio for a part that needs frames, and returns its units; asks the flushers for clean ones if there is none.
    fn evict(&mut self, asking: u16) -> Option<u32> {
        if self.defects.evicts_filling()
            && let Some(units) = self.evict_filling()
        {
            return Some(units);
        }
        match self.pool.evict(&mut self.ahead, asking) {
            Eviction::Evicted(units) => Some(units),
            Eviction::NoneClean if self.defects.evicts_dirty() => self.evict_dirty(),
            Eviction::NoneClean => {
                if self.pool.is_divided()
                    && self.nothing_becomes_clean()
                    && let Eviction::Evicted(units) = self.pool.evict_any(&mut self.ahead)
                {
                    return Some(units);
                }
                self.dirty.want_clean();
                None
            }
            Eviction::Empty => None,
        }
    }

    /// Returns true if no folio becomes clean by itself: nothing is in a device but what is late, and what is dirty is held, or its
    /// device does not answer. Then a wait for a frame would have no end, and what tenants have within their minimums is evicted.
    fn nothing_becomes_clean(&self) -> bool {
        let is_written = |device: usize| {
            let dirty = self.dirty.throttle().device_stats(DeviceId(device as u16)).reclaimable;
            !self.dirty.is_silent(device) && dirty > u64::from(self.dirty.held(device))
        };
        !self.io.is_any_in_time() && !(0..self.volumes.devices()).any(is_written)
    }

    /// Has the pool keep its limit: names the frames that will be used next, and releases those beyond it. While nothing can be evicted
    /// the next completion tries again.
    pub fn keep_limit(&mut self, ctx: &mut CallContext) {
        if self.is_frozen() {
            return;
        }
        self.pool.name_frames(&mut ctx.actions.list);
        match self.pool.give_back(&mut self.ahead, &mut ctx.actions.list) {
            Excess::Done => {}
            Excess::More => self.set_next_turn(ctx),
            Excess::NoneClean => self.dirty.want_clean(),
        }
    }

    /// Drops a folio that a stream brought, if nothing of it is needed any more; operations may wait for its frames.
    pub fn drop_behind(&mut self, unit: u32) {
        let folio = self.pool.folio(unit);
        if self.defects.drops_dirty_behind()
            && folio.is(Folio::DROP_BEHIND)
            && folio.writeback + folio.filling == 0
        {
            // A defect: what the dirty table says of it does not matter.
            self.cancel_dirty(unit, 0, folio.blocks(), &mut Actions::default());
        }
        self.needs_run |= self.pool.drop_behind(unit);
    }

    /// Evicts a dirty folio (a defect).
    fn evict_dirty(&mut self) -> Option<u32> {
        let unit = self
            .pool
            .first_folio(|folio| folio.dirty > 0 && folio.writeback + folio.filling == 0)?;
        let blocks = self.pool.folio(unit).blocks();
        // A defect: what the dirty table says of it does not matter.
        self.cancel_dirty(unit, 0, blocks, &mut Actions::default());
        self.pool.drop_if_idle(unit);
        Some(blocks)
    }

    /// Evicts a folio that a device fills (a defect).
    fn evict_filling(&mut self) -> Option<u32> {
        let unit = self
            .pool
            .first_folio(|folio| folio.filling > 0 && folio.dirty + folio.writeback == 0)?;
        self.wake_folio(unit, None, WaitTimes::NONE);
        let blocks = self.pool.folio(unit).blocks();
        self.pool.abandon_fills(unit);
        self.pool.drop_if_idle(unit);
        Some(blocks)
    }
}
