//! Flash behind a controller, a set of channels and a link: SATA and NVMe disks.
//!
//! ```text
//!   submit -> controller (one command at a time)
//!               | read: a chunk to whichever channel is free first ... the link, in the order in which they are ready -> done
//!               | write: the link -> buffer -> done, but no earlier than `buffer_ns` before the flash has taken it
//! ```
//!
//! A read that starts at the end of the previous one was read ahead. Each profile has few
//! parameters and is validated by the published figures of its disk (the tests below). A disk that has been written for long shows in
//! three ways, each of which is off in the profiles of the experiments: a fast region that fills and is emptied while the disk is idle, a
//! sustained rate behind it, and collections of garbage that keep some of the channels. Invariant: controller, channels and
//! link each serve one command at a time, in order of arrival.

use headworks_core::{Instant, Op};

use crate::device_model::{DeviceModel, ModelCommand, ModelCounters, transfer_ns};
use crate::events::EventQueue;

/// Parameters of a flash disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SsdProfile {
    /// Capacity of the disk in bytes.
    pub capacity: u64,
    /// Channels (or dies) that read concurrently.
    pub channels: usize,
    /// Read time of a chunk on a channel.
    pub read_ns: u64,
    /// Read time of a chunk that was read ahead.
    pub read_ahead_ns: u64,
    /// Time from the end of a write's transfer to its completion.
    pub write_ns: u64,
    /// Controller overhead of a read and of a write.
    pub command_ns: [u64; 2],
    /// Link rate to the host and from it.
    pub link_bytes_per_second: [u64; 2],
    /// Whether the link transfers both directions at once.
    pub duplex: bool,
    /// Bytes that a channel reads at once.
    pub chunk_bytes: u32,
    /// A command's data cross the link in one piece; otherwise chunk by chunk as they are ready.
    pub whole_commands: bool,
    /// Flash time of each write.
    pub drain_ns: u64,
    /// Flash rate of written bytes.
    pub drain_bytes_per_second: u64,
    /// Maximum time by which completions may precede the flash.
    pub buffer_ns: u64,
    /// Whether a flush waits until the flash has taken every write; a disk that survives a loss of power answers at once.
    pub flushes: bool,
    /// Time of a flush, after that wait.
    pub flush_ns: u64,
    /// Bytes that the flash takes at `drain_bytes_per_second`; 0 if all of it does.
    pub fast_bytes: u64,
    /// Flash rate of written bytes when the fast region is full, and rate at which an idle disk empties it.
    pub sustained_bytes_per_second: u64,
    /// Written bytes after which the disk collects garbage; 0: never.
    pub gc_every_bytes: u64,
    /// Time for which a collection of garbage keeps a channel.
    pub gc_ns: u64,
    /// Channels that a collection of garbage keeps.
    pub gc_channels: usize,
}

impl SsdProfile {
    /// A SATA disk: Samsung 870 EVO. Published: 13k/36k IOPS at depth 1, 98k/88k at depth 32,
    /// 560/530 MB/s.
    #[must_use]
    pub const fn sata() -> Self {
        Self {
            capacity: 1_000_000_000_000,
            channels: 16,
            read_ns: 60_000,
            read_ahead_ns: 60_000,
            write_ns: 8_700,
            command_ns: [10_000, 11_360],
            link_bytes_per_second: [560_000_000, 530_000_000],
            duplex: false,
            chunk_bytes: 16 << 10,
            whole_commands: true,
            drain_ns: 0,
            drain_bytes_per_second: 530_000_000,
            buffer_ns: 10_000_000,
            flushes: false,
            flush_ns: 0,
            fast_bytes: 0,
            sustained_bytes_per_second: 530_000_000,
            gc_every_bytes: 0,
            gc_ns: 0,
            gc_channels: 0,
        }
    }

    /// A SATA disk of few slow dies, behind a link of 3 Gbit/s: four bits a cell, of no product. Nothing is fitted to it.
    #[must_use]
    pub const fn sata_qlc() -> Self {
        let fast = Self::sata();
        Self {
            capacity: 2 * fast.capacity,
            channels: 8,
            read_ns: 140_000,
            read_ahead_ns: 90_000,
            command_ns: [16_000, 18_000],
            link_bytes_per_second: [270_000_000, 250_000_000],
            drain_bytes_per_second: 120_000_000,
            buffer_ns: 40_000_000,
            ..fast
        }
    }

    /// An NVMe disk: Intel P3700. Published: 460k/175k IOPS, 2800/2000 MB/s, 20/20 us sequential;
    /// measured 8.9k IOPS at depth 1 and 77k at depth 8.
    #[must_use]
    pub const fn nvme() -> Self {
        Self {
            capacity: 1_600_000_000_000,
            channels: 64,
            read_ns: 110_000,
            read_ahead_ns: 16_400,
            write_ns: 16_400,
            command_ns: [2_100, 2_100],
            link_bytes_per_second: [2_800_000_000, 2_800_000_000],
            duplex: true,
            chunk_bytes: 16 << 10,
            whole_commands: false,
            drain_ns: 3_760,
            drain_bytes_per_second: 2_100_000_000,
            buffer_ns: 10_000_000,
            flushes: false,
            flush_ns: 0,
            fast_bytes: 0,
            sustained_bytes_per_second: 2_100_000_000,
            gc_every_bytes: 0,
            gc_ns: 0,
            gc_channels: 0,
        }
    }
}

impl SsdProfile {
    /// Samsung 870 EVO with its flushes, fitted to 248 to 311 synced writes of 4 KiB in a second at depth 1 (lists of the Ceph
    /// community).
    #[must_use]
    pub const fn sata_flushing() -> Self {
        Self { flushes: true, flush_ns: 3_500_000, ..Self::sata() }
    }

    /// The disk of few slow dies with its flushes, a fast region of 40 GB behind which it writes 80 MB/s, and stalls: of no product.
    #[must_use]
    pub const fn sata_qlc_flushing() -> Self {
        Self {
            flushes: true,
            flush_ns: 5_000_000,
            fast_bytes: 40_000_000_000,
            sustained_bytes_per_second: 80_000_000,
            gc_every_bytes: 256 << 20,
            gc_ns: 15_000_000,
            gc_channels: 4,
            ..Self::sata_qlc()
        }
    }
}

/// The next event of the disk.
#[derive(Clone, Copy, Debug)]
enum SsdEvent {
    /// The controller has processed a command.
    Fetched(ModelCommand),
    /// A channel has read a chunk of a read in flight.
    Ready { in_flight: u32, len: u32 },
    /// This many bytes of a read in flight have reached the host.
    Sent { in_flight: u32, len: u32 },
    /// A write is in the buffer.
    Buffered(ModelCommand),
    /// A write is completed.
    Answered(u64),
}

/// A read in flight.
#[derive(Clone, Copy, Debug, Default)]
struct InFlight {
    token: u64,
    len: u32,
    ready: u32,
    sent: u32,
}

/// A flash disk with controller, channels and link.
#[derive(Debug)]
pub struct Ssd {
    profile: SsdProfile,
    controller_free: Instant,
    channels_free: Vec<Instant>,
    /// To the host, from the host; equal if the link is half duplex.
    link_free: [Instant; 2],
    drain_free: Instant,
    /// Bytes in the fast region when the flash was last busy.
    fast_used: u64,
    /// Bytes that were written since the last collection of garbage.
    since_gc: u64,
    last_read_end: u64,
    in_flight: Vec<InFlight>,
    unused: Vec<u32>,
    events: EventQueue<SsdEvent>,
    counters: ModelCounters,
}

impl Ssd {
    /// An idle disk of this profile.
    #[must_use]
    pub fn new(profile: SsdProfile) -> Self {
        assert!(profile.channels > 0 && profile.chunk_bytes > 0, "a disk has channels");
        Self {
            profile,
            controller_free: Instant(0),
            channels_free: vec![Instant(0); profile.channels],
            link_free: [Instant(0); 2],
            drain_free: Instant(0),
            fast_used: 0,
            since_gc: 0,
            last_read_end: u64::MAX,
            in_flight: Vec::with_capacity(256),
            unused: Vec::with_capacity(256),
            events: EventQueue::with_capacity(1024),
            counters: ModelCounters::default(),
        }
    }

    /// Fills the fast region, as in a disk that has just been written from end to end.
    pub fn fill(&mut self) {
        self.fast_used = self.profile.fast_bytes;
    }

    fn fetched(&mut self, now: Instant, order: ModelCommand) {
        match order.op {
            Op::Read => self.read(now, order),
            Op::Write => {
                let at = self.use_link(now, 1, order.len);
                self.events.push(at, SsdEvent::Buffered(order));
            }
            Op::Flush => {
                let drained = if self.profile.flushes { self.drain_free.max(now) } else { now };
                let at = drained.after(self.profile.flush_ns);
                self.events.push(at, SsdEvent::Answered(order.token));
            }
            _ => self.events.push(now, SsdEvent::Answered(order.token)),
        }
    }

    fn read(&mut self, now: Instant, order: ModelCommand) {
        let in_flight = self.take_in_flight();
        self.in_flight[in_flight as usize] =
            InFlight { token: order.token, len: order.len, ready: 0, sent: 0 };
        self.counters.media_bytes += u64::from(order.len);
        let ahead = self.last_read_end == order.offset;
        self.last_read_end = order.offset + u64::from(order.len);
        let mut left = order.len;
        while left > 0 {
            let len = left.min(self.profile.chunk_bytes);
            let at = match ahead {
                true => now.after(self.profile.read_ahead_ns),
                false => self.use_channel(now),
            };
            self.events.push(at, SsdEvent::Ready { in_flight, len });
            left -= len;
        }
    }

    fn take_in_flight(&mut self) -> u32 {
        self.unused.pop().unwrap_or_else(|| {
            self.in_flight.push(InFlight::default());
            self.in_flight.len() as u32 - 1
        })
    }

    /// The first free channel reads a chunk; returns the end time.
    fn use_channel(&mut self, now: Instant) -> Instant {
        let channel = self.channels_free.iter_mut().min().expect("there are channels");
        *channel = now.max(*channel).after(self.profile.read_ns);
        *channel
    }

    /// The link transfers `len` bytes; returns the end time.
    fn use_link(&mut self, now: Instant, direction: usize, len: u32) -> Instant {
        let takes = transfer_ns(len.into(), self.profile.link_bytes_per_second[direction]);
        let link = if self.profile.duplex { direction } else { 0 };
        self.link_free[link] = self.link_free[link].max(now).after(takes);
        self.link_free[link]
    }

    fn ready(&mut self, now: Instant, in_flight: u32, len: u32) {
        let entry = &mut self.in_flight[in_flight as usize];
        entry.ready += len;
        let send = match self.profile.whole_commands {
            true if entry.ready < entry.len => return,
            true => entry.len,
            false => len,
        };
        let at = self.use_link(now, 0, send);
        self.events.push(at, SsdEvent::Sent { in_flight, len: send });
    }

    fn sent(&mut self, in_flight: u32, len: u32, done: &mut Vec<u64>) {
        let entry = &mut self.in_flight[in_flight as usize];
        entry.sent += len;
        if entry.sent == entry.len {
            done.push(entry.token);
            self.unused.push(in_flight);
        }
    }

    /// The flash drains the buffer at its own rate; a write too far ahead of it waits.
    fn buffered(&mut self, now: Instant, order: ModelCommand) {
        let takes = self.profile.drain_ns + self.program(now, order.len.into());
        self.drain_free = self.drain_free.max(now).after(takes);
        self.counters.media_bytes += u64::from(order.len);
        self.collect_garbage(now, order.len.into());
        let p = &self.profile;
        let behind = Instant(self.drain_free.0.saturating_sub(p.buffer_ns));
        self.events.push(now.after(p.write_ns).max(behind), SsdEvent::Answered(order.token));
    }

    /// Time that the flash takes for `len` bytes: in the fast region, if there is room.
    fn program(&mut self, now: Instant, len: u64) -> u64 {
        let p = &self.profile;
        if p.fast_bytes == 0 {
            return transfer_ns(len, p.drain_bytes_per_second);
        }
        let idle_ns = u128::from(now.since(self.drain_free));
        let emptied = idle_ns * u128::from(p.sustained_bytes_per_second) / 1_000_000_000;
        self.fast_used = self.fast_used.saturating_sub(emptied.min(u64::MAX.into()) as u64);
        if self.fast_used + len > p.fast_bytes {
            return transfer_ns(len, p.sustained_bytes_per_second);
        }
        self.fast_used += len;
        transfer_ns(len, p.drain_bytes_per_second)
    }

    /// Keeps channels, and with them the flash, for a while each time enough has been written.
    fn collect_garbage(&mut self, now: Instant, len: u64) {
        let p = &self.profile;
        if p.gc_every_bytes == 0 {
            return;
        }
        self.since_gc += len;
        if self.since_gc < p.gc_every_bytes {
            return;
        }
        self.since_gc %= p.gc_every_bytes;
        let count = p.gc_channels.min(p.channels);
        self.channels_free.sort_unstable();
        for channel in &mut self.channels_free[..count] {
            *channel = now.max(*channel).after(p.gc_ns);
        }
        let stall = u128::from(p.gc_ns) * count as u128 / p.channels as u128;
        self.drain_free = self.drain_free.after(stall as u64);
    }
}

impl DeviceModel for Ssd {
    fn submit(&mut self, now: Instant, order: ModelCommand) {
        let takes = self.profile.command_ns[usize::from(order.op != Op::Read)];
        self.controller_free = self.controller_free.max(now).after(takes);
        self.events.push(self.controller_free, SsdEvent::Fetched(order));
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.events.next_at()
    }

    fn on_timeout(&mut self, now: Instant, done: &mut Vec<u64>) {
        while let Some((at, step)) = self.events.pop_due(now) {
            match step {
                SsdEvent::Fetched(order) => self.fetched(at, order),
                SsdEvent::Ready { in_flight, len } => self.ready(at, in_flight, len),
                SsdEvent::Sent { in_flight, len } => self.sent(in_flight, len, done),
                SsdEvent::Buffered(order) => self.buffered(at, order),
                SsdEvent::Answered(token) => done.push(token),
            }
        }
    }

    fn counters(&self) -> ModelCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_model::testing::{drive, random, sequential};

    const SIZE: u64 = 1 << 36;

    /// Asserts that a result is within 10 % of the published figure.
    fn check(what: &str, found: f64, published: f64) {
        let error = found / published - 1.0;
        assert!(error.abs() <= 0.1, "{what}: {found:.0} for {published} ({:+.1} %)", error * 100.0);
    }

    fn iops(profile: SsdProfile, op: Op, depth: u64) -> f64 {
        let mut ssd = Ssd::new(profile);
        drive(&mut ssd, depth, (20_000, 20_000), random(op, 4096, SIZE)).per_second()
    }

    fn megabytes(profile: SsdProfile, op: Op) -> f64 {
        let mut ssd = Ssd::new(profile);
        let rate = drive(&mut ssd, 32, (1000, 4000), sequential(op, 128 << 10)).per_second();
        rate * f64::from(128 << 10) / 1e6
    }

    #[test]
    fn sata_profile_matches_published_figures() {
        let sata = SsdProfile::sata();
        check("reads at depth 1", iops(sata, Op::Read, 1), 13_000.0);
        check("writes at depth 1", iops(sata, Op::Write, 1), 36_000.0);
        check("reads at depth 32", iops(sata, Op::Read, 32), 98_000.0);
        check("writes at depth 32", iops(sata, Op::Write, 32), 88_000.0);
        check("MB/s read", megabytes(sata, Op::Read), 560.0);
        check("MB/s written", megabytes(sata, Op::Write), 530.0);
    }

    #[test]
    fn slow_sata_disk_differs_from_the_fast_one_at_every_depth_and_size() {
        let slow = SsdProfile::sata_qlc();
        check("MB/s read", megabytes(slow, Op::Read), 270.0);
        check("MB/s written", megabytes(slow, Op::Write), 120.0);
        check("reads at depth 1", iops(slow, Op::Read, 1), 5_800.0);
        check("reads at depth 32", iops(slow, Op::Read, 32), 57_000.0);
    }

    #[test]
    fn nvme_profile_matches_published_figures() {
        let nvme = SsdProfile::nvme();
        check("reads at depth 1", iops(nvme, Op::Read, 1), 8_900.0);
        check("reads at depth 8", iops(nvme, Op::Read, 8), 77_000.0);
        check("reads at depth 128", iops(nvme, Op::Read, 128), 460_000.0);
        check("writes at depth 128", iops(nvme, Op::Write, 128), 175_000.0);
        check("MB/s read", megabytes(nvme, Op::Read), 2800.0);
        check("MB/s written", megabytes(nvme, Op::Write), 2000.0);
        for op in [Op::Read, Op::Write] {
            let mut ssd = Ssd::new(nvme);
            let rate = drive(&mut ssd, 1, (10, 1000), sequential(op, 4096)).per_second();
            check("us of a sequential command", 1e6 / rate, 20.0);
        }
    }

    #[test]
    fn link_transfers_chunks_while_others_are_read() {
        let ends_at = |whole_commands| {
            let mut ssd = Ssd::new(SsdProfile { whole_commands, ..SsdProfile::nvme() });
            let (mut done, mut now) = (Vec::new(), Instant(0));
            ssd.submit(now, ModelCommand { token: 9, op: Op::Read, offset: 1 << 30, len: 4 << 20 });
            while let Some(next) = ssd.next_timeout() {
                now = next;
                ssd.on_timeout(now, &mut done);
            }
            assert_eq!(done, [9]);
            now.0
        };
        // The first chunks are ready after 110 us, the last of 4 rounds after 440.
        let link = transfer_ns(4 << 20, 2_800_000_000);
        assert!((link + 111_000..link + 113_000).contains(&ends_at(false)), "{}", ends_at(false));
        assert!((link + 441_000..link + 443_000).contains(&ends_at(true)), "{}", ends_at(true));
    }
}
