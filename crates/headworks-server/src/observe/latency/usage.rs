//! What used a shard's devices, cache and buffers in each of the last seconds.
//!
//! ```text
//!   counters of volumes, connections, exports --tick, once a second--> [UsageSecond; 64] --`during`--> Usage of some seconds
//! ```
//!
//! Nothing is counted for a request: a tick takes the difference of counters that exist, and a shard that does nothing does not
//! tick. A second keeps the largest users of each kind, so its size is fixed; the sums are of all users.
//!
//! Invariants: a second has at most [`USERS`] entries of a kind, each larger than those that were left out; its sum of a kind is at
//! least the sum of its entries.

use headworks_core::stats::DeviceUse;
use headworks_core::{DeviceId, ExportId, Instant, VolumeId};

/// Seconds that are kept; a minute of them is read.
const SECONDS: usize = 64;
const SECOND_NS: u64 = 1_000_000_000;
/// Users of a kind that a second keeps.
pub const USERS: usize = 12;

/// What a volume used of its device, or has dirty in the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeUse {
    /// The volume whose requests they were.
    pub volume: VolumeId,
    /// The device of the volume.
    pub device: DeviceId,
    /// Tags and time of the device.
    pub used: DeviceUse,
}

/// What a connection had in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionUse {
    /// Id of the connection.
    pub connection: u32,
    /// The export that it uses.
    pub export: ExportId,
    /// Nanoseconds of its completed requests, summed: 32 requests in flight are 32 seconds a second.
    pub busy_ns: u64,
    /// Bytes of its completed writes.
    pub written: u64,
}

/// Bytes of something that an export holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BytesHeld {
    /// The export that holds them.
    pub export: ExportId,
    /// Its bytes of a second; summed over seconds in a [`Usage`].
    pub bytes: u64,
}

/// The largest entries of a kind.
#[derive(Clone, Copy, Debug)]
struct Largest<T> {
    entries: [T; USERS],
    used: usize,
}

impl<T: Copy + Default> Default for Largest<T> {
    fn default() -> Self {
        Self { entries: [T::default(); USERS], used: 0 }
    }
}

impl<T: Copy> Largest<T> {
    /// Keeps `entry` if it is among the largest.
    fn keep(&mut self, entry: T, size: impl Fn(&T) -> u64) {
        if size(&entry) == 0 {
            return;
        }
        if self.used < USERS {
            self.entries[self.used] = entry;
            self.used += 1;
        } else if let Some(smallest) = self.entries.iter_mut().min_by_key(|entry| size(entry))
            && size(smallest) < size(&entry)
        {
            *smallest = entry;
        }
    }

    fn all(&self) -> &[T] {
        &self.entries[..self.used]
    }
}

/// The use of one second.
#[derive(Clone, Copy, Debug, Default)]
struct UsageSecond {
    from: Instant,
    to: Instant,
    volumes: Largest<VolumeUse>,
    connections: Largest<ConnectionUse>,
    dirty: Largest<BytesHeld>,
    buffers: Largest<BytesHeld>,
}

/// The use of some seconds together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Seconds that are in it.
    pub seconds: u64,
    /// What volumes used of the devices of this shard, the largest user of tags first.
    pub volumes: Vec<VolumeUse>,
    /// What connections of this shard had in flight, the largest first.
    pub connections: Vec<ConnectionUse>,
    /// What exports wrote, and what of their data was dirty in the cache of this shard at the end of each second; the largest first.
    pub dirty: Vec<BytesHeld>,
    /// Request buffers of exports on this shard, the largest first.
    pub buffers: Vec<BytesHeld>,
}

/// The use of each of the last seconds, and the counters at the end of the last one.
#[derive(Debug)]
pub struct UsageLog {
    seconds: Box<[UsageSecond]>,
    next: usize,
    /// By volume.
    volumes: Vec<DeviceUse>,
    /// By slot: the connection, and its counters.
    connections: Vec<(u32, u64, u64)>,
    /// By export: bytes written in the second that ends.
    written: Vec<u64>,
    ended: Instant,
}

impl Default for UsageLog {
    fn default() -> Self {
        Self {
            seconds: vec![UsageSecond::default(); SECONDS].into_boxed_slice(),
            next: 0,
            volumes: Vec::new(),
            connections: Vec::new(),
            written: Vec::new(),
            ended: Instant(0),
        }
    }
}

/// A second that ends: counters are entered one by one.
pub struct EndingSecond<'a> {
    log: &'a mut UsageLog,
    second: UsageSecond,
}

impl UsageLog {
    /// Ends a second at `now`.
    pub fn end_second(&mut self, now: Instant) -> EndingSecond<'_> {
        let second = UsageSecond { from: self.ended, to: now, ..UsageSecond::default() };
        self.ended = now;
        EndingSecond { log: self, second }
    }

    /// The use of the seconds in which one of `times` lies at least in part. The second that follows is one of them: what was in
    /// flight at the end of a time has completed there.
    #[must_use]
    pub fn during(&self, times: &[(Instant, Instant)]) -> Usage {
        let mut usage = Usage::default();
        for second in self.seconds.iter().filter(|second| second.to > Instant(0)) {
            let is_in = |&(from, to): &(Instant, Instant)| {
                from < second.to && second.from.0 < to.0.saturating_add(SECOND_NS)
            };
            if times.iter().any(is_in) {
                usage.add(second);
            }
        }
        usage.volumes.sort_by_key(|volume| u64::MAX - volume.used.tag_ns);
        usage.connections.sort_by_key(|connection| u64::MAX - connection.busy_ns);
        usage.dirty.sort_by_key(|held| u64::MAX - held.bytes);
        usage.buffers.sort_by_key(|held| u64::MAX - held.bytes);
        usage
    }
}

impl Usage {
    fn add(&mut self, second: &UsageSecond) {
        self.seconds += 1;
        for one in second.volumes.all() {
            match self.volumes.iter_mut().find(|sum| sum.volume == one.volume) {
                Some(sum) => sum.used.add(one.used),
                None => self.volumes.push(*one),
            }
        }
        for one in second.connections.all() {
            let same = |sum: &&mut ConnectionUse| sum.connection == one.connection;
            match self.connections.iter_mut().find(same) {
                Some(sum) => {
                    sum.busy_ns += one.busy_ns;
                    sum.written += one.written;
                }
                None => self.connections.push(*one),
            }
        }
        for (sums, held) in [(&mut self.dirty, &second.dirty), (&mut self.buffers, &second.buffers)]
        {
            for one in held.all() {
                match sums.iter_mut().find(|sum| sum.export == one.export) {
                    Some(sum) => sum.bytes += one.bytes,
                    None => sums.push(*one),
                }
            }
        }
    }
}

impl EndingSecond<'_> {
    /// Enters the counters of a volume of this shard's devices.
    pub fn volume(&mut self, volume: VolumeId, device: DeviceId, used: DeviceUse) {
        let index = usize::from(volume.0);
        if self.log.volumes.len() <= index {
            self.log.volumes.resize(index + 1, DeviceUse::default());
        }
        let before = std::mem::replace(&mut self.log.volumes[index], used);
        let used = used.since(before);
        let time = |entry: &VolumeUse| entry.used.tag_ns.max(entry.used.device_ns);
        self.second.volumes.keep(VolumeUse { volume, device, used }, time);
    }

    /// Enters the counters of the connection in a slot: nanoseconds of its completed requests, and bytes of the writes.
    pub fn connection(
        &mut self,
        slot: usize,
        (connection, export): (u32, ExportId),
        (busy_ns, written): (u64, u64),
    ) {
        if self.log.connections.len() <= slot {
            self.log.connections.resize(slot + 1, (0, 0, 0));
        }
        let counters = (connection, busy_ns, written);
        let before = std::mem::replace(&mut self.log.connections[slot], counters);
        let (busy_before, written_before) =
            if before.0 == connection { (before.1, before.2) } else { (0, 0) };
        let busy_ns = busy_ns.saturating_sub(busy_before);
        let written = written.saturating_sub(written_before);
        let entry = ConnectionUse { connection, export, busy_ns, written };
        self.second.connections.keep(entry, |entry| entry.busy_ns);
        let index = usize::from(export.0);
        if self.log.written.len() <= index {
            self.log.written.resize(index + 1, 0);
        }
        self.log.written[index] += written;
    }

    /// Enters the dirty bytes of an export, after its connections.
    pub fn dirty(&mut self, export: ExportId, bytes: u64) {
        let written = self.log.written.get_mut(usize::from(export.0)).map_or(0, std::mem::take);
        let bytes = bytes + written;
        self.second.dirty.keep(BytesHeld { export, bytes }, |entry| entry.bytes);
    }

    /// Enters the bytes of request buffers that the connections of an export hold.
    pub fn buffers(&mut self, export: ExportId, bytes: u64) {
        self.second.buffers.keep(BytesHeld { export, bytes }, |entry| entry.bytes);
    }

    /// Keeps the second that has ended.
    pub fn keep(self) {
        let Self { log, second } = self;
        log.seconds[log.next] = second;
        log.next = (log.next + 1) % SECONDS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEC: u64 = SECOND_NS;

    fn used(ns: u64) -> DeviceUse {
        DeviceUse { tag_ns: 2 * ns, device_ns: ns, tag_squares: ns }
    }

    #[test]
    fn seconds_hold_differences_of_counters() {
        let mut log = UsageLog::default();
        for second in 1..=10 {
            let mut ending = log.end_second(Instant(second * SEC));
            ending.volume(VolumeId(3), DeviceId(1), used(second * 100));
            // Another connection takes over the slot after five seconds, and counts from zero.
            let connection = if second <= 5 { (7, second * 10) } else { (8, (second - 5) * 20) };
            ending.connection(0, (connection.0, ExportId(2)), (connection.1, connection.1));
            ending.dirty(ExportId(2), 4096);
            ending.keep();
        }
        // The requests ended in the third second; what was in flight then ends in the fourth.
        let usage = log.during(&[(Instant(2 * SEC + 1), Instant(3 * SEC - 1))]);
        assert_eq!(usage.seconds, 2);
        assert_eq!(usage.volumes.len(), 1);
        assert_eq!(usage.volumes[0].used, used(200));
        assert_eq!(usage.dirty, [BytesHeld { export: ExportId(2), bytes: 2 * (4096 + 10) }]);
        let busy = |usage: &Usage| -> Vec<(u32, u64)> {
            usage.connections.iter().map(|one| (one.connection, one.busy_ns)).collect()
        };
        assert_eq!(busy(&usage), [(7, 20)]);
        let all = log.during(&[(Instant(1), Instant(10 * SEC))]);
        assert_eq!((all.seconds, all.volumes[0].used), (10, used(1000)));
        assert_eq!(busy(&all), [(8, 100), (7, 50)], "the largest is first");
        assert_eq!(log.during(&[]), Usage::default());
    }

    #[test]
    fn largest_users_are_kept_in_any_order() {
        let mut log = UsageLog::default();
        let mut ending = log.end_second(Instant(SEC));
        for volume in (0..100).map(|index| index * 37 % 100) {
            ending.volume(VolumeId(volume), DeviceId(0), used(u64::from(volume)));
        }
        ending.keep();
        let usage = log.during(&[(Instant(0), Instant(SEC))]);
        let found: Vec<u16> = usage.volumes.iter().map(|one| one.volume.0).collect();
        assert_eq!(found, (100 - USERS as u16..100).rev().collect::<Vec<_>>());
    }

    #[test]
    fn log_of_more_than_a_minute_forgets_the_oldest() {
        let mut log = UsageLog::default();
        for second in 1..=3 * SECONDS as u64 {
            let mut ending = log.end_second(Instant(second * SEC));
            ending.volume(VolumeId(0), DeviceId(0), used(second));
            ending.keep();
        }
        let usage = log.during(&[(Instant(0), Instant(u64::MAX))]);
        assert_eq!((usage.seconds, usage.volumes[0].used), (SECONDS as u64, used(SECONDS as u64)));
    }
}
