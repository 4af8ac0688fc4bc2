//! The flushers: what is written out, when, and in which order. One for each device; writers never do it.
//!
//! Work comes from four sides, in this order: flushes that wait, frames that are wanted, data that are too old, too much that
//! is dirty. A pass takes one extent group, oldest first but in the order of addresses among the old ones, and sends its dirty
//! folios in order, up to the throttle's chunk; then the next group has its turn. Neighbours meet in the plug and become large
//! requests. How much is on its way at once is bounded, and a part of the cache's bios is kept for fills, so reads go on.
//!
//! ```text
//!   idle --work--> pass: group's dirty folios, sorted --> sent one by one --bound--> waits for an answer
//!     ^                                                        | chunk used up, or the end
//!     '--------- nothing more to do --------- next group <-----'
//! ```
//!
//! Invariants: a block is in one write-out at a time; a flush is not kept waiting by what is dirtied after it came; old data
//! are found even when nothing else happens (a timer, as long as anything is dirty).

use crate::bio::{BioFlags, DeviceId, VolumeId};
use crate::cache::device_io::write_outs;
use crate::cache::dirty::groups::{GROUP_SHIFT, Group};
use crate::cache::dirty::writeout::{WriteoutReason, WriteoutRequest};
use crate::cache::pool::folio::Folio;
use crate::cache::{Cache, TimerKind, Turn};
use crate::error::IoError;
use crate::slab::NIL;
use crate::time::{Instant, MS};

/// Groups that are looked at for the next one in the order of addresses, or for an old one.
const LOOK_AHEAD: usize = 16;
/// Nanoseconds of a hundredth of a second.
const CENTISEC: u64 = 10 * MS;

/// A device's flusher.
#[derive(Debug)]
pub(in crate::cache) struct Flusher {
    account: u32,
    /// Folios of the pass, in order of address, and how many of them were dealt with.
    sorted: Vec<u32>,
    position: usize,
    group: u32,
    reason: WriteoutReason,
    /// Only folios up to this generation.
    target: Option<u64>,
    /// When the pass began, and whether nothing of the group was left out.
    began: Instant,
    all: bool,
    /// Blocks that the pass may still send.
    left: u32,
    sent_any: bool,
    /// Where the last pass was, for the order of addresses.
    last: (VolumeId, u64),
    /// Blocks on their way, and how many may be.
    in_flight: u32,
    in_flight_max: u32,
    /// Frames are wanted.
    wanted: bool,
    /// Old data are to be looked for.
    periodic: bool,
    /// Blocks of the device that are held.
    held: u32,
    /// Write-outs that passed their time-out and were not answered yet.
    late: u32,
    /// So much is held, or so late, that writers are not kept waiting for room: the reason.
    stuck: Option<IoError>,
}

/// Blocks that may be on their way at once at most: 32 MiB, a quarter of a small pool.
fn in_flight_most(units: u32) -> u32 {
    (units / 4).clamp(64, 8192)
}

impl Flusher {
    pub fn new(units: u32, account: u32) -> Self {
        Self {
            account,
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
            in_flight: 0,
            in_flight_max: in_flight_most(units),
            wanted: false,
            periodic: false,
            held: 0,
            late: 0,
            stuck: None,
        }
    }

    /// Why room for more dirty data is not to be waited for, if so.
    pub fn stuck(&self) -> Option<IoError> {
        self.stuck
    }

    /// Blocks that are held.
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Something is to be written before the next time at which it would look.
    pub fn look_at_once(&mut self) {
        self.periodic = true;
    }

    /// Blocks that are on their way.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Blocks went out.
    pub fn went_out(&mut self, blocks: u32) {
        self.in_flight += blocks;
    }

    /// Blocks came back.
    pub fn came_back(&mut self, blocks: u32) {
        self.in_flight -= blocks;
    }
}

impl Cache {
    /// Whether writers of a volume are not to wait for room.
    pub(in crate::cache) fn is_stuck(&self, volume: VolumeId) -> bool {
        let device = self.volumes[usize::from(volume.0)].device;
        self.flushers[usize::from(device.0)].stuck.is_some()
    }

    /// Blocks of a volume are held, or no longer.
    pub(in crate::cache) fn count_held(&mut self, volume: VolumeId, more: u32, less: u32) {
        let entry = &mut self.volumes[usize::from(volume.0)];
        let before = entry.held > 0;
        entry.held = entry.held + more - less;
        self.held_news = self.held_news.wrapping_add(u32::from(before != (entry.held > 0)));
        let (device, error) = (usize::from(entry.device.0), entry.last_error);
        let flusher = &mut self.flushers[device];
        flusher.held = flusher.held + more - less;
        self.judge_stuck(device, error);
    }

    /// A write-out passed its time-out, or one that had was answered.
    pub(in crate::cache) fn count_late(&mut self, volume: VolumeId, more: u32, less: u32) {
        let device = usize::from(self.volumes[usize::from(volume.0)].device.0);
        let flusher = &mut self.flushers[device];
        flusher.late = flusher.late + more - less;
        self.judge_stuck(device, IoError::TimedOut);
    }

    /// Half of what may be dirty is held, or the device does not answer: nobody knows when there will be room.
    fn judge_stuck(&mut self, device: usize, error: IoError) {
        let flusher = &mut self.flushers[device];
        let most = (self.throttle.reserve_max(DeviceId(device as u16)) / 2).max(1);
        let stuck = flusher.late > 0 || flusher.held >= most;
        let was = flusher.stuck;
        flusher.stuck = stuck.then(|| was.unwrap_or(error));
        if stuck && was.is_none() {
            self.free_writers(device);
        }
    }

    /// The same, when what may be dirty has changed and not what is held.
    pub(in crate::cache) fn judge_again(&mut self, device: usize) {
        let held = self
            .volumes
            .iter()
            .find(|volume| usize::from(volume.device.0) == device && volume.held > 0);
        let error = held.map_or(IoError::TimedOut, |volume| volume.last_error);
        self.judge_stuck(device, error);
    }

    /// Clean folios are wanted: frames are short.
    pub(in crate::cache) fn want_clean(&mut self, turn: &mut Turn) {
        let _ = turn;
        self.flushers.iter_mut().for_each(|flusher| flusher.wanted = true);
    }

    /// The time to look for old data has come.
    pub(in crate::cache) fn on_periodic(&mut self, turn: &mut Turn) {
        let interval = u64::from(self.dirty.dirty_writeback_centisecs) * CENTISEC;
        self.periodic_at = Some(turn.now.after(interval));
        self.flushers.iter_mut().for_each(|flusher| flusher.periodic = true);
    }

    /// When old data are looked for next; never while nothing is dirty.
    pub(in crate::cache) fn next_periodic(&mut self, now: Instant) -> Option<Instant> {
        if self.groups.is_empty() || self.dirty.dirty_writeback_centisecs == 0 {
            self.periodic_at = None;
            return None;
        }
        let interval = u64::from(self.dirty.dirty_writeback_centisecs) * CENTISEC;
        Some(*self.periodic_at.get_or_insert(now.after(interval)))
    }

    /// Lets every flusher send what it may.
    pub(in crate::cache) fn run_flushers(&mut self, turn: &mut Turn) {
        if self.groups.is_empty() {
            self.flushers.iter_mut().for_each(|f| (f.wanted, f.periodic) = (false, false));
            return;
        }
        for device in 0..self.flushers.len() {
            self.run_flusher(turn, device);
        }
        if self.lines.frames.head().is_none() {
            self.flushers.iter_mut().for_each(|flusher| flusher.wanted = false);
        }
    }

    fn run_flusher(&mut self, turn: &mut Turn, device: usize) {
        let flusher = &self.flushers[device];
        // Topped up at every answer, each turn would send as little as came back, and neighbours would never meet in the plug.
        if flusher.in_flight > flusher.in_flight_max - flusher.in_flight_max / 4 {
            return;
        }
        // Groups in a row of which nothing could be sent: all of them is on its way already.
        let mut barren = 0;
        loop {
            let room = self.may_write_out(device);
            let flusher = &self.flushers[device];
            if !room || flusher.in_flight >= flusher.in_flight_max {
                return;
            }
            if flusher.position < flusher.sorted.len() && flusher.left > 0 {
                self.send_next(turn, device);
                continue;
            }
            if flusher.group != NIL {
                barren = if flusher.sent_any { 0 } else { barren + 1 };
                self.end_pass(device);
            }
            if barren > 2 * LOOK_AHEAD {
                // Enough for one turn: the next goes on, which an answer brings, or nobody.
                if self.flushers[device].in_flight == 0 {
                    turn.timers.set(self.timer_base + TimerKind::Turn as u32, turn.now);
                }
                return;
            }
            if !self.begin_pass(turn.now, device) {
                return;
            }
        }
    }

    /// Sends the next folio of the pass.
    fn send_next(&mut self, turn: &mut Turn, device: usize) {
        let flusher = &mut self.flushers[device];
        let unit = flusher.sorted[flusher.position];
        flusher.position += 1;
        let folio = self.folios[unit];
        // It may have been cleaned, dropped or made anew since the pass began.
        if !folio.is(Folio::PRESENT) || folio.group != flusher.group {
            return;
        }
        let volume = &self.volumes[usize::from(folio.key.volume().0)];
        if flusher.target.is_some_and(|target| volume.whole(folio.generation) > target) {
            flusher.all = false;
            return;
        }
        let most = flusher.left.max(folio.blocks());
        let connection = flusher.account;
        let (flags, reason) = (BioFlags::NONE, flusher.reason);
        let sent = WriteoutRequest { cookie: NIL, connection, flags, reason, most };
        let (_, blocks) = self.send_dirty(turn, unit, 0, folio.blocks(), sent);
        let room = self.may_send(write_outs(device));
        let flusher = &mut self.flushers[device];
        flusher.all &= room;
        flusher.left = flusher.left.saturating_sub(blocks);
        flusher.sent_any |= blocks > 0;
    }

    fn end_pass(&mut self, device: usize) {
        let flusher = &mut self.flushers[device];
        flusher.all &= flusher.position == flusher.sorted.len();
        let group = std::mem::replace(&mut flusher.group, NIL);
        flusher.sorted.clear();
        flusher.position = 0;
        if !self.groups.exists(group) {
            return;
        }
        if flusher.reason == WriteoutReason::Sync {
            let volume = usize::from(self.groups[group].volume.0);
            self.volumes[volume].cursor = self.groups.younger(group).unwrap_or(NIL);
        }
        // All that was dirty when the pass began was sent or is on its way: what is dirty now came since. If some of it was left,
        // the group keeps its age, and with it its place.
        if flusher.all {
            self.groups.requeue(flusher.began, group);
        }
    }

    /// Chooses the next group, if there is work; its dirty folios are sorted.
    fn begin_pass(&mut self, now: Instant, device: usize) -> bool {
        let Some((group, reason, target)) = self.next_work(now, device) else {
            return false;
        };
        let chunk = match reason {
            WriteoutReason::Sync => u32::MAX,
            _ => self.throttle.chunk(DeviceId(device as u16)),
        };
        let Group { volume, index, .. } = self.groups[group];
        let most = in_flight_most(self.folios.units());
        // An eighth of a second's worth: more is a queue that every answer, and a reader, waits behind.
        let worth = self.throttle.chunk(DeviceId(device as u16)) / 4;
        let flusher = &mut self.flushers[device];
        flusher.in_flight_max = worth.clamp(most.min(512), most);
        (flusher.group, flusher.reason, flusher.target) = (group, reason, target);
        (flusher.left, flusher.sent_any, flusher.position) = (chunk, false, 0);
        flusher.last = (volume, index);
        flusher.began = now;
        let mut sorted = std::mem::take(&mut flusher.sorted);
        self.collect(group, &mut sorted);
        let flusher = &mut self.flushers[device];
        flusher.all = sorted.len() as u32 == self.groups[group].folios;
        flusher.sorted = sorted;
        true
    }

    /// The dirty folios of a group in the order of their addresses, as many as there is room for.
    pub(in crate::cache) fn collect(&self, group: u32, sorted: &mut Vec<u32>) {
        sorted.clear();
        let mut unit = self.groups[group].head;
        while unit != NIL && sorted.len() < sorted.capacity() {
            sorted.push(unit);
            unit = self.folios[unit].dirty_next;
        }
        sorted.sort_unstable_by_key(|&unit| self.folios[unit].key.word());
    }

    fn next_work(
        &mut self,
        now: Instant,
        device: usize,
    ) -> Option<(u32, WriteoutReason, Option<u64>)> {
        if let Some((group, target)) = self.sync_work(device) {
            return Some((group, WriteoutReason::Sync, Some(target)));
        }
        // A folio with one dirty block stays whole: when such hold half the pool, reads would soon find nothing to evict.
        let pinned = self.groups.units() > self.folios.units() / 2;
        if self.flushers[device].wanted || pinned {
            return Some((self.oldest_group(device)?, WriteoutReason::Frames, None));
        }
        if self.flushers[device].periodic {
            if let Some(group) = self.expired_group(now, device) {
                return Some((group, WriteoutReason::Periodic, None));
            }
            self.flushers[device].periodic = false;
        }
        if self.throttle.over_background(DeviceId(device as u16)) {
            return Some((self.oldest_group(device)?, WriteoutReason::Background, None));
        }
        None
    }

    /// A device's volumes, each its turn: the one behind that of the last pass first.
    fn in_turn(&self, device: usize) -> impl Iterator<Item = usize> + use<'_> {
        let start = usize::from(self.flushers[device].last.0.0) + 1;
        let all = (start..self.volumes.len()).chain(0..start.min(self.volumes.len()));
        all.filter(move |&index| usize::from(self.volumes[index].device.0) == device)
    }

    /// A group of a volume for which a flush waits.
    fn sync_work(&self, device: usize) -> Option<(u32, u64)> {
        self.in_turn(device).find_map(|index| {
            let volume = &self.volumes[index];
            let target = volume.target.filter(|&target| volume.has_dirty(target))?;
            let (id, cursor) = (VolumeId(index as u16), volume.cursor);
            let goes_on = self.groups.exists(cursor) && self.groups[cursor].volume == id;
            let group = if goes_on { Some(cursor) } else { self.groups.oldest(id) };
            Some((group?, target))
        })
    }

    /// The next group in the order of addresses among the oldest of the volume that has the oldest; the oldest itself if its
    /// time has come.
    fn oldest_group(&self, device: usize) -> Option<u32> {
        let ids = (0..self.volumes.len())
            .filter(|&index| usize::from(self.volumes[index].device.0) == device);
        let oldest = ids.filter_map(|index| self.groups.oldest(VolumeId(index as u16)));
        let oldest = oldest.min_by_key(|&group| self.groups[group].since)?;
        let volume = self.groups[oldest].volume;
        let (last_volume, last) = self.flushers[device].last;
        let mut best: Option<u32> = None;
        let mut at = Some(oldest);
        for _ in 0..LOOK_AHEAD {
            let Some(group) = at else { break };
            let index = self.groups[group].index;
            let next = last_volume == volume && index > last;
            if next && best.is_none_or(|best| self.groups[best].index > index) {
                best = Some(group);
            }
            at = self.groups.younger(group);
        }
        Some(best.unwrap_or(oldest))
    }

    /// A group whose data are too old, of each volume in turn: a large one does not keep a small one waiting.
    fn expired_group(&self, now: Instant, device: usize) -> Option<u32> {
        let expire = u64::from(self.dirty.dirty_expire_centisecs) * CENTISEC;
        let oldest = |index: usize| self.groups.oldest(VolumeId(index as u16));
        self.in_turn(device).filter_map(oldest).find(|&id| {
            let group = &self.groups[id];
            group.overdue || now.since(group.since) >= expire
        })
    }
}
