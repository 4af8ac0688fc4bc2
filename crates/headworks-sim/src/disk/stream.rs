//! A device that likes to go on where it was: bandwidth, a cost for each command, and one for each change of stream.
//!
//! A command that starts where one of the last `streams` ended goes on with that stream; any other pays `switch_ns` first. One
//! command at a time, in the order in which they came. Three things make it unkind, each on its own:
//!
//! ```text
//!   steps      bandwidth from a time on                       700 MB/s |''''|____|''''  200
//!   stalls     nothing moves for `len` in every `every`       |####____####____
//!   bursts     answers are held until so many bytes are done, or nothing is left to do
//! ```
//!
//! Invariant: a command's end depends on the commands before it and their times alone; answers come in order.

use std::collections::VecDeque;

use headworks_core::Instant;

use super::device_model::{DeviceModel, ModelCommand, ModelCounters, transfer_ns};

/// What a [`Stream`] is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamProfile {
    /// Bytes a second, at least 1, until the first step.
    pub bytes_per_second: u64,
    /// Each command.
    pub per_command_ns: u64,
    /// Each command that goes on with none of the remembered streams.
    pub switch_ns: u64,
    /// How many ends of streams are remembered.
    pub streams: usize,
    /// Bandwidths from a time on, in order of time.
    pub steps: Vec<(Instant, u64)>,
    /// Bytes whose answers come together; 0: each when it is done.
    pub burst_bytes: u64,
    /// Nothing moves for the last `.1` of every `.0` nanoseconds; 0, 0: never.
    pub stall: (u64, u64),
}

impl StreamProfile {
    /// One stream at a time at that bandwidth, 20 us a command, nothing unkind.
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

    /// The bandwidth at `at`, and when it changes next.
    fn bandwidth(&self, at: Instant) -> (u64, Option<Instant>) {
        let past = self.steps.partition_point(|&(since, _)| since <= at);
        let now = past.checked_sub(1).map_or(self.bytes_per_second, |last| self.steps[last].1);
        (now, self.steps.get(past).map(|&(since, _)| since))
    }

    /// `at`, or the end of the stall that it is in; and when the next stall starts.
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

    /// When `bytes` are through if they start at `start`.
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

/// See the head of this file.
#[derive(Debug)]
pub struct Stream {
    profile: StreamProfile,
    /// Where the last streams ended, the newest first.
    ends: VecDeque<u64>,
    free_at: Instant,
    /// What is in the device: when it is done, its token and bytes.
    counters: VecDeque<(Instant, u64, u64)>,
    /// Done, and held back for a burst.
    held: Vec<u64>,
    held_bytes: u64,
    done: ModelCounters,
}

impl Stream {
    /// An idle one.
    #[must_use]
    pub fn new(profile: StreamProfile) -> Self {
        assert!(profile.bytes_per_second > 0, "a device moves bytes");
        assert!(profile.steps.iter().all(|&(_, rate)| rate > 0), "a device moves bytes");
        assert!(profile.stall.1 == 0 || profile.stall.1 < profile.stall.0, "a stall ends");
        Self {
            ends: VecDeque::with_capacity(profile.streams + 1),
            profile,
            free_at: Instant(0),
            counters: VecDeque::with_capacity(256),
            held: Vec::with_capacity(256),
            held_bytes: 0,
            done: ModelCounters::default(),
        }
    }

    /// Whether the command goes on with a stream; its end is remembered either way.
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
        // A flush has no place, so it ends no stream.
        if order.len > 0 && !self.follow(&order) {
            start = start.after(self.profile.switch_ns);
            self.done.positionings += 1;
        }
        let start = start.after(self.profile.per_command_ns);
        self.free_at = self.profile.transferred(start, order.len.into());
        self.counters.push_back((self.free_at, order.token, order.len.into()));
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.counters.front().map(|&(at, ..)| at)
    }

    fn on_timeout(&mut self, now: Instant, done: &mut Vec<u64>) {
        while let Some(&(at, token, bytes)) = self.counters.front() {
            if at > now {
                return;
            }
            self.counters.pop_front();
            self.done.media_bytes += bytes;
            self.held.push(token);
            self.held_bytes += bytes;
            if self.held_bytes >= self.profile.burst_bytes || self.counters.is_empty() {
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

    use super::super::device_model::testing::{drive, sequential};
    use super::*;

    const MIB: u32 = 1 << 20;

    /// Two streams, a command each in turn.
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
    fn only_a_change_of_stream_pays_and_remembered_streams_do_not() {
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
    fn a_transfer_goes_through_steps_and_stalls() {
        let mut profile = StreamProfile::new(1_000_000_000, 0);
        profile.steps = vec![(Instant(SEC), 500_000_000), (Instant(2 * SEC), 2_000_000_000)];
        // Half a second fast, a second slowly, the rest four times as fast.
        let end = profile.transferred(Instant(SEC / 2), 2_000_000_000);
        assert_eq!(end, Instant(2 * SEC + SEC / 2));
        profile.stall = (2 * SEC, 400 * MS);
        // Awake from 0.5 to 1, at half speed to 1.6, and from 2 on fast.
        let end = profile.transferred(Instant(SEC / 2), 2_000_000_000);
        assert_eq!(end, Instant(2 * SEC + 600 * MS));
        assert_eq!(profile.transferred(Instant(1_700 * MS), 0), Instant(2 * SEC));
    }

    #[test]
    fn answers_are_held_until_the_burst_is_full_or_nothing_is_left() {
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
