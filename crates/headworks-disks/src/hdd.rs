//! A 7200 rpm disk with a write-back cache, calibrated to the disk of seed 000 as far as its tables
//! tell.
//!
//! ```text
//!   write -> queue -(cache space and link free?)-> accepted: 50 us and the link's time -> completed
//!                                                       |
//!                                                  write cache: extents, neighbours joined
//!                                                       |  the cheapest of the `window` oldest, one unit
//!                                                     head: seek a + b * sqrt(distance), settle, wait for the sector, write
//!                                                       |  the cheapest read, or one older than 500 ms
//!   read --(in the look-ahead segment? at once)----------+--> 50 us and the link's time -> completed
//! ```
//!
//! Writes complete when they are in the cache, and a full cache stops the queue of writes, so their
//! throughput is the rate at which the head destages the cached extents. Reads wait beside that
//! queue, as with NCQ. The head serves reads first; while a write waits for space, reads and
//! destages alternate, so neither starves.
//!
//! After a read the idle head reads on, up to 1 MiB: a read inside that segment needs no head, and a
//! read that continues it needs no new positioning. The next movement of the head ends the
//! look-ahead; the segment stays until the next read from the medium, or until a write overlaps it.
//!
//! With `flushes` a flush waits until the cache is empty, and everything that came after it waits for the flush: SATA's FLUSH CACHE is
//! not queued. Without it, as in the experiments with writes alone, a flush costs the controller's time.
//!
//! The parameters of the drive of seed 000 come from the single-job table of the seed alone ([`HddProfile::seed_000`]); the other table validates them.
//! Not modelled: reads answered from the write cache. Invariant: bytes in the cache, in transfer to it and under the head are at
//! most `cache_bytes`, except for a single command larger than that.

use std::collections::VecDeque;

use headworks_core::time::{MS, US};
use headworks_core::{Instant, Op};

use crate::device_model::{DeviceModel, ModelCommand, ModelCounters, transfer_ns};
use crate::events::EventQueue;
use crate::write_cache::WriteCache;

/// Idle time of the head between two neighbouring transfers that costs no revolution: a track
/// buffer hides it.
const SKEW_NS: u64 = 20_000;

/// Age at which a read goes before cheaper ones: shortest positioning alone can starve a read.
const READ_EXPIRE_NS: u64 = 500 * MS;

/// Bytes that the idle head reads beyond a read: the size of a segment in data sheets of drives.
const LOOK_AHEAD: u64 = 1 << 20;

/// Bytes of a segment that the drive keeps behind its end.
const SEGMENT_MAX: u64 = 4 << 20;

/// A window of reads without an end: more than any queue has.
const READS_MAX: usize = 1 << 20;

/// Parameters of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HddProfile {
    /// Capacity of the disk in bytes.
    pub capacity: u64,
    /// Time of one revolution in nanoseconds.
    pub turn_ns: u64,
    /// `a`: the shortest seek in nanoseconds.
    pub seek_ns: u64,
    /// `b`: additional time of a full-stroke seek; less by the square root of the distance.
    pub stroke_ns: u64,
    /// Settling time of the head before a write.
    pub settle_ns: u64,
    /// Transfer rate of the medium.
    pub media_bytes_per_second: u64,
    /// Controller overhead of each command.
    pub command_ns: u64,
    /// Transfer rate of the link.
    pub link_bytes_per_second: u64,
    /// Size of the write cache.
    pub cache_bytes: u64,
    /// Number of oldest extents from which the drive chooses.
    pub window: usize,
    /// Bytes destaged in one movement of the head.
    pub unit_bytes: u64,
    /// Number of oldest reads from which the drive chooses.
    pub read_window: usize,
    /// Whether a flush waits until the write cache is empty; otherwise it costs `command_ns` alone.
    pub flushes: bool,
}

impl HddProfile {
    /// The drive of seed 000, fitted to its single-job table with a cache of 16, 32 or 64 MiB: the
    /// table does not determine which, and each fits within 4 % (root mean square). Random search
    /// found the parameters: `headworks-lab run fit-hdd`.
    #[must_use]
    pub const fn seed_000(cache_mib: u64) -> Self {
        let (seek_us, stroke_us, settle_us, media_kb, window, unit_kib) = match cache_mib {
            ..=16 => (309, 12_030, 346, 113_300, 20, 1536),
            17..=32 => (692, 12_330, 73, 106_400, 26, 1152),
            _ => (740, 11_630, 80, 103_300, 27, 1408),
        };
        Self {
            capacity: 4_000_000_000_000,
            turn_ns: 8_333_333,
            seek_ns: seek_us * US,
            stroke_ns: stroke_us * US,
            settle_ns: settle_us * US,
            media_bytes_per_second: media_kb * 1000,
            command_ns: 50 * US,
            link_bytes_per_second: 500 << 20,
            cache_bytes: cache_mib << 20,
            window,
            unit_bytes: unit_kib << 10,
            read_window: READS_MAX,
            flushes: false,
        }
    }

    /// A quiet drive of 5400/min, 2 TB, as data sheets describe them: 11 ms mean seek, 80 MB/s in the middle of the medium, 16 MiB
    /// of cache. Nothing is fitted to it.
    #[must_use]
    pub const fn rpm_5400() -> Self {
        Self {
            capacity: 2_000_000_000_000,
            turn_ns: 11_111_111,
            seek_ns: 1_000 * US,
            stroke_ns: 18_500 * US,
            settle_ns: 200 * US,
            media_bytes_per_second: 80_000_000,
            cache_bytes: 16 << 20,
            window: 16,
            unit_bytes: 1 << 20,
            ..Self::seed_000(32)
        }
    }

    /// A drive of 10,000/min, 600 GB, as data sheets describe them: 3.8 ms mean seek, 140 MB/s in the middle of the medium, 32 MiB
    /// of cache. Nothing is fitted to it.
    #[must_use]
    pub const fn rpm_10k() -> Self {
        Self {
            capacity: 600_000_000_000,
            turn_ns: 6_000_000,
            seek_ns: 300 * US,
            stroke_ns: 6_400 * US,
            settle_ns: 100 * US,
            media_bytes_per_second: 140_000_000,
            window: 32,
            unit_bytes: 1 << 20,
            ..Self::seed_000(32)
        }
    }

    /// HGST Ultrastar 7K8, 8 TB, from its data sheet alone: 7200/min, 8 ms mean seek, 205 MB/s. The sheet does not say how much of the
    /// 256 MB of buffer caches writes: 64 MiB is an assumption.
    #[must_use]
    pub const fn ultrastar_7k8() -> Self {
        Self {
            capacity: 8_000_000_000_000,
            turn_ns: 8_333_333,
            seek_ns: 600 * US,
            stroke_ns: 13_875 * US,
            settle_ns: 0,
            media_bytes_per_second: 205_000_000,
            command_ns: 50 * US,
            link_bytes_per_second: 600_000_000,
            cache_bytes: 64 << 20,
            window: 4096,
            unit_bytes: 1 << 20,
            read_window: 32,
            flushes: true,
        }
    }

    /// Seagate ST2000DM006, 2 TB, fitted to what the authors of ublk-disksim measured on one, since it does not meet its data sheet:
    /// it seeks slowly, reorders few commands, and keeps few random writes in its cache.
    #[must_use]
    pub const fn st2000dm006() -> Self {
        Self {
            capacity: 2_000_000_000_000,
            seek_ns: 1_000 * US,
            stroke_ns: 22_500 * US,
            settle_ns: 0,
            media_bytes_per_second: 145_000_000,
            cache_bytes: 1 << 20,
            window: 10,
            read_window: 6,
            ..Self::ultrastar_7k8()
        }
    }

    /// The same drive, whose flushes wait until what it has in its cache is on the medium.
    #[must_use]
    pub const fn flushing(self) -> Self {
        Self { flushes: true, ..self }
    }

    /// Bytes that pass the head in a turn.
    #[must_use]
    pub const fn track_bytes(&self) -> u64 {
        let bytes = self.media_bytes_per_second as u128 * self.turn_ns as u128 / 1_000_000_000;
        bytes as u64
    }

    /// Mean seek time between two random positions: the mean square root of the distance is 8/15.
    #[must_use]
    pub const fn mean_seek_ns(&self) -> u64 {
        self.seek_ns + self.stroke_ns * 8 / 15 + self.settle_ns
    }
}

/// The next event of the drive.
#[derive(Clone, Copy, Debug)]
enum HddEvent {
    /// A write is in the cache.
    Taken(ModelCommand),
    /// The head has written this many bytes.
    Written(u64),
    /// The head has read the data of a command.
    Read(ModelCommand),
    /// The data of a read have reached the host, or a flush is done.
    Sent(u64),
}

/// The bytes around the last read that the drive has in its buffer, and reads on while idle.
#[derive(Clone, Copy, Debug)]
struct Segment {
    start: u64,
    /// The end of the segment at `since`, and the most that it may become.
    end: u64,
    since: Instant,
    end_max: u64,
}

/// A disk drive with its queue, cache and head.
#[derive(Debug)]
pub struct Hdd {
    profile: HddProfile,
    track_bytes: u64,
    stroke_root: u64,
    /// Writes that wait for the link and for space in the cache.
    line: VecDeque<ModelCommand>,
    /// The flush for which the cache is emptied; other commands wait.
    flushing: Option<u64>,
    /// Reads that wait for the head, with the times of their arrival, oldest first.
    reads: Vec<(Instant, ModelCommand)>,
    /// The last movement of the head served a read.
    read_last: bool,
    segment: Option<Segment>,
    cache: WriteCache,
    /// Cache bytes reserved but not in the cache: in transfer to it, or under the head.
    reserved: u64,
    link_busy: bool,
    head_busy: bool,
    head_at: u64,
    head_since: Instant,
    events: EventQueue<HddEvent>,
    counters: ModelCounters,
}

impl Hdd {
    /// An idle drive with the head at byte 0.
    #[must_use]
    pub fn new(profile: HddProfile) -> Self {
        Self {
            profile,
            track_bytes: profile.track_bytes(),
            stroke_root: (profile.capacity / 512).isqrt(),
            line: VecDeque::with_capacity(256),
            flushing: None,
            reads: Vec::with_capacity(256),
            read_last: false,
            segment: None,
            cache: WriteCache::default(),
            reserved: 0,
            link_busy: false,
            head_busy: false,
            head_at: 0,
            head_since: Instant(0),
            events: EventQueue::with_capacity(64),
            counters: ModelCounters::default(),
        }
    }

    /// Starts every transfer and movement that can start.
    fn advance(&mut self, now: Instant) {
        while !self.link_busy
            && self.flushing.is_none()
            && let Some(&order) = self.line.front()
        {
            let len = u64::from(order.len);
            let used = self.cache.bytes() + self.reserved;
            match order.op {
                Op::Write if used > 0 && used + len > self.profile.cache_bytes => break,
                Op::Write => {
                    self.reserved += len;
                    self.link_busy = true;
                    self.end_segment_under(order.offset, len);
                    let takes = transfer_ns(len, self.profile.link_bytes_per_second);
                    let at = now.after(self.profile.command_ns + takes);
                    self.events.push(at, HddEvent::Taken(order));
                }
                Op::Flush if self.profile.flushes => self.flushing = Some(order.token),
                // Not calibrated: other commands cost the controller overhead alone.
                _ => self
                    .events
                    .push(now.after(self.profile.command_ns), HddEvent::Sent(order.token)),
            }
            self.line.pop_front();
        }
        if self.cache.bytes() + self.reserved == 0
            && let Some(token) = self.flushing.take()
        {
            self.events.push(now.after(self.profile.command_ns), HddEvent::Sent(token));
            return self.advance(now);
        }
        if self.flushing.is_none() {
            self.serve_from_segment(now);
        }
        if !self.head_busy {
            self.start_head(now);
        }
    }

    fn start_head(&mut self, now: Instant) {
        // A write that waits for space gets every second movement.
        let write_waits = !self.line.is_empty() && !self.link_busy && self.cache.bytes() > 0;
        let writes_turn = write_waits && self.read_last;
        if self.reads.is_empty() || writes_turn || self.flushing.is_some() {
            self.start_destage(now);
        } else {
            self.start_read(now);
        }
    }

    /// Starts the oldest read if it is too old, otherwise the cheapest.
    fn start_read(&mut self, now: Instant) {
        let segment = self.grow_segment(now);
        let cost = |(_, (_, order)): &(usize, &(Instant, ModelCommand))| {
            self.read_on_ns(now, segment, order)
                .unwrap_or_else(|| self.position_ns(now, order.offset, 0))
        };
        let index = match self.reads.first() {
            Some((arrived, _)) if now.since(*arrived) > READ_EXPIRE_NS => 0,
            _ => {
                let seen = self.reads.iter().take(self.profile.read_window).enumerate();
                seen.min_by_key(cost).map_or(0, |(index, _)| index)
            }
        };
        let (_, order) = self.reads.remove(index);
        let end = order.offset + u64::from(order.len);
        let (start, at) = match (segment, self.read_on_ns(now, segment, &order)) {
            (Some(segment), Some(takes)) => {
                self.counters.media_bytes += end.saturating_sub(segment.end);
                let at = now.after(takes);
                (self.head_busy, self.head_at, self.head_since) = (true, end, at);
                (segment.start.max(end.saturating_sub(SEGMENT_MAX)), at)
            }
            _ => (order.offset, self.move_head(now, order.offset, order.len.into(), 0)),
        };
        self.segment = Some(Segment { start, end, since: at, end_max: end + LOOK_AHEAD });
        self.read_last = true;
        self.events.push(at, HddEvent::Read(order));
    }

    /// Destages the cheapest of the oldest extents.
    fn start_destage(&mut self, now: Instant) {
        let settle = self.profile.settle_ns;
        let oldest = self.cache.oldest(self.profile.window);
        let Some(start) = oldest.min_by_key(|&start| self.position_ns(now, start, settle)) else {
            return;
        };
        // The head leaves: the segment keeps what it has.
        self.segment = self.grow_segment(now).map(|it| Segment { end_max: it.end, ..it });
        let len = self.cache.take_front(start, self.profile.unit_bytes);
        self.reserved += len;
        self.read_last = false;
        let at = self.move_head(now, start, len, settle);
        self.events.push(at, HddEvent::Written(len));
    }

    /// Adds to the segment what the head has read ahead until `now`.
    fn grow_segment(&mut self, now: Instant) -> Option<Segment> {
        let segment = self.segment.as_mut()?;
        let ahead = u128::from(now.since(segment.since))
            * u128::from(self.profile.media_bytes_per_second)
            / 1_000_000_000;
        let end = segment.end_max.min(segment.end.saturating_add(ahead as u64));
        self.counters.media_bytes += end - segment.end;
        (segment.end, segment.since) = (end, segment.since.max(now));
        Some(*segment)
    }

    /// Time until the head that reads ahead has read the last byte of `order`; `None` if the look
    /// ahead does not lead there.
    fn read_on_ns(
        &self,
        now: Instant,
        segment: Option<Segment>,
        order: &ModelCommand,
    ) -> Option<u64> {
        let segment = segment.filter(|it| it.start <= order.offset && order.offset <= it.end)?;
        let missing = (order.offset + u64::from(order.len)).saturating_sub(segment.end);
        let transfer = transfer_ns(missing, self.profile.media_bytes_per_second);
        // A head that has stopped waits for the sector like any other.
        (segment.end < segment.end_max).then(|| segment.since.since(now) + transfer)
    }

    /// Forgets the segment if a write of `len` bytes at `offset` makes a part of it stale.
    fn end_segment_under(&mut self, offset: u64, len: u64) {
        let overlaps = |it: &Segment| offset < it.end_max && it.start < offset + len;
        if self.segment.as_ref().is_some_and(overlaps) {
            self.segment = None;
        }
    }

    /// Sends the reads whose data are in the segment.
    fn serve_from_segment(&mut self, now: Instant) {
        // While the head reads, the segment is not there yet.
        if self.reads.is_empty() || (self.head_busy && self.read_last) {
            return;
        }
        let Some(segment) = self.grow_segment(now) else {
            return;
        };
        let mut last_end = 0;
        self.reads.retain(|(_, order)| {
            let end = order.offset + u64::from(order.len);
            let inside = segment.start <= order.offset && end <= segment.end;
            if inside {
                last_end = last_end.max(end);
                let takes = transfer_ns(order.len.into(), self.profile.link_bytes_per_second);
                let at = now.after(self.profile.command_ns + takes);
                self.events.push(at, HddEvent::Sent(order.token));
            }
            !inside
        });
        if last_end > 0 && !self.head_busy {
            self.read_on(now, segment, last_end);
        }
    }

    /// The idle head reads on behind a hit that ended at `last_end`.
    fn read_on(&mut self, now: Instant, segment: Segment, last_end: u64) {
        let end_max = segment.end_max.max(last_end + LOOK_AHEAD);
        let start = segment.start.max(segment.end.saturating_sub(SEGMENT_MAX));
        // A head that had stopped, or was elsewhere, waits for the end of the segment.
        let since = match segment.end < segment.end_max {
            true => segment.since,
            false => now.after(self.position_ns(now, segment.end, 0)),
        };
        self.segment = Some(Segment { start, end_max, since, ..segment });
    }

    /// Time until byte `to` is under the head.
    fn position_ns(&self, now: Instant, to: u64, settle_ns: u64) -> u64 {
        let distance = self.head_at.abs_diff(to) / 512;
        if self.head_at == to && now.since(self.head_since) <= SKEW_NS {
            return 0;
        }
        let p = &self.profile;
        let seek = match distance {
            0 => 0,
            _ => p.seek_ns + p.stroke_ns * distance.isqrt() / self.stroke_root + settle_ns,
        };
        let angle = (now.0 + seek) % p.turn_ns;
        let target = (to % self.track_bytes) * p.turn_ns / self.track_bytes;
        seek + (target + p.turn_ns - angle) % p.turn_ns
    }

    /// Positions the head at `start` and transfers `len` bytes; returns the end time.
    fn move_head(&mut self, now: Instant, start: u64, len: u64, settle_ns: u64) -> Instant {
        let position = self.position_ns(now, start, settle_ns);
        self.counters.positionings += u64::from(position > 0);
        self.counters.media_bytes += len;
        let at = now.after(position + transfer_ns(len, self.profile.media_bytes_per_second));
        (self.head_busy, self.head_at, self.head_since) = (true, start + len, at);
        at
    }
}

impl DeviceModel for Hdd {
    fn submit(&mut self, now: Instant, order: ModelCommand) {
        match order.op {
            Op::Read => self.reads.push((now, order)),
            _ => self.line.push_back(order),
        }
        self.advance(now);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.events.next_at()
    }

    fn on_timeout(&mut self, now: Instant, done: &mut Vec<u64>) {
        while let Some((at, step)) = self.events.pop_due(now) {
            match step {
                HddEvent::Taken(order) => {
                    self.link_busy = false;
                    self.reserved -= u64::from(order.len);
                    self.cache.insert(order.offset, order.len.into());
                    done.push(order.token);
                }
                HddEvent::Written(len) => {
                    self.head_busy = false;
                    self.reserved -= len;
                }
                HddEvent::Read(order) => {
                    self.head_busy = false;
                    let takes = transfer_ns(order.len.into(), self.profile.link_bytes_per_second);
                    let at = at.after(self.profile.command_ns + takes);
                    self.events.push(at, HddEvent::Sent(order.token));
                }
                HddEvent::Sent(token) => done.push(token),
            }
            self.advance(at);
        }
    }

    fn counters(&self) -> ModelCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests;
