//! The flushers: what is written out, when, and in which order. One for each device; writers do not write out for themselves.
//!
//! Work comes from five sources, in this order: flushes that wait, frames that are needed, data that is too old, data of payers
//! above half of their caps, dirty data above the background threshold. In the background nearly empty groups wait: until they
//! hold a sixteenth of a chunk, until they are too old, until nothing else is dirty, or until such groups together hold a quarter
//! of what may be dirty. A pass takes one extent group, the oldest first but in the order of addresses among old ones, and sends
//! its dirty folios in order, up to the throttle's chunk; then the next group has its turn. Neighbours are merged in the plug.
//! The blocks under write-out are bounded, and a part of the cache's bios is kept for fills, so that reads continue.
//!
//! A flush that begins on a volume without a write-out goes first, before the rest of a pass and beyond the bound, with a MiB: the pass may be
//! over 64 MiB of another volume's flush, with as much in the device as it may have. A flush of little is synchronous: a database's commit
//! is a small write that its caller waits for, and what is large in the device is cut for it. One of much is background work: it has a part
//! of the tags, and reads pass it.
//!
//! ```text
//!   idle --work--> pass: the group's dirty folios, sorted --> sent one by one --bound--> waits for a completion
//!     ^                                                           | chunk used up, or the end
//!     '----------- nothing more to do ----------- next group <----'
//! ```
//!
//! Invariants: a block is in one write-out at a time; a flush is not delayed by data that is dirtied after it began; old data is
//! found even when nothing else happens (a timer, while anything is dirty).

use super::context::CallContext;
use super::device_io::writeouts;
use super::dirty::DirtyState;
use super::dirty::groups::{GROUP_SHIFT, Group};
use super::pool::folio::Folio;
use super::state::CacheState;
use super::writeout::{WriteoutReason, WriteoutRequest};
use crate::bio::{BioFlags, DeviceId, VolumeId};
use crate::slab::NIL;
use crate::time::Instant;

/// Blocks with which a flush that begins goes first: 1 MiB, 10 ms of a disk.
const FIRST_BLOCKS: u32 = 256;
/// Blocks that a volume has at most for a flush of it to be small: 64 KiB, up to which requests have latency targets.
const SMALL_FLUSH: u32 = 16;
/// Groups that are examined for the next one in the order of addresses.
const LOOK_AHEAD: usize = 16;
/// Chunks are divided by this for the units at which a group is worth a visit in the background: 31 ms of a disk's time, beside
/// which a seek is small.
const FLOOR_DIVISOR: u32 = 16;

/// The passes of all flushers.
#[derive(Debug)]
pub(super) struct Flushers {
    passes: Vec<Pass>,
    /// The connection that write-outs are charged to.
    account: u32,
    /// Units for which the pool has room.
    units: u32,
    /// Nearly empty groups wait in the background; off only in experiments.
    sparse_groups_wait: bool,
}

/// A device's flusher: its pass over an extent group.
#[derive(Debug)]
struct Pass {
    /// The folios of the pass, in the order of their addresses.
    sorted: Vec<u32>,
    /// How many of them are processed.
    position: usize,
    /// The group; `NIL` between passes.
    group: u32,
    reason: WriteoutReason,
    /// Only folios up to this generation are sent.
    target: Option<u64>,
    began: Instant,
    /// No dirty folio of the group was left out.
    all: bool,
    /// Blocks that the pass may still send.
    left: u32,
    sent_any: bool,
    /// The group of the last pass, for the order of addresses.
    last: (VolumeId, u64),
    /// Blocks that may be under write-out at once.
    in_flight_max: u32,
}

impl Pass {
    fn new(units: u32) -> Self {
        Self {
            sorted: Vec::with_capacity(units.min(1 << GROUP_SHIFT) as usize),
            position: 0,
            group: NIL,
            reason: WriteoutReason::Background,
            target: None,
            began: Instant(0),
            all: false,
            left: 0,
            sent_any: false,
            last: (VolumeId(0), 0),
            in_flight_max: in_flight_limit(units),
        }
    }

    /// Returns true if the pass has a folio to send.
    fn has_next(&self) -> bool {
        self.position < self.sorted.len() && self.left > 0
    }
}

/// Returns the blocks that may be under write-out at once: 32 MiB, or a quarter of a small pool.
fn in_flight_limit(units: u32) -> u32 {
    (units / 4).clamp(64, 8192)
}

impl Flushers {
    /// Creates the flushers of so many devices.
    pub fn new(units: u32, account: u32, devices: usize) -> Self {
        let passes = (0..devices).map(|_| Pass::new(units)).collect();
        Self { passes, account, units, sparse_groups_wait: true }
    }

    /// Lets nearly empty groups wait in the background, or visits every group in turn.
    pub fn set_sparse_groups_wait(&mut self, wait: bool) {
        self.sparse_groups_wait = wait;
    }

    /// Adds flushers up to that of `device`.
    pub fn add_device(&mut self, device: DeviceId) {
        for _ in self.passes.len()..=usize::from(device.0) {
            self.passes.push(Pass::new(self.units));
        }
    }

    /// Resets the flusher of a device that was removed.
    pub fn remove_device(&mut self, device: DeviceId) {
        self.passes[usize::from(device.0)] = Pass::new(self.units);
    }

    /// Lets every flusher send what it may; a frozen cache only what operations wait for.
    pub fn run(&mut self, state: &mut CacheState, ctx: &mut CallContext) {
        assert_eq!(self.passes.len(), state.volumes.devices(), "one flusher for each device");
        if state.dirty.is_empty() {
            state.dirty.stop_wanting_clean();
            (0..self.passes.len()).for_each(|device| state.dirty.end_periodic(device));
            return;
        }
        for device in 0..self.passes.len() {
            if state.is_frozen() && !state.waits_for_writeout(device) {
                // What is left of a pass is for later; its group keeps its age.
                self.passes[device].left = 0;
                continue;
            }
            self.run_device(state, ctx, device);
        }
        if state.waiters.first_for_frame().is_none() {
            state.dirty.stop_wanting_clean();
        }
    }

    fn run_device(&mut self, state: &mut CacheState, ctx: &mut CallContext, device: usize) {
        if state.dirty.is_silent(device) {
            return self.try_silent(state, ctx, device);
        }
        if state.dirty.take_flush_begun(device) {
            self.begin_flushes(state, ctx, device);
        }
        let most = self.passes[device].in_flight_max;
        // Topped up at every completion, each turn would send as little as has completed, and neighbours would not meet in the plug.
        if state.dirty.in_flight(device) > most - most / 4 {
            return;
        }
        // Groups in a row of which nothing could be sent because all of it is outstanding.
        let mut barren = 0;
        loop {
            let pass = &self.passes[device];
            let full = state.dirty.in_flight(device) >= pass.in_flight_max;
            if full || !state.io.may_write_out(device) {
                return;
            }
            if pass.has_next() {
                self.send_next(state, ctx, device);
                continue;
            }
            if pass.group != NIL {
                barren = if pass.sent_any { 0 } else { barren + 1 };
                self.end_pass(state, device);
            }
            if barren > 2 * LOOK_AHEAD {
                // Enough for one turn. The next one is brought by a completion, or else by a timer.
                if state.dirty.in_flight(device) == 0 {
                    state.set_next_turn(ctx);
                }
                return;
            }
            if !self.begin_pass(state, ctx.now, device) {
                return;
            }
        }
    }

    /// Sends the first blocks of every volume for which a flush waits and of which nothing is under write-out.
    fn begin_flushes(&mut self, state: &mut CacheState, ctx: &mut CallContext, device: usize) {
        for index in 0..state.volumes.len() {
            let id = VolumeId(index as u16);
            if !state.volumes.is_on(id, device) || state.volumes[id].is_writing() {
                continue;
            }
            let Some(target) = state.volumes[id].flush_work() else { continue };
            let Some(group) = state.dirty.oldest_group(id) else { continue };
            if self.passes[device].group != NIL {
                self.passes[device].left = 0;
                self.end_pass(state, device);
            }
            self.start_pass(state, ctx.now, device, (group, WriteoutReason::Flush, Some(target)));
            debug_assert!(self.passes[device].group == group, "the pass is over its group");
            self.passes[device].left = FIRST_BLOCKS;
            while self.passes[device].has_next() && state.io.may_write_out(device) {
                self.send_next(state, ctx, device);
            }
        }
    }

    /// Sends one folio to a device that does not answer, each time that old data is searched for: it may answer again, and all
    /// others would only fail.
    fn try_silent(&mut self, state: &mut CacheState, ctx: &mut CallContext, device: usize) {
        if !state.dirty.wants_periodic(device) || state.dirty.in_flight(device) > 0 {
            return;
        }
        state.dirty.end_periodic(device);
        let groups = state.volumes.ids().filter(|&volume| state.volumes.is_on(volume, device));
        let first = groups.filter_map(|volume| state.dirty.oldest_group(volume)).next();
        if let Some(group) = first {
            let unit = state.dirty.group(group).head;
            let request = WriteoutRequest {
                cookie: NIL,
                connection: self.account,
                flags: BioFlags::NONE,
                reason: WriteoutReason::Periodic,
                max_blocks: 1,
                since: ctx.now,
            };
            let blocks = state.pool.folio(unit).blocks();
            state.send_dirty(ctx, unit, 0, blocks, request);
        }
    }

    /// Sends the next folio of the pass.
    fn send_next(&mut self, state: &mut CacheState, ctx: &mut CallContext, device: usize) {
        let pass = &mut self.passes[device];
        debug_assert!(pass.group != NIL && pass.has_next(), "the pass has a folio to send");
        let unit = pass.sorted[pass.position];
        pass.position += 1;
        let folio = *state.pool.folio(unit);
        // It may have been cleaned, dropped or made anew since the pass began.
        if !folio.is(Folio::PRESENT) || folio.group != pass.group {
            return;
        }
        let generation = state.volumes[folio.key.volume()].generation_of(folio.generation);
        if pass.target.is_some_and(|target| generation > target) {
            pass.all = false;
            return;
        }
        // A flush of little is a small write that its caller waits for; one of much is background work, which reads pass.
        let is_small = state.volumes[folio.key.volume()].unclean() <= SMALL_FLUSH;
        let is_sync = is_small && pass.reason == WriteoutReason::Flush;
        let request = WriteoutRequest {
            cookie: NIL,
            connection: self.account,
            flags: if is_sync { BioFlags::SYNC } else { BioFlags::NONE },
            reason: pass.reason,
            max_blocks: pass.left.max(folio.blocks()),
            since: ctx.now,
        };
        let (_, blocks) = state.send_dirty(ctx, unit, 0, folio.blocks(), request);
        pass.all &= state.io.may_send(writeouts(device));
        pass.left = pass.left.saturating_sub(blocks);
        pass.sent_any |= blocks > 0;
    }

    fn end_pass(&mut self, state: &mut CacheState, device: usize) {
        let pass = &mut self.passes[device];
        assert!(pass.position <= pass.sorted.len() && pass.group != NIL, "a pass ends once");
        pass.all &= pass.position == pass.sorted.len();
        let group = std::mem::replace(&mut pass.group, NIL);
        pass.sorted.clear();
        pass.position = 0;
        if !state.dirty.group_exists(group) {
            return;
        }
        if pass.reason == WriteoutReason::Flush {
            // A turn that ended in its middle goes on there.
            let next = match pass.left {
                0 => group,
                _ => state.dirty.younger_group(group).unwrap_or(NIL),
            };
            let volume = state.dirty.group(group).volume;
            state.volumes[volume].set_cursor(next);
        }
        // Everything that was dirty when the pass began was sent: what is dirty now is younger. If something was left out, the group
        // keeps its age, and with it its place.
        if pass.all {
            state.dirty.requeue_group(pass.began, group);
        }
    }

    /// Begins a pass over the next group, if there is work.
    fn begin_pass(&mut self, state: &mut CacheState, now: Instant, device: usize) -> bool {
        let Some(work) = self.next_work(state, now, device) else {
            return false;
        };
        self.start_pass(state, now, device, work);
        true
    }

    /// Starts a pass over a group.
    fn start_pass(
        &mut self,
        state: &mut CacheState,
        now: Instant,
        device: usize,
        (group, reason, target): (u32, WriteoutReason, Option<u64>),
    ) {
        let chunk = state.dirty.throttle().chunk(DeviceId(device as u16));
        let Group { volume, index, folios, .. } = *state.dirty.group(group);
        debug_assert!(state.volumes.is_on(volume, device), "a flusher writes to its own device");
        let floor = if self.sparse_groups_wait { chunk / FLOOR_DIVISOR } else { 1 };
        state.dirty.set_group_floor(volume, floor.max(1));
        let most = in_flight_limit(self.units);
        // Flushes of several volumes have turns of an eighth of a second: a small one waits for no whole group of a large one.
        let waits = |&id: &VolumeId| {
            state.volumes.is_on(id, device) && state.volumes[id].flush_work().is_some()
        };
        let several =
            reason == WriteoutReason::Flush && state.volumes.ids().filter(waits).nth(1).is_some();
        let pass = &mut self.passes[device];
        assert!(pass.group == NIL && pass.sorted.is_empty(), "the last pass has ended");
        // A quarter of a chunk is an eighth of a second's worth: more is a queue that reads wait behind.
        pass.in_flight_max = (chunk / 4).clamp(most.min(512), most);
        (pass.group, pass.reason, pass.target) = (group, reason, target);
        pass.left = match reason {
            WriteoutReason::Flush if several => (chunk / 4).max(1),
            WriteoutReason::Flush => u32::MAX,
            _ => chunk,
        };
        (pass.sent_any, pass.position) = (false, 0);
        pass.last = (volume, index);
        pass.began = now;
        state.dirty.collect_group(&state.pool, group, &mut pass.sorted);
        pass.all = pass.sorted.len() as u32 == folios;
    }

    /// Returns the next group to write, the reason, and for a flush the last generation to write.
    fn next_work(
        &self,
        state: &mut CacheState,
        now: Instant,
        device: usize,
    ) -> Option<(u32, WriteoutReason, Option<u64>)> {
        if let Some((group, target)) = self.flush_work(state, device) {
            return Some((group, WriteoutReason::Flush, Some(target)));
        }
        if state.is_frozen() {
            let frames = state.dirty.wants_clean(device);
            let reason = if frames { WriteoutReason::Frames } else { WriteoutReason::Background };
            let needed = state.waits_for_writeout(device);
            return Some((self.oldest_group(state, device).filter(|_| needed)?, reason, None));
        }
        // A folio with one dirty block stays as a whole. Where such folios hold half the pool, reads would find nothing to evict.
        let pinned = state.dirty.group_units() > state.pool.limit() / 2;
        if state.dirty.wants_clean(device) || pinned {
            return Some((self.oldest_group(state, device)?, WriteoutReason::Frames, None));
        }
        if state.dirty.wants_periodic(device) {
            if let Some(group) = self.expired_group(state, now, device) {
                return Some((group, WriteoutReason::Periodic, None));
            }
            state.dirty.end_periodic(device);
        }
        if let Some(group) = self.pressed_group(state, device) {
            return Some((group, WriteoutReason::Background, None));
        }
        let sleeps = state.defects.flusher_sleeps();
        let over_background = state.dirty.over_background(device) && !sleeps;
        if let Some(group) = self.stream_group(state, device, over_background) {
            return Some((group, WriteoutReason::Background, None));
        }
        if over_background {
            let group = self.background_group(state, now, device)?;
            return Some((group, WriteoutReason::Background, None));
        }
        None
    }

    /// Iterates over the volumes of a device, beginning after that of the last pass.
    fn volumes_in_turn(
        &self,
        state: &CacheState,
        device: usize,
    ) -> impl Iterator<Item = VolumeId> + use<'_> {
        let volumes = state.volumes.len();
        let start = usize::from(self.passes[device].last.0.0) + 1;
        (start..volumes).chain(0..start.min(volumes)).map(|index| VolumeId(index as u16))
    }

    /// Returns a group of a volume for which a flush waits.
    fn flush_work(&self, state: &CacheState, device: usize) -> Option<(u32, u64)> {
        self.volumes_in_turn(state, device).find_map(|id| {
            if !state.volumes.is_on(id, device) {
                return None;
            }
            let volume = &state.volumes[id];
            let target = volume.flush_work()?;
            let cursor = volume.cursor();
            let continues =
                state.dirty.group_exists(cursor) && state.dirty.group(cursor).volume == id;
            let group = if continues { Some(cursor) } else { state.dirty.oldest_group(id) };
            Some((group?, target))
        })
    }

    /// Returns a group whose payer is pressed by its cap: the oldest one of the first groups of each volume, or else, where several
    /// payers share a volume, the oldest of the device.
    fn pressed_group(&self, state: &CacheState, device: usize) -> Option<u32> {
        let payers = state.dirty.payers();
        if !payers.has_pressed() {
            return None;
        }
        let ids = state.volumes.ids().filter(|&volume| state.volumes.is_on(volume, device));
        let pressed = ids.filter_map(|volume| {
            let by_age = std::iter::successors(state.dirty.oldest_group(volume), |&group| {
                state.dirty.younger_group(group)
            });
            let is_pressed = |&group: &u32| payers.is_pressed(state.dirty.group(group).export);
            by_age.take(LOOK_AHEAD).find(is_pressed)
        });
        let oldest = pressed.min_by_key(|&group| state.dirty.group(group).since);
        match oldest {
            None if payers.is_pressed_on(device) => self.oldest_group(state, device),
            found => found,
        }
    }

    /// Returns a filled group of a volume whose streams leave the cache behind them: it is written whatever else is dirty, in turn
    /// with the background's groups where those have work.
    fn stream_group(
        &self,
        state: &CacheState,
        device: usize,
        over_background: bool,
    ) -> Option<u32> {
        if !state.volumes.any_drops_behind() {
            return None;
        }
        let last = state.volumes.get(self.passes[device].last.0);
        if over_background && last.is_some_and(|volume| volume.drops_behind()) {
            return None;
        }
        self.volumes_in_turn(state, device)
            .filter(|&id| state.volumes.is_on(id, device) && state.volumes[id].drops_behind())
            .find_map(|id| state.dirty.first_filled_group(id))
    }

    /// Returns the group to write in the background: one that is too old (without `dirty_writeback_centisecs` nothing else searches
    /// for these), else a filled one, else the oldest.
    fn background_group(&self, state: &CacheState, now: Instant, device: usize) -> Option<u32> {
        let expired = self.expired_group(state, now, device);
        if expired.is_some() {
            return expired;
        }
        let filled = match state.dirty.has_many_sparse_units() {
            true => None,
            false => self.first_group(
                state,
                device,
                DirtyState::first_filled_group,
                DirtyState::group_filled_after,
            ),
        };
        filled.or_else(|| self.oldest_group(state, device))
    }

    /// Returns the group with the oldest data of a device, or one of the next oldest of its volume if that is next in the order
    /// of addresses.
    fn oldest_group(&self, state: &CacheState, device: usize) -> Option<u32> {
        self.first_group(state, device, DirtyState::oldest_group, DirtyState::younger_group)
    }

    /// Returns the oldest of the first groups of a device's volumes in one of their lists, or one of the next in the list of its
    /// volume if that is next in the order of addresses.
    fn first_group(
        &self,
        state: &CacheState,
        device: usize,
        first: fn(&DirtyState, VolumeId) -> Option<u32>,
        next: fn(&DirtyState, u32) -> Option<u32>,
    ) -> Option<u32> {
        let ids = state.volumes.ids().filter(|&volume| state.volumes.is_on(volume, device));
        let oldest = ids.filter_map(|volume| first(&state.dirty, volume));
        let oldest = oldest.min_by_key(|&group| state.dirty.group(group).since)?;
        let volume = state.dirty.group(oldest).volume;
        let (last_volume, last) = self.passes[device].last;
        let mut best: Option<u32> = None;
        let mut at = Some(oldest);
        for _ in 0..LOOK_AHEAD {
            let Some(group) = at else { break };
            let index = state.dirty.group(group).index;
            let is_next = last_volume == volume && index > last;
            if is_next && best.is_none_or(|best| state.dirty.group(best).index > index) {
                best = Some(group);
            }
            at = next(&state.dirty, group);
        }
        Some(best.unwrap_or(oldest))
    }

    /// Returns a group whose data is too old. The volumes take turns, so that a large one does not delay a small one.
    fn expired_group(&self, state: &CacheState, now: Instant, device: usize) -> Option<u32> {
        self.volumes_in_turn(state, device)
            .filter(|&volume| state.volumes.is_on(volume, device))
            .filter_map(|volume| state.dirty.oldest_group(volume))
            .find(|&group| state.dirty.is_expired(now, group))
    }
}
