//! Device models without data: timing only, for experiments with millions of commands.
//!
//! A [`DeviceModel`] takes commands and later reports which are done. It may complete out of order,
//! and continue to work after a completion (a disk that destages its cache). Completions are a
//! function of the commands and their times, in whole nanoseconds; there is no clock. The
//! calibrated models are [`crate::Hdd`], [`crate::Ssd`] and [`TwoPoint`].
//!
//! ```text
//!   submit(now, command) ---> queued, in progress ---> next_timeout() ---> on_timeout(now, done)
//! ```
//!
//! Invariants: each token is returned once; the state does not change before `next_timeout`.

use headworks_core::prng::Prng;
use headworks_core::{Instant, Op};

use crate::events::EventQueue;
use crate::timing::{LatencyModel, Timing};

/// A command to a device model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelCommand {
    /// Returned when the command is done.
    pub token: u64,
    /// The operation of the command.
    pub op: Op,
    /// First byte on the device.
    pub offset: u64,
    /// Length of the command in bytes.
    pub len: u32,
}

/// Internal counters of a device model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelCounters {
    /// Number of times the head was positioned.
    pub positionings: u64,
    /// Bytes transferred to and from the medium.
    pub media_bytes: u64,
}

/// The timing behaviour of a device.
pub trait DeviceModel {
    /// Submits a command at `now`.
    fn submit(&mut self, now: Instant, order: ModelCommand);

    /// Time of the next internal event.
    fn next_timeout(&self) -> Option<Instant>;

    /// Processes all events due at `now`, and appends the tokens of completed commands.
    fn on_timeout(&mut self, now: Instant, done: &mut Vec<u64>);

    /// The internal counters so far.
    fn counters(&self) -> ModelCounters {
        ModelCounters::default()
    }
}

/// Transfer time of `len` bytes in nanoseconds.
#[must_use]
pub(crate) const fn transfer_ns(len: u64, bytes_per_second: u64) -> u64 {
    (len as u128 * 1_000_000_000 / bytes_per_second as u128) as u64
}

/// A device that serves one command at a time, with a constant cost and a byte rate: the line
/// through two measured points.
#[derive(Debug)]
pub struct TwoPoint {
    per_command_ns: u64,
    bytes_per_second: u64,
    free_at: Instant,
    events: EventQueue<u64>,
}

impl TwoPoint {
    /// An idle device of this cost and rate.
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

/// A per-command [`LatencyModel`] without data.
#[derive(Debug)]
pub struct PerCommand {
    timing: Timing,
    prng: Prng,
    events: EventQueue<u64>,
}

impl PerCommand {
    /// An idle device of this latency model.
    #[must_use]
    pub fn new(model: LatencyModel, seed: u64) -> Self {
        let prng = Prng::new(seed);
        Self { timing: Timing::new(model), prng, events: EventQueue::with_capacity(256) }
    }

    /// Linux null_blk with its default latency of 10 us and depth of 64.
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
pub(crate) mod testing {
    //! A closed-loop driver for the models' own tests: each completion submits the next command.

    use super::*;

    /// The measurements of a closed-loop run.
    pub struct ClosedLoop {
        pub done: u64,
        pub ns: u64,
    }

    impl ClosedLoop {
        pub fn per_second(&self) -> f64 {
            self.done as f64 * 1e9 / self.ns as f64
        }
    }

    /// Keeps `depth` commands of `len` bytes in flight until `warm + count` are done; measures the
    /// last `count`.
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

    /// Commands at random aligned offsets.
    pub fn random(op: Op, len: u32, size: u64) -> impl FnMut(u64) -> ModelCommand {
        let mut prng = Prng::new(7);
        move |_| {
            let offset = prng.below(size / u64::from(len)) * u64::from(len);
            ModelCommand { token: 0, op, offset, len }
        }
    }

    /// Commands at consecutive offsets.
    pub fn sequential(op: Op, len: u32) -> impl FnMut(u64) -> ModelCommand {
        move |index| ModelCommand { token: 0, op, offset: index * u64::from(len), len }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{drive, random};
    use super::*;

    #[test]
    fn two_point_device_reproduces_its_points() {
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
    fn null_device_completes_its_depth_per_latency() {
        let mut device = PerCommand::null();
        let rate = drive(&mut device, 32, (32, 3200), random(Op::Read, 4096, 1 << 30)).per_second();
        assert!((rate / 3.2e6 - 1.0).abs() < 0.01, "{rate}");
    }
}
