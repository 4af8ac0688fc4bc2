//! Devices that have time and no bytes: what an experiment over millions of commands needs.
//!
//! A [`DeviceModel`] takes commands and says later which of them are done. It may answer in another order, and work on after an
//! answer (a disk that empties its cache). Everything is a function of the commands and their times; whole nanoseconds, no
//! clock. The calibrated ones are [`super::Hdd`], [`super::Ssd`] and [`TwoPoint`].
//!
//! ```text
//!   submit(now, order) ---> waits, counters ---> next_timeout() ---> on_timeout(now, done)
//! ```
//!
//! Invariant: each token comes back once; nothing happens between `next_timeout` and an earlier call.

use headworks_core::prng::Prng;
use headworks_core::{Instant, Op};

use super::timing::{LatencyModel, Timing};
use crate::events::EventQueue;

/// One command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelCommand {
    /// Comes back when it is done.
    pub token: u64,
    /// What it is.
    pub op: Op,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

/// What a device did inside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelCounters {
    /// Times a head had to be moved or waited for its sector.
    pub positionings: u64,
    /// Bytes to and from the medium.
    pub media_bytes: u64,
}

/// A device's time.
pub trait DeviceModel {
    /// Takes a command.
    fn submit(&mut self, now: Instant, order: ModelCommand);

    /// When something happens next.
    fn next_timeout(&self) -> Option<Instant>;

    /// Lets everything happen that is due, and adds the tokens of what is done.
    fn on_timeout(&mut self, now: Instant, done: &mut Vec<u64>);

    /// What it did inside so far.
    fn counters(&self) -> ModelCounters {
        ModelCounters::default()
    }
}

/// Transfer time of `len` bytes.
#[must_use]
pub(super) const fn transfer_ns(len: u64, bytes_per_second: u64) -> u64 {
    (len as u128 * 1_000_000_000 / bytes_per_second as u128) as u64
}

/// One command at a time: a constant and a byte rate. Two measured rows fix it, and nothing but them.
#[derive(Debug)]
pub struct TwoPoint {
    per_command_ns: u64,
    bytes_per_second: u64,
    free_at: Instant,
    events: EventQueue<u64>,
}

impl TwoPoint {
    /// An idle one.
    #[must_use]
    pub fn new(per_command_ns: u64, bytes_per_second: u64) -> Self {
        assert!(bytes_per_second > 0, "a device moves bytes");
        Self {
            per_command_ns,
            bytes_per_second,
            free_at: Instant(0),
            events: EventQueue::with_capacity(256),
        }
    }
}

impl DeviceModel for TwoPoint {
    fn submit(&mut self, now: Instant, order: ModelCommand) {
        let takes = self.per_command_ns + transfer_ns(order.len.into(), self.bytes_per_second);
        self.free_at = self.free_at.max(now).after(takes);
        self.events.push(self.free_at, order.token);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.events.next_at()
    }

    fn on_timeout(&mut self, now: Instant, done: &mut Vec<u64>) {
        while let Some((_, token)) = self.events.pop_due(now) {
            done.push(token);
        }
    }
}

/// A per-command [`LatencyModel`] without bytes.
#[derive(Debug)]
pub struct PerCommand {
    timing: Timing,
    prng: Prng,
    events: EventQueue<u64>,
}

impl PerCommand {
    /// An idle one.
    #[must_use]
    pub fn new(model: LatencyModel, seed: u64) -> Self {
        let prng = Prng::new(seed);
        Self { timing: Timing::new(model), prng, events: EventQueue::with_capacity(256) }
    }

    /// null_blk with its default latency of 10 us and depth of 64.
    #[must_use]
    pub fn null() -> Self {
        Self::new(LatencyModel::Constant { latency_ns: 10_000, jitter_ns: 0, channels: 64 }, 0)
    }
}

impl DeviceModel for PerCommand {
    fn submit(&mut self, now: Instant, order: ModelCommand) {
        let (sector, sectors) = (order.offset / 512, u64::from(order.len / 512));
        let end = self.timing.finish(now, sector, sectors, &mut self.prng);
        self.events.push(end, order.token);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.events.next_at()
    }

    fn on_timeout(&mut self, now: Instant, done: &mut Vec<u64>) {
        while let Some((_, token)) = self.events.pop_due(now) {
            done.push(token);
        }
    }
}

#[cfg(test)]
pub(super) mod testing {
    //! A host for the models' own tests: so many commands at a time, each next one when one is done.

    use super::*;

    /// What a closed loop saw.
    pub struct ClosedLoop {
        pub done: u64,
        pub ns: u64,
    }

    impl ClosedLoop {
        pub fn per_second(&self) -> f64 {
            self.done as f64 * 1e9 / self.ns as f64
        }
    }

    /// Keeps `depth` commands of `len` bytes in the device until `warm + count` are done; the last `count` are measured.
    pub fn drive(
        device: &mut dyn DeviceModel,
        depth: u64,
        (warm, count): (u64, u64),
        mut next: impl FnMut(u64) -> ModelCommand,
    ) -> ClosedLoop {
        let (mut issued, mut finished, mut since, mut done) = (0, 0, Instant(0), Vec::new());
        while issued < depth {
            device.submit(Instant(0), ModelCommand { token: issued, ..next(issued) });
            issued += 1;
        }
        loop {
            let now = device.next_timeout().expect("a device with commands works");
            device.on_timeout(now, &mut done);
            for _ in done.drain(..) {
                finished += 1;
                if finished == warm {
                    since = now;
                }
                if finished == warm + count {
                    return ClosedLoop { done: count, ns: now.since(since) };
                }
                device.submit(now, ModelCommand { token: issued, ..next(issued) });
                issued += 1;
            }
        }
    }

    /// Random aligned places.
    pub fn random(op: Op, len: u32, size: u64) -> impl FnMut(u64) -> ModelCommand {
        let mut prng = Prng::new(7);
        move |_| {
            let offset = prng.below(size / u64::from(len)) * u64::from(len);
            ModelCommand { token: 0, op, offset, len }
        }
    }

    /// One after the other.
    pub fn sequential(op: Op, len: u32) -> impl FnMut(u64) -> ModelCommand {
        move |index| ModelCommand { token: 0, op, offset: index * u64::from(len), len }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{drive, random};
    use super::*;

    #[test]
    fn two_points_are_its_own() {
        // The rows it was fitted to: 4 KiB and 64 KiB requests of seed 004.
        for (len, kib_per_second) in [(4096, 283_638.0), (65_536, 873_224.0)] {
            let mut device = TwoPoint::new(10_157, 1_038_030_000);
            let rate =
                drive(&mut device, 8, (8, 1000), random(Op::Read, len, 1 << 30)).per_second();
            let found = rate * f64::from(len) / 1024.0;
            assert!((found / kib_per_second - 1.0).abs() < 0.001, "{found} for {kib_per_second}");
        }
    }

    #[test]
    fn null_serves_its_depth_per_latency() {
        let mut device = PerCommand::null();
        let rate = drive(&mut device, 32, (32, 3200), random(Op::Read, 4096, 1 << 30)).per_second();
        assert!((rate / 3.2e6 - 1.0).abs() < 0.01, "{rate}");
    }
}
