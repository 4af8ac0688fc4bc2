//! A device that favours sequential streams: a bandwidth, a cost of each command, and a cost of
//! each change of stream.
//!
//! A command that starts where one of the last `streams` ended continues that stream; any other
//! pays `switch_ns` first. Commands are served one at a time, in order of arrival. Three
//! disturbances can be switched on:
//!
//! ```text
//!   steps      bandwidth from a time on                       700 MB/s |''''|____|''''  200
//!   stalls     no transfer for `len` in every `every`         |####____####____
//!   bursts     completions are held until so many bytes are done, or the device is idle
//! ```
//!
//! Invariant: a command's end depends only on earlier commands and their times; completions are in
//! order.

use std::collections::VecDeque;

use headworks_core::Instant;

use crate::device_model::{DeviceModel, ModelCommand, ModelCounters, transfer_ns};

/// Options of a [`Stream`] device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamProfile {
    /// Bytes per second, at least 1, until the first step.
    pub bytes_per_second: u64,
    /// Overhead of each command.
    pub per_command_ns: u64,
    /// Additional time of a command that continues no remembered stream.
    pub switch_ns: u64,
    /// Number of stream ends that are remembered.
    pub streams: usize,
    /// Bandwidth changes, in order of time.
    pub steps: Vec<(Instant, u64)>,
    /// Bytes completed together; 0 completes each command when it is done.
    pub burst_bytes: u64,
    /// (period, length): no transfer in the last `length` nanoseconds of every period; (0, 0) for
    /// none.
    pub stall: (u64, u64),
}

impl StreamProfile {
    /// A device of that bandwidth with one stream, 20 us a command and no disturbances.
    #[must_use]
    pub const fn new(bytes_per_second: u64, switch_ns: u64) -> Self {
        Self {
            bytes_per_second,
            per_command_ns: 20_000,
            switch_ns,
            streams: 1,
            steps: Vec::new(),
            burst_bytes: 0,
            stall: (0, 0),
        }
    }

    /// The bandwidth at `at`, and the time of its next change.
    fn bandwidth(&self, at: Instant) -> (u64, Option<Instant>) {
        let past = self.steps.partition_point(|&(since, _)| since <= at);
        let now = past.checked_sub(1).map_or(self.bytes_per_second, |last| self.steps[last].1);
        (now, self.steps.get(past).map(|&(since, _)| since))
    }

    /// `at`, or the end of the stall that contains it; and the start of the next stall.
    fn awake(&self, at: Instant) -> (Instant, Option<Instant>) {
        let (every, len) = self.stall;
        if len == 0 {
            return (at, None);
        }
        let round = at.0 / every * every;
        let stalls = Instant(round + every - len);
        match at < stalls {
            true => (at, Some(stalls)),
            false => (Instant(round + every), Some(stalls.after(every))),
        }
    }

    /// The end of a transfer of `bytes` that starts at `start`.
    fn transferred(&self, start: Instant, bytes: u64) -> Instant {
        let (mut at, mut left) = (start, bytes);
        loop {
            let (awake, stalls) = self.awake(at);
            let (bandwidth, changes) = self.bandwidth(awake);
            let end = awake.after(transfer_ns(left, bandwidth));
            let Some(edge) = stalls.into_iter().chain(changes).min().filter(|&edge| edge < end)
            else {
                return end;
            };
            let moved = u128::from(edge.since(awake)) * u128::from(bandwidth) / 1_000_000_000;
            left -= (moved as u64).min(left);
            at = edge;
        }
    }
}

/// A device with its command queue and remembered streams.
#[derive(Debug)]
pub struct Stream {
    profile: StreamProfile,
    /// Ends of the last streams, newest first.
    ends: VecDeque<u64>,
    free_at: Instant,
    /// Commands in the device: end time, token and bytes.
    queue: VecDeque<(Instant, u64, u64)>,
    /// Commands done and held for a burst.
    held: Vec<u64>,
    held_bytes: u64,
    done: ModelCounters,
}

impl Stream {
    /// An idle device of this profile.
    #[must_use]
    pub fn new(profile: StreamProfile) -> Self {
        assert!(profile.bytes_per_second > 0, "a device moves bytes");
        assert!(profile.steps.iter().all(|&(_, rate)| rate > 0), "a device moves bytes");
        assert!(profile.stall.1 == 0 || profile.stall.1 < profile.stall.0, "a stall ends");
        Self {
            ends: VecDeque::with_capacity(profile.streams + 1),
            profile,
            free_at: Instant(0),
            queue: VecDeque::with_capacity(256),
            held: Vec::with_capacity(256),
            held_bytes: 0,
            done: ModelCounters::default(),
        }
    }

    /// Whether the command continues a stream; remembers its end either way.
    fn follow(&mut self, order: &ModelCommand) -> bool {
        let known = self.ends.iter().position(|&end| end == order.offset);
        if let Some(place) = known {
            self.ends.remove(place);
        }
        self.ends.push_front(order.offset + u64::from(order.len));
        self.ends.truncate(self.profile.streams);
        known.is_some()
    }
}

impl DeviceModel for Stream {
    fn submit(&mut self, now: Instant, order: ModelCommand) {
        let mut start = self.profile.awake(self.free_at.max(now)).0;
        // A flush has no offset and ends no stream.
        if order.len > 0 && !self.follow(&order) {
            start = start.after(self.profile.switch_ns);
            self.done.positionings += 1;
        }
        let start = start.after(self.profile.per_command_ns);
        self.free_at = self.profile.transferred(start, order.len.into());
        self.queue.push_back((self.free_at, order.token, order.len.into()));
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.queue.front().map(|&(at, ..)| at)
    }

    fn on_timeout(&mut self, now: Instant, done: &mut Vec<u64>) {
        while let Some(&(at, token, bytes)) = self.queue.front() {
            if at > now {
                return;
            }
            self.queue.pop_front();
            self.done.media_bytes += bytes;
            self.held.push(token);
            self.held_bytes += bytes;
            if self.held_bytes >= self.profile.burst_bytes || self.queue.is_empty() {
                done.append(&mut self.held);
                self.held_bytes = 0;
            }
        }
    }

    fn counters(&self) -> ModelCounters {
        self.done
    }
}

#[cfg(test)]
mod tests {
    use headworks_core::Op;
    use headworks_core::time::{MS, SEC};

    use super::*;
    use crate::device_model::testing::{drive, sequential};

    const MIB: u32 = 1 << 20;

    /// Two streams that alternate.
    fn two_streams(index: u64) -> ModelCommand {
        let (stream, step) = (index % 2, index / 2);
        let offset = (stream << 40) + step * u64::from(MIB);
        ModelCommand { token: 0, op: Op::Write, offset, len: MIB }
    }

    fn mb_per_second(profile: &StreamProfile, next: impl FnMut(u64) -> ModelCommand) -> f64 {
        let mut device = Stream::new(profile.clone());
        let rate = drive(&mut device, 4, (4, 2000), next).per_second();
        rate * f64::from(MIB) / 1e6
    }

    #[test]
    fn only_unremembered_streams_pay_the_switch_cost() {
        let mut profile = StreamProfile::new(1_000_000_000, 500_000);
        profile.per_command_ns = 0;
        let alone = mb_per_second(&profile, sequential(Op::Write, MIB));
        assert!((alone - 1000.0).abs() < 1.0, "{alone}");
        // 1.049 ms of transfer and 0.5 of switching.
        let both = mb_per_second(&profile, two_streams);
        assert!((both - 1e3 * 1.048_576 / 1.548_576).abs() < 1.0, "{both}");
        profile.streams = 2;
        let both = mb_per_second(&profile, two_streams);
        assert!((both - 1000.0).abs() < 1.0, "{both}");
    }

    #[test]
    fn transfer_spans_bandwidth_steps_and_stalls() {
        let mut profile = StreamProfile::new(1_000_000_000, 0);
        profile.steps = vec![(Instant(SEC), 500_000_000), (Instant(2 * SEC), 2_000_000_000)];
        // Half a second fast, a second slowly, the rest four times as fast.
        let end = profile.transferred(Instant(SEC / 2), 2_000_000_000);
        assert_eq!(end, Instant(2 * SEC + SEC / 2));
        profile.stall = (2 * SEC, 400 * MS);
        // No stall from 0.5 to 1, half speed to 1.6, and fast from 2 on.
        let end = profile.transferred(Instant(SEC / 2), 2_000_000_000);
        assert_eq!(end, Instant(2 * SEC + 600 * MS));
        assert_eq!(profile.transferred(Instant(1_700 * MS), 0), Instant(2 * SEC));
    }

    #[test]
    fn completions_are_held_until_burst_is_full_or_device_idle() {
        let mut profile = StreamProfile::new(1_000_000_000, 0);
        profile.burst_bytes = 3 * u64::from(MIB);
        let mut device = Stream::new(profile);
        let order = |token| ModelCommand { token, ..sequential(Op::Write, MIB)(token) };
        (0..4).for_each(|token| device.submit(Instant(0), order(token)));
        let mut seen = Vec::new();
        while let Some(now) = device.next_timeout() {
            let mut done = Vec::new();
            device.on_timeout(now, &mut done);
            seen.push(done);
        }
        assert_eq!(seen, [vec![], vec![], vec![0, 1, 2], vec![3]]);
    }
}
